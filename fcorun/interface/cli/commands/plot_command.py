"""fcorun plot: draws the pictures of records again."""

import contextlib
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from fcorun.base.config import CurveAxis
from fcorun.base.errors import UserError, WriteError, suggest_name
from fcorun.base.metrics import from_summaries
from fcorun.base.picture_style import FORMATS, PICTURE_WIDTHS, FigureStyle, name_picture_style, name_recorded_style
from fcorun.base.records.formats import frame_csv
from fcorun.base.records.record import Record, load_records
from fcorun.base.records.sweep_settings import SweepSettings, load_settings
from fcorun.base.system.files import write_atomically
from fcorun.interface.cli.commands.common_command import CommandParser, load_records_in, select_latest
from fcorun.interface.cli.terminal import Terminal
from fcorun.reports.build_table import build_table, sort_records
from fcorun.reports.pictures.picture import render_pictures
from fcorun.reports.pictures.problem_view import draw_sweep
from fcorun.reports.pictures.run_curves import RunView


def run(argv: Sequence[str]) -> int:
    """Draw the curves, coefficients and brain map (curves.png, coefficients.png, brain.png) of each record again, and
    the pictures of a sweep into each folder that has several records. Files end as --format says. With --out, draw one
    set of pictures of all records, and write their table."""
    parser = CommandParser("plot", run.__doc__)
    parser.add_metric_options()
    parser.add_argument("--format", choices=FORMATS, default="png", help="format of the pictures")
    parser.add_argument(
        "--style", choices=get_args(FigureStyle), help="size and style of the pictures (default: that of the runs)"
    )
    help_text = "width of the pictures in inches (default: that of the runs)"
    parser.add_argument("--width", type=float, choices=PICTURE_WIDTHS, help=help_text)
    axes = ", ".join(get_args(CurveAxis))
    help_text = f"horizontal axis of the curves: {axes}, or a monotone metric (default: that of the runs)"
    parser.add_argument("--x", metavar="AXIS", help=help_text)
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="pictures and results.csv of all folders together")
    parser.add_argument("--force", action="store_true", help="draw into FOLDER again if it exists")
    arguments = parser.parse_args(argv)
    all_records = load_records_in(arguments.folders)
    if arguments.x is not None and arguments.x not in get_args(CurveAxis):
        known = [*get_args(CurveAxis), *from_summaries(record.summary for record in all_records).axes]
        if arguments.x not in known:
            raise UserError(f"--x {arguments.x} is not a choice: {suggest_name(arguments.x, known)}")
    out = Terminal()
    if arguments.out is not None:
        for path in _draw_all(arguments.out, select_latest(all_records, out), arguments):
            out.print(str(path))
        return 0
    drawn_folders = set()
    try:
        for folder in arguments.folders:
            records = load_records(folder)
            if len(records) > 1:
                for path in _draw_sweep(folder, select_latest(records, out), arguments, load_settings(folder)):
                    out.print(str(path))
            for record in records:
                if record.folder not in drawn_folders and _draw_record(record, arguments):
                    drawn_folders.add(record.folder)
    except WriteError as error:
        raise UserError(
            f"{error.filename} cannot be written ({error.strerror}); give --out FOLDER for pictures in another folder"
        ) from error
    out.print(f"{len(drawn_folders)} curves.{arguments.format}")
    return 0


def _draw_all(folder: Path, records: Sequence[Record], arguments: Namespace) -> list[Path]:
    """Write the table and the pictures of records from several folders into ``folder``; return the files.

    Raises UserError for a file, for a folder with records, and for any other folder that is not empty unless forced.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--out {folder} is a file; give a folder")
    if folder.exists() and load_records(folder):
        raise UserError(f"--out {folder} holds records and their pictures; give another folder")
    if folder.exists() and any(folder.iterdir()) and not arguments.force:
        raise UserError(f"--out {folder} exists; give --force to draw its pictures again, or another name")
    settings = load_settings(*arguments.folders)
    settings = settings.with_overrides(metric=arguments.metric, tail_rounds=arguments.tail_rounds)
    runs = build_table(sort_records(records, settings.algos), settings.tail_rounds, conditions=settings.conditions)
    runs.resolve_metric(settings.metric)  # an unknown metric is refused before the folder is made
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "results.csv", frame_csv(runs.shown_frame))
    return [folder / "results.csv", *_draw_sweep(folder, records, arguments, settings)]


def _draw_record(record: Record, arguments: Namespace) -> bool:
    """Draw the curves of a record, and the coefficients of a linear model; return whether the record has curves."""
    from fcorun.reports.pictures.coefficient_picture import ModelView
    from fcorun.results.models.coefficients import load_coefficients

    rows = record.rows
    if not rows:
        return False
    config = record.flat_config
    label = record.picture_title
    cutoff = float(config["cutoff"])
    style = _given_style(arguments) or record.picture_style
    x = arguments.x or config.get("x", "rounds")
    metrics = from_summaries([record.summary_or_empty])
    files = render_pictures(RunView(rows, label, cutoff, x, metrics), formats=[arguments.format], style=style)
    with contextlib.suppress(UserError):  # raised for a model that is not linear, or whose file is lost
        model_view = ModelView(load_coefficients(record), label, cutoff)
        files |= render_pictures(model_view, formats=[arguments.format], style=style)
    for name, content in files.items():
        write_atomically(record.folder / name, content)
    return f"curves.{arguments.format}" in files


def _given_style(arguments: Namespace) -> str | None:
    """Return the name of the style that --style and --width give; None without them."""
    if arguments.style is None and arguments.width is None:
        return None
    return name_picture_style(arguments.style or "paper", arguments.width)


def _draw_sweep(
    folder: Path, records: Sequence[Record], arguments: Namespace, saved_settings: SweepSettings
) -> list[Path]:
    """Draw the pictures of a sweep; return their files.

    Options that neither the command nor the sweep gives are those of its records, if these agree.
    """
    settings = saved_settings.with_overrides(metric=arguments.metric, tail_rounds=arguments.tail_rounds, x=arguments.x)
    axes = {record.flat_config.get("x", "rounds") for record in records}
    styles = {record.picture_style for record in records}
    saved_style = name_recorded_style(settings.style, settings.width) if settings.style else None
    options = {
        "x": settings.x or (axes.pop() if len(axes) == 1 else "rounds"),
        "style": _given_style(arguments) or saved_style or (styles.pop() if len(styles) == 1 else "paper"),
    }
    records = sort_records(records, settings.algos)
    runs = build_table(records, settings.tail_rounds, conditions=settings.conditions)
    return draw_sweep(folder, records, runs, settings.metric, format=arguments.format, algos=settings.algos, **options)
