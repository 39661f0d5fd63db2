"""A synthetic study in a folder, as training writes it."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from plkernel.common.files import run_folder

BASELINE = "log-spaced"
EFFECTS = {BASELINE: 0.0, "concentrated": -0.05}
CORPUS = {"name": "stdlib", "size": 12634211, "sha256": "9f2c" * 16}
REFERENCE = {
    "corpus": CORPUS,
    "train": {"context": None, "batch": None, "eval_windows": None, "test_windows": None},
    "orders": [1, 2],
    "val_bpb": [4.5, 1.0],
    "test_bpb": [4.6, 1.1],
}


def save(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def change(path: Path, **values: Any) -> None:
    save(path, {**json.loads(path.read_text()), **values})


def write_study(
    folder: Path, seeds=(0, 1), effects=EFFECTS, spec=None, state=None, **changes: Any
) -> Path:
    """`effects` by arm are there at the end; `changes` go to every run: steps, causal,
    parameters.
    """
    values = {
        "name": "quick",
        "description": "Two arms.",
        "baseline": BASELINE,
        "arms": {arm: {} for arm in effects},
    }
    values |= {
        "seeds": list(seeds),
        "report_steps": [20, 999],
        "corpus": {"validation": 0.05, "test": 0.05},
    }
    save(folder / "spec.json", {**values, **(spec or {})})
    for arm, effect in effects.items():
        for seed in seeds:
            write_run(folder, arm, seed, effect, state or {}, **changes)
    return folder


def write_run(study, arm, seed, effect, state, steps=40, causal=True, parameters=312345) -> None:
    folder = run_folder(study, arm, seed)
    noise = np.random.default_rng([seed, len(arm)]).normal(0, 0.002)
    rows: list[dict[str, Any]] = [
        {
            "step": t,
            "bytes": t * 8192,
            "val_bpb": 2 + 6 / (1 + t) + 0.1 * seed + effect * t / 40 + noise,
        }
        for t in range(0, steps + 1, 10)
    ]
    rows[0], rows[-1] = {**rows[0], **state}, {**rows[-1], **state}
    run = {
        "study": "quick",
        "arm": arm,
        "seed": seed,
        "corpus": CORPUS,
        "model": {"parameters": parameters},
    }
    save(folder / "config.json", run)
    environment = {
        "commit": "3f9ab12c",
        "dirty": False,
        "threads": 2,
        "hardware": {"cpu": "a processor", "gpu": None},
    }
    save(folder / "environment.json", environment)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    final = rows[-1]["val_bpb"]
    result = {"status": "finished", "steps": steps, "bytes": steps * 8192, "final_val_bpb": final}
    result |= {"best_val_bpb": final, "best_step": steps, "test_bpb": final + 0.1, "seconds": 12.5}
    save(folder / "result.json", {**result, "causal": causal, "error": None})


def record_row(arm: str, seed: int, loss: float | None) -> dict[str, Any]:
    """A row of a record of 20 steps that ended at this loss; None for a run that diverged."""
    row: dict[str, Any] = {
        "arm": arm,
        "seed": seed,
        "status": "diverged" if loss is None else "finished",
        "error": "loss is not finite" if loss is None else None,
        "config": {
            "corpus": {"name": "stdlib", "sha256": "0" * 64},
            "model": {"parameters": 1000},
            "train": {"context": 16, "eval_every": 20, "steps": 20},
        },
        "environment": {"commit": "0" * 40},
    }
    if loss is None:
        return row
    row["result"] = {
        "steps": 20,
        "bytes": 640,
        "seconds": 1.0,
        "causal": True,
        "final_val_bpb": loss,
        "best_val_bpb": loss,
        "best_step": 20,
        "test_bpb": loss + 0.1,
    }
    row["curve"] = {"step": [0, 20], "bytes": [0, 640], "val_bpb": [8.0, loss]}
    return row
