"""fcorun publish: a site of static pages about the results in a folder."""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from fcorun.base.errors import UserError, abbreviate_sentences, escape_controls
from fcorun.base.records.record import load_records
from fcorun.base.system.files import write_atomically
from fcorun.interface.cli.commands.common_command import CommandParser, check_new
from fcorun.interface.cli.terminal import Terminal
from fcorun.reports.page.write import REPORT_FILE, key_comments
from fcorun.reports.results_to_share import PathCutter, describe_few, find_results

_LIBRARY = "plotly.js"  # which draws the curves of all pages


def run(argv: Sequence[str]) -> int:
    """Write the page of fcorun report about each result in and under DIR into the new folder OUT, without places of
    this machine, and OUT/index.html, a table of the results that is sorted and filtered by data, method and verdict.
    The pages open from a disk and from any web server, and load nothing from elsewhere."""
    parser = CommandParser("publish", run.__doc__, folders=False)
    parser.add_argument("folder", type=Path, metavar="DIR", help="a folder with results, also in its subfolders")
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder of the pages, which must not exist")
    arguments = parser.parse_args(argv)
    root, out = arguments.folder, arguments.out
    check_new(out)
    results = find_results(root)
    from fcorun.reports.page.build_page import build_page, read_library
    from fcorun.reports.page.index_page import build_index

    out.mkdir()
    try:
        shown, left_out, few = [], [], []
        for folder, kind in results.items():
            place = folder.relative_to(root)
            records = load_records(folder)
            try:
                to_library = "../" * len(place.parts) + _LIBRARY
                page = build_page([folder], records, comments=key_comments(records), library_address=to_library)
            except UserError as error:
                left_out.append(str(error))
                continue
            (out / place).mkdir(parents=True, exist_ok=True)
            write_atomically(out / place / REPORT_FILE, PathCutter(folder).cut_sentence(page))
            name = folder.resolve().name if folder == root else place.as_posix()
            shown.append((folder, kind, name, (place / REPORT_FILE).as_posix()))
            if sentence := describe_few([folder], records):
                few.append(f"{name}: {sentence}")
        if not shown:
            raise UserError(abbreviate_sentences(left_out))
        write_atomically(out / _LIBRARY, read_library())
        write_atomically(out / "index.html", build_index(root.resolve().name, shown))
    except BaseException:
        shutil.rmtree(out)  # this command made it
        raise
    if left_out:
        print(escape_controls(f"fcorun: left out: {abbreviate_sentences(left_out)}"), file=sys.stderr)
    terminal = Terminal()
    terminal.print(f"{out / 'index.html'} and pages of results: {len(shown)}")
    if few:
        terminal.print(abbreviate_sentences(few))
    return 0
