"""The picture of a linear model: its largest coefficients by name, and all of them where they are many."""

import textwrap
from typing import Any

import numpy as np

from fcorun.models.brain import draw_brain
from fcorun.models.coefficients import Coefficients
from fcorun.reports.pictures.curves import drawing
from fcorun.reports.pictures.page import COLOURS, COLUMN, PAGE, STYLE, content, page

_NAMED, _LARGEST, _OF_CLASS = 30, 20, 8  # bars: all of them up to so many, the largest of more, those of a class
_CLASSES = 9  # panels
_BAR = 0.125  # inches
_SIGNS = (COLOURS[3], COLOURS[0])  # of negative and positive ones


def draw_model(found: Coefficients, label: str, cutoff: float, format: str = "png") -> dict[str, bytes]:
    """The pictures of a model by the names of their files: its coefficients, and of voxels the map."""
    told = {f"coefficients.{format}": draw_coefficients(found, label, cutoff, format)}
    if found.grid is not None:
        told[f"brain.{format}"] = draw_brain(found, label, format)
    return told


def draw_coefficients(found: Coefficients, label: str, cutoff: float, format: str = "png") -> bytes:
    """coefficients.png as the content of a file of this format; ``label`` says which run it is.

    Up to 30 coefficients larger than ``cutoff`` in magnitude are bars with their names. Of more, the 20 largest are,
    beside a stem for each feature in the order of the data; of several classes, the 8 largest of each of the first 9.
    Matrices are maps, beside their singular values.
    """
    import matplotlib as mpl

    with drawing, mpl.rc_context(STYLE):
        return content(draw(found, label, cutoff), format)


def draw(found: Coefficients, label: str, cutoff: float) -> Any:
    """The figure of ``draw_coefficients``."""
    away = np.abs(found.weights) > cutoff
    note = f"|w| > {cutoff:g} in {away.sum():,} of {away.size:,} coefficients, {(~away).sum():,} at most that"
    if found.shape:
        return _matrices(found, label, note)
    if len(found.classes) > 1:
        return _classes(found, label, note, cutoff)
    if found.bias is not None:
        note += f"; intercept {found.bias[0]:.4g}"
    if speaks := "".join(found.classes):
        note += f"; w > 0 speaks for {speaks}"
    values = found.weights[:, 0]
    many = away.sum() > _NAMED
    bars = min(int(away.sum()), _LARGEST if many else _NAMED)
    top = [found.features[j] for j in _largest(values, bars)]
    figure, axes = _page(2 if many else 1, label, note, PAGE if many else COLUMN, height=max(bars, 6) * _BAR,
                         left=_room(top, 26))  # fmt: skip
    _bars(axes[0], found.features, values, bars)
    axes[0].set_xlabel(_words(found))
    if many:
        axes[0].set_title(f"the {bars} largest", loc="left")
        _stems(axes[1], values, bars)
        axes[1].set(xlabel="feature, in the order of the data\n(number from 0)", ylabel=_words(found))
    return figure


def _words(found: Coefficients) -> str:
    """What the size of a coefficient is."""
    scaled = found.scaling is not None or not found.units
    return f"coefficient $w_j$\n(per {'standard deviation' if scaled else 'unit of the feature'})"


def _largest(values: np.ndarray, count: int) -> np.ndarray:
    return np.argsort(-np.abs(values), kind="stable")[:count]


def _room(names: list[str], length: int) -> float:
    """Inches for names of at most so many letters left of an axis."""
    return 0.2 + 0.055 * min(max(map(len, names), default=0), length)


def _page(count: int, label: str, note: str, width: float, height: float, across: int = 2, left: float = 1.45):
    """A figure whose title says which run it is and what is counted."""
    title = [*textwrap.wrap(label, int(17 * width)), *textwrap.wrap(note, int(19 * width))]
    top = (0.1 if count == 1 else 0.26) + 0.12 * len(title)
    gap = (left if across > 2 else 0.75, 0.34)
    across = min(across, count)
    figure, axes = page(count, across, width, height=height, left=left, top=top, bottom=0.56, gap=gap)
    figure.suptitle("\n".join(title), y=1 - 0.03 / figure.get_figheight(), fontsize=7, parse_math=False)
    return figure, axes


