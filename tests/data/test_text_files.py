"""Local files: bytes as they are, compressed or not, text columns of tables against reading row by
row; the hub.
"""

import bz2
import codecs
import csv
import gzip
import json
import lzma
import os
import socket
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from plkernel.data import corpora
from plkernel.data.text_files import (
    CHUNK,
    ROWS,
    file_blocks,
    hub_blocks,
    reachable,
    text_block,
)

DATA = bytes(range(256)) * 400 + b"line\r\nline\n\n\0end without a line feed"
TEXTS = ["first", "", None, "olá, ção", "a\nb", "x" * 5000, None, "", "last\r\n"]


def zstandard(data):
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


PACKERS = {
    ".txt": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard,
}


def joined(blocks, separator=b"\n"):
    """All bytes of the blocks, and how many documents start."""
    blocks = list(blocks)
    for block in blocks:
        assert block.data.dtype == np.uint8
        assert set(block.data[block.starts].tobytes()) <= set(separator)
    return b"".join(block.data.tobytes() for block in blocks), sum(
        block.starts.size for block in blocks
    )


def row_by_row(values, separator=b"\n"):
    texts = [value for value in values if value is not None]
    return b"".join(separator + text.encode() for text in texts), len(texts)


@pytest.mark.parametrize("suffix", PACKERS)
def test_bytes_come_back_byte_for_byte_behind_one_separator(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    path.write_bytes(
        PACKERS[suffix](DATA) + PACKERS[suffix](b"more")
    )  # streams one after the other are one file
    assert joined(file_blocks(path, b"\xff", "text"), b"\xff") == (b"\xff" + DATA + b"more", 1)
    (tmp_path / "large").write_bytes(bytes(CHUNK + 1))
    assert [block.data.size for block in file_blocks(tmp_path / "large", b"\n", "text")] == [
        1,
        CHUNK,
        1,
    ]


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
@pytest.mark.parametrize("damage", ["truncated", "not compressed", "overwritten"])
@pytest.mark.parametrize("table", ["", ".jsonl"])
def test_damaged_data_is_one_line_that_names_the_file(tmp_path, suffix, damage, table):
    whole = PACKERS[suffix](
        b"".join(b'{"text": "%s"}\n' % os.urandom(50).hex().encode() for _ in range(2000))
    )
    path = tmp_path / f"a{table}{suffix}"
    broken = {
        "truncated": whole[:-1000],
        "not compressed": DATA,
        "overwritten": b"\0" * 3000 + whole[3000:],
    }
    path.write_bytes(broken[damage])
    with pytest.raises((ValueError, OSError), match=rf"a{table}{suffix}: ") as caught:
        joined(file_blocks(path, b"\n", "text"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.binary(), pa.string_view(), pa.binary_view()],
    ids=str,
)
@pytest.mark.parametrize("bounds", [(0, 9), (1, 8), (2, 3), (4, 4)], ids=str)
def test_a_block_of_arrow_is_what_reading_row_by_row_gives(kind, bounds):
    values = [
        value.encode() if "binary" in str(kind) and value is not None else value for value in TEXTS
    ]
    block = text_block(pa.array(values, kind).slice(bounds[0], bounds[1] - bounds[0]), b"\n")
    assert joined([block]) == row_by_row(TEXTS[slice(*bounds)])


def test_a_table_without_a_single_text_does_not_stop_a_folder(tmp_path):
    """Its column is of no type where all is null."""
    pq.write_table(pa.table({"text": pa.nulls(3)}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"text": ["words"]}), tmp_path / "b.parquet")
    found = corpora.load(tmp_path, cache=tmp_path.parent / "cache")
    assert found.bytes.tobytes() == b"words"


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl", ".jsonl.gz", ".csv", ".csv.zst"])
def test_random_texts_of_many_batches_survive_a_table_whole(tmp_path, suffix):
    lengths = np.random.default_rng(0).integers(0, 60, 3 * ROWS)
    texts = ["ação \r\n"[: int(n)] * int(n) if n % 7 else None for n in lengths]
    path = tmp_path / f"a [1]*{suffix}"  # characters that mean something in a pattern
    if suffix == ".parquet":
        pq.write_table(
            pa.table({"id": range(3 * ROWS), "text": texts, "more": texts}),
            path,
            row_group_size=777,
        )
    elif suffix.startswith(".jsonl"):
        rows = (
            {"id": 1, "text": text} if text is not None or n % 2 else {"id": 1}
            for n, text in enumerate(texts)
        )
        content = "".join(json.dumps(row) + "\n" for row in rows).encode()
        path.write_bytes(PACKERS.get(path.suffix, bytes)(content))
    else:
        texts = [text or "" for text in texts]
        with (tmp_path / "plain").open("w", newline="", encoding="utf-8") as handle:
            csv.writer(handle).writerows([["id", "text"], *enumerate(texts)])
        path.write_bytes(PACKERS.get(path.suffix, bytes)((tmp_path / "plain").read_bytes()))
    assert joined(file_blocks(path, b"\n", "text")) == row_by_row(texts)


