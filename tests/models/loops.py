"""Eagle, Finch and Goose as their papers have them: equations in numpy, one byte and one head at a
time.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch

from plkernel.models.rwkv import RWKV

COMMON = (
    "shift looks ahead",
    "shift the wrong way round",
    "first byte mixed with itself",
    "state decays before it is read",
    "group norm eps 1e-5",
    "one group",
    "no ln0",
    "relu not squared",
)
EAGLE = (*COMMON, "u on the state", "gate before the norm")
MISTAKES = {  # what the comparison must notice, by version
    5: EAGLE,
    6: (*EAGLE, "streams in another order", "decay from x"),
    7: (
        *COMMON,
        "state read before it is written",
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
    ),
}


BY_POSITION = ("positions from 0", "alpha the wrong way round", "alpha of the logit", "no zigzag")
"""Faults to notice where decays of Goose are ordered and depend on the position."""


def in_order(theta: float, delta: Sequence[float]) -> list[float]:
    """p_k = theta + sum_{j<k} softplus(delta_j): arXiv 2604.07658."""
    levels = [theta]
    for one in delta:
        levels.append(levels[-1] + math.log(1 + math.exp(one)))
    return levels


def alphas(levels: Sequence[float], length: float) -> list[float]:
    """alpha_k = (N-1-k)/(N-1) + (c_k - k c_{N-1}/(N-1)) / ln T within 0 and 1, k the rank."""
    rising = sorted(levels)
    last = len(levels) - 1
    found = []
    for level in levels:
        k = rising.index(level)
        c_k = level - rising[0]
        c_last = rising[last] - rising[0]
        alpha = (last - k) / last + (c_k - k * c_last / last) / math.log(length)
        found.append(min(1.0, max(0.0, alpha)))
    return found


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, eps: float = 1e-5) -> np.ndarray:
    return (x - x.mean()) / math.sqrt(x.var() + eps) * weight + bias


class Loops(ABC):
    """Published equations in numpy, one byte and one head at a time; `mistake` builds in one error
    by name.
    """

    def __init__(self, model: RWKV, mistake: str = "") -> None:
        self.model = model
        self.config = model.config
        self.mistake = mistake
        self.p = {
            name: value.detach().double().numpy() for name, value in model.state_dict().items()
        }

    def logits(self, text: list[int]) -> np.ndarray:
        p = self.p
        xs = [p["emb.weight"][byte] for byte in text]
        if self.mistake != "no ln0":
            xs = [self.ln(x, "blocks.0.ln0") for x in xs]
        for block in range(self.config.layers):
            name = f"blocks.{block}"
            branch = self.time_mixing([self.ln(x, f"{name}.ln1") for x in xs], f"{name}.att.")
            xs = [x + y for x, y in zip(xs, branch, strict=True)]
            branch = self.channel_mixing([self.ln(x, f"{name}.ln2") for x in xs], f"{name}.ffn.")
            xs = [x + y for x, y in zip(xs, branch, strict=True)]
        return np.array([p["head.weight"] @ self.ln(x, "ln_out") for x in xs])

    def ln(self, x: np.ndarray, name: str) -> np.ndarray:
        if self.config.structure.norm == "rms":
            return x / math.sqrt((x**2).mean() + 1e-5) * self.p[f"{name}.weight"]
        return norm(x, self.p[f"{name}.weight"], self.p[f"{name}.bias"])

    def before(self, xs: list[np.ndarray]) -> list[np.ndarray]:
        if self.mistake == "shift looks ahead":
            return [*xs[1:], 0 * xs[0]]
        return [xs[0] if self.mistake == "first byte mixed with itself" else 0 * xs[0], *xs[:-1]]

    @abstractmethod
    def time_mixing(self, xs: list[np.ndarray], name: str) -> list[np.ndarray]: ...

    @abstractmethod
    def channel_mixing(self, xs: list[np.ndarray], name: str) -> list[np.ndarray]: ...

    def difference(self, inputs: torch.Tensor) -> float:
        """Largest difference to the logits of the model in float64 for one text (1,T)."""
        with torch.no_grad():
            found = self.model(inputs)[0].numpy()
        return float(np.abs(found - self.logits(inputs[0].tolist())).max())


class EagleAndFinch(Loops):
    """Equations 3 to 19 of arXiv 2404.05892."""

    def mu(self, name: str, stream: str) -> np.ndarray:
        """The weight of x_{t-1}."""
        found = self.p[
            f"{name}time_{'mix' if self.config.version == 5 else 'maa'}_{stream}"
        ].ravel()
        swapped = self.mistake == "shift the wrong way round"
        return 1 - found if (self.config.version == 5) != swapped else found

    def mixtures(self, a: np.ndarray, b: np.ndarray, name: str) -> dict[str, np.ndarray]:
        """Equation 3 for Eagle, 14 and 15 for Finch: a is x_t, b is x_{t-1}."""
        if self.config.version == 5:
            return {s: a + (b - a) * self.mu(name, s) for s in "rkvg"}
        rank = self.config.mix_rank
        mixed = a + (b - a) * self.mu(name, "x")
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
        p = self.p
        size = self.config.head_size
        outs = []
        states = [np.zeros((size, size)) for _ in range(self.config.heads)]
        for a, b in zip(xs, self.before(xs), strict=True):
            mixed = self.mixtures(a, b, name)
            r, k, v = (
                p[f"{name}{matrix}.weight"] @ mixed[matrix[0]]
                for matrix in ("receptance", "key", "value")
            )
            g = p[f"{name}gate.weight"] @ mixed["g"]
            w_raw = self.w_raw(mixed, a, name)
            if self.config.k_clamp:
                k = k * np.exp(np.minimum(w_raw, 0))
            heads = []
            for h in range(self.config.heads):
                part = slice(h * size, (h + 1) * size)
                u = p[f"{name}time_faaaa"][h]
                product = np.outer(k[part], v[part])
                w = np.exp(-np.exp(w_raw[part]))
                next_state = np.diag(w) @ states[h] + product
                seen = (
                    next_state - product
                    if self.mistake == "state decays before it is read"
                    else states[h]
                )
                wkv = (
                    np.diag(u) @ seen + product
                    if self.mistake == "u on the state"
                    else seen + np.diag(u) @ product
                )
                heads.append(r[part] @ wkv)
                states[h] = next_state
            outs.append(p[f"{name}output.weight"] @ self.gated(np.concatenate(heads), g, name))
        return outs

    def gated(self, o: np.ndarray, g: np.ndarray, name: str) -> np.ndarray:
        """SiLU(g) times the norm per head; Eagle's code divides by 8 first and takes eps 1e-5."""
        weight, bias = self.p[f"{name}ln_x.weight"], self.p[f"{name}ln_x.bias"]
        silu = g * sigmoid(g)
        if self.mistake == "gate before the norm":
            o = o * silu
            silu = np.ones_like(silu)
        scale, eps = (8, 1e-5) if self.config.version == 5 else (1, 64e-5)
        if self.mistake == "group norm eps 1e-5":
            scale, eps = 1, 1e-5
        groups = 1 if self.mistake == "one group" else self.config.heads
        parts = zip(*(np.split(array, groups) for array in (o / scale, weight, bias)), strict=True)
        return silu * np.concatenate([norm(*part, eps) for part in parts])

    def channel_mixing(self, xs: list[np.ndarray], name: str) -> list[np.ndarray]:
        """Equations 10 to 13."""
        p = self.p
        outs = []
        for a, b in zip(xs, self.before(xs), strict=True):
            x_k, x_r = (a + (b - a) * self.mu(name, s) for s in "kr")
            hidden = np.maximum(p[f"{name}key.weight"] @ x_k, 0)
            if self.mistake != "relu not squared":
                hidden = hidden**2
            outs.append(
                sigmoid(p[f"{name}receptance.weight"] @ x_r) * (p[f"{name}value.weight"] @ hidden)
            )
        return outs


