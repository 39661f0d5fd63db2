"""Schemes of frameworks against what their code does: the drawn weights, the multipliers and the forward pass.

ROWS says, cell by cell and apart from the schemes' own rules, what each of them fills. In a cell stand d width, L
layers, l layer from 0, V vocabulary, fi and fo the fans of the matrix, dh head size, nh heads, parts how many matrices
are fused in one parameter, and m = d / 64. T is cut and not rescaled, J is cut at two and rescaled.
"""

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from plkernel.models.init import RoleTable, asked, plan
from plkernel.models.init.distributions import Distribution
from plkernel.models.init.plan import Entry, Plan, slice_of
from plkernel.models.init.planning import SCHEMES
from plkernel.models.rwkv import RWKV, RWKVConfig
from plkernel.models.ssm import SSM, SSMConfig
from plkernel.models.structure import Structure

TOLERANCE = 0.025  # of a standard deviation; 16384 normal numbers, the fewest here, give it to 0.0055
KEPT = {2: 0.879626, 3: 0.986578}  # standard deviation of N(0, 1) cut at +-2 and +-3


@dataclass(frozen=True)
class Cell:
    """What is drawn: standard deviation; the bound that no value passes and some value nears, none of N; or a value."""

    std: float = 0.0
    bound: float = math.inf
    value: float | None = None

    def fails(self, drawn: Tensor) -> bool:
        """Whether these values cannot have come from here."""
        low, high = torch.aminmax(drawn)
        top = max(float(high), -float(low))
        if self.value is not None:
            return bool((drawn != self.value).any())
        beyond = top > self.bound * (1 + 1e-6) if self.bound < math.inf else top < 3.1 * self.std
        inside = self.bound < math.inf and top < 0.95 * self.bound
        return beyond or inside or not math.isclose(float(drawn.std()), self.std, rel_tol=TOLERANCE)


LETTERS = {
    "N": lambda s: Cell(s),
    "T": lambda s, c: Cell(KEPT[c] * s, c * s),
    "J": lambda s: Cell(s, 2 * s / KEPT[2]),
    "U": lambda b: Cell(b / math.sqrt(3), b),
    "C": lambda x: Cell(value=x),
    "sqrt": math.sqrt,
    "min": min,
}
DEEP, HERE = "N(0.02/sqrt(2*L))", "N(0.02/sqrt(2*(l+1)))"
SMALL = "N(sqrt(2/(5*d)))"
RATES = {"lr in": "1/m", "lr out": "1/m"}
SPECTRAL = "N(fi**-0.5*min(1,sqrt(fo/fi)))"
FUSED_SPECTRAL = "N(fi**-0.5*min(1,sqrt(parts*fo/fi)))"


def row(emb: str, inputs: str, out: str, head: str, **cells: str) -> dict[str, str]:
    """A row of the table, with the cells of all parts that are not said otherwise."""
    return {"emb": emb, "in": inputs, "out": out, "head": head, "norm": "C(1)"} | cells


def mup(**cells: str) -> dict[str, str]:
    """The rows that share the form of Megatron's muP."""
    inputs, out = "N(0.02/sqrt(m))", "N(0.02/(sqrt(2*L)*sqrt(m)))"
    return row("N(0.02)", inputs, out, "N(0.02)") | RATES | {"x logits": "1/m"} | cells


