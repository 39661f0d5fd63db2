"""What scrolls can be scrolled from the keyboard, and captions of the navigation say what level of heading they are."""

from sphinx.application import Sphinx

AFTER_THE_THEME = 900
REPLACED = (
    ("<pre>", '<pre tabindex="0">'),
    ("<p><img ", '<p tabindex="0"><img '),
    ('<div class="table-wrapper ', '<div tabindex="0" class="table-wrapper '),
    ('role="heading">', 'role="heading" aria-level="2">'),
)


def improve(app, page, template, context, doctree) -> None:  # type: ignore[no-untyped-def]
    """The body of a page and its navigation, before they are written."""
    for name in ("body", "furo_navigation_tree"):
        for old, new in REPLACED:
            if context.get(name):
                context[name] = context[name].replace(old, new)


def setup(app: Sphinx) -> dict[str, bool]:
    """Have every page improved."""
    app.connect("html-page-context", improve, priority=AFTER_THE_THEME)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
