"""fcorun weights: the coefficients of linear models by name."""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Shown

from fcorun.cli.commands.common import (
    TABLE_WRITERS,
    CommandParser,
    check_output_file,
    load_records_in,
    make_console,
    select_latest,
)
from fcorun.errors import UserError
from fcorun.models.coefficients import (
    format_by_client,
    load_client_coefficients,
    load_coefficients,
    no_coefficients_reason,
)
from fcorun.models.nifti_images import coefficient_files, weights_image
from fcorun.records.record import Record
from fcorun.reports.coefficient_summary import stability_warnings, summarize_coefficients
from fcorun.reports.pictures.brain import draw_brain
from fcorun.reports.pictures.coefficients import draw_model
from fcorun.reports.pictures.layout import render_figure
from fcorun.reports.pictures.style import style_context
from fcorun.reports.run_table import DataFrame
from fcorun.reports.sweep_report import format_number, print_full_width
from fcorun.system.files import write_atomically

_SHOWN = 15  # coefficients of a point


def run(argv: Sequence[str]) -> int:
    """Write coefficients.csv and coefficients.png into each record of a linear model, of images also weights.nii.gz and
    brain.png. With --out, write one table of all of them instead: how often each coefficient was chosen over seeds,
    its median and its range."""
    parser = CommandParser("weights", run.__doc__)
    parser.add_argument("--out", type=Path, metavar="FILE", help="one table of all records (.csv, .parquet)")
    parser.add_argument("--over", action="append", default=[], metavar="KEY",
                        help="with --out, a key that numbers repetitions as seeds do, such as data.validation; may be "
                        "given several times")  # fmt: skip
    parser.add_argument("--clients", action="store_true", help="the clients' own models, a column each, instead")
    parser.add_argument("--force", action="store_true", help="replace FILE if it exists")
    asked = parser.parse_args(argv)
    out = make_console()
    _check(asked)
    there = load_records_in(asked.folders)
    there = select_latest(there, out) if asked.out else there
    whys = {id(record): no_coefficients_reason(record) or _lacks(record, asked.clients) for record in there}
    if all(whys.values()):
        raise UserError(next(iter(whys.values())))
    for why in filter(None, whys.values()):
        out.print(f"left out: {escape(why)}")
    records = [record for record in there if not whys[id(record)]]
    if asked.out is None:
        for record in records:
            for path in _written(record, asked.clients):
                out.print(escape(str(path)))
        return 0
    frame, keys = summarize_coefficients(records, asked.over)
    write_atomically(asked.out, TABLE_WRITERS[asked.out.suffix](frame))
    _show(frame, ["algo", "data", *keys], out)
    for line in stability_warnings(records, asked.over):
        out.print(line)
    cutoffs = sorted({f"{float(record.flat_config['cutoff']):g}" for record in records})
    out.print(f"chosen: the share of runs in which |w| > cutoff={' or '.join(cutoffs)}; values as trained")
    out.print(escape(f"{asked.out}: {len(records)} runs, {len(frame)} rows"))
    return 0


def _check(asked: Namespace) -> None:
    """Raises UserError for options that do not go together, and a file that cannot be written."""
    path = asked.out
    if path is None:
        if asked.over:
            raise UserError("--over is of one table of all records: give --out FILE too")
        return
    if asked.clients:
        raise UserError("--clients writes into each record: leave --out out")
    check_output_file(path, list(TABLE_WRITERS), asked.force)


def _lacks(record: Record, clients: bool) -> str:
    """Why a record has not what is asked for; empty where it has."""
    try:
        _ = load_client_coefficients(record) if clients else load_coefficients(record)
    except UserError as error:
        return str(error)
    return ""


def _written(record: Record, clients: bool) -> list[Path]:
    """Write what is known of a record's model, or of its clients' own; the files."""
    files: dict[str, bytes | str]
    label, cutoff = str(record.status.get("label", record.folder.name)), float(record.flat_config["cutoff"])
    style = record.flat_config.get("style", "paper")
    if not clients:
        found = load_coefficients(record)
        files = coefficient_files(found) | draw_model(found, label, cutoff, style=style)
    else:
        names, models = load_client_coefficients(record)
        files = {"coefficients_by_client.csv": format_by_client(names, models)}
        grid, outputs = models[0].grid, models[0].classes
        if grid is not None:
            every = np.concatenate([model.weights for model in models], axis=1)
            told = tuple(f"{name} {of}" if len(outputs) > 1 else name for name in names for of in outputs)
            files["weights_by_client.nii.gz"] = weights_image(grid, every)
            with style_context(style):
                drawn = draw_brain(replace(models[0], weights=every, classes=told), label)
                files["brain_by_client.png"] = render_figure(drawn)
    for name, text in files.items():
        write_atomically(record.folder / name, text)
    return [record.folder / name for name in files]


def _show(frame: DataFrame, keys: list[str], out: Console) -> None:
    """Print the coefficients that were chosen most often at each point, the largest first."""
    for place, own in frame[frame["parameter"] != "bias"].groupby(keys, sort=False, dropna=False):
        told = " ".join(f"{key}={value}" for key, value in zip(keys, place, strict=True))
        chosen = own[own["chosen"] > 0]
        out.print(escape(f"{told}: {len(chosen)} of {len(own)} coefficients chosen at least once in "
                         f"{own['runs'].max()} runs"))  # fmt: skip
        order = chosen.assign(size=chosen["median"].abs()).sort_values(["chosen", "size"], ascending=False)
        shown = Shown(box=None, pad_edge=False, header_style="bold")
        names = [name for name in ("feature", "class", "chosen", "median", "min", "max") if name != "class" or
                 own["class"].nunique() > 1]  # fmt: skip
        for name in names:
            shown.add_column(name, no_wrap=True, justify="left" if name in ("feature", "class") else "right")
        for row in order.head(_SHOWN).to_dict("records"):
            shown.add_row(*(escape(format_number(row[name])) for name in names))
        print_full_width(shown, out)
        if len(order) > _SHOWN:
            out.print(f"and {len(order) - _SHOWN} more")
