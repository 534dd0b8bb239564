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
from fcorun.records.record import SELECTION_FILE, Record
from fcorun.records.sweep_settings import SETTINGS_FILE, SweepSettings, load_settings
from fcorun.reports.bibliography import build_bibliography
from fcorun.reports.build_table import build_table, drop_superseded, sort_records
from fcorun.reports.page import curves, models, point_charts, provenance, runs, studies
from fcorun.reports.page.elements import (
    Page,
    bullet_list,
    chart_grid,
    embed_json,
    from_rich_table,
    paragraph,
    render_section,
)
from fcorun.reports.pictures.problem_view import ProblemView, curve_styles_of
from fcorun.reports.pictures.sweep_pictures import group_by_problem
from fcorun.reports.run_table import RunTable
from fcorun.reports.sweep_report import build_best_table


def find_plotly_script() -> Path:
    """Return the file of plotly's script, without importing plotly."""
    spec = find_spec("plotly")
    return Path((spec.submodule_search_locations or [""])[0] if spec else "", "package_data", "plotly.min.js")


def build_page(
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
    there = studies.find_studies(folders)
    if not records and not there:
        raise UserError(f"{', '.join(map(str, folders))} holds no records; give a folder that fcorun has written, "
                        "such as outputs")  # fmt: skip
    out = Page()
    of_figure = len(folders) == 1 and there == [folders[0]] and studies.is_figure(folders[0])
    kicker, title = studies.page_heading(folders)
    told = [line for folder in there for line in studies.add_study_sections(out, folder, single_figure=of_figure)]
    if records:
        asked = _asked(folders).with_overrides(metric=metric, tail_rounds=tail_rounds)
        records, aside = drop_superseded(records)
        records = sort_records(records, asked.algos)
        root = folders[0] if len(folders) == 1 else None
        found = build_table(records, asked.tail_rounds, root=root)
        asked = asked.with_overrides(metric=asked.metric or _chosen_by(there, found))
        what = [runs.describe_runs(records, found), runs.describe_statuses(found, _absent(folders, asked)), aside]
        _add_runs(out, records, found, asked, above=what if of_figure else (), brief=bool(there))
        told += [] if of_figure else what
        title = title or runs.title_runs(records, found)
        out.add_section("configuration", "Configuration", provenance.configuration_table(records, comments or {}))
        out.add_section("versions", "Versions", bullet_list(provenance.describe_versions(records)))
        out.add_section(
            "cite",
            "BibTeX of what was run",
            f'<pre tabindex="0">{escape(build_bibliography(records))}</pre>',
            collapsed=True,
        )
    if of_figure:
        shown = ("figure", "best", "configuration", "versions")
        out.sections = [replace(each, collapsed=not each.name.startswith(shown)) for each in out.sections]
    return _html(out, kicker, title, [line for line in told if line])


def _asked(folders: Sequence[Path]) -> SweepSettings:
    """What was asked for of these folders; of a figure, of its runs."""
    marked = [place for folder in folders for place in (folder, folder / "runs") if (place / SETTINGS_FILE).exists()]
    return load_settings(*marked)


def _chosen_by(folders: Sequence[Path], found: RunTable) -> str | None:
    """The metric by which selections have chosen, where they agree and runs have measured it."""
    by = {str(by) for folder in folders if (by := read_json(folder / SELECTION_FILE).get("metric"))}
    return next(iter(by)) if len(by) == 1 and by <= set(found.tail_metrics) else None


def _absent(folders: Sequence[Path], asked: SweepSettings) -> list[str]:
    """The runs that were asked for and have no record."""
    places = [place for folder in folders for place in (folder, folder / "runs")]
    return [run for run in asked.runs if not any((place / run / "status.json").exists() for place in places)]


def _add_runs(
    out: Page, records: Sequence[Record], found: RunTable, asked: SweepSettings, *, above: Sequence[str], brief: bool
) -> None:
    """Add the sections of runs: best points under the sentences ``above``, charts, models, the table of runs.

    With ``brief``, for runs that are not what the page is about, their curves are folded.
    """
    metric, looks = found.resolve_metric(asked.metric), curve_styles_of(found, asked.algos)
    sets = group_by_problem(found, metric)
    best: list[int] = []
    blocks, charts, scatters = [], [], []
    for name, places in sets.items():
        part = found.take(places)
        view = ProblemView(part, [records[i] for i in places], part.fallback_metric(metric), looks, problem=name)
        shown, lines = build_best_table(part, view.metric)
        blocks += [
            f"<h3>{escape(name)}</h3>" if name else "",
            from_rich_table(shown, part.varied_keys),
            bullet_list(lines),
        ]
        best += [places[i] for row in view.best_rows() for i in row["rows"]]
        charts += point_charts.add_metric_charts(out, view)
        scatters.append(point_charts.add_structure_chart(out, view) if len(part) > 1 else "")
    alone = len(records) == 1
    if alone:
        blocks = [runs.result_table(records[0], found), bullet_list([*lines, records[0].status.get("reason") or ""])]
    out.add_section("best", "Result" if alone else "Best points", *map(paragraph, filter(None, above)), *blocks)
    out.curves = curves.collect_curves(records, found, sets, looks, metric=metric, best=best)
    if out.curves:
        told = paragraph(out.curves["said"], "small")
        out.add_section("curves", "Curves", _piece("curves.html"), told, collapsed=alone and brief)
    out.add_section("rates", "What was varied", chart_grid(*charts))
    out.add_section("structure", "Structure against quality", chart_grid(*scatters))
    names = [records[0].folder.name] if alone else curves.name_runs(found)
    chosen = [(names[place], records[place]) for place in (range(1) if alone else best)]
    out.add_section("coefficients", "Coefficients", *models.coefficient_blocks(out, chosen), collapsed=not alone)
    out.add_section("scores-section", "Scores", *models.score_blocks(chosen))
    if alone:
        out.add_section("run", "Run", runs.run_facts(found))
    else:
        rows = runs.runs_table(found, metric)
        out.add_section("runs-table", f"All {len(records)} runs", _piece("filter.html"), rows, collapsed=True)


def _html(out: Page, kicker: str, title: str, told: Sequence[str]) -> str:
    """The file: style, sections, the library once, compressed, the data, and the script that draws them."""
    links = "".join(f'<a href="#{each.name}" data-section>{escape(each.heading)}</a>' for each in out.sections)
    when = time.strftime("%Y-%m-%d %H:%M %Z")
    parts = {
        "NAME": escape(f"{kicker}: {title}" if kicker else title), "KICKER": paragraph(kicker, "kicker"),
        "TITLE": escape(title), "STYLE": _piece("page.css"), "LINKS": links,
        "SUMMARY": "".join(map(paragraph, told)), "BODY": "\n".join(map(render_section, out.sections)),
        "MAKER": escape(f"Made by {provenance.describe_generator()}, {when}."),
        "DATA": embed_json({"charts": out.charts, "curves": out.curves}),
        "LIBRARY": b64encode(gzip.compress(find_plotly_script().read_bytes(), 6, mtime=0)).decode(),
        "SCRIPT": _piece("page.js"),
    }  # fmt: skip
    head, *rest = _piece("page.html").split("{{")
    return head + "".join(parts[name] + after for name, after in (piece.split("}}", 1) for piece in rest))


def _piece(name: str) -> str:
    """Return the content of a file beside this one."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")
