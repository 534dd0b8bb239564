"""The picture of a linear model: its largest coefficients by name, and all of them where they are many."""

from typing import Any

import numpy as np

from fcorun.models.coefficients import Coefficients
from fcorun.reports.pictures.brain import draw_brain
from fcorun.reports.pictures.layout import COLOURS, make_figure, render_figure
from fcorun.reports.pictures.style import pt, style_context

_NAMED, _LARGEST, _OF_CLASS = 30, 20, 8  # bars: all of them up to so many, the largest of more, those of a class
_CLASSES = 9  # panels
_BAR, _LETTER, _OWN = 0.14, 0.056, 0.56  # inches: a bar, a letter of a name, values in features' own units
_SIGNS = (COLOURS[3], COLOURS[0])  # of negative and positive ones


def draw_model(
    found: Coefficients, label: str, cutoff: float, *, format: str = "png", style: str = "paper"
) -> dict[str, bytes]:
    """The pictures of a model by the names of their files: its coefficients, and of voxels the map."""
    with style_context(style):
        told = {f"coefficients.{format}": render_figure(draw_coefficients(found, label, cutoff), format)}
        if found.grid is not None:
            told[f"brain.{format}"] = render_figure(draw_brain(found, label), format)
    return told


def draw_coefficients(found: Coefficients, label: str, cutoff: float) -> Any:
    """The figure of a model's coefficients; ``label`` says which run it is.

    Up to 30 coefficients larger than ``cutoff`` in magnitude are bars with their names. Of more, the 20 largest are,
    beside a stem for each feature in the order of the data; of several classes, the 8 largest of each of the first 9.
    Beside bars of features that were standardized stand the values per unit that the features had. Matrices are maps,
    beside their singular values. The intercept is told, not drawn.
    """
    away = np.abs(found.weights) > cutoff
    note = f"|w| > {cutoff:g} in {away.sum():,} of {away.size:,} coefficients"
    if found.shape:
        return _matrices(found, label, note)
    if len(found.classes) > 1:
        return _classes(found, label, note, cutoff)
    values = found.weights[:, 0]
    many = away.sum() > _NAMED
    bars = min(int(away.sum()), _LARGEST if many else _NAMED)
    note += f"; named are the {bars} largest" if many else ""
    top = [found.features[j] for j in _largest(values, bars)]
    own = found.original[0][:, 0] if found.original is not None and found.scaling is not None else None
    figure, axes = _page(2 if many else 1, label, note, height=max(bars, 6) * _BAR, left=_room(top, 26),
                         own=own is not None)  # fmt: skip
    _bars(axes[0], found.features, values, bars, own=own)
    axes[0].set_xlabel(_words(found))
    _say_below(figure, found)
    if many:
        _stems(axes[1], values, bars)
        axes[1].set(xlabel="feature, in the order of the data\n(number from 0)", ylabel=_words(found))
    return figure


def _words(found: Coefficients) -> str:
    """What the size of a coefficient is."""
    scaled = found.scaling is not None or not found.has_source_units
    return f"coefficient $w_j$ per {'standard deviation' if scaled else 'unit of the feature'}"


def _say_below(figure: Any, found: Coefficients) -> None:
    """For which class a positive coefficient speaks, and the intercept, which is not drawn, for features as trained and
    as the source has them."""
    lines = [f"w > 0 speaks for the class '{found.classes[0]}'"] if found.classes[0] else []
    original = None if found.original is None or found.scaling is None else found.original[1]
    trained = "none" if found.bias is None else f"{found.bias[0]:.4g}"
    if original is not None:
        lines.append(f"intercept, not drawn: {trained}; for features in their own units {original[0]:.4g}")
    elif found.bias is not None:
        lines.append(f"intercept, not drawn: {trained}")
    y = pt(0.04) / figure.get_figheight()
    figure.text(0.5, y, "\n".join(lines), ha="center", va="bottom", parse_math=False)


def _largest(values: np.ndarray, count: int) -> np.ndarray:
    return np.argsort(-np.abs(values), kind="stable")[:count]


def _room(names: list[str], length: int) -> float:
    """Inches for names of at most so many letters left of an axis."""
    return 0.12 + _LETTER * min(max(map(len, names), default=0), length)


def _page(
    count: int, label: str, note: str, *, height: float, across: int = 2, left: float = 1.45, own: bool = False
) -> tuple[Any, list[Any]]:
    """A figure whose title says which run it is and what is counted; with room for values in ``own`` units."""
    across, top = min(across, count), 0.26 if count > across or count > 2 or own else 0.12
    gap = (0.08 + left if across > 2 else 0.72 + (_OWN if own else 0), 0.36)
    return make_figure(
        count,
        across,
        title=[label, note],
        height=height,
        left=left,
        right=0.08 + (_OWN if own and count == 1 else 0),
        top=top,
        bottom=0.7,
        gap=gap,
    )


