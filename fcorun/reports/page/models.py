"""The models of the best points: their coefficients, and their scores on rows that were held out."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fcorun.records.formats import read_text
from fcorun.records.record import Record
from fcorun.reports.page.elements import Page, collapsible, embed_picture, html_table, paragraph, to_text

MAX_COEFFICIENTS = 30  # coefficients of a model
MAX_MODELS = 6  # of which coefficients are drawn
_CLIENTS = 200  # rows of scores by client


def coefficient_blocks(page: Page, records: Sequence[tuple[str, Record]]) -> list[str]:
    """A chart of the largest coefficients of each of these runs that has them, and a table of all that are shown."""
    found = []
    there = [(name, record, rows) for name, record in records if (rows := read_csv(record.folder / "coefficients.csv"))]
    for name, record, rows in there[:MAX_MODELS]:
        cutoff = float(record.flat_config.get("cutoff") or 0)
        features = [row for row in rows if row["parameter"] != "bias"]
        kept = [row for row in features if abs(parse_float(row["value"])) > cutoff]
        shown = sorted(kept, key=lambda row: -abs(parse_float(row["value"])))[:MAX_COEFFICIENTS]
        labels = [" ".join(filter(None, (row["feature"], row["class"]))) for row in shown]
        original = [f"in its own units {to_text(parse_float(row['value_original']))}" if row["value_original"] else ""
                    for row in shown]  # fmt: skip
        classes = list(dict.fromkeys(row["class"] for row in rows))
        speaks = f"; above 0 speaks for the class '{to_text(classes[0])}'" if len(classes) == 1 and classes[0] else ""
        count = f"{len(kept)} of {len(features)} coefficients exceed cutoff={cutoff:g}."
        count += (
            f" The {MAX_COEFFICIENTS} largest are shown; coefficients.csv has all."
            if len(kept) > MAX_COEFFICIENTS
            else ""
        )
        if shown:
            ticks = [to_text(label if len(label) < 40 else label[:38] + "…") for label in labels]
            told = [[to_text(label), unit] for label, unit in zip(labels, original, strict=True)]
            bar = {"type": "bar", "orientation": "h", "x": [parse_float(row["value"]) for row in shown],
                   "y": [*range(len(shown))], "customdata": told,
                   "marker": {"color": "#0072B2"}, "showlegend": False,
                   "hovertemplate": "%{customdata[0]}: %{x:.5g}<br>%{customdata[1]}<extra></extra>"}  # fmt: skip
            axis = {"autorange": "reversed", "tickvals": [*range(len(shown))], "ticktext": ticks, "automargin": True}
            found.append(page.add_chart(f"{name}: {count}", [bar], yaxis=axis, height=110 + 17 * len(shown),
                                    xaxis={"title": {"text": f"coefficient, as trained{speaks}"}}))  # fmt: skip
        else:
            found.append(paragraph(f"{name}: {count}"))
        bias = [[row["class"], parse_float(row["value"]), parse_cell(row["value_original"])] for row in rows if
                row["parameter"] == "bias"]  # fmt: skip
        inner = [[*pair, parse_float(row["value"]), parse_cell(row["value_original"])] for row in shown
                 for pair in [(row["feature"], row["class"])]]  # fmt: skip
        inner += [["(intercept)", *row] for row in bias]
        heads = ["feature", "class", "as trained", "in its own units"]
        found.append(collapsible(f"{name}: the coefficients as a table", html_table(heads, inner)))
        found.append(embed_picture(record.folder / "brain.png", f"{name}: the weights on the brain."))
    if len(there) > MAX_MODELS:
        found.append(
            paragraph(f"Coefficients of {len(there) - MAX_MODELS} more best runs are in their coefficients.csv.")
        )
    return found


def score_blocks(records: Sequence[tuple[str, Record]]) -> list[str]:
    """The scores of these runs for all rows of a set, and of a single one those by client; nothing without."""
    every = [(name, row) for name, record in records for row in read_csv(record.folder / "scores.csv")]
    whole = [(name, row) for name, row in every if not row["client"]]
    if not whole:
        return []
    heads = [key for key in dict.fromkeys(key for _, row in whole for key in row) if key != "client"]
    named = len(records) > 1
    rows = [[*([name] if named else []), *(parse_cell(row.get(key, "")) for key in heads)] for name, row in whole]
    found = [html_table([*(["run"] if named else []), *heads], rows, "scores",
                   "Rows of the test, where there are any, were scored once, at the end.")]  # fmt: skip
    clients = [row for _, row in every if row["client"]]
    if not named and clients:
        keys = ["client", *heads]
        inner = html_table(
            keys, [[parse_cell(row.get(key, "")) for key in keys] for row in clients[:_CLIENTS]], "by_client"
        )
        more = f" (the first {_CLIENTS} of {len(clients)} rows; scores.csv has all)" if len(clients) > _CLIENTS else ""
        found.append(collapsible(f"Scores by client{more}", inner))
    return found


def read_csv(path: Path) -> list[dict[str, Any]]:
    """The rows of a CSV; none where there is no file that can be read."""
    try:
        return list(csv.DictReader(io.StringIO(read_text(path), newline="")))
    except (OSError, ValueError, csv.Error):
        return []


def parse_float(value: Any) -> float:
    """A value of a file as a number, nan where it is none."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")


def parse_cell(text: str) -> Any:
    """A cell of a CSV as a number where it is one."""
    try:
        return int(text) if text.lstrip("-").isdecimal() else float(text)
    except ValueError:
        return text
