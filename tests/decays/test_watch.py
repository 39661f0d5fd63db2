"""plkernel.watch and decay_param_groups: scalars, findings, bugs planted in real layers, callbacks,
shards, imports.
"""

import copy
import importlib
import math
import pickle
import re
import tomllib
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tiny_models import FAST, SLOW
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.utils import parametrize

import plkernel
from plkernel.decays.bare import PARENT
from plkernel.decays.live import live_layers
from plkernel.decays.watch import (
    _gathered,
    _labels,
    _Treated,
    lightning_callback,
    trainer_callback,
)
from plkernel.models.ssm import SSM, SSMConfig

RATES = np.log(2) / np.array([0.5, 2.0, 8.0, 32.0])
"""Half-lives of 1/2, 2, 8 and 32 tokens."""


class Heads(nn.Module):
    """A layer of Mamba-2 with those rates, and a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.A_log = nn.Parameter(torch.linspace(-1.0, 1.0, 4).double())
        steps = torch.from_numpy(RATES) / self.A_log.detach().exp()
        self.dt_bias = nn.Parameter(steps.expm1().log())
        self.D = nn.Parameter(torch.ones(4))
        self.in_proj = nn.Linear(4, 4, bias=False)


def model(layers: int = 2) -> nn.Module:
    return nn.ModuleDict(
        {"layers": nn.ModuleList([nn.ModuleDict({"mixer": Heads()}) for _ in range(layers)])}
    )


def adamw(parameters: Any, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, **{"lr": 3e-4, "weight_decay": 0.1, **options})


def change(found: nn.Module, name: str, number: Any, layer: int = 1) -> None:
    with torch.no_grad():
        getattr(found.layers[layer].mixer, name).copy_(torch.as_tensor(number))  # type: ignore[union-attr, index]


def test_scalars_by_hand() -> None:
    watched = model()
    watch = plkernel.watch(watched, context=10)
    change(
        watched,
        "A_log",
        watched.layers[1].mixer.A_log + torch.tensor([0.0, 0.0, math.log(2.0), 0.0]),
    )  # type: ignore
    found = {
        name.removeprefix("decay/layer1/"): value
        for name, value in watch.read().items()
        if "layer1" in name
    }
    expected = {
        "half_life_min": 0.5,
        "half_life_p10": 0.95,
        "half_life_p50": 3.0,
        "half_life_p90": 23.6,
    }
    expected |= {"half_life_max": 32.0, "below_token": 0.25, "beyond_context": 0.25, "moved": 0.25}
    expected |= {"invalid": 0.0, "distinct": 1.0, "bits": 64.0}
    assert found == pytest.approx(expected)
    assert all(type(value) is float for value in watch.read().values())


@pytest.mark.parametrize(
    ("role", "numbers", "finding", "invalid", "shown"),
    [
        ("A_log", [-math.inf, 0.0, 0.1, 0.2], "-inf", 0.25, "inf"),
        ("A_log", [math.inf, 0.0, 0.1, 0.2], "+inf", 0.25, "0"),
        ("A_log", [math.nan, 0.0, 0.1, 0.2], "NaN", 0.25, ""),
        ("A_log", [0.0, 0.0, 0.0, 0.0], "zeros", 0.0, ""),
        ("dt_bias", [0.3, 0.3, 0.3, 0.3], "all equal", 0.0, ""),
        ("dt_bias", [-800.0, -2.0, -1.0, 0.0], "", 0.25, "inf"),
    ],
)
def test_rates_that_are_no_rates(
    role: str, numbers: list[float], finding: str, invalid: float, shown: str
) -> None:
    """At the start, and later with one warning; the rate of -800 is 0 in float64 after a step of
    exp(-800).
    """
    broken = model()
    change(broken, role, numbers)
    with warnings.catch_warnings(action="ignore"):
        watch = plkernel.watch(broken)
    seen = watch.read()
    assert finding in {""} | {
        one.name for one in watch.findings if role in one.tensor and one.severity == "wrong"
    }
    assert seen["decay/layer1/invalid"] == invalid
    assert ("inf" in (shown,)) == (seen["decay/layer1/half_life_max"] == math.inf)
    assert (shown == "0") == (seen["decay/layer1/half_life_min"] == 0.0)
    later = model(1)
    watch = plkernel.watch(later, every=2)
    assert not [one for one in watch.findings if one.severity == "wrong"]
    change(later, role, numbers, layer=0)
    assert watch() == {}
    with warnings.catch_warnings(record=True, action="always") as told:
        assert watch()
        count = len(told)
        assert (watch(), bool(watch()), len(told)) == ({}, True, count)  # warned of once
    head = f"decays at step 2: {finding}: layers.0.mixer.{role}"
    assert sum(head in str(one.message) for one in told) == bool(finding)


@pytest.mark.filterwarnings("ignore")
def test_optimizer_and_the_end_of_the_schedule() -> None:
    """3e-4 x 0.1 x 1e5 steps scales A_log by 0.05: rates exp(A_log) of 16 become 1.15."""
    watched = model()
    watched.layers[0].mixer.A_log.requires_grad_(False)  # type: ignore[union-attr, index]
    kept = [one for name, one in watched.named_parameters() if name != "layers.1.mixer.dt_bias"]
    watch = plkernel.watch(watched, adamw(kept), steps=100_000)
    seen = watch.read()
    assert seen["decay/A_log/scale_at_end"] == pytest.approx(math.exp(-3), rel=1e-4)
    assert 16 ** seen["decay/A_log/scale_at_end"] == pytest.approx(1.15, abs=0.003)
    assert (seen["decay/A_log/lr"], seen["decay/A_log/weight_decay"]) == (3e-4, 0.1)
    assert (seen["decay/A_log/frozen"], seen["decay/dt_bias/frozen"]) == (0.5, 0.5)
    found = {(one.name, one.tensor, one.severity) for one in watch.findings}
    assert ("frozen", "layers.0.mixer.A_log", "notable") in found
    assert ("not in the optimizer", "layers.1.mixer.dt_bias", "wrong") in found
    assert ("weight decay", "layers.1.mixer.A_log", "notable") in found
    kinds = {"Adam": {}, "SGD": {"momentum": 0.9}, "RMSprop": {}, "Adagrad": {}}
    for kind, options in kinds.items():  # weight decay passes through their moments
        optimizer = getattr(torch.optim, kind)(
            watched.parameters(), lr=1e-3, weight_decay=0.1, **options
        )
        coupled = plkernel.watch(watched, optimizer, steps=9)
        assert "decay/A_log/scale_at_end" not in coupled.read()
        assert "weight decay" in {one.name for one in coupled.findings}
    warm = adamw(watched.parameters())
    torch.optim.lr_scheduler.LambdaLR(warm, lambda step: 0.0)
    assert plkernel.watch(watched, warm, steps=100_000).read()["decay/A_log/lr"] == 0.0
    assert plkernel.watch(watched, warm, steps=100_000).read()["decay/A_log/scale_at_end"] < 0.06


COUPLED: dict[str, dict[str, Any]] = {
    "ASGD": {},
    "Adadelta": {},
    "Adagrad": {},
    "Adam": {},
    "Adamax": {},
    "NAdam": {},
    "RAdam": {},
    "RMSprop": {},
    "SGD": {"momentum": 0.9},
}
DECOUPLED: dict[str, dict[str, Any]] = {
    "Adafactor": {},
    "Adam": {"decoupled_weight_decay": True},
    "AdamW": {},
    "Muon": {},
    "NAdam": {"decoupled_weight_decay": True},
    "RAdam": {"decoupled_weight_decay": True},
    "SGD": {},  # without momentum both are the same
}
WITHOUT = {"LBFGS", "Rprop", "SparseAdam"}
"""Optimizers of torch without weight decay."""


class Wrapper:
    """An optimizer as libraries for several devices wrap it."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer
        self.param_groups = optimizer.param_groups


