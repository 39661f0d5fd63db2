"""One condition of a study: all that decides the numbers of a run but its seed."""

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pydantic import BaseModel, ValidationError

from plkernel.analysis import nodes as decays
from plkernel.common.files import shown
from plkernel.config.schema import (
    AIM_OPTIONS,
    IN_THE_STUDY,
    NODE_VALUES,
    Arm,
    CorpusSpec,
    ModelSpec,
    TrainSpec,
    explained,
)
from plkernel.models import rwkv_nodes
from plkernel.models.kinds import BUILDERS, KINDS, Kind

# At initialisation an RWKV has random signs, and information quadratic in them.
RWKV_AIM = {
    "target": "correlation",
    "kernel": "rms",
    "max_lag": decays.HORIZON,
    "bonus": "scheme",
}
RWKV_TEMPERING = 0.5
"""The default with quantile nodes: the law half in the density of decays, half in receptances."""
ENDS = ("shortest", "longest")
"""Options of the ends of the half-lives."""
OF_A_FOREIGN_ARM = {"learning_rate", "model", "corpus", "init", "init_options", *IN_THE_STUDY}
"""Options of an arm whose model other people's code builds."""
OF_ANY_ARM = {"scheme", "scheme_options", "placement", "spectrum", *OF_A_FOREIGN_ARM}
"""Options that an RWKV has also where the arm places no decays."""


