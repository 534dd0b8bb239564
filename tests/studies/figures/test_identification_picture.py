"""The picture of the rounds from which on zeros are the optimum's, drawn from runs that are known."""

from types import SimpleNamespace
from typing import Any

import pandas as pd

from fcorun.reports.pictures.layout import curve_style, render_formats
from fcorun.studies.figures.papers import races


def test_a_run_that_does_not_find_the_zeros_has_no_dot_and_panels_fill_the_picture():
    names = {"finds": 20.0, "misses": float("nan")}
    records = []
    for identified_round in names.values():
        rows = []
        for k, gap in enumerate((1, 0.1, 0.01, 0.001)):
            errors = {"pattern_errors": 3.0 - k, "suboptimality": gap, "identified_round": identified_round}
            rows.append({"round": 10 * k} | errors)
        records.append(SimpleNamespace(rows=rows))
    inputs: Any = SimpleNamespace(
        algorithms=list(names),
        title=str,
        line_styles={name: curve_style(i) for i, name in enumerate(names)},
        figure=SimpleNamespace(panels=["pattern_errors", "suboptimality"]),
        tuned=SimpleNamespace(frame=pd.DataFrame({"algo": list(names)}), axis_label=str),
        tuned_records=records,
    )
    figure = races.draw_identification(inputs)
    render_formats(figure, ["png"])  # warns of a layout that cannot be made, which fails the test
    for ax in figure.axes:
        curve, dot, other_curve = ax.lines
        assert dot.get_xdata().tolist() == [20]
        assert len(curve.get_xdata()) == len(other_curve.get_xdata()) == 4
        assert ax.get_position().width > 0.35
