"""A spec whose arms are resolved once, for all that runs or prices its study."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from plkernel.config.condition import Condition
from plkernel.config.spec import Spec


@dataclass(frozen=True)
class ResolvedSpec:
    """A spec with the condition and the baseline of every arm, by its name.

    baselines: the arm that an arm is compared with; None for a baseline.
    """

    spec: Spec
    conditions: Mapping[str, Condition]
    baselines: Mapping[str, str | None]

    def only(self, arms: Iterable[str]) -> "ResolvedSpec":
        """Return these arms alone; their baselines may be others."""
        chosen = list(arms)
        spec = self.spec.model_copy(
            update={"arms": {name: self.spec.arms[name] for name in chosen}}
        )
        return ResolvedSpec(
            spec,
            {name: self.conditions[name] for name in chosen},
            {name: self.baselines[name] for name in chosen},
        )


def resolve_spec(spec: Spec) -> ResolvedSpec:
    """Return the spec with the condition and the baseline of each of its arms."""
    conditions = {name: spec.condition(name) for name in spec.arms}
    baselines = {name: spec.against(name) for name in spec.arms}
    return ResolvedSpec(spec, conditions, baselines)
