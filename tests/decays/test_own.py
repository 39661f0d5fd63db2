"""Layers of somebody's own: statements in Python and TOML, and what reads them."""

import math
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import plkernel
from plkernel.analysis.parametrisations import FORMS
from plkernel.commands.inspect import command as inspect
from plkernel.decays.inspection import inspected
from plkernel.decays.own import (
    Statement,
    own_layers,
    read_statements,
    statements,
    suggestion,
)
from plkernel.decays.rates import half_lives
from plkernel.models.spectrum import Ordered
from plkernel.testing import assert_decays_survive

SIGMOID = {"*.decay": "sigmoid"}
BESIDE: dict[str, Any] = {
    "dt_bias": -3.0,
    "a_log": 0.5,
    "gate_bias": 0.3,
    "bound": 5.0,
    "log_step": -2.0,
}
"""A number for what a form needs."""


class Mixer(nn.Module):
    """A layer of somebody's own: sigmoid(decay), half-lives log-spaced from 1 to 500."""

    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        self.decay = nn.Parameter(torch.empty(channels))
        self.out = nn.Linear(channels, channels)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.decay.is_meta:
            return
        nodes = plkernel.place(len(self.decay), longest=500, gain="ema")
        plkernel.apply(nodes, self.decay, parametrisation="sigmoid")


class Net(nn.Module):
    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(8, 16)
        self.layers = nn.ModuleList([Mixer() for _ in range(layers)])


