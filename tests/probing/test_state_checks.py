"""Checks of a state: a recurrence that keeps it passes, and each planted fault is found where it
acts.
"""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from test_models import EAGLE, FINCH, GOOSE, build
from torch import Tensor, nn

from plkernel.models.gated_delta import gated_delta
from plkernel.models.ssm import SSMConfig
from plkernel.probing.state_checks import (
    ALL_CHECKS,
    LENGTH,
    PADDING,
    StateCheck,
    StateChecks,
    _nudged,
    _vocabulary,
    check_state,
    known_step,
    takes_mask,
)
from plkernel.testing import assert_state_survives
from plkernel.training.foreign import Foreign, without_gpu_code

pytestmark = pytest.mark.usefixtures("one_thread")
HALF = LENGTH // 2
TAPS = 4
SIZE = 16
VOCABULARY = 32


class Recurrence(nn.Module):
    """A convolution over 4 tokens, h = a h + u with a of the input, and a head; its state may be
    kept wrongly.

    A token that is padding leaves both states as they were.
    """

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fault = fault
        self.embedding = nn.Embedding(VOCABULARY, SIZE)
        self.taps = nn.Parameter(torch.randn(TAPS, SIZE) / math.sqrt(TAPS))
        self.gate = nn.Linear(SIZE, SIZE)
        self.head = nn.Linear(SIZE, VOCABULARY)

    def forward(self, tokens: Tensor, state: Any, mask: Tensor | None) -> tuple[Tensor, Any]:
        x = self.embedding(tokens)
        real = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask
        if self.hides_nothing(real):
            real = torch.ones_like(real)
        past, h = self.begun(x, state)
        outputs = []
        for t in range(tokens.shape[1]):
            now = real[:, t, None]
            window = torch.cat((past, x[:, t, None]), dim=1)
            u = (window * self.taps).sum(1)
            decay = torch.sigmoid(self.gate(u))
            if self.fault == "masks what is written, not the decay":
                h = decay * h + u * now
            else:
                h = torch.where(now, decay * h + u, h)
            past = torch.where(now[..., None], window[:, 1:], past)
            if self.fault == "mixes rows":
                h = h + 0.01 * h.mean(0)
            outputs.append(self.head(h))
        return torch.stack(outputs, dim=1), (past, h)

    def hides_nothing(self, real: Tensor) -> bool:
        """Whether the mask is ignored."""
        alone = len(real) == 1
        return self.fault == "ignores the mask" or (self.fault == "masks batches only" and alone)

    def begun(self, x: Tensor, state: Any) -> tuple[Tensor, Tensor]:
        """The last embeddings and h, before x."""
        past = x.new_zeros(len(x), TAPS - 1, SIZE)
        h = x.new_zeros(len(x), SIZE)
        if state is None:
            return past, h
        past, h = state
        if self.fault == "forgets the convolution":
            past = torch.zeros_like(past)
        if self.fault == "begins again with several tokens" and x.shape[1] > 1:
            h = torch.zeros_like(h)
        if self.fault == "mixes rows of a state":
            h = h[-1:].expand_as(h)
        return past, h


def step(model: Any, tokens: Tensor, state: Any, mask: Tensor | None) -> tuple[Tensor, Any]:
    logits, after = model(tokens, state, mask)
    return logits, after


def checked(model: Any, **options: Any) -> StateChecks:
    return check_state(model, step, vocabulary=VOCABULARY, checks=ALL_CHECKS, **options)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_a_state_that_is_kept_passes_every_check(dtype: torch.dtype) -> None:
    found = checked(Recurrence().to(dtype))
    assert found.passed, found
    assert [one.name for one in found.checks] == (
        ["neighbour"] * 2 + ["cut"] * 7 + ["left padding"] * 3 + ["padding inside"] * 3
    )
    assert "0 of 15 checks of its state failed" in repr(found)


