"""One run before it starts: an arm of a spec at one seed, its corpus, its model and its folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from plkernel.data import corpora
from plkernel.data.corpora import Corpus, Splits
from plkernel.data.windows import check_length, check_size
from plkernel.records.study import run_folder
from plkernel.run.build import check_backend, parameter_count
from plkernel.run.folder import RunFolder
from plkernel.spec.arm import IN_THE_STUDY
from plkernel.spec.study import LARGEST_SEED, CorpusSpec, Device, Spec
from plkernel.spec.train import TrainSpec


@dataclass(frozen=True)
class Task:
    """One run: an arm of a spec at one seed, on an opened corpus, in a folder.

    device: the type of device it is trained on, where another machine has it; None for the one that is here.
    """

    spec: Spec
    arm: str
    seed: int
    corpus: Corpus
    splits: Splits
    folder: RunFolder
    device: str | None = None

    @property
    def train(self) -> TrainSpec:
        """The protocol, with the learning rate of the arm where it has its own."""
        rate = self.spec.arm(self.arm).learning_rate
        return self.spec.train if rate is None else self.spec.train.model_copy(update={"learning_rate": rate})

    @property
    def config(self) -> dict[str, Any]:
        """Everything that determines the run's numbers; the run folder refuses another."""
        spec, arm, model = self.spec, self.spec.arm(self.arm), self.spec.model_of(self.arm)
        corpus = {**spec.corpus_of(self.arm).model_dump(), "size": self.corpus.size, "sha256": self.corpus.sha256}
        return {
            "study": spec.name,
            "arm": self.arm,
            "seed": self.seed,
            "corpus": corpus,
            "model": {**model.model_dump(), "parameters": parameter_count(model, arm)},
            "arm_options": arm.model_dump(exclude=set(IN_THE_STUDY)),
            "train": {**self.train.model_dump(), "device": self.device or choose_device(spec.train.device).type},
        }


Opened = tuple[Corpus, Splits]


def prepare(
    spec: Spec, arm: str, seed: int, out: Path, opened: Opened | None = None, device: str | None = None
) -> Task:
    """Open the arm's corpus (unless `opened` has it) and check that it fits; nothing is written yet.

    device: what the run is trained on, where another machine answers for it; left out, what is here, checked.
    Raises ValueError on bad input.
    """
    spec.arm(arm)
    if not 0 <= seed <= LARGEST_SEED:
        raise ValueError(f"seed must lie between 0 and {LARGEST_SEED}, got {seed}")
    if device is None:
        check_machine(spec, arm)
    corpus, splits = opened or open_corpus(spec.corpus_of(arm), spec.train.context)
    return Task(spec, arm, seed, corpus, splits, RunFolder(run_folder(out, arm, seed)), device)


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


def check_machine(spec: Spec, arm: str) -> torch.device:
    """The device of an arm's runs; ValueError when it or the forced backend does not exist here."""
    device = choose_device(spec.train.device)
    check_backend(spec.model_of(arm), spec.train.backend, device)
    return device