@dataclass(frozen=True)
class Condition:
    """All that decides the numbers of a run but its seed.

    `resolve` makes one from an arm and its model, `from_config` reads one back.

    arm      with the defaults of the model's kind filled in
    train    with the learning rate of the arm; None for a model that is not trained
    study    the name of the spec, and `name` that of the arm in it
    trusted  consent of the person at the command line to the code that it names, which no file can
             give
    """

    model: ModelSpec
    arm: Arm
    train: TrainSpec | None = None
    corpus: CorpusSpec = field(default_factory=CorpusSpec)
    study: str = ""
    name: str = ""
    trusted: bool = field(default=False, compare=False, repr=False)

    def __hash__(self) -> int:
        return hash((self.study, self.name))

    @property
    def code(self) -> dict[str, str]:
        """The names of other people's code in it, by the option that names them."""
        named = {}
        if self.model.is_foreign:
            named["kind"] = self.model.kind
        if self.arm.init is not None:
            named["init"] = self.arm.init
        return named

    @property
    def scheme(self) -> str:
        """The initialisation scheme, by default that of the model's kind.

        Raises ValueError for other people's models, which have none.
        """
        usual = self.model.of_kind.scheme
        if usual is None:
            raise ValueError(f"kind must be one that has a scheme, got {self.model.kind!r}")
        return self.arm.scheme or usual

    @property
    def places_nodes(self) -> bool:
        """True where the arm decides the decays: always, in a model that has none of its own."""
        if self.model.is_foreign:
            return False
        return self.arm.places_nodes or not self.model.of_kind.has_own_decays

    @property
    def checks_law(self) -> bool:
        """True where placed decays are held against the law of the arm: in the heads of an RWKV."""
        return self.model.of_kind.newest_lag is not None

    @property
    def protocol(self) -> TrainSpec:
        """The training protocol; ValueError for a model that is not trained."""
        if self.train is None:
            raise ValueError(f"train must be given for condition {self.name!r}, got none")
        return self.train

    @property
    def config(self) -> dict[str, Any]:
        """Plain values, from which `from_config` makes an equal condition."""
        return {
            "study": self.study,
            "arm": self.name,
            "corpus": self.corpus.model_dump(),
            "model": self.model.model_dump(),
            "arm_options": self.arm.model_dump(exclude=set(IN_THE_STUDY)),
            "train": self.train.model_dump() if self.train else None,
        }

    @cached_property
    def nodes(self) -> decays.Nodes:
        """The decays that the arm places, per patch: of an SSM's channels, of those of a head.

        Raises ValueError where the arm does not fit the model.
        """
        arm = self.arm
        if self.model.is_foreign:
            raise ValueError(
                f"kind must be one whose nodes are known, got {self.model.kind!r}, of other people"
            )
        values = [getattr(arm, name) for name in NODE_VALUES]
        is_unread = arm.node_file is not None and None in values
        is_unmatched = arm.match is not None and arm.output_std is None
        if is_unread or is_unmatched:
            raise ValueError(
                "match and node_file must be resolved first, as they refer to more than this arm;"
                " read the spec with load_spec"
            )
        are_given = any(value is not None for value in values)
        nodes = self._given_nodes(*values) if are_given else self._placed_nodes()
        return nodes if arm.output_std is None else decays.scaled_to(nodes, arm.output_std)

    def _placed_nodes(self) -> decays.Nodes:
        """The nodes of the arm's placement, within what float32 holds."""
        arm = self.arm
        model = self.model
        step = model.patching.size
        if arm.placement is None or arm.placement == "terms":
            raise ValueError(
                "node_file must be given with placement 'terms', got none; write one with"
                " plkernel.fit --out"
            )
        counted_by = f"model.{model.of_kind.node_option}"
        decays.check_channels(arm.placement, model.node_count, counted_by)
        if arm.placement == "quantile":
            self._check_quantiles()
        with warnings.catch_warnings(action="ignore"):  # a study holds half-lives to its context
            nodes = decays.place(
                model.node_count,
                gain=model.input_gain,
                fastest=model.of_kind.largest_rate if arm.placement == "quantile" else None,
                placement=arm.placement,
                projection=arm.projection,
                beta=arm.beta if arm.shapes else decays.BETA,
                step=step,
                **self._given_options(),
            )
        for name, rate in zip(ENDS, (max(nodes.rates), min(nodes.rates)), strict=True):
            decays.check_rates(f"placement {arm.placement!r}: {name}", [rate], step)
        if math.isfinite(model.of_kind.largest_rate):
            rwkv_nodes.check_largest_rate(
                max(nodes.rates), f"placement {arm.placement!r}: {ENDS[0]}"
            )
        return nodes

    def _given_options(self) -> dict[str, Any]:
        """The options of the placement that the arm gives.

        max_lag is one for placements that end there; else it bounds the check of an RWKV's law.
        """
        names = ["tempering", "loss", *AIM_OPTIONS, *ENDS]
        if not self.checks_law or self.arm.placement in decays.PLACEMENTS_OF["max_lag"]:
            names.append("max_lag")
        given = {name: getattr(self.arm, name) for name in names}
        return {
            name: value for name, value in given.items() if value != Arm.model_fields[name].default
        }

    def _check_quantiles(self) -> None:
        """Raise ValueError where float32 does not hold the rates of the quantiles of the law."""
        arm = self.arm
        step = self.model.patching.size
        law = arm.law or decays.Aim(arm.beta)
        longest = arm.max_lag or decays.HORIZON
        rates = law.rate_range(longest / step, arm.loss or decays.LOSS)
        decays.check_rates(f"placement 'quantile' with beta {arm.beta:g}: half-lives", rates, step)

    def _given_nodes(self, *values: Any) -> decays.Nodes:
        """The nodes that are in the spec as numbers, per byte, for a step of the model."""
        arm = self.arm
        model = self.model
        step = model.patching.size
        head = f"the nodes of {arm.node_file.rpartition('#')[0]}" if arm.node_file else "the nodes"
        if None in values:
            missing = NODE_VALUES[values.index(None)]
            raise ValueError(f"{missing} must be given, since {', '.join(NODE_VALUES)} go together")
        rates, multipliers, gain = values
        arm.refuse(
            self._unused_beside_nodes(),
            "does not go with node_file, whose nodes are placed already: leave it out",
        )
        if gain != model.input_gain and not self.checks_law:
            raise ValueError(f"model.gain must be that of {head}, {gain!r}, got {model.gain!r}")
        if not len(rates) == len(multipliers) == model.node_count:
            size = f"model.{model.of_kind.node_option}, {model.node_count}"
            raise ValueError(
                f"{head} must be as many as {size}, got {len(rates)} rates and {len(multipliers)}"
                " multipliers"
            )
        decays.check_rates(f"{head}: half-lives", [rate * step for rate in rates], step)
        return decays.Nodes(rates, multipliers, gain).per_step(step)

    def _unused_beside_nodes(self) -> Iterator[str]:
        """Yield the options of placing nodes, which given nodes make useless."""
        yield from ("projection", *ENDS, "tempering", "loss")
        if self.arm.placement != "log-spaced":
            yield "placement"
        if not self.checks_law:
            yield from ("max_lag", "beta", *AIM_OPTIONS)

    def check(self) -> None:
        """Raise ValueError where the arm does not fit the model.

        Its scheme is checked where models are built.
        """
        for names, reason in self._unused():
            self.arm.refuse(names, reason)
        self._check_scheme()
        self._check_training()
        if self.places_nodes:
            self._check_shape()
            self._check_multipliers()
            self._check_order()
            if self.checks_law:
                self._check_law()

    def _check_scheme(self) -> None:
        """Raise ValueError for a scheme of decays that models of this kind do not take from it."""
        scheme = self.arm.scheme
        owners = [name for name, kind in KINDS.items() if scheme and kind.spectral_scheme == scheme]
        if owners and self.model.kind not in owners:
            raise ValueError(
                f"scheme {scheme!r} belongs to model kind {' or '.join(owners)}, whose decays it"
                f" sets, got kind {self.model.kind!r}: set spectrum in an SSM, or leave it out"
            )

    def _check_training(self) -> None:
        """Raise ValueError for an option of training that the model has no use for."""
        model = self.model
        if self.train is None:
            return
        if model.is_foreign:
            reason = f"belongs to models of plkernel, got kind {model.kind!r}: leave it out"
            self.train.refuse(["backend", "carry"], reason, "train.")
        elif not model.is_causal:
            reason = "needs a state, which patching mode 'published' has none of: leave it out"
            self.train.refuse(["carry"], reason, "train.")

    def _check_multipliers(self) -> None:
        """Raise ValueError where multipliers of the projection are too large or too small."""
        largest = max(self.nodes.projection)
        std = self.arm.output_std
        name = "output_std" if std else "node_multipliers"
        decays.check_multipliers(name, std or largest, largest)

    def _check_order(self) -> None:
        """Raise ValueError where decays that need an order are alike from the start.

        An ordered model keeps it, and the scaling of a channel goes by its place in it.
        """
        model = self.model
        if model.parametrisation == "ordered":
            wanted = "parametrisation must be 'free'"
            got = "'ordered'"
        elif model.position_scaling:
            wanted = "position_scaling must be false"
            got = "true"
        else:
            return
        rates = self.nodes.rates
        heads = model.dim // len(rates)
        if heads > 1:
            raise ValueError(
                f"model.{wanted} where nodes are placed in each of {heads} heads, as decays that"
                f" are alike have no order, got {got}; or set model.head_size = {model.dim}"
            )
        if len(set(rates)) < len(rates):
            raise ValueError(
                f"model.{wanted} for nodes some of which are alike, and have no order, got {got}"
            )

    def _check_shape(self) -> None:
        """Raise ValueError where the shape goes to a place that the model does not have."""
        place = self.arm.shape_on
        kind = self.model.of_kind
        if place is not None and place not in kind.shape_on:
            known = " or ".join(kind.shape_on)
            raise ValueError(f"shape_on must be {known} in {kind.words}, got {place!r}")

    def _check_law(self) -> None:
        """Raise ValueError where the nodes of an RWKV do not follow the law of the arm."""
        model = self.model
        rwkv_nodes.check_nodes(
            self.nodes,
            self.arm.law,
            self.arm.max_lag or decays.HORIZON,
            goose=model.kind == "rwkv7",
            head_size=model.head_size,
            k_clamp=model.k_clamp,
        )

    def _unused(self) -> Iterator[tuple[Iterable[str], str]]:
        """Yield options that the condition has no use for, and why."""
        kind = self.model.kind
        if self.arm.init is None:
            yield ["init_options"], "are for an init: set init, or leave them out"
        if self.model.is_foreign:
            known = set(OF_A_FOREIGN_ARM)
            if self.model.of_kind.has_spectrum:
                known.add("spectrum")
            others = [name for name in Arm.model_fields if name not in known]
            reason = f"belongs to models of plkernel, got kind {kind!r}: use config or init"
            yield others, reason
        elif self.checks_law:
            yield from self._unused_in_rwkv()
        else:
            yield from self._unused_in_ssm()

    def _unused_in_ssm(self) -> Iterator[tuple[Iterable[str], str]]:
        yield ["bonus"], "belongs to model kinds rwkv5 and rwkv6: leave it out"
        in_a_design = bool(self.arm.levels)  # which may cross exponents with arms that have none
        if not self.arm.shapes and not in_a_design:
            reason = "belongs to a power law: set a projection or placement 'quantile', or leave it"
            yield ["beta"], f"{reason} out"

    def _unused_in_rwkv(self) -> Iterator[tuple[Iterable[str], str]]:
        arm = self.arm
        reason = "does nothing in an RWKV, whose GroupNorm takes out any scale"
        yield ["match", "output_std"], reason
        if not arm.places_nodes:
            others = [name for name in Arm.model_fields if name not in OF_ANY_ARM]
            reason = "needs a placement in an RWKV, which otherwise keeps its scheme's decays"
            yield others, reason
        if arm.projection == "published":
            yield ["projection"], "is right under the EMA gain only: use 'gain-corrected'"
        if arm.bonus == "law" and not self.model.of_kind.has_bonus:
            yield ["bonus"], "belongs to model kinds rwkv5 and rwkv6: leave it out"
        if arm.law is None:
            unused = ["beta", "max_lag", *AIM_OPTIONS, "bonus", "shape_on"]
            yield unused, "belongs to a power law: set projection 'gain-corrected', or leave it out"


