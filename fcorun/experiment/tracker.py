"""The contract of a tracker, which follows runs and gets each record when it is complete, and what it gets of them.

A tracker sends all that it gets: what tells of single patients, and numbers of few rows
(``fcorun.base.records.few_rows``), stay before it, in ``call_tracker``.
"""

import os
import shutil
import sys
import tempfile
import threading
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from fcorun.base.config import PluginBase
from fcorun.base.errors import UserError
from fcorun.base.records.contents import STATUS
from fcorun.base.records.few_rows import FewRows
from fcorun.base.records.record import RECORD_FILES, Record, RunFolder

Row = Mapping[str, float]  # an evaluation, as in metrics.csv
_LOCK = threading.Lock()


@dataclass(frozen=True)
class SentRecord(Record):
    """A copy of a record without what no tracker may send: the gate that each tracker gets its records through.

    Attributes:
        place: the folder of the record itself.
    """

    place: Path

    @classmethod
    def copy(cls, place: Path, few: FewRows, folder: Path) -> "SentRecord":
        """Copy what ``few`` leaves of a record in ``place`` to an empty folder."""
        left_out = few.list_files(place)
        for name in RECORD_FILES:
            source, target = place / name, folder / name
            if name in left_out or not source.exists():
                continue
            if source.is_dir():
                shutil.copytree(source, target)
            elif (rest := few.read_rest(source)) is not None:
                target.write_text(rest, encoding="utf-8")
                shutil.copystat(source, target)  # the time tells when the run ended
            else:
                shutil.copy2(source, target)
        return cls(folder, place)

    @property
    def status(self) -> dict[str, Any]:
        """The content of status.json. No lock of a copy tells that its run goes on."""
        return STATUS.read(self.folder)


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

    def on_evaluation(self, record: SentRecord, rows: Sequence[Row]) -> None:
        """Send evaluations of a run that goes on, in the order of their rounds; ``log`` follows at its end.

        The record has its configuration and status. A tracker without this method gets complete records alone.
        """

    def on_failure(self, record: SentRecord) -> None:
        """End what ``on_evaluation`` began for a run that failed or was interrupted. If it goes on, it begins anew."""

    @abstractmethod
    def log(self, record: SentRecord) -> None:
        """Send a complete record: configuration, rows, summary, status, files.

        The files are a copy, which is deleted when the method returns; ``record.place`` is the folder of the record.
        """


def call_tracker(
    method: Callable[..., None], folder: RunFolder, few: FewRows | None = None, rows: Sequence[Row] | None = None
) -> bool:
    """Call a method of a tracker with what may be sent of the record in a folder; return whether it succeeded.

    A failure is written into the run.log of the record. One thread at a time calls trackers, some of which have one
    current run in a process.

    Args:
        few: the numbers of few rows; None: as the record tells them.
        rows: evaluations that the record lacks, for ``Tracker.on_evaluation``.
    """
    try:
        with _LOCK, tempfile.TemporaryDirectory() as copy:
            few = few or FewRows.find([folder.path])
            record = SentRecord.copy(folder.path, few, Path(copy))
            if rows is None:
                method(record)
            else:
                method(record, few.drop_metrics(list(rows)))
    except Exception as error:
        text = "".join(traceback.format_exception(error)).rstrip()
        folder.log(f"the tracker failed\n{text}")
        _warn_once(type(method.__self__).__name__)  # type: ignore[attr-defined]
        return False
    return True


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


Scalar = tuple[str, float, int, float]  # name, value, round and time, in seconds since 1970


@dataclass
class OpenRun:
    """A run of a tracker's service that goes on: the service's object or identifier of it, and the rounds it has."""

    run: Any
    rounds: set[int] = field(default_factory=set)

    def take_new(self, record: SentRecord, rows: Sequence[Row] = ()) -> list[Row]:
        """Return the evaluations that the service lacks, those of the record first, and count them as sent."""
        new = []
        for row in [*record.rows, *rows]:
            if int(row["round"]) not in self.rounds:
                self.rounds.add(int(row["round"]))
                new.append(row)
        return new


class OpenRuns:
    """The runs of a service that this process has begun, by the folder and the identity of their records."""

    def __init__(self) -> None:
        self._runs: dict[tuple[Path, str], OpenRun] = {}

    def find_or_begin(self, record: SentRecord, begin: Callable[[], Any]) -> OpenRun:
        """Return the run of a record, which ``begin`` begins if there is none."""
        key = _key_of_run(record)
        if key not in self._runs:
            self._runs[key] = OpenRun(begin())
        return self._runs[key]

    def close(self, record: SentRecord) -> OpenRun | None:
        """Return the run of a record, if there is one, and forget it."""
        return self._runs.pop(_key_of_run(record), None)


def _key_of_run(record: SentRecord) -> tuple[Path, str]:
    return record.place.resolve(), str(record.status["identity"])


def metrics_of(row: Row) -> dict[str, float]:
    """Return the metrics of an evaluation, without its round."""
    return {name: value for name, value in row.items() if name != "round"}


def scalars_of_rows(rows: Sequence[Row], now: float) -> Iterator[Scalar]:
    """Yield every metric of evaluations, the last of which is of the time ``now``."""
    for row in rows:
        for name, value in metrics_of(row).items():
            yield name, value, int(row["round"]), now - rows[-1]["seconds"] + row["seconds"]


def final_scalars(record: Record) -> Iterator[Scalar]:
    """Yield the final values and tail averages of a complete record."""
    for kind in ("final", "tail"):
        for name, value in record.summary[kind].items():
            yield f"{kind}_{name}", value, int(record.rows[-1]["round"]), end_time(record)


def end_time(record: Record) -> float:
    """Return when the last evaluation of a complete record was written, in seconds since 1970."""
    return os.path.getmtime(record.folder / "metrics.csv")


@dataclass(frozen=True)
class NoTracker(Tracker):
    """A tracker that ignores records."""

    def log(self, record):
        pass
