"""Where a plug-in comes from. Its class says it once, and what reads it are help, list, cite and reports.

``source = "algorithm 3 of @yuan2021"``: text in which @KEY is an entry of catalogue.bib, or one that the text itself
holds in full, as ``source = "algorithm 2 of @article{me2026, author = {..}, ..}"``. What has no paper begins with a
word of ``UNPUBLISHED``. It is not inherited: a class that says nothing has no source.
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
# commands of TeX but for accents, signs, letters and fonts: an entry from somebody else is set by the reader's LaTeX
_HARMLESS = "[cvuHkrbdtijoOlL]|ss|ae|AE|oe|OE|aa|AA|emph|text(?:bf|it|sc|tt)"
_COMMAND = re.compile(rf"\^\^|\\(?!(?:{_HARMLESS})(?![A-Za-z]))[A-Za-z]+")
_FIELD = re.compile(r"(\w+)\s*=\s*")


@dataclass(frozen=True)
class BibEntry:
    """An entry of BibTeX: its key, its text as it is written, and its fields by their names in small letters."""

    key: str
    text: str
    fields: dict[str, str]

    @property
    def label(self) -> str:
        """Authors and year, "Yuan, Zaheer and Reddi (2021)"; of more than three authors the first one."""
        names = [_family(name) for name in re.split(r"\s+and\s+", self.fields.get("author", self.key))]
        told = f"{names[0]} et al."
        if len(names) <= 3:
            told = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
        return f"{told} ({self.fields['year']})" if self.fields.get("year") else told


@dataclass(frozen=True)
class Source:
    """What a plug-in says of where it comes from: the text with labels for entries, and these; both empty: nothing."""

    text: str = ""
    entries: tuple[BibEntry, ...] = ()


def read_source(plugin: type) -> Source:
    """What a plug-in's class itself says. Raises UserError for a key of no entry, and for an entry that is broken."""
    said = vars(plugin).get("source", "")
    if not isinstance(said, str) or "source" in {f.name for f in _fields(plugin)}:  # an option of the user's
        return Source()
    try:
        return parse_source(said)
    except UserError as error:
        raise UserError(f"{plugin.__name__}.source: {error}") from error


def parse_source(said: str) -> Source:
    """The text of a source with labels for its keys and entries. Raises UserError as ``source_of``."""
    entries, text, end = [], "", 0
    for entry, start, stop in _entries(said):
        entries.append(entry)
        text, end = f"{text}{said[end:start]}@{entry.key}", stop
    text = " ".join((text + said[end:]).split())
    known = load_catalogue() | {entry.key: entry for entry in entries}
    keys = list(dict.fromkeys(_KEY.findall(text)))
    for key in keys:
        if key not in known:
            raise UserError(
                f"there is no entry @{key}: give it in full, @article{{{key}, ...}}, or {suggest_name(key, known)}"
            )
    return Source(_KEY.sub(lambda found: known[found[1]].label, text), tuple(known[key] for key in keys))


@cache
def load_catalogue() -> dict[str, BibEntry]:
    """The entries of catalogue.bib by key; that of fcorun itself is "fcorun"."""
    return {e.key: e for e, *_ in _entries(Path(__file__).with_name("catalogue.bib").read_text(encoding="utf-8"))}


def entry_from_record(text: str) -> BibEntry:
    """Return the entry that a record notes: that of the catalogue by the same key, else the text as it stands.

    Raises UserError for a text that is not one entry alone, and for one that would have LaTeX do more than set text.
    """
    found = list(_entries(text))
    if len(found) != 1 or found[0][1:] != (0, len(text)):
        raise UserError("what its record notes is not one entry of BibTeX")
    entry = found[0][0]
    if entry.key not in load_catalogue() and (command := _COMMAND.search(text)):
        raise UserError(f"the entry @{entry.key} of its record has {command[0]}, which may be a command to LaTeX")
    return load_catalogue().get(entry.key, entry)


def _fields(plugin: type) -> tuple[dataclasses.Field, ...]:
    return dataclasses.fields(plugin) if dataclasses.is_dataclass(plugin) else ()


def _entries(text: str) -> Iterator[tuple[BibEntry, int, int]]:
    """Each entry in a text, with where it begins and ends."""
    stop = 0
    while found := _ENTRY.search(text, stop):
        stop = _closing(text, text.index("{", found.start()), found[2])
        fields = dict(_read(text[found.end() : stop - 1], found[2]))
        yield BibEntry(found[2], text[found.start() : stop], fields), found.start(), stop


def _read(body: str, key: str) -> Iterator[tuple[str, str]]:
    """The fields of an entry, names = {values}, without what encloses the values."""
    at = 0
    while found := _FIELD.search(body, at):
        begin = found.end()
        if body[begin : begin + 1] == "{":
            at = _closing(body, begin, key)
            value = body[begin + 1 : at - 1]
        elif body[begin : begin + 1] == '"':
            at = body.find('"', begin + 1) + 1 or len(body)
            value = body[begin + 1 : at - 1]
        else:
            at = begin + len(re.match(r"[^,]*", body[begin:])[0])  # type: ignore[index]
            value = body[begin:at]
        yield found[1].lower(), " ".join(value.split())


def _closing(text: str, begin: int, key: str) -> int:
    """Where the brace that opens at ``begin`` has been closed."""
    depth = 0
    for at in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return at + 1
    raise UserError(f"the entry @{key} has a brace that is not closed")


def _family(name: str) -> str:
    """A family name: what stands before a comma, or what is within braces, or the last word."""
    if name.startswith("{") and name.endswith("}"):
        return name.strip("{}")
    first, comma, _ = name.partition(",")
    return (first if comma else name.split()[-1]).replace("{", "").replace("}", "").strip()
