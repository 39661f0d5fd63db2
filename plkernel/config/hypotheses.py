"""[[hypotheses]] and [[gates]] of a spec: what a study is to decide, and when it can decide anything, declared as data.

[[hypotheses]]
name = "the power law helps"
arm = "power-law"                    # minus the arm it is compared with, seed by seed
claim = "lower"                      # by more than the margin
margin = 0.005

[[gates]]
name = "the baseline has learnt"
arm = "log-spaced"
at_most = 4.0

They are no part of a run: runs need not be made again where one is added.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from plkernel.common import cli
from plkernel.config.model import Positive, Section
from plkernel.config.train import TrainSpec

Claim = Literal["lower", "higher", "equal"]
Metric = Literal["val_bpb", "test_bpb", "excess_bpb", "truncation_cost"]
ALONG = ("val_bpb", "excess_bpb")
"""What every evaluation measures; the others are taken once, at the end."""
Sentence = Annotated[str, Field(pattern=r"^\S(.*\S)?$", max_length=200)]


class Measured(Section):
    """One number of every run of an arm, in bits per byte."""

    name: Sentence
    """A sentence or a word that no other one has."""
    arm: str
    """The arm it is about."""
    metric: Metric = "val_bpb"
    """val_bpb, test_bpb; excess_bpb: validation above the floor of a known corpus; truncation_cost: bits per byte when
    only `bytes` bytes are given, minus those with the whole context."""
    bytes: Positive | None = None
    """truncation_cost: how many bytes are given."""
    step: Annotated[int, Field(ge=0)] | None = None
    """The evaluation that counts, of val_bpb and excess_bpb; the last if left out."""

    @model_validator(mode="after")
    def _of_its_metric(self) -> Self:
        if (self.bytes is None) == (self.metric == "truncation_cost"):
            wrong = "needs bytes, such as 32" if self.bytes is None else f"takes no bytes, got {self.bytes}"
            raise ValueError(f"{self.name!r}: metric {self.metric!r} {wrong}")
        if self.step is not None and self.metric not in ALONG:
            raise ValueError(
                f"{self.name!r}: {self.metric} is taken at the end only, got step {self.step}: leave it out"
            )
        return self


class Hypothesis(Measured):
    """A claim on the mean difference of two arms."""

    family: Sentence = "main"
    """Those of one family are corrected for their number (Holm)."""
    against: str | None = None
    """The arm that is subtracted; left out, the one that `arm` is compared with."""
    claim: Claim
    """lower or higher: by more than the margin; equal: by less than the margin either way."""
    margin: Annotated[float, Field(ge=0)] = 0.0
    """In bits per byte."""
    alpha: Annotated[float, Field(gt=0, lt=0.5)] = 0.05
    """The chance that any hypothesis of the family is confirmed falsely, and that any is refuted falsely."""

    @model_validator(mode="after")
    def _has_a_margin(self) -> Self:
        if self.claim == "equal" and self.margin == 0.0:
            raise ValueError(
                f"{self.name!r}: claim 'equal' needs a margin above 0, such as 0.01: nothing shows exact equality"
            )
        return self


class Gate(Measured):
    """What the mean of an arm over its seeds must reach before any hypothesis is answered."""

    at_least: float | None = None
    """The least that the mean may be."""
    at_most: float | None = None
    """The most."""

    @model_validator(mode="after")
    def _has_a_limit(self) -> Self:
        if self.at_least is None and self.at_most is None:
            raise ValueError(f"{self.name!r}: a gate needs at_least or at_most")
        if self.at_least is not None and self.at_most is not None and self.at_least > self.at_most:
            raise ValueError(f"{self.name!r}: at_least {self.at_least:g} is above at_most {self.at_most:g}")
        return self


def families(hypotheses: Iterable[Hypothesis]) -> dict[str, list[Hypothesis]]:
    """The hypotheses by family, in the order of the spec."""
    found: dict[str, list[Hypothesis]] = {}
    for one in hypotheses:
        found.setdefault(one.family, []).append(one)
    return found


def check(
    hypotheses: Iterable[Hypothesis], gates: Iterable[Gate], against: Mapping[str, str | None], train: TrainSpec
) -> None:
    """ValueError where one does not fit the study: its arms, its evaluations, its family, or a name given twice.

    against: every arm, and the one it is compared with.
    """
    hypotheses = list(hypotheses)
    for kind, declared in (("hypotheses", hypotheses), ("gates", list(gates))):
        names = [one.name for one in declared]
        for one in declared:
            where = f"{kind} {one.name!r}"
            if names.count(one.name) > 1:
                raise ValueError(f"{where}: {names.count(one.name)} have this name, give each its own")
            _check_arm(f"{where}: arm", one.arm, against)
            _check_place(where, one, train)
    for one in hypotheses:
        where = f"hypotheses {one.name!r}: against"
        other = one.against or against[one.arm]
        if other is None:
            raise ValueError(f"{where} is missing: arm {one.arm!r} is a baseline, compared with no other")
        _check_arm(where, other, against)
        if other == one.arm:
            raise ValueError(f"{where} {other!r} is the arm itself: name another")
    for family, members in families(hypotheses).items():
        first = members[0]
        for one in members:
            if one.alpha != first.alpha:
                raise ValueError(
                    f"hypotheses {one.name!r}: alpha {one.alpha:g} differs from the {first.alpha:g} of {first.name!r}: "
                    f"all of family {family!r} share one"
                )


def _check_arm(where: str, arm: str, arms: Mapping[str, str | None]) -> None:
    if arm not in arms:
        raise ValueError(f"{where} {arm!r} is not an arm; {cli.nearest(arm, arms)}")


def _check_place(where: str, one: Measured, train: TrainSpec) -> None:
    """ValueError for a step without an evaluation, and for as many bytes given as there are."""
    if one.bytes is not None and one.bytes >= train.context:
        raise ValueError(f"{where}: bytes must be fewer than the context, {train.context}, got {one.bytes}")
    if one.metric == "truncation_cost" and not train.truncation_windows:
        raise ValueError(f"{where}: truncation_cost is not measured: set train.truncation_windows, to 1024 for example")
    every, last = train.eval_every, train.total_steps
    if one.step is None or one.step == last or (one.step % every == 0 and (last is None or one.step < last)):
        return
    below = one.step - one.step % every
    near = [str(step) for step in (below, below + every) if last is None or step < last]
    ends = [] if last is None else [f"{last}, the last"]
    raise ValueError(f"{where}: step {one.step} has no evaluation; near it are {' and '.join([*near[-2:], *ends])}")
