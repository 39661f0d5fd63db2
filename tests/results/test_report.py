"""The report: the comparison behind it, its conclusion and cautions, the tables of the page, and
its figures.
"""

import base64
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from pandas import read_csv
from studies import BASELINE, CORPUS, REFERENCE, change, save, write_study

from plkernel.analysis.figures import style
from plkernel.commands.report import report, write_comparison
from plkernel.common import cli
from plkernel.models import NOT_CAUSAL
from plkernel.results import figures
from plkernel.results.answer import answer
from plkernel.results.cautions import warnings
from plkernel.results.comparison import Comparison, compare
from plkernel.results.figures import Drawing
from plkernel.results.page import text_report
from plkernel.results.record import save_record
from plkernel.results.statistics import holm
from plkernel.results.study import read_study
from plkernel.results.wording import p_text

HOSTILE = "<script>alert('&')</script>$x$ \u202e"


def of(folder: Path) -> Comparison:
    return compare(read_study(folder))


def written(one: Comparison) -> Path:
    return write_comparison(one, one.study.folder / "report")


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures take most of the time of a report; where words and tables are read, sections have
    empty ones.
    """
    empty = [Drawing(name, name, f"figure of {name}.", "", None) for name in ("decided", "curves")]  # type: ignore[arg-type]
    monkeypatch.setattr(figures, "drawings", lambda comparison: empty)
    monkeypatch.setattr(
        style, "rendered", lambda figure, kinds: {"svg": b"<svg></svg>", "png": b"", "pdf": b""}
    )


class Page(HTMLParser):
    """Text and tags of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.source = path.read_text()
        self.path = path
        self.feed(self.source.partition("<body>")[2])
        self.text = " ".join(self.text.split()).replace("\N{MINUS SIGN}", "-")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += f" {data}"


# The comparison


def test_unequal_steps_are_compared_at_the_last_step_in_common(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "long", steps=60)
    other = write_study(tmp_path / "short", steps=40) / "concentrated"
    for path in other.rglob("*.json*"):
        (folder / "concentrated" / path.relative_to(other)).write_bytes(path.read_bytes())
    one = of(folder)
    assert one.primary == "val_bpb_common_step"
    assert one["concentrated"].differences[one.primary].mean == pytest.approx(-0.05, abs=0.01)
    assert (
        "Runs differ in the number of steps; they are compared at the last step that all reached."
        in warnings(one)
    )


# Words


def test_the_answer_comes_first_then_the_conclusion(tmp_path: Path) -> None:
    one = of(
        write_study(
            tmp_path, seeds=range(6), effects={BASELINE: 0.0, "a": -0.05, "b": 0.05, "c": -0.08}
        )
    )
    words = (
        "3 of 3 differences are significant (Holm-corrected, 6 seeds), 2 below the baseline and 1"
        " above: c -0.0"
    )
    told = f"{answer(one)}\nNo hypothesis was declared before the runs.\n{words}"
    assert text_report(one).startswith(told)


ARM = "concentrated/seed-{}/{}.json"
OTHER = f"{BASELINE}/seed-0/{{}}.json"
FAULTS: list[tuple[list[str], dict[str, Any] | None, str]] = [
    (
        [ARM.format(0, "result")],
        {"causal": False},
        f"concentrated: {NOT_CAUSAL}: a prediction sees part of its own",
    ),
    (
        [ARM.format(1, "result")],
        {"final_val_bpb": None},
        "concentrated, seed 1: the loss is not finite, so the arm",
    ),
    (
        [OTHER.format("config")],
        {"model": {"parameters": 1}},
        "log-spaced and concentrated: models that are compared differ in the number of parameters.",
    ),
    (
        [ARM.format(0, "result")],
        None,
        "Runs differ in the seeds that finished: compare paired differences, not means.",
    ),
    ([ARM.format(0, "result")], None, "Of 4 runs 1 unfinished: the report covers the others only."),
    (
        [OTHER.format("result").replace("0/", f"{n}/") for n in (0, 1)],
        None,
        "log-spaced: no run of this baseline is",
    ),
    ([OTHER.format("environment")], {"commit": "other"}, "Runs differ in the commit of the code."),
    (
        [OTHER.format("environment")],
        {"dirty": True},
        "Some runs come from code that differs from its commit (dirty).",
    ),
    (
        [OTHER.format("config")],
        {"corpus": {**CORPUS, "sha256": "0"}},
        "Runs differ in the bytes of their corpus",
    ),
    (
        [OTHER.format("result")],
        {"final_val_bpb": 9.0},
        "log-spaced/seed-0: the rows are not those of the result:",
    ),
    (
        [ARM.format(n, "config") for n in (0, 1)],
        {"train": {"context": 64}},
        "concentrated: half or more of its half-l",
    ),
]


