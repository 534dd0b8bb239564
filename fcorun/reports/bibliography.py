"""What to cite for records: BibTeX of fcorun and of what their plug-ins come from."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from yaml import YAMLError

from fcorun.config import locate
from fcorun.errors import UserError
from fcorun.records.formats import read_summary
from fcorun.records.record import Record
from fcorun.sections import IDENTITY_SECTIONS, SECTIONS
from fcorun.sources.catalogue import BibEntry, Source, entry_from_record, load_catalogue, read_source
from fcorun.trust import is_free_to_import


@dataclass(frozen=True)
class CitedPlugin:
    """A plug-in that records name.

    Attributes:
        names: what it is called there, as algo=fedadam.
        source: what its class says of where it comes from; empty where it says nothing.
        trouble: why that is not known, or nothing.
    """

    names: tuple[str, ...]
    source: Source = field(default_factory=Source)
    error: str = ""


def find_cited_plugins(records: Sequence[Record]) -> list[CitedPlugin]:
    """Return the plug-ins of records, each class once, in the order of the sections.

    What a class says of its source is read from a summary, for the class itself is not imported; of runs that have not
    come to their end, only that of classes that need no trust is known.
    """
    found: dict[tuple[str, str], set[str]] = {}
    sources: dict[tuple[str, str], Mapping[str, Any]] = {}
    for record in records:
        noted = read_summary(record.folder).get("sources")
        for section in IDENTITY_SECTIONS if (config := _config(record)) else ():
            values = config.get(section) or SECTIONS[section].default
            if isinstance(values, Mapping) and "class" in values:
                path = str(values["class"])
                found.setdefault((section, path), set()).add(str(values.get("name", path)))
                if isinstance(noted, Mapping) and isinstance(noted.get(section), Mapping):
                    sources.setdefault((section, path), noted[section])
    order = sorted(found.items(), key=lambda item: (IDENTITY_SECTIONS.index(item[0][0]), sorted(item[1])))
    return [_used(place, names, sources.get(place)) for place, names in order]


def build_bibliography(records: Sequence[Record]) -> str:
    """A file of BibTeX: fcorun, then each entry that plug-ins of the records name, once, below comments on what it is
    cited for; last, comments on those that name none."""
    entries: dict[str, tuple[BibEntry, list[str]]] = {}
    unread = sum(not _config(record) for record in records)
    rest = [f"{unread} of {len(records)} records hold no configuration that can be read"] if unread else []
    for plugin in find_cited_plugins(records):
        names = ", ".join(plugin.names)
        for entry in plugin.source.entries:
            known, comments = entries.setdefault(entry.key, (entry, []))
            if " ".join(known.text.split()) != " ".join(entry.text.split()):
                rest.append(f"{names} names another entry {entry.key}, which is left out: give it a key of its own")
                continue
            comments.append(f"{names}: {plugin.source.text}")
        if plugin.error or not plugin.source.entries:
            told = plugin.error or plugin.source.text or "its class does not say where it comes from"
            rest.append(f"{names}: no entry ({told})")
    blocks = [_itself(records), *("\n".join([*map(_comment, said), e.text]) for e, said in entries.values())]
    return "\n\n".join([*blocks, *(["\n".join(map(_comment, rest))] if rest else [])]) + "\n"


def _used(place: tuple[str, str], names: set[str], noted: Mapping[str, Any] | None) -> CitedPlugin:
    """Return a plug-in with its source, as a summary notes it, or where none does as its class says."""
    section, path = place
    called = tuple(f"{section}={name}" for name in sorted(names))
    try:
        if noted is None and not is_free_to_import(path.rpartition(".")[0]):
            return CitedPlugin(
                called, error="a run notes where its own plug-ins come from when it ends, and here none did"
            )
        if noted is None:
            return CitedPlugin(called, read_source(locate(path, f"{section}.class")))
        entries = tuple(entry_from_record(str(text)) for text in noted.get("entries") or ())
    except UserError as error:
        return CitedPlugin(called, error=str(error))
    return CitedPlugin(called, Source(str(noted.get("text", "")), entries), str(noted.get("trouble", "")))


def _config(record: Record) -> dict[str, Any]:
    try:
        return record.config if isinstance(record.config, dict) else {}
    except (OSError, YAMLError):
        return {}


def _itself(records: Sequence[Record]) -> str:
    """The entry of fcorun, with the versions that made the records."""
    made = sorted(set(_versions(records))) or [f"version {version('fcorun')}"]
    entry = load_catalogue()["fcorun"].text
    note = "; ".join(made).capitalize()
    head = f"fcorun, which made {'this record' if len(records) == 1 else f'these {len(records)} records'}"
    return f"{_comment(head)}\n{entry.removesuffix('}')}  note   = {{{note}}},\n}}"


def _versions(records: Sequence[Record]) -> Iterator[str]:
    for record in records:
        try:
            summary = record.summary
        except FileNotFoundError:
            continue
        if made := (summary.get("versions") or {}).get("fcorun"):
            yield f"version {made}" + (f", commit {str(summary['git'])[:10]}" if summary.get("git") else "")


def _comment(text: str) -> str:
    """A line that BibTeX skips: it takes what follows an @ for an entry, wherever that stands."""
    return f"% {' '.join(text.split())}".replace("@", "(at)")
