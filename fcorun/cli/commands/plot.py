"""fcorun plot: the pictures of records, drawn anew."""

import contextlib
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from rich.markup import escape

from fcorun.cli.commands.common import CommandParser, load_records_in, make_console, select_latest
from fcorun.config import CurveAxis, FigureStyle
from fcorun.errors import UserError, WriteError
from fcorun.metrics import from_summaries
from fcorun.records.formats import frame_csv, read_summary
from fcorun.records.record import Record, load_records
from fcorun.records.sweep_settings import SweepSettings, load_settings
from fcorun.reports.build_table import build_table, sort_records
from fcorun.reports.pictures import run_curves
from fcorun.reports.pictures.layout import FORMATS
from fcorun.reports.pictures.sweep_pictures import draw_sweep
from fcorun.system.files import write_atomically


def run(argv: Sequence[str]) -> int:
    """Draw curves.png and coefficients.png of each record anew, and the pictures of a sweep into each folder that has
    several records. With --out, draw one set of pictures of all records, and write their table."""
    parser = CommandParser("plot", run.__doc__)
    parser.add_metric_options()
    parser.add_argument("--format", type=_format, choices=FORMATS, default="png", help="of the pictures")
    parser.add_argument(
        "--style", choices=get_args(FigureStyle), help="of the pictures: how large; default: as runs were told"
    )
    parser.add_argument(
        "--x", choices=get_args(CurveAxis), help="what curves are drawn against; default: as runs were told"
    )
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="pictures and results.csv of all folders together")
    parser.add_argument("--force", action="store_true", help="draw into FOLDER again if it exists")
    asked = parser.parse_args(argv)
    there = load_records_in(asked.folders)
    out, drawn = make_console(), set()
    if asked.out is not None:
        for path in _joint(asked.out, select_latest(there, out), asked):
            out.print(escape(str(path)))
        return 0
    try:
        for folder in asked.folders:
            records = load_records(folder)
            for record in (record for record in records if record.folder not in drawn):
                if _draw(record, asked.x, asked.style, asked.format):
                    drawn.add(record.folder)
            if len(records) > 1:
                for path in _draw_sweep(folder, select_latest(records, out), asked, load_settings(folder)):
                    out.print(escape(str(path)))
    except WriteError as error:
        file = f"{error.filename} cannot be written ({error.strerror})"
        raise UserError(f"{file}; give --out FOLDER to have pictures elsewhere") from error
    out.print(f"{len(drawn)} curves.{asked.format}")
    return 0


def _format(text: str) -> str:
    """A format of files. Raises UserError for pgf, which people ask for."""
    if text == "pgf":
        raise UserError("--format pgf is not there, for LaTeX would have to measure its texts, and maps would be files "
                        "of their own: take pdf, whose fonts are embedded, or svg")  # fmt: skip
    return text


def _joint(folder: Path, records: Sequence[Record], asked: Namespace) -> list[Path]:
    """The table and the pictures of records from several folders, in one of their own; the files. Raises UserError for
    a folder that is something else."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--out {folder} is a file; give a folder")
    if folder.exists() and load_records(folder):
        raise UserError(f"--out {folder} holds records, whose own pictures are there; give another folder")
    if folder.exists() and any(folder.iterdir()) and not asked.force:
        raise UserError(f"--out {folder} exists; give --force to draw there again, or another name")
    choice = load_settings(*asked.folders).with_overrides(metric=asked.metric, tail_rounds=asked.tail_rounds)
    runs = build_table(sort_records(records, choice.algos), choice.tail_rounds)
    runs.resolve_metric(choice.metric)  # a metric that is not there leaves nothing behind
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "results.csv", frame_csv(runs.frame))
    return [folder / "results.csv", *_draw_sweep(folder, records, asked, choice)]


def _draw(record: Record, x: str | None, style: str | None, format: str) -> bool:
    """Draw the curves of a record, and the coefficients of a linear model; whether there are any."""
    from fcorun.models.coefficients import load_coefficients
    from fcorun.reports.pictures.coefficients import draw_model

    rows, config = record.rows, record.flat_config
    if rows:
        label, against = str(record.status.get("label", record.folder.name)), x or config.get("x", "rounds")
        how: dict = {"format": format, "style": style or config.get("style", "paper")}
        metrics = from_summaries([read_summary(record.folder)])
        picture = run_curves.draw_run(rows, label, float(config["cutoff"]), x=against, metrics=metrics, **how)
        write_atomically(record.folder / f"curves.{format}", picture)
        with contextlib.suppress(UserError):  # no linear model, or one that is lost
            for name, content in draw_model(load_coefficients(record), label, float(config["cutoff"]), **how).items():
                write_atomically(record.folder / name, content)
    return bool(rows)


def _draw_sweep(folder: Path, records: Sequence[Record], asked: Namespace, told_before: SweepSettings) -> list[Path]:
    """Draw the pictures of a sweep; their files."""
    choice = told_before.with_overrides(
        metric=asked.metric, tail_rounds=asked.tail_rounds, x=asked.x, style=asked.style
    )
    how = {}
    for key, default in (("x", "rounds"), ("style", "paper")):
        told = {record.flat_config.get(key, default) for record in records}
        how[key] = getattr(choice, key) or (told.pop() if len(told) == 1 else default)
    records = sort_records(records, choice.algos)
    runs = build_table(records, choice.tail_rounds)
    return draw_sweep(folder, records, runs, choice.metric, format=asked.format, algos=choice.algos, **how)
