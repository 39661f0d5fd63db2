"""Rows of runs that other software trained: from CSV, JSON, Parquet and TensorBoard.

A row is one value of one run. Where a file names runs rather than arms and seeds, both are read
from the name of the run.
"""

import io
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from plkernel.common.cli import nearest
from plkernel.common.files import MEAN, SPEC, TUNING, check_regular, parsed, read_bytes, shown

if TYPE_CHECKING:
    from pandas import DataFrame, Series

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
CLOCKS = ("_step", "_runtime", "_timestamp")
"""Columns and metrics that wandb adds; they are values only where nothing else is."""
WIDE = " - "
"""Between the name of a run and its metric, in a chart that wandb exports: one column a run."""
WIDE_BOUNDS = ("__MIN", "__MAX")
"""Ends of further columns of such a chart, of the bounds of every point."""
LARGEST_VALUE = 1e100
"""Values of larger size are no measurements, and their squares may not be finite."""
INDEX = "__index_level_"
"""Head of a column of Parquet in which pandas keeps row numbers, which no column of it named."""
SEPARATORS = {"\t": "tabs", ",": "commas", ";": "semicolons", "|": "bars"}
"""What may separate the columns of a text file; only the first two are read."""
PACKED = {
    b"\x1f\x8b": "a file packed by gzip; unpack it with gunzip",
    b"PK\x03\x04": "a ZIP file or a workbook; unpack it, or save its sheet as CSV",
}
"""Files that are no text, by their first bytes, and what to do."""
UTF_16 = (b"\xff\xfe", b"\xfe\xff")
"""First bytes of text in UTF-16."""
EMPTY = ("", "NA", "N/A", "n/a", "#NA", "#N/A", "#N/A N/A", "<NA>", "NULL", "null", "None")
"""Cells that hold no value."""
NAN = ("NaN", "nan", "-NaN", "-nan")
"""Cells of a run that diverged, among those that pandas takes for empty ones."""
MOST_STEPS = 4
"""Steps of a run that an error names at most."""
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


class Table(NamedTuple):
    """The cells of a table, and which of them are empty.

    cells     as pandas reads them: an empty one and NaN are the same
    is_empty  True for empty ones alone; rows and columns are those of `cells`
    """

    cells: "DataFrame"
    is_empty: "DataFrame"


class Scalar(NamedTuple):
    """One value of a tag in TensorBoard's files; `time` is that of writing."""

    step: int
    value: float
    time: float


