"""A stopped run whose files have changed is refused, in words; what is received is not written through."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plkernel.common.files import read_lines
from plkernel.config.reading import load_spec
from plkernel.config.study import Spec
from plkernel.data.synthetic import known_sequence, predictor_of
from plkernel.data.windows import fixed_windows, spread_windows
from plkernel.results.rows import append, expected_steps
from plkernel.training.folder import RunFolder
from plkernel.training.loop import Training, prepare, run_training

SpecWriter = Callable[..., Path]
Stopped = Callable[[Spec, str, Path, int], Path]
CHECKPOINT, METRICS, TIMING = "checkpoint.safetensors", "metrics.jsonl", "timing.jsonl"
RUN = "uniform/seed-0"
MARKOV = "synthetic:markov,symbols=4,bytes=20k,seed=1"


@pytest.fixture
def spec(tiny_spec: SpecWriter) -> Spec:
    return load_spec(tiny_spec(steps=8, eval_every=2))


def go_on(spec: Spec, out: Path, arm: str = "uniform") -> dict[str, Any]:
    return run_training(prepare(spec, arm, 0, out), progress_bar=False)


def refused(spec: Spec, out: Path, message: str) -> None:
    """The run is, and its row files stay as they are."""
    rows = {path: path.read_bytes() for name in (METRICS, TIMING) if (path := out / RUN / name).exists()}
    with pytest.raises(ValueError, match=message):
        go_on(spec, out)
    assert {path: path.read_bytes() for path in rows} == rows


def test_the_checkpoint_of_another_arm_is_refused(spec: Spec, stopped: Stopped, tmp_path: Path) -> None:
    one, other = (stopped(spec, arm, tmp_path / "out", 5) for arm in ("uniform", "power-law"))
    shutil.copy(other / CHECKPOINT, one / CHECKPOINT)
    refused(spec, tmp_path / "out", r"belongs to another run \(arm was 'power-law', is now 'uniform'.*bring the run's")
    (one / CHECKPOINT).write_bytes((one / CHECKPOINT).read_bytes()[:100])
    refused(spec, tmp_path / "out", r"checkpoint .*checkpoint.safetensors is damaged")


def test_row_files_that_have_changed_are_refused(spec: Spec, stopped: Stopped, tmp_path: Path) -> None:
    left = r"seed-0/{} is not as the run left it at the step 4 of its last evaluation \({}\): bring it back, or remove"
    folder = stopped(spec, "uniform", tmp_path / "out", 5)
    for name in (METRICS, TIMING):
        path, whole = folder / name, (folder / name).read_bytes()
        rows = whole.splitlines(keepends=True)
        changes = {
            "0 of .* bytes are there": b"",
            "its line ends have been changed": whole.replace(b"\n", b"\r\n"),
            r"[\d,]+ of [\d,]+ bytes are there": rows[0] + rows[2],
            "its rows are of steps 0, 4, 2, expected 0, 2, 4": rows[0] + rows[2] + rows[1],
            "its rows are of steps unreadable, 2, 4, expected 0, 2, 4": b"x" + whole[1:],
            "its content has been changed": whole.replace(b"0.", b"1.", 1),
        }
        for reason, content in changes.items():
            path.write_bytes(content)
            refused(spec, tmp_path / "out", left.format(name, reason))
        path.unlink()
        refused(spec, tmp_path / "out", left.format(name, "it is missing"))
        path.write_bytes(whole + b'{"step": 6, "unfin')
    assert go_on(spec, tmp_path / "out")["steps"] == 8
    assert [row["step"] for row in read_lines(folder / METRICS)] == [0, 2, 4, 6, 8]


def test_a_run_of_an_earlier_version_goes_on_to_the_same_rows(spec: Spec, stopped: Stopped, tmp_path: Path) -> None:
    from safetensors import safe_open
    from safetensors.torch import save_file

    folder = stopped(spec, "uniform", tmp_path / "out", 5)
    with safe_open(folder / CHECKPOINT, framework="pt") as file:
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        progress = json.loads(file.metadata()["progress"])
    earlier = {name: value for name, value in progress.items() if not name.endswith("_crc")}
    save_file(tensors, folder / CHECKPOINT, {"progress": json.dumps(earlier)})
    rows = (folder / METRICS).read_bytes()
    (folder / METRICS).write_bytes(b"".join(rows.splitlines(keepends=True)[::-1]))
    refused(spec, tmp_path / "out", "its rows are of steps 4, 2, 0, expected 0, 2, 4")
    (folder / METRICS).write_bytes(rows)
    go_on(spec, tmp_path / "out")
    go_on(spec, tmp_path / "whole")
    assert (folder / METRICS).read_bytes() == (tmp_path / "whole" / RUN / METRICS).read_bytes()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_row_without_room_names_its_file() -> None:
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        append(Path("/dev/full"), {"step": 0}, 0)


def test_expected_steps() -> None:
    assert [expected_steps(4, last) for last in (0, 8, 10)] == [[0], [0, 4, 8], [0, 4, 8, 10]]


@pytest.mark.parametrize("name", [METRICS, TIMING, CHECKPOINT, "environment.json", ".checkpoint.partial.safetensors"])
def test_nothing_is_written_through_a_link(spec: Spec, stopped: Stopped, tmp_path: Path, name: str) -> None:
    folder, precious = stopped(spec, "uniform", tmp_path / "out", 5), tmp_path / "precious"
    precious.write_text("precious\n")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(precious)
    refused(spec, tmp_path / "out", rf"seed-0/{name} is a symbolic link to .*precious, and nothing is written through")
    assert precious.read_text() == "precious\n"


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_only_the_folder_of_the_study_may_be_a_link(spec: Spec, tmp_path: Path, depth: int) -> None:
    (tmp_path / "elsewhere").mkdir()
    path = (tmp_path / "out" / RUN, tmp_path / "out/uniform", tmp_path / "out")[depth]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(tmp_path / "elsewhere")
    if depth == 2:
        assert go_on(spec, tmp_path / "out")["steps"] == 8
    else:
        refused(spec, tmp_path / "out", r"is a symbolic link to .*elsewhere")
        assert not list((tmp_path / "elsewhere").iterdir())


def test_a_link_that_comes_later_is_not_followed(spec: Spec, tmp_path: Path) -> None:
    folder, precious = RunFolder(tmp_path / "run"), tmp_path / "precious"
    precious.write_text("precious\n")
    folder.path.mkdir()
    (folder.path / METRICS).symlink_to(precious)
    with pytest.raises(OSError, match=METRICS):
        folder.append({"step": 0}, {"step": 0}, Training(prepare(spec, "uniform", 0, tmp_path / "out")).progress)
    assert precious.read_text() == "precious\n"


@pytest.mark.parametrize("stop", [0, 2, 3, 4])
def test_tensorboard_shows_every_step_once_after_a_kill(
    spec: Spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int
) -> None:
    """Killed once the curves have an evaluation that no row and no checkpoint has, or between two evaluations."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def killed(self: object, *arguments: object) -> None:
        if stop in (getattr(self, "progress", None) and self.progress.step, arguments and arguments[0]["step"]):
            raise SystemExit
        return original(self, *arguments)

    place, name = (Training, "step") if stop == 3 else (RunFolder, "append")
    original = getattr(place, name)
    with monkeypatch.context() as patch:
        patch.setattr(place, name, killed)
        with pytest.raises(SystemExit):
            go_on(spec, tmp_path)
    go_on(spec, tmp_path)
    events = EventAccumulator(str(tmp_path / RUN), {"histograms": 0}).Reload()
    rows = read_lines(tmp_path / RUN / METRICS)
    steps, positions = ([row[name] for row in rows[1:]] for name in ("step", "bytes"))
    expected = {"when_started/val_bpb": [0], "val/bpb": steps, "train/bpb": steps}
    expected |= {"versus_bytes/val_bpb": positions, "versus_bytes/train_bpb": positions}
    assert {tag: [event.step for event in events.Scalars(tag)] for tag in expected} == expected
    histograms = events.Histograms("weights/log2_half_life_block_0")
    assert [event.step for event in histograms] == [0, 2, 4, 6, 8]


