"""The model that all arms of a study share, as a spec describes it."""

import json
import math
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from plkernel.analysis.limits import RWKV7_LARGEST_RATE, gain_of
from plkernel.analysis.nodes import Gain
from plkernel.common.imports import NAME, is_code
from plkernel.models.words import ModelKind, PatchingMode

Positive = Annotated[int, Field(ge=1)]
# Beyond what any machine trains (a width of 65,536 in 1,024 blocks is 3e13 parameters), and small enough for a spec to
# be checked in seconds.
WIDEST = 2**16
DEEPEST = 2**10
LONGEST_PATCH = 2**16
PositiveNumber = Annotated[float, Field(gt=0)]
KINDS: tuple[str, ...] = get_args(ModelKind)


class Section(BaseModel):
    """A part of a spec: immutable, and closed to keys it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        """pydantic takes true as 1."""
        kinds = _kinds(cls.model_fields[str(info.field_name)].annotation)
        values = value if isinstance(value, list | tuple) else [value]
        if kinds & {int, float} and not kinds & {bool, dict, Any} and any(isinstance(each, bool) for each in values):
            raise PydanticCustomError("number", "must be a number, not true or false")
        return value


def _kinds(annotation: Any) -> set[Any]:
    """The types in an annotation: {tuple, int} for tuple[int, ...]."""
    origin = get_origin(annotation)
    inner = get_args(annotation)[:1] if origin is Annotated else get_args(annotation)
    return {origin or annotation}.union(*map(_kinds, () if origin is Literal else inner))


def check_plain(options: dict[str, Any] | None) -> dict[str, Any] | None:
    """Options for other people's code, as they are; ValueError where JSON would not keep them."""
    try:
        json.dumps(options, allow_nan=False)
    except (TypeError, ValueError):
        raise PydanticCustomError("plain", "must hold finite numbers, texts, lists and tables, as JSON does") from None
    return options


def check_code(name: str | None) -> str | None:
    """A name of code as it is; ValueError where it is none."""
    if name is not None and not NAME.fullmatch(name):
        raise PydanticCustomError("code", "must be module:attribute, as in mypackage.mymodule:function")
    return name


class PatchingSpec(Section):
    """How bytes are grouped into the steps of the recurrence."""

    size: Annotated[int, Field(ge=1, le=LONGEST_PATCH)] = 1
    """Bytes per patch; 1 is no patching."""
    mode: PatchingMode = "causal"
    """causal: a byte sees completed patches only. published: it sees its own target (kept for audit)."""


Rank = Annotated[int, Field(ge=2, le=WIDEST)] | None


class RanksSpec(Section):
    """RWKV-7: ranks of the maps that move what a byte does; left out, those of the official code at this width."""

    decay: Rank = None
    """Of the decay w."""
    rate: Rank = None
    """Of the in-context rate a."""
    value: Rank = None
    """Of the share of the first block's values."""
    gate: Rank = None
    """Of the gate g."""


class ModelSpec(Section):
    """The model that all arms share."""

    kind: ModelKind | str = "ssm"
    """ssm: the diagonal SSM. rwkv5, rwkv6, rwkv7: Eagle, Finch and Goose. module:attribute: a builder of your own, or a
    class of transformers such as transformers:MambaForCausalLM (plkernel/foreign); needs --trust-code."""
    dim: Annotated[int, Field(ge=2, le=WIDEST)] = 96
    """Width, also the state size."""
    layers: Annotated[int, Field(ge=1, le=DEEPEST)] = 4
    """Number of blocks."""
    gain: Gain = "none"
    """Input gain of the recurrence: none 1, ema 1 - a, lru sqrt(1 - a**2)."""
    patching: PatchingSpec = PatchingSpec()
    head_size: Annotated[int, Field(ge=1, le=WIDEST)] = 32
    """RWKV: channels of a head; dim must be a multiple."""
    k_clamp: bool = False
    """RWKV-5 and 6: scale the key by min(1, lambda), an EMA-like input gain."""
    ranks: RanksSpec = RanksSpec()
    config: dict[str, Any] | None = None
    """A model of your own: what its builder is given."""

    @property
    def is_foreign(self) -> bool:
        """Whether it is other people's code that builds the model."""
        return is_code(self.kind)

    @property
    def node_count(self) -> int:
        """How many decays an arm places: one per channel of the state, in an RWKV per channel of a head."""
        return self.dim if self.kind == "ssm" else self.head_size

    @property
    def input_gain(self) -> Gain:
        """What the recurrence multiplies its input by; in an RWKV it follows from the K-clamp."""
        return self.gain if self.kind == "ssm" else gain_of(self.k_clamp)

    @property
    def largest_rate(self) -> float:
        """The decay rate per byte that every channel stays below."""
        return RWKV7_LARGEST_RATE if self.kind == "rwkv7" else math.inf

    @field_validator("kind", mode="after")
    @classmethod
    def _known(cls, kind: str) -> str:
        if is_code(kind):
            check_code(kind)
        elif kind not in KINDS:
            known = f"{', '.join(KINDS)} or module:attribute"
            raise PydanticCustomError("kind", "must be {known}", {"known": known})
        return kind

    _plain = field_validator("config", mode="after")(check_plain)

    @model_validator(mode="after")
    def _of_one_kind(self) -> "ModelSpec":
        of_the_ssm, of_rwkv = ("gain", "patching"), ("head_size", "k_clamp", "ranks")
        foreign = {
            "ssm": ("config", *of_rwkv),
            "rwkv5": ("config", *of_the_ssm, "ranks"),
            "rwkv6": ("config", *of_the_ssm, "ranks"),
            "rwkv7": ("config", *of_the_ssm, "k_clamp"),
        }.get(self.kind, ("dim", "layers", *of_the_ssm, *of_rwkv))
        for name in foreign:
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} does not belong to model kind {self.kind!r}: leave it out")
        if self.kind in KINDS[1:] and self.dim % self.head_size:
            raise ValueError(f"dim {self.dim} must be a multiple of head_size {self.head_size}")
        return self
