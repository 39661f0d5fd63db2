"""plkernel.generate, the command and the function: exact at every byte, constant in cost,
reproducible.
"""

import io
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import plkernel
from plkernel.commands.export import export
from plkernel.commands.generate import command as generate
from plkernel.common import cli
from plkernel.config.reading import load_spec
from plkernel.models.init import initialise_
from plkernel.models.rwkv import RWKV, RWKVConfig
from plkernel.models.rwkv7 import RWKV7, RWKV7Config
from plkernel.models.sampling import Sampling, continuation, nucleus
from plkernel.models.ssm import SSM, SSMConfig
from plkernel.training.build import Model
from plkernel.training.checkpoint import open_model, save_model
from plkernel.training.loop import prepare, run_training

pytestmark = pytest.mark.usefixtures("one_thread")
PROMPT = bytes(np.random.default_rng(5).integers(0, 256, 250, dtype=np.uint8))
LOGITS = np.array([0.0, 1.0, -1.0, 0.5, 2.0, -100.0, 1.5])
MODELS: dict[str, Callable[[], Model]] = {
    "ssm": lambda: SSM(SSMConfig(32, 2, "ema")),
    "patches": lambda: SSM(SSMConfig(32, 2, "lru", patch=4)),
    "eagle": lambda: RWKV(RWKVConfig(5, 32, 2, 16)),
    "finch": lambda: RWKV(RWKVConfig(6, 32, 2, 16)),
    "goose": lambda: RWKV7(RWKV7Config(32, 2, 16)),
}
EACH = pytest.mark.parametrize("name", MODELS)


def build(name: str) -> Model:
    """A model with matrices large enough for its context to matter."""
    model = MODELS[name]()
    initialise_(model, "sp_torch_default", 0)
    if isinstance(model, SSM):
        with torch.no_grad():
            for recurrence in model.recurrences():
                recurrence.log_rate.copy_(torch.linspace(-5, 0, 32))
    return model.eval()


def take(model: Any, prompt: bytes, count: int, *options: Any, part: int = 1024) -> bytes:
    drawn = continuation(model, prompt, Sampling(*options), part)
    return bytes(itertools.islice(drawn, count))


@EACH
def test_temperature_zero_is_the_largest_logit_of_the_whole_text(name: str) -> None:
    """Read part by part, then byte by byte; ties are beyond rounding here."""
    model = build(name)
    prompt = PROMPT[:50]
    drawn = take(model, prompt, 30, 0.0, part=7)
    with torch.no_grad():
        logits = model(torch.tensor([list(prompt + drawn)]))[0, len(prompt) - 1 : -1]
    first, second = logits.topk(2).values.unbind(1)
    clear = first - second > 1e-4
    assert clear.sum() > 15
    assert (logits.argmax(1) == torch.tensor(list(drawn)))[clear].all()


class Cost(TorchDispatchMode):
    """Operators of torch and the numbers that they return."""

    def __init__(self) -> None:
        super().__init__()
        self.operators = 0
        self.numbers = 0

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = operator(*args, **(kwargs or {}))
        found = result if isinstance(result, tuple | list) else (result,)
        self.operators += 1
        self.numbers += sum(one.numel() for one in found if isinstance(one, torch.Tensor))
        return result


@EACH
def test_a_byte_costs_the_same_wherever_it_stands(name: str) -> None:
    """In operators and in numbers that they write; over a patch, which is a cycle."""
    drawn = continuation(build(name), b"def ")
    costs = []
    for start in (8, 80, 240):
        for _ in range(start):
            next(drawn)
        with Cost() as cost:
            for _ in range(8):
                next(drawn)
        costs.append((cost.operators, cost.numbers))
    assert costs[0] == costs[1] == costs[2]
    assert costs[0][0] > 8


