"""The picture and the verdicts of methods and aggregation rules whose clients lie or drop out."""

from functools import partial
from typing import Any

import numpy as np

from fcorun.base.errors import UserError
from fcorun.reports.pictures.layout import COLOURS, add_legend, make_figure, pt
from fcorun.reports.run_table import DataFrame
from fcorun.studies.figures.figure_inputs import FigureInputs
from fcorun.studies.figures.seed_comparison import SeedValues, collect_by_seed, compare_measured

_LIARS, _DROPOUT = "faults.liars", "faults.dropout"
_MOST = 0.3  # the largest share of the figure


def draw_faults(inputs: FigureInputs) -> Any:
    """Draw a panel for each metric and method: values at the end against the share of liars, and of dropouts.

    A line is the median over seeds of a rule, solid for liars and dotted for dropouts. Points at which a seed diverged
    are left out. Raises UserError for runs that do not vary rules, liars and dropouts.
    """
    from matplotlib.lines import Line2D

    frame, panels = _read_grid(inputs), inputs.figure.panels
    algos = list(dict.fromkeys(frame["algo"]))
    rules = list(dict.fromkeys(frame["aggregate"]))
    figure, axes = make_figure(len(panels) * len(algos), len(algos), height=1.35, is_matrix=True)
    for i, ax in enumerate(axes):
        metric, algo = panels[i // len(algos)], algos[i % len(algos)]
        for k, rule in enumerate(rules):
            of_rule = frame[(frame["algo"] == algo) & (frame["aggregate"] == rule)]
            for varied, fixed, dash, marker in ((_LIARS, _DROPOUT, "-", "o"), (_DROPOUT, _LIARS, ":", "")):
                groups = of_rule[of_rule[fixed] == 0].groupby(varied)
                done = groups.filter(lambda runs: (runs["status"] == "done").all())
                values = done.groupby(varied)[f"tail_{metric}"].median()
                line = {"color": COLOURS[k], "linestyle": dash, "marker": marker, "markersize": pt(2)}
                ax.plot(100 * values.index, values, linewidth=pt(0.9), **line)
        if inputs.grid.metrics[metric].log:
            ax.set_yscale("log")
        if i < len(algos):
            ax.set_title(inputs.title(algo), pad=pt(3))
        if i % len(algos) == 0:
            ax.set_ylabel(inputs.grid.axis_label(metric))
        if i >= len(axes) - len(algos):
            ax.set_xlabel("% of clients")
    handles: dict[str, Any] = {
        rule: Line2D([], [], color=COLOURS[k], linewidth=pt(0.9)) for k, rule in enumerate(rules)
    }
    handles["liars"] = Line2D([], [], color="black", linestyle="-", linewidth=pt(0.9))
    handles["dropouts"] = Line2D([], [], color="black", linestyle=":", linewidth=pt(0.9))
    add_legend(figure, handles)
    return figure


def check_faults(inputs: FigureInputs) -> list[dict[str, str]]:
    """Report for each method what liars and dropouts change, and which rules help in each seed, in none or in some."""
    frame = _read_grid(inputs).assign(replicate=inputs.grid.replicates)
    compare_seeds = partial(compare_measured, inputs.grid.seed_kind)
    rows = []
    for algo in dict.fromkeys(frame["algo"]):
        runs = frame[frame["algo"] == algo]
        honest = _objectives(runs, "mean", 0.0, 0.0)
        lied_to = _objectives(runs, "mean", _MOST, 0.0)
        a_tenth_more = {seed: 1.1 * value for seed, value in honest.items()}
        rows.append(
            compare_seeds(algo, "liars of 30 % raise the objective of the mean by a tenth", lied_to, a_tenth_more)
        )
        for rule in dict.fromkeys(runs["aggregate"]):
            if rule == "mean":
                continue
            says = f"with liars of 30 %, {rule} ends below the mean"
            rows.append(compare_seeds(algo, says, lied_to, _objectives(runs, rule, _MOST, 0.0)))
            says = f"without faults, the mean ends below {rule}"
            rows.append(compare_seeds(algo, says, _objectives(runs, rule, 0.0, 0.0), honest))
        dropped = _objectives(runs, "mean", 0.0, _MOST)
        if dropped:
            says = "dropouts of 30 % change the objective of the mean by less than a hundredth"
            a_hundredth = {seed: 0.01 * value for seed, value in honest.items()}
            changes = {seed: abs(dropped[seed] - value) for seed, value in honest.items() if seed in dropped}
            rows.append(compare_seeds(algo, says, a_hundredth, changes))
    return rows


def _read_grid(inputs: FigureInputs) -> DataFrame:
    """Return the table of all runs. Raises UserError for runs that do not vary rules, liars and dropouts."""
    for key in ("aggregate", _LIARS, _DROPOUT):
        if key not in inputs.grid.frame:
            raise UserError(f"figure.draw=faults_race needs runs that differ in {key}: give several values of it")
    return inputs.grid.frame


def _objectives(runs: DataFrame, rule: str, liars: float, dropout: float) -> SeedValues:
    """Return the objective at the end of each seed's run: infinite for one that diverged, NaN for one that failed.

    Raises UserError for several runs with the same seeds.
    """
    chosen = runs[(runs["aggregate"] == rule) & (runs[_LIARS] == liars) & (runs[_DROPOUT] == dropout)]
    values = chosen["tail_objective"].where(chosen["status"] != "diverged", np.inf)
    return collect_by_seed(chosen["aggregate"], chosen["replicate"], values).get(rule, {})
