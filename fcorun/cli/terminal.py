"""The terminal: texts of records and files are shown without the control characters that steer a terminal."""

from typing import Any

from rich.console import Console
from rich.text import Text

from fcorun.errors import escape_controls


class Terminal(Console):
    """A console that shows control characters as escapes: they could move the cursor, or rename the window."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(escape_controls(text), **options)
