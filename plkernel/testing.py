"""Decays that must survive what a training set-up does to a model, and states that must survive
batches, cuts and padding.

A plugin of pytest with the fixtures `decays_survive` and `state_survives`. The functions need no
pytest. Torch is loaded when they are called, not when pytest loads the plugin.
"""

import copy
import inspect
import json
import logging
import pickle
import re
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from torch import nn

    from plkernel.decays.own import Decays
    from plkernel.probing.state_checks import Step

Arrays = dict[str, np.ndarray]
Factory: TypeAlias = Callable[[], Any]
Filler: TypeAlias = Callable[[Any], object]
Readings = Iterable[tuple[str, Any, Arrays | None]]
"""Words for a message, a model or its decays, and what they must be; None for those promised."""
STEPS = (
    "bfloat16",
    "meta",
    "initialised again",
    "saved and loaded",
    "deepcopy",
    "compiled",
    "two processes",
)
SEEDS = 8
"""Models that are built to see which decays are drawn."""
LEAST = 1e-4
"""Probability of a false alarm of one comparison of drawn numbers (two-sample Kolmogorov-Smirnov).
"""
PATIENCE = 120.0
"""Seconds that each of two processes has."""


def assert_decays_survive(
    factory: "Callable[[], nn.Module]",
    *,
    promised: Mapping[str, Any] | None = None,
    initialise: "Callable[[nn.Module], object] | None" = None,
    inputs: Sequence[Any] = (),
    steps: Sequence[str] = STEPS,
    decays: "Decays | None" = None,
) -> None:
    """Raise AssertionError unless the decays of a model survive what is done to it.

    The error names step, tensor and value.

    factory     builds the model, of layers that plkernel.inspect knows, from torch's generator and
                default dtype, with its decays initialised; on meta, where they have no numbers, it
                must pass over them
    promised    numbers of some of the decays, by name; those of `factory` in float32 unless given
    initialise  fills a model whose tensors were empty; `init_weights`, `_init_weights` or
                `reset_parameters` of the model, whichever it has, unless given
    inputs      arguments of the forward pass, for a compiled model to run
    decays      those of layers of your own, as for `plkernel.watch`

    The model is built in float32, from SEEDS seeds, without a finding that is wrong, and then, step
    by step:

    bfloat16           built with this default dtype: equal to rounding, and finite
    meta               built on the meta device, materialised, filled with NaN, initialised
    initialised again  as it is, and as if it had never been
    saved and loaded   with other decays: `save_pretrained`, or the state_dict into another model;
                       also in bfloat16, and from files that lack one tensor of the modules with
                       decays, the last of these modules, or all other tensors: the decays that are
                       there must survive. Of transformers, also the file of the model within it,
                       and its own file in that model
    deepcopy, compiled
    two processes      of gloo: sharded by FSDP2 when built, and built on meta, sharded,
                       materialised and initialised

    Decays that all seeds share must be equal. Drawn ones must be finite and of the same
    distribution, over all layers, where they are drawn anew. The processes are forked: nothing
    needs to be pickled.
    """
    import torch

    _check_arguments(factory, promised, initialise, inputs, steps)
    fill = initialise or _initialise
    given = promised or {}
    with (
        warnings.catch_warnings(action="ignore"),
        torch.random.fork_rng(devices=_devices_in_use()),
        _default_dtype("float32"),
    ):
        moved = _built(factory)
        _check_findings(moved, decays)
        samples = [_decays(_built(factory, seed), decays) for seed in range(SEEDS)]
        first = samples[0]
        fixed = _shared(samples) | _promises(given, first)
        kept = _move(moved, first, decays)
        readings: dict[str, Callable[[], Readings]] = {
            "built": lambda: [("", first, None)],
            "bfloat16": lambda: _built_in_bfloat16(factory),
            "meta": lambda: [("", _materialised(_built(factory, device="meta"), fill), None)],
            "initialised again": lambda: _initialised_again(_built(factory), fill, first),
            "saved and loaded": lambda: _saved_and_loaded(moved, factory, kept, decays),
            "deepcopy": lambda: [("", copy.deepcopy(moved), kept)],
            "compiled": lambda: [("", _run(moved, inputs), kept)],
            "two processes": lambda: _in_two_processes(factory, fill, first, decays),
        }
        asked = [step for step in STEPS if step in steps]
        for step in ["built", *asked]:
            with _as_failure_of(step):
                for words, model, expected in readings[step]():
                    now = model if isinstance(model, dict) else _decays(model, decays)
                    _check(f"{step}{words}", now, samples, fixed, expected)


