"""The pictures of figures that no paper draws in a way of its own, and the files of any picture.

Another process draws them while the claims are checked: it need not import JAX for what this file imports.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fcorun.base.errors import UserError
from fcorun.base.picture_style import name_picture_files
from fcorun.reports.pictures import best_curves, structure
from fcorun.reports.pictures.layout import add_legend, make_figure, pt, render_formats, style_context
from fcorun.reports.run_table import describe_band, seed_band, seeds_agree
from fcorun.studies.figures.figure_inputs import FigureInputs


def render_figure(
    draw: Callable[[FigureInputs], Any], inputs: FigureInputs, stamp: str, style: str
) -> dict[str, bytes]:
    """Return the contents of figure.png and figure.pdf. Raises UserError if nothing was measured."""
    with style_context(style):
        picture = draw(inputs)
        if picture is None:
            raise UserError("its runs measured nothing to draw")
        if stamp:
            picture.text(0.995, -0.005, stamp, ha="right", va="top", color="#D55E00", style="italic")
        contents = render_formats(picture, ("png", "pdf"))
    return {f"figure.{format}": content for format, content in contents.items()}


def take_pictures(
    wait_for_pictures: Callable[[], dict[str, bytes]], folder: Path
) -> tuple[dict[str, bytes], list[str]]:
    """Return the contents of a figure's pictures, and no warning; of a picture that cannot be drawn nothing and why.

    Files of an earlier picture are then removed from the folder: they would stay beside new claims.
    """
    try:
        return wait_for_pictures(), []
    except UserError as error:
        for name in name_picture_files("figure"):
            (folder / name).unlink(missing_ok=True)
        return {}, [f"figure.png was not drawn: {error}"]


def draw_curves(inputs: FigureInputs) -> Any:
    """Draw the curves of the best points."""
    return best_curves.PICTURE.draw_subject(inputs.best_view)


def draw_scatter(inputs: FigureInputs) -> Any:
    """Draw structure against quality, a mark for each point of the grid."""
    return structure.PICTURE.draw_subject(inputs.grid_view)


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
        band = f"median and {describe_band(seed_counts, inputs.tuned.seed_kind)}"
        add_legend(figure, {band: Line2D([], [], color="black", linewidth=pt(0.8))}, handlelength=1)
    return figure
