"""Decays of a live model while it trains: scalars to log, and findings.

Needs torch and numpy alone. Tensors are read where they are: of a DTensor, and of a parameter in
FullyShardedDataParallel, the shard of this process, without a word to the others; tensors on the
meta device once they are there.
"""

import math
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from numbers import Integral
from operator import index
from os import PathLike
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from plkernel.analysis.nodes import check_numbers, check_numbers_or_none
from plkernel.common.files import brief
from plkernel.decays.bare import PARENT, located
from plkernel.decays.checkpoints import Checkpoint
from plkernel.decays.families import BY_INPUT, Family, families_in_words, plain_name
from plkernel.decays.findings import (
    HALF_PRECISION,
    ONE_TOKEN,
    Finding,
    are_equal,
    constant_in_all,
    findings,
    grouped,
    unless_designed,
)
from plkernel.decays.live import parameters_of, tensor_of, tokens_per_step
from plkernel.decays.own import (
    Decays,
    Misfit,
    UnknownDecays,
    check_levels,
    statements,
    unwrapped,
    with_lines,
)
from plkernel.decays.rates import Layer, Located, half_lives, quantiles, said_number
from plkernel.decays.structure import like_decays
from plkernel.decays.tensors import of_tensors, spacing

SHOWN = {"min": 0.0, "p10": 0.1, "p50": 0.5, "p90": 0.9, "max": 1.0}
"""Names of the quantiles of half-lives."""
FEW_TOKENS = 8.0
"""Longest half-life below which a layer has collapsed that began with one LOST times as long.

Of 10,227 layers that runs in runs/records trained, 16 have: of RWKV-7 and Mamba-2 under weight
decay on their decays, which the input moves too.
"""
LOST = 10.0
"""Times that the longest half-life of a layer is shorter than at the start, if it collapsed."""
ELSEWHERE = ("is on the meta device", "this process holds none of it")
"""Ends of the reasons why a tensor of a sharded model is not read."""
COUPLED = frozenset({"alpha", "rho", "lr_decay"})
"""Settings of optimizers that add weight decay to the gradient: RMSprop, Adadelta, Adagrad."""
COUPLED_CLASSES = frozenset({"Adam", "Adamax"})
"""Optimizers of torch that do so, and whose settings may be those of AdamW."""
DECOUPLED = frozenset({"ns_steps"})
"""Settings of optimizers that multiply the parameter although they have momentum: Muon."""
BESIDE = ("D", "Ds", "D_b")
"""Parameters of the module of decays that `decay_param_groups` treats like them."""
FLAT = "_flat_param"
"""Parameter in which FullyShardedDataParallel keeps those of its layers, one after the other."""
CALLER = 4
"""`stacklevel` of a warning: the line that calls the watch, above `__call__` and `read`."""


