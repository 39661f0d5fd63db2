"""A study, run: every arm at every seed that has not ended yet, after the search for rates.

The search is OUT/tuning, a study like any other. Each arm of a spec with tuning.rates that gives no
learning rate is trained at every rate of the grid on every tuning seed; the rate with the lowest
mean validation loss at the end is the arm's, and a run that diverges loses. The budget is the same
for every arm: rates x seeds x steps.

n-grams are counted once, in the windows that the runs of the first seed read, and LZMA is tried:
OUT/references.json.
"""

import fnmatch
import os
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tqdm.auto import tqdm

from plkernel.common import cli
from plkernel.common.files import (
    CONFIG,
    DIVERGED,
    FINISHED,
    LOCK,
    LOG,
    REFERENCES,
    REGISTERED,
    REPORT,
    SPEC,
    TUNING,
    brief,
    lack_of_room,
    load_object,
    name_at,
    refuse_links,
    run_folder,
    save_json,
    shown,
)
from plkernel.config.resolved import ResolvedSpec, resolve_spec
from plkernel.config.schema import Arm
from plkernel.config.spec import Spec, heading
from plkernel.data.names import check_outside
from plkernel.results.record import config_of, missing_rows, restore
from plkernel.results.registration import (
    Registration,
    changes,
    place_of,
    registration_of,
    save_registration,
)
from plkernel.results.saved import begun_rate
from plkernel.results.study import Place, check_same_name, finished_beside
from plkernel.results.tuning import choices
from plkernel.results.wording import left_out
from plkernel.study.engine import POLL_SECONDS, Engine, Job, LocalEngine, check_found
from plkernel.study.queue import QueueEngine, ending
from plkernel.study.references import save_references
from plkernel.training.build import Prepared
from plkernel.training.curves import LoggerName, logger_library, save_mean
from plkernel.training.evaluate import label
from plkernel.training.folder import RunFolder, locked, loss_unit, other_run
from plkernel.training.loop import Task, longest_window, open_corpus

QUEUE_PATIENCE = 30.0
"""Seconds that a command waits for another one that submits, or a job that writes the report."""
LINKED = (SPEC, REGISTERED, REFERENCES, LOCK, TUNING, REPORT)
"""Files and folders of a study that may be no links."""


@dataclass(frozen=True)
class RunOptions:
    """Options for the runs of one call.

    workers  runs at a time, None for as many as the engine has room for
    retry    go on with runs that diverged
    logger   also receives the scalars of their curves
    """

    engine: Engine
    workers: int | None = None
    retry: bool = False
    logger: LoggerName | None = None

    def room(self, spec: Spec, device: str) -> int:
        """Return the number of runs to be trained at a time now."""
        return self.workers or self.engine.room(spec, device)


class PlannedRuns(NamedTuple):
    """A study, or the search for its learning rates, and the runs of the chosen arms."""

    study: ResolvedSpec
    jobs: list[Job]


def run_experiment(
    spec: Spec,
    out: Path | str,
    workers: int | None = None,
    only: Sequence[str] = (),
    engine: Engine | None = None,
    retry: bool = False,
    logger: LoggerName | None = None,
) -> list[str]:
    """Run every arm at every seed that has not ended yet; return the names of the runs that failed.

    Runs that diverged are among these.

    workers  runs at a time, by default as many as the engine has room for
    only     patterns of arm names, by default all arms
    engine   by default processes of this machine
    retry    go on with runs that diverged, from their last checkpoints
    logger   a library that receives the scalars of the curves too

    Where the spec has tuning.rates, the search for their learning rates comes first, in out/tuning.
    A study may grow by seeds and arms; the folder of another study is refused, and so are a run
    that another configuration made and a folder in which another experiment is under way. Finished
    runs in the folder that the spec does not ask for stay, and are named on standard error. A
    registration of its name is copied to the folder. Raises ValueError on bad input before anything
    is written, KeyboardInterrupt after Ctrl-C with every run saved, and LeftToQueueError from an
    engine whose runs are to go on alone.
    """
    out = _folder(out, "out")
    arms = chosen_arms(spec, only)
    options = RunOptions(engine or LocalEngine(), workers, retry, logger)
    if logger:
        logger_library(logger)
    check_outside_corpora(spec, out)
    check_same_study(spec, out)
    registration = noted_registration(spec, out)
    _note_left_out(spec, out)
    untuned = _untuned(spec, arms)
    if untuned:
        first = _planned_search(spec, arms, untuned, out, options)
    else:
        first = _planned_study(spec, arms, out, options)
    if isinstance(options.engine, LocalEngine | QueueEngine):
        check_found(_code_of(spec, arms))
    refuse_links(*(out / name for name in LINKED))
    out.mkdir(parents=True, exist_ok=True)
    patience = QUEUE_PATIENCE if isinstance(options.engine, QueueEngine) else 0.0
    with locked(out, f"out {out}", patience):
        if registration:
            save_registration(registration, out / REGISTERED)
        # So that a record may be kept while rates are searched.
        save_json(out / SPEC, spec.model_dump(mode="json"))
        if untuned:
            _run(first, out / TUNING, options)
            compared = _planned_study(spec, arms, out, options)
        else:
            # Until now, another command may have found rates of arms that are not chosen here.
            compared = first._replace(study=resolve_spec(tuned(spec, out)))
        save_references(compared.study, arms, out)
        return _run(compared, out, options)


