"""What a sweep leaves behind: results.csv, its pictures, and the best point of each algorithm on the terminal."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table as Shown

from fcorun.experiment.ending import ADVICE, UNDRAWN
from fcorun.metrics import PERSONAL, structure
from fcorun.records.formats import frame_csv
from fcorun.records.record import Record
from fcorun.reports.collect import latest, ordered, table
from fcorun.reports.edges import edges
from fcorun.reports.pictures.draw import draw_sweep
from fcorun.reports.spread import over
from fcorun.reports.table import SEEDS, Table
from fcorun.sections import MEANT
from fcorun.system.files import write_whole

STATUSES = ("done", "diverged", "failed", "interrupted", "running", "unknown")


def report(
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
    records, aside = latest(records)
    if aside:
        console.print(escape(aside))
    records = ordered(records, algos)
    runs = table(records, tail_rounds, root=folder)
    written = [folder / "results.csv"]
    write_whole(written[0], frame_csv(runs.frame))
    if len(runs):
        shown, lines = best_table(runs, metric)
        print_whole(shown, console)
        for line in lines:
            console.print(escape(line))
        written += draw_sweep(
            folder, records, runs, metric, x=x, style=style, algos=algos
        )  # what cannot be drawn has its table
    for row in runs.rows():
        if row["status"] not in ("done", "diverged", "failed"):
            console.print(escape(f"{row['status']}: {row['folder']}: {row['reason'] or 'no reason recorded'}"))
    console.print(escape(f"{', '.join(path.name for path in written)} in {folder}/"))
    return written


def best_table(runs: Table, metric: str | None) -> tuple[Shown, list[str]]:
    """The best point of each algorithm on each problem (its keys, the tail's median and band over seeds, with how many
    it is tied, how its runs ended), then lines: what the table is of, and what is at the edge of its grid. Raises
    UserError as ``Table.best``."""
    metric = runs.chosen(metric)
    best, frame = runs.best(metric), runs.frame
    several = frame["data"].nunique() > 1
    names = ["algo", *(["data"] if several else []), *(key for key in runs.keys if key not in SEEDS)]
    shown = [name for name in structure(metric) if name in best]
    seeds = sorted(set(best["seeds"]) - {0})
    band, uneven = bool(seeds) and seeds[-1] > 1, len(seeds) > 1
    ends = [status for status in STATUSES if (frame["status"] == status).any()]
    out = Shown(box=None, pad_edge=False, header_style="bold")
    for name in names:
        out.add_column(axis(runs, name), justify="left" if name in MEANT else "right", no_wrap=True)
    ties = ["tied with"] if best["tied"].map(len).any() else []
    spread = "\nover ".join(over(seeds, runs.seed_kind).split(" over ")) if band else ""
    for name in (metric, *ties, *([spread] if band else []), *shown, *(["seeds"] if uneven else []), *ends):
        out.add_column(head(runs, name), justify="right", no_wrap=True)
    digits = enough_digits(best["metric"])
    for row in best.to_dict("records"):
        ended = Counter(frame["status"][_of(runs, row, metric) if row["algo"] else frame["algo"].isna()])
        cells = [number(row[name]) for name in names]
        cells.append(number(row["metric"], digits) if row["seeds"] else row["status"])
        cells += [str(len(row["tied"]) or "")] if ties else []
        cells += [_band(row)] if band else []
        cells += [number(row[name]) for name in shown] + ([str(row["seeds"])] if uneven else [])
        out.add_row(*(escape(cell) for cell in cells), *(str(ended[end] or "") for end in ends))
    return out, [f"best by {metric}: {caption(runs, (metric, *shown), band)}", *remarks(runs, metric)]


def remarks(runs: Table, metric: str) -> list[str]:
    """What is to be known of the best points: which are at the edge of their grid, which had not come to an end, what
    they were not compared with, and where seeds change nothing."""
    lines = [str(edge) for edge in edges(runs, metric)]
    if functions := runs.functions(metric):
        lines.append(
            f"points are compared within one {' and '.join(functions)} only: {metric} is another function for each"
        )
    lines += unlike(runs, metric) + _unsent(runs, metric) + _psi_left_out(runs)
    return list(dict.fromkeys([*lines, *_early(runs), *unfinished(runs, metric), *_undrawn(runs)]))


def _unsent(runs: Table, metric: str) -> list[str]:
    """A line on algorithms with own models that send nothing, where they are judged by a shared one."""
    alone = (runs.column("bytes_up") == 0) & (runs.column("final_personal_train_loss") > float("-inf"))
    names = sorted(set(runs.frame["algo"][alone]))
    if not names or metric.startswith(PERSONAL):
        return []
    own = f"{PERSONAL}{metric}"
    cure = f"; metric={own} judges own models" if own in runs.tails else ""
    return [f"{', '.join(names)}: clients send nothing, so {metric} is that of the model all started from{cure}"]


def _psi_left_out(runs: Table) -> list[str]:
    """A line on algorithms that leave psi out, beside others that do not."""
    names = sorted(set(runs.frame["algo"][runs.column("leaves_psi_out") == 1]))
    if not names or len(names) == runs.frame["algo"].nunique():
        return []
    return [f"{', '.join(names)}: psi is left out, so that another problem is solved than by the others"]


def unlike(runs: Table, metric: str) -> list[str]:
    """A line where runs of different length are compared by a metric."""
    lengths = runs.lengths(metric)
    several = f"{', '.join(map(str, lengths[:-1]))} and {lengths[-1]}" if lengths else ""
    return [f"runs of {several} rounds are compared"] if lengths else []


def unfinished(runs: Table, metric: str) -> list[str]:
    """A line on the best points that ended above the optimum, one on baselines whose solution is not certified, and one
    on those that were still falling at the end, if there are any."""
    best = [row for row in runs.best(metric).to_dict("records") if row["seeds"]]
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
    return [*lines, f"still falling at the end, so {ADVICE}: {', '.join(sorted(moving))}"] if moving else lines


def _shares(found: list[float]) -> str:
    """From the least to the most of some shares, in percent.

    >>> _shares([0.026, 0.028, 1.27])
    '2.6 to 130 %'
    """
    ends = dict.fromkeys(f"{float(f'{100 * share:.2g}'):g}" for share in (min(found), max(found)))
    return f"{' to '.join(ends)} %"


def _early(runs: Table) -> list[str]:
    """A line where the tail is more than half of a run, so that its way counts and not its end; of the shortest."""
    rounds = runs.column("rounds_done" if "rounds" in runs.keys else "rounds")[runs.ran()]
    least = int(min(rounds, default=0))
    tail, better = min(runs.tail_rounds or 0, least), max(1, least // 5)
    if 2 * tail <= least or better >= tail:
        return []
    return [f"mean over the last {tail} of {least} rounds: the start counts; tail_rounds={better} judges the end"]


def _undrawn(runs: Table) -> list[str]:
    """A line on the algorithms of which several seeds were run that change nothing, if there are any."""
    if "seed" not in runs.keys or "data.seed" in runs.keys:  # with which the data change
        return []
    seeds = runs.frame[runs.column("drawn") == 0].groupby("algo", sort=False)["seed"].nunique()
    names = [str(algo) for algo, count in seeds.items() if count > 1]
    return [f"the seed changes nothing for {', '.join(names)}: {UNDRAWN}"] if names else []


def _of(runs: Table, row: dict[str, Any], metric: str) -> Any:
    """Which runs are of the algorithm and the problem of a best point."""
    same = runs.frame["algo"] == row["algo"]
    for key in runs.apart(metric):
        same &= runs.frame[key].isna() if row[key] is None or row[key] != row[key] else runs.frame[key] == row[key]
    return same


def _band(row: dict[str, Any]) -> str:
    """The band over the seeds of a best point."""
    if row["seeds"] < 2:
        return ""
    return "seeds agree" if row["agree"] else f"{row['low']:.4g} to {row['high']:.4g}"


def ended(row: dict[str, Any]) -> str:
    """How a run of ``Table.rows`` ended, with what must be known of its end."""
    told = row["status"] + (", falling" if (row["falling"] or 0) > 0 else "")
    told += f", {row['reason']}" if row["status"] == "running" and row["reason"] else ""
    told += f", {100 * row['above']:.2g} % above" if (row["above"] or 0) > 0 else ""
    return told + (", not certified" if row["certified"] is False else "")


def print_whole(out: Shown, console: Console) -> None:
    """Print a table without cutting a cell: what is wider than the terminal goes over its edge."""
    out.width = Measurement.get(console, console.options.update(max_width=10_000), out).maximum
    console.print(out, soft_wrap=True)


def axis(runs: Table, key: str) -> str:
    """The head of a key's column; that of the section ``objective`` beside the metric is told apart."""
    return f"{key}=" if key in runs.tails else key.replace(".", ".\n")


