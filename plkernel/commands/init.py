"""python -m plkernel.init list | show | check: initialisation schemes by name, their plans, and what they do.

list names every scheme with its source and its free constants; show prints what one does to every parameter of a model
of any size; check trains small models for a few steps at several widths, and sends a signal through deep ones.
"""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from plkernel.common.cli import main_of
from plkernel.models.words import ModelKind

if TYPE_CHECKING:
    from torch import Tensor

    from plkernel.config.condition import Condition
    from plkernel.models.init.coordinate_check import Coordinates, Propagation
    from plkernel.models.init.plan import Plan
    from plkernel.training.build import Model

HEAD_SIZE = 32
CONTEXT, BATCH = 64, 4
LEGEND = (
    "N(s) normal of deviation s; T(s, c) cut at c deviations, not rescaled; J(s) cut at 2 and rescaled; U(b) uniform "
    "within +-b;\nO(g) orthogonal of gain g; C(v) the number v. rate x, decay x: multiples of the base learning rate "
    "and weight decay"
)


def listing(pattern: Annotated[str, tyro.conf.Positional] = "*") -> None:
    """List the initialisation schemes by family, with their free constants and sources.

    Args:
        pattern: A part of the name, or a pattern with * or ?: mup, megatron*. The name of a scheme prints all about it.
    """
    from fnmatch import fnmatchcase
    from inspect import getdoc
    from itertools import groupby
    from textwrap import fill

    from plkernel.common.cli import nearest
    from plkernel.models.init.plan import SCHEMES

    wild = pattern if set(pattern) & set("*?[") else f"*{pattern}*"
    names = [pattern] if pattern in SCHEMES else [name for name in SCHEMES if fnmatchcase(name, wild.lower())]
    if not names:
        raise ValueError(f"no scheme is called {pattern!r}: {nearest(pattern, SCHEMES)}")
    if len(names) == 1:
        one = SCHEMES[names[0]]
        notes = [f"free constants: {one.constants or 'none'}", one.calibration, f"source: {one.source}"]
        print(one.name, "-" * len(one.name), getdoc(one.rules) or "", "", *filter(None, notes), sep="\n")
        return
    margin = " " * (max(map(len, names)) + 4)
    for family, members in groupby(sorted((SCHEMES[n] for n in names), key=lambda s: s.family), lambda s: s.family):
        print(family)
        for one in members:
            first = f"  {one.name}".ljust(len(margin))
            print(fill(one.summary, 120, initial_indent=first, subsequent_indent=margin))
            for note in filter(None, (one.constants, one.calibration, one.source)):
                print(fill(note, 120, initial_indent=f"{margin}  ", subsequent_indent=f"{margin}  "))
        print()
    hint = "python -m plkernel.init list NAME tells more of one, show NAME what it does to a model"
    print(f"{len(names)} schemes; {hint}")


def show(
    scheme: Annotated[str, tyro.conf.Positional],
    model: ModelKind = "ssm",
    dim: int = 256,
    layers: int = 4,
    head_size: int | None = None,
    option: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
    against: str | None = None,
    json: Path | None = None,
) -> None:
    """Print what a scheme does to every parameter of one of our models: nothing is allocated, so any size will do.

    A model of another library is planned from Python, with plan and RoleTable of plkernel.models.init: plan(model,
    "megatron_default", RoleTable.from_toml("gpt2")).apply_(model, seed=0). Roles are a TOML of a few lines; those of
    GPT-2 and Mamba in transformers come with plkernel (python -m plkernel.specs gpt2). heads=(number, size) is for a
    scheme that scales by heads, structure=Structure(...) for one that asks for more than weights.

    Args:
        scheme: Name of the scheme, see plkernel.init list.
        model: ssm: the diagonal SSM. rwkv5, rwkv6, rwkv7: Eagle, Finch and Goose.
        dim: Width.
        layers: Number of blocks.
        head_size: RWKV: channels of a head, 32 if left out.
        option: Free constants of the scheme: --option std=0.01 --option base_width=64.
        against: Another scheme; prints the differences, with its own constants where it lacks one of these.
        json: File for the plan.
    """
    from plkernel.common.files import check_file, save_json
    from plkernel.models.init.plan import find

    condition = condition_of(scheme, model, dim, layers, head_size, option)
    check_file(json, "json")
    chosen = planned(condition)
    print(shown(chosen, model), flush=True)
    if against is not None:
        shared = [text for text in option if text.partition("=")[0] in find(against).options]
        lines = chosen.diff(planned(condition_of(against, model, dim, layers, head_size, shared)))
        title = f"\n{scheme} -> {against}:"
        print(*([title, *lines] if lines else [f"{title} no difference"]), sep="\n  ", flush=True)
    if json is not None:
        save_json(json, {"model": model, **chosen.to_dict()})
        print(f"\nwritten: {json}", flush=True)


