"""A stopped run whose files were changed by hand: it goes on to the same rows, or is refused in one line."""

import json
import random
import shutil
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from plkernel.common.files import load_json
from plkernel.config.reading import load_spec
from plkernel.config.study import Spec
from plkernel.training.loop import prepare, run_training

pytestmark = pytest.mark.slow

SpecWriter = Callable[..., Path]
Stopped = Callable[[Spec, str, Path, int], Path]
Change = Callable[[Path], object]
ARM, OTHER = "uniform", "power-law"
CHECKPOINT, METRICS, TIMING = "checkpoint.safetensors", "metrics.jsonl", "timing.jsonl"
FLIPS = 20
"""Bits turned over in each region of a checkpoint."""


def evidence(folder: Path) -> tuple[bytes, dict]:
    """What must not depend on anything that happened on the way."""
    return (folder / METRICS).read_bytes(), {**load_json(folder / "result.json"), "seconds": None}


class Bench:
    """A stopped run beside another, and what it comes to undisturbed."""

    def __init__(self, spec: Spec, folder: Path, stopped: Stopped) -> None:
        self.spec, self.folder, self.home = spec, folder, folder / "home"
        for arm in (ARM, OTHER):
            stopped(spec, arm, folder / "kept", 6)
        shutil.copytree(folder / "kept", folder / "whole")
        run_training(prepare(spec, ARM, 0, folder / "whole"), progress_bar=False)
        self.expected = evidence(folder / "whole" / ARM / "seed-0")

    def outcome(self, change: Change) -> str:
        """How the run goes on once its folder was changed."""
        out, self.home = self.folder / "out", self.folder / "home"
        for path in (out, self.home):
            shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(self.folder / "kept", out)
        self.home.mkdir()
        (self.home / "file").write_text("precious\n")
        run = out / ARM / "seed-0"
        change(run)
        before = files(self.home)
        try:
            run_training(prepare(self.spec, ARM, 0, out), progress_bar=False)
        except (ValueError, OSError) as error:
            if files(self.home) != before:
                return "written elsewhere"
            return "refused" if str(out) in str(error) else "refused, names no file"
        except Exception as error:
            return f"traceback: {type(error).__name__}"
        if files(self.home) != before:
            return "written elsewhere"
        try:
            return "the same" if evidence(run) == self.expected else "silent difference"
        except ValueError:
            return "unreadable, exit 0"

    def count(self, changes: Iterator[Change]) -> Counter[str]:
        return Counter(map(self.outcome, changes))


def files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def bench(tiny_spec: SpecWriter, stopped: Stopped, tmp_path: Path) -> Bench:
    return Bench(load_spec(tiny_spec()), tmp_path, stopped)


HARMLESS = {"the same", "refused"}


def flipped(place: float, bit: int) -> Change:
    """A checkpoint with one bit turned over: at that share of its header below 0, of its tensors above."""

    def flip(run: Path) -> None:
        content = bytearray((run / CHECKPOINT).read_bytes())
        header = 8 + struct.unpack("<Q", content[:8])[0]
        index = int(-place * header) if place < 0 else header + int(place * (len(content) - header))
        content[index] ^= 1 << bit
        (run / CHECKPOINT).write_bytes(content)

    return flip


@pytest.mark.parametrize("region", ["header", "data"])
def test_flipped_bits(bench: Bench, region: str) -> None:
    draw = random.Random(0)
    sign = -1 if region == "header" else 1
    counts = bench.count(flipped(sign * draw.uniform(0.001, 0.999), draw.randrange(8)) for _ in range(FLIPS))
    print(region, dict(counts))
    assert not counts.keys() - HARMLESS
    if region == "data":
        assert counts["refused"] == FLIPS


def rewritten(change: Callable[[dict[str, torch.Tensor], dict[str, str]], object]) -> Change:
    """A checkpoint with its tensors and metadata changed, as a valid file."""

    def rewrite(run: Path) -> None:
        with safe_open(run / CHECKPOINT, framework="pt") as file:
            tensors, metadata = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
        change(tensors, metadata)
        save_file(tensors, run / CHECKPOINT, metadata)

    return rewrite


def tensors_changed() -> Iterator[Change]:
    conversions: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda x: x.to(torch.bfloat16),
        lambda x: x.to(torch.float64),
        lambda x: x.to(torch.int32),
        lambda x: x.flatten()[:1].clone(),
        lambda x: x.t().contiguous() if x.ndim == 2 else x.flip(0),
        lambda x: torch.zeros_like(x),
        lambda x: x + 0.5,
    ]
    for name in ("model.head.weight", "exp_avg.head.weight", "exp_avg_sq.head.weight"):
        for convert in conversions:
            yield rewritten(lambda tensors, _, n=name, c=convert: tensors.update({n: c(tensors[n])}))
        yield rewritten(lambda tensors, _, n=name: tensors.pop(n))
    yield rewritten(lambda tensors, _: tensors.update({"model.other": torch.zeros(3)}))


