"""What recurrences take for their decays: the rate -ln a that a parameter x gives, and the x that gives a rate.

Each is an exact inverse: in float64 a rate comes back but for the rounding of x. What depends on the input stands where
it is without one, at its bias.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from plkernel.analysis.nodes import RWKV7_LARGEST_RATE

Parametrisation = Literal[
    "log_rate", "exp_exp", "sigmoid", "a_log", "dt_bias", "exp_sigmoid", "bounded", "rg_lru", "stable"
]
Formula = Callable[..., Tensor]
RG_LRU_POWER = 8.0


@dataclass(frozen=True)
class Form:
    """One parametrisation, by functions of a tensor and of what is `given` beside it, all of one shape.

    formula  the decay in words
    rate     rates of x; inverse: x of rates
    needs    what must be given; takes: what may be
    limits   the slowest and the fastest rate that x reaches neither, None where there is no limit
    """

    formula: str
    rate: Formula
    inverse: Formula
    needs: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    limits: Callable[..., tuple[Tensor, Tensor] | None] = lambda **given: None


def softplus(x: Tensor) -> Tensor:
    """ln(1 + exp(x)) to the last digit: torch's own is x from 20 on."""
    return torch.logaddexp(x, torch.zeros_like(x))


def inverse_softplus(y: Tensor) -> Tensor:
    """ln(exp(y) - 1) for y > 0, to the last digit of small and of large ones."""
    return y + torch.log(-torch.expm1(-y))


def _capped(x: Tensor, cap: Tensor | None) -> Tensor:
    return x if cap is None else cap * torch.tanh(x / cap)


def _uncapped(x: Tensor, cap: Tensor | None) -> Tensor:
    return x if cap is None else cap * torch.atanh(x / cap)


def _speed(a_log: Tensor | None) -> Tensor | float:
    return 1.0 if a_log is None else a_log.exp()


FORMS: dict[str, Form] = {
    "log_rate": Form("a = exp(-exp(x))", torch.exp, torch.log),
    "exp_exp": Form("a = exp(-exp(x))", torch.exp, torch.log),
    "sigmoid": Form(
        "a = sigmoid(cap tanh(x / cap))",
        lambda x, cap=None: softplus(-_capped(x, cap)),
        lambda rates, cap=None: _uncapped(-inverse_softplus(rates), cap),  # logit(a), as -ln a = softplus(-logit(a))
        takes=("cap",),
        limits=lambda cap=None: None if cap is None else (softplus(-cap), softplus(cap)),
    ),
    "a_log": Form(
        "a = exp(-exp(x) softplus(dt_bias))",
        lambda x, dt_bias: x.exp() * softplus(dt_bias),
        lambda rates, dt_bias: (rates / softplus(dt_bias)).log(),
        needs=("dt_bias",),
    ),
    "dt_bias": Form(
        "a = exp(-exp(a_log) softplus(x))",
        lambda x, a_log: a_log.exp() * softplus(x),
        lambda rates, a_log: inverse_softplus(rates / a_log.exp()),
        needs=("a_log",),
    ),
    "exp_sigmoid": Form(
        "a = exp(-exp(-1/2) sigmoid(x))",
        lambda x: RWKV7_LARGEST_RATE * torch.sigmoid(x),
        lambda rates: torch.log(rates / (RWKV7_LARGEST_RATE - rates)),
    ),
    "bounded": Form(
        "a = exp(-bound sigmoid(exp(a_log) x))",
        lambda x, bound, a_log=None: bound * torch.sigmoid(x * _speed(a_log)),
        lambda rates, bound, a_log=None: torch.log(rates / (bound - rates)) / _speed(a_log),
        needs=("bound",),
        takes=("a_log",),
        limits=lambda bound, a_log=None: (torch.zeros_like(bound), bound),
    ),
    "rg_lru": Form(
        "a = exp(-8 sigmoid(gate_bias) softplus(x))",
        lambda x, gate_bias: RG_LRU_POWER * torch.sigmoid(gate_bias) * softplus(x),
        lambda rates, gate_bias: inverse_softplus(rates / (RG_LRU_POWER * torch.sigmoid(gate_bias))),
        needs=("gate_bias",),
    ),
    "stable": Form(
        "a = 1 - 1 / (x**2 + 1/2)",
        lambda x: -torch.log1p(-1 / (x * x + 0.5)),
        lambda rates: torch.sqrt(-1 / torch.expm1(-rates) - 0.5),
    ),
}


def form_of(parametrisation: str, given: Mapping[str, object]) -> Form:
    """The form of that name; ValueError unless what is `given` (not None) is what belongs to it."""
    if parametrisation not in FORMS:
        raise ValueError(
            f"parametrisation must be one of {', '.join(get_args(Parametrisation))}, got {parametrisation!r}"
        )
    form = FORMS[parametrisation]
    for name, value in given.items():
        homes = [other for other, found in FORMS.items() if name in (*found.needs, *found.takes)]
        if (value is None and name in form.needs) or (value is not None and parametrisation not in homes):
            must = " and must be given there" if any(name in FORMS[home].needs for home in homes) else ""
            raise ValueError(
                f"{name} goes with parametrisation {' or '.join(map(repr, homes))}{must}, got {parametrisation!r}"
            )
    return form


def check_limits(form: Form, rates: Tensor, given: Mapping[str, Tensor]) -> None:
    """ValueError, with the half-lives that can be, where a rate is one that no parameter gives."""
    limits = form.limits(**given)
    if limits is None:
        return
    slowest, fastest = (limit.to(rates).expand(rates.shape) for limit in limits)
    wrong = ~((rates > slowest) & (rates < fastest))
    if wrong.any():
        half_life, shortest, longest = (
            math.log(2) / float(values[wrong][0]) if float(values[wrong][0]) else math.inf
            for values in (rates, fastest, slowest)
        )
        raise ValueError(
            f"nodes has a half-life of {half_life:.4g} steps, but {form.formula} reaches only those above "
            f"{shortest:.4g}" + ("" if math.isinf(longest) else f" and below {longest:.4g}") + " steps"
        )