class Events(NamedTuple):
    """The tags of one folder of TensorBoard, and the scalars of the one that is read.

    name     the folder, relative to the one that is judged
    scalars  empty where the folder lacks the tag, or where it is not known which one is read
    """

    name: Path
    tags: tuple[str, ...]
    scalars: tuple[Scalar, ...]


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

    An empty cell is no value: see `_counted`. Of event folders those that `unmatched` names are
    left out.

    Raises ValueError, naming the file and the columns that there are, where no arm or value is
    found.
    """
    if path.is_dir():
        return _rows_of_events(path, columns)
    check_regular(path)
    table = _table(path, columns)
    if table.cells.empty:
        raise ValueError(f"{path}: must hold a row for each run, got none")
    return _rows_of(path, _long(path, table, columns), columns)


def _table(path: Path, columns: Columns) -> Table:
    """The columns of a file, by its suffix."""
    content = read_bytes(path)
    if path.suffix != ".parquet":
        _check_text(path, content)
    if path.suffix in (".jsonl", ".ndjson"):
        return _of_objects(_json_lines(path, content))
    if path.suffix == ".json":
        return _of_objects(_json_list(path, content))
    separator = "\t" if path.suffix == ".tsv" else ","
    if path.suffix != ".parquet":
        _check_separator(path, content, separator)
    try:
        if path.suffix == ".parquet":
            return _of_parquet(content)
        return _separated(content, separator, columns)
    except (ValueError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"{path}: must be CSV with a header, TSV, JSON, JSON lines or Parquet: {reason}"
        ) from None


def _check_text(path: Path, content: bytes) -> None:
    """Raise ValueError, saying what to do, for files that are packed and for UTF-16."""
    for start, found in PACKED.items():
        if content.startswith(start):
            raise ValueError(f"{path}: must be a file of text, got {found}")
    if content.startswith(UTF_16):
        raise ValueError(f"{path}: must be text in UTF-8, got UTF-16; save it as UTF-8")


def _of_objects(objects: Sequence[dict[str, Any]]) -> Table:
    """A row for each object; an empty cell where one lacks a key or has null there."""
    import pandas

    rows = [_flat(one) for one in objects]
    cells = pandas.DataFrame(rows)
    is_empty = {name: [_is_no_value(row.get(name)) for row in rows] for name in cells.columns}
    return Table(cells, pandas.DataFrame(is_empty))


def _flat(value: Mapping[str, Any]) -> dict[str, Any]:
    """The values of an object, and those of objects in it under names such as val.loss."""
    found: dict[str, Any] = {}
    for name, item in value.items():
        if isinstance(item, dict):
            found |= {f"{name}.{inner}": one for inner, one in _flat(item).items()}
        else:
            found[name] = item
    return found


def _of_parquet(content: bytes) -> Table:
    """The columns of Parquet, also those that pandas keeps as names of rows: its index."""
    import pandas
    import pyarrow
    from pyarrow import parquet

    table = parquet.read_table(pyarrow.BufferReader(content))
    table = table.select([name for name in table.column_names if not name.startswith(INDEX)])
    cells = table.to_pandas(ignore_metadata=True)
    is_empty = {}
    for name in table.column_names:
        is_null = table[name].is_null().to_pylist()
        pairs = zip(is_null, cells[name], strict=True)
        is_empty[name] = [null or _is_no_value(cell) for null, cell in pairs]
    return Table(cells, pandas.DataFrame(is_empty))


def _separated(content: bytes, separator: str, columns: Columns) -> Table:
    """The columns of CSV or TSV; those of `_text_columns` are words, also where all are numbers."""
    import pandas

    form: dict[str, Any] = {
        "sep": separator,
        "skipinitialspace": True,
        "keep_default_na": False,
    }
    header = pandas.read_csv(io.BytesIO(content), **form, nrows=0)
    words = _text_columns(header, columns)
    empty = {name: [*EMPTY, *NAN] for name in header.columns if name not in words}
    cells = pandas.read_csv(
        io.BytesIO(content), **form, dtype=dict.fromkeys(words, str), na_values=empty
    )
    if not isinstance(cells.index, pandas.RangeIndex):  # cells that no name is left for
        raise ValueError(
            "rows must have as many cells as the header has names, got more; name every column, and"
            " end no row with a separator"
        )
    written = pandas.read_csv(io.BytesIO(content), **form, dtype=str)
    return Table(cells, written.isna() | written.isin(EMPTY))


def _check_separator(path: Path, content: bytes, separator: str) -> None:
    """Raise ValueError, saying what to write, where another separator stands in the header."""
    header = content.lstrip().partition(b"\n")[0].decode(errors="replace")
    found = next((one for one in SEPARATORS if one in header), None)
    if found is None or separator in header:
        return
    advice = {"\t": "name the file .tsv", ",": "name the file .csv"}.get(
        found, "write commas, and points in decimals"
    )
    raise ValueError(
        f"{path}: columns must be separated by {SEPARATORS[separator]}, got {SEPARATORS[found]};"
        f" {advice}"
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


def _json_lines(path: Path, content: bytes) -> list[dict[str, Any]]:
    """The object of every line that is not empty; the last needs no end of line."""
    objects = []
    for at, line in enumerate(content.splitlines(), 1):
        if not line.strip():
            continue
        place = f"{path}: line {at}"
        value = parsed(json.loads, line, place)
        if not isinstance(value, dict):
            raise ValueError(f"{place} must hold an object, got {shown(value)}")
        objects.append(value)
    return objects


def _json_list(path: Path, content: bytes) -> list[dict[str, Any]]:
    """The objects of a file that holds one list of them, as pandas writes records."""
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


def _long(path: Path, table: Table, columns: Columns) -> Table:
    """A table of one column a run as one row for each run and step; others as they are."""
    wide = [name for name in _names(table.cells) if WIDE in name]
    runs = [name for name in wide if not name.endswith(WIDE_BOUNDS)]
    if not runs or _found(table.cells, "value", columns.value):
        return table
    metric = _wide_metric(path, runs, columns.value)
    end = f"{WIDE}{metric}"
    step = _column(path, table.cells, "step", columns.step, needed=False)
    form: dict[str, Any] = {
        "id_vars": [step] if step else [],
        "value_vars": [name for name in runs if name.endswith(end)],
        "var_name": "run",
        "value_name": metric,
    }
    melted = table.cells.melt(**form)
    melted["run"] = melted["run"].str.removesuffix(end)
    is_empty = table.is_empty.melt(**form)[metric]
    return _logged(path, melted, is_empty, metric)


def _logged(path: Path, melted: "DataFrame", is_empty: "Series", metric: str) -> Table:
    """The rows of a chart at which runs have logged, with numbers in the column of the metric.

    The first row of a run that logged nothing stays too, so that the run is not lost. No cell
    counts as empty any more: runs of a chart need not have logged at the same steps.
    """
    import pandas

    has_logged = (~is_empty).groupby(melted["run"]).transform("any")
    is_first = ~melted["run"].duplicated()
    kept = melted[~is_empty | (is_first & ~has_logged)]
    values = []
    for name, cell in zip(kept["run"], kept[metric], strict=True):
        values.append(_number(cell, f"{path}: {name}{WIDE}{metric}", missing=math.nan))
    cells = kept.assign(**{metric: values})
    return Table(cells, pandas.DataFrame(False, index=cells.index, columns=cells.columns))


def _wide_metric(path: Path, runs: Sequence[str], given: str | None) -> str:
    """The metric to read from columns "RUN - METRIC": the one given, else the only one."""
    metrics = sorted({name.rpartition(WIDE)[2] for name in runs})
    if given is None:
        metrics = _without_clocks(metrics)
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


def _without_clocks(names: Sequence[str]) -> list[str]:
    """Names of values without those of CLOCKS; these only where no other is there."""
    return [name for name in names if name not in CLOCKS] or list(names)


def _rows_of(path: Path, table: Table, columns: Columns) -> list[Row]:
    """The rows of a table with a column for each thing that a row holds."""
    cells = table.cells
    named = _arms_and_seeds(path, cells, columns)
    has_seeds = any(seed is not None for _, seed in named)
    value = _value_column(path, cells, columns, has_seeds)
    step = _column(path, cells, "step", columns.step, needed=False)
    size = _column(path, cells, "size", columns.size, needed=False)
    every = []
    for at, (arm, seed) in enumerate(named):
        place = f"{path}: row {at + 1}"
        found = _number(cells[value].iloc[at], f"{place}: {value}", missing=math.nan)
        if math.isfinite(found) and abs(found) > LARGEST_VALUE:
            raise ValueError(
                f"{place}: {value} must lie between -{LARGEST_VALUE:g} and {LARGEST_VALUE:g}, got"
                f" {found:g}"
            )
        own_step = None
        if step:
            own_step = _number(cells[step].iloc[at], f"{place}: {step}", missing=None)
        own_size = str(cells[size].iloc[at]) if size else ""
        every.append(Row(arm, seed, found, own_step, own_size))
    places = _counted(every, list(table.is_empty[value]))
    rows = [every[at] for at in places]
    twice = _repeated(rows)
    if twice is not None:
        free = ["--arm"]
        if rows[twice[0]].seed is None:
            free.append("--seed")
        if step is None:
            free.append("--step")
        if size is None:
            free.append("--size")
        hint = _way_out(cells, (places[twice[0]], places[twice[1]]), value, free)
        raise ValueError(f"{path}: {_two_values(rows[twice[0]])}; {hint}")
    return rows


def _counted(rows: Sequence[Row], is_empty: Sequence[bool]) -> list[int]:
    """The places of the rows that count, in order; those with an empty cell for a value mostly not.

    A logger writes a row for training and one for evaluation, each with the value of the other
    empty. Such a row is passed over where its run has a value at that step in another row, and
    where no run has one at that step. Elsewhere the value is missing, once for a run and step:
    others have logged there, and pandas writes NaN as an empty cell. A run without any other row
    keeps its last, so that it is not lost.
    """
    pairs = list(zip(rows, is_empty, strict=True))
    steps = {row.step for row, empty in pairs if not empty}
    taken = {_at_its_step(row) for row, empty in pairs if not empty}
    counted = set()
    passed: dict[RunKey, int] = {}
    for at, (row, empty) in enumerate(pairs):
        place = _at_its_step(row)
        if not empty:
            counted.add(at)
        elif row.step in steps and (_is_a_run(row) or place not in taken):
            taken.add(place)
            counted.add(at)
        else:
            last = passed.setdefault(_run_key(row), at)
            if _order(row.step) > _order(rows[last].step):
                passed[_run_key(row)] = at
    kept = {_run_key(rows[at]) for at in counted}
    counted |= {at for run, at in passed.items() if run not in kept}
    return sorted(counted)


def _run_key(row: Row) -> RunKey:
    """What rows of one run share."""
    return row.arm, row.seed, row.size


def _at_its_step(row: Row) -> Row:
    """What rows of one run at one step share."""
    return row._replace(value=0.0)


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
    numbers = [name for name in _names(filled.select_dtypes("number")) if name not in taken]
    numeric = _without_clocks(numbers)
    if len(numeric) == 1:
        return numeric[0]
    listed = ", ".join(numeric[:12]) or "none"
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
    found = _split(name, pattern)
    if found is None:
        raise ValueError(
            f"run must name an arm and a seed, as long/seed-3 does, got {name!r}; give --pattern"
        )
    return found


def _split(name: str, pattern: str) -> tuple[str, int] | None:
    """The same; None where the pattern does not match, or leaves nothing for the arm."""
    try:
        match = re.fullmatch(pattern, name)
        found = (match["arm"], int(match["seed"])) if match else None
    except (re.error, IndexError, ValueError, TypeError) as error:
        raise ValueError(
            f"pattern must be a regular expression with the groups arm and seed, got {pattern!r}:"
            f" {error}"
        ) from None
    return found if found and found[0] else None


# Folders of TensorBoard


def _rows_of_events(folder: Path, columns: Columns) -> list[Row]:
    """The rows of every run below a folder that TensorBoard's writer left; a folder is a run."""
    names = _event_folders(folder)
    if not names:
        raise ValueError(f"{folder}: must hold files of TensorBoard, {EVENTS}, got none below it")
    left_out = unmatched(folder, columns)
    names = [name for name in names if str(name) not in left_out]
    if not names:
        raise ValueError(
            f"{folder}: pattern must match the name of a folder of events, got"
            f" {columns.pattern!r}; such a name is {left_out[0]!r}"
        )
    every = [_events(folder, name, columns.value) for name in names]
    runs = {name for name in names if _split(str(name), columns.pattern)}
    tag = _tag(folder, every, runs, columns.value)
    rows: dict[Path, list[Row]] = {}
    for one in every:
        rows[one.name] = _rows_of_run(folder, one, runs, tag, columns)
    _check_folders_apart(folder, rows)
    return [row for of_run in rows.values() for row in of_run]