@pytest.mark.parametrize("wrap", [lambda optimizer: optimizer, Wrapper])
@pytest.mark.parametrize(
    ("name", "options", "is_decoupled"),
    [
        *((name, options, False) for name, options in COUPLED.items()),
        *((name, options, True) for name, options in DECOUPLED.items()),
    ],
)
def test_weight_decay_of_every_optimizer_of_torch(
    name: str, options: dict[str, Any], is_decoupled: bool, wrap: Callable[[Any], Any]
) -> None:
    """Without a gradient, three steps: decoupled alone it multiplies by (1 - 0.01 x 0.1)**3."""
    module = nn.Module()
    module.A_log = nn.Parameter(torch.ones(4, 4, dtype=torch.float64))
    module.dt_proj_bias = nn.Parameter(torch.ones(4))
    optimizer = getattr(torch.optim, name)([module.A_log], lr=0.01, weight_decay=0.1, **options)
    with warnings.catch_warnings(action="ignore"):
        scalars = plkernel.watch(nn.ModuleDict({"l": module}), wrap(optimizer), steps=3).read()
    for _ in range(3):
        module.A_log.grad = torch.zeros_like(module.A_log)
        optimizer.step()
    left = module.A_log[0, 0].item()
    assert (abs(left - 0.999**3) < 1e-9) == is_decoupled
    assert ("decay/A_log/scale_at_end" in scalars) == is_decoupled
    if is_decoupled:
        assert scalars["decay/A_log/scale_at_end"] == pytest.approx(left, rel=1e-9)


def test_the_optimizers_of_torch_are_all_known() -> None:
    kinds = [one for one in vars(torch.optim).values() if isinstance(one, type)]
    names = {one.__name__ for one in kinds if issubclass(one, torch.optim.Optimizer)}
    assert names - {"Optimizer"} <= {*COUPLED, *DECOUPLED, *WITHOUT}


def halves(watched: nn.Module) -> list[Any]:
    """Two optimizers: matrices, and the rest."""
    parameters = list(watched.parameters())
    matrices = torch.optim.SGD([one for one in parameters if one.ndim > 1], lr=0.02)
    return [matrices, adamw([one for one in parameters if one.ndim < 2], weight_decay=0.0)]


def layers_apart(watched: Any) -> dict[str, Any]:
    """An optimizer for each layer, by name."""
    return {f"layer {n}": adamw(one.parameters()) for n, one in enumerate(watched.layers)}


SEVERAL: list[Callable[[nn.Module], Any]] = [
    halves,
    lambda watched: tuple(halves(watched)),
    lambda watched: [*halves(watched), torch.optim.SGD([torch.zeros(1)], lr=1.0)],
    layers_apart,
]


@pytest.mark.parametrize("optimizers", SEVERAL)
def test_several_optimizers(optimizers: Callable[[nn.Module], Any]) -> None:
    """A tensor that one of them trains is in the optimizer, with the settings of its group."""
    watched = model()
    given = optimizers(watched)
    watch = plkernel.watch(watched, given, steps=9)
    assert not [one for one in watch.findings if one.severity == "wrong"]
    seen = watch.read()
    assert (seen["decay/A_log/lr"], seen["decay/dt_bias/frozen"]) == (3e-4, 0.0)
    told = {one.name for one in watch.findings}
    assert ("weight decay" in told) == (optimizers is layers_apart)


def test_one_of_several_optimizers_is_told_to_be_one() -> None:
    watched = model()
    with pytest.warns(UserWarning, match="if another optimizer does, give a list of both"):
        plkernel.watch(watched, halves(watched)[0])
    watched.forgotten = Heads()
    with warnings.catch_warnings(action="ignore"):
        watch = plkernel.watch(watched, halves(watched.layers))
    told = {one.tensor: one.seen for one in watch.findings if one.severity == "wrong"}
    words = "requires a gradient, and no step changes it"
    assert told == {"forgotten.A_log": words, "forgotten.dt_bias": words}


BARE = {
    "Mamba-2": (lambda: Heads(), {"A_log", "dt_bias", "D"}),
    "Mamba": (
        lambda: held({"A_log": torch.rand(4, 2), "dt_proj.bias": torch.rand(4)}),
        {"A_log", "dt_proj.bias"},
    ),
    "RWKV-7": (lambda: held({"w0": torch.rand(1, 1, 8), "r_k": torch.ones(2, 4)}), {"w0"}),
    "LRU": (lambda: held({"nu_log": torch.rand(4), "kernel": torch.ones(3)}), {"nu_log"}),
    "HGRN": (
        lambda: held({"lower_bounds": torch.rand(2, 4), "layers.1.attn.f_proj.weight": ONE}),
        {"lower_bounds"},
    ),
}
ONE = torch.ones(1, 1)


