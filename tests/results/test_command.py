"""The report of a synthetic study: what it says, what it refuses, and what must never reach the page as markup."""

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from plkernel.analysis.figures import style as figures
from plkernel.analysis.figures.style import line_style
from plkernel.commands.report import report, text_report, write_comparison
from plkernel.common import cli
from plkernel.models.words import NOT_CAUSAL
from plkernel.records.layout import run_folder
from plkernel.records.study import read_study
from plkernel.results.cautions import warnings
from plkernel.results.comparison import compare
from plkernel.results.sentences import sentences
from plkernel.results.table import save_record

BYTES_PER_STEP = 8192
BASELINE = "log-spaced"
EFFECTS = {BASELINE: 0.0, "concentrated": -0.05}


def write_report(folder: Path) -> Path:
    """The page of the study in `folder`."""
    return write_comparison(compare(read_study(folder)))


def write_study(folder: Path, seeds=(0, 1), effects=EFFECTS, **changes) -> Path:
    corpus = {"name": "stdlib", "size": 12634211, "sha256": "9f2c" * 16}
    spec = {"name": "quick", "description": "Two arms.", "baseline": BASELINE, "arms": {a: {} for a in effects}}
    spec |= {"seeds": list(seeds), "report_steps": [20, 999], "corpus": corpus}
    write_json(folder / "spec.json", spec)
    for arm, effect in effects.items():
        for seed in seeds:
            write_run(run_folder(folder, arm, seed), arm, seed, effect, corpus, **changes)
    return folder


def write_run(folder, arm, seed, effect, corpus, steps=40, causal=True, parameters=312345):
    noise = np.random.default_rng([seed, len(arm)]).normal(0, 0.002)
    rows = [
        {"step": t, "bytes": t * BYTES_PER_STEP, "val_bpb": 2 + 6 / (1 + t) + 0.1 * seed + effect * t / 40 + noise}
        for t in range(0, steps + 1, 10)
    ]
    write_json(
        folder / "config.json",
        {"study": "quick", "arm": arm, "seed": seed, "corpus": corpus, "model": {"parameters": parameters}},
    )
    environment = {"commit": "3f9ab12c", "dirty": False, "versions": {"torch": "2.13"}, "hardware": {"gpu": None}}
    write_json(folder / "environment.json", environment)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    final = rows[-1]["val_bpb"]
    result = {"status": "finished", "steps": steps, "bytes": steps * BYTES_PER_STEP, "final_val_bpb": final}
    result |= {"best_val_bpb": final, "best_step": steps, "test_bpb": final + 0.1, "seconds": 12.5}
    write_json(folder / "result.json", {**result, "causal": causal, "error": None})


def write_json(path: Path, value) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def change(path: Path, **values) -> None:
    write_json(path, {**json.loads(path.read_text()), **values})


