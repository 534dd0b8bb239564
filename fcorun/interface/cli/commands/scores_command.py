"""fcorun scores: the scores of held-out rows with intervals, and the differences of two records."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fcorun.base.config import build
from fcorun.base.errors import UserError, describe_few_events, words_of
from fcorun.base.records.record import Record
from fcorun.base.system.files import write_atomically
from fcorun.interface.cli.commands.common_command import (
    BASELINE_HELP,
    CommandParser,
    check_output_file,
    warn_of_formulas,
    word_with_dashes,
)
from fcorun.interface.cli.terminal import Terminal
from fcorun.reports.pictures.picture import render_pictures
from fcorun.reports.sweep_report import format_number
from fcorun.results.score_intervals.score_table import BOOTSTRAP, IntervalRow, ScoreIntervals, ScoreOptions
from fcorun.results.scores.score import list_scores

if TYPE_CHECKING:
    from fcorun.results.survival import ObservedRisk, SurvivalCalibration

_MAX_CLIENTS = 15  # that are printed
_MAX_SCORES = 4  # that are printed by client
_MIN_P_VALUE = 1e-3
_METHODS = {"delong": "DeLong", "obuchowski": "Obuchowski"}


def run(argv: Sequence[str]) -> int:
    """Print the scores of the held-out rows of a record with bootstrap intervals, and of the AUC DeLong's: of the test
    rows, or else of the validation rows; of a selection, of the rows out of fold. With two records, print the
    differences of the scores on the rows that both predict, and DeLong's test. No data are needed, and without --at
    only predictions.csv. With --at TIME, of objective=cox, print the predicted risk of an event up to TIME beside the
    observed one, of groups of rows, and write calibration.csv and calibration.png into RECORD."""
    parser = CommandParser("scores", run.__doc__, folders=False)
    parser.add_argument("record", type=Path, metavar="RECORD", help="the folder of a run that is done, or a selection")
    parser.add_argument("other", type=Path, nargs="?", metavar="OTHER", help="a record to compare RECORD with")
    parser.add_argument("--resample", choices=("rows", "groups", "clients"), default="auto",
                        help="what samples draw; default: groups if predictions.csv has groups, else rows")  # fmt: skip
    parser.add_argument("--samples", type=int, default=ScoreOptions.samples, metavar="N", help="default: 1000")
    parser.add_argument("--level", type=float, default=ScoreOptions.level,
                        help="the confidence level of intervals of scores; default: 0.95")  # fmt: skip
    parser.add_argument("--at", type=float, metavar="TIME",
                        help="calibration of the risk of an event up to TIME, with 95 %% intervals")  # fmt: skip
    parser.add_argument("--baseline", metavar="CLIENT", help=BASELINE_HELP)
    parser.add_output_options("write all intervals, also by client (.csv)")
    arguments = parser.parse_args(argv)
    check_output_file(arguments.out, [".csv"], arguments.force)
    if arguments.at is not None and arguments.other is not None:
        raise UserError("--at is of one record: leave OTHER out")
    if arguments.at is None and arguments.baseline is not None:
        raise UserError("--baseline is for the risk at a time: give --at TIME, too")
    values = {name: getattr(arguments, name) for name in ("resample", "samples", "level")}
    from fcorun.results.score_intervals.intervals import compare_records, compute_intervals

    calibration = None
    with words_of(word_with_dashes("resample", "samples", "level", "at", "baseline")):
        options = build(ScoreOptions, values)
        if arguments.other is None:
            intervals = compute_intervals(arguments.record, options)
            if arguments.at is not None:
                from fcorun.results.survival import calibrate_record

                calibration = calibrate_record(arguments.record, arguments.at, options.level, arguments.baseline)
        else:
            intervals = compare_records([arguments.record, arguments.other], options)
    console = Terminal()
    console.print(intervals.title)
    console.print(intervals.describe_sources())
    for models in dict.fromkeys(row.models for row in intervals.rows):
        rows = [row for row in intervals.rows if row.models == models]
        console.print(f"\n{' and '.join(dict.fromkeys(models))} model, all clients")
        _print_scores([row for row in rows if not row.client], intervals, console)
        _print_clients([row for row in rows if row.client and row.method == BOOTSTRAP], console)
    for sentence in intervals.warnings:
        console.print(f"warning: {sentence}")
    if calibration is not None:
        from fcorun.reports.pictures.survival_calibration_picture import SurvivalView

        _print_calibration(calibration, console)
        record = Record(arguments.record)
        files = render_pictures(SurvivalView(calibration, record.picture_title), style=record.picture_style)
        for name, content in {"calibration.csv": calibration.to_csv(), **files}.items():
            write_atomically(arguments.record / name, content)
            console.print(str(arguments.record / name))
    if arguments.out is not None:
        write_atomically(arguments.out, intervals.to_csv())
        console.print(f"{arguments.out}: {len(intervals.rows)} intervals")
        console.print_lines(warn_of_formulas([arguments.out]))
    return 0


def _print_scores(rows: Sequence[IntervalRow], intervals: ScoreIntervals, console: Terminal) -> None:
    """Print a line for each score and method."""
    headers = ["score", "value", f"{100 * intervals.level:g} % interval"]
    if intervals.names:
        headers = ["score", "first", "second", "difference", headers[-1], "p"]
    lines = []
    for row in rows:
        name = row.score if row.method == BOOTSTRAP else f"{row.score} ({_METHODS[row.method]})"
        values = [format_number(value) for value in row.values]
        if intervals.names:
            values.append(format_number(row.estimate))
        cells = [name, *values, _interval(row)]
        if intervals.names:
            p_value = ""
            if row.p_value is not None:
                p_value = f"{row.p_value:.3f}" if row.p_value >= _MIN_P_VALUE else f"<{_MIN_P_VALUE}"
            cells.append(p_value)
        lines.append(cells)
    console.print_table(headers, lines)


def _interval(row: "IntervalRow | ObservedRisk") -> str:
    return f"{format_number(row.low)} to {format_number(row.high)}" if row.low == row.low else "-"


def _print_clients(rows: Sequence[IntervalRow], console: Terminal) -> None:
    """Print main scores of each client with intervals."""
    clients = list(dict.fromkeys(row.client for row in rows))
    if not clients:
        return
    present = {row.score for row in rows}
    main_scores = list_scores(lambda places: places.terminal)
    scores = [score.name for score in main_scores if score.name in present][:_MAX_SCORES]
    by_name = {(row.client, row.score): row for row in rows}
    units = rows[0].units
    has_events = units.events is not None
    lines = []
    for client in clients[:_MAX_CLIENTS]:
        first = by_name[client, scores[0]]
        cells = [client, str(first.units.n), *([str(first.units.events)] if has_events else [])]
        for name in scores:
            row = by_name[client, name]
            cells.append(f"{format_number(row.estimate)} ({_interval(row)})")
        lines.append(cells)
    console.print("")
    count_header = "n" if units.noun == "rows" else units.noun
    console.print_table(["client", count_header, *([units.events_noun] if has_events else []), *scores], lines)
    if len(clients) > _MAX_CLIENTS:
        console.print(f"and {len(clients) - _MAX_CLIENTS} more clients, which --out FILE.csv has too")
    noun = "events" if units.noun == "rows" else f"{units.noun} {units.events_noun}"
    events = {row.client: row.units.events for row in rows if row.units.events is not None}
    if sentence := describe_few_events(events, noun):
        console.print(sentence)


def _print_calibration(calibration: "SurvivalCalibration", console: Terminal) -> None:
    """Print the predicted and the observed risk of all rows, of their groups, and of each client."""
    from fcorun.results.survival import ALL_ROWS, GROUP

    groups = [(f"group {i + 1}", group) for i, group in enumerate(calibration.select("", GROUP))]
    shown = [("all rows", *calibration.select("", ALL_ROWS)), *groups]
    clients = calibration.clients[:_MAX_CLIENTS]
    shown += [(client, *calibration.select(client, ALL_ROWS)) for client in clients]
    lines = []
    for name, group in shown:
        observed = group.observed
        counts = [str(count) for count in (group.n, observed.events, observed.censored, observed.at_risk)]
        risk = f"{format_number(observed.risk)} ({_interval(observed)})" if observed.risk == observed.risk else "-"
        lines.append((name, *counts, format_number(group.predicted), risk))
    console.print(
        f"\nrisk of an event up to {calibration.at:g}, observed by Kaplan and Meier; groups by predicted risk"
    )
    observed_header = f"observed ({100 * calibration.level:g} %)"
    headers = ("rows", "n", "events", "censored before", "at risk", "predicted", observed_header)
    console.print_table(headers, lines)
    if len(calibration.clients) > _MAX_CLIENTS:
        console.print(f"and {len(calibration.clients) - _MAX_CLIENTS} more clients, which calibration.csv has too")
    for sentence in calibration.warnings:
        console.print(f"warning: {sentence}")
