"""One condition of a study: what an arm stands for, resolved once, and all that a run of it is told."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

import numpy as np

from plkernel.analysis.limits import (
    check_half_lives,
    check_largest_rate,
    check_multipliers,
    check_nodes,
    check_quantiles,
    check_rates,
)
from plkernel.analysis.nodes import HORIZON, LOSS, PLACEMENTS_OF, Aim, Nodes, Placement, place, scaled_to, shaped
from plkernel.config.arm import (
    AIM_OPTIONS,
    ENDS,
    IN_THE_STUDY,
    NODE_VALUES,
    OF_A_FOREIGN_ARM,
    OF_ANY_ARM,
    QUANTILE_OPTIONS,
    Arm,
)
from plkernel.config.corpus import CorpusSpec
from plkernel.config.model import ModelSpec
from plkernel.config.train import TrainSpec

DEFAULT_SCHEMES = {
    "ssm": "transformers_default",
    "rwkv5": "rwkv_blinkdl",
    "rwkv6": "rwkv_blinkdl",
    "rwkv7": "rwkv7_official",
}
# What an RWKV has at initialisation: random signs, information quadratic in them, the newest byte seen through u; in
# RWKV-7 through the state.
RWKV_AIM: dict[str, Any] = {"target": "correlation", "kernel": "rms", "lag": "bonus"}
RWKV7_AIM = {**RWKV_AIM, "lag": "distance"}
RWKV_TEMPERING = 0.5


@dataclass(frozen=True)
class Condition:
    """Everything that decides the numbers of a run but its seed; `resolve` makes one, `from_config` reads one back.

    arm: with what it leaves to the kind of model filled in; train: with the arm's own learning rate where it has one,
    None for a model that is not trained; study and name: of the spec and of the arm in it; trusted: whether the person
    at the command line has said that the code it names may run, which no file ever says.
    """

    model: ModelSpec
    arm: Arm
    train: TrainSpec | None = None
    corpus: CorpusSpec = field(default_factory=CorpusSpec)
    study: str = ""
    name: str = ""
    trusted: bool = field(default=False, compare=False, repr=False)

    @property
    def code(self) -> dict[str, str]:
        """The names of other people's code in it, by the option that names them."""
        named = {"kind": self.model.kind if self.model.is_foreign else None, "init": self.arm.init}
        return {option: name for option, name in named.items() if name is not None}

    @property
    def scheme(self) -> str:
        """The initialisation scheme, where left out that of the model's kind; of other people's models none."""
        if self.model.is_foreign:
            raise ValueError(f"a model of kind {self.model.kind!r} has no scheme")
        return self.arm.scheme or DEFAULT_SCHEMES[self.model.kind]

    @property
    def protocol(self) -> TrainSpec:
        """How it is trained; ValueError for a model that is not."""
        if self.train is None:
            raise ValueError(f"condition {self.name!r} has no training protocol")
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
            "train": self.train and self.train.model_dump(),
        }

    @cached_property
    def nodes(self) -> Nodes:
        """The decays that the arm places, per patch: of an SSM's channels, or of those of an RWKV's head.

        Raises ValueError where the arm does not fit the model.
        """
        if self.model.is_foreign:
            raise ValueError(f"a model of kind {self.model.kind!r} has no nodes that are known")
        if self.arm.pending:
            raise ValueError("match, node_file or placement refers to more than this arm: read the spec with load_spec")
        placed = self._placed()
        return placed if self.arm.output_std is None else scaled_to(placed, self.arm.output_std)

    def check(self) -> None:
        """ValueError when the arm does not fit the model; of its scheme nothing is known here."""
        arm, model = self.arm, self.model
        if arm.init_options is not None and arm.init is None:
            raise ValueError("init_options need an init that is given them: set init, or leave them out")
        if model.is_foreign:
            self._check_foreign()
            return
        if model.kind == "ssm":
            self._refuse(("bonus",), "belongs to model kinds rwkv5 and rwkv6: leave it out")
            if arm.shape_on not in (None, "columns", "multiplier"):
                raise ValueError(f"shape_on must be columns or multiplier in an SSM, got {arm.shape_on!r}")
            if not arm.shapes and not arm.levels:  # a design may cross the exponent with arms that have none
                self._refuse(
                    ("beta",), "belongs to a power law: set a projection or placement 'quantile', or leave it out"
                )
            self._check_multipliers()
            return
        self._refuse(("match", "output_std"), "does nothing in an RWKV, whose GroupNorm takes out any scale")
        if not arm.places_nodes:
            names = [name for name in Arm.model_fields if name not in OF_ANY_ARM]
            self._refuse(names, "needs a placement in an RWKV, which otherwise keeps the decays of its scheme")
            return
        if arm.projection == "published":
            raise ValueError(
                "projection 'published' is right under the EMA gain only, which an RWKV does not have: use "
                "'gain-corrected', which follows the key's own gain"
            )
        if model.kind == "rwkv7" and arm.bonus == "law":
            raise ValueError("bonus law belongs to model kinds rwkv5 and rwkv6: leave it out")
        if arm.law is None:
            unused = ("beta", "max_lag", *AIM_OPTIONS, "bonus", "shape_on")
            self._refuse(unused, "belongs to a power law: set projection 'gain-corrected', or leave it out")
        self._check_multipliers()
        check_nodes(
            self.nodes,
            arm.law,
            arm.max_lag or HORIZON,
            head_size=model.head_size,
            k_clamp=model.k_clamp,
            shape_on=str(arm.shape_on or "receptance"),
            goose=model.kind == "rwkv7",
        )

    def _check_foreign(self) -> None:
        """ValueError for an option that only models of plkernel have."""
        names = [name for name in Arm.model_fields if name not in OF_A_FOREIGN_ARM]
        self._refuse(names, f"belongs to models of plkernel, got kind {self.model.kind!r}: say it in config or init")
        for name in ("backend", "decay_multiplier") if self.train else ():
            if getattr(self.train, name) is not None:
                raise ValueError(
                    f"train.{name} {getattr(self.train, name)} belongs to models of plkernel, got kind "
                    f"{self.model.kind!r}: leave it out; `multipliers` of the model sets rates of its parameters"
                )

    def _refuse(self, names: Iterable[str], reason: str) -> None:
        """ValueError for the first of these options of the arm that is given."""
        for name in names:
            if getattr(self.arm, name) != Arm.model_fields[name].default:
                raise ValueError(f"{name} {getattr(self.arm, name)} {reason}")

    def _placed(self) -> Nodes:
        """The node set before any matching of its output."""
        arm, model = self.arm, self.model
        given = {name: getattr(arm, name) for name in (*QUANTILE_OPTIONS, *AIM_OPTIONS)}
        given = {name: value for name, value in given.items() if value is not None}
        if model.kind != "ssm" and arm.placement not in PLACEMENTS_OF["max_lag"]:
            given.pop("max_lag", None)  # how far the law is checked: it places nothing
        if any(value is not None for value in arm.node_values.values()) and not arm.placed_elsewhere:
            return self._given_nodes(given)
        if arm.placement is None or arm.placement == "terms":
            raise ValueError(
                "placement 'terms' needs a fit: write one with plkernel.fit --out and name it in node_file"
            )
        for name in QUANTILE_OPTIONS:
            homes = [home for home in PLACEMENTS_OF[name] if home != "terms"]
            if name in given and arm.placement not in homes:
                belongs = " or ".join(map(repr, homes))
                raise ValueError(f"{name} belongs to placement {belongs}, got placement {arm.placement!r}")
        given |= {name: getattr(arm, name) for name in ENDS if arm.placement == "log-spaced"}
        if arm.placement != "log-spaced":
            self._refuse(ENDS, f"belongs to placement 'log-spaced', got placement {arm.placement!r}: leave it out")
        self._check_half_lives()
        if arm.placed_elsewhere:
            rates = np.multiply(arm.node_rates or (), model.patching.size)
            return shaped(rates, arm.projection, model.input_gain, Aim(arm.beta, **given))
        return place(
            model.node_count,
            placement=cast(Placement, arm.placement),
            projection=arm.projection,
            gain=model.input_gain,
            beta=arm.beta,
            step=model.patching.size,
            fastest=model.largest_rate,
            **given,
        )

    def _check_half_lives(self) -> None:
        """ValueError, with what would work, where a float32 decay cannot hold the half-lives that the arm places."""
        arm, step = self.arm, self.model.patching.size
        if arm.placement == "quantile":
            law, loss = arm.law or Aim(arm.beta), LOSS if arm.loss is None else arm.loss
            check_quantiles(law, arm.max_lag or HORIZON, loss, step)
            return
        named = {name: getattr(arm, name) for name in ENDS}
        if arm.placement != "log-spaced":
            half_lives, what = arm.half_lives(self.model.node_count), f"placement {arm.placement!r}"
            named = {f"{what}, half-life": half_lives.min(), f"{what}, longest": half_lives.max()}
        check_half_lives(named, step)
        if self.model.kind == "rwkv7":
            for name, value in named.items():
                check_largest_rate(math.log(2) / value, name)

    def _check_multipliers(self) -> None:
        """ValueError for a shape whose squares float32 does not hold."""
        largest, given = max(self.nodes.projection), self.arm.output_std
        check_multipliers("output_std" if given else "node_multipliers", given or largest, largest)

    def _given_nodes(self, options: Mapping[str, Any]) -> Nodes:
        """The nodes that are in the spec as numbers, per byte, for a step of the model."""
        arm, model = self.arm, self.model
        where = f" of {arm.node_file.rpartition('#')[0]}" if arm.node_file else ""
        missing = [name for name, value in arm.node_values.items() if value is None]
        if missing:
            raise ValueError(f"{missing[0]} is missing: {', '.join(NODE_VALUES)} go together")
        ignored = (*ENDS, "beta") if model.kind == "ssm" else ENDS
        self._refuse(ignored, "does not go with node_file, whose nodes are placed already: leave it out")
        allowed = () if model.kind == "ssm" else AIM_OPTIONS  # what the law is that an RWKV is checked against
        unused = [name for name in options if name not in allowed]
        if unused or arm.placement not in (None, "log-spaced") or arm.projection != "uniform":
            name = next(iter(unused), "projection" if arm.projection != "uniform" else "placement")
            raise ValueError(f"{name} does not go with node_file, whose nodes are placed already: leave it out")
        if arm.node_gain != model.input_gain and model.kind == "ssm":
            raise ValueError(f"the nodes{where} assume gain {arm.node_gain!r}, but model.gain is {model.gain!r}")
        counts = [len(values or ()) for values in (arm.node_rates, arm.node_multipliers)]
        if counts != [model.node_count, model.node_count]:
            size = f"model.{'dim' if model.kind == 'ssm' else 'head_size'} is {model.node_count}"
            raise ValueError(
                f"the nodes{where} are {counts[0]} rates and {counts[1]} multipliers, but {size}: "
                "the numbers must be equal"
            )
        step, rates = model.patching.size, arm.node_rates or ()
        check_rates(f"node_rates{where}", rates, step)
        return Nodes(tuple(rates), tuple(arm.node_multipliers or ()), arm.node_gain or "none").per_step(step)