def file_of(folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    save_file(tensors, folder / "model.safetensors")
    return folder / "model.safetensors"


def half_lives_in(model: Path | str, decays: Any) -> np.ndarray:
    return np.concatenate(
        [half_lives(one.rates).ravel() for one in inspected(str(model), decays).layers]
    )


def test_half_lives_that_collapse_to_less_than_a_byte_are_shown_and_warned_of() -> None:
    model = Net()
    watch = plkernel.watch(model, every=1, decays=SIGMOID)
    assert watch.findings == [], "as they begin"
    scalars = watch.read()
    for layer in ("layers.0", "layers.1"):
        assert scalars[f"decay/{layer}/half_life_min"] == pytest.approx(1, rel=1e-5)
        assert scalars[f"decay/{layer}/half_life_max"] == pytest.approx(500, rel=1e-5)
    collapsed = 0.5 ** (1 / 0.9)
    with torch.no_grad():
        model.layers[1].decay.fill_(math.log(collapsed / (1 - collapsed)))
    words = "collapsed: layers.1.decay: half-lives of 1 .. 500 tokens at the start are 0.9 .. 0.9"
    with pytest.warns(UserWarning, match=re.escape(words)):
        scalars = watch()
    assert scalars["decay/layers.1/half_life_p50"] == pytest.approx(0.9, rel=1e-6)
    assert scalars["decay/layers.1/below_token"] == 1.0
    assert scalars["decay/layers.0/half_life_max"] == pytest.approx(500, rel=1e-5)
    assert [one.severity for one in watch.findings if one.name == "collapsed"] == ["wrong"]


def test_a_layer_that_forgot_at_the_start_has_not_collapsed() -> None:
    model = Net(1)
    with torch.no_grad():
        model.layers[0].decay.copy_(torch.linspace(-3.0, -1.0, 16))  # half-lives below one token
    watch = plkernel.watch(model, every=1, decays=SIGMOID)
    with torch.no_grad():
        model.layers[0].decay -= 1.0
    watch()
    assert "collapsed" not in [one.name for one in watch.findings]


def have(model: Net, *half_lives_wanted: float) -> None:
    """Give all layers these half-lives in turn, to the last evenly spaced by their logarithm."""
    tokens = torch.tensor(np.geomspace(*half_lives_wanted, 16))
    a = 0.5 ** (1 / tokens)
    with torch.no_grad():
        for layer in model.layers:
            layer.decay.copy_((a / (1 - a)).log())


@pytest.mark.parametrize(
    ("first", "now", "collapsed"),
    [
        ((1.0, 500.0), (0.34, 1.88), True),
        ((1.0, 500.0), (0.4, 7.9), True),
        ((1.0, 500.0), (0.4, 8.1), False),
        ((1.0, 78.0), (0.4, 7.9), False),  # a tenth of what it was, and no less
        ((1.0, 4.0), (1.0, 1.1), False),  # it was short from the start
        ((1.0, 1.0), (0.99, 0.99), False),  # equal from the start, and rounded
        ((1.0, 500.0), (100.0, 100.0), True),
        ((100.0, 100.0), (50.0, 50.0), False),
    ],
)
def test_what_has_collapsed_is_warned_of(
    first: tuple[float, float], now: tuple[float, float], collapsed: bool
) -> None:
    """A layer far shorter than at the start, or all of whose half-lives became one."""
    model = Net(1)
    have(model, *first)
    watch = plkernel.watch(model, every=1, decays=SIGMOID)
    have(model, *now)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        watch()
    words = (
        f"half-lives of {first[0]:.3g} .. {first[1]:.3g} tokens at the start are {now[0]:.3g} .."
        f" {now[1]:.3g}"
    )
    expected = [f"decays at step 1: collapsed: layers.0.decay: {words}"] if collapsed else []
    assert [str(one.message) for one in told] == expected


def test_findings_are_in_the_words_of_the_last_reading() -> None:
    """The warning stays one, and what was wrong is not taken back."""
    model = Net(1)
    watch = plkernel.watch(model, every=1, decays=SIGMOID)
    have(model, 0.5, 100.0)
    watch()
    [one] = watch.findings
    before = one.seen
    have(model, 0.25, 6.0)
    with pytest.warns(UserWarning, match="collapsed") as told:
        watch()
    have(model, 0.125, 3.0)
    watch()
    assert len(told) == 1
    seen = {one.name: one.seen for one in watch.findings}
    assert before.endswith("the shortest 0.5")
    assert seen["below one token"].endswith("the shortest 0.125")
    assert seen["collapsed"].endswith("at the start are 0.125 .. 3")
    have(model, 1.0, 500.0)
    watch()
    assert len(watch.findings) == 2, "all since the start"


def test_a_shortest_half_life_of_one_token_may_be_rounded_or_move_a_little() -> None:
    """As `place` begins, with 0.999 after the first steps."""
    model = Net(1)
    watch = plkernel.watch(model, every=1, decays=SIGMOID)
    with torch.no_grad():
        model.layers[0].decay -= 1e-3
    assert 0.998 < watch()["decay/layers.0/half_life_min"] < 1.0
    assert watch.findings == []


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_read_as_the_table_of_forms_says(form: str, tmp_path: Path) -> None:
    """In files and live, and what `apply` has written comes back."""
    beside = {name: BESIDE[name] for name in FORMS[form].needs}
    layer = Mixer(6)
    nodes = plkernel.place(6, shortest=2, longest=100, gain="ema")
    plkernel.apply(nodes, layer.decay, parametrisation=form, **beside)
    decays = {"*.decay": {"form": form, **beside}}
    model = nn.ModuleDict({"mix": layer})
    path = file_of(tmp_path, {"mix.decay": layer.decay.detach()})
    expected = np.geomspace(2, 100, 6)
    # Parameters of up to 10 are rounded to 2**-24 of themselves, and rates move by as much as e**x.
    assert np.sort(half_lives_in(path, decays)) == pytest.approx(expected, rel=2e-6)
    scalars = plkernel.watch(model, decays=decays).read()
    assert scalars["decay/mix/half_life_max"] == pytest.approx(100, rel=2e-6)


def test_what_a_form_needs_stands_beside_by_pattern() -> None:
    """Each star stands for what it stood for: a dt_bias of the same layer, one for each row."""
    model = nn.ModuleDict({"layers": nn.ModuleList([nn.Module(), nn.Module()])})
    steps = torch.tensor([-4.0, -3.0, -2.0])
    for index, layer in enumerate(model["layers"]):
        layer.A = nn.Parameter(torch.linspace(0.0, 1.0, 12).reshape(3, 4) + index)
        layer.dt = nn.Parameter(steps - index)
    decays = {"layers.*.A": {"form": "a_log", "dt_bias": "layers.*.dt"}}
    watch = plkernel.watch(model, decays=decays)
    for index, layer in enumerate(model["layers"]):
        a, dt = layer.A.detach().double(), layer.dt.detach().double()
        rates = a.exp() * torch.nn.functional.softplus(dt)[:, None]
        expected = math.log(2) / rates.min()
        name = f"decay/layer{index}/half_life_max"
        assert watch.read().get(name, watch.read().get(f"decay/layers.{index}/half_life_max")) == (
            pytest.approx(expected.item(), rel=1e-12)
        )


@pytest.mark.parametrize(
    ("shape", "beside", "rows"),
    [
        ((4, 4), (4, 1), "columns"),
        ((4, 4), (1, 4), "rows"),
        ((2, 3, 4), (1, 3, 1), "rows and states"),
        ((2, 3), (6,), "nothing"),
        ((2, 3), (6, 1), "nothing"),
        ((2, 2, 3), (4, 3), "nothing"),
        ((3, 4), (1, 3), "columns"),
    ],
)
def test_what_stands_beside_goes_with_a_parameter_in_one_way_alone(
    shape: tuple[int, ...], beside: tuple[int, ...], rows: str, tmp_path: Path
) -> None:
    """rows: along what the numbers beside are the same."""
    a = torch.linspace(0.0, 1.0, math.prod(shape)).reshape(shape)
    dt = torch.linspace(-4.0, -2.0, math.prod(beside)).reshape(beside)
    decays = {"*.A": {"form": "a_log", "dt_bias": "*.dt"}}
    path = file_of(tmp_path, {"m.A": a, "m.dt": dt})
    if rows == "nothing":
        dt = dt.reshape(shape)
    elif beside == (1, 3):
        dt = dt.reshape(3, 1)
    steps = np.logaddexp(0.0, dt.double().numpy())
    expected = np.exp(a.double().numpy()) * steps
    [layer] = inspected(str(path), decays).layers
    np.testing.assert_allclose(layer.rates, expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("shape", "beside"),
    [((2, 3), (3, 2)), ((2, 3, 4), (3, 2)), ((4, 4), (4,)), ((2, 3), (3, 2, 1))],
)
def test_what_stands_beside_in_another_shape_is_refused(
    shape: tuple[int, ...], beside: tuple[int, ...], tmp_path: Path
) -> None:
    path = file_of(tmp_path, {"m.A": torch.rand(shape), "m.dt": torch.rand(beside)})
    message = f"m: dt_bias must .* got {re.escape(f'{beside} for {shape}')}"
    with pytest.raises(ValueError, match=message):
        inspected(str(path), {"*.A": {"form": "a_log", "dt_bias": "*.dt"}})


@pytest.mark.parametrize("kind", ["identity", "weight norm"])
@pytest.mark.parametrize("which", [[1], [0, 1]])
def test_parameter_groups_spare_what_a_parametrised_decay_is_made_of(
    kind: str, which: list[int], recwarn: pytest.WarningsRecorder
) -> None:
    model = Net()
    for layer in model.layers:
        layer.decay = nn.Parameter(torch.linspace(1.0, 5.0, 16).reshape(2, 8))
    for index in which:
        if kind == "identity":
            parametrize.register_parametrization(model.layers[index], "decay", nn.Identity())
        else:
            parametrizations.weight_norm(model.layers[index], "decay")
    _, spared = plkernel.decay_param_groups(model, 0.1, decays=SIGMOID)
    names = {id(one): name for name, one in model.named_parameters()}
    found = {names[id(one)] for one in spared["params"]}
    assert found == {name for name in names.values() if "decay" in name}
    assert not recwarn.list


def test_half_lives_of_a_parametrised_decay_are_those_of_what_is_made() -> None:
    class Half(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x / 2 + torch.rand(()) if self.training else x / 2

    plain = Net(1)
    model = Net(1)
    with torch.no_grad():
        plain.layers[0].decay.copy_(model.layers[0].decay / 2)
    parametrize.register_parametrization(model.layers[0], "decay", Half())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    state = torch.get_rng_state()
    watch = plkernel.watch(model, optimizer, steps=100, decays=SIGMOID)
    found = watch.read()
    assert torch.equal(torch.get_rng_state(), state), "nothing is drawn for a reading"
    assert model.layers[0].parametrizations.decay[0].training
    expected = plkernel.watch(plain, decays=SIGMOID).read()
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-12), name
    assert found["decay/decay/weight_decay"] == pytest.approx(0.1)
    assert "weight decay" in [one.name for one in watch.findings]


def test_a_parametrised_decay_in_a_file_is_not_read_as_the_decay(tmp_path: Path) -> None:
    stored = "l.1.parametrizations.decay.original"
    path = file_of(tmp_path, {"l.0.decay": torch.rand(4), stored: torch.rand(4)})
    message = f"got l.1.decay: {stored} is what a parametrization makes decay of.* form of {stored}"
    with pytest.raises(ValueError, match=message):
        inspected(str(path), SIGMOID)
    layers = inspected(str(path), {**SIGMOID, "*.original": "sigmoid"}).layers
    assert [one.names["x"] for one in layers] == ["l.0.decay", stored]


def test_a_function_gives_decays_of_any_kind() -> None:
    model = Net(1)
    gate = nn.Parameter(torch.tensor(0.25))
    model.layers[0].gate = gate

    def decays_of(x: torch.Tensor, gate: torch.Tensor, power: float) -> torch.Tensor:
        assert x.dtype is torch.float64
        return torch.polar(torch.sigmoid(x) ** (gate * power), x)

    stated = {"*.decay": {"form": decays_of, "gate": "*.gate", "power": 2.0}}
    scalars = plkernel.watch(model, decays=stated).read()
    assert scalars["decay/layers.0/half_life_max"] == pytest.approx(1000, rel=1e-5)
    numpy = {"*.decay": lambda x: 1 / (1 + np.exp(-x.numpy()))}
    scalars = plkernel.watch(model, decays=numpy).read()
    assert scalars["decay/layers.0/half_life_max"] == pytest.approx(500, rel=1e-5)


def test_parameter_groups_spare_what_is_stated_and_leave_what_stands_beside_it() -> None:
    model = Net()
    model.layers[0].D = nn.Parameter(torch.ones(3))
    others, decays = plkernel.decay_param_groups(model, weight_decay=0.1, decays=SIGMOID)
    assert others["weight_decay"] == 0.1
    assert decays["weight_decay"] == 0.0
    spared = {id(one) for one in decays["params"]}
    assert spared == {id(layer.decay) for layer in model.layers}
    assert id(model.layers[0].D) in {id(one) for one in others["params"]}, "D of what layer?"


def test_a_statement_overrides_a_family() -> None:
    model = nn.ModuleDict({"lru": nn.Module()})
    model["lru"].nu_log = nn.Parameter(torch.linspace(-2.0, 0.0, 4))  # exp(-exp(nu_log)) by name
    by_name = plkernel.watch(model).read()["decay/lru/half_life_max"]
    assert by_name == pytest.approx(math.log(2) * math.exp(2.0))
    stated = plkernel.watch(model, decays={"lru.nu_log": "sigmoid"}).read()
    assert stated["decay/lru/half_life_max"] == pytest.approx(1.0)


def test_two_decays_of_a_module_are_told_apart() -> None:
    model = nn.ModuleDict({"mix": nn.Module()})
    model["mix"].fast = nn.Parameter(torch.zeros(4))
    model["mix"].slow = nn.Parameter(torch.linspace(4.0, 5.0, 4))
    scalars = plkernel.watch(model, decays={"mix.*": "sigmoid"}).read()
    assert scalars["decay/mix:fast/half_life_max"] == pytest.approx(1.0)
    assert scalars["decay/mix:slow/half_life_max"] > 50


def test_a_bare_layer_goes_by_its_own_names() -> None:
    scalars = plkernel.watch(Mixer(), decays={"decay": "sigmoid"}).read()
    assert scalars["decay/layer/half_life_max"] == pytest.approx(500, rel=1e-5)


def compiled_inside() -> nn.Module:
    model = Net()
    model.layers[1] = torch.compile(model.layers[1], backend="eager")
    return model


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda: torch.compile(Net(), backend="eager"),
        lambda: nn.DataParallel(Net()),
        lambda: torch.compile(nn.DataParallel(Net()), backend="eager"),
        compiled_inside,
    ],
    ids=["compiled", "parallel", "compiled parallel", "compiled inside"],
)
@pytest.mark.parametrize("pattern", ["layers.*.decay", "layers.0.decay"])
def test_patterns_and_scalars_have_the_names_without_wrappers(
    wrapped: Callable[[], nn.Module], pattern: str, tmp_path: Path
) -> None:
    model = wrapped()
    plain = plkernel.watch(Net(), decays={pattern: "sigmoid"}).read()
    assert plkernel.watch(model, decays={pattern: "sigmoid"}).read().keys() == plain.keys()
    path = file_of(tmp_path, model.state_dict())
    assert half_lives_in(path, {pattern: "sigmoid"}).max() == pytest.approx(500, rel=1e-5)
    with pytest.raises(ValueError, match=r"got none of .*did you mean 'layers.1.decay'"):
        plkernel.watch(model, decays={"layers.*.decays": "sigmoid"})


