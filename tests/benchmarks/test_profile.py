"""The profile of kernels: what is timed, how a time is taken, and what its table says."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from plkernel.benchmarks import operators, profile
from plkernel.benchmarks.operators import INPUTS, OURS, Problem
from plkernel.common.files import load_json

pytestmark = pytest.mark.usefixtures("one_thread")
SCAN = profile.Case("scan", (2, 400, 64), torch.float32, False)
WKV = profile.Case("wkv", (2, 100, 4, 16), torch.float32, False)
WKV7 = profile.Case("wkv7", (2, 100, 4, 16), torch.float32, False)


def named(case: profile.Case, seed: int = 0) -> dict[str, torch.Tensor]:
    """The inputs of a case by their names."""
    return dict(zip(INPUTS[case.operator], profile.inputs(case, seed, "cpu").inputs, strict=True))


class Clock:
    """A clock that calls move, in place of the module `time`."""

    def __init__(self) -> None:
        self.now = 0.0

    def call(self, seconds: Sequence[float]) -> Callable[[], int]:
        """A call that takes the next of these seconds each time, the last again and again."""
        count = 0

        def run() -> int:
            nonlocal count
            self.now += seconds[min(count, len(seconds) - 1)]
            count += 1
            return count

        return run

    def perf_counter(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(profile, "time", made)
    return made


@pytest.mark.parametrize(
    ("device", "name", "count"),
    [("cpu", "scan", 4), ("cpu", "wkv", 2), ("cuda", "scan", 12), ("cuda", "wkv7", 6)],
)
def test_every_shape_comes_in_both_types_and_a_scan_with_both_kinds_of_decay(
    device: str, name: str, count: int
) -> None:
    found = list(profile.cases(name, device))
    assert len({case.name for case in found}) == len(found) == count
    shapes = (profile.SIZES if device == "cuda" else profile.SMALL)[name]
    assert {case.shape for case in found} == set(shapes)
    assert {case.dtype for case in found} == {torch.bfloat16, torch.float32}
    assert {case.fixed for case in found} == ({True, False} if name == "scan" else {False})


def test_cases_are_named_by_operator_shape_decay_and_type() -> None:
    fixed = profile.Case("scan", (2, 3, 4), torch.bfloat16, True)
    assert fixed.name == "scan 2x3x4 fixed bfloat16"
    assert fixed._replace(fixed=False).name == "scan 2x3x4 varying bfloat16"
    assert WKV.name == "wkv 2x100x4x16 float32"


@pytest.mark.parametrize("case", [SCAN, WKV, WKV7], ids=lambda case: case.operator)
def test_decays_of_steps_lie_around_those_of_a_problem_of_the_operator(
    case: profile.Case,
) -> None:
    """A rate is off by exp(normal / 2): the logarithm of its ratio has mean 0 and deviation 1/2,
    each within five standard errors.
    """
    made = named(case)
    small = operators.problem(case.operator, (1, 8, *case.shape[2:])).inputs
    place = INPUTS[case.operator].index("a" if case.operator == "scan" else "log_decay")
    if case.operator == "scan":
        rates = small[place].double().log()
        decays = made["a"].double().log()
    else:
        rates = small[place][:, :1].double()
        decays = made["log_decay"].double()
    off = (decays / rates).log()
    # ln a of a float32 has an error of up to 2**-24, which is 2e-4 of the smallest rate.
    error = 0.5 / math.sqrt(off.numel())
    assert float(off.mean()) == pytest.approx(0.0, abs=5 * error + 2e-4)
    assert float(off.std()) == pytest.approx(0.5, abs=5 * error / math.sqrt(2) + 2e-4)
    assert decays.shape == case.shape


def test_fixed_decays_are_one_parameter_in_float32() -> None:
    case = SCAN._replace(fixed=True, dtype=torch.bfloat16)
    made = named(case)
    assert torch.equal(made["a"], operators.problem("scan", (1, 8, 64)).inputs[0])
    assert (made["a"].dtype, made["b"].dtype) == (torch.float32, torch.bfloat16)
    assert named(SCAN._replace(dtype=torch.bfloat16))["a"].dtype == torch.bfloat16


@pytest.mark.parametrize("case", [WKV, WKV7], ids=lambda case: case.operator)
def test_decays_and_states_are_float32_and_other_inputs_of_the_type_of_the_case(
    case: profile.Case,
) -> None:
    made = named(case._replace(dtype=torch.bfloat16))
    kept = {name for name, x in made.items() if x.dtype == torch.float32}
    assert kept == ({"log_decay", "u", "state"} if case is WKV else {"log_decay", "state"})
    assert made["state"].shape == (2, 4, 16, 16)
    assert float(made["state"].std()) == pytest.approx(1.0, abs=5 / math.sqrt(2 * 2 * 4 * 256))


def test_keys_that_are_erased_have_norm_one_and_are_written_in_part() -> None:
    """b = -a times a rate between 0 and 1, as the operator of RWKV-7 has it."""
    made = named(WKV7)
    norms = made["a"].norm(dim=-1)
    torch.testing.assert_close(norms, torch.ones_like(norms), rtol=1e-6, atol=0.0)
    rates = -made["b"] / made["a"]
    assert float(rates.min()) >= 0.0
    assert float(rates.max()) <= 1.0 + 1e-6
    # uniform: the deviation is 1 / sqrt(12)
    error = 1 / math.sqrt(12 * rates.numel())
    assert float(rates.mean()) == pytest.approx(0.5, abs=5 * error)


def test_seeds_tell_problems_apart_and_a_last_state_has_no_gradient() -> None:
    given = profile.inputs(WKV, 5, "cpu")
    again = profile.inputs(WKV, 5, "cpu")
    other = profile.inputs(WKV, 6, "cpu")
    assert all(map(torch.equal, given.inputs, again.inputs))
    assert not torch.equal(given.inputs[0], other.inputs[0])
    out, last = given.gradients
    assert out.shape == WKV.shape
    assert not out.eq(0).all()
    assert last.shape == given.inputs[-1].shape
    assert last.eq(0).all()
    assert len(profile.inputs(SCAN, 0, "cpu").gradients) == 1


def test_the_error_is_a_norm_over_that_of_the_truth() -> None:
    exact = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    off = torch.tensor([3.0, 4.5])
    assert profile.norm_error([off], [exact]) == pytest.approx(0.5 / 5.0)
    assert profile.norm_error([off, exact], [exact, exact]) == pytest.approx(0.1)
    assert profile.norm_error([exact, off * math.nan], [exact, exact]) == math.inf


def test_rates_of_the_chip_are_bytes_and_operations_over_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A copy reads and writes each byte; a product multiplies and adds edge**3 times."""
    seconds = iter([0.5, 0.25])
    results: list[torch.Tensor] = []

    def timed(call: Callable[[], torch.Tensor], calls: int, device: str) -> float:
        results.append(call())
        return next(seconds)

    monkeypatch.setattr(profile, "wall_seconds", timed)
    found = profile.chip("cpu")
    copied, product = results
    assert found.copy == 2 * copied.numel() * copied.element_size() / 0.5
    edge = product.shape[0]
    assert product.shape == (edge, edge)
    assert product.dtype == torch.bfloat16
    assert found.matrix == 2 * edge**3 / 0.25


