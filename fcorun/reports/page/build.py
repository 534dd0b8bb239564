"""The page: one file of HTML with all that it needs, of a run, a sweep, a selection or a figure."""

import gzip
import time
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from importlib.util import find_spec
from pathlib import Path

from fcorun.errors import UserError
from fcorun.records.formats import read_json
from fcorun.records.record import SELECTION, Record
from fcorun.records.sweeps import MARK, Asked, kept
from fcorun.reports.citations import bibliography
from fcorun.reports.collect import latest, ordered, table
from fcorun.reports.page import about, curves, maps, models, runs, studies
from fcorun.reports.page.parts import Page, embedded, grid, notes, paragraph, rich_table, section
from fcorun.reports.pictures.draw import problems
from fcorun.reports.pictures.view import View, looks_of
from fcorun.reports.results import best_table
from fcorun.reports.table import Table


def library() -> Path:
    """Return the file of plotly's script, without importing plotly."""
    spec = find_spec("plotly")
    return Path((spec.submodule_search_locations or [""])[0] if spec else "", "package_data", "plotly.min.js")


def page(
    folders: Sequence[Path],
    records: Sequence[Record],
    *,
    metric: str | None = None,
    tail_rounds: int | None = None,
    comments: Mapping[str, str] | None = None,
) -> str:
    """The page of what is in and under ``folders``, whose records are given, as HTML.

    ``comments`` say what keys of the configuration mean. Raises UserError where there is nothing to show, and as
    ``Table.best``.
    """
    there = studies.studies(folders)
    if not records and not there:
        raise UserError(f"{', '.join(map(str, folders))} holds no records; give a folder that fcorun has written, "
                        "such as outputs")  # fmt: skip
    out = Page()
    of_figure = len(folders) == 1 and there == [folders[0]] and studies.is_figure(folders[0])
    kicker, title = studies.heading(folders)
    told = [line for folder in there for line in studies.show(out, folder, alone=of_figure)]
    if records:
        asked = _asked(folders).unless(metric=metric, tail_rounds=tail_rounds)
        records, aside = latest(records)
        records = ordered(records, asked.algos)
        root = folders[0] if len(folders) == 1 else None
        found = table(records, asked.tail_rounds, root=root)
        asked = asked.unless(metric=asked.metric or _chosen_by(there, found))
        what = [runs.sentence(records, found), runs.states(found, _absent(folders, asked)), aside]
        _add_runs(out, records, found, asked, above=what if of_figure else (), brief=bool(there))
        told += [] if of_figure else what
        title = title or runs.title(records, found)
        out.add("configuration", "Configuration", about.configuration(records, comments or {}))
        out.add("versions", "Versions", notes(about.versions(records)))
        out.add(
            "cite", "BibTeX of what was run", f'<pre tabindex="0">{escape(bibliography(records))}</pre>', folded=True
        )
    if of_figure:
        shown = ("figure", "best", "configuration", "versions")
        out.sections = [replace(each, folded=not each.name.startswith(shown)) for each in out.sections]
    return _html(out, kicker, title, [line for line in told if line])


def _asked(folders: Sequence[Path]) -> Asked:
    """What was asked for of these folders; of a figure, of its runs."""
    marked = [place for folder in folders for place in (folder, folder / "runs") if (place / MARK).exists()]
    return kept(*marked)


def _chosen_by(folders: Sequence[Path], found: Table) -> str | None:
    """The metric by which selections have chosen, where they agree and runs have measured it."""
    by = {str(by) for folder in folders if (by := read_json(folder / SELECTION).get("metric"))}
    return next(iter(by)) if len(by) == 1 and by <= set(found.tails) else None


def _absent(folders: Sequence[Path], asked: Asked) -> list[str]:
    """The runs that were asked for and have no record."""
    places = [place for folder in folders for place in (folder, folder / "runs")]
    return [run for run in asked.runs if not any((place / run / "status.json").exists() for place in places)]


def _add_runs(
    out: Page, records: Sequence[Record], found: Table, asked: Asked, *, above: Sequence[str], brief: bool
) -> None:
    """Add the sections of runs: best points under the sentences ``above``, charts, models, the table of runs.

    With ``brief``, for runs that are not what the page is about, their curves are folded.
    """
    metric, looks = found.chosen(asked.metric), looks_of(found, asked.algos)
    sets = problems(found, metric)
    best: list[int] = []
    blocks, charts, scatters = [], [], []
    for name, places in sets.items():
        part = found.take(places)
        view = View(part, [records[i] for i in places], part.had(metric), looks, problem=name)
        shown, lines = best_table(part, view.metric)
        blocks += [f"<h3>{escape(name)}</h3>" if name else "", rich_table(shown, part.keys), notes(lines)]
        best += [places[i] for row in view.best_rows() for i in row["rows"]]
        charts += maps.maps(out, view)
        scatters.append(maps.structure(out, view) if len(part) > 1 else "")
    alone = len(records) == 1
    if alone:
        blocks = [runs.result(records[0], found), notes([*lines, records[0].status.get("reason") or ""])]
    out.add("best", "Result" if alone else "Best points", *map(paragraph, filter(None, above)), *blocks)
    out.curves = curves.curves(records, found, sets, looks, metric=metric, best=best)
    if out.curves:
        told = paragraph(out.curves["said"], "small")
        out.add("curves", "Curves", _piece("curves.html"), told, folded=alone and brief)
    out.add("rates", "What was varied", grid(*charts))
    out.add("structure", "Structure against quality", grid(*scatters))
    names = [records[0].folder.name] if alone else curves.names_of(found)
    chosen = [(names[place], records[place]) for place in (range(1) if alone else best)]
    out.add("coefficients", "Coefficients", *models.coefficients(out, chosen), folded=not alone)
    out.add("scores-section", "Scores", *models.scores(chosen))
    if alone:
        out.add("run", "Run", runs.facts_of(found))
    else:
        rows = runs.runs_table(found, metric)
        out.add("runs-table", f"All {len(records)} runs", _piece("filter.html"), rows, folded=True)


def _html(out: Page, kicker: str, title: str, told: Sequence[str]) -> str:
    """The file: style, sections, the library once, compressed, the data, and the script that draws them."""
    links = "".join(f'<a href="#{each.name}" data-section>{escape(each.heading)}</a>' for each in out.sections)
    when = time.strftime("%Y-%m-%d %H:%M %Z")
    parts = {
        "NAME": escape(f"{kicker}: {title}" if kicker else title), "KICKER": paragraph(kicker, "kicker"),
        "TITLE": escape(title), "STYLE": _piece("page.css"), "LINKS": links,
        "SUMMARY": "".join(map(paragraph, told)), "BODY": "\n".join(map(section, out.sections)),
        "MAKER": escape(f"Made by {about.maker()}, {when}."),
        "DATA": embedded({"charts": out.charts, "curves": out.curves}),
        "LIBRARY": b64encode(gzip.compress(library().read_bytes(), 6, mtime=0)).decode(),
        "SCRIPT": _piece("page.js"),
    }  # fmt: skip
    head, *rest = _piece("page.html").split("{{")
    return head + "".join(parts[name] + after for name, after in (piece.split("}}", 1) for piece in rest))


def _piece(name: str) -> str:
    """Return the content of a file beside this one."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")
