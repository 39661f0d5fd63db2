"""Every scheme against its formulas: the drawn weights, the multipliers and the needs.

TABLE says, cell by cell and apart from the schemes' own rules, how each of them fills a model. In a
cell stand d width, L layers, l layer from 0, V vocabulary, fi and fo the fans of the matrix, dh
head size, nh heads, parts how many matrices are fused in one parameter, and m = d / 64. T is cut
and not rescaled, J is cut at two and rescaled, O is orthogonal. Vectors of an RWKV have tests of
their own.
"""

import math
import re
from dataclasses import dataclass, replace
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import plkernel.models.init
from plkernel.models.init import SCHEMES, RoleTable, asked, plan
from plkernel.models.init.plan import Entry, Plan
from plkernel.models.layers import Structure
from plkernel.models.rwkv import RWKV, RWKVConfig
from plkernel.models.rwkv7 import RWKV7, RWKV7Config
from plkernel.models.ssm import SSM, SSMConfig

# of a standard deviation; 16384 normal numbers, the fewest of a matrix here, give it to 0.0055
TOLERANCE = 0.025
PAGE = Path(__file__).parents[3] / "docs" / "schemes.md"
KEPT = {2: 0.879626, 3: 0.986578}  # standard deviation of N(0, 1) cut at +-2 and +-3


@dataclass(frozen=True)
class Cell:
    """Expected draws: standard deviation; the bound that no value passes and some nears, none of N;
    or a value; or the one singular value of a matrix.
    """

    std: float = 0.0
    bound: float = math.inf
    value: float | None = None
    gain: float | None = None

    def fails(self, drawn: Tensor) -> bool:
        """True if these values cannot have come from here."""
        if self.value is not None:
            return bool((drawn - self.value).abs().max() > 1e-6 * abs(self.value))
        if self.gain is not None:
            return bool((torch.linalg.svdvals(drawn) / self.gain - 1).abs().max() > 1e-4)
        low, high = torch.aminmax(drawn)
        top = max(float(high), -float(low))
        beyond = top > self.bound * (1 + 1e-6) if self.bound < math.inf else top < 3.1 * self.std
        inside = self.bound < math.inf and top < 0.95 * self.bound
        tolerance = TOLERANCE if drawn.numel() > 2**12 else 0.2  # of a bias
        # std() takes ten times as long.
        std = math.sqrt(float(drawn.square().mean()) - float(drawn.mean()) ** 2)
        return beyond or inside or not math.isclose(std, self.std, rel_tol=tolerance)


