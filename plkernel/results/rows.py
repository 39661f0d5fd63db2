"""Rows of runs that other software trained: from CSV, JSON, Parquet and TensorBoard.

A row is one value of one run. Where a file names runs rather than arms and seeds, both are read
from the name of the run.
"""

import io
import json
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from plkernel.common.cli import nearest
from plkernel.common.files import MEAN, SPEC, TUNING, check_regular, parsed, read_bytes, shown

if TYPE_CHECKING:
    from pandas import DataFrame

EVENTS = "events.out.tfevents*"
SEPARATED = r"(?:[\s/_.-]+(?:seed|s)?|seed)[\s=_-]*"
NOT_A_NUMBER = r"(?<![\d\s/_=-]\.)(?<![\d.][eE]-)"
"""Before a seed: not within a decimal, as the 01 of lr0.01, and no exponent, as the 3 of 1e-3."""
PATTERN = rf"(?P<arm>.+?){SEPARATED}{NOT_A_NUMBER}(?P<seed>\d+)"
"""Names of runs: long/seed-3, long_seed3, long-s3, long.3, long_3."""
KNOWN = {
    "arm": ("arm", "condition", "variant", "method", "group"),
    "seed": ("seed",),
    "run": ("run", "run_name", "name", "experiment", "run_id"),
    "value": ("value",),
    "step": ("step", "_step", "global_step", "iteration", "iter"),
    "size": ("size",),
}
"""Names of columns, without regard to case, by what they hold."""
NO_VALUES = {name for kind, names in KNOWN.items() if kind != "value" for name in names}
"""Names of columns that are not taken for values, also where others tell arms and seeds."""
WIDE = " - "
"""Between the name of a run and its metric, in a chart that wandb exports: one column a run."""
WIDE_BOUNDS = ("__MIN", "__MAX")
"""Ends of further columns of such a chart, of the bounds of every point."""
LARGEST_VALUE = 1e100
"""Values of larger size are no measurements, and their squares may not be finite."""
EMPTY = ("", "NA", "N/A", "n/a", "#NA", "#N/A", "#N/A N/A", "<NA>", "NULL", "null", "None")
"""Cells of a text file that hold no value."""
NAN = ("NaN", "nan", "-NaN", "-nan")
"""Cells of a run that diverged."""
RunKey = tuple[str, int | None, str]
"""Arm, seed and size of a run."""
Steps = dict[float | None, "Row"]
"""The rows of one run by step."""


class Row(NamedTuple):
    """One value of one run; `seed` and `step` are None where the file does not tell them."""

    arm: str
    seed: int | None
    value: float
    step: float | None = None
    size: str = ""


@dataclass(frozen=True)
class Columns:
    """Names of columns where they are not the usual ones; several of `arm` are joined.

    pattern  a regular expression with the groups arm and seed, for the names of runs
    """

    arm: Sequence[str] = ()
    seed: str | None = None
    run: str | None = None
    value: str | None = None
    step: str | None = None
    size: str | None = None
    pattern: str = PATTERN


def read_rows(path: Path, columns: Columns = Columns()) -> list[Row]:
    """Every row of a file, or of a folder with TensorBoard's files.

    Raises ValueError, naming the file and the columns that there are, where no arm or value is
    found.
    """
    if path.is_dir():
        return _rows_of_events(path, columns)
    check_regular(path)
    table = _table(path, columns)
    if table.empty:
        raise ValueError(f"{path}: must hold a row for each run, got none")
    return _rows_of(path, _long(path, table, columns), columns)


def _table(path: Path, columns: Columns) -> "DataFrame":
    """The columns of a file, by its suffix."""
    import pandas

    if path.suffix in (".jsonl", ".ndjson"):
        return pandas.json_normalize(_json_lines(path))
    if path.suffix == ".json":
        return pandas.json_normalize(_json_list(path))
    content = io.BytesIO(read_bytes(path))
    try:
        if path.suffix == ".parquet":
            return pandas.read_parquet(content)
        return _separated(content, "\t" if path.suffix == ".tsv" else ",", columns)
    except (ValueError, UnicodeDecodeError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"{path}: must be CSV with a header, TSV, JSON, JSON lines or Parquet: {reason}"
        ) from None


