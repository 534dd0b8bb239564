"""The page of a run, a sweep, a selection or a figure, with curves of all runs: one self-contained file of HTML."""

import gzip
import re
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from html import escape
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

from fcorun.base.errors import UserError, abbreviate_sentences
from fcorun.base.metrics import COUNTERS, is_baseline_row
from fcorun.base.records.contents import SELECTION
from fcorun.base.records.record import Record, split_damaged
from fcorun.base.records.single_patients import hide_row_numbers
from fcorun.base.records.sweep_settings import SweepSettings, list_missing_runs, load_settings
from fcorun.base.records.tables import PAGE_TABLES, find_damaged
from fcorun.base.system.machine import fcorun_version
from fcorun.reports.bibliography import build_bibliography
from fcorun.reports.build_table import build_table, drop_superseded, sort_records
from fcorun.reports.page import clinical, elements, imaging, models, runs, studies
from fcorun.reports.page.table_model import find_table_model
from fcorun.reports.pictures.best_curves import choose_sweep_panels
from fcorun.reports.pictures.drawing_processes import draw_later
from fcorun.reports.pictures.layout import DASHES, CurveStyle, curve_style, sum_bytes
from fcorun.reports.pictures.picture import Picture, find_pictures
from fcorun.reports.pictures.problem_view import ProblemView, curve_styles_of, group_by_problem
from fcorun.reports.pictures.run_curves import has_only_ends
from fcorun.reports.run_table import RunTable, format_number
from fcorun.reports.sweep_report import build_best_table

MAX_RUNS = 300  # whose curves a page holds, runs of best points first
# of all curves together, about, unless runs would have fewer than _MIN_EVALUATIONS evaluations
MAX_NUMBERS = 90_000
_MIN_EVALUATIONS = 20  # of a run
_AXES = {"rounds": "round"} | {name: name for name in ("bytes", "grad_evals", "seconds", "simulated_seconds")}
_FOREGROUND = "@fg"  # the colour of text: black on a light page
# names that plotly has for the dashes of the pictures
_DASHES = ("solid", "dash", "dot", "dashdot", "longdashdot", "1px,6px", "longdash")
Evaluations = list[dict[str, float]]


