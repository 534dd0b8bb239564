"""fcorun plot: the pictures of records, drawn anew."""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from rich.markup import escape

from fcorun.cli.commands.common import Parser, console, records_in
from fcorun.config import Axis
from fcorun.metrics import known
from fcorun.records.formats import read_summary
from fcorun.records.record import Record, load_records
from fcorun.records.sweeps import kept
from fcorun.reports.collect import ordered, table
from fcorun.reports.pictures import curves
from fcorun.reports.pictures.draw import draw_sweep
from fcorun.reports.pictures.page import FORMATS
from fcorun.system.files import write_whole


def run(argv: Sequence[str]) -> int:
    """Draw curves.png of each record anew, and the pictures of a sweep into each folder that has several records."""
    parser = Parser("plot", run.__doc__)
    parser.add_judging()
    parser.add_argument("--format", choices=FORMATS, default="png", help="of the pictures")
    parser.add_argument("--x", choices=get_args(Axis), help="what curves are drawn against; default: as runs were told")
    asked = parser.parse_args(argv)
    records_in(asked.folders)
    out, drawn = console(), set()
    for folder in asked.folders:
        records = load_records(folder)
        for record in (record for record in records if record.folder not in drawn):
            if _draw(record, asked.x, asked.format):
                drawn.add(record.folder)
        if len(records) > 1:
            for path in _draw_sweep(folder, records, asked):
                out.print(escape(str(path)))
    out.print(f"{len(drawn)} curves.{asked.format}")
    return 0


def _draw(record: Record, x: str | None, format: str) -> bool:
    """Draw the curves of a record; whether there are any."""
    rows, config = record.rows, record.flat_config
    if rows:
        label, against = str(record.status.get("label", record.folder.name)), x or config.get("x", "rounds")
        metrics = known([read_summary(record.folder)])
        picture = curves.draw_run(rows, label, float(config["cutoff"]), x=against, metrics=metrics, format=format)
        write_whole(record.folder / f"curves.{format}", picture)
    return bool(rows)


def _draw_sweep(folder: Path, records: Sequence[Record], asked: Namespace) -> list[Path]:
    """Draw the pictures of a sweep; their files."""
    told = {record.flat_config.get("x", "rounds") for record in records}
    choice = kept(folder).unless(metric=asked.metric, tail_rounds=asked.tail_rounds, x=asked.x)
    x, records = choice.x or (told.pop() if len(told) == 1 else "rounds"), ordered(records, choice.algos)
    runs = table(records, choice.tail_rounds)
    return draw_sweep(folder, records, runs, choice.metric, format=asked.format, x=x, algos=choice.algos)