class watch:
    """Decays of every known layer of `model`: scalars every so many steps, and findings.

    model      any torch.nn.Module with layers of the families that plkernel.inspect reads
    optimizer  with `param_groups`, or a list of several such as Muon and AdamW, all that train the
               model; None if their part is not to be seen
    every      steps between two readings
    steps      length of the schedule, for what weight decay alone makes of the decays by then; None
               if unknown
    context    tokens of a training window, for the share of half-lives beyond it; None if unknown
    step       steps that came before, in a run that goes on
    decays     how those of a layer of your own follow from its parameters, by pattern of their
               names, where * is any text; such a layer is read too:
               {"*.decay": "sigmoid"}                            a form of plkernel.apply
               {"*.A": {"form": "a_log", "dt_bias": "*.dt"}}     what the form needs beside, by
                                                                 pattern or as a number
               {"*.decay": lambda x: torch.sigmoid(x) ** 0.5}    a function from tensors in
                                                                 float64 to decays a, and
                                                                 {"form": f, "gate": "*.gate"} for
                                                                 one that takes more, by name

    A layer whose recurrence takes one step for several tokens says how many in an attribute
    `tokens_per_step` of its own module, as those of plkernel do; the module of stated decays is the
    one that holds their parameter. The same attribute of a module around it does not count.

    Call it after each step: it returns {} or, every `every` steps, floats by name. In each layer,
    over its channels:

    decay/layer3/half_life_p50   quantiles of the half-lives in tokens: min, p10, p50, p90, max; inf
                                 for a decay of 1
    decay/layer3/below_token     share of half-lives below one token; beyond_context: above
                                 `context`
    decay/layer3/moved           share of rates that differ from those at the first reading
    decay/layer3/invalid         share of rates -ln a that are not positive and finite: 0, infinite,
                                 negative, NaN
    decay/layer3/distinct        share of rates that are different numbers: 1 unless some are equal
    decay/layer3/bits            of the narrowest of its tensors: 16 or 32

    and of all tensors of one name, e.g. A_log, by the optimizer:

    decay/A_log/lr, weight_decay   the largest of those in their parameter groups; 0 without a group
    decay/A_log/frozen             share of these tensors that no step changes
    decay/A_log/scale_at_end       (1 - lr weight_decay)**(steps left), at the highest learning rate
                                   that the groups name (max_lr, initial_lr or lr): what decoupled
                                   weight decay alone multiplies them by

    `findings` has those of plkernel.inspect, and of the optimizer; all since the start, each in the
    words of the last reading that saw it. New ones that are wrong are warned of, once each: also a
    layer that has collapsed, whose longest half-life was a token or more and is less, or is below 8
    tokens and a tenth of what it was, and one of your own whose half-lives have become equal; where
    the input moves decays, that is notable alone. `unseen` says which layers cannot be read, and
    why.
    It can be copied and pickled; with a function in `decays`, pickled where that can be: one of a
    module, not a lambda or one within another function.
    Raises ValueError if no layer is known.

    A tensor that falls to the share s of itself takes rates exp(A_log) of 1 .. 16 to 1 .. 16**s: at
    3e-4 x 0.1 x 1e5 steps s is 0.05, and 16 becomes 1.15.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Any = None,
        every: int = 100,
        steps: int | None = None,
        *,
        context: int | None = None,
        step: int = 0,
        decays: Decays | None = None,
    ) -> None:
        check_module(model)
        check_numbers(Integral, every=every, step=step)
        check_numbers_or_none(Integral, steps=steps)
        check_numbers_or_none(context=context)
        if every < 1:
            raise ValueError(f"every must be at least 1, got {every}")
        for name, value in {"step": step, "steps": steps}.items():
            if value is not None and value < 0:
                raise ValueError(f"{name} must be at least 0, got {value}")
        if context is not None and not context > 0:
            raise ValueError(f"context must be above 0, got {context}")
        self.optimizers = optimizers_of(optimizer)
        self.model = model
        self.optimizer = optimizer
        self.every = every
        self.steps = steps
        self.context = context
        self.step = step
        self.findings: list[Finding] = []
        self.unseen: dict[str, str] = {}
        self._decays = decays
        self._checkpoint, self._places = _asked_layers(model, decays)
        self._labels = _labels([module for module, _, _ in self._places])
        self._start: dict[str, np.ndarray] = {}
        self._constant: dict[str, set[str]] = {}
        self._misfits: list[Misfit] = []
        self._pieces: dict[int, _Piece] = {}
        self._shards: dict[int, nn.Parameter] = {}
        self._reported: set[tuple[str, str]] = set()
        self.read()

    def __getstate__(self) -> dict[str, Any]:
        """All attributes; of checkpoint and places, which hold functions, what they are made of."""
        state = vars(self).copy()
        del state["_places"]
        for name in ("_pieces", "_shards"):  # by objects of this process, found at each reading
            state[name] = {}
        state["_checkpoint"] = (self._checkpoint.names, self._checkpoint.config)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        names, config = state["_checkpoint"]
        vars(self).update(state)
        self._checkpoint = of_tensors(dict.fromkeys(names), config)
        self._places = located(self._checkpoint, statements(self._decays))

    def __call__(self, step: int | None = None) -> dict[str, float]:
        """Scalars if a reading is due after this step, else {}.

        Steps are counted unless they are given.
        """
        if step is not None and not isinstance(step, bool):
            with suppress(TypeError, RuntimeError):  # a tensor or array of one whole number is one
                step = index(step)
        check_numbers_or_none(Integral, step=step)
        before = self.step
        self.step = before + 1 if step is None else step
        is_due = self.step % self.every == 0 and self.step != before
        return self.read() if is_due else {}

    def read(self) -> dict[str, float]:
        """Scalars now, whatever the step."""
        layers = {layer.module: layer for layer in self._layers()}
        if self._misfits and not self._start:  # what is stated does not fit: no step was watched
            raise self._misfits[0]
        if not layers:
            self._warn_of_nothing()
        scalars: dict[str, float] = {}
        for module, layer in layers.items():
            for name, value in self._values(layer).items():
                scalars[f"decay/{self._labels[module]}/{name}"] = value
        seen = self._seen(list(layers.values()))
        for layer in layers.values():
            seen += self._collapsed(layer)
        if self.optimizers:
            treated = list(self._treated())
            for one in treated:
                seen += self._of_treatment(one, layers.get(one.module))
            seen += self._of_scales(treated, layers)
            scalars |= self._settings(treated)
        self._report(seen)
        return scalars

    def _values(self, layer: Layer) -> dict[str, float]:
        """Scalars of one layer, by the last part of their names."""
        rates = layer.rates.ravel()
        levels = tuple(SHOWN.values())
        values: dict[str, float] = {}
        for name, value in zip(SHOWN, quantiles(rates, levels).tolist(), strict=True):
            if not np.isnan(value):
                values[f"half_life_{name}"] = value
        for name, where in self._channels(layer.module, rates).items():
            values[name] = float(where.mean())
        values["distinct"] = len(np.unique(rates)) / rates.size
        sizes = [getattr(torch, stored.dtype).itemsize for stored in layer.tensors.values()]
        if sizes:
            values["bits"] = 8.0 * min(sizes)
        return values

    def _channels(self, module: str, rates: np.ndarray) -> dict[str, np.ndarray]:
        """Which channels each of the shares counts; a first reading becomes the start."""
        start = self._start.setdefault(module, rates)
        tokens = half_lives(rates)
        counted = {"below_token": tokens < 1.0, "invalid": ~((rates > 0) & np.isfinite(rates))}
        if self.context is not None:
            counted["beyond_context"] = tokens > self.context
        if start.shape == rates.shape:
            still_none = np.isnan(rates) & np.isnan(start)
            counted["moved"] = (rates != start) & ~still_none
        return counted

    def _seen(self, layers: Sequence[Layer]) -> list[Finding]:
        """Findings of plkernel.inspect that also hold of a live model, whole or in shards."""
        seen = findings(self._checkpoint, layers)
        seen = list(unless_designed(seen, self._constant_since_start(layers)))
        if self.unseen:  # no tensor of these layers was read
            names: set[str] = set()
            for _, _, tensors in self._places:
                names.update(tensors.values())
            seen = [one for one in seen if one.name != "unread" or one.tensor not in names]
        # Initialisations may be identical, and stages of a pipeline have some layers.
        beside = ["identical layers", "missing layers"]
        in_shards = any(hasattr(one, "to_local") for one in self.model.parameters())
        if in_shards or self._pieces or self._shards:
            beside += ["shape", "not as defined"]  # of all shards together
        return [one for one in seen if one.name not in beside]

    def _constant_since_start(self, layers: Sequence[Layer]) -> set[str]:
        """Names of the tensors of one number at the first reading; all of somebody's own layers."""
        names: set[str] = set()
        for layer in layers:
            names |= self._constant.setdefault(layer.module, constant_in_all([layer]))
            if layer.family.own:
                names.update(layer.names.values())
                names.add(" with ".join(layer.names.values()))
        return names

    def _collapsed(self, layer: Layer) -> Iterator[Finding]:
        """A layer whose memory is gone: in all of its channels short now, or one and the same.

        Of known families equal half-lives are a finding of their own, which is wrong.
        """
        first = self._start[layer.module]
        _, longest_first = quantiles(first, (0.0, 1.0))
        _, longest = quantiles(layer.rates, (0.0, 1.0))
        forgets = longest_first >= 1.0 and longest < ONE_TOKEN
        is_far_below = longest < FEW_TOKENS and longest * LOST < longest_first
        is_level = layer.family.own and are_equal(layer.rates) and not are_equal(first)
        if not (forgets or is_far_below or is_level):
            return
        words = f"half-lives of {_span(first)} tokens at the start are {_span(layer.rates)}"
        by_input = any(note.startswith(BY_INPUT) for note in layer.family.notes)
        subject = " with ".join(layer.names.values()) or layer.module
        yield Finding("collapsed", subject, words, "notable" if by_input else "wrong")

    def _warn_of_nothing(self) -> None:
        """Warn once that no layer can be read, unless its tensors are elsewhere or to come."""
        reasons = [why for why in self.unseen.values() if not why.endswith(ELSEWHERE)]
        if reasons and ("unseen", "") not in self._reported:
            self._reported.add(("unseen", ""))
            warnings.warn(
                f"decays at step {self.step:,}: no layer can be read: {reasons[0]}",
                stacklevel=CALLER,
            )

    def _layers(self) -> Iterator[Layer]:
        """Layers as far as they can be read; `unseen` has the others."""
        flat = flattened(self._checkpoint.names)
        self.unseen = {name: flat_words(name) for name in flat}
        self._misfits = []
        self._pieces = _flat_pieces(self.model)
        self._shards = _gathered(self.model)
        for place in self._places:
            try:
                yield self._layer(*place)
            except ValueError as error:
                self.unseen[place[0]] = str(error)
                if isinstance(error, Misfit):
                    self._misfits.append(error)

    def _layer(self, module: str, family: Family, names: Mapping[str, str]) -> Layer:
        """The layer as its tensors are now; ValueError where this process cannot read it.

        names: of the tensors, by role.
        """
        tensors = {}
        splits = set()
        for role, name in names.items():
            found = self._tensor(name)
            if found is None:
                raise ValueError(f"{name}: is no longer in the model")
            piece = self._pieces.get(id(found))
            tensor, split = _local(found) if piece is None else piece.of(found, name)
            splits.add(split)
            if tensor.is_meta:
                raise ValueError(f"{name}: {ELSEWHERE[0]}")
            if not tensor.numel():
                raise ValueError(f"{name}: {ELSEWHERE[1]}")
            if (split and family.whole) or len(splits) > 1:
                raise ValueError(
                    f"{name} must be whole in this process for decays of {family.name}, got a shard"
                )
            tensors[role] = of_tensors({name: tensor}, {}).read(name)
        config = self._checkpoint.config
        tokens = tokens_per_step(self.model, module)
        return Layer(module, family, dict(names), tensors, config, tokens_per_step=tokens)

    def _tensor(self, name: str) -> Tensor | None:
        """The tensor of this name now; None if the model has none any more."""
        try:
            found = tensor_of(self.model, name)
        except AttributeError:
            return None
        found = self._shards.get(id(found), found)
        return found if isinstance(found, Tensor) else None

    def _treated(self) -> Iterator["_Treated"]:
        """Treatment of each parameter of the layers by the optimizers, layer by layer."""
        groups = {}
        classes = {}
        for optimizer in self.optimizers:
            known = _classes_of_torch(optimizer)
            for group in optimizer.param_groups:
                for one in group["params"]:
                    groups[id(one)] = group
                    classes[id(one)] = known
        for module, _, names in self._places:
            for role, name in names.items():
                found = self._tensor(name)
                if found is None:
                    continue
                is_made = not isinstance(found, nn.Parameter)
                for one in parameters_of(self.model, name):
                    parameter: Any = self._shards.get(id(one), one)
                    own = groups.get(id(parameter))
                    known = classes.get(id(parameter), frozenset())
                    learns = parameter.requires_grad
                    yield _Treated(module, role, name, learns, own, known, is_made)

    def _of_treatment(self, one: "_Treated", layer: Layer | None) -> Iterator[Finding]:
        """Findings on the treatment of one tensor of `layer` by the optimizers."""
        if not one.requires_grad:
            yield Finding("frozen", one.name, "requires no gradient", "notable")
        elif one.group is None:
            words = "requires a gradient, and no step changes it"
            if len(self.optimizers) == 1:
                words += "; if another optimizer does, give a list of both"
            yield Finding("not in the optimizer", one.name, words)
        stored = None if layer is None else layer.tensors[one.role]
        if stored is not None and stored.dtype in HALF_PRECISION and not one.is_made:
            lost = (spacing(stored.values, stored.dtype) / 2 > one.peak).sum()
            words = (
                f"is {stored.dtype}: in {lost:,} of {stored.values.size:,} numbers a step of"
                f" {one.peak:g} is rounded away"
            )
            yield Finding("half precision", one.name, words, "notable")
        if self._scale_at_end(one) is None and one.weight_decay and one.moves:
            words = f"is {one.weight_decay:g}, at a learning rate of {one.peak:g}"
            yield Finding("weight decay", one.name, words, "notable")

    def _steps_left(self) -> int | None:
        """Steps of the schedule that are to come; None if its length is unknown."""
        return None if self.steps is None else max(0, self.steps - self.step)

    def _scale_at_end(self, one: "_Treated") -> float | None:
        """Factor of weight decay alone on a tensor in the steps left; None if unknown."""
        left = self._steps_left()
        if left is None or one.is_made or not one.is_decoupled:
            return None
        if not one.moves:
            return 1.0
        return max(0.0, 1.0 - one.peak * one.weight_decay) ** left

    def _of_scales(
        self, treated: Iterable["_Treated"], layers: Mapping[str, Layer]
    ) -> Iterator[Finding]:
        """Findings on half-lives that weight decay alone leaves, for a layer's tensors together."""
        left = self._steps_left()
        scaled: dict[str, dict[str, np.ndarray]] = {}
        told: list[tuple[_Treated, float]] = []
        for one in treated:
            scale = self._scale_at_end(one)
            if scale is not None and scale < 1.0 and one.module in layers:
                values = layers[one.module].tensors[one.role].values
                scaled.setdefault(one.module, {})[one.role] = values * scale
                told.append((one, scale))
        for one, scale in told:
            layer = layers[one.module]
            before = _span(layer.rates)
            after = _span(layer.rates_of(**scaled[one.module]))
            words = (
                f"{one.weight_decay:g} at a learning rate of {one.peak:g} multiplies it by"
                f" {scale:.3g} in {left:,} steps, without any gradient: half-lives of {before}"
                f" tokens become {after}"
            )
            yield Finding("weight decay", one.name, words, "notable")

    def _settings(self, treated: Iterable["_Treated"]) -> dict[str, float]:
        """Scalars of the optimizers by the name of a tensor."""
        alike: dict[str, list[float]] = {}
        for one in treated:
            values = {
                "lr": one.lr,
                "weight_decay": one.weight_decay,
                "frozen": float(not one.moves),
            }
            scale = self._scale_at_end(one)
            if scale is not None:
                values["scale_at_end"] = scale
            for key, value in values.items():
                name = f"decay/{_within(one.name, one.module)}/{key}"
                alike.setdefault(name, []).append(value)
        join: dict[str, Callable[[list[float]], Any]] = {"frozen": np.mean, "scale_at_end": min}
        return {
            name: float(join.get(name.rpartition("/")[2], max)(values))
            for name, values in alike.items()
        }

    def _report(self, seen: Iterable[Finding]) -> None:
        """Keep the findings in their latest words, and warn of those that are wrong, once each.

        One that was wrong stays so, in the words of then, where it is notable now.
        """
        places = {(one.name, one.tensor): at for at, one in enumerate(self.findings)}
        latest = {(one.name, one.tensor): one for one in seen}
        faults = []
        for key, one in latest.items():
            if key not in places:
                self.findings.append(one)
            elif one.severity == "wrong" or self.findings[places[key]].severity != "wrong":
                self.findings[places[key]] = one
            if one.severity == "wrong" and key not in self._reported:
                self._reported.add(key)
                faults.append(one)
        for text in grouped(faults, "wrong"):
            warnings.warn(f"decays at step {self.step:,}: {text}", stacklevel=CALLER)


