"""The pytest helper: healthy models pass every step, and every step notices what it is for."""

import json
import logging
import math
import multiprocessing
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F

import plkernel
from plkernel.testing import (
    SEEDS,
    STEPS,
    _check,
    _move,
    _quiet,
    _take_out,
    assert_decays_survive,
)

pytest_plugins = ["pytester"]


class Layer(nn.Module):
    """A layer of Mamba-2 with counted A_log and drawn steps, which `_init_weights` repeats."""

    def __init__(self) -> None:
        super().__init__()
        self.A_log, self.dt_bias = nn.Parameter(torch.empty(8)), nn.Parameter(torch.empty(8))
        self.reset()

    @torch.no_grad()
    def reset(self) -> None:
        self.A_log.copy_(self.like(torch.arange(1.0, 9.0).log(), self.A_log))
        step = self.like(torch.exp(torch.rand(8) * math.log(100.0) + math.log(1e-3)), self.dt_bias)
        self.dt_bias.copy_(step + torch.log(-torch.expm1(-step)))

    @staticmethod
    def like(values: torch.Tensor, tensor: Any) -> Any:
        if not hasattr(tensor, "device_mesh") or tensor.device.type == "meta":
            return values.to(tensor.device)
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(values, tensor.device_mesh, tensor.placements)


class Model(nn.Module):
    kind: type[Layer] = Layer

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(self.kind() for _ in range(3))
        self.head = nn.Linear(4, 4)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, Layer):
            module.reset()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x) * sum(F.softplus(layer.dt_bias).mean() for layer in self.layers)  # type: ignore[arg-type]


class Ones(Layer):
    """dt_bias as one number: all steps are ln(1 + e)."""

    def reset(self) -> None:
        super().reset()
        nn.init.constant_(self.dt_bias, 0.3)


class HalfDraw(Layer):
    """A = 0 can be drawn in bfloat16, whose logarithm is -inf."""

    @torch.no_grad()
    def reset(self) -> None:
        super().reset()
        values = torch.rand(8).mul(16)
        values[3] = 0.0 if values.dtype == torch.bfloat16 else 1.0
        self.A_log.copy_(self.like(values.log(), self.A_log))


class Plain(Layer):
    """Copies plain tensors into what may be a DTensor."""

    @staticmethod
    def like(values: torch.Tensor, tensor: Any) -> torch.Tensor:
        return values.to(tensor.device)


class NeverFilled(Model):
    def _init_weights(self, module: nn.Module) -> None:
        pass


class Overwritten(Model):
    """Gaussian initialisation of everything."""

    def _init_weights(self, module: nn.Module) -> None:
        for parameter in module.parameters(recurse=False):
            nn.init.normal_(parameter, std=0.02)


class Redrawn(Model):
    """Steps of another range when they are drawn again."""

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, Layer):
            with torch.no_grad():
                module.dt_bias += 3.0


class Anew(Model):
    """Draws its steps again, by a function of its own without arguments."""

    def init_weights(self) -> None:
        self.apply(self._init_weights)


class Forgetful(Model):
    """Does not load what it has saved."""

    def load_state_dict(self, state_dict: Any, **options: Any) -> Any:
        kept = {name: values for name, values in state_dict.items() if "layers.1.A_log" not in name}
        return super().load_state_dict(kept, strict=False)


class Copied(Model):
    def __deepcopy__(self, memo: Any) -> nn.Module:
        return type(self)()


class Wandering(Model):
    """Moves its decays in the forward pass."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.layers[2].dt_bias.mul_(0.5)  # type: ignore[union-attr, operator]
        return super().forward(x)


class ByRank(Model):
    """Begins with other speeds in every process, as where each has a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        if torch.distributed.is_initialized():
            with torch.no_grad():
                self.layers[1].A_log += torch.distributed.get_rank()  # type: ignore[operator]


class DrawnByRank(Model):
    """Draws other steps in every process."""

    def __init__(self) -> None:
        super().__init__()
        if torch.distributed.is_initialized():
            torch.manual_seed(1 + torch.distributed.get_rank())
            self.layers[1].reset()  # type: ignore[operator]


class WaitsInOneProcess(Model):
    """The second process is not done for a minute, as where it waits for what never comes."""

    def __init__(self) -> None:
        super().__init__()
        if torch.distributed.is_initialized() and torch.distributed.get_rank() == 1:
            time.sleep(60.0)


