"""The verdict on runs of others: what files say, the numbers of `report`, seeds needed."""

import gzip
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import ttest_ind, ttest_rel

from plkernel.commands import judge as command
from plkernel.common import cli
from plkernel.common.files import load_json
from plkernel.results.comparison import compare
from plkernel.results.judging import (
    MOST_SEEDS,
    Judged,
    Stated,
    Stating,
    _needed_text,
    content,
    early_note,
    figure,
    judged,
    render,
    seeds_needed,
)
from plkernel.results.rows import Columns, Row, last_values, read_rows, split_name
from plkernel.results.statistics import detectable_difference, holm
from plkernel.results.study import read_study

RECORDS = Path(__file__).parents[2] / "runs" / "records"
HEADER = "arm,seed,value\n"


def write(folder: Path, content: str, name: str = "rows.csv") -> Path:
    path = folder / name
    path.write_text(content)
    return path


def drawn(arms: dict[str, float], seeds: int = 6, spread: float = 0.01) -> list[Row]:
    """Runs of arms with these means; seeds share a part of their noise."""
    noise = np.random.default_rng(0)
    shared = noise.normal(2.0, 0.2, seeds)
    return [
        Row(arm, seed, float(shared[seed] + mean + noise.normal(0.0, spread)))
        for arm, mean in arms.items()
        for seed in range(seeds)
    ]


def ended(path: Path, columns: Columns = Columns()) -> list[Row]:  # noqa: B008
    return last_values(read_rows(path, columns))[0]


# Files


def test_one_run_a_row(tmp_path: Path) -> None:
    path = write(tmp_path, HEADER + "a,0,1.5\nb,1,2.5\nb,0,\n")
    rows = read_rows(path)
    assert rows[:2] == [Row("a", 0, 1.5), Row("b", 1, 2.5)]
    assert math.isnan(rows[2].value)


def test_json_lines_hold_the_same(tmp_path: Path) -> None:
    lines = [
        {"arm": "a", "seed": 0, "val": {"loss": 1.5}},
        {"arm": "b", "seed": 1, "val": {"loss": 2}},
    ]
    path = write(tmp_path, "\n".join(map(json.dumps, lines)), "rows.jsonl")
    assert read_rows(path) == [Row("a", 0, 1.5), Row("b", 1, 2.0)]


