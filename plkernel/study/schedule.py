"""A study, run: every arm at every seed that has not ended yet, after the search for learning
rates.

The search is OUT/tuning, a study like any other. Each arm of a spec with tuning.rates that gives no
learning rate is trained at every rate of the grid on every tuning seed; the rate with the lowest
mean validation loss at the end is the arm's, and a run that diverges loses. The budget is the same
for every arm: rates x seeds x steps.

n-grams are counted once, in the windows that the runs of the first seed read, and LZMA is tried:
OUT/references.json.
"""

import fnmatch
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from plkernel.common import cli
from plkernel.common.files import (
    DIVERGED,
    FINISHED,
    LOCK,
    LOG,
    REFERENCES,
    REGISTERED,
    REPORT,
    SPEC,
    TUNING,
    name_at,
    refuse_links,
    run_folder,
    save_json,
)
from plkernel.config.study import Spec
from plkernel.results.registration import changes, registration_of
from plkernel.results.tuning import choices
from plkernel.study.engine import POLL_SECONDS, Engine, Job
from plkernel.study.references import save_references
from plkernel.training.build import Prepared
from plkernel.training.curves import LoggerName, logger_library, save_mean
from plkernel.training.evaluate import label
from plkernel.training.folder import RunFolder, locked
from plkernel.training.loop import Task, open_corpus

LINKED = (SPEC, REGISTERED, REFERENCES, LOCK, TUNING, REPORT)
"""Files and folders of a study that may be no links."""


def run_experiment(
    spec: Spec,
    out: Path,
    workers: int | None = None,
    only: Sequence[str] = (),
    engine: Engine | None = None,
    retry: bool = False,
    logger: LoggerName | None = None,
) -> list[str]:
    """Run every arm at every seed that has not ended yet; returns the names of the runs that failed
    or diverged.

    workers: runs at a time, by default as many as the engine has room for. only: patterns of arm
    names, by default all arms. retry: go on with runs that diverged, from their last checkpoints.
    logger: a library that receives the scalars of the curves too.

    Where the spec has tuning.rates, the search for their learning rates comes first, in out/tuning.
    A study may grow by seeds and arms; a run that another configuration made is refused, and so is
    a folder in which another experiment is under way. A registration of its name is copied to the
    folder. Raises ValueError on bad input before anything is written, KeyboardInterrupt after
    Ctrl-C with every run saved.
    """
    arms, engine = chosen_arms(spec, only), engine or Engine()
    if logger:
        logger_library(logger)
    registration = registration_of(spec, out)
    if registration and (differing := changes(registration.spec, spec.model_dump(mode="json"))):
        print(f"note: otherwise than registered: {'; '.join(differing[:3])}", file=sys.stderr)
    untuned = [arm for arm in arms if spec.tuning.rates and spec.arm(arm).learning_rate is None]
    if untuned:
        settled = tuned(spec, out)  # whose runs are refused before the search, not after it
        _jobs(
            settled,
            [arm for arm in arms if settled.arm(arm).learning_rate is not None],
            out,
            engine,
            logger,
        )
        search, wanted = (
            search_of(spec),
            [name_at(arm, rate) for arm in untuned for rate in spec.rates_of(arm)],
        )
        jobs = _jobs(search, wanted, out / TUNING, engine, logger)
    else:
        jobs = _jobs(spec, arms, out, engine, logger)
    refuse_links(*(out / name for name in LINKED))
    out.mkdir(parents=True, exist_ok=True)
    with locked(out, f"out {out}"):
        if registration:
            save_json(out / REGISTERED, {**registration.content, "sha256": registration.sha256})
        save_json(
            out / SPEC, spec.model_dump(mode="json")
        )  # so that a record may be kept while rates are searched
        if untuned:
            _run(search, jobs, out / TUNING, workers, engine, retry)
        if spec.tuning.rates:
            spec = tuned(spec, out)
        if lost := [arm for arm in untuned if spec.arm(arm).learning_rate is None]:
            remedy = (
                "mend the cause and run the same command again with --retry, or try lower rates"
            )
            raise ValueError(
                f"tuning.rates: no learning rate for arm {lost[0]!r}, see {out / TUNING}; {remedy}"
            )
        if untuned:
            jobs = _jobs(spec, arms, out, engine, logger)
        save_references(spec, arms, out)
        return _run(spec, jobs, out, workers, engine, retry)


def chosen_arms(spec: Spec, only: Sequence[str]) -> list[str]:
    """Return the arms whose names match one of the patterns; ValueError for a pattern that matches
    none.
    """
    cli.check_patterns("only", only, spec.arms)
    return [
        arm
        for arm in spec.arms
        if not only or any(fnmatch.fnmatchcase(arm, pattern) for pattern in only)
    ]