def _event_folders(folder: Path) -> list[Path]:
    """The folders of runs below one, relative to it, in order."""
    found = {file.parent for file in folder.rglob(EVENTS)}
    found = {run for run in found if not _is_of_a_search(run, folder)}
    return sorted(run.relative_to(folder) for run in found if not _is_mean(run, found))


def unmatched(path: Path, columns: Columns) -> list[str]:
    """The event folders that a pattern of somebody's own does not match: they are left out.

    The usual pattern leaves out none, and files hold no folders.
    """
    if columns.pattern == PATTERN or not path.is_dir():
        return []
    names = [str(name) for name in _event_folders(path)]
    return [name for name in names if _split(name, columns.pattern) is None]


def _events(folder: Path, name: Path, value: str | None) -> Events:
    """What one folder holds; of the scalars those of the tag `value`, or of its only tag."""
    scalars = _scalars(folder / name)
    tags = tuple(scalars)
    only = tags[0] if len(tags) == 1 else ""
    return Events(name, tags, tuple(scalars.get(only if value is None else value, ())))


def _scalars(path: Path) -> dict[str, list[Scalar]]:
    """The scalars of an event folder, or of one of its files, by tag.

    Those that TensorFlow 2 and Keras write are tensors, of one number each.
    """
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    events = EventAccumulator(str(path), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    tags = events.Tags()
    found: dict[str, list[Scalar]] = {}
    for tag in tags["scalars"]:
        found[tag] = [Scalar(one.step, one.value, one.wall_time) for one in events.Scalars(tag)]
    try:
        of_plugin = events.PluginTagToContent("scalars")
    except KeyError:  # no tag is of that plugin
        return found
    for tag in tags["tensors"]:
        if tag not in of_plugin:
            continue
        for one in events.Tensors(tag):
            array = make_ndarray(one.tensor_proto)
            if array.size == 1 and array.dtype.kind in "iuf":
                scalar = Scalar(one.step, float(array.item()), one.wall_time)
                found.setdefault(tag, []).append(scalar)
    return found


def _tag(folder: Path, every: Sequence[Events], runs: Collection[Path], given: str | None) -> str:
    """The tag to read: the one given, else the only one of all runs that lie in no other."""
    tags = sorted({tag for one in every for tag in one.tags})
    if not tags:
        raise ValueError(f"{folder}: must hold scalars of runs, got files of TensorBoard without")
    if given is None:
        outer = [one for one in every if not _is_within(one.name, runs)]
        tags = sorted({tag for one in outer for tag in one.tags}) or tags
        if len(tags) == 1:
            return tags[0]
    elif given in tags:
        return given
    got = "none" if given is None else repr(given)
    raise ValueError(
        f"{folder}: value must be one of its tags, got {got}; {nearest(given or '', tags)}"
    )


def _is_within(name: Path, runs: Collection[Path]) -> bool:
    """True for a folder in that of another run, such as that of the writer's `add_hparams`."""
    return any(parent in runs for parent in name.parents)


def _rows_of_run(
    folder: Path, one: Events, runs: Collection[Path], tag: str, columns: Columns
) -> list[Row]:
    """The rows of one folder; none of one within that of another run that lacks the tag.

    A run that logged no scalar has one row, without a value. ValueError for a run that logged
    others, and for a folder whose name tells no run.
    """
    path = folder / one.name
    parts = _split(str(one.name), columns.pattern)
    if tag not in one.tags:
        if _is_within(one.name, runs):
            return []
        if one.tags:
            raise ValueError(
                f"{path}: value must be one of its tags, got {tag!r}; {nearest(tag, one.tags)}"
            )
        return [] if parts is None else [Row(*parts, math.nan)]
    if parts is None:
        raise ValueError(
            f"{folder}: run must name an arm and a seed, as long/seed-3 does, got"
            f" {str(one.name)!r}; give --pattern: folders that it does not match are left out"
        )
    return [Row(*parts, scalar.value, scalar.step) for scalar in _latest(path, tag, one.scalars)]


def _latest(path: Path, tag: str, scalars: Sequence[Scalar]) -> list[Scalar]:
    """One scalar for each step, the one that was written last: a resumed run writes steps again.

    Only another file may hold another: ValueError for two in one file.
    """
    by_step = {}
    for scalar in sorted(scalars, key=lambda one: one.time):
        by_step[scalar.step] = scalar
    if len(by_step) < len(scalars):
        for file in sorted(path.glob(EVENTS)):
            _check_once(file, tag)
    return list(by_step.values())


def _check_once(file: Path, tag: str) -> None:
    """Raise ValueError where one file of events holds two values of a tag at one step."""
    counts = Counter(scalar.step for scalar in _scalars(file).get(tag, ()))
    twice = [step for step, count in counts.items() if count > 1]
    if twice:
        raise ValueError(
            f"{file}: tag {tag!r} must have one value at a step, got {counts[twice[0]]} at step"
            f" {twice[0]}; give --value of another tag, or log it once at a step"
        )


def _check_folders_apart(folder: Path, rows: Mapping[Path, Sequence[Row]]) -> None:
    """Raise ValueError where two folders are one run, by the pattern, and share a step."""
    origins: dict[Row, Path] = {}
    for name, of_run in rows.items():
        for row in of_run:
            first = origins.setdefault(_at_its_step(row), name)
            if first != name:
                raise ValueError(
                    f"{folder}: {_two_values(row)}, in {first} and {name}; give a --pattern that"
                    " matches one of them, or that tells them apart"
                )


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
            f" {_nearest_column(wanted, _names(table))}"
        )
    return found


