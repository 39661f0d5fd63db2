"""python -m plkernel.measure: what it prints and writes, one corpus and several, and clear
refusals.
"""

import json
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

import plkernel
from plkernel.analysis.figures import decay
from plkernel.analysis.information.estimate import BLOCKS, DecayCurve
from plkernel.analysis.information.laws import Named, fit_power_law, measure_corpus
from plkernel.analysis.sequences import LagCorpus
from plkernel.commands.measure import command as measure
from plkernel.commands.measure import render
from plkernel.common import cli
from plkernel.data import corpora

KNOWN = "synthetic:beta=1,bytes=600k"
Shown = pytest.CaptureFixture[str]


def measured(out: Path) -> list[dict]:
    return json.loads((out / "measure.json").read_text())["corpora"]


def test_a_known_corpus_is_measured_printed_and_written(tmp_path: Path, capsys: Shown) -> None:
    measure((KNOWN,), out=tmp_path, formats=("pdf", "svg"))
    [found] = measured(tmp_path)
    law = found["law"]
    curve = DecayCurve(**found["information"])
    [stated] = [row for row in found["fits"] if row["label"] == "lags 1..500"]
    assert abs(law["beta"] - stated["exact"]) < 3 * law["standard_error"] < 0.06
    assert {**asdict(fit_power_law(curve, (1, 500))), "dropped": []} == law
    assert {1, 100, 500, 1000} <= set(curve.lags)
    text = capsys.readouterr().out
    interval = f"{law['beta']:.3f}  {law['low']:.3f} to {law['high']:.3f}"
    for part in (interval, "verdict: lags 1 to", "600,000 bytes, 16 different", "lags 100..1000 "):
        assert part in text
    figures = list(tmp_path.glob("synthetic-*"))
    assert {path.name for path in figures} == {
        f"synthetic-beta-1-bytes-600k.{kind}" for kind in ("pdf", "svg")
    }
    assert all(path.stat().st_size > 1000 for path in figures)
    assert "synthetic-beta-1-bytes-600k.pdf, .svg\n" in text


@pytest.mark.slow
def test_several_corpora_share_a_table_and_a_figure(
    tmp_path: Path, capsys: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["synthetic:beta=1,bytes=20k", "synthetic:markov,bytes=20k"]
    monkeypatch.setattr(
        decay, "decay_figure", lambda *curve, **words: Figure()
    )  # drawn in the test before
    measure(
        (*names, names[0]),
        max_lag=100,
        lags=(1, 50),
        blocks=10,
        out=tmp_path,
        formats=("pdf",),
    )
    potts, markov = measured(tmp_path)
    assert [item["corpus"]["name"] for item in (potts, markov)] == names
    assert capsys.readouterr().out.split("corpus  ")[-1].count("synthetic:") >= 2
    alone = tmp_path / "synthetic-beta-1-bytes-20k.pdf"
    assert (tmp_path / "comparison.pdf").stat().st_size > 2 * alone.stat().st_size
    exact = {row["label"]: row["exact"] for row in markov["fits"]}
    assert exact["lags 1..50"] is None, "no exponent of an information that is zero"
    assert max(value or 0 for value in exact.values()) > 2
    assert markov["exact_information"][-1] == 0


def test_independent_bytes_are_told_as_such(tmp_path: Path, capsys: Shown) -> None:
    path = tmp_path / "noise.bin"
    path.write_bytes(np.random.default_rng(0).integers(0, 32, 100_000, np.uint8).tobytes())
    measure((str(path),), out=tmp_path, figure=False)
    text = capsys.readouterr().out
    assert "verdict: no memory that stands out from a shuffled corpus" in text
    assert "lags where I is zero or negative" in text
    assert not measured(tmp_path)[0]["verdict"]["is_power_law"]


def test_a_corpus_of_two_halves_shows_its_drift(tmp_path: Path) -> None:
    """Independent bytes, but other ones in the second half: information at every lag, and none of
    it memory.
    """
    rng = np.random.default_rng(0)
    halves = rng.integers(0, 20, 200_000, np.uint8), rng.integers(15, 35, 200_000, np.uint8)
    (tmp_path / "halves.bin").write_bytes(np.concatenate(halves).tobytes())
    corpus = corpora.load(str(tmp_path / "halves.bin"))
    found = measure_corpus(corpus, corpus.bytes, max_lag=100)
    curve = found.information
    assert curve.values[-1] == pytest.approx(curve.drift, rel=0.02)
    assert curve.drift > 20 * curve.floor[0]
    assert len(curve.replicates[0]) == BLOCKS
    assert found.verdict.kind == "none"
    assert "drift: beyond lag 0 half of I or more" in render(found)
    assert "verdict: no memory that stands out from blocks of different composition" in render(
        found
    )


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (b"x" * 5000, {}, "two different symbols or more, got one symbol only"),
        (b"short text", {}, "at least 1,040 symbols for lag 1,000 in 40 blocks"),
        (None, {"names": ()}, "names must hold at least one corpus"),
        (b"text" * 5000, {"blocks": 2_000}, "blocks must be at most 1,000, .* got 2,000"),
        (b"text" * 5000, {"blocks": 3}, "blocks must be at least 4 for a jackknife, got 3"),
        (None, {"lags": (5, 5)}, r"lags must be .*, ascending .*, got \(5, 5\)"),
    ],
)
def test_bad_requests_are_refused_and_nothing_is_written(
    content: bytes | None, options: dict, message: str, tmp_path: Path
) -> None:
    if content:
        (tmp_path / "text.txt").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        measure(**{"names": (str(tmp_path / "text.txt"),), "out": tmp_path / "out", **options})
    assert not (tmp_path / "out").exists()


