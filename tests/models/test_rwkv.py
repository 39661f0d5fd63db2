"""Eagle and Finch: against their equations written as loops, against the official package, and in both modes."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from rwkv_loops import EAGLE_AND_FINCH, EAGLE_AND_FINCH_VARIANTS, Loops, build, norm, sigmoid, some_bytes

from plkernel.models.rwkv import RWKV, RWKVConfig, mixtures
from plkernel.models.structure import Structure

pytestmark = pytest.mark.usefixtures("one_thread")
MISTAKES = {  # what the comparison must notice, and in which versions it is a mistake
    "shift looks ahead": (5, 6),
    "shift the wrong way round": (5, 6),
    "first byte mixed with itself": (5, 6),
    "state decays before it is read": (5, 6),
    "u on the state": (5, 6),
    "group norm eps 1e-5": (5, 6),
    "one group": (5, 6),
    "gate before the norm": (5, 6),
    "no ln0": (5, 6),
    "relu not squared": (5, 6),
    "streams in another order": (6,),
    "decay from x": (6,),
}


class EagleAndFinch(Loops):
    """Equations 3 to 19 of arXiv 2404.05892."""

    def mu(self, name: str, stream: str) -> np.ndarray:
        """The weight of x_{t-1}."""
        found = self.p[f"{name}time_{'mix' if self.config.version == 5 else 'maa'}_{stream}"].ravel()
        swapped = self.mistake == "shift the wrong way round"
        return 1 - found if (self.config.version == 5) != swapped else found

    def mixtures(self, a: np.ndarray, b: np.ndarray, name: str) -> dict[str, np.ndarray]:
        """Equation 3 for Eagle, 14 and 15 for Finch: a is x_t, b is x_{t-1}."""
        if self.config.version == 5:
            return {s: a + (b - a) * self.mu(name, s) for s in "rkvg"}
        rank, mixed = self.config.mix_rank, a + (b - a) * self.mu(name, "x")
        order = "rkvgw" if self.mistake == "streams in another order" else "wkvrg"
        found = {}
        for j, s in enumerate(order):
            down = self.p[f"{name}time_maa_w1"][:, j * rank : (j + 1) * rank]
            lora = self.mu(name, s) + np.tanh(mixed @ down) @ self.p[f"{name}time_maa_w2"][j]
            found[s] = a + (b - a) * lora
        return found

    def w_raw(self, mixed: dict[str, np.ndarray], a: np.ndarray, name: str) -> np.ndarray:
        base = self.p[f"{name}time_decay"].ravel()
        if self.config.version == 5:
            return base
        x = a if self.mistake == "decay from x" else mixed["w"]
        return base + np.tanh(x @ self.p[f"{name}time_decay_w1"]) @ self.p[f"{name}time_decay_w2"]

    def time_mixing(self, xs: list[np.ndarray], name: str) -> list[np.ndarray]:
        """Equations 4 to 9 (Eagle) and 16 to 19 (Finch)."""
        p, size, outs = self.p, self.config.head_size, []
        states = [np.zeros((size, size)) for _ in range(self.config.heads)]
        for a, b in zip(xs, self.before(xs), strict=True):
            mixed = self.mixtures(a, b, name)
            r, k, v = (p[f"{name}{matrix}.weight"] @ mixed[matrix[0]] for matrix in ("receptance", "key", "value"))
            g, w_raw = p[f"{name}gate.weight"] @ mixed["g"], self.w_raw(mixed, a, name)
            if self.config.k_clamp:
                k = k * np.exp(np.minimum(w_raw, 0))
            heads = []
            for h in range(self.config.heads):
                part = slice(h * size, (h + 1) * size)
                u, product, w = p[f"{name}time_faaaa"][h], np.outer(k[part], v[part]), np.exp(-np.exp(w_raw[part]))
                next_state = np.diag(w) @ states[h] + product
                seen = next_state - product if self.mistake == "state decays before it is read" else states[h]
                wkv = np.diag(u) @ seen + product if self.mistake == "u on the state" else seen + np.diag(u) @ product
                heads.append(r[part] @ wkv)
                states[h] = next_state
            outs.append(p[f"{name}output.weight"] @ self.gated(np.concatenate(heads), g, name))
        return outs

    def gated(self, o: np.ndarray, g: np.ndarray, name: str) -> np.ndarray:
        """SiLU(g) times the norm per head; Eagle's code divides by 8 first and takes eps 1e-5."""
        weight, bias = self.p[f"{name}ln_x.weight"], self.p[f"{name}ln_x.bias"]
        silu = g * sigmoid(g)
        if self.mistake == "gate before the norm":
            o, silu = o * silu, np.ones_like(silu)
        scale, eps = (8, 1e-5) if self.config.version == 5 else (1, 64e-5)
        if self.mistake == "group norm eps 1e-5":
            scale, eps = 1, 1e-5
        groups = 1 if self.mistake == "one group" else self.config.heads
        parts = zip(*(np.split(array, groups) for array in (o / scale, weight, bias)), strict=True)
        return silu * np.concatenate([norm(*part, eps) for part in parts])

    def channel_mixing(self, xs: list[np.ndarray], name: str) -> list[np.ndarray]:
        """Equations 10 to 13."""
        p, outs = self.p, []
        for a, b in zip(xs, self.before(xs), strict=True):
            x_k, x_r = (a + (b - a) * self.mu(name, s) for s in "kr")
            hidden = np.maximum(p[f"{name}key.weight"] @ x_k, 0)
            if self.mistake != "relu not squared":
                hidden = hidden**2
            outs.append(sigmoid(p[f"{name}receptance.weight"] @ x_r) * (p[f"{name}value.weight"] @ hidden))
        return outs