ROWS: list[tuple[str, dict[str, Any], dict[str, str]]] = [
    ("torchtitan_gpt_oss", {}, row("N(0.02)", HERE, HERE, "T(d**-0.5,3)")),
    ("torchtitan_llama", {}, row("N(1)", "N(0.02)", HERE, "T(d**-0.5,3)", w3=HERE, router=HERE)),
    ("torchtitan_depth_init_total", {}, row("N(1)", "N(0.02)", DEEP, "T(d**-0.5,3)", w3=DEEP, router=DEEP)),
    ("olmo_normal", {}, row("N(0.02)", "N(0.02)", "N(0.02)", "N(0.02)")),
    ("olmo_normal", {"std": 0.03, "embedding_std": 0.5}, row("N(0.5)", "N(0.03)", "N(0.03)", "N(0.03)")),
    ("olmo_normal", {"cutoff": 2}, row("T(0.02,2)", "T(0.02,2)", "T(0.02,2)", "T(0.02,2)")),
    (
        "olmo_mitchell",
        {},
        row("T(d**-0.5,3)", "T(d**-0.5,3)", "T((2*fi*(l+1))**-0.5,3)", "T(d**-0.5,3)"),
    ),
    ("olmo_full_megatron", {}, row("T(0.02,3)", "T(0.02,3)", "T(0.02/sqrt(2*L),3)", "T(d**-0.5,3)")),
    (
        "olmo_full_megatron",
        {"scale_embedding": True, "cutoff": 2},
        row("T(0.02*sqrt(d),2)", "T(0.02,2)", "T(0.02/sqrt(2*L),2)", "T(d**-0.5,2)"),
    ),
    ("megatron_default", {}, row("N(0.02)", "N(0.02)", DEEP, "N(0.02)")),
    ("megatron_hybrid", {}, row("N(0.02)", "N(0.02)", DEEP, "N(0.02)")),
    (
        "megatron_xavier_uniform",
        {},
        row("U(sqrt(6/(V+d)))", "U(sqrt(6/(fi+parts*fo)))", "U(sqrt(6/(fi+fo)))", "U(sqrt(6/(V+d)))"),
    ),
    ("megatron_mup", {"base_width": 64}, mup(**{"eps in": "1/m", "eps out": "1/m"})),
    ("transformers_default", {}, row("N(0.02)", "N(0.02)", "N(0.02)", "N(0.02)")),
    ("transformers_gpt2", {}, row("N(0.02)", "N(0.02)", DEEP, "N(0.02)")),
    (
        "transformers_clip",
        {},
        row("N(0.02)", "N(d**-0.5/sqrt(2*L))", "N(d**-0.5)", "N(d**-0.5)", ffn="N(d**-0.5/sqrt(2*L))")
        | dict.fromkeys(("w1", "w3", "router"), "N((2*d)**-0.5)"),
    ),
    (
        "transformers_clip",
        {"factor": 0.5},
        row("N(0.01)", "N(0.5*d**-0.5/sqrt(2*L))", "N(0.5*d**-0.5)", "N(0.5*d**-0.5)", ffn="N(d**-0.5/sqrt(8*L))")
        | dict.fromkeys(("w1", "w3", "router"), "N((8*d)**-0.5)"),
    ),
    ("transformers_modernbert", {}, row("T(0.02,2)", "T(0.02,2)", "T(0.02/sqrt(2*L),2)", "T(0.02/sqrt(2*L),2)")),
    (
        "transformers_t5",
        {},
        row("N(1)", "N(d**-0.5)", "N(fi**-0.5)", "N(1)", q="N((d*dh)**-0.5)", attn="N((nh*dh)**-0.5)")
        | {"x logits": "d**-0.5"},
    ),
    (
        "transformers_t5",
        {"tied": False},
        row("N(1)", "N(d**-0.5)", "N(fi**-0.5)", "N(1)", q="N((d*dh)**-0.5)", attn="N((nh*dh)**-0.5)"),
    ),
    (
        "transformers_gemma",
        {},
        row("N(0.02)", "N(0.02)", "N(0.02)", "N(0.02)", norm="C(0)") | {"x embedding": "sqrt(d)"},
    ),
    ("transformers_mamba", {}, row("N(0.1)", "N(0.1)", "U(fi**-0.5)", "N(0.1)")),
    ("transformers_mamba", {"rescale": True}, row("N(0.1)", "N(0.1)", "U(fi**-0.5/sqrt(2*L))", "N(0.1)")),
    ("lm_engine_normal", {}, row("N(0.02)", "N(0.02)", DEEP, "N(0.02)")),
    ("lm_engine_fan_in", {}, row("N(0.02)", "N(fi**-0.5)", "N(fi**-0.5/sqrt(2*L))", "N(0.02)")),
    (
        "lm_engine_fan_in",
        {"fan_in_embedding": True},
        row("N(d**-0.5)", "N(fi**-0.5)", "N(fi**-0.5/sqrt(2*L))", "N(0.02)"),
    ),
    (
        "lm_engine_mup",
        {"base_width": 64},
        mup(**{"lr own": "1/m", "wd own": "1", "x embedding": "1", "x residual": "1"}),
    ),
    (
        "lm_engine_mup",
        {"base_width": 64, "mup_groups": False, "embedding_multiplier": 12, "residual_multiplier": 0.22},
        mup(**{"lr in": "1", "lr out": "1", "x embedding": "12", "x residual": "0.22"}),
    ),
    ("nanotron_random_init", {}, row("N(0.025)", "N(0.025)", "N(0.025/sqrt(2*L))", "N(0.025)")),
    ("nanotron_random_init", {"depth": False}, row("N(0.025)", "N(0.025)", "N(0.025)", "N(0.025)")),
    (
        "nanotron_spectral_mup",
        {},
        row("N(1)", SPECTRAL, SPECTRAL, SPECTRAL) | {"lr in": "fo/fi", "lr out": "fo/fi", "lr head": "V/d"},
    ),
    (
        "nanotron_spectral_mup",
        {"fused": True},
        row("N(1)", FUSED_SPECTRAL, FUSED_SPECTRAL, FUSED_SPECTRAL)
        | {"lr in": "parts*fo/fi", "lr out": "parts*fo/fi", "lr head": "V/d"},
    ),
    ("llm_foundry_baseline", {}, row("N(0.02)", "N(0.02)", DEEP, "N(0.02)")),
    (
        "llm_foundry_baseline",
        {"embedding_std": 0.5, "embedding_bound": 0.1, "divisor": 4},
        row("N(0.5)", "N(0.02)", "N(0.005)", "N(0.5)"),
    ),
    ("llm_foundry_baseline", {"embedding_bound": 0.1}, row("U(0.1)", "N(0.02)", DEEP, "U(0.1)")),
    ("llm_foundry_small_init", {}, row(SMALL, SMALL, "N(sqrt(2/(5*d))/sqrt(2*L))", SMALL)),
    ("llm_foundry_neox_init", {}, row(SMALL, SMALL, "N(2/(L*sqrt(d)))", SMALL)),
    (
        "llm_foundry_kaiming_normal",
        {},
        row("N(sqrt(2/d))", "N(sqrt(2/fi))", "N(sqrt(2/fi)/sqrt(2*L))", "N(sqrt(2/d))"),
    ),
    (
        "llm_foundry_kaiming_uniform",
        {},
        row("U(sqrt(6/d))", "U(sqrt(6/fi))", "U(sqrt(6/fi)/sqrt(2*L))", "U(sqrt(6/d))"),
    ),
    (
        "llm_foundry_xavier_normal",
        {},
        row("N(sqrt(2/(V+d)))", "N(sqrt(2/(fi+fo)))", "N(sqrt(2/(fi+fo))/sqrt(2*L))", "N(sqrt(2/(V+d)))"),
    ),
    (
        "llm_foundry_xavier_uniform",
        {"gain": 2},
        row("U(sqrt(24/(V+d)))", "U(sqrt(24/(fi+fo)))", "U(sqrt(24/(fi+fo))/sqrt(2*L))", "U(sqrt(24/(V+d)))"),
    ),
    ("cerebras_default", {}, row("T(0.02,2)", "T(0.02,2)", "T(0.02/sqrt(2*L),2)", "N(0.02)")),
    (
        "cerebras_mup",
        {"base_width": 64},
        row("T(0.08,2)", "T(0.08/sqrt(m),2)", "T(0.08/(sqrt(m)*sqrt(2*L)),2)", "N(0.02)")
        | RATES
        | {"x embedding": "1", "x logits": "1/m"},
    ),
    (
        "cerebras_mup",
        {"base_width": 64, "base_feed_forward": 100, "embedding_multiplier": 10, "logits_alpha": 0.5},
        row(
            "T(0.08,2)",
            "T(0.08/sqrt(m),2)",
            "T(0.08/(sqrt(m)*sqrt(2*L)),2)",
            "N(0.02)",
            ffn="T(0.08/(sqrt(fi/100)*sqrt(2*L)),2)",
        )
        | RATES
        | {"lr ffn": "100/fi", "x embedding": "10", "x logits": "0.5/m"},
    ),
    (
        "maxtext",
        {},
        row("N(d**-0.5)", "N(d**-0.5)", "J(fi**-0.5)", "J(d**-0.5)", q="N((d*dh)**-0.5)", attn="N((nh*dh)**-0.5)")
        | dict.fromkeys(("w1", "w3", "router"), "J(fi**-0.5)"),
    ),
    (
        "maxtext",
        {"scale": 4, "tied": True},
        row("N(d**-0.5)", "N(d**-0.5)", "J(2*fi**-0.5)", "N(d**-0.5)", q="N((d*dh)**-0.5)", attn="N((nh*dh)**-0.5)")
        | dict.fromkeys(("w1", "w3", "router"), "J(2*fi**-0.5)")
        | {"x logits": "d**-0.5"},
    ),
]
IDS = [f"{name}{'-'.join(['', *options])}" for name, options, _ in ROWS]
FIRST = [i for i, (name, _, _) in enumerate(ROWS) if name not in {other for other, _, _ in ROWS[:i]}]