def resolve(
    model: ModelSpec,
    arm: Arm | None = None,
    train: TrainSpec | None = None,
    corpus: CorpusSpec | None = None,
    study: str = "",
    name: str = "",
    trusted: bool = False,
) -> Condition:
    """Return the condition of `arm`, with what its model and the arm itself decide.

    Options that are left open get the defaults of the model's kind, and the protocol gets the
    learning rate of the arm.
    """
    arm = arm or Arm()
    if model.position_scaling and model.scaling_length is None and train is not None:
        model = model.model_copy(update={"scaling_length": train.context})
    if model.is_foreign:
        model = _with_decays_in_config(model)
    if arm.spectrum is not None:
        arm = _spread(model, arm, arm.spectrum, train)
    missing = {
        option: value
        for option, value in _defaults(model, arm).items()
        if getattr(arm, option) is None
    }
    arm = arm.model_copy(update=missing)
    if train is not None and arm.learning_rate is not None:
        train = train.model_copy(update={"learning_rate": arm.learning_rate})
    return Condition(model, arm, train, corpus or CorpusSpec(), study, name, trusted)


def _with_decays_in_config(model: ModelSpec) -> ModelSpec:
    """Return the model with its options of decays in its `config`, which its builder is given.

    Raises ValueError where they are given there too, and otherwise.
    """
    derived: dict[str, tuple[str, Any]] = {}
    if model.parametrisation != "free":
        derived["parametrisation"] = "parametrisation", model.parametrisation
    if model.position_scaling:
        derived["scaling_length"] = "position_scaling", model.scaled_over
    config = dict(model.config or {})
    for name, (option, value) in derived.items():
        given = config.setdefault(name, value)
        if given != value:
            raise ValueError(
                f"config.{name} must be left out beside model.{option}, which makes it {value!r},"
                f" got {given!r}"
            )
    return model.model_copy(update={"config": config}) if derived else model


