"""Numbers that cannot be what their name says: a converter stored the decays in another form.

A tensor is judged over all layers of its family at once. It is called transformed only if its
numbers give half-lives that no initialisation or training gives, and another form of the same
numbers, which is named, gives plausible ones.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from plkernel.decays.families import Floats
from plkernel.decays.rates import Layer, half_lives

LONGEST = 1e6
"""Tokens of a half-life; a longer one is beyond any training."""
ODD = 0.05
"""Share of half-lives above LONGEST, in all layers together, that healthy checkpoints may have."""
FEWEST = 8
"""Numbers from which anything can be said."""
LARGEST_LOG = 8.0
"""A log of speeds above it: exp(8) is 3,000, and speeds are 1 to 256."""
STEPS = (1e-5, 0.5)
"""Steps softplus(dt_bias): official ones are 0.001 to 0.1."""
SPREAD = 5.0
"""Of steps, the 95th percentile over the 5th; official ones are spread over a factor of 60, numbers
around one that is several standard deviations from 0 over less."""
NEAR = 0.25
"""Relative distance from 1, 2, 3 .. at which speeds are still those of the initialisation."""


class Form(NamedTuple):
    """A form in which numbers may be stored: words, the numbers that can be so, and the inverse."""

    words: str
    holds: Callable[[Floats], bool]
    inverse: Callable[[Floats], Floats]


def _form(words: str, low: float, high: float, inverse: Callable[[Floats], Floats]) -> Form:
    """A form of numbers between `low` and `high`, both excluded."""
    return Form(words, lambda x: bool((low < x).all() and (x < high).all()), inverse)


DECAY = _form("exp(-exp({}))", 0.0, 1.0, lambda x: np.log(-np.log(x)))
POSITIVE = _form("exp({})", 0.0, np.inf, np.log)
NEGATIVE = _form("-exp({})", -np.inf, 0.0, lambda x: np.log(-x))
GATE = _form("exp(-exp(-1/2) sigmoid({}))", np.exp(-np.exp(-0.5)), 1.0, lambda x: _logit(x))
SQUASHED = _form("exp(-8 softplus({}))", 0.0, 1.0, lambda x: np.log(np.expm1(-np.log(x) / 8.0)))
RATE = _form("exp(-1/2) sigmoid({})", 0.0, np.exp(-0.5), lambda x: _logit(np.exp(-x)))
LOG_DECAY = _form("-exp(-1/2) sigmoid({})", -np.exp(-0.5), 0.0, lambda x: _logit(np.exp(x)))
SLOPE = _form("exp(-{})", 0.3, 1.0, lambda x: -np.log(x))
OPEN = _form("sigmoid({})", 0.5, 1.0, lambda x: np.log(x) - np.log1p(-x))
STEP = _form("softplus({})", *STEPS, lambda x: np.log(np.expm1(x)))


def _logit(decay: Floats) -> Floats:
    """x of decays a = exp(-exp(-1/2) sigmoid(x)), as in RWKV-7."""
    share = -np.log(decay) * np.exp(0.5)
    return np.log(share) - np.log1p(-share)


FORMS: dict[str, tuple[Form, ...]] = {
    "time_decay": (DECAY, POSITIVE, NEGATIVE),
    "nu_log": (DECAY, POSITIVE, NEGATIVE),
    "log_rate": (DECAY, POSITIVE, NEGATIVE),
    "log_A_real": (NEGATIVE, POSITIVE),
    "A_log": (NEGATIVE, POSITIVE),
    "A_logs": (NEGATIVE, POSITIVE),
    "dt_bias": (STEP,),
    "log_dt": (POSITIVE,),
    "log_step": (POSITIVE,),
    "w0": (GATE, RATE, LOG_DECAY),
    "slope_rate": (SLOPE,),
    "fgate": (OPEN,),
    "recurrent_param": (SQUASHED,),
    "a_param": (SQUASHED,),
}
"""Forms by the last part of a tensor's name, the likeliest first."""
DIRECT = ("time_decay", "nu_log", "log_rate")
"""Logs of rates, without a step beside them."""


