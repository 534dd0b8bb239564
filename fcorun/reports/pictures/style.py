"""The style of pictures: the size of a paper's column, or of slides.

Pictures are laid out in inches and points of a paper, and a style scales all of that. The current style is set for a
block of code, as matplotlib's own settings are.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PrintStyle:
    """The medium that pictures are drawn for.

    Attributes:
        column_width: inches, the width of a picture with one panel in a row.
        page_width: inches, the width of a picture with several panels in a row.
        scale: the factor by which sizes of texts, lines and gaps for paper are multiplied.
    """

    column_width: float
    page_width: float
    scale: float

    def layout_width(self, panels_in_row: int) -> float:
        """Return the width of a picture with so many panels in a row, in inches of the layout, before ``scale``."""
        return (self.column_width if panels_in_row == 1 else self.page_width) / self.scale

    @property
    def rc_params(self) -> dict[Any, Any]:
        """The settings of matplotlib: labels of axes have 8 points on paper, other texts 7.

        Fonts are embedded in PDF as TrueType, since journals refuse Type 3.
        """
        sizes = {
            "font.size": FONT_SIZE,
            "axes.labelsize": 8,
            "axes.titlesize": FONT_SIZE,
            "axes.titlepad": 4,
            "axes.labelpad": 3,
            "legend.fontsize": FONT_SIZE,
            "legend.title_fontsize": FONT_SIZE,
            "figure.titlesize": FONT_SIZE,
            "lines.linewidth": 1.3,
            "lines.markersize": 3.5,
            "axes.linewidth": 0.6,
            "grid.linewidth": 0.5,
            "patch.linewidth": 0.8,
            "hatch.linewidth": 0.6,
        }
        for axis in ("xtick", "ytick"):
            sizes |= {f"{axis}.labelsize": FONT_SIZE, f"{axis}.major.width": 0.6, f"{axis}.minor.width": 0.4}
            sizes |= {f"{axis}.major.size": 3, f"{axis}.minor.size": 1.8, f"{axis}.major.pad": 3}
        return {name: value * self.scale for name, value in sizes.items()} | {
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.alpha": 0.25,
            "axes.axisbelow": True,
            "pdf.fonttype": 42,
            "svg.fonttype": "none",  # texts stay texts, which readers can search
            "svg.hashsalt": "fcorun",  # the same names of elements each time
            "font.sans-serif": ["DejaVu Sans"],  # SVG lists all of these for each text
            "figure.constrained_layout.h_pad": 0.04 * self.scale,
            "figure.constrained_layout.w_pad": 0.04 * self.scale,
            "figure.dpi": 300 / self.scale,
            "savefig.dpi": "figure",
        }


FONT_SIZE = 7.0  # points on paper, of the smallest text
STYLES = {"paper": PrintStyle(3.5, 7.0, 1.0), "slides": PrintStyle(6.8, 13.0, 2.0)}
_stack = [STYLES["paper"]]
_lock = threading.RLock()  # matplotlib's settings are shared by all threads


@contextmanager
def style_context(name: str = "paper") -> Iterator[None]:
    """Draw pictures, and write their files, in the style of this name within the block; one thread at a time.

    The user's matplotlibrc, which matplotlib reads in the current folder too, is ignored.
    """
    import matplotlib as mpl

    with _lock, mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(STYLES[name].rc_params)
        _stack.append(STYLES[name])
        try:
            yield
        finally:
            _stack.pop()


def current_style() -> PrintStyle:
    """Return the style of the innermost ``style_context``."""
    return _stack[-1]


def pt(points: float) -> float:
    """Return points on paper as points of the current style."""
    return points * current_style().scale
