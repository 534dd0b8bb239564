"""The pictures that figures are drawn as, by name."""

from collections.abc import Callable
from typing import Any

from fcorun.errors import UserError
from fcorun.figures.figure_inputs import FigureInputs
from fcorun.figures.papers import fco, fedsplit, personalised
from fcorun.reports.pictures import best_curves, structure
from fcorun.reports.pictures.layout import add_legend, make_figure
from fcorun.reports.pictures.style import pt
from fcorun.reports.seed_bands import describe_band, seed_band, seeds_agree


def draw_curves(of: FigureInputs) -> Any:
    """Metrics at each algorithm's best rates, median and band over seeds."""
    return best_curves.draw(of.best_view)


def draw_scatter(of: FigureInputs) -> Any:
    """Structure against quality over all points of the grid: how much depends on the rates."""
    return structure.draw(of.grid_view)


def draw_bars(of: FigureInputs) -> Any:
    """A bar an algorithm, at its best rates, a panel a metric: median over seeds, with the band over these."""
    from matplotlib.lines import Line2D

    count, algos = len(of.figure.panels), of.algorithms
    figure, axes = make_figure(count, count, height=1.9, left=0.72, bottom=0.6, gap=(0.85, 0.5))
    for ax, metric in zip(axes, of.figure.panels, strict=True):
        if metric not in of.tuned.tail_metrics:
            raise UserError(f"figure.panels: {metric} was not measured: leave it out, or run what measures it")
        for place, algo in enumerate(algos):
            values = of.tuned.frame.loc[of.tuned.frame["algo"] == algo, f"tail_{metric}"].to_numpy(float)
            low, middle, high = seed_band(values)
            ax.bar(place, middle, color=of.line_styles[algo].colour, width=0.7)
            if len(values) > 1 and not seeds_agree(values):
                ax.errorbar(
                    place, middle, [[middle - low], [high - middle]], color="black", linewidth=pt(0.8), capsize=pt(2)
                )
            ax.annotate(f"{middle:.3g}", (place, high), (0, pt(2)), textcoords="offset points", ha="center")
        ax.set_xticks(range(len(algos)), [of.title(name) for name in algos], rotation=20)
        ax.grid(axis="x", visible=False)
        ax.margins(y=0.12)
        ax.set_ylabel(of.tuned.axis_label(metric, tail=True))
    seeds = [n for n in of.tuned.frame["algo"].value_counts() if n > 1]
    if seeds:
        add_legend(
            figure,
            [Line2D([], [], color="black", linewidth=pt(0.8))],
            [f"median and {describe_band(seeds, of.tuned.seed_kind)}"],
            handlelength=1,
        )
    return figure


# what the page says below each of these pictures
CAPTIONS = {
    "curves": "Each algorithm at the best point of its grid: the median over seeds, with their band.",
    "bars": "Each algorithm at the best point of its grid: the median over seeds, with their band.",
    "scatter": "Structure against quality, a mark for each point of the grid.",
    "averaging": "Solutions of single clients, the mean of these, and the models that the algorithms find.",
    "rates": "The measured gap to the optimum beside the bounds of theorems 4.1 to 4.3, for each client rate.",
    "conditioning": "The gap to the optimum against rounds at three condition numbers, and the rounds to a gap of 1e-3 "
    "against all condition numbers.",
    "personalised": "Accuracy of global and own models at the best points, sparsity against accuracy over all points "
    "of the grid, and accuracy against communication.",
}
PICTURES: dict[str, Callable[[FigureInputs], Any]] = {
    **{"curves": draw_curves, "bars": draw_bars, "scatter": draw_scatter},
    **{"averaging": fco.draw_averaging, "rates": fco.draw_rates, "conditioning": fedsplit.draw_gaps},
    "personalised": personalised.draw_accuracies,
}


def stamp_text(figure: Any, text: str) -> None:
    """Say in a picture that it is a smaller version."""
    figure.text(0.995, -0.005, text, ha="right", va="top", color="#D55E00", style="italic")
