"""fcorun cite: BibTeX of the sources of records."""

from collections.abc import Sequence

from fcorun.base.errors import escape_controls
from fcorun.interface.cli.commands.common_command import CommandParser, load_records_in
from fcorun.reports.bibliography import build_bibliography


def run(argv: Sequence[str]) -> int:
    """Print BibTeX for the records in and under some folders: fcorun, and what their algorithms, data sets,
    regularizers, objectives, mirror maps and topologies come from, each entry once with what it is cited for."""
    arguments = CommandParser("cite", run.__doc__).parse_args(argv)
    print(escape_controls(build_bibliography(load_records_in(arguments.folders))), end="")
    return 0
