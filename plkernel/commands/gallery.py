"""python -m plkernel.gallery: the memory kernel that each published initialisation really starts with."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from plkernel import __version__
from plkernel.analysis.gallery import (
    AT_MOST,
    LEFT,
    Profile,
    families,
    gallery_figure,
    initialisations,
    profile,
    slope_lags,
)
from plkernel.common import cli
from plkernel.common.files import atomic_write, check_folder, save_json


def gallery(beta: float = 1.15, max_lag: int = 2048, out: Path = Path("runs/out/gallery"), figure: bool = True) -> None:
    """Hold the kernels of published initialisations against t**-beta; print the table, write gallery.json and a figure.

    A channel of decay a and input gain g holds the input of t steps ago with weight g a**t; a kernel is the sum over
    channels, rms the root of the sum of squares, as random signs give. Slopes are log-log, over lags 4..max_lag/4; R1,
    R* and Elog as of plkernel.fit; 1 % is the lag at which the kernel has fallen to 1 % of its value at lag 1. The
    formula, assumptions and source of each are in gallery.json.

    Args:
        beta: Exponent of the power law, t**-beta.
        max_lag: Kernels are drawn and scored on t = 1..max_lag, in steps of the layer.
        out: Folder for gallery.json and the figure gallery.pdf, gallery.png, gallery.svg.
        figure: Draw the figure.
    """
    check_folder(out, "out")
    profiles = [profile(item, beta, max_lag) for item in initialisations(beta, max_lag)]
    print(render(profiles, beta, max_lag), flush=True)
    entries = [asdict(item) for item in profiles]
    for start in (entry["initialisation"] for entry in entries):
        del start["rates"], start["gains"], start["shares"]
    settings = {"plkernel": __version__, "beta": beta, "max_lag": max_lag, "slope_lags": list(slope_lags(max_lag))}
    save_json(out / "gallery.json", {**settings, "entries": entries})
    print(f"\nwritten: {out / 'gallery.json'}", flush=True)
    if figure:
        from plkernel.analysis.figures.style import rendered

        for kind, content in rendered(gallery_figure(profiles, beta, max_lag)).items():
            atomic_write(out / f"gallery.{kind}", content)
        print(f"figure:  {out / 'gallery.pdf'}, .png, .svg")


def render(profiles: Sequence[Profile], beta: float, max_lag: int) -> str:
    """The table that `gallery` prints, family by family, under a line that says how to read it."""
    first, last = slope_lags(max_lag)
    header = ["initialisation", "half-lives", "slope", "rms", "R1", "R*", "Elog", f"{LEFT:.0%}", "source"]
    rows = []
    for family, members in families(profiles).items():
        rows.append([family, *[""] * (len(header) - 1)])
        for item in members:
            start, scores = item.initialisation, item.scores
            ends = dict.fromkeys(f"{value:.3g}" if value < 1000 else f"{value:.0f}" for value in start.half_lives)
            figures = [item.slope, item.slope_rms, scores.r1, scores.r_star, scores.e_log]
            texts = [f"{value:.{digits}f}" for value, digits in zip(figures, (2, 2, 3, 3, 2), strict=True)]
            rows.append([f"  {start.name}", "..".join(ends), *texts, f"{item.memory:.0f}", start.origin["paper"]])
    title = (
        f"kernels at the start against t**-{beta:g} on t = 1..{max_lag}, slopes on lags {first:g}..{last:g}; "
        f"t**-{beta:g} itself falls to {LEFT:.0%} at lag {LEFT ** (-1 / beta):.0f}"
    )
    note = f"{AT_MOST}: delta rules also forget by erasing what they overwrite; half-lives are upper bounds"
    return f"{title}\n\n{cli.text_table(header, rows)}\n\n{note}"


if __name__ == "__main__":
    cli.main(gallery)
