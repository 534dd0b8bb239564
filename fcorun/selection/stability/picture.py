"""The picture of a stability selection: how often features are chosen, and how alike clients are."""

from typing import Any

import numpy as np

from fcorun.reports.pictures.layout import curve_style, make_figure, render_figure
from fcorun.reports.pictures.style import pt, style_context
from fcorun.selection.picture import PARAMETER_LABELS, format_path_axis, format_title, label_curve_ends, shorten
from fcorun.selection.stability.options import StabilityResult

N_LABELLED = 8  # features that are called by name
_NAMED, _NUMBERED = 12, 8  # clients that are called by name, and whose indices are written
_LETTER = 0.05  # inches


def draw_stability(of: StabilityResult) -> dict[str, bytes]:
    """stability.png and stability.pdf, the contents of these files."""
    with style_context(of.study.experiment.settings.style):
        what = f"stability selection on {of.options.subsamples} halves by {of.options.by}"
        two = of.client_similarity is not None
        features = [shorten(of.features[j]) for j in _most(of)]
        margin = 0.25 + _LETTER * max(map(len, features), default=0)
        gap = margin + 0.15 + _LETTER * max(map(len, _texts(of)), default=0)
        figure, axes = make_figure(
            1 + two,
            1 + two,
            height=2.4,
            title=[f"{format_title(of.study.experiment)}: {what}"],
            left=0.65,
            right=0.6 if two else margin,
            top=0.12,
            bottom=0.65,
            gap=(gap, 0.5),
        )
        _frequencies(axes[0], of)
        if two:
            _alike(figure, axes[1], of)
        return {f"stability.{format}": render_figure(figure, format) for format in ("png", "pdf")}


def _frequencies(ax: Any, of: StabilityResult) -> None:
    """The share of the halves on which each feature is chosen; the most frequent have names, thick if stable."""
    found, values, named = of.scores, of.path.values, _most(of)
    rest = np.setdiff1d(np.flatnonzero(found.frequency.max(axis=0) > 0), named)
    if len(rest):
        ax.plot(values, found.frequency[:, rest], color="0.7", linewidth=pt(0.4), rasterized=len(rest) > 500)
    for i, j in enumerate(named):
        ax.plot(
            values, found.frequency[:, j], **curve_style(i).line_kwargs, linewidth=pt(1.8 if found.stable[j] else 0.8)
        )
    ax.axhline(of.options.threshold, color="0.2", linewidth=pt(0.7), linestyle="--")
    end = values[found.region_length - 1]
    if found.region_length < len(values):
        ax.axvspan(end, values[-1], color="0.92", linewidth=0, zorder=0)
    format_path_axis(ax, of.path)
    ax.set(
        ylim=(-0.03, 1.03),
        xlabel=f"{PARAMETER_LABELS[of.path.param_name]}\nthick: stable; white: bound ≤ {of.options.errors:g}",
        ylabel=f"share of {of.options.subsamples} halves\non which a feature is chosen",
    )
    ax.margins(x=0)
    names = of.features
    label_curve_ends(ax, [(found.frequency[-1, j] - 1e-6 * i, i, shorten(names[j])) for i, j in enumerate(named)])


def _most(of: StabilityResult) -> list[int]:
    """The features that are chosen most often, of those that are chosen at all; stable ones come first."""
    most, mean = of.scores.max_frequency, of.scores.frequency.mean(axis=0)
    return [int(j) for j in np.lexsort((-mean, -most))[:N_LABELLED] if mean[j] > 0]


def _texts(of: StabilityResult) -> list[str]:
    """What clients are called; empty where they are too many."""
    count = len(of.data.sizes)
    return [shorten(name) for name in of.data.clients or map(str, range(count))] if count <= _NAMED else []


def _alike(figure: Any, ax: Any, of: StabilityResult) -> None:
    """The Jaccard indices of clients' own supports."""
    count = len(of.data.sizes)
    shown = ax.imshow(of.client_similarity, vmin=0, vmax=1, cmap="viridis", interpolation="nearest")
    ax.set_facecolor("0.85")
    ax.grid(False)
    if texts := _texts(of):
        ax.set_xticks(range(count), texts, rotation=90, parse_math=False)
        ax.set_yticks(range(count), texts, parse_math=False)
    if count <= _NUMBERED and of.client_similarity is not None:
        for (a, b), index in np.ndenumerate(of.client_similarity):
            if np.isfinite(index):
                ax.text(b, a, f"{index:.2f}", ha="center", va="center",
                        color="black" if index > 0.6 else "white")  # fmt: skip
    value = of.path.values[of.scores.region_length - 1]
    ax.set_xlabel(f"clients by themselves, {of.path.param_name} {value:.3g}")
    bar = figure.colorbar(shown, ax=ax, fraction=0.046, pad=0.03)
    bar.set_label("Jaccard index of supports (grey: none)")
    bar.outline.set_linewidth(pt(0.5))