class WanderingDouble(Wandering):
    """In float64, of which no copy is made by a conversion."""

    def __init__(self) -> None:
        super().__init__()
        self.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.double())


class RareInHalf(Model):
    """The seventh of eight seeds alone draws A = 0 in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        first: Any = self.layers[0]
        if first.A_log.dtype == torch.bfloat16 and torch.initial_seed() == SEEDS - 1:
            nn.init.constant_(first.A_log, -math.inf)


class BrokenLoadInHalf(Model):
    """Its loading has a step of its own, which does not suit bfloat16."""

    def load_state_dict(self, state_dict: Any, **options: Any) -> Any:
        result = super().load_state_dict(state_dict, **options)
        first: Any = self.layers[0]
        if first.A_log.dtype == torch.bfloat16:
            nn.init.zeros_(first.A_log)
        return result


class EmptyBuffer(Model):
    """Decays of a layer are a buffer, which its initialisation passes over."""

    def __init__(self) -> None:
        super().__init__()
        last: Any = self.layers[2]
        values = last.A_log.detach()
        del last.A_log
        last.register_buffer("A_log", values)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, Layer):
            kept = module.A_log.clone()
            module.reset()
            if "A_log" in dict(module.named_buffers()):
                module.A_log.copy_(kept)  # type: ignore[operator]


def of(kind: type[Layer]) -> type[Model]:
    return type(kind.__name__, (Model,), {"kind": kind})


def test_a_healthy_model() -> None:
    assert_decays_survive(
        Model, inputs=[torch.ones(1, 4)], promised={"layers.1.A_log": torch.arange(1.0, 9.0).log()}
    )


BROKEN: list[tuple[Callable[[], nn.Module], str, str]] = [
    (of(Ones), "deepcopy", r"built: layers.0.dt_bias: all equal, all 8 numbers are 0.3"),
    (of(HalfDraw), "bfloat16", r"bfloat16: layers.0.A_log\[3\] is -inf, promised "),
    (
        NeverFilled,
        "meta",
        r"meta: layers.0.A_log is nan in all of its 8 numbers, promised .*: after to_empty nothing"
        r" draws it; let reset_parameters .* or leave 'meta' out of steps=$",
    ),
    (
        NeverFilled,
        "two processes",
        r"from meta: layers.0.A_log is nan in all .* or leave 'two processes' out of steps=$",
    ),
    (
        Overwritten,
        "initialised again",
        r"initialised again: layers.0.A_log\[0\] is .*, promised 0 \(8 of 8 differ\)",
    ),
    (
        Redrawn,
        "initialised again",
        r"initialised again: layers.\*.dt_bias is .*, promised were draws from -6",
    ),
    (
        Forgetful,
        "saved and loaded",
        r"saved and loaded: layers.1.A_log\[0\] is 0, promised 0.01 \(8 of 8 differ\)",
    ),
    (Copied, "deepcopy", r"deepcopy: layers.0.A_log\[0\] is 0, promised 0.01"),
    (Wandering, "compiled", r"compiled: layers.2.dt_bias\[0\] is "),
    (WanderingDouble, "compiled", r"compiled: layers.2.dt_bias\[0\] is "),
    (
        ByRank,
        "two processes",
        r"two processes, sharded: layers.1.A_log\[4\] is 2.60944, promised 1.60944 \(4 of 8",
    ),
    (
        DrawnByRank,
        "two processes",
        r"two processes, sharded: layers.1.dt_bias\[\d\] is .*, promised .* differ\)",
    ),
    (RareInHalf, "bfloat16", r"bfloat16: layers.0.A_log\[0\] is -inf, promised "),
    (
        BrokenLoadInHalf,
        "saved and loaded",
        r"saved and loaded in bfloat16: layers.0.A_log\[0\] is 0, promised 0.01",
    ),
    (EmptyBuffer, "meta", r"meta: layers.2.A_log is nan in all of its 8 numbers, promised 0"),
    (
        of(Plain),
        "two processes",
        r"two processes, from meta: RuntimeError: .*mixed torch.Tensor and DTensor",
    ),
]


@pytest.mark.parametrize(("factory", "step", "message"), BROKEN)
def test_what_every_step_notices(factory: Callable[[], nn.Module], step: str, message: str) -> None:
    """And no other step, but those that initialise too."""
    with pytest.raises(AssertionError, match=message):
        assert_decays_survive(factory, inputs=[torch.ones(1, 4)], steps=[step])


def test_a_process_that_is_never_done_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """In words, not as a missing file, and it is ended."""
    monkeypatch.setattr("plkernel.testing.PATIENCE", 0.2)
    with pytest.raises(AssertionError, match=r"^two processes, not done after 0\.2 s; does one"):
        assert_decays_survive(WaitsInOneProcess, steps=["two processes"])
    for process in multiprocessing.active_children():
        process.join(5.0)
        assert not process.is_alive()


class Applied(nn.Module):
    """Applies its decays when built, also where there are no numbers yet."""

    def __init__(self) -> None:
        super().__init__()
        self.log_rate = nn.Parameter(torch.empty(4))
        plkernel.apply(plkernel.place(4), self.log_rate, parametrisation="log_rate")


def test_what_a_model_raises_in_a_step_names_the_step() -> None:
    words = r"^meta: ValueError: decays must hold numbers, .* in the layer: if not decays.is_meta$"
    with pytest.raises(AssertionError, match=words):
        assert_decays_survive(Applied, steps=["deepcopy", "meta"])


class Strict(Model):
    """Takes whole files only: nothing is asked of it with others."""

    def load_state_dict(self, state_dict: Any) -> Any:  # type: ignore[override]
        return super().load_state_dict(state_dict)


class TypeInForward(Strict):
    """Notes the default dtype in which its forward pass runs."""

    seen: ClassVar[list[torch.dtype]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(torch.get_default_dtype())
        return super().forward(x)


@pytest.mark.parametrize("before", ["bfloat16", "saved and loaded"])
def test_a_step_leaves_the_default_dtype_to_the_next_as_it_was(before: str) -> None:
    TypeInForward.seen.clear()
    assert_decays_survive(TypeInForward, inputs=[torch.ones(1, 4)], steps=[before, "compiled"])
    assert set(TypeInForward.seen) == {torch.float32}
    assert torch.get_default_dtype() is torch.float32


class Lenient(Model):
    """Initialises every module of which the loaded file lacks something."""

    def redraw(self, missing: list[str]) -> None:
        for index, layer in enumerate(self.layers):
            if any(name.startswith(f"layers.{index}.") for name in missing):
                layer.reset()  # type: ignore[operator]

    def load_state_dict(self, state_dict: Any, **options: Any) -> Any:
        result = super().load_state_dict(state_dict, strict=False)
        self.redraw(result.missing_keys)
        return result


class LenientAtAll(Lenient):
    """Initialises everything where anything is missing."""

    def redraw(self, missing: list[str]) -> None:
        if missing:
            self.apply(self._init_weights)


class LenientWithHead(Lenient):
    """Initialises everything where the head is missing, as when it is made anew."""

    def redraw(self, missing: list[str]) -> None:
        if any(name.startswith("head.") for name in missing):
            self.apply(self._init_weights)


class LenientWithSkip(Lenient):
    """Initialises the steps where D is missing, which is no decay."""

    def __init__(self) -> None:
        super().__init__()
        for layer in self.layers:
            layer.D = nn.Parameter(torch.ones(8))

    def redraw(self, missing: list[str]) -> None:
        if any(name.endswith("D") for name in missing):
            with torch.no_grad():
                self.layers[1].dt_bias.copy_(torch.linspace(-7.0, -3.0, 8))  # type: ignore[union-attr, operator]


PARTIAL = [
    (Lenient, r"without layers.\*.A_log: layers.0.dt_bias\[0\] is "),
    (LenientAtAll, r"without layers.\*.A_log: layers.0.dt_bias\[0\] is "),
    (LenientWithHead, r"without the tensors of other modules: layers.0.A_log\[0\] is 0, promised"),
    (LenientWithSkip, r"without layers.\*.D: layers.1.dt_bias\[0\] is -7, promised"),
]


@pytest.mark.parametrize(("factory", "message"), PARTIAL)
def test_files_that_lack_a_tensor(factory: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(AssertionError, match=f"saved and loaded from a file {message}"):
        assert_decays_survive(factory, steps=["saved and loaded"])
    assert_decays_survive(Strict, steps=["saved and loaded"])


def of_transformers(draws: str) -> Callable[[], nn.Module]:
    """A model of transformers, whose `_init_weights` draws the names in `draws` unasked."""
    transformers = pytest.importorskip("transformers")

    class Config(transformers.PretrainedConfig):  # type: ignore[misc, name-defined]
        model_type = "toy"

    class Toy(transformers.PreTrainedModel):  # type: ignore[misc, name-defined]
        config_class = Config

        def __init__(self, config: Config) -> None:
            super().__init__(config)
            self.layers = nn.ModuleList(Layer() for _ in range(2))
            for layer in self.layers:
                layer.D = nn.Parameter(torch.ones(8))
            self.post_init()

        @torch.no_grad()
        def _init_weights(self, module: nn.Module) -> None:
            if not isinstance(module, Layer):
                return
            fresh = Layer()
            for name in ("A_log", "dt_bias"):
                tensor = getattr(module, name)
                if name in draws or not getattr(tensor, "_is_hf_initialized", False):
                    tensor.copy_(getattr(fresh, name))

    return lambda: Toy(Config())


@pytest.mark.parametrize(
    ("draws", "message"),
    [
        ("", ""),
        ("dt_bias", r"without layers.\*.A_log: layers.0.dt_bias\[0\] is "),
        ("A_log", r"without layers.\*.dt_bias: layers.0.A_log\[0\] is 0, promised 0.01"),
        ("A_log, dt_bias", r"without layers.\*.A_log: layers.0.dt_bias\[0\] is "),
    ],
)
def test_files_of_transformers_that_lack_a_tensor(draws: str, message: str) -> None:
    factory = of_transformers(draws)
    if not message:
        return assert_decays_survive(factory, steps=["saved and loaded"])
    with pytest.raises(AssertionError, match=f"saved and loaded from a file {message}"):
        assert_decays_survive(factory, steps=["saved and loaded"])
    return None


SIZES: dict[str, Any] = {
    "vocab_size": 32,
    "pad_token_id": 0,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_heads": 8,
    "head_dim": 4,
    "state_size": 4,
    "n_groups": 1,
    "chunk_size": 8,
}


def is_missing(tensor: torch.Tensor) -> bool:
    """Whether a file that is being loaded lacks it."""
    return not getattr(tensor, "_is_hf_initialized", False)


def draw(mixer: Any) -> None:
    """Put new numbers in place of the decays, whatever was loaded."""
    mixer.A_log.copy_(torch.arange(1.0, 9.0).log())
    mixer.dt_bias.copy_(torch.empty(8).uniform_(-7.0, -3.0))


def nothing(model: Any, module: Any) -> None:
    pass


def beside_a_skip(model: Any, module: Any) -> None:
    """Draws decays where D of their mixer is missing."""
    if hasattr(module, "D") and is_missing(module.D):
        draw(module)


def beside_a_convolution(model: Any, module: Any) -> None:
    """Draws decays where the convolution of their mixer is missing."""
    if isinstance(module, nn.Conv1d) and is_missing(module.weight):
        for layer in model.layers:
            if layer.mixer.conv1d is module:
                draw(layer.mixer)


def of_all_layers(model: Any, module: Any) -> None:
    """Draws A_log of all layers where that of one is missing."""
    if hasattr(module, "A_log") and is_missing(module.A_log):
        for layer in model.layers:
            layer.mixer.A_log.copy_(torch.arange(1.0, 9.0).log())


def of_layers_before(model: Any, module: Any) -> None:
    """Draws the decays of the first layer where the last one was added."""
    is_last = hasattr(module, "A_log") and module is model.layers[-1].mixer
    if is_last and is_missing(module.A_log) and is_missing(module.D):
        draw(model.layers[0].mixer)


def beside_a_norm(model: Any, module: Any) -> None:
    """Draws decays where the norm before their mixer is missing."""
    for layer in getattr(model, "layers", ()):
        if layer.norm is module and is_missing(module.weight):
            draw(layer.mixer)


def beside_a_head(model: Any, module: Any) -> None:
    """Draws decays where the head is missing."""
    if module is getattr(model, "lm_head", None) and is_missing(module.weight):
        for layer in model.backbone.layers:
            draw(layer.mixer)


SHARED = {
    f"backbone.layers.{index}.mixer.A_log": "backbone.layers.0.mixer.A_log" for index in (1, 2)
}
WITHOUT = "saved and loaded from a file without "
MIXERS = r"backbone.layers.\*.mixer."
LOADED: list[tuple[Any, dict[str, Any], str]] = [
    (nothing, {}, ""),
    (nothing, {"_tied_weights_keys": SHARED}, ""),
    (beside_a_skip, {}, rf"{WITHOUT}{MIXERS}D: "),
    (beside_a_skip, {"_tied_weights_keys": SHARED}, rf"{WITHOUT}{MIXERS}D: "),
    (beside_a_convolution, {}, rf"{WITHOUT}{MIXERS}conv.d.weight: "),
    (of_all_layers, {}, WITHOUT + r"backbone.layers.2.mixer.\*: backbone.layers.0.mixer.A_log"),
    (of_layers_before, {}, WITHOUT + r"backbone.layers.2.mixer.\*: backbone.layers.0.mixer.A_log"),
    (beside_a_norm, {}, f"{WITHOUT}the tensors of other modules: "),
    (beside_a_head, {}, f"{WITHOUT}the tensors of other modules: "),
    (nothing, {"base_model_prefix": "model"}, "saved and loaded from the file of backbone: "),
    (
        nothing,
        {"_keys_to_ignore_on_save": ["backbone.layers.1.mixer.A_log"]},
        "saved and loaded: backbone.layers.1.mixer.A_log",
    ),
]


@pytest.mark.parametrize(("redraws", "options", "message"), LOADED)
def test_parts_of_files_in_models_of_transformers(
    redraws: Any, options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An initialisation that overwrites what was loaded, a prefix that is not found, shared decays,
    and a tensor that is not saved.
    """
    module = pytest.importorskip("transformers.models.mamba2.modeling_mamba2")
    config = pytest.importorskip("transformers").Mamba2Config(**SIZES)
    config.tie_word_embeddings = "_tied_weights_keys" in options
    kind = type("Loaded", (module.Mamba2ForCausalLM,), options)
    as_it_was = module.Mamba2PreTrainedModel._init_weights

    @torch.no_grad()
    def initialised(model: Any, part: Any) -> None:
        redraws(model, part)
        as_it_was(model, part)

    monkeypatch.setattr(module.Mamba2PreTrainedModel, "_init_weights", initialised)
    if not message:
        return assert_decays_survive(lambda: kind(config), steps=["saved and loaded"])
    with pytest.raises(AssertionError, match=message):
        assert_decays_survive(lambda: kind(config), steps=["saved and loaded"])
    return None