LETTERS = {
    "N": lambda s: Cell(s),
    "T": lambda s, c: Cell(KEPT[c] * s, c * s),
    "J": lambda s: Cell(s, 2 * s / KEPT[2]),
    "U": lambda b: Cell(b / math.sqrt(3), b),
    "C": lambda x: Cell(value=x),
    "O": lambda g: Cell(gain=g),
    "sqrt": math.sqrt,
    "min": min,
    "max": max,
}
INPUT = ("q", "k", "v", "gate", "w1", "w3", "router")
OUTPUT = ("attn", "ffn")
GROUPS = {
    **dict.fromkeys(INPUT, "in"),
    **dict.fromkeys(OUTPUT, "out"),
    "first": "own",
    "decay": "own",
    "pos": "emb",
}
# Name and options; embedding, input, output and head; then other cells, of which `x`, `lr`, `eps`
# and `wd` multiply activations, rate, eps and weight decay.
TABLE = """
torchtitan_gpt_oss(); N(0.02); N(0.02/sqrt(2*(l+1))); N(0.02/sqrt(2*(l+1))); T(d**-0.5,3)
torchtitan_llama(); N(1); N(0.02); N(0.02/sqrt(2*(l+1))); T(d**-0.5,3);
    w3, router: N(0.02/sqrt(2*(l+1)))
torchtitan_llama(depth_init=False); N(1); N(0.02); N(0.02/sqrt(2*L)); T(d**-0.5,3);
    w3, router: N(0.02/sqrt(2*L))
olmo_normal(); N(0.02); N(0.02); N(0.02); N(0.02)
olmo_mitchell(); T(d**-0.5,3); T(d**-0.5,3); T((2*fi*(l+1))**-0.5,3); T(d**-0.5,3)
olmo_full_megatron(); T(0.02,3); T(0.02,3); T(0.02/sqrt(2*L),3); T(d**-0.5,3)
olmo_full_megatron(scale_embedding=True); T(0.02*sqrt(d),3); T(0.02,3); T(0.02/sqrt(2*L),3);
    T(d**-0.5,3)
megatron_default(); N(0.02); N(0.02); N(0.02/sqrt(2*L)); N(0.02)
megatron_hybrid(); N(0.02); N(0.02); N(0.02/sqrt(2*L)); N(0.02)
megatron_xavier_uniform(); U(sqrt(6/(V+d))); U(sqrt(6/(fi+parts*fo))); U(sqrt(6/(fi+fo)));
    U(sqrt(6/(V+d)))
megatron_mup(base_width=64); N(0.02); N(0.02/sqrt(m)); N(0.02/(sqrt(2*L)*sqrt(m))); N(0.02);
    lr in, lr out, x logits, eps in, eps out: 1/m
transformers_default(); N(0.02); N(0.02); N(0.02); N(0.02)
transformers_gpt2(); N(0.02); N(0.02); N(0.02/sqrt(2*L)); N(0.02)
transformers_clip(); N(0.02); N(d**-0.5/sqrt(2*L)); N(d**-0.5); N(d**-0.5);
    ffn: N(d**-0.5/sqrt(2*L)); w1, w3, router: N((2*d)**-0.5)
transformers_modernbert(); T(0.02,2); T(0.02,2); T(0.02/sqrt(2*L),2); T(0.02/sqrt(2*L),2)
transformers_t5(); N(1); N(d**-0.5); N(fi**-0.5); N(1); q: N((d*dh)**-0.5); attn: N((nh*dh)**-0.5);
    x logits: d**-0.5
transformers_t5(tied=False); N(1); N(d**-0.5); N(fi**-0.5); N(1); q: N((d*dh)**-0.5);
    attn: N((nh*dh)**-0.5)
transformers_gemma(); N(0.02); N(0.02); N(0.02); N(0.02); norm: C(0); needs: norm_offset=True;
    x embedding: sqrt(d)
transformers_mamba(); N(0.1); N(0.1); U(fi**-0.5); N(0.1)
transformers_mamba(rescale=True); N(0.1); N(0.1); U(fi**-0.5/sqrt(2*L)); N(0.1)
lm_engine_normal(); N(0.02); N(0.02); N(0.02/sqrt(2*L)); N(0.02)
lm_engine_fan_in(); N(0.02); N(fi**-0.5); N(fi**-0.5/sqrt(2*L)); N(0.02)
lm_engine_mup(base_width=64, embedding_multiplier=12, residual_multiplier=0.22); N(0.02);
    N(0.02/sqrt(m)); N(0.02/(sqrt(2*L)*sqrt(m))); N(0.02); lr in, lr out, lr own, x logits: 1/m;
    wd own: 1; x embedding: 12; x residual: 0.22
lm_engine_mup(); N(0.02); N(0.02/sqrt(0.5)); N(0.02/(sqrt(2*L)*sqrt(0.5))); N(0.02);
    lr in, lr out, lr own, x logits: 2; wd own: 1; x embedding, x residual: 1
nanotron_random_init(); N(0.025); N(0.025); N(0.025/sqrt(2*L)); N(0.025)
nanotron_spectral_mup(); N(1); N(fi**-0.5*min(1,sqrt(fo/fi))); N(fi**-0.5*min(1,sqrt(fo/fi)));
    N(fi**-0.5*min(1,sqrt(fo/fi))); lr in, lr out: fo/fi; lr head: V/d
llm_foundry_baseline(); N(0.02); N(0.02); N(0.02/sqrt(2*L)); N(0.02)
llm_foundry_small_init(); N(sqrt(2/(5*d))); N(sqrt(2/(5*d))); N(sqrt(2/(5*d))/sqrt(2*L));
    N(sqrt(2/(5*d)))
llm_foundry_neox_init(); N(sqrt(2/(5*d))); N(sqrt(2/(5*d))); N(2/(L*sqrt(d))); N(sqrt(2/(5*d)))
llm_foundry_kaiming_normal(); N(sqrt(2/d)); N(sqrt(2/fi)); N(sqrt(2/fi)/sqrt(2*L)); N(sqrt(2/d))
llm_foundry_kaiming_uniform(); U(sqrt(6/d)); U(sqrt(6/fi)); U(sqrt(6/fi)/sqrt(2*L)); U(sqrt(6/d))
llm_foundry_xavier_normal(); N(sqrt(2/(fi+fo))); N(sqrt(2/(fi+fo))); N(sqrt(2/(fi+fo))/sqrt(2*L));
    N(sqrt(2/(fi+fo)))
llm_foundry_xavier_uniform(gain=2); U(sqrt(24/(fi+fo))); U(sqrt(24/(fi+fo)));
    U(sqrt(24/(fi+fo))/sqrt(2*L)); U(sqrt(24/(fi+fo)))
cerebras_default(); T(0.02,2); T(0.02,2); T(0.02/sqrt(2*L),2); N(0.02)
cerebras_mup(base_width=64, embedding_multiplier=10, logits_alpha=0.5); T(0.08,2);
    T(0.08/sqrt(m),2); T(0.08/(sqrt(m)*sqrt(2*L)),2); N(0.02); lr in, lr out: 1/m; x embedding: 10;
    x logits: 0.5/m
maxtext(); N(d**-0.5); N(d**-0.5); N(fi**-0.5); J(d**-0.5); q: N((d*dh)**-0.5);
    w1, w3, router, ffn: J(fi**-0.5)
maxtext(tied=True); N(d**-0.5); N(d**-0.5); N(fi**-0.5); N(d**-0.5); q: N((d*dh)**-0.5);
    x logits: d**-0.5; w1, w3, router, ffn: J(fi**-0.5)
sp_torch_default(); N(1); U(fi**-0.5); U(fi**-0.5); U(fi**-0.5); bias: U(fi**-0.5)
sp_torch_default(normal_draws=True); N(d**-0.5); N(fi**-0.5); N(fi**-0.5); N(d**-0.5)
mup_table8(base_width=64); N(1); N(0.0625/sqrt(2)); N(0.0625/sqrt(2)); N(0.0625);
    bias: U(sqrt(m/fi)); x logits, lr in, lr out, lr first: 1/m; wd in, wd out: m
mup_table8(base_width=64, zero_readout=True, output_multiplier=3); N(1); N(0.0625/sqrt(2));
    N(0.0625/sqrt(2)); C(0); q: C(0); bias: U(sqrt(m/fi)); x logits: 3/m;
    lr in, lr out, lr first: 1/m; wd in, wd out: m
mup_table8(base_width=64, uniform_draws=True); N(1); U(fi**-0.5); U(fi**-0.5); U(64**-0.5);
    bias: U(sqrt(m/fi)); x logits, lr in, lr out, lr first: 1/m; wd in, wd out: m
mup_table3(base_width=64); N(1); N(fi**-0.5); N(fi**-0.5); N(8/128);
    lr in, lr out, lr first, lr head: 1/m; wd in, wd out, eps head, wd head: m
spectral(base_width=64); N(1); N(fi**-0.5*min(1,sqrt(fo/fi))); N(fi**-0.5*min(1,sqrt(fo/fi)));
    N(fi**-0.5*min(1,sqrt(fo/fi))); lr in, lr out, lr head: 64/fi
u_mup(); N(1); N(1); N(1); N(1); needs: unit_scaled=True; lr in, lr out: (fi*L)**-0.5;
    wd in, wd out: (fi*L)**0.5; lr norm, lr bias, lr own: 1 if l is None else L**-0.5;
    lr emb: d**-0.5; wd emb: d**0.5; x mixer.0: 3**-0.5; x ffn.0: 4**-0.5; x mixer.1: 5**-0.5;
    x ffn.1: 6**-0.5; x mixer.2: 7**-0.5; x ffn.2: 8**-0.5
gpt2(); N(0.02); N(0.02); N(0.02/sqrt(2*L)); N(0.02); pos: N(0.01)
trinity(); T(0.5*d**-0.5,3); T(0.5*d**-0.5,3); T(0.5*d**-0.5,3); T(0.5*d**-0.5,3); post: C(L**-0.5);
    needs: placement='sandwich'; x embedding: sqrt(d)
deepseek_v3(); N(0.006); N(0.006); N(0.006); N(0.006)
deepseek_v3(width_aware=True); N(0.5*d**-0.5); N(0.5*d**-0.5); N(0.5*d**-0.5); N(0.5*d**-0.5)
spike_scaled_embed(); N(sqrt(2/(5*d))); N(sqrt(2/(5*d))); N(sqrt(2/(5*d))/sqrt(2*L));
    N(sqrt(2/(5*d))); x embedding: sqrt(d)
deepnorm_decoder(); N(sqrt(2/(fi+fo))); N(sqrt(2/(fi+fo))); N(24**-0.25*sqrt(2/(fi+fo)));
    N(sqrt(2/(fi+fo))); v, w1, w3: N(24**-0.25*sqrt(2/(fi+fo)));
    needs: placement='post', residual=6**0.25
deepseek_v2(); N(0.006); N(0.006); N(0.006); N(0.006)
spike_embed_ln(); N(sqrt(2/(5*d))); N(sqrt(2/(5*d))); N(sqrt(2/(5*d))/sqrt(2*L)); N(sqrt(2/(5*d)));
    needs: norm='layer', embedding_norm=True
deepnorm_torchscale(); N(d**-0.5); U(fi**-0.5); U(24**-0.25*fi**-0.5); N(d**-0.5);
    v, w1, w3: U(24**-0.25*fi**-0.5); needs: placement='post', residual=6**0.25
small_init_scalenorm_fixnorm(); U(0.01); N(sqrt(2/(5*d))); N(sqrt(2/(5*d))); U(0.01);
    norm: C(sqrt(d)); needs: norm='scale', fixnorm=True
ds_init(); N(1); U(sqrt(6/(fi+fo)/(l+1))); U(sqrt(6/(fi+fo)/(l+1))); U(fi**-0.5)
ds_init(alpha=0.5); N(1); U(0.5*sqrt(6/(fi+fo)/(l+1))); U(0.5*sqrt(6/(fi+fo)/(l+1))); U(fi**-0.5)
critical_he(); N(1); N(fi**-0.5); N(fi**-0.5); N(fi**-0.5); w1, w3, ffn: N(sqrt(2/fi))
fixup(); N(1); N(sqrt(2/fi)*6**-0.5); C(0); C(0); needs: norm='none', gate=True, scalar_bias=True
fixup(matrices=3); N(1); N(sqrt(2/fi)*6**-0.25); C(0); C(0);
    needs: norm='none', gate=True, scalar_bias=True
t_fixup(); N(d**-0.5*27**-0.25); U(sqrt(6/(fi+fo))); U(27**-0.25*sqrt(6/(fi+fo)));
    U(sqrt(6/(fi+fo))); v, w1, w3: U(27**-0.25*sqrt(6/(fi+fo))); needs: norm='none'
rezero(); N(1); U(fi**-0.5); U(fi**-0.5); U(fi**-0.5); branch: C(0); needs: norm='none', gate=True
skip_init(); N(sqrt(2/d)); N(sqrt(2/fi)); N(sqrt(2/fi)); U(fi**-0.5); branch: C(0);
    needs: norm='none', gate=True
rwkv_blinkdl(); U(1e-4); O(1); C(0); O(0.5*sqrt(V/d)); k, gate: O(0.1); router: C(0); lr decay: 2;
    needs: norm='layer', embedding_norm=True
rwkv7_official(); U(1e-4); O(1); C(0); O(0.5*sqrt(V/d)); k: O(0.1); lr decay: 2;
    needs: norm='layer', embedding_norm=True
rwkv7_post(); U(1e-4); O(1); C(0); O(0.5*sqrt(V/d)); k: O(0.1); lr decay: 2;
    needs: norm='layer', embedding_norm=True
rwkv7_post(longest=4096, even=False); U(1e-4); O(1); C(0); O(0.5*sqrt(V/d)); k: O(0.1);
    lr decay: 2; needs: norm='layer', embedding_norm=True
rwkv_eagle_code_2023(); U(6e-4); O(sqrt(max(1,fo/fi))); C(0); O(0.5*sqrt(V/d)); router: C(0);
    needs: norm='layer', embedding_norm=True
rwkv_eagle_code_2023(learning_rate=1e-5); U(1e-5); O(sqrt(max(1,fo/fi))); C(0); O(0.5*sqrt(V/d));
    router: C(0); needs: norm='layer', embedding_norm=True
rwkv_finch_code_2024_02(); U(6e-4); O(sqrt(max(1,fo/fi))); C(0); O(0.5*sqrt(V/d)); router: C(0);
    needs: norm='layer', embedding_norm=True
rwkv_eagle_paper(); U(6e-4); O(fo/fi) if fo>fi else U(fi**-0.5); C(0); O(0.5); router: C(0);
    needs: norm='layer', embedding_norm=True
rwkv_finch_paper(); U(6e-4); O(fo/fi) if fo>fi else U(fi**-0.5); C(0); O(0.5); router: C(0);
    needs: norm='layer', embedding_norm=True
rwkv_naive(); N(1); U(fi**-0.5); U(fi**-0.5); N(1); ffn: U(0.5*sqrt(6/(fi+fo)));
    wd norm, wd bias, wd own: 1; needs: norm='rms', tied=True
"""