def test_what_looks_like_numbers_dates_and_nulls_stays_text(tmp_path):
    texts = [
        "NA",
        "007",
        "",
        "two\r\nlines",
        'a "quote", and a comma',
        "null",
        "1e3",
        "2020-01-01",
        "a\0b",
        "\\",
    ]
    with (tmp_path / "a.csv").open("w", newline="", encoding="utf-8-sig") as handle:
        csv.writer(handle).writerows([["text", "id"], *([text, 1] for text in texts)])
        handle.write("\r\n")  # an empty line is no row
    (tmp_path / "a.jsonl").write_text(
        "\n\n".join(json.dumps({"text": text, "deep": [None, {}]}) for text in texts)
    )
    assert joined(file_blocks(tmp_path / "a.csv", b"\n", "text")) == row_by_row(texts)
    assert joined(file_blocks(tmp_path / "a.jsonl", b"\n", "text")) == row_by_row(texts)
    (tmp_path / "b.csv").write_text("\n\ntext,id\na,1\nb,2\n")  # nor is one before the header
    assert joined(file_blocks(tmp_path / "b.csv", b"\n", "text")) == row_by_row(["a", "b"])
    long = 200_000 * "x"  # more than the 131,072 that Python takes unasked
    (tmp_path / "c.csv").write_text(f"id,text\n1\n\n2,{long}\n")  # a short row has no text
    assert joined(file_blocks(tmp_path / "c.csv", b"\n", "text")) == row_by_row([long])


@pytest.mark.parametrize("name", ["A.CSV", "a.ndjson", "A.JSONL.GZ", "A.Parquet", "A.Txt.ZST"])
def test_endings_say_what_a_file_is_in_any_case(tmp_path, name):
    path = tmp_path / name
    if "parquet" in name.lower():
        pq.write_table(pa.table({"text": ["words"]}), path)
    else:
        contents = {"csv": b"text\nwords\n", "json": b'{"text": "words"}\n', "txt": b"words"}
        [content] = (one for kind, one in contents.items() if kind in name.lower())
        path.write_bytes(PACKERS.get(path.suffix.lower(), bytes)(content))
    assert joined(file_blocks(path, b"|", "text"), b"|") == (b"|words", 1)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.zip", b"anything", "archive of several files; unpack it"),
        ("a.tar.gz", b"anything", "archive of several files; unpack it"),
        ("a.tar.zst", b"anything", "archive of several files; unpack it"),
        ("a.tgz", b"anything", "archive of several files; unpack it"),
        ("a.tbz2", b"anything", "archive of several files; unpack it"),
        ("a.txz", b"anything", "archive of several files; unpack it"),
        ("A.TAR", b"anything", "archive of several files; unpack it"),
        ("a.7z", b"anything", "archive of several files; unpack it"),
        ("a.rar", b"anything", "archive of several files; unpack it"),
        ("a.csv", b"id,body\n1,x\n", r"column must be one of id, body, got 'text'"),
        (
            "a.csv",
            b"text\na,b\n",
            "line 2: a row must have at most the 1 fields of the header, got 2",
        ),
        ("a.csv", b"text\n\xff\n", "codec can't decode"),
        (
            "a.csv",
            b'text\nb\n"c\n',
            "line 3 must be a row of CSV, got unexpected end of data; mend",
        ),
        ("a.csv", "text\na\n".encode("utf-16"), "a table must be in UTF-8, got utf-16; save it as"),
        ("a.jsonl", '{"text": "a"}'.encode("utf-32"), "a table must be in UTF-8, got utf-32; save"),
        ("a.jsonl", b'{"id": 1, "body": "x"}\n', r"column must be one of id, body, got 'text'"),
        ("a.jsonl", b'{"text": "a"}\n[]\n', "line 2 must be a JSON object"),
        (
            "a.jsonl",
            b'{"text": 3}\n',
            "line 1: text must be text, got int; name another with the option column",
        ),
        ("a.jsonl", b'{"text": "\\ud800"}\n', "line 1.*surrogate pair"),
        ("a.jsonl", b'{"a":' * 100_000, "line 1 must be a JSON object"),
        ("a.parquet", b"not a table", "a.parquet: "),
        (
            "a.parquet",
            pa.table({"id": [1], "body": ["x"]}),
            r"column must be one of id, body, got 'text'",
        ),
        (
            "a.parquet",
            pa.table({"text": [1, 2]}),
            r"a\.parquet: the column must hold text, got int64",
        ),
    ],
)
def test_a_bad_file_is_one_line_that_names_it(tmp_path, name, content, message):
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        pq.write_table(content, path)
    with pytest.raises(ValueError, match=message) as caught:
        joined(file_blocks(path, b"\n", "text"))
    assert str(caught.value).startswith(f"corpus file {path}: ")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) <= 400


