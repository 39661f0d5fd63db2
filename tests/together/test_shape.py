"""Which runs are trained as one: those whose models and steps have one shape, as many as spec or device say."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from plkernel.config.reading import load_spec
from plkernel.config.study import with_defaults
from plkernel.dry_run.table import Forecast, RunForecast, text
from plkernel.results.layout import LOG
from plkernel.study.ray_engine import RayEngine
from plkernel.study.schedule import run_experiment
from plkernel.together.shape import describe, shape
from plkernel.training.folder import differences
from plkernel.training.task import prepare

SpecWriter = Callable[..., Path]


def test_what_runs_must_share(tiny_spec: SpecWriter) -> None:
    base = load_spec(tiny_spec())
    alike, other = load_spec(tiny_spec(steps=20, learning_rate=1e-4, clip=2.0)), load_spec(tiny_spec(context=16))
    uniform = shape(base.condition("uniform"))
    assert uniform == shape(base.condition("power-law")) == shape(alike.condition("uniform"))
    assert hash(uniform) is not None
    assert shape(other.condition("uniform")) != uniform
    assert shape(load_spec(tiny_spec(l2wrap=1e-4)).condition("uniform")) != uniform
    assert shape(load_spec(tiny_spec(steps=None, minutes=1.0)).condition("uniform")) is None
    one = base.condition("uniform")
    assert shape(replace(one, train=one.protocol.model_copy(update={"compile": True}))) is None
    path = tiny_spec()
    path.write_text(path.read_text() + "[arms.mup]\nscheme = 'mup_table8'\n")
    assert shape(load_spec(path).condition("mup")) != uniform, "its logits are multiplied"


def test_how_many_are_together_is_no_part_of_a_run(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    """So that a study may go on with more or fewer, and runs of earlier versions with any."""
    alone, together = (prepare(load_spec(tiny_spec(together=n)), "uniform", 0, tmp_path).config for n in (1, 8))
    assert alone == together
    assert differences(alone, with_defaults(json.loads(json.dumps(alone)))) == []
    for wrong in (0, 1025, "all"):
        with pytest.raises(
            ValueError, match=rf"together must be 'auto' or a number of runs from 1 to 1024, got '?{wrong}"
        ):
            load_spec(tiny_spec(together=wrong))


def test_a_dry_run_says_what_is_trained_together(tiny_spec: SpecWriter) -> None:
    spec = load_spec(tiny_spec(together=3))
    conditions = [spec.condition(arm) for arm in spec.arms]
    told = describe(conditions, len(spec.seeds), "cpu")
    assert told is not None
    assert "up to 3 runs of equal shape in a process" in told
    assert "of equal shape are 4;" in told
    auto = load_spec(tiny_spec())
    assert describe([auto.condition("uniform")], 2, "cpu") is None
    assert "up to 8 runs" in (describe([auto.condition("uniform")], 2, "cuda") or "")
    row = RunForecast("study", ("uniform",), 4, 1, 1.0, 1, 1, 1, 1.0, 1.0, "this run")
    assert told in text(Forecast("tiny", "cpu", 1, (row,), 1.0, None, None, told)).splitlines()


def test_on_a_cluster_every_run_is_trained_alone(tiny_spec: SpecWriter) -> None:
    engine = RayEngine(None)
    assert engine.together(load_spec(tiny_spec()).condition("uniform"), "cuda") == 1
    with pytest.raises(ValueError, match=r"train.together 8: on a Ray cluster every run is trained alone"):
        engine.together(load_spec(tiny_spec(together=8)).condition("uniform"), "cpu")


@pytest.mark.slow
def test_a_study_trains_them_in_one_process(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    """Four runs, three and one; every folder is that of a run, and says where its process printed."""
    spec, out = load_spec(tiny_spec(steps=4, eval_every=2, together=3)), tmp_path / "out"
    assert run_experiment(spec, out, workers=1) == []
    logs = {str(path.parent.relative_to(out)): path.read_text() for path in out.rglob(LOG)}
    assert sorted(logs) == ["power-law/seed-0", "power-law/seed-1", "uniform/seed-0", "uniform/seed-1"]
    assert logs["uniform/seed-0"].count(": 4 steps, validation") == 3
    for name in ("power-law/seed-0", "uniform/seed-1"):
        assert logs[name].startswith("trained together with uniform seed 0: see ")
    assert logs["power-law/seed-1"].count(": 4 steps, validation") == 1
