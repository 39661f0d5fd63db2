"""Sections of a study spec as pydantic models: corpus, model, training, arm, hypothesis, gate.

Every section is immutable and refuses unknown keys. The text of a field, or below it, is its entry
in the reference.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Annotated, Any, ClassVar, Literal, Self, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    SerializerFunctionWrapHandler,
    ValidationError,
    WithJsonSchema,
    field_serializer,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema

from plkernel.analysis import nodes
from plkernel.common.cli import NAME, counted, is_code, nearest, shortened
from plkernel.common.files import is_utf8, shown
from plkernel.config.toml_types import alternatives_of, is_union, item_type, wrong_alternative
from plkernel.models import Device, ModelKind, Order, PatchingMode, rwkv_nodes
from plkernel.models.kinds import KINDS, LONGEST_CONTEXT, MAMBA2, OF_DECAYS, Kind, kind_of

# Limits beyond what any machine trains, so that a spec is checked in seconds.
WIDEST = 2**16
MOST_STEP_BYTES = 2**28  # of training text, batch * context
MOST_STEPS = 10**12
MOST_WINDOWS = 2**24
MOST_ORDERS = 5  # the longest n-grams that a study is compared with
MOST_ARMS = 4096  # each takes some milliseconds to check, and as many runs as there are seeds
SMALLEST_EPS = 1.2e-38  # the least that float32 holds to all its digits
FOLDER_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,219}"
"""Names of studies and arms: with a rate behind it, within the 255 bytes of file systems."""
NAMING = (
    "must be 1 to 220 letters from A to Z or a to z, digits, '.', '_' and '-', a letter or a digit"
    " first"
)
"""FOLDER_NAME in words."""


def _number(value: Any) -> Any:
    """Refuse true, which pydantic takes as 1."""
    if isinstance(value, bool):
        raise ValueError("must be a number, not true or false")
    return value


def _code(name: str, known: Collection[str] = ()) -> str:
    """Refuse a name of code that is none and not `known`."""
    if name not in known and not NAME.fullmatch(name):
        others = f"{', '.join(known)} or " if known else ""
        raise ValueError(f"must be {others}module:attribute, as in mypackage.mymodule:function")
    return name


def similar_name(name: str) -> str:
    """Words with a FOLDER_NAME that is like `name`; "" where nothing of it is left.

    >>> similar_name("short arm")
    ", such as 'short-arm'"
    """
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("._-")[:220]
    return f", such as {plain!r}" if plain else ""


def _folder(name: str) -> str:
    """Refuse a name that no folder of a study has."""
    if not re.fullmatch(FOLDER_NAME, name):
        raise ValueError(f"{NAMING}{similar_name(name)}")
    return name


def _sentence(text: str) -> str:
    """Refuse a text of several lines, and one that begins or ends with a space."""
    if not re.fullmatch(r"\S(.*\S)?", text):
        raise ValueError("must be one line of text that begins and ends without a space")
    return text


def option(description: str, default: Any = None, **limits: Any) -> Any:
    """A field of a section, with its entry in the reference."""
    return Field(default, description=description, **limits)


Whole = Annotated[int, BeforeValidator(_number)]
Number = Annotated[float, BeforeValidator(_number)]
Positive = Annotated[Whole, Field(ge=1)]
Natural = Annotated[Whole, Field(ge=0)]
PositiveNumber = Annotated[Number, Field(gt=0)]
AtLeastZero = Annotated[Number, Field(ge=0)]
BelowOne = Annotated[Number, Field(ge=0, lt=1)]
Share = Annotated[Number, Field(ge=0, le=1)]
Fraction = Annotated[Number, Field(gt=0, lt=0.5)]
WindowCount = Annotated[Natural, Field(le=MOST_WINDOWS)]
Width = Annotated[Positive, Field(le=WIDEST)]
Rank = Annotated[Whole, Field(ge=2, le=WIDEST)] | None
Sentence = Annotated[str, Field(max_length=200), AfterValidator(_sentence)]
FolderName = Annotated[str, AfterValidator(_folder)]
Plain = dict[str, JsonValue]
Options = dict[str, Any]
Numbers = Annotated[tuple[PositiveNumber, ...], Field(min_length=1)]
Code = Annotated[str, AfterValidator(_code)]
Claim = Literal["lower", "higher", "equal", "lower_by_less", "higher_by_less"]
BOUNDED = ("equal", "lower_by_less", "higher_by_less")
"""Claims of a difference that is smaller than the margin."""
RecallTestName = Literal["capacity", "persistence"]
RecallBitsName = Literal["capacity_bits", "persistence_bits"]
Metric = Literal[
    "val_bpb",
    "test_bpb",
    "excess_bpb",
    "truncation_cost",
    RecallTestName,
    RecallBitsName,
    "position_bpb",
    "reading_on",
    "val_bpb_minimum",
    "test_bpb_minimum",
]
PLAIN_MAMBA2 = "transformers:Mamba2ForCausalLM"
"""Kind of the same model without options of decays."""
MISPLACED = {
    MAMBA2: {
        "position_scaling": "set it in [model] itself",
        "spectrum": "set it in the arm",
    },
    PLAIN_MAMBA2: dict.fromkeys(
        (*OF_DECAYS, "scaling_of", "spectrum"), f"it is for kind {MAMBA2!r}, the same model"
    ),
}
"""Options that `config` of a kind does not have, and where they are given."""
OF_ACCURACY = get_args(RecallTestName)
"""Metrics that are a share of right answers, by the names of the tests of recall."""
OF_RECALL = (*OF_ACCURACY, *get_args(RecallBitsName))
"""Metrics of the tests of recall, which runs on a corpus of recall end with."""
OF_POSITIONS = ("position_bpb", "reading_on")
"""Metrics of runs on a text that end with windows beyond the length of training."""
OF_DISTANCE = (*OF_RECALL, *OF_POSITIONS)
"""Metrics that are taken at so many lengths of training, which `times` says."""
OF_CURVES = ("val_bpb_minimum", "test_bpb_minimum")
"""Metrics of curves over learning rates rather than of runs."""
OF_GATES = tuple(one for one in get_args(Metric) if one not in (*OF_DISTANCE, *OF_CURVES))
"""Metrics that a gate may have: losses of a run within its context."""
FARTHEST = 8
"""Longest sequences of the tests of recall, in multiples of those of training, unless train.beyond
says it.
"""

AIM_OPTIONS = ("target", "kernel", "lag")
"""Options of an arm that say, with beta, which power law it aims at."""
NODE_VALUES = ("node_rates", "node_multipliers", "node_gain")
"""Options of an arm that are a node set together."""
IN_THE_STUDY = ("against", "levels", "rates", "train")
"""Options of an arm that stand elsewhere in the configuration of a run, or nowhere."""
# Defaults by name, for every option that a spec does not give. blinkdl: the demo training scripts
# of the official RWKV code (github.com/BlinkDL/RWKV-LM, RWKV-v5 and RWKV-v7/train_temp), with what
# its optimiser and loss always do. Its README names other values for other data. The peak rate is
# left to the spec.
RECIPES: dict[str, dict[str, Any]] = {
    "blinkdl": {
        "weight_decay": 1e-3,
        "beta1": 0.9,
        "beta2": 0.99,
        "eps": 1e-18,
        "decay_multiplier": 2.0,
        "warmup": 10,
        "warmup_from": 0.01,
        "schedule": "cosine",
        "final_fraction": 0.1,
        "clip": 1.0,
        "l2wrap": 1e-4,
    }
}
OF_AN_ARM = (
    *RECIPES["blinkdl"],
    "decay_weight_decay",
    "decay_dtype",
    "dropout",
    "carry",
    "truncation_windows",
)
"""Options of [train] that may differ between the arms of a study; the learning rate is a field of
the arm.
"""
MAIN_OPTION = {"corpus": "name", "model": "kind", "tuning": "method"}
"""Options of tables that are meant where a text stands in the place of one."""
TABLES = ("hypotheses", "gates", "curriculum")
"""Options that are lists of tables."""
IN_TOML = {
    "model_type": "must be a table",
    "dict_type": "must be a table",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
}
"""Description of a valid value by the type of pydantic's error, in the words of TOML."""


