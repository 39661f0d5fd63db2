"""Files that training leaves: weights are read, or the tool that converts them is named."""

import argparse
import json
import pickle
import struct
import subprocess
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from plkernel.commands.inspect import command as inspect
from plkernel.decays.folders import held_files
from plkernel.decays.inspection import inspected, is_other_software
from plkernel.decays.pickles import read_pickle
from plkernel.models.rwkv7 import RWKV7, RWKV7Config
from plkernel.probing.text_models import open_text_model
from plkernel.training.checkpoint import load_checkpoint, open_model, save_model

State = dict[str, Tensor]


def state(layers: int = 2) -> State:
    draw = torch.Generator().manual_seed(0)
    return {
        f"layers.{layer}.mixer.{name}": torch.randn(8, generator=draw) - shift
        for layer in range(layers)
        for name, shift in (("A_log", 0), ("dt_bias", 4))
    }


class Config:
    """An object of the training code, as omegaconf's."""

    def __init__(self) -> None:
        self.lr = 1e-3


def halves() -> list[State]:
    names = list(state())
    return [{name: state()[name] for name in part} for part in (names[:2], names[2:])]


STATE = state()
SAVED: dict[str, Any] = {
    "last.ckpt": {"epoch": 1, "state_dict": STATE, "hyper_parameters": {"lr": 1e-3}},
    "lightning.pt": {"state_dict": STATE, "hyper_parameters": argparse.Namespace(lr=1e-3)},
    "object.ckpt": {"state_dict": STATE, "config": Config(), "callbacks": {}},
    "loop.pt": {"model": STATE, "optimizer": {"state": {0: {"exp_avg": torch.zeros(3)}}}},
    "ordered.pth": {"model_state_dict": OrderedDict(STATE), "step": torch.zeros(1).item()},
    "beside a tensor.pt": {"model": STATE, "optimizer": {}, "train_state": torch.zeros(1)},
    "average.pt": {"model_ema": STATE, "epoch": 3},
    "mp_rank_00_model_states.pt": {"module": STATE, "ds_version": "0.17", "lr_scheduler": None},
    "model_optim_rng.pt": {
        "args": argparse.Namespace(tp=1),
        "model": STATE,
        "rng_state": [{"random": np.float64(1.0), "torch": torch.zeros(2)}],
    },
    "unnamed.pt": {"generator_weights": STATE, "optimizer_g": {"x": torch.zeros(1)}},
    "chunks.pt": {"model0": halves()[0], "model1": halves()[1], "iteration": 3},
    "deep.pt": {"model": {"language_model": {"encoder": STATE}}, "iteration": 3},
    "flat.bin": STATE,
    "params.pt": {"params": STATE, "step": 3},
    "nested.pt": {"checkpoint": {"model": {"state_dict": STATE}}},
    "best.pth.tar": {"state_dict": STATE, "epoch": 3},
    "model.pkl": STATE,
}


@pytest.mark.parametrize("name", SAVED)
def test_weights_among_other_values_are_read(name: str, tmp_path: Path) -> None:
    torch.save(STATE, tmp_path / "plain.pth")
    torch.save(SAVED[name], tmp_path / name)
    plain, found = inspected(str(tmp_path / "plain.pth")), inspected(str(tmp_path / name))
    assert len(found.layers) == len(plain.layers) == 2
    for one, other in zip(found.layers, plain.layers, strict=True):
        np.testing.assert_array_equal(one.rates, other.rates)


def test_a_short_name_and_shards_of_pickles_are_read(tmp_path: Path) -> None:
    save_file(STATE, tmp_path / "x.st")
    assert len(inspected(str(tmp_path / "x.st")).layers) == 2
    (tmp_path / "bins").mkdir()
    places = {}
    for number, part in enumerate(halves()):
        file = f"pytorch_model-{number}.bin"
        torch.save(part, tmp_path / "bins" / file)
        places |= dict.fromkeys(part, file)
    index = tmp_path / "bins" / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    assert is_other_software(tmp_path / "bins")
    assert len(inspected(str(tmp_path / "bins")).layers) == 2
    for outside in ("../outside.bin", "/etc/passwd"):
        index.write_text(json.dumps({"weight_map": dict.fromkeys(places, outside)}))
        with pytest.raises(ValueError, match="must name files in the folder"):
            inspected(str(tmp_path / "bins"))
    index.write_text(json.dumps({"weight_map": {**places, "y": file}}))
    with pytest.raises(ValueError, match="must have tensor y, as the index says"):
        inspected(str(tmp_path / "bins"))