def _bars(
    ax: Any, names: tuple[str, ...], values: np.ndarray, count: int, length: int = 26, own: np.ndarray | None = None
) -> None:
    """The largest ``count`` values, a bar each, the largest on top; beside them those in ``own`` units."""
    order = _largest(values, count)
    places = np.arange(count)[::-1]
    ax.barh(places, values[order], height=0.7, color=[_SIGNS[int(values[j] > 0)] for j in order])
    ax.axvline(0, color="black", linewidth=pt(0.6))
    short = [name if len(name) <= length else name[: length - 2] + ".." for name in (names[j] for j in order)]
    ax.set_yticks(places, short, parse_math=False)
    ax.set_ylim(-0.6, max(count, 1) - 0.4)
    ax.locator_params(axis="x", nbins=5)
    if own is not None and count:
        for place, j in zip(places, order, strict=True):
            ax.annotate(f"{own[j]:.3g}", (1, place), (pt(39), 0), xycoords=("axes fraction", "data"),
                        textcoords="offset points", ha="right", va="center", annotation_clip=False)  # fmt: skip
        ax.annotate("per unit", (1, 1), (pt(39), pt(1)), xycoords="axes fraction", textcoords="offset points",
                    ha="right", va="bottom", annotation_clip=False)  # fmt: skip
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
    ax.plot(top, values[top], ".", color="black", markersize=pt(2))
    ax.axhline(0, color="black", linewidth=pt(0.6))
    ax.margins(x=0.02)


def _classes(found: Coefficients, label: str, note: str, cutoff: float) -> Any:
    """A panel a class."""
    shown = found.classes[:_CLASSES]
    note += f"; named are the {_OF_CLASS} largest of a class" + _left_out(found, shown)
    away = [int((np.abs(found.weights[:, k]) > cutoff).sum()) for k in range(len(shown))]
    most = min(max(*away, 1), _OF_CLASS)
    top = [found.features[j] for k in range(len(shown)) for j in _largest(found.weights[:, k], min(away[k], most))]
    figure, axes = _page(len(shown), label, note, height=max(most, 4) * _BAR, across=3, left=_room(top, 16))
    reach = 1.05 * float(np.abs(found.weights[:, : len(shown)]).max()) or 1.0
    for k, (ax, name) in enumerate(zip(axes, shown, strict=True)):
        _bars(ax, found.features, found.weights[:, k], min(away[k], most), length=16)
        ax.set_xlim(-reach, reach)  # the same for all, to be compared
        told = f"{name}: {min(away[k], most)} of {away[k]:,}"
        ax.set_title(told, loc="left", pad=pt(2), parse_math=False)
        if k >= len(shown) - 3:
            ax.set_xlabel(_words(found).replace(" per ", "\nper "))
    return figure


def _left_out(found: Coefficients, shown: tuple[str, ...]) -> str:
    """What of several classes is not shown."""
    few = len(found.classes) > len(shown)
    return f"; shown are the first {len(shown)} of {len(found.classes)} classes" if few else ""


def _matrices(found: Coefficients, label: str, note: str) -> Any:
    """A map an output, and of a single one its singular values."""
    shown = found.classes[:_CLASSES]
    note += _left_out(found, shown)
    alone = len(shown) == 1
    across = 2 if alone else 3
    figure, axes = make_figure(2 if alone else len(shown), min(across, 2 if alone else len(shown)), title=[label, note],
                        height=1.9, left=0.6, top=0.26, bottom=0.45, gap=(0.95, 0.75))  # fmt: skip
    most = float(np.abs(found.weights).max()) or 1.0
    for k, name in enumerate(shown):
        matrix = found.weights[:, k].reshape(found.shape)
        drawn = axes[k].imshow(matrix, cmap="RdBu_r", vmin=-most, vmax=most, interpolation="nearest")
        axes[k].set(xlabel="column", ylabel="row", title=name)
        axes[k].grid(False)
        figure.colorbar(drawn, ax=axes[k], fraction=0.05, pad=0.02).ax.set_title("$W_{ij}$", pad=pt(3))
    if alone and len(found.shape) == 2:
        sizes = np.linalg.svd(found.weights[:, 0].reshape(found.shape), compute_uv=False)
        axes[1].plot(np.arange(1, len(sizes) + 1), sizes, ".-", color=COLOURS[0], linewidth=pt(0.8))
        axes[1].set(xlabel="number", ylabel="singular value of $W$")
        axes[1].set_ylim(0, None)
    return figure
