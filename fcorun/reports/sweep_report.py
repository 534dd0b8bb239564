"""The report of a sweep: results.csv, its pictures, and the table of the best points on the terminal."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table as RichTable

from fcorun.base.config import IDENTITY_SECTIONS
from fcorun.base.metrics import (
    EPSILON,
    IGNORES_PSI,
    NO_RANDOMNESS,
    PERSONAL_PREFIX,
    differ_in_epsilon,
    structure_metrics,
)
from fcorun.base.picture_style import name_picture_style
from fcorun.base.records.formats import frame_csv
from fcorun.base.records.record import Record
from fcorun.base.system.files import write_atomically
from fcorun.reports.build_table import build_table, drop_superseded, sort_records
from fcorun.reports.pictures.problem_view import draw_sweep
from fcorun.reports.run_table import DATA_SEED_KEYS, SEED_KEYS, RunTable, describe_band, find_grid_edges, format_number
from fcorun.reports.unfinished import warn_unfinished

STATUSES = ("done", "diverged", "failed", "interrupted", "running", "unknown")


def write_sweep_report(
    folder: Path,
    records: Sequence[Record],
    *,
    console: Console,
    metric: str | None = None,
    tail_rounds: int | None = None,
    x: str = "rounds",
    style: str = "paper",
    width: float | None = None,
    algos: Sequence[str] = (),
    conditions: Sequence[str] = (),
    pictures: bool = True,
) -> list[Path]:
    """Write results.csv and the ``pictures`` of a sweep into ``folder``, print its best points, and return the files.

    ``algos`` come before other algorithms, and their curve styles are in this order. Points are compared within each
    combination of the ``conditions``. Runs that have not ended are
    printed too. The caller prints failed runs. Raises UserError as ``RunTable.resolve_metric``, after results.csv is
    written, and as ``draw_sweep``, after the table is printed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    records, left_out = drop_superseded(records)
    if left_out:
        console.print(escape(left_out))
    records = sort_records(records, algos)
    runs = build_table(records, tail_rounds, root=folder, conditions=conditions)
    written = [folder / "results.csv"]
    write_atomically(written[0], frame_csv(runs.shown_frame))
    if len(runs):
        table, notes = build_best_table(runs, metric)
        print_full_width(table, console)
        for note in notes:
            console.print(escape(note))
        if pictures:
            picture_style = name_picture_style(style, width)
            written += draw_sweep(folder, records, runs, metric, x=x, style=picture_style, algos=algos)
    for row in runs.to_dicts():
        if row["status"] not in ("done", "diverged", "failed"):
            console.print(escape(f"{row['status']}: {row['folder']}: {row['reason'] or 'no reason recorded'}"))
    console.print(escape(f"{', '.join(path.name for path in written)} in {folder}/"))
    return written


def build_best_table(runs: RunTable, metric: str | None) -> tuple[RichTable, list[str]]:
    """Return the table of the best point of each algorithm on each problem, and notes on it, a line each.

    Columns: the keys of the point, the tail average, the number of points tied with it, the band of the tail average
    over seeds, metrics of structure, the number of seeds, and the statuses of all runs of the algorithm. Raises
    UserError as ``RunTable.resolve_metric``.
    """
    metric = runs.resolve_metric(metric)
    best = runs.best_points(metric)
    frame = runs.frame
    keys = [key for key in runs.varied_keys if key not in SEED_KEYS]
    keys = ["algo", *(["data"] if frame["data"].nunique() > 1 else []), *keys]
    structure = [name for name in structure_metrics(metric) if name in best]
    statuses = [status for status in STATUSES if (frame["status"] == status).any()]
    seeds = sorted(set(best["seeds"]) - {0})
    has_band = bool(seeds) and seeds[-1] > 1
    has_seed_counts = len(seeds) > 1
    has_ties = best["tied"].map(len).any()

    table = RichTable(box=None, pad_edge=False, header_style="bold")
    for key in keys:
        justify = "left" if key in IDENTITY_SECTIONS else "right"
        table.add_column(key_header(runs, key), justify=justify, no_wrap=True)
    columns = [metric]
    if has_ties:
        columns.append("tied with")
    if has_band:
        columns.append("\nover ".join(describe_band(seeds, runs.seed_kind).split(" over ")))
    columns += structure
    if has_seed_counts:
        columns.append("seeds")
    for name in (*columns, *statuses):
        table.add_column(metric_header(runs, name), justify="right", no_wrap=True)

    digits = count_distinct_digits(best["metric"])
    groups = frame.groupby(["algo", *runs.problem_keys(metric)], sort=False, dropna=False)["status"]
    for row, (_, group) in zip(runs.name_null_conditions(best).to_dict("records"), groups, strict=True):
        count = Counter(group)
        cells = [format_number(row[key]) for key in keys]
        cells.append(format_number(row["metric"], digits) if row["seeds"] else row["status"])
        if has_ties:
            cells.append(str(len(row["tied"]) or ""))
        if has_band and row["seeds"] < 2:
            cells.append("")
        elif has_band:
            cells.append("seeds agree" if row["agree"] else f"{row['low']:.4g} to {row['high']:.4g}")
        cells += [format_number(row[name]) for name in structure]
        if has_seed_counts:
            cells.append(str(row["seeds"]))
        table.add_row(*(escape(cell) for cell in cells), *(str(count[status] or "") for status in statuses))
    caption = tail_caption(runs, (metric, *structure), has_band)
    return table, [f"best by {metric}: {caption}", *best_point_notes(runs, metric)]


