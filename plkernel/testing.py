"""For pytest: decays that must survive what a training set-up does to a model. The fixture is `decays_survive`.

Loads torch when it is called, not when pytest loads the plugin.
"""

import copy
import multiprocessing
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    from torch import dtype, nn

Arrays = dict[str, np.ndarray]
STEPS = ("bfloat16", "meta", "initialised again", "saved and loaded", "deepcopy", "compiled", "two processes")
SEEDS = 8
"""Models that are built to see which decays are drawn."""
LEAST = 1e-4
"""Probability of a false alarm of one comparison of drawn numbers (two-sample Kolmogorov-Smirnov)."""
PATIENCE = 120.0
"""Seconds that two processes have."""


def assert_decays_survive(
    factory: "Callable[[], nn.Module]",
    *,
    promised: Mapping[str, Any] | None = None,
    initialise: "Callable[[nn.Module], object] | None" = None,
    inputs: Sequence[Any] = (),
    steps: Sequence[str] = STEPS,
) -> None:
    """Raise AssertionError with step, tensor and value unless the decays of a model survive what is done to it.

    factory     builds the model, of layers that plkernel.inspect knows, from torch's generator and default dtype
    promised    numbers of some of the decays, by name; those of `factory` in float32 unless given
    initialise  fills a model whose tensors were empty; `init_weights`, `_init_weights` or `reset_parameters` of the
                model, whichever it has, unless given
    inputs      arguments of the forward pass, for a compiled model to run

    The model is built in float32, from SEEDS seeds, without a finding that is wrong, and then, step by step:

    bfloat16           built with this default dtype: equal to rounding, and finite
    meta               built on the meta device, materialised, filled with NaN, initialised
    initialised again  as it is, and as if it had never been
    saved and loaded   with other decays: `save_pretrained`, or the state_dict into another model; also in bfloat16
    deepcopy, compiled
    two processes      of gloo: sharded by FSDP2 when built, and built on meta, sharded, materialised and initialised

    Decays that all seeds share must be equal. Drawn ones must be finite and of the same distribution, over all layers,
    where they are drawn anew. The processes are forked: nothing needs to be pickled.
    """
    import torch

    from plkernel.memory.watch import Watch

    if unknown := set(steps) - set(STEPS):
        raise ValueError(f"steps must be among {', '.join(STEPS)}, got {', '.join(sorted(unknown))}")
    fill = initialise or _initialise
    with warnings.catch_warnings(action="ignore"), torch.random.fork_rng(devices=[]):
        models = [_built(factory, seed) for seed in range(SEEDS)]
        for one in (one for one in Watch(models[0]).findings if one.severity == "wrong"):
            raise AssertionError(f"built: {one.tensor}: {one.name}, {one.seen}")
        expected = _Promise([_decays(model) for model in models], promised or {})
        expected.check("built", _decays(models[0]))
        if "bfloat16" in steps:
            for seed in range(SEEDS):
                expected.check("bfloat16", _decays(_built(factory, seed, torch.bfloat16)), rounded=True)
        if "meta" in steps:
            expected.check("meta", _decays(_materialised(_built(factory, 0, device="meta"), fill)))
        if "initialised again" in steps:
            model = _built(factory, 0)
            if hasattr(model, "init_weights"):
                model.init_weights()  # type: ignore[operator]
                expected.check("initialised again", _decays(model), exactly=expected.first)
            fill(model)
            expected.check("initialised again", _decays(model))
        moved = _moved(models[0])
        kept = _decays(moved)
        if "saved and loaded" in steps:
            for name, loaded in _loaded(moved, factory):
                expected.check(f"saved and loaded{name}", _decays(loaded), exactly=kept, rounded=bool(name))
        if "deepcopy" in steps:
            expected.check("deepcopy", _decays(copy.deepcopy(moved)), exactly=kept)
        if "compiled" in steps:
            compiled: Any = torch.compile(moved, backend="eager")
            if inputs:
                compiled(*inputs)
            found = {name.replace("_orig_mod.", ""): values for name, values in _decays(compiled).items()}
            expected.check("compiled", found, exactly=kept)
        if "two processes" in steps:
            _in_two_processes(factory, fill, expected)


