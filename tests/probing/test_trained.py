"""The probe on a model that was trained: its truncation curve is the exact one of the law that it has learnt."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from plkernel.analysis.sequences import LagCorpus
from plkernel.analysis.statistics.differences import critical_value
from plkernel.data.windows import fixed_windows
from plkernel.probing.measures import probe
from plkernel.training.evaluate import truncation

SYMBOLS, REACH, CONTEXT = 16, 16, 32


class Attending(nn.Module):
    """Logits from a weight of every lag up to REACH, other ones for every number of tokens given; starts at nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(REACH, REACH))
        reachable = torch.ones(REACH, REACH).tril()
        self.register_buffer("reachable", reachable[torch.arange(CONTEXT).clamp(max=REACH - 1)])

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (B,T), T up to CONTEXT, to logits (B,T,SYMBOLS)."""
        length = tokens.shape[1]
        weights = self.weights[torch.arange(length).clamp(max=REACH - 1)] * self.reachable[:length]
        alike = F.pad(F.one_hot(tokens, SYMBOLS).float() - 1 / SYMBOLS, (0, 0, REACH - 1, 0))
        past = alike.unfold(1, REACH, 1).flip(-1)  # (B,T,S,K), the newest first
        return (1 / SYMBOLS + torch.einsum("btsk,tk->bts", past, weights)).clamp(min=1e-4).log()


def trained(law: LagCorpus, steps: int) -> Attending:
    """By Adam on windows drawn anew at every step, with a rate that falls to zero."""
    model, data = Attending(), torch.from_numpy(np.concatenate(list(law.blocks()))).long()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    rate = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
    random = torch.Generator().manual_seed(0)
    for _ in range(steps):
        starts = torch.randint(0, len(data) - CONTEXT - 1, (64, 1), generator=random)
        windows = data[starts + torch.arange(CONTEXT + 1)]
        optimizer.zero_grad()
        F.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten()).backward()
        optimizer.step()
        rate.step()
    return model.eval()


@pytest.mark.slow
def test_a_model_within_a_hundredth_of_a_bit_has_the_exact_truncation_curve() -> None:
    """Bits by what is given, and what the rest is worth, beside the best predictor's at the same bytes."""
    law = LagCorpus(longest=REACH, symbols=SYMBOLS, size=400_000)
    model = trained(law, 600)
    unseen = LagCorpus(longest=REACH, symbols=SYMBOLS, size=100_000, seed=1)
    windows = fixed_windows(np.concatenate(list(unseen.blocks())), CONTEXT, 2000)
    with torch.no_grad():
        found = truncation(model, windows, 100, unseen.losses)
        influence = probe(model, windows[:200], batch=100).influence
    assert found.floor is not None
    floor = np.array(found.floor)
    assert found.bpb[-1] - floor[-1] < 0.01
    assert floor[0] - floor[-1] > 0.1, "far context must be worth something, or the test cannot fail"
    assert np.abs(np.array(found.bpb) - floor).max() < 0.01
    error = critical_value(found.windows) * np.array(found.standard_error)
    assert np.all(np.abs(np.array(found.cost) - (floor - floor[-1])) <= error + 1e-9)
    assert influence.bits[influence.lags.index(REACH)] > 0
    assert influence.bits[influence.lags.index(CONTEXT)] == 0
