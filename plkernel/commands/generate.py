"""python -m plkernel.generate: bytes from a trained model, as they are drawn.

Memory and time per byte are constant.
"""

import os
import sys
from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Protocol

import tyro

from plkernel.common import cli
from plkernel.common.files import check_apart, check_file, files_of, naming, refuse_study
from plkernel.models import Device

MOST_THREADS = 1024
STANDARD_INPUT = Path("-")
"""As --prompt-file."""


class Writer(Protocol):
    """Where bytes go one by one."""

    def write(self, data: bytes, /) -> object: ...

    def flush(self) -> object: ...


class Terminal:
    """Bytes as text on a terminal.

    What is not valid UTF-8, and what would command it, is replaced.
    """

    def __init__(self, stream: BinaryIO, encoding: str) -> None:
        self.stream = stream
        self.encoding = encoding
        self.decoder = getincrementaldecoder("utf-8")("replace")

    def write(self, data: bytes, final: bool = False) -> None:
        text = self.decoder.decode(data, final)
        shown = "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)
        self.stream.write(shown.encode(self.encoding, "replace"))

    def flush(self) -> None:
        self.stream.flush()


def __getattr__(name: str) -> Any:
    """`generate`, the function of the package, which is loaded when it is asked for."""
    if name != "generate":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from plkernel.api.models import generate

    return generate


def command(
    model: tyro.conf.Positional[Path],
    prompt: str = "",
    prompt_file: Path | None = None,
    count: Annotated[int, tyro.conf.arg(name="bytes")] = 512,
    temperature: float = 1.0,
    top_p: float = 1.0,
    seed: int = 0,
    out: Path | None = None,
    device: Device = "cpu",
    threads: int = 1,
) -> None:
    """Continue a text, byte by byte, with a trained model of plkernel.

    The bytes go to standard output as they are drawn, without the prompt. A terminal shows text; a
    pipe, and the file of --out, get the bytes themselves, which need not be valid UTF-8. The same
    model, prompt, options and seed give the same bytes on a CPU. Ctrl-C ends it.

    Args:
        model: Folder of a run (STUDY/ARM/seed-0) or of plkernel.load, the checkpoint.safetensors in
            it, or an official .pth checkpoint of an RWKV.
        prompt: Text to continue, as UTF-8; a newline if empty.
        prompt_file: Continue the content of this file instead; - is standard input.
        count: How many bytes to draw.
        temperature: Divides the logits; 0 always takes the likeliest byte.
        top_p: Draw only from the likeliest bytes that together have this probability.
        seed: Of the random numbers, one for each byte.
        out: Write the bytes to this file instead.
        device: Where the model runs; a GPU pays for wide models only.
        threads: Threads on a CPU.
    """
    if not 1 <= count <= sys.maxsize:
        raise ValueError(f"bytes must lie between 1 and {sys.maxsize}, got {count}")
    if not 1 <= threads <= MOST_THREADS:
        raise ValueError(f"threads must lie between 1 and {MOST_THREADS}, got {threads}")
    if prompt and prompt_file:
        raise ValueError(f"prompt must be left out beside prompt_file, got {prompt!r}")
    check_apart({"out": out}, [*files_of(model), prompt_file])
    if out is not None and (os.path.isdir(out) or not os.path.exists(out)):
        check_file(out, "out")  # a file that is there, or a device, is opened as it is
    refuse_study(cli.existing(model, "model"), "model")
    from plkernel.models.sampling import Sampling, continuation

    sampling = Sampling(temperature, top_p, seed)
    text = read_prompt(prompt, prompt_file)
    import torch

    from plkernel.decays.official import read
    from plkernel.training.build import choose_device
    from plkernel.training.checkpoint import open_model

    torch.set_num_threads(threads)
    place = choose_device(device)
    opened = read(model).eval() if model.suffix == ".pth" else open_model(model)[0]
    drawn = continuation(opened.to(place), text, sampling)
    first = next(drawn)  # a file stays as it is where no byte can be drawn
    with destination(out) as writer:
        write(chain([first], islice(drawn, count - 1)), writer)


def read_prompt(prompt: str, file: Path | None) -> bytes:
    """The bytes to continue."""
    if file is None:
        return prompt.encode("utf-8", "surrogateescape")
    if file == STANDARD_INPUT:
        return sys.stdin.buffer.read()
    if cli.existing(file, "prompt_file").is_dir():
        raise ValueError(f"prompt_file must be a file, got the folder {file}")
    return file.read_bytes()


@contextmanager
def destination(out: Path | None) -> Iterator[Writer]:
    """Where the bytes go: a file, a terminal, whose line is ended, or standard output as it is."""
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        with naming(out), out.open("wb") as file:
            yield file
        return
    stream = sys.stdout.buffer
    if not sys.stdout.isatty():
        yield stream
        return
    terminal = Terminal(stream, sys.stdout.encoding)
    try:
        yield terminal
    finally:
        terminal.write(b"\n", final=True)
        terminal.flush()


def write(drawn: Iterable[int], writer: Writer) -> None:
    """Write every byte when it is drawn."""
    for byte in drawn:
        writer.write(bytes([byte]))
        writer.flush()


if __name__ == "__main__":
    cli.main(command)
