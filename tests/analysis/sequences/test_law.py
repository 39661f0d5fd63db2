"""What holds for every sequence: the bytes are of the law that is stated, in blocks, and predictors know what they are
given and no more."""

from dataclasses import replace

import numpy as np
import pytest

from plkernel.analysis.sequences import chains, lags
from plkernel.analysis.sequences.chains import Independent, MarkovChain
from plkernel.analysis.sequences.lags import LagCorpus, LagMixture, decaying_copies
from plkernel.analysis.sequences.law import BLOCK
from plkernel.analysis.sequences.potts import potts_information
from plkernel.analysis.sequences.trees import TreeLeaves

LAGS = np.array([1, 2, 3, 7, 20, 64, 65])
SEEDS = 24
CORPORA = [LagCorpus(longest=20), LagCorpus(alpha=0.5, longest=3, symbols=256), MarkovChain(), Independent(symbols=5)]


def sequence(source):
    return source.sequence() if isinstance(source, TreeLeaves) else np.concatenate(list(source.blocks()))


def same_draw(data: np.ndarray, symbols: int) -> np.ndarray:
    """q(d) from how often two symbols are equal: q + (1 - q) / S."""
    equal = np.array([np.mean(data[:-lag] == data[lag:]) for lag in LAGS])
    return (equal - 1 / symbols) / (1 - 1 / symbols)


@pytest.mark.parametrize(
    ("make", "read"),
    [
        (lambda seed: LagMixture((0.3, 0.0, 0.2), 4, 20_000, seed), LagMixture.sequence),
        (lambda seed: LagMixture(decaying_copies(1.3, 100, 0.2), 8, 20_000, seed), LagMixture.sequence),
        (lambda seed: LagCorpus(1.3, 100, 0.2, 8, 200_000, seed), sequence),
        (lambda seed: LagCorpus(0.0, 40, 0.05, 4, 200_000, seed), sequence),
        (lambda seed: TreeLeaves(2, 0.8, 4, 16_384, seed), sequence),
        (lambda seed: TreeLeaves(3, 0.7, 8, 20_000, seed), sequence),  # cut short of 3^10 leaves
    ],
)
def test_the_sequences_have_the_correlation_that_is_stated(make, read):
    """The mean over seeds within four of its own standard errors at every lag."""
    found = np.array([same_draw(read(make(seed)), make(0).symbols) for seed in range(SEEDS)])
    error = found.std(axis=0, ddof=1) / np.sqrt(SEEDS)
    assert np.all(np.abs(found.mean(axis=0) - make(0).correlation(LAGS)) < 4 * error)
    assert np.all(error < 0.01)


@pytest.mark.parametrize("law", [TreeLeaves(2, 0.8, 4, 1024), LagCorpus(symbols=4).mixture, LagCorpus(symbols=4)])
def test_trees_and_mixtures_have_the_potts_information(law):
    expected = potts_information(law.correlation(LAGS), np.full(4, 0.25))
    np.testing.assert_allclose(law.mutual_information(LAGS), expected)


@pytest.mark.parametrize("corpus", CORPORA)
def test_bytes_are_determined_by_the_seed_and_are_symbols(corpus):
    corpus = replace(corpus, size=150_001)
    first = sequence(corpus)
    assert first.dtype == np.uint8
    assert first.size == corpus.size
    assert set(first) == set(range(corpus.symbols))
    np.testing.assert_array_equal(sequence(corpus), first)
    assert np.mean(sequence(replace(corpus, seed=1)) == first) < 0.5


@pytest.mark.parametrize("size", [1, 1000, BLOCK, BLOCK + 1])
@pytest.mark.parametrize("corpus", CORPORA)
def test_a_shorter_sequence_is_the_beginning_of_a_longer_one(corpus, size):
    longer = sequence(replace(corpus, size=2 * BLOCK + 5))
    np.testing.assert_array_equal(sequence(replace(corpus, size=size)), longer[:size])


@pytest.mark.parametrize("corpus", CORPORA)
def test_memory_does_not_grow_with_the_size(corpus):
    sizes = [block.size for block in replace(corpus, size=400_000).blocks()]
    assert sizes == [BLOCK, BLOCK, BLOCK, 400_000 - 3 * BLOCK]