FAULTS = {
    "ignores the mask": {"left padding": 3, "padding inside": 3},
    "masks batches only": {"left padding": 1},
    "masks what is written, not the decay": {"padding inside": 3},
    "forgets the convolution": {"neighbour": 1, "cut": 7, "left padding": 1, "padding inside": 2},
    "begins again with several tokens": {"cut": 4, "padding inside": 1},
    "mixes rows": {"neighbour": 2, "left padding": 2, "padding inside": 3},
    "mixes rows of a state": {"neighbour": 1, "left padding": 1, "padding inside": 2},
}
"""How many of 2, 7, 3 and 3 comparisons fail."""


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_found_where_it_acts(fault: str) -> None:
    found = checked(Recurrence(fault))
    failed = [one.name for one in found.failed]
    assert {name: failed.count(name) for name in failed} == FAULTS[fault], found
    assert all(one.outcome == "failed" for one in found.failed)


def first(found: StateChecks, name: str) -> StateCheck:
    return next(one for one in found.failed if one.name == name)


def test_the_first_token_that_differs_is_named() -> None:
    cut = first(checked(Recurrence("begins again with several tokens")), "cut")
    assert (cut.row, cut.token, cut.moved, cut.of) == (0, 1, cut.moved, LENGTH)
    half = checked(Recurrence("begins again with several tokens")).failed[3]
    assert (half.row, half.token) == (0, HALF)
    assert half.sentence.startswith(
        f"failed: a cut after token {HALF}: token {HALF} of row 0 is the first that differs, by"
    )
    padding = first(checked(Recurrence("ignores the mask")), "left padding")
    assert (padding.row, padding.token, padding.of) == (0, 0, LENGTH - PADDING)
    inner = first(checked(Recurrence("masks what is written, not the decay")), "padding inside")
    assert (inner.row, inner.token) == (0, HALF)
    mixed = first(checked(Recurrence("mixes rows of a state")), "neighbour")
    assert (mixed.row, mixed.token) == (0, HALF)
    assert mixed.first is not None
    assert mixed.difference is not None
    assert 0 < mixed.first <= mixed.difference


def test_what_cannot_be_seen_does_not_pass() -> None:
    """Weights of zero hide every fault, and so does a difference below rounding."""
    model = Recurrence("ignores the mask")
    nn.init.zeros_(model.head.weight)
    found = checked(model)
    assert [one.name for one in found.checks] == list(ALL_CHECKS)
    assert [one.outcome for one in found.checks] == ["not seen"] * 4
    assert not found.passed
    coarse = checked(Recurrence().bfloat16())  # in which rounding does as much as a fault
    assert {one.outcome for one in coarse.failed} == {"not seen"}
    with pytest.raises(AssertionError, match="forgetting 36 tokens changes logits by"):
        assert_state_survives(Recurrence(), step, vocabulary=VOCABULARY, tolerance=1e6)


def test_logits_that_change_on_their_own_are_refused() -> None:
    class Noisy(Recurrence):
        def forward(self, tokens: Tensor, state: Any, mask: Any) -> tuple[Tensor, Any]:
            logits, after = super().forward(tokens, state, mask)
            return logits + torch.rand_like(logits), after

    with pytest.raises(ValueError, match="model must give the same logits twice, got others by"):
        checked(Noisy(), tolerance=1e-3)
    with pytest.raises(ValueError, match="model must give the same logits twice, got others by"):
        checked(Noisy())


class InOneBuffer(Recurrence):
    """In float64, with the logits of all calls of one shape in the same memory."""

    def __init__(self, fault: str = "") -> None:
        super().__init__(fault)
        self.double()
        self.buffers: dict[Any, Tensor] = {}

    def forward(self, tokens: Tensor, state: Any, mask: Any) -> tuple[Tensor, Any]:
        logits, after = super().forward(tokens, state, mask)
        tokens.zero_()
        buffer = self.buffers.setdefault(logits.shape, torch.empty_like(logits))
        return buffer.copy_(logits), after


def test_a_model_may_return_one_buffer_at_every_call_and_write_into_its_tokens() -> None:
    """Each text alone, and all calls with a single token, have logits of one shape."""
    assert checked(InOneBuffer()).passed
    fault = "forgets the convolution"
    differences = [
        [one.difference for one in checked(model.double()).checks]
        for model in (InOneBuffer(fault), Recurrence(fault))
    ]
    assert differences[0] == differences[1]


