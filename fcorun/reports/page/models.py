"""Coefficients of runs, their scores on held-out rows, and pictures of curves: of a single run or the best of many."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fcorun.base.errors import UserError, abbreviate
from fcorun.base.records.formats import read_summary
from fcorun.base.records.record import PREDICTIONS_FILE, Record
from fcorun.data.tasks import find_tasks
from fcorun.reports.page.elements import bullet_list, collapsible, embed_drawing, embed_picture, html_table, paragraph
from fcorun.reports.page.page_files import parse_cell, parse_float, read_csv, read_lines
from fcorun.reports.pictures.coefficient_picture import Bars, ModelView, render_bars
from fcorun.reports.pictures.curve_groups import CurveView
from fcorun.reports.pictures.drawing_processes import draw_later
from fcorun.reports.pictures.picture import find_pictures
from fcorun.results.inference.methods import INTERVALS_TEXT
from fcorun.results.models.coefficients import describe_cutoff, load_coefficients, nonzero_rows
from fcorun.results.score_intervals.intervals import compute_intervals
from fcorun.results.score_intervals.score_table import BOOTSTRAP, ScoreIntervals, ScoreOptions

MAX_COEFFICIENTS = 30  # of a model
MAX_MODELS = 6  # runs whose coefficients or curves are shown
_CALIBRATION_AT_A_TIME = (
    "Calibration at {}: the predicted risk of an event by then, and the observed one (one minus Kaplan-Meier) with its "
    "95 % interval, of groups of rows with similar predictions; on the right by client. Dashed: perfect calibration. "
    "calibration.csv says how many rows had an event, were censored before, and were at risk then."
)
_MAX_CLIENT_ROWS = 200  # of scores by client
_MAX_BYTES = 2**19  # of predictions.csv, some 6,000 rows: intervals of more take many seconds


def coefficient_blocks(records: Sequence[tuple[str, Record]], *, with_intervals: bool = True) -> list[str]:
    """Return drawings, tables and brain pictures of the largest coefficients of each run that has any.

    ``records`` has the name and the record of each run. ``with_intervals`` adds the pictures of
    the model, and the picture and the sentences of ``fcorun infer``.
    """
    models = [(name, record, read_csv(record.folder / "coefficients.csv")) for name, record in records]
    models = [model for model in models if model[2]]
    blocks = []
    for name, record, rows in models[:MAX_MODELS]:
        cutoff = float(record.flat_config.get("cutoff") or 0)
        data = read_summary(record.folder).get("data", {})
        weights = [row for row in rows if row["parameter"] != "bias"]
        nonzero = nonzero_rows(rows, cutoff, data)
        largest = nonzero[:MAX_COEFFICIENTS]
        limit = describe_cutoff(cutoff, "cutoff_factors" in data)
        caption = f"{name}: {len(nonzero)} of {len(weights)} coefficients exceed cutoff={limit} in magnitude."
        if len(nonzero) > MAX_COEFFICIENTS:
            caption += f" The {MAX_COEFFICIENTS} largest are shown; coefficients.csv has all."
        if largest:
            classes = list(dict.fromkeys(row["class"] for row in rows))
            caption += describe_few_levels(data, [row["feature"] for row in largest])
            blocks.append(_draw_largest(caption, largest, classes))
        else:
            blocks.append(paragraph(caption))
        task = find_tasks().get(data.get("task", ""))
        has_hazards = task is not None and task.has_events
        cells = []
        for row in largest:
            value, original = parse_float(row["value"]), parse_float(row["value_original"])
            ratio = [float(np.exp(original))] if has_hazards else []
            cells.append([row["feature"], row["class"], value, original, *ratio])
        for row in rows:
            if row["parameter"] == "bias":
                value, original = parse_float(row["value"]), parse_float(row["value_original"])
                cells.append(["(intercept)", row["class"], value, original, *([""] if has_hazards else [])])
        headers = ["feature", "class", "as trained", "in its own units", *(["hazard ratio"] if has_hazards else [])]
        blocks.append(collapsible(f"{name}: the coefficients as a table", html_table(headers, cells)))
        blocks.append(embed_picture(record.folder / "brain.png", f"{name}: the weights on the brain."))
        if with_intervals:
            blocks += draw_model_pictures(record)
            blocks.append(embed_picture(record.folder / "inference.png", f"{name}: intervals; inference.csv has all."))
            blocks.append(bullet_list(read_lines(record.folder / INTERVALS_TEXT)))
    if len(models) > MAX_MODELS:
        more = len(models) - MAX_MODELS
        blocks.append(paragraph(f"Coefficients of {more} further best runs are in their coefficients.csv."))
    return blocks


def draw_model_pictures(record: Record) -> list[str]:
    """Return drawings of the titled pictures of a record's linear model; [] of another record."""
    try:
        coefficients = load_coefficients(record)
    except UserError:
        return []
    view = ModelView(coefficients, record.picture_title, float(record.flat_config.get("cutoff") or 0))
    waits = [draw_later(picture.render_parts, view) for picture in find_pictures(ModelView) if picture.title]
    return [embed_drawing(svg, caption) for wait in waits for svg, caption in wait()]


