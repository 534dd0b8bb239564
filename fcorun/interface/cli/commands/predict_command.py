"""fcorun predict: predictions of a record's model for new rows."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fcorun.base.errors import UserError, escape_controls, suggest_name, words_of
from fcorun.base.records.contents import SELECTION, STABILITY
from fcorun.base.records.formats import frame_csv
from fcorun.base.records.record import PERSONAL, REFIT_FOLDER, SHARED, Record, load_records
from fcorun.base.system.files import write_atomically
from fcorun.base.trust import locate, locate_user_class
from fcorun.data.tables.column_roles import is_prediction_column
from fcorun.experiment.configuration.search_path import user_class_paths
from fcorun.interface.cli.commands.common_command import (
    BASELINE_HELP,
    READING_OPTIONS,
    TABLE_WRITERS,
    CommandParser,
    check_output_file,
    read_data_keys,
    warn_of_formulas,
    word_with_dashes,
)

_OPTIONS_HELP = (
    "the keys by which NEW is read, if not as the record's file: data.na=[-9] data.encoding=latin-1 data.sheet=NAME; "
    "data.triples=FILE: their features"
)
TRUST_HELP = "import classes that the record names, and that are neither fcorun's nor your own, from DIR"
_UNKNOWN_CODES = "codes of missing values, such as -9, are read as numbers: give data.na=[-9] if the rows have some"


def run(argv: Sequence[str]) -> int:
    """Predict for the rows of a file by the model of a record: features by name, in any order, not standardized; the
    column of clients as the record's data have it, if the record has personal models. Without --out, the
    predictions are printed as CSV, with six digits in a terminal and all digits elsewhere."""
    parser = CommandParser("predict", run.__doc__, folders=False)
    parser.add_argument("record", type=Path, metavar="RECORD", help="the folder of a run that is done")
    parser.add_argument(
        "rows", metavar="NEW", help="new rows: .csv .tsv .parquet .xlsx, .npz or HDF5 (X, client), LIBSVM"
    )
    parser.add_argument("options", nargs="*", default=[], metavar="KEY=VALUE", help=_OPTIONS_HELP)
    parser.add_argument("--client", metavar="COLUMN", help="the column that names clients; default: the record's")
    parser.add_argument("--keep", metavar="COLUMN", action="append", default=[],
                        help="a column of NEW to repeat in the predictions, such as a record's number; default: those "
                        "of data.keep")  # fmt: skip
    parser.add_argument(
        "--at", type=float, metavar="TIME", help="add the probability of no event up to TIME, of objective=cox"
    )
    parser.add_argument("--baseline", metavar="CLIENT", help=BASELINE_HELP)
    parser.add_argument("--trust", metavar="DIR", help=TRUST_HELP)
    parser.add_output_options("write the predictions (.csv, .parquet)")
    arguments = parser.parse_intermixed_args(argv)
    given = read_data_keys(arguments.options, ("triples", *READING_OPTIONS), _OPTIONS_HELP)
    triples = given.pop("triples", None)
    check_output_file(arguments.out, list(TABLE_WRITERS), arguments.force)
    record = find_record(arguments.record)
    _check_voxels(record, arguments.rows)

    from fcorun.data.tables.encoding import read_columns
    from fcorun.data.tables.parsed_table import FileOptions
    from fcorun.data.tables.readers import read_dataframe
    from fcorun.results.models.predict import predict

    _locate_objective(record, arguments.trust)
    client_column = arguments.client or record.flat_config.get("data.client")
    data = record.summary_or_empty.get("data", {})
    kinds = read_columns(str(record.folder))
    keep = arguments.keep or record.config["data"].get("keep") or []
    options = FileOptions.for_new_rows(record.config["data"], **given)
    file_warnings: list[str] = []
    frame, clients = read_dataframe(
        arguments.rows,
        client_column,
        data.get("features", 0),
        kinds,
        keep,
        first_index=data.get("first_index"),
        warnings=file_warnings,
        options=options,
    )
    frame, sparse = _separate_sparse_features(frame, triples, arguments.rows, record)
    columns = list(frame.columns)
    arguments.keep = [options.find_column(name, columns) for name in arguments.keep]
    _check_columns(arguments, columns, clients is not None, client_column)
    source = arguments.rows if triples is None else f"{arguments.rows} with `data.triples={triples}`"
    with words_of(word_with_dashes("at", "baseline")):
        predictions, warnings = predict(
            record,
            frame,
            clients,
            source,
            arguments.keep,
            at=arguments.at,
            baseline=arguments.baseline,
            sparse=sparse,
        )
    warnings = [*_write_predictions(predictions, arguments.out), *file_warnings, *warnings]
    warnings += _describe_thresholds(arguments.record, record)
    if kinds and not data.get("limits") and given.get("na", record.config["data"].get("na")) is None:
        warnings.append(_UNKNOWN_CODES)
    for line in warnings:
        print(escape_controls(f"fcorun: {line}"), file=sys.stderr)
    return 0


def _check_voxels(record: Record, rows: str) -> None:
    """Raise UserError for a file of new rows that has no voxels, where the model is one of images."""
    if (record.folder / "mask.nii.gz").is_file() and not rows.endswith(".npz"):
        raise UserError(f"{record.folder} is a model of images: give an .npz whose X has a row an image, of the voxels "
                        "of its mask.nii.gz in nilearn's order (NiftiMasker), not standardized")  # fmt: skip


def _locate_objective(record: Record, trust: str | None) -> None:
    """Import the record's objective, if it is the user's own or to be trusted. Raises UserError."""
    target = str(record.flat_config.get("objective.class"))
    if target in user_class_paths():
        locate_user_class(target, "objective.class")
    elif trust is not None:
        locate(target, "objective.class", trust)


def _separate_sparse_features(frame: Any, triples: str | None, rows: str, record: Record) -> tuple[Any, Any]:
    """Return the table of the file ``rows``, and its sparse features, a csr_array, or None.

    Raises UserError.
    """
    import pandas as pd

    from fcorun.data.tables.encoding import read_columns
    from fcorun.data.tables.readers import NAMED_COLUMN_ENDINGS, detect_ending, read_features

    if triples is None:
        is_matrix = hasattr(frame, "tocsr")
        return (pd.DataFrame(index=range(frame.shape[0])), frame) if is_matrix else (frame, None)
    if read_columns(str(record.folder)):
        raise UserError(f"`data.triples={triples}`: the features of {record.folder} have names: give them as columns "
                        f"of {rows}")  # fmt: skip
    if detect_ending(Path(rows), rows) not in NAMED_COLUMN_ENDINGS:
        raise UserError(f"`data.triples={triples}` has the features of a table with named columns: give NEW, one of "
                        f"{', '.join(NAMED_COLUMN_ENDINGS)}")  # fmt: skip
    return frame, read_features(triples, frame, rows).widen(record.summary["data"]["features"]).csr


def _check_columns(arguments: Any, columns: list, has_clients: bool, client_column: str | None) -> None:
    """Raise UserError for names of ``--client`` and ``--keep`` that are not among the columns of the file."""
    if arguments.client and not has_clients:
        raise UserError(
            f"--client {arguments.client}: there is no such column in {arguments.rows}; leave it out, or give another"
        )
    for name in arguments.keep:
        if name in columns:
            continue
        if name == client_column:
            raise UserError(f"--keep {name}: the predictions name the clients anyway: leave it out")
        suggestion = suggest_name(name, list(map(str, columns)))
        raise UserError(f"--keep {name}: there is no such column in {arguments.rows}; {suggestion}")


def _write_predictions(predictions: Any, out: Path | None) -> list[str]:
    """Write predictions to the file ``out``, or to the screen if it is None, and return remarks on the file."""
    if out is not None:
        write_atomically(out, TABLE_WRITERS[out.suffix](predictions))
        return [f"{out}: {len(predictions)} predictions", *warn_of_formulas([out])]
    if sys.stdout.isatty():
        sys.stdout.write(escape_controls(frame_csv(_round_for_screen(predictions)).decode()))
    else:
        sys.stdout.write(frame_csv(predictions).decode())
    return []


def _round_for_screen(predictions: Any) -> Any:
    """Return the predictions with six significant digits of each number that the model computed."""
    computed = [name for name in predictions if is_prediction_column(str(name))]
    numbers = predictions[computed].select_dtypes("floating")
    return predictions.assign(**{name: [float(f"{value:.6g}") for value in numbers[name]] for name in numbers})


def _describe_thresholds(folder: Path, record: Record) -> list[str]:
    """Return a sentence on thresholds of the positive class other than 0.5, with the rule that chose them.

    The rule of a selection is in ``folder``: its refit has the number that the rule chose.
    """
    section = record.summary.get("threshold")
    if not section:
        return []
    from fcorun.experiment.threshold_rule import DEFAULT_THRESHOLD

    of_selection = SELECTION.read(folder)
    rule = (of_selection.get("threshold") or section).get("rule")
    positive = record.summary["data"]["classes"][1]
    origin = f" ({rule})" if isinstance(rule, str) else ""
    shared = section.get(SHARED, DEFAULT_THRESHOLD)
    personal = section.get(PERSONAL, shared) if record.personal else shared
    if shared == personal == DEFAULT_THRESHOLD:
        return []
    numbers = f"{shared:.3g}"
    if personal != shared:
        numbers += f", of personal models {personal:.3g},"
    return [f"positive class {positive} from {numbers} on{origin}"]


def find_record(folder: Path) -> Record:
    """Return the record in a folder; in that of a selection, or a stability selection, its refit.

    Raises UserError for a folder with no record or several, and for a selection without a valid refit.
    """
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}; give that of a run that is done")
    if selection := SELECTION.read(folder):
        refit = Record(folder / REFIT_FOLDER)
        chosen = {f"reg.{selection.get('param_name')}": selection.get("chosen")}
        if second := selection.get("second"):
            chosen[second.get("key")] = second.get("chosen")
        is_refit = all(refit.flat_config.get(key) == value for key, value in chosen.items())
        if selection.get("status") != "done" or not is_refit:
            raise UserError(f"{folder} holds a selection that is not done, or whose refit is not of its choice: give "
                            "the same fcorun select again, which resumes it")  # fmt: skip
        return refit
    if stability := STABILITY.read(folder):
        refit = Record(folder / REFIT_FOLDER)
        columns = stability.get("refit")
        if stability.get("status") != "done" or not columns or refit.flat_config.get("data.only") != str(columns):
            raise UserError(f"{folder} holds a stability selection without a refit of its columns: give the same "
                            "fcorun stability with refit=true")  # fmt: skip
        return refit
    if not (folder / "status.json").exists():
        advice = "give the folder of one that is done"
        if records := load_records(folder):
            advice = f"give one of the {len(records)} below it, such as {records[0].folder}"
        raise UserError(f"{folder} is no record of a run; {advice}")
    return Record(folder)