def test_a_pattern_matches_layers_with_and_without_a_wrapper() -> None:
    """One compiled layer of many is not left out, and tensors beside it may have another one."""
    names = [
        "layers.0.mixer.decay",
        "layers.1.mixer._orig_mod.decay",
        "layers._fsdp_wrapped_module.2.mixer.decay",
        *(f"scales.{layer}.step" for layer in range(3)),
    ]
    stated = {"layers.*.mixer.decay": {"form": "real_part", "log_step": "scales.*.step"}}
    found = own_layers(names, statements(stated))
    assert {one["x"]: one["log_step"] for _, _, one in found} == {
        name: f"scales.{layer}.step" for layer, name in enumerate(names[:3])
    }
    assert len(found) == 3
    alone = own_layers(names, statements({"layers.1.mixer._orig_mod.decay": "sigmoid"}))
    assert [one["x"] for _, _, one in alone] == [names[1]]


def test_a_module_that_is_called_as_a_wrapper_is_no_second_match() -> None:
    found = own_layers(["decay", "module.decay"], statements({"decay": "sigmoid"}))
    assert [one["x"] for _, _, one in found] == ["decay"]


def test_constants_are_notable_where_no_initialisation_is_known() -> None:
    model = Net(1)
    nn.init.constant_(model.layers[0].decay, 3.0)
    found = plkernel.watch(model, decays=SIGMOID).findings
    assert {one.severity for one in found} == {"notable"}
    with torch.no_grad():
        model.layers[0].decay[3] = float("nan")
    with pytest.warns(UserWarning, match="NaN"):
        found = plkernel.watch(model, decays=SIGMOID).findings
    assert "wrong" in {one.severity for one in found}


