"""Trained runs of a study on text, for scripts that read their test text again."""

from pathlib import Path
from typing import Any, NamedTuple

from plkernel.config.condition import from_config
from plkernel.config.schema import TrainSpec
from plkernel.data.corpora import Splits
from plkernel.training.checkpoint import open_model
from plkernel.training.loop import longest_window, open_corpus


class TextRun(NamedTuple):
    """A trained model in evaluation mode, how it was trained, and the splits of its text."""

    model: Any
    train: TrainSpec
    splits: Splits


def opened(run: Path) -> TextRun:
    """Return the run of a folder; the code that its config names is trusted."""
    model, config, _ = open_model(run, trusted=True)
    condition = from_config(config)
    train = condition.train
    assert train is not None, f"{run} trains nothing"
    farthest = longest_window(condition.corpus, train)
    _, splits = open_corpus(condition.corpus, train.context, farthest)
    return TextRun(model, train, splits)
