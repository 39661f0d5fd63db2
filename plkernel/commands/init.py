"""python -m plkernel.init list | show: initialisation schemes by name, and their plans.

list names every scheme with its source and its free constants; show prints what one does to every
parameter of a model of any size.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import tyro

from plkernel.common.cli import counted, main_of
from plkernel.models import ModelKind

if TYPE_CHECKING:
    from plkernel.models.init.plan import Entry, Scheme

WIDTH = 120
"""Columns of a terminal."""
LEGEND = (
    "N(s) normal of deviation s; T(s, c) cut at c deviations, not rescaled; J(s) cut at 2 and"
    " rescaled; U(b) uniform within +-b;\nO(g) orthogonal of gain g; C(v) the number v. rate x,"
    " decay x: multiples of the run's"
)


def listing(pattern: Annotated[str, tyro.conf.Positional] = "*") -> None:
    """List the initialisation schemes, with their free constants and sources.

    Args:
        pattern: A part of the name, or a pattern with * or ?: mup, megatron*. The name of a scheme
            prints all about it.
    """
    from plkernel.models.init.plan import SCHEMES

    names = matching(pattern, SCHEMES)
    margin = max(map(len, names)) + 2
    for name in names:
        print_scheme(SCHEMES[name], margin, whole=len(names) == 1)
    hint = "python -m plkernel.init list NAME tells more of one, show NAME what it does to a model"
    print(f"{counted(len(names), 'scheme', 'schemes')}; {hint}")


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    """The names that a pattern or a part of a name matches, sorted; a whole name matches alone.

    ValueError, with the nearest name, where there are none.
    """
    from fnmatch import fnmatchcase

    from plkernel.common.cli import nearest

    known = sorted(names)
    if pattern in known:
        return [pattern]
    wild = pattern if set(pattern) & set("*?[") else f"*{pattern}*"
    found = [name for name in known if fnmatchcase(name, wild.lower())]
    if not found:
        raise ValueError(
            f"scheme must be the name of one, got {pattern!r}; {nearest(pattern, known)}"
        )
    return found


def print_scheme(scheme: "Scheme", margin: int, whole: bool) -> None:
    """The name of a scheme, and in a column behind it what it does, its constants and its source.

    whole: all that it does, not the first paragraph alone.
    """
    from textwrap import fill

    about = [" ".join(paragraph.split()) for paragraph in scheme.about.split("\n\n")]
    constants = "  ".join(f"{option}={value:g}" for option, value in scheme.options.items())
    lines = [*(about if whole else about[:1]), constants, scheme.source]
    first = scheme.name.ljust(margin)
    for line in lines:
        if line:
            print(fill(line, WIDTH, initial_indent=first, subsequent_indent=" " * margin))
            first = " " * margin


def show(
    scheme: Annotated[str, tyro.conf.Positional],
    model: ModelKind = "ssm",
    dim: int = 256,
    layers: int = 4,
    head_size: int | None = None,
    option: tyro.conf.UseAppendAction[tuple[tuple[str, float], ...]] = (),
) -> None:
    """Print what a scheme does to every parameter of a model of plkernel, of any size.

    Nothing is allocated. A model of another library is planned from Python: plan(model,
    "megatron_default", RoleTable.from_toml("gpt2")), both of plkernel.models.init; its roles are a
    TOML of a few lines.

    Args:
        scheme: Name of the scheme; plkernel.init list shows all.
        model: ssm is the diagonal SSM; rwkv5, rwkv6 and rwkv7 are Eagle, Finch and Goose.
        dim: Width of the model.
        layers: Number of blocks.
        head_size: Channels of a head of an RWKV; 32 if left out.
        option: A free constant of the scheme, as in --option std 0.01 --option base_width 64.
    """
    from math import prod
    from textwrap import fill

    import torch

    from plkernel.common.cli import text_table
    from plkernel.config.condition import resolve
    from plkernel.config.schema import Arm, ModelSpec
    from plkernel.config.spec import heading
    from plkernel.training.build import build, plan_of

    sizes = {"kind": model, "dim": dim, "layers": layers}
    if head_size is not None:
        sizes["head_size"] = head_size
    arm = Arm(scheme=scheme, scheme_options=dict(option))
    with heading("", "model"):
        condition = resolve(ModelSpec.model_validate(sizes), arm)
    with torch.device("meta"):  # nothing is allocated
        chosen = plan_of(build(condition), condition)
    count = sum(prod(entry.parameter.shape) for entry in chosen.entries)
    blocks = counted(layers, "block", "blocks")
    title = f"{scheme} on {model}, width {dim}, {blocks}, {count:,} parameters"
    if chosen.options:
        title += "; " + ", ".join(f"{name} = {value:g}" for name, value in chosen.options.items())
    header = ["parameter", "blocks", "role", "shape", "drawn from", "rate x", "decay x"]
    asks = [f"{name} = {value!r}" for name, value in chosen.needs.items()]
    asks += [f"multiplier {name} = {value:.6g}" for name, value in chosen.forward.items()]
    needs = fill(f"asks of the model: {', '.join(asks) or 'nothing'}", WIDTH)
    print(title, text_table(header, table_rows(chosen.entries)), LEGEND, needs, sep="\n\n")


def table_rows(entries: Iterable["Entry"]) -> list[list[str]]:
    """One row for each parameter; equal ones share a row with the first and the last block."""
    blocks: dict[tuple[str, ...], list[int]] = {}
    for entry in entries:
        parameter = entry.parameter
        cells = (
            parameter.label.replace(f".{parameter.layer}.", ".*.", 1),
            parameter.role,
            "x".join(map(str, parameter.shape)),
            str(entry.distribution),
            f"{entry.learning_rate:g}",
            f"{entry.weight_decay:g}",
        )
        numbers = blocks.setdefault(cells, [])
        if parameter.layer is not None:
            numbers.append(parameter.layer)
    rows = []
    for (name, *others), numbers in blocks.items():
        ends = dict.fromkeys((numbers[0], numbers[-1])) if numbers else {}
        rows.append([name, "-".join(map(str, ends)), *others])
    return rows


if __name__ == "__main__":
    main_of({"list": listing, "show": show}, str(__doc__))