@pytest.fixture
def decays_survive() -> Callable[..., None]:
    """`assert_decays_survive`."""
    return assert_decays_survive


class _Promise:
    """Decays of models from several seeds: those that all share, and samples of the others by name without numbers."""

    def __init__(self, built: list[Arrays], promised: Mapping[str, Any]) -> None:
        self.first = built[0]
        if missing := set(promised) - set(self.first):
            raise ValueError(
                f"promised must name decays, got {', '.join(sorted(missing))}: {', '.join(self.first)} are"
            )
        alike = {name: all(np.array_equal(one[name], values) for one in built) for name, values in self.first.items()}
        self.fixed = {name: values for name, values in self.first.items() if alike[name]}
        self.fixed |= {name: np.asarray(values, dtype=np.float64) for name, values in promised.items()}
        self.drawn = [_pooled({name: one[name] for name in one if name not in self.fixed}) for one in built]

    def check(self, step: str, now: Arrays, exactly: Arrays | None = None, rounded: bool = False) -> None:
        """AssertionError for a decay that is missing, not finite, another number, or of another distribution."""
        for name, values in self.first.items():
            if name not in now:
                raise AssertionError(f"{step}: {name} is missing")
            if now[name].shape != values.shape:
                raise AssertionError(f"{step}: {name} is of shape {now[name].shape}, promised {values.shape}")
            _compare(step, name, now[name], np.where(np.isfinite(now[name]), now[name], values), 0.0)
        for name, values in (self.fixed if exactly is None else exactly).items():
            _compare(step, name, now[name], values, 2.0**-7 if rounded else 0.0)
        if exactly is None:
            from scipy.stats import ks_2samp

            pools = _pooled({name: now[name] for name in now if name not in self.fixed and name in self.first})
            for name, values in pools.items():
                before = np.concatenate([one[name] for one in self.drawn])
                if ks_2samp(values, before).pvalue < LEAST:
                    spans = [f"{one.min():g} .. {one.max():g}" for one in (values, before)]
                    raise AssertionError(f"{step}: {name} is {spans[0]}, promised were draws from {spans[1]}")


