"""The three operators as their tests see them: problems, exact results and the largest error.

Letters: B batch, T time, D channels, H heads, K key size, V value size. A shape is (B,T,D) for
`scan`, (B,T,H,K,V) for `wkv` and `wkv7`. Layouts: a fixed decay, or one for each step.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from plkernel.kernels import chunks
from plkernel.kernels.scan import cpu as scan_cpu
from plkernel.kernels.scan import scan
from plkernel.kernels.wkv import wkv
from plkernel.kernels.wkv7 import wkv7

Shape = tuple[int, ...]
Problem = dict[str, Tensor]
DECAYS = (1e-12, 1e-4, 0.3, 0.9, 0.999, 1 - 1e-5, 1 - 1e-7, 0.0, 1.0)
LOG_DECAYS = (
    0.0,
    -1e-7,
    -math.exp(-8),
    -0.05,
    -1.0,
    -math.exp(2.5),
    -20.0,
    -50.0,
    -80.0,
    -1e4,
    -math.inf,
)
LIMIT = 5e-6  # relative, in float32; a half type rounds what it stores once more
STORED = {torch.float64: 0.0, torch.float32: 0.0, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-10}
LOST = 2.0**-100  # numbers below 2**-126 may be taken for zero, and then be multiplied and summed


@dataclass(frozen=True)
class Operator:
    """An operator with all that its tests need.

    inputs: shapes by letters, of a decay the one for each step; equal: shapes at which backends are
    compared with float64, the first ones in every dtype; small: for finite differences; empty:
    without elements
    """

    call: Callable[..., tuple[Tensor, Tensor]]
    inputs: dict[str, str]
    decay: str
    layouts: tuple[str, ...]
    out: str
    shared: ModuleType
    equal: tuple[Shape, ...]
    small: Shape
    empty: tuple[Shape, ...]

    @property
    def name(self) -> str:
        return self.call.__name__

    @property
    def results(self) -> tuple[str, ...]:
        return ("out", "last", *(f"grad_{name}" for name in self.inputs))

    def shape(self, time: int) -> Shape:
        return (2, time, 9) if self.name == "scan" else (2, time, 2, 11, 5)

    def problem(self, layout: str, shape: Shape, dtype: torch.dtype = torch.float32) -> Problem:
        """Inputs and incoming gradients; states, bonus and decays stay float32 (float64 for
        float64).
        """
        random = torch.Generator().manual_seed(1)
        sizes = dict(zip("BTD" if len(shape) == 3 else "BTHKV", shape, strict=True))
        words = {**self.inputs, "grad_out": self.out, "grad_last": self.inputs["state"]}
        if layout == "fixed":
            words[self.decay] = words[self.decay][2:]
        given = {
            name: torch.randn([sizes[x] for x in word], generator=random)
            for name, word in words.items()
        }
        values = torch.tensor(DECAYS if self.decay == "a" else LOG_DECAYS, dtype=torch.float64)
        drawn = torch.randint(99, given[self.decay].shape, generator=random)
        if layout == "fixed":
            drawn = torch.arange(drawn.numel()).view(drawn.shape)
        given[self.decay] = values[drawn % len(values)]
        if self.name == "wkv7":  # as the model makes them: normalised kappa, rates from 0 to 1
            kappa = normalize(given["a"], dim=-1)
            given |= {"a": -kappa, "b": kappa * torch.rand(kappa.shape, generator=random)}
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        kept = ("u", "state", "grad_last", self.decay)
        return {name: x.to(wide if name in kept else dtype) for name, x in given.items()}

    def run(self, backend: str | None, given: Problem, **options: Any) -> Problem:
        """Results and gradients through the public function; options: its own, precision."""
        leaves = {name: given[name].detach().clone().requires_grad_() for name in self.inputs}
        return self.results_of(self.call(**leaves, backend=backend, **options), leaves, given)

    def results_of(
        self, outputs: tuple[Tensor, Tensor], leaves: Problem, given: Problem
    ) -> Problem:
        incoming = (given["grad_out"], given["grad_last"])
        grads = torch.autograd.grad(
            outputs, list(leaves.values()), incoming, allow_unused=True, materialize_grads=True
        )
        return dict(zip(self.results, (x.detach() for x in (*outputs, *grads)), strict=True))

    def errors(self, found: Problem, given: Problem) -> dict[str, float]:
        """The worst error of each result, beside the largest of its channel, over the limit of the
        dtype.
        """
        exact = self.run("reference", {name: x.double().cpu() for name, x in given.items()})
        limit = 1e-13 if given["grad_out"].dtype == torch.float64 else LIMIT
        rounded = STORED[given["grad_out"].dtype]  # of gradients too, which read what was stored
        errors = {}
        for name, x in found.items():
            axes = tuple(range(x.dim() - 1))
            size = exact[name].abs()
            wrong = (x.double().cpu() - exact[name]).abs()
            if x.numel():
                size, wrong = size.amax(axes), wrong.amax(axes)
            size = size + 0.05 * (size.max() if x.numel() else 0)  # where the terms of a sum cancel
            allowed = (limit + 2 * rounded) * size + (
                2.0**-22 if x.dtype == torch.float16 else LOST
            )
            errors[name] = (
                float((wrong / allowed).nan_to_num(nan=math.inf).max()) if wrong.numel() else 0.0
            )
        return errors

    def assert_equal(self, found: Problem, given: Problem, times: float = 1.0) -> None:
        errors = self.errors(found, given)
        assert max(errors.values()) <= times, errors


_EMPTY = ((2, 0, 2, 3, 4), (0, 4, 2, 3, 4), (2, 4, 0, 3, 4), (2, 4, 2, 0, 4), (2, 4, 2, 3, 0))
_HEADS = (
    (2, 3, 2, 11, 5),
    (2, 65, 2, 12, 33),
    (1, 1, 1, 1, 1),
    (1, 32, 1, 16, 16),
    (1, 130, 3, 4, 50),
)
SCAN = Operator(
    scan,
    {"a": "BTD", "b": "BTD", "state": "BD"},
    "a",
    ("fixed", "varying"),
    "BTD",
    scan_cpu,
    ((2, 3, 7), (3, 37, 19), (1, 1, 1), (1, 257, 530), (2, 1023, 33)),
    (2, 4, 3),
    ((2, 0, 3), (0, 4, 3), (2, 4, 0)),
)
WKV = Operator(
    wkv,
    {"r": "BTHK", "k": "BTHK", "v": "BTHV", "log_decay": "BTHK", "u": "HK", "state": "BHKV"},
    "log_decay",
    ("fixed", "varying"),
    "BTHV",
    chunks,
    _HEADS,
    (2, 4, 1, 3, 2),
    _EMPTY,
)
WKV7 = Operator(
    wkv7,
    dict.fromkeys(("r", "log_decay", "k"), "BTHK")
    | {"v": "BTHV", "a": "BTHK", "b": "BTHK", "state": "BHVK"},
    "log_decay",
    ("varying",),
    "BTHV",
    chunks,
    _HEADS,
    (2, 4, 1, 3, 2),
    _EMPTY,
)
OPERATORS = (SCAN, WKV, WKV7)
CASES = [(one, layout) for one in OPERATORS for layout in one.layouts]
NAMES = [f"{one.name} {layout}" for one, layout in CASES]


def mild(given: Problem) -> Problem:
    """Decays away from 0 and 1, which a finite difference must not cross."""
    if "log_decay" in given:
        return given | {"log_decay": given["log_decay"].clamp(min=-2) - 0.01}
    return given | {"a": given["a"].clamp(0.05, 0.95)}


def strided(given: Problem) -> Problem:
    """The same numbers, neither contiguous nor in order."""
    return {
        name: torch.stack([x, x], -1)[..., 0].mT.contiguous().mT if x.dim() > 1 else x
        for name, x in given.items()
    }


def loss(operator: Callable[..., tuple[Tensor, Tensor]], *inputs: Any) -> Tensor:
    """A number that has second derivatives by every input."""
    out, last = operator(*inputs)
    return out.sin().sum() + last.cos().sum()
