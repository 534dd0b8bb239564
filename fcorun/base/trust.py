"""The classes that configurations and records name: the rule that decides which modules are imported for them.

- Modules of fcorun, modules of installed plug-in packages, and modules that the program has already imported are free
  to import.
- A module that the user's own configuration files or command line name is imported from the installed modules, or else
  from the current folder (``import_user_module``).
- A module that somebody else names, for example in a record, is imported only from a folder that the user trusts
  (``import_trusted_module``).

A package of plug-ins is one that an entry point of the group ``fcorun.conf`` names. The package holds a folder ``conf``
of configuration files, laid out like a folder of ``--config-dir``, and the classes that the files name.

No folder is ever put on ``sys.path``: libraries would find their optional modules, plug-ins and entry points in it.
"""

import dataclasses
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from traceback import walk_tb
from types import ModuleType

from fcorun.base.errors import UserError, describe_error, find_user_line, suggest_name
from fcorun.base.public_names import MODULES

ENTRY_POINT_GROUP = "fcorun.conf"


def is_free_to_import(module: str) -> bool:
    """Return whether a module may be imported no matter who names it."""
    if module in sys.modules or _is_within(module, "fcorun"):
        return True
    return any(_is_within(module, package.name) for package in find_plugin_packages())


def _is_within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def import_user_module(module: str) -> ModuleType:
    """Import a module that the user's own configuration names: an installed one, or else one of the current folder.

    Raises whatever the import raises.
    """
    with _finder_of(Path.cwd()).open():
        return importlib.import_module(module)


def import_trusted_module(module: str, folder: str | os.PathLike[str]) -> ModuleType:
    """Import a module that somebody else names from a folder that the user trusts, and from nowhere else.

    Raises UserError if the folder does not hold the module, or if an installed module has the same name; and whatever
    the import raises.
    """
    trusted = Path(folder).resolve()
    top_name = module.partition(".")[0]
    if not trusted.is_dir():
        raise UserError(f"trust={folder}: there is no such folder; give that of the code that you trust")
    if not _holds_module(trusted, module):
        raise UserError(f"trust={folder} has no module {module}: give the folder that it is imported from")
    visible = importlib.util.find_spec(top_name)
    if visible is not None:
        locations = list(visible.submodule_search_locations or ())
        if visible.has_location and visible.origin:
            locations = [visible.origin]
        inside = [Path(location).resolve().is_relative_to(trusted) for location in locations]
        if not inside or not all(inside):
            raise UserError(f"trust={folder}: an installed module is called {top_name}, too, and would be imported "
                            "instead; rename yours")  # fmt: skip
    with _finder_of(trusted).open():
        return importlib.import_module(module)


def _holds_module(folder: Path, module: str) -> bool:
    """Return whether a folder holds a module. The packages above the module are not imported."""
    search_path: Sequence[str] | None = [str(folder)]
    names = module.split(".")
    for count in range(1, len(names) + 1):
        spec = PathFinder.find_spec(".".join(names[:count]), search_path) if search_path else None
        if spec is None:
            return False
        search_path = list(spec.submodule_search_locations or ())
    return True


