"""The site builds without a warning and has every plug-in, and the notebook is what its text gives."""

import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from helpers import choice_names, plugin_class
from markdown_blocks import alike

from fcorun.base.config import SECTIONS
from fcorun.base.sources.catalogue import load_catalogue
from fcorun.experiment.configuration.key_docs import GROUPS, read_root_keys
from fcorun.interface.cli.commands import COMMANDS
from fcorun.studies.figures.spec import list_figures

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_is_whole(tmp_path):
    """Built in a process of its own, as a reader builds it."""
    site = tmp_path / "site"
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-d", tmp_path / "trees", DOCS, site]
    built = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    assert (built.returncode, built.stderr) == (0, "")
    has_every_choice_with_its_code(site)
    has_every_key_command_figure_and_source(site)
    loads_nothing_from_elsewhere(site)


def page(site: Path, name: str) -> str:
    return (site / f"{name}.html").read_text(encoding="utf-8")


def has_every_choice_with_its_code(site: Path) -> None:
    for group in GROUPS:
        for name in choice_names(group):
            text = page(site, f"reference/algo-{name}" if group == "algo" else f"reference/{group.rpartition('/')[2]}")
            assert f"{group}={name}<" in text
    assert "soft_threshold" in page(site, "reference/reg")
    assert "<math" in page(site, "reference/algo-feddualavg")


def has_every_key_command_figure_and_source(site: Path) -> None:
    keys, commands = page(site, "reference/keys"), page(site, "reference/commands")
    assert all(f">{key}<" in keys for key, about in read_root_keys().items() if about.value)
    assert all(f"usage: fcorun {command}" in commands for command in COMMANDS)
    gallery, sources = page(site, "reference/gallery"), page(site, "reference/sources")
    assert all(f"fcorun figure {name}\n" in gallery for name in list_figures())
    assert all(f'id="{key}"' in sources for key in load_catalogue())


def loads_nothing_from_elsewhere(site: Path) -> None:
    """Scripts, styles, fonts and pictures are the site's own; what draws diagrams is fetched, if it can be."""
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        found = re.findall(r'<(?:script|img|link)[^>]*(?:src|href)="(https?://[^"]+)"', text)
        assert found == [] or path.stem == "architecture", path
    assert "@import url(http" not in "".join(path.read_text() for path in site.rglob("*.css"))


def test_the_guide_names_every_choice():
    told = (DOCS / "guide" / "choices.md").read_text(encoding="utf-8")
    groups = [name for name in SECTIONS if name != "tracker"]
    assert [name for group in groups for name in choice_names(group) if f"`{name}`" not in told] == []


@pytest.mark.parametrize("name", choice_names("algo"))
def test_every_algorithm_has_its_mathematics(name):
    kind = plugin_class("algo", name)
    assert "$" in (DOCS / "equations" / f"{kind.__name__}.md").read_text(encoding="utf-8")


def headings(page: Path) -> set[str]:
    text = page.read_text(encoding="utf-8")
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in re.findall(r"^#+ (.+)$", text, re.M)}


@pytest.mark.parametrize("page", [*DOCS.glob("*.md"), *DOCS.glob("*/*.md"), *DOCS.parent.glob("*.md")], ids=str)
def test_every_link_of_a_clone_leads_to_a_file(page):
    """The pages of docs/reference are in the site alone."""
    if page.parent.name == "reference":
        return
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s#]+)[^)]*\)", text):
        if not re.match(r"\w+:", target):
            assert (page.parent / target).exists(), target


def test_what_the_readme_points_to_is_there():
    """Sphinx asks as much of the pages of the site."""
    readme = DOCS.parent / "README.md"
    targets = re.findall(r"\]\(([^)]+)\)", readme.read_text(encoding="utf-8"))
    targets = [target.partition("#") for target in targets if not target.startswith("http")]
    assert len(targets) > 20
    for name, _, heading in targets:
        page = DOCS.parent / name if name else readme
        assert page.is_file(), name
        assert not heading or heading in headings(page), (name, heading)


@pytest.mark.slow
def test_the_notebook_is_what_its_text_gives(tmp_path):
    """Its cells are those of the text, and what they print today is what it shows, numbers to a tenth."""
    command = [sys.executable, str(DOCS / "make_notebook.py"), str(tmp_path / "new.ipynb")]
    made = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert made.returncode == 0, made.stderr
    shown, found = (nbformat.read(path, as_version=4) for path in (DOCS / "four_clinics.ipynb", tmp_path / "new.ipynb"))
    assert [cell.source for cell in shown.cells] == [cell.source for cell in found.cells]
    for one, other in zip(shown.cells, found.cells, strict=True):
        texts, texts_now = texts_of_outputs(one), texts_of_outputs(other)
        assert texts.keys() == texts_now.keys()
        for kind, text in texts.items():
            for line, line_now in zip(text.splitlines(), texts_now[kind].splitlines(), strict=True):
                assert alike(line, line_now), (line, line_now)


def texts_of_outputs(cell) -> dict[str, str]:
    """Return the text of a cell's outputs by stream or media types: time decides how a stream is cut."""
    texts: dict[str, str] = {}
    for output in cell.get("outputs", []):
        kind = output.get("name") or " ".join(output["data"])
        texts[kind] = texts.get(kind, "") + (output.get("text") or output["data"]["text/plain"] + "\n")
    return texts
