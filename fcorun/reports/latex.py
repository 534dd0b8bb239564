"""The table of the best points for a paper: LaTeX, with the rules of booktabs."""

import re
from typing import Any

from fcorun.reports.run_table import SEED_KEYS, RunTable
from fcorun.reports.seed_bands import describe_band
from fcorun.reports.sweep_report import best_point_notes, count_distinct_digits, key_header, tail_caption

_ESCAPED = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
            ">": r"\textgreater{}", **{sign: "\\" + sign for sign in "&%$#_{}"}}  # fmt: skip


def format_best_latex(runs: RunTable, metric: str) -> str:
    """A tabular with a row a method, on each data set: the keys of its best point, and the metric with its band over
    seeds. The best on each problem is bold, where all runs are of one length. Raises UserError as ``Table.best``."""
    best = runs.best_points(metric)
    several, sign = runs.frame["data"].nunique() > 1, runs.metrics.sign(metric)
    keys = [key for key in runs.varied_keys if key not in SEED_KEYS]
    band = bool((best["seeds"] > 1).any())
    alike = not runs.unequal_rounds(metric)  # of runs of different length the best is none
    top = (sign * best["metric"]).groupby([best[key].map(str) for key in runs.problem_keys(metric)]).transform("min")
    digits = {name: count_distinct_digits(best[name]) for name in (*keys, "metric")}
    rows = []
    for row, least in zip(best.to_dict("records"), top, strict=True):
        value = _number(row["metric"], digits["metric"]) if row["seeds"] else escape_latex(row["status"])
        if alike and row["seeds"] and sign * row["metric"] == least:
            value = rf"\textbf{{{value}}}"
        cells = [escape_latex(runs.algo_title(row["algo"])), *([escape_latex(row["data"])] if several else [])]
        cells += [*(_number(row[key], digits[key]) for key in keys), value]
        if band:
            ends = " to ".join(_number(row[end], digits["metric"]) for end in ("low", "high"))
            cells += [ends if row["seeds"] > 1 else "", str(row["seeds"])]
        rows.append(cells)
    short = [key_header(runs, key) if key in runs.tail_metrics else key for key in _short(keys)]
    heads = ["method", *(["data"] if several else []), *map(escape_latex, [*short, metric])]
    heads += (
        [escape_latex(describe_band(set(best["seeds"]) - {0}, runs.seed_kind)).replace("-", "--"), "seeds"]
        if band
        else []
    )
    columns = "l" * (1 + several) + "r" * (len(heads) - 1 - several)
    about = tail_caption(runs, [metric], band)
    comments = (f"best by {metric}: {about}", *best_point_notes(runs, metric), r"\usepackage{booktabs}")
    lines = [f"% {' '.join(comment.split())}" for comment in comments]
    lines += [
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        _line(heads),
        r"\midrule",
        *(_line(row) for row in rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def escape_latex(text: Any) -> str:
    """Text that LaTeX sets as it is.

    >>> escaped("a_b & 5 %")
    'a\\\\_b \\\\& 5 \\\\%'
    """
    return "".join(_ESCAPED.get(sign, sign) for sign in str(text))


def _number(value: Any, digits: int) -> str:
    """A cell: numbers with so many digits, powers of ten written as such; text as it is; empty where there is none."""
    if value is None or value != value:
        return ""
    if not isinstance(value, float):
        return escape_latex(value)
    found = re.fullmatch(r"(.*)e([+-])0*(\d+)", f"{value:.{digits}g}")
    if not found:
        return f"{value:.{digits}g}" if value >= 0 else f"${value:.{digits}g}$"
    power = f"10^{{{found[2].strip('+')}{found[3]}}}"
    return f"${power}$" if found[1] == "1" else rf"${found[1]} \times {power}$"


def _short(keys: list[str]) -> list[str]:
    """The keys without their sections, where that leaves them different."""
    last = [key.rpartition(".")[2] for key in keys]
    return [name if last.count(name) == 1 else key for key, name in zip(keys, last, strict=True)]


def _line(cells: list[str]) -> str:
    return " & ".join(cells) + r" \\"
