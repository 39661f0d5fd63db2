"""Draw effect.pdf, .png and .svg: what a start is worth along the way, from the records of three studies.

python runs/records/memory-lags/effect.py [FOLDER]    into this folder unless given
"""

import sys
from pathlib import Path

from plkernel.analysis.figures.style import rendered
from plkernel.common.files import atomic_write
from plkernel.results.figures import Arms, effects
from plkernel.results.statistics import difference_curves
from plkernel.results.study import read_study

HERE = Path(__file__).resolve().parent
ARMS = {"short-frozen": "short, frozen", "short": "short", "long": "long", "law": "the law of the data"}
LINEAR = 0.01  # bits per byte up to which the scale is linear: the margin of the hypotheses
PANELS = {
    "mixture of lags, exponent 0.7": ("memory-lags", "_lags-0.7"),
    "mixture of lags, exponent 1.3": ("memory-lags", "_lags-1.3"),
    "first-order Markov chain": ("memory-markov", ""),
    "source code, each at its best rate": ("memory-text", "_ema"),
}


def panel(name: str, block: str) -> Arms:
    """Return the difference curves of a block to its log-spaced baseline."""
    study = read_study(HERE.parent / name)
    baseline = study.curves(f"log-spaced{block}")
    arms = [arm for arm in ARMS if f"{arm}{block}" in study.spec["arms"]]
    return {arm: list(difference_curves(study.curves(f"{arm}{block}"), baseline).values()) for arm in arms}


def main(out: Path = HERE) -> None:
    """Draw the figure into a folder."""
    figure = effects({title: panel(*where) for title, where in PANELS.items()}, ARMS, LINEAR)
    for kind, content in rendered(figure).items():
        atomic_write(out / f"effect.{kind}", content)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
