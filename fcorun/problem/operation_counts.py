"""How much work a computation is: marks where gradients and proxes are evaluated, and a count of the marks that run.

``mark`` is the identity on arrays and says what computing them took. ``counted`` traces a function, replaces each mark
by an addition, and carries the sum through branches and loops as one more value of theirs: a branch that is not taken
counts nothing, and a loop counts each turn. Both sides of a ``jnp.where`` are computed, and count.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Primitive, jaxprs_in_params, take_current_trace
from jax.interpreters import ad, batching, mlir

from fcorun.errors import UserError, is_user_file

PyTree = Any
Counts = jax.Array | np.ndarray  # int32 (3,): gradients of examples' losses, of whole clients' losses, and proxes
ONE_PROX = np.array([0, 0, 1], np.int32)
NO_COUNTS = np.zeros(3, np.int32)

_collected: ContextVar[np.ndarray | None] = ContextVar("_collected", default=None)


def mark(tree: PyTree, counts: Counts) -> PyTree:
    """Return ``tree`` unchanged, and count ``counts`` wherever it is evaluated."""
    leaves, structure = jax.tree.flatten(tree)
    return jax.tree.unflatten(structure, mark_p.bind(*map(jnp.asarray, leaves), jnp.asarray(counts), n=len(leaves)))


def mark_derivatives(tree: PyTree, counts: Counts, *related: jax.Array) -> PyTree:
    """Return ``tree`` unchanged, and count ``counts`` for each derivative that is taken with respect to it.

    ``related`` are arrays that the derivative depends on: under ``vmap`` one derivative is counted for each element.
    """
    leaves, structure = jax.tree.flatten(tree)
    given = (*map(jnp.asarray, leaves), jnp.asarray(counts), *related)
    return jax.tree.unflatten(structure, derivative_p.bind(*given, n=len(leaves)))


def count_operations(function: Callable[[], PyTree]) -> tuple[PyTree, jax.Array]:
    """Return ``function()`` and the counts of the marks that were evaluated, int32 (3,).

    Raises UserError for a mark within a construct of JAX through which counts cannot be carried.
    """
    if jax.config.jax_disable_jit:  # type: ignore[attr-defined]
        with _collecting() as found:
            value = function()
        return value, jnp.asarray(found)
    closed, shapes = jax.make_jaxpr(function, return_shape=True)()
    _check_alive(closed)
    values, counts = _evaluate(closed.jaxpr, closed.consts, ())
    return jax.tree.unflatten(jax.tree.structure(shapes), values), jnp.asarray(counts)


def apply_if(condition: jax.Array, step: Callable[[PyTree], PyTree], value: PyTree) -> PyTree:
    """Return ``step(value)`` if ``there``, else ``value``. A step that is not there counts nothing, although it is
    computed where ``there`` is traced."""
    if not isinstance(condition, Tracer):
        return step(value) if condition else value
    new, counts = count_operations(lambda: step(value))
    return mark(jax.tree.map(lambda n, v: jnp.where(condition, n, v), new, value), counts * condition)


def has_marks(jaxpr: Jaxpr) -> bool:
    """Whether anything is marked in ``jaxpr`` or in the functions that it calls."""
    return any(eqn.primitive is mark_p or _marked(eqn) for eqn in jaxpr.eqns)


def _check_alive(closed: ClosedJaxpr) -> None:
    """Refuse values that a trace has left behind which is over, kept in a list for example. Raises UserError."""
    with take_current_trace() as trace:
        open_traces = [trace]
    while (trace := getattr(trace, "parent_trace", None)) is not None:
        open_traces.append(trace)
    for var, value in zip(closed.jaxpr.constvars, closed.consts, strict=True):
        if isinstance(value, Tracer) and not any(value._trace is trace for trace in open_traces):
            uses = (source_line(eqn.source_info) for eqn in closed.jaxpr.eqns if var in eqn.invars)
            raise UserError("a value is used that was kept from another call: return what is to be kept, as part of a "
                            f"state or of the upload{next(filter(None, uses), '')}")  # fmt: skip


def source_line(source: Any) -> str:
    """The line of a user's own file in the source that JAX notes of an operation, ", FILE line N", or ""."""
    frames = source.traceback.frames if source is not None and source.traceback else []
    own = next((frame for frame in frames if is_user_file(frame.file_name)), None)
    return f", {Path(own.file_name).name} line {own.line_num}" if own else ""


