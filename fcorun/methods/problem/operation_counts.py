"""Counts of the gradients and proxes that a computation evaluates.

``mark`` is the identity on arrays and states the cost of computing them. ``count_operations`` traces a function,
replaces each mark by an addition, and carries the sum through branches and loops as a further value. A branch that is
not taken counts nothing, and a loop counts each iteration. The value of a loss counts unless it comes with a
derivative. Both sides of a ``jnp.where`` are computed, and count.
"""

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.extend.core import Jaxpr, JaxprEqn, Literal, Primitive, jaxprs_in_params, take_current_trace
from jax.interpreters import ad, batching, mlir

from fcorun.base.errors import UserError, is_user_file

PyTree = Any  # an array, or nested tuples and dicts of arrays
TracedProgram = Any  # of jax.make_jaxpr: a Jaxpr with its constants, a class of its own before JAX 0.12
Counts = jax.Array | np.ndarray  # int32 (3,): gradients of examples, gradients of whole clients, proxes
ONE_PROX = np.array([0, 0, 1], np.int32)
NO_COUNTS = np.zeros(3, np.int32)

_collected: ContextVar[np.ndarray | None] = ContextVar("_collected", default=None)


def tree_bytes(tree: PyTree) -> int:
    """Return the bytes of all arrays of a pytree, or of their shapes."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def to_arrays(tree: PyTree) -> PyTree:
    """Return a pytree whose numbers, of Python or NumPy, are arrays of JAX; leaves of other types stay."""
    numbers = int, float, np.generic, np.ndarray
    return jax.tree.map(lambda leaf: jnp.asarray(leaf) if isinstance(leaf, numbers) else leaf, tree)


def mark(tree: PyTree, counts: Counts) -> PyTree:
    """Return ``tree`` unchanged, and add ``counts`` for each evaluation."""
    leaves, structure = jax.tree.flatten(tree)
    return jax.tree.unflatten(structure, mark_p.bind(*map(jnp.asarray, leaves), jnp.asarray(counts), n=len(leaves)))


def mark_value(value: jax.Array, counts: Counts) -> jax.Array:
    """Return ``value`` unchanged, and add ``counts`` for each evaluation without a derivative, which has the value."""
    return value_p.bind(value, jnp.asarray(counts), n=1)[0]


def mark_derivatives(tree: PyTree, counts: Counts, *related: jax.Array) -> PyTree:
    """Return ``tree`` unchanged, and add ``counts`` for each derivative with respect to ``tree``.

    ``related`` are the arrays that the derivative depends on. Under ``vmap`` each element counts one derivative.
    """
    leaves, structure = jax.tree.flatten(tree)
    operands = (*map(jnp.asarray, leaves), jnp.asarray(counts), *related)
    return jax.tree.unflatten(structure, derivative_p.bind(*operands, n=len(leaves)))


def count_operations(function: Callable[[], PyTree]) -> tuple[PyTree, jax.Array]:
    """Return ``function()`` and the counts of the evaluated marks, int32 (3,).

    Raises UserError for a mark within a construct of JAX that cannot carry counts, and for a value of another call that
    ``function`` uses.
    """
    if jax.config.jax_disable_jit:  # type: ignore[attr-defined]
        collected = NO_COUNTS.copy()  # of marks that are evaluated without a trace
        token = _collected.set(collected)
        try:
            value = function()
        finally:
            _collected.reset(token)
        return to_arrays(value), jnp.asarray(collected)
    closed, shapes = jax.make_jaxpr(function, return_shape=True)()
    _check_no_dead_tracers(closed)
    values, counts = _evaluate(closed.jaxpr, closed.consts, ())
    return jax.tree.unflatten(jax.tree.structure(shapes), values), jnp.asarray(counts)


def apply_if(condition: jax.Array, step: Callable[[PyTree], PyTree], value: PyTree) -> PyTree:
    """Return ``step(value)`` under the condition, else ``value``.

    A skipped step counts nothing, although it is computed if the condition is traced.
    """
    if not isinstance(condition, Tracer):
        return step(value) if condition else value
    new, counts = count_operations(lambda: step(value))
    return mark(
        jax.tree.map(lambda changed, unchanged: jnp.where(condition, changed, unchanged), new, value),
        counts * condition,
    )


def has_marks(jaxpr: Jaxpr) -> bool:
    """Return True if ``jaxpr``, or a function that ``jaxpr`` calls, contains a mark."""
    return any(eqn.primitive in COUNTED or _contains_marks(eqn) for eqn in jaxpr.eqns)


def _check_no_dead_tracers(closed: TracedProgram) -> None:
    """Raise UserError for a value of an earlier trace, which an algorithm stored in a list for example."""
    with take_current_trace() as trace:
        open_traces = [trace]
    while (trace := getattr(trace, "parent_trace", None)) is not None:
        open_traces.append(trace)
    for var, value in zip(closed.jaxpr.constvars, closed.consts, strict=True):
        if isinstance(value, Tracer) and not any(value._trace is trace for trace in open_traces):
            uses = (source_line(eqn.source_info) for eqn in closed.jaxpr.eqns if var in eqn.invars)
            raise UserError("a value of another call is used: return a value that later calls need, as part of a "
                            f"state or of the upload{next(filter(None, uses), '')}")  # fmt: skip


def source_line(source: Any) -> str:
    """Return the line of a user's file in the source of a JAX operation as text, ", FILE line N", or ""."""
    frames = source.traceback.frames if source is not None and source.traceback else []
    user_frame = next((frame for frame in frames if is_user_file(frame.file_name)), None)
    return f", {Path(user_frame.file_name).name} line {user_frame.line_num}" if user_frame else ""


