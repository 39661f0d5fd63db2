"""How many runs go at a time: the rule, and the timing with real processes."""

from collections.abc import Callable
from pathlib import Path

import pytest

from plkernel.config.reading import load_spec
from plkernel.study import together
from plkernel.study.engine import LocalEngine
from plkernel.study.together import Timing, best, chosen

GB = 1e9


@pytest.mark.parametrize(
    ("steps", "memory", "tried", "expected"),
    [
        ((100.0, 190.0, 300.0, 310.0), GB, 4, 4),
        ((100.0, 105.0, 400.0, 400.0), GB, 2, 1),  # more of a full chip is not tried
        ((100.0, 200.0, 400.0, 800.0), GB, 4, 8),
        ((100.0, 200.0, 400.0, 800.0), 4 * GB, 2, 2),  # four take 16 of 10 GB
        ((100.0, 200.0, None, 800.0), GB, 2, 2),  # four fail together
    ],
)
def test_as_many_as_bring_something_and_fit(
    steps: tuple[float | None, ...], memory: float, tried: int, expected: int
) -> None:
    known = dict(zip(together.COUNTS, steps, strict=True))

    def measure(count: int) -> Timing | None:
        rate = known[count]
        return None if rate is None else Timing(count, rate, memory)

    found = chosen(measure, available=10 * GB)
    assert len(found) == tried
    assert best(found).runs == expected


def test_a_run_that_fails_alone_is_an_error() -> None:
    with pytest.raises(OSError, match="workers auto: a run alone could not be timed; give a"):
        chosen(lambda _: None, available=GB)


def test_on_a_cpu_cores_decide_and_nothing_is_timed(
    tiny_spec: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(together, "timing", lambda *_: pytest.fail("timed"))
    spec = load_spec(tiny_spec(device="cpu"))
    assert together.workers(spec) == LocalEngine().room(spec, "cpu")


def test_on_a_gpu_the_arm_with_the_most_parameters_decides(
    tiny_spec: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    seen = []

    def timing(condition: object, count: int) -> Timing:
        seen.append(condition)
        return Timing(count, 100.0 * min(count, 4), GB)

    class OnGPUs(LocalEngine):
        def device(self, condition: object) -> str:
            return "cuda"

    monkeypatch.setattr(together, "timing", timing)
    monkeypatch.setattr(together, "available_memory", lambda _: 80 * GB)
    monkeypatch.setattr(together, "visible_gpus", lambda: ["0", "1"])
    spec = load_spec(tiny_spec(head="", device="cpu"))
    assert together.workers(spec, OnGPUs()) == 4 * 2
    assert len({id(one) for one in seen}) == 1
    assert "4 at a time: 400 steps/s, 1.00 GB each" in capsys.readouterr().out


def test_processes_begin_together_and_after_a_failure_there_is_no_timing(
    tiny_spec: Callable[..., Path],
) -> None:
    condition = load_spec(tiny_spec(device="cpu")).condition("uniform")
    found = together.timing(condition, 2, seconds=0.2)
    assert found is not None
    assert (found.runs, found.steps > 0, found.memory > 0) == (2, True, True)
    lost = load_spec(tiny_spec(device="cpu", backend="gpu")).condition("uniform")
    assert together.timing(lost, 1, seconds=0.2) is None
