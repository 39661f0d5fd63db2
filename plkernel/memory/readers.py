"""Table of families of layers: the tensors that hold their decays, by name, and the formula for the decays.

To add a family, append a Reader: the first whose patterns fit a layer reads it. Names are those of transformers,
flash-linear-attention and the authors' own code, with any prefix before the module's own part of a name.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from plkernel.memory import formulas
from plkernel.memory.formulas import Floats, Given, Start

BY_INPUT = "the decay depends on the input"
INPUT = f"{BY_INPUT}: shown is its static part, the bias"
DELTA = "a delta rule also forgets by erasing what it overwrites: half-lives are upper bounds"
FIXED = "decays are fixed, not learned"
MAGNITUDE = "of complex decays the magnitude is shown"


@dataclass(frozen=True)
class Argument:
    """First argument of a torch function, which replaces a static tensor at every token of a running model.

    role       of the static tensor
    functions  names of the functions that modules of this family call with it
    time       dimension of the tokens; calls with another length there are ignored
    call       which of the remaining calls, from 0; None for all of them, each with some of the channels
    """

    role: str
    functions: tuple[str, ...]
    time: int = 1
    call: int | None = 0


@dataclass(frozen=True)
class Reader:
    """Layers of one kind.

    family   name of the family
    tensors  names of the tensors to read, by role in the formula; {at} stands for the module
    rate     rates -ln a from these tensors
    formula  the same in words
    source   paper and code
    beside   names of which one must be in the checkpoint, if any are given
    without  names that must be absent
    models   model types of config.json, if restricted
    heads    the first dimension of the rates is that of the heads
    notes    cautions about the half-lives
    starts   exact initialisation of the tensor of a role, where there is one
    anchor   pattern that the name of one tensor of every such layer matches; that of the first of `tensors` if empty
    fixed    rates that config.json defines, for decays that are not learned
    taken    where a running module of transformers or plkernel computes decays that depend on the input
    """

    family: str
    tensors: Mapping[str, str]
    rate: Callable[[Given], Floats]
    formula: str
    source: str
    beside: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    heads: bool = False
    notes: tuple[str, ...] = ()
    starts: Mapping[str, Start] = field(default_factory=dict)
    anchor: str = ""
    fixed: Callable[[Given], Floats] | None = None
    taken: Argument | None = None

    @property
    def pattern(self) -> str:
        """Pattern of one tensor's name in every layer of the family; its groups fill the templates of names."""
        return self.anchor or AT + re.escape(next(iter(self.tensors.values())).removeprefix("{at}."))


AT = r"(?P<at>.+)\."
A_LOG = {"A_log": "{at}.A_log", "dt_bias": "{at}.dt_bias"}
STEPPED = "a = exp(-exp(A_log) softplus(dt_bias))"
SOFTPLUS = Argument("dt_bias", ("softplus",))


def _mamba(bias: str, heads: bool) -> Reader:
    return Reader(
        "Mamba",
        {"A_log": "{at}.A_log", "dt_bias": bias},
        formulas.mamba,
        f"{STEPPED}, per channel and state",
        "arXiv 2312.00752; transformers: modeling_mamba.py (Falcon-Mamba, Jamba, Zamba alike)",
        heads=heads,
        notes=(INPUT,),
        starts={"A_log": formulas.counted},
        taken=Argument("dt_bias", ("softplus",), time=-1, call=None),  # Zamba calls it once for each head
    )


def _rg_lru(parameter: str, gate: str) -> Reader:
    return Reader(
        "RG-LRU",
        {"Lambda": f"{{at}}.{parameter}", "gate_bias": f"{{at}}.{gate}"},
        formulas.rg_lru,
        "a = exp(-8 r softplus(Lambda)), r = sigmoid(gate bias)",
        "arXiv 2402.19427; transformers: modeling_recurrent_gemma.py",
        heads=True,
        notes=(INPUT,),
        taken=Argument("gate_bias", ("sigmoid",), call=1),  # the first call is that of the input gate
    )


def _rwkv7(name: str, code: str) -> Reader:
    return Reader(
        "RWKV-7",
        {"w": f"{{at}}.{name}"},
        formulas.rwkv7,
        "a = exp(-exp(-1/2) sigmoid(w))",
        f"arXiv 2503.14456; {code}",
        beside=("{at}.r_k",),
        notes=(INPUT, DELTA),
        starts={"w": formulas.rwkv7_start},
        taken=Argument("w", ("sigmoid",)),
    )