class Wide(nn.Module):
    """A model of someone else's: 6 heads of 32 on a width of 128, q, k, v in one (in, out) matrix, gate and up too."""

    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(300, 128)
        self.wpe = nn.Embedding(200, 128)
        self.h = nn.ModuleList([nn.Module() for _ in range(3)])
        for block in self.h:
            block.qkv = nn.Linear(3 * 192, 128)
            block.qkv.bias = nn.Parameter(torch.empty(3 * 192))
            block.o = nn.Linear(192, 128)
            block.w13 = nn.Linear(128, 2 * 320, bias=False)
            block.w2 = nn.Linear(320, 128, bias=False)
            block.ln = nn.LayerNorm(128)
        self.head = nn.Linear(128, 300, bias=False)


WIDE_ROLES = RoleTable.from_dict(
    {
        "wte.weight": "embedding",
        "wpe.weight": "position",
        "h.*.qkv.weight": {"parts": ["query", "key", "value"], "transposed": True},
        "h.*.qkv.bias": {"parts": ["bias", "bias", "bias"]},
        "h.*.o.weight": "mixer_out",
        "h.*.o.bias": "bias",
        "h.*.w13.weight": {"parts": ["ffn_gate", "ffn_up"]},
        "h.*.w2.weight": "ffn_out",
        "h.*.ln.weight": "norm",
        "h.*.ln.bias": "norm_bias",
        "head.weight": "head",
    }
)
# What a parameter is, by the end of its name; own are those that no scheme here sets.
PARTS: dict[str, dict[str, tuple[str, ...]]] = {
    "ssm": {
        "embedding.weight": ("emb",),
        "ssm.B.weight": ("v",),
        "ssm.C_proj.weight": ("attn",),
        "ssm.C_proj.bias": ("bias",),
        "mlp.gate.weight": ("w1",),
        "mlp.up.weight": ("w3",),
        "mlp.down.weight": ("ffn",),
        "head.weight": ("head",),
        "norm.weight": ("norm",),
        "norm1.weight": ("norm",),
        "norm2.weight": ("norm",),
        "norm.bias": ("bias",),
        "norm1.bias": ("bias",),
        "norm2.bias": ("bias",),
    },
    "rwkv": {
        "emb.weight": ("emb",),
        "att.receptance.weight": ("q",),
        "att.key.weight": ("k",),
        "att.value.weight": ("v",),
        "att.gate.weight": ("gate",),
        "att.output.weight": ("attn",),
        "ffn.key.weight": ("w1",),
        "ffn.receptance.weight": ("router",),
        "ffn.value.weight": ("ffn",),
        "head.weight": ("head",),
        "ln0.weight": ("norm",),
        "ln1.weight": ("norm",),
        "ln2.weight": ("norm",),
        "ln_out.weight": ("norm",),
        "ln0.bias": ("bias",),
        "ln1.bias": ("bias",),
        "ln2.bias": ("bias",),
        "ln_out.bias": ("bias",),
    },
    "wide": {
        "wte.weight": ("emb",),
        "wpe.weight": ("emb",),
        "qkv.weight": ("q", "k", "v"),
        "qkv.bias": ("bias", "bias", "bias"),
        "o.weight": ("attn",),
        "o.bias": ("bias",),
        "w13.weight": ("w1", "w3"),
        "w2.weight": ("ffn",),
        "ln.weight": ("norm",),
        "ln.bias": ("bias",),
        "head.weight": ("head",),
    },
}
MODELS = {
    "ssm": lambda structure: SSM(SSMConfig(128, 3, structure=structure)),
    "rwkv": lambda structure: RWKV(RWKVConfig(6, 128, 3, 32, structure=structure)),
    "wide": lambda _: Wide(),
}
# Every row on every model, a foreign one that cannot say what norm it has aside; weights of the other options of a
# scheme are drawn on one of them alone.
GEMMA = "transformers_gemma"
CASES = [(kind, i) for i in range(len(ROWS)) for kind in MODELS if (kind, ROWS[i][0]) != ("wide", GEMMA)]
DRAWN = [(kind, i) for kind, i in CASES if i in FIRST or kind == "wide"]
HEADS = {"ssm": (1, 128), "rwkv": (4, 32), "wide": (6, 32)}
INPUT, OUTPUT = ("q", "k", "v", "gate", "w1", "w3", "router"), ("attn", "ffn")


