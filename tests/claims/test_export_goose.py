"""Checkpoints of RWKV-7: the same logits in other people's software, the same numbers back, and nothing executed."""

import dataclasses
import inspect
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from plkernel.commands.export import export
from plkernel.commands.load import load
from plkernel.common import cli
from plkernel.interop.fla import WEIGHTS, write_fla
from plkernel.interop.fla_goose import to_fla_goose
from plkernel.interop.formats import read
from plkernel.interop.official import from_official, to_official, write_official
from plkernel.models.init import initialise_
from plkernel.models.rwkv7 import RWKV7, RWKV7Config
from plkernel.models.structure import Structure
from plkernel.training.checkpoint import open_model, save_model

TEXT = torch.tensor(list(inspect.getsource(inspect).encode()))
SMALL = RWKV7Config(24, 2, 8, 3, 5, 2, 4)
SIZES = [RWKV7Config(64, 1, 16), RWKV7Config(64, 3, 32, 7, 9, 5, 11, feed_forward=100), RWKV7Config(128, 2, 64)]
PROMISE = {"rtol": 1e-4, "atol": 2e-5}  # as for Eagle and Finch
OfficialLogits = Callable[..., list[dict[str, Tensor]]]
OFFICIAL = """
import gc, sys, torch
from rwkv.model import RWKV
gc.collect = lambda: 0
torch.set_num_threads(1)
found = []
for path, inputs in torch.load(sys.argv[1]):
    model = RWKV(model=path.removesuffix(".pth"), strategy="cpu fp32")
    whole, _ = model.forward(inputs, None, full_output=True)
    state, each = None, []
    for byte in inputs if len(inputs) > 10 else []:
        logits, state = model.forward([byte], state)
        each.append(logits.clone())
    found.append({"whole": whole, **({"each": torch.stack(each)} if each else {})})
torch.save(found, sys.argv[2])
"""


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    """Tensors of these sizes are slower on several threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def official_logits(tmp_path: Path) -> OfficialLogits:
    """Logits (T,256) of bytes (T,) by the official package, which is RWKV-7's for a whole process or not at all."""
    pytest.importorskip("rwkv", reason="the official inference package `rwkv` is not installed")

    def run(*cases: tuple[Path, Tensor]) -> list[dict[str, Tensor]]:
        torch.save([(str(path), inputs.tolist()) for path, inputs in cases], tmp_path / "cases")
        flags = {"RWKV_V7_ON": "1", "RWKV_JIT_ON": "0", "RWKV_CUDA_ON": "0"}
        command = [sys.executable, "-c", OFFICIAL, str(tmp_path / "cases"), str(tmp_path / "found")]
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, **flags})
        found: list[dict[str, Tensor]] = torch.load(tmp_path / "found")
        return found

    return run


