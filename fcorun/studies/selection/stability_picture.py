"""Picture of a stability selection: selection frequencies of features, and similarity of clients."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fcorun.data.tables.label_file import label_column
from fcorun.reports.pictures.layout import curve_style, make_figure, render_figure
from fcorun.reports.pictures.style import pt, style_context
from fcorun.studies.selection.stability import StabilityResult, name_halves
from fcorun.studies.selection.study_picture import (
    PARAMETER_LABELS,
    format_path_axis,
    format_title,
    label_curve_ends,
    shorten,
)

N_LABELLED = 8  # features with a name in the margin
_MAX_NAMED_CLIENTS = 12
_MAX_NUMBERED_CLIENTS = 8  # up to which indices are written into the cells


def draw_stability(result: StabilityResult) -> dict[str, bytes]:
    """Return the contents of stability.png and stability.pdf."""
    with style_context(result.experiment.settings.style):
        options = result.options
        halves = f"{options.subsamples} halves by {name_halves(result)}"
        title = f"{format_title(result.experiment)}: stability selection on {halves}"
        similarity = result.client_similarity
        n_panels = 1 if similarity is None else 2
        figure, axes = make_figure(n_panels, n_panels, height=2.4, title=[title])
        _draw_frequencies(axes[0], result)
        if similarity is not None:
            _draw_similarity(figure, axes[1], result, similarity)
        return {f"stability.{format}": render_figure(figure, format) for format in ("png", "pdf")}


def _draw_frequencies(ax: Any, result: StabilityResult) -> None:
    """Draw the share of the halves that choose each feature; the most frequent have names, stable ones a thick line.

    Features without a name are grey.
    """
    scores, options, values = result.scores, result.options, result.path.values
    named = _most_frequent(result)
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
    label_curve_ends(ax, [(scores.frequency[-1, j] - 1e-6 * i, i, shorten(names[j])) for i, j in enumerate(named)])


def _most_frequent(result: StabilityResult) -> list[int]:
    """Return the positions of at most N_LABELLED features, without those that are never chosen.

    They are ordered by their largest frequency in the region, then by their mean frequency on the path.
    """
    mean = result.scores.frequency.mean(axis=0)
    order = np.lexsort((-mean, -result.scores.max_frequency))
    return [int(j) for j in order[:N_LABELLED] if mean[j] > 0]


def _draw_similarity(figure: Any, ax: Any, result: StabilityResult, similarity: np.ndarray) -> None:
    """Draw the Jaccard indices, (M, M), of the clients' own supports."""
    n_clients = len(similarity)
    image = ax.imshow(similarity, vmin=0, vmax=1, cmap="viridis", interpolation="nearest")
    ax.set_facecolor("0.85")
    ax.grid(False)
    if n_clients <= _MAX_NAMED_CLIENTS:
        labels = [shorten(name) for name in result.data.client_names]
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
