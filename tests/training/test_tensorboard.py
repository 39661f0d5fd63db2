"""The table of hyperparameters in TensorBoard: every run of a study is a row of it, and every row has all columns."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plkernel.common.files import load_json
from plkernel.config.reading import load_spec
from plkernel.models.words import NOT_CAUSAL
from plkernel.training.loop import prepare, run_training
from plkernel.training.tensorboard import ENDINGS, FIRST, columns, first_columns

ARMS = """
[arms.quantile]
placement = "quantile"
tempering = 0.5
scheme = "megatron_default"
learning_rate = 2e-2
model = { gain = "ema" }
[arms.leak]
model = { patching = { mode = "published", size = 2 } }
"""


@pytest.fixture
def trained(tiny_spec: Callable[..., Path], tmp_path: Path) -> Callable[..., list[Path]]:
    """Trains runs given as pairs of arm and seed, and gives their folders; the arms differ in what they leave out."""
    path = tiny_spec(steps=4)
    path.write_text(path.read_text() + ARMS)
    spec = load_spec(path)

    def train(*runs: tuple[str, int]) -> list[Path]:
        tasks = [prepare(spec, arm, seed, tmp_path / "out") for arm, seed in runs]
        for task in tasks:
            run_training(task, progress_bar=False)
        return [task.folder.path for task in tasks]

    return train


def read_back(folder: Path) -> tuple[dict[str, Any], dict[str, str], dict[str, str], list[str]]:
    """A run's values, the types of all columns, the names of all metrics by tag, and the columns to show first."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import metadata
    from tensorboard.plugins.hparams.api_pb2 import DataType

    found = EventAccumulator(str(folder)).Reload().summary_metadata
    contents = {tag: found[tag].plugin_data.content for tag in found if found[tag].plugin_data.plugin_name == "hparams"}
    assert set(contents) == {metadata.EXPERIMENT_TAG, metadata.SESSION_START_INFO_TAG, metadata.SESSION_END_INFO_TAG}
    experiment = metadata.parse_experiment_plugin_data(contents[metadata.EXPERIMENT_TAG])
    start = metadata.parse_session_start_info_plugin_data(contents[metadata.SESSION_START_INFO_TAG])
    values = {name: getattr(value, value.WhichOneof("kind")) for name, value in start.hparams.items()}
    types = {info.name: DataType.Name(info.type) for info in experiment.hparam_infos}
    shown = [info.name for info in experiment.hparam_infos if info.differs]
    return values, types, {info.name.tag: info.display_name for info in experiment.metric_infos}, shown


def test_every_run_of_a_study_is_a_row_with_all_columns(trained: Callable[..., list[Path]]) -> None:
    study = trained(("uniform", 0), ("uniform", 1), ("quantile", 0), ("leak", 0))
    rows = [read_back(folder) for folder in study]
    for folder, (values, types, metrics, shown) in zip(study, rows, strict=True):
        assert (types, metrics) == rows[0][1:3], "TensorBoard takes the columns of one run for those of all"
        assert set(values) == set(types)
        kinds = {"DATA_TYPE_STRING": str, "DATA_TYPE_FLOAT64": float}
        assert all(isinstance(values[name], kinds[kind]) for name, kind in types.items())
        assert values == columns(load_json(folder / "config.json"))
        assert sorted(shown) == sorted(FIRST)
        assert metrics == {f"when_ended/{name}": title for name, title in ENDINGS.items()}
    names = ("arm", "seed", "scheme", "gain", "patching", "learning_rate")
    named = [{name: row[0][name] for name in names} for row in rows]
    plain = {"scheme": "transformers_default", "gain": "none", "patching": "none", "learning_rate": 0.01}
    assert named[:2] == [{"arm": "uniform", "seed": seed, **plain} for seed in (0, 1)]
    other = {"scheme": "megatron_default", "gain": "ema", "learning_rate": 0.02}
    assert named[2] == {"arm": "quantile", "seed": 0, **plain, **other}
    assert named[3] == {"arm": "leak", "seed": 0, **plain, "patching": f"published, 2 bytes ({NOT_CAUSAL})"}
    assert [row[0]["tempering"] for row in rows] == ["-", "-", "0.5", "-"]
    assert {"dim", "layers", "parameters", "placement", "projection", "beta", "batch", "context"} <= set(rows[0][1])