def held(tensors: dict[str, torch.Tensor]) -> nn.Module:
    """A module with parameters of these names."""
    whole = nn.Module()
    for name, values in tensors.items():
        *path, last = name.split(".")
        place = whole
        for part in path:
            if not hasattr(place, part):
                place.add_module(part, nn.Module())
            place = getattr(place, part)
        place.register_parameter(last, nn.Parameter(values))
    return whole


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", BARE)
def test_a_layer_without_a_parent(kind: str, tmp_path: Path) -> None:
    """It is read as the same layer in a model, live and from its file."""
    build, decays = BARE[kind]
    torch.manual_seed(0)
    layer = build()
    around = nn.Module()
    around.inner = layer
    apart, within = plkernel.watch(layer), plkernel.watch(around)
    assert list(apart.read().values()) == list(within.read().values())
    assert all(name.startswith("decay/layer") for name in apart.read())
    groups = plkernel.decay_param_groups(layer, 0.1)
    names = {id(one): name for name, one in layer.named_parameters()}
    assert {names[id(one)] for one in groups[-1]["params"]} == decays
    watch = plkernel.watch(layer, torch.optim.AdamW(groups), steps=9)
    assert "not in the optimizer" not in {one.name for one in watch.findings}
    save_file(dict(layer.state_dict()), tmp_path / "layer.safetensors")
    found: Any = plkernel.inspect(tmp_path / "layer.safetensors")
    (read,) = apart._start.values()
    assert np.array_equal(found.layers[0].rates.ravel(), read)


@pytest.mark.filterwarnings("ignore")
def test_weight_decay_alone_ends_where_it_was_said_to() -> None:
    """Both tensors of a layer at once, one of them twice as fast."""
    watched: Any = model(1)
    mixer = watched.layers[0].mixer
    optimizer = adamw([{"params": [mixer.A_log]}, {"params": [mixer.dt_bias], "lr": 0.1}], lr=0.05)
    watch = plkernel.watch(watched, optimizer, every=50, steps=50)
    for _ in range(50):
        mixer.A_log.grad, mixer.dt_bias.grad = torch.zeros(4).double(), torch.zeros(4).double()
        optimizer.step()
        seen = watch()
    ends = [seen[f"decay/layer0/half_life_{name}"] for name in ("min", "max")]
    told = [
        one.seen.partition(" become ")[2] for one in watch.findings if one.name == "weight decay"
    ]
    assert told == ["{:.3g} .. {:.3g}".format(*ends)] * 2


@pytest.mark.filterwarnings("ignore")
def test_groups_of_parameters() -> None:
    watched: Any = model()
    watched.layers[0].mixer.dt_bias.requires_grad_(False)
    watched.tied = watched.layers[1].mixer.dt_bias
    groups = plkernel.decay_param_groups(watched, weight_decay=0.1, decay_lr=1e-2)
    names = {id(one): name for name, one in watched.named_parameters()}
    held = [
        sorted(names[id(one)].removeprefix("layers.") for one in group["params"])
        for group in groups
    ]
    decays = ["0.mixer.A_log", "0.mixer.D", "1.mixer.A_log", "1.mixer.D", "tied"]
    assert held == [["0.mixer.in_proj.weight", "1.mixer.in_proj.weight"], decays]
    assert [(group["weight_decay"], group.get("lr")) for group in groups] == [
        (0.1, None),
        (0.0, 1e-2),
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-3)
    assert "weight decay" not in {
        one.name for one in plkernel.watch(watched, optimizer, steps=9).findings
    }