@pytest.mark.parametrize("config", [*EAGLE_AND_FINCH, *EAGLE_AND_FINCH_VARIANTS], ids=str)
def test_model_is_the_published_equations(config: RWKVConfig) -> None:
    assert EagleAndFinch(build(config)).difference() < 2e-14


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("config", EAGLE_AND_FINCH[:2], ids=str)
def test_the_comparison_notices_a_mistake(config: RWKVConfig, mistake: str) -> None:
    if config.version in MISTAKES[mistake]:
        assert EagleAndFinch(build(config), mistake).difference() > 1e-3


def test_k_clamp_scales_the_key_by_the_rate() -> None:
    """min(1, lambda): the clamped model is another one, unless every rate is at least 1."""
    clamped = build(EAGLE_AND_FINCH[2])
    plain = RWKV(dataclasses.replace(EAGLE_AND_FINCH[2], k_clamp=False)).double()
    plain.load_state_dict(clamped.state_dict())
    inputs = some_bytes(2, 9)
    with torch.no_grad():
        assert (clamped(inputs) - plain(inputs)).abs().max() > 1e-3
        for model in (clamped, plain):
            model.blocks[0].att.time_decay.abs_()
        assert torch.equal(clamped(inputs), plain(inputs))


def parameter_count(config: RWKVConfig) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in RWKV(config).parameters())


@pytest.mark.parametrize(("dim", "layers"), [(64, 1), (192, 3), (512, 6), (1024, 24)])
def test_parameter_counts_of_the_paper(dim: int, layers: int) -> None:
    """The published closed forms, with 256 symbols: 3.5 D must be a multiple of 32."""
    shared = 13 * dim**2 * layers + 4 * dim + 2 * dim * 256
    assert parameter_count(RWKVConfig(5, dim, layers)) == shared + 14 * dim * layers
    assert parameter_count(RWKVConfig(6, dim, layers)) == shared + 464 * dim * layers


