"""The code of a user's plug-in: the files of its classes and of the modules that they import.

Imports are read from syntax trees, including those within functions, so that no module is executed for it. A module of
an installed distribution counts by the name and version of that distribution. The standard library and fcorun do not
count.
"""

import ast
import hashlib
import json
import sys
import sysconfig
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.machinery import PathFinder
from importlib.metadata import packages_distributions, version
from importlib.util import find_spec, resolve_name
from pathlib import Path
from typing import Any

from fcorun.base.errors import UserError
from fcorun.base.plugin_code.changed_globals import CHANGED_GLOBALS_FILE, find_changed_globals
from fcorun.base.plugin_code.notebook import NOTEBOOK_FILE, NotebookCode, is_in_notebook, refuse_kept_variables

_STANDARD_LIBRARY = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")}
_STANDARD_LIBRARY |= {folder / "lib-dynload" for folder in _STANDARD_LIBRARY}
_IMPORT_FUNCTIONS = ("import_module", "__import__")  # functions that import the module that a text names


@dataclass(frozen=True)
class PluginCode:
    """The code of a class outside of fcorun.

    Attributes:
        path: the dotted path of the class.
        files: the content of each of the user's own files, by its path below the folder that it is imported from.
        distributions: the version of each installed distribution that the files import, by its name.
    """

    path: str
    files: dict[str, bytes]
    distributions: dict[str, str]

    @property
    def digests(self) -> dict[str, str]:
        """The SHA-256 of each file."""
        return {path: hashlib.sha256(content).hexdigest() for path, content in self.files.items()}

    @property
    def digest(self) -> str:
        """Sixteen hex digits that change with every file and every version."""
        content = json.dumps([self.digests, self.distributions], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        """Return the digests as plain values, for a record."""
        return {"class": self.path, "digest": self.digest, "files": self.digests, "distributions": self.distributions}

    def explain_difference(self, other: "PluginCode | None") -> str:
        """Return a sentence on the code that another process finds for the class, with the cure."""
        found = other or PluginCode(self.path, {}, {})
        files = [name for name in {**self.files, **found.files} if self.files.get(name) != found.files.get(name)]
        if CHANGED_GLOBALS_FILE in files:
            return (f"the program has set constants of the modules of {self.path}, which other processes do not know: "
                    "write their values into the files")  # fmt: skip
        if files:
            return (f"{', '.join(files)} changed since the command was given, and would give other numbers than those "
                    "of its runs: give the command again")  # fmt: skip
        return (f"{self.path} imports other versions of packages here than at the command, "
                f"{found.distributions} and not {self.distributions}: install the same")  # fmt: skip


def find_code(cls: type) -> PluginCode | None:
    """Return the code of a class, or None for a class of fcorun.

    The code of a class that a notebook defines is one generated file, see ``NotebookCode``. Constants that have other
    values than their files show are another one, see ``find_changed_globals``. Raises UserError for code that cannot be
    kept, for methods that keep variables of a function, and for a file that has changed since this process first looked
    for the code of its module.
    """
    notebook_classes = [parent for parent in cls.__mro__ if is_in_notebook(parent)]
    class_modules = _user_modules(cls)
    if not class_modules and not notebook_classes:
        return None
    for parent in cls.__mro__:
        if parent in notebook_classes or parent.__module__ in class_modules:
            refuse_kept_variables(parent)
    files: dict[str, bytes] = {}
    changed_globals: list[str] = []
    distributions: dict[str, str] = {}
    notebook = NotebookCode()
    for parent in reversed(notebook_classes):
        notebook.add(parent)
    if notebook_classes:
        files[NOTEBOOK_FILE] = notebook.text.encode()
    homes = list(dict.fromkeys(str(_import_root(name, _file_of_module(name))) for name in class_modules))
    skipped_packages = {"fcorun"}  # their modules are not the user's own
    seen = set()
    queue = deque(_with_packages([*class_modules, *notebook.modules]))
    while queue:
        name = queue.popleft()
        top_name = name.partition(".")[0]
        if name in seen or top_name in skipped_packages:
            continue
        seen.add(name)
        file = _find_file(name, homes)
        if file is None:
            continue
        root = _import_root(name, file)
        relative_path = file.relative_to(root).as_posix()
        if root.resolve() in _STANDARD_LIBRARY:
            skipped_packages.add(top_name)
        elif distribution := _find_distribution(root, relative_path):
            distribution_name, distribution_version = distribution
            distributions[distribution_name] = distribution_version
            if name == top_name:  # a namespace, without a file of its own, may span several distributions
                skipped_packages.add(top_name)
        else:
            files[relative_path] = _read_unchanged(name, file)
            queue += _imported_modules(files[relative_path], name, file.stem == "__init__")
            changed_globals += find_changed_globals(name, files[relative_path], cls.__mro__)
    if changed_globals:
        files[CHANGED_GLOBALS_FILE] = "\n".join([*sorted(changed_globals), ""]).encode()
    path = f"{cls.__module__}.{cls.__qualname__}"
    return PluginCode(path, dict(sorted(files.items())), dict(sorted(distributions.items())))


@cache
def _user_modules(cls: type) -> tuple[str, ...]:
    """Return the modules of a class and its parents that belong neither to fcorun nor to the standard library."""
    names = dict.fromkeys(parent.__module__ for parent in cls.__mro__ if not is_in_notebook(parent))
    others = [name for name in names if name.partition(".")[0] != "fcorun" and name not in sys.builtin_module_names]
    return tuple(
        name for name in others if _import_root(name, _file_of_module(name)).resolve() not in _STANDARD_LIBRARY
    )


def _file_of_module(name: str) -> Path:
    """Return the file of the module of a class. Raises UserError if the module has none."""
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None:
        raise UserError(f"a class of the module {name} is defined in no file, so that a record cannot store its code: "
                        "write the class into a file, and name it as module.Class")  # fmt: skip
    return Path(file).absolute()


def _import_root(name: str, file: Path) -> Path:
    """Return the folder that a module's outermost package is imported from."""
    return file.parents[name.count(".") + (file.stem == "__init__")]


def _find_file(name: str, homes: list[str]) -> Path | None:
    """Return the file of a module, without executing it; None for a module without a file.

    ``homes`` are the folders of the plug-in's classes, which are searched last.
    """
    top_name, *parts = name.split(".")
    if (file := getattr(sys.modules.get(name), "__file__", None)) is not None:
        return Path(file).absolute()
    try:
        spec = find_spec(top_name) or PathFinder.find_spec(top_name, homes)
    except ValueError:  # a module that was made by hand
        return None
    for part in parts:
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = PathFinder.find_spec(f"{spec.name}.{part}", list(spec.submodule_search_locations))
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        return None
    return Path(spec.origin).absolute()


@cache
def _find_distribution(root: Path, relative_path: str) -> tuple[str, str] | None:
    """Return the name and version of the distribution in ``root`` that lists a file; None for the user's own file."""
    top_name = relative_path.partition("/")[0].removesuffix(".py")
    metadata_folders = sorted(
        root.glob("*.dist-info"), key=lambda folder: not folder.name.lower().startswith(f"{top_name.lower()}-")
    )  # the distribution named like its package comes first
    for folder in metadata_folders:
        try:
            listing = (folder / "RECORD").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        if f"\n{relative_path}," in f"\n{listing}":
            name, _, number = folder.name.removesuffix(".dist-info").rpartition("-")
            return name, number
    if root.name == "dist-packages":  # packages of a Linux distribution list no files
        names = packages_distributions().get(top_name, ())
        return ", ".join(sorted(set(names))) or top_name, ", ".join(sorted({version(name) for name in names}))
    return None


def _read_unchanged(name: str, file: Path) -> bytes:
    """Return the content of a module's file. Raises UserError if it is another one than at the first call."""
    status = file.stat()
    content = _read(file, status.st_mtime_ns, status.st_size)
    spec = getattr(sys.modules.get(name), "__spec__", None)
    if spec is not None:  # each import of the module makes a new one
        imported = vars(spec).setdefault("fcorun_content", content)
        if imported != content:
            raise UserError(f"{file} has changed since Python imported it, so that the code that runs differs "
                            "from the file: start Python again (on a running Dask cluster, end `dask worker` and "
                            "start it again)")  # fmt: skip
    return content


@lru_cache(maxsize=4096)
def _read(file: Path, mtime: int, size: int) -> bytes:
    return file.read_bytes()


@lru_cache(maxsize=4096)
def _imported_modules(content: bytes, name: str, is_package: bool) -> Sequence[str]:
    """Return the names of the modules that a module may import, with their packages."""
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):  # a compiled module
        return ()
    package = name if is_package else name.rpartition(".")[0]
    names = [imported for node in ast.walk(tree) for imported in _imported_by_statement(node, package)]
    return _with_packages(names)


