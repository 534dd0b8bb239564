"""Common parts of the commands: their parser, their console, the records that they are given, and output files."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from fcorun.base.errors import EscapedControls, UserError
from fcorun.base.metrics import CATALOGUE
from fcorun.base.records.formats import frame_csv, frame_parquet
from fcorun.base.records.record import Record, load_records
from fcorun.reports.build_table import drop_superseded

# the writer of a table for each ending of a file
TABLE_WRITERS = {".csv": frame_csv, ".parquet": frame_parquet}


class Terminal(EscapedControls, Console):
    """A console for texts of records and files, which shows their control characters as escapes."""


class CommandParser(argparse.ArgumentParser):
    """The parser of a command, by default with an argument for folders. Its errors are UserErrors."""

    def __init__(self, name: str, description: str | None, folders: bool = True):
        super().__init__(prog=f"fcorun {name}", description=description)
        if folders:
            help_text = "a folder with records, also in its subfolders"
            self.add_argument("folders", nargs="+", type=Path, metavar="DIR", help=help_text)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; {self.prog} --help shows the options")

    def add_config_dir_option(self, default: str | None = None) -> None:
        """Add the option for the user's own folder of configuration files."""
        help_text = "your own files: DIR/algo, DIR/experiment, ..."
        if default is not None:
            help_text += f"; by default {default}"
        self.add_argument("--config-dir", "-cd", metavar="DIR", default=default, help=help_text)

    def add_trust_option(self) -> None:
        """Add the option for a folder whose code a record may use."""
        help_text = "import classes that the record names, and that are neither fcorun's nor your own, from DIR"
        self.add_argument("--trust", metavar="DIR", help=help_text)

    def add_metric_options(self) -> None:
        """Add the options that define the best point of a sweep."""

        def positive_int(text: str) -> int:
            if not text.isdecimal() or int(text) < 1:
                raise argparse.ArgumentTypeError(f"{text} must be a whole number, at least 1")
            return int(text)

        names = ", ".join(CATALOGUE.comparable)
        self.add_argument(
            "--metric", help=f"rank points by this metric: {names}; by default the most important one that was measured"
        )
        self.add_argument(
            "--tail-rounds", type=positive_int, metavar="N", help="average over the evaluations of the last N rounds"
        )


def load_records_in(folders: Sequence[Path]) -> list[Record]:
    """Return the records in and under some folders.

    Raises UserError for a folder that does not exist or holds no records.
    """
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"there is no folder {folder}; give one that holds records")
        if not load_records(folder):
            raise UserError(f"{folder} holds no records; give a folder that fcorun has written, such as outputs")
    return load_records(*folders)


def select_latest(records: Sequence[Record], out: Console) -> list[Record]:
    """Return the records without superseded ones, and print how many these are.

    A copy of a run is superseded, and so are, of several finished records of one configuration (with other code or
    data), all but the one that was finished or asked for last.
    """
    current, summary = drop_superseded(records)
    if summary:
        out.print(summary)
    return current


def make_console(verbose: bool = True) -> Console:
    """Return the console of a command; it prints nothing unless ``verbose``."""
    return Terminal(file=sys.stdout, highlight=False, emoji=False, soft_wrap=True, quiet=not verbose)


def check_output_file(path: Path, endings: Sequence[str], force: bool) -> None:
    """Raise UserError if a file cannot be written: by its ending, because it exists, or for lack of its folder."""
    if path.suffix not in endings:
        choices = " or ".join(filter(None, [", ".join(endings[:-1]), endings[-1]]))
        raise UserError(f"--out {path} must end in {choices}")
    if path.exists() and not force:
        raise UserError(f"--out {path} exists; give --force to replace it, or another name")
    if not path.parent.is_dir():
        raise UserError(f"--out {path}: there is no folder {path.parent}; make it, or give another name")
