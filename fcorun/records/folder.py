"""The folder of a run that is being computed."""

import contextlib
import os
import time
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fcorun.errors import UserError, describe
from fcorun.plugin_code import PluginCode
from fcorun.records import formats, locks
from fcorun.records.record import FILES, PLUGIN_INDEX, PLUGINS, Record
from fcorun.system.files import append_line, remove, write_whole

_CHECKPOINT = ".checkpoint.npz"
_STATES = ".states.bin"  # goes with it


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
        record, clash = Record(self.folder), self._first_file()
        status = record.status  # after the files: a process that begins meanwhile writes it before any other
        if not status:
            if clash and self._first_file():  # and one that removes a record, after them
                raise UserError(
                    f"hydra.run.dir={self.folder} has a file {clash} that is of no run; choose another folder"
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

    def asked_for(self) -> None:
        """Note that the run that is here was asked for again: of records of one configuration, by different code or on
        other data, tables take that which was asked for last."""
        with contextlib.suppress(OSError):
            os.utime(self.folder / "status.json")

    def _first_file(self) -> str:
        """A file that is there and that a run would replace; empty for none."""
        return next((name for name in FILES if (self.folder / name).exists()), "")

    def claim(self, force: bool = False, label: str = "") -> str:
        """``look``, and take the folder for this process unless it is finished; "new" leaves it without old files,
        and with a status that says ``label``.

        Or "locked", when another process has it: the lock is the operating system's and ends with its process. Raises
        UserError when the folder cannot be written, and as ``look`` does.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.lock = locks.take(self.folder)
        except OSError as error:
            raise UserError(
                f"hydra.run.dir={self.folder} cannot be written ({error.strerror}); choose another folder"
            ) from error
        if self.lock is None:
            return "locked"
        try:
            found = self.look(force)
            if found == "new":  # in an order that leaves the old record or a resumable one, whenever it is broken off
                self.drop_checkpoint()
                self.begin(label)
                self._unlink(set(FILES) - {"status.json"})
            elif found == "resume":
                links = [name for name in (*FILES, _CHECKPOINT, _STATES) if (self.folder / name).is_symlink()]
                self._unlink([*links, PLUGINS])  # nothing is written through a link; copies of plug-ins are made anew
        except BaseException:
            self.release()
            raise
        if found == "finished":
            self.asked_for()
            self.release()
        return found

    def _unlink(self, names: Iterable[str]) -> None:
        for path in (*(self.folder / name for name in names), *self.folder.glob(".*.tmp")):
            remove(path)

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
            (self.folder / locks.LOCK).unlink(missing_ok=True)
            self.lock.release()
            self.lock = None

    def write(self, name: str, content: bytes | str) -> None:
        """Write a file whole."""
        write_whole(self.folder / name, content)

    def keep_plugins(self, plugins: Mapping[str, PluginCode]) -> None:
        """Keep copies of the user's own files and their digests, of the plug-ins of these sections."""
        if not plugins:
            return
        (self.folder / PLUGINS).mkdir(exist_ok=True)
        for code in plugins.values():
            for place, content in code.files.items():
                (self.folder / PLUGINS / place).parent.mkdir(parents=True, exist_ok=True)
                self.write(f"{PLUGINS}/{place}", content)
        self.write(PLUGIN_INDEX, formats.json_text({section: code.noted() for section, code in plugins.items()}))

    def begin(self, label: str, progress: str = "", **more: Any) -> None:
        """Say in status.json that this process is computing the run, and how far it has come."""
        self.set_status("running", label, progress, **locks.holder(), **more)

    def set_status(self, status: str, label: str, reason: str = "", **more: Any) -> None:
        """Write status.json."""
        content = {"status": status, "reason": reason, "label": label, "identity": self.identity, **more}
        self.write("status.json", formats.json_text(content))

    def log(self, line: str) -> None:
        """Add a line to run.log, with the time in UTC."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
        append_line(self.folder / "run.log", f"{stamp}  {line}")

    def fail(self, error: BaseException, label: str) -> None:
        """Record a failure: the traceback in run.log, one line in status.json."""
        self.log("failed\n" + "".join(traceback.format_exception(error)).rstrip())
        self.set_status("failed", label, describe(error))

    @property
    def states(self) -> Path:
        """The file that clients' states are in while the run goes on, if they are too many for the checkpoint."""
        return self.folder / _STATES

    def save_checkpoint(self, leaves: list, round_: int, seconds: float, rows: list[dict]) -> None:
        """Keep what is needed to go on from here, and show the rows so far in metrics.csv."""
        self.write("metrics.csv", formats.csv_text(rows))
        self.write(_CHECKPOINT, formats.checkpoint_bytes(leaves, round_, seconds, rows))

    def load_checkpoint(self) -> tuple[list, int, float, list[dict]] | None:
        """What ``save_checkpoint`` kept; None if there is nothing, or nothing that can be read."""
        return formats.read_checkpoint(self.folder / _CHECKPOINT)

    def drop_checkpoint(self) -> None:
        """The run is over, or begins anew."""
        for name in (_CHECKPOINT, _STATES):
            (self.folder / name).unlink(missing_ok=True)