def best_point_notes(runs: RunTable, metric: str) -> list[str]:
    """Return notes for readers of the best points, a line each.

    The lines are about edges of the grid, points within the noise of the best one or with fewer runs, points that are
    not compared, runs that had not converged, and seeds that change nothing.
    """
    lines = [str(edge) for edge in find_grid_edges(runs, metric)]
    if runs.renamed_data:
        names = ", ".join(runs.renamed_data)
        lines.append(f"{names}: the rows or the code of these data changed between runs, which do not compare: "
                     "force=true computes a command's runs anew, on today's rows")  # fmt: skip
    lines += _warn_other_points(runs, metric)
    frame = runs.frame
    if conditions := [key for key in runs.condition_keys if key in runs.conditions]:
        lines.append(f"{', '.join(conditions)}: conditions, within each of which the best is chosen, never among them")
    if len(runs) > 1 and np.isfinite(runs.column(f"final_{EPSILON}")).any():
        lines.append("epsilon counts a run alone: a choice among runs on the same rows costs what they cost together")
    if function_keys := runs.function_keys(metric):
        lines.append(
            f"points are compared within one {' and '.join(function_keys)} only: {metric} is another function for each"
        )
    ended = frame[frame["status"].isin(("done", "diverged"))]
    diverged = [algo for algo, group in ended.groupby("algo", sort=False) if (group["status"] == "diverged").all()]
    if diverged:
        rates = [key for key in runs.varied_keys if key.startswith("algo.") and key.endswith("_lr")]
        lines.append(f"{', '.join(diverged)}: all runs diverged: try smaller {' or '.join(rates) or 'rates'}")
    lines += warn_unequal_rounds(runs, metric)
    lines += _warn_early_ends(runs, metric)
    lines += _warn_untrained_shared_model(runs, metric)
    ignoring = sorted(set(frame["algo"][runs.column("ignores_regularizer") == 1]))
    if ignoring:
        others = "the other algorithms minimize F + psi"
        if len(ignoring) == frame["algo"].nunique():
            others = "no solution minimizes F + psi"
        lines.append(f"algo={','.join(ignoring)} {IGNORES_PSI}: {others}")
    lines += warn_unfinished(runs, metric)
    lines += warn_unmeasured(runs, metric)
    lines += _warn_unresolved_gaps(runs, metric)
    if "seed" in runs.varied_keys and not any(key in runs.varied_keys for key in DATA_SEED_KEYS):
        seeds = frame[runs.column("drawn") == 0].groupby("algo", sort=False)["seed"].nunique()
        algos = [str(algo) for algo, count in seeds.items() if count > 1]
        if algos:
            lines.append(f"the seed changes nothing for {', '.join(algos)}: {NO_RANDOMNESS}")
    return list(dict.fromkeys(lines))