def _spread(model: ModelSpec, arm: Arm, multiple: float, train: TrainSpec | None) -> Arm:
    """Return the arm with what its `spectrum`, this multiple of the context, stands for.

    An SSM: half-lives of time constants from one step to the multiple of the context. RWKV-7: the
    scheme that has them, Mamba-2: the init. Raises ValueError where they are given in another way
    too, and where nothing is trained, unless the arm was saved with them.
    """
    scheme = model.of_kind.spectral_scheme
    init = model.of_kind.spectral_init
    _check_takes_spectrum(model, arm)
    if train is None:
        filled = _filled_by_spectrum(model.of_kind)
        if getattr(arm, filled) == Arm.model_fields[filled].default:
            raise ValueError(
                "train must be given with spectrum, whose context it takes, got a model that is"
                " not trained"
            )
        return arm
    reach = float(multiple * train.context)
    step = model.patching.size
    least, most = (steps * step for steps in model.of_kind.spectrum_range)
    if not least < reach <= most:
        beside = "" if scheme is None else " with the zigzag of heads"
        raise ValueError(
            f"spectrum must be above {least / train.context:.3g} and at most"
            f" {most / train.context:.3g} for a context of {train.context}, from the shortest time"
            f" constant to what a float32 decay holds{beside}, got {multiple:g}"
        )
    if scheme is not None:
        return _with_reach(arm, "scheme", scheme, reach)
    if init is not None:
        return _with_reach(arm, "init", init, reach)
    return _filled(arm, {"shortest": math.log(2) * step, "longest": math.log(2) * reach})


