"""The code of a class that is written in a notebook, where no file holds it.

The code is the source of the class, the sources of the functions and classes of other cells that it refers to, the
values of their constants, and their imports, as one text that a file could hold.
"""

import ast
import builtins
import cmath
import inspect
import linecache
import re
import sys
from dataclasses import dataclass, field, fields, is_dataclass
from textwrap import dedent
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from fcorun.base.errors import UserError
from fcorun.base.plugin_code.changed_globals import names_read_by

NOTEBOOK_FILE = "notebook.py"  # the name of the text in a record
_MAX_ENTRIES = 10_000  # of an array that is a constant
_ADDRESS = re.compile(" at 0x[0-9a-fA-F]+")  # of an object in memory, in its repr
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
        bound_values = self._bound_values(definition)
        source = find_source(definition)
        self.definitions[name] = ""  # a function may refer to itself
        namespace = vars(sys.modules[definition.__module__])
        tree = ast.parse(dedent(source))
        read = names_read_by(tree.body)  # a name may also be that of a local variable
        for used in dict.fromkeys(node.id for node in ast.walk(tree) if isinstance(node, ast.Name)):
            is_global = used in read and used in namespace and not hasattr(builtins, used)
            if is_global and used not in self.definitions:
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
        elif _is_plain(value) or _is_small_array(value):
            self.definitions[name] = f"{name} = {self._constant(value, name)}"
        elif home := _find_home(name, value):
            module, original_name = home
            self.imports[name] = f"from {module} import {original_name} as {name}"
            self.modules.append(module)
        else:
            raise UserError(
                f"{user} refers to the global {name}, of type {type(value).__name__}, which no record can keep: "
                "make it a field of the class, a constant, or a function"
            )

    def _bound_values(self, definition: Any) -> list[str]:
        """Return statements for the values that a definition was given when its cell ran: defaults, class attributes.

        The names behind them may have other values by now. Raises UserError for values that are no constants, and for
        a class that was changed after its cell ran.
        """
        name = definition.__qualname__
        statements = []
        if isinstance(definition, FunctionType):
            _refuse_kept_variables_of(definition)
            for attribute in ("__defaults__", "__kwdefaults__"):
                values = getattr(definition, attribute)
                if values is not None:
                    statements.append(f"{name}.{attribute} = {self._constant(values, f'a default of {name}')}")
            return statements
        own_fields = {own.name for own in fields(definition)} if is_dataclass(definition) else set()
        for attribute, value in vars(definition).items():
            function = getattr(value, "fget", None) or getattr(value, "__func__", value)
            if attribute.startswith("__") or attribute in own_fields:
                continue  # the values of fields are part of the identity anyway
            if isinstance(function, FunctionType):
                if function.__qualname__ != f"{name}.{attribute}":  # a function that the class did not define
                    raise UserError(f"{name}.{attribute} was changed after the cell of {name} ran: run a cell with the "
                                    "whole class")  # fmt: skip
            elif _is_frozen(
                value
            ):  # such as Traits: its class is in the source, and names behind its values may change
                statements.append(f"# {name}.{attribute} = {_describe_frozen(value)}")
            elif attribute != "_abc_impl" and not callable(value) and not hasattr(value, "__get__"):
                statements.append(f"{name}.{attribute} = {self._constant(value, f'{name}.{attribute}')}")
        return statements

    def _constant(self, value: Any, description: str) -> str:
        """Return the text of a constant, and import what it needs. Raises UserError for another value."""
        if _is_plain(value):
            return _to_text(value)
        if not _is_small_array(value):
            raise UserError(
                f"{description} is of type {type(value).__name__}, which no record can keep: give a constant"
            )
        self.imports["numpy"] = "import numpy"
        array = np.asarray(value)
        return f"numpy.array({_to_text(array.tolist())}, {array.dtype.name!r})"


def refuse_kept_variables(cls: type) -> None:
    """Raise UserError for a class with a method that keeps variables of the function that made the class.

    Their values are in no source: classes that a function made for several values would have one identity.
    """
    for value in vars(cls).values():
        function = getattr(value, "fget", None) or getattr(value, "__func__", value)
        if isinstance(function, FunctionType):
            _refuse_kept_variables_of(inspect.unwrap(function))  # a decorator keeps the function that it wraps


def _refuse_kept_variables_of(function: FunctionType) -> None:
    """Raise UserError for a function of a source that keeps variables of another function, except its class."""
    file = function.__code__.co_filename
    # such as __init__ of a dataclass; of "<string>", its file, Python 3.13 has lines: those of python -c
    is_generated = file == "<string>" or not linecache.getlines(file)
    if set(function.__code__.co_freevars) <= {"__class__"} or is_generated:
        return
    raise UserError(f"{function.__qualname__} keeps variables of the function that made it, which no record can keep: "
                    "make them arguments, or fields of the class")  # fmt: skip


