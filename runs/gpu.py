"""make gpu: what only a GPU shows, in the minutes it is given: equality tests, calibration, then studies, by worth.

    python runs/gpu.py [--minutes 40] [--record FOLDER] [--only NAME ...] [--rehearse]

Needs no network and installs nothing: it uses what this interpreter has and what runs/gpu_pack.py has put into
runs/out/gpu-pack. A study that does not fit into the minutes has fewer seeds, never fewer arms. Ended runs are in the
record at once; a run that the end of the minutes, Ctrl-C or SIGTERM meets is saved, and the same command goes on.
"""

import fnmatch
import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACK = Path("runs/out/gpu-pack")
SITE = ROOT / PACK / f"site-{sys.version_info[0]}.{sys.version_info[1]}"
sys.path.insert(0, str(ROOT))
sys.path.append(str(SITE))
try:
    import torch
    from gpu_studies import Study, studies

    from plkernel.common import cli
    from plkernel.common.environment import environment
    from plkernel.common.files import load_object, save_json
    from plkernel.dry_run.budget import Due, plan, table
    from plkernel.dry_run.cost import shape_key
    from plkernel.dry_run.probe import Timing, wall_seconds
    from plkernel.dry_run.timing import measure, share_of_many
    from plkernel.results.layout import ROWS
    from plkernel.results.study import restore
    from plkernel.together.shape import count
except ModuleNotFoundError as error:
    print(f"nothing to do: {error.name} is not installed under {sys.executable}; runs/gpu_pack.py packs what lacks")
    sys.exit()

RESERVE = 30.0
"""Seconds before the end at which runs are asked to save: a step, a checkpoint, the record."""
TESTS = 170.0
EQUAL = "gpu and equal and not interpreted"
"""The tests that a GPU equals float64, as pytest -k has them; without a GPU they are skipped."""
BENCHMARKS = {"scan": 90.0, "wkv": 50.0, "wkv-bfloat16": 30.0, "train": 60.0}
"""Seconds of each, by the name of its record."""
OTHERS_SHAPE = ("wkv", "--shapes", "8", "1024", "8", "64", "--dtype", "bfloat16")
"""What flash-linear-attention times its own kernels with."""


@dataclass
class Benchmark:
    """A benchmark as a row of the plan."""

    name: str
    folder: Path

    def due(self) -> Due:
        """Once."""
        done = (self.folder / f"{self.name}.json").exists()
        return Due(f"bench {self.name}", (0, 0.0), {0: int(not done)}, BENCHMARKS[self.name])

    def run(self, seeds: Sequence[int], left: float) -> str:
        """Check and time; how that went, in words."""
        named = OTHERS_SHAPE if self.name == "wkv-bfloat16" else [self.name]
        command = ["plkernel.bench", *named, "--out", str(self.folder)]
        return run_module(command, min(left, 2 * BENCHMARKS[self.name]), self.folder / f"{self.name}.log")


def copy_bandwidth(device: str) -> float:
    """Bytes that a copy on the device reads and writes per second."""
    source = torch.zeros(2**30 if device == "cuda" else 2**24, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)

    def copy() -> None:
        target.copy_(source)
        float(target[0])  # waits for a GPU

    copy()
    return 2 * source.numel() / median(wall_seconds(copy) for _ in range(5))


def run_module(arguments: list[str], seconds: float, log: Path) -> str:
    """Run `python -m` with its output in a log; how it ended, in words."""
    if importlib.util.find_spec(arguments[0]) is None:
        return f"skipped: {arguments[0]} is not installed"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as handle:
        try:
            command = [sys.executable, "-m", *arguments]
            code = subprocess.run(command, stdout=handle, stderr=handle, timeout=seconds, check=False).returncode
        except subprocess.TimeoutExpired:
            return f"failed: stopped after {seconds:.0f} s, see {log}"
    return "done" if code == 0 else f"failed: exit code {code}, see {log}"


@contextmanager
def ended_by(seconds: float) -> Iterator[None]:
    """KeyboardInterrupt once, after `seconds` or by SIGTERM or Ctrl-C; what is saved then is not interrupted again."""

    def stop(number: int, _: Any) -> None:
        for each in (signal.SIGTERM, signal.SIGALRM, signal.SIGINT):
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt("the minutes are over" if number == signal.SIGALRM else signal.Signals(number).name)

    for number in (signal.SIGTERM, signal.SIGALRM, signal.SIGINT):
        signal.signal(number, stop)
    signal.setitimer(signal.ITIMER_REAL, max(1.0, seconds))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