def _draw_largest(caption: str, rows: Sequence[dict[str, Any]], classes: Sequence[str]) -> str:
    """Return a drawing with a bar for each of these rows of coefficients.csv."""
    names = [" ".join(filter(None, (row["feature"], row["class"]))) for row in rows]
    own_units = None
    if any(row["value_original"] for row in rows):
        own_units = [parse_float(row["value_original"]) for row in rows]
    label = "coefficient, as trained"
    if len(classes) == 1 and classes[0]:
        label += f"; above 0 speaks for the class '{classes[0]}'"
    bars = Bars(names, [parse_float(row["value"]) for row in rows], own_units)
    return embed_drawing(draw_later(render_bars, bars, label)(), caption)


def describe_few_levels(
    about: Mapping[str, Any], features: Sequence[str], labels: Mapping[str, str] | None = None
) -> str:
    """Return a sentence that names those of the features that few rows or events support; "" without any.

    ``about`` is the section on the data in summary.json, ``labels`` are the labels of features.
    """
    few = about.get("few_levels") or {}
    named = [f"{(labels or {}).get(name, name)} ({few[name]})" for name in dict.fromkeys(features) if name in few]
    return f" Few training rows or events, which say little: {abbreviate(named, shown=8)}." if named else ""


def score_blocks(records: Sequence[tuple[str, Record]]) -> list[str]:
    """Return the scores over the rows of all clients together, for a single run also by client, and pictures of curves.

    Returns [] without scores.
    """
    scores = [(name, row) for name, record in records for row in read_csv(record.folder / "scores.csv")]
    overall = [(name, row) for name, row in scores if not row["client"]]
    if not overall:
        return []
    is_single_run = len(records) == 1
    headers = [key for key in dict.fromkeys(key for _, row in overall for key in row) if key != "client"]
    rows = []
    for name, row in overall:
        values = [parse_cell(key, row.get(key, "")) for key in headers]
        rows.append(values if is_single_run else [name, *values])
    note = "Test rows, if the data have some, were scored once, at the end."
    blocks: list[str] = [html_table(headers if is_single_run else ["run", *headers], rows, "scores", note)]
    if is_single_run:
        blocks.append(interval_table(records[0][1].folder))
    by_client = [row for _, row in scores if row["client"]]
    if is_single_run and by_client:
        keys = ["client", *headers]
        rows = []
        for row in by_client[:_MAX_CLIENT_ROWS]:
            rows.append([parse_cell(key, row.get(key, "")) for key in keys])
        summary = "Scores by client"
        if len(by_client) > _MAX_CLIENT_ROWS:
            summary += f" (the first {_MAX_CLIENT_ROWS} of {len(by_client)} rows; scores.csv has all)"
        blocks.append(collapsible(summary, html_table(keys, rows, "by_client")))
    for name, record in records[:MAX_MODELS]:
        blocks += curve_pictures(record.folder, "" if is_single_run else f"{name}: ")
    return blocks


def curve_pictures(folder: Path, prefix: str = "") -> list[str]:
    """Return the pictures of curves on held-out rows that a folder has; each caption begins with ``prefix``."""
    first = next(iter(read_csv(folder / "calibration.csv")), {})
    pictures = []
    for picture in find_pictures(CurveView):
        caption = picture.caption
        if picture.name == "calibration" and "at" in first:
            caption = _CALIBRATION_AT_A_TIME.format(first["at"])
        pictures.append(embed_picture(folder / f"{picture.name}.png", prefix + caption))
    return pictures


def find_intervals(folder: Path, by_client: bool = True) -> ScoreIntervals | None:
    """Return the intervals of a folder's scores.

    Returns None without predictions, for so many rows that they take long, and where they cannot be computed.
    """
    predictions = folder / PREDICTIONS_FILE
    if not predictions.is_file() or predictions.stat().st_size > _MAX_BYTES:
        return None
    try:
        return compute_intervals(folder, ScoreOptions(), by_client=by_client)
    except UserError:
        return None


def interval_columns(intervals: ScoreIntervals) -> dict[tuple[str, str, str], dict[str, str]]:
    """Return the ends of bootstrap intervals as columns NAME_low and NAME_high, as text.

    The keys are the set, model and client of a row of scores.csv.
    """
    columns: dict[tuple[str, str, str], dict[str, str]] = {}
    for row in intervals.rows:
        if row.method == BOOTSTRAP and row.low == row.low:
            of_row = columns.setdefault((row.split, row.models[0], row.client), {})
            of_row |= {f"{row.score}_low": str(row.low), f"{row.score}_high": str(row.high)}
    return columns


def interval_table(folder: Path) -> str:
    """Return a collapsible table of the scores of all held-out rows together, with intervals; "" without intervals."""
    intervals = find_intervals(folder, by_client=False)
    if intervals is None:
        return ""
    headers = ["model", "score", "method", "value", "low", "high"]
    rows = [[row.models[0], row.score, row.method, row.estimate, row.low, row.high] for row in intervals.rows]
    cells = [["" if value != value else value for value in row] for row in rows]
    caption = ". ".join([intervals.title, *intervals.warnings])
    return collapsible("Scores of held-out rows with intervals", html_table(headers, cells, "intervals", caption))
