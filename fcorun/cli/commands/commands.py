"""The commands beside the running of experiments: they read records, redraw them, and remove them. Without Hydra."""

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import NoReturn, get_args

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fcorun.config import Axis
from fcorun.errors import UserError, describe
from fcorun.metrics import HIGHER_IS_BETTER
from fcorun.records.folder import RunFolder
from fcorun.records.formats import read_rows
from fcorun.records.record import Record, load_records
from fcorun.reports.results import STATUSES, caption, csv_bytes, head, number, parquet_bytes, print_whole
from fcorun.reports.table import best_points, chosen, flat_config, keys, structure, table, values_of
from fcorun.system.files import write_whole


class _Parser(argparse.ArgumentParser):
    """A parser that complains as the rest of fcorun does."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; {self.prog} --help shows the options")


def main(argv: Sequence[str]) -> int:
    """Run the command ``argv[0]`` and return its exit code: 0, 1 for a failure, 2 for bad input, 130 if interrupted."""
    try:
        return COMMANDS[argv[0]](argv[1:])
    except UserError as error:
        print(f"fcorun: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"fcorun: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        print(f"fcorun: {describe(error)}", file=sys.stderr)
        return 1


def results(argv: Sequence[str]) -> int:
    """Show the records in and under some folders as a table, a row a run, and write it to a file if asked."""
    parser = _parser("results", results.__doc__)
    _judging(parser)
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the table, all columns: .csv or .parquet")
    parser.add_argument("--force", action="store_true", help="replace FILE if it exists")
    asked = parser.parse_args(argv)
    writers = {".csv": csv_bytes, ".parquet": parquet_bytes}
    if asked.out is not None:
        if asked.out.suffix not in writers:
            raise UserError(f"--out {asked.out} must end in .csv or .parquet")
        if asked.out.exists() and not asked.force:
            raise UserError(f"--out {asked.out} exists; give --force to replace it, or another name")
        if not asked.out.parent.is_dir():
            raise UserError(f"--out {asked.out}: there is no folder {asked.out.parent}; make it, or give another name")
    root = asked.folders[0] if len(asked.folders) == 1 else None
    frame = table(_records(asked.folders), asked.tail_rounds, root=root)
    metric = chosen(frame, asked.metric)
    marked = {place for rows in best_points(frame, metric)["rows"] for place in rows}
    console = _console()
    several = frame["data"].nunique() > 1
    shown = ["algo", *(["data"] if several else []), *keys(frame), "status", "rounds"]
    tails = list(dict.fromkeys((metric, *structure(metric), "objective")))
    out = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("", *shown, *(name for name in tails if f"tail_{name}" in frame), "folder"):
        left = name in ("algo", "data", "status", "folder")
        out.add_column(head(frame, name) if name in tails else name.replace(".", ".\n"), no_wrap=True,
                       justify="left" if left else "right")  # fmt: skip
    columns = [*shown, *(f"tail_{name}" for name in tails if f"tail_{name}" in frame), "folder"]
    for place, values in enumerate(zip(*(values_of(frame[name]) for name in columns), strict=True)):
        out.add_row("*" if place in marked else "", *(escape(number(value)) for value in values))
    print_whole(out, console)
    console.print(f"* best point of each algorithm by {metric}; {caption(frame, tails)}")
    if asked.out is not None:
        write_whole(asked.out, writers[asked.out.suffix](frame))
        console.print(escape(f"{asked.out}: {len(frame)} runs, {len(frame.columns)} columns"))
    return 0


def plot(argv: Sequence[str]) -> int:
    """Draw curves.png of each record anew, and the pictures of a sweep into each folder that has several records."""
    parser = _parser("plot", plot.__doc__)
    _judging(parser)
    parser.add_argument("--format", choices=["png", "pdf", "svg"], default="png", help="of the pictures of sweeps")
    parser.add_argument("--x", choices=get_args(Axis), help="what curves are drawn against; default: as runs were told")
    asked = parser.parse_args(argv)
    _records(asked.folders)
    from fcorun.reports.pictures.curves import draw_curves
    from fcorun.reports.pictures.sweep import draw_sweep

    read, console, drawn = cache(read_rows), _console(), set()
    for folder in asked.folders:
        records = load_records(folder)
        for record in (record for record in records if record.folder not in drawn):
            if rows := read(record.folder):
                label, config = str(record.status.get("label", record.folder.name)), record.config
                picture = draw_curves(rows, label, float(config["cutoff"]), asked.x or config.get("x", "rounds"))
                write_whole(record.folder / "curves.png", picture)
                drawn.add(record.folder)
        if len(records) > 1:
            frame = table(records, asked.tail_rounds, read=read)
            told = {flat_config(record).get("x", "rounds") for record in records}
            x = asked.x or (told.pop() if len(told) == 1 else "rounds")
            for path in draw_sweep(folder, records, frame, asked.metric, asked.format, x=x):
                console.print(escape(str(path)))
    console.print(f"{len(drawn)} curves.png")
    return 0


def rm(argv: Sequence[str]) -> int:
    """Remove the records in and under some folders that ended in a certain way: their files, and folders left empty."""
    parser = _parser("rm", rm.__doc__)
    parser.add_argument("--status", action="append", required=True, choices=STATUSES[:-1],
                        help="which records; may be given several times")  # fmt: skip
    parser.add_argument("--yes", action="store_true", help="do not ask")
    asked = parser.parse_args(argv)
    console = _console()
    there = [record for record in _records(asked.folders) if record.status.get("status") in asked.status]
    for record in there:
        about = record.status
        console.print(
            escape(f"{about['status']}: {record.folder}  {about.get('label', '')}  {about.get('reason', '')}")
        )
    if not there:
        console.print(f"no record is {' or '.join(asked.status)}")
        return 0
    if not asked.yes:
        if not sys.stdin.isatty():
            raise UserError("rm asks before it removes, and there is no terminal to ask on; give --yes")
        if input(f"remove {len(there)} records? [y/N] ").strip().lower() not in ("y", "yes"):
            return 1
    code = 0
    for record in there:
        if record.status.get("status") not in asked.status:
            continue  # another process went on with it
        try:
            RunFolder(record.folder, "").remove()
        except UserError as error:
            print(f"fcorun: {error}", file=sys.stderr)
            code = 1
    return code


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {"results": results, "plot": plot, "rm": rm}


def _parser(name: str, about: str | None) -> _Parser:
    parser = _Parser(prog=f"fcorun {name}", description=about)
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="records are looked for in and under it")
    return parser


def _judging(parser: _Parser) -> None:
    """Options that say which point is best."""
    names = ", ".join(HIGHER_IS_BETTER)
    parser.add_argument(
        "--metric", help=f"what the best point is best in: {names}; by default the one that matters most"
    )
    parser.add_argument(
        "--tail-rounds", type=_count, metavar="N", help="average over the evaluations of the last N rounds"
    )


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} must be a whole number, at least 1")
    return int(text)


def _records(folders: Sequence[Path]) -> list[Record]:
    """The records in these folders. Raises UserError for a folder that is not there or has none."""
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"there is no folder {folder}; give one that holds records")
        if not load_records(folder):
            raise UserError(f"{folder} holds no records; give a folder that fcorun has written, such as outputs")
    return load_records(*folders)


def _console() -> Console:
    return Console(file=sys.stdout, highlight=False, soft_wrap=True)