WRONG: list[tuple[Any, str]] = [
    ({}, "decays must be forms by pattern of parameter names"),
    ("sigmoid", "decays must be forms by pattern of parameter names"),
    ({3: "sigmoid"}, "patterns of parameter names as keys"),
    ({"": "sigmoid"}, "patterns of parameter names as keys"),
    ({"*.decay": 3}, "must be the name of a form, a function, or a table"),
    ({"*.decay": {"bound": 3.0}}, "must be the name of a form, a function, or a table"),
    ({"*.decay": "sigmod"}, "got 'sigmod'; did you mean 'sigmoid'?"),
    ({"*.dacay": "sigmoid"}, "'*.dacay' must match the name of a parameter, got none of 7;"),
    ({"*.decay": "a_log"}, "must give dt_bias, which the form 'a_log' needs"),
    ({"*.decay": {"form": "sigmoid", "dt_bias": 1.0}}, "must have no keys but form, cap, got"),
    ({"*.decay": {"form": "sigmoid", "cap": 0.0}}, "cap must be above 0, got 0"),
    ({"*.decay": {"form": "sigmoid", "cap": math.nan}}, "cap must be a pattern"),
    ({"*.decay": {"form": "sigmoid", "cap": True}}, "cap must be a pattern"),
    ({"*.decay": {"form": abs, "x": 1.0}}, "x must be the name of an argument"),
    ({"*.decay": {"form": "a_log", "dt_bias": "*.*.dt"}}, "must have no more stars than"),
    ({"*.decay": {"form": "a_log", "dt_bias": "*.dt"}}, "must name a parameter, got 'layers.0.dt'"),
    ({"*.decay": "sigmoid", "*1.decay": "log_rate"}, "must give a parameter one form"),
    (
        {"*.decay": {"form": "a_log", "dt_bias": "embed.weight"}},
        "layers.0: dt_bias must hold as many numbers as the parameter, one, or one for each row",
    ),
    ({"*.out.weight": {"form": "a_log", "dt_bias": "*.decay"}}, "got (16,) for (16, 16)"),
    ({"*.decay": lambda x: x.nothing}, "the function raised AttributeError"),
    ({"*.decay": lambda x: "a"}, "must return decays a as numbers, got 'a'"),
    ({"*.decay": lambda x: None}, "must return decays a as numbers, got None"),
    ({"*.decay": lambda x: x > 0}, "must return decays a as numbers, got torch.bool"),
    (
        {"*.decay": lambda x: torch.sigmoid(x).mean()},
        "must return a decay for each channel, got shape () for layers.0.decay of shape (16,)",
    ),
    ({"*.decay": lambda x: torch.sigmoid(x[:1])}, "got shape (1,) for layers.0.decay of shape"),
    ({"*.decay": lambda x: x[:0]}, "must return decays a as numbers, got torch.float64 (0,)"),
]


