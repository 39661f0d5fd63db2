"""Checkpoints of llama.cpp: the same decays as in the original, conversions that went wrong, and
files that lie.
"""

import re
import struct
import warnings
from collections.abc import Callable
from pathlib import Path
from random import Random

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import plkernel
from plkernel.commands.inspect import command as inspect
from plkernel.decays.inspection import inspected, of_checkpoint
from plkernel.decays.rates import known_layers
from plkernel.decays.tensors import open_checkpoint

State = dict[str, Tensor]
Write = Callable[[Tensor], Tensor]
LAYERS, HEADS, STATES = 3, 16, 4


def right(a_log: Tensor) -> Tensor:
    """How llama.cpp stores A_log."""
    return -a_log.exp()


def drawn(*shape: int, low: float, high: float, seed: int) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return low + (high - low) * torch.rand(*shape, generator=draw)


def mamba(seed: int) -> tuple[State, State]:
    """A Mamba of transformers, and the same as llama.cpp names it before its A is transformed."""
    a_log = drawn(HEADS, STATES, low=0.0, high=2.7, seed=seed)
    bias = drawn(HEADS, low=-6.0, high=-3.0, seed=seed + 1)
    original = {"mixer.A_log": a_log, "mixer.dt_proj.bias": bias}
    return original, {"ssm_a": a_log, "ssm_dt.bias": bias, "ssm_x.weight": torch.ones(2, 2)}


def mamba2(seed: int) -> tuple[State, State]:
    """llama.cpp adds a dimension to A."""
    a_log = drawn(HEADS, low=0.0, high=2.7, seed=seed)
    bias = drawn(HEADS, low=-6.0, high=-3.0, seed=seed + 1)
    original = {"mixer.A_log": a_log, "mixer.dt_bias": bias}
    return original, {"ssm_a": a_log[:, None], "ssm_dt.bias": bias}


def delta_net(seed: int) -> tuple[State, State]:
    original, converted = mamba2(seed)
    matrix = torch.ones(2, 2)
    named = {name.replace("mixer", "linear_attn"): tensor for name, tensor in original.items()}
    converted["ssm_a"] = converted["ssm_a"][:, 0]
    return named | {"linear_attn.in_proj_ba.weight": matrix}, converted | {"ssm_ba.weight": matrix}


def kimi(seed: int) -> tuple[State, State]:
    a_log = drawn(HEADS, low=0.0, high=2.7, seed=seed)
    bias = drawn(HEADS * STATES, low=-6.0, high=-3.0, seed=seed + 1)
    matrix = torch.ones(2, 2)
    original = {"attn.A_log": a_log.reshape(1, 1, HEADS, 1), "attn.dt_bias": bias}
    converted = {"ssm_a": a_log.reshape(1, HEADS), "ssm_dt.bias": bias, "ssm_f_a.weight": matrix}
    return original | {"attn.f_a_proj.weight": matrix}, converted


def rwkv6(seed: int) -> tuple[State, State]:
    decay = drawn(HEADS, low=-6.0, high=-1.0, seed=seed)
    matrix = torch.ones(2, 2)
    original = {"att.time_decay": decay.reshape(1, 1, HEADS), "att.time_decay_w1": matrix}
    return original, {"time_mix_decay.weight": decay, "time_mix_decay_w1.weight": matrix}


def rwkv7(seed: int) -> tuple[State, State]:
    decay = drawn(HEADS, low=-6.0, high=-1.0, seed=seed)
    ones = torch.ones(2, 2)
    original = {"att.w0": decay.reshape(1, 1, HEADS), "att.r_k": ones}
    return original, {"time_mix_w0.weight": decay, "time_mix_r_k.weight": ones}


MODELS = {
    "Mamba": ("mamba", mamba),
    "Mamba-2": ("mamba2", mamba2),
    "gated delta net": ("qwen3next", delta_net),
    "Kimi Delta Attention": ("kimi-linear", kimi),
    "RWKV-6": ("rwkv6", rwkv6),
    "RWKV-7": ("rwkv7", rwkv7),
}