def _with_packages(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of modules, each after those of its packages, whose ``__init__`` is imported first.

    >>> _with_packages(["a.b.c", "a.d"])
    ('a', 'a.b', 'a.b.c', 'a.d')
    """
    result: dict[str, None] = {}
    for name in names:
        parts = name.split(".")
        result |= dict.fromkeys(".".join(parts[:count]) for count in range(1, len(parts) + 1))
    return tuple(result)


def _imported_by_statement(node: ast.AST, package: str) -> Iterator[str]:
    """Yield the modules that a statement may import; ``from a import b`` may import the module ``a.b``."""
    match node:
        case ast.Import(names=names):
            yield from (alias.name for alias in names)
        case ast.ImportFrom(module=module, names=names, level=level):
            with suppress(ImportError):  # a relative import outside of a package
                base = resolve_name("." * level + (module or ""), package)
                yield base
                yield from (f"{base}.{alias.name}" for alias in names if alias.name != "*")
        case ast.Assign(targets=[ast.Name(id="__all__")], value=ast.List(elts=items) | ast.Tuple(elts=items)):
            yield from (f"{package}.{item.value}" for item in items if isinstance(item, ast.Constant))  # import *
        case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called), args=[ast.Constant(value=str(text)), *_]):
            if called in _IMPORT_FUNCTIONS:
                with suppress(ImportError):
                    yield resolve_name(text, package)