@dataclass(frozen=True)
class _Treated:
    """A parameter of decays, and the settings of its parameter group: 0 without one.

    classes  names of the classes of torch.optim that its optimizer is of
    is_made  a parametrization makes the decays of it: its numbers are others than theirs
    """

    module: str
    role: str
    name: str
    requires_grad: bool
    group: Mapping[str, Any] | None
    classes: frozenset[str] = frozenset()
    is_made: bool = False

    @property
    def moves(self) -> bool:
        """True if a step changes it."""
        return self.requires_grad and self.group is not None

    @property
    def lr(self) -> float:
        """The learning rate now."""
        return float((self.group or {}).get("lr", 0.0))

    @property
    def weight_decay(self) -> float:
        """The coefficient of weight decay."""
        return float((self.group or {}).get("weight_decay", 0.0))

    @property
    def peak(self) -> float:
        """The highest learning rate that the group names."""
        group = self.group or {}
        return float(group.get("max_lr", group.get("initial_lr", self.lr)))

    @property
    def is_decoupled(self) -> bool:
        """True if weight decay multiplies the parameter, as far as group and class tell."""
        group = self.group or {}
        if "decoupled_weight_decay" in group:
            return bool(group["decoupled_weight_decay"])
        if not DECOUPLED.isdisjoint(group):
            return True
        has_momentum = bool(group.get("momentum"))  # SGD
        is_of_class = not COUPLED_CLASSES.isdisjoint(self.classes)
        return not (has_momentum or is_of_class) and COUPLED.isdisjoint(group)


