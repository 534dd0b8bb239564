"""The third section of the page of a table: how well the model does on rows that it was not trained on."""

import math
from collections.abc import Sequence
from typing import Any

from fcorun.base.errors import FEW_EVENTS, describe_few_events
from fcorun.reports.page.elements import collapsible, html_table, paragraph, parse_float
from fcorun.reports.page.models import curve_pictures
from fcorun.reports.page.table_model import HELD_OUT_SETS, FittedTableModel
from fcorun.reports.pictures.forest import format_interval
from fcorun.results.scores.score import find_score, list_scores

_MAX_CLIENTS = 30  # more are in a table that opens on demand
_FEW_SCORES = 3  # of each client, counts included, where none is chosen for a table by client
_COUNTS = {"n": "rows", "events": "events"}  # which stand before the scores
_SET_SENTENCES = {
    "test": "Test rows: neither the training nor any choice has seen them; scored once.",
    "validation": "Validation rows: the training has not seen them.",
    "out_of_fold": "Out of fold: each training row is predicted by a model whose training left out the row's fold. ",
}
_CHOSE_THRESHOLD = " The threshold was chosen on these rows: scores at the threshold are slightly optimistic."
_CHOSEN_ON_SAME_FOLDS = "The strength was chosen on the same folds, so that these scores are slightly optimistic."
OWN_SCALE = "data.standardize=per_client: without training rows"  # a warning about the data that stands at the scores
NO_HELD_OUT_ROWS = "No row was held out, so that the page cannot say how well the model predicts new rows."
_NESTED = "The strength, too, was chosen without the row's fold (nested cross-validation)."


def performance_sentence(model: FittedTableModel) -> str:
    """Return one sentence on the main score on held-out rows; "" without scores."""
    for row in rows_of_all(model):
        for headline in list_scores(lambda places: places.headline):
            name = headline.name
            if score := format_score(row, name):
                rows = f"{int(parse_float(row['n'])):,} held-out rows ({HELD_OUT_SETS[row['set']]})"
                events = format_score(row, "events")
                rows += f" with {events} events" if events else ""
                few = parse_float(row.get("events")) < FEW_EVENTS
                warning = f"; scores from fewer than {FEW_EVENTS} events say little" if few else ""
                bounds = " (certain bounds, no confidence interval)" if _is_between_bounds(row, name) else ""
                return f"On {rows}, the {headline.label} is {score}{bounds}{warning}."
    return ""


def performance_blocks(model: FittedTableModel) -> list[str]:
    """Return scores on held-out rows of all clients and by client, and the pictures of curves."""
    rows = rows_of_all(model)
    if not rows:
        return [paragraph(NO_HELD_OUT_ROWS)]
    sentences = []
    for name in HELD_OUT_SETS:
        if not any(row["set"] == name for row in rows):
            continue
        sentence = _SET_SENTENCES[name]
        if model.selection and name == "out_of_fold":
            sentence += _NESTED if model.selection.get("nested") else _CHOSEN_ON_SAME_FOLDS
        if name in threshold_sets(model):
            sentence += _CHOSE_THRESHOLD
        sentences.append(sentence)
    sentences += describe_scores(model)
    blocks = [score_table(model, rows), *(paragraph(text, "small") for text in sentences), client_scores(model)]
    blocks += curve_pictures(model.record.folder)
    if model.selection_folder:
        blocks += curve_pictures(model.selection_folder, "Out of fold. ")
    return blocks


def threshold_sets(model: FittedTableModel) -> set[str]:
    """Return the sets of held-out rows that chose a threshold between two classes, of the run or of its selection."""
    summaries = (model.summary, model.selection or {})
    return {(summary.get("threshold") or {}).get("chosen_on", "") for summary in summaries} - {""}


def describe_threshold_rows(model: FittedTableModel) -> list[str]:
    """Return a sentence about each set of held-out rows that chose a threshold, for a page without the other ones."""
    titles = {name: sentence.partition(":")[0] for name, sentence in _SET_SENTENCES.items()}
    return [f"{titles[name]}: {_CHOSE_THRESHOLD.strip()}" for name in titles if name in threshold_sets(model)]


def describe_scores(model: FittedTableModel) -> list[str]:
    """Return which rows scaled themselves, what bounds are, and what the intervals in brackets of each set are."""
    texts = [f"{text}." for text in map(str, model.summary.get("warnings") or ()) if text.startswith(OWN_SCALE)]
    if any(_is_between_bounds(row, name) for row in rows_of_all(model) for name in _names([row])):
        texts.append("Between: certain bounds on the score of these rows, since sites send counts in bins and not the "
                     "order of all rows; they are no confidence interval.")  # fmt: skip
    for intervals in model.score_intervals:
        warnings = [text[:1].upper() + text[1:] for text in intervals.warnings]
        texts.append(". ".join([f"In brackets: {intervals.title}", *warnings]) + ".")
    return texts


