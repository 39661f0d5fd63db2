"""What schemes need of a model: every option against its formula, in both modes, causal, compiled and copied."""

import copy
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.integrate import quad
from torch import Tensor, nn
from torch.nn import functional as F

from plkernel.analysis.nodes import place
from plkernel.kernels.scan import scan
from plkernel.models.init.plan import SCHEMES, asked, plan
from plkernel.models.init.rwkv_vectors import VERSIONS
from plkernel.models.layers import ROOT_MEAN_SQUARE, Activation
from plkernel.models.rwkv import RWKV, RWKVConfig
from plkernel.models.rwkv7 import RWKV7, RWKV7Config
from plkernel.models.ssm import SSM, SSMConfig, white_std
from plkernel.models.structure import Structure, structure_for
from plkernel.training.checkpoint import load_checkpoint, save_checkpoint
from plkernel.training.folder import Progress

Model = SSM | RWKV
DIM, LAYERS, HEAD_SIZE = 16, 2, 8
KINDS = ("ssm", "rwkv5", "rwkv6")
MULTIPLIERS = {"embedding": 3.0, "logits": 0.5, "residual": 0.8, "mixer.0": 0.5, "ffn.1": 2.0}
CASES = {
    "default": Structure(),
    "rms": Structure(norm="rms", tied=True),
    "offset": Structure(norm_offset=True),
    "gemma": Structure(norm="rms", norm_offset=True, embedding_norm=True),
    "scale": Structure(norm="scale", fixnorm=True),
    "tied fixnorm": Structure(norm="scale", fixnorm=True, tied=True),
    "rezero": Structure(norm="none", gate=True),
    "fixup": Structure(norm="none", gate=True, scalar_bias=True),
    "deepnorm": Structure(placement="post", residual=1.7, multipliers={"residual": 0.8}),
    "sandwich": Structure(placement="sandwich", norm="rms"),
    "sandwich, gates": Structure(placement="sandwich", gate=True, embedding_norm=True, norm_offset=True),
    "multipliers": Structure(multipliers=MULTIPLIERS),
    "unit": Structure(unit_scaled=True, multipliers={"mixer.0": 0.5, "ffn.0": 0.7, "ffn.1": 0.3}),
}
EVERY = pytest.mark.parametrize("structure", CASES.values(), ids=CASES)
EACH = pytest.mark.parametrize("kind", KINDS)
EITHER = pytest.mark.parametrize("kind", KINDS[::2])  # blocks are joined alike in both versions of RWKV


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors of these sizes are slower on several threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def empty(kind: str, structure: Structure, dim: int = DIM, layers: int = LAYERS, **options: Any) -> Model:
    if kind == "ssm":
        return SSM(SSMConfig(dim, layers, "ema", structure=structure, **options))
    if kind == "rwkv7":
        return RWKV7(RWKV7Config(dim, layers, HEAD_SIZE, 4, 3, 5, 6, structure=structure, **options))
    config = RWKVConfig(int(kind[-1]), dim, layers, HEAD_SIZE, mix_rank=4, decay_rank=3, structure=structure, **options)
    return RWKV(config)


def build(kind: str, structure: Structure, **options: Any) -> Model:
    """A float64 model with every parameter random and large enough to matter."""
    generator, model = torch.Generator().manual_seed(0), empty(kind, structure, **options).double()
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        if name.endswith(("time_decay", "log_rate")):
            noise = noise - 1.5
        elif parameter.ndim == 2 and not structure.unit_scaled and "emb" not in name:
            noise = noise / math.sqrt(parameter.shape[-1])
        elif parameter.ndim == 1:
            noise = 0.3 * noise + (0.7 if name.endswith(("weight", "gate")) else 0.0)
        parameter.data.copy_(noise)
    return model


def some_bytes(batch: int = 2, time: int = 13) -> Tensor:
    return torch.randint(0, 256, (batch, time), generator=torch.Generator().manual_seed(1))


def embedding_of(model: Model) -> nn.Module:
    return model.embedding if isinstance(model, SSM) else model.emb


