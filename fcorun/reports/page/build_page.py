"""The page of a run, a sweep, a selection or a figure: one self-contained file of HTML."""

import gzip
import time
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

from fcorun.base.errors import UserError
from fcorun.base.records.formats import read_json
from fcorun.base.records.record import SELECTION_FILE, Record
from fcorun.base.records.sweep_settings import SETTINGS_FILE, SweepSettings, load_settings
from fcorun.base.system.machine import fcorun_version
from fcorun.reports.bibliography import build_bibliography
from fcorun.reports.build_table import build_table, drop_superseded, sort_records
from fcorun.reports.page import clinical, elements, models, runs, studies
from fcorun.reports.page import page_curves as curves
from fcorun.reports.page.table_model import find_table_model
from fcorun.reports.pictures.drawing_processes import draw_later
from fcorun.reports.pictures.picture import Picture, find_pictures
from fcorun.reports.pictures.problem_view import ProblemView, curve_styles_of, group_by_problem
from fcorun.reports.run_table import RunTable
from fcorun.reports.sweep_report import build_best_table


def build_page(
    folders: Sequence[Path],
    records: Sequence[Record],
    *,
    metric: str | None = None,
    tail_rounds: int | None = None,
    comments: Mapping[str, str] | None = None,
) -> str:
    """Return the page about the records and the studies in and under ``folders``, as HTML.

    ``records`` are those of the folders; ``comments`` explain keys of the configuration. Raises UserError if there is
    nothing to show, and as ``RunTable.resolve_metric``.
    """
    study_folders = studies.find_studies(folders)
    if not records and not study_folders:
        raise UserError(
            f"{', '.join(map(str, folders))} holds no records; give a folder that fcorun has written, such as outputs"
        )
    records, left_out = drop_superseded(records) if records else ([], "")
    model = find_table_model(records, study_folders)
    page = elements.Page()
    single_figure = len(folders) == 1 and study_folders == [folders[0]] and studies.is_figure(folders[0])
    overline, title = studies.page_heading(folders)
    summary = []
    for folder in study_folders if model is None else ():
        summary += studies.add_study_sections(page, folder, single_figure=single_figure)
    if records:
        settings = load_settings(*(path for path in _run_folders(folders) if (path / SETTINGS_FILE).exists()))
        settings = settings.with_overrides(metric=metric, tail_rounds=tail_rounds)
        records = sort_records(records, settings.algos)
        root = folders[0] if len(folders) == 1 else None
        table = build_table(records, settings.tail_rounds, root=root)
        settings = settings.with_overrides(metric=settings.metric or _selection_metric(study_folders, table))
    if model is not None:
        clinical.add_main_sections(page, model)
        metric = table.resolve_metric(settings.metric)
        styles = curve_styles_of(table, settings.algos)
        page.curves = curves.collect_curves(records, table, {"": [0]}, styles, metric=metric, best=[0])
        clinical.add_technical_sections(page, model, table, comments or {})
        return _render(page, overline, clinical.clinical_title(model), clinical.clinical_summary(model))
    if records:
        missing_runs = []
        for run in settings.runs:
            if not any((path / run / "status.json").exists() for path in _run_folders(folders)):
                missing_runs.append(run)
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
    if single_figure:
        open_sections = ("figure", "best", "configuration", "versions")
        page.sections = [
            replace(section, collapsed=not section.name.startswith(open_sections)) for section in page.sections
        ]
    return _render(page, overline, title, [line for line in summary if line])


def _run_folders(folders: Sequence[Path]) -> list[Path]:
    """Return the folders that may hold runs: these, and the folder ``runs`` of a figure."""
    return [path for folder in folders for path in (folder, folder / "runs")]


def _selection_metric(folders: Sequence[Path], table: RunTable) -> str | None:
    """Return the metric of the selections in these folders, if they agree and runs have measured it."""
    metrics = {str(read_json(folder / SELECTION_FILE).get("metric")) for folder in folders} - {"None"}
    return next(iter(metrics)) if len(metrics) == 1 and metrics <= set(table.tail_metrics) else None


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
            elements.from_rich_table(best_table, part.varied_keys),
            elements.bullet_list(notes),
        ]
        best += [positions[i] for row in view.best_rows() for i in row["rows"]]
        if len(part) > 1:
            for picture in pictures:
                drawings[picture].append(draw_later(picture.render_parts, view))
    if is_single_run:
        reason = records[0].status.get("reason") or ""
        blocks = [runs.result_table(records[0], table), elements.bullet_list([*notes, reason])]
    heading = "Result" if is_single_run else "Best points"
    page.add_section("best", heading, *map(elements.paragraph, filter(None, sentences)), *blocks)
    page.curves = curves.collect_curves(records, table, problems, curve_styles, metric=metric, best=best)
    if page.curves:
        controls = elements.render_template("curves.html", left_out=page.curves["left_out"])
        page.add_section("curves", "Curves", controls, collapsed=is_single_run and has_studies)
    for picture in pictures:
        figures = [elements.embed_drawing(svg, caption) for wait in drawings[picture] for svg, caption in wait()]
        page.add_section(picture.name, picture.title, elements.picture_grid(figures))
    if is_single_run:
        shown = [(records[0].folder.name, records[0])]
    else:
        names = curves.name_runs(table)
        shown = [(names[run], records[run]) for run in best]
    coefficients = models.coefficient_blocks(shown)
    page.add_section("coefficients", "Coefficients", *coefficients, collapsed=not is_single_run)
    page.add_section("scores-section", "Scores", *models.score_blocks(shown))
    if is_single_run:
        page.add_section("run", "Run", runs.run_facts(table))
    else:
        rows = runs.runs_table(table, metric)
        page.add_section(
            "runs-table", f"All {len(records)} runs", elements.render_template("filter.html"), rows, collapsed=True
        )


def _render(page: elements.Page, overline: str, title: str, summary: Sequence[str]) -> str:
    """Return the file, with the script that draws curves if the page has any: plotly's, compressed."""
    library = ""
    if page.curves:
        script = files("plotly").joinpath("package_data/plotly.min.js").read_bytes()
        library = b64encode(gzip.compress(script, 6, mtime=0)).decode()
    return elements.render_template(
        "page.html",
        overline=overline,
        title=title,
        style=elements.read_template("page.css"),
        summary=summary,
        sections=page.sections,
        curves=bool(page.curves),
        maker=f"fcorun {fcorun_version()}, charts by plotly.js of plotly {version('plotly')} (MIT), "
        f"{time.strftime('%Y-%m-%d %H:%M %Z')}",
        data=elements.embed_json({"curves": page.curves}),
        library=library,
        script=elements.read_template("page.js"),
    )