def parsed(text: str) -> tuple[str, dict[str, Any], dict[str, str]]:
    """Name, options and cells of a line."""
    head, *cells = text.split("; ")
    name, options = head.removesuffix(")").split("(", 1)
    values = dict(zip(("emb", "in", "out", "head"), cells[:4], strict=True))
    for keys, value in (cell.split(": ") for cell in cells[4:]):
        values |= dict.fromkeys(keys.split(", "), value)
    return name, eval(f"dict({options})"), values


ROWS = [parsed(line) for line in TABLE.strip().replace("\n    ", " ").splitlines()]
IDS = [f"{name}{'-'.join(['', *options])}" for name, options, _ in ROWS]
FIRST = [
    i for i, (name, _, _) in enumerate(ROWS) if name not in {other for other, _, _ in ROWS[:i]}
]


class Wide(nn.Module):
    """A model of someone else's: 6 heads of 32 on a width of 128, q, k, v in one (in, out) matrix,
    gate and up too.
    """

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
# The part that a parameter is, by the end of its name, apart from the tables of roles; all others
# are the model's own.
PARTS = {
    "emb": "embedding.weight emb.weight wte.weight",
    "pos": "wpe.weight",
    "q": "att.receptance.weight",
    "k": "att.key.weight",
    "v": "ssm.B.weight att.value.weight",
    "gate": "att.gate.weight",
    "attn": "ssm.C_proj.weight att.output.weight o.weight",
    "w1": "mlp.gate.weight ffn.key.weight",
    "w3": "mlp.up.weight",
    "router": "ffn.receptance.weight",
    "ffn": "mlp.down.weight ffn.value.weight w2.weight",
    "head": "head.weight",
    "bias": "ssm.C_proj.bias o.bias",
    "norm": (
        "norm.weight norm1.weight norm2.weight ln.weight ln0.weight ln1.weight ln2.weight"
        " ln_out.weight fixnorm.weight"
    ),
    "post": "post_norm.weight",
    "zero": (
        "norm.bias norm1.bias norm2.bias ln.bias ln0.bias ln1.bias ln2.bias ln_out.bias"
        " post_norm.bias shift"
    ),
    "branch": "join1.gate join2.gate",
    "first": "time_maa_w1 time_decay_w1",
    "decay": "time_decay att.w0",
}
ENDS = {end: part for part, ends in PARTS.items() for end in ends.split()}
FUSED = {"qkv.weight": ("q", "k", "v"), "qkv.bias": ("bias",) * 3, "w13.weight": ("w1", "w3")}
HEADS = {"ssm": (1, 128), "rwkv": (4, 32), "wide": (6, 32)}
FIXED = {"norm": "C(1)", "post": "C(1)", "branch": "C(1)", "bias": "C(0)", "zero": "C(0)"}


