"""Best points that had not come to the optimum, or to rest, when their runs ended."""

from collections.abc import Mapping, Sequence
from typing import Any

from fcorun.base.metrics import MORE_ROUNDS_ADVICE
from fcorun.reports.run_table import RunTable


def warn_unfinished(runs: RunTable, metric: str) -> list[str]:
    """Return lines on best points that ended above the optimum, are not certified, or were still falling at the end."""
    above = runs.column("above")
    falling = runs.column("falling") > 0
    certified = runs.column("certified")
    has_several_data = runs.frame["data"].nunique() > 1
    shares_above: dict[str, list[float]] = {}
    not_certified = set()
    still_falling = set()
    for row in runs.best_points(metric).to_dict("records"):
        if not row["seeds"]:
            continue
        name = f"{row['algo']} on {row['data']}" if has_several_data else row["algo"]
        best_runs = list(row["rows"])
        shares_above.setdefault(name, []).extend(share for share in above[best_runs] if share > 0)
        if (certified[best_runs] == 0).any():
            not_certified.add(name)
        if falling[best_runs].any():
            still_falling.add(name)
    lines = []
    far = [f"{name} {_format_shares(shares)}" for name, shares in sorted(shares_above.items()) if shares]
    if far:
        lines.append(f"above the optimum's objective: {', '.join(far)}")
    if not_certified:
        lines.append(f"not certified, and no optimum to compare with: {', '.join(sorted(not_certified))}")
    if still_falling:
        lines.append(f"still falling at the end, so {MORE_ROUNDS_ADVICE}: {', '.join(sorted(still_falling))}")
    return lines


def describe_shares_above(runs: RunTable, rows: Sequence[Mapping[str, Any]], metric: str) -> str:
    """Return the best points, ``rows``, that ended above the optimum, by how much, for a caption; "" for none."""
    above = runs.column("above")
    far = []
    for row, problem in zip(rows, runs.tell_points_apart(rows, metric), strict=True):
        shares = [share for share in above[list(row["rows"])] if share > 0]
        if shares:
            far.append(f"{runs.algo_title(row['algo'])}{problem} {_format_shares(shares)}")
    return f"ended above the optimum: {', '.join(far)}" if far else ""


def _format_shares(shares: list[float]) -> str:
    """Return the least and the largest share in percent.

    >>> _format_shares([0.026, 0.028, 1.27])
    '2.6 to 130 %'
    """
    ends = dict.fromkeys(f"{float(f'{100 * share:.2g}'):g}" for share in (min(shares), max(shares)))
    return f"{' to '.join(ends)} %"