def test_a_model_that_loses_names_within_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of the whole, in the model that it wraps."""
    module = pytest.importorskip("transformers.models.mamba2.modeling_mamba2")
    config = pytest.importorskip("transformers").Mamba2Config(**SIZES)
    monkeypatch.setattr(module.Mamba2Model, "base_model_prefix", "model")
    with pytest.raises(AssertionError, match="saved and loaded in backbone alone: "):
        assert_decays_survive(lambda: module.Mamba2ForCausalLM(config), steps=["saved and loaded"])


def test_generators_of_gpus_in_use_are_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins for two of them, whose states are the last seeds."""
    states = {0: torch.tensor([71]), 1: torch.tensor([72])}

    def seed_all(seed: int) -> None:
        states.update({device: torch.tensor([seed]) for device in states})

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seed_all)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: states[device])
    monkeypatch.setattr(
        torch.cuda, "set_rng_state", lambda state, device: states.update({device: state})
    )
    drawn: list[int] = []

    def factory() -> nn.Module:
        drawn.append(int(states[1]))
        return Model()

    before = torch.get_rng_state()
    assert_decays_survive(factory, steps=["deepcopy"])
    assert drawn == [0, *range(SEEDS)]
    assert [int(state) for state in states.values()] == [71, 72]
    assert (torch.get_rng_state() == before).all()


