"""One recipe for the three operators: checked inputs, a chosen backend and gradients.

A shape is a word of letters: B batch, T time, D channels, H heads, K key size, V value size.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from operator import eq
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

AXES = {
    "B": "batch",
    "T": "time",
    "D": "channels",
    "H": "heads",
    "K": "key size",
    "V": "value size",
}
HALF_TYPES = (torch.bfloat16, torch.float16)
WIDE_TYPES = (torch.float32, torch.float64)
OLDEST_CORES = 8  # major compute capability of the first GPUs that multiply bfloat16 and tf32
# Compute capabilities of GPUs with 99 KB of shared memory for a program; sm_80 has 163.
SMALL_CHIPS = ((8, 6), (8, 9), (12, 0), (12, 1))
MOST_PLANS = 1024  # inputs of which an operator remembers that they fit together
_HAS_TRITON = find_spec("triton") is not None  # looking for it does not import it
_PLAIN = (Tensor, Parameter)
_VMAP: Any = torch._C._parse_dispatch_key("VmapMode")  # that of is_grads_batched=True
Results = tuple[Tensor, Tensor]
EXACT = "exact"
STATES = ("state", "grad_last")
"""Inputs in the dtype of states, whatever the main one's."""


class TensorCores(NamedTuple):
    """The forms of an operator that take products on tensor cores, in its file `tensor.py`.

    precisions    how operands may be rounded
    default       what precision=None takes on a GPU, by the dtype of the main input; EXACT, the
                  kernels of `gpu.py`, is a value too, and what older GPUs than OLDEST_CORES take
    most_keys     the largest key size, the last axis of the main input
    default_keys  the largest key size with which the default has been held against float64 on a
                  GPU; longer ones take the exact kernels unless a precision is given
    small_keys    the largest key size on SMALL_CHIPS, by precision, where it is below most_keys
    """

    precisions: tuple[str, ...]
    default: Mapping[torch.dtype, str]
    most_keys: int
    default_keys: int
    small_keys: Mapping[str, int] = MappingProxyType({})

    def form(self, operator: str, backend: str, precision: str | None, main: Tensor) -> str:
        """The file and precision that compute with `backend`, as one word: "cpu", "tensor:bf16".

        Raises ValueError for a precision that does not exist or does not work there.
        """
        size = main.shape[-1]
        if precision is None:
            was_tried = size <= self.default_keys
            fits = backend == "gpu" and was_tried and _has_cores(main.device)
            precision = self.default[main.dtype] if fits else EXACT
        if precision == EXACT:
            return backend
        if precision not in self.precisions:
            raise ValueError(
                f"{operator}: precision must be one of {', '.join((EXACT, *self.precisions))},"
                f" got {precision!r}"
            )
        if backend != "gpu":
            raise ValueError(
                f"{operator}: precision must be 'exact' or None with backend {backend!r}, got"
                f" {precision!r}; it works with backend 'gpu', on a GPU"
            )
        most_keys = self.most_keys
        if _is_small(main.device):
            most_keys = self.small_keys.get(precision, most_keys)
        if size > most_keys:
            place = " on this GPU" if most_keys < self.most_keys else ""
            raise ValueError(
                f"{operator}: r must have a key size of at most {most_keys} with precision"
                f" {precision!r}{place}, got {size}; 'exact' takes longer keys"
            )
        return f"tensor:{precision}"


def _has_cores(device: torch.device) -> bool:
    """False on a GPU whose tensor cores multiply neither bfloat16 nor tf32.

    Where no GPU can be asked, as under FakeTensorMode or an interpreter, the answer is True. Of
    what torch says of a device, torch.compile takes the properties alone for a constant.
    """
    if device.type != "cuda" or not torch.cuda.is_available():
        return True
    return torch.cuda.get_device_properties(device).major >= OLDEST_CORES


