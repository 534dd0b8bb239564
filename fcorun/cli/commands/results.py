"""fcorun results: a table of records."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table as Shown

from fcorun.cli.commands.common import Parser, console, records_in
from fcorun.errors import UserError
from fcorun.metrics import structure
from fcorun.records.formats import frame_csv, frame_parquet
from fcorun.records.record import Record
from fcorun.records.sweeps import kept
from fcorun.reports.collect import ordered, table
from fcorun.reports.results import caption, head, number, print_whole, remarks
from fcorun.reports.table import Table
from fcorun.system.files import write_whole

_WRITERS = {".csv": frame_csv, ".parquet": frame_parquet}


def run(argv: Sequence[str]) -> int:
    """Show the records in and under some folders as a table for each data set, a row a run, and write them to a file if
    asked."""
    parser = Parser("results", run.__doc__)
    parser.add_judging()
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the table, all columns: .csv or .parquet")
    parser.add_argument("--force", action="store_true", help="replace FILE if it exists")
    asked = parser.parse_args(argv)
    if asked.out is not None:
        _check(asked.out, asked.force)
    root = asked.folders[0] if len(asked.folders) == 1 else None
    choice = kept(*asked.folders).unless(metric=asked.metric, tail_rounds=asked.tail_rounds)
    records, out = ordered(records_in(asked.folders), choice.algos), console()
    runs = table(records, choice.tail_rounds, root=root)
    metric = choice.metric and runs.chosen(choice.metric)
    sets: dict[Any, list[Record]] = {}
    for record, data in zip(records, runs.frame["data"], strict=True):
        sets.setdefault(data, []).append(record)
    for of_one in sets.values():
        _show(table(of_one, choice.tail_rounds, root=root), metric, out, ["data"] if len(sets) > 1 else [])
    if asked.out is not None:
        write_whole(asked.out, _WRITERS[asked.out.suffix](runs.frame))
        out.print(escape(f"{asked.out}: {len(runs)} runs, {len(runs.frame.columns)} columns"))
    return 0


def _show(runs: Table, metric: str | None, out: Console, more: Sequence[str]) -> None:
    """Show the runs on one data set, judged by a metric, or where these have not measured it by what they have."""
    metric = runs.chosen(metric if metric in runs.tails else None)
    tails = list(dict.fromkeys((metric, *structure(metric), "objective")))
    measured = [name for name in tails if name in runs.tails]
    print_whole(_every_run(runs, metric, measured, more), out)
    tied = ", = those tied with it" if runs.best(metric)["tied"].map(len).any() else ""
    out.print(f"* best point of each algorithm by {metric}{tied}; {caption(runs, tails)}")
    for line in remarks(runs, metric):
        out.print(escape(line))


def _check(path: Path, force: bool) -> None:
    """Raises UserError for a file that cannot be written."""
    if path.suffix not in _WRITERS:
        raise UserError(f"--out {path} must end in .csv or .parquet")
    if path.exists() and not force:
        raise UserError(f"--out {path} exists; give --force to replace it, or another name")
    if not path.parent.is_dir():
        raise UserError(f"--out {path}: there is no folder {path.parent}; make it, or give another name")


def _every_run(runs: Table, metric: str, tails: Sequence[str], more: Sequence[str]) -> Shown:
    """A row a run, those of the best points marked: its keys, how it ended, these tail averages."""
    best = runs.best(metric)
    marks = {place: "=" for tied in best["tied"] for rows in tied for place in rows}
    marks |= {place: "*" for rows in best["rows"] for place in rows}
    shown = ["algo", *more, *runs.keys, "status", "rounds"]
    out = Shown(box=None, pad_edge=False, header_style="bold")
    for name in ("", *shown, *tails, "folder"):
        left = name in ("algo", "data", "status", "folder")
        out.add_column(head(runs, name) if name in tails else name.replace(".", ".\n"), no_wrap=True,
                       justify="left" if left else "right")  # fmt: skip
    values = [runs.measured(name) for name in tails]  # of own models, or where there are none of the global one
    for place, row in enumerate(runs.rows()):
        row["status"] += ", falling" if row["falling"] else ""
        told = [*(row[name] for name in shown), *(float(each[place]) for each in values), row["folder"]]
        out.add_row(marks.get(place, ""), *(escape(number(value)) for value in told))
    return out
