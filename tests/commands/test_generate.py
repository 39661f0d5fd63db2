"""python -m plkernel.generate: bytes go out one by one, to files, pipes and terminals."""

import io
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plkernel.commands import generate
from plkernel.commands.generate import Terminal, destination, read_prompt, write


def test_every_byte_is_out_before_the_next_is_drawn() -> None:
    events: list[Any] = []

    def drawn() -> Iterator[int]:
        for byte in b"ab":
            events.append(f"draw {byte}")
            yield byte

    writer = SimpleNamespace(write=events.append, flush=lambda: events.append("flush"))
    write(drawn(), writer)
    assert events == ["draw 97", b"a", "flush", "draw 98", b"b", "flush"]


def test_a_terminal_gets_text_and_the_rest_of_it_at_the_end() -> None:
    stream = io.BytesIO()
    terminal = Terminal(stream, "utf-8")
    for byte in "é".encode():
        terminal.write(bytes([byte]))
    terminal.write(b"\x1b\t\n\xc3")
    terminal.write(b"\n", final=True)
    assert stream.getvalue().decode() == "é\ufffd\t\n\ufffd\n"
    ascii_stream = io.BytesIO()
    Terminal(ascii_stream, "ascii").write("é".encode())
    assert ascii_stream.getvalue() == b"?"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_terminal_ends_in_a_line_break_and_a_pipe_does_not(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stream(io.BytesIO):
        flushed = b""

        def flush(self) -> None:
            self.flushed = self.getvalue()

    stream = Stream()
    shown = SimpleNamespace(buffer=stream, encoding="utf-8", isatty=lambda: is_terminal)
    monkeypatch.setattr(sys, "stdout", shown)
    with destination(None) as writer:
        writer.write(b"\xff")
    assert stream.getvalue() == ("\ufffd\n".encode() if is_terminal else b"\xff")
    assert stream.flushed == (stream.getvalue() if is_terminal else b"")
    stream = Stream()
    shown.buffer = stream
    with pytest.raises(KeyboardInterrupt), destination(None):
        raise KeyboardInterrupt
    assert stream.getvalue() == (b"\n" if is_terminal else b"")


def test_a_prompt_is_that_of_the_option_or_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_prompt("é\udcff", None) == b"\xc3\xa9\xff"
    path = tmp_path / "prompt"
    path.write_bytes(b"\x00\xff")
    assert read_prompt("", path) == b"\x00\xff"
    given = SimpleNamespace(buffer=io.BytesIO(b"from a pipe"))
    monkeypatch.setattr(sys, "stdin", given)
    assert read_prompt("", Path("-")) == b"from a pipe"


def test_a_file_of_bytes_gets_the_folder_that_it_needs(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "out"
    with destination(path) as writer:
        writer.write(b"\xff")
    assert path.read_bytes() == b"\xff"


def test_a_disk_without_room_is_told_with_the_file() -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no such device here")
    with pytest.raises(OSError, match="No space left") as found, destination(full) as writer:
        write(b"a", writer)
    assert found.value.filename == "/dev/full"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"count": 0}, "bytes must lie between 1 and"),
        ({"count": sys.maxsize + 1}, f"bytes must lie between 1 and {sys.maxsize}, got"),
        ({"prompt_file": Path("b"), "out": Path("./b")}, "out must be another file than those"),
        ({"count": sys.maxsize}, None),
        ({"count": 1, "threads": 0}, "threads must lie between 1 and 1024, got 0"),
        ({"threads": 1025}, "threads must lie between 1 and 1024, got 1025"),
        ({"prompt": "a", "prompt_file": Path("b")}, "prompt must be left out beside prompt_file"),
        ({"count": 1, "threads": 1024}, None),
        ({"threads": 1, "prompt_file": Path("b")}, None),
    ],
)
def test_counts_and_prompts_are_checked_first(
    options: dict[str, Any], message: str | None, tmp_path: Path
) -> None:
    if message is None:
        with pytest.raises((ValueError, OSError)) as found:
            generate.command(tmp_path / "no model", **options)
        assert "no model" in str(found.value)
    else:
        with pytest.raises(ValueError, match=message):
            generate.command(tmp_path / "no model", **options)