def take_record(
    spec: Spec,
    record: Path | str,
    out: Path | str,
    only: Sequence[str] = (),
    engine: Engine | None = None,
) -> int:
    """Write the ended runs of a record that the study in `out` lacks, and return how many.

    only, engine: as of `run_experiment`, which goes on from there. Raises ValueError, before
    anything is written, where the record or `out` belongs to another study, and where another
    configuration than the spec's made a run of the record.
    """
    record = _folder(record, "record")
    out = _folder(out, "out")
    check_record(spec, record, out)
    arms = chosen_arms(spec, only)
    options = RunOptions(engine or LocalEngine())
    settled = tuned(spec, record)
    unsettled = _untuned(settled, arms)
    known = [arm for arm in arms if arm not in unsettled]
    places = [_checked_places(resolve_spec(settled), known, record, out, options)]
    untuned = _untuned(spec, arms)
    if untuned and (record / TUNING / SPEC).exists():
        search = resolve_spec(search_of(spec))
        names = _searched(spec, untuned)
        searched = _checked_places(search, names, record / TUNING, out / TUNING, options)
        places.append(searched)
    return restore(record, out, places)


def _folder(value: Path | str, name: str) -> Path:
    """Return a folder as a path; ValueError that names the argument for what is none."""
    if not isinstance(value, str | os.PathLike) or not str(value):
        raise ValueError(f"{name} must be the path of a folder, got {brief(value)}")
    return Path(value)


def check_record(spec: Spec, record: Path, out: Path) -> None:
    """Raise ValueError where a record or `out` belongs to another study, or a registration is not
    as it was written.
    """
    check_same_study(spec, out)
    _check_name(spec, record)
    if not (out / REGISTERED).exists():
        registration_of(spec, record)


def _check_name(spec: Spec, record: Path) -> None:
    """Raise ValueError where a record is of a study of another name."""
    place = record / SPEC
    name = load_object(place).get("name") if place.exists() else spec.name
    if name != spec.name:
        raise ValueError(
            f"record must be one of study {spec.name!r}, got {record}, which is of {shown(name)};"
            " name its own record, or leave --record out"
        )


def _checked_places(
    study: ResolvedSpec, arms: Sequence[str], record: Path, out: Path, options: RunOptions
) -> set[Place]:
    """Arm and seed of the runs of `arms` in a record that `out` lacks.

    Raises ValueError where one has another configuration than the study's.
    """
    recorded = {(row["arm"], row["seed"]): row for row in missing_rows(record, out)}
    known = {arm for arm, _ in recorded}
    seeds = sorted({seed for _, seed in recorded})
    places = set()
    for task in _tasks(study, [arm for arm in arms if arm in known], seeds, out, options):
        place = (task.condition.name, task.seed)
        row = recorded.get(place)
        if row is None:
            continue
        different = other_run(config_of(row), task.config)
        if different:
            raise ValueError(
                f"record {record}: its {task.name} was made by another spec ({different}); name"
                " another record, or leave --record out"
            )
        places.add(place)
    return places


def check_same_study(spec: Spec, out: Path) -> None:
    """Raise ValueError where `out` is the folder of another study.

    A study of the same name is another one where runs have begun, all of arms that the spec lacks.
    """
    check_same_name(out, spec.name)
    if not (out / SPEC).is_file():
        return
    begun = sorted({path.parents[1].name for path in out.glob(f"*/seed-*/{CONFIG}")})
    if begun and not set(begun) & set(spec.arms):
        raise ValueError(
            f"out must be a new folder or that of the same study, got {out}, whose runs are of arms"
            f" that the spec does not have, such as {begun[0]!r}; name another --out"
        )


