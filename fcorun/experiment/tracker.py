"""The contract of a tracker, which receives each record once, when the record is complete; and no tracker."""

import os
import sys
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import ClassVar

from fcorun.base.config import PluginBase
from fcorun.base.errors import UserError
from fcorun.base.records.record import Record, RunFolder


@dataclass(frozen=True)
class Tracker(PluginBase, ABC):
    """A tracker plug-in: a frozen dataclass with the destination. No part of a run's identity.

    Attributes:
        required_modules: the modules that the tracker imports.
        pip_extra: the extra of fcorun that installs the modules.
    """

    required_modules: ClassVar[tuple[str, ...]] = ()
    pip_extra: ClassVar[str] = ""

    def check_modules(self) -> None:
        """Raise UserError, before a run starts, if one of the modules is not installed."""
        missing = [name for name in self.required_modules if find_spec(name) is None]
        if missing:
            raise UserError(
                f"`tracker={self.pip_extra}` needs {' and '.join(missing)}: pip install 'fcorun[{self.pip_extra}]', "
                "or `tracker=none`"
            )

    @abstractmethod
    def log(self, record: Record) -> None:
        """Send a complete record: configuration, rows, summary, status, files."""


def log_to_tracker(tracker: Tracker, record: Record, folder: RunFolder) -> None:
    """Send the complete record of a folder to a tracker; write a failure of the tracker into the record's run.log."""
    try:
        tracker.log(record)
    except Exception as error:
        text = "".join(traceback.format_exception(error)).rstrip()
        folder.log(f"the tracker failed\n{text}")
        _warn_once(type(tracker).__name__)


@cache
def _warn_once(name: str) -> None:
    """Warn once in a process that a tracker fails."""
    print(
        f"fcorun: the tracker {name} failed; run.log of the records has the error, and the records are complete",
        file=sys.stderr,
    )


def run_name(record: Record) -> str:
    """Return the name of a run, ALGORITHM-IDENTITY."""
    return f"{record.config['algo']['name']}-{str(record.status['identity'])[:8]}"


def flat_parameters(record: Record) -> dict[str, str | float | int | bool]:
    """Return the configuration with dotted keys; None becomes "null"."""
    return {key: "null" if value is None else value for key, value in record.flat_config.items()}


def iterate_scalars(record: Record) -> Iterator[tuple[str, float, int, float]]:
    """Yield name, value, round and time (seconds since 1970) of every metric, then of final and tail averages."""
    rows = record.rows
    start = os.path.getmtime(record.folder / "metrics.csv") - (rows[-1]["seconds"] if rows else 0)
    for row in rows:
        for name, value in row.items():
            if name != "round":
                yield name, value, int(row["round"]), start + row["seconds"]
    for kind in ("final", "tail"):
        for name, value in record.summary[kind].items():
            yield f"{kind}_{name}", value, int(rows[-1]["round"]), start + rows[-1]["seconds"]


@dataclass(frozen=True)
class NoTracker(Tracker):
    """A tracker that ignores records."""

    def log(self, record):
        pass
