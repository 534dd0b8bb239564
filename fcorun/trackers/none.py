"""No tracker: the record is all there is."""

from dataclasses import dataclass

from fcorun.trackers.base import Tracker


@dataclass(frozen=True)
class NoTracker(Tracker):
    """Does nothing."""

    def log(self, record):
        pass
