"""The picture of a linear model: its largest coefficients by name, and all of them if they are many."""

from typing import Any

import numpy as np

from fcorun.reports.pictures.brain import draw_brain
from fcorun.reports.pictures.layout import COLOURS, make_figure, render_figure
from fcorun.reports.pictures.style import pt, style_context
from fcorun.results.models.coefficients import Coefficients, describe_cutoff

_MAX_BARS = 30  # up to so many coefficients are all bars
_MAX_LARGEST, _MAX_OF_CLASS = 20, 8  # bars of more coefficients, and of a class
_MAX_CLASSES = 9  # panels
_BAR, _LETTER, _OWN_UNITS = 0.14, 0.056, 0.56  # inches: a bar, a letter of a name, values in the features' own units
_NAME_LETTERS, _SHORT_NAME_LETTERS = 26, 16  # of a feature's name
_SIGN_COLOURS = (COLOURS[3], COLOURS[0])  # of negative and positive coefficients


def draw_model(
    coefficients: Coefficients, label: str, cutoff: float, *, format: str = "png", style: str = "paper"
) -> dict[str, bytes]:
    """Return the pictures of a model by file name: its coefficients, and the map of voxels."""
    with style_context(style):
        figure = draw_coefficients(coefficients, label, cutoff)
        pictures = {f"coefficients.{format}": render_figure(figure, format)}
        if coefficients.grid is not None:
            pictures[f"brain.{format}"] = render_figure(draw_brain(coefficients, label), format)
        return pictures


def draw_coefficients(coefficients: Coefficients, label: str, cutoff: float) -> Any:
    """Return the figure of a model's coefficients; ``label`` names the run.

    Up to 30 coefficients above ``cutoff`` in magnitude are bars with their names. Of more, the 20 largest are bars, and
    all features have stems in the order of the data. Of several classes, the 8 largest of each of the first 9 are bars.
    If features were standardized, the values per unit of the feature stand at the bars. Matrices are maps with their
    singular values. The intercept is written below, not drawn.
    """
    nonzero = coefficients.exceed(cutoff)
    limit = describe_cutoff(cutoff, coefficients.cutoff_factors is not None)
    note = f"|w| > {limit} in {nonzero.sum():,} of {nonzero.size:,} coefficients"
    if coefficients.shape:
        return _draw_matrices(coefficients, label, note)
    if len(coefficients.classes) > 1:
        return _draw_classes(coefficients, label, note, nonzero)
    values = coefficients.weights[:, 0]
    n_nonzero = int(nonzero.sum())
    has_stems = n_nonzero > _MAX_BARS
    n_bars = min(n_nonzero, _MAX_LARGEST) if has_stems else n_nonzero
    if has_stems:
        note += f"; named are the {n_bars} largest"
    names = [coefficients.display_names[j] for j in _find_largest(values, n_bars)]
    own_units = None
    if coefficients.original is not None and coefficients.scaling is not None:
        own_units = coefficients.original[0][:, 0]
    figure, axes = _make_bar_figure(
        2 if has_stems else 1,
        label,
        note,
        height=max(n_bars, 6) * _BAR,
        left=_name_width(names, _NAME_LETTERS),
        has_own_units=own_units is not None,
    )
    _draw_bars(axes[0], coefficients.display_names, values, n_bars, own_units=own_units)
    axes[0].set_xlabel(_coefficient_label(coefficients))
    _write_intercept(figure, coefficients)
    if has_stems:
        _draw_stems(axes[1], values, n_bars)
        x_label = "feature, in the order of the data\n(number from 0)"
        axes[1].set(xlabel=x_label, ylabel=_coefficient_label(coefficients))
    return figure


def _coefficient_label(coefficients: Coefficients) -> str:
    """Return the label of an axis of coefficients, with their unit."""
    is_standardized = coefficients.scaling is not None or not coefficients.has_source_units
    return f"coefficient $w_j$ per {'standard deviation' if is_standardized else 'unit of the feature'}"


