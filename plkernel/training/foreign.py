"""Models and initialisations of other people's code, named in a spec as module:attribute.

`kind = "mypackage.mymodule:Builder"` names a callable that takes the table `config` of [model] as
one dictionary and returns a torch.nn.Module with

    model(bytes)        (B,T) int64, 0..255, to logits (B,T,256), those at t from bytes 0..t alone;
                        for any T, or with an attribute `patch` = P for multiples of P

and optionally

    half_lives()        of every block those of its channels, in bytes: [(N,), ..], positive.
                        Without it, the decays that plkernel.inspect finds by names of tensors, in
                        steps of one byte, or of as many as an attribute `tokens_per_step` of the
                        layer's own module says; if it knows none, rows hold no half-lives. With an
                        argument `position`, a byte from 1, those there; None for those that rows
                        should hold
    kernels(lags)       of every block the weight of an input after `lags` (T,) bytes: [(T,), ..].
                        Without it, the root mean square of these decays; if there are none, rows
                        hold no kernels

Weight decay acts on matrices (`.weight` of two or more dimensions) alone.

`kind = "transformers:MambaForCausalLM"` names a class with a `config_class`: that is built from
`config`, over bytes.

The constructor draws from the global generators of torch, numpy and random, seeded by the run; so
do dropout and the like, anew at every step, so that a run that was killed resumes to the same
numbers. State beside parameters and the buffers of the state_dict is lost with the process: buffers
with persistent=False are made anew, others keep their type and shape. Parameters are float32 or
float64; on a GPU a run is in bfloat16 autocast. `init = "mypackage.mymodule:function"` of an arm
names `function(model, generator, **init_options)`, called after all else, which changes the model
in place; `power_law_`, `log_spaced_` and `unit_a_` of `plkernel.models.init.mamba2` are such
functions for Mamba-2.

Nothing is imported before the person has said --trust-code.
"""

import copy
import hashlib
import inspect
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn import functional as F

from plkernel.common.cli import MARK, imported, nearest, progress_bar, told
from plkernel.common.environment import installed
from plkernel.decays.live import live_layers
from plkernel.decays.rates import half_lives, kernel
from plkernel.models.init.plan import generator_for
from plkernel.models.layers import BYTES
from plkernel.models.mamba2 import OVER_BYTES
from plkernel.models.spectrum import check_position

NEED_A_GPU = ("fla", "mamba_ssm", "causal_conv1d")
"""Packages whose kernels transformers takes if they are installed, once and for all when it imports
a model.
"""
PLACES = 64
"""Bytes, drawn at random, that are replaced one at a time to check causality."""
OF_BYTES = f"a model of a study takes bytes, 0..{BYTES - 1}, and gives {BYTES} logits for each"
"""Added to the error of a model over tokens."""
LONGEST = 512
"""Bytes of a window on which causality is checked, at most."""
ROUNDING = 2.0**7
"""Tolerance of logits with another byte, in units of rounding of the largest: of the bytes before
it the same sums are taken, though other rows of a batch may stand beside them.
"""
REORDERED = 2.0**12
"""The same with fewer bytes: a model may cut them into other chunks, and sum in another order."""
SUM_ROUNDING = 2.0**-7
"""Distance from 1 of a sum of probabilities that is rounding: a unit of bfloat16, in which they may
have been computed.
"""
NOISE = 0.1
"""Standard deviation of the noise, as a share of a parameter's root mean square."""
NOISE_OF_ZEROS = 0.02
"""Standard deviation of the noise on a parameter that is zero."""


