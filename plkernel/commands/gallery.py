"""python -m plkernel.gallery: the memory kernel that each published layer really starts with."""

from pathlib import Path

from plkernel import __version__
from plkernel.analysis.gallery import (
    AT_MOST,
    LEFT,
    gallery_figure,
    initialisations,
    profile,
    slope_lags,
)
from plkernel.common import cli
from plkernel.common.files import check_folder, save_figure, save_json

HEADER = [
    "initialisation",
    "half-lives",
    "slope",
    "rms",
    "R1",
    "R*",
    "Elog",
    f"{LEFT:.0%}",
    "source",
]


def gallery(
    beta: float = 1.15,
    max_lag: int = 2048,
    out: Path = Path("runs/out/gallery"),
    figure: bool = True,
) -> None:
    """Hold the kernels that published layers start with against t**-beta; table, gallery.json and a
    figure.

    A channel of decay a and input gain g holds the input of t steps ago with weight g a**t; a
    kernel is the sum over channels, rms the root of the sum of squares, as random signs give.
    Slopes are log-log, over lags 4..max_lag/4; R1, R* and Elog as of plkernel.fit; 1 % is the lag
    at which the kernel has fallen to 1 % of its value at lag 1. The formula, assumptions and source
    of each are in gallery.json.

    Args:
        beta: Exponent of the power law, t**-beta.
        max_lag: Kernels are drawn and scored on t = 1..max_lag, in steps of the layer.
        out: Folder for gallery.json and the figure gallery.pdf, gallery.png, gallery.svg.
        figure: Draw the figure.
    """
    check_folder(out, "out")
    starts, (first, last) = initialisations(), slope_lags(max_lag)
    entries, rows = [profile(start, beta, max_lag) for start in starts], []
    for start, entry in zip(starts, entries, strict=True):
        ends = dict.fromkeys(
            f"{value:.3g}" if value < 1000 else f"{value:.0f}" for value in start.half_lives
        )
        told = f"{entry['slope']:.2f} {entry['slope_rms']:.2f}".split()
        told += "{r1:.3f} {r_star:.3f} {e_log:.2f}".format(**entry["scores"]).split()
        rows.append(
            [
                start.name,
                "..".join(ends),
                *told,
                f"{entry['memory']:.0f}",
                start.origin["source"].split(";")[0],
            ]
        )
    title = (
        f"kernels at the start against t**-{beta:g} on t = 1..{max_lag}, slopes on lags"
        f" {first:g}..{last:g}"
    )
    title += f"; t**-{beta:g} itself falls to {LEFT:.0%} at lag {LEFT ** (-1 / beta):.0f}"
    note = (
        f"{AT_MOST}: delta rules also forget by erasing what they overwrite; half-lives are upper"
        " bounds"
    )
    print(f"{title}\n\n{cli.text_table(HEADER, rows)}\n\n{note}", flush=True)
    settings = {
        "plkernel": __version__,
        "beta": beta,
        "max_lag": max_lag,
        "slope_lags": [first, last],
    }
    save_json(out / "gallery.json", {**settings, "entries": entries})
    print(f"\nwritten: {out / 'gallery.json'}", flush=True)
    if figure:
        save_figure(
            out,
            "gallery",
            gallery_figure(starts, [entry["slope"] for entry in entries], beta, max_lag),
        )


if __name__ == "__main__":
    cli.main(gallery)
