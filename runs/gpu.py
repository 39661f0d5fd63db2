"""make gpu: what only a GPU shows, in the minutes that are given.

    python runs/gpu.py [PART ...] [--minutes 40] [--workers N|auto] [--record FOLDER] [--out FOLDER]
                       [--device cuda]

Parts are done in the order given until the minutes are over; left out, they are bench,
published-gpu, ladder-gpu, tests and rates-gpu:

    bench    scan, wkv, wkv7 and a training step beside their peers; checked before they are timed
    profile  every variant of the kernels and every peer: time of a call, on the GPU alone, on the
             CPU, and beside what the chip could do at best; under four minutes
    sitting  all that decides between kernels, modes and numbers of workers, in one call of under
             ten minutes: the variants against float64, the profile without those that are wrong or
             hang, training steps of whole models, and how they grow; the tables come last
    tests    the tests of tests/kernels that need a GPU: results and gradients of every operator
             against float64
    SPEC     a study: a TOML file, or the name of one under runs/; its record has the rows as the
             runs end

Needs no network and installs nothing. Packages come from this interpreter, or from
runs/out/site-3.12 (the version of Python), a folder that `pip install --target` fills on another
machine. The end of the minutes, Ctrl-C and SIGTERM leave every run saved; the same command goes on,
on another machine too if it has the record.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / f"runs/out/site-{sys.version_info[0]}.{sys.version_info[1]}"
sys.path.insert(0, str(ROOT))
sys.path.append(str(SITE))

PARTS = ("bench", "published-gpu", "ladder-gpu", "tests", "rates-gpu")
NEEDED = ("torch", "numba", "pydantic", "tyro", "safetensors", "filelock", "pytest")
SMALL = {"scan": "2 64 16", "wkv": "1 64 1 16", "wkv7": "1 64 1 16"}
"""Shapes on a CPU, where the benchmarks only show that they run."""
PROFILE = 210.0
"""Seconds of the profile on a GPU; a contender that has begun may end after them."""
SHORT = 30.0
"""Seconds of a benchmark on a CPU."""
RESERVE = 30.0
"""Seconds before the end at which runs are asked to save: a step, a checkpoint, the record."""
POLL = 2.0
"""Seconds between two looks at a study."""
CHARACTERS = "6000"
"""Of the table of the profile in a sitting: the tables together stay below 12,000."""
EQUAL = 100.0
"""Seconds of the equality tests of a sitting: variants that wait for each other may wait for ever.
"""
SITTING = {"profile": 180.0, "step": 160.0, "growth": 110.0}
"""Seconds of the benchmarks of a sitting on a GPU, in this order; on a CPU SHORT."""
HANGS = 60.0
"""Seconds after its own that a benchmark of a sitting is stopped: a compilation fits in."""


def check(part: str, device: str, folder: Path, left: Callable[[], float]) -> list[str]:
    """Run tests, benchmarks or the profile, each in a process of its own; return what failed."""
    failed = []
    for name, command in commands_of(part, device, folder, left).items():
        print(name, flush=True)
        try:
            run_module(command, timeout=max(left(), 0.0))
        except subprocess.SubprocessError as error:  # the studies come after it
            print(f"{name}: {error}", flush=True)
            failed.append(name)
    return failed


def commands_of(
    part: str, device: str, folder: Path, left: Callable[[], float]
) -> dict[str, list[str]]:
    """By name, the modules that a part runs, with their arguments.

    The profile's record lies in bench, beside the folder.
    """
    on_cpu = device == "cpu"
    if part == "tests":
        chosen = "gpu and equal and not interpreted"
        return {"tests": ["pytest", "-q", "-m", "not slow", "-k", chosen, "tests/kernels"]}
    if part == "profile":
        bench = folder.parent / "bench"
        bench.mkdir(exist_ok=True)
        seconds = SHORT if on_cpu else min(PROFILE, max(left(), 0.0))
        return {"profile": bench_command("profile", device, bench, "--seconds", str(seconds))}
    rounds = "1" if on_cpu else "15"
    commands = {}
    for name in (*SMALL, "train"):
        command = bench_command(name, device, folder, "--rounds", rounds)
        if on_cpu and name in SMALL:
            command += ["--shapes", *SMALL[name].split()]
        commands[f"bench {name}"] = command
    return commands


def bench_command(name: str, device: str, out: Path, *options: str) -> list[str]:
    """The module of a benchmark and its arguments."""
    return ["plkernel.bench", name, "--device", device, "--out", str(out), *options]


def run_module(command: list[str], **options: Any) -> None:
    """Run a module with its arguments; SubprocessError if it fails or takes longer than timeout."""
    subprocess.run([sys.executable, "-m", *command], cwd=ROOT, check=True, **options)


def variants() -> dict[str, tuple[str, str]]:
    """A file of tests and an expression that chooses those of each new variant of a kernel.

    Their keys are the patterns of its contenders in the profile.
    """
    from plkernel.kernels.scan.gpu import VARIANTS

    found = {
        f"scan {name}": ("test_gpu.py", f"itself and ({name}-)")
        for name, plan in VARIANTS.items()
        if plan is not None
    }
    for name in ("wkv", "wkv7"):
        found[f"{name} tensor*"] = (f"test_{name}_tensor.py", "gpu and not interpreted")
    return found


def equal(folder: Path, limit: float) -> list[str]:
    """Hold every variant against float64, each in a process of its own, all at a time.

    Returns the patterns of those that are wrong or have not ended in time.
    """
    running = {}
    for pattern, (file, chosen) in variants().items():
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
        command += [f"tests/kernels/{file}", "-k", chosen, "-m", "not slow"]
        log = folder / f"equal-{pattern.strip('*').replace(' ', '-')}.log"
        with log.open("w") as stream:
            process = subprocess.Popen(
                command, cwd=ROOT, stdout=stream, stderr=stream, start_new_session=True
            )
        running[pattern] = (process, log)
    end = time.monotonic() + limit
    bad = []
    for pattern, (process, log) in running.items():
        try:
            code = process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            code = 1
            last_line = f"not ended after {limit:.0f} s"
        else:
            lines = log.read_text().strip().splitlines()
            last_line = lines[-1] if lines else ""
        print(f"{pattern}: {last_line}", flush=True)
        if code != 0:
            bad.append(pattern)
    return bad


def sitting(device: str, folder: Path, left: Callable[[], float]) -> list[str]:
    """Equality of the variants, and the benchmarks that decide; return what failed."""
    bench = folder.parent / "bench"
    bench.mkdir(exist_ok=True)
    on_cpu = device == "cpu"
    skipped = [] if on_cpu else equal(folder, min(EQUAL, max(left(), 0.0)))
    failed = list(skipped)
    logs = []
    for part, most in SITTING.items():
        seconds = SHORT if on_cpu else min(most, max(left() - HANGS / 2, 0.0))
        command = bench_command(part, device, bench, "--seconds", str(seconds))
        if part == "profile":
            command += ["--characters", CHARACTERS]
        if part == "profile" and skipped:
            command += ["--skip", *skipped]
        log = folder / f"{part}.log"
        print(f"{part}, {seconds:.0f} s", flush=True)
        try:
            with log.open("w") as stream:
                limit = min(seconds + HANGS, max(left(), 0.0))
                run_module(command, stdout=stream, timeout=limit)
        except subprocess.SubprocessError as error:  # the others come after it
            print(f"{part}: {error}", flush=True)
            failed.append(part)
        logs.append(log)
    for log in logs:
        print(log.read_text().rstrip(), flush=True)
    return failed


def study(
    spec: str, device: str, out: Path, record: Path, left: Callable[[], float], workers: str
) -> list[str]:
    """Train what has not ended in a process of its own, and keep the record; return what failed."""
    from plkernel.common.files import RESULT, ROWS, SPEC
    from plkernel.config.reading import load_spec
    from plkernel.results.record import save_record
    from plkernel.results.study import read_study

    name = load_spec(Path(spec)).name
    out = out / name
    record = record / name
    command = [sys.executable, "-m", "plkernel.experiment", spec, "--train.device", device]
    command += ["--out", str(out), "--workers", workers, "--no-report"]
    if (record / ROWS).exists():
        command += ["--record", str(record)]
    # In a group of its own, Ctrl-C reaches it through this process alone.
    process = subprocess.Popen(command, cwd=ROOT, process_group=0)
    recorded = -1
    try:
        while process.poll() is None and left() > 0:
            time.sleep(POLL)
            ended = len(list(out.glob(f"*/seed-*/{RESULT}")))
            if ended != recorded and (out / SPEC).exists():
                save_record(read_study(out), record)
                recorded = ended
    finally:
        stopped = process.poll() is None
        if stopped:
            process.send_signal(signal.SIGINT)
        process.wait()
        if (out / SPEC).exists():
            save_record(read_study(out), record)
    outcome = "stopped, every run is saved" if stopped else "done"
    print(f"{name}: {outcome}; written: {record}", flush=True)
    return [] if stopped or process.returncode == 0 else [name]


def main() -> None:
    """Do the parts in turn; exit with 1 where one has failed."""
    options = arguments()
    end = time.monotonic() + 60 * options.minutes - RESERVE

    def left() -> float:
        return end - time.monotonic()

    missing = [package for package in NEEDED if find_spec(package) is None]
    if missing:
        sys.exit(f"nothing to do: {', '.join(missing)} not installed; give them in {SITE}")
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        print(
            "nothing to do: no GPU found (torch.cuda.is_available() is False); --device cpu shows"
            " that it runs"
        )
        return
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    folders = [str(ROOT), str(SITE), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(folders).rstrip(os.pathsep)
    out = options.out.resolve()
    record = options.record.resolve()
    failed: list[str] = []
    try:
        for part in options.parts:
            if left() <= 0:
                print(f"{part}: the minutes are over; the same command goes on", flush=True)
            elif part in ("sitting", "tests", "bench", "profile"):
                folder = record / "gpu"
                folder.mkdir(parents=True, exist_ok=True)
                if part == "sitting":
                    failed += sitting(options.device, folder, left)
                else:
                    failed += check(part, options.device, folder, left)
            else:
                failed += study(part, options.device, out, record, left, options.workers)
    except KeyboardInterrupt:
        print("stopped: every run is saved, the same command goes on", flush=True)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", default=PARTS)
    parser.add_argument("--minutes", type=float, default=40.0)
    parser.add_argument("--record", type=Path, default=ROOT / "runs/records")
    parser.add_argument("--out", type=Path, default=ROOT / "runs/out/gpu")
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda", help="cpu: small, to see that it runs"
    )
    parser.add_argument(
        "--workers",
        default="1",
        help="runs of a study at a time, on one GPU too, or auto (default: 1)",
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
