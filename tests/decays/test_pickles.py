"""Files of torch at the limits of what is read, and weights among what training code saves."""

import time
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
import torch

from plkernel.decays import pickles
from plkernel.decays.inspection import inspected
from plkernel.decays.pickles import _weights, read_parts, read_pickle
from plkernel.decays.tensors import open_checkpoint

ONE = torch.ones(2)
ARRAY = np.ones(2)


def nested(depth: int, value: Any = ONE) -> dict[str, Any]:
    """A tensor, or another value, within so many dictionaries."""
    for letter in reversed("abcdefg"[:depth]):
        value = {letter: value}
    return value  # type: ignore[no-any-return]


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_tensors_are_found_within_five_dictionaries(depth: int) -> None:
    name = ".".join("abcdefg"[:depth])
    part, found = _weights({"model": nested(depth)})
    assert (part, list(found)) == ("model", [name])


def test_tensors_within_six_dictionaries_are_not_looked_for() -> None:
    content = {"model": nested(6)}
    assert _weights(content)[1] is content


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ({"a": ONE, "epoch": 1}, ["a", "epoch"]),
        ({"model": {"a": ONE}, "state_dict": {"b": ONE}}, ["b"]),
        ({"model": {}, "ema": {"b": ONE}}, ["b"]),
        ({"model0": {"a": ONE}, "model1": {"b": ONE}}, ["model0.a", "model1.b"]),
        ({"mine": {"a": ONE}, "optimizer": {"x": ONE}}, ["mine.a"]),
        ({"mine": {"a": ONE}, "my_scheduler": {"x": ONE}, 3: {"y": ONE}}, ["mine.a"]),
        ({"mine": {"a": ONE, 3: ONE, "n": 1}}, ["mine.a"]),
        ({"epoch": 1}, ["epoch"]),
    ],
)
def test_weights_are_found_among_what_is_saved(content: Any, names: list[str]) -> None:
    assert list(_weights(content)[1]) == names


@pytest.mark.parametrize(
    ("content", "read", "left"),
    [
        ({"ema": {"a": ONE}, "raw": {"a": ONE}}, "ema", ("raw",)),
        ({"ema": {"module.a": ONE}, "model": {"a": ONE}}, "model", ("ema",)),
        ({"model": {"a": ONE}, "optimizer": {"a": ONE}, "loss": {"b": ONE}}, "model", ()),
        ({"one": {"a": ONE}, "other": {"a": ONE}}, "", ()),
    ],
    ids=["an average", "one under a wrapper", "others", "all of them"],
)
def test_of_two_models_in_a_file_the_one_that_is_not_read_is_told(
    content: Any, read: str, left: tuple[str, ...], tmp_path: Path
) -> None:
    torch.save(content, tmp_path / "x.pth")
    _, part, copies = read_parts(tmp_path / "x.pth")
    assert (part, copies) == (read, left)


def test_what_is_no_dictionary_of_names_is_refused(tmp_path: Path) -> None:
    for number, content in enumerate(([ONE], {1: ONE})):
        path = tmp_path / f"{number}.pth"
        torch.save(content, path)
        with pytest.raises(ValueError, match="must hold a flat dictionary of named tensors, got"):
            read_pickle(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (torch.nn.Linear(2, 2), "an object of class Linear, which is not loaded; save its state"),
        ({1: ONE}, "one with the key 1; names must be texts"),
        ([ONE], r"a list; save a state_dict\(\)"),
        (ARRAY, "a numpy array; save a dictionary of tensors"),
        (
            {"a": ARRAY, "n": ARRAY[0]},
            "one with numpy arrays, as 'a', and no named tensor",
        ),
        (
            {"state_dict": {"a": {"b": ARRAY}}},
            "one with numpy arrays, as 'b', and no named tensor",
        ),
    ],
)
def test_what_is_no_dictionary_of_names_is_told_as_what_it_is(
    content: Any, words: str, tmp_path: Path
) -> None:
    torch.save(content, tmp_path / "x.pth")
    with pytest.raises(ValueError, match=f"got {words}"):
        read_pickle(tmp_path / "x.pth")


def test_arrays_are_looked_for_as_deep_as_tensors(tmp_path: Path) -> None:
    torch.save(nested(5, ARRAY), tmp_path / "five.pth")
    with pytest.raises(ValueError, match="numpy arrays, as 'e', and no named tensor"):
        read_pickle(tmp_path / "five.pth")
    torch.save(nested(6, ARRAY), tmp_path / "six.pth")
    assert set(read_pickle(tmp_path / "six.pth")) == {"a"}