class Goose(Loops):
    """Section 4 of arXiv 2503.14456; `first` are the values of the first block."""

    first: list[np.ndarray]

    def mixed(self, now: np.ndarray, before: np.ndarray, name: str) -> np.ndarray:
        mu = self.p[name].ravel()
        if self.mistake == "shift the wrong way round":
            mu = 1 - mu
        return now + (before - now) * mu

    def level(self, name: str, t: int) -> np.ndarray:
        """The logit of the decay of step t (from 0) without what the data add."""
        p, config = self.p, self.config
        w0 = p[f"{name}w0"].ravel()
        if config.parametrisation == "ordered":
            delta = p[f"{name}ordered.delta"].tolist()
            rising = np.array(in_order(float(p[f"{name}ordered.theta"][0]), delta))
            logit = rising if self.mistake == "no zigzag" else rising + w0
        elif config.scaling_length is None:
            return w0
        else:
            middle = (config.head_size - 1) / 2
            x = [(i % config.head_size - middle) / middle for i in range(config.dim)]
            rising = w0 - [2.5 * one * abs(one) for one in x]
            logit = w0
        if config.scaling_length is None:
            return logit
        proxy = rising if self.mistake == "alpha of the logit" else np.log(sigmoid(rising))
        alpha = np.array(alphas(proxy.tolist(), config.scaling_length))
        if self.mistake == "alpha the wrong way round":
            alpha = 1 - alpha
        position = max(t, 0.5) if self.mistake == "positions from 0" else t + 1
        return logit - alpha * math.log(position)

    def low(self, x: np.ndarray, name: str, function: str = "") -> np.ndarray:
        hidden = x @ self.p[f"{name}1"]
        return {"tanh": np.tanh, "sigmoid": sigmoid, "": lambda y: y}[function](hidden) @ self.p[
            f"{name}2"
        ]

    def time_mixing(self, xs: list[np.ndarray], name: str) -> list[np.ndarray]:
        p = self.p
        size = self.config.head_size
        outs = []
        values = []
        states = [np.zeros((size, size)) for _ in range(self.config.heads)]  # value by key
        for t, (now, before) in enumerate(zip(xs, self.before(xs), strict=True)):
            x = {s: self.mixed(now, before, f"{name}x_{s}") for s in "rwkvag"}
            r, k, v = (
                p[f"{name}{matrix}.weight"] @ x[matrix[0]]
                for matrix in ("receptance", "key", "value")
            )
            d = self.level(name, t) + self.low(
                now if self.mistake == "decay from x" else x["w"], f"{name}w", "tanh"
            )
            w = (
                np.exp(-np.exp(d))
                if self.mistake == "decay of Finch"
                else np.exp(-math.exp(-0.5) * sigmoid(d))
            )
            a = sigmoid(p[f"{name}a0"].ravel() + self.low(x["a"], f"{name}a"))
            g = self.low(
                x["g"], f"{name}g", "" if self.mistake == "gate without sigmoid" else "sigmoid"
            )
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
                kappa = (
                    replacement[part]
                    if self.mistake == "erased with the replacement key"
                    else removal[part]
                )
                if self.mistake != "key not normalised":
                    kappa = kappa / np.linalg.norm(kappa)
                left = kappa
                right = a[part] * kappa
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
            o = o + extra
            extra = 0 * extra
        eps = 1e-5 if self.mistake == "group norm eps 1e-5" else 64e-5
        groups = 1 if self.mistake == "one group" else self.config.heads
        parts = zip(*(np.split(array, groups) for array in (o, weight, bias)), strict=True)
        normed = np.concatenate([norm(*part, eps) for part in parts])
        return normed if self.mistake == "newest byte left out" else normed + extra

    def channel_mixing(self, xs: list[np.ndarray], name: str) -> list[np.ndarray]:
        p = self.p
        outs = []
        for now, before in zip(xs, self.before(xs), strict=True):
            hidden = np.maximum(p[f"{name}key.weight"] @ self.mixed(now, before, f"{name}x_k"), 0)
            outs.append(
                p[f"{name}value.weight"]
                @ (hidden if self.mistake == "relu not squared" else hidden**2)
            )
        return outs


def loops_of(model: RWKV, mistake: str = "") -> Loops:
    return (Goose if model.config.version == 7 else EagleAndFinch)(model, mistake)
