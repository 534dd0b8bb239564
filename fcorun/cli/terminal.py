"""The terminal: texts of records and files are shown without the control characters that steer it."""

from typing import Any

from rich.console import Console
from rich.text import Text

from fcorun.errors import printable


class Terminal(Console):
    """A console that shows control characters in texts as escapes: they could move the cursor, or rename the window."""

    def render_str(self, text: str, **how: Any) -> Text:
        return super().render_str(printable(text), **how)