def build_page(
    folders: Sequence[Path],
    records: Sequence[Record],
    *,
    metric: str | None = None,
    tail_rounds: int | None = None,
    comments: Mapping[str, str] | None = None,
    library_address: str = "",
) -> str:
    """Return the page about the records and the studies in and under ``folders``, as HTML.

    ``records`` are those of the folders; ``comments`` explain keys of the configuration. The script that draws curves
    is in the page, unless its address is given. Raises UserError if there is nothing to show, and as
    ``RunTable.resolve_metric``.
    """
    records, damaged = split_damaged(records, Record.check)
    study_folders, damaged_studies = split_damaged(studies.find_studies(folders), studies.check_study)
    damaged += damaged_studies
    if damaged and not (records or study_folders):
        raise UserError(abbreviate_sentences(damaged))
    if not records and not study_folders:
        raise UserError(
            f"{', '.join(map(str, folders))} holds no records; give a folder that fcorun has written, such as outputs"
        )
    records, left_out = drop_superseded(records) if records else ([], "")
    model = find_table_model(records, study_folders)
    page = elements.Page()
    single_figure = len(folders) == 1 and study_folders == [folders[0]] and studies.is_figure(folders[0])
    overline, title = studies.page_heading(folders)
    damaged += find_damaged_tables(records, study_folders)
    summary = [f"Left out: {abbreviate_sentences(damaged)}."] if damaged else []
    for folder in study_folders if model is None else ():
        summary += studies.add_study_sections(page, folder, single_figure=single_figure)
    if records:
        settings = load_settings(*folders)
        settings = settings.with_overrides(metric=metric, tail_rounds=tail_rounds)
        records = sort_records(records, settings.algos)
        root = folders[0] if len(folders) == 1 else None
        table = build_table(records, settings.tail_rounds, root=root, conditions=settings.conditions)
        chosen_by = {str(SELECTION.read(folder).get("metric")) for folder in study_folders} - {"None"}
        if not settings.metric and len(chosen_by) == 1 and chosen_by <= set(table.tail_metrics):
            settings = settings.with_overrides(metric=chosen_by.pop())  # on which all selections agree
    if model is not None:
        clinical.add_main_sections(page, model)
        metric = table.resolve_metric(settings.metric)
        styles = curve_styles_of(table, settings.algos)
        page.curves = collect_curves(records, table, {"": [0]}, styles, metric=metric, best=[0])
        clinical.add_technical_sections(page, model, table, comments or {})
        summary += clinical.clinical_summary(model)
        return render_page(page, overline, clinical.clinical_title(model), summary, library_address=library_address)
    if records:
        missing_runs = list_missing_runs(settings, folders)
        sentences = [runs.describe_runs(records, table), runs.describe_statuses(table, missing_runs), left_out]
        best_sentences = sentences if single_figure else ()
        if not single_figure:
            summary += sentences
        _add_runs(page, records, table, settings, sentences=best_sentences, has_studies=bool(study_folders))
        title = title or runs.title_runs(records, table)
        page.add_section("configuration", "Configuration", runs.configuration_table(records, comments or {}))
        page.add_section("versions", "Versions", elements.bullet_list(runs.describe_versions(records)))
        bibtex = elements.preformatted(build_bibliography(records))
        page.add_section("cite", "BibTeX of the plug-ins", bibtex, collapsed=True)
    if imaging.are_of_images(records) and not single_figure:
        imaging.arrange_sections(page)
    if single_figure:
        open_sections = ("figure", "best", "configuration", "versions")
        page.sections = [
            replace(section, collapsed=not section.name.startswith(open_sections)) for section in page.sections
        ]
    return render_page(page, overline, title, [line for line in summary if line], library_address=library_address)


def find_damaged_tables(records: Sequence[Record], study_folders: Sequence[Path]) -> list[str]:
    """Return a sentence about each damaged table of some studies, and of the records if they are few."""
    shown = [record.folder for record in records] if len(records) <= models.MAX_MODELS else []
    return find_damaged(PAGE_TABLES, [*shown, *study_folders])


def _add_runs(
    page: elements.Page,
    records: Sequence[Record],
    table: RunTable,
    settings: SweepSettings,
    *,
    sentences: Sequence[str],
    has_studies: bool,
) -> None:
    """Add the sections of runs: best points below ``sentences``, charts, models, the table of runs."""
    metric = table.resolve_metric(settings.metric)
    curve_styles = curve_styles_of(table, settings.algos)
    problems = group_by_problem(table, metric)
    is_single_run = len(records) == 1
    best: list[int] = []
    blocks = []
    pictures = [picture for picture in find_pictures(ProblemView) if picture.title]
    drawings: dict[Picture, list[Callable]] = {picture: [] for picture in pictures}
    notes = []
    for name, positions in problems.items():
        part = table.take(positions)
        part_records = [records[i] for i in positions]
        view = ProblemView(part, part_records, part.fallback_metric(metric), curve_styles, problem=name)
        best_table, notes = build_best_table(part, view.metric)
        blocks += [
            elements.subheading(name),
            elements.from_rich_table(best_table),
            elements.bullet_list(notes),
        ]
        shown = [positions[i] for row in view.best_rows() for i in row["rows"]]
        best += [run for run in shown if run not in best]  # a baseline may belong to several problems
        if len(part) > 1:
            for picture in pictures:
                drawings[picture].append(draw_later(picture.render, view, ("svg",)))
    if is_single_run:
        reason = hide_row_numbers(records[0].status.get("reason") or "")
        blocks = [runs.result_table(records[0], table), elements.bullet_list([*notes, reason])]
    heading = "Result" if is_single_run else "Best points"
    page.add_section("best", heading, *map(elements.paragraph, filter(None, sentences)), *blocks)
    page.curves = collect_curves(records, table, problems, curve_styles, metric=metric, best=best)
    if page.curves:
        controls = elements.render_template("curves.html", left_out=page.curves["left_out"])
        page.add_section("curves", "Curves", controls, collapsed=is_single_run and has_studies)
    if is_single_run:
        shown = [(records[0].folder.name, records[0])]
    else:
        names = name_runs(table)
        shown = [(names[run], records[run]) for run in best]
    coefficients = models.coefficient_blocks(shown)  # drawn beside the charts, which are waited for next
    for picture in pictures:
        contents = [svg for wait in drawings[picture] for svg in wait().values()]
        figures = [elements.embed_drawing(svg, picture.caption) for svg in contents]
        page.add_section(picture.name, picture.title, elements.picture_grid(figures))
    page.add_section("coefficients", "Coefficients", *coefficients, collapsed=not is_single_run)
    page.add_section("scores-section", "Scores", *models.score_blocks(shown))
    if is_single_run:
        page.add_section("run", "Run", runs.run_facts(table))
    else:
        rows = runs.runs_table(table, metric)
        page.add_section(
            "runs-table", f"All {len(records)} runs", elements.render_template("filter.html"), rows, collapsed=True
        )


