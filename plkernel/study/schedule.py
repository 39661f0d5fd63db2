"""A study, run: every arm at every seed that has not ended yet, after the search for learning rates."""

import fnmatch
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from plkernel.common import cli
from plkernel.common.files import (
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
from plkernel.config.schema import CorpusSpec
from plkernel.config.study import Spec
from plkernel.data.corpora import Corpus, Splits
from plkernel.results.registration import changes, keep, registration_of
from plkernel.study.engine import POLL_SECONDS, Job, LocalEngine
from plkernel.study.tuning import save_references, search_of, tuned
from plkernel.training.build import Prepared
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
    engine: LocalEngine | None = None,
    retry: bool = False,
) -> list[str]:
    """Run every arm at every seed that has not ended yet; returns the names of the runs that failed or diverged.

    workers: runs at a time, by default as many as the engine has room for. only: patterns of arm names, by default all
    arms. engine: this machine by default. retry: go on with runs that diverged, from their last checkpoints.

    Where the spec has tuning.rates, the search for their learning rates comes first, in out/tuning. A study may grow by
    seeds and arms; a run that another configuration made is refused, and so is a folder in which another experiment
    is under way. A registration of its name is copied to the folder. Raises ValueError on bad input before anything is
    written, KeyboardInterrupt after Ctrl-C with every run saved.
    """
    arms, engine = chosen_arms(spec, only), engine or LocalEngine()
    registration = registration_of(spec, out)
    if registration and (differing := changes(registration.spec, spec.model_dump(mode="json"))):
        print(f"note: otherwise than registered: {'; '.join(differing[:3])}", file=sys.stderr)
    untuned = [arm for arm in arms if spec.tuning.rates and spec.arm(arm).learning_rate is None]
    if untuned:
        search, wanted = search_of(spec), [name_at(arm, rate) for arm in untuned for rate in spec.rates_of(arm)]
        jobs = _jobs(search, wanted, out / TUNING, engine)
    else:
        jobs = _jobs(spec, arms, out, engine)
    if not (workers or engine.room(spec, jobs[0].device)):
        raise ValueError(f"train.threads {spec.train.threads}: no machine has so many cores; lower it, or give workers")
    refuse_links(*(out / name for name in LINKED))
    out.mkdir(parents=True, exist_ok=True)
    with locked(out, f"out {out}"):
        keep(registration, out)
        if untuned:
            _run(search, jobs, out / TUNING, workers, engine)
        if spec.tuning.rates:
            spec = tuned(spec, out)
        for arm in untuned:
            if spec.arm(arm).learning_rate is None:
                runs = [(job.name, RunFolder(job.folder)) for job in jobs if job.arm.startswith(f"{arm}_rate-")]
                told = "; ".join(f"{name} {run.failure}" for name, run in runs if not run.finished)
                remedy = "mend the cause, or try lower rates, and run the same command again"
                raise ValueError(
                    f"tuning.rates: no learning rate for arm {arm!r}: {told}, see {out / TUNING}; {remedy}"
                )
        if untuned:
            jobs = _jobs(spec, arms, out, engine)
        return _run(spec, jobs, out, workers, engine, retry, arms)


def chosen_arms(spec: Spec, only: Sequence[str]) -> list[str]:
    """Return the arms whose names match one of the patterns; ValueError for a pattern that matches none."""
    for pattern in only:
        if not fnmatch.filter(spec.arms, pattern):
            raise ValueError(f"only: no arm matches {pattern!r}; {cli.nearest(pattern, spec.arms)}")
    return [arm for arm in spec.arms if not only or any(fnmatch.fnmatchcase(arm, pattern) for pattern in only)]


def _jobs(spec: Spec, arms: Sequence[str], out: Path, engine: LocalEngine) -> list[Job]:
    """The runs, seed by seed, each checked against its corpus, the machine and the content of its folder."""
    corpora: dict[CorpusSpec, tuple[Corpus, Splits]] = {}
    prepared = [Prepared.of(spec.condition(arm)) for arm in arms]
    devices = [engine.device(ready.condition) for ready in prepared]
    for ready in prepared:
        if (section := ready.condition.corpus) not in corpora:
            corpora[section] = open_corpus(section, spec.train.context)
    jobs = []
    for seed in spec.seeds:
        for ready, device in zip(prepared, devices, strict=True):
            name, folder = ready.condition.name, RunFolder(run_folder(out, ready.condition.name, seed))
            refuse_links(folder.path.parent, folder.path, *folder.path.glob("*"))
            config = Task(ready, seed, *corpora[ready.condition.corpus], folder, device).config
            folder.check(config)
            jobs.append(Job(out, name, seed, device, spec.train.threads, config, spec.trusted))
    return jobs


def _run(
    spec: Spec,
    jobs: Sequence[Job],
    out: Path,
    workers: int | None,
    engine: LocalEngine,
    retry: bool = False,
    counted: Sequence[str] = (),
) -> list[str]:
    """Run those of `jobs` that have not ended; return the names of those that fail or diverge.

    counted: arms on whose corpora n-grams are counted before.
    """
    finished, diverged = (
        [one for one in jobs if getattr(RunFolder(one.folder), end)] for end in ("finished", "diverged")
    )
    waiting, active = [one for one in jobs if one not in finished and (retry or one not in diverged)], list[Job]()
    save_json(out / SPEC, spec.model_dump(mode="json"))
    lost = f", {len(diverged)} diverged before" if diverged and not retry else ""
    size = min(len(waiting), workers or engine.room(spec, jobs[0].device))
    before = f"{len(finished)} finished before{lost}, {size} at a time, in {out.absolute()}"
    print(f"{spec.name}: {len(jobs)} runs, {before}", flush=True)
    try:
        save_references(spec, counted, out)
        with tqdm(total=len(waiting), unit="run", desc=spec.name, disable=None) as bar:
            while waiting or active:
                # The room is asked for each time: machines of a cluster come and go.
                while waiting and len(active) < (workers or engine.room(spec, waiting[0].device)):
                    active.append(waiting.pop(0))
                    engine.start(active[-1])
                time.sleep(POLL_SECONDS)
                for job in engine.ended():
                    active.remove(job)
                    run = RunFolder(job.folder)
                    end = f" {run.failure}, see {job.folder / LOG}"
                    if (result := run.result) and run.finished:
                        bpb = f"{result['final_val_bpb']:.4f} bits per byte after {result['steps']} steps"
                        end = f": validation {bpb}, {result['seconds']:.0f} s{label(result['causal'])}"
                    tqdm.write(job.name + end, file=sys.stderr)
                    bar.update()
    except KeyboardInterrupt:
        raise KeyboardInterrupt("every run is saved; run the same command again to go on") from None
    finally:
        engine.stop()
    return [job.name for job in jobs if not RunFolder(job.folder).finished]