@pytest.mark.parametrize("corpus", [LagCorpus(1.0, 7, 0.3, 3, 6000), MarkovChain(3, 0.5, 6000)])
def test_state_is_carried_across_blocks(corpus, monkeypatch):
    """In blocks of two bytes no pair at lag 2 lies within one."""
    for module in (lags, chains):
        monkeypatch.setattr(module, "BLOCK", 2)
    both = [same_draw(sequence(replace(corpus, seed=seed)), 3)[:2] for seed in range(8)]
    monkeypatch.undo()
    whole = same_draw(sequence(replace(corpus, size=2_000_000)), 3)[:2]
    error = np.std(both, axis=0, ddof=1) / np.sqrt(8)
    assert np.all(np.abs(np.mean(both, axis=0) - whole) < 5 * error)
    assert np.any(np.abs(whole) > 10 * error)


@pytest.mark.parametrize("corpus", [CORPORA[0], replace(CORPORA[1], symbols=4), *CORPORA[2:]])
def test_the_loss_in_the_long_run_is_that_of_the_predictor(corpus):
    """Within four standard errors over pieces of 20 kB, which are long beside the memory."""
    data = sequence(replace(corpus, size=400_020, seed=1))
    pieces = corpus.losses(data[None])[0, 19:].reshape(20, -1).mean(axis=1)
    assert abs(pieces.mean() - corpus.bits_per_byte()) <= 4 * pieces.std(ddof=1) / np.sqrt(20) + 1e-12


@pytest.mark.parametrize("corpus", CORPORA)
def test_a_prediction_rests_on_what_is_given_alone(corpus):
    windows = sequence(replace(corpus, size=40 * 26)).reshape(40, 26)
    whole, part = corpus.losses(windows), corpus.losses(windows, 4)
    assert whole.shape == part.shape == (40, 25)
    np.testing.assert_array_equal(corpus.losses(windows, 1000), whole)
    np.testing.assert_allclose(part[:, :4], whole[:, :4], rtol=1e-12)
    np.testing.assert_allclose(corpus.losses(windows[:, 6:11])[:, 3], part[:, 9], rtol=1e-12)
    other = ((windows.astype(int) + 1) % corpus.symbols).astype(np.uint8)
    other[:, 6:11] = windows[:, 6:11]
    np.testing.assert_allclose(corpus.losses(other, 4)[:, 9], part[:, 9], rtol=1e-12)


@pytest.mark.parametrize("corpus", CORPORA)
def test_the_chances_of_all_bytes_add_up_to_one(corpus):
    window = np.repeat(sequence(replace(corpus, size=31))[None], corpus.symbols, axis=0)
    window[:, -1] = np.arange(corpus.symbols)
    for given in (0, 1, 2, 10, None):
        assert np.sum(2.0 ** -corpus.losses(window, given)[:, -1]) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"windows": np.zeros(5, np.uint8)}, r"windows of shape \(5,\): must be \(n, T \+ 1\)"),
        ({"windows": np.zeros((5, 1), np.uint8)}, "must be"),
        ({"windows": np.full((1, 3), 255, np.uint8)}, r"windows hold byte 255: must be of this corpus, .* 0\.\.15"),
        ({"given": -1}, "given = -1: must be a whole number of at least 0"),
    ],
)
@pytest.mark.parametrize("corpus", [LagCorpus(), MarkovChain(), Independent()])
def test_bad_windows_are_refused(corpus, values, message):
    with pytest.raises(ValueError, match=message):
        corpus.losses(**{"windows": np.zeros((2, 3), np.uint8), **values})


@pytest.mark.parametrize("corpus", [LagCorpus(), MarkovChain(), Independent()])
def test_no_windows_have_no_losses(corpus):
    assert corpus.losses(np.zeros((0, 9), np.uint8)).shape == (0, 8)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LagCorpus(alpha=-1.0), "alpha = -1.0: must be a number of at least 0"),
        (lambda: LagCorpus(alpha=float("nan")), "alpha = nan"),
        (lambda: LagCorpus(longest=0), "longest = 0: must be a whole number from 1 to 16384"),
        (lambda: LagCorpus(redrawn=0.0), "redrawn = 0.0: must be from 0.01 to below 1"),
        (lambda: LagCorpus(redrawn=1.0), "redrawn = 1.0"),
        (lambda: LagCorpus(symbols=257), "symbols = 257: must be a whole number from 2 to 256"),
        (lambda: MarkovChain(spread=0.0), "spread = 0.0: must be from 0.01 to 1000"),
        (lambda: MarkovChain(8, 0.01), "spread = 0.01: must be larger: with 8 symbols this chain never forgets"),
        (lambda: MarkovChain(symbols=1), "symbols = 1"),
        (lambda: Independent(size=0), "size = 0: must be a whole number of at least 1"),
        (lambda: Independent(seed=-1), "seed = -1: must be a whole number of at least 0"),
    ],
)
def test_bad_parameters_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
