"""The naive and the official initialisation of RWKV-6, before and after training, beside the
published ablation.

python runs/records/saturation/saturation.py trains runs/saturation.toml, minutes on two cores, and
writes table.json beside this file. Finished runs are not repeated; --steps 4 tries it in seconds.
"""

import math
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np

from plkernel.common import cli
from plkernel.common.cli import text_table
from plkernel.common.files import load_json, read_lines, run_folder, save_json
from plkernel.config.reading import load_values, parse_spec
from plkernel.config.spec import Spec
from plkernel.study.schedule import run_experiment
from plkernel.training.evaluate import merged

HERE = Path(__file__).resolve().parent
RUNS = HERE.parents[1]
SPEC = RUNS / "saturation.toml"
TIMES = {"start": 0, "end": -1}
"""Which evaluation of a run is meant."""

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
    "official": {
        "loss": 7.9,
        "logit_max": 6.4,
        "peak_probability": 0.082,
        "entropy": 9.2,
        "saturated_share": 0.0,
    },
}
PUBLISHED_AMPLIFICATION = 1.28
"""Of a layer at initialisation; the notes do not say of which arm."""

REMARKS = " ".join(
    f"""\
Uniform guessing scores ln 256 = {math.log(256):.3f} nats here and 9.68 in the published ablation.
Its loss of 34.3 is thus far worse than guessing and its 7.9 slightly better: "4.3 times better"
compares a diverged start with one that has begun to learn, since zero output matrices cannot beat
guessing before the first step. Readings: saturated is a position with a largest probability above
0.99; the published largest probability is taken as a maximum over positions; Xavier is uniform;
RMSNorm has eps 1e-5; mu, time_decay, u, ln_x and the low-rank maps, of which the ablation says
nothing, are those of the official code. The naive start is then a copy: the norm gives the head a
stream of unit rms that is nearly the embedding of the byte just read, whose logit is about the
width, 144. Published logits from -55 to +83 need a stream that the layers have changed more, as an
amplification of 1.28 per layer over 8 layers would.""".split()
)

FORMS = {
    "loss": ".2f",
    "logit_min": "+.0f",
    "logit_max": "+.1f",
    "peak_probability": ".3f",
    "largest_probability": ".3f",
    "entropy": ".3f",
    "saturated_share": ".1%",
    "amplification": ".3f",
}
"""Figures that are printed, and how."""


def saturation(
    study: Path = RUNS / "out" / "saturation",
    out: Path = HERE / "table.json",
    workers: int | None = None,
    steps: int | None = None,
) -> None:
    """Train both arms at every seed of runs/saturation.toml, beside the published figures.

    Args:
        study: Folder of the study; finished runs in it are taken as they are.
        out: JSON file for the table.
        workers: Runs at a time; as many as there are cores if left out.
        steps: Steps of a run instead of those of the spec, to try this script.
    """
    values = load_values(SPEC)
    if steps is not None:
        values["train"] |= {"steps": steps, "warmup": 1, "eval_every": steps}
    spec = parse_spec(values, str(SPEC))
    failed = run_experiment(spec, study, workers)
    if failed:
        raise ValueError(f"did not finish: {', '.join(failed)}; see log.txt in {study}")
    record = table(spec, study)
    save_json(out, record)
    print(f"\n{render(record)}\n\n{fill(REMARKS, 100)}\n\nwritten: {out}", flush=True)


def table(spec: Spec, study: Path) -> dict[str, Any]:
    """Return the figures of every run at its first and last evaluation, and of all seeds."""
    arms: dict[str, Any] = {}
    for arm in spec.arms:
        rows = {
            seed: read_lines(run_folder(study, arm, seed) / "metrics.jsonl") for seed in spec.seeds
        }
        arms[arm] = {
            time: together([of_seed[at] for of_seed in rows.values()]) for time, at in TIMES.items()
        }
        arms[arm]["seeds"] = {
            str(seed): {time: of_seed[at] for time, at in TIMES.items()}
            for seed, of_seed in rows.items()
        }
    first = run_folder(study, spec.baseline, spec.seeds[0])
    return {
        "environment": load_json(first / "environment.json"),
        "spec": spec.model_dump(mode="json"),
        "uniform": math.log(256),
        "arms": arms,
        "published": {**PUBLISHED, "amplification": PUBLISHED_AMPLIFICATION},
        "remarks": REMARKS,
    }


def together(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the predictions of all seeds pooled, and the geometric mean of their amplification."""
    pooled = merged(row["saturation"] for row in rows)
    factors = [factor for row in rows for factor in row["amplification"]]
    growth = float(np.exp(np.mean(np.log(factors))))
    return {"step": rows[0]["step"], **pooled, "amplification": growth}


def render(record: dict[str, Any]) -> str:
    """Return the table as text: a row for each figure, a column for each arm and time."""
    columns: dict[str, dict[str, Any]] = {}
    for arm, times in record["arms"].items():
        for time in TIMES:
            columns[f"{arm}, step {times[time]['step']}"] = times[time]
    for arm in record["arms"]:
        columns[f"published {arm}"] = PUBLISHED[arm]
    rows = [
        [name, *(format(of[name], form) if name in of else "-" for of in columns.values())]
        for name, form in FORMS.items()
    ]
    return text_table(["", *columns], rows)


if __name__ == "__main__":
    cli.main(saturation, prog="python runs/records/saturation/saturation.py")
