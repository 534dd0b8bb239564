"""The best point of each algorithm: metrics against rounds, bytes, evaluations or time."""

from collections.abc import Sequence
from typing import Any

from fcorun.errors import UserError
from fcorun.metrics import CATALOGUE, PERSONAL_PREFIX, global_name, structure_metrics
from fcorun.reports.grid_edges import GridEdge
from fcorun.reports.pictures.problem_view import ProblemView
from fcorun.reports.pictures.seed_curves import Curve, draw_curves

_SHORT = {
    **{"algo.client_lr": "$\\eta_c$", "algo.server_lr": "$\\eta_s$", "reg.strength": "strength", "algo.step": "s"},
    **{"algo.rho": "$\\rho$", "algo.mu": "$\\mu$", "algo.alpha": "$\\alpha$", "algo.gamma": "$\\gamma$"},
}
_RATES = ("algo.client_lr", "algo.server_lr")


_EDGE = {True: "$\\uparrow$", False: "$\\downarrow$"}


def draw(view: ProblemView) -> Any | None:
    """A line for each algorithm, a panel for each metric; None if nothing is done. Raises UserError for a run that did
    not count what it is drawn against, and for panels that are asked for and that no run measured."""
    rows, edges = view.best_rows(), view.grid_edges()
    told = [_told(view, row, edges) for row in rows]
    common = {key: values.pop() for key in dict.fromkeys(key for keys in told for key in keys)
              if len(values := {keys[key] for keys in told if key in keys}) == 1
              and sum(key in keys for keys in told) > 1}  # fmt: skip
    lines = []
    for row, keys in zip(rows, told, strict=True):
        own = [f"{_SHORT.get(key, key)} = {value}" for key, value in keys.items() if key not in common]
        title = view.table.algo_title(row["algo"]) + (": " + ", ".join(own) if own else "")
        title += f" (tied with {len(row['tied'])})" if row["tied"] else ""
        lines.append(
            Curve(title, view.curve_styles[row["algo"]], [r for i in row["rows"] if (r := view.records[i].rows)])
        )
    if not lines:
        return None
    differ = {key for key in view.table.regularizer_keys() if len({repr(row[key]) for row in rows}) > 1}
    names = dict.fromkeys(name for line in lines for name in line.runs[0][-1])
    alike = [name for name in names if not differ & {*view.table.loss_keys(name)}]
    shown = view.panels or [
        name for name in choose_sweep_panels(alike, view.metric) if name in alike or name not in names
    ]
    shown = shown or [view.metric]
    lacking = [name for name in shown if not {name, global_name(name)} & set(names)]
    shown = [name for name in shown if name not in lacking]
    if lacking and (view.panels or not shown):
        raise UserError(f"figure.panels: {', '.join(lacking)} was not measured: leave it out, or run what measures it "
                        "(suboptimality: reference=true)")  # fmt: skip
    notes = [view.problem] if view.problem else []
    alike = ", ".join(f"{_SHORT.get(key, key)} = {value}" for key, value in common.items())
    notes += [f"all: {alike}"] if alike else []
    if any(arrow in value for keys in told for value in keys.values() for arrow in _EDGE.values()):
        notes.append(f"{_EDGE[True]}, {_EDGE[False]}: largest, smallest tried: try beyond")
    return draw_curves(lines, shown, view.x_axes, view.table, notes)


def choose_sweep_panels(names: Sequence[str], metric: str) -> list[str]:
    """The metrics to show of runs that have these and are judged by one of them."""
    chosen = [next((m for m in ("suboptimality", "objective") if m in names), "train_loss")]
    chosen += [next((m for m in ("val_loss", "val_accuracy", "train_accuracy") if m in names), "train_loss")]
    chosen = [name for name in chosen if name in names]  # of own models alone there is neither
    if any(name.startswith(PERSONAL_PREFIX) for name in names):
        own = [PERSONAL_PREFIX + name for name in ("val_loss", "val_accuracy", "train_loss", "train_accuracy")]
        chosen += [next((name for name in ([metric] if metric in own else []) + own if name in names), metric)]
        chosen += [name for name in structure_metrics(PERSONAL_PREFIX) if name in names]
    else:
        chosen += [name for name in ("support_f1", *structure_metrics("")) if name in names]
    chosen += [metric] if metric in names and metric not in CATALOGUE else []  # one of a user's objective
    return list(dict.fromkeys(chosen))


def _told(view: ProblemView, row: dict[str, Any], edges: Sequence[GridEdge]) -> dict[str, str]:
    """The keys of a best point that are told of it, those that vary among its algorithm's points, and rates; marked
    where the value is at the edge of what was tried."""
    vary = view.table.varied_by_algo.get(row["algo"], [])
    keys = [key for key in view.table.varied_keys if key in vary or (key in _RATES and row[key] is not None)]
    ends = {edge.key: _EDGE[edge.larger] for edge in edges if edge.algo == row["algo"]}
    apart = view.table.problem_keys(view.metric)
    return {key: (f"{row[key]:g}" if isinstance(row[key], float) else str(row[key])) + ends.get(key, "")
            for key in keys if row[key] == row[key] and key not in apart}  # fmt: skip
