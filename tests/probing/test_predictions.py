"""The probe on models whose memory is known, on a run, and on a GPT-2 of transformers."""

import json
import math
import re
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import entropy
from scipy.stats import t as student
from torch import Tensor, nn

import plkernel
from plkernel.analysis.sequences import LagCorpus
from plkernel.commands import probe as command
from plkernel.common import cli
from plkernel.common.files import read_lines
from plkernel.config.reading import load_spec
from plkernel.context.measures import (
    INFORMED,
    Influence,
    Means,
    Probe,
    Truncation,
    influence_of,
    places,
    ratio_error,
)
from plkernel.data.windows import fixed_windows, predicted_bytes
from plkernel.probing import predictions
from plkernel.probing.predictions import (
    beyond,
    check_causal,
    influence,
    probe,
    render,
    truncation,
)
from plkernel.probing.text_models import (
    TextModel,
    _bytewise,
    _encoded,
    ends_by_pieces,
    open_text_model,
)
from plkernel.training import evaluate
from plkernel.training.evaluate import PLACES, Predict, token_losses
from plkernel.training.foreign import NEED_A_GPU
from plkernel.training.loop import prepare, run_training

SYMBOLS = 16
CPU = torch.device("cpu")


def text(count: int = 12, length: int = 64, symbols: int = SYMBOLS) -> Tensor:
    return torch.randint(
        0, symbols, (count, length + 1), generator=torch.Generator().manual_seed(0)
    )


def copying(lag: int, sure: float = 8.0) -> Predict:
    """Believes in the token `lag` before the one to predict, whose logit is `sure`; all others are
    0.
    """

    def predict(tokens: Tensor) -> Tensor:
        logits = torch.zeros(*tokens.shape, SYMBOLS)
        logits[:, lag - 1 :].scatter_(2, tokens[:, : max(0, tokens.shape[1] - lag + 1), None], sure)
        return logits

    return predict


def markov(tokens: Tensor) -> Tensor:
    return torch.randn(SYMBOLS, SYMBOLS, generator=torch.Generator().manual_seed(1))[tokens]


def test_a_markov_chain_knows_the_last_token_alone() -> None:
    """At lag 1 the mean of KL over pairs of rows, at all others exactly nothing; one token given
    costs nothing.
    """
    found = probe(markov, text(200), range(1, 65))
    assert found.influence.bits[1:] == (0.0,) * 63
    assert set(found.truncation.cost) == {0.0}
    log_p = markov(torch.arange(SYMBOLS)).double().log_softmax(-1)
    pairs = (log_p.exp()[:, None] * (log_p[:, None] - log_p[None])).sum(-1) / math.log(2)
    expected = pairs.sum().item() / (SYMBOLS * (SYMBOLS - 1))
    assert found.influence.bits[0] == pytest.approx(
        expected, abs=4 * found.influence.standard_error[0]
    )


def test_a_copy_is_seen_at_its_lag_alone() -> None:
    """The likely token's probability p changes places with that of another, 1 of S: KL = (p - q)
    log2(p / q).
    """
    found = influence(copying(37), text(), [1, 2, 36, 37, 38, 64])
    p = math.exp(8) / (math.exp(8) + SYMBOLS - 1)
    q = (1 - p) / (SYMBOLS - 1)
    assert found.bits == pytest.approx([0, 0, 0, (p - q) * math.log2(p / q), 0, 0], rel=1e-6)
    assert found.bits[4] == 0


def test_the_prediction_from_the_true_past_comes_first() -> None:
    """KL as scipy has it, not symmetric: what the true past excludes counts nothing, and the other
    way round inf.
    """
    logits = torch.tensor([[0.0, 2.0, -math.inf], [1.0, 0.0, 0.5]], dtype=torch.float64)
    p, q = logits.softmax(-1).numpy()
    for symbol, expected in ((0, entropy(p, q, base=2)), (1, math.inf)):
        windows = torch.tensor(
            [[symbol] * 5 + [1 - symbol]]
        )  # the one other token is the last, which is not given
        assert influence(lambda tokens: logits[tokens], windows, [1]).bits[0] == pytest.approx(
            expected
        )


def test_the_best_predictor_of_a_law_has_its_exact_curve() -> None:
    """Wrapped as a model, the mixture of lags loses what it says: of one byte given ln S - I(1), of
    all the floor.
    """
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
    assert found.cost[found.given.index(16)] == pytest.approx(
        0, abs=1e-12
    )  # all that is copied from
    first = math.log2(SYMBOLS) - law.mutual_information([1])[0] / math.log(2)
    error = 4 * 3 / math.sqrt(1000)  # losses spread over 3 bits or less
    assert (found.bpb[0], found.bpb[-1]) == pytest.approx((first, law.bits_per_byte()), abs=error)
    assert found.cost[0] == pytest.approx(
        first - law.bits_per_byte(), abs=4 * found.standard_error[0]
    )


def test_reading_on_costs_and_is_worth_what_closed_forms_say() -> None:
    """Uniform, but sure of symbol 0 by 3 nats where more than 16 came before; then a copy that is
    right, of 20 back.
    """

    def sure(tokens: Tensor) -> Tensor:
        logits = torch.zeros(*tokens.shape, SYMBOLS, dtype=torch.float64)
        logits[:, 16:, 0] = 3.0
        return logits

    windows, total = text(50, 100), math.exp(3) + SYMBOLS - 1
    cost, apart = beyond(sure, windows, 16, batch=7)
    zeros = [
        float((windows[:, a + 1 : b + 1] == 0).double().mean())
        for a, b in pairwise((16, 32, 64, 100))
    ]
    assert cost.given == apart.given == (32, 64, 100)
    assert cost.bpb == pytest.approx(
        [(math.log(total / SYMBOLS) - 3 * share) / math.log(2) for share in zeros]
    )
    p, q = math.exp(3) / total, 1 / total
    assert apart.bpb == pytest.approx(
        [p * math.log2(p * SYMBOLS) + (1 - p) * math.log2(q * SYMBOLS)] * 3
    )
    cost, _ = beyond(copying(20), text(9, 19).repeat(1, 7), 17, step=4)
    assert cost.bpb[1:] == pytest.approx(
        [math.log2(1 + (SYMBOLS - 1) * math.exp(-8)) - math.log2(SYMBOLS)] * 3
    )
    assert set(beyond(markov, text(), 7)[0].bpb) == {0.0}