def test_an_error_of_the_model_is_a_failure_of_the_check() -> None:
    class Stubborn(Recurrence):
        def forward(self, tokens: Tensor, state: Any, mask: Any) -> tuple[Tensor, Any]:
            if mask is not None:
                raise RuntimeError("no mask,\nplease")
            return super().forward(tokens, state, mask)

    found = checked(Stubborn())
    assert [one.name for one in found.failed] == ["left padding"] * 3 + ["padding inside"] * 3
    assert found.failed[0].sentence.endswith("raised RuntimeError: no mask, please")


def test_a_model_is_left_as_it_was() -> None:
    model = Recurrence().train()
    before = {name: one.clone() for name, one in model.state_dict().items()}
    checked(model)
    assert model.training
    assert all(torch.equal(before[name], one) for name, one in model.state_dict().items())


@pytest.mark.parametrize("trains", [True, False])
def test_each_module_is_evaluated_and_left_in_its_own_mode(trains: bool) -> None:
    """A part that is frozen in evaluation mode stays so, and one that trains does not drop."""

    class Dropping(Recurrence):
        def __init__(self) -> None:
            super().__init__()
            self.dropout = nn.Dropout(0.5)

        def forward(self, tokens: Tensor, state: Any, mask: Tensor | None) -> tuple[Tensor, Any]:
            logits, state = super().forward(tokens, state, mask)
            return self.dropout(logits), state

    model = Dropping().train(trains)
    model.dropout.train(not trains)
    assert checked(model).passed
    assert (model.training, model.dropout.training) == (trains, not trains)


def test_a_module_that_changes_with_its_mode_is_changed_back() -> None:
    """As a layer of LoRA, which adds its matrix to another for evaluation."""

    class Merging(Recurrence):
        merged = False

        def train(self, mode: bool = True) -> "Merging":
            super().train(mode)
            self.merged = not mode
            return self

    model = Merging().train()
    assert checked(model).passed
    assert (model.training, model.merged) == (True, False)


OURS: dict[str, Callable[[], nn.Module]] = {
    "ssm": lambda: build(SSMConfig(16, 2)),
    "ssm with patches": lambda: build(SSMConfig(16, 2, patch=4)),
    "rwkv5": lambda: build(EAGLE),
    "rwkv6": lambda: build(FINCH),
    "rwkv7": lambda: build(GOOSE),
    "gated delta net": lambda: drawn(gated_delta({"dim": 16, "heads": 2, "head_size": 8})),
}


def drawn(model: nn.Module) -> nn.Module:
    """With matrices so large that a state matters."""
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for values in model.parameters():
            if values.ndim > 1:
                values.normal_(std=values.shape[-1] ** -0.5, generator=draw)
    return model


@pytest.mark.parametrize(
    "kind",
    [
        kind if kind in ("ssm", "gated delta net") else pytest.param(kind, marks=pytest.mark.slow)
        for kind in OURS
    ],
)
def test_models_of_plkernel_keep_their_state(kind: str) -> None:
    model = OURS[kind]()
    found = check_state(Foreign("here:model", model) if kind == "gated delta net" else model)
    assert found.passed, found
    assert [one.outcome for one in found.checks][-1] == "not offered"
    assert_state_survives(model)
    with pytest.raises(AssertionError, match="not offered: left padding: forward has no attention"):
        assert_state_survives(model, checks=["left padding"])


HEALTHY = (
    "Bamba",
    "FalconH1",
    "GraniteMoeHybrid",
    "Qwen3Next",
    "Qwen3_5",
    "OlmoHybrid",
    "KimiLinear",
    "BailingHybrid",
)
BEGINS_AGAIN = {"cut": 4}
ONE_TOKEN = {"neighbour": 1, "cut": 3, "left padding": 1}
IN_TRANSFORMERS: dict[str, dict[str, int]] = {
    **{name: {} for name in HEALTHY},
    **dict.fromkeys(("Mamba", "FalconMamba", "Jamba", "Zamba"), BEGINS_AGAIN),
    **dict.fromkeys(("Mamba2", "NemotronH", "Zamba2"), ONE_TOKEN),
    "MiniMax": {"cut": 4, "left padding": 1},
    "Rwkv": {"neighbour": 1, "left padding": 3},
}
"""How many comparisons fail in transformers 5.24.0, of 2, 7 and 3.

The second Mamba-2 and its kin have limits of the time step, which a step of one token does not
apply.
"""
VERSION = "5.24.0"


