"""One condition of a study: an arm resolved for its model, and all that decides the numbers of a
run but its seed.
"""

import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from plkernel.analysis import nodes as decays
from plkernel.config.schema import (
    AIM_OPTIONS,
    IN_THE_STUDY,
    NODE_VALUES,
    Arm,
    CorpusSpec,
    ModelSpec,
    TrainSpec,
)
from plkernel.models import rwkv_nodes

DEFAULT_SCHEMES = {
    "ssm": "transformers_default",
    "rwkv5": "rwkv_blinkdl",
    "rwkv6": "rwkv_blinkdl",
    "rwkv7": "rwkv7_official",
}
# At initialisation an RWKV has random signs, information quadratic in them, and sees the newest
# byte through u, in RWKV-7 through the state.
RWKV_AIM = {
    "target": "correlation",
    "kernel": "rms",
    "lag": "bonus",
    "max_lag": decays.HORIZON,
    "bonus": "scheme",
}
RWKV_TEMPERING = 0.5
ENDS = ("shortest", "longest")
OF_A_FOREIGN_ARM = {"learning_rate", "model", "corpus", "init", "init_options", *IN_THE_STUDY}
OF_ANY_ARM = {"scheme", "scheme_options", "placement", *OF_A_FOREIGN_ARM}


@dataclass(frozen=True)
class Condition:
    """All that decides the numbers of a run but its seed; `resolve` makes one, `from_config` reads
    one back.

    arm: with the defaults of the model's kind filled in. train: with the learning rate of the arm,
    None for a model that is not trained. study and name: of the spec and of the arm in it. trusted:
    consent of the person at the command line to the code that it names, which no file can give.
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
        kind = {"kind": self.model.kind} if self.model.is_foreign else {}
        return kind | ({} if self.arm.init is None else {"init": self.arm.init})

    @property
    def scheme(self) -> str:
        """The initialisation scheme, by default that of the model's kind; other people's models
        have none.
        """
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
    def nodes(self) -> decays.Nodes:
        """The decays that the arm places, per patch: of an SSM's channels, or of those of an RWKV's
        head.

        Raises ValueError where the arm does not fit the model.
        """
        arm = self.arm
        if self.model.is_foreign:
            raise ValueError(f"a model of kind {self.model.kind!r} has no nodes that are known")
        values = [getattr(arm, name) for name in NODE_VALUES]
        if (arm.node_file and None in values) or (arm.match and arm.output_std is None):
            raise ValueError(
                "match or node_file refers to more than this arm: read the spec with load_spec"
            )
        nodes = self._placed_nodes() if values == [None, None, None] else self._given_nodes(*values)
        return nodes if arm.output_std is None else decays.scaled_to(nodes, arm.output_std)

    def _placed_nodes(self) -> decays.Nodes:
        """The nodes of the arm's placement, within what float32 holds."""
        arm, model, step = self.arm, self.model, self.model.patching.size
        if arm.placement is None or arm.placement == "terms":
            raise ValueError(
                "placement 'terms' needs a fit: write one with plkernel.fit --out, name it in"
                " node_file"
            )
        names = ["tempering", "loss", *AIM_OPTIONS, *ENDS]
        if (
            model.kind == "ssm" or arm.placement in decays.PLACEMENTS_OF["max_lag"]
        ):  # else it bounds the check of a law
            names.append("max_lag")
        given = {name: getattr(arm, name) for name in names}
        options = {
            name: value for name, value in given.items() if value != Arm.model_fields[name].default
        }
        if arm.placement == "quantile":
            law, longest = arm.law or decays.Aim(arm.beta), arm.max_lag or decays.HORIZON
            rates = law.rate_range(longest / step, arm.loss or decays.LOSS)
            decays.check_rates(
                f"placement 'quantile' with beta {arm.beta:g}: half-life", rates, step
            )
        options |= {
            "placement": arm.placement,
            "projection": arm.projection,
            "beta": arm.beta,
            "step": step,
        }
        with warnings.catch_warnings(
            action="ignore"
        ):  # of half-lives, which a study holds against its context
            nodes = decays.place(
                model.node_count, gain=model.input_gain, fastest=model.largest_rate, **options
            )
        for name, rate in zip(ENDS, (max(nodes.rates), min(nodes.rates)), strict=True):
            decays.check_rates(f"placement {arm.placement!r}, {name}", [rate], step)
        if model.kind == "rwkv7":
            rwkv_nodes.check_largest_rate(
                max(nodes.rates), f"placement {arm.placement!r}, {ENDS[0]}"
            )
        return nodes

    def _given_nodes(self, *values: Any) -> decays.Nodes:
        """The nodes that are in the spec as numbers, per byte, for a step of the model."""
        arm, model, step = self.arm, self.model, self.model.patching.size
        head = f"the nodes of {arm.node_file.rpartition('#')[0]}" if arm.node_file else "the nodes"
        if None in values:
            raise ValueError(
                f"{NODE_VALUES[values.index(None)]} is missing: {', '.join(NODE_VALUES)} go"
                " together"
            )
        rates, multipliers, gain = values
        unused = [
            "projection",
            *ENDS,
            "tempering",
            "loss",
            *["placement"] * (arm.placement != "log-spaced"),
        ]
        unused += ["max_lag", "beta", *AIM_OPTIONS] * (
            model.kind == "ssm"
        )  # an RWKV checks its nodes against this law
        arm.refuse(
            unused, "does not go with node_file, whose nodes are placed already: leave it out"
        )
        if gain != model.input_gain and model.kind == "ssm":
            raise ValueError(f"{head} assume gain {gain!r}, but model.gain is {model.gain!r}")
        if not len(rates) == len(multipliers) == model.node_count:
            size = f"model.{'dim' if model.kind == 'ssm' else 'head_size'} is {model.node_count}"
            raise ValueError(
                f"{head} are {len(rates)} rates and {len(multipliers)} multipliers, but {size}"
            )
        decays.check_rates(f"{head}:", [rate * step for rate in rates], step)
        return decays.Nodes(rates, multipliers, gain).per_step(step)

    def check(self) -> None:
        """Raise ValueError where the arm does not fit the model; its scheme is checked where models
        are built.
        """
        arm, model = self.arm, self.model
        for names, reason in self._unused():
            arm.refuse(names, reason)
        if model.is_foreign:
            if self.train:
                reason = f"belongs to models of plkernel, got kind {model.kind!r}: leave it out"
                self.train.refuse(["backend", "carry"], reason, "train.")
            return
        sees_ahead = model.patching.mode == "published" and model.patching.size > 1
        if self.train and model.kind == "ssm" and sees_ahead:
            reason = "needs a state, which patching mode 'published' has none of: leave it out"
            self.train.refuse(["carry"], reason, "train.")
        if model.kind == "ssm":
            if arm.shape_on not in (None, "columns", "multiplier"):
                raise ValueError(
                    f"shape_on must be columns or multiplier in an SSM, got {arm.shape_on!r}"
                )
        elif not arm.places_nodes:
            return
        largest, std = max(self.nodes.projection), arm.output_std
        decays.check_multipliers(
            "output_std" if std else "node_multipliers", std or largest, largest
        )
        if model.kind != "ssm":
            if arm.shape_on not in (None, "receptance"):
                raise ValueError(f"shape_on must be receptance in an RWKV, got {arm.shape_on!r}")
            heads: dict[str, Any] = {"head_size": model.head_size, "k_clamp": model.k_clamp}
            lag = arm.max_lag or decays.HORIZON
            rwkv_nodes.check_nodes(self.nodes, arm.law, lag, goose=model.kind == "rwkv7", **heads)

    def _unused(self) -> Iterator[tuple[Iterable[str], str]]:
        """Yield options that the condition has no use for, and why."""
        arm, kind = self.arm, self.model.kind
        if arm.init is None:
            yield ["init_options"], "are for an init: set init, or leave them out"
        if self.model.is_foreign:
            reason = f"belongs to models of plkernel, got kind {kind!r}: use config or init"
            yield [name for name in Arm.model_fields if name not in OF_A_FOREIGN_ARM], reason
        elif kind == "ssm":
            yield ["bonus"], "belongs to model kinds rwkv5 and rwkv6: leave it out"
            if (
                not arm.shapes and not arm.levels
            ):  # a design may cross the exponent with arms that have none
                yield (
                    ["beta"],
                    (
                        "belongs to a power law: set a projection or placement 'quantile', or leave"
                        " it out"
                    ),
                )
        else:
            yield (
                ["match", "output_std"],
                "does nothing in an RWKV, whose GroupNorm takes out any scale",
            )
            if not arm.places_nodes:
                others = [name for name in Arm.model_fields if name not in OF_ANY_ARM]
                yield (
                    others,
                    "needs a placement in an RWKV, which otherwise keeps its scheme's decays",
                )
            if arm.projection == "published":
                yield ["projection"], "is right under the EMA gain only: use 'gain-corrected'"
            if kind == "rwkv7" and arm.bonus == "law":
                yield ["bonus"], "belongs to model kinds rwkv5 and rwkv6: leave it out"
            if arm.law is None:
                unused = ["beta", "max_lag", *AIM_OPTIONS, "bonus", "shape_on"]
                yield (
                    unused,
                    "belongs to a power law: set projection 'gain-corrected', or leave it out",
                )