def resolve(
    model: ModelSpec,
    arm: Arm | None = None,
    train: TrainSpec | None = None,
    corpus: CorpusSpec | None = None,
    study: str = "",
    name: str = "",
    trusted: bool = False,
) -> Condition:
    """The condition of `arm`, with what it leaves out filled in where that depends on the model, and its own rate."""
    arm, values = arm or Arm(), dict[str, Any]()
    if model.kind == "ssm":
        values = {"placement": "log-spaced"}
    elif model.is_foreign:
        values = {}
    elif arm.places_nodes and arm.shapes:
        values = {
            **(RWKV7_AIM if model.kind == "rwkv7" else RWKV_AIM),
            "max_lag": HORIZON,
            "bonus": "scheme",
            "shape_on": "receptance",
        }
        if arm.placement == "quantile":
            values["tempering"] = RWKV_TEMPERING
    arm = arm.model_copy(update={name: v for name, v in values.items() if getattr(arm, name) is None})
    if train is not None and arm.learning_rate is not None:
        train = train.model_copy(update={"learning_rate": arm.learning_rate})
    return Condition(model, arm, train, corpus or CorpusSpec(), study, name, trusted)


def from_config(config: Mapping[str, Any], trusted: bool = False) -> Condition:
    """The condition that `config`, the content of a run's config.json, tells of; `trusted` by the person who asks.

    Raises KeyError, TypeError, AttributeError or ValueError (pydantic's is one) for anything else.
    """
    corpus = {name: value for name, value in config.get("corpus", {}).items() if name in CorpusSpec.model_fields}
    model = {name: value for name, value in config["model"].items() if name != "parameters"}
    train = config.get("train")
    return resolve(
        ModelSpec.model_validate(model),
        Arm.model_validate(config["arm_options"]),
        None if train is None else TrainSpec.model_validate(train),
        CorpusSpec.model_validate(corpus),
        config.get("study", ""),
        config.get("arm", ""),
        trusted,
    )