def write(path: Path, architecture: str, tensors: State, **counts: int) -> Path:
    """A file by the writer of the package, with a vocabulary in its metadata."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_token_list([f"token {index}" for index in range(50)])
    writer.add_token_scores([0.5] * 50)
    writer.add_context_length(2048)
    for name, count in counts.items():
        writer.add_uint32(f"{architecture}.{name.replace('__', '.')}", count)
    for name, tensor in tensors.items():
        if tensor.dtype is torch.bfloat16:
            kind = gguf.GGMLQuantizationType.BF16
            data = tensor.view(torch.uint8).numpy()
            writer.add_tensor(name, data, raw_dtype=kind)
        else:
            writer.add_tensor(name, np.ascontiguousarray(tensor.numpy()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def pair(
    folder: Path, family: str, stored: Write = right, dtype: torch.dtype = torch.float32
) -> tuple[Path, Path]:
    """An original in .safetensors, and what llama.cpp's converter makes of it, or another one."""
    architecture, layer = MODELS[family]
    original: State = {}
    converted: State = {}
    for index in range(LAYERS):
        before, after = layer(10 * index)
        for name, tensor in before.items():
            original[f"model.layers.{index}.{name}"] = tensor.to(dtype).contiguous()
        for name, tensor in after.items():
            value = tensor.to(dtype).float()
            converted[f"blk.{index}.{name}"] = stored(value) if name == "ssm_a" else value
    save_file(original, folder / "original.safetensors")
    return folder / "original.safetensors", write(folder / "model.gguf", architecture, converted)


def compared(now: Path, before: Path) -> list[tuple[str, str, str]]:
    """Findings that are wrong, by name, tensor and words."""
    _, values, _, _ = of_checkpoint(now, before)
    return [
        (one["name"], one["tensor"], one["seen"])
        for one in values["findings"]
        if one["severity"] == "wrong"
    ]


@pytest.mark.parametrize("family", MODELS)
def test_a_conversion_has_the_decays_of_the_original(family: str, tmp_path: Path) -> None:
    """To the rounding of -exp(A_log) in float32, and nothing in it is wrong."""
    before, now = pair(tmp_path, family)
    old, new = inspected(str(before)), inspected(str(now))
    assert [layer.family.name for layer in new.layers] == [family] * LAYERS
    assert [layer.number for layer in new.layers] == list(range(LAYERS))
    for one, other in zip(old.layers, new.layers, strict=True):
        assert other.rates.ravel() == pytest.approx(one.rates.ravel(), rel=2.0**-22)
    assert compared(now, before) == []
    assert [one for one in new.findings if one.severity == "wrong"] == []


def test_an_original_in_bfloat16_is_compared_too(tmp_path: Path) -> None:
    before, now = pair(tmp_path, "Mamba-2", dtype=torch.bfloat16)
    assert [one for one in compared(now, before) if one[0] != "dtype"] == []
    before, now = pair(tmp_path, "Mamba-2", lambda x: x.exp(), torch.bfloat16)
    assert ("sign", "blk.0.ssm_a") in [one[:2] for one in compared(now, before)]


WRONG: dict[str, tuple[Write, str]] = {
    "sign": (lambda x: x.exp(), "is exp(A_log) of the numbers before, not -exp(A_log): the sign"),
    "twice": (lambda x: -(-x.exp()).exp(), "is -exp(-exp(A_log)) of the numbers before, not"),
    "not at all": (lambda x: x, "is A_log of the numbers before, not -exp(A_log): -exp was not"),
    "negated": (lambda x: -x, "is -(A_log) of the numbers before, not -exp(A_log)"),
    "of minus": (lambda x: -(-x).exp(), "is -exp(-(A_log)) of the numbers before, not"),
}


@pytest.mark.parametrize("family", ["Mamba", "Mamba-2", "gated delta net", "Kimi Delta Attention"])
@pytest.mark.parametrize("fault", WRONG)
def test_beside_the_original_a_wrong_conversion_is_named(
    fault: str, family: str, tmp_path: Path
) -> None:
    stored, words = WRONG[fault]
    before, now = pair(tmp_path, family, stored)
    found = [one for one in compared(now, before) if one[2].startswith(words)]
    assert [one[:2] for one in found] == [
        ("another form", f"blk.{index}.ssm_a") for index in range(LAYERS)
    ]