def check_module(model: Any) -> None:
    """ValueError unless `model` is a torch.nn.Module."""
    if isinstance(model, nn.Module):
        return
    is_saved = isinstance(model, str | PathLike | Mapping)
    hint = "; plkernel.inspect(path) reads the file of a checkpoint" if is_saved else ""
    raise ValueError(f"model must be a torch.nn.Module, got {brief(model)}{hint}")


def optimizers_of(given: Any) -> list[Any]:
    """The optimizers in what a caller gives: one, several in a list or dictionary, or None.

    Raises ValueError for what has no `param_groups`.
    """
    if given is None:
        return []
    several = list(given.values()) if isinstance(given, Mapping) else given
    optimizers = list(several) if isinstance(several, list | tuple) else [several]
    if not optimizers:
        raise ValueError("optimizer must be an optimizer or several, got none; leave it out")
    for one in optimizers:
        if not hasattr(one, "param_groups"):
            raise ValueError(
                "optimizer must be an optimizer with param_groups, or a list of them, got"
                f" {type(one).__name__}"
            )
    return optimizers


def _classes_of_torch(optimizer: Any) -> frozenset[str]:
    """Names of the classes of torch.optim that an optimizer, or the one it wraps, is of."""
    names: set[str] = set()
    for one in (optimizer, getattr(optimizer, "optimizer", None)):
        for kind in type(one).__mro__:
            if kind.__module__.startswith("torch.optim"):
                names.add(kind.__name__)
    return frozenset(names)