def test_arrays_beside_the_weights_are_not_told_as_weights(tmp_path: Path) -> None:
    torch.save({"optimizer": {"x": ARRAY}, "epoch": 3}, tmp_path / "x.pth")
    assert set(read_pickle(tmp_path / "x.pth")) == {"optimizer", "epoch"}


@pytest.mark.parametrize("head", ["state_dict", "mine"])
def test_a_numpy_array_beside_nested_tensors_is_not_called_missing(
    head: str, tmp_path: Path
) -> None:
    content = {head: {"l.0.A_log": ONE, "l.0.dt_bias": ARRAY}}
    torch.save(content, tmp_path / "x.pth")
    with pytest.raises(ValueError, match=r"l.0.dt_bias must be .* got numpy array; torch.from_num"):
        inspected(str(tmp_path / "x.pth"))


def test_a_numpy_array_beside_tensors_is_named(tmp_path: Path) -> None:
    torch.save({"a": ONE, "l.A_log": ARRAY, "n": ARRAY[0]}, tmp_path / "x.pth")
    checkpoint = open_checkpoint(str(tmp_path / "x.pth"))
    with pytest.raises(ValueError, match=r"l.A_log must be .* got numpy array; torch.from_numpy"):
        checkpoint.read("l.A_log")
    with pytest.raises(ValueError, match=r"n must be .* got numpy number$"):
        checkpoint.read("n")


@pytest.mark.filterwarnings("ignore:`torch.jit")  # deprecated, and in use
def test_a_torchscript_archive_is_told_how_to_convert(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch.jit.save(torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(1, 2)), path)
    with pytest.raises(ValueError, match=r"got a TorchScript archive, .*state_dict\(\), 'model.pt"):
        read_pickle(path)
    torch.save(torch.jit.load(path).state_dict(), tmp_path / "model.pt")
    assert set(read_pickle(tmp_path / "model.pt")) == {"weight", "bias"}


def test_expanded_tensors_may_take_as_much_more_as_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two tensors 3 and 4 numbers that the file does not hold, 28 bytes."""
    path = tmp_path / "a.pth"
    torch.save({"a": torch.ones(1).expand(4), "b": torch.ones(1).expand(5), "c": ONE}, path)
    monkeypatch.setattr(pickles, "MOST_INFLATED", 28)
    monkeypatch.setattr(pickles, "_check_memory", lambda path: None)
    assert set(read_pickle(path)) == {"a", "b", "c"}
    monkeypatch.setattr(pickles, "MOST_INFLATED", 27)
    with pytest.raises(ValueError, match="at most 27 bytes more than it holds, got 28; save them"):
        read_pickle(path)


def test_the_pickle_of_a_file_may_be_as_large_as_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from zipfile import ZipFile

    path = tmp_path / "a.pth"
    torch.save({"a": ONE}, path)
    with ZipFile(path) as file:
        [size] = [one.file_size for one in file.infolist() if one.filename.endswith(".pkl")]
    monkeypatch.setattr(pickles, "MOST_PICKLED", size)
    assert list(read_pickle(path)) == ["a"]
    monkeypatch.setattr(pickles, "MOST_PICKLED", size - 1)
    with pytest.raises(ValueError, match=f"at most {size - 1} bytes, got {size}$"):
        read_pickle(path)


@pytest.mark.parametrize("before", [0, 2**24 - 12, 2**24 - 5, 2**24, 2**24 + 7])
def test_a_call_that_takes_any_memory_is_found_wherever_it_is(before: int, tmp_path: Path) -> None:
    path = tmp_path / "a.pth"
    path.write_bytes(bytes(before) + b"builtins\nbytearray" + bytes(3))
    with pytest.raises(ValueError, match="got a call of bytearray, which can take any amount"):
        read_pickle(path)


def test_a_file_that_repeats_the_module_of_shards_is_refused_soon(tmp_path: Path) -> None:
    """A pattern without bounds took a time that grew with the square of the file."""
    words = b"torch.distributed.tensor" * 50_000
    text = b"X" + len(words).to_bytes(4, "little") + words
    path = tmp_path / "model.pt"
    with ZipFile(path, "w") as file:
        file.writestr("model/data.pkl", b"\x80\x02" + text + b"0N)R.")
        file.writestr("model/version", b"3")
    started = time.process_time()
    assert not pickles._holds_shards(path)
    assert time.process_time() - started < 5
