"""The picture of a stability selection: how often features are chosen, and how alike clients are."""

import textwrap
from typing import Any

import numpy as np

from fcorun.reports.pictures.page import PAGE, STYLE, content, look, page
from fcorun.selection.picture import SYMBOLS, along, label_ends, short, title_of
from fcorun.selection.stability.asked import Stable

SHOWN = 8  # features that are called by name
_NAMED, _NUMBERED = 12, 10  # clients that are called by name, and whose indices are written
_LETTER = 0.043  # inches


def draw(of: Stable) -> bytes:
    """stability.png, as the content of a file."""
    import matplotlib as mpl

    with mpl.rc_context(STYLE):
        what = f"stability selection on {of.options.subsamples} halves by {of.options.by}"
        title = textwrap.wrap(f"{title_of(of.study.experiment)}: {what}", int(17 * PAGE))
        two = of.clients is not None
        features = [short(of.features[j]) for j in _most(of)]
        margin = 0.25 + _LETTER * max(map(len, features), default=0)
        gap = margin + 0.15 + _LETTER * max(map(len, _texts(of)), default=0)
        figure, axes = page(1 + two, 1 + two, PAGE, height=2.4, left=0.6, right=0.55 if two else margin,
                            top=0.1 + 0.12 * len(title), bottom=0.62, gap=(gap, 0.5))  # fmt: skip
        figure.suptitle("\n".join(title), y=1 - 0.03 / figure.get_figheight(), fontsize=7, parse_math=False)
        _frequencies(axes[0], of)
        if two:
            _alike(figure, axes[1], of)
        return content(figure)


def _frequencies(ax: Any, of: Stable) -> None:
    """The share of the halves on which each feature is chosen; the most frequent have names, thick if stable."""
    found, values, named = of.found, of.path.values, _most(of)
    rest = np.setdiff1d(np.flatnonzero(found.frequency.max(axis=0) > 0), named)
    if len(rest):
        ax.plot(values, found.frequency[:, rest], color="0.7", linewidth=0.4, rasterized=len(rest) > 500)
    for i, j in enumerate(named):
        ax.plot(values, found.frequency[:, j], **look(i).line, linewidth=1.8 if found.stable[j] else 0.7)
    ax.axhline(of.options.threshold, color="0.2", linewidth=0.7, linestyle="--")
    end = values[found.region - 1]
    if found.region < len(values):
        ax.axvspan(end, values[-1], color="0.92", linewidth=0, zorder=0)
    along(ax, of.path)
    ax.set(ylim=(-0.03, 1.03), xlabel=f"{SYMBOLS[of.path.number]}\nthick: stable; white: bound ≤ {of.options.errors:g}",
           ylabel=f"share of {of.options.subsamples} halves\non which a feature is chosen")  # fmt: skip
    ax.margins(x=0)
    names = of.features
    label_ends(ax, [(found.frequency[-1, j] - 1e-6 * i, i, short(names[j])) for i, j in enumerate(named)])


def _most(of: Stable) -> list[int]:
    """The features that are chosen most often, of those that are chosen at all; stable ones come first."""
    most, mean = of.found.most, of.found.frequency.mean(axis=0)
    return [int(j) for j in np.lexsort((-mean, -most))[:SHOWN] if mean[j] > 0]


def _texts(of: Stable) -> list[str]:
    """What clients are called; empty where they are too many."""
    count = len(of.data.sizes)
    return [short(name) for name in of.data.clients or map(str, range(count))] if count <= _NAMED else []


def _alike(figure: Any, ax: Any, of: Stable) -> None:
    """The Jaccard indices of clients' own supports."""
    count = len(of.data.sizes)
    shown = ax.imshow(of.clients, vmin=0, vmax=1, cmap="viridis", interpolation="nearest")
    ax.set_facecolor("0.85")
    ax.grid(False)
    if texts := _texts(of):
        ax.set_xticks(range(count), texts, rotation=90, fontsize=6, parse_math=False)
        ax.set_yticks(range(count), texts, fontsize=6, parse_math=False)
    if count <= _NUMBERED and of.clients is not None:
        for (a, b), index in np.ndenumerate(of.clients):
            if np.isfinite(index):
                ax.text(b, a, f"{index:.2f}", ha="center", va="center", fontsize=5.5,
                        color="black" if index > 0.6 else "white")  # fmt: skip
    value = of.path.values[of.found.region - 1]
    ax.set_xlabel(f"clients by themselves, {of.path.number} {value:.3g}")
    bar = figure.colorbar(shown, ax=ax, fraction=0.046, pad=0.03)
    bar.set_label("Jaccard index of supports (grey: none)")
    bar.outline.set_linewidth(0.5)
