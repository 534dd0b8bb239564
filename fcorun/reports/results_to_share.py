"""The results in a folder, and their texts without places of this machine, for pages and archives that others get."""

import csv
import html
import io
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import markupsafe

from fcorun.base.errors import UserError
from fcorun.base.records.contents import FIGURE, STATUS
from fcorun.base.records.few_rows import LEAST_ROWS, name_few
from fcorun.base.records.record import (
    PERMUTATION_FILE,
    SELECTION_FILE,
    STABILITY_FILE,
    Record,
    check_folder,
    load_records,
)
from fcorun.base.records.single_patients import SENTENCES, change_texts, hide_row_numbers
from fcorun.base.records.sweep_settings import SETTINGS_FILE
from fcorun.reports.problem_values import names_a_folder

COMPARISON_FILE = "comparison.json"
KINDS = {  # of results, by a file that only results of the kind have
    STATUS.name: "run",
    SETTINGS_FILE: "sweep",
    SELECTION_FILE: "selection",
    STABILITY_FILE: "stability",
    PERMUTATION_FILE: "permutation",
    COMPARISON_FILE: "comparison",
    FIGURE.name: "figure",
}
_NAME = r"[\w.~@+%-]"
_BEFORE = r"(?<![^\s'\"`()\[{=:,;>])(?<!base64,)"  # of a path, but not of a level such as -/- or a unit such as mg/kg/d
_FOLDERS = re.compile(
    rf"\bfile:/+(?:{_NAME}+/)*"
    rf"|{_BEFORE}~/(?:{_NAME}+/)*"
    rf"|{_BEFORE}/(?:{_NAME}+/){{2,}}"
    rf"|{_BEFORE}/{_NAME}+/(?={_NAME}*\.\w)"
    r"|(?<!\w)[A-Za-z]:[\\/]+(?:[^\\/:*?\"'<>|,\s]+[\\/]+)+"
)

_SPELLINGS: tuple[Callable[[str], str], ...] = (  # of a text: in a table, in HTML, in a template, in JSON within HTML
    *(str, html.escape, lambda text: str(markupsafe.escape(text)), lambda text: json.dumps(text)[1:-1]),
)


def find_results(root: Path) -> dict[Path, str]:
    """Return the kind of each result in and under a folder, by its folder; the runs of a study are no results.

    Raises UserError for a folder that is not there, or without results.
    """
    check_folder(root)
    results: dict[Path, str] = {}
    for folder, subfolders, files in os.walk(root):
        kinds = [kind for name, kind in KINDS.items() if name in files]
        if kinds:
            results[Path(folder)] = kinds[-1]
            subfolders.clear()
        subfolders.sort()
    if not results:
        raise UserError(f"{root} holds no results; give a folder that fcorun has written, such as outputs")
    return dict(sorted(results.items()))


def describe_few(folders: Sequence[Path], records: Sequence[Record]) -> str:
    """Return a sentence that names what few rows make up on the page of some folders with records; "" for nothing.

    A page of several records has a table of them.
    """
    runs = [record.folder for record in records]
    names = name_few([*folders, *runs]) if len(runs) == 1 else name_few(folders, in_table=runs)
    if not names:
        return ""
    return (
        f"the page has numbers of fewer than {LEAST_ROWS} rows, groups or events ({names}), which tell of single "
        "patients: read it before you send it"
    )


class PathCutter:
    """Takes the folders out of absolute paths in a result, of which the names of files remain.

    A value is cut if it is a path that a configuration holds; sentences are cut where they name one, or another path
    in two folders or more. Names of columns, levels, classes and clients stay as they are.
    """

    def __init__(self, folder: Path):
        """Learn the paths of the configurations in and under ``folder``."""
        home = os.path.expanduser("~")  # which stays "~" where it is not known
        self._home = Path(home).name
        self._known = {home: "~"}
        for record in load_records(folder):
            for text in _list_texts(record.config_or_empty):
                if names_a_folder(text):
                    self._known[text] = self._cut_path(text)
        self._known.pop("/", None)  # the home folder of some containers
        self._shown = {}
        for path, name in self._known.items():
            self._shown |= {write(path): write(name) for write in _SPELLINGS}
        longest_first = sorted(self._shown, key=len, reverse=True)
        self._pattern = re.compile(rf"(?<![\w+/])(?:{'|'.join(map(re.escape, longest_first)) or '(?!)'})(?!\w)")

    def _cut_path(self, text: str) -> str:
        name = re.split(r"[\\/]", text.rstrip("\\/"))[-1]
        return "~" if name == self._home else name

    def cut_sentence(self, text: str) -> str:
        """Return a text for readers, of plain letters or HTML, without the folders of absolute paths."""
        return _FOLDERS.sub("", self._pattern.sub(lambda match: self._shown[match[0]], text))

    def cut_content(self, content: dict[str, Any]) -> dict[str, Any]:
        """Return the content of a JSON file or a configuration without the folders of absolute paths."""
        return change_texts(content, self._cut_text)

    def _cut_text(self, text: str, is_sentence: bool) -> str:
        return hide_row_numbers(self.cut_sentence(text)) if is_sentence else self._known.get(text, text)

    def cut_table(self, text: str) -> str:
        """Return a table of runs as CSV without the folders of absolute paths."""
        rows = [*csv.reader(io.StringIO(text, newline=""))]
        sentences = {i for i, column in enumerate(rows[0] if rows else []) if column in SENTENCES}
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        for row in rows:
            writer.writerow([self._cut_text(cell, i in sentences) for i, cell in enumerate(row)])
        return buffer.getvalue()


def _list_texts(value: Any) -> Iterator[str]:
    """Yield the texts in a value of a configuration."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _list_texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _list_texts(item)