class Page(HTMLParser):
    """Tags, attributes and text of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags, self.attributes, self.text = [], [], ""
        self.source = path.read_text()
        self.feed(self.source)
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.text += data


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """The page of a study, with everything beside it."""
    return write_report(write_study(tmp_path_factory.mktemp("written")))


@pytest.fixture
def undrawn(monkeypatch) -> None:
    """Figures take most of the time of a report; where words and tables are read, none is drawn."""
    monkeypatch.setattr(figures, "rendered", lambda figure, kinds: dict.fromkeys(kinds, b""))


def test_every_file_is_written(written):
    names = {path.name for path in written.parent.iterdir()}
    drawn = {f"{name}.{kind}" for name in ("convergence", "difference") for kind in ("pdf", "png")}
    assert names == {"report.html", "table.json", "rows.jsonl"} | drawn
    assert (written.parent / "difference.pdf").read_bytes().startswith(b"%PDF")


def test_the_page_needs_nothing_from_outside(written):
    page = Page(written)
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    references = [value for name, value in page.attributes if name in ("src", "href", "xlink:href")]
    assert all(value.startswith("#") for value in references)
    assert not re.search(r"@import|url\((?!#)", page.source)
    ids = [value for name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', page.source)) <= set(ids)


@pytest.mark.usefixtures("undrawn")
def test_the_table_holds_the_paired_difference_of_every_measure(tmp_path):
    folder = write_report(write_study(tmp_path, seeds=(0, 1, 2))).parent
    table = json.loads((folder / "table.json").read_text())
    baseline, arm = table["arms"]
    assert set(arm["measures"]) == {"final_val_bpb", "best_val_bpb", "test_bpb", "val_bpb_step_20"}
    for key, measure in arm["measures"].items():
        difference = measure["difference_to_baseline"]
        other = baseline["measures"][key]["per_seed"]
        expected = {seed: value - other[seed] for seed, value in measure["per_seed"].items()}
        assert difference["per_seed"] == pytest.approx(expected)
        assert (measure["n"], difference["n"]) == (3, 3)
        assert difference["low"] < difference["mean"] < difference["high"]
    assert "difference_to_baseline" not in baseline["measures"]["test_bpb"]


def test_rows_hold_configuration_environment_result_and_curve(written):
    rows = [json.loads(line) for line in (written.parent / "rows.jsonl").read_text().splitlines()]
    assert [(row["arm"], row["seed"]) for row in rows] == [(arm, seed) for arm in EFFECTS for seed in (0, 1)]
    assert rows[0]["curve"]["step"] == [0, 10, 20, 30, 40]
    assert rows[0]["curve"]["val_bpb"][-1] == rows[0]["result"]["final_val_bpb"]
    assert rows[0]["environment"]["commit"] == "3f9ab12c"
    assert rows[0]["config"]["model"]["parameters"] == 312345


@pytest.mark.usefixtures("undrawn")
def test_a_record_gives_the_report_of_its_study(tmp_path):
    study = write_study(tmp_path / "study")
    report(study, record=tmp_path / "record")
    assert {path.name for path in (tmp_path / "record").iterdir()} == {"spec.json", "rows.jsonl"}
    report(tmp_path / "record")
    assert (study / "report/rows.jsonl").read_bytes() == (tmp_path / "record/rows.jsonl").read_bytes()
    for name in ("report.html", "table.json"):
        assert (tmp_path / "record/report" / name).read_bytes() == (study / "report" / name).read_bytes()
    with pytest.raises(ValueError, match="another folder than the study's"):
        report(study, record=study)


@pytest.mark.usefixtures("undrawn")
def test_a_record_keeps_runs_that_diverged(tmp_path):
    study = write_study(tmp_path / "study")
    change(study / BASELINE / "seed-0" / "result.json", status="diverged", error="FloatingPointError: nan")
    save_record(read_study(study), tmp_path / "record")
    kept = read_study(tmp_path / "record").runs
    assert [(run.status, run.error) for run in kept] == [(run.status, run.error) for run in read_study(study).runs]


@pytest.mark.usefixtures("undrawn")
def test_an_arm_may_be_compared_with_another_than_the_baseline(tmp_path):
    """Each within its own pair: the twins differ from theirs, not from the study's baseline."""
    effects = {BASELINE: 0.0, "concentrated": -0.05, "base-two": -0.4, "twin-two": -0.45}
    study = write_study(tmp_path, seeds=(0, 1, 2, 3), effects=effects)
    spec = json.loads((study / "spec.json").read_text())
    spec["arms"]["twin-two"] = {"against": "base-two"}
    write_json(study / "spec.json", spec)
    comparison = compare(read_study(study))
    assert [base.name for base in comparison.baselines] == [BASELINE, "base-two"]
    for name, effect in {"concentrated": -0.05, "base-two": -0.4, "twin-two": -0.05}.items():
        assert comparison[name].differences["final_val_bpb"].mean == pytest.approx(effect, abs=0.01)
    text, page = text_report(comparison), Page(write_report(study))
    assert re.search(r"twin-two +4 .* base-two +-0\.0", text)
    for shown in (text.replace("-0.0", "\N{MINUS SIGN}0.0"), page.text):
        assert re.search(r"twin-two: \N{MINUS SIGN}0\.0\d+ bits per byte against base-two", shown)
    assert "twin-twominus base-two" in page.text
    assert "Difference to the arm it is compared with" in page.text
    rows = {row["arm"]: row for row in json.loads((study / "report" / "table.json").read_text())["arms"]}
    assert (rows["twin-two"]["against"], rows[BASELINE]["against"]) == ("base-two", None)


