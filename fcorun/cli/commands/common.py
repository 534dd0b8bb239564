"""What the commands have in common: their parser, the records that they are given, options that judge them."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from fcorun.cli.terminal import Terminal
from fcorun.errors import UserError
from fcorun.metrics import CATALOGUE
from fcorun.records.formats import frame_csv, frame_parquet
from fcorun.records.record import Record, load_records
from fcorun.reports.build_table import drop_superseded

# how a table is written, by the ending of its file
TABLE_WRITERS = {".csv": frame_csv, ".parquet": frame_parquet}


class CommandParser(argparse.ArgumentParser):
    """The parser of a command, by default of one that takes folders; it complains as the rest of fcorun does."""

    def __init__(self, name: str, about: str | None, folders: bool = True):
        super().__init__(prog=f"fcorun {name}", description=about)
        if folders:
            about = "records are looked for in and under it"
            self.add_argument("folders", nargs="+", type=Path, metavar="DIR", help=about)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; {self.prog} --help shows the options")

    def add_config_dir_option(self) -> None:
        """The option that names a folder of the user's own."""
        self.add_argument("--config-dir", "-cd", metavar="DIR", help="your own files: DIR/algo, DIR/experiment, ...")

    def add_trust_option(self) -> None:
        """The option that names a folder whose code a record may use."""
        told = "import classes that the record names, and that are neither fcorun's nor your own, from DIR"
        self.add_argument("--trust", metavar="DIR", help=told)

    def add_metric_options(self) -> None:
        """Options that say which point is best."""
        names = ", ".join(CATALOGUE.comparable)
        self.add_argument(
            "--metric", help=f"what the best point is best in: {names}; by default the one that matters most"
        )
        self.add_argument(
            "--tail-rounds", type=_count, metavar="N", help="average over the evaluations of the last N rounds"
        )


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} must be a whole number, at least 1")
    return int(text)


def load_records_in(folders: Sequence[Path]) -> list[Record]:
    """The records in these folders. Raises UserError for a folder that is not there or has none."""
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"there is no folder {folder}; give one that holds records")
        if not load_records(folder):
            raise UserError(f"{folder} holds no records; give a folder that fcorun has written, such as outputs")
    return load_records(*folders)


def select_latest(records: Sequence[Record], out: Console) -> list[Record]:
    """Each run once, and of one configuration by other code, or on other data, the record that was asked for last."""
    kept, aside = drop_superseded(records)
    if aside:
        out.print(aside)
    return kept


def make_console(verbose: bool = True) -> Console:
    """Where a command prints, unless it is not to be ``verbose``."""
    return Terminal(file=sys.stdout, highlight=False, soft_wrap=True, quiet=not verbose)


def check_output_file(path: Path, endings: Sequence[str], force: bool) -> None:
    """Raises UserError for a file that cannot be written: another ending, one that exists, a folder that does not."""
    if path.suffix not in endings:
        *first, last = endings
        raise UserError(f"--out {path} must end in {', '.join(first)} or {last}" if first else
                        f"--out {path} must end in {last}")  # fmt: skip
    if path.exists() and not force:
        raise UserError(f"--out {path} exists; give --force to replace it, or another name")
    if not path.parent.is_dir():
        raise UserError(f"--out {path}: there is no folder {path.parent}; make it, or give another name")
