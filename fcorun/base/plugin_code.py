"""The code of a user's plug-in, which is part of a run's identity and kept in the record.

The code consists of the files of the plug-in's classes and of the modules that they import. Imports are read from
syntax trees, including those within functions, so that no module is executed for it. A module of an installed
distribution counts by the name and version of that distribution. The standard library and fcorun do not count. Of a
class that a notebook defines, the code is its source, with the functions, classes and constants of other cells that it
refers to.
"""

import ast
import builtins
import dis
import hashlib
import inspect
import json
import linecache
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from pprint import pformat
from textwrap import dedent
from types import CodeType, FunctionType, ModuleType
from typing import Any

from fcorun.base.errors import UserError
from fcorun.base.trust import imported_modules

NOTEBOOK_FILE = "notebook.py"  # the name of a notebook's code in a record
_NOT_OF_USERS = {"fcorun", *sys.stdlib_module_names}
_PLAIN_TYPES = (bool, int, float, complex, str, bytes, type(None))
_MAX_ENTRIES = 10_000  # of an array that is a constant
_GLOBAL_READS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")  # the last one for annotations


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


def find_code(cls: type) -> PluginCode | None:
    """Return the code of a class, or None for a class of fcorun.

    Raises UserError for code that cannot be kept, for methods that keep variables of a function, and for a file that
    has changed since this process first looked for the code of its module.
    """
    user_classes = [
        parent for parent in reversed(cls.__mro__) if parent.__module__.partition(".")[0] not in _NOT_OF_USERS
    ]
    if not user_classes:
        return None
    files: dict[str, bytes] = {}
    distributions: dict[str, str] = {}
    notebook = NotebookCode()
    modules = []
    for parent in user_classes:
        for value in vars(parent).values():
            _check_closure(value)
        if is_in_notebook(parent):
            notebook.add(parent)
            files[NOTEBOOK_FILE] = notebook.text.encode()
        else:
            modules.append(parent.__module__)
    homes = [_import_root(name, _file_of_module(name)) for name in modules]
    skipped = set(_NOT_OF_USERS)
    seen = set()
    queue = deque(_with_packages([*modules, *notebook.modules]))
    while queue:
        name = queue.popleft()
        top_name = name.partition(".")[0]
        file = None if name in seen or top_name in skipped else _find_file(name, homes)
        seen.add(name)
        if file is None:
            continue
        root = _import_root(name, file)
        relative_path = file.relative_to(root).as_posix()
        distribution = _find_distribution(root, relative_path)
        if distribution is None:
            if root not in homes:
                homes.append(root)
            content = files[relative_path] = _read_unchanged(name, file)
            queue += _with_packages(imported_modules(content, name, file.stem == "__init__"))
        else:
            distributions[distribution[0]] = distribution[1]
            if name == top_name:  # a namespace, without a file of its own, may span several distributions
                skipped.add(top_name)
    path = f"{cls.__module__}.{cls.__qualname__}"
    return PluginCode(path, dict(sorted(files.items())), dict(sorted(distributions.items())))


def _check_closure(value: Any) -> None:
    """Raise UserError for a function that keeps variables of the function that made it, except its class.

    The values are in no source: classes that a function made for several values would have one identity.
    """
    function = getattr(value, "fget", None) or getattr(value, "__func__", value)
    if not isinstance(function, FunctionType):
        return
    function = inspect.unwrap(function)  # a decorator keeps the function that it wraps
    is_generated = function.__code__.co_filename == "<string>"  # such as __init__ of a dataclass
    if not is_generated and not set(function.__code__.co_freevars) <= {"__class__"}:
        raise UserError(f"{function.__qualname__} keeps variables of the function that made it, which no record can "
                        "keep: make them arguments, or fields of the class")  # fmt: skip


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


