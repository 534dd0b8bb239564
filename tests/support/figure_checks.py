"""Checks of drawn figures: all texts are inside the page, and none covers another."""

import re
from pathlib import Path
from typing import Any

from matplotlib.text import Text

from fcorun.reports.build_table import build_table
from fcorun.reports.pictures import best_curves
from fcorun.reports.pictures.layout import render_formats, style_context
from fcorun.reports.pictures.picture import Picture
from fcorun.reports.pictures.problem_view import ProblemView, curve_styles_of


def draw_checked_view(picture: Picture, records, metric="support_f1", style: str = "paper", **more) -> Any:
    """Return a checked picture of one data set; None if there is nothing to draw."""
    runs = build_table(records)
    return draw_checked_picture(picture, ProblemView(runs, records, metric, curve_styles_of(runs), **more), style)


def draw_checked_picture(picture: Picture, subject: Any, style: str = "paper") -> Any:
    """Return a checked picture of the shelf; None if there is nothing to draw."""
    content = picture.collect(subject)
    return None if content is None else draw_checked(picture.draw, content, style=style)


def draw_checked(draw, *arguments, style: str = "paper") -> Any:
    """Draw a figure and check its texts; return it, or None if there is nothing to draw."""
    with style_context(style):
        figure = draw(*arguments)
        if figure is not None:
            figure.draw_without_rendering()
            assert not misplaced_texts(figure)
            assert render_formats(figure, ["png"])["png"].startswith(b"\x89PNG")
    return figure


def check_pdf(path: str | Path) -> float:
    """Check that the fonts of a PDF are embedded and none is of Type 3; return its width in inches."""
    pdf = Path(path).read_bytes()
    fonts = re.findall(rb"/BaseFont /(\S+)", pdf)
    assert fonts
    assert b"/Type3" not in pdf
    assert pdf.count(b"/FontFile2") == len(set(fonts))
    return float(re.findall(rb"/MediaBox \[ ?0 0 ([\d.]+)", pdf)[0]) / 72


def draw_best_points(records, metric="support_f1", **more):
    return draw_checked_view(best_curves.PICTURE, records, metric, **more)


def misplaced_texts(figure):
    """Return the texts that the edge of the page cuts, and the pairs of texts that overlap."""
    renderer, page = figure.canvas.get_renderer(), figure.bbox
    texts = [t for t in figure.findobj(Text) if t.get_visible() and t.get_text().strip()]
    boxes = []
    for text in texts:
        if text.axes is None or text.axes.axison:
            boxes.append((text.get_text(), text.get_window_extent(renderer)))
    ticks = {id(t) for ax in figure.axes for axis in (ax.xaxis, ax.yaxis) for t in ticks_outside(axis)}
    kept = [(t.get_text(), t.get_window_extent(renderer)) for t in texts if id(t) not in ticks]
    cut = [name for name, box in kept if not (page.x0 - 1 <= box.x0 and box.x1 <= page.x1 + 1
                                              and page.y0 - 1 <= box.y0 and box.y1 <= page.y1 + 1)]  # fmt: skip
    over = [(a, b) for i, (a, one) in enumerate(kept) for b, two in kept[:i] if one.overlaps(two)]
    return cut + over


def ticks_outside(axis):
    """Yield the labels of ticks beyond the axis, which are not drawn."""
    low, high = sorted(axis.get_view_interval())
    for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
        if not low <= tick.get_loc() <= high:
            yield from (tick.label1, tick.label2)


def legend_of(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]
