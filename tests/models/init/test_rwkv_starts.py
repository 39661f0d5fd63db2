"""The rwkv_* schemes on Eagle, Finch and Goose: exact vectors, gains and bounds by hand, and what
acts on an SSM.
"""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from plkernel.decays import families as starts
from plkernel.models.init import initialise_, plan
from plkernel.models.init.rwkv_vectors import initial_vector
from plkernel.models.layers import Structure
from plkernel.models.rwkv import RWKV, RWKVConfig
from plkernel.models.rwkv7 import RWKV7, RWKV7Config
from plkernel.models.ssm import SSM, SSMConfig

D, L, HEAD = 64, 3, 16
NAIVE = Structure(norm="rms", tied=True)
TODAY = ("rwkv_blinkdl", "rwkv_naive")
AT_THE_TIME = [
    ("rwkv_eagle_code_2023", 5),
    ("rwkv_eagle_paper", 5),
    ("rwkv_finch_code_2024_02", 6),
    ("rwkv_finch_paper", 6),
]
EVERY = [*((scheme, version) for scheme in TODAY for version in (5, 6)), *AT_THE_TIME]


def build(scheme: str, version: int, dim: int = D, layers: int = L) -> RWKV:
    if version == 7:
        return RWKV7(RWKV7Config(dim, layers, HEAD))
    return RWKV(
        RWKVConfig(
            version, dim, layers, HEAD, structure=NAIVE if scheme == "rwkv_naive" else Structure()
        )
    )


def drawn(scheme: str, version: int, *, dim: int = D, layers: int = L) -> dict[str, Tensor]:
    """The parameters by name; every one of them is set."""
    model = build(scheme, version, dim, layers)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(torch.nan)
    initialise_(model, scheme, 3)
    values = {name: parameter.detach() for name, parameter in model.named_parameters()}
    assert all(value.isfinite().all() for value in values.values())
    return values


def close(values: Tensor, expected: np.ndarray) -> bool:
    """Equal to the float32 rounding of numbers of order one."""
    return np.allclose(values.ravel().double().numpy(), expected, rtol=2e-7, atol=6e-8)


def gains(matrix: Tensor) -> list[float]:
    """Smallest and largest singular value."""
    values = torch.linalg.svdvals(matrix.double())
    return [values.min().item(), values.max().item()]


def both(gain: float) -> object:
    return pytest.approx([gain, gain], rel=1e-5)


def bounded(values: Tensor, bound: float) -> bool:
    """U(bound): never beyond it, nearly up to it, and of its standard deviation."""
    near = 0.99 * bound < values.abs().max().item() <= bound * (1 + 1e-6)
    return near and math.isclose(
        values.square().mean().sqrt().item(), bound / math.sqrt(3), rel_tol=0.03
    )


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize(("scheme", "version"), EVERY)
def test_vectors_are_those_of_the_formulas(scheme: str, version: int, layers: int) -> None:
    """Token shift of both mixings, decays, u and ln_x, channel by channel; Finch stores mu, Eagle 1
    - mu. The paper prints u without its -1; the third power in the channel mixing is of today.
    """
    values = drawn(scheme, version, layers=layers)
    i = np.arange(D)
    word = "maa" if version == 6 else "mix"
    offset = 0 if scheme.endswith("paper") else 1
    power = 3 if version == 6 and scheme in TODAY else 1
    for block in range(layers):
        r0 = block / (layers - 1) if layers > 1 else 0.0
        r1 = 1 - block / layers
        shares = {
            s: (i / D) ** (r1 * (0.5 if s in "rg" else 1)) + (0.3 * r0 if s == "v" else 0)
            for s in "xwkvrg"
        }
        for stream in "xwkvrg" if version == 6 else "kvrg":
            expected = 1 - shares[stream] if version == 6 else shares[stream]
            assert close(values[f"blocks.{block}.att.time_{word}_{stream}"], expected), stream
        ffn = (i / D) ** (r1**power)
        for stream in "kr":
            assert close(
                values[f"blocks.{block}.ffn.time_{word}_{stream}"], 1 - ffn if version == 6 else ffn
            )
        assert close(
            values[f"blocks.{block}.att.time_decay"], -6 + 5 * (i / (D - 1)) ** (0.7 + 1.3 * r0)
        )
        u = r0 * (1 - i / (D - 1)) + 0.1 * ((i + 1) % 3 - offset)
        assert close(values[f"blocks.{block}.att.time_faaaa"], u)
        assert close(
            values[f"blocks.{block}.att.ln_x.weight"], np.full(D, ((1 + block) / layers) ** 0.7)
        )
        assert values[f"blocks.{block}.att.ln_x.bias"].abs().max() == 0