@pytest.mark.parametrize(("names", "values", "words"), FAULTS)
def test_every_fault_is_warned_of_and_only_it(
    tmp_path: Path, names: list[str], values: Any, words: str
) -> None:
    folder = write_study(
        tmp_path, state={"half_life_quantiles": [[900, 910, 920, 930, 940, 950, 960]]}
    )
    assert warnings(of(folder)) == []
    for path in (folder / name for name in names):
        if values is None:
            path.unlink()
        elif path.exists():
            change(path, **values)
        else:
            save(path, values)
    told = warnings(of(folder))
    assert [text for text in told if text.startswith(words)], told
    assert len(told) <= 2
    assert f"note: {told[0]}" in text_report(of(folder))


def test_rates_at_the_edge_n_grams_of_other_windows_and_idle_options(tmp_path: Path) -> None:
    rates = {
        f"{arm}_rate-{rate}": rate for arm in (BASELINE, "concentrated") for rate in (0.1, 0.2, 0.4)
    }
    rates["concentrated_rate-0.4"] = 0.1
    folder = write_study(
        tmp_path, spec={"tuning": {"rates": [0.1, 0.2, 0.4], "seeds": [0, 1]}}, causal=False
    )
    write_study(tmp_path / "tuning", effects=rates, spec={"baseline": next(iter(rates))})
    save(
        tmp_path / "references.json",
        {"references": [REFERENCE, {**REFERENCE, "corpus": {**CORPUS, "sha256": "0"}}]},
    )
    edge = (
        "log-spaced at 0.1 and concentrated at 0.1: the learning rate is the first or last tried."
    )
    _, first, second = warnings(of(folder))
    assert (first, second[:47]) == (edge, "concentrated: the search cannot tell the best l")
    assert of(folder).references == []
    assert len(of(write_study(tmp_path)).references) == 1
    for seed in (0, 1):
        for name in ("metrics.jsonl", "result.json"):
            own, other = (
                tmp_path / arm / f"seed-{seed}" / name for arm in (BASELINE, "concentrated")
            )
            other.write_bytes(own.read_bytes())
    assert (
        "concentrated: the same loss as the baseline to the last digit in every seed"
        in warnings(of(folder))[0]
    )
    record = Path(__file__).parents[2] / "runs/records/models-mamba2"
    assert warnings(of(record)) == [
        "unit-A: not at its baseline's learning rate; the search cannot tell which is better, seeds"
        " differ by 0.016: add tuning.seeds to decide."
    ]


def test_n_grams_and_what_memory_is_worth_follow_the_verdicts(
    tmp_path: Path, undrawn: None
) -> None:
    folder = write_study(tmp_path)
    lzma = {"windows": [4096, 2**24], "val_bpb": [2.114, 1.43]}
    save(
        folder / "references.json",
        {"references": [{**REFERENCE, "val_bpb": [4.5, 2.19], "lzma": lzma}]},
    )
    save_record(read_study(folder), tmp_path / "record")
    page = Page(written(of(tmp_path / "record")))
    first = page.text.partition("Design and runs Answer ")[2].partition("What was decided ")[2]
    before, _, worth = first.partition("1 of 2 arms loses to 2-grams on stdlib (2.190 against 2.1")
    assert before.startswith("No hypothesis was declared before the runs.")
    assert "LZMA that looks back 4 kB and 16 MB needs 2.11 and 1.43 bits." in worth[:200]
    assert "LZMA, window of 16 MB all of the validation text 1.4300 " in first


