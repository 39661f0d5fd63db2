"""Mistakes on the command line and in calls: one line that names what was wrong and what would
work, before anything slow.
"""

import inspect
import math
import re
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
import torch
import tyro
from safetensors.torch import save_file
from torch import Tensor, nn

import plkernel
from plkernel.__main__ import commands
from plkernel.analysis.exponentials import ExponentialSum
from plkernel.common import cli
from plkernel.config import reading
from plkernel.models.rwkv import RWKV, RWKVConfig
from plkernel.models.ssm import SSM, SSMConfig
from plkernel.testing import assert_decays_survive
from plkernel.training import build, check, loop
from plkernel.training.checkpoint import save_model

Shown = pytest.CaptureFixture[str]


def refused(name: str, *words: str, shown: Shown) -> str:
    """Call a command that must fail; return the text on standard error."""
    module = import_module(f"plkernel.commands.{name}")
    if name in ("experiment", "train"):
        call = partial(
            reading.main, module.command, words, check, getattr(module, "check_arguments", None)
        )
    elif name == "init":
        call = partial(cli.main, getattr(module, words[0]), words[1:])
    else:
        command = getattr(module, "command", None) or getattr(module, name)
        call = partial(cli.main, command, words)
    with pytest.raises(SystemExit) as stop:
        call()
    assert stop.value.code == cli.EXIT_BAD_INPUT
    return shown.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "experiment quick --only nothing",
            "only must match an arm, got 'nothing'; valid: concentrated, log-spaced",
        ),
        ("experiment quick --only", "--only must be a text, got nothing"),
        ("experiment quick --only --retry", "--only must be a text, got nothing"),
        ("experiment quick --workers 0", "workers must be at least 1, got 0"),
        ("experiment quick --workers x", "--workers must be a whole number or auto, got 'x'"),
        ("experiment quick --pilot nope", "pilot nope: no such file or folder"),
        (
            "experiment quick --pilot study/arm",
            "pilot must be the folder of a study or of a record, with a spec.json, got study/arm",
        ),
        ("experiment study", "spec study must be a regular file, got a folder"),
        ("run study", "config study must be a regular file, got a folder"),
        ("run short.txt", "short.txt must describe a run, as a config.json does"),
        ("load study model", "source study must be a regular file, got a folder"),
        ("load short.txt study/arm/seed-0", "out must hold no model, got study/arm/seed-0 with a"),
        ("judge short.txt --hypotheses study", "hypotheses study must be a regular file"),
        ("generate study/arm --prompt-file nope", "prompt_file nope: no such file or folder"),
        ("generate study/arm --prompt-file study", "prompt_file must be a file, got the folder"),
        ("generate study/arm --out study", "out must be a file, got the folder study"),
        ("generate study/arm --out short.txt/a", "out short.txt/a: cannot be written (a file is"),
        ("inspect model.pth --compare nope", "compare nope: no such file or folder"),
        ("experiment quick --register --dry-run", "register must be left out beside dry_run"),
        (
            "train quick",
            "arm 'log-spaced', the baseline, as --arm names none; others: 'published-weight', ",
        ),
        (
            "measure nofile",
            "corpus must be a file, a folder or the name of a corpus, got 'nofile'; valid: bible",
        ),
        ("measure nosuch.txt", "corpus nosuch.txt: no such file or folder"),
        ("measure short.txt", "short.txt: "),
        (
            "measure stdlib --max-bytes 1XB",
            "max_bytes must be a number of bytes such as 500000, 500k, 10MB",
        ),
        (
            "inspect study",
            (
                "which plkernel.report shows; give one of its runs, such as"
                f" {Path('study/arm/seed-0')}"
            ),
        ),
        (
            "probe study",
            "target must be the folder of a run, got the study study, which plkernel.report shows",
        ),
        (
            "report study/arm/seed-0",
            "holds no spec.json: it is a run, which plkernel.inspect shows; give the folder",
        ),
        (
            "init show nope",
            "scheme must be the name of one, got 'nope'; plkernel.init list names all, such as mup",
        ),
    ],
)
def test_mistakes_are_told_at_once(
    words: str, message: str, tmp_path: Path, capsys: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder with a study, a run in it and a short text."""
    monkeypatch.chdir(tmp_path)
    Path("study/arm/seed-0").mkdir(parents=True)
    for name in ("study/spec.json", "study/arm/seed-0/config.json", "short.txt", "model.pth"):
        Path(name).write_text("{}")
    if words.startswith("experiment"):  # no arm may have been resolved

        def fail(*_: object) -> None:
            raise AssertionError("an arm was resolved")

        monkeypatch.setattr(build.Prepared, "of", fail)

    def stop(*_: object) -> None:
        raise ValueError("trained")

    monkeypatch.setattr(loop, "prepare", stop)
    said = refused(*words.split(), shown=capsys)
    assert message in said
    assert len(said.splitlines()) == 1 + words.startswith("train")


class Heads(nn.Module):
    """A bare layer of Mamba-2 that knows nothing of its text."""

    def __init__(self, heads: int = 4) -> None:
        super().__init__()
        self.A_log, self.dt_bias = nn.Parameter(torch.rand(heads)), nn.Parameter(torch.rand(heads))

    def forward(self, tokens: Tensor) -> Tensor:
        return torch.zeros(*tokens.shape, 256)


TEXT = np.random.default_rng(0).integers(0, 256, 500)
NODES = plkernel.place(4)
HEADS = Heads()
OURS = SSM(SSMConfig(dim=4, layers=1))
META = torch.zeros(4, device="meta")
EMPTY = torch.zeros(0)
NOT_FINITE = [math.nan, math.inf, -math.inf]
NO_NUMBERS = ["4", [], META, EMPTY]
NO_COUNTS = [*NOT_FINITE, *NO_NUMBERS, 2.5, True, -1]
NO_PATHS = ["", 3, math.nan, META, HEADS, None]
NO_MODELS = [None, "model", 3, math.nan, META, [HEADS], Heads, HEADS.state_dict()]
NO_DECAYS = [None, 3.0, "A_log", [], META, np.zeros(4), HEADS, torch.zeros(4, dtype=torch.long)]
NO_DECAYS += [torch.zeros(4).to_sparse(), torch.zeros(1).expand(4), torch.zeros(4).bool()]
NO_DECAYS += [torch.zeros(4, dtype=torch.cfloat), torch.zeros(4, dtype=torch.float8_e5m2)]
NO_OPTIONS = [*NOT_FINITE, *NO_NUMBERS, torch.full((4,), math.nan), np.array([]), 1j]
NO_OPTIONS += [torch.ones(4).to_sparse(), torch.ones(4, dtype=torch.cfloat)]
NO_TEXTS: list[Any] = [np.array([]), np.array([math.nan]), np.array([-1]), META, 3, None]
NO_TEXTS += [np.zeros(0, int), b"", torch.zeros(4), "no such file"]
LOGITS: list[Any] = [
    lambda x: HEADS(x) * math.nan,
    lambda x: HEADS(x) + math.inf,
    lambda x: HEADS(x)[..., :0],
    lambda x: HEADS(x).to("meta"),
    lambda x: None,
    Heads().to("meta"),
    nn.Linear(2, 2),
]


def applied(form: str, **options: Any) -> None:
    plkernel.apply(NODES, torch.zeros(4), **{"parametrisation": form, **options})  # type: ignore[arg-type]


def asked(name: str, **options: Any) -> object:
    given = {"context": 16, "windows": 4, "batch": 2, **options}
    return getattr(plkernel, name)(given.pop("model", HEADS), given.pop("text", TEXT), **given)


def survive(**options: Any) -> None:
    assert_decays_survive(**{"factory": Heads, "steps": ["deepcopy"], **options})


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD(HEADS.parameters(), lr=1e-3)


Call = Callable[[Any], object]
MISUSES: list[tuple[str, str, Call, list[Any]]] = [
    # the function; a pattern of the message; the call; what it is given
    ("fit", "beta", lambda x: plkernel.fit(x), [*NOT_FINITE, *NO_NUMBERS, 0.0, True, 1j]),
    ("fit", "max_lag", lambda x: plkernel.fit(1.15, max_lag=x), [*NO_COUNTS, 0]),
    ("fit", "terms", lambda x: plkernel.fit(1.15, terms=x), [*NO_COUNTS, 0]),
    ("place", "channels", lambda x: plkernel.place(x), [*NO_COUNTS, 0]),
    ("place", "beta", lambda x: plkernel.place(8, beta=x), [*NOT_FINITE, *NO_NUMBERS, 0.0]),
    ("place", "step", lambda x: plkernel.place(8, step=x), [*NOT_FINITE, *NO_NUMBERS, 0.0, 1e-310]),
    ("place", "longest", lambda x: plkernel.place(8, longest=x), [*NOT_FINITE, *NO_NUMBERS, 0.0]),
    (
        "place",
        "shortest",
        lambda x: plkernel.place(8, shortest=x),
        [*NOT_FINITE, *NO_NUMBERS, 0, 1e-320],
    ),
    (
        "place",
        "fastest",
        lambda x: plkernel.place(8, placement="quantile", fastest=x),
        [math.nan, -1.0, 0.0, *NO_NUMBERS],
    ),
    ("place", "fastest", lambda x: plkernel.place(8, fastest=x), [0.1, math.inf]),
    ("place", "gain", lambda x: plkernel.place(8, gain=x), ["none at all", [], 3, None]),
    ("place", "kernel", lambda x: plkernel.place(8, kernel=x), ["no", [], 3, None]),
    ("apply", "nodes", lambda x: plkernel.apply(x, EMPTY), [None, 4, "x", [], (1.0, 2.0), META]),
    (
        "apply",
        "decays",
        lambda x: plkernel.apply(NODES, x, parametrisation="log_rate"),
        NO_DECAYS,
    ),
    ("apply", "projection", lambda x: applied("log_rate", projection=x), NO_DECAYS[1:]),
    ("apply", "dt_bias", lambda x: applied("a_log", dt_bias=x), NO_OPTIONS),
    ("apply", "a_log", lambda x: applied("dt_bias", a_log=x), NO_OPTIONS),
    ("apply", "log_step", lambda x: applied("log_real_part", log_step=x), NO_OPTIONS),
    ("apply", "gate_bias", lambda x: applied("rg_lru", gate_bias=x), NO_OPTIONS),
    ("apply", "parametrisation", lambda x: applied(x), ["x", None, [], 3]),
    ("apply", "match", lambda x: applied("log_rate", match=x), [3, "x", math.nan, [], META]),
    ("apply", "max_lag", lambda x: applied("log_rate", max_lag=x), [math.nan, -1, 0, *NO_NUMBERS]),
    ("apply", "dim", lambda x: applied("log_rate", dim=x), ["x", [], 0.5, math.nan]),
    (
        "apply",
        "nodes must be as many as",
        lambda x: plkernel.apply(NODES, x, parametrisation="log_rate"),
        [EMPTY, torch.zeros(3), torch.tensor(1.0)],
    ),
    ("measure", "text|corpus|data", lambda x: plkernel.measure(x), NO_TEXTS),
    ("measure", "max_lag", lambda x: plkernel.measure(TEXT, max_lag=x), [*NO_COUNTS, 0]),
    ("measure", "threads", lambda x: plkernel.measure(TEXT, threads=x), [*NO_COUNTS]),
    (
        "measure",
        "blocks",
        lambda x: plkernel.measure(TEXT, blocks=x, max_lag=5),
        [*NO_COUNTS, 0, 1],
    ),
    (
        "measure",
        "max_bytes",
        lambda x: plkernel.measure(COPIES, max_bytes=x),
        [*NO_COUNTS, 0],
    ),
    (
        "measure",
        "separator",
        lambda x: plkernel.measure(COPIES, separator=x),
        [3, "", "ab", [], META, None],
    ),
    ("measure", "column", lambda x: plkernel.measure(COPIES, column=x), [3, [], math.nan, META]),
    (
        "measure",
        "lags",
        lambda x: plkernel.measure(TEXT, lags=x),
        [3, math.nan, (1, math.inf), "x"],
    ),
    ("load_corpus", "corpus", lambda x: plkernel.load_corpus(x), [None, 3, "nowhere", HEADS]),
    ("inspect", "path", lambda x: plkernel.inspect(x), NO_PATHS),
    ("load_run", "path", lambda x: plkernel.load_run(x), NO_PATHS),
    ("load_study", "folder", lambda x: plkernel.load_study(x), NO_PATHS),
    ("load_spec", "spec", lambda x: plkernel.load_spec(x), NO_PATHS),
    ("run_study", "spec", lambda x: plkernel.run_study(x), NO_PATHS),
    (
        "run_study",
        "workers",
        lambda x: plkernel.run_study("quick", "o", workers=x),
        [*NO_COUNTS, 0],
    ),
    ("run_study", "only", lambda x: plkernel.run_study("quick", "o", only=x), [3, [3], ["none"]]),
    ("run_study", "out", lambda x: plkernel.run_study("quick", x), [3, math.nan, ""]),
    ("watch", "model", lambda x: plkernel.watch(x), NO_MODELS),
    ("watch", "known decays", lambda x: plkernel.watch(x), [nn.Linear(2, 2), nn.Module()]),
    (
        "watch",
        "optimizer",
        lambda x: plkernel.watch(HEADS, x),
        [3, "x", [3], [], {}, math.nan, META],
    ),
    ("watch", "every", lambda x: plkernel.watch(HEADS, every=x), [*NO_COUNTS, 0]),
    ("watch", "steps", lambda x: plkernel.watch(HEADS, optimizer(), steps=x), NO_COUNTS),
    ("watch", "step", lambda x: plkernel.watch(HEADS, step=x), NO_COUNTS),
    ("watch", "step must be", lambda x: plkernel.watch(HEADS)(x), NO_COUNTS[:-1]),
    ("watch", "context", lambda x: plkernel.watch(HEADS, context=x), [math.nan, 0, *NO_NUMBERS]),
    ("decay_param_groups", "model", lambda x: plkernel.decay_param_groups(x), NO_MODELS),
    (
        "decay_param_groups",
        "weight_decay",
        lambda x: plkernel.decay_param_groups(HEADS, x),
        [*NOT_FINITE, *NO_NUMBERS, -1],
    ),
    (
        "decay_param_groups",
        "decay_lr",
        lambda x: plkernel.decay_param_groups(HEADS, decay_lr=x),
        [*NOT_FINITE, *NO_NUMBERS, -1],
    ),
    ("survive", "factory", lambda x: survive(factory=x), [None, 3, "x", HEADS]),
    (
        "survive",
        "promised",
        lambda x: survive(promised=x),
        [3, {"A_log": math.nan}, {"A_log": "x"}],
    ),
    ("survive", "promised", lambda x: survive(promised={"A_log": x}), [EMPTY, META, [1, 2, 3]]),
    ("survive", "steps", lambda x: survive(steps=x), [3, "deepcopy", [3], None, ["x"]]),
    ("survive", "inputs", lambda x: survive(inputs=x), [3, "x", math.nan, None]),
    ("survive", "initialise", lambda x: survive(initialise=x), [3, "x", math.nan]),
]
for _name in ("evaluate", "influence", "truncation"):
    MISUSES += [
        (_name, "text|corpus", lambda x, name=_name: asked(name, text=x), NO_TEXTS),
        (_name, "context", lambda x, name=_name: asked(name, context=x), [*NO_COUNTS, 0, 10**9]),
        (_name, "windows", lambda x, name=_name: asked(name, windows=x), [*NO_COUNTS, 0]),
        (_name, "batch", lambda x, name=_name: asked(name, batch=x), [*NO_COUNTS, 0]),
        (_name, "model", lambda x, name=_name: asked(name, model=x), [*NO_MODELS, *LOGITS]),
    ]
COPIES = "synthetic:lags,alpha=0.7,longest=64,bytes=200kB"
MISUSES += [
    ("trial", "text|corpus", lambda x: plkernel.trial(x), [*NO_TEXTS, "", "no such text"]),
    ("trial", "model", lambda x: plkernel.trial(COPIES, model=x), [3, "x", None, math.nan]),
    (
        "trial",
        "minutes",
        lambda x: plkernel.trial(COPIES, minutes=x),
        [*NOT_FINITE, *NO_NUMBERS, 0, -1],
    ),
    ("trial", "seeds", lambda x: plkernel.trial(COPIES, seeds=x), [*NO_COUNTS, 0, 1]),
    ("trial", "dim", lambda x: plkernel.trial(COPIES, dim=x), [*NO_COUNTS, 0, 4]),
    ("generate", "model", lambda x: plkernel.generate(x), [*NO_MODELS, *LOGITS]),
    ("generate", "prompt", lambda x: plkernel.generate(OURS, x), [3, None, math.nan, META, [1]]),
    ("generate", "count", lambda x: plkernel.generate(OURS, count=x), NO_COUNTS),
    ("generate", "seed", lambda x: plkernel.generate(OURS, seed=x), NO_COUNTS),
    (
        "generate",
        "temperature",
        lambda x: plkernel.generate(OURS, temperature=x),
        [*NOT_FINITE, *NO_NUMBERS, -1],
    ),
    (
        "generate",
        "top_p",
        lambda x: plkernel.generate(OURS, top_p=x),
        [*NOT_FINITE, *NO_NUMBERS, 0, 2],
    ),
    ("influence", "lags", lambda x: asked("influence", lags=x), [3, "x", [0], [2.5], [3, 2], [99]]),
    ("influence", "lags", lambda x: asked("influence", lags=x), [[math.nan], math.inf, META]),
    ("influence", "seed", lambda x: asked("influence", seed=x), NO_COUNTS),
]
NO_NAMES = [3, "x", [], math.nan]
NO_STATEMENTS: list[Any] = [3, "x", [], math.nan, META, {3: "a_log"}, {"*.w": 3}, {"*.w": "x"}]
MISUSES += [
    ("apply", "bound", lambda x: applied("bounded", bound=x), [*NO_OPTIONS, -1.0, 0.0]),
    ("apply", "cap", lambda x: applied("sigmoid", cap=x), [*NO_OPTIONS, -1.0, 0.0]),
    ("watch", "decays", lambda x: plkernel.watch(HEADS, decays=x), NO_STATEMENTS),
    (
        "decay_param_groups",
        "decays",
        lambda x: plkernel.decay_param_groups(HEADS, decays=x),
        NO_STATEMENTS,
    ),
    ("inspect", "decays", lambda x: plkernel.inspect(saved_heads(), decays=x), NO_STATEMENTS),
    (
        "load_corpus",
        "max_bytes",
        lambda x: plkernel.load_corpus(COPIES, max_bytes=x),
        [*NO_COUNTS, 0],
    ),
    (
        "load_corpus",
        "separator",
        lambda x: plkernel.load_corpus(COPIES, separator=x),
        [None, 3, "", [], "ab", "\u1234", math.nan, META],
    ),
    (
        "load_corpus",
        "column",
        lambda x: plkernel.load_corpus(COPIES, column=x),
        [3, [], math.nan, META],
    ),
    (
        "load_corpus",
        "cache",
        lambda x: plkernel.load_corpus(COPIES, cache=x),
        ["", 3, [], math.nan, META],
    ),
    (
        "measure",
        "estimator",
        lambda x: plkernel.measure(TEXT, estimator=x, max_lag=20),
        NO_NAMES,
    ),
    ("measure", "measured", lambda x: plkernel.measure(TEXT, measured=x, max_lag=20), NO_NAMES),
    (
        "measure",
        "tokenizer",
        lambda x: plkernel.measure(b"abc" * 300, tokenizer=x, max_lag=20),
        ["", "nowhere", 3, [], math.nan, META],
    ),
    ("trial", "out", lambda x: plkernel.trial(COPIES, out=x), ["", 3, [], math.nan, META]),
    (
        "fit",
        "values",
        lambda x: plkernel.fit(values=x),
        [
            *(3, "x", [], [1.0], META, EMPTY),
            *([1, math.nan, 0.3], [1, 1, math.inf], [1, -1, 0.2], np.array([1, 0.5 + 1j, 0.2])),
        ],
    ),
    (
        "place",
        "terms",
        lambda x: plkernel.place(8, placement="terms", terms=x),
        [*NOT_FINITE, *NO_NUMBERS, 3, None, ExponentialSum((-1.0, 2.0), (1.0, 1.0))],
    ),
]
for _option in ("placement", "projection", "target", "lag"):
    MISUSES.append(
        (
            "place",
            _option,
            lambda x, name=_option: plkernel.place(8, **{name: x}),
            [*NO_NAMES, None],
        )
    )
for _option in ("tempering", "loss", "max_lag"):
    MISUSES.append(
        (
            "place",
            _option,
            lambda x, name=_option: plkernel.place(8, placement="quantile", **{name: x}),
            [*NOT_FINITE, *NO_NUMBERS, -1, np.float32(-1), np.float32(math.nan)],
        )
    )
NO_SWITCHES = [0, 1, "no", [], math.nan, None]
MISUSES += [
    ("load_spec", "trusted", lambda x: plkernel.load_spec("quick", trusted=x), NO_SWITCHES),
    (
        "run_study",
        "trust_code",
        lambda x: plkernel.run_study("quick", "o", trust_code=x),
        NO_SWITCHES,
    ),
    ("load_spec", "check", lambda x: plkernel.load_spec("quick", check=x), [3, "x", [], math.nan]),
]
for _option in ("frozen", "short", "control"):
    MISUSES.append(
        ("trial", _option, lambda x, name=_option: plkernel.trial(COPIES, **{name: x}), NO_SWITCHES)
    )


def test_a_truth_value_of_numpy_is_one() -> None:
    """As the result of a comparison of numbers is."""
    assert plkernel.load_spec("quick", trusted=np.float64(2) > 1).name == "quick"


NONE_IS_ALLOWED = r"\b(None|Any|Optional)\b"


def given(name: str, named: str, call: Call, values: list[Any]) -> list[Any]:
    """The values of a row, and None for an argument whose type does not allow it."""
    parameters = inspect.signature(getattr(plkernel, name, survive)).parameters
    parameter = parameters.get(named)
    if parameter is None or re.search(NONE_IS_ALLOWED, str(parameter.annotation)):
        return values
    return [*values, None]


def saved_heads() -> Path:
    save_file(HEADS.state_dict(), "heads.safetensors")
    return Path("heads.safetensors")


@pytest.mark.parametrize("name", plkernel.__all__)
def test_every_argument_of_every_public_function_is_misused(name: str) -> None:
    named = " ".join(pattern for function, pattern, *_ in MISUSES if function == name)
    arguments = set(inspect.signature(getattr(plkernel, name)).parameters)
    called = {"load_corpus": {"name"}, "load_spec": {"path"}}  # "corpus" and "spec" in messages
    missing = {one for one in arguments if not re.search(rf"\b{one}\b", named)}
    assert missing == called.get(name, set())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("named", "call", "values"),
    [pytest.param(row[1], row[2], given(*row), id=f"{row[0]}, {row[1]}") for row in MISUSES],
)
def test_calls_are_told_what_is_wrong_with_an_argument(
    named: str, call: Call, values: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NaN, infinity, nothing, what is on meta or of another kind: one line that names it."""
    monkeypatch.chdir(tmp_path)
    for value in values:
        with pytest.raises((ValueError, OSError)) as told:
            call(value)
        message = str(told.value)
        assert re.search(named, message), (value, message)
        assert "\n" not in message, (value, message)


def test_every_public_function_is_misused() -> None:
    assert set(plkernel.__all__) - {name for name, *_ in MISUSES} == set()


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({}, "holds no tensors"),
        (
            {"layers.0.weight": torch.ones(3)},
            "no decays are known under names like layers.0.weight",
        ),
        (
            {"l.A_log": EMPTY, "l.dt_bias": EMPTY},
            "l.A_log must be a tensor of floating-point numbers .*, got F32",
        ),
        (
            {"l.A_log": torch.ones(3), "l.dt_bias": torch.ones(2)},
            "must have the shapes of Mamba-2, got l.A_log",
        ),
        (
            {"l.A_log": torch.ones(3).long(), "l.dt_bias": torch.ones(3)},
            "l.A_log must be .*, got I64",
        ),
    ],
)
def test_checkpoints_without_decays_are_told(
    tensors: dict[str, Tensor], message: str, tmp_path: Path
) -> None:
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=message):
        plkernel.inspect(tmp_path / "model.safetensors")


