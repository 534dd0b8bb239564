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
        content = answer.to_bytes()
        with filelock.FileLock(f"{self.path}.lock"), self.path.open("ab+") as file:
            last_line, is_torn = _read_last_line(file)
            line = {
                "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
                "plan": self.plan[:16],
                "message": answer.name,
                "about": answer.about,
                "arrays": {name: [str(array.dtype), *array.shape] for name, array in answer.arrays.items()},
                "bytes": len(content),
                "sha256": hashlib.sha256(content).hexdigest(),
                "line_before": "" if last_line is None else hashlib.sha256(last_line).hexdigest(),
            }
            if self.contents:
                line["contents"] = {name: array.tolist() for name, array in answer.arrays.items()}
            if is_torn:
                file.write(b"\n")
            file.write((json.dumps(line) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())


def _read_last_line(file: BinaryIO) -> tuple[bytes | None, bool]:
    """Return the last line of a file, None for an empty one, and whether the line has no end, as after a kill."""
    size = file.seek(0, os.SEEK_END)
    length = 2**16
    while True:
        file.seek(max(size - length, 0))
        content = file.read()
        lines = content.splitlines()
        if not lines:
            return None, False
        if len(lines) > 1 or length >= size:
            return lines[-1], not content.endswith(b"\n")
        length *= 2