@cache
def trained(config: RWKV7Config, steps: int = 8) -> RWKV7:
    """A model trained for a moment on source text, then moved by noise, so that every number of it matters."""
    generator = torch.Generator().manual_seed(0)
    model = initialise_(RWKV7(config), "rwkv7_official", 0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
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


def logits_of(model: Any, inputs: Tensor) -> Tensor:
    with torch.no_grad():
        return model(inputs[None])[0]


def assert_equal(found: Any, expected: RWKV7) -> None:
    """Same configuration, same names, same bits."""
    assert found.config == expected.config
    ours, theirs = expected.state_dict(), found.state_dict()
    assert list(ours) == list(theirs)
    for name, value in ours.items():
        assert theirs[name].dtype == value.dtype
        assert torch.equal(theirs[name], value), name


def by_hand(config: RWKV7Config) -> dict[str, Tensor]:
    """A checkpoint as the official training code saves it, with its v0, v1 and v2 of the first block."""
    dim, ranks = config.dim, dict(zip("wavg", config.ranks, strict=True))
    shapes: dict[str, tuple[int, ...]] = {"emb.weight": (256, dim)}
    for i in range(config.layers):
        norms = ("ln1", "ln2", "ln0") if i == 0 else ("ln1", "ln2")
        block: dict[str, tuple[int, ...]] = {f"{norm}.{kind}": (dim,) for norm in norms for kind in ("weight", "bias")}
        block |= {f"att.x_{stream}": (1, 1, dim) for stream in "rwkvag"}
        for one, rank in ranks.items():
            block |= {f"att.{one}1": (dim, rank), f"att.{one}2": (rank, dim)}
            block |= {f"att.{one}0": (1, 1, dim)} if one != "g" else {}
        block |= {"att.k_k": (1, 1, dim), "att.k_a": (1, 1, dim), "att.r_k": (config.heads, config.head_size)}
        block |= {f"att.{name}.weight": (dim, dim) for name in ("receptance", "key", "value", "output")}
        block |= {"att.ln_x.weight": (dim,), "att.ln_x.bias": (dim,), "ffn.x_k": (1, 1, dim)}
        block |= {"ffn.key.weight": (config.hidden, dim), "ffn.value.weight": (dim, config.hidden)}
        shapes |= {f"blocks.{i}.{name}": shape for name, shape in block.items()}
    shapes |= {"ln_out.weight": (dim,), "ln_out.bias": (dim,), "head.weight": (256, dim)}
    generator = torch.Generator().manual_seed(7)
    noise = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return {name: 0.3 * value + ("ln" in name) for name, value in noise.items()}


def test_official_package_computes_the_logits_of_an_export_and_we_those_of_a_random_one(
    official_logits: OfficialLogits, tmp_path: Path
) -> None:
    """Whole and byte by byte; one of 1,000 bytes. Ours come back bit for bit."""
    inputs, paths = [TEXT[1000:2000], TEXT[1000:1060], TEXT[1000:1060]], []
    for number, config in enumerate(SIZES):
        save_model(tmp_path / f"model-{number}", trained(config), "a test")
        export(tmp_path / f"model-{number}", tmp_path / f"{number}.pth")
        paths.append(tmp_path / f"{number}.pth")
        assert_equal(read(paths[-1]), trained(config))
    theirs = by_hand(RWKV7Config(32, 2, 8, 4, 6, 3, 5, feed_forward=72))
    write_official(tmp_path / "theirs.pth", theirs)
    squeezed = dict(sorted((name, value.squeeze()) for name, value in theirs.items()))
    write_official(tmp_path / "squeezed.pth", squeezed)
    ours = [*map(trained, SIZES), read(tmp_path / "theirs.pth")]
    assert ours[-1].config == RWKV7Config(32, 2, 8, 4, 6, 3, 5, feed_forward=72)
    assert_equal(read(tmp_path / "squeezed.pth"), ours[-1])  # type: ignore[arg-type]
    cases = [*zip(paths, inputs, strict=True), (tmp_path / "theirs.pth", TEXT[1000:1060])]
    for model, (_, text), found in zip(ours, cases, official_logits(*cases), strict=True):
        for logits in (found["whole"], found["each"]):
            assert torch.allclose(logits, logits_of(model, text), **PROMISE)


@pytest.mark.slow
def test_every_tensor_of_an_export_matters(official_logits: OfficialLogits, tmp_path: Path) -> None:
    """The comparison can fail: with any one tensor moved, the official package computes something else."""
    state, inputs = to_official(from_official(by_hand(RWKV7Config(16, 2, 8, 4, 4, 4, 4)))), TEXT[1000:1008]
    cases = [tmp_path / f"{number}.pth" for number in range(len(state) + 1)]
    write_official(cases[0], state)
    for path, (name, value) in zip(cases[1:], state.items(), strict=True):
        noise = torch.randn(value.shape, generator=torch.Generator().manual_seed(0))
        write_official(path, {**state, name: value + 0.2 * noise})
    expected, *moved = official_logits(*((path, inputs) for path in cases))
    for name, found in zip(state, moved, strict=True):
        assert not torch.allclose(found["whole"], expected["whole"], **PROMISE), name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"structure": Structure(norm="rms")}, "norm 'rms': the format has LayerNorm only"),
        ({"structure": Structure(gate=True)}, "gate = True: the format has no such option"),
        ({"structure": Structure(multipliers={"logits": 0.5})}, "multiplier logits = 0.5: the format has no"),
        ({"head_size": 1}, "head_size 1: the official code needs more"),
    ],
)
def test_what_the_formats_cannot_say_is_refused(
    change: dict[str, Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = RWKV7(dataclasses.replace(SMALL, **change))
    for write in (to_official, to_fla_goose):
        with pytest.raises(ValueError, match=message):
            write(model)
    save_model(tmp_path / "model", model, "a test")
    with pytest.raises(SystemExit) as stop:
        cli.main(export, [str(tmp_path / "model"), str(tmp_path / "out")])
    assert stop.value.code == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("emb.weight", torch.zeros(65536, 24), "vocabulary: emb.weight has 65536 rows"),
        ("blocks.0.ffn.s_emb.weight", torch.zeros(256, 24), "models do not have: blocks.0.ffn.s_emb.weight"),
        ("blocks.9.ln1.weight", torch.zeros(24), r"blocks are numbered \[0, 1, 9\]"),
        ("blocks.1.att.key.weight", torch.zeros(24, 23), r"blocks.1.att.key.weight: shape \(24, 23\)"),
        ("blocks.0.att.r_k", torch.zeros(24), r"att.r_k: shape \(24,\), expected \(heads, head size\)"),
        ("blocks.1.att.w2", torch.zeros(4, 24), r"blocks.1.att.w2: shape \(4, 24\), expected \(3, 24\)"),
        ("blocks.1.att.v1", None, "missing: blocks.1.att.v1"),
        ("blocks.0.att.a0", None, "missing: blocks.0.att.a0"),
    ],
)
def test_foreign_checkpoints_give_one_clear_error(
    name: str, value: Tensor | None, message: str, tmp_path: Path
) -> None:
    state = {key: tensor for key, tensor in to_official(RWKV7(SMALL)).items() if key != name or value is not None}
    write_official(tmp_path / "theirs.pth", state if value is None else {**state, name: value})
    with pytest.raises(ValueError, match=message) as error:
        load(tmp_path / "theirs.pth", tmp_path / "out")
    assert str(tmp_path / "theirs.pth") in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_a_model_goes_out_and_comes_back_by_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In heads of 16 the way over flash-linear-attention is exact, too; in others to the rounding of two products."""
    for config, exact in ((SIZES[0], True), (SIZES[1], False)):
        folder = tmp_path / str(config.dim * config.layers)
        save_model(folder / "model", trained(config), "a test")
        for form, name in (("official", "out.pth"), ("fla", "fla")):
            cli.main(export, [str(folder / "model"), str(folder / name), "--format", form])
            cli.main(load, [str(folder / name), str(folder / f"from {form}")])
        assert f"Goose (rwkv7): {config.layers} layers of width 64" in capsys.readouterr().out
        assert_equal(open_model(folder / "from official"), trained(config))
        back = open_model(folder / "from fla").state_dict()
        for name, value in trained(config).state_dict().items():
            scaled = not exact and name.endswith(("value.weight", "r_k"))
            assert torch.allclose(back[name], value, rtol=2.5e-7 if scaled else 0, atol=0), name


@pytest.mark.parametrize(
    ("name", "value"),
    [("hidden_act", "relu"), ("norm_first", False), ("norm_bias", False), ("norm_eps", 1e-6), ("vocab_size", 32000)],
)
def test_fla_options_of_another_function_are_refused(name: str, value: Any, tmp_path: Path) -> None:
    config, tensors = to_fla_goose(RWKV7(SMALL))
    write_fla(tmp_path, {**config, name: value}, tensors)
    with pytest.raises(ValueError, match=f"{name} is {value!r}, but plkernel's Goose needs"):
        read(tmp_path)


def test_damaged_fla_folders_give_one_clear_error(tmp_path: Path) -> None:
    config, tensors = to_fla_goose(RWKV7(SMALL))
    first = "model.layers.0.attn.r_k"
    for changed, message in [
        ({k: v for k, v in tensors.items() if k != first}, f"missing: {first}"),
        ({**tensors, "model.layers.0.attn.q": torch.zeros(2)}, "does not have: model.layers.0.attn.q"),
        ({**tensors, first: torch.zeros(24)}, r"r_k: shape \(24,\)"),
        ({**tensors, "model.layers.1.attn.w_lora.lora.0.weight": torch.zeros(2, 24)}, r"w1: shape \(24, 2\)"),
    ]:
        write_fla(tmp_path, config, changed)
        with pytest.raises(ValueError, match=message):
            read(tmp_path)
    (tmp_path / WEIGHTS).unlink()
    with pytest.raises(ValueError, match="no such file"):
        read(tmp_path)


@pytest.fixture
def fla_class(monkeypatch: pytest.MonkeyPatch) -> Any:
    """RWKV7ForCausalLM on a CPU: its own modules, and for each GPU kernel its own formulation in torch."""
    pytest.importorskip("fla", reason="flash-linear-attention is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import fla.layers.rwkv7 as layer
        import fla.models.rwkv7.modeling_rwkv7 as modeling
        from fla.modules.token_shift import token_shift_ref
        from fla.ops.generalized_delta_rule.dplr.naive import dplr_recurrence
        from fla.ops.rwkv7.fused_addcmul import torch_addcmul_rwkv7
        from fla.ops.rwkv7.fused_k_update import k_update_ref
        from fla.ops.rwkv7.gate_output_correction import gate_output_correction_ref

    def recurrence(*, r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, **_: Any) -> Any:
        size = r.shape[-1] ** 0.5  # which the reference divides r by
        out, _ = dplr_recurrence(*(x.transpose(1, 2) for x in (r * size, k, v, a, b, w)))
        return out.transpose(1, 2), None

    for module in (layer, modeling):
        monkeypatch.setattr(module, "token_shift", lambda x, *_, **__: (token_shift_ref(x), None))
    monkeypatch.setattr(layer, "chunk_rwkv7", recurrence)
    monkeypatch.setattr(layer, "fused_addcmul_rwkv7", torch_addcmul_rwkv7)
    monkeypatch.setattr(layer, "fused_k_rwkv7", k_update_ref)
    monkeypatch.setattr(layer, "gate_output_correction", gate_output_correction_ref)
    monkeypatch.setitem(modeling.ACT2FN, "sqrelu", lambda x: F.relu(x).square())
    return modeling.RWKV7ForCausalLM


def fla_logits(model: Any, inputs: Tensor) -> Tensor:
    with torch.no_grad():
        return model.eval()(inputs[None], use_cache=False).logits[0]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("config", SIZES[1:], ids=str)  # its class cannot be made with one block
def test_fla_computes_the_logits_of_an_export(config: RWKV7Config, fla_class: Any, tmp_path: Path) -> None:
    """Its class takes every tensor, and gives our logits; with the group norm's eps not made up for, it does not."""
    model, inputs = trained(config), TEXT[1000:1100]
    write_fla(tmp_path, *to_fla_goose(model))
    theirs, info = fla_class.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    assert torch.allclose(fla_logits(theirs, inputs), logits_of(model, inputs), **PROMISE)
    with torch.no_grad():
        for block in theirs.model.layers:
            block.attn.v_proj.weight.mul_(4)
            block.attn.r_k.div_(4)
    assert not torch.allclose(fla_logits(theirs, inputs), logits_of(model, inputs), **PROMISE)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_model_made_by_fla_loads(fla_class: Any, tmp_path: Path) -> None:
    settings = {"hidden_size": 32, "head_dim": 16, "num_hidden_layers": 2, "vocab_size": 256, "fuse_norm": False}
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        theirs = fla_class(fla_class.config_class(**settings))
        for parameter in theirs.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    theirs.save_pretrained(tmp_path)
    model = read(tmp_path)
    assert torch.allclose(fla_logits(theirs, TEXT[:200]), logits_of(model, TEXT[:200]), **PROMISE)
