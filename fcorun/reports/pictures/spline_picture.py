"""The picture of the splined columns of a table: the effect of each, estimated by a linear model, in its own units."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from fcorun.data.tables.columns.spline import SplineColumn
from fcorun.reports.pictures import layout
from fcorun.reports.pictures.coefficient_picture import ModelView
from fcorun.reports.pictures.layout import pt
from fcorun.reports.pictures.picture import Picture

_N_POINTS = 200
_BEYOND = 0.1  # of the distance of the outer knots, drawn on each side of them
_MAX_PANELS = 9


@dataclass(frozen=True, eq=False)
class SplineEffect:
    """The effect of a column: differences of the linear predictor to that at a reference.

    Attributes:
        label: the label of the column, with its unit.
        knots: the knots, quantiles of the training rows.
        reference: the middle of the knots, about the median of the training rows.
        numbers: numbers of the column, (n,).
        differences: the difference of each output there, (n, k); of a model with a ratio, the logarithm of the ratio.
    """

    label: str
    knots: Sequence[float]
    reference: float
    numbers: Float[np.ndarray, " n"]
    differences: Float[np.ndarray, "n k"]


@dataclass(frozen=True)
class SplineEffects:
    """The effects of the splined columns of a model, and the model."""

    view: ModelView
    effects: Sequence[SplineEffect]


def collect_effects(view: ModelView) -> SplineEffects | None:
    """Return the effects of a model's splined columns; None without any, and for features without own units."""
    coefficients = view.coefficients
    splines = [column for column in coefficients.columns if isinstance(column, SplineColumn)]
    if not splines or coefficients.original is None:
        return None
    effects = []
    for column in splines[:_MAX_PANELS]:
        first, *_, last = column.knots
        margin = _BEYOND * (last - first)
        reference = float(np.median(column.knots))
        numbers = np.linspace(first - margin, last + margin, _N_POINTS)
        features = np.stack(column.encode_cells(np.append(numbers, reference), fill=None), axis=1)
        position = coefficients.features.index(column.name)
        predictor = features @ coefficients.original[0][position : position + features.shape[1]]
        label = coefficients.display_names[position]
        effects.append(SplineEffect(label, column.knots, reference, numbers, predictor[:-1] - predictor[-1]))
    return SplineEffects(view, effects)


def draw(content: SplineEffects) -> Any:
    """Return a figure with a panel for each column, and a line for each output; marks at the axis are the knots."""
    view, effects = content.view, content.effects
    classes = view.coefficients.classes
    name = "difference of the linear predictor"
    if view.coefficients.ratio_name:
        name = f"log {view.coefficients.ratio_name}"
    if len(classes) == 1 and classes[0]:
        name += f" of '{layout.escape_dollars(classes[0])}'"
    figure, axes = layout.make_figure(
        len(effects), layout.count_panel_columns(len(effects)), height=1.9, title=[view.label]
    )
    for ax, effect in zip(axes, effects, strict=True):
        ax.axhline(0, color="black", linewidth=pt(0.6))
        for k, label in enumerate(classes):
            ax.plot(
                effect.numbers,
                effect.differences[:, k],
                label=layout.legend_name(label),
                **layout.curve_style(k).line_kwargs,
            )
        ends = {"transform": ax.get_xaxis_transform(), "color": "0.4", "markersize": pt(5), "clip_on": False}
        ax.plot(effect.knots, np.zeros(len(effect.knots)), "|", **ends)
        ax.set_xlabel(effect.label, parse_math=False)
        ax.margins(x=0)
        layout.set_y_label(ax, f"{name}\nagainst {effect.reference:.4g}")
    if len(classes) > 1:
        layout.add_legend(figure, layout.collect_entries(axes[:1]), parse_math=False)
    return figure


PICTURE = Picture(
    "splines",
    ModelView,
    collect_effects,
    draw,
    place=2,
    title="Splined columns",
    caption="Estimated effects of splined columns, the other columns being equal: differences to the middle of the "
    "knots, in units of the linear predictor. Marks at the axis are the knots, quantiles of the training rows.",
)
