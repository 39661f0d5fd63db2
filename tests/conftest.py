"""A tiny study on real source text, and a cache of its own for every test."""

import gc
import inspect
import io
import json
import os
import re
import signal
import sys
import textwrap
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from plkernel.common import cli

if TYPE_CHECKING:
    from plkernel.config.spec import Spec

# Tests started in the background ignore Ctrl-C, and so would every process of theirs that is to be
# interrupted.
signal.signal(signal.SIGINT, signal.default_int_handler)


class WithoutKernels(MetaPathFinder):
    """Models of transformers compute with PyTorch's operations alone, in any order of the tests.

    While their modules are imported they look for kernels of fla, which need a GPU, and keep what
    they find for the life of the process. It depends on what was imported before whether they find
    any.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not re.fullmatch(r"transformers\.models\.\w+\.modeling_\w+", name):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def hidden(module: ModuleType) -> None:
                with pytest.MonkeyPatch.context() as patched:
                    patched.setitem(sys.modules, "fla", None)
                    execute(module)

            spec.loader.exec_module = hidden  # type: ignore[method-assign]
        return spec


def pytest_sessionstart() -> None:
    gc.disable()
    sys.meta_path.insert(0, WithoutKernels())


def pytest_collection_finish() -> None:
    """From here the collector passes over the half a million objects of modules and tests, which
    stay to the end.
    """
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)
    gc.enable()


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Corpora of a test are cached in its own folder."""
    monkeypatch.setenv("PLKERNEL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def bars(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[Any]]:
    """Has the progress bars of a module, by its name, drawn nowhere; gives them as they are made.

    `hidden` of a bar is what was asked for as `disable`.
    """
    from tqdm.auto import tqdm

    def recorded(module: str) -> list[Any]:
        made: list[Any] = []

        def shown(**settings: Any) -> Any:
            bar: Any = tqdm(**{**settings, "disable": False, "file": io.StringIO()})
            bar.hidden = settings["disable"]
            made.append(bar)
            return bar

        monkeypatch.setattr(f"{module}.tqdm", shown)
        return made

    return recorded


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command that must end with one line of error and exit code 2; gives that line."""

    def run(
        command: Callable[..., Any], *arguments: object, main: Callable[..., Any] = cli.main
    ) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main(command, list(map(str, arguments)))
        output, error = capsys.readouterr()
        line = error[error.index("error: ") :]  # transformers says before it how far it has loaded
        assert (stop.value.code, output, line.count("\n")) == (cli.EXIT_BAD_INPUT, "", 1), error
        return line.removesuffix("\n")

    return run


@pytest.fixture
def without(tmp_path: Path) -> Callable[..., tuple[int, str, str]]:
    """Calls in a copy of this process that has plkernel to import anew, and cannot import packages
    of given names.

    Gives exit status, standard output and standard error. A new process would load all the other
    packages again.
    """

    def run(names: Collection[str], action: Callable[[], object]) -> tuple[int, str, str]:
        def blocked(name: str, path: Any = None, target: Any = None) -> None:
            if name.partition(".")[0] in names:
                raise ModuleNotFoundError(f"{name} is blocked", name=name)

        files = [tmp_path / name for name in ("stdout", "stderr")]
        child = os.fork()
        if child:
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            return status, files[0].read_text(), files[1].read_text()
        status = 1
        loaded = sys.modules.copy()
        try:
            sys.stdout, sys.stderr = (file.open("w", buffering=1) for file in files)
            for name in loaded:
                if name.partition(".")[0] in {"plkernel", *names}:
                    del sys.modules[name]
            finders = [one for one in sys.meta_path if isinstance(one, type)]  # not that of pytest
            sys.meta_path[:] = [SimpleNamespace(find_spec=blocked), *finders]  # type: ignore[list-item]
            action()
            status = 0
        except SystemExit as stop:
            status = int(stop.code or 0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)

    return run


@pytest.fixture
def tiny_spec(tmp_path: Path) -> Callable[..., Path]:
    """Writes a spec of a study that trains in a second; keyword arguments replace values of
    [train].
    """
    text = tmp_path / "text.txt"
    text.write_text(inspect.getsource(textwrap) + inspect.getsource(inspect))

    def write(
        name: str = "tiny.toml", head: str = "", corpus: str | None = None, **train: object
    ) -> Path:
        settings = {
            "context": 32,
            "batch": 4,
            "steps": 12,
            "eval_every": 4,
            "eval_windows": 4,
            "test_windows": 4,
        }
        settings |= {"learning_rate": 1e-2} | train
        lines = "\n".join(
            f"{key} = {value!r}" for key, value in settings.items() if value is not None
        )
        path = tmp_path / name
        path.write_text(
            f'name = "tiny"\nbaseline = "uniform"\nseeds = [0, 1]\n{head}\n[corpus]\nname ='
            f" {str(corpus or text)!r}\n[model]\ndim = 16\nlayers ="
            f' 2\n[train]\n{lines}\n[arms.uniform]\n[arms.power-law]\nprojection = "published"\n'
        )
        return path

    return write


@pytest.fixture
def stopped() -> "Callable[[Spec, str, Path, int], Path]":
    """Trains an arm at seed 0 until it is interrupted, as by Ctrl-C, after a step; gives the folder
    of the run.
    """
    from plkernel.training.loop import Training, prepare, run_training

    def train(spec: "Spec", arm: str, out: Path, step: int) -> Path:
        whole = Training.step

        def interrupted(self: Training) -> None:
            whole(self)
            if self.progress.step == step:
                os.kill(os.getpid(), signal.SIGINT)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Training, "step", interrupted)
            with pytest.raises(KeyboardInterrupt):
                run_training(prepare(spec, arm, 0, out), progress_bar=False)
        return out / arm / "seed-0"

    return train


@pytest.fixture
def launches() -> "Callable[[Callable[[], object]], int]":
    """How many operators a call dispatches that compute something: not those that only look at a
    tensor otherwise.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    class Launches(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(
            self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            returns = operator._schema.returns
            self.count += not any(
                each.alias_info is not None and not each.alias_info.is_write for each in returns
            )
            return operator(*args, **(kwargs or {}))

    def count(call: Callable[[], object]) -> int:
        with Launches() as mode:
            call()
        return mode.count

    return count


@pytest.fixture
def declared_study(tmp_path: Path) -> Callable[..., Path]:
    """Writes a record of the arms base, better (by 0.05), same and untried, which declares what it
    is given.

    Each seed's losses spread by 0.001, half of an effect is there at step 20, test loss adds 0.1 to
    all, and the excess over a floor is the loss less 1. With 4 bytes given the cost is 0.5, of
    better less by ten effects; with 1, NaN.
    """
    from plkernel.config.reading import parse_spec

    effects = {"base": 0.0, "better": -0.05, "same": 0.0, "untried": None}

    def write(
        hypotheses: Sequence[object] = (),
        gates: Sequence[object] = (),
        seeds: int = 6,
        name: str = "s",
        corpus: str = "stdlib",
    ) -> Path:
        values = {
            "name": "claims",
            "corpus": {"name": corpus},
            "baseline": "base",
            "seeds": list(range(seeds)),
            "arms": {arm: {} for arm in effects},
        }
        train = {
            "steps": 40,
            "eval_every": 10,
            "context": 64,
            "eval_windows": 256,
            "truncation_windows": 8,
        }
        spec = parse_spec(
            {**values, "train": train, "hypotheses": hypotheses, "gates": gates}, "here"
        )
        rng = np.random.default_rng(0)
        rows = []
        for seed in range(seeds):
            for arm, effect in effects.items():
                own = rng.normal(0.0, 0.001)
                if effect is not None:
                    rows.append(declared_row(arm, seed, effect, own))
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "spec.json").write_text(json.dumps(spec.model_dump(mode="json")))
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return folder

    return write


def declared_row(arm: str, seed: int, effect: float, noise: float) -> dict[str, Any]:
    """A finished run of 40 steps whose loss falls to 2.15 plus what is its own."""
    steps = list(range(0, 41, 10))
    values = [2.0 + 0.1 * seed + 6 / (1 + step) + (effect + noise) * step / 40 for step in steps]
    result = {
        "steps": 40,
        "bytes": 40 * 2048,
        "final_val_bpb": values[-1],
        "best_val_bpb": values[-1],
        "causal": True,
    }
    result |= {"best_step": 40, "test_bpb": values[-1] + 0.1, "seconds": 9.0}
    result["truncation"] = {"given": [1, 4, 64], "bpb": [None, 2.5 + 10 * effect, 2.0]}
    excess = [value - 1.0 for value in values]
    return {
        "arm": arm,
        "seed": seed,
        "status": "finished",
        "config": {"corpus": {"name": "stdlib", "sha256": "9f"}, "model": {"parameters": 1000}},
        "environment": {
            "commit": "3f9a",
            "dirty": False,
            "threads": 2,
            "hardware": {"cpu": "a processor", "gpu": None},
        },
        "result": result,
        "curve": {
            "step": steps,
            "bytes": [step * 2048 for step in steps],
            "val_bpb": values,
            "excess_bpb": excess,
        },
    }


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Tensors of these sizes are slower on several threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def tokenizer_file(tmp_path: Path) -> Callable[..., Path]:
    """Writes tokenizer.json, trained on a text: of pairs of bytes, or of words."""
    tokenizers = pytest.importorskip("tokenizers")

    def write(text: str, size: int = 400, kind: str = "bytes") -> Path:
        if kind == "bytes":
            tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
            split = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
            alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
            trainer = tokenizers.trainers.BpeTrainer(
                vocab_size=size, initial_alphabet=alphabet, show_progress=False
            )
        else:
            tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
            split = tokenizers.pre_tokenizers.BertPreTokenizer()
            trainer = tokenizers.trainers.WordPieceTrainer(
                vocab_size=size, special_tokens=["[UNK]"], show_progress=False
            )
        tokenizer.pre_tokenizer = split
        tokenizer.train_from_iterator([text], trainer)
        folder = tmp_path / "tokenizer"
        folder.mkdir(exist_ok=True)
        tokenizer.save(str(folder / "tokenizer.json"))
        return folder / "tokenizer.json"

    return write
