"""fcorun predict: what the model of a record predicts for new rows."""

import sys
from collections.abc import Sequence
from pathlib import Path

from fcorun.cli.commands.common import TABLE_WRITERS, CommandParser, check_output_file
from fcorun.errors import UserError, escape_controls
from fcorun.records.formats import frame_csv, read_json, read_summary
from fcorun.records.record import REFIT_FOLDER, SELECTION_FILE, Record, load_records
from fcorun.system.files import write_atomically


def run(argv: Sequence[str]) -> int:
    """Predict for the rows of a file by the model of a record: features by name, in any order, not standardized; the
    column of clients as the record's data have it, where clients have models of their own. Without --out, the
    predictions are printed as CSV."""
    parser = CommandParser("predict", run.__doc__, folders=False)
    parser.add_argument("record", type=Path, metavar="RECORD", help="the folder of a run that is done")
    parser.add_argument(
        "rows", metavar="NEW", help="new rows: .csv .tsv .parquet .xlsx, .npz or HDF5 (X, client), LIBSVM"
    )
    parser.add_argument("--client", metavar="COLUMN", help="the column that names clients; default: the record's")
    parser.add_config_dir_option()
    parser.add_trust_option()
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the predictions (.csv, .parquet)")
    parser.add_argument("--force", action="store_true", help="replace FILE if it exists")
    asked = parser.parse_args(argv)
    if asked.out is not None:
        check_output_file(asked.out, list(TABLE_WRITERS), asked.force)
    record = _record(asked.record)
    if (record.folder / "mask.nii.gz").is_file() and not asked.rows.endswith(".npz"):
        raise UserError(f"{record.folder} is a model of images: give an .npz whose X has a row an image, of the voxels "
                        "of its mask.nii.gz in nilearn's order (NiftiMasker), not standardized")  # fmt: skip

    from fcorun.models.predict import predict
    from fcorun.tables.dataframe import read_dataframe
    from fcorun.tables.encoding import read_kinds

    _import_objective(record, asked.config_dir, asked.trust)
    column = asked.client or record.flat_config.get("data.client")
    width = read_summary(record.folder).get("data", {}).get("features", 0)
    kinds = read_kinds(str(record.folder))
    frame, owner = read_dataframe(asked.rows, column, width, kinds)
    if asked.client and owner is None:
        raise UserError(
            f"--client {asked.client}: there is no such column in {asked.rows}; leave it out, or give another"
        )
    found, remarks = predict(record, frame, owner, asked.rows)
    if asked.out is None:
        text = frame_csv(found).decode()
        sys.stdout.write(escape_controls(text) if sys.stdout.isatty() else text)
    else:
        write_atomically(asked.out, TABLE_WRITERS[asked.out.suffix](found))
        remarks.insert(0, f"{asked.out}: {len(found)} predictions")
    for line in remarks:
        print(escape_controls(f"fcorun: {line}"), file=sys.stderr)
    return 0


def _import_objective(record: Record, config_dir: str | None, trust: str | None) -> None:
    """Import the class of a record's objective where the user's own folder names it, or else if it is trusted."""
    from fcorun.config import locate, locate_user_class
    from fcorun.configuration.search_path import use_config_dir, user_class_paths

    target = str(record.flat_config.get("objective.class"))
    with use_config_dir(config_dir):
        if target in user_class_paths():
            locate_user_class(target, "objective.class")
        elif trust is not None:
            locate(target, "objective.class", trust)


def _record(folder: Path) -> Record:
    """The record in a folder; of a selection that of its choice. Raises UserError where there is none, or several."""
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}; give that of a run that is done")
    if chosen := read_json(folder / SELECTION_FILE):
        record = Record(folder / REFIT_FOLDER)
        number = str(chosen.get("number"))
        if chosen.get("status") != "done" or (record.flat_config.get(f"reg.{number}") != chosen.get("chosen")):
            raise UserError(f"{folder} holds a selection that is not done, or whose refit is not of its choice: give "
                            "the same fcorun select again, which goes on")  # fmt: skip
        return record
    if not (folder / "status.json").exists():
        below = load_records(folder)
        which = f"; give one of the {len(below)} below it, such as {below[0].folder}" if below else ""
        raise UserError(f"{folder} is no record of a run{which or '; give the folder of one that is done'}")
    return Record(folder)
