"""The code that a user's plug-in is made of: the files of its classes and of the modules that they import.

Imports are found in syntax trees, those within functions too, so that no module is executed for it. A module of an
installed distribution counts by the name and the version of that distribution. The standard library and fcorun do not
count.
"""

import ast
import hashlib
import json
import sys
import sysconfig
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.machinery import PathFinder
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any

from fcorun.errors import UserError

_STANDARD = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")}
_STANDARD |= {folder / "lib-dynload" for folder in _STANDARD}
_IMPORTERS = ("import_module", "__import__")  # functions that import the module that a text names


@dataclass(frozen=True)
class PluginCode:
    """The code of a class outside of fcorun.

    Attributes:
        path: the dotted path of the class.
        files: the content of each of the user's own files, by its place below the folder that it is imported from.
        distributions: the version of each installed distribution that the files import, by its name.
    """

    path: str
    files: dict[str, bytes]
    distributions: dict[str, str]

    @property
    def digests(self) -> dict[str, str]:
        """The SHA-256 of each file."""
        return {place: hashlib.sha256(content).hexdigest() for place, content in self.files.items()}

    @property
    def digest(self) -> str:
        """Sixteen hex digits that change with every file and every version."""
        content = json.dumps([self.digests, self.distributions], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        """The digests as plain values, for a record."""
        return {"class": self.path, "digest": self.digest, "files": self.digests, "distributions": self.distributions}


@dataclass(frozen=True)
class _Module:
    """Where a module lies.

    Attributes:
        file: its file; None for a namespace, and for what is built into Python.
        folders: where its submodules lie; None: it is no package.
    """

    file: Path | None
    folders: tuple[str, ...] | None

    @property
    def is_package(self) -> bool:
        return self.folders is not None


def code_identifier(plugin: Any) -> str:
    """Return a name for the code of a plug-in: the dotted path of its class, and outside of fcorun a digest."""
    cls, code = type(plugin), find_code(type(plugin))
    return f"{cls.__module__}.{cls.__qualname__}" + (f":{code.digest}" if code else "")


def find_code(cls: type) -> PluginCode | None:
    """Return the code of a class, or None for a class of fcorun.

    Raises UserError for a class without a file, and for a file that has changed since Python imported it.
    """
    own = _own_modules(cls)
    if not own:
        return None
    files: dict[str, bytes] = {}
    distributions: dict[str, str] = {}
    homes = tuple(dict.fromkeys(str(_root(name, _file_of_class(name))) for name in own))
    known: dict[str, _Module | None] = {}
    left_out = {"fcorun"}  # packages whose modules are not the user's own
    waiting, seen = deque(_with_packages(own)), set()
    while waiting:
        name = waiting.popleft()
        top = name.partition(".")[0]
        if name in seen or top in left_out:
            continue
        seen.add(name)
        module = _find(name, homes, known)
        if module is None or module.file is None or not module.file.is_file():
            continue
        root = _root(name, module.file)
        place = module.file.relative_to(root).as_posix()
        if root.resolve() in _STANDARD:
            left_out.add(top)
        elif installed := _distribution(root, place):
            distributions[installed[0]] = installed[1]
            if _find(top, homes, known) == module:  # a namespace may hold modules of several distributions
                left_out.add(top)
        else:
            files[place] = _content(name, module.file)
            waiting += _imports(files[place], name, module.is_package)
    path = f"{cls.__module__}.{cls.__qualname__}"
    return PluginCode(path, dict(sorted(files.items())), dict(sorted(distributions.items())))


@cache
def _own_modules(cls: type) -> tuple[str, ...]:
    """Return the modules of a class and its parents that are neither fcorun's nor the standard library's."""
    names = dict.fromkeys(parent.__module__ for parent in cls.__mro__)
    others = [name for name in names if name.partition(".")[0] != "fcorun" and name not in sys.builtin_module_names]
    return tuple(name for name in others if _root(name, _file_of_class(name)).resolve() not in _STANDARD)


def _file_of_class(name: str) -> Path:
    """Return the file of the module that a class stands in. Raises UserError where there is none."""
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None:
        raise UserError(f"a class of the module {name} stands in no file, so that no record could tell what was run: "
                        "write it into a file, and name it as module.Class")  # fmt: skip
    return Path(file).absolute()


def _root(name: str, file: Path) -> Path:
    """Return the folder that the module's outermost package is imported from."""
    return file.parents[name.count(".") + (file.stem == "__init__")]


def _find(name: str, homes: tuple[str, ...], known: dict[str, _Module | None]) -> _Module | None:
    """Return where a module lies, without executing it; None where there is no such module.

    ``homes`` are the folders of the plug-in's classes, which are searched last.
    """
    if name not in known:
        known[name] = _imported(name) if sys.modules.get(name) else _searched(name, homes, known)
    return known[name]


def _imported(name: str) -> _Module:
    file, folders = (getattr(sys.modules[name], attribute, None) for attribute in ("__file__", "__path__"))
    return _Module(Path(file).absolute() if file else None, None if folders is None else tuple(folders))


def _searched(name: str, homes: tuple[str, ...], known: dict[str, _Module | None]) -> _Module | None:
    parent, folders = name.rpartition(".")[0], None
    if parent:
        package = _find(parent, homes, known)
        if package is None or package.folders is None:
            return None
        folders = list(package.folders)
    searches = [finder.find_spec for finder in sys.meta_path if hasattr(finder, "find_spec")]
    spec = next((found for search in searches if (found := search(name, folders))), None)
    if spec is None and not parent:
        spec = PathFinder.find_spec(name, list(homes))
    if spec is None:
        return None
    file = Path(spec.origin).absolute() if spec.origin and spec.has_location else None
    inside = spec.submodule_search_locations
    return _Module(file, None if inside is None else tuple(inside))


@cache
def _distribution(root: Path, place: str) -> tuple[str, str] | None:
    """Return the name and version of the distribution installed in ``root`` that lists a file; None: the user's own."""
    top = place.partition("/")[0].removesuffix(".py").lower()
    infos = sorted(root.glob("*.dist-info"), key=lambda info: not info.name.lower().startswith(f"{top}-"))
    for info in infos:  # first the one that is called as its package
        try:
            listed = (info / "RECORD").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        if f"\n{place}," in f"\n{listed}":
            name, _, number = info.name.removesuffix(".dist-info").rpartition("-")
            return name, number
    if root.name == "dist-packages":  # those of a Linux distribution list no files
        return top, max((version(name) for name in packages_distributions().get(top, ())), default="")
    return None


def _content(name: str, file: Path) -> bytes:
    """Return the content of a file. Raises UserError where it is not what Python imported."""
    stat = file.stat()
    content = _read(file, stat.st_mtime_ns, stat.st_size)
    spec = getattr(sys.modules.get(name), "__spec__", None)
    if spec is not None:  # a new one with each import of the module
        imported = vars(spec).setdefault("fcorun_content", content)
        if imported != content:
            raise UserError(f"{file} has changed since Python imported it, so that what runs is not what stands there: "
                            "start Python again")  # fmt: skip
    return content


@lru_cache(maxsize=4096)
def _read(file: Path, mtime: int, size: int) -> bytes:
    return file.read_bytes()


@lru_cache(maxsize=4096)
def _imports(content: bytes, name: str, is_package: bool) -> Sequence[str]:
    """Return the names of the modules that a module may import, with their packages."""
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):  # a compiled module
        return ()
    package = name if is_package else name.rpartition(".")[0]
    names = [each for node in ast.walk(tree) for each in _imported_by(node, package)]
    return _with_packages(names)


