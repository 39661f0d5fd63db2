"""python -m plkernel.generate: bytes from a trained model, as they are drawn, in constant memory and time per byte."""

import sys
from codecs import getincrementaldecoder
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from plkernel.common import cli
from plkernel.common.files import CHECKPOINT, refuse_study
from plkernel.config.schema import check_threads
from plkernel.config.study import LARGEST_SEED
from plkernel.models import NOT_CAUSAL, Device

WINDOW = 1024  # bytes of the prompt read at once


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

        python -m plkernel.generate runs/out/demo/short_source/seed-0 --prompt "def main(" --temperature 0.7

    Args:
        model: Folder of a run (STUDY/ARM/seed-0) or of plkernel.load, its checkpoint.safetensors, or an exported model.
        prompt: Text to continue, as UTF-8; one newline if empty.
        prompt_file: Continue the content of this file instead, such as /dev/stdin.
        count: How many bytes to draw.
        temperature: Divides the logits; 0 always takes the likeliest byte.
        top_p: Draw only from the likeliest bytes that together have this probability.
        seed: Of the random numbers, one per byte.
        device: A GPU pays for wide models only, and its bytes can differ from those of a CPU.
        threads: Threads on a CPU.
    """
    import torch

    from plkernel.interop.official import read
    from plkernel.models.sampling import Sampling
    from plkernel.training.build import choose_device
    from plkernel.training.checkpoint import open_model

    if count < 1:
        raise ValueError(f"bytes must be at least 1, got {count}")
    if not 0 <= seed <= LARGEST_SEED:
        raise ValueError(f"seed must lie between 0 and {LARGEST_SEED}, got {seed}")
    if prompt and prompt_file:
        raise ValueError(f"prompt and prompt_file exclude each other, got {prompt!r} and {prompt_file}: leave one out")
    check_threads(threads)
    torch.set_num_threads(threads)
    sampling, place = Sampling(temperature, top_p), choose_device(device)
    text = prompt_file.read_bytes() if prompt_file else prompt.encode("utf-8", "surrogateescape")
    refuse_study(cli.existing(model, "model"), "model")
    if model.is_dir() and not (model / CHECKPOINT).exists():
        raise ValueError(
            f"model {model}: holds no {CHECKPOINT}, so no model of plkernel: plkernel.load reads an official RWKV, "
            "a .pth file, and AutoModelForCausalLM the folders of transformers"
        )
    opened = read(model).eval() if model.suffix == ".pth" else open_model(model)
    if not opened.config.causal:
        raise ValueError(
            f"model {model} has patching mode 'published' ({NOT_CAUSAL}): such a model has no likelihood of the next "
            "byte to sample from; give one with mode 'causal' or without patches"
        )
    terminal, decoder = sys.stdout.isatty(), getincrementaldecoder("utf-8")("replace")
    for byte in islice(continuation(opened.to(place), text, sampling, seed), count):
        piece = bytes([byte])
        if terminal:  # control characters would command it
            shown = (c if c.isprintable() or c in "\n\t" else "\ufffd" for c in decoder.decode(piece))
            piece = "".join(shown).encode(sys.stdout.encoding, "replace")
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()


def continuation(model: Any, prompt: bytes, sampling: Any, seed: int, size: int = WINDOW) -> Iterator[int]:
    """The bytes that follow `prompt`, without end: b_t ~ p(. | prompt, b_1..b_{t-1}), on the device of the model.

    The state of the model is carried; the prompt is read in windows of `size` bytes. The next byte is computed only
    when it is asked for. FloatingPointError for logits that are not finite.
    """
    import torch

    random = np.random.Generator(np.random.Philox(key=seed))
    state, device, prompt = model.initial_state(1), next(model.parameters()).device, prompt or b"\n"
    pieces = [prompt[start : start + size] for start in range(0, len(prompt), size)]
    while True:
        for piece in pieces:
            with torch.inference_mode():
                logits, state = model.resume(torch.tensor([list(piece)], device=device), state)
        byte = sampling.choose(logits[0, -1].double().cpu().numpy(), random.random())
        yield byte
        pieces = [bytes([byte])]


if __name__ == "__main__":
    cli.main(generate)
