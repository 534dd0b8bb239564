"""fcorun results: a table of records."""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from fcorun.base.errors import UserError
from fcorun.base.metrics import structure_metrics
from fcorun.base.records.formats import frame_csv, frame_parquet
from fcorun.base.records.record import Record, load_records
from fcorun.base.records.sweep_settings import list_missing_runs, load_settings
from fcorun.base.system.files import write_atomically
from fcorun.interface.cli.commands.common_command import (
    TABLE_WRITERS,
    CommandParser,
    check_output_file,
    load_records_in,
    select_latest,
    warn_of_formulas,
)
from fcorun.interface.cli.terminal import Terminal
from fcorun.reports.build_table import build_table, sort_records
from fcorun.reports.byte_cap import cap_runs, read_cap
from fcorun.reports.curves_table import join_curves
from fcorun.reports.latex import format_best_latex
from fcorun.reports.monte_carlo import describe_lost, estimate_methods, estimate_pairs
from fcorun.reports.paired_tests import MIN_SEEDS, PairedDifferences, compare_pairs, smallest_p_value
from fcorun.reports.problem_values import format_problems, group_problems
from fcorun.reports.run_table import DATA_SEED_KEYS, SEED_KEYS, RunTable
from fcorun.reports.sweep_report import (
    best_marks_caption,
    best_point_notes,
    describe_end,
    format_number,
    key_header,
    metric_header,
    tail_caption,
    warn_unequal_rounds,
    warn_unmeasured,
)

if TYPE_CHECKING:
    from fcorun.runs.executors.submitit import PendingJob

_LEAST_SECONDS = 3.0  # between two tables of --follow
_TIMES_LONGER = 15.0  # than it takes to make a table, the time to the next one is
_MAX_PRINTED = 200  # runs of a table
_SIMULATION_METRICS = ("support_f1", "recovery_error")  # against the truth, beside the metric by which points compare
_WRITERS = {
    ".csv": lambda runs, metric: frame_csv(runs.shown_frame),
    ".parquet": lambda runs, metric: frame_parquet(runs.shown_frame),
    ".tex": lambda runs, metric: _format_latex(runs, metric).encode(),
}


def run(argv: Sequence[str]) -> int:
    """Show the records in and under some folders as a table for each data set and condition, with a row for each run,
    and write the table to a file if --out is given."""
    parser = CommandParser("results", run.__doc__)
    parser.add_metric_options()
    parser.add_output_options("also write the table (.csv, .parquet), or the best points (.tex)")
    parser.add_argument("--all", action="store_true", help=f"print more than {_MAX_PRINTED} runs of a table")
    parser.add_argument("--paired", action="store_true", help="also test whether algorithms differ, seed by seed")
    help_text = "print means over seeds with Monte Carlo standard errors, and paired differences, in place of the runs"
    parser.add_argument("--errors", action="store_true", help=help_text)
    help_text = "compare at equal uploads, those of all points of an algorithm counted: bytes=1.4e6"
    parser.add_argument("--cap", metavar="bytes=NUMBER", help=help_text)
    help_text = "write each evaluation of each run to FILE (.csv, .parquet), in place of a row for each run"
    parser.add_argument("--curves", action="store_true", help=help_text)
    parser.add_argument("--follow", action="store_true", help="print the table anew until all runs have ended")
    arguments = parser.parse_args(argv)
    if arguments.curves and arguments.out is None:
        raise UserError("--curves writes the evaluations of the runs to a file: give --out curves.parquet, too")
    if arguments.curves and arguments.cap is not None:
        raise UserError("--curves writes all evaluations, with the bytes of each: leave out --cap, which compares ends")
    if arguments.follow and arguments.out is not None:
        raise UserError("--follow prints while runs go on, and --out writes once: leave one of them out")
    check_output_file(arguments.out, list(TABLE_WRITERS if arguments.curves else _WRITERS), arguments.force)
    out = Terminal()
    while True:
        began = time.monotonic()
        missing = list_missing_runs(load_settings(*arguments.folders), arguments.folders) if arguments.follow else []
        jobs = _list_pending_jobs(arguments.folders) if arguments.follow else []
        n_open = sum(job.is_open for job in jobs)
        is_running = False
        if load_records(*arguments.folders) or not missing:
            frame = _show(arguments, out).frame
            lost = {str(run) for job in jobs for run in job.lost_runs}
            root = arguments.folders[0] if len(arguments.folders) == 1 else Path()
            is_running = any(str(root / run) not in lost for run in frame["folder"][frame["status"] == "running"])
        if not (arguments.follow and (n_open or missing or is_running)):
            return 0
        if missing:
            out.print(f"runs that have not begun: {len(missing)} (Ctrl-C ends this command, and no run)")
        if n_open:
            out.print(f"submitted jobs without a result: {n_open} (Ctrl-C ends this command, and no job)")
        time.sleep(max(_LEAST_SECONDS, _TIMES_LONGER * (time.monotonic() - began)))
        out.clear()


