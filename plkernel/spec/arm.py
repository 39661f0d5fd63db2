"""One arm of a study: where it places its decays, how it shapes its projection, and what it starts from."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from plkernel.analysis.nodes.float32_decays import check_half_lives, check_multipliers, check_quantiles, check_rates
from plkernel.analysis.nodes.moments import scaled_to
from plkernel.analysis.nodes.placement import (
    ANCHORS,
    Aim,
    Gain,
    Lag,
    Nodes,
    Placement,
    Projection,
    Summation,
    Target,
    place,
)
from plkernel.analysis.nodes.quantile import LOSS, MAX_LAG
from plkernel.models.init.rwkv_power_law import Bonus, ShapeOn, check_nodes
from plkernel.spec.model import ModelSpec, PositiveNumber, Section
from plkernel.tools.storage import load_json

ENDS = ("shortest", "longest")
QUANTILE_OPTIONS = ("tempering", "loss", "max_lag")
AIM_OPTIONS = ("target", "kernel", "lag")
NODE_VALUES = ("node_rates", "node_multipliers", "node_gain")
IN_THE_STUDY = ("against", "levels", "rates")  # they change no number of a run
OF_ANY_ARM = ("scheme", "scheme_options", "learning_rate", "placement", "model", "corpus", *IN_THE_STUDY)
DEFAULT_SCHEMES = {"ssm": "transformers_default", "rwkv5": "rwkv_blinkdl", "rwkv6": "rwkv_blinkdl"}
# What an RWKV has at initialisation: random signs, information quadratic in them, the newest byte seen through u.
RWKV_AIM: dict[str, Any] = {"target": "correlation", "kernel": "rms", "lag": "bonus"}
RWKV_TEMPERING = 0.5


class Arm(Section):
    """One condition: where the decays are placed and how the projection is shaped."""

    placement: Placement | None = None
    """Node set of the half-lives; quantile: at the quantiles of the power law's own measure. If left out log-spaced,
    and in an RWKV the decays of its scheme. An RWKV has the same nodes in every head."""
    projection: Projection = "uniform"
    """Shape of the projection's columns, in an RWKV of the receptance's rows; quantile nodes shape it by tempering."""
    beta: PositiveNumber = 1.15
    """Exponent of the power law."""
    shortest: PositiveNumber = 1.0
    """Shortest half-life of log-spaced nodes, in bytes."""
    longest: PositiveNumber = 2000.0
    """Longest half-life of log-spaced nodes, in bytes."""
    tempering: Annotated[float, Field(ge=0, le=1)] | None = None
    """Quantile nodes: 1 puts the power law into the density of the nodes (the default; RWKV: 0.5), 0 into the
    projection."""
    loss: Annotated[float, Field(gt=0, lt=0.5)] | None = None
    """Quantile nodes: share of the kernel lost beyond either end; 0.05 if left out."""
    max_lag: Annotated[float, Field(gt=1)] | None = None
    """Quantile nodes: longest lag, in bytes; 2048 if left out. RWKV: how far a power law must hold."""
    target: Target | None = None
    """information: the kernel has the exponent beta (the default); correlation: beta/2, as information is quadratic
    (the default of an RWKV)."""
    kernel: Summation | None = None
    """coherent: the law holds for the plain sum over channels (the default); rms: for random signs of B and C (the
    default of an RWKV)."""
    lag: Lag | None = None
    """state: lag t is seen as a**t (the default); distance: as a**(t-1), which is what a prediction sees; bonus: as
    a**(t-2), which it sees of the state of an RWKV (the default there)."""
    match: str | None = None
    """Scale the projection to the output standard deviation of this arm; baseline is the arm it is compared with."""
    output_std: PositiveNumber | None = None
    """Output standard deviation to scale to, for unit white input, over sqrt(N); set from match where that is given."""
    node_file: str | None = None
    """JSON file with the nodes, as plkernel.fit writes it; relative to the working directory. Read with the spec."""
    node_rates: tuple[PositiveNumber, ...] | None = None
    """Decay rates per byte, one per channel; what node_file held."""
    node_multipliers: tuple[PositiveNumber, ...] | None = None
    """Projection multipliers of these nodes; what node_file held."""
    node_gain: Gain | None = None
    """The input gain that these nodes assume; what node_file held."""

    scheme: str | None = None
    """The initialisation by name (plkernel.init list). Left out: transformers_default, which is N(0.02), and in an RWKV
    rwkv_blinkdl, that of today's official code."""
    scheme_options: dict[str, float] | None = None
    """Free constants of the scheme, as in { base_width = 64 }."""
    learning_rate: PositiveNumber | None = None
    """Peak learning rate of this arm, where it differs from train.learning_rate."""
    rates: Annotated[tuple[PositiveNumber, ...], Field(min_length=2)] | None = None
    """Learning rates to try for this arm, as many as tuning.rates, where its best lies elsewhere; not beside a
    learning_rate."""
    bonus: Bonus | None = None
    """RWKV: scheme leaves u as the scheme has it (the default); law: 2**exponent, which puts distance 1 on the law."""
    shape_on: ShapeOn | Literal["columns", "multiplier"] | None = None
    """Where the shape goes. SSM: columns of the projection (the default), or a fixed multiplier of every state, which
    also acts where a scheme starts the projection at zero. RWKV: receptance; output is refused: it starts at zero."""

    model: dict[str, Any] | None = None
    """Options of [model] that differ in this arm, as in { gain = "ema" }."""
    corpus: dict[str, Any] | None = None
    """Options of [corpus] that differ in this arm, as in { name = "bible:en" }."""
    against: str | None = None
    """The arm it is compared with; the study's baseline if left out."""
    levels: dict[str, str] | None = None
    """Its level of every factor; filled in from [factors]."""

    @property
    def pending(self) -> bool:
        """Whether the arm still refers to a file or to another arm; `parse_spec` and `load_spec` settle both."""
        return (self.node_file is not None and not self.has_file_values) or (
            self.match is not None and self.output_std is None
        )

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
        return self.placement in ("quantile", "terms") or self.projection != "uniform" or self.node_rates is not None

    @property
    def law(self) -> Aim | None:
        """The power law that the arm means (`resolved` fills in what it leaves out); None if it means none."""
        if not self.shapes:
            return None
        return Aim(self.beta, self.target or "information", self.kernel or "coherent", self.lag or "state")

    def scheme_name(self, model: ModelSpec) -> str:
        """The scheme, where left out that of the model's kind."""
        return self.scheme or DEFAULT_SCHEMES[model.kind]

    def resolved(self, model: ModelSpec) -> "Arm":
        """The arm with what it leaves out filled in where that depends on the kind of model."""
        values: dict[str, Any] = {}
        if model.kind == "ssm":
            values = {"placement": "log-spaced"}
        elif self.places_nodes and self.shapes:
            values = {**RWKV_AIM, "max_lag": MAX_LAG, "bonus": "scheme", "shape_on": "receptance"}
            if self.placement == "quantile":
                values["tempering"] = RWKV_TEMPERING
        return self.model_copy(update={name: v for name, v in values.items() if getattr(self, name) is None})

    def check(self, model: ModelSpec) -> None:
        """ValueError when the arm does not fit the model."""
        if model.kind == "ssm":
            self._refuse(("bonus",), "belongs to model kinds rwkv5 and rwkv6: leave it out")
            if self.shape_on not in (None, "columns", "multiplier"):
                raise ValueError(f"shape_on must be columns or multiplier in an SSM, got {self.shape_on!r}")
            if not self.shapes and not self.levels:  # a design may cross the exponent with arms that have none
                self._refuse(
                    ("beta",), "belongs to a power law: set a projection or placement 'quantile', or leave it out"
                )
            self._check_multipliers(self.nodes(model))
            return
        self._refuse(("match", "output_std"), "does nothing in an RWKV, whose GroupNorm takes out any scale")
        if not self.places_nodes:
            names = [name for name in type(self).model_fields if name not in OF_ANY_ARM]
            self._refuse(names, "needs a placement in an RWKV, which otherwise keeps the decays of its scheme")
            return
        if self.projection == "published":
            raise ValueError(
                "projection 'published' is right under the EMA gain only, which an RWKV does not have: use "
                "'gain-corrected', which follows the key's own gain"
            )
        arm = self.resolved(model)
        if arm.law is None:
            unused = ("beta", "max_lag", *AIM_OPTIONS, "bonus", "shape_on")
            self._refuse(unused, "belongs to a power law: set projection 'gain-corrected', or leave it out")
        nodes = arm.nodes(model)
        self._check_multipliers(nodes)
        check_nodes(
            nodes,
            arm.law,
            arm.max_lag or MAX_LAG,
            head_size=model.head_size,
            k_clamp=model.k_clamp,
            shape_on=str(arm.shape_on or "receptance"),
        )

    def _refuse(self, names: Iterable[str], reason: str) -> None:
        """ValueError for the first of these options that is given."""
        for name in names:
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} {getattr(self, name)} {reason}")

    def nodes(self, model: ModelSpec) -> Nodes:
        """The node set of this arm for `model`, with rates per patch; ValueError where the two do not fit."""
        if self.pending:
            raise ValueError(
                "match and node_file refer to more than this arm: read the spec with parse_spec or load_spec"
            )
        nodes = self.placed(model)
        return nodes if self.output_std is None else scaled_to(nodes, self.output_std)

    def placed(self, model: ModelSpec) -> Nodes:
        """The node set before any matching of its output: of an SSM's channels, or of those of an RWKV's head."""
        arm = self.resolved(model)
        given = {name: getattr(arm, name) for name in (*QUANTILE_OPTIONS, *AIM_OPTIONS)}
        given = {name: value for name, value in given.items() if value is not None}
        if model.kind != "ssm" and arm.placement != "quantile":
            given.pop("max_lag", None)  # how far the law is checked: it places nothing
        if any(value is not None for value in arm.node_values.values()):
            return arm._given_nodes(model, given)
        if arm.placement is None or arm.placement == "terms":
            raise ValueError(
                "placement 'terms' needs a fit: write one with plkernel.fit --out and name it in node_file"
            )
        unused = [name for name in QUANTILE_OPTIONS if name in given]
        if unused and arm.placement != "quantile":
            raise ValueError(f"{unused[0]} belongs to placement 'quantile', got placement {arm.placement!r}")
        given |= {name: getattr(arm, name) for name in ENDS if arm.placement == "log-spaced"}
        if arm.placement != "log-spaced":
            arm._refuse(ENDS, f"belongs to placement 'log-spaced', got placement {arm.placement!r}: leave it out")
        arm._check_half_lives(model)
        return place(
            model.node_count,
            placement=arm.placement,
            projection=arm.projection,
            gain_name=model.input_gain,
            beta=arm.beta,
            step=model.patching.size,
            **given,
        )

    def _check_half_lives(self, model: ModelSpec) -> None:
        """ValueError, with what would work, where a float32 decay cannot hold the half-lives that the arm places."""
        step = model.patching.size
        if self.placement == "quantile":
            law, loss = self.law or Aim(self.beta), LOSS if self.loss is None else self.loss
            check_quantiles(law, self.max_lag or MAX_LAG, loss, step)
        elif self.placement == "concentrated":
            check_half_lives({"placement 'concentrated', half-life": ANCHORS[0] / 2}, step)
        else:
            check_half_lives({name: getattr(self, name) for name in ENDS}, step)

    def _check_multipliers(self, nodes: Nodes) -> None:
        """ValueError for a shape whose squares float32 does not hold."""
        largest, given = max(nodes.projection), self.output_std
        check_multipliers("output_std" if given else "node_multipliers", given or largest, largest)

    def _given_nodes(self, model: ModelSpec, options: dict[str, Any]) -> Nodes:
        """The nodes that are in the spec as numbers, per byte, for a step of the model."""
        where = f" of {self.node_file.rpartition('#')[0]}" if self.node_file else ""
        missing = [name for name, value in self.node_values.items() if value is None]
        if missing:
            raise ValueError(f"{missing[0]} is missing: {', '.join(NODE_VALUES)} go together")
        ignored = (*ENDS, "beta") if model.kind == "ssm" else ENDS
        self._refuse(ignored, "does not go with node_file, whose nodes are placed already: leave it out")
        allowed = () if model.kind == "ssm" else AIM_OPTIONS  # what the law is that an RWKV is checked against
        unused = [name for name in options if name not in allowed]
        if unused or self.placement not in (None, "log-spaced") or self.projection != "uniform":
            name = next(iter(unused), "projection" if self.projection != "uniform" else "placement")
            raise ValueError(f"{name} does not go with node_file, whose nodes are placed already: leave it out")
        if self.node_gain != model.input_gain and model.kind == "ssm":
            raise ValueError(f"the nodes{where} assume gain {self.node_gain!r}, but model.gain is {model.gain!r}")
        counts = [len(values or ()) for values in (self.node_rates, self.node_multipliers)]
        if counts != [model.node_count, model.node_count]:
            size = f"model.{'dim' if model.kind == 'ssm' else 'head_size'} is {model.node_count}"
            raise ValueError(
                f"the nodes{where} are {counts[0]} rates and {counts[1]} multipliers, but {size}: "
                "the numbers must be equal"
            )
        step, rates = model.patching.size, self.node_rates or ()
        check_rates(f"node_rates{where}", rates, step)
        return Nodes(tuple(rates), tuple(self.node_multipliers or ()), self.node_gain or "none").per_step(step)


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
    content = load_json(Path(arm.node_file))
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
