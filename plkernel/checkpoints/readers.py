"""The table of readers: which tensors hold the decays of a family of layers, by name, and the formula for them.

To add one, append a Reader: the first whose patterns fit a layer reads it. Names are those of transformers,
flash-linear-attention and the authors' own code, whatever stands before the module's own part of a name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from plkernel.checkpoints import formulas, starts
from plkernel.checkpoints.formulas import Floats, Given
from plkernel.checkpoints.running import Argument
from plkernel.checkpoints.starts import Start

BY_INPUT = "the decay depends on the input"
INPUT = f"{BY_INPUT}: shown is its static part, the bias"
DELTA = "a delta rule also forgets by erasing what it overwrites: half-lives are upper bounds"
FIXED = "decays are fixed, not learned"
MAGNITUDE = "of complex decays the magnitude is shown"


@dataclass(frozen=True)
class Reader:
    """Layers of one kind.

    family   what they are called
    anchor   a pattern that the name of one tensor of every such layer matches as a whole
    tensors  name of each tensor that is read, by its role in the formula; {GROUP} stands for a group of the anchor
    rate     the rates -ln a, of what was read
    formula  the same in words
    source   paper and code
    beside   of these names, if there are any, one must be in the checkpoint too
    without  of these names none may be there
    models   of these model types, if there are any, config.json must say one
    heads    whether the first dimension of the rates is that of the heads
    notes    what to know of the half-lives
    starts   what the tensor of a role is initialised to, where that is known exactly
    fixed    the rates as they must be, where config.json says enough; None there where it does not
    taken    of decays that depend on the input, where a running module of transformers or ours computes them
    """

    family: str
    anchor: str
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
    fixed: Callable[[Given], Floats] | None = None
    taken: Argument | None = None


MINIMAX = ("minimax", "minimax_text_01", "MiniMaxText01")
A_LOG = {"A_log": "{at}.A_log", "dt_bias": "{at}.dt_bias"}
STEPPED = "a = exp(-exp(A_log) softplus(dt_bias))"
RWKV = "a = exp(-exp({}))".format
SOFTPLUS = Argument("dt_bias", ("softplus",))

READERS = (
    *(
        Reader(
            "Mamba",
            r"(?P<at>.+)\.A_log",
            {"A_log": "{at}.A_log", "dt_bias": bias},
            formulas.mamba,
            f"{STEPPED}, per channel and state",
            "arXiv 2312.00752; transformers: modeling_mamba.py (Falcon-Mamba, Jamba, Zamba alike)",
            heads=bias.endswith("dt_proj_bias"),
            notes=(INPUT,),
            starts={"A_log": starts.counted},
            taken=Argument("dt_bias", ("softplus",), time=-1, call=None),  # Zamba has one for each head
        )
        for bias in ("{at}.dt_proj.bias", "{at}.dt_proj_bias")
    ),
    Reader(
        "Kimi Delta Attention",
        r"(?P<at>.+)\.A_log",
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
        r"(?P<at>.+)\.A_log",
        A_LOG,
        formulas.gated_delta,
        f"{STEPPED}, per head",
        "arXiv 2412.06464; transformers: modeling_qwen3_next.py; fla: layers/gated_deltanet.py",
        beside=("{at}.b_proj.weight", "{at}.in_proj_ba.weight", "{at}.in_proj_b.weight"),
        heads=True,
        notes=(INPUT, DELTA),
        starts={"dt_bias": starts.ones},
        taken=SOFTPLUS,
    ),
    Reader(
        "Mamba-2",
        r"(?P<at>.+)\.A_log",
        A_LOG,
        formulas.mamba2,
        f"{STEPPED}, per head; softplus within time_step_limit",
        "arXiv 2405.21060; transformers: modeling_mamba2.py (Bamba, Falcon-H1, Granite-4, Nemotron-H, Zamba2 alike)",
        heads=True,
        notes=(INPUT,),
        starts={"A_log": starts.counted, "dt_bias": starts.ones},
        taken=SOFTPLUS,
    ),
    *(
        Reader(
            "RG-LRU",
            rf"(?P<at>.+)\.{parameter}",
            {"Lambda": f"{{at}}.{parameter}", "gate_bias": f"{{at}}.{gate}"},
            formulas.rg_lru,
            "a = exp(-8 r softplus(Lambda)), r = sigmoid(gate bias)",
            "arXiv 2402.19427; transformers: modeling_recurrent_gemma.py",
            heads=True,
            notes=(INPUT,),
            taken=Argument("gate_bias", ("sigmoid",), call=1),  # the first is that of the input gate
        )
        for parameter, gate in (("recurrent_param", "recurrent_gate_bias"), ("a_param", "a_gate.b"))
    ),
    Reader(
        "RWKV-6",
        r"(?P<at>.+)\.time_decay",
        {"w": "{at}.time_decay"},
        formulas.double_exponential,
        RWKV("time_decay"),
        "arXiv 2404.05892; BlinkDL/RWKV-LM: RWKV-v5/src/model.py",
        beside=("{at}.time_decay_w1", "{at}.time_decay_w2"),
        notes=(INPUT,),
        starts={"w": starts.rwkv5},
        taken=Argument("w", ("exp",)),
    ),
    Reader(
        "RWKV-6",
        r"(?P<at>.+)\.w_proj\.linear\.lora\.2\.bias",
        {"w": "{at}.w_proj.linear.lora.2.bias"},
        formulas.double_exponential,
        RWKV("w"),
        "arXiv 2404.05892; fla: layers/rwkv6.py",
        notes=(INPUT,),
        starts={"w": starts.rwkv5},
    ),
    Reader(
        "RWKV-5",
        r"(?P<at>.+)\.time_decay",
        {"w": "{at}.time_decay"},
        formulas.double_exponential,
        RWKV("time_decay"),
        "arXiv 2404.05892; BlinkDL/RWKV-LM: RWKV-v5/src/model.py",
        beside=("{at}.ln_x.weight",),
        heads=True,
        starts={"w": starts.rwkv5},
    ),
    Reader(
        "RWKV-4",
        r"(?P<at>.+)\.time_decay",
        {"w": "{at}.time_decay"},
        formulas.double_exponential,
        RWKV("time_decay"),
        "arXiv 2305.13048; transformers: modeling_rwkv.py",
        starts={"w": starts.rwkv4},
    ),
    *(
        Reader(
            "RWKV-7",
            rf"(?P<at>.+)\.{name}",
            {"w": "{at}." + name.replace("\\", "")},
            formulas.rwkv7,
            "a = exp(-exp(-1/2) sigmoid(w))",
            f"arXiv 2503.14456; {code}",
            beside=("{at}.r_k",),
            notes=(INPUT, DELTA),
            starts={"w": starts.rwkv7},
            taken=Argument("w", ("sigmoid",)),
        )
        for name, code in (
            (r"w0", "BlinkDL/RWKV-LM: RWKV-v7"),
            (r"w_lora\.lora\.2\.bias", "fla: layers/rwkv7.py"),
        )
    ),
    Reader(
        "lightning attention",
        r"(?P<at>.+)\.slope_rate",
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
        r"(?P<at>.+)\.output_gate\.weight",
        {},
        formulas.lightning,
        "a = exp(-2**(-8 h / H) (1 - layer / (layers - 1))), h = 1..H, from config.json",
        "arXiv 2501.08313; transformers: modeling_minimax.py",
        without=("{at}.slope_rate",),
        models=MINIMAX,
        heads=True,
        notes=(FIXED,),
    ),
    Reader(
        "RetNet",
        r"(?P<at>.+)\.g_proj\.weight",
        {},
        formulas.retnet,
        "a = 1 - 2**(-5 - h), h = 0..H-1, from config.json",
        "arXiv 2307.08621; fla: ops/retention",
        models=("retnet",),
        heads=True,
        notes=(FIXED,),
    ),
    *(
        Reader(
            "xLSTM",
            rf"(?P<at>.+)\.{name}\.bias",
            {"bias": f"{{at}}.{name}.bias"},
            rate,
            "a = sigmoid(forget-gate bias), soft-capped as gate_soft_cap says",
            "arXiv 2503.13427; transformers: modeling_xlstm.py",
            heads=True,
            notes=(INPUT, "a rising input gate outweighs what is old beyond the decay shown"),
            starts={"bias": starts.xlstm} if rate is formulas.forget_gate else {},
        )
        for name, rate in (
            ("fgate_preact", formulas.forget_gate),
            ("ifgate_preact", formulas.fused_forget_gate),
            ("fgate", formulas.forget_gate),
        )
    ),
    Reader(
        "GLA",
        r"(?P<at>.+)\.gk_proj\.1\.bias",
        {"bias": "{at}.gk_proj.1.bias"},
        formulas.gla,
        "a = sigmoid(bias)**(1/16)",
        "arXiv 2312.06635; fla: layers/gla.py",
        notes=(INPUT,),
    ),
    Reader(
        "HGRN",
        r"(?P<model>.+)\.layers\.\d+\.attn\.f_proj\.weight",
        {"lower_bounds": "{model}.lower_bounds"},
        formulas.hgrn,
        "a = l + (1 - l) / 2, l the lower bound: a softmax of lower_bounds summed over layers",
        "arXiv 2311.04823 and 2404.07904; fla: models/hgrn, models/hgrn2",
        notes=(f"{BY_INPUT}: shown is a gate half open above its lower bound",),
    ),
    Reader(
        "S4D",
        r"(?P<at>.+)\.log_A_real",
        {"log_dt": "{at}.log_dt", "log_A_real": "{at}.log_A_real"},
        formulas.s4d,
        "|a| = exp(-exp(log_dt) exp(log_A_real)), per channel and state",
        "arXiv 2206.11893; state-spaces/s4: models/s4/s4d.py",
        notes=(MAGNITUDE,),
    ),
    Reader(
        "S5",
        r"(?P<at>.+)\.Lambda_re",
        {"Lambda_re": "{at}.Lambda_re", "log_step": "{at}.log_step"},
        formulas.s5,
        "|a| = exp(Lambda_re exp(log_step)), per state",
        "arXiv 2208.04933; lindermanlab/S5: s5/ssm.py",
        notes=(MAGNITUDE,),
    ),
    Reader(
        "LRU",
        r"(?P<at>.+)\.nu_log",
        {"w": "{at}.nu_log"},
        formulas.double_exponential,
        "|a| = exp(-exp(nu_log))",
        "arXiv 2303.06349, appendix A",
        notes=(MAGNITUDE,),
    ),
)

DECAYS = ("A_log", "time_decay", "recurrent_param", "slope_rate", "nu_log", "log_A_real", "Lambda_re", "dt_bias")
"""Last parts of names that nothing but decays has: a tensor so named that no reader takes is said to be unread."""
