"""The pictures of held-out rows, each of its own file: ROC, calibration, decision."""

from collections.abc import Sequence

from fcorun.reports.pictures import calibration_picture as calibration
from fcorun.reports.pictures import decision, roc
from fcorun.reports.pictures.curve_groups import CurveView
from fcorun.reports.pictures.layout import render_figure
from fcorun.reports.pictures.style import style_context
from fcorun.results.models.score_curves import Curves

PICTURES = {"roc": roc.draw, "calibration": calibration.draw, "decision": decision.draw}


def draw_held_out_rows(
    curves: Curves, title: str, *, formats: Sequence[str] = ("png",), style: str = "paper"
) -> dict[str, bytes]:
    """Return the contents of roc, calibration and decision, a file in each format, by file name."""
    view = CurveView(curves, title)
    files = {}
    with style_context(style):
        for name, draw in PICTURES.items():
            figure = draw(view)
            if figure is not None:
                files |= {f"{name}.{format}": render_figure(figure, format) for format in formats}
    return files