def _warn_other_points(runs: RunTable, metric: str) -> list[str]:
    """Return lines on points that noise may have kept from being best, and on points with too few replicates for it."""
    groups = runs.fold_seeds(metric).groupby(["algo", *runs.problem_keys(metric)], sort=False, dropna=False)
    within_band = []
    with_fewer = []
    best_points = runs.best_points(metric).to_dict("records")
    problems = runs.tell_points_apart(best_points, metric)
    for best, problem, (_, points) in zip(best_points, problems, groups, strict=True):
        done = points[points["status"] == "done"]
        best_or_tied = {tuple(rows) for rows in (best["rows"], *best["tied"])}
        is_within = ~done["rows"].map(tuple).isin(best_or_tied) & done["metric"].between(best["low"], best["high"])
        if is_within.any():
            within_band.append(f"{is_within.sum()} of {best['algo']}{problem}")
        has_fewer = done["done"] < best["done"]
        if has_fewer.any():
            with_fewer.append(f"{has_fewer.sum()} of {best['algo']}{problem}")
    lines = []
    if within_band:
        lines.append("other points with medians within the best one's band over seeds, so that noise may decide: "
                     + ", ".join(within_band))  # fmt: skip
    if with_fewer:
        lines.append(f"points with fewer runs than the best one, among which none is chosen: {', '.join(with_fewer)}")
    return lines


def warn_unmeasured(runs: RunTable, metric: str) -> list[str]:
    """Return a line on the data whose runs are done and did not measure a metric, with one that all data have."""
    done = runs.frame[runs.frame["status"] == "done"]
    measured = {name: np.isfinite(runs.tail_values(name)) for name in runs.tail_metrics}
    without = []
    common = set(measured)
    for data, group in done.groupby("data", sort=False):
        names = {name for name, is_finite in measured.items() if is_finite[group.index].any()}
        common &= names
        if names and metric not in names:
            without.append(str(data))
    if not without:
        return []
    other = runs.metrics.default_metric(name for name in runs.tail_metrics if name in common)
    advice = f": metric={other} compares all" if other in common and not runs.function_keys(other) else ""
    return [f"{', '.join(without)}: {metric} was not measured, so that nothing is compared there{advice}"]


def _warn_unresolved_gaps(runs: RunTable, metric: str) -> list[str]:
    """Return a line on the algorithms whose best points have a gap that is rounding of the objective."""
    resolution = runs.resolution(metric)
    unresolved: dict[str, float] = {}
    for row in runs.best_points(metric).to_dict("records"):
        least = resolution[row["rows"]].max(initial=0)
        if row["seeds"] and abs(row["metric"]) < least:
            unresolved[row["algo"]] = max(least, unresolved.get(row["algo"], 0.0))
    if not unresolved:
        return []
    least = max(unresolved.values())
    return [f"{metric} below {least:.1g} is rounding of the objective, which ranks nothing: {', '.join(unresolved)}"]


def _warn_untrained_shared_model(runs: RunTable, metric: str) -> list[str]:
    """Return a line on algorithms with personal models that send nothing, if ``metric`` is of the shared model."""
    personal_only = (runs.column("bytes_up") == 0) & (runs.column("tail_personal_train_loss") > float("-inf"))
    algos = sorted(set(runs.frame["algo"][personal_only]))
    if not algos or metric.startswith(PERSONAL_PREFIX):
        return []
    personal_metric = f"{PERSONAL_PREFIX}{metric}"
    advice = f"; metric={personal_metric} judges personal models" if personal_metric in runs.tail_metrics else ""
    return [f"{', '.join(algos)}: clients send nothing, so {metric} is measured on the initial model{advice}"]


def _warn_early_ends(runs: RunTable, metric: str) -> list[str]:
    """Return a line if runs ended at their targets after different numbers of rounds, which a metric does not rank."""
    column = "rounds_done" if "rounds_done" in runs.frame else "rounds"
    rounds = runs.frame[column][runs.has_rounds()]
    if not runs.has_stopped or rounds.nunique() < 2:
        return []
    return [
        f"runs ended at their targets after {rounds.min():,} to {rounds.max():,} rounds: {metric} compares where they "
        "ended, not how soon; the rounds of each are in results.csv"
    ]


