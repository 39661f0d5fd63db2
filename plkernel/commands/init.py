"""python -m plkernel.init list | show | check: initialisation schemes by name, their plans, and what they do.

list names every scheme with its source and its free constants; show prints what one does to every parameter of a model
of any size; check trains small models for a few steps at several widths, and sends a signal through deep ones.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from plkernel.common.cli import main_of
from plkernel.models import ModelKind

if TYPE_CHECKING:
    from torch import Tensor

    from plkernel.config.condition import Condition
    from plkernel.models.init.plan import Plan
    from plkernel.training.build import Model

HEAD_SIZE = 32
CONTEXT, BATCH = 64, 4
LEGEND = (
    "N(s) normal of deviation s; T(s, c) cut at c deviations, not rescaled; J(s) cut at 2 and rescaled; U(b) uniform "
    "within +-b;\nO(g) orthogonal of gain g; C(v) the number v. rate x, decay x: multiples of the run's"
)


def listing(pattern: Annotated[str, tyro.conf.Positional] = "*") -> None:
    """List the initialisation schemes, with their free constants and sources.

    Args:
        pattern: A part of the name, or a pattern with * or ?: mup, megatron*. The name of a scheme prints all about it.
    """
    from fnmatch import fnmatchcase
    from textwrap import fill

    from plkernel.common.cli import nearest
    from plkernel.models.init.plan import SCHEMES

    wild = pattern if set(pattern) & set("*?[") else f"*{pattern}*"
    names = [pattern] if pattern in SCHEMES else [name for name in SCHEMES if fnmatchcase(name, wild.lower())]
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
    option: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
    json: Path | None = None,
) -> None:
    """Print what a scheme does to every parameter of one of our models: nothing is allocated, so any size will do.

    A model of another library is planned from Python: plan(model, "megatron_default", RoleTable.from_toml("gpt2")),
    both of plkernel.models.init; roles are a TOML of a few lines.

    Args:
        scheme: Name of the scheme, see plkernel.init list.
        model: ssm: the diagonal SSM. rwkv5, rwkv6, rwkv7: Eagle, Finch and Goose.
        dim: Width.
        layers: Number of blocks.
        head_size: RWKV: channels of a head, 32 if left out.
        option: Free constants of the scheme: --option std=0.01 --option base_width=64.
        json: File for the plan.
    """
    from dataclasses import asdict
    from math import prod
    from textwrap import fill

    import torch

    from plkernel.common.cli import text_table
    from plkernel.common.files import check_file, save_json
    from plkernel.training.build import build, plan_of

    check_file(json, "json")
    condition = condition_of(scheme, model, dim, layers, head_size, option)
    with torch.device("meta"):  # nothing is allocated
        chosen = plan_of(build(condition), condition)
    count, sizes = sum(prod(entry.parameter.shape) for entry in chosen.entries), chosen.sizes
    title = f"{scheme} on {model}, width {sizes.width}, {sizes.layers} blocks, {count:,} parameters"
    options = ", ".join(f"{name} = {value:g}" for name, value in chosen.options.items())
    rows: dict[tuple[str, ...], list[int | None]] = {}  # equal entries of several blocks are one row
    for entry in chosen.entries:
        p = entry.parameter
        shape, rates = "x".join(map(str, p.shape)), (f"{entry.learning_rate:g}", f"{entry.weight_decay:g}")
        cells = (p.label.replace(f".{p.layer}.", ".*.", 1), p.role, shape, str(entry.distribution), *rates)
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
    if chosen.calibration:
        norm = f"until the partial Jacobian norm of its\nbranch is {chosen.calibration:g}"
        parts.append(f"then, on a batch: the output projections of every block times one gain, {norm}")
    print(*parts, sep="\n\n", flush=True)
    if json is not None:
        save_json(json, {"model": model, **asdict(chosen)})
        print(f"\nwritten: {json}", flush=True)


def check(
    scheme: Annotated[str, tyro.conf.Positional],
    model: ModelKind = "ssm",
    widths: tuple[int, ...] = (64, 128, 256, 512, 1024),
    layers: int = 2,
    depths: tuple[int, ...] = (4, 16, 64),
    dim: int = 128,
    head_size: int | None = None,
    steps: int = 4,
    seeds: int = 3,
    learning_rate: float = 2**-10,
    option: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
    corpus: str = "stdlib",
    threads: int = os.cpu_count() or 1,
    out: Path = Path("runs/out/init"),
) -> None:
    """Check a scheme by training small models for a few steps, and by sending a signal through deep ones.

    At every width a model takes a few steps of Adam on one batch, at one base rate times the multipliers of the scheme.
    With x_0 an activation at the start and x_t after t steps, printed is the root mean square of x_t - x_0 and the
    slope of its logarithm over that of the width (Tensor Programs V, appendix D.1): 0 where learning rates carry over,
    0.5 to 2 under standard parametrisations. mixer i and ffn i are the branches of block i, block i the stream after
    it. Under muP the logits of a random head may fall; --option zero_readout=1 starts it at zero.

    Depth, at the start: growth per block (geometric mean) of the root mean square of the residual stream, and of its
    gradient for independent normal gradients after the last block.

    Args:
        scheme: Name of the scheme, see plkernel.init list.
        model: ssm: the diagonal SSM, half-lives log-spaced. rwkv5, rwkv6, rwkv7: Eagle, Finch and Goose.
        widths: Widths of the coordinate check.
        layers: Blocks there.
        depths: Blocks of the models that the signal goes through.
        dim: Width there.
        head_size: RWKV: channels of a head, 32 if left out, of which every width must be a multiple.
        steps: Steps, of Adam with betas 0.9 and 0.999, no weight decay.
        seeds: Seeds of the weights; the batch is always the same.
        learning_rate: Base learning rate.
        option: Free constants of the scheme: --option std=0.01 --option base_width=64.
        corpus: Where the bytes come from, see plkernel.corpus.
        threads: Threads of torch.
        out: Folder for SCHEME-MODEL.json.
    """
    import torch

    from plkernel import __version__
    from plkernel.common.cli import progress_bar, text_table
    from plkernel.common.files import check_folder, save_json
    from plkernel.config.schema import check_threads
    from plkernel.data import corpora
    from plkernel.data.windows import check_length, fixed_windows
    from plkernel.models.init.coordinate_check import FLAT, coordinate_check, geometric, propagation, slope_of

    check_threads(threads)
    if not depths or min(depths) < 1:
        raise ValueError(f"depths must be at least 1, got {depths}")
    widths = tuple(sorted(set(widths)))
    wide = {width: condition_of(scheme, model, width, layers, head_size, option) for width in widths}
    deep = {depth: condition_of(scheme, model, dim, depth, head_size, option) for depth in sorted(set(depths))}
    check_folder(out, "out")
    torch.set_num_threads(threads)
    data = corpora.load(corpus)
    check_length(data.size, CONTEXT, f"corpus {corpus!r}")
    windows = fixed_windows(data.bytes, CONTEXT, BATCH)
    inputs = windows[:, :-1]
    given: dict[str, Any] = {"steps": steps, "seeds": seeds, "learning_rate": learning_rate}
    with progress_bar("widths") as given["progress"]:
        moved = coordinate_check(lambda width, seed: filled(wide[width], seed, inputs), windows, widths, **given)
    slopes = {name: slope_of(widths, values) for name, values in moved.items()}
    print(f"{scheme} on {model}: rms of x_t - x_0 after {steps} steps of Adam at {learning_rate:.3g}\n")
    rows = []
    for name, slope in slopes.items():
        verdict = f"flat within {FLAT:g}" if slope.verdict == "flat" else slope.verdict
        means = [f"{value:.3g}" for value in geometric(moved[name][:, :, -1])]
        rows.append([name, *means, f"{slope.value:+.2f}", f"{slope.error:.2f}".replace("nan", "-"), verdict])
    header = ["activation", *(f"width {width}" for width in widths), "slope", "error", "verdict"]
    print(text_table(header, rows), flush=True)
    streams = {}
    with progress_bar("depths") as progress:
        for depth, one in deep.items():
            streams[depth] = propagation(lambda seed, one=one: filled(one, seed, inputs)[0], windows, seeds)  # type: ignore[misc]
            progress(depth / sum(deep))
    print(f"\nresidual stream at initialisation, width {dim}: growth per block of its root mean square\n")
    rows = [[str(depth), *(f"{growth:.4f}" for growth in item.growth)] for depth, item in streams.items()]
    print(text_table(["blocks", "forward", "gradient, backward"], rows), flush=True)
    values = {
        **{"plkernel": __version__, "scheme": scheme, "model": model, "layers": layers, "dim": dim, "seeds": seeds},
        **{"options": wide[widths[0]].arm.scheme_options, "context": CONTEXT, "batch": BATCH},
        **{"corpus": data.name, "sha256": data.sha256},
        "coordinates": {
            **{"widths": widths, "learning_rate": learning_rate},
            "starts": {name: values[:, :, :1].tolist() for name, values in moved.items()},
            "changes": {name: values[:, :, 1:].tolist() for name, values in moved.items()},
        },
        "slopes": {name: slope._asdict() for name, slope in slopes.items()},
        "depths": [{**item._asdict(), "depth": depth, "growth": item.growth} for depth, item in streams.items()],
    }
    path = out / f"{scheme}-{model}.json"
    save_json(path, values)
    print(f"\nwritten: {path}", flush=True)


def condition_of(
    scheme: str, kind: ModelKind, dim: int, layers: int, head_size: int | None, given: Sequence[str] = ()
) -> "Condition":
    """One of our models with NAME=VALUE each as an option of the scheme; ValueError for a size or option that is wrong.

    An RWKV has heads of HEAD_SIZE channels unless `head_size` is given.
    """
    from plkernel.config.condition import resolve
    from plkernel.config.schema import Arm, ModelSpec

    options: dict[str, float] = {}
    for text in given:
        name, _, value = text.partition("=")
        try:
            options[name] = {"true": True, "false": False}[value.lower()] if value.isalpha() else float(value)
        except (KeyError, ValueError) as error:
            raise ValueError(f"option must be NAME=VALUE, as std=0.02 or tied=true, got {text!r}") from error
    heads: dict[str, Any] = {} if kind == "ssm" and head_size is None else {"head_size": head_size or HEAD_SIZE}
    return resolve(ModelSpec(kind=kind, dim=dim, layers=layers, **heads), Arm(scheme=scheme, scheme_options=options))


def filled(condition: "Condition", seed: int, inputs: "Tensor") -> "tuple[Model, Plan]":
    """A filled model and its plan; calibrated on `inputs`, bytes (B,T), where the scheme asks for that."""
    from plkernel.training.build import build, initialise_, plan_of, tune_

    model = initialise_(build(condition), condition, seed)
    tune_(model, condition, inputs)
    return model, plan_of(model, condition)


if __name__ == "__main__":
    main_of({"list": listing, "show": show, "check": check}, str(__doc__))
