"""The sources of plug-ins, which help, list, cite and reports print.

A class names its source in ``source = "algorithm 3 of @yuan2021"``. @KEY is an entry of catalogue.bib, or an entry of
the class itself, ``bibtex = "@article{me2026, author = {..}, ..}"``. The source of a class without a paper starts with
a word of ``UNPUBLISHED``. Neither attribute is inherited.
"""

import dataclasses
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fcorun.base.errors import UserError, suggest_name

if TYPE_CHECKING:
    from pybtex.database import Person

UNPUBLISHED = ("ours", "textbook", "yours")

_KEY = re.compile(r"(?<!\w)@(\w[\w:./+-]*)")  # and punctuation behind the key
# TeX commands other than accents, signs, letters and fonts, since the reader's LaTeX typesets other people's entries
_HARMLESS = "[cvuHkrbdtijoOlL]|ss|ae|AE|oe|OE|aa|AA|emph|text(?:bf|it|sc|tt)"
_COMMAND = re.compile(rf"\^\^|\\(?!(?:{_HARMLESS})(?![A-Za-z]))[A-Za-z]+")


@dataclass(frozen=True)
class BibEntry:
    """A BibTeX entry.

    Attributes:
        key: its key.
        text: the entry as written.
        fields: its fields by lower-case name, without the delimiters of the values.
        authors: its authors.
    """

    key: str
    text: str
    fields: dict[str, str]
    authors: "tuple[Person, ...]"

    @property
    def label(self) -> str:
        """Authors and year, "Yuan, Zaheer and Reddi (2021)"; more than three authors become "Yuan et al."."""
        names = []
        for person in self.authors:
            parts = [*(person.prelast_names or []), *(person.last_names or [])]
            names.append(re.sub("[{}]", "", " ".join(parts)))
        if len(names) > 3:
            label = f"{names[0]} et al."
        else:
            label = " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]])) or self.key
        return f"{label} ({self.fields['year']})" if self.fields.get("year") else label


@dataclass(frozen=True)
class Source:
    """The source of a plug-in: the text with labels for entries, and the entries. Both are empty without a source."""

    text: str = ""
    entries: tuple[BibEntry, ...] = ()


def read_source(plugin: type) -> Source:
    """Return the source that a plug-in's class names. Raises UserError for unknown keys and malformed entries."""
    try:
        return parse_source(_class_text(plugin, "source"), _class_text(plugin, "bibtex"))
    except UserError as error:
        raise UserError(f"{plugin.__name__}.{error}") from error


@cache  # the runs of a sweep have the same plug-ins
def describe_source(plugin: type) -> dict[str, Any]:
    """Return the source of a plug-in with its BibTeX entries, so that readers need not import the plug-in's class."""
    try:
        source = read_source(plugin)
    except UserError as error:
        return {"text": "", "entries": [], "trouble": str(error)}
    return {"text": source.text, "entries": [entry.text for entry in source.entries]}


def _class_text(plugin: type, name: str) -> str:
    """Return a text that a class itself defines; "" if it defines none, or if the name is an option of the plug-in."""
    options = dataclasses.fields(plugin) if dataclasses.is_dataclass(plugin) else ()
    text = vars(plugin).get(name, "")
    return text if isinstance(text, str) and name not in {option.name for option in options} else ""


def parse_source(text: str, bibtex: str = "") -> Source:
    """Replace the keys in a source text by labels of the entries in ``bibtex`` and in the catalogue.

    Without a text, the source is all entries in ``bibtex``. Raises UserError as ``read_source``.
    """
    try:
        entries = {entry.key: entry for entry in parse_bibtex(bibtex)}
    except UserError as error:
        raise UserError(f"bibtex: {error}") from error
    text = " ".join(text.split())
    if not text:
        return Source(", ".join(entry.label for entry in entries.values()), tuple(entries.values()))
    catalogue = load_catalogue()
    named = {}

    def replace_key(match: re.Match[str]) -> str:
        key = match[1]
        while key and key not in entries and key not in catalogue:
            key = re.sub(r"(?:\w+|\W)$", "", key)  # without its last word or sign
        if not key:
            key = match[1].rstrip(":./+-")
            hint = suggest_name(key, [*entries, *catalogue])
            raise UserError(f"source: there is no entry @{key}: add bibtex = '@article{{{key}, ...}}', or {hint}")
        named[key] = entries.get(key) or catalogue[key]
        return named[key].label + match[1][len(key) :]

    return Source(_KEY.sub(replace_key, text), tuple(named.values()))


@cache
def load_catalogue() -> dict[str, BibEntry]:
    """Return the entries of catalogue.bib by key. That of fcorun itself has the key "fcorun"."""
    text = Path(__file__).with_name("catalogue.bib").read_text(encoding="utf-8")
    return {entry.key: entry for entry in parse_bibtex(text)}


def entry_from_record(text: str) -> BibEntry:
    """Return the entry that a record stores: the catalogue's entry with its key, else the entry as written.

    Raises UserError unless the text is a single entry, and for an entry whose TeX commands do more than typeset text.
    """
    entries = parse_bibtex(text)
    if len(entries) != 1 or entries[0].text != text:
        raise UserError("the entry in its record is not a single BibTeX entry")
    entry = entries[0]
    if entry.key not in load_catalogue() and (command := _COMMAND.search(text)):
        raise UserError(f"the entry @{entry.key} of its record has {command[0]}, which may be a command to LaTeX")
    return load_catalogue().get(entry.key, entry)


def parse_bibtex(text: str) -> list[BibEntry]:
    """Return the entries of a BibTeX text. Raises UserError for other texts, and for @string and @preamble.

    The text of an entry is taken from ``text``: pybtex's writer would escape characters that are escaped already.
    """
    from pybtex.bibtex.utils import split_name_list
    from pybtex.database import Person
    from pybtex.database.input.bibtex import LowLevelParser, month_names
    from pybtex.exceptions import PybtexError

    parser: Any = LowLevelParser(text, macros=dict(month_names))  # a @string would change the macros
    entries = []
    try:
        for command, body in parser:
            if command.lower() in ("string", "preamble"):
                raise UserError(f"@{command} is no entry: write its text into the entries")
            key, fields = body
            values = {name.lower(): " ".join("".join(parts).split()) for name, parts in fields}
            authors = tuple(map(Person, split_name_list(values.get("author", ""))))
            entries.append(BibEntry(key, text[parser.command_start : parser.pos], values, authors))
    except PybtexError as error:
        raise UserError(f"not BibTeX: {error}") from error
    return entries
