"""What the start is worth along the way, where memory matters and where it cannot: two studies, drawn.

    python runs/memory_controls.py [--lags FOLDER] [--markov FOLDER] [--out FOLDER]

Reads the two studies, or their records, and writes the figure effect.pdf, .png and .svg to FOLDER,
runs/records/memory-lags unless given.
"""

from pathlib import Path

from plkernel.analysis.figures.curves import Arms, effects
from plkernel.analysis.figures.style import rendered
from plkernel.analysis.statistics.bands import difference_curves
from plkernel.records.study import Study, read_study
from plkernel.tools import cli
from plkernel.tools.files import atomic_write

RECORDS = Path(__file__).resolve().parent / "records"
ARMS = {"short-frozen": "short, frozen", "short": "short", "long": "long", "law": "the predictor's law"}
BASELINE = "log-spaced"
LINEAR = 0.01
"""Bits per byte up to which differences are drawn to a linear scale: the margin of the hypotheses."""


def memory_controls(
    lags: Path = RECORDS / "memory-lags",
    markov: Path = RECORDS / "memory-markov",
    out: Path = RECORDS / "memory-lags",
) -> None:
    """Draw the effect of a start against the bytes read, beside its negative control.

    Args:
        lags: Folder of memory-lags, or of its record.
        markov: Folder of memory-markov, or of its record.
        out: Folder for the figure.
    """
    positive, negative = read_study(lags), read_study(markov)
    panels = {
        "mixture of lags, exponent 0.7": differences(positive, "_lags-0.7"),
        "mixture of lags, exponent 1.3": differences(positive, "_lags-1.3"),
        "first-order Markov chain": differences(negative, ""),
    }
    for kind, content in rendered(effects(panels, ARMS, LINEAR)).items():
        atomic_write(out / f"effect.{kind}", content)
    print(f"written: {out / 'effect.pdf'}, .png, .svg")


def differences(study: Study, block: str) -> Arms:
    """The difference curves of ARMS of a block to its baseline."""
    curves = {arm: study.curves(f"{arm}{block}") for arm in (*ARMS, BASELINE)}
    return {arm: list(difference_curves(curves[arm], curves[BASELINE]).values()) for arm in ARMS}


if __name__ == "__main__":
    cli.main(memory_controls, prog="python runs/memory_controls.py")
