"""python -m plkernel.generate: bytes from a trained model, as they are drawn, in constant memory and time per byte."""

import sys
from itertools import islice
from pathlib import Path
from typing import Annotated

import tyro

from plkernel.common import cli
from plkernel.config.schema import check_threads
from plkernel.config.study import LARGEST_SEED
from plkernel.models.words import Device


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
    trust_code: bool = False,
) -> None:
    """Continue a text, byte by byte, with a trained model; the bytes go to standard output as they are drawn.

    The model carries a state of constant size, so the millionth byte costs as much time and memory as the first, and a
    prompt may be of any length. The prompt is not repeated in the output. Into a file or pipe go exactly the bytes that
    were drawn, which need not be valid UTF-8; a terminal shows what is neither UTF-8 nor printable as a replacement
    character.

    The same model, prompt, options and seed give the same bytes, and more --bytes only add to them. Ctrl-C stops, and
    what was written stays. A model with `published` patching is refused, for it sees the byte that it predicts. A model
    that other people's code builds carries no state: for every byte it reads the last bytes anew, as many as the
    context of its run.

        python -m plkernel.generate runs/out/quick/power-law/seed-0 --prompt "def main(" --temperature 0.7

    Args:
        model: Folder of a run (STUDY/ARM/seed-0) or of plkernel.load, the checkpoint.safetensors in it, or what
            plkernel.export wrote.
        prompt: Text to continue, as UTF-8. An empty prompt is one newline, the likeliest place for a text to start.
        prompt_file: Read the prompt from this file instead, its bytes as they are; - is standard input.
        count: How many bytes to draw.
        temperature: Divides the logits: below 1 safer, above 1 wilder, 1 what the model believes. 0 always takes the
            likeliest byte.
        top_p: Draw only from the likeliest bytes that together have this probability; 1 is all of them.
        seed: Of the random numbers, one per byte.
        device: cuda or auto pay for wide models only: a byte is little work. The bytes can differ from those of a CPU.
        threads: Threads on a CPU; more pay for wide models only.
        trust_code: Import and run the code that the run names.
    """
    import torch

    from plkernel.models.sampling import Sampling
    from plkernel.training.build import choose_device
    from plkernel.training.generation import continuation, open_checkpoint, open_prompt, writer

    sampling = Sampling(temperature, top_p)
    check_numbers(count, seed, threads)
    torch.set_num_threads(threads)
    place = choose_device(device)
    with open_prompt(prompt, prompt_file) as source:
        opened = open_checkpoint(model, trust_code).to(place)
        drawn = continuation(opened, source, sampling, seed)
        write = writer(sys.stdout.buffer, sys.stdout.encoding if sys.stdout.isatty() else None)
        for byte in islice(drawn, count):
            write(byte)
    if sys.stdout.isatty():
        print(flush=True)


def check_numbers(count: int, seed: int, threads: int) -> None:
    """ValueError naming the option that is out of range."""
    if count < 1:
        raise ValueError(f"bytes must be at least 1, got {count}")
    if not 0 <= seed <= LARGEST_SEED:
        raise ValueError(f"seed must lie between 0 and {LARGEST_SEED}, got {seed}")
    check_threads(threads)


if __name__ == "__main__":
    cli.main(generate)