@pytest.mark.parametrize(
    ("scheme", "bounds"),
    [
        ("rwkv_blinkdl", (0, 0.01)),
        *((one, (1e-4, 1e-4)) for one in ("rwkv_finch_code_2024_02", "rwkv_finch_paper")),
    ],
)
def test_low_rank_maps_of_finch(scheme: str, bounds: tuple[float, float]) -> None:
    values = drawn(scheme, 6)
    for block in range(L):
        for maps in ("time_maa", "time_decay"):
            for half, bound in zip("12", bounds, strict=True):
                weight = values[f"blocks.{block}.att.{maps}_w{half}"]
                assert bounded(weight, bound) if bound else weight.abs().max() == 0, (maps, half)


def test_vectors_of_goose_by_hand() -> None:
    """Width 128, block 1 of 3: r0 = 1/2, r1 = 2/3. Channel 72, the ninth of its head: x = (8 - 7.5)
    / 7.5.
    """
    values = drawn("rwkv7_official", 7, dim=128)
    y = 72 / 127
    x = (8 - 7.5) / 7.5
    share = 72 / 128
    powers = {"r": 0.2, "g": 0.2, "k": 0.7, "v": 0.7, "w": 0.9, "a": 0.9}
    expected = {
        f"att.x_{stream}": 1 - share ** (power * 2 / 3) for stream, power in powers.items()
    } | {
        "ffn.x_k": 1 - share ** ((2 / 3) ** 4),
        "att.w0": -6 + 6 * y ** (1 + 0.5**0.3) + 0.5 + 2.5 * x**2,
        "att.a0": -0.19 + 0.3 * x**2 + 0.4 * (y - 0.5),
        "att.v0": 0.73 - 0.4 * (y - 0.5),
        "att.k_k": 0.71 - 0.1 * (y - 0.5),
        "att.k_a": 1.02,
        "att.r_k": -0.04,
        "att.ln_x.weight": (2 / 3) ** 0.7,
        "att.ln_x.bias": 0.0,
    }
    for name, value in expected.items():
        assert values[f"blocks.1.{name}"].flatten()[72].item() == pytest.approx(value, abs=1e-6), (
            name
        )
    matrices = [f"att.{name}.weight" for name in ("receptance", "key", "value", "output")]
    maps = [f"att.{one}{half}" for one in "wavg" for half in "12"]
    named = {*expected, *maps, *matrices, "ffn.key.weight", "ffn.value.weight"}
    assert {
        name[9:] for name in values if name.startswith(("blocks.1.att.", "blocks.1.ffn."))
    } == named


@pytest.mark.parametrize("layers", [1, 2, 5])
def test_decays_are_those_that_inspect_takes_for_untrained(layers: int) -> None:
    """In every block, of Eagle, Finch and Goose, the last with heads of several sizes."""
    shape = (128,)
    of_older = starts.rwkv_from(-6.0, -1.0)
    for block in range(layers):
        for version in (5, 6):
            config = RWKVConfig(version, 128, layers, HEAD)
            written = initial_vector(f"blocks.{block}.att.time_decay", config, "rwkv_blinkdl")
            assert written.numpy() == pytest.approx(of_older(shape, block, layers), rel=1e-12)
        for head_size in (1, 2, 16, 64):
            goose = RWKV7Config(128, layers, head_size)
            w0 = initial_vector(f"blocks.{block}.att.w0", goose, "rwkv7_official")
            read = starts.rwkv7_from(head_size)(shape, block, layers)
            assert w0.numpy() == pytest.approx(read, rel=1e-12)