@EACH
def test_the_same_seed_gives_the_same_bytes(name: str) -> None:
    model = build(name)
    drawn = take(model, PROMPT, 24, 1.0, 1.0, 3)
    assert take(model, PROMPT, 24, 1.0, 1.0, 3) == drawn
    assert take(model, PROMPT, 10, 1.0, 1.0, 3) == drawn[:10]
    assert take(model, PROMPT, 24, 1.0, 1.0, 4) != drawn
    assert take(model, b"", 20) == take(model, b"\n", 20)
    assert take(model, PROMPT, 9, 0.0, 1.0, 3) == take(model, PROMPT, 9, 0.0, 1.0, 4)
    model.train()
    assert plkernel.generate(model, PROMPT, count=24, seed=3) == drawn
    assert model.training, "its mode is as it was"


def test_dropout_is_off_for_each_byte_and_on_between_them() -> None:
    """So that a loop of training may look at what its model writes."""
    torch.manual_seed(0)
    model = RWKV(RWKVConfig(6, 32, 2, 16, dropout=0.5))
    initialise_(model, "sp_torch_default", 0)
    drawn = take(model.eval(), PROMPT, 12)
    model.train()
    one_by_one = continuation(model, PROMPT, Sampling())
    for byte in drawn:
        assert next(one_by_one) == byte
        assert all(module.training for module in model.modules())


def counts(sampling: Sampling) -> np.ndarray:
    places = (np.arange(10_000) + 0.5) / 10_000
    return np.bincount([sampling.choose(LOGITS, u) for u in places], minlength=LOGITS.size)


def test_frequencies_are_the_probabilities() -> None:
    """Of equally spaced uniform numbers, to one of 10,000."""
    for temperature in (0.5, 2.5):
        found = counts(Sampling(temperature))
        expected = torch.tensor(LOGITS / temperature).softmax(0).numpy() * 10_000
        assert np.abs(found - expected).max() <= 1
        other = torch.tensor(LOGITS / (1.1 * temperature)).softmax(0).numpy() * 10_000
        assert np.abs(found - other).max() > 10, "those of another temperature are others"
    kept = np.exp(LOGITS[[0, 1, 3, 4, 6]])
    share = np.sort(kept)[::-1].cumsum() / np.exp(LOGITS).sum()
    found = counts(Sampling(1.0, float(share[1]) + 1e-9))
    assert set(np.flatnonzero(found)) == {1, 4, 6}


def test_the_nucleus_is_the_smallest_set_that_reaches_top_p() -> None:
    p = np.array([0.2, 0.5, 0.3])
    for top_p, kept in ((1e-9, {1}), (0.5, {1}), (0.5 + 1e-9, {1, 2}), (0.8 + 1e-9, {0, 1, 2})):
        assert set(np.flatnonzero(nucleus(p, top_p))) == kept
    random = np.random.default_rng(1)
    for _ in range(100):
        p = random.dirichlet(np.full(256, 0.05))
        top_p = random.uniform(0.01, 0.999)
        inside = nucleus(p, top_p)
        found = np.flatnonzero(inside)
        assert inside.sum() == pytest.approx(1, abs=1e-12)
        assert p[found].sum() >= top_p - 1e-12
        assert p[found].sum() - p[found].min() < top_p
        assert p[found].min() >= np.delete(p, found).max(initial=0)
    for k in (1, 77, 255):  # of equally likely bytes the smaller goes first
        assert np.flatnonzero(nucleus(np.full(256, 1 / 256), k / 256)).tolist() == list(range(k))


def test_a_small_temperature_raises_no_error_of_numpy() -> None:
    """exp(-740) is subnormal, and is rounded again where it is divided by the sum."""
    with np.errstate(all="raise"):
        assert Sampling(1e-3).choose([1.0, 1.0, 1.0, 0.26], 0.5) == 1


def test_temperature_zero_takes_the_first_of_equals_and_refuses_what_is_not_finite() -> None:
    for u in (0.0, 0.5, 1 - 2**-53):
        assert Sampling(0.0).choose(LOGITS, u) == Sampling(1e-310).choose(LOGITS, u) == 4
        assert Sampling(0.0).choose([1.0, 5.0, 5.0], u) == 1
    for wrong in (np.nan, np.inf, -np.inf):
        with pytest.raises(FloatingPointError, match="has diverged"):
            Sampling(0.0).choose([0.0, wrong], 0.5)