def transformed(layers: Sequence[Layer]) -> Iterator[tuple[str, str]]:
    """A tensor, and what its numbers look like, where they cannot be what its name says."""
    kinds: dict[tuple[str, str], list[Layer]] = {}
    for layer in layers:
        if layer.family.own:  # its form is what somebody states, whatever the name
            continue
        for role in layer.tensors:
            kinds.setdefault((layer.family.anchor + layer.family.name, role), []).append(layer)
    for (_, role), alike in kinds.items():
        last = _last(alike[0], role)
        arrays = [layer.tensors[role].values for layer in alike]
        values = np.concatenate([one.ravel() for one in arrays])
        if values.size < FEWEST or not np.isfinite(values).all() or np.ptp(values) == 0:
            continue
        for form in FORMS.get(last, ()):
            if form.holds(values) and _is_transformed(last, form, role, alike, values):
                is_read_back = alike[0].tensors[role].raw is not None
                seen = "the logarithms of minus its numbers" if is_read_back else "its numbers"
                words = f"cannot be what its name says: {seen}, {values.min():.3g} to"
                words += f" {values.max():.3g}, look like {form.words.format(last)}"
                yield alike[0].names[role], words
                break


def _last(layer: Layer, role: str) -> str:
    """The last part of a tensor's name; that of RWKV-7's first names is as w0."""
    if role in ("A_log", "dt_bias"):
        return role
    last = layer.names[role].removesuffix(".weight").rpartition(".")[2]
    if last == "time_mix_decay":  # of llama.cpp
        return "time_decay"
    if last == "bias" and layer.family.name == "xLSTM":
        return "fgate"
    return "w0" if layer.family.name == "RWKV-7" else last


def _is_transformed(
    last: str, form: Form, role: str, alike: Sequence[Layer], values: Floats
) -> bool:
    """True if the numbers are implausible as they are, and plausible in another form."""
    if form is STEP:  # a log of steps that small is negative; as they are, all steps are ln 2
        low, high = np.quantile(values, (0.05, 0.95))
        return bool(high > SPREAD * low)
    if form is GATE:  # all half-lives between 1.5 and 2 tokens
        return True
    if form is OPEN and values.max() < 0.9:  # of all gates between 1/2 and 1 some are nearly open
        return False
    now = np.concatenate([half_lives(layer.rates).ravel() for layer in alike])
    then = _half_lives(form, role, alike)
    if not _plausible(then):
        return False
    if last in ("log_dt", "log_step"):  # steps above 1
        return True
    if form in (RATE, LOG_DECAY, SLOPE, OPEN):  # all half-lives as short as 1.4 to 3.4 tokens
        return True
    if last in DIRECT:
        short = np.median(now) < 2.0 * np.log(2.0)  # rates above 1/2
        return form is DECAY or bool(short or (now > LONGEST).any())
    if _counted(form, role, alike):
        return True
    if form is POSITIVE:
        return bool(values.max() > LARGEST_LOG)
    return not _plausible(now)


def _plausible(tokens: Floats) -> bool:
    """True if hardly a half-life is beyond any training, and not all of them are below a token."""
    known = tokens[~np.isnan(tokens)]
    if not known.size:
        return False
    return bool((known > LONGEST).mean() <= ODD and known.max() > 1.0)


def _half_lives(form: Form, role: str, alike: Sequence[Layer]) -> Floats:
    """Half-lives of all layers if the tensors of `role` are stored in `form`."""
    found = []
    with np.errstate(all="ignore"):
        for layer in alike:
            rates = layer.rates_of(**{role: form.inverse(layer.tensors[role].values)})
            found.append(half_lives(rates).ravel())
    return np.concatenate(found)


def _counted(form: Form, role: str, alike: Sequence[Layer]) -> bool:
    """True if the speeds are still near 1, 2, 3 .. along the last dimension, as in a new Mamba."""
    for layer in alike:
        values: Floats = np.abs(layer.tensors[role].values)
        if values.ndim < 2 or values.shape[-1] < 3:
            return False
        count = np.arange(1.0, values.shape[-1] + 1)
        means = np.median(values.reshape(-1, len(count)), axis=0)
        if (np.abs(means - count) > NEAR * count).any():
            return False
    return True