@pytest.mark.filterwarnings("ignore")
def test_what_is_on_meta_is_watched_and_grouped() -> None:
    """It has no numbers yet, and its parameters are known."""
    layer = Heads().to("meta")
    assert list(plkernel.watch(layer).unseen.values()) == ["A_log: is on the meta device"]
    assert len(plkernel.decay_param_groups(layer)[0]["params"]) == 2
    with pytest.raises(AssertionError, match="A_log is on the meta device"):
        survive(factory=lambda: layer)


NO_WORDS = {
    int: ["", "nan", "inf", "x", "2.5", "1e400"],
    float: ["", "x", "1,5", "0x10"],
    Path: [""],
}
"""Words that a type of option must refuse."""
POSITIONAL: dict[str, list[str]] = {
    "experiment": ["quick"],
    "export": ["x", "y"],
    "fit": [],
    "gallery": [],
    "load": ["x", "y"],
    "train": ["quick"],
}
"""Words that a command needs; one for the others."""


def options_of(name: str) -> list[tuple[str, type]]:
    """The options of a command that take numbers or paths, by its signature, and their kinds."""
    module = import_module(f"plkernel.commands.{name}")
    command = getattr(module, "command", None) or getattr(module, name)
    found = []
    for parameter, hint in get_type_hints(command, include_extras=True).items():
        settings = getattr(hint, "__metadata__", ())
        called = next((one.name for one in settings if getattr(one, "name", None)), parameter)
        kind = next((one for one in NO_WORDS if re.search(rf"\b{one.__name__}\b", str(hint))), None)
        if kind is not None and tyro.conf.Positional not in settings:
            found.append((f"--{called.replace('_', '-')}", kind))
    return found


