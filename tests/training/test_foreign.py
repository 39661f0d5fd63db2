"""Other people's models, starts: named in a spec, checked, and told in one line."""

import math
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from plkernel.config.condition import resolve
from plkernel.config.schema import ModelSpec, TrainSpec
from plkernel.models.init.mamba2 import log_spaced_, power_law_, unit_a_
from plkernel.training.build import Prepared, build_optimizer, started
from plkernel.training.foreign import Foreign, build, check_model, start_

KIND = "somebodys.models:Recurrent"
MAMBA2 = "transformers:Mamba2ForCausalLM"
SIZES = {
    "hidden_size": 16,
    "num_heads": 32,
    "head_dim": 1,
    "state_size": 4,
    "num_hidden_layers": 1,
    "n_groups": 1,
}
CPU = torch.device("cpu")


def parameters(seed: int) -> list[torch.Tensor]:
    return [values.detach().clone() for values in build(KIND, {}, seed).parameters()]


def test_one_seed_one_start_whatever_was_drawn_before(package: Path) -> None:
    first = parameters(3)
    torch.rand(5), random.random()
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[2]  # noqa: NPY002
    assert all(torch.equal(one, other) for one, other in zip(first, parameters(3), strict=True))
    assert not torch.equal(first[0], parameters(4)[0])
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), np.random.get_state()[2]) == before[1:]  # noqa: NPY002
    one, other = (build(KIND, {}, 0) for _ in range(2))
    for model in (one, other):
        start_(model, "somebodys.models:small_", {"std": 1e-3}, 7)
    assert torch.equal(one.module.embedding.weight, other.module.embedding.weight)
    assert 0 < one.module.embedding.weight.std() < 2e-3


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        ("small_", {"sdt": 1}, "must be options of init '.*:small_', got 'sdt'; valid: std$"),
        ("small_", {"generator": 1}, "must be options of .*, got 'generator'; valid: std$"),
        ("nothing_", {"std": 1}, "must be options of .*, got 'std'; valid: none$"),
        ("spread_", {}, "must hold 'longest', which init '.*:spread_' needs, got none$"),
        ("spread_", {"shortest": 1}, "must hold 'longest', .*, got shortest$"),
        (
            "spread_",
            {"longest": 9, "generator": 1},
            "must be options of .*, got 'generator'; valid: longest$",
        ),
    ],
)
def test_options_that_an_initialisation_does_not_have_or_lacks_are_named(
    package: Path, function: str, options: dict[str, object], message: str
) -> None:
    model = build(KIND, {}, 0)
    with pytest.raises(ValueError, match=f"^init_options {message}"):
        start_(model, f"somebodys.models:{function}", options, 7)


def test_an_initialisation_may_take_any_options(package: Path) -> None:
    model = build(KIND, {}, 0)
    start_(model, "somebodys.models:spread_", {"longest": 9, "shortest": 1}, 7)
    assert model.module.spread == {"longest": 9, "shortest": 1}


def test_options_are_those_of_the_wrapper_and_of_what_it_passes_on(package: Path) -> None:
    model = build(KIND, {}, 0)
    start_(model, "somebodys.models:scaled_", {"scale": 2.0, "longest": 7}, 7)
    assert model.module.scaled == {"std": 0.02, "longest": 7}
    start_(model, "somebodys.models:closed_", {"scale": 3.0}, 7)
    assert model.module.scaled == {"std": 0.03}
    for function, option, valid in (
        ("scaled_", "scaling", "scale, std, longest"),
        ("closed_", "std", "scale"),
    ):
        message = f"init_options must be options of .*, got '{option}'; valid: {valid}$"
        with pytest.raises(ValueError, match=message):
            start_(model, f"somebodys.models:{function}", {option: 1.0}, 7)


class Remembering(nn.Module):
    """Says all that may be said."""

    patch = 4

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, 2)
        self.rate = nn.Parameter(torch.tensor([0.5, 0.25]))

    def half_lives(self) -> list[torch.Tensor]:
        return [math.log(2) / self.rate]

    def kernels(self, lags: torch.Tensor) -> list[torch.Tensor]:
        return [torch.exp(-self.rate.mean() * lags)]