def rendered(data: np.ndarray, **options: Any) -> str:
    return render(measure_corpus(Named("made", "made"), data.astype(np.uint8), **options))


def test_a_curvature_of_too_few_lags_is_a_dash() -> None:
    """Of a period alone three multiples are left, by rounding."""
    table = rendered(np.tile(np.arange(97, 104), 20_000), max_lag=200)
    assert "nan" not in table
    assert re.search(r"lags 7\.\.100\s.*\s-\s+3\s", table)


def test_noise_is_not_called_drift() -> None:
    """Independent symbols: drift is a hundredth of an error, and no blocks differ."""
    for seed in range(2):
        text = rendered(np.random.default_rng(seed).integers(0, 4, 200_000))
        assert "verdict: no memory" in text
        assert "drift:" not in text


def test_blocks_of_different_composition_are_called_drift() -> None:
    draw = np.random.default_rng(0)
    blocks = [draw.integers(low, low + 4, 50_000) for low in (0, 2, 0, 2, 1, 3)]
    assert "drift: beyond lag 0 half of I or more" in rendered(np.concatenate(blocks))


def test_a_counter_in_lines_is_no_contradiction() -> None:
    """Its digits share information at a line's length, which the verdict leaves to the records."""
    rng = np.random.default_rng(7)
    colours = [b"red", b"green", b"blue"]
    lines = [
        b"%05d,%d,%.3f,%s" % (10_000 + i, rng.integers(0, 10), rng.random(), colours[i * i % 7 % 3])
        for i in range(8_000)
    ]
    text = rendered(np.frombuffer(b"\n".join(lines), np.uint8))
    assert "verdict: no memory that stands out at the shortest lags; some farther lags do" in text
    assert "as where a field of one line follows from that of the line before" in text


@pytest.mark.parametrize(
    ("encoding", "width", "message"),
    [
        ("latin-1", 60, "the composition of the text repeats every 61 bytes, the length of most"),
        ("utf-16-le", None, "2 bytes, and one of them is mostly 0, as in UTF-16 or numbers of 16"),
        ("latin-1", None, None),
    ],
)
def test_a_period_is_named(encoding: str, width: int | None, message: str | None) -> None:
    bases = "".join(np.random.default_rng(0).choice(list("ACGT"), 200_000))
    if width:
        bases = "".join(bases[at : at + width] + "\n" for at in range(0, len(bases), width))
    text = rendered(np.frombuffer(bases.encode(encoding), np.uint8))
    if message is None:
        assert "period:" not in text
    else:
        assert message in text


def persistent(symbols: int, stay: float, size: int, seed: int) -> np.ndarray:
    """Symbols each of which is the one before with probability `stay`, and else drawn anew."""
    rng = np.random.default_rng(seed)
    is_fresh = rng.random(size) >= stay
    is_fresh[0] = True
    drawn = rng.integers(0, symbols, size)
    return drawn[np.maximum.accumulate(np.where(is_fresh, np.arange(size), 0))]