def of_transformers(name: str, **changes: Any) -> nn.Module:
    """A tiny model of transformers, in float32 and without kernels for GPUs."""
    with without_gpu_code():
        import transformers
        from tiny_models import FAST, SLOW

        options = {**FAST, **SLOW}[name] | changes
        config = getattr(transformers, f"{options.pop('config', name)}Config")(**options)
        torch.manual_seed(0)
        return drawn(getattr(transformers, f"{name}ForCausalLM")(config))


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("Mamba", "Rwkv") else pytest.param(name, marks=pytest.mark.slow)
        for name in IN_TRANSFORMERS
    ],
)
def test_models_of_transformers(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    if transformers.__version__ != VERSION:
        pytest.skip(f"of transformers {VERSION}, not of {transformers.__version__}")
    found = check_state(of_transformers(name))
    failed = [one.name for one in found.failed]
    assert {one: failed.count(one) for one in failed} == IN_TRANSFORMERS[name], found


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"checks": "cut"}, "checks must be a list of some of neighbour, cut, .*, got 'cut'"),
        ({"checks": ["cuts"]}, "checks must be among neighbour, .*, got cuts"),
        ({"tolerance": 0.0}, "tolerance must be a finite number above 0, got 0.0"),
        ({"tolerance": "1"}, "tolerance must be a finite number above 0, got '1'"),
        ({"tolerance": math.inf}, "tolerance must be a finite number above 0, got inf"),
        ({"vocabulary": None}, "at least 2, got None; the model has no config.vocab_size"),
        ({"vocabulary": "16"}, "vocabulary must be the number of tokens, at least 2, got '16'$"),
        (
            {"tokens": torch.zeros(2, 5)},
            r"tokens must be a tensor of shape \(2, T\), T at least 13, got Tensor\(2, 5\)",
        ),
        (
            {"tokens": np.zeros((2, 20), dtype=np.int64)},
            r"tokens must be a tensor of shape \(2, T\), T at least 13, got ndarray\(2, 20\)",
        ),
    ],
)
def test_other_arguments_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_state(Recurrence(), step, **{"vocabulary": VOCABULARY, **options})


def test_a_model_without_a_known_state_needs_a_step() -> None:
    with pytest.raises(ValueError, match=r"model must take a state, got Linear, .*give step="):
        check_state(nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"model must give logits \(1, 72, V\), got \(1, 72\)"):
        check_state(
            nn.Linear(2, 2), lambda model, tokens, state, mask: (tokens, None), vocabulary=9
        )


def test_a_model_that_takes_a_cache_and_returns_none_needs_a_step() -> None:
    class Forgetful(nn.Module):
        """Takes a cache as models of transformers do, and gives logits alone."""

        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(32, 32)

        def forward(self, tokens: Tensor, past_key_values: Any = None) -> Any:
            return SimpleNamespace(logits=self.embedding(tokens))

    with pytest.raises(ValueError, match="forward must return one of cache, past_key_values"):
        check_state(Forgetful(), vocabulary=32)


def test_the_fixture_is_the_function(state_survives: Any) -> None:
    assert state_survives is assert_state_survives


def test_the_test_of_a_model_looks_at_the_tokens_that_it_is_given() -> None:
    """And so refuses some that are too few, which random ones never are."""
    few = torch.ones(2, 5, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"tokens must be a tensor of shape \(2, T\)"):
        assert_state_survives(Recurrence(), step, tokens=few, vocabulary=VOCABULARY)


def test_what_is_no_model_with_numbers_is_refused_by_what_it_is() -> None:
    def in_numpy(model: Any, tokens: Tensor, state: Any, mask: Any) -> tuple[Any, Any]:
        return model(tokens, state, mask)[0].numpy(), None

    with pytest.raises(ValueError, match="model must be a model, got the class Recurrence"):
        check_state(Recurrence, step, vocabulary=VOCABULARY)
    with pytest.raises(ValueError, match="parameters with numbers, got some on the meta device"):
        check_state(Recurrence().to("meta"), step, vocabulary=VOCABULARY)
    with pytest.raises(ValueError, match="model must give logits as a tensor, got ndarray"):
        check_state(Recurrence(), in_numpy, vocabulary=VOCABULARY)