def _is_small(device: torch.device) -> bool:
    """True on one of SMALL_CHIPS; False where no GPU can be asked."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return False
    properties = torch.cuda.get_device_properties(device)
    return (properties.major, properties.minor) in SMALL_CHIPS


def choose(operator: str, backend: str | None, device: torch.device) -> str:
    """The backend of `operator` to run on `device`.

    The slow reference is chosen only by name. On `meta`, where nothing is computed, it is that of a
    CPU. Raises ValueError for a backend that does not exist or does not work there.
    """
    usable = ["reference", "cpu"] if device.type in ("cpu", "meta") else ["reference"]
    interpreted = device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"
    if _HAS_TRITON and (device.type == "cuda" or interpreted):
        usable.append("gpu")
    chosen = backend or {"cuda": "gpu", "meta": "cpu"}.get(device.type, device.type)
    if chosen not in usable:
        hint = ""
        if device.type == "cuda" and not _HAS_TRITON:
            hint = "; 'gpu' needs the package triton"
        elif backend is None:
            hint = "; the slow reference is chosen only by name"
        raise ValueError(
            f"{operator}: backend must be one of {', '.join(usable)} on {device.type}, got"
            f" {backend!r}{hint}"
        )
    is_uncompiled = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")
    if chosen == "cpu" and device.type == "cpu" and is_uncompiled:
        raise ValueError(
            f"{operator}: backend must be 'reference', which is slow, where the environment sets"
            f" NUMBA_DISABLE_JIT, got {chosen!r}, whose loops must be compiled; unset the variable"
        )
    return chosen


def widen(x: Tensor) -> Tensor:
    """Convert half types to float32: a CPU has no arithmetic for them."""
    return x if x.dtype in WIDE_TYPES else x.float()


def narrow(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Round to the type that the inputs came in."""
    return x if x.dtype == dtype else x.to(dtype)


def as_array(x: Tensor) -> Any:
    """The memory of a tensor on a CPU as numpy sees it."""
    return x.detach().numpy() if x.requires_grad else x.numpy()


def numpy_type(dtype: torch.dtype) -> Any:
    """The type of numpy that float32 or float64 of torch is."""
    return np.float64 if dtype == torch.float64 else np.float32