def _jobs(
    spec: Spec, arms: Sequence[str], out: Path, engine: Engine, logger: LoggerName | None
) -> list[Job]:
    """The runs, seed by seed, each checked against its corpus, the machine and the content of its
    folder.
    """
    prepared = [Prepared.of(spec.condition(arm)) for arm in arms]
    devices = [engine.device(ready.condition) for ready in prepared]
    sections = dict.fromkeys(ready.condition.corpus for ready in prepared)
    corpora = {section: open_corpus(section, spec.train.context) for section in sections}
    jobs = []
    for seed in spec.seeds:
        for ready, device in zip(prepared, devices, strict=True):
            name, folder = (
                ready.condition.name,
                RunFolder(run_folder(out, ready.condition.name, seed)),
            )
            refuse_links(folder.path.parent, folder.path, *folder.path.glob("*"))
            config = Task(ready, seed, *corpora[ready.condition.corpus], folder, device).config
            folder.check(config)
            jobs.append(
                Job(out, name, seed, device, spec.train.threads, config, spec.trusted, logger)
            )
    return jobs


def _run(
    spec: Spec,
    jobs: Sequence[Job],
    out: Path,
    workers: int | None,
    engine: Engine,
    retry: bool = False,
) -> list[str]:
    """Run those of `jobs` that have not ended; return the names of those that fail or diverge."""
    finished, diverged = (
        [one for one in jobs if RunFolder(one.folder).status == end] for end in (FINISHED, DIVERGED)
    )
    arms = {
        arm: [one for one in jobs if one.arm == arm]
        for arm in dict.fromkeys(one.arm for one in jobs)
    }

    def draw_mean(arm: str) -> None:
        if all(RunFolder(one.folder).status == FINISHED for one in arms[arm]):
            save_mean(out / arm, [one.seed for one in arms[arm]])

    for arm in arms:  # of runs that finished before
        draw_mean(arm)
    waiting, active = (
        [one for one in jobs if one not in finished and (retry or one not in diverged)],
        list[Job](),
    )
    save_json(out / SPEC, spec.model_dump(mode="json"))
    lost = f", {len(diverged)} diverged before" if diverged and not retry else ""
    size = min(len(waiting), workers or engine.room(spec, jobs[0].device))
    before = f"{len(finished)} finished before{lost}, {size} at a time, in {out}"
    print(f"{spec.name}: {len(jobs)} runs, {before}", flush=True)
    try:
        with tqdm(total=len(waiting), unit="run", desc=spec.name, disable=None) as bar:
            while waiting or active:
                while waiting and len(active) < (workers or engine.room(spec, waiting[0].device)):
                    active.append(waiting.pop(0))
                    engine.start(active[-1])
                time.sleep(POLL_SECONDS)
                for job in engine.ended():
                    active.remove(job)
                    run = RunFolder(job.folder)
                    end = f" {run.failure}, see {job.folder / LOG}"
                    if (result := run.result) and run.status == FINISHED:
                        bpb = (
                            f"{result['final_val_bpb']:.4f} bits per byte after {result['steps']}"
                            " steps"
                        )
                        end = (
                            f": validation {bpb}, {result['seconds']:.0f}"
                            f" s{label(result['causal'])}"
                        )
                    tqdm.write(job.name + end)
                    draw_mean(job.arm)
                    bar.update()
    except KeyboardInterrupt:
        raise KeyboardInterrupt("every run is saved; run the same command again to go on") from None
    finally:
        engine.stop()
    return [job.name for job in jobs if RunFolder(job.folder).status != FINISHED]


def search_of(spec: Spec) -> Spec:
    """The study that looks for the learning rates of `spec`: an arm for every arm that has none,
    and rate.
    """
    changes: dict[str, Any] = {
        "truncation_windows": 0,
        "probe_windows": 0,
    }  # which say nothing of a rate
    if spec.tuning.steps is not None:
        changes |= {"steps": spec.tuning.steps, "bytes": None}
    alone = {"rates": None, "match": None, "against": None, "levels": None}
    arms = {
        name_at(name, rate): arm.model_copy(
            update={"learning_rate": rate, "train": own or None, **alone}
        )
        for name, arm in spec.arms.items()
        if arm.learning_rate is None
        for own in [
            {option: value for option, value in (arm.train or {}).items() if option not in changes}
        ]
        for rate in spec.rates_of(name)
    }
    sections: dict[str, Any] = {
        "corpus": spec.corpus,
        "model": spec.model,
        "seeds": spec.tuning.seeds,
        "arms": arms,
    }
    sections |= {"train": spec.train.model_copy(update=changes), "baseline": next(iter(arms))}
    return Spec(name=f"{spec.name}-{TUNING}", **sections).trusting(spec.trusted)


def tuned(spec: Spec, out: Path) -> Spec:
    """The spec with the learning rates that the search in `out` has found."""
    arms = dict(spec.arms)
    for name, choice in choices({name: spec.rates_of(name) for name in arms}, out).items():
        if arms[name].learning_rate is None:
            arms[name] = arms[name].model_copy(update={"learning_rate": choice.rate})
    return spec.model_copy(update={"arms": arms})
