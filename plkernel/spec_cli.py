"""Commands that take a spec: the file first, then flags that may override any of its fields."""

import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import tyro
from tyro.constructors import ConstructorRegistry, StructConstructorSpec, StructFieldSpec, StructTypeInfo

from plkernel import cli
from plkernel.spec import Arm, Section, Spec, TrainSpec, load_spec, parse_spec

# What --help shows when no file is given.
EXAMPLE = Spec(name="study", baseline="baseline", train=TrainSpec(steps=1000), arms={"baseline": Arm()})

TRAIN_FLAGS = ("--train.", "--spec.train.")
MOST_ARMS = 8  # with flags of their own, which take time to make; of a larger study those that are named
NO_FLAGS = (dict[str, Any], dict[str, Any] | None, dict[str, str] | None)


def main(command: Callable[..., Any], args: Sequence[str] | None = None) -> None:
    """Run `command(spec, ...)` as `SPEC.toml [OPTIONS]`; exit 2 with one line on bad input.

    The file is read first and its values become the defaults of the generated flags, as in --train.steps 200. The
    spec is checked again with the flags in it.
    """
    given = list(sys.argv[1:] if args is None else args)
    prog = f"python -m {cli.module_name()} SPEC.toml"

    def run() -> None:
        asked = bool(given) and given[0] in ("-h", "--help")
        if not asked and (not given or given[0].startswith("-")):
            raise ValueError(f"the spec comes first: {prog} [OPTIONS], got {given[0] if given else 'nothing'!r}")
        spec = EXAMPLE if asked else load_spec(Path(given[0]))
        tyro.cli(
            functools.partial(_checked(command, spec, given), spec=_with_few_arms(spec, given)),
            args=given[0 if asked else 1 :],
            prog=prog,
            registry=_registry(),
        )

    cli.report_errors(run)


def _checked(command: Callable[..., Any], loaded: Spec, args: Sequence[str]) -> Callable[..., None]:
    """`command`, with the whole spec checked again; a new recipe fills what neither the file nor a flag gives."""

    @functools.wraps(command)
    def checked(spec: Spec, **options: Any) -> None:
        values = spec.model_copy(update={"arms": loaded.arms | spec.arms}).model_dump()
        if spec.train.recipe != loaded.train.recipe:
            flags = [arg.partition("=")[0] for arg in args if arg.startswith(TRAIN_FLAGS)]
            given = loaded.train.model_fields_set | {flag.rpartition(".")[2].replace("-", "_") for flag in flags}
            values["train"] = {name: value for name, value in values["train"].items() if name in given}
        command(parse_spec(values, f"{args[0]} with its flags"), **options)

    return checked


def _with_few_arms(spec: Spec, args: Sequence[str]) -> Spec:
    """The spec with the arms that get flags: all of a small study, otherwise its baseline and those in the flags."""
    if len(spec.arms) <= MOST_ARMS:
        return spec
    flags = [arg.partition("=")[0] for arg in args if arg.startswith(("--arms.", "--spec.arms."))]
    names = [name for name in spec.arms if name == spec.baseline or any(f".arms.{name}." in f".{f[2:]}" for f in flags)]
    return spec.model_copy(update={"arms": {name: spec.arms[name] for name in names}})


def _registry() -> ConstructorRegistry:
    """Sections are taken from the flags as they are: the check of the whole spec has the better words."""
    registry = ConstructorRegistry()

    @registry.struct_rule
    def unchecked(info: StructTypeInfo) -> StructConstructorSpec | None:
        if not (isinstance(info.type, type) and issubclass(info.type, Section)):
            return None
        hints = get_type_hints(info.type, include_extras=True)
        fields = tuple(
            StructFieldSpec(name, _flagged(hints[name]), getattr(info.default, name), field.description)
            for name, field in info.type.model_fields.items()
        )
        return StructConstructorSpec(_constructor(info.type), fields)

    return registry


def _flagged(annotation: Any) -> Any:
    """The type of a field; one that no flag can express keeps the file's value."""
    fixed = Annotated[annotation, tyro.conf.Fixed, tyro.conf.SuppressFixed]
    return fixed if annotation in NO_FLAGS else annotation


def _constructor(section: type[Section]) -> Callable[..., Section]:
    """`section` from keywords, unchecked, with its docstring (which heads its part of --help)."""

    @functools.wraps(section, updated=())
    def construct(**values: Any) -> Section:
        return section.model_construct(**values)

    return construct