def _compare(step: str, name: str, now: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    expected = np.broadcast_to(expected, now.shape)
    wrong = ~np.isclose(now, expected, rtol=tolerance, atol=tolerance / 2, equal_nan=True)
    if wrong.any():
        at = tuple(int(index) for index in np.argwhere(wrong)[0])
        place = f"[{', '.join(map(str, at))}]" if at else ""
        words = f"is {now[at]:g}, promised {expected[at]:g} ({wrong.sum():,} of {wrong.size:,} differ)"
        raise AssertionError(f"{step}: {name}{place} {words}")


def _pooled(decays: Arrays) -> Arrays:
    pools: dict[str, list[np.ndarray]] = {}
    for name, values in decays.items():
        pools.setdefault(re.sub(r"\d+", "*", name), []).append(values.ravel())
    return {name: np.concatenate(parts) for name, parts in pools.items()}


def _decays(model: "nn.Module") -> Arrays:
    """Decays by name, in float64, of DTensors the whole: a call that all processes must make."""
    from plkernel.memory.watch import places_in

    found = {}
    for name in dict.fromkeys(name for _, _, names in places_in(model)[1] for name in names.values()):
        tensor: Any = attrgetter(name)(model).detach()
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        if whole.is_meta:
            raise AssertionError(f"{name} is on the meta device")
        found[name] = whole.double().cpu().numpy().copy()
    return found


def _built(
    factory: "Callable[[], nn.Module]", seed: int, kind: "dtype | None" = None, device: str = "cpu"
) -> "nn.Module":
    import torch

    before = torch.get_default_dtype()
    torch.manual_seed(seed)
    torch.set_default_dtype(kind or torch.float32)
    try:
        with torch.device(device):
            return factory()
    finally:
        torch.set_default_dtype(before)


def _materialised(model: "nn.Module", fill: "Callable[[nn.Module], object]") -> "nn.Module":
    import torch

    model.to_empty(device="cpu")
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.is_floating_point():
                tensor.fill_(float("nan"))
        fill(model)
    return model


def _initialise(model: "nn.Module") -> None:
    """As if for the first time: by `init_weights`, `_init_weights` of every module, or all `reset_parameters`."""
    import torch

    for one in (*model.modules(), *model.parameters(), *model.buffers()):
        vars(one).pop("_is_hf_initialized", None)  # of transformers
    with torch.no_grad():
        if hasattr(model, "init_weights"):
            model.init_weights()  # type: ignore[operator]
        elif hasattr(model, "_init_weights"):
            model.apply(model._init_weights)  # type: ignore[arg-type]
        else:
            for module in model.modules():
                if hasattr(module, "reset_parameters"):
                    module.reset_parameters()  # type: ignore[operator]


def _moved(model: "nn.Module") -> "nn.Module":
    """The model with decays that no initialisation gives, in place."""
    import torch

    with torch.no_grad():
        for name, values in _decays(model).items():
            tensor: Any = attrgetter(name)(model)
            tensor += torch.linspace(0.01, 0.1, values.size).reshape(values.shape).to(tensor.dtype)
    return model


def _loaded(model: Any, factory: "Callable[[], nn.Module]") -> "Iterator[tuple[str, nn.Module]]":
    """The model after it was saved and loaded, and in what way."""
    import torch

    with tempfile.TemporaryDirectory() as folder:
        if hasattr(model, "save_pretrained"):
            model.save_pretrained(folder)
            yield "", type(model).from_pretrained(folder)
            yield " in bfloat16", type(model).from_pretrained(folder, dtype=torch.bfloat16)
        else:
            torch.save(model.state_dict(), f"{folder}/model.pt")
            for name, kind in (("", torch.float32), (" in bfloat16", torch.bfloat16)):
                other = _built(factory, SEEDS, kind)
                other.load_state_dict(torch.load(f"{folder}/model.pt", weights_only=True))
                yield name, other


def _in_two_processes(
    factory: "Callable[[], nn.Module]", fill: "Callable[[nn.Module], object]", expected: _Promise
) -> None:
    def work(rank: int, folder: str) -> None:
        import torch
        from torch import distributed
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        step, text = "two processes, sharded", ""
        try:
            torch.set_num_threads(1)
            store = distributed.FileStore(f"{folder}/store", 2)
            distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
            mesh = init_device_mesh("cpu", (2,))
            sharded: Any = fully_shard(_built(factory, 0), mesh=mesh)
            expected.check(step, _decays(sharded), exactly=expected.first)
            step = "two processes, from meta"
            model: Any = fully_shard(_built(factory, 0, device="meta"), mesh=mesh)
            expected.check(step, _decays(_materialised(model, fill)))
            distributed.destroy_process_group()
        except AssertionError as error:
            text = str(error)
        except Exception as error:  # of whatever kind other people's code raises
            text = f"{step}: {type(error).__name__}: {error}"
        Path(folder, f"{rank}.txt").write_text(text, encoding="utf-8")

    with tempfile.TemporaryDirectory() as folder:
        context: Any = multiprocessing.get_context("fork")
        workers = [context.Process(target=work, args=(rank, folder), daemon=True) for rank in range(2)]
        for one in workers:
            one.start()
        for one in workers:
            one.join(PATIENCE)
            if one.is_alive():
                one.kill()
        for rank in range(2):
            path = Path(folder, f"{rank}.txt")
            if text := path.read_text(encoding="utf-8") if path.exists() else "two processes: one ended without a word":
                raise AssertionError(text)
