"""The three operators as their tests see them: problems, exact results and the errors that rounding allows.

Letters: B batch, T time, D channels, H heads, K key size, V value size. A shape is (B,T,D) for `scan`, (B,T,H,K,V) for
`wkv` and `wkv7`. Layouts: a fixed decay, or one for each step.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import rounding
import torch
from torch import Tensor
from torch.nn.functional import normalize

from plkernel.kernels.scan import cpu as scan_cpu
from plkernel.kernels.scan import reference, scan
from plkernel.kernels.wkv import cpu as wkv_cpu
from plkernel.kernels.wkv import wkv
from plkernel.kernels.wkv7 import cpu as wkv7_cpu
from plkernel.kernels.wkv7 import wkv7

Shape = tuple[int, ...]
Problem = dict[str, Tensor]
DECAYS = (1e-12, 1e-4, 0.3, 0.9, 0.999, 1 - 1e-5, 1 - 1e-7, 0.0, 1.0)
LOG_DECAYS = (0.0, -1e-7, -math.exp(-8), -0.05, -1.0, -math.exp(2.5), -20.0, -50.0, -80.0, -1e4, -math.inf)


@dataclass(frozen=True)
class Operator:
    """An operator with all that its tests need.

    steps: the inputs with a time axis; equal: shapes at which every backend is compared with float64; small: a shape
    for finite differences and checks of torch; empty: shapes without elements
    """

    name: str
    call: Callable[..., tuple[Tensor, Tensor]]
    cpu: ModuleType
    inputs: tuple[str, ...]
    steps: tuple[str, ...]
    layouts: tuple[str, ...]
    equal: tuple[Shape, ...]
    small: Shape
    middle: Shape
    empty: tuple[Shape, ...]
    draw: Callable[[str, Shape, torch.Generator], Problem]
    bound: Callable[..., tuple[Problem, Problem, float]]

    @property
    def results(self) -> tuple[str, ...]:
        return ("out", "last", *(f"grad_{name}" for name in self.inputs))

    @property
    def decay(self) -> str:
        return "a" if self.name == "scan" else "log_decay"

    def problem(self, layout: str, shape: Shape, dtype: torch.dtype = torch.float32) -> Problem:
        """Inputs and incoming gradients; states, bonus and decays stay float32 (float64 for float64)."""
        given = self.draw(layout, shape, torch.Generator().manual_seed(1))
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        kept = ("u", "state", "grad_last", self.decay)
        return {name: x.to(wide if name in kept else dtype) for name, x in given.items()}

    def run(self, backend: str | None, given: Problem, inputs: Problem | None = None) -> Problem:
        """Results and gradients through the public function."""
        leaves = [(inputs or given)[name].detach().clone().requires_grad_() for name in self.inputs]
        return self.results_of(self.call(*leaves, backend=backend), leaves, given)

    def results_of(self, outputs: tuple[Tensor, Tensor], leaves: list[Tensor], given: Problem) -> Problem:
        incoming = (given["grad_out"], given["grad_last"])
        grads = torch.autograd.grad(outputs, leaves, incoming, allow_unused=True, materialize_grads=True)
        return dict(zip(self.results, (x.detach() for x in (*outputs, *grads)), strict=True))

    def excesses(self, found: Problem, given: Problem, **options: Any) -> dict[str, float]:
        """The largest error of every result as a share of what rounding allows: at most 1, NaN if unwritten."""
        exact, sizes, roundings = self.bound(given, **options)
        double = given["grad_out"].dtype == torch.float64
        arithmetic = torch.float64 if double else torch.float32
        if double:  # the carry has no wider type
            roundings += 2 * given["grad_out"].shape[1]
        return {name: rounding.excess(x, exact[name], sizes[name], roundings, arithmetic) for name, x in found.items()}

    def assert_rounded(self, found: Problem, given: Problem, **options: Any) -> None:
        errors = self.excesses(found, given, **options)
        assert not {name: value for name, value in errors.items() if not value <= 1}, errors


def double(given: Problem) -> Problem:
    return {name: x.double() for name, x in given.items()}


def _draw_scan(layout: str, shape: Shape, random: torch.Generator) -> Problem:
    batch, _, channels = shape
    decays = torch.tensor(DECAYS, dtype=torch.float64)
    picked = torch.arange(channels) if layout == "fixed" else torch.randint(99, shape, generator=random)
    states, inputs = torch.randn((2, batch, channels), generator=random), torch.randn((2, *shape), generator=random)
    names = {"b": inputs[0], "state": states[0], "grad_out": inputs[1], "grad_last": states[1]}
    return names | {"a": decays[picked % len(DECAYS)]}


def scan_truth(given: Problem, stored: Tensor | None = None) -> Problem:
    """Float64 results for the inputs as they are stored; a half type rounds the h that the backward pass reads."""
    half = given["b"].dtype if given["b"].dtype in (torch.bfloat16, torch.float16) else torch.float64
    a, b, state, grad_out, grad_last = (given[name].double() for name in ("a", "b", "state", "grad_out", "grad_last"))
    h, last = reference.forward(a, b, state)
    kept = h.to(half) if stored is None else stored
    grads = reference.backward(a, state, kept.double(), grad_out, grad_last)
    return dict(zip(SCAN.results, (h, last, *grads), strict=True))


def _bound_scan(given: Problem, float32_steps: int = 0, stored: Tensor | None = None) -> tuple[Problem, Problem, float]:
    roundings = rounding.scan_roundings(given["b"].shape[1], float32_steps)
    return scan_truth(given, stored), scan_truth(rounding.magnitudes(given)), roundings


def _draw_wkv(layout: str, shape: Shape, random: torch.Generator) -> Problem:
    batch, time, heads, size, values = shape
    keys, state = (batch, time, heads, size), (batch, heads, size, values)
    value = (*keys[:3], values)
    shapes = {"r": keys, "k": keys, "v": value, "u": keys[2:], "state": state, "grad_out": value, "grad_last": state}
    given = {name: torch.randn(x, generator=random) for name, x in shapes.items()}
    decays = torch.tensor(LOG_DECAYS, dtype=torch.float64)
    picked = torch.arange(heads * size) if layout == "fixed" else torch.randint(99, keys, generator=random)
    return given | {"log_decay": decays[picked % len(decays)].reshape(keys[2:] if layout == "fixed" else keys)}


def _bound_wkv(given: Problem, chunk: int = wkv_cpu.CHUNK, half_sums: int = 0) -> tuple[Problem, Problem, float]:
    """half_sums: steps whose summed logarithms are rounded: |s| e**s is less than the terms of half the logarithms."""
    exact, size = WKV.run("reference", double(given)), rounding.magnitudes(given)
    sizes, n = WKV.run("reference", size), rounding.wkv_roundings(chunk, given["k"].shape[-1], given["v"].shape[-1])
    if half_sums:
        more = WKV.run("reference", size | {"log_decay": size["log_decay"] / 2})
        sizes = {name: x + half_sums / n * more[name] for name, x in sizes.items()}
    return exact, sizes, n


def _draw_wkv7(layout: str, shape: Shape, random: torch.Generator) -> Problem:
    """As the model makes them: normalised kappa, rates from 0 to 1."""
    batch, time, heads, size, values = shape
    keys, value, state = (batch, time, heads, size), (batch, time, heads, values), (batch, heads, values, size)
    shapes = {"r": keys, "k": keys, "v": value, "grad_out": value, "state": state, "grad_last": state}
    given = {name: torch.randn(x, generator=random) for name, x in shapes.items()}
    kappa, rate = normalize(torch.randn(keys, generator=random), dim=-1), torch.rand(keys, generator=random)
    decays = torch.tensor(LOG_DECAYS, dtype=torch.float64)[torch.randint(len(LOG_DECAYS), keys, generator=random)]
    return given | {"a": -kappa, "b": kappa * rate, "log_decay": decays}


def _bound_wkv7(given: Problem, chunk: int = wkv7_cpu.CHUNK) -> tuple[Problem, Problem, float]:
    roundings = rounding.wkv7_roundings(chunk, given["k"].shape[-1], given["v"].shape[-1])
    return WKV7.run("reference", double(given)), rounding.wkv7_sizes(given, chunk), roundings


_EMPTY = ((2, 0, 2, 3, 4), (0, 4, 2, 3, 4), (2, 4, 0, 3, 4), (2, 4, 2, 0, 4), (2, 4, 2, 3, 0))
SCAN = Operator(
    "scan", scan, scan_cpu, ("a", "b", "state"), ("a", "b"), ("fixed", "varying"),
    ((1, 1, 1), (2, 3, 7), (3, 37, 19), (1, 257, 530), (2, 1023, 33)),
    (2, 4, 3), (2, 65, 12), ((2, 0, 3), (0, 4, 3), (2, 4, 0)), _draw_scan, _bound_scan,
)  # fmt: skip
WKV = Operator(
    "wkv", wkv, wkv_cpu, ("r", "k", "v", "log_decay", "u", "state"), ("r", "k", "v", "log_decay"), ("fixed", "varying"),
    ((1, 1, 1, 1, 1), (2, 3, 2, 11, 5), (1, 32, 1, 16, 16), (3, 65, 2, 12, 33), (1, 130, 3, 4, 50)),
    (2, 4, 1, 3, 2), (2, 65, 2, 12, 33), _EMPTY, _draw_wkv, _bound_wkv,
)  # fmt: skip
WKV7 = Operator(
    "wkv7", wkv7, wkv7_cpu, ("r", "log_decay", "k", "v", "a", "b", "state"), ("r", "log_decay", "k", "v", "a", "b"),
    ("varying",), ((1, 1, 1, 1, 1), (2, 3, 2, 11, 5), (1, 32, 1, 16, 16), (2, 65, 2, 12, 33), (1, 100, 2, 20, 7)),
    (2, 4, 1, 3, 2), (2, 65, 2, 12, 33), _EMPTY, _draw_wkv7, _bound_wkv7,
)  # fmt: skip
OPERATORS = (SCAN, WKV, WKV7)
CASES = [(one, layout) for one in OPERATORS for layout in one.layouts]
NAMES = [f"{one.name} {layout}" for one, layout in CASES]


def mild(given: Problem) -> Problem:
    """Decays away from 0 and 1, which a finite difference must not cross."""
    if "log_decay" in given:
        return given | {"log_decay": given["log_decay"].clamp(min=-2) - 0.01}
    return given | {"a": given["a"].clamp(0.05, 0.95)}