def _list_pending_jobs(folders: Sequence[Path]) -> "list[PendingJob]":
    """Return the pending jobs of submitit in and under some folders."""
    from fcorun.runs.executors.submitit import list_pending_jobs

    return [job for folder in folders for job in list_pending_jobs(folder)]


def _show(arguments: argparse.Namespace, out: Terminal) -> RunTable:
    """Print the tables that are asked for, write the file, and return the table of the runs."""
    root = arguments.folders[0] if len(arguments.folders) == 1 else None
    settings = load_settings(*arguments.folders)
    settings = settings.with_overrides(metric=arguments.metric, tail_rounds=arguments.tail_rounds)
    records = sort_records(select_latest(load_records_in(arguments.folders), out), settings.algos)
    runs = build_table(records, settings.tail_rounds, root=root, conditions=settings.conditions)
    metric = runs.resolve_metric(settings.metric)
    cap = None if arguments.cap is None else read_cap(arguments.cap)
    cap_remarks: list[str] = []
    groups = group_problems(runs.read_problems(runs.condition_keys, [[run] for run in range(len(runs))]))
    if cap is not None:
        runs, cap_remarks = cap_runs(runs, records, cap, metric)
    for part, part_metric, title in _group_by_metric(runs, metric) if arguments.errors else ():
        if title:
            out.print(title)
        _print_means(part, part_metric, out)
    tables = zip(format_problems([*groups], digits=15), groups.values(), strict=True)
    for texts, positions in () if arguments.errors else tables:
        part = runs
        if len(groups) > 1:
            pairs = zip(runs.condition_keys, texts, strict=True)
            out.print(" ".join(f"{key}={text}" for key, text in pairs if text))
            part_records = [records[position] for position in positions]
            part = build_table(part_records, settings.tail_rounds, root=root, conditions=settings.conditions)
            if cap is not None:
                part, _ = cap_runs(part, part_records, cap, metric)
        given_metric = metric if settings.metric and metric in part.tail_metrics else None
        part_metric = part.resolve_metric(given_metric)
        shown_metrics = list(dict.fromkeys((part_metric, *structure_metrics(part_metric), "objective")))
        measured = [name for name in shown_metrics if name in part.tail_metrics]
        limit = len(part) if arguments.all else _MAX_PRINTED
        _print_table(part, part_metric, measured, out, limit)
        if not measured:  # no run has come to its end
            continue
        has_ties = part.best_points(part_metric)["tied"].map(len).any()
        out.print(best_marks_caption(part, part_metric, shown_metrics, has_ties=has_ties))
        out.print_lines(best_point_notes(part, part_metric))
    out.print_lines(cap_remarks)
    for part, part_metric, title in _group_by_metric(runs, metric) if arguments.paired else ():
        if title:
            out.print(title)
        _print_paired_tests(part, part_metric, compare_pairs(part, part_metric), out)
    if arguments.paired or arguments.errors:
        for key in [key for key in DATA_SEED_KEYS if runs.reads_files and key in runs.frame]:
            out.print(f"{key} divides the same rows again: such repetitions are not independent, and p is too small, "
                      "or an error")  # fmt: skip
    if arguments.out is not None:
        _write(arguments.out, runs, records if arguments.curves else None, metric, out)
    return runs


def _write(path: Path, runs: RunTable, records: Sequence[Record] | None, metric: str, out: Terminal) -> None:
    """Write the runs, or the evaluations of ``records``, to a file."""
    if records is not None:
        curves = join_curves(runs, records)
        content = f"{len(curves):,} evaluations of {len(runs)} runs"
        table = TABLE_WRITERS[path.suffix](curves)
    else:
        content = "the best points" if path.suffix == ".tex" else f"{len(runs)} runs, {len(runs.frame.columns)} columns"
        table = _WRITERS[path.suffix](runs, metric)
    write_atomically(path, table)
    out.print_lines(warn_of_formulas([path]))
    out.print(f"{path}: {content}")