@pytest.mark.usefixtures("undrawn")
def test_p_is_corrected_for_the_number_of_arms(tmp_path):
    effects = {BASELINE: 0.0, "concentrated": -0.05, "c": -0.002, "dddd": 0.001}
    comparison = compare(read_study(write_study(tmp_path, seeds=tuple(range(6)), effects=effects)))
    raw = {arm.name: arm.differences["final_val_bpb"].p_value for arm in comparison.others}
    ordered = sorted(raw, key=lambda name: raw[name])
    expected = [min(1.0, (3 - i) * raw[name]) for i, name in enumerate(ordered)]
    assert [comparison.corrected[name] for name in ordered] == pytest.approx(np.maximum.accumulate(expected))
    assert "corrected p" in text_report(comparison)


@pytest.mark.usefixtures("undrawn")
def test_the_search_for_learning_rates_is_shown(tmp_path):
    study = write_study(tmp_path, seeds=(0, 1))
    spec = json.loads((study / "spec.json").read_text())
    tuning = {"rates": [0.001, 0.002, 0.004], "seeds": [100], "steps": None}
    write_json(study / "spec.json", {**spec, "tuning": tuning})
    losses = {BASELINE: (2.5, 2.4, None), "concentrated": (2.6, 2.5, 2.3)}
    names = {
        f"{arm}_rate-{rate:g}": loss for arm in losses for rate, loss in zip(tuning["rates"], losses[arm], strict=True)
    }
    write_json(
        study / "tuning" / "spec.json",
        {**spec, "arms": {name: {} for name in names}, "baseline": next(iter(names)), "seeds": [100]},
    )
    for name, loss in names.items():
        run = run_folder(study / "tuning", name, 100)
        write_run(run, name, 100, 0.0, spec["corpus"])
        ended = {"final_val_bpb": loss} if loss else {"status": "diverged", "error": "FloatingPointError"}
        change(run / "result.json", **ended)
    comparison = compare(read_study(study))
    assert any("concentrated: its learning rate 0.004 is at the edge" in text for text in warnings(comparison))
    page = Page(write_report(study))
    assert "3 rates, 1 seed" in page.text
    assert f"{BASELINE}2.50002.4000diverged0.002" in page.text
    assert "concentrated2.60002.50002.30000.004" in page.text


@pytest.mark.usefixtures("undrawn")
def test_two_seeds_say_that_they_cannot_tell(tmp_path):
    study = write_study(tmp_path, effects={BASELINE: 0.0, "concentrated": -0.001})
    expected = "the interval contains zero: with 2 seeds these runs cannot tell the difference from none; with 2 seeds"
    sentence = sentences(compare(read_study(study)))[0]
    assert expected in sentence
    assert re.search(r"a difference of 0\.\d+ or more is found 8 times in 10", sentence)
    page = Page(write_report(study))
    assert expected in page.text
    assert "12.7 standard errors" in page.text
    assert "one seed: no claim" not in page.text


@pytest.mark.usefixtures("undrawn")
def test_one_seed_makes_no_claim(tmp_path):
    page = Page(write_report(write_study(tmp_path, seeds=(4,))))
    assert "one seed: no interval, no claim" in page.text
    assert "nan" not in page.text.lower()


def test_a_large_effect_is_told_from_none(tmp_path):
    comparison = compare(read_study(write_study(tmp_path, seeds=range(5))))
    assert "the interval excludes zero: lower than the baseline over 5 seeds" in text_report(comparison)
    assert warnings(comparison) == []


@pytest.mark.usefixtures("undrawn")
def test_unequal_steps_are_flagged_and_compared_at_the_last_common_one(tmp_path):
    study = write_study(tmp_path)
    for seed in (0, 1):
        arm = "concentrated"
        write_run(run_folder(study, arm, seed), arm, seed, -0.05, {"name": "stdlib", "sha256": "9f2c" * 16}, steps=30)
    comparison = compare(read_study(study))
    assert "unequal numbers of steps (log-spaced 40; concentrated 30)" in warnings(comparison)[0]
    assert comparison.primary.title == "validation at step 30, the last in common"
    difference = comparison.others[0].differences[comparison.primary.key]
    assert difference.mean == pytest.approx(-0.05 * 30 / 40, abs=0.01)
    assert "unequal numbers of steps" in Page(write_report(study)).text