def find_source(definition: Any) -> str:
    """Return the source of a class or a function that a cell of a notebook defines. Raises UserError."""
    code = _some_code(definition)
    text = "".join(linecache.getlines(code.co_filename)) if code is not None else ""
    try:
        tree = ast.parse(text)
    except SyntaxError:  # a notebook keeps the lines of a cell without the separators that are not Python's
        tree = ast.Module([], [])
    for node in ast.walk(tree):
        if not isinstance(node, (ast.ClassDef, ast.FunctionDef)) or node.name != definition.__name__:
            continue
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        if code is not None and first <= code.co_firstlineno <= (node.end_lineno or first):
            return "\n".join(text.split("\n")[first - 1 : node.end_lineno])
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


def _is_plain(value: Any) -> bool:
    """Return whether a value is a constant of Python: numbers and text, and lists, tuples, sets and dicts of them."""
    if isinstance(value, (list, tuple, set, frozenset)):
        return type(value) in (list, tuple, set, frozenset) and all(map(_is_plain, value))
    if type(value) is dict:
        return all(map(_is_plain, value)) and all(map(_is_plain, value.values()))
    return type(value) in _PLAIN_TYPES


def _is_small_array(value: Any) -> bool:
    """Return whether a value is a small array of NumPy or JAX, or a NumPy scalar: its entries and type tell all."""
    import jax

    if type(value) is not np.ndarray and not isinstance(value, (np.generic, jax.Array)):
        return False
    is_of_numbers = isinstance(value.dtype, np.dtype) and value.dtype.names is None and not value.dtype.hasobject
    return is_of_numbers and value.size <= _MAX_ENTRIES


def _is_frozen(value: Any) -> bool:
    """Return whether a value is a frozen object such as Traits, or a tuple of such objects."""
    if isinstance(value, tuple) and value:
        return all(map(_is_frozen, value))
    return is_dataclass(value) and not isinstance(value, type) and value.__dataclass_params__.frozen  # type: ignore


def _describe_frozen(value: Any) -> str:
    """Return a frozen object, or a value in it, as a line of text that is the same in each process."""
    if _is_plain(value):
        return _to_text(value)
    if isinstance(value, tuple):
        return f"({', '.join(map(_describe_frozen, value))}{',' * (len(value) == 1)})"
    if _is_frozen(value):
        values = [f"{own.name}={_describe_frozen(getattr(value, own.name))}" for own in fields(value)]
        return f"{type(value).__qualname__}({', '.join(values)})"
    text = _to_text(np.asarray(value).tolist()) if _is_small_array(value) else repr(value)
    return _ADDRESS.sub("", " ".join(text.splitlines()))


def _to_text(value: Any) -> str:
    """Return a constant as Python code, which is ``repr`` but for numbers that are not finite, and the order of sets.

    >>> _to_text((1, [float("inf")], {"a": {10, 9}}))
    "(1, [float('inf')], {'a': {9, 10}})"
    """
    match value:
        case dict():
            return "{" + ", ".join(f"{_to_text(key)}: {_to_text(item)}" for key, item in value.items()) + "}"
        case list():
            return f"[{', '.join(map(_to_text, value))}]"
        case tuple():
            return f"({', '.join(map(_to_text, value))}{',' * (len(value) == 1)})"
        case set() | frozenset() if value:  # whose order differs from process to process
            items = "{" + ", ".join(sorted(map(_to_text, value), key=lambda text: (len(text), text))) + "}"
            return items if isinstance(value, set) else f"frozenset({items})"
        case float() | complex() if not cmath.isfinite(value):
            return f"{type(value).__name__}('{value}')"
    return repr(value)


def _find_home(name: str, value: Any) -> tuple[str, str] | None:
    """Return the module from which a value can be imported, and its name there; None if there is none."""
    module_name = getattr(value, "__module__", None)
    original_name = getattr(value, "__name__", None)
    module = sys.modules.get(str(module_name))
    if getattr(module, "__spec__", None) is not None and getattr(module, str(original_name), None) is value:
        return str(module_name), str(original_name)
    modules = sorted(sys.modules.copy().items(), key=lambda item: (item[0].count("."), item[0]))  # outer ones first
    for candidate, module in modules:
        if getattr(module, "__spec__", None) is not None and vars(module).get(name) is value:
            return candidate, name
    return None
