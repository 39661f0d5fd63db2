"""Files and command lines that nobody meant to write: each is taken, or refused in one line, and
nothing is executed.

Cases are drawn by hypothesis from a fixed seed. A case is a fault where it ends in another
exception than `cli.USER_ERRORS`, in too much time or memory, in a message that no terminal shows
whole, prints a control character, or leaves temporary files.
"""

import contextlib
import copy
import io
import json
import os
import pickle
import resource
import shutil
import signal
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("hypothesis", reason="the fuzzers draw their cases with hypothesis")
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from safetensors.torch import save

import plkernel
from plkernel.analysis.printing import ESCAPES
from plkernel.commands.corpus import corpus
from plkernel.commands.experiment import command as experiment
from plkernel.commands.inspect import command as inspect
from plkernel.commands.report import report
from plkernel.common import cli
from plkernel.common.files import load_object
from plkernel.config.reading import load_spec
from plkernel.config.reading import main as main_of_spec
from plkernel.training.loop import prepare, run_training

pytestmark = pytest.mark.slow
TRAIN = {
    "context": 32,
    "batch": 4,
    "steps": 8,
    "eval_every": 4,
    "eval_windows": 4,
    "test_windows": 4,
}
SPECS: dict[str, dict[str, Any]] = {
    "arms": {
        "name": "tiny",
        "baseline": "uniform",
        "seeds": [0, 1],
        "corpus": {"name": "text.txt", "max_bytes": 20000, "validation": 0.1},
        "model": {"dim": 16, "layers": 2, "gain": "ema", "patching": {"size": 2, "mode": "causal"}},
        "train": {**TRAIN, "learning_rate": 0.01, "warmup": 3, "schedule": "cosine"},
        "tuning": {"rates": [0.01, 0.02], "seeds": [100], "steps": 5},
        "arms": {
            "uniform": {"scheme": "transformers_default"},
            "power": {"projection": "published", "beta": 1.0, "longest": 50.0, "match": "baseline"},
            "quantile": {
                "placement": "quantile",
                "tempering": 0.5,
                "loss": 0.1,
                "max_lag": 64,
                "rates": [0.1, 0.2],
            },
            "given": {"node_rates": [0.1] * 16, "node_multipliers": [1.0] * 16, "node_gain": "ema"},
        },
        "hypotheses": [{"name": "a", "arm": "power", "claim": "lower", "margin": 0.1}],
    },
    "factors": {
        "name": "crossed",
        "within": ["model.gain"],
        "model": {"dim": 16, "layers": 2},
        "train": {**TRAIN, "recipe": "blinkdl"},
        "factors": {
            "placement": ["log-spaced", "concentrated"],
            "projection": {"plain": {}, "corrected": {"projection": "gain-corrected", "beta": 1.0}},
            "model.gain": ["none", "ema"],
        },
        "arms": {"quantile": {"placement": "quantile"}},
    },
}
STRANGE: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        -1,
        2,
        7,
        2**31,
        2**63,
        10**9,
        10**30,
        0.0,
        0.5,
        1e-320,
        1e38,
        float("inf"),
        float("nan"),
    ),
    *(
        "",
        " ",
        "x",
        "0",
        "1e9",
        "é\x00",
        "\n",
        "a" * 255,
        "a" * 20000,
        "../..",
        "/dev/zero",
        "os:system",
        "a.b",
    ),
    *(
        [],
        [[]],
        [None],
        [5],
        ["a", "a"],
        list(range(300)),
        [{}],
        {},
        {"a": {}},
        {"": 1},
        {"dim": 10**9},
        {"levels": 3},
    ),
)
FILES = (
    *(
        b"",
        b"\0" * 4096,
        b"\xff" * 64,
        b"null\n",
        b"[]\n",
        b"{}\n",
        b"3\n",
        b'{"text": null}\n',
        b"NaN\n",
        b"\n\n",
    ),
    *(
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"1" * 10_000,
        b"\xef\xbb\xbf{}",
        b"PAR1PAR1",
        b"PK\x03\x04",
        b"\x80\x04.",
    ),
    *(b"a = " + b"[" * 5000 + b"]" * 5000, b"[" + b"a." * 2000 + b"a]\n", b"a = 1e999\n"),
    pickle.dumps(os.getcwd),  # code, to a reader that unpickles
)
Action = Callable[[Any, Path], Any]


