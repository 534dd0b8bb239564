"""The code of a class that is written in a notebook, where no file holds it.

The code is the source of the class, the sources of the functions and classes of other cells that it refers to, the
values of their constants, and their imports, as one text that a file could hold.
"""

import ast
import builtins
import inspect
import linecache
import sys
from dataclasses import dataclass, field
from textwrap import dedent
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from fcorun.errors import UserError

NOTEBOOK_FILE = "notebook.py"  # the name of the text in a record
_MAX_ENTRIES = 10_000  # of an array that is a constant
_PLAIN_TYPES = (bool, int, float, complex, str, bytes, type(None))


def is_in_notebook(value: Any) -> bool:
    """Return whether a class or function is defined in a module without a file, as in a notebook."""
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    if module is None or value.__module__ in sys.builtin_module_names:
        return False
    return getattr(module, "__file__", None) is None and getattr(module, "__spec__", None) is None


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
        imports = sorted(set(self.imports.values()))
        return "\n\n".join(["\n".join(imports), *self.definitions.values()]) + "\n"

    def add(self, definition: Any) -> None:
        """Add a class or a function of the notebook, and all that it refers to.

        Raises UserError for a source that is not known or has been changed, for a function that keeps variables of
        another one, and for a global that is neither an import, nor a function or class with a source, nor a constant.
        """
        name = definition.__qualname__
        if name in self.definitions:
            return
        bound_values = _bound_values(definition)
        source = find_source(definition)
        self.definitions[name] = ""  # a function may refer to itself
        namespace = vars(sys.modules[definition.__module__])
        for used in _global_names(source):
            if used in namespace and used not in self.definitions:
                self._add_global(used, namespace[used], name)
        del self.definitions[name]  # to come after the names that it refers to
        self.definitions[name] = "\n".join([source, *bound_values])

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
        elif _is_plain(value):
            self.definitions[name] = f"{name} = {value!r}"
        elif hasattr(value, "__array__") and not isinstance(value, type) and value.size <= _MAX_ENTRIES:
            array = np.asarray(value)
            self.definitions[name] = f"{name} = numpy.array({array.tolist()!r}, {array.dtype.name!r})"
            self.imports["numpy"] = "import numpy"
        elif home := _find_home(name, value):
            module, original_name = home
            self.imports[name] = f"from {module} import {original_name} as {name}"
            self.modules.append(module)
        else:
            raise UserError(
                f"{user} refers to the global {name}, of type {type(value).__name__}, which no record can keep: "
                "make it a field of the class, a constant, or a function"
            )


def _bound_values(definition: Any) -> list[str]:
    """Return statements for the values that a definition was given when its cell ran: defaults, and class attributes.

    The names behind them may have other values by now. Raises UserError for values that are no constants, and for a
    class that was changed after its cell ran.
    """
    name = definition.__qualname__
    statements = []
    if isinstance(definition, FunctionType):
        if definition.__closure__:
            raise UserError(f"{name} keeps variables of the function that made it, which no record can keep: make them "
                            "arguments, or fields of the class")  # fmt: skip
        for attribute in ("__defaults__", "__kwdefaults__"):
            values = getattr(definition, attribute)
            if values is not None:
                statements.append(f"{name}.{attribute} = {_constant(values, f'a default of {name}')}")
        return statements
    for attribute, value in vars(definition).items():
        function = getattr(value, "fget", None) or getattr(value, "__func__", value)
        if attribute.startswith("__") or attribute in getattr(definition, "__dataclass_fields__", {}):
            continue  # the values of fields are part of the identity anyway
        if isinstance(function, FunctionType):
            if function.__qualname__ != f"{name}.{attribute}":  # a function that the class did not define
                raise UserError(f"{name}.{attribute} was changed after the cell of {name} ran: run a cell with the "
                                "whole class")  # fmt: skip
        elif _is_plain(value):
            statements.append(f"{name}.{attribute} = {value!r}")
    return statements


def _constant(value: Any, description: str) -> str:
    """Return the text of a constant. Raises UserError for another value."""
    if not _is_plain(value):
        raise UserError(f"{description} is of type {type(value).__name__}, which no record can keep: give a constant")
    return repr(value)


def find_source(definition: Any) -> str:
    """Return the source of a class or a function that a cell of a notebook defines. Raises UserError."""
    code = _some_code(definition)
    text = "".join(linecache.getlines(code.co_filename)) if code is not None else ""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, (ast.ClassDef, ast.FunctionDef)) or node.name != definition.__name__:
            continue
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        if code is not None and first <= code.co_firstlineno <= (node.end_lineno or first):
            return "\n".join(text.splitlines()[first - 1 : node.end_lineno])
    raise UserError(f"the source of {definition.__qualname__} is not known, so that no record can keep it: write a "
                    "def, or a class with a method, in a cell or in a file")  # fmt: skip


def _some_code(definition: Any) -> CodeType | None:
    """Return the code of a function, or of a method that the source of a class defines."""
    if isinstance(definition, FunctionType):
        return inspect.unwrap(definition).__code__
    for value in vars(definition).values():
        function = getattr(value, "fget", None) or getattr(value, "__func__", value)
        if isinstance(function, FunctionType) and linecache.getlines(function.__code__.co_filename):
            return function.__code__
    return None


def _global_names(source: str) -> list[str]:
    """Return the names that a source reads and that are no built-in ones, in their order."""
    names = [node.id for node in ast.walk(ast.parse(dedent(source))) if isinstance(node, ast.Name)]
    return [name for name in dict.fromkeys(names) if not hasattr(builtins, name)]


def _is_plain(value: Any) -> bool:
    """Return whether a value is a constant of Python: numbers and text, and lists, tuples, sets and dicts of them."""
    if isinstance(value, (list, tuple, set, frozenset)):
        return type(value) in (list, tuple, set, frozenset) and all(map(_is_plain, value))
    if type(value) is dict:
        return all(map(_is_plain, value)) and all(map(_is_plain, value.values()))
    return type(value) in _PLAIN_TYPES


def _find_home(name: str, value: Any) -> tuple[str, str] | None:
    """Return the module from which a value can be imported, and its name there; None if there is none."""
    module_name, original_name = getattr(value, "__module__", None), getattr(value, "__name__", None)
    module = sys.modules.get(str(module_name))
    if getattr(module, "__spec__", None) is not None and getattr(module, str(original_name), None) is value:
        return str(module_name), str(original_name)
    modules = sorted(sys.modules.copy().items(), key=lambda item: (item[0].count("."), item[0]))  # outer ones first
    for candidate, module in modules:
        if getattr(module, "__spec__", None) is not None and vars(module).get(name) is value:
            return candidate, name
    return None
