"""Registrations: what a study was to decide, written down before its runs, with a fingerprint of every word."""

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from plkernel.common.environment import installed, source_state
from plkernel.common.files import check_file, load_object, same, save_json, shown
from plkernel.config.schema import Gate, Hypothesis, explained
from plkernel.config.study import Spec, with_defaults
from plkernel.declared.rules import rules
from plkernel.records.layout import REGISTERED, RESULT, run_folder
from plkernel.records.schema import RegisteredFile, validated

MOST_SHOWN = 3
FOLDER = Path("runs/registered")


@dataclass(frozen=True)
class Registration:
    """What a registration says.

    content      all of it but its fingerprint
    sha256       the fingerprint that stands in it
    intact       whether the content still has that fingerprint
    hypotheses   as declared
    gates        as declared
    """

    content: Mapping[str, Any]
    sha256: str
    intact: bool
    hypotheses: tuple[Hypothesis, ...]
    gates: tuple[Gate, ...]

    @property
    def spec(self) -> Mapping[str, Any]:
        """The spec as it was settled."""
        return dict(self.content["spec"])


def place_of(spec: Spec) -> Path:
    """Where the registration of a study is, unless another file is named: runs/registered/NAME.json."""
    return FOLDER / f"{spec.name}.json"


def register(spec: Spec, path: Path, out: Path) -> bool:
    """Write the registration of a study; False where the same one stands there already, which is left as it is.

    out: the folder of the study, whose ended runs are counted. Raises ValueError for a spec without hypotheses, and
    where `path` holds another registration.
    """
    if not spec.hypotheses:
        raise ValueError(f"register: spec {spec.name!r} declares nothing to decide; give it [[hypotheses]]")
    check_file(path, "register")
    declared = spec.model_dump(mode="json")
    if path.exists():
        before = read_registration(path)
        if not before.intact:
            raise ValueError(
                f"register {path}: has been changed since it was written; bring it back, or name another file"
            )
        if differing := changes(before.spec, declared):
            raise ValueError(
                f"register {path}: holds another registration ({few(differing)}), which is never overwritten: "
                "name another file"
            )
        return False
    content = {
        "study": spec.name,
        "plkernel": installed("plkernel"),
        **source_state(),
        "runs_before": sum((run_folder(out, arm, seed) / RESULT).exists() for arm in spec.arms for seed in spec.seeds),
        "rules": rules(spec.hypotheses, spec.gates, spec.seeds),
        "spec": declared,
    }
    save_json(path, {**content, "sha256": fingerprint(content)})
    return True


def registration_of(spec: Spec, out: Path) -> Registration | None:
    """What a study is to keep in its folder `out`: the registration of its name, None where there is none.

    Raises ValueError where it has been changed since it was written, and where the folder holds another one.
    """
    path, own = place_of(spec), out / REGISTERED
    if not path.exists():
        return None
    found = read_registration(path)
    if not found.intact:
        raise ValueError(f"registration {path}: has been changed since it was written; bring it back, or remove it")
    if own.exists() and read_registration(own) != found:
        raise ValueError(f"registration {path}: is not the one in {out}; bring that back, or name another out")
    return found


def keep(found: Registration | None, out: Path) -> None:
    """Write a registration, if there is one, to the folder of a study or a record."""
    if found is not None:
        save_json(out / REGISTERED, {**found.content, "sha256": found.sha256})


def read_registration(path: Path) -> Registration:
    """The registration at `path`; ValueError, naming the file, where there is none."""
    content = validated(path, RegisteredFile, load_object(path))
    sha256 = content.pop("sha256")
    spec, intact = content["spec"], sha256 == fingerprint(content)
    hypotheses, gates = declared_in(spec, Hypothesis, path), declared_in(spec, Gate, path)
    return Registration(content, sha256, intact, hypotheses, gates)


M = TypeVar("M", Hypothesis, Gate)


def declared_in(spec: Mapping[str, Any], kind: type[M], path: Path) -> tuple[M, ...]:
    """The hypotheses or gates of a saved spec; ValueError, naming its file, where they are not such."""
    key = "hypotheses" if kind is Hypothesis else "gates"
    try:
        return TypeAdapter(tuple[kind, ...]).validate_python(spec.get(key) or ())  # type: ignore[valid-type]
    except ValidationError as error:
        raise ValueError(f"{path}: {explained(error, Spec, key)}") from None


def fingerprint(content: Mapping[str, Any]) -> str:
    """SHA-256 of the content as JSON, keys sorted and without spaces."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def changes(registered: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What a spec says otherwise than it was registered, in words; rates that were to be searched for may be found.

    An option of the model or the protocol that one of them is too old for is at its default there.
    """
    registered, now = with_defaults(registered), with_defaults(now)
    searched = (registered.get("tuning") or {}).get("rates")
    found = [name for name, arm in registered["arms"].items() if searched and arm.get("learning_rate") is None]
    return list(_differing(_named(registered, found), _named(now, found)))


def _named(spec: Mapping[str, Any], searched: Collection[str]) -> dict[str, Any]:
    """The spec with its hypotheses and gates by name, and without the learning rates of arms that were searched."""
    lists = {key: {one["name"]: one for one in spec.get(key) or ()} for key in ("hypotheses", "gates")}
    arms = {name: {**arm, "learning_rate": None} if name in searched else arm for name, arm in spec["arms"].items()}
    return {**spec, **lists, "arms": arms}


def _differing(registered: Mapping[str, Any], now: Mapping[str, Any], head: str = "") -> Iterator[str]:
    for key in dict.fromkeys((*registered, *now)):
        old, new, place = registered.get(key), now.get(key), f"{head}{key}"
        if same(old, new):
            continue
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _differing(old, new, f"{place}: " if key in ("hypotheses", "gates") else f"{place}.")
        elif isinstance(old or new, Mapping) and not (old and new):
            yield f"{place} {'was not declared' if new else 'was declared and is gone'}"
        elif isinstance(old, list) and isinstance(new, list) and sorted(map(str, old)) != sorted(map(str, new)):
            parts = (
                ([one for one in new if one not in old], "added"),
                ([one for one in old if one not in new], "gone"),
            )
            told = (f"{', '.join(map(shown, some))} {word}" for some, word in parts if some)
            yield f"{place}: {' and '.join(told)}"
        else:
            yield f"{place} was {shown(old)}, is {shown(new)}"


def few(texts: list[str]) -> str:
    """The first of several texts, and how many more there are."""
    more = f" and {len(texts) - MOST_SHOWN} more" if len(texts) > MOST_SHOWN else ""
    return f"{'; '.join(texts[:MOST_SHOWN])}{more}"
