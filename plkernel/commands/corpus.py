"""python -m plkernel.corpus: fetch a corpus, keep it in the cache, and describe it."""

import math
from dataclasses import asdict
from typing import Annotated

import tyro
from scipy.special import entr

from plkernel.analysis.information.counts import histogram
from plkernel.common import cli
from plkernel.common.files import unescape
from plkernel.data import corpora
from plkernel.data.names import byte_count


def corpus(
    name: Annotated[str, tyro.conf.Positional],
    max_bytes: str | None = None,
    separator: str = r"\n",
    column: str | None = None,
) -> None:
    """Fetch a corpus, keep it in the cache as one flat file of bytes, and describe it.

    The cache lies in $PLKERNEL_CACHE, else plkernel under $XDG_CACHE_HOME, else ~/.cache/plkernel.

    Args:
        name: A file, a folder or one of these names: stdlib, the source code of Python's library;
            packages:numpy==2.4.6,scipy==1.17.1, that of installed packages, with other endings
            than .py as packages:torch==2.13.0:.h,.hpp; wiki-pt, fineweb and
            hf:NAME[:CONFIG[:SPLIT]], data sets of the Hugging Face hub; bible:en, one text in 22
            languages, which needs plkernel[text]; and bytes of a known law,
            synthetic:beta=1.0,symbols=16,bytes=10MB,seed=0,
            synthetic:lags,alpha=1.0,longest=256,redrawn=0.2, synthetic:markov,spread=0.3 and
            synthetic:recall,pairs=32,length=128.
        max_bytes: Read at most this many bytes, such as 500000 or 1MB.
        separator: The byte between two documents. Escapes such as \\n, \\0 and \\xff are
            understood.
        column: Name of the text column in .parquet, .jsonl, .csv and hf: data; 'text' if left out.
    """
    most = None if max_bytes is None else byte_count(str(max_bytes))
    loaded = corpora.load(name, max_bytes=most, separator=unescape(separator), column=column)
    shares = histogram(loaded.bytes) / loaded.size
    entropy = float(entr(shares).sum()) / math.log(2)
    values = {**asdict(loaded), "unigram_entropy_bits_per_byte": entropy}
    print("\n".join(f"{name.replace('_', ' '):<29}  {value}" for name, value in values.items()))


if __name__ == "__main__":
    cli.main(corpus)