# The page


CLAIMS = [
    {"name": "helps", "arm": "better", "claim": "lower", "margin": 0.01},
    {"name": "worse", "arm": "better", "claim": "higher"},
    {"name": f"hostile {HOSTILE.strip()}", "arm": "same", "claim": "equal", "margin": 1e-6},
]


def test_the_first_screen_says_what_was_decided(
    declared_study: Callable[..., Path], undrawn: None
) -> None:
    page = Page(
        written(of(declared_study(CLAIMS, [{"name": "learnt", "arm": "base", "at_most": 9.0}])))
    )
    first = page.text.partition("Design and runs")[2].partition("Results")[0]
    one = of(page.path.parent.parent)
    assert first.startswith(f" Answer {answer(one)} What was decided ".replace("  ", " "))
    told = [
        "Of 3 hypotheses declared in the spec: 1 confirmed, 1 refuted, 1 undecided. Not registered:"
        " nothing shows that the hypotheses came before the results (",
        "helps metric val_bpb",
        "1 of 1 gate passed.",
    ]
    places = [first.index(words) for words in told]
    assert places == sorted(places)
    claim = "helps metric val_bpb, arm better, against base, claim lower, margin 0.01 confirmed "
    number = r"-0.\d+"
    both = rf"-0.04\d+ {number} to {number} -0.04\d+ \({number} to {number}\)"
    assert re.search(rf"{claim}{both} 6 0.047 1 worse", first), "confirming before refuting"
    assert "worse metric val_bpb, arm better, against base, claim higher refuted -0.04" in first
    assert (
        "hypothesis verdict difference 90 % interval by sign flips on test text n p confirming p"
        " refuting" in first
    )
    assert "6 1 0.047 hostile <script>alert('&')</script>$x$" in first
    demand = (
        r"learnt metric val_bpb, arm base, at_most 9\.0; over 16,384 target bytes passed 2\.\d+"
        r" .* 6"
    )
    assert re.search(demand, first)
    assert "p is Holm-corrected over the family. On test text stands the same" in first
    assert "which decides nothing. Rows of commit 3f9a. hypothesis" in first
    assert '<td class="text confirmed">' in page.source
    assert not re.search("[0-9] % interval(?! by|s over)", page.text), (
        "every interval says its kind"
    )
    printed = text_report(
        of(declared_study(CLAIMS, [{"name": "perfect", "arm": "base", "at_most": 0.1}]))
    )
    first, second, *_ = printed.split("\n")
    assert first.endswith("; but a gate is not passed, 'perfect', so no hypothesis is answered.")
    assert second.startswith(
        "The study cannot answer its 3 hypotheses declared in the spec: gate 'perfect' is not"
    )
    assert re.search(r"^perfect +not passed", printed, re.MULTILINE)


def test_every_number_of_a_leaking_arm_is_in_a_row_that_says_so(
    tmp_path: Path, undrawn: None
) -> None:
    folder = write_study(tmp_path, range(6), {BASELINE: 0.0, "leaks": -0.05, "sound": -0.02})
    for seed in range(6):
        change(folder / f"leaks/seed-{seed}/result.json", causal=False)
    page = Page(written(of(folder)))
    printed = text_report(of(folder))
    labelled = [
        NOT_CAUSAL in row for row in re.findall(r'<th scope="row">leaks(.*?)</th>', page.source)
    ]
    assert labelled == [True, True]
    one = of(folder)
    assert one.surviving == [
        "sound",
        "leaks",
    ], "likelihoods come first although the leaking difference is larger"
    sound = one.differences["sound"]
    power = np.median([*one.detectable.values()])
    first = f"sound {sound.mean:+.4f} ({sound.low:+.4f} to {sound.high:+.4f})"
    assert f"2 below the baseline and 0 above: {first}; leaks ({NOT_CAUSAL}) -0.0" in printed
    assert f"finds a difference of {power:.2g} bits per byte 8 times in 10" in printed
    rows = re.findall(r"^leaks.*", printed, re.MULTILINE)
    assert len(rows) > 1
    assert all(row.startswith("leaks (not causal, ") for row in rows)