def test_a_model_speaks_for_itself(package: Path) -> None:
    model = Foreign("here:Remembering", Remembering())
    assert model.config.patch == 4
    expected = torch.tensor([2.0, 4.0]).double() * math.log(2)
    torch.testing.assert_close(model.half_lives()[0], expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(
        model.kernels(torch.tensor([1, 2]))[0], torch.tensor([-0.375, -0.75]).exp().double()
    )
    groups = build_optimizer(
        model, TrainSpec(steps=1, learning_rate=1e-2, weight_decay=0.5)
    ).param_groups
    found = {id(p): (g["lr"], g["weight_decay"], g["eps"]) for g in groups for p in g["params"]}
    assert found[id(model.module.rate)] == (1e-2, 0.0, 1e-8)  # no matrix, so that nothing decays it
    assert found[id(model.module.embedding.weight)] == (1e-2, 0.5, 1e-8)
    frozen = TrainSpec(steps=1, decay_multiplier=0)
    with pytest.raises(
        ValueError,
        match=r"^train.decay_multiplier, .* got none in Remembering; .* finds them by name: give",
    ):
        build_optimizer(model, frozen)
    silent = build(KIND, {}, 0)
    assert silent.half_lives() == silent.kernels(torch.tensor([1, 2])) == []
    assert silent.config.patch == 1


class Placed(nn.Module):
    """Half-lives that double from the first byte to the length of training."""

    def half_lives(self, position: float | None = None) -> list[torch.Tensor]:
        return [torch.tensor([3.0 if position == 1 else 6.0])]


def test_half_lives_at_a_position_are_those_that_a_model_can_tell(package: Path) -> None:
    """By its own method, if that takes one; none where nothing is known."""
    placed = Foreign("here:Placed", Placed())
    assert [placed.half_lives(at)[0].item() for at in (None, 1, 7)] == [6.0, 3.0, 6.0]
    silent = Foreign("here:Remembering", Remembering())
    with pytest.raises(ValueError, match=r"position must be left out for .* takes none, got 1$"):
        silent.half_lives(1)
    assert build(KIND, {}, 0).half_lives(1) == []
    for model in (placed, silent):
        with pytest.raises(ValueError, match="position must be 1 or more, got 0;"):
            model.half_lives(0)


def tried(kind: str, **config: object) -> None:
    check_model(build(f"somebodys.models:{kind}", config, 0), "kind", 64, CPU)


def test_causal_models_pass(package: Path) -> None:
    """Also where they are causal up to rounding, as a convolution through Fourier space, and where
    training alone draws and looks at the whole batch, as dropout and batch norm do.
    """
    tried("Plain")
    tried("Recurrent")
    tried("Plain", see="fourier")
    tried("Buffered", grows=True, persistent=False)
    tried("Buffered", dtype="complex128", persistent=False)
    check_model(started(resolve(ModelSpec(dim=16, layers=2)), 0), "kind", 64, CPU)


@pytest.mark.parametrize(
    "zero", [False, True], ids=["", "from a head of zeros, which shows nothing yet"]
)
@pytest.mark.parametrize(
    ("see", "message"),
    [
        ("next", "is not causal: byte 1 changes the logits at byte 0"),
        ("patch", "is not causal: byte 1 changes the logits at byte 0"),
        ("mean", "is not causal: byte 1 changes the logits at byte 0"),
        (
            "length",
            "is not causal: the logits at byte 0 change when the bytes from 1 on are left out",
        ),
        ("batch", "the logits of a window must not change with the other windows of its batch"),
    ],
)
def test_a_model_that_cheats_is_refused_with_the_byte(
    package: Path, see: str, message: str, zero: bool
) -> None:
    with pytest.raises(ValueError, match=message):
        tried("Plain", see=see, zero=zero)


@pytest.mark.parametrize("zero", [False, True], ids=["", "from a head of zeros, all equal"])
def test_a_model_that_ends_in_a_softmax_is_refused(package: Path, zero: bool) -> None:
    """Its loss would be nearly the same whatever it learns."""
    message = "must give logits, got probabilities, .*; leave its softmax out, or give"
    with pytest.raises(ValueError, match=message):
        tried("Plain", see="probabilities", zero=zero)
    tried("Plain", see="logarithms", zero=zero)


def test_a_process_that_a_study_starts_does_not_try_again(package: Path) -> None:
    condition = resolve(
        ModelSpec(kind="somebodys.models:Plain", config={"see": "next"}), trusted=True
    )
    assert Prepared.of(condition, checked=True).parameters
    with pytest.raises(ValueError, match="is not causal"):
        Prepared.of(condition)


@pytest.mark.parametrize(
    ("kind", "config", "message"),
    [
        (
            "somebodys.models:Plain",
            {"see": "wrong shape"},
            r"must give logits \(\d+, 64, 256\), got torch.float32 of shape \(\d+, 64, 7\)",
        ),
        (
            "somebodys.models:Plain",
            {"see": "wrong shape"},
            "of shape .* 7.; a model of a study takes bytes, 0..255, and gives 256 logits for each",
        ),
        ("somebodys.models:Plain", {"see": "nan"}, "its logits must be finite at initialisation"),
        (
            "somebodys.models:Plain",
            {"see": "error"},
            r"bytes raised KeyError: 'weights\\nof the past'",
        ),
        (
            "somebodys.models:Plain",
            {"see": "dice"},
            "its logits must be the same each time for the same bytes",
        ),
        (
            "somebodys.models:Plain",
            {"see": "constant"},
            "its loss must have a gradient in a parameter",
        ),
        (
            "somebodys.models:half",
            {},
            "parameter module.embedding.weight must be torch.float32, got torch.float16",
        ),
        (
            "somebodys.models:Buffered",
            {"expanded": True},
            r"parameter module.spread must have memory of its own .*; clone\(\) it",
        ),
        (
            "somebodys.models:Buffered",
            {"dtype": "complex128"},
            "buffer module.kept must be of a type that a checkpoint can hold, got torch.complex128",
        ),
        (
            "somebodys.models:Buffered",
            {"grows": True},
            r"buffer module.kept must keep its type and shape, got torch.float32 of shape \(0,\) at"
            r" first and torch.float32 of shape \(64,\) after some windows",
        ),
        ("somebodys.models:broken", {}, "building it raised RuntimeError: no such luck at all"),
        ("somebodys.models:no_module", {}, "must give a torch.nn.Module, got dict"),
        ("somebodys.model:Plain", {}, "No module named 'somebodys.model'"),
        (
            MAMBA2,
            {"hidden_sizes": 16},
            "must hold arguments of Mamba2Config, got 'hidden_sizes'; did you mean 'hidden_size'",
        ),
        (MAMBA2, {"vocab_size": 300}, "vocab_size must be 256, one for every byte, got 300"),
        (MAMBA2, {**SIZES, "num_heads": 5}, "building it raised .*num_heads"),
    ],
)
def test_mistakes_are_one_line(
    package: Path, kind: str, config: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        check_model(build(kind, config, 0), "kind", 64, CPU)
    assert "\n" not in str(refused.value)


def test_a_vocabulary_below_bytes_is_told_what_a_study_reads() -> None:
    message = "raised IndexError: .*; a model of a study takes bytes, 0..255, and gives 256 logits"
    with pytest.raises(ValueError, match=message):
        check_model(Foreign("kind", torch.nn.Embedding(100, 256)), "kind", 64, CPU)


@pytest.fixture(scope="module")
def mamba2() -> Foreign:
    pytest.importorskip("transformers", reason="transformers is not installed")
    return build(MAMBA2, {**SIZES, "chunk_size": 16}, 0)


def test_a_model_of_transformers_is_over_bytes_none_of_which_is_special(mamba2: Foreign) -> None:
    assert mamba2(torch.randint(256, (2, 20))).shape == (2, 20, 256)
    embedding = mamba2.module.get_input_embeddings()
    assert (embedding.weight.shape[0], embedding.padding_idx) == (256, None)
    assert (embedding.weight != 0).any(dim=1).all()


@pytest.mark.parametrize("start", [power_law_, log_spaced_])
def test_the_heads_carry_the_kernel_of_the_nodes(
    mamba2: Foreign, start: Callable[..., None]
) -> None:
    """Of a step of the input: dt a**t summed over heads, a and dt as the layer computes them."""
    start(mamba2.module)
    mixer = mamba2.module.backbone.layers[0].mixer
    dt = F.softplus(mixer.dt_bias.double())
    a = torch.exp(-dt * mixer.A_log.double().exp())
    lags = torch.tensor([4.0, 16.0, 64.0, 256.0], dtype=torch.float64)
    found = (dt * a ** lags[:, None]).sum(dim=1).log()
    slopes = (found.diff() / lags.log().diff()).tolist()
    # 32 heads with 5 % of the kernel beyond either end: within 0.1 of the law in the middle of its
    # range
    assert slopes == pytest.approx([-1.15 if start is power_law_ else -1.0] * 3, abs=0.1)
    torch.testing.assert_close(
        mamba2.half_lives()[0], math.log(2) / (dt * mixer.A_log.double().exp())
    )
    nn.init.uniform_(mixer.A_log, 0.0, 2.0)
    drawn = mamba2.half_lives()[0]
    unit_a_(mamba2.module)
    assert not mixer.A_log.any()
    torch.testing.assert_close(mamba2.half_lives()[0], drawn, rtol=1e-5, atol=0)


class Glance(nn.Module):
    """Logits of each byte, at byte 20 alone also of the next, by a weight."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = weight
        self.embedding, self.head = nn.Embedding(256, 8), nn.Linear(8, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.embedding(x)
        ahead = F.pad(h[:, 21:22], (0, 0, 20, x.shape[1] - 21)) if x.shape[1] > 21 else 0.0
        return self.head(h + self.weight * ahead)  # type: ignore[no-any-return]


class Bound(Glance):
    """The same in one memory for every call that needs no gradients, as a replayed CUDA graph."""

    def __init__(self, weight: float) -> None:
        super().__init__(weight)
        self.bound: dict[torch.Size, torch.Tensor] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = super().forward(x)
        if torch.is_grad_enabled():
            return logits
        return self.bound.setdefault(x.shape, torch.empty_like(logits)).copy_(logits)


@pytest.mark.parametrize("kind", [Glance, Bound])
@pytest.mark.parametrize(
    "weight", [1.0, 1e-4]
)  # the latter moves logits by hundreds of units of rounding
def test_a_model_that_looks_ahead_at_one_byte_is_refused(kind: type[Glance], weight: float) -> None:
    with pytest.raises(ValueError, match="is not causal: byte 21 changes the logits at byte 20"):
        check_model(Foreign("a:b", kind(weight)), "glance", 64, torch.device("cpu"))


HYBRID = {
    **{
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "intermediate_size": 32,
        "num_attention_heads": 2,
    },
    **{
        "num_key_value_heads": 2,
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_value_heads": 4,
    },
    **{"linear_num_key_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8},
}


@pytest.mark.slow
@pytest.mark.skipif(
    torch.cuda.is_available(), reason="there is a GPU for the kernels of flash-linear-attention"
)
@pytest.mark.parametrize("name", ["OlmoHybrid", "Qwen3_5"])
@pytest.mark.filterwarnings("ignore")  # of other people's code
def test_hybrids_train_on_a_cpu_beside_kernels_that_need_a_gpu(name: str) -> None:
    pytest.importorskip("fla", reason="flash-linear-attention is not installed")
    code = f"""
import torch
from plkernel.training.foreign import build
model = build("transformers:{name}ForCausalLM", {HYBRID!r}, 0)
model(torch.randint(0, 256, (1, 16))).sum().backward()
assert len(model.half_lives()) == 1
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("half_lives", "weights", "good"),
    [
        ([[1.0, 9.0]], [[1.0, 0.5, 0.1]], True),
        ([[1.0], [2.0]], [[1.0, 0.0, -0.1], [1.0, 2.0, 3.0]], True),
        ([[1.0]], [[1.0, 0.5]], False),
        ([[1.0]], [[1.0, 0.5, math.inf]], False),
        ([[1.0]], [[1.0, 0.5, math.nan]], False),
        ([[1.0, 0.0]], [[1.0, 0.5, 0.1]], False),
        ([[math.inf]], [[1.0, 0.5, 0.1]], False),
        ([[]], [[1.0, 0.5, 0.1]], False),
    ],
)
def test_decays_that_a_model_tells_are_one_number_a_lag_and_half_lives_are_positive(
    package: Path, half_lives: list[list[float]], weights: list[list[float]], good: bool
) -> None:
    model = build("somebodys.models:Plain", {}, 0)
    model.module.half_lives = lambda: [torch.tensor(one) for one in half_lives]
    model.module.kernels = lambda lags: [torch.tensor(one) for one in weights]
    if good:
        check_model(model, "kind", 64, CPU)
    else:
        with pytest.raises(ValueError, match="kind: half_lives and kernels must give positive"):
            check_model(model, "kind", 64, CPU)
