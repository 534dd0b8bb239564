"""How far runs have come, for those who look at their folders: lines in run.log, and the state in status.json."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from fcorun.algorithms.base import Algorithm
from fcorun.runs.job import Job

_PAUSE = 1.0  # seconds between two notes
_SHARE = 0.05  # of the time, which notes take at most


@dataclass
class Progress:
    """Notes on the runs of a batch.

    Attributes:
        due: when the next note may be taken, by ``time.monotonic``.
    """

    due: float = 0.0

    def log_progress(self, jobs: Sequence[Job], seconds_left: float | None, last: bool = False) -> None:
        """Note the last evaluation of each of these jobs, unless the note before is recent; ``last`` ones always."""
        begun = time.monotonic()
        if begun < self.due and not last:
            return
        for job in jobs:
            done, left = _told(job, seconds_left)
            job.run_folder.log(f"{done}: {job.headline()}{left}")
            if not last:  # how it ended is about to be written
                job.run_folder.mark_running(job.label, f"{done}{left}", round=job.rows[-1]["round"])
        ended = time.monotonic()
        self.due = ended + max(_PAUSE, (ended - begun) / _SHARE)


def _told(job: Job, seconds_left: float | None) -> tuple[str, str]:
    """How far a run has come, and what is left of it; of a baseline nobody knows the latter."""
    done, rounds = job.rows[-1]["round"], job.experiment.settings.rounds
    if not isinstance(job.experiment.algo, Algorithm):
        return f"iteration {done}", ""
    left = "" if seconds_left is None else f", about {format_duration(seconds_left)} left"
    share = f" ({100 * done / rounds:.0f} %)" if rounds else ""
    return f"round {done} of {rounds}{share}", left


def format_duration(seconds: float) -> str:
    """A time in the unit that suits it.

    >>> duration(0.4), duration(59), duration(200), duration(20_000)
    ('0 s', '59 s', '3 min', '5.6 h')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
