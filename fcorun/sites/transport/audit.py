"""The log of a site: a line of text for everything that the site sent."""

import hashlib
import json
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

import filelock

from fcorun.sites.transport.messages import Message


@dataclass(frozen=True)
class AuditLog:
    """A log that is only appended to, one JSON object a line. Each line has the digest of the line before.

    Attributes:
        path: the file.
        plan: the digest of the plan.
        contents: whether lines have the numbers that were sent, too.
    """

    path: Path
    plan: str = ""
    contents: bool = False

    def write(self, answer: Message) -> None:
        """Append a line on an answer or a refusal before it leaves. Processes that serve other plans wait."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(f"{self.path}.lock"):
            self._append(answer)

    def _append(self, answer: Message) -> None:
        content = answer.to_bytes()
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "plan": self.plan[:16],
            "message": answer.name,
            "about": answer.about,
            "arrays": {name: [str(array.dtype), *array.shape] for name, array in answer.arrays.items()},
            "bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
            "line_before": self._last_digest(),
        }
        if self.contents:
            line["contents"] = {name: array.tolist() for name, array in answer.arrays.items()}
        with self.path.open("ab+") as file:
            if _is_torn(file):
                file.write(b"\n")
            file.write((json.dumps(line) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())

    def _last_digest(self) -> str:
        """Return the digest of the last line; empty for a new log."""
        if not self.path.exists():
            return ""
        with self.path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            length = 2**16
            while True:
                file.seek(max(size - length, 0))
                lines = file.read().splitlines()
                if len(lines) > 1 or length >= size:
                    return hashlib.sha256(lines[-1]).hexdigest() if lines else ""
                length *= 2


def _is_torn(file: BinaryIO) -> bool:
    """Return whether the last line of a file has no end, as after a kill."""
    if file.seek(0, os.SEEK_END) == 0:
        return False
    file.seek(-1, os.SEEK_END)
    return file.read(1) != b"\n"
