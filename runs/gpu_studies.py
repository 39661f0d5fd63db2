"""The studies of runs/gpu.py as rows of its plan: which arms, at what pace, what of them is due, and their record."""

import fnmatch
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plkernel.common.files import load_object, save_json
from plkernel.config.reading import load_values, spec_of
from plkernel.config.study import Spec
from plkernel.dry_run.budget import Due
from plkernel.dry_run.estimate import seconds_of
from plkernel.dry_run.probe import Timing
from plkernel.results.layout import SPEC, TUNING, run_folder
from plkernel.results.study import read_study, save_record
from plkernel.study.engine import Job
from plkernel.study.local_engine import LocalEngine
from plkernel.study.schedule import run_experiment
from plkernel.study.tuning import search_of
from plkernel.training.folder import RunFolder

RUNS = Path(__file__).resolve().parent
MAIN = ("*_uniform_{0}", "*_published_{0}", "*-at-*_{0}")
"""The arms of the audit whose differences its record gives, of one block of gain and patching."""
STUDIES = {
    "exp013": [("*",)],
    "exp013-audit-gpu": [
        tuple(pattern.format(block) for pattern in MAIN)
        for block in ("none_published", "none_bytes", "ema_bytes", "ema_published")
    ],
    "memory-lags-gpu": [("*",)],
    "memory-text-gpu": [("*",)],
}
"""In order of worth: specs of runs/, and the arms of each row of the plan. The benchmarks come after the first."""
TOY: dict[tuple[str, ...], Any] = {
    **{("model", name): value for name, value in {"dim": 16, "layers": 1}.items()},
    **{("train", name): value for name, value in {"context": 64, "batch": 2, "steps": 40, "warmup": 1}.items()},
    **{("train", name): value for name, value in {"eval_every": 20, "eval_windows": 2, "test_windows": 2}.items()},
    **{("train", "device"): "cpu", ("train", "together"): 8, ("corpus", "max_bytes"): 100_000},
    **{("seeds",): [0, 1], ("report_steps",): [], ("hypotheses",): [], ("gates",): []},
}


@dataclass
class Recording(LocalEngine):
    """This machine, which keeps a record of what has ended."""

    keep: Callable[[], None] = lambda: None

    def ended(self) -> list[Job]:
        jobs = super().ended()
        if jobs:
            self.keep()
        return jobs


@dataclass
class Study:
    """A row of the plan: some arms of a spec, in the folder that all rows of the spec share."""

    name: str
    spec: Spec
    arms: tuple[str, ...]
    out: Path
    record: Path
    pace: Timing | None = None

    def missing(self) -> dict[int, int]:
        """How many of its runs have not ended, by seed."""
        return {seed: sum(not ended(self.out, arm, seed) for arm in self.arms) for seed in self.spec.seeds}

    def due(self) -> Due:
        """What has not ended, at the pace that was measured."""
        missing = self.missing()
        if self.pace is None or not any(missing.values()):
            return Due(self.name, (0, 0.0), dict.fromkeys(missing, 0), 0.0)
        searched = (0, 0.0)
        if self.spec.tuning.rates:
            search = search_of(self.spec.with_conditions({arm: self.spec.condition(arm) for arm in self.arms}))
            runs = sum(not ended(self.out / TUNING, arm, seed) for arm in search.arms for seed in search.seeds)
            searched = (runs, seconds(search, self.pace))
        return Due(self.name, searched, missing, seconds(self.spec, self.pace))

    def run(self, seeds: Sequence[int], left: float) -> str:
        """Train all of its arms at these seeds; how that went, in words."""
        wanted = tuple(seed for seed, runs in self.missing().items() if seed in seeds or not runs)
        spec = self.spec.model_copy(update={"seeds": wanted}).with_conditions(
            {arm: self.spec.condition(arm) for arm in self.spec.arms}
        )
        try:
            failed = run_experiment(spec, self.out, only=self.arms, engine=Recording(keep=self.keep))
        except (ValueError, OSError) as error:
            return f"failed: {error}"
        finally:
            self.keep()
        return f"failed: {', '.join(failed)}" if failed else "done"

    def keep(self) -> None:
        """Write the record: of every seed of the spec, whichever were asked for."""
        path = self.out / SPEC
        if self.out.exists():
            values = load_object(path) if path.exists() else self.spec.model_dump(mode="json")
            save_json(path, {**values, "seeds": list(self.spec.seeds)})
            save_record(read_study(self.out), self.record)


def ended(study: Path, arm: str, seed: int) -> bool:
    """Whether that run has, with a result or in a loss that is no number; one that failed is tried again."""
    folder = RunFolder(run_folder(study, arm, seed))
    return folder.finished or folder.diverged


def seconds(spec: Spec, pace: Timing) -> float:
    """Of one run: a place of the truncation curve costs two windows, of 1 + 2 + 4 .. context bytes."""
    steps = spec.train.total_steps
    assert steps is not None
    return seconds_of(spec.train, pace, steps) + 2 * spec.train.truncation_windows * pace.evaluation


def studies(out: Path, record: Path, corpus: str | None, pack: Path, rehearse: bool) -> Iterator[Study]:
    """The rows of STUDIES; `corpus` stands for a text that is on the network, and one that is packed for `stdlib`."""
    packed = pack / "stdlib.txt"
    text = str(packed) if packed.exists() else "stdlib"
    for stem, rows in STUDIES.items():
        path = RUNS / f"{stem}.toml"
        values = load_values(path)
        changes: dict[tuple[str, ...], Any] = {("train", "device"): "cuda", ("train", "together"): "auto"}
        if (named := values.get("corpus", {}).get("name")) == "wiki-pt":
            chosen = corpus or text
            changes[("corpus", "name")] = chosen
            changes[("name",)] = f"{stem}-{re.sub('[^A-Za-z0-9]+', '-', Path(chosen).stem)}"
        elif named == "stdlib":
            changes[("corpus", "name")] = text
        if rehearse:
            changes |= _toy(values)
        spec = spec_of(values, path, changes)
        for patterns in rows:
            arms = tuple(arm for arm in spec.arms if any(fnmatch.fnmatchcase(arm, pattern) for pattern in patterns))
            name = stem if len(rows) == 1 else f"{stem} {patterns[0].removeprefix('*_uniform_')}"
            yield Study(name, spec, arms, out / spec.name, record / spec.name)


def _toy(values: dict[str, Any]) -> dict[tuple[str, ...], Any]:
    """What makes a spec small; nodes from files, which are for one width, are left out of `values`."""
    for arm in values["arms"].values():
        arm.pop("node_file", None)
    changes = dict(TOY)
    if "truncation_windows" in values["train"]:
        changes[("train", "truncation_windows")] = 2
    if tuning := values.get("tuning"):
        changes |= {("tuning", "rates"): tuning["rates"][:2], ("tuning", "steps"): 2}
    return changes
