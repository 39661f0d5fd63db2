"""Several processes train the model of one: same windows, same steps up to rounding, one record, one end for all."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from plkernel.common.files import load_json, read_lines
from plkernel.config.reading import load_spec
from plkernel.config.schema import TrainSpec
from plkernel.data.windows import training_windows
from plkernel.training.loop import prepare, run_training
from plkernel.training.objective import seed_dropout
from plkernel.training.processes import ALONE, Ranks, joined

SpecWriter = Callable[..., Path]
RUN = "uniform/seed-0"
RWKV = '[arms.uniform.model]\nkind = "rwkv6"\nhead_size = 8\n'
PATIENCE = 240.0


PATCHED = """
import os, signal
from plkernel import train
from plkernel.training import processes as ranks
from plkernel.training.loop import Training
from plkernel.config import command_line
step = Training.step
def patched(self):
    rank, number = self.ranks.rank, self.progress.step
    if {when}:
        {body}
    step(self)
Training.step = patched
command_line.main(train.command)
"""
AGREE = """
import os, sys, time
import torch
from torch import nn
from plkernel.config.schema import TrainSpec
from plkernel.training.processes import joined
for rank in "01":  # which need not each load torch
    if not os.fork():
        os.environ |= {"RANK": rank, "LOCAL_RANK": rank}
        break
else:
    print(sorted(os.waitstatus_to_exitcode(os.wait()[1]) for _ in "01"))
    sys.exit()
def linear(seed):
    torch.manual_seed(seed)
    return nn.Linear(3, 1)
def fail():
    raise OSError("of the first")
with joined(TrainSpec(steps=1, batch=4, device="cpu")) as ranks:
    whole, model, windows = linear(0), linear(ranks.rank), torch.arange(12.0).view(4, 3)
    whole(windows).square().mean().backward()
    parallel = ranks.parallel(model)
    parallel(ranks.share(windows)).square().mean().backward()
    assert torch.equal(model.weight, whole.weight)
    torch.testing.assert_close(model.weight.grad, whole.weight.grad)
    assert ranks.mean([float(ranks.rank), 3.0]) == [0.5, 3.0]
    assert ranks.any(ranks.rank == 1) and not ranks.any(False)
    assert ranks.from_first(lambda: ranks.rank) == 0
    try:
        ranks.from_first(fail)
    except (OSError, ValueError) as error:
        assert str(error) == "of the first"
    else:
        raise AssertionError
    os.write(1, b"agreed\\n")
"""
KILL, ASK = "os.kill(os.getpid(), signal.SIGKILL)", "os.kill(os.getpid(), signal.SIGTERM)"


def alone(path: Path, out: Path, seed: int = 0) -> Path:
    """The run of one process, in this one; its folder."""
    return run_training(prepare(load_spec(path), "uniform", seed, out), progress_bar=False) and out / RUN


def program(folder: Path, when: str = "False", body: str = "pass") -> list[str]:
    """The training command as it is, or with a patched step."""
    if when == "False":
        return ["-m", "plkernel.train"]
    script = folder / "patched.py"
    script.write_text(PATCHED.format(when=when, body=body))
    return [str(script)]


def torchrun(command: list[str], path: Path, out: Path) -> subprocess.Popen[str]:
    """Two processes as a user starts them."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return started([*launcher, *command, str(path), "--out", str(out)])


def started(command: list[str], **environment: object) -> subprocess.Popen[str]:
    variables = {**os.environ, "OMP_NUM_THREADS": "1", **{name: str(value) for name, value in environment.items()}}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=variables, start_new_session=True)


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit code and what it wrote to standard output and standard error."""
    try:
        output, error = process.communicate(timeout=PATIENCE)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, output, error


def two(command: list[str], *arguments: object) -> list[tuple[int, str, str]]:
    """How two processes end that nothing watches over, with the environment that torchrun gives them."""
    whole, where = [sys.executable, *command, *map(str, arguments)], place()
    processes = [started(whole, RANK=rank, LOCAL_RANK=rank, **where) for rank in (0, 1)]
    return [ended(process) for process in processes]


def place() -> dict[str, object]:
    """Where two processes meet."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return {"WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": probe.getsockname()[1]}


