"""The cost of a run by count, without running it: parameters, operations and memory for tensors.

An operation is one multiplication or one addition, so a product with a matrix of n entries is 2 n. Counted are the
products with matrices and the recurrence, at its own equations (not what a kernel computes twice to save memory), but
no norms, activations and updates. Backward, a product is two of the same size. Per step of the recurrence, with D
channels, or H heads of size N:

    scan  s = a s + b          forward 2 D,      backward 4 D       (g = grad + a g; grad_a += g s)
    wkv   o = r S + (r u k) v  forward 5 H N**2, backward 11 H N**2 (r S 2; S = w S + k v 3; r, k, v, w 2 each, S 3)
          S = w S + k v
    wkv7  o = S r              forward 9 H N**2, backward 19 H N**2 (S r 2; S a 2; S = S w + (S a) b + v k 5;
          S = S w + (S a) b                                          r, k, v, w, a, b, S a 2 each, S 5)
              + v k
"""

import weakref
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from plkernel.config.condition import Condition
from plkernel.config.train import TrainSpec
from plkernel.memory.foreign import Foreign
from plkernel.models.layers import BYTES
from plkernel.models.rwkv import RWKVConfig
from plkernel.models.rwkv7 import RWKV7Config
from plkernel.models.ssm import SSMConfig
from plkernel.training.build import AnyModel, build, parameter_count, started
from plkernel.training.objective import next_byte_loss
from plkernel.training.task import choose_device

FLOAT = 4  # bytes of a float32
MOMENTS = 2  # numbers that AdamW keeps per parameter
LARGE = 32 << 20  # bytes; where the threshold of glibc's malloc for memory of its own (M_MMAP_THRESHOLD) stops to grow


@dataclass(frozen=True)
class Flops:
    """Floating-point operations of one window: forward, and forward plus backward."""

    forward: int
    training: int


@dataclass(frozen=True)
class Cost:
    """What one run costs by count.

    parameters    numbers that the model learns
    flops         operations of one window of context bytes
    tensor_bytes  the most memory that its tensors take at once: parameters, AdamW's moments, and in the pass of one
                  step activations and gradients. An evaluation, which keeps nothing for a backward pass, takes less
    large_bytes   what of that is in tensors of 32 MiB and more, which the C library of Linux gives back to the system
                  when they are freed; smaller ones leave holes in its heap, so that a process holds more than they take
    """

    parameters: int
    flops: Flops
    tensor_bytes: int
    large_bytes: int

    def resident(self, holes: float) -> float:
        """Memory for tensors when small ones take `holes` times their size."""
        return self.large_bytes + holes * (self.tensor_bytes - self.large_bytes)


def cost(condition: Condition, half: bool = False) -> Cost:
    """The cost of a run, nothing of which is allocated; `half`: in bfloat16 autocast, as on a GPU."""
    condition, train = without_backend(condition), condition.protocol
    if condition.model.is_foreign:
        return _foreign_cost(condition)
    with FakeTensorMode():  # on the CPU, whatever the run is for: sizes are the same
        built = build(condition)
        parameters = sum(parameter.numel() for parameter in built.parameters())
        live = _passed(built, train, half)
    moments = MOMENTS * FLOAT * parameters
    return Cost(parameters, flops(built.config, train.context), live.peak + moments, live.large_at_peak)


def _foreign_cost(condition: Condition) -> Cost:
    """The cost of a run of other people's model, by one window that is really trained on, here on the CPU or GPU.

    Operations are those of matrix products, convolutions and attention, as torch counts them (its FlopCounterMode);
    activations grow with the windows of a step.
    """
    train = condition.protocol
    model, one = started(condition, 0), train.model_copy(update={"batch": 1})
    model.to(choose_device(train.device))
    assert isinstance(model, Foreign)
    counted, live = operations_of(model, train.context), _passed(model, one, False)
    fixed = sum(2 * tensor.numel() * tensor.element_size() for tensor in model.parameters())
    parameters = parameter_count(condition)
    activations = max(0, live.peak - fixed)
    moments = MOMENTS * FLOAT * parameters
    return Cost(parameters, counted, fixed + moments + train.batch * activations, live.large_at_peak)