def rwkv_of(scheme: str) -> str:
    """The RWKV that a scheme is tried on: the only one that it is for, or Finch."""
    only = {"rwkv_eagle": "rwkv5", "rwkv7": "rwkv7"}
    return next((kind for start, kind in only.items() if scheme.startswith(start)), "rwkv6")


CASES = [
    (kind, i)
    for i, (name, _, _) in enumerate(ROWS)
    for kind in ("ssm", rwkv_of(name), "wide")
    if i in FIRST or kind == "wide"
]


@cache
def model_of(kind: str, structure: str) -> nn.Module:
    """One model of a kind and structure for all tests, since each fills it anew."""
    if kind == "wide":
        return Wide()
    options = eval(f"dict({structure})") if structure else {}
    if kind == "ssm":
        return SSM(SSMConfig(128, 3, structure=Structure(**options)))
    options.pop("embedding_norm", None)  # an RWKV has it, as ln0
    if kind == "rwkv7":
        return RWKV7(RWKV7Config(128, 3, 32, structure=Structure(**options)))
    return RWKV(RWKVConfig(int(kind[-1]), 128, 3, 32, structure=Structure(**options)))


def planned(kind: str, number: int) -> tuple[nn.Module, Plan, dict[str, str]]:
    """A model, the plan for it, and the cells of the row."""
    scheme, options, cells = ROWS[number]
    model = model_of(kind, cells.get("needs", ""))
    extra: dict[str, Any] = {"roles": WIDE_ROLES, "heads": HEADS["wide"]} if kind == "wide" else {}
    structure = asked(model, scheme, **extra, **options)
    return model, plan(model, scheme, structure=structure, **extra, **options), cells


