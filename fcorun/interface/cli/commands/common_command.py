"""Common parts of the commands: their parser, the records that they are given, and output files."""

import argparse
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console
from rich.progress import track

from fcorun.base.errors import UserError, abbreviate_sentences, escape_controls
from fcorun.base.metrics import CATALOGUE, without_client_metrics
from fcorun.base.override_text import format_override_value
from fcorun.base.records.formats import describe_formulas, frame_csv, frame_parquet
from fcorun.base.records.record import Record, load_records, split_damaged
from fcorun.interface.cli.terminal import Terminal
from fcorun.reports.build_table import drop_superseded

_MANY_RECORDS = 200  # take so long to read that progress is shown
# the writer of a table for each ending of a file
TABLE_WRITERS = {".csv": frame_csv, ".parquet": frame_parquet}
BASELINE_HELP = (
    "the client whose baseline hazard the risks of clients without one are by, with --at; default: that of all "
    "training rows together"
)


READING_OPTIONS = ("na", "encoding", "sheet")  # how a file is read
_LIST_OPTIONS = ("na", "keep")  # may be lists
_PATHS = ("path", "triples")


def read_data_keys(texts: Sequence[str], names: Sequence[str], help_text: str) -> dict[str, Any]:
    """Return the values of texts ``data.NAME=VALUE`` by their names; those of files are text as given.

    Raises UserError, which ends with ``help_text``, for names that are not among ``names``, and for other texts.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import ChoiceSweep
    from hydra.errors import HydraException

    from fcorun.experiment.configuration.compose import describe_hydra_error, read_mapping

    values: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        name = key.removeprefix("data.")
        if not equals or not key.startswith("data.") or name not in names:
            raise UserError(f"'{text}' is none of {help_text}")
        values[name] = value
        if name not in _PATHS:
            try:
                values[name] = read_mapping(value) or OverridesParser.create().parse_overrides([text])[0].value()
            except HydraException as error:
                raise UserError(f"{describe_hydra_error(error)}; {help_text}") from error
        if isinstance(values[name], ChoiceSweep):
            items = values[name].list
            one = format_override_value(items if name in _LIST_OPTIONS else items[0])
            raise UserError(f"{text} is a sweep, and a file is read in one way: give {shlex.quote(f'{key}={one}')}")
        if _holds_sweep(values[name]):
            raise UserError(f"{text} is a sweep, and a file is read in one way: give one value, without choice(), "
                            "range() or glob()")  # fmt: skip
    return values


def _holds_sweep(value: object) -> bool:
    """Return whether a value of Hydra, or a part of it, stands for several."""
    from hydra.core.override_parser.types import Glob, Sweep

    if isinstance(value, dict):
        return any(map(_holds_sweep, value.values()))
    if isinstance(value, list):
        return any(map(_holds_sweep, value))
    return isinstance(value, (Sweep, Glob))


def read_folder(text: str) -> str:
    """Return the folder of a text ``out=DIR``, without quotes around it. Raises UserError for no folder."""
    folder = re.sub(r"""^(['"])(.*)\1$""", r"\2", text.removeprefix("out="))
    if not folder:
        raise UserError("out= names no folder: give out=DIR")
    return folder


def word_with_dashes(*names: str) -> Callable[[str], str]:
    """Return the door of a command: options of these names have dashes, and others stay as they are."""

    def word_option(option: str) -> str:
        key, _, value = option.partition("=")
        return f"--{key} {value}" if key in names else option

    return word_option


class CommandParser(argparse.ArgumentParser):
    """The parser of a command, by default with an argument for folders. Its errors are UserErrors."""

    def __init__(self, name: str, description: str | None, folders: bool = True):
        epilog = "--config-dir DIR: your own files: DIR/algo, DIR/experiment, ..."
        super().__init__(prog=f"fcorun {name}", description=description, epilog=epilog)
        if folders:
            help_text = "a folder with records, also in its subfolders"
            self.add_argument("folders", nargs="+", type=Path, metavar="DIR", help=help_text)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; {self.prog} --help shows the options")

    def add_output_options(self, help_text: str) -> None:
        """Add the options for a file that the command writes, and for replacing that file."""
        self.add_argument("--out", type=Path, metavar="FILE", help=help_text)
        self.add_argument("--force", action="store_true", help="replace FILE if it exists")

    def add_metric_options(self) -> None:
        """Add the options that define the best point of a sweep."""

        def positive_int(text: str) -> int:
            if not text.isdecimal() or int(text) < 1:
                raise argparse.ArgumentTypeError(f"{text} must be a whole number, at least 1")
            return int(text)

        names = ", ".join(without_client_metrics(CATALOGUE.comparable))
        self.add_argument(
            "--metric", help=f"rank points by this metric: {names}; by default the most important one that was measured"
        )
        self.add_argument(
            "--tail-rounds", type=positive_int, metavar="N", help="average over the evaluations of the last N rounds"
        )


def warn_of_formulas(paths: Iterable[Path]) -> list[str]:
    """Return a warning on cells of written .csv files that a spreadsheet reads as formulas; [] without any."""
    sentence = describe_formulas({path.name: path.read_bytes() for path in paths if path.suffix == ".csv"})
    return [f"warning: {sentence}"] if sentence else []


def load_records_in(folders: Sequence[Path]) -> list[Record]:
    """Return the records in and under some folders.

    Raises UserError for a folder that does not exist or holds no records.
    """
    for folder in folders:
        if not load_records(folder):
            raise UserError(f"{folder} holds no records; give a folder that fcorun has written, such as outputs")
    return leave_out_damaged(load_records(*folders))


def leave_out_damaged(records: Sequence[Record]) -> list[Record]:
    """Return the records without a damaged file, and print which ones are left out. Raises UserError if all are."""
    is_hidden = not sys.stderr.isatty() or len(records) < _MANY_RECORDS
    shown = track(records, "reading records", console=Console(stderr=True), transient=True, disable=is_hidden)
    whole, damaged = split_damaged(shown, Record.check)
    if damaged and not whole:
        raise UserError(abbreviate_sentences(damaged))
    if damaged:
        print(escape_controls(f"fcorun: left out: {abbreviate_sentences(damaged)}"), file=sys.stderr)
    return whole


def select_latest(records: Sequence[Record], out: Terminal) -> list[Record]:
    """Return the records without superseded ones, and print how many these are.

    A copy of a run is superseded, and so are, of several finished records of one configuration (with other code or
    data), all but the one that was finished or asked for last.
    """
    current, summary = drop_superseded(records)
    if summary:
        out.print(summary)
    return current


def check_output_file(path: Path | None, endings: Sequence[str], force: bool) -> None:
    """Raise UserError if a file cannot be written: by its ending, because it exists, or for lack of its folder.

    Without a file, ``force`` is refused.
    """
    if path is None:
        if force:
            raise UserError("--force replaces the file of --out: give --out FILE too, or leave --force out")
        return
    if path.suffix not in endings:
        choices = " or ".join(filter(None, [", ".join(endings[:-1]), endings[-1]]))
        raise UserError(f"--out {path} must end in {choices}")
    if path.exists() and not force:
        raise UserError(f"--out {path} exists; give --force to replace it, or another name")
    if not path.parent.is_dir():
        raise UserError(f"--out {path}: there is no folder {path.parent}; make it, or give another name")


def check_new(out: Path) -> None:
    """Raise UserError for a file or folder OUT that exists, or that has no folder to be made in."""
    if out.exists():
        raise UserError(f"{out} exists, and this command replaces nothing: give another name")
    if not out.parent.is_dir():
        raise UserError(f"{out}: there is no folder {out.parent}; make it, or give another name")
