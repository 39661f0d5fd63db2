"""Pre-registration of a study: hypotheses and gates written down before its runs."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plkernel.common.environment import installed, source_state
from plkernel.common.files import (
    REGISTERED,
    RESULT,
    check_file,
    differences,
    load_json,
    run_folder,
    save_json,
)
from plkernel.config.spec import Spec, with_defaults
from plkernel.results.claims import MOST_FLIPPED
from plkernel.results.measurements import (
    LEAST,
    Basis,
    basis_of,
    windows_option,
)
from plkernel.results.power import power_text, powers
from plkernel.results.saved import Count, StudyFile, saved_type, validated
from plkernel.results.study import check_same_name, train_options

LEAST_POWER = 0.5
"""Claims with two bounds are not registered below it: they would hardly ever be confirmed."""
RULES = (
    "Differences are taken seed by seed, the arm minus the one it is compared with.",
    (
        "One-sided tests: exact sign flips where every member of a family that has differences has"
        f" enough seeds to be rejected and {MOST_FLIPPED} at most, else the paired t test."
    ),
    (
        "Holm's correction is over all hypotheses of a family, for confirmations and for"
        " refutations apart."
    ),
    (
        "Confirmed if p against its opposite is at most alpha, refuted if p against it is, else"
        " undecided."
    ),
    (
        "Seeds of which a run fails, diverges or takes another number of steps are left out, and"
        " counted."
    ),
    (
        "A gate is passed if both 95 % intervals of its mean, over seeds (t) and over target bytes"
        " where rows tell it, lie within its limits, over at least"
        f" {LEAST['target bytes']:,} target bytes, or {LEAST['answers']:,} answers of recall."
    ),
    "If a gate is not passed, or not known, nothing is answered.",
)
"""The rules of decision, which a registration states beside its spec."""
RegisteredFile = saved_type(
    spec=(StudyFile, ...),
    rules=(list[str], ...),
    runs_before=(Count, ...),
    sha256=(str, ...),
    plkernel=str,
    commit=str,
    dirty=bool,
)


@dataclass(frozen=True)
class Registration:
    """A registration as its file holds it.

    content  everything but the fingerprint
    spec     the spec in it
    intact   True if the fingerprint is that of the content
    """

    content: Mapping[str, Any]
    spec: Mapping[str, Any]
    sha256: str
    intact: bool


def place_of(spec: Spec) -> Path:
    """The file of a study's registration, unless another is named: runs/registered/NAME.json."""
    return Path("runs/registered") / f"{spec.name}.json"


def copy_of(spec: Spec, path: Path, out: Path) -> Path | None:
    """The file in the folder of the study that a registration at `path` is copied to.

    None where the study, whose folder is `out`, finds it at `path`.
    """
    own = out / REGISTERED
    found = (place_of(spec).resolve(), own.resolve())
    return None if path.resolve() in found else own


def register(
    spec: Spec,
    path: Path,
    out: Path,
    pilot: Path | None = None,
    underpowered: bool = False,
    answers: Mapping[str, int] | None = None,
) -> bool:
    """Write the registration of a study; return False where the same one is there already.

    In a file where the study does not look for it, it is copied to the folder of the study too.

    out           folder of the study, whose ended runs are counted
    pilot         a study whose spread gives the power of every hypothesis
    underpowered  register even if a claim with two bounds has a power below LEAST_POWER
    answers       how many answers of a run are behind each gate on a corpus of recall, by name

    Raises ValueError for a spec that decides nothing, for a power or a gate that is too weak, and
    where `path`, or a file in which the study finds its registration, holds another one, which is
    never overwritten.
    """
    if not spec.hypotheses:
        raise ValueError(
            f"register: spec {spec.name!r} must declare what to decide, got no [[hypotheses]]"
        )
    if len(spec.seeds) < 2:
        raise ValueError(
            f"register: spec {spec.name!r} must have at least two seeds, got {len(spec.seeds)}"
        )
    stated_power = powers(spec, pilot) if pilot else None
    if stated_power and not underpowered:
        _check_power(stated_power)
    check_same_name(out, spec.name)
    copy = copy_of(spec, path, out)
    check_file(path, "register")
    check_file(copy, "out")
    stated = spec.model_dump(mode="json")
    if not path.exists():
        _check_gates(spec, stated, answers or {})
    places = [path] if copy is None else [path, copy]
    for found in (path, place_of(spec), out / REGISTERED):
        if found.exists():
            before = _same_registration(found, stated, path)
            _check_alone(spec, found, out, before.sha256)
            missing = [place for place in places if not place.exists()]
            for place in missing:
                save_registration(before, place)
            return False
    content = {
        "study": spec.name,
        "plkernel": installed("plkernel"),
        **source_state(),
        "runs_before": _ended_runs(spec, out),
        "power": stated_power,
        "gate_rule": "limit",
        "rules": RULES,
        "spec": stated,
    }
    new = Registration(content, stated, fingerprint(content), intact=True)
    for place in places:
        save_registration(new, place)
    return True


def save_registration(registration: Registration, path: Path) -> None:
    """Write a registration to a file."""
    save_json(path, {**registration.content, "sha256": registration.sha256})