def decay_param_groups(
    model: nn.Module,
    weight_decay: float = 0.0,
    decay_lr: float | None = None,
    *,
    decays: Decays | None = None,
) -> list[dict[str, Any]]:
    """Parameter groups for any optimizer: decays without weight decay, others with it.

    Decays are the parameters that plkernel.inspect reads half-lives from (A_log, dt_bias, w0 .., by
    family), D beside them, and any others that are named like decays, of which a warning tells;
    where one is parametrised, what torch.nn.utils.parametrize makes it of.
    `decay_lr` is their learning rate, None for that of the optimizer.
    `decays` states those of a layer of your own, as for `watch`.
    Frozen parameters are in no group.
    Raises ValueError if no layer is known, for numbers below 0, and if `decays` fits no parameter.

    Weight decay pulls a parameter to 0, where nothing makes a decay simpler: A_log = 0 is a rate of
    1, and all heads meet there; dt_bias = 0 is a step of ln 2, 7 to 700 times the 0.001 .. 0.1 that
    Mamba starts with. The official code of Mamba marks A_log, D and dt_bias accordingly
    (`_no_weight_decay`), which no optimizer of torch reads.

    Measured (runs/records/decays-train): with weight decay on its decays too, a small diagonal SSM
    ends 0.022 bits per byte worse; small models of RWKV-7 and Mamba-2 lose 0.0011 or less, although
    their parameters end at half-lives of about 3 tokens. Their decays depend on the input too; it
    was not tested if this is why. Decays at rates from 0 to 10 times the others' end within 0.0009
    of the baseline.
    """
    check_module(model)
    check_numbers(weight_decay=weight_decay)
    check_numbers_or_none(decay_lr=decay_lr)
    for name, number in {"weight_decay": weight_decay, "decay_lr": decay_lr}.items():
        if number is not None and not 0.0 <= number < math.inf:
            raise ValueError(f"{name} must be a number from 0, got {number}")
    _, layers = _asked_layers(model, decays)
    read = _names_in(layers)
    alike = [name for name in named_like_decays(model) if plain_name(name) not in read]
    if alike:
        some = ", ".join(alike[:3]) + (" .." if alike[3:] else "")
        warnings.warn(
            f"{some}: named like decays, but no formula is known for them; they get no weight"
            " decay",
            stacklevel=2,
        )
    of_decays, of_others = _parted(model, read.union(alike))
    spared: dict[str, Any] = {"params": of_decays, "weight_decay": 0.0}
    if decay_lr is not None:
        spared["lr"] = decay_lr
    others: dict[str, Any] = {"params": of_others, "weight_decay": weight_decay}
    return [group for group in (others, spared) if group["params"]]


