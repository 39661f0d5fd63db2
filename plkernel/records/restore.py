"""The ended runs of a record, put back into the folder of a study: it goes on where another machine has left off."""

import json
import re
from pathlib import Path
from typing import Any

from plkernel.common.files import atomic_write, read_lines, refuse_links_of_run, save_json, shown
from plkernel.records.layout import CONFIG, ENVIRONMENT, METRICS, RESULT, ROWS, SPEC, TUNING, run_folder
from plkernel.records.schema import RowFile, points_of, validated

FOLDER = r"[A-Za-z0-9][A-Za-z0-9._+-]*"
"""An arm's name, which a record from elsewhere might make a way out of the study's folder."""


def restore(record: Path, study: Path) -> int:
    """Write the folder of every run that `record` tells of and `study` has not; how many those were.

    They have what a report needs, and neither a checkpoint nor curves for TensorBoard. Raises ValueError where there is
    no record, or a file of it is damaged.
    """
    path = record / ROWS
    if not path.is_file():
        raise ValueError(f"record: {record} holds no {ROWS}, give a folder that plkernel.report --record wrote")
    rows = [validated(path, RowFile, row) for row in read_lines(path)]
    for row in rows:
        if not re.fullmatch(FOLDER, row["arm"]) or row["seed"] < 0:
            raise ValueError(f"{path}: {shown(row['arm'])} and {row['seed']} are no arm and seed")
    missing = [row for row in rows if not (run_folder(study, row["arm"], row["seed"]) / CONFIG).exists()]
    for row in missing:
        _write(run_folder(study, row["arm"], row["seed"]), row)
    if (record / TUNING / SPEC).exists():
        return len(missing) + restore(record / TUNING, study / TUNING)
    return len(missing)


def _write(folder: Path, row: dict[str, Any]) -> None:
    """The files of one run, its result last: without that it counts as unfinished."""
    refuse_links_of_run(folder)
    folder.mkdir(parents=True, exist_ok=True)
    save_json(folder / CONFIG, {"study": row.get("study"), "arm": row["arm"], "seed": row["seed"], **row["config"]})
    save_json(folder / ENVIRONMENT, row["environment"])
    points = points_of(row)
    for place, state in ((0, row.get("first")), (-1, row.get("last"))):
        if points and state:
            points[place] |= state
    atomic_write(folder / METRICS, "".join(f"{json.dumps(point)}\n" for point in points))
    save_json(folder / RESULT, {**(row.get("result") or {}), "status": row["status"], "error": row.get("error")})
