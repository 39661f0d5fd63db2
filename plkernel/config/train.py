"""The training protocol of a study: [train] of its spec, and named sets of defaults for it."""

from typing import Annotated, Any, Literal

from pydantic import Field, ModelWrapValidatorHandler, model_validator

from plkernel.config.model import Positive, Section
from plkernel.models.words import Device

SMALLEST_EPS = 1.2e-38
LONGEST_CONTEXT = 2**24
LARGEST_STEP = 2**28
"""Bytes of training text in one step, batch * context."""
MOST_THREADS = 2**10
MOST_WINDOWS = 2**24

OF_AN_ARM = (
    *("weight_decay", "beta1", "beta2", "eps", "decay_multiplier", "warmup", "warmup_from", "schedule"),
    *("final_fraction", "clip", "l2wrap", "dropout"),
)
"""What may differ between the arms of a study; its learning rate every arm says itself."""

# Defaults by name, for every option that a spec does not give. blinkdl: the demo training scripts of the official RWKV
# code (github.com/BlinkDL/RWKV-LM, RWKV-v5, those with the small eps, and RWKV-v7/train_temp, which agree), with what
# its optimiser and loss always do. Its README names other values for other data: weight decay 0.1 with a final fraction
# of 0.01, warm-up 20, beta2 0.95 against spikes; its script for RWKV-7 on the Pile has weight decay 0.1. The peak rate
# is left to the spec: the scripts take 6e-4 for 12 layers of width 768.
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


def check_threads(threads: int) -> None:
    """ValueError for a number of threads that no machine has."""
    if not 1 <= threads <= MOST_THREADS:
        raise ValueError(f"threads must lie between 1 and {MOST_THREADS}, got {threads}")


