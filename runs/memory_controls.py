"""What the start is worth along the way, where memory must matter, where it cannot, and on text: three studies, drawn.

    python runs/memory_controls.py [--lags FOLDER] [--markov FOLDER] [--text FOLDER] [--out FOLDER]

Reads the studies, or their records, and writes the figure effect.pdf, .png and .svg to FOLDER,
runs/records/memory-lags unless given.
"""

from pathlib import Path

from plkernel.analysis.figures.style import rendered
from plkernel.common import cli
from plkernel.common.files import atomic_write
from plkernel.results.figures import Arms, effects
from plkernel.results.statistics import difference_curves
from plkernel.results.study import Study, read_study

RECORDS = Path(__file__).resolve().parent / "records"
ARMS = {"short-frozen": "short, frozen", "short": "short", "long": "long", "law": "the law of the data"}
BASELINE = "log-spaced"
LINEAR = 0.01
"""Bits per byte up to which differences are drawn to a linear scale: the margin of the hypotheses."""


def memory_controls(
    lags: Path = RECORDS / "memory-lags",
    markov: Path = RECORDS / "memory-markov",
    text: Path = RECORDS / "memory-text",
    out: Path = RECORDS / "memory-lags",
) -> None:
    """Draw the effect of a start against the bytes read, beside its controls.

    Args:
        lags: Folder of memory-lags, or of its record.
        markov: Folder of memory-markov, or of its record.
        text: Folder of memory-text, or of its record.
        out: Folder for the figure.
    """
    positive = read_study(lags)
    panels = {
        "mixture of lags, exponent 0.7": differences(positive, "_lags-0.7"),
        "mixture of lags, exponent 1.3": differences(positive, "_lags-1.3"),
        "first-order Markov chain": differences(read_study(markov), ""),
        "source code, each at its best rate": differences(read_study(text), "_ema"),
    }
    for kind, content in rendered(effects(panels, ARMS, LINEAR)).items():
        atomic_write(out / f"effect.{kind}", content)
    print(f"written: {out / 'effect.pdf'}, .png, .svg")


def differences(study: Study, block: str) -> Arms:
    """The difference curves of a block's ARMS to its baseline."""
    names = [arm for arm in ARMS if f"{arm}{block}" in study.spec["arms"]]
    baseline = study.curves(f"{BASELINE}{block}")
    return {arm: list(difference_curves(study.curves(f"{arm}{block}"), baseline).values()) for arm in names}


if __name__ == "__main__":
    cli.main(memory_controls, prog="python runs/memory_controls.py")