def test_without_the_original_a_sign_is_seen_and_an_exponential_taken_twice(
    tmp_path: Path,
) -> None:
    _, now = pair(tmp_path, "Mamba-2", WRONG["sign"][0])
    seen = [one for one in inspected(str(now)).findings if one.name == "sign"]
    assert [one.seen for one in seen] == [
        "16 of 16 numbers are above 0, which -exp(A_log) is not: they grow"
    ] * LAYERS
    _, now = pair(tmp_path, "Mamba-2", WRONG["twice"][0])
    [one] = [one for one in inspected(str(now)).findings if one.name == "transformed"]
    numbers = r"the logarithms of minus its numbers, -14\.\d to -1\.\d+,"  # -exp(2.7) to -exp(0)
    assert re.search(rf"{numbers} look like -exp\(A_log\)$", one.seen)


def test_the_way_back_is_compared_too(tmp_path: Path) -> None:
    """A .safetensors written from a .gguf, as it stands there and right."""
    original, now = pair(tmp_path, "Mamba-2")
    tensors = {}
    for index in range(LAYERS):
        before, _ = mamba2(10 * index)
        tensors |= {f"model.layers.{index}.{name}": one for name, one in before.items()}
    assert compared(original, now) == []
    tensors = {name: right(one) if "A_log" in name else one for name, one in tensors.items()}
    save_file(tensors, tmp_path / "back.safetensors")
    found = compared(tmp_path / "back.safetensors", now)
    words = [seen for name, _, seen in found if name == "another form"]
    assert words[0] == ("is -exp(A_log) of the numbers before, not A_log: -exp was not taken back")


@pytest.mark.parametrize(
    ("role", "stored", "words"),
    [
        ("mixer.dt_bias", torch.nn.functional.softplus, "is softplus(dt_bias) of the numbers"),
        ("mixer.A_log", torch.log, "is log(A_log) of the numbers before, not A_log"),
    ],
)
def test_other_forms_between_two_files_of_one_kind(
    role: str, stored: Write, words: str, tmp_path: Path
) -> None:
    original, _ = mamba2(0)
    original["mixer.A_log"] += 0.1
    changed = {**original, role: stored(original[role])}
    for name, tensors in (("before", original), ("now", changed)):
        layered = {f"layers.0.{key}": tensor.contiguous() for key, tensor in tensors.items()}
        save_file(layered, tmp_path / f"{name}.safetensors")
    found = compared(tmp_path / "now.safetensors", tmp_path / "before.safetensors")
    assert [one[2][: len(words)] for one in found if one[0] == "another form"] == [words]


