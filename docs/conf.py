"""How Sphinx makes the site: sphinx-build -W docs site. No network is needed, neither here nor to read it."""

import re
import sys
from pathlib import Path

from docutils.nodes import SkipNode
from docutils.utils.math.latex2mathml import tex2mathml

sys.path.insert(0, str(Path(__file__).parent))

import reference

project = "fcorun"
author = "The fcorun authors"
copyright = "The fcorun authors, Apache-2.0"
html_title = "fcorun"
html_theme = "furo"
html_copy_source = html_show_sourcelink = False
html_static_path = ["style.css"]
html_css_files = ["style.css"]
html_math_renderer = "mathml"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinxcontrib.mermaid"]
exclude_patterns = ["equations", "**.ipynb_checkpoints"]
nitpicky = False
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
napoleon_custom_sections = [("Optional methods", "params_style")]
myst_enable_extensions = ["dollarmath"]
myst_fence_as_directive = ["mermaid"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # the notebook has its outputs; a test makes them anew


def plain(app, what, name, obj, options, lines: list[str]) -> None:
    """Docstrings are plain text: norms, stars and underscores in them are no marks of reStructuredText."""
    for at, line in enumerate(lines):
        parts = re.split(r"(``.+?``)", line)
        lines[at] = "".join(p if p.startswith("``") else re.sub(r"([|*\\`]|_(?=\W|$))", r"\\\1", p) for p in parts)


def inline_math(writer, node) -> None:
    _math(writer, node, block=False)


def block_math(writer, node) -> None:
    _math(writer, node, block=True)


def _math(writer, node, block: bool) -> None:
    """A formula as MathML, which browsers show without a script."""
    # docutils puts the index of a letter with an accent below it, but not that of a group
    text = re.sub(r"(\\(?:bar|hat|tilde) ?(?:\\[a-z]+|\w))(?=[_^])", r"{\1{}}", node.astext())
    writer.body.append(tex2mathml(text, as_block=block))
    raise SkipNode


def setup(app) -> None:
    app.add_html_math_renderer("mathml", (inline_math, None), (block_math, None))
    app.connect("autodoc-process-docstring", plain, priority=100)
    app.connect("builder-inited", lambda app: reference.write(Path(app.srcdir)))
