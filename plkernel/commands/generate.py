"""python -m plkernel.generate: bytes from a trained model, as they are drawn, in constant memory and time per byte."""

import sys
from itertools import islice
from pathlib import Path
from typing import Annotated

import tyro

from plkernel.common import cli
from plkernel.config.schema import check_threads
from plkernel.config.study import LARGEST_SEED
from plkernel.models import Device


def generate(
    model: tyro.conf.Positional[Path],
    prompt: str = "",
    prompt_file: Path | None = None,
    count: Annotated[int, tyro.conf.arg(name="bytes")] = 512,
    temperature: float = 1.0,
    top_p: float = 1.0,
    seed: int = 0,
    device: Device = "cpu",
    threads: int = 1,
) -> None:
    """Continue a text, byte by byte, with a trained model of plkernel.

    The bytes go to standard output as they are drawn; the prompt is not repeated. A pipe gets the bytes
    themselves, which need not be valid UTF-8; a terminal gets text. The same model, prompt, options and seed give the
    same bytes. Ctrl-C stops.

        python -m plkernel.generate runs/out/quick/power-law/seed-0 --prompt "def main(" --temperature 0.7

    Args:
        model: Folder of a run (STUDY/ARM/seed-0) or of plkernel.load, its checkpoint.safetensors, or an exported model.
        prompt: Text to continue, as UTF-8; one newline if empty.
        prompt_file: Read the prompt, of any length, from this file instead; - is standard input.
        count: How many bytes to draw.
        temperature: Divides the logits; 0 always takes the likeliest byte.
        top_p: Draw only from the likeliest bytes that together have this probability.
        seed: Of the random numbers, one per byte.
        device: A GPU pays for wide models only, and its bytes can differ from those of a CPU.
        threads: Threads on a CPU.
    """
    import torch

    from plkernel.models.sampling import Sampling
    from plkernel.training.build import choose_device
    from plkernel.training.generation import continuation, open_checkpoint, open_prompt, writer

    if count < 1:
        raise ValueError(f"bytes must be at least 1, got {count}")
    if not 0 <= seed <= LARGEST_SEED:
        raise ValueError(f"seed must lie between 0 and {LARGEST_SEED}, got {seed}")
    check_threads(threads)
    torch.set_num_threads(threads)
    sampling, place = Sampling(temperature, top_p), choose_device(device)
    with open_prompt(prompt, prompt_file) as source:
        drawn = continuation(open_checkpoint(model).to(place), source, sampling, seed)
        write = writer(sys.stdout.buffer, sys.stdout.encoding if sys.stdout.isatty() else None)
        for byte in islice(drawn, count):
            write(byte)
    if sys.stdout.isatty():
        print(flush=True)


if __name__ == "__main__":
    cli.main(generate)
