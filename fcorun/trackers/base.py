"""What a tracker is to fcorun: it is told of a record once, when that is complete."""

import os
import sys
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import ClassVar

from fcorun.errors import UserError
from fcorun.records.folder import RunFolder
from fcorun.records.record import Record


@dataclass(frozen=True)
class Tracker(ABC):
    """A tracker plug-in: a frozen dataclass of where it writes to. No part of what a run is.

    ``modules`` are the modules that it imports, ``extra`` the extra of fcorun that installs them; without them it
    cannot be made, so that a run is refused before it begins and not when it ends.
    """

    required_modules: ClassVar[tuple[str, ...]] = ()
    pip_extra: ClassVar[str] = ""

    def __post_init__(self) -> None:
        missing = [name for name in self.required_modules if find_spec(name) is None]
        if missing:
            raise UserError(
                f"tracker={self.pip_extra} needs {' and '.join(missing)}: pip install 'fcorun[{self.pip_extra}]', "
                "or tracker=none"
            )

    @abstractmethod
    def log(self, record: Record) -> None:
        """Show a complete record: configuration, rows, summary, status, files."""


def log_to_tracker(tracker: Tracker, folder: RunFolder) -> None:
    """Tell a tracker of the record that is complete in ``folder``. Where that fails, the record's run.log says why."""
    try:
        tracker.log(Record(folder.path))
    except Exception as error:
        text = "".join(traceback.format_exception(error)).rstrip()
        folder.log(f"the tracker failed\n{text}")
        _warn(type(tracker).__name__)


@cache
def _warn(name: str) -> None:
    """Say once in a process that a tracker fails."""
    print(
        f"fcorun: the tracker {name} failed; run.log of the records says why, and the records are whole",
        file=sys.stderr,
    )


def run_name(record: Record) -> str:
    """What a run is called: ALGORITHM-IDENTITY."""
    return f"{record.config['algo']['name']}-{str(record.status['identity'])[:8]}"


def flat_parameters(record: Record) -> dict[str, str | float | int | bool]:
    """The configuration with dotted keys, no values as text."""
    return {key: "null" if value is None else value for key, value in record.flat_config.items()}


def iterate_scalars(record: Record) -> Iterator[tuple[str, float, int, float]]:
    """Name, value, round and time (seconds since 1970) of all that was measured, then final and tail averages."""
    rows = record.rows
    start = os.path.getmtime(record.folder / "metrics.csv") - (rows[-1]["seconds"] if rows else 0)
    for row in rows:
        yield from ((k, v, int(row["round"]), start + row["seconds"]) for k, v in row.items() if k != "round")
    for kind in ("final", "tail"):
        for name, value in record.summary[kind].items():
            yield f"{kind}_{name}", value, int(rows[-1]["round"]), start + rows[-1]["seconds"]
