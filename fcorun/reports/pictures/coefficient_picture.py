"""The picture of a linear model: its largest coefficients by name, and all of them if they are many."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fcorun.reports.pictures.layout import COLOURS, make_figure, pt, shorten_name
from fcorun.reports.pictures.picture import Picture
from fcorun.results.models.coefficients import Coefficients, describe_cutoff

_MAX_BARS = 30  # up to so many coefficients are all bars
_MAX_LARGEST, _MAX_OF_CLASS = 20, 8  # bars of more coefficients, and of a class
_MAX_CLASSES = 9  # panels
_BAR = 0.14  # inches of a bar
_NOTES = 0.3  # inches of the texts above and below the bars
_NAME_LETTERS, _SHORT_NAME_LETTERS = 26, 16  # of a feature's name
_SIGN_COLOURS = (COLOURS[3], COLOURS[0])  # of negative and positive coefficients


@dataclass(frozen=True)
class ModelView:
    """A linear model: its coefficients, the title of its run, and the magnitude above which an entry counts."""

    coefficients: Coefficients
    label: str
    cutoff: float


def draw_coefficients(view: ModelView) -> Any:
    """Return the figure of a model's coefficients.

    Up to 30 coefficients above the cutoff in magnitude are bars with their names. Of more, the 20 largest are bars, and
    all features have stems in the order of the data. Of several classes, the 8 largest of each of the first 9 are bars.
    If features were standardized, the values per unit of the feature stand at the bars. Matrices are maps with their
    singular values. The intercept is written below, not drawn.
    """
    coefficients = view.coefficients
    nonzero = coefficients.exceed(view.cutoff)
    limit = describe_cutoff(view.cutoff, coefficients.cutoff_factors is not None)
    note = f"|w| > {limit} in {nonzero.sum():,} of {nonzero.size:,} coefficients"
    if coefficients.shape:
        return _draw_matrices(coefficients, view.label, note)
    if len(coefficients.classes) > 1:
        return _draw_classes(coefficients, view.label, note, nonzero)
    values = coefficients.weights[:, 0]
    n_bars = int(nonzero.sum())
    has_stems = n_bars > _MAX_BARS
    if has_stems:
        n_bars = _MAX_LARGEST
        note += f"; named are the {n_bars} largest"
    own_units = None
    own_bias = None
    if coefficients.original is not None and coefficients.scaling is not None:
        own_units = coefficients.original[0][:, 0]
        own_bias = coefficients.original[1]
    n_panels = 2 if has_stems else 1
    figure, axes = make_figure(n_panels, n_panels, title=[view.label, note], height=max(n_bars, 6) * _BAR + _NOTES)
    _draw_bars(axes[0], coefficients, values, n_bars, own_units=own_units)
    axes[0].set_xlabel(_coefficient_label(coefficients))
    if has_stems:
        _draw_stems(axes[1], values, n_bars)
        x_label = "feature, in the order of the data\n(number from 0)"
        axes[1].set(xlabel=x_label, ylabel=_coefficient_label(coefficients))
    below = []
    positive = next(iter(coefficients.classes))
    if positive:
        below.append(f"w > 0 speaks for the class '{positive}'")
    if own_bias is not None:
        trained = "none" if coefficients.bias is None else f"{coefficients.bias[0]:.4g}"
        below.append(f"intercept, not drawn: {trained}; for features in their own units {own_bias[0]:.4g}")
    elif coefficients.bias is not None:
        below.append(f"intercept, not drawn: {coefficients.bias[0]:.4g}")
    figure.supxlabel("\n".join(below), fontsize=pt(7), parse_math=False)
    return figure


def _coefficient_label(coefficients: Coefficients) -> str:
    """Return the label of an axis of coefficients, with their unit."""
    is_standardized = coefficients.scaling is not None or not coefficients.has_source_units
    return f"coefficient $w_j$ per {'standard deviation' if is_standardized else 'unit of the feature'}"


def _find_largest(values: np.ndarray, count: int) -> np.ndarray:
    return np.argsort(-np.abs(values), kind="stable")[:count]


def _draw_bars(
    ax: Any,
    coefficients: Coefficients,
    values: np.ndarray,
    count: int,
    *,
    own_units: np.ndarray | None = None,
    max_letters: int = _NAME_LETTERS,
) -> None:
    """Draw a bar for each of the ``count`` largest of a model's ``values``, the largest on top.

    Names of features have at most ``max_letters``. ``own_units`` are the values per unit of a feature, which stand
    beside the bars.
    """
    largest = _find_largest(values, count)
    ys = np.arange(count)[::-1]
    ax.barh(ys, values[largest], height=0.7, color=[_SIGN_COLOURS[int(value > 0)] for value in values[largest]])
    ax.axvline(0, color="black", linewidth=pt(0.6))
    names = [shorten_name(coefficients.display_names[j], max_letters) for j in largest]
    ax.set_yticks(ys, names, parse_math=False)
    ax.set_ylim(-0.6, max(count, 1) - 0.4)
    ax.locator_params(axis="x", nbins=5)
    if own_units is not None and count:
        text = {"textcoords": "offset points", "ha": "right", "annotation_clip": False}
        for y, value in zip(ys, own_units[largest], strict=True):
            xycoords = ("axes fraction", "data")
            ax.annotate(f"{value:.3g}", (1, y), (pt(39), 0), xycoords=xycoords, va="center", **text)
        ax.annotate("per unit", (1, 1), (pt(39), pt(1)), xycoords="axes fraction", va="bottom", **text)
    ax.tick_params(axis="y", length=0)
    ax.grid(False, axis="y")
    if not count:
        ax.set_xlim(-1, 1)
        ax.text(0.5, 0.5, "none", transform=ax.transAxes, ha="center", va="center")


def _draw_stems(ax: Any, values: np.ndarray, count: int) -> None:
    """Draw a stem for each feature, with a dot on the ``count`` largest."""
    from matplotlib.collections import LineCollection

    stems = np.zeros((len(values), 2, 2))  # ``ax.vlines`` would make a masked array of each
    stems[:, :, 0] = np.arange(len(values))[:, None]
    stems[:, 1, 1] = values
    line_width = float(np.clip(300 / len(values), 0.25, 1))
    for is_positive, colour in enumerate(_SIGN_COLOURS):
        mask = (values > 0) == bool(is_positive)
        ax.add_collection(LineCollection(list(stems[mask]), colors=colour, linewidths=line_width, rasterized=True))
    largest = _find_largest(values, count)
    ax.plot(largest, values[largest], ".", color="black", markersize=pt(2))
    ax.axhline(0, color="black", linewidth=pt(0.6))
    ax.margins(x=0.02)


def _draw_classes(coefficients: Coefficients, label: str, note: str, nonzero: np.ndarray) -> Any:
    """Return a figure with a panel for each class; ``nonzero`` is the mask of the weights, (d, k)."""
    shown = coefficients.classes[:_MAX_CLASSES]
    weights = coefficients.weights[:, : len(shown)]
    note += f"; named are the {_MAX_OF_CLASS} largest of a class" + _describe_left_out(coefficients, shown)
    n_nonzero = nonzero[:, : len(shown)].sum(axis=0).tolist()
    max_bars = min(max(*n_nonzero, 1), _MAX_OF_CLASS)
    n_bars = [min(count, max_bars) for count in n_nonzero]
    figure, axes = make_figure(len(shown), min(3, len(shown)), title=[label, note], height=max(max_bars, 4) * _BAR)
    limit = 1.05 * float(np.abs(weights).max()) or 1.0
    for k, (ax, name) in enumerate(zip(axes, shown, strict=True)):
        _draw_bars(ax, coefficients, weights[:, k], n_bars[k], max_letters=_SHORT_NAME_LETTERS)
        ax.set_xlim(-limit, limit)  # equal for all classes, to compare them
        ax.set_title(f"{name}: {n_bars[k]} of {n_nonzero[k]:,}", loc="left", pad=pt(2), parse_math=False)
        if k >= len(shown) - 3:
            ax.set_xlabel(_coefficient_label(coefficients).replace(" per ", "\nper "))
    return figure


def _describe_left_out(coefficients: Coefficients, shown: tuple[str, ...]) -> str:
    """Return a note if not all classes are shown, else ""."""
    count = len(coefficients.classes)
    return f"; shown are the first {len(shown)} of {count} classes" if count > len(shown) else ""


def _draw_matrices(coefficients: Coefficients, label: str, note: str) -> Any:
    """Return a figure with a map for each output, and for a single output its singular values."""
    shown = coefficients.classes[:_MAX_CLASSES]
    shape = coefficients.shape
    note += _describe_left_out(coefficients, shown)
    is_single = len(shown) == 1
    count = 2 if is_single else len(shown)
    figure, axes = make_figure(count, min(count, 3), title=[label, note], height=1.9)
    largest = float(np.abs(coefficients.weights).max()) or 1.0
    for k, name in enumerate(shown):
        matrix = coefficients.weights[:, k].reshape(shape)
        image = axes[k].imshow(matrix, cmap="RdBu_r", vmin=-largest, vmax=largest, interpolation="nearest")
        axes[k].set(xlabel="column", ylabel="row")
        axes[k].set_title(name, parse_math=False)
        axes[k].grid(False)
        figure.colorbar(image, ax=axes[k], fraction=0.05, pad=0.02).ax.set_title("$W_{ij}$", pad=pt(3))
    if is_single and len(shape) == 2:
        singular_values = np.linalg.svd(coefficients.weights[:, 0].reshape(shape), compute_uv=False)
        numbers = np.arange(1, len(singular_values) + 1)
        axes[1].plot(numbers, singular_values, ".-", color=COLOURS[0], linewidth=pt(0.8))
        axes[1].set(xlabel="number", ylabel="singular value of $W$")
        axes[1].set_ylim(0, None)
    return figure


PICTURE = Picture("coefficients", ModelView, lambda view: view, draw_coefficients)