def _group_by_metric(runs: RunTable, metric: str) -> list[tuple[RunTable, str, str]]:
    """Return the runs by the metric of their data and conditions, with the metric and a title of the part.

    Data without ``metric`` have the default of what they measured. Of a single metric the title is "".
    """
    positions_of_metric: dict[str, list[int]] = {}
    for positions in group_problems(runs.read_problems(runs.condition_keys, [[i] for i in range(len(runs))])).values():
        own_metric = runs.take(positions).fallback_metric(metric)
        positions_of_metric.setdefault(own_metric, []).extend(positions)
    parts = []
    for name, positions in positions_of_metric.items():
        part = runs.take(sorted(set(positions)))
        title = f"{', '.join(map(str, part.frame['data'].unique()))}: by {name}"
        parts.append((part, name, title if len(positions_of_metric) > 1 else ""))
    return parts


def _format_latex(runs: RunTable, metric: str) -> str:
    """Return a table of best points in LaTeX for each metric, with a comment on its data where there are several."""
    tables = []
    for part, name, title in _group_by_metric(runs, metric):
        if title:
            tables.append(f"% {title}")
        tables.append(format_best_latex(part, name))
    return "\n".join(tables)


def _print_means(runs: RunTable, metric: str, out: Terminal) -> None:
    """Print the mean of each method over replicates with its Monte Carlo error, and paired differences with theirs."""
    shown = [name for name in (metric, *_SIMULATION_METRICS, *structure_metrics(metric)) if name in runs.tail_metrics]
    shown = list(dict.fromkeys(shown))
    methods = estimate_methods(runs, metric, shown)
    varied = [name for name in runs.frame if runs.frame[name].nunique(dropna=False) > 1]
    problems = [key for key in runs.problem_keys(metric) if key in varied]
    keys = [key for key in runs.varied_keys if key in varied and key not in (*SEED_KEYS, *problems)]
    headers = [
        *(key_header(runs, key) for key in (*problems, "algo", *keys)),
        *(metric_header(runs, name) for name in shown),
        "replicates",
        "lost",
        "bytes up",
    ]
    rows = []
    values_of_methods = runs.read_problems(problems, [method.point["runs"] for method in methods])
    texts_of_methods = format_problems(values_of_methods)
    first_positions = [values_of_methods.index(values) for values in values_of_methods]
    for position in sorted(range(len(methods)), key=first_positions.__getitem__):  # problem by problem
        method = methods[position]
        cells = [*texts_of_methods[position], *(format_number(method.point[key]) for key in ("algo", *keys))]
        cells += [str(method.estimates[name]) for name in shown]
        n_lost = sum(map(len, method.lost.values()))
        cells += [str(method.estimates[metric].count), str(n_lost or ""), format_number(method.bytes_up.mean)]
        rows.append(cells)
    problem_headers = headers[: len(problems)]
    out.print_table(headers, rows, [*problem_headers, "algo"])
    out.print(
        f"best by the mean of {metric}: {tail_caption(runs, shown)}; mean over replicates (Monte Carlo standard "
        "error); bytes up: of a replicate, all points of the algorithm counted"
    )
    for method in methods:
        if method.lacking:
            out.print(f"{method.point['algo']}: bytes up without {method.lacking} replicates, which lack points that "
                      "others have")  # fmt: skip
    rows = []
    has_unpaired = False
    for pair in estimate_pairs(runs, metric, methods):
        cells = [pair.problem[key] for key in problems]
        cells += [f"{pair.first.point['algo']} - {pair.second.point['algo']}", str(pair.difference)]
        unpaired = ""
        if any(pair.unpaired):
            unpaired = f"{pair.unpaired[0]} and {pair.unpaired[1]}"
            has_unpaired = True
        rows.append([*cells, str(pair.difference.count), unpaired])
    if rows:
        texts = [*problem_headers, f"difference of {metric}"]
        out.print_table([*texts, "mean (MC error)", "pairs", "unpaired"], rows, texts)
        out.print("differences replicate by replicate; the same replicates chose the best points, which favours "
                  "algorithms with more points")  # fmt: skip
    if has_unpaired:
        out.print("unpaired: replicates that only the first and only the second algorithm has")
    for method in methods:
        out.print_lines(describe_lost(runs, method))
    best_rows = {tuple(row["rows"]) for row in runs.best_points(metric).to_dict("records")}
    others = []
    for method in methods:
        if method.values and method.point["status"] == "done" and tuple(method.point["rows"]) not in best_rows:
            others.append(method.point["algo"])
    if others:
        out.print(f"{', '.join(dict.fromkeys(others))}: the best point by the mean over replicates, shown above, is "
                  "not that by the median, which notes on best points, pictures and --paired are about")  # fmt: skip
    out.print_lines(best_point_notes(runs, metric))