def test_a_json_file_holds_a_list_of_rows(tmp_path: Path) -> None:
    """As pandas writes records; other forms of JSON are refused, with what would be read."""
    import pandas

    table = pandas.DataFrame({"arm": ["a", "b"], "seed": [0, 1], "loss": [1.5, math.nan]})
    path = tmp_path / "rows.json"
    table.to_json(path, orient="records")
    first, second = read_rows(path)
    assert first == Row("a", 0, 1.5)
    assert math.isnan(second.value)
    advice = "write a list with an object for each row, or JSON lines as .jsonl"
    for text, told in (
        (table.to_json(), "must hold a list with an object for each row, got {'arm': "),
        (table.to_json(), "write that, or JSON lines as .jsonl"),
        (table.to_json(orient="records", lines=True), advice),
        ('[{"arm": "a"}, 3]', "row 2 must be an object, got 3"),
        ("[]", "must hold a row for each run, got none"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=re.escape(told)) as error:
            read_rows(path)
        assert str(error.value).startswith(str(path))


def test_parquet_holds_the_same(tmp_path: Path) -> None:
    import pandas

    table = pandas.DataFrame(
        {"run_name": ["a_seed1", "b_seed1"], "step": [5, 5], "loss": [1.0, 2.0]}
    )
    table.to_parquet(tmp_path / "rows.parquet")
    assert read_rows(tmp_path / "rows.parquet") == [Row("a", 1, 1.0, 5.0), Row("b", 1, 2.0, 5.0)]


def test_a_chart_of_wandb_has_a_column_for_each_run(tmp_path: Path) -> None:
    """As the menu of a chart exports it: the step, then name - metric with __MIN and __MAX."""
    header = '"Step"'
    for name in ("long-seed0", "short-seed0"):
        header += "".join(f',"{name} - val_loss{end}"' for end in ("", "__MIN", "__MAX"))
    path = write(tmp_path, f"{header}\n100,3,3,3,4,4,4\n200,2,2,2,,,\n")
    assert ended(path) == [Row("long", 0, 3.0, 100.0), Row("short", 0, 4.0, 100.0)]


def test_a_table_of_wandb_may_tell_the_seed_twice(tmp_path: Path) -> None:
    """Runs are named by arm and seed, their seed is a column of the configuration too, and columns
    that nobody filled hold no numbers.
    """
    header = "Name,State,Tags,Sweep,seed,val/loss"
    path = write(tmp_path, f"{header}\nlong-seed0,finished,,,0,3.0\nlong-seed1,crashed,,,1,3.1\n")
    assert ended(path) == [Row("long", 0, 3.0), Row("long", 1, 3.1)]
    path = write(tmp_path, f"{header}\nwidth-64,finished,,,0,3.0\nwidth-64,finished,,,1,3.1\n")
    assert ended(path) == [Row("width-64", 0, 3.0), Row("width-64", 1, 3.1)]
    path = write(tmp_path, f"{header}\nlong,finished,,,0,3.0\nshort,finished,,,0,3.1\n")
    assert ended(path) == [Row("long", 0, 3.0), Row("short", 0, 3.1)]


def test_one_run_of_each_arm_finds_no_difference_of_any_size() -> None:
    told = render(judged([Row("base", 0, 3.0), Row("a", 0, 2.9)]))
    assert "nan" not in told


def test_several_columns_tell_an_arm(tmp_path: Path) -> None:
    path = write(tmp_path, "lr,init,seed,loss,time\n0.1,own,0,1.5,9\n")
    columns = Columns(arm=["init", "lr"], value="loss")
    assert read_rows(path, columns) == [Row("own, 0.1", 0, 1.5)]


def test_folders_of_tensorboard_are_runs(tmp_path: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    for run in ("long/seed-0", "short/seed-0", "long/mean"):  # the mean is no run
        with SummaryWriter(str(tmp_path / run)) as writer:
            for step in (10, 20):
                writer.add_scalar("loss", step + len(run), step)
            writer.add_scalar("lr", 0.1, 20)
    only = tmp_path.with_name(f"{tmp_path.name}-only")
    with SummaryWriter(str(only / "long/seed-1")) as writer:
        writer.add_scalar("loss", 1.0, 20)
    assert ended(only) == [Row("long", 1, 1.0, 20)]
    assert ended(tmp_path, Columns(value="loss")) == [
        Row("long", 0, 20.0 + len("long/seed-0"), 20),
        Row("short", 0, 20.0 + len("short/seed-0"), 20),
    ]
    told = r"value must be one of its tags, got none; valid: loss, lr"
    with pytest.raises(ValueError, match=told):
        read_rows(tmp_path)
    with pytest.raises(ValueError, match=r"value must be one of its tags, got ''; valid: loss"):
        read_rows(only, Columns(value=""))


def test_an_arm_called_mean_is_no_mean_of_a_study(tmp_path: Path) -> None:
    """In another layout: only beside ARM/seed-K is ARM/mean the mean of runs, and left out."""
    from torch.utils.tensorboard import SummaryWriter

    for run in ("0/mean", "0/last", "1/seed-free"):
        with SummaryWriter(str(tmp_path / run)) as writer:
            writer.add_scalar("loss", 1.0, 20)
    columns = Columns(pattern=r"(?P<seed>\d+)/(?P<arm>.+)")
    expected = [Row("last", 0, 1.0, 20), Row("mean", 0, 1.0, 20), Row("seed-free", 1, 1.0, 20)]
    assert ended(tmp_path, columns) == expected


def test_a_search_for_learning_rates_is_no_arm(tmp_path: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    for run in ("long/seed-0", "tuning/long/seed-0"):
        with SummaryWriter(str(tmp_path / run)) as writer:
            writer.add_scalar("loss", 1.0, 20)
    every = [Row("long", 0, 1.0, 20), Row("tuning/long", 0, 1.0, 20)]
    assert ended(tmp_path) == every  # a folder of somebody else, of that name
    (tmp_path / "tuning/spec.json").write_text("{}")
    assert ended(tmp_path) == every[:1]


@pytest.mark.parametrize(
    ("content", "columns", "told"),
    [
        (
            "seed,value\n0,1\n",
            Columns(),
            "a column with the arm of a run, got none; give --arm COLUMN",
        ),
        (HEADER + "a,0.5,1\n", Columns(), "row 1: seed must be a whole number, got"),
        (HEADER + "a,0,high\n", Columns(), "row 1: value must be a number, got 'high'"),
        (HEADER + f"a,0,{10**400}\n", Columns(), "row 1: value must be a number, got "),
        (
            HEADER + "a,0,1\nb,0,-1e308\n",
            Columns(),
            "row 2: value must lie between -1e+100 and 1e+100, got -1e+308",
        ),
        (HEADER + "a,0,1\n,0,1\n", Columns(), "row 2: arm must name an arm, got nothing"),
        ("run,seed,loss\na,0,1\n,0,1\n", Columns(), "row 2: run must name an arm, got nothing"),
        ("arm,seed,loss,time\na,0,1,2\n", Columns(), "with numbers: loss, time"),
        (
            HEADER + "a,0,1\n",
            Columns(arm=("",)),
            "arm must be a column of it, got ''; valid: arm, s",
        ),
        (
            HEADER + "a,0,1\n",
            Columns(value="los"),
            "value must be a column of it, got 'los'; valid: arm, s",
        ),
        (
            "arm,seed,result.best_val_bpb,result.final_val_bpb,result.test_bpb\na,0,1,2,3\n",
            Columns(value="val_bpb"),
            "value must be a column of it, got 'val_bpb'; did you mean 'result.final_val_bpb'?",
        ),
        (
            "arm,seed,result.best_val_bpb,result.final_val_bpb,result.test_bpb\na,0,1,2,3\n",
            Columns(value="test_bpb"),
            "did you mean 'result.test_bpb'?",
        ),
        (HEADER, Columns(), "must hold a row for each run, got none"),
        ("", Columns(), "must be CSV with a header, TSV, JSON, JSON lines or Parquet"),
        ("Step,a-0 - loss\n1,2\n", Columns(value=""), "one of its metrics, got ''; valid: loss"),
        ("arm,seed,value\na,1,0.5,\n", Columns(), "rows must have as many cells as the header has"),
        ("run,arm,value\n3,a,1,0.5\n", Columns(), "end no row with a separator"),
        ("run,value\nlong,1\n", Columns(), "as long/seed-3 does, got 'long'; give --pattern"),
        ("run,value\nlong-1,1\n", Columns(pattern="("), "pattern must be a regular expression"),
    ],
)
def test_what_is_no_table_of_runs_is_refused(
    content: str, columns: Columns, told: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r"rows|run|pattern") as error:
        read_rows(write(tmp_path, content), columns)
    assert told in str(error.value)


@pytest.mark.parametrize(
    ("content", "columns", "kind"),
    [
        ("seed,a,b\n0,1,2\n", Columns(), "arm"),
        ("seed,a,b\n0,1,2\n", Columns(value="a", seed="seed"), "arm"),
        ("step,a-0,a-1,b-0\n1,2,3,4\n", Columns(), "arm"),
        ("step,a-0,a-1,b-0\n1,2,3,4\n", Columns(value="a-0"), "arm"),
        ("arm,0,1\na,1,2\nb,2,3\n", Columns(), "seed"),
    ],
)
def test_a_table_with_a_column_for_each_arm_or_seed_is_told_what_to_write(
    content: str, columns: Columns, kind: str, tmp_path: Path
) -> None:
    told = f"where each {kind} has a column of its own, write one row for each run$"
    with pytest.raises(ValueError, match=told):
        read_rows(write(tmp_path, content), columns)


def test_a_table_with_seeds_lacks_only_the_name_of_its_values(tmp_path: Path) -> None:
    for text in ("arm,seed,train,val\na,0,1,2\n", "run,train,val\na-0,1,2\n"):
        with pytest.raises(ValueError, match=r"with --value; with numbers: train, val$"):
            read_rows(write(tmp_path, text))


TWICE = r"arm 'a' with seed 0( \(9M\))? has two values"


@pytest.mark.parametrize(
    ("header", "rows", "told"),
    [
        ("seed,step,metric,value", ["0,5,train,1", "0,5,val,2"], "{metric} --arm or --size"),
        ("seed,step,metric,value", ["0,5,train,1", "0,5,val,1"], "{metric} --arm or --size"),
        ("seed,step,size,metric,value", ["0,5,9M,train,1", "0,5,9M,val,2"], "{metric} --arm"),
        ("seed,metric,value", ["0,train,1", "0,val,2"], "{metric} --arm or --size"),
        ("seed,lr,value", ["0,1,1", "0,2,2"], "{lr} --arm or --step or --size"),
        ("seed,step,value,time", ["0,5,1,noon {arm}", "0,5,2,one {arm}"], "keep one"),
        ("seed,value,time", ["0,1,noon {arm}", "0,2,one {arm}"], "keep one, {steps}"),
        ("seed,step,value,time", ["0,5,1,", "0,5,1,"], "{same}"),
        ("seed,value", ["0,1", "0,1"], "{same}, {steps}"),
    ],
)
def test_two_rows_of_a_run_are_told_apart_where_a_column_does(
    header: str, rows: list[str], told: str, tmp_path: Path
) -> None:
    """Options are those for which no column was found; a time of one row alone is no such one."""
    or_name = "keep rows of one, or name the column with"
    hint = told.format(
        metric=f"the rows differ in metric (train, val): {or_name}",
        lr=f"the rows differ in lr (1, 2): {or_name}",
        same="both rows are the same: keep one",
        steps="or name the column of steps with --step",
    )
    content = f"arm,{header}\n"
    for arm in ("a", "b"):
        content += "".join(f"{arm},{row.format(arm=arm)}\n" for row in rows)
    with pytest.raises(ValueError, match=TWICE) as error:
        read_rows(write(tmp_path, content), Columns(value="value"))
    assert str(error.value).endswith(f"; {hint}")


def test_a_column_of_seeds_under_another_name_is_to_be_named(tmp_path: Path) -> None:
    content = "arm,seed_id,step,value\n" + "".join(
        f"{arm},{seed},5,{seed}\n" for arm in "ab" for seed in (0, 1)
    )
    told = r"arm 'a' has two values at step 5; .* in seed_id \(0, 1\): .* with --arm or --seed or"
    with pytest.raises(ValueError, match=told):
        read_rows(write(tmp_path, content), Columns(value="value"))


@pytest.mark.parametrize(
    ("line", "got"), [("3", "3"), ('"a"', "'a'"), ("null", "None"), ("[1]", "[")]
)
def test_a_line_that_is_no_object_is_named(line: str, got: str, tmp_path: Path) -> None:
    path = write(tmp_path, f'{{"arm": "a", "seed": 0, "value": 1.5}}\n\n{line}\n', "rows.jsonl")
    with pytest.raises(
        ValueError, match=re.escape(f"{path}: line 3 must hold an object, got {got}")
    ):
        read_rows(path)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("long/seed-3", ("long", 3)),
        ("adam_lr3e-4_seed7", ("adam_lr3e-4", 7)),
        ("base-s12", ("base", 12)),
        ("width64 1", ("width64", 1)),
        ("seeds_4", ("seeds", 4)),
        ("longseed3", ("long", 3)),
        ("long.3", ("long", 3)),
        ("x1.seed3", ("x1", 3)),
        ("lr0.01_3", ("lr0.01", 3)),
        ("lr1e-3-4", ("lr1e-3", 4)),
        ("gpt2_137", ("gpt2", 137)),
    ],
)
def test_names_of_runs(name: str, parts: tuple[str, int]) -> None:
    assert split_name(name) == parts


def test_the_last_step_that_all_runs_have_counts() -> None:
    rows = [Row("a", 0, 3.0, 1), Row("a", 0, 2.0, 2), Row("b", 0, 4.0, 1)]
    assert last_values(rows) == ([rows[0], rows[2]], 1)
    told = r"at must be a step of all runs that go so far, got {}, which arm {} with seed 0 has not"
    with pytest.raises(ValueError, match=told.format(3, "'a'")):
        last_values(rows, 3)
    with pytest.raises(ValueError, match=told.format(2, "'b'")):
        last_values([*rows, Row("b", 0, 4.0, 3)], 2)
    with pytest.raises(ValueError, match=r"arm 'a' with seed 0 has two values at step 1"):
        last_values([*rows, Row("a", 0, 5.0, 1)])


def test_runs_without_a_common_step_are_told_their_steps_and_what_works(tmp_path: Path) -> None:
    content = "arm,seed,step,value\n"
    for seed in (0, 1):
        content += "".join(f"long,{seed},{step},1\n" for step in (10, 20, 30, 40, 50))
        content += f"short,{seed},8,2.{seed}\n"
    told = (
        "rows: runs must have a step in common, got none that all have: arm 'long' with seed 0 has"
        " 10, 20, 30, ..., 50 and arm 'short' with seed 0 has 8; to compare the last values, write"
        " a table with the last row of each run and without a column of steps"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(told)}$"):
        ended(write(tmp_path, content))
    last = HEADER + "long,0,1\nlong,1,1\nshort,0,2.0\nshort,1,2.1\n"  # as is told
    assert judged(ended(write(tmp_path, last))).compared[0].difference.n == 2
    pairs = [Row("a", 0, 1.0, 1), Row("a", 0, 1.0, 2), Row("b", 0, 1.0, 2), Row("b", 0, 1.0, 3)]
    with pytest.raises(ValueError, match="arm 'b' with seed 0 has 2, 3 and arm 'c' with seed 0"):
        last_values([*pairs, Row("c", 0, 1.0, 1)])
    # Of two arms, though another run of the same arm has no step in common either.
    with pytest.raises(ValueError, match="arm 'c' with seed 0 has 1 and arm 'a' with seed 1 has 2"):
        last_values([Row("a", 0, 1.0, 1), Row("c", 0, 1.0, 1), Row("a", 1, 1.0, 2)])


CHART = "Step,base-0 - loss,base-1 - loss,a-0 - loss,a-1 - loss,b-0 - loss,b-1 - loss\n"


@pytest.mark.parametrize("name", ["NaN", "nan", "inf", "-Infinity"])
def test_a_run_that_diverged_does_not_decide_the_step_of_the_others(
    name: str, tmp_path: Path
) -> None:
    """In a chart it may go on with NaN or end there; one that logged nothing is named too."""
    chart = f"10,3,3,4,4,,5\n20,2,2,{name},1,,{name}\n30,1,1,{name},0,,\n"
    values, step = last_values(read_rows(write(tmp_path, CHART + chart)))
    assert step == 30
    result = judged(values, step=step)
    assert set(result.left_out) == {"a/seed-0", "b/seed-0", "b/seed-1"}
    [one] = result.compared
    assert (one.arm, one.difference.n, one.difference.mean) == ("a", 1, -1.0)


def test_a_run_that_ends_early_decides_the_step_and_is_named(tmp_path: Path) -> None:
    """Cells of a chart in which nothing was logged are no NaN; --at leaves the run out."""
    path = write(tmp_path, CHART + "10,3,3,4,4,5,5\n20,2,2,,1,1,1\n25,,2,,,,\n30,1,1,,0,0,0\n")
    rows = read_rows(path)
    values, step = last_values(rows)
    assert (step, [row.value for row in values]) == (10, [3.0, 3.0, 4.0, 4.0, 5.0, 5.0])
    told = early_note(rows, step)
    assert told == (
        "compared at step 10, as some runs end before step 30: a/seed-0 at step 10; to leave these"
        " out, give --at 30"
    )
    assert told in render(judged(values, step=step, notes=[told]))
    later, _ = last_values(rows, 30)
    assert judged(later).left_out == ("a/seed-0",)
    assert early_note(rows, 30) is None
    assert early_note([Row("a", 0, 1.0), Row("b", 0, 1.0)], None) is None
    assert early_note([Row("a", 0, 1.0, 10), Row("b", 0, math.nan, 5)], 10) is None


def test_rows_without_seed_and_step_beside_others_with_steps_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At the last step of the others they are values of an unknown step; --at leaves them out."""
    content = "arm,step,value\nbase,10,1\nbase,20,1\na,10,2\na,20,2\nbase,,5\nb,,6\nb,,7\n"
    path = write(tmp_path, content)
    command.command(path, out=tmp_path / "out")
    told = "taken for values at step 20: 3 rows without a step, of base, b (2 runs); to leave out"
    assert told in capsys.readouterr().out
    command.command(path, out=tmp_path / "out", at=10)
    shown = capsys.readouterr().out
    told = (
        "left out, since their values at step 10, or their last ones, are missing or not finite:"
        " base, b (2 runs)\n"
    )
    assert told in shown
    assert "without a step" not in shown
    assert load_json(tmp_path / "out/judge.json")["left_out"] == ["base", "b", "b"]


def test_a_step_is_refused_where_no_row_tells_one() -> None:
    rows = [Row("base", None, 1.0), Row("a", None, 2.0)]
    assert last_values(rows) == (rows, None)
    with pytest.raises(ValueError, match="at must be left out where rows tell no step, got 7"):
        last_values(rows, 7)


ENDS = "10,1,1,2,2,,\n18,,,1,,,\n19,,1,,,,\n20,1,,,,,\n20.5,,,,1,,\n"
"""Steps of a chart at which some run ends: only a-1 has the last of them."""


@pytest.mark.parametrize(
    ("chart", "baseline", "is_advised"),
    [
        (ENDS, "base", False),
        (ENDS, "a", False),
        ("10,1,,2,,3,\n20,1,,,,3,\n", "base", True),
        ("10,1,,2,,3,\n20,1,,,,3,\n", "a", False),
    ],
)
def test_a_later_step_is_advised_where_arms_can_be_compared_there(
    chart: str, baseline: str, is_advised: bool, tmp_path: Path
) -> None:
    rows = [row for row in read_rows(write(tmp_path, CHART + chart)) if math.isfinite(row.value)]
    _, step = last_values(rows)
    assert step == 10
    told = early_note(rows, step, baseline)
    assert told is not None
    assert told.startswith("compared at step 10, as some runs end before step 20")
    assert ("--at" in told) == is_advised
    last = max(row.step for row in rows if row.step is not None)
    if is_advised:
        later, _ = last_values(rows, last)
        assert judged(later, baseline, step=last).compared


@pytest.mark.parametrize("at", [None, 10])
def test_a_run_that_diverged_is_left_out_also_at_a_step_at_which_it_had_not(
    at: float | None,
) -> None:
    rows = [
        *(Row("base", 0, 1.0, 10), Row("base", 1, 1.1, 10), Row("base", 0, 0.9, 20)),
        *(Row("a", 0, 2.0, 10), Row("a", 0, math.nan, 20)),
        *(Row("a", 1, 2.0, 10), Row("a", 1, 1.9, 20)),
    ]
    values, step = last_values(rows, at)
    assert step == 10
    assert judged(values, step=step).left_out == ("a/seed-0",)


def test_of_a_run_that_diverged_later_no_value_at_the_step_is_called_missing() -> None:
    """It has a finite value at the step that is compared, so the words name its last one too."""
    rows = [Row(arm, seed, 1.0 + seed, 10) for arm in ("base", "a") for seed in (0, 1, 2)]
    later = [Row("a", 0, math.nan, 20)]
    values, step = last_values([*rows, *later])
    told = "left out, since their values at step 10, or their last ones, are missing or not finite:"
    assert f"\n{told} a/seed-0\n" in render(judged(values, step=step))
    every = [Row("base", seed, math.nan, 20) for seed in (0, 1, 2)]
    values, step = last_values([*rows, *every])
    with pytest.raises(ValueError, match="a finite value at step 10, and as its last, got 'base'"):
        judged(values, step=step)
    every += [Row("a", seed, math.nan, 20) for seed in (0, 1, 2)]
    values, step = last_values([*rows, *every])
    with pytest.raises(ValueError, match="a run with a finite value as its last, got 'base'"):
        judged(values, step=step)


def test_a_run_that_diverged_later_does_not_forbid_a_step_that_it_lacks() -> None:
    rows = [Row("base", 0, 1.0, 30), Row("a", 0, 2.0, 30), Row("a", 1, math.nan, 35)]
    values, _ = last_values(rows, 30)
    assert judged(values).left_out == ("a/seed-1",)
    with pytest.raises(ValueError, match="got 35, which arm 'base' with seed 0 has not"):
        last_values(rows, 35)


def test_a_folder_of_tensorboard_without_scalars_is_a_run_without_values(tmp_path: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    for run, values in (("a-0", [2.0, math.nan]), ("a-1", [2.0, 1.0, 0.5]), ("a-2", []), ("x", [])):
        with SummaryWriter(str(tmp_path / run)) as writer:
            for step, value in enumerate(values):
                writer.add_scalar("loss", value, step)
            writer.add_text("note", "begun")
    values, step = last_values(read_rows(tmp_path))
    assert step == 2
    found = [(row.seed, row.value) for row in values if math.isfinite(row.value)]
    assert (found, len(values)) == ([(1, 0.5)], 3)


@pytest.mark.parametrize(
    "name", ["base_lr0.01", "adam_lr1e-3", "adam-1.5E-04", "lr_.01", "dropout=0.1", "lr-0.5"]
)
def test_decimals_and_exponents_are_no_seeds(name: str) -> None:
    with pytest.raises(ValueError, match="run must name an arm and a seed"):
        split_name(name)


def test_a_file_in_which_names_of_runs_are_named_needs_no_column_of_arms(tmp_path: Path) -> None:
    path = write(tmp_path, "run,method,seed,loss\nlong/s3,fast,0,1.5\nshort/s3,slow,1,2.5\n")
    by_method = [Row("fast", 0, 1.5), Row("slow", 1, 2.5)]
    by_name = [Row("long", 3, 1.5), Row("short", 3, 2.5)]
    assert read_rows(path) == by_method
    assert read_rows(path, Columns(pattern=r"(?P<arm>.+)/s(?P<seed>.+)")) == by_name
    assert read_rows(path, Columns(run="run")) == [Row("long/s3", 0, 1.5), Row("short/s3", 1, 2.5)]
    assert read_rows(path, Columns(run="run", arm=["method"])) == by_method


@pytest.mark.parametrize("arm", ["None", "NA", "nan", "null", "0.10", "1e-3"])
def test_names_of_arms_are_read_as_they_are_written(arm: str, tmp_path: Path) -> None:
    path = write(tmp_path, f"arm,seed,loss\n{arm},0,1.5\n{arm},1,NaN\n{arm},2,NA\n{arm},3,\n")
    rows = read_rows(path)
    assert [row.arm for row in rows] == [arm] * 4
    assert rows[0].value == 1.5
    assert all(math.isnan(row.value) for row in rows[1:])


def test_arms_that_are_numbers_are_no_values(tmp_path: Path) -> None:
    line = {"arm": 0.001, "seed": 2**53 + 1, "loss": 1.5}
    lines = [line, {**line, "seed": 2**53}]
    path = write(tmp_path, "\n".join(map(json.dumps, lines)), "rows.jsonl")
    assert read_rows(path) == [Row("0.001", 2**53 + 1, 1.5), Row("0.001", 2**53, 1.5)]


@pytest.mark.parametrize("name", ["group", "Method", "arm", "run_id", "_step"])
@pytest.mark.parametrize("columns", [Columns(run="label"), Columns(arm=["kind"])])
def test_numbers_in_columns_of_a_usual_name_are_no_values(
    name: str, columns: Columns, tmp_path: Path
) -> None:
    line = {"label": "a_seed3", "kind": "a", "seed": 3, "step": 5, name: 1, "loss": 1.5}
    path = write(tmp_path, json.dumps(line), "rows.jsonl")
    assert read_rows(path, columns) == [Row("a", 3, 1.5, 5.0)]


# Empty cells

KINDS = ("csv", "tsv", "json", "jsonl", "parquet")


def logged(folder: Path, cells: list[tuple[Any, ...]], kind: str) -> list[Row]:
    """The rows of arm, seed, step, loss and val as a logger writes them; None is an empty cell."""
    import pyarrow
    from pyarrow import parquet

    names = ("arm", "seed", "step", "loss", "val")
    path = folder / f"rows.{kind}"
    objects = [dict(zip(names, row, strict=True)) for row in cells]
    for one in objects[::2]:  # a key that is missing is the same as null
        if one["val"] is None:
            del one["val"]
    if kind == "parquet":
        columns = dict(zip(names, zip(*cells, strict=True), strict=True))
        parquet.write_table(pyarrow.table({name: list(one) for name, one in columns.items()}), path)
    elif kind == "json":
        path.write_text(json.dumps(objects))
    elif kind == "jsonl":
        path.write_text("\n".join(map(json.dumps, objects)))
    else:
        separator = "," if kind == "csv" else "\t"
        lines = [["" if cell is None else str(cell) for cell in row] for row in [names, *cells]]
        path.write_text("".join(f"{separator.join(line)}\n" for line in lines))
    return read_rows(path, Columns(value="val"))


def runs_of(steps: dict[int, list[tuple[float | None, float | None]]]) -> list[tuple[Any, ...]]:
    """Rows of two arms and two seeds with these pairs of loss and val at each step."""
    return [
        (arm, seed, step, loss, val)
        for arm in ("base", "a")
        for seed in (0, 1)
        for step, pairs in steps.items()
        for loss, val in pairs
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_training_and_of_evaluation_at_one_step_are_one_run(
    kind: str, tmp_path: Path
) -> None:
    steps = {step: [(9.0, None), (None, step / 10)] for step in (10, 20)}
    rows = logged(tmp_path, runs_of(steps), kind)
    expected = [
        Row(arm, seed, step / 10, step)
        for arm in ("base", "a")
        for seed in (0, 1)
        for step in (10, 20)
    ]
    assert rows == expected


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_cell_at_a_step_at_which_no_run_has_a_value_is_passed_over(
    kind: str, tmp_path: Path
) -> None:
    """Evaluated at every second step, and trained on after the last: nothing is left out."""
    steps: dict[int, list[tuple[float | None, float | None]]]
    steps = {10: [(9.0, None)], 20: [(8.0, 2.0)], 30: [(7.0, None)]}
    further = [("base", 1, 35, 6.0, None), ("a", 0, 35, 6.0, None)]
    values, step = last_values(logged(tmp_path, [*runs_of(steps), *further], kind))
    assert (step, [row.value for row in values]) == (20, [2.0] * 4)
    assert judged(values, step=step).left_out == ()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["nan", "inf", "-inf"])
def test_a_value_that_is_not_finite_is_no_empty_cell(name: str, kind: str, tmp_path: Path) -> None:
    """Also at a step at which no other run has a value, and beside a row with an empty one."""
    diverged = [("a", 0, 20, 9.0, None), ("a", 0, 20, None, float(name))]
    rows = logged(tmp_path, [*runs_of({10: [(9.0, 1.0)]}), *diverged], kind)
    assert len(rows) == 5
    values, step = last_values(rows)
    assert (step, judged(values, step=step).left_out) == (10, ("a/seed-0",))


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_cell_where_other_runs_have_a_value_is_missing(kind: str, tmp_path: Path) -> None:
    """As pandas writes NaN; two rows of it are one. A run without any value is told, not lost."""
    cells = [row for row in runs_of({10: [(9.0, 1.0)], 20: [(8.0, 2.0)]}) if row[1:3] != (1, 20)]
    cells += [("base", 1, 20, 8.0, 2.0), ("a", 1, 20, 8.0, None), ("a", 1, 20, 8.1, None)]
    cells += [("b", 0, step, 9.0, None) for step in (3, 5, 4)]
    rows = logged(tmp_path, cells, kind)
    assert [(row.arm, row.step) for row in rows[-2:]] == [("a", 20), ("b", 5)]
    values, step = last_values(rows)
    assert (step, judged(values, step=step).left_out) == (20, ("a/seed-1", "b/seed-0"))


def test_a_row_without_seed_step_and_value_beside_others_with_steps_is_no_run(
    tmp_path: Path,
) -> None:
    content = "arm,step,value\nbase,10,1\na,10,2\na,,\n"
    assert len(read_rows(write(tmp_path, content))) == 2
    content = "arm,value\nbase,1\na,2\na,\na,\n"  # without steps each row is a run
    assert len(read_rows(write(tmp_path, content))) == 4


# Files that are no table as it is expected


def test_arms_and_seeds_in_the_index_of_a_table_are_read_from_parquet(tmp_path: Path) -> None:
    import pandas

    table = pandas.DataFrame({"arm": ["a", "b"], "seed": [0, 1], "loss": [1.0, 2.0]})
    path = tmp_path / "rows.parquet"
    expected = [Row("a", 0, 1.0), Row("b", 1, 2.0)]
    for written in (table.set_index(["arm", "seed"]), table.set_index("arm"), table[::-1][::-1]):
        written.to_parquet(path)
        assert read_rows(path) == expected
    table.index = pandas.Index([7, 9])  # numbers of rows are no values
    table.to_parquet(path)
    assert read_rows(path) == expected


@pytest.mark.parametrize(
    ("name", "separator", "told"),
    [
        ("rows.csv", ";", "commas, got semicolons; write commas, and points in decimals"),
        ("rows.csv", "|", "commas, got bars; write commas, and points in decimals"),
        ("rows.txt", "\t", "commas, got tabs; name the file .tsv"),
        ("rows.tsv", ",", "tabs, got commas; name the file .csv"),
    ],
)
def test_another_separator_is_named_with_what_to_write(
    name: str, separator: str, told: str, tmp_path: Path
) -> None:
    path = write(tmp_path, (HEADER + "a,0,1\n").replace(",", separator), name)
    expected = f"{path}: columns must be separated by {told}"
    with pytest.raises(ValueError, match=f"^{re.escape(expected)}$"):
        read_rows(path)


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("rows.csv.gz", gzip.compress(b"arm"), "got a file packed by gzip; unpack it with gunzip"),
        ("rows.xlsx", b"PK\x03\x04", "got a ZIP file or a workbook; unpack it, or save its sheet"),
        (
            "rows.csv",
            HEADER.encode("utf-16"),
            "must be text in UTF-8, got UTF-16; save it as UTF-8",
        ),
        ("rows.jsonl", "{}".encode("utf-16"), "must be text in UTF-8, got UTF-16; save it as"),
    ],
    ids=["gzip", "workbook", "utf-16", "utf-16 of JSON"],
)
def test_files_that_are_packed_and_utf_16_are_told(
    name: str, content: bytes, told: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(told)) as error:
        read_rows(path)
    assert str(error.value).startswith(f"{path}: must be ")


def test_clocks_of_wandb_are_values_only_where_nothing_else_is(tmp_path: Path) -> None:
    names = [f"{run} - {metric}" for run in ("a-0", "b-0") for metric in ("_step", "loss")]
    header = "Step," + ",".join(f"{name},{name}__MIN,{name}__MAX" for name in names)
    path = write(tmp_path, f"{header}\n10{',10,10,10,1,1,1' * 2}\n")
    assert ended(path) == [Row("a", 0, 1.0, 10.0), Row("b", 0, 1.0, 10.0)]
    assert ended(path, Columns(value="_step"))[0] == Row("a", 0, 10.0, 10.0)
    path = write(tmp_path, "run,_step,_runtime,_timestamp,loss\na-0,10,1.5,99,3\n")
    assert ended(path) == [Row("a", 0, 3.0, 10.0)]
    path = write(tmp_path, "run,_step,_runtime\na-0,10,1.5\n")
    assert ended(path) == [Row("a", 0, 1.5, 10.0)]


# Folders of TensorBoard


def written_events(folder: Path, values: dict[int, float], tag: str = "val") -> None:
    """Scalars by step in one file, as the writer of PyTorch makes it."""
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder)) as writer:
        for step, value in values.items():
            writer.add_scalar(tag, value, step)


def test_scalars_of_keras_are_read_and_other_tensors_are_not(tmp_path: Path) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.plugins.scalar import summary_v2
    from tensorboard.plugins.text import summary_v2 as text
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    for arm, value in (("base", 3.0), ("a", 2.5)):
        writer = EventFileWriter(str(tmp_path / arm / "seed-0"))
        for step in range(12):  # more than the 10 tensors that are kept unless all are asked for
            summary = summary_v2.scalar_pb("val", value + step)
            writer.add_event(Event(step=step, summary=summary))
        writer.add_event(Event(step=1, summary=text.text_pb("note", "begun")))
        writer.close()
    expected = [Row("a", 0, 13.5, 11), Row("base", 0, 14.0, 11)]
    assert ended(tmp_path) == ended(tmp_path, Columns(value="val")) == expected
    assert len(read_rows(tmp_path)) == 24


def test_a_tag_that_no_folder_has_is_named_with_those_that_there_are(tmp_path: Path) -> None:
    """One that logged nothing is no run that diverged, as long as nobody has the tag."""
    written_events(tmp_path / "a/seed-0", {})
    with pytest.raises(ValueError, match="must hold scalars of runs, got files of TensorBoard wi"):
        read_rows(tmp_path, Columns(value="loss"))
    written_events(tmp_path / "base/seed-0", {1: 3.0}, tag="accuracy")
    told = f"{tmp_path}: value must be one of its tags, got 'loss'; valid: accuracy"
    with pytest.raises(ValueError, match=f"^{re.escape(told)}$"):
        read_rows(tmp_path, Columns(value="loss"))
    written_events(tmp_path / "b/seed-0", {1: 3.0})
    with pytest.raises(ValueError, match="got none; valid: accuracy, val"):  # not one of each
        read_rows(tmp_path)


def test_the_folder_that_add_hparams_makes_is_no_run(tmp_path: Path) -> None:
    """It lies in that of the run, which may have logged nothing, and has tags of its own."""
    for run, values in (("base/seed-0", {1: 3.0}), ("a/seed-0", {1: 2.0}), ("a/seed-1", {})):
        written_events(tmp_path / run, values)
        written_events(tmp_path / run / "1796068101.33", {0: 1.0}, tag="hparam/accuracy")
    for columns in (Columns(), Columns(value="val")):
        found = {(row.arm, row.seed, math.isfinite(row.value)) for row in ended(tmp_path, columns)}
        assert found == {("base", 0, True), ("a", 0, True), ("a", 1, False)}
    with pytest.raises(ValueError, match="got 'vall'; did you mean 'val'"):
        read_rows(tmp_path, Columns(value="vall"))


def test_a_pattern_chooses_among_event_folders_and_says_what_it_leaves_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `add_scalars` makes one for each curve, in that of the run."""
    folder = tmp_path / "runs"
    for arm, value in (("base", 3.0), ("a", 2.0)):
        for seed in (0, 1):
            run = folder / arm / f"seed-{seed}"
            written_events(run, {})
            written_events(run / "loss_train", {1: 1.0}, tag="loss")
            written_events(run / "loss_val", {1: value + seed}, tag="loss")
    with pytest.raises(ValueError, match="give --pattern: folders that it does not match are left"):
        read_rows(folder)
    usual = r"(?P<arm>.+)/seed-(?P<seed>\d+)/"
    command.command(folder, "base", pattern=f"{usual}loss_val", out=tmp_path / "out")
    told = "--pattern leaves out 8 folders of events that it does not match, such as a/seed-0"
    assert f"\n{told}\n" in capsys.readouterr().out
    saved = load_json(tmp_path / "out/judge.json")
    assert saved["notes"] == [told]
    assert saved["comparisons"][0]["difference"]["mean"] == -1.0
    with pytest.raises(ValueError, match=r"pattern must match the name .*; such a name is 'a/seed"):
        read_rows(folder, Columns(pattern=f"{usual}none"))
    told = "arm 'a' with seed 0 has two values at step 1, in a/seed-0/loss_train and a/seed-0/loss_"
    with pytest.raises(ValueError, match=told):
        read_rows(folder, Columns(pattern=f"{usual}.+"))


def test_of_a_resumed_run_the_value_written_last_counts(tmp_path: Path) -> None:
    run = tmp_path / "a/seed-0"
    written_events(run, {1: 1.0, 2: 2.0, 3: 3.0})
    written_events(run, {2: 20.0, 3: 30.0, 4: 40.0})
    expected = [(1, 1.0), (2, 20.0), (3, 30.0), (4, 40.0)]
    assert sorted((row.step, row.value) for row in read_rows(tmp_path)) == expected


def test_two_values_at_a_step_in_one_event_file_are_refused(tmp_path: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    run = tmp_path / "a/seed-0"
    written_events(run, {1: 1.0, 2: 2.0})
    with SummaryWriter(str(run)) as writer:
        for value in (3.0, 4.0):
            writer.add_scalar("val", value, 2)
    told = (
        r"a/seed-0/events\.out\.tfevents.*: tag 'val' must have one value at a step, got 2 at step"
        " 2; give --value of another tag, or log it once at a step$"
    )
    with pytest.raises(ValueError, match=told):
        read_rows(tmp_path)


# Numbers


def test_numbers_are_those_of_scipy() -> None:
    rows = drawn({"baseline": 0.0, "a": 0.02, "b": 0.0})
    result = judged(rows)
    values = {arm: [row.value for row in rows if row.arm == arm] for arm in ("baseline", "a", "b")}
    p_values = {}
    for one in result.compared:
        test = ttest_rel(values[one.arm], values["baseline"])
        bounds = test.confidence_interval(0.95)
        assert one.paired
        assert one.difference.p_value == pytest.approx(test.pvalue, rel=1e-9)
        assert (one.difference.low, one.difference.high) == pytest.approx(bounds, rel=1e-9)
        p_values[one.arm] = float(test.pvalue)
    corrected = {one.arm: one.corrected_p for one in result.compared}
    assert corrected == pytest.approx(holm(p_values), rel=1e-9)


def test_arms_without_common_seeds_are_compared_by_welch() -> None:
    rows = [Row("a", None, value) for value in (1.0, 1.1, 1.3, 1.2)]
    rows += [Row("b", None, value) for value in (1.5, 1.9, 1.4)]
    one = judged(rows, "a").compared[0]
    test = ttest_ind([1.5, 1.9, 1.4], [1.0, 1.1, 1.3, 1.2], equal_var=False)
    assert not one.paired
    assert one.difference.p_value == pytest.approx(test.pvalue)
    assert "(unpaired)" in render(judged(rows, "a"))


def test_two_arms_without_a_spread_are_told_apart_by_exchanging_their_runs() -> None:
    rows = [Row("a", None, 1.0)] * 2 + [Row("b", None, 2.0)] * 2 + [Row("c", None, 1.0)] * 3
    of_b, of_c = judged(rows, "a").compared
    assert of_b.difference.p_value == 2 / 6  # the choices of two runs of four
    assert (of_b.difference.low, of_b.difference.high) == (1.0, 1.0)
    assert math.isnan(of_c.difference.p_value)


@pytest.mark.parametrize("name", ["models-mamba2", "memory-far", "decays-train"])
def test_the_same_rows_through_report_and_judge_give_the_same_numbers(name: str) -> None:
    """Arms of the study's baseline; Holm's correction is over the arms that are compared."""
    reported = compare(read_study(RECORDS / name))
    baseline = reported.study.baseline
    arms = [arm for arm in reported.others if arm.against == baseline]
    rows = [
        Row(arm.name, seed, value)
        for arm in [reported[baseline], *arms]
        for seed, value in arm.values[reported.primary].items()
    ]
    result = judged(rows, baseline)
    assert len(result.compared) == len(arms) > 0
    for one in result.compared:
        expected = reported.differences[one.arm]
        assert one.difference.per_seed == expected.per_seed
        assert (one.difference.mean, one.difference.low, one.difference.high) == (
            expected.mean,
            expected.low,
            expected.high,
        )
        assert one.difference.p_value == expected.p_value
        assert one.detectable == reported.detectable[one.arm]


def test_seeds_needed_are_the_fewest_that_find_the_difference() -> None:
    seen, low, high = seeds_needed(0.01, 0.012, 5) or (0, 0, 0)
    assert detectable_difference(0.012, seen) <= 0.01 < detectable_difference(0.012, seen - 1)
    assert low < seen < high
    assert seeds_needed(0.01, 0.012, 1) is None
    assert seeds_needed(0.01, 0.0, 5) is None


@pytest.mark.parametrize("hope", [0.02, 0.1])
def test_the_ends_of_seeds_needed_are_those_of_the_spread_by_chi_square(hope: float) -> None:
    """Of 3 seeds, where the quantile q is -2 ln(1 - q): 0.211 and 4.61 for 0.1 and 0.9."""
    sd = 0.1
    found = seeds_needed(hope, sd, 3)
    assert found is not None
    for number, tail in zip(found[1:], (0.1, 0.9), strict=True):
        end = sd * math.sqrt(2 / (-2 * math.log(tail)))
        assert detectable_difference(end, number) <= hope
        assert detectable_difference(end, number - 1) > hope


def test_the_interval_of_seeds_needed_covers_four_in_five() -> None:
    """Of 2,000 studies of 5 seeds with spread 1: how often the truth lies within."""
    noise = np.random.default_rng(0)
    true = seeds_needed(1.0, 1.0, 10**6)
    assert true is not None
    inside = 0
    for sd in np.std(noise.normal(0.0, 1.0, (2000, 5)), axis=1, ddof=1):
        found = seeds_needed(1.0, float(sd), 5)
        assert found is not None
        inside += found[1] <= true[0] <= found[2]
    # a share of 0.8 of 2,000 has a standard error of 0.009; whole seeds make intervals wider
    assert 0.77 <= inside / 2000 <= 0.95


def test_sizes_are_compared_apart_and_corrected_together() -> None:
    small = [row._replace(size="10M") for row in drawn({"base": 0.0, "a": 0.1})]
    large = [row._replace(size="100M") for row in drawn({"base": 0.0, "a": 0.0})]
    result = judged([*small, *large])
    assert [(one.arm, one.size) for one in result.compared] == [("a", "10M"), ("a", "100M")]
    p = {one.size: one.difference.p_value for one in result.compared}
    assert {one.size: one.corrected_p for one in result.compared} == pytest.approx(holm(p))


def test_runs_that_diverged_are_left_out_and_named() -> None:
    rows = drawn({"base": 0.0, "a": 0.1})
    rows[-1] = rows[-1]._replace(value=math.nan)
    result = judged(rows)
    assert result.left_out == ("a/seed-5",)
    assert result.compared[0].difference.n == 5
    told = "left out, since their values are missing or not finite: a/seed-5"
    assert told in render(result)


def test_an_arm_of_which_every_run_diverged_leaves_its_hypothesis_undecided() -> None:
    rows = [*drawn({"base": 0.0, "a": 0.1}, seeds=2), Row("b", 0, math.nan, None, "")]
    one = Stated(name="x", arm="b", claim="lower")
    verdict = judged(rows, stating=Stating(hypotheses=(one,))).verdicts["x"]
    assert (verdict.verdict, verdict.n) == ("undecided", 0)


@pytest.mark.parametrize(
    ("better", "word"), [("lower", "a is worse by 0.09"), ("higher", "a is better by 0.09")]
)
def test_the_headline_says_which_is_better(better: str, word: str) -> None:
    found = render(judged(drawn({"base": 0.0, "a": 0.1}, spread=0.001)), better)
    assert word in found.splitlines()[0]
    nothing = render(judged(drawn({"base": 0.0, "a": 0.0}, seeds=3)), better)
    assert nothing.startswith("No arm can be distinguished from base (1 comparison")


@pytest.mark.parametrize(
    ("value", "better", "label"),
    [
        ("val_loss", "lower", "val_loss, difference to base, below 0 is better"),
        ("", "higher", "difference to base, above 0 is better"),
    ],
)
def test_the_axis_of_the_forest_says_what_is_compared(value: str, better: str, label: str) -> None:
    result = judged(drawn({"base": 0.0, "a": -0.1}), "base")
    [axes] = figure(result, value, better).axes
    assert axes.get_xlabel() == label


# The command


def test_the_command_judges_hypotheses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = drawn({"base": 0.0, "a": -0.1, "b": 0.0}, seeds=8)
    content = "".join(f"{row.arm},{row.seed},{row.value!r}\n" for row in rows)
    path = write(tmp_path, HEADER + content)
    stated = 'baseline = "base"\n'
    for name, arm, claim in (
        ("leads", "a", "lower"),
        ("alike", "b", "equal"),
        ("no", "a", "higher"),
    ):
        stated += (
            f'[[hypotheses]]\nname = "{name}"\narm = "{arm}"\nclaim = "{claim}"\nmargin = 0.02\n'
        )
    claims = write(tmp_path, stated, "claims.toml")
    out = tmp_path / "out"
    given = [str(path), "--hypotheses", str(claims), "--hope", "0.005", "--out", str(out)]
    cli.main(command.command, given)
    shown = capsys.readouterr().out
    assert "seeds for 0.005" in shown
    found = load_json(out / "judge.json")
    verdicts = {one["name"]: one["verdict"] for one in found["hypotheses"]}
    assert verdicts == {"leads": "confirmed", "alike": "confirmed", "no": "refuted"}
    assert (out / "forest.svg").read_text().lstrip().startswith("<?xml")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            ["--baseline", "bas"],
            "baseline must be an arm of the rows, got 'bas'; did you mean 'base'?",
        ),
        (["--baseline", ""], "baseline must be an arm of the rows, got ''; valid: a, base"),
        (["--hope", "0"], "hope must be a finite number other than 0, got 0"),
        (["--hypotheses", "none.toml"], "none.toml"),
        (["--at", "3"], "at must be left out where rows tell no step, got 3; name the column"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    options: list[str], told: str, tmp_path: Path, refused: Any
) -> None:
    path = write(tmp_path, HEADER + "base,0,1\nbase,1,2\na,0,1\na,1,2\n")
    assert told in refused(command.command, path, "--out", tmp_path / "out", *options)
    assert not (tmp_path / "out").exists()


def test_hypotheses_on_arms_that_are_not_there_are_refused() -> None:
    rows = drawn({"base": 0.0, "a": 0.1})
    for changes, told in (
        ({"arm": "base"}, "'x': arm must be another than the baseline, got 'base'; valid: a"),
        ({"against": "a"}, "'x': against must be another than arm, got 'a'; valid: base"),
        ({"arm": "c"}, "arm must be one of the rows, got 'c'"),
        ({"against": ""}, "arm must be one of the rows, got ''"),
        ({"size": "9M"}, "size must be that of a run, got '9M'"),
    ):
        one = Stated.model_validate({"name": "x", "arm": "a", "claim": "lower", **changes})
        with pytest.raises(ValueError, match=told):
            judged(rows, stating=Stating(hypotheses=(one,)))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ("", "'x': name must be unique"),
        ('name = "y"\nfamily = "f"\nalpha = 0.1\n', "alpha must be that of its family, 0.05"),
        ('name = "y"\nclaim = "equal"\n', "'y': margin must be above 0 for claim 'equal', such as"),
        ('name = "y"\nmargin = -1.0\n', "'y': margin must be 0 or more for claim 'lower', such as"),
        ('name = "y"\nclaim = "equal"\nmargin = inf\n', "margin"),
        ('name = "y"\nmargin = nan\n', "margin"),
        ('name = "y"\nfamily = "f"\nalpha = nan\n', "alpha"),
        ('name = "y"\nclam = "lower"\n', "clam"),
        ('name = "y"\nmargin = "1"\n', "hypotheses.1.margin: must be a number, got '1'"),
    ],
)
def test_hypotheses_that_say_nothing_are_refused(
    changes: str, told: str, tmp_path: Path, refused: Any
) -> None:
    given = {"name": '"x"', "arm": '"a"', "claim": '"lower"', "family": '"f"'}
    other = dict(given)
    for line in changes.splitlines():
        key, value = line.split(" = ")
        other[key] = value
    text = ""
    for one in (given, other):
        lines = [f"{key} = {value}" for key, value in one.items()]
        text += "[[hypotheses]]\n" + "\n".join(lines) + "\n"
    path = write(tmp_path, HEADER + "base,0,1\nbase,1,2\na,0,1\na,1,2\n")
    claims = write(tmp_path, text, "claims.toml")
    out = tmp_path / "out"
    assert told in refused(command.command, path, "--hypotheses", claims, "--out", out)


