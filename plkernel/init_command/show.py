"""python -m plkernel.init show: what a scheme does to every parameter of a model."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from plkernel.common.cli import text_table
from plkernel.common.files import check_file, save_json
from plkernel.config.condition import resolve
from plkernel.config.schema import Arm, ModelSpec
from plkernel.init_command.options import arm_of, model_of, spec_of
from plkernel.models.init.plan import Plan, spans
from plkernel.models.init.planning import find
from plkernel.models.words import ModelKind
from plkernel.training.build import build, plan_of
from plkernel.training.view import erasing, responses_of

HEADER = ["parameter", "blocks", "role", "shape", "drawn from", "rate x", "decay x"]
LEGEND = (
    "N(s) normal of deviation s; T(s, c) cut at c deviations, not rescaled; J(s) cut at 2 and rescaled; U(b) uniform "
    "within +-b;\nO(g) orthogonal of gain g; C(v) the number v. rate x, decay x: multiples of the base learning rate "
    "and weight decay"
)
NEEDS: dict[tuple[str, Any], str] = {
    ("norm", "layer"): "LayerNorm",
    ("norm", "rms"): "RMSNorm",
    ("norm", "scale"): "ScaleNorm: g x / |x|, one learned g",
    ("norm", "none"): "no norms at all",
    ("norm_offset", True): "norms with gain 1 + w",
    ("placement", "post"): "post-norm: norm(a x + f(x))",
    ("placement", "sandwich"): "a second norm at the end of every branch",
    ("embedding_norm", True): "a norm after the embedding",
    ("gate", True): "one learned number that multiplies every residual branch",
    ("fixnorm", True): "FixNorm: rows of the embedding of length g, one learned g",
    ("scalar_bias", True): "one learned number added before every linear layer",
    ("tied", True): "head and embedding as one matrix",
    ("unit_scaled", True): "u-muP's operations, which keep unit variance: weights are multiplied by their scale",
}
FORWARD = {"embedding": "the embedding's output", "logits": "the logits", "residual": "every residual branch"}
FEW = 8
MEASURED_HEADS, MEASURED_LAYERS = 4, 4


def run(
    scheme: str, model: ModelKind, dim: int, layers: int, head_size: int | None, option: Sequence[str],
    against: str | None, json: Path | None,
) -> None:  # fmt: skip
    """Print what a scheme does to every parameter of one of our models: nothing is allocated, so any size will do."""
    spec, arm = spec_of(model, dim, layers, head_size), arm_of(scheme, option)
    check_file(json, "json")
    shared = [text for text in option if against and text.partition("=")[0] in find(against).options]
    other = arm_of(against, shared) if against else None
    chosen = planned(spec, arm)
    print(render(chosen, model), flush=True)
    if model == "rwkv7":
        print(f"\n{memory(spec, arm)}", flush=True)
    if other is not None:
        print(f"\n{difference(chosen, planned(spec, other))}", flush=True)
    if json is not None:
        save_json(json, {"model": model, **chosen.to_dict()})
        print(f"\nwritten: {json}", flush=True)


def planned(spec: ModelSpec, arm: Arm) -> Plan:
    """The plan of a scheme for one of our models, of which nothing is allocated."""
    condition = resolve(spec, arm)
    with torch.device("meta"):
        return plan_of(build(condition), condition)


def memory(spec: ModelSpec, arm: Arm) -> str:
    """What a small RWKV-7 of this scheme remembers: half-lives, and the impulse response with erasing and without."""
    dim, layers = min(spec.dim, MEASURED_HEADS * spec.head_size), min(spec.layers, MEASURED_LAYERS)
    model = model_of(spec.model_copy(update={"dim": dim, "layers": layers}), arm, seed=0)
    lives = [f"{ends[0]:.3g} to {ends[1]:.3g}" for ends in (values.aminmax() for values in model.half_lives())]
    lags = np.exp2(np.arange(8.0))
    title = f"memory at the start, width {dim}, {layers} blocks: half-lives of {'; '.join(lives)} bytes"
    return "\n".join([title, *erasing(lags, {"at the start": responses_of(model, lags)})])


def render(chosen: Plan, model: str) -> str:
    """The plan: a line on the model, the table, and what it asks of the model in words."""
    count = sum(math.prod(entry.parameter.shape) for entry in chosen.entries)
    constants = ", ".join(f"{name} = {value:g}" for name, value in chosen.options.items())
    title = (
        f"{chosen.scheme} on {model}, width {chosen.sizes.width}, {chosen.sizes.layers} blocks, {count:,} parameters"
    )
    asked = [*multipliers(chosen.forward), *requirements(chosen.needs)]
    parts = [
        title + (f"; {constants}" if constants else ""),
        text_table(HEADER, chosen.rows()),
        LEGEND,
        "asks of the model:" + "".join(f"\n  {line}" for line in asked or ["nothing"]),
        *afterwards(chosen),
    ]
    return "\n\n".join(parts)


def afterwards(chosen: Plan) -> list[str]:
    """What a plan leaves to do, and that its rates are not for Adam, in words."""
    told = []
    if chosen.calibration:
        told.append(
            "then, on a batch: the output projections of every block times one gain, until the partial Jacobian norm "
            f"of its\nbranch is {chosen.calibration.target:g}; a run does this by itself, from Python calibrate_ does"
        )
    if chosen.optimizer != "adam":
        told.append(f"the rates are for {chosen.optimizer.upper()}; a run here has AdamW and refuses them")
    return told


def multipliers(forward: Mapping[str, float]) -> list[str]:
    """The numbers that multiply activations, in words; many branches as one line."""
    whole = [f"{FORWARD[name]} times {value:.6g}" for name, value in forward.items() if name in FORWARD]
    branches = {name: value for name, value in forward.items() if name not in FORWARD}
    if len(branches) <= FEW:
        return whole + [f"branch {name} times {value:.6g}" for name, value in branches.items()]
    (first, a), *_, (last, b) = branches.items()
    return [*whole, f"each branch times a number of its own, from {a:.4g} ({first}) to {b:.4g} ({last})"]


def requirements(needs: Mapping[str, Any]) -> list[str]:
    """The structure in words."""
    words = dict(NEEDS)
    return [
        f"a = {value:.6g} in norm(a x + f(x))" if name == "residual" else words.get((name, value), f"{name} = {value}")
        for name, value in needs.items()
    ]


def difference(chosen: Plan, other: Plan) -> str:
    """What differs, equal lines of several blocks as one."""
    lines = joined(chosen.diff(other))
    title = f"{chosen.scheme} -> {other.scheme}:"
    return "\n  ".join([title, *lines]) if lines else f"{title} no difference"


def joined(lines: Iterable[str]) -> list[str]:
    """Lines that are equal up to the number of the block, as one that says which blocks."""
    blocks: dict[str, list[int]] = {}
    for line in lines:
        found = re.match(r"(blocks)\.(\d+)\.", line)
        text = line if found is None else re.sub(r"^blocks\.\d+\.", "blocks.*.", line)
        blocks.setdefault(text, []).append(int(found[2]) if found else -1)
    return [f"{text}  (blocks {where})" if (where := spans(numbers)) else text for text, numbers in blocks.items()]