def recall_column(metric: str) -> tuple[str, str]:
    """The test of recall that a metric of OF_RECALL is of, and its column in results.

    >>> recall_column("capacity"), recall_column("capacity_bits")
    (('capacity', 'accuracy'), ('capacity', 'bits'))
    """
    test = metric.removesuffix("_bits")
    return test, "accuracy" if test == metric else "bits"


class Section(BaseModel):
    """A part of a spec: immutable, and closed to unknown keys."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )
    unsaid: ClassVar[tuple[str, ...]] = ()
    """Options that are left out of what is saved where they are at their defaults."""

    @model_serializer(mode="wrap")
    def _without_unsaid(self, handler: SerializerFunctionWrapHandler) -> Any:
        values = handler(self)
        for name in self.unsaid:
            if name in values and getattr(self, name) == type(self).model_fields[name].default:
                del values[name]
        return values

    def refuse(self, names: Iterable[str], reason: str, head: str = "") -> None:
        """Raise ValueError for the first of the fields `names` that is not at its default."""
        for name in names:
            value = getattr(self, name)
            if value != type(self).model_fields[name].default:
                # Whole sections would fill the line.
                items = value if isinstance(value, tuple) else ()
                is_of_sections = any(isinstance(item, Section) for item in items)
                said = name if is_of_sections else f"{name} {value}"
                raise ValueError(f"{head}{said} {reason}")


def is_power_of_two(number: int) -> bool:
    """True of 1, 2, 4, 8 .."""
    return number > 0 and number & (number - 1) == 0


def deep_merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> Options:
    """Return `base` with the values of `over`, table by table."""
    merged = {**base, **over}
    for key, value in base.items():
        if isinstance(value, dict) and isinstance(over.get(key), Mapping):
            merged[key] = deep_merge(value, over[key])
    return merged


def explained(error: ValidationError, root: type[BaseModel], *within: str) -> str:
    """Return pydantic's first errors as one line.

    within: the place of the checked values in a `root`.
    """
    errors = error.errors()
    places = [one["loc"] for one in errors]
    own = []
    for one in errors:
        # Items that are wrong are left out by pydantic, which then calls their list too short.
        depth = len(one["loc"])
        holds_another = any(place[:depth] == one["loc"] != place for place in places)
        if one["type"] != "too_short" or not holds_another:
            own.append(_in_words(one, root, within))
    different = dict.fromkeys(own)  # of an option of several types, pydantic has an error for each
    return shortened("; ".join(list(different)[:8]))


def _in_words(one: Mapping[str, Any], root: type[BaseModel], within: Iterable[str]) -> str:
    """Return one error of pydantic: where, what must be, what was given."""
    place, alternatives = _place(one["loc"], root, within)
    where = ".".join(place)
    if one["type"] == "extra_forbidden":
        return _unknown_key(place, root)
    if one["type"] == "missing":
        return f"{where} is missing"
    if alternatives:
        return wrong_alternative(where, alternatives, one["input"])
    message: str = one["msg"].removeprefix("Value error, ")
    if one["type"] == "value_error" and isinstance(one["input"], dict | BaseModel):
        return message  # of a whole section, which names its options
    if one["type"] == "too_short":
        message = f"must have at least {counted(one['ctx']['min_length'], 'item', 'items')}"
    message = IN_TOML.get(one["type"], message)
    head = f"{where}: " if where else ""
    return f"{head}{message}, got {shown(one['input'])}{_as_table(place, one['input'])}"


def _place(
    loc: Sequence[str | int], root: type[BaseModel], within: Iterable[str]
) -> tuple[list[str], list[Any]]:
    """Return where an error of pydantic is, and the types of which the value there may be one.

    Such a type is the last part of pydantic's own place; the list is empty for other errors.
    """
    place = list(within)
    kind: Any = root
    for name in place:
        kind = _held(kind, name)
    alternatives: list[Any] = []
    for part in loc:
        several = [one for one in alternatives_of(kind) if one is not type(None)]
        if kind is JsonValue:
            kind = Plain  # the part says list or dict, and of both the items are JsonValue again
        elif is_union(kind) and len(several) > 1:
            alternatives = several
            kind = Any
        else:
            alternatives = []
            place.append(str(part))
            kind = _held(kind, part)
    return place, alternatives


def _as_table(place: Sequence[str], given: Any) -> str:
    """Return how a text in the place of a table is written, or one table in that of several.

    Empty for other values.
    """
    if place and place[-1] in TABLES and isinstance(given, Mapping):
        return f": write [[{'.'.join(place)}]]"
    option = MAIN_OPTION.get(place[-1]) if place else None
    if option is None or not isinstance(given, str):
        return ""
    return f": write [{'.'.join(place)}] {option} = {shown(given)}"


def _unknown_key(place: list[str], root: type[BaseModel]) -> str:
    """Return that the key at `place` of a `root` is unknown, and which one may be meant."""
    *tables, key = place
    section: Any = root
    for name in tables:
        section = _held(section, name)
    model = next(one for one in alternatives_of(section) if hasattr(one, "model_fields"))
    where = f"[{'.'.join(tables)}]" if tables else "the top level"
    return f"unknown key {shown(key)} in {where}; {nearest(key, model.model_fields)}"


def _held(kind: Any, part: str | int) -> Any:
    """Return the type of a field of a model, or of an item of a list or a table; Any if unknown."""
    for one in alternatives_of(kind):
        fields = getattr(one, "model_fields", {})
        if part in fields:
            return fields[part].annotation
        if get_origin(one) in (dict, list, tuple):
            return item_type(one)
    return Any


class CorpusSpec(Section):
    """Which bytes, and how they are divided into train, validation and test blocks."""

    name: str = option(
        "stdlib, packages:NAME==VERSION,.., a path, bible:LANGUAGE, synthetic:LAW,..,"
        " hf:NAME[:CONFIG[:SPLIT]], wiki-pt or fineweb.",
        "stdlib",
    )
    max_bytes: Positive | None = option("Take no more than this many bytes.")
    separator: str = option("The byte between documents.", "\n")
    column: str | None = option("The text column of a table.")
    validation: Fraction = option("Share of the corpus that is held out for validation.", 0.05)
    test: Fraction = option("Share of the corpus that is held out for the test figure.", 0.05)
    follow_links: Literal[False] = option(
        "Ignored; kept so that old specs load: links out of a folder are never read.", False
    )

    @field_validator("name")
    @classmethod
    def _without_spaces(cls, name: str) -> str:
        """The name of a synthetic corpus without spaces around its parts; others as they are.

        Raises ValueError for a name that no report could hold.
        """
        if not is_utf8(name):
            raise ValueError("must be a name in UTF-8; rename the file")
        kind, colon, rest = name.partition(":")
        if kind.strip() != "synthetic":
            return name
        return f"synthetic{colon}{','.join(part.strip() for part in rest.split(','))}"

    @property
    def reading(self) -> dict[str, Any]:
        """Arguments of `corpora.load` beside the name."""
        return self.model_dump(include={"max_bytes", "separator", "column"})


class PatchingSpec(Section):
    """Grouping of bytes into the steps of the recurrence."""

    size: Width = option("Bytes per patch; 1 is no patching.", 1)
    mode: PatchingMode = "causal"
    """causal: a byte sees completed patches only. published: it sees its own target (kept for
    audit).
    """


class RanksSpec(Section):
    """RWKV-7: ranks of the low-rank maps that each byte moves.

    Left out, those of the official code at this width.
    """

    decay: Rank = option("Of the decay w.")
    rate: Rank = option("Of the in-context rate a.")
    value: Rank = option("Of the share of the first block's values.")
    gate: Rank = option("Of the gate g.")


class ModelSpec(Section):
    """The model that all arms share."""

    kind: Annotated[ModelKind | str, AfterValidator(lambda kind: _code(kind, KINDS))] = "ssm"
    """ssm: the diagonal SSM. rwkv5, rwkv6, rwkv7: Eagle, Finch, Goose. module:attribute: yours;
    needs --trust-code.
    """
    dim: Whole = option("Width, also the state size.", 96, ge=2, le=WIDEST)
    layers: Positive = option("Number of blocks.", 4, le=2**10)
    gain: nodes.Gain = option(
        "Input gain of the recurrence: none 1, ema 1 - a, lru sqrt(1 - a**2), clamp min(1,"
        " lambda).",
        "none",
    )
    patching: PatchingSpec = PatchingSpec()
    head_size: Width = option("RWKV: channels of a head; dim must be a multiple.", 32)
    k_clamp: bool = option(
        "RWKV-5 and 6: scale the key by min(1, lambda), an EMA-like input gain.", False
    )
    ranks: RanksSpec = RanksSpec()
    parametrisation: Order = "free"
    """SSM, RWKV-7 and the Mamba-2 of plkernel.models.mamba2. free: one number for each decay.
    ordered: gaps between one and the next, so that training keeps their order (PoST, arXiv
    2604.07658), in RWKV-7 but for the zigzag of heads.
    """
    position_scaling: bool = False
    """In the same models: decays slow down with the position in a window, from not at all for the
    fastest to 1 / position for the slowest (PoST). Half-lives are stated at scaling_length."""
    scaling_length: Annotated[Whole, Field(ge=2, le=LONGEST_CONTEXT)] | None = option(
        "position_scaling: length of training in bytes; left out, train.context."
    )
    config: Plain | None = option("A model of your own: arguments of its builder.")
    unsaid = OF_DECAYS

    @property
    def is_foreign(self) -> bool:
        """True where other people's code builds the model."""
        return is_code(self.kind)

    @property
    def of_kind(self) -> Kind:
        """Properties of its kind."""
        return kind_of(self.kind)

    @property
    def node_count(self) -> int:
        """Number of decays that an arm places: channels of the state, in an RWKV of a head."""
        count: int = getattr(self, self.of_kind.node_option)
        return count

    @property
    def heads(self) -> tuple[int, int]:
        """Number of heads and decays in each; a model without heads is one."""
        return self.dim // self.node_count, self.node_count

    @property
    def input_gain(self) -> nodes.Gain:
        """Factor on the input of the recurrence; in an RWKV it follows from the K-clamp."""
        return rwkv_nodes.gain_of(True) if self.k_clamp else self.gain

    @property
    def is_causal(self) -> bool:
        """False where patches show bytes their own target; those models have no state either."""
        return self.patching.mode == "causal" or self.patching.size == 1

    @property
    def scaled_over(self) -> int | None:
        """T of the position scaling in bytes, None without it; ValueError where nobody says."""
        if self.position_scaling and self.scaling_length is None:
            raise ValueError(
                "scaling_length must be given where nothing is trained and position_scaling is on:"
                " it is train.context otherwise"
            )
        return self.scaling_length

    @model_validator(mode="after")
    def _of_one_kind(self) -> Self:
        known = self.of_kind.options
        for name, field in ModelSpec.model_fields.items():
            if name not in known and getattr(self, name) != field.default:
                is_plain = self.kind == PLAIN_MAMBA2 and name in OF_DECAYS
                hint = f"; set kind = {MAMBA2!r}, the same model with it" if is_plain else ""
                raise ValueError(
                    f"{name} must be left out for model kind {self.kind!r}, to which it does not"
                    f" belong{hint}"
                )
        for name, place in MISPLACED.get(self.kind, {}).items():
            if name in (self.config or {}):
                raise ValueError(f"config.{name} must be left out, got it there: {place}")
        if self.scaling_length is not None and not self.position_scaling:
            raise ValueError(
                "scaling_length must be left out without position_scaling, got"
                f" {self.scaling_length}; set that, or leave it out"
            )
        if self.scaling_length is not None and self.scaling_length <= self.patching.size:
            raise ValueError(
                f"scaling_length must be more than one patch of {self.patching.size} bytes, got"
                f" {self.scaling_length}"
            )
        if "head_size" in known and self.dim % self.head_size:
            raise ValueError(f"dim {self.dim} must be a multiple of head_size {self.head_size}")
        return self