def part_of(entry: Entry) -> str:
    """The part that the parameter, or slice, of an entry is."""
    name = entry.parameter.name
    fused = [parts for end, parts in FUSED.items() if name.endswith(end)]
    if fused:
        return fused[0][entry.parameter.part[0]]
    return next((part for end, part in ENDS.items() if f".{name}".endswith(f".{end}")), "own")


def letters(kind: str, entry: Entry) -> dict[str, Any]:
    """The letters of a cell for this parameter: its shape is read from `entry`, its fans are
    not.
    """
    p = entry.parameter
    outputs, inputs = (
        p.shape if len(p.shape) == 2 else (0, 192 if p.name.endswith(".o.bias") else 128)
    )
    if p.name.endswith("qkv.weight"):
        outputs, inputs = inputs, outputs
    heads, size = HEADS[kind.rstrip("567")]
    vocabulary = 200 if p.role == "position" else 300 if kind == "wide" else 256
    layer = int(p.name.split(".")[1]) if p.name.startswith(("blocks", "h.")) else None
    if p.role in ("embedding", "position"):
        inputs = 128
        outputs = vocabulary
    sizes = {
        "d": 128,
        "L": 3,
        "V": vocabulary,
        "nh": heads,
        "dh": size,
        "m": 2,
        "size": max(p.shape, default=1),
    }
    return {**LETTERS, **sizes, "l": layer, "fi": inputs, "fo": outputs, "parts": p.part[1]}


