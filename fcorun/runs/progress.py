"""The progress of runs, written to their folders: lines in run.log, and the state in status.json."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from fcorun.algorithms.base import Algorithm
from fcorun.runs.job import Job

_PAUSE = 1.0  # seconds between two lines
_SHARE = 0.05  # the largest share of the time that writing progress takes


@dataclass
class Progress:
    """The progress of the runs of a batch.

    Attributes:
        due: the earliest time of the next lines, by ``time.monotonic``.
    """

    due: float = 0.0

    def log_progress(self, jobs: Sequence[Job], seconds_left: float | None, last: bool = False) -> None:
        """Log the last evaluation of each job, unless the lines before are recent; a ``last`` evaluation always."""
        started = time.monotonic()
        if started < self.due and not last:
            return
        for job in jobs:
            progress, time_left = _describe(job, seconds_left)
            job.run_folder.log(f"{progress}: {job.headline()}{time_left}")
            if not last:  # the final status is about to be written
                job.run_folder.mark_running(job.label, f"{progress}{time_left}", round=job.rows[-1]["round"])
        ended = time.monotonic()
        self.due = ended + max(_PAUSE, (ended - started) / _SHARE)


def _describe(job: Job, seconds_left: float | None) -> tuple[str, str]:
    """Return the rounds that a run has done, and the time left as text; a baseline's is unknown."""
    rounds_done, rounds = job.rows[-1]["round"], job.experiment.settings.rounds
    if not isinstance(job.experiment.algo, Algorithm):
        return f"iteration {rounds_done}", ""
    percent = f" ({100 * rounds_done / rounds:.0f} %)" if rounds else ""
    time_left = "" if seconds_left is None else f", about {format_duration(seconds_left)} left"
    return f"round {rounds_done} of {rounds}{percent}", time_left


def format_duration(seconds: float) -> str:
    """Format a time in the unit that suits its size.

    >>> format_duration(0.4), format_duration(59), format_duration(200), format_duration(20_000)
    ('0 s', '59 s', '3 min', '5.6 h')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
