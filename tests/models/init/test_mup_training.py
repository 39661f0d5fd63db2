"""Tables 3 and 8 of Tensor Programs V are one training: the same losses, step by step, weight decay
included.
"""

from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from plkernel.analysis.nodes import place
from plkernel.models.init.plan import Plan, RoleTable, asked, plan
from plkernel.models.ssm import SSM, SSMConfig

D, BASE, STEPS = 64, 16, 20
M = D // BASE
"""A power of two: every product with it is exact, and so is the equality of the losses."""
RATE, DECAY = 1e-2, 0.1


def planned(scheme: str, **options: Any) -> tuple[SSM, Plan]:
    """A float64 model as the scheme asks for it, filled, and its plan."""
    bare = SSM(SSMConfig(D, 2))
    model = SSM(
        SSMConfig(
            D, 2, structure=asked(bare, scheme, base_width=BASE, **options), backend="reference"
        )
    )
    found = plan(model, scheme, base_width=BASE, **options)
    found.apply_(model.double(), seed=0)
    for recurrence in model.recurrences():
        recurrence.place_(place(D))
    return model, found


def losses(model: nn.Module, found: Plan) -> Tensor:
    """(STEPS,): of training on one batch, with weight decay."""
    groups = found.param_groups(model, RATE, DECAY)
    optimizer = torch.optim.AdamW(groups)
    windows = torch.randint(0, 256, (4, 33), generator=torch.Generator().manual_seed(0))
    seen = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        seen.append(loss.detach())
    return torch.stack(seen)


@pytest.mark.parametrize(
    "options", [{"zero_readout": True}, pytest.param({}, marks=pytest.mark.slow)]
)
def test_tables_3_and_8_are_one_training(options: dict[str, Any]) -> None:
    """From equal functions: the weights of one, its head over m."""
    (eighth, plan_8), (third, plan_3) = (
        planned(name, **options) for name in ("mup_table8", "mup_table3")
    )
    third.load_state_dict(
        {name: v / M if name == "head.weight" else v for name, v in eighth.state_dict().items()}
    )
    found = losses(eighth, plan_8)
    assert found[0] - found[-1] > 1e-4  # it trains
    assert torch.equal(losses(third, plan_3), found)


def test_uniform_draws_are_those_of_the_mup_package() -> None:
    """Rates, weight decay and bounds of a model of linear layers with biases, by
    mup.set_base_shapes and MuAdamW.
    """
    # Not "mup": a folder of records has that name.
    pytest.importorskip("mup.infshape", reason="the package of the paper, mup, is not installed")
    peer = import_module("mup")
    roles = RoleTable.from_dict(
        {"0.weight": "embedding", "1.weight": "ffn_up", "1.bias": "bias", "2.weight": "head"}
    )

    def layers(width: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Embedding(256, width),
            nn.Linear(width, width),
            peer.MuReadout(width, 256, bias=False),
        )

    torch.manual_seed(0)
    model = layers(D)
    peer.set_base_shapes(model, layers(BASE), delta=layers(2 * BASE))
    groups = peer.MuAdamW(model.parameters(), lr=1.0, weight_decay=1.0).param_groups
    theirs = {
        id(p): (group["lr"], group["weight_decay"]) for group in groups for p in group["params"]
    }
    options = {"base_width": BASE, "uniform_draws": True}
    ours = plan(
        model,
        "mup_table8",
        roles,
        structure=asked(model, "mup_table8", roles, **options),
        **options,
    )
    for entry in ours.entries:
        values = dict(model.named_parameters())[entry.parameter.name]
        decay = entry.weight_decay if values.ndim > 1 else 1.0  # the package decays biases as well
        assert (entry.learning_rate, decay) == pytest.approx(theirs[id(values)])
        if (
            entry.distribution.kind == "uniform"
        ):  # the largest of n draws misses the bound by 1 / n or so
            assert (
                1 - 10 / values.numel()
                < float(values.detach().abs().max()) / entry.distribution.scale
                <= 1 + 1e-6
            )
