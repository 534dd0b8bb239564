"""The draws of single rounds, drawn for many rounds at a time."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fcorun.engine.schedule import Rounds, Schedule

_ROUNDS_AHEAD = 64
_NUMBERS_AHEAD = 2**18  # row numbers of minibatches that are drawn at a time


@dataclass
class DrawsAhead:
    """The draws of single rounds of a run, for some of the clients.

    Rounds of all clients are drawn many at a time, which gives the same numbers as one by one. With partial
    participation, the number of these clients in a cohort varies, so that each round is drawn alone.

    Attributes:
        schedule: the schedule of the run.
        client_mask: the mask of the clients whose draws are needed, (M,).
        with_server_keys: whether the random keys of the server are drawn, too.
    """

    schedule: Schedule
    client_mask: np.ndarray
    with_server_keys: bool = False
    _start: int = 0
    _rounds: Rounds | None = field(default=None, repr=False)

    def draw(self, number: int) -> Rounds:
        """Return the draws of the round ``number``, counted from 0, without an axis of rounds."""
        if self._rounds is None or not 0 <= number - self._start < len(self._rounds.cohort):
            self._start = number
            self._rounds = self.schedule.draw_rounds(number, self._count, client_mask=self.client_mask)
            if self.with_server_keys:
                server_keys = self.schedule.draw_server_keys(number, self._count)
                self._rounds = self._rounds._replace(server_keys=server_keys)
        index = number - self._start
        of_round: list[Any] = [None if values is None else values[index] for values in self._rounds]
        return Rounds(*of_round)

    @property
    def _count(self) -> int:
        """The number of rounds that are drawn at a time."""
        schedule = self.schedule
        if schedule.message_bytes is not None or schedule.cohort_size < len(schedule.sizes):
            return 1
        if schedule.full_batch_steps:
            return _ROUNDS_AHEAD
        numbers = max(int(self.client_mask.sum()) * int(schedule.steps.max()) * schedule.max_batch, 1)
        return min(max(_NUMBERS_AHEAD // numbers, 1), _ROUNDS_AHEAD)
