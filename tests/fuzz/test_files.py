"""Files of strangers at every door: as corpus, checkpoint, node set, table of roles or description of a corpus."""

import bz2
import gzip
import io
import json
import lzma
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("hypothesis", reason="the fuzzers draw their cases with hypothesis")
import datasets  # noqa: F401 - once here, and not again in the process of every case
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from plkernel.config.reading import _with_file_values, load_spec
from plkernel.config.schema import Arm
from plkernel.data import corpora
from plkernel.models.init.plan import RoleTable

pytestmark = pytest.mark.slow
TEXTS = ["first", "second line\n", "", "drei é"] * 20
LINES = b"".join(json.dumps({"text": text, "number": 3}).encode() + b"\n" for text in TEXTS)


def parquet(values: Any = TEXTS) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table({"text": values}), buffer)
    return buffer.getvalue()


def zst(data: bytes) -> bytes:
    sink = io.BytesIO()
    with pa.CompressedOutputStream(sink, "zstd") as out:
        out.write(data)
        out.flush()
        return sink.getvalue()


CORPORA: dict[str, bytes] = {
    "txt": b"some text\n" * 50,
    "gz": gzip.compress(b"some text\n" * 50),
    "bz2": bz2.compress(b"some text\n" * 50),
    "xz": lzma.compress(b"some text\n" * 50),
    "zst": zst(b"some text\n" * 50),
    "parquet": parquet(),
    "jsonl": LINES,
    "csv": b"text,number\nfirst,1\n" + b'"second\n",2\n' * 40,
    "jsonl.gz": gzip.compress(LINES),
    "jsonl.zst": zst(LINES),
}


def read_corpus(case: tuple[str, bytes], folder: Path) -> None:
    suffix, content = case
    path = folder / f"text.{suffix}"
    path.write_bytes(content)
    found = corpora.load(str(path), cache=folder / "cache")
    assert found.bytes.sum() >= 0


@pytest.mark.parametrize("suffix", CORPORA)
def test_a_corpus(suffix, tally, damaged):
    tally(damaged(CORPORA[suffix]).map(lambda content: (suffix, content)), read_corpus, 30)


SCALARS = [None, True, 0, -1, 2**70, 1.5, "a", "", [], ["a"], {}, {"a": 1}, {"text": None}, {"text": "b"}, [[None]]]


def test_a_corpus_of_rows_of_any_kind(tally):
    """Every reader of JSON lines takes the kind of a column from the first rows; later ones may disagree."""
    row = st.one_of(st.sampled_from(SCALARS), st.sampled_from(SCALARS).map(lambda value: {"text": value}))
    rows = st.lists(row, min_size=1, max_size=4).map(
        lambda found: b"".join(json.dumps(r).encode() + b"\n" for r in found)
    )
    tally(rows.map(lambda content: ("jsonl", content)), read_corpus, 60)


def test_a_cached_corpus_whose_description_is_damaged(tally, mutated, damaged):
    path = {"path": "/nowhere", "name": "a", "source": "b", "size": 44, "sha256": "0" * 64, "documents": 1}
    descriptions = st.one_of(
        mutated(path).map(lambda value: json.dumps(value).encode()), damaged(json.dumps(path).encode())
    )

    def take(content: bytes, folder: Path) -> None:
        text = folder / "text.txt"
        text.write_text("the quick brown fox jumps over the lazy dog\n")
        found = corpora.load(str(text), cache=folder / "cache")
        found.path.with_suffix(".json").write_bytes(content)
        again = corpora.load(str(text), cache=folder / "cache")
        assert again.bytes.tobytes() == text.read_bytes()

    tally(descriptions, take, 60)


NODES = {"nodes": {"rates": [0.5, 0.1, 0.01], "projection": [1.0, 0.5, 0.25], "gain": "none"}, "beta": 1.0}


def test_a_node_file(tally, mutated, damaged):
    cases = st.one_of(mutated(NODES).map(lambda value: json.dumps(value).encode()), damaged(json.dumps(NODES).encode()))

    def take(content: bytes, folder: Path) -> None:
        (folder / "fit.json").write_bytes(content)
        _with_file_values(Arm(node_file=str(folder / "fit.json")))

    assert tally(cases, take, 60)["refused"] > 20


ROLES = {
    "*wte.weight": "embedding",
    "*.c_attn.weight": {"parts": ["query", "key", "value"], "transposed": True},
    "*.c_proj.weight": {"role": "mixer_out", "transposed": True},
}


def test_a_table_of_roles(tally, mutated, damaged, toml):
    cases = st.one_of(mutated(ROLES).map(lambda value: toml(value).encode()), damaged(toml(ROLES).encode()))

    def take(content: bytes, folder: Path) -> None:
        (folder / "roles.toml").write_bytes(content)
        RoleTable.from_toml(folder / "roles.toml").assign(["h.wte.weight"])

    assert tally(cases, take, 60)["refused"] > 20


def place(name: str) -> Callable[[Path], Any]:
    """What opens a file that is none at this door."""
    return {
        "corpus": lambda path: corpora.load(str(path), cache=path.parent / "cache"),
        "corpus folder": lambda path: corpora.load(str(path.parent), cache=path.parent / ".." / "cache"),
        "spec": load_spec,
        "node file": lambda path: _with_file_values(Arm(node_file=str(path))),
        "roles": RoleTable.from_toml,
    }[name]


@pytest.mark.parametrize("door", ["corpus", "corpus folder", "spec", "node file", "roles"])
def test_what_is_no_file(door, tally):
    """Pipes that nobody writes to, endless devices, folders, and links to nothing and to themselves."""

    def take(kind: str, folder: Path) -> None:
        path = folder / "inner" / f"file.{'toml' if door in ('spec', 'roles') else 'json'}"
        path.parent.mkdir()
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        else:
            path.symlink_to({"device": "/dev/zero", "nothing": "nowhere", "itself": path.name}[kind])
        place(door)(path)

    kinds = ["pipe", "folder", "device", "nothing", "itself"]
    assert tally(st.sampled_from(kinds), take, 12)["refused"] >= len(kinds)