@cache
def model_of(kind: str, norm_offset: bool) -> nn.Module:
    """One model of a kind for all tests, since each fills it anew."""
    return MODELS[kind](Structure(norm_offset=norm_offset))


def planned(kind: str, scheme: str, options: dict[str, float]) -> tuple[nn.Module, Plan]:
    """A model and the plan for it."""
    model = model_of(kind, norm_offset=scheme == GEMMA)
    extra: dict[str, Any] = {"roles": WIDE_ROLES, "heads": HEADS["wide"]} if kind == "wide" else {}
    structure = asked(model, scheme, **extra, **options)
    return model, plan(model, scheme, structure=structure, **extra, **options)


def part_of(kind: str, entry: Entry) -> str:
    """What the parameter, or slice, of an entry is."""
    name, number = entry.parameter.name, entry.parameter.part[0]
    found = [parts for end, parts in PARTS[kind].items() if name == end or name.endswith("." + end)]
    assert len(found) <= 1, name
    return found[0][number] if found else "own"


def letters(kind: str, entry: Entry) -> dict[str, Any]:
    """What stands in a cell for this parameter: its shape is read from `entry`, its fans are not."""
    p = entry.parameter
    outputs, inputs = p.shape if len(p.shape) == 2 else (0, 0)
    if p.name.endswith("qkv.weight"):
        outputs, inputs = inputs, outputs
    heads, size = HEADS[kind]
    vocabulary = 300 if kind == "wide" else 256
    layer = int(p.name.split(".")[1]) if p.name.startswith(("blocks", "h.")) else None
    sizes = {"d": 128, "L": 3, "V": 200 if p.role == "position" else vocabulary, "nh": heads, "dh": size, "m": 2}
    return {**LETTERS, **sizes, "l": layer, "fi": inputs, "fo": outputs, "parts": p.part[1]}


