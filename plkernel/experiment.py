"""python -m plkernel.experiment SPEC: conditions x seeds, several processes at a time, resumable, with a report."""

import fnmatch
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from tqdm import tqdm

from plkernel import cli
from plkernel.environment import COMMAND, command_line
from plkernel.objective import label
from plkernel.run import RunFolder
from plkernel.spec import CorpusSpec, Spec
from plkernel.storage import read_lines, save_json
from plkernel.studies import METRICS, SPEC, TUNING, run_folder
from plkernel.task import Opened, check_machine, open_corpus, prepare
from plkernel.tuning import name_at, search_of, tuned

LOG = "log.txt"
POLL_SECONDS = 0.2


@dataclass
class Worker:
    """A process that trains one run, on one of the study's devices."""

    arm: str
    seed: int
    device: str | None
    process: subprocess.Popen[bytes]


@dataclass
class Pool:
    """Runs of one study, at most `size` at a time."""

    spec: Spec
    out: Path
    size: int
    devices: list[str | None]
    active: list[Worker] = field(default_factory=list)

    def start(self, arm: str, seed: int) -> None:
        """Start one run in a process of its own; what it prints goes to log.txt in its folder."""
        folder = run_folder(self.out, arm, seed)
        folder.mkdir(parents=True, exist_ok=True)
        arguments = [str(self.out / SPEC), "--arm", arm, "--seed", str(seed), "--out", str(self.out)]
        arguments += ["--no-progress", "--stop-with", str(os.getpid())]
        device = self.idlest_device()
        with (folder / LOG).open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "plkernel.train", *arguments],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=self._environment(device),
                start_new_session=True,  # Ctrl-C reaches the workers once, through stop()
            )
        self.active.append(Worker(arm, seed, device, process))

    def ended(self) -> list[Worker]:
        """Take the processes that have ended out of the pool."""
        done = [worker for worker in self.active if worker.process.poll() is not None]
        self.active = [worker for worker in self.active if worker not in done]
        return done

    def stop(self) -> None:
        """Ask every worker to save and end, and wait for them."""
        for worker in self.active:
            worker.process.send_signal(signal.SIGINT)
        for worker in self.active:
            worker.process.wait()

    def idlest_device(self) -> str | None:
        """The device with the fewest runs on it; None on a CPU."""
        busy = [worker.device for worker in self.active]
        return min(self.devices, key=busy.count)

    def _environment(self, device: str | None) -> dict[str, str]:
        threads = str(self.spec.train.threads)
        environment = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        environment[COMMAND] = command_line()
        return environment if device is None else {**environment, "CUDA_VISIBLE_DEVICES": device}


Runs = list[tuple[str, int]]


def run_experiment(spec: Spec, out: Path, workers: int | None = None, only: Sequence[str] = ()) -> list[str]:
    """Run every arm at every seed that has not finished yet; returns the names of the runs that failed.

    only: patterns of arm names such as 'quantile*'; left out, all arms. Where the spec has tuning.rates, the search for
    their learning rates comes first, in out/tuning. A study may grow by seeds and arms; a run that another
    configuration made is refused. Raises ValueError on bad input before anything is written, KeyboardInterrupt after
    Ctrl-C with every run saved.
    """
    arms = chosen_arms(spec, only)
    if spec.tuning.rates:
        spec = _tuned(spec, arms, out, workers)
    return _run(spec, [(arm, seed) for seed in spec.seeds for arm in arms], out, workers)


def chosen_arms(spec: Spec, only: Sequence[str]) -> list[str]:
    """The arms whose names match one of the patterns; ValueError for a pattern that matches none."""
    for pattern in only:
        if not fnmatch.filter(spec.arms, pattern):
            raise ValueError(f"only: no arm matches {pattern!r}; {cli.nearest(pattern, spec.arms)}")
    return [arm for arm in spec.arms if not only or any(fnmatch.fnmatchcase(arm, pattern) for pattern in only)]


def _tuned(spec: Spec, arms: Sequence[str], out: Path, workers: int | None) -> Spec:
    """The spec with the learning rates of `arms` found; ValueError where every rate of an arm diverges."""
    open_arms = [arm for arm in arms if spec.arm(arm).learning_rate is None]
    if open_arms:
        search = search_of(spec)
        wanted = [name_at(arm, rate) for arm in open_arms for rate in spec.rates_of(arm)]
        _run(search, [(name, seed) for seed in search.seeds for name in wanted], out / TUNING, workers, diverging=True)
    found = tuned(spec, out)
    for arm in open_arms:
        if found.arm(arm).learning_rate is None:
            raise ValueError(f"tuning.rates: no learning rate for arm {arm!r}, see {out / TUNING}; try lower rates")
    return found