class Stage(Section):
    """A part of training on a corpus of recall, with sequences of its own."""

    share: Annotated[Number, Field(gt=0, le=1)] = Field(description="Share of the steps.")
    length: Positive = Field(
        description="Bytes of a sequence; a step has as many bytes as in the rest of training."
    )
    pairs: Annotated[tuple[Positive, ...], Field(min_length=1)]
    """Numbers of pairs, of which every step draws one."""


def steps_of(steps: int | None, bytes_read: int | None, batch: int, context: int) -> int:
    """The steps of a run: `steps`, or without them as many whole ones as read so many bytes."""
    return steps or (bytes_read or 0) // (batch * context)


class TrainSpec(Section):
    """The training protocol, the same for every arm."""

    unsaid = ("beyond", "curriculum")

    recipe: Literal["blinkdl"] | None = option(
        "Defaults of all options not given; blinkdl: official RWKV scripts."
    )
    context: Whole = option("Bytes predicted per window.", 512, ge=2, le=LONGEST_CONTEXT)
    batch: Positive = option("Windows per step.", 8, le=MOST_STEP_BYTES)
    steps: Positive | None = option("Stop after this many steps (bit-reproducible on a CPU).")
    bytes: Positive | None = option(
        "Stop after this many bytes of training text instead (in whole steps)."
    )
    learning_rate: PositiveNumber = option("Peak learning rate of AdamW.", 3e-4)
    weight_decay: AtLeastZero = 0.01
    """Weight decay, on true matrices only (.weight, two or more dimensions above 1); with 0, AdamW
    is Adam.
    """
    beta1: BelowOne = option("First-moment decay of AdamW.", 0.9)
    beta2: BelowOne = option("Second-moment decay of AdamW.", 0.999)
    eps: Number = option("Constant that AdamW adds to the root of the second moment.", 1e-8)
    decay_multiplier: AtLeastZero | None = None
    """Learning rate of log_rate, time_decay or w0 as a multiple, 0 freezes them; the scheme's if
    left out. In other people's models it acts on the decays that plkernel.watch finds by name."""
    decay_weight_decay: AtLeastZero = 0.0
    """Weight decay on these decays, as a multiple of weight_decay."""
    decay_dtype: Literal["float32", "bfloat16"] = "float32"
    """Type these decays are kept in between steps; a bfloat16 has 8 bits, and AdamW computes in
    float32.
    """
    warmup: Natural = option("Steps of linear warm-up.", 0)
    warmup_from: Share | None = None
    """Warm up from this share of the peak, before the schedule; left out: from 1 / (warmup + 1),
    within it.
    """
    schedule: Literal["cosine", "exponential", "linear", "constant"] = "cosine"
    """Learning rate from the peak to its final fraction."""
    final_fraction: Share = option(
        "Where the schedule ends, as a share of the peak; a constant one has no end.", 0.1
    )
    clip: PositiveNumber = option("Largest gradient norm.", 1.0)
    l2wrap: AtLeastZero = 0.0
    """Pull on the largest logit z of every position: l2wrap * z / (batch * context) is added to its
    gradient.
    """
    dropout: BelowOne = option("RWKV: dropout on the embedding and after every residual sum.", 0.0)
    carry: bool = False
    """Carry the state from one window to the next, detached between steps (truncated
    backpropagation through time): each row of a batch reads on where it stopped, so that data come
    in another order. Windows of evaluation begin without a state, as in other runs."""
    eval_every: Positive = option("Steps between evaluations; each one saves a checkpoint.", 500)
    eval_windows: WindowCount = option("Validation windows, evenly spaced and fixed.", 32, ge=1)
    test_windows: WindowCount = option("Test windows, evaluated once, at the end.", 128, ge=1)
    final_windows: WindowCount = 0
    """Validation windows of `final_val_bpb`, which then comes with a standard error over them: as
    many of these as are disjoint, so that 16777216 is the whole split. 0: those of eval_windows."""
    average: Share = 0.0
    """Share of the steps, the last ones, over whose weights the mean is taken for all figures at
    the end but the last row's; a checkpoint keeps it beside the last weights. 0: the last
    weights."""
    truncation_windows: WindowCount = 0
    """Places of the test text at which, at the end, bits per byte are taken with 1, 2, 4 .. context
    bytes given.
    """
    probe_windows: WindowCount = 0
    """Windows of the test text in which, at the end, one byte at a time is replaced, for its
    influence against lag.
    """
    beyond: Annotated[Positive, Field(le=2**10)] | None = None
    """Longest windows that are evaluated at the end, in multiples of context. A text: bits per byte
    by position; 1, or left out, is none. A corpus of recall: accuracy at 1, 2, 4 .. times the
    length; 8 if left out."""
    curriculum: tuple[Stage, ...] = ()
    """Stages with which training on a corpus of recall begins. What their shares leave of the steps
    has the sequences of the corpus."""
    device: Device = option("auto takes a GPU when there is one.", "auto")
    backend: str | None = option(
        "Implementation of the scan: cpu, gpu or reference; left out, the one for the device."
    )
    compile: bool | Literal["auto"] = option(
        "torch.compile of the model in training: faster, sums in another order. auto: on a GPU"
        " alone, in runs of which bytes times layers times width are 3e12 or more, and not other"
        " people's models.",
        False,
    )
    threads: Positive = option(
        "CPU threads of a run; part of its identity, as sums depend on it.", 1, le=2**10
    )

    @property
    def total_steps(self) -> int:
        """Steps of the whole run."""
        return steps_of(self.steps, self.bytes, self.batch, self.context)

    @field_serializer("curriculum")
    def _stages_as_json_has_them(self, stages: tuple[Stage, ...]) -> list[Options]:
        """Lists, so that a configuration equals what is read back from its file."""
        return [{**dict(stage), "pairs": list(stage.pairs)} for stage in stages]

    def stage_at(self, step: int) -> Stage | None:
        """Return the stage of the curriculum at a step, from 0; None behind the last one."""
        for stage, end in zip(self.curriculum, self.stage_ends, strict=True):
            if step < end:
                return stage
        return None

    @property
    def stage_ends(self) -> list[int]:
        """Steps until the end of each stage of the curriculum."""
        shares = accumulate(stage.share for stage in self.curriculum)
        return [round(share * self.total_steps) for share in shares]

    @property
    def changes_decays(self) -> bool:
        """True if decays are trained in another way than the rest or than their scheme says."""
        return (
            self.decay_multiplier is not None
            or self.decay_weight_decay > 0
            or self.decay_dtype != "float32"
        )

    @model_validator(mode="before")
    @classmethod
    def _with_recipe(cls, values: Any) -> Any:
        """Fill in the options of the recipe that are not given.

        Saved specs may have a null for a budget in minutes, which is left out.
        """
        if not isinstance(values, dict):
            return values
        recipe = values.get("recipe")
        defaults = RECIPES.get(recipe, {}) if isinstance(recipe, str) else {}
        given = dict(values)
        if "minutes" in given and given["minutes"] is None:
            del given["minutes"]
        return defaults | given

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        self._check_budget()
        if self.eps < SMALLEST_EPS:
            raise ValueError(
                f"eps must be at least {SMALLEST_EPS}, the least that float32 holds, got {self.eps}"
            )
        if self.schedule == "exponential" and self.final_fraction == 0:
            raise ValueError(
                "final_fraction must be above 0 with schedule 'exponential', got 0.0: 'linear'"
                " reaches 0"
            )
        shares = sum(stage.share for stage in self.curriculum)
        if shares > 1 + 1e-9:  # a sum of decimal fractions may exceed 1 by rounding
            raise ValueError(f"shares of the curriculum must add up to 1 at most, got {shares:g}")
        self._check_stages()
        self._check_effects()
        return self

    def _check_stages(self) -> None:
        """Raise ValueError for a stage of the curriculum that is shorter than a step."""
        before = 0
        for stage, end in zip(self.curriculum, self.stage_ends, strict=True):
            if end == before:
                raise ValueError(
                    f"share of the curriculum's length {stage.length} must be enough for a step,"
                    f" {1 / self.total_steps:.2g} of {self.total_steps}, got {stage.share:g}"
                )
            before = end

    def _check_budget(self) -> None:
        """Raise ValueError where steps and bytes do not say how long, or a step is too large."""
        step = self.batch * self.context
        if (self.steps is None) == (self.bytes is None):
            raise ValueError(
                f"exactly one of steps and bytes must be given, got {self.steps} and {self.bytes}"
            )
        if step > MOST_STEP_BYTES:
            raise ValueError(
                f"batch * context must be at most {MOST_STEP_BYTES} bytes in a step, got {step}:"
                " lower one"
            )
        if self.total_steps > MOST_STEPS:
            raise ValueError(
                f"steps must be at most {MOST_STEPS:,}, got {self.total_steps:,}: lower steps or"
                " bytes"
            )
        if self.bytes is not None and self.bytes < step:
            raise ValueError(
                f"bytes must be a step or more, batch * context {step}, got {self.bytes}"
            )

    def _check_effects(self) -> None:
        """Raise ValueError for an option without effect, unless the recipe sets it."""
        recipe = RECIPES.get(self.recipe or "", {})
        for name, is_unused, cause in (
            ("warmup_from", not self.warmup, "warmup 0"),
            ("final_fraction", self.schedule == "constant", "schedule 'constant'"),
            ("decay_weight_decay", not self.weight_decay, "weight_decay 0"),
            ("decay_weight_decay", self.decay_multiplier == 0, "decay_multiplier 0"),
        ):
            if is_unused and getattr(self, name) != recipe.get(name):
                self.refuse([name], f"has no effect with {cause}: leave it out", "train.")