def tiny(name: str, **options: Any) -> nn.Module:
    """A tiny causal model of transformers as it is built, its decays as its own code draws them."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    given = {**{**FAST, **SLOW}[name], **options}
    given |= (
        {"time_step_min": 0.001} if name in ("NemotronH", "Zamba2") else {}
    )  # 0.1 .. 0.1 draws equal steps
    config = getattr(transformers, f"{given.pop('config', name)}Config")(**given)
    return getattr(transformers, f"{name}ForCausalLM")(config)


def of_fla(name: str, **options: Any) -> nn.Module:
    models = pytest.importorskip("fla.models", reason="flash-linear-attention is not installed")
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 32,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_heads": 4,
        "head_dim": 8,
        **options,
    }
    return getattr(models, f"{name}ForCausalLM")(getattr(models, f"{name}Config")(**sizes))


def set_to(mark: str, values: Callable[[torch.Tensor], Any]) -> Callable[[nn.Module], None]:
    """Puts `values` into all parameters whose names end so."""

    def plant(found: nn.Module) -> None:
        with torch.no_grad():
            for name, parameter in found.named_parameters():
                if name.endswith(mark):
                    parameter.copy_(torch.as_tensor(values(parameter)))

    return plant


def mark(one: list[Any]) -> Any:
    return pytest.param(*one[1:], id=one[0], marks=pytest.mark.slow if "slow" in one[0] else ())


SLOW_MAMBA2 = {"state_size": 8}
PLANTED = [
    # its name; the model; what is wrong; how the optimizer is made; the finding and the tensor
    [
        "mixer's dt_bias stays ones",
        "Mamba2",
        set_to("dt_bias", torch.ones_like),
        {},
        "initialisation",
        "dt_bias",
    ],
    [
        "zeroed dt_proj.bias",
        "Mamba",
        set_to("dt_proj.bias", torch.zeros_like),
        {},
        "initialisation",
        "dt_proj.bias",
    ],
    ["zeros over several GPUs", "Mamba2", set_to("A_log", torch.zeros_like), {}, "zeros", "A_log"],
    [
        "never filled after meta",
        "Mamba2",
        set_to("dt_bias", lambda x: x * math.nan),
        {},
        "NaN",
        "dt_bias",
    ],
    ["bfloat16 draw of 0", "Mamba2", set_to("A_log", torch.log), {}, "-inf", "A_log"],
    [
        "decays in bfloat16",
        "Mamba2",
        lambda found: found.bfloat16(),
        {},
        "half precision",
        "dt_bias",
    ],
    [
        "under weight decay",
        "Mamba2",
        lambda found: None,
        {"weight_decay": 0.1},
        "weight decay",
        "A_log",
    ],
    [
        "slow: zeros in fla",
        "fla:GatedDeltaNet",
        set_to("A_log", torch.zeros_like),
        {},
        "zeros",
        "A_log",
    ],
    [
        "slow: ones in fla",
        "fla:Mamba2",
        set_to("dt_bias", torch.ones_like),
        {},
        "initialisation",
        "dt_bias",
    ],
    [
        "slow: -inf in fla",
        "fla:KDA",
        set_to("A_log", lambda x: torch.full_like(x, -math.inf)),
        {},
        "-inf",
        "A_log",
    ],
    [
        "slow: -inf",
        "Qwen3Next",
        set_to("A_log", lambda x: torch.full_like(x, -math.inf)),
        {},
        "-inf",
        "A_log",
    ],
]


@pytest.mark.filterwarnings("ignore")  # of other people's code, and of the findings
@pytest.mark.parametrize(
    ("name", "plant", "options", "finding", "tensor"), [mark(one) for one in PLANTED]
)
def test_bugs_of_others_are_seen_at_the_start(
    name: str,
    plant: Callable[[nn.Module], None],
    options: dict[str, Any],
    finding: str,
    tensor: str,
) -> None:
    """And not in the same model without them."""
    extra = SLOW_MAMBA2 if name == "fla:Mamba2" else {}
    seen = []
    for wrong in (False, True):
        found = of_fla(name.removeprefix("fla:"), **extra) if ":" in name else tiny(name)
        if wrong:
            plant(found)
        groups = (
            found.parameters() if wrong and options else plkernel.decay_param_groups(found, 0.1)
        )
        watch = plkernel.watch(found, adamw(groups, **options), steps=10_000)
        seen.append(
            (finding, True) in {(one.name, one.tensor.endswith(tensor)) for one in watch.findings}
        )
    assert seen == [False, True]


@pytest.mark.filterwarnings("ignore")
def test_the_configuration_is_that_of_the_model() -> None:
    """A module around it may have another; of the model, half-lives end at 13.9 tokens."""
    around: Any = nn.Module()
    around.config, around.inner = (
        {"lr": 1e-3, 1: 2},
        tiny("Mamba2", time_step_limit=(0.05, math.inf)),
    )
    assert max(plkernel.watch(around).read().values()) < 100
    assert "decay/layer0/half_life_max" in plkernel.watch(SSM(SSMConfig(16, 2))).read()


FLA = {
    **{
        name: {}
        for name in ("GatedDeltaNet", "KDA", "RWKV6", "RWKV7", "GLA", "HGRN", "RetNet", "MesaNet")
    },
    **{
        "Mamba2": SLOW_MAMBA2,
        "Mamba3": {**SLOW_MAMBA2, "is_mimo": False},
        "Mom": {"num_memories": 2, "topk": 1},
    },
    **{"ForgettingTransformer": {}, "HGRN2": {"expand_ratio": 8}},
}
HEALTHY = [
    *FAST,
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in [*SLOW, *(f"fla:{one}" for one in FLA)]
    ),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_models(name: str) -> None:
    """No finding that is wrong but a true one, and all layers are read, for twenty steps."""
    kind = name.removeprefix("fla:")
    found = of_fla(kind, **FLA[kind]) if ":" in name else tiny(name)
    optimizer = adamw(plkernel.decay_param_groups(found, 0.1), lr=1e-3)
    watch = plkernel.watch(found, optimizer, every=5, steps=20)
    for _ in range(20):
        for parameter in found.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
        seen = watch()
    wrong = {one.name for one in watch.findings if one.severity == "wrong"}
    never_forgets = name == "BailingHybrid"  # as transformers 5.24 starts it
    assert wrong == ({"above a million tokens"} if never_forgets else set())
    assert watch.unseen == {}
    assert sum(name.endswith("/half_life_p50") for name in seen) == len(watch._places) > 0


@pytest.mark.filterwarnings("ignore")
def test_meta() -> None:
    """Layers that a process cannot see are named, and read once they are there."""
    watched = model(1).to("meta")
    watch = plkernel.watch(watched, every=1)
    assert list(watch.unseen) == ["layers.0.mixer"]
    assert "layers.0.mixer.A_log: is on the meta device" in watch.unseen["layers.0.mixer"]
    assert watch() == {}
    watched.load_state_dict(model(1).state_dict(), assign=True)
    assert watch()["decay/layer0/half_life_max"] == pytest.approx(32.0)
    assert (watch.unseen, watch.read()["decay/layer0/moved"]) == ({}, 0.0)


@pytest.mark.filterwarnings("ignore")
def test_findings_of_a_layer_beside_one_that_is_elsewhere() -> None:
    """Only that the tensors of the layer elsewhere were not read is no finding."""
    watched = model()
    watched.layers[0].to("meta")  # type: ignore[operator, union-attr, index]
    change(watched, "A_log", [0.0, 0.0, 0.0, 0.0])
    watch = plkernel.watch(watched)
    assert list(watch.unseen) == ["layers.0.mixer"]
    names = [one.name for one in watch.findings]
    assert "zeros" in names
    assert "unread" not in names


@pytest.mark.filterwarnings("ignore")
def test_a_layer_or_a_tensor_that_is_gone_is_unseen() -> None:
    """The loop goes on, with the layers that are left."""
    watched = model(3)
    watch = plkernel.watch(watched, adamw(watched.parameters()), every=1)
    del watched.layers[2]  # type: ignore[operator, union-attr]
    watched.layers[0].mixer.A_log = None  # type: ignore[union-attr, index]
    scalars = watch()
    assert watch.unseen == {
        "layers.0.mixer": "layers.0.mixer.A_log: is no longer in the model",
        "layers.2.mixer": "layers.2.mixer.A_log: is no longer in the model",
    }
    assert {name.split("/")[1] for name in scalars} == {"layer1", "A_log", "dt_bias"}


@pytest.mark.filterwarnings("ignore")
def test_rates_that_were_never_numbers_have_not_moved() -> None:
    watched = model(1)
    change(watched, "A_log", [math.nan, math.nan, 0.0, 1.0], layer=0)
    watch = plkernel.watch(watched)
    assert watch.read()["decay/layer0/moved"] == 0.0
    change(watched, "A_log", [0.0, math.nan, math.nan, 1.0], layer=0)
    assert watch.read()["decay/layer0/moved"] == 0.5, "one has become a number, one is none now"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "decays",
    [None, {"*.A_log": {"form": "a_log", "dt_bias": "*.dt_bias"}}],
    ids=["known", "stated"],
)
@pytest.mark.parametrize("copied", [lambda one: pickle.loads(pickle.dumps(one)), copy.deepcopy])
def test_a_copy_watches_a_copy_of_the_model(decays: Any, copied: Callable[[Any], Any]) -> None:
    """From the same start, at the same step, whatever has become of the model."""
    watched = model()
    watch = plkernel.watch(watched, adamw(watched.parameters()), every=2, decays=decays)
    watch()
    del watched.layers[1]  # type: ignore[operator, union-attr]
    other = copied(watch)
    change(watched, "dt_bias", 0.0, layer=0)
    change(watched, "A_log", 0.0, layer=0)
    assert other()["decay/layer0/moved"] == 0.0
    assert watch()["decay/layer0/moved"] == 1.0
    assert list(other.unseen) == list(watch.unseen) != []
    assert other.model is not watched


def read_shards(rank: int, folder: str) -> None:
    store = distributed.FileStore(f"{folder}/store", 2)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    watched: Any = model()
    watched.layers[1].mixer.A_log = nn.Parameter(torch.zeros(3))
    for layer in watched.layers:
        fully_shard(layer.mixer, mesh=init_device_mesh("cpu", (2,)))
    if rank == 1:
        store.wait(["read"])
    watch = plkernel.watch(watched, adamw(watched.parameters()), steps=9)
    shards = watched.layers[0].mixer.A_log
    with pytest.raises(ValueError, match="whole tensor, got one in shards") as refused:
        plkernel.apply(plkernel.place(4), shards, parametrisation="log_rate")
    file = f"{folder}/{rank}.pt"
    torch.save({"model": watched.state_dict()}, file)
    with pytest.raises(ValueError, match=r"got tensors in shards .*full_state_dict=True"):
        plkernel.inspect(file)
    seen = watch._start["layers.0.mixer"], list(watch.unseen), str(refused.value)
    torch.save(seen, f"{folder}/{rank}")
    store.set("read", "")
    evaluated: Any = fully_shard(Parts(decay=(6,)), mesh=init_device_mesh("cpu", (2,)))
    watch = plkernel.watch(
        evaluated, adamw(evaluated.parameters(), weight_decay=0.0), decays={"decay": "sigmoid"}
    )
    scalars = watch.read()
    evaluated.unshard()
    assert not hasattr(evaluated.decay, "to_local")
    assert watch.read() == scalars, "after an evaluation, which leaves parameters gathered"
    assert all(one.severity == "notable" for one in watch.findings)
    configured: Any = nn.Sequential(Heads()).float()
    configured.config = {"num_heads": 4}
    configured = fully_shard(configured, mesh=init_device_mesh("cpu", (2,)))
    watch = plkernel.watch(configured)
    configured.unshard()
    watch.read()
    assert "shape" not in {one.name for one in watch.findings}, "a shard has half of the heads"
    distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore")
def test_a_process_reads_its_shards_alone(tmp_path: Path) -> None:
    """FSDP2: the first reads while the second sleeps; no layer whose shards are of different
    heads. Nothing is written into shards, and a file of them is told how to save a whole one.
    """
    torch.multiprocessing.start_processes(read_shards, (str(tmp_path),), 2, start_method="fork")
    shards, unseen, refused = zip(
        *(torch.load(tmp_path / str(rank), weights_only=False) for rank in range(2)), strict=True
    )
    assert all(one.startswith("decays must be ") for one in refused)
    assert [len(one) for one in shards] == [2, 2]
    assert np.array_equal(np.concatenate(shards), plkernel.watch(model())._start["layers.0.mixer"])
    assert unseen == (["layers.1.mixer"],) * 2
    with pytest.raises(ValueError, match=r"got tensors in shards .*full_state_dict=True"):
        plkernel.inspect(tmp_path / "0.pt")  # where no process group is


@pytest.mark.parametrize("version", ["one group", "several groups"])
def test_gathered_parameters_are_found_in_the_groups_of_any_torch(version: str) -> None:
    """Earlier versions have one group for a module, and another attribute for it."""
    gathered = [nn.Parameter(torch.zeros(1)) for _ in range(2)]
    shards = [nn.Parameter(torch.zeros(1)) for _ in range(2)]
    groups = [
        SimpleNamespace(fsdp_params=[SimpleNamespace(_unsharded_param=whole, sharded_param=shard)])
        for whole, shard in zip(gathered, shards, strict=True)
    ]
    state: Any = SimpleNamespace(_fsdp_param_groups=groups)
    if version == "one group":
        state = SimpleNamespace(_fsdp_param_group=groups[0])
    module: Any = nn.Module()
    module._get_fsdp_state = lambda: state
    behind = _gathered(nn.Sequential(module))
    count = 1 if version == "one group" else 2
    found = {whole: id(shard) for whole, shard in behind.items()}
    pairs = zip(gathered[:count], shards[:count], strict=True)
    assert found == {id(whole): id(shard) for whole, shard in pairs}


class Parts(nn.Module):
    """Parameters of these shapes, one after the other, with numbers that all differ."""

    def __init__(self, **shapes: tuple[int, ...]) -> None:
        super().__init__()
        for name, shape in shapes.items():
            numbers = torch.linspace(-1.0, 1.0, math.prod(shape)).reshape(shape)
            self.register_parameter(name, nn.Parameter(numbers))


FLAT_DECAYS = {"*.decay": "sigmoid", "*.A": {"form": "a_log", "dt_bias": "*.dt"}}


def of_flat_parts() -> nn.ModuleDict:
    """Layers of which the first of two processes gets all decays, a part, and half of them."""
    whole = Parts(A_log=(4, 3))
    whole.dt_proj = nn.Linear(2, 4)
    nn.init.constant_(whole.dt_proj.bias, 0.5)
    whole.more = nn.Linear(4, 6)
    return nn.ModuleDict(
        {
            "whole": whole,
            "cut": Parts(dt_bias=(4,), A_log=(4,), more=(2,)),
            "own": Parts(A=(4,), dt=(4,), more=(2,)),
            "cut_inside": Parts(dt_bias=(1,), A_log=(4, 3), more=(3,)),
            "lone": Parts(decay=(1, 1, 6)),
        }
    )


def read_flat_parts(rank: int, folder: str) -> None:
    store = distributed.FileStore(f"{folder}/store", 2)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    options: Any = {"device_id": torch.device("cpu"), "use_orig_params": True}
    watched = of_flat_parts()
    for name, layer in watched.items():
        watched[name] = FullyShardedDataParallel(layer, **options)
    watch = plkernel.watch(watched, every=1, decays=FLAT_DECAYS)
    flat = FullyShardedDataParallel(model(1).float(), device_id=torch.device("cpu"))
    for stated in (None, {"*decay": "sigmoid"}):
        with pytest.raises(ValueError, match=r"_flat_param, .* fully_shard, .* use_orig_params=Tr"):
            plkernel.watch(flat, decays=stated)
    partly = plkernel.watch(nn.ModuleDict({"flat": flat, "whole": model(1)}))
    assert list(partly._start) == ["whole.layers.0.mixer"]
    (unseen,) = partly.unseen.values()
    assert "fully_shard" in unseen
    starts = {name.split(".")[0]: rates for name, rates in watch._start.items()}
    wrong = [one.name for one in watch.findings if one.severity == "wrong"]
    torch.save((starts, list(watch.unseen.values()), wrong), f"{folder}/{rank}")
    distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore")
def test_a_process_reads_what_the_older_fsdp_has_left_it_in_a_row(tmp_path: Path) -> None:
    """With use_orig_params: whole tensors in their shapes; of cut ones no rate of another channel,
    as the first dt beside all A would give, which might be one number for all channels.
    """
    torch.multiprocessing.start_processes(read_flat_parts, (str(tmp_path),), 2, start_method="fork")
    first, second = (torch.load(tmp_path / str(rank), weights_only=False) for rank in range(2))
    watched = plkernel.watch(of_flat_parts(), decays=FLAT_DECAYS)
    assert np.array_equal(first[0]["whole"], watched._start["whole"])
    halves = (first[0]["lone"], second[0]["lone"])
    assert np.array_equal(np.concatenate(halves), watched._start["lone"].ravel())
    assert set(first[0]) == {"whole", "lone"}
    assert set(second[0]) == {"lone"}
    assert "must be whole in this process for decays of" in first[1][0]
    assert re.search(r"got \d numbers of \(4, 3\) in a row", " ".join(first[1]))
    assert first[2] == second[2] == []


def test_the_trainer_of_transformers_gets_scalars_through_its_logs() -> None:
    """Its callback handler, as its trainer calls it."""
    pytest.importorskip("transformers")
    from transformers import TrainerControl, TrainerState
    from transformers.trainer_callback import CallbackHandler

    received: list[tuple[int, dict[str, float]]] = []
    watched, state = model(1), TrainerState()
    state.max_steps = 40
    args: Any = SimpleNamespace()
    control = TrainerControl()
    handler = CallbackHandler([], watched, None, adamw(watched.parameters()), None)

    def log(logs: dict[str, float]) -> None:
        received.append((state.global_step, dict(logs)))
        handler.on_log(args, state, control, logs)

    callback = trainer_callback(SimpleNamespace(log=log), every=10)
    handler.add_callback(callback)
    handler.on_train_begin(args, state, control)
    for step in range(1, 41):
        state.global_step, control.should_log = step, True
        assert handler.on_step_end(
            args, state, control
        ).should_log  # the trainer's own logs of the same step
    assert [step for step, _ in received] == [10, 20, 30, 40]
    scales = [logs["decay/A_log/scale_at_end"] for _, logs in received]
    assert scales == pytest.approx([(1 - 3e-5) ** left for left in (30, 20, 10, 0)], rel=1e-9)
    state.global_step = 30  # of a run that goes on
    handler.on_train_begin(args, state, control)
    told = [one.seen for one in callback.watch.findings if one.name == "weight decay"]
    assert [" in 10 steps, " in one for one in told] == [True, True]


def test_loggers_of_lightning_get_scalars_of_their_step() -> None:
    received: list[tuple[int, dict[str, float]]] = []
    watched = model(1)
    logger = SimpleNamespace(log_metrics=lambda scalars, step: received.append((step, scalars)))
    trainer = SimpleNamespace(
        optimizers=[adamw(watched.parameters())], estimated_stepping_batches=math.inf
    )
    trainer.loggers, trainer.global_step = [logger], 0
    callback = lightning_callback(every=2)
    callback.on_train_start(trainer, watched)
    for batch in range(8):  # two batches to a step
        trainer.global_step = (batch + 1) // 2
        callback.on_train_batch_end(trainer, watched, None, None, batch)
    assert [step for step, _ in received] == [2, 4]
    assert received[0][1]["decay/A_log/lr"] == 3e-4


@pytest.mark.parametrize("count", [1, 2, 3])
def test_lightning_counts_the_steps_of_all_optimizers(count: int) -> None:
    """Its global_step and max_steps do; half-lives go to the step of the batch."""
    received: list[int] = []
    watched = model(1)
    logger = SimpleNamespace(log_metrics=lambda scalars, step: received.append(step))
    optimizers = [adamw([one]) for one in watched.parameters()][:count]
    optimizers[-1] = adamw([one for one in watched.parameters()])
    trainer = SimpleNamespace(optimizers=optimizers, loggers=[logger], global_step=2 * count)
    trainer.max_steps = trainer.estimated_stepping_batches = 8 * count
    callback = lightning_callback(every=3)
    callback.on_train_start(trainer, watched)
    assert (callback.watch.step, callback.watch.steps) == (2, 8)
    for batch in range(3, 9):
        trainer.global_step = batch * count
        callback.on_train_batch_end(trainer, watched, None, None, batch)
    assert received == [3, 6]
    trainer.estimated_stepping_batches = 5  # of an epoch, which are batches
    callback.on_train_start(trainer, watched)
    assert callback.watch.steps == 5


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("step", [10, np.int64(10), np.array(10), torch.tensor(10)])
def test_a_step_may_be_an_array_or_a_tensor_of_one_whole_number(step: Any) -> None:
    watched = plkernel.watch(model(), every=10)
    assert watched(step)
    assert type(watched.step) is int
    assert watched.step == 10


def test_torch_and_numpy_are_enough(without: Callable[..., tuple[int, str, str]]) -> None:
    """Importing any other declared dependency fails."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    declared = [re.split(r"[<>=;\[ ]", one)[0] for one in project["dependencies"]]
    names = {*declared, "transformers", "lightning", "pytorch_lightning"} - {"torch", "numpy"}
    assert "scipy" in names

    def act() -> None:
        anew: Any = importlib.import_module("plkernel")
        assert anew is not plkernel
        one = nn.Module()
        one.layer = nn.Module()
        one.layer.A_log, one.layer.dt_bias = (
            nn.Parameter(torch.rand(4)),
            nn.Parameter(torch.rand(4)),
        )  # type: ignore
        optimizer = SimpleNamespace(param_groups=anew.decay_param_groups(one, 0.1))
        print(len(anew.watch(one, optimizer, every=1, steps=9)()))

    assert without(names, act) == (0, "18\n", "")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 0}, "every must be at least 1, got 0"),
        ({"step": -1}, "step must be at least 0, got -1"),
        ({"context": 0}, "context must be above 0, got 0"),
        ({"optimizer": []}, "optimizer must be an optimizer or several, got none; leave it out"),
        ({"optimizer": {}}, "optimizer must be an optimizer or several, got none; leave it out"),
        ({"optimizer": 3}, "optimizer must be an optimizer with param_groups, or a list"),
    ],
)
def test_options_below_their_least_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plkernel.watch(model(), **options)


