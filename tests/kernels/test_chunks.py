"""Room to work in: sizes, alignment, what is kept, and who shares the work."""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from plkernel.kernels import chunks
from plkernel.kernels.compiled import FIRST_PAUSE, LEAST, LONGEST_PAUSE, TRIAL, Helpers
from plkernel.kernels.lanes import LANES


def shapes(rows: int, width: int) -> Mapping[str, tuple[int, ...]]:
    return {"decays": (rows, width), "keys": (2, rows, width), "state": (width,)}


@pytest.fixture
def rooms(monkeypatch: pytest.MonkeyPatch) -> dict[Any, Any]:
    """The memory that this thread keeps; none before the test."""
    local = SimpleNamespace()
    monkeypatch.setattr(chunks, "_local", local)
    return local.__dict__


def room(*sizes: int, element: Any = np.float32) -> Any:
    return chunks.room(SimpleNamespace, shapes, sizes, element)


@pytest.mark.parametrize(
    ("size", "padded"), [(0, 0), (1, LANES), (LANES, LANES), (LANES + 1, 2 * LANES)]
)
def test_a_width_is_padded_to_whole_lanes(size: int, padded: int) -> None:
    assert chunks.padded(size) == padded


@pytest.mark.parametrize("element", [np.float32, np.float64])
def test_a_room_has_its_shapes_on_lines_of_its_own(element: Any, rooms: dict[Any, Any]) -> None:
    """Decays are float64 whatever the others are; no two share a byte."""
    ready = vars(room(3, 5, element=element))
    assert {name: x.shape for name, x in ready.items()} == shapes(3, 5)
    assert ready["decays"].dtype == np.float64
    assert ready["keys"].dtype == ready["state"].dtype == element
    for number, x in enumerate(ready.values(), 1):
        assert x.ctypes.data % chunks.LINE == 0
        assert not x.any()
        x[...] = number
    for number, x in enumerate(ready.values(), 1):
        assert (x == number).all()


def test_a_room_is_kept_and_cleared(rooms: dict[Any, Any]) -> None:
    first = room(3, 5)
    first.keys[...] = 7.0
    assert room(3, 5) is first
    assert not first.keys.any()
    assert room(3, 5, element=np.float64) is not first
    assert room(4, 5) is not first
    assert len(rooms) == 3


def test_large_rooms_are_not_kept_and_many_are_dropped_together(
    rooms: dict[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = 1 * 16 * 8 + 2 * 16 * 4 + 16 * 4
    monkeypatch.setattr(chunks, "KEPT", needed)
    room(1, 16)
    assert len(rooms) == 1, "a room of just that size is kept"
    room(1, 32)
    assert len(rooms) == 1
    monkeypatch.undo()
    monkeypatch.setattr(chunks, "_local", SimpleNamespace())
    kept = chunks._local.__dict__
    for rows in range(1, chunks.MOST_ROOMS + 1):
        room(rows, 5)
    assert len(kept) == chunks.MOST_ROOMS
    room(chunks.MOST_ROOMS + 1, 5)
    assert len(kept) == 1


@pytest.mark.parametrize(
    ("serial", "threads", "expected"), [(60, 3, 3), (61, 3, 1), (0, 9, 6), (0, 1, 1)]
)
def test_heads_are_shared_out_where_there_is_work_for_threads(
    serial: int,
    threads: int,
    expected: int,
    monkeypatch: pytest.MonkeyPatch,
    rooms: dict[Any, Any],
) -> None:
    """Entries of the state times steps: 2 x 3 heads of 2 numbers and 5 steps are 60."""
    asked: list[Any] = []
    given: list[Any] = []

    def together(work: Callable[[], Any], count: int) -> None:
        asked.append(count)
        work()

    def kernel(x: Any, ready: Any, counter: Any, units: int) -> None:
        given.append((x.shape, ready.keys.shape, counter.tolist(), units))

    monkeypatch.setattr(chunks, "SERIAL", serial)
    monkeypatch.setattr(chunks, "together", together)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    state, x = torch.zeros(2, 3, 1, 2), torch.zeros(2, 5, 3, 1)
    chunks.share(kernel, SimpleNamespace, shapes, (3, 5), state, x)
    assert asked == [expected]
    assert given == [((2, 5, 3, 1), (2, 3, 5), [0], 6)]


@pytest.mark.parametrize(("speed", "helps"), [(LEAST + 0.01, True), (LEAST - 0.01, False)])
def test_threads_that_bring_too_little_pause_after_a_trial(
    speed: float, helps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CPU seconds of all over the seconds of the calls, of one trial after another."""
    now = 0.0

    def wall() -> float:
        nonlocal now
        now += 0.5
        return now

    def submit(do: Any, job: Any, work: Any) -> None:
        job.set_result(speed * 0.5 - 0.25)

    pool: Any = SimpleNamespace(submit=submit)
    monkeypatch.setattr("plkernel.kernels.compiled.time", SimpleNamespace(perf_counter=wall))
    helpers = Helpers(pool, 1)
    monkeypatch.setattr(helpers, "_computed", lambda work: work() or 0.25)
    calls: list[int] = []

    def work() -> None:
        calls.append(1)

    for _ in range(TRIAL - 1):
        helpers.share(work)
    assert (helpers.alone, helpers.calls) == (0, TRIAL - 1)
    helpers.share(work)
    assert helpers.alone == (0 if helps else FIRST_PAUSE)
    assert (helpers.calls, helpers.seconds, helpers.computed) == (0, 0.0, 0.0)
    assert helpers.pause == (FIRST_PAUSE if helps else 2 * FIRST_PAUSE)
    if not helps:
        before = now
        for _ in range(FIRST_PAUSE):
            helpers.share(work)
        assert now == before, "calls without help are not timed"
        assert helpers.alone == 0
        for _ in range(20 * (TRIAL + LONGEST_PAUSE)):
            helpers.share(work)
        assert helpers.pause == LONGEST_PAUSE, "it doubles up to this"
    assert len(calls) >= TRIAL
