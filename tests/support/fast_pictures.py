"""Pictures that are written fast: fonts are embedded whole, and PNG is compressed little."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partialmethod
from pathlib import Path
from typing import Any

import matplotlib.backends._backend_pdf_ps
from matplotlib.backends.backend_agg import FigureCanvasAgg


def speed_up_pictures() -> None:
    """Write PDF without selecting the glyphs of its fonts, which takes longer than drawing."""
    fonts: Any = matplotlib.backends._backend_pdf_ps  # their private members are replaced
    if hasattr(fonts, "SubsetResults"):  # not before matplotlib 3.11
        fonts.get_glyphs_subset = _all_glyphs(fonts.SubsetResults)
        fonts.font_as_file = lambda path: io.BytesIO(Path(path).read_bytes())
    png: Any = partialmethod(FigureCanvasAgg.print_png, pil_kwargs={"compress_level": 1})
    FigureCanvasAgg.print_png = png


def _all_glyphs(results: Any) -> Any:
    @contextmanager
    def subset(path: str, glyphs: set[int]) -> Iterator[Any]:
        yield results(path, {glyph: glyph for glyph in glyphs})

    return subset