def test_half_lives_of_a_layer_over_patches_are_in_tokens() -> None:
    """A patch of 4: half-lives of 1/2, 2, 8 and 32 patches are of 2, 8, 32 and 128 tokens."""
    watched = model(1)
    watched.layers[0].mixer.tokens_per_step = 4  # type: ignore[union-attr, index]
    found = plkernel.watch(watched, context=20).read()
    lives = [found[f"decay/layer0/half_life_{one}"] for one in ("min", "max")]
    assert lives == pytest.approx([2.0, 128.0])
    assert found["decay/layer0/below_token"] == 0.0
    assert found["decay/layer0/beyond_context"] == 0.5


@pytest.mark.parametrize("tokens", [524_288, 5e5])
@pytest.mark.parametrize("place", ["", "layers", "layers.0"])
def test_tokens_per_step_of_a_module_around_the_layer_are_those_of_a_trainer(
    tokens: Any, place: str
) -> None:
    watched = model(1)
    watched.get_submodule(place).tokens_per_step = tokens
    watch = plkernel.watch(watched)
    assert watch.unseen == {}
    assert watch.read()["decay/layer0/half_life_max"] == pytest.approx(32.0)
    [layer] = live_layers(watched, {})
    assert layer.tokens_per_step == 1


@pytest.mark.parametrize("kind", ["plain", "parametrised", "listed", "alone"])
def test_the_module_that_holds_stated_decays_says_the_tokens_of_a_step(kind: str) -> None:
    """Also where its parameter is in a container, and where it is the whole model."""
    layer = nn.Module()
    decays = nn.Parameter(torch.full((4,), 0.5))
    if kind == "listed":
        layer.decays = nn.ParameterList([decays])
    else:
        layer.decays = decays
    if kind == "parametrised":
        parametrize.register_parametrization(layer, "decays", nn.Identity())
    layer.tokens_per_step = 4  # type: ignore[assignment]
    watched = layer if kind == "alone" else nn.ModuleDict({"mixer": layer})
    found = plkernel.watch(watched, decays={"*decays*": lambda x: x}).read()
    [longest] = [value for name, value in found.items() if name.endswith("/half_life_max")]
    assert longest == pytest.approx(4.0)


