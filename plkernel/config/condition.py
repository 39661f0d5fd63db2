"""One condition of a study: an arm resolved for its model, and all that decides the numbers of a run but its seed."""

import json
import math
from collections.abc import Mapping
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
from plkernel.config.schema import AIM_OPTIONS, IN_THE_STUDY, NODE_VALUES, Arm, CorpusSpec, ModelSpec, TrainSpec

DEFAULT_SCHEMES = {
    "ssm": "transformers_default",
    "rwkv5": "rwkv_blinkdl",
    "rwkv6": "rwkv_blinkdl",
    "rwkv7": "rwkv7_official",
}
# At initialisation an RWKV has random signs, information quadratic in them, and sees the newest byte through u, in
# RWKV-7 through the state.
RWKV_AIM: dict[str, Any] = {"target": "correlation", "kernel": "rms", "lag": "bonus"}
RWKV7_AIM = {**RWKV_AIM, "lag": "distance"}
RWKV_TEMPERING = 0.5

ENDS = ("shortest", "longest")
QUANTILE_OPTIONS = ("tempering", "loss", "max_lag")
OF_A_FOREIGN_ARM = ("learning_rate", "model", "corpus", "init", "init_options", *IN_THE_STUDY)
OF_ANY_ARM = ("scheme", "scheme_options", "placement", *OF_A_FOREIGN_ARM)