def cell(cells: dict[str, str], part: str, prefix: str = "") -> str | None:
    """The cell of this part: its own, or that of its group."""
    return cells.get(prefix + part, cells.get(prefix + GROUPS.get(part, part)))


def failing(kind: str, cells: dict[str, str], model: nn.Module, chosen: Plan) -> list[str]:
    """The parameters, slice by slice, whose values do not fit the row."""
    parameters = dict(model.named_parameters())
    wrong = []
    for entry in chosen.entries:
        text = cell(FIXED | cells, part_of(entry))
        if text is not None:
            expected = eval(text, {}, letters(kind, entry))
            drawn = entry.parameter.slice_of(parameters[entry.parameter.name].detach())
            if expected.fails(drawn):
                wrong.append(f"{entry.parameter.label}: {drawn.std():.5f} for {expected}")
    return wrong


def test_every_scheme_is_in_the_table() -> None:
    assert {name for name, _, _ in ROWS} == set(SCHEMES)
    assert len(SCHEMES) == 59


def listed() -> list[list[str]]:
    """The cells of the table of schemes in the documentation."""
    lines = PAGE.read_text().splitlines()
    first = lines.index("| row | source | here | tested by |") + 2
    rows = takewhile(lambda line: line.startswith("|"), lines[first:])
    return [line.strip("| ").split(" | ") for line in rows]


