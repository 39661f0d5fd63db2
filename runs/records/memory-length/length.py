"""Write length.json and its figure: the worth of a start at four lengths and two rates, and how fast it vanishes.

python runs/records/memory-length/length.py [FOLDER]    into this folder unless given
"""

import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from plkernel.analysis.figures.style import rendered
from plkernel.common.files import atomic_write, save_json
from plkernel.results.figures import effects
from plkernel.results.statistics import Curve, decay_exponent, difference_curves, mean_interval, simultaneous_band
from plkernel.results.study import read_study

HERE = Path(__file__).resolve().parent
ARMS = {"short": "short", "published": "published", "concentrated-published": "concentrated, published"}
RATES = {"good": "learning rate 6e-3", "low": "learning rate 1e-3"}
CORNERS = (819_200, 3_686_400)  # bytes read, at which two starts are compared
LINEAR = 0.01  # bits per byte up to which the scale is linear: the margin of the hypotheses


def corners(at: dict[str, dict[int, Curve]]) -> Iterator[dict[str, Any]]:
    """Return a start at both rates and lengths of CORNERS, and the difference that each makes, with t intervals."""
    seeds, (short, long) = sorted(set(at["good"]) & set(at["low"])), CORNERS
    values = {
        f"{rate} rate, {read / 1e6:.1f} MB": [at[rate][s][read] for s in seeds] for rate in at for read in CORNERS
    }
    for read in CORNERS:
        values[f"low rate minus good, {read / 1e6:.1f} MB"] = [at["low"][s][read] - at["good"][s][read] for s in seeds]
    for rate in at:
        values[f"longer minus shorter, {rate} rate"] = [at[rate][s][long] - at[rate][s][short] for s in seeds]
    for what, each in values.items():
        yield {"what": what, **asdict(mean_interval(each))}


def main(out: Path = HERE) -> None:
    """Read the record and write the file and the figure into a folder."""
    study = read_study(HERE)
    curves = {
        rate: {
            arm: difference_curves(study.curves(f"{arm}_{rate}"), study.curves(f"log-spaced_{rate}")) for arm in ARMS
        }
        for rate in RATES
    }
    evaluations = study.finished("short_good")[0].evaluations
    lengths = [one.bytes for one in evaluations if one.step in study.spec["report_steps"]]
    rows = []
    for rate, arms in curves.items():
        for arm, by_seed in arms.items():
            chosen: list[Curve] = [{read: curve[read] for read in lengths} for curve in by_seed.values()]
            band = simultaneous_band(chosen)
            values = {key: getattr(band, key).tolist() for key in ("mean", "low", "high")}
            where = {"rate": rate, "arm": arm, "n": band.n, "bytes": band.at.tolist()}
            rows.append({**where, **values, "exponent": asdict(decay_exponent(chosen))})
    found = [
        {"arm": arm, **one}
        for arm in ("concentrated-published", "short")
        for one in corners({rate: curves[rate][arm] for rate in RATES})
    ]
    save_json(out / "length.json", {"rows": rows, "corners": found})
    panels = {RATES[rate]: {arm: list(by.values()) for arm, by in arms.items()} for rate, arms in curves.items()}
    for kind, content in rendered(effects(panels, ARMS, LINEAR)).items():
        atomic_write(out / f"length.{kind}", content)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
