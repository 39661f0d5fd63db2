"""Does the state of a model hold its own past, and nothing else?

Logits of a token must be the same whether the text comes alone or in a batch, whole or in parts
with the state carried, with padding before it or without. What is read is the logits, which is all
that a state is for; tokens and padding are drawn at random, so that a model need not be trained.
"""

import copy
import inspect
import math
import numbers
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from plkernel.analysis.results import Result
from plkernel.common.cli import told

if TYPE_CHECKING:
    from torch import Tensor

Step: TypeAlias = Callable[[Any, "Tensor", Any, "Tensor | None"], "tuple[Tensor, Any]"]
"""(model, tokens (B,T), state, mask) to logits (B,T,V) and the next state.

state: what the call before returned, None for the first. mask: (B,T), false where a token is
padding; None for no padding.
"""
Outcome: TypeAlias = Literal["passed", "failed", "not seen", "not offered"]
CHECKS = ("neighbour", "cut", "left padding")
"""Checks that are made unless others are asked for."""
ALL_CHECKS = (*CHECKS, "padding inside")
CACHES = ("cache", "past_key_values", "cache_params", "state")
"""Names that transformers has for a state, as an argument and in an output."""
ROWS = 2
"""Texts that are read."""
LENGTH = 72
"""Tokens of a text: more than the 64 of a chunk of most kernels."""
PADDING = 5
"""Tokens of padding: more than a convolution of 4 reads."""
EARLY_CUTS = (1, 2, 3)
"""Cuts at which a convolution of 4 still reads what is before the text."""
LEAST = 2 * PADDING + max(EARLY_CUTS)
"""Tokens of a text, at least.

Behind its half there is room for padding and one token more from 2 * PADDING + 1 tokens on; the
others keep every early cut within what padding leaves of the text.
"""
FACTOR = 32.0
"""How much more rounding may do than moving every parameter by one unit of rounding does.

A chunked form adds in another order than a recurrence. Two orders of n random terms have sums that
differ by about sqrt(n / 12) times what moving every term by one unit changes: partial sums have a
mean square of n / 2 terms, and rounding moves each by half a unit at most. 32 are 12,288 terms.
"""
UNITS = 4.0
"""Least change of logits by moving the parameters, in units of rounding of the largest logit.

Moving those of the head changes a logit by about one unit, as every product before it does, with
signs of its own: k products add up to sqrt(k) units. 4 are 16 products.
"""


@dataclass(frozen=True)
class StateCheck:
    """One comparison of logits with those of the text alone and in one call.

    name        the check, one of ALL_CHECKS
    words       what was done to the text
    outcome     passed; failed; `not seen` where even a wrong result would look right; `not offered`
                where the model takes no mask
    difference  the largest difference of a logit; None where there are no logits
    tolerance   what rounding may do
    row, token  the first token whose logits differ by more, counted without padding
    first       the largest difference there
    moved, of   how many tokens differ by more, of how many
    note        what an error said, or why nothing is seen
    """

    name: str
    words: str
    outcome: Outcome
    difference: float | None = None
    tolerance: float = 0.0
    row: int | None = None
    token: int | None = None
    first: float | None = None
    moved: int = 0
    of: int = 0
    note: str = ""

    @property
    def sentence(self) -> str:
        """The outcome in words."""
        head = f"{self.outcome}: {self.words}"
        if self.note:
            return f"{head}: {self.note}"
        if self.outcome == "passed":
            return (
                f"{head}: logits differ by {self.difference:.2g} at most, rounding may do"
                f" {self.tolerance:.2g}"
            )
        return (
            f"{head}: token {self.token} of row {self.row} is the first that differs, by"
            f" {self.first:.2g}; {self.moved} of {self.of} tokens differ, by {self.difference:.2g}"
            f" at most, rounding may do {self.tolerance:.2g}"
        )


@dataclass(frozen=True, repr=False)
class StateChecks(Result):
    """The results of `check_state`, check by check."""

    model: str
    checks: tuple[StateCheck, ...]

    @property
    def failed(self) -> list[StateCheck]:
        """Those that failed, or that could not see a failure."""
        return [one for one in self.checks if one.outcome in ("failed", "not seen")]

    @property
    def passed(self) -> bool:
        """True if none failed."""
        return not self.failed

    def sentences(self) -> list[str]:
        """One for each check."""
        return [one.sentence for one in self.checks]

    def _title(self) -> str:
        made = [one for one in self.checks if one.outcome != "not offered"]
        return f"{self.model}: {len(self.failed)} of {len(made)} checks of its state failed"

    def _table(self) -> list[dict[str, Any]]:
        return [
            {
                "check": one.name,
                "of": one.words,
                "outcome": one.outcome,
                "difference": one.difference,
                "tolerance": one.tolerance,
                "row": one.row,
                "token": one.token,
            }
            for one in self.checks
        ]

    def __repr__(self) -> str:
        return "\n".join([self._title(), *self.sentences()])


