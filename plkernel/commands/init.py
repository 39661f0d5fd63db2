"""python -m plkernel.init list | show: initialisation schemes by name, and their plans.

list names every scheme with its source and its free constants; show prints what one does to every
parameter of a model of any size.
"""

from typing import Annotated

import tyro

from plkernel.common.cli import main_of
from plkernel.models import ModelKind

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
    from fnmatch import fnmatchcase
    from textwrap import fill

    from plkernel.common.cli import nearest
    from plkernel.models.init.plan import SCHEMES

    wild = pattern if set(pattern) & set("*?[") else f"*{pattern}*"
    names = (
        [pattern]
        if pattern in SCHEMES
        else [name for name in SCHEMES if fnmatchcase(name, wild.lower())]
    )
    if not names:
        raise ValueError(f"no scheme is called {pattern!r}: {nearest(pattern, SCHEMES)}")
    margin = " " * (max(map(len, names)) + 2)
    for one in (SCHEMES[name] for name in sorted(names)):
        about = one.about if len(names) == 1 else one.about.partition("\n")[0]
        constants = "  ".join(f"{option}={value:g}" for option, value in one.options.items())
        first = one.name.ljust(len(margin))
        for line in filter(None, (*about.split("\n"), constants, one.source)):
            print(fill(line, 120, initial_indent=first, subsequent_indent=margin))
            first = margin
    hint = "python -m plkernel.init list NAME tells more of one, show NAME what it does to a model"
    print(f"{len(names)} schemes; {hint}")


def show(
    scheme: Annotated[str, tyro.conf.Positional],
    model: ModelKind = "ssm",
    dim: int = 256,
    layers: int = 4,
    head_size: int | None = None,
    option: tyro.conf.UseAppendAction[tuple[tuple[str, float], ...]] = (),
) -> None:
    """Print what a scheme does to every parameter of one of our models: nothing is allocated, so
    any size will do.

    A model of another library is planned from Python: plan(model, "megatron_default",
    RoleTable.from_toml("gpt2")), both of plkernel.models.init; roles are a TOML of a few lines.

    Args:
        scheme: Name of the scheme, see plkernel.init list.
        model: ssm: the diagonal SSM. rwkv5, rwkv6, rwkv7: Eagle, Finch and Goose.
        dim: Width.
        layers: Number of blocks.
        head_size: RWKV: channels of a head, 32 if left out.
        option: Free constants of the scheme: --option std 0.01 --option base_width 64.
    """
    from math import prod
    from textwrap import fill

    import torch

    from plkernel.common.cli import text_table
    from plkernel.config.condition import resolve
    from plkernel.config.schema import Arm, ModelSpec
    from plkernel.config.study import heading
    from plkernel.training.build import build, plan_of

    sizes = {
        "dim": dim,
        "layers": layers,
        **({} if head_size is None else {"head_size": head_size}),
    }
    arm = Arm(scheme=scheme, scheme_options=dict(option))
    with heading("", "model"):
        condition = resolve(ModelSpec.model_validate({"kind": model, **sizes}), arm)
    with torch.device("meta"):  # nothing is allocated
        chosen = plan_of(build(condition), condition)
    count = sum(prod(entry.parameter.shape) for entry in chosen.entries)
    title = f"{scheme} on {model}, width {dim}, {layers} blocks, {count:,} parameters"
    options = ", ".join(f"{name} = {value:g}" for name, value in chosen.options.items())
    rows: dict[
        tuple[str, ...], list[int | None]
    ] = {}  # equal entries of several blocks are one row
    for entry in chosen.entries:
        p = entry.parameter
        shape, rates = (
            "x".join(map(str, p.shape)),
            (f"{entry.learning_rate:g}", f"{entry.weight_decay:g}"),
        )
        cells = (
            p.label.replace(f".{p.layer}.", ".*.", 1),
            p.role,
            shape,
            str(entry.distribution),
            *rates,
        )
        rows.setdefault(cells, []).append(p.layer)
    header = ["parameter", "blocks", "role", "shape", "drawn from", "rate x", "decay x"]
    table = [
        [name, "-".join(str(n) for n in dict.fromkeys((at[0], at[-1])) if n is not None), *cells]
        for (name, *cells), at in rows.items()
    ]
    asks = [f"{name} = {value!r}" for name, value in chosen.needs.items()]
    asks += [f"multiplier {name} = {value:.6g}" for name, value in chosen.forward.items()]
    needs = fill(f"asks of the model: {', '.join(asks) or 'nothing'}", 120)
    parts = [f"{title}; {options}" if options else title, text_table(header, table), LEGEND, needs]
    print(*parts, sep="\n\n")


if __name__ == "__main__":
    main_of({"list": listing, "show": show}, str(__doc__))