def _evaluate(jaxpr: Jaxpr, consts: Sequence, arguments: Sequence) -> tuple[list, Counts]:
    """Return the outputs of ``jaxpr`` without its marks, and the counts of the marks."""
    values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *arguments), strict=True))
    counts = NO_COUNTS

    def read(var: Any) -> Any:
        return var.val if isinstance(var, Literal) else values[var]

    for eqn in jaxpr.eqns:
        operands = [read(var) for var in eqn.invars]
        with eqn.ctx.manager:
            if eqn.primitive in COUNTED:
                n = eqn.params["n"]
                results = operands[:n]
                counts = counts + operands[n]
            elif _contains_marks(eqn):
                name = eqn.primitive.name
                if name not in _RULES:
                    raise UserError(
                        f"gradients or proxes within JAX's {name} cannot be counted{source_line(eqn.source_info)}: "
                        "evaluate them outside of it, or in lax.cond, lax.switch, lax.scan, lax.while_loop, "
                        "lax.fori_loop or jax.vmap"
                    )
                results, added = _RULES[name](eqn, *operands)
                counts = counts + added
            else:
                results = eqn.primitive.bind(*operands, **eqn.primitive.get_bind_params(eqn.params))
        if not eqn.primitive.multiple_results:
            results = [results]
        values.update(zip(eqn.outvars, results, strict=True))
    return [read(var) for var in jaxpr.outvars], counts


def _contains_marks(eqn: JaxprEqn) -> bool:
    return any(has_marks(inner) for inner in jaxprs_in_params(eqn.params))


def _evaluate_inner(jaxpr: TracedProgram | Jaxpr, *operands: jax.Array) -> tuple[list, Counts]:
    return _evaluate(getattr(jaxpr, "jaxpr", jaxpr), getattr(jaxpr, "consts", ()), operands)


def _call(eqn: JaxprEqn, *operands: jax.Array) -> tuple[list, Counts]:
    return _evaluate_inner(eqn.params["jaxpr"] if "jaxpr" in eqn.params else eqn.params["call_jaxpr"], *operands)


def _cond(eqn: JaxprEqn, index: jax.Array, *operands: jax.Array) -> tuple[list, Counts]:
    def counting_branch(jaxpr: TracedProgram) -> Callable:
        def branch(*operands):
            results, counts = _evaluate_inner(jaxpr, *operands)
            return results, jnp.asarray(counts)

        return branch

    return lax.switch(index, [counting_branch(jaxpr) for jaxpr in eqn.params["branches"]], *operands)


def _scan(eqn: JaxprEqn, *operands: jax.Array) -> tuple[list, Counts]:
    """Evaluate a scan. What it scans over has one axis more than in its body; constants and the carry have as many."""
    jaxpr = eqn.params["jaxpr"]
    inputs_start = sum(map(_have_equal_rank, eqn.invars, jaxpr.jaxpr.invars))
    carry_size = sum(map(_have_equal_rank, eqn.outvars, jaxpr.jaxpr.outvars))
    carry_start = inputs_start - carry_size

    def body(carry, inputs):
        state, counts = carry
        results, added = _evaluate_inner(jaxpr, *operands[:carry_start], *state, *inputs)
        return (results[:carry_size], counts + added), results[carry_size:]

    options = {name: eqn.params[name] for name in ("length", "reverse", "unroll")}
    carry = (list(operands[carry_start:inputs_start]), jnp.asarray(NO_COUNTS))
    (state, counts), outputs = lax.scan(body, carry, list(operands[inputs_start:]), **options)
    return [*state, *outputs], counts


def _have_equal_rank(one: Any, other: Any) -> bool:
    return one.aval.ndim == other.aval.ndim


