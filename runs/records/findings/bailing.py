"""How long the decays of a fresh bailing_hybrid of transformers are.

python runs/records/findings/bailing.py writes bailing.json beside this file, seconds on one core.
The gate of one layer in its default sizes is built and initialised by transformers' own code. It is
read without an input, by the gate's bias alone, and for inputs of unit root mean square. With a
safe gate, log a = lower_bound sigmoid(A (x + dt_bias)).
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from plkernel.common import cli
from plkernel.common.environment import environment, installed
from plkernel.common.files import save_json
from plkernel.decays.rates import half_lives

OUT = Path(__file__).resolve().parent / "bailing.json"
LONG = 1e6
"""Tokens beyond which a half-life is no memory of anything that was read."""
TOKENS = 256
SEEDS = 32


def fresh_gate(seed: int, zero: bool) -> Any:
    """The forget gate of a layer as transformers initialises it.

    zero: A_log is zero then, as fla and glm5_next of transformers begin it for a safe gate.
    """
    from transformers.models.bailing_hybrid import modeling_bailing_hybrid as modeling
    from transformers.models.bailing_hybrid.configuration_bailing_hybrid import BailingHybridConfig

    class Alone(modeling.BailingHybridPreTrainedModel):
        """A model of one gate, so that the framework initialises it."""

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.gate = modeling.BailingHybridForgetGate(config)
            self.post_init()

    torch.manual_seed(seed)
    gate = Alone(BailingHybridConfig()).gate
    if zero:
        torch.nn.init.zeros_(gate.A_log)
    return gate


@torch.no_grad()
def share_of_long(seed: int, zero: bool, with_input: bool) -> dict[str, float]:
    """The share of half-lives above LONG, and their median, over channels and tokens."""
    gate = fresh_gate(seed, zero)
    inputs = torch.zeros(1, 1, gate.f_proj.in_features)
    if with_input:
        draw = torch.Generator().manual_seed(seed)
        inputs = torch.randn(1, TOKENS, gate.f_proj.in_features, generator=draw)
    rates = -gate(inputs).double().numpy()
    tokens = half_lives(rates)
    return {"above": float(np.mean(tokens > LONG)), "median": float(np.median(tokens))}


def look(out: Path = OUT) -> None:
    """Read fresh gates, print a table and write the file.

    Args:
        out: JSON file for the record.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    torch.set_num_threads(1)
    rows = []
    for zero in (False, True):
        for with_input in (False, True):
            found = [share_of_long(seed, zero, with_input) for seed in range(SEEDS)]
            shares = [one["above"] for one in found]
            row = {
                "start": "zero" if zero else "own",
                "input": "unit rms" if with_input else "none",
                "above": float(np.mean(shares)),
                "least": min(shares),
                "most": max(shares),
                "median": float(np.median([one["median"] for one in found])),
            }
            rows.append(row)
            spread = f"{row['least']:.1%} to {row['most']:.1%} over {SEEDS} seeds"
            print(f"A_log {row['start']}, input {row['input']}, half-lives above a million tokens:")
            print(f"  {row['above']:.1%} ({spread}), median {row['median']:.3g}")
    versions = {"transformers": installed("transformers")}
    save_json(out, {"frameworks": versions, "rows": rows, "environment": environment(1)})


if __name__ == "__main__":
    cli.main(look, prog="python runs/records/findings/bailing.py")