def check_state(
    model: Any,
    step: Step | None = None,
    *,
    checks: Sequence[str] = CHECKS,
    tokens: "Tensor | None" = None,
    vocabulary: int | None = None,
    tolerance: float | None = None,
) -> StateChecks:
    """Compare logits of a text in a batch, in parts and behind padding with those of it alone.

    model       one of transformers with a cache, one of plkernel, or with `step` any other
    step        function(model, tokens (B,T), state, mask), which returns logits (B,T,V) and the
                next state; mask (B,T) is false where a token is padding, or None
    checks      among ALL_CHECKS
    tokens      (2,T) texts to read, of 13 tokens or more; drawn, of 72, unless given
    vocabulary  number of tokens to draw from, that of the configuration unless given
    tolerance   of a logit; what rounding does unless given

    The checks:

    neighbour       both texts in a batch, whole and then one token at a time
    cut             the text in two parts, cut after 1, 2, 3, half and all but one of its tokens,
                    and one token at a time, from the first on and after half
    left padding    5 tokens before the text, masked: alone, beside a longer text, and then one
                    token at a time
    padding inside  5 masked tokens between two parts, and at the end of the first part

    Padding holds drawn tokens: a mask must hide any. With a tolerance of None the text is also read
    by a copy whose parameters are all moved by one unit of rounding, up or down (of float64: of
    float32), and logits may differ by FACTOR times what that changes. A check is `not seen` where
    forgetting the state, or leaving out the mask, changes no more than that: weights that are zero
    show nothing, and in bfloat16 rounding does as much as a fault, so give a model in float32.
    `padding inside` is what comes of right padding and of conversations in a batch;
    few models promise it.

    Raises ValueError for arguments of another kind, and for a model whose logits are not finite,
    not the same twice or of another shape than (B,T,V).
    """
    from plkernel.training.foreign import Foreign

    asked = _asked(checks)
    model = model.module if isinstance(model, Foreign) else model
    check_model(model)
    chosen = step or known_step(model)
    texts = _texts(model, tokens, vocabulary)
    _check_tolerance(tolerance)
    with _evaluating(model):
        offered = step is not None or takes_mask(model)
        trial = _Trial.of(model, chosen, texts, tolerance)
        found: list[StateCheck] = []
        for name in asked:
            found += _comparisons(trial, name, offered)
    return StateChecks(type(model).__name__, tuple(found))


def _asked(checks: Sequence[str]) -> list[str]:
    """The checks in their order; ValueError for an unknown one, or none."""
    if isinstance(checks, str) or not isinstance(checks, Sequence) or not checks:
        raise ValueError(
            f"checks must be a list of some of {', '.join(ALL_CHECKS)}, got {checks!r}"
        )
    unknown = {str(one) for one in checks} - set(ALL_CHECKS)
    if unknown:
        raise ValueError(
            f"checks must be among {', '.join(ALL_CHECKS)}, got {', '.join(sorted(unknown))}"
        )
    return [one for one in ALL_CHECKS if one in checks]


def _check_tolerance(tolerance: Any) -> None:
    """ValueError unless it is a finite number above 0, or None."""
    if tolerance is None:
        return
    if not isinstance(tolerance, numbers.Real) or not 0 < float(tolerance) < math.inf:
        raise ValueError(f"tolerance must be a finite number above 0, got {tolerance!r}")


def check_model(model: Any) -> None:
    """ValueError for a class in the place of a model, and for parameters without numbers."""
    from torch import nn

    if isinstance(model, type):
        raise ValueError(f"model must be a model, got the class {model.__name__}; build one of it")
    if isinstance(model, nn.Module) and any(one.is_meta for one in model.parameters()):
        raise ValueError(
            "model must have parameters with numbers, got some on the meta device; load or"
            " initialise it"
        )