def test_logits_that_are_not_finite_are_counted() -> None:
    """A text read alone must give numbers: nothing can be compared with NaN."""
    model = Recurrence()
    texts = torch.zeros((2, 20), dtype=torch.long)
    texts[1, 7] = 3
    with torch.no_grad():
        model.embedding.weight[3] = math.nan
    told = "got others for 13 of 20 tokens, first for token 7; plkernel.watch"
    with pytest.raises(ValueError, match=told):
        check_state(model, step, tokens=texts)


def test_a_vocabulary_may_be_an_integer_of_numpy() -> None:
    size: Any = np.int64(VOCABULARY)
    assert check_state(Recurrence(), step, checks=["neighbour"], vocabulary=size).passed


class Sums:
    """A model without parameters: the logits of a token are 100 times the sum of tokens so far.

    added: what is added to logits that begin with a state; noise: to the second reading of a text
    alone.
    """

    def __init__(self, added: float = 0.0, noise: float = 0.0) -> None:
        self.added = added
        self.noise = noise
        self.calls = 0

    def step(self, _: Any, tokens: Tensor, state: Any, mask: Tensor | None) -> tuple[Tensor, Any]:
        real = torch.ones_like(tokens) if mask is None else mask
        before = torch.zeros(len(tokens)).double() if state is None else state
        sums = before[:, None] + (tokens * real).double().cumsum(1)
        found = 100 * sums
        if state is not None:
            found = found + self.added
        if self.calls in (2, 3):
            found = found + self.noise
        self.calls += 1
        return torch.stack((found, torch.zeros_like(found)), dim=-1), sums[:, -1]


def of_sums(checks: list[str], tolerance: float | None = None, **options: float) -> StateChecks:
    model = Sums(**options)
    return check_state(model, model.step, checks=checks, vocabulary=9, tolerance=tolerance)


def drawn_texts(vocabulary: int = 9) -> Tensor:
    return torch.randint(vocabulary, (2, LENGTH), generator=torch.Generator().manual_seed(0))


def test_a_difference_that_equals_the_tolerance_passes_and_a_larger_one_fails() -> None:
    assert of_sums(["cut"], tolerance=2.0, added=2.0).passed
    found = of_sums(["cut"], tolerance=1.999, added=2.0)
    assert [one.outcome for one in found.checks] == ["failed"] * 7
    moved = [one.moved for one in found.checks]
    assert moved == [LENGTH - 1, LENGTH - 2, LENGTH - 3, HALF, 1, LENGTH - 1, HALF]
    assert [one.token for one in found.checks] == [1, 2, 3, HALF, LENGTH - 1, 1, HALF]
    assert {one.difference for one in found.checks} == {2.0}
    assert {one.first for one in found.checks} == {2.0}
    assert {one.of for one in found.checks} == {LENGTH}


def test_what_changes_no_more_than_the_tolerance_is_not_seen() -> None:
    texts = drawn_texts().double()
    forgotten = 100 * float(texts[0, :HALF].sum())
    apart = 100 * float((texts[0].cumsum(0) - texts[1].cumsum(0)).abs().max())
    for check, change in (("cut", forgotten), ("neighbour", apart)):
        [unseen] = of_sums([check], tolerance=change).checks
        assert (unseen.outcome, unseen.difference, unseen.tolerance) == (
            "not seen",
            change,
            change,
        )
        assert of_sums([check], tolerance=change * (1 - 1e-12)).passed
    model = Sums()
    padding = ["left padding", "padding inside"]
    for check in padding:
        found = check_state(model, model.step, checks=[check], vocabulary=9, tolerance=1e9)
        assert [one.outcome for one in found.checks] == ["not seen"]
    assert check_state(model, model.step, checks=padding, vocabulary=9).passed


def test_logits_may_differ_between_two_readings_by_the_tolerance_and_no_more() -> None:
    assert of_sums(["cut"], tolerance=1.0, noise=1.0).passed
    with pytest.raises(ValueError, match="must give the same logits twice, got others by 1;"):
        of_sums(["cut"], tolerance=0.999, noise=1.0)
    largest = 100 * float(drawn_texts().sum(1).max())
    half_of_digits = math.sqrt(torch.finfo(torch.float32).eps) * largest
    assert of_sums(["cut"], noise=0.99 * half_of_digits).checks
    with pytest.raises(ValueError, match="must give the same logits twice"):
        of_sums(["cut"], noise=1.01 * half_of_digits)