def resolve(
    model: ModelSpec,
    arm: Arm | None = None,
    train: TrainSpec | None = None,
    corpus: CorpusSpec | None = None,
    study: str = "",
    name: str = "",
    trusted: bool = False,
) -> Condition:
    """Return the condition of `arm`, with the defaults that depend on the model, and the arm's own
    learning rate.
    """
    arm, values = arm or Arm(), dict[str, Any]()
    if model.kind == "ssm":
        values = {"placement": "log-spaced"}
    elif not model.is_foreign and arm.places_nodes and arm.shapes:
        values = {**RWKV_AIM, "shape_on": "receptance"} | (
            {"lag": "distance"} if model.kind == "rwkv7" else {}
        )
        if arm.placement == "quantile":
            values["tempering"] = RWKV_TEMPERING
    arm = arm.model_copy(
        update={option: value for option, value in values.items() if getattr(arm, option) is None}
    )
    if train is not None and arm.learning_rate is not None:
        train = train.model_copy(update={"learning_rate": arm.learning_rate})
    return Condition(model, arm, train, corpus or CorpusSpec(), study, name, trusted)


def from_config(config: Mapping[str, Any], trusted: bool = False) -> Condition:
    """Return the condition in `config`, the content of a run's config.json; `trusted` by the person
    who asks.

    Options that an earlier version did not have are at their defaults. Raises KeyError, TypeError,
    AttributeError or ValueError (pydantic's is one) for anything else.
    """
    corpus = {
        name: value
        for name, value in config.get("corpus", {}).items()
        if name in CorpusSpec.model_fields
    }
    model = {name: value for name, value in config["model"].items() if name != "parameters"}
    train, names = config.get("train"), (config.get("study", ""), config.get("arm", ""))
    protocol = None if train is None else TrainSpec.model_validate(train)
    given = ModelSpec.model_validate(model), Arm.model_validate(config["arm_options"])
    return resolve(*given, protocol, CorpusSpec.model_validate(corpus), *names, trusted)