def test_a_layer_without_a_parent() -> None:
    assert_decays_survive(Layer, steps=["saved and loaded", "deepcopy"], initialise=Layer.reset)


def test_a_model_whose_decays_hold_no_numbers() -> None:
    with pytest.raises(AssertionError, match=r"layers.0.A_log is on the meta device"):
        assert_decays_survive(lambda: Model().to("meta"), steps=[])


class Part(nn.Module):
    """Has decays, and A_log of 0 until the module around it has filled that."""

    def __init__(self) -> None:
        super().__init__()
        self.A_log, self.dt_bias = nn.Parameter(torch.empty(8)), nn.Parameter(torch.empty(8))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        nn.init.zeros_(self.A_log)
        self.dt_bias.copy_(torch.linspace(-7.0, -3.0, 8))


class Around(nn.Module):
    """Gives its part its last numbers, as it does when it is built."""

    def __init__(self) -> None:
        super().__init__()
        self.part = Part()
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        self.part.A_log.copy_(torch.arange(1.0, 9.0).log())


def test_modules_are_initialised_before_those_around_them() -> None:
    """By `reset_parameters`, where a model has no function for all of it."""
    assert_decays_survive(Around, steps=["meta", "initialised again"])


@pytest.mark.parametrize("is_drawn", [False, True])
def test_what_is_filled_stays_where_a_model_of_transformers_is_initialised_again(
    is_drawn: bool,
) -> None:
    """Its `init_weights` must pass over what is marked as filled; unmarked, it must fill that."""
    healthy = of_transformers("")

    def factory() -> Any:
        model: Any = healthy()
        if is_drawn:
            model.init_weights = lambda: [layer.reset() for layer in model.layers]
        return model

    assert_decays_survive(factory, steps=["meta"])
    if not is_drawn:
        return assert_decays_survive(factory, steps=["initialised again"])
    with pytest.raises(AssertionError, match=r"^initialised again: layers.0.dt_bias\[0\] is "):
        assert_decays_survive(factory, steps=["initialised again"])
    return None


