"""How fast what a start is worth vanishes with training, and whether rate or length decides: memory-length, read.

    python runs/memory_length.py [--study FOLDER] [--out FOLDER]

Reads the finished runs of runs/memory-length.toml, or of its record, prints a line for each start and rate and the
corners of rate and length, and writes length.json and the figure to FOLDER, runs/records/memory-length unless given.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from plkernel.analysis.figures.style import rendered
from plkernel.common import cli
from plkernel.common.cli import text_table
from plkernel.common.files import atomic_write, save_json
from plkernel.results.figures import Arms, effects
from plkernel.results.statistics import (
    Curve,
    Vanishing,
    decay_exponent,
    difference_curves,
    mean_interval,
    simultaneous_band,
)
from plkernel.results.study import Study, read_study

OUT = Path(__file__).resolve().parent / "records" / "memory-length"
ARMS = {"short": "short", "published": "published", "concentrated-published": "concentrated, published"}
RATES = {"good": "learning rate 6e-3", "low": "learning rate 1e-3"}
BASELINE = "log-spaced"
CORNERS = (819_200, 3_686_400)
"""Bytes read where concentrated half-lives did not lead in an earlier trial at a good rate, and did at a low one."""
LINEAR = 0.01
"""Bits per byte up to which differences are drawn to a linear scale: the margin of the hypotheses."""


def memory_length(study: Path = OUT, out: Path = OUT) -> None:
    """Differences at the lengths that the study declares, in a band that holds for all of them, and their exponent.

    Args:
        study: Folder of the study, or of its record.
        out: Folder for length.json and the figure.
    """
    found = read_study(study)
    panels = {title: differences(found, rate) for rate, title in RATES.items()}
    rows = [row(found, rate, arm, panels[title][arm]) for rate, title in RATES.items() for arm in ARMS]
    between = [corner for arm in ("concentrated-published", "short") for corner in corners(found, arm)]
    save_json(out / "length.json", {"rows": rows, "corners": between})
    for kind, content in rendered(effects(panels, ARMS, LINEAR)).items():
        atomic_write(out / f"length.{kind}", content)
    header = ["rate", "start", *(f"{read / 1e6:g} MB" for read in rows[0]["bytes"]), "exponent", "95 % interval"]
    print(f"{text_table(header, [line(one) for one in rows])}\n")
    print("minus log-spaced, bits per byte, with the 95 % band of all lengths; exponent p: falls as bytes**-p\n")
    for one in between:
        print(f"{one['arm']}, {one['what']}: {one['mean']:+.4f} ({one['low']:+.4f} to {one['high']:+.4f})")
    print(f"written: {out}", flush=True)


def differences(study: Study, rate: str) -> Arms:
    """The difference curves of ARMS at a rate to the baseline at that rate."""
    curves = {arm: study.curves(f"{arm}_{rate}") for arm in (*ARMS, BASELINE)}
    return {arm: list(difference_curves(curves[arm], curves[BASELINE]).values()) for arm in ARMS}


def row(study: Study, rate: str, arm: str, curves: list[Curve]) -> dict[str, Any]:
    """One start at one rate: at the declared lengths its differences and their band, and the exponent over these."""
    runs = study.finished(f"{arm}_{rate}")
    lengths = [one.bytes for one in runs[0].evaluations if one.step in study.spec["report_steps"]]
    chosen: list[Curve] = [{read: curve[read] for read in lengths} for curve in curves]
    band = simultaneous_band(chosen)
    return {
        "rate": rate,
        "arm": arm,
        "n": band.n,
        "bytes": band.at.tolist(),
        "mean": band.mean.tolist(),
        "low": band.low.tolist(),
        "high": band.high.tolist(),
        "exponent": asdict(decay_exponent(chosen)),
    }


def corners(study: Study, arm: str) -> list[dict[str, Any]]:
    """A start at both rates and both lengths of CORNERS, and the difference that each makes: means with t intervals."""
    at = {rate: difference_curves(study.curves(f"{arm}_{rate}"), study.curves(f"{BASELINE}_{rate}")) for rate in RATES}
    seeds = sorted(set.intersection(*(set(curves) for curves in at.values())))
    short, long = CORNERS
    values = {
        f"{rate} rate, {read / 1e6:.1f} MB": [at[rate][seed][read] for seed in seeds]
        for rate in RATES
        for read in CORNERS
    }
    for read in CORNERS:
        values[f"low rate minus good, {read / 1e6:.1f} MB"] = [at["low"][s][read] - at["good"][s][read] for s in seeds]
    for rate in RATES:
        values[f"longer minus shorter, {rate} rate"] = [at[rate][s][long] - at[rate][s][short] for s in seeds]
    return [{"arm": arm, "what": what, **asdict(mean_interval(each))} for what, each in values.items()]


def line(row: dict[str, Any]) -> list[str]:
    """A row as a line of the table."""
    cells = [f"{m:+.4f} ({a:+.4f} to {b:+.4f})" for m, a, b in zip(row["mean"], row["low"], row["high"], strict=True)]
    law = Vanishing(**row["exponent"])
    at = "changes its sign" if np.isnan(law.at) else f"{law.at:.2f}"
    bounded = np.isfinite([law.low, law.high]).all()
    return [row["rate"], row["arm"], *cells, at, f"{law.low:.2f} to {law.high:.2f}" if bounded else "not bounded"]


if __name__ == "__main__":
    cli.main(memory_length, prog="python runs/memory_length.py")
