import csv
import gzip
import json
import logging
import socket

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from plkernel.data.columns import Query, column_blocks, table_blocks, text_block

TEXTS = ["first", "", None, "olá, ção", "a\nb", "x" * 5000, None, "", "last\r\n"]
KINDS = [pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.string_view()]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """`datasets` leaves lock files in its cache."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "hub cache"))


def row_by_row(values, separator=b"\n"):
    texts = [value for value in values if value is not None]
    return b"".join(separator + (text if isinstance(text, bytes) else text.encode()) for text in texts)


def joined(blocks, separator=b"\n"):
    blocks = list(blocks)
    for block in blocks:
        assert block.data.dtype == np.uint8
        assert set(block.data[block.starts].tobytes()) <= set(separator)
    return b"".join(block.data.tobytes() for block in blocks), sum(block.starts.size for block in blocks)


def array(kind, values):
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        values = [value if value is None else value.encode() for value in values]
    return pa.array(values, kind)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("bounds", [(0, 9), (1, 8), (3, 4), (2, 3), (1, 2), (4, 4)], ids=str)
def test_a_block_is_what_reading_row_by_row_gives(kind, bounds):
    start, stop = bounds
    block = text_block(array(kind, TEXTS).slice(start, stop - start), b"\n")
    expected = row_by_row(TEXTS[start:stop])
    assert block.data.tobytes() == expected
    assert block.starts.size == sum(text is not None for text in TEXTS[start:stop])
    assert (block.data[block.starts] == 10).all()


def test_a_slice_of_a_dictionary_column_is_decoded():
    column = pa.array(["a", "bb", None, "a", ""]).dictionary_encode().slice(1, 4)
    assert text_block(column, b"\0").data.tobytes() == b"\0bb\0a\0"


def test_a_separator_outside_utf8_is_one_byte():
    assert text_block(pa.array(["é", "b"]), b"\xff").data.tobytes() == b"\xff\xc3\xa9\xffb"


@pytest.mark.parametrize("values", [[1, 2], [["a"]], [1.5], [True]], ids=str)
def test_what_is_not_text_is_refused(values):
    with pytest.raises(ValueError, match="not text"):
        text_block(pa.array(values), b"\n")


def test_random_texts_of_many_chunks_survive_parquet_whole(tmp_path):
    generator = np.random.default_rng(0)
    texts = ["ação "[: int(n)] * int(n) if n % 7 else None for n in generator.integers(0, 60, 5000)]
    for name, kind in (("small", pa.string()), ("large", pa.large_string())):
        path = tmp_path / f"{name} [1]*.parquet"  # characters that mean something in a pattern
        table = pa.table({"id": range(5000), "text": array(kind, texts), "more": texts})
        pq.write_table(table, path, row_group_size=777)
        assert joined(table_blocks(path, b"\n", "text")) == (
            row_by_row(texts),
            sum(text is not None for text in texts),
        )


def test_jsonl_keeps_dates_and_control_characters_and_leaves_out_nulls(tmp_path):
    rows = [{"text": "2020-01-01", "n": 1}, {"text": "a\0b\r\n"}, {"n": 3}, {"text": None}, {"text": "é"}]
    plain, packed = tmp_path / "a.jsonl", tmp_path / "a.jsonl.gz"
    plain.write_text("".join(json.dumps(row) + "\n" for row in rows))
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    expected = b"\n2020-01-01\na\0b\r\n\n\xc3\xa9", 3
    assert joined(table_blocks(plain, b"\n", "text")) == expected
    assert joined(table_blocks(packed, b"\n", "text")) == expected


def test_csv_is_text_throughout(tmp_path):
    texts = ["NA", "007", "", "two\r\nlines", 'a "quote", and a comma', "null", "1e3"]
    path = tmp_path / "a.csv"
    with path.open("w", newline="", encoding="utf-8") as handle:
        csv.writer(handle).writerows([["id", "text"], *enumerate(texts)])
    assert joined(table_blocks(path, b"\n", "text")) == (row_by_row(texts), len(texts))


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl"])
def test_a_missing_column_is_named_with_those_there_are(tmp_path, suffix):
    path = tmp_path / f"a.{suffix}"
    if suffix == "parquet":
        pq.write_table(pa.table({"id": [1], "body": ["x"]}), path)
    else:
        path.write_text("id,body\n1,x\n" if suffix == "csv" else '{"id": 1, "body": "x"}\n')
    with pytest.raises(ValueError, match=r"no column 'text'.*--column, one of: id, body$"):
        list(table_blocks(path, b"\n", "text"))
    assert joined(table_blocks(path, b"\n", "body")) == (b"\nx", 1)


def test_a_column_of_numbers_is_refused_with_the_file_named(tmp_path):
    pq.write_table(pa.table({"text": [1, 2]}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"a\.parquet: the column holds int64, not text"):
        list(table_blocks(tmp_path / "a.parquet", b"\n", "text"))


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl", "a.jsonl.gz"])
def test_a_damaged_table_is_one_line(tmp_path, name, caplog):
    (tmp_path / name).write_bytes(b'{"text": \x1f\x8b' * 9)
    with pytest.raises((ValueError, OSError), match=name) as caught:
        list(table_blocks(tmp_path / name, b"\n", "text"))
    assert "\n" not in str(caught.value)
    assert not caplog.records


def test_splits_are_chosen_by_name_and_the_wrong_one_names_the_others(tmp_path):
    files = {}
    for split in ("train", "validation"):
        files[split] = str(tmp_path / f"{split}.parquet")
        pq.write_table(pa.table({"text": [split]}), files[split])
    arguments = {"path": "parquet", "data_files": files}
    assert joined(column_blocks(Query("x", arguments, "text"), b"\n"))[0] == b"\ntrain"
    assert joined(column_blocks(Query("x", arguments, "text", "validation"), b"\n"))[0] == b"\nvalidation"
    with pytest.raises(ValueError, match=r"^x: no split 'validatoin'; did you mean 'validation'\?$"):
        list(column_blocks(Query("x", arguments, "text", "validatoin"), b"\n"))


def test_a_local_table_is_read_without_a_word_to_anybody(tmp_path, monkeypatch):
    """Nor without a network: `datasets` swallows its errors, so that they would not be seen."""
    tried = []

    def asked(host, *_, **__):
        tried.append(host)
        raise OSError

    monkeypatch.setattr(socket, "getaddrinfo", asked)
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "a.parquet")
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "a.csv").write_text("text\na\n")
    for suffix in ("parquet", "jsonl", "csv"):
        assert joined(table_blocks(tmp_path / f"a.{suffix}", b"\n", "text"))[0] == b"\na"
    assert not tried


def test_datasets_gets_its_log_level_and_bars_back(tmp_path):
    import datasets

    before = datasets.logging.get_verbosity(), datasets.are_progress_bars_disabled()
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "a.parquet")
    for _ in table_blocks(tmp_path / "a.parquet", b"\n", "text"):
        assert datasets.are_progress_bars_disabled()
        assert not datasets.logging.get_logger().isEnabledFor(logging.CRITICAL)
    assert (datasets.logging.get_verbosity(), datasets.are_progress_bars_disabled()) == before
