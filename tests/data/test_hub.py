"""No hub is asked here: its code path runs on local files, and its failures are raised in its stead."""

import json
import logging
import socket

import datasets
import huggingface_hub
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from plkernel.data import hub
from plkernel.data.hub import hub_blocks, reachable


@pytest.fixture(autouse=True)
def isolated(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "hub cache"))
    for name in ("HF_ENDPOINT", "HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "https_proxy", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def no_network(monkeypatch):
    def refuse(host, port):
        raise socket.gaierror(-2, f"no such host {host}")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def read(name, config=None, split=None, column="text"):
    return b"".join(block.data.tobytes() for block in hub_blocks(name, config, split, b"\n", column))


def test_a_repository_of_parquet_files_is_read_as_from_the_hub(tmp_path, no_network):
    for split, texts in {"train": ["a", None, "é"], "test": ["t"]}.items():
        pq.write_table(pa.table({"id": range(len(texts)), "text": texts}), tmp_path / f"{split}-0.parquet")
    assert read(str(tmp_path)) == b"\na\n\xc3\xa9"
    assert read(str(tmp_path), "default", "test") == b"\nt"
    for arguments, message in (
        ((None, "tset"), r"no split 'tset'; did you mean 'test'\?"),
        (("nope",), r"'nope' not found. Available: \['default'\]"),
        ((None, None, "body"), r"no column 'body'; name the text with --column, one of: id, text"),
    ):
        with pytest.raises(ValueError, match=message):
            read(str(tmp_path), *arguments)


def test_a_repository_of_another_format_is_read_without_column_selection(tmp_path, no_network):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n')
    assert read(str(tmp_path / "data")) == b"\na\nb"


def test_code_of_a_data_set_is_never_run(tmp_path, no_network):
    folder = tmp_path / "scripted"
    folder.mkdir()
    (folder / "scripted.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(ValueError, match="never run"):
        read(str(folder))
    assert not (tmp_path / "ran").exists()


def test_without_a_network_the_failure_is_quick_and_says_what_to_do(no_network):
    with pytest.raises(
        OSError, match=r"^hf:wikimedia/wikipedia:20231101.pt: .*cannot be reached.*HF_ENDPOINT"
    ) as caught:
        read("wikimedia/wikipedia", "20231101.pt")
    assert "\n" not in str(caught.value)
    assert not huggingface_hub.constants.HF_HUB_OFFLINE
    assert not datasets.config.HF_HUB_OFFLINE


def test_without_a_network_what_datasets_has_cached_is_read(tmp_path, no_network):
    pq.write_table(pa.table({"id": [1, 2], "text": ["from", "cache"]}), tmp_path / "a.parquet")
    store = tmp_path / "hub cache"
    datasets.load_dataset("parquet", data_files=str(tmp_path / "a.parquet"))
    (built,) = (path.parent for path in store.glob("parquet/*/*/*/dataset_info.json"))
    folder = store / "owner___name" / "plain" / "0.0.0" / "revision"
    folder.mkdir(parents=True)
    info = json.loads((built / "dataset_info.json").read_text())
    (folder / "dataset_info.json").write_text(json.dumps(info | {"dataset_name": "name", "config_name": "plain"}))
    (folder / "name-train.arrow").write_bytes((built / "parquet-train.arrow").read_bytes())
    before = datasets.logging.get_verbosity(), datasets.are_progress_bars_disabled()
    for block in hub_blocks("owner/name", "plain", None, b"\n", "text"):
        assert block.data.tobytes() == b"\nfrom\ncache"
        assert datasets.are_progress_bars_disabled()
        assert not datasets.logging.get_logger().isEnabledFor(logging.CRITICAL)
    assert (datasets.logging.get_verbosity(), datasets.are_progress_bars_disabled()) == before


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (datasets.exceptions.DatasetNotFoundError("Dataset 'a/b' doesn't exist"), OSError, "no such data set"),
        (ConnectionError("Couldn't reach 'a/b'\non the Hub"), OSError, "cannot be reached"),
        (RuntimeError("Dataset scripts are no longer supported"), ValueError, "never run"),
        (ValueError("Config name is missing.\nPick one of ['x']"), ValueError, r"missing. Pick one of \['x'\]"),
        (KeyError("surprise"), ValueError, "surprise"),
        (RuntimeError("long " * 999), ValueError, r"long long.*\.\.\.$"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_each_failure_of_the_hub_is_one_line(monkeypatch, error, kind, message):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(hub, "reachable", lambda: True)
    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(kind, match=message) as caught:
        read("a/b")
    text = str(caught.value)
    assert text.startswith("hf:a/b: ")
    assert "\n" not in text
    assert len(text) < 500


def test_a_forbidden_network_is_named_and_mirrors_and_proxies_are_respected(monkeypatch, no_network):
    assert not reachable()
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    assert reachable(), "behind a proxy names need not resolve here"
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(OSError, match="HF_HUB_OFFLINE forbids the network: unset it"):
        read("owner/name")
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.delenv("https_proxy")
    asked = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *address: asked.append(address))
    assert reachable()
    monkeypatch.setenv("HF_ENDPOINT", "https://mirror.example:8443")
    assert reachable()
    assert asked == [("huggingface.co", 443), ("mirror.example", 8443)]