def _parted(
    model: nn.Module, names: Collection[str]
) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Parameters that are trained: those that have one of these names, and the others."""
    every = model.named_parameters(remove_duplicate=False)  # all names of tied ones
    known = {id(one) for name, one in every if name in names or plain_name(name) in names}
    inside: list[nn.Parameter] = []
    outside: list[nn.Parameter] = []
    for parameter in model.parameters():
        if parameter.requires_grad:
            part = inside if id(parameter) in known else outside
            part.append(parameter)
    return inside, outside


def trainer_callback(trainer: Any, **options: Any) -> Any:
    """Make a transformers.TrainerCallback that logs the scalars of `watch` through `trainer.log`.

    `trainer.add_callback(trainer_callback(trainer, every=100))`; its attribute `watch` has the
    findings. The scalars go wherever those of the trainer go; the schedule is that of the trainer.
    """
    base: Any = import_module("transformers").TrainerCallback

    class WatchCallback(base):  # type: ignore[misc]
        watch: Any = None

        def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
            given = {"steps": state.max_steps, "step": state.global_step, **options}
            self.watch = watch(parts["model"], parts.get("optimizer"), **given)

        def on_step_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
            scalars = {} if self.watch is None else self.watch(state.global_step)
            if scalars:
                # A log takes back that one is due; the loss of this step is logged after it.
                due = control.should_log
                trainer.log(scalars)
                control.should_log = due

    return WatchCallback()


def lightning_callback(**options: Any) -> Any:
    """A Lightning callback that gives the scalars of `watch` to the loggers, at their step.

    `log_dict` of the module would keep them until `log_every_n_steps`, and log them again with
    every later step. With several optimizers a step is one of each, as the loggers count.
    """
    packages = {"lightning": "lightning.pytorch", "pytorch_lightning": "pytorch_lightning"}
    known = [module for package, module in packages.items() if find_spec(package)]
    base: Any = import_module(known[0]).Callback if known else object

    class WatchCallback(base):  # type: ignore[misc]
        watch: Any = None

        def on_train_start(self, trainer: Any, module: nn.Module) -> None:
            steps = trainer.estimated_stepping_batches
            if steps == getattr(trainer, "max_steps", None):  # which counts as global_step does
                steps /= max(1, len(trainer.optimizers))
            given = {
                "steps": int(steps) if np.isfinite(steps) else None,
                "step": _steps_of(trainer),
                **options,
            }
            self.watch = watch(module, list(trainer.optimizers) or None, **given)

        def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
            step = _steps_of(trainer)
            scalars = {} if self.watch is None else self.watch(step)
            if scalars:
                for logger in trainer.loggers:
                    logger.log_metrics(scalars, step=step)

    return WatchCallback()


def _steps_of(trainer: Any) -> int:
    """Steps of each optimizer of a Lightning trainer, whose global_step is that of all together."""
    return int(trainer.global_step) // max(1, len(trainer.optimizers))


def decay_names(model: nn.Module) -> set[str]:
    """Names of the parameters that half-lives are read from, and of D beside them.

    Also of what a parametrization makes such a parameter of.

    Raises ValueError if no layer is known.
    """
    _, layers = layers_of(model)
    names = _names_in(layers)
    every = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    return names.union(name for name in every if plain_name(name) in names)


def _names_in(known: Sequence[Located]) -> set[str]:
    """Names of the tensors of layers, and of D beside those of known families."""
    names: set[str] = set()
    for label, family, tensors in known:
        names.update(tensors.values())
        if not family.own:
            module, _, _ = label.partition(":")
            names.update(f"{module}.{one}".removeprefix(".") for one in BESIDE)
    return names


def named_like_decays(model: nn.Module) -> list[str]:
    """Names of the parameters that look like those of decays, also before a parametrization."""
    return like_decays([name for name, _ in model.named_parameters(remove_duplicate=False)])


def _labels(modules: Sequence[str]) -> dict[str, str]:
    """The part of a scalar's name that stands for a module: short unless two would be alike."""
    short = [_short(module) for module in modules]
    labels = {}
    for label, module in zip(short, modules, strict=True):
        labels[module] = label if short.count(label) == 1 else module
    return labels


