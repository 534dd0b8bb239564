"""The table of the best points for a paper: LaTeX, with the rules of booktabs."""

import re
from typing import Any

from fcorun.reports.run_table import SEED_KEYS, RunTable
from fcorun.reports.seed_bands import describe_band
from fcorun.reports.sweep_report import best_point_notes, count_distinct_digits, key_header, tail_caption

_ESCAPES = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    **{sign: "\\" + sign for sign in "&%$#_{}"},
}


def format_best_latex(runs: RunTable, metric: str) -> str:
    """Return a tabular with a row for each method on each data set: its keys, the metric, and the band over seeds.

    The best value on each problem is bold if all runs have the same number of rounds. Raises UserError as
    ``RunTable.resolve_metric``.
    """
    best = runs.best_points(metric)
    sign = runs.metrics.sign(metric)
    keys = [key for key in runs.varied_keys if key not in SEED_KEYS]
    has_data_column = runs.frame["data"].nunique() > 1
    has_band = bool((best["seeds"] > 1).any())
    equal_rounds = not runs.unequal_rounds(metric)
    problem = [best[key].map(str) for key in runs.problem_keys(metric)]
    best_value = (sign * best["metric"]).groupby(problem).transform("min")
    digits = {name: count_distinct_digits(best[name]) for name in (*keys, "metric")}

    headers = [key_header(runs, key) if key in runs.tail_metrics else key for key in _shorten(keys)]
    headers = ["method", *(["data"] if has_data_column else []), *map(escape_latex, [*headers, metric])]
    if has_band:
        band = describe_band(set(best["seeds"]) - {0}, runs.seed_kind)
        headers += [escape_latex(band).replace("-", "--"), "seeds"]
    n_text_columns = 1 + has_data_column

    lines = []
    for comment in (
        f"best by {metric}: {tail_caption(runs, [metric], has_band)}",
        *best_point_notes(runs, metric),
        r"\usepackage{booktabs}",
    ):
        lines.append(f"% {' '.join(comment.split())}")
    lines.append(rf"\begin{{tabular}}{{{'l' * n_text_columns}{'r' * (len(headers) - n_text_columns)}}}")
    lines += [r"\toprule", _format_row(headers), r"\midrule"]
    for row, smallest in zip(best.to_dict("records"), best_value, strict=True):
        cells = [escape_latex(runs.algo_title(row["algo"]))]
        if has_data_column:
            cells.append(escape_latex(row["data"]))
        cells += [_format_cell(row[key], digits[key]) for key in keys]
        value = _format_cell(row["metric"], digits["metric"]) if row["seeds"] else escape_latex(row["status"])
        if equal_rounds and row["seeds"] and sign * row["metric"] == smallest:
            value = rf"\textbf{{{value}}}"
        cells.append(value)
        if has_band:
            low, high = (_format_cell(row[end], digits["metric"]) for end in ("low", "high"))
            cells += [f"{low} to {high}" if row["seeds"] > 1 else "", str(row["seeds"])]
        lines.append(_format_row(cells))
    lines += [r"\bottomrule", r"\end{tabular}"]
    return "\n".join(lines) + "\n"


def escape_latex(text: Any) -> str:
    """Return text with the special characters of LaTeX escaped.

    >>> escape_latex("a_b & 5 %")
    'a\\\\_b \\\\& 5 \\\\%'
    """
    return "".join(_ESCAPES.get(sign, sign) for sign in str(text))


def _format_cell(value: Any, digits: int) -> str:
    """Return a cell: a float with so many digits and powers of ten written out, text escaped, "" for no value."""
    if value is None or value != value:
        return ""
    if not isinstance(value, float):
        return escape_latex(value)
    text = f"{value:.{digits}g}"
    scientific = re.fullmatch(r"(.*)e([+-])0*(\d+)", text)
    if not scientific:
        return text if value >= 0 else f"${text}$"
    mantissa, sign, exponent = scientific.groups()
    power = f"10^{{{sign.strip('+')}{exponent}}}"
    return f"${power}$" if mantissa == "1" else rf"${mantissa} \times {power}$"


def _shorten(keys: list[str]) -> list[str]:
    """Return keys without their sections, unless that makes two of them equal."""
    last = [key.rpartition(".")[2] for key in keys]
    return [name if last.count(name) == 1 else key for key, name in zip(keys, last, strict=True)]


def _format_row(cells: list[str]) -> str:
    return " & ".join(cells) + r" \\"
