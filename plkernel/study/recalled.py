"""The answers of recall behind what a study declares."""

from collections.abc import Iterable

import numpy as np

from plkernel.config.condition import Condition
from plkernel.config.schema import OF_RECALL, Hypothesis, MeasuredNumber, recall_column
from plkernel.config.spec import Spec
from plkernel.context.measures import lengths
from plkernel.data import corpora
from plkernel.data.recall import RecallCorpus
from plkernel.results.measurements import part_read, windows_held, windows_option
from plkernel.training.recall_task import RecallTask


def answers_behind(spec: Spec, declared: Iterable[MeasuredNumber]) -> dict[str, int]:
    """The answers in one run behind each hypothesis or gate of `spec`, by its name.

    None of what is measured on a text is in it. Where runs differ in their tests, those of the
    other side of a hypothesis too, the fewest count.
    """
    found = {}
    for one in declared:
        names = [one.arm]
        other = spec.opponent(one) if isinstance(one, Hypothesis) else None
        if other is not None:
            names.append(other)
        arms = [arm for name in names for arm in spec.arms_behind(name)]
        counts = [_answers(spec.condition(arm), one) for arm in arms]
        known = [count for count in counts if count is not None]
        if known:
            found[one.name] = min(known)
    return found


def _held_out(condition: Condition, option: str) -> int:
    """The sequences that a run is judged on: as many as an option says and its corpus holds."""
    section = condition.corpus
    windows: int = getattr(condition.protocol, option)
    size = corpora.size_ahead(section.name, **section.reading)
    if size is None:
        return windows
    share: float = getattr(section, part_read(option))
    held = windows_held(int(share * size), condition.protocol.context, of_recall=True)
    return min(windows, held)


def _answers(condition: Condition, measured: MeasuredNumber) -> int | None:
    """The answers of a run that `measured` is a mean of; None on another corpus than recall."""
    task = RecallTask.of(condition)
    if task is None:
        return None
    train = task.train
    if measured.metric not in OF_RECALL:
        return _held_out(condition, windows_option(measured, dict(train))) * task.law.pairs
    length = (measured.times or 1) * task.law.length
    laws: dict[tuple[str, int], RecallCorpus] = {}
    for name, law in task.tests():
        laws[name, law.length] = law
    test, _ = recall_column(measured.metric)
    law = laws[test, length]
    if measured.distance is None:
        return train.test_windows * law.pairs
    # Every run draws these sequences, whatever its seed.
    distances = task.longer_distances(law, train.test_windows)
    end = min(measured.distance, length)
    ends = [0, *lengths(length)]
    start = ends[ends.index(end) - 1]
    return int(np.count_nonzero((distances > start) & (distances <= end)))
