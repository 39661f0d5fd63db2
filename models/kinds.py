"""Facts about kinds of models that specs and runs need, without building one and without torch."""

import math
from dataclasses import dataclass
from typing import Any

from plkernel.analysis.nodes import SLOWEST
from plkernel.analysis.parametrisations import RWKV7_LARGEST_RATE
from plkernel.models import rwkv_nodes

LONGEST_CONTEXT = 2**24
"""Bytes of a training window, at most."""
OF_DECAYS = ("parametrisation", "position_scaling", "scaling_length")
"""Options of [model] for decays that keep their order or depend on the position."""
MAMBA2 = "plkernel.models.mamba2:mamba2"
"""Kind of the Mamba-2 of transformers whose decays this package shapes."""


@dataclass(frozen=True)
class Kind:
    """The facts of a kind of model; by default those of other people's code.

    words             the kind in a sentence
    options           what [model] of a spec may hold
    scheme            the initialisation scheme, by default
    spectral_scheme   the scheme that an arm with a `spectrum` gets; None where it gets none
    spectral_init     the function that such an arm gets as its `init`; None where it gets none, and
                      a placement where it gets no scheme either
    operator          the recurrence, as `plkernel.kernels` calls it
    node_option       the option with the number of decays that an arm places: those of a head, or
                      all of a layer
    largest_rate      upper bound of the decay rate per byte
    newest_lag        `lag` of the laws in `analysis.nodes.Aim`: how the newest byte is read
    shape_on          where the shape of a law can go
    has_own_decays    its scheme sets decays, which an arm may keep
    has_scale         the scale of a recurrence's output counts: no norm takes it out
    has_spectrum      an arm may have a `spectrum`
    spectrum_range    what the longest time constant of a `spectrum` must be above, and at most, in
                      steps
    has_dropout, has_bonus, norms_embedding  whether it has them
    """

    words: str = "a model of other people's code"
    options: tuple[str, ...] = ("kind", "config")
    scheme: str | None = None
    spectral_scheme: str | None = None
    spectral_init: str | None = None
    operator: str | None = None
    node_option: str = "dim"
    largest_rate: float = math.inf
    newest_lag: str | None = None
    shape_on: tuple[str, ...] = ()
    has_own_decays: bool = True
    has_scale: bool = False
    has_spectrum: bool = False
    spectrum_range: tuple[float, float] = (1.0, 1 / SLOWEST)
    has_dropout: bool = False
    has_bonus: bool = False
    norms_embedding: bool = False


FOREIGN = Kind()


def _rwkv(scheme: str, operator: str, options: tuple[str, ...], **more: Any) -> Kind:
    """An RWKV, whose GroupNorm takes out any scale, and whose embedding is normed by ln0."""
    return Kind(
        words="an RWKV",
        options=("kind", "dim", "layers", "head_size", *options),
        scheme=scheme,
        operator=operator,
        node_option="head_size",
        shape_on=("receptance",),
        has_dropout=True,
        norms_embedding=True,
        **more,
    )


_EARLIER = _rwkv("rwkv_blinkdl", "wkv", ("k_clamp",), newest_lag="bonus", has_bonus=True)
KINDS = {
    "ssm": Kind(
        words="an SSM",
        options=("kind", "dim", "layers", "gain", "patching", *OF_DECAYS),
        scheme="transformers_default",
        operator="scan",
        shape_on=("columns", "multiplier"),
        has_own_decays=False,
        has_scale=True,
        has_spectrum=True,
    ),
    "rwkv5": _EARLIER,
    "rwkv6": _EARLIER,
    "rwkv7": _rwkv(
        "rwkv7_official",
        "wkv7",
        ("ranks", *OF_DECAYS),
        newest_lag="distance",
        largest_rate=RWKV7_LARGEST_RATE,
        has_spectrum=True,
        spectrum_range=rwkv_nodes.SPECTRUM,
        spectral_scheme="rwkv7_post",
    ),
}
"""The kinds of this package, by name; every other name is that of other people's code."""
BUILDERS = {
    MAMBA2: Kind(
        words="a Mamba-2 of transformers",
        options=("kind", "config", *OF_DECAYS),
        spectral_init="plkernel.models.init.mamba2:spectrum_",
        has_spectrum=True,
    )
}
"""Kinds that are built as other people's code is, but have more options, by name."""


def kind_of(name: str) -> Kind:
    """The facts of the kind of that name."""
    return KINDS.get(name) or BUILDERS.get(name, FOREIGN)