def _find_file(name: str, homes: list[Path]) -> Path | None:
    """Return the file of a module, without executing it; None for a module without a file.

    ``homes`` are the folders of the user's own modules, which are searched last.
    """
    if getattr(sys.modules.get(name), "__file__", None) is not None:
        return _file_of_module(name)
    if "." not in name:
        with suppress(ValueError):  # from a module that was made by hand
            spec = find_spec(name)
            if spec is not None and spec.has_location and spec.origin:
                return Path(spec.origin).absolute()
    for home in homes:
        path = home.joinpath(*name.split("."))
        for file in (path / "__init__.py", path.with_name(f"{path.name}.py")):
            if file.is_file():
                return file
    return None


@cache
def _find_distribution(root: Path, relative_path: str) -> tuple[str, str] | None:
    """Return the name and version of the distribution in ``root`` that lists a file; None for the user's own file."""
    for listing in root.glob("*.dist-info/RECORD"):
        if f"\n{relative_path}," in f"\n{listing.read_text(encoding='utf-8', errors='replace')}":
            name, _, number = listing.parent.name.removesuffix(".dist-info").rpartition("-")
            return name, number
    if root.name == "dist-packages":  # packages of a Linux distribution list no files
        return relative_path.partition("/")[0].removesuffix(".py"), ""
    return None


def _read_unchanged(name: str, file: Path) -> bytes:
    """Return the content of a module's file. Raises UserError if it is another one than at the first call."""
    content = file.read_bytes()
    spec = getattr(sys.modules.get(name), "__spec__", None)
    if spec is not None and vars(spec).setdefault("fcorun_content", content) != content:  # each import makes a new spec
        raise UserError(f"{file} has changed since Python imported it, so that the code that runs differs from the "
                        "file: start Python again")  # fmt: skip
    return content


def _with_packages(names: Iterable[str]) -> Iterator[str]:
    """Yield the names of modules, each after those of its packages, whose ``__init__`` is imported first.

    >>> [*_with_packages(["a.b.c"])]
    ['a', 'a.b', 'a.b.c']
    """
    for name in names:
        parts = name.split(".")
        for count in range(1, len(parts) + 1):
            yield ".".join(parts[:count])


# The code of classes that are written in a notebook, where no file holds them.


def is_in_notebook(value: Any) -> bool:
    """Return whether a class or function is defined in a module without a file, as in a notebook."""
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    return module is not None and getattr(module, "__file__", None) is None and module.__spec__ is None


