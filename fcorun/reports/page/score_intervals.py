"""Intervals of the scores of held-out rows, for a page."""

from pathlib import Path

from fcorun.base.errors import UserError
from fcorun.base.records.record import PREDICTIONS_FILE
from fcorun.reports.page.elements import collapsible, html_table
from fcorun.results.score_intervals.intervals import compute_intervals
from fcorun.results.score_intervals.score_table import BOOTSTRAP, ScoreIntervals, ScoreOptions

_MAX_BYTES = 2**19  # of predictions.csv, some 6,000 rows: intervals of more take many seconds


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