@pytest.mark.usefixtures("undrawn")
def test_what_is_not_causal_says_so_on_every_number(tmp_path):
    page = Page(write_report(write_study(tmp_path, causal=False)))
    heads = re.findall(r"<(?:h1|h2|figcaption)(?: id=[^>]*)?>(.*?)</", page.source)
    plain = ("In words", "Design", "Curves", "Costs", "Where these numbers come from")
    named = [head for head in heads if head not in plain]
    assert all(NOT_CAUSAL in head.lower() for head in named)
    numbers = re.findall(
        r'<td class="number">(?:[+\N{MINUS SIGN}]?\d+\.\d|[+\N{MINUS SIGN}]\d).*?</td>',
        page.source.partition('<h2 id="costs">')[0],
    )
    assert numbers
    assert all("†" in number for number in numbers)
    rows = [json.loads(line) for line in (tmp_path / "report/rows.jsonl").read_text().splitlines()]
    assert all(row["label"] == NOT_CAUSAL for row in rows)
    assert NOT_CAUSAL in text_report(compare(read_study(tmp_path)))


@pytest.mark.usefixtures("undrawn")
def test_one_arm_that_is_not_causal_is_marked_and_the_others_are_not(tmp_path):
    study = write_study(tmp_path)
    for seed in (0, 1):
        change(run_folder(study, "concentrated", seed) / "result.json", causal=False)
    page = Page(write_report(study))
    first = re.findall(r"<tr><th scope=\"row\">log-spaced</th>.*?</tr>", page.source)
    assert first
    assert not any("†" in row for row in first)
    assert f"concentrated ({NOT_CAUSAL})" in page.source


@pytest.mark.usefixtures("undrawn")
def test_failed_and_unfinished_runs_are_listed_and_not_counted(tmp_path):
    study = write_study(tmp_path, seeds=(0, 1, 2))
    write_json(
        run_folder(study, "concentrated", 0) / "result.json",
        {"status": "failed", "error": "RuntimeError: out of <b>memory</b>"},
    )
    (run_folder(study, BASELINE, 1) / "result.json").unlink()
    (run_folder(study, BASELINE, 2) / "config.json").unlink()
    page = Page(write_report(study))
    assert "3 of 6 runs are not finished" in page.text
    assert "out of <b>memory</b>" in page.text
    for name in ("concentrated/seed-0", "log-spaced/seed-1", "log-spaced/seed-2"):
        assert name in page.text
    assert "no finished seed in common with log-spaced" in page.text
    assert "b" not in page.tags


@pytest.mark.usefixtures("undrawn")
def test_strings_from_files_are_never_markup(tmp_path):
    evil = "<img src=x onerror=alert(1)>&\"'$x_1$"
    study = write_study(tmp_path, effects={BASELINE: 0.0, evil: -0.05})
    change(study / "spec.json", name=evil, description=f"</style><script>{evil}</script>")
    for seed in (0, 1):
        folder = run_folder(study, evil, seed)
        change(folder / "environment.json", commit=evil, command=f"-->{evil}", hardware={evil: evil})
        change(folder / "config.json", corpus={"name": evil, "sha256": evil})
    page = Page(write_report(study))
    assert not {"script", "img"} & set(page.tags)
    assert not any(name.startswith("on") for name, _ in page.attributes)
    assert "<img src=x onerror=alert(1)>" in page.text


@pytest.mark.usefixtures("undrawn")
def test_a_diverged_run_leaves_its_arm_without_a_mean(tmp_path):
    study = write_study(tmp_path)
    path = run_folder(study, "concentrated", 1)
    change(path / "result.json", final_val_bpb=None, best_step=None)
    comparison = compare(read_study(study))
    assert math.isnan(comparison.others[0].estimates["final_val_bpb"].mean)
    assert "concentrated, seed 1: the loss is not finite" in warnings(comparison)[0]
    page = Page(write_report(study))
    assert "not finite" in page.text
    assert json.loads((tmp_path / "report/table.json").read_text())["arms"][1]["measures"]


@pytest.mark.slow
def test_the_same_study_gives_the_same_files(written):
    contents = [{path.name: path.read_bytes() for path in written.parent.iterdir()}]
    write_report(written.parents[1])
    contents.append({path.name: path.read_bytes() for path in written.parent.iterdir()})
    assert contents[0] == contents[1]


@pytest.mark.usefixtures("undrawn")
def test_commits_and_corpora_that_differ_are_flagged(tmp_path):
    study = write_study(tmp_path)
    folder = run_folder(study, BASELINE, 0)
    change(folder / "environment.json", commit="0000", dirty=True)
    change(folder / "config.json", corpus={"name": "stdlib", "sha256": "0"})
    text = " ".join(warnings(compare(read_study(study))))
    assert all(words in text for words in ("different commits", "dirty", "different bytes"))
    assert "3f9ab12c (3 of 4 runs)" in Page(write_report(study)).text