@contextmanager
def _as_failure_of(step: str) -> Iterator[None]:
    """AssertionError that names the step, for what other people's code raises in it."""
    try:
        yield
    except AssertionError:
        raise
    except Exception as error:
        raise AssertionError(f"{step}: {type(error).__name__}: {error}") from error


def _devices_in_use() -> list[int]:
    """Numbers of the CUDA devices, whose generators are seeded once CUDA is in use."""
    import torch

    return list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []


@contextmanager
def _default_dtype(kind: str) -> Iterator[None]:
    """The default dtype of torch meanwhile."""
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, kind))
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _check_findings(model: "nn.Module", decays: "Decays | None") -> None:
    """AssertionError for a finding that is wrong in a model as it is built."""
    from plkernel.decays.watch import watch

    for one in watch(model, decays=decays).findings:
        if one.severity == "wrong":
            raise AssertionError(f"built: {one.tensor}: {one.name}, {one.seen}")


def _shared(samples: Sequence[Arrays]) -> Arrays:
    """The decays that are equal in all samples."""
    first = samples[0]
    return {
        name: values
        for name, values in first.items()
        if all(np.array_equal(one[name], values) for one in samples)
    }


def _check_arguments(factory: Any, promised: Any, initialise: Any, inputs: Any, steps: Any) -> None:
    """ValueError that names an argument of another kind than `assert_decays_survive` takes."""
    from torch import nn

    if isinstance(factory, nn.Module) or not callable(factory):
        raise ValueError(
            f"factory must be a function that builds the model, got {type(factory).__name__}"
        )
    if initialise is not None and not callable(initialise):
        raise ValueError(f"initialise must be a function, got {type(initialise).__name__}")
    if promised is not None and not isinstance(promised, Mapping):
        raise ValueError(f"promised must be numbers by name, got {type(promised).__name__}")
    for name, value in {"inputs": inputs, "steps": steps}.items():
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise ValueError(f"{name} must be a list, got {value!r}")
    unknown = {str(step) for step in steps} - set(STEPS)
    if unknown:
        raise ValueError(
            f"steps must be among {', '.join(STEPS)}, got {', '.join(sorted(unknown))}"
        )


def _promises(given: Mapping[str, Any], first: Arrays) -> Arrays:
    """The promised numbers in the shapes of the decays; ValueError for what are none."""
    missing = set(given) - set(first)
    if missing:
        raise ValueError(
            f"promised must name decays, got {', '.join(sorted(map(str, missing)))}; decays are"
            f" {', '.join(first)}"
        )
    numbers = {}
    for name, values in given.items():
        shape = first[name].shape
        try:
            numbers[name] = np.broadcast_to(np.asarray(values, dtype=np.float64), shape)
        except (TypeError, ValueError, RuntimeError):
            raise ValueError(
                f"promised {name} must be numbers of shape {shape}, got {values!r}"
            ) from None
        if np.isnan(numbers[name]).any():
            raise ValueError(f"promised {name} must be numbers, got NaN")
    return numbers


def assert_state_survives(
    model: Any,
    step: "Step | None" = None,
    *,
    checks: Sequence[str] | None = None,
    tokens: Any = None,
    vocabulary: int | None = None,
    tolerance: float | None = None,
) -> None:
    """Raise AssertionError unless the state of a model holds its own past, and nothing else.

    The error names what was done to a text, the first token whose logits differ, and by how much.

    model   one of transformers with a cache, one of plkernel, or with `step` any other
    step    function(model, tokens (B,T), state, mask) to logits (B,T,V) and the next state
    checks  neighbour, cut, left padding, padding inside; the first three unless given, without the
            third where a model takes no mask
    tokens, vocabulary, tolerance
            as for `plkernel.probing.state_checks.check_state`, which says what each check does and
            returns what it found
    """
    from plkernel.probing.state_checks import CHECKS, check_state

    found = check_state(
        model,
        step,
        checks=CHECKS if checks is None else checks,
        tokens=tokens,
        vocabulary=vocabulary,
        tolerance=tolerance,
    )
    wrong = list(found.failed)
    if checks is not None:
        wrong += [one for one in found.checks if one.outcome == "not offered"]
    if wrong:
        raise AssertionError("; ".join(one.sentence for one in wrong))


