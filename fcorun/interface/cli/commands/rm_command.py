"""fcorun rm: removes records by their status."""

import sys
from collections.abc import Sequence

from fcorun.base.errors import UserError, escape_controls
from fcorun.base.records.record import RunFolder
from fcorun.interface.cli.commands.common_command import CommandParser, load_records_in
from fcorun.interface.cli.terminal import Terminal
from fcorun.reports.sweep_report import STATUSES


def run(argv: Sequence[str]) -> int:
    """Remove the records in and under some folders that have one of the given statuses, and folders left empty."""
    parser = CommandParser("rm", run.__doc__)
    status_help = (
        "the status of the records to remove; may be given several times. A run that a process on this machine "
        "computes is never removed; `running` removes the runs of a machine that was lost"
    )
    parser.add_argument("--status", action="append", required=True, choices=STATUSES[:-1], help=status_help)
    parser.add_argument("--yes", action="store_true", help="remove without asking")
    arguments = parser.parse_args(argv)
    out = Terminal()
    records = [
        record for record in load_records_in(arguments.folders) if record.status.get("status") in arguments.status
    ]
    for record in records:
        status = record.status
        out.print(f"{status['status']}: {record.folder}  {status.get('label', '')}  {status.get('reason', '')}")
        if spent := record.spent_epsilon:
            out.print(f"the privacy of this run, {spent}, is spent: note it, and add it to that of other runs on the "
                      "same rows")  # fmt: skip
    if not records:
        out.print(f"no record is {' or '.join(arguments.status)}")
        return 0
    if not arguments.yes:
        if not sys.stdin.isatty():
            raise UserError("rm asks before it removes, and there is no terminal to ask on; give --yes")
        noun = "record" if len(records) == 1 else "records"
        try:
            answer = input(f"remove {len(records)} {noun}? [y/N] ")
        except EOFError:  # Ctrl-D
            answer = ""
        if answer.strip().lower() not in ("y", "yes"):
            return 1
    code = 0
    for record in records:
        if record.status.get("status") not in arguments.status:
            continue  # another process has continued the run meanwhile
        try:
            RunFolder(record.folder, "").remove()  # needs no identity
        except UserError as error:
            print(escape_controls(f"fcorun: {error}"), file=sys.stderr)
            code = 1
    return code