class _FolderFinder(MetaPathFinder):
    """A finder of the modules in a folder, behind all other finders: it never replaces an installed module.

    The finder serves the imports of this module while it is open, and the imports of modules that it has found, which
    may import their own files within functions. It serves no other module: a library that tries to import an optional
    module does not find a file of the folder.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.served: set[str] = set()  # the modules whose imports are served

    @contextmanager
    def open(self) -> Iterator[None]:
        """Serve the imports of this module within the context."""
        self.served.add(__name__)
        try:
            yield
        finally:
            self.served.discard(__name__)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is not None or not self._serves_importer():
            return None
        spec = PathFinder.find_spec(fullname, [str(self.folder)])
        if spec is not None:
            self.served.add(fullname)
        return spec

    def _serves_importer(self) -> bool:
        """Return whether the module that began the current import is served."""
        frame = sys._getframe(2)
        while frame is not None:
            name = frame.f_globals.get("__name__", "")
            if not _is_within(name, "importlib"):
                return name in self.served or name.partition(".")[0] in self.served
            frame = frame.f_back
        return False


def forget_folder_modules() -> None:
    """Forget all modules that were imported from folders, so that the next import reads the files anew.

    For a process that serves several commands, whose folders may hold modules of one name.
    """
    for finder in [finder for finder in sys.meta_path if isinstance(finder, _FolderFinder)]:
        for name in [name for name in sys.modules if name.partition(".")[0] in finder.served]:
            del sys.modules[name]
        sys.meta_path.remove(finder)
    _finder_of.cache_clear()
    importlib.invalidate_caches()


@cache
def _finder_of(folder: Path) -> _FolderFinder:
    """Return the finder of a folder; the first call puts it behind all other finders."""
    finder = _FolderFinder(folder)
    sys.meta_path.append(finder)
    return finder


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


# The classes themselves, and the paths by which configurations, records and plans name them.


def class_path(cls: type) -> str:
    """Return the path by which configurations and records name a class: fcorun.NAME for a public class of fcorun."""
    path = f"{cls.__module__}.{cls.__qualname__}"
    return public_path(path)


def public_path(path: str) -> str:
    """Return the path fcorun.NAME of a public class for any path of a module of fcorun that ends with its name.

    Files of older versions name the module of a class, which may have moved since. Other paths stay as they are.
    """
    package, _, rest = path.partition(".")
    name = rest.rpartition(".")[2]
    return f"fcorun.{name}" if package == "fcorun" and name in MODULES else path


def locate(target: str, key: str, trust: str | os.PathLike[str] | None = None) -> type:
    """Return the class at a dotted path ``package.module.Class`` that anybody may have named, as a record does.

    Only modules that are free to import and modules of the folder ``trust`` are imported.
    Raises UserError, naming ``key``, for a class of another module, and for a module or class that does not exist.
    """
    target = public_path(str(target))
    module = target.rpartition(".")[0]
    if is_free_to_import(module):
        return _load_class(lambda: importlib.import_module(module), target, key)
    if trust is not None:
        return _load_class(lambda: import_trusted_module(module, trust), target, key)
    raise UserError(
        f"`{key}={target}` is not imported: it is no class of fcorun, of an installed plug-in package or of your own "
        f"configuration; if you know its code, give the folder that holds '{module}', as `trust=DIR or --trust DIR`"
    )


def locate_user_class(target: str, key: str) -> type:
    """Return the class at a dotted path that the user's own configuration files or command line name.

    Its module may be installed, or lie in the current folder. Raises UserError, naming ``key``, for a module or class
    that does not exist.
    """
    target = public_path(str(target))
    return _load_class(lambda: import_user_module(target.rpartition(".")[0]), target, key)


def _load_class(import_module: Callable[[], ModuleType], target: str, key: str) -> type:
    """Return the dataclass at a dotted path from its module. Raises UserError, naming ``key``."""
    module_name, _, class_name = target.rpartition(".")
    if not module_name or not all(map(str.isidentifier, target.split("."))):
        raise UserError(
            f"`{key}={target}` is not the dotted path of a class: give package.module.Class, which Python can import "
            "from this folder"
        )
    try:
        module = import_module()
    except UserError as error:
        line = find_user_line(error)
        if not line:
            raise
        raise UserError(f"`{key}={target}`: cannot import '{module_name}' ({error}, {line})") from error
    except Exception as error:
        if "non-frozen dataclass" in str(error):
            # the class that a decorator did not accept is the argument cls of its last call
            arguments = [frame.f_locals.get("cls") for frame, _ in walk_tb(error.__traceback__)]
            classes = [argument.__name__ for argument in arguments if isinstance(argument, type)]
            raise UserError(
                f"`{key}={target}`: a plug-in is a frozen dataclass: write @dataclass(frozen=True) above class "
                f"{classes[-1]}, {find_user_line(error)}"
            ) from error
        raise UserError(
            f"`{key}={target}`: cannot import '{module_name}' ({describe_error(error)}); give the dotted path of a "
            "class, package.module.Class, that Python can import from this folder"
        ) from error
    cls = getattr(module, class_name, None)
    if not isinstance(cls, type) or not dataclasses.is_dataclass(cls):
        dataclass_names = [
            name
            for name, value in vars(module).items()
            if getattr(value, "__module__", "") == module_name
            and isinstance(value, type)
            and dataclasses.is_dataclass(value)
        ]
        if _is_within(module_name, "fcorun"):
            dataclass_names = get_close_matches(class_name, MODULES, 3)
        raise UserError(
            f"`{key}={target}`: '{module_name}' has no dataclass '{class_name}'; "
            f"{suggest_name(class_name, dataclass_names)}"
        )
    options = [name for name, hint in inspect.get_annotations(cls).items() if "ClassVar" not in str(hint)]
    if options and "__dataclass_fields__" not in vars(cls):
        location = f"{Path(inspect.getfile(cls)).name} line {inspect.getsourcelines(cls)[1]}"
        raise UserError(f"`{key}={target}`: its option {options[0]} is no field: write @dataclass(frozen=True) above "
                        f"class {class_name}, {location}")  # fmt: skip
    return cls
