"""python -m plkernel.generate: exact at every byte, constant in memory, and reproducible."""

import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from plkernel.analysis.nodes import place
from plkernel.commands.export import export
from plkernel.commands.generate import continuation, generate
from plkernel.common import cli
from plkernel.config.reading import load_spec
from plkernel.models.init import initialise_
from plkernel.models.rwkv import RWKV, RWKVConfig
from plkernel.models.rwkv7 import RWKV7, RWKV7Config
from plkernel.models.sampling import Sampling
from plkernel.models.ssm import SSM, SSMConfig
from plkernel.training.build import Model
from plkernel.training.checkpoint import open_model
from plkernel.training.loop import prepare, run_training

SSMS = [SSMConfig(32, 2, "none", 1), SSMConfig(32, 2, "ema", 2), SSMConfig(32, 2, "lru", 4)]
RWKVS: list[RWKVConfig | RWKV7Config] = [
    RWKVConfig(5, 32, 2, 16),
    RWKVConfig(6, 32, 2, 16),
    RWKVConfig(6, 32, 2, 16, k_clamp=True),
    RWKV7Config(32, 2, 16),
]
PROMPT = bytes(np.random.default_rng(5).integers(0, 256, 2500, dtype=np.uint8))


def kind(config: SSMConfig | RWKVConfig | RWKV7Config) -> str:
    """The name of a case."""
    if isinstance(config, SSMConfig):
        return f"ssm-{config.gain}-{config.patch}"
    return f"rwkv{config.version}{'-k_clamp' if config.k_clamp else ''}"


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def build(config: SSMConfig | RWKVConfig | RWKV7Config) -> Model:
    """An initialised model with matrices large enough for bytes far back to matter."""
    if isinstance(config, RWKVConfig):
        return initialise_(RWKV(config), "sp_torch_default", 0)
    if isinstance(config, RWKV7Config):
        return initialise_(RWKV7(config), "sp_torch_default", 0)
    model = initialise_(SSM(config), "transformers_default", 0)
    for recurrence in model.recurrences():
        recurrence.place_(place(config.dim, gain=config.gain, step=config.patch))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(5.0)
    return model


def take(model: Model, prompt: bytes, count: int, sampling: Sampling | None = None, seed: int = 0, **how: int) -> bytes:
    drawn = continuation(model, prompt, sampling or Sampling(), seed, **how)
    return bytes(itertools.islice(drawn, count))


class Spy:
    """A model that notes how many bytes it is given at once, and its logits."""

    def __init__(self, model: Model) -> None:
        self.model, self.parameters, self.initial_state = model, model.parameters, model.initial_state
        self.lengths: list[int] = []
        self.logits: list[Tensor] = []

    def resume(self, inputs: Tensor, state: object) -> tuple[Tensor, object]:
        assert inputs.shape[0] == 1
        logits, state = self.model.resume(inputs, state)
        self.lengths.append(inputs.shape[1])
        self.logits.append(logits)
        return logits, state


@pytest.mark.parametrize("config", [*SSMS, *RWKVS], ids=kind)
def test_every_byte_is_drawn_from_the_logits_of_the_whole_text(config: SSMConfig | RWKVConfig | RWKV7Config) -> None:
    """Window of the prompt by window and then byte by byte, in float32, against one pass over everything."""
    spy = Spy(build(config))
    drawn = take(spy, PROMPT[:100], 41, size=33)
    assert spy.lengths == [33, 33, 33, 1] + [1] * 40
    with torch.no_grad():
        whole = spy.model(torch.tensor([list(PROMPT[:100] + drawn[:40])]))
    assert whole.std() > 0.1, "logits must vary, or the test cannot fail"
    assert (torch.cat(spy.logits, 1) - whole).abs().max() < 1e-6 * whole.abs().max()


def test_a_prompt_is_read_window_by_window_and_an_empty_one_is_a_newline() -> None:
    spy = Spy(build(SSMS[0]))
    take(spy, PROMPT, 2)
    assert spy.lengths == [1024, 1024, 452, 1]
    assert take(spy, b"", 20) == take(spy, b"\n", 20)


@pytest.mark.parametrize("config", [SSMS[2], RWKVS[1]], ids=kind)
def test_the_same_seed_gives_the_same_bytes(config: SSMConfig | RWKVConfig | RWKV7Config) -> None:
    """Whatever the windows of the prompt; another seed others; more bytes only add to them; greedy needs no seed."""
    model = build(config)
    drawn = take(model, PROMPT, 24)
    assert take(model, PROMPT, 24) == drawn
    assert take(model, PROMPT, 10) == drawn[:10]
    short = take(model, PROMPT[:50], 24)
    for size in (1, 7, 4096):
        assert take(model, PROMPT[:50], 24, size=size) == short
    assert take(model, PROMPT, 24, seed=1) != drawn
    assert take(model, PROMPT, 24, Sampling(0.0)) == take(model, PROMPT, 24, Sampling(0.0), seed=1)