@pytest.mark.parametrize(("dim", "feed_forward", "width"), [(96, None, 320), (80, None, 256), (64, 100, 100)])
def test_parameter_counts_at_any_width(dim: int, feed_forward: int | None, width: int) -> None:
    """Six square matrices, two D x F, 14 vectors, and in Finch 2 vectors and 10 R + 2 Q low-rank vectors more."""
    config = RWKVConfig(6, dim, 3, 16, mix_rank=7, decay_rank=9, feed_forward=feed_forward)
    assert config.hidden == width
    shared = 3 * (6 * dim**2 + 2 * dim * width + 14 * dim) + 4 * dim + 2 * dim * 256
    assert parameter_count(dataclasses.replace(config, version=5)) == shared
    assert parameter_count(config) == shared + 3 * dim * (2 + 10 * 7 + 2 * 9)
    tied = dataclasses.replace(config, structure=Structure(tied=True))
    assert parameter_count(config) - parameter_count(tied) == 256 * dim
    rms = dataclasses.replace(config, structure=Structure(norm="rms"))
    assert parameter_count(config) - parameter_count(rms) == (2 + 2 * 3) * dim


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("version", 7, "version must be 5"),
        ("dim", 0, "dim must be at least 2"),
        ("layers", 0, "layers must be at least 1"),
        ("head_size", 0, "head_size must be at least 1"),
        ("head_size", 48, "dim must be a multiple of head_size"),
        ("mix_rank", 1, "mix_rank must be at least 2"),
        ("decay_rank", 1, "decay_rank must be at least 2"),
        ("feed_forward", 0, "feed_forward must be at least 1"),
        ("dropout", 1.0, "dropout must be at least 0 and below 1, got 1.0"),
    ],
)
def test_bad_configuration_names_the_field(field: str, value: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RWKVConfig(**{field: value})
    with pytest.raises(ValueError, match=r"feed_forward must be at least 1, got 0 \(for dim 8"):
        RWKVConfig(dim=8, head_size=4)


OfficialLogits = Callable[[Path, torch.Tensor], dict[str, torch.Tensor]]


def save_official(model: RWKV, folder: Path) -> Path:
    """The state dict as a file that the official package reads, whatever the options of the model."""
    # The package tells version 5.2 from 5.1 at the first time_decay that comes after an ln_x.
    weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
    weights = {name: weights[name] for name in sorted(weights, key=lambda name: "ln_x" not in name)}
    torch.save(weights, folder / "model.pth")
    return folder / "model.pth"


@pytest.mark.parametrize("config", [*EAGLE_AND_FINCH[:2], RWKVConfig(5, 64, 1), RWKVConfig(6, 128, 2, 64)], ids=str)
def test_official_package_computes_the_same(
    config: RWKVConfig, official_logits: OfficialLogits, tmp_path: Path
) -> None:
    model, inputs = build(config).float(), some_bytes(1, 200)[0]
    found = official_logits(save_official(model, tmp_path), inputs)
    with torch.no_grad():
        ours = model(inputs[None])[0]
    for logits in found.values():
        assert torch.allclose(logits, ours, rtol=1e-4, atol=2e-5)


def test_official_package_knows_no_k_clamp(official_logits: OfficialLogits, tmp_path: Path) -> None:
    """The comparison can fail: a clamped model is another function, and its checkpoint does not say so."""
    model = build(dataclasses.replace(EAGLE_AND_FINCH[1], k_clamp=True)).float()
    inputs = some_bytes(1, 20)[0]
    with torch.no_grad():
        ours = model(inputs[None])[0]
    assert (official_logits(save_official(model, tmp_path), inputs)["whole"] - ours).abs().max() > 1e-2


def test_kernel_is_the_rms_entry_of_what_a_head_reads_of_a_byte() -> None:
    [mixing] = RWKV(RWKVConfig(5, 32, 1, 16)).double().mixings()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        mixing.time_decay.copy_(torch.linspace(-5, 0, 32).view(2, 16))
        for layer in (mixing.receptance, mixing.key):
            layer.weight.copy_(torch.randn(32, 32, generator=generator, dtype=torch.float64))
    reads, writes = (layer.weight.view(2, 16, 32) for layer in (mixing.receptance, mixing.key))
    for lag in (1, 2, 50):
        entries = torch.einsum("hnd,hn,hne->hde", reads, torch.exp(-mixing.rates() * (lag - 1)), writes)
        found = entries.square().mean().sqrt()
        assert mixing.kernel(torch.tensor([lag])).item() == pytest.approx(found.item(), rel=1e-12)


def test_mixtures_at_once_are_those_one_by_one_with_fewer_launches(
    launches: Callable[[Callable[[], object]], int],
) -> None:
    """Forward to the bit, gradients up to the order of five summands: 39 -> 10 operators, 164 -> 135 per block
    of a step of Finch.
    """
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, 7, 8), (2, 7, 8), *[(1, 1, 8)] * 5, (5, 2, 7, 8)]
    inputs = [torch.randn(shape, generator=generator, requires_grad=True) for shape in shapes]
    x, change, *base, shares = inputs
    weights = torch.randn(5, 2, 7, 8, generator=generator).unbind()
    found, counts = [], []
    for at_once in (False, True):
        gradients: list[torch.Tensor] = []

        def step(at_once: bool = at_once, gradients: list[torch.Tensor] = gradients) -> None:
            mixed = mixtures(x, change, base, shares, at_once)
            found.append(mixed)
            gradients += torch.autograd.grad(mixed, inputs, weights)

        counts.append(launches(step))
        found.append(tuple(gradients))
    one, by_one, together, at_once_gradients = found
    assert all(map(torch.equal, one, together))
    scale = max(gradient.abs().max().item() for gradient in by_one)
    for expected, gradient in zip(by_one, at_once_gradients, strict=True):
        assert torch.allclose(gradient, expected, rtol=0, atol=16 * torch.finfo(torch.float32).eps * scale)
    assert 2 * counts[1] < counts[0], counts
