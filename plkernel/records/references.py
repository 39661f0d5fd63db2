"""What n-grams reach on the windows of a study, read back: references.json, which studies of before do not have."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from plkernel.common.files import load_json
from plkernel.records.layout import REFERENCES
from plkernel.records.schema import ReferencesFile, validated

KEY = ("corpus", "train", "seed", "training_bytes")
"""What decides the numbers of an entry."""


@dataclass(frozen=True)
class Reference:
    """n-grams counted in the windows that a run reads, in bits per byte on the windows by which runs are judged.

    corpus, train     as in the config.json of the runs that they are to be held against; of train the part that counts
    training_windows  in words, which windows were counted, `training_bytes` in all
    orders            n, bytes of an n-gram with the one that is predicted
    val_bpb, test_bpb  by order
    val_error, test_error  standard errors over windows, None where there is one window
    """

    corpus: Mapping[str, Any]
    train: Mapping[str, Any]
    training_windows: str
    training_bytes: int
    orders: tuple[int, ...]
    val_bpb: tuple[float, ...]
    test_bpb: tuple[float, ...]
    val_error: tuple[float | None, ...]
    test_error: tuple[float | None, ...]

    def suits(self, config: Mapping[str, Any]) -> bool:
        """Whether a run of that configuration, which may be of an earlier version, reads and is judged by the same."""
        corpus, train = config["corpus"], config.get("train") or {}
        same = ("context", "batch", "eval_windows", "test_windows")
        read = all(self.corpus.get(name) == value for name, value in corpus.items()) and "sha256" in corpus
        return read and all(train.get(name) == self.train.get(name) for name in same)


def read_references(study: Path) -> tuple[Reference, ...]:
    """Those of a study or a record; none where the file is missing. ValueError naming it where it is damaged."""
    return tuple(map(_reference, entries(study / REFERENCES)))


def entries(path: Path) -> list[dict[str, Any]]:
    """The entries of the file as they are; none where it is missing. ValueError naming it where it is damaged."""
    if not path.exists():
        return []
    found: list[dict[str, Any]] = validated(path, ReferencesFile, load_json(path))["references"]
    return found


def _reference(entry: Mapping[str, Any]) -> Reference:
    values: dict[str, Any] = {field.name: entry[field.name] for field in fields(Reference)}
    values |= {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    return Reference(**values)
