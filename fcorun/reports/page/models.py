"""Coefficients of runs, their scores on held-out rows, and pictures of curves: of a single run or the best of many."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fcorun.base.errors import UserError, abbreviate
from fcorun.base.records.record import PREDICTIONS_FILE, Record
from fcorun.base.records.tables import CALIBRATION, COEFFICIENTS, INTERVALS, SCORES
from fcorun.data.tasks import find_tasks
from fcorun.reports.page.elements import (
    bullet_list,
    collapsible,
    csv_table,
    embed_drawing,
    embed_picture,
    html_table,
    paragraph,
    parse_float,
    read_lines,
    read_table,
)
from fcorun.reports.pictures import coefficient_picture
from fcorun.reports.pictures.coefficient_picture import ModelView
from fcorun.reports.pictures.curve_groups import CurveView
from fcorun.reports.pictures.drawing_processes import draw_later
from fcorun.reports.pictures.picture import Picture, find_pictures
from fcorun.results.inference.methods import INTERVALS_TEXT
from fcorun.results.models.coefficients import load_coefficients, name_intercepts, nonzero_rows
from fcorun.results.score_intervals.intervals import compute_intervals
from fcorun.results.score_intervals.score_table import BOOTSTRAP, ScoreIntervals, ScoreOptions

MAX_COEFFICIENTS = 30  # of a model
MAX_MODELS = 6  # runs whose coefficients or curves are shown
_CALIBRATION_AT_A_TIME = (
    "Calibration at {}: the predicted risk of an event by then, and the observed one (one minus Kaplan-Meier) with its "
    "95 % interval, where rows are independent, of groups of rows with similar predictions; on the right by client. "
    "Dashed: perfect calibration. "
    "calibration.csv says how many rows had an event, were censored before, and were at risk then."
)
_MAX_CLIENT_ROWS = 200  # of scores by client
_MAX_BYTES = 2**19  # of predictions.csv, some 6,000 rows: intervals of more take many seconds


def coefficient_blocks(records: Sequence[tuple[str, Record]], *, with_intervals: bool = True) -> list[str]:
    """Return pictures and tables of the largest coefficients of each run that has any.

    ``records`` has the name and the record of each run. ``with_intervals`` adds the titled pictures of the model, and
    the picture and the sentences of ``fcorun infer``.
    """
    models = [(name, record, read_table(COEFFICIENTS, record.folder)) for name, record in records]
    models = [model for model in models if model[2]]
    shown = models[:MAX_MODELS]
    drawings = [_begin_coefficients(record) for _, record, _ in shown]
    model_drawings = [_begin_model_pictures(record) for _, record, _ in shown] if with_intervals else []
    blocks = []
    for i, (name, record, rows) in enumerate(shown):
        data = record.summary_or_empty.get("data", {})
        largest = nonzero_rows(rows, float(record.flat_config.get("cutoff") or 0), data)[:MAX_COEFFICIENTS]
        few_levels = describe_few_levels(data, [row["feature"] for row in largest])
        blocks += drawings[i](f"{name}: coefficients as trained.{few_levels}")
        task = find_tasks().get(data.get("task", ""))
        has_hazards = task is not None and task.has_events
        cells = []
        intercepts = [row for row in rows if row["parameter"] == "bias"]
        names = [*(row["feature"] for row in largest), *name_intercepts(rows)]
        for name_of_row, row in zip(names, [*largest, *intercepts], strict=True):
            value, original = parse_float(row["value"]), parse_float(row["value_original"])
            cells.append([name_of_row, row["class"], value, original])
            if has_hazards:
                cells[-1].append(float(np.exp(original)) if row["feature"] else "")
        headers = ["feature", "class", "as trained", "in its own units", *(["hazard ratio"] if has_hazards else [])]
        blocks.append(collapsible(f"{name}: the coefficients as a table", html_table(headers, cells)))
        blocks.append(embed_picture(record.folder / "brain.png", f"{name}: the weights on the brain."))
        if with_intervals:
            blocks += model_drawings[i]()
            blocks.append(embed_picture(record.folder / "inference.png", f"{name}: intervals; inference.csv has all."))
            blocks.append(meta_analysis_table(read_table(INTERVALS, record.folder)))
            blocks.append(bullet_list(read_lines(record.folder / INTERVALS_TEXT)))
    if len(models) > MAX_MODELS:
        more = len(models) - MAX_MODELS
        blocks.append(paragraph(f"Coefficients of {more} further best runs are in their coefficients.csv."))
    return blocks


def meta_analysis_table(intervals: Sequence[dict[str, Any]]) -> str:
    """Return how the clients differ in each coefficient, from the rows of inference.csv; "" without a meta-analysis."""
    columns = ["feature", "estimate", "standard_error", "low", "high", "p_value"]
    columns += ["tau2", "cochran_q", "q_p_value", "i2"]
    caption = ("The meta-analysis, per unit of a feature: tau2 is the variance between clients, in squared units of an "
               "estimate, Q has the p value of no difference between clients, and i2 is the share of the variation "
               "that is not chance. client_estimates.csv has the estimates of each client.")  # fmt: skip
    is_meta_analysis = bool(intervals) and "tau2" in intervals[0]
    return csv_table(intervals, "meta-analysis", caption, columns) if is_meta_analysis else ""


def draw_model_pictures(record: Record) -> list[str]:
    """Return drawings of the titled pictures of a record's linear model; [] of another record."""
    return _begin_model_pictures(record)()


