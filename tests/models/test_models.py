"""SSM, Eagle, Finch and Goose: their equations, what no prediction sees, both modes, and every
structure.
"""

import copy
import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from loops import BY_POSITION, MISTAKES, loops_of
from scipy.integrate import quad
from torch import Tensor, nn

from plkernel.analysis.nodes import Nodes, gain_at, log_kernel, place
from plkernel.models.init import initialise_
from plkernel.models.layers import ROOT_MEAN_SQUARE, Activation, Structure, evaluating
from plkernel.models.rwkv import RWKV, RWKVConfig, mixtures
from plkernel.models.rwkv7 import RWKV7, RWKV7Config
from plkernel.models.ssm import SSM, SSMConfig, SwiGLU, input_gain, white_std

pytestmark = pytest.mark.usefixtures("one_thread")
Model = SSM | RWKV
Config = SSMConfig | RWKVConfig | RWKV7Config
RMS = Structure(norm="rms")
TIED = Structure(norm="rms", tied=True)
EAGLE = RWKVConfig(5, 32, 3, 16)
FINCH = RWKVConfig(6, 32, 3, 16, mix_rank=4, decay_rank=3)
GOOSE = RWKV7Config(32, 3, 16, 4, 3, 5, 6)
POST = dataclasses.replace(GOOSE, parametrisation="ordered", scaling_length=40)
"""Decays in order that slow down with the position, as in PoST."""
RWKVS = [
    EAGLE,
    FINCH,
    GOOSE,
    RWKVConfig(5, 24, 1, 8, k_clamp=True),
    RWKVConfig(
        6, 24, 2, 24, mix_rank=2, decay_rank=5, k_clamp=True, feed_forward=20, structure=TIED
    ),
    RWKV7Config(24, 1, 8),
    RWKV7Config(24, 2, 24, 2, 2, 2, 2, feed_forward=20, structure=TIED),
    dataclasses.replace(GOOSE, structure=RMS),
    dataclasses.replace(GOOSE, parametrisation="ordered"),
    dataclasses.replace(GOOSE, scaling_length=40),
    POST,
]
SSMS = [
    SSMConfig(16, 2),
    SSMConfig(16, 2, "ema"),
    SSMConfig(16, 2, "lru", patch=2),
    SSMConfig(16, 1, patch=3),
    SSMConfig(16, 2, "ema", parametrisation="ordered"),
    SSMConfig(16, 2, "lru", scaling_length=40),
    SSMConfig(16, 2, patch=3, parametrisation="ordered", scaling_length=40),
]
LEAKING = [SSMConfig(16, 2, patch=2, mode="published"), SSMConfig(16, 1, patch=3, mode="published")]
ALL = pytest.mark.parametrize("config", [*SSMS, *RWKVS])
MULTIPLIERS = {"embedding": 3.0, "logits": 0.5, "residual": 0.8, "mixer.0": 0.5, "ffn.1": 2.0}
STRUCTURES = {
    "default": Structure(),
    "rms": TIED,
    "offset": Structure(norm_offset=True),
    "gemma": Structure(norm="rms", norm_offset=True, embedding_norm=True),
    "fixnorm": Structure(norm="scale", fixnorm=True, tied=True),
    "rezero": Structure(norm="none", gate=True),
    "fixup": Structure(norm="none", gate=True, scalar_bias=True),
    "deepnorm": Structure(placement="post", residual=1.7, multipliers={"residual": 0.8}),
    "sandwich": Structure(placement="sandwich", gate=True, embedding_norm=True, norm_offset=True),
    "multipliers": Structure(multipliers=MULTIPLIERS),
    "unit": Structure(unit_scaled=True, multipliers={"mixer.0": 0.5, "ffn.0": 0.7, "ffn.1": 0.3}),
}
EVERY = pytest.mark.parametrize("structure", STRUCTURES.values(), ids=STRUCTURES)
KINDS = ("ssm", "rwkv5", "rwkv6", "rwkv7")
EACH = pytest.mark.parametrize("kind", KINDS[:3])
DIM, LAYERS = 16, 2


def empty(
    kind: str, structure: Structure, dim: int = DIM, layers: int = LAYERS, **options: Any
) -> Config:
    if kind == "ssm":
        return SSMConfig(dim, layers, "ema", structure=structure, **options)
    if kind == "rwkv7":
        return RWKV7Config(dim, layers, 8, 4, 3, 5, 6, structure=structure, **options)
    return RWKVConfig(
        int(kind[-1]), dim, layers, 8, mix_rank=4, decay_rank=3, structure=structure, **options
    )


