"""Bytes drawn from a model: temperature, nucleus, and one uniform number for each byte."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Probabilities = NDArray[np.float64]
"""(V,) in float64."""
LARGEST_SEED = 2**63 - 1
"""Of 64 bits with a sign, as files hold it."""
PART = 1024
"""Bytes of a prompt that a model reads at once, which bounds its memory."""


def check_seed(seed: int) -> None:
    """Raise ValueError for a seed outside 0 to 2**63 - 1."""
    if not 0 <= seed <= LARGEST_SEED:
        raise ValueError(f"seed must lie between 0 and {LARGEST_SEED}, got {seed}")


class NoLogitsError(FloatingPointError):
    """Logits that are not finite."""


def nan_hint(model: Any) -> str:
    """What to say of a model whose parameters are NaN after "its logits are not finite".

    Models of plkernel begin so; empty where all parameters are numbers, and for what has none.
    """
    parameters = dict(model.named_parameters()) if hasattr(model, "named_parameters") else {}
    wrong = [name for name, one in parameters.items() if bool(one.detach().isnan().any())]
    if not wrong:
        return ""
    return (
        f"parameters are NaN, {len(wrong)} of {len(parameters)}, such as {wrong[0]}: a new model of"
        " plkernel is so until plkernel.models.init.initialise_(model, scheme, seed) fills it, and"
        " one that has diverged stays so"
    )


@dataclass(frozen=True)
class Sampling:
    """p = softmax(logits / temperature) on the nucleus `top_p`.

    Temperature 0 takes the largest logit. seed: of the uniform numbers. Raises ValueError for a
    temperature below 0 or not finite, a top_p outside (0, 1], and a seed outside 0 to 2**63 - 1.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not (self.temperature >= 0 and math.isfinite(self.temperature)):
            raise ValueError(
                f"temperature must be at least 0 and finite, got {self.temperature}; 0 takes the"
                " likeliest byte"
            )
        if not 0 < self.top_p <= 1:
            raise ValueError(
                f"top_p must be above 0 and at most 1, got {self.top_p}; 1 leaves all bytes in"
            )
        check_seed(self.seed)

    def probabilities(self, logits: ArrayLike) -> Probabilities:
        """Probabilities (V,) from logits (V,), in float64.

        NoLogitsError for logits that are not finite.
        """
        z = np.asarray(logits, np.float64)
        if not np.isfinite(z).all():
            raise NoLogitsError(
                "logits must be finite, got others; the model has diverged, take an earlier"
                " checkpoint"
            )
        below = z - z.max()
        if self.temperature == 0:
            p = np.zeros(z.size)
            p[z.argmax()] = 1.0
            return p
        # A tiny temperature sends all but the largest to 0.
        with np.errstate(over="ignore", under="ignore"):
            weights = np.exp(below / self.temperature)
            p = weights / weights.sum()
        return nucleus(p, self.top_p)

    def choose(self, logits: ArrayLike, uniform: float) -> int:
        """The symbol at `uniform`, in [0, 1), of the cumulative probabilities."""
        p = self.probabilities(logits)
        possible = np.flatnonzero(p)
        cumulative = np.cumsum(p[possible])
        place = np.searchsorted(cumulative, uniform * cumulative[-1], side="right")
        return int(possible[min(place, possible.size - 1)])


def nucleus(p: Probabilities, top_p: float) -> Probabilities:
    """`p` (V,) on the fewest symbols that together reach `top_p`, over their sum.

    Of equally likely symbols the smaller goes first. Source: arXiv 1904.09751, section 3.1.
    """
    if top_p == 1:
        return p
    order = np.argsort(-p, kind="stable")
    reached = np.searchsorted(np.cumsum(p[order]), top_p, side="left")
    kept = order[: reached + 1]
    inside = np.zeros_like(p)
    inside[kept] = p[kept]
    return inside / inside.sum()


def continuation(
    model: Any, prompt: bytes, sampling: Sampling = Sampling(), part: int = PART
) -> Iterator[int]:
    """The bytes after `prompt`, without end: b_t ~ p(. | prompt, b_1..b_{t-1}).

    The state of the model is carried: memory and time for a byte do not grow with their number. An
    empty prompt is a newline. The same seed gives the same bytes: dropout is off while the model
    computes, and its mode is as before whenever a byte is handed out. NoLogitsError, a
    FloatingPointError, for logits that are not finite.
    """
    import torch

    from plkernel.models.layers import evaluating

    random = np.random.Generator(np.random.Philox(key=sampling.seed))
    device = next(model.parameters()).device
    state = model.initial_state(1)
    text = prompt or b"\n"
    parts = [text[start : start + part] for start in range(0, len(text), part)]
    while True:
        with evaluating(model), torch.inference_mode():
            for one in parts:
                inputs = torch.tensor([list(one)], device=device)
                logits, state = model(inputs, state)
        last = logits[0, -1].double().cpu().numpy()
        try:
            byte = sampling.choose(last, random.random())
        except NoLogitsError:
            hint = nan_hint(model)
            if not hint:
                raise
            raise NoLogitsError(f"logits must be finite, got others; {hint}") from None
        yield byte
        parts = [bytes([byte])]