@pytest.mark.parametrize(("decays", "message"), WRONG)
def test_what_is_stated_wrongly_is_told_in_one_line(
    decays: Any, message: str, tmp_path: Path
) -> None:
    """By everything that takes decays, before a step of training."""
    state = {name: tensor.detach() for name, tensor in Net().named_parameters()}
    path = file_of(tmp_path, state)
    readers: list[Callable[[], object]] = [
        lambda: plkernel.watch(Net(), decays=decays),
        lambda: plkernel.inspect(path, decays=decays),
        lambda: assert_decays_survive(Net, decays=decays, steps=["deepcopy"]),
    ]
    is_of_numbers = message.startswith(
        ("layers.0", "the function", "must return", "got (16", "got shape")
    )
    if not is_of_numbers:
        readers.append(lambda: plkernel.decay_param_groups(Net(), decays=decays))
    for read in readers:
        with pytest.raises(ValueError, match=re.escape(message)) as told:
            read()
        assert "\n" not in str(told.value)


def test_a_misfit_of_a_bare_layer_begins_with_the_decays() -> None:
    bare = nn.Module()
    bare.decay = nn.Parameter(torch.zeros(4))
    with pytest.raises(ValueError, match=r"^decays 'decay'"):
        plkernel.watch(bare, decays={"decay": lambda x: None})