def zeros_of(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Zeros on a CPU without a parallel region of torch.

    Beside a busy process the end of such a region waits until torch's second thread gets a core,
    milliseconds.
    """
    return torch.from_numpy(np.zeros(shape, numpy_type(dtype)))


def summed(x: Any, dtype: torch.dtype) -> Tensor:
    """Sum over the first axis of a float64 array, without a parallel region of torch."""
    return narrow(torch.from_numpy(x.sum(0).astype(numpy_type(dtype), copy=False)), dtype)


def sum_parts(parts: Tensor, like: Tensor) -> Tensor:
    """Sum over leading axes in float64; a single part only changes its dtype."""
    extra = parts.dim() - like.dim()
    if parts.shape[:extra].numel() == 1:
        return parts.view(like.shape).to(like.dtype)
    return parts.sum(tuple(range(extra)), dtype=torch.float64).to(like.dtype)


def gathered(outputs: list[Tensor], like: Tensor, carry: Tensor, state: Tensor) -> Results:
    """Results of a reference loop in the dtypes of `like` and `state`."""
    out = torch.stack(outputs, 1) if outputs else like
    return out.to(like.dtype), carry.to(state.dtype, copy=True)


class Definition(NamedTuple):
    """An operator as `define` is told of it; fields that are not here are arguments there.

    letters  the shapes that each input may have, as words
    saved    what the backward pass reads, in this order; "out" is the first result
    """

    name: str
    main: str
    letters: Mapping[str, Sequence[str]]
    like: str
    precise: Sequence[str]
    saved: tuple[str, ...]
    cores: TensorCores | None

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the inputs, in the order of the reference."""
        return tuple(self.letters)

    @property
    def result_saved(self) -> str:
        """The saved tensor of the shape of the first result: itself, or the input `like`."""
        return "out" if "out" in self.saved else self.like

    @property
    def backward(self) -> "Definition":
        """The backward pass as an operator: what is saved and the gradients of both results."""
        result, state = self.letters[self.like], self.letters["state"]
        given = {"out": result, **self.letters}
        letters = {one: given[one] for one in self.saved}
        letters |= {"grad_out": result, "grad_last": state}
        main = self.main if self.main in self.saved else self.result_saved
        return self._replace(name=f"{self.name}_backward", main=main, letters=letters)

    @property
    def gradients_like(self) -> tuple[str, ...]:
        """The saved tensor of the shape of each input, and so of its gradient."""
        return tuple(self.result_saved if one == self.like else one for one in self.inputs)


def define(
    name: str,
    main: str,
    inputs: Mapping[str, str],
    reference: Callable[..., Results],
    *,
    like: str,
    precise: Sequence[str],
    kept: Sequence[str] | None = None,
    cores: TensorCores | None = None,
) -> Callable[..., Results]:
    """Define an operator: a function of its inputs, a backend and a precision, or None for them.

    Its gradients are of first order. The reference, which torch differentiates, has every other
    derivative.

    There are two ways to a backend, with one pair of functions behind both. Where only autograd
    looks on (`_is_plain`), it is a `torch.autograd.Function`, and inputs whose shapes, dtypes and
    devices were checked once are not checked again. Everywhere else it is an operator of
    torch.library, which takes several times as long for a small problem.

    Args:
        name: the package of the backends; `forward` of a backend takes the inputs, and `backward`
            what is kept and the gradients of both results.
        main: the input whose dtype and device the others share.
        inputs: the shapes that each may have, separated by spaces; the last is the state.
        reference: the loop in float64.
        like: the input that the first result is like; the second is like the state.
        precise: the inputs that may be float32 or float64 whatever the main one is.
        kept: the inputs that the backward pass reads, all if left out; "out" is the first result,
            in place of `like`.
        cores: its forms on tensor cores, if it has some.

    The registered operator and what follows from it know backend and precision as one word, their
    form (`TensorCores.form`).
    """
    letters = {one: shapes.split() for one, shapes in inputs.items()}
    defined = Definition(name, main, letters, like, precise, tuple(kept or inputs), cores)
    forward, backward = _passes(defined)
    checked_once = _remembered(defined)
    registered, function = _differentiable(defined, forward, backward)

    def operator(*arguments: Any) -> Results:
        *tensors, backend, precision = arguments
        plain = _is_plain(tensors)
        if plain:
            ready, form = checked_once(tensors, backend, precision)
        else:
            ready, form = _checked(defined, tensors, backend, precision)
        if form == "reference":
            _check_sign(name, dict(zip(inputs, ready, strict=True)))
            return reference(*ready)
        if not plain:
            _refuse_other_derivatives(name, form)
            return registered(*ready, form)
        if torch.is_grad_enabled() and any([x.requires_grad for x in ready]):
            return function.apply(*ready, form)
        return forward(*ready, form)

    return operator


def _passes(defined: Definition) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The forward and the backward pass of inputs that have been checked; the form comes last.

    Problems without elements reach no backend: their results are zeros and the state.
    """
    name = defined.name

    def forward(*arguments: Any) -> Any:
        *tensors, form = arguments
        given = dict(zip(defined.letters, map(_contiguous, tensors), strict=True))
        _check_sign(name, given)
        if given[defined.main].numel() == 0 or given[defined.like].numel() == 0:
            return torch.zeros_like(given[defined.like]), given["state"].clone()
        return _backend(name, form).forward(*given.values())

    def backward(*arguments: Any) -> Any:
        *tensors, form = arguments
        *tensors, grad_out, grad_last = map(_contiguous, tensors)
        if tensors[0].numel() == 0 or grad_out.numel() == 0:
            given = dict(zip(defined.saved, tensors, strict=True))
            grads = [torch.zeros_like(given[one]) for one in defined.gradients_like[:-1]]
            return (*grads, grad_last.clone())
        return _backend(name, form).backward(*tensors, grad_out, grad_last)

    return forward, backward


def _differentiable(
    defined: Definition, forward: Callable[..., Any], backward: Callable[..., Any]
) -> tuple[Callable[..., Results], Any]:
    """Both passes as an operator of torch.library, and as a torch.autograd.Function."""
    name = defined.name
    run = _library_operator(defined, forward, (defined.like, "state"))
    run_back = _library_operator(
        defined.backward, _with_sign_checked(defined.backward, backward), defined.gradients_like
    )
    keep, differentiate = _gradient_rule(defined, backward, run_back)

    def refuse(*_: Any) -> NoReturn:
        raise NotImplementedError(
            f"{name} has no second derivatives; backend='reference' has, slowly"
        )

    run.register_autograd(differentiate, setup_context=keep)
    run_back.register_autograd(refuse)

    def forward_and_keep(ctx: Any, *arguments: Any) -> Any:
        results = forward(*arguments)
        keep(ctx, arguments, results)
        return results

    # A class made by call: profiles show its name.
    function = type(
        name,
        (torch.autograd.Function,),
        {"forward": staticmethod(forward_and_keep), "backward": staticmethod(differentiate)},
    )
    return run, function


def _with_sign_checked(defined: Definition, backward: Callable[..., Any]) -> Callable[..., Any]:
    """`backward` behind `_check_sign`, for those who call it without a forward pass before it."""

    def checked(*arguments: Any) -> Any:
        *tensors, _ = arguments
        _check_sign(defined.name, dict(zip(defined.letters, tensors, strict=True)))
        return backward(*arguments)

    return checked


def _gradient_rule(
    defined: Definition, backward: Callable[..., Any], run_back: Callable[..., Any]
) -> tuple[Callable[..., None], Callable[..., tuple[Tensor | None, ...]]]:
    """Tensors kept of a forward pass, and the gradients from them, as torch asks for both.

    run_back: the same as `backward`, registered with torch.library.
    """
    inputs = defined.inputs
    # Where what is saved stands among the inputs, with the first result behind them.
    places = [len(inputs) if one == "out" else inputs.index(one) for one in defined.saved]
    # Where what is like the results stands among what is saved.
    out_place = defined.saved.index(defined.result_saved)
    state_place = defined.saved.index("state")

    def keep(ctx: Any, inputs: tuple[Any, ...], output: Results) -> None:
        ctx.form = inputs[-1]
        ctx.set_materialize_grads(False)  # torch's zeros would start its threads
        tensors = (*inputs[:-1], output[0])
        ctx.save_for_backward(*[tensors[place] for place in places])

    def differentiate(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        kept = ctx.saved_tensors
        grad_out, grad_last = grads
        if grad_out is None:
            grad_out = _zeros(kept[out_place])
        if grad_last is None:
            grad_last = _zeros(kept[state_place])
        incoming = (*kept, grad_out, grad_last)
        # With create_graph=True gradients are recorded here; the registered operator refuses it.
        direct = not torch.is_grad_enabled() and _is_plain(incoming)
        back = backward if direct else run_back
        no_gradient_of_the_form = None
        return *back(*incoming, ctx.form), no_gradient_of_the_form

    return keep, differentiate


def _refuse_other_derivatives(name: str, form: str) -> None:
    """Raise NotImplementedError in forward mode and torch.func: torch would leave out tangents."""
    if forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active():
        raise NotImplementedError(
            f"{name}: backend {form!r} has neither forward mode nor torch.func;"
            " backend='reference' has, slowly"
        )


def _remembered(
    defined: Definition,
) -> Callable[[Sequence[Any], str | None, str | None], tuple[Sequence[Tensor], str]]:
    """`_checked`, once for all inputs of the same shapes, dtypes and devices."""
    plans: dict[Any, tuple[str, torch.Size, torch.dtype]] = {}
    main_place = defined.inputs.index(defined.main)

    def checked_once(
        tensors: Sequence[Any], backend: str | None, precision: str | None
    ) -> tuple[Sequence[Tensor], str]:
        signature = (
            backend,
            precision,
            *[None if x is None else (x.shape, x.dtype, x.device) for x in tensors],
        )
        plan = plans.get(signature)
        if plan is None:
            ready, form = _checked(defined, tensors, backend, precision)
            if len(plans) >= MOST_PLANS:
                plans.clear()
            plans[signature] = form, ready[-1].shape, ready[-1].dtype
            return ready, form
        form, shape, dtype = plan
        *others, state = tensors
        if state is None:
            state = _zeros(others[main_place], shape, dtype)
        elif state.dtype != dtype:
            state = state.to(dtype)
        return (*others, state), form

    return checked_once


def _is_plain(tensors: Sequence[Tensor | None]) -> bool:
    """True if nothing looks on but autograd, so that an autograd.Function serves.

    The others must see the operator of torch.library, as a whole and with known shapes:
    torch.compile and torch.export; modes of dispatch (FakeTensorMode, FlopCounterMode, make_fx,
    selective checkpointing) and of functions; subclasses of Tensor (FakeTensor, DTensor) and the
    device meta; torch.func, and batches of gradients (is_grads_batched), which have a vmap of their
    own; torch.jit.trace; and forward mode, which is refused there. So are tensors that are not
    dense.
    """
    return (
        not torch.compiler.is_compiling()
        and torch._C._len_torch_dispatch_stack() == 0
        and torch._C._len_torch_function_stack() == 0
        and not torch._C._are_functorch_transforms_active()
        and not torch._C._dispatch_tls_is_dispatch_key_included(_VMAP)
        and forward_ad._current_level < 0
        and not torch.jit.is_tracing()
        and all([x is None or _is_plain_tensor(x) for x in tensors])
    )


def _is_plain_tensor(x: Any) -> bool:
    """True for a dense tensor of torch itself that holds numbers."""
    return type(x) in _PLAIN and x.layout is torch.strided and not (x.is_meta or x.is_nested)


@cache
def _backend(name: str, form: str) -> Any:
    """A module, or an object, with `forward` and `backward` of a form."""
    file, _, precision = form.partition(":")
    module = import_module(f"plkernel.kernels.{name}.{file}")
    if not precision:
        return module
    return SimpleNamespace(
        forward=partial(module.forward, precision=precision),
        backward=partial(module.backward, precision=precision),
    )


def _checked(
    defined: Definition, tensors: Sequence[Any], backend: str | None, precision: str | None
) -> tuple[tuple[Tensor, ...], str]:
    """The inputs with a state in its own dtype, and the form.

    Raises ValueError for shapes, dtypes or devices that do not fit, and for a backend or precision
    that does not work with them.
    """
    given = dict(zip(defined.letters, tensors, strict=True))
    sizes = _check_inputs(defined, given)
    main = given[defined.main]
    given["state"] = _with_dtype_of_states(defined, given["state"], main, sizes)
    form = _form(defined, given, backend, precision)
    return tuple(given.values()), form


def _form(
    defined: Definition,
    given: Mapping[str, Tensor],
    backend: str | None,
    precision: str | None,
) -> str:
    """The form of a backend and a precision; ValueError for one that does not work with `given`."""
    name = defined.name
    main = given[defined.main]
    form = choose(name, backend, main.device)
    for one, x in given.items():
        if form == "gpu" and x.dtype == torch.float64:
            raise ValueError(
                f"{name}: {one} must be float32, bfloat16 or float16 with backend 'gpu', got"
                " float64"
            )
    if defined.cores is None:
        return form
    return defined.cores.form(name, form, precision, main)


def _guarded(defined: Definition, run: Callable[..., Any]) -> Callable[..., Any]:
    """`run` behind the checks of a registered operator.

    torch.ops.plkernel and an exported program call it without those of the operator itself. Inputs
    of the same shapes, dtypes and devices are checked once.
    """
    fitting: set[Any] = set()

    def guarded(*arguments: Any) -> Any:
        *tensors, form = arguments
        signature = (form, *[(x.shape, x.dtype, x.device, x.layout) for x in tensors])
        if signature not in fitting:
            _check_registered(defined, tensors, form)
            if len(fitting) >= MOST_PLANS:
                fitting.clear()
            fitting.add(signature)
        return run(*arguments)

    return guarded


def _check_registered(defined: Definition, tensors: Sequence[Tensor], form: str) -> None:
    """Raise ValueError where inputs or form of a registered operator do not fit."""
    name = defined.name
    given = _registered_inputs(defined, tensors)
    precisions = () if defined.cores is None else defined.cores.precisions
    forms = ("cpu", "gpu", *(f"tensor:{one}" for one in precisions))
    if form not in forms:
        raise ValueError(f"{name}: backend must be one of {', '.join(forms)} here, got {form!r}")
    backend, _, precision = form.partition(":")
    _form(defined, given, "gpu" if precision else backend, precision or EXACT)


def _registered_inputs(defined: Definition, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    """The inputs of a registered operator by name; ValueError for some that do not fit.

    States are in their own dtype here, as results are: nothing is converted.
    """
    given = dict(zip(defined.letters, tensors, strict=True))
    _check_inputs(defined, given)
    wanted = _dtype_of_states(given[defined.main])
    for one in STATES:
        if one in given and given[one].dtype != wanted:
            raise ValueError(
                f"{defined.name}: {one} must be {_dtype_name(wanted)} here, got {_kind(given[one])}"
            )
    return given


def _dtype_of_states(main: Tensor) -> torch.dtype:
    """The dtype of states: float64 beside a main input of float64, else float32."""
    return torch.float64 if main.dtype == torch.float64 else torch.float32


def _with_dtype_of_states(
    defined: Definition, state: Tensor | None, main: Tensor, sizes: Mapping[str, int]
) -> Tensor:
    """The state in the dtype of states, zero where there is none."""
    dtype = _dtype_of_states(main)
    if state is None:
        shape = [sizes[letter] for letter in defined.letters["state"][0]]
        return _zeros(main, shape, dtype)
    return state.to(dtype)


def _check_inputs(defined: Definition, given: Mapping[str, Any]) -> dict[str, int]:
    """Return the size of every letter; ValueError for inputs that do not fit.

    Such have other shapes, dtypes or devices, or are no dense tensors. A state may be None.
    """
    sizes: dict[str, int] = {}
    for one in (defined.main, *defined.letters):  # the sizes of the main input count
        x = given[one]
        if x is None and one == "state":
            continue
        _check_dense(defined.name, one, x)
        words = defined.letters[one]
        if not sizes or not sizes.keys() >= set(words[0]):
            _check_axes(defined.name, one, x, words[0])
            sizes = dict(zip(words[0], x.shape, strict=True)) | sizes
        _check_input(defined, one, x, given[defined.main], sizes)
    return sizes


def _check_dense(name: str, one: str, x: Any) -> None:
    """Raise ValueError unless `x` is a tensor with a place in memory for each number."""
    if not isinstance(x, Tensor):
        raise ValueError(f"{name}: {one} must be a tensor, got {type(x).__name__}")
    if x.is_nested:
        raise ValueError(f"{name}: {one} must be a dense tensor, got a nested one; pad its parts")
    if x.layout is not torch.strided:
        layout = str(x.layout).removeprefix("torch.")
        raise ValueError(
            f"{name}: {one} must be a dense tensor, got one in layout {layout}; give"
            f" {one}.to_dense()"
        )


def _check_input(
    defined: Definition, one: str, x: Tensor, main: Tensor, sizes: Mapping[str, int]
) -> None:
    """Raise ValueError where the input called `one` does not fit the main one."""
    shapes = [tuple([sizes[letter] for letter in word]) for word in defined.letters[one]]
    alike = x.dtype if one in STATES else main.dtype
    dtypes = _precise_dtypes(alike, x) if one in defined.precise else (alike,)
    if x.dtype not in dtypes or not _has_one_of(x, shapes):
        types = " or ".join(map(_dtype_name, dtypes))
        wanted = f"{types} {' or '.join(map(str, shapes))}"
        raise ValueError(f"{defined.name}: {one} must be {wanted} here, got {_kind(x)}")
    if x.device != main.device:
        raise ValueError(
            f"{defined.name}: {one} must be on {main.device}, as {defined.main} is, got one on"
            f" {x.device}"
        )


def _check_axes(name: str, one: str, x: Tensor, word: str) -> None:
    """Raise ValueError unless `x` is of a floating-point type and has an axis for every letter."""
    if x.dim() != len(word) or x.dtype not in (*HALF_TYPES, *WIDE_TYPES):
        axes = ", ".join(AXES[letter] for letter in word)
        raise ValueError(f"{name}: {one} must be a floating-point tensor ({axes}), got {_kind(x)}")


def _precise_dtypes(alike: torch.dtype, x: Tensor) -> tuple[torch.dtype, ...]:
    """The dtypes of a precise input: wide ones, and that of the main input unless `x` is fixed."""
    if x.dim() > 1 and alike not in WIDE_TYPES:
        return (*WIDE_TYPES, alike)
    return WIDE_TYPES


def _has_one_of(x: Tensor, shapes: Sequence[Sequence[int]]) -> bool:
    """True if the shape of `x` is one of `shapes`.

    Size by size: of tuples of symbolic sizes torch.compile cannot tell whether they are equal.
    """
    return any([len(shape) == x.dim() and all(map(eq, shape, x.shape)) for shape in shapes])


def _zeros(like: Tensor, shape: Sequence[int] | None = None, dtype: Any = None) -> Tensor:
    """Zeros on the device of `like`, of its shape and dtype if left out; on a CPU as `zeros_of`."""
    shape = like.shape if shape is None else shape
    dtype = dtype or like.dtype
    if (
        torch.compiler.is_compiling()
        or like.device.type != "cpu"
        or type(like) not in _PLAIN
        or torch._C._len_torch_dispatch_stack() > 0
        or dtype not in WIDE_TYPES
    ):
        return like.new_zeros(shape, dtype=dtype)
    return zeros_of(shape, dtype)


def _contiguous(x: Tensor) -> Tensor:
    """A contiguous copy, if need be; on a CPU without a parallel region of torch.

    The gradient of a sum, expanded from one number, is such a tensor: beside a busy process its
    copy by two threads of torch takes several times as long as the operator.
    """
    if x.is_neg():  # its memory holds the numbers with the other sign
        x = x.resolve_neg()
    if x.is_contiguous():
        return x
    if x.device.type != "cpu" or x.dtype not in WIDE_TYPES:
        return x.contiguous()
    return torch.from_numpy(np.ascontiguousarray(as_array(x)))


def _kind(x: Tensor) -> str:
    return f"{_dtype_name(x.dtype)} {tuple(x.shape)}"


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _check_sign(name: str, given: Mapping[str, Tensor]) -> None:
    """Raise ValueError for a log_decay above 0, on a CPU.

    Elsewhere reading values waits for what computes them.
    """
    log_decay = given.get("log_decay")
    if log_decay is None:
        return
    if not _can_be_read(log_decay):
        return
    if log_decay.device.type != "cpu" or not log_decay.numel():
        return
    if log_decay.dtype in WIDE_TYPES and not log_decay.is_neg():
        largest = float(as_array(log_decay).max())
    else:
        largest = log_decay.detach().max().item()
    if largest > 0:
        raise ValueError(
            f"{name}: log_decay must be at most 0, as ln w of a decay w <= 1, got {largest:.4g}"
        )


def _can_be_read(x: Tensor) -> bool:
    """False under what has no values, or cannot always read them.

    That is under torch.compile and torch.export, modes of dispatch (FakeTensorMode, make_fx),
    torch.func, and of subclasses of Tensor.
    """
    return (
        not torch.compiler.is_compiling()
        and torch._C._len_torch_dispatch_stack() == 0
        and not torch._C._are_functorch_transforms_active()
        and type(x) in _PLAIN
    )


def _library_operator(defined: Definition, run: Callable[..., Any], like: Sequence[str]) -> Any:
    """Register `run` with torch.library, under fake tensors too.

    like: the names of the inputs that the results are like.
    """
    names = defined.inputs
    takes = ", ".join(f"Tensor {one}" for one in names)
    gives = ", ".join("Tensor" for _ in like)
    registered: Any = torch.library.custom_op(
        f"plkernel::{defined.name}",
        _guarded(defined, run),
        mutates_args=(),
        schema=f"({takes}, str backend) -> ({gives})",
    )

    def fake(*arguments: Any) -> tuple[Tensor, ...]:
        *tensors, _ = arguments  # the form is of the device that will compute, not of this one
        given = _registered_inputs(defined, tensors)
        return tuple(given[one].new_empty(given[one].shape) for one in like)

    registered.register_fake(fake)
    return registered