def _texts(model: Any, tokens: "Tensor | None", vocabulary: int | None) -> "Tensor":
    """(2,T) tokens, drawn unless given, on the device of the model."""
    import torch

    parameters = getattr(model, "parameters", None)
    first = next(iter(parameters()), None) if callable(parameters) else None
    device = torch.device("cpu") if first is None else first.device
    if tokens is not None:
        shape = tuple(getattr(tokens, "shape", ()))
        fits = len(shape) == 2 and shape[0] == ROWS and shape[1] >= LEAST
        if not fits or not isinstance(tokens, torch.Tensor):
            raise ValueError(
                f"tokens must be a tensor of shape ({ROWS}, T), T at least {LEAST}, got"
                f" {type(tokens).__name__}{shape or ''}"
            )
        return tokens.to(device)
    size = _vocabulary(model) if vocabulary is None else vocabulary
    if not isinstance(size, numbers.Integral) or size < 2:
        hint = "; the model has no config.vocab_size" if size is None else ""
        raise ValueError(f"vocabulary must be the number of tokens, at least 2, got {size!r}{hint}")
    draw = torch.Generator().manual_seed(0)
    return torch.randint(int(size), (ROWS, LENGTH), generator=draw).to(device)


def _vocabulary(model: Any) -> int | None:
    """Number of tokens of a model; None where its configuration does not say it."""
    from plkernel.models.layers import BYTES

    if hasattr(model, "initial_state"):
        return BYTES
    config: Any = getattr(model, "config", None)
    if hasattr(config, "get_text_config"):
        config = config.get_text_config()
    return getattr(config, "vocab_size", None)


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    """Evaluation mode and no gradients; every module is in the mode that it was in afterwards."""
    import torch

    from plkernel.models.layers import evaluating

    is_module = isinstance(model, torch.nn.Module)
    with torch.no_grad(), evaluating(model) if is_module else nullcontext():
        yield


def takes_mask(model: Any) -> bool:
    """True if `forward` has an argument `attention_mask`."""
    return "attention_mask" in _arguments(model)


def takes_cache(model: Any) -> bool:
    """True if `forward` has an argument for a state, by one of the names in CACHES."""
    arguments = _arguments(model)
    return any(one in arguments for one in CACHES)


def _arguments(model: Any) -> dict[str, inspect.Parameter]:
    """Arguments of `forward` by name."""
    forward = getattr(model, "forward", model)
    return dict(inspect.signature(forward).parameters) if callable(forward) else {}


def known_step(model: Any) -> Step:
    """The step of a model of plkernel or of transformers; ValueError for any other model."""
    if hasattr(model, "initial_state"):
        return _plkernel_step
    if not takes_cache(model):
        raise ValueError(
            f"model must take a state, got {type(model).__name__}, whose forward has none of"
            f" {', '.join(CACHES)}; give step=function(model, tokens, state, mask)"
        )
    return _transformers_step


def _plkernel_step(
    model: Any, tokens: "Tensor", state: Any, mask: "Tensor | None"
) -> "tuple[Tensor, Any]":
    """As a model of plkernel is called: it takes no mask."""
    before = model.initial_state(len(tokens)) if state is None else state
    logits, after = model(tokens, before)
    return logits, after


def _transformers_step(
    model: Any, tokens: "Tensor", state: Any, mask: "Tensor | None"
) -> "tuple[Tensor, Any]":
    """As `call_with_cache` calls a model, with the same state.

    Raises ValueError for a model that returns no cache.
    """
    output, mask_so_far = call_with_cache(model, tokens, state, mask)
    after = cache_of(output)
    if after is None:
        raise ValueError(
            f"forward must return one of {', '.join(CACHES)}, got a {type(output).__name__} without"
            " any; give step=function(model, tokens, state, mask)"
        )
    return output.logits, (after, mask_so_far)


