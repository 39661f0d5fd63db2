"""python -m plkernel.gallery: the memory kernel that each published initialisation really starts with."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plkernel import __version__
from plkernel.analysis.initialisations.conditions import initialisations
from plkernel.analysis.initialisations.gallery import (
    LEFT,
    Initialisation,
    Profile,
    check_target,
    families,
    profile,
    slope_lags,
)
from plkernel.analysis.initialisations.published_deltas import AT_MOST
from plkernel.common import cli
from plkernel.common.cli import text_table
from plkernel.common.files import atomic_write, check_folder, save_json

LARGEST_LAG = 65536


CHANNELS = ("rates", "gains", "shares")


def gallery(
    beta: float = 1.15,
    max_lag: int = 2048,
    only: tuple[str, ...] = (),
    out: Path = Path("runs/out/gallery"),
    figure: bool = True,
) -> None:
    """Hold the kernels of published initialisations against t**-beta; print the table, write gallery.json and a figure.

    A channel of decay a and input gain g holds the input of t steps ago with weight g a**t. Coherent: the sum over
    channels, equal projections. rms: the root of the sum of squares, which is what random signs give. Slopes are
    log-log, over lags 4..max_lag/4. R1, R* and Elog score the coherent kernel as plkernel.fit does; a pure
    exponential scores as badly as it should. 1 % is the lag at which that kernel has fallen to 1 % of its value at
    lag 1. Random parameters enter as expectations over their distribution, complex decays by their magnitudes.

    Args:
        beta: Exponent of the power law, t**-beta.
        max_lag: Kernels are drawn and scored on t = 1..max_lag, in steps of the layer.
        only: Names from the table, or how they begin (mamba, rwkv, exp013); tells more about each. All when left out.
        out: Folder for gallery.json, channels.json and the figure gallery.pdf, gallery.png, gallery.svg.
        figure: Draw the figure.
    """
    check_target(beta, max_lag)
    if max_lag > LARGEST_LAG:
        raise ValueError(f"max_lag must be at most {LARGEST_LAG}, got {max_lag}: every lag is scored")
    check_folder(out, "out")
    found = [profile(item, beta, max_lag) for item in select(initialisations(beta, max_lag), only)]
    print(render(found, beta, max_lag), flush=True)
    if only:
        print("\n" + "\n\n".join(map(describe, found)), flush=True)
    save_json(out / "gallery.json", report(found, beta, max_lag))
    save_json(out / "channels.json", channels(found))
    print(f"\nwritten: {out / 'gallery.json'}, channels.json", flush=True)
    if figure:
        from plkernel.analysis.figures.gallery import gallery_figure
        from plkernel.analysis.figures.style import rendered

        for kind, content in rendered(gallery_figure(found, beta, max_lag)).items():
            atomic_write(out / f"gallery.{kind}", content)
        print(f"figure:  {out / 'gallery.pdf'}, .png, .svg")


def select(items: Sequence[Initialisation], only: Sequence[str]) -> list[Initialisation]:
    """The initialisations called as in `only`, or whose names begin so up to a hyphen; all when `only` is empty.

    Raises ValueError with the nearest valid name for one that matches nothing.
    """
    names = [item.name for item in items]
    chosen: set[str] = set()
    for wanted in only:
        matches = [name for name in names if name == wanted] or [n for n in names if n.startswith(f"{wanted}-")]
        if not matches:
            stems = {name.split("-")[0] for name in names}
            raise ValueError(f"only: no initialisation called {wanted!r}, {cli.nearest(wanted, {*names, *stems})}")
        chosen.update(matches)
    return [item for item in items if item.name in chosen or not only]


def render(found: Sequence[Profile], beta: float, max_lag: int) -> str:
    """The table that `gallery` prints, family by family, under a line that says how to read it."""
    first, last = slope_lags(max_lag)
    header = ["initialisation", "half-lives", "slope", "rms", "R1", "R*", "Elog", f"{LEFT:.0%}", "source"]
    rows = []
    for family, members in families(found).items():
        rows += [[family, *[""] * (len(header) - 1)], *(_row(member) for member in members)]
    title = (
        f"kernels at the start against t**-{beta:g} on t = 1..{max_lag}, slopes on lags {first:g}..{last:g}; "
        f"t**-{beta:g} itself falls to {LEFT:.0%} at lag {LEFT ** (-1 / beta):.0f}"
    )
    bounded = any(AT_MOST in item.initialisation.family for item in found)
    note = f"\n\n{AT_MOST}: delta rules also forget by erasing what they overwrite; half-lives are upper bounds"
    return f"{title}\n\n{text_table(header, rows)}{note if bounded else ''}"


def _row(item: Profile) -> list[str]:
    start = item.initialisation
    shortest, longest = (f"{value:.3g}" if value < 1000 else f"{value:.0f}" for value in start.half_lives)
    return [
        f"  {start.name}",
        shortest if shortest == longest else f"{shortest}..{longest}",
        f"{item.slope:.2f}",
        f"{item.slope_rms:.2f}",
        _score(item.scores.r1),
        _score(item.scores.r_star),
        f"{item.scores.e_log:.2f}" if item.scores.e_log < 100 else f"{item.scores.e_log:.0f}",
        f"{item.memory:.0f}",
        start.origin.paper,
    ]


def _score(value: float) -> str:
    """R² to three decimals, as far as decimals mean anything."""
    return f"{value:.3f}" if value > -10 else f"{value:.0f}"


def describe(item: Profile) -> str:
    """What an initialisation is and where it comes from, in four lines."""
    start, origin = item.initialisation, item.initialisation.origin
    layer = "" if origin.layer == "all" else f" (layer {origin.layer})"
    lines = [
        f"{start.name}{layer}: {origin.formula}",
        f"gain {origin.gain}",
        f"assumed: {origin.assumed}",
        f"source: {origin.paper}; {origin.code}",
    ]
    return "\n  ".join(lines)


def report(found: Sequence[Profile], beta: float, max_lag: int) -> dict[str, Any]:
    """What gallery.json holds: settings, and every profile without its channels."""
    entries = [item.to_dict() for item in found]
    for entry in entries:
        for name in CHANNELS:
            del entry["initialisation"][name]
    settings = {"plkernel": __version__, "beta": beta, "max_lag": max_lag, "slope_lags": list(slope_lags(max_lag))}
    return {**settings, "entries": entries}


def channels(found: Sequence[Profile]) -> dict[str, Any]:
    """What channels.json holds, by name: rates per step, gains and shares of all channels."""
    starts = {item.initialisation.name: item.initialisation.to_dict() for item in found}
    return {name: {field: start[field] for field in CHANNELS} for name, start in starts.items()}


if __name__ == "__main__":
    cli.main(gallery)
