"""fcorun results: a table of records."""

from collections.abc import Sequence
from statistics import median

from fcorun.base.metrics import structure_metrics
from fcorun.base.records.formats import frame_csv, frame_parquet
from fcorun.base.records.record import Record
from fcorun.base.records.sweep_settings import load_settings
from fcorun.base.system.files import write_atomically
from fcorun.interface.cli.commands.common_command import (
    CommandParser,
    check_output_file,
    load_records_in,
    select_latest,
    warn_of_formulas,
)
from fcorun.interface.cli.terminal import Terminal
from fcorun.reports.build_table import build_table, sort_records
from fcorun.reports.latex import format_best_latex
from fcorun.reports.paired_tests import MIN_SEEDS, PairedDifferences, compare_pairs, smallest_p_value
from fcorun.reports.run_table import DATA_SEED_KEYS, RunTable, column_values
from fcorun.reports.sweep_report import (
    best_marks_caption,
    best_point_notes,
    describe_end,
    format_number,
    key_header,
    metric_header,
    warn_unequal_rounds,
)

_MAX_PRINTED = 200  # runs of a table
_WRITERS = {
    ".csv": lambda runs, metric: frame_csv(runs.frame),
    ".parquet": lambda runs, metric: frame_parquet(runs.frame),
    ".tex": lambda runs, metric: format_best_latex(runs, metric).encode(),
}


def run(argv: Sequence[str]) -> int:
    """Show the records in and under some folders as a table for each data set and condition, with a row for each run,
    and write the table to a file if --out is given."""
    parser = CommandParser("results", run.__doc__)
    parser.add_metric_options()
    parser.add_output_options("also write the table (.csv, .parquet), or the best points (.tex)")
    parser.add_argument("--all", action="store_true", help=f"print more than {_MAX_PRINTED} runs of a table")
    parser.add_argument("--paired", action="store_true", help="also test whether algorithms differ, seed by seed")
    arguments = parser.parse_args(argv)
    check_output_file(arguments.out, list(_WRITERS), arguments.force)
    out = Terminal()
    root = arguments.folders[0] if len(arguments.folders) == 1 else None
    settings = load_settings(*arguments.folders)
    settings = settings.with_overrides(metric=arguments.metric, tail_rounds=arguments.tail_rounds)
    records = sort_records(select_latest(load_records_in(arguments.folders), out), settings.algos)
    runs = build_table(records, settings.tail_rounds, root=root, conditions=settings.conditions)
    metric = runs.resolve_metric(settings.metric)
    records_by_condition: dict[tuple, list[Record]] = {}
    columns = [column_values(runs.frame[key]) for key in runs.condition_keys]
    for record, *values in zip(records, *columns, strict=True):
        records_by_condition.setdefault(tuple(values), []).append(record)
    for values, part_records in records_by_condition.items():
        if len(records_by_condition) > 1:
            pairs = zip(runs.condition_keys, values, strict=True)
            out.print(" ".join(f"{key}={value}" for key, value in pairs if value is not None))
        part = runs
        if len(records_by_condition) > 1:
            part = build_table(part_records, settings.tail_rounds, root=root)
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
        for line in best_point_notes(part, part_metric):
            out.print(line)
    if arguments.paired:
        _print_paired_tests(runs, metric, compare_pairs(runs, metric), out)
        for key in [key for key in DATA_SEED_KEYS if runs.reads_files and key in runs.frame]:
            out.print(f"{key} divides the same rows again: such repetitions are not independent, and p is too small")
    if arguments.out is not None:
        table = _WRITERS[arguments.out.suffix](runs, metric)
        write_atomically(arguments.out, table)
        for line in warn_of_formulas([arguments.out]):
            out.print(line)
        if arguments.out.suffix == ".tex":
            content = "the best points"
        else:
            content = f"{len(runs)} runs, {len(runs.frame.columns)} columns"
        out.print(f"{arguments.out}: {content}")
    return 0


def _print_paired_tests(runs: RunTable, metric: str, pairs: Sequence[PairedDifferences], out: Terminal) -> None:
    """Print a row for each pair of algorithms: the seeds, the median difference, and the p-values."""
    if not pairs:
        out.print("paired: no two algorithms have finished on the same data")
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
            cells += ["the seeds change nothing", ""]
        else:
            cells += ["too few seeds", ""]
        lines.append(cells)
    out.print_table([*texts, "seeds", "median", "first better", "p", "p, Holm"], lines, texts)
    out.print(
        "differences by seed at the best point of each algorithm; p: two-sided sign-flip test of the mean, from "
        f"{MIN_SEEDS} seeds on; Holm: corrected for all pairs; the same seeds chose the best points, which favours "
        "algorithms with more points"
    )
    if tested := [len(pair.differences) for pair in pairs if pair.p_value is not None]:
        count = f"{len(tested)} tested pair{'s' if len(tested) > 1 else ''}"
        least = format_number(smallest_p_value(tested))
        out.print(f"with {max(tested)} seeds and {count}, p by Holm cannot be below {least}")
    for line in warn_unequal_rounds(runs, metric):
        out.print(line)


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
