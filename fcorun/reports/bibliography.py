"""The bibliography of records: BibTeX of fcorun and of the sources of their plug-ins."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from fcorun.base.config import IDENTITY_SECTIONS, SECTIONS
from fcorun.base.errors import UserError
from fcorun.base.records.record import Record, is_refit_of_stability
from fcorun.base.records.tables import INTERVALS
from fcorun.base.sources.catalogue import BibEntry, Source, entry_from_record, load_catalogue, parse_source, read_source
from fcorun.base.system.machine import fcorun_version
from fcorun.base.trust import is_free_to_import, locate
from fcorun.results.inference.methods import METHODS, MODEL_ERRORS, SOURCES, find_sources

STABILITY_SOURCE = "@meinshausen2010, with complementary pairs of halves of @shah2013"


@dataclass(frozen=True)
class CitedPlugin:
    """A plug-in of some records, with its source.

    Attributes:
        names: its names in the configurations, as algo=fedadam.
        source: the source that its class names; empty if its class names none.
        error: why the source is not known, or "".
    """

    names: tuple[str, ...]
    source: Source = field(default_factory=Source)
    error: str = ""


def find_cited_plugins(records: Sequence[Record]) -> list[CitedPlugin]:
    """Return the plug-ins of records, each class once, in the order of the sections.

    The source of a user's class is read from summary.json, since the class itself is not imported. For runs that have
    not ended, only the sources of classes that need no trust are known.
    """
    plugins: list[CitedPlugin] = []
    for section in IDENTITY_SECTIONS:
        names_of_class: dict[str, set[str]] = {}
        recorded_sources: dict[str, Mapping[str, Any]] = {}
        for record in records:
            config = record.config_or_empty
            settings = config and (config.get(section) or SECTIONS[section].default)
            if not isinstance(settings, Mapping) or "class" not in settings:
                continue
            path = str(settings["class"])
            names_of_class.setdefault(path, set()).add(str(settings.get("name", path)))
            sources = record.summary_or_empty.get("sources")
            if isinstance(sources, Mapping) and isinstance(sources.get(section), Mapping):
                recorded_sources.setdefault(path, sources[section])
        for path, names in sorted(names_of_class.items(), key=lambda item: sorted(item[1])):
            plugins.append(_read_plugin(section, path, sorted(names), recorded_sources.get(path)))
    return plugins


def _find_cited_intervals(records: Sequence[Record]) -> list[CitedPlugin]:
    """Return the methods of the records' intervals, each once, with their sources."""
    sources: dict[str, None] = {}
    for record in records:
        methods: set[str] = set()
        with suppress(UserError):
            methods = {method.partition(";")[0] for method in INTERVALS.read(record.folder).get("method", ())}
        has_hazards = str(record.flat_config.get("objective.class", "")).rpartition(".")[2] == "Cox"
        for name, title in METHODS.items():
            for method, is_robust in ((title, True), (title + MODEL_ERRORS, False)):
                if method in methods:
                    method_sources = find_sources(name, is_robust=is_robust, has_baseline_hazards=has_hazards)
                    sources |= dict.fromkeys(method_sources)
    if not sources:
        return []
    return [CitedPlugin(("fcorun infer",), parse_source("; ".join([*sources, SOURCES["clusters"], SOURCES["holm"]])))]


def build_bibliography(records: Sequence[Record]) -> str:
    """Return a BibTeX file: fcorun, then each entry that plug-ins of the records name, once.

    Comments before an entry say which plug-ins it is cited for. Comments at the end list plug-ins without an entry.
    """
    entries: dict[str, BibEntry] = {}
    comments: dict[str, list[str]] = {}
    remaining = []
    unread = sum(not record.config_or_empty for record in records)
    if unread:
        remaining.append(f"{unread} of {len(records)} records hold no configuration that can be read")
    plugins = find_cited_plugins(records)
    if any(map(is_refit_of_stability, records)):
        plugins.append(CitedPlugin(("fcorun stability",), parse_source(STABILITY_SOURCE)))
    for plugin in [*plugins, *_find_cited_intervals(records)]:
        names = ", ".join(plugin.names)
        for entry in plugin.source.entries:
            known = entries.setdefault(entry.key, entry)
            if known.text.split() != entry.text.split():
                remaining.append(
                    f"{names} names another entry {entry.key}, which is left out: give it a key of its own"
                )
                continue
            comments.setdefault(entry.key, []).append(f"{names}: {plugin.source.text}")
        if plugin.error or not plugin.source.entries:
            reason = plugin.error or plugin.source.text or "its class names no source"
            remaining.append(f"{names}: no entry ({reason})")
    made = "this record" if len(records) == 1 else f"these {len(records)} records"
    made_by = set()
    for record in records:
        summary = record.summary_or_empty
        number = str(summary.get("versions", {}).get("fcorun"))
        commit = re.match("[0-9a-f]{10}", str(summary.get("git")))
        if re.fullmatch("[0-9][0-9A-Za-z.+-]{0,40}", number):  # no other text of a stranger's record goes into LaTeX
            made_by.add(f"version {number}" + (f", commit {commit[0]}" if commit else ""))
    note = "; ".join(sorted(made_by) or [f"version {fcorun_version()}"]).capitalize()
    fcorun_entry = load_catalogue()["fcorun"].text.removesuffix("}")
    blocks = [f"{_format_comment(f'fcorun, which made {made}')}\n{fcorun_entry}  note   = {{{note}}},\n}}"]
    for key, entry in entries.items():
        blocks.append("\n".join([*map(_format_comment, comments[key]), entry.text]))
    if remaining:
        blocks.append("\n".join(map(_format_comment, remaining)))
    return "\n\n".join(blocks) + "\n"


def _read_plugin(section: str, path: str, names: Sequence[str], recorded: Mapping[str, Any] | None) -> CitedPlugin:
    """Return a plug-in with the source that a summary recorded, or else the one that its class names."""
    labels = tuple(f"{section}={name}" for name in names)
    try:
        if recorded is not None:
            entries = tuple(entry_from_record(str(text)) for text in recorded.get("entries") or ())
            source = Source(str(recorded.get("text", "")), entries)
            return CitedPlugin(labels, source, str(recorded.get("trouble", "")))
        if is_free_to_import(path.rpartition(".")[0]):
            return CitedPlugin(labels, read_source(locate(path, f"{section}.class")))
    except UserError as error:
        return CitedPlugin(labels, error=str(error))
    return CitedPlugin(
        labels, error="no run has ended, and a run stores the sources of the user's plug-ins when it ends"
    )


def _format_comment(text: str) -> str:
    """Return a line that BibTeX skips: without @, after which BibTeX expects an entry anywhere."""
    return f"% {' '.join(text.split())}".replace("@", "(at)")