def cell(cells: dict[str, str], part: str, prefix: str = "") -> str | None:
    """The cell of this part: its own, or that of all inputs or outputs."""
    group = "in" if part in INPUT else "out" if part in OUTPUT else part
    return cells.get(prefix + part, cells.get(prefix + group))


def expected(kind: str, cells: dict[str, str], entry: Entry) -> Cell | None:
    """What the row says of this parameter; None of a model's own."""
    part = part_of(kind, entry)
    text = "C(0)" if part == "bias" else cell(cells, part)
    return None if text is None else eval(text, {}, letters(kind, entry))


def failing(kind: str, cells: dict[str, str], model: nn.Module, chosen: Plan) -> list[str]:
    """The parameters, slice by slice, whose values do not fit the row."""
    parameters, wrong = dict(model.named_parameters()), []
    for entry in chosen.entries:
        said = expected(kind, cells, entry)
        drawn = slice_of(parameters[entry.parameter.name].detach(), entry.parameter)
        if said is not None and said.fails(drawn):
            wrong.append(f"{entry.parameter.name} {entry.parameter.part[0]}: {drawn.std():.5f} for {said}")
    return wrong


def test_every_framework_is_in_the_table() -> None:
    here = ("torchtitan", "OLMo", "Megatron-LM", "transformers", "lm-engine", "nanotron", "LLM Foundry", "Cerebras")
    known = {name for name, s in SCHEMES.items() if s.source.startswith(tuple(f"code:{x}" for x in (*here, "MaxText")))}
    assert known == {name for name, _, _ in ROWS}
    assert len(known) == 32


