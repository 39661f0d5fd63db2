"""Generation: the prompt is read in windows, then one byte is drawn after another, in constant memory."""

import io
import sys
import unicodedata
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from plkernel.common import cli
from plkernel.interop.official import read
from plkernel.models import NOT_CAUSAL
from plkernel.models.sampling import Sampling
from plkernel.training.build import Model
from plkernel.training.checkpoint import open_model

WINDOW = 1024  # bytes of the prompt read at once


def open_checkpoint(path: Path) -> Model:
    """The model of a run or of plkernel.load, or one in the formats of plkernel.export, set to evaluation.

    Raises ValueError when there is no model, it is damaged, other people's code builds it, or it has no likelihood of
    the next byte.
    """
    cli.existing(path, "model")
    model = read(path).eval() if path.suffix == ".pth" else open_model(path)
    if not model.config.causal:
        raise ValueError(
            f"model {path} has patching mode 'published' ({NOT_CAUSAL}): such a model has no likelihood of the next "
            "byte to sample from; give one with mode 'causal' or without patches"
        )
    return model


def open_prompt(text: str, file: Path | None) -> AbstractContextManager[BinaryIO]:
    """The prompt as a stream of bytes to enter; ValueError when both are given."""
    if file is None:
        return io.BytesIO(text.encode("utf-8", "surrogateescape"))
    if text:
        raise ValueError(f"prompt and prompt_file exclude each other, got {text!r} and {file}: leave one out")
    if str(file) == "-":
        return nullcontext(sys.stdin.buffer)
    return file.open("rb")


def windows(source: BinaryIO, size: int = WINDOW) -> Iterator[bytes]:
    """The bytes of `source` in windows of `size`, the last one shorter; one newline when there are none.

    The windows, and so the last digits of the logits, do not depend on how the bytes arrive.
    """
    held, empty = b"", True
    while piece := source.read(size - len(held)):
        held, empty = held + piece, False
        if len(held) == size:
            yield held
            held = b""
    if held or empty:
        yield held or b"\n"


def continuation(model: Model, prompt: BinaryIO, sampling: Sampling, seed: int, size: int = WINDOW) -> Iterator[int]:
    """The bytes that follow `prompt`, without end: b_t ~ p(. | prompt, b_1..b_{t-1}), on the device of the model.

    Memory is constant: the model's state and one window of `size` bytes of the prompt. The next byte is computed only
    when it is asked for. FloatingPointError for logits that are not finite.
    """
    random = np.random.Generator(np.random.Philox(key=seed))
    state: Any = model.initial_state(1)
    device = next(model.parameters()).device
    pieces = windows(prompt, size)
    while True:
        for piece in pieces:
            with torch.inference_mode():
                logits, state = model.resume(torch.tensor([list(piece)], device=device), state)
        byte = sampling.choose(logits[0, -1].double().cpu().numpy(), random.random())
        yield byte
        pieces = iter([bytes([byte])])


def writer(output: BinaryIO, terminal: str | None) -> Callable[[int], None]:
    """A function that writes and flushes a byte: as it is, or as valid text for a terminal of encoding `terminal`.

    A terminal gets U+FFFD for the control characters that would command it.
    """
    decoder = getincrementaldecoder("utf-8")("replace")

    def harmless(character: str) -> str:
        return "\ufffd" if unicodedata.category(character) == "Cc" and character not in "\n\t" else character

    def write(byte: int) -> None:
        piece = bytes([byte])
        if terminal is not None:
            piece = "".join(map(harmless, decoder.decode(piece))).encode(terminal, "replace")
        output.write(piece)
        output.flush()

    return write
