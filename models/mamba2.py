"""The Mamba-2 of transformers with ordered decays, and with decays that depend on the position.

Specs name it as `kind = "plkernel.models.mamba2:mamba2"`; `[model.config]` takes what Mamba2Config
does, and `parametrisation` and `scaling_length` (`plkernel.models.spectrum`). With p = A_log, head
k of N, dt the time step and t the position, a head decays by

    a = exp(-exp(p_k) dt t**-alpha_k)

and takes its input times dt, as ever. Without the two options it is Mamba2ForCausalLM itself.
Source: arXiv 2604.07658, definition 4.5, and its code.
"""

from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, get_args

import torch
from torch import Tensor, nn

from plkernel.models import Order
from plkernel.models.layers import BYTES
from plkernel.models.spectrum import (
    Ordered,
    check_scaling_length,
    exponents,
    log_length,
    log_positions,
    scaled,
)

TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id")
"""Special tokens, none of which a byte is."""


def mamba2(options: Mapping[str, Any]) -> nn.Module:
    """A Mamba2ForCausalLM over bytes.

    options: those of Mamba2Config; `parametrisation`; and `scaling_length`, T of the position
    scaling in bytes, None for none. Raises ValueError for an unknown option.
    """
    from transformers import Mamba2Config, Mamba2ForCausalLM

    given = dict(options)
    parametrisation = given.pop("parametrisation", "free")
    length = given.pop("scaling_length", None)
    known = Mamba2Config().to_dict()
    for name in given:
        if name not in known:
            raise ValueError(f"config must have options of Mamba2Config, got {name!r}")
    usual = {"vocab_size": BYTES, **dict.fromkeys(TOKENS), "use_cache": False}
    model = Mamba2ForCausalLM(Mamba2Config(**{**usual, **given}))
    shape_decays_(model, parametrisation, length)
    return model


def shape_decays_(
    model: nn.Module, parametrisation: Order = "free", scaling_length: float | None = None
) -> None:
    """Order the decays of a Mamba2ForCausalLM, scale them by the position, or both, in place.

    Ordered heads keep the decays that they have: ValueError unless A_log rises with the head.
    Scaled decays know no cache, which would have to say how many tokens came before.
    """
    if parametrisation not in get_args(Order):
        raise ValueError(
            f"parametrisation must be one of {', '.join(get_args(Order))}, got {parametrisation!r}"
        )
    check_scaling_length(scaling_length)
    if parametrisation == "free" and scaling_length is None:
        return
    if scaling_length is not None and find_spec("mamba_ssm"):
        raise ValueError(
            "scaling_length must be left out where mamba_ssm is installed, whose kernels know one"
            f" decay for each head, got {scaling_length:g}; uninstall mamba_ssm"
        )
    for mixer in [one for one in model.modules() if hasattr(one, "A_log")]:
        _shape_mixer_(mixer, parametrisation, scaling_length)


def _shape_mixer_(mixer: nn.Module, parametrisation: Order, length: float | None) -> None:
    """Put `Ordered` levels in the place of A_log, or scale it by the position, in place."""
    a_log = mixer.A_log
    if not isinstance(a_log, Tensor):
        raise ValueError(f"A_log must be a parameter, got {type(a_log).__name__}")
    if parametrisation == "ordered":
        ordered = Ordered(a_log.numel()).to(a_log)
        ordered.set_(a_log)
        del mixer.A_log
        mixer.ordered = ordered
    mixer.register_buffer("log_length", log_length(length))
    kind: Any = type(mixer)
    mixer.__class__ = _with_decays(kind)


@cache
def _with_decays(kind: type) -> type:
    """The class of a mixer with `MixerDecays`."""
    return type(kind.__name__, (MixerDecays, kind), {})


class MixerDecays(nn.Module):
    """Form of a mixer's decays: A_log is a function of other parameters, or of time.

    Outside `forward` A_log is that of position 1.
    """

    log_t: Tensor | None = None
    """ln t of the tokens of a forward pass, (T,); None outside of it."""

    if TYPE_CHECKING:
        log_length: Tensor | None

        def __getattr__(self, name: str) -> Any: ...

    @property
    def A_log(self) -> Tensor:  # its name in transformers
        """p (H,), or p - alpha ln t (T,H) while tokens go through."""
        ordered = self._modules.get("ordered")
        levels: Tensor | None = self._parameters.get("A_log") if ordered is None else ordered()
        assert levels is not None
        if self.log_t is None or self.log_length is None:
            return levels
        wide = levels.float()
        return scaled(wide, exponents(wide, self.log_length), self.log_t)

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """As the mixer does; ValueError for a cache beside decays that depend on the position."""
        if self.log_length is None:
            return super().forward(hidden_states, *args, **kwargs)  # type: ignore[misc]
        caches = [kwargs.get(name) for name in ("cache", "cache_params", "past_key_values")]
        if any(one is not None for one in (*args[:1], *caches)):
            raise ValueError(
                "cache must be None where decays depend on the position, which it does not hold:"
                " pass use_cache=False, and the whole text"
            )
        # One decay for each token, which broadcasts against the time steps (B,T,H).
        self.log_t = log_positions(hidden_states, None, torch.float32)[0]
        try:
            return super().forward(hidden_states, *args, **kwargs)  # type: ignore[misc]
        finally:
            self.log_t = None