class Foreign(nn.Module):
    """`module`, built by the code that `kind` names, with what a run needs of a model."""

    def __init__(self, kind: str, module: nn.Module) -> None:
        super().__init__()
        patch = getattr(module, "patch", 1)
        if not isinstance(patch, int) or patch < 1:
            raise ValueError(
                f"kind {kind!r}: patch must be a whole number of bytes, at least 1, got {patch!r}"
            )
        self.config = SimpleNamespace(patch=patch, causal=True)
        self.module: Any = module

    def forward(self, inputs: Tensor) -> Any:
        """Logits (B,T,256) of bytes (B,T), also of an output that has them as a field."""
        output = self.module(inputs)
        return getattr(output, "logits", output)

    def half_lives(self, position: float | None = None) -> list[Tensor]:
        """Half-lives of every block in bytes, (N,) float64 on the CPU; empty if unknown.

        position: byte, from 1, at which decays that depend on it are stated; None for the length of
        training. Raises ValueError for one below 1, and for any with a method `half_lives` of the
        module that takes none.
        """
        check_position(position)
        if hasattr(self.module, "half_lives"):
            found = self._told_half_lives(position)
            return [_on_cpu(values).reshape(-1) for values in found]
        rates = self._named_rates(position)
        return [torch.from_numpy(half_lives(one).reshape(-1)) for one in rates]

    def _told_half_lives(self, position: float | None) -> Any:
        """The half-lives that the module's own method states."""
        tell = self.module.half_lives
        if position is None:
            return tell()
        if not _takes(tell, "position"):
            raise ValueError(
                "position must be left out for a model whose half_lives() takes none, got"
                f" {position:g}"
            )
        return tell(position=position)

    def kernels(self, lags: Tensor) -> list[Tensor]:
        """Weight of an input `lags` (T,) bytes later in every block, (T,) float64.

        Empty if unknown.
        """
        if hasattr(self.module, "kernels"):
            return [_on_cpu(values) for values in self.module.kernels(lags)]
        # Half-lives of its own say that the names of tensors are not to be read.
        rates = [] if hasattr(self.module, "half_lives") else self._named_rates()
        return [torch.from_numpy(kernel(values, lags.double().numpy())) for values in rates]

    def _named_rates(self, position: float | None = None) -> list[np.ndarray]:
        """Rates per byte of the layers of known families, at a position if they depend on it.

        Empty unless all are positive and finite.
        """
        settings: Any = getattr(self.module, "config", None)
        config = settings.to_dict() if hasattr(settings, "to_dict") else {}
        try:
            layers = live_layers(self.module, config)
        except ValueError:  # names of a family, but other shapes
            return []
        rates = [replace(layer, position=position).rates for layer in layers]
        are_usable = all(((one > 0) & np.isfinite(one)).all() for one in rates)
        return rates if are_usable else []


def _takes(function: Callable[..., Any], name: str) -> bool:
    """True if other people's function has an argument of this name."""
    try:
        return name in inspect.signature(function).parameters
    except (TypeError, ValueError):  # not written in Python
        return False


def _on_cpu(values: Any) -> Tensor:
    """Numbers of other people's code in float64 on the CPU."""
    return torch.as_tensor(values).detach().double().cpu()


def build(kind: str, options: Mapping[str, Any] | None, seed: int) -> Foreign:
    """Build the model that `kind` names from `options`, drawn under `seed`.

    The person must have consented: the module is imported. Raises ValueError, in one line, for
    whatever goes wrong.
    """
    here = torch.cuda.is_available() or not kind.startswith("transformers:")
    with nullcontext() if here else without_gpu_code():
        builder = imported(kind, "kind")
    given = copy.deepcopy(dict(options or {}))
    with seeded(seed, "model"), foreign_errors(f"kind {kind!r}", "building it"):
        if hasattr(builder, "config_class"):  # of transformers
            module = builder(_over_bytes(builder.config_class, given))
        else:
            module = builder(given)
    if not isinstance(module, nn.Module):
        raise ValueError(f"kind {kind!r} must give a torch.nn.Module, got {type(module).__name__}")
    return Foreign(kind, module)


