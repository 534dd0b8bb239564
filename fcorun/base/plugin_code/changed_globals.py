"""The constants of a user's modules that have other values than their files show.

A constant is a global that is a number, a text, a truth value, None, or a tuple of these.
"""

import ast
import dis
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from functools import lru_cache
from types import CodeType, ModuleType
from typing import Any

import numpy as np

CHANGED_GLOBALS_FILE = "changed_globals.py"  # the name of the text in a record
_PLAIN_TYPES = (bool, int, float, complex, str, bytes, type(None), np.generic)
_TERMS = (ast.Constant, ast.UnaryOp, ast.unaryop, ast.BinOp, ast.operator, ast.Tuple, ast.expr_context)
_READS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")  # the last one for annotations, from Python 3.12 on

Bindings = Mapping[str, Sequence[ast.stmt]]  # the statements of a module that bind a name, one for each binding


def find_changed_globals(name: str, content: bytes, classes: Iterable[type]) -> list[str]:
    """Return an assignment for each constant of a module whose value its file, of this content, does not show.

    A file shows the value of a literal, or of a term of literals, that is assigned once. In a script, where a loop or
    the command line may set other constants, those count that the code of ``classes`` refers to. In an imported module
    they count once they have another value than at the first call. Constants that functions assign as ``global`` do not
    count: they may be counters, whose values differ from call to call.
    """
    module = sys.modules.get(name)
    bindings = _bindings(content)
    if module is None:
        return []
    if name == "__main__" or module.__spec__ is None:
        classes_here = [cls.__qualname__.partition(".")[0] for cls in classes if cls.__module__ == name]
        statements = _statements_behind(classes_here, bindings)
        values = _constants(module, names_read_by(statements))
        first_values = {constant: text for constant, text in values.items() if _is_imported(bindings.get(constant, ()))}
    else:
        statements = [statement for of_name in bindings.values() for statement in of_name]
        values = _constants(module, vars(module))
        first_values = vars(module.__spec__).setdefault("fcorun_globals", values)  # each import makes a new spec
    assigned_in_functions: set[str] = set()
    for statement in statements:
        for node in ast.walk(statement):
            if isinstance(node, ast.Global):
                assigned_in_functions.update(node.names)
    shown = first_values | _literals(bindings)
    return [
        f"{name}.{constant} = {text}"
        for constant, text in sorted(values.items())
        if text != shown.get(constant) and constant not in assigned_in_functions
    ]


def _constants(module: ModuleType, names: Iterable[str]) -> dict[str, str]:
    """Return the values of those names that are constants of a module, as text."""
    values = {name: vars(module)[name] for name in names if name in vars(module) and not name.startswith("__")}
    return {name: repr(value) for name, value in values.items() if _is_constant(value)}


def _is_constant(value: Any) -> bool:
    return all(map(_is_constant, value)) if type(value) is tuple else isinstance(value, _PLAIN_TYPES)


@lru_cache(maxsize=4096)
def _bindings(content: bytes) -> Bindings:
    """Return the statements that bind each global name of a module, outside of functions and classes."""
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):  # a compiled module
        return {}
    bindings = defaultdict(list)
    for statement in _without_blocks(tree.body):
        for name in _bound_names(statement):
            bindings[name].append(statement)
    return dict(bindings)


def _without_blocks(statements: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the simple statements, functions and classes of a module, and the heads of its loops and contexts."""
    for statement in statements:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield statement
            continue
        blocks = [block for block in _blocks(statement) if block]
        if not blocks:
            yield statement
            continue
        if isinstance(statement, (ast.For, ast.With)):
            head = copy(statement)
            head.body = [ast.copy_location(ast.Pass(), statement)]
            if isinstance(head, ast.For):
                head.orelse = []
            yield head
        for block in blocks:
            yield from _without_blocks(block)


def _blocks(statement: ast.AST) -> Iterator[list[ast.stmt]]:
    """Yield the lists of statements within a statement, such as the branches of an ``if``."""
    for field in ("body", "orelse", "finalbody"):
        yield getattr(statement, field, [])
    for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
        yield part.body


def _bound_names(node: ast.AST) -> Iterator[str]:
    """Yield each name that a statement binds in its module, as often as it binds it."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in aliases)
        case ast.Name(id=name, ctx=ast.Store()):
            yield name
        case ast.Lambda():
            pass
        case _:
            for child in ast.iter_child_nodes(node):
                yield from _bound_names(child)


def _literals(bindings: Bindings) -> dict[str, str]:
    """Return the values, as text, of the names that a module binds once, as numbers, texts or terms of these."""
    values = {}
    for name, statements in bindings.items():
        match statements:
            case [ast.Assign(targets=[ast.Name()], value=value) | ast.AnnAssign(value=ast.expr() as value)]:
                if all(isinstance(node, _TERMS) for node in ast.walk(value)):
                    with suppress(Exception):  # a term that has no value stands where no program came by
                        values[name] = repr(eval(compile(ast.Expression(value), "<module>", "eval")))
    return values


def _is_imported(statements: Sequence[ast.stmt]) -> bool:
    return len(statements) == 1 and isinstance(statements[0], (ast.Import, ast.ImportFrom))


def _statements_behind(names: Iterable[str], bindings: Bindings) -> list[ast.stmt]:
    """Return the statements that bind these names, and those that bind the names that these statements read."""
    queue = [*names]
    seen = set()
    statements = []
    while queue:
        name = queue.pop()
        if name not in seen:
            seen.add(name)
            statements += bindings.get(name, ())
            queue += names_read_by(bindings.get(name, ()))
    return statements


def names_read_by(statements: Sequence[ast.stmt]) -> set[str]:
    """Return the global names that statements of a module read, also within functions."""
    # An import from __future__ must come first, and binds no name that the others need.
    body = [statement for statement in statements if getattr(statement, "module", None) != "__future__"]
    codes = [compile(ast.Module(body, type_ignores=[]), "<module>", "exec", dont_inherit=True)]
    for code in codes:
        codes += [part for part in code.co_consts if isinstance(part, CodeType)]
    instructions = [instruction for code in codes for instruction in dis.get_instructions(code)]
    return {read.argval for read in instructions if read.opname in _READS}
