"""Checkpoints as others store them are read by name; hostile ones are one line, and nothing outside of them is read."""

import json
import os
import pickle
import struct
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from plkernel.commands.inspect import inspect
from plkernel.common import cli
from plkernel.memory.inspection import shown

A_LOG, BIAS = "backbone.layers.{}.mixer.A_log", "backbone.layers.{}.mixer.dt_proj.bias"
INDEX = "model.safetensors.index.json"


def mamba(layers: int = 2) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    names = [(A_LOG.format(layer), BIAS.format(layer)) for layer in range(layers)]
    return {
        name: torch.rand(shape, generator=generator) - 4
        for pair in names
        for name, shape in zip(pair, ((8, 4), (8,)), strict=True)
    }


def sharded(folder: Path, tensors: dict[str, Tensor], shards: int = 2) -> dict[str, str]:
    """A folder as on the hub, tensors dealt out to files in turn."""
    folder.mkdir(exist_ok=True)
    files = [f"model-{number + 1:05}-of-{shards:05}.safetensors" for number in range(shards)]
    places = {name: files[index % shards] for index, name in enumerate(tensors)}
    for file in files:
        save_file({name: values for name, values in tensors.items() if places[name] == file}, folder / file)
    write_index(folder, places)
    return places


def write_index(folder: Path, places: Any) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))


def rates(target: Path) -> list[list[float]]:
    return [layer.rates.ravel().tolist() for layer in shown(str(target)).layers]


