"""python -m plkernel.generate: bytes from a trained model, as they are drawn, in constant memory and time per byte."""

import io
import sys
import unicodedata
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import numpy as np
import torch
import tyro
from numpy.typing import NDArray

from plkernel.load import read
from plkernel.models import NOT_CAUSAL
from plkernel.models.sampling import Sampling
from plkernel.run.build import Model
from plkernel.run.model_folder import open_model
from plkernel.run.task import choose_device
from plkernel.spec.study import LARGEST_SEED, Device
from plkernel.spec.train import check_threads
from plkernel.tools import cli

WINDOW = 1024  # bytes of the prompt read at once
START = b"\n"
SHOWN = "\n\t"
STANDARD_INPUT = Path("-")


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
    """Continue a text, byte by byte, with a trained model; the bytes go to standard output as they are drawn.

    The model carries a state of constant size, so the millionth byte costs as much time and memory as the first, and a
    prompt may be of any length. The prompt is not repeated in the output. Into a file or pipe go exactly the bytes that
    were drawn, which need not be valid UTF-8; a terminal shows what is neither UTF-8 nor printable as a replacement
    character.

    The same model, prompt, options and seed give the same bytes, and more --bytes only add to them. Ctrl-C stops, and
    what was written stays. A model with `published` patching is refused, for it sees the byte that it predicts.

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
    """
    sampling = Sampling(temperature, top_p)
    check_numbers(count, seed, threads)
    torch.set_num_threads(threads)
    place = choose_device(device)
    with open_prompt(prompt, prompt_file) as source:
        opened = open_checkpoint(model).to(place)
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


def open_checkpoint(path: Path) -> Model:
    """The model of a run or of plkernel.load, or one in the formats of plkernel.export, set to evaluation.

    Raises ValueError when there is none, it is damaged, or it has no likelihood of the next byte.
    """
    cli.existing(path, "model")
    foreign = path.suffix == ".pth" or (path / "model.safetensors").is_file()
    model = read(path).eval() if foreign else open_model(path)
    if not model.config.causal:
        raise ValueError(
            f"model {path} has patching mode 'published' ({NOT_CAUSAL}): such a model has no likelihood of the next "
            "byte to sample from; give one with mode 'causal' or without patches"
        )
    return model


def open_prompt(text: str, file: Path | None) -> AbstractContextManager[BinaryIO]:
    """The prompt as a stream of bytes to enter; ValueError when both are given or the file cannot be read."""
    if file is None:
        return io.BytesIO(text.encode("utf-8", "surrogateescape"))
    if text:
        raise ValueError(f"prompt and prompt_file exclude each other, got {text!r} and {file}: leave one out")
    if file == STANDARD_INPUT:
        return nullcontext(sys.stdin.buffer)
    try:
        return file.open("rb")
    except OSError as error:
        raise ValueError(
            f"prompt_file {file} cannot be read ({error.strerror}): give a file, or - for stdin"
        ) from error


def windows(source: BinaryIO, size: int = WINDOW) -> Iterator[bytes]:
    """The bytes of `source` in windows of `size`, the last one shorter; START alone when there are none.

    The windows do not depend on how the bytes arrive, so neither do the last digits of the logits.
    """
    held, empty = b"", True
    while piece := source.read(size - len(held)):
        held, empty = held + piece, False
        if len(held) == size:
            yield held
            held = b""
    if held or empty:
        yield held or START


def continuation(model: Model, prompt: BinaryIO, sampling: Sampling, seed: int, size: int = WINDOW) -> Iterator[int]:
    """The bytes that follow `prompt`, without end: b_t ~ p(. | prompt, b_1..b_{t-1}), on the device of the model.

    Memory is constant: the model's state and one window of `size` bytes of the prompt. The next byte is computed only
    when it is asked for. FloatingPointError for logits that are not finite.
    """
    random = np.random.Generator(np.random.Philox(key=seed))
    state: Any = model.initial_state(1)
    for window in windows(prompt, size):
        logits, state = read_on(model, window, state)
    while True:
        byte = sampling.choose(logits, random.random())
        yield byte
        logits, state = read_on(model, bytes([byte]), state)


@torch.inference_mode()
def read_on(model: Model, text: bytes, state: Any) -> tuple[NDArray[np.float64], Any]:
    """The logits (256,) after `text`, which continues what `state` has seen, and the next state."""
    inputs = torch.tensor([list(text)], device=model.head.weight.device)
    logits, state = model.resume(inputs, state)
    return logits[0, -1].double().cpu().numpy(), state


def writer(output: BinaryIO, terminal: str | None) -> Callable[[int], None]:
    """Writes and flushes byte after byte: as they are, or as valid text for a terminal of the encoding `terminal`."""

    def raw(byte: int) -> None:
        output.write(bytes([byte]))
        output.flush()

    def text(byte: int) -> None:
        shown = "".join(map(printable, decoder.decode(bytes([byte]))))
        output.write(shown.encode(terminal or "utf-8", "replace"))
        output.flush()

    decoder = getincrementaldecoder("utf-8")("replace")
    return raw if terminal is None else text


def printable(character: str) -> str:
    """`character`, or U+FFFD for the control characters that would command a terminal."""
    control = unicodedata.category(character) == "Cc" and character not in SHOWN
    return "\N{REPLACEMENT CHARACTER}" if control else character


if __name__ == "__main__":
    cli.main(generate)