def operations_of(model: Foreign, context: int) -> Flops:
    """Operations of one window of `context` bytes, as torch counts them."""
    device = next(model.parameters()).device
    windows = torch.zeros((1, context + 1), dtype=torch.int64, device=device)
    with FlopCounterMode(display=False) as forward, torch.no_grad():
        model(windows[:, :-1])
    with FlopCounterMode(display=False) as training:
        next_byte_loss(model, windows).backward()
    model.zero_grad(set_to_none=True)
    return Flops(forward.get_total_flops(), training.get_total_flops())


def without_backend(condition: Condition) -> Condition:
    """The condition with the kernels of the device that it is built on: a forced one may not exist there."""
    return replace(condition, train=condition.protocol.model_copy(update={"backend": None}))


def flops(config: SSMConfig | RWKVConfig | RWKV7Config, context: int) -> Flops:
    """Operations of one window of `context` bytes; with patches of P bytes the blocks take ceil(context / P) steps."""
    dim, layers = config.dim, config.layers
    if isinstance(config, SSMConfig):
        steps = -(-context // config.patch)
        matrices = layers * (2 * dim**2 + 3 * dim * int(4 * dim / 3))
        forward, backward = 2 * dim, 4 * dim
    elif isinstance(config, RWKV7Config):
        steps = context
        matrices = layers * (4 * dim**2 + 2 * dim * (config.hidden + sum(config.ranks))) - 2 * dim * config.ranks[2]
        forward, backward = (count * config.heads * config.head_size**2 for count in (9, 19))
    else:
        steps = context
        matrices = layers * (6 * dim**2 + 2 * dim * config.hidden)
        if config.version == 6:
            matrices += layers * 2 * dim * (5 * config.mix_rank + config.decay_rank)
        forward, backward = (count * config.heads * config.head_size**2 for count in (5, 11))
    products = 2 * (steps * matrices + context * dim * BYTES)
    recurrence = steps * layers
    return Flops(products + recurrence * forward, 3 * products + recurrence * (forward + backward))


def _passed(model: AnyModel, train: TrainSpec, half: bool) -> "LiveBytes":
    """The memory of tensors in a forward plus backward pass, parameters included."""
    live = LiveBytes()
    for tensor in (*model.parameters(), *model.buffers()):
        live.add(tensor)
    with live, torch.autocast("cpu", torch.bfloat16) if half else nullcontext():
        size, device = (train.batch, train.context + 1), next(model.parameters()).device
        windows = torch.zeros(size, dtype=torch.int64, device=device)
        loss = next_byte_loss(model, windows, l2wrap=train.l2wrap)
        loss.backward()
    return live


class LiveBytes(TorchDispatchMode):
    """While it is on, the bytes of storage that the results of operations hold.

    peak: the most there were at once; large_at_peak: those of LARGE tensors then.
    """

    def __init__(self) -> None:
        super().__init__()
        self.held = self.peak = self.large = self.large_at_peak = 0
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self.add(tensor)
        return result

    def add(self, tensor: Tensor) -> None:
        """Count the storage of `tensor`, once, for as long as it lives."""
        storage = tensor.untyped_storage()
        key = id(storage)
        if key in self._sizes:
            return
        self._sizes[key] = size = storage.nbytes()
        self._change(size, 1)
        if self.held > self.peak:
            self.peak, self.large_at_peak = self.held, self.large
        weakref.finalize(storage, lambda: self._change(self._sizes.pop(key), -1))

    def _change(self, size: int, sign: int) -> None:
        self.held += sign * size
        self.large += sign * size if size >= LARGE else 0


def shape_key(condition: Condition, *, rough: bool = False) -> str:
    """Equal for runs whose steps cost the same: the model as it is built, without the values of its multipliers.

    rough: also equal where costs hardly differ, for all input gains and for both modes of patching.
    """
    train = condition.protocol
    if condition.model.is_foreign:
        model = condition.model.model_dump_json()
        return repr((model, train.batch, train.context, train.threads, train.l2wrap > 0))
    with torch.device("meta"):
        config = build(without_backend(condition)).config
    multipliers = dict.fromkeys(config.structure.multipliers, 0.5)
    config = replace(config, structure=replace(config.structure, multipliers=multipliers))
    if rough and isinstance(config, SSMConfig):
        config = replace(config, gain="none", mode="causal")
    return repr((config, train.batch, train.context, train.threads, train.l2wrap > 0))