def test_one_file_shards_and_a_pth_are_one_checkpoint(tmp_path: Path) -> None:
    tensors = mamba(3)
    save_file(tensors, tmp_path / "one.safetensors")
    torch.save(tensors, tmp_path / "one.pth")
    torch.save(tensors, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    sharded(tmp_path / "folder", tensors)
    first = rates(tmp_path / "one.safetensors")
    assert len(first) == 3
    assert rates(tmp_path / "one.pth") == rates(tmp_path / "old.pth") == rates(tmp_path / "folder") == first


def test_the_cache_of_the_hub_is_links_to_its_blobs(tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "models--a--b" / "snapshots" / "c0ffee", tmp_path / "models--a--b" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    save_file(mamba(), blobs / "beef")
    (snapshot / "model.safetensors").symlink_to("../../blobs/beef")
    assert len(rates(snapshot)) == 2


@pytest.mark.parametrize(
    ("version", "extra", "rate"),
    [
        ("RWKV-4", ("time_first",), lambda w: w.exp()),
        ("RWKV-5", ("ln_x.weight",), lambda w: w.exp()),
        ("RWKV-6", ("ln_x.weight", "time_decay_w1", "time_decay_w2"), lambda w: w.exp()),
        ("RWKV-7", ("ln_x.weight", "r_k"), lambda w: 0.6065306597126334 * w.sigmoid()),
    ],
)
def test_official_rwkv(version: str, extra: tuple[str, ...], rate: Callable[[Tensor], Tensor], tmp_path: Path) -> None:
    decays = [torch.linspace(-6, -1, 16) + layer for layer in range(2)]
    shape = {"RWKV-4": (16,), "RWKV-5": (2, 8)}.get(version, (1, 1, 16))
    name = "w0" if version == "RWKV-7" else "time_decay"
    state = {f"blocks.{layer}.att.{name}": decays[layer].reshape(shape).bfloat16() for layer in range(2)}
    state |= {f"blocks.{layer}.att.{one}": torch.ones(4) for layer in range(2) for one in extra}
    torch.save(state, tmp_path / "model.pth")
    found = shown(str(tmp_path / "model.pth"))
    assert [layer.reader.family for layer in found.layers] == [version, version]
    for layer, decay in zip(found.layers, decays, strict=True):
        assert layer.rates.ravel() == pytest.approx(rate(decay.bfloat16().double()).numpy(), rel=1e-9)


def refused(path: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """The one line that the command ends with."""
    with pytest.raises(SystemExit) as stop:
        cli.main(inspect, [str(path), *options])
    error = capsys.readouterr().err
    assert stop.value.code == 2, error
    assert error.count("\n") == 1
    return error


class Executed:
    """Its pickle creates the file `path` when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mknod, (str(self.path),)


def test_nothing_in_a_pth_is_executed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings(action="ignore"):
        torch.save({"blocks.0.att.w0": Executed(tmp_path / "executed")}, tmp_path / "zip.pth")
    (tmp_path / "plain.pth").write_bytes(pickle.dumps(Executed(tmp_path / "executed")))
    for name in ("zip.pth", "plain.pth"):
        assert "holds tensors only" in refused(tmp_path / name, capsys)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    "place", ["../outside.safetensors", "/etc/passwd", "link.safetensors", "folder/../../outside.safetensors", "a\0b"]
)
def test_an_index_that_leaves_the_folder(place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_file(mamba(), tmp_path / "outside.safetensors")
    sharded(tmp_path / "folder", mamba())
    (tmp_path / "folder" / "link.safetensors").symlink_to("../outside.safetensors")
    write_index(tmp_path / "folder", dict.fromkeys(mamba(), place))
    message = refused(tmp_path / "folder", capsys)
    assert "is outside of the folder" in message or "names no file" in message


@pytest.mark.parametrize("name", ["model.safetensors", INDEX, "config.json"])
def test_a_link_out_of_the_folder(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sharded(tmp_path / "folder", mamba())
    save_file(mamba(), tmp_path / "outside")
    if name != INDEX:
        (tmp_path / "folder" / INDEX).unlink()
        save_file(mamba(), tmp_path / "folder" / "model.safetensors")
    (tmp_path / "folder" / name).unlink(missing_ok=True)
    (tmp_path / "folder" / name).symlink_to("../outside")
    assert "is outside of the folder" in refused(tmp_path / "folder", capsys)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda places: dict.fromkeys(places, "model-9.safetensors"), "no such file"),
        (lambda places: dict.fromkeys(places, "."), "is a folder"),
        (lambda places: dict.fromkeys(places, "pipe"), "is a pipe or device"),
        (lambda places: dict.fromkeys(places, next(iter(places.values()))), "which the index says is there"),
        (lambda places: dict.fromkeys(places, 1), "must be a name, got a number"),
        (lambda places: [], "weight_map must say"),
        (lambda places: {"model.embed.weight": next(iter(places.values()))}, "no decays are known"),
    ],
)
def test_an_index_that_lies(
    change: Callable[[Any], Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = sharded(tmp_path / "folder", mamba())
    os.mkfifo(tmp_path / "folder" / "pipe")
    write_index(tmp_path / "folder", change(places))
    assert message in refused(tmp_path / "folder", capsys)


def with_header(path: Path, header: Any, body: bytes = b"", length: int | None = None) -> Path:
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + body)
    return path


def entry(shape: list[int], end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [0, end]}


@pytest.mark.parametrize(
    ("header", "body", "length", "message"),
    [
        ({A_LOG.format(0): entry([4, 4], 64)}, b"\0" * 8, None, "not a whole .safetensors file"),
        ({A_LOG.format(0): entry([2**40, 2**40], 64)}, b"\0" * 64, None, "not a whole .safetensors file"),
        ({A_LOG.format(0): entry([4, 4], 64)}, b"\0" * 64, 2**62, "not a whole .safetensors file"),
        ({"a.nu_log": entry([4], 16, "I32")}, b"\0" * 16, None, "expected a tensor of floating-point numbers"),
        ({"a.nu_log": entry([0], 0)}, b"", None, "at least one number"),
        ({}, b"", None, "holds no tensors"),
        ([1], b"", None, "not a whole .safetensors file"),
    ],
)
def test_a_header_that_lies(
    header: Any, body: bytes, length: int | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(with_header(tmp_path / "x.safetensors", header, body, length), capsys)


@pytest.mark.parametrize(
    ("shapes", "family"),
    [
        ({A_LOG.format(0): (8, 4), BIAS.format(0): (7,)}, "Mamba"),
        ({A_LOG.format(0): (2**20, 1), BIAS.format(0): (1, 2**19)}, "Mamba"),
        ({"a.A_log": (2**20, 1), "a.dt_bias": (1, 2**19)}, "Mamba-2"),
        ({"a.A_log": (3,), "a.dt_bias": (4,), "a.f_proj.weight": (1,)}, "Kimi Delta Attention"),
        ({"a.Lambda_re": (2**20, 1), "a.log_step": (1, 2**19)}, "S5"),
        ({"a.log_dt": (2,), "a.log_A_real": ()}, "S4D"),
        ({"m.lower_bounds": (), "m.layers.0.attn.f_proj.weight": (1,)}, "HGRN"),
        ({"m.lower_bounds": (2, 3), "m.layers.7.attn.f_proj.weight": (1,)}, "HGRN"),
        ({"a.ifgate_preact.bias": (3,)}, "xLSTM"),
        ({"a.recurrent_param": (4,), "a.recurrent_gate_bias": (2, 3)}, "RG-LRU"),
    ],
)
def test_shapes_that_do_not_fit_one_another(
    shapes: dict[str, tuple[int, ...]], family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_file({name: torch.ones(shape) for name, shape in shapes.items()}, tmp_path / "x.safetensors")
    assert f"{family} does not fit {next(iter(shapes))} {next(iter(shapes.values()))}" in refused(
        tmp_path / "x.safetensors", capsys
    )


@pytest.mark.parametrize("name", ["nu_log", "time_decay", "fgate.bias", "slope_rate"])
@pytest.mark.parametrize("shape", [(), (1,), (2, 3, 4)])
def test_shapes_that_nobody_has(name: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    save_file({f"layers.0.{name}": torch.ones(shape)}, tmp_path / "x.safetensors")
    inspect(tmp_path / "x.safetensors")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("[]", "expected an object"),
        ("{", "not readable as JSON"),
        ('{"time_step_limit": 3}', "time_step_limit must be two numbers"),
        ('{"time_step_limit": ["a", {}]}', "time_step_limit must be two numbers"),
    ],
)
def test_a_configuration_that_lies(
    config: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_file({"a.A_log": torch.zeros(4), "a.dt_bias": torch.zeros(4)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(config)
    assert message in refused(tmp_path, capsys)


def test_names_on_the_hub(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    assert "not in the cache, and https://" in refused(Path("hf:someone/something"), capsys)
    assert "expected hf:OWNER/NAME" in refused(Path("hf:../../etc"), capsys)
    assert "expected hf:OWNER/NAME" in refused(Path("hf:"), capsys)


SHARDS, LAYERS = 2, 32


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="peak memory is read from /proc")
def test_two_gigabytes_are_read_in_seconds_and_megabytes(tmp_path: Path) -> None:
    """Of a sparse checkpoint of 2 GB, by a process of its own, torch and all."""
    places = {}
    for shard in range(SHARDS):
        file, header, end, bodies = f"model-{shard}.safetensors", {}, 2**30, b""
        header["embedding.weight" if not shard else "head.weight"] = entry([2**28], end)
        for layer in range(shard, LAYERS, SHARDS):
            for name, shape in ((A_LOG, [4096, 16]), (BIAS, [4096])):
                size = 4 * 4096 * (16 if name == A_LOG else 1)
                header[name.format(layer)] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + size]}
                values = torch.linspace(-4, -3, size // 4).numpy().tobytes()
                end, bodies = end + size, bodies + values
        with_header(tmp_path / file, header)
        with (tmp_path / file).open("ab") as handle:
            handle.truncate(handle.tell() + 2**30)
        with (tmp_path / file).open("ab") as handle:
            handle.write(bodies)
        places |= dict.fromkeys(header, file)
    write_index(tmp_path, places)
    program = """if True:
        import sys, time
        from pathlib import Path
        start = time.monotonic()
        peak = lambda: next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
        import torch
        before = peak()
        from plkernel.commands.inspect import inspect
        inspect(Path(sys.argv[1]))
        print("used", time.monotonic() - start, before / 1024, peak() / 1024)
    """
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    assert f"{LAYERS} layers with decays" in done.stdout
    seconds, torch_alone, megabytes = map(float, done.stdout.split("used")[1].split())
    print(f"{seconds:.1f} s, {megabytes:.0f} MB, of which torch {torch_alone:.0f} MB")
    assert seconds < 10
    assert megabytes < max(300, torch_alone + 80)  # torch with GPU libraries takes more by itself