def chosen_arms(spec: Spec, only: Sequence[str]) -> list[str]:
    """Return the arms whose names match one of the patterns, all without a pattern.

    Raises ValueError for a pattern that matches none.
    """
    cli.check_patterns("only", only, spec.arms)
    if not only:
        return list(spec.arms)
    return [arm for arm in spec.arms if any(fnmatch.fnmatchcase(arm, one) for one in only)]


def check_outside_corpora(spec: Spec, out: Path) -> None:
    """Refuse a folder of the study in that of a corpus, which would then change with every run."""
    check_outside({"out": out}, {spec.corpus_of(arm).name for arm in spec.arms})


def noted_registration(spec: Spec, out: Path) -> Registration | None:
    """Return the registration of a study, see `registration_of`, if it has one.

    Says on standard error where the spec differs from it, and, before the first run of a study with
    hypotheses, where a registration was looked for in vain.
    """
    registration = registration_of(spec, out)
    if registration is None:
        if spec.hypotheses and not _has_begun(out):
            _note_unregistered(spec, out)
        return None
    differing = changes(registration.spec, spec.model_dump(mode="json"))
    if differing:
        some = "; ".join(differing[:3])
        cli.note(f"note: the spec differs from its registration: {some}")
    return registration


def _has_begun(out: Path) -> bool:
    """Return True if a run of the study in `out` has begun."""
    return any(out.glob(f"*/seed-*/{CONFIG}"))


def _note_unregistered(spec: Spec, out: Path) -> None:
    """Say on standard error in which files, in full, the registration of a study is not there.

    The first lies in the working folder: a study that was registered in another one misses it.
    """
    named = place_of(spec).resolve()
    own = (out / REGISTERED).resolve()
    cli.note(
        f"note: the hypotheses of study {spec.name!r} are not registered: there is neither {named}"
        f" nor {own}; --register before the runs writes the first, and where the study was"
        " registered in another folder, copy its file there or run the command in that folder"
    )


def keep_registration(spec: Spec, out: Path) -> None:
    """Copy the registration of a study, if it has one, to its folder, where its runs find it.

    Says on standard error where the spec differs from it. Raises ValueError for a registration that
    was changed since, and where the folder holds another one or another study.
    """
    registration = noted_registration(spec, out)
    place = out / REGISTERED
    if registration is None or place.exists():
        return
    check_same_name(out, spec.name)
    refuse_links(place)
    save_registration(registration, place)


def _note_left_out(spec: Spec, out: Path) -> None:
    """Say on standard error which finished runs in the folder the spec does not ask for."""
    places = finished_beside(out, spec.arms, spec.seeds)
    for sentence in left_out(places, spec.arms, spec.seeds):
        cli.note(f"note: {sentence}")


def _code_of(spec: Spec, arms: Iterable[str]) -> dict[str, str]:
    """Return the options that name other people's code, by the names of it."""
    code = {}
    for arm in arms:
        code.update({name: option for option, name in spec.condition(arm).code.items()})
    return code


def _untuned(spec: Spec, arms: Iterable[str]) -> list[str]:
    """Return those of `arms` whose learning rates are to be searched for."""
    if not spec.tuning.rates:
        return []
    return [arm for arm in arms if spec.arm(arm).learning_rate is None]


def _planned_study(spec: Spec, arms: Sequence[str], out: Path, options: RunOptions) -> PlannedRuns:
    """Return the runs that are compared, at the rates that the search in `out` has found.

    Raises ValueError for an arm without a rate. The search may also have rates of arms that are not
    among `arms`.
    """
    study = resolve_spec(tuned(spec, out))
    _check_rates(study.spec, arms, out)
    return PlannedRuns(study, _jobs(study, arms, out, options))


def _planned_search(
    spec: Spec, arms: Sequence[str], untuned: Sequence[str], out: Path, options: RunOptions
) -> PlannedRuns:
    """Return the search for the rates of `untuned`.

    The runs of the other arms are checked too, so that they are refused before a search.
    """
    settled = resolve_spec(_at_begun_rates(tuned(spec, out), arms, out))
    known = [arm for arm in arms if settled.spec.arm(arm).learning_rate is not None]
    _jobs(settled, known, out, options)
    search = resolve_spec(search_of(spec))
    names = _searched(spec, untuned)
    return PlannedRuns(search, _jobs(search, names, out / TUNING, options))


