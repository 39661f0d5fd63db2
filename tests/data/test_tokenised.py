"""Texts as tokens: every byte belongs to one, whatever the text holds and wherever it is cut."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from plkernel.data.tokenised import characters, read_tokenizer, tokenised

TEXT = "def é(x):\n    return '漢字' + \"🙂\"  # naïve\n" * 40


def as_bytes(text: str | bytes) -> np.ndarray:
    return np.frombuffer(text.encode() if isinstance(text, str) else text, np.uint8)


@pytest.mark.parametrize("kind", ["bytes", "words"])
def test_tokens_cover_all_bytes_in_order(tokenizer_file: Callable[..., Path], kind: str) -> None:
    """Tokens of characters, by their own spans in the text."""
    data = as_bytes(TEXT)
    path = tokenizer_file(TEXT, kind=kind)
    found = tokenised(data, read_tokenizer(path))
    assert np.all(np.diff(found.ends) >= 0)
    assert found.ends[0] > 0
    rest = data[found.ends[-1] :].tobytes()
    assert rest.strip() == b"", "only spaces that the tokenizer drops are left"
    tokenizers = pytest.importorskip("tokenizers")
    whole = tokenizers.Tokenizer.from_file(str(path)).encode(TEXT, add_special_tokens=False)
    assert found.ids.tolist() == whole.ids
    for end, following, span, next_span in zip(
        found.ends, found.ends[1:], whole.offsets, whole.offsets[1:], strict=False
    ):
        if span != next_span:
            assert end == len(TEXT[: span[1]].encode())
        elif kind == "bytes":
            assert following - end == 1, "each token is a byte of a character"


def test_pieces_end_behind_line_breaks(tokenizer_file: Callable[..., Path]) -> None:
    """Where each line is tokenised for itself, pieces give what the whole text gives."""
    encode = read_tokenizer(tokenizer_file(TEXT))
    lines = "".join(f"x{number} = {number}\n" for number in range(300))
    whole = tokenised(as_bytes(lines), encode)
    shares: list[float] = []
    cut = tokenised(as_bytes(lines), encode, piece=100, progress=shares.append)
    assert len(shares) > 10
    assert min(shares) > 0
    assert sum(shares) == pytest.approx(1.0)
    assert cut.ids.tolist() == whole.ids.tolist()
    assert cut.ends.tolist() == whole.ends.tolist()


@pytest.mark.parametrize("piece", [5, 7, 64])
def test_pieces_without_line_breaks_keep_characters_whole(
    piece: int, tokenizer_file: Callable[..., Path]
) -> None:
    text = "漢字🙂é" * 30
    seen = []
    encode = read_tokenizer(tokenizer_file(TEXT))

    def noted(part: str):
        seen.append(part)
        return encode(part)

    found = tokenised(as_bytes(text), noted, piece=piece)
    assert "".join(seen) == text
    assert found.ends[-1] == len(text.encode())


def test_bytes_that_are_no_text_count_as_they_are() -> None:
    """One character for each, so that lengths add up to the bytes of the text."""
    data = as_bytes(b"ab\xff\xfe\xc3\xa9\xe2\x82 \xf0\x9f\x99\x82")
    text, widths = characters(data)
    unknown = "\N{REPLACEMENT CHARACTER}"
    assert text == f"ab{2 * unknown}é{2 * unknown} 🙂"
    assert widths.tolist() == [1, 1, 1, 1, 2, 1, 1, 1, 4]
    assert widths.sum() == data.size
    random = np.random.default_rng(0).integers(0, 256, 5_000).astype(np.uint8)
    text, widths = characters(random)
    assert widths.sum() == random.size
    assert len(text) == widths.size
    assert text.encode(), "no surrogates are left"


def test_truncation_and_padding_of_the_file_are_switched_off(
    tokenizer_file: Callable[..., Path],
) -> None:
    path = tokenizer_file(TEXT)
    content = json.loads(path.read_text())
    shortened = {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
    path.write_text(json.dumps({**content, "truncation": shortened}))
    found = tokenised(as_bytes(TEXT), read_tokenizer(path.parent))
    assert found.ends[-1] == len(TEXT.encode())


def test_no_special_tokens_are_added(tokenizer_file: Callable[..., Path]) -> None:
    """Although the file puts one before every text: they are no part of this one."""
    tokenizers = pytest.importorskip("tokenizers")
    path = tokenizer_file(TEXT, kind="words")
    plain = tokenised(as_bytes(TEXT), read_tokenizer(path))
    known = tokenizers.Tokenizer.from_file(str(path))
    known.post_processor = tokenizers.processors.TemplateProcessing(
        single="[UNK] $A", special_tokens=[("[UNK]", 0)]
    )
    known.save(str(path))
    assert known.encode(TEXT).ids == [0, *plain.ids.tolist()]
    assert tokenised(as_bytes(TEXT), read_tokenizer(path)).ids.tolist() == plain.ids.tolist()


def test_bytes_of_no_token_are_counted_in_all_pieces(tokenizer_file: Callable[..., Path]) -> None:
    """Spaces between words; a piece may have nothing but these."""
    encode = read_tokenizer(tokenizer_file(TEXT, kind="words"))
    text = as_bytes("x = 1\n    \ny = 2\n")
    found = tokenised(text, encode, piece=6)
    assert found.dropped == text.size - 6
    assert found.ends.tolist() == tokenised(text, encode).ends.tolist()


def test_an_empty_text_has_no_tokens(tokenizer_file: Callable[..., Path]) -> None:
    assert tokenised(as_bytes(b""), read_tokenizer(tokenizer_file(TEXT))).ids.size == 0


def test_what_is_no_tokenizer_is_told(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    vocabulary = tmp_path / "rwkv_vocab.txt"  # as the package rwkv has its own
    vocabulary.write_text("1 '\\x00' 1\n2 '\\x01' 1\n")
    words = r"is no file of the package tokenizers .*; give the .* or measure its tokens, saved by"
    for path in (tmp_path / "tokenizer.json", vocabulary):
        with pytest.raises(ValueError, match=words):
            read_tokenizer(path)
    with pytest.raises(ValueError, match=r"no such file or folder; did you mean .*tokenizer\.json"):
        read_tokenizer(tmp_path / "tokeniser.json")


def test_a_missing_package_is_named_with_its_install_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ValueError, match=r'pip install "plkernel\[tokens\]"'):
        read_tokenizer(tmp_path)


def test_a_tokenizer_that_cannot_encode_the_text_is_named(tmp_path: Path) -> None:
    """Of words, without one for what it does not know."""
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.models.WordLevel({"a": 0}, unk_token="[UNK]")
    path = tmp_path / "words.json"
    tokenizers.Tokenizer(model).save(str(path))
    encode = read_tokenizer(path)
    with pytest.raises(ValueError, match=r"words\.json: cannot encode this text .*\[UNK\]"):
        encode("b")
