"""The probe on models whose memory is known: exact zeros, one lag, a known kernel, the best predictor of a law."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import entropy
from torch import Tensor

from plkernel.analysis.sequences import LagCorpus
from plkernel.data.windows import fixed_windows
from plkernel.memory.probe import check_causal, probe
from plkernel.training.evaluate import PLACES, Predict, influence, truncation

SYMBOLS = 16


def text(count: int = 12, length: int = 64, symbols: int = SYMBOLS) -> Tensor:
    return torch.randint(0, symbols, (count, length + 1), generator=torch.Generator().manual_seed(0))


def copying(lag: int, sure: float = 8.0) -> Predict:
    """Believes in the token `lag` before the one to predict, whose logit is `sure`; all others are 0."""

    def predict(tokens: Tensor) -> Tensor:
        logits = torch.zeros(*tokens.shape, SYMBOLS)
        logits[:, lag - 1 :].scatter_(2, tokens[:, : tokens.shape[1] - lag + 1, None], sure)
        return logits

    return predict


def markov(tokens: Tensor) -> Tensor:
    return torch.randn(SYMBOLS, SYMBOLS, generator=torch.Generator().manual_seed(1))[tokens]


def test_a_markov_chain_knows_the_last_token_alone() -> None:
    """At lag 1 the mean of KL over pairs of rows, at all others exactly nothing; one token given costs nothing."""
    windows = text(200)
    found = probe(markov, windows, range(1, 65))
    assert found.influence.bits[1:] == (0.0,) * 63
    assert set(found.truncation.cost) == {0.0}
    log_p = markov(torch.arange(SYMBOLS)).double().log_softmax(-1)
    pairs = (log_p.exp()[:, None] * (log_p[:, None] - log_p[None])).sum(-1) / math.log(2)
    expected = pairs.sum().item() / (SYMBOLS * (SYMBOLS - 1))
    assert found.influence.bits[0] == pytest.approx(expected, abs=4 * found.influence.standard_error[0])


def test_a_copy_is_seen_at_its_lag_alone() -> None:
    """The likely token's probability p changes places with that of another, 1 of S: KL = (p - q) log2(p / q)."""
    found = influence(copying(37), text(), [1, 2, 36, 37, 38, 64])
    p = math.exp(8) / (math.exp(8) + SYMBOLS - 1)
    q = (1 - p) / (SYMBOLS - 1)
    assert found.bits == pytest.approx([0, 0, 0, (p - q) * math.log2(p / q), 0, 0], rel=1e-6)
    assert found.standard_error == pytest.approx([0] * 6, abs=1e-6)
    assert found.bits[4] == 0


def test_the_prediction_from_the_true_past_comes_first() -> None:
    """KL as scipy has it, not symmetric: what the true past excludes counts nothing, and the other way round inf."""
    logits = torch.tensor([[0.0, 2.0, -math.inf], [1.0, 0.0, 0.5]], dtype=torch.float64)
    p, q = logits.softmax(-1).numpy()
    for symbol, expected in ((0, entropy(p, q, base=2)), (1, math.inf)):
        windows = torch.tensor([[symbol] * 5 + [1 - symbol]])  # the one other token is the last, which is not given
        assert influence(lambda tokens: logits[tokens], windows, [1]).bits[0] == pytest.approx(expected)


def test_a_linear_recurrence_falls_as_its_kernel() -> None:
    """One sum y of inputs s weighs exp(-r d) at lag d, and the logits are (y, 0): KL ~ (dy)^2 p (1 - p) / 2 nats.

    The ratio of two lags is that of squared kernels, and p (1 - p) does not depend on the lag, up to the cubic term.
    """
    rates, weights = torch.tensor([0.05, 0.5], dtype=torch.float64), torch.tensor([0.004, 0.02], dtype=torch.float64)

    def predict(tokens: Tensor) -> Tensor:
        state, out = torch.zeros(len(tokens), 2, dtype=torch.float64), []
        for token in tokens.T:
            state = state * torch.exp(-rates) + (2.0 * token[:, None] - 1)
            out.append(state @ weights)
        y = torch.stack(out, 1)
        return torch.stack([y, torch.zeros_like(y)], -1)

    lags = [1, 2, 4, 8, 16, 32]
    kernel = torch.exp(-rates * (torch.tensor(lags)[:, None] - 1)) @ weights
    found = influence(predict, text(symbols=2), lags)
    expected = (2 * kernel.numpy()) ** 2 / 4 / 2 / math.log(2)
    assert found.bits == pytest.approx(expected, rel=0.02)