def normed(x: Tensor, norm: nn.Module, structure: Structure) -> Tensor:
    """The four norms, written out, with the parameters of `norm`."""
    weight, bias = getattr(norm, "weight", None), getattr(norm, "bias", None)
    if structure.norm == "none":
        return x
    if structure.norm == "scale":
        return weight * x / x.square().sum(-1, keepdim=True).sqrt()
    centred = x - x.mean(-1, keepdim=True) if structure.norm == "layer" else x
    out = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    gain = 1.0 if weight is None else weight + 1 if structure.norm_offset else weight
    return out * gain + (0.0 if bias is None else bias)


def joined(x: Tensor, branch: Any, norm: nn.Module, join: Any, structure: Structure, name: str) -> Tensor:
    """The formulas at the top of the module that has them; `branch` is a function."""
    t = structure.multipliers.get("residual", 1.0) * structure.multipliers.get(name, 1.0)
    g = join.gate if structure.gate else 1.0
    if structure.unit_scaled:
        return (x + t * branch(normed(x, norm, structure))) / math.sqrt(1 + t * t)
    if structure.placement == "post":
        return normed(structure.residual * x + g * t * branch(x), norm, structure)
    out = branch(normed(x, norm, structure))
    if structure.placement == "sandwich":
        out = normed(out, join.post_norm, structure)
    return x + g * t * out


@torch.no_grad()
def by_formula(model: Model, inputs: Tensor) -> Tensor:
    """Logits from the formulas, with the branches as functions of the model."""
    s = model.config.structure
    table, head = embedding_of(model).weight, model.head.weight
    if s.fixnorm:
        g = embedding_of(model).fixnorm.weight
        table, head = (w / w.square().sum(1, keepdim=True).sqrt() for w in (table, head))
        table = g * table
    x = s.multipliers.get("embedding", 1.0) * table[inputs]
    if isinstance(model, SSM) and s.embedding_norm:
        x = normed(x, model.embedding.norm, s)
    first: list[Tensor] = []  # of an RWKV-7, the values of its first block

    def mixed(u: Tensor, block: Any, memory: Any) -> Tensor:
        out, _, *first[:] = block.att(u, memory.att_shift, memory.wkv, *first)
        return out

    for i, block in enumerate(model.blocks):
        if isinstance(model, SSM):
            branches = (lambda u, b=block: b.ssm(u)[0]), block.mlp
            norms = block.norm1, block.norm2
        else:
            x = normed(x, block.ln0, s) if i == 0 else x
            state = model.initial_state(len(inputs)).layers[i]
            branches = (
                (lambda u, b=block, m=state: mixed(u, b, m)),
                (lambda u, b=block, m=state: b.ffn(u, m.ffn_shift)),
            )
            norms = block.ln1, block.ln2
        x = joined(x, branches[0], norms[0], block.join1, s, f"mixer.{i}")
        x = joined(x, branches[1], norms[1], block.join2, s, f"ffn.{i}")
    last = model.norm if isinstance(model, SSM) else model.ln_out
    x = x if s.placement == "post" else normed(x, last, s)
    return s.multipliers.get("logits", 1.0) * x @ head.T / (DIM if s.unit_scaled else 1)


@EVERY
@pytest.mark.parametrize("kind", [*KINDS, "rwkv7"])
def test_every_option_is_its_formula(kind: str, structure: Structure) -> None:
    if kind == "rwkv7" and structure.unit_scaled:
        with pytest.raises(ValueError, match="unit_scaled is not for RWKV-7"):
            build(kind, structure)
        return
    model, inputs = build(kind, structure), some_bytes()
    with torch.no_grad():
        found, expected = model(inputs), by_formula(model, inputs)
    difference = (found - expected).abs().max() / expected.abs().max()
    assert difference < 7e-14


@EACH
def test_the_options_are_different_models(kind: str) -> None:
    """The comparison can fail: no formula but its own gives the logits of a structure."""
    sandwich = build(kind, CASES["sandwich"])
    with torch.no_grad():
        found = sandwich(some_bytes())
        object.__setattr__(sandwich.config, "structure", CASES["rms"])
        assert (by_formula(sandwich, some_bytes()) - found).abs().max() > 1e-2


