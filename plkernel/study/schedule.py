"""A study, run: every arm at every seed that has not ended yet, after the search for learning rates."""

import fnmatch
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tqdm import tqdm

from plkernel.common import cli
from plkernel.common.files import read_lines, refuse_links, refuse_links_of_run, save_json
from plkernel.config.corpus import CorpusSpec
from plkernel.config.study import Spec
from plkernel.declared.registration import changes, few, keep, registration_of
from plkernel.records.layout import (
    LOCK,
    LOG,
    METRICS,
    REFERENCES,
    REGISTERED,
    REPORT,
    SPEC,
    TUNING,
    name_at,
    run_folder,
)
from plkernel.study.engine import Engine, EngineName, Job
from plkernel.study.local_engine import LocalEngine
from plkernel.study.references import save_references
from plkernel.study.tuning import search_of, tuned
from plkernel.together.shape import shape
from plkernel.training.build import check
from plkernel.training.folder import RunFolder, locked
from plkernel.training.objective import label
from plkernel.training.task import Opened, open_corpus, prepare

POLL_SECONDS = 0.2
BAR = "{desc}: {percentage:3.0f}%|{bar}| {n:.2f}/{total_fmt} runs [{elapsed}<{remaining}]"

Runs = list[tuple[str, int]]


def run_experiment(
    spec: Spec,
    out: Path,
    workers: int | None = None,
    only: Sequence[str] = (),
    engine: Engine | None = None,
    retry: bool = False,
) -> list[str]:
    """Run every arm at every seed that has not ended yet; returns the names of the runs that failed or diverged.

    workers: runs at a time, by default as many as the engine has room for
    only: patterns of arm names such as 'quantile*'; left out, all arms
    engine: what trains the runs; left out, this machine
    retry: go on with runs that diverged, from their last checkpoints; they would come to the same end otherwise

    Where the spec has tuning.rates, the search for their learning rates comes first, in out/tuning. A study may grow by
    seeds and arms; a run that another configuration made is refused, and so is a folder in which another experiment
    is under way. A registration of its name is copied to the folder. Raises ValueError on bad input before anything is
    written, KeyboardInterrupt after Ctrl-C with every run saved.
    """
    arms, engine = chosen_arms(spec, only), engine or LocalEngine()
    registration = registration_of(spec, out)
    if registration and (differing := changes(registration.spec, spec.model_dump(mode="json"))):
        print(f"note: otherwise than registered: {few(differing)}", file=sys.stderr)
    with held_folders() as hold_folders:

        def hold(*folders: Path) -> None:
            hold_folders(*folders)
            keep(registration, out)

        if spec.tuning.rates:
            spec = _tuned(spec, arms, out, workers, engine, hold)
        runs = [(arm, seed) for seed in spec.seeds for arm in arms]
        return _run(spec, runs, out, workers, engine, lambda: hold(out), retry, references=True)


@contextmanager
def held_folders() -> Iterator[Callable[..., None]]:
    """Gives a function that keeps other experiments out of folders of studies, from then on.

    It raises ValueError where one is under way in a folder, and where a link is in place of what is written there.
    """
    held: set[Path] = set()
    with ExitStack() as stack:

        def hold(*folders: Path) -> None:
            for folder in folders:
                if folder not in held:
                    folder.mkdir(parents=True, exist_ok=True)
                    refuse_links(folder / name for name in (SPEC, REGISTERED, REFERENCES, LOCK, TUNING, REPORT))
                    stack.enter_context(locked(folder, f"out {folder}"))
                    held.add(folder)

        yield hold


def chosen_arms(spec: Spec, only: Sequence[str]) -> list[str]:
    """The arms whose names match one of the patterns; ValueError for a pattern that matches none."""
    for pattern in only:
        if not fnmatch.filter(spec.arms, pattern):
            raise ValueError(f"only: no arm matches {pattern!r}; {cli.nearest(pattern, spec.arms)}")
    return [arm for arm in spec.arms if not only or any(fnmatch.fnmatchcase(arm, pattern) for pattern in only)]