def test_a_hypothesis_over_several_sizes_names_one() -> None:
    rows = drawn({"base": 0.0, "a": -0.1})
    sized = [row._replace(size="9M") for row in rows]
    sized += [row._replace(size="99M", value=-row.value) for row in rows]
    one = Stated(name="x", arm="a", claim="lower")
    with pytest.raises(ValueError, match=r"'x': size must be that of a run, got none; valid: 99M"):
        judged(sized, stating=Stating(hypotheses=(one,)))
    both = [one.model_copy(update={"name": size, "size": size}) for size in ("9M", "99M")]
    result = judged(sized, stating=Stating(hypotheses=tuple(both)))
    assert {name: one.verdict for name, one in result.verdicts.items()} == {
        "9M": "confirmed",
        "99M": "refuted",
    }
    lines = render(result).splitlines()
    assert re.match(r"hypothesis +size +verdict", lines[-4])
    assert re.match(r"99M +99M +refuted", lines[-1])
    alone = judged(sized[: len(rows)], stating=Stating(hypotheses=(one,)))
    assert alone.verdicts["x"].verdict == "confirmed"


def test_arms_without_common_seeds_are_told_beneath_their_hypothesis() -> None:
    rows = drawn({"base": 0.0, "a": -0.1}, seeds=3)
    one = Stated(name="x", arm="a", claim="lower")
    for shift, told in ((3, "no seeds"), (2, "1 seed"), (1, None)):
        moved = [row if row.arm == "base" else row._replace(seed=row.seed + shift) for row in rows]
        last = render(judged(moved, stating=Stating(hypotheses=(one,)))).splitlines()[-1]
        if told:
            assert last.startswith(f"('x' cannot be decided: a shares {told} with base, and")
        else:
            assert last.startswith("x ")


