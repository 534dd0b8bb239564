"""Checks of what the functions of an algorithm take and return: once, on shapes alone, before they compute anything."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fcorun.algorithms.base import Algorithm, LocalData, PyTree
from fcorun.errors import UserError, find_user_line
from fcorun.problem.operation_counts import count_operations
from fcorun.problem.problem import Problem
from fcorun.problem.vector import Vector

_KEPT = "the state that each client keeps (None: it keeps none)"
_TAKE = {
    "init": ("problem", "w0"),
    "broadcast": ("server",),
    "local": ("problem", "server", "client", "data"),
    "server": ("problem", "server", "mean"),
    "output": ("problem", "server"),
    "personal": ("problem", "server", "client"),
    "edge": ("problem", "edge", "mean"),
    "edge_upload": ("edge",),
    "root": ("problem", "server", "mean"),
    "upload_bytes": ("upload",),
    "broadcast_bytes": ("broadcast",),
}


def trace_outputs(
    algorithm: Algorithm, problem: Problem, w0: Vector, data: LocalData, frozen: LocalData | None = None
) -> tuple[PyTree, PyTree, PyTree]:
    """Return an upload, what is broadcast and what an edge reports, of a round with one client, to be traced.

    ``frozen`` are the data of a client whose server stays as it is, where that is so. Raises UserError where a function
    takes or returns what it cannot, and names it.
    """
    for name, taken in _TAKE.items():
        _check_parameters(algorithm, name, taken)

    def call(name: str, *given: Any) -> Any:
        return _call(algorithm, name, *jax.tree.map(lambda leaf: leaf, given, is_leaf=_is_plain))

    above, below = problem.for_side("server"), problem.for_side("client")
    server, client = _pair(algorithm, "init", call("init", problem, w0), "the server's state", _KEPT)
    received = call("broadcast", server)
    found, _ = count_operations(lambda: _pair(
        algorithm, "local", call("local", below, received, client, data), "its upload", "the client's new state"
    ))  # fmt: skip
    upload, kept = found
    _same(algorithm, "local", "the client's new state", kept, client)
    reported = call("edge_upload", server)
    if algorithm.traits.hierarchy != "only":
        _same(algorithm, "server", "the server's new state", call("server", above, server, upload), server)
    if algorithm.traits.hierarchy:
        _same(algorithm, "edge", "an edge's new state", call("edge", above, server, upload), server)
        _same(algorithm, "root", "the server's new state", call("root", above, server, reported), server)
    _model(algorithm, "output", call("output", above, server), w0)
    if algorithm.has_personal_models:
        _model(algorithm, "personal", call("personal", below, server, client), w0)
    if frozen is not None:
        call("local", below, received, client, frozen)
    return upload, received, reported


def _is_plain(value: Any) -> bool:
    """Whether a value is no container of arrays."""
    return isinstance(value, (Problem, LocalData))


def _check_parameters(algorithm: Algorithm, name: str, taken: tuple[str, ...]) -> None:
    """Refuse a function that cannot be called with what it is given."""
    function = getattr(algorithm, name)
    try:
        inspect.signature(function).bind(*taken)
    except TypeError:
        told = f"{name}(self, {', '.join(taken)})"
        has = f"{name}({', '.join(inspect.signature(getattr(type(algorithm), name)).parameters)})"
        raise UserError(
            f"{name}() of {type(algorithm).__name__} is called as {told}, and is written {has}{_place(function)}"
        ) from None


def _place(function: Callable) -> str:
    """Where a function is written, ", FILE line N", or ""."""
    code = getattr(function, "__code__", None) or getattr(getattr(function, "__func__", None), "__code__", None)
    return f", {Path(code.co_filename).name} line {code.co_firstlineno}" if code else ""


def _call(algorithm: Algorithm, name: str, *given: Any) -> Any:
    """Call a function of the algorithm. Raises UserError where it asks for a key that nothing given to it has."""
    try:
        return getattr(algorithm, name)(*given)
    except KeyError as error:
        if not (line := find_user_line(error)):
            raise
        states = zip(_TAKE[name], given, strict=True)
        had = [f"{what} has {_form(value)}" for what, value in states if not _is_plain(value) and value is not None]
        raise UserError(
            f"{name}() of {type(algorithm).__name__} asks for the key {error}, which is not there ({'; '.join(had)}), "
            f"{line}"
        ) from error


def _pair(algorithm: Algorithm, name: str, found: Any, first: str, second: str) -> tuple[PyTree, PyTree]:
    who = f"{name}() of {type(algorithm).__name__}"
    if not isinstance(found, tuple) or len(found) != 2:
        what = f"{len(found)} things" if isinstance(found, tuple) else type(found).__name__
        raise UserError(
            f"{who} must return two things, {first} and {second}, and returned {what}{_at(algorithm, name)}"
        )
    for part, tree in zip((first, second), found, strict=True):
        for leaf in jax.tree.leaves(tree):
            if not isinstance(leaf, (jax.Array, np.ndarray, np.generic, int, float)):
                raise UserError(f"{who}: {part} must be made of arrays, and has a {type(leaf).__name__} in it"
                                f"{_at(algorithm, name)}")  # fmt: skip
    return found


def _same(algorithm: Algorithm, name: str, what: str, found: PyTree, before: PyTree) -> None:
    """Refuse a state that is not of the form that ``init`` gave it."""
    if _form(found) != _form(before):
        raise UserError(f"{name}() of {type(algorithm).__name__}: {what} must be like that of init(), "
                        f"{_form(before)}, and is {_form(found)}{_at(algorithm, name)}")  # fmt: skip


def _model(algorithm: Algorithm, name: str, found: Any, w0: Vector) -> None:
    if not isinstance(found, Vector) or _form(found) != _form(w0):
        raise UserError(f"{name}() of {type(algorithm).__name__} must return parameters like w0, {_form(w0)}, "
                        f"and returned {_form(found)}{_at(algorithm, name)}")  # fmt: skip


def _at(algorithm: Algorithm, name: str) -> str:
    return _place(getattr(algorithm, name))


def _form(tree: PyTree) -> str:
    """A tree by its types and the shapes of its arrays.

    >>> _form({"a": (np.zeros((2, 3)), None), "b": 1.0})
    '{a: (array (2, 3), None), b: a number}'
    """
    if isinstance(tree, (Vector, dict)):
        inside = ", ".join(f"{name}: {_form(tree[name])}" for name in sorted(tree))
        return f"parameters ({inside})" if isinstance(tree, Vector) else f"{{{inside}}}"
    if hasattr(tree, "shape"):
        return f"array {tuple(tree.shape)}" if tree.shape else "a number"
    if isinstance(tree, (tuple, list)):
        inside = ", ".join(map(_form, tree))
        names = getattr(tree, "_fields", None)
        return f"{type(tree).__name__}({inside})" if names else f"({inside})"
    if isinstance(tree, (int, float)):
        return "a number"
    return "None" if tree is None else type(tree).__name__