def plain(config: Config) -> Model:
    if isinstance(config, SSMConfig):
        return SSM(config)
    return RWKV7(config) if isinstance(config, RWKV7Config) else RWKV(config)


def build(config: Config) -> Model:
    """A float64 model with every parameter random and large enough to matter."""
    generator = torch.Generator().manual_seed(0)
    model = plain(config).double()
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        if name.endswith(("time_decay", "log_rate", "w0", "ordered.delta")):
            noise = noise - 1.5
        elif name.endswith("ordered.theta"):
            noise = noise - 4.0
        elif parameter.shape[:2] == (1, 1) or name.endswith(("time_faaaa", "r_k")):
            noise = 0.5 + 0.5 * noise
        elif parameter.ndim == 1:
            noise = 0.3 * noise + (0.8 if name.endswith(("weight", "gate")) else 0.0)
        elif not config.structure.unit_scaled and ("emb" not in name or config.structure.tied):
            noise = noise / math.sqrt(parameter.shape[-1])
        parameter.data.copy_(noise)
    return model


@ALL
def test_a_model_that_nothing_has_initialised_gives_nan(config: Config) -> None:
    assert torch.isnan(plain(config)(some_bytes())[:, -1]).any()


def placed(config: SSMConfig, seed: int, nodes: Nodes) -> SSM:
    """N(0.02), then the nodes in every block."""
    model = initialise_(SSM(config), "transformers_default", seed)
    for recurrence in model.recurrences():
        recurrence.place_(nodes)
    return model


def some_bytes(batch: int = 2, time: int = 13) -> Tensor:
    return torch.randint(0, 256, (batch, time), generator=torch.Generator().manual_seed(1))


def embedding_of(model: Model) -> nn.Module:
    return model.embedding if isinstance(model, SSM) else model.emb


@pytest.mark.parametrize("config", RWKVS)
def test_rwkv_is_the_published_equations(config: Any) -> None:
    assert loops_of(build(config)).difference(some_bytes(1, 17)) < 4e-14


@pytest.mark.parametrize(
    ("config", "mistake"),
    [(config, mistake) for config in RWKVS[:3] for mistake in MISTAKES[config.version]]
    + [(POST, mistake) for mistake in BY_POSITION],
)
def test_the_comparison_notices_a_mistake(config: Any, mistake: str) -> None:
    assert loops_of(build(config), mistake).difference(some_bytes(1, 17)) > 1e-3