@pytest.fixture
def trained(tiny_spec: Callable[..., Path], tmp_path: Path) -> Callable[..., Path]:
    """The folder of a run of the tiny spec, of any kind of model."""

    def make(model: str = "") -> Path:
        path = tiny_spec()
        text = path.read_text().replace("[model]\n", f"[model]\n{model}\n")
        path.write_text(text.split("[arms.power-law]")[0])
        run_training(prepare(load_spec(path), "uniform", 0, tmp_path / "out"), progress_bar=False)
        return tmp_path / "out" / "uniform" / "seed-0"

    return make


@pytest.mark.parametrize(
    "model", ["patching = { size = 2 }", 'kind = "rwkv6"\nhead_size = 8'], ids=["ssm", "finch"]
)
def test_a_run_generates(
    model: str,
    trained: Callable[..., Path],
    tmp_path: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From its folder, its checkpoint, and what it was exported to: the same bytes, and only
    they.
    """
    folder = trained(model)
    places = [folder, folder / "checkpoint.safetensors"]
    if "rwkv" in model:
        export(folder, tmp_path / "official.pth")
        places.append(tmp_path / "official.pth")
    prompt = "déf"
    file, out = tmp_path / "prompt", tmp_path / "bytes"
    file.write_bytes(prompt.encode())
    capfdbinary.readouterr()
    expected = take(open_model(folder)[0], prompt.encode(), 40, 0.9, 0.95, 7)
    for place in places:
        generate(place, prompt=prompt, count=40, temperature=0.9, top_p=0.95, seed=7)
        assert capfdbinary.readouterr().out == expected
    options = {"temperature": "0.9", "top-p": ".95", "seed": "7", "bytes": "40"}
    words = [str(folder), *(f"--{name}={value}" for name, value in options.items())]
    for more in ([f"--prompt={prompt}"], [f"--prompt-file={file}"]):
        cli.main(generate, [*words, *more])
        assert capfdbinary.readouterr() == (expected, b"")
    cli.main(generate, [*words, f"--prompt-file={file}", f"--out={out}"])
    assert (capfdbinary.readouterr().out, out.read_bytes()) == (b"", expected)
    with monkeypatch.context() as patch:
        stream = io.TextIOWrapper(io.BytesIO(prompt.encode()))
        patch.setattr(sys, "stdin", stream)
        cli.main(generate, [*words, "--prompt-file=-"])
        assert capfdbinary.readouterr().out == expected
    with monkeypatch.context() as patch:
        patch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
        generate(folder, prompt=prompt, count=40, temperature=0.9, top_p=0.95, seed=7)
    shown = capfdbinary.readouterr().out.decode()
    plain = "".join(
        c if c.isprintable() or c in "\n\t" else "\ufffd"
        for c in (expected + b"\n").decode("utf-8", "replace")
    )
    assert shown == plain, "nothing that commands a terminal"
    run = plkernel.load_run(folder)
    found = plkernel.generate(run, prompt, count=40, temperature=0.9, top_p=0.95, seed=7)
    assert found == expected == run.generate(prompt, count=40, temperature=0.9, top_p=0.95, seed=7)


def test_mistakes_are_one_line(
    trained: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = trained('patching = { size = 2, mode = "published" }')
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text('{"model_type": "bamba"}')
    for name in ("model.safetensors", "model.gguf"):
        (other / name).write_bytes(b"")
    cases = [
        ([str(folder)], "mode must be 'causal' for a state, got 'published'"),
        ([str(tmp_path)], "give the folder of a run that has saved one"),
        ([str(other)], "model must be one of plkernel's own, got"),
        ([str(other / "model.safetensors")], "whose config.json names a model_type"),
        ([str(other / "model.gguf")], "plkernel.inspect reads the decays of others"),
        ([str(tmp_path / "out")], "study"),
        ([str(tmp_path / "missing.pth")], "missing.pth"),
        ([str(folder), "--bytes", "0"], "bytes must lie between 1 and 9223372036854775807, got 0"),
        ([str(folder), "--threads", "0"], "threads must lie between 1 and 1024, got 0"),
        ([str(folder), "--seed", "-1"], "seed must lie between 0 and"),
        ([str(folder), "--temperature", "-1"], "temperature must be at least 0"),
        ([str(folder), "--top-p", "0"], "top_p must be above 0 and at most 1"),
        (
            [str(folder), "--prompt", "a", "--prompt-file", "b"],
            "prompt must be left out beside prompt_file, got 'a'",
        ),
        ([str(folder), "--prompt-file", str(tmp_path / "none")], "none: no such file or folder"),
        ([str(folder), "--prompt-file", str(tmp_path)], "prompt_file must be a file"),
    ]
    if not torch.cuda.is_available():
        cases.append(
            ([str(folder), "--device", "cuda"], "device must be 'cpu' or 'auto' where no GPU is")
        )
    (tmp_path / "out" / "spec.json").write_text("{}")
    capsys.readouterr()
    for arguments, message in cases:
        with pytest.raises(SystemExit) as stop:
            cli.main(generate, arguments)
        output, error = capsys.readouterr()
        assert stop.value.code == 2
        assert message in error
        assert error.count("\n") == 1
        assert output == ""


def test_no_bytes_are_drawn_where_none_are_asked_for() -> None:
    assert plkernel.generate(build("ssm"), count=0) == b""


def test_a_prompt_may_hold_bytes_that_a_shell_could_not_decode() -> None:
    model: Any = build("ssm")
    expected = plkernel.generate(model, b"a\x80", count=4)
    assert plkernel.generate(model, "a\udc80", count=4) == expected


def test_wrong_arguments_of_the_function_are_named() -> None:
    model: Any = build("ssm")
    with pytest.raises(ValueError, match=r"prompt must be a text in UTF-8, got '\\ud800' at"):
        plkernel.generate(model, "a\ud800")
    with pytest.raises(ValueError, match="count must be at least 0, got -1"):
        plkernel.generate(model, count=-1)
    with pytest.raises(ValueError, match="count must be a whole number"):
        plkernel.generate(model, count=1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"count must be at most {sys.maxsize}, got "):
        plkernel.generate(model, count=sys.maxsize + 1)
    with pytest.raises(ValueError, match="seed must lie between 0"):
        plkernel.generate(model, seed=-1)
    with pytest.raises(ValueError, match=r"\(plkernel.load_run opens one\), got 'runs/out/a'"):
        plkernel.generate("runs/out/a")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"of plkernel \(.*load_run.*\), got Linear"):
        plkernel.generate(torch.nn.Linear(2, 2))  # type: ignore[arg-type]
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    with pytest.raises(FloatingPointError, match="logits must be finite"):
        plkernel.generate(model)


def test_a_file_keeps_its_content_where_no_byte_can_be_drawn(tmp_path: Path) -> None:
    """Of a model that has diverged; and a file of the model is never written."""
    model = build("finch")
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    folder = tmp_path / "model"
    save_model(folder, model, "diverged")
    out = tmp_path / "bytes"
    out.write_bytes(b"earlier")
    with pytest.raises(FloatingPointError, match="logits must be finite"):
        generate(folder, out=out)
    assert out.read_bytes() == b"earlier"
    with pytest.raises(ValueError, match="out must be another file than those that are read"):
        generate(folder, out=folder / "checkpoint.safetensors")


@pytest.mark.slow
def test_a_reader_that_has_enough_and_an_interrupt_leave_no_traceback(
    trained: Callable[..., Path], tmp_path: Path
) -> None:
    folder = trained()
    expected = take(open_model(folder)[0], b"def f(", 10)
    words = [sys.executable, "-m", "plkernel.generate", str(folder), "--prompt=def f("]
    words += ["--bytes=100000000"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        assert reader.stderr is not None
        assert reader.stdout.read(10) == expected
        reader.stdout.close()
        assert reader.stderr.read() == b""
    out = tmp_path / "bytes"
    with subprocess.Popen([*words, f"--out={out}"], stderr=subprocess.PIPE) as endless:
        assert endless.stderr is not None
        deadline = time.monotonic() + 120
        while not (out.exists() and out.stat().st_size >= 10) and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(endless.pid, signal.SIGINT)
        assert endless.stderr.read() == b"\ninterrupted\n"
        assert endless.wait() == cli.EXIT_INTERRUPTED
    assert out.read_bytes()[:10] == expected
