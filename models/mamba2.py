"""The Mamba-2 of transformers with ordered decays, and with decays that depend on the position.

Specs name it as `kind = "plkernel.models.mamba2:mamba2"`; `[model.config]` takes what Mamba2Config
does, and `parametrisation` and `scaling_length` (`plkernel.models.spectrum`) and `scaling_of`. With
p = A_log, head k of N, dt = softplus(u + dt_bias) the time step, u its part that depends on the
input, and t the position, a head takes its input times dt and decays by

    a = exp(-exp(p_k) dt)                     without scaling
    a = exp(-exp(p_k) dt t**-alpha_k)         scaling_of "decay", as the source has it
    a = exp(-exp(p_k) dt)                     scaling_of "time_step", where
        dt = softplus(u + dt_bias_k - alpha_k ln t)
    a = exp(-exp(p_k) dt t**-(alpha_k / 2))   scaling_of "both", where
        dt = softplus(u + dt_bias_k - alpha_k / 2 ln t)

With "time_step" the input is scaled with the decay: where dt is small it is dt t**-alpha_k, so that
the sum of a slow head over a span that grows with t does not grow. With "both" it is scaled by the
root of that, with which the root mean square of a sum of independent inputs does not grow. In these
two alpha is that of p_k + ln softplus(dt_bias_k), the logarithm of the rate without an input, whose
order is that of the heads only where their dt_bias are the same, as `spectrum_` sets them. Where dt
is in bfloat16, as under autocast, transformers rounds the bias to 8 bits: neighbouring positions
then share one time step, which is off by up to 3 % where it is small.

Without these options it is Mamba2ForCausalLM itself. Positions are those of the tokens that an
attention mask leaves, so that padding before a text does not move them.
Source: arXiv 2604.07658, definition 4.5, and its code; the scaling of time steps is ours.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from plkernel.models import Order
from plkernel.models.layers import BYTES, modules_with
from plkernel.models.spectrum import (
    ExactBuffers,
    Ordered,
    check_differ,
    check_ordered,
    check_scaling_length,
    exponents,
    log_length,
    log_positions,
    scaled,
)

Scaled = Literal["decay", "time_step", "both"]
"""What the position scales: the decay alone; the time step, which input and decay share; or half of
each.
"""
TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id")
"""Special tokens of transformers, none of which a byte is."""
OVER_BYTES: dict[str, Any] = {"vocab_size": BYTES, **dict.fromkeys(TOKENS), "use_cache": False}
"""Arguments of a configuration of transformers for a model over bytes."""
OWN = ("parametrisation", "scaling_length", "scaling_of")
"""Options of `shape_decays_`."""


def mamba2(options: Mapping[str, Any]) -> nn.Module:
    """A Mamba2ForCausalLM over bytes.

    options: those of Mamba2Config; `parametrisation`; `scaling_length`, T of the position scaling
    in bytes, None for none; and `scaling_of`, what it scales. Raises ValueError for an unknown
    option.
    """
    from transformers import Mamba2Config, Mamba2ForCausalLM

    given = dict(options)
    own = {name: given.pop(name) for name in OWN if name in given}
    known = Mamba2Config().to_dict()
    for name in given:
        if name not in known:
            close = get_close_matches(name, [*known, *OWN], n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise ValueError(f"config must have options of Mamba2Config, got {name!r}{hint}")
    model = Mamba2ForCausalLM(Mamba2Config(**{**OVER_BYTES, **given}))
    shape_decays_(model, **own)
    return model


def shape_decays_(
    model: nn.Module,
    parametrisation: Order = "free",
    scaling_length: float | None = None,
    scaling_of: Scaled | None = None,
) -> None:
    """Order the decays of a Mamba2ForCausalLM, scale them by the position, or both, in place.

    scaling_of: None is "decay". Ordered heads keep the decays that they have: ValueError unless
    A_log rises with the head. Scaled decays know no cache, which would have to say how many tokens
    came before: ValueError for fewer than two heads, and for heads that are all of one A_log, or of
    one rate where time steps are scaled, which have no order to scale them by. Time steps are not
    scaled where `time_step_limit` begins above 0, at which they would stop: ValueError. A model
    without such layers, or that is shaped already, is refused, and left as it is.
    """
    if parametrisation not in get_args(Order):
        raise ValueError(
            f"parametrisation must be one of {', '.join(get_args(Order))}, got {parametrisation!r}"
        )
    check_scaling_length(scaling_length)
    _check_scaling_of(scaling_of, scaling_length)
    if scaling_length is not None and scaling_of is None:
        scaling_of = "decay"
    mixers = mixers_of(model)
    if parametrisation == "free" and scaling_length is None:
        return
    if scaling_length is not None and find_spec("mamba_ssm"):
        raise ValueError(
            "scaling_length must be left out where mamba_ssm is installed, whose kernels take one"
            f" decay and one bias of time steps for each head, got {scaling_length:g}; uninstall"
            " mamba_ssm"
        )
    for mixer in mixers:
        _check_mixer(mixer, scaling_length, scaling_of)
    # All levels before any change: those of one mixer may have another order.
    levels: list[Ordered | None] = [None] * len(mixers)
    if parametrisation == "ordered":
        levels = [_ordered_of(mixer.A_log) for mixer in mixers]
    for mixer, ordered in zip(mixers, levels, strict=True):
        _shape_mixer_(mixer, ordered, scaling_length, scaling_of)


def _check_scaling_of(scaling_of: Any, length: float | None) -> None:
    """ValueError for something that no position scales, or where none does."""
    if scaling_of is None:
        return
    if scaling_of not in get_args(Scaled):
        raise ValueError(
            f"scaling_of must be one of {', '.join(get_args(Scaled))}, got {scaling_of!r}"
        )
    if length is None:
        raise ValueError(
            f"scaling_of must be left out without scaling_length, got {scaling_of!r}; set"
            " scaling_length too, or leave scaling_of out"
        )


def mixers_of(model: nn.Module) -> list[Any]:
    """The layers with A_log and dt_bias; ValueError for a model that has none."""
    wanted = "layers with A_log and dt_bias, as Mamba2ForCausalLM has"
    return modules_with(model, ("A_log", "dt_bias"), wanted)


def _check_mixer(mixer: Any, length: float | None, scaling_of: Scaled | None) -> None:
    """ValueError unless A_log is a parameter, one number for each head, that can be scaled."""
    if isinstance(mixer, MixerDecays):
        raise ValueError(
            "model must have decays that are neither ordered nor scaled yet, got one that"
            " shape_decays_ has changed; build it anew"
        )
    a_log = mixer.A_log
    if not isinstance(a_log, nn.Parameter) or a_log.ndim != 1:
        found = f"shape {tuple(a_log.shape)}" if isinstance(a_log, Tensor) else type(a_log).__name__
        raise ValueError(f"A_log must be a parameter, one number for each head, got {found}")
    if length is None:
        return
    check_scaling_length(length, channels=a_log.numel(), name="num_heads")
    if scaling_of == "decay":
        _check_differ("A_log", a_log)
        return
    dt_bias = mixer.dt_bias
    if dt_bias.shape != a_log.shape:
        raise ValueError(
            f"dt_bias must have the shape of A_log, {tuple(a_log.shape)}, got"
            f" {tuple(dt_bias.shape)}"
        )
    shortest, _ = getattr(mixer, "time_step_limit", None) or (0.0, None)
    if shortest > 0:
        raise ValueError(
            "time_step_limit must begin at 0 where time steps are scaled, which it would stop, got"
            f" {shortest:g}; or scale the decay alone"
        )
    _check_differ("A_log + ln softplus(dt_bias)", log_rates(a_log, dt_bias))


def _check_differ(name: str, levels: Tensor) -> None:
    """`check_differ`, unless nobody knows the numbers yet."""
    if not levels.is_meta:
        check_differ(name, levels.detach())


def log_rates(a_log: Tensor, dt_bias: Tensor) -> Tensor:
    """ln of the rates without an input (H,), A_log + ln softplus(dt_bias), float32 or wider."""
    bias = _wide(dt_bias)
    # From here on down ln softplus(x) is x to rounding, and further down softplus becomes 0.
    is_small = bias < (-15 if bias.dtype == torch.float32 else -35)
    steps = F.softplus(bias.where(~is_small, torch.zeros_like(bias)))
    return _wide(a_log) + torch.where(is_small, bias, steps.log())


def _wide(levels: Tensor) -> Tensor:
    """In float32 or wider."""
    return levels.to(torch.promote_types(levels.dtype, torch.float32))


def _ordered_of(a_log: Tensor) -> Ordered:
    """Ordered levels that are A_log (H,), in its type and on its device."""
    check_ordered(a_log.numel(), "num_heads")
    ordered = Ordered(a_log.numel()).to(a_log)
    return ordered.set_(a_log)


def _shape_mixer_(
    mixer: Any, ordered: Ordered | None, length: float | None, scaling_of: Scaled | None
) -> None:
    """Put `ordered` in the place of A_log, if there is one, and scale, in place."""
    if ordered is not None:
        del mixer.A_log
        mixer.ordered = ordered
    # By their names a reader of a checkpoint knows what is scaled.
    of_decay = log_length(length) if scaling_of in ("decay", "both") else None
    of_step = log_length(length) if scaling_of in ("time_step", "both") else None
    mixer.register_buffer("log_length", of_decay)
    mixer.register_buffer("step_log_length", of_step)
    kind: Any = type(mixer)
    mixer.__class__ = _with_decays(kind)


@cache
def _with_decays(kind: Any) -> Any:
    """The class of a mixer with `MixerDecays`."""
    return type(kind.__name__, (MixerDecays, kind), {})


def _blank_mixer(kind: Any) -> Any:
    """An empty mixer of the class that `_with_decays` makes, for pickle to fill."""
    made = _with_decays(kind)
    return made.__new__(made)


class MixerDecays(ExactBuffers):
    """Form of a mixer's decays: A_log or dt_bias is a function of other parameters, or of time.

    Outside `forward` they are those of position 1.
    """

    EXACT = "log_length", "step_log_length"
    log_t: Tensor | None = None
    """ln t of the tokens of a forward pass, (1,T) or (B,T); None outside of it."""

    if TYPE_CHECKING:
        log_length: Tensor | None

        def __getattr__(self, name: str) -> Any: ...

    @property
    def A_log(self) -> Tensor:  # its name in transformers
        """p (H,), or p - alpha ln t (1,T,H) or (B,T,H) while tokens go through."""
        levels = self._levels()
        if self.log_t is None or self.log_length is None:
            return levels
        return scaled(_wide(levels), self._exponents(), self.log_t)

    @property
    def dt_bias(self) -> Tensor:  # its name in transformers
        """dt_bias (H,), or dt_bias - alpha ln t as `A_log` while tokens go through."""
        bias = self._parameters["dt_bias"]
        assert bias is not None
        if self.log_t is None or self._length_of_steps() is None:
            return bias
        return scaled(_wide(bias), self._exponents(), self.log_t)

    def _exponents(self) -> Tensor:
        """By what A_log or dt_bias falls for each ln t (H,): alpha, or half of it where both do."""
        levels = _wide(self._levels())
        of_steps = self._length_of_steps()
        if of_steps is None:
            assert self.log_length is not None
            return exponents(levels, self.log_length)
        bias = self._parameters["dt_bias"]
        assert bias is not None
        alpha = exponents(log_rates(levels, bias), of_steps)
        return alpha if self.log_length is None else alpha / 2

    def _length_of_steps(self) -> Tensor | None:
        """ln T where time steps are scaled; models that earlier versions pickled lack the name."""
        return self._buffers.get("step_log_length")

    def _levels(self) -> Tensor:
        """p (H,), ordered or not."""
        ordered = self._modules.get("ordered")
        levels: Tensor | None = self._parameters.get("A_log") if ordered is None else ordered()
        assert levels is not None
        return levels

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        """By the class that was shaped: its own is made here, and has no name to be found by."""
        by_class: Any = super().__reduce_ex__(protocol)
        _, _, *filled = by_class
        _, kind = type(self).__bases__
        return _blank_mixer, (kind,), *filled

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """As the mixer does; ValueError for a cache beside decays that depend on the position."""
        if self.log_length is None and self._length_of_steps() is None:
            return super().forward(hidden_states, *args, **kwargs)  # type: ignore[misc]
        given = dict(zip(("cache", "attention_mask"), args, strict=False)) | kwargs
        caches = [given.get(name) for name in ("cache", "cache_params", "past_key_values")]
        if any(one is not None for one in caches):
            raise ValueError(
                "cache must be None where decays depend on the position, which it does not hold:"
                " pass use_cache=False, and the whole text"
            )
        # One number for each token, which broadcasts against the time steps (B,T,H).
        self.log_t = _log_tokens(hidden_states, given.get("attention_mask"))
        try:
            return super().forward(hidden_states, *args, **kwargs)  # type: ignore[misc]
        finally:
            self.log_t = None


def _log_tokens(x: Tensor, mask: Tensor | None) -> Tensor:
    """ln t of the tokens of x (B,T,..), float32: (1,T), or (B,T) of those that a mask (B,T) leaves.

    Padding, where the mask is 0, writes nothing into a state, and has the position before it.
    """
    if mask is None:
        return log_positions(x, None, torch.float32)
    positions = (mask != 0).cumsum(1).clamp(min=1)
    return positions.double().log().float()