def _bars(ax: Any, names: tuple[str, ...], values: np.ndarray, count: int, length: int = 26) -> None:
    """The largest ``count`` values, a bar each, the largest on top."""
    order = _largest(values, count)
    places = np.arange(count)[::-1]
    ax.barh(places, values[order], height=0.7, color=[_SIGNS[int(values[j] > 0)] for j in order])
    ax.axvline(0, color="black", linewidth=0.6)
    short = [name if len(name) <= length else name[: length - 2] + ".." for name in (names[j] for j in order)]
    ax.set_yticks(places, short, parse_math=False)
    ax.set_ylim(-0.6, max(count, 1) - 0.4)
    ax.locator_params(axis="x", nbins=4)
    ax.tick_params(axis="y", length=0)
    ax.grid(False, axis="y")
    if not count:
        ax.set_xlim(-1, 1)
        ax.text(0.5, 0.5, "none", transform=ax.transAxes, ha="center", va="center")


def _stems(ax: Any, values: np.ndarray, count: int) -> None:
    """A stem a feature, a dot on the largest."""
    places = np.arange(len(values))
    thin = float(np.clip(300 / len(values), 0.25, 1))
    for positive, colour in enumerate(_SIGNS):
        some = (values > 0) == bool(positive)
        ax.vlines(places[some], 0, values[some], color=colour, linewidth=thin)
    top = _largest(values, count)
    ax.plot(top, values[top], ".", color="black", markersize=2)
    ax.axhline(0, color="black", linewidth=0.6)
    ax.margins(x=0.02)


def _classes(found: Coefficients, label: str, note: str, cutoff: float) -> Any:
    """A panel a class."""
    shown = found.classes[:_CLASSES]
    if len(found.classes) > len(shown):
        note += f"; shown are the first {len(shown)} of {len(found.classes)} classes"
    away = [int((np.abs(found.weights[:, k]) > cutoff).sum()) for k in range(len(shown))]
    most = min(max(*away, 1), _OF_CLASS)
    top = [found.features[j] for k in range(len(shown)) for j in _largest(found.weights[:, k], most)]
    figure, axes = _page(len(shown), label, note, PAGE, height=max(most, 4) * _BAR, across=3, left=_room(top, 18))
    for k, (ax, name) in enumerate(zip(axes, shown, strict=True)):
        _bars(ax, found.features, found.weights[:, k], min(away[k], most), length=18)
        told = f"{name}: {min(away[k], most)} of {away[k]:,}"
        ax.set_title(told, loc="left", pad=2, parse_math=False)
        if k >= len(shown) - 3:
            ax.set_xlabel(_words(found))
    return figure


def _matrices(found: Coefficients, label: str, note: str) -> Any:
    """A map an output, and of a single one its singular values."""
    shown = found.classes[:_CLASSES]
    if len(found.classes) > len(shown):
        note += f"; shown are the first {len(shown)} of {len(found.classes)} classes"
    alone = len(shown) == 1
    figure, axes = _page(2 if alone else len(shown), label, note, PAGE, height=1.9, across=2 if alone else 3, left=0.6)
    most = float(np.abs(found.weights).max()) or 1.0
    for k, name in enumerate(shown):
        matrix = found.weights[:, k].reshape(found.shape)
        drawn = axes[k].imshow(matrix, cmap="RdBu_r", vmin=-most, vmax=most, interpolation="nearest")
        axes[k].set(xlabel="column", ylabel="row", title=name)
        axes[k].grid(False)
        figure.colorbar(drawn, ax=axes[k], fraction=0.05, pad=0.02).ax.set_title("$W_{ij}$", fontsize=6.5, pad=3)
    if alone and len(found.shape) == 2:
        sizes = np.linalg.svd(found.weights[:, 0].reshape(found.shape), compute_uv=False)
        axes[1].plot(np.arange(1, len(sizes) + 1), sizes, ".-", color=COLOURS[0], linewidth=0.8)
        axes[1].set(xlabel="number", ylabel="singular value of $W$")
        axes[1].set_ylim(0, None)
    return figure