def test_frozen_decays_stay_and_their_run_goes_on(tiny_spec: SpecWriter, stopped: Stopped, tmp_path: Path) -> None:
    """Interrupted, taken up and trained to the end, nothing of them has moved; those that are trained have."""
    path = tiny_spec(steps=8, eval_every=2, truncation_windows=6)
    path.write_text(path.read_text() + "[arms.frozen]\ntrain = { decay_multiplier = 0 }\n")
    spec, out = load_spec(path), tmp_path / "out"
    rows = stopped(spec, "frozen", out, 5) / METRICS
    result, whole = go_on(spec, out, "frozen"), go_on(spec, tmp_path / "whole", "frozen")
    assert {**result, "seconds": 0} == {**whole, "seconds": 0}
    frozen = read_lines(rows)
    assert {str(row["half_life_quantiles"]) for row in frozen} == {str(frozen[0]["half_life_quantiles"])}
    assert frozen[-1]["val_bpb"] < frozen[0]["val_bpb"]
    go_on(spec, out)
    moved = read_lines(out / RUN / METRICS)
    assert moved[0] == frozen[0]
    assert moved[-1]["half_life_quantiles"] != moved[0]["half_life_quantiles"]


def test_a_run_ends_with_what_its_context_is_worth_where_asked(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    """Truncation and influence; on a chain of a known law also the floor, and what pairs tell, in bits."""
    spec = load_spec(tiny_spec(corpus=MARKOV, steps=2, eval_every=1, truncation_windows=6, probe_windows=5))
    task, law, chain = prepare(spec, "uniform", 0, tmp_path / "out"), predictor_of(MARKOV), known_sequence(MARKOV)
    assert law is not None
    assert chain is not None
    result = run_training(task, progress_bar=False)
    cut, near = result["truncation"], result["influence"]
    assert (cut["given"], cut["windows"]) == ([1, 2, 4, 8, 16, 32], 6)
    assert cut["cost"] == pytest.approx([bpb - cut["bpb"][-1] for bpb in cut["bpb"]])
    last = law.losses(spread_windows(task.splits.test, 32, 6).numpy())[:, -1].mean()
    assert cut["floor"] == pytest.approx([last] * 6)
    assert (near["lags"], near["windows"]) == ([1, 2, 4, 8, 16, 32], 5)
    assert all(bits > 0 for bits in near["bits"])
    assert near["information"] == pytest.approx(chain.mutual_information([1, 2, 4, 8, 16, 32]) / np.log(2))
    floor = law.losses(fixed_windows(task.splits.validation, 32, 4).numpy()).mean()
    for row in read_lines(tmp_path / "out" / RUN / METRICS):
        assert row["excess_bpb"] == pytest.approx(row["val_bpb"] - floor)
    plain = go_on(load_spec(tiny_spec(steps=2, eval_every=2, probe_windows=3)), tmp_path / "other")
    assert "truncation" not in plain
    assert "information" not in plain["influence"]
    assert "influence" not in go_on(load_spec(tiny_spec(steps=2, eval_every=2)), tmp_path / "third")