def test_the_tables_hold_the_numbers_of_the_comparison(tmp_path: Path, undrawn: None) -> None:
    """An arm may be compared with another than the baseline; p is corrected for the number of
    all.
    """
    own: dict[str, dict[str, Any]] = {
        BASELINE: {"beta": 1.5},
        "a": {"placement": "quantile"},
        "b": {},
        "c": {"against": "a"},
    }
    spec = {"arms": {name: {**options, "kernel": "rms"} for name, options in own.items()}}
    folder = write_study(
        tmp_path, range(3), {BASELINE: 0.0, "a": -0.1, "b": 0.1, "c": -0.11}, spec=spec
    )
    save(folder / "references.json", {"references": [REFERENCE]})
    change(folder / "c/seed-2/result.json", status="failed", error="<b>no memory</b>")
    one = of(folder)
    page = Page(written(one))
    a, b, c = one.differences.values()
    base = one[BASELINE].estimates["test_bpb"]
    assert [one.label(arm) for arm in one.baselines] == [BASELINE, "a"]
    assert one["c"].differences["test_bpb"].mean == pytest.approx(-0.01, abs=0.01)
    assert one.corrected == holm(
        {arm.name: arm.differences["final_val_bpb"].p_value for arm in one.others}
    )
    shown = f"{a.mean:+.4f} {a.low:+.4f} to {a.high:+.4f}"
    step = one["a"].differences["val_bpb_step_20"]
    p = [p_text(a.p_value), p_text(one.corrected["a"])]
    assert p[0] != p[1]
    for text in (
        f"a minus {BASELINE} {shown} {' '.join(p)}",
        f"{p_text(b.p_value)} {p_text(one.corrected['b'])} ",
        f" c minus a {c.mean:+.4f}",
        f" {step.mean:+.4f} ± {step.high - step.mean:.4f} ",
        f"{base.mean:.4f} ± {base.high - base.mean:.4f} ",
        " 3 312,345 40 a ",
        "n-gram, 1 byte 4.5000 4.6000 n-gram, 2 bytes 1.0000 1.1000",
        (
            "hours in all hardware cpu a processor, threads 2 code commit 3f9ab12c, dirty False"
            " corpus name stdlib, size 1"
        ),
        "c/seed-2 failed <b>no memory</b>",
    ):
        assert text in page.text
    assert re.search(r"^for reference, on .*\nn-gram, 1 byte ", text_report(one), re.MULTILINE)
    sections = re.findall(r"<h2[^>]*>\s*(.*?)</h", page.source)
    ends = ["Results", "Differences", "Curves", "Design and runs"]
    assert sections == ["Answer", "What was decided", *ends]
    assert re.search(re.escape(shown).replace(r"\ ", " +"), text_report(one))


# Figures and files