def test_a_local_table_is_read_without_a_word_to_anybody_and_without_datasets(tmp_path):
    """No request is sent, and no library loaded that might send one."""
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "a.parquet")
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "a.csv").write_text("text\na\n")
    program = (
        "import socket, sys; from plkernel.data.corpora import load; socket.getaddrinfo ="
        f" None\nfor suffix in ('csv', 'jsonl', 'parquet'): assert load({str(tmp_path)!r} + '/a.' +"
        " suffix).size == 1; print([name for name in ('torch', 'datasets', 'pyarrow') if name in"
        " sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n[]\n['pyarrow']\n"


# The hub: none is asked here; its code path runs on local files, and its failures are raised in its
# stead -------------


@pytest.fixture
def no_network(tmp_path, monkeypatch):
    import datasets  # a second, which the other tests do without

    def refuse(host, port):
        raise socket.gaierror(-2, f"no such host {host}")

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "hub cache"))
    for name in (
        "HF_ENDPOINT",
        "HF_HUB_OFFLINE",
        "HF_DATASETS_OFFLINE",
        "https_proxy",
        "HTTPS_PROXY",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def read(name, config=None, split=None, column="text"):
    return b"".join(
        block.data.tobytes() for block in hub_blocks(name, config, split, b"\n", column)
    )


@pytest.mark.usefixtures("no_network")
def test_a_repository_is_read_as_from_the_hub(tmp_path):
    for split, texts in {"train": ["a", None, "é"], "test": ["t"]}.items():
        pq.write_table(
            pa.table({"id": range(len(texts)), "text": texts}), tmp_path / f"{split}-0.parquet"
        )
    assert read(str(tmp_path)) == b"\na\n\xc3\xa9"
    assert read(str(tmp_path), "default", "test") == b"\nt"
    for arguments, message in (
        ((None, "tset"), r"split must be one of the data set, got 'tset'; did you mean 'test'\?"),
        (("nope",), r"'nope' not found. Available: \['default'\]"),
        ((None, None, "body"), r"column must be one of id, text, got 'body'"),
    ):
        with pytest.raises(ValueError, match=message):
            read(str(tmp_path), *arguments)
    (tmp_path / "one").mkdir()
    pq.write_table(pa.table({"text": ["alone"]}), tmp_path / "one" / "test-0.parquet")
    assert read(str(tmp_path / "one")) == b"\nalone", "a split that is the only one"
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n')
    assert read(str(tmp_path / "data")) == b"\na\nb", (
        "of another format, which cannot leave out columns"
    )


@pytest.mark.parametrize(
    ("variables", "expected", "asked"),
    [
        ({}, True, [("huggingface.co", 443)]),
        ({"HF_ENDPOINT": "http://mirror:8080"}, True, [("mirror", 8080)]),
        ({"HF_ENDPOINT": ""}, True, [("huggingface.co", 443)]),
        ({"HF_HUB_OFFLINE": "0"}, True, [("huggingface.co", 443)]),
        ({"HF_HUB_OFFLINE": "1"}, False, []),
        ({"HF_DATASETS_OFFLINE": "on"}, False, []),
        ({"HF_HUB_OFFLINE": "Yes"}, False, []),
        ({"HF_HUB_OFFLINE": "true"}, False, []),
        ({"https_proxy": "http://proxy:1"}, True, []),  # which resolves names itself
        ({"http_proxy": "http://proxy:1", "HF_ENDPOINT": "http://m"}, True, []),
    ],
)
def test_the_hub_is_asked_where_it_may_be_and_has_an_address(
    variables, expected, asked, monkeypatch
):
    for name in ("HF_ENDPOINT", "HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    resolved = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *place: resolved.append(place) or [place])
    assert reachable() is expected
    assert resolved == asked


@pytest.mark.usefixtures("no_network")
def test_code_of_a_data_set_is_never_run(tmp_path):
    (tmp_path / "scripted").mkdir()
    (tmp_path / "scripted" / "scripted.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(ValueError, match="scripts are no longer supported"):
        read(str(tmp_path / "scripted"))
    assert not (tmp_path / "ran").exists()


@pytest.mark.usefixtures("no_network")
def test_without_a_network_what_datasets_has_cached_is_read(tmp_path):
    import datasets
    import huggingface_hub

    pq.write_table(pa.table({"id": [1, 2], "text": ["from", "cache"]}), tmp_path / "a.parquet")
    store = tmp_path / "hub cache"
    datasets.load_dataset("parquet", data_files=str(tmp_path / "a.parquet"))
    (built,) = (path.parent for path in store.glob("parquet/*/*/*/dataset_info.json"))
    folder = store / "owner___name" / "plain" / "0.0.0" / "revision"
    folder.mkdir(parents=True)
    info = json.loads((built / "dataset_info.json").read_text())
    (folder / "dataset_info.json").write_text(
        json.dumps(info | {"dataset_name": "name", "config_name": "plain"})
    )
    (folder / "name-train.arrow").write_bytes((built / "parquet-train.arrow").read_bytes())
    assert read("owner/name", "plain") == b"\nfrom\ncache"
    with pytest.raises(
        OSError, match=r"^hf:wikimedia/wikipedia:20231101.pt: .*cannot be reached.*HF_ENDPOINT"
    ) as caught:
        read("wikimedia/wikipedia", "20231101.pt")
    assert "\n" not in str(caught.value)
    assert not huggingface_hub.constants.HF_HUB_OFFLINE
    assert not datasets.config.HF_HUB_OFFLINE


MARKED = {
    "utf-8": codecs.BOM_UTF8,
    "utf-16-le": codecs.BOM_UTF16_LE,
    "utf-16-be": codecs.BOM_UTF16_BE,
    "utf-32-le": codecs.BOM_UTF32_LE,
    "utf-32-be": codecs.BOM_UTF32_BE,
}


@pytest.mark.parametrize("chunk", [5, CHUNK])
@pytest.mark.parametrize("encoding", MARKED)
def test_a_byte_order_mark_decodes(tmp_path, monkeypatch, encoding, chunk):
    """Also where a character is cut by the end of what is read at once."""
    monkeypatch.setattr("plkernel.data.text_files.CHUNK", chunk)
    text = "Wörter über Wörter 😀\n" * 100
    (tmp_path / "marked.txt").write_bytes(MARKED[encoding] + text.encode(encoding))
    (tmp_path / "plain.txt").write_text(text, encoding="utf-8")
    marked, plain = (
        joined(file_blocks(tmp_path / f"{name}.txt", b"\n", "text")) for name in ("marked", "plain")
    )
    assert marked == plain


def test_what_a_mark_promises_and_the_bytes_do_not_hold_is_an_error(tmp_path):
    (tmp_path / "odd.txt").write_bytes(b"\xff\xfea\x00b")
    with pytest.raises(ValueError, match=r"corpus file .*odd\.txt: .*utf-16.*truncated"):
        joined(file_blocks(tmp_path / "odd.txt", b"\n", "text"))


@pytest.mark.parametrize("name", ["empty.txt", "empty.jsonl", "empty.csv"])
def test_an_empty_file_does_not_stop_a_folder(tmp_path, name):
    (tmp_path / name).write_bytes(b"")
    (tmp_path / "words.txt").write_text("words")
    found = corpora.load(tmp_path, cache=tmp_path.parent / "cache")
    assert b"words" in bytes(found.bytes)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("list.json", b"[1, 2]", r"list\.json is read with its syntax: JSON"),
        ("t.tsv", b"a\tb\n", r"t\.tsv is read with its syntax: a table"),
        ("page.html", b"<p>", r"page\.html is read with its syntax: HTML"),
        ("ids.npy", b"\x93NUMPY\x01", r"ids\.npy is an array of numpy and its bytes are read"),
        (
            "gz.txt",
            gzip.compress(b"text", mtime=0),
            r"gz\.txt is compressed \(gzip\).*name it \*\.gz",
        ),
        ("xz.txt", lzma.compress(b"text"), r"xz\.txt is compressed \(xz\).*name it \*\.xz"),
        ("bz.txt", bz2.compress(b"text"), r"bz\.txt is compressed \(bzip2\).*name it \*\.bz2"),
        ("zst.txt", zstandard(b"text"), r"zst\.txt is compressed \(zstd\).*name it \*\.zst"),
        ("a.docx", b"PK\x03\x04", r"a\.docx is compressed \(zip\).*as it is: unpack it to read"),
        ("a.xml", b"<a/>", r"a\.xml is read with its syntax: XML"),
        ("a.HTM", b"<p>", r"a\.HTM is read with its syntax: HTML"),
        (
            "ids.bin",
            b"\x07\x01\x05\x00" * 64,
            r"ids\.bin looks like numbers of two bytes .*token ids of a file \*\.npy",
        ),
        ("wide.txt", "a".encode("utf-16"), r"wide\.txt has the byte order mark of utf-16"),
    ],
    ids=lambda value: value if isinstance(value, str) and "." in value else "",
)
def test_a_file_that_is_not_only_text_is_said_to_be(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.warns(UserWarning, match=message):
        corpora.load(tmp_path / name, cache=tmp_path / "cache")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", b"text"),
        ("a.txt", codecs.BOM_UTF8 + b"text"),
        ("a.gz", gzip.compress(b"text", mtime=0)),
        ("a.csv", b"text\na\n"),
        ("a.jsonl", b'{"text": "a"}'),
    ],
)
def test_of_text_alone_nothing_is_said(tmp_path, name, content, recwarn):
    (tmp_path / name).write_bytes(content)
    corpora.load(tmp_path / name, cache=tmp_path / "cache")
    assert not list(recwarn)