def _check_alone(spec: Spec, path: Path, out: Path, sha256: str) -> None:
    """Raise ValueError where the study would find another registration than that at `path`."""
    for other in (place_of(spec), out / REGISTERED):
        if other.exists() and read_registration(other).sha256 != sha256:
            raise ValueError(
                f"register: study {spec.name!r} must have one registration, got {path} beside"
                f" {other}; that is never overwritten, give the spec another name and out"
            )


def _check_power(stated: Sequence[Mapping[str, Any]]) -> None:
    """Raise ValueError for a claim with two bounds that would hardly ever be confirmed."""
    for row in stated:
        has_two_bounds = row["needed"] is None
        if has_two_bounds and row["power"] < LEAST_POWER:
            raise ValueError(
                f"register: the power of {row['name']!r} must be at least {LEAST_POWER}, got"
                f" {power_text(row)}; add seeds or widen the margin, or give --underpowered"
            )


def _same_registration(place: Path, stated: Mapping[str, Any], path: Path) -> Registration:
    """The registration at `place`; ValueError where it is that of another spec.

    path: the file that the new one was to be written to.
    """
    before = read_registration(place)
    _check_intact(before, place, "register")
    differing = changes(before.spec, stated)
    if differing and place == path:
        raise ValueError(
            f"register must name a file without another registration, got {path}"
            f" ({'; '.join(differing[:3])}); a registration is never overwritten, name another"
            " file or give the spec another name"
        )
    if differing:
        raise ValueError(
            f"register: study {stated['name']!r} must have one registration, got {path} beside"
            f" {place} ({'; '.join(differing[:3])}); that is never overwritten, give the spec"
            " another name and out"
        )
    return before


def _check_gates(spec: Spec, stated: Mapping[str, Any], answers: Mapping[str, int]) -> None:
    """Raise ValueError for a gate that is measured on too few predictions to be passed."""
    for gate in spec.gates:
        basis = basis_of(stated, gate)
        if gate.name in answers:
            basis = Basis(answers[gate.name], "answers")
        if not basis.is_enough:
            option = windows_option(gate, train_options(stated, gate.arm))
            raise ValueError(
                f"register: gate {gate.name!r} must rest on at least {LEAST[basis.unit]:,}"
                f" {basis.unit}, got {basis.number:,}; raise train.{option}, or take a larger"
                " corpus"
            )


def _ended_runs(spec: Spec, out: Path) -> int:
    """The number of runs of the study in `out` that have ended."""
    places = [run_folder(out, arm, seed) for arm in spec.arms for seed in spec.seeds]
    return sum((place / RESULT).exists() for place in places)


def registration_of(spec: Spec, out: Path) -> Registration | None:
    """The registration of a study: that of its name, else the one in its folder `out`, else None.

    Raises ValueError where it was changed after it was written, and where the folder holds another
    one.
    """
    own = out / REGISTERED
    named = place_of(spec)
    path = named if named.exists() else own
    if not path.exists():
        return None
    registration = read_registration(path)
    _check_intact(registration, path, "registration")
    if own.exists() and read_registration(own) != registration:
        raise ValueError(
            f"registration {path}: must be the one in {out}, got another; bring that back, or name"
            " another out"
        )
    return registration


def read_registration(path: Path) -> Registration:
    """The registration at `path`, also one that was changed after it was written.

    Raises ValueError, naming the file, where there is none.
    """
    content = validated(path, RegisteredFile, load_json(path))
    sha256 = content.pop("sha256")
    intact = sha256 == fingerprint(content)
    return Registration(content, content["spec"], sha256, intact)


def _check_intact(registration: Registration, path: Path, name: str) -> None:
    """Raise ValueError, headed by `name`, for a registration that was changed since."""
    if not registration.intact:
        raise ValueError(
            f"{name} {path}: must be as it was written, got one that was changed since; bring it"
            " back, or remove it"
        )


def fingerprint(content: Mapping[str, Any]) -> str:
    """SHA-256 of the content as JSON, keys sorted and without spaces."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def changes(registered: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The differences of a spec from the registered one, in words.

    Learning rates that were to be searched for may be settled. An option that one of them is too
    old for is at its default there.
    """
    registered = with_defaults(registered)
    now = with_defaults(now)
    searched = searched_arms(registered)
    return differences(_by_name(registered, searched), _by_name(now, searched))


def searched_arms(spec: Mapping[str, Any]) -> list[str]:
    """The arms whose learning rate is to be searched for."""
    tuning = spec.get("tuning") or {}
    if not tuning.get("rates"):
        return []
    return [name for name, arm in spec["arms"].items() if arm.get("learning_rate") is None]


def _by_name(spec: Mapping[str, Any], searched: Sequence[str]) -> dict[str, Any]:
    """A spec with hypotheses and gates by their names, and no learning rate of `searched` arms."""
    named = dict(spec)
    for key in ("hypotheses", "gates"):
        named[key] = {}
        for declared in spec.get(key) or ():
            given = {option: value for option, value in declared.items() if value is not None}
            named[key][declared["name"]] = given
    arms = dict(spec["arms"])
    for arm in searched:
        if arm in arms:
            arms[arm] = {**arms[arm], "learning_rate": None}
    named["arms"] = arms
    return named
