"""Sites that outlast a kill: the last answer and the state are on the disk before an answer leaves."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fcorun.base.errors import UserError
from fcorun.base.records.formats import READ_ERRORS, npz_bytes, read_npz
from fcorun.base.system import locks
from fcorun.base.system.files import write_atomically
from fcorun.sites.transport.delivery import AnsweringSite, digest_of
from fcorun.sites.transport.messages import LAST_REQUEST, NEW_RUN, Envelope, Message, OwnerError

_FILE = "last_answer.npz"
_LOCK = "lock"
_REFUSALS = "refusals"
MAX_REFUSALS = 20  # of a site for a plan: each refusal reveals something about the rows
_HEADER = "header"
_ANSWER = "answer"
_STATE = "state/"


def is_in_use(folder: Path) -> bool:
    """Return whether another process answers requests from the folder of a ``DurableSite``."""
    return locks.is_locked(folder / _LOCK)


class StatefulSite(AnsweringSite, Protocol):
    """A site whose answers depend on earlier requests through its state alone."""

    def save_state(self) -> Mapping[str, np.ndarray]:
        """Return the state as arrays by name."""
        ...

    def load_state(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Replace the state by an earlier one; no arrays stand for the state before the first request."""
        ...


@dataclass
class DurableSite:
    """A site that answers each request once, and the same request again with the stored answer.

    A refused request leaves the state as it was. One process at a time answers from a folder.

    Attributes:
        site: the site that computes the answers.
        folder: the site's own folder, which holds its last answer and its state.
        rows: a text that stands for the rows from which the site answers. A state of other rows is refused.
        max_runs: the largest number of runs that the site begins; None: any number.
        lock_seconds: the longest wait for the end of another process that answers from the folder.
        name: the name of the site in its answers, which does not change while the folder stays; None: what sends the
            answers names the site.
    """

    site: StatefulSite
    folder: Path
    rows: str = ""
    max_runs: int | None = None
    lock_seconds: float = 0.0
    name: str | None = None

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self._lock = locks.acquire(self.folder / _LOCK, self.lock_seconds)
        except locks.LockedError:
            raise OwnerError(f"another process answers from {self.folder}: end that process, or give the site a folder "
                             "of its own", "another process answers for this site: its owner ends that process"
                             ) from None  # fmt: skip
        try:
            self._last = _LastAnswer.read(self.folder / _FILE)
            last_name = self.name
            if self._last is not None:
                if self._last.rows != self.rows:
                    problem = "this site has answered a run from other data or other options than its owner accepts now"
                    raise OwnerError(f"{problem}: accept those again, or remove {self.folder} to give that run up",
                                     f"{problem}: its owner accepts those again, or gives that run up")  # fmt: skip
                last_name = Message.from_bytes(self._last.answer, "this site").site
            if last_name != self.name:  # the server may ask both
                problem = f"this site has answered as '{last_name}', and is started as '{self.name}'"
                raise OwnerError(f"{problem}: give --name {last_name}, or remove {self.folder} to give that run up",
                                 f"{problem}: its owner starts it under its first name, or gives that run up"
                                 )  # fmt: skip
            self._reload()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let another process answer from the folder."""
        self._lock.release()

    def answer(self, request: Message) -> Message:
        """Return the answer to a request with an envelope. Raises UserError if the site refuses."""
        if request.envelope is None:
            raise UserError("the server's request has no number")
        digest = digest_of(request.to_bytes())
        place = request.envelope.run, request.envelope.number
        if self._last is not None and (self._last.envelope.run, self._last.envelope.number) == place:
            if digest != self._last.digest:
                raise UserError(f"the server sent another request number {request.envelope.number} of this run before: "
                                "each request is answered once")  # fmt: skip
            return Message.from_bytes(self._last.answer, "this site")
        begins = self._check_order(request.envelope)
        if self._count_refusals() >= MAX_REFUSALS:
            problem = f"this site has refused {MAX_REFUSALS} requests of this plan, and answers no more"
            raise OwnerError(f"{problem}: see sent.jsonl, and remove {self.folder / _REFUSALS} to go on",
                             f"{problem}: its owner looks at the log, and allows further requests")  # fmt: skip
        if begins:
            self.site.load_state({})
        try:
            try:
                answer = replace(self.site.answer(request), envelope=request.envelope, site=self.name)
                answer.to_bytes()  # refuses a message that is too large
            except Exception:  # a refusal, even one that is no UserError; its count is on the disk before it leaves
                write_atomically(self.folder / _REFUSALS, f"{self._count_refusals() + 1}\n", durable=True)
                raise
            last = _LastAnswer(
                request.name,
                request.envelope,
                digest,
                rows=self.rows,
                runs=self._runs + begins,
                answer=answer.to_bytes(),
                state=dict(self.site.save_state()),
            )
            last.write(self.folder / _FILE)
        except BaseException:
            self._reload()
            raise
        self._last = last
        return answer

    def _count_refusals(self) -> int:
        path = self.folder / _REFUSALS
        try:
            return int(path.read_text(encoding="utf-8")) if path.exists() else 0
        except ValueError as error:
            raise OwnerError(f"{path} has no number: write the number of refusals, or remove the file",
                             "the state of this site is damaged: its owner mends it") from error  # fmt: skip

    @property
    def _runs(self) -> int:
        return 0 if self._last is None else self._last.runs

    def _check_order(self, envelope: Envelope) -> bool:
        """Return whether a request begins a run.

        Raises UserError for a request before the last answer, or of a run that may not begin. Numbers may be skipped,
        as not every request asks this site.
        """
        if self._last is not None and self._last.envelope.run == envelope.run:
            if envelope.number < self._last.envelope.number:
                raise UserError(f"this site has answered request {self._last.envelope.number} of this run, and the "
                                f"server asks request {envelope.number}: go on with the shared folder, out= and kit "
                                f"of the first command of the run, or {NEW_RUN}")  # fmt: skip
            return False
        if envelope.number > 0:
            problem = f"the server asks request {envelope.number} of a run that this site has not begun"
            raise OwnerError(f"{problem}: restore {self.folder} from a copy, or have the leader {NEW_RUN}",
                             f"{problem}: its owner restores the folder of the site, or {NEW_RUN}")  # fmt: skip
        if self._last is not None and self._last.name != LAST_REQUEST:
            problem = (f"this site has answered request {self._last.envelope.number} of a run that has not ended, and "
                       f"the server begins a new run: {NEW_RUN}, or ")  # fmt: skip
            raise OwnerError(f"{problem}remove {self.folder} to give that run up",
                             f"{problem}its owner gives that run up")  # fmt: skip
        if self.max_runs is not None and self._runs >= self.max_runs:
            raise UserError(f"this site has begun {self._runs} runs of the plan, and policy.max_runs allows "
                            f"{self.max_runs}: {NEW_RUN}")  # fmt: skip
        return True

    def _reload(self) -> None:
        self.site.load_state({} if self._last is None else self._last.state)


@dataclass(frozen=True)
class _LastAnswer:
    """The content of a site's file.

    Attributes:
        name: the name of the request.
        envelope: the place of the request in its run.
        digest: the digest of the request.
        rows: the text that stands for the rows of the state.
        runs: the number of runs that the site has begun.
        answer: the answer as bytes.
        state: the state after the answer, as arrays by name.
    """

    name: str
    envelope: Envelope
    digest: str
    rows: str
    runs: int
    answer: bytes
    state: dict[str, np.ndarray]

    def write(self, path: Path) -> None:
        header: dict[str, Any] = {name: getattr(self, name) for name in ("name", "digest", "rows", "runs")}
        header["envelope"] = self.envelope.to_json()
        arrays = {
            _HEADER: np.frombuffer(json.dumps(header).encode(), np.uint8),
            _ANSWER: np.frombuffer(self.answer, np.uint8),
            **{_STATE + name: np.asarray(array) for name, array in self.state.items()},
        }
        write_atomically(path, npz_bytes(arrays), durable=True)

    @classmethod
    def read(cls, path: Path) -> "_LastAnswer | None":
        """Return the content of a file; None without a file. Raises UserError for a damaged file."""
        try:
            arrays = read_npz(path)
            header = json.loads(arrays[_HEADER].tobytes())
            state = {name.removeprefix(_STATE): array for name, array in arrays.items() if name.startswith(_STATE)}
            header["envelope"] = Envelope.from_json(header["envelope"])
            return cls(**header, answer=arrays[_ANSWER].tobytes(), state=state)
        except FileNotFoundError:
            return None
        except (*READ_ERRORS, TypeError) as error:
            raise OwnerError(f"{path} cannot be read ({error}): restore the file from a copy, or have the leader "
                             f"{NEW_RUN}", "the state of this site is damaged: its owner restores it from a copy, or "
                             f"{NEW_RUN}") from error  # fmt: skip
