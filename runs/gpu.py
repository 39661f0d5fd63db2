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

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / f"runs/out/site-{sys.version_info[0]}.{sys.version_info[1]}"
sys.path.insert(0, str(ROOT))
sys.path.append(str(SITE))

PARTS = ("bench", "published-gpu", "ladder-gpu", "tests", "rates-gpu")
NEEDED = ("torch", "numba", "pydantic", "tyro", "safetensors", "filelock", "pytest")
SMALL = {"scan": "2 64 16", "wkv": "1 64 1 16", "wkv7": "1 64 1 16"}
"""Shapes on a CPU, where the benchmarks only show that they run."""
PROFILE, SHORT = 210.0, 30.0
"""Seconds of the profile on a GPU and on a CPU; a contender that has begun may end after them."""
RESERVE = 30.0
"""Seconds before the end at which runs are asked to save: a step, a checkpoint, the record."""
POLL = 2.0
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
    chosen, small = "gpu and equal and not interpreted", device == "cpu"
    commands = {"tests": ["pytest", "-q", "-m", "not slow", "-k", chosen, "tests/kernels"]}
    if part == "profile":
        (folder.parent / "bench").mkdir(exist_ok=True)
        options = ["--device", device, "--out", str(folder.parent / "bench")]
        seconds = min(PROFILE, max(left(), 0.0)) if not small else SHORT
        commands = {"profile": ["plkernel.bench", "profile", *options, "--seconds", str(seconds)]}
    if part == "bench":
        options = ["--device", device, "--out", str(folder), "--rounds", "1" if small else "15"]
        shapes = {name: ["--shapes", *shape.split()] for name, shape in SMALL.items() if small}
        commands = {
            f"bench {one}": ["plkernel.bench", one, *options, *shapes.get(one, [])]
            for one in (*SMALL, "train")
        }
    failed = []
    for name, command in commands.items():
        print(name, flush=True)
        try:
            subprocess.run(
                [sys.executable, "-m", *command], cwd=ROOT, timeout=max(left(), 0), check=True
            )
        except subprocess.SubprocessError as error:  # the studies come after it
            print(f"{name}: {error}", flush=True)
            failed.append(name)
    return failed


def variants() -> dict[str, tuple[str, str]]:
    """The tests of each new variant of a kernel, by the pattern of its contenders in the profile: a
    file and an expression.
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
    """Hold every variant against float64, each in a process of its own, all at a time; return the
    patterns of those that are wrong or have not ended in time.
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
            told = (log.read_text().strip().splitlines() or [""])[-1]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            code, told = 1, f"not ended after {limit:.0f} s"
        print(f"{pattern}: {told}", flush=True)
        if code != 0:
            bad.append(pattern)
    return bad


def sitting(device: str, folder: Path, left: Callable[[], float]) -> list[str]:
    """Equality of the variants, and the benchmarks that decide; return what failed."""
    bench = folder.parent / "bench"
    bench.mkdir(exist_ok=True)
    small = device == "cpu"
    skipped = [] if small else equal(folder, min(EQUAL, max(left(), 0.0)))
    failed, logs = list(skipped), []
    for part, most in SITTING.items():
        seconds = SHORT if small else min(most, max(left() - HANGS / 2, 0.0))
        command = [sys.executable, "-m", "plkernel.bench", part, "--device", device]
        command += ["--out", str(bench), "--seconds", str(seconds)]
        if part == "profile":
            command += ["--characters", CHARACTERS, *(["--skip", *skipped] if skipped else [])]
        log = folder / f"{part}.log"
        print(f"{part}, {seconds:.0f} s", flush=True)
        try:
            with log.open("w") as stream:
                limit = min(seconds + HANGS, max(left(), 0.0))
                subprocess.run(command, cwd=ROOT, stdout=stream, timeout=limit, check=True)
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
    out, record = out / name, record / name
    command = [
        sys.executable,
        "-m",
        "plkernel.experiment",
        spec,
        "--train.device",
        device,
        "--out",
        str(out),
    ]
    command += [
        "--workers",
        workers,
        "--no-report",
        *(["--record", str(record)] if (record / ROWS).exists() else []),
    ]
    process = subprocess.Popen(
        command, cwd=ROOT, process_group=0
    )  # Ctrl-C reaches it through this process alone
    kept = -1
    try:
        while process.poll() is None and left() > 0:
            time.sleep(POLL)
            if (ended := len(list(out.glob(f"*/seed-*/{RESULT}")))) != kept and (
                out / SPEC
            ).exists():
                save_record(read_study(out), record)
                kept = ended
    finally:
        stopped = process.poll() is None
        if stopped:
            process.send_signal(signal.SIGINT)
        process.wait()
        if (out / SPEC).exists():
            save_record(read_study(out), record)
    print(
        f"{name}: {'stopped, every run is saved' if stopped else 'done'}; written: {record}",
        flush=True,
    )
    return [] if stopped or process.returncode == 0 else [name]


def main() -> None:
    """Do the parts in turn; exit with 1 where one has failed."""
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
    options = parser.parse_args()
    end = time.monotonic() + 60 * options.minutes - RESERVE

    def left() -> float:
        return end - time.monotonic()

    if missing := [package for package in NEEDED if find_spec(package) is None]:
        sys.exit(f"nothing to do: {', '.join(missing)} not installed; give them in {SITE}")
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        print(
            "nothing to do: no GPU found (torch.cuda.is_available() is False); --device cpu shows"
            " that it runs"
        )
        return
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT), str(SITE), os.environ.get("PYTHONPATH", "")]
    ).rstrip(":")
    out, record = options.out.resolve(), options.record.resolve()
    failed: list[str] = []
    try:
        for part in options.parts:
            if left() <= 0:
                print(f"{part}: the minutes are over; the same command goes on", flush=True)
            elif part == "sitting":
                (record / "gpu").mkdir(parents=True, exist_ok=True)
                failed += sitting(options.device, record / "gpu", left)
            elif part in ("tests", "bench", "profile"):
                (record / "gpu").mkdir(parents=True, exist_ok=True)
                failed += check(part, options.device, record / "gpu", left)
            else:
                failed += study(part, options.device, out, record, left, options.workers)
    except KeyboardInterrupt:
        print("stopped: every run is saved, the same command goes on", flush=True)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