def read_library() -> bytes:
    """Return the script of plotly, which draws the curves of pages."""
    return files("plotly").joinpath("package_data/plotly.min.js").read_bytes()


@cache
def _compress_library() -> str:
    """Return the script of plotly, compressed for pages; level 6 takes twice as long, for 4 % less."""
    return b64encode(gzip.compress(read_library(), 4, mtime=0)).decode()


def render_page(
    page: elements.Page,
    overline: str,
    title: str,
    summary: Sequence[str],
    *,
    library_address: str = "",
    refresh_seconds: float | None = None,
) -> str:
    """Return the file, with the script that draws curves if the page has any, or with its address.

    With ``refresh_seconds`` the page reloads itself.
    """
    has_library = page.curves and not library_address
    return elements.render_template(
        "page.html",
        overline=overline,
        title=title,
        style=elements.read_template("page.css"),
        summary=summary,
        sections=page.sections,
        curves=bool(page.curves),
        refresh_seconds=refresh_seconds,
        maker=f"fcorun {fcorun_version()}, charts by plotly.js of plotly {version('plotly')} (MIT), "
        f"{time.strftime('%Y-%m-%d %H:%M %Z')}",
        data=elements.embed_json({"curves": page.curves}),
        library=_compress_library() if has_library else "",
        library_address=library_address,
        script=elements.read_template("page.js"),
    )