def shown(chosen: "Plan", model: str) -> str:
    """The plan as text: sizes, the table of parameters, and the scheme's demands on model and training."""
    from math import prod

    from plkernel.common.cli import text_table

    count, sizes = sum(prod(entry.parameter.shape) for entry in chosen.entries), chosen.sizes
    title = f"{chosen.scheme} on {model}, width {sizes.width}, {sizes.layers} blocks, {count:,} parameters"
    options = ", ".join(f"{name} = {value:g}" for name, value in chosen.options.items())
    header = ["parameter", "blocks", "role", "shape", "drawn from", "rate x", "decay x"]
    asks = "asks of the model:" + "".join(f"\n  {line}" for line in chosen.asks() or ["nothing"])
    parts = [f"{title}; {options}" if options else title, text_table(header, chosen.rows()), LEGEND, asks]
    if chosen.calibration:
        parts.append(
            "then, on a batch: the output projections of every block times one gain, until the partial Jacobian norm "
            f"of its\nbranch is {chosen.calibration.target:g}; a run does this by itself, from Python calibrate_ does"
        )
    if chosen.optimizer != "adam":
        parts.append(f"the rates are for {chosen.optimizer.upper()}; a run here has AdamW and refuses them")
    return "\n\n".join(parts)


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
    figure: bool = True,
) -> None:
    """Check a scheme by training small models for a few steps, and by sending a signal through deep ones.

    Coordinate check: at every width a model takes a few steps of Adam (SGD, where the scheme's rates are for that) on
    one batch, at one base learning rate times the multipliers of the scheme. With x_0 an activation at the start and
    x_t after t steps, printed is the root mean square of the coordinates of x_t - x_0 (Tensor Programs V, appendix D.1,
    which takes their deviation) and the slope of its logarithm over that of the width: 0 where learning rates carry
    over from width to width, 0.5 to 2 under standard parametrisations. mixer i and ffn i are what the branches of block
    i give, block i the residual stream after it. Under muP the logits alone may fall: the random part of a random head
    does, as width**-0.5, until the rest is left. Where that is unwanted, start the head at zero: --option
    zero_readout=1.

    Depth, at the start: the root mean square of the residual stream after each block, and of its gradient for
    independent normal gradients after the last, with the growth per block (geometric mean).

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
        out: Folder for SCHEME-MODEL.json and the figure.
        figure: Draw the figure.
    """
    import torch

    from plkernel import __version__
    from plkernel.analysis.figures.style import rendered
    from plkernel.common.cli import progress_bar
    from plkernel.common.files import atomic_write, check_folder, save_json
    from plkernel.config.schema import check_threads
    from plkernel.data import corpora
    from plkernel.data.windows import check_length, fixed_windows
    from plkernel.models.init.coordinate_check import coordinate_check, coordinates_figure, propagation

    check_threads(threads)
    if not depths or min(depths) < 1:
        raise ValueError(f"depths must be at least 1, got {depths}")
    wide = {width: condition_of(scheme, model, width, layers, head_size, option) for width in widths}
    deep = {depth: condition_of(scheme, model, dim, depth, head_size, option) for depth in sorted(set(depths))}
    check_folder(out, "out")
    torch.set_num_threads(threads)
    data = corpora.load(corpus)
    check_length(data.size, CONTEXT, f"corpus {corpus!r}")
    windows = fixed_windows(data.bytes, CONTEXT, BATCH)
    inputs, title = windows[:, :-1], f"{scheme} on {model}"
    given: dict[str, Any] = {"steps": steps, "seeds": seeds, "learning_rate": learning_rate}
    with progress_bar("widths") as progress:
        coordinates = coordinate_check(
            lambda width, seed: filled(wide[width], seed, inputs), windows, widths, progress=progress, **given
        )
    optimizer = planned(wide[min(wide)]).optimizer
    named = optimizer.title() if optimizer == "adam" else optimizer.upper()
    print(f"{title}: rms of x_t - x_0 after {steps} steps of {named} at {learning_rate:.3g}\n")
    print(over_width(coordinates), f"verdict: {coordinates.verdict()}", sep="\n\n", end="\n\n", flush=True)
    streams = []
    with progress_bar("depths") as progress:
        for depth, condition in deep.items():
            streams.append(propagation(partial(model_of, condition, inputs), windows, seeds))
            progress(depth / sum(deep))
    print(f"residual stream at initialisation, width {dim}: rms before the first block and after the last\n")
    print(over_depth(streams), flush=True)
    values = {
        **{"plkernel": __version__, "scheme": scheme, "model": model, "layers": layers, "dim": dim},
        **{"options": wide[min(wide)].arm.scheme_options, "optimizer": optimizer, "corpus": data.name},
        **{"sha256": data.sha256, "context": CONTEXT, "batch": BATCH, "seeds": seeds},
        "coordinates": coordinates.to_dict(),
        "slopes": {name: vars(coordinates.slope(name)) for name in coordinates.names},
        "verdict": coordinates.verdict(),
        "depths": [{**vars(item), "depth": item.depth, "growth": item.growth} for item in streams],
    }
    path = out / f"{scheme}-{model}"
    save_json(path.with_name(f"{path.name}.json"), values)
    print(f"\nwritten: {path}.json", flush=True)
    if figure:
        for kind, content in rendered(coordinates_figure(coordinates, streams, title)).items():
            atomic_write(path.with_name(f"{path.name}.{kind}"), content)
        print(f"figure:  {path}.pdf, .png, .svg", flush=True)