def _at_begun_rates(spec: Spec, arms: Iterable[str], out: Path) -> Spec:
    """Return the spec whose arms without a rate have that of their runs in `out`, if any has begun.

    Raises ValueError for a run at a rate that the search does not try.
    """
    changed = dict(spec.arms)
    for arm in _untuned(spec, arms):
        for folder in (run_folder(out, arm, seed) for seed in spec.seeds):
            if not (folder / CONFIG).exists():
                continue
            rate = begun_rate(folder / CONFIG)
            if rate not in spec.rates_of(arm):
                raise ValueError(
                    f"run folder {folder} must be of a learning rate of tuning.rates, got"
                    f" {shown(rate)}: use another name or --out, or remove the folder"
                )
            changed[arm] = changed[arm].model_copy(update={"learning_rate": rate})
    return spec.model_copy(update={"arms": changed})


def _searched(spec: Spec, untuned: Iterable[str]) -> list[str]:
    """Return the arms of the search for the rates of `untuned`."""
    return [name_at(arm, rate) for arm in untuned for rate in spec.rates_of(arm)]


def _check_rates(spec: Spec, arms: Iterable[str], out: Path) -> None:
    """Raise ValueError where the search has found no learning rate for one of `arms`."""
    for arm in _untuned(spec, arms):
        raise ValueError(
            f"tuning.rates must hold a learning rate for arm {arm!r}, got none that finished, see"
            f" {out / TUNING}; mend the cause and run the same command again with --retry, or try"
            " lower rates"
        )


def _jobs(study: ResolvedSpec, arms: Sequence[str], out: Path, options: RunOptions) -> list[Job]:
    """Return the runs, seed by seed; ValueError unless corpus, machine and folder allow each."""
    spec = study.spec
    jobs = []
    for task in _tasks(study, arms, spec.seeds, out, options):
        folder = task.folder
        refuse_links(folder.path.parent, folder.path, *folder.path.glob("*"))
        folder.check(task.config)
        job = Job(
            study=out,
            arm=task.condition.name,
            seed=task.seed,
            device=task.device,
            threads=spec.train.threads,
            config=task.config,
            trusted=spec.trusted,
            logger=options.logger,
        )
        jobs.append(job)
    return jobs


def _tasks(
    study: ResolvedSpec, arms: Sequence[str], seeds: Sequence[int], out: Path, options: RunOptions
) -> Iterator[Task]:
    """Yield the run of every arm at every seed; ValueError unless corpus and machine allow it."""
    train = study.spec.train
    prepared = [Prepared.of(study.conditions[arm]) for arm in arms]
    devices = [options.engine.device(ready.condition) for ready in prepared]
    sections = dict.fromkeys(ready.condition.corpus for ready in prepared)
    corpora = {
        section: open_corpus(section, train.context, longest_window(section, train))
        for section in sections
    }
    for seed in seeds:
        for ready, device in zip(prepared, devices, strict=True):
            folder = RunFolder(run_folder(out, ready.condition.name, seed))
            yield Task(ready, seed, *corpora[ready.condition.corpus], folder, device)


def _run(runs: PlannedRuns, out: Path, options: RunOptions) -> list[str]:
    """Run those that have not ended; return the names of those that fail or diverge."""
    spec = runs.study.spec
    jobs = runs.jobs
    finished = _jobs_that(FINISHED, jobs)
    diverged = [] if options.retry else _jobs_that(DIVERGED, jobs)
    ended = [*finished, *diverged]
    waiting = [job for job in jobs if job not in ended]
    for arm in dict.fromkeys(job.arm for job in jobs):
        _draw_mean(arm, jobs, out)
    save_json(out / SPEC, spec.model_dump(mode="json"))
    lost = f", {len(diverged)} diverged before" if diverged else ""
    at_once = min(len(waiting), options.room(spec, jobs[0].device))
    before = f"{len(finished)} finished before{lost}, {at_once} at a time, in {out}"
    print(f"{spec.name}: {cli.counted(len(jobs), 'run', 'runs')}, {before}", flush=True)
    try:
        with tqdm(total=len(waiting), unit="run", desc=spec.name, disable=cli.no_bar()) as bar:
            for job in _trained(spec, waiting, options):
                cli.line_beside_bars(f"{job.name}{_ending(RunFolder(job.folder))}", sys.stdout)
                _draw_mean(job.arm, jobs, out)
                bar.update()
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_farewell(options.engine)) from None
    finally:
        options.engine.stop()
    finished = _jobs_that(FINISHED, jobs)
    return [job.name for job in jobs if job not in finished]