@dataclass
class NotebookCode:
    """The code of some classes of a notebook, as collected so far.

    Attributes:
        imports: a statement for each name that is imported.
        definitions: a statement for each constant, and the source of each function and class, by name.
        modules: the names of the modules that the code imports from.
    """

    imports: dict[str, str] = field(default_factory=dict)
    definitions: dict[str, str] = field(default_factory=dict)
    modules: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The code as the text of a file, in the order in which names are needed."""
        imports = sorted({"import numpy", "from math import inf, nan", *self.imports.values()})
        return "\n\n".join(["\n".join(imports), *self.definitions.values()]) + "\n"

    def add(self, definition: Any) -> None:
        """Add a class or a function of the notebook, and all that it refers to.

        Raises UserError for a source that is not known, for a function that keeps variables of another one, and for a
        global that is neither an import, nor a function or class with a source, nor a constant.
        """
        name = definition.__qualname__
        if name in self.definitions:
            return
        _check_closure(definition)
        source = find_source(definition)
        self.definitions[name] = ""  # a function may refer to itself
        namespace = vars(sys.modules[definition.__module__])
        for used in _global_names(source):
            if used in namespace and used not in self.definitions:
                self._add_global(used, namespace[used], name)
        del self.definitions[name]  # to come after the names that it refers to
        self.definitions[name] = source

    def _add_global(self, name: str, value: Any, user: str) -> None:
        """Add a global name that the code of ``user`` refers to."""
        definition = inspect.unwrap(value) if callable(value) else value  # of a function that a decorator wraps
        if isinstance(value, ModuleType):
            self.imports[name] = f"import {value.__name__} as {name}"
            self.modules.append(value.__name__)
        elif isinstance(definition, (type, FunctionType)) and is_in_notebook(definition):
            self.add(definition)
            if definition.__name__ != name:
                self.definitions[name] = f"{name} = {definition.__name__}"
        elif (text := _constant_text(value)) is not None:
            self.definitions[name] = f"{name} = {text}"
        elif home := _find_home(name, value):
            module, original_name = home
            self.imports[name] = f"from {module} import {original_name} as {name}"
            self.modules.append(module)
        else:
            raise UserError(
                f"{user} refers to the global {name}, of type {type(value).__name__}, which no record can keep: "
                "make it a field of the class, a constant, or a function"
            )


def find_source(definition: Any) -> str:
    """Return the source of a class or a function that a cell of a notebook defines. Raises UserError."""
    candidates = [definition] if isinstance(definition, FunctionType) else vars(definition).values()
    for value in candidates:
        function = inspect.unwrap(getattr(value, "fget", None) or getattr(value, "__func__", value))
        if not isinstance(function, FunctionType):
            continue
        code = function.__code__
        text = "".join(linecache.getlines(code.co_filename))
        try:
            tree = ast.parse(text)
        except SyntaxError:  # a notebook keeps the lines of a cell without the separators that are not Python's
            continue
        for node in ast.walk(tree):
            if not isinstance(node, (ast.ClassDef, ast.FunctionDef)) or node.name != definition.__name__:
                continue
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first <= code.co_firstlineno <= (node.end_lineno or first):
                return "\n".join(text.split("\n")[first - 1 : node.end_lineno])
    raise UserError(f"the source of {definition.__qualname__} is not known, so that no record can keep it: write a "
                    "def, or a class with a method, in a cell or in a file")  # fmt: skip


def _global_names(source: str) -> list[str]:
    """Return the global names that a source reads and that are no built-in ones, in their order."""
    tree = ast.parse(dedent(source))
    codes = [compile(tree, "<source>", "exec", dont_inherit=True)]
    for code in codes:
        codes += [part for part in code.co_consts if isinstance(part, CodeType)]
    instructions = [instruction for code in codes for instruction in dis.get_instructions(code)]
    read = {read.argval for read in instructions if read.opname in _GLOBAL_READS}
    names = dict.fromkeys(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    return [name for name in names if name in read and not hasattr(builtins, name)]


def _constant_text(value: Any) -> str | None:
    """Return a constant as Python code: plain values, and small arrays of numbers or texts; None for another value."""
    import jax
    import numpy as np

    if _is_plain(value):
        return pformat(value, width=1, sort_dicts=False)  # of small width, since sets are then sorted
    if type(value) is not np.ndarray and not isinstance(value, (np.generic, jax.Array)):
        return None
    is_kept = isinstance(value.dtype, np.dtype) and value.dtype.names is None and not value.dtype.hasobject
    return f"numpy.array({value.tolist()!r}, {value.dtype.name!r})" if is_kept and value.size <= _MAX_ENTRIES else None


def _is_plain(value: Any) -> bool:
    """Return whether a value is a constant of Python: numbers and text, and lists, tuples, sets and dicts of them."""
    if type(value) is dict:
        return _is_plain([*value, *value.values()])
    return type(value) in _PLAIN_TYPES or (type(value) in (list, tuple, set, frozenset) and all(map(_is_plain, value)))


def _find_home(name: str, value: Any) -> tuple[str, str] | None:
    """Return the module from which a value can be imported, and its name there; None if there is none."""
    original_name = str(getattr(value, "__name__", name))
    for module_name in (str(getattr(value, "__module__", None)), *sorted(sys.modules)):
        module = sys.modules.get(module_name)
        if getattr(module, "__spec__", None) is not None and vars(module).get(original_name) is value:
            return module_name, original_name
    return None
