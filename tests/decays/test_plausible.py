"""Forms of stored numbers: each gives back what it was made of, and holds no other numbers."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import plkernel
from plkernel.decays import plausible
from plkernel.decays.plausible import FORMS, _counted, _plausible

X = np.linspace(-5.0, -0.5, 9)
MADE: dict[str, tuple[Any, Any, tuple[float, float]]] = {
    "DECAY": (X, lambda x: np.exp(-np.exp(x)), (0.0, 1.0)),
    "POSITIVE": (X, np.exp, (0.0, 1e9)),
    "NEGATIVE": (X, lambda x: -np.exp(x), (-1e9, 0.0)),
    "GATE": (X, lambda x: np.exp(-np.exp(-0.5) / (1 + np.exp(-x))), (0.5453, 1.0)),
    "SQUASHED": (X, lambda x: np.exp(-8 * np.log1p(np.exp(x))), (0.0, 1.0)),
    "RATE": (X, lambda x: np.exp(-0.5) / (1 + np.exp(-x)), (0.0, 0.6065)),
    "LOG_DECAY": (X, lambda x: -np.exp(-0.5) / (1 + np.exp(-x)), (-0.6065, 0.0)),
    "SLOPE": (np.linspace(0.01, 1.0, 9), lambda x: np.exp(-x), (0.3, 1.0)),
    "OPEN": (-X, lambda x: 1 / (1 + np.exp(-x)), (0.5, 1.0)),
    "STEP": (X - 1.0, lambda x: np.log1p(np.exp(x)), (1e-5, 0.5)),
}


@pytest.mark.parametrize("name", MADE)
def test_a_form_gives_back_what_it_was_made_of(name: str) -> None:
    x, made, (low, high) = MADE[name]
    form = getattr(plausible, name)
    values = made(x)
    assert form.holds(values)
    np.testing.assert_allclose(form.inverse(values), x, rtol=1e-9, atol=1e-9)
    for beyond in (low - 1e-3 * abs(low) - 1e-9, high + 1e-3 * high + 1e-9):
        if abs(beyond) < 1e8:
            assert not form.holds(np.append(values, beyond))
    if low in (0.0, 1e-5):
        assert not form.holds(np.append(values, low))


def test_every_form_of_the_table_is_one_of_these() -> None:
    forms = {id(getattr(plausible, name)) for name in MADE}
    assert {id(form) for row in FORMS.values() for form in row} == forms


@pytest.mark.parametrize(
    ("tokens", "plausible_ones"),
    [
        ([2.0] * 19 + [2e6], True),
        ([2.0] * 18 + [2e6] * 2, False),
        ([1e6] * 4, True),
        ([1.0, 0.5], False),
        ([1.001, 0.5], True),
        ([np.nan, 2.0], True),
        ([np.nan], False),
    ],
)
def test_half_lives_are_plausible_up_to_a_twentieth_beyond_a_million(
    tokens: list[float], plausible_ones: bool
) -> None:
    assert _plausible(np.array(tokens)) is plausible_ones


@pytest.mark.parametrize(
    ("factor", "counted"), [(1.0, True), (1.25, True), (1.26, False), (0.75, True), (0.74, False)]
)
def test_speeds_count_within_a_quarter(factor: float, counted: bool) -> None:
    speeds = np.tile([1.0, 2.0, 3.0 * factor], (5, 1))
    layer: Any = SimpleNamespace(tensors={"A_log": SimpleNamespace(values=-speeds)})
    assert _counted(plausible.NEGATIVE, "A_log", [layer]) is counted


MINUS_EXP = -np.linspace(1.1, 14.0, 8)
"""As -exp(A_log) of a healthy Mamba-2."""


@pytest.mark.parametrize(
    ("values", "seen"),
    [
        (MINUS_EXP, "transformed"),
        (MINUS_EXP[:7], None),  # too few to be sure
        (np.append(MINUS_EXP, np.nan), "NaN"),
        (np.append(MINUS_EXP, -np.inf), "-inf"),
        (np.full(8, -3.7), "all equal"),
    ],
)
def test_a_form_is_told_of_enough_numbers_that_are_numbers(
    values: np.ndarray, seen: str | None, tmp_path: Path
) -> None:
    at = "backbone.layers.0.mixer"
    tensors = {"A_log": values, "dt_bias": np.linspace(-6, -2, values.size)}
    path = tmp_path / "model.safetensors"
    save_file({f"{at}.{name}": x.astype(np.float32) for name, x in tensors.items()}, path)
    wrong = [one.name for one in plkernel.inspect(path).findings if one.severity == "wrong"]
    assert wrong == ([] if seen is None else [seen])
