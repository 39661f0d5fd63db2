"""The half-lives that float32 decays hold: as stated, as torch computes them, and where quantile nodes keep to them."""

import numpy as np
import pytest
import torch

from plkernel.analysis.limits import FASTEST, HALF_LIVES, SLOWEST, held, quantile_betas, rounded_up
from plkernel.analysis.nodes import Aim, Nodes
from plkernel.models.init.power_law import decays_


def test_the_ends_are_those_of_float32() -> None:
    ends = np.exp(-np.array([SLOWEST, FASTEST])).astype(np.float32)
    assert ends[0] == np.nextafter(np.float32(1), np.float32(0))
    assert ends[1] == np.finfo(np.float32).tiny
    assert np.exp(-SLOWEST / 2).astype(np.float32) == 1


def test_a_model_holds_what_is_said_and_little_more() -> None:
    """The parameter is ln(rate) in float32: the rate is off by |ln rate| 2**-24 at most, 1.1e-6 of itself."""
    shortest, longest = HALF_LIVES

    def filled(*half_lives: float) -> torch.Tensor:
        rates = tuple((np.log(2) / np.array(half_lives)).tolist())
        return decays_(torch.empty(len(rates)), Nodes(rates, (1.0,) * len(rates), "none"))

    assert filled(shortest * (1 + 1e-5), longest * (1 - 1e-5)).isfinite().all()
    for beyond in (shortest * 126 / 151, longest * 16):
        with pytest.raises(ValueError, match="nodes has a rate of"):
            filled(beyond)


@pytest.mark.parametrize("aim", [Aim(1.0), Aim(1.0, "correlation", "rms", "bonus")])
def test_betas_of_quantile_nodes_are_the_ends_of_what_is_held(aim: Aim) -> None:
    betas = quantile_betas(aim, 2048.0, 0.05)
    assert betas is not None
    for beta, inside in ((betas[0], 1.01), (betas[1], 0.99)):
        assert held(*Aim(beta * inside, aim.target, aim.kernel).rate_range(2048, 0.05))
        assert not held(*Aim(beta / inside, aim.target, aim.kernel).rate_range(2048, 0.05))
    assert quantile_betas(aim, 1e12, 0.05) is None


def test_rounding_goes_up() -> None:
    assert [rounded_up(value) for value in (1.2301, 1.23, 45678.0)] == pytest.approx([1.24, 1.23, 45700.0])
    assert rounded_up(-1.2399) == pytest.approx(-1.23)
