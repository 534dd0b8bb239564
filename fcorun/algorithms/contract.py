"""What the functions of an algorithm return: once, on shapes alone, before anything is computed with them."""

from typing import Any

import jax
import numpy as np

from fcorun.algorithms.base import Algorithm, LocalData, Tree
from fcorun.errors import UserError
from fcorun.problem.problem import Problem
from fcorun.problem.vector import Vector

_KEPT = "the state that each client keeps (None: it keeps none)"


def called(algorithm: Algorithm, problem: Problem, w0: Vector, data: LocalData) -> tuple[Tree, Tree, Tree]:
    """An upload, what is broadcast and what an edge reports, of a round with one client, to be traced.

    Raises UserError where a function returns what the next one cannot take, and names it.
    """
    server, client = _pair(algorithm, "init", algorithm.init(problem, w0), "the server's state", _KEPT)
    received, above = algorithm.broadcast(server), problem.on("server")
    found = algorithm.local(problem.on("client"), received, client, data)
    upload, kept = _pair(algorithm, "local", found, "its upload", "the client's new state")
    _same(algorithm, "local", "the client's new state", kept, client)
    reported = algorithm.report(server)
    if algorithm.traits.trees != "only":
        _same(algorithm, "server", "the server's new state", algorithm.server(above, server, upload), server)
    if algorithm.traits.trees:
        _same(algorithm, "edge", "an edge's new state", algorithm.edge(above, server, upload), server)
        _same(algorithm, "cloud", "the server's new state", algorithm.cloud(above, server, reported), server)
    _model(algorithm, "output", algorithm.output(above, server), w0)
    if algorithm.personalises:
        _model(algorithm, "personal", algorithm.personal(problem.on("client"), server, client), w0)
    return upload, received, reported


def _pair(algorithm: Algorithm, name: str, found: Any, first: str, second: str) -> tuple[Tree, Tree]:
    who = f"{name}() of {type(algorithm).__name__}"
    if not isinstance(found, tuple) or len(found) != 2:
        what = f"{len(found)} things" if isinstance(found, tuple) else type(found).__name__
        raise UserError(f"{who} must return two things, {first} and {second}, and returned {what}")
    for part, tree in zip((first, second), found, strict=True):
        for leaf in jax.tree.leaves(tree):
            if not isinstance(leaf, (jax.Array, np.ndarray, np.generic, int, float)):
                raise UserError(f"{who}: {part} must be made of arrays, and has a {type(leaf).__name__} in it")
    return found


def _same(algorithm: Algorithm, name: str, what: str, found: Tree, before: Tree) -> None:
    """Refuse a state that is not of the form that ``init`` gave it."""
    if _form(found) != _form(before):
        raise UserError(f"{name}() of {type(algorithm).__name__}: {what} must be like that of init(), "
                        f"{_form(before)}, and is {_form(found)}")  # fmt: skip


def _model(algorithm: Algorithm, name: str, found: Any, w0: Vector) -> None:
    if not isinstance(found, Vector) or _form(found) != _form(w0):
        raise UserError(f"{name}() of {type(algorithm).__name__} must return parameters like w0, {_form(w0)}, "
                        f"and returned {_form(found)}")  # fmt: skip


def _form(tree: Tree) -> str:
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
