"""Connections that store all answers at the server: the same command asks from the beginning, and goes on."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fcorun.base.errors import UserError
from fcorun.base.records.formats import READ_ERRORS, npz_bytes, read_npz
from fcorun.base.system.files import write_atomically
from fcorun.sites.transport.connections import Connections, ConnectionsWrapper, Request
from fcorun.sites.transport.delivery import digest_of
from fcorun.sites.transport.messages import Message

SUMS_FILES = "sums-*.npz"  # of fits (``sums_of_folds``), in the folder of a run; they stay with the server
_DIGEST, _SITE = "digest", "site/"


@dataclass
class JournaledConnections(ConnectionsWrapper):
    """Connections that answer from files what they were asked before.

    A server whose requests depend on earlier answers alone repeats its computation after a kill, without the sites,
    and asks them from the first request on that has no file. The sites answer a repeated request with stored bytes.
    A site that was left out of an answer has none in the file, and stays left out.

    Attributes:
        connections: the connections to the sites.
        folder: the folder of the run, which holds a file for each request.
    """

    connections: Connections
    folder: Path

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)

    def send(self, request: Request) -> dict[str, Message]:
        digest = digest_of(self.address(request).to_bytes())
        path = self.folder / f"{self.next_number:06d}.npz"
        stored = self._read(path, digest)
        if stored is not None:
            self.next_number += 1
            return stored
        answers = self.connections.send(request)
        contents = {_SITE + site: np.frombuffer(answer.to_bytes(), np.uint8) for site, answer in answers.items()}
        contents[_DIGEST] = np.frombuffer(digest.encode(), np.uint8)
        write_atomically(path, npz_bytes(contents), durable=True)
        return answers

    def _read(self, path: Path, digest: str) -> dict[str, Message] | None:
        """Return the stored answers to a request; None without a file. Raises UserError for another request."""
        try:
            arrays = read_npz(path)
            same = arrays.pop(_DIGEST).tobytes() == digest.encode()
        except FileNotFoundError:
            return None
        except READ_ERRORS as error:
            raise UserError(f"{path} cannot be read ({error}): restore the file from a copy, or begin a new run"
                            ) from error  # fmt: skip
        if not same:
            raise UserError(f"{path} answers another request than this command's: give the command that began the run, "
                            "or begin a new run")  # fmt: skip
        sites = ((name.removeprefix(_SITE), array) for name, array in arrays.items())
        return {site: Message.from_bytes(array.tobytes(), str(path)) for site, array in sites}