def call_with_cache(
    model: Any, tokens: "Tensor", state: Any, mask: "Tensor | None" = None
) -> "tuple[Any, Tensor]":
    """The output of a model of transformers for tokens (B,T), and the mask of all tokens so far.

    state  the cache that the call before returned, and the mask of all tokens up to it; None for
           the first call
    mask   (B,T), false where a token is padding; None for no padding

    It is called as `generate` does: positions count the tokens that are no padding, and the mask is
    that of all tokens so far, where one is padding. A model without positions has no attention that
    looks back: its mask is that of the tokens of this call.
    """
    import torch

    arguments = _arguments(model)
    name = next(one for one in CACHES if one in arguments)
    takes_any = any(one.kind is one.VAR_KEYWORD for one in arguments.values())
    options: dict[str, Any] = {}
    if "use_cache" in arguments or takes_any:
        options["use_cache"] = True
    cache, mask_before = state or (None, tokens[:, :0].bool())
    if cache is not None:
        options[name] = cache
    mask_now = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask
    mask_so_far = torch.cat((mask_before, mask_now), dim=1)
    looks_back = "position_ids" in arguments
    if looks_back:
        positions = (mask_so_far.long().cumsum(1) - 1).clamp(min=0)
        options["position_ids"] = positions[:, -tokens.shape[1] :]
    wanted = mask_so_far if looks_back else mask_now
    if not bool(wanted.all()):
        options["attention_mask"] = wanted.long()
    return model(tokens, **options), mask_so_far


def cache_of(output: Any) -> Any:
    """The cache in the output of a model of transformers; None without one."""
    return next((getattr(output, one) for one in CACHES if hasattr(output, one)), None)


@dataclass(frozen=True)
class _Trial:
    """A model, two texts (2,T), and the logits of each alone, (2,T,V), in float64."""

    model: Any
    step: Step
    texts: "Tensor"
    alone: "Tensor"
    tolerance: float

    @classmethod
    def of(cls, model: Any, step: Step, texts: "Tensor", tolerance: float | None) -> "_Trial":
        """Read each text alone; ValueError for a model that cannot be compared with itself."""
        alone = _read_alone(model, step, texts)
        again = float((_read_alone(model, step, texts) - alone).abs().max())
        # Of a random model a nudge shows the noise too, and would allow it: half of the digits.
        bound = _half_digits(model, alone) if tolerance is None else tolerance
        if again > bound:
            raise ValueError(
                f"model must give the same logits twice, got others by {again:.2g}; rounding may do"
                f" {bound:.2g}"
            )
        allowed = _rounding(model, step, texts, alone) if tolerance is None else tolerance
        return cls(model, step, texts, alone, allowed)

    @property
    def time(self) -> int:
        """Tokens of a text, T."""
        return self.texts.shape[1]

    @property
    def one_by_one(self) -> list[int]:
        """Sizes of parts: half of a text, and then one token at a time."""
        half = self.time // 2
        return [half, *[1] * (self.time - half)]

    def read(self, tokens: "Tensor", sizes: Sequence[int], mask: Any = None) -> "Tensor":
        """Logits (B,T,V) of tokens (B,T) in parts of these sizes."""
        import torch

        state = None
        found = []
        start = 0
        for size in sizes:
            end = start + size
            part = None if mask is None else mask[:, start:end]
            # Logits and tokens are copies: a model may write into both.
            logits, state = self.step(self.model, tokens[:, start:end].clone(), state, part)
            if logits.shape[:2] != tokens[:, start:end].shape:
                raise ValueError(
                    f"logits must be (B,T,V) for tokens {tuple(tokens[:, start:end].shape)}, got"
                    f" {tuple(logits.shape)}"
                )
            found.append(logits.to(torch.float64, copy=True))
            start = end
        return torch.cat(found, dim=1)

    def padded(self, rows: Sequence[int], at: int = 0) -> "tuple[Tensor, Tensor]":
        """Texts, the first with padding before its token `at`, and the mask of them.

        It loses as many tokens at its end.
        """
        import torch

        tokens = self.texts[list(rows)].clone()
        mask = torch.ones_like(tokens, dtype=torch.bool)
        tokens[0, at + PADDING :] = self.texts[rows[0], at : self.time - PADDING]
        # Any tokens will do: here the last of the text, which do not stand there otherwise.
        tokens[0, at : at + PADDING] = self.texts[rows[0], self.time - PADDING :]
        mask[0, at : at + PADDING] = False
        return tokens, mask

    def compared(
        self,
        name: str,
        words: str,
        rows: Sequence[int],
        logits: Callable[[], "Tensor"],
        mask: "Tensor | None" = None,
    ) -> StateCheck:
        """Hold the logits (B,T,V) of texts `rows` against those of each alone.

        mask: (B,T), to leave padding out.
        """
        try:
            found = logits()
        except Exception as error:  # of whatever kind other people's code raises
            return StateCheck(name, words, "failed", note=f"raised {told(error)}")
        kept: list[Tensor] = []
        for index, row in enumerate(rows):
            real = found[index] if mask is None else found[index][mask[index]]
            difference = (real - self.alone[row, : len(real)]).abs().amax(-1)
            kept.append(difference.nan_to_num(nan=float("inf")))
        return self._judged(name, words, rows, kept)

    def _judged(
        self, name: str, words: str, rows: Sequence[int], differences: "list[Tensor]"
    ) -> StateCheck:
        """The outcome from the largest difference of each token, row by row."""
        moved = [one > self.tolerance for one in differences]
        count = sum(int(one.sum()) for one in moved)
        outcome: Outcome = "failed" if count else "passed"
        row = token = first = None
        if count:
            index = next(i for i, one in enumerate(moved) if one.any())
            row = rows[index]
            token = int(moved[index].nonzero()[0])
            first = float(differences[index][token])
        return StateCheck(
            name,
            words,
            outcome,
            difference=max(float(one.max()) for one in differences),
            tolerance=self.tolerance,
            row=row,
            token=token,
            first=first,
            moved=count,
            of=sum(len(one) for one in differences),
        )


