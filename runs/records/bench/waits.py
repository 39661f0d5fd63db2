"""Time commands that a reader waits for, from start to end: a report, a measurement and a fit.

python runs/records/bench/waits.py writes waits.json beside itself: seconds of CPU and on the clock,
the median and quartiles of ROUNDS rounds, in each of which every command runs once.
"""

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from plkernel.common.environment import environment
from plkernel.common.files import save_json

ROUNDS = 5
PLACE = Path(__file__).resolve().parent
ROOT = PLACE.parents[2]
STUDY = "memory-dose"
TEXT_BYTES = 8_000


def commands(folder: Path) -> dict[str, list[str]]:
    """Arguments of every command by its name in the table; files go to a folder."""
    text = folder / "text"
    text.write_bytes((ROOT / "docs" / "measuring.md").read_bytes()[:TEXT_BYTES])
    runs = len((ROOT / "runs/records" / STUDY / "rows.jsonl").read_text().splitlines())
    record = f"runs/records/{STUDY}"
    out = ["--out", str(folder / "out")]
    return {
        f"report of {runs} runs": ["plkernel.report", record, *out],
        f"measure of {TEXT_BYTES // 1000} kB": ["plkernel.measure", str(text), *out],
        "fit --beta 1.15": ["plkernel.fit", "--beta", "1.15", *out],
    }


def seconds(arguments: list[str]) -> tuple[float, float]:
    """CPU seconds and seconds on the clock of a command, from its start to its end."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, check=True, capture_output=True)
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu, wall


def main() -> None:
    """Run every command in turns, and write the record."""
    with tempfile.TemporaryDirectory() as name:
        made = commands(Path(name))
        times = {command: [seconds(arguments)] for command, arguments in made.items()}
        times = {command: [] for command in times}  # the first round fills caches
        for _ in range(ROUNDS):
            for command, arguments in made.items():
                times[command].append(seconds(arguments))
    rows = []
    for command, measured in times.items():
        quartiles = np.quantile(np.array(measured), [0.25, 0.5, 0.75], axis=0)
        for place, kind in enumerate(("CPU", "clock")):
            low, median, high = (float(one) for one in quartiles[:, place])
            rows.append(
                {"command": command, "time": kind, "low": low, "median": median, "high": high}
            )
    save_json(PLACE / "waits.json", {"environment": environment(1), "rows": rows})


if __name__ == "__main__":
    main()
