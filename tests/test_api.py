"""plkernel from Python: a dozen names that load when asked for, and that say what the commands
say.
"""

import ast
import importlib
import inspect
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, distributed, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.utils import parametrize

import plkernel
from plkernel.analysis.exponentials import power_law_target
from plkernel.analysis.information.copies import Copies
from plkernel.analysis.information.estimate import decay_curves
from plkernel.analysis.information.records import Records
from plkernel.analysis.nodes import node_scores
from plkernel.analysis.results import Result
from plkernel.api import studies, texts
from plkernel.api.models import TextLosses, TrainedRun
from plkernel.config.reading import load_spec
from plkernel.models.init import initialise_
from plkernel.models.power_law import check_writable, decays_, projection_
from plkernel.models.ssm import SSM, SSMConfig
from plkernel.training.checkpoint import digest_of
from plkernel.training.loop import prepare, run_training

ROOT = Path(__file__).parent.parent
COMMANDS = [*(ROOT / "plkernel" / "commands").glob("*.py")]


@pytest.mark.filterwarnings("error")
def test_numbers_of_any_width_mean_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes of wide numbers in memory are no text, and numbers of 8 bits add up beyond them."""
    drawn = np.random.default_rng(0).integers(0, 4, 20_000)
    expected = plkernel.measure(drawn, max_lag=100, lags=(1, 100)).information
    np.save(tmp_path / "drawn.npy", drawn)
    monkeypatch.setenv("HOME", str(tmp_path))
    views = (memoryview(drawn), memoryview(np.repeat(drawn, 2).astype(np.uint8))[::2])
    for text in (*views, "~/drawn.npy"):
        found = plkernel.measure(text, max_lag=100, lags=(1, 100)).information
        assert found.values == expected.values
    small: Any = np.int8(100)
    found = plkernel.measure(drawn, max_lag=small, lags=(np.int8(1), small), blocks=np.int8(40))
    assert found.information.values == expected.values
    assert plkernel.fit(1.15, terms=np.int8(5)).active == plkernel.fit(1.15, terms=5).active
    half = plkernel.fit(Fraction(3, 2), max_lag=np.int16(512)).active
    assert half == plkernel.fit(1.5, max_lag=512).active


def test_every_name_is_there_and_told_to_editors() -> None:
    stub = ast.parse((ROOT / "plkernel" / "__init__.pyi").read_text())
    told = {
        alias.name for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert told == set(plkernel.__all__) <= set(dir(plkernel))
    for node in stub.body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                here = getattr(plkernel, alias.name)
                assert here is getattr(importlib.import_module(str(node.module)), alias.name)
                assert here.__doc__


def test_names_load_what_they_need_and_are_one_thing_with_those_in_modules_of_commands(
    without: Callable[..., tuple[int, str, str]],
) -> None:
    """`from plkernel.fit import fit` is `plkernel.fit`, whichever comes first."""

    def act() -> None:
        load = importlib.import_module
        anew = load("plkernel")
        modules = {name: load(f"plkernel.{name}") for name in ("fit", "measure")}
        functions = {
            name: getattr(anew, name) for name in ("fit", "measure", "inspect", "generate", "trial")
        }
        for name in ("inspect", "generate", "trial"):
            modules[name] = load(f"plkernel.{name}")
        for name, function in functions.items():
            assert getattr(modules[name], name) is function is getattr(anew, name)
            assert getattr(load(f"plkernel.commands.{name}"), name) is function
        assert set(functions) == {path.stem for path in COMMANDS} & set(anew.__all__)
        assert anew.fit(1.15, terms=2).active.rates
        assert anew.place(4).rates

    assert without(("torch",), act) == (0, "", "")


def test_a_name_that_is_a_command_says_how_it_runs(
    without: Callable[..., tuple[int, str, str]],
) -> None:
    """And where a function does the same; the module of the command is imported as before."""

    def act() -> None:
        load = importlib.import_module
        anew = load("plkernel")
        names = {path.stem for path in COMMANDS if path.stem != "__init__"} - set(anew.__all__)
        for name in names:
            told = f"'{name}', which is a command: python -m plkernel.{name}"
            with pytest.raises(AttributeError, match=re.escape(told)):
                getattr(anew, name)
        for name, module in (
            ("corpus", "plkernel"),
            ("experiment", "plkernel"),
            ("probe", "plkernel.probing.predictions"),
            ("report", "plkernel"),
        ):
            with pytest.raises(AttributeError) as raised:
                getattr(anew, name)
            function = re.search(r"; in Python use (\S+)$", str(raised.value))
            assert function
            where, _, found = function[1].rpartition(".")
            assert where == module
            assert callable(getattr(load(where), found))
        with pytest.raises(AttributeError, match=r"has no attribute 'juge'$"):
            _ = anew.juge
        assert load("plkernel.probe") is anew.probe

    assert without((), act) == (0, "", "")


def test_measure_takes_bytes_arrays_and_names(tmp_path: Path) -> None:
    symbols = np.random.default_rng(0).integers(97, 101, 3000)
    (tmp_path / "text.txt").write_bytes(content := symbols.astype(np.uint8).tobytes())
    options = {"max_lag": 8, "lags": (1, 8)}
    forms = (
        content,
        symbols,
        symbols.astype(np.uint8),
        tmp_path / "text.txt",
        str(tmp_path / "text.txt"),
    )
    found = [plkernel.measure(form, **options) for form in forms]
    direct = decay_curves(symbols.astype(np.uint8), found[0].information.lags)[0]
    assert all(one.information == direct for one in found)


@pytest.mark.parametrize("content", ["hello world " * 2000, "one line\nand another"])
def test_a_text_in_place_of_a_name_is_told_how_to_be_given(content: str) -> None:
    with pytest.raises(ValueError, match=r"^text must be .* which is no name; .* text\.encode\(\)"):
        plkernel.measure(content)


def test_another_column_is_named_for_commands_python_and_specs_alike(tmp_path: Path) -> None:
    """It is --column for a command, column= in Python and corpus.column in a spec."""
    path = tmp_path / "rows.jsonl"
    path.write_text('{"body": "a"}\n')
    for read in (plkernel.measure, plkernel.load_corpus):
        with pytest.raises(ValueError, match="with the option column") as raised:
            read(path)
        assert "--" not in str(raised.value)


def test_what_is_no_part_of_the_curve_is_named_where_a_measurement_is_shown() -> None:
    """Without that a text with a period reads as one without memory."""
    found = plkernel.measure(b"abc" * 3000, max_lag=50)
    told = "no memory that stands out from a shuffled corpus; period of 3 bytes, which is not part"
    for shown in (repr(found), found._repr_html_()):
        assert told in shown
    (sentence,) = found.structure
    assert sentence.startswith("period: the composition of the text repeats every 3 bytes; ")
    others = replace(
        found,
        period=None,
        records=Records(length=40.5, low=38, high=43, strength=0.1),
        copies=Copies(pieces=64, found=32),
    )
    layout = "; lines of 38 to 43 bytes, whose layout is not part of I; "
    assert f"{layout}{others.copies.brief()}\n" in repr(others)
    assert [one.partition(":")[0] for one in others.structure] == ["records", "copies"]
    assert replace(others, records=None, copies=None).structure == ()


def test_a_fit_is_placed_and_applied() -> None:
    found = plkernel.fit(0.9, max_lag=256, terms=5).active
    nodes = plkernel.place(32, placement="terms", terms=found, gain="ema")
    assert nodes.gain == "ema"
    assert node_scores(nodes, power_law_target(0.9, 256)).e_log < 0.05
    decays = torch.empty(32)
    weight = torch.ones(3, 32)
    plkernel.apply(nodes, decays, weight, parametrisation="log_rate", max_lag=256)
    assert torch.allclose(decays.exp(), torch.tensor(nodes.rates), rtol=1e-5)
    assert torch.allclose(weight[0], torch.tensor(nodes.projection), rtol=1e-6)
    with pytest.raises(ValueError, match=r"nodes must be as many as the last dimension .* got 32"):
        plkernel.apply(nodes, torch.empty(31), parametrisation="log_rate")


def test_most_half_lives_beyond_the_longest_lag_are_a_warning() -> None:
    flat = {"placement": "quantile", "tempering": 0.5, "gain": "ema", "beta": 0.456}
    with pytest.warns(
        UserWarning, match=r"55 of 64 half-lives, up to 62,690, are longer than max_lag 100 "
    ):
        nodes = plkernel.place(64, max_lag=100, **flat)
    with pytest.warns(UserWarning, match=r"up to 1,283,\d\d\d, are longer than max_lag 2048 "):
        plkernel.place(64, **flat)
    with pytest.warns(UserWarning, match="55 of 64"):
        plkernel.apply(nodes, torch.empty(64), parametrisation="log_rate", max_lag=100)


def test_a_larger_beta_is_advised_for_power_laws_alone() -> None:
    """Not for what is measured, nor for half-lives that are given."""
    advised = r"before it: use a larger beta, or placement 'log-spaced'"
    other = r"before it: use placement 'log-spaced'"
    with pytest.warns(UserWarning, match=advised):
        nodes = plkernel.place(
            64, max_lag=100, placement="quantile", tempering=0.5, gain="ema", beta=0.456
        )
    with pytest.warns(UserWarning, match=other):
        plkernel.apply(nodes, torch.empty(64), parametrisation="log_rate", max_lag=100)
    with pytest.warns(UserWarning, match=advised):
        plkernel.fit(0.001, max_lag=100, terms=1)
    lags = np.arange(1, 101)
    with pytest.warns(UserWarning, match=other):
        plkernel.fit(values=np.exp(-lags / 400), terms=1)


@pytest.fixture
def run(tiny_spec: Callable[..., Path], tmp_path: Path) -> TrainedRun:
    run_training(
        prepare(load_spec(str(tiny_spec())), "uniform", 0, tmp_path / "out"), progress_bar=False
    )
    return plkernel.load_run(str(tmp_path / "out" / "uniform" / "seed-0"))


def test_a_run_is_read_and_evaluated(run: TrainedRun) -> None:
    rows = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert run.metrics["step"].tolist() == [0, 4, 8, 12]
    assert run.metrics["val_bpb"].tolist() == [row["val_bpb"] for row in rows]
    assert run.metrics["saturation.entropy"].iloc[-1] == rows[-1]["saturation"]["entropy"]
    assert run.config["train"]["context"] == 32
    assert run.metrics["step"].dtype == np.int64
    assert "window_bpb" not in run.metrics  # a list
    found = run.evaluate(windows=4)  # those of the run itself
    assert found.bits_per_byte == pytest.approx(rows[-1]["val_bpb"], rel=1e-6)
    assert found.losses.shape == (4, 32)
    assert 0 < found.error < 1
    curve = run.truncation(windows=8)
    assert curve.given[-1] == 32
    assert curve.cost[-1] == 0
    assert list(run.influence(windows=4, lags=[1, 8]).lags) == [1, 8]


def one_hot(tokens: Tensor) -> Tensor:
    return torch.nn.functional.one_hot(tokens, 256).float()


def test_any_callable_is_evaluated_on_any_text() -> None:
    """Of a model that knows nothing a byte costs 8 bits; one that copies the byte before it reads
    lag 1 alone.
    """
    assert plkernel.evaluate(
        uniform, bytes(range(256)) * 4, context=16
    ).bits_per_byte == pytest.approx(8.0, abs=1e-5)

    def copies(tokens: Tensor) -> Tensor:
        return 4.0 * one_hot(tokens)

    text = np.random.default_rng(0).integers(0, 256, 2000)
    found = plkernel.influence(copies, text, context=32, lags=[1, 2, 3], windows=8)
    assert found.bits[0] > 0.1
    assert found.bits[1:] == (0.0, 0.0)

    class Dropping(torch.nn.Module):
        def forward(self, tokens: Tensor) -> SimpleNamespace:
            return SimpleNamespace(
                logits=torch.nn.functional.dropout(copies(tokens), 0.5, self.training).bfloat16()
            )

    dropping = Dropping()
    for model in (dropping, lambda x: copies(x).half()):
        assert plkernel.influence(model, text, context=32, lags=[1, 2, 3], windows=8).bits[1:] == (
            0.0,
            0.0,
        )
    assert dropping.training
    assert plkernel.truncation(copies, text, context=32).cost == pytest.approx([0.0] * 6, abs=1e-6)


def uniform(tokens: Tensor) -> Tensor:
    """Logits of a model that knows nothing."""
    return torch.zeros(*tokens.shape, 256)


TEXT = np.random.default_rng(0).integers(0, 256, 500)
NODES, RATES = plkernel.place(4), torch.empty(4)
SHAPED = plkernel.place(4, longest=100, gain="ema", projection="gain-corrected")


def judged(model: object, **options: object) -> object:
    return plkernel.evaluate(model, TEXT, context=32, windows=4, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: plkernel.measure(np.zeros(9)), "got float64 of shape"),
        (lambda: plkernel.measure(memoryview(np.zeros(9))), "got float64 of shape"),
        (
            lambda: plkernel.measure(np.ma.masked_equal(np.arange(9), 3)),
            "text must not be masked",
        ),
        (lambda: plkernel.measure(TEXT, max_lag=10**400), "max_lag must be less than .* 1.00e.400"),
        (lambda: plkernel.fit(values=np.ma.masked_equal([3.0, 2, 1], 2)), "must not be masked"),
        (lambda: plkernel.fit(values=[1e308, 1e307, 1e306]), "values must be at most 1e.300"),
        (lambda: plkernel.fit(values=[10**400, 2, 1]), "values must be real numbers"),
        (lambda: plkernel.measure(np.zeros((3, 3), int)), r"got int64 of shape \(3, 3\)"),
        (
            lambda: plkernel.influence(uniform, torch.zeros(2, 65, dtype=torch.long), lags=[1]),
            r"shape \(2, 65\); ravel\(\) makes .* plkernel.probing.predictions, such as influence",
        ),
        (
            lambda: plkernel.evaluate(lambda tokens: tokens, np.array([0, 256])),
            "got 0 to 256: np.unique",
        ),
        (
            lambda: plkernel.measure(torch.zeros(9, requires_grad=True)),
            r"text must be bytes, a vector of integers, .* got float32 of shape \(9,\)",
        ),
        (
            lambda: plkernel.measure(torch.zeros(9, dtype=torch.bfloat16)),
            r"got torch.bfloat16 of shape \(9,\) \(TypeError: ",
        ),
        (
            lambda: plkernel.evaluate(uniform, torch.zeros(9, dtype=torch.long).to_sparse()),
            r"got torch.int64 of shape \(9,\) .*Use Tensor.to_dense\(\) first",
        ),
        (lambda: plkernel.measure([[1], [1, 2]]), "a vector of integers, .* got list"),
        (lambda: plkernel.measure("no such file"), "no such file"),
        (
            lambda: plkernel.measure(TEXT, lags=500),
            r"lags must be the first and the last, .* got 500",
        ),
        (lambda: plkernel.measure(TEXT, lags=(1, 2000)), r"max_lag 1000 at most.* got \(1, 2000\)"),
        (
            lambda: plkernel.measure(TEXT, max_lag="9"),
            "max_lag must be a whole number such as 64, got '9'",
        ),
        (lambda: plkernel.place("64"), "channels must be a whole number such as 64, got '64'"),
        (lambda: plkernel.place(64, beta="1.15"), "beta must be a number such as 1.15, got '1.15'"),
        (
            lambda: plkernel.place(64, longest=[2000]),
            r"longest must be a number such as 1.15, got \[2000\]",
        ),
        (lambda: plkernel.fit("1.15"), "beta must be a number such as 1.15, got '1.15'"),
        (lambda: plkernel.fit(1.15, terms=4.0), "terms must be a whole number such as 64, got 4.0"),
        (
            lambda: plkernel.apply(NODES, RATES),
            "parametrisation must say how .*: one of log_rate, .* a_log for A_log",
        ),
        (
            lambda: plkernel.apply(NODES, torch.nn.Linear(4, 4)),
            "decays must be a tensor, got Linear: give its weight",
        ),
        (lambda: plkernel.apply(NODES, np.zeros(4)), "decays must be a tensor, got ndarray"),
        (
            lambda: plkernel.apply(NODES, RATES, torch.nn.Linear(4, 2), parametrisation="log_rate"),
            "projection must be a tensor, got Linear: give its weight, projection.weight",
        ),
        (lambda: plkernel.evaluate(uniform), "text must be given"),
        (
            lambda: plkernel.evaluate(uniform, b"short"),
            "text must hold one window of context .* give a longer text or a smaller context",
        ),
        (
            lambda: plkernel.evaluate(uniform, b"text" * 99, context=0),
            "must be at least 1, got 0, 64 and 4",
        ),
        (
            lambda: judged(lambda x: uniform(x) + 9 * one_hot(x.roll(-1, 1))),
            "not causal: .* moves the logits at",
        ),
        (
            lambda: plkernel.influence(lambda x: 2 * one_hot(x.flip(1)), TEXT, context=32),
            "the model is not causal",
        ),
        (
            lambda: plkernel.truncation(lambda x: 2 * one_hot(x.flip(1)), TEXT, context=32),
            "the model is not causal",
        ),
        (lambda: judged("runs/out/a"), "model must be a callable .* got 'runs/out/a'"),
        (
            lambda: judged(lambda x: uniform(x)[:, -1]),
            r"V above 25\d, for tokens .* \(4, 32\), got .* \(4, 256\)",
        ),
        (
            lambda: judged(lambda x: uniform(x).long()),
            "floating logits .* got torch.int64 of shape",
        ),
        (
            lambda: judged(lambda x: uniform(x)[..., :100]),
            r"V above 25\d, .* of shape \(4, 32, 100\)",
        ),
        (
            lambda: judged(lambda x: (None, uniform(x))),
            "model must return logits, a tensor or .logits, got NoneType",
        ),
        (
            lambda: judged(lambda x, state: uniform(x)),
            r"model: given tokens of shape \(4, 32\), .* raised TypeError",
        ),
        (lambda: plkernel.load_run("."), "holds no config.json; give the folder of a run, STUDY"),
        (
            lambda: plkernel.load_run("runs/records/quick"),
            "which plkernel.report shows; none of its runs",
        ),
        (lambda: plkernel.load_study("nowhere"), "folder nowhere: no such file or folder"),
        (
            lambda: plkernel.inspect("runs/records/quick"),
            "path must be the folder of a run, got the study",
        ),
        (
            lambda: plkernel.run_study("quick", "out", only=["nothing"]),
            "only must match an arm, got 'nothing'",
        ),
        (lambda: plkernel.load_run("nowhere"), "path nowhere: no such file or folder"),
        (lambda: plkernel.load_study("docs"), "holds no spec.json"),
    ],
)
def test_mistakes_are_one_line(
    call: Callable[[], object], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises((ValueError, OSError), match=message):
        call()


def results(run: TrainedRun, folder: Path) -> dict[str, Result]:
    """One result of every kind that the package returns."""
    text = np.random.default_rng(0).integers(0, 4, 20_000)
    save_file(
        {"layer.A_log": torch.zeros(8), "layer.dt_bias": torch.zeros(8)},
        folder / "model.safetensors",
    )
    return {
        "measure": (measured := plkernel.measure(text, max_lag=20)),
        "information": measured.information,
        "fit": plkernel.fit(1.15, terms=6),
        "place": plkernel.place(256, placement="quantile"),
        "evaluate": run.evaluate(windows=4),
        "influence": run.influence(windows=4),
        "truncation": run.truncation(windows=8),
        "inspect": plkernel.inspect(folder / "model.safetensors"),
        "run": plkernel.inspect(run.path),
        "study": plkernel.load_study(ROOT / "runs" / "records" / "memory-lags"),
    }


def test_results_are_short_in_a_notebook_and_are_tables_and_figures(
    run: TrainedRun, tmp_path: Path
) -> None:
    for name, result in results(run, tmp_path).items():
        lines = repr(result).splitlines()
        assert 2 < len(lines) <= 10, name
        assert len(repr(result)) < 1500, name
        assert result._title() == lines[0], name
        assert "<table" in result._repr_html_(), name
        assert len(result.to_frame()) > 0, name
        assert result.plot().axes[0].has_data(), name


def test_units_are_bits(run: TrainedRun) -> None:
    drawn = np.random.default_rng(0).integers(0, 4, 200)
    measured = plkernel.measure(np.repeat(drawn, 100), max_lag=20)
    # Four symbols, each 100 times: of its next a symbol tells two bits less what 1 in 133 draws.
    bits = measured.to_frame()["information"].iloc[0]
    assert bits == pytest.approx(2.0, abs=0.1)
    assert measured.information.values[0] == pytest.approx(bits * np.log(2), rel=1e-12)
    assert run.to_frame()["val_bpb"].tolist() == run.metrics["val_bpb"].tolist()


@pytest.mark.parametrize("name", ["trial", "generate"])
def test_a_function_has_the_defaults_of_its_command(name: str) -> None:
    command = importlib.import_module(f"plkernel.commands.{name}").command
    of_command = inspect.signature(command).parameters
    of_function = inspect.signature(getattr(plkernel, name)).parameters
    shared = set(of_function) & set(of_command) - {"prompt"}  # the function takes bytes
    assert len(shared) > 3
    for one in shared:
        assert of_function[one].default == of_command[one].default, one


@pytest.mark.parametrize("text", [3, ""])
def test_a_trial_of_what_is_no_name_says_what_a_text_is(text: str | int) -> None:
    with pytest.raises(ValueError, match="text must be the name of a corpus, a file or a folder"):
        plkernel.trial(text)  # type: ignore[arg-type]


def test_one_arm_may_be_named_without_a_list(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="only must be names or patterns of arms, got 3"):
        plkernel.run_study("quick", tmp_path, only=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="only must match an arm, got 'none'"):
        plkernel.run_study("quick", tmp_path, only="none")


@pytest.mark.parametrize(
    ("symbols", "is_text"),
    [([0, 255], True), ([0, 256], False), ([-1, 5], False), ([3], True)],
)
def test_integers_from_0_to_255_are_bytes_and_others_are_symbols(
    symbols: list[int], is_text: bool
) -> None:
    found = texts._vector(np.array(symbols))
    assert (found is None) == is_text
    if found is not None:
        assert (found.unit, found.corpus.name, found.corpus.source) == ("symbol", "array", "given")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (b"ab", "bytes"),
        (bytearray(b"ab"), "bytes"),
        (memoryview(b"ab"), "bytes"),
        ([97, 98], "bytes"),
        (np.array([97, 98]), "array"),
    ],
)
def test_bytes_of_any_kind_are_one_text(text: object, name: str) -> None:
    origin, data = texts.read_text(text)  # type: ignore[arg-type]
    assert (origin.name, origin.source) == (name, "given")
    assert (data.dtype, data.tolist()) == (np.uint8, [97, 98])
    assert texts.read_text(np.array([0, 255]))[1].tolist() == [0, 255]
    assert texts.read_text(b"")[1].size == 0


@pytest.mark.parametrize("values", [[0, 256], [-1, 5]])
def test_numbers_that_are_no_bytes_are_no_text(values: list[int]) -> None:
    with pytest.raises(ValueError, match=f"integers from 0 to 255, got {values[0]} to {values[1]}"):
        texts.read_text(np.array(values))


def test_as_many_threads_are_used_as_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """And all cores unless somebody asks."""
    taken: list[dict[str, Any]] = []
    monkeypatch.setattr(texts, "measure_corpus", lambda *_, **options: taken.append(options))
    for threads in (1, 3, None):
        plkernel.measure(b"abc" * 900, threads=threads)
    assert [options["threads"] for options in taken] == [1, 3, os.cpu_count() or 1]
    assert {options["max_lag"] for options in taken} == {1000}
    with pytest.raises(ValueError, match="threads must be at least 1, got 0"):
        plkernel.measure(b"abc" * 900, threads=0)


@pytest.mark.parametrize(
    "given",
    [
        torch.tensor([4.0, 2.0, 1.0, 0.5], requires_grad=True),
        torch.tensor([4.0, 2.0, 1.0, 0.5], dtype=torch.bfloat16),
        torch.nn.Parameter(torch.tensor([4.0, 2.0, 1.0, 0.5]).half()),
    ],
    ids=lambda given: str(given.dtype),
)
def test_a_kernel_may_be_a_tensor_that_numpy_does_not_take(given: Tensor) -> None:
    found = plkernel.fit(values=given)
    assert found == plkernel.fit(values=np.array([4.0, 2.0, 1.0, 0.5]))


def test_a_vector_has_no_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="tokenizer must be left out for a vector of integers"):
        plkernel.measure(np.array([1, 1000]), tokenizer=tmp_path / "tokenizer.json")


WRITABLE: list[tuple[str, Tensor]] = [
    ("in half precision", torch.zeros(4, dtype=torch.bfloat16)),
    ("in double precision", torch.zeros(4, dtype=torch.float64)),
    ("one row of one column, expanded", torch.zeros(1).expand(1)),
    ("with a stride", torch.zeros(8)[::2]),
]


@pytest.mark.parametrize(("words", "tensor"), WRITABLE, ids=[words for words, _ in WRITABLE])
def test_what_has_a_place_for_each_number_is_written(words: str, tensor: Tensor) -> None:
    nodes = plkernel.place(len(tensor)) if len(tensor) > 1 else NODES
    if len(tensor) == 1:
        check_writable("decays", tensor)
        return
    plkernel.apply(nodes, tensor, parametrisation="log_rate")
    expected = torch.tensor(nodes.rates, dtype=torch.float64)
    assert torch.allclose(tensor.double().exp(), expected, rtol=0.02)


@pytest.mark.parametrize("view", [Tensor.flatten, Tensor.t, Tensor.detach, lambda one: one[:]])
def test_a_view_of_a_parameter_is_the_parameter(view: Callable[[Tensor], Tensor]) -> None:
    parameter = nn.Parameter(torch.zeros(2, 2))
    plkernel.apply(NODES, view(parameter), parametrisation="log_rate")
    rates = sorted(parameter.detach().exp().flatten().tolist(), reverse=True)
    assert rates == pytest.approx(NODES.rates, rel=1e-6)


def computed(name: str) -> Tensor:
    """What a parametrization makes of a parameter of zeros."""
    layer = nn.Module()
    layer.register_parameter(name, nn.Parameter(torch.zeros(4)))
    parametrize.register_parametrization(layer, name, nn.Softplus())
    made: Tensor = getattr(layer, name)
    return made


STORED = "must be a tensor that a layer stores, got one that is computed from others"
UNWRITABLE: list[tuple[Any, str]] = [
    (computed("A_log"), f"{STORED} .SoftplusBackward0.*the original of a parametrization"),
    (nn.Parameter(torch.zeros(4, dtype=torch.bfloat16)).float(), f"{STORED} .ToCopy"),
    (nn.Parameter(torch.zeros(5))[[0, 1, 2, 4]], f"{STORED} .IndexBackward0"),
    (nn.Parameter(torch.zeros(2, 2)).t().reshape(-1), f"{STORED} ..*View"),
    (nn.Parameter(torch.zeros(2, 2)).exp().flatten(), f"{STORED} .Exp"),
    (np.zeros(4), "must be a tensor, got ndarray"),
    (torch.zeros(4, dtype=torch.complex64), "16 bits or more, got torch.complex64"),
    (torch.zeros(4, device="meta"), "must hold numbers, got a tensor on the meta device"),
    (torch.zeros(4, dtype=torch.int64), "floating-point numbers of 16 bits or more, got torch.int"),
    (torch.zeros(4).to(torch.float8_e5m2), "16 bits or more, got torch.float8_e5m2"),
    (torch.zeros(4).to_sparse(), "16 bits or more, got a sparse tensor"),
    (torch.zeros(1).expand(4), "must have a place for each number, got an expanded tensor"),
]


@pytest.mark.parametrize(
    ("tensor", "message"), UNWRITABLE, ids=[text[:40] for _, text in UNWRITABLE]
)
def test_what_cannot_be_written_is_refused_as_decays_and_as_projection(
    tensor: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=f"decays .*{message}"):
        plkernel.apply(NODES, tensor, parametrisation="log_rate")
    decays = torch.zeros(4)
    with pytest.raises(ValueError, match=f"projection .*{message}"):
        plkernel.apply(NODES, decays, tensor, parametrisation="log_rate")
    assert not decays.any(), "nothing is written before all is checked"
    with pytest.raises(ValueError, match=f"tensor .*{message}"):
        decays_(tensor, NODES)
    with pytest.raises(ValueError, match=f"weight .*{message}"):
        projection_(tensor, NODES)


def test_weight_norm_is_told_before_anything_is_written() -> None:
    layer = nn.Linear(4, 4)
    nn.utils.parametrizations.weight_norm(layer)
    decays = nn.Parameter(torch.zeros(4))
    with pytest.raises(ValueError, match=f"projection {STORED}"):
        plkernel.apply(NODES, decays, layer.weight, parametrisation="log_rate")
    assert not decays.any()
    magnitudes: Any = layer.parametrizations
    stored = magnitudes.weight.original1
    before = stored.detach().clone()
    plkernel.apply(SHAPED, decays, stored, parametrisation="log_rate")
    assert not torch.equal(stored, before)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("log_rate", {}),
        ("sigmoid", {"cap": 15.0}),
        ("a_log", {"dt_bias": -3.0}),
        ("a_log", {"dt_bias": np.zeros(4)}),
        ("bounded", {"bound": 5.0, "a_log": 0.5}),
        ("rg_lru", {"gate_bias": torch.zeros(4)}),
        ("log_real_part", {"log_step": 1.0}),
    ],
)
def test_apply_knows_no_default_device_or_type(name: Any, options: dict[str, Any]) -> None:
    """Those of the caller: meta, as while a large model is built, and a narrow type."""
    expected = [torch.zeros(4), torch.ones(4, 4)]
    plkernel.apply(SHAPED, *expected, parametrisation=name, **options)
    found = [torch.zeros(4), torch.ones(4, 4)]
    torch.set_default_dtype(torch.bfloat16)
    torch.set_default_device("meta")
    try:
        plkernel.apply(SHAPED, *found, parametrisation=name, **options)
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_lag": 0}, "max_lag must be above 0, got 0"),
        ({"match": 3}, "match must be nodes, as plkernel.place gives them, got int"),
        ({"match": NODES}, "match scales the projection, got no projection; give the matrix"),
        ({"dt_bias": torch.zeros(0)}, "dt_bias must be one or more finite numbers, got none"),
        (
            {"dt_bias": torch.tensor([0.0, np.nan])},
            "dt_bias must be one or more finite numbers, got NaN or infinite ones",
        ),
        (
            {"a_log": torch.zeros(4, dtype=torch.complex64)},
            "a_log must be one or more finite numbers, got torch.complex64",
        ),
        ({"bound": torch.zeros(4).to_sparse()}, "bound must be a dense tensor, got a sparse one"),
        ({"bound": torch.zeros(4, device="meta")}, "bound must hold numbers, got a tensor on"),
        ({"bound": np.array(["a"])}, "bound must be numbers, got <U1"),
    ],
)
def test_options_of_apply_are_checked_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plkernel.apply(NODES, torch.zeros(4), parametrisation="log_rate", **options)


def test_losses_of_a_text_have_their_mean_and_its_error_over_windows() -> None:
    losses = np.array([[1.0, 3.0], [3.0, 5.0]])
    found = TextLosses(3.0, 1.0, losses)
    assert found._title() == "3.0000 +- 1.0000 bits per byte, 2 windows of 2 bytes"
    assert (found.positions.given, found.positions.bpb) == ((1, 2), (2.0, 4.0))

    def bigram(tokens: Tensor) -> Tensor:
        return torch.randn(256, 256, generator=torch.Generator().manual_seed(0))[tokens]

    found = plkernel.evaluate(bigram, TEXT, context=32, windows=4)
    means = found.losses.mean(axis=1, dtype=np.float64)
    assert found.bits_per_byte == pytest.approx(means.mean(), rel=1e-12)
    assert found.error == pytest.approx(means.std(ddof=1) / 2, rel=1e-12)
    assert np.isnan(plkernel.evaluate(bigram, TEXT, context=32, windows=1).error)


def test_the_smallest_evaluations_are_made() -> None:
    """One window of one byte, one at a time, and as many windows as the text has."""
    assert plkernel.evaluate(uniform, b"ab", context=1, windows=1, batch=1).losses.shape == (1, 1)
    assert plkernel.evaluate(uniform, b"abcabc", context=2, windows=9).losses.shape == (2, 2)
    text = bytes(range(256)) * 2
    assert plkernel.evaluate(uniform, text + b"a").losses.shape == (1, 512)
    with pytest.raises(ValueError, match="text must hold one window of context"):
        plkernel.evaluate(uniform, text)
    for option in ("context", "windows", "batch"):
        with pytest.raises(ValueError, match="context, windows and batch must be at least 1"):
            plkernel.evaluate(uniform, b"abcabc", **{"context": 2, option: 0})  # type: ignore[arg-type]
    assert plkernel.truncation(uniform, b"abcabc", context=2).windows == 4, "these overlap"


def test_influence_is_drawn_by_its_seed() -> None:
    def bigram(tokens: Tensor) -> Tensor:
        return torch.randn(256, 256, generator=torch.Generator().manual_seed(0))[tokens]

    first, again, other = (
        plkernel.influence(bigram, TEXT, context=32, windows=2, **seed)  # type: ignore[arg-type]
        for seed in ({}, {"seed": 0}, {"seed": 1})
    )
    assert first.bits == again.bits
    assert first.bits != other.bits
    for seed in (-1, 2**63):
        with pytest.raises(ValueError, match=f"seed must lie between 0 and .*, got {seed}"):
            plkernel.influence(bigram, TEXT, context=32, seed=seed)


def test_modules_are_in_the_mode_in_which_they_were() -> None:
    """Each by itself: a part may be frozen in evaluation mode."""

    class Two(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trained, self.frozen = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1).eval()
            self.seen: list[bool] = []

        def forward(self, tokens: Tensor) -> Tensor:
            self.seen += [self.training, self.trained.training]
            return uniform(tokens)

    model = Two()
    plkernel.evaluate(model, TEXT, context=32, windows=2)
    assert not any(model.seen)
    assert (model.training, model.trained.training, model.frozen.training) == (True, True, False)


def test_a_run_says_how_far_it_has_come(run: TrainedRun) -> None:
    last = run.metrics.iloc[-1]
    assert run._title() == (
        f"{run.path}: 4 evaluations, {last['val_bpb']:.4f} bits per byte after 12 steps"
    )
    assert list(run._table().columns)[:4] == ["step", "bytes", "train_bpb", "val_bpb"]
    assert not run.model.training
    (run.path / "metrics.jsonl").unlink()
    assert run._title() == f"{run.path}: 0 evaluations"


def test_a_study_is_a_table_of_its_arms(declared_study: Callable[..., Path]) -> None:
    found = plkernel.load_study(declared_study(seeds=3))
    assert found._title().startswith("claims: 9 of 12 runs finished. ")
    rows = {row["arm"]: row for row in found._table()}
    assert list(rows) == ["base", "better", "same"]
    assert {row["seeds"] for row in rows.values()} == {3}
    assert list(rows["base"]) == ["arm", "seeds", "bits_per_byte"]
    better = rows["better"]
    assert better["difference"] == pytest.approx(-0.05, abs=0.005)
    assert better["low"] < better["difference"] < better["high"]
    assert better["p"] < 0.05


def test_a_study_in_which_no_run_has_finished_says_so(declared_study: Callable[..., Path]) -> None:
    folder = declared_study(seeds=2)
    (folder / "rows.jsonl").write_text("")
    assert plkernel.load_study(folder)._title().endswith("no run has finished")


def test_a_study_without_a_finished_run_shows_its_runs_and_why_they_failed(
    declared_study: Callable[..., Path],
) -> None:
    folder = declared_study(seeds=2)
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    kept = []
    for row in rows[:2]:
        named = {key: row[key] for key in ("arm", "seed", "config", "environment") if key in row}
        error = "Traceback:\n  line 3\nValueError: too hot\n"
        kept.append(json.dumps({**named, "status": "failed", "error": error}))
    (folder / "rows.jsonl").write_text("\n".join(kept) + "\n")
    found = plkernel.load_study(folder)
    for shown in (repr(found), found._repr_html_()):
        assert "0 of 8 runs finished, 2 failed. no run has finished" in shown
        assert "ValueError: too hot" in shown
    table = found.to_frame()
    assert list(table["status"]).count("failed") == 2
    with pytest.raises(ValueError, match="must hold a finished run"):
        found.plot()


def test_a_study_is_run_in_its_folder_with_what_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default folder is runs/out/NAME; a spec that is trusted stays so."""
    called: list[tuple[Any, ...]] = []
    monkeypatch.setattr(
        "plkernel.study.schedule.run_experiment", lambda *given: called.append(given)
    )
    monkeypatch.setattr(studies, "load_study", lambda folder: folder)
    assert plkernel.run_study("quick") == Path("runs/out/quick")
    assert plkernel.run_study("quick", tmp_path, workers=1, only="a") == tmp_path
    plkernel.run_study("quick", str(tmp_path), only=["a", "b*"])
    assert [given[1:] for given in called] == [
        (Path("runs/out/quick"), None, []),
        (tmp_path, 1, ["a"]),
        (tmp_path, None, ["a", "b*"]),
    ]
    spec = load_spec("quick")
    for trusted, consent, expected in (
        (False, False, False),
        (False, True, True),
        (True, False, True),
    ):
        plkernel.run_study(spec.trusting(trusted), tmp_path, trust_code=consent)
        assert called[-1][0].trusted is expected
    with pytest.raises(ValueError, match="workers must be at least 1, got 0"):
        plkernel.run_study("quick", tmp_path, workers=0)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="out must be a folder, got the file"):
        plkernel.run_study("quick", tmp_path / "file")