def test_seeds_are_told() -> None:
    told = render(judged(drawn({"base": 0.0, "a": 0.1}, seeds=3)))
    assert "(seeds in the rows: 0, 1, 2)" in told
    told = render(judged(drawn({"base": 0.0, "a": 0.1}, seeds=20)))
    assert "(seeds in the rows: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 8 more)" in told
    assert "seeds in the rows" not in render(judged([Row("a", None, 1.0), Row("b", None, 2.0)]))


def test_one_arm_is_not_enough() -> None:
    with pytest.raises(ValueError, match="rows must hold two arms or more, got a"):
        judged([Row("a", 0, 1.0), Row("a", 1, 2.0)])
    told = "a finite value at step 20, and as its last, got a alone: no run of b, c has one"
    rows = [Row("a", 0, 1.0), Row("b", 0, math.nan), Row("c", 0, math.inf)]
    with pytest.raises(ValueError, match=told):
        judged(rows, step=20)


@pytest.mark.parametrize(
    ("name", "given"), [("baseline", None), ("base", "base"), ("c", "c"), ("c", None)]
)
def test_a_baseline_of_which_every_run_diverged_is_not_replaced(
    name: str, given: str | None
) -> None:
    rows = [Row(name, seed, math.nan) for seed in range(2)] + drawn({"a": 0.0, "b": -0.1})
    one = Stated(name="x", arm="b", claim="lower")
    told = (
        f"baseline must have a run with a finite value, got '{name}', which has none:"
        f" {name}/seed-0, {name}/seed-1; give --baseline of another arm"
    )
    with pytest.raises(ValueError, match=told):
        judged(rows, given, Stating(hypotheses=(one,)))
    assert judged(rows, "a", Stating(hypotheses=(one,))).verdicts["x"].verdict == "confirmed"


