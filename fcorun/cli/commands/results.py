"""fcorun results: a table of records."""

from collections.abc import Sequence
from pathlib import Path

from rich.markup import escape
from rich.table import Table as Shown

from fcorun.cli.commands.common import Parser, console, records_in
from fcorun.errors import UserError
from fcorun.metrics import structure
from fcorun.records.formats import frame_csv, frame_parquet
from fcorun.records.sweeps import kept
from fcorun.reports.collect import ordered, table
from fcorun.reports.results import caption, head, number, print_whole, remarks
from fcorun.reports.table import Table
from fcorun.system.files import write_whole

_WRITERS = {".csv": frame_csv, ".parquet": frame_parquet}


def run(argv: Sequence[str]) -> int:
    """Show the records in and under some folders as a table, a row a run, and write it to a file if asked."""
    parser = Parser("results", run.__doc__)
    parser.add_judging()
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the table, all columns: .csv or .parquet")
    parser.add_argument("--force", action="store_true", help="replace FILE if it exists")
    asked = parser.parse_args(argv)
    if asked.out is not None:
        _check(asked.out, asked.force)
    root = asked.folders[0] if len(asked.folders) == 1 else None
    choice = kept(*asked.folders).unless(metric=asked.metric, tail_rounds=asked.tail_rounds)
    runs = table(ordered(records_in(asked.folders), choice.algos), choice.tail_rounds, root=root)
    metric, out = runs.chosen(choice.metric), console()
    tails = list(dict.fromkeys((metric, *structure(metric), "objective")))
    print_whole(_every_run(runs, metric, [name for name in tails if name in runs.tails]), out)
    out.print(f"* best point of each algorithm by {metric}; {caption(runs, tails)}")
    for line in remarks(runs, metric):
        out.print(escape(line))
    if asked.out is not None:
        write_whole(asked.out, _WRITERS[asked.out.suffix](runs.frame))
        out.print(escape(f"{asked.out}: {len(runs)} runs, {len(runs.frame.columns)} columns"))
    return 0


def _check(path: Path, force: bool) -> None:
    """Raises UserError for a file that cannot be written."""
    if path.suffix not in _WRITERS:
        raise UserError(f"--out {path} must end in .csv or .parquet")
    if path.exists() and not force:
        raise UserError(f"--out {path} exists; give --force to replace it, or another name")
    if not path.parent.is_dir():
        raise UserError(f"--out {path}: there is no folder {path.parent}; make it, or give another name")


def _every_run(runs: Table, metric: str, tails: Sequence[str]) -> Shown:
    """A row a run, those of the best points marked: its keys, how it ended, these tail averages."""
    marked = {place for rows in runs.best(metric)["rows"] for place in rows}
    several = runs.frame["data"].nunique() > 1
    shown = ["algo", *(["data"] if several else []), *runs.keys, "status", "rounds"]
    out = Shown(box=None, pad_edge=False, header_style="bold")
    for name in ("", *shown, *tails, "folder"):
        left = name in ("algo", "data", "status", "folder")
        out.add_column(head(runs, name) if name in tails else name.replace(".", ".\n"), no_wrap=True,
                       justify="left" if left else "right")  # fmt: skip
    columns = [*shown, *(f"tail_{name}" for name in tails), "folder"]
    for place, row in enumerate(runs.rows()):
        row["status"] += ", falling" if row["falling"] else ""
        out.add_row("*" if place in marked else "", *(escape(number(row[name])) for name in columns))
    return out