@dataclass(frozen=True)
class Condition:
    """All that decides the numbers of a run but its seed; `resolve` makes one, `from_config` reads one back.

    Immutable and hashable, and not checked again once a spec has been read.

    arm: with the defaults of the model's kind filled in. train: with the learning rate of the arm, None for a model
    that is not trained. study and name: of the spec and of the arm in it. trusted: consent of the person at the command
    line to the code that it names, which no file can give.
    """

    model: ModelSpec
    arm: Arm
    train: TrainSpec | None = None
    corpus: CorpusSpec = field(default_factory=CorpusSpec)
    study: str = ""
    name: str = ""
    trusted: bool = field(default=False, compare=False, repr=False)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(json.dumps(self.config, sort_keys=True))

    @property
    def code(self) -> dict[str, str]:
        """The names of other people's code in it, by the option that names them."""
        named = {"kind": self.model.kind if self.model.is_foreign else None, "init": self.arm.init}
        return {option: name for option, name in named.items() if name is not None}

    @property
    def scheme(self) -> str:
        """The initialisation scheme, by default that of the model's kind; other people's models have none."""
        if self.model.is_foreign:
            raise ValueError(f"a model of kind {self.model.kind!r} has no scheme")
        return self.arm.scheme or DEFAULT_SCHEMES[self.model.kind]

    @property
    def protocol(self) -> TrainSpec:
        """The training protocol; ValueError for a model that is not trained."""
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
        given = {name: getattr(self.arm, name) for name in (*QUANTILE_OPTIONS, *AIM_OPTIONS)}
        given = {name: value for name, value in given.items() if value is not None}
        if self.model.kind != "ssm" and self.arm.placement not in PLACEMENTS_OF["max_lag"]:
            given.pop("max_lag", None)  # the lag to which the law is checked; it places nothing
        by_number = any(value is not None for value in self.arm.node_values.values()) and not self.arm.placed_elsewhere
        nodes = self._given_nodes(given) if by_number else self._placed_nodes(given)
        return nodes if self.arm.output_std is None else scaled_to(nodes, self.arm.output_std)

    def check(self) -> None:
        """ValueError where the arm does not fit the model; its scheme is checked where models are built."""
        arm, model = self.arm, self.model
        if arm.init_options is not None and arm.init is None:
            raise ValueError("init_options need an init that is given them: set init, or leave them out")
        if model.is_foreign:
            return self._check_foreign()
        if model.kind == "ssm":
            arm.refuse(["bonus"], "belongs to model kinds rwkv5 and rwkv6: leave it out")
            if arm.shape_on not in (None, "columns", "multiplier"):
                raise ValueError(f"shape_on must be columns or multiplier in an SSM, got {arm.shape_on!r}")
            if not arm.shapes and not arm.levels:  # a design may cross the exponent with arms that have none
                arm.refuse(
                    ["beta"], "belongs to a power law: set a projection or placement 'quantile', or leave it out"
                )
            return self._check_multipliers()
        arm.refuse(["match", "output_std"], "does nothing in an RWKV, whose GroupNorm takes out any scale")
        if not arm.places_nodes:
            others = [name for name in Arm.model_fields if name not in OF_ANY_ARM]
            return arm.refuse(others, "needs a placement in an RWKV, which otherwise keeps the decays of its scheme")
        if arm.projection == "published":
            raise ValueError(
                "projection 'published' is right under the EMA gain only, which an RWKV does not have: use "
                "'gain-corrected', which follows the key's own gain"
            )
        if model.kind == "rwkv7" and arm.bonus == "law":
            raise ValueError("bonus law belongs to model kinds rwkv5 and rwkv6: leave it out")
        if arm.law is None:
            unused = ("beta", "max_lag", *AIM_OPTIONS, "bonus", "shape_on")
            arm.refuse(unused, "belongs to a power law: set projection 'gain-corrected', or leave it out")
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
        names, kind = [name for name in Arm.model_fields if name not in OF_A_FOREIGN_ARM], self.model.kind
        self.arm.refuse(names, f"belongs to models of plkernel, got kind {kind!r}: say it in config or init")
        if self.train:
            remedy = "leave it out; `multipliers` of the model sets rates of its parameters"
            reason = f"belongs to models of plkernel, got kind {kind!r}: {remedy}"
            self.train.refuse(["backend", "decay_multiplier"], reason, "train.")

    def _check_multipliers(self) -> None:
        """ValueError for a shape whose squares float32 does not hold."""
        largest, given = max(self.nodes.projection), self.arm.output_std
        check_multipliers("output_std" if given else "node_multipliers", given or largest, largest)

    def _placed_nodes(self, given: dict[str, Any]) -> Nodes:
        """The nodes of the arm's placement."""
        arm, model, step = self.arm, self.model, self.model.patching.size
        if arm.placement is None or arm.placement == "terms":
            raise ValueError(
                "placement 'terms' needs a fit: write one with plkernel.fit --out and name it in node_file"
            )
        for name in QUANTILE_OPTIONS:
            homes = [home for home in PLACEMENTS_OF[name] if home != "terms"]
            if name in given and arm.placement not in homes:
                belongs = " or ".join(map(repr, homes))
                raise ValueError(f"{name} belongs to placement {belongs}, got placement {arm.placement!r}")
        if arm.placement == "log-spaced":
            named = {name: getattr(arm, name) for name in ENDS}
            given |= named
        else:
            arm.refuse(ENDS, f"belongs to placement 'log-spaced', got placement {arm.placement!r}: leave it out")
        if arm.placement == "quantile":
            loss = LOSS if arm.loss is None else arm.loss
            check_quantiles(arm.law or Aim(arm.beta), arm.max_lag or HORIZON, loss, step)
        else:
            if arm.placement != "log-spaced":
                ends, head = arm.half_lives(model.node_count), f"placement {arm.placement!r}"
                named = {f"{head}, half-life": ends.min(), f"{head}, longest": ends.max()}
            check_half_lives(named, step)
            for name, value in named.items() if model.kind == "rwkv7" else ():
                check_largest_rate(math.log(2) / value, name)
        if arm.placed_elsewhere:
            rates = np.multiply(arm.node_rates or (), step)
            return shaped(rates, arm.projection, model.input_gain, Aim(arm.beta, **given))
        return place(
            model.node_count,
            placement=cast(Placement, arm.placement),
            projection=arm.projection,
            gain=model.input_gain,
            beta=arm.beta,
            step=step,
            fastest=model.largest_rate,
            **given,
        )

    def _given_nodes(self, options: Mapping[str, Any]) -> Nodes:
        """The nodes that are in the spec as numbers, per byte, for a step of the model."""
        arm, model = self.arm, self.model
        where = f" of {arm.node_file.rpartition('#')[0]}" if arm.node_file else ""
        missing = [name for name, value in arm.node_values.items() if value is None]
        if missing:
            raise ValueError(f"{missing[0]} is missing: {', '.join(NODE_VALUES)} go together")
        reason = "does not go with node_file, whose nodes are placed already: leave it out"
        arm.refuse((*ENDS, "beta") if model.kind == "ssm" else ENDS, reason)
        # An RWKV checks its nodes against the law of AIM_OPTIONS.
        unused = [name for name in options if model.kind == "ssm" or name not in AIM_OPTIONS]
        if unused or arm.projection != "uniform" or arm.placement not in (None, "log-spaced"):
            raise ValueError(f"{[*unused, 'placement' if arm.projection == 'uniform' else 'projection'][0]} {reason}")
        if arm.node_gain != model.input_gain and model.kind == "ssm":
            raise ValueError(f"the nodes{where} assume gain {arm.node_gain!r}, but model.gain is {model.gain!r}")
        rates, multipliers, step = arm.node_rates or (), arm.node_multipliers or (), model.patching.size
        if not len(rates) == len(multipliers) == model.node_count:
            size = f"model.{'dim' if model.kind == 'ssm' else 'head_size'} is {model.node_count}"
            raise ValueError(
                f"the nodes{where} are {len(rates)} rates and {len(multipliers)} multipliers, but {size}: "
                "the numbers must be equal"
            )
        check_rates(f"node_rates{where}", rates, step)
        return Nodes(tuple(rates), tuple(multipliers), arm.node_gain or "none").per_step(step)


def resolve(
    model: ModelSpec,
    arm: Arm | None = None,
    train: TrainSpec | None = None,
    corpus: CorpusSpec | None = None,
    study: str = "",
    name: str = "",
    trusted: bool = False,
) -> Condition:
    """The condition of `arm`, with the defaults that depend on the model filled in, and its own learning rate."""
    arm, values = arm or Arm(), dict[str, Any]()
    if model.kind == "ssm":
        values = {"placement": "log-spaced"}
    elif not model.is_foreign and arm.places_nodes and arm.shapes:
        aim = RWKV7_AIM if model.kind == "rwkv7" else RWKV_AIM
        values = {**aim, "max_lag": HORIZON, "bonus": "scheme", "shape_on": "receptance"}
        if arm.placement == "quantile":
            values["tempering"] = RWKV_TEMPERING
    arm = arm.model_copy(update={name: v for name, v in values.items() if getattr(arm, name) is None})
    if train is not None and arm.learning_rate is not None:
        train = train.model_copy(update={"learning_rate": arm.learning_rate})
    return Condition(model, arm, train, corpus or CorpusSpec(), study, name, trusted)


def from_config(config: Mapping[str, Any], trusted: bool = False) -> Condition:
    """The condition in `config`, the content of a run's config.json; `trusted` by the person who asks.

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