def _separated(content: io.BytesIO, separator: str, columns: Columns) -> "DataFrame":
    """The columns of CSV or TSV; those of `_text_columns` are words, also where all are numbers."""
    import pandas

    header = pandas.read_csv(content, sep=separator, skipinitialspace=True, nrows=0)
    words = _text_columns(header, columns)
    empty = {name: [*EMPTY, *NAN] for name in header.columns if name not in words}
    content.seek(0)
    return pandas.read_csv(
        content,
        sep=separator,
        skipinitialspace=True,
        dtype=dict.fromkeys(words, str),
        na_values=empty,
        keep_default_na=False,
    )


def _text_columns(header: "DataFrame", columns: Columns) -> list[str]:
    """The columns of a text file whose cells are kept as they are written.

    They are names, of which pandas would take None for an empty cell and 0.10 for 0.1, and the
    values of a chart, in which NaN is no empty cell.
    """
    named = [_found(header, kind, getattr(columns, kind)) for kind in ("run", "size")]
    arms: list[str | None] = [*columns.arm] or [_found(header, "arm", None)]
    charted = [name for name in _names(header) if WIDE in name]
    return [name for name in (*named, *arms, *charted) if name is not None]


def _json_lines(path: Path) -> list[dict[str, Any]]:
    """The object of every line that is not empty; the last needs no end of line."""
    objects = []
    for at, line in enumerate(read_bytes(path).splitlines(), 1):
        if not line.strip():
            continue
        place = f"{path}: line {at}"
        value = parsed(json.loads, line, place)
        if not isinstance(value, dict):
            raise ValueError(f"{place} must hold an object, got {shown(value)}")
        objects.append(value)
    return objects


def _json_list(path: Path) -> list[dict[str, Any]]:
    """The objects of a file that holds one list of them, as pandas writes records."""
    content = read_bytes(path)
    form = "a list with an object for each row"
    try:
        listed = parsed(json.loads, content, str(path))
    except ValueError as error:
        raise ValueError(f"{error}; write {form}, or JSON lines as .jsonl") from None
    if not isinstance(listed, list):
        raise ValueError(
            f"{path}: must hold {form}, got {shown(listed)}; write that, or JSON lines as .jsonl"
        )
    for at, value in enumerate(listed, 1):
        if not isinstance(value, dict):
            raise ValueError(f"{path}: row {at} must be an object, got {shown(value)}")
    return listed


def _long(path: Path, table: "DataFrame", columns: Columns) -> "DataFrame":
    """A table of one column a run as one row for each run and step; others as they are."""
    wide = [str(name) for name in table.columns if WIDE in str(name)]
    runs = [name for name in wide if not name.endswith(WIDE_BOUNDS)]
    if not runs or _found(table, "value", columns.value):
        return table
    metric = _wide_metric(path, runs, columns.value)
    end = f"{WIDE}{metric}"
    kept = [name for name in runs if name.endswith(end)]
    step = _column(path, table, "step", columns.step, needed=False)
    names = [step] if step else []
    melted = table.melt(id_vars=names, value_vars=kept, var_name="run", value_name=metric)
    melted["run"] = melted["run"].str.removesuffix(end)
    return _logged(path, melted, metric)


def _logged(path: Path, melted: "DataFrame", metric: str) -> "DataFrame":
    """The rows of a chart at which runs have logged, with numbers in the column of the metric.

    The first row of a run that logged nothing stays too, so that the run is not lost.
    """
    is_logged = melted[metric].notna() & ~melted[metric].isin(EMPTY)
    has_logged = is_logged.groupby(melted["run"]).transform("any")
    is_first = ~melted["run"].duplicated()
    kept = melted[is_logged | (is_first & ~has_logged)]
    values = []
    for name, cell in zip(kept["run"], kept[metric], strict=True):
        values.append(_number(cell, f"{path}: {name}{WIDE}{metric}", missing=math.nan))
    return kept.assign(**{metric: values})