def _nearest_column(wanted: str, names: list[str]) -> str:
    """A hint that names a column: one that ends in the word, as a report has, or the nearest.

    Of val_bpb these have the best of a run too, which no report compares: the final one is meant.
    """
    ends = [name for name in names if wanted and name.endswith(wanted)]
    final = [name for name in ends if name.endswith(f"final_{wanted}")]
    if len(final or ends) == 1:
        return f"did you mean {(final or ends)[0]!r}?"
    return nearest(wanted, names)


def _is_no_value(cell: Any) -> bool:
    """True for a cell that is empty, as written; not for NaN."""
    return cell is None or (isinstance(cell, str) and cell in EMPTY)


def _number(value: Any, place: str, missing: Any) -> Any:
    """A cell as a number; `missing` for an empty one and for NaN."""
    if _is_no_value(value):
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
        raise ValueError(_no_common_step(sound))
    step = max(common, key=_order)
    return unseeded + _at_step(runs, step), step


def _no_common_step(runs: Sequence[Steps]) -> str:
    """What is wrong with runs that have no step in common: two of them, of two arms if possible."""
    pairs = list(itertools.combinations(runs, 2))
    apart = [(one, other) for one, other in pairs if not set(one) & set(other)]
    of_two_arms = [(one, other) for one, other in apart if _last(one).arm != _last(other).arm]
    first, second = (of_two_arms or apart or pairs)[0]
    told = " and ".join(_steps_text(one) for one in (first, second))
    return (
        f"rows: runs must have a step in common, got none that all have: {told}; to compare the"
        " last values, write a table with the last row of each run and without a column of steps"
    )


