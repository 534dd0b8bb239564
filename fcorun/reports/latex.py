"""The table of the best points for a paper: LaTeX, with the rules of booktabs."""

import math
import re
from collections.abc import Callable, Iterable
from functools import partial
from itertools import compress
from typing import TYPE_CHECKING, Any

from fcorun.reports.paired_tests import compare_pairs, name_problems
from fcorun.reports.run_table import SEED_KEYS, RunTable, describe_band
from fcorun.reports.sweep_report import best_point_notes, count_distinct_digits, key_header, tail_caption

if TYPE_CHECKING:
    from pandas import DataFrame

P_HEADER = "p"
P_COMMENT = (
    "p: two-sided sign-flip test of the paired differences to the bold method, corrected by Holm for all pairs; the "
    "same seeds chose the best points, which favours methods with more points"
)


def format_best_latex(runs: RunTable, metric: str) -> str:
    """Return a tabular with a row for each method on each data set: keys, metric, band over seeds, p against the bold.

    The best value on each problem, ``RunTable.without_baselines``, is bold if all runs have the same number of rounds.
    Raises UserError as ``RunTable.resolve_metric``.
    """
    import pandas as pd

    best = runs.best_points(metric)
    is_best = _find_best_methods(runs, metric, best)
    keys = [key for key in runs.varied_keys if key not in SEED_KEYS]
    has_band = bool((best["seeds"] > 1).any())

    table = pd.DataFrame({"method": best["algo"].map(runs.algo_title)})
    if runs.frame["data"].nunique() > 1:
        table["data"] = best["data"]
    n_text_columns = len(table.columns)
    formatters = {}
    last_parts = [key.rpartition(".")[2] for key in keys]
    shown = runs.name_null_conditions(best)
    for key, last in zip(keys, last_parts, strict=True):
        header = key
        if key in runs.tail_metrics:
            header = key_header(runs, key)
        elif last_parts.count(last) == 1 and last not in ("method", "data", metric, "seeds"):
            header = last
        table[header] = shown[key]
        formatters[header] = partial(_format_cell, digits=count_distinct_digits(best[key]))
    table[metric] = best["metric"].where(best["seeds"] > 0, best["status"])
    format_metric = _choose_number_format([*best["metric"], *best["low"], *best["high"]], best["metric"])
    formatters[metric] = format_metric
    if has_band:
        band = describe_band(set(best["seeds"]) - {0}, runs.seed_kind).replace("-", "--")
        ends = pd.Series(list(zip(best["low"], best["high"], strict=True)), best.index)
        table[band] = ends.where(best["seeds"] > 1, None)
        formatters[band] = lambda ends: " to ".join(map(format_metric, ends))
        table["seeds"] = best["seeds"]
        p_values = _find_p_values(runs, metric, best, is_best)
        if any(p_value is not None for p_value in p_values):
            table[P_HEADER] = p_values
            formatters[P_HEADER] = partial(_format_cell, digits=2)

    def format_bold(value: Any) -> str:
        """Return the commands for a bold cell; textbf alone does not make its formulas bold."""
        return "boldmath: --wrap; textbf: --rwrap" if "$" in format_metric(value) else "textbf: --rwrap"

    style = table.style.hide(axis="index")
    style.format_index(escape="latex", axis="columns")
    style.format(escape="latex")
    for header, formatter in formatters.items():
        style.format(formatter, subset=[header], na_rep="", escape="latex")
    style.map(format_bold, subset=(is_best, [metric]))
    alignment = "l" * n_text_columns + "r" * (len(table.columns) - n_text_columns)
    tests = [P_COMMENT] if P_HEADER in table else []
    comments = (
        f"best by {metric}: {tail_caption(runs, [metric], has_band)}",
        *tests,
        *best_point_notes(runs, metric),
        r"\usepackage{booktabs}",
    )
    lines = [f"% {' '.join(comment.split())}" for comment in comments]
    return "\n".join([*lines, style.to_latex(column_format=alignment, hrules=True)])


def _find_best_methods(runs: RunTable, metric: str, best: "DataFrame") -> Any:
    """Return a Series: which rows are the best on their problem, ``RunTable.without_baselines``; none if rounds were
    unlike.
    """
    methods = runs.without_baselines(best)
    cost = runs.metrics.sign(metric) * methods["metric"]
    lowest_cost = cost.groupby([methods[key].map(str) for key in runs.problem_keys(metric)]).transform("min")
    is_comparable = not (runs.unequal_rounds(metric) or runs.unlike_rounds(metric))
    is_best = (cost == lowest_cost) & (methods["seeds"] > 0) & is_comparable
    return is_best.reindex(best.index, fill_value=False)


def _find_p_values(runs: RunTable, metric: str, best: "DataFrame", is_best: Any) -> list[float | None]:
    """Return the corrected p-value of each method against the bold one on its problem; None where none was tested."""
    p_by_pair = {}
    for pair in compare_pairs(runs, metric):
        p_by_pair[pair.problem, frozenset({pair.first, pair.second})] = pair.adjusted_p_value
    problems = name_problems(runs, metric, best)
    bold_methods = dict(zip(compress(problems, is_best), best["algo"][is_best], strict=True))
    p_values = []
    for problem, algo in zip(problems, best["algo"], strict=True):
        p_values.append(p_by_pair.get((problem, frozenset({algo, bold_methods.get(problem)}))))
    return p_values


def _choose_number_format(values: Iterable[Any], told_apart: Iterable[Any]) -> Callable[[Any], str]:
    """Return a format for the numbers of a column, all with equal decimals, by which ``told_apart`` differ."""
    digits = count_distinct_digits(told_apart)
    texts = [f"{value:.{digits}g}" for value in values if isinstance(value, float) and math.isfinite(value)]
    kind = "e" if any("e" in text for text in texts) else "f"
    decimals = max((len(text.partition("e")[0].partition(".")[2]) for text in texts), default=0)

    def format_number(value: Any) -> str:
        if not isinstance(value, float):
            return str(value)
        return _write_powers(f"{value:.{decimals}{kind}}")

    return format_number


def _format_cell(value: Any, digits: int) -> str:
    """Return a number with so many digits and powers of ten written out, another value as text."""
    if not isinstance(value, float):
        return str(value)
    return _write_powers(f"{value:.{digits}g}")


def _write_powers(text: str) -> str:
    """Return a number with its power of ten, or its sign, as a formula."""
    scientific = re.fullmatch(r"(.*)e([+-])0*(\d+)", text)
    if not scientific:
        return f"${text}$" if text.startswith("-") else text
    mantissa, sign, exponent = scientific.groups()
    power = f"10^{{{sign.strip('+')}{exponent}}}"
    return f"${power}$" if mantissa == "1" else rf"${mantissa} \times {power}$"