def _run(spec: Spec, runs: Runs, out: Path, workers: int | None, diverging: bool = False) -> list[str]:
    """Run those of `runs` that have not ended; returns those that fail. diverging: to diverge is an end as well."""
    opened: dict[CorpusSpec, Opened] = {}
    for arm, seed in runs:
        section = spec.corpus_of(arm)
        opened.setdefault(section, open_corpus(section, spec.train.context))
        task = prepare(spec, arm, seed, out, opened[section])
        task.folder.check(task.config)
    device = check_machine(spec, runs[0][0])
    save_json(out / SPEC, spec.model_dump(mode="json"))

    def ended(arm: str, seed: int) -> bool:
        folder = RunFolder(run_folder(out, arm, seed))
        return folder.finished or (diverging and folder.diverged)

    waiting = [run for run in runs if not ended(*run)]
    devices: list[str | None] = [None]
    if device.type == "cuda":
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        devices = list(visible.split(",") if visible else map(str, range(torch.cuda.device_count())))
    pool = Pool(spec, out, workers or default_workers(spec, len(devices), device.type), devices)
    print(
        f"{spec.name}: {len(runs)} runs, {len(runs) - len(waiting)} finished before, "
        f"{min(pool.size, len(waiting))} at a time, in {out}",
        flush=True,
    )
    try:
        failed = list(_work(pool, waiting))
    except KeyboardInterrupt:
        pool.stop()
        raise KeyboardInterrupt("every run is saved; run the same command again to go on") from None
    return [f"{arm} seed {seed}" for arm, seed in failed if not ended(arm, seed)]


def finished(out: Path, arm: str, seed: int) -> bool:
    """Whether that run has its result."""
    return RunFolder(run_folder(out, arm, seed)).finished


def default_workers(spec: Spec, devices: int, kind: str) -> int:
    """One run per GPU; on a CPU as many as the cores allow with the spec's threads each."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return devices if kind == "cuda" else max(1, cores // spec.train.threads)


def _work(pool: Pool, waiting: Runs) -> Iterator[tuple[str, int]]:
    """Keep the pool full until nothing waits; yields the runs that did not finish."""
    waiting = list(waiting)
    total = len(waiting)
    steps = pool.spec.train.total_steps
    with tqdm(total=total, unit="run", desc=pool.spec.name, disable=None, bar_format=BAR) as bar:
        while waiting or pool.active:
            while waiting and len(pool.active) < pool.size:
                pool.start(*waiting.pop(0))
            time.sleep(POLL_SECONDS)
            for worker in pool.ended():
                name = f"{worker.arm} seed {worker.seed}"
                if finished(pool.out, worker.arm, worker.seed):
                    tqdm.write(_line(pool.out, worker), file=sys.stderr)
                else:
                    log = run_folder(pool.out, worker.arm, worker.seed) / LOG
                    tqdm.write(f"{name} did not finish, see {log}", file=sys.stderr)
                    yield worker.arm, worker.seed
            shares = [_share(pool.out, worker, steps) for worker in pool.active]
            bar.n = round(total - len(waiting) - len(pool.active) + sum(shares), 2)
            bar.refresh()


BAR = "{desc}: {percentage:3.0f}%|{bar}| {n:.2f}/{total_fmt} runs [{elapsed}<{remaining}]"


def _share(out: Path, worker: Worker, steps: int | None) -> float:
    """How far a run is, from 0 to 1, by its last evaluation."""
    rows = read_lines(run_folder(out, worker.arm, worker.seed) / METRICS)
    return rows[-1]["step"] / steps if rows and steps else 0.0


def _line(out: Path, worker: Worker) -> str:
    result: dict[str, Any] = RunFolder(run_folder(out, worker.arm, worker.seed)).result or {}
    return (
        f"{worker.arm} seed {worker.seed}: validation {result['final_val_bpb']:.4f} bits per byte "
        f"after {result['steps']} steps, {result['seconds']:.0f} s{label(result['causal'])}"
    )


def forecast(spec: Spec, only: Sequence[str], workers: int | None) -> str:
    """Parameters, operations, memory and hours of every run and of the whole, the search included, as a table."""
    from plkernel.estimate import estimate, text

    arms = chosen_arms(spec, only)
    chosen = spec.model_copy(update={"arms": {name: spec.arms[name] for name in arms}})
    searched = spec.tuning.rates and any(arm.learning_rate is None for arm in chosen.arms.values())
    return text(estimate(chosen, workers, search=search_of(chosen) if searched else None))


def command(
    spec: Annotated[Spec, tyro.conf.arg(name="")],
    out: Path | None = None,
    workers: int | None = None,
    only: tuple[str, ...] = (),
    dry_run: bool = False,
    report: bool = True,
) -> None:
    """Run every condition at every seed, skip what has finished, resume what has not, then write the report.

    Runs of one seed share base weights and data order; each run is a process of its own. Ctrl-C saves every run; the
    same command goes on. Learning curves: tensorboard --logdir OUT.

    Args:
        out: Folder of the study; runs/out/NAME if left out.
        workers: Runs at a time; on a CPU cores / train.threads if left out, on GPUs one each.
        only: Run these arms only: names or patterns such as 'quantile*'.
        dry_run: Write and train nothing: say what each run and the whole would take, from a few real steps.
        report: Write the report at the end.
    """
    if workers is not None and workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    if dry_run:
        print(forecast(spec, only, workers))
        return
    folder = out or Path("runs/out") / spec.name
    failed = run_experiment(spec, folder, workers, only)
    if report and any(finished(folder, arm, seed) for arm in spec.arms for seed in spec.seeds):
        from plkernel.report import report as print_report

        print_report(folder)
    if failed:
        print(f"did not finish: {', '.join(failed)}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    from plkernel import spec_cli

    spec_cli.main(command)