def _over_bytes(config_class: Any, given: Mapping[str, Any]) -> Any:
    """The configuration of a model of transformers over bytes, with the arguments `given`."""
    known = config_class()
    unknown = [name for name in given if not hasattr(known, name)]
    if unknown:
        raise ValueError(
            f"config must hold arguments of {type(known).__name__}, got {unknown[0]!r};"
            f" {nearest(unknown[0], known.to_dict())}"
        )
    size = given.get("vocab_size", BYTES)
    if size != BYTES:
        raise ValueError(
            f"vocab_size must be {BYTES}, one for every byte, got {size}; leave it out"
        )
    return config_class(**{**OVER_BYTES, **given})


@contextmanager
def without_gpu_code() -> Iterator[None]:
    """Have transformers import its models as if kernels that need a GPU were not installed."""
    hidden = [name for name in NEED_A_GPU if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None: importing it fails
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


def start_(model: nn.Module, name: str, options: Mapping[str, Any] | None, seed: int) -> None:
    """Call the function `name` with the model, a generator of this seed and the options, in place.

    The person must have consented: the module is imported. Raises ValueError, in one line, for
    whatever goes wrong, such as an option that the function does not have.
    """
    function = imported(name, "init")
    given = copy.deepcopy(dict(options or {}))
    _check_options(function, name, given)
    target = model.module if isinstance(model, Foreign) else model
    with seeded(seed, name), torch.no_grad(), foreign_errors(f"init {name!r}", "it"):
        function(target, generator=generator_for(seed, name), **given)


def _check_options(function: Callable[..., Any], name: str, options: Mapping[str, Any]) -> None:
    """ValueError for `options` that the function called `name` does not have, or lacks.

    Its first argument is the model, and the generator is given too: neither is an option.
    """
    try:
        _, *parameters = _parameters_of(function)
    except (TypeError, ValueError):  # not written in Python, or without an argument
        return
    known = [one for one in parameters if _is_option(one) and one.name != "generator"]
    names = [one.name for one in known]
    has_any = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters)
    valid = ", ".join(names) or "none"
    for option in options:
        if option not in names and (option == "generator" or not has_any):
            raise ValueError(
                f"init_options must be options of init {name!r}, got {option!r}; valid: {valid}"
            )
    for one in known:
        if one.default is one.empty and one.name not in options:
            raise ValueError(
                f"init_options must hold {one.name!r}, which init {name!r} needs, got"
                f" {', '.join(options) or 'none'}"
            )


