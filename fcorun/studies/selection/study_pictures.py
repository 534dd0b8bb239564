"""Parts of the pictures of selections and of stability selections."""

from pathlib import Path
from typing import Any

import numpy as np

from fcorun.experiment.experiment import PreparedExperiment
from fcorun.reports.pictures.layout import curve_style, render_figure, shorten_name
from fcorun.reports.pictures.style import pt
from fcorun.studies.selection.path import RegularizationPath

PARAMETER_LABELS = {"strength": "strength λ of ψ", "radius": "radius r"}
MAX_LETTERS = 18  # of a name in the margin


def render_png_and_pdf(name: str, figure: Any) -> dict[str, bytes]:
    """Return the contents of NAME.png and NAME.pdf."""
    return {f"{name}.{ending}": render_figure(figure, ending) for ending in ("png", "pdf")}


def format_title(experiment: PreparedExperiment) -> str:
    """Return the title of a picture: the key ``title``, else the method, the data and psi."""
    if experiment.settings.title:
        return experiment.settings.title
    names = experiment.names
    method = experiment.config["algo"].get("title") or names["algo"].replace("_", " ").capitalize()
    data_file = getattr(experiment.data, "path", None)
    data = Path(data_file).stem if data_file else names["data"]
    kind = "" if names["reg"].endswith("ball") else " penalty"
    return f"{method} on {data.replace('_', ' ')}, {names['reg'].replace('_', ' ')}{kind}"


def format_path_axis(ax: Any, path: RegularizationPath) -> None:
    """Set up the logarithmic axis of a regularization path, with the simplest solution on the left."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    wide = path.values.max() > 100 * path.values.min()
    ax.set(xscale="log", xlabel=PARAMETER_LABELS[path.param_name])
    ax.xaxis.set_major_locator(LogLocator(subs=(1,) if wide else (1, 2, 5), numticks=9))
    ax.xaxis.set_minor_locator(LogLocator(subs=range(2, 10), numticks=99) if wide else NullLocator())
    ax.xaxis.set_minor_formatter(FuncFormatter(lambda value, _: ""))
    if not wide:
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    if path.param_name == "strength":
        ax.invert_xaxis()


def label_curve_ends(ax: Any, labels: list[tuple[float, int, str]]) -> None:
    """Write names beside the ends of curves, moved apart so that they do not overlap.

    Each label is (value at the end, number of the curve's style, name).
    """
    low, high = ax.get_ylim()
    line_height = 1 / 19  # as a share of the panel
    heights = {}
    previous = -np.inf
    for end, i, _ in sorted(labels):
        previous = max((end - low) / (high - low), previous + line_height)
        heights[i] = previous
    if max([*heights.values(), 0.0]) > 1:  # over the top: move names down again
        top = 1.0
        for _, i, _ in sorted(labels, reverse=True):
            heights[i] = min(heights[i], top)
            top = heights[i] - line_height
    for end, i, name in labels:
        colour = curve_style(i).colour
        arrow = {"arrowstyle": "-", "linewidth": pt(0.4), "color": colour, "relpos": (0, 0.5)}
        arrow |= {"shrinkA": pt(1), "shrinkB": 0}
        place = {"xycoords": "axes fraction", "textcoords": "axes fraction", "va": "center", "annotation_clip": False}
        at_curve, beside = (1, (end - low) / (high - low)), (1.06, heights[i])
        text = shorten_name(name, MAX_LETTERS)
        ax.annotate(text, at_curve, beside, color=colour, parse_math=False, arrowprops=arrow, **place)