def test_the_page_lists_every_scheme_with_its_source_and_a_row_of_the_table() -> None:
    ours = []
    for _, source, here, tested_by in listed():
        name, *options = re.findall(r"`([^`]+)`", here)
        test = tested_by.strip("`")
        ours.append("-".join((name, *options)))
        if name in SCHEMES:
            assert source == SCHEMES[name].source, name
            assert set(options) <= set(SCHEMES[name].options), name
            assert test in IDS, name
            assert ROWS[IDS.index(test)][0] == name
        else:
            assert callable(getattr(plkernel.models.init, name)), name
            assert name in (Path(__file__).parent / test).read_text(), name
    assert set(ours) == {*SCHEMES, "torchtitan_llama-depth_init", "tune_jacobians_"}
    assert len(ours) == len(set(ours))
    rows = [row for row, *_ in listed()]
    assert len(set(rows)) == len(rows)
    assert re.findall(r"These are (\d+) initialisations", PAGE.read_text()) == [str(len(rows))]


EACH_CASE = pytest.mark.parametrize(
    ("kind", "number"), CASES, ids=[f"{IDS[i]}-{kind}" for kind, i in CASES]
)


@EACH_CASE
def test_weights_follow_the_row(kind: str, number: int) -> None:
    model, chosen, cells = planned(kind, number)
    chosen.apply_(model, 0)
    assert failing(kind, cells, model, chosen) == []


@EACH_CASE
def test_multipliers_follow_the_row(kind: str, number: int) -> None:
    """Of learning rate, eps and weight decay, which acts on matrices alone where no cell says so;
    of activations; and what the model must have.
    """
    _, chosen, cells = planned(kind, number)
    for entry in chosen.entries:
        part = part_of(entry)
        matrix = part in (*INPUT, *OUTPUT, "emb", "pos", "head")
        if part in ("zero", "post") or ".ln_x." in entry.parameter.name:
            part = "norm"
        rate = cell(cells, part, "lr ") or "1"
        eps = cell(cells, part, "eps ") or "1"
        decay = cell(cells, part, "wd ") or ("1" if matrix else "0")
        known = letters(kind, entry)
        assert entry.learning_rate == pytest.approx(eval(rate, {}, known)), entry
        assert entry.eps == pytest.approx(eval(eps, {}, known)), entry
        assert entry.weight_decay == pytest.approx(eval(decay, {}, known)), entry
    told = {
        key.removeprefix("x "): eval(text, {}, {"d": 128, "m": 2, **LETTERS})
        for key, text in cells.items()
        if key.startswith("x ")
    }
    assert chosen.forward == pytest.approx(told)
    assert chosen.needs == pytest.approx(eval(f"dict({cells.get('needs', '')})"))


@pytest.mark.parametrize("number", FIRST, ids=[IDS[i] for i in FIRST])
def test_five_per_cent_are_noticed_in_every_matrix(number: int) -> None:
    """All that is drawn 5 % too small in the middle layer and 5 % too large elsewhere."""
    model, chosen, cells = planned("ssm", number)
    entries = []
    touched = []
    for entry in chosen.entries:
        fixed = entry.distribution.kind in ("keep", "vector", "constant")
        if not fixed and len(entry.parameter.shape) == 2:
            factor = 0.95 if entry.parameter.layer == 1 else 1.05
            entry = replace(entry, distribution=entry.distribution.times(factor))
            touched.append(entry.parameter.label)
        entries.append(entry)
    replace(chosen, entries=tuple(entries)).apply_(model, 0)
    assert len(touched) >= 10
    assert [line.partition(":")[0] for line in failing("ssm", cells, model, chosen)] == touched