@pytest.mark.parametrize("version", [5, 6])
def test_matrices_of_eagle_and_finch(version: int) -> None:
    values = drawn("rwkv_blinkdl", version)
    assert bounded(values["emb.weight"], 1e-4)
    for block in range(L):
        get = {
            name.split(".", 2)[2]: value
            for name, value in values.items()
            if name.startswith(f"blocks.{block}.")
        }
        assert gains(get["ffn.key.weight"]) == both(1.0)
        for matrix in ("receptance", "key", "value", "gate"):
            assert gains(get[f"att.{matrix}.weight"]) == both(
                0.1 if matrix in ("key", "gate") else 1.0
            )
        for name, value in get.items():
            if name in (
                "att.output.weight",
                "ffn.value.weight",
                "ffn.receptance.weight",
            ) or name.endswith("_w1"):
                assert value.abs().max() == 0, name
            elif name.startswith("ln"):
                assert (value == float(name.endswith("weight"))).all(), name
            elif name.endswith("_w2"):
                assert bounded(value, 0.01)
    for dim, gain in (
        (64, 1.0),
        (256, 0.5),
        (512, 0.5),
    ):  # of the head: 0.5 sqrt(256 / D) while D < 256
        assert gains(drawn("rwkv_blinkdl", version, dim=dim, layers=1)["head.weight"]) == both(gain)


def test_matrices_of_goose() -> None:
    """Width 128: head 0.5 sqrt(256 / 128); a rank above the width widens the second map."""
    values = drawn("rwkv7_official", 7, dim=128)
    assert bounded(values["emb.weight"], 1e-4)
    assert gains(values["head.weight"]) == both(0.5 * math.sqrt(2))
    for block in range(L):
        for matrix, gain in (
            ("att.receptance", 1),
            ("att.value", 1),
            ("att.key", 0.1),
            ("ffn.key", 1),
        ):
            assert gains(values[f"blocks.{block}.{matrix}.weight"]) == both(gain)
        for matrix in ("att.output", "ffn.value"):
            assert values[f"blocks.{block}.{matrix}.weight"].abs().max() == 0
        for one in "wavg" if block else "wag":
            assert values[f"blocks.{block}.att.{one}1"].abs().max() == 0
            assert gains(values[f"blocks.{block}.att.{one}2"]) == both(0.1)
    wide = initialise_(RWKV7(RWKV7Config(16, 1, 8, decay_rank=64)), "rwkv7_official", 0)
    assert gains(dict(wide.named_parameters())["blocks.0.att.w2"].detach()) == both(0.2)


@pytest.mark.parametrize(("scheme", "version"), AT_THE_TIME)
def test_matrices_of_the_code_and_the_paper_of_the_time(scheme: str, version: int) -> None:
    """ffn.key, which is 3.5 times as wide as it is deep, has gain sqrt(3.5) in the code and 3.5 in
    the paper; square matrices are U in the paper; the paper's head is O(0.5) at any width.
    """
    values = drawn(scheme, version)
    paper = scheme.endswith("paper")
    assert bounded(values["emb.weight"], 6e-4)
    assert gains(values["head.weight"]) == both(0.5 if paper else 1.0)
    for block in range(L):
        key = values[f"blocks.{block}.ffn.key.weight"]
        assert gains(key) == both(3.5 if paper else math.sqrt(3.5))
        for matrix in ("receptance", "key", "value", "gate"):
            weight = values[f"blocks.{block}.att.{matrix}.weight"]
            assert bounded(weight, D**-0.5) if paper else gains(weight) == both(1.0), matrix
        for matrix in ("att.output", "ffn.value", "ffn.receptance"):
            assert values[f"blocks.{block}.{matrix}.weight"].abs().max() == 0


