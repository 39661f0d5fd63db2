"""python -m plkernel.probe on a run and on a GPT-2 of transformers: its figures, its files, mistakes in one line."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from plkernel.commands.probe import probe
from plkernel.common import cli
from plkernel.common.files import read_lines
from plkernel.config.reading import load_spec
from plkernel.memory.probe import NEED_A_GPU, open_target
from plkernel.training.loop import prepare, run_training

CPU = torch.device("cpu")


@pytest.fixture
def gpt2(tmp_path: Path) -> Path:
    """A GPT-2 with random weights and a tokenizer of 300 pairs of bytes, as transformers saves them."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.BPE())
    words.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    words.train_from_iterator([Path(__file__).read_text()], trainer)
    config = transformers.GPT2Config(
        vocab_size=300, n_positions=32, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    torch.manual_seed(0)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
    transformers.PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(tmp_path / "gpt2")
    return tmp_path / "gpt2"


def run(*args: str | Path) -> None:
    cli.main(probe, [str(arg) for arg in args], prog="python -m plkernel.probe")


def refused(capsys: pytest.CaptureFixture[str], *args: str | Path) -> str:
    with pytest.raises(SystemExit) as stop:
        run(*args)
    assert stop.value.code == cli.EXIT_BAD_INPUT
    return capsys.readouterr().err


def test_a_run_is_probed_on_its_validation_text(
    tiny_spec: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the windows of its last evaluation it has the bits per byte of its last row."""
    run_training(prepare(load_spec(tiny_spec()), "uniform", 0, tmp_path / "out"), progress_bar=False)
    folder = tmp_path / "out" / "uniform" / "seed-0"
    run(
        folder,
        "--windows",
        "4",
        "--lags",
        "1",
        "5",
        "32",
        "--json",
        tmp_path / "p.json",
        "--figure",
        tmp_path / "p.svg",
    )
    found = json.loads((tmp_path / "p.json").read_text())
    last = read_lines(folder / "metrics.jsonl")[-1]
    assert found["bits_per_token"] == pytest.approx(last["val_bpb"], rel=1e-6)
    assert found["positions"]["bits"] == pytest.approx(last["positions"]["bpb"], rel=1e-6)
    assert (found["unit"], found["context"], found["bytes_per_token"]) == ("byte", 32, 1)
    assert found["influence"]["lags"] == found["information"]["lags"] == [1, 5, 32]
    assert all(bits > 0 for bits in found["influence"]["bits"])
    assert "I(d) of the text" in (tmp_path / "p.svg").read_text()
    said = capsys.readouterr().out
    assert "4 windows of 32 bytes" in said
    assert "I(d) of the text" in said


def test_a_model_of_transformers_is_probed_in_tokens(
    gpt2: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With random weights it knows nothing: about log2 300 bits per token, and as many per byte as tokens are long."""
    run(gpt2, "--text", __file__, "--windows", "5", "--json", tmp_path / "p.json", "--figure", tmp_path / "p.pdf")
    found = json.loads((tmp_path / "p.json").read_text())
    assert (found["unit"], found["context"], found["windows"]) == ("token", 32, 5)
    assert found["bits_per_token"] == pytest.approx(np.log2(300), abs=0.2)
    assert found["influence"]["lags"] == found["truncation"]["given"] == [1, 2, 4, 8, 16, 32]
    assert "information" not in found
    said = capsys.readouterr().out
    assert f"{found['bits_per_token'] / found['bytes_per_token']:.4f} bits per byte" in said
    assert found["bytes_per_token"] > 1.2


def test_a_gpt2_without_layers_reads_the_last_token_alone(gpt2: Path, tmp_path: Path) -> None:
    """Exactly nothing beyond lag 1; two layers of random weights read all lags."""
    import transformers

    run(gpt2, "--text", __file__, "--windows", "5", "--json", tmp_path / "two.json")
    assert all(bits > 0 for bits in json.loads((tmp_path / "two.json").read_text())["influence"]["bits"])
    config = transformers.GPT2Config.from_pretrained(gpt2, n_layer=0)
    transformers.GPT2LMHeadModel(config).save_pretrained(gpt2)
    run(gpt2, "--text", __file__, "--windows", "5", "--json", tmp_path / "none.json")
    found = json.loads((tmp_path / "none.json").read_text())
    assert found["influence"]["bits"][0] > 0
    assert found["influence"]["bits"][1:] == [0] * 5


def test_tokens_and_logits_are_those_of_transformers(gpt2: Path) -> None:
    import transformers

    target = open_target(gpt2, CPU)
    text = "def probe(): ...\n"
    tokens = target.encode(np.frombuffer(text.encode(), np.uint8))
    assert transformers.AutoTokenizer.from_pretrained(gpt2).decode(tokens) == text
    inputs = torch.from_numpy(tokens)[None]
    with torch.no_grad():
        expected = transformers.GPT2LMHeadModel.from_pretrained(gpt2).eval()(inputs).logits
        assert torch.equal(target.predict(inputs), expected)


def test_on_a_cpu_transformers_finds_no_kernels_of_gpus(gpt2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    for name in NEED_A_GPU:
        monkeypatch.delitem(sys.modules, name, raising=False)
    hidden: list[bool] = []
    whole = transformers.AutoModelForCausalLM.from_pretrained

    def opened(*args: Any, **options: Any) -> Any:
        hidden.extend(sys.modules.get(name, ...) is None for name in NEED_A_GPU)
        return whole(*args, **options)

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", opened)
    open_target(gpt2, CPU)
    assert hidden == [True] * len(NEED_A_GPU)
    assert not sys.modules.keys() & set(NEED_A_GPU)


def test_what_is_missing_is_said(gpt2: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "at most 32" in refused(capsys, gpt2, "--text", __file__, "--context", "33")
    assert "text must be given" in refused(capsys, gpt2)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (gpt2 / name).unlink()
    assert f"target {gpt2}: no tokenizer" in refused(capsys, gpt2, "--text", __file__)
    (gpt2 / "model.safetensors").unlink()
    assert "does not open it as a causal language model" in refused(capsys, gpt2, "--text", __file__)
    assert "neither a run of ours" in refused(capsys, tmp_path, "--text", __file__)
    assert "no such file or folder" in refused(capsys, tmp_path / "none", "--text", __file__)


def test_transformers_is_asked_for_where_it_is_missing(
    gpt2: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert "pip install transformers" in refused(capsys, gpt2, "--text", __file__)


def test_code_in_the_folder_does_not_run(gpt2: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config: dict[str, Any] = json.loads((gpt2 / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config", "AutoModelForCausalLM": "mine.Model"}}
    (gpt2 / "config.json").write_text(json.dumps(config))
    (gpt2 / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    assert "trust_remote_code" in refused(capsys, gpt2, "--text", __file__)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--windows", "0"], "windows must be at least 1"),
        (["--context", "0"], "context must be at least 1"),
        (["--seed", "-1"], "seed must lie between"),
        (["--figure", "p.txt"], "figure must end in .pdf, .png, .svg"),
    ],
)
def test_numbers_are_checked_first(args: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in refused(capsys, "none", *args)