def head(runs: Table, name: str) -> str:
    """The head of a metric's column: the rounds it is averaged over, and the cutoff where it depends on one."""
    if name not in runs.tails:
        return name
    text = name + (f"\n>{runs.cutoff:g}" if runs.cutoff is not None and runs.metrics[name].cut else "")
    return text + (f"\nlast {runs.tail_rounds}" if runs.tail_rounds else "")


def caption(runs: Table, metrics: Iterable[str], band: bool = False) -> str:
    """How the tail averages of these metrics came about: over which rounds, with which cutoff."""
    tail, cutoff = runs.tail_rounds, runs.cutoff
    text = f"mean over the last {tail} rounds" if tail else "mean over each run's own tail_rounds"
    text += ", median over seeds" if band else ""
    if runs.metrics.cut(metrics):
        text += f"; an entry counts above cutoff={cutoff:g}" if cutoff is not None else "; cutoffs differ"
    return text


def number(value: Any, digits: int = 4) -> str:
    """A cell of a table on the terminal, a number with so many significant digits."""
    return "" if value is None or value != value else f"{value:.{digits}g}" if isinstance(value, float) else str(value)


def enough_digits(values: Iterable[Any]) -> int:
    """Return how many significant digits tell the numbers of a column apart: four at least, six at most.

    >>> enough_digits([0.5, 0.99931, 0.99934])
    5
    """
    found = [value for value in values if isinstance(value, float) and value == value]
    apart = len({f"{value:.6g}" for value in found})
    return next(digits for digits in (4, 5, 6) if len({f"{value:.{digits}g}" for value in found}) == apart)
