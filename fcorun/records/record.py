"""A run is its record: one folder, whose files appear whole or not at all."""

import contextlib
import csv
import io
import json
import time
import traceback
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import filelock
import numpy as np
import yaml

from fcorun.errors import UserError
from fcorun.metrics import WHOLE
from fcorun.system.files import write_whole

if TYPE_CHECKING:
    import pandas as pd

FILES = (
    "config.yaml",
    "metrics.csv",
    "summary.json",
    "solution.npz",
    "personal.npz",
    "curves.png",
    "run.log",
    "status.json",
)
_CHECKPOINT, _LOCK = ".checkpoint.npz", ".lock"
FINISHED = ("done", "diverged")
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


@dataclass(frozen=True)
class Record:
    """A run that is on disk, read when asked for."""

    folder: Path

    @property
    def status(self) -> dict[str, Any]:
        """``status`` (running, done, diverged, failed, interrupted), ``reason``, ``identity``, ...; or empty."""
        try:
            found = json.loads((self.folder / "status.json").read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to compute."""
        return self.status.get("status") in FINISHED

    @cached_property
    def config(self) -> dict[str, Any]:
        """The resolved configuration."""
        return yaml.safe_load((self.folder / "config.yaml").read_text())

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Final, best and tail-averaged metrics, times, versions."""
        return json.loads((self.folder / "summary.json").read_text())

    @cached_property
    def metrics(self) -> "pd.DataFrame":
        """A row an evaluation: round, seconds, bytes_up, bytes_down, grad_evals, prox_evals, then metrics."""
        import pandas as pd

        text = pd.read_csv(self.folder / "metrics.csv", dtype=str)  # Python's float() is exact in any version of pandas
        return text.astype({name: int if name in WHOLE else float for name in text})

    @cached_property
    def solution(self) -> dict[str, np.ndarray]:
        """The parameters of the output, by name."""
        with np.load(self.folder / "solution.npz") as found:
            return dict(found)

    @cached_property
    def personal(self) -> dict[str, np.ndarray]:
        """The clients' own models by parameter, with a leading axis M, and ``client``, their names; empty: none."""
        try:
            with np.load(self.folder / "personal.npz") as found:
                return dict(found)
        except FileNotFoundError:
            return {}


def load_records(*roots: str | Path) -> list[Record]:
    """The records in and under these folders, in the order of their paths. Raises UserError for a folder not there."""
    for root in roots:
        if not Path(root).is_dir():
            raise UserError(f"there is no folder {root}; give one that holds records")
    folders = {path.parent for root in roots for path in Path(root).rglob("status.json")}
    return [Record(folder) for folder in sorted(folders)]


@dataclass
class RunFolder:
    """The folder of a run that is being computed. Nothing is written before ``claim``."""

    folder: Path
    identity: str
    lock: Any = field(default=None, repr=False)

    def look(self, force: bool = False) -> str:
        """What is there: "new" (to compute), "resume", or "finished" (the same run). Changes nothing.

        Raises UserError when the folder holds another run and ``force`` is not set, or files that a run would replace.
        """
        record = Record(self.folder)
        status = record.status
        if not status:
            clash = [name for name in FILES if (self.folder / name).exists()]
            if clash:
                raise UserError(
                    f"hydra.run.dir={self.folder} has a file {clash[0]} that is of no run; choose another folder"
                )
            return "new"
        if force:
            return "new"
        if status.get("identity") != self.identity:
            raise UserError(
                f"hydra.run.dir={self.folder} holds another run ({status.get('label', 'unknown')}, "
                f"{status.get('status')}); choose another folder, or force=true to replace it"
            )
        return "finished" if record.finished else "resume"

    def claim(self, force: bool = False) -> str:
        """``look``, and take the folder for this process unless it is finished; "new" leaves it without old files.

        Or "locked", when another process has it: the lock is the operating system's and ends with its process. Raises
        UserError when the folder cannot be written, and as ``look`` does.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.lock = filelock.FileLock(self.folder / _LOCK)
            self.lock.acquire(timeout=0)
        except filelock.Timeout:
            self.lock = None
            return "locked"
        except OSError as error:
            self.lock = None
            raise UserError(
                f"hydra.run.dir={self.folder} cannot be written ({error.strerror}); choose another folder"
            ) from error
        try:
            found = self.look(force)
            if found == "new":  # in an order that leaves the old record or a resumable one, whenever it is broken off
                (self.folder / _CHECKPOINT).unlink(missing_ok=True)
                self.set_status("running", "")
                self._unlink(set(FILES) - {"status.json"})
            elif found == "resume":
                self._unlink(())  # what a killed writer was in the middle of
        except BaseException:
            self.release()
            raise
        if found == "finished":
            self.release()
        return found

    def _unlink(self, names: Iterable[str]) -> None:
        for path in (*(self.folder / name for name in names), *self.folder.glob(".*.tmp")):
            path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Delete the record's files, and the folder if nothing else is in it. Raises UserError if it is in use."""
        if self.claim(force=True) == "locked":
            raise UserError(f"{self.folder} is being computed by another process; wait for it to end")
        self._unlink(FILES)
        self.release()
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    def release(self) -> None:
        """Give the folder back."""
        if self.lock is not None:
            (self.folder / _LOCK).unlink(missing_ok=True)
            self.lock.release()
            self.lock = None

    def write(self, name: str, content: bytes | str) -> None:
        """Write a file whole."""
        write_whole(self.folder / name, content)

    def set_status(self, status: str, label: str, reason: str = "", **more: Any) -> None:
        """Write status.json."""
        content = {"status": status, "reason": reason, "label": label, "identity": self.identity, **more}
        self.write("status.json", json.dumps(content, indent=2) + "\n")

    def log(self, line: str) -> None:
        """Add a line to run.log, with the time in UTC."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
        with (self.folder / "run.log").open("a") as file:
            file.write(f"{stamp}  {line}\n")

    def fail(self, error: BaseException, label: str) -> None:
        """Record a failure: the traceback in run.log, one line in status.json."""
        self.log("failed\n" + "".join(traceback.format_exception(error)).rstrip())
        lines = str(error).strip().splitlines()
        self.set_status("failed", label, f"{type(error).__name__}: {lines[0] if lines else ''}")

    def save_checkpoint(self, leaves: list, round_: int, seconds: float, rows: list[dict]) -> None:
        """Keep what is needed to go on from here."""
        buffer = io.BytesIO()
        about = json.dumps({"round": round_, "seconds": seconds, "rows": rows})
        arrays = {f"leaf{i}": np.asarray(leaf) for i, leaf in enumerate(leaves)}
        np.savez(buffer, about=np.frombuffer(about.encode(), np.uint8), **arrays)  # type: ignore[arg-type]
        self.write(_CHECKPOINT, buffer.getvalue())

    def load_checkpoint(self) -> tuple[list, int, float, list[dict]] | None:
        """What ``save_checkpoint`` kept; None if there is nothing, or nothing that can be read."""
        try:
            with (self.folder / _CHECKPOINT).open("rb") as file, np.load(file) as found:
                about = json.loads(bytes(found["about"]))
                leaves = [found[f"leaf{i}"] for i in range(len(found.files) - 1)]
        except (FileNotFoundError, EOFError, ValueError, KeyError, zipfile.BadZipFile):
            return None
        return leaves, about["round"], about["seconds"], about["rows"]

    def drop_checkpoint(self) -> None:
        """The run is over."""
        (self.folder / _CHECKPOINT).unlink(missing_ok=True)


def yaml_text(config: dict[str, Any]) -> str:
    """A configuration as YAML, its keys in their order."""
    return yaml.dump(config, Dumper=_DUMPER, sort_keys=False)


def csv_text(rows: Iterable[dict]) -> str:
    """Rows as CSV, numbers with all their digits."""
    rows = list(rows)
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def npz_bytes(arrays: dict[str, np.ndarray]) -> bytes:
    """Named arrays as the content of an .npz file."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()
