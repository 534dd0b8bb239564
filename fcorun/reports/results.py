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
from fcorun.metrics import structure
from fcorun.records.formats import frame_csv
from fcorun.records.record import Record
from fcorun.reports.collect import table
from fcorun.reports.pictures.draw import draw_sweep
from fcorun.reports.table import SEEDS, Frame, Table
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
) -> list[Path]:
    """Write results.csv and the pictures of a sweep into ``folder`` and show its best points; the files written.

    Records that are not over are listed; those that failed are the caller's to list. Raises UserError as
    ``Table.best``, with results.csv written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    runs = table(records, tail_rounds, root=folder)
    written = [folder / "results.csv"]
    write_whole(written[0], frame_csv(runs.frame))
    lines = best_table(runs, metric) if len(runs) else ()
    if len(runs):
        written += draw_sweep(folder, records, runs, metric, x=x)
    for line in lines:
        print_whole(line, console) if isinstance(line, Shown) else console.print(line)
    for row in runs.rows():
        if row["status"] not in ("done", "diverged", "failed"):
            console.print(escape(f"{row['status']}: {row['folder']}: {row['reason'] or 'no reason recorded'}"))
    console.print(escape(f"{', '.join(path.name for path in written)} in {folder}/"))
    return written


def best_table(runs: Table, metric: str | None) -> tuple[Shown, str]:
    """The best point of each algorithm (its keys, the tail's median and band over seeds, how its runs ended), and what
    the table is of. Raises UserError as ``Table.best``."""
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
        out.add_column(name.replace(".", ".\n"), justify="left" if name in MEANT else "right", no_wrap=True)
    over = "10-90 %\nover seeds" if uneven else f"10-90 % over\n{seeds[0]} seeds" if seeds else ""
    for name in (metric, *([over] if band else []), *shown, *(["seeds"] if uneven else []), *ends):
        out.add_column(head(runs, name), justify="right", no_wrap=True)
    for row in best.to_dict("records"):
        same = (frame["algo"] == row["algo"]) & (frame["data"] == row["data"])
        ended = Counter(frame["status"][same if row["algo"] else frame["algo"].isna()])
        cells = [number(row[name]) for name in names]
        cells.append(number(row["metric"]) if row["seeds"] else row["status"])
        cells += [f"{row['low']:.4g} to {row['high']:.4g}" if row["seeds"] > 1 else ""] if band else []
        cells += [number(row[name]) for name in shown] + ([str(row["seeds"])] if uneven else [])
        out.add_row(*(escape(cell) for cell in cells), *(str(ended[end] or "") for end in ends))
    remarks = _still_falling(runs, best, several) + _undrawn(runs)
    return out, f"best by {metric}: {caption(runs, (metric, *shown), band)}{remarks}"


def _still_falling(runs: Table, best: Frame, several: bool) -> str:
    """A line on the best points whose objective was still falling at the end; empty where there are none."""
    falling = runs.column("falling") > 0
    found = [row for row in best.to_dict("records") if falling[list(row["rows"])].any()]
    names = [f"{row['algo']} on {row['data']}" if several else str(row["algo"]) for row in found]
    return f"\nstill falling at the end, so {ADVICE}: {', '.join(names)}" if names else ""


def _undrawn(runs: Table) -> str:
    """A line on the algorithms of which several seeds were run that change nothing; empty where there are none."""
    if "seed" not in runs.keys:
        return ""
    seeds = runs.frame[runs.column("drawn") == 0].groupby("algo", sort=False)["seed"].nunique()
    names = [str(algo) for algo, count in seeds.items() if count > 1]
    return f"\nthe seed changes nothing for {', '.join(names)}: {UNDRAWN}" if names else ""


def print_whole(out: Shown, console: Console) -> None:
    """Print a table without cutting a cell: what is wider than the terminal goes over its edge."""
    out.width = Measurement.get(console, console.options.update(max_width=10_000), out).maximum
    console.print(out, soft_wrap=True)


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


def number(value: Any) -> str:
    """A cell of a table on the terminal."""
    return "" if value is None or value != value else f"{value:.4g}" if isinstance(value, float) else str(value)
