"""The table of missing values by outcome in the page of a table."""

from collections.abc import Sequence
from typing import Any

from fcorun.data.tables.imputation.missing_by_outcome import MISSING_FILE
from fcorun.reports.page.elements import collapsible, html_table, paragraph
from fcorun.reports.page.page_files import parse_float, read_csv
from fcorun.reports.page.table_model import FittedTableModel, format_share
from fcorun.reports.run_table import format_number
from fcorun.results.models.inference_table import format_p

_SIGNIFICANCE = 0.05


def missing_by_outcome(model: FittedTableModel) -> list[str]:
    """Return a table of all clients' gaps by outcome, and one by client that opens on demand; empty without gaps."""
    rows = read_csv(model.record.folder / MISSING_FILE)
    all_clients_rows = _all_clients_rows(model)
    if not all_clients_rows:
        return []
    has_events = "events" in all_clients_rows[0]
    test = "exact test of independence" if has_events else "permutation test of equal means"
    note = (f"Gaps of the training rows by outcome. The p value is that of the {test} within each {model.client_word}; "
            "it is empty where the rows are too few, or all alike. If gaps depend on the outcome, a filled value says "
            "something about the outcome, and coefficients of the column may be biased.")  # fmt: skip
    blocks = [paragraph(note), _gaps_table(model, all_clients_rows, has_events, by_client=False)]
    by_client = [row for row in rows if row["client"]]
    if by_client:
        table = _gaps_table(model, by_client, has_events, by_client=True)
        blocks.append(collapsible(f"Gaps by outcome for each {model.client_word}", table))
    return blocks


def gaps_look_unrelated(model: FittedTableModel) -> bool:
    """Return whether gaps of each column were compared with the outcome, and no p value is below 0.05."""
    p_values = [parse_float(row["p_value"]) for row in _all_clients_rows(model)]
    return bool(p_values) and all(p_value >= _SIGNIFICANCE for p_value in p_values)  # nan is not


def _all_clients_rows(model: FittedTableModel) -> list[dict[str, Any]]:
    """Return the rows of missing.csv on all clients together."""
    return [row for row in read_csv(model.record.folder / MISSING_FILE) if not row["client"]]


def _gaps_table(model: FittedTableModel, rows: Sequence[dict[str, Any]], has_events: bool, *, by_client: bool) -> str:
    """Return an HTML table with a row for each column (and class, and client if ``by_client``).

    A row has the gaps with and without the outcome, or the means of a numeric outcome with and without a gap.
    """
    if has_events:
        headers = ["rows without a value", "with the outcome", "without the outcome", "p"]
        groups = ("events", "others")
    else:
        headers = ["rows without a value", "mean of the outcome there", "mean elsewhere", "p"]
        groups = ("missing", "present")
    lines = []
    for row in rows:
        missing = parse_float(row["missing"])
        cells = [f"{missing:.0f} of {row['rows']} ({format_share(missing, parse_float(row['rows']))})"]
        for group in groups:
            if has_events:
                part, whole = parse_float(row[f"missing_among_{group}"]), parse_float(row[group])
                cells.append(f"{part:.0f} of {whole:.0f} ({format_share(part, whole)})" if whole else "no row")
            else:
                cells.append(
                    format_number(parse_float(row[f"mean_where_{group}"])) if row[f"mean_where_{group}"] else ""
                )
        cells.append(format_p(parse_float(row["p_value"])) if row["p_value"] else "")
        name = model.label(row["column"])
        if row["outcome"] and model.has_coefficients_by_class:
            name += f", by {row['outcome']}"
        lines.append([name, *([row["client"]] if by_client else []), *cells])
    first = ["column", *([model.client_word] if by_client else [])]
    return html_table([*first, *headers], lines, numbers=range(len(first), len(first) + len(headers)))