def test_what_is_judged_does_not_change() -> None:
    """A golden case, by hand: differences 0.1, 0.2, 0.3 have mean 0.2, sd 0.1, t = 2 sqrt(3)."""
    rows = [Row("base", seed, 1.0) for seed in range(3)]
    rows += [Row("a", seed, 1.1 + 0.1 * seed) for seed in range(3)]
    result: Judged = judged(rows)
    one = result.compared[0].difference
    assert (one.mean, one.standard_deviation) == pytest.approx((0.2, 0.1))
    half = 4.302652729749464 * 0.1 / math.sqrt(3)  # t quantile 0.975 of 2 degrees, tables
    assert (one.low, one.high) == pytest.approx((0.2 - half, 0.2 + half))


def test_a_chart_of_several_metrics_needs_the_name_of_one(tmp_path: Path) -> None:
    header = "Step,long-seed0 - a,long-seed0 - b,short-seed0 - a,short-seed0 - b"
    path = write(tmp_path, f"{header}\n1,2,3,4,5\n")
    with pytest.raises(
        ValueError, match=r"value must be one of its metrics, got none; valid: a, b"
    ):
        read_rows(path)
    with pytest.raises(ValueError, match=r"value must be one of its metrics, got 'c'; valid: a, b"):
        read_rows(path, Columns(value="c"))
    found = ended(path, Columns(value="b"))
    assert found == [Row("long", 0, 3.0, 1.0), Row("short", 0, 5.0, 1.0)]
    alone = write(tmp_path, "Step,long-seed0 - a,short-seed0 - a\n1,2,4\n")
    assert ended(alone) == [Row("long", 0, 2.0, 1.0), Row("short", 0, 4.0, 1.0)]


