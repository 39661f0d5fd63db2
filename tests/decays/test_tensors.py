"""Checkpoint files, whole and hostile: an answer or one line of error, and nothing in them is
executed.
"""

import importlib
import json
import os
import pickle
import struct
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save, save_file

import plkernel
from plkernel.commands.inspect import command as inspect
from plkernel.common import cli
from plkernel.decays.inspection import inspected, render
from plkernel.decays.tensors import INDEX, SINGLE, open_checkpoint, open_safetensors, rounded

A_LOG = "model.layers.0.mixer.A_log"
TENSORS = {
    A_LOG: torch.linspace(-1, 1, 4),
    "model.layers.0.mixer.dt_bias": torch.linspace(-5, -3, 4),
    "model.layers.1.att.time_decay": torch.linspace(-5, -3, 4).bfloat16(),
    "model.layers.2.self_attn.slope_rate": torch.linspace(0.1, 0.3, 4),
    "model.layers.3.fgate_preact.bias": torch.linspace(0.1, 0.3, 4),
}
CONFIG: dict[str, Any] = {
    "model_type": "nemotron_h",
    "dtype": "bfloat16",
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "gate_soft_cap": 15.0,
    "time_step_min": 0.001,
    "text_config": {"time_step_limit": [0.0, 1.0]},
}
INDEXED = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(TENSORS, SINGLE)}
STRANGE = (
    *(
        None,
        True,
        0,
        -1,
        3,
        2**31,
        10**30,
        0.5,
        1e308,
        float("inf"),
        float("nan"),
        "",
        "x",
        "1e9",
        "\n",
        "\0",
    ),
    *(
        "../..",
        "/dev/zero",
        "a" * 20_000,
        [],
        [[]],
        [None],
        ["a", {}],
        [{"a": 1}, {}],
        list(range(300)),
        {},
        {"a": {}},
    ),
)


def sharded(folder: Path) -> dict[str, str]:
    """A folder as on the hub, tensors dealt out to two files in turn."""
    folder.mkdir(exist_ok=True)
    places = {name: f"model-{index % 2}.safetensors" for index, name in enumerate(TENSORS)}
    for file in set(places.values()):
        save_file(
            {name: values for name, values in TENSORS.items() if places[name] == file},
            folder / file,
        )
    (folder / INDEX).write_text(json.dumps({"weight_map": places}))
    return places


def test_one_file_shards_a_pickle_and_the_cache_of_the_hub_are_one_checkpoint(
    tmp_path: Path,
) -> None:
    save_file(TENSORS, tmp_path / "one.safetensors")
    torch.save(TENSORS, tmp_path / "one.pth")
    torch.save(TENSORS, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    sharded(tmp_path / "folder")
    snapshot, blobs = (
        tmp_path / "models--a--b" / "snapshots" / "c0ffee",
        tmp_path / "models--a--b" / "blobs",
    )
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    save_file(TENSORS, blobs / "beef")
    (snapshot / "model.safetensors").symlink_to("../../blobs/beef")
    places = [
        tmp_path / "one.safetensors",
        tmp_path / "one.pth",
        tmp_path / "old.pth",
        tmp_path / "folder",
        snapshot,
    ]
    rates = [np.stack([layer.rates for layer in inspected(str(place)).layers]) for place in places]
    assert rates[0].shape == (4, 4)
    assert all(np.array_equal(rates[0], one) for one in rates)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
    ],
)
def test_every_stored_type_is_widened_exactly(dtype: torch.dtype, tmp_path: Path) -> None:
    """All bit patterns of the short ones; torch itself is the reference, and pickles agree."""
    kinds = {8: torch.uint8, 16: torch.int16}
    width = torch.finfo(dtype).bits
    tensor = (
        torch.arange(2**width).to(kinds[width]).view(dtype)
        if width in kinds
        else torch.randn(99).to(dtype)
    )
    save_file({"x": tensor}, tmp_path / "x.safetensors")
    torch.save({"x": tensor}, tmp_path / "x.pth")
    for name in ("x.safetensors", "x.pth"):
        stored = open_checkpoint(str(tmp_path / name)).read("x")
        assert (stored.dtype, stored.eps) == (
            str(dtype).removeprefix("torch."),
            torch.finfo(dtype).eps,
        )
        np.testing.assert_array_equal(stored.values, tensor.double().numpy())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rounding_is_that_of_torch(dtype: str) -> None:
    values = torch.cat(
        [torch.randn(5000).double() * 10.0**n for n in range(-8, 9)]
        + [torch.tensor([0.0, torch.inf])]
    )
    np.testing.assert_array_equal(
        rounded(values.numpy(), dtype), values.to(getattr(torch, dtype)).double().numpy()
    )


def entry(shape: list[int], end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [0, end]}


