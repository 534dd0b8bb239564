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
_CLIENT_STATES = ".states.bin"  # a part of the checkpoint


@dataclass
class RunFolder:
    """The folder of a run that is being computed. No file is written before ``claim``.

    Attributes:
        identity: the identity of the run's experiment.
        lock: the lock of the folder while this process has claimed it.
    """

    path: Path
    identity: str
    lock: Any = field(default=None, repr=False)

    def inspect(self, force: bool = False) -> str:
        """Return the state of the folder: "new" (to compute), "resume", or "finished" (the same run). Changes nothing.

        Raises UserError if the folder holds another run and ``force`` is not set, or files that a run would replace.
        """
        record = Record(self.path)
        # The status is read between two looks for files: a process that begins a run meanwhile writes status.json
        # before other files, and a process that removes a record removes status.json after them.
        first_file = self._first_record_file()
        status = record.status
        if not status:
            if first_file and self._first_record_file():
                raise UserError(f"out={self.path} has a file {first_file} that is of no run; choose another folder")
            return "new"
        if force:
            return "new"
        if status.get("identity") != self.identity:
            raise UserError(
                f"out={self.path} holds another run ({status.get('label', 'unknown')}, "
                f"{status.get('status')}); choose another folder, or force=true to replace it"
            )
        return "finished" if record.finished else "resume"

    def touch(self) -> None:
        """Set the time of status.json to now, because the finished run was requested again.

        Of several records of one configuration, by different code or on other data, tables take the latest.
        """
        with contextlib.suppress(OSError):
            os.utime(self.path / "status.json")

    def _first_record_file(self) -> str:
        """Return the name of the first existing file that a run would replace; empty if there is none."""
        try:
            present = os.listdir(self.path)
        except OSError:  # no folder
            return ""
        return next((name for name in RECORD_FILES if name in present), "")

    def claim(self, force: bool = False, label: str = "") -> str:
        """Lock the folder for this process unless its run is finished, and return its state.

        The state is that of ``inspect``, or "locked" if another process has the folder. A "new" folder is left
        without old files, and with a status.json that shows ``label``. The lock is the operating system's and ends
        with its process. Raises UserError if the folder cannot be written, and as ``inspect`` does.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.lock = locks.try_lock(self.path)
        except OSError as error:
            raise UserError(f"out={self.path} cannot be written ({error.strerror}); choose another folder") from error
        if self.lock is None:
            return "locked"
        try:
            state = self.inspect(force)
            if state == "new":  # in this order, an interruption leaves the old record or a resumable one
                self.delete_checkpoint()
                self.mark_running(label)
                self._unlink(set(RECORD_FILES) - {"status.json"})
            elif state == "resume":
                names = (*RECORD_FILES, _CHECKPOINT, _CLIENT_STATES)
                links = [name for name in names if (self.path / name).is_symlink()]
                self._unlink([*links, PLUGIN_FOLDER])  # no file is written through a link; plug-ins are copied again
        except BaseException:
            self.release()
            raise
        if state == "finished":
            self.touch()
            self.release()
        return state

    def _unlink(self, names: Iterable[str]) -> None:
        """Remove these files of the record, and temporary files that an interrupted process has left."""
        names = set(names)
        for name in os.listdir(self.path):
            if name in names or (name.startswith(".") and name.endswith(".tmp")):
                remove_path(self.path / name)

    def remove(self) -> None:
        """Delete the record's files, and the folder if nothing else is in it. Raises UserError if it is in use."""
        if self.claim(force=True) == "locked":
            raise UserError(f"{self.path} {locks.IN_USE}")
        self._unlink(RECORD_FILES)
        self.release()
        with contextlib.suppress(OSError):
            self.path.rmdir()

    def release(self) -> None:
        """Unlock the folder if this process has locked it."""
        if self.lock is not None:
            (self.path / locks.LOCK_FILE).unlink(missing_ok=True)
            self.lock.release()
            self.lock = None

    def write_file(self, name: str, content: bytes | str) -> None:
        """Write a file of the record atomically."""
        write_atomically(self.path / name, content)

    def save_plugins(self, plugins: Mapping[str, PluginCode]) -> None:
        """Save copies of the files of the user's own plug-ins, and their digests by section."""
        if not plugins:
            return
        (self.path / PLUGIN_FOLDER).mkdir(exist_ok=True)
        for code in plugins.values():
            for file_name, content in code.files.items():
                (self.path / PLUGIN_FOLDER / file_name).parent.mkdir(parents=True, exist_ok=True)
                self.write_file(f"{PLUGIN_FOLDER}/{file_name}", content)
        index = {section: code.to_json() for section, code in plugins.items()}
        self.write_file(PLUGIN_INDEX, formats.json_text(index))

    def mark_running(self, label: str, progress: str = "", **more: Any) -> None:
        """Write to status.json that this process is computing the run, and its ``progress`` so far."""
        self.write_status("running", label, progress, **locks.process_info(), **more)

    def write_status(self, status: str, label: str, reason: str = "", **more: Any) -> None:
        """Write status.json."""
        content = {"status": status, "reason": reason, "label": label, "identity": self.identity, **more}
        self.write_file("status.json", formats.json_text(content))

    def log(self, line: str) -> None:
        """Append a line to run.log, with the time in UTC."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
        append_line(self.path / "run.log", f"{stamp}  {line}")

    def mark_failed(self, error: BaseException, label: str) -> None:
        """Record a failure: the traceback in run.log, one line in status.json."""
        self.log("failed\n" + "".join(traceback.format_exception(error)).rstrip())
        self.write_status("failed", label, describe_error(error))

    @property
    def client_states_path(self) -> Path:
        """The file of the clients' states during the run, if they are too large for the checkpoint."""
        return self.path / _CLIENT_STATES

    def save_checkpoint(self, leaves: list, round_: int, seconds: float, rows: list[dict]) -> None:
        """Save the state from which a restart resumes, and the rows so far in metrics.csv."""
        self.write_file("metrics.csv", formats.csv_text(rows))
        self.write_file(_CHECKPOINT, formats.checkpoint_bytes(leaves, round_, seconds, rows))

    def load_checkpoint(self) -> tuple[list, int, float, list[dict]] | None:
        """Load the arguments of ``save_checkpoint``; None if the file is missing or cannot be read."""
        return formats.read_checkpoint(self.path / _CHECKPOINT)

    def delete_checkpoint(self) -> None:
        """Delete the checkpoint, because the run is over or starts again."""
        for name in (_CHECKPOINT, _CLIENT_STATES):
            (self.path / name).unlink(missing_ok=True)