@pytest.mark.parametrize(("kind", "number"), DRAWN, ids=[f"{IDS[i]}-{kind}" for kind, i in DRAWN])
def test_drawn_weights_follow_the_row(kind: str, number: int) -> None:
    scheme, options, cells = ROWS[number]
    model, chosen = planned(kind, scheme, options)
    assert failing(kind, cells, chosen.apply_(model, 0), chosen) == []


@pytest.mark.parametrize(("scheme", "options", "cells"), [ROWS[i] for i in FIRST], ids=[IDS[i] for i in FIRST])
def test_five_per_cent_are_noticed_in_every_matrix(
    scheme: str, options: dict[str, float], cells: dict[str, str]
) -> None:
    model, chosen = planned("ssm", scheme, options)
    entries = tuple(replace(e, distribution=changed(e)) for e in chosen.entries)
    replace(chosen, entries=entries).apply_(model, 0)
    assert len(failing("ssm", cells, model, chosen)) == sum(p.ndim == 2 for p in model.parameters()) == 17


def changed(entry: Entry) -> Distribution:
    """What is drawn at random 5 % too small in the middle layer and 5 % too large elsewhere."""
    found = entry.distribution
    if found.kind in ("keep", "vector", "constant"):
        return found
    return found.times(0.95 if entry.parameter.layer == 1 else 1.05)


def test_another_shape_of_the_same_deviation_is_noticed() -> None:
    for text, other in [("N(1)", "T(1,3)"), ("T(1,2)", "N(1)"), ("J(1)", "N(1)"), ("U(1)", "J(1)"), ("J(1)", "U(1)")]:
        drawn = torch.randn(2**14, generator=torch.Generator().manual_seed(0))
        mine, theirs = eval(text, {}, LETTERS), eval(other, {}, LETTERS)
        limit = min(theirs.bound / theirs.std, 100)
        values = drawn.clamp(-limit, limit) if other != "U(1)" else torch.rand_like(drawn) * 2 - 1
        assert mine.fails(values / values.std() * mine.std), (text, other)


