"""Goose: against its equations written as loops, against the official package, and in both modes."""

import dataclasses
import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from plkernel.models.rwkv import RWKVState
from plkernel.models.rwkv7 import RWKV7, RWKV7Config
from plkernel.models.structure import Structure

SMALL = [
    RWKV7Config(32, 3, 16, 4, 3, 5, 6),
    RWKV7Config(24, 1, 8),
    RWKV7Config(24, 2, 24, 2, 2, 2, 2, feed_forward=20),
]
VARIANTS = [  # what the official models never are
    RWKV7Config(32, 3, 16, 4, 3, 5, 6, structure=Structure(norm="rms")),
    RWKV7Config(24, 2, 8, 2, 3, 2, 3, structure=Structure(norm="rms", tied=True)),
]
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


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors of these sizes are slower on several threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def build(config: RWKV7Config, seed: int = 0) -> RWKV7:
    """A float64 model with every parameter random and large enough to matter."""
    generator = torch.Generator().manual_seed(seed)
    model = RWKV7(config).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            if parameter.ndim == 1:
                parameter.copy_(0.3 * noise + (1.0 if name.endswith("weight") else 0.0))
            elif parameter.ndim == 3 or name.endswith("r_k"):
                parameter.copy_(noise - 1.5 if name.endswith("w0") else 0.5 + 0.5 * noise)
            else:
                large = name == "emb.weight" and not config.structure.tied
                parameter.copy_(noise if large else noise / math.sqrt(parameter.shape[-1]))
    return model


def some_bytes(batch: int, time: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, 256, (batch, time), generator=torch.Generator().manual_seed(seed))


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, eps: float = 1e-5) -> np.ndarray:
    return (x - x.mean()) / math.sqrt(x.var() + eps) * weight + bias


