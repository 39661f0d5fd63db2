"""A study, run: every arm at every seed that has not ended yet, after the search for learning rates."""

import fnmatch
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tqdm import tqdm

from plkernel.common import cli
from plkernel.common.files import refuse_links, save_json
from plkernel.common.layout import (
    LOCK,
    LOG,
    REFERENCES,
    REGISTERED,
    REPORT,
    SPEC,
    TUNING,
    name_at,
    run_folder,
)
from plkernel.config.schema import CorpusSpec
from plkernel.config.study import Spec
from plkernel.data.corpora import Corpus, Splits
from plkernel.results.registration import changes, keep, registration_of
from plkernel.study.engine import Engine, EngineName, Job, LocalEngine
from plkernel.study.tuning import save_references, search_of, tuned
from plkernel.training.build import Prepared
from plkernel.training.evaluate import label
from plkernel.training.folder import RunFolder, locked
from plkernel.training.loop import Task, open_corpus

POLL_SECONDS = 0.2
AGAIN = "run the same command again to go on"


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
    engine: trains the runs; left out, this machine
    retry: go on with runs that diverged, from their last checkpoints; they would come to the same end otherwise

    Where the spec has tuning.rates, the search for their learning rates comes first, in out/tuning. A study may grow by
    seeds and arms; a run that another configuration made is refused, and so is a folder in which another experiment
    is under way. A registration of its name is copied to the folder. Raises ValueError on bad input before anything is
    written, KeyboardInterrupt after Ctrl-C with every run saved.
    """
    arms, engine = chosen_arms(spec, only), engine or LocalEngine()
    registration = registration_of(spec, out)
    if registration and (differing := changes(registration.spec, spec.model_dump(mode="json"))):
        print(f"note: otherwise than registered: {'; '.join(differing[:3])}", file=sys.stderr)
    held: set[Path] = set()
    with ExitStack() as stack:

        def hold(*folders: Path) -> None:
            """Keep other experiments out of these folders from now on."""
            for folder in folders:
                if folder not in held:
                    folder.mkdir(parents=True, exist_ok=True)
                    refuse_links(*(folder / name for name in (SPEC, REGISTERED, REFERENCES, LOCK, TUNING, REPORT)))
                    stack.enter_context(locked(folder, f"out {folder}"))
                    held.add(folder)
            keep(registration, out)

        untuned = [arm for arm in arms if spec.tuning.rates and spec.arm(arm).learning_rate is None]
        if untuned:
            search = search_of(spec)
            wanted = [name_at(arm, rate) for arm in untuned for rate in spec.rates_of(arm)]
            _run(search, wanted, out / TUNING, workers, engine, lambda: hold(out, out / TUNING))
        grid, spec = spec, tuned(spec, out) if spec.tuning.rates else spec
        for arm in untuned:
            if spec.arm(arm).learning_rate is None:
                reason = _no_rate(grid, arm, out / TUNING)
                raise ValueError(f"tuning.rates: no learning rate for arm {arm!r}: {reason}")
        return _run(spec, arms, out, workers, engine, lambda: hold(out), retry, references=True)


def chosen_arms(spec: Spec, only: Sequence[str]) -> list[str]:
    """The arms whose names match one of the patterns; ValueError for a pattern that matches none."""
    for pattern in only:
        if not fnmatch.filter(spec.arms, pattern):
            raise ValueError(f"only: no arm matches {pattern!r}; {cli.nearest(pattern, spec.arms)}")
    return [arm for arm in spec.arms if not only or any(fnmatch.fnmatchcase(arm, pattern) for pattern in only)]


def _no_rate(spec: Spec, arm: str, out: Path) -> str:
    """The reason why the search in `out` has no rate for that arm, and the remedy."""
    names = [(name_at(arm, rate), seed) for rate in spec.rates_of(arm) for seed in spec.tuning.seeds]
    runs = [(f"{name} seed {seed}", RunFolder(run_folder(out, name, seed))) for name, seed in names]
    broken = [(name, folder) for name, folder in runs if not folder.finished and not folder.diverged]
    if not broken:
        return f"a run diverged at every rate, see {out}; try lower rates"
    (name, folder), others = broken[0], f" and {len(broken) - 1} more" if broken[1:] else ""
    return f"{name} {folder.failure}, see {folder.path / LOG}{others}; mend the cause and run the same command again"


def _run(
    spec: Spec,
    arms: Sequence[str],
    out: Path,
    workers: int | None,
    engine: Engine,
    hold: Callable[[], None],
    retry: bool = False,
    references: bool = False,
) -> list[str]:
    """Run those of `arms` at the seeds of `spec` that have not ended, once `hold` has the folder.

    references: before that, count n-grams. Returns the names of the runs that fail or diverge.
    """
    jobs = _jobs(spec, arms, out, engine)
    size = workers or engine.room(spec, jobs[0].device)
    if not size:
        raise ValueError(
            f"train.threads {spec.train.threads}: no machine has so many cores; lower it, or give workers where "
            "machines are still to join"
        )
    hold()  # only now, with every run checked: bad input leaves no folder behind
    waiting, lost = [], 0
    for job in jobs:
        refuse_links(job.folder.parent, job.folder, *job.folder.glob("*"))
        folder = RunFolder(job.folder)
        folder.check(job.config)  # it may have been made since
        if folder.diverged and not retry:
            lost += 1
        elif not folder.finished:
            waiting.append(job)
    save_json(out / SPEC, spec.model_dump(mode="json"))
    before = f"{len(jobs) - len(waiting) - lost} finished before{f', {lost} diverged before' if lost else ''}"
    at_a_time = f"{min(size, len(waiting))} at a time, in {out.absolute()}"
    print(f"{spec.name}: {len(jobs)} runs, {before}, {at_a_time}", flush=True)
    try:
        if references:
            save_references(spec, arms, out)
        _train(engine, spec, waiting, workers)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"every run is saved; {AGAIN}") from None
    finally:
        try:
            engine.stop()
        except KeyboardInterrupt:  # from a user who does not wait
            raise KeyboardInterrupt(f"every run saves its last step and ends by itself; {AGAIN}") from None
    return [job.name for job in jobs if not RunFolder(job.folder).finished]


def _jobs(spec: Spec, arms: Sequence[str], out: Path, engine: Engine) -> list[Job]:
    """The runs, seed by seed, each checked against its corpus, the machine and the content of its folder."""
    corpora: dict[CorpusSpec, tuple[Corpus, Splits]] = {}
    prepared: list[tuple[Prepared, str]] = []
    for arm in arms:
        condition = spec.condition(arm)
        prepared.append((Prepared.of(condition), engine.device(condition)))
        if condition.corpus not in corpora:
            corpora[condition.corpus] = open_corpus(condition.corpus, spec.train.context)
    jobs = []
    for seed in spec.seeds:
        for ready, device in prepared:
            condition = ready.condition
            folder = RunFolder(run_folder(out, condition.name, seed))
            config = Task(ready, seed, *corpora[condition.corpus], folder, device).config
            folder.check(config)
            jobs.append(Job(out, condition.name, seed, device, spec.train.threads, config, condition.trusted))
    return jobs


def finished(out: Path, arm: str, seed: int) -> bool:
    """True where that run has its result."""
    return RunFolder(run_folder(out, arm, seed)).finished


def _train(engine: Engine, spec: Spec, jobs: Sequence[Job], workers: int | None) -> None:
    """Keep the engine full until nothing waits, and print how each run ends."""
    waiting, active = list(jobs), list[Job]()
    with tqdm(total=len(jobs), unit="run", desc=spec.name, disable=None) as bar:
        while waiting or active:
            # The room is asked for each time: machines of a cluster come and go.
            while waiting and len(active) < (workers or engine.room(spec, waiting[0].device)):
                active.append(waiting.pop(0))
                engine.start(active[-1])
            time.sleep(POLL_SECONDS)
            for job in engine.ended():
                active.remove(job)
                folder = RunFolder(job.folder)
                if (result := folder.result) and folder.finished:
                    bpb = f"{result['final_val_bpb']:.4f} bits per byte after {result['steps']} steps"
                    end = f": validation {bpb}, {result['seconds']:.0f} s{label(result['causal'])}"
                else:
                    end = f" {folder.failure}, see {job.folder / LOG}"
                tqdm.write(job.name + end, file=sys.stderr)
                bar.update()


@contextmanager
def opened(name: EngineName = "local", address: str | None = None) -> Iterator[Engine]:
    """The engine of that name. address: of a running Ray cluster, see `plkernel.study.ray_engine.connected`.

    Raises ValueError where Ray is not installed, OSError when no cluster answers.
    """
    if name == "ray":
        from plkernel.study.ray_engine import RayEngine, connected

        with connected(address) as ray:
            yield RayEngine(ray)
    else:
        yield LocalEngine()