class Idle(nn.Module):
    """Parameters that no logit depends on, behind one of integers."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.counts = nn.Parameter(torch.arange(100), requires_grad=False)
        self.values = nn.Parameter(torch.linspace(1, 2, 100, dtype=dtype))


@pytest.mark.parametrize(
    ("dtype", "unit"),
    [
        (torch.float64, 2.0**-23),
        (torch.float32, 2.0**-23),
        (torch.bfloat16, 2.0**-7),
        (None, 2.0**-23),
    ],
    ids=str,
)
def test_rounding_does_128_units_of_the_largest_logit_at_least(
    dtype: torch.dtype | None, unit: float
) -> None:
    """32 times four of them; of float64 those of float32."""
    model: Any = Sums() if dtype is None else Idle(dtype)
    found = check_state(model, Sums().step, checks=["neighbour"], vocabulary=9)
    largest = 100 * float(drawn_texts().sum(1).max())
    assert found.checks[0].tolerance == pytest.approx(128 * unit * largest, rel=1e-12)


def test_parameters_are_nudged_up_and_down_by_a_unit_and_integers_are_not() -> None:
    model = Idle(torch.float64)
    before = model.values.detach().clone()
    with torch.no_grad():
        moved = _nudged(model, 0.25)
    up, down = moved.values == 1.25 * before, moved.values == 0.75 * before
    assert torch.all(up | down)
    assert up.any()
    assert down.any()
    assert moved.counts.tolist() == list(range(100))


def test_texts_are_two_of_72_drawn_tokens_on_the_device_of_the_model() -> None:
    read: list[Tensor] = []

    def listening(model: Any, tokens: Tensor, state: Any, mask: Any) -> tuple[Tensor, Any]:
        read.append(tokens)
        return Sums().step(model, tokens, state, mask)

    check_state(Sums(), listening, checks=["cut"], vocabulary=9)
    assert torch.equal(torch.cat(read[:2]), drawn_texts())
    with pytest.raises(ValueError, match="vocabulary must be the number of tokens, at least 2"):
        check_state(Sums(), listening, vocabulary=1)
    read.clear()
    check_state(Sums(), listening, checks=["cut"], vocabulary=2)
    assert torch.cat(read[:2]).unique().tolist() == [0, 1]
    shortest = torch.arange(26).view(2, 13)
    read.clear()
    assert check_state(Sums(), listening, checks=ALL_CHECKS, tokens=shortest).passed
    assert torch.equal(torch.cat(read[:2]), shortest)
    for wrong in (shortest[:, :12], shortest[:1], shortest[0]):
        with pytest.raises(ValueError, match=r"tokens must be a tensor of shape \(2, T\)"):
            check_state(Sums(), listening, tokens=wrong)


@pytest.mark.parametrize(
    ("model", "size"),
    [
        (SimpleNamespace(initial_state=None), 256),
        (SimpleNamespace(config=SimpleNamespace(vocab_size=7)), 7),
        (
            SimpleNamespace(
                config=SimpleNamespace(get_text_config=lambda: SimpleNamespace(vocab_size=5))
            ),
            5,
        ),
        (SimpleNamespace(), None),
    ],
)
def test_the_vocabulary_is_that_of_the_configuration(model: Any, size: int | None) -> None:
    assert _vocabulary(model) == size


def test_logits_that_become_nan_or_lose_tokens_are_failures() -> None:
    def broken(model: Any, tokens: Tensor, state: Any, mask: Any) -> tuple[Tensor, Any]:
        logits, after = Sums().step(model, tokens, state, mask)
        return (logits if state is None else logits * math.nan), after

    def short(model: Any, tokens: Tensor, state: Any, mask: Any) -> tuple[Tensor, Any]:
        logits, after = Sums().step(model, tokens, state, mask)
        return (logits if state is None else logits[:, -1]), after

    found = check_state(Sums(), broken, checks=["cut"], vocabulary=9)
    assert [one.outcome for one in found.checks] == ["failed"] * 7
    assert {one.difference for one in found.checks} == {math.inf}
    found = check_state(Sums(), short, checks=["cut"], vocabulary=9)
    assert found.checks[3].sentence == (
        f"failed: a cut after token {HALF}: raised ValueError: logits must be (B,T,V) for tokens"
        f" (1, {HALF}), got (1, 2)"
    )


def test_checks_as_a_table_and_in_words() -> None:
    passed = StateCheck("cut", "a cut", "passed", 1e-7, 2e-6, of=9)
    failed = StateCheck("cut", "a cut", "failed", 0.5, 2e-6, 1, 4, 0.25, 3, 9)
    unseen = StateCheck("neighbour", "a batch", "not seen", 0.0, 1.0, note="nothing")
    absent = StateCheck("left padding", "left padding", "not offered", note="no mask")
    found = StateChecks("Model", (passed, failed, unseen, absent))
    assert found.failed == [failed, unseen]
    assert not found.passed
    assert StateChecks("Model", (passed, absent)).passed
    assert repr(found).splitlines() == [
        "Model: 2 of 3 checks of its state failed",
        "passed: a cut: logits differ by 1e-07 at most, rounding may do 2e-06",
        "failed: a cut: token 4 of row 1 is the first that differs, by 0.25; 3 of 9 tokens differ,"
        " by 0.5 at most, rounding may do 2e-06",
        "not seen: a batch: nothing",
        "not offered: left padding: no mask",
    ]
    assert found._table()[1] == {
        "check": "cut",
        "of": "a cut",
        "outcome": "failed",
        "difference": 0.5,
        "tolerance": 2e-6,
        "row": 1,
        "token": 4,
    }


def test_checks_are_made_in_their_order_whatever_is_asked() -> None:
    found = of_sums(["padding inside", "cut", "cut"])
    assert [one.name for one in found.checks] == ["cut"] * 7 + ["padding inside"] * 3
    for none in ([], ()):
        with pytest.raises(ValueError, match="checks must be a list of some of"):
            check_state(Sums(), Sums().step, checks=none)


class Called(nn.Module):
    """Keeps what a model of transformers is called with."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[dict[str, Any]] = []

    def answer(self, tokens: Tensor, **given: Any) -> Any:
        self.given.append(given)
        logits = nn.functional.one_hot(tokens, 32).float()
        return SimpleNamespace(logits=logits, past_key_values=f"after {len(self.given)}")