def test_equal_forms_may_match_twice() -> None:
    decays = {"*.decay": "sigmoid", "layers.*": "sigmoid"}
    model = nn.ModuleDict({"layers": nn.ModuleList([nn.Module()])})
    model["layers"][0].decay = nn.Parameter(torch.linspace(1.0, 2.0, 4))
    assert len(plkernel.watch(model, decays=decays).read()) == len(
        plkernel.watch(model, decays=SIGMOID).read()
    )


def test_a_misfit_that_appears_in_training_does_not_stop_it() -> None:
    """A function is only held to its promise before the first step."""
    model = Net(1)

    def positive(x: torch.Tensor) -> torch.Tensor:
        assert float(x.min()) > -9
        return torch.sigmoid(x)

    watch = plkernel.watch(model, every=1, decays={"*.decay": positive})
    with torch.no_grad():
        model.layers[0].decay[0] = -10.0
    with pytest.warns(UserWarning, match="no layer can be read: .* raised AssertionError"):
        watch()
    assert list(watch.unseen) == ["layers.0"]


def test_the_refusal_of_an_unknown_layer_has_the_lines_to_write() -> None:
    """With the parameters found, in the error's line and below it; as they stand they work."""
    model = Net()
    for read in (plkernel.watch, plkernel.decay_param_groups):
        with pytest.raises(ValueError, match="must have a layer with known decays") as told:
            read(model)
        assert 'as decays={"layers.*.decay": "sigmoid"} if a = sigmoid(x), else' in str(told.value)
        assert str(told.value).endswith("form of plkernel.apply, or a function from x to a")
        [note] = told.value.__notes__
        lines = note.splitlines()
        assert lines[0] == 'decays = {"layers.*.decay": "sigmoid"}'
        assert lines[-1].startswith("# sigmoid is a guess, which reads a = sigmoid(x); write what")
        assert all(form in lines[-1] for form in FORMS)
        scope: dict[str, Any] = {"plkernel": plkernel, "model": model, "optimizer": None}
        exec("\n".join(lines), scope)
        assert scope["watch"].read()["decay/layers.1/half_life_max"] == pytest.approx(500, rel=1e-5)
        assert len(scope["groups"]) == 2


def test_likely_names_come_first() -> None:
    names = ["layers.0.out.weight", "layers.0.log_tau", "layers.1.log_tau", "norm.scale"]
    assert suggestion(names) == {"layers.*.log_tau": "sigmoid"}
    assert suggestion(["a.weight", "norm.scale"]) == {"norm.scale": "sigmoid"}
    assert suggestion(["0.a.weight"]) == {"*.a.weight": "sigmoid"}
    assert suggestion([]) == {}


def toml(folder: Path, text: str) -> Path:
    (folder / "own.toml").write_text(text)
    return folder / "own.toml"


def test_the_command_reads_a_file_and_tells_how_to_write_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], refused: Callable[..., str]
) -> None:
    state = {name: tensor.detach() for name, tensor in Net().named_parameters()}
    path = file_of(tmp_path, state)
    error = refused(inspect, path)
    assert 'such as "layers.*.decay" = "sigmoid" if a = sigmoid(x), else' in error
    with pytest.raises(ValueError, match=r"no formula is known for layers\.0\.decay"):
        inspect(path)
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["[decays]", '"layers.*.decay" = "sigmoid"']
    assert lines[2].endswith(f" {path} --decays FILE.toml")
    stated = toml(tmp_path, "\n".join(lines))
    inspect(path, decays=stated, compare=path)
    text = capsys.readouterr().out
    assert "own layer layers.*.decay, layers.0 .. (float32): a = sigmoid(x)" in text
    rows = [line.split() for line in text.splitlines()]
    levels = np.quantile(np.geomspace(1, 500, 16), [0.0, 0.1, 0.5, 0.9, 1.0])
    [row] = [row for row in rows if row[:1] == ["1"]]
    assert row[:7] == ["1", "16", *(f"{level:.3g}" for level in levels)]


def test_a_file_gives_tables_too(tmp_path: Path) -> None:
    path = file_of(tmp_path, {"m.A": torch.zeros(3), "m.dt": torch.tensor([-4.0, -3.0, -2.0])})
    text = '[decays]\n"*.A" = { form = "a_log", dt_bias = "*.dt" }\n'
    decays = read_statements(toml(tmp_path, text))
    expected = math.log(2) / np.log1p(np.exp([-4.0, -3.0, -2.0]))
    assert half_lives_in(path, decays) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must hold a table [decays] and nothing else, got nothing"),
        ('"*.decay" = "sigmoid"', "must hold a table [decays] and nothing else, got *.decay"),
        ('[decays]\n"*.decay" = "sigmoid"\n[more]\n', "and nothing else, got decays, more"),
        ("decays = 3", "must hold a table [decays]"),
        ("[decays]\n", "decays must be forms by pattern"),
        (
            '[decays]\n"*.decay" = "torch:sigmoid"',
            "in Python, as in plkernel.inspect(path, decays={'*.decay': f}), a function f from x",
        ),
        ('[decays]\n"*.decay" = 3', "must be the name of a form, a function, or a table"),
        ('[decays]\n"*.decay" = { form = "sigmoid", cap = nan }', "cap must be a pattern"),
        ('[decays]\n"*.decay', "own.toml"),
    ],
)
def test_a_file_with_anything_else_is_refused(
    text: str, message: str, tmp_path: Path, refused: Callable[..., str]
) -> None:
    path = file_of(tmp_path, {"m.decay": torch.zeros(3)})
    error = refused(inspect, path, "--decays", toml(tmp_path, text))
    assert message in error
    assert "own.toml" in error


