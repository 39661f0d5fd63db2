"""Distributions whose scale follows the fans of a matrix, which many schemes share: functions from `Parameter`."""

import math
from collections.abc import Callable

from plkernel.models.init.distributions import Distribution, normal, uniform
from plkernel.models.init.rules import Parameter


def fan_in_normal(gain: float = 1.0) -> Callable[[Parameter], Distribution]:
    """N(gain fan_in**-0.5): LeCun's at gain 1, He's at sqrt(2)."""
    return lambda p: normal(gain * p.fan_in**-0.5)


def fan_in_uniform(gain: float = 1.0) -> Callable[[Parameter], Distribution]:
    """U(gain fan_in**-0.5): what PyTorch gives a linear layer, weight and bias alike, at gain 1."""
    return lambda p: uniform(gain * p.fan_in**-0.5)


def xavier_normal(gain: float = 1.0) -> Callable[[Parameter], Distribution]:
    """N(gain sqrt(2 / (fan_in + fan_out)))."""
    return lambda p: normal(gain * math.sqrt(2 / (p.fan_in + p.fan_out)))


def xavier_uniform(gain: float = 1.0) -> Callable[[Parameter], Distribution]:
    """U(gain sqrt(6 / (fan_in + fan_out)))."""
    return lambda p: uniform(gain * math.sqrt(3) * math.sqrt(2 / (p.fan_in + p.fan_out)))