if find_spec("pytest") is not None:
    import pytest

    @pytest.fixture
    def decays_survive() -> Callable[..., None]:
        """`assert_decays_survive`."""
        return assert_decays_survive

    @pytest.fixture
    def state_survives() -> Callable[..., None]:
        """`assert_state_survives`."""
        return assert_state_survives


def _move(model: Any, first: Arrays, decays: "Decays | None") -> Arrays:
    """Move decays, in place, to numbers that no initialisation gives, and return these."""
    import torch

    with torch.no_grad():
        for name, values in first.items():
            tensor = attrgetter(name)(model)
            tensor += torch.linspace(0.01, 0.1, values.size).reshape(values.shape).to(tensor.dtype)
    return _decays(model, decays)


def _built_in_bfloat16(factory: Factory) -> Readings:
    for seed in range(SEEDS):
        yield "", _built(factory, seed, "bfloat16"), None


def _initialised_again(model: Any, fill: Filler, first: Arrays) -> Readings:
    if hasattr(model, "init_weights"):
        model.init_weights()
        # transformers leaves tensors that are filled.
        expected = first if hasattr(model, "save_pretrained") else None
        yield "", model, expected
    fill(model)
    yield "", model, None


def _saved_and_loaded(
    model: Any, factory: Factory, kept: Arrays, decays: "Decays | None"
) -> Readings:
    import torch

    files = hasattr(model, "save_pretrained")
    for words, kind in (("", "float32"), (" in bfloat16", "bfloat16")):
        if files:
            with tempfile.TemporaryDirectory() as folder:
                model.save_pretrained(folder)
                options = {"dtype": torch.bfloat16} if words else {}
                yield words, type(model).from_pretrained(folder, **options), kept
        else:
            other = _built(factory, SEEDS, kind)
            with _default_dtype(kind):
                other.load_state_dict(copy.deepcopy(model.state_dict()))
            yield words, other, kept
    if not files and "strict" not in _options_of(model.load_state_dict):
        return
    for words, left_out in _lacking(model, decays):
        with tempfile.TemporaryDirectory() as folder:
            if files:
                model.save_pretrained(folder)
                _take_out(Path(folder), left_out)
                with _quiet():  # transformers lists what a file lacks
                    other = type(model).from_pretrained(folder)
            else:
                other = _built(factory, SEEDS)
                state = copy.deepcopy(model.state_dict())
                partial = {name: x for name, x in state.items() if name not in left_out}
                other.load_state_dict(partial, strict=False)
        now = _decays(other, decays)
        expected = {**kept, **{name: x for name, x in now.items() if name in left_out}}
        yield f" from a file without {words}", now, expected
    if files:
        yield from _within(model, kept, decays)


def _within(model: Any, kept: Arrays, decays: "Decays | None") -> Readings:
    """The file of the model that a model of transformers wraps, and its own file in that one.

    Nothing where it wraps none with all decays and the same configuration, or names no prefix, by
    which transformers finds the one in the other.
    """
    inner = [
        (name, child)
        for name, child in model.named_children()
        if hasattr(child, "save_pretrained") and type(child.config) is type(model.config)
    ]
    if len(inner) != 1 or not model.base_model_prefix:
        return
    name, child = inner[0]
    if not all(one.startswith(f"{name}.") for one in kept):
        return
    with tempfile.TemporaryDirectory() as folder, _quiet():
        try:
            child.save_pretrained(folder)
        except RuntimeError:  # tensors that only the whole model ties: it has no file of its own
            return
        other = type(model).from_pretrained(folder)
    yield f" from the file of {name}", other, kept
    with tempfile.TemporaryDirectory() as folder, _quiet():
        model.save_pretrained(folder)
        other = type(child).from_pretrained(folder)
    now = {f"{name}.{one}": x for one, x in _decays(other, decays).items()}
    yield f" in {name} alone", now, kept