def test_tabs_and_spaces_separate_columns_and_a_size_is_a_word(tmp_path: Path) -> None:
    path = write(tmp_path, "arm\tseed\tvalue\tsize\nlong run\t3\t1.5\t9M\n", "rows.tsv")
    assert read_rows(path) == [Row("long run", 3, 1.5, None, "9M")]
    path = write(tmp_path, "arm, seed, value\nlong, 3, 1.5\n")
    assert read_rows(path) == [Row("long", 3, 1.5)]


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ("a,1.5,2", "row 1: seed must be a whole number, got"),
        ("a,,2", "row 1: seed must be a whole number, got"),
        ("a,inf,2", "row 1: seed must be a whole number, got"),
        ("a,0,two", "row 1: value must be a number, got 'two'"),
    ],
)
def test_a_cell_that_is_no_number_is_named(cells: str, message: str, tmp_path: Path) -> None:
    path = write(tmp_path, f"{HEADER}{cells}\n")
    with pytest.raises(ValueError, match=message):
        read_rows(path, Columns(value="value"))


@pytest.mark.parametrize(
    ("arms", "baseline"),
    [
        (["b", "Control", "base"], "Control"),
        (["b", "default"], "default"),
        (["b", "a"], "b"),
    ],
)
def test_the_baseline_is_called_one_or_comes_first(arms: list[str], baseline: str) -> None:
    assert judged(drawn(dict.fromkeys(arms, 0.0))).baseline == baseline