def difference(one: Path, other: Path) -> float:
    """The largest difference of the bits per byte, training and validation, between the rows of two runs."""
    rows, others = (read_lines(folder / "metrics.jsonl") for folder in (one, other))
    assert [row["step"] for row in rows] == [row["step"] for row in others]
    pairs = [(a[key], b[key]) for a, b in zip(rows, others, strict=True) for key in ("train_bpb", "val_bpb")]
    return max(abs(a - b) for a, b in pairs if a is not None)


def test_processes_share_the_windows_of_a_step() -> None:
    windows = training_windows(torch.arange(200, dtype=torch.uint8).numpy(), 8, 6, seed=0, step=3)
    shares = [Ranks(rank, 3).share(windows) for rank in range(3)]
    assert [len(share) for share in shares] == [2, 2, 2]
    assert torch.equal(torch.cat(shares), windows)
    assert ALONE.share(windows).data_ptr() == windows.data_ptr()


def test_a_process_without_torchrun_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster's own WORLD_SIZE is not torchrun's: without a LOCAL_RANK nothing is waited for."""
    train, model = TrainSpec(steps=1, batch=3), nn.Linear(1, 1)
    for variables in ({}, {"RANK": "1", "WORLD_SIZE": "2"}, {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        with joined(train) as ranks:
            assert ranks == ALONE
            assert ranks.parallel(model) is model
            assert (ranks.mean([0.1]), ranks.any(False), ranks.from_first(lambda: 3)) == ([0.1], False, 3)
            assert not torch.distributed.is_initialized()


def test_windows_that_cannot_be_shared_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    message = "train.batch must be a multiple of the number of processes, got 3 windows for 2 processes"
    with pytest.raises(ValueError, match=message), joined(TrainSpec(steps=1, batch=3)):
        pass


def test_every_process_has_dropout_masks_of_its_own() -> None:
    draws = []
    for arguments in ((3, 5), (3, 5, 0), (3, 5, 1), (3, 5, 2), (3, 6, 1)):
        seed_dropout(*arguments)
        draws.append(torch.rand(4).tolist())
    assert draws[0] == draws[1]
    assert len({tuple(draw) for draw in draws}) == 4


def test_two_processes_agree_on_parameters_gradients_numbers_decisions_and_errors(tmp_path: Path) -> None:
    """Every assertion is made in both."""
    script = tmp_path / "agree.py"
    script.write_text(AGREE)
    code, output, error = ended(started([sys.executable, str(script)], **place()))
    assert (code, sorted(output.splitlines()), error) == (0, ["[0, 0]", "agreed", "agreed"], "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "train", "noise"),
    [("ssm", {"learning_rate": 1e-2}, 1e-6), ("rwkv6", {"learning_rate": 1e-3, "l2wrap": 1e-4}, 4e-6)],
)
def test_torchrun_follows_the_curve_of_one_process(
    tiny_spec: SpecWriter, tmp_path: Path, kind: str, train: dict, noise: float
) -> None:
    """Measured over 60 steps: 3e-7 and 1.4e-6 bits per byte; where a share is dropped 0.26 and 0.20."""
    path = tiny_spec(steps=60, eval_every=10, weight_decay=0.1, **train)
    if kind != "ssm":
        path.write_text(path.read_text().replace("[arms.uniform]\n", "[arms.uniform]\n" + RWKV))
    one, both = alone(path, tmp_path / "one"), tmp_path / "two" / RUN
    code, output, error = ended(torchrun(program(tmp_path), path, tmp_path / "two"))
    assert code == 0, error
    assert output.count("bits per byte") == 1, "the first process speaks for both"
    assert difference(both, one) < noise
    assert [load_json(folder / "environment.json").get("ranks") for folder in (one, both)] == [None, 2]
    assert (one / "config.json").read_bytes() == (both / "config.json").read_bytes(), "no part of a run's identity"
    dropped = program(tmp_path, "True", "ranks.Ranks.share = lambda self, windows: windows.chunk(2)[0]")
    assert [end[0] for end in two(dropped, path, "--out", tmp_path / "dropped")] == [0, 0]
    assert difference(tmp_path / "dropped" / RUN, one) > 1e4 * noise


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_killed_process_ends_torchrun_and_one_or_two_processes_go_on(
    tiny_spec: SpecWriter, tmp_path: Path, ranks: int
) -> None:
    path, out = tiny_spec(), tmp_path / "two"
    code, _, _ = ended(torchrun(program(tmp_path, "(rank, number) == (0, 6)", KILL), path, out))
    assert code == 1
    before = (out / RUN / "metrics.jsonl").read_bytes()
    assert before.count(b"\n") == 2, "the rows of steps 0 and 4"
    if ranks == 1:
        alone(path, out)
    else:
        code, _, error = ended(torchrun(program(tmp_path), path, out))
        assert code == 0, error
    assert (out / RUN / "metrics.jsonl").read_bytes().startswith(before)
    assert difference(out / RUN, alone(path, tmp_path / "one")) < 1e-6


@pytest.mark.slow
def test_an_interrupt_saves_and_the_same_command_goes_on(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    path, out = tiny_spec(steps=300, eval_every=20, learning_rate=1e-3), tmp_path / "two"
    process, deadline = torchrun(program(tmp_path, "True", "__import__('time').sleep(0.02)"), path, out), PATIENCE
    while len(read_lines(out / RUN / "metrics.jsonl")) < 2 and process.poll() is None and deadline > 0:
        deadline -= 0.1
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, _, error = ended(process)
    assert error.count("is saved; run the same command again to go on") == 1
    code, _, error = ended(torchrun(program(tmp_path), path, out))
    assert code == 0, error
    assert difference(out / RUN, alone(path, tmp_path / "one")) < 3e-6


@pytest.mark.slow
@pytest.mark.parametrize("asked", [0, 1])
def test_a_signal_to_one_process_stops_all_at_one_step(tiny_spec: SpecWriter, tmp_path: Path, asked: int) -> None:
    ends = two(program(tmp_path, f"(rank, number) == ({asked}, 6)", ASK), tiny_spec(), "--out", tmp_path / "out")
    assert [code for code, _, _ in ends] == [130, 130], ends
    assert "step 7 is saved" in ends[0][2]


@pytest.mark.slow
def test_a_loss_of_one_process_that_is_no_number_ends_all(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    poison = "self.model.head.weight.data.fill_(float('nan'))"
    ends = two(program(tmp_path, "(rank, number) == (1, 5)", poison), tiny_spec(), "--out", tmp_path / "out")
    for code, _, error in ends:
        assert code == 2
        assert "error: the run diverged: nan at step 6" in error
    assert load_json(tmp_path / "out" / RUN / "result.json")["status"] == "diverged"


@pytest.mark.slow
def test_a_budget_in_minutes_ends_all(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    path, out = tiny_spec(steps=None, minutes=0.02, eval_every=100_000), tmp_path / "out"
    ends = two(program(tmp_path, "rank == 1", "self._clock += 1e6"), path, "--out", out)  # the clock of one, far behind
    assert [code for code, _, _ in ends] == [0, 0], ends
    result = load_json(out / RUN / "result.json")
    assert result["steps"] == read_lines(out / RUN / "metrics.jsonl")[-1]["step"] > 0
    assert 1.2 <= result["seconds"] < PATIENCE


@pytest.mark.slow
def test_bad_input_is_one_line_of_every_process(tiny_spec: SpecWriter, tmp_path: Path) -> None:
    """Found by all (the batch), or by the first alone (the folder of another run)."""
    alone(tiny_spec(), tmp_path / "out")
    for options, message in (({"batch": 3}, "train.batch must be a multiple"), ({"steps": 16}, "made by another spec")):
        for code, output, error in two(program(tmp_path), tiny_spec(**options), "--out", tmp_path / "out"):
            assert (code, output) == (2, "")
            assert error.startswith("error: ")
            assert message in error
            assert error.count("\n") == 1