@contextmanager
def _quiet() -> Iterator[None]:
    """No warnings of loggers."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def _options_of(function: Callable[..., Any]) -> set[str]:
    """Names of the arguments of a function, and "strict" where it takes any."""
    taken = inspect.signature(function).parameters.values()
    any_name = {"strict"} if any(one.kind is one.VAR_KEYWORD for one in taken) else set[str]()
    return {one.name for one in taken} | any_name


def _lacking(model: Any, decays: "Decays | None") -> Iterator[tuple[str, set[str]]]:
    """Parts that a file may lack, in words, and names of those tensors.

    Each tensor of a module with decays, in all layers at once, the last of these modules, as where
    a layer was added, and then all tensors elsewhere: an initialisation runs for a module of which
    something is missing, and for those around it.
    """
    from plkernel.decays.watch import layers_of

    known = layers_of(model, decays)[1]
    modules = tuple(dict.fromkeys(module.partition(":")[0] for module, _, _ in known))
    heads = tuple(f"{module}." if module else "" for module in modules)
    alike: dict[str, set[str]] = {}
    elsewhere = set[str]()
    for name in model.state_dict():
        if name.startswith(heads):
            alike.setdefault(re.sub(r"\d+", "*", name), set()).add(name)
        else:
            elsewhere.add(name)
    yield from alike.items()
    last = heads[-1]
    if len(heads) > 1 and last:
        yield f"{last}*", {name for name in model.state_dict() if name.startswith(last)}
    if elsewhere:
        yield "the tensors of other modules", elsewhere


def _take_out(folder: Path, names: set[str]) -> None:
    """Take tensors out of the .safetensors files of a folder."""
    from safetensors.torch import load_file, save_file

    for path in folder.glob("*.safetensors"):
        held = load_file(path)
        left = {name: tensor for name, tensor in held.items() if name not in names}
        if len(left) < len(held):
            save_file(left, path, metadata={"format": "pt"})
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        content = json.loads(index.read_text(encoding="utf-8"))
        places = content["weight_map"].items()
        content["weight_map"] = {name: file for name, file in places if name not in names}
        index.write_text(json.dumps(content), encoding="utf-8")


def _run(model: Any, inputs: Sequence[Any]) -> Any:
    import torch

    compiled = torch.compile(model, backend="eager")
    if inputs:
        compiled(*inputs)
    return model


def _in_two_processes(
    factory: Factory, fill: Filler, first: Arrays, decays: "Decays | None"
) -> Readings:
    from torch import distributed, multiprocessing, set_num_threads
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    def work(rank: int, folder: str) -> None:
        words = "sharded"
        found = list[Any]()
        try:
            set_num_threads(1)
            store = distributed.FileStore(f"{folder}/store", 2)
            distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
            mesh = init_device_mesh("cpu", (2,))
            sharded = fully_shard(_built(factory), mesh=mesh)
            found.append((f", {words}", _decays(sharded, decays), first))
            words = "from meta"
            empty = fully_shard(_built(factory, device="meta"), mesh=mesh)
            found.append((f", {words}", _decays(_materialised(empty, fill), decays), None))
        except Exception as error:  # of whatever kind other people's code raises
            raise AssertionError(f"{words}: {type(error).__name__}: {error}") from None
        Path(folder, str(rank)).write_bytes(pickle.dumps(found))
        distributed.destroy_process_group()

    with tempfile.TemporaryDirectory() as folder:
        both: Any = multiprocessing.start_processes(
            work, (folder,), 2, join=False, daemon=True, start_method="fork"
        )
        try:
            # One call returns as soon as one process has ended; True is that all have.
            have_ended = both.join(PATIENCE)
            if not have_ended:
                have_ended = both.join(PATIENCE)
            if not have_ended:
                raise TimeoutError(
                    f"not done after {PATIENCE:g} s; does one of them wait for the other?"
                )
            for rank in range(2):
                yield from pickle.loads(Path(folder, str(rank)).read_bytes())
        except Exception as error:  # raised in a process, or the end of one
            raise AssertionError(
                f"two processes, {str(error).rpartition('AssertionError: ')[2].strip()}"
            ) from None
        finally:
            for process in both.processes:
                process.kill()


def _check(
    step: str, now: Arrays, samples: list[Arrays], fixed: Arrays, expected: Arrays | None
) -> None:
    """AssertionError for a decay that is missing, not finite, or another number than before.

    Of decays that are drawn the distribution must be the same.
    """
    wanted = fixed if expected is None else expected
    tolerance = 2.0**-7 if "bfloat16" in step else 0.0
    # Drawn now and by all seeds, over layers:
    pools: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    for name, values in samples[0].items():
        found = now.get(name)
        if found is None or found.shape != values.shape:
            shape = "missing" if found is None else f"of shape {found.shape}"
            raise AssertionError(f"{step}: {name} is {shape}, promised {values.shape}")
        finite = np.where(np.isfinite(found), found, values)
        right = np.broadcast_to(wanted.get(name, finite), found.shape)
        _check_filled(step, name, found, right)
        _check_numbers(f"{step}: {name}", found, right, tolerance)
        if name not in wanted:
            drawn = np.concatenate([one[name].ravel() for one in samples])
            kind = re.sub(r"\d+", "*", name)
            pools.setdefault(kind, []).append((found.ravel(), drawn))
    for name, pairs in pools.items():
        found = np.concatenate([one for one, _ in pairs])
        drawn = np.concatenate([one for _, one in pairs])
        _check_distribution(f"{step}: {name}", found, drawn)


def _check_filled(step: str, name: str, found: np.ndarray, right: np.ndarray) -> None:
    """AssertionError for a decay of a materialised model that is NaN as `_materialised` left it."""
    is_materialised = step.rpartition(", ")[2].removeprefix("from ") == "meta"
    if is_materialised and found.size and np.isnan(found).all() and not np.isnan(right).all():
        raise AssertionError(
            f"{step}: {name} is nan in all of its {found.size:,} numbers, promised"
            f" {right.flat[0]:g} ..: after to_empty nothing draws it; let reset_parameters of its"
            " module do so (or init_weights, _init_weights of the model), give initialise=, or"
            f" leave {step.partition(',')[0]!r} out of steps="
        )


def _check_numbers(subject: str, found: np.ndarray, right: np.ndarray, tolerance: float) -> None:
    """AssertionError that names the first number that is not the right one."""
    wrong = ~np.isclose(found, right, rtol=tolerance, atol=tolerance / 2, equal_nan=True)
    if wrong.any():
        at = tuple(np.argwhere(wrong)[0].tolist())
        place = str(list(at)) if at else ""
        raise AssertionError(
            f"{subject}{place} is {found[at]:g}, promised {right[at]:g} ({wrong.sum():,} of"
            f" {wrong.size:,} differ)"
        )


def _check_distribution(subject: str, found: np.ndarray, drawn: np.ndarray) -> None:
    """AssertionError unless two samples may be of the same distribution."""
    from scipy.stats import ks_2samp

    if ks_2samp(found, drawn).pvalue < LEAST:
        now, before = (f"{one.min():g} .. {one.max():g}" for one in (found, drawn))
        raise AssertionError(f"{subject} is {now}, promised were draws from {before}")


def _decays(model: "nn.Module", decays: "Decays | None") -> Arrays:
    """Decays by name, in float64, of DTensors the whole: a call that all processes must make."""
    from plkernel.decays.watch import layers_of

    names: list[str] = []
    for _, _, of_layer in layers_of(model, decays)[1]:
        names += of_layer.values()
    found = {}
    for name in dict.fromkeys(names):
        tensor: Any = attrgetter(name)(model).detach()
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        if whole.is_meta:
            raise AssertionError(f"{name} is on the meta device")
        found[name] = whole.double().cpu().numpy().copy()
    return found


def _built(factory: Factory, seed: int = 0, kind: str = "float32", device: str = "cpu") -> Any:
    import torch

    # `torch.manual_seed` would also leave a seed for devices that are put to use later.
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    with _default_dtype(kind), torch.device(device):
        return factory()


def _materialised(model: Any, fill: Filler) -> Any:
    import torch

    model.to_empty(device="cpu")
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.is_floating_point():
                tensor.fill_(float("nan"))
        fill(model)
    return model


def _initialise(model: Any) -> None:
    """As if for the first time: `init_weights`, `_init_weights`, or `reset_parameters`."""
    import torch

    for one in (*model.modules(), *model.parameters(), *model.buffers()):
        vars(one).pop("_is_hf_initialized", None)  # of transformers
    with torch.no_grad():
        if hasattr(model, "init_weights"):
            model.init_weights()
        elif hasattr(model, "_init_weights"):
            model.apply(model._init_weights)
        else:
            # A parent after what it holds, as they are built.
            for module in reversed(list(model.modules())):
                if hasattr(module, "reset_parameters"):
                    module.reset_parameters()
