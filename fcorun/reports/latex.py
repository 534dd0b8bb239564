"""The table of the best points for a paper: LaTeX, with the rules of booktabs."""

import re
from functools import partial
from typing import Any

from fcorun.reports.run_table import SEED_KEYS, RunTable, describe_band
from fcorun.reports.sweep_report import best_point_notes, count_distinct_digits, key_header, tail_caption


def format_best_latex(runs: RunTable, metric: str) -> str:
    """Return a tabular with a row for each method on each data set: its keys, the metric, and the band over seeds.

    The best value on each problem, without those of baselines, is bold if all runs have the same number of rounds.
    Raises UserError as ``RunTable.resolve_metric``.
    """
    import pandas as pd

    best = runs.best_points(metric)
    keys = [key for key in runs.varied_keys if key not in SEED_KEYS]
    has_band = bool((best["seeds"] > 1).any())

    table = pd.DataFrame({"method": best["algo"].map(runs.algo_title)})
    if runs.frame["data"].nunique() > 1:
        table["data"] = best["data"]
    n_text_columns = len(table.columns)
    formatters = {}
    last_parts = [key.rpartition(".")[2] for key in keys]
    for key, last in zip(keys, last_parts, strict=True):
        header = key
        if key in runs.tail_metrics:
            header = key_header(runs, key)
        elif last_parts.count(last) == 1 and last not in ("method", "data", metric, "seeds"):
            header = last
        table[header] = best[key]
        formatters[header] = partial(_format_cell, digits=count_distinct_digits(best[key]))
    table[metric] = best["metric"].where(best["seeds"] > 0, best["status"])
    format_metric = partial(_format_cell, digits=count_distinct_digits(best["metric"]))
    formatters[metric] = format_metric
    if has_band:
        band = describe_band(set(best["seeds"]) - {0}, runs.seed_kind).replace("-", "--")
        ends = pd.Series(list(zip(best["low"], best["high"], strict=True)), best.index)
        table[band] = ends.where(best["seeds"] > 1, None)
        formatters[band] = lambda ends: " to ".join(map(format_metric, ends))
        table["seeds"] = best["seeds"]

    def format_bold(value: Any) -> str:
        """Return the commands for a bold cell; textbf alone does not make its formulas bold."""
        return "boldmath: --wrap; textbf: --rwrap" if "$" in format_metric(value) else "textbf: --rwrap"

    style = table.style.hide(axis="index")
    style.format_index(escape="latex", axis="columns")
    style.format(escape="latex")
    for header, formatter in formatters.items():
        style.format(formatter, subset=[header], na_rep="", escape="latex")
    if not (runs.unequal_rounds(metric) or runs.unlike_rounds(metric)):
        are_baselines = runs.are_baselines()
        of_baseline = [bool(are_baselines[rows].any()) for rows in best["rows"]]
        cost = (runs.metrics.sign(metric) * best["metric"]).mask(of_baseline)
        lowest_cost = cost.groupby([best[key].map(str) for key in runs.problem_keys(metric)]).transform("min")
        is_best = (cost == lowest_cost) & (best["seeds"] > 0)
        style.map(format_bold, subset=(is_best, [metric]))
    alignment = "l" * n_text_columns + "r" * (len(table.columns) - n_text_columns)
    comments = (
        f"best by {metric}: {tail_caption(runs, [metric], has_band)}",
        *best_point_notes(runs, metric),
        r"\usepackage{booktabs}",
    )
    lines = [f"% {' '.join(comment.split())}" for comment in comments]
    return "\n".join([*lines, style.to_latex(column_format=alignment, hrules=True)])


def _format_cell(value: Any, digits: int) -> str:
    """Return a number with so many digits and powers of ten written out, another value as text."""
    if not isinstance(value, float):
        return str(value)
    text = f"{value:.{digits}g}"
    scientific = re.fullmatch(r"(.*)e([+-])0*(\d+)", text)
    if not scientific:
        return text if value >= 0 else f"${text}$"
    mantissa, sign, exponent = scientific.groups()
    power = f"10^{{{sign.strip('+')}{exponent}}}"
    return f"${power}$" if mantissa == "1" else rf"${mantissa} \times {power}$"
