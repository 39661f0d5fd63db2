"""A comparison as one self-contained HTML page: no scripts, no requests, light and dark, fit to print."""

from collections.abc import Mapping

from jinja2 import Environment, PackageLoader, StrictUndefined

from plkernel.models.words import NOT_CAUSAL
from plkernel.report.cautions import warnings
from plkernel.report.comparison import Comparison, blocks
from plkernel.report.figures import curve_names
from plkernel.report.page.context import context_sections
from plkernel.report.page.declared import declared_parts
from plkernel.report.page.design import design
from plkernel.report.page.differences import differences
from plkernel.report.page.document import Figure, Folded, Page, PageSection, Part, folded, prose, section
from plkernel.report.page.effects import factor_effects
from plkernel.report.page.memory import memory_sections, published_sections
from plkernel.report.page.parts import group_title, mark, minus
from plkernel.report.page.results import results
from plkernel.report.page.runs import costs, learning_rates, missing, provenance
from plkernel.report.sentences import is_large, overview, sentences


def render(page: Page) -> str:
    """The page as HTML; every text in it is escaped."""
    loader = PackageLoader("plkernel.report.page", "")
    templates = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return templates.get_template("page.html").render(page=page, not_causal=NOT_CAUSAL)


def page_of(comparison: Comparison, figures: Mapping[str, Figure]) -> Page:
    """What stands on the page; `figures` go by the names of `drawings`, and one that is missing is left out."""
    study, first = comparison.study, _declared_curve(comparison, figures)
    head = (
        prose("soft", [study.description] if study.description else []),
        *declared_parts(comparison.declared),
        figures.get(first),
        prose("summary", map(minus, overview(comparison))),
        prose("warnings", warnings(comparison)),
        _every_sentence(comparison),
    )
    sections = (
        *design(comparison),
        *results(comparison),
        *differences(comparison, figures),
        *factor_effects(comparison),
        *_curves(comparison, {name: figure for name, figure in figures.items() if name != first}),
        *context_sections(comparison, figures),
        *memory_sections(comparison, figures),
        *published_sections(figures),
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


def _declared_curve(comparison: Comparison, figures: Mapping[str, Figure]) -> str:
    """The figure of differences during training of the block that the first hypothesis is about; empty for none."""
    outcomes = comparison.declared.outcomes if comparison.declared else ()
    arms = [outcome.hypothesis.arm for outcome in outcomes]
    found = (part for arm in arms for part in blocks(comparison) if any(one.name == arm for one in part.others))
    names = (name for part in found for name in curve_names(part)[1:] if name in figures)
    return next(names, "")


def _curves(comparison: Comparison, figures: Mapping[str, Figure]) -> list[PageSection]:
    """Convergence and differences during training, block by block."""
    parts: list[Part] = []
    for part in blocks(comparison):
        shown = [figures[name] for name in curve_names(part) if name in figures]
        parts += [folded(group_title(part), *shown)] if part.title and shown else shown
    return section("Curves", *parts)
