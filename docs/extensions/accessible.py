"""What scrolls can be scrolled from the keyboard, and parts of the theme have names for those who do not see them.

Written pages are changed by the text of their tags; a tag that this misses, of another theme say, is a warning.
"""

import re
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.util import logging

CHANGED = (
    ("<pre>", '<pre tabindex="0">'),
    ("<p><img ", '<p tabindex="0"><img '),
    ('<div class="table-wrapper ', '<div tabindex="0" class="table-wrapper '),
    ('role="heading">', 'role="heading" aria-level="2">'),
    ('<aside class="sidebar-drawer', '<aside aria-label="Pages" class="sidebar-drawer'),
    ('<aside class="toc-drawer', '<aside aria-label="Sections" class="toc-drawer'),
)
NEEDED = {
    r"<pre\b[^>]*>": "tabindex=",
    r"<p\b[^>]*>(?=<img\b)": "tabindex=",
    r"<div\b[^>]*\btable-wrapper\b[^>]*>": "tabindex=",
    r"<\w+\b[^>]*\brole=\"heading\"[^>]*>": "aria-level=",
    r"<aside\b[^>]*>": "aria-label=",
}


def improve(app: Sphinx, exception: Exception | None) -> None:
    """Change the pages of a build that has ended."""
    if exception is not None or app.builder.format != "html":
        return
    root = Path(app.outdir)
    for path in sorted(path for path in root.rglob("*.html") if path.relative_to(root).parts[0][0] != "_"):
        before = after = path.read_text(encoding="utf-8")
        for old, new in CHANGED:
            after = after.replace(old, new)
        if after != before:
            path.write_text(after, encoding="utf-8")
        for pattern, attribute in NEEDED.items():
            missed = [tag for tag in re.findall(pattern, after) if attribute not in tag]
            if missed:
                logging.getLogger(__name__).warning("%s: no %s in %s", path.relative_to(root), attribute, missed[0])


def setup(app: Sphinx) -> dict[str, bool]:
    """Have every build improved."""
    app.connect("build-finished", improve)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