def _begin_model_pictures(record: Record) -> Callable[..., list[str]]:
    return _begin_drawing(record, lambda picture: bool(picture.title))


def _begin_coefficients(record: Record) -> Callable[[str], list[str]]:
    """Return the function that returns the picture of a record's coefficients, below which a caption stands.

    The picture is that of the record; of a point of a sweep, which has none, the function draws it.
    """
    drawn = record.folder / f"{coefficient_picture.PICTURE.name}.png"
    if drawn.is_file():
        return lambda caption: [embed_picture(drawn, caption)]
    return _begin_drawing(record, lambda picture: picture is coefficient_picture.PICTURE)


def _begin_drawing(record: Record, chosen: Callable[[Picture], bool]) -> Callable[..., list[str]]:
    """Begin to draw the chosen pictures of a record's linear model, and return the function that returns the drawings.

    The function takes a caption in place of the picture's own. A record without such a model has no drawings.
    """
    try:
        coefficients = load_coefficients(record)
    except UserError:
        return lambda caption="": []
    view = ModelView(coefficients, record.picture_title, float(record.flat_config.get("cutoff") or 0))
    pictures = list(filter(chosen, find_pictures(ModelView)))
    waits = [draw_later(picture.render, view, ("svg",)) for picture in pictures]

    def finish(caption: str = "") -> list[str]:
        drawn = zip(pictures, waits, strict=True)
        return [embed_drawing(svg, caption or picture.caption) for picture, wait in drawn for svg in wait().values()]

    return finish


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
    scores = [{"run": name} | row for name, record in records for row in read_table(SCORES, record.folder)]
    overall = [row for row in scores if not row["client"]]
    if not overall:
        return []
    is_single_run = len(records) == 1
    columns = list(dict.fromkeys(key for row in overall for key in row if key not in ("run", "client")))
    note = "Test rows, if the data have some, were scored once, at the end."
    blocks: list[str] = []
    if is_single_run:
        blocks.append(csv_table(overall, "scores", note, columns))
        blocks.append(interval_table(records[0][1].folder))
        by_client = [row for row in scores if row["client"]]
        summary = "Scores by client"
        if len(by_client) > _MAX_CLIENT_ROWS:
            summary += f" (the first {_MAX_CLIENT_ROWS} of {len(by_client)} rows; scores.csv has all)"
        table = csv_table(by_client[:_MAX_CLIENT_ROWS], "by_client", columns=["client", *columns])
        blocks.append(collapsible(summary, table))
    else:
        blocks.append(csv_table(overall, "scores", note, ["run", *columns]))
    for name, record in records[:MAX_MODELS]:
        blocks += curve_pictures(record.folder, "" if is_single_run else f"{name}: ")
    return blocks


def curve_pictures(folder: Path, prefix: str = "") -> list[str]:
    """Return the pictures of curves on held-out rows that a folder has; each caption begins with ``prefix``."""
    first = next(iter(read_table(CALIBRATION, folder)), {})
    pictures = []
    for picture in find_pictures(CurveView):
        caption = picture.caption
        if picture.name == "calibration" and "at" in first:
            caption = _CALIBRATION_AT_A_TIME.format(first["at"])
        pictures.append(embed_picture(folder / f"{picture.name}.png", prefix + caption))
    return pictures


def begin_intervals(folder: Path, by_client: bool = True) -> Callable[[], ScoreIntervals | None]:
    """Begin to compute the intervals of a folder's scores as a picture is drawn; return the function that returns them.

    Returns None without predictions, for so many rows that they take long, and where they cannot be computed.
    """
    predictions = folder / PREDICTIONS_FILE
    if not predictions.is_file() or predictions.stat().st_size > _MAX_BYTES:
        return lambda: None
    wait = draw_later(compute_intervals, folder, ScoreOptions(), by_client=by_client)

    def finish() -> ScoreIntervals | None:
        try:
            return wait()
        except UserError:
            return None

    return finish


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
    intervals = begin_intervals(folder, by_client=False)()
    if intervals is None:
        return ""
    headers = ["model", "score", "method", "value", "low", "high"]
    cells = []
    for row in intervals.rows:
        numbers = ["" if value != value else value for value in (row.estimate, row.low, row.high)]
        cells.append([row.models[0], row.score, row.method, *numbers])
    caption = ". ".join([intervals.title, *intervals.warnings])
    return collapsible("Scores of held-out rows with intervals", html_table(headers, cells, "intervals", caption))