def warn_unequal_rounds(runs: RunTable, metric: str) -> list[str]:
    """Return lines if runs of other numbers of rounds, other privacy or rounds of unlike kinds compare by a metric."""
    lines = []
    private_runs = runs.frame.assign(epsilon=runs.column(f"final_{EPSILON}"))
    for _, compared in private_runs.groupby(runs.problem_keys(metric), sort=False, dropna=False):
        if differ_in_epsilon(compared["epsilon"]):
            lines.append(f"private runs of epsilon {compared['epsilon'].min():.3g} to {compared['epsilon'].max():.3g} "
                         "are compared, and less privacy fits better: give all one privacy.epsilon")  # fmt: skip
    if rounds := runs.unequal_rounds(metric):
        lines.append(f"runs of {', '.join(map(str, rounds[:-1]))} and {rounds[-1]} rounds are compared")
    if algos := runs.unlike_rounds(metric):
        lines.append(f"{describe_unlike_rounds(algos)}; x=bytes and x=simulated_seconds draw comparable curves")
    return lines


def describe_unlike_rounds(algos: Sequence[str]) -> str:
    """Return a sentence on algorithms whose rounds are single uploads, beside others with rounds of a cohort."""
    return f"a round of {', '.join(algos)} is one upload, that of others is of a cohort: rounds do not compare"


def describe_end(row: dict[str, Any]) -> str:
    """Return the status of a row of ``RunTable.to_dicts``, with notes on convergence and absent sites."""
    text = row["status"]
    if (row["falling"] or 0) > 0:
        text += ", falling"
    if isinstance(row.get("away"), str):
        text += ", sites away"
    if row["status"] == "running" and row["reason"]:
        text += f", {row['reason']}"
    if (row["above"] or 0) > 0:
        text += f", {100 * row['above']:.2g} % above"
    if row["certified"] is False:
        text += ", not certified"
    return text


def print_full_width(table: RichTable, console: Console) -> None:
    """Print a table without cutting cells: a table that is wider than the terminal goes over its edge."""
    table.width = Measurement.get(console, console.options.update(max_width=10_000), table).maximum
    console.print(table, soft_wrap=True)


def key_header(runs: RunTable, key: str) -> str:
    """Return the header of a key's column; the section ``objective`` is ``objective=``, unlike the metric."""
    return f"{key}=" if key in runs.tail_metrics else key.replace(".", ".\n")


def metric_header(runs: RunTable, name: str) -> str:
    """Return the header of a metric's column, with the rounds of its average, and its cutoff if it depends on one."""
    if name not in runs.tail_metrics:
        return name
    header = name
    if runs.cutoff is not None and runs.metrics[name].uses_cutoff:
        header += f"\n>{runs.cutoff:g}"
    if runs.cap is not None:
        header += "\nat the cap"
    elif runs.tail_rounds:
        header += f"\nlast {runs.tail_rounds}"
    return header


def best_marks_caption(runs: RunTable, metric: str, metrics: Iterable[str], *, has_ties: bool) -> str:
    """Return the caption of a table of runs by a metric: the marks of best points, and the tail averages of metrics."""
    n_problems = len(runs.frame[runs.problem_keys(metric)].drop_duplicates())
    scope = "algorithm" if n_problems < 2 else "algorithm on each problem"
    ties = ", = those tied with it" if has_ties else ""
    return f"* best point of each {scope} by {metric}{ties}; {tail_caption(runs, metrics)}"


def tail_caption(runs: RunTable, metrics: Iterable[str], has_band: bool = False) -> str:
    """Return the definition of these metrics' tail averages: over which rounds, with which cutoff."""
    tail, cutoff = runs.tail_rounds, runs.cutoff
    text = f"mean over the last {tail} rounds" if tail else "mean over each run's own tail_rounds"
    if runs.cap is not None:
        text = f"at the last evaluation at which all points of a method had sent up at most {runs.cap:,.0f} bytes"
    if runs.has_stopped:
        text += " (of runs that met a target, the value at their end)"
    if has_band:
        text += ", median over seeds"
    if runs.metrics.cutoff_metrics(metrics):
        text += f"; an entry counts above cutoff={cutoff:g}" if cutoff is not None else "; cutoffs differ"
    return text


def count_distinct_digits(values: Iterable[Any]) -> int:
    """Return how many significant digits tell the numbers of a column apart: four at least, six at most.

    >>> count_distinct_digits([0.5, 0.99931, 0.99934])
    5
    """
    numbers = [value for value in values if isinstance(value, float) and value == value]
    distinct = len({f"{value:.6g}" for value in numbers})
    for digits in (4, 5):
        if len({f"{value:.{digits}g}" for value in numbers}) == distinct:
            return digits
    return 6