def _parameters_of(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters of a function, and of the one that it wraps where it takes any keyword.

    Those of the wrapped one are not required: the wrapper may give them.
    """
    own = inspect.signature(function, follow_wrapped=False).parameters
    wrapped = getattr(function, "__wrapped__", None)
    takes_any = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in own.values())
    if wrapped is None or not takes_any:
        return list(own.values())
    named = [one for one in own.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    _, *inner = _parameters_of(wrapped)
    more = [one for one in inner if one.name not in own]
    return [*named, *(one.replace(default=None) if _is_option(one) else one for one in more)]


def _is_option(parameter: inspect.Parameter) -> bool:
    """True for a parameter that may be given by name."""
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return parameter.kind in by_name


def origins(names: Iterable[str]) -> dict[str, Any]:
    """Version and sha256 of imported code by name, for the record of a run; {} for no names."""
    code = {}
    for name in names:
        module = sys.modules.get(name.partition(MARK)[0])
        file = getattr(module, "__file__", None)
        digest = None
        if file and Path(file).is_file():
            digest = hashlib.sha256(Path(file).read_bytes()).hexdigest()
        code[name] = {
            "version": installed(name.partition(".")[0].partition(MARK)[0]),
            "sha256": digest,
        }
    return {"code": code} if code else {}


def seeded(seed: int, name: str) -> AbstractContextManager[None]:
    """Seed the global generators of torch, numpy and random by (seed, name); restore them."""
    return seeded_by(generator_for(seed, name).initial_seed())


@contextmanager
def seeded_by(number: int) -> Iterator[None]:
    """Seed the global generators of torch, numpy and random by a number; restore them.

    The generators of GPUs are seeded, and not restored.
    """
    of_random = random.getstate()
    of_numpy = np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(number)
        np.random.seed(number % 2**32)  # noqa: NPY002
        random.seed(number)
        try:
            yield
        finally:
            random.setstate(of_random)
            np.random.set_state(of_numpy)  # noqa: NPY002


def kept_buffers(model: nn.Module) -> dict[str, Tensor]:
    """The buffers that a checkpoint holds, by name; others, of persistent=False, are made anew.

    A buffer with several names is held, under its first, if any of them is persistent.
    """
    made_anew = set()
    for head, module in model.named_modules(remove_duplicate=False):
        for name in getattr(module, "_non_persistent_buffers_set", ()):
            made_anew.add(f"{head}.{name}" if head else name)
    held = {
        id(values)
        for name, values in model.named_buffers(remove_duplicate=False)
        if name not in made_anew
    }
    return {name: values for name, values in model.named_buffers() if id(values) in held}


def is_expanded(values: Tensor) -> bool:
    """True where several numbers of a tensor are one in memory, so that nothing writes to it."""
    sides = zip(values.shape, values.stride(), strict=True)
    return values.layout == torch.strided and any(size > 1 and not step for size, step in sides)


@contextmanager
def foreign_errors(head: str, what: str) -> Iterator[None]:
    """Turn any exception into a ValueError of one line: "HEAD: WHAT raised TypeError: ..."."""
    try:
        yield
    except Exception as error:  # of whatever kind other people's code raises
        raise ValueError(f"{head}: {what} raised {told(error)}") from error


@contextmanager
def _saying_what_is_read() -> Iterator[None]:
    """Say beside an error of an index that windows hold bytes: an embedding may have fewer rows."""
    try:
        yield
    except ValueError as error:
        if not isinstance(error.__cause__, IndexError):
            raise
        raise ValueError(f"{error}; {OF_BYTES}") from error.__cause__


def check_model(model: nn.Module, name: str, context: int, device: torch.device) -> None:
    """Raise ValueError, headed by `name`, if a run on `device` cannot train `model`.

    Checked are type, shape and finiteness, that logits are no probabilities, and that none depends
    on later bytes: logits before a replaced byte stay, within ROUNDING, for PLACES bytes and a few
    more, and logits without the last bytes too, within REORDERED. Both are asked again with noise
    on every parameter, because zeros leak nothing yet and give equal probabilities. A checkpoint
    must be able to hold the model. The model is useless afterwards.
    """
    _check_parameters(model, name)
    kinds = _kinds_of_buffers(model, name)
    patch: int = getattr(model.config, "patch", 1)  # type: ignore[arg-type]
    length = min(context, LONGEST)
    length = length // patch * patch or length
    drawn = np.random.default_rng(0).permutation(np.arange(1, length))[:PLACES].tolist()
    places = sorted({1, 2, 3, length - 1, *drawn} & set(range(1, length)))
    with seeded(0, name), progress_bar(f"checking {name}") as advance:
        with foreign_errors(name, f"moving it to {device.type}"):
            model.to(device)
        inputs = torch.randint(BYTES, (1, length)).repeat(1 + len(places), 1).to(device)
        trial = _Trial(model, name, patch, places, inputs, advance)
        trial.check_repeated()
        trial.check_no_probabilities()
        trial.check_causal()
        if isinstance(model, Foreign):
            _check_decays(model, name)
        trial.check_gradient()
        _add_noise(model)
        trial.check_no_probabilities()
        trial.check_causal()
    _check_same_buffers(kinds, _kinds_of_buffers(model, name), name)


def _check_parameters(model: nn.Module, name: str) -> None:
    """ValueError for a parameter that AdamW cannot train."""
    for parameter, values in model.named_parameters():
        if values.dtype not in (torch.float32, torch.float64):
            raise ValueError(
                f"{name}: parameter {parameter} must be torch.float32, got {values.dtype}"
            )
        if is_expanded(values):
            raise ValueError(
                f"{name}: parameter {parameter} must have memory of its own for every number, got"
                " an expanded one; clone() it"
            )


def _kinds_of_buffers(model: nn.Module, name: str) -> dict[str, str]:
    """Type and shape of every buffer that a checkpoint holds; ValueError where it cannot."""
    kinds = {}
    for buffer, values in kept_buffers(model).items():
        if values.layout != torch.strided or not _is_storable(values.dtype):
            raise ValueError(
                f"{name}: buffer {buffer} must be of a type that a checkpoint can hold, got"
                f" {values.dtype} of layout {values.layout}; register it with persistent=False, or"
                " give it another type"
            )
        kinds[buffer] = f"{values.dtype} of shape {tuple(values.shape)}"
    return kinds


def _is_storable(dtype: torch.dtype) -> bool:
    """True where safetensors writes numbers of this type."""
    try:
        save({"values": torch.empty(0, dtype=dtype)})
    except Exception:  # of whatever kind it raises: a KeyError for some
        return False
    return True


def _check_same_buffers(before: Mapping[str, str], after: Mapping[str, str], name: str) -> None:
    """ValueError for a buffer that is another after some windows: no killed run could go on."""
    for buffer in sorted(before.keys() | after.keys()):
        old = before.get(buffer, "none")
        new = after.get(buffer, "none")
        if old != new:
            raise ValueError(
                f"{name}: buffer {buffer} must keep its type and shape, got {old} at first and"
                f" {new} after some windows; register it with persistent=False"
            )


def check_takes_length(model: nn.Module, name: str, length: int, device: torch.device) -> None:
    """Raise ValueError, headed by `name`, unless `model` on `device` takes windows of `length`."""
    inputs = torch.zeros((1, length), dtype=torch.int64, device=device)
    model.eval()
    what = f"a window of {length} bytes, as train.beyond asks for at the end (1 is none),"
    with foreign_errors(name, what), torch.no_grad():
        model(inputs)


def are_probabilities(logits: Tensor) -> bool:
    """True for probabilities in the place of `logits` (B,T,V).

    They are at least 0 and sum to 1 at every position, as logits never do by accident. Where all
    are equal they are their own softmax, and nothing is wrong.
    """
    lowest = float(logits.amin())
    if lowest < 0 or lowest == float(logits.amax()):
        return False
    sums = logits.sum(dim=2, dtype=torch.float64)
    return bool(((sums - 1).abs() <= SUM_ROUNDING).all())


@dataclass(frozen=True)
class _Trial:
    """A model on one window of random bytes, `inputs` (1 + P, T): a row for each of P `places`."""

    model: nn.Module
    name: str
    patch: int
    places: list[int]
    inputs: Tensor
    advance: Callable[[float], Any]

    def logits(self, tokens: Tensor, training: bool = False) -> Tensor:
        """Logits of tokens (B, T), which must be (B, T, 256)."""
        self.model.train(training)
        given = f"{tuple(tokens.shape)} bytes"
        with (
            _saying_what_is_read(),
            foreign_errors(self.name, given),
            torch.set_grad_enabled(training),
        ):
            logits = self.model(tokens)
        expected = (*tokens.shape, BYTES)
        if not isinstance(logits, Tensor):
            raise ValueError(
                f"{self.name}: must give logits {expected}, got {type(logits).__name__}"
            )
        if tuple(logits.shape) != expected or not logits.is_floating_point():
            others = logits.ndim == 3 and logits.shape[2] != BYTES
            hint = f"; {OF_BYTES}" if others else ""
            raise ValueError(
                f"{self.name}: must give logits {expected}, got {logits.dtype} of shape"
                f" {tuple(logits.shape)}{hint}"
            )
        self.advance(len(tokens) / (4 * len(self.inputs)))
        return logits.clone()  # a model may write those of every call to the same memory

    def check_repeated(self) -> None:
        """ValueError unless logits are finite, and the same for the same bytes."""
        first = self.logits(self.inputs[:2])
        if not first.isfinite().all():
            raise ValueError(
                f"{self.name}: its logits must be finite at initialisation, got some that are not"
            )
        if _far(first, self.logits(self.inputs[:2]), ROUNDING).any():
            raise ValueError(
                f"{self.name}: its logits must be the same each time for the same bytes, got"
                " others, in evaluation mode too; it must not sample there"
            )

    def check_no_probabilities(self) -> None:
        """ValueError for probabilities: the loss takes their softmax, which is nearly uniform."""
        if are_probabilities(self.logits(self.inputs[:2])):
            raise ValueError(
                f"{self.name}: must give logits, got probabilities, which sum to 1 at every"
                " position; leave its softmax out, or give their logarithm"
            )

    def check_causal(self) -> None:
        """ValueError for a logit that another window, a later byte or the length of it moves."""
        before = self.logits(self.inputs)
        if not before.isfinite().all():  # possible with noise
            return
        self._check_replaced(before)
        self._check_shortened(before)

    def _check_replaced(self, before: Tensor) -> None:
        """ValueError where another byte at a place moves a logit before it; row 0 has none."""
        changed = self.inputs.clone()
        changed[range(1, 1 + len(self.places)), self.places] += BYTES // 2
        changed %= BYTES
        moved = _far(before, self.logits(changed), ROUNDING)
        if moved[0].any():
            raise ValueError(
                f"{self.name}: the logits of a window must not change with the other windows of"
                " its batch"
            )
        for row, byte in enumerate(self.places, start=1):
            if moved[row, :byte].any():
                seen = int(moved[row, :byte].nonzero()[0])
                raise ValueError(
                    f"{self.name}: is not causal: byte {byte} changes the logits at byte {seen}"
                )

    def _check_shortened(self, before: Tensor) -> None:
        """ValueError where leaving the last bytes out moves a logit before them."""
        length = self.inputs.shape[1]
        half = length // 2 // self.patch * self.patch
        for kept in sorted({self.patch, half} & set(range(1, length))):
            shorter = self.logits(self.inputs[:2, :kept])
            moved = _far(before[:2, :kept], shorter, REORDERED).any(dim=0)
            if moved.any():
                changes = f"the logits at byte {int(moved.nonzero()[0])} change"
                raise ValueError(
                    f"{self.name}: is not causal: {changes} when the bytes from {kept} on are left"
                    " out"
                )

    def check_gradient(self) -> None:
        """ValueError where the loss reaches no parameter."""
        logits = self.logits(self.inputs[:2], training=True).float()
        loss = F.cross_entropy(logits.flatten(0, 1), self.inputs[:2].flatten())
        if loss.requires_grad:
            with foreign_errors(self.name, "the backward pass"):
                loss.backward()
        if all(values.grad is None for values in self.model.parameters()):
            raise ValueError(
                f"{self.name}: its loss must have a gradient in a parameter, got none: nothing can"
                " be learnt"
            )


def _far(one: Tensor, other: Tensor, units: float) -> Tensor:
    """Mask of the positions whose logits differ by more than `units` of rounding of the largest."""
    most = units * torch.finfo(one.dtype).eps * one.abs().max()
    return ~((one - other).abs().amax(dim=-1) <= most)


def _check_decays(model: Foreign, name: str) -> None:
    """ValueError for half-lives or kernels that are not positive, finite numbers."""
    lags = torch.tensor([1, 2, 4])
    with foreign_errors(name, "half_lives or kernels"):
        lives = model.half_lives()
        kernels = model.kernels(lags)
    whole = all(row.shape == lags.shape and bool(row.isfinite().all()) for row in kernels)
    positive = all(row.numel() > 0 and bool(((row > 0) & row.isfinite()).all()) for row in lives)
    if not (whole and positive):
        raise ValueError(
            f"{name}: half_lives and kernels must give positive, finite numbers for every block"
        )


@torch.no_grad()
def _add_noise(model: nn.Module) -> None:
    """Add noise to every parameter, in proportion to its size."""
    for values in model.parameters():
        size = values.square().mean().sqrt()
        scale = NOISE * size if size > 0 else NOISE_OF_ZEROS
        values.add_(torch.randn_like(values) * scale)
