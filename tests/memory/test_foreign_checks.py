"""What no run can train is refused in one line, and what knows later bytes with the byte that leaks."""

from pathlib import Path

import pytest
import torch

from plkernel.config.condition import resolve
from plkernel.config.schema import ModelSpec
from plkernel.memory.foreign import build, check_model
from plkernel.models.ssm import SSM, SSMConfig
from plkernel.training.build import initialise_

CPU = torch.device("cpu")


def check(kind: str, **config: object) -> None:
    check_model(build(f"somebodys.models:{kind}", config, 0), "kind", 64, CPU)


@pytest.mark.parametrize("see", ["itself", "fourier"])
def test_a_causal_model_passes_also_where_it_is_so_up_to_rounding(package: Path, see: str) -> None:
    check("Plain", see=see)


def test_our_own_model_passes(package: Path) -> None:
    condition = resolve(ModelSpec(dim=16, layers=2))
    check_model(initialise_(SSM(SSMConfig(16, 2)), condition, 0), "kind", 64, CPU)


@pytest.mark.parametrize("zero", [False, True], ids=["", "from a head of zeros, which shows nothing yet"])
@pytest.mark.parametrize(
    ("see", "message"),
    [
        ("next", "is not causal: byte 1 changes the logits at byte 0, which may know the bytes up to 0 only"),
        ("patch", "is not causal: byte 1 changes the logits at byte 0"),
        ("mean", "is not causal: byte 1 changes the logits at byte 0"),
        ("length", "is not causal: the logits at byte 0 change when the bytes from 1 on are left out"),
        ("batch", "the logits of a window change with the other windows of its batch"),
    ],
)
def test_a_model_that_cheats_is_refused_with_the_byte(package: Path, see: str, message: str, zero: bool) -> None:
    with pytest.raises(ValueError, match=message):
        check("Plain", see=see, zero=zero)


@pytest.mark.parametrize(
    ("kind", "see", "message"),
    [
        ("Plain", "wrong shape", r"gave float32 of shape \(\d+, 64, 7\), expected logits \(\d+, 64, 256\)"),
        ("Plain", "nothing", "gave a NoneType, expected logits"),
        ("Plain", "nan", "its logits are not finite at the start"),
        ("Plain", "error", r"bytes raised KeyError: 'weights\\nof the past'"),
        ("Plain", "dice", "the same bytes give other logits each time"),
        ("Plain", "constant", "its loss has no gradient in any parameter"),
        ("half", "", "parameter embedding.weight is float16, expected float32"),
        ("broken", "", "building it raised RuntimeError: no such luck at all"),
        ("no_module", "", "gave a dict, expected a torch.nn.Module"),
        ("Gru", "", "somebodys.models has no 'Gru'; "),
    ],
)
def test_what_cannot_be_trained_is_refused_in_one_line(package: Path, kind: str, see: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        check(kind, see=see)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("somebody.models:Plain", "there is no module 'somebody'; install it, or start in the folder"),
        ("somebodys.model:Plain", "there is no module 'somebodys.model'"),
        ("somebodys.needy:Plain", "somebodys.needy needs the module 'no_such_thing', not here"),
        ("somebodys.syntax:Plain", "importing somebodys.syntax raised SyntaxError"),
        ("somebodys.models:Path.cwd.x", "has no 'x'"),
        ("somebodys.models:__file__", "is a str, expected something to call"),
    ],
)
def test_a_name_that_leads_nowhere_is_told_in_one_line(package: Path, name: str, message: str) -> None:
    (package / "needy.py").write_text("import no_such_thing\n")
    (package / "syntax.py").write_text("def :\n")
    with pytest.raises(ValueError, match=message) as refused:
        build(name, {}, 0)
    assert "\n" not in str(refused.value)