def in_lines(data: np.ndarray, seed: int) -> np.ndarray:
    """`data` as letters in lines of 50 to 59."""
    rng = np.random.default_rng(seed)
    letters = (data + 97).astype(np.uint8).tobytes()
    ends = np.cumsum(rng.integers(50, 60, len(letters) // 50))
    pieces = np.split(np.frombuffer(letters, np.uint8), ends[ends < len(letters)])
    return np.frombuffer(b"\n".join(piece.tobytes() for piece in pieces), np.uint8)


@pytest.mark.parametrize(
    ("make", "has_period"),
    [
        (lambda rng: np.stack([persistent(8, 0.9, 30_000, s) + 8 * s for s in (0, 1, 2)], 1), 3),
        (lambda rng: 128 + 20 * np.sin(np.arange(60_000) * 2 * np.pi / 61) + rng.normal(0, 3), 61),
        (lambda rng: 16 * (np.arange(60_000) % 6) + rng.integers(0, 4, 60_000), 6),
    ],
    ids=["three streams", "a wave", "a short cycle"],
)
def test_a_period_is_told_without_a_cause(
    make: Callable[[np.random.Generator], np.ndarray], has_period: int
) -> None:
    """None of these has lines, records or symbols of several bytes."""
    text = rendered(make(np.random.default_rng(0)).ravel(), max_lag=100, stated=(1, 100))
    assert f"repeats every {has_period} bytes; it explains" in text
    for false in ("line", "record", "UTF", "symbols of"):
        assert false not in text.split("period: ")[1].split("\n")[0]


def test_only_multiples_of_a_period_are_said_to_be_measured_where_they_are() -> None:
    data = np.arange(80_000) % 8 * 16 + np.random.default_rng(0).integers(0, 4, 80_000)
    told = "only multiples of 8 are measured"
    assert told in rendered(data, max_lag=100, stated=(1, 100))
    assert told not in rendered(data, max_lag=10, stated=(1, 10)), "there is one such lag, 8"


def test_memory_without_drift_is_seldom_called_drift() -> None:
    """Stretches of a slow chain differ in composition by chance alone."""
    options: dict[str, Any] = {"max_lag": 300, "stated": (1, 300), "blocks": 20}
    texts = [rendered(persistent(4, 0.97, 20_000, seed), **options) for seed in range(8)]
    assert sum("drift:" in text for text in texts) <= 1


def test_independent_bits_have_no_last_lag() -> None:
    """One degree of freedom: a sixth of all lags is above twice the mean."""
    options: dict[str, Any] = {"max_lag": 30, "stated": (1, 30), "blocks": 20}
    for seed in range(8):
        data = np.random.default_rng(seed).integers(0, 2, 20_000).astype(np.uint8)
        assert measure_corpus(Named("bits", "made"), data, **options).verdict.last_lag == 0


def test_lines_of_different_composition_are_no_counter() -> None:
    rng = np.random.default_rng(0)
    halves = [rng.integers(low, low + 6, 15_000) for low in (0, 3)]
    chain = persistent(8, 0.8, 30_000, 0)
    for letters in (np.concatenate(halves), chain, rng.integers(0, 6, 30_000)):
        text = rendered(in_lines(letters, 0), max_lag=300, stated=(1, 300))
        assert "such as a counter" not in text


def words(size: int) -> str:
    """A text of 300 words of 2 to 6 letters, each of which copies one of the 20 words before it
    or is drawn anew.
    """
    rng = np.random.default_rng(5)
    known = ["".join(rng.choice(list("abcdef"), rng.integers(2, 7))) for _ in range(300)]
    chosen = list(rng.integers(0, 300, 20))
    for back, fresh in zip(rng.integers(1, 21, size), rng.random(size) < 0.3, strict=True):
        chosen.append(rng.integers(300) if fresh else chosen[-back])
    return "".join(f" {known[number]}" for number in chosen)


def test_a_tokenizer_tells_lags_in_both_units(
    tokenizer_file: Callable[..., Path], tmp_path: Path, capsys: Shown
) -> None:
    """Bytes per token are those of the whole text; lags are divided by them, and the other way
    round where tokens are measured.
    """
    text = words(6_000)
    (tmp_path / "text.txt").write_text(text)
    path = tokenizer_file(text, size=700)
    given: dict[str, Any] = {"max_lag": 100, "lags": (1, 50), "tokenizer": path, "out": tmp_path}
    measure((str(tmp_path / "text.txt"),), formats=("svg",), **given)
    [found] = measured(tmp_path)
    tokenizers = pytest.importorskip("tokenizers")
    count = len(tokenizers.Tokenizer.from_file(str(path)).encode(text).ids)
    size = len(text) / count
    length = found["tokens"]
    assert length["tokens"] == count
    assert length["bytes_per_token"] == pytest.approx(size, rel=1e-12)
    assert length["low"] < size < length["high"] < 1.1 * size
    lags = np.array(found["information"]["lags"])
    np.testing.assert_allclose(found["lags_in_tokens"], lags / size, rtol=1e-12)
    shown = capsys.readouterr().out
    assert f"tokens: {size:.3f} bytes a token ({length['low']:.3f} to" in shown
    last = found["verdict"]["last_lag"]
    assert f"stands out is {last} bytes or {last / size:.1f} tokens" in shown
    assert "lag, bytes  tokens " in shown
    assert "what the shuffled corpus shows; drift" in shown
    assert "bits, what it shows with each of 40 blocks shuffled; estimator 'jackknife'" in shown
    drawn = next(tmp_path.glob("*.svg")).read_text()
    assert "lag d (bytes)" in drawn
    assert f"lag d (tokens of {size:.2f} bytes)" in drawn
    measure((str(tmp_path / "text.txt"),), measured="tokens", formats=("svg",), **given)
    [found] = measured(tmp_path)
    curve = DecayCurve(**found["information"])
    assert (curve.unit, curve.size, curve.estimator) == ("token", count, "repeats")
    np.testing.assert_allclose(found["lags_in_bytes"], size * np.array(curve.lags), rtol=1e-12)
    shown = capsys.readouterr().out
    assert "lag, tokens  bytes " in shown
    assert "what noise exceeds once in a thousand lags; drift" in shown
    assert "bits, what the ends of each of 40 blocks share; estimator 'repeats'" in shown
    assert f"{curve.symbols} different tokens are too many for a table of their pairs" in shown
    drawn = next(tmp_path.glob("*.svg")).read_text()
    assert "lag d (tokens)" in drawn
    assert "lag d (bytes)" in drawn
    assert "I(d) in bits, of repeats" in drawn


def test_a_file_of_integers_is_measured_by_its_numbers(tmp_path: Path, capsys: Shown) -> None:
    """Not by the bytes that they are stored in; other names of the same symbols change nothing."""
    bytes_ = np.random.default_rng(0).integers(0, 4, 3_000).repeat(3).astype(np.uint8)
    np.save(tmp_path / "ids.npy", 1_000 * bytes_.astype(np.int64) - 7)
    (tmp_path / "same.txt").write_bytes(bytes_.tobytes())
    names = (str(tmp_path / "ids.npy"), str(tmp_path / "same.txt"))
    measure(names, max_lag=20, lags=(1, 10), out=tmp_path, formats=("svg",))
    assert "lag d (symbols, bytes)" in (tmp_path / "comparison.svg").read_text()
    numbers, text = measured(tmp_path)
    assert numbers["information"]["unit"] == "symbol"
    assert numbers["information"]["values"] == text["information"]["values"]
    assert "9,000 symbols, 4 different" in capsys.readouterr().out
    for option, value in (("max_bytes", "1k"), ("separator", "x"), ("column", "text")):
        with pytest.raises(ValueError, match=f"{option} must be left out for .*no text, got"):
            measure(names, **{option: value})


def test_a_period_of_numbers_is_told_in_their_unit() -> None:
    """Records of 30 numbers that begin with the same one."""
    records = np.random.default_rng(0).integers(1_000, 1_004, (3_000, 30))
    records[:, 0] = 7
    text = render(plkernel.measure(records.ravel(), max_lag=100))
    assert "the composition of the text repeats every 30 symbols; it explains" in text


def test_an_estimator_that_needs_more_symbols_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", np.random.default_rng(0).integers(0, 5_000, 50_000))
    with pytest.raises(ValueError, match="have 250,000,000 symbols or more"):
        measure((str(tmp_path / "ids.npy"),), estimator="jackknife", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_few_bytes_are_counted_and_few_symbols_are_not() -> None:
    """Texts as ever, whatever their length; a vector of as many other numbers by its repeats."""
    data = np.random.default_rng(0).integers(0, 100, 5_000)
    assert plkernel.measure(data, max_lag=20).estimator == "jackknife"
    assert plkernel.measure(data + 1_000, max_lag=20).estimator == "repeats"
    assert plkernel.measure(data + 1_000, max_lag=20, estimator="shuffle").estimator == "shuffle"


def test_independent_symbols_of_a_large_alphabet_are_told_as_such(
    tmp_path: Path, capsys: Shown
) -> None:
    np.save(tmp_path / "ids.npy", np.random.default_rng(0).integers(0, 65_536, 200_000))
    measure((str(tmp_path / "ids.npy"),), out=tmp_path, figure=False)
    assert "verdict: no memory that stands out" in capsys.readouterr().out
    assert measured(tmp_path)[0]["information"]["estimator"] == "repeats"


def test_python_measures_vectors_and_tokens(
    tokenizer_file: Callable[..., Path], tmp_path: Path
) -> None:
    """`place` takes the length of a token as its step: half-lives in bytes become half-lives in
    tokens.
    """
    text = words(3_000)
    path = tokenizer_file(text, size=700)
    found = plkernel.measure(text.encode(), max_lag=100, tokenizer=path)
    assert found.tokens is not None
    size = found.tokens.bytes_per_token
    assert list(found.to_frame().columns[:2]) == ["lag", "lag_tokens"]
    assert f"{size:.3f} bytes a token" in repr(found)
    nodes = plkernel.place(8, shortest=size, longest=100, step=size)
    np.testing.assert_allclose(sorted(nodes.half_lives())[::7], [1, 100 / size], rtol=1e-9)
    ids = np.random.default_rng(0).integers(0, 3_000, 20_000)
    vector = plkernel.measure(ids, max_lag=50)
    assert (vector.estimator, vector.information.unit) == ("repeats", "symbol")
    np.save(tmp_path / "ids.npy", ids)
    saved = plkernel.measure(tmp_path / "ids.npy", max_lag=50)
    assert saved.information == vector.information
    with pytest.raises(ValueError, match="tokenizer must be left out for a vector"):
        plkernel.measure(ids, tokenizer=path)
    wrong: Any = 5
    with pytest.raises(ValueError, match="tokenizer must be a path, got 5"):
        plkernel.measure(text.encode(), tokenizer=wrong)
    with pytest.raises(ValueError, match=r"estimator must be one of .*, got 5"):
        plkernel.measure(ids, estimator=wrong)


def test_python_has_the_options_and_the_exact_information_of_the_command(tmp_path: Path) -> None:
    options: dict[str, Any] = {"max_lag": 50, "lags": (1, 50), "blocks": 10}
    name = "synthetic:lags,longest=8,bytes=30k"
    found = plkernel.measure(name, max_bytes=20_000, **options)
    measure((name,), max_bytes="20k", **options, out=tmp_path, figure=False)
    [written] = measured(tmp_path)
    assert json.loads(json.dumps(found.to_dict(), default=str)) == written
    known = LagCorpus(longest=8).mutual_information(found.information.lags)
    assert found.exact == tuple(known.tolist())
    assert len(found.information.replicates[0]) == 10


def test_documents_are_joined_and_read_in_python_as_by_the_command(tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_text('{"body": "ab"}\n' * 2000)
    found = plkernel.measure(path, column="body", separator="-", max_bytes=5_000, max_lag=20)
    assert found.corpus.path.read_bytes() == (b"ab-" * 2000)[:5_000]


@pytest.mark.parametrize("text", [b"abc" * 900, np.arange(2_700) % 1_000], ids=["bytes", "vector"])
@pytest.mark.parametrize(
    "option", [{"max_bytes": 100}, {"separator": "-"}, {"column": "body"}], ids=str
)
def test_options_of_reading_are_for_names(text: Any, option: dict[str, Any]) -> None:
    [name] = option
    with pytest.raises(ValueError, match=f"{name} must be left out for bytes and vectors"):
        plkernel.measure(text, **option)


def test_ctrl_c_ends_the_numbering_of_symbols(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After the piece at hand, under a bar of its own; nothing is written."""
    bars: list[tuple[str, list[float]]] = []

    @contextmanager
    def interrupted(name: str) -> Iterator[Callable[[float], Any]]:
        shares: list[float] = []
        bars.append((name, shares))

        def report(share: float) -> None:
            shares.append(share)
            signal.raise_signal(signal.SIGINT)

        yield report

    path = tmp_path / "ids.npy"
    np.save(path, np.random.default_rng(0).integers(0, 2**40, 2**19))
    monkeypatch.setattr(cli, "progress_bar", interrupted)
    with pytest.raises(SystemExit) as stop:
        cli.main(measure, [str(path), "--out", str(tmp_path / "out")], prog="test")
    assert stop.value.code == 130
    assert capsys.readouterr().err.startswith("\ninterrupted")
    assert bars == [(f"{path}, symbols", [1 / 6])]
    assert not (tmp_path / "out").exists()
