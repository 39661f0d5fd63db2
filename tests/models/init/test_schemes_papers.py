"""Schemes of papers: what is drawn on our models, role by role and layer by layer, against the formulas."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from plkernel.models.init.plan import Plan
from plkernel.models.init.planning import asked, plan
from plkernel.models.init.roles import RoleTable
from plkernel.models.rwkv import RWKV, RWKVConfig
from plkernel.models.ssm import SSM, SSMConfig
from plkernel.models.structure import Structure

D, L, V = 128, 3, 256  # width, layers, vocabulary
ROLES = {
    "embedding.weight": "embedding", "emb.weight": "embedding", "head.weight": "head",
    "ssm.B.weight": "value", "ssm.C_proj.weight": "mixer_out", "ssm.C_proj.bias": "bias",
    "mlp.gate.weight": "ffn_gate", "mlp.up.weight": "ffn_up", "mlp.down.weight": "ffn_out",
    "att.receptance.weight": "query", "att.key.weight": "key", "att.value.weight": "value",
    "att.gate.weight": "mixer_gate", "att.output.weight": "mixer_out", "ffn.key.weight": "ffn_gate",
    "ffn.receptance.weight": "ffn_router", "ffn.value.weight": "ffn_out",
}  # fmt: skip
OUTPUTS = ("mixer_out", "ffn_out")
SCALED = ("value", "ffn_gate", "ffn_up", *OUTPUTS)  # what DeepNet and T-Fixup scale down
TOLERANCE = 0.025  # of a standard deviation: 4.5 standard errors of the smallest matrix, and half of 5 %


class Cell(NamedTuple):
    """What is expected: N(scale), U(scale), T(scale) cut at 3, or C(scale)."""

    kind: str
    scale: float


Row = Callable[[str, int, int, int], Cell]  # of role, layer, fan in and fan out


def row(
    embedding: Cell, matrices: Cell | Row, head: Cell, outputs: Cell | Row | None = None, bias: Cell | None = None
) -> Row:
    """A row of the table, with other cells for output projections and biases where they differ."""

    def cell(role: str, layer: int, fan_in: int, fan_out: int) -> Cell:
        if role in ("embedding", "head"):
            return embedding if role == "embedding" else head
        found = (bias or Cell("C", 0)) if role == "bias" else (outputs or matrices) if role in OUTPUTS else matrices
        return found if isinstance(found, Cell) else found(role, layer, fan_in, fan_out)

    return cell


def normal(std: float) -> Cell:
    return Cell("N", std)


def fans(kind: str, formula: Callable[[int, int], float]) -> Row:
    return lambda role, layer, fan_in, fan_out: Cell(kind, formula(fan_in, fan_out))


def scaled(kind: str, factor: float, formula: Callable[[int, int], float]) -> Row:
    """`factor` on the matrices of SCALED."""
    return lambda role, layer, i, o: Cell(kind, formula(i, o) * (factor if role in SCALED else 1))


def critical(role: str, layer: int, fan_in: int, fan_out: int) -> Cell:
    return normal(math.sqrt((2 if role in ("ffn_gate", "ffn_up", "ffn_out") else 1) / fan_in))


def attention_alone(role: str, layer: int, fan_in: int, fan_out: int) -> Cell:
    return normal(math.sqrt(2 / (fan_in + fan_out)) if role.startswith("ffn") else math.sqrt(2 / (5 * D)))


def no_queries(role: str, layer: int, fan_in: int, fan_out: int) -> Cell:
    return Cell("C", 0) if role == "query" else normal(0.0625 / math.sqrt(2))


LECUN = fans("N", lambda i, o: i**-0.5)
TORCH = fans("U", lambda i, o: i**-0.5)
HE = fans("N", lambda i, o: math.sqrt(2 / i))
SPECTRAL = fans("N", lambda i, o: math.sqrt(min(1, o / i) / i))
ZERO, ONES, SMALL = Cell("C", 0), normal(1), math.sqrt(2 / (5 * D))
TORCH_END, TRINITY, XAVIER_END = Cell("U", D**-0.5), Cell("T", 0.5 / math.sqrt(D)), normal(math.sqrt(2 / (V + D)))
MUP = {"base_width": 64}  # m = 2
UNIFORM = {"uniform_draws": True}
DEEPNORM = {"placement": "post", "residual": 6**0.25}
CASES: list[tuple[str, dict[str, Any], Mapping[str, Any], Row]] = [
    ("sp_torch_default", {}, {}, row(ONES, TORCH, TORCH_END, bias=Cell("U", D**-0.5))),
    ("sp_torch_default", {"normal_draws": True}, {}, row(normal(D**-0.5), LECUN, normal(D**-0.5))),
    ("mup_table8", MUP, {}, row(ONES, normal(0.0625 / 2**0.5), normal(0.0625), bias=Cell("U", 64**-0.5))),
    ("mup_table8", MUP | {"zero_readout": True}, {}, row(ONES, no_queries, ZERO, bias=Cell("U", 64**-0.5))),
    ("mup_table8", MUP | UNIFORM, {}, row(ONES, TORCH, Cell("U", 64**-0.5), bias=Cell("U", 64**-0.5))),
    ("mup_table3", MUP, {}, row(ONES, LECUN, normal(8 / 128))),
    ("mup_table3", MUP | UNIFORM, {}, row(ONES, TORCH, Cell("U", 64**-0.5 / 2), bias=Cell("U", 64**-0.5))),
    ("spectral", {}, {}, row(ONES, SPECTRAL, normal(D**-0.5))),
    ("gpt2", {}, {}, row(normal(0.02), normal(0.02), normal(0.02), normal(0.02 / math.sqrt(6)))),
    ("trinity", {}, {"placement": "sandwich"}, row(TRINITY, TRINITY, TRINITY)),
    ("deepseek_v2", {}, {}, row(normal(0.006), normal(0.006), normal(0.006))),
    ("deepseek_v3", {}, {}, row(normal(0.006), normal(0.006), normal(0.006))),
    ("deepseek_v3", {"width_aware": True}, {}, row(*[normal(0.5 / math.sqrt(D))] * 3)),
    ("spike_scaled_embed", {}, {}, row(*[normal(SMALL)] * 3, outputs=normal(SMALL / math.sqrt(6)))),
    (
        "spike_scaled_embed",
        {"fold": True},
        {},
        row(normal(math.sqrt(2 / 5)), *[normal(SMALL)] * 2, outputs=normal(SMALL / math.sqrt(6))),
    ),
    ("spike_embed_ln", {}, {"embedding_norm": True}, row(*[normal(SMALL)] * 3, outputs=normal(SMALL / math.sqrt(6)))),
    (
        "deepnorm_decoder",
        {},
        DEEPNORM,
        row(XAVIER_END, scaled("N", 24**-0.25, lambda i, o: math.sqrt(2 / (i + o))), XAVIER_END),
    ),
    (
        "deepnorm_decoder",
        {"cross_attention": True},
        {"placement": "post", "residual": 9**0.25},
        row(XAVIER_END, scaled("N", 36**-0.25, lambda i, o: math.sqrt(2 / (i + o))), XAVIER_END),
    ),
    (
        "deepnorm_encoder",
        {"decoder_layers": 6},
        {"placement": "post", "residual": 0.81 * 486 ** (1 / 16)},
        row(XAVIER_END, scaled("N", 0.87 * 486 ** (-1 / 16), lambda i, o: math.sqrt(2 / (i + o))), XAVIER_END),
    ),
    (
        "deepnorm_encoder",
        {},
        DEEPNORM,
        row(XAVIER_END, scaled("N", 24**-0.25, lambda i, o: math.sqrt(2 / (i + o))), XAVIER_END),
    ),
    (
        "deepnorm_torchscale",
        {},
        DEEPNORM,
        row(normal(D**-0.5), scaled("U", 24**-0.25, lambda i, o: i**-0.5), normal(D**-0.5)),
    ),
    (
        "small_init_scalenorm_fixnorm",
        {},
        {"norm": "scale", "fixnorm": True},
        row(Cell("U", 0.01), normal(SMALL), Cell("U", 0.01)),
    ),
    (
        "small_init_scalenorm_fixnorm",
        {"attention_only": True},
        {"norm": "scale", "fixnorm": True},
        row(Cell("U", 0.01), attention_alone, Cell("U", 0.01)),
    ),
    (
        "ds_init",
        {},
        {},
        row(ONES, lambda role, layer, i, o: Cell("U", math.sqrt(6 / (i + o) / (layer + 1))), TORCH_END),
    ),
    ("auto_init", {}, {}, row(ONES, LECUN, normal(D**-0.5))),
    ("critical_he", {}, {}, row(ONES, critical, normal(D**-0.5))),
    ("u_mup", {}, {"unit_scaled": True}, row(ONES, ONES, ONES)),
    (
        "fixup",
        {},
        {"norm": "none", "gate": True, "scalar_bias": True},
        row(ONES, fans("N", lambda i, o: math.sqrt(2 / i) * 6**-0.5), ZERO, ZERO),
    ),
    (
        "fixup",
        {"matrices": 3},
        {"norm": "none", "gate": True, "scalar_bias": True},
        row(ONES, fans("N", lambda i, o: math.sqrt(2 / i) * 6**-0.25), ZERO, ZERO),
    ),
    (
        "t_fixup",
        {},
        {"norm": "none"},
        row(
            normal(D**-0.5 * 27**-0.25),
            scaled("U", 27**-0.25, lambda i, o: math.sqrt(6 / (i + o))),
            Cell("U", math.sqrt(6 / (V + D))),
        ),
    ),
    (
        "t_fixup",
        {"encoder": True, "normal_draws": True},
        {"norm": "none"},
        row(
            normal(D**-0.5 * 27**-0.25),
            scaled("N", 0.67 * 3**-0.25, lambda i, o: math.sqrt(2 / (i + o))),
            XAVIER_END,
        ),
    ),
    ("rezero", {}, {"norm": "none", "gate": True}, row(ONES, TORCH, TORCH_END)),
    ("skip_init", {}, {"norm": "none", "gate": True}, row(normal(math.sqrt(2 / D)), HE, TORCH_END)),
]
IDS = ["-".join((name, *options)) for name, options, _, _ in CASES]
NEEDY = {name: needs for name, options, needs, _ in CASES if needs and not options}


def fitting(model: nn.Module, scheme: str, roles: RoleTable | None = None, **options: Any) -> Plan:
    """The plan, as for a model that is built as the scheme asks: draws and multipliers are the same."""
    return plan(model, scheme, roles, structure=asked(model, scheme, roles, **options), **options)


def ours(kind: str = "SSM", **needs: Any) -> nn.Module:
    structure = Structure(**needs)
    return (
        SSM(SSMConfig(D, L, structure=structure))
        if kind == "SSM"
        else RWKV(RWKVConfig(6, D, L, 32, structure=structure))
    )


def check(found: Tensor, cell: Cell, where: str) -> None:
    """Mean, second and fourth moment, and hard bounds."""
    kind, scale = cell
    values = found.detach().double().flatten()
    if kind == "C":
        assert (values - scale).abs().max().item() <= 1e-6 * scale, where
        return
    small, widest = len(values) < 4096, values.abs().max().item()
    rms = scale * {"N": 1.0, "U": 3**-0.5, "T": 0.98658}[kind]
    assert values.square().mean().sqrt().item() == pytest.approx(rms, rel=TOLERANCE if not small else 0.1), where
    assert abs(values.mean().item()) < 5 * rms / math.sqrt(len(values)), where
    if kind != "N":
        bound = scale * (1 if kind == "U" else 3)
        assert 0.97 * bound < widest <= bound * (1 + 1e-6), where
    elif not small:
        assert widest > 3.5 * rms, where


@pytest.mark.parametrize("kind", ["SSM", "RWKV"])
@pytest.mark.parametrize(("scheme", "options", "needs", "expected"), CASES, ids=IDS)
def test_what_is_drawn(scheme: str, options: dict[str, Any], needs: dict[str, Any], expected: Row, kind: str) -> None:
    """Every matrix by itself, the biases of all layers together."""
    model = ours(kind, **needs)
    fitting(model, scheme, **options).apply_(model, seed=1)
    drawn: dict[tuple[str, int, int, int], list[Tensor]] = {}
    for name, parameter in model.named_parameters():
        role = next((role for end, role in ROLES.items() if name.endswith(end)), None)
        if role is not None:
            layer = int(name.split(".")[1]) if name.startswith("blocks") and role != "bias" else -1
            fan_out, fan_in = parameter.shape if parameter.ndim == 2 else (D, D)
            drawn.setdefault((role, layer, fan_in, fan_out), []).append(parameter.flatten())
    for where, values in drawn.items():
        check(torch.cat(values), expected(*where), str(where))
    assert len({role for role, *_ in drawn} - {"bias"}) == (7 if kind == "SSM" else 10)


def test_the_check_notices_five_percent() -> None:
    values = torch.randn(D, D, generator=torch.Generator().manual_seed(0))
    check(values, normal(1), "as it is")
    for wrong in (normal(1.05), normal(0.95), Cell("U", 3**0.5), Cell("T", 1)):
        with pytest.raises(AssertionError):
            check(values, wrong, "wrong")


@pytest.mark.parametrize("scheme", NEEDY)
def test_a_model_without_the_structure_is_refused_by_name(scheme: str) -> None:
    with pytest.raises(ValueError, match=f"scheme '{scheme}' needs a model with") as caught:
        plan(ours(), scheme)
    for name, value in NEEDY[scheme].items():
        assert f"{name} = {value!r}" in str(caught.value)
    assert fitting(ours(**NEEDY[scheme]), scheme).needs == NEEDY[scheme]


def test_positions_of_gpt2_and_a_head_with_few_tokens() -> None:
    """What our models lack: N(0.01), and sqrt(V / d) where V < d."""
    roles = RoleTable.from_dict({"tokens.*": "embedding", "positions.*": "position", "head.*": "head"})
    parts = {"tokens": nn.Embedding(64, D), "positions": nn.Embedding(V, D), "head": nn.Linear(D, 64, bias=False)}
    model = nn.ModuleDict(parts)
    fitting(model, "gpt2", roles).apply_(model, seed=0)
    check(parts["positions"].weight, normal(0.01), "positions")
    fitting(model, "spectral", roles).apply_(model, seed=0)
    check(parts["head"].weight, normal(math.sqrt(64 / D / D)), "head")


@pytest.mark.parametrize("kind", ["SSM", "RWKV"])
def test_norms_gates_and_scalar_biases(kind: str) -> None:
    """Trinity's L**-0.5 after branches, ScaleNorm's and FixNorm's sqrt(d), gates that start at 0 or 1."""
    for scheme, needs in NEEDY.items():
        model, counts = ours(kind, **needs), {"gate": 0, "shift": 0, "post_norm": 0, "fixnorm": 0}
        fitting(model, scheme).apply_(model, seed=0)
        for name, parameter in model.named_parameters():
            for part in counts:
                counts[part] += part in name and ".gate.weight" not in name
            if name.endswith((".join1.gate", ".join2.gate")):
                check(parameter, Cell("C", 1 if scheme == "fixup" else 0), name)
            elif name.endswith((".shift", "norm.bias", "norm1.bias", "ln2.bias", "ln_out.bias")):
                check(parameter, ZERO, name)
            elif "post_norm" in name:
                check(parameter, Cell("C", 3**-0.5), name)
            elif name.endswith(("norm.weight", "norm1.weight", "ln2.weight", "ln_out.weight")):
                check(parameter, Cell("C", math.sqrt(D) if scheme.startswith("small_init") else 1), name)
        assert bool(counts["gate"]) == ("gate" in needs)
        assert bool(counts["shift"]) == ("scalar_bias" in needs)
        assert bool(counts["post_norm"]) == (scheme == "trinity")
        assert bool(counts["fixnorm"]) == ("fixnorm" in needs)