def planted(number: float, *places: Any) -> Predict:
    """`copying(5)` with a number that is none: in a window, from a position on, of a symbol."""
    known, (window, *rest) = text(), places

    def predict(tokens: Tensor) -> Tensor:
        logits = copying(5)(tokens)
        rows: Any = slice(None)
        if window is not None:
            head = min(9, tokens.shape[1])
            rows = (tokens[:, :head] == known[window, :head]).all(1)
        changed = logits[rows]
        changed[:, *rest] = number
        logits[rows] = changed
        return logits

    return predict


ALL = slice(None)
NOT_NUMBERS = {
    "NaN everywhere": (planted(math.nan, None, ALL, ALL), "NaN at position 0 of window 0"),
    "NaN at the end": (planted(math.nan, None, slice(40, None), ALL), "NaN at position 40 of"),
    "NaN of one symbol": (planted(math.nan, None, slice(60, 61), 3), "NaN at position 60 of"),
    "NaN in one window": (planted(math.nan, 9, slice(30, None), ALL), "position 30 of window 9"),
    "all impossible": (planted(-math.inf, None, slice(50, 51), ALL), "all -inf at position 50"),
    "+inf": (planted(math.inf, None, slice(33, 35), 2), r"\+inf at position 33 of window 0"),
    "float16": (lambda x: (copying(5)(x) * 20_000).half(), "above 65,504 are infinite"),
}
MEASURES: dict[str, Callable[[Predict], object]] = {
    "influence": lambda predict: influence(predict, text(), [1, 5]),
    "truncation": lambda predict: truncation(predict, text(), 4),
    "token_losses": lambda predict: token_losses(predict, text(), 4),
    "beyond": lambda predict: beyond(predict, text(), 16),
    "probe": lambda predict: probe(predict, text(), [1, 5]),
    "plkernel.influence": lambda predict: plkernel.influence(
        predict, text()[:, :-1].reshape(-1).numpy(), context=63, windows=12
    ),
}
CHECKING = [name for name in MEASURES if name != "token_losses"]
"""Those that check first if a model sees ahead."""


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("fault", NOT_NUMBERS)
def test_logits_that_are_not_numbers_are_refused_with_their_place(fault: str, measure: str) -> None:
    """They have no KL divergence: 0 bits would be the best that a model can do."""
    predict, message = NOT_NUMBERS[fault]
    if measure in ("truncation", "plkernel.influence"):  # of other windows
        message = "the logits of the model are not numbers: "
    with pytest.raises(ValueError, match=message):
        MEASURES[measure](predict)


def test_divergence_of_what_is_not_a_number_is_none() -> None:
    """Beside what has no probability, which adds nothing."""
    logits = torch.tensor([[0.0, 1.0, -math.inf], [0.0, 1.0, -math.inf], [0.0, math.inf, 0.0]])
    other = torch.tensor([[0.5, 1.0, 2.0], [0.0, math.nan, 1.0], [0.0, 0.0, 0.0]])
    found = evaluate.divergence(logits, other)
    assert found.isnan().tolist() == [False, True, True]
    p, q = logits[0].double().softmax(-1), other[0].double().softmax(-1)
    assert float(found[0]) == pytest.approx(entropy(p, q, base=2), rel=1e-12)


def dropping(tokens: Tensor) -> Tensor:
    return torch.nn.functional.dropout(copying(5)(tokens), 0.5, training=True)


def sampling(tokens: Tensor) -> Tensor:
    """One symbol, as the temperature draws it."""
    drawn = torch.distributions.Categorical(logits=copying(5)(tokens)).sample()
    return 2.0 * torch.nn.functional.one_hot(drawn, SYMBOLS)


def rarely(tokens: Tensor) -> Tensor:
    """Noise at the last position of one window alone."""
    logits = copying(5)(tokens)
    logits[-1, -1] += torch.randn(SYMBOLS)
    return logits


class Remembering:
    """Keeps a state from call to call."""

    calls = 0

    def __call__(self, tokens: Tensor) -> Tensor:
        self.calls += 1
        return copying(5)(tokens) * (1 + 0.1 * self.calls)


RANDOM: dict[str, Callable[[], Predict]] = {
    "dropout": lambda: dropping,
    "sampling": lambda: sampling,
    "noise in one place": lambda: rarely,
    "a state": Remembering,
}


@pytest.mark.parametrize("measure", CHECKING)
@pytest.mark.parametrize("fault", RANDOM)
def test_a_model_that_is_random_is_told_so(fault: str, measure: str) -> None:
    """Rather than that it sees ahead, which moves logits too."""
    with pytest.raises(ValueError, match="the model is random: the same tokens give other logits"):
        MEASURES[measure](RANDOM[fault]())


def blended(x: Tensor) -> Tensor:
    """Adds the mean over the batch, as a batch norm in training does."""
    logits = markov(x)
    return logits + logits.mean(dim=0, keepdim=True)


