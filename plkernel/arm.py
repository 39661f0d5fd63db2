"""One arm of a study: the model that all arms share, and where this one places its decays."""

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from plkernel.analysis.moments import scaled_to
from plkernel.analysis.nodes import Gain, Lag, Nodes, Placement, Projection, Summation, Target, place
from plkernel.models.init.rwkv import DEFAULT_SCHEME, check_scheme
from plkernel.models.patching import PatchingMode
from plkernel.storage import load_json

Positive = Annotated[int, Field(ge=1)]
PositiveNumber = Annotated[float, Field(gt=0)]
QUANTILE_OPTIONS = ("tempering", "loss", "max_lag")
AIM_OPTIONS = ("target", "kernel", "lag")
NODE_VALUES = ("node_rates", "node_multipliers", "node_gain")


class Section(BaseModel):
    """A part of a spec: immutable, and closed to keys it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


class PatchingSpec(Section):
    """How bytes are grouped into the steps of the recurrence."""

    size: Positive = 1
    """Bytes per patch; 1 is no patching."""
    mode: PatchingMode = "causal"
    """causal: a byte sees completed patches only. published: it sees its own target (kept for audit)."""


class ModelSpec(Section):
    """The model that all arms share."""

    kind: Literal["ssm", "rwkv5", "rwkv6"] = "ssm"
    """ssm: the diagonal SSM. rwkv5, rwkv6: Eagle and Finch."""
    dim: Annotated[int, Field(ge=2)] = 96
    """Width, also the state size."""
    layers: Positive = 4
    """Number of blocks."""
    gain: Gain = "none"
    """Input gain of the recurrence: none 1, ema 1 - a, lru sqrt(1 - a**2)."""
    patching: PatchingSpec = PatchingSpec()
    head_size: Positive = 32
    """RWKV: channels of a head; dim must be a multiple."""
    k_clamp: bool = False
    """RWKV: scale the key by min(1, lambda), an EMA-like input gain."""

    @model_validator(mode="after")
    def _of_one_kind(self) -> "ModelSpec":
        foreign = ("head_size", "k_clamp") if self.kind == "ssm" else ("gain", "patching")
        for name in foreign:
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} does not belong to model kind {self.kind!r}: leave it out")
        if self.kind != "ssm" and self.dim % self.head_size:
            raise ValueError(f"dim {self.dim} must be a multiple of head_size {self.head_size}")
        return self


class Arm(Section):
    """One condition: where the decays are placed and how the projection is shaped."""

    placement: Placement = "log-spaced"
    """Node set of the half-lives; quantile places them at the quantiles of the power law's own measure."""
    projection: Projection = "uniform"
    """Shape of the projection's columns, mean 1; placement quantile shapes it by tempering instead."""
    beta: PositiveNumber = 1.15
    """Exponent of the power law."""
    shortest: PositiveNumber = 1.0
    """Shortest half-life of log-spaced nodes, in bytes."""
    longest: PositiveNumber = 2000.0
    """Longest half-life of log-spaced nodes, in bytes."""
    tempering: Annotated[float, Field(ge=0, le=1)] | None = None
    """Quantile nodes: 1 puts the power law into the density of the nodes (the default), 0 into the projection."""
    loss: Annotated[float, Field(gt=0, lt=0.5)] | None = None
    """Quantile nodes: share of the kernel lost beyond either end; 0.05 if left out."""
    max_lag: Annotated[float, Field(gt=1)] | None = None
    """Quantile nodes: longest lag, in bytes; 2048 if left out."""
    target: Target | None = None
    """information: the kernel has the exponent beta (the default); correlation: beta/2, as information is quadratic."""
    kernel: Summation | None = None
    """coherent: the law holds for the plain sum over channels (the default); rms: for random signs of B and C."""
    lag: Lag | None = None
    """state: lag t is seen as a**t (the default); distance: as a**(t-1), which is what a prediction sees."""
    match: str | None = None
    """Scale the projection to the output standard deviation of this arm; baseline is the study's baseline."""
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
    """RWKV: the initialisation by name; rwkv_blinkdl, that of today's official code, if left out."""

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

    def check(self, model: ModelSpec) -> None:
        """ValueError when the arm does not fit the model."""
        if model.kind == "ssm":
            if self.scheme is not None:
                raise ValueError("scheme belongs to model kinds rwkv5 and rwkv6: leave it out")
            self.nodes(model)
            return
        for name, field in type(self).model_fields.items():
            if name != "scheme" and getattr(self, name) != field.default:
                raise ValueError(f"{name} belongs to model kind 'ssm', but model.kind is {model.kind!r}: leave it out")
        check_scheme(self.scheme or DEFAULT_SCHEME, 5 if model.kind == "rwkv5" else 6)

    def nodes(self, model: ModelSpec) -> Nodes:
        """The node set of this arm for `model`, with rates per patch; ValueError where the two do not fit."""
        if self.pending:
            raise ValueError(
                "match and node_file refer to more than this arm: read the spec with parse_spec or load_spec"
            )
        nodes = self.placed(model)
        return nodes if self.output_std is None else scaled_to(nodes, self.output_std)

    def placed(self, model: ModelSpec) -> Nodes:
        """The node set before any matching of its output."""
        given = {name: getattr(self, name) for name in (*QUANTILE_OPTIONS, *AIM_OPTIONS)}
        given = {name: value for name, value in given.items() if value is not None}
        if any(value is not None for value in self.node_values.values()):
            return self._given_nodes(model, given)
        if self.placement == "terms":
            raise ValueError(
                "placement 'terms' needs a fit: write one with plkernel.fit --out and name it in node_file"
            )
        unused = [name for name in QUANTILE_OPTIONS if name in given]
        if unused and self.placement != "quantile":
            raise ValueError(f"{unused[0]} belongs to placement 'quantile', got placement {self.placement!r}")
        return place(
            model.dim,
            placement=self.placement,
            projection=self.projection,
            gain_name=model.gain,
            beta=self.beta,
            shortest=self.shortest,
            longest=self.longest,
            step=model.patching.size,
            **given,
        )

    def _given_nodes(self, model: ModelSpec, options: dict[str, Any]) -> Nodes:
        """The nodes that are in the spec as numbers, per byte, for a step of the model."""
        where = f" of {self.node_file.rpartition('#')[0]}" if self.node_file else ""
        missing = [name for name, value in self.node_values.items() if value is None]
        if missing:
            raise ValueError(f"{missing[0]} is missing: {', '.join(NODE_VALUES)} go together")
        if options or self.placement != "log-spaced" or self.projection != "uniform":
            name = next(iter(options), "placement" if self.placement != "log-spaced" else "projection")
            raise ValueError(f"{name} does not go with node_file, whose nodes are placed already: leave it out")
        if self.node_gain != model.gain:
            raise ValueError(f"the nodes{where} assume gain {self.node_gain!r}, but model.gain is {model.gain!r}")
        counts = [len(values or ()) for values in (self.node_rates, self.node_multipliers)]
        if counts != [model.dim, model.dim]:
            raise ValueError(
                f"the nodes{where} are {counts[0]} rates and {counts[1]} multipliers, but model.dim is {model.dim}: "
                "the numbers must be equal"
            )
        nodes = Nodes(tuple(self.node_rates or ()), tuple(self.node_multipliers or ()), model.gain)
        return nodes.per_step(model.patching.size)


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
