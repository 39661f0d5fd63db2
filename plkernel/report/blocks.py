"""Arms in blocks: where a design compares arms within the levels of some factors, each of these is a block."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from plkernel.records.study import Study
from plkernel.report.comparison import Arm, Comparison

IN_FILE_NAMES = r"[^A-Za-z0-9.-]+"


@dataclass(frozen=True)
class Block:
    """Arms that are compared among themselves.

    levels    what all of them share, a level by factor; empty in a study without blocks
    baseline  the arm that most of them are compared with
    arms      the baseline first
    """

    levels: Mapping[str, str]
    baseline: str
    arms: tuple[Arm, ...]

    @property
    def title(self) -> str:
        """The levels in words, "gain none, patching bytes"; empty in a study without blocks."""
        return _title(self.levels)

    @property
    def slug(self) -> str:
        """The levels as the end of a file's name, "-none-bytes"; empty in a study without blocks."""
        return "".join(f"-{re.sub(IN_FILE_NAMES, '-', level)}" for level in self.levels.values())

    @property
    def causal(self) -> bool:
        """Whether every arm with a finished run gives a likelihood."""
        return all(arm.causal for arm in self.arms if arm.seeds)

    @property
    def leaks(self) -> bool:
        """Whether no arm with a finished run does."""
        return not any(arm.causal for arm in self.arms if arm.seeds)

    @property
    def others(self) -> tuple[Arm, ...]:
        """The arms that are compared with another."""
        return tuple(arm for arm in self.arms if arm.against is not None)


def blocks(comparison: Comparison) -> list[Block]:
    """The blocks that have a finished run, in the order of the study; one without levels where it has no blocks."""
    found: dict[tuple[str, ...], list[Arm]] = {}
    for arm in comparison.arms:
        found.setdefault(tuple(block_levels(comparison.study, arm.name).values()), []).append(arm)
    return [_block(comparison.study, arms) for arms in found.values()]


def block_levels(study: Study, arm: str) -> dict[str, str]:
    """The levels of the factors within which `arm` is compared; empty in a study without blocks."""
    levels = study.spec["arms"][arm].get("levels") or {}
    return {name: levels[name] for name in study.spec.get("within") or () if name in levels}


def short_name(study: Study, arm: str) -> str:
    """The name of an arm inside its block: without the levels that the block shares.

    An arm log-spaced_uniform_none of the block gain none is log-spaced_uniform.
    """
    end = "".join(f"_{level}" for level in block_levels(study, arm).values())
    return arm.removesuffix(end) if end and arm != end else arm


def compared_with(comparison: Comparison) -> str:
    """What is subtracted, in words."""
    names = {short_name(comparison.study, base.name) for base in comparison.baselines}
    if len(names) > 1:
        return "the arm it is compared with"
    within = " of its block" if len(comparison.baselines) > 1 else ""
    return f"{names.pop()}{within}"


def full_name(study: Study, arm: str) -> str:
    """The name of an arm inside its block, and the block: "concentrated_published (gain none, patching bytes)"."""
    title = _title(block_levels(study, arm))
    return f"{short_name(study, arm)} ({title})" if title else arm


def short_factor(name: str, factors: Mapping[str, object] | Sequence[str]) -> str:
    """The last part of a factor's name, gain of model.gain, where no other factor ends likewise."""
    last = name.rpartition(".")[2]
    return last if sum(other.rpartition(".")[2] == last for other in factors) == 1 else name


def _title(levels: Mapping[str, str]) -> str:
    return ", ".join(f"{short_factor(name, levels)} {level}" for name, level in levels.items())


def _block(study: Study, arms: Sequence[Arm]) -> Block:
    against = [arm.against for arm in arms if arm.against is not None]
    baseline = max(against, key=against.count) if against else arms[0].name
    ordered = sorted(arms, key=lambda arm: arm.name != baseline)
    return Block(block_levels(study, ordered[0].name), baseline, tuple(ordered))