def _while(eqn: JaxprEqn, *operands: jax.Array) -> tuple[list, Counts]:
    params = eqn.params
    cond_consts = operands[: params["cond_nconsts"]]
    body_consts = operands[params["cond_nconsts"] : params["cond_nconsts"] + params["body_nconsts"]]
    initial = list(operands[params["cond_nconsts"] + params["body_nconsts"] :])
    condition_counts = has_marks(params["cond_jaxpr"].jaxpr)

    def condition(state):
        (proceed,), counts = _evaluate_inner(params["cond_jaxpr"], *cond_consts, *state)
        return proceed, counts

    def body(carry):
        state, counts, _ = carry
        state, added = _evaluate_inner(params["body_jaxpr"], *body_consts, *state)
        if not condition_counts:
            return state, counts + added, True
        proceed, tested = condition(state)
        return state, counts + added + tested, proceed

    # A condition with marks is evaluated in the body, where its counts can be carried.
    proceed, tested = condition(initial) if condition_counts else (True, NO_COUNTS)
    start = (initial, jnp.asarray(tested), jnp.asarray(proceed))
    state, counts, _ = lax.while_loop(
        lambda carry: carry[2] if condition_counts else condition(carry[0])[0], body, start
    )
    return state, counts


def _linear_solve(eqn: JaxprEqn, *operands: jax.Array) -> tuple[list, Counts]:
    sizes = eqn.params["const_lengths"]
    first = sizes.matvec + sizes.vecmat
    right_side = first + sizes.solve + sizes.transpose_solve
    return _evaluate_inner(eqn.params["jaxprs"].solve, *operands[first : first + sizes.solve], *operands[right_side:])


_CALLS = ("jit", "pjit", "closed_call", "core_call", "checkpoint", "remat2", "custom_jvp_call", "custom_vjp_call")
_RULES: dict[str, Callable[..., tuple[Sequence, Counts]]] = {
    **dict.fromkeys(_CALLS, _call),
    "cond": _cond,
    "scan": _scan,
    "while": _while,
    "custom_linear_solve": _linear_solve,
}


def _lower(ctx, *operands, n):
    if _collected.get() is not None:  # without a trace of the whole run, a compiled function hides its marks
        raise UserError("`debug=true` cannot count gradients or proxes within a function that JAX compiles for itself, "
                        "such as those of jax.scipy: leave debug out, or write its loop by lax.while_loop")  # fmt: skip
    return operands[:n]


def _identity(name: str) -> Primitive:
    """Return a primitive with the operands (*values, counts, *related) that returns its ``n`` values."""
    identity = Primitive(name)
    identity.multiple_results = True
    identity.def_abstract_eval(lambda *operands, n: operands[:n])
    mlir.register_lowering(identity, _lower)

    def batch(operands, dims, *, n):
        size = next(operand.shape[dim] for operand, dim in zip(operands, dims, strict=True) if dim is not None)
        counts = operands[n] * size if dims[n] is None else operands[n].sum(axis=dims[n])
        return identity.bind(*operands[:n], counts, *operands[n + 1 :], n=n), dims[:n]

    batching.primitive_batchers[identity] = batch
    return identity


mark_p = _identity("fcorun_mark")
value_p = _identity("fcorun_mark_value")
COUNTED = mark_p, value_p
derivative_p = _identity("fcorun_mark_derivatives")


@mark_p.def_impl
@value_p.def_impl
def _evaluate_mark(*operands, n):
    counts = _collected.get()
    if counts is not None:
        counts += np.asarray(operands[n])
    return list(operands[:n])


@derivative_p.def_impl
def _evaluate_derivative_mark(*operands, n):
    return list(operands[:n])


def _mark_jvp(operands, tangents, *, n):
    return mark_p.bind(*operands, n=n), list(tangents[:n])


def _value_jvp(operands, tangents, *, n):
    if all(isinstance(tangent, ad.Zero) for tangent in tangents[:n]):
        return value_p.bind(*operands, n=n), list(tangents[:n])
    return list(operands[:n]), list(tangents[:n])


def _mark_transpose(cotangents, *operands, n):
    if all(isinstance(cotangent, ad.Zero) for cotangent in cotangents):
        return [None] * len(operands)
    marked = mark_p.bind(*map(ad.instantiate_zeros, cotangents), *operands[n:], n=n)
    return [*marked, *[None] * (len(operands) - n)]


def _derivative_jvp(operands, tangents, *, n):
    values = derivative_p.bind(*operands, n=n)
    tangents = tangents[:n]
    if not all(isinstance(tangent, ad.Zero) for tangent in tangents):
        related = (*operands[:n], *operands[n + 1 :])
        tangents = mark_p.bind(*map(ad.instantiate_zeros, tangents), operands[n], *related, n=n)
    return values, list(tangents)


ad.primitive_jvps[mark_p] = _mark_jvp
ad.primitive_jvps[value_p] = _value_jvp
ad.primitive_transposes[mark_p] = _mark_transpose
ad.primitive_jvps[derivative_p] = _derivative_jvp
