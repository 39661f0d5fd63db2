"""One run before it starts: an arm of a spec at one seed, its corpus, its model and its folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from plkernel.config.condition import Condition
from plkernel.config.corpus import CorpusSpec
from plkernel.config.study import LARGEST_SEED, Spec
from plkernel.config.train import TrainSpec
from plkernel.data import corpora
from plkernel.data.corpora import Corpus, Splits
from plkernel.data.windows import check_length, check_size
from plkernel.models.words import Device
from plkernel.results.layout import run_folder
from plkernel.training.build import admit, check, check_backend, parameter_count
from plkernel.training.folder import RunFolder


@dataclass(frozen=True)
class Task:
    """One run: a condition at one seed, on an opened corpus, in a folder.

    device: the type of device it is trained on, where another machine has it; None for the one that is here.
    """

    condition: Condition
    seed: int
    corpus: Corpus
    splits: Splits
    folder: RunFolder
    device: str | None = None

    @property
    def train(self) -> TrainSpec:
        """The protocol."""
        return self.condition.protocol

    @property
    def name(self) -> str:
        return f"{self.condition.name} seed {self.seed}"

    @property
    def config(self) -> dict[str, Any]:
        """Everything that determines the run's numbers; the run folder refuses another."""
        config = self.condition.config
        return {
            "study": config["study"],
            "arm": config["arm"],
            "seed": self.seed,
            "corpus": {**config["corpus"], "size": self.corpus.size, "sha256": self.corpus.sha256},
            "model": {**config["model"], "parameters": parameter_count(self.condition)},
            "arm_options": config["arm_options"],
            "train": {**config["train"], "device": self.device or choose_device(self.train.device).type},
        }


Opened = tuple[Corpus, Splits]


def prepare(
    spec: Spec, arm: str, seed: int, out: Path, opened: Opened | None = None, device: str | None = None
) -> Task:
    """The run of an arm of a spec at a seed, in the folder `out` of the study; see `open_run`."""
    return open_run(spec.condition(arm), seed, run_folder(out, arm, seed), opened, device)


def open_run(
    condition: Condition, seed: int, folder: Path, opened: Opened | None = None, device: str | None = None
) -> Task:
    """Open the condition's corpus (unless `opened` has it) and check that it fits; nothing is written yet.

    Other people's code in the condition is tried here: that it builds a model, which trains and knows no later byte.

    folder: of the run. device: what it is trained on, where another machine answers for it; left out, what is here,
    checked. Raises ValueError on bad input.
    """
    if not 0 <= seed <= LARGEST_SEED:
        raise ValueError(f"seed must lie between 0 and {LARGEST_SEED}, got {seed}")
    if device is None:
        check_machine(condition)
    admit(condition)
    if condition.code:
        check(condition)
    corpus, splits = opened or open_corpus(condition.corpus, condition.protocol.context)
    return Task(condition, seed, corpus, splits, RunFolder(folder), device)


def open_corpus(section: CorpusSpec, context: int) -> Opened:
    """A corpus and its three blocks, each checked to hold at least one window of `context` predicted bytes."""
    corpus = corpora.load(section.name, **section.reading)
    splits = corpus.splits(section.validation, section.test)
    for name in ("train", "validation", "test"):
        check_length(getattr(splits, name), context, _split(name, section))
    return corpus, splits


def check_ahead(section: CorpusSpec, context: int) -> bool:
    """Refuse as `open_corpus` does, but read and fetch nothing; False where the size is not known before that."""
    size = corpora.size_ahead(section.name, **section.reading)
    if size is None:
        return False
    held_out = {name: int(size * getattr(section, name)) for name in ("validation", "test")}
    for name, length in {"train": size - sum(held_out.values()), **held_out}.items():
        check_size(length, context, _split(name, section))
    return True


def _split(name: str, section: CorpusSpec) -> str:
    return f"the {name} split of corpus {section.name!r}"


def choose_device(name: Device) -> torch.device:
    """The device called `name`, 'auto' being a GPU where there is one; ValueError where it does not exist."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device 'cuda' is not available here: use 'cpu' or 'auto'")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def check_machine(condition: Condition) -> torch.device:
    """The device of a condition's runs; ValueError when it or the forced backend does not exist here."""
    train = condition.protocol
    device = choose_device(train.device)
    check_backend(condition.model, train.backend, device)
    return device