def _short(module: str) -> str:
    """layer3 of a module of layer 3, layer3:b of its further decays; the name without a number."""
    name, mark, affix = unwrapped(module).partition(":")
    match = said_number(name)
    return f"layer{match['number']}{mark}{affix}" if match else f"{name}{mark}{affix}" or PARENT


def _within(name: str, module: str) -> str:
    """The name of a tensor in its module."""
    return name.removeprefix(f"{module.partition(':')[0]}.")


def _span(rates: np.ndarray) -> str:
    """The shortest and the longest half-life."""
    shortest, longest = quantiles(rates, (0.0, 1.0))
    return f"{shortest:.3g} .. {longest:.3g}"


def _asked_layers(model: nn.Module, decays: Decays | None) -> tuple[Checkpoint, Sequence[Located]]:
    """`layers_of`; the error tells what to write for a layer of one's own."""
    try:
        return layers_of(model, decays)
    except UnknownDecays as error:
        raise with_lines(
            error,
            "watch = plkernel.watch(model, optimizer, decays=decays)",
            "groups = plkernel.decay_param_groups(model, decays=decays)",
        ) from None


def layers_of(
    model: nn.Module, decays: Decays | None = None
) -> tuple[Checkpoint, Sequence[Located]]:
    """Names and configuration of a live model as a checkpoint, and its layers with decays.

    A parameter that a parametrization makes has its own name, beside that of what it is made of.

    decays: of layers of somebody's own, see `plkernel.decays.own`.

    Raises UnknownDecays, a ValueError, if none.
    """
    stated = statements(decays)
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    names += [name for name, _ in model.named_buffers(remove_duplicate=False)]
    names += [plain_name(name) for name in names if plain_name(name) != name]
    names = list(dict.fromkeys(names))
    checkpoint = of_tensors(dict.fromkeys(names), _settings_of(model))
    flat = flattened(names)
    try:
        known = located(checkpoint, stated)
    except ValueError:  # a flat parameter hides the names that decays are stated by
        if not flat:
            raise
        known = []
    if flat and not known:
        raise ValueError(f"model {flat_words(flat[0])}")
    if not known:
        raise UnknownDecays(
            f"model must have a layer with known decays, got none in {type(model).__name__}; known"
            f" are those of {families_in_words()}",
            list(dict.fromkeys(plain_name(name) for name, _ in model.named_parameters())),
        )
    check_levels(known, names, lambda name: int(tensor_of(model, name).numel()))
    return checkpoint, known