def _tuned(
    spec: Spec, arms: Sequence[str], out: Path, workers: int | None, engine: Engine, hold: Callable[..., None]
) -> Spec:
    """The spec with the learning rates of `arms` found; ValueError where that of one is not, with the reason."""
    open_arms = [arm for arm in arms if spec.arm(arm).learning_rate is None]
    if open_arms:
        search = search_of(spec)
        wanted = [name_at(arm, rate) for arm in open_arms for rate in spec.rates_of(arm)]
        runs = [(name, seed) for seed in search.seeds for name in wanted]
        _run(search, runs, out / TUNING, workers, engine, lambda: hold(out, out / TUNING))
    found = tuned(spec, out)
    for arm in open_arms:
        if found.arm(arm).learning_rate is None:
            reason = _no_rate(spec, arm, out / TUNING)
            raise ValueError(f"tuning.rates: no learning rate for arm {arm!r}: {reason}")
    return found


def _no_rate(spec: Spec, arm: str, out: Path) -> str:
    """Why the search in `out` has found none for that arm, and what can be done."""
    runs = [(name_at(arm, rate), seed) for rate in spec.rates_of(arm) for seed in spec.tuning.seeds]
    folders = {f"{name} seed {seed}": RunFolder(run_folder(out, name, seed)) for name, seed in runs}
    broken = [name for name, folder in folders.items() if not folder.finished and not folder.diverged]
    if not broken:
        return f"a run diverged at every rate, see {out}; try lower rates"
    first = folders[broken[0]]
    others = f" and {len(broken) - 1} more" if broken[1:] else ""
    return f"{broken[0]} {first.failure}, see {first.path / LOG}{others}; mend the cause and run the same command again"


def _run(
    spec: Spec,
    runs: Runs,
    out: Path,
    workers: int | None,
    engine: Engine,
    hold: Callable[[], None],
    retry: bool = False,
    references: bool = False,
) -> list[str]:
    """Run those of `runs` that have not ended, once `hold` has the folder; returns those that fail or diverge.

    references: before that, count what n-grams reach.
    """
    jobs = list(_jobs(spec, runs, out, engine))
    size = workers or engine.room(spec, jobs[0].device)
    if not size:
        raise ValueError(
            f"train.threads {spec.train.threads}: no machine has so many cores; lower it, or give workers where "
            "machines are still to join"
        )
    hold()  # only now, with every run checked: bad input leaves no folder behind
    waiting = [job for job in jobs if not _ended(job, retry)]
    save_json(out / SPEC, spec.model_dump(mode="json"))
    print(_plan(spec, jobs, waiting, size, out), flush=True)
    try:
        if references:
            save_references(spec, [arm for arm, _ in runs], out)
        _train(engine, spec, waiting, workers)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("every run is saved; run the same command again to go on") from None
    finally:
        _stop(engine)
    return [job.name for job in jobs if not RunFolder(job.folder).finished]


def _ended(job: Job, retry: bool) -> bool:
    """Whether the run needs no more training; ValueError where its folder is that of another run, or has links."""
    refuse_links_of_run(job.folder)
    folder = RunFolder(job.folder)
    folder.check(job.config)
    return folder.finished or (folder.diverged and not retry)


def _plan(spec: Spec, jobs: list[Job], waiting: list[Job], size: int, out: Path) -> str:
    """What there is to do, in one line."""
    lost = sum(RunFolder(job.folder).diverged for job in set(jobs) - set(waiting))
    runs = f"{len(jobs)} runs, {len(jobs) - len(waiting) - lost} finished before"
    diverged = f", {lost} diverged before" if lost else ""
    most = max((job.together for job in waiting if job.shape is not None), default=1)
    together = f", of equal shape up to {most} in a process" if most > 1 else ""
    return f"{spec.name}: {runs}{diverged}, {min(size, len(waiting))} at a time{together}, in {out.absolute()}"