class Loops:
    """The published equations in numpy, one byte and one head at a time; `mistake` builds in one error by name."""

    def __init__(self, model: RWKV7, mistake: str = "") -> None:
        self.config, self.mistake = model.config, mistake
        self.p = {name: value.detach().double().numpy() for name, value in model.state_dict().items()}

    def logits(self, text: list[int]) -> np.ndarray:
        p = self.p
        xs = [p["emb.weight"][byte] for byte in text]
        if self.mistake != "no ln0":
            xs = [self.ln(x, "blocks.0.ln0") for x in xs]
        first: list[np.ndarray] = []
        for block in range(self.config.layers):
            name = f"blocks.{block}"
            branch, first = self.time_mixing([self.ln(x, f"{name}.ln1") for x in xs], f"{name}.att.", first)
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

    def mixed(self, now: np.ndarray, before: np.ndarray, name: str) -> np.ndarray:
        mu = self.p[name].ravel()
        if self.mistake == "shift the wrong way round":
            mu = 1 - mu
        return now + (before - now) * mu

    def low(self, x: np.ndarray, name: str, function: str = "") -> np.ndarray:
        hidden = x @ self.p[f"{name}1"]
        return {"tanh": np.tanh, "sigmoid": sigmoid, "": lambda y: y}[function](hidden) @ self.p[f"{name}2"]

    def time_mixing(
        self, xs: list[np.ndarray], name: str, first: list[np.ndarray]
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Section 4 of the paper; `first` are the values of the first block, none in it."""
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
            if first and self.mistake != "no value residual":
                share = sigmoid(p[f"{name}v0"].ravel() + self.low(x["v"], f"{name}v"))
                share = 1 - share if self.mistake == "value residual the wrong way round" else share
                v = v + (first[t] - v) * share
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
        return outs, first or values

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


def difference(model: RWKV7, mistake: str = "", time: int = 17) -> float:
    """Largest difference of logits between the model in float64 and the loops."""
    inputs = some_bytes(1, time)
    with torch.no_grad():
        found = model(inputs)[0].numpy()
    return float(np.abs(found - Loops(model, mistake).logits(inputs[0].tolist())).max())


@pytest.mark.parametrize("config", [*SMALL, *VARIANTS], ids=str)
def test_model_is_the_published_equations(config: RWKV7Config) -> None:
    assert difference(build(config)) < 4e-14


def test_a_thousand_bytes_are_the_published_equations() -> None:
    """Eigenvalues of a transition lie in -1 to 1, so errors do not grow with the text."""
    assert difference(build(SMALL[0]), time=1000) < 4e-14


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_comparison_notices_a_mistake(mistake: str) -> None:
    assert difference(build(SMALL[0]), mistake) > 1e-3


def run_recurrent(model: RWKV7, inputs: torch.Tensor) -> tuple[torch.Tensor, RWKVState]:
    state, found = model.initial_state(inputs.shape[0]), []
    for t in range(inputs.shape[1]):
        logits, state = model.step(inputs[:, t], state)
        found.append(logits)
    return torch.stack(found, 1), state


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 5e-14), pytest.param(torch.float32, 1.2e-5, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("config", [*SMALL, *VARIANTS], ids=str)
def test_recurrent_mode_agrees_with_parallel_mode(config: RWKV7Config, dtype: torch.dtype, tolerance: float) -> None:
    model, inputs = build(config).to(dtype), some_bytes(3, 40)
    with torch.no_grad():
        parallel = model(inputs)
        recurrent, _ = run_recurrent(model, inputs)
    assert recurrent.dtype == dtype
    assert (parallel - recurrent).abs().max() < tolerance


def test_windows_with_carried_state_are_one_text() -> None:
    model, inputs = build(SMALL[0]), some_bytes(2, 31)
    with torch.no_grad():
        state, found = model.initial_state(2), []
        for window in inputs.split([1, 17, 13], dim=1):
            logits, state = model.resume(window, state)
            found.append(logits)
        whole, (_, end) = model(inputs), run_recurrent(model, inputs)
        assert (torch.cat(found, 1) - whole).abs().max() < 5e-14
        forgotten, _ = model.resume(inputs[:, 18:], model.initial_state(2))
    assert (forgotten - whole[:, 18:]).abs().max() > 1e-3, "the state must matter, or the test cannot fail"
    for ours, theirs in zip(state.layers, end.layers, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert a.shape == b.shape, "constant in the number of bytes"
            assert torch.allclose(a, b, rtol=0, atol=4e-14)


def test_gradients_flow_through_the_carried_state() -> None:
    """The loss of a second window has the gradients of the same loss in one window."""
    model, inputs = build(SMALL[0]), some_bytes(2, 12)
    model(inputs)[:, 6:].square().sum().backward()
    whole = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    _, state = model.resume(inputs[:, :6], model.initial_state(2))
    model.resume(inputs[:, 6:], state)[0].square().sum().backward()
    for name, parameter in model.named_parameters():
        assert whole[name].abs().max() > 0, name
        assert (parameter.grad - whole[name]).abs().max() <= 1e-13 * whole[name].abs().max(), name


@pytest.mark.parametrize("config", [*SMALL, *VARIANTS], ids=str)
def test_no_prediction_sees_a_later_byte_by_perturbation(config: RWKV7Config) -> None:
    model, inputs = build(config), some_bytes(2, 13)
    with torch.no_grad():
        before = model(inputs)
        for j in range(1, 13):
            changed = inputs.clone()
            changed[:, j] = (changed[:, j] + 128) % 256
            after = model(changed)
            assert torch.equal(after[:, :j], before[:, :j])
            assert not torch.equal(after[:, j], before[:, j])


@pytest.mark.parametrize("config", [*SMALL, *VARIANTS], ids=str)
def test_no_prediction_sees_a_later_byte_by_gradient(config: RWKV7Config) -> None:
    model = build(config)
    embedded = model.emb(some_bytes(1, 13)).detach().requires_grad_()
    logits = model.decode(embedded)
    for t in range(13):
        (gradient,) = torch.autograd.grad(logits[0, t].square().sum(), embedded, retain_graph=True)
        assert (gradient[0, : t + 1].abs().amax(1) > 0).all(), "every earlier byte acts, or the test cannot fail"
        assert gradient[0, t + 1 :].abs().sum() == 0


def test_a_tied_head_is_the_embedding() -> None:
    model = build(VARIANTS[1]).float()
    assert model.head.weight is model.emb.weight
    assert "head.weight" not in dict(model.named_parameters())


def test_dropout_is_on_the_embedding_and_after_every_sum() -> None:
    """In training a share p of the stream is zero there, and the rest is scaled; in evaluation nothing happens."""
    model = build(dataclasses.replace(SMALL[0], dropout=0.25))
    plain = RWKV7(SMALL[0]).double()
    plain.load_state_dict(model.state_dict())
    inputs, seen = some_bytes(4, 50), []
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.register_forward_hook(lambda _module, before, after: seen.append((before[0], after)))
    with torch.no_grad():
        model(inputs)
        assert len(seen) == 1 + 2 * 3
        for before, after in seen:
            kept = after != 0
            assert abs(kept.double().mean().item() - 0.75) < 0.04
            assert torch.allclose(after[kept], before[kept] / 0.75)
        assert torch.equal(model.eval()(inputs), plain(inputs))


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


@pytest.mark.parametrize("shape", [(0, 5), (2, 0), (0, 0)])
def test_no_texts_and_no_bytes_have_logits_of_their_shape(shape: tuple[int, int]) -> None:
    model = build(RWKV7Config(16, 2, 8))
    inputs = torch.zeros(shape, dtype=torch.long)
    logits = model(inputs)
    assert logits.shape == (*shape, 256)
    logits.sum().backward()
    state = model.initial_state(shape[0])
    assert model.resume(inputs, state)[0].shape == (*shape, 256)


def test_kernel_is_the_rms_entry_of_what_a_head_reads_of_a_byte() -> None:
    """R' diag(w**t) K with the key as it is replaced at the bias of the rate; nothing is erased here."""
    mixing = build(SMALL[0]).blocks[0].att
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
