"""One arm of a study: where it places its decays, how it shapes its projection, and what it starts from."""

import hashlib
import json
import math
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_args

import numpy as np
from pydantic import Field, field_validator

from plkernel.analysis.exponentials import Floats
from plkernel.analysis.limits import Bonus, ShapeOn
from plkernel.analysis.nodes import (
    Aim,
    AimTarget,
    Gain,
    Lag,
    Placement,
    Projection,
    Summation,
    half_lives_of,
    rates_from_half_lives,
)
from plkernel.common.cli import nearest
from plkernel.common.files import load_json
from plkernel.common.imports import check_consent, imported, told
from plkernel.config.model import PositiveNumber, Section, check_code, check_plain
from plkernel.config.named import beside

PLACEMENTS = get_args(Placement)
PLACEMENT_GROUP = "plkernel.placements"
"""Entry points of other packages: name = "mypackage.mymodule:function", from how many channels to their half-lives."""
ENDS = ("shortest", "longest")
QUANTILE_OPTIONS = ("tempering", "loss", "max_lag")
AIM_OPTIONS = ("target", "kernel", "lag")
NODE_VALUES = ("node_rates", "node_multipliers", "node_gain")
IN_THE_STUDY = ("against", "levels", "rates", "train")  # in a run they are nowhere, or in another section
INIT = ("init", "init_options")
OF_ANY_ARM = ("scheme", "scheme_options", "learning_rate", "placement", "model", "corpus", *INIT, *IN_THE_STUDY)
OF_A_FOREIGN_ARM = ("learning_rate", "model", "corpus", *INIT, *IN_THE_STUDY)
"""What an arm may say of a model that other people's code builds."""


class Arm(Section):
    """One condition: where the decays are placed and how the projection is shaped."""

    placement: str | None = None
    """Node set of the half-lives; quantile: at the quantiles of the power law's own measure; chrono: forget gates for
    lags up to max_lag (arXiv 1804.11188); inverse-gamma: time scales of an LSTM (2009.12727), there frozen, which is
    train = { decay_multiplier = 0 }; or that of another package, by an entry point of plkernel.placements, which needs
    --trust-code. If left out log-spaced, and in an RWKV the decays of its scheme. An RWKV has the
    same nodes in every head."""
    projection: Projection = "uniform"
    """Shape of the projection's columns, in an RWKV of the receptance's rows; quantile nodes shape it by tempering."""
    beta: PositiveNumber = 1.15
    """Exponent of the power law."""
    shortest: PositiveNumber = 1.0
    """Shortest half-life of log-spaced nodes, in bytes; in RWKV-7 1.15 or more."""
    longest: PositiveNumber = 2000.0
    """Longest half-life of log-spaced nodes, in bytes."""
    tempering: Annotated[float, Field(ge=0, le=1)] | None = None
    """Quantile nodes: 1 puts the power law into the density of the nodes (the default; RWKV: 0.5), 0 into the
    projection."""
    loss: Annotated[float, Field(gt=0, lt=0.5)] | None = None
    """Quantile nodes: share of the kernel lost beyond either end; 0.05 if left out."""
    max_lag: Annotated[float, Field(gt=1)] | None = None
    """Quantile and chrono nodes: longest lag, in bytes; 2048 if left out. RWKV: how far a power law must hold."""
    target: AimTarget | None = None
    """information: the kernel has the exponent beta (the default); correlation: beta/2, as information is quadratic
    (the default of an RWKV)."""
    kernel: Summation | None = None
    """coherent: the law holds for the plain sum over channels (the default); rms: for random signs of B and C (the
    default of an RWKV)."""
    lag: Lag | None = None
    """state: lag t is seen as a**t (the default); distance: as a**(t-1), which is what a prediction sees (the default
    of RWKV-7); bonus: as a**(t-2), which it sees of the state of RWKV-5 and 6 (the default there)."""
    match: str | None = None
    """Scale the projection to the output standard deviation of this arm; baseline is the arm it is compared with."""
    output_std: PositiveNumber | None = None
    """Output standard deviation to scale to, for unit white input, over sqrt(N); set from match where that is given."""
    node_file: str | None = None
    """JSON file with the nodes, as plkernel.fit writes it; relative to the working directory. Read with the spec."""
    node_rates: tuple[PositiveNumber, ...] | None = None
    """Decay rates per byte, one per channel; what node_file held, or a placement of another package gave."""
    node_multipliers: tuple[PositiveNumber, ...] | None = None
    """Projection multipliers of these nodes; what node_file held."""
    node_gain: Gain | None = None
    """The input gain that these nodes assume; what node_file held."""

    scheme: str | None = None
    """The initialisation by name (plkernel.init list). Left out: transformers_default, which is N(0.02), and in an RWKV
    rwkv_blinkdl, in RWKV-7 rwkv7_official, those of today's official code."""
    scheme_options: dict[str, float] | None = None
    """Free constants of the scheme, as in { base_width = 64 }."""
    init: str | None = None
    """A function of your own, module:attribute, called with the model once all else has initialised it; needs
    --trust-code."""
    init_options: dict[str, Any] | None = None
    """What else that function is given, by name."""
    learning_rate: PositiveNumber | None = None
    """Peak learning rate of this arm, where it differs from train.learning_rate."""
    rates: Annotated[tuple[PositiveNumber, ...], Field(min_length=2)] | None = None
    """Learning rates to try for this arm, as many as tuning.rates, where its best lies elsewhere; not beside a
    learning_rate."""
    bonus: Bonus | None = None
    """RWKV-5 and 6: scheme leaves u as the scheme has it (the default); law: 2**exponent, which puts distance 1 on the
    law."""
    shape_on: ShapeOn | Literal["columns", "multiplier"] | None = None
    """Where the shape goes. SSM: columns of the projection (the default), or a fixed multiplier of every state, which
    also acts where a scheme starts the projection at zero. RWKV: receptance; output is refused: it starts at zero."""

    model: dict[str, Any] | None = None
    """Options of [model] that differ in this arm, as in { gain = "ema" }."""
    corpus: dict[str, Any] | None = None
    """Options of [corpus] that differ in this arm, as in { name = "bible:en" }."""
    train: dict[str, Any] | None = None
    """Options of [train] that differ in this arm, as in { decay_multiplier = 0 }; not those that say what it reads,
    how much of it, and when it is evaluated, in which all arms must agree."""
    against: str | None = None
    """The arm it is compared with; the study's baseline if left out."""
    levels: dict[str, str] | None = None
    """Its level of every factor; filled in from [factors]."""

    _code = field_validator("init", mode="after")(check_code)
    _plain = field_validator("init_options", mode="after")(check_plain)

    @property
    def pending(self) -> bool:
        """Whether the arm still refers to a file, a package or another arm; `load_spec` settles all."""
        return (
            (self.node_file is not None and not self.has_file_values)
            or (self.placed_elsewhere and self.node_rates is None)
            or (self.match is not None and self.output_std is None)
        )

    @property
    def placed_elsewhere(self) -> bool:
        """Whether its placement is none of ours; what that gave is then in `node_rates`."""
        return self.placement is not None and self.placement not in PLACEMENTS

    def half_lives(self, channels: int) -> Floats:
        """Those of its placement, which no power law decides, in bytes; (channels,)."""
        if self.placed_elsewhere:
            return math.log(2) / np.array(self.node_rates or ())
        return half_lives_of(cast(Placement, self.placement), channels, max_lag=self.max_lag)

    @property
    def has_file_values(self) -> bool:
        """Whether the values of `node_file` are in the arm: its name then ends in #, and their fingerprint."""
        return self.node_file is not None and self.node_file.endswith(f"#{fingerprint(self.node_values)}")

    @property
    def node_values(self) -> dict[str, Any]:
        """The nodes given as numbers, by field."""
        return {name: getattr(self, name) for name in NODE_VALUES}

    @property
    def places_nodes(self) -> bool:
        """Whether the arm says where the decays are; an RWKV otherwise keeps those of its scheme."""
        return self.placement is not None or self.node_rates is not None

    @property
    def shapes(self) -> bool:
        """Whether its projection is meant to carry a power law, rather than to be uniform."""
        given = self.node_rates is not None and not self.placed_elsewhere
        return self.placement in ("quantile", "terms") or self.projection != "uniform" or given

    @property
    def law(self) -> Aim | None:
        """The power law that the arm means (`resolve` fills in what it leaves out); None if it means none."""
        if not self.shapes:
            return None
        return Aim(self.beta, self.target or "information", self.kernel or "coherent", self.lag or "state")