def progress_changed() -> Iterator[Change]:
    values = {"step": [0, 4, 8, -1, 2**70, "6", None, 6.5], "loss_sum": [0.0, 1e9], "loss_count": [0, 5, -2]}
    values |= {"metrics_bytes": [0, 10, 10**9, -1], "timing_bytes": [0, 10, 10**9], "seconds": ["x", -1.0]}
    for name, wrong in values.items():
        for value in wrong:

            def change(_: object, metadata: dict[str, str], name: str = name, value: object = value) -> None:
                metadata["progress"] = json.dumps({**json.loads(metadata["progress"]), name: value})

            yield rewritten(change)
    for text in ("", "null", "[]", "{", '{"step": 6', "[" * 5000):
        yield rewritten(lambda _, metadata, text=text: metadata.update(progress=text))
    yield rewritten(lambda _, metadata: metadata.clear())


def files_changed() -> Iterator[Change]:
    def whole(change: Callable[[bytes], bytes]) -> Change:
        return lambda run: (run / CHECKPOINT).write_bytes(change((run / CHECKPOINT).read_bytes()))

    for length in (0, 4, 8, 100, 1000, -1, -1000):
        yield whole(lambda content, length=length: content[:length])
    yield whole(lambda content: bytes(len(content)))
    yield whole(lambda content: content + b"more")
    yield whole(lambda content: content[:-2000] + bytes(2000))
    yield lambda run: shutil.copy(run.parent.parent / OTHER / "seed-0" / CHECKPOINT, run / CHECKPOINT)
    yield lambda run: (run / CHECKPOINT).unlink()


def rows_changed() -> Iterator[Change]:
    def lines(change: Callable[[list[bytes]], list[bytes]], name: str) -> Change:
        return lambda run: (run / name).write_bytes(b"".join(change((run / name).read_bytes().splitlines(True))))

    for name in (METRICS, TIMING):
        yield lambda run, name=name: (run / name).unlink()
        yield lambda run, name=name: (run / name).write_bytes(b"")
        yield lambda run, name=name: (run / name).write_bytes((run / name).read_bytes().replace(b"\n", b"\r\n"))
        yield lambda run, name=name: (run / name).write_bytes(bytes((run / name).stat().st_size))
        yield lambda run, name=name: shutil.copy(run.parent.parent / OTHER / "seed-0" / name, run / name)
        yield lambda run, name=name: (run / name).write_bytes((run / name).read_bytes().replace(b"1", b"2"))
        yield lambda run, name=name: (run / name).write_bytes((run / name).read_bytes() + b'{"step": 8, "by')
        yield lambda run, name=name: (run / name).write_bytes((run / name).read_bytes()[:-5])
        yield lines(lambda rows: rows[1:], name)
        yield lines(lambda rows: rows[:-1], name)
        yield lines(lambda rows: rows[::-1], name)
        yield lines(lambda rows: [*rows, rows[-1]], name)
        yield lines(lambda rows: [rows[0], *rows], name)
        yield lines(lambda rows: [b"null\n", *rows[1:]], name)
        yield lines(lambda rows: [rows[0][: len(rows[0]) // 2] + b"\n", *rows[1:]], name)


WRITTEN = ("config.json", "environment.json", METRICS, TIMING, "result.json", CHECKPOINT, ".lock")
PARTIAL = ".checkpoint.partial.safetensors"


def links_laid() -> Iterator[Change]:
    """Links out of the run's folder: to a file that is there, to one that is not, to a copy of what was there."""

    def link(run: Path, name: str, target: Path, keep: bool) -> None:
        if keep:
            (run / name).replace(target)
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(target)

    def home(run: Path) -> Path:
        return run.parents[2] / "home"

    for name in (*WRITTEN, PARTIAL):
        yield lambda run, name=name: link(run, name, home(run) / "file", keep=False)
        yield lambda run, name=name: link(run, name, home(run) / "new", keep=False)
    for name in WRITTEN[:4]:
        yield lambda run, name=name: link(run, name, home(run) / name, keep=True)
    for depth in (0, 1):

        def moved(run: Path, depth: int = depth) -> None:
            path = (run, run.parent)[depth]
            shutil.move(path, home(run) / "moved")
            path.symlink_to(home(run) / "moved")

        yield moved


@pytest.mark.parametrize("changes", [tensors_changed, progress_changed, files_changed, rows_changed, links_laid])
def test_changed_folders(bench: Bench, changes: Callable[[], Iterator[Change]]) -> None:
    counts = bench.count(changes())
    print(changes.__name__, dict(counts))
    assert not counts.keys() - HARMLESS
