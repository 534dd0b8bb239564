"""fcorun cite: BibTeX of what records are made with."""

from collections.abc import Sequence

from fcorun.cli.commands.common import Parser, records_in
from fcorun.errors import printable
from fcorun.reports.citations import bibliography


def run(argv: Sequence[str]) -> int:
    """Print BibTeX for the records in and under some folders: fcorun, and what their algorithms, data sets,
    regularizers, objectives, mirror maps and topologies come from, each entry once with what it is cited for."""
    asked = Parser("cite", run.__doc__).parse_args(argv)
    print(printable(bibliography(records_in(asked.folders))), end="")
    return 0