@pytest.mark.parametrize("version", [5, 6])
def test_the_naive_start(version: int) -> None:
    """Embedding N(1) and no head of its own, matrices as torch.nn.Linear makes them, ffn.value
    Xavier, gain 0.5.
    """
    values, official = drawn("rwkv_naive", version), drawn("rwkv_blinkdl", version)
    assert "head.weight" not in values
    assert values["emb.weight"].std().item() == pytest.approx(1.0, abs=0.02)
    assert values["emb.weight"].abs().max() > 3, "normal, not uniform"
    for block in range(L):
        for matrix in (
            "att.receptance",
            "att.key",
            "att.value",
            "att.gate",
            "att.output",
            "ffn.key",
            "ffn.receptance",
        ):
            assert bounded(values[f"blocks.{block}.{matrix}.weight"], D**-0.5), matrix
        assert bounded(
            values[f"blocks.{block}.ffn.value.weight"], 0.5 * math.sqrt(6 / (D + 3.5 * D))
        )
    kept = [name for name in values if "time_" in name or "ln" in name]
    assert all(torch.equal(values[name], official[name]) for name in kept), (
        "as the official code has them"
    )


@pytest.mark.parametrize(("scheme", "version"), [*EVERY, ("rwkv7_official", 7)])
def test_rates_and_decay(scheme: str, version: int) -> None:
    """Today's code trains decays at twice the rate and decays true matrices; the naive side decays
    everything.
    """
    twice = {"rwkv_blinkdl": "time_decay", "rwkv7_official": ".w0"}.get(scheme, "nothing")
    for entry in plan(build(scheme, version), scheme).entries:
        name = entry.parameter.name
        assert entry.learning_rate == (2 if name.endswith(twice) else 1), name
        assert entry.eps == 1
        matrix = name.endswith(".weight") and "ln" not in name
        assert entry.weight_decay == (1 if matrix or scheme == "rwkv_naive" else 0), name


@pytest.mark.parametrize("scheme", ["rwkv_blinkdl", "rwkv7_official"])
def test_on_an_ssm(scheme: str) -> None:
    """B is the value, gate and up are ffn.key, C_proj and down start at zero, and D and the decays
    are the model's.
    """
    model = SSM(SSMConfig(128, L, structure=Structure(embedding_norm=True)))
    for recurrence in model.recurrences():
        nn.init.constant_(recurrence.log_rate, -2.5)
    plan(model, scheme).apply_(model, seed=0)
    for name, weight in ((name, weight.detach()) for name, weight in model.named_parameters()):
        if name.endswith(("gate.weight", "up.weight", "ssm.B.weight")):
            assert gains(weight) == both(1)
        elif name.endswith(("C_proj.weight", "C_proj.bias", "down.weight")):
            assert weight.abs().max() == 0
        elif name.endswith("log_rate"):
            assert torch.equal(weight, torch.full((128,), -2.5))


@pytest.mark.parametrize(
    ("scheme", "model", "message"),
    [
        ("rwkv_blinkdl", build("", 7), "scheme must be rwkv7_official"),
        ("rwkv7_official", build("", 6), "scheme must be rwkv_blinkdl"),
        (
            "rwkv_eagle_paper",
            build("", 6),
            "scheme must be rwkv_blinkdl or rwkv_finch_code_2024_02",
        ),
        (
            "rwkv_finch_code_2024_02",
            build("", 5),
            "must be rwkv_blinkdl or rwkv_eagle_code_2023 or rwkv_eagle_paper for RWKV-5, got",
        ),
        ("rwkv_naive", build("", 6), "must have norm = 'rms', tied = True for scheme 'rwkv_naive'"),
        (
            "rwkv_blinkdl",
            build("rwkv_naive", 6),
            "model must have norm = 'layer'",
        ),
        (
            "rwkv_blinkdl",
            SSM(SSMConfig(16, 1)),
            "embedding_norm = True for scheme 'rwkv_blinkdl'",
        ),
        (
            "rwkv7_official",
            RWKV7(RWKV7Config(32, 1, 16, structure=Structure(norm="rms"))),
            "norm = 'layer'",
        ),
    ],
)
def test_models_that_do_not_fit_are_refused(scheme: str, model: nn.Module, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan(model, scheme)