@contextmanager
def _collecting() -> Iterator[np.ndarray]:
    """Collect what marks count that are evaluated at once, without a trace."""
    found = NO_COUNTS.copy()
    token = _collected.set(found)
    try:
        yield found
    finally:
        _collected.reset(token)


def _evaluate(jaxpr: Jaxpr, consts: Sequence, arguments: Sequence) -> tuple[list, Counts]:
    """The outputs of ``jaxpr``, whose marks are left out, and what these count."""
    values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *arguments), strict=True))
    counts = NO_COUNTS

    def read(var: Any) -> Any:
        return var.val if isinstance(var, Literal) else values[var]

    for eqn in jaxpr.eqns:
        given = [read(var) for var in eqn.invars]
        with eqn.ctx.manager:
            if eqn.primitive is mark_p:
                found, more = given[: eqn.params["n"]], given[eqn.params["n"]]
            elif _marked(eqn):
                found, more = _rule(eqn)(eqn.params, *given)
            else:
                found, more = eqn.primitive.bind(*given, **eqn.primitive.get_bind_params(eqn.params)), None
        if more is not None:
            counts = counts + more
        found = found if eqn.primitive.multiple_results else [found]
        values.update(zip(eqn.outvars, found, strict=True))
    return [read(var) for var in jaxpr.outvars], counts


def _marked(eqn: JaxprEqn) -> bool:
    return any(has_marks(inner) for inner in jaxprs_in_params(eqn.params))


def _rule(eqn: JaxprEqn) -> Callable[..., tuple[Sequence, Counts]]:
    """How an operation is evaluated that has marks within."""
    name = eqn.primitive.name
    if name not in _RULES:
        raise UserError(
            f"gradients or proxes within JAX's {name} cannot be counted{source_line(eqn.source_info)}: evaluate them "
            "outside of it, or in lax.cond, lax.switch, lax.scan, lax.while_loop, lax.fori_loop or jax.vmap"
        )
    return _RULES[name]


def _inside(jaxpr: ClosedJaxpr | Jaxpr, *given: Any) -> tuple[list, Counts]:
    if isinstance(jaxpr, ClosedJaxpr):
        return _evaluate(jaxpr.jaxpr, jaxpr.consts, given)
    return _evaluate(jaxpr, (), given)


def _call(params: dict, *given: Any) -> tuple[list, Counts]:
    return _inside(params["jaxpr"] if "jaxpr" in params else params["call_jaxpr"], *given)


def _cond(params: dict, index: Any, *given: Any) -> tuple[list, Counts]:
    def branch(jaxpr: ClosedJaxpr) -> Callable:
        def taken(*given):
            found, counts = _inside(jaxpr, *given)
            return found, jnp.asarray(counts)

        return taken

    return lax.switch(index, [branch(jaxpr) for jaxpr in params["branches"]], *given)


def _scan(params: dict, *given: Any) -> tuple[list, Counts]:
    fixed, first = params["num_consts"], params["num_consts"] + params["num_carry"]

    def body(carry, inputs):
        state, counts = carry
        found, more = _inside(params["jaxpr"], *given[:fixed], *state, *inputs)
        return (found[: first - fixed], counts + more), found[first - fixed :]

    how = {name: params[name] for name in ("length", "reverse", "unroll")}
    start = (list(given[fixed:first]), jnp.asarray(NO_COUNTS))
    (state, counts), outputs = lax.scan(body, start, list(given[first:]), **how)
    return [*state, *outputs], counts


