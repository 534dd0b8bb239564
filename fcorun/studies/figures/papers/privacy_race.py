"""The picture and the verdicts of private methods at several privacy losses."""

from functools import partial
from typing import Any

from fcorun.base.errors import UserError
from fcorun.reports.pictures.layout import add_legend, make_figure, pt, set_y_label
from fcorun.reports.run_table import REGULARIZED_METRICS, DataFrame
from fcorun.studies.figures.figure_inputs import FigureInputs
from fcorun.studies.figures.seed_comparison import SeedValues, collect_by_seed, compare_measured

_EPSILON, _CLIENTS, _UNIT = "privacy.epsilon", "data.clients", "privacy.unit"
_COMPARED = 2.0  # the epsilon at which methods are compared


def draw_privacy(inputs: FigureInputs) -> Any:
    """Draw a panel for each metric and unit of privacy: values at the end, at the best point for each epsilon.

    A line is the median over seeds of a method, and a dotted one its value without privacy. Objectives are those of the
    first method's psi. Raises UserError for runs that do not vary epsilon, the unit and the number of clients, which
    differs between units.
    """
    frame, panels = _read_best(inputs), inputs.figure.panels
    units = list(dict.fromkeys(frame[_UNIT].dropna()))
    figure, axes = make_figure(len(panels) * len(units), len(units), height=1.35, is_matrix=True)
    handles = {}
    for i, ax in enumerate(axes):
        metric, unit = panels[i // len(units)], units[i % len(units)]
        runs_of_unit = frame[frame[_UNIT] == unit]
        for algo, runs in runs_of_unit.groupby("algo", sort=False):
            if metric in REGULARIZED_METRICS and (runs["reg"] != frame["reg"].iloc[0]).any():
                continue  # the objective of another psi is another function
            style = inputs.line_styles[algo]
            private = runs.groupby(_EPSILON)[f"tail_{metric}"].median()
            line = {"linewidth": pt(0.9), "marker": style.marker, "markersize": pt(3), "markerfacecolor": "none"}
            (handles[inputs.title(algo)],) = ax.plot(private.index, private, **style.line_kwargs, **line)
            without_privacy = runs.loc[runs[_EPSILON].isna(), f"tail_{metric}"].median()
            ax.axhline(without_privacy, color=style.colour, linestyle=":", linewidth=pt(0.7))
        epsilons = sorted(frame[_EPSILON].dropna().unique())
        ax.set_xscale("log")
        ax.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
        ax.minorticks_off()
        if i < len(units):
            ax.set_title(f"privacy of {unit}s: {runs_of_unit[_CLIENTS].iloc[0]:,} clients", pad=pt(3))
        if i % len(units) == 0:
            set_y_label(ax, inputs.grid.axis_label(metric))
        if i >= len(axes) - len(units):
            ax.set_xlabel("privacy loss ε")
    add_legend(figure, handles)
    return figure


def check_privacy(inputs: FigureInputs) -> list[dict[str, str]]:
    """Report for each unit and method what privacy costs, and whether the first method is better than the others."""
    frame = _read_best(inputs)
    compare = partial(compare_measured, inputs.tuned.seed_kind)
    rows = []
    for unit in dict.fromkeys(frame[_UNIT].dropna()):
        runs = frame[frame[_UNIT] == unit]
        algos = list(dict.fromkeys(runs["algo"]))
        least, most = runs[_EPSILON].min(), runs[_EPSILON].max()
        for algo in algos:
            public = _scores(runs, algo, None)
            nearly = {seed: value - 0.05 for seed, value in public.items()}
            says = f"privacy of {unit}s: epsilon {most:g} costs less than 0.05 of the F1 score"
            rows.append(compare(algo, says, _scores(runs, algo, most), nearly))
            says = f"privacy of {unit}s: epsilon {least:g} costs more than 0.05 of it"
            rows.append(compare(algo, says, nearly, _scores(runs, algo, least)))
        for algo in algos[1:]:
            says = f"privacy of {unit}s: at epsilon {_COMPARED:g} {algos[0]} has a higher F1 score"
            rows.append(compare(algo, says, _scores(runs, algos[0], _COMPARED), _scores(runs, algo, _COMPARED)))
    return rows


def _read_best(inputs: FigureInputs) -> DataFrame:
    """Return the runs of the best points, of which those without privacy have the unit of the others on their data.

    Raises UserError for runs that do not vary epsilon, the unit and the number of clients.
    """
    frame = inputs.tuned.frame.assign(replicate=inputs.tuned.replicates)
    for key in (_EPSILON, _CLIENTS, _UNIT):
        if key not in frame:
            raise UserError(f"figure.draw=privacy_race needs runs that differ in {key}: give several values of it")
    unit_of_clients = frame.dropna(subset=_UNIT).groupby(_CLIENTS)[_UNIT].first()
    return frame.assign(**{_UNIT: frame[_CLIENTS].map(unit_of_clients)})


def _scores(runs: DataFrame, algo: str, epsilon: float | None) -> SeedValues:
    """Return the F1 score of each seed's run of a method; without privacy if ``epsilon`` is None."""
    is_at_epsilon = runs[_EPSILON].isna() if epsilon is None else runs[_EPSILON] == epsilon
    chosen = runs[(runs["algo"] == algo) & is_at_epsilon]
    return collect_by_seed(chosen["algo"], chosen["replicate"], chosen["tail_support_f1"]).get(algo, {})
