"""Installed packages of plug-ins: an entry point of the group ``fcorun.conf`` names each.

Such a package holds a folder ``conf`` of configuration files, laid out like a folder of ``--config-dir``, and the
classes that the files name.
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
        conf: the folder of its configuration files; None if the package, or its folder, does not exist.
    """

    name: str
    distribution: str
    version: str
    conf: Path | None


@cache
def find_plugin_packages() -> tuple[PluginPackage, ...]:
    """Return the installed packages of plug-ins, sorted by name. No package is imported."""
    packages: dict[str, PluginPackage] = {}
    for installed in distributions():
        for point in installed.entry_points.select(group=ENTRY_POINT_GROUP):
            package = PluginPackage(point.module, installed.name, installed.version, _find_conf(point.module))
            packages.setdefault(package.name, package)  # the first on the path, as Python's import takes it
    return tuple(sorted(packages.values(), key=lambda package: package.name))


def _find_conf(package: str) -> Path | None:
    """Return the folder ``conf`` of a package. A top-level package is not imported for it."""
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    for folder in spec.submodule_search_locations or ():
        if (Path(folder) / "conf").is_dir():
            return Path(folder) / "conf"
    return None