def test_where_decays_cannot_be_stated(tmp_path: Path, refused: Callable[..., str]) -> None:
    path = file_of(tmp_path, {"m.decay": torch.zeros(3)})
    stated = toml(tmp_path, '[decays]\n"*.decay" = "sigmoid"')
    error = refused(inspect, path, "--decays", stated, "--text", stated)
    assert "text must be left out where decays are given" in error
    assert "no such file" in refused(inspect, path, "--decays", tmp_path / "missing.toml")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoint.safetensors").write_bytes(b"")
    assert "which is no checkpoint of other software" in refused(
        inspect, tmp_path / "run", "--decays", stated
    )
    with pytest.raises(ValueError, match="decays must be left out for a run of plkernel"):
        plkernel.inspect(tmp_path / "run", decays=SIGMOID)


@pytest.mark.parametrize(
    ("pattern", "name", "stars"),
    [
        ("decay", "decay", ()),
        ("decay", "a.decay", None),
        ("*.decay", "layers.0.decay", ("layers.0",)),
        ("*.decay", "decay", None),
        ("*decay", "decay", ("",)),
        ("layers.*.a.*", "layers.0.a.b.a.c", ("0", "b.a.c")),
        ("*.a[0]", "x.a[0]", ("x",)),
        ("*.a.", "x.ab", None),
    ],
)
def test_stars_stand_for_any_text(pattern: str, name: str, stars: tuple[str, ...] | None) -> None:
    match = Statement(pattern, "sigmoid", {}).matches.fullmatch(name)
    assert (match and match.groups()) == stars


def test_a_pattern_of_many_stars_takes_no_time_on_a_long_name() -> None:
    """Each star is tried once: backtracking over them would take years."""
    [statement] = statements({"*a" * 30 + "*!": "sigmoid"})
    assert statement.matches.fullmatch("a" * 5000) is None


def test_layers_of_one_s_own_survive() -> None:
    steps = ["meta", "initialised again", "saved and loaded", "deepcopy"]
    assert_decays_survive(Net, decays=SIGMOID, steps=steps)

    class Drawn(Mixer):
        def reset_parameters(self) -> None:
            nn.init.uniform_(self.decay, 1.0, 6.0)

    stated = {"decay": "sigmoid"}
    assert_decays_survive(Drawn, decays=stated, steps=["bfloat16", "two processes"])

    def careless(model: nn.Module) -> None:
        nn.init.zeros_(model.decay)

    with pytest.raises(AssertionError, match=r"meta: decay\[\d+\] is 0, promised"):
        assert_decays_survive(Mixer, decays=stated, initialise=careless, steps=["meta"])


def test_a_function_may_need_all_of_a_tensor_and_a_form_never_does() -> None:
    """Shards of a tensor are read by a form, and reported as unseen for a function."""
    for form, whole in (("sigmoid", False), (torch.sigmoid, True)):
        [(_, family, _)] = own_layers(["a.decay"], statements({"*.decay": form}))
        assert family.whole is whole


def test_findings_try_other_numbers_that_a_function_may_refuse() -> None:
    model = Net(1)
    nn.init.constant_(model.layers[0].decay, 3.0)

    def below(x: torch.Tensor) -> torch.Tensor:
        assert float(x.max()) <= 3.0
        return torch.sigmoid(x)

    assert plkernel.watch(model, decays={"*.decay": below}).unseen == {}


def test_a_stated_form_is_not_doubted_for_its_name(tmp_path: Path) -> None:
    """Numbers from 0.5 to 0.99 in nu_log look like decays; a statement says what they are."""
    path = file_of(tmp_path, {"m.nu_log": torch.linspace(0.5, 0.99, 16)})
    doubted = [one.name for one in plkernel.inspect(path).findings]
    assert "transformed" in doubted
    assert plkernel.inspect(path, decays={"*.nu_log": "sigmoid"}).findings == ()