def _filled_by_spectrum(kind: Kind) -> str:
    """Return an option of an arm that a `spectrum` fills in for models of this kind."""
    if kind.spectral_scheme is not None:
        return "scheme"
    return "longest" if kind.spectral_init is None else "init"


def _check_takes_spectrum(model: ModelSpec, arm: Arm) -> None:
    """ValueError for a kind of model without a spectrum, and for a placement beside it."""
    kind = model.of_kind
    if not kind.has_spectrum:
        kinds = {**KINDS, **BUILDERS}
        known = " or ".join(name for name, one in kinds.items() if one.has_spectrum)
        raise ValueError(
            f"spectrum must be left out unless the model is of kind {known}, got kind"
            f" {model.kind!r}"
        )
    is_placed = _filled_by_spectrum(kind) == "longest"
    if arm.placement is not None and not (is_placed and arm.placement == "log-spaced"):
        raise ValueError(
            f"placement must be left out beside spectrum, which places decays, got"
            f" {arm.placement!r}"
        )


def _with_reach(arm: Arm, option: str, name: str, reach: float) -> Arm:
    """Return the arm with `name` as its scheme or init, whose longest time constant is `reach`.

    Raises ValueError where the arm gives another one.
    """
    options = f"{option}_options"
    given = getattr(arm, options) or {}
    longest = given.get("longest", reach)
    if longest != reach:
        raise ValueError(
            f"{options}.longest must be left out beside spectrum, which makes it {reach:g}, got"
            f" {shown(longest)}"
        )
    arm = arm.model_copy(update={options: {**given, "longest": reach}})
    return _filled(arm, {option: name})


def _filled(arm: Arm, derived: Mapping[str, Any]) -> Arm:
    """Return the arm with these values; ValueError for one that it has already, and another."""
    for name, value in derived.items():
        given = getattr(arm, name)
        if given not in (Arm.model_fields[name].default, value):
            raise ValueError(
                f"{name} must be left out beside spectrum, which makes it {value!r}, got {given!r}"
            )
    return arm.model_copy(update=dict(derived))


def _defaults(model: ModelSpec, arm: Arm) -> dict[str, Any]:
    """Return the options of an arm whose defaults depend on the model."""
    kind = model.of_kind
    if not kind.has_own_decays:
        return {"placement": "log-spaced"}
    if model.is_foreign or not (arm.places_nodes and arm.shapes):
        return {}
    values: dict[str, Any] = {**RWKV_AIM, "lag": kind.newest_lag, "shape_on": kind.shape_on[0]}
    if arm.placement == "quantile":
        values["tempering"] = RWKV_TEMPERING
    return values


class SavedSections(BaseModel):
    """The sections of a saved configuration."""

    model: ModelSpec
    arm_options: Arm
    train: TrainSpec | None
    corpus: CorpusSpec


def from_config(config: Mapping[str, Any], trusted: bool = False) -> Condition:
    """Return the condition in `config`, the content of a run's config.json.

    trusted: consent of the person who asks. Options that an earlier version did not have are at
    their defaults. Raises KeyError, TypeError, AttributeError or ValueError for anything else, with
    pydantic's errors in words.
    """
    corpus = config.get("corpus", {})
    model = config["model"]
    known = set(CorpusSpec.model_fields)
    values = {
        "model": {name: value for name, value in model.items() if name != "parameters"},
        "arm_options": config["arm_options"],
        "train": config.get("train"),
        "corpus": {name: value for name, value in corpus.items() if name in known},
    }
    try:
        saved = SavedSections.model_validate(values)
    except ValidationError as error:
        raise ValueError(explained(error, SavedSections)) from None
    study = config.get("study", "")
    name = config.get("arm", "")
    return resolve(saved.model, saved.arm_options, saved.train, saved.corpus, study, name, trusted)