def _read_alone(model: Any, step: Step, texts: "Tensor") -> "Tensor":
    """Logits (2,T,V) in float64 of each text alone; ValueError for any other shape, or NaN."""
    import torch

    found = []
    for row in texts.split(1):
        try:
            logits, _ = step(model, row.clone(), None, None)
        except Exception as error:  # of whatever kind other people's code raises
            raise ValueError(
                f"model must read tokens of shape {tuple(row.shape)}, got {told(error)}"
            ) from error
        shape = tuple(getattr(logits, "shape", ()))
        if not isinstance(logits, torch.Tensor):
            raise ValueError(f"model must give logits as a tensor, got {type(logits).__name__}")
        if len(shape) != 3 or shape[:2] != tuple(row.shape):
            raise ValueError(f"model must give logits (1, {row.shape[1]}, V), got {shape}")
        infinite = ~logits.isfinite().all(-1)
        if bool(infinite.any()):
            raise ValueError(
                f"model must give finite logits, got others for {int(infinite.sum())} of"
                f" {row.shape[1]} tokens, first for token {int(infinite.nonzero()[0, 1])};"
                " plkernel.watch(model).findings shows whether decays are NaN"
            )
        found.append(logits.to(torch.float64, copy=True))
    return torch.cat(found)


def _rounding(model: Any, step: Step, texts: "Tensor", alone: "Tensor") -> float:
    """The change of a logit that rounding may cause: FACTOR times that of a nudge of parameters.

    At least FACTOR * UNITS units of rounding of the largest one.
    """
    from torch import nn

    changed = 0.0
    if isinstance(model, nn.Module):
        moved = _nudged(copy.deepcopy(model), _unit(_type_of(model)))
        changed = float((_read_alone(moved, step, texts) - alone).abs().max())
    return FACTOR * max(changed, _least_rounding(model, alone))


def _least_rounding(model: Any, alone: "Tensor") -> float:
    """UNITS units of rounding of the largest logit."""
    return UNITS * _unit(_type_of(model)) * float(alone.abs().max())


def _half_digits(model: Any, alone: "Tensor") -> float:
    """The difference of two logits that have half of their digits in common, of the largest."""
    return math.sqrt(_unit(_type_of(model))) * float(alone.abs().max())


def _type_of(model: Any) -> Any:
    """The type of the first parameter that is no integer; float32 where there is none."""
    import torch
    from torch import nn

    parameters = model.parameters() if isinstance(model, nn.Module) else ()
    return next((one.dtype for one in parameters if one.is_floating_point()), torch.float32)


def _unit(dtype: Any) -> float:
    """The unit of rounding of a type; that of float32 for float64.

    Models in float64 compute parts of their recurrence in float32.
    """
    import torch

    return max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)


def _nudged(model: Any, unit: float) -> Any:
    """Multiply every parameter by 1 + unit or 1 - unit, drawn, in place; return the model."""
    import torch

    draw = torch.Generator().manual_seed(0)
    for values in model.parameters():
        if values.is_floating_point():
            signs = torch.randint(2, values.shape, generator=draw).mul_(2).sub_(1)
            values.mul_(1 + unit * signs.to(values))
    return model


def _comparisons(trial: _Trial, name: str, offered: bool) -> Iterator[StateCheck]:
    """The comparisons of one check. offered: the model takes a mask."""
    if "padding" in name and not offered:
        yield StateCheck(name, name, "not offered", note="forward has no attention_mask")
        return
    makers = {
        "neighbour": _neighbours,
        "cut": _cuts,
        "left padding": _left_padding,
        "padding inside": _inner_padding,
    }
    yield from makers[name](trial)


