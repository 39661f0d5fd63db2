"""Defaults of commands and functions: scripts rely on them, so a change is one on purpose, and is
told in CHANGELOG.md.
"""

import importlib
import inspect
import os
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest

import plkernel
from plkernel import commands
from plkernel.config.condition import Condition, from_config, resolve
from plkernel.config.reading import load_spec, parse_spec
from plkernel.probing.text_models import open_text_model
from plkernel.study.engine import Job

DEFAULTS: dict[str, dict[str, float | bool]] = {
    "commands.bench.scan": {"threads": 1, "rounds": 15},
    "commands.bench.wkv": {"threads": 1, "rounds": 15},
    "commands.bench.wkv7": {"threads": 1, "rounds": 15},
    "commands.bench.train": {"threads": 1, "rounds": 15},
    "commands.bench.host": {"rounds": 15},
    "commands.bench.profile": {"seconds": 220.0, "characters": 10_700},
    "commands.bench.step": {"seconds": 150.0},
    "commands.bench.growth": {"seconds": 150.0},
    "commands.experiment.check_arguments": {"detach": False, "dry_run": False},
    "commands.experiment.command": {
        "dry_run": False,
        "report": True,
        "retry": False,
        "underpowered": False,
        "trust_code": False,
        "detach": False,
        "status": False,
        "cancel": False,
    },
    "commands.fit.command": {"max_lag": 512, "channels": 256, "figure": True},
    "commands.gallery.gallery": {"beta": 1.15, "max_lag": 2048, "figure": True},
    "commands.generate.command": {
        "count": 512,
        "temperature": 1.0,
        "top_p": 1.0,
        "seed": 0,
        "threads": 1,
    },
    "commands.init.show": {"dim": 256, "layers": 4},
    "commands.inspect.command": {
        "windows": 16,
        "strict": False,
        "notable": False,
        "tokens": 2048,
        "trust_code": False,
    },
    "commands.measure.command": {
        "max_lag": 1000,
        "blocks": 40,
        "threads": os.cpu_count() or 1,
        "figure": True,
    },
    "commands.probe.probe": {
        "windows": 64,
        "lengths": 1,
        "batch": 4,
        "seed": 0,
        "trust_code": False,
    },
    "commands.report.report": {"csv": False},
    "commands.run.run": {"code_tried": False, "trust_code": False},
    "commands.train.command": {"trust_code": False},
    "commands.trial.command": {
        "minutes": 5.0,
        "seeds": 3,
        "frozen": True,
        "short": False,
        "control": True,
        "dim": 64,
        "dry_run": False,
    },
    "measure": {"max_lag": 1000, "blocks": 40},
    "evaluate": {"windows": 64, "batch": 4},
    "truncation": {"windows": 256, "batch": 4},
    "influence": {"windows": 64, "batch": 4, "seed": 0},
    "generate": {"count": 512, "temperature": 1.0, "top_p": 1.0, "seed": 0},
    "load_spec": {"trusted": False},
    "run_study": {"trust_code": False},
    "trial": {
        "minutes": 5.0,
        "seeds": 3,
        "frozen": True,
        "short": False,
        "control": True,
        "dim": 64,
    },
    "watch": {"every": 100, "step": 0},
    "decay_param_groups": {"weight_decay": 0.0},
    "apply": {"dim": -1},
    "place": {"beta": 1.15, "step": 1.0},
}


def of(function: Any) -> dict[str, float | bool]:
    """The numbers and switches that a function takes where they are left out."""
    parameters = inspect.signature(function).parameters.values()
    return {
        one.name: one.default for one in parameters if isinstance(one.default, bool | int | float)
    }


def public() -> Iterator[tuple[str, Any]]:
    """The functions of the commands and of the package, by the names of the table."""
    for module in pkgutil.iter_modules(commands.__path__):
        found = importlib.import_module(f"plkernel.commands.{module.name}")
        for name, function in inspect.getmembers(found, inspect.isfunction):
            if function.__module__ == found.__name__ and not name.startswith("_"):
                yield f"commands.{module.name}.{name}", function
    for name in plkernel.__all__:
        one = getattr(plkernel, name)
        if inspect.isfunction(one) or name == "watch":
            yield name, one


@pytest.fixture(scope="module")
def functions() -> dict[str, Any]:
    return dict(public())


@pytest.mark.parametrize("name", DEFAULTS)
def test_an_option_that_is_left_out_is_as_it_was(name: str, functions: dict[str, Any]) -> None:
    assert of(functions[name]) == DEFAULTS[name]


def test_every_function_with_numbers_of_its_own_is_in_the_table(functions: dict[str, Any]) -> None:
    assert {name for name, one in functions.items() if of(one)} == set(DEFAULTS)


@pytest.mark.parametrize(
    "function",
    [parse_spec, load_spec, resolve, from_config, Condition, Job, open_text_model],
    ids=lambda one: one.__name__,
)
def test_code_of_others_is_trusted_only_where_somebody_says_so(function: Any) -> None:
    assert inspect.signature(function).parameters["trusted"].default is False