@pytest.mark.parametrize("wrap", [lambda one: one, lambda one: nn.ModuleDict({"model": one})])
@pytest.mark.parametrize("compiled", [False, True])
def test_half_lives_of_our_own_patches_are_those_that_the_model_tells(
    wrap: Callable[[nn.Module], nn.Module], compiled: bool
) -> None:
    patched = SSM(SSMConfig(dim=8, layers=1, patch=4))
    patched.place_(plkernel.place(8, longest=300.0))
    inner: Any = torch.compile(patched, backend="eager") if compiled else patched
    watched = wrap(inner)
    found = plkernel.watch(watched).read()
    expected = patched.half_lives()[0]
    assert found["decay/layer0/half_life_min"] == pytest.approx(float(expected.min()))
    assert found["decay/layer0/half_life_max"] == pytest.approx(float(expected.max()))
    assert found["decay/layer0/below_token"] == 0.0


@pytest.mark.parametrize("tokens", [0, 2.0, True, "4"])
def test_tokens_of_a_step_are_a_whole_number(tokens: Any) -> None:
    watched = model(1)
    watched.layers[0].mixer.tokens_per_step = tokens  # type: ignore[union-attr, index]
    with pytest.warns(UserWarning, match="no layer can be read"):
        watch = plkernel.watch(watched)
    message = f"tokens_per_step must be a whole number, at least 1, got {tokens!r}"
    assert message in watch.unseen["layers.0.mixer"]


