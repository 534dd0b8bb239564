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

import ast
import dataclasses
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, lru_cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import distributions
from importlib.util import find_spec, resolve_name
from pathlib import Path
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
    return _import_from(Path.cwd(), module)


def import_trusted_module(module: str, folder: str | os.PathLike[str]) -> ModuleType:
    """Import a module that somebody else names from a folder that the user trusts, and from nowhere else.

    Raises UserError if the folder does not hold the module, or if an installed module has the same name; and whatever
    the import raises.
    """
    trusted = Path(folder).resolve()
    top_name = module.partition(".")[0]
    if not trusted.is_dir():
        raise UserError(f"trust={folder}: there is no such folder; give that of the code that you trust")
    path = trusted.joinpath(*module.split("."))
    if not (path.is_dir() or path.with_suffix(".py").is_file()):
        raise UserError(f"trust={folder} has no module {module}: give the folder that it is imported from")
    visible = find_spec(top_name)
    places = [*(visible.submodule_search_locations or ()), visible.origin or trusted] if visible else []
    is_elsewhere = any(not Path(place).resolve().is_relative_to(trusted) for place in places)
    if is_elsewhere or top_name in sys.stdlib_module_names:
        raise UserError(f"trust={folder}: an installed module is called {top_name}, too, and would be imported "
                        "instead; rename yours")  # fmt: skip
    return _import_from(trusted, module)


def _import_from(folder: Path, module: str) -> ModuleType:
    """Import an installed module, or else one of a folder."""
    finder = _finder_of(folder)
    finder.names.add(module.partition(".")[0])
    return importlib.import_module(module)


@cache
def _finder_of(folder: Path) -> "_FolderFinder":
    """Return the finder of a folder; the first call puts it behind all other finders."""
    finder = _FolderFinder(folder)
    sys.meta_path.append(finder)
    return finder


class _FolderFinder(MetaPathFinder):
    """A finder of the modules in a folder, behind all other finders: it never replaces an installed module.

    The finder knows the names that configurations name, and those that the modules which it has found import, also
    within functions. It finds no other module: a library that tries to import an optional module does not find a file
    of the folder.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.names: set[str] = set()  # of modules that may be found

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is not None or fullname not in self.names:
            return None
        spec = PathFinder.find_spec(fullname, [str(self.folder)])
        if spec is None:
            return None
        files = [Path(spec.origin)] if spec.origin else []
        for package in spec.submodule_search_locations or ():
            files += Path(package).rglob("*.py")
        for file in files:
            imported = imported_modules(file.read_bytes(), fullname, is_package=False)
            self.names.update(name.partition(".")[0] for name in imported)
        return spec


@lru_cache(maxsize=4096)
def imported_modules(content: bytes, name: str, is_package: bool) -> tuple[str, ...]:
    """Return the names of the modules that the source of a module, with this name, may import.

    Imports within functions count, and so do the texts that ``import_module`` and ``__import__`` are given.
    """
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):  # a compiled module
        return ()
    package = name if is_package else name.rpartition(".")[0]
    relative_names: list[str] = []
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                relative_names += [alias.name for alias in names]
            case ast.ImportFrom(module=module, names=names, level=level):
                base = "." * level + (module or "")
                parent = base if base.endswith(".") else f"{base}."
                relative_names += [base, *(parent + alias.name for alias in names)]  # which may be modules, too
            case ast.Assign(targets=[ast.Name(id="__all__")], value=ast.List(elts=items) | ast.Tuple(elts=items)):
                relative_names += [f".{item.value}" for item in items if isinstance(item, ast.Constant)]  # import *
            case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called), args=[ast.Constant(value=text), *_]):
                if called in ("import_module", "__import__"):
                    relative_names.append(str(text))
    absolute_names = []
    for relative_name in relative_names:
        with suppress(ImportError):  # a relative import outside of a package
            absolute_names.append(resolve_name(relative_name, package))
    return tuple(absolute_names)


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
    try:
        module = import_module()
    except Exception as error:
        line = find_user_line(error)
        if isinstance(error, UserError):
            if not line:
                raise
            reason = f"cannot import '{module_name}' ({error}, {line})"
        elif "non-frozen dataclass" in str(error):
            reason = f"a plug-in is a frozen dataclass: write @dataclass(frozen=True) above its class, {line}"
        else:
            reason = (f"cannot import '{module_name}' ({describe_error(error)}); give the dotted path of a class, "
                      "package.module.Class, that Python can import from this folder")  # fmt: skip
        raise UserError(f"`{key}={target}`: {reason}") from error
    cls = getattr(module, class_name, None)
    if not isinstance(cls, type) or not dataclasses.is_dataclass(cls):
        names = get_close_matches(class_name, MODULES, 3)
        if not _is_within(module_name, "fcorun"):
            values = [value for value in vars(module).values() if isinstance(value, type)]
            names = [v.__name__ for v in values if v.__module__ == module_name and dataclasses.is_dataclass(v)]
        raise UserError(
            f"`{key}={target}`: '{module_name}' has no dataclass '{class_name}'; {suggest_name(class_name, names)}"
        )
    options = [name for name, hint in inspect.get_annotations(cls).items() if "ClassVar" not in str(hint)]
    if options and "__dataclass_fields__" not in vars(cls):
        location = f"{Path(inspect.getfile(cls)).name} line {inspect.getsourcelines(cls)[1]}"
        raise UserError(f"`{key}={target}`: its option {options[0]} is no field: write @dataclass(frozen=True) above "
                        f"class {class_name}, {location}")  # fmt: skip
    return cls