@pytest.mark.parametrize("name", ["none", "ema", "lru", "clamp"])
def test_an_ssm_branch_is_the_recurrence_it_says(name: Any) -> None:
    """As a loop in float64; gains are those of the nodes, and white_std is the norm of the impulse
    response.
    """
    ssm = build(SSMConfig(8, 1, name)).blocks[0].ssm
    u = torch.randn(2, 9, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    rate = ssm.log_rate.exp()
    a = torch.exp(-rate)
    clamp = rate.clamp(max=1)
    factor = {"none": torch.ones_like(a), "ema": 1 - a, "lru": (1 - a * a).sqrt(), "clamp": clamp}[
        name
    ]
    state = torch.zeros(2, 8, dtype=torch.float64)
    outputs = []
    for t in range(9):
        state = a * state + factor * (u[:, t] @ ssm.B.weight.T)
        outputs.append(state @ ssm.C_proj.weight.T + ssm.C_proj.bias + ssm.D * u[:, t])
    torch.testing.assert_close(ssm(u), torch.stack(outputs, 1), rtol=1e-11, atol=1e-11)
    rates = torch.logspace(-2, 1, 20, dtype=torch.float64)
    torch.testing.assert_close(
        input_gain(rates, name).numpy(), gain_at(rates.numpy(), name), rtol=1e-13, atol=0
    )
    kernel = input_gain(rates, name) * torch.exp(-rates * torch.arange(3000)[:, None])
    torch.testing.assert_close(
        white_std(rates, name), kernel.square().sum(0).sqrt(), rtol=1e-12, atol=0
    )


def leaks(model: Model, time: int) -> tuple[bool, bool]:
    """Whether a later byte moves a logit, by perturbation and by gradient; every earlier one must
    be able to act.
    """
    inputs = some_bytes(1, time)
    embedded = embedding_of(model)(inputs).detach().requires_grad_()
    logits = model.decode(embedded)
    by_gradient = False
    by_perturbation = False
    for t in range(time):
        (gradient,) = torch.autograd.grad(logits[0, t].square().sum(), embedded, retain_graph=True)
        acts = slice(
            t if getattr(model.config, "patch", 1) > 2 else 0, t + 1
        )  # not of a patch that is unfinished
        assert (gradient[0, acts].abs().amax(1) > 0).all(), (
            "every earlier byte acts, or the test cannot fail"
        )
        by_gradient |= bool(gradient[0, t + 1 :].abs().sum() > 0)
    with torch.no_grad():
        before = model(inputs)
        for t in range(1, time):
            changed = inputs.clone()
            changed[:, t] = (changed[:, t] + 128) % 256
            after = model(changed)
            by_perturbation |= not torch.equal(after[:, :t], before[:, :t])
            assert not torch.equal(after[:, t], before[:, t])
    return by_perturbation, by_gradient


@ALL
def test_no_prediction_sees_a_later_byte(config: Config) -> None:
    assert config.causal
    assert leaks(build(config), 9) == (False, False)


@pytest.mark.parametrize("config", LEAKING)
def test_published_patching_sees_its_own_target(config: SSMConfig) -> None:
    model = build(config)
    assert not config.causal
    assert leaks(model, 9) == (True, True)


@pytest.mark.parametrize("config", [EAGLE, FINCH, GOOSE])
def test_dropout_is_on_the_embedding_and_after_every_sum(config: Any) -> None:
    """In training a share p of the stream is zero there, and the rest is scaled; in evaluation
    nothing happens.
    """
    torch.manual_seed(0)  # of the masks
    model = build(dataclasses.replace(config, dropout=0.25))
    inputs = some_bytes(4, 50)
    seen: list[tuple[Tensor, Tensor]] = []
    hooks = [
        module.register_forward_hook(lambda _module, before, after: seen.append((before[0], after)))
        for module in model.modules()
        if isinstance(module, nn.Dropout)
    ]
    with torch.no_grad():
        model.train()(inputs)
        assert len(seen) == 1 + 2 * 3
        assert torch.equal(seen[0][0], model.emb(inputs)), "before ln0"
        for before, after in seen:
            dropped = after == 0
            assert dropped.double().mean().item() == pytest.approx(0.25, abs=0.02)
            assert torch.allclose(after[~dropped], before[~dropped] / 0.75, rtol=1e-15)
        for hook in hooks:
            hook.remove()
        none = build(config).train()
        generator = torch.get_rng_state()
        assert torch.equal(model.eval()(inputs), none(inputs))
    assert torch.equal(torch.get_rng_state(), generator), (
        "without dropout no random number is drawn"
    )


@pytest.mark.parametrize("config", [SSMConfig(16, 2, structure=TIED), *RWKVS[4:7:2]])
def test_a_tied_head_is_the_embedding(config: Config) -> None:
    """One matrix that is counted, learned and saved once, under both names, and stays one when it
    moves.
    """
    model = build(config).float()
    inputs = some_bytes(1, 5)
    weight = embedding_of(model).weight
    assert model.head.weight is weight
    assert "head.weight" not in dict(model.named_parameters())
    assert torch.equal(model.state_dict()["head.weight"], weight)
    model(inputs).square().sum().backward()
    others = torch.ones(256, dtype=torch.bool).index_fill(0, inputs.unique(), False)
    assert weight.grad[others].abs().min() > 0, "through the head, every byte's row learns"


def size(config: Config) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in plain(config).parameters())


