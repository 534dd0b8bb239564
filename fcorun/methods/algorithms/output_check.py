"""Checks of the arguments and results of an algorithm's functions, by shapes alone, before any computation."""

import inspect
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from fcorun.base.errors import UserError, find_user_line
from fcorun.methods.algorithms.algorithm import Algorithm, LocalData, PyTree
from fcorun.methods.problem.operation_counts import count_operations, to_arrays
from fcorun.methods.problem.problem import Problem, Vector

_CLIENT_STATE = "the state that each client stores (None for no state)"
_ARGUMENTS = {
    "init": ("problem", "w0"),
    "broadcast": ("server",),
    "first_broadcast": ("server",),
    "first_local": ("problem", "server", "client", "data"),
    "first_server": ("problem", "server", "mean"),
    "local": ("problem", "server", "client", "data"),
    "after_sending": ("client", "message"),
    "server": ("problem", "server", "mean"),
    "server_all": ("problem", "server", "uploads", "weights"),
    "output": ("problem", "server"),
    "personal": ("problem", "server", "client"),
    "edge": ("problem", "edge", "mean"),
    "edge_upload": ("edge",),
    "root": ("problem", "server", "mean"),
    "upload_bytes": ("upload",),
    "upload_bytes_for": ("problem", "upload"),
    "counted_upload_bytes": ("clients",),
    "edge_upload_bytes": ("upload",),
    "broadcast_bytes": ("broadcast",),
    "metrics": ("problem", "server", "clients"),
}


def trace_messages(
    algorithm: Algorithm, problem: Problem, w0: Vector, data: LocalData, frozen: LocalData | None = None
) -> tuple[tuple[PyTree, ...], tuple[PyTree, ...], PyTree]:
    """Return the upload and the broadcast of each exchange, and the edge upload, of a round with one client.

    Call it while JAX traces. ``frozen`` are the data of a client with a fixed server model, if there are such clients.
    Raises UserError with the name of the function whose arguments or results are wrong.
    """
    check_parameters(algorithm)

    def call(name: str, *arguments: PyTree) -> PyTree:
        copies = jax.tree.map(lambda leaf: leaf, arguments, is_leaf=_is_no_state)  # a function may change its arguments
        return to_arrays(_call(algorithm, name, *copies))

    def call_local(name: str, received: PyTree, data: LocalData) -> tuple[PyTree, PyTree]:
        result = call(name, on_client, received, client, data)
        upload, new_client = _check_pair(algorithm, name, result, "its upload", "the client's new state")
        _check_same_structure(algorithm, name, "the client's new state", new_client, client)
        return upload, new_client

    # Any key does, since only shapes matter.
    on_server, on_client = replace(problem.for_side("server"), key_bits=(0, 0)), problem.for_side("client")
    initial_states = call("init", replace(problem, key_bits=(0, 0)), w0)
    server, client = _check_pair(algorithm, "init", initial_states, "the server's state", _CLIENT_STATE)
    uploads, broadcasts = [], []
    if algorithm.has_two_exchanges:
        broadcasts.append(call("first_broadcast", server))

        (upload, _), _ = count_operations(lambda: call_local("first_local", broadcasts[0], data))
        uploads.append(upload)
        new_server = call("first_server", on_server, server, upload)
        _check_same_structure(algorithm, "first_server", "the server's new state", new_server, server)
    received = call("broadcast", server)
    # Raises UserError for operations that cannot be counted, too.
    (upload, new_client), _ = count_operations(lambda: call_local("local", received, data))
    new_client = call("after_sending", new_client, upload)
    _check_same_structure(algorithm, "after_sending", "the client's new state", new_client, client)
    edge_upload = call("edge_upload", server)
    if algorithm.traits.hierarchy != "only":
        new_server = call("server", on_server, server, upload)
        _check_same_structure(algorithm, "server", "the server's new state", new_server, server)
    if algorithm.has_server_all:
        uploads_of_two = jax.tree.map(lambda v: jnp.stack([v, v]), upload)
        new_server = call("server_all", on_server, server, uploads_of_two, jnp.full(2, 0.5, w0.dtype))
        _check_same_structure(algorithm, "server_all", "the server's new state", new_server, server)
    if algorithm.traits.hierarchy:
        new_edge = call("edge", on_server, server, upload)
        _check_same_structure(algorithm, "edge", "an edge's new state", new_edge, server)
        new_server = call("root", on_server, server, edge_upload)
        _check_same_structure(algorithm, "root", "the server's new state", new_server, server)
    _check_model(algorithm, "output", call("output", problem.for_side("server"), server), w0)
    if algorithm.has_personal_models:
        _check_model(algorithm, "personal", call("personal", on_client, server, client), w0)
    if algorithm.declared_metrics or type(algorithm).metrics is not Algorithm.metrics:
        clients = jax.tree.map(lambda v: jnp.stack([v, v]), client)
        _check_metrics(algorithm, call("metrics", problem.for_side("server"), server, clients))
    if frozen is not None:
        call_local("local", received, frozen)  # records what local() reads of the data
    return (*uploads, upload), (*broadcasts, received), edge_upload


def check_parameters(algorithm: Algorithm) -> None:
    """Raise UserError for a function of an algorithm that does not accept the arguments of its calls."""
    for name, arguments in _ARGUMENTS.items():
        try:
            inspect.signature(getattr(algorithm, name)).bind(*arguments)
        except TypeError:
            call = f"{name}(self, {', '.join(arguments)})"
            definition = f"{name}({', '.join(inspect.signature(getattr(type(algorithm), name)).parameters)})"
            raise _error(algorithm, name, f" is called as {call}, and is written {definition}") from None