def _xlstm(name: str, rate: Callable[[Given], Floats]) -> Reader:
    return Reader(
        "xLSTM",
        {"bias": f"{{at}}.{name}.bias"},
        rate,
        "a = sigmoid(forget-gate bias), soft-capped as gate_soft_cap says",
        "arXiv 2503.13427; transformers: modeling_xlstm.py",
        heads=True,
        notes=(INPUT, "a rising input gate outweighs what is old beyond the decay shown"),
        starts={"bias": formulas.xlstm} if rate is formulas.forget_gate else {},
    )


def _exponential(
    family: str, tensor: str, formula: str, source: str, start: Start | None = None, **more: object
) -> Reader:
    """Family with a = exp(-exp(w))."""
    starts = {} if start is None else {"w": start}
    return Reader(family, {"w": tensor}, formulas.double_exponential, formula, source, starts=starts, **more)  # type: ignore[arg-type]


RWKV, EAGLE = "a = exp(-exp(time_decay))", "arXiv 2404.05892; BlinkDL/RWKV-LM: RWKV-v5/src/model.py"
TIME_DECAY = "{at}.time_decay", RWKV

READERS = (
    _mamba("{at}.dt_proj.bias", heads=False),
    _mamba("{at}.dt_proj_bias", heads=True),
    Reader(
        "Kimi Delta Attention",
        A_LOG,
        formulas.gated_channels,
        f"{STEPPED}, per channel; exp(b sigmoid(exp(A_log) dt_bias)) with a lower bound b",
        "arXiv 2510.26692; transformers: modeling_kimi_linear.py; fla: layers/kda.py",
        beside=("{at}.f_a_proj.weight", "{at}.f_proj.0.weight", "{at}.f_proj.weight"),
        heads=True,
        notes=(INPUT, DELTA),
        taken=Argument("dt_bias", ("softplus", "exp")),
    ),
    Reader(
        "gated delta net",
        A_LOG,
        formulas.gated_delta,
        f"{STEPPED}, per head",
        "arXiv 2412.06464; transformers: modeling_qwen3_next.py; fla: layers/gated_deltanet.py",
        beside=(
            *("{at}.b_proj.weight", "{at}.in_proj_ba.weight", "{at}.in_proj_b.weight"),
            *("{at}.shared_b.weight", "{at}.b_proj.0.weight"),  # mixture of memories
        ),
        heads=True,
        notes=(INPUT, DELTA),
        starts={"dt_bias": formulas.ones},
        taken=SOFTPLUS,
    ),
    Reader(
        "Mamba-2",
        A_LOG,
        formulas.mamba2,
        f"{STEPPED}, per head; softplus within time_step_limit",
        "arXiv 2405.21060; transformers: modeling_mamba2.py (Bamba, Falcon-H1, Granite-4, Nemotron-H, Zamba2 alike)",
        heads=True,
        notes=(INPUT,),
        starts={"A_log": formulas.counted, "dt_bias": formulas.ones},
        taken=SOFTPLUS,
    ),
    Reader(
        "Mamba-3",
        {"dt_bias": "{at}.dt_bias"},
        formulas.mamba3,
        "a = exp(-softplus(dt_bias) softplus(A)), per head; shown at A = 0",
        "fla: layers/mamba3.py",
        models=("mamba3",),
        heads=True,
        notes=(INPUT,),
    ),
    Reader(
        "Mesa net",
        {"bias": "{at}.a_proj.bias"},
        formulas.plain_gate,
        "a = sigmoid(bias), per head",
        "arXiv 2506.05233; fla: layers/mesa_net.py",
        beside=("{at}.lambda_params",),
        heads=True,
        notes=(INPUT, DELTA),
    ),
    Reader(
        "forgetting transformer",
        {"bias": "{at}.f_proj.bias"},
        formulas.plain_gate,
        "weights of attention are scaled by a = sigmoid(bias) per token, per head",
        "arXiv 2503.02130; fla: layers/forgetting_attn.py",
        models=("forgetting_transformer",),
        heads=True,
        notes=(INPUT,),
    ),
    _rg_lru("recurrent_param", "recurrent_gate_bias"),
    _rg_lru("a_param", "a_gate.b"),
    _exponential(
        "RWKV-6",
        *TIME_DECAY,
        EAGLE,
        formulas.rwkv5,
        beside=("{at}.time_decay_w1", "{at}.time_decay_w2"),
        notes=(INPUT,),
        taken=Argument("w", ("exp",)),
    ),
    _exponential(
        "RWKV-6",
        "{at}.w_proj.linear.lora.2.bias",
        "a = exp(-exp(w))",
        "arXiv 2404.05892; fla: layers/rwkv6.py",
        formulas.rwkv5,
        notes=(INPUT,),
    ),
    _exponential("RWKV-5", *TIME_DECAY, EAGLE, formulas.rwkv5, beside=("{at}.ln_x.weight",), heads=True),
    _exponential("RWKV-4", *TIME_DECAY, "arXiv 2305.13048; transformers: modeling_rwkv.py", formulas.rwkv4),
    _rwkv7("w0", "BlinkDL/RWKV-LM: RWKV-v7"),
    _rwkv7("w_lora.lora.2.bias", "fla: layers/rwkv7.py"),
    Reader(
        "lightning attention",
        {"slopes": "{at}.slope_rate"},
        formulas.slopes,
        "a = exp(-slope_rate), per head",
        "arXiv 2501.08313; transformers: modeling_minimax.py",
        heads=True,
        notes=(FIXED,),
        fixed=formulas.lightning,
    ),
    Reader(
        "lightning attention",
        {},
        formulas.lightning,
        "a = exp(-2**(-8 h / H) (1 - layer / (layers - 1))), h = 1..H, from config.json",
        "arXiv 2501.08313; transformers: modeling_minimax.py",
        anchor=rf"{AT}output_gate\.weight",
        without=("{at}.slope_rate",),
        models=("minimax", "minimax_text_01", "MiniMaxText01"),
        heads=True,
        notes=(FIXED,),
    ),
    Reader(
        "RetNet",
        {},
        formulas.retnet,
        "a = 1 - 2**(-5 - h), h = 0..H-1, from config.json",
        "arXiv 2307.08621; fla: ops/retention",
        anchor=rf"{AT}g_proj\.weight",
        models=("retnet",),
        heads=True,
        notes=(FIXED,),
    ),
    _xlstm("fgate_preact", formulas.forget_gate),
    _xlstm("ifgate_preact", formulas.fused_forget_gate),
    _xlstm("fgate", formulas.forget_gate),
    Reader(
        "GLA",
        {"bias": "{at}.gk_proj.1.bias"},
        formulas.gla,
        "a = sigmoid(bias)**(1/16)",
        "arXiv 2312.06635; fla: layers/gla.py",
        notes=(INPUT,),
    ),
    Reader(
        "HGRN",
        {"lower_bounds": "{model}.lower_bounds"},
        formulas.hgrn,
        "a = l + (1 - l) / 2, l the lower bound: a softmax of lower_bounds summed over layers",
        "arXiv 2311.04823 and 2404.07904; fla: models/hgrn, models/hgrn2",
        anchor=r"(?P<model>.+)\.layers\.\d+\.attn\.f_proj\.weight",
        notes=(f"{BY_INPUT}: shown is a gate half open above its lower bound",),
    ),
    Reader(
        "S4D",
        {"log_dt": "{at}.log_dt", "log_A_real": "{at}.log_A_real"},
        formulas.s4d,
        "|a| = exp(-exp(log_dt) exp(log_A_real)), per channel and state",
        "arXiv 2206.11893; state-spaces/s4: models/s4/s4d.py",
        notes=(MAGNITUDE,),
    ),
    Reader(
        "S5",
        {"Lambda_re": "{at}.Lambda_re", "log_step": "{at}.log_step"},
        formulas.s5,
        "|a| = exp(Lambda_re exp(log_step)), per state",
        "arXiv 2208.04933; lindermanlab/S5: s5/ssm.py",
        notes=(MAGNITUDE,),
    ),
    _exponential(
        "LRU",
        "{at}.nu_log",
        "|a| = exp(-exp(nu_log))",
        "arXiv 2303.06349, appendix A",
        notes=(MAGNITUDE,),
    ),
)

DECAYS = ("A_log", "time_decay", "recurrent_param", "slope_rate", "nu_log", "log_A_real", "Lambda_re", "dt_bias")
"""Last parts of names that only decays have: a tensor so named that no reader takes is reported as unread."""
