"""The folder of a run that is being computed."""

import contextlib
import os
import time
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fcorun.errors import UserError, describe_error
from fcorun.plugin_code import PluginCode
from fcorun.records import formats, locks
from fcorun.records.record import PLUGIN_FOLDER, PLUGIN_INDEX, RECORD_FILES, Record
from fcorun.system.files import append_line, remove_path, write_atomically

_CHECKPOINT = ".checkpoint.npz"
_STATES = ".states.bin"  # goes with it


@dataclass
class RunFolder:
    """The folder of a run that is being computed. Nothing is written before ``claim``."""

    path: Path
    identity: str
    lock: Any = field(default=None, repr=False)

    def inspect(self, force: bool = False) -> str:
        """What is there: "new" (to compute), "resume", or "finished" (the same run). Changes nothing.

        Raises UserError when the folder holds another run and ``force`` is not set, or files that a run would replace.
        """
        record, clash = Record(self.path), self._first_file()
        status = record.status  # after the files: a process that begins meanwhile writes it before any other
        if not status:
            if clash and self._first_file():  # and one that removes a record, after them
                raise UserError(
                    f"hydra.run.dir={self.path} has a file {clash} that is of no run; choose another folder"
                )
            return "new"
        if force:
            return "new"
        if status.get("identity") != self.identity:
            raise UserError(
                f"hydra.run.dir={self.path} holds another run ({status.get('label', 'unknown')}, "
                f"{status.get('status')}); choose another folder, or force=true to replace it"
            )
        return "finished" if record.finished else "resume"

    def touch(self) -> None:
        """Note that the run that is here was asked for again: of records of one configuration, by different code or on
        other data, tables take that which was asked for last."""
        with contextlib.suppress(OSError):
            os.utime(self.path / "status.json")

    def _first_file(self) -> str:
        """A file that is there and that a run would replace; empty for none."""
        return next((name for name in RECORD_FILES if (self.path / name).exists()), "")

    def claim(self, force: bool = False, label: str = "") -> str:
        """``look``, and take the folder for this process unless it is finished; "new" leaves it without old files,
        and with a status that says ``label``.

        Or "locked", when another process has it: the lock is the operating system's and ends with its process. Raises
        UserError when the folder cannot be written, and as ``look`` does.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.lock = locks.try_lock(self.path)
        except OSError as error:
            raise UserError(
                f"hydra.run.dir={self.path} cannot be written ({error.strerror}); choose another folder"
            ) from error
        if self.lock is None:
            return "locked"
        try:
            found = self.inspect(force)
            if found == "new":  # in an order that leaves the old record or a resumable one, whenever it is broken off
                self.delete_checkpoint()
                self.mark_running(label)
                self._unlink(set(RECORD_FILES) - {"status.json"})
            elif found == "resume":
                links = [name for name in (*RECORD_FILES, _CHECKPOINT, _STATES) if (self.path / name).is_symlink()]
                self._unlink(
                    [*links, PLUGIN_FOLDER]
                )  # nothing is written through a link; copies of plug-ins are made anew
        except BaseException:
            self.release()
            raise
        if found == "finished":
            self.touch()
            self.release()
        return found

    def _unlink(self, names: Iterable[str]) -> None:
        for path in (*(self.path / name for name in names), *self.path.glob(".*.tmp")):
            remove_path(path)

    def remove(self) -> None:
        """Delete the record's files, and the folder if nothing else is in it. Raises UserError if it is in use."""
        if self.claim(force=True) == "locked":
            raise UserError(f"{self.path} is being computed by another process; wait for it to end")
        self._unlink(RECORD_FILES)
        self.release()
        with contextlib.suppress(OSError):
            self.path.rmdir()

    def release(self) -> None:
        """Give the folder back."""
        if self.lock is not None:
            (self.path / locks.LOCK_FILE).unlink(missing_ok=True)
            self.lock.release()
            self.lock = None

    def write_file(self, name: str, content: bytes | str) -> None:
        """Write a file whole."""
        write_atomically(self.path / name, content)

    def save_plugins(self, plugins: Mapping[str, PluginCode]) -> None:
        """Keep copies of the user's own files and their digests, of the plug-ins of these sections."""
        if not plugins:
            return
        (self.path / PLUGIN_FOLDER).mkdir(exist_ok=True)
        for code in plugins.values():
            for place, content in code.files.items():
                (self.path / PLUGIN_FOLDER / place).parent.mkdir(parents=True, exist_ok=True)
                self.write_file(f"{PLUGIN_FOLDER}/{place}", content)
        self.write_file(PLUGIN_INDEX, formats.json_text({section: code.to_json() for section, code in plugins.items()}))

    def mark_running(self, label: str, progress: str = "", **more: Any) -> None:
        """Say in status.json that this process is computing the run, and how far it has come."""
        self.write_status("running", label, progress, **locks.process_info(), **more)

    def write_status(self, status: str, label: str, reason: str = "", **more: Any) -> None:
        """Write status.json."""
        content = {"status": status, "reason": reason, "label": label, "identity": self.identity, **more}
        self.write_file("status.json", formats.json_text(content))

    def log(self, line: str) -> None:
        """Add a line to run.log, with the time in UTC."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
        append_line(self.path / "run.log", f"{stamp}  {line}")

    def mark_failed(self, error: BaseException, label: str) -> None:
        """Record a failure: the traceback in run.log, one line in status.json."""
        self.log("failed\n" + "".join(traceback.format_exception(error)).rstrip())
        self.write_status("failed", label, describe_error(error))

    @property
    def client_states_path(self) -> Path:
        """The file that clients' states are in while the run goes on, if they are too many for the checkpoint."""
        return self.path / _STATES

    def save_checkpoint(self, leaves: list, round_: int, seconds: float, rows: list[dict]) -> None:
        """Keep what is needed to go on from here, and show the rows so far in metrics.csv."""
        self.write_file("metrics.csv", formats.csv_text(rows))
        self.write_file(_CHECKPOINT, formats.checkpoint_bytes(leaves, round_, seconds, rows))

    def load_checkpoint(self) -> tuple[list, int, float, list[dict]] | None:
        """What ``save_checkpoint`` kept; None if there is nothing, or nothing that can be read."""
        return formats.read_checkpoint(self.path / _CHECKPOINT)

    def delete_checkpoint(self) -> None:
        """The run is over, or begins anew."""
        for name in (_CHECKPOINT, _STATES):
            (self.path / name).unlink(missing_ok=True)