def _while(params: dict, *given: Any) -> tuple[list, Counts]:
    fixed = params["cond_nconsts"]
    first = fixed + params["body_nconsts"]

    def go_on(state):
        (found,), counts = _inside(params["cond_jaxpr"], *given[:fixed], *state)
        return found, counts

    def body(carry):
        state, counts, _ = carry
        state, more = _inside(params["body_jaxpr"], *given[fixed:first], *state)
        again, asking = go_on(state) if judges else (True, NO_COUNTS)
        return state, counts + more + asking, again

    start = list(given[first:])
    judges = has_marks(params["cond_jaxpr"].jaxpr)  # then asking whether to go on is work, too
    again, asking = go_on(start) if judges else (True, NO_COUNTS)
    begin = (start, jnp.asarray(asking), jnp.asarray(again))
    state, counts, _ = lax.while_loop(lambda now: now[2] if judges else go_on(now[0])[0], body, begin)
    return state, counts


def _linear_solve(params: dict, *given: Any) -> tuple[list, Counts]:
    sizes = params["const_lengths"]
    first = sizes.matvec + sizes.vecmat
    right = first + sizes.solve + sizes.transpose_solve
    return _inside(params["jaxprs"].solve, *given[first : first + sizes.solve], *given[right:])


_CALLS = ("jit", "pjit", "closed_call", "core_call", "checkpoint", "remat2", "custom_jvp_call", "custom_vjp_call")
_RULES: dict[str, Callable[..., tuple[Sequence, Counts]]] = {
    **dict.fromkeys(_CALLS, _call),
    "cond": _cond,
    "scan": _scan,
    "while": _while,
    "custom_linear_solve": _linear_solve,
}


def _compiled(ctx, *given, n):
    if _collected.get() is not None:  # without a trace of the whole, what is compiled for itself tells nothing
        raise UserError("debug=true cannot count gradients or proxes within a function that JAX compiles for itself, "
                        "such as those of jax.scipy: leave debug out, or write its loop by lax.while_loop")  # fmt: skip
    return given[:n]


def _identity(name: str) -> Primitive:
    """An operation (*values, counts, *related) that returns its first ``n`` operands, the values."""
    identity = Primitive(name)
    identity.multiple_results = True
    identity.def_abstract_eval(lambda *given, n: given[:n])
    mlir.register_lowering(identity, _compiled)

    def batched(given, dims, *, n):
        size = next(v.shape[dim] for v, dim in zip(given, dims, strict=True) if dim is not None)
        counts = given[n] * size if dims[n] is None else given[n].sum(axis=dims[n])
        return identity.bind(*given[:n], counts, *given[n + 1 :], n=n), dims[:n]

    batching.primitive_batchers[identity] = batched
    return identity


mark_p, derivative_p = _identity("fcorun_mark"), _identity("fcorun_mark_derivatives")


@mark_p.def_impl
def _marked_now(*given, n):
    found = _collected.get()
    if found is not None:
        found += np.asarray(given[n])
    return list(given[:n])


@derivative_p.def_impl
def _unchanged(*given, n):
    return list(given[:n])


def _mark_jvp(given, tangents, *, n):
    return mark_p.bind(*given, n=n), list(tangents[:n])


def _mark_transpose(cotangents, *given, n):
    if all(isinstance(v, ad.Zero) for v in cotangents):
        return [None] * len(given)
    found = mark_p.bind(*map(ad.instantiate_zeros, cotangents), *given[n:], n=n)
    return [*found, *[None] * (len(given) - n)]


def _derivative_jvp(given, tangents, *, n):
    found, tangents = derivative_p.bind(*given, n=n), tangents[:n]
    if not all(isinstance(v, ad.Zero) for v in tangents):
        tangents = mark_p.bind(*map(ad.instantiate_zeros, tangents), given[n], *given[:n], *given[n + 1 :], n=n)
    return found, list(tangents)


ad.primitive_jvps[mark_p], ad.primitive_transposes[mark_p] = _mark_jvp, _mark_transpose
ad.primitive_jvps[derivative_p] = _derivative_jvp