def _stop(engine: Engine) -> None:
    """Stop the runs; who does not wait for that is told that they save themselves nonetheless."""
    try:
        engine.stop()
    except KeyboardInterrupt:
        message = "every run saves its last step and ends by itself; run the same command again to go on"
        raise KeyboardInterrupt(message) from None


def _jobs(spec: Spec, runs: Runs, out: Path, engine: Engine) -> Iterator[Job]:
    """The runs, each checked against its corpus, the machine and what its folder holds."""
    corpora: dict[CorpusSpec, Opened] = {}
    for arm, seed in runs:
        condition = spec.condition(arm)
        check(condition)
        section, device = condition.corpus, engine.device(condition)
        if section not in corpora:
            corpora[section] = open_corpus(section, spec.train.context)
        task = prepare(spec, arm, seed, out, corpora[section], device)
        config = task.config
        task.folder.check(config)
        together = engine.together(condition, device)
        alike = shape(condition) if together > 1 and not condition.code else None
        yield Job(out, arm, seed, device, spec.train.threads, config, alike, together, condition.trusted)


def finished(out: Path, arm: str, seed: int) -> bool:
    """Whether that run has its result."""
    return RunFolder(run_folder(out, arm, seed)).finished


def _train(engine: Engine, spec: Spec, waiting: list[Job], workers: int | None) -> None:
    """Keep the engine full until nothing waits, saying how each run ends."""
    waiting, total, active = list(waiting), len(waiting), list[list[Job]]()
    with tqdm(total=total, unit="run", desc=spec.name, disable=None, bar_format=BAR) as bar:
        while waiting or active:
            # The room is asked for each time: machines of a cluster come and go.
            while waiting and len(active) < (places := workers or engine.room(spec, waiting[0].device)):
                active.append(_company(waiting, places - len(active)))
                engine.start(*active[-1])
            time.sleep(POLL_SECONDS)
            for job in engine.ended():
                next(jobs for jobs in active if job in jobs).remove(job)
                tqdm.write(_line(job), file=sys.stderr)
            active = [jobs for jobs in active if jobs]
            shares = [_share(job, spec.train.total_steps) for jobs in active for job in jobs]
            bar.n = round(total - len(waiting) - len(shares) + sum(shares), 2)
            bar.refresh()


def _company(waiting: list[Job], places: int) -> list[Job]:
    """Take the next run out of `waiting`, with those that it shares a process with; others are left for more places."""
    first = waiting[0]
    alike = [job for job in waiting if job is first or (job.shape is not None and job.shape == first.shape)]
    taken = alike[: min(first.together, -(-len(alike) // places))]
    waiting[:] = [job for job in waiting if job not in taken]
    return taken


def _share(job: Job, steps: int | None) -> float:
    """How far a run is, from 0 to 1, by its last evaluation."""
    rows = read_lines(job.folder / METRICS)
    return rows[-1]["step"] / steps if rows and steps else 0.0


def _line(job: Job) -> str:
    """How a run has ended."""
    folder = RunFolder(job.folder)
    if not folder.finished:
        return f"{job.name} {folder.failure}, see {job.folder / LOG}"
    result: dict[str, Any] = folder.result or {}
    return (
        f"{job.name}: validation {result['final_val_bpb']:.4f} bits per byte "
        f"after {result['steps']} steps, {result['seconds']:.0f} s{label(result['causal'])}"
    )


@contextmanager
def opened(name: EngineName = "local", address: str | None = None) -> Iterator[Engine]:
    """The engine of that name. address: of a running Ray cluster, see `plkernel.study.ray_engine.connected`.

    Raises ValueError for another name, an address without Ray and Ray not installed, OSError when no cluster answers.
    """
    if name not in ("local", "ray"):
        raise ValueError(f"engine {name!r}: must be 'local' or 'ray'")
    if name == "local":
        if address is not None:
            raise ValueError(f"ray_address belongs to engine 'ray', got {address!r} with engine 'local': leave it out")
        yield LocalEngine()
    else:
        from plkernel.study.ray_engine import RayEngine, connected

        with connected(address) as ray:
            yield RayEngine(ray)
