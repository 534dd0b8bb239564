"""Configuration of Sphinx: sphinx-build -W docs site. Neither building nor reading the site needs a network."""

import gc
import re
import sys
from pathlib import Path

from docutils.nodes import SkipNode
from docutils.utils.math.latex2mathml import tex2mathml

sys.path.insert(0, str(Path(__file__).parent))

import reference

gc.set_threshold(100_000)  # the nodes of all pages stay until the end

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
nb_execution_mode = "off"  # the notebook contains its outputs; a test recomputes them


# The pages of the reference by the files of the repository that they are made of. A page of a clone links the files.
REFERENCE_PAGES = {
    "conf": "index.md",
    "conf/experiment": "gallery.md",
    "fcorun/__init__.pyi": "python.md",
    "fcorun/base/sources/catalogue.bib": "sources.md",
    "fcorun/methods/algorithms": "algo.md",
    "CONTRIBUTING.md#a-plug-in": "contracts.md",
    "CONTRIBUTING.md": "contributing.md",
}


def link_reference(app, docname: str, source: list[str]) -> None:
    """Replace links to files of the repository by links to the pages of the reference."""
    up = "../" * docname.count("/")
    for path, page in REFERENCE_PAGES.items():
        source[0] = source[0].replace(f"](../{up}{path})", f"]({up}reference/{page})")


def escape_docstring(app, what, name, obj, options, lines: list[str]) -> None:
    """Escape norms, stars and underscores, since docstrings are plain text and not reStructuredText."""
    for index, line in enumerate(lines):
        parts = re.split(r"(``.+?``)", line)
        lines[index] = "".join(p if p.startswith("``") else re.sub(r"([|*\\`]|_(?=\W|$))", r"\\\1", p) for p in parts)


def inline_math(writer, node) -> None:
    _math(writer, node, block=False)


def block_math(writer, node) -> None:
    _math(writer, node, block=True)


def _math(writer, node, block: bool) -> None:
    """Write a formula as MathML, which browsers show without a script."""
    # docutils sets the index of an accented letter below the letter; a group prevents that
    text = re.sub(r"(\\(?:bar|hat|tilde) ?(?:\\[a-z]+|\w))(?=[_^])", r"{\1{}}", node.astext())
    writer.body.append(tex2mathml(text, as_block=block))
    raise SkipNode


def skip_named_tuple_field(app, what, name, member, skip, options) -> bool | None:
    """Leave out a field of a NamedTuple, which the docstring of its class describes under Attributes."""
    return True if (getattr(member, "__doc__", None) or "").startswith("Alias for field number") else None


def setup(app) -> None:
    app.add_html_math_renderer("mathml", (inline_math, None), (block_math, None))
    app.connect("source-read", link_reference)
    app.connect("autodoc-process-docstring", escape_docstring, priority=100)
    app.connect("autodoc-skip-member", skip_named_tuple_field)
    app.connect("builder-inited", lambda app: reference.write(Path(app.srcdir)))
