"""Specs that nobody meant to write: each is taken, or refused in one line, in little time and memory."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("hypothesis", reason="the fuzzers draw their cases with hypothesis")
import torch
from hypothesis import strategies as st

from plkernel.config.reading import load_spec
from plkernel.study.schedule import chosen_arms
from plkernel.study.tuning import search_of
from plkernel.training.loop import open_corpus, prepare

pytestmark = pytest.mark.slow
TRAIN = {"context": 32, "batch": 4, "steps": 12, "eval_every": 4, "eval_windows": 4, "test_windows": 4}
SPECS: dict[str, dict[str, Any]] = {
    "arms": {
        "name": "tiny",
        "description": "Two arms.",
        "baseline": "uniform",
        "seeds": [0, 1],
        "report_steps": [4],
        "corpus": {"name": "text.txt", "max_bytes": 20000, "separator": "\n", "validation": 0.1, "test": 0.1},
        "model": {"dim": 16, "layers": 2, "gain": "ema", "patching": {"size": 2, "mode": "causal"}},
        "train": {**TRAIN, "learning_rate": 0.01, "warmup": 3, "schedule": "cosine", "threads": 1},
        "tuning": {"rates": [0.01, 0.02], "seeds": [100], "steps": 5},
        "arms": {
            "uniform": {"scheme": "transformers_default"},
            "power": {"projection": "published", "beta": 1.0, "shortest": 1.0, "longest": 50.0, "match": "baseline"},
            "quantile": {"placement": "quantile", "tempering": 0.5, "loss": 0.1, "max_lag": 64, "rates": [0.1, 0.2]},
            "given": {"node_rates": [0.1] * 16, "node_multipliers": [1.0] * 16, "node_gain": "ema"},
        },
    },
    "factors": {
        "name": "crossed",
        "within": ["model.gain"],
        "corpus": {"name": "text.txt"},
        "model": {"dim": 16, "layers": 2},
        "train": {**TRAIN, "recipe": "blinkdl"},
        "factors": {
            "placement": ["log-spaced", "concentrated"],
            "projection": {"plain": {}, "corrected": {"projection": "gain-corrected", "beta": 1.0}},
            "model.gain": ["none", "ema"],
        },
        "arms": {"quantile": {"placement": "quantile"}},
    },
    "finch": {
        "name": "finch",
        "baseline": "a",
        "corpus": {"name": "text.txt"},
        "model": {"kind": "rwkv6", "dim": 32, "layers": 2, "head_size": 16, "k_clamp": True},
        "train": {**TRAIN, "minutes": 1.0, "steps": None, "dropout": 0.1},
        "arms": {
            "a": {"scheme_options": {}, "learning_rate": 0.001},
            "b": {"placement": "quantile", "bonus": "law", "target": "correlation", "kernel": "rms", "against": "a"},
        },
    },
}


def as_far_as_training(path: Path) -> None:
    """What plkernel.experiment does with a spec before the first process starts."""
    torch.set_num_threads(1)
    spec = load_spec(path)
    if spec.tuning.rates:
        search_of(spec)
    opened = {}
    for arm in chosen_arms(spec, ())[:3]:
        section = spec.corpus_of(arm)
        opened.setdefault(section, open_corpus(section, spec.train.context))
        task = prepare(spec, arm, spec.seeds[0], path.parent / "out", opened[section])
        task.folder.check(task.config)


@pytest.fixture
def take(monkeypatch: pytest.MonkeyPatch) -> Callable[[tuple[str, str | bytes], Path], None]:
    """Writes a spec under a name into a folder with a small corpus, and does with it what a study would."""

    def taken(case: tuple[str, str | bytes], folder: Path) -> None:
        monkeypatch.chdir(folder)
        monkeypatch.setenv("PLKERNEL_CACHE", str(folder / "cache"))
        Path("text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 500)
        name, content = case
        path = folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
        as_far_as_training(path)

    return taken


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("form", ["toml", "json"])
def test_values_of_a_spec(name, form, tally, mutated, toml, take):
    write = toml if form == "toml" else json.dumps
    cases = mutated(SPECS[name]).map(lambda values: (f"spec.{form}", write(values)))
    ends = tally(cases, take, 80)
    assert ends["refused"] > 10
    assert ends["accepted"] > 1


@pytest.mark.parametrize("form", ["toml", "json"])
def test_bytes_of_a_spec(form, tally, damaged, toml, take):
    write = toml if form == "toml" else json.dumps
    cases = st.sampled_from(sorted(SPECS)).flatmap(lambda name: damaged(write(SPECS[name]).encode()))
    tally(cases.map(lambda content: (f"spec.{form}", content)), take, 60)


def large(**changes: Any) -> dict[str, Any]:
    """The first spec with values at dotted places replaced."""
    values = json.loads(json.dumps(SPECS["arms"]))
    for place, value in changes.items():
        inside = values
        *way, last = place.split("__")
        for key in way:
            inside = inside[key]
        inside[last] = value
    return values


LARGE = [
    *(large(model__dim=size) for size in (10**5, 10**9, 2**31, 10**30)),
    *(large(model__layers=size) for size in (10**4, 10**5, 10**9)),
    *(large(train__batch=size) for size in (10**6, 2**31, 10**12)),
    *(large(train__context=size) for size in (10**6, 2**31, 10**12)),
    *(large(model__patching__size=size) for size in (1000, 2**31, 10**18)),
    *(large(train__threads=size) for size in (10**5, 2**31, 10**12)),
    *(large(train__eval_windows=size) for size in (10**7, 2**31, 10**18)),
    *(large(train__steps=size) for size in (10**9, 2**63, 10**30)),
    *(large(seeds=list(range(size))) for size in (1000, 20000)),
    *(large(arms={f"a{i}": {} for i in range(size)}, baseline="a0") for size in (500, 4000)),
    *({**SPECS["factors"], "factors": {f"f{i}": ["a", "b"] for i in range(size)}} for size in (9, 14, 33)),
    {**SPECS["factors"], "factors": {f"f{i}": list(range(10)) for i in range(10)}},
    {**SPECS["factors"], "within": [5]},
    {**SPECS["factors"], "factors": [1, 2]},
    {**SPECS["factors"], "factors": 3},
    {**SPECS["factors"], "factors": "placement"},
]


@pytest.mark.parametrize("form", ["toml", "json"])
def test_sizes_of_a_spec(form, tally, toml, take):
    write = toml if form == "toml" else json.dumps
    cases = st.sampled_from(range(len(LARGE))).map(lambda number: (f"spec.{form}", write(LARGE[number])))
    tally(cases, take, 2 * len(LARGE))