@pytest.mark.parametrize(("kind", "number"), CASES, ids=[f"{IDS[i]}-{kind}" for kind, i in CASES])
def test_multipliers_follow_the_row(kind: str, number: int) -> None:
    scheme, options, cells = ROWS[number]
    _, chosen = planned(kind, scheme, options)
    for entry in chosen.entries:
        part, known = part_of(kind, entry), letters(kind, entry)
        own = "norm" if "ln_x" in entry.parameter.name else part
        rate, eps, decay = (cell(cells, own, prefix) for prefix in ("lr ", "eps ", "wd "))
        matrix = part in (*INPUT, *OUTPUT, "emb", "head")
        assert entry.learning_rate == pytest.approx(eval(rate or "1", {}, known)), entry
        assert entry.eps == pytest.approx(eval(eps or "1", {}, known)), entry
        assert entry.weight_decay == float(decay or matrix), entry


@pytest.mark.parametrize(("scheme", "options", "cells"), ROWS, ids=IDS)
def test_forward_multipliers_follow_the_row(scheme: str, options: dict[str, float], cells: dict[str, str]) -> None:
    _, chosen = planned("rwkv", scheme, options)
    said = {key[2:]: eval(text, {}, {"d": 128, "m": 2, **LETTERS}) for key, text in cells.items() if key[:2] == "x "}
    assert chosen.forward == pytest.approx(said)


def test_only_gemma_needs_a_norm_of_its_own() -> None:
    for kind in ("ssm", "rwkv"):
        with pytest.raises(ValueError, match="needs a model with norm_offset = True"):
            plan(model_of(kind, norm_offset=False), GEMMA)
    for scheme in {name for name, _, _ in ROWS} - {GEMMA}:
        assert planned("wide", scheme, {})[1].needs == {}


def test_blocks_of_a_mixer_alone_have_one_branch() -> None:
    class Mixer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.emb = nn.Embedding(64, 128)
            self.layers = nn.ModuleList([nn.Linear(128, 128, bias=False) for _ in range(5)])

    roles = RoleTable.from_dict({"emb.weight": "embedding", "layers.*.weight": "mixer_out"})
    for scheme, options, std in [
        ("megatron_hybrid", {}, 0.02 / math.sqrt(5)),
        ("megatron_default", {}, 0.02 / math.sqrt(10)),
        ("transformers_mamba", {"rescale": True}, 128**-0.5 / math.sqrt(3 * 5)),
    ]:
        chosen = plan(Mixer(), scheme, roles, **options)
        assert [e.distribution.std() for e in chosen.entries[1:]] == pytest.approx([std] * 5)


def test_what_cannot_be_is_refused_in_one_line() -> None:
    for scheme, options, said in [
        ("megatron_mup", {"base_width": 0}, "base_width must be positive, got 0"),
        ("cerebras_mup", {"std": -1}, "std of scheme 'cerebras_mup' must be a finite number of at least 0, got -1"),
        ("olmo_mitchell", {"cutoff": 0}, "cutoff goes with kind 'truncated' and must be positive, got 0"),
        ("maxtext", {"scale": math.nan}, "scale of scheme 'maxtext' must be a finite number"),
    ]:
        with pytest.raises(ValueError, match=said):
            planned("ssm", scheme, options)
    outside = RoleTable.from_dict({"0.weight": "embedding", "1.weight": "mixer_out", "last": "query"})
    model = nn.Sequential(nn.Embedding(4, 4), nn.Linear(4, 4, bias=False))
    model.last = nn.Parameter(torch.empty(4, 4))
    with pytest.raises(ValueError, match="last needs the number of its layer in its name"):
        plan(model, "torchtitan_gpt_oss", outside)
