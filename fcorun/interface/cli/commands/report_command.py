"""fcorun report: one page of HTML to send."""

import sys
from collections.abc import Sequence

from fcorun.base.errors import UserError, abbreviate_sentences, escape_controls
from fcorun.base.records.record import check_folder, load_records
from fcorun.base.system.files import write_atomically
from fcorun.interface.cli.commands.common_command import (
    CommandParser,
    check_output_file,
    leave_out_damaged,
    select_latest,
)
from fcorun.interface.cli.terminal import Terminal
from fcorun.reports.page.write import REPORT_FILE, SHORT_FILE, key_comments
from fcorun.reports.results_to_share import describe_few


def run(argv: Sequence[str]) -> int:
    """Write one page of HTML, which opens without a network, of the runs, sweeps, selections and figures in and under
    some folders: what was run, a table of runs, curves, maps of rates, coefficients, claims, the configuration,
    versions, BibTeX. The page of one run or selection on a table of yours begins with the question, the result and its
    performance on held-out rows; --short writes these alone, on one sheet."""
    parser = CommandParser("report", run.__doc__)
    parser.add_metric_options()
    parser.add_output_options(f"the page, .html; default: {REPORT_FILE} in DIR, if only one DIR is given")
    parser.add_argument("--short", action="store_true",
                        help="one sheet of A4 about a run or a selection on a table: question, result, performance; "
                        f"default FILE: {SHORT_FILE} in DIR")  # fmt: skip
    arguments = parser.parse_args(argv)
    if arguments.short and (arguments.metric or arguments.tail_rounds):
        option = "--metric" if arguments.metric else "--tail-rounds"
        raise UserError(f"{option} is of the table of runs, which --short does not have: leave one of them out")
    for folder in arguments.folders:
        check_folder(folder)
    path = arguments.out
    if path is not None:
        check_output_file(path, (".html", ".htm"), arguments.force)
    elif len(arguments.folders) == 1:
        path = arguments.folders[0] / (SHORT_FILE if arguments.short else REPORT_FILE)
    else:
        raise UserError("the page of several folders belongs to none of them: give --out FILE.html")
    from fcorun.reports.page.build_page import build_page, find_damaged_tables
    from fcorun.reports.page.clinical import build_short_page
    from fcorun.reports.page.studies import find_studies

    out = Terminal()
    records = load_records(*arguments.folders)
    whole = leave_out_damaged(records)
    if arguments.short:
        page = build_short_page(arguments.folders, whole)
    else:
        page = build_page(
            arguments.folders,
            records,
            comments=key_comments(records),
            metric=arguments.metric,
            tail_rounds=arguments.tail_rounds,
        )
    write_atomically(path, page)
    if damaged := find_damaged_tables(whole, find_studies(arguments.folders)):
        print(escape_controls(f"fcorun: not on the page: {abbreviate_sentences(damaged)}"), file=sys.stderr)
    runs = len(select_latest(whole, out))
    out.print(f"{path}: {path.stat().st_size / 1e6:.1f} MB, {runs} {'run' if runs == 1 else 'runs'}")
    if few := describe_few(arguments.folders, whole):
        out.print(few)
    return 0
