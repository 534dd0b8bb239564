"""The picture of the clients of one run: how far their losses and scores lie apart, over the rounds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from fcorun.base.metrics import CATALOGUE, PERSONAL_PREFIX, MetricCatalogue
from fcorun.reports.pictures import layout
from fcorun.reports.pictures.picture import Picture

_MAX_PANELS = 4
_DECILES = (0.1, 0.9)


@dataclass(frozen=True, eq=False)
class ClientView:
    """The losses and scores of each client at E evaluations of a run.

    Attributes:
        rounds: the rounds of the evaluations.
        values: the values of M clients by metric, each (E, M); NaN of a client without rows.
        label: the title of the picture.
        metrics: the metrics of the run, with those that its objective declares.
    """

    rounds: Sequence[int]
    values: Mapping[str, Float[np.ndarray, "E M"]]
    label: str
    metrics: MetricCatalogue = field(default_factory=lambda: CATALOGUE)


def draw(view: ClientView) -> Any:
    """Return the figure: for each loss or score the median client, the deciles, and the extreme clients."""
    held_out = [name for name in view.values if name.removeprefix(PERSONAL_PREFIX).startswith("val_")]
    names = (held_out or list(view.values))[:_MAX_PANELS]
    across = layout.count_panel_columns(len(names))
    figure, axes = layout.make_figure(len(names), across, height=1.65 if across > 1 else 2.0, title=[view.label])
    for ax, name in zip(axes, names, strict=True):
        values = view.values[name]
        values = values[:, ~np.isnan(values).any(axis=0)]
        low, high = np.quantile(values, _DECILES, axis=1)
        line = layout.curve_style(0)
        ax.fill_between(view.rounds, low, high, color=line.colour, alpha=0.25, linewidth=0, label="80 % of clients")
        ax.plot(view.rounds, np.median(values, axis=1), **line.line_kwargs, label="median client")
        for extreme, label in ((values.min(axis=1), "lowest, highest client"), (values.max(axis=1), None)):
            ax.plot(view.rounds, extreme, color=line.colour, linestyle=":", linewidth=layout.pt(0.7), label=label)
        metric = view.metrics[name]
        layout.set_y_scale(ax, values.ravel().tolist() if metric.log else [], bounded=metric.bounded)
        layout.add_legend_above(ax, 2)
        layout.set_x_axis(ax, "rounds")
        layout.set_y_label(ax, metric.axis_label(None))
    return figure


PICTURE = Picture("clients", ClientView, lambda view: view, draw)
