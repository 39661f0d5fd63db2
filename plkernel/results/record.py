"""Records: a study in a small folder, enough for its report and for a study to go on from."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic_core import from_json, to_json

from plkernel.common import files
from plkernel.common.files import (
    CHECKPOINT,
    CONFIG,
    ENVIRONMENT,
    FINISHED,
    LOCK,
    MEASUREMENT,
    METRICS,
    REFERENCES,
    REGISTERED,
    RESULT,
    ROWS,
    SPEC,
    TUNING,
)
from plkernel.common.locks import held
from plkernel.config.factors import RATE
from plkernel.config.spec import with_defaults
from plkernel.results.registration import searched_arms
from plkernel.results.saved import EvaluationRow, RunResult, reference_entries
from plkernel.results.study import (
    Place,
    Study,
    StudyRun,
    read_study,
    run_of,
    runs_in_rows,
    with_evaluations,
)
from plkernel.results.wording import first_few

WHOLE = (REFERENCES, REGISTERED, MEASUREMENT)
"""Files that belong to the whole study."""
SHARED = ("corpus", "model", "train")
"""Sections of a spec that every arm starts from."""
PATIENCE = 60.0
"""Seconds to wait for another process that writes the same record."""
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


def save_record(study: Study, out: Path) -> list[str]:
    """Write a record of a study, and of its search for learning rates, to the folder `out`.

    Rows that the record has of runs that have not ended in the study stay; the names of these runs
    are returned. `read_study` reads the record. Raises ValueError, before anything is written,
    where `out` is the study itself or holds another one, runs of other settings, another
    registration, or damage, and where another process keeps writing to it.
    """
    if out.resolve() == study.folder.resolve():
        raise ValueError(f"record must be another folder than the study's, got {out}")
    parts = [(study, out)]
    if (study.folder / TUNING / SPEC).exists():
        parts.append((read_study(study.folder / TUNING), out / TUNING))
    for part, place in parts:
        # Again under the lock, which a command that trains another study there would hold.
        _check_place(part, place)
    out.mkdir(parents=True, exist_ok=True)
    names = []
    # No file of the lock stays: a record is there to be committed.
    with held(out, f"record {out}", PATIENCE, keep=False):
        kept = [_kept_rows(part, place) for part, place in parts]
        for (part, place), rows in zip(parts, kept, strict=True):
            _write_record(part, place, rows)
            names += [f"{row['arm']}/seed-{row['seed']}" for row in rows]
    return names


def _write_record(study: Study, out: Path, kept: Sequence[Mapping[str, Any]]) -> None:
    """Write the rows, the spec and what belongs to the whole study; `kept` are its last rows.

    A spec without rows would be that of a study, which no record may replace: it follows the rows,
    so that a record that was cut short can be written again.
    """
    lines = []
    for run in study.ended:
        finite = to_json(record_row(study, run), inf_nan_mode="null")
        lines.append(f"{json.dumps(from_json(finite))}\n")
    lines += [f"{json.dumps(row)}\n" for row in kept]
    files.atomic_write(out / ROWS, "".join(lines))
    files.save_json(out / SPEC, study.spec)
    for name in (REGISTERED, MEASUREMENT):
        if (study.folder / name).exists():
            files.save_json(out / name, files.load_json(study.folder / name))
    _write_references(study.folder / REFERENCES, out / REFERENCES)


def _write_references(own: Path, recorded: Path) -> None:
    """Write the references of a study to its record, where those of other corpora stay."""
    entries = reference_entries(own)
    if not entries:
        return
    corpora = [entry["corpus"] for entry in entries]
    others = [entry for entry in reference_entries(recorded) if entry["corpus"] not in corpora]
    files.save_json(recorded, {"references": [*entries, *others]})


def _kept_rows(study: Study, out: Path) -> list[dict[str, Any]]:
    """The rows that a record in `out` has of runs that have not ended in the study.

    Raises ValueError unless `out` is empty or a record of the same study, at the same settings.
    """
    _check_place(study, out)
    path = out / ROWS
    if not path.exists():
        return []
    try:
        rows = files.read_lines(path, whole=True)
        recorded = runs_in_rows(path, rows)
    except ValueError as error:
        raise ValueError(f"record: {error}; or remove {out}, to write it anew") from error
    if not (out / SPEC).exists() and any(row.get("study") != study.name for row in rows):
        raise _other_study(out)  # one that was cut short before its spec was written
    ended = {(run.arm, run.seed) for run in study.ended}
    kept = []
    for row in rows:
        place = _place(row)
        if place not in ended:
            _check_settings(study, recorded[place], out)
            kept.append(row)
    return kept


def _check_place(study: Study, out: Path) -> None:
    """Raise ValueError unless `out` is empty or a record of the same study."""
    spec = out / SPEC
    if not spec.exists():
        return
    if files.load_object(spec).get("name") != study.name:
        raise _other_study(out)
    if not (out / ROWS).exists():
        # Earlier versions wrote the spec of a record before its rows, and may have stopped there.
        beside = {path.name for path in out.iterdir()} - {SPEC, LOCK}
        if beside:
            raise ValueError(
                f"record must be an empty folder or a record of the same study, got {out}, which"
                f" has no {ROWS} and holds {first_few(sorted(beside))}; name another folder"
            )
    own = study.folder / REGISTERED
    recorded = out / REGISTERED
    if own.exists() and recorded.exists() and files.load_json(own) != files.load_json(recorded):
        raise ValueError(
            f"record must have the registration of the study, got another in {recorded}; name"
            " another folder"
        )


def _other_study(out: Path) -> ValueError:
    """The error for a folder that holds something else than a record of the study."""
    return ValueError(
        f"record must be an empty folder or a record of the same study, got {out}, which holds"
        " another study; name another folder"
    )


def _check_settings(study: Study, recorded: StudyRun, out: Path) -> None:
    """Raise ValueError for a run of a record whose arm has other settings in the study."""
    own = next((run for run in study.ended if run.arm == recorded.arm), None)
    if own is not None:
        before, now = recorded.config, own.config
    else:
        if not (out / SPEC).exists():
            raise ValueError(
                f"record must have a {SPEC}, got {out}, which was cut short and holds"
                f" {recorded.name}, missing in the study; run the command that wrote it again, or"
                " remove it"
            )
        before = _settings(files.load_object(out / SPEC), recorded.arm)
        now = _settings(study.spec, recorded.arm)
        # A search may have found the learning rate after the record's spec was written: the run
        # itself says at which one it was trained. One that is to be searched for may be any.
        before["arm"].pop(RATE, None)
        asked = now["arm"].pop(RATE, None) or now["train"].get(RATE)
        trained = (recorded.config.get("train") or {}).get(RATE)
        if asked and trained and recorded.arm not in searched_arms(study.spec):
            before["arm"][RATE] = trained
            now["arm"][RATE] = asked
    differing = files.differences(with_defaults(before), with_defaults(now))
    if differing:
        raise ValueError(
            f"record must hold runs of the study's settings, got {out}, whose {recorded.name} is"
            f" missing in the study and was made by another spec ({'; '.join(differing[:3])}); name"
            " another folder, or remove this one to give its runs up"
        )


def _settings(spec: Mapping[str, Any], arm: str) -> dict[str, Any]:
    """The options of a spec that decide an arm."""
    settings = {name: spec.get(name) or {} for name in SHARED}
    return {**settings, "arm": dict(spec["arms"].get(arm) or {})}


def restore(record: Path, study: Path, chosen: Sequence[Collection[Place]] | None = None) -> int:
    """Write the folder of every run in `record` that `study` lacks, and return how many.

    chosen: only runs of these arms and seeds, of the study and then of its search for learning
    rates; nothing of the search is written where there is one entry alone.

    A study goes on from there; the runs have no checkpoint and no curves for TensorBoard. Raises
    ValueError, before anything is written, where a row is damaged or there is none, and for links
    in the place of a run.
    """
    parts = [(record, study)]
    if (record / TUNING / SPEC).exists():
        parts.append((record / TUNING, study / TUNING))
    if chosen is not None:
        parts = parts[: len(chosen)]
    missing = [missing_rows(part, place) for part, place in parts]
    if chosen is not None:
        missing = [_rows_at(places, rows) for places, rows in zip(chosen, missing, strict=True)]
    for (part, place), rows in zip(parts, missing, strict=True):
        for name in WHOLE:
            if (part / name).exists() and not (place / name).exists():
                files.save_json(place / name, files.load_json(part / name))
        for row in rows:
            _write_run(place, row)
    return sum(map(len, missing))


def _rows_at(places: Collection[Place], rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of runs at `places`."""
    return [row for row in rows if _place(row) in places]