def _steps_text(by_step: Steps) -> str:
    """A run and the steps that it has, the middle of many left out."""
    steps = [f"{step:g}" for step in by_step if step is not None]
    if len(steps) > MOST_STEPS:
        steps = [*steps[: MOST_STEPS - 1], "...", steps[-1]]
    listed = ", ".join(steps) or "none"
    return f"{_run_text(_last(by_step))} has {listed}"


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
        by_step = runs.setdefault(_run_key(row), {})
        by_step[row.step] = row
    return runs


def _repeated(rows: Sequence[Row]) -> tuple[int, int] | None:
    """The places of the first two rows of one run at one step; None where there are none."""
    places: dict[Row, int] = {}
    for at, row in enumerate(rows):
        if _is_a_run(row):
            continue
        first = places.setdefault(_at_its_step(row), at)
        if first != at:
            return first, at
    return None


def _two_values(row: Row) -> str:
    """What is wrong with a row whose run has another at its step."""
    place = "" if row.step is None else f" at step {row.step:g}"
    return f"{_run_text(row)} has two values{place}"


def _run_text(row: Row) -> str:
    """The run of a row, for a sentence."""
    run = f"arm {row.arm!r}"
    if row.seed is not None:
        run += f" with seed {row.seed}"
    return f"{run} ({row.size})" if row.size else run


def _at_step(runs: Mapping[RunKey, Steps], at: float | None) -> list[Row]:
    """The row of every run at a step; with a value of NaN where a run diverged or ended before it.

    Raises ValueError where none but runs that diverged have a value there, and, naming it, where
    one that goes on has none.
    """
    sound = [by_step for by_step in runs.values() if not _has_diverged(by_step)]
    is_known = any(at in by_step for by_step in sound)
    found = []
    for by_step in runs.values():
        last = _last(by_step)
        has_ended = is_known and _order(last.step) < _order(at)
        if _has_diverged(by_step) or has_ended:
            found.append(last._replace(value=math.nan, step=at))
        elif at in by_step:
            found.append(by_step[at])
        else:
            raise ValueError(
                f"at must be a step of all runs that go so far, got {at:g}, which"
                f" {_run_text(last)} has not"
            )
    return found