def _wide_metric(path: Path, runs: Sequence[str], given: str | None) -> str:
    """The metric to read from columns "RUN - METRIC": the one given, else the only one."""
    metrics = sorted({name.rpartition(WIDE)[2] for name in runs})
    if given is None:
        if len(metrics) > 1:
            raise ValueError(
                f"{path}: value must be one of its metrics, got none; {nearest('', metrics)}"
            )
        return metrics[0]
    if not any(name.endswith(f"{WIDE}{given}") for name in runs):
        raise ValueError(
            f"{path}: value must be one of its metrics, got {given!r}; {nearest(given, metrics)}"
        )
    return given


def _rows_of(path: Path, table: "DataFrame", columns: Columns) -> list[Row]:
    """The rows of a table with a column for each thing that a row holds."""
    named = _arms_and_seeds(path, table, columns)
    has_seeds = any(seed is not None for _, seed in named)
    value = _value_column(path, table, columns, has_seeds)
    step = _column(path, table, "step", columns.step, needed=False)
    size = _column(path, table, "size", columns.size, needed=False)
    rows = []
    for at, (arm, seed) in enumerate(named):
        place = f"{path}: row {at + 1}"
        found = _number(table[value].iloc[at], f"{place}: {value}", missing=math.nan)
        if math.isfinite(found) and abs(found) > LARGEST_VALUE:
            raise ValueError(
                f"{place}: {value} must lie between -{LARGEST_VALUE:g} and {LARGEST_VALUE:g}, got"
                f" {found:g}"
            )
        own_step = None
        if step:
            own_step = _number(table[step].iloc[at], f"{place}: {step}", missing=None)
        own_size = str(table[size].iloc[at]) if size else ""
        rows.append(Row(arm, seed, found, own_step, own_size))
    twice = _repeated(rows)
    if twice is not None:
        free = ["--arm"]
        if rows[twice[0]].seed is None:
            free.append("--seed")
        if step is None:
            free.append("--step")
        if size is None:
            free.append("--size")
        hint = _way_out(table, twice, value, free)
        raise ValueError(f"{path}: {_two_values(rows[twice[0]])}; {hint}")
    return rows


def _way_out(table: "DataFrame", twice: tuple[int, int], value: str, free: Sequence[str]) -> str:
    """What to do about two rows of one run at one step.

    twice  the places of the rows
    value  the column of the values
    free   options that can name a column: no other column was found by them, or they take several

    A column in which they differ tells them apart if both of its cells recur, as names of metrics
    do; of columns of measurements, such as a second loss, hardly any does.
    """
    differing = []
    telling = []
    has_numbers = False
    for name in table.columns:
        cells = [str(cell) for cell in table[name]]  # as words, also empty cells are the same
        pair = [cells[at] for at in twice]
        if pair[0] == pair[1]:
            continue
        differing.append(str(name))
        recurs = all(cells.count(cell) > 1 for cell in pair)
        if recurs and name != value:
            telling.append(f"{name} ({pair[0]}, {pair[1]})")
            has_numbers = has_numbers or table[name].dtype.kind in "iuf"
    if telling:
        words = [name for name in free if has_numbers or name not in ("--seed", "--step")]
        option = f"name the column with {' or '.join(words)}"
        return f"the rows differ in {' and '.join(telling)}: keep rows of one, or {option}"
    kept = "keep one" if differing else "both rows are the same: keep one"
    return f"{kept}, or name the column of steps with --step" if "--step" in free else kept


def _arms_and_seeds(
    path: Path, table: "DataFrame", columns: Columns
) -> list[tuple[str, int | None]]:
    """The arm and the seed of every row, from columns of their own or from the names of runs."""
    arm_columns = _arm_columns(path, table, columns)
    seed_column = None
    if columns.seed is not None or not _splits_names(table, columns):
        seed_column = _column(path, table, "seed", columns.seed, needed=False)
    seeds: list[int] | None = None
    if seed_column is not None:
        seeds = [_seed(path, at, value) for at, value in enumerate(table[seed_column])]
    if arm_columns:
        _check_filled(path, table, arm_columns)
        parts = table[arm_columns].astype(str)
        arms = [", ".join(row) for row in parts.itertuples(index=False)]
        if seeds is None:
            return [(arm, None) for arm in arms]
        return list(zip(arms, seeds, strict=True))
    run_column = _column(path, table, "run", columns.run, needed=False)
    if run_column is None:
        raise ValueError(
            f"{path}: must have a column with the arm of a run, got none; give --arm COLUMN, or"
            f" --run COLUMN with names such as long/seed-3; {nearest('arm', _names(table))};"
            " where each arm has a column of its own, write one row for each run"
        )
    _check_filled(path, table, [run_column])
    names = [str(name) for name in table[run_column]]
    if seeds is None:
        return [split_name(name, columns.pattern) for name in names]
    return list(zip(_without_seeds(names, seeds, columns.pattern), seeds, strict=True))


