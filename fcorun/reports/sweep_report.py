"""What a sweep leaves behind: results.csv, its pictures, and the best point of each algorithm on the terminal."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table as Shown

from fcorun.experiment.convergence import MORE_ROUNDS_ADVICE, NO_RANDOMNESS
from fcorun.metrics import PERSONAL_PREFIX, structure_metrics
from fcorun.records.formats import frame_csv
from fcorun.records.record import Record
from fcorun.reports.build_table import build_table, drop_superseded, sort_records
from fcorun.reports.grid_edges import find_grid_edges
from fcorun.reports.pictures.sweep_pictures import draw_sweep
from fcorun.reports.run_table import SEED_KEYS, RunTable
from fcorun.reports.seed_bands import describe_band
from fcorun.sections import IDENTITY_SECTIONS
from fcorun.system.files import write_atomically

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
    algos: Sequence[str] = (),
) -> list[Path]:
    """Write results.csv and the pictures of a sweep into ``folder`` and show its best points; the files written.

    ``algos`` come before others and have their looks in this order.
    Records that are not over are listed; those that failed are the caller's to list. Raises UserError as
    ``Table.best``, with results.csv written, and as ``draw_sweep``, with the table shown.
    """
    folder.mkdir(parents=True, exist_ok=True)
    records, aside = drop_superseded(records)
    if aside:
        console.print(escape(aside))
    records = sort_records(records, algos)
    runs = build_table(records, tail_rounds, root=folder)
    written = [folder / "results.csv"]
    write_atomically(written[0], frame_csv(runs.frame))
    if len(runs):
        shown, lines = build_best_table(runs, metric)
        print_full_width(shown, console)
        for line in lines:
            console.print(escape(line))
        written += draw_sweep(
            folder, records, runs, metric, x=x, style=style, algos=algos
        )  # what cannot be drawn has its table
    for row in runs.to_dicts():
        if row["status"] not in ("done", "diverged", "failed"):
            console.print(escape(f"{row['status']}: {row['folder']}: {row['reason'] or 'no reason recorded'}"))
    console.print(escape(f"{', '.join(path.name for path in written)} in {folder}/"))
    return written


def build_best_table(runs: RunTable, metric: str | None) -> tuple[Shown, list[str]]:
    """The best point of each algorithm on each problem (its keys, the tail's median and band over seeds, with how many
    it is tied, how its runs ended), then lines: what the table is of, and what is at the edge of its grid. Raises
    UserError as ``Table.best``."""
    metric = runs.resolve_metric(metric)
    best, frame = runs.best_points(metric), runs.frame
    several = frame["data"].nunique() > 1
    names = ["algo", *(["data"] if several else []), *(key for key in runs.varied_keys if key not in SEED_KEYS)]
    shown = [name for name in structure_metrics(metric) if name in best]
    seeds = sorted(set(best["seeds"]) - {0})
    band, uneven = bool(seeds) and seeds[-1] > 1, len(seeds) > 1
    ends = [status for status in STATUSES if (frame["status"] == status).any()]
    out = Shown(box=None, pad_edge=False, header_style="bold")
    for name in names:
        out.add_column(key_header(runs, name), justify="left" if name in IDENTITY_SECTIONS else "right", no_wrap=True)
    ties = ["tied with"] if best["tied"].map(len).any() else []
    spread = "\nover ".join(describe_band(seeds, runs.seed_kind).split(" over ")) if band else ""
    for name in (metric, *ties, *([spread] if band else []), *shown, *(["seeds"] if uneven else []), *ends):
        out.add_column(metric_header(runs, name), justify="right", no_wrap=True)
    digits = count_distinct_digits(best["metric"])
    for row in best.to_dict("records"):
        ended = Counter(frame["status"][_of(runs, row, metric) if row["algo"] else frame["algo"].isna()])
        cells = [format_number(row[name]) for name in names]
        cells.append(format_number(row["metric"], digits) if row["seeds"] else row["status"])
        cells += [str(len(row["tied"]) or "")] if ties else []
        cells += [_band(row)] if band else []
        cells += [format_number(row[name]) for name in shown] + ([str(row["seeds"])] if uneven else [])
        out.add_row(*(escape(cell) for cell in cells), *(str(ended[end] or "") for end in ends))
    return out, [f"best by {metric}: {tail_caption(runs, (metric, *shown), band)}", *best_point_notes(runs, metric)]


def best_point_notes(runs: RunTable, metric: str) -> list[str]:
    """What is to be known of the best points: which are at the edge of their grid, which had not come to an end, what
    they were not compared with, and where seeds change nothing."""
    lines = [str(edge) for edge in find_grid_edges(runs, metric)]
    if functions := runs.loss_keys(metric):
        lines.append(
            f"points are compared within one {' and '.join(functions)} only: {metric} is another function for each"
        )
    lines += warn_unequal_rounds(runs, metric) + _unsent(runs, metric) + _psi_left_out(runs)
    return list(dict.fromkeys([*lines, *_early(runs), *warn_unfinished(runs, metric), *_undrawn(runs)]))


def _unsent(runs: RunTable, metric: str) -> list[str]:
    """A line on algorithms with own models that send nothing, where they are judged by a shared one."""
    alone = (runs.column("bytes_up") == 0) & (runs.column("final_personal_train_loss") > float("-inf"))
    names = sorted(set(runs.frame["algo"][alone]))
    if not names or metric.startswith(PERSONAL_PREFIX):
        return []
    own = f"{PERSONAL_PREFIX}{metric}"
    cure = f"; metric={own} judges own models" if own in runs.tail_metrics else ""
    return [f"{', '.join(names)}: clients send nothing, so {metric} is that of the model all started from{cure}"]


def _psi_left_out(runs: RunTable) -> list[str]:
    """A line on algorithms that leave psi out, beside others that do not."""
    names = sorted(set(runs.frame["algo"][runs.column("leaves_psi_out") == 1]))
    if not names or len(names) == runs.frame["algo"].nunique():
        return []
    return [f"{', '.join(names)}: psi is left out, so that another problem is solved than by the others"]


def warn_unequal_rounds(runs: RunTable, metric: str) -> list[str]:
    """A line where runs of different length are compared by a metric."""
    lengths = runs.unequal_rounds(metric)
    several = f"{', '.join(map(str, lengths[:-1]))} and {lengths[-1]}" if lengths else ""
    return [f"runs of {several} rounds are compared"] if lengths else []


def warn_unfinished(runs: RunTable, metric: str) -> list[str]:
    """A line on the best points that ended above the optimum, one on baselines whose solution is not certified, and one
    on those that were still falling at the end, if there are any."""
    best = [row for row in runs.best_points(metric).to_dict("records") if row["seeds"]]
    above, falling = runs.column("above"), runs.column("falling") > 0
    several = runs.frame["data"].nunique() > 1

    def told(row: dict[str, Any]) -> str:
        return f"{row['algo']} on {row['data']}" if several else row["algo"]

    far: dict[str, list[float]] = {}
    for row in best:
        far.setdefault(told(row), []).extend(most for most in above[list(row["rows"])] if most > 0)
    apart = [f"{name} {_shares(found)}" for name, found in sorted(far.items()) if found]
    moving = {told(row) for row in best if falling[list(row["rows"])].any()}
    lines = [f"above the optimum's objective: {', '.join(apart)}"] if apart else []
    loose = {told(row) for row in best if (runs.column("certified")[list(row["rows"])] == 0).any()}
    lines += [f"not certified, and no optimum to compare with: {', '.join(sorted(loose))}"] if loose else []
    return (
        [*lines, f"still falling at the end, so {MORE_ROUNDS_ADVICE}: {', '.join(sorted(moving))}"] if moving else lines
    )


def _shares(found: list[float]) -> str:
    """From the least to the most of some shares, in percent.

    >>> _shares([0.026, 0.028, 1.27])
    '2.6 to 130 %'
    """
    ends = dict.fromkeys(f"{float(f'{100 * share:.2g}'):g}" for share in (min(found), max(found)))
    return f"{' to '.join(ends)} %"


def _early(runs: RunTable) -> list[str]:
    """A line where the tail is more than half of a run, so that its way counts and not its end; of the shortest."""
    rounds = runs.column("rounds_done" if "rounds" in runs.varied_keys else "rounds")[runs.has_rounds()]
    least = int(min(rounds, default=0))
    tail, better = min(runs.tail_rounds or 0, least), max(1, least // 5)
    if 2 * tail <= least or better >= tail:
        return []
    return [f"mean over the last {tail} of {least} rounds: the start counts; tail_rounds={better} judges the end"]


def _undrawn(runs: RunTable) -> list[str]:
    """A line on the algorithms of which several seeds were run that change nothing, if there are any."""
    if "seed" not in runs.varied_keys or "data.seed" in runs.varied_keys:  # with which the data change
        return []
    seeds = runs.frame[runs.column("drawn") == 0].groupby("algo", sort=False)["seed"].nunique()
    names = [str(algo) for algo, count in seeds.items() if count > 1]
    return [f"the seed changes nothing for {', '.join(names)}: {NO_RANDOMNESS}"] if names else []


def _of(runs: RunTable, row: dict[str, Any], metric: str) -> Any:
    """Which runs are of the algorithm and the problem of a best point."""
    same = runs.frame["algo"] == row["algo"]
    for key in runs.problem_keys(metric):
        same &= runs.frame[key].isna() if row[key] is None or row[key] != row[key] else runs.frame[key] == row[key]
    return same


def _band(row: dict[str, Any]) -> str:
    """The band over the seeds of a best point."""
    if row["seeds"] < 2:
        return ""
    return "seeds agree" if row["agree"] else f"{row['low']:.4g} to {row['high']:.4g}"


def describe_end(row: dict[str, Any]) -> str:
    """How a run of ``Table.rows`` ended, with what must be known of its end."""
    told = row["status"] + (", falling" if (row["falling"] or 0) > 0 else "")
    told += f", {row['reason']}" if row["status"] == "running" and row["reason"] else ""
    told += f", {100 * row['above']:.2g} % above" if (row["above"] or 0) > 0 else ""
    return told + (", not certified" if row["certified"] is False else "")


def print_full_width(out: Shown, console: Console) -> None:
    """Print a table without cutting a cell: what is wider than the terminal goes over its edge."""
    out.width = Measurement.get(console, console.options.update(max_width=10_000), out).maximum
    console.print(out, soft_wrap=True)


def key_header(runs: RunTable, key: str) -> str:
    """The head of a key's column; that of the section ``objective`` beside the metric is told apart."""
    return f"{key}=" if key in runs.tail_metrics else key.replace(".", ".\n")