def test_a_diverged_model_says_so() -> None:
    model = build(SSMS[0])
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    with pytest.raises(FloatingPointError, match="logits are not finite"):
        take(model, b"", 1)


@pytest.fixture
def trained(tiny_spec: Callable[..., Path], tmp_path: Path) -> Callable[..., Path]:
    """The folder of a run of the tiny spec, of any kind of model."""

    def make(model: str = "") -> Path:
        path = tiny_spec()
        path.write_text(path.read_text().replace("[model]\n", f"[model]\n{model}\n").split("[arms.power-law]")[0])
        run_training(prepare(load_spec(path), "uniform", 0, tmp_path / "out"), progress_bar=False)
        return tmp_path / "out" / "uniform" / "seed-0"

    return make


@pytest.mark.parametrize(
    "model",
    [
        "patching = { size = 2 }",
        'kind = "rwkv6"\nhead_size = 8',
        'kind = "rwkv7"\nhead_size = 16',
    ],
    ids=str,
)
def test_a_run_generates(
    model: str,
    trained: Callable[..., Path],
    tmp_path: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From its folder, its checkpoint, and (RWKV) what it was exported to: the same bytes, and only they."""
    folder = trained(model)
    places = [folder, folder / "checkpoint.safetensors"]
    if "rwkv" in model:
        export(folder, tmp_path / "official.pth")
        places.append(tmp_path / "official.pth")
    file = tmp_path / "prompt"
    file.write_bytes("déf".encode())
    capfdbinary.readouterr()
    expected = take(open_model(folder), "déf".encode(), 40, Sampling(0.9, 0.95), 7)
    for place_ in places:
        generate(place_, prompt="déf", count=40, temperature=0.9, top_p=0.95, seed=7)
        assert capfdbinary.readouterr().out == expected
    with monkeypatch.context() as patch:
        patch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
        generate(folder, prompt="déf", count=40, temperature=0.9, top_p=0.95, seed=7)
    shown = capfdbinary.readouterr().out.decode()
    assert all(one.isprintable() or one in "\n\t" for one in shown), "nothing that commands a terminal"
    options = {"temperature": "0.9", "top-p": ".95", "seed": "7", "bytes": "40", "prompt-file": str(file)}
    cli.main(generate, [str(folder), *(f"--{name}={value}" for name, value in options.items())])
    assert capfdbinary.readouterr() == (expected, b"")


def test_mistakes_are_one_line(
    trained: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = trained('patching = { size = 2, mode = "published" }')
    cases = [
        ([str(folder)], "no likelihood of the next byte to sample from; give one with mode 'causal'"),
        ([str(tmp_path)], "plkernel.load reads an official RWKV"),
        ([str(tmp_path / "missing.pth")], "missing.pth"),
        ([str(folder), "--bytes", "0"], "bytes must be at least 1, got 0"),
        ([str(folder), "--threads", "0"], "threads must lie between 1 and 1024, got 0"),
        ([str(folder), "--threads", str(10**20)], "threads must lie between 1 and 1024, got 1"),
        ([str(folder), "--seed", "-1"], "seed must lie between 0 and"),
        ([str(folder), "--temperature", "-1"], "temperature must be at least 0"),
        ([str(folder), "--top-p", "0"], "top_p must be above 0 and at most 1"),
        ([str(folder), "--prompt", "a", "--prompt-file", "b"], "prompt and prompt_file exclude each other"),
        ([str(folder), "--prompt-file", str(tmp_path / "none")], "No such file or directory"),
        ([str(folder), "--prompt-file", str(tmp_path)], "Is a directory"),
    ]
    if not torch.cuda.is_available():
        cases.append(([str(folder), "--device", "cuda"], "device 'cuda' is not available here"))
    capsys.readouterr()
    for arguments, message in cases:
        with pytest.raises(SystemExit) as stop:
            cli.main(generate, arguments)
        output, error = capsys.readouterr()
        assert stop.value.code == 2
        assert message in error
        assert error.count("\n") == 1
        assert output == ""


@pytest.mark.slow
def test_a_reader_that_has_enough_leaves_no_traceback(trained: Callable[..., Path]) -> None:
    folder = trained()
    command = f"{sys.executable} -m plkernel.generate {folder} --bytes 1000000 --prompt 'def f(' | head -c 10"
    done = subprocess.run(command, shell=True, capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (take(open_model(folder), b"def f(", 10), b"")
