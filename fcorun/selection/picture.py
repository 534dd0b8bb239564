"""The picture of a selection: the metric against the strength, and the coefficients."""

from pathlib import Path
from typing import Any

import numpy as np

from fcorun.experiment.experiment import Experiment
from fcorun.models.coefficients import Coefficients
from fcorun.reports.pictures.layout import COLOURS, curve_style, make_figure, render_figure
from fcorun.reports.pictures.style import pt, style_context
from fcorun.selection.path import RegularizationPath
from fcorun.selection.result import Selection

N_LABELLED = 10  # coefficients that are called by name
PARAMETER_LABELS = {"strength": "strength λ of ψ", "radius": "radius r"}
_LONGEST = 18  # letters of a name


def format_title(experiment: Experiment) -> str:
    """The method, the data and psi in words."""
    names = experiment.names
    method = experiment.config["algo"].get("title") or names["algo"].replace("_", " ").capitalize()
    path = getattr(experiment.data, "path", None)
    data = Path(path).stem if path else names["data"]
    kind = "" if names["reg"].endswith("ball") else " penalty"
    return f"{method} on {data.replace('_', ' ')}, {names['reg'].replace('_', ' ')}{kind}"


def draw_selection(of: Selection, found: Coefficients | None) -> dict[str, bytes]:
    """selection.png and selection.pdf, the contents of these files."""
    with style_context(of.experiment.settings.style):
        what = f"{format_title(of.experiment)}: {of.options.folds}-fold cross-validation by {of.by}"
        what += ", folds weighed by their rows" if of.options.fold_weights == "rows" else ""
        two = found is not None
        figure, axes = make_figure(1 + two, 1 + two, height=2.3, title=[what], left=0.65, right=1.1 if two else 0.1,
                            top=0.22, gap=(0.8, 0.5))  # fmt: skip
        _metric(axes[0], of)
        if found is not None:
            _paths(axes[1], of, found)
        for ax in axes:
            format_path_axis(ax, of.path)
        return {f"selection.{format}": render_figure(figure, format) for format in ("png", "pdf")}


def format_path_axis(ax: Any, path: RegularizationPath) -> None:
    """The axis of a path, from the simplest solution on."""
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


def _metric(ax: Any, of: Selection) -> None:
    choice, values = of.choice, of.path.values
    blue = curve_style(0)
    error = choice.difference_standard_error if choice.paired else choice.standard_error
    ax.errorbar(values, choice.mean, error, color=blue.colour, marker=".", elinewidth=pt(0.6), linewidth=pt(1),
                capsize=pt(1.2))  # fmt: skip
    bound = choice.mean[choice.best_index] + (-1 if choice.higher_is_better else 1) * error[choice.best_index]
    ax.axhline(bound, color="0.5", linewidth=pt(0.5), linestyle=":")
    mark_choices(ax, of, top=True)
    metric = of.experiment.metrics[of.metric]
    words = (metric.label or metric.name).replace("validation", "held-out")
    label = f"{words}\nmean ± standard error, {of.options.folds} folds"
    if choice.paired:
        label = f"{words}, mean of {of.options.folds} folds\n± standard error of the difference"
    ax.set_ylabel(label)


def mark_choices(ax: Any, of: Selection, top: bool = False) -> None:
    """Lines at the two choices, with their names on top; the one that is taken is drawn through."""
    choice, values = of.choice, of.path.values
    same, best = choice.best_index == choice.one_se_index, choice.rule_labels["min"][:3]
    places = [(choice.best_index, f"{best} = 1 SE" if same else best, COLOURS[3])]
    places += [] if same else [(choice.one_se_index, "1 SE", COLOURS[2])]
    for place, name, colour in places:
        taken = place == choice.chosen_index
        ax.axvline(
            values[place],
            color=colour,
            linewidth=pt(1.6 if taken else 0.9),
            linestyle="-" if taken else "--",
            alpha=0.45,
            zorder=0.5,
        )  # below the curves and the error bars
        if top:
            gap = abs(np.log(values[choice.best_index] / values[choice.one_se_index]) / np.log(values[0] / values[-1]))
            align = "center" if same or gap > 0.12 else "left" if name == best else "right"
            ax.annotate(name, (values[place], 1), (0, pt(2)), xycoords=("data", "axes fraction"), ha=align, va="bottom",
                        textcoords="offset points", color=colour, annotation_clip=False)  # fmt: skip


def _paths(ax: Any, of: Selection, found: Coefficients) -> None:
    """The coefficients of the features; the largest at the choice have names, the others are grey."""
    values, choice = of.path.values, of.choice
    labels = [f", {label}" for label in found.classes] if len(found.classes) > 1 else [""]
    names = [name + label for name in found.features for label in labels]
    curves = found.weights.reshape(len(values), -1)
    curves = np.where(np.isfinite(curves), curves, np.nan)
    size = np.nan_to_num(np.abs(curves[choice.chosen_index]))
    order = np.argsort(-size, kind="stable")
    named = [j for j in order[:N_LABELLED] if size[j] > of.experiment.settings.cutoff]
    rest = np.setdiff1d(np.arange(curves.shape[1]), named)
    if len(rest):
        rest = rest[np.nanmax(np.abs(curves[:, rest]), axis=0, initial=0) > 0]
        ax.plot(values, curves[:, rest], color="0.7", linewidth=pt(0.4), rasterized=len(rest) > 500)
    ends = [(curves[-1, j] if np.isfinite(curves[-1, j]) else 0.0, i, j) for i, j in enumerate(named)]
    for i, j in enumerate(named):
        ax.plot(values, curves[:, j], **curve_style(i).line_kwargs, linewidth=pt(1.1))
    ax.margins(x=0)
    mark_choices(ax, of)
    label_curve_ends(ax, [(end, i, shorten(names[j])) for end, i, j in ends])
    more = f", {len(named)} largest at the choice named" if len(size) > len(named) else ""
    ax.set_ylabel(f"coefficients on all training rows\nas trained{more}")


def label_curve_ends(ax: Any, ends: list[tuple[float, int, str]]) -> None:
    """Names beside the ends of curves, (end, place of its look, name), moved apart lest they lie on each other."""
    low, high = ax.get_ylim()
    height = 1 / 19  # of a line, as a share of the panel
    places, last = {}, -np.inf
    for end, i, _ in sorted(ends):
        last = max((end - low) / (high - low), last + height)
        places[i] = last
    over = max([*places.values(), 0.0]) - 1
    if over > 0:  # down again, from the top
        top = 1.0
        for _, i, _ in sorted(ends, reverse=True):
            places[i] = min(places[i], top)
            top = places[i] - height
    for end, i, name in ends:
        share = (end - low) / (high - low)
        ax.annotate(
            name,
            (1, share),
            (1.06, places[i]),
            xycoords="axes fraction",
            textcoords="axes fraction",
            va="center",
            color=curve_style(i).colour,
            annotation_clip=False,
            parse_math=False,
            arrowprops={
                "arrowstyle": "-",
                "linewidth": pt(0.4),
                "color": curve_style(i).colour,
                "shrinkA": pt(1),
                "shrinkB": 0,
                "relpos": (0, 0.5),
            },
        )


def shorten(name: str) -> str:
    """A name that is not too long for a margin."""
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST // 2]}…{name[-_LONGEST // 2 + 1 :]}"