def test_arms_that_ask_for_other_corpora_are_not_flagged(tmp_path):
    study = write_study(tmp_path)
    for seed in (0, 1):
        folder = run_folder(study, "concentrated", seed)
        change(folder / "config.json", corpus={"name": "synthetic:markov", "sha256": "0"})
    assert "different bytes" not in " ".join(warnings(compare(read_study(study))))
    change(folder / "config.json", corpus={"name": "synthetic:markov", "sha256": "1"})
    assert "different bytes" in " ".join(warnings(compare(read_study(study))))


SPEC = '{"name": "n", "seeds": [0], "baseline": "x", "arms": {"y": {}}}'


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("spec.json", None, "holds no spec.json"),
        ("spec.json", "{", "spec.json: not readable as JSON"),
        ("spec.json", "[]", "spec.json: holds [], expected an object"),
        ("spec.json", "null", "spec.json: holds None, expected an object"),
        ("spec.json", '{"baseline": "x"}', "spec.json: name is missing; seeds is missing; arms is missing"),
        ("spec.json", SPEC.replace("{}", "3"), "spec.json: arms.y is 3: "),
        ("spec.json", SPEC.replace("{}", '{"levels": {"gain": 1}}'), "spec.json: arms.y.levels.gain is 1: "),
        ("spec.json", SPEC.replace("{}", '{"against": "z"}'), "spec.json: arms.y.against is 'z', none of the arms"),
        ("spec.json", "[" * 100_000, "spec.json: nested deeper than 64"),
        ("spec.json", SPEC, "baseline 'x' is none of the arms 'y'"),
        ("references.json", "{", "references.json: not readable as JSON"),
        ("references.json", '{"references": [{"corpus": 3}]}', "references.json: references.0.corpus is 3: "),
        ("log-spaced/seed-0/config.json", '{"arm": "other", "seed": 0}', "belongs to arm 'other'"),
        ("log-spaced/seed-0/config.json", '{"arm": "log-spaced", "seed": 0}', "corpus is missing; model is missing"),
        ("log-spaced/seed-0/config.json", "null", "config.json: holds null, expected an object"),
        ("log-spaced/seed-0/environment.json", '{"hardware": 3}', "environment.json: hardware is 3: "),
        ("log-spaced/seed-0/metrics.jsonl", "null\n", "metrics.jsonl: line 1: holds null, expected an object"),
        ("log-spaced/seed-0/metrics.jsonl", None, "metrics.jsonl: no such file"),
        ("log-spaced/seed-0/metrics.jsonl", "", "metrics.jsonl: holds no evaluation"),
        ("log-spaced/seed-0/metrics.jsonl", "{\n{}\n", "metrics.jsonl: line 1: not readable as JSON"),
        ("log-spaced/seed-0/metrics.jsonl", '{"step": 1, "bytes": 2}\n', "val_bpb is missing"),
        ("log-spaced/seed-0/result.json", "{", "result.json: not readable as JSON"),
        ("log-spaced/seed-0/result.json", '{"status": "odd"}', "status is 'odd'"),
        ("log-spaced/seed-0/result.json", '{"status": "finished"}', "result.json: steps is missing"),
    ],
)
def test_a_missing_or_damaged_file_is_named_and_nothing_written(tmp_path, name, content, message):
    study = write_study(tmp_path)
    path = study / name
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(ValueError, match=re.escape(message)):
        write_report(study)
    assert not (study / "report").exists()


def test_no_finished_run_is_one_line_and_exit_code_2(tmp_path, capsys):
    study = write_study(tmp_path)
    for path in study.glob("*/*/result.json"):
        path.unlink()
    with pytest.raises(SystemExit) as ended:
        cli.main(report, [str(study)])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "holds no finished run (only unfinished)" in error


@pytest.mark.usefixtures("undrawn")
def test_the_command_prints_table_and_sentence(tmp_path, capsys):
    cli.main(report, [str(write_study(tmp_path))])
    printed = capsys.readouterr().out
    assert "minus log-spaced" in printed
    assert "concentrated: -0.0" in printed
    assert str(tmp_path / "report/report.html") in printed


def test_arms_differ_in_black_and_white_and_in_colour():
    looks = [line_style(index) for index in range(31)]
    assert len({str(look) for look in looks}) == 31
    assert len({str(look["linestyle"]) for look in looks[:6]}) == 6