def _print_paired_tests(runs: RunTable, metric: str, pairs: Sequence[PairedDifferences], out: Terminal) -> None:
    """Print a row for each pair of algorithms: the seeds, the median difference, and the p-values."""
    unmeasured = warn_unmeasured(runs, metric)
    for line in unmeasured:
        out.print(f"paired: {line}")
    if not pairs:
        if not unmeasured:
            conditions = [key for key in runs.condition_keys if key in runs.conditions]
            same = f" with the same {' and '.join(conditions)}" if conditions else ""
            out.print(f"paired: no two algorithms have finished on the same data{same}")
        return
    has_several_problems = len({pair.problem for pair in pairs}) > 1
    texts = ["data"] if has_several_problems else []
    texts.append(f"difference of {metric}")
    lines = []
    for pair in pairs:
        n_seeds = len(pair.differences)
        cells = [pair.problem] if has_several_problems else []
        cells += [f"{pair.first} - {pair.second}", str(n_seeds)]
        if n_seeds:
            n_better = (runs.metrics.sign(metric) * pair.differences < 0).sum()
            cells += [format_number(float(median(pair.differences))), f"{n_better} of {n_seeds}"]
        else:
            cells += ["", ""]
        if pair.p_value is not None:
            cells += [format_number(pair.p_value), format_number(pair.adjusted_p_value)]
        elif pair.are_constant:
            cells += ["the seeds change nothing" if pair.differences.any() else "no difference but rounding", ""]
        else:
            cells += ["too few seeds", ""]
        lines.append(cells)
    out.print_table([*texts, "seeds", "median", "first better", "p", "p, Holm"], lines, texts)
    out.print(
        "differences by seed at the best point of each algorithm; p: two-sided sign-flip test of the mean, from "
        f"{MIN_SEEDS} seeds on; Holm: corrected for all pairs; the same seeds chose the best points, which favours "
        "algorithms with more points"
    )
    if runs.varied_seeds == ["seed"]:
        out.print("seeds of cohorts: p is about other cohorts on the same data, not about other data")
    elif runs.varied_seeds:
        out.print(runs.seed_kind)
    if tested := [len(pair.differences) for pair in pairs if pair.p_value is not None]:
        count = f"{len(tested)} tested pair{'s' if len(tested) > 1 else ''}"
        least = format_number(smallest_p_value(tested))
        out.print(f"with {max(tested)} seeds and {count}, p by Holm cannot be below {least}")
    out.print_lines(warn_unequal_rounds(runs, metric))


def _print_table(runs: RunTable, metric: str, shown_metrics: Sequence[str], out: Terminal, limit: int) -> None:
    """Print a row for each run: its keys, its end, and tail averages. Best points are marked.

    Of more runs than ``limit``, those of best points are printed, and the first others.
    """
    best_points = runs.best_points(metric)
    marks = {}
    for tied_points in best_points["tied"]:
        for positions in tied_points:
            marks |= dict.fromkeys(positions, "=")
    for positions in best_points["rows"]:
        marks |= dict.fromkeys(positions, "*")
    rounds_column = "rounds_done" if "rounds" in runs.varied_keys else "rounds"
    columns = ["algo", *runs.varied_keys, "status", rounds_column]
    headers = [
        *(key_header(runs, name) for name in ("", *columns)),
        *(metric_header(runs, name) for name in shown_metrics),
        "folder",
    ]
    # of the clients' personal models, or for runs without such models of the global one
    lines = []
    tail_values = [runs.tail_values(name) for name in shown_metrics]
    printed = {*sorted(range(len(runs)), key=lambda position: marks.get(position) != "*")[:limit]}
    for position, row in enumerate(runs.to_dicts()):
        if position not in printed:
            continue
        row["status"] = describe_end(row)
        values = [*(row[name] for name in columns), *(float(tail[position]) for tail in tail_values), row["folder"]]
        lines.append([marks.get(position, ""), *(format_number(value) for value in values)])
    out.print_table(headers, lines, texts=("algo", "data", "status", "folder"))
    if len(lines) < len(runs):
        out.print(f"and {len(runs) - len(lines):,} more runs: --all prints them, and --out FILE.csv writes all")
