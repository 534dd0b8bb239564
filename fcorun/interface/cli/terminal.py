"""The terminal: lines and tables of texts as they are."""

import os
import sys
from collections.abc import Collection, Iterable, Sequence

from rich.console import Console
from rich.table import Table

from fcorun.base.errors import EscapedControls
from fcorun.reports.sweep_report import print_full_width


class Terminal(EscapedControls, Console):
    """The output of a command: square brackets are no markup, and control characters are shown as escapes.

    The reader may go away, as in ``| head``: the command then continues without output. Nothing is printed unless
    ``verbose``.
    """

    def __init__(self, verbose: bool = True, markup: bool = False):
        super().__init__(
            file=sys.stdout, markup=markup, highlight=False, emoji=False, soft_wrap=True, quiet=not verbose
        )

    def print_lines(self, lines: Iterable[str]) -> None:
        """Print each text on a line of its own; nothing without a text."""
        for line in lines:
            self.print(line)

    def print_table(
        self,
        headers: Sequence[str],
        rows: Iterable[Sequence[str]],
        texts: Collection[str] = (),
        caption: str = "",
        folded: bool = False,
    ) -> None:
        """Print a table without cutting cells, which is as wide as its cells, or fits the terminal if ``folded``.

        Columns of ``texts``, and else the first one, begin at the left.
        """
        table = Table(box=None, pad_edge=False, header_style="bold", caption=caption or None, caption_justify="left")
        for header in headers:
            is_text = header in (texts or headers[:1])
            table.add_column(header, no_wrap=not folded, overflow="fold", justify="left" if is_text else "right")
        for row in rows:
            table.add_row(*row)
        if folded:
            self.print(table)
        else:
            print_full_width(table, self)

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