def _check_filled(path: Path, table: "DataFrame", names: Sequence[str]) -> None:
    """Raise ValueError for the first empty cell in columns that name arms."""
    for name in names:
        cells = table[name]
        empty = (cells.isna() | (cells == "")).to_numpy()
        if empty.any():
            row = int(empty.argmax()) + 1
            raise ValueError(f"{path}: row {row}: {name} must name an arm, got nothing")


def _without_seeds(names: list[str], seeds: list[int], pattern: str) -> list[str]:
    """The arms in names of runs that all repeat their seeds; other names as they are."""
    arms = []
    for name, seed in zip(names, seeds, strict=True):
        try:
            arm, named = split_name(name, pattern)
        except ValueError:
            return names
        if named != seed:
            return names
        arms.append(arm)
    return arms


def _arm_columns(path: Path, table: "DataFrame", columns: Columns) -> list[str]:
    """The columns whose values together name an arm.

    None where there are none, and where arms are to be read from names of runs.
    """
    if columns.arm:
        return [str(_column(path, table, "arm", name)) for name in columns.arm]
    if columns.run is not None or _splits_names(table, columns):
        return []
    known = _column(path, table, "arm", None, needed=False)
    return [known] if known else []


def _splits_names(table: "DataFrame", columns: Columns) -> bool:
    """True where a pattern is given for the names of runs, and a column holds such names."""
    is_given = columns.pattern != PATTERN and not columns.arm
    return is_given and _found(table, "run", columns.run) is not None


def _value_column(path: Path, table: "DataFrame", columns: Columns, has_seeds: bool) -> str:
    """The column of the values: the one named, or the only one with numbers that is not taken.

    Where rows have no seeds, each of several such columns may be a seed.
    """
    found = _column(path, table, "value", columns.value, needed=columns.value is not None)
    if found:
        return found
    taken = {columns.seed, columns.run, columns.step, columns.size, *columns.arm}
    taken |= {name for name in _names(table) if name.lower() in NO_VALUES}
    filled = table.dropna(axis="columns", how="all")  # pandas takes empty columns for numbers
    numeric = [name for name in filled.select_dtypes("number").columns if name not in taken]
    if len(numeric) == 1:
        return str(numeric[0])
    listed = ", ".join(map(str, numeric[:12])) or "none"
    hint = ""
    if numeric and not has_seeds:
        hint = "; where each seed has a column of its own, write one row for each run"
    raise ValueError(
        f"{path}: must have a column 'value', got none; name the one to compare with --value;"
        f" with numbers: {listed}{hint}"
    )


def split_name(name: str, pattern: str = PATTERN) -> tuple[str, int]:
    """The arm and the seed in the name of a run.

    >>> split_name("log-spaced/seed-3"), split_name("muon_s12"), split_name("adam_lr3e-4-seed7")
    (('log-spaced', 3), ('muon', 12), ('adam_lr3e-4', 7))
    """
    try:
        match = re.fullmatch(pattern, name)
        found = (match["arm"], int(match["seed"])) if match else None
    except (re.error, IndexError, ValueError, TypeError) as error:
        raise ValueError(
            f"pattern must be a regular expression with the groups arm and seed, got {pattern!r}:"
            f" {error}"
        ) from None
    if not found or not found[0]:
        raise ValueError(
            f"run must name an arm and a seed, as long/seed-3 does, got {name!r}; give --pattern"
        )
    return found