class Arm(Section):
    """One condition: where the decays are placed and how the projection is shaped."""

    placement: nodes.Placement | None = None
    """Node set of the half-lives; quantile: of the power law's own measure; concentrated: the
    published groups. Left out: log-spaced, in an RWKV those of its scheme."""
    projection: nodes.Projection = "uniform"
    """Shape of the projection's columns, in an RWKV of the receptance's rows; quantile nodes shape
    it by tempering.
    """
    beta: PositiveNumber = option("Exponent of the power law.", nodes.BETA)
    shortest: PositiveNumber = option(
        "Shortest half-life of log-spaced nodes, in bytes; in RWKV-7 1.15 or more.", nodes.SHORTEST
    )
    longest: PositiveNumber = option(
        "Longest half-life of log-spaced nodes, in bytes.", nodes.LONGEST
    )
    spectrum: PositiveNumber | None = None
    """SSM, RWKV-7 and the Mamba-2 of plkernel.models.mamba2: evenly on a logarithmic scale from the
    shortest time constant up to this multiple of the training context (PoST, arXiv 2604.07658). In
    an SSM that gives shortest and longest, in RWKV-7 the scheme rwkv7_post, whose zigzag makes the
    longest 12 times as long, in Mamba-2 the init spectrum_ of plkernel.models.init.mamba2."""
    tempering: Share | None = None
    """Quantile nodes: 1 puts the law into the density of the nodes (the default; RWKV: 0.5), 0 into
    the projection.
    """
    loss: Fraction | None = option(
        "Quantile nodes: share of the kernel lost beyond either end; 0.05 if left out."
    )
    max_lag: Annotated[Number, Field(gt=1)] | None = None
    """Quantile nodes: longest lag, in bytes; 2048 if left out. RWKV: how far a power law must hold.
    """
    target: nodes.AimTarget | None = None
    """information: the kernel has the exponent beta (the default); correlation: beta/2 (the default
    of an RWKV).
    """
    kernel: nodes.Summation | None = None
    """coherent: the law holds for the plain sum over channels (the default); rms: for random signs
    (RWKV).
    """
    lag: nodes.Lag | None = None
    """Lag t is seen as; state: a**t (the default); distance: a**(t-1) (RWKV-7); bonus: a**(t-2)
    (RWKV-5 and 6).
    """
    match: str | None = option(
        "Scale to the output standard deviation of this arm; baseline: the one compared with."
    )
    output_std: PositiveNumber | None = None
    """Output standard deviation to scale to, for unit white input, over sqrt(N); set from match
    where that is given.
    """
    node_file: str | None = option(
        "JSON file with nodes, by plkernel.fit; relative to the working directory."
    )
    node_rates: Numbers | None = option(
        "Decay rates per byte, one per channel; filled in from node_file."
    )
    node_multipliers: Numbers | None = option(
        "Projection multipliers of these nodes; filled in from node_file."
    )
    node_gain: nodes.Gain | None = option(
        "The input gain that these nodes assume; filled in from node_file."
    )

    scheme: str | None = None
    """The initialisation (plkernel.init list); transformers_default, rwkv_blinkdl or rwkv7_official
    if left out.
    """
    scheme_options: dict[str, float] | None = option(
        "Free constants of the scheme, as in { base_width = 64 }."
    )
    init: Code | None = option(
        "Your function, module:attribute, to change the initialised model; needs --trust-code."
    )
    init_options: Plain | None = option("Further arguments of that function, by name.")
    learning_rate: PositiveNumber | None = option(
        "Peak learning rate of this arm; left out: train.learning_rate."
    )
    rates: Annotated[tuple[PositiveNumber, ...], Field(min_length=2)] | None = None
    """Learning rates to try for this arm, as many as tuning.rates; not beside a learning_rate."""
    bonus: nodes.Bonus | None = option(
        "RWKV-5 and 6: u of the scheme, or law: 2**exponent, distance 1 on the law."
    )
    shape_on: Literal["receptance", "columns", "multiplier"] | None = None
    """Where the shape goes. SSM: columns of the projection (the default) or a fixed multiplier of
    every state. RWKV: receptance."""

    model: dict[str, Any] | None = option(
        'Options of [model] that differ in this arm, as in { gain = "ema" }.'
    )
    corpus: dict[str, Any] | None = option("Options of [corpus] that differ in this arm.")
    train: dict[str, Any] | None = option(
        "Options of [train] that differ in this arm, of optimisation alone."
    )
    against: str | None = option("The arm it is compared with; the study's baseline if left out.")
    levels: dict[str, str] | None = option("Its level of every factor; filled in from [factors].")
    unsaid = ("spectrum",)

    @property
    def places_nodes(self) -> bool:
        """True where the arm says where the decays are.

        An RWKV otherwise keeps those of its scheme.
        """
        return self.placement is not None or self.node_rates is not None

    @property
    def shapes(self) -> bool:
        """True where the projection is to carry a power law rather than to be uniform."""
        return (
            self.placement in ("quantile", "terms")
            or self.projection != "uniform"
            or self.node_rates is not None
        )

    @property
    def law(self) -> nodes.Aim | None:
        """The power law of the arm, as `resolve` completes it; None without one."""
        if not self.shapes:
            return None
        target = self.target or "information"
        kernel = self.kernel or "coherent"
        return nodes.Aim(self.beta, target, kernel, self.lag or "state")


