"""Half-lives of the models of transformers and of flash-linear-attention, and bugs that show.

python runs/records/findings/findings.py writes table.json beside this file, a minute on one core.
Every model is tiny, built by its framework's own code on a CPU, saved by it, and read by
plkernel.inspect. Then every known bug is made again, as its report describes what it leaves in a
checkpoint, in a model whose decays are no start: what is found more than there was before is what
--strict would have stopped it by. Nothing is downloaded, and no kernel runs.
"""

import os
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from plkernel.common import cli
from plkernel.common.cli import progress_bar, text_table
from plkernel.common.environment import environment, installed
from plkernel.common.files import save_json
from plkernel.decays.inspection import Shown, inspected
from plkernel.decays.rates import half_lives

OUT = Path(__file__).resolve().parent / "table.json"
FRAMEWORKS = {"transformers": "transformers", "fla": "flash-linear-attention"}
WIDTH = 64
HEADS = 16
LAYERS = 4
SIZES = {"vocab_size": 32, "pad_token_id": 0, "hidden_size": WIDTH, "num_hidden_layers": LAYERS}
MLP = {**SIZES, "intermediate_size": 32}
ATTENTION = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1}
HYBRID = {"layer_types": [*["linear_attention"] * 3, "full_attention"]}
STATES = {
    "mamba_n_heads": HEADS,
    "mamba_d_head": 8,
    "mamba_d_state": 8,
    "mamba_n_groups": 1,
    "mamba_expand": 2,
}
DELTA = {
    "linear_num_value_heads": HEADS,
    "linear_num_key_heads": HEADS,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
MAMBA2 = {"num_heads": HEADS, "head_dim": 8, "state_size": 8, "n_groups": 1, "expand": 2}
FLA = {"vocab_size": 32, "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_heads": 4}
MODELS: dict[tuple[str, str], dict[str, Any]] = {
    ("transformers", "Mamba"): {**SIZES, "state_size": 16},
    ("transformers", "FalconMamba"): {**SIZES, "state_size": 16},
    ("transformers", "Mamba2"): {**SIZES, **MAMBA2},
    ("transformers", "Bamba"): {**MLP, **ATTENTION, **STATES, "attn_layer_indices": [3]},
    ("transformers", "FalconH1"): {**MLP, **ATTENTION, **STATES, "mamba_d_ssm": 128},
    ("transformers", "Qwen3Next"): {
        **MLP,
        **ATTENTION,
        **DELTA,
        **EXPERTS,
        **HYBRID,
        "moe_intermediate_size": 8,
        "shared_expert_intermediate_size": 8,
    },
    ("transformers", "OlmoHybrid"): {
        **MLP,
        **DELTA,
        **HYBRID,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
    },
    ("transformers", "KimiLinear"): {
        **MLP,
        **ATTENTION,
        **HYBRID,
        "linear_head_dim": 8,
        "linear_num_heads": HEADS,
    },
    ("transformers", "RecurrentGemma"): {
        **MLP,
        "num_attention_heads": 2,
        "lru_width": WIDTH,
        "block_types": ["recurrent", "recurrent", "attention"],
    },
    ("transformers", "MiniMax"): {
        **MLP,
        **HYBRID,
        "num_attention_heads": HEADS,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
    },
    ("transformers", "xLSTM"): {
        "vocab_size": 32,
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_heads": 8,
    },
    ("transformers", "Rwkv"): {**MLP, "attention_hidden_size": WIDTH},
    ("fla", "Mamba"): {**SIZES, "state_size": 16},
    ("fla", "Mamba2"): {**SIZES, **MAMBA2},
    ("fla", "GatedDeltaNet"): {**FLA, "num_heads": HEADS, "head_dim": 8},
    ("fla", "KDA"): {**FLA, "num_heads": HEADS, "head_dim": 8},
    ("fla", "RWKV6"): FLA,
    ("fla", "RWKV7"): {**FLA, "num_heads": None, "head_dim": 16},
    ("fla", "GLA"): FLA,
    ("fla", "HGRN"): {**FLA, "num_heads": None},
    ("fla", "HGRN2"): {**FLA, "num_heads": None, "expand_ratio": 16},
    ("fla", "RetNet"): FLA,
}

TRAINED = {"A_log": (-0.5, 0.5), "dt_bias": (-6.9, -4.5), "dt_proj.bias": (-6.9, -4.5)}
"""What decays are before a bug: near where they start, and as no start is."""
QWEN = {"A_log": (-2.0, 2.7), "dt_bias": (0.9, 1.1)}
"""The same where the step starts at softplus(1), so that most half-lives are below one token."""


@dataclass(frozen=True)
class Bug:
    """A bug that was reported in public.

    report   owner/name and number of an issue or a pull request
    says     what it says of a checkpoint
    model    one of MODELS, in which it is made again
    broken   (tensor, its last name) -> what the bug leaves in it; None where it leaves it alone
    """

    report: str
    says: str
    model: tuple[str, str]
    broken: Callable[[Tensor, str], Tensor | None]


def ones(tensor: Tensor, name: str) -> Tensor | None:
    return torch.ones_like(tensor) if name == "dt_bias" else None


def counted(tensor: Tensor, name: str) -> Tensor | None:
    return torch.arange(1.0, len(tensor) + 1).log() if name == "A_log" else ones(tensor, name)


def zeros(tensor: Tensor, name: str) -> Tensor | None:
    return torch.zeros_like(tensor) if name in ("A_log", "dt_bias") else None


def no_rate(tensor: Tensor, name: str) -> Tensor | None:
    """One head of the layer drew 0."""
    return (
        torch.cat([tensor.new_tensor([0.0]).log(), tensor[1:]]).bfloat16()
        if name == "A_log"
        else None
    )


def least_rate(tensor: Tensor, name: str) -> Tensor | None:
    """One head of the layer drew the lower end of the range."""
    return (
        torch.cat([tensor.new_tensor([1e-6]).log(), tensor[1:]]).bfloat16()
        if name == "A_log"
        else None
    )


def zero_step(tensor: Tensor, name: str) -> Tensor | None:
    return torch.zeros_like(tensor) if name == "bias" else None


def log_again(tensor: Tensor, name: str) -> Tensor | None:
    return tensor.log() if name == "A_log" else None


def drawn_again(tensor: Tensor, name: str) -> Tensor | None:
    """The same distribution, other numbers."""
    return tensor[torch.randperm(len(tensor))] if name == "dt_bias" else None


BUGS = (
    Bug(
        "huggingface/transformers#43717",
        "dt_bias of a mixer used alone is ones",
        ("transformers", "Mamba2"),
        ones,
    ),
    Bug(
        "huggingface/transformers#45591",
        "dt_bias is drawn anew after a checkpoint was loaded",
        ("transformers", "Mamba2"),
        drawn_again,
    ),
    Bug(
        "huggingface/transformers#47831",
        "A_log is -inf where bfloat16 drew 0 from 0..16",
        ("transformers", "Qwen3Next"),
        no_rate,
    ),
    Bug(
        "pytorch/torchtitan#4178",
        "A_log is ln 1e-6 where bfloat16 drew the lower end of 1e-6..16",
        ("transformers", "Qwen3Next"),
        least_rate,
    ),
    Bug(
        "fla-org/flame#42",
        "A_log and dt_bias are zero on several GPUs",
        ("fla", "GatedDeltaNet"),
        zeros,
    ),
    Bug(
        "fla-org/flash-linear-attention#380",
        "A_log and dt_bias are not initialised after construction on no device",
        ("fla", "GatedDeltaNet"),
        zeros,
    ),
    Bug(
        "fla-org/flash-linear-attention#753",
        "A_log and dt_bias are skipped where they are sharded",
        ("fla", "Mamba2"),
        zeros,
    ),
    Bug(
        "fla-org/flash-linear-attention#754",
        "A_log is ln of what was loaded, NaN where that is below 0",
        ("fla", "GatedDeltaNet"),
        log_again,
    ),
    Bug(
        "fla-org/flash-linear-attention#739",
        "A is 1, 2, 3 .. and dt_bias ones, instead of being drawn",
        ("fla", "Mamba2"),
        counted,
    ),
    Bug(
        "athms/mad-lab#3",
        "the bias of dt_proj is overwritten by zeros",
        ("fla", "Mamba"),
        zero_step,
    ),
)


def built(framework: str, name: str) -> nn.Module:
    """The model as its own code initialises it, from seed 0."""
    if framework == "transformers":
        import transformers as models
    else:
        import fla.models as models
    torch.manual_seed(0)
    options = {key: value for key, value in MODELS[framework, name].items() if value is not None}
    model: nn.Module = getattr(models, f"{name}ForCausalLM")(
        getattr(models, f"{name}Config")(**options)
    )
    return model


def inspected_live(model: Any) -> Shown:
    """What plkernel.inspect says of the model once its own code has saved it."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return inspected(folder)


def row(framework: str, name: str, seen: Shown) -> dict[str, Any]:
    """Half-lives over all layers, the exponent of each layer's kernel, and the findings by name."""
    tokens = np.concatenate([half_lives(layer.rates).ravel() for layer in seen.layers])
    exponents = [layer["exponent"] for layer in seen.to_dict()["layers"]]
    return {
        "framework": framework,
        "model": name,
        "family": seen.layers[0].family.name,
        "layers": len(seen.layers),
        "half_lives": {
            str(level): float(np.quantile(tokens, level, method="nearest")) for level in (0, 0.5, 1)
        },
        "exponent": float(np.median(exponents)),
        "upper_bounds": any("upper bounds" in note for note in seen.layers[0].family.notes),
        "findings": names_of(seen),
    }


def names_of(seen: Shown) -> list[str]:
    """The findings of a checkpoint by name, each once."""
    return list(dict.fromkeys(one.name for one in seen.findings))


def bug_row(bug: Bug) -> dict[str, Any]:
    """What is seen of a bug, beside what was seen before it."""
    model = built(*bug.model)
    trained = QWEN if bug.model[1] == "Qwen3Next" else TRAINED
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            for mark, ends in trained.items():
                if name.endswith(f".{mark}"):
                    parameter.copy_(torch.linspace(*ends, parameter.numel()).view(parameter.shape))
        before = inspected_live(model)
        for name, parameter in model.named_parameters():
            left = bug.broken(parameter, name.rpartition(".")[2])
            if name.endswith(tuple(TRAINED)) and left is not None:
                parameter.data = left
        now = inspected_live(model)
    more = [name for name in names_of(now) if name not in names_of(before)]
    return {
        "report": bug.report,
        "says": bug.says,
        "model": " ".join(bug.model),
        "before": names_of(before),
        "seen": more,
        "caught": bool(more),
    }


def look(models: tuple[str, ...] = (), bugs: bool = True, out: Path = OUT) -> None:
    """Look at every model, then at every bug; print both tables and write the file.

    Args:
        models: Some of the models instead of all, as transformers:Mamba.
        bugs: Make the known bugs too.
        out: JSON file for the record.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    warnings.simplefilter("ignore")  # of the frameworks
    torch.set_num_threads(1)
    chosen = [name for name in MODELS if not models or ":".join(name) in models]
    reports = BUGS if bugs else ()
    rows = []
    bug_rows = []
    with progress_bar("models") as advance:
        for framework, name in chosen:
            rows.append(row(framework, name, inspected_live(built(framework, name))))
            advance(1 / (len(chosen) + len(reports)))
        for bug in reports:
            bug_rows.append(bug_row(bug))
            advance(1 / (len(chosen) + len(reports)))
    versions = {name: installed(package) for name, package in FRAMEWORKS.items()}
    record = {"frameworks": versions, "models": rows, "bugs": bug_rows}
    save_json(out, record | {"environment": environment(1)})
    print(table_of_models(rows))
    print(table_of_bugs(bug_rows))
    print(f"\nwritten: {out}")


def table_of_models(rows: list[dict[str, Any]]) -> str:
    """Half-lives and findings of every model, as text."""
    lines = []
    for one in rows:
        tokens = [f"{value:.3g}" for value in one["half_lives"].values()]
        lines.append([one["framework"], one["model"], *tokens, ", ".join(one["findings"])])
    return text_table(["framework", "model", "shortest", "median", "longest", "findings"], lines)


def table_of_bugs(rows: list[dict[str, Any]]) -> str:
    """What is seen of every bug, as text."""
    lines = [[one["report"], ", ".join(one["seen"]) or "nothing"] for one in rows]
    return text_table(["report", "seen"], lines)


if __name__ == "__main__":
    cli.main(look, prog="python runs/records/findings/findings.py")
