"""Official checkpoints of RWKV-5, 6 and 7: the same logits in the official package, the same
numbers back.
"""

import dataclasses
import gc
import importlib
import inspect
import json
import multiprocessing
import os
import random
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from plkernel.commands.export import export
from plkernel.commands.load import load
from plkernel.common import cli
from plkernel.common.files import CHECKPOINT
from plkernel.config.reading import load_spec
from plkernel.decays.official import from_official, read, to_official, write_official
from plkernel.models.init import initialise_
from plkernel.models.layers import Structure
from plkernel.models.rwkv import RWKV, RWKVConfig
from plkernel.models.rwkv7 import RWKV7, RWKV7Config
from plkernel.training.checkpoint import open_model, save_model
from plkernel.training.loop import prepare, run_training

pytestmark = pytest.mark.usefixtures("one_thread")
TEXT = torch.tensor(list(inspect.getsource(inspect).encode()))
EAGLE, FINCH = RWKVConfig(5, 24, 2, 8), RWKVConfig(6, 24, 2, 8, mix_rank=3, decay_rank=5)
GOOSE = RWKV7Config(24, 2, 8, 3, 5, 2, 4)
SMALL = {5: EAGLE, 6: FINCH, 7: GOOSE}
SIZES = {
    5: [RWKVConfig(5, 64, 1, 16, feed_forward=100), RWKVConfig(5, 64, 3, 32, feed_forward=333)],
    6: [
        RWKVConfig(6, 128, 1, 64),
        RWKVConfig(6, 64, 3, 32, mix_rank=7, decay_rank=9, feed_forward=333),
    ],
    7: [RWKV7Config(64, 1, 16), RWKV7Config(64, 3, 32, 7, 9, 5, 11, feed_forward=100)],
}
PROMISE = {"rtol": 1e-4, "atol": 2e-5}
MEASURED = {5: {"rtol": 3e-5, "atol": 6e-6}, 6: {"rtol": 3e-5, "atol": 6e-6}, 7: PROMISE}
Logits = Callable[..., list[Any]]


def serve(pipe: Connection) -> None:
    """The official package, which changes settings of torch in its process: answers what is asked
    through the pipe.
    """
    warnings.simplefilter("ignore")
    gc.collect = lambda generation=2: 0
    torch.set_num_threads(1)
    os.environ |= {"RWKV_JIT_ON": "0", "RWKV_CUDA_ON": "0"}
    while asked := pipe.recv():
        flag, cases, bytewise = asked
        if os.environ.get("RWKV_V7_ON") != flag:  # which the package reads as it is imported
            os.environ["RWKV_V7_ON"] = flag
            sys.modules.pop("rwkv.model", None)
        official, results = importlib.import_module("rwkv.model").RWKV, []
        for path, inputs in cases:
            try:
                model = official(model=path, strategy="cpu fp32")
                found, state, each = [model.forward(inputs, None, full_output=True)[0]], None, []
                for byte in inputs if bytewise else ():
                    logits, state = model.forward([byte], state)
                    each.append(logits.clone())
                results.append(
                    [one.numpy() for one in found + ([torch.stack(each)] if each else [])]
                )
            except (RuntimeError, AttributeError):
                results.append(None)
        pipe.send(results)


@pytest.fixture(scope="module")
def server() -> Iterator[Connection]:
    """The end of the pipe to a copy of this process with the official package."""
    pytest.importorskip("rwkv", reason="the official inference package `rwkv` is not installed")
    pipe, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=serve, args=(theirs,))
    process.start()
    theirs.close()  # or nothing would end if it fails
    yield pipe
    pipe.send(None)
    process.join()


@pytest.fixture
def official(server: Connection) -> Logits:
    """Logits (T,256) of bytes (T,) by the official package, whole and, unless told otherwise, byte
    by byte.
    """

    def run(version: int, *cases: tuple[Path, Tensor], bytewise: bool = True) -> list[Any]:
        names = [
            (str(path).removesuffix(".pth") if version == 7 else str(path), x.tolist())
            for path, x in cases
        ]
        server.send((str(int(version == 7)), names, bytewise))
        return [each and [torch.from_numpy(logits) for logits in each] for each in server.recv()]

    return run


def model_of(config: Any) -> RWKV:
    return RWKV7(config) if isinstance(config, RWKV7Config) else RWKV(config)