def index(change: Callable[[dict[str, str]], Any]) -> Callable[[Path], Path]:
    """A folder whose index says something else."""

    def write(folder: Path) -> Path:
        places = sharded(folder)
        (folder / "link.safetensors").symlink_to("../outside")
        os.mkfifo(folder / "pipe")
        (folder / INDEX).write_text(json.dumps({"weight_map": change(places)}))
        return folder

    return write


def elsewhere(file: str) -> Callable[[Path], Path]:
    return index(lambda places: dict.fromkeys(places, file))


def link(name: str) -> Callable[[Path], Path]:
    """A folder with one file that is a link out of it."""

    def write(folder: Path) -> Path:
        save_file(TENSORS, folder / SINGLE)
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to("../outside")
        return folder

    return write


def content(data: bytes, name: str = "x.safetensors") -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / name).write_bytes(data)
        return folder / name

    return write


def header(value: Any, size: int, length: int | None = None) -> Callable[[Path], Path]:
    """A .safetensors file of this header with `size` bytes of numbers."""
    text = json.dumps(value).encode()
    return content(struct.pack("<Q", len(text) if length is None else length) + text + b"\0" * size)


def large(folder: Path) -> Path:
    """Half a gigabyte of decays that takes no room on the disk."""
    path = header({"a.nu_log": entry([2**27], 2**29)}, 0)(folder)
    os.truncate(path, path.stat().st_size + 2**29)
    return path


