"""fcorun weights: the coefficients of linear models by name."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fcorun.base.errors import UserError
from fcorun.base.records.record import Record
from fcorun.base.system.files import write_atomically
from fcorun.interface.cli.commands.common_command import (
    TABLE_WRITERS,
    CommandParser,
    check_output_file,
    load_records_in,
    select_latest,
    warn_of_formulas,
)
from fcorun.interface.cli.terminal import Terminal
from fcorun.reports.coefficient_summary import summarize_coefficients
from fcorun.reports.pictures import brain
from fcorun.reports.pictures.coefficient_picture import ModelView
from fcorun.reports.pictures.picture import render_pictures
from fcorun.reports.run_table import DataFrame
from fcorun.reports.sweep_report import format_number
from fcorun.results.models.coefficients import (
    coefficient_files,
    format_by_client,
    load_client_coefficients,
    load_coefficients,
    no_coefficients_reason,
    weights_image,
)

_MAX_PRINTED = 15  # coefficients of a point


def run(argv: Sequence[str]) -> int:
    """Write coefficients.csv and coefficients.png into each record of a linear model, of images also weights.nii.gz and
    brain.png. With --out, write one table of all of them instead: how often each coefficient was chosen over seeds,
    its median and its range."""
    parser = CommandParser("weights", run.__doc__)
    parser.add_output_options("one table of all records (.csv, .parquet)")
    parser.add_argument("--clients", action="store_true", help="the clients' personal models, a column each, instead")
    arguments = parser.parse_args(argv)
    out = Terminal()
    if arguments.out is not None and arguments.clients:
        raise UserError("--clients writes a table into each record, and --out FILE has shared models alone: leave one "
                        "of them out")  # fmt: skip
    check_output_file(arguments.out, list(TABLE_WRITERS), arguments.force)
    all_records = load_records_in(arguments.folders)
    if arguments.out:
        all_records = select_latest(all_records, out)
    records = []
    reasons = []
    for record in all_records:
        reason = no_coefficients_reason(record)
        if not reason:
            try:
                _ = load_client_coefficients(record) if arguments.clients else load_coefficients(record)
            except UserError as error:
                reason = str(error)
        if reason:
            reasons.append(reason)
        else:
            records.append(record)
    if not records:
        raise UserError(reasons[0])
    for reason in reasons:
        out.print(f"left out: {reason}")
    if arguments.out is None:
        for record in records:
            paths = _write_coefficients(record, arguments.clients)
            out.print_lines([*map(str, paths), *warn_of_formulas(paths)])
        return 0
    frame, keys = summarize_coefficients(records)
    write_atomically(arguments.out, TABLE_WRITERS[arguments.out.suffix](frame))
    _print_summary(frame, ["algo", "data", *keys], out)
    cutoffs = sorted({f"{float(record.flat_config['cutoff']):g}" for record in records})
    out.print(f"chosen: the share of runs in which |w| > cutoff={' or '.join(cutoffs)}; values as trained")
    out.print(f"{arguments.out}: {len(records)} runs, {len(frame)} rows")
    out.print_lines(warn_of_formulas([arguments.out]))
    return 0


def _write_coefficients(record: Record, clients: bool) -> list[Path]:
    """Write the tables and pictures of a record's coefficients, or of its clients' own; return the files."""
    label = record.picture_title
    cutoff = float(record.flat_config["cutoff"])
    style = record.picture_style
    files: dict[str, bytes | str]
    if not clients:
        model = load_coefficients(record)
        files = coefficient_files(model) | render_pictures(ModelView(model, label, cutoff), style=style)
    else:
        client_names, models = load_client_coefficients(record)
        files = {"coefficients_by_client.csv": format_by_client(client_names, models)}
        grid = models[0].grid
        classes = models[0].classes
        if grid is not None:
            if len(classes) > 1:
                titles = tuple(f"{client} {class_}" for client in client_names for class_ in classes)
            else:
                titles = tuple(client for client in client_names for _ in classes)
            weights = np.concatenate([model.weights for model in models], axis=1)
            files["weights_by_client.nii.gz"] = weights_image(grid, weights)
            view = ModelView(replace(models[0], weights=weights, classes=titles), label, cutoff)
            files["brain_by_client.png"] = brain.PICTURE.render(view, style=style)["png"]
    for name, content in files.items():
        write_atomically(record.folder / name, content)
    return [record.folder / name for name in files]


def _print_summary(frame: DataFrame, keys: list[str], out: Terminal) -> None:
    """Print the coefficients that were chosen most often at each point, ties by the size of their median."""
    coefficients = frame[frame["parameter"] != "bias"]
    for values, point in coefficients.groupby(keys, sort=False, dropna=False):
        title = " ".join(f"{key}={value}" for key, value in zip(keys, values, strict=True))
        chosen = point[point["chosen"] > 0]
        out.print(f"{title}: {len(chosen)} of {len(point)} coefficients chosen at least once in "
                  f"{point['runs'].max()} runs")  # fmt: skip
        ranked = chosen.assign(size=chosen["median"].abs()).sort_values(["chosen", "size"], ascending=False)
        columns = ["feature", "class", "chosen", "median", "min", "max"]
        if point["class"].nunique() <= 1:
            columns.remove("class")
        lines = []
        for row in ranked.head(_MAX_PRINTED).to_dict("records"):
            lines.append([format_number(row[column]) for column in columns])
        out.print_table(columns, lines, texts=("feature", "class"))
        if len(ranked) > _MAX_PRINTED:
            out.print(f"and {len(ranked) - _MAX_PRINTED} more")