def _rows_of_events(folder: Path, columns: Columns) -> list[Row]:
    """The rows of every run below a folder that TensorBoard's writer left; a folder is a run."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = {file.parent for file in folder.rglob(EVENTS)}
    found = {run for run in found if not _is_of_a_search(run, folder)}
    runs = sorted(run for run in found if not _is_mean(run, found))
    if not runs:
        raise ValueError(f"{folder}: must hold files of TensorBoard, {EVENTS}, got none below it")
    rows = []
    for run in runs:
        events = EventAccumulator(str(run), size_guidance={"scalars": 0})
        events.Reload()
        tags = events.Tags()["scalars"]
        if not tags:
            rows += _without_values(str(run.relative_to(folder)), columns.pattern)
            continue
        only = tags[0] if len(tags) == 1 else ""
        tag = only if columns.value is None else columns.value
        if tag not in tags:
            raise ValueError(
                f"{run}: value must be one of its tags, got {tag!r}; {nearest(tag, tags)}"
            )
        arm, seed = split_name(str(run.relative_to(folder)), columns.pattern)
        rows += [Row(arm, seed, one.value, one.step) for one in events.Scalars(tag)]
    return rows


def _without_values(name: str, pattern: str) -> list[Row]:
    """The row of a run that logged no scalar; none for other folders, whose names tell no run."""
    try:
        arm, seed = split_name(name, pattern)
    except ValueError:
        return []
    return [Row(arm, seed, math.nan)]


def _is_of_a_search(run: Path, folder: Path) -> bool:
    """True for tuning/ARM/seed-K, of a study of plkernel that searched for learning rates."""
    search = folder / TUNING
    return run.is_relative_to(search) and (search / SPEC).exists()


def _is_mean(run: Path, found: Collection[Path]) -> bool:
    """True for ARM/mean of a study of plkernel, the mean curve of the runs ARM/seed-K beside it."""
    if run.name != MEAN:
        return False
    return any(one.parent == run.parent and one.name.startswith("seed-") for one in found)


# One column or number


def _names(table: "DataFrame") -> list[str]:
    return [str(name) for name in table.columns]


def _found(table: "DataFrame", kind: str, given: str | None) -> str | None:
    """The column of that kind: the one given, else one with a usual name."""
    if given is not None:
        return given if given in _names(table) else None
    usual = KNOWN[kind]
    by_lower_case = {name.lower(): name for name in _names(table)}
    return next((by_lower_case[name] for name in usual if name in by_lower_case), None)


def _column(
    path: Path, table: "DataFrame", kind: str, given: str | None, needed: bool = True
) -> str | None:
    """The column of that kind; None where it is not `needed` and not there."""
    found = _found(table, kind, given)
    if found is None and (needed or given is not None):
        wanted = kind if given is None else given
        raise ValueError(
            f"{path}: {kind} must be a column of it, got {wanted!r};"
            f" {nearest(wanted, _names(table))}"
        )
    return found


def _number(value: Any, place: str, missing: Any) -> Any:
    """A cell as a number; `missing` for an empty one and for NaN."""
    if value is None or (isinstance(value, str) and value in EMPTY):
        return missing
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{place} must be a number, got {shown(value)}") from None
    return missing if math.isnan(number) else number


def _seed(path: Path, at: int, value: Any) -> int:
    """The seed in the row at place `at`; ValueError unless it is a whole number."""
    if isinstance(value, Integral):  # as a float, large ones would lose their last digits
        return int(value)
    number = _number(value, f"{path}: row {at + 1}: seed", missing=math.nan)
    if not math.isfinite(number) or number != int(number):
        raise ValueError(f"{path}: row {at + 1}: seed must be a whole number, got {value!r}")
    return int(number)


def last_values(rows: Iterable[Row], at: float | None = None) -> tuple[list[Row], float | None]:
    """One row for each run, and the step that it is of: `at`, else the last that all runs have.

    A run whose own last value is not finite has diverged and does not decide the step. Its value
    there is NaN, and so is that of a run that ended before `at`. Rows without seed and step are one
    for each run, whose value at `at` is NaN. Raises ValueError for two rows of one run at one step,
    where runs have no step in common, and for `at` where no row tells a step.
    """
    every = list(rows)
    unseeded = [row for row in every if _is_a_run(row)]
    runs = _rows_by_step([row for row in every if not _is_a_run(row)])
    if at is not None and all(row.step is None for row in every):
        raise ValueError(
            f"at must be left out where rows tell no step, got {at:g}; name the column of steps"
            " with --step"
        )
    if not runs:
        return unseeded, None
    if at is not None:
        unknown = [row._replace(value=math.nan, step=at) for row in unseeded]
        return unknown + _at_step(runs, at), at
    sound = [by_step for by_step in runs.values() if not _has_diverged(by_step)]
    if not sound:
        return unseeded + [_last(by_step) for by_step in runs.values()], None
    common = set(sound[0]).intersection(*sound[1:])
    if not common:
        raise ValueError("rows: the runs have no step in common; give one that they have with --at")
    step = max(common, key=_order)
    return unseeded + _at_step(runs, step), step


def ended_early(rows: Iterable[Row], step: float | None) -> tuple[list[Row], float | None]:
    """The last rows of the runs that end before others go on, and the last step of those.

    None where `step`, the one that runs are compared at, is the last, and where they have none.
    Runs that diverged do not count.
    """
    runs = _rows_by_step([row for row in rows if not _is_a_run(row)])
    ends = [_last(by_step) for by_step in runs.values()]
    sound = [row for row in ends if math.isfinite(row.value) and row.step is not None]
    last = max((row.step for row in sound if row.step is not None), default=None)
    if step is None or last is None or step >= last:
        return [], None
    return [row for row in sound if row.step != last], last


def without_step(rows: Iterable[Row]) -> list[Row]:
    """The rows that tell neither a seed nor a step, where others tell steps; none elsewhere."""
    every = list(rows)
    if all(row.step is None for row in every):
        return []
    return [row for row in every if _is_a_run(row)]


def _order(step: float | None) -> float:
    """A step as a number; a row without one comes first."""
    return -math.inf if step is None else step


def _last(by_step: Steps) -> Row:
    """The last row of a run."""
    return by_step[max(by_step, key=_order)]


def _has_diverged(by_step: Steps) -> bool:
    """True for a run whose last value is not finite."""
    return not math.isfinite(_last(by_step).value)


def _is_a_run(row: Row) -> bool:
    """True where a row is all of its run: it tells neither a seed nor a step."""
    return row.seed is None and row.step is None


def _rows_by_step(rows: Iterable[Row]) -> dict[RunKey, Steps]:
    """The rows of every run by step; ValueError for two of one run at one step."""
    every = list(rows)
    twice = _repeated(every)
    if twice is not None:
        raise ValueError(f"rows: {_two_values(every[twice[0]])}; keep one")
    runs: dict[RunKey, Steps] = {}
    for row in every:
        by_step = runs.setdefault((row.arm, row.seed, row.size), {})
        by_step[row.step] = row
    return runs


def _repeated(rows: Sequence[Row]) -> tuple[int, int] | None:
    """The places of the first two rows of one run at one step; None where there are none."""
    places: dict[Row, int] = {}
    for at, row in enumerate(rows):
        if _is_a_run(row):
            continue
        first = places.setdefault(row._replace(value=0.0), at)
        if first != at:
            return first, at
    return None


def _two_values(row: Row) -> str:
    """What is wrong with a row whose run has another at its step."""
    run = f"arm {row.arm!r}"
    if row.seed is not None:
        run += f" with seed {row.seed}"
    if row.size:
        run += f" ({row.size})"
    place = "" if row.step is None else f" at step {row.step:g}"
    return f"{run} has two values{place}"


def _at_step(runs: Mapping[RunKey, Steps], at: float | None) -> list[Row]:
    """The row of every run at a step; with a value of NaN where a run diverged or ended before it.

    Raises ValueError where none but runs that diverged have a value there, and, naming it, where
    one that goes on has none.
    """
    sound = [by_step for by_step in runs.values() if not _has_diverged(by_step)]
    is_known = any(at in by_step for by_step in sound)
    found = []
    for (arm, seed, _), by_step in runs.items():
        last = _last(by_step)
        has_ended = is_known and _order(last.step) < _order(at)
        if _has_diverged(by_step) or has_ended:
            found.append(last._replace(value=math.nan, step=at))
        elif at in by_step:
            found.append(by_step[at])
        else:
            raise ValueError(
                f"at must be a step of all runs that go so far, got {at:g}, which arm {arm!r} with"
                f" seed {seed} has not"
            )
    return found
