"""Connections that store all answers at the server: the same command asks from the beginning, and goes on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fcorun.base.errors import UserError
from fcorun.base.records.formats import READ_ERRORS, npz_bytes, read_npz
from fcorun.base.system.files import write_atomically
from fcorun.data.rows.away_sites import AwayRule
from fcorun.sites.transport.connections import Connections, ConnectionsWrapper
from fcorun.sites.transport.delivery import digest_of, number_request
from fcorun.sites.transport.messages import Message

SUMS_FILES = "sums-*.npz"  # of fits (``sums_of_folds``), in the folder of a run; they stay with the server
_DIGEST, _SITE = "digest", "site/"


class NumberedConnections(Connections, Protocol):
    """Connections whose requests have numbers.

    Attributes:
        run: the identity of the run.
    """

    run: str


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

    connections: NumberedConnections
    folder: Path

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)

    def ask(
        self,
        message_name: str,
        arrays: Mapping[str, np.ndarray] | None = None,
        about: Mapping[str, Any] | None = None,
        of: Sequence[str] | None = None,
        away: AwayRule | None = None,
    ) -> dict[str, Message]:
        number = self.connections.next_number
        message = Message(message_name, dict(about or {}), dict(arrays or {}))
        request = number_request(message, self.connections.run, number, self.sites if of is None else of)
        path = self.folder / f"{number:06d}.npz"
        answers = self._read(path, digest_of(request.to_bytes()))
        if answers is not None:
            self.connections.next_number += 1
            return answers
        answers = self.connections.ask(message_name, arrays, about, of, away)
        contents = {_SITE + site: np.frombuffer(answer.to_bytes(), np.uint8) for site, answer in answers.items()}
        digest = np.frombuffer(digest_of(request.to_bytes()).encode(), np.uint8)
        write_atomically(path, npz_bytes({_DIGEST: digest, **contents}), durable=True)
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
