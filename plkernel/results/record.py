"""Records: a study in a small folder, enough for its report and for a study to go on from."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic_core import from_json, to_json

from plkernel.common import files
from plkernel.common.files import (
    CHECKPOINT,
    CONFIG,
    ENVIRONMENT,
    FINISHED,
    MEASUREMENT,
    METRICS,
    REFERENCES,
    REGISTERED,
    RESULT,
    ROWS,
    SPEC,
    TUNING,
)
from plkernel.results.saved import EvaluationRow, RunResult
from plkernel.results.study import Study, StudyRun, read_study, run_of, with_evaluations

KEPT = ("arm", "seed", "status", "error", "config", "environment")
"""Fields that a record keeps of every ended run, as `StudyRun` names them."""


def record_row(study: Study, run: StudyRun) -> dict[str, Any]:
    """One ended run as a row to keep: configuration, environment, result, curve and states."""
    row: dict[str, Any] = {"study": study.name}
    for name in KEPT:
        row[name] = getattr(run, name)
    if run.result is None:
        return row
    curve = {
        name: [getattr(evaluation, name) for evaluation in run.evaluations]
        for name in EvaluationRow.model_fields
    }
    if all(value is None for value in curve["excess_bpb"]):
        del curve["excess_bpb"]
    unknown = dict.fromkeys(RunResult.model_fields)
    row["result"] = unknown | run.result.model_dump(exclude_unset=True)
    row["curve"] = curve
    row["first"] = run.first
    row["last"] = run.last
    return row


def save_record(study: Study, out: Path) -> None:
    """Write a record of a study, and of its search for learning rates, to the folder `out`.

    `read_study` reads it. Raises ValueError when `out` is the study itself or holds another one.
    """
    _check_place(study, out)
    files.save_json(out / SPEC, study.spec)
    lines = []
    for run in study.ended:
        finite = to_json(record_row(study, run), inf_nan_mode="null")
        lines.append(f"{json.dumps(from_json(finite))}\n")
    files.atomic_write(out / ROWS, "".join(lines))
    for name in (REFERENCES, REGISTERED, MEASUREMENT):
        if (study.folder / name).exists():
            files.save_json(out / name, files.load_json(study.folder / name))
    if (study.folder / TUNING / SPEC).exists():
        save_record(read_study(study.folder / TUNING), out / TUNING)


def _check_place(study: Study, out: Path) -> None:
    """Raise ValueError unless `out` is empty or a record of the same study."""
    if out.resolve() == study.folder.resolve():
        raise ValueError(f"record must be another folder than the study's, got {out}")
    spec = out / SPEC
    if not spec.exists():
        return
    same_name = files.load_object(spec).get("name") == study.name
    if not (out / ROWS).exists() or not same_name:
        raise ValueError(
            f"record must be an empty folder or a record of the same study, got {out}, which holds"
            " another study; name another folder"
        )


def restore(record: Path, study: Path) -> int:
    """Write the folder of every run in `record` that `study` lacks, and return how many.

    A study goes on from there; the runs have no checkpoint and no curves for TensorBoard. Raises
    ValueError where a row is damaged or there is none.
    """
    path = record / ROWS
    if not path.is_file():
        raise ValueError(
            f"record must be a folder with a file {ROWS}, got {record}; plkernel.report --record"
            " writes one"
        )
    rows = [with_evaluations(row) for row in files.read_lines(path, whole=True)]
    missing = [row for row in rows if not _begun(study, _checked(path, row))]
    for name in (REFERENCES, REGISTERED, MEASUREMENT):
        if (record / name).exists() and not (study / name).exists():
            files.save_json(study / name, files.load_json(record / name))
    for row in missing:
        _write_run(study, row)
    restored = len(missing)
    if (record / TUNING / SPEC).exists():
        restored += restore(record / TUNING, study / TUNING)
    return restored


def _checked(path: Path, row: Mapping[str, Any]) -> StudyRun:
    """The run of a row whose folder lies inside the study; ValueError otherwise."""
    run = run_of(path, row)
    plain = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]*", run.arm)  # others might lead elsewhere
    if not plain or run.seed < 0:
        raise ValueError(
            f"{path}: arm must be a plain name and seed 0 or more, got {files.shown(run.arm)} and"
            f" {run.seed}"
        )
    if run.status == FINISHED and not run.evaluations:
        raise ValueError(f"{path}: must hold the curve of a finished run, got none of {run.name}")
    return run


def _begun(study: Path, run: StudyRun) -> bool:
    """True if the study has a folder of the run, from which it can go on."""
    folder = files.run_folder(study, run.arm, run.seed)
    ended = (folder / RESULT).exists()
    return (folder / CONFIG).exists() and (ended or (folder / CHECKPOINT).exists())


def _write_run(study: Path, row: Mapping[str, Any]) -> None:
    """Write the folder of a run as training does; its result last, which marks it as ended."""
    folder = files.run_folder(study, row["arm"], row["seed"])
    files.refuse_links(folder.parent, folder, *folder.glob("*"))
    folder.mkdir(parents=True, exist_ok=True)
    evaluations = row["evaluations"]
    if evaluations:
        evaluations[0].update(row.get("first") or {})
        evaluations[-1].update(row.get("last") or {})
    lines = [f"{json.dumps(evaluation)}\n" for evaluation in evaluations]
    files.atomic_write(folder / METRICS, "".join(lines))
    names = {name: row.get(name) for name in ("study", "arm", "seed")}
    files.save_json(folder / CONFIG, names | row["config"])
    files.save_json(folder / ENVIRONMENT, row["environment"])
    end = {name: row.get(name) for name in ("status", "error")}
    files.save_json(folder / RESULT, (row.get("result") or {}) | end)