def test_branches_of_u_mup_contribute_as_asked() -> None:
    """Composing (x + tau f) / sqrt(1 + tau**2): shares of variance in the end, against the
    embedding's.
    """
    model = model_of("ssm", "unit_scaled=True")
    options = {"residual_mult": 0.5, "residual_attn_ratio": 2}
    forward = plan(model, "u_mup", structure=asked(model, "u_mup", **options), **options).forward
    shares = {"embedding": 1.0}
    for name, tau in forward.items():
        shares = {key: value / (1 + tau**2) for key, value in shares.items()} | {
            name: tau**2 / (1 + tau**2)
        }
    mixer, ffn = ([shares[f"{kind}.{layer}"] for layer in range(3)] for kind in ("mixer", "ffn"))
    assert mixer == pytest.approx([mixer[0]] * 3)
    assert ffn == pytest.approx([mixer[0] / 2**2] * 3)
    assert (sum(mixer) + sum(ffn)) / 2 / shares["embedding"] == pytest.approx(0.5**2)


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
        ("transformers_mamba", {"rescale": True}, 128**-0.5 / math.sqrt(5)),
    ]:
        chosen = plan(Mixer(), scheme, roles, **options)
        assert [e.distribution.scale for e in chosen.entries[1:]] == pytest.approx([std] * 5)


@pytest.mark.parametrize(
    ("scheme", "options", "message"),
    [
        ("megatron_mup", {"base_width": 0}, "base_width must be positive, got 0"),
        ("spectral", {"base_width": 0}, "base_width must be positive, got 0"),
        ("olmo_mitchell", {"cutoff": 0}, "cutoff must be positive, got 0"),
        ("fixup", {"matrices": 1}, "matrices must be at least 2, got 1"),
        (
            "mup_table8",
            {"uniform_draws": True, "std": 0.02},
            "std must be left out with uniform_draws, .* got 0.02",
        ),
    ],
)
def test_options_that_cannot_be_are_refused(
    scheme: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        plan(model_of("ssm", ""), scheme, **options)


def test_a_scheme_by_depth_needs_the_number_of_a_layer() -> None:
    roles = RoleTable.from_dict({"0.weight": "embedding", "1.weight": "mixer_out", "last": "query"})
    model = nn.Sequential(nn.Embedding(4, 4), nn.Linear(4, 4, bias=False))
    model.last = nn.Parameter(torch.empty(4, 4))
    with pytest.raises(ValueError, match="last must have the number of its layer in its name"):
        plan(model, "torchtitan_gpt_oss", roles)


@pytest.mark.parametrize(("mult", "ratio"), [(1.0, 1.0), (0.5, 2.0)])
def test_u_mup_is_that_of_its_package(mult: float, ratio: float) -> None:
    """tau of every branch, rates and weight decay of a decoder of the same sizes, by
    unit_scaling.
    """
    peer = pytest.importorskip(
        "unit_scaling", reason="the package of the paper, unit-scaling, is not installed"
    )
    from unit_scaling.optim import lr_scale_func_adam, scaled_parameters

    model = model_of("ssm", "unit_scaled=True")
    options = {"residual_mult": mult, "residual_attn_ratio": ratio}
    chosen = plan(model, "u_mup", structure=asked(model, "u_mup", **options), **options)
    rule = peer.transformer_residual_scaling_rule(residual_mult=mult, residual_attn_ratio=ratio)
    assert list(chosen.forward.values()) == pytest.approx([rule(i, 6) for i in range(6)])
    decoder = peer.TransformerDecoder(128, 256, layers=3, heads=4)
    names = {id(parameter): name for name, parameter in decoder.named_parameters()}
    groups = scaled_parameters(decoder.parameters(), lr_scale_func_adam, lr=1.0, weight_decay=1.0)
    theirs = {
        names[id(p)]: (float(g["lr"]), float(g["weight_decay"]))
        for g in groups
        for p in g["params"]
    }
    ours = {
        entry.parameter.name: (entry.learning_rate, entry.weight_decay) for entry in chosen.entries
    }
    for name, other in {
        "embedding.weight": "embedding.weight",
        "head.weight": "projection.weight",
        "blocks.1.ssm.C_proj.weight": "layers.1.mhsa.linear_o.weight",
        "blocks.1.mlp.up.weight": "layers.1.mlp.linear_1.weight",
    }.items():
        assert ours[name] == pytest.approx(theirs[other]), name