def test_promises() -> None:
    assert_decays_survive(Anew, steps=["initialised again"])
    with pytest.raises(
        AssertionError,
        match=r"built: layers.2.A_log\[1\] is 0.693147, promised 0 \(7 of 8 differ\)",
    ):
        assert_decays_survive(Model, promised={"layers.2.A_log": torch.zeros(8)}, steps=[])
    with pytest.raises(ValueError, match="promised must name decays, got head"):
        assert_decays_survive(Model, promised={"head": 0.0}, steps=[])
    with pytest.raises(ValueError, match=r"steps must be among bfloat16, .*, got fp8"):
        assert_decays_survive(Model, steps=["fp8"])


def test_the_fixture_of_the_plugin(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entry point names it; pytest loads it without torch."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"plkernel": "plkernel.testing"}
    pytester.makepyfile(
        "import sys\ndef test(decays_survive):\n    assert 'torch' not in sys.modules"
    )
    monkeypatch.setenv(
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1"
    )  # whether or not the entry point is installed
    result = pytester.runpytest_subprocess("-p", "plkernel.testing", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1)


def test_the_functions_need_no_pytest() -> None:
    """They can be called in a script, where pytest is not installed."""
    script = (
        "import sys; sys.modules['pytest'] = None\n"
        "from plkernel import testing\n"
        "testing.assert_decays_survive, testing.assert_state_survives\n"
        "assert not hasattr(testing, 'state_survives')"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


CASES = ["Mamba2 of transformers", "GatedDeltaNet", "KDA", "Mamba2"]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_models_of_others(name: str) -> None:
    """transformers 5.23 cannot initialise a sharded Mamba-2 that was built on meta: it copies plain
    tensors.
    """
    module = pytest.importorskip("transformers" if " " in name else "fla.models")
    kind = name.split()[0]
    sizes: dict[str, Any] = {
        "vocab_size": 32,
        "pad_token_id": 0,
        "hidden_size": 16,
        "num_hidden_layers": 3,
    }
    sizes |= {"num_heads": 4, "head_dim": 8} | (
        {"state_size": 8, "n_groups": 1} if kind == "Mamba2" else {}
    )

    def factory() -> nn.Module:
        return getattr(module, f"{kind}ForCausalLM")(getattr(module, f"{kind}Config")(**sizes))

    if " " not in name:
        return assert_decays_survive(factory)
    assert_decays_survive(factory, steps=[step for step in STEPS if step != "two processes"])
    with pytest.raises(
        AssertionError, match=r"from meta: RuntimeError: .*mixed torch.Tensor and DTensor"
    ):
        assert_decays_survive(factory, steps=["two processes"])
    return None


@pytest.mark.parametrize(
    ("step", "change", "passes"),
    [
        ("built", 0.0, True),
        ("built", 1e-12, False),
        ("in bfloat16", 0.99 * 2.0**-7, True),
        ("in bfloat16", 1.51 * 2.0**-7, False),
    ],
)
def test_numbers_are_equal_and_in_bfloat16_to_its_rounding(
    step: str, change: float, passes: bool
) -> None:
    """Of 1: a unit of its last digit, and half of one beside for numbers near 0."""
    right = {"A_log": np.ones(2)}
    samples = [right] * 3
    found = {"A_log": np.array([1.0, 1.0 + change])}
    if passes:
        _check(step, found, samples, right, None)
        return
    with pytest.raises(
        AssertionError, match=rf"{step}: A_log\[1\] is .*, promised 1 \(1 of 2 differ"
    ):
        _check(step, found, samples, right, None)


@pytest.mark.parametrize(("found", "passes"), [(0.49 * 2.0**-7, True), (0.51 * 2.0**-7, False)])
def test_numbers_near_zero_are_equal_to_half_a_unit_of_one(found: float, passes: bool) -> None:
    right = {"A_log": np.zeros(1)}
    if passes:
        _check("bfloat16", {"A_log": np.array([found])}, [right], right, None)
        return
    with pytest.raises(AssertionError, match=r"promised 0 \(1 of 1 differ"):
        _check("bfloat16", {"A_log": np.array([found])}, [right], right, None)


def test_a_decay_that_is_gone_or_has_another_shape_is_told() -> None:
    right = {"A_log": np.ones(2)}
    for found, words in (({}, "missing"), ({"A_log": np.ones(3)}, r"of shape \(3,\)")):
        with pytest.raises(AssertionError, match=rf"meta: A_log is {words}, promised \(2,\)"):
            _check("meta", found, [right], right, None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"factory": Model()}, "factory must be a function that builds the model, got Model"),
        ({"factory": 3}, "factory must be a function that builds the model, got int"),
        ({"initialise": 3}, "initialise must be a function, got int"),
        ({"promised": [1]}, "promised must be numbers by name, got list"),
        ({"inputs": "x"}, "inputs must be a list, got 'x'"),
        ({"inputs": {1}}, "inputs must be a list, got {1}"),
        ({"steps": "meta"}, "steps must be a list, got 'meta'"),
        ({"steps": ["b", "a"]}, "steps must be among .*, got a, b"),
        (
            {"promised": {"layers.0.A_log": [1.0, 2.0]}},
            r"numbers of shape \(8,\), got \[1.0, 2.0\]",
        ),
        ({"promised": {"layers.0.A_log": "x"}}, r"numbers of shape \(8,\), got 'x'"),
        ({"promised": {"layers.0.A_log": math.nan}}, "must be numbers, got NaN"),
    ],
)
def test_arguments_of_another_kind_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        assert_decays_survive(**{"factory": Model, "steps": [], **arguments})


