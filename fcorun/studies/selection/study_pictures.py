"""Pictures of selections and of stability selections."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fcorun.data.tables.label_file import label_column
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.reports.pictures.layout import COLOURS, curve_style, make_figure, render_figure, shorten_name
from fcorun.reports.pictures.style import pt, style_context
from fcorun.results.models.coefficients import Coefficients
from fcorun.studies.selection.choice import find_metric
from fcorun.studies.selection.path import RegularizationPath

if TYPE_CHECKING:
    from fcorun.studies.selection.selection_result import Selection
    from fcorun.studies.selection.stability import StabilityResult

PARAMETER_LABELS = {"strength": "strength λ of ψ", "radius": "radius r"}
_MAX_LETTERS = 18  # of a name in the margin
_MAX_COEFFICIENTS = 10  # with a name in the margin
_MAX_FEATURES = 8  # of a stability selection with a name in the margin
_MAX_NAMED_CLIENTS = 12
_MAX_NUMBERED_CLIENTS = 8  # up to which indices are written into the cells


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


def draw_selection(selection: "Selection", coefficients: Coefficients | None) -> dict[str, bytes]:
    """Return the contents of selection.png and selection.pdf."""
    with style_context(selection.experiment.settings.style):
        options = selection.options
        title = f"{format_title(selection.experiment)}: {options.folds}-fold cross-validation by {selection.by}"
        if options.fold_weights == "rows":
            title += ", folds weighed by their rows"
        n_panels = 1 if coefficients is None else 2
        figure, axes = make_figure(n_panels, n_panels, height=2.3, title=[title])
        _draw_metric(axes[0], selection)
        if coefficients is not None:
            _draw_coefficients(axes[1], selection, coefficients)
        for ax in axes:
            format_path_axis(ax, selection.path)
        second = selection.path.second
        if coefficients is not None and second is not None:
            value = second.values[selection.choice.chosen_index]
            axes[1].set_xlabel(f"{axes[1].get_xlabel()}, {second.name} = {value:g}")
        if second is not None or selection.nested is not None:
            axes[0].legend(frameon=False, handlelength=1.6)
        return render_png_and_pdf("selection", figure)


def _draw_metric(ax: Any, selection: "Selection") -> None:
    """Draw the mean of the metric over the folds, and the bound of the one-standard-error rule.

    Each second number has a line; the line of the choice has error bars. Paired, a value qualifies for the rule if its
    error bar reaches the best mean; unpaired, if its mean is within one standard error of the best. The nested score is
    drawn at the chosen value, with a tick at the bottom for the choice without each outer fold.
    """
    choice, path, nested = selection.choice, selection.path, selection.nested
    n_folds = selection.options.folds
    error = choice.difference_standard_error if choice.paired else choice.standard_error
    bars = {"elinewidth": pt(0.6), "linewidth": pt(1), "capsize": pt(1.2), "marker": "."}
    for i in range(path.n_paths):
        of_path = path.slice_of(i * path.length)
        points = path.values[of_path], choice.mean[of_path]
        label = "" if path.second is None else f"{path.second.name} = {path.second.values[of_path.start]:g}"
        if of_path == path.slice_of(choice.chosen_index):  # the errors of one line alone are legible
            ax.errorbar(*points, error[of_path], color=curve_style(i).colour, label=label, **bars)
        else:
            ax.plot(*points, **curve_style(i).line_kwargs, linewidth=pt(0.8), label=label)
    sign = -1 if choice.higher_is_better else 1
    bound = choice.mean[choice.best_index] + sign * error[choice.best_index]
    ax.axhline(bound, color="0.5", linewidth=pt(0.5), linestyle=":")
    mark_choices(ax, selection, with_names=True)
    if nested is not None:
        mark = {"marker": "D", "markersize": pt(3.2), "color": "black", "linestyle": "none", "zorder": 4}
        mark |= {"elinewidth": pt(1), "capsize": pt(2), "label": f"nested, {len(nested.scores)} outer folds"}
        ax.errorbar(path.values[choice.chosen_index], nested.mean, nested.standard_error, **mark)
        chosen = path.values[nested.chosen]
        ax.plot(chosen, [0] * len(chosen), "|", color="black", markersize=pt(8), transform=ax.get_xaxis_transform())
    metric = find_metric(selection.experiment, selection.metric)
    label = (metric.label or metric.name).replace("validation", "held-out")
    if choice.paired:
        ax.set_ylabel(f"{label}, mean of {n_folds} folds\n± standard error of the difference")
    else:
        ax.set_ylabel(f"{label}\nmean ± standard error, {n_folds} folds")


def mark_choices(ax: Any, selection: "Selection", with_names: bool = False) -> None:
    """Draw a line at the choice of each rule, solid for the choice that was taken, and on request its name above.

    Names of lines that are close to each other point away from each other.
    """
    choice, path = selection.choice, selection.path
    best, one_se = choice.best_index, choice.one_se_index
    best_name = choice.rule_labels["min"][:3]  # min or max
    from_left = np.log(path.values) * (-1 if path.param_name == "strength" else 1)
    distance = (from_left[one_se] - from_left[best]) / np.ptp(from_left)  # as a share of the axis
    aligns = ("right", "left") if distance > 0 else ("left", "right")
    if abs(distance) > 0.12 or best == one_se:
        aligns = ("center", "center")
    lines = [(best, best_name, COLOURS[3], aligns[0]), (one_se, "1 SE", COLOURS[2], aligns[1])]
    if best == one_se:
        lines = [(best, f"{best_name} = 1 SE", COLOURS[3], "center")]
    for index, name, colour, align in lines:
        if not with_names and path.slice_of(index) != path.slice_of(choice.chosen_index):
            continue  # a panel of the chosen second number alone
        if path.second is not None:  # colours are those of the second numbers
            colour = "0.35"
        line = {"linewidth": pt(0.9), "linestyle": "--"}
        if index == choice.chosen_index:
            line = {"linewidth": pt(1.6), "linestyle": "-"}
        ax.axvline(path.values[index], color=colour, alpha=0.45, zorder=0.5, **line)  # below the curves
        if with_names:
            place = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "va": "bottom"}
            ax.annotate(
                name, (path.values[index], 1), (0, pt(2)), ha=align, color=colour, annotation_clip=False, **place
            )


def _draw_coefficients(ax: Any, selection: "Selection", coefficients: Coefficients) -> None:
    """Draw the coefficients of the features; the largest at the choice have names, the others are grey."""
    of_choice = selection.path.slice_of(selection.choice.chosen_index)
    values, coefficients = selection.path.values[of_choice], coefficients.take(of_choice)
    class_labels = [f", {label}" for label in coefficients.classes] if len(coefficients.classes) > 1 else [""]
    names = [name + label for name in coefficients.display_names for label in class_labels]
    curves = coefficients.weights.reshape(len(values), -1)
    curves = np.where(np.isfinite(curves), curves, np.nan)
    size = np.nan_to_num(np.abs(curves[selection.choice.chosen_index - of_choice.start]))
    largest = np.argsort(-size, kind="stable")[:_MAX_COEFFICIENTS]
    exceed = coefficients.exceed(selection.experiment.settings.cutoff).reshape(curves.shape)
    named = [j for j in largest if size[j] and exceed[selection.choice.chosen_index - of_choice.start, j]]
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
    mark_choices(ax, selection)
    label_curve_ends(ax, labels)
    note = f", {len(named)} largest at the choice named" if 0 < len(named) < len(size) else ""
    ax.set_ylabel(f"coefficients on all training rows,\ntraining scale{note}")


def draw_stability(result: "StabilityResult") -> dict[str, bytes]:
    """Return the contents of stability.png and stability.pdf."""
    with style_context(result.experiment.settings.style):
        options = result.options
        halves = f"{options.subsamples} halves by {result.halves_of}"
        title = f"{format_title(result.experiment)}: stability selection on {halves}"
        similarity = result.client_similarity
        n_panels = 1 if similarity is None else 2
        figure, axes = make_figure(n_panels, n_panels, height=2.4, title=[title])
        _draw_frequencies(axes[0], result)
        if similarity is not None:
            _draw_similarity(figure, axes[1], result, similarity)
        return render_png_and_pdf("stability", figure)


def _draw_frequencies(ax: Any, result: "StabilityResult") -> None:
    """Draw the share of the halves that choose each feature; the most frequent have names, stable ones a thick line.

    Features without a name are grey.
    """
    scores, options, values = result.scores, result.options, result.path.values
    # by their largest frequency in the region, then by their mean frequency on the path
    mean = scores.frequency.mean(axis=0)
    order = np.lexsort((-mean, -scores.max_frequency))
    named = [int(j) for j in order[:_MAX_FEATURES] if mean[j] > 0]
    unnamed = np.setdiff1d(np.flatnonzero(scores.frequency.max(axis=0) > 0), named)
    for is_stable, color, width in ((False, "0.7", 0.4), (True, "0.5", 1.8)):
        curves = scores.frequency[:, unnamed[scores.stable[unnamed] == is_stable]]
        if curves.size:
            ax.plot(values, curves, color=color, linewidth=pt(width), rasterized=curves.shape[1] > 500)
    for i, j in enumerate(named):
        width = pt(1.8 if scores.stable[j] else 0.8)
        ax.plot(values, scores.frequency[:, j], **curve_style(i).line_kwargs, linewidth=width)
    ax.axhline(options.threshold, color="0.2", linewidth=pt(0.7), linestyle="--")
    if scores.region_length < len(values):
        ax.axvspan(values[scores.region_length - 1], values[-1], color="0.92", linewidth=0, zorder=0)
    format_path_axis(ax, result.path)
    ax.set(
        ylim=(-0.03, 1.03),
        xlabel=f"{PARAMETER_LABELS[result.path.param_name]}\nthick: stable; white: bound ≤ {options.max_errors:g}",
        ylabel=f"share of {options.subsamples} halves\non which a feature is chosen",
    )
    ax.margins(x=0)
    features = result.data.features
    names: Sequence[str] = result.units.names
    if result.units.are_groups:
        names = [label_column(name, features.labels) for name in names]
    elif features.labels:
        names = features.display_names
    # curves that end at one height keep the order of their frequency
    label_curve_ends(ax, [(scores.frequency[-1, j] - 1e-6 * i, i, names[j]) for i, j in enumerate(named)])


def _draw_similarity(figure: Any, ax: Any, result: "StabilityResult", similarity: np.ndarray) -> None:
    """Draw the Jaccard indices, (M, M), of the clients' own supports."""
    n_clients = len(similarity)
    image = ax.imshow(similarity, vmin=0, vmax=1, cmap="viridis", interpolation="nearest")
    ax.set_facecolor("0.85")
    ax.grid(False)
    if n_clients <= _MAX_NAMED_CLIENTS:
        labels = [shorten_name(name, _MAX_LETTERS) for name in result.data.client_names]
        ax.set_xticks(range(n_clients), labels, rotation=90, parse_math=False)
        ax.set_yticks(range(n_clients), labels, parse_math=False)
    if n_clients <= _MAX_NUMBERED_CLIENTS:
        for (row, column), index in np.ndenumerate(similarity):
            if np.isfinite(index):
                colour = "black" if index > 0.6 else "white"
                ax.text(column, row, f"{index:.2f}", ha="center", va="center", color=colour)
    value = result.path.values[result.scores.region_length - 1]
    ax.set_xlabel(f"clients by themselves, {result.path.param_name} {value:.3g}")
    bar = figure.colorbar(image, ax=ax, fraction=0.046, pad=0.03)
    bar.set_label("Jaccard index of supports (grey: none)")
    bar.outline.set_linewidth(pt(0.5))


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
        text = shorten_name(name, _MAX_LETTERS)
        ax.annotate(text, at_curve, beside, color=colour, parse_math=False, arrowprops=arrow, **place)