class MeasuredNumber(Section):
    """One number of every run of an arm, in bits per byte.

    On a corpus of recall it is in bits per answer, or a share of right answers.
    """

    unsaid = ("times", "distance")

    name: Sentence
    """A sentence or a word that no other one has."""
    arm: str
    """The arm it is about. Of a hypothesis also the name that arms share without their levels of
    `within`: the mean over these, in seeds that have them all."""
    metric: Metric = "val_bpb"
    """val_bpb, test_bpb; excess_bpb: validation above the floor of a known corpus; truncation_cost:
    bits per byte when only `bytes` bytes are given, minus those with the whole context; capacity
    and persistence: accuracy, from 0 to 1, of a test at the end of a run on a corpus of recall;
    capacity_bits and persistence_bits: bits per answer in the same tests, where less is better;
    position_bpb and reading_on, with train.beyond: bits per byte at the bytes behind the first
    half of `times` contexts, and what is lost there by having read more than a context;
    val_bpb_minimum and test_bpb_minimum: of a curve over learning rates, tuning.method 'curve',
    whose name is that of its arm in the spec."""
    bytes: Positive | None = option("truncation_cost: how many bytes are given.")
    times: Positive | None = option(
        "capacity, persistence and their bits: the length of the test, in lengths of training: 1,"
        " 2, 4 .. position_bpb, reading_on: how far from the beginning of a window, in the same"
        " unit."
    )
    distance: Positive | None = option(
        "capacity, persistence and their bits: only queries at most so many bytes behind their"
        " pair, a power of two, and more than half of that; all of them if left out."
    )
    step: Natural | None = option(
        "The evaluation that counts, of val_bpb and excess_bpb; the last if left out."
    )

    def _check_metric(self) -> None:
        """Raise ValueError for a metric that is none of this section."""

    @model_validator(mode="after")
    def _of_its_metric(self) -> Self:
        self._check_metric()
        head = f"{self.name!r}: "
        out_of_place = f"does not belong to metric {self.metric!r}: leave it out"
        if self.metric != "truncation_cost":
            self.refuse(["bytes"], out_of_place, head)
        elif self.bytes is None:
            raise ValueError(
                f"{head}bytes must be given with metric 'truncation_cost', such as 32, got none"
            )
        if self.metric not in OF_DISTANCE:
            self.refuse(["times"], out_of_place, head)
        elif self.times is None or not is_power_of_two(self.times):
            raise ValueError(
                f"{head}times must be 1, 2, 4 or another power of two with metric"
                f" {self.metric!r}, got {self.times}"
            )
        elif self.metric == "reading_on" and self.times == 1:
            raise ValueError(f"{head}times must be 2 or more with metric 'reading_on', got 1")
        if self.metric not in OF_RECALL:
            self.refuse(["distance"], out_of_place, head)
        elif self.distance is not None and (
            self.distance == 1 or not is_power_of_two(self.distance)
        ):
            raise ValueError(f"{head}distance must be 2, 4, 8 .., got {self.distance}")
        if self.metric in ("test_bpb", "truncation_cost", *OF_DISTANCE, *OF_CURVES):
            at_the_end = f"has no {self.metric}, which is taken at the end only: leave it out"
            self.refuse(["step"], at_the_end, head)
        return self


