import hashlib

import numpy as np
import pytest

from plkernel.analysis.sequences.chains import Independent, MarkovChain
from plkernel.analysis.sequences.lags import LagCorpus
from plkernel.analysis.sequences.potts import PottsCorpus
from plkernel.data.corpora import load
from plkernel.data.names import Request, resolve
from plkernel.data.synthetic import LAWS, predictor_of, spelling, synthetic_blocks, synthetic_corpus


def test_the_name_is_the_corpus():
    assert synthetic_corpus("beta=0.5") == PottsCorpus(beta=0.5)
    expected = PottsCorpus(beta=1.5, symbols=4, size=1234, seed=7)
    assert synthetic_corpus("seed=7,bytes=1234,beta=1.5,symbols=4") == expected
    assert synthetic_corpus(" seed = 7, bytes=1234 ,beta=1.5, symbols=4") == expected
    assert synthetic_corpus(spelling(expected).removeprefix("synthetic:")) == expected


@pytest.mark.parametrize(
    ("rest", "corpus", "spelled"),
    [
        ("potts,beta=1", PottsCorpus(1.0), "beta=1.0,symbols=16,bytes=10000000,seed=0"),
        ("lags", LagCorpus(), "lags,alpha=1.0,longest=256,redrawn=0.2,symbols=16,bytes=10000000,seed=0"),
        (
            "lags, seed=7,bytes=1k, symbols=4,redrawn=.5,longest=9,alpha=2",
            LagCorpus(2.0, 9, 0.5, 4, 1000, 7),
            "lags,alpha=2.0,longest=9,redrawn=0.5,symbols=4,bytes=1000,seed=7",
        ),
        ("markov", MarkovChain(), "markov,symbols=16,spread=0.3,bytes=10000000,seed=0"),
        (
            "markov,spread=1,symbols=5,seed=2",
            MarkovChain(5, 1.0, seed=2),
            "markov,symbols=5,spread=1.0,bytes=10000000,seed=2",
        ),
        ("iid,bytes=5", Independent(size=5), "iid,symbols=16,bytes=5,seed=0"),
    ],
)
def test_other_laws_are_named_first(rest, corpus, spelled):
    assert synthetic_corpus(rest) == corpus
    assert spelling(corpus) == f"synthetic:{spelled}"
    assert synthetic_corpus(spelled) == corpus


@pytest.mark.parametrize(
    ("text", "size"),
    [("5", 5), ("500k", 500_000), ("2M", 2_000_000), ("10MB", 10**7), ("1.5mb", 1_500_000), ("1G", 10**9), ("7B", 7)],
)
def test_sizes_may_have_a_unit(text, size):
    assert synthetic_corpus(f"beta=1,bytes={text}").size == size


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        ("", "corpus 'synthetic': beta is missing; write e.g. synthetic:beta=1.0"),
        ("symbols=4", "corpus 'synthetic:symbols=4': beta is missing"),
        ("beta=1,symbol=4", "no parameter 'symbol'; did you mean 'symbols'?"),
        ("beta=1,x=4", "no parameter 'x'; valid: beta, bytes, seed, symbols"),
        ("beta=1,", "no parameter ''; valid"),
        ("beta=1,beta=2", "beta is given twice"),
        ("beta", "beta = '': must be a number"),
        ("beta=one", "beta = 'one': must be a number"),
        ("beta=-1", "beta = -1.0: must be a positive number"),
        ("beta=nan", "beta = nan: must be a positive number"),
        ("beta=1,symbols=1", "symbols = 1: must be a whole number from 2 to 256"),
        ("beta=1,symbols=2.5", "symbols = '2.5': must be a whole number"),
        ("beta=1,seed=-1", "seed = -1: must be a whole number of at least 0"),
        ("beta=1,bytes=0", "bytes = '0': must be a number of bytes such as 500000"),
        ("beta=1,bytes=-5", "bytes = '-5'"),
        ("beta=1,bytes=0.5", "bytes = '0.5'"),
        ("beta=1,bytes=3T", "bytes = '3T'"),
        ("beta=1,bytes=\u0663", "bytes = "),
        ("lag", "no law 'lag'; did you mean 'lags'?"),
        ("x,beta=1", "no law 'x'; valid: iid, lags, markov, potts"),
        ("potts", "beta is missing"),
        ("beta=1,lags", "no parameter 'lags'; valid: beta"),
        ("lags,long=4", "no parameter 'long'; did you mean 'longest'?"),
        ("lags,beta=1", "no parameter 'beta'; valid: alpha, bytes, longest, redrawn, seed, symbols"),
        ("lags,", "no parameter ''"),
        ("lags,alpha=x", "alpha = 'x': must be a number"),
        ("lags,alpha=-1", "alpha = -1.0: must be a number of at least 0"),
        ("lags,longest=1.5", "longest = '1.5': must be a whole number"),
        ("lags,redrawn=0", "redrawn = 0.0: must be from 0.01 to below 1"),
        ("lags,seed=1,seed=2", "seed is given twice"),
        ("markov,spread=0", "spread = 0.0: must be from 0.01 to 1000"),
        ("iid,longest=1", "no parameter 'longest'; valid: bytes, seed, symbols"),
        ("iid,symbols=300", "symbols = 300: must be a whole number from 2 to 256"),
    ],
)
def test_bad_parameters_are_one_line_that_says_what_would_work(rest, message):
    with pytest.raises(ValueError, match=r"^corpus 'synthetic") as caught:
        synthetic_corpus(rest)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_corpus_is_the_sequence_as_one_document(tmp_path):
    corpus = load("synthetic:beta=0.5,bytes=300k,seed=3", cache=tmp_path)
    sequence = np.concatenate(list(PottsCorpus(beta=0.5, size=300_000, seed=3).blocks()))
    np.testing.assert_array_equal(corpus.bytes, sequence)
    assert (corpus.size, corpus.documents) == (300_000, 1)
    assert corpus.source == "synthetic:beta=0.5,symbols=16,bytes=300000,seed=3"
    assert synthetic_corpus(corpus.source.removeprefix("synthetic:")).size == corpus.size