def over_width(coordinates: "Coordinates") -> str:
    """The table of the coordinate check, a row for each activation."""
    from plkernel.common.cli import text_table
    from plkernel.models.init.coordinate_check import FLAT

    rows = []
    for name in coordinates.names:
        slope, moved = coordinates.slope(name), [f"{value:.3g}" for value in coordinates.change(name)]
        error = f"{slope.error:.2f}" if slope.error == slope.error else "-"
        verdict = f"flat within {FLAT:g}" if slope.verdict == "flat" else slope.verdict
        rows.append([name, *moved, f"{slope.value:+.2f}", error, verdict])
    header = ["activation", *(f"width {width}" for width in coordinates.widths), "slope", "error", "verdict"]
    return text_table(header, rows)


def over_depth(streams: Sequence["Propagation"]) -> str:
    """The table of the residual stream over depth, a row for each `Propagation`."""
    from plkernel.common.cli import text_table

    header = ["blocks", "stream before", "after", "growth per block", "gradient after", "before", "growth per block"]
    rows = []
    for item in streams:
        (there, back), (up, down) = (item.forward, item.backward), item.growth
        ends = [f"{there[0]:.4g}", f"{there[-1]:.4g}", f"{up:.4f}", f"{back[-1]:.4g}", f"{back[0]:.4g}", f"{down:.4f}"]
        rows.append([str(item.depth), *ends])
    return text_table(header, rows)


def condition_of(
    scheme: str, kind: ModelKind, dim: int, layers: int, head_size: int | None, given: Sequence[str] = ()
) -> "Condition":
    """One of our models with NAME=VALUE each as an option of the scheme; ValueError for a size or option that is wrong.

    An RWKV has heads of HEAD_SIZE channels unless `head_size` is given.
    """
    from plkernel.config.condition import resolve
    from plkernel.config.schema import Arm, ModelSpec
    from plkernel.models.init.plan import check_options, find

    options: dict[str, float] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ValueError(f"option must be NAME=VALUE, as std=0.02, got {text!r}")
        try:
            options[name] = value.lower() == "true" if value.lower() in ("true", "false") else float(value)
        except ValueError as error:
            raise ValueError(f"option {name} must be a number, true or false, got {value!r}") from error
    check_options(find(scheme), options)
    if kind == "ssm" and head_size is not None:
        raise ValueError(f"head_size {head_size} belongs to models rwkv5 to rwkv7, got model 'ssm': leave it out")
    size = head_size or HEAD_SIZE
    for name, number, least in (("width", dim, 2), ("number of blocks", layers, 1), ("head_size", size, 2)):
        if number < least:
            raise ValueError(f"{name} must be at least {least}, got {number}")
    if kind != "ssm" and dim % size:
        raise ValueError(f"width {dim} must be a multiple of head_size {size} in an RWKV")
    heads: dict[str, Any] = {} if kind == "ssm" else {"head_size": size}
    return resolve(ModelSpec(kind=kind, dim=dim, layers=layers, **heads), Arm(scheme=scheme, scheme_options=options))


def planned(condition: "Condition") -> "Plan":
    """The plan of a condition; nothing is allocated."""
    import torch

    from plkernel.training.build import build, plan_of

    with torch.device("meta"):
        return plan_of(build(condition), condition)


def filled(condition: "Condition", seed: int, inputs: "Tensor") -> "tuple[Model, Plan]":
    """A filled model and its plan; calibrated on `inputs`, bytes (B,T), where the scheme asks for that."""
    from plkernel.training.build import build, initialise_, plan_of, tune_

    model = initialise_(build(condition), condition, seed)
    tune_(model, condition, inputs)
    return model, plan_of(model, condition)


def model_of(condition: "Condition", inputs: "Tensor", seed: int) -> "Model":
    """The model of `filled` alone."""
    return filled(condition, seed, inputs)[0]


if __name__ == "__main__":
    main_of({"list": listing, "show": show, "check": check}, str(__doc__))
