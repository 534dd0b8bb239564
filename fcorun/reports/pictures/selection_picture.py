"""The picture of a selection: the metric over the folds along a path of strengths or radii, and the coefficients."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from fcorun.reports.pictures.layout import COLOURS, curve_style, make_figure, pt, shorten_name
from fcorun.reports.pictures.picture import Picture
from fcorun.results.models.coefficients import Coefficients

PARAMETER_LABELS = {"strength": "strength λ of ψ", "radius": "radius r"}
MAX_LETTERS = 18  # of a name in the margin
_MAX_COEFFICIENTS = 10  # with a name in the margin of the picture


@dataclass(frozen=True)
class NestedView:
    """A nested score: its mean and standard error, and the positions that are chosen without each outer fold, (J,)."""

    mean: float
    standard_error: float
    chosen: Int[np.ndarray, " J"]


@dataclass(frozen=True, eq=False)
class SelectionView:
    """A choice on a path of P values, or on several paths of ``length`` values, one after the other.

    Attributes:
        title: the line above the picture.
        param_name: "strength" or "radius".
        values: the values, from the simplest solution on, (P,).
        length: the number of values of one path.
        second_name, second_values: a second number that each path has, and its values, (P,); "" and None without one.
        metric: the label of the metric.
        n_folds: the number of folds.
        mean, error: the mean of the metric over the folds, and its standard error, (P,).
        paired: whether ``error`` is that of the difference to the best mean.
        higher_is_better: whether a larger value of the metric is better.
        best_index, one_se_index, chosen_index: the positions of the best mean, of the choice of the rule of one
            standard error, and of the choice that was taken.
        nested: the nested score, or None.
        coefficients: those of the model of all rows along the path; None if the model is not linear.
        cutoff: the magnitude above which a coefficient counts.
    """

    title: str
    param_name: str
    values: Float[np.ndarray, " P"]
    length: int
    second_name: str
    second_values: Float[np.ndarray, " P"] | None
    metric: str
    n_folds: int
    mean: Float[np.ndarray, " P"]
    error: Float[np.ndarray, " P"]
    paired: bool
    higher_is_better: bool
    best_index: int
    one_se_index: int
    chosen_index: int
    nested: NestedView | None
    coefficients: Coefficients | None
    cutoff: float

    def slice_of(self, index: int) -> slice:
        """Return the positions of the path, with one second number, that has the position ``index``."""
        start = index // self.length * self.length
        return slice(start, start + self.length)


def draw(view: SelectionView) -> Any:
    """Return the figure of a choice: the metric along the path, and the coefficients of a linear model."""
    coefficients = view.coefficients
    n_panels = 1 if coefficients is None else 2
    figure, axes = make_figure(n_panels, n_panels, height=2.3, title=[view.title])
    _draw_metric(axes[0], view)
    if coefficients is not None:
        _draw_coefficients(axes[1], view, coefficients)
    for ax in axes:
        format_path_axis(ax, view.param_name, view.values)
    if coefficients is not None and view.second_values is not None:
        value = view.second_values[view.chosen_index]
        axes[1].set_xlabel(f"{axes[1].get_xlabel()}, {view.second_name} = {value:g}")
    if view.second_values is not None or view.nested is not None:
        axes[0].legend(frameon=False, handlelength=1.6)
    return figure


def _draw_metric(ax: Any, view: SelectionView) -> None:
    """Draw the mean of the metric over the folds, and the bound of the one-standard-error rule.

    Each second number has a line; the line of the choice has error bars. Paired, a value qualifies for the rule if its
    error bar reaches the best mean; unpaired, if its mean is within one standard error of the best. The nested score is
    drawn at the chosen value, with a tick at the bottom for the choice without each outer fold.
    """
    nested = view.nested
    bars = {"elinewidth": pt(0.6), "linewidth": pt(1), "capsize": pt(1.2), "marker": "."}
    for i in range(len(view.values) // view.length):
        of_path = view.slice_of(i * view.length)
        points = view.values[of_path], view.mean[of_path]
        label = ""
        if view.second_values is not None:
            label = f"{view.second_name} = {view.second_values[of_path.start]:g}"
        if of_path == view.slice_of(view.chosen_index):  # the errors of one line alone are legible
            ax.errorbar(*points, view.error[of_path], color=curve_style(i).colour, label=label, **bars)
        else:
            ax.plot(*points, **curve_style(i).line_kwargs, linewidth=pt(0.8), label=label)
    sign = -1 if view.higher_is_better else 1
    bound = view.mean[view.best_index] + sign * view.error[view.best_index]
    ax.axhline(bound, color="0.5", linewidth=pt(0.5), linestyle=":")
    mark_choices(ax, view, with_names=True)
    if nested is not None:
        mark = {"marker": "D", "markersize": pt(3.2), "color": "black", "linestyle": "none", "zorder": 4}
        mark |= {"elinewidth": pt(1), "capsize": pt(2), "label": f"nested, {len(nested.chosen)} outer folds"}
        ax.errorbar(view.values[view.chosen_index], nested.mean, nested.standard_error, **mark)
        chosen = view.values[nested.chosen]
        ax.plot(chosen, [0] * len(chosen), "|", color="black", markersize=pt(8), transform=ax.get_xaxis_transform())
    if view.paired:
        ax.set_ylabel(f"{view.metric}, mean of {view.n_folds} folds\n± standard error of the difference")
    else:
        ax.set_ylabel(f"{view.metric}\nmean ± standard error, {view.n_folds} folds")


def mark_choices(ax: Any, view: SelectionView, with_names: bool = False) -> None:
    """Draw a line at the choice of each rule, solid for the choice that was taken, and on request its name above.

    Names of lines that are close to each other point away from each other.
    """
    best = view.best_index
    one_se = view.one_se_index
    best_name = "max" if view.higher_is_better else "min"
    from_left = np.log(view.values) * (-1 if view.param_name == "strength" else 1)
    distance = (from_left[one_se] - from_left[best]) / np.ptp(from_left)  # as a share of the axis
    aligns = ("right", "left") if distance > 0 else ("left", "right")
    if abs(distance) > 0.12 or best == one_se:
        aligns = ("center", "center")
    lines = [(best, best_name, COLOURS[3], aligns[0]), (one_se, "1 SE", COLOURS[2], aligns[1])]
    if best == one_se:
        lines = [(best, f"{best_name} = 1 SE", COLOURS[3], "center")]
    for index, name, colour, align in lines:
        if not with_names and view.slice_of(index) != view.slice_of(view.chosen_index):
            continue  # a panel of the chosen second number alone
        if view.second_values is not None:  # colours are those of the second numbers
            colour = "0.35"
        line = {"linewidth": pt(0.9), "linestyle": "--"}
        if index == view.chosen_index:
            line = {"linewidth": pt(1.6), "linestyle": "-"}
        ax.axvline(view.values[index], color=colour, alpha=0.45, zorder=0.5, **line)  # below the curves
        if with_names:
            place = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "va": "bottom"}
            ax.annotate(
                name, (view.values[index], 1), (0, pt(2)), ha=align, color=colour, annotation_clip=False, **place
            )


def _draw_coefficients(ax: Any, view: SelectionView, coefficients: Coefficients) -> None:
    """Draw the coefficients of the features; the largest at the choice have names, the others are grey."""
    of_choice = view.slice_of(view.chosen_index)
    values = view.values[of_choice]
    coefficients = coefficients.take(of_choice)
    class_labels = [f", {label}" for label in coefficients.classes] if len(coefficients.classes) > 1 else [""]
    names = [name + label for name in coefficients.display_names for label in class_labels]
    curves = coefficients.weights.reshape(len(values), -1)
    curves = np.where(np.isfinite(curves), curves, np.nan)
    size = np.nan_to_num(np.abs(curves[view.chosen_index - of_choice.start]))
    largest = np.argsort(-size, kind="stable")[:_MAX_COEFFICIENTS]
    exceed = coefficients.exceed(view.cutoff).reshape(curves.shape)
    named = [j for j in largest if size[j] and exceed[view.chosen_index - of_choice.start, j]]
    unnamed = np.setdiff1d(np.arange(curves.shape[1]), named)
    if len(unnamed):
        unnamed = unnamed[np.nanmax(np.abs(curves[:, unnamed]), axis=0, initial=0) > 0]
        ax.plot(values, curves[:, unnamed], color="0.7", linewidth=pt(0.4), rasterized=len(unnamed) > 500)
    labels = []
    for i, j in enumerate(named):
        ax.plot(values, curves[:, j], **curve_style(i).line_kwargs, linewidth=pt(1.1))
        end = curves[-1, j] if np.isfinite(curves[-1, j]) else 0.0
        labels.append((end, i, names[j]))
    ax.margins(x=0)
    mark_choices(ax, view)
    label_curve_ends(ax, labels)
    note = f", {len(named)} largest at the choice named" if 0 < len(named) < len(size) else ""
    ax.set_ylabel(f"coefficients on all training rows,\ntraining scale{note}")


def format_path_axis(ax: Any, param_name: str, values: np.ndarray) -> None:
    """Set up the logarithmic axis of a regularization path, with the simplest solution on the left."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    wide = values.max() > 100 * values.min()
    ax.set(xscale="log", xlabel=PARAMETER_LABELS[param_name])
    ax.xaxis.set_major_locator(LogLocator(subs=(1,) if wide else (1, 2, 5), numticks=9))
    ax.xaxis.set_minor_locator(NullLocator())  # many ticks would take a third of the time of the picture
    if not wide:
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    if param_name == "strength":
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
        at_curve = (end - low) / (high - low)
        in_panel: dict[str, Any] = {"transform": ax.transAxes, "color": colour}
        ax.plot(
            (1, 1.05), (at_curve, heights[i]), linewidth=pt(0.4), clip_on=False, scalex=False, scaley=False, **in_panel
        )
        ax.text(1.06, heights[i], shorten_name(name, MAX_LETTERS), va="center", parse_math=False, **in_panel)


PICTURE = Picture("selection", SelectionView, lambda view: view, draw)