def test_a_trial_is_planned_with_its_defaults_and_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the command prints is said in Python too, in its words."""
    planned: list[tuple[Any, ...]] = []

    def plan(text: Any, out: Path | None, options: Any, tell: Any) -> Any:
        planned.append((text, out, options))
        if options.minutes < 1:
            raise ValueError("minutes must be at least 9; or give fewer --seeds")
        tell("goes on; another --out begins anew")
        return SimpleNamespace(out=tmp_path)

    ran: list[Any] = []
    monkeypatch.setattr("plkernel.study.trial.plan_trial", plan)
    monkeypatch.setattr("plkernel.study.trial.run_trial", ran.append)
    monkeypatch.setattr(studies, "load_study", lambda folder: folder)
    assert plkernel.trial("stdlib") == tmp_path
    assert capsys.readouterr() == ("", "goes on; another out= begins anew\n")
    with pytest.raises(ValueError, match=r"or give fewer seeds=$"):
        plkernel.trial("stdlib", minutes=0.2)
    planned.pop()
    plkernel.trial("stdlib", str(tmp_path), model="rwkv7", minutes=2, seeds=4, short=True, dim=32)
    (_, first, plain), (_, second, other) = planned
    assert (first, second, len(ran)) == (None, tmp_path, 2)
    assert (plain.model, plain.minutes, plain.seeds, plain.dim) == ("ssm", 5.0, 3, 64)
    assert (plain.frozen, plain.short, plain.control) == (True, False, True)
    assert (other.model, other.minutes, other.seeds, other.dim) == ("rwkv7", 2, 4, 32)
    assert (other.frozen, other.short, other.control) == (True, True, True)


def test_a_run_shows_its_decays_as_any_checkpoint_does(run: TrainedRun, tmp_path: Path) -> None:
    """`inspect` returns objects with the same attributes of both."""
    opened = plkernel.inspect(run.path)
    copied = tmp_path / "copy" / "model.safetensors"
    copied.parent.mkdir()
    copied.write_bytes((run.path / "checkpoint.safetensors").read_bytes())
    shown = plkernel.inspect(copied)
    assert type(shown) is not type(opened)
    for one in (opened, shown):
        found = [np.sort(np.log(2) / layer.rates.ravel()) for layer in one.layers]
        expected = [np.sort(lives.numpy()) for lives in run.model.half_lives()]
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        assert one.kernels.shape == shown.kernels.shape
        assert one.findings == shown.findings


def test_decays_are_stated_of_other_software_alone(run: TrainedRun) -> None:
    assert plkernel.inspect(run.path).path == run.path
    with pytest.raises(ValueError, match="decays must be left out for a run of plkernel"):
        plkernel.inspect(run.path, decays={"*.decay": "sigmoid"})


def test_what_is_no_path_and_no_module_is_told_by_its_type() -> None:
    """Not by its repr, which takes many lines, and with what reads it."""
    layer = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    state = dict(layer.state_dict())
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: plkernel.inspect(layer), "got Sequential; plkernel.watch(model) reads"),  # type: ignore[arg-type]
        (lambda: plkernel.inspect(state), "got dict; write tensors to a file with"),  # type: ignore[arg-type]
        (lambda: plkernel.load_run(state), "path must be a path, got dict"),  # type: ignore[arg-type]
        (lambda: plkernel.watch(state), "got dict; plkernel.inspect(path) reads"),  # type: ignore[arg-type]
        (lambda: plkernel.watch("x.pth"), "got 'x.pth'; plkernel.inspect(path) reads"),  # type: ignore[arg-type]
        (lambda: plkernel.watch([layer]), "must be a torch.nn.Module, got list"),  # type: ignore[arg-type]
    ]
    for call, message in calls:
        with pytest.raises(ValueError, match="must be a") as told:
            call()
        assert message in str(told.value)
        assert "\n" not in str(told.value)
        assert len(str(told.value)) < 150


@pytest.mark.parametrize("wrap", [partial(torch.compile, backend="eager"), torch.nn.DataParallel])
def test_a_wrapped_model_is_cut_where_its_patches_begin(wrap: Callable[..., Any]) -> None:
    patched = SSM(SSMConfig(dim=8, layers=1, patch=4, mode="causal"))
    model = initialise_(patched, "transformers_default", 0)
    found = plkernel.truncation(wrap(model), TEXT, context=32, windows=4)
    alone = plkernel.truncation(model, TEXT, context=32, windows=4)
    assert found.given == alone.given == (4, 8, 16, 32)
    assert found.bpb == alone.bpb
    assert plkernel.generate(wrap(model), count=4) == plkernel.generate(model, count=4)
    sees_ahead = SSM(SSMConfig(dim=8, layers=1, patch=2, mode="published"))
    with pytest.raises(ValueError, match="got patching mode 'published', which sees ahead"):
        plkernel.evaluate(wrap(sees_ahead), TEXT, context=32)


def test_a_model_whose_layers_are_recomputed_is_cut_where_its_patches_begin() -> None:
    """As FSDP, activation checkpointing hands on the attributes of the model that it wraps."""
    patched = SSM(SSMConfig(dim=8, layers=1, patch=4, mode="causal"))
    model = initialise_(patched, "transformers_default", 0)
    alone = plkernel.truncation(model, TEXT, context=32, windows=4)
    found = plkernel.truncation(checkpoint_wrapper(model), TEXT, context=32, windows=4)
    assert found.given == alone.given == (4, 8, 16, 32)
    assert found.bpb == alone.bpb


@pytest.mark.filterwarnings("ignore:FSDP is switching to use", "ignore:.*NO_SHARD")
def test_the_model_in_fsdp_is_run_by_its_wrapper(tmp_path: Path) -> None:
    """The wrapper gathers the shards; the model alone would compute with what is left of them."""
    patched = SSM(SSMConfig(dim=8, layers=1, patch=4, mode="causal"))
    model = initialise_(patched, "transformers_default", 0)
    alone = plkernel.truncation(model, TEXT, context=32, windows=4)
    distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1
    )
    try:
        wrapped = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
        calls: list[None] = []
        wrapped.register_forward_hook(lambda *_: calls.append(None))
        found = plkernel.truncation(wrapped, TEXT, context=32, windows=4)
    finally:
        distributed.destroy_process_group()
    assert calls
    assert found.given == alone.given == (4, 8, 16, 32)
    assert found.bpb == pytest.approx(alone.bpb)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("seed", -1, "seed must be a whole number from 0, got -1"),
        ("seed", "x", "seed must be a whole number from 0, got 'x'"),
        ("context", "x", "train.context must be a whole number from 1, got 'x'"),
        ("context", 1.5, "train.context must be a whole number from 1, got 1.5"),
    ],
)
def test_numbers_that_no_run_has_are_told_where_file_and_checkpoint_agree(
    run: TrainedRun, name: str, value: Any, message: str
) -> None:
    config = run.config
    (config if name == "seed" else config["train"])[name] = value
    (run.path / "config.json").write_text(json.dumps(config))
    forge(run.path / "checkpoint.safetensors", config=json.dumps(config))
    with pytest.raises(ValueError, match=message):
        run.evaluate(windows=2)


def forge(path: Path, **changes: str) -> None:
    """Write a checkpoint with other metadata, and with their digest."""
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() | changes
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    metadata["digest"] = digest_of(tensors, metadata)
    save_file(tensors, path, metadata=metadata)


def test_a_copied_checkpoint_of_a_patched_model_is_read_per_byte(
    tiny_spec: Callable[..., Path], tmp_path: Path
) -> None:
    """Without its config.json too: the file itself says how many bytes a step has."""
    path = tiny_spec()
    path.write_text(path.read_text().replace("[train]", "[model.patching]\nsize = 4\n[train]"))
    run_training(prepare(load_spec(str(path)), "uniform", 0, tmp_path / "out"), progress_bar=False)
    folder = tmp_path / "out" / "uniform" / "seed-0"
    per_step = plkernel.load_run(folder).layers
    copied = tmp_path / "copied" / "model.safetensors"
    copied.parent.mkdir()
    shutil.copy(folder / "checkpoint.safetensors", copied)
    for target in (copied, copied.parent):
        for layer, known in zip(plkernel.inspect(target).layers, per_step, strict=True):
            np.testing.assert_allclose(layer.rates, known.rates / 4)


def test_a_run_is_opened_and_drawn_without_a_random_number(run: TrainedRun) -> None:
    before = torch.get_rng_state()
    assert run.model.config.dim == 16
    run.plot()
    assert torch.equal(torch.get_rng_state(), before)


def test_a_run_is_opened_in_its_own_type_and_on_the_cpu(run: TrainedRun) -> None:
    expected = run.evaluate(windows=2).bits_per_byte
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    try:
        assert plkernel.load_run(run.path).evaluate(windows=2).bits_per_byte == expected
        assert torch.empty(1).dtype == torch.float64
        assert torch.empty(1).is_meta
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": {"context": "x"}}, "train.context was 32, is now 'x'"),
        ({"train": {"context": None}}, "train.context was 32, is now None"),
        ({"train": None}, "train was .*, is now None"),
        ({"corpus": 5}, "config.json must describe a model"),
        ([], r"config.json must hold an object, got \[\]"),
    ],
)
def test_a_damaged_configuration_of_a_run_is_told_before_it_is_used(
    run: TrainedRun, changes: Any, message: str
) -> None:
    config: Any = changes
    if changes:
        ((name, value),) = changes.items()
        part = {**run.config[name], **value} if isinstance(value, dict) else value
        config = {**run.config, name: part}
    (run.path / "config.json").write_text(json.dumps(config))
    for measure in (run.evaluate, run.truncation, run.influence):
        with pytest.raises(ValueError, match=message):
            measure(windows=2)


def test_a_run_whose_text_is_elsewhere_says_how_another_is_given(run: TrainedRun) -> None:
    Path(run.config["corpus"]["name"]).write_text("another text\n" * 999)
    with pytest.raises(ValueError, match=r"another sha256; name one with text=$"):
        run.evaluate()
    with pytest.raises(ValueError, match=r"another sha256; name one with text=$"):
        run.plot()
    with pytest.raises(ValueError, match="text must be the name of a corpus, got"):
        run.plot(b"bytes")  # type: ignore[arg-type]
    other = Path(run.config["corpus"]["name"]).with_name("other.txt")
    other.write_text("a text that is as long as it must be\n" * 999)
    assert run.plot(other).axes


def test_parameters_that_nobody_has_filled_are_named_where_logits_are_nan() -> None:
    """Logits of a new model are NaN too, and no earlier checkpoint would help."""
    model = SSM(SSMConfig(layers=1, dim=16))
    asked = (
        "parameters are NaN, .* until plkernel.models.init.initialise_.model, scheme, seed. fills"
    )
    with pytest.raises(FloatingPointError, match=f"logits must be finite, got others; {asked}"):
        plkernel.generate(model, count=1)
    with pytest.raises(ValueError, match=f"NaN at position 0 of window 0; {asked}"):
        plkernel.evaluate(model, b"text" * 500, context=64)

    def diverged(tokens: Tensor) -> Tensor:
        return torch.full((*tokens.shape, 256), torch.nan)

    with pytest.raises(ValueError, match=r"of window 0: has its training diverged\?$"):
        plkernel.evaluate(diverged, b"text" * 500, context=64)


def test_a_run_is_trained_without_a_standard_error(
    tiny_spec: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr", None)
    task = prepare(load_spec(str(tiny_spec())), "uniform", 0, tmp_path / "out")
    assert run_training(task)["status"] == "finished"
