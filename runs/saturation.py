"""The naive and the official initialisation of RWKV-6, before and after training, beside the published ablation.

    python runs/saturation.py [--study FOLDER] [--out FILE]    minutes on two cores; finished runs are not repeated

Trains runs/saturation.toml, prints the table and writes it to FILE, runs/records/saturation/table.json unless given.
"""

import math
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from textwrap import fill
from typing import Any

from plkernel.analysis.trained.saturation import Saturation, geometric_mean
from plkernel.common import cli
from plkernel.common.cli import text_table
from plkernel.common.files import load_json, read_lines, save_json
from plkernel.config.reading import load_spec
from plkernel.config.study import Spec
from plkernel.results.layout import ENVIRONMENT, METRICS, run_folder
from plkernel.study.schedule import run_experiment

HERE = Path(__file__).resolve().parent
SPEC = HERE / "saturation.toml"
STUDY = HERE / "out" / "saturation"
OUT = HERE / "records" / "saturation" / "table.json"
TIMES = {"start": 0, "end": -1}

# As the notes that came with the recipe print them: 8 layers, width 144, a vocabulary of 16k.
PUBLISHED: dict[str, dict[str, Any]] = {
    "uniform": {"loss": 9.68, "entropy": 9.68},
    "naive": {
        "loss": 34.3,
        "logit_min": -55.0,
        "logit_max": 83.0,
        "peak_probability": 1.0,
        "entropy": 1.7,
        "saturated_share": 0.156,
    },
    "official": {"loss": 7.9, "logit_max": 6.4, "peak_probability": 0.082, "entropy": 9.2, "saturated_share": 0.0},
}
PUBLISHED_AMPLIFICATION = 1.28  # per layer at initialisation; the notes do not say of which arm

REMARKS = " ".join(
    f"""\
Uniform guessing scores ln 256 = {math.log(256):.3f} nats here and 9.68 in the published ablation. Its loss of 34.3
is thus far worse than guessing and its 7.9 slightly better: "4.3 times better" compares a diverged start with one
that has begun to learn, since zero output matrices cannot beat guessing before the first step. Readings: saturated
is a position with a largest probability above 0.99; the published largest probability is taken as a maximum over
positions; Xavier is uniform; RMSNorm has eps 1e-5; mu, time_decay, u, ln_x and the low-rank maps, of which the
ablation says nothing, are those of the official code. The naive start is then a copy: the norm gives the head a
stream of unit rms that is nearly the embedding of the byte just read, whose logit is about the width, 144. Published
logits from -55 to +83 need a stream that the layers have changed more, as an amplification of 1.28 per layer over 8
layers would.""".split()
)


def saturation(study: Path = STUDY, out: Path = OUT, workers: int | None = None) -> None:
    """Train both arms at every seed of runs/saturation.toml, and set their figures beside the published ones.

    Args:
        study: Folder of the study; finished runs in it are taken as they are.
        out: JSON file for the table.
        workers: Runs at a time; as many as there are cores if left out.
    """
    spec = load_spec(SPEC)
    failed = run_experiment(spec, study, workers)
    if failed:
        raise ValueError(f"did not finish: {', '.join(failed)}; see log.txt in their folders under {study}")
    record = table(spec, study)
    save_json(out, record)
    print(f"\n{render(record)}\n\n{fill(REMARKS, 120)}\n\nwritten: {out}", flush=True)


def table(spec: Spec, study: Path) -> dict[str, Any]:
    """The figures of every run at its first and last evaluation, and of all seeds together; published ones beside."""
    arms: dict[str, Any] = {}
    for arm in spec.arms:
        rows = {seed: read_lines(run_folder(study, arm, seed) / METRICS) for seed in spec.seeds}
        arms[arm] = {time: together([rows[seed][at] for seed in rows]) for time, at in TIMES.items()}
        arms[arm]["seeds"] = {str(seed): {time: rows[seed][at] for time, at in TIMES.items()} for seed in rows}
    return {
        "environment": load_json(run_folder(study, spec.baseline, spec.seeds[0]) / ENVIRONMENT),
        "spec": spec.model_dump(mode="json"),
        "uniform": math.log(256),
        "arms": arms,
        "published": {**PUBLISHED, "amplification": PUBLISHED_AMPLIFICATION},
        "remarks": REMARKS,
    }


def together(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The rows of one time, one per seed: their predictions pooled, and the geometric mean of their amplification."""
    pooled = reduce(Saturation.merged, (Saturation.from_dict(row["saturation"]) for row in rows))
    growth = geometric_mean([factor for row in rows for factor in row["amplification"]])
    return {"step": rows[0]["step"], **pooled.to_dict(), "amplification": growth}


def render(record: dict[str, Any]) -> str:
    """The table as text: a row per figure, a column per arm and time."""
    columns = [(arm, record["arms"][arm][time]) for arm in record["arms"] for time in TIMES]
    header = ["", *(f"{arm}, step {found['step']}" for arm, found in columns)]
    header += [f"published {arm}" for arm in record["arms"]]
    published = [PUBLISHED[arm] for arm in record["arms"]]
    rows = [
        [name, *(form(figures) for figures in (*(found for _, found in columns), *published))]
        for name, form in FIGURES.items()
    ]
    return text_table(header, rows)


def number(key: str, form: str) -> Callable[[dict[str, Any]], str]:
    """Writes the figure of this name, or a dash where it is not known."""
    return lambda figures: format(figures[key], form) if key in figures else "-"


def logits(figures: dict[str, Any]) -> str:
    """The range of the logits, as far as it is known."""
    low = format(figures["logit_min"], "+.0f") if "logit_min" in figures else "?"
    return f"{low} .. {figures['logit_max']:+.1f}"


FIGURES: dict[str, Callable[[dict[str, Any]], str]] = {
    "loss, nats": number("loss", ".2f"),
    "logits": logits,
    "largest probability, maximum": number("peak_probability", ".3f"),
    "largest probability, mean": number("largest_probability", ".3f"),
    "entropy, nats": number("entropy", ".3f"),
    "saturated positions": number("saturated_share", ".1%"),
    "amplification per layer": number("amplification", ".3f"),
}


if __name__ == "__main__":
    cli.main(saturation, prog="python runs/saturation.py")
