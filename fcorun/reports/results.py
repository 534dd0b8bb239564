"""What a sweep leaves behind: results.csv, its pictures, and the best point of each algorithm on the terminal."""

import io
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from fcorun.metrics import PERSONAL
from fcorun.records.record import Record
from fcorun.reports.pictures.sweep import KINDS, draw_sweep
from fcorun.reports.table import (
    NAMED,
    SEEDS,
    STRUCTURE,
    Frame,
    best_points,
    chosen,
    keys,
    points,
    structure,
    table,
    values_of,
)
from fcorun.system.files import write_whole

STATUSES = ("done", "diverged", "failed", "interrupted", "running", "unknown")

__all__ = ["best_points", "points", "report", "show", "table"]


def show(frame: Frame, metric: str | None, console: Console) -> None:
    """Print ``best_table``. Raises UserError as ``best_points``."""
    out, text = best_table(frame, metric)
    print_whole(out, console)
    console.print(text)


def best_table(frame: Frame, metric: str | None) -> tuple[Table, str]:
    """The best point of each algorithm (its keys, the tail's median and band over seeds, how its runs ended), and what
    the table is of. Raises UserError as ``best_points``."""
    metric = chosen(frame, metric)
    best = best_points(frame, metric)
    several = frame["data"].nunique() > 1
    names = ["algo", *(["data"] if several else []), *(key for key in keys(frame) if key not in SEEDS)]
    shown = [name for name in structure(metric) if name in best]
    seeds = sorted(set(best["seeds"]) - {0})
    band = bool(seeds) and seeds[-1] > 1
    uneven = len(seeds) > 1
    ends = [status for status in STATUSES if (frame["status"] == status).any()]
    out = Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        out.add_column(name.replace(".", ".\n"), justify="left" if name in NAMED else "right", no_wrap=True)
    for name in (
        metric,
        *(["10-90 %\nover seeds" if uneven else f"10-90 % over\n{seeds[0]} seeds"] if band else []),
        *shown,
        *(["seeds"] if uneven else []),
        *ends,
    ):
        out.add_column(head(frame, name), justify="right", no_wrap=True)
    for row in best.to_dict("records"):
        same = (frame["algo"] == row["algo"]) & (frame["data"] == row["data"])
        runs = Counter(frame["status"][same if row["algo"] else frame["algo"].isna()])
        cells = [number(row[name]) for name in names]
        cells.append(number(row["metric"]) if row["seeds"] else row["status"])
        cells += [f"{row['low']:.4g} to {row['high']:.4g}" if row["seeds"] > 1 else ""] if band else []
        cells += [number(row[name]) for name in shown] + ([str(row["seeds"])] if uneven else [])
        out.add_row(*(escape(cell) for cell in cells), *(str(runs[end] or "") for end in ends))
    return out, f"best by {metric}: {caption(frame, (metric, *shown), band)}"


def print_whole(out: Table, console: Console) -> None:
    """Print a table without cutting a cell: what is wider than the terminal goes over its edge."""
    out.width = Measurement.get(console, console.options.update(max_width=10_000), out).maximum
    console.print(out, soft_wrap=True)


def head(frame: Frame, name: str) -> str:
    """The head of a metric's column: the rounds it is averaged over, and the cutoff where it depends on one."""
    if f"tail_{name}" not in frame:
        return name
    tail, cutoff = frame.attrs.get("tail_rounds"), frame.attrs.get("cutoff")
    text = name + (f"\n>{cutoff:g}" if cutoff is not None and _cut([name]) else "")
    return text + (f"\nlast {tail}" if tail else "")


def caption(frame: Frame, metrics: Iterable[str], band: bool = False) -> str:
    """How the tail averages of these metrics came about: over which rounds, with which cutoff."""
    tail, cutoff = frame.attrs.get("tail_rounds"), frame.attrs.get("cutoff")
    text = f"mean over the last {tail} rounds" if tail else "mean over each run's own tail_rounds"
    text += ", median over seeds" if band else ""
    if _cut(metrics):
        text += f"; an entry counts above cutoff={cutoff:g}" if cutoff is not None else "; cutoffs differ"
    return text


def report(
    folder: Path,
    records: Sequence[Record],
    metric: str | None,
    tail_rounds: int | None,
    console: Console,
    submit: Callable[..., Any] | None = None,
    x: str = "rounds",
) -> list[Path]:
    """Write results.csv and the pictures of a sweep into ``folder`` and show its best points; the files written.

    Records that are not over are listed; those that failed are the caller's to list. Raises UserError as
    ``best_points``, with results.csv written. ``submit`` has functions called elsewhere, like that of
    concurrent.futures; this process then does without pandas and matplotlib.
    """
    folder.mkdir(parents=True, exist_ok=True)
    asked = (folder, records, metric, tail_rounds, x)
    if submit is None:
        parts = [_part(*asked, ("results", *KINDS))]
    else:
        parts = [future.result() for future in [submit(_part, *asked, (kind,)) for kind in ("results", *KINDS)]]
    written = [path for paths, _ in parts for path in paths]
    for line in [line for _, lines in parts for line in lines]:
        print_whole(line, console) if isinstance(line, Table) else console.print(line)
    console.print(escape(f"{', '.join(path.name for path in written)} in {folder}/"))
    return written


def _part(
    folder: Path, records: Sequence[Record], metric: str | None, tail_rounds: int | None, x: str, kinds: Sequence[str]
) -> tuple[list[Path], list[Table | str]]:
    """Write these kinds of files of a report; they, and what is to be shown with "results"."""
    frame = table(records, tail_rounds, root=folder)
    written, lines = [], []
    if "results" in kinds:
        written.append(folder / "results.csv")
        write_whole(written[0], csv_bytes(frame))
        lines += best_table(frame, metric) if len(frame) else []
        for row in frame[~frame["status"].isin(["done", "diverged", "failed"])].to_dict("records"):
            lines.append(escape(f"{row['status']}: {row['folder']}: {row['reason'] or 'no reason recorded'}"))
    if len(frame):
        written += draw_sweep(folder, records, frame, metric, kinds=[kind for kind in KINDS if kind in kinds], x=x)
    return written, lines


def _cut(metrics: Iterable[str]) -> bool:
    """Whether any of these metrics depends on the cutoff."""
    return bool({"f1", "precision", "recall", *STRUCTURE, *structure(PERSONAL)} & set(metrics))


def csv_bytes(frame: Frame) -> bytes:
    """A table as CSV, numbers with all their digits."""
    return frame.to_csv(index=False, lineterminator="\n").encode()


def parquet_bytes(frame: Frame) -> bytes:
    """A table as Parquet; columns of mixed types become text."""
    frame, buffer = frame.copy(), io.BytesIO()
    for name in (name for name in frame if frame[name].dtype == object):
        frame[name] = [None if value is None else str(value) for value in values_of(frame[name])]
    frame.to_parquet(buffer, index=False)
    return buffer.getvalue()


def number(value: Any) -> str:
    """A cell of a table on the terminal."""
    return "" if value is None or value != value else f"{value:.4g}" if isinstance(value, float) else str(value)