@pytest.mark.parametrize("measure", ["influence", "truncation", "probe"])
def test_a_model_that_looks_at_other_windows_is_told_so(measure: str) -> None:
    """Its figures would depend on the batch."""
    with pytest.raises(ValueError, match="must not change with the other windows of its batch"):
        MEASURES[measure](blended)
    assert influence(blended, text(3, 16), [1], batch=1).bits


@pytest.mark.parametrize(
    "wrap",
    [
        lambda logits: (logits, None),
        lambda logits: [logits],
        lambda logits: {"loss": 1.0, "logits": logits},
        lambda logits: SimpleNamespace(logits=logits, loss=1.0),
        lambda logits: logits.numpy(),
        lambda logits: (logits.double().numpy(), {"state": 1}),
    ],
)
def test_logits_are_found_in_what_models_return(wrap: Callable[[Tensor], Any]) -> None:
    expected = influence(copying(5), text(), [1, 5]).bits
    assert influence(lambda x: wrap(copying(5)(x)), text(), [1, 5]).bits == pytest.approx(expected)


@pytest.mark.parametrize(
    ("predict", "message"),
    [
        (lambda x: None, "predict must return logits, a tensor or .logits, got NoneType"),
        (lambda x: copying(5)(x)[:, -1], r"got torch.float32 of shape \(4, 16\)"),
        (lambda x: copying(5)(x)[..., :4], r"V above 1\d, for tokens .* of shape \(4, 64, 4\)"),
        (lambda x: copying(5)(x).long(), "floating logits .* got torch.int64"),
        (lambda x: copying(5)(x).to("meta"), "on meta"),
    ],
)
def test_what_are_no_logits_is_told(predict: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        influence(predict, text())


INTEGERS: dict[str, Callable[[Tensor], Any]] = {
    "influence": lambda windows: influence(markov, windows).bits,
    "truncation": lambda windows: truncation(markov, windows, 4).bpb,
    "token_losses": lambda windows: token_losses(markov, windows, 4).tolist(),
    "beyond": lambda windows: beyond(markov, windows, 16)[0].bpb,
    "probe": lambda windows: probe(markov, windows).bits_per_token,
}


@pytest.mark.parametrize("kind", [torch.uint8, torch.int32])
@pytest.mark.parametrize("measure", INTEGERS)
def test_windows_of_any_integers_are_read(measure: str, kind: torch.dtype) -> None:
    read = INTEGERS[measure]
    assert read(text(3, 32).to(kind)) == read(text(3, 32))


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (lambda predict, x: probe(predict, x, batch=2.0), "batch must be a whole number"),
        (lambda predict, x: probe(predict, x, seed=-1), "seed must lie between 0 and .*, got -1"),
        (lambda predict, x: probe(predict, x, step=0), "step must be at least 1, got 0"),
        (
            lambda predict, x: probe(predict, x, window_bytes=[1, 2]),
            r"window_bytes must be of shape \(3,\), one for each window, got \(2,\)",
        ),
        (lambda predict, x: probe(predict, x, window_bytes="x"), "window_bytes must be numbers"),
        (
            lambda predict, x: probe(predict, x, window_bytes=[0, 0, 0]),
            "window_bytes must be finite, at least 0 and not all 0",
        ),
        (
            lambda predict, x: influence(predict, x, seed=2**63),
            "seed must lie between 0 and 9223372036854775807, got 9223372036854775808",
        ),
        (lambda predict, x: influence(predict, x, count=8.0), "count must be a whole number"),
        (lambda predict, x: truncation(predict, x, 4, step=0), "step must be at least 1, got 0"),
        (lambda predict, x: beyond(predict, x, 16.0), "context must be a whole number"),
        (lambda predict, x: beyond(predict, x, 16, step=0), "step must be at least 1, got 0"),
        (lambda predict, x: token_losses(predict, x, 0), "batch must be at least 1, got 0"),
        (lambda predict, x: probe(nn.Linear, x), "got the class Linear; build one of it"),
        (lambda predict, x: token_losses(3, x, 4), "predict must be a function or a model, got 3"),
    ],
)
def test_options_that_are_no_numbers_are_named(asked: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        asked(markov, text(3, 32))


def test_a_probe_refuses_its_step_before_the_model_runs() -> None:
    def never(tokens: Tensor) -> Tensor:
        raise AssertionError("the model has run")

    with pytest.raises(ValueError, match="step must be at least 1, got 0"):
        probe(never, text(3, 32), step=0)


@pytest.mark.parametrize("length", [16, 17])
def test_a_model_that_sees_ahead_is_refused_with_the_place(length: int) -> None:
    """Patches of two show their second token to the first: seen at an even and at an odd length."""

    def patches(tokens: Tensor) -> Tensor:
        ahead, pairs = tokens.clone(), tokens.shape[1] // 2
        ahead[:, : 2 * pairs : 2] = tokens[:, 1 : 2 * pairs : 2]
        return markov(ahead)

    last = length - 2 if length % 2 == 0 else length - 3
    with pytest.raises(
        ValueError, match=f"replacing the token at position {last + 1} .* position {last} by"
    ):
        check_causal(patches, text(3, length))


def ahead(tokens: Tensor) -> Tensor:
    """Sees the very token that it is to predict."""
    return markov(tokens.roll(-1, 1))


@pytest.mark.parametrize("measure", CHECKING)
def test_no_measure_takes_a_model_that_sees_ahead(measure: str) -> None:
    """It needs no context, and its influence is 0 at every lag."""
    with pytest.raises(ValueError, match="the model is not causal: replacing the token at"):
        MEASURES[measure](ahead)


@pytest.mark.parametrize("measure", ["influence", "truncation", "beyond", "probe"])
def test_a_model_is_held_against_itself_once(measure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven calls of a large model are no small thing."""
    checked = []

    def noted(*args: Any) -> None:
        checked.append(args[0])
        check_causal(*args)

    monkeypatch.setattr(predictions, "check_causal", noted)
    MEASURES[measure](markov)
    assert checked == [markov]


def test_wrong_lags_and_contexts_are_refused_before_the_model_is_called() -> None:
    calls = []
    with pytest.raises(ValueError, match="lags"):
        influence(calls.append, text(), [0])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"context must lie between 1 and below .*, got 0"):
        beyond(calls.append, text(), 0)  # type: ignore[arg-type]
    assert calls == []


def probabilities(tokens: Tensor) -> Tensor:
    return markov(tokens).softmax(-1)


PROBABILITIES: dict[str, Predict] = {
    "float32": probabilities,
    "float64": lambda x: markov(x).double().softmax(-1),
    "bfloat16": lambda x: markov(x).bfloat16().softmax(-1),
    "of bfloat16": lambda x: markov(x).bfloat16().softmax(-1).float(),
    "float16": lambda x: markov(x).half().softmax(-1),
    "of many symbols in float16": lambda x: markov(x).repeat(1, 1, 3000).half().softmax(-1),
    "of one symbol": lambda x: torch.nn.functional.one_hot(x, SYMBOLS).float(),
}


@pytest.mark.parametrize("kind", PROBABILITIES)
def test_probabilities_are_no_logits(kind: str) -> None:
    """Taken for logits they are nearly uniform, and hardly any token has an influence."""
    with pytest.raises(ValueError, match="must return logits, got probabilities, which sum to 1"):
        influence(PROBABILITIES[kind], text(2, 16), [1])


@pytest.mark.parametrize("measure", CHECKING)
def test_no_measure_takes_probabilities(measure: str) -> None:
    with pytest.raises(ValueError, match=r"got probabilities, .*; leave its softmax out, or give"):
        MEASURES[measure](probabilities)


def test_logarithms_of_probabilities_are_logits() -> None:
    expected = influence(markov, text(), [1, 5]).bits
    found = influence(lambda x: probabilities(x).log(), text(), [1, 5]).bits
    assert found == pytest.approx(expected, rel=1e-4)


HONEST: dict[str, Predict] = {
    "zeros, of a fresh head": lambda x: torch.zeros(*x.shape, SYMBOLS),
    "equal ones": lambda x: torch.full((*x.shape, SYMBOLS), 1 / SYMBOLS),
    "of two symbols, all rows but one": lambda x: torch.tensor([[0.25, 0.75], [0.5, 0.75]])[x],
    "of sum 1, and some below 0": lambda x: torch.tensor([[-0.5, 1.5], [0.25, 0.75]])[x],
    "nearly of sum 1": lambda x: torch.tensor([[0.25, 0.76], [0.5, 0.51]])[x],
}


@pytest.mark.parametrize("kind", HONEST)
def test_honest_logits_are_no_probabilities(kind: str) -> None:
    """Though they are small, equal, or sum to 1 somewhere."""
    assert math.isfinite(influence(HONEST[kind], text(symbols=2), [1]).bits[0])


def test_rounding_is_not_seeing_ahead() -> None:
    """A convolution through FFTs moves what is before by rounding; ten thousand times as much is
    refused.
    """

    def blurred(size: float) -> Predict:
        return lambda tokens: markov(tokens) * (1 + size * tokens.sum(1)[:, None, None])

    check_causal(blurred(1e-8), text())
    with pytest.raises(ValueError, match="not causal"):
        check_causal(blurred(1e-4), text())


@pytest.mark.slow  # trains a model, and replaces every token of 48 windows
@pytest.mark.parametrize("kind", ["ssm", "rwkv6"])
def test_errors_of_trained_models_are_those_over_windows_and_draws(
    kind: str, tiny_spec: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Standard deviation over a thousand seeds, each with windows drawn anew, over the error
    stated.

    The root mean square of the statements, and their median: few readings carry most of the
    influence at far lags.
    """
    path, length, count = (
        tiny_spec(corpus="stdlib", context=128, steps=250, eval_every=250),
        128,
        48,
    )
    head = 'dim = 32\nkind = "rwkv6"\nhead_size = 16' if kind == "rwkv6" else "dim = 32"
    path.write_text(
        path.read_text().replace("dim = 16", head).replace('projection = "published"', "")
    )
    run_training(prepare(load_spec(path), "uniform", 0, tmp_path / "out"), progress_bar=False)
    target = open_text_model(tmp_path / "out" / "uniform" / "seed-0", CPU)
    lags, every, rng = [1, 2, 4, 8, 16, 32, 64, 128], list[Any](), np.random.default_rng(0)
    monkeypatch.setattr(evaluate, "influence_of", lambda lags, bits: every.append(bits))
    influence(
        target.predict, fixed_windows(target.text(None)[1], length, count), lags, count, length
    )
    found = []
    for _ in range(1000):
        windows, chosen = rng.integers(count, size=(count, 1)), places(count, length, PLACES, rng)
        found.append(influence_of(lags, every[0][windows, chosen]))
    spread, errors = (
        np.std([one.bits for one in found], axis=0),
        np.array([one.standard_error for one in found]),
    )
    ratios = spread / np.sqrt(np.square(errors).mean(axis=0)), spread / np.median(errors, axis=0)
    assert (ratios[0] > 0.8).all(), ratios
    assert (ratios[0] < 1.2).all(), ratios
    assert (ratios[1] < 1.3).all() or kind == "rwkv6", (
        ratios
    )  # one reading can carry most of the influence of a Finch


@pytest.fixture
def gpt2(tmp_path: Path) -> Path:
    """A GPT-2 with random weights and a tokenizer of 300 pairs of bytes, as transformers saves
    them.
    """
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.BPE())
    words.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, show_progress=False
    )
    words.train_from_iterator([Path(__file__).read_text()], trainer)
    sizes = {"vocab_size": 300, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2}
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
    )
    model.save_pretrained(tmp_path / "gpt2")
    transformers.PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(tmp_path / "gpt2")
    return tmp_path / "gpt2"


