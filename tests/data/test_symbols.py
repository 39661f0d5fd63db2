"""Texts to measure: bytes, tokens, and vectors of integers from files of numpy."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plkernel.data.symbols import of_text, of_vector, read_vector


def test_a_vector_is_numbered_and_may_hold_anything(tmp_path: Path) -> None:
    values = np.array([-5, 2**40, 7, -5])
    np.save(tmp_path / "ids.npy", values)
    found = read_vector(tmp_path / "ids.npy")
    assert found.data.tolist() == [0, 2, 1, 0]
    assert found.data.dtype == np.uint8
    assert (found.unit, found.tokens) == ("symbol", None)
    assert found.corpus.name == str(tmp_path / "ids.npy")


class Danger:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("is_array", [True, False])
def test_nothing_in_a_file_of_numpy_is_executed(tmp_path: Path, is_array: bool) -> None:
    """Of an array of objects, and of a pickle under the name of such a file."""
    danger = Danger(tmp_path / "ran")
    if is_array:
        np.save(tmp_path / "bad.npy", np.array([danger], dtype=object))
    else:
        (tmp_path / "bad.npy").write_bytes(pickle.dumps(danger))
    with pytest.raises(ValueError, match=r"bad\.npy: is no file of numpy with a vector"):
        read_vector(tmp_path / "bad.npy")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("values", "got"),
    [
        (np.zeros(3), r"float64 of shape \(3,\); .astype\(int\) makes integers"),
        (np.zeros((2, 2), int), r"int64 of shape \(2, 2\); .ravel\(\) makes a vector"),
    ],
)
def test_other_arrays_are_refused(values: np.ndarray, got: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", values)
    with pytest.raises(ValueError, match=f"must hold a vector of integers, got {got}"):
        read_vector(tmp_path / "x.npy")


def test_a_file_that_is_cut_off_is_told(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(1_000))
    whole = (tmp_path / "x.npy").read_bytes()
    for size in (0, 5, 200):
        (tmp_path / "x.npy").write_bytes(whole[:size])
        with pytest.raises(ValueError, match="is no file of numpy"):
            read_vector(tmp_path / "x.npy")


def test_tokens_need_a_tokenizer() -> None:
    with pytest.raises(ValueError, match="must be bytes without a tokenizer, got 'tokens'"):
        of_text(None, np.zeros(3, np.uint8), None, "tokens")
    wrong: Any = "words"
    with pytest.raises(ValueError, match="measured must be bytes or tokens, got 'words'"):
        of_text(None, np.zeros(3, np.uint8), None, wrong)


def test_a_tokenizer_gives_the_length_of_tokens_and_with_tokens_the_symbols(
    tokenizer_file: Callable[..., Path],
) -> None:
    text = "one two three, one two. " * 300
    data = np.frombuffer(text.encode(), np.uint8)
    path = tokenizer_file(text, size=300)
    as_text = of_text("corpus", data, path)
    assert as_text.data is data
    assert as_text.unit == "byte"
    as_tokens = of_text("corpus", data, path, "tokens")
    assert as_tokens.unit == "token"
    assert as_text.tokens == as_tokens.tokens
    assert as_tokens.tokens is not None
    assert as_tokens.tokens.tokens == as_tokens.data.size < data.size
    assert as_tokens.tokens.bytes_per_token == data.size / as_tokens.data.size


def test_a_vector_of_a_thousand_symbols_needs_two_bytes_each() -> None:
    assert of_vector(np.arange(1_000), "made", "made").data.dtype == np.uint16


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<i8', 'fortran_order': False, 'shape': (1152921504606846976,), }",
        "{'descr': '<i8', 'fortran_order': False, 'shape': (True,), }",
        "{'descr': '<i8', 'fortran_order': False, 'shape': (5,",
        "{[]: 1}",
    ],
)
def test_a_broken_header_is_an_error_of_one_line(header: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.npy"
    padded = header.ljust(117) + "\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded.encode())
    with pytest.raises(ValueError, match=r"broken\.npy: is no file of numpy") as caught:
        read_vector(path)
    assert "\n" not in str(caught.value)


def test_an_archive_is_told_from_a_vector(tmp_path: Path) -> None:
    np.savez(tmp_path / "two.npz", x=np.arange(5))
    path = (tmp_path / "two.npz").rename(tmp_path / "two.npy")
    with pytest.raises(ValueError, match=r"got an archive of numpy\.savez"):
        read_vector(path)


def test_bytes_that_belong_to_no_token_are_said(tokenizer_file: Callable[..., Path]) -> None:
    text = "one two three " * 300
    data = np.frombuffer(text.encode(), np.uint8)
    shares: list[float] = []
    with pytest.warns(UserWarning, match=r"900 of 4,200 bytes belong to no token"):
        of_text("corpus", data, tokenizer_file(text, kind="words"), progress=shares.append)
    assert sum(shares) == pytest.approx(1.0)