class Session:
    """What was found out before the studies, kept in RECORD/gpu/gpu.json for this machine and commit."""

    def __init__(self, folder: Path, device: str) -> None:
        self.path, self.device = folder / "gpu.json", device
        here = environment(torch.get_num_threads())
        self.found: dict[str, Any] = {"environment": {name: here[name] for name in ("commit", "versions", "hardware")}}
        if self.path.exists() and (known := load_object(self.path)).get("environment") == self.found["environment"]:
            self.found = known
        self.paces: dict[str, dict[str, float]] = self.found.setdefault("paces", {})

    def once(self, name: str, find: Callable[[], Any]) -> Any:
        """What was found before, else what `find` finds now, which is kept unless it says that it failed."""
        if name in self.found:
            return self.found[name]
        found = find()
        if not str(found).startswith("failed"):
            self.found[name] = found
            save_json(self.path, self.found)
        return found

    def pace(self, study: Study) -> Timing | None:
        """That of the study's runs, as many together as a seed has; measured once, where anything is due."""
        condition = study.spec.condition(study.arms[0])
        runs = min(len(study.arms), count(condition.protocol, condition.model.dim, self.device))
        key = f"{runs} of {shape_key(condition, rough=True)}"
        if key not in self.paces and any(study.missing().values()):
            alone = measure(condition, 1)
            shared = share_of_many(condition, alone, runs)
            print(f"{study.name}: a step takes {1e3 * alone.step:.1f} ms, one of {runs} {1e3 * shared.step:.1f} ms")
            self.paces[key] = asdict(shared)
            save_json(self.path, self.found)
        return Timing(**self.paces[key]) if key in self.paces else None


def gpu(
    minutes: float = 40.0,
    record: Path | None = None,
    out: Path | None = None,
    corpus: str | None = None,
    only: tuple[str, ...] = (),
    rehearse: bool = False,
) -> None:
    """Test, calibrate, plan, and run what fits; what is in the record, or in runs/records, is not run again.

    Args:
        minutes: At most; three of them are for tests and calibration.
        record: Where the rows are kept, and taken from; runs/records if left out.
        out: Where runs are trained; runs/out/gpu if left out.
        corpus: Text of the published study and its audit, in place of the Portuguese Wikipedia; stdlib if left out.
        only: Rows of the plan, names or patterns such as 'exp013*'.
        rehearse: The whole plan at toy size on a CPU, into runs/out/gpu-rehearsal.
    """
    device, begin = "cpu" if rehearse else "cuda", time.monotonic()
    if not (rehearse or torch.cuda.is_available()):
        print("nothing to do: no GPU found (torch.cuda.is_available() is False); --rehearse runs the plan on a CPU")
        return
    out = (out or ROOT / "runs/out" / ("gpu-rehearsal" if rehearse else "gpu")).resolve()
    record = (record or (out / "records" if rehearse else ROOT / "runs/records")).resolve()
    os.chdir(ROOT)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(SITE), *filter(None, [os.environ.get("PYTHONPATH")])])

    def left() -> float:
        return 60 * minutes - RESERVE - (time.monotonic() - begin)

    session, failed = Session(record / "gpu", device), list[str]()
    with ended_by(left()):
        try:
            for name, lost in work(session, record, out, corpus, only, rehearse, left):
                failed += [name] * lost
        except KeyboardInterrupt as stopped:
            print(f"stopped ({stopped}): everything is saved, the same command goes on", flush=True)
    print(f"written: {record}")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def work(
    session: Session,
    record: Path,
    out: Path,
    corpus: str | None,
    only: Sequence[str],
    rehearse: bool,
    left: Callable[[], float],
) -> Iterator[tuple[str, bool]]:
    """Do it all; the name of each part, and whether it has failed."""

    def wanted(name: str) -> bool:
        return not only or any(fnmatch.fnmatchcase(name, pattern) for pattern in only)

    tests = ["pytest", "-q", "-W", "default", "-m", "not slow", "-k", EQUAL, "tests/kernels"]
    limit = left() if rehearse else min(TESTS, left())
    said = session.once("tests", lambda: run_module(tests, limit, record / "gpu" / "tests.log"))
    print(f"equality tests: {said}", flush=True)
    yield "equality tests", said.startswith("failed")
    rate = session.once("copy_bytes_per_second", lambda: copy_bandwidth(session.device))
    print(f"copy: {rate / 1e9:.0f} GB/s", flush=True)
    rows: list[Study | Benchmark] = []
    for study in studies(out, record, corpus, PACK, rehearse):
        for known in [study.record] if rehearse else [study.record, ROOT / "runs/records" / study.spec.name]:
            if (known / ROWS).exists() and (taken := restore(known, study.out)):
                print(f"{study.spec.name}: {taken} runs taken from {known}", flush=True)
        study.keep()  # what ended before kill -9 could be recorded
        if wanted(study.name):
            study.pace = session.pace(study)
            rows.append(study)
    if not rehearse:
        rows[1:1] = [one for name in BENCHMARKS if wanted((one := Benchmark(name, record / "gpu")).due().name)]
    if not rows:
        raise ValueError(f"only {' '.join(only)}: no row of the plan has such a name")
    print(f"{table(plan([row.due() for row in rows], left()))}\nof {left() / 60:.1f} minutes", flush=True)
    for row in rows:
        (share,) = plan([row.due()], left())
        if share.seeds:
            said = row.run(share.seeds, left())
            print(f"{row.name}: {said}", flush=True)
            yield row.name, said.startswith("failed")


if __name__ == "__main__":
    cli.main(gpu, prog="python runs/gpu.py")