def test_a_reading_is_due_every_so_many_steps_and_once() -> None:
    watch = plkernel.watch(model(1), every=3, step=1)
    assert [bool(watch()) for _ in range(6)] == [False, True, False, False, True, False]
    assert watch.step == 7
    assert [bool(watch(step)) for step in (8, 9, 9, 10, 12)] == [False, True, False, False, True]
    each = plkernel.watch(model(1), every=1, context=0.5)
    assert each()["decay/layer0/beyond_context"] == 0.75, "half a token is not beyond itself"


def test_a_layer_that_forgets_within_a_token_has_collapsed() -> None:
    """All of its half-lives are, and at the start one was not; rounding of a token is no fall."""
    watched = model(1)
    scale = watched.layers[0].mixer.A_log.detach().exp()  # type: ignore[union-attr, index]

    def have(tokens: float) -> None:
        rates = np.full_like(RATES, np.log(2) / tokens)
        rates[0] = np.log(2) / 0.5
        steps = torch.from_numpy(rates) / scale
        change(watched, "dt_bias", steps.expm1().log(), layer=0)

    have(1.0)
    with warnings.catch_warnings(action="ignore"):
        watch = plkernel.watch(watched, every=1)
    for tokens, collapsed in ((0.981, False), (0.979, True)):
        have(tokens)
        with warnings.catch_warnings(action="ignore"):
            watch()
        assert ("collapsed" in {one.name for one in watch.findings}) is collapsed
    [one] = [one for one in watch.findings if one.name == "collapsed"]
    assert one.seen == "half-lives of 0.5 .. 1 tokens at the start are 0.5 .. 0.979"


