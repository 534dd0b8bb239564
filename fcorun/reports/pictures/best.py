"""The best point of each algorithm: metrics against rounds, bytes, evaluations or time."""

from collections.abc import Sequence
from typing import Any

from fcorun.metrics import CATALOGUE, PERSONAL, structure
from fcorun.reports.pictures.lines import Line, draw_lines
from fcorun.reports.pictures.view import View

_SHORT = {
    **{"algo.client_lr": "$\\eta_c$", "algo.server_lr": "$\\eta_s$", "reg.strength": "strength", "algo.step": "s"},
    **{"algo.rho": "$\\rho$", "algo.mu": "$\\mu$", "algo.alpha": "$\\alpha$", "algo.gamma": "$\\gamma$"},
}
_RATES = ("algo.client_lr", "algo.server_lr")


def draw(view: View) -> Any | None:
    """A line for each algorithm, a panel for each metric; None if nothing is done. Raises UserError for a run that did
    not count what it is drawn against."""
    lines = []
    for row in view.best_rows():
        runs = [rows for i in row["rows"] if (rows := view.records[i].rows)]
        lines.append(Line(_label(view, row), view.looks[row["algo"]], runs))
    if not lines:
        return None
    shown = view.shown or panels(list(dict.fromkeys(name for line in lines for name in line.runs[0][-1])), view.metric)
    return draw_lines(lines, shown, view.xs, view.table)


def panels(names: Sequence[str], metric: str) -> list[str]:
    """The metrics to show of runs that have these and are judged by one of them."""
    chosen = ["suboptimality" if "suboptimality" in names else "objective"]
    chosen += [next((m for m in ("val_accuracy", "val_loss", "train_accuracy") if m in names), "train_loss")]
    if any(name.startswith(PERSONAL) for name in names):
        own = ("val_accuracy", "val_loss", "train_accuracy", "train_loss")
        chosen += [next(PERSONAL + m for m in own if PERSONAL + m in names)]
        chosen += [name for name in structure(PERSONAL) if name in names]
    else:
        chosen += [name for name in ("support_f1", *structure("")) if name in names]
    return chosen + ([metric] if metric in names and metric not in CATALOGUE else [])  # one of a user's objective


def _label(view: View, row: dict[str, Any]) -> str:
    """An algorithm with the keys of its best point: those that vary among its points, and rates."""
    vary = view.table.varied.get(row["algo"], [])
    told = [key for key in view.table.keys if key in vary or (key in _RATES and row[key] is not None)]
    texts = [f"{_SHORT.get(key, key)} = {row[key]:g}" if isinstance(row[key], float) else f"{key} = {row[key]}"
             for key in told if row[key] == row[key]]  # fmt: skip
    return view.table.title(row["algo"]) + (": " + ", ".join(texts) if texts else "")