def test_the_best_predictor_of_a_law_has_its_exact_curve() -> None:
    """Wrapped as a model, the mixture of lags loses what it says: of one byte given ln S - I(1), of all the floor."""
    law = LagCorpus(longest=16, symbols=SYMBOLS, size=60_000)
    windows = fixed_windows(np.concatenate(list(law.blocks())), 32, 1000)

    def predict(tokens: Tensor) -> Tensor:
        """Right at the last token, which is all that a truncation reads."""
        logits = torch.zeros(*tokens.shape, SYMBOLS, dtype=torch.float64)
        for symbol in range(SYMBOLS):
            asked = np.pad(tokens.numpy(), ((0, 0), (0, 1)), constant_values=symbol)
            logits[:, -1, symbol] = torch.from_numpy(-law.losses(asked)[:, -1]) * math.log(2)
        return logits

    found = truncation(predict, windows, 100, law.losses)
    assert found.floor is not None
    assert found.bpb == pytest.approx(found.floor, abs=1e-9)
    assert found.cost[found.given.index(16)] == pytest.approx(0, abs=1e-12)  # all that is copied from
    first = math.log2(SYMBOLS) - law.mutual_information([1])[0] / math.log(2)
    error = 4 * 3 / math.sqrt(1000)  # losses spread over 3 bits or less
    assert found.bpb[0] == pytest.approx(first, abs=error)
    assert found.bpb[-1] == pytest.approx(law.bits_per_byte(), abs=error)
    assert found.cost[0] == pytest.approx(first - law.bits_per_byte(), abs=4 * found.standard_error[0])


@pytest.mark.parametrize("length", [1, 2, 3, 5, 8, 9, 64])
def test_every_lag_is_read_whatever_the_seed(length: int) -> None:
    for seed in range(5):
        found = influence(markov, text(2, length), range(1, length + 1), count=4, seed=seed)
        assert np.isfinite(found.bits).all()


def test_the_batch_changes_nothing() -> None:
    windows = text(7)
    one, all_at_once = (probe(markov, windows, [1, 64], batch=batch) for batch in (1, 7))
    assert one.influence.bits == pytest.approx(all_at_once.influence.bits, rel=1e-6)
    assert one.truncation.bpb == pytest.approx(all_at_once.truncation.bpb, rel=1e-6)
    assert one.positions.bpb == pytest.approx(all_at_once.positions.bpb, rel=1e-6)


def test_progress_adds_up_to_all_of_the_work() -> None:
    shares: list[float] = []
    probe(markov, text(7), batch=3, progress=shares.append)
    assert sum(shares) == pytest.approx(1)
    assert len(shares) > PLACES


@pytest.mark.parametrize("length", [16, 17])
def test_what_sees_ahead_is_refused_with_the_place(length: int) -> None:
    """Patches of two show their second token to the first: seen at an even and at an odd length."""

    def patches(tokens: Tensor) -> Tensor:
        ahead = tokens.clone()
        pairs = tokens.shape[1] // 2
        ahead[:, : 2 * pairs : 2] = tokens[:, 1 : 2 * pairs : 2]
        return markov(ahead)

    last = length - 2 if length % 2 == 0 else length - 3
    with pytest.raises(
        ValueError, match=f"not causal: replacing the token at position {last + 1} .* position {last} by"
    ):
        check_causal(patches, text(3, length))


def test_rounding_is_not_seeing_ahead() -> None:
    """A convolution through FFTs moves what is before by rounding; ten thousand times as much is refused."""

    def blurred(size: float) -> Predict:
        return lambda tokens: markov(tokens) * (1 + size * tokens.sum(1)[:, None, None])

    check_causal(blurred(1e-8), text())
    with pytest.raises(ValueError, match="not causal"):
        check_causal(blurred(1e-4), text())


def test_what_cannot_be_probed_is_said() -> None:
    with pytest.raises(ValueError, match=r"lags must ascend .* between 1 and the context, 64, got \[2, 2\]"):
        influence(markov, text(), [2, 2])
    with pytest.raises(ValueError, match=r"64, got \[65\]"):
        probe(markov, text(), [65])
    with pytest.raises(ValueError, match="repeats one token, 0, only"):
        probe(markov, torch.zeros(2, 9, dtype=torch.long))
    with pytest.raises(ValueError, match="count must be at least 4"):
        influence(markov, text(), count=3)
    with pytest.raises(ValueError, match="not numbers"):
        probe(lambda tokens: markov(tokens) * math.nan, text())