def _place(row: Mapping[str, Any]) -> Place:
    """Arm and seed of a row."""
    return row["arm"], row["seed"]


def missing_rows(record: Path, study: Path) -> list[dict[str, Any]]:
    """The rows of a record, with their evaluations, of the runs that a study lacks.

    Raises ValueError where a row is damaged or there is none, and for links in the place of a run.
    """
    path = record / ROWS
    if not path.is_file():
        raise ValueError(
            f"record must be a folder with a file {ROWS}, got {record}; plkernel.report --record"
            " writes one"
        )
    rows = [with_evaluations(row) for row in files.read_lines(path, whole=True)]
    missing = [row for row in rows if not _begun(study, _checked(path, row))]
    for row in missing:
        folder = files.run_folder(study, row["arm"], row["seed"])
        files.refuse_links(folder.parent, folder, *folder.glob("*"))
    return missing


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


def config_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a run, as its folder has it, from a row of a record."""
    names = {name: row.get(name) for name in ("study", "arm", "seed")}
    return names | row["config"]


def _write_run(study: Path, row: Mapping[str, Any]) -> None:
    """Write the folder of a run as training does; its result last, which marks it as ended."""
    folder = files.run_folder(study, row["arm"], row["seed"])
    folder.mkdir(parents=True, exist_ok=True)
    evaluations = row["evaluations"]
    if evaluations:
        evaluations[0].update(row.get("first") or {})
        evaluations[-1].update(row.get("last") or {})
    lines = [f"{json.dumps(evaluation)}\n" for evaluation in evaluations]
    files.atomic_write(folder / METRICS, "".join(lines))
    files.save_json(folder / CONFIG, config_of(row))
    files.save_json(folder / ENVIRONMENT, row["environment"])
    end = {name: row.get(name) for name in ("status", "error")}
    files.save_json(folder / RESULT, (row.get("result") or {}) | end)
