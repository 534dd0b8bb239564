"""The first page of a published folder: a row for each result, with its data, its methods and what came out."""

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fcorun.base.errors import UserError
from fcorun.base.records.contents import PERMUTATION, SELECTION, STABILITY
from fcorun.base.records.formats import read_json
from fcorun.base.records.record import Record, load_records, split_damaged
from fcorun.base.records.sweep_settings import load_settings
from fcorun.base.system.files import find_paths
from fcorun.reports.build_table import build_table
from fcorun.reports.page import elements
from fcorun.reports.page.build_page import render_page
from fcorun.reports.page.elements import parse_float
from fcorun.reports.page.studies import count_claims, describe_second
from fcorun.reports.results_to_share import COMPARISON_FILE
from fcorun.reports.run_table import format_number
from fcorun.reports.sweep_report import STATUSES

_STUDY_FILES = (SELECTION, STABILITY, PERMUTATION)
_HEADERS = ("result", "kind", "data", "method", "verdict")


def build_index(title: str, results: Iterable[tuple[Path, str, str, str]]) -> str:
    """Return the page as HTML. A result has a folder, a kind, a name, and the address of its page from this one."""
    rows = []
    for folder, kind, name, address in results:
        link = elements.link_to_page(quote(address), name)
        records, _ = split_damaged(load_records(folder), Record.check)
        data, methods = _name_inputs(folder, records)
        rows.append([link, kind, data, methods, _describe_verdict(folder, kind, records)])
    page = elements.Page()
    search = elements.render_template("filter.html", example="data=lasso kind=run")
    table = elements.html_table(_HEADERS, rows, "runs", keys=_HEADERS)
    page.add_section("results", f"{len(rows)} results", search, table)
    return render_page(page, "", title, ["Each result has a page. A header sorts the table, a word filters its rows."])


def _name_inputs(folder: Path, records: list[Record]) -> tuple[str, str]:
    """Return the data sets and the algorithms of a result, by its records or else by the labels of its studies."""
    if records:
        frame = build_table(records).frame
        data, methods = frame["data"].astype(str), frame["algo"].astype(str)
    else:
        paths = [path for file in _STUDY_FILES for path in find_paths(folder, file.name)]
        labels = " ".join(str(read_json(path).get("label")) for path in paths)
        data, methods = re.findall(r"\bdata=(\S+)", labels), re.findall(r"\balgo=(\S+)", labels)
    return ", ".join(dict.fromkeys(data)), ", ".join(dict.fromkeys(methods))


def _describe_verdict(folder: Path, kind: str, records: list[Record]) -> str:
    """Return what came out in some words, after the status of what is not done."""
    if kind in ("run", "sweep"):
        return _describe_runs(folder, records)
    if kind == "figure":
        return count_claims(folder)
    if kind == "comparison":
        return str(read_json(folder / COMPARISON_FILE).get("verdict") or "")
    about = next((content for file in _STUDY_FILES if (content := file.read(folder))), {})
    status = "" if about.get("status") == "done" else f"{about.get('status')}: "
    return status + _describe_study(about)


def _describe_study(about: dict[str, Any]) -> str:
    """Return the result of a selection, a stability selection or a permutation test; "" before it has one."""
    if "metric" in about:
        chosen = f"{about.get('param_name')} {parse_float(about.get('chosen')):.4g}{describe_second(about)}"
        return f"{chosen} by {about['metric']}, rule {about.get('rule')}"
    if "threshold" in about:
        units = about.get("units", "features")
        return f"{len(about.get('stable', ()))} of {about.get('features')} {units} are stable"
    return "; ".join(map(str, about.get("statement", ())[:1]))


def _describe_runs(folder: Path, records: list[Record]) -> str:
    """Return how many runs have which status, and the best value of the metric if all compare, with its algorithm."""
    settings = load_settings(folder)
    table = build_table(records, settings.tail_rounds, conditions=settings.conditions)
    count = Counter(table.frame["status"])
    parts = [f"{count[status]} {status}" for status in STATUSES if count[status]]
    text = ", ".join(parts) if len(records) > 1 else str(table.frame["status"][0])
    try:
        metric = table.resolve_metric(settings.metric)
    except UserError:  # of a metric that no run has measured
        return text
    points = table.without_baselines(table.best_points(metric)).dropna(subset="metric").sort_values("metric")
    is_one_problem = all(table.frame[key].nunique(dropna=False) < 2 for key in table.problem_keys(metric))
    if len(points) and is_one_problem:
        best = points.iloc[-1 if table.metrics[metric].higher else 0]
        text += f"; {metric} {format_number(float(best['metric']))} by {table.algo_title(best['algo'])}"
    return text
