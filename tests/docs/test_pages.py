"""Commands of the README, the tutorial and the page on sites are run, and their output compared with the pages.

A page's blocks run in order in a folder of its own: of bash line by line, of Python in one namespace. A comment before
a block says otherwise: <!-- not run: REASON -->; <!-- file: NAME -->, which is written; <!-- files of: PAGE -->. A
block of text after another shows what that prints, line by line, with ... for any lines between.
"""

import runpy
import sys
from pathlib import Path

import pytest
from markdown_blocks import Block, alike, blocks, commands, missing

from fcorun import compose
from fcorun.experiment.configuration.compose import translate_folder
from fcorun.interface.cli.commands import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
TUTORIALS = [*sorted((ROOT / "docs" / "tutorial").glob("*.md")), ROOT / "docs" / "guide" / "sites.md"]
PAGES = [ROOT / "README.md", *TUTORIALS]


def write(block: Block) -> None:
    path = Path(block.marks["file"])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(block.text)


@pytest.fixture
def typed(fcorun, monkeypatch, capsys):
    """A function that runs the words of a line and gives what was printed; the line must come to a good end."""

    def run(words: list[str]) -> str:
        if words[0] == "fcorun":
            code, out, err = fcorun(*words[1:])
            assert code == 0, (words, out, err)
            return out + err
        assert words[0] == "python", f"{words} cannot be run here: mark its block <!-- not run: REASON -->"
        monkeypatch.setattr(sys, "argv", words[1:])
        try:
            runpy.run_path(str(ROOT / words[1]), run_name="__main__")
        except SystemExit as end:
            if end.code:
                pytest.fail(f"{words} ended with the code {end.code}")
        return capsys.readouterr().out

    return run


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::fcorun.ExperimentWarning")
@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_a_page_can_be_typed(page, typed, capsys, tmp_path, monkeypatch):
    namespace, modules = {}, set(sys.modules)
    for block in blocks(page.read_text(encoding="utf-8")):
        if other := block.marks.get("files of"):
            for file in blocks((page.parent / other).read_text(encoding="utf-8")):
                if "file" in file.marks:
                    write(file)
        if "not run" in block.marks:
            continue
        out = ""
        if "file" in block.marks:
            write(block)
        elif block.language == "bash":
            out = "".join(typed(words) for words in commands(block.text))
        else:
            assert block.language == "python", (
                f"{block.language}: mark it <!-- file: NAME --> or <!-- not run: REASON -->"
            )
            capsys.readouterr()
            exec(compile(block.text, page.name, "exec"), namespace)
            out = capsys.readouterr().out
        assert missing(block.shown, out) == [], f"{page.name} shows what did not come out of\n{block.text}\n{out}"
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.parametrize("page", sorted({*(ROOT / "docs" / "guide").glob("*.md")} - {*PAGES}), ids=lambda p: p.stem)
def test_what_the_guide_tells_to_type_is_well_formed(page):
    """Single runs compose, commands are there, Python is Python; what they do, other tests say."""
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.language == "python":
            compile(block.text, page.name, "exec")
        if block.language in ("python", "toml", "yaml"):
            continue
        assert block.language == "bash", page
        for words in commands(block.text):
            assert words[0] == "fcorun"
            if words[1] not in (*COMMANDS, "-m"):
                compose(translate_folder(words[1:]))


def test_every_page_is_found_with_its_blocks():
    assert [page.stem[0] for page in PAGES] == ["R", "1", "2", "3", "4", "s"]
    for page in PAGES:
        assert any(block.shown and "not run" not in block.marks for block in blocks(page.read_text(encoding="utf-8")))


def test_blocks_are_read_with_their_marks_and_outputs():
    page = "<!-- file: a/b.yaml -->\n```yaml\nx: 1\n```\n\n"
    page += "```bash\nfcorun a=1 \\\n  'b=[2, 3]'  # c\n\n```\n```text\nd\n...\n```\n"
    first, second = blocks(page)
    assert (first.language, first.text, first.marks, first.shown) == ("yaml", "x: 1\n", {"file": "a/b.yaml"}, [])
    assert (second.marks, second.shown) == ({}, ["d", "..."])
    assert commands(second.text) == [["fcorun", "a=1", "b=[2, 3]"]]


@pytest.mark.parametrize(
    ("shown", "lost"),
    [
        (["a 1.00  x", "...", "c"], []),
        (["a 1.05 x"], []),
        (["a 1.2 x"], ["a 1.2 x"]),
        (["run-0a1b2c3d"], []),
        (["run-0a1b2c3"], ["run-0a1b2c3"]),
        (["c", "a 1 x"], ["a 1 x"]),
        (["b"], ["b"]),
    ],
)
def test_what_is_shown_must_come_out(shown, lost):
    assert missing(shown, "a   1.0 x\nrun-aaaaaaaa\nc\n") == lost


@pytest.mark.parametrize(
    ("shown", "out", "same"),
    [
        ("0.003", "0.0041", False),
        ("0.003", "0.0039", True),
        ("2e-05", "3e-05", True),
        ("2e-05", "4e-05", False),
        ("0.02", "0.03", True),
        ("0.5", "0.6", False),
        ("9 runs", "8 runs", False),
        ("100 s", "109 s", True),
    ],
)
def test_small_numbers_are_compared_too(shown, out, same):
    assert alike(shown, out) == same
