"""A comparison as one self-contained HTML page: no scripts, no requests, light and dark, fit to print."""

from collections.abc import Mapping
from html import escape

from plkernel.reporting.blocks import blocks
from plkernel.reporting.cautions import warnings
from plkernel.reporting.comparison import Comparison
from plkernel.reporting.drawings import curve_names
from plkernel.reporting.findings import sentences
from plkernel.reporting.markup import Html, details, paragraphs, tag
from plkernel.reporting.memory_section import memory_sections, published_sections
from plkernel.reporting.overview import is_large, overview
from plkernel.reporting.page_design import design
from plkernel.reporting.page_differences import differences
from plkernel.reporting.page_effects import factor_effects
from plkernel.reporting.page_parts import group_title, mark, minus
from plkernel.reporting.page_results import results
from plkernel.reporting.page_runs import costs, learning_rates, missing, provenance
from plkernel.reporting.page_style import STYLE


def render(comparison: Comparison, figures: Mapping[str, Html]) -> str:
    """The page; `figures` are elements with captions under the names of `drawings`; a missing one is left out."""
    study = comparison.study
    title = f"{study.name}{mark(comparison)}"
    body = [
        tag("h1", title),
        tag("p", study.description, "soft") if study.description else "",
        paragraphs("summary", map(minus, overview(comparison))),
        paragraphs("warnings", warnings(comparison)),
        _every_sentence(comparison),
        *design(comparison),
        *results(comparison),
        *differences(comparison, figures),
        *factor_effects(comparison),
        *_curves(comparison, figures),
        *memory_sections(comparison, figures),
        *published_sections(figures),
        *learning_rates(comparison),
        *costs(comparison),
        *missing(study.runs),
        *provenance(study.finished()),
    ]
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    head += f"<title>{escape(title)}</title>\n<style>{STYLE}</style>"
    content = "\n".join(body)
    return f'<!doctype html>\n<html lang="en">\n<head>{head}</head>\n<body>\n{content}\n</body>\n</html>\n'


def _every_sentence(comparison: Comparison) -> Html:
    """A sentence per arm, where the summary has none."""
    if not is_large(comparison):
        return Html()
    texts = [minus(text) for text in sentences(comparison)]
    return details(f"All {len(texts)} comparisons in words", paragraphs("sentences", texts))


def _curves(comparison: Comparison, figures: Mapping[str, Html]) -> list[Html]:
    """Convergence and differences during training, block by block."""
    parts: list[Html] = []
    for part in blocks(comparison):
        shown = [figures[name] for name in curve_names(part) if name in figures]
        parts += [details(group_title(part), *shown)] if part.title and shown else shown
    return [tag("h2", "Curves"), *parts] if parts else []