def test_files_lose_the_tensors_that_are_taken_out(tmp_path: Path) -> None:
    """Those without them stay as they are, and so does what an index says of the others."""
    first, second = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    save_file({"x": torch.ones(1), "y": torch.ones(2)}, first)
    save_file({"z": torch.ones(3)}, second)
    kept = second.stat().st_mtime_ns
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"x": "a", "y": "a", "z": "b"}, "metadata": {}}))
    _take_out(tmp_path, {"x"})
    assert {name: len(one) for name, one in load_file(first).items()} == {"y": 2}
    assert second.stat().st_mtime_ns == kept
    assert json.loads(index.read_text()) == {"weight_map": {"y": "a", "z": "b"}, "metadata": {}}


def test_loggers_are_quiet_meanwhile_and_as_they_were_then() -> None:
    before = logging.root.manager.disable
    with _quiet():
        assert not logging.getLogger("x").isEnabledFor(logging.WARNING)
        assert logging.getLogger("x").isEnabledFor(logging.ERROR)
    assert logging.root.manager.disable == before


def test_decays_are_moved_to_numbers_that_no_initialisation_gives() -> None:
    """By 0.01 to 0.1, evenly; these are returned."""
    model = Model()
    before = {name: one.detach().clone() for name, one in model.named_parameters()}
    first = {"layers.0.A_log": before["layers.0.A_log"].numpy().astype(float)}
    moved = _move(model, first, None)
    change = model.layers[0].A_log.detach() - before["layers.0.A_log"]  # type: ignore[union-attr, operator]
    assert torch.allclose(change, torch.linspace(0.01, 0.1, 8), atol=1e-6)
    assert torch.equal(model.layers[1].A_log, before["layers.1.A_log"])  # type: ignore[union-attr, arg-type]
    assert np.array_equal(moved["layers.0.A_log"], model.layers[0].A_log.detach().numpy())  # type: ignore[union-attr, operator]