@pytest.mark.filterwarnings("ignore")
def test_a_step_that_half_precision_rounds_away_is_counted() -> None:
    """Half a spacing of bfloat16 is 2**-9 from 1/2 to 1, and 2**-8 from 1 to 2."""
    watched = model(1)
    watched.layers[0].mixer.A_log.data = torch.tensor([0.5, 1.0, 1.5, 2.0]).bfloat16()  # type: ignore[union-attr, index]
    for rate, lost in ((2.0**-8, 1), (2.0**-9, 3), (2.0**-9 * 0.99, 4)):
        watch = plkernel.watch(watched, adamw(watched.parameters(), lr=rate))
        [told] = [one.seen for one in watch.findings if one.name == "half precision"]
        assert told.startswith(f"is bfloat16: in {lost} of 4 numbers a step of {rate:g}")


@pytest.mark.filterwarnings("ignore")
def test_what_weight_decay_leaves_at_the_end_is_of_the_steps_left() -> None:
    watched = model(1)
    watch = plkernel.watch(watched, adamw(watched.parameters(), lr=0.1), steps=10, step=7)
    assert watch.read()["decay/A_log/scale_at_end"] == pytest.approx(0.99**3, rel=1e-12)
    watch.step = 12
    assert watch.read()["decay/A_log/scale_at_end"] == 1.0
    huge = plkernel.watch(watched, adamw(watched.parameters(), lr=20.0), steps=1)
    assert huge.read()["decay/A_log/scale_at_end"] == 0.0
    unknown = plkernel.watch(watched, adamw(watched.parameters(), lr=0.1))
    assert "decay/A_log/scale_at_end" not in unknown.read()
    [told] = {one.seen for one in unknown.findings if one.name == "weight decay"}
    assert told == "is 0.1, at a learning rate of 0.1"


@pytest.mark.filterwarnings("ignore")
def test_settings_of_several_groups_are_the_largest_and_the_smallest_scale() -> None:
    watched = model(2)
    groups = [
        {"params": list(watched.layers[0].parameters()), "lr": 0.1, "weight_decay": 0.1},  # type: ignore[union-attr, index]
        {"params": list(watched.layers[1].parameters()), "lr": 0.2, "weight_decay": 0.0},  # type: ignore[union-attr, index]
    ]
    seen = plkernel.watch(watched, torch.optim.AdamW(groups), steps=2).read()
    assert (seen["decay/A_log/lr"], seen["decay/A_log/weight_decay"]) == (0.2, 0.1)
    assert seen["decay/A_log/scale_at_end"] == pytest.approx(0.99**2, rel=1e-12)
    assert seen["decay/A_log/frozen"] == 0.0


@pytest.mark.parametrize(
    ("group", "lr", "peak", "weight_decay", "is_decoupled"),
    [
        (None, 0.0, 0.0, 0.0, True),
        ({"lr": 1.0}, 1.0, 1.0, 0.0, True),
        ({"lr": 1.0, "initial_lr": 2.0}, 1.0, 2.0, 0.0, True),
        ({"lr": 1.0, "initial_lr": 2.0, "max_lr": 3.0}, 1.0, 3.0, 0.0, True),
        ({"lr": 1.0, "weight_decay": 0.5, "momentum": 0.9}, 1.0, 1.0, 0.5, False),
        ({"lr": 1.0, "momentum": 0.0}, 1.0, 1.0, 0.0, True),
        ({"lr": 1.0, "rho": 0.9}, 1.0, 1.0, 0.0, False),
        ({"lr": 1.0, "decoupled_weight_decay": False}, 1.0, 1.0, 0.0, False),
        ({"lr": 1.0, "rho": 0.9, "decoupled_weight_decay": True}, 1.0, 1.0, 0.0, True),
    ],
)
def test_what_a_parameter_group_says(
    group: Any, lr: float, peak: float, weight_decay: float, is_decoupled: bool
) -> None:
    one = _Treated("m", "A_log", "m.A_log", True, group)
    assert (one.lr, one.peak, one.weight_decay, one.is_decoupled) == (
        lr,
        peak,
        weight_decay,
        is_decoupled,
    )
    assert one.moves is (group is not None)
    assert not _Treated("m", "A_log", "m.A_log", False, group).moves


@pytest.mark.parametrize("options", [{"weight_decay": -0.1}, {"decay_lr": -1.0}])
def test_groups_take_no_numbers_below_zero(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"{min(options)} must be a number from 0, got -"):
        plkernel.decay_param_groups(model(), **options)


def test_a_group_without_parameters_is_left_out() -> None:
    """And a learning rate of 0 is one."""
    watched = model(1)
    watched.layers[0].mixer.in_proj.weight.requires_grad_(False)  # type: ignore[union-attr, index]
    [group] = plkernel.decay_param_groups(watched, decay_lr=0.0)
    assert (group["weight_decay"], group["lr"], len(group["params"])) == (0.0, 0.0, 3)
    watched = model(1)
    others, spared = plkernel.decay_param_groups(watched)
    assert (others["weight_decay"], spared["weight_decay"]) == (0.0, 0.0)
    assert "lr" not in spared


@pytest.mark.parametrize(
    ("modules", "labels"),
    [
        (["a.layers.3.m", "a.layers.4.m"], ["layer3", "layer4"]),
        (["a.layers.3.m", "b.layers.3.m"], ["a.layers.3.m", "b.layers.3.m"]),
        (["layers.0.m", "layers.0.m:b"], ["layer0", "layer0:b"]),
        (["mixer", ""], ["mixer", PARENT]),
    ],
)
def test_names_of_scalars_are_short_unless_two_would_be_alike(
    modules: list[str], labels: list[str]
) -> None:
    assert list(_labels(modules).values()) == labels


@pytest.mark.parametrize("count", [3, 4])
def test_three_names_like_decays_are_told(count: int) -> None:
    watched: Any = model(1)
    for at in range(count):
        watched.layers[0].mixer.register_parameter(
            f"A_log_{'abcd'[at]}x", nn.Parameter(torch.ones(3))
        )
    with pytest.warns(UserWarning, match="named like decays, but no formula") as told:
        plkernel.decay_param_groups(watched)
    [said] = [str(one.message) for one in told]
    assert said.count("A_log_") == 3
    assert (" ..: named" in said) is (count == 4)