@pytest.mark.parametrize(("dim", "layers"), [(64, 1), (192, 3), (1024, 24)])
def test_parameter_counts_of_the_papers(dim: int, layers: int) -> None:
    """The published closed forms, with 256 symbols; 3.5 D is a multiple of 32 here."""
    shared = 13 * dim**2 * layers + 4 * dim + 2 * dim * 256
    assert size(RWKVConfig(5, dim, layers)) == shared + 14 * dim * layers
    assert size(RWKVConfig(6, dim, layers)) == shared + 464 * dim * layers
    goose = RWKV7Config(dim, layers)
    expected = {64: (32, 32, 32, 32), 192: (32, 32, 32, 64), 1024: (64, 64, 64, 160)}[dim]
    assert goose.ranks == expected
    whole = 2 * dim * 256 + 4 * dim + layers * dim * (12 * dim + 2 * sum(expected) + 19)
    assert size(goose) == whole - (2 * dim * expected[2] + dim)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        *(
            (SSMConfig, {name: 0}, f"{name} must be at least 1")
            for name in ("dim", "layers", "patch")
        ),
        *((SSMConfig, {name: "other"}, f"{name} must be one of") for name in ("gain", "mode")),
        (
            SSMConfig,
            {"structure": STRUCTURES["unit"], "patch": 2},
            "patch must be 1 with unit_scaled",
        ),
        (RWKVConfig, {"version": 7}, "version must be 5"),
        *((one, {"dim": 0}, "dim must be at least 2") for one in (RWKVConfig, RWKV7Config)),
        (RWKVConfig, {"layers": 0}, "layers must be at least 1"),
        (RWKVConfig, {"head_size": 48}, "dim must be a multiple of head_size"),
        (RWKVConfig, {"mix_rank": 1}, "mix_rank must be at least 2"),
        (RWKV7Config, {"gate_rank": 0}, "gate_rank must be at least 2"),
        (
            RWKVConfig,
            {"dim": 8, "head_size": 4},
            r"feed_forward must be at least 1, got 0 \(for dim 8",
        ),
        (RWKVConfig, {"dropout": 1.0}, "dropout must be at least 0 and below 1, got 1.0"),
        (RWKV7Config, {"structure": STRUCTURES["unit"]}, "unit_scaled must be false for RWKV-7"),
        (Structure, {"norm": "batch"}, "norm must be one of layer, rms, scale, none, got 'batch'"),
        (Structure, {"placement": "mid"}, "placement must be one of pre, post, sandwich"),
        *(
            (Structure, {"norm": norm, "norm_offset": True}, "norm_offset must be false with norm")
            for norm in ("scale", "none")
        ),
        (Structure, {"norm": "none", "embedding_norm": True}, "embedding_norm must be false with"),
        *(
            (Structure, {"norm": "none", "placement": placement}, "placement must be 'pre' with no")
            for placement in ("post", "sandwich")
        ),
        (Structure, {"unit_scaled": True, "norm": "scale"}, "norm must be 'layer' or 'rms' with"),
        (Structure, {"unit_scaled": True, "placement": "post"}, "placement must be 'pre' with un"),
        *(
            (Structure, {"unit_scaled": True, name: True}, f"{name} must be false with unit_scaled")
            for name in ("gate", "scalar_bias", "fixnorm")
        ),
    ],
)
def test_bad_configurations_name_the_field(
    kind: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        kind(**options)


@pytest.mark.parametrize("config", [RWKVConfig(5, 32, 1, 16), RWKV7Config(32, 1, 16, 4, 3, 5, 6)])
def test_kernel_is_the_rms_entry_of_what_a_head_reads_of_a_byte(config: Any) -> None:
    """R' diag(w**t) K; in Goose with the key as it is replaced at the bias of the rate, and nothing
    erased.
    """
    model = build(config)
    [mixing] = model.mixings()
    reads = mixing.receptance.weight.view(2, 16, 32)
    writes = mixing.key.weight
    if config.version == 7:
        writes = writes * (1 + (torch.sigmoid(mixing.a0) - 1) * mixing.k_a).view(32, 1)
        rates = math.exp(-0.5) * torch.sigmoid(mixing.w0).view(2, 16)
    else:
        rates = mixing.time_decay.exp()
    [half_lives] = model.half_lives()
    torch.testing.assert_close(half_lives, math.log(2) / rates.flatten(), rtol=1e-13, atol=0)
    for lag in (1, 2, 50):
        decayed = torch.exp(-rates * (lag if config.version == 7 else lag - 1))
        entries = torch.einsum("hnd,hn,hne->hde", reads, decayed, writes.view(2, 16, 32))
        [found] = model.kernels(torch.tensor([lag]))
        assert found.item() == pytest.approx(entries.square().mean().sqrt().item(), rel=1e-12)


def test_response_of_goose_is_what_an_impulse_gives() -> None:
    """One value alone, read at later steps; a state without erasing forgets by its decays alone."""
    model = build(RWKV7Config(32, 1, 16, 4, 3, 5, 6))
    [mixing] = model.mixings()
    with torch.no_grad():
        for name, parameter in mixing.named_parameters():
            if name in ("w1", "a1") or name.startswith("x_"):
                parameter.zero_()  # white input, and transitions that differ in their keys alone
    lags = torch.tensor([1, 4, 9])
    [kept], [erased] = (model.responses(lags, erase=erase) for erase in (False, True))
    reads = mixing.receptance.weight.view(2, 16, 32)
    writes = mixing.writes().view(2, 16, 32)
    for place_, lag in enumerate(lags.tolist()):
        weights = torch.einsum("hnd,hn,hne->hde", reads, torch.exp(-mixing.rates() * lag), writes)
        # of independent inputs of variance 1
        expected = weights.square().sum(dim=(1, 2)).mean().sqrt().item()
        assert kept[place_].item() == pytest.approx(expected, rel=0.25), "a mean over 64 products"
    assert (erased < kept).all(), "a transition is a contraction of what it would be"
    assert (erased / kept).diff().max() < 0


@pytest.mark.parametrize(
    ("name", "patch", "multiplier"), [("none", 1, False), ("ema", 2, False), ("lru", 1, True)]
)
def test_kernel_of_an_ssm_is_the_rms_response_of_a_branch_to_an_impulse(
    name: Any, patch: int, multiplier: bool
) -> None:
    """One impulse per input channel, t steps before, without the skip D; half-lives are in
    bytes.
    """
    model = build(SSMConfig(8, 1, name, patch=patch, shape_multiplier=multiplier))
    [ssm] = model.recurrences()
    with torch.no_grad():
        ssm.D.zero_()
        if multiplier:
            ssm.shape.copy_(torch.linspace(0.5, 2, 8))
    impulses = torch.zeros(8, 33, 8, dtype=torch.float64)
    impulses[torch.arange(8), 0, torch.arange(8)] = 1
    found = (ssm(impulses) - ssm.C_proj.bias)[:, [0, 1, 5, 32]].square().mean(dim=(0, 2)).sqrt()
    [kernel] = model.kernels(patch * torch.tensor([0, 1, 5, 32]))
    torch.testing.assert_close(kernel, found, rtol=1e-6, atol=0)
    [half_lives] = model.half_lives()
    torch.testing.assert_close(half_lives, patch * math.log(2) / ssm.log_rate.detach().exp())


def test_an_initialised_ssm_has_the_kernel_of_its_nodes_and_shares_all_other_weights() -> None:
    """Two node sets under one seed differ in the scale of C's columns alone; blocks do not depend
    on depth.
    """
    config = SSMConfig(256, 1, "ema")
    nodes = place(256, gain="ema", projection="published")
    shaped, uniform = (placed(config, 5, one) for one in (nodes, place(256, gain="ema")))
    [kernel] = shaped.kernels(torch.tensor([1, 8, 64, 512]))
    assert kernel.numpy() / 0.02**2 == pytest.approx(
        np.exp(log_kernel(nodes, "rms", [1, 8, 64, 512], "state")), rel=0.02
    )
    for (name, a), (_, b) in zip(
        uniform.named_parameters(), shaped.named_parameters(), strict=True
    ):
        if name.endswith("C_proj.weight"):
            assert torch.allclose(b, a * torch.tensor(nodes.projection), rtol=1e-6)
        else:
            assert torch.equal(a, b)
    deep = placed(dataclasses.replace(config, layers=2), 5, nodes)
    assert torch.equal(shaped.blocks[0].mlp.up.weight, deep.blocks[0].mlp.up.weight)
    assert not torch.equal(deep.blocks[0].mlp.up.weight, deep.blocks[1].mlp.up.weight)
    with pytest.raises(
        ValueError, match="nodes must be as many as the last dimension of the tensor"
    ):
        placed(config, 0, place(4, gain="ema"))


def test_mixtures_at_once_are_those_one_by_one_with_fewer_launches(
    launches: Callable[[Callable[[], object]], int],
) -> None:
    """Forward to the bit, gradients up to the order of five summands."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, 7, 8), (2, 7, 8), *[(1, 1, 8)] * 5, (5, 2, 7, 8)]
    x, change, *base, shares = inputs = [
        torch.randn(one, generator=generator, requires_grad=True) for one in shapes
    ]
    weights = torch.randn(5, 2, 7, 8, generator=generator).unbind()
    mixed = [mixtures(x, change, base, shares, at_once) for at_once in (False, True)]
    assert all(map(torch.equal, *mixed))
    for one, other in zip(
        *(torch.autograd.grad(found, inputs, weights) for found in mixed), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)
    counts = [
        launches(lambda at_once=at_once: mixtures(x, change, base, shares, at_once))
        for at_once in (False, True)
    ]
    assert 2 * counts[1] < counts[0], counts


def normed(x: Tensor, norm: nn.Module, structure: Structure) -> Tensor:
    """Every norm, written out, with the parameters of `norm`."""
    weight, bias = getattr(norm, "weight", None), getattr(norm, "bias", None)
    if structure.norm == "none":
        return x
    if structure.norm == "scale":
        return weight * x / x.square().sum(-1, keepdim=True).sqrt()
    centred = x - x.mean(-1, keepdim=True) if structure.norm == "layer" else x
    out = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    gain = 1.0 if weight is None else weight + 1 if structure.norm_offset else weight
    return out * gain + (0.0 if bias is None else bias)


def joined(
    x: Tensor, branch: Any, norm: nn.Module, join: Any, structure: Structure, name: str
) -> Tensor:
    """The formulas at the top of the module that has them; `branch` is a function."""
    t = structure.multipliers.get("residual", 1.0) * structure.multipliers.get(name, 1.0)
    t = t * join.gate if structure.gate else t
    if structure.unit_scaled:
        return (x + t * branch(normed(x, norm, structure))) / math.sqrt(1 + t * t)
    if structure.placement == "post":
        return normed(structure.residual * x + t * branch(x), norm, structure)
    out = branch(normed(x, norm, structure))
    if structure.placement == "sandwich":
        out = normed(out, join.post_norm, structure)
    return x + t * out


def branches(model: Model, place_: int) -> list[Callable[[Tensor], Tensor]]:
    """The two branches of a block."""
    block = model.blocks[place_]
    first = model.__dict__.setdefault("_first", [])
    if isinstance(model, SSM):
        return [block.ssm, block.mlp]

    def mix(u: Tensor) -> Tensor:
        out, *first[:] = block.att(u, *(first if place_ else []))
        return out

    return [mix, block.ffn]


@torch.no_grad()
def by_formula(model: Model, inputs: Tensor, s: Structure) -> Tensor:
    """Logits from the formulas of a structure, with the branches as functions of the model."""
    table = embedding_of(model).weight
    head = model.head.weight
    if s.fixnorm:
        table, head = (w / w.square().sum(1, keepdim=True).sqrt() for w in (table, head))
        table = embedding_of(model).fixnorm.weight * table
    x = s.multipliers.get("embedding", 1.0) * table[inputs]
    if isinstance(model, SSM) and s.embedding_norm:
        x = normed(x, model.embedding.norm, s)
    for i, block in enumerate(model.blocks):
        names = ("norm1", "norm2") if isinstance(model, SSM) else ("ln1", "ln2")
        x = normed(x, block.ln0, s) if i == 0 and not isinstance(model, SSM) else x
        for branch, norm, join, name in zip(
            branches(model, i), names, (block.join1, block.join2), ("mixer", "ffn"), strict=True
        ):
            x = joined(x, branch, getattr(block, norm), join, s, f"{name}.{i}")
    last = model.norm if isinstance(model, SSM) else model.ln_out
    x = x if s.placement == "post" else normed(x, last, s)
    return s.multipliers.get("logits", 1.0) * x @ head.T / (DIM if s.unit_scaled else 1)


@EVERY
@pytest.mark.parametrize("kind", KINDS)
def test_every_option_is_its_formula(kind: str, structure: Structure) -> None:
    """Causal, copied and saved whole."""
    if kind == "rwkv7" and structure.unit_scaled:
        return
    model = build(empty(kind, structure))
    inputs = some_bytes()
    with torch.no_grad():
        found = model(inputs)
        expected = by_formula(model, inputs, structure)
        assert (found - expected).abs().max() < 1e-13 * expected.abs().max()
        again = plain(model.config).double()
        again.load_state_dict(model.state_dict())
        assert torch.equal(again(inputs), found)
        assert torch.equal(copy.deepcopy(model)(inputs), found)
    if kind in ("ssm", "rwkv6"):  # blocks are joined alike in all versions
        assert leaks(model, 5) == (False, False)


@EACH
def test_the_options_are_different_models(kind: str) -> None:
    """The comparison can fail: no formula but its own gives the logits of a structure."""
    sandwich = build(empty(kind, Structure(placement="sandwich", norm="rms")))
    with torch.no_grad():
        assert (by_formula(sandwich, some_bytes(), RMS) - sandwich(some_bytes())).abs().max() > 1e-2


def stream(dim: int = DIM, time: int = 9) -> Tensor:
    return torch.randn(
        2, time, dim, generator=torch.Generator().manual_seed(2), dtype=torch.float64
    )


@torch.no_grad()
def outputs(model: Model, x: Tensor) -> list[Tensor]:
    return [branch(x) for branch in branches(model, 0)]


@EACH
def test_scalar_biases_are_added_before_every_linear_layer_of_a_branch(kind: str) -> None:
    """The same as adding them by hand to the inputs of PyTorch's layers."""
    model = build(empty(kind, STRUCTURES["fixup"]))
    other = plain(empty(kind, STRUCTURES["rezero"])).double()
    state = model.state_dict()
    shifts = {name: value for name, value in state.items() if name.endswith(".shift")}
    assert len(shifts) == LAYERS * (5 if kind == "ssm" else 8)
    other.load_state_dict({name: value for name, value in state.items() if name not in shifts})
    for name, value in shifts.items():
        layer = other.get_submodule(name.removesuffix(".shift"))
        layer.register_forward_pre_hook(lambda _layer, inputs, b=value: (inputs[0] + b,))
    assert all(map(torch.equal, outputs(model, stream()), outputs(other, stream())))


@EACH
def test_unit_scaled_branches_are_plain_ones_with_scaled_weights(kind: str) -> None:
    model = build(empty(kind, STRUCTURES["unit"]))
    other = plain(empty(kind, RMS)).double()
    own = model.state_dict()

    def linear(name: str) -> bool:
        return (
            name.startswith("blocks.")
            and name.endswith(".weight")
            and "norm" not in name
            and ".ln" not in name
        )

    scaled = {
        name: (
            own.get(name, torch.zeros(value.shape)).clone()
            * (value.shape[-1] ** -0.5 if linear(name) else 1)
        )
        for name, value in other.state_dict().items()
    }
    silu, sigmoid, squared = (1 / scale for scale in ROOT_MEAN_SQUARE.values())
    for i in range(LAYERS):
        if kind == "ssm":
            scaled[f"blocks.{i}.mlp.down.weight"] *= silu
            std = white_std(own[f"blocks.{i}.ssm.log_rate"].exp(), "ema")
            scaled[f"blocks.{i}.ssm.C_proj.weight"] /= std * math.sqrt(2)
            scaled[f"blocks.{i}.ssm.D"] /= math.sqrt(2)
        else:
            scaled[f"blocks.{i}.att.output.weight"] *= silu
            scaled[f"blocks.{i}.ffn.value.weight"] *= sigmoid * squared
    other.load_state_dict(scaled)
    for found, expected in zip(outputs(model, stream()), outputs(other, stream()), strict=True):
        assert (found - expected).abs().max() < 1e-14 * expected.abs().max()


@pytest.mark.parametrize("function", ROOT_MEAN_SQUARE)
def test_activations_have_unit_mean_square(function: Any) -> None:
    """Under N(0, 1), by quadrature; the constants have five digits."""
    activation = Activation(Structure(unit_scaled=True), function)

    def density(z: float) -> float:
        value = float(activation(torch.tensor(z, dtype=torch.float64)))
        return value**2 * math.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)

    assert sum(quad(density, *part)[0] for part in ((-10, 0), (0, 10))) == pytest.approx(
        1, abs=3e-5
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["patched ssm", *KINDS[1:]])
def test_exported_programs_give_the_logits_of_other_lengths(kind: str) -> None:
    """torch.export with a length that is left open; in a patched SSM a multiple of the patch."""
    patched = kind == "patched ssm"
    one = torch.export.Dim("k", min=2)
    length = torch.export.Dim("T", min=2)
    config = SSMConfig(32, 2, patch=2) if patched else empty(kind, Structure(), dim=32)
    model = build(config).float().eval()
    shapes = ({1: 2 * one if patched else length},)
    exported = torch.export.export(model, (some_bytes(2, 12),), dynamic_shapes=shapes).module()
    for time in (26, 8):
        inputs = some_bytes(2, time)
        with torch.no_grad():
            torch.testing.assert_close(exported(inputs), model(inputs), rtol=1e-5, atol=1e-5)