@pytest.mark.parametrize("name", ["beta=1,bytes=200k", "lags,bytes=200k", "markov,bytes=200k", "iid,bytes=200k"])
def test_a_limit_gives_the_beginning(name, tmp_path):
    whole, part = (load(f"synthetic:{name}", max_bytes=limit, cache=tmp_path) for limit in (None, 150_000))
    np.testing.assert_array_equal(part.bytes, whole.bytes[:150_000])
    assert (whole.size, whole.documents, whole.bytes.max()) == (200_000, 1, 15)


def test_the_key_changes_with_every_parameter_and_not_with_their_spelling():
    names = ["beta=1", "beta=2", "beta=1,symbols=4", "beta=1,bytes=5", "beta=1,seed=1", "lags", "lags,alpha=2"]
    names += ["lags,longest=9", "lags,redrawn=0.3", "lags,seed=1", "markov", "markov,spread=1", "iid", "iid,symbols=4"]
    assert len({resolve(f"synthetic:{name}", Request()).digest() for name in names}) == len(names)
    spellings = ["beta=1", "beta=1.0,seed=0", "symbols=16,beta=1e0,bytes=10MB", "potts,beta=1"]
    assert len({resolve(f"synthetic:{name}", Request()).digest() for name in spellings}) == 1


@pytest.mark.parametrize(
    ("name", "key", "flat"),
    [
        ("beta=1", "81611753f643a7e0", "d1699e1dad4d9c99"),
        ("seed=7,bytes=1234,beta=1.5,symbols=4", "82aa6d240a6f11d4", "cdfa1284d31b6742"),
    ],
)
def test_the_keys_of_cached_corpora_stay(name, key, flat):
    """Of names from before there were other laws; the second is the one in the name of the flat file."""
    source = resolve(f"synthetic:{name}", Request())
    assert (source.digest(), source.digest(format=1, max_bytes=None, separator="0a")) == (key, flat)


@pytest.mark.parametrize(
    ("rest", "version", "digest"),
    [
        ("beta=1.0", 1, "cea600819cd8aa6b"),
        ("lags", 1, "cc0b703ed8e9a994"),
        ("markov", 1, "cc075ba64a944147"),
        ("iid", 1, "f9d7db5ec5e1d9b7"),
    ],
)
def test_a_change_of_the_generator_is_a_change_of_its_format(rest, version, digest):
    """Another digest here means other bytes under the name of old ones: `Law.format`, and this pair, have to change."""
    data = b"".join(block.tobytes() for block in synthetic_corpus(f"{rest},bytes=200k").blocks())
    law = next(law for law in LAWS.values() if isinstance(synthetic_corpus(rest), law.corpus))
    assert (law.format, hashlib.sha256(data).hexdigest()[:16]) == (version, digest)


@pytest.mark.parametrize("rest", ["lags,longest=9,symbols=7", "markov,symbols=7", "iid,symbols=7"])
def test_a_corpus_has_its_predictor_by_name(rest):
    """The separator before the document is in no window to be predicted, and harms none in which it is the first."""
    name = f"synthetic:{rest},bytes=50k"
    predictor = predictor_of(name)
    data = np.concatenate([chunk.data for chunk in synthetic_blocks(synthetic_corpus(f"{rest},bytes=50k"), b"\n")])
    assert data[0] == 10
    losses = predictor.losses(data[None])
    assert losses.shape == (1, 50_000)
    assert losses[0, 0] <= -np.log2(0.01)
    assert losses.mean() == pytest.approx(predictor.bits_per_byte(), abs=0.03)


@pytest.mark.parametrize("name", ["synthetic:beta=1", "synthetic:potts,beta=1", "stdlib", "lags", "hf:lags", "./lags"])
def test_other_corpora_have_none(name):
    assert predictor_of(name) is None


def test_a_predictor_is_asked_for_by_a_name_that_is_valid():
    with pytest.raises(ValueError, match=r"^corpus 'synthetic:lags,beta=1': no parameter 'beta'"):
        predictor_of("synthetic:lags,beta=1")


def test_there_are_no_columns():
    with pytest.raises(ValueError, match="column 'text': synthetic has no columns"):
        resolve("synthetic:beta=1", Request(column="text"))
