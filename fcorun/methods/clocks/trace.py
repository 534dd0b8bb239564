"""Clients whose speeds are measured, and listed in a file."""

import csv
import hashlib
import io
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fcorun.base.config import NonNegative, PathOption
from fcorun.base.errors import UserError
from fcorun.methods.clocks.clock import ClientSpeeds, Clock

_COLUMNS = ("gradients_per_second", "bytes_per_second", "latency")


@dataclass(frozen=True, kw_only=True)
class TraceClock(Clock):
    """A clock that reads the speed of each client from a file.

    Attributes:
        path: a CSV file with the columns client, gradients_per_second, bytes_per_second and latency, in seconds, and a
            row for each client.
        variation: the standard deviation of the logarithm of a factor of the computing time, drawn for each round.
    """

    source = "ours"

    path: PathOption
    variation: NonNegative = 0.0

    def speeds(self, clients):
        rows = self._read_rows()
        missing = next((name for name in clients if name not in rows), None)
        if missing is not None:
            raise UserError(f"`clock.path={self.path}` has no row for client {missing}: give a row for each client")
        gradients, sent, latency = np.array([rows[name] for name in clients]).T
        return ClientSpeeds(gradients, sent, latency, self.variation)

    def sources(self):
        return hashlib.sha256(self._read_bytes()).hexdigest()[:16]

    def _read_bytes(self) -> bytes:
        try:
            return Path(self.path).read_bytes()
        except OSError as error:
            raise UserError(f"`clock.path={self.path}` cannot be read ({error.strerror}): give a CSV file") from error

    def _read_rows(self) -> dict[str, tuple[float, ...]]:
        """Return the numbers of each client, by name. Raises UserError."""
        try:
            table = list(csv.DictReader(io.StringIO(self._read_bytes().decode("utf-8-sig"), newline="")))
        except (UnicodeDecodeError, csv.Error) as error:
            raise UserError(f"`clock.path={self.path}` cannot be read ({error}): give a CSV file") from error
        rows: dict[str, tuple[float, ...]] = {}
        for row in table:
            absent = next((column for column in ("client", *_COLUMNS) if row.get(column) is None), None)
            if absent is not None:
                raise UserError(f"`clock.path={self.path}` has no column '{absent}', or a row without it: give the "
                                f"columns client, {', '.join(_COLUMNS)}")  # fmt: skip
            if row["client"] in rows:
                raise UserError(
                    f"`clock.path={self.path}` has client {row['client']} more than once: give one row each"
                )
            rows[row["client"]] = tuple(self._parse(row, column) for column in _COLUMNS)
        return rows

    def _parse(self, row: dict[str, str], column: str) -> float:
        try:
            value = float(row[column])
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and (value > 0 or (value == 0 and column == "latency"))):
            raise UserError(f"`clock.path={self.path}`: {column} of client {row['client']} is '{row[column]}': give a "
                            f"finite number {'of at least 0' if column == 'latency' else 'above 0'}")  # fmt: skip
        return value