@pytest.fixture(autouse=True)
def limits() -> Iterator[None]:
    """Three more gigabytes for this process, and an alarm after CPU seconds for a case without an
    end.
    """

    def ring(number: int, frame: object) -> None:
        raise AssertionError("no end in its time")

    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    before = signal.signal(signal.SIGPROF, ring)
    resource.setrlimit(resource.RLIMIT_AS, (used + (3 << 30), hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    signal.signal(signal.SIGPROF, before)


def ending(action: Action, case: Any, folder: Path) -> str:
    """Do `action(case, folder)`: accepted or refused; any other end fails."""
    end, message = "accepted", "-"
    signal.setitimer(signal.ITIMER_PROF, 30)  # CPU time, which other processes do not use up
    try:
        action(case, folder)
    except cli.USER_ERRORS as error:
        end = "refused"
        message = " ".join(str(error).split())
    except SystemExit as stop:
        end = {None: "accepted", 0: "accepted", cli.EXIT_BAD_INPUT: "refused"}[stop.code]
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    assert 0 < len(message) <= 2000
    assert not [path for path in folder.rglob(".*") if path.name != ".lock"], (
        "a temporary file is left"
    )
    return end


def tally(strategy: st.SearchStrategy[Any], action: Action, examples: int) -> Counter[str]:
    """Count how cases end; each has an empty folder, which is the working directory too."""
    ends = Counter[str]()

    @seed(14)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def each(case: Any) -> None:
        quiet = io.StringIO()
        with (
            tempfile.TemporaryDirectory(prefix="plkernel-fuzz-") as folder,
            contextlib.chdir(folder),
            contextlib.redirect_stdout(quiet),
            contextlib.redirect_stderr(quiet),
            warnings.catch_warnings(action="ignore"),
        ):
            ends[ending(action, case, Path(folder))] += 1
        assert not {chr(code) for code in ESCAPES} & set(quiet.getvalue()), (
            "a control character is printed"
        )

    each()
    return ends


@st.composite
def mutated(draw: st.DrawFn, base: Any) -> Any:
    """Plain values with one to three places in them changed: another type, missing, foreign,
    wrapped.
    """
    holder = {"": copy.deepcopy(base)}
    for _ in range(draw(st.integers(1, 3))):
        tables = [holder, *inner(holder)]
        table = draw(st.sampled_from(tables))
        keys = list(table) if isinstance(table, dict) else list(range(len(table)))
        if not keys:
            continue
        key = draw(st.sampled_from(keys))
        new = copy.deepcopy(draw(st.sampled_from(STRANGE)))
        kind = draw(st.sampled_from(["replace", "replace", "wrap", "delete", "add", "noise"]))
        if kind == "delete" and table is not holder:
            del table[key]
        elif kind == "add" and isinstance(table, dict) and table is not holder:
            table[
                draw(st.sampled_from(("factors", "dim", "arms", "", "model", "é", "a.b", "levels")))
            ] = new
        else:
            table[key] = {
                "wrap": [table[key]],
                "noise": draw(st.integers() | st.floats() | st.text()),
            }.get(kind, new)
    return holder[""]


def inner(value: Any) -> list[Any]:
    """The tables and lists inside a value."""
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [one for item in items if isinstance(item, dict | list) for one in (item, *inner(item))]


@st.composite
def damaged(draw: st.DrawFn, base: bytes) -> bytes:
    """The bytes of a file cut short, with a bit flipped, a part overwritten; or other bytes
    altogether.
    """
    at = draw(st.integers(0, max(0, len(base) - 1)))
    noise = draw(st.binary(max_size=64))
    flipped = base[:at] + bytes([base[at] ^ (1 << draw(st.integers(0, 7)))]) + base[at + 1 :]
    cases = [base[:at], flipped, base[:at] + noise + base[at + len(noise) :], base + base[at:]]
    return draw(st.sampled_from([*cases, draw(st.sampled_from(FILES))]))


def toml(value: Any, top: bool = True) -> str:
    """Plain values as TOML; a value that TOML does not have makes the file invalid."""
    if isinstance(value, dict):
        rows = [f"{json.dumps(str(key))} = {toml(item, False)}" for key, item in value.items()]
        return "\n".join(rows) if top else f"{{{', '.join(rows)}}}"
    return (
        f"[{', '.join(toml(item, False) for item in value)}]"
        if isinstance(value, list)
        else json.dumps(value)
    )


def read_spec(case: tuple[str, bytes], folder: Path) -> None:
    (folder / case[0]).write_bytes(case[1])
    spec = load_spec(folder / case[0])
    assert all(hash(spec.condition(arm)) for arm in list(spec.arms)[:3])


@pytest.mark.parametrize(("name", "form"), [("arms", "toml"), ("factors", "json")])
def test_specs(name: str, form: str) -> None:
    write: Callable[[Any], str] = toml if form == "toml" else json.dumps
    cases = mutated(SPECS[name]).map(lambda values: write(values).encode("utf-8", "surrogatepass"))
    ends = tally(
        (cases | damaged(write(SPECS[name]).encode())).map(lambda one: (f"s.{form}", one)),
        read_spec,
        120,
    )
    assert ends["refused"] > 10
    assert ends["accepted"] > 1


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of two runs, trained for eight steps."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 500)
    values = {
        **SPECS["arms"],
        "corpus": {"name": str(folder / "text.txt")},
        "tuning": {},
        "seeds": [0],
    }
    values |= {
        "arms": {name: SPECS["arms"]["arms"][name] for name in ("uniform", "power")},
        "hypotheses": [],
    }
    (folder / "spec.json").write_text(json.dumps(values))
    spec = load_spec(folder / "spec.json")
    (folder / "spec.json").write_text(spec.model_dump_json())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PLKERNEL_CACHE", str(folder / "cache"))
        for arm in spec.arms:
            run_training(prepare(spec, arm, 0, folder), progress_bar=False)
    return folder


@pytest.mark.parametrize(
    "file",
    [
        "spec.json",
        *(f"power/seed-0/{name}.json" for name in ("config", "environment", "result")),
        "power/seed-0/metrics.jsonl",
        "power/seed-0/checkpoint.safetensors",
    ],
)
def test_run_folders(file: str, study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLKERNEL_CACHE", str(study / "cache"))
    whole = (study / file).read_bytes()

    def read(content: bytes, folder: Path) -> None:
        shutil.copytree(
            study, folder / "study", ignore=shutil.ignore_patterns("cache", ".lock", "tb")
        )
        (folder / "study" / file).write_bytes(content)
        plkernel.load_study(folder / "study")
        run = plkernel.load_run(folder / "study/power/seed-0")
        assert len(run.metrics) >= 0
        if file.endswith("safetensors"):
            run.evaluate(b"the quick brown fox jumps over the lazy dog" * 20, windows=2)

    cases = damaged(whole)
    if file.endswith(".json"):
        cases = cases | mutated(load_object(study / file)).map(
            lambda value: json.dumps(value).encode()
        )
    tally(cases, read, 25)


def test_checkpoints_and_texts_of_others() -> None:
    tensors = {
        "model.layers.0.mixer.A_log": torch.linspace(-1, 1, 4),
        "model.layers.0.mixer.dt_bias": torch.ones(4),
    }
    rows = b'{"text": "first"}\n{"text": "second line"}\n' * 20

    def read(case: tuple[str, bytes], folder: Path) -> None:
        (folder / case[0]).write_bytes(case[1])
        if case[0] == "text.jsonl":
            corpus(case[0])
        else:
            cli.main(inspect, [str(folder / case[0])])

    for name, whole in {
        "a.safetensors": save(tensors),
        "a.pth": pickle.dumps(os.getcwd),
        "text.jsonl": rows,
    }.items():
        ends = tally(damaged(whole).map(lambda content, name=name: (name, content)), read, 40)
        assert ends["refused"] > 5


def test_names_reach_no_terminal_raw(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of files, tensors, configurations, arms and corpora, in tables and in messages: control
    characters as escapes.
    """
    monkeypatch.setenv("PLKERNEL_CACHE", str(study / "cache"))
    spec = load_object(study / "spec.json")

    def show(case: tuple[str, str], folder: Path) -> None:
        kind, name = case
        if kind in ("file", "tensor"):
            file, part = (
                (f"{name}.safetensors", "layer") if kind == "file" else ("a.safetensors", name)
            )
            (folder / file).write_bytes(
                save({f"{part}.A_log": torch.zeros(4), f"{part}.dt_bias": torch.ones(4)})
            )
            (folder / "config.json").write_text(json.dumps({"model_type": name}))
            cli.main(inspect, [str(folder / file)])
        elif kind == "missing":
            cli.main(inspect, [str(folder / name)])
        else:
            arms = {name: spec["arms"]["uniform"], "power": spec["arms"]["power"]}
            given = {"arm": {"baseline": name, "arms": arms}, "corpus": {"corpus": {"name": name}}}
            (folder / "spec.json").write_text(
                json.dumps({**spec, **given.get(kind, {"name": name})})
            )
            with contextlib.suppress(SystemExit):
                cli.main(report, [str(folder)])
            main_of_spec(experiment, [str(folder / "spec.json"), "--only", name])

    letters = st.text(
        st.sampled_from("a.\x1b\x9b\x07\r\x08\x7f[3m\n\u202e"), min_size=1, max_size=12
    )
    kinds = st.sampled_from(["file", "tensor", "missing", "arm", "corpus", "name"])
    assert tally(st.tuples(kinds, letters.map("\x1b[31m".__add__)), show, 40)["refused"] > 10
    with pytest.raises(AssertionError, match="a control character is printed"):
        tally(st.just("\x1b[31m"), lambda name, _: print(name), 1)