def configured(config: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        save_file(
            {name: values for name, values in TENSORS.items() if "mixer" in name}, folder / SINGLE
        )
        (folder / "config.json").write_text(config)
        return folder

    return write


def shaped(shapes: dict[str, tuple[int, ...]]) -> Callable[[Path], Path]:
    return content(save({name: torch.ones(shape) for name, shape in shapes.items()}))


MISFITS: list[tuple[dict[str, tuple[int, ...]], str]] = [
    ({"a.A_log": (8, 4), "a.dt_proj.bias": (7,)}, "Mamba"),
    ({"a.A_log": (2**20, 1), "a.dt_proj.bias": (1, 2**19)}, "Mamba"),
    ({"a.A_log": (2**20, 1), "a.dt_bias": (1, 2**19)}, "Mamba-2"),
    ({"a.A_log": (3,), "a.dt_bias": (4,), "a.f_proj.weight": (1,)}, "Kimi Delta Attention"),
    ({"a.Lambda_re": (2**20, 1), "a.log_step": (1, 2**19)}, "S5"),
    ({"a.log_dt": (2,), "a.log_A_real": ()}, "S4D"),
    ({"m.lower_bounds": (), "m.layers.0.attn.f_proj.weight": (1,)}, "HGRN"),
    ({"m.lower_bounds": (2, 3), "m.layers.7.attn.f_proj.weight": (1,)}, "HGRN"),
    ({"a.ifgate_preact.bias": (3,)}, "xLSTM"),
    ({"a.recurrent_param": (4,), "a.recurrent_gate_bias": (2, 3)}, "RG-LRU"),
]
OUTSIDE, BROKEN = "must name files in the folder", "must be a whole .safetensors file"
HOSTILE = [
    *(
        (elsewhere(file), OUTSIDE)
        for file in ("../outside", "/etc/passwd", "link.safetensors", "folder/../../outside")
    ),
    (elsewhere("a\0b"), "must name files, got"),
    (elsewhere("model-9.safetensors"), "no such file"),
    (elsewhere("."), "got a folder"),
    (elsewhere("pipe"), "got a pipe or device"),
    (elsewhere("model-0.safetensors"), "as the index says, got none"),
    (index(lambda places: dict.fromkeys(places, 1)), "weight_map must say"),
    (index(lambda places: []), "weight_map must say"),
    (
        index(lambda places: {"model.embed.weight": next(iter(places.values()))}),
        "no decays are known",
    ),
    *((link(name), OUTSIDE) for name in (SINGLE, INDEX, "config.json")),
    (header({A_LOG: entry([4, 4], 64)}, 8), BROKEN),
    (header({A_LOG: entry([2**40, 2**40], 64)}, 64), BROKEN),
    (header({A_LOG: entry([4, 4], 64)}, 64, 2**62), BROKEN),
    (
        header({"a.nu_log": entry([4], 16, "I32")}, 16),
        "(F64, F32, F16, BF16, F8_E5M2, F8_E4M3), got I32 (4,)",
    ),
    (header({"a.nu_log": entry([0], 0)}, 0), "got F32 (0,)"),
    (large, "must hold at most 33,554,432 numbers, got 134,217,728"),
    (header({}, 0), "holds no tensors"),
    (header([1], 0), BROKEN),
    (content(b"ONNX", "x.onnx"), "nothing else is read"),
    *(
        (shaped(one), f"of {family}, got {next(iter(one))} {next(iter(one.values()))}")
        for one, family in MISFITS
    ),
    (configured("[]"), "must hold an object"),
    (configured("{"), "not readable as JSON"),
    (configured('{"time_step_limit": 3}'), "time_step_limit must be two numbers"),
    (configured('{"time_step_limit": [{"a": 1}, {}]}'), "time_step_limit must be two numbers"),
    (lambda folder: folder / "missing.pth", "no such file"),
    (
        lambda folder: content(b"{}", "pytorch_model.bin.index.json")(folder).parent,
        "weight_map must",
    ),
    (lambda folder: "hf:../../etc", "must be hf:OWNER/NAME"),
    (lambda folder: "hf:someone/something", "must be in the cache while https://"),
]


@pytest.mark.parametrize(("write", "message"), HOSTILE)
def test_a_file_that_lies(
    write: Callable[[Path], Path],
    message: str,
    tmp_path: Path,
    refused: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import huggingface_hub.constants

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    save_file(TENSORS, tmp_path / "outside")
    (tmp_path / "folder").mkdir()
    assert message in refused(inspect, write(tmp_path / "folder"))


class Bomb:
    """Unpickling it creates a file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mknod, (self.path,)


def mutated(random: Random, folder: Path, bomb: Bomb) -> Path:
    """A folder whose index or config.json has up to three strange values, or is another value
    altogether.
    """
    values: dict[str, Any] = json.loads(json.dumps({INDEX: INDEXED, "config.json": CONFIG}))
    file = random.choice(list(values))
    for _ in range(random.randint(1, 3)):
        inner = random.choice([values[file], values[file].get("text_config")])
        inner = inner if isinstance(inner, dict) else values[file]
        inner[random.choice([*inner, "time_step_limit", "lower_bound", "weight_map"])] = (
            random.choice(STRANGE)
        )
    if random.random() < 0.2:
        values[file] = random.choice(STRANGE)
    save_file(TENSORS, folder / SINGLE)
    for name, value in values.items():
        (folder / name).write_text(json.dumps(value))
    return folder


def pickled(random: Random, folder: Path, bomb: Bomb) -> Path:
    """A .pth of odd tensors, of no tensors, or with an object that executes something."""
    odd: list[Any] = [torch.zeros(size) for size in ((), (0,), (4,), (2, 2))]
    odd += [
        torch.zeros(4, dtype=kind)
        for kind in (torch.bfloat16, torch.int8, torch.complex64, torch.bool)
    ]
    odd += [torch.empty(4, device="meta"), torch.zeros(4).to_sparse(), torch.full((4,), torch.nan)]
    odd += [
        torch.zeros(1).expand(2**40),
        None,
        3,
        "x",
        [1.0],
        {},
        torch.nn.Parameter(torch.zeros(4)),
        bomb,
    ]
    state = {**TENSORS, random.choice([*TENSORS, "x"]): random.choice(odd)}
    with warnings.catch_warnings(action="ignore"):
        torch.save(
            random.choice([state, state, state, [state], bomb, {"a": state}]), folder / "x.pth"
        )
    return folder / "x.pth"


@pytest.mark.parametrize("write", [mutated, pickled])
def test_hostile_files_end_in_one_line(
    write: Callable[[Random, Path, Bomb], Path], tmp_path: Path
) -> None:
    """60 of each kind, some of which are read."""
    random, bomb, ends = Random(14), Bomb(str(tmp_path / "executed")), set()
    for case in range(60):
        (tmp_path / str(case)).mkdir()
        target = write(random, tmp_path / str(case), bomb)
        before = set(tmp_path.rglob("*"))
        try:
            result = inspected(str(target))
            assert render(result) + json.dumps(result.to_dict())
            ends.add("accepted")
        except cli.USER_ERRORS:
            ends.add("refused")
        assert set(tmp_path.rglob("*")) == before, "something was executed or left behind"
    assert ends == {"accepted", "refused"}


def test_the_bomb_works_and_a_plain_pickle_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.pth"
    path.write_bytes(pickle.dumps({"blocks.0.att.w0": Bomb(str(tmp_path / "executed"))}))
    with pytest.raises(ValueError, match="holds tensors only"):
        inspected(str(path))
    assert not (tmp_path / "executed").exists()
    pickle.loads(path.read_bytes())
    assert (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data[:-300], "got one that is cut off; copy or download it again"),
        (lambda data: b"", "got one that torch.save has not written"),
        (lambda data: b"hello", "got one that torch.save has not written"),
    ],
)
def test_a_pickle_that_is_none_says_what_it_is(
    change: Callable[[bytes], bytes], words: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.pth"
    torch.save(TENSORS, path)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ValueError, match=words):
        inspected(str(path))


@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
def test_complex_decays_are_refused_with_what_would_work(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"x.{suffix}"
    write = torch.save if suffix == "pth" else save_file
    write({"layers.0.decay": torch.ones(4, dtype=torch.complex64)}, path)
    with pytest.raises(ValueError, match=r"got .*64 .*; store the size of a complex decay"):
        plkernel.inspect(path, decays={"*.decay": "sigmoid"})


def test_only_complex_numbers_are_called_so(tmp_path: Path) -> None:
    """Not a value whose type begins with the same letter."""
    path = tmp_path / "x.pth"
    torch.save({"layers.0.decay": Counter("aab"), "layers.1.decay": torch.ones(4)}, path)
    with pytest.raises(ValueError, match=r"got Counter$"):
        plkernel.inspect(path, decays={"*.decay": "sigmoid"})


def test_safetensors_need_neither_torch_nor_transformers(
    without: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With numpy, scipy, safetensors, matplotlib and tyro alone; a .pth says that it needs
    torch.
    """
    save_file(TENSORS, tmp_path / SINGLE)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    torch.save(TENSORS, tmp_path / "x.pth")

    def act() -> None:
        hidden = {
            name: sys.modules.pop(name)
            for name in [*sys.modules]
            if name.partition(".")[0] == "matplotlib"
        }
        main = importlib.import_module("plkernel.common.cli").main
        command = importlib.import_module("plkernel.commands.inspect").command
        main(command, [".", "--compare", ".", "--json", "x.json"])
        assert "matplotlib" not in sys.modules
        sys.modules.update(hidden)
        main(command, [".", "--figure", "x.pdf"])
        main(command, ["x.pth"])

    monkeypatch.chdir(tmp_path)
    absent = (
        "torch",
        "numba",
        "triton",
        "datasets",
        "transformers",
        "pyarrow",
        "pydantic",
        "jinja2",
    )
    _, printed, errors = without(absent, act)
    assert "4 layers with decays, nemotron_h" in printed, errors
    assert (
        errors == "error: x.pth: torch must be installed to read this format, got none;"
        " pip install torch\n"
    )
    assert (tmp_path / "x.pdf").read_bytes().startswith(b"%PDF")
    layers = json.loads((tmp_path / "x.json").read_text())["layers"]
    expected = inspected(str(tmp_path)).to_dict()["layers"]
    assert [one["half_lives"] for one in layers] == [one["half_lives"] for one in expected]


@pytest.mark.parametrize(
    ("tensor", "got"),
    [
        (torch.ones(3).to_sparse(), "float32 (3,) of layout sparse_coo; save it with .to_dense()"),
        (torch.ones(3, device="meta"), "float32 (3,) on the meta device, which holds no numbers"),
        (torch.ones(3, dtype=torch.int8), "int8 (3,)"),
        ([1.0], "list"),
    ],
)
def test_a_tensor_that_is_not_read_is_told_as_what_it_is(
    tensor: Any, got: str, tmp_path: Path
) -> None:
    torch.save({"a.nu_log": tensor, "b": torch.ones(1)}, tmp_path / "x.pth")
    with pytest.raises(ValueError, match="must be a tensor of floating-point numbers") as told:
        inspected(str(tmp_path / "x.pth"))
    assert str(told.value).endswith(got)


def test_names_show_no_control_characters_in_python(tmp_path: Path) -> None:
    """Nor in a notebook, nor in an error."""
    path = tmp_path / "x.safetensors"
    save_file({"blocks.0.\x1b[31mssm.log_rate": torch.zeros(4)}, path)
    found = inspected(str(path))
    for text in (repr(found), str(found), found._repr_html_()):
        assert "\x1b" not in text
        assert "\\x1b[31mssm.log_rate" in text
    save_file({"\x1b[31mweight": torch.zeros(4)}, path)
    with pytest.raises(ValueError, match="no decays are known under names like") as told:
        inspected(str(path))
    assert "\x1b" not in str(told.value)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
@pytest.mark.parametrize("framework", ["pt", "numpy"])
def test_a_file_is_opened_under_a_name_that_is_no_utf8(framework: str, tmp_path: Path) -> None:
    """As a run is that goes on, or is looked at, in a folder of such a name."""
    folder = tmp_path / os.fsdecode(b"fold\xe9r \n")
    folder.mkdir()
    path = folder / SINGLE
    save_file(TENSORS, path)
    before = len(os.listdir("/proc/self/fd"))
    opened = open_safetensors(path, framework)
    assert len(os.listdir("/proc/self/fd")) == before
    assert np.allclose(opened.get_tensor(A_LOG), TENSORS[A_LOG])
    assert inspected(str(folder)).layers