def test_a_time_is_the_median_of_batches_after_a_call_that_is_not_counted(clock: Clock) -> None:
    call = clock.call([100.0, 1e-3])
    assert profile.wall_seconds(call, 4, "cpu") == pytest.approx(1e-3)
    assert call() == 1 + 4 * profile.REPEATS + 1
    uneven = clock.call([0.0, 1e-3, 1e-3, 9e-3, 2e-3, 2e-3])
    assert profile.wall_seconds(uneven, 1, "cpu") == pytest.approx(2e-3)
    slow = clock.call([0.0, 1.0, 3.0])
    assert profile.wall_seconds(slow, 1, "cpu") == pytest.approx(2.0)
    assert slow() == 4, "of a slow call two are enough"


@pytest.mark.parametrize(
    ("once", "count"), [(1e-3, 3), (0.25e-3, 8), (1e-6, 200), (2 * profile.SLOW, None)]
)
def test_as_many_calls_are_timed_together_as_fill_a_batch(
    once: float, count: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At least one of each input and at most 200; a slow call is timed as it is."""
    asked: list[int] = []
    called: list[int] = []

    def wall(call: Callable[[], Any], calls: int, device: str) -> float:
        asked.append(calls)
        return once if calls == 1 else 7.0

    monkeypatch.setattr(profile, "wall_seconds", wall)
    monkeypatch.setattr(profile, "host_seconds", lambda *_: 5.0)
    calls = [partial(called.append, number) for number in range(3)]
    row = profile.timed(calls, "cpu")
    assert called == [0, 1, 2], "every input is met before any is timed"
    if count is None:
        assert asked == [1]
        assert row == {"call": once, "host": 5.0}
    else:
        assert asked == [1, count]
        assert row == {"call": 7.0, "host": 5.0}


def test_a_contender_without_gradients_is_checked_and_timed_forward_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(profile, "timed", lambda calls, device: {"count": len(calls)})
    case = profile.Case("scan", (2, 37, 5), torch.float32, True)
    sets = [profile.inputs(case, seed, "cpu") for seed in range(2)]
    check = profile.checked_inputs(case, sets, "cpu")
    alone = profile.Candidate(partial(profile.forward_alone, operators.operator("scan")), True)
    whole = profile.Candidate(partial(profile.by_autograd, operators.operator("scan")), True)
    row = profile.timed_case(case, alone, sets, check, "cpu")
    assert row.keys() == {"error", "forward"}
    assert row["forward"] == {"count": 2}
    assert row["error"] < 1e-6
    both = profile.timed_case(case, whole, sets, check, "cpu")
    assert both["both"] == both["forward"] == {"count": 2}
    gpu = profile.timed_case(case, whole._replace(on_cpu=False), sets, check, "cpu")
    assert gpu == {"reason": "needs a GPU"}


def test_long_problems_of_heads_are_checked_on_a_part_of_their_size() -> None:
    large = profile.Case("wkv", (3, 600, 3, 8), torch.float32, False)
    sets = [profile.inputs(large, 0, "cpu")]
    given, exact = profile.checked_inputs(large, sets, "cpu")
    assert given.inputs[0].shape == exact[0].shape == (2, 512, 2, 8)
    assert len(exact) == len(given.inputs), "a gradient of the state is left out"
    scan = SCAN._replace(shape=(3, 600, 8))
    own = [profile.inputs(scan, 0, "cpu")]
    assert profile.checked_inputs(scan, own, "cpu")[0] is own[0]


@pytest.mark.parametrize("fixed", [True, False])
def test_peers_of_the_scan_compute_it_in_their_own_layouts(
    fixed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """accelerated_scan takes (B,D,T) without gaps, mambapy (B,T,1,D) in one type."""
    case = profile.Case("scan", (2, 37, 5), torch.float32, fixed)
    given = profile.inputs(case, 0, "cpu").to(torch.float64)
    exact = profile.truth(case, given)
    scan = partial(operators.operator("scan"), backend="reference")

    def by_channel(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        assert a.is_contiguous()
        assert b.is_contiguous()
        return scan(a.mT, b.mT).mT

    def parallel(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        assert a.shape == b.shape == (2, 37, 1, 5)
        return scan(a.squeeze(2), b.squeeze(2)).unsqueeze(2)

    modules = {
        "accelerated_scan.scalar": SimpleNamespace(scan=by_channel),
        "mambapy.pscan": SimpleNamespace(pscan=parallel),
    }
    for module in (profile, operators):
        monkeypatch.setattr(module, "import_module", modules.get)
    of_mambapy = profile.by_autograd(profile.mambapy, given)
    for forward, both in (profile.accelerated(given), of_mambapy):
        (out,) = forward()
        torch.testing.assert_close(out, exact[0], rtol=1e-12, atol=1e-12)
        for x, y in zip(both(), exact, strict=True):
            # the gradient of a fixed decay may pass through float32
            torch.testing.assert_close(x.double(), y, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("name", "version"), [("wkv", "rwkv6"), ("wkv7", "rwkv7")])
def test_peers_of_heads_start_from_their_own_zeros(
    name: str, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def peer(*tensors: Any, scale: float) -> tuple[Any, ...]:
        return (*tensors, scale)

    modules = {f"fla.ops.{version}": SimpleNamespace(chunk=peer)}
    monkeypatch.setattr(profile, "import_module", modules.get)
    first, last = torch.ones(1), torch.zeros(1)
    assert profile.fla(name, "chunk", first, last) is first
    monkeypatch.setattr(
        profile, "import_module", lambda _: SimpleNamespace(chunk=lambda *x, scale: [(x, scale)])
    )
    assert profile.fla(name, "chunk", first, last) == ((first,), 1.0)


def test_contenders_are_ours_its_variants_and_the_peers() -> None:
    scan, wkv, wkv7 = (profile.candidates(name) for name in ("scan", "wkv", "wkv7"))
    for found in (scan, wkv, wkv7):
        assert next(iter(found)) == OURS
        assert "gpu" in found
    peers = {"accelerated_scan", "fla hgrn chunk", "fla hgrn fused", "mambapy"}
    assert peers < scan.keys()
    assert {"fla chunk_rwkv6", "fla fused_recurrent_rwkv6"} < wkv.keys()
    assert {"fla chunk_rwkv7", "fla fused_recurrent_rwkv7"} < wkv7.keys()
    for found in (wkv, wkv7):
        assert not found.keys() & peers
    assert not wkv.keys() & {"fla chunk_rwkv7"}
    assert {name for name, one in scan.items() if one.on_cpu} == {OURS, "mambapy"}
    assert {name for name, one in wkv7.items() if one.on_cpu} == {OURS}
    pytest.importorskip("triton")
    from plkernel.kernels.scan import gpu
    from plkernel.kernels.wkv import tensor

    assert {*gpu.VARIANTS} < scan.keys()
    assert {f"tensor {one}" for one in tensor.PRECISIONS} < wkv.keys()


def timing_out(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, names: Sequence[str], seconds: float
) -> Callable[..., list[dict[str, Any]]]:
    """Makes every contender take so many seconds a case of the profile, and nothing else."""

    def made(*_: Any) -> dict[str, Any]:
        clock.now += seconds
        return {"forward": {"call": seconds}}

    entries = dict.fromkeys(names, profile.Candidate(lambda _: (list, list), on_cpu=True))
    monkeypatch.setattr(profile, "candidates", lambda _: entries)
    monkeypatch.setattr(profile, "timed_case", made)
    monkeypatch.setattr(profile, "progress", lambda _: None)
    return partial(profile.profiled, "scan", profile.Chip(1.0, 1.0), device="cpu")


def test_a_peer_may_take_twice_its_part_of_the_time_and_ours_all(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four cases of two contenders that take 3 s each, of 9 s in all: the peer has 9 s, of which
    it has used 3 before the second case; the time is over in the third.
    """
    profiled = timing_out(clock, monkeypatch, [OURS, "peer"], 3.0)
    rows = profiled(seconds=100.0)
    assert len(rows) == 8
    assert not any("reason" in row for row in rows)
    assert {row["contender"] for row in rows} == {OURS, "peer"}
    assert all(len(row["floor"]) == 2 for row in rows)
    rows = profiled(seconds=2.5)
    reasons = [(row.get("contender"), row.get("reason")) for row in rows]
    over = "no time left"
    assert reasons == [(OURS, None), ("peer", over), (None, over), (None, over), (None, over)]
    profiled = timing_out(clock, monkeypatch, [OURS, *"abc"], 3.0)
    rows = profiled(seconds=32.0)
    peers = [row for row in rows if row.get("contender") == "a"]
    # its part is 2 * 32 / 4 = 16 s, of which two cases take 6
    assert [row.get("reason") for row in peers] == [None, None, None]
    rows = profiled(seconds=27.0)
    assert sum("forward" in row for row in rows) == 10, "27 s hold nine whole ones, the tenth ends"
    assert profiled(seconds=1e9, skip=["scan [abc]"])[0]["contender"] == OURS
    assert {row["contender"] for row in profiled(seconds=1e9, skip=["scan [abc]"])} == {OURS}


def test_a_greedy_peer_stops_and_ours_goes_on(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiled = timing_out(clock, monkeypatch, [OURS, *"abcdefgh"], 3.0)
    # the part of each is 2 * 22.5 / 9 = 5 s: one case, two, and then 6 s are more than that
    monkeypatch.setattr(profile, "GREED", 2.0)
    spent = iter([3.0, *[0.0] * 2, *[3.0] * 6])

    def made(*_: Any) -> dict[str, Any]:
        clock.now += next(spent, 0.0)
        return {"forward": {"call": 1.0}}

    monkeypatch.setattr(profile, "timed_case", made)
    rows = profiled(seconds=22.5)
    assert all("forward" in row for row in rows if row["contender"] == OURS)
    monkeypatch.setattr(profile, "GREED", 0.5)  # 1.25 s of each: a peer of 3 s is out
    spent = iter([3.0, *[0.0] * 2, *[3.0] * 6])
    rows = profiled(seconds=22.5)
    out = {row["contender"] for row in rows if "reason" in row}
    assert out == set("cdefgh")
    assert sum("reason" in row for row in rows) == 3 * 6
    assert sum("forward" in row for row in rows if row["contender"] == OURS) == 4


def test_the_profile_is_one_table_and_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shares: dict[str, float] = {}

    def profiled(name: str, best: profile.Chip, seconds: float, place: str, skip: Any) -> Any:
        shares[name] = seconds
        assert skip == ["this"]
        times = {"call": 2e-3, "host": 1e-6}
        return [{"case": name, "contender": OURS, "error": 1e-6, "forward": times}]

    monkeypatch.setattr(profile, "profiled", profiled)
    monkeypatch.setattr(profile, "chip", lambda _: profile.Chip(2e12, 3e12))
    profile.run("cpu", 100.0, tmp_path, ["this"])
    assert list(shares) == ["scan", "wkv", "wkv7"]
    assert sum(shares.values()) == pytest.approx(100.0, abs=1.0)
    assert shares["wkv"] == pytest.approx(0.3 * 100.0, abs=0.5)
    record = load_json(tmp_path / "profile-cpu.json")
    assert record["chip"] == {"copy": 2e12, "matrix": 3e12}
    assert record["environment"]["card"] == "cpu"
    assert record["environment"]["threads"] == torch.get_num_threads()
    assert [row["forward"]["ratio"] for row in record["rows"]] == [1.0, 1.0, 1.0]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"written: {tmp_path / 'profile-cpu.json'}"
    assert lines[1] == "cpu: copy 2.00 TB/s, bf16 product 3 TFLOP/s"
    assert lines[2].startswith("0 s; ms, host us")
    assert "\n".join(lines[3:]) == profile.table(record["rows"])
    profile.run("cpu", 100.0, None, ["this"], 400)
    assert len(capsys.readouterr().out.split("device time\n")[1]) == 400 + 1


def test_the_table_of_the_profile_in_full() -> None:
    times = {"call": 0.012, "device": 0.0115, "host": 34e-6, "graph": False, "ratio": 1.0}
    rows: list[dict[str, Any]] = [
        {"case": "c", "contender": "fast peer of a long name", "error": 2e-3}
        | {"forward": {"call": 1.0, "host": 1e-6, "device": 0.5, "ratio": 43.478}},
        {"case": "c", "contender": OURS, "error": 1e-6, "forward": times, "both": times},
        {"case": "c", "contender": "one", "reason": "needs a GPU"},
        {"case": "c", "contender": "two", "reason": "needs a GPU"},
    ]
    head = "    call   device   host x ours"
    assert profile.table(rows).splitlines() == [
        f"{'':22} {head} | {head} | error",
        f"{'':22} forward{'':24} | and backward",
        "c",
        f"  {OURS:20}   12.000  11.500e     34   1.00 |   12.000  11.500e     34   1.00 | 1e-06",
        f"  fast peer of a long   1000.00 500.000       1  43.48 | {'':31} | 2e-03",
        "  one, two: needs a GPU",
    ]
    assert profile._digits(0.0001) == "0.000"
    assert profile._digits(123456.789) == "123456"
    assert profile._digits(12345.6789) == "12345.6"


def test_the_table_names_how_many_are_slower_and_is_cut_at_its_limit() -> None:
    times = {"call": 1.0, "host": 1e-6}
    rows: list[dict[str, Any]] = [
        {"case": "c", "contender": name, "error": 0.0, "forward": times, "both": times}
        for name in (OURS, *"abcd")
    ]
    whole = profile.table(rows)
    assert "slower" not in whole
    assert len(whole.splitlines()) == 2 + 1 + 5
    assert profile.table(rows, len(whole)) == whole, "there is room for all"
    fewer = profile.table(rows, len(whole) - 1)
    assert fewer.splitlines()[-1] == "  and 1 that are slower"
    assert len(fewer.splitlines()) == 2 + 1 + 4 + 1
    assert profile.table(rows, 100) == profile.table(rows, 10**6)[:100]


def test_a_ratio_needs_both_times() -> None:
    row = {"forward": {"call": 2.0, "device": 1.0}}
    assert profile._seconds(row, "forward") == 1.0
    assert profile._seconds({"forward": {"call": 2.0}}, "forward") == 2.0
    assert profile._seconds(row, "both") == math.inf


def test_calls_of_autograd_take_the_state_as_it_is() -> None:
    """It is the last input and gets no gradient."""
    given = profile.inputs(WKV._replace(shape=(1, 6, 1, 4)), 0, "cpu")
    taken: list[torch.Tensor] = []

    def function(*tensors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        taken.extend(tensors)
        return sum(x.sum() for x in tensors) * torch.ones(1, 6, 1, 4), tensors[-1]

    forward, both = profile.by_autograd(function, given)
    assert len(forward()) == 1
    assert not forward()[0].requires_grad
    assert taken[-1] is given.inputs[-1]
    assert len(both()) == 1 + len(given.inputs) - 1
    scan = Problem(given.inputs[:2], given.gradients[:1])
    whole = profile.by_autograd(lambda a, b: a.sum() + b, scan)[1]()
    assert len(whole) == 1 + 2


def test_slow_peers_that_are_not_skipped_are_called_once() -> None:
    tasks: list[Any] = list(profile.slow_calls())
    assert [task.args for task in tasks] == list(profile.SLOW_PEERS)
    assert {task.func for task in tasks} == {profile.call_once}
    fewer: list[Any] = list(profile.slow_calls(["wkv *"]))
    assert [task.args for task in fewer] == [one for one in profile.SLOW_PEERS if one[0] != "wkv"]


def test_slow_peers_are_contenders() -> None:
    assert all(label in profile.candidates(name) for name, label in profile.SLOW_PEERS)
