"""The sections of a configuration that are plug-ins: the one table of them."""

from dataclasses import dataclass
from typing import Any

from fcorun.algorithms.base import Algorithm, Baseline
from fcorun.datasets.base import Dataset
from fcorun.mirror_maps.base import MirrorMap
from fcorun.networks.base import Topology
from fcorun.objectives.base import Objective
from fcorun.regularizers.base import Regularizer
from fcorun.trackers.base import Tracker


@dataclass(frozen=True)
class Section:
    """A section of a configuration.

    Attributes:
        kinds: of which classes its plug-in must be one.
        default: what it holds where it is left out; None: it must be given.
        grid: whether its real numbers may differ between the runs of one program.
        meant: whether it is part of what a run is.
    """

    kinds: tuple[type, ...]
    default: dict[str, Any] | None = None
    grid: bool = False
    meant: bool = True


SECTIONS = {
    "algo": Section((Algorithm, Baseline), grid=True),
    "data": Section((Dataset,)),
    "reg": Section((Regularizer,), grid=True),
    "objective": Section((Objective,)),
    "mirror": Section((MirrorMap,), grid=True),
    "topology": Section((Topology,), default={"name": "star", "class": "fcorun.networks.star.Star"}),
    "tracker": Section((Tracker,), default={"name": "none", "class": "fcorun.trackers.none.NoTracker"}, meant=False),
}
MEANT = tuple(name for name, section in SECTIONS.items() if section.meant)
GRID = tuple(name for name, section in SECTIONS.items() if section.grid)