def format_score(row: dict[str, Any], name: str) -> str:
    """Return a score of a row, with the interval of its columns NAME_low and NAME_high if the row has them; or "".

    A score without a value, as over sites, lies between the two.
    """
    value, low, high = (parse_float(row.get(key)) for key in (name, f"{name}_low", f"{name}_high"))
    has_interval = not math.isnan(low + high)
    if name in ("n", "events"):
        return "" if math.isnan(value) else f"{int(value):,}"
    if math.isnan(value):
        return f"between {low:.3f} and {high:.3f}" if has_interval else ""
    number_format = ".3g"
    if 0.01 <= abs(value) < 1000:
        number_format = ",.2f"
    elif 1000 <= abs(value) < 1e6:
        number_format = ",.0f"
    if not has_interval:
        return format(value, number_format)
    text = f"{value:{number_format}} ({low:{number_format}} to {high:{number_format}})"
    if abs(value) < 0.01 or "-0.00" in text:  # the width of the interval sets the decimals
        return format_interval(low, value, high, null=0.0).replace("\N{MINUS SIGN}", "-")
    return text


def _is_between_bounds(row: dict[str, Any], name: str) -> bool:
    """Return whether a row has bounds of a score and no value, as over sites."""
    return format_score(row, name).startswith("between")


def rows_of_all(model: FittedTableModel) -> list[dict[str, Any]]:
    """Return the scores of all clients together, a row for each set and model."""
    return [row for row in model.held_out_scores if not row["client"]]


def score_table(model: FittedTableModel, rows: Sequence[dict[str, Any]], names: Sequence[str] = ()) -> str:
    """Return a row for each score, and a column for each set of held-out rows and each model.

    ``names`` are the scores of a short table; by default all are shown.
    """
    several_models = len({row["model"] for row in rows}) > 1
    headers = ["score"]
    for row in rows:
        headers.append(HELD_OUT_SETS[row["set"]] + (f", {row['model']} models" if several_models else ""))
    lines = []
    for name in _choose_names(names, rows) or _names(rows):
        cells = [format_score(row, name) for row in rows]
        if any(cells):
            lines.append([_label(model, name), *cells])
    return html_table(headers, lines, numbers=range(1, len(headers)))


def _choose_names(names: Sequence[str], rows: Sequence[dict[str, Any]]) -> Sequence[str]:
    """Return these scores; none where the rows have none of them but counts, as with several classes."""
    has_any = any(format_score(row, name) for row in rows for name in names if name not in _COUNTS)
    return names if has_any else ()


def _names(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the scores of rows in the order of the page, without losses; those unknown to the page come last."""
    given = dict.fromkeys(key for row in rows for key in row if key not in ("set", "model", "client", "positive"))
    known = [*_COUNTS, *(score.name for score in list_scores(lambda places: places.page))]
    names = [name for name in known if name in given or f"{name}_low" in given]
    names += [name for name in given if name not in known and not name.endswith(("_low", "_high"))]
    return [name for name in names if not name.endswith("loss")]


def score_names(brief: bool = False, without: Sequence[str] = ()) -> list[str]:
    """Return the counts and scores that a page lists by client, or a page of one sheet if ``brief``."""
    names = list(_COUNTS)
    for score in list_scores(lambda places: places.page):
        if score.places.brief or (score.places.by_client and not brief):
            names.append(score.name)
    return [name for name in names if name not in without]


def _label(model: FittedTableModel, name: str) -> str:
    """Return the label of a score; those that need a threshold between the classes name the threshold."""
    score = find_score(name)
    if score is None:
        return _COUNTS.get(name, name.replace("_", " "))
    label = score.long_label or score.label
    shared = (model.summary.get("threshold") or {}).get("shared")
    if score.needs_threshold and model.task.has_two_classes and isinstance(shared, float):
        label += f" (threshold {shared:.3g})"
    return label


def client_scores(model: FittedTableModel, names: Sequence[str] = ()) -> str:
    """Return these scores of each client, of the first held-out rows and the first model that have rows by client."""
    by_client = [row for row in model.held_out_scores if row["client"]]
    if not by_client:
        return ""
    first = by_client[0]["set"], by_client[0]["model"]
    rows = [row for row in by_client if (row["set"], row["model"]) == first]
    names = _choose_names(names or score_names(), rows) or _names(rows)[:_FEW_SCORES]
    names = [name for name in names if any(format_score(row, name) for row in rows)]
    headers = [model.client_word, *(_label(model, name).partition(" (")[0] for name in names)]
    lines = [[row["client"], *(format_score(row, name) for name in names)] for row in rows]
    events = {str(row["client"]): int(row["events"]) for row in rows if row.get("events")}
    few = describe_few_events(events)
    warning = f"{few[0].upper()}{few[1:]}." if few else "Scores of few rows are uncertain."
    caption = f"By {model.client_word}, {HELD_OUT_SETS[first[0]]}. {warning}"
    table = html_table(headers, lines, caption=caption, numbers=range(1, len(headers)))
    return collapsible(f"Scores of {len(rows)} clients", table) if len(rows) > _MAX_CLIENTS else table