def test_heads_in_the_order_of_ggml_are_brought_back(tmp_path: Path) -> None:
    """Of Qwen3.5 heads stand by value within key in the original, by key within value there."""
    keys, heads = 4, HEADS
    original, converted = {}, {}
    for index in range(LAYERS):
        before, after = delta_net(10 * index)
        original |= {f"model.layers.{index}.{name}": one for name, one in before.items()}
        after["ssm_beta.weight"] = after.pop("ssm_ba.weight")
        for name, one in after.items():
            tiled = one.reshape(keys, heads // keys).T.reshape(-1) if one.ndim == 1 else one
            converted[f"blk.{index}.{name}"] = right(tiled) if name == "ssm_a" else tiled
    save_file(original, tmp_path / "original.safetensors")
    counts = {"ssm__group_count": keys, "ssm__time_step_rank": heads}
    now = write(tmp_path / "tiled.gguf", "qwen35", converted, **counts)
    assert compared(now, tmp_path / "original.safetensors") == []
    other = write(tmp_path / "other.gguf", "qwen3next", converted, **counts)
    found = {one[0] for one in compared(other, tmp_path / "original.safetensors")}
    assert found & {"another order", "initialised again"}


def single(folder: Path, architecture: str, layer: State) -> Path:
    """A file of one layer, by the names in it."""
    named = {f"blk.0.{name}": tensor for name, tensor in layer.items()}
    return write(folder / "single.gguf", architecture, named)


def test_numbers_near_another_form_are_not_called_so(tmp_path: Path) -> None:
    """One part in 10,000 is far more than float32 leaves of an exponential."""
    before, now = pair(tmp_path, "Mamba", lambda x: x.exp() * (1 + 1e-4))
    assert {one[0] for one in compared(now, before)} == {"sign"}
    before, now = pair(tmp_path, "Mamba", lambda x: -x.exp() * (1 + 1e-4))
    assert compared(now, before) == []


def test_an_official_start_is_seen_through_the_dimension_of_llama_cpp(tmp_path: Path) -> None:
    counted = torch.arange(1.0, HEADS + 1)
    layer = {"ssm_a": -counted[:, None], "ssm_dt.bias": torch.linspace(-6.0, -3.0, HEADS)}
    found = inspected(str(single(tmp_path, "mamba2", layer))).findings
    assert ("initialisation", "blk.0.ssm_a") in [one[:2] for one in found]


def test_one_number_of_a_head_beside_the_map_of_a_mamba(tmp_path: Path) -> None:
    """As PLaMo 2 has them."""
    _, layer = mamba2(0)
    layer = {**layer, "ssm_a": right(layer["ssm_a"][:, 0]), "ssm_x.weight": torch.ones(2, 2)}
    [one] = inspected(str(single(tmp_path, "plamo2", layer))).layers
    steps = np.logaddexp(0, layer["ssm_dt.bias"].double().numpy())
    expected = -layer["ssm_a"].double().numpy() * steps
    assert one.rates == pytest.approx(expected, rel=1e-12)


def test_decays_of_rwkv_in_another_form(tmp_path: Path) -> None:
    _, layer = rwkv6(0)
    layer["time_mix_decay.weight"] = (-layer["time_mix_decay.weight"].exp()).exp()
    [one] = [
        one
        for one in inspected(str(single(tmp_path, "rwkv6", layer))).findings
        if one.name == "transformed"
    ]
    assert one.seen.endswith("look like exp(-exp(time_decay))")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_numbers_of_every_type(dtype: torch.dtype, tmp_path: Path) -> None:
    values = torch.tensor([-4.25, -3.0, -2.5]).to(dtype)
    path = write(tmp_path / "x.gguf", "rwkv7", {"blk.0.time_mix_w0.weight": values})
    stored = open_checkpoint(str(path)).read("blk.0.time_mix_w0.weight")
    assert stored.values.tolist() == values.tolist()
    assert stored.dtype == str(dtype).removeprefix("torch.")


KINDS = (gguf.MODEL_TENSOR.SSM_A, gguf.MODEL_TENSOR.TIME_MIX_DECAY, gguf.MODEL_TENSOR.TIME_MIX_W0)
ARCHITECTURES = [kind for kind, held in gguf.MODEL_TENSORS.items() if set(KINDS) & set(held)]


@pytest.mark.parametrize("kind", ARCHITECTURES, ids=lambda kind: kind.name.lower())
def test_every_architecture_of_llama_cpp_with_decays_is_read(
    kind: gguf.MODEL_ARCH, tmp_path: Path
) -> None:
    """By the names in the constants of gguf, in two layers alike."""
    short = ("ssm_a", "time_mix_decay", "time_mix_w0")
    is_by_state = kind in (gguf.MODEL_ARCH.MAMBA, gguf.MODEL_ARCH.JAMBA)
    channels = HEADS * STATES if kind is gguf.MODEL_ARCH.KIMI_LINEAR else HEADS
    tensors: State = {}
    for index in range(2):
        for tensor in gguf.MODEL_TENSORS[kind]:
            name = gguf.TENSOR_NAMES[tensor].format(bid=index)
            last = name.rpartition(".")[2]
            if last == "ssm_a":
                speeds = torch.arange(1.0, HEADS + 1)
                rows = speeds[:, None].repeat(1, STATES) if is_by_state else speeds
                tensors[name] = -rows
            elif last == "ssm_dt":
                tensors[f"{name}.bias"] = torch.full((channels,), -4.0)
            elif last in short:
                tensors[f"{name}.weight"] = torch.linspace(-6.0, -1.0, HEADS)
            elif last.startswith(("ssm", "time_mix")):
                tensors[f"{name}.weight"] = torch.ones(2, 2)
    path = write(tmp_path / "model.gguf", gguf.MODEL_ARCH_NAMES[kind], tensors)
    layers = known_layers(open_checkpoint(str(path)))
    assert len(layers) == 2
    wanted = np.linspace(-6.0, -1.0, HEADS)
    if layers[0].family.name == "RWKV-7":
        expected = np.exp(-0.5) / (1 + np.exp(-wanted))
    elif layers[0].family.name == "RWKV-6":
        expected = np.exp(wanted)
    else:
        expected = np.arange(1.0, HEADS + 1) * np.log1p(np.exp(-4.0))
    for layer in layers:
        found = layer.rates.reshape(HEADS, -1)
        np.testing.assert_allclose(found, expected[:, None].repeat(found.shape[1], 1), rtol=1e-6)


def test_the_command_shows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, now = pair(tmp_path, "Mamba-2", WRONG["twice"][0])
    with pytest.raises(SystemExit):
        inspect(now, compare=before, strict=True)
    text = capsys.readouterr().out
    assert "3 layers with decays, mamba2" in text
    assert "a = exp(ssm_a softplus(ssm_dt.bias)), per head; ssm_a = -exp(A_log)" in text
    assert "-exp was applied twice (and 2 more like it)" in text


def test_layers_of_one_s_own_in_a_gguf(tmp_path: Path) -> None:
    path = write(tmp_path / "x.gguf", "own", {"blk.0.decay": torch.zeros(4), "o": torch.ones(2)})
    [layer] = plkernel.inspect(path, decays={"*.decay": "sigmoid"}).layers
    assert layer.rates == pytest.approx(np.log(2.0))


def test_what_is_not_known_is_told(tmp_path: Path, refused: Callable[..., str]) -> None:
    path = write(tmp_path / "x.gguf", "llama", {"blk.0.attn_q.weight": torch.ones(2, 2)})
    assert "no decays are known under names like blk.0.attn_q.weight" in refused(inspect, path)
    path = write(tmp_path / "a.gguf", "mamba2", {"blk.0.ssm_a": torch.ones(2)})
    assert "ssm_dt.bias is missing beside blk.0.ssm_a" in refused(inspect, path)
    part = tmp_path / "x-00001-of-00003.gguf"
    part.write_bytes(path.read_bytes())
    assert "llama-gguf-split --merge" in refused(inspect, part)
    assert "name a file, as " in refused(inspect, tmp_path)
    tensors = {"blk.0.ssm_a": torch.ones(2), "blk.0.ssm_dt.bias": torch.ones(3)}
    path = write(tmp_path / "misfit.gguf", "mamba2", tensors)
    assert "the shapes of Mamba-2, got blk.0.ssm_a (2,), blk.0.ssm_dt.bias (3,)" in refused(
        inspect, path
    )


def test_quantised_decays_are_refused(tmp_path: Path, refused: Callable[..., str]) -> None:
    writer = gguf.GGUFWriter(tmp_path / "q.gguf", "rwkv7")
    kind = gguf.GGMLQuantizationType.Q8_0
    packed = gguf.quants.quantize(np.ones((1, 32), np.float32), kind)
    writer.add_tensor("blk.0.time_mix_w0.weight", packed, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert "(F64, F32, F16, BF16, F8_E5M2, F8_E4M3), got Q8_0 (1, 32)" in refused(
        inspect, tmp_path / "q.gguf"
    )


def test_the_package_is_named_where_it_is_missing(
    tmp_path: Path, without: Callable[..., tuple[int, str, str]]
) -> None:
    _, now = pair(tmp_path, "Mamba-2")
    status, _, error = without(["gguf"], lambda: inspect(now))
    assert status
    assert 'got none; pip install "plkernel[gguf]"' in error


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def header(tensors: int, entries: int, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, entries)


def entry(key: bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def array(kind: int, count: int, values: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + values


def info(
    name: bytes, dims: list[int], kind: int = 0, offset: int = 0, count: int | None = None
) -> bytes:
    head = text(name) + struct.pack("<I", len(dims) if count is None else count)
    return head + struct.pack(f"<{len(dims)}QIQ", *dims, kind, offset)


A, FLOATS = b"blk.0.time_mix_w0.weight", bytes(64)
HOSTILE = {
    "nothing": (b"", "must begin with GGUF"),
    "another file": (b"\x89PNG" + FLOATS, "must begin with GGUF"),
    "the magic alone": (b"GGUF", "must be a whole .gguf file, got 4 bytes"),
    "version 1": (header(0, 0, 1), "version must be 2 or 3, got 1"),
    "big-endian": (header(0, 0, 3 << 24), "files of big-endian machines are not read"),
    "tensors without end": (header(2**60, 0), "must have at most 131,072 tensors"),
    "entries without end": (header(0, 2**60), "must have at most 16,384 entries"),
    "entries that are not there": (header(0, 5), "must be a whole .gguf file"),
    "a key without end": (header(0, 1) + struct.pack("<Q", 2**62), "must be a whole .gguf file"),
    "an unknown kind": (header(0, 1) + entry(b"a", 99, FLOATS), "must be a whole .gguf file"),
    "an array without end": (header(0, 1) + entry(b"a", 9, array(4, 2**61)), "beyond its end"),
    "bytes without end": (header(0, 1) + entry(b"a", 9, array(0, 2**40)), "beyond its end"),
    "strings without end": (header(0, 1) + entry(b"a", 9, array(8, 2**40)), "of at most 8,388,608"),
    "a string without end": (
        header(0, 1) + entry(b"a", 9, array(8, 2, struct.pack("<Q", 2**63))),
        "must be a whole .gguf file",
    ),
    "arrays of arrays": (
        header(0, 1) + entry(b"a", 9, array(9, 1, array(9, 1, array(4, 1)))),
        "arrays of arrays, which are not read",
    ),
    "the same key twice": (header(0, 2) + 2 * entry(b"a", 4, bytes(4)), "Duplicate a"),
    "the same name twice": (header(2, 0) + 2 * info(A, [4]) + FLOATS, "duplicated tensor"),
    "dimensions without end": (
        header(1, 0) + info(A, [4], count=2**31) + FLOATS + bytes(4),
        "of at most 8",
    ),
    "nine dimensions": (
        header(1, 0) + info(A, [1] * 9) + FLOATS,
        "with 9 dimensions, of at most 8",
    ),
    "numbers without end": (header(1, 0) + info(A, [2**40]) + FLOATS, "must be a whole .gguf file"),
    "a product that wraps": (
        header(1, 0) + info(A, [2**32, 2**32]) + FLOATS,
        "must be a whole .gguf file",
    ),
    "an offset beyond": (
        header(1, 0) + info(A, [4], 0, 2**63) + FLOATS,
        "must be a whole .gguf file",
    ),
    "a type that is not": (header(1, 0) + info(A, [4], 77) + FLOATS, "must be a whole .gguf file"),
    "whole numbers": (header(1, 0) + info(A, [4], 26) + FLOATS, "got I32 (4,)"),
    "an empty tensor": (header(1, 0) + info(A, [0]) + FLOATS, "got F32 (0,)"),
    "a name that is no text": (header(1, 0) + info(b"\xff", [4]) + FLOATS, "must be a whole"),
    "an alignment of 0": (
        header(0, 1) + entry(b"general.alignment", 4, bytes(4)),
        "must be a whole .gguf file",
    ),
    "no tensors": (header(0, 0), "the checkpoint holds no tensors"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_file_that_lies(case: str, tmp_path: Path, refused: Callable[..., str]) -> None:
    """One line of error, soon, and without the memory that it asks for."""
    content, message = HOSTILE[case]
    (tmp_path / "x.gguf").write_bytes(content)
    assert message in refused(inspect, tmp_path / "x.gguf")


def test_a_file_cut_off_anywhere_and_with_any_byte_changed(tmp_path: Path) -> None:
    """An answer, or a ValueError; a file that is cut off is refused, wherever that is."""
    _, now = pair(tmp_path, "Mamba-2")
    content = now.read_bytes()
    last = content.rstrip(b"\0")
    random = Random(0)
    path = tmp_path / "x.gguf"
    for length in random.sample(range(len(last) - 4), 60):
        path.write_bytes(content[:length])
        with pytest.raises(ValueError, match=r"x\.gguf"):
            inspected(str(path))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(300):
            changed = bytearray(content)
            changed[random.randrange(len(content))] = random.randrange(256)
            path.write_bytes(changed)
            try:
                inspected(str(path))
            except ValueError:
                continue


def test_vocabularies_are_passed_over(tmp_path: Path) -> None:
    """No object is made for the strings of one."""
    import tracemalloc

    strings = text(b"a") * 500_000
    content = header(0, 1) + entry(b"tokens", 9, array(8, 500_000, strings))
    (tmp_path / "x.gguf").write_bytes(content)
    open_checkpoint(str(tmp_path / "x.gguf"))
    tracemalloc.start()
    try:
        open_checkpoint(str(tmp_path / "x.gguf"))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 1_000_000, most
