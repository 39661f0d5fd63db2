"""Which part a parameter plays: a table of glob patterns per model, in which every parameter has exactly one role.

embedding   one row per byte or token
position    one row per position
head        to logits; absent where it is the embedding
query       what reads the memory: attention queries, RWKV's receptance
key         attention or RWKV keys
value       what is remembered: attention or RWKV values, the input map of an SSM
mixer_gate  multiplies what the mixer gives
mixer_out   from the mixer to the residual stream: attention output, an SSM's C, RWKV's output
ffn_gate    the activated branch of a feed-forward layer (w1), RWKV's ffn.key
ffn_up      its linear branch (w3)
ffn_router  decides how much comes out: a router, RWKV's ffn.receptance
ffn_out     back to the residual stream (w2)
norm        gain of a norm
norm_bias   bias of a norm
bias        bias of a matrix
gate        one number that multiplies a residual branch
own         what a scheme leaves as the model has it: decays, time steps, token shifts, low-rank maps, convolutions
"""

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, get_args

Role = Literal[
    "embedding", "position", "head",
    "query", "key", "value", "mixer_gate", "mixer_out",
    "ffn_gate", "ffn_up", "ffn_router", "ffn_out",
    "norm", "norm_bias", "bias", "gate", "own",
]  # fmt: skip
INPUT: tuple[Role, ...] = ("query", "key", "value", "mixer_gate", "ffn_gate", "ffn_up", "ffn_router")
OUTPUT: tuple[Role, ...] = ("mixer_out", "ffn_out")
MATRICES: tuple[Role, ...] = (*INPUT, *OUTPUT)
COME_WITH = Path(__file__).parents[2] / "runs" / "roles"
LONGEST = 80  # characters of a value in an error message


@dataclass(frozen=True)
class Rule:
    """What one pattern says: the role; `parts`, the roles of equal slices along the output where several matrices are
    fused into one; `transposed` where the weight is stored (in, out)."""

    role: Role | None = None
    parts: tuple[Role, ...] = ()
    transposed: bool = False

    def __post_init__(self) -> None:
        if (self.role is None) == (not self.parts):
            raise ValueError("a rule needs a role or parts, and not both")
        for name in self.roles:
            if name not in get_args(Role):
                raise ValueError(f"role must be one of {', '.join(get_args(Role))}, got {repr(name)[:LONGEST]}")

    @property
    def roles(self) -> tuple[Role, ...]:
        """The roles of the slices, one where nothing is fused."""
        return (self.role,) if self.role else self.parts


@dataclass(frozen=True)
class RoleTable:
    """Patterns (as `fnmatch`; `*` also matches dots) and their rules."""

    rules: Mapping[str, Rule]

    def assign(self, names: Iterable[str]) -> dict[str, Rule]:
        """The rule of every parameter; ValueError, with the names, where one has none or two."""
        found, wrong = {}, []
        for name in names:
            matching = [pattern for pattern in self.rules if fnmatchcase(name, pattern)]
            if len(matching) == 1:
                found[name] = self.rules[matching[0]]
            else:
                wrong.append(f"{name} ({' and '.join(map(repr, matching)) if matching else 'no pattern'})")
        if wrong:
            more = f" and {len(wrong) - 4} more" if len(wrong) > 4 else ""
            raise ValueError(f"every parameter needs exactly one role: {', '.join(wrong[:4])}{more}")
        return found

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "RoleTable":
        """From plain values, as in a TOML file: pattern = "role" or {parts = ["query", ...], transposed = true}.

        Raises ValueError that names the pattern.
        """
        rules = {}
        for pattern, value in values.items():
            try:
                rules[pattern] = _rule({"role": value} if isinstance(value, str) else value)
            except ValueError as error:
                raise ValueError(f"roles: {repr(pattern)[:LONGEST]}: {error}") from error
        return cls(rules)

    @classmethod
    def from_toml(cls, path: Path | str) -> "RoleTable":
        """From a TOML file whose lines are as in `from_dict`, or by the name of one that comes with plkernel: gpt2.

        Raises ValueError, naming the file, where it is not.
        """
        known = {table.stem: table for table in sorted(COME_WITH.glob("*.toml"))}
        if not Path(path).is_file() and str(path) not in known:  # a pipe may never answer
            raise ValueError(f"{path}: no such file; by name there are {', '.join(known)}")
        path = path if Path(path).is_file() else known[str(path)]
        try:
            return cls.from_dict(tomllib.loads(Path(path).read_text(encoding="utf-8")))
        except RecursionError:
            raise ValueError(f"{path}: nested too deep for a table of roles") from None
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


VALUES: dict[str, tuple[Any, str]] = {
    "role": (str, "a role"),
    "parts": (list | tuple, "a list of roles"),
    "transposed": (bool, "true or false"),
}


def _rule(given: Any) -> Rule:
    """A rule from plain values; ValueError for another key or type: "no" is not false."""
    if not isinstance(given, Mapping):
        raise ValueError(f"expected a role, or a table of {', '.join(VALUES)}, got {str(given)[:LONGEST]}")
    for key, value in given.items():
        if key not in VALUES:
            raise ValueError(f"unknown key {repr(key)[:LONGEST]}; valid: {', '.join(VALUES)}")
        kind, words = VALUES[key]
        if not isinstance(value, kind):
            raise ValueError(f"{key} must be {words}, got {repr(value)[:LONGEST]}")
    return Rule(given.get("role"), tuple(given.get("parts", ())), given.get("transposed", False))


def layer_of(name: str) -> int | None:
    """The first number in a dotted name, which counts the blocks: 3 in blocks.3.ssm.B.weight."""
    found = re.search(r"(?:^|\.)(\d+)(?:\.|$)", name)
    return int(found[1]) if found else None
