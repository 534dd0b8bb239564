"""fcorun report: one page of HTML to send."""

from collections.abc import Sequence
from pathlib import Path

from rich.markup import escape

from fcorun.cli.commands.common import Parser, check_out, console, current
from fcorun.cli.page import NAME, comments
from fcorun.composing.folders import own
from fcorun.errors import UserError
from fcorun.records.record import load_records
from fcorun.system.files import write_whole


def run(argv: Sequence[str]) -> int:
    """Write one page of HTML, which opens without a network, of the runs, sweeps, selections and figures in and under
    some folders: what was run, a table of runs, curves, maps of rates, coefficients, claims, the configuration,
    versions, BibTeX."""
    parser = Parser("report", run.__doc__)
    parser.add_judging()
    parser.add_argument("--out", type=Path, metavar="FILE",
                        help=f"the page, .html; default: {NAME} in DIR if that is one")  # fmt: skip
    parser.add_argument("--force", action="store_true", help="replace FILE if it exists")
    parser.add_config_dir()
    asked = parser.parse_args(argv)
    for folder in asked.folders:
        if not folder.is_dir():
            raise UserError(f"there is no folder {folder}; give one that holds records")
    path = _checked(asked.out, asked.folders, asked.force)
    from fcorun.reports.page.build import page

    out = console()
    with own(asked.config_dir):
        records = load_records(*asked.folders)
        choice = {"metric": asked.metric, "tail_rounds": asked.tail_rounds}
        write_whole(path, page(asked.folders, records, comments=comments(records), **choice))
    out.print(escape(f"{path}: {path.stat().st_size / 1e6:.1f} MB, {len(current(records, out))} runs"))
    return 0


def _checked(path: Path | None, folders: Sequence[Path], force: bool) -> Path:
    """Where the page goes. Raises UserError for a file that cannot be written."""
    if path is None and len(folders) > 1:
        raise UserError("of several folders the page has no place of its own: give --out FILE.html")
    if path is None:
        return folders[0] / NAME
    check_out(path, (".html", ".htm"), force)
    return path
