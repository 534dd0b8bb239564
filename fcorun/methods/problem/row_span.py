"""Cheaper forms of a client's loss on all its rows: decomposed quadratics, and coordinates of the span of few rows.

Outside of the span the loss is flat but for a ridge. A product with n rows of d features takes n x n numbers instead of
n x d, and n numbers for a decomposed quadratic. The coordinates are orthonormal and include the distance from the
span, so that an algorithm that adds points and gradients takes the same steps in coordinates.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from threadpoolctl import threadpool_limits

from fcorun.data.datasets.dataset import FederatedData
from fcorun.methods.objectives.objective import Objective, is_linear_model, matmul
from fcorun.methods.problem.curvature import row_weights, scaled_features
from fcorun.methods.problem.problem import SPAN_COORDINATES, Batch, Problem, Quadratic, Vector, to_coordinates

_MAX_NUMBERS = 2**27  # in all bases together
_MAX_DECOMPOSED = 2**28  # in all bases of decomposed losses together
_OUTSIDE = "outside"  # the parameter for the distance from the span
# held while BLAS has one thread: the limit is of the process, and would stay where those of two threads overlap
_BLAS_LOCK = threading.Lock()
Transform = Callable[[Vector], Vector]


def decompose_losses(
    objective: Objective, data: FederatedData, shapes: dict[str, tuple[int, ...]], dtype
) -> Quadratic | None:
    """Return the mean loss of each client on this host, stacked along a leading axis M.

    Returns None if the losses are not quadratic, or if the decomposition is too large.
    """
    size = sum(int(np.prod(shape)) for shape in shapes.values())
    if not can_decompose(objective, data, size):
        return None
    quadratic: Callable[..., Any] = objective.quadratic  # type: ignore[attr-defined]
    largest_rank = int(_ranks(objective, data, size).max())
    clients = data.train.most_clients_of_a_host
    bases = np.zeros((clients, largest_rank, size), dtype)
    curvatures = np.zeros((clients, largest_rank), dtype)
    linear = np.zeros((clients, largest_rank), dtype)
    constants = np.zeros(clients, dtype)
    n_rows = np.zeros(clients, np.int32)
    for m, rows in enumerate(data.train.local_client_slices):
        y = data.train.y[rows].astype(np.float64)
        if data.train.offset is not None:  # the linear predictor is to approach the rest
            y = y - data.train.offset[rows]
        basis, curvature, slope, constant = quadratic(scaled_features(data, rows), y, **row_weights(data, rows))
        rank = len(curvature)
        bases[m, :rank] = basis
        curvatures[m, :rank] = curvature
        linear[m, :rank] = slope
        constants[m] = constant
        n_rows[m] = len(y) if data.train.weight is None else np.count_nonzero(data.train.weight[rows] > 0)
    parameters, start = {}, 0
    for name, shape in shapes.items():
        stop = start + int(np.prod(shape))
        parameters[name] = bases[..., start:stop].reshape(*bases.shape[:2], *shape)
        start = stop
    full_passes = np.ones(clients, np.int32)
    return Quadratic(Vector(parameters), curvatures, linear, constants, full_passes=full_passes, n_rows=n_rows)  # type: ignore[arg-type]


def can_decompose(objective: Objective, data: FederatedData, size: int) -> bool:
    """Return True if losses of ``size`` parameters are quadratic, of dense rows, and small enough to be decomposed."""
    if not hasattr(objective, "quadratic") or data.train.why_not_dense:
        return False
    ranks = _ranks(objective, data, size)
    return len(ranks) * int(ranks.max()) * size <= _MAX_DECOMPOSED


def _ranks(objective: Objective, data: FederatedData, size: int) -> np.ndarray:
    return np.full(len(data.train.sizes), size) if objective.ridge else np.minimum(data.train.sizes, size)


def restrict_to_row_span(objective: Objective, data: FederatedData, dtype) -> Batch | None:
    """Return the whole data of each client on this host as a batch with a basis, stacked along a leading axis M.

    Clients are padded with rows of weight 0. The bases are QR decompositions in float64. Returns None if the model is
    not linear, if rows are sparse, if a client has more than half as many rows as features, or if the bases are too
    large.
    """
    most, features = int(data.train.sizes.max()), data.train.x.shape[1]
    if (
        not is_linear_model(type(objective))
        or data.train.why_not_dense
        or 2 * most > features
        or len(data.train.sizes) * most * features > _MAX_NUMBERS
    ):
        return None
    train, clients = data.train, data.train.most_clients_of_a_host
    basis = np.zeros((clients, most, features), dtype)
    x = np.zeros((clients, most, most), dtype)
    y = np.zeros((clients, most), data.train.y.dtype)
    weight = np.zeros((clients, most), dtype)
    offset = None if data.train.offset is None else np.zeros((clients, most), dtype)
    with _BLAS_LOCK, threadpool_limits(1):  # with several threads, such small matrices take ten times as long
        for m, rows in enumerate(train.local_client_slices):
            n = rows.stop - rows.start
            q, r = np.linalg.qr(scaled_features(data, rows).T)
            basis[m, :n] = q.T
            x[m, :n, :n] = r.T
            y[m, :n] = data.train.y[rows]
            weight[m, :n] = 1 / n
            if train.relative_weight is not None:
                weight[m, :n] *= train.relative_weight[rows]
            if offset is not None and train.offset is not None:
                offset[m, :n] = train.offset[rows]
    y = y.astype(data.target_task.target_dtype(dtype))
    full_passes = np.ones(clients, np.int32)
    return Batch(x, y, weight, full_passes=full_passes, offset=offset, basis=basis)  # type: ignore[arg-type]


@dataclass(frozen=True)
class _SpanProblem(Problem):
    """The problem of weights in coordinates (r, *outputs) and of their distance from the span ()."""

    def features(self, x, dtype):
        return x

    def ridge(self, w):
        return super().ridge(w) + self.objective.ridge / 2 * w[_OUTSIDE] ** 2


def to_span_coordinates(h: Any, start: Vector) -> tuple[Any, Vector, Transform]:
    """Return ``h``, a ``Subproblem`` without a penalty, and the point ``start`` in span coordinates, and the map back.

    Outside of the span the curvature of h is loss_weight ridge + weight, with the minimum at p. There a point moves on
    a line through p, so that its direction e from p is constant and its distance from p is one further coordinate. A
    quadratic has its ridge in its curvature.
    """
    transform: Callable[..., tuple] = _transform_quadratic if isinstance(h.batch, Quadratic) else _transform_rows
    problem, batch, into, out_of = transform(h.problem, h.batch)
    zero = jnp.zeros((), start.dtype)
    span_start = into(start)
    span_center = into(h.center)
    pull = h.weight * h.center
    span_pull = h.weight * span_center
    span_linear = None
    if h.linear is not None:
        span_linear = into(h.linear)
        pull = pull + h.linear
        span_pull = span_pull + span_linear
        span_linear = Vector({**span_linear, _OUTSIDE: zero})
    ridge = 0 if isinstance(h.batch, Quadratic) else problem.objective.ridge
    curvature = jnp.asarray(h.loss_weight * ridge + h.weight, start.dtype)
    inverse = jnp.where(curvature > 0, 1 / jnp.where(curvature > 0, curvature, 1), 0)
    p = inverse * pull
    span_p = inverse * span_pull
    e = start - p
    e = e - out_of(span_start - span_p)
    length = jnp.sqrt(e.dot(e))

    def from_span(u: Vector) -> Vector:
        share = u[_OUTSIDE] / jnp.where(length > 0, length, 1)
        return p + share * e + out_of(Vector({name: u[name] for name in span_p}) - span_p)

    center = Vector({**span_center, _OUTSIDE: zero})
    span_h = replace(h, problem=problem, batch=batch, center=center, linear=span_linear)
    return span_h, Vector({**span_start, _OUTSIDE: length}), from_span


def _transform_rows(problem: Problem, batch: Batch) -> tuple[Problem, Batch, Transform, Transform]:
    """Return the problem and the rows in coordinates of the rows' basis, the transform of points, and its inverse."""
    basis = batch.basis
    assert basis is not None

    def out_of(a: Vector) -> Vector:
        return Vector({**a, "weights": matmul(basis.T, a["weights"]).reshape(problem.shapes["weights"])})

    span_problem = _SpanProblem(**{f.name: getattr(problem, f.name) for f in fields(Problem)})
    return span_problem, batch._replace(basis=None), lambda w: to_coordinates(w, basis), out_of


def _transform_quadratic(problem: Problem, batch: Quadratic) -> tuple[Problem, Quadratic, Transform, Transform]:
    """Return the problem and a quadratic in coordinates of its basis, the transform of points, and its inverse.

    The Hessian of the quadratic is diagonal in these coordinates.
    """

    def into(w: Vector) -> Vector:
        return Vector({SPAN_COORDINATES: batch.to_coordinates(w)})

    return problem, batch._replace(basis=None), into, lambda a: batch.from_coordinates(a[SPAN_COORDINATES])
