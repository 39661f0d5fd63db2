"""Folders that training leaves and that are not read: what they are, and what converts them."""

from itertools import islice
from pathlib import Path

MOST_FILES = 10_000
"""Entries of a folder that are looked at."""
WEIGHTS = (".safetensors", ".st", ".pth", ".pt", ".bin", ".ckpt")


def entries(folder: Path) -> list[str]:
    """Names in a folder, the first MOST_FILES."""
    return sorted(one.name for one in islice(folder.iterdir(), MOST_FILES))


def conversion(folder: Path) -> str:
    """What a folder is that other software writes in parts, and how to convert it; "" if none."""
    names = entries(folder)
    if any(name.endswith(".distcp") or name == ".metadata" for name in names):
        return (
            "is a distributed checkpoint of torch (DCP), whose index is a pickle and is not read:"
            f" python -m torch.distributed.checkpoint.format_utils dcp_to_torch {folder} model.pt"
            " converts it, if you trust it; then name model.pt"
        )
    steps = any(name.startswith("global_step") for name in names)
    states = any(name.endswith(("_model_states.pt", "_optim_states.pt")) for name in names)
    if "zero_to_fp32.py" in names or steps or states:
        place = folder.parent if states else folder
        return (
            "is a checkpoint of DeepSpeed, in parts:"
            f" python {place / 'zero_to_fp32.py'} {place} out joins them; then name out. Without"
            " ZeRO, mp_rank_00_model_states.pt in it can be named"
        )
    marks = ("latest_checkpointed_iteration.txt", "model_optim_rng.pt")
    parts = any(name.startswith(("mp_rank_", "iter_")) for name in names)
    if parts or any(mark in names for mark in marks):
        return (
            "is a checkpoint of Megatron, in parts: tools/checkpoint/convert.py of Megatron-LM"
            " (--loader mcore --saver mcore --target-tensor-parallel-size 1"
            " --target-pipeline-parallel-size 1) joins them; then name its model_optim_rng.pt"
        )
    return ""


def held_files(folder: Path) -> list[str]:
    """Files with weights in a folder, which can be named."""
    return [name for name in entries(folder) if name.endswith(WEIGHTS)]
