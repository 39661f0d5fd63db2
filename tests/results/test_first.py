"""The first screen, and what the whole page promises: pictures, explained names, anchors, honest rounding."""

import json
import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from plkernel.common.cli import finer, written
from plkernel.records.study import read_study
from plkernel.results.comparison import Comparison, blocks, compare, short_name
from plkernel.results.page.build import page_of, render
from plkernel.results.page.charts.axes import SIDE, linear, logarithmic
from plkernel.results.page.charts.intervals import Estimated, mark, scale
from plkernel.results.page.design import explained
from plkernel.results.page.document import Beside, Page, Terms
from plkernel.results.sentences import interval_text, mean_text

RECORDS = Path(__file__).parents[2] / "runs" / "records"
AUDIT, MARKOV = "exp013-audit", "memory-markov"
LARGEST = 1_000_000
"""Bytes of a page, so that it can be sent by mail and opened on a telephone."""


@cache
def compared(record: str) -> Comparison:
    return compare(read_study(RECORDS / record))


@cache
def page_of_record(record: str) -> Page:
    return page_of(compared(record))


@cache
def source_of(record: str) -> str:
    return render(page_of_record(record))


@pytest.fixture
def markov() -> Comparison:
    return compared(MARKOV)


class Tags(HTMLParser):
    """Every start tag of a page with its attributes, and all text that is read."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(source.partition("</style>")[2])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.text += " ".join(filter(None, (value for name, value in attrs if name == "aria-label")))

    def handle_data(self, data: str) -> None:
        self.text += data


def beside(page: Page) -> Beside:
    return next(part for part in page.head if isinstance(part, Beside))


@pytest.mark.parametrize("record", [AUDIT, MARKOV])
def test_the_page_is_one_small_file_whose_contents_resolve(record: str) -> None:
    page, source = page_of_record(record), source_of(record)
    assert len(source.encode()) < LARGEST
    found = Tags(source)
    ids = [attributes["id"] for _, attributes in found.tags if "id" in attributes]
    links = [attributes["href"] for tag, attributes in found.tags if tag == "a"]
    assert len(ids) == len(set(ids))
    assert links == [f"#{section.anchor}" for section in page.sections]
    assert set(links) <= {f"#{one}" for one in ids}
    assert not {"script", "link", "img", "iframe", "object", "base", "form"} & {tag for tag, _ in found.tags}
    assert not any(name.startswith("on") or name == "src" for _, attributes in found.tags for name in attributes)
    assert not re.search(r"https?://|@import|url\(", source)


@pytest.mark.parametrize("record", [AUDIT, MARKOV])
def test_headings_go_down_one_at_a_time_and_pictures_have_names(record: str) -> None:
    found = Tags(source_of(record))
    levels = [int(tag[1]) for tag, _ in found.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert set(levels[1:]) == {2}
    pictures = [attributes for _, attributes in found.tags if attributes.get("role") == "img"]
    assert pictures
    assert all(attributes["aria-label"] for attributes in pictures)
    drawn = [attributes for tag, attributes in found.tags if tag == "svg"]
    assert all(attributes.get("aria-hidden") == "true" for attributes in drawn), "what names them is around them"


@pytest.mark.parametrize("record", [AUDIT, MARKOV])
def test_every_arm_is_explained_before_anything_is_said_of_it(record: str) -> None:
    comparison, page = compared(record), page_of_record(record)
    terms = next(part for part in page.head if isinstance(part, Terms))
    assert page.head.index(terms) < page.head.index(beside(page))
    study = comparison.study
    assert {name for name, _ in terms.rows} == {short_name(study, arm) for arm in study.arms}
    assert all(what for _, what in terms.rows)
    changed = [what for name, what in terms.rows if " with " in what]
    assert len(changed) == len(terms.rows) - 1
    assert len(set(changed)) == len(changed), "what arms change tells them apart"


def test_a_baseline_is_not_said_to_have_decays_that_its_model_does_not_take(markov: Comparison) -> None:
    goose = dict(explained(compare(read_study(RECORDS / "goose"))))
    assert goose["official"] == "the baseline"
    assert goose["log-spaced"] == "official with placement log-spaced, shortest 1.2"
    ours = "the baseline: placement log-spaced, projection uniform, shortest 1, longest 512"
    assert dict(explained(markov))["log-spaced"] == ours


@pytest.mark.parametrize("record", [AUDIT, MARKOV])
def test_nothing_that_is_not_zero_reads_as_zero(record: str) -> None:
    found = Tags(source_of(record))
    words = found.text.replace("\N{MINUS SIGN}", "-")
    assert not re.findall(r"[+-]0\.0+(?![\d.])", words)


def test_numbers_have_the_digits_that_they_need(markov: Comparison) -> None:
    difference = markov["concentrated"].differences["final_val_bpb"]
    texts = mean_text(difference, "+.4f"), *interval_text(difference, "+.4f").split(" to ")
    step = 10.0 ** -len(texts[0].partition(".")[2])
    assert all(
        abs(float(text) - value) <= step / 2
        for text, value in zip(texts, (difference.mean, difference.low, difference.high), strict=True)
    )
    assert step < (difference.high - difference.low) / 2
    assert len({len(text.partition(".")[2]) for text in texts}) == 1, "all of one estimate have as many"
    assert [written(value, "+.4f") for value in (0.0, -0.0, -1e-5, 0.5)] == ["0", "0", "-0.000010", "+0.5000"]
    assert finer("+.4f", -0.01, 0.02) == "+.4f"
    assert finer("+.4f", 0.1, 0.1) == "+.4f"


def test_blocks_have_scales_of_their_own() -> None:
    audit, page = compared(AUDIT), page_of_record(AUDIT)
    differences = next(section for section in page.sections if section.title.startswith("Difference"))
    forest = differences.parts[0]
    assert forest.kind == "forest"
    parts = [part for part in blocks(audit) if part.others]
    assert [group.title for group in forest.groups] == [part.title for part in parts]
    assert len({tuple(group.ticks) for group in forest.groups}) > 1
    for group, part in zip(forest.groups, parts, strict=True):
        for row, arm in zip(group.rows, part.others, strict=True):
            difference = audit.evidence[arm.name].difference
            assert row.mark is not None
            assert (row.mark.mean < group.zero) == (difference.mean < 0)
            assert (row.mark.side == "level") == difference.contains_zero


def test_marks_lie_where_their_numbers_are() -> None:
    one = Estimated(-0.02, -0.03, -0.01, (-0.025, -0.015), (-np.inf, -0.005), True)
    axis = scale([one, Estimated(0.01, 0.0, 0.02)])
    found = mark(one, axis)
    assert found is not None
    ends = [axis.low + (axis.high - axis.low) * at / 100 for at in (found.mean, found.low, found.low + found.width)]
    assert ends == pytest.approx([-0.02, -0.03, -0.01], abs=1e-5)
    assert found.claim == (0.0, pytest.approx(axis.percent(-0.005), abs=0.01))
    assert (found.side, found.beyond) == ("lower", "")
    far = Estimated(0.0, -1e6, 1e6, (-0.001, 0.001))
    cut = mark(far, scale([far]))
    assert cut is not None
    assert (cut.low, cut.width, cut.beyond) == (0.0, 100.0, "")
    assert mark(Estimated(np.nan, np.nan, np.nan), axis) is None


def test_a_row_far_from_the_others_does_not_squeeze_them() -> None:
    """Of the study of source code: one arm is 0.64 behind where the others differ by 0.02."""
    near = [Estimated(mean, mean - 0.01, mean + 0.01, (mean - 0.01, mean + 0.01)) for mean in (-0.017, 0.005, 0.002)]
    far = Estimated(0.64, 0.6, 0.68, (0.6, 0.68))
    axis = scale([*near, far])
    assert scale(near) == axis
    marks = [mark(one, axis) for one in (*near, far, Estimated(-0.64, -0.68, -0.6))]
    assert [one.beyond for one in marks if one] == ["", "", "", "after", "before"]
    assert [(one.mean, one.width) for one in marks[3:] if one] == [(100.0, 0.0), (0.0, 0.0)]
    assert scale([near[0], far]).high > 0.64, "two rows share a frame, whatever they are"


AXES = [
    *(linear(*ends) for ends in ((-0.013, 0.021), (0, 1e-7), (3, 3), (-1e300, 1e300))),
    *(logarithmic(*ends) for ends in ((0.2, 1.2), (1, 1e9), (5, 5), (0, 1e300), (102, 410))),
    logarithmic(1, 512, base=2),
]


@pytest.mark.parametrize("axis", AXES)
def test_ticks_stand_inside_where_their_words_say(axis) -> None:
    assert 2 <= len(axis.ticks) <= 6
    for tick in axis.ticks:
        value = float(tick.text.replace("\N{MINUS SIGN}", "-").replace(",", ""))
        assert -0.2 <= tick.at <= 100.2
        assert axis.place(value) == pytest.approx(SIDE * tick.at / 100, abs=0.01 * SIDE)


def test_a_spec_can_put_nothing_into_the_page(declared_study) -> None:
    evil = "\"'></style><script>alert(1)</script><b onclick=alert(2)>"
    folder = declared_study([{"name": evil, "arm": "better", "claim": "lower"}])
    spec = json.loads((folder / "spec.json").read_text())
    (folder / "spec.json").write_text(json.dumps({**spec, "name": evil, "description": evil}))
    source = render(page_of(compare(read_study(folder))))
    found = Tags(source)
    assert not {"script", "b"} & {tag for tag, _ in found.tags}
    assert source.count("</style>") == 1
    assert not any(name.startswith("on") for _, attributes in found.tags for name in attributes)
    assert found.text.count("<script>alert(1)") >= 3


def test_arms_can_be_hidden_by_their_boxes() -> None:
    source = source_of(MARKOV)
    chart = beside(page_of_record(MARKOV)).charts[0]
    for slot, name in chart.names:
        assert f".chart:has(.k{slot} > input:not(:checked)) .t.a{slot} {{ display: none; }}" in source
        assert re.search(
            rf'<label class="k{slot}"><input type="checkbox" checked[^>]*><svg.*?</svg>{name}</label>', source
        )
        assert f'<g class="t a{slot}">' in source
    assert f"<title>{chart.names[1][1]}: " in source