@pytest.mark.parametrize(("common", "is_paired"), [(0, False), (1, False), (2, True)])
def test_two_common_seeds_are_paired(common: int, is_paired: bool) -> None:
    rows = [Row("base", seed, 1.0 + 0.1 * seed) for seed in range(3)]
    rows += [Row("a", 3 - common + seed, 2.0 + 0.1 * seed**2) for seed in range(3)]
    [one] = judged(rows).compared
    assert one.paired is is_paired
    assert one.difference.n == (2 if is_paired else 3)
    told = render(judged(rows))
    assert ("a (unpaired)" in told) is not is_paired


def test_welch_needs_two_runs_of_each() -> None:
    rows = [Row("base", seed, 1.0 + 0.1 * seed) for seed in range(3)]
    [one] = judged([*rows, Row("a", 7, 2.0)]).compared
    assert (one.difference.n, one.difference.mean) == (1, pytest.approx(0.9))
    assert math.isnan(one.difference.p_value)
    both = judged([*rows, Row("a", 7, 2.0), Row("a", 8, 2.2)], hope=0.1).compared[0]
    spread = math.sqrt(0.1**2 + 0.2**2 / 2)
    assert both.difference.standard_deviation == pytest.approx(spread)
    assert both.seeds_needed is not None


@pytest.mark.parametrize(
    ("hope", "sd", "n"), [(0.1, 0.1, 1), (0.1, 0.0, 3), (0.1, math.inf, 3), (0.0, 0.1, 3)]
)
def test_without_a_spread_or_a_hope_no_seeds_are_needed(hope: float, sd: float, n: int) -> None:
    assert seeds_needed(hope, sd, n) is None


