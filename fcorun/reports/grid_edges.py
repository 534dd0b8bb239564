"""Whether the best point lies at the edge of its grid, so that a better one may lie beyond."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fcorun.reports.run_table import SEED_KEYS, RunTable


@dataclass(frozen=True)
class GridEdge:
    """A key of an algorithm's best point whose value is the largest (or smallest) tried."""

    algo: str
    key: str
    value: float
    larger: bool

    def __str__(self) -> str:
        tried, beyond = ("largest", "larger") if self.larger else ("smallest", "smaller")
        return f"{self.algo}: best {self.key}={self.value:g} is the {tried} tried: try {beyond}"


def find_grid_edges(table: RunTable, metric: str) -> list[GridEdge]:
    """The edges at which best points lie, one for each key that its algorithm has several numbers of.

    What diverged was tried: a best point before it is at the edge of what converges, not of the grid. Where a tied
    point lies inside, none is needed.
    """
    apart, folded = table.problem_keys(metric), table.fold_seeds(metric)
    folded = folded[folded["status"].isin(("done", "diverged"))]
    found = []
    for row in table.best_points(metric).to_dict("records"):
        if not row["seeds"]:
            continue
        same = [all(_same(point[k], row[k]) for k in ("algo", *apart)) for point in folded.to_dict("records")]
        group = folded[same]
        top = {tuple(rows) for rows in (row["rows"], *row["tied"])}
        best = group[[tuple(rows) in top for rows in group["rows"]]]
        for key in (key for key in table.varied_keys if key not in (*SEED_KEYS, *apart)):
            tried = sorted(set(_numbers(group[key])))
            ours = _numbers(best[key])
            if len(tried) < 2 or len(ours) < len(best):
                continue
            if set(ours) == {tried[-1]}:
                found.append(GridEdge(row["algo"], key, tried[-1], True))
            elif set(ours) == {tried[0]} and not _least(tried[0]):
                found.append(GridEdge(row["algo"], key, tried[0], False))
    return found


def _numbers(values: Iterable[Any]) -> list[float]:
    kinds = (int, float)
    return [value for value in values if isinstance(value, kinds) and not isinstance(value, bool) and value == value]


def _least(value: float) -> bool:
    """Whether nothing smaller makes sense: of what is counted or may be left out."""
    return value == 0 or (isinstance(value, int) and value <= 1)


def _same(a: Any, b: Any) -> bool:
    return a == b or (a != a and b != b)
