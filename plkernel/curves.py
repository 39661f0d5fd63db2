"""What TensorBoard shows of a run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from plkernel.models import NOT_CAUSAL

LEAKING = "bpb_" + NOT_CAUSAL.replace(", ", "_").replace(" ", "_")


class Curves:
    """Bits per byte against step, bytes and seconds; half-lives as histograms; saturation and amplification.

    At the end the hyperparameters with their result.
    """

    def __init__(self, folder: Path, step: int, causal: bool) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(folder), purge_step=step + 1 if step else None)
        self.name = "bpb" if causal else LEAKING

    def add(self, row: dict[str, Any], timing: dict[str, Any], half_lives: Sequence[np.ndarray]) -> None:
        """One evaluation: its rows of metrics.jsonl and timing.jsonl, and the half-lives of every block in bytes."""
        axes = {"": row["step"], "_by_bytes": row["bytes"], "_by_seconds": round(timing["seconds"])}
        for split in ("train", "val"):
            for suffix, position in axes.items():
                if row[f"{split}_bpb"] is not None:
                    self.writer.add_scalar(f"{split}/{self.name}{suffix}", row[f"{split}_bpb"], position)
        self.writer.add_scalar("speed/bytes_per_second", timing["bytes_per_second"], row["step"])
        self.writer.add_scalar("train/learning_rate", row["learning_rate"], row["step"])
        for index, values in enumerate(half_lives):
            self.writer.add_histogram(f"log2_half_life/block_{index}", np.log2(values), row["step"])
        saturation = row["saturation"]
        for name in ("entropy", "largest_probability", "saturated_share"):
            self.writer.add_scalar(f"saturation/{name}", saturation[name], row["step"])
        spread = saturation["logit_max"] - saturation["logit_min"]
        self.writer.add_scalar("saturation/logit_range", spread, row["step"])
        for index, value in enumerate(row.get("amplification", ())):
            self.writer.add_scalar(f"amplification/block_{index}", value, row["step"])
        self.writer.flush()

    def close(self, config: dict[str, Any], result: dict[str, Any]) -> None:
        """The hyperparameters of the run beside its result, and the end of the file."""
        flat = {"arm": config["arm"], "seed": config["seed"], "causal": result["causal"], **config["arm_options"]}
        flat = {key: value for key, value in flat.items() if isinstance(value, str | int | float)}  # no node lists
        flat |= {key: config["train"][key] for key in ("learning_rate", "batch", "context", "weight_decay")}
        flat |= {key: config["model"][key] for key in ("dim", "layers", "gain", "parameters")}
        metrics = {f"hparam/{key}": result[key] for key in ("final_val_bpb", "best_val_bpb", "test_bpb")}
        self.writer.add_hparams(flat, metrics, run_name=".", global_step=result["steps"])
        self.writer.close()