def test_more_seeds_than_anybody_has_are_cut_off() -> None:
    seen, low, high = seeds_needed(1e-6, 1.0, 3) or (0, 0, 0)
    assert seen == low == high == MOST_SEEDS
    assert (seeds_needed(1e9, 1.0, 3) or (0,))[0] == 2


def test_the_headline_counts_comparisons() -> None:
    alone = drawn({"base": 0.0, "a": 0.0}, seeds=3, spread=1.0)
    told = render(judged(alone)).splitlines()[0]
    assert told.startswith(
        "No arm can be distinguished from base (1 comparison, corrected by Holm)"
    )
    untested = [*alone, Row("b", 0, 1.0)]
    assert render(judged(untested)).splitlines()[0] == told
    assert "these seeds find a difference of" in told
    several = drawn({"base": 0.0, "a": 0.0, "b": 0.5}, seeds=3)
    told = render(judged(several), "higher").splitlines()[0]
    assert told.startswith("1 of 2 comparisons with base can be distinguished (Holm): b is better")
    one_each = [Row("base", 0, 1.0), Row("a", 0, 2.0)]
    told = render(judged(one_each)).splitlines()[0]
    assert told == (
        "No arm can be distinguished from base: one seed cannot be judged, as it shows no spread;"
        " each arm needs two or more with a finite value."
    )
    alike = [row._replace(seed=seed) for row in one_each for seed in (0, 1)]
    same = render(judged([row._replace(value=1.0) for row in alike])).splitlines()[0]
    assert same == "No arm can be distinguished from base: no comparison has a p."


def test_tables_have_a_column_of_sizes_and_of_seeds_where_they_are_asked_for() -> None:
    rows = drawn({"base": 0.0, "a": 0.1})
    header = render(judged(rows)).splitlines()[2]
    assert header.startswith("arm")
    assert header.rstrip().endswith("found 8 in 10")
    sized = [row._replace(size="9M") for row in rows]
    told = render(judged(sized, hope=-0.05, step=20.0))
    assert told.splitlines()[2].startswith("size")
    assert "seeds for -0.05" in told
    assert "(arm minus base, at step 20; 95 % intervals" in told
    assert (
        "(seeds that find a difference of -0.05 8 times in 10, at the spread seen and at the"
        in told
    )
    assert " at the ends of its 80% interval)" in told
    assert _needed_text((3, 2, 9)) == "3 (2 to 9)"
    assert _needed_text(None) == "-"


def test_the_tables_in_full() -> None:
    """Differences 0.1, 0.2 and 0.3 in two sizes, and a run that shares no seed with the baseline.

    t = 2 sqrt(3) with 2 degrees: p = 1 - t / sqrt(2 + t**2) = 0.0742, twice that by Holm over both
    sizes, and half of it for a claim with a direction, whose 90 % interval is 2.920 standard errors
    either way (tables).
    """
    rows = [Row("base", seed, 1.0) for seed in range(3)]
    rows += [Row("a", seed, 1.1 + 0.1 * seed) for seed in range(3)]
    rows += [row._replace(size="9M") for row in rows]
    rows.append(Row("b", 7, 1.5))
    leads = Stated(name="leads", arm="a", claim="higher", size="9M")
    alone = Stated(name="alone", arm="b", claim="lower", family="own")
    result = judged(rows, stating=Stating(hypotheses=(leads, alone)), hope=0.2)
    _, compared, stated = render(result).split("\n\n")
    numbers = "3     +0.2000  -0.0484 to +0.4484  0.074         0.15           0.33    5 (4 to 21)"
    blank = "1     +0.5000                          -            -              -              -"
    assert compared.splitlines()[:5] == [
        "size           arm  n  difference       95 % interval      p  corrected p  found 8 in 10"
        "  seeds for 0.2",
        "-" * 103,
        f"-                a  {numbers}",
        f"-     b (unpaired)  {blank}",
        f"9M               a  {numbers}",
    ]
    assert stated.splitlines()[:-1] == [
        "hypothesis  size    verdict  difference            interval  n  p (Holm)  test",
        "-" * 78,
        "leads         9M  confirmed     +0.2000  +0.0314 to +0.3686  3     0.037     t",
        "alone          -  undecided           -                      0         -     t",
    ]
    saved = content(result)
    assert [one["size"] for one in saved["comparisons"]] == ["", "", "9M"]
    first = saved["comparisons"][0]
    assert first["seeds_needed"] == (5, 4, 21)
    assert first["difference"]["per_seed"] == pytest.approx({0: 0.1, 1: 0.2, 2: 0.3})
    assert saved["hypotheses"][0]["p_family"] == pytest.approx(0.0371, abs=1e-4)


def test_a_size_whose_runs_lack_the_baseline_is_refused() -> None:
    rows = drawn({"base": 0.0, "a": 0.1}, seeds=2)
    other = [row._replace(size="9M") for row in rows if row.arm == "a"]
    with pytest.raises(ValueError, match="baseline must have a run of size 9M with a finite value"):
        judged([*rows, *other])


@pytest.mark.parametrize(
    ("margin", "claim", "is_valid"),
    [
        (0.0, "lower", True),
        (0.1, "higher", True),
        (-0.1, "higher", False),
        (0.0, "equal", False),
        (0.1, "equal", True),
        (0.0, "lower_by_less", False),
    ],
)
def test_a_claim_with_two_bounds_has_a_margin(margin: float, claim: str, is_valid: bool) -> None:
    values = {"name": "x", "arm": "a", "claim": claim, "margin": margin}
    if is_valid:
        assert Stated.model_validate(values).margin == margin
    else:
        with pytest.raises(ValueError, match="margin must be"):
            Stated.model_validate(values)


def test_values_without_steps_or_seeds_are_one_for_each_run() -> None:
    rows = [Row("a", None, 1.0), Row("a", None, 2.0), Row("b", 0, 3.0)]
    assert last_values(rows[:2]) == (rows[:2], None)
    assert last_values(rows) == (rows, None)
    with pytest.raises(ValueError, match="arm 'b' with seed 0 has two values; keep one"):
        last_values([*rows, rows[-1]])
    with pytest.raises(ValueError, match="has two values at step 5; keep one"):
        last_values([Row("b", 0, 1.0, 5.0), Row("b", 0, 2.0, 5.0)])
    with pytest.raises(ValueError, match="runs must have a step in common"):
        last_values([Row("a", 0, 1.0, 5.0), Row("b", 0, 2.0, 6.0)])