class TrainSpec(Section):
    """The training protocol, the same for every arm."""

    recipe: Literal["blinkdl"] | None = None
    """Defaults for what is not given. blinkdl: the official RWKV training scripts."""
    context: Annotated[int, Field(ge=2, le=LONGEST_CONTEXT)] = 512
    """Bytes predicted per window."""
    batch: Annotated[int, Field(ge=1, le=LARGEST_STEP)] = 8
    """Windows per step."""
    steps: Positive | None = None
    """Stop after this many steps (bit-reproducible on a CPU)."""
    bytes: Positive | None = None
    """Stop after this many bytes of training text instead (in whole steps)."""
    minutes: Annotated[float, Field(gt=0)] | None = None
    """Stop after this many minutes of training instead."""
    learning_rate: Annotated[float, Field(gt=0)] = 3e-4
    """Peak learning rate of AdamW."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    """Weight decay, on true matrices only (.weight, two or more dimensions above 1); with 0, AdamW is Adam."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """First-moment decay of AdamW."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    """Second-moment decay of AdamW."""
    eps: float = 1e-8
    """What AdamW adds to the root of the second moment."""
    decay_multiplier: Annotated[float, Field(ge=0)] | None = None
    """Learning rate of time_decay (SSM: log_rate, RWKV-7: w0) as a multiple; not of the low-rank maps that move it. 0
    freezes them. Left out: as the arm's scheme has it, 2 in rwkv_blinkdl and rwkv7_official and 1 in most others."""
    warmup: Annotated[int, Field(ge=0)] = 0
    """Steps of linear warm-up."""
    warmup_from: Annotated[float, Field(ge=0, le=1)] | None = None
    """Warm up from this share of the peak, before the schedule; left out: from 1 / (warmup + 1), within it. Needs a
    warmup."""
    schedule: Literal["cosine", "exponential", "linear", "constant"] = "cosine"
    """Learning rate from the peak to its final fraction."""
    final_fraction: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Where the schedule ends, as a share of the peak; a constant one has no end."""
    clip: Annotated[float, Field(gt=0)] = 1.0
    """Largest gradient norm."""
    l2wrap: Annotated[float, Field(ge=0)] = 0.0
    """Pull on the largest logit z of every position: l2wrap * z / (batch * context) is added to its gradient."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """RWKV: dropout on the embedding and after every residual sum."""
    eval_every: Positive = 500
    """Steps between evaluations; each one saves a checkpoint."""
    eval_windows: Annotated[int, Field(ge=1, le=MOST_WINDOWS)] = 32
    """Validation windows, evenly spaced and fixed."""
    test_windows: Annotated[int, Field(ge=1, le=MOST_WINDOWS)] = 128
    """Test windows, evaluated once, at the end."""
    truncation_windows: Annotated[int, Field(ge=0, le=MOST_WINDOWS)] = 0
    """Places of the test text at which, at the end, bits per byte are taken with 1, 2, 4 .. context bytes given."""
    probe_windows: Annotated[int, Field(ge=0, le=MOST_WINDOWS)] = 0
    """Windows of the test text in which, at the end, one byte at a time is replaced, for its influence against lag."""
    device: Device = "auto"
    """auto takes a GPU when there is one."""
    backend: str | None = None
    """Forces an implementation of the scan: cpu, gpu or reference; left out, the one for the device."""
    compile: bool = False
    """Compile the model of a step by torch.compile: half the operators to launch, on a GPU replayed as CUDA graphs, and
    sums in another order."""
    threads: Annotated[int, Field(ge=1, le=MOST_THREADS)] = 1
    """CPU threads of one run; part of a run's identity, since sums depend on it."""

    @property
    def total_steps(self) -> int | None:
        """Steps of the whole run; None where the budget is time."""
        return self.steps if self.bytes is None else self.bytes // (self.batch * self.context)

    @model_validator(mode="wrap")
    @classmethod
    def _with_recipe(cls, values: Any, handler: ModelWrapValidatorHandler["TrainSpec"]) -> "TrainSpec":
        """Fill in what the recipe says; `model_fields_set` still tells what was given."""
        recipe = values.get("recipe") if isinstance(values, dict) else None
        if not isinstance(recipe, str) or recipe not in RECIPES:
            return handler(values)
        filled = handler(RECIPES[recipe] | values)
        filled.model_fields_set.intersection_update(values)
        return filled

    @model_validator(mode="after")
    def _consistent(self) -> "TrainSpec":
        if [self.steps, self.bytes, self.minutes].count(None) != 2:
            raise ValueError("give exactly one of steps, bytes and minutes")
        if self.batch * self.context > LARGEST_STEP:
            raise ValueError(
                f"batch * context must be at most {LARGEST_STEP} bytes in a step, got {self.batch} * {self.context}: "
                "lower one of them"
            )
        if self.bytes is not None and self.bytes < self.batch * self.context:
            raise ValueError(
                f"bytes must be a step or more, batch * context {self.batch * self.context}, got {self.bytes}"
            )
        if self.eps < SMALLEST_EPS:
            raise ValueError(
                f"eps must be at least {SMALLEST_EPS}, the least that float32 holds to all its digits, got {self.eps}"
            )
        if self.schedule == "exponential" and self.final_fraction == 0:
            raise ValueError("final_fraction must be above 0 with schedule 'exponential', got 0.0: 'linear' reaches 0")
        if not self.warmup:
            self._refuse("warmup_from", "needs steps of warm-up, got warmup 0: set warmup, or leave it out")
        if self.schedule == "constant":
            self._refuse(
                "final_fraction", "needs an end to reach, got schedule 'constant': name another, or leave it out"
            )
        return self

    def _refuse(self, name: str, reason: str) -> None:
        """ValueError where the option, which would do nothing, is neither its default nor that of the recipe."""
        default = type(self).model_fields[name].default
        value = getattr(self, name)
        if value not in (default, RECIPES.get(self.recipe or "", {}).get(name, default)):
            raise ValueError(f"train.{name} {value:g} {reason}")
