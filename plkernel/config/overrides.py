"""Options of a command line that replace values of a spec, such as --train.steps 200."""

import difflib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plkernel.config.factors import nested
from plkernel.config.schema import TABLES, Arm, Options, Section, deep_merge
from plkernel.config.spec import SECTIONS, Spec


@dataclass(frozen=True)
class Replaceable:
    """A value that an option can replace: its place in a spec and its type."""

    place: tuple[str, ...]
    kind: Any

    @property
    def name(self) -> str:
        """The option without its hyphens, as in train.learning-rate."""
        return ".".join(self.place).replace("_", "-")

    def is_spelt_in(self, token: str) -> bool:
        """True where an option has the name of the arm letter by letter, if there is an arm."""
        arm = ".".join(self.place[:2])
        return self.place[0] != "arms" or token.lstrip("-").startswith(f"{arm}.")

    @property
    def takes_several(self) -> bool:
        """True for a list of values; its type may be one of several, as in tuple[..] | None."""
        return "tuple" in str(self.kind)

    def value(self, texts: Sequence[str]) -> Any:
        """Return what the texts behind the option stand for; ValueError for a wrong number.

        None means null, and an option without a text true.
        """
        if texts == ["None"]:
            return None
        if self.takes_several:
            return list(texts)
        if not texts and "bool" in str(self.kind):
            return True
        if len(texts) != 1:
            got = " ".join(texts) or "nothing"
            raise ValueError(f"--{self.name} must be given one value, got {got}")
        return texts[0]


def replacements(values: Options, tokens: Sequence[str], others: Iterable[str] = ()) -> Options:
    """Return what options say in place of the values of a spec, as texts in their tables.

    others: names that a misspelt option may mean as well. Raises ValueError for an option that is
    unknown, given twice or without its value.
    """
    arms = values.get("arms")
    known: dict[str, list[Replaceable]] = {}
    for one in _replaceable(Spec, arms if isinstance(arms, dict) else ()):
        known.setdefault(one.name, []).append(one)
    given = _given(tokens)
    options = [_meant(token, known, others) for token, _ in given]
    changes: Options = {}
    for (token, texts), option in zip(given, options, strict=True):
        times = options.count(option)
        if times > 1:
            raise ValueError(
                f"{token} must be given once, with all of its values, got it {times} times"
            )
        changes = deep_merge(changes, nested(option.place, option.value(texts)))
    return changes


def _meant(
    token: str, known: Mapping[str, Sequence[Replaceable]], others: Iterable[str]
) -> Replaceable:
    """Return the option that a token names; ValueError where it names none, or those of two arms.

    Of arms that differ in hyphens and underscores it is the one whose name is spelt so.
    """
    found = known.get(_plain(token))
    if found is None:
        raise ValueError(
            f"option must be one of the spec, got {token}; {_hint(_plain(token), known, others)}"
        )
    spelt = [one for one in found if one.is_spelt_in(token)]
    if len(found) > 1 and len(spelt) != 1:
        arms = " or ".join(repr(one.place[1]) for one in found)
        raise ValueError(f"{token} must name one arm as it is spelt, {arms}")
    return found[0] if len(found) == 1 else spelt[0]


def _given(tokens: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Return the options in `tokens`, each with the texts behind it or behind its =."""
    given: list[tuple[str, list[str]]] = []
    for token in tokens:
        if re.match(r"-[^\d.]", token):  # no negative number
            name, equals, text = token.partition("=")
            given.append((name, [text] if equals else []))
        elif given:
            given[-1][1].append(token)
        else:
            raise ValueError(
                f"an option must come before its value, got {token!r} alone; a switch such as"
                " --dry-run takes no value; see --help"
            )
    return given


def _plain(token: str) -> str:
    return token.lstrip("-").replace("_", "-")


def _hint(name: str, known: Collection[str], others: Iterable[str]) -> str:
    """Return a hint which option was meant: one that ends in `name`, else the most similar."""
    close = [one for one in known if one.rpartition(".")[2] == name][:2]
    if not close:
        every = [*known, *(other.replace("_", "-") for other in others)]
        close = difflib.get_close_matches(name, every, n=1)
    if not close:
        return "--help lists the options"
    return f"did you mean {' or '.join(f'--{one}' for one in close)}?"


def _replaceable(
    section: type[Section], arms: Collection[str] | Mapping[str, Any], *head: str
) -> Iterator[Replaceable]:
    """Yield every value of a section that an option can replace.

    Left out are tables of any options, and lists of TABLES.
    """
    for name, field in section.model_fields.items():
        kind = SECTIONS.get(name, field.annotation)
        if name == "arms":
            for arm in arms:
                yield from _replaceable(Arm, (), name, arm)
        elif isinstance(kind, type) and issubclass(kind, Section):
            yield from _replaceable(kind, (), *head, name)
        elif "dict" not in str(kind) and name not in TABLES:
            yield Replaceable((*head, name), kind)
