"""Best points at the edge of their grid: a better point may lie beyond."""

from dataclasses import dataclass
from typing import Any

from fcorun.reports.run_table import SEED_KEYS, RunTable, column_values, is_number


@dataclass(frozen=True)
class GridEdge:
    """A key of an algorithm's best point whose value is the largest (or smallest) tried."""

    algo: str
    key: str
    value: float
    is_largest: bool

    def __str__(self) -> str:
        tried, beyond = ("largest", "larger") if self.is_largest else ("smallest", "smaller")
        return f"{self.algo}: best {self.key}={self.value:g} is the {tried} tried: try {beyond}"


def find_grid_edges(table: RunTable, metric: str) -> list[GridEdge]:
    """Return the edges at which best points lie, for each key with several numbers.

    Values that diverged were tried: a best point next to them is at the edge of convergence, not of the grid. A point
    is at no edge if a point that is tied with it lies inside.
    """
    problem_keys = table.problem_keys(metric)
    points = table.fold_seeds(metric)
    points = points[points["status"].isin(("done", "diverged"))]
    point_rows = points.to_dict("records")
    edges = []
    for row in table.best_points(metric).to_dict("records"):
        if not row["seeds"]:
            continue
        in_group = []
        for point in point_rows:
            in_group.append(all(_equal(point[key], row[key]) for key in ("algo", *problem_keys)))
        group = points[in_group]
        best_runs = {tuple(runs) for runs in (row["rows"], *row["tied"])}
        best = group[[tuple(runs) in best_runs for runs in group["rows"]]]
        for key in table.varied_keys:
            if key in SEED_KEYS or key in problem_keys:
                continue
            tried = sorted(set(filter(is_number, group[key])))
            best_values = [value for value in best[key] if is_number(value)]
            if len(tried) < 2 or len(best_values) < len(best):
                continue
            if set(best_values) == {tried[-1]}:
                edges.append(GridEdge(row["algo"], key, tried[-1], True))
            elif set(best_values) == {tried[0]} and not _is_lower_bound(tried[0], table, key):
                edges.append(GridEdge(row["algo"], key, tried[0], False))
    return edges


def _is_lower_bound(value: float, table: RunTable, key: str) -> bool:
    """Return True if no smaller value of the key makes sense: 0, or 1 of a count."""
    numbers = [number for number in column_values(table.frame[key]) if is_number(number)]
    is_count = all(isinstance(number, int) for number in numbers)
    return value == 0 or (is_count and value <= 1)


def _equal(a: Any, b: Any) -> bool:
    return a == b or (a != a and b != b)  # nan equals nan
