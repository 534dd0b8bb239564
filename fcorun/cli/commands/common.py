"""What the commands have in common: their parser, the records that they are given, options that judge them."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import NoReturn, TypeVar

from rich.console import Console

from fcorun.config import build
from fcorun.errors import UserError
from fcorun.metrics import CATALOGUE
from fcorun.records.record import Record, load_records

T = TypeVar("T")


class Parser(argparse.ArgumentParser):
    """The parser of a command, by default of one that takes folders; it complains as the rest of fcorun does."""

    def __init__(self, name: str, about: str | None, folders: bool = True):
        super().__init__(prog=f"fcorun {name}", description=about)
        if folders:
            about = "records are looked for in and under it"
            self.add_argument("folders", nargs="+", type=Path, metavar="DIR", help=about)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; {self.prog} --help shows the options")

    def add_config_dir(self) -> None:
        """The option that names a folder of the user's own."""
        self.add_argument("--config-dir", "-cd", metavar="DIR", help="your own files: DIR/algo, DIR/experiment, ...")

    def add_judging(self) -> None:
        """Options that say which point is best."""
        names = ", ".join(CATALOGUE.judged)
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


def records_in(folders: Sequence[Path]) -> list[Record]:
    """The records in these folders. Raises UserError for a folder that is not there or has none."""
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"there is no folder {folder}; give one that holds records")
        if not load_records(folder):
            raise UserError(f"{folder} holds no records; give a folder that fcorun has written, such as outputs")
    return load_records(*folders)


def distinct(records: Sequence[Record], out: Console) -> list[Record]:
    """Each run once, finished records first: one that lies in several folders would count as several seeds."""
    found: dict[str, Record] = {}
    for record in records:
        identity = record.status.get("identity") or str(record.folder)
        if identity not in found or (record.finished and not found[identity].finished):
            found[identity] = record
    kept = set(map(id, found.values()))
    if len(kept) < len(records):
        out.print(f"{len(records) - len(kept)} of {len(records)} records are of runs that lie here twice: left out")
    return [record for record in records if id(record) in kept]


def console(verbose: bool = True) -> Console:
    """Where a command prints, unless it is not to be ``verbose``."""
    return Console(file=sys.stdout, highlight=False, soft_wrap=True, quiet=not verbose)


def divided(kind: type[T], given: Sequence[str]) -> tuple[T, list[str], str | None]:
    """KEY=VALUE as the options of a command, a dataclass, and the overrides of its configuration; and what ``out`` is.

    Raises UserError for an option with no good value.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    names, values, overrides = {*(field.name for field in fields(kind)), "out"}, {}, []  # type: ignore[arg-type]
    for text in given:
        key, equals, _ = text.partition("=")
        if not equals:
            raise UserError(f"'{text}' is not KEY=VALUE")
        if key not in names:
            overrides.append(text)
            continue
        try:
            override = OverridesParser.create().parse_override(text)
        except HydraException as error:
            raise UserError(f"{text} cannot be read: give one value, or range=[LOW,HIGH]") from error
        if override.is_sweep_override():
            raise UserError(f"{text}: give one value of {key}")
        values[key] = override.value()
    out = values.pop("out", None)
    return build(kind, values), overrides, None if out is None else str(out)