def fingerprint(values: dict[str, Any]) -> str:
    """Twelve hexadecimal digits that tell node values apart."""
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:12]


def with_file_values(arm: Arm) -> Arm:
    """The arm with its `node_file` read: the values in the spec, and their fingerprint behind the file's name.

    A run's configuration thus holds what was read, and a saved spec needs the file no more. Raises ValueError when
    the file is not JSON with {"nodes": {"rates": [per byte], "projection": [...], "gain": "..."}}.
    """
    if arm.node_file is None or arm.has_file_values:
        return arm
    content = load_json(beside(Path(arm.node_file)))
    try:
        nodes = content["nodes"]
        values = {
            "node_rates": tuple(float(rate) for rate in nodes["rates"]),
            "node_multipliers": tuple(float(multiplier) for multiplier in nodes["projection"]),
            "node_gain": nodes["gain"],
        }
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f'node_file {arm.node_file}: no node set in it, expected {{"nodes": {{"rates": [...], "projection": [...], '
            f'"gain": "..."}}}} as plkernel.fit writes it'
        ) from error
    return Arm.model_validate({**arm.model_dump(), **values, "node_file": f"{arm.node_file}#{fingerprint(values)}"})


def with_placed_values(arm: Arm, channels: int, trusted: bool) -> Arm:
    """The arm with what its placement gives, where that is another package's: rates per byte in `node_rates`.

    A run's configuration thus holds what was placed, and a saved spec needs the package no more. Raises ValueError for
    a placement that nobody offers, that may not run yet, and that gives no half-lives (channels,), positive and finite.
    """
    if not arm.placed_elsewhere or len(arm.node_rates or ()) == channels:
        return arm
    name = str(arm.placement)
    offered = {entry.name: entry for entry in entry_points(group=PLACEMENT_GROUP)}
    if name not in offered:
        hint = nearest(name, [*PLACEMENTS, *offered])
        raise ValueError(f"placement {name!r} is none of ours, nor an entry point of {PLACEMENT_GROUP}; {hint}")
    place = offered[name].value
    check_consent({"placement": place}, trusted)
    function = imported(place, "placement")
    try:
        half_lives = np.asarray(function(channels), dtype=float)
    except Exception as error:  # of whatever kind other people's code raises
        raise ValueError(f"placement {name!r}: {place} raised {told(error)}") from error
    if half_lives.shape != (channels,) or not (np.isfinite(half_lives) & (half_lives > 0)).all():
        raise ValueError(f"placement {name!r}: {place} must give {channels} half-lives in bytes, positive and finite")
    return arm.model_copy(update={"node_rates": tuple(rates_from_half_lives(half_lives).tolist())})
