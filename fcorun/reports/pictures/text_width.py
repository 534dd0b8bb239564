"""Widths of texts in pictures, measured in the font of labels, and names shortened to a width."""

from collections.abc import Sequence
from typing import Any

from fcorun.reports.pictures.style import FONT_SIZE, current_style, pt


def measure_width(texts: Sequence[str]) -> float:
    """Return the width of the widest line of ``texts``, in inches of the layout, before the style's ``scale``."""
    measure = _make_line_measure()
    return max((measure(line) for text in texts for line in text.split("\n")), default=0.0)


def shorten_to_width(name: str, width: float) -> str:
    """Return ``name``, or its beginning and its end around an ellipsis if ``name`` is wider than ``width`` inches.

    At least two characters are kept.
    """
    measure = _make_line_measure()
    short = name
    n_kept = len(name)
    while measure(short) > width and n_kept > 2:
        n_kept -= 1
        n_end = n_kept // 3
        short = f"{name[: n_kept - n_end].rstrip()}…{name[len(name) - n_end :].lstrip()}"
    return short


def _make_line_measure() -> Any:
    """Return the function that measures one line of text, in inches of the layout, before the style's ``scale``."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.font_manager import FontProperties

    figure = Figure(figsize=(1, 1))
    renderer = FigureCanvasAgg(figure).get_renderer()
    font = FontProperties(size=pt(FONT_SIZE))
    inch = figure.dpi * current_style().scale

    def measure(line: str) -> float:
        return renderer.get_text_width_height_descent(line, font, ismath=False)[0] / inch

    return measure
