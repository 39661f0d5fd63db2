"""Formulas as MathML, which browsers draw themselves: no script, no font and no network. docutils translates them."""

from docutils.nodes import SkipNode
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx


def inline(translator, node):  # type: ignore[no-untyped-def]
    """A formula in a line."""
    translator.body.append(tex2mathml(node.astext()))
    raise SkipNode


def displayed(translator, node):  # type: ignore[no-untyped-def]
    """A formula on a line of its own."""
    translator.body.append(f'<div class="math">{tex2mathml(node.astext(), as_block=True)}</div>\n')
    raise SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Register it and take it."""
    app.add_html_math_renderer("mathml", (inline, None), (displayed, None))
    app.config.html_math_renderer = "mathml"
    return {"parallel_read_safe": True, "parallel_write_safe": True}
