"""The sources of plug-ins, which help, list, cite and reports print.

A class names its source in ``source = "algorithm 3 of @yuan2021"``. @KEY is an entry of catalogue.bib, or an entry that
the text contains in full, as in ``source = "algorithm 2 of @article{me2026, author = {..}, ..}"``. The source of a
class without a paper starts with a word of ``UNPUBLISHED``. Sources are not inherited.
"""

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fcorun.errors import UserError, suggest_name

UNPUBLISHED = ("ours", "textbook", "yours")

_ENTRY = re.compile(r"@(\w+)\s*\{\s*([^\s,{}]+)\s*,")
_KEY = re.compile(r"(?<!\w)@(\w[\w:-]*)")
# TeX commands other than accents, signs, letters and fonts, since the reader's LaTeX typesets other people's entries
_HARMLESS = "[cvuHkrbdtijoOlL]|ss|ae|AE|oe|OE|aa|AA|emph|text(?:bf|it|sc|tt)"
_COMMAND = re.compile(rf"\^\^|\\(?!(?:{_HARMLESS})(?![A-Za-z]))[A-Za-z]+")
_FIELD = re.compile(r"(\w+)\s*=\s*")


@dataclass(frozen=True)
class BibEntry:
    """A BibTeX entry: its key, its text, and its fields by lower-case name."""

    key: str
    text: str
    fields: dict[str, str]

    @property
    def label(self) -> str:
        """Authors and year, "Yuan, Zaheer and Reddi (2021)"; more than three authors become "Yuan et al."."""
        names = [_family_name(name) for name in re.split(r"\s+and\s+", self.fields.get("author", self.key))]
        authors = f"{names[0]} et al."
        if len(names) <= 3:
            authors = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
        return f"{authors} ({self.fields['year']})" if self.fields.get("year") else authors


@dataclass(frozen=True)
class Source:
    """The source of a plug-in: the text with labels for entries, and the entries. Both are empty without a source."""

    text: str = ""
    entries: tuple[BibEntry, ...] = ()


def read_source(plugin: type) -> Source:
    """Return the source that a plug-in's class names. Raises UserError for unknown keys and malformed entries."""
    text = vars(plugin).get("source", "")
    field_names = {f.name for f in dataclasses.fields(plugin)} if dataclasses.is_dataclass(plugin) else set()
    if not isinstance(text, str) or "source" in field_names:  # an option of the plug-in
        return Source()
    try:
        return parse_source(text)
    except UserError as error:
        raise UserError(f"{plugin.__name__}.source: {error}") from error


def parse_source(text: str) -> Source:
    """Replace the keys and entries of a source text by labels. Raises UserError as ``read_source``."""
    entries = []
    with_keys = ""
    end = 0
    for entry, start, stop in _find_entries(text):
        entries.append(entry)
        with_keys += f"{text[end:start]}@{entry.key}"
        end = stop
    with_keys = " ".join((with_keys + text[end:]).split())
    known = load_catalogue() | {entry.key: entry for entry in entries}
    keys = list(dict.fromkeys(_KEY.findall(with_keys)))
    for key in keys:
        if key not in known:
            raise UserError(
                f"there is no entry @{key}: give it in full, @article{{{key}, ...}}, or {suggest_name(key, known)}"
            )
    labelled = _KEY.sub(lambda match: known[match[1]].label, with_keys)
    return Source(labelled, tuple(known[key] for key in keys))


@cache
def load_catalogue() -> dict[str, BibEntry]:
    """Return the entries of catalogue.bib by key. The entry of fcorun itself has the key "fcorun"."""
    text = Path(__file__).with_name("catalogue.bib").read_text(encoding="utf-8")
    return {entry.key: entry for entry, *_ in _find_entries(text)}


def entry_from_record(text: str) -> BibEntry:
    """Return the entry that a record stores: the catalogue's entry with its key, else the entry as written.

    Raises UserError unless the text is a single entry, and for an entry whose TeX commands do more than typeset text.
    """
    entries = list(_find_entries(text))
    if len(entries) != 1 or entries[0][1:] != (0, len(text)):
        raise UserError("what its record notes is not one entry of BibTeX")
    entry = entries[0][0]
    if entry.key not in load_catalogue() and (command := _COMMAND.search(text)):
        raise UserError(f"the entry @{entry.key} of its record has {command[0]}, which may be a command to LaTeX")
    return load_catalogue().get(entry.key, entry)


def _find_entries(text: str) -> Iterator[tuple[BibEntry, int, int]]:
    """Yield each entry of a text, with its start and end."""
    stop = 0
    while match := _ENTRY.search(text, stop):
        stop = _find_closing_brace(text, text.index("{", match.start()), match[2])
        fields = dict(_read_fields(text[match.end() : stop - 1], match[2]))
        yield BibEntry(match[2], text[match.start() : stop], fields), match.start(), stop


def _read_fields(body: str, key: str) -> Iterator[tuple[str, str]]:
    """Yield the names and values of an entry's fields, without the delimiters of the values."""
    position = 0
    while match := _FIELD.search(body, position):
        start = match.end()
        if body[start : start + 1] == "{":
            position = _find_closing_brace(body, start, key)
            value = body[start + 1 : position - 1]
        elif body[start : start + 1] == '"':
            position = body.find('"', start + 1) + 1 or len(body)
            value = body[start + 1 : position - 1]
        else:
            position = start + len(re.match(r"[^,]*", body[start:])[0])  # type: ignore[index]
            value = body[start:position]
        yield match[1].lower(), " ".join(value.split())


def _find_closing_brace(text: str, start: int, key: str) -> int:
    """Return the position after the brace that closes the one at ``start``."""
    depth = 0
    for position in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return position + 1
    raise UserError(f"the entry @{key} has a brace that is not closed")


def _family_name(name: str) -> str:
    """Return the family name: the text before a comma, or within braces, or the last word."""
    if name.startswith("{") and name.endswith("}"):
        return name.strip("{}")
    first, comma, _ = name.partition(",")
    return (first if comma else name.split()[-1]).replace("{", "").replace("}", "").strip()