def test_shape_multiplier_is_the_shape_in_another_place() -> None:
    """Equal outputs; part of the state dict only where it is used; a shape also where C_proj is
    zero.
    """
    nodes = place(DIM, placement="concentrated", projection="published")
    inputs = some_bytes()
    configs = [SSMConfig(DIM, LAYERS, shape_multiplier=used) for used in (False, True)]
    columns, shaped = (placed(config, 0, nodes).double() for config in configs)
    extra = shaped.state_dict().keys() - columns.state_dict().keys()
    assert extra == {f"blocks.{i}.ssm.shape" for i in range(LAYERS)}
    assert [*dict(shaped.named_parameters())] == [*dict(columns.named_parameters())]
    with torch.no_grad():
        assert (shaped(inputs) - columns(inputs)).abs().max() < 3e-9, (
            "columns were rounded in float32"
        )
    shapes = shaped.recurrences()[0].shape.tolist()
    gradients = []
    assert shapes == pytest.approx(list(nodes.projection), rel=1e-6)
    for model in (columns, shaped):
        weight = model.recurrences()[0].C_proj.weight
        weight.data.zero_()
        model(inputs).square().sum().backward()
        gradients.append(weight.grad)
    expected = gradients[0] * torch.tensor(shapes, dtype=torch.float64)
    assert (gradients[1] - expected).abs().max() < 1e-6 * expected.abs().max()


