"""fcorun results: a table of records."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.markup import escape
from rich.table import Table as Shown

from fcorun.cli.commands.common import CommandParser, check_output_file, load_records_in, make_console, select_latest
from fcorun.metrics import structure_metrics
from fcorun.records.formats import frame_csv, frame_parquet
from fcorun.records.record import Record
from fcorun.records.sweep_settings import load_settings
from fcorun.reports.build_table import build_table, sort_records
from fcorun.reports.latex import format_best_latex
from fcorun.reports.paired_tests import MIN_SEEDS, PairedDifferences, compare_pairs
from fcorun.reports.run_table import RunTable, column_values
from fcorun.reports.sweep_report import (
    best_point_notes,
    describe_end,
    format_number,
    key_header,
    metric_header,
    print_full_width,
    tail_caption,
    warn_unequal_rounds,
)
from fcorun.system.files import write_atomically

_WRITERS = {
    ".csv": lambda runs, metric: frame_csv(runs.frame),
    ".parquet": lambda runs, metric: frame_parquet(runs.frame),
    ".tex": lambda runs, metric: format_best_latex(runs, metric).encode(),
}


def run(argv: Sequence[str]) -> int:
    """Show the records in and under some folders as a table for each data set, a row a run, and write them to a file if
    asked."""
    parser = CommandParser("results", run.__doc__)
    parser.add_metric_options()
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="also write the table (.csv, .parquet), or the best points (.tex)"
    )
    parser.add_argument("--force", action="store_true", help="replace FILE if it exists")
    parser.add_argument("--paired", action="store_true", help="also test whether algorithms differ, seed by seed")
    asked = parser.parse_args(argv)
    if asked.out is not None:
        check_output_file(asked.out, list(_WRITERS), asked.force)
    root = asked.folders[0] if len(asked.folders) == 1 else None
    choice, out = (
        load_settings(*asked.folders).with_overrides(metric=asked.metric, tail_rounds=asked.tail_rounds),
        make_console(),
    )
    records = sort_records(select_latest(load_records_in(asked.folders), out), choice.algos)
    runs = build_table(records, choice.tail_rounds, root=root)
    metric = runs.resolve_metric(choice.metric)
    sets: dict[tuple, list[Record]] = {}
    for record, *data in zip(records, *(column_values(runs.frame[key]) for key in runs.data_keys), strict=True):
        sets.setdefault(tuple(data), []).append(record)
    for data, of_one in sets.items():
        if len(sets) > 1:
            out.print(escape(" ".join(f"{key}={value}" for key, value in zip(runs.data_keys, data, strict=True))))
        _show(build_table(of_one, choice.tail_rounds, root=root), choice.metric and metric, out)
    if asked.paired:
        _tell_pairs(runs, metric, compare_pairs(runs, metric), out)
        if "data.seed" in runs.frame and any({"data.path", "data.root"} & set(r.flat_config) for r in records):
            out.print(
                "data.seed deals the same rows out anew: such repetitions are not independent, and p is too small"
            )
    if asked.out is not None:
        write_atomically(asked.out, _WRITERS[asked.out.suffix](runs, metric))
        wide = f"{len(runs)} runs, {len(runs.frame.columns)} columns"
        out.print(escape(f"{asked.out}: {'the best points' if asked.out.suffix == '.tex' else wide}"))
    return 0


def _show(runs: RunTable, metric: str | None, out: Console) -> None:
    """Show the runs on one data set, judged by a metric, or where these have not measured it by what they have."""
    metric = runs.resolve_metric(metric if metric in runs.tail_metrics else None)
    tails = list(dict.fromkeys((metric, *structure_metrics(metric), "objective")))
    measured = [name for name in tails if name in runs.tail_metrics]
    print_full_width(_every_run(runs, metric, measured), out)
    if not measured:  # none has come to its end
        return
    tied = ", = those tied with it" if runs.best_points(metric)["tied"].map(len).any() else ""
    out.print(f"* best point of each algorithm by {metric}{tied}; {tail_caption(runs, tails)}")
    for line in best_point_notes(runs, metric):
        out.print(escape(line))


def _tell_pairs(runs: RunTable, metric: str, found: Sequence[PairedDifferences], out: Console) -> None:
    """Print a row a pair of algorithms: over how many seeds, how far apart, and how sure that is."""
    several = len({pair.problem for pair in found}) > 1
    shown = Shown(box=None, pad_edge=False, header_style="bold")
    for name in (*(["data"] if several else []), f"difference of {metric}"):
        shown.add_column(name, no_wrap=True)
    for name in ("seeds", "median", "first better", "p", "p, Holm"):
        shown.add_column(name, justify="right", no_wrap=True)
    for pair in found:
        n, better = len(pair.differences), (runs.metrics.sign(metric) * pair.differences < 0).sum()
        cells = [*([pair.problem] if several else []), f"{pair.first} - {pair.second}", str(n)]
        cells += [format_number(float(median(pair.differences))), f"{better} of {n}"] if n else ["", ""]
        why = "the seeds change nothing" if pair.are_constant else "too few seeds"
        cells += (
            [why, ""] if pair.p_value is None else [format_number(pair.p_value), format_number(pair.adjusted_p_value)]
        )
        shown.add_row(*map(escape, cells))
    if not found:
        out.print("paired: no two algorithms are done on the same data")
        return
    print_full_width(shown, out)
    out.print(
        f"seed by seed at each one's best point; p: two-sided, of the mean, by flipped signs, from {MIN_SEEDS} "
        f"seeds on; "
        "Holm: of all pairs together; these seeds chose the points too, which favours who had more to choose from"
    )
    for line in warn_unequal_rounds(runs, metric):
        out.print(line)


def _every_run(runs: RunTable, metric: str, tails: Sequence[str]) -> Shown:
    """A row a run, those of the best points marked: its keys, how it ended, these tail averages."""
    best = runs.best_points(metric)
    marks = {place: "=" for tied in best["tied"] for rows in tied for place in rows}
    marks |= {place: "*" for rows in best["rows"] for place in rows}
    shown = ["algo", *runs.varied_keys, "status", "rounds_done" if "rounds" in runs.varied_keys else "rounds"]
    out = Shown(box=None, pad_edge=False, header_style="bold")
    heads = [
        *(key_header(runs, name) for name in ("", *shown)),
        *(metric_header(runs, name) for name in tails),
        "folder",
    ]
    for name in heads:
        left = name in ("algo", "data", "status", "folder")
        out.add_column(name, no_wrap=True, justify="left" if left else "right")
    values = [runs.tail_values(name) for name in tails]  # of own models, or where there are none of the global one
    for place, row in enumerate(runs.to_dicts()):
        row["status"] = describe_end(row)
        told = [*(row[name] for name in shown), *(float(each[place]) for each in values), row["folder"]]
        out.add_row(marks.get(place, ""), *(escape(format_number(value)) for value in told))
    return out