def check_margin(name: str, claim: Claim, margin: float) -> None:
    """Raise ValueError for a margin below 0, and for one of 0 where the claim needs one."""
    needed = claim in BOUNDED
    if margin < 0 or (needed and margin == 0):
        least = "above 0" if needed else "0 or more"
        raise ValueError(
            f"{name!r}: margin must be {least} for claim {claim!r}, such as 0.01, got {margin:g}"
        )


class Hypothesis(MeasuredNumber):
    """A claim on the mean difference of two arms."""

    family: Sentence = option("Those of one family are corrected for their number (Holm).", "main")
    against: str | None = option(
        "The arm that is subtracted; left out, the one that `arm` is compared with. Where `arm` is"
        " a mean over the levels of `within`, another mean."
    )
    claim: Claim
    """lower or higher: by more than the margin; equal: by less than the margin either way;
    lower_by_less or higher_by_less: not zero, and by less than the margin."""
    margin: AtLeastZero = option(
        "In bits per byte or per answer, or of accuracy as a share of 1.", 0.0
    )
    alpha: Fraction = option(
        "Chance of a false confirmation in the family, and of a false refutation.", 0.05
    )

    @model_validator(mode="after")
    def _has_a_margin(self) -> Self:
        if self.metric in OF_ACCURACY and self.margin >= 1.0:
            raise ValueError(
                f"{self.name!r}: margin must be below 1 with metric {self.metric!r}, which is a"
                f" share of the answers, got {self.margin:g}; 0.03 is 3 points"
            )
        check_margin(self.name, self.claim, self.margin)
        return self