class Runs:
    """Unpickling it calls `function`."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.called = function, arguments

    def __reduce__(self) -> Any:
        return self.called


@pytest.mark.parametrize("at", ["args", "model", "in model"])
def test_objects_beside_the_weights_are_not_executed(at: str, tmp_path: Path) -> None:
    """The file is read or refused; the program in it does not run."""
    mark = tmp_path / "executed"
    bomb = Runs(subprocess.check_call, ["touch", str(mark)])
    content: dict[str, Any] = {"model": dict(STATE), "args": argparse.Namespace()}
    if at == "in model":
        content["model"]["x"] = bomb
    else:
        content[at] = bomb
    torch.save(content, tmp_path / "x.pt")
    try:
        inspected(str(tmp_path / "x.pt"))
    except ValueError:
        assert at == "model"
    assert not mark.exists()
    torch.load(tmp_path / "x.pt", weights_only=False)
    assert mark.exists()


FOLDERS = {
    "DCP": (("__0_0.distcp", ".metadata"), "dcp_to_torch"),
    "DCP without its index": (("__0_0.distcp", "__1_0.distcp"), "dcp_to_torch"),
    "DeepSpeed": (("latest", "zero_to_fp32.py", "global_step10/x.pt"), "zero_to_fp32.py"),
    "a step of DeepSpeed": (
        ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"),
        "zero_to_fp32.py",
    ),
    "Megatron": (
        ("latest_checkpointed_iteration.txt", "iter_0000100/mp_rank_00/model_optim_rng.pt"),
        "tools/checkpoint/convert.py",
    ),
    "a step of Megatron": (("mp_rank_00/model_optim_rng.pt",), "tools/checkpoint/convert.py"),
    "a rank of Megatron": (("model_optim_rng.pt",), "model_optim_rng.pt"),
    "files of Lightning": (("last.ckpt", "epoch=3.ckpt"), "name a file, as epoch=3.ckpt"),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_the_command_that_converts_a_folder_is_named(
    name: str, tmp_path: Path, refused: Callable[..., str]
) -> None:
    files, words = FOLDERS[name]
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_bytes(b"")
    message = refused(inspect, tmp_path)
    assert words in message
    assert "folder of a run" not in message


@pytest.mark.parametrize("suffix", ["bin", "safetensors"])
def test_empty_tensors_are_those_of_the_third_stage_of_zero(suffix: str, tmp_path: Path) -> None:
    empty = {name: torch.empty(0) for name in STATE}
    path = tmp_path / f"x.{suffix}"
    if suffix == "bin":
        torch.save(empty, path)
    else:
        save_file({name: x.clone() for name, x in empty.items()}, path)
    with pytest.raises(ValueError, match="it is empty: stage 3 of ZeRO"):
        inspected(str(path))


def prepared(kind: int, marks: dict[str, Any]) -> tuple[State, State]:
    """A file as it is published, and as ChatRWKV prepares it for a strategy."""
    raw: dict[str, Any] = {}
    done: dict[str, Any] = dict(marks)
    for layer in range(2):
        w = torch.linspace(-6, -1 + layer, 16)
        at = f"blocks.{layer}.att"
        beside = {4: {}, 5: {"ln_x.weight": w}, 6: {"ln_x.weight": w, "time_decay_w1": w}}[kind]
        for name, tensor in beside.items():
            raw[f"{at}.{name}"] = done[f"{at}.{name}"] = tensor
        decay = {4: -torch.exp(w), 5: torch.exp(-torch.exp(w)), 6: w}[kind]
        raw[f"{at}.time_decay"] = w
        done[f"{at}.time_decay"] = decay.reshape(2, 8, 1)
    return raw, done


@pytest.mark.parametrize("kind", [4, 5, 6])
@pytest.mark.parametrize(
    "marks",
    [{"_strategy": "cpu fp32", "_version": "0.7"}, {"_strategy": "cuda"}, {"_version": "1"}],
)
def test_a_file_prepared_for_a_strategy_is_read_as_what_it_says(
    kind: int, marks: dict[str, Any], tmp_path: Path
) -> None:
    """To the rounding of a decay near 1 in float32: 6e-8 of a rate of 0.0025."""
    files = []
    for number, content in enumerate(prepared(kind, marks)):
        torch.save(content, tmp_path / f"{number}.pth")
        files.append(inspected(str(tmp_path / f"{number}.pth")))
    for one, other in zip(files[0].layers, files[1].layers, strict=True):
        assert one.family == other.family
        np.testing.assert_allclose(other.rates.ravel(), one.rates.ravel(), rtol=1e-4)
    assert not [one for one in files[1].findings if one.severity == "wrong"]


def test_a_file_that_says_it_is_prepared_and_is_not_is_refused(tmp_path: Path) -> None:
    raw, _ = prepared(5, {})
    torch.save({**raw, "_strategy": "cpu"}, tmp_path / "x.pth")
    with pytest.raises(ValueError, match=r"time_decay: must be exp\(-exp\(w\)\)"):
        inspected(str(tmp_path / "x.pth"))


@pytest.mark.parametrize("dimensions", [9, 40, 63, 70])
def test_tensors_of_many_dimensions_are_refused(dimensions: int, tmp_path: Path) -> None:
    entry = {"dtype": "F32", "shape": [1] * (dimensions - 1) + [4], "data_offsets": [0, 16]}
    text = json.dumps({"l.nu_log": entry}).encode()
    values = np.linspace(0.1, 1, 4).astype("<f4").tobytes()
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + values)
    with pytest.raises(ValueError, match=f"l.nu_log must be .*, got {dimensions}"):
        inspected(str(tmp_path / "x.safetensors"))


@pytest.mark.parametrize("name", ["x.safetensors", "x.pth", "x.st", "x/model.safetensors"])
def test_a_folder_in_place_of_a_file(
    name: str, tmp_path: Path, refused: Callable[..., str]
) -> None:
    (tmp_path / name).mkdir(parents=True)
    message = refused(inspect, tmp_path / name.partition("/")[0])
    assert "holds none of" in message or "got a folder" in message


def test_the_checkpoint_of_a_run_is_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be a regular file, got a folder"):
        load_checkpoint(tmp_path, torch.nn.Linear(1, 1))


def rezipped(path: Path, change: Callable[[str, bytes], bytes], kind: int) -> None:
    """The same file with other parts, or compressed."""
    with zipfile.ZipFile(path) as old:
        parts = {one.filename: old.read(one) for one in old.infolist()}
    with zipfile.ZipFile(path, "w", kind) as new:
        for name, content in parts.items():
            new.writestr(name, change(name, content))


def test_a_file_that_unpacks_to_much_more_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.pth"
    torch.save(STATE, path)
    rezipped(
        path,
        lambda name, content: bytes(2**27) if name.endswith("/data/0") else content,
        zipfile.ZIP_DEFLATED,
    )
    assert path.stat().st_size < 2**20
    with pytest.raises(ValueError, match=r"must unpack to .*, got 134,\d+,\d+"):
        read_pickle(path)


def test_a_large_pickle_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.pth"
    torch.save(STATE, path)
    rezipped(
        path,
        lambda name, content: content + bytes(2**26) if name.endswith(".pkl") else content,
        zipfile.ZIP_STORED,
    )
    with pytest.raises(ValueError, match="its pickle must have"):
        read_pickle(path)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_call_for_memory_is_refused(zipped: bool, tmp_path: Path) -> None:
    content = {**STATE, "x": Runs(bytearray, 2**20)}
    path = tmp_path / "x.pth"
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(ValueError, match="any amount of memory"):
        read_pickle(path)
    path.write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(ValueError, match="any amount of memory"):
        read_pickle(path)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json"])
def test_large_text_is_refused_before_it_is_read(name: str, tmp_path: Path) -> None:
    save_file(STATE, tmp_path / "model.safetensors")
    with (tmp_path / name).open("wb") as handle:
        handle.truncate(2**31)
    with pytest.raises(ValueError, match=f"{name}: must have at most .* bytes, got 2,147,483,648"):
        inspected(str(tmp_path))


LARGE: dict[str, dict[str, Any]] = {
    "layers must be at most 10,000, got 10000000": {"num_hidden_layers": 10_000_000},
    "n_layer must be at most 10,000": {"n_layer": 1e9},
    "num_layers must be at most 10,000": {"text_config": {"num_layers": 20_000}},
    "depth must be at most 10,000": {"decoder": [{"depth": 10**7}]},
    "hidden_size must be at most 16,777,216, got 1000000000": {"hidden_size": 10**9},
    "vocab_size must be at most": {"vocab_size": 10**9},
    "n_inner must be at most": {"n_inner": 10**18},
    "d_state must be at most": {"ssm_cfg": {"d_state": 10**9}},
    "num_heads must be at most 65,536, got 1000000": {"num_heads": 10**6},
    "n_routed_experts must be at most": {"n_routed_experts": 10**6},
    "layer_types must have at most 10,000 entries": {"layer_types": ["mamba"] * 20_000},
    "pattern must have at most 10,000 entries": {"hybrid_override_pattern": "M" * 20_000},
}


@pytest.mark.parametrize("message", LARGE)
def test_sizes_that_no_model_has_are_refused(message: str, tmp_path: Path) -> None:
    save_file(STATE, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(LARGE[message]))
    with pytest.raises(ValueError, match=message):
        inspected(str(tmp_path))


def test_the_size_of_the_corpus_of_a_run_is_no_size_of_its_model(tmp_path: Path) -> None:
    save_file(STATE, tmp_path / "model.safetensors")
    run = {"corpus": {"name": "packages:torch", "size": 24_000_000}, "train": {"batch_size": 2**25}}
    (tmp_path / "config.json").write_text(json.dumps(run))
    assert inspected(str(tmp_path)).layers
    (tmp_path / "config.json").write_text(json.dumps({**run, "model": {"dim": 2**25}}))
    with pytest.raises(ValueError, match="dim must be at most 16,777,216"):
        inspected(str(tmp_path))


LARGER: dict[str, tuple[dict[str, Any], str]] = {
    "layers": ({"num_hidden_layers": 5000}, "at most the 2 layers that have tensors, got 5000"),
    "width": ({"hidden_size": 2**20}, "that all tensors together hold, got 1048576"),
    "vocabulary": ({"vocab_size": 10**6}, "that all tensors together hold, got 1000000"),
    "many widths": ({"hidden_size": 2048}, "must describe a model of .* parameters"),
    "a rank": ({"time_step_rank": 10**9}, "must describe a model of .* parameters|must be at most"),
    "absurd": ({"num_hidden_layers": 10**7}, "must be at most 10,000, got 10000000"),
}


@pytest.mark.parametrize("name", LARGER)
def test_no_model_is_built_that_is_larger_than_its_file(name: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 256, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4}
    model = transformers.MambaForCausalLM(transformers.MambaConfig(**sizes))
    model.save_pretrained(tmp_path)
    assert open_text_model(tmp_path, torch.device("cpu")).unit == "byte"
    settings, message = LARGER[name]
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | settings))
    with pytest.raises(ValueError, match=message):
        open_text_model(tmp_path, torch.device("cpu"))


def test_a_model_without_some_of_its_tensors_is_not_run(tmp_path: Path) -> None:
    """transformers would draw them."""
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 256, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4}
    transformers.MambaForCausalLM(transformers.MambaConfig(**sizes)).save_pretrained(tmp_path)
    held = load_file(tmp_path / "model.safetensors")
    del held["backbone.layers.1.mixer.D"]
    save_file(held, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"not in its file: backbone\.layers\.1\.mixer\.D"):
        open_text_model(tmp_path, torch.device("cpu"))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("layers", 10**7, "layers must be at most 10,000"),
        ("layers", 9000, "layers must be at most the 2 layers that have tensors, got 9000"),
        ("dim", 10**9, "dim must be at most"),
        ("feed_forward", 2**14, "must describe a model of .* parameters"),
    ],
)
def test_no_model_of_plkernel_is_built_that_is_larger_than_its_file(
    name: str, value: int, message: str, tmp_path: Path
) -> None:
    save_model(tmp_path, RWKV7(RWKV7Config(16, 2, head_size=8)), "a test")
    config = json.loads((tmp_path / "config.json").read_text())
    config["rwkv7"][name] = value
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=message):
        open_model(tmp_path)


def test_tensors_that_are_larger_than_their_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.pth"
    torch.save({"layers.0.mixer.A_log": torch.zeros(1).expand(2**26)}, path)
    with pytest.raises(ValueError, match=r"bytes more than it holds, got 268,435,452"):
        inspected(str(path))


def test_no_model_is_built_of_other_layers_than_the_file_has(
    tmp_path: Path, refused: Callable[..., str]
) -> None:
    save_file(STATE, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"num_hidden_layers": 5000}))
    message = refused(inspect, tmp_path, "--text", __file__)
    assert "says 5000 layers, and there are tensors of 2" in message


PARTS = {
    "tensor parallel": ("mp_rank_00_model_states.pt", "mp_rank_01_model_states.pt"),
    "pipeline": ("layer_03-model_00-model_states.pt", "layer_03-model_01-model_states.pt"),
    "ZeRO": (
        "zero_pp_rank_0_mp_rank_00_model_states.pt",
        "zero_pp_rank_1_mp_rank_00_model_states.pt",
    ),
    "FSDP": ("model_world_size_2_rank_0.pt", "model_world_size_2_rank_1.pt"),
    "consolidated": ("consolidated.00.pth", "consolidated.01.pth"),
    "listed by an index": ("pytorch_model-00001-of-00002.bin",),
}


@pytest.mark.parametrize("name", PARTS)
def test_one_part_of_several_is_said_to_be_one(name: str, tmp_path: Path) -> None:
    for part in PARTS[name]:
        torch.save(STATE, tmp_path / part)
    with pytest.raises(ValueError, match="is one part of 2"):
        inspected(str(tmp_path / PARTS[name][0]))


def test_the_only_part_is_the_whole(tmp_path: Path) -> None:
    for name in ("mp_rank_00_model_states.pt", "consolidated.00.pth", "model-00001-of-00001.bin"):
        torch.save(STATE, tmp_path / name)
        assert len(inspected(str(tmp_path / name)).layers) == 2


def test_a_kernel_that_is_unknown_leaves_a_gap(tmp_path: Path) -> None:
    broken = STATE | {"layers.1.mixer.A_log": torch.full((8,), np.nan)}
    torch.save(broken, tmp_path / "model.pt")
    kernels = inspected(str(tmp_path / "model.pt")).memory.kernels[0]
    assert np.isfinite(kernels[0]).all()
    assert np.isnan(kernels[1]).all()


@pytest.mark.parametrize("start", [b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"])
@pytest.mark.parametrize("name", ["model.safetensors", "x.pth", "x.gguf"])
def test_a_pointer_of_git_lfs_is_told(start: bytes, name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(start)
    with pytest.raises(ValueError, match=r"got a pointer of Git LFS.*git lfs pull fetches"):
        inspected(str(tmp_path / name))
    (tmp_path / name).write_bytes(b"<!DOCTYPE html><html><body>404</body></html>")
    with pytest.raises(ValueError, match="got a web page"):
        inspected(str(tmp_path / name))


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("weights.npz", "MLX .* save_safetensors"),
        ("flax_model.msgpack", "from_flax=True"),
        ("tf_model.h5", "from_tf=True"),
        ("model.nemo", "unpack it with tar"),
    ],
)
def test_formats_of_other_software_are_told_how_to_convert(
    name: str, hint: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(b"x" * 100)
    with pytest.raises(ValueError, match=f"nothing else is read; .*{hint}"):
        inspected(str(tmp_path / name))


def test_a_folder_names_what_stands_one_folder_below(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-100").mkdir()
    save_file(STATE, tmp_path / "checkpoint-100/model.safetensors")
    with pytest.raises(ValueError, match=r"name a file, as checkpoint-100/model\.safetensors"):
        inspected(str(tmp_path))
    (tmp_path / "manifest.ocdbt").write_bytes(b"x")
    with pytest.raises(ValueError, match="is a checkpoint of Orbax"):
        inspected(str(tmp_path))


@pytest.mark.parametrize(
    ("save", "name"),
    [(save_file, "model-{}-of-00002.safetensors"), (torch.save, "pytorch_model-{}-of-00002.bin")],
)
def test_all_parts_are_read_without_their_index(
    save: Callable[..., None], name: str, tmp_path: Path
) -> None:
    """Whichever is missing is named for the folder and for what is there, until all are there."""
    files = [tmp_path / name.format(number) for number in ("00001", "00002")]
    for part, file, other in zip(halves(), files, files[::-1], strict=True):
        save(part, file)
        if not other.exists():
            told = f"got 1; download {other.name} too"
            with pytest.raises(ValueError, match=f"must hold all 2 parts of a model, {told}"):
                inspected(str(tmp_path))
            with pytest.raises(ValueError, match=f"download {other.name} too, and name"):
                inspected(str(file))
    assert len(inspected(str(tmp_path)).layers) == 2
    with pytest.raises(ValueError, match=f"name different tensors; name {tmp_path}$"):
        inspected(str(files[0]))


def test_parts_of_two_formats_and_of_many_files(tmp_path: Path) -> None:
    for number, part in enumerate(halves(), start=1):
        torch.save(part, tmp_path / f"pytorch_model-{number}-of-2.bin")
        save_file(part, tmp_path / f"model-0000{number}-of-00900.safetensors")
    assert len(inspected(str(tmp_path)).layers) == 2
    (tmp_path / "pytorch_model-1-of-2.bin").unlink()
    told = "got 2; download model-00003-of-00900.safetensors, .*00005-of-.* and 895 more too"
    with pytest.raises(ValueError, match=f"must hold all 900 parts of a model, {told}"):
        inspected(str(tmp_path))
    torch.save(STATE, tmp_path / "other-1-of-2.pt")
    with pytest.raises(ValueError, match=r"is one part of 2, .*; join them, and name the whole"):
        inspected(str(tmp_path / "other-1-of-2.pt"))


def test_of_two_whole_models_in_parts_none_is_read(tmp_path: Path) -> None:
    for number, part in enumerate(halves(), start=1):
        for head in ("ema", "model"):
            save_file(part, tmp_path / f"{head}-0000{number}-of-00002.safetensors")
    told = r"must hold the parts of one model, got 2 \(ema-\*, model-\*\); move one elsewhere"
    with pytest.raises(ValueError, match=told):
        inspected(str(tmp_path))


def test_parts_of_something_else_beside_weights_are_not_asked_for(tmp_path: Path) -> None:
    save_file(STATE, tmp_path / "foo.safetensors")
    torch.save(STATE, tmp_path / "training_args-00001-of-00002.bin")
    with pytest.raises(ValueError, match=r"or name a file, as foo.safetensors"):
        inspected(str(tmp_path))


def test_the_index_of_a_folder_hints_at_the_folder(tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"a": "b.safetensors"}}')
    with pytest.raises(ValueError, match=f"got an index of other files; name {tmp_path}$"):
        inspected(str(index))


@pytest.mark.parametrize("limits", [[1.0, 0.1], [float("nan"), 1.0]])
def test_limits_that_no_step_can_keep_are_told(limits: list[float], tmp_path: Path) -> None:
    save_file(STATE, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"time_step_limit": limits}))
    with pytest.raises(ValueError, match="time_step_limit must ascend, got"):
        inspected(str(tmp_path))


def test_a_text_named_bin_is_no_file_with_weights(tmp_path: Path) -> None:
    """Corpora are cached so; zips, pickles and pointers to them may be weights."""
    (tmp_path / "stdlib-0123.bin").write_bytes(b"import os\n" * 9)
    assert held_files(tmp_path) == []
    assert not is_other_software(tmp_path)
    torch.save({"a": torch.zeros(2)}, tmp_path / "weights.bin")
    (tmp_path / "pointer.bin").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    (tmp_path / "empty.bin").touch()
    assert held_files(tmp_path) == ["empty.bin", "pointer.bin", "weights.bin"]
