"""Hostile checkpoints: a clear error or an answer, never a traceback, and nothing in them is executed."""

import json
import os
import pickle
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save, save_file

from plkernel.common.cli import USER_ERRORS
from plkernel.memory.files import INDEX, SINGLE
from plkernel.memory.inspection import render, shown

hypothesis = pytest.importorskip("hypothesis", reason="the cases are drawn with hypothesis")
st = hypothesis.strategies

TENSORS = {
    "model.layers.0.mixer.A_log": torch.linspace(-1, 1, 4),
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
    *(None, True, 0, -1, 3, 2**31, 10**30, 0.5, 1e308, float("inf"), float("nan"), "", "x", "1e9", "\n", "\0"),
    *("../..", "/dev/zero", "a" * 20_000, [], [[]], [None], ["a", {}], [{"a": 1}, {}], list(range(300)), {}, {"a": {}}),
)
WHOLE = save(TENSORS)
START = int.from_bytes(WHOLE[:8], "little") + 8


class Bomb:
    """Unpickling it creates a file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mknod, (self.path,)


@st.composite
def damaged(draw: Any) -> bytes:
    """The bytes of a file cut short, with a bit flipped, a part overwritten or inserted, or other bytes altogether."""
    at, noise = draw(st.integers(0, len(WHOLE) - 1)), draw(st.binary(max_size=64))
    flipped = WHOLE[:at] + bytes([WHOLE[at] ^ (1 << at % 8)]) + WHOLE[at + 1 :]
    typed = WHOLE[:8] + WHOLE[8:START].replace(b"F32", draw(st.sampled_from([b"F64", b"I32", b"F4 ", b"U8 "])))
    written = WHOLE[:at] + noise + WHOLE[at + len(noise) :]
    inserted = WHOLE[: at % START] + noise + WHOLE[at % START :]
    return draw(st.sampled_from([WHOLE[:at], flipped, written, inserted, typed, noise, b""]))


@st.composite
def mutated(draw: Any, base: dict[str, Any]) -> Any:
    """JSON with one to three values replaced, removed or added, or another value altogether."""
    value: Any = json.loads(json.dumps(base))
    for _ in range(draw(st.integers(1, 3))):
        inner = value["text_config"] if "text_config" in value and draw(st.booleans()) else value
        if isinstance(inner, dict) and inner:
            key = draw(st.sampled_from([*inner, "time_step_limit", "lower_bound", "weight_map"]))
            inner[key] = draw(st.sampled_from(STRANGE))
            if draw(st.booleans()) and len(inner) > 1:
                del inner[draw(st.sampled_from(sorted(inner)))]
    return draw(st.sampled_from([value, value, value, value, *STRANGE]))


@st.composite
def pickled(draw: Any) -> Any:
    """Content of a .pth; 'bomb' stands for an object that executes something."""
    odd: list[Any] = [torch.zeros(size) for size in ((), (0,), (4,), (2, 2))]
    odd += [torch.zeros(4, dtype=kind) for kind in (torch.bfloat16, torch.int8, torch.complex64, torch.bool)]
    odd += [torch.empty(4, device="meta"), torch.zeros(4).to_sparse(), torch.full((4,), torch.nan)]
    odd += [torch.zeros(1).expand(2**40), None, 3, "x", [1.0], {}, torch.nn.Parameter(torch.zeros(4)), "bomb"]
    content = {**TENSORS, draw(st.sampled_from([*TENSORS, "x"])): draw(st.sampled_from(odd))}
    return draw(st.sampled_from([content, content, content, [content], "bomb", {"a": content}]))


def written(folder: Path, kind: str, case: Any, bomb: Bomb) -> Path:
    """The checkpoint of a case."""
    if kind == "bytes":
        (folder / "x.safetensors").write_bytes(case)
        return folder / "x.safetensors"
    if kind == "pickle":
        armed = {name: bomb if one == "bomb" else one for name, one in case.items()} if type(case) is dict else case
        with warnings.catch_warnings(action="ignore"):
            torch.save(bomb if armed == "bomb" else armed, folder / "x.pth")
        return folder / "x.pth"
    save_file(TENSORS, folder / SINGLE)
    (folder / INDEX).write_text(json.dumps(case if kind == "index" else INDEXED))
    (folder / "config.json").write_text(json.dumps(case if kind == "config" else CONFIG))
    return folder


@pytest.mark.parametrize("kind", ["bytes", "index", "config", "pickle"])
def test_hostile_files_end_in_one_line(kind: str, tmp_path: Path) -> None:
    """40 of each kind."""
    cases = {"bytes": damaged(), "index": mutated(INDEXED), "config": mutated(CONFIG), "pickle": pickled()}
    ends, bomb = [], Bomb(str(tmp_path / "executed"))

    @hypothesis.seed(14)
    @hypothesis.settings(
        max_examples=40, database=None, deadline=None, suppress_health_check=list(hypothesis.HealthCheck)
    )
    @hypothesis.given(cases[kind])
    def take(case: Any) -> None:
        folder = tmp_path / str(len(ends))
        folder.mkdir(exist_ok=True)
        target = written(folder, kind, case, bomb)
        before = set(tmp_path.rglob("*"))
        try:
            result = shown(str(target))
            assert render(result) + json.dumps(result.to_dict())
            ends.append("accepted")
        except USER_ERRORS:
            ends.append("refused")
        assert set(tmp_path.rglob("*")) == before, "something was executed or left behind"

    take()
    assert len(ends) >= 40
    assert set(ends) == {"accepted", "refused"}


def test_the_bomb_works_and_a_plain_pickle_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.pth"
    path.write_bytes(pickle.dumps({"blocks.0.att.w0": Bomb(str(tmp_path / "executed"))}))
    with pytest.raises(ValueError, match="holds tensors only"):
        shown(str(path))
    assert not (tmp_path / "executed").exists()
    pickle.loads(path.read_bytes())
    assert (tmp_path / "executed").exists()


def test_safetensors_need_neither_torch_nor_transformers(tmp_path: Path) -> None:
    """With numpy, scipy, safetensors, matplotlib and tyro alone; a .pth says that it needs torch."""
    save_file(TENSORS, tmp_path / SINGLE)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    torch.save(TENSORS, tmp_path / "x.pth")
    program = """if True:
        import sys
        class Absent:
            def find_spec(self, name, path=None, target=None):
                if name in ("torch", "numba", "triton", "datasets", "transformers", "pyarrow", "pydantic", "jinja2"):
                    raise ModuleNotFoundError(name=name)
        sys.meta_path.insert(0, Absent())
        from plkernel.commands.inspect import inspect
        from plkernel.common import cli
        cli.main(inspect, [sys.argv[1], "--compare", sys.argv[1], "--json", "x.json"])
        assert "matplotlib" not in sys.modules
        cli.main(inspect, [sys.argv[1], "--figure", "x.pdf"])
        cli.main(inspect, ["x.pth"])
    """
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    line = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert "4 layers with decays, nemotron_h" in done.stdout, done.stderr
    assert done.stderr == "error: x.pth: reading this format needs torch, which is missing: pip install torch\n"
    assert (tmp_path / "x.pdf").read_bytes().startswith(b"%PDF")
    layers = json.loads((tmp_path / "x.json").read_text())["layers"]
    expected = shown(str(tmp_path)).to_dict()["layers"]
    assert [one["half_lives"] for one in layers] == [one["half_lives"] for one in expected]
