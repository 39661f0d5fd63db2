import hashlib

import numpy as np
import pytest

from plkernel.analysis.sequences.potts import PottsCorpus
from plkernel.data.corpora import load
from plkernel.data.names import Request, resolve
from plkernel.data.synthetic import FORMAT, potts_corpus, spelling


def test_the_name_is_the_corpus():
    assert potts_corpus("beta=0.5") == PottsCorpus(beta=0.5)
    expected = PottsCorpus(beta=1.5, symbols=4, size=1234, seed=7)
    assert potts_corpus("seed=7,bytes=1234,beta=1.5,symbols=4") == expected
    assert potts_corpus(" seed = 7, bytes=1234 ,beta=1.5, symbols=4") == expected
    assert potts_corpus(spelling(expected).removeprefix("synthetic:")) == expected


@pytest.mark.parametrize(
    ("text", "size"),
    [("5", 5), ("500k", 500_000), ("2M", 2_000_000), ("10MB", 10**7), ("1.5mb", 1_500_000), ("1G", 10**9), ("7B", 7)],
)
def test_sizes_may_have_a_unit(text, size):
    assert potts_corpus(f"beta=1,bytes={text}").size == size


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
    ],
)
def test_bad_parameters_are_one_line_that_says_what_would_work(rest, message):
    with pytest.raises(ValueError, match=r"^corpus 'synthetic") as caught:
        potts_corpus(rest)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_corpus_is_the_sequence_as_one_document(tmp_path):
    corpus = load("synthetic:beta=0.5,bytes=300k,seed=3", cache=tmp_path)
    sequence = np.concatenate(list(PottsCorpus(beta=0.5, size=300_000, seed=3).blocks()))
    np.testing.assert_array_equal(corpus.bytes, sequence)
    assert (corpus.size, corpus.documents) == (300_000, 1)
    assert corpus.source == "synthetic:beta=0.5,symbols=16,bytes=300000,seed=3"
    assert potts_corpus(corpus.source.removeprefix("synthetic:")).size == corpus.size


def test_a_limit_gives_the_beginning(tmp_path):
    whole, part = (load("synthetic:beta=1,bytes=200k", max_bytes=limit, cache=tmp_path) for limit in (None, 150_000))
    np.testing.assert_array_equal(part.bytes, whole.bytes[:150_000])


def test_the_key_changes_with_every_parameter_and_not_with_their_spelling():
    names = ["beta=1", "beta=2", "beta=1,symbols=4", "beta=1,bytes=5", "beta=1,seed=1"]
    assert len({resolve(f"synthetic:{name}", Request()).digest() for name in names}) == len(names)
    spellings = ["beta=1", "beta=1.0,seed=0", "symbols=16,beta=1e0,bytes=10MB"]
    assert len({resolve(f"synthetic:{name}", Request()).digest() for name in spellings}) == 1


def test_a_change_of_the_generator_is_a_change_of_its_format():
    """Another digest here means other bytes under the name of old ones: FORMAT, and this pair, have to change."""
    data = b"".join(block.tobytes() for block in PottsCorpus(beta=1.0, size=200_000).blocks())
    assert (FORMAT, hashlib.sha256(data).hexdigest()[:16]) == (1, "cea600819cd8aa6b")


def test_there_are_no_columns():
    with pytest.raises(ValueError, match="column 'text': synthetic has no columns"):
        resolve("synthetic:beta=1", Request(column="text"))
