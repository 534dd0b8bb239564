"""The table of the sections of a configuration, each of which names a plug-in."""

from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class ConfigSection:
    """A section of a configuration, whose ``class`` names its plug-in.

    Attributes:
        base_class_paths: the classes that the plug-in must be an instance of one of, as dotted paths.
        default: the values of a section that is left out; None for a section that must be given.
        grid: whether its real numbers may differ between the runs of one program.
        in_identity: whether it is part of a run's identity.
    """

    base_class_paths: tuple[str, ...]
    default: dict[str, Any] | None = None
    grid: bool = False
    in_identity: bool = True

    @property
    def base_classes(self) -> tuple[type, ...]:
        """The classes at ``base_class_paths``."""
        paths = [path.rpartition(".") for path in self.base_class_paths]
        return tuple(getattr(import_module(module), name) for module, _, name in paths)


SECTIONS = {
    "algo": ConfigSection(("fcorun.algorithms.base.Algorithm", "fcorun.algorithms.base.Baseline"), grid=True),
    "data": ConfigSection(("fcorun.datasets.base.Dataset",)),
    "reg": ConfigSection(("fcorun.regularizers.base.Regularizer",), grid=True),
    "objective": ConfigSection(("fcorun.objectives.base.Objective",)),
    "mirror": ConfigSection(("fcorun.mirror_maps.base.MirrorMap",), grid=True),
    "topology": ConfigSection(
        ("fcorun.communication.base.Topology",), default={"name": "star", "class": "fcorun.communication.star.Star"}
    ),
    "tracker": ConfigSection(
        ("fcorun.trackers.base.Tracker",), default={"name": "none", "class": "fcorun.trackers.none.NoTracker"},
        in_identity=False,
    ),
}  # fmt: skip
IDENTITY_SECTIONS = tuple(name for name, section in SECTIONS.items() if section.in_identity)
GRID_SECTIONS = tuple(name for name, section in SECTIONS.items() if section.grid)
