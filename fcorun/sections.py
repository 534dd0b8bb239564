"""The sections of a configuration that are plug-ins: the one table of them."""

from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Section:
    """A section of a configuration, whose ``class`` names its plug-in.

    Attributes:
        kinds: of which classes the plug-in must be one, as dotted paths.
        default: what the section holds where it is left out; None: it must be given.
        grid: whether its real numbers may differ between the runs of one program.
        meant: whether it is part of what a run is.
    """

    kinds: tuple[str, ...]
    default: dict[str, Any] | None = None
    grid: bool = False
    meant: bool = True

    @property
    def classes(self) -> tuple[type, ...]:
        """The classes of ``kinds``."""
        places = [kind.rpartition(".") for kind in self.kinds]
        return tuple(getattr(import_module(module), name) for module, _, name in places)


SECTIONS = {
    "algo": Section(("fcorun.algorithms.base.Algorithm", "fcorun.algorithms.base.Baseline"), grid=True),
    "data": Section(("fcorun.datasets.base.Dataset",)),
    "reg": Section(("fcorun.regularizers.base.Regularizer",), grid=True),
    "objective": Section(("fcorun.objectives.base.Objective",)),
    "mirror": Section(("fcorun.mirror_maps.base.MirrorMap",), grid=True),
    "topology": Section(
        ("fcorun.networks.base.Topology",), default={"name": "star", "class": "fcorun.networks.star.Star"}
    ),
    "tracker": Section(
        ("fcorun.trackers.base.Tracker",), default={"name": "none", "class": "fcorun.trackers.none.NoTracker"},
        meant=False,
    ),
}  # fmt: skip
MEANT = tuple(name for name, section in SECTIONS.items() if section.meant)
GRID = tuple(name for name, section in SECTIONS.items() if section.grid)
