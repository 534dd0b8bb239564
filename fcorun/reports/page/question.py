"""The first section of the page of a table: what was asked, of which rows, and how the rows were prepared."""

import math
from collections.abc import Sequence
from typing import Any

from fcorun.base.records.single_patients import hide_row_numbers
from fcorun.base.records.tables import GAPS
from fcorun.reports.page.elements import (
    bullet_list,
    collapsible,
    facts_table,
    html_table,
    paragraph,
    parse_float,
    read_table,
)
from fcorun.reports.page.performance import OWN_SCALE
from fcorun.reports.page.studies import describe_folds
from fcorun.reports.page.table_model import FittedTableModel, format_share
from fcorun.reports.run_table import format_number

_MAX_CLIENTS = 30  # more are in a table that opens on demand
_SET_NAMES = {"train": "for training", "validation": "for validation", "test": "for the test"}
_FILLS = {
    "mean": "the mean of the training rows, text by the most frequent level",
    "median": "the median of the training rows, text by the most frequent level",
    "indicator": "the mean of the training rows, and marked by a feature 'not recorded'",
}
# warnings that the tables and sentences of the page replace
_TOLD_ELSEWHERE = ("gaps are filled", "text columns are coded", "of the classes ", OWN_SCALE)


def asked_sentence(model: FittedTableModel) -> str:
    """Return one sentence on what the model estimates, by which columns, and from which rows."""
    n_columns = len(model.encoding.columns) or len(model.data["feature_names"])
    totals = _add_sets(model.outcome_rows)
    total = totals.get("", {})
    rows = total.get("rows") or model.data.get("examples", 0) + model.data.get("validation_examples", 0)
    text = f"A model that estimates the {model.task.estimand} of \N{LEFT DOUBLE QUOTATION MARK}"
    text += f"{model.outcome}\N{RIGHT DOUBLE QUOTATION MARK} from {n_columns} columns of a table: {rows:,} rows "
    n_clients = model.data.get("clients") or 0  # those with training rows
    n_held_out = max(sum(bool(name) for name in totals) - n_clients, 0)
    text += f"of {n_clients + n_held_out} clients"
    if model.client_word != "client":
        text += f" (by {model.client_word})"
    if n_held_out:
        text += f", {'one' if n_held_out == 1 else n_held_out} of them held out"
    if "events" in total:
        text += f"; {total['events']:,} rows ({format_share(total['events'], rows)}) have the outcome"
    elif "mean" in total:
        text += f"; the mean of the outcome is {total['mean']:.4g}"
        text += f" (standard deviation {total['deviation']:.3g})" if total["deviation"] else ""
    return f"{text}."


def question_blocks(model: FittedTableModel) -> list[str]:
    """Return the rows by client, and facts on the columns, the gaps and the rows that were held out."""
    gaps = [_gap_table(model), *missing_by_outcome(model)]
    facts = facts_table(describe_preparation(model))
    return [client_table(model), facts, *gaps, bullet_list(data_warnings(model))]


def data_warnings(model: FittedTableModel) -> list[str]:
    """Return the warnings about the data that the tables of the page do not replace."""
    notes = []
    for warning in model.summary.get("warnings") or ():
        text = str(warning)
        for option in ("path", "group"):  # which the page tells in words
            text = text.removeprefix(f"data.{option}={model.config.get(f'data.{option}')}: ")
        text = hide_row_numbers(text)
        if not text.startswith(_TOLD_ELSEWHERE) or (text.startswith("gaps") and "gaps" not in model.data):
            notes.append(text[:1].upper() + text[1:] + ".")
    return notes


