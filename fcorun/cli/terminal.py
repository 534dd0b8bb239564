"""The terminal: texts of records and files are shown without the control characters that steer it."""

import warnings
from typing import Any

from rich.console import Console
from rich.text import Text

from fcorun.errors import escape_controls

_FORMAT = warnings.formatwarning


def format_warning(*told: Any, **more: Any) -> str:
    """Return how Python shows a warning, which may name what a record holds, as a glyph that a font lacks."""
    return escape_controls(_FORMAT(*told, **more))


class Terminal(Console):
    """A console that shows control characters in texts as escapes: they could move the cursor, or rename the window."""

    def render_str(self, text: str, **how: Any) -> Text:
        return super().render_str(escape_controls(text), **how)