@pytest.mark.parametrize("more", [1, 2])
def test_cautions_of_one_kind_are_one_line(tmp_path, more):
    for number in range(1 + more):
        (tmp_path / f"{number}.tsv").write_text("a\tb\n")
    with pytest.warns(UserWarning, match=f"and {more} more like it") as said:
        corpora.load(tmp_path, cache=tmp_path.parent / "cache")
    assert len(said) == 1


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
def test_a_small_file_that_unpacks_to_a_huge_one_is_refused_with_the_limit(
    tmp_path, suffix, monkeypatch
):
    """Nothing of it stays in the cache, and its start can be read."""
    monkeypatch.setattr("plkernel.data.text_files.MOST_UNPACKED", 100_000)
    path = tmp_path / f"zeros{suffix}"
    path.write_bytes(PACKERS[suffix](bytes(30_000_000)))
    limit = max(100_000, 100 * path.stat().st_size)
    with pytest.raises(ValueError, match=f"unpacks to more than {limit:,} bytes.*give max_bytes"):
        corpora.load(path, cache=tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*.bin"))
    assert corpora.load(path, cache=tmp_path / "cache", max_bytes=50_000).size == 50_000
    plain = tmp_path / "zeros"
    plain.write_bytes(bytes(200_000))
    assert corpora.load(plain, cache=tmp_path / "cache").size == 200_000