def _neighbours(trial: _Trial) -> Iterator[StateCheck]:
    """Both texts in one batch; `not seen` where their logits are the same."""
    both = range(ROWS)
    half = trial.time // 2
    apart = float((trial.alone[0] - trial.alone[1]).abs().max())
    if not apart > trial.tolerance:
        note = f"logits of the two texts differ by {apart:.2g}, no more than rounding may do"
        yield StateCheck("neighbour", "a batch", "not seen", apart, trial.tolerance, note=note)
        return
    batch = "two texts in a batch"
    ways = {batch: [trial.time], f"{batch}, one token at a time after {half}": trial.one_by_one}
    for words, sizes in ways.items():
        yield trial.compared("neighbour", words, both, partial(trial.read, trial.texts, sizes))


def _cuts(trial: _Trial) -> Iterator[StateCheck]:
    """The first text in parts, with the state carried from one to the next."""
    half = trial.time // 2
    unseen = _forgotten(trial, half)
    if unseen is not None:
        yield unseen
        return
    last = trial.time - 1
    ways = {
        f"a cut after token {place}": [place, trial.time - place]
        for place in (*EARLY_CUTS, half, last)
    }
    ways["one token at a time"] = [1] * trial.time
    ways[f"one token at a time after {half}"] = trial.one_by_one
    for words, sizes in ways.items():
        yield trial.compared("cut", words, [0], partial(trial.read, trial.texts[:1], sizes))


def _forgotten(trial: _Trial, half: int) -> StateCheck | None:
    """`not seen` where logits are the same without what the first half leaves in the state."""
    rest = trial.read(trial.texts[:1, half:], [trial.time - half])
    changed = float((rest - trial.alone[:1, half:]).abs().max())
    if changed > trial.tolerance:
        return None
    note = f"forgetting {half} tokens changes logits by {changed:.2g}, no more than rounding may do"
    return StateCheck("cut", "cuts", "not seen", changed, trial.tolerance, note=note)


def _left_padding(trial: _Trial) -> Iterator[StateCheck]:
    """The first text behind masked padding, alone and beside the second, which has none."""
    words = f"{PADDING} tokens of padding before a text"
    alone, hidden = trial.padded([0])
    unseen = _unmasked(trial, "left padding", alone, hidden)
    if unseen is not None:
        yield unseen
        return
    both, mask = trial.padded(range(ROWS))
    half = trial.time // 2
    read_alone = partial(trial.read, alone, [trial.time], hidden)
    yield trial.compared("left padding", words, [0], read_alone, hidden)
    beside = f"{words}, beside a longer one"
    ways: dict[str, Sequence[int]] = {
        beside: [trial.time],
        f"{beside}, one token at a time after {half}": trial.one_by_one,
    }
    for way, sizes in ways.items():
        read = partial(trial.read, both, sizes, mask)
        yield trial.compared("left padding", way, range(ROWS), read, mask)


def _unmasked(trial: _Trial, name: str, tokens: "Tensor", mask: "Tensor") -> StateCheck | None:
    """`not seen` where padding that is not masked changes no logit of the text."""
    found = trial.read(tokens, [trial.time])[0][mask[0]]
    changed = float((found - trial.alone[0, : len(found)]).abs().max())
    if changed > trial.tolerance:
        return None
    note = f"padding without a mask changes logits by {changed:.2g}, no more than rounding may do"
    return StateCheck(name, "padding", "not seen", changed, trial.tolerance, note=note)


def _inner_padding(trial: _Trial) -> Iterator[StateCheck]:
    """The first text with masked padding in its middle, beside the second, which has none."""
    half = trial.time // 2
    tokens, mask = trial.padded(range(ROWS), at=half)
    unseen = _unmasked(trial, "padding inside", tokens, mask)
    if unseen is not None:
        yield unseen
        return
    rest = trial.time - half
    after = half + PADDING
    ways: dict[str, Sequence[int]] = {
        f"{PADDING} tokens of padding inside a text": [trial.time],
        f"{PADDING} tokens of padding before a second part": [half, rest],
        f"{PADDING} tokens of padding after a first part": [after, *[1] * (trial.time - after)],
    }
    for words, sizes in ways.items():
        read = partial(trial.read, tokens, sizes, mask)
        yield trial.compared("padding inside", words, range(ROWS), read, mask)