@cache
def trained(config: Any) -> RWKV:
    """A model trained for a moment on source text, then moved by noise, so that every number of it
    matters.
    """
    generator = torch.Generator().manual_seed(0)
    model = initialise_(
        model_of(config), "rwkv7_official" if config.version == 7 else "rwkv_blinkdl", 0
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(8):
        starts = torch.randint(0, len(TEXT) - 33, (4,), generator=generator).tolist()
        windows = torch.stack([TEXT[start : start + 33] for start in starts])
        loss = F.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def logits_of(model: RWKV, inputs: Tensor) -> Tensor:
    with torch.no_grad():
        return model(inputs[None])[0]


def assert_equal(other: RWKV, expected: RWKV) -> None:
    """Same configuration, same names in the same order, same bits."""
    assert other.config == expected.config
    ours, theirs = expected.state_dict(), other.state_dict()
    assert list(ours) == list(theirs)
    for name, value in ours.items():
        assert theirs[name].dtype == value.dtype
        assert torch.equal(theirs[name], value), name


def save_torch(path: Path, content: Any) -> Path:
    torch.save(content, path)
    return path


@pytest.mark.parametrize("version", SIZES)
def test_the_official_package_computes_the_logits_of_an_export(
    version: int, official: Logits, tmp_path: Path
) -> None:
    """Whole and byte by byte; what is exported comes back bit for bit."""
    inputs, cases = TEXT[1000:1050], []
    for number, config in enumerate(SIZES[version]):
        assert all(
            parameter.count_nonzero() == parameter.numel()
            for parameter in trained(config).parameters()
        )
        save_model(tmp_path / f"model-{number}", trained(config), "a test")
        export(tmp_path / f"model-{number}", tmp_path / f"out-{number}")
        cases.append((tmp_path / f"out-{number}.pth", inputs))
        assert_equal(read(cases[-1][0]), trained(config))
    for config, results in zip(SIZES[version], official(version, *cases), strict=True):
        for logits in results:
            assert torch.allclose(logits, logits_of(trained(config), inputs), **MEASURED[version])


@pytest.mark.parametrize("version", [5, 6, pytest.param(7, marks=pytest.mark.slow)])
def test_every_tensor_of_an_export_matters(version: int, official: Logits, tmp_path: Path) -> None:
    """The comparison can fail: with any one tensor moved, the official package computes something
    else.

    The maps of low rank, which are near zero after a few steps, are drawn at a size at which their
    inputs matter.
    """
    config = RWKV7Config(16, 2, 8, 4, 4, 4, 4) if version == 7 else RWKVConfig(version, 16, 1, 8)
    state, inputs, generator = (
        to_official(trained(config)),
        TEXT[1000:1008],
        torch.Generator().manual_seed(1),
    )
    for name in [name for name in state if re.search(r"att\.[wavg][12]$", name)]:
        state[name] = torch.randn(state[name].shape, generator=generator)
    paths = [save_torch(tmp_path / "0.pth", state)]
    for number, (name, value) in enumerate(state.items(), start=1):
        noise = torch.randn(value.shape, generator=torch.Generator().manual_seed(0))
        paths.append(
            save_torch(
                tmp_path / f"{number}.pth",
                {**state, name: value + (1.0 if version == 7 else 0.2) * noise},
            )
        )
    expected, *moved = (
        one[0] for one in official(version, *((path, inputs) for path in paths), bytewise=False)
    )
    for name, logits in zip(state, moved, strict=True):
        assert not torch.allclose(logits, expected, **PROMISE), name


def by_hand(version: int, dim: int = 32, heads: int = 4, hidden: int = 72) -> dict[str, Tensor]:
    """A checkpoint of two layers with the names, order and shapes of the official training code."""
    shapes: dict[str, tuple[int, ...]] = {"emb.weight": (256, dim)}
    mix, vector, head = (
        {5: "time_mix", 6: "time_maa"}.get(version, "x"),
        (1, 1, dim),
        (heads, dim // heads),
    )
    for i in range(2):
        norms = ("ln1", "ln2", "ln0") if i == 0 else ("ln1", "ln2")
        block: dict[str, tuple[int, ...]] = {
            f"{norm}.{kind}": (dim,) for norm in norms for kind in ("weight", "bias")
        }
        block |= {
            f"att.{mix}_{stream}": vector
            for stream in {5: "kvrg", 6: "xwkvrg", 7: "rwkvag"}[version]
        }
        if version == 7:
            for one, rank in {"w": 4, "a": 6, "v": 3, "g": 5}.items():
                block |= {f"att.{one}1": (dim, rank), f"att.{one}2": (rank, dim)}
                block |= {f"att.{one}0": vector} if one != "g" else {}
            block |= {"att.k_k": vector, "att.k_a": vector, "att.r_k": head, "ffn.x_k": vector}
        else:
            block |= {"att.time_decay": vector if version == 6 else head, "att.time_faaaa": head}
            block |= {"att.gate.weight": (dim, dim), "ffn.receptance.weight": (dim, dim)}
            block |= {f"ffn.{mix}_k": vector, f"ffn.{mix}_r": vector}
        if version == 6:
            block |= {"att.time_maa_w1": (dim, 5 * 4), "att.time_maa_w2": (5, 4, dim)}
            block |= {"att.time_decay_w1": (dim, 6), "att.time_decay_w2": (6, dim)}
        block |= {
            f"att.{name}.weight": (dim, dim) for name in ("receptance", "key", "value", "output")
        }
        block |= {"att.ln_x.weight": (dim,), "att.ln_x.bias": (dim,)}
        block |= {"ffn.key.weight": (hidden, dim), "ffn.value.weight": (dim, hidden)}
        shapes |= {f"blocks.{i}.{name}": shape for name, shape in block.items()}
    shapes |= {"ln_out.weight": (dim,), "ln_out.bias": (dim,), "head.weight": (256, dim)}
    order = {"att.time_decay": 1, "att.time_faaaa": 2}  # after ln_x and time_maa
    names = sorted(
        shapes, key=lambda name: (name.split(".")[:2], order.get(name.split(".", 2)[-1], 0))
    )
    generator = torch.Generator().manual_seed(version)
    return {
        name: 0.3 * torch.randn(shapes[name], generator=generator) + ("ln" in name)
        for name in names
    }


@pytest.mark.parametrize("version", [5, 6, 7])
def test_a_checkpoint_of_the_official_code_loads(
    version: int, official: Logits, tmp_path: Path
) -> None:
    """Also with shuffled keys, without dimensions of one, as some converters write, and in
    bfloat16.
    """
    state, inputs = by_hand(version), TEXT[1000:1050]
    model = read(save_torch(tmp_path / "theirs.pth", state))
    assert (model.config.head_size, model.config.hidden, model.config.layers) == (8, 72, 2)
    if version == 7:
        assert model.config == RWKV7Config(32, 2, 8, 4, 6, 3, 5, feed_forward=72)
    squeezed = [(name, value.squeeze()) for name, value in state.items()]
    random.Random(0).shuffle(squeezed)
    assert_equal(read(save_torch(tmp_path / "squeezed.pth", dict(squeezed))), model)
    (results,) = official(version, (tmp_path / "theirs.pth", inputs))
    for logits in results:
        assert torch.allclose(logits, logits_of(model, inputs), **MEASURED[version])
    halved = {name: value.bfloat16() for name, value in state.items()}
    for name, value in from_official(halved).state_dict().items():
        assert torch.equal(value, halved[name].float()), name


def test_a_run_goes_out_and_comes_back_by_the_commands(
    tiny_spec: Callable[..., Path],
    official: Logits,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tiny_spec()
    text = path.read_text().replace("[model]", '[model]\nkind = "rwkv6"\nhead_size = 8')
    path.write_text(text.replace('projection = "published"', ""))
    task = prepare(load_spec(path), "uniform", 0, tmp_path / "runs")
    run_training(task, progress_bar=False)
    cli.main(export, [str(task.folder.path / CHECKPOINT), str(tmp_path / "official.pth")])
    assert "rwkv6: 2 layers of width 16, 2 heads of 8" in capsys.readouterr().out
    model, inputs = open_model(task.folder.path)[0], TEXT[1000:1050]
    ((whole, _),) = official(6, (tmp_path / "official.pth", inputs))
    assert torch.allclose(whole, logits_of(model, inputs), **MEASURED[6])
    folder = tmp_path / "loaded"
    cli.main(load, [str(tmp_path / "official.pth"), str(folder)])
    assert_equal(open_model(folder)[0], model)
    assert json.loads((folder / "config.json").read_text())["source"] == str(
        tmp_path / "official.pth"
    )
    with pytest.raises(ValueError, match="out must hold no model"):
        load(tmp_path / "official.pth", folder)
    task = prepare(load_spec(tiny_spec(steps=1, eval_every=1)), "uniform", 0, tmp_path / "ssm")
    run_training(task, progress_bar=False)
    with pytest.raises(ValueError, match="model must be of kind rwkv5, rwkv6 or rwkv7"):
        export(task.folder.path, tmp_path / "out")


@pytest.mark.parametrize(("version", "dtype"), [(5, "bfloat16"), (6, "float16"), (7, "bfloat16")])
def test_numbers_of_another_type_are_the_rounded_ones(
    dtype: Any, version: int, tmp_path: Path
) -> None:
    model = trained(SMALL[version])
    save_model(tmp_path / "model", model, "a test")
    export(tmp_path / "model", tmp_path / "out.pth", dtype)
    for name, value in read(tmp_path / "out.pth").state_dict().items():
        assert torch.equal(value, model.state_dict()[name].to(getattr(torch, dtype)).float()), name
    with pytest.raises(ValueError, match="dtype must hold every number of a, got float16"):
        write_official(tmp_path / "large", {"a": torch.tensor([7e4])}, "float16")


def test_a_tied_head_is_written_as_a_copy(official: Logits, tmp_path: Path) -> None:
    model = RWKV(dataclasses.replace(FINCH, structure=Structure(tied=True), dropout=0.5)).eval()
    model.load_state_dict({**trained(FINCH).state_dict(), "head.weight": trained(FINCH).emb.weight})
    write_official(tmp_path / "tied.pth", to_official(model))
    ((whole, _),) = official(6, (tmp_path / "tied.pth", TEXT[1000:1050]))
    assert torch.allclose(whole, logits_of(model, TEXT[1000:1050]), **MEASURED[6])
    back = read(tmp_path / "tied.pth")
    assert not back.config.structure.tied
    assert torch.equal(back.head.weight, model.emb.weight)


@pytest.mark.parametrize("version", [6, 7])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k_clamp": True}, "k_clamp must be false, got true; a checkpoint cannot say"),
        (
            {"structure": Structure(norm="rms")},
            "norm must be 'layer', got 'rms'; the format has no such option",
        ),
        (
            {"structure": Structure(multipliers={"logits": 0.5})},
            "multiplier logits must be 1, got 0.5; the format has no",
        ),
        ({"head_size": 1}, "head_size must be 2 or more, got 1; the official code needs more"),
    ],
)
def test_an_inexpressible_model_is_refused(
    change: dict[str, Any], message: str, version: int
) -> None:
    if version == 6 or "k_clamp" not in change:  # a Goose has none
        with pytest.raises(ValueError, match=message):
            to_official(model_of(dataclasses.replace(SMALL[version], **change)))


def put(name: str, value: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda state: {**state, name: value}


def dropped(part: str) -> Callable[[dict[str, Any]], Any]:
    return lambda state: {name: value for name, value in state.items() if part not in name}


@pytest.mark.parametrize(
    ("version", "change", "message"),
    [
        (
            6,
            put("emb.weight", torch.zeros(65536, 24)),
            "emb.weight must have 256 rows, one for each byte, got 65536",
        ),
        (
            6,
            put("blocks.0.att.time_state", torch.zeros(3, 8, 8)),
            "of such a model alone, got blocks.0.att.time_state",
        ),
        (
            6,
            put("blocks.9.ln1.weight", torch.zeros(24)),
            r"blocks must be numbered .*, got \[0, 1, 9\]",
        ),
        (
            6,
            put("blocks.1.att.key.weight", torch.zeros(24, 23)),
            r"blocks.1.att.key.weight must have shape .*, got \(24, 23\)",
        ),
        (6, put("blocks.0.att.time_faaaa", torch.zeros(24)), "must be a matrix"),
        (
            6,
            put("emb.weight", torch.zeros(256, 24, dtype=torch.uint8)),
            "emb.weight must be a tensor .*, got torch.uint8",
        ),
        (
            6,
            put("head.weight", torch.zeros(256, 24, device="meta")),
            "head.weight must be .* that holds its values",
        ),
        (6, put("_strategy", "cpu fp32"), "_strategy must be .*, got str"),
        (
            6,
            put("blocks.0.att.r_k", torch.zeros(3, 8)),
            "must have a tensor blocks.0.att.w1, got none",
        ),
        (6, dropped("ln0"), "must have tensors blocks.0.ln0.bias"),
        (
            6,
            lambda state: {k.replace("maa", "mix"): v for k, v in dropped("gate")(state).items()},
            "must be a model of RWKV-5.2",
        ),
        (6, lambda state: {"weight": torch.zeros(3)}, "with keys such as weight"),
        (6, lambda state: [*state.values()], "named tensors, got a list"),
        (
            7,
            put("blocks.1.att.w2", torch.zeros(4, 24)),
            r"blocks.1.att.w2 must have shape \(3, 24\), got \(4, 24\)",
        ),
        (7, dropped("blocks.1.att.v1"), "must have a tensor blocks.1.att.v1, got none"),
    ],
)
def test_a_wrong_checkpoint_gives_one_clear_error(
    version: int, change: Callable[[Any], Any], message: str, tmp_path: Path
) -> None:
    path = save_torch(tmp_path / "theirs.pth", change(to_official(trained(SMALL[version]))))
    with pytest.raises(ValueError, match=message) as error:
        load(path, tmp_path / "out")
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()