def _is_no_state(value: object) -> bool:
    """Return True for a problem or local data, which are no states of the algorithm."""
    return isinstance(value, (Problem, LocalData))


def _error(algorithm: Algorithm, name: str, fault: str) -> UserError:
    """Return an error about a function of the algorithm, with the line of the function's definition."""
    code = getattr(getattr(algorithm, name), "__code__", None)
    line = f", {Path(code.co_filename).name} line {code.co_firstlineno}" if code else ""
    return UserError(f"{name}() of {type(algorithm).__name__}{fault}{line}")


def _call(algorithm: Algorithm, name: str, *arguments: PyTree) -> PyTree:
    """Call a function of the algorithm.

    Raises UserError for a key that no argument has, and for an operation on values of different structures.
    """
    try:
        return getattr(algorithm, name)(*arguments)
    except (KeyError, TypeError) as error:
        line = find_user_line(error)
        is_key = isinstance(error, KeyError)
        if not line or not (is_key or "unsupported operand" in str(error)):
            raise
        structures = "; ".join(
            f"{argument} has {_describe_structure(value)}"
            for argument, value in zip(_ARGUMENTS[name], arguments, strict=True)
            if value is not None and not _is_no_state(value)
        )
        fault = f"reads the key {error}, which does not exist" if is_key else "combines values of different structures"
        raise UserError(f"{name}() of {type(algorithm).__name__} {fault} ({structures}), {line}") from error


def _check_pair(algorithm: Algorithm, name: str, result: PyTree, first: str, second: str) -> tuple[PyTree, PyTree]:
    """Return the result of a function if it is a pair of pytrees of arrays. Raises UserError for any other result."""
    if not isinstance(result, tuple) or len(result) != 2:
        returned = f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__
        raise _error(algorithm, name, f" must return two values, {first} and {second}, and returned {returned}")
    for part, tree in zip((first, second), result, strict=True):
        for leaf in jax.tree.leaves(tree):
            if not isinstance(leaf, (jax.Array, np.ndarray, np.generic, int, float)):
                fault = f": {part} must consist of arrays, and contains a {type(leaf).__name__}"
                raise _error(algorithm, name, fault)
    return result


def _check_same_structure(algorithm: Algorithm, name: str, state: str, new: PyTree, initial: PyTree) -> None:
    """Refuse a state that differs from that of ``init`` in its structure, or has numbers that its types do not hold."""
    expected, returned = _describe_structure(initial), _describe_structure(new)
    if returned != expected:
        raise _error(algorithm, name, f": {state} must be like that of init(), {expected}, and is {returned}")
    for (path, before), after in zip(jax.tree.leaves_with_path(initial), jax.tree.leaves(new), strict=False):
        old_type, new_type = jax.typeof(before), jax.typeof(after)
        adapts = old_type.weak_type and jnp.issubdtype(old_type.dtype, jnp.floating)
        if not adapts and jnp.result_type(before, after) != old_type.dtype:
            loses_fraction = jnp.issubdtype(old_type.dtype, jnp.integer) and jnp.issubdtype(
                new_type.dtype, jnp.floating
            )
            fix = ": let init() start it as a real number, such as 0.0" if loses_fraction else ""
            entry = f"{state}{jax.tree_util.keystr(path)}"
            fault = f": {entry} must be {old_type.dtype} like that of init(), and is {new_type.dtype}{fix}"
            raise _error(algorithm, name, fault)


def _check_model(algorithm: Algorithm, name: str, model: PyTree, w0: Vector) -> None:
    """Refuse a model that is not a vector with the parameters of w0."""
    expected, returned = _describe_structure(w0), _describe_structure(model)
    if not isinstance(model, Vector) or returned != expected:
        raise _error(algorithm, name, f" must return parameters like w0, {expected}, and returned {returned}")


def _check_metrics(algorithm: Algorithm, values: PyTree) -> None:
    """Refuse results of ``metrics`` that are no scalars, or not those that the class declares."""
    if not isinstance(values, dict):
        fault = f" must return a dict of numbers by name, and returned {_describe_structure(values)}"
        raise _error(algorithm, "metrics", fault)
    declared = [metric.name for metric in algorithm.declared_metrics]
    for name in dict.fromkeys([*values, *declared]):
        fault = ""
        if name not in declared:
            fault = f" returns '{name}', which the class does not declare: add Metric('{name}') to declared_metrics"
        elif name not in values:
            fault = f" returns no '{name}', which declared_metrics has: return it, or declare it no longer"
        elif _describe_structure(values[name]) != "a number":
            fault = f" must return a number as '{name}', and returned {_describe_structure(values[name])}"
        if fault:
            raise _error(algorithm, "metrics", fault)


def _describe_structure(tree: PyTree) -> str:
    """Return the types and array shapes of a pytree as text.

    >>> _describe_structure({"a": (np.zeros((2, 3)), None), "b": 1.0})
    '{a: (array (2, 3), None), b: a number}'
    """
    if isinstance(tree, (Vector, dict)):
        entries = ", ".join(f"{name}: {_describe_structure(tree[name])}" for name in sorted(tree))
        return f"parameters ({entries})" if isinstance(tree, Vector) else f"{{{entries}}}"
    if hasattr(tree, "shape"):
        return f"array {tuple(tree.shape)}" if tree.shape else "a number"
    if isinstance(tree, (tuple, list)):
        entries = ", ".join(map(_describe_structure, tree))
        is_named_tuple = bool(getattr(tree, "_fields", None))
        return f"{type(tree).__name__}({entries})" if is_named_tuple else f"({entries})"
    if isinstance(tree, (int, float)):
        return "a number"
    return "None" if tree is None else type(tree).__name__