@pytest.mark.parametrize("dim", [12, 48])
def test_a_hidden_width_filled_up_with_zeros_is_the_same_function(dim: int) -> None:
    """Of 16, and of 64, which needs none; results and gradients, to rounding in float64."""
    torch.manual_seed(0)
    layer = SwiGLU(dim, Structure()).double()
    assert layer._is_fillable() == (dim == 12)
    x = torch.randn(2, 3, dim, dtype=torch.float64, requires_grad=True)
    leaves = [x, *layer.parameters()]
    weights = torch.randn(2, 3, dim, dtype=torch.float64)
    plain = layer(x)
    filled = layer._filled(x)
    torch.testing.assert_close(filled, plain, rtol=1e-13, atol=1e-13)
    found = torch.autograd.grad((filled * weights).sum(), leaves)
    expected = torch.autograd.grad((plain * weights).sum(), leaves)
    for gradient, other in zip(found, expected, strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-12, atol=1e-12)


def test_layers_with_a_shift_or_a_multiplier_are_not_filled_up() -> None:
    """Filled up they would be another function, of the matrices alone."""
    torch.manual_seed(0)
    for structure in (Structure(scalar_bias=True), Structure(unit_scaled=True)):
        layer = SwiGLU(12, structure)
        with torch.no_grad():
            for one in layer.parameters():
                one.normal_()
        x = torch.randn(2, 3, 12)
        assert not layer._is_fillable()
        assert not torch.allclose(layer._filled(x), layer(x))


class Frozen(nn.Dropout):
    """Dropout that `train` keeps off, as layers do that others freeze."""

    def train(self, mode: bool = True) -> "Frozen":
        return super().train(False)


class Counting(nn.Module):
    """Notes every call of `train`, in which layers of LoRA add their matrices to others."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[bool] = []

    def train(self, mode: bool = True) -> "Counting":
        self.calls.append(mode)
        return super().train(mode)


def test_a_module_whose_mode_does_not_change_is_left_alone() -> None:
    counting = Counting().eval()
    counting.calls.clear()
    with evaluating(counting):
        pass
    assert counting.calls == []
    counting.train()
    counting.calls.clear()
    with evaluating(counting):
        assert counting.calls == [False]
    assert counting.calls == [False, True]


def test_every_module_is_in_its_own_mode_after_an_evaluation() -> None:
    model = nn.Sequential(nn.Dropout(), nn.Dropout(), Frozen())
    model[0].eval()
    model[2].training = True
    with evaluating(model):
        assert not any(module.training for module in model.modules())
    assert [module.training for module in model.modules()] == [True, False, True, True]