def _add_sets(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the counts of each client over all splits, and the mean and deviation of a target; "" is all clients."""
    totals: dict[str, dict[str, Any]] = {}
    for row in rows:
        total = totals.setdefault(str(row["client"]), {"rows": 0})
        n, n_before = row["rows"], total["rows"]
        total["rows"] = n + n_before
        total[row["set"]] = n
        if "events" in row:
            total["events"] = total.get("events", 0) + row["events"]
        if "mean" in row and n:
            squares = (n - 1) * (row["deviation"] or 0) ** 2 + total.get("squares", 0.0)
            difference = row["mean"] - total.get("mean", 0.0)
            total["squares"] = squares + difference**2 * n * n_before / (n + n_before)
            total["mean"] = total.get("mean", 0.0) + difference * n / (n + n_before)
            total["deviation"] = math.sqrt(total["squares"] / max(n + n_before - 1, 1))
    return totals


def client_table(model: FittedTableModel) -> str:
    """Return a row for each client, the last for all: its rows by split, and its events or the mean of its target."""
    totals = _add_sets(model.outcome_rows)
    sets = [name for name in _SET_NAMES if any(name in total for total in totals.values())]
    has_events = any("events" in total for total in totals.values())
    has_mean = any("mean" in total for total in totals.values())
    headers = [model.client_word, "rows", *([_SET_NAMES[name] for name in sets] if len(sets) > 1 else [])]
    headers += ["with the outcome", "share"] * has_events + ["mean", "standard deviation"] * has_mean
    clients = [name for name in totals if name]
    lines = []
    for client in (*clients, ""):
        total = totals.get(client)
        if total is None:
            continue
        counts = [total["rows"], *([total.get(name, 0) for name in sets] if len(sets) > 1 else [])]
        cells = [client or "all", *(f"{count:,}" for count in counts)]
        if has_events:
            cells += [f"{total.get('events', 0):,}", format_share(total.get("events", 0), total["rows"])]
        if has_mean:
            cells += [total.get("mean"), total.get("deviation")]
        lines.append(cells)
    if not lines:
        return ""
    table = html_table(headers, lines, numbers=range(1, len(headers)))
    return collapsible(f"The rows of {len(clients)} clients", table) if len(clients) > _MAX_CLIENTS else table


def describe_preparation(model: FittedTableModel) -> list[tuple[str, str]]:
    """Return names and sentences on columns, gaps, held-out rows and scaling."""
    facts = [("Outcome", f"{model.outcome} (column '{model.config['data.target']}')")]
    columns = [model.label(column.name) for column in model.encoding.columns]
    n_features = len(model.data["feature_names"])
    if columns:
        text = ", ".join(columns)
        if n_features != len(columns):
            text += f": {len(columns)} columns, {n_features} features, since each level of a text is a feature"
            if curves := dict.fromkeys(model.encoding.curve_of_feature.values()):
                text += f", and each term of the curves of {', '.join(map(model.label, curves))}"
        facts.append(("Candidate features", text))
    facts.append(("Left out", _describe_left_out(model)))
    missing = str(model.config.get("data.missing") or "")
    if model.data.get("gaps"):
        counts = model.data["gaps"].values()
        fill = _FILLS.get(missing, "the values of an earlier record")
        text = f"{sum(counts):,} in {len(counts)} columns, filled by {fill}"
        if n_tables := model.config.get("imputations"):
            text += f"; for the fit, those of training rows were instead drawn {n_tables} times by chained equations"
        facts.append(("Gaps", text))
    elif "gaps" in model.data:
        facts.append(("Gaps", "none: each row has a value of each feature"))
    elif model.is_over_sites:
        text = "none: a site with a gap refuses the plan"
        if missing in _FILLS:
            text = (
                f"if any, filled over all sites by {_FILLS[missing]}; the record does not say which columns have gaps"
            )
        facts.append(("Gaps", text))
    facts.append(("Held out", _describe_held_out(model)))
    if str(model.config.get("data.standardize")) == "scale":
        facts.append(("Scale", "each feature was divided by its standard deviation in all training rows, not centred"))
    elif str(model.config.get("data.standardize")) == "pooled":
        facts.append(("Scale", "each feature was scaled by its mean and standard deviation in all training rows"))
    elif str(model.config.get("data.standardize")) == "per_client":
        facts.append(("Scale", "each client's features were scaled by their mean and standard deviation there"))
    weight = "rows count in training, and in losses, by"
    if model.config.get("data.weight_kind") == "frequency":
        weight = "each row stands for as many equal rows, in all numbers of this page, as it has of"
    for option, text in (
        ("weight", weight),
        ("offset", "the linear predictor has the added term"),
        ("group", "rows of one group stay together; a group is a value of"),
    ):
        if column := model.config.get(f"data.{option}"):
            facts.append((option.capitalize(), f"{text} '{model.label(str(column))}'"))
    return facts


def _describe_left_out(model: FittedTableModel) -> str:
    """Return the columns that are no features, and the rows that take no part."""
    dropped = [*(model.config.get("data.ignore") or ()), *(model.config.get("data.keep") or ())]
    parts = []
    if dropped:
        noun = "column" if len(dropped) == 1 else "columns"
        parts.append(f"the {noun} {', '.join(model.label(str(name)) for name in dropped)}")
    if model.config.get("data.only"):
        parts.append("all columns that are not named above")
    is_weighted = bool(model.config.get("data.weight"))
    parts.append("rows of weight 0, if any, take no part in the fit" if is_weighted else "no row was left out")
    return "; ".join(parts)


def _describe_held_out(model: FittedTableModel) -> str:
    """Return a sentence on the rows for validation and for the test, and on the folds of a selection."""
    by_option = {
        "validation": int(model.data.get("validation_examples") or 0),
        "test": int(model.data.get("test_examples") or 0),
    }
    total = int(model.data.get("examples") or 0) + sum(by_option.values())
    parts = []
    for option, count in by_option.items():
        if not count:
            continue
        chosen = model.config.get(f"data.{option}")
        how = f"drawn at random among each {model.client_word}'s rows"
        if isinstance(chosen, list):
            how = f"all rows of {', '.join(map(str, chosen))}"
        elif model.config.get("data.split"):
            how = f"as the column '{model.config['data.split']}' marks them"
        elif model.config.get("data.group"):
            how = "whole groups, drawn at random"
        parts.append(f"{count:,} rows ({format_share(count, total)}) for {option}, {how}")
    if not parts:
        parts.append("no row for validation or test")
    if model.choice:
        rows = int(model.data.get("examples") or 0)
        folds = describe_folds(model.choice)
        parts.append(f"the {rows:,} training rows were divided into {folds}, to choose the strength of the penalty")
        nested = model.choice.get("nested")
        if isinstance(nested, dict):
            parts.append(f"{nested.get('folds')} outer folds judge the whole procedure, choice included")
    return "; ".join(parts)


def _gap_table(model: FittedTableModel) -> str:
    """Return a row for each column with gaps: their number, their share of all rows, and what filled them."""
    gaps = model.data.get("gaps") or {}
    total = _add_sets(model.outcome_rows).get("", {}).get("rows", 0)
    fills = {column.name: column.fill for column in model.encoding.columns}
    rows = []
    for name, count in gaps.items():
        fill = fills.get(name)
        rows.append([model.label(name), count, format_share(count, total), "" if fill is None else format_number(fill)])
    return html_table(["column", "rows without a value", "share", "filled by"], rows, numbers=(1, 2))


def missing_by_outcome(model: FittedTableModel) -> list[str]:
    """Return a table of all clients' gaps by outcome, and one by client that opens on demand; empty without gaps."""
    rows = read_table(GAPS, model.record.folder)
    all_clients_rows = _all_clients_rows(model)
    if not all_clients_rows:
        return []
    has_events = "events" in all_clients_rows[0]
    note = ("Gaps of the training rows by outcome. If gaps depend on the outcome, a filled value says something about "
            "the outcome, and coefficients of the column may be biased.")  # fmt: skip
    blocks = [paragraph(note), _gaps_table(model, all_clients_rows, has_events, by_client=False)]
    by_client = [row for row in rows if row["client"]]
    if by_client:
        table = _gaps_table(model, by_client, has_events, by_client=True)
        blocks.append(collapsible(f"Gaps by outcome for each {model.client_word}", table))
    return blocks


def _all_clients_rows(model: FittedTableModel) -> list[dict[str, Any]]:
    """Return the rows of missing.csv on all clients together."""
    return [row for row in read_table(GAPS, model.record.folder) if not row["client"]]


def _gaps_table(model: FittedTableModel, rows: Sequence[dict[str, Any]], has_events: bool, *, by_client: bool) -> str:
    """Return a row for each column (and class, and client if ``by_client``): its gaps, by outcome."""
    if has_events:
        headers = ["rows without a value", "with the outcome", "without the outcome"]
        groups = ("events", "others")
    else:
        headers = ["rows without a value", "mean of the outcome there", "mean elsewhere"]
        groups = ("missing", "present")
    lines = []
    for row in rows:
        missing = parse_float(row["missing"])
        cells = [f"{missing:.0f} of {row['rows']} ({format_share(missing, parse_float(row['rows']))})"]
        for group in groups:
            if has_events:
                part, whole = parse_float(row.get(f"missing_among_{group}")), parse_float(row.get(group))
                cells.append(f"{part:.0f} of {whole:.0f} ({format_share(part, whole)})" if whole else "no row")
            else:
                cells.append(format_number(parse_float(row.get(f"mean_where_{group}"))))  # "" for an empty cell
        name = model.label(row["column"])
        if row["outcome"] and model.has_coefficients_by_class:
            name += f", by {row['outcome']}"
        lines.append([name, *([row["client"]] if by_client else []), *cells])
    first = ["column", *([model.client_word] if by_client else [])]
    return html_table([*first, *headers], lines, numbers=range(len(first), len(first) + len(headers)))
