"""The picture of a stability selection: how often features are chosen, and how alike clients are."""

import textwrap
from typing import Any

import numpy as np

from fcorun.reports.pictures.page import PAGE, STYLE, content, look, page
from fcorun.selection.coefficients import names_of
from fcorun.selection.picture import SHOWN, SYMBOLS, along, beside, short
from fcorun.selection.stability.asked import Stable

_NAMED = 12  # clients that are called by name


def draw(of: Stable, label: str) -> bytes:
    """stability.png, as the content of a file."""
    import matplotlib as mpl

    with mpl.rc_context(STYLE):
        title = textwrap.wrap(label, int(17 * PAGE))
        two = of.clients is not None
        figure, axes = page(1 + two, 1 + two, PAGE, height=2.4, left=0.6, right=0.55 if two else 1.2,
                            top=0.1 + 0.12 * len(title), bottom=0.62, gap=(1.6, 0.5))  # fmt: skip
        figure.suptitle("\n".join(title), y=1 - 0.03 / figure.get_figheight(), fontsize=7, parse_math=False)
        _frequencies(axes[0], of)
        if two:
            _alike(figure, axes[1], of)
        return content(figure)


def _frequencies(ax: Any, of: Stable) -> None:
    """The share of the halves on which each feature is chosen; the most frequent stable ones have names."""
    found, values = of.found, of.path.values
    order = np.argsort(-found.most, kind="stable")
    named = [j for j in order if found.stable[j]][:SHOWN]
    rest = np.setdiff1d(np.flatnonzero(found.frequency.max(axis=0) > 0), named)
    if len(rest):
        ax.plot(values, found.frequency[:, rest], color="0.7", linewidth=0.4, rasterized=len(rest) > 500)
    for i, j in enumerate(named):
        ax.plot(values, found.frequency[:, j], **look(i).line, linewidth=1.1)
    ax.axhline(of.options.threshold, color="0.2", linewidth=0.7, linestyle="--")
    end = values[found.region - 1]
    if found.region < len(values):
        ax.axvspan(end, values[-1], color="0.92", linewidth=0, zorder=0)
    along(ax, of.path)
    ax.set(ylim=(-0.03, 1.03), xlabel=f"{SYMBOLS[of.path.number]}\nwhite: bound ≤ {of.options.errors:g}",
           ylabel=f"share of {of.options.subsamples} halves\non which a feature is chosen")  # fmt: skip
    ax.margins(x=0)
    names = names_of(of.data)
    beside(ax, [(found.frequency[-1, j], i, short(names[j])) for i, j in enumerate(named)])


def _alike(figure: Any, ax: Any, of: Stable) -> None:
    """The Jaccard indices of clients' own supports."""
    count = len(of.data.sizes)
    shown = ax.imshow(of.clients, vmin=0, vmax=1, cmap="viridis", interpolation="nearest")
    ax.set_facecolor("0.85")
    ax.grid(False)
    names = list(of.data.clients) or [str(m) for m in range(count)]
    if count <= _NAMED:
        texts = [short(name) for name in names]
        ax.set_xticks(range(count), texts, rotation=90, fontsize=6, parse_math=False)
        ax.set_yticks(range(count), texts, fontsize=6, parse_math=False)
    value = of.path.values[of.found.region - 1]
    ax.set_xlabel(f"clients by themselves, {of.path.number} {value:.3g}")
    bar = figure.colorbar(shown, ax=ax, fraction=0.046, pad=0.03)
    bar.set_label("Jaccard index of supports (grey: none)")
    bar.outline.set_linewidth(0.5)
