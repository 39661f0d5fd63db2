"""A comparison as one self-contained HTML page: no scripts, no requests, light and dark, fit to print."""

from collections.abc import Iterable, Iterator
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from plkernel.analysis.figures.style import COLOURS, line_style
from plkernel.models.words import NOT_CAUSAL
from plkernel.results.cautions import warnings
from plkernel.results.comparison import Comparison, blocks
from plkernel.results.page.charts import captions
from plkernel.results.page.charts.curves import convergence, training_of
from plkernel.results.page.charts.curves import differences as difference_chart
from plkernel.results.page.charts.frames import Chart
from plkernel.results.page.context import context_sections, influence_sections
from plkernel.results.page.declared import declared_sections
from plkernel.results.page.design import design
from plkernel.results.page.differences import differences
from plkernel.results.page.document import Beside, Folded, Page, PageSection, Part, folded, prose, section
from plkernel.results.page.effects import factor_effects
from plkernel.results.page.first import first_screen
from plkernel.results.page.memory import memory_sections, published_sections
from plkernel.results.page.parts import group_title, mark, minus
from plkernel.results.page.results import results
from plkernel.results.page.runs import costs, learning_rates, missing, provenance
from plkernel.results.sentences import is_large, overview, sentences

FINEST_DASH = 1.6
"""Dashes are given in widths of a line, of which this is one on a screen."""


def render(page: Page) -> str:
    """The page as HTML; every text in it is escaped."""
    loader = PackageLoader("plkernel.results.page", "")
    templates = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return templates.get_template("page.html").render(page=page, not_causal=NOT_CAUSAL, looks=list(_looks(page)))


def page_of(comparison: Comparison) -> Page:
    """What stands on the page."""
    study = comparison.study
    head = (*first_screen(comparison), prose("warnings", warnings(comparison)))
    sections = (
        *section("In words", prose("summary", map(minus, overview(comparison))), _every_sentence(comparison)),
        *declared_sections(comparison.declared),
        *design(comparison),
        *results(comparison),
        *differences(comparison),
        *factor_effects(comparison),
        *_curves(comparison),
        *context_sections(comparison),
        *influence_sections(comparison),
        *memory_sections(comparison),
        *published_sections(comparison),
        *learning_rates(comparison),
        *costs(comparison),
        *missing(study.runs),
        *provenance(study.finished()),
    )
    return Page(f"{study.name}{mark(comparison)}", tuple(part for part in head if part), sections)


def _every_sentence(comparison: Comparison) -> Folded | None:
    """A sentence per arm, where the summary has none."""
    shown = prose("sentences", [minus(text) for text in sentences(comparison)]) if is_large(comparison) else None
    return folded(f"All {len(shown.texts)} comparisons in words", shown) if shown else None


def _curves(comparison: Comparison) -> list[PageSection]:
    """Convergence and differences during training, block by block."""
    parts: list[Part] = []
    for part in blocks(comparison):
        training = training_of(comparison, part)
        if not training.names:
            continue
        where, seeds = f"{part.title}: " if part.title else "", max(map(len, training.paired.values()), default=0)
        said = captions.convergence(part.arms, bool(training.references))
        shown: list[Part] = [convergence(training, f"{where}{captions.CONVERGENCE_OF}", said)]
        if training.paired:
            said = captions.differences(part.arms, seeds)
            shown.append(difference_chart(training, part.others, f"{where}{captions.DIFFERENCES_OF}", said))
        parts += [folded(group_title(part), *shown)] if part.title else shown
    return section("Curves", *parts)


def _looks(page: Page) -> Iterator[tuple[int, int, str]]:
    """The number of every arm on the page, that of its colour (0: ink), and its dashes for a style sheet."""
    for slot in sorted(set(_slots((*page.head, *(part for one in page.sections for part in one.parts))))):
        look = line_style(slot)
        dashes = () if slot == 0 else look["linestyle"][1]
        colour = 0 if slot == 0 else 1 + COLOURS.index(look["color"])
        yield slot, colour, " ".join(f"{FINEST_DASH * length:g}" for length in dashes) or "none"


def _slots(parts: Iterable[Any]) -> Iterator[int]:
    for part in parts:
        if isinstance(part, Folded):
            yield from _slots(part.content)
        elif isinstance(part, Beside):
            yield from _slots(part.charts)
        elif isinstance(part, Chart):
            yield from (trace.slot for panel in part.panels for trace in panel.traces)
