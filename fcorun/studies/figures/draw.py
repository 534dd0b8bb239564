"""Pictures of figures, by name."""

from collections.abc import Callable
from typing import Any

from fcorun.base.errors import UserError
from fcorun.reports.pictures import best_curves, structure
from fcorun.reports.pictures.layout import add_legend, make_figure
from fcorun.reports.pictures.style import pt
from fcorun.reports.seed_bands import describe_band, seed_band, seeds_agree
from fcorun.studies.figures.figure_inputs import FigureInputs
from fcorun.studies.figures.papers import fco, fedsplit_figures, personalised, races


def draw_curves(inputs: FigureInputs) -> Any:
    """Draw metrics at the best rates of each algorithm, the median and the band over seeds."""
    curves = best_curves.collect_curves(inputs.best_view)
    return None if curves is None else best_curves.draw(curves)


def draw_scatter(inputs: FigureInputs) -> Any:
    """Draw structure against quality over all points of the grid, to show how much depends on the rates."""
    points = structure.collect_points(inputs.grid_view)
    return None if points is None else structure.draw(points)


def draw_bars(inputs: FigureInputs) -> Any:
    """Draw a bar for each algorithm at its best rates, with the band over seeds, and a panel for each metric."""
    from matplotlib.lines import Line2D

    inputs.check_one_best_point()
    algos = inputs.algorithms
    n_panels = len(inputs.figure.panels)
    figure, axes = make_figure(n_panels, n_panels, height=1.9)
    for ax, metric in zip(axes, inputs.figure.panels, strict=True):
        if metric not in inputs.tuned.tail_metrics:
            raise UserError(f"figure.panels: {metric} was not measured: leave it out, or run what measures it")
        for i, algo in enumerate(algos):
            values = inputs.tuned.frame.loc[inputs.tuned.frame["algo"] == algo, f"tail_{metric}"].to_numpy(float)
            low, median, high = seed_band(values)
            ax.bar(i, median, color=inputs.line_styles[algo].colour, width=0.7)
            if len(values) > 1 and not seeds_agree(values):
                ax.errorbar(
                    i, median, [[median - low], [high - median]], color="black", linewidth=pt(0.8), capsize=pt(2)
                )
            ax.annotate(f"{median:.3g}", (i, high), (0, pt(2)), textcoords="offset points", ha="center")
        ax.set_xticks(range(len(algos)), [inputs.title(name) for name in algos], rotation=20)
        ax.grid(axis="x", visible=False)
        ax.margins(y=0.12)
        ax.set_ylabel(inputs.tuned.axis_label(metric, tail=True))
    seed_counts = [n for n in inputs.tuned.frame["algo"].value_counts() if n > 1]
    if seed_counts:
        add_legend(
            figure,
            [Line2D([], [], color="black", linewidth=pt(0.8))],
            [f"median and {describe_band(seed_counts, inputs.tuned.seed_kind)}"],
            handlelength=1,
        )
    return figure


# the text below each picture in report.html
CAPTIONS = {
    "curves": "Each algorithm at the best point of its grid: the median over seeds, with their band.",
    "bars": "Each algorithm at the best point of its grid: the median over seeds, with their band.",
    "scatter": "Structure against quality, a mark for each point of the grid.",
    "averaging": "Solutions of single clients, the mean of these, and the models that the algorithms find.",
    "rates": "The measured gap to the optimum against the bounds of theorems 4.1 to 4.3, for each client rate.",
    "conditioning": "The gap to the optimum against rounds at three condition numbers, and the rounds to a gap of 1e-3 "
    "against all condition numbers.",
    "personalised": "Accuracy of global and personal models at the best points, sparsity against accuracy over all "
    "points of the grid, and accuracy against communication.",
    "few_rounds": "The gap to the optimum against rounds and bytes, and the error of the coefficients against bytes: "
    "medians over seeds at the best points. A curve ends where its method sends nothing more, or where the gap is a "
    "rounding error.",
    "bytes_race": "The gap to the optimum, and the F1 score of the support, against bytes up and down: medians over "
    "seeds at the best points, a column for each kind of method. A curve ends where the gap is a rounding error; the "
    "star is the method of one round.",
    "graph_race": "The gap to the optimum against rounds of each method, a curve for each graph, and the rounds to a "
    "gap of 1e-6 against the spectral gap of the graph: medians over seeds at the best points. A method has no mark "
    "for a graph on which it ends farther away.",
    "identification": "The entries that are zero in only one of the solution and the optimum, and the gap to the "
    "optimum, of one run of each algorithm at its best point. From the dot on the zeros are the optimum's, to the end.",
}
PICTURES: dict[str, Callable[[FigureInputs], Any]] = {
    "curves": draw_curves,
    "bars": draw_bars,
    "scatter": draw_scatter,
    "averaging": fco.draw_averaging,
    "rates": fco.draw_rates,
    "conditioning": fedsplit_figures.draw_gaps,
    "personalised": personalised.draw_accuracies,
    "few_rounds": races.draw_costs,
    "bytes_race": races.draw_bytes,
    "graph_race": races.draw_graphs,
    "identification": races.draw_identification,
}
