"""Goose: against its equations written as loops, against the official package, and in both modes."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from rwkv_loops import GOOSE, GOOSE_VARIANTS, Loops, build, norm, sigmoid

from plkernel.models.rwkv7 import RWKV7, RWKV7Config
from plkernel.models.structure import Structure

pytestmark = pytest.mark.usefixtures("one_thread")
MISTAKES = (
    "shift looks ahead",
    "shift the wrong way round",
    "first byte mixed with itself",
    "state read before it is written",
    "state decays before it is read",
    "decay of Finch",
    "decay from x",
    "nothing erased",
    "erased with the replacement key",
    "key not normalised",
    "rate on the other factor",
    "key not replaced",
    "no value residual",
    "value residual the wrong way round",
    "newest byte left out",
    "newest byte inside the norm",
    "gate without sigmoid",
    "group norm eps 1e-5",
    "one group",
    "no ln0",
    "relu not squared",
)


class Goose(Loops):
    """Section 4 of arXiv 2503.14456; `first` are the values of the first block."""

    first: list[np.ndarray]

    def mixed(self, now: np.ndarray, before: np.ndarray, name: str) -> np.ndarray:
        mu = self.p[name].ravel()
        if self.mistake == "shift the wrong way round":
            mu = 1 - mu
        return now + (before - now) * mu

    def low(self, x: np.ndarray, name: str, function: str = "") -> np.ndarray:
        hidden = x @ self.p[f"{name}1"]
        return {"tanh": np.tanh, "sigmoid": sigmoid, "": lambda y: y}[function](hidden) @ self.p[f"{name}2"]

    def time_mixing(self, xs: list[np.ndarray], name: str) -> list[np.ndarray]:
        p, size, outs, values = self.p, self.config.head_size, [], []
        states = [np.zeros((size, size)) for _ in range(self.config.heads)]  # value by key
        for t, (now, before) in enumerate(zip(xs, self.before(xs), strict=True)):
            x = {s: self.mixed(now, before, f"{name}x_{s}") for s in "rwkvag"}
            r, k, v = (p[f"{name}{matrix}.weight"] @ x[matrix[0]] for matrix in ("receptance", "key", "value"))
            d = p[f"{name}w0"].ravel() + self.low(now if self.mistake == "decay from x" else x["w"], f"{name}w", "tanh")
            w = np.exp(-np.exp(d)) if self.mistake == "decay of Finch" else np.exp(-math.exp(-0.5) * sigmoid(d))
            a = sigmoid(p[f"{name}a0"].ravel() + self.low(x["a"], f"{name}a"))
            g = self.low(x["g"], f"{name}g", "" if self.mistake == "gate without sigmoid" else "sigmoid")
            removal = k * p[f"{name}k_k"].ravel()
            replacement = k * (1 + (a - 1) * p[f"{name}k_a"].ravel())
            if self.mistake == "key not replaced":
                replacement = k
            values.append(v)
            if name != "blocks.0.att." and self.mistake != "no value residual":
                share = sigmoid(p[f"{name}v0"].ravel() + self.low(x["v"], f"{name}v"))
                share = 1 - share if self.mistake == "value residual the wrong way round" else share
                v = v + (self.first[t] - v) * share
            read, newest = [], []
            for h in range(self.config.heads):
                part = slice(h * size, (h + 1) * size)
                kappa = replacement[part] if self.mistake == "erased with the replacement key" else removal[part]
                if self.mistake != "key not normalised":
                    kappa = kappa / np.linalg.norm(kappa)
                left, right = kappa, a[part] * kappa
                if self.mistake == "rate on the other factor":
                    left, right = right, left
                transition = np.diag(w[part]) - np.outer(left, right)
                if self.mistake == "nothing erased":
                    transition = np.diag(w[part])
                product = np.outer(v[part], replacement[part])
                old, states[h] = states[h], states[h] @ transition + product
                seen = old if self.mistake == "state read before it is written" else states[h]
                if self.mistake == "state decays before it is read":
                    seen = states[h] * w[part]
                read.append(seen @ r[part])
                newest.append((r[part] * p[f"{name}r_k"][h]) @ replacement[part] * v[part])
            outs.append(p[f"{name}output.weight"] @ (self.gathered(read, newest, name) * g))
        if name == "blocks.0.att.":
            self.first = values
        return outs

    def gathered(self, read: list[np.ndarray], newest: list[np.ndarray], name: str) -> np.ndarray:
        """The heads, each normed, with what they make of the newest byte."""
        weight, bias = self.p[f"{name}ln_x.weight"], self.p[f"{name}ln_x.bias"]
        o, extra = np.concatenate(read), np.concatenate(newest)
        if self.mistake == "newest byte inside the norm":
            o, extra = o + extra, 0 * extra
        eps = 1e-5 if self.mistake == "group norm eps 1e-5" else 64e-5
        groups = 1 if self.mistake == "one group" else self.config.heads
        parts = zip(*(np.split(array, groups) for array in (o, weight, bias)), strict=True)
        normed = np.concatenate([norm(*part, eps) for part in parts])
        return normed if self.mistake == "newest byte left out" else normed + extra

    def channel_mixing(self, xs: list[np.ndarray], name: str) -> list[np.ndarray]:
        p, outs = self.p, []
        for now, before in zip(xs, self.before(xs), strict=True):
            hidden = np.maximum(p[f"{name}key.weight"] @ self.mixed(now, before, f"{name}x_k"), 0)
            outs.append(p[f"{name}value.weight"] @ (hidden if self.mistake == "relu not squared" else hidden**2))
        return outs


@pytest.mark.parametrize("config", [*GOOSE, *GOOSE_VARIANTS], ids=str)
def test_model_is_the_published_equations(config: RWKV7Config) -> None:
    assert Goose(build(config)).difference() < 4e-14


def test_a_thousand_bytes_are_the_published_equations() -> None:
    """Eigenvalues of a transition lie in -1 to 1, so errors do not grow with the text."""
    assert Goose(build(GOOSE[0])).difference(time=1000) < 4e-14


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_comparison_notices_a_mistake(mistake: str) -> None:
    assert Goose(build(GOOSE[0]), mistake).difference() > 1e-3


def parameter_count(config: RWKV7Config) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in RWKV7(config).parameters())


@pytest.mark.parametrize(
    ("dim", "layers", "ranks"),
    [(64, 1, (32, 32, 32, 32)), (768, 12, (64, 64, 32, 128)), (1024, 24, (64, 64, 64, 160)), (2048, 3, None)],
)
def test_parameter_counts_of_the_paper(dim: int, layers: int, ranks: tuple[int, ...] | None) -> None:
    """2 D V + 4 D + L D (12 D + 2 (d_w + d_a + d_v + d_g) + 19) - (2 D d_v + D), with 256 symbols."""
    config = RWKV7Config(dim, layers) if ranks else RWKV7Config(dim, layers, 64, 96, 96, 64, 256)
    ranks = ranks or (96, 96, 64, 256)
    assert config.ranks == ranks
    whole = 2 * dim * 256 + 4 * dim + layers * dim * (12 * dim + 2 * sum(ranks) + 19) - (2 * dim * ranks[2] + dim)
    assert parameter_count(config) == whole


def test_parameter_counts_at_any_width() -> None:
    config = RWKV7Config(96, 3, 16, 7, 9, 11, 13, feed_forward=100)
    shared = 3 * (4 * 96**2 + 2 * 96 * 100 + 19 * 96) + 4 * 96 + 2 * 96 * 256
    assert parameter_count(config) == shared + 2 * 96 * (3 * (7 + 9 + 13) + 2 * 11) - 96
    tied = dataclasses.replace(config, structure=Structure(tied=True))
    assert parameter_count(config) - parameter_count(tied) == 256 * 96


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("dim", 0, "dim must be at least 2"),
        ("layers", 0, "layers must be at least 1"),
        ("head_size", 0, "head_size must be at least 1"),
        ("head_size", 48, "dim must be a multiple of head_size"),
        ("decay_rank", 1, "decay_rank must be at least 2"),
        ("gate_rank", 0, "gate_rank must be at least 2"),
        ("feed_forward", 0, "feed_forward must be at least 1"),
        ("dropout", 1.0, "dropout must be at least 0 and below 1, got 1.0"),
        ("structure", Structure(unit_scaled=True), "unit_scaled is not for RWKV-7"),
    ],
)
def test_bad_configuration_names_the_field(field: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RWKV7Config(**{field: value})  # type: ignore[arg-type]


def test_kernel_is_the_rms_entry_of_what_a_head_reads_of_a_byte() -> None:
    """R' diag(w**t) K with the key as it is replaced at the bias of the rate; nothing is erased here."""
    mixing = build(GOOSE[0]).blocks[0].att
    reads = mixing.receptance.weight.view(2, 16, 32)
    scale = 1 + (torch.sigmoid(mixing.a0) - 1) * mixing.k_a
    writes = (mixing.key.weight * scale.view(32, 1)).view(2, 16, 32)
    rates = (math.exp(-0.5) * torch.sigmoid(mixing.w0)).view(2, 16)
    for lag in (1, 2, 50):
        entries = torch.einsum("hnd,hn,hne->hde", reads, torch.exp(-rates * lag), writes)
        found = entries.square().mean().sqrt()
        assert mixing.kernel(torch.tensor([lag])).item() == pytest.approx(found.item(), rel=1e-12)


def test_response_is_what_an_impulse_gives() -> None:
    """One value at step 3 alone, read at later steps; a state without erasing forgets by its decays alone."""
    mixing = build(RWKV7Config(32, 1, 16, 4, 3, 5, 6)).blocks[0].att
    with torch.no_grad():
        for name, parameter in mixing.named_parameters():
            if name in ("w1", "a1") or name.startswith("x_"):
                parameter.zero_()  # white input, and transitions that differ in their keys alone
    lags = torch.tensor([1, 4, 9])
    kept, erased = (mixing.response(lags, erase=erase) for erase in (False, True))
    reads, writes = mixing.receptance.weight.view(2, 16, 32), mixing.writes().view(2, 16, 32)
    for place, lag in enumerate(lags.tolist()):
        weights = torch.einsum("hnd,hn,hne->hde", reads, torch.exp(-mixing.rates() * lag), writes)
        expected = weights.square().sum(dim=(1, 2)).mean().sqrt().item()  # of independent inputs of variance 1
        assert kept[place].item() == pytest.approx(expected, rel=0.25), "a mean over 64 products"
    assert (erased < kept).all(), "a transition is a contraction of what it would be"
    assert (erased / kept).diff().max() < 0
