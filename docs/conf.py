"""The documentation: Sphinx, MyST pages, the furo theme. `make docs` builds it, without network and
without torch.

The API is read from the source without importing it; only the specs, which are data, are imported
for their reference.
"""

import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs" / "extensions")]

project = "plkernel"
author = copyright = "The plkernel developers"
version = release = re.findall(
    r'__version__ = "(.+)"', (ROOT / "plkernel" / "__init__.py").read_text()
)[0]

extensions = ["myst_nb", "reference"]
exclude_patterns = ["_build", "**/_*"]
nb_execution_mode = "off"  # notebooks hold their outputs, which `make tutorials` renews

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
add_module_names = False
python_use_unqualified_type_names = True
suppress_warnings = [
    "ref.python"
]  # types in signatures that several modules give to different classes
smartquotes = False  # options begin with two hyphens, code has straight quotes

html_theme = "furo"
html_title = "plkernel"
html_static_path = ["_static"]
html_css_files = ["style.css"]
html_copy_source = html_show_sphinx = False


# The theme lacks these for screen readers and keyboards: a text of its pages, and the text that
# replaces it.
ACCESSIBLE = {
    'class="caption" role="heading">': 'class="caption" role="heading" aria-level="2">',
    '<aside class="sidebar-drawer">': '<aside class="sidebar-drawer" aria-label="Pages">',
    '<aside class="toc-drawer': '<aside aria-label="On this page" class="toc-drawer',
    "<pre>": '<pre tabindex="0">',
    '<div class="table-wrapper': '<div tabindex="0" class="table-wrapper',
}


def accessible(app: Sphinx, error: Exception | None) -> None:
    """Let keyboards scroll what is wide, and give captions their level and regions their names."""
    for file in () if error else Path(app.outdir).rglob("*.html"):
        text = file.read_text()
        for plain, better in ACCESSIBLE.items():
            text = text.replace(plain, better)
        file.write_text(text)


def setup(app: Sphinx) -> None:
    """Mend the pages once they are written."""
    app.connect("build-finished", accessible)