def _write_intercept(figure: Any, coefficients: Coefficients) -> None:
    """Write the class of positive coefficients and the intercept, as trained and in own units, below the figure."""
    lines = []
    if coefficients.classes[0]:
        lines.append(f"w > 0 speaks for the class '{coefficients.classes[0]}'")
    trained = "none" if coefficients.bias is None else f"{coefficients.bias[0]:.4g}"
    original = None
    if coefficients.original is not None and coefficients.scaling is not None:
        original = coefficients.original[1]
    if original is not None:
        lines.append(f"intercept, not drawn: {trained}; for features in their own units {original[0]:.4g}")
    elif coefficients.bias is not None:
        lines.append(f"intercept, not drawn: {trained}")
    y = pt(0.04) / figure.get_figheight()
    figure.text(0.5, y, "\n".join(lines), ha="center", va="bottom", parse_math=False)


def _find_largest(values: np.ndarray, count: int) -> np.ndarray:
    return np.argsort(-np.abs(values), kind="stable")[:count]


def _name_width(names: list[str], max_letters: int) -> float:
    """Return the inches for names, of at most ``max_letters``, left of an axis."""
    return 0.12 + _LETTER * min(max(map(len, names), default=0), max_letters)


def _make_bar_figure(
    count: int,
    label: str,
    note: str,
    *,
    height: float,
    across: int = 2,
    left: float = 1.45,
    has_own_units: bool = False,
) -> tuple[Any, list[Any]]:
    """Return a figure, and its axes, whose title has the run and the counts, with space for values in own units."""
    across = min(across, count)
    has_panel_titles = count > across or count > 2 or has_own_units
    own_units = _OWN_UNITS if has_own_units else 0
    column_gap = 0.08 + left if across > 2 else 0.72 + own_units
    return make_figure(
        count,
        across,
        title=[label, note],
        height=height,
        left=left,
        right=0.08 + (own_units if count == 1 else 0),
        top=0.26 if has_panel_titles else 0.12,
        bottom=0.7,
        gap=(column_gap, 0.36),
    )


def _draw_bars(
    ax: Any,
    names: tuple[str, ...],
    values: np.ndarray,
    count: int,
    max_letters: int = _NAME_LETTERS,
    own_units: np.ndarray | None = None,
) -> None:
    """Draw the ``count`` largest values as bars, the largest on top, with their values in own units beside them."""
    order = _find_largest(values, count)
    ys = np.arange(count)[::-1]
    ax.barh(ys, values[order], height=0.7, color=[_SIGN_COLOURS[int(values[j] > 0)] for j in order])
    ax.axvline(0, color="black", linewidth=pt(0.6))
    labels = []
    for j in order:
        name = names[j]
        labels.append(name if len(name) <= max_letters else name[: max_letters - 2] + "..")
    ax.set_yticks(ys, labels, parse_math=False)
    ax.set_ylim(-0.6, max(count, 1) - 0.4)
    ax.locator_params(axis="x", nbins=5)
    if own_units is not None and count:
        text = {"textcoords": "offset points", "ha": "right", "annotation_clip": False}
        for y, j in zip(ys, order, strict=True):
            xycoords = ("axes fraction", "data")
            ax.annotate(f"{own_units[j]:.3g}", (1, y), (pt(39), 0), xycoords=xycoords, va="center", **text)
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
        ax.add_collection(LineCollection(list(stems[mask]), colors=colour, linewidths=line_width))
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
    names = []
    for k, count in enumerate(n_bars):
        names += [coefficients.display_names[j] for j in _find_largest(weights[:, k], count)]
    left = _name_width(names, _SHORT_NAME_LETTERS)
    figure, axes = _make_bar_figure(len(shown), label, note, height=max(max_bars, 4) * _BAR, across=3, left=left)
    limit = 1.05 * float(np.abs(weights).max()) or 1.0
    for k, (ax, name) in enumerate(zip(axes, shown, strict=True)):
        _draw_bars(ax, coefficients.display_names, weights[:, k], n_bars[k], max_letters=_SHORT_NAME_LETTERS)
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
    figure, axes = make_figure(
        count,
        min(count, 3),
        title=[label, note],
        height=1.9,
        left=0.6,
        top=0.26,
        bottom=0.45,
        gap=(0.95, 0.75),
    )
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