def branches(model: Model) -> list[tuple[nn.Module, tuple[Any, ...]]]:
    """The two branches of the first block, and what they take beside their input."""
    block = model.blocks[0]
    if isinstance(model, SSM):
        return [(block.ssm, ()), (block.mlp, ())]
    state = model.initial_state(2).layers[0]
    return [(block.att, (state.att_shift, state.wkv)), (block.ffn, (state.ffn_shift,))]


def outputs(model: Model, x: Tensor) -> list[Tensor]:
    found = [branch(x, *rest) for branch, rest in branches(model)]
    return [out[0] if isinstance(out, tuple) else out for out in found]


def stream(dim: int = DIM, time: int = 9) -> Tensor:
    return torch.randn(2, time, dim, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


@EACH
def test_scalar_biases_are_added_before_every_linear_layer_of_a_branch(kind: str) -> None:
    """The same as adding them by hand to the inputs of PyTorch's layers."""
    model, plain = build(kind, CASES["fixup"]), empty(kind, CASES["rezero"]).double()
    shifts = {name: value for name, value in model.state_dict().items() if name.endswith(".shift")}
    assert len(shifts) == LAYERS * (5 if kind == "ssm" else 8)
    plain.load_state_dict({name: value for name, value in model.state_dict().items() if name not in shifts})
    for name, value in shifts.items():
        layer = plain.get_submodule(name.removesuffix(".shift"))
        layer.register_forward_pre_hook(lambda _layer, inputs, b=value: (inputs[0] + b,))
    with torch.no_grad():
        for found, expected in zip(outputs(model, stream()), outputs(plain, stream()), strict=True):
            assert torch.equal(found, expected)


@EACH
def test_unit_scaled_branches_are_plain_ones_with_scaled_weights(kind: str) -> None:
    model, plain = build(kind, CASES["unit"]), empty(kind, Structure(norm="rms")).double()
    own = model.state_dict()
    scaled = {
        name: own.get(name, torch.zeros(value.shape)).clone() * (value.shape[-1] ** -0.5 if linear(name) else 1)
        for name, value in plain.state_dict().items()
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
    plain.load_state_dict(scaled)
    with torch.no_grad():
        for found, expected in zip(outputs(model, stream()), outputs(plain, stream()), strict=True):
            assert (found - expected).abs().max() < 1e-14 * expected.abs().max()


def linear(name: str) -> bool:
    return name.startswith("blocks.") and name.endswith(".weight") and "norm" not in name and ".ln" not in name


@pytest.mark.parametrize("function", ROOT_MEAN_SQUARE)
def test_activations_have_unit_mean_square(function: Any) -> None:
    """Under N(0, 1), by quadrature; the constants have five digits."""
    activation = Activation(Structure(unit_scaled=True), function)

    def density(z: float) -> float:
        value = float(activation(torch.tensor(z, dtype=torch.float64)))
        return value**2 * math.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)

    assert sum(quad(density, *part)[0] for part in ((-10, 0), (0, 10))) == pytest.approx(1, abs=3e-5)


@pytest.mark.parametrize("gain", ["none", "ema", "lru", "clamp"])
def test_white_std_is_the_norm_of_the_kernel(gain: str) -> None:
    """sqrt(sum_k K_k**2) of the impulse response, which a run of the recurrence gives."""
    rate = torch.tensor([3.0, 0.5, 0.05, 0.01], dtype=torch.float64)
    a = torch.exp(-rate)
    g = {"none": 1.0, "ema": 1 - a, "lru": (1 - a * a).sqrt(), "clamp": rate.clamp(max=1)}[gain]
    kernel = g * a ** torch.arange(4000)[:, None]
    assert torch.allclose(white_std(rate, gain), kernel.square().sum(0).sqrt(), rtol=1e-13)


def start(kind: str, dim: int, structure: Structure) -> Model:
    """N(0, 1) everywhere, as u-muP begins, with short memories so that a few hundred bytes are stationary."""
    model = build(kind, structure, dim=dim, layers=1)
    generator = torch.Generator().manual_seed(3)
    for name, parameter in model.named_parameters():
        if name.endswith("log_rate"):
            parameter.data.uniform_(-3, 0, generator=generator)
        elif "time_" not in name:
            ones = name.endswith(".D") or ".ln_x.weight" in name
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.data.copy_(torch.ones(1) if ones else torch.zeros(1) if parameter.ndim == 1 else noise)
        elif "_mix_" in name or "_maa_" in name:
            parameter.data.fill_(0 if "_maa_" in name else 1)  # x_t alone: the shift is not in the claim
    return model


@pytest.mark.parametrize("dim", [64, 256])
@EACH
def test_unit_scaling_keeps_unit_scale_at_any_width(kind: str, dim: int) -> None:
    """Branches of white input of unit variance have std 1 within 5 %, logits d**-0.5 within 5 %."""
    model = start(kind, dim, Structure(unit_scaled=True))
    with torch.no_grad():
        found = [out[:, 128:].std().item() for out in outputs(model, stream(dim, 384))]
        logits = model(some_bytes(2, 384)).std().item()
    assert found == pytest.approx([1, 1], rel=0.05)
    assert logits * math.sqrt(dim) == pytest.approx(1, rel=0.05)


@EACH
def test_without_unit_scaling_the_same_weights_grow_with_width(kind: str) -> None:
    ratio = []
    for dim in (64, 256):
        with torch.no_grad():
            ratio.append(outputs(start(kind, dim, Structure()), stream(dim, 384))[1].std().item())
    assert ratio[1] > 3 * ratio[0] > 30


@EACH
def test_closed_gates_are_the_identity(kind: str) -> None:
    """ReZero at g = 0: the stream after every block is that before it, and only gates get gradients in the blocks."""
    model, inputs = build(kind, CASES["rezero"]), some_bytes()
    for name, parameter in model.named_parameters():
        if name.split(".")[-2:-1] in (["join1"], ["join2"]):
            parameter.data.zero_()
    embedded = embedding_of(model)(inputs)
    logits = model(inputs)
    assert torch.equal(logits, F.linear(embedded, model.head.weight))
    logits.square().sum().backward()
    for name, parameter in model.blocks.named_parameters():
        learns = parameter.grad is not None and bool(parameter.grad.abs().max() > 0)
        assert learns == (name.endswith("join1.gate") or name.endswith("join2.gate"))


@EVERY
@EITHER
def test_recurrent_mode_agrees_with_parallel_mode(kind: str, structure: Structure) -> None:
    model, inputs = build(kind, structure), some_bytes(3, 17)
    with torch.no_grad():
        parallel, state = model(inputs), model.initial_state(3)
        for t in range(inputs.shape[1]):
            logits, state = model.step(inputs[:, t], state)
            assert (logits - parallel[:, t]).abs().max() < 1e-13 * parallel.abs().max()


@EVERY
def test_patches_keep_both_modes_and_causality(structure: Structure) -> None:
    if structure.unit_scaled:
        with pytest.raises(ValueError, match="unit_scaled goes with patch 1"):
            build("ssm", structure, patch=2)
        return
    model, inputs = build("ssm", structure, patch=2), some_bytes(2, 9)
    with torch.no_grad():
        parallel, state = model(inputs), model.initial_state(2)
        changed = inputs.clone()
        changed[:, 5] += 1
        assert torch.equal(model(changed % 256)[:, :5], parallel[:, :5])
        for t in range(9):
            logits, state = model.step(inputs[:, t], state)
            assert (logits - parallel[:, t]).abs().max() < 1e-13 * parallel.abs().max()


@EVERY
@EITHER
def test_no_prediction_sees_a_later_byte(kind: str, structure: Structure) -> None:
    """By perturbation and by gradient."""
    model, inputs = build(kind, structure), some_bytes(1, 7)
    with torch.no_grad():
        before = model(inputs)
        for j in range(1, 7):
            changed = inputs.clone()
            changed[:, j] = (changed[:, j] + 128) % 256
            after = model(changed)
            assert torch.equal(after[:, :j], before[:, :j])
            assert not torch.equal(after[:, j], before[:, j])
    embedded = embedding_of(model)(inputs).detach().requires_grad_()
    logits = model.decode(embedded)
    for t in range(7):
        (gradient,) = torch.autograd.grad(logits[0, t].square().sum(), embedded, retain_graph=True)
        assert (gradient[0, : t + 1].abs().amax(1) > 0).all(), "every earlier byte acts, or the test cannot fail"
        assert gradient[0, t + 1 :].abs().sum() == 0


@EVERY
@EITHER
def test_models_are_copied_and_saved_whole(kind: str, structure: Structure) -> None:
    model, inputs, again = build(kind, structure), some_bytes(), empty(kind, structure).double()
    again.load_state_dict(model.state_dict())
    with torch.no_grad():
        assert torch.equal(copy.deepcopy(model)(inputs), model(inputs))
        assert torch.equal(again(inputs), model(inputs))
    for name, parameter in model.named_parameters():
        assert parameter.ndim > 0, f"{name} has a size that a plan can read"


@pytest.mark.slow
@EVERY
@pytest.mark.parametrize("kind", ["ssm", "rwkv6"])
def test_models_compile_whole(kind: str, structure: Structure) -> None:
    torch._dynamo.reset()
    one = Structure(**structure.options(), multipliers={k: v for k, v in structure.multipliers.items() if "1" not in k})
    model, inputs = build(kind, one, layers=1), some_bytes()
    with torch.no_grad():
        expected = model(inputs)
        assert torch.equal(torch.compile(model, backend="eager", fullgraph=True)(inputs), expected)


def test_the_default_is_the_plain_model_to_the_bit() -> None:
    """Names and order of the parameters, and the forward pass written with PyTorch's functions."""
    model, inputs = build("ssm", Structure(), layers=1).float(), some_bytes()
    p = dict(model.named_parameters())
    names = "norm1.weight norm1.bias ssm.log_rate ssm.D ssm.B.weight ssm.C_proj.weight ssm.C_proj.bias norm2.weight "
    names += "norm2.bias mlp.gate.weight mlp.up.weight mlp.down.weight"
    blocks = [f"blocks.0.{name}" for name in names.split()]
    assert [*model.state_dict()] == ["embedding.weight", *blocks, "norm.weight", "norm.bias", "head.weight"]
    b = {name: p[f"blocks.0.{name}"] for name in names.split()}
    x = F.embedding(inputs, p["embedding.weight"])
    u = F.layer_norm(x, (DIM,), b["norm1.weight"], b["norm1.bias"])
    rate = b["ssm.log_rate"].exp()
    states, _ = scan(torch.exp(-rate), F.linear(u, b["ssm.B.weight"]) * -torch.expm1(-rate))
    x = x + (F.linear(states, b["ssm.C_proj.weight"], b["ssm.C_proj.bias"]) + b["ssm.D"] * u)
    u = F.layer_norm(x, (DIM,), b["norm2.weight"], b["norm2.bias"])
    hidden = F.silu(F.linear(u, b["mlp.gate.weight"])) * F.linear(u, b["mlp.up.weight"])
    x = F.layer_norm(x + F.linear(hidden, b["mlp.down.weight"]), (DIM,), p["norm.weight"], p["norm.bias"])
    assert torch.equal(model(inputs), F.linear(x, p["head.weight"]))


@pytest.mark.parametrize(
    ("kind", "scheme"),
    [
        pytest.param(kind, scheme, marks=() if number % len(KINDS) == place else pytest.mark.slow)
        for number, scheme in enumerate(SCHEMES)
        for place, kind in enumerate(KINDS)
    ],
)
def test_models_are_built_for_every_scheme(kind: str, scheme: str) -> None:
    """Needs and multipliers become a structure, whose model the plan accepts and fills whole."""
    model = empty(kind, asked(empty(kind, Structure()), scheme))
    if isinstance(model, RWKV) and model.config.version not in VERSIONS.get(scheme, VERSIONS["rwkv_blinkdl"]).models:
        with pytest.raises(ValueError, match="is not for RWKV-"):
            plan(model, scheme)
        return
    chosen = plan(model, scheme)
    assert dict(model.config.structure.multipliers) == chosen.forward
    for parameter in model.parameters():
        parameter.data.fill_(math.nan)
    chosen.apply_(model, 0)
    for name, parameter in model.named_parameters():
        assert name.endswith("log_rate") or parameter.isfinite().all(), name


def test_post_norm_gains_are_told_from_the_others() -> None:
    model = empty("rwkv6", asked(empty("rwkv6", Structure()), "trinity"))
    plan(model, "trinity").apply_(model, 0)
    for name, parameter in model.named_parameters():
        if "norm.weight" in name or ".ln1.weight" in name:
            assert parameter.unique().tolist() == [pytest.approx(LAYERS**-0.5 if "post" in name else 1)]


def test_shape_multiplier_is_the_shape_in_another_place(tmp_path: Path) -> None:
    """Equal outputs; part of the state only where it is used; a shape also where C_proj is zero."""
    nodes, inputs = place(DIM, placement="concentrated", projection="published"), some_bytes()
    configs = [SSMConfig(DIM, LAYERS, shape_multiplier=used) for used in (False, True)]
    plain, shaped = (SSM(config).double().initialise_(0, nodes) for config in configs)
    extra = shaped.state_dict().keys() - plain.state_dict().keys()
    assert extra == {f"blocks.{i}.ssm.shape" for i in range(LAYERS)}
    assert [*dict(shaped.named_parameters())] == [*dict(plain.named_parameters())]
    with torch.no_grad():
        assert (shaped(inputs) - plain(inputs)).abs().max() < 3e-9, "columns were rounded in float32"
        shaped.recurrences()[0].place_(nodes)
        state = shaped.initial_state(2)
        for t in range(inputs.shape[1]):
            logits, state = shaped.step(inputs[:, t], state)
        assert (logits - shaped(inputs)[:, -1]).abs().max() < 1e-15
    save_checkpoint(tmp_path / "checkpoint", shaped, None, Progress())
    again = empty("ssm", Structure(), shape_multiplier=True).double()
    load_checkpoint(tmp_path / "checkpoint", again)
    assert all(torch.equal(again.state_dict()[name], value) for name, value in shaped.state_dict().items())
    shapes = shaped.recurrences()[0].shape.tolist()
    assert shapes == pytest.approx(list(nodes.projection), rel=1e-6)
    gradients = []
    for model in (plain, shaped):
        weight = model.recurrences()[0].C_proj.weight
        weight.data.zero_()
        model(inputs).square().sum().backward()
        gradients.append(weight.grad)
    expected = gradients[0] * torch.tensor(shapes, dtype=torch.float64)
    assert (gradients[1] - expected).abs().max() < 1e-6 * expected.abs().max()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"norm": "batch"}, "norm must be one of layer, rms, scale, none, got 'batch'"),
        ({"placement": "mid"}, "placement must be one of pre, post, sandwich"),
        ({"norm": "scale", "norm_offset": True}, "norm_offset goes with norm 'layer' or 'rms', got 'scale'"),
        ({"norm": "none", "placement": "post"}, "placement 'post' needs a norm"),
        ({"norm": "none", "embedding_norm": True}, "embedding_norm needs a norm"),
        ({"residual": 2.0}, "residual 2.0 goes with placement 'post', got 'pre'"),
        ({"placement": "post", "residual": math.inf}, "residual must be a finite number"),
        ({"unit_scaled": True, "norm": "none"}, "unit_scaled goes with norm 'layer' or 'rms'"),
        ({"unit_scaled": True, "gate": True}, "unit_scaled does not go with gate"),
        ({"multipliers": {"logits": math.nan}}, "logits must be a finite number, got nan"),
    ],
)
def test_contradictions_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Structure(**options)


@pytest.mark.parametrize("name", ["head", "mixer.2", "mixer.x", "ffn", "residual.0"])
def test_multipliers_of_what_is_not_there_are_refused(name: str) -> None:
    for kind in KINDS:
        with pytest.raises(ValueError, match=f"multiplier '{name}' does not exist; valid: embedding, logits"):
            empty(kind, Structure(multipliers={name: 1.0}))


def test_needs_that_models_do_not_have_are_refused() -> None:
    with pytest.raises(ValueError, match="need 'normal' is no option of our models; valid: norm, norm_offset"):
        structure_for({"normal": 1}, {})
    assert structure_for({"gate": True}, {"logits": 0.5}) == Structure(gate=True, multipliers={"logits": 0.5})
    assert repr(structure_for({"gate": True}, {"logits": 0.5})) == "Structure(gate=True, multipliers={'logits': 0.5})"
    assert hash(Structure(gate=True)) == hash(structure_for({"gate": True}, {"logits": 0.5}))