class WithPositions(Called):
    def forward(
        self,
        tokens: Tensor,
        past_key_values: Any = None,
        position_ids: Any = None,
        attention_mask: Any = None,
        use_cache: Any = None,
    ) -> Any:
        given = {"past_key_values": past_key_values, "position_ids": position_ids.tolist()}
        mask = None if attention_mask is None else attention_mask.tolist()
        return self.answer(tokens, **given, attention_mask=mask, use_cache=use_cache)


class WithoutPositions(Called):
    def forward(
        self, tokens: Tensor, past_key_values: Any = None, attention_mask: Any = None
    ) -> Any:
        mask = None if attention_mask is None else attention_mask.tolist()
        return self.answer(tokens, past_key_values=past_key_values, attention_mask=mask)


def called_in_parts(model: Called) -> list[dict[str, Any]]:
    """The mask that the model gets: one of two tokens is padding, then two are none."""
    call = known_step(model)
    assert takes_mask(model)
    tokens = torch.ones((1, 2), dtype=torch.long)
    _, state = call(model, tokens, None, torch.tensor([[False, True]]))
    call(model, tokens, state, None)
    return model.given


def test_a_model_of_transformers_is_called_as_generate_calls_it() -> None:
    """Positions count what is no padding, and a mask is that of all tokens so far."""
    assert called_in_parts(WithPositions()) == [
        {
            "past_key_values": None,
            "position_ids": [[0, 0]],
            "attention_mask": [[0, 1]],
            "use_cache": True,
        },
        {
            "past_key_values": "after 1",
            "position_ids": [[1, 2]],
            "attention_mask": [[0, 1, 1, 1]],
            "use_cache": True,
        },
    ]


def test_without_positions_a_mask_is_that_of_the_tokens_of_a_call() -> None:
    assert called_in_parts(WithoutPositions()) == [
        {"past_key_values": None, "attention_mask": [[0, 1]]},
        {"past_key_values": "after 1", "attention_mask": None},
    ]
