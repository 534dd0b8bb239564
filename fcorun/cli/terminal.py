"""The terminal: texts of records and files are shown without the control characters that steer a terminal."""

import warnings
from typing import Any

from rich.console import Console
from rich.text import Text

from fcorun.errors import escape_controls

_PYTHON_FORMAT = warnings.formatwarning


def format_warning(*arguments: Any, **options: Any) -> str:
    """Return Python's text of a warning with control characters escaped, as a warning may quote a record."""
    return escape_controls(_PYTHON_FORMAT(*arguments, **options))


class Terminal(Console):
    """A console that shows control characters as escapes: they could move the cursor, or rename the window."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(escape_controls(text), **options)
