"""python -m plkernel.probe: how much text it takes, and what it tells beside the model."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from plkernel.analysis.information.estimate import decay_curves
from plkernel.commands.probe import probe
from plkernel.context.measures import INFORMED
from plkernel.probing.text_models import TextModel


def uniform(tokens: torch.Tensor) -> torch.Tensor:
    """Logits of a model that predicts four symbols alike."""
    return torch.zeros(*tokens.shape, 4)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Makes the model of the command: of a text of so many bytes, and other values."""

    def make(size: int, **changes: Any) -> np.ndarray:
        data = np.random.default_rng(0).integers(0, 4, size).astype(np.uint8)
        path = tmp_path / "text.bin"
        path.write_bytes(data.tobytes())
        ends = np.arange(1, size + 1) if changes.get("unit") == "token" else None
        values: dict[str, Any] = {
            "model": torch.nn.Identity(),
            "predict": uniform,
            "encode": lambda text: (text.astype(np.int64), ends),
            "unit": "byte",
            "context": 8,
        }
        model = TextModel(**(values | changes))
        monkeypatch.setattr("plkernel.probing.text_models.open_text_model", lambda *given: model)
        return data

    return make


def found(tmp_path: Path, **options: Any) -> dict[str, Any]:
    probe(tmp_path, str(tmp_path / "text.bin"), json=tmp_path / "probe.json", **options)
    values: dict[str, Any] = json.loads((tmp_path / "probe.json").read_text())
    return values


@pytest.mark.parametrize(("context", "lengths"), [(None, 1), (5, 1), (5, 3)])
def test_a_text_is_one_window_and_one_token_at_least(
    context: int | None, lengths: int, opened: Any, tmp_path: Path
) -> None:
    length = (context or 8) * lengths
    opened(length + 1)
    values = found(tmp_path, context=context, lengths=lengths, windows=1)
    assert (values["windows"], values["context"]) == (1, length)
    opened(length)
    with pytest.raises(
        ValueError, match=rf"context \+ 1 = {length + 1} bytes or more, got {length}"
    ):
        found(tmp_path, context=context, lengths=lengths, windows=1)


def test_what_is_read_is_not_written(tmp_path: Path) -> None:
    text = tmp_path / "text.bin"
    for output in (text, tmp_path / "config.json"):
        with pytest.raises(ValueError, match="json must be another file than those that are read"):
            probe(tmp_path, str(text), json=output)


def test_a_model_takes_as_many_tokens_as_it_can(opened: Any, tmp_path: Path) -> None:
    opened(100, most=16)
    assert found(tmp_path, context=16, windows=2)["context"] == 16
    with pytest.raises(ValueError, match="context must be at most 16, which is all that the model"):
        found(tmp_path, context=17, windows=2)
    with pytest.raises(ValueError, match=r"context must be at most 16, .*, got 24"):
        found(tmp_path, lengths=3, windows=2)


@pytest.mark.parametrize(("seed", "is_valid"), [(0, True), (2**32 - 1, None), (-1, False)])
def test_a_seed_is_not_negative(
    seed: int, is_valid: bool | None, opened: Any, tmp_path: Path
) -> None:
    from plkernel.models.sampling import LARGEST_SEED

    opened(100)
    if is_valid is False:
        with pytest.raises(ValueError, match=f"between 0 and {LARGEST_SEED}, got -1"):
            found(tmp_path, seed=seed)
        with pytest.raises(ValueError, match=f"got {LARGEST_SEED + 1}"):
            found(tmp_path, seed=LARGEST_SEED + 1)
    else:
        largest = LARGEST_SEED if is_valid is None else seed
        assert found(tmp_path, seed=largest, windows=2)["seed"] == largest


def test_information_of_a_text_of_bytes_stands_beside_its_influence(
    opened: Any, tmp_path: Path
) -> None:
    """In bits, with errors, where INFORMED bytes lie beyond the last lag; not of tokens."""
    last = 8
    data = opened(last + INFORMED)
    values = found(tmp_path, windows=2)
    lags = values["information"]["lags"]
    curve = decay_curves(data, lags, blocks=INFORMED)[0]
    expected = np.asarray(curve.values) / math.log(2)
    np.testing.assert_allclose(values["information"]["bits"], expected, rtol=1e-12)
    errors = curve.standard_errors() / math.log(2)
    np.testing.assert_allclose(values["information"]["standard_error"], errors, rtol=1e-12)
    assert lags[-1] == last
    opened(last + INFORMED - 1)
    assert "information" not in found(tmp_path, windows=2)
    opened(500, unit="token")
    assert "information" not in found(tmp_path, windows=2)


def test_a_longer_context_tells_what_it_costs(
    opened: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of one length nothing is said of it; a text of tokens counts its bytes."""
    opened(200)
    values = found(tmp_path, windows=2, lengths=2)
    assert values["trained"] == 8
    assert values["context"] == 16
    assert "cost" in values
    title = f"{tmp_path} on {tmp_path / 'text.bin'}, "
    assert capsys.readouterr().out.startswith(title)
    alone = found(tmp_path, windows=2)
    assert not alone.keys() & {"trained", "cost"}
    assert (alone["target"], alone["text"]) == (str(tmp_path), str(tmp_path / "text.bin"))
    assert alone["bits_per_token"] == pytest.approx(2.0)
    opened(200, unit="token")
    assert found(tmp_path, windows=2)["bytes_per_token"] == 1.0
