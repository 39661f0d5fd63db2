"""The process of its own in which one and two threads take turns; `plkernel.benchmarks.threads` starts it.

python -m plkernel.benchmarks.threads_process NAME NEIGHBOURS ROUNDS [SPEC]: as JSON.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import torch

from plkernel.benchmarks import scan, scan_peers, train, wkv, wkv_peers
from plkernel.benchmarks.contest import Spread, interleave
from plkernel.config.reading import load_spec

REPEAT = 3  # calls timed together: the first of them finds the threads asleep
BUSY = "while True: pass"


def compare(step: Callable[[], Any], rounds: int) -> dict[str, Spread]:
    """One and two threads of a step, taken in turns."""
    times = interleave({str(n): partial(_with_threads, n, step) for n in (1, 2)}, rounds, repeat=REPEAT)
    return {"one": times.spread("1"), "two": times.spread("2"), "speedup": times.ratio("1", "2")}


def _with_threads(threads: int, step: Callable[[], Any]) -> None:
    torch.set_num_threads(threads)
    step()


def _step(name: str, spec: str | None) -> Callable[[], Any]:
    if name == "scan":
        return scan_peers.ours(*scan.problem(scan.SHAPES["cpu"][0], "cpu"))
    if name == "wkv":
        return wkv_peers.ours(wkv_peers.problem(wkv.SHAPES[0]))
    assert spec is not None
    loaded, place = load_spec(spec), torch.device("cpu")
    return train._step(train._model(loaded.model, place), loaded, place)


def _main(name: str, neighbours: str, rounds: str, spec: str | None = None) -> None:
    step = _step(name, spec)
    _with_threads(1, step)  # compiles, in which a second thread would bring nothing
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(int(neighbours))]
    try:
        print(json.dumps({key: asdict(value) for key, value in compare(step, int(rounds)).items()}))
    finally:
        for process in busy:
            process.kill()
            process.wait()


if __name__ == "__main__":
    _main(*sys.argv[1:])