def metric_header(runs: RunTable, name: str) -> str:
    """The head of a metric's column: the rounds it is averaged over, and the cutoff where it depends on one."""
    if name not in runs.tail_metrics:
        return name
    text = name + (f"\n>{runs.cutoff:g}" if runs.cutoff is not None and runs.metrics[name].uses_cutoff else "")
    return text + (f"\nlast {runs.tail_rounds}" if runs.tail_rounds else "")


def tail_caption(runs: RunTable, metrics: Iterable[str], band: bool = False) -> str:
    """How the tail averages of these metrics came about: over which rounds, with which cutoff."""
    tail, cutoff = runs.tail_rounds, runs.cutoff
    text = f"mean over the last {tail} rounds" if tail else "mean over each run's own tail_rounds"
    text += ", median over seeds" if band else ""
    if runs.metrics.cutoff_metrics(metrics):
        text += f"; an entry counts above cutoff={cutoff:g}" if cutoff is not None else "; cutoffs differ"
    return text


def format_number(value: Any, digits: int = 4) -> str:
    """A cell of a table on the terminal, a number with so many significant digits."""
    return "" if value is None or value != value else f"{value:.{digits}g}" if isinstance(value, float) else str(value)


def count_distinct_digits(values: Iterable[Any]) -> int:
    """Return how many significant digits tell the numbers of a column apart: four at least, six at most.

    >>> enough_digits([0.5, 0.99931, 0.99934])
    5
    """
    found = [value for value in values if isinstance(value, float) and value == value]
    apart = len({f"{value:.6g}" for value in found})
    return next(digits for digits in (4, 5, 6) if len({f"{value:.{digits}g}" for value in found}) == apart)