def test_results_stand_beside_them(trained: Callable[..., list[Path]]) -> None:
    """In the one file of events that the run has: a second writer would make it look like two starts."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    [folder] = trained(("uniform", 0))
    events, result = EventAccumulator(str(folder)).Reload(), load_json(folder / "result.json")
    for name in ENDINGS:
        [event] = events.Scalars(f"when_ended/{name}")
        assert (event.step, event.value) == (4, pytest.approx(result[name], rel=1e-6))
    assert len(list(folder.glob("events.out.tfevents.*"))) == 1


def test_losses_stand_first(trained: Callable[..., list[Path]]) -> None:
    """TensorBoard orders groups of cards by their names."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tags = EventAccumulator(str(trained(("uniform", 0))[0])).Reload().Tags()
    names = sorted([*tags["scalars"], *tags["histograms"]])
    assert names[:2] == ["train/bpb", "val/bpb"]
    groups = list(dict.fromkeys(name.partition("/")[0] for name in names))
    last = ["when_ended", "when_started"]
    assert groups == ["train", "val", "versus_bytes", "versus_seconds", "watch", "weights", *last]


def test_step_0_stands_apart(trained: Callable[..., list[Path]]) -> None:
    """Its 8 bits per byte would flatten every curve; nothing else of the run is left out."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    [folder] = trained(("uniform", 0))
    events = EventAccumulator(str(folder)).Reload()
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    [started] = events.Scalars("when_started/val_bpb")
    assert (started.step, started.value) == (0, pytest.approx(rows[0]["val_bpb"], rel=1e-6))
    later = [row["val_bpb"] for row in rows[1:]]
    for tag in ("val/bpb", "versus_bytes/val_bpb", "versus_seconds/val_bpb"):
        assert [event.value for event in events.Scalars(tag)] == pytest.approx(later, rel=1e-6)
    assert [event.step for event in events.Scalars("versus_bytes/val_bpb")] == [row["bytes"] for row in rows[1:]]


def test_a_study_shows_first_what_its_arms_differ_in(tiny_spec: Callable[..., Path], tmp_path: Path) -> None:
    path = tiny_spec()
    path.write_text(path.read_text() + ARMS)
    values, run = load_spec(path).model_dump(mode="json"), tmp_path / "out" / "uniform" / "seed-0"
    assert first_columns(run) == FIRST, "no study says what varies"
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "spec.json").write_text(json.dumps(values))
    varied = {"gain", "patching", "projection", "placement", "scheme", "tempering", "learning_rate"}
    assert set(first_columns(run)) == {"arm", *varied}
    two = {name: values["arms"][name] for name in ("uniform", "power-law")}
    (tmp_path / "out" / "spec.json").write_text(json.dumps({**values, "arms": two}))
    assert first_columns(run) == ("arm", "projection")


def test_an_rwkv_has_the_columns_of_an_ssm(trained: Callable[..., list[Path]]) -> None:
    config = load_json(trained(("uniform", 0))[0] / "config.json")
    options = {"beta": 1.0, "longest": 9.0, "shortest": 1.0}
    found = columns({**config, "model": {**config["model"], "kind": "rwkv6"}, "arm_options": options})
    kinds = [{name: isinstance(value, str) for name, value in row.items()} for row in (found, columns(config))]
    assert kinds[0] == kinds[1]
    assert (found["scheme"], found["placement"]) == ("rwkv_blinkdl", "of the scheme")