def _with_packages(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of modules, each after those of its packages, whose ``__init__`` is imported before it.

    >>> _with_packages(["a.b.c", "a.d"])
    ('a', 'a.b', 'a.b.c', 'a.d')
    """
    parts = [each for name in names if all(each := name.split("."))]  # a relative import of no package names nothing
    return tuple(dict.fromkeys(".".join(each[:n]) for each in parts for n in range(1, len(each) + 1)))


def _imported_by(node: ast.AST, package: str) -> Iterator[str]:
    """Yield what a statement may import; ``from a import b`` may import the module ``a.b``."""
    match node:
        case ast.Import(names=names):
            yield from (alias.name for alias in names)
        case ast.ImportFrom(module=module, names=names, level=level):
            base = _absolute("." * level + (module or ""), package)
            yield base
            yield from (f"{base}.{alias.name}" for alias in names if alias.name != "*")
        case ast.Assign(targets=[ast.Name(id="__all__")], value=ast.List(elts=each) | ast.Tuple(elts=each)):
            yield from (f"{package}.{item.value}" for item in each if isinstance(item, ast.Constant))  # for import *
        case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called), args=[ast.Constant(value=str(text)), *_]):
            if called in _IMPORTERS:
                yield _absolute(text, package)


def _absolute(name: str, package: str) -> str:
    """Return the full name of a module that is named from within a package.

    >>> _absolute("..other", "a.b.c"), _absolute(".", "a.b")
    ('a.b.other', 'a.b')
    """
    bare = name.lstrip(".")
    up = len(name) - len(bare)
    if not up:
        return bare
    above = package.split(".")[: len(package.split(".")) - up + 1]
    return ".".join([*above, *([bare] if bare else [])])