def test_a_bare_layer_of_a_known_family_beside_one_of_one_s_own(tmp_path: Path) -> None:
    tensors = {name: torch.linspace(-2.0, -1.0, 4) for name in ("A_log", "dt_bias", "decay")}
    found = plkernel.inspect(file_of(tmp_path, tensors), decays={"decay": "sigmoid"})
    assert [one.family.name for one in found.layers] == ["Mamba-2", "own layer decay"]


class Levels(nn.Module):
    """Ordered levels, called so."""

    def __init__(self, name: str = "levels") -> None:
        super().__init__()
        self.add_module(name, Ordered(8))
        nodes = plkernel.place(8, longest=500)
        plkernel.apply(nodes, self.get_submodule(name), parametrisation="log_rate")


def test_ordered_levels_under_another_name_are_told_by_name(tmp_path: Path) -> None:
    """No form is suggested for one of their two parameters; the lines below the error work."""
    wanted = plkernel.watch(Levels("ordered")).read()["decay/layer/half_life_max"]
    for model, names in ((Levels(), "levels.theta and levels.delta"), (Ordered(8), "theta and")):
        with pytest.raises(ValueError, match="must have a layer with known decays") as told:
            plkernel.watch(model)
        assert f"{names}" in str(told.value)
        assert "name them ordered.theta and ordered.delta, or give a function" in str(told.value)
        assert "sigmoid" not in str(told.value)
    model = Levels()
    with pytest.raises(ValueError, match="must have a layer with known decays") as told:
        plkernel.watch(model)
    scope: dict[str, Any] = {"plkernel": plkernel, "model": model, "optimizer": None}
    exec(told.value.__notes__[0], scope)
    assert scope["watch"].read()["decay/levels/half_life_max"] == pytest.approx(wanted, rel=1e-6)
    state = {name: tensor.detach() for name, tensor in model.named_parameters()}
    with pytest.raises(ValueError, match=r"name them ordered\.theta and ordered\.delta"):
        plkernel.inspect(file_of(tmp_path, state))


@pytest.mark.parametrize("pattern", ["*.theta", "*.delta"])
def test_one_parameter_of_ordered_levels_is_no_decay(pattern: str, tmp_path: Path) -> None:
    model = Levels()
    path = file_of(tmp_path, {name: x.detach() for name, x in model.named_parameters()})
    stated = {pattern: "log_rate"}
    for read in (
        lambda: plkernel.inspect(path, decays=stated),
        lambda: plkernel.watch(model, decays=stated),
    ):
        with pytest.raises(ValueError, match=r"must take levels\.theta and levels\.delta together"):
            read()
    # Two parameters of that name that hold a number for each channel are somebody's own.
    own = file_of(tmp_path, {"m.theta": torch.linspace(1, 2, 8), "m.delta": torch.ones(8)})
    assert plkernel.inspect(own, decays=stated).layers[0].rates.size == 8


def test_constants_of_two_tensors_are_notable_of_an_own_layer_too() -> None:
    model = nn.ModuleDict({"m": nn.Module()})
    model["m"].A = nn.Parameter(torch.zeros(4))
    model["m"].dt = nn.Parameter(torch.linspace(-4, -3, 4))
    watch = plkernel.watch(model, decays={"*.A": {"form": "a_log", "dt_bias": "*.dt"}})
    with torch.no_grad():
        model["m"].A.copy_(-2.0 - torch.nn.functional.softplus(model["m"].dt).log())
    with pytest.warns(UserWarning, match="collapsed: m.A with m.dt: half-lives of 14.3 .. 38.2"):
        watch.read()
    again = plkernel.watch(model, decays={"*.A": {"form": "a_log", "dt_bias": "*.dt"}})
    for seen in (watch.findings, again.findings):
        [one] = [one for one in seen if one.name == "all equal"]
        assert one.severity == "notable"
    assert "collapsed" not in {one.name for one in again.findings}, "it began so"


@pytest.mark.parametrize(
    ("shape", "function", "channels"),
    [
        ((4, 1), lambda x: torch.sigmoid(x[:, 0]), 4),
        ((4, 2), lambda x: torch.polar(torch.sigmoid(x[:, 0]), x[:, 1]), 4),
        ((1, 2), lambda x: torch.sigmoid(x[:, 0]), 1),
        ((1,), lambda x: torch.sigmoid(x[0]), 1),
        ((1,), lambda x: torch.sigmoid(x + torch.arange(3)), 3),
    ],
)
def test_a_function_may_give_other_shapes_than_the_parameter(
    shape: tuple[int, ...], function: Any, channels: int
) -> None:
    bare = nn.Module()
    bare.decay = nn.Parameter(torch.linspace(0.5, 2.0, math.prod(shape)).reshape(shape))
    watch = plkernel.watch(bare, decays={"decay": function})
    [layer] = watch._layers()
    assert layer.rates.size == channels