def _farewell(engine: Engine) -> str:
    """Return what Ctrl-C has left: runs that are saved, or that go on in a queue."""
    if isinstance(engine, QueueEngine):
        return engine.farewell
    return "the steps of every run are saved; run the same command again to go on"


def _jobs_that(status: str, jobs: Iterable[Job]) -> list[Job]:
    """Return the jobs whose runs have ended so."""
    return [job for job in jobs if RunFolder(job.folder).status == status]


def _trained(spec: Spec, jobs: Iterable[Job], options: RunOptions) -> Iterator[Job]:
    """Give the runs to the engine as there is room, and yield each when it has ended."""
    waiting = list(jobs)
    active: list[Job] = []
    while waiting or active:
        while waiting and len(active) < options.room(spec, waiting[0].device):
            job = waiting.pop(0)
            active.append(job)
            options.engine.start(job)
        time.sleep(POLL_SECONDS)
        for job in options.engine.ended():
            active.remove(job)
            yield job


def _ending(run: RunFolder) -> str:
    """Return how a run has ended, as it follows the name of the run."""
    result = run.result
    lost = ending(run.path) if result is None else None
    if lost is not None:
        return f" {lost}"
    if result is None or run.status != FINISHED:
        full = lack_of_room(run.path) if result is None else ""
        why = f" ({full})" if full else ""
        return f" {run.failure}{why}, see {run.path / LOG}"
    loss = f"{result['final_val_bpb']:.4f} {loss_unit(result)}"
    steps = cli.counted(result["steps"], "step", "steps")
    return f": validation {loss} after {steps}, {result['seconds']:.0f} s{label(result['causal'])}"


def _draw_mean(arm: str, jobs: Iterable[Job], out: Path) -> None:
    """Write the curves of an arm's mean once all of its runs have finished."""
    own = [job for job in jobs if job.arm == arm]
    if all(RunFolder(job.folder).status == FINISHED for job in own):
        save_mean(out / arm, [job.seed for job in own])


def search_of(spec: Spec) -> Spec:
    """Return the study that looks for the learning rates of `spec`.

    It has an arm for every rate to try of every arm that has none.
    """
    # Contexts, influences and longer windows say nothing of a rate.
    options: dict[str, Any] = {"truncation_windows": 0, "probe_windows": 0}
    if spec.train.beyond is not None:
        options["beyond"] = 1
    if spec.tuning.steps is not None:
        options |= {"steps": spec.tuning.steps, "bytes": None}
    arms: dict[str, Arm] = {}
    for name, arm in spec.arms.items():
        if arm.learning_rate is None:
            for rate in spec.rates_of(name):
                arms[name_at(name, rate)] = _at_rate(arm, rate, leaving_out=options)
    with heading(f"the search for the learning rates of {spec.name}: "):
        search = Spec(
            name=f"{spec.name}-{TUNING}",
            baseline=next(iter(arms)),
            seeds=spec.tuning.seeds,
            corpus=spec.corpus,
            model=spec.model,
            train=spec.train.model_copy(update=options),
            arms=arms,
        )
    return search.trusting(spec.trusted)


def _at_rate(arm: Arm, rate: float, leaving_out: Collection[str]) -> Arm:
    """Return the arm of a search: at a rate, compared with none, without options `leaving_out`."""
    own = arm.train or {}
    train = {option: value for option, value in own.items() if option not in leaving_out}
    alone = {"rates": None, "match": None, "against": None, "levels": None}
    return arm.model_copy(update={**alone, "learning_rate": rate, "train": train or None})


def settled_for(spec: Spec, arm: str, out: Path) -> Spec:
    """Return the spec as `tuned` does; ValueError where the rate of `arm` is still to be found."""
    settled = tuned(spec, out)
    if _untuned(settled, [arm]):
        raise ValueError(
            f"arm {arm!r} must have a learning rate, got none: tuning.rates are to be searched, and"
            f" no search for it has ended in {out / TUNING}; run plkernel.experiment, or give"
            f" --arms.{arm}.learning-rate"
        )
    return settled


def tuned(spec: Spec, out: Path) -> Spec:
    """Return the spec with the learning rates that the search in `out` has found, if it has one."""
    if not spec.tuning.rates:
        return spec
    arms = dict(spec.arms)
    grids = {name: spec.rates_of(name) for name in arms}
    for name, choice in choices(grids, out).items():
        if arms[name].learning_rate is None:
            arms[name] = arms[name].model_copy(update={"learning_rate": choice.rate})
    return spec.model_copy(update={"arms": arms})
