"""No tracker."""

from dataclasses import dataclass

from fcorun.trackers.base import Tracker


@dataclass(frozen=True)
class NoTracker(Tracker):
    """A tracker that ignores records."""

    def log(self, record):
        pass
