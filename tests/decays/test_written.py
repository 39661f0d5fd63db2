"""Half-lives written by `plkernel.apply` and read back by the families of plkernel.inspect."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

import plkernel
from plkernel.analysis.nodes import Nodes
from plkernel.analysis.parametrisations import FORMS
from plkernel.decays.families import FAMILIES, Family
from plkernel.decays.rates import half_lives, known_layers
from plkernel.decays.tensors import of_tensors

EPS = float(np.finfo(np.float64).eps)
HALF_LIVES = np.geomspace(1.5, 3e4, 24)
NODES = Nodes(tuple((np.log(2) / HALF_LIVES).tolist()), (1.0,) * 24, "none")
AT = "model.layers.0.mixer"
BESIDE = torch.linspace(-6.0, -2.0, 24, dtype=torch.float64)
ROWS = torch.tensor([-6.0, -4.0, -2.0], dtype=torch.float64)
HEADS = torch.tensor([-1.0, 0.0, 0.5, 1.0], dtype=torch.float64)


class Written(NamedTuple):
    """A layer of `family`: a form fills the tensor of `role`, from what is given to it."""

    family: str
    role: str
    form: str
    given: Mapping[str, Any]
    others: Mapping[str, Tensor]
    config: Mapping[str, Any]
    shape: tuple[int, ...] = (24,)
    speed: Any = 1.0
    """|d ln rate / d x| at most."""


CASES = [
    Written("SSM", "w", "log_rate", {}, {}, {}),
    Written("RWKV-6", "w", "exp_exp", {}, {}, {}, (1, 1, 24)),
    Written("Mesa net", "bias", "sigmoid", {}, {}, {}),
    Written("xLSTM", "bias", "sigmoid", {"cap": 15.0}, {}, {"gate_soft_cap": 15.0}),
    Written("GLA", "bias", "sigmoid_root", {}, {}, {}),
    Written("Mamba", "A_log", "a_log", {"dt_bias": ROWS[:, None]}, {"dt_bias": ROWS}, {}, (3, 24)),
    Written("Mamba-2", "A_log", "a_log", {"dt_bias": BESIDE}, {"dt_bias": BESIDE}, {}),
    Written("gated delta net", "dt_bias", "dt_bias", {"a_log": BESIDE}, {"A_log": BESIDE}, {}),
    Written(
        "Kimi Delta Attention",
        "dt_bias",
        "dt_bias",
        {"a_log": HEADS.repeat_interleave(6)},
        {"A_log": HEADS},
        {},
    ),
    Written(
        "Kimi Delta Attention",
        "dt_bias",
        "bounded",
        {"bound": 5.0, "a_log": HEADS.repeat_interleave(6)},
        {"A_log": HEADS},
        {"lower_bound": -5.0},
        speed=np.exp(HEADS.repeat_interleave(6).numpy()),
    ),
    Written("RWKV-7", "w", "exp_sigmoid", {}, {}, {}, (1, 1, 24)),
    Written(
        "RG-LRU",
        "Lambda",
        "rg_lru",
        {"gate_bias": BESIDE},
        {"gate_bias": BESIDE.reshape(4, 6)},
        {},
    ),
    Written("S5", "Lambda_re", "real_part", {"log_step": BESIDE}, {"log_step": BESIDE}, {}),
    Written(
        "S4D",
        "log_A_real",
        "log_real_part",
        {"log_step": ROWS[:, None]},
        {"log_dt": ROWS},
        {},
        (3, 24),
    ),
]


def family_of(case: Written) -> Family:
    """The first layout of the family that has the tensors of the case."""
    roles = {case.role, *case.others}
    return next(one for one in FAMILIES if (one.name, one.tensors.keys()) == (case.family, roles))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.family} {case.form}")
def test_half_lives_come_back(case: Written) -> None:
    """To the rounding of the parameter x, which moves a rate by the share `speed` |dx|, and a few
    roundings more.
    """
    family = family_of(case)
    written = torch.empty(case.shape, dtype=torch.float64)
    plkernel.apply(NODES, written, parametrisation=case.form, **case.given)
    tensors = {family.tensors[role]: value for role, value in case.others.items()}
    tensors |= {family.tensors[case.role]: written}
    tensors |= dict.fromkeys(family.beside[:1], torch.zeros(1))
    named = {name.format(at=AT): value for name, value in tensors.items()}
    [layer] = known_layers(of_tensors(named, dict(case.config)))
    assert layer.family == family
    found = half_lives(layer.rates).reshape(case.shape)
    errors = np.abs(np.log(found) - np.log(HALF_LIVES))
    assert (errors <= EPS * (8 + 2 * case.speed * np.abs(written.numpy()))).all()


def test_every_form_is_read_by_a_family() -> None:
    assert {case.form for case in CASES} == set(FORMS)
