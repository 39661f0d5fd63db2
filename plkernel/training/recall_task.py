"""Sequences of recall on which a run is trained, and with which it is tested.

They are drawn anew, from the law that the corpus names. The loss is that of the answers alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from plkernel.config.condition import Condition
from plkernel.config.schema import FARTHEST, RecallTestName, Stage, TrainSpec
from plkernel.config.spec import heading
from plkernel.context.measures import lengths
from plkernel.data.names import recall_of
from plkernel.data.recall import Bytes, Places, RecallCorpus, most_pairs, queries
from plkernel.data.windows import stream

SPLITS = ("train", "validation", "test", "longer")
"""Their numbers stand in the seeds of sequences."""
UNUSED = ("carry", "truncation_windows", "probe_windows")
"""Options of training that are of windows of a text."""


class Asked(NamedTuple):
    """Queries in windows, in the order of their pairs, each (n, K), int64.

    places: of the queries in the inputs. answers: what is to be predicted there.
    """

    places: Tensor
    answers: Tensor

    def rows(self, start: int, end: int) -> "Asked":
        """The queries of some of the windows."""
        return Asked(self.places[start:end], self.answers[start:end])

    def to(self, device: torch.device) -> "Asked":
        """The same on a device."""
        return Asked(self.places.to(device), self.answers.to(device))

    def logits(self, logits: Tensor) -> Tensor:
        """Logits (n, K, V) at the queries, of logits (n, T, V)."""
        return logits.gather(1, self.places[..., None].expand(-1, -1, logits.shape[-1]))


@dataclass(frozen=True)
class RecallTask:
    """Sequences of a run: those of training by (seed, step), others by the seed of the corpus."""

    law: RecallCorpus
    train: TrainSpec

    @classmethod
    def of(cls, condition: Condition) -> "RecallTask | None":
        """The task of a condition, None where its corpus is not one of recall.

        Raises ValueError for an option of training that does not fit the corpus.
        """
        train = condition.train
        if train is None:
            return None
        law = recall_of(condition.corpus.name)
        if law is None:
            reason = "belongs to a corpus synthetic:recall: leave it out"
            train.refuse(["curriculum"], reason, "train.")
            return None
        if train.context != law.length:
            raise ValueError(
                f"train.context must be the length of the sequences, {law.length}, got"
                f" {train.context}: change it, or length in corpus.name"
            )
        train.refuse(UNUSED, "belongs to windows of a text, not to recall: leave it out", "train.")
        task = cls(law, train)
        for stage in train.curriculum:
            task._check_stage(stage)
        return task

    def _check_stage(self, stage: Stage) -> None:
        """Raise ValueError for pairs or a length that the sequences of a step cannot have."""
        with heading(f"train.curriculum, length {stage.length}: "):
            for pairs in stage.pairs:
                replace(self.law, length=stage.length, pairs=pairs)
            if self._bytes % stage.length:
                raise ValueError(
                    f"length must divide the bytes of a step, batch * context = {self._bytes}"
                )

    @property
    def _bytes(self) -> int:
        """Bytes of a step."""
        return self.train.batch * self.train.context

    def training(self, seed: int, step: int) -> Tensor:
        """Windows (B, length + 1), int64, of a step: those of its stage, else of the corpus.

        All have as many pairs. Raises ValueError unless the seed is from 0 to 2**64 - 1.
        """
        rng = stream(seed, step)
        stage = self.train.stage_at(step)
        law = self.law
        if stage is not None:
            law = replace(law, length=stage.length, pairs=int(rng.choice(stage.pairs)))
        return _tensor(law.windows(self._bytes // law.length, rng))

    def held_out(self, split: str, count: int) -> Tensor:
        """`count` windows (count, length + 1), int64, with the pairs of the corpus.

        They are made one by one: fewer are the first of more.
        """
        return held_out(self.law, split, count)

    def tests(self) -> Iterator[tuple[RecallTestName, RecallCorpus]]:
        """The laws of sequences of 1, 2, 4 .. times the length, with their names.

        capacity: with length / 4 pairs, or all keys. persistence: with the pairs of the corpus, and
        queries anywhere behind, as likely far as near.
        """
        for times in lengths(times_of(self.train, self.law)):
            length = times * self.law.length
            yield "capacity", replace(self.law, length=length, pairs=most_pairs(length))
            yield "persistence", replace(self.law, length=length, power=0.0)

    def longer(self, law: RecallCorpus, count: int) -> Tensor:
        """`count` windows of one of the `tests`, (count, length + 1), int64."""
        return _tensor(law.windows(count, self._longer_rng(law)))

    def longer_distances(self, law: RecallCorpus, count: int) -> Places:
        """Bytes from pair to query in the windows of `longer`, (count, pairs); none is made."""
        return law.distances(count, self._longer_rng(law))

    def _longer_rng(self, law: RecallCorpus) -> np.random.Generator:
        """The random numbers of one of the `tests`, which are those of every run."""
        number = SPLITS.index("longer")
        return np.random.default_rng(
            [self.law.seed, number, law.length, law.pairs, int(law.power > 0)]
        )


def held_out(law: RecallCorpus, split: str, count: int) -> Tensor:
    """`count` windows (count, length + 1), int64, of a law; fewer are the first of more."""
    number = SPLITS.index(split)
    rows = []
    for index in range(count):
        rng = np.random.default_rng([law.seed, number, index])
        rows.append(law.windows(1, rng))
    return _tensor(np.concatenate(rows))


def times_of(train: TrainSpec, law: RecallCorpus | None) -> int:
    """Length of the longest windows that a run evaluates, in multiples of train.context."""
    if train.beyond:
        return train.beyond
    return 1 if law is None else FARTHEST


def asked_in(windows: Tensor) -> Asked:
    """The queries in windows (n, T+1), int64 on the CPU, of whole sequences."""
    found = queries(windows[:, :-1].numpy())
    return Asked(torch.from_numpy(found.query), torch.from_numpy(found.answer))


def _tensor(windows: Bytes) -> Tensor:
    """Windows as int64 on the CPU."""
    return torch.from_numpy(windows.astype(np.int64))
