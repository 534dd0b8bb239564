"""The table of the best points for a paper: LaTeX, with the rules of booktabs."""

import re
from typing import Any

from fcorun.reports.results import axis, caption, enough_digits, remarks
from fcorun.reports.spread import over
from fcorun.reports.table import SEEDS, Table

_ESCAPED = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
            ">": r"\textgreater{}", **{sign: "\\" + sign for sign in "&%$#_{}"}}  # fmt: skip


def best_latex(runs: Table, metric: str) -> str:
    """A tabular with a row a method, on each data set: the keys of its best point, and the metric with its band over
    seeds. The best on each problem is bold, where all runs are of one length. Raises UserError as ``Table.best``."""
    best = runs.best(metric)
    several, sign = runs.frame["data"].nunique() > 1, runs.metrics.sign(metric)
    keys = [key for key in runs.keys if key not in SEEDS]
    band = bool((best["seeds"] > 1).any())
    alike = not runs.lengths(metric)  # of runs of different length the best is none
    top = (sign * best["metric"]).groupby([best[key].map(str) for key in runs.apart(metric)]).transform("min")
    digits = {name: enough_digits(best[name]) for name in (*keys, "metric")}
    rows = []
    for row, least in zip(best.to_dict("records"), top, strict=True):
        value = _number(row["metric"], digits["metric"]) if row["seeds"] else escaped(row["status"])
        if alike and row["seeds"] and sign * row["metric"] == least:
            value = rf"\textbf{{{value}}}"
        cells = [escaped(runs.title(row["algo"])), *([escaped(row["data"])] if several else [])]
        cells += [*(_number(row[key], digits[key]) for key in keys), value]
        if band:
            ends = " to ".join(_number(row[end], digits["metric"]) for end in ("low", "high"))
            cells += [ends if row["seeds"] > 1 else "", str(row["seeds"])]
        rows.append(cells)
    short = [axis(runs, key) if key in runs.tails else key for key in _short(keys)]
    heads = ["method", *(["data"] if several else []), *map(escaped, [*short, metric])]
    heads += [escaped(over(set(best["seeds"]) - {0}, runs.seed_kind)).replace("-", "--"), "seeds"] if band else []
    columns = "l" * (1 + several) + "r" * (len(heads) - 1 - several)
    about = caption(runs, [metric], band)
    comments = (f"best by {metric}: {about}", *remarks(runs, metric), r"\usepackage{booktabs}")
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


def escaped(text: Any) -> str:
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
        return escaped(value)
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