def collect_curves(
    records: Sequence[Record],
    runs: RunTable,
    problems: Mapping[str, Sequence[int]],
    curve_styles: Mapping[str, CurveStyle],
    *,
    metric: str,
    best: Sequence[int],
) -> dict[str, Any] | None:
    """Return the data that the page draws curves from; None if no run was evaluated between its ends.

    ``problems`` has the positions of the runs on each problem, ``best`` those of best points. In the result, ``arrays``
    holds each different column once, ``columns`` of ``runs`` are indices of arrays, and ``left_out`` says which
    evaluations and runs are not drawn. ``usual_metrics`` are those to show first: of metrics that are one function on
    each problem, if there are some.
    """
    problems_of_run: dict[int, list[int]] = {}  # of a baseline that does not depend on a condition, several
    for i, positions in enumerate(problems.values()):
        for run in positions:
            problems_of_run.setdefault(run, []).append(i)
    is_best = set(best)
    order = [*best, *(run for run in problems_of_run if run not in is_best)]
    evaluations = {run: rows for run in order[:MAX_RUNS] if (rows := records[run].rows)}
    if all(map(has_only_ends, evaluations.values())):
        return None
    metrics = dict.fromkeys(name for rows in evaluations.values() for name in rows[-1])
    metrics = [name for name in metrics if name not in COUNTERS]
    max_rows = max(_MIN_EVALUATIONS, MAX_NUMBERS // (len(evaluations) * (len(metrics) + 2)))
    arrays: dict[tuple, int] = {}
    curves = []
    names = name_runs(runs)
    for run, rows in evaluations.items():
        algo = str(runs.frame["algo"][run])
        style = curve_styles.get(algo) or curve_style(0)
        colour = _FOREGROUND if style.colour == "#000000" else style.colour
        columns = {}
        for name, values in _read_columns(thin(rows, max_rows), metrics):
            columns[name] = arrays.setdefault(values, len(arrays))
        curves.append(
            {
                "run": run,
                "problems": problems_of_run[run],
                "algo": escape(runs.algo_title(algo), quote=False),
                "name": escape(names[run], quote=False),
                "line": {"color": colour, "dash": _DASHES[DASHES.index(style.line_dash)]},
                "best": run in is_best,
                "diverged": runs.frame["status"][run] == "diverged",
                "baseline": len(rows) > 1 and is_baseline_row({"bytes_up": 0} | rows[-1]),
                "columns": columns,
            }
        )
    labels = {}
    for name in metrics:
        labels[name] = {"label": _label_of(runs.axis_label(name)), "log": runs.metrics[name].log}
    parts = [runs.take(positions) for positions in problems.values()]
    comparable = [name for name in metrics if all(part.is_one_function(name) for part in parts)]
    usual = [name for name in choose_sweep_panels(comparable, metric) if name in comparable]
    left_out = []
    longest = max(map(len, evaluations.values()))
    if longest > max_rows:
        left_out.append(f"of up to {longest} evaluations of a run {max_rows} are drawn, evenly spaced")
    if len(problems_of_run) > MAX_RUNS:
        more = len(problems_of_run) - MAX_RUNS
        which = ", none of them a best point" if len(is_best) <= MAX_RUNS else ""
        left_out.append(f"curves of {more} runs are left out{which}")
    return {
        "metrics": labels,
        "axes": {name: labels[name]["label"] for name in metrics if runs.metrics[name].monotone},
        "usual_metrics": usual or metrics[:1],
        "problems": list(problems),
        "arrays": list(arrays),
        "runs": curves,
        "left_out": "; ".join(left_out),
    }


def thin(rows: Evaluations, max_rows: int) -> Evaluations:
    """Return at most ``max_rows`` rows, evenly spaced, with the first and the last."""
    if len(rows) <= max_rows:
        return rows
    return [rows[round(i * (len(rows) - 1) / (max_rows - 1))] for i in range(max_rows)]


def _read_columns(rows: Evaluations, names: Sequence[str]) -> Iterator[tuple[str, tuple]]:
    """Yield the columns that charts may need, numbers with five digits, without counters that a run does not have."""
    for axis, name in _AXES.items():
        if axis == "bytes":
            yield axis, tuple(map(sum_bytes, rows))
        elif name in rows[-1]:
            yield axis, tuple(float(f"{row[name]:.5g}") if name.endswith("seconds") else row[name] for row in rows)
    for name in names:
        if name in rows[-1]:
            yield name, tuple(float(f"{row[name]:.5g}") for row in rows)


def name_runs(runs: RunTable) -> list[str]:
    """Return a name for each run: its algorithm and the varied keys."""
    names = []
    for row in runs.to_dicts():
        parts = [runs.algo_title(str(row["algo"]))]
        for key in runs.varied_keys:
            if row[key] is not None:
                parts.append(f"{key.removeprefix('algo.')}={format_number(row[key])}")
        names.append(", ".join(parts))
    return names


def _label_of(text: str) -> str:
    """Return a label of a picture for plotly, which reads some elements of HTML, such as subscripts.

    >>> _label_of("|w$_j$| > 0.1")
    '|w<sub>j</sub>| &gt; 0.1'
    """
    text = re.sub(r"\\mathrm\{([^}]*)\}", r"\1", escape(text, quote=False))
    return re.sub(r"\$_\{?([^}$]*)\}?\$", r"<sub>\1</sub>", text).replace("\n", "<br>")
