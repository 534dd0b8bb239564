"""Installed packages that offer plug-ins: an entry point of the group ``fcorun.conf`` names each.

Such a package holds a folder ``conf`` of configuration files, as ``--config-dir`` names one, and the classes that they
name.
"""

from dataclasses import dataclass
from functools import cache
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path

ENTRY_POINT_GROUP = "fcorun.conf"


@dataclass(frozen=True)
class PluginPackage:
    """A package of plug-ins.

    Attributes:
        name: the name that Python imports it by.
        distribution: the name of the distribution that holds it.
        version: the version of that distribution.
        conf: the folder of its configuration files; None where the package, or its folder, is not there.
    """

    name: str
    distribution: str
    version: str
    conf: Path | None


@cache
def find_plugin_packages() -> tuple[PluginPackage, ...]:
    """Return the packages of plug-ins that are installed, in the order of their names. Imports none of them."""
    found: dict[str, PluginPackage] = {}
    for installed in distributions():
        for point in installed.entry_points.select(group=ENTRY_POINT_GROUP):
            package = PluginPackage(point.module, installed.name, installed.version, _conf(point.module))
            found.setdefault(package.name, package)  # as Python imports the one that comes first on its path
    return tuple(sorted(found.values(), key=lambda package: package.name))


def _conf(package: str) -> Path | None:
    """Return the folder ``conf`` of a package, which is not imported where it is a top one."""
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):
        return None
    inside = [Path(folder) / "conf" for folder in (spec.submodule_search_locations or () if spec else ())]
    return next((folder for folder in inside if folder.is_dir()), None)