def flattened(names: Iterable[str]) -> list[str]:
    """Those names of parameters that FullyShardedDataParallel gives to several in one."""
    return [name for name in names if name.rpartition(".")[2] == FLAT]


def flat_words(name: str) -> str:
    """Why decays in a flat parameter cannot be read, and what to do."""
    return (
        f"must have parameters of its own, got {name}, in which FullyShardedDataParallel keeps"
        " those of several layers; shard it with fully_shard, or give FullyShardedDataParallel"
        " use_orig_params=True"
    )


def _settings_of(model: nn.Module) -> dict[str, Any]:
    """The configuration of a model or of a part of it, as config.json has it; empty without one.

    The first that names a model_type, else the first. Without dtypes, which say how a file was
    saved: a live model has those of its tensors.
    """
    found: list[Mapping[Any, Any]] = []
    for module in model.modules():
        config: Any = getattr(module, "config", None)
        values = config.to_dict() if hasattr(config, "to_dict") else config
        if isinstance(values, Mapping):
            found.append(values)
    if not found:
        return {}
    chosen = next((one for one in found if "model_type" in one), found[0])
    return {key: value for key, value in chosen.items() if "dtype" not in str(key)}


@dataclass(frozen=True)
class _Piece:
    """The numbers of a parameter that FullyShardedDataParallel has left in this process, in a row.

    shape        of the whole parameter
    first, last  of these numbers among those of the parameter
    """

    shape: tuple[int, ...]
    first: int
    last: int

    def of(self, tensor: Tensor, name: str) -> tuple[Tensor, Any]:
        """The tensor in its shape, and how it is split, as `_local` does.

        Raises ValueError where its numbers are no whole channels.
        """
        held = tensor.detach()
        if held.shape == self.shape or held.numel() == math.prod(self.shape):
            return held.reshape(self.shape), None
        if max(self.shape) != math.prod(self.shape):
            raise ValueError(
                f"{name} must be whole in this process or split by channels, got"
                f" {held.numel():,} numbers of {self.shape} in a row, as FullyShardedDataParallel"
                " keeps them; fully_shard splits by channels"
            )
        return held, (self.first, self.last, max(self.shape))


def _flat_pieces(model: nn.Module) -> dict[int, _Piece]:
    """What FullyShardedDataParallel has left of each parameter in this process, by its id.

    With use_orig_params=True a parameter is a view of its part of the shard, one-dimensional. Only
    torch's own attributes say of what; a torch without them is taken to have no such parameters.
    """
    pieces: dict[int, _Piece] = {}
    for module in model.modules():
        flat = getattr(getattr(module, "_handle", None), "flat_param", None)
        parameters = getattr(flat, "_params", None) or ()
        shapes = getattr(flat, "_shapes", ())
        shards = getattr(flat, "_shard_param_infos", ())
        for parameter, shape, shard in zip(parameters, shapes, shards, strict=False):
            if shard.in_shard:
                bounds = (shard.intra_param_start_idx, shard.intra_param_end_idx)
                pieces[id(parameter)] = _Piece(tuple(shape), *bounds)
    return pieces


def _gathered(model: nn.Module) -> dict[int, nn.Parameter]:
    """The parameter in shards behind each one that fully_shard has gathered, by the latter's id.

    After a forward pass without a backward one, as of an evaluation, gathered parameters may stay
    in the modules, in the type of mixed precision. The optimizer has those in shards. Only torch's
    own attributes say which; a torch without them is taken to have gathered none.
    """
    behind: dict[int, nn.Parameter] = {}
    for module in model.modules():
        state_of = getattr(module, "_get_fsdp_state", None)
        if state_of is None:
            continue
        state = state_of()
        groups = getattr(state, "_fsdp_param_groups", None)  # one, in another attribute, before
        groups = [getattr(state, "_fsdp_param_group", None)] if groups is None else groups
        for group in groups:
            for one in getattr(group, "fsdp_params", ()):
                gathered = getattr(one, "_unsharded_param", None)
                if gathered is not None:
                    behind[id(gathered)] = one.sharded_param
    return behind


def _local(tensor: Any) -> tuple[Tensor, Any]:
    """The shard of a tensor in this process, and how the tensor is split: None if it is whole.

    Splits are equal for tensors whose shards have the same channels.
    """
    if not hasattr(tensor, "to_local"):
        return tensor.detach(), None
    with torch.no_grad():
        local = tensor.to_local()
    if local.shape == tensor.shape and all(one.is_replicate() for one in tensor.placements):
        return local, None
    even = tensor.ndim and len(local) * tensor.device_mesh.size() == len(tensor)
    return local, (str(tensor.placements), "even" if even else tuple(tensor.shape[:1]))
