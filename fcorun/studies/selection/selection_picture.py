"""Picture of a selection: the metric and the coefficients against the strength."""

from typing import Any

import numpy as np

from fcorun.reports.pictures.layout import COLOURS, curve_style, make_figure, render_figure
from fcorun.reports.pictures.style import pt, style_context
from fcorun.results.models.coefficients import Coefficients
from fcorun.studies.selection.fold_scores import find_metric
from fcorun.studies.selection.nested import NestedScore
from fcorun.studies.selection.selection_result import Selection
from fcorun.studies.selection.study_picture import format_path_axis, format_title, label_curve_ends, shorten

N_LABELLED = 10  # coefficients with a name in the margin


def draw_selection(selection: Selection, coefficients: Coefficients | None) -> dict[str, bytes]:
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
        return {f"selection.{format}": render_figure(figure, format) for format in ("png", "pdf")}


def _draw_metric(ax: Any, selection: Selection) -> None:
    """Draw the mean of the metric over the folds, and the bound of the one-standard-error rule.

    Each second number has a line; the line of the choice has error bars. Paired, a value qualifies for the rule if its
    error bar reaches the best mean; unpaired, if its mean is within one standard error of the best.
    """
    choice, values, n_folds = selection.choice, selection.path.values, selection.options.folds
    error = choice.difference_standard_error if choice.paired else choice.standard_error
    path = selection.path
    of_choice = path.slice_of(choice.chosen_index)
    for i in range(path.n_paths):
        of_path = slice(i * path.length, (i + 1) * path.length)
        label = "" if path.second is None else f"{path.second.name} = {path.second.values[of_path.start]:g}"
        if of_path != of_choice:  # the errors of one line alone are legible
            ax.plot(values[of_path], choice.mean[of_path], **curve_style(i).line_kwargs, linewidth=pt(0.8), label=label)
            continue
        ax.errorbar(
            values[of_path],
            choice.mean[of_path],
            error[of_path],
            color=curve_style(i).colour,
            marker=".",
            elinewidth=pt(0.6),
            linewidth=pt(1),
            capsize=pt(1.2),
            label=label,
        )
    sign = -1 if choice.higher_is_better else 1
    bound = choice.mean[choice.best_index] + sign * error[choice.best_index]
    ax.axhline(bound, color="0.5", linewidth=pt(0.5), linestyle=":")
    mark_choices(ax, selection, with_names=True)
    if selection.nested is not None:
        _draw_nested(ax, selection, selection.nested)
    metric = find_metric(selection.experiment, selection.metric)
    metric_label = (metric.label or metric.name).replace("validation", "held-out")
    if choice.paired:
        ax.set_ylabel(f"{metric_label}, mean of {n_folds} folds\n± standard error of the difference")
    else:
        ax.set_ylabel(f"{metric_label}\nmean ± standard error, {n_folds} folds")


def _draw_nested(ax: Any, selection: Selection, nested: NestedScore) -> None:
    """Draw the nested score at the chosen value, and a tick at the bottom for the choice without each outer fold."""
    colour = "black"
    label = f"nested, {len(nested.scores)} outer folds"
    value = selection.path.values[selection.choice.chosen_index]
    ax.errorbar(
        value,
        nested.mean,
        nested.standard_error,
        color=colour,
        marker="D",
        markersize=pt(3.2),
        elinewidth=pt(1),
        capsize=pt(2),
        zorder=4,
        linestyle="none",
        label=label,
    )
    chosen = selection.path.values[nested.chosen]
    ax.plot(chosen, [0] * len(chosen), "|", color=colour, markersize=pt(8), transform=ax.get_xaxis_transform())


def mark_choices(ax: Any, selection: Selection, with_names: bool = False) -> None:
    """Draw a line at the choice of each rule, solid for the choice that was taken, and on request its name above."""
    choice, values = selection.choice, selection.path.values
    best_name = choice.rule_labels["min"][:3]  # min or max
    same = choice.best_index == choice.one_se_index
    positions = np.log(values) * (-1 if selection.path.param_name == "strength" else 1)  # from left to right
    best_is_left = positions[choice.best_index] < positions[choice.one_se_index]
    lines = [(choice.best_index, f"{best_name} = 1 SE" if same else best_name, COLOURS[3])]
    if not same:
        lines.append((choice.one_se_index, "1 SE", COLOURS[2]))
    if not with_names:  # a panel of the chosen second number alone
        of_choice = selection.path.slice_of(choice.chosen_index)
        lines = [line for line in lines if of_choice.start <= line[0] < of_choice.stop]
    for index, name, colour in lines:
        if selection.path.second is not None:  # colours are those of the second numbers
            colour = "0.35"
        taken = index == choice.chosen_index
        ax.axvline(
            values[index],
            color=colour,
            linewidth=pt(1.6 if taken else 0.9),
            linestyle="-" if taken else "--",
            alpha=0.45,
            zorder=0.5,
        )  # below the curves and the error bars
        if with_names:
            distance = positions[choice.best_index] - positions[choice.one_se_index]
            gap = abs(distance / np.ptp(positions))  # as a share of the axis
            is_left = best_is_left == (index == choice.best_index)
            align = "right" if is_left else "left"  # names point away from each other
            if same or gap > 0.12:
                align = "center"
            ax.annotate(
                name,
                (values[index], 1),
                (0, pt(2)),
                xycoords=("data", "axes fraction"),
                ha=align,
                va="bottom",
                textcoords="offset points",
                color=colour,
                annotation_clip=False,
            )


def _draw_coefficients(ax: Any, selection: Selection, coefficients: Coefficients) -> None:
    """Draw the coefficients of the features; the largest at the choice have names, the others are grey."""
    of_choice = selection.path.slice_of(selection.choice.chosen_index)
    values, coefficients = selection.path.values[of_choice], coefficients.take(of_choice)
    class_labels = [f", {label}" for label in coefficients.classes] if len(coefficients.classes) > 1 else [""]
    names = [name + label for name in coefficients.display_names for label in class_labels]
    curves = coefficients.weights.reshape(len(values), -1)
    curves = np.where(np.isfinite(curves), curves, np.nan)
    size = np.nan_to_num(np.abs(curves[selection.choice.chosen_index - of_choice.start]))
    largest = np.argsort(-size, kind="stable")[:N_LABELLED]
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
        labels.append((end, i, shorten(names[j])))
    ax.margins(x=0)
    mark_choices(ax, selection)
    label_curve_ends(ax, labels)
    note = f", {len(named)} largest at the choice named" if 0 < len(named) < len(size) else ""
    ax.set_ylabel(f"coefficients on all training rows,\ntraining scale{note}")