def test_the_page_holds_every_figure_and_hostile_names_stay_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = style.rendered
    empty = {"svg": b"<svg/>", "pdf": b"", "png": b""}
    monkeypatch.setattr(
        style,
        "rendered",
        lambda figure, kinds: empty | (drawn(figure, ["svg"]) if len(figure.axes) == 1 else {}),
    )
    arm = "<script>alert(1)<%2fscript>$x$"
    kernel = {"lags": [1, 2, 4, 8], "blocks": [[1, 0.5, 0.2, 0.1]]}
    spec = {
        "name": HOSTILE,
        "description": HOSTILE,
        "arms": {BASELINE: {}, arm: {"placement": HOSTILE}},
    }
    state = {"half_life_quantiles": [[1, 2, 3, 4, 5, 6, 7.0]], "kernel": kernel}
    folder = write_study(tmp_path, effects={BASELINE: 0.0, arm: -0.05}, spec=spec, state=state)
    for path in folder.rglob("config.json"):
        change(path, corpus={**CORPUS, "name": HOSTILE})
    for path in folder.rglob("result.json"):
        curve = {"given": [1, 2, 4], "bpb": [3.0, 2.5, 2.2]}
        change(path, truncation=curve, influence={"lags": [1, 2], "bits": [0.5, 0.1]})
    path = written(of(folder))
    names = [
        "overview",
        "forest",
        "convergence",
        "difference",
        "truncation",
        "influence",
        "kernels",
        "half-lives",
    ]
    assert {one.name for one in path.parent.iterdir()} == {"report.html", "table.json"}
    other = tmp_path / "other"
    write_comparison(of(folder), other, ("png", "svg"))
    files = {f"{name}.{kind}" for name in names for kind in ("png", "svg")}
    assert {one.name for one in other.iterdir()} == files | {"report.html", "table.json"}
    assert (other / "report.html").read_bytes() == path.read_bytes()
    page = Page(path)
    head = "data:image/svg+xml;base64,"
    pictures = [attributes for tag, attributes in page.tags if tag == "img"]
    assert len({one["alt"] for one in pictures}) == len(names)
    shown = [
        ElementTree.fromstring(base64.b64decode(str(one["src"]).removeprefix(head)))
        for one in pictures
    ]
    assert any(arm in "".join(svg.itertext()) for svg in shown)
    assert "script" not in [tag for tag, _ in page.tags]
    assert page.text.count(arm) >= 3
    links = [
        str(attributes.get("src") or attributes.get("href") or head) for _, attributes in page.tags
    ]
    assert all(link.startswith((head, "#s")) for link in links), "nothing comes from outside"


def test_the_command_keeps_a_record_and_leaves_records_as_they_are(
    tmp_path: Path,
    undrawn: None,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = write_study(tmp_path / "study")
    record = tmp_path / "record"
    report(folder, record, csv=True)
    assert f"report: {folder / 'report/report.html'}" in capsys.readouterr().out
    rows, table = (read_csv(folder / "report" / name) for name in ("rows.csv", "table.csv"))
    one = of(folder)
    key = "final_val_bpb"
    assert rows.set_index(["arm", "seed"])[f"result.{key}"].to_dict() == {
        (arm.name, seed): pytest.approx(value, abs=0)
        for arm in one.arms
        for seed, value in arm.values[key].items()
    }
    assert (rows["config.corpus.sha256"] == CORPUS["sha256"]).all()
    shown = table.set_index(["arm", "measure"]).loc[("concentrated", key)]
    assert shown["difference_to_baseline.mean"] == pytest.approx(
        one.differences["concentrated"].mean, rel=1e-12
    )
    assert shown["p_corrected"] == pytest.approx(one.corrected["concentrated"], rel=1e-9)
    assert (table.columns[0], table["p_corrected"].count()) == ("arm", 1)
    kept = {path: path.read_bytes() for path in record.rglob("*") if path.is_file()}
    report(record)
    report(record, out=tmp_path / "elsewhere")
    assert {path: path.read_bytes() for path in record.rglob("*") if path.is_file()} == kept
    assert {path.name for path in record.iterdir()} == {"spec.json", "rows.jsonl"}
    for name in ("report.html", "table.json"):
        for out in (tmp_path / "runs/out/record-record", tmp_path / "elsewhere"):
            assert (out / name).read_bytes() == (folder / "report" / name).read_bytes()
    for path in list(folder.rglob("result.json")):
        path.unlink()
    with pytest.raises(SystemExit):
        cli.main(report, [str(folder)])
    assert "which has only unfinished ones; finish one first" in capsys.readouterr().err