COMMANDS = [name for name in commands() if name not in ("bench", "init")]
"""Those without subcommands."""
OPTIONS = [
    pytest.param(name, option, kind, id=f"{name} {option}")
    for name in COMMANDS
    for option, kind in options_of(name)
]


@pytest.mark.parametrize(("name", "option", "kind"), OPTIONS)
def test_options_are_told_what_is_no_number_and_no_path(
    name: str, option: str, kind: type, tmp_path: Path, capsys: Shown, monkeypatch: Any
) -> None:
    """Every option of every command, found by inspection."""
    monkeypatch.chdir(tmp_path)
    first = POSITIONAL.get(name, ["model"])
    for value in NO_WORDS[kind]:
        for words in ([f"{option}={value}"], [option, value]):
            said = refused(name, *first, *words, shown=capsys)
            assert said.startswith(f"error: {option} must be "), (words, said)
            assert said.count("\n") == 1, (words, said)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize(
    ("name", "option"),
    [
        pytest.param(name, option, id=f"{name} {option}")
        for name in COMMANDS
        for option, kind in options_of(name)
        if kind is float
    ],
)
def test_numbers_that_are_not_finite_are_refused(
    name: str, option: str, value: str, tmp_path: Path, capsys: Shown, monkeypatch: Any
) -> None:
    """`inspect`, `judge` and `generate` look at their files first."""
    monkeypatch.chdir(tmp_path)
    Path("rows.csv").write_text("arm,seed,value\n" + "a,0,1\nb,0,2\na,1,3\nb,1,5\n")
    first = {"judge": ["rows.csv", "--baseline", "a"], "trial": [COPIES]}.get(name, [])
    if name == "generate":
        save_model(tmp_path / "model", RWKV(RWKVConfig(dim=16, layers=1, head_size=8)), "made")
        first = ["model"]
    assert option[2:].replace("-", "_") in refused(
        name, *first, f"{option}={value}", shown=capsys
    ).replace("-", "_")


@pytest.mark.parametrize("words", ["inspect", "probe", "generate", "new", "report"])
def test_an_empty_path_is_not_the_working_folder(words: str, capsys: Shown) -> None:
    assert re.search(r"must be a path, got ''", refused(words, "", shown=capsys))


def test_outputs_that_carry_a_gradient_are_taken_and_tensors_of_inference_refused() -> None:
    plain = asked("influence")
    assert asked("influence", model=lambda x: HEADS(x).requires_grad_()) == plain
    with torch.inference_mode():
        fixed = torch.zeros(4)
    with pytest.raises(
        ValueError, match="decays must be a tensor that can be changed, got one of inference mode"
    ):
        plkernel.apply(NODES, fixed, parametrisation="log_rate")