class Gate(MeasuredNumber):
    """A bound on the mean of an arm over its seeds, to keep before any hypothesis is answered."""

    arm: str
    """The arm it is about, in a study of curves a run at one rate, such as NAME_0.001."""
    metric: Annotated[Metric, WithJsonSchema({"enum": list(OF_GATES)})] = "val_bpb"
    """val_bpb, test_bpb; excess_bpb: validation above the floor of a known corpus; truncation_cost:
    bits per byte when only `bytes` bytes are given, minus those with the whole context."""
    times: SkipJsonSchema[Positive | None] = None
    distance: SkipJsonSchema[Positive | None] = None
    at_least: Number | None = option("Both 95 % intervals of the mean must lie at or above it.")
    at_most: Number | None = option("Both must lie at or below it.")
    ahead_of: Annotated[Positive, Field(le=MOST_ORDERS)] | None = option(
        "Instead: no worse than n-grams up to this order."
    )

    def _check_metric(self) -> None:
        if self.metric not in OF_GATES:
            raise ValueError(
                f"{self.name!r}: metric of a gate must be a loss of a run within its context, got"
                f" {self.metric!r}; state a hypothesis"
            )

    @model_validator(mode="after")
    def _has_a_limit(self) -> Self:
        limits = [limit for limit in (self.at_least, self.at_most) if limit is not None]
        if self.ahead_of:
            self._check_ahead_of(limits)
        elif not limits or limits != sorted(limits):
            raise ValueError(
                f"{self.name!r}: a gate must have at_least or at_most, at_least not above at_most,"
                f" got {self.at_least} and {self.at_most}"
            )
        return self

    def _check_ahead_of(self, limits: list[float]) -> None:
        """Raise ValueError beside limits, and for a metric that n-grams do not have."""
        of_the_end = self.step is None and self.metric in ("val_bpb", "test_bpb")
        if limits or not of_the_end:
            raise ValueError(
                f"{self.name!r}: ahead_of must be alone, and of val_bpb or test_bpb at the end,"
                f" got metric {self.metric!r} and step {self.step}"
            )


def families(hypotheses: Iterable[Hypothesis]) -> dict[str, list[Hypothesis]]:
    """Group the hypotheses by family, in the order of the spec."""
    by_family: dict[str, list[Hypothesis]] = {}
    for one in hypotheses:
        by_family.setdefault(one.family, []).append(one)
    return by_family