def probed(folder: Path, target: Path, *args: object) -> Any:
    cli.main(command.probe, list(map(str, [target, *args, "--json", folder / "p.json"])))
    return json.loads((folder / "p.json").read_text())


def test_a_run_is_probed_on_its_validation_text(
    tiny_spec: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the windows of its last evaluation it has the bits per byte of its last row."""
    run_training(
        prepare(load_spec(tiny_spec()), "uniform", 0, tmp_path / "out"), progress_bar=False
    )
    folder = tmp_path / "out" / "uniform" / "seed-0"
    options = ("--windows", 4, "--lags", 1, 5, 32, "--figure", tmp_path / "p.svg")
    found, last = probed(tmp_path, folder, *options), read_lines(folder / "metrics.jsonl")[-1]
    assert found["bits_per_token"] == pytest.approx(last["val_bpb"], rel=1e-6)
    assert found["positions"]["bits"] == pytest.approx(last["positions"]["bpb"], rel=1e-6)
    assert (found["unit"], found["context"], found["bytes_per_token"]) == ("byte", 32, 1)
    assert found["influence"]["lags"] == found["information"]["lags"] == [1, 5, 32]
    assert all(bits > 0 for bits in found["influence"]["bits"])
    assert "I(d) of the text" in (tmp_path / "p.svg").read_text()
    said = capsys.readouterr().out
    assert "4 windows of 32 bytes" in said
    assert "I(d) of the text" in said


def test_a_run_on_recall_is_no_model_of_a_text() -> None:
    corpus = {"corpus": {"name": "synthetic:recall,pairs=8,length=32"}}
    one = TextModel(nn.Identity(), lambda tokens: tokens, _bytewise, "byte", 32, config=corpus)
    with pytest.raises(ValueError, match="target must be a model of a text, got a run on recall"):
        one.text(None)
    assert one.text("synthetic:lags,alpha=1,bytes=1kB")[1].size == 1000


def test_a_model_of_transformers_is_probed_in_tokens(
    gpt2: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With random weights it knows nothing: about log2 300 bits per token. Without layers it reads
    lag 1 alone.
    """
    import transformers

    found = probed(tmp_path, gpt2, "--text", __file__, "--windows", 5)
    assert (found["unit"], found["context"], found["windows"]) == ("token", 32, 5)
    assert found["bits_per_token"] == pytest.approx(np.log2(300), abs=0.2)
    assert found["influence"]["lags"] == found["truncation"]["given"] == [1, 2, 4, 8, 16, 32]
    assert all(bits > 0 for bits in found["influence"]["bits"])
    assert "information" not in found
    assert (
        f"{found['bits_per_token'] / found['bytes_per_token']:.4f} bits per byte"
        in capsys.readouterr().out
    )
    assert found["bytes_per_token"] > 1.2
    target, words = open_text_model(gpt2, CPU), "def probe(): ...\n"
    tokens, ends = target.encode(np.frombuffer(words.encode(), np.uint8))
    assert ends is not None
    assert ends[-1] == len(words)
    assert transformers.AutoTokenizer.from_pretrained(gpt2).decode(tokens) == words
    inputs = torch.from_numpy(tokens)[None]
    with torch.no_grad():
        expected = transformers.GPT2LMHeadModel.from_pretrained(gpt2).eval()(inputs).logits
        assert torch.equal(target.predict(inputs), expected)
    config = transformers.GPT2Config.from_pretrained(gpt2, n_layer=0)
    transformers.GPT2LMHeadModel(config).save_pretrained(gpt2)
    further = ("--context", 8, "--lengths", 4, "--figure", tmp_path / "p.svg")
    found = probed(tmp_path, gpt2, "--text", __file__, "--windows", 5, *further)
    assert (found["trained"], found["context"], found["cost"]["given"]) == (8, 32, [16, 32])
    assert all(bits > 0 for bits in found["divergence"]["bits"])  # of its positions
    assert "lost since 8, bits per token" in (tmp_path / "p.svg").read_text()
    assert (
        "reading on: bits with all before less those with the last 8 alone"
        in capsys.readouterr().out
    )
    assert found["influence"]["bits"][0] > 0
    assert found["influence"]["bits"][1:] == [0] * 5


def test_bits_per_byte_are_over_the_bytes_of_the_windows(
    gpt2: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A long part of the text is as the tokenizer knows it, the end is Chinese, of which each byte
    is a token: two windows do not have the bytes per token of the whole.
    """
    transformers = pytest.importorskip("transformers")
    text = "        assert found\n" * 100 + "漢字" * 20
    (tmp_path / "text.txt").write_text(text)
    found = probed(tmp_path, gpt2, "--text", tmp_path / "text.txt", "--windows", 2)
    tokenizer = transformers.AutoTokenizer.from_pretrained(gpt2)
    ids = np.array(tokenizer(text)["input_ids"])
    model = transformers.GPT2LMHeadModel.from_pretrained(gpt2).eval()
    windows = fixed_windows(ids, 32, 2)
    with torch.no_grad():
        logits = model(windows[:, :-1]).logits.double()
    bits = -logits.log_softmax(-1).gather(2, windows[:, 1:, None]).sum() / np.log(2)
    pieces = tokenizer.convert_ids_to_tokens(windows[:, 1:].reshape(-1).tolist())
    size = sum(map(len, pieces))  # a letter of these stands for a byte
    of_text = len(text.encode()) / ids.size
    assert size / (2 * 32) < 0.9 * of_text
    assert found["bytes_per_token"] == pytest.approx(size / (2 * 32), rel=1e-12)
    expected = float(bits) / size
    assert found["bits_per_byte"] == pytest.approx(expected, rel=1e-5)
    assert found["bits_per_byte_error"] > 0
    assert f"{expected:.4f} bits per byte (+- " in capsys.readouterr().out


def test_predicted_bytes_are_those_of_each_window() -> None:
    """Tokens of 1, 2, 3 .. bytes: windows of three and the first token of each, which is given."""
    ends = np.cumsum(np.arange(1, 13))
    assert fixed_windows(np.arange(1, 13), 3, 3).tolist() == [
        [1, 2, 3, 4],
        [5, 6, 7, 8],
        [9, 10, 11, 12],
    ]
    assert predicted_bytes(ends, 3, 3).tolist() == [2 + 3 + 4, 6 + 7 + 8, 10 + 11 + 12]


def test_the_same_bits_at_every_byte_have_no_error() -> None:
    """Although bits per token vary with the length of tokens; else the error is that of windows."""
    sizes = np.array([50, 90, 30, 70])
    assert ratio_error(1.5 * sizes, sizes) == pytest.approx(0, abs=1e-12)
    assert ratio_error([1.0], [1]) is None
    rng = np.random.default_rng(0)
    ratios = []
    errors = []
    for _ in range(4_000):
        drawn = rng.integers(20, 100, 64)
        bits = 2 * drawn + rng.normal(0, 10, 64)
        ratios.append(bits.sum() / drawn.sum())
        errors.append(ratio_error(bits, drawn))
    assert np.std(ratios) == pytest.approx(np.sqrt(np.mean(np.square(errors))), rel=0.05)


def test_a_tokenizer_that_tells_no_places_spreads_its_tokens(
    gpt2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that is written in Python may: all bytes are counted still."""
    transformers = pytest.importorskip("transformers")
    known = transformers.AutoTokenizer.from_pretrained(gpt2)

    class Slow:
        is_fast = False
        all_special_ids = known.all_special_ids
        __len__ = known.__len__
        convert_ids_to_tokens = known.convert_ids_to_tokens

        def __call__(self, words: str, **options: Any) -> Any:
            assert "return_offsets_mapping" not in options
            return known(words, **options)

    monkeypatch.setattr(
        transformers.AutoTokenizer, "from_pretrained", lambda *_, **__: Slow(), raising=True
    )
    text = np.frombuffer("def probe(): 漢字\n".encode(), np.uint8)
    tokens, ends = open_text_model(gpt2, CPU).encode(text)
    assert ends is not None
    assert len(ends) == len(tokens)
    assert ends[-1] == text.size
    assert np.all(np.diff(ends) >= 0)
    pieces = known.convert_ids_to_tokens(tokens.tolist())  # a letter of these stands for a byte
    assert ends.tolist() == np.cumsum([len(piece) for piece in pieces]).tolist()


def test_windows_of_a_tokenizer_that_tells_no_places_have_their_own_bytes(tmp_path: Path) -> None:
    """Of ByT5 every token is a byte, in Latin letters and in Devanagari, of three bytes each."""
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 384, "n_positions": 32, "n_embd": 8, "n_layer": 1, "n_head": 2}
    config = transformers.GPT2Config(**sizes, bos_token_id=1, eos_token_id=1)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    transformers.ByT5Tokenizer().save_pretrained(tmp_path)
    text = np.frombuffer(("a" * 600 + "अ" * 200).encode(), np.uint8)
    tokens, ends = open_text_model(tmp_path, CPU).encode(text)
    assert tokens.size == text.size
    assert ends is not None
    assert ends.tolist() == list(range(1, 1201))
    assert open_text_model(tmp_path, CPU).encode(text[:0])[0].size == 0


def test_pieces_of_characters_are_as_long_as_in_utf8() -> None:
    """As SentencePiece has them: a mark for a space, and bytes of characters without a piece."""
    pieces = ["漢字", "\u2581a", "<0xE0>", "<0xA4>", "<0x85>", "\u2581\u2581"]
    assert ends_by_pieces(pieces, 13).tolist() == [6, 8, 9, 10, 11, 13]
    assert ends_by_pieces(pieces, 26).tolist() == [12, 16, 18, 20, 22, 26]
    assert ends_by_pieces(["", ""], 4).tolist() == [2, 4]


def test_on_a_cpu_transformers_finds_no_kernels_of_gpus(
    gpt2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers

    hidden: list[bool] = []

    def opened(*_: Any, **__: Any) -> None:
        hidden.extend(sys.modules.get(name, ...) is None for name in NEED_A_GPU)
        raise OSError("seen")

    for name in NEED_A_GPU:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", opened)
    with pytest.raises(ValueError, match="seen"):
        open_text_model(gpt2, CPU)
    assert hidden == [True] * len(NEED_A_GPU)
    assert not sys.modules.keys() & set(NEED_A_GPU)


def test_mistakes_are_one_line(
    gpt2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
) -> None:
    asked = ("--text", __file__)
    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(b"GGUF")
    for arguments, message in [
        (("none", "--windows", 0), "windows must be at least 1"),
        (("none", "--seed", -1), "seed must lie between"),
        (("none", "--figure", "p.txt"), "figure must end in .pdf, .png, .svg"),
        ((tmp_path / "none", *asked), "no such file or folder"),
        ((tmp_path, *asked), "target must be a run of plkernel"),
        (
            (gpt2 / "model.safetensors", *asked),
            f"target must be the folder of a model of transformers, got a file in it, {gpt2}",
        ),
        ((gguf, *asked), "plkernel.inspect reads the decays of others, which are not run here"),
        ((gpt2, *asked, "--context", 33), "at most 32"),
        ((gpt2,), "text must be given"),
    ]:
        assert message in refused(command.probe, *arguments)
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "transformers", None)
        assert 'pip install "plkernel[models]"' in refused(command.probe, gpt2, *asked)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (gpt2 / name).unlink()
    assert "tokenizer" in refused(command.probe, gpt2, *asked)
    (gpt2 / "model.safetensors").unlink()
    assert "does not open it as a causal language model" in refused(command.probe, gpt2, *asked)


def test_a_model_of_256_tokens_reads_bytes_without_a_tokenizer(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=256, n_positions=32, n_embd=16, n_layer=1, n_head=2, bos_token_id=0
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    model.save_pretrained(tmp_path / "bytes")
    found = probed(tmp_path, tmp_path / "bytes", "--text", __file__, "--windows", 4)
    windows = fixed_windows(np.frombuffer(Path(__file__).read_bytes(), np.uint8), 32, 4)
    with torch.no_grad():
        logits = [model(one[None, :-1]).logits[0] for one in windows]
    expected = torch.nn.functional.cross_entropy(
        torch.cat(logits), windows[:, 1:].flatten()
    ) / np.log(2)
    assert found["unit"] == "byte"
    assert found["bits_per_token"] == pytest.approx(float(expected), rel=1e-4)


def test_a_configuration_of_fewer_layers_than_the_tensors_have_is_told(
    gpt2: Path, refused: Callable[..., str]
) -> None:
    """Half of the layers would be probed as if they were the model."""
    written = gpt2 / "config.json"
    written.write_text(json.dumps(json.loads(written.read_text()) | {"n_layer": 1}))
    asked = ("--text", __file__, "--windows", 2, "--context", 16)
    found = refused(command.probe, gpt2, *asked)
    assert "got 1 layers, and there are tensors of 2" in found


def test_a_model_whose_own_code_raises_is_named(
    gpt2: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Mamba-2 of transformers does for a `time_step_limit` of one number."""
    import transformers

    def forward(*_: Any, **__: Any) -> None:
        raise IndexError("list index out of range")

    monkeypatch.setattr(transformers.GPT2LMHeadModel, "forward", forward)
    found = refused(command.probe, gpt2, "--text", __file__, "--windows", 2, "--context", 16)
    assert "it raised IndexError: list index out of range" in found
    assert str(gpt2) in found


def test_code_in_the_folder_does_not_run(
    gpt2: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    config: dict[str, Any] = json.loads((gpt2 / "config.json").read_text())
    config |= {
        "model_type": "mine",
        "auto_map": {"AutoConfig": "mine.Config", "AutoModelForCausalLM": "mine.Model"},
    }
    (gpt2 / "config.json").write_text(json.dumps(config))
    (gpt2 / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    assert "trust_remote_code" in refused(command.probe, gpt2, "--text", __file__)
    assert not (tmp_path / "ran").exists()


def test_a_context_of_one_token_up_to_all_but_one_may_be_compared() -> None:
    """A model that reads the last token alone loses nothing with any; others are refused."""
    windows = text(4, 8)

    def last(tokens: Tensor) -> Tensor:
        return 2.0 * torch.nn.functional.one_hot(tokens, SYMBOLS).double()

    for context in (1, 2, 7):
        cost, apart = beyond(last, windows, context)
        assert cost.given[-1] == 8
        assert set(cost.bpb) == set(apart.bpb) == {0.0}
    for context in (0, 8):
        with pytest.raises(ValueError, match=rf"context must lie between 1 .*, 8, got {context}"):
            beyond(last, windows, context)


def shown_probe(**options: Any) -> Probe:
    """A probe of two windows of four bytes with round numbers."""
    given = (1, 2, 4)
    errors = (0.01, 0.02, 0.0)
    return Probe(
        **{"unit": "byte", "bytes_per_token": 1.0, **options},
        windows=2,
        context=4,
        bits_per_token=2.5,
        influence=Influence((1, 3), (0.5, 0.25), (0.0, math.nan)),
        positions=Means(given, (3.0, 2.5, 2.0), errors),
        truncation=Truncation(2, given, (3.0, 2.5, 2.0), (1.0, 0.5, 0.0), errors),
    )


T = 12.7062  # the 97.5 % quantile of t with one degree of freedom


def cells_of(said: str) -> list[list[str]]:
    """The cells of the table below the text, which two spaces part."""
    rows = said.rpartition("\n\n")[2].splitlines()
    return [re.split(r" {2,}", row.strip()) for row in rows]


def test_a_table_of_a_probe_has_a_row_for_every_lag() -> None:
    said = render(shown_probe())
    assert said.startswith("2 windows of 4 bytes: 2.5000 bits per byte\ninfluence: ")
    head, _, *rows = cells_of(said)
    assert head == ["bytes", "influence", "by position", "given alone", "cost"]
    assert rows == [
        ["1", "5.00e-01", f"3.0000 +- {0.01 * T:.4f}", "3.0000", f"+1.0000 +- {0.01 * T:.4f}"],
        ["2", "-", f"2.5000 +- {0.02 * T:.4f}", "2.5000", f"+0.5000 +- {0.02 * T:.4f}"],
        ["3", "2.50e-01", "-", "-", "-"],
        ["4", "-", "2.0000", "2.0000", "+0.0000"],
    ]
    assert "reading on" not in said


def test_a_table_of_a_probe_shows_what_else_was_measured() -> None:
    cost = Means((4, 8), (0.0, -0.5), (0.0, 0.01))
    far = render(
        shown_probe(
            trained=4,
            cost=cost,
            divergence=Means((4, 8), (0.0, 0.125), (0.1, 0.1)),
            information=Influence((1,), (0.75,), (0.01,)),
        )
    )
    assert "reading on: bits with all before less those with the last 4 alone; KL: of both" in far
    head, _, *rows = cells_of(far)
    assert head[5:] == ["reading on", "KL", "I(d) of the text"]
    last = {row[0]: row[5:] for row in rows}
    reach = 0.01 * student.ppf(0.975, INFORMED - 1)
    assert last["1"] == ["-", "-", f"7.50e-01 +- {reach:.2e}"]
    assert last["8"] == [f"-0.5000 +- {0.01 * T:.4f}", "1.25e-01", "-"]


def test_tokens_are_told_with_their_bytes_and_an_interval() -> None:
    alone = render(shown_probe(unit="token", bytes_per_token=2.0))
    assert alone.startswith(
        "2 windows of 4 tokens: 2.5000 bits per token, 1.2500 bits per byte; a token of them is"
        " 2.00 bytes\n"
    )
    told = render(shown_probe(unit="token", bytes_per_token=2.0, bits_per_byte_error=0.1))
    assert f"1.2500 bits per byte (+- {0.1 * T:.4f}); a token" in told


def test_bytes_of_a_token_are_those_of_the_predicted_ones() -> None:
    windows = text(3, 8)
    known = probe(markov, windows, window_bytes=[8, 16, 24])
    assert known.bytes_per_token == 2.0
    assert known.bits_per_byte == pytest.approx(known.bits_per_token / 2, rel=1e-12)
    losses = token_losses(markov, windows, 4).sum(axis=1, dtype=np.float64)
    assert known.bits_per_byte_error == pytest.approx(ratio_error(losses, [8, 16, 24]), rel=1e-12)


def test_nothing_is_said_of_bytes_where_they_are_unknown() -> None:
    """Tokens of somebody's own, whose bytes nobody gave, are not bytes."""
    windows = text(3, 8)
    plain = probe(markov, windows)
    assert (plain.unit, plain.windows, plain.context) == ("token", 3, 8)
    assert plain.bytes_per_token is plain.bits_per_byte is plain.bits_per_byte_error is None
    assert "byte" not in render(plain)
    assert not [name for name in plain.to_dict() if "byte" in name]
    assert probe(markov, windows, unit="byte").bits_per_byte == plain.bits_per_token


@pytest.mark.parametrize("place", [1, 3, 4, 6, 7])
def test_a_model_that_sees_one_place_ahead_is_found_there(place: int) -> None:
    """Of eight tokens the last two and the two in the middle are replaced, one at a time."""

    def ahead(tokens: Tensor) -> Tensor:
        logits = markov(tokens).clone()
        logits[:, place - 1] += markov(tokens[:, place]) * 10
        return logits

    windows = text(4, 8)
    if place == 1:
        check_causal(ahead, windows)
        return
    told = f"replacing the token at position {place} of 8 moves the logits at position {place - 1}"
    with pytest.raises(ValueError, match=told):
        check_causal(ahead, windows)


def test_a_model_that_sees_ahead_is_found_though_it_returns_one_buffer() -> None:
    buffer = torch.empty(4, 8, SYMBOLS)

    def ahead(tokens: Tensor) -> Tensor:
        return buffer.copy_(markov(tokens) + markov(tokens.roll(-1, 1)))

    with pytest.raises(ValueError, match="the model is not causal"):
        check_causal(ahead, text(4, 8))


def test_the_shortest_windows_are_held_against_themselves() -> None:
    check_causal(markov, text(4, 1))
    check_causal(markov, text(4, 2))

    def ahead(tokens: Tensor) -> Tensor:
        return markov(tokens.flip(1))

    with pytest.raises(ValueError, match="replacing the token at position 1 of 2 moves"):
        check_causal(ahead, text(4, 2))


def test_what_is_no_window_or_no_lag_is_refused() -> None:
    with pytest.raises(ValueError, match=r"windows must be a tensor \(n,T\+1\) of integers"):
        probe(markov, text(3, 8).float())
    with pytest.raises(ValueError, match="lags must ascend and lie between 1 and the context, 8"):
        probe(markov, text(3, 8), [9])


@pytest.mark.parametrize(("highest", "fits"), [(7, True), (8, False)])
def test_tokens_of_another_tokenizer_than_the_models_are_refused(highest: int, fits: bool) -> None:
    """A model of eight tokens has none of number 8."""

    class Numbering:
        is_fast = False

        def __call__(self, words: str, **_: Any) -> dict[str, list[int]]:
            return {"input_ids": [0, highest, 3][: len(words)]}

        def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
            return ["a"] * len(ids)

    text_of = np.frombuffer(b"abc", np.uint8)
    if fits:
        tokens, ends = _encoded(Path("there"), Numbering(), 8, text_of)
        assert tokens.tolist() == [0, highest, 3]
        assert ends is not None
        assert ends.tolist() == [1, 2, 3]
        assert _encoded(Path("there"), Numbering(), 8, text_of[:0])[0].size == 0
        return
    with pytest.raises(
        ValueError, match="target there: tokens of its tokenizer must be below 8, as"
    ):
        _encoded(Path("there"), Numbering(), 8, text_of)
