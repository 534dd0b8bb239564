"""Clients with few rows: their loss in coordinates of the span of these, outside of which it is flat but for a ridge.

Of n rows with d features a product takes n x n instead of n x d numbers, of a quadratic that is decomposed n. The
coordinates are orthonormal and hold how far a point lies outside, so that whatever adds up points and gradients takes
the same steps in them.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from threadpoolctl import threadpool_limits

from fcorun.datasets.base import FederatedData
from fcorun.objectives.base import Objective, is_linear_model
from fcorun.objectives.matmul import matmul
from fcorun.problem.problem import Batch, Problem, to_coordinates
from fcorun.problem.quadratic import SPAN_COORDINATES, Quadratic, scaled_features
from fcorun.problem.vector import Vector
from fcorun.rows.host_rows import local_clients

_LARGEST = 2**27  # numbers in all bases together
_OUTSIDE = "outside"
Way = Callable[[Vector], Vector]


def restrict_to_row_span(objective: Objective, data: FederatedData, dtype) -> Batch | None:
    """The whole data of each client that is here as one batch with a basis, stacked along a leading axis M; None where
    the model is not linear, a client has more than half as many rows as features, or they are too large.

    Short clients are filled up with rows of weight 0. By QR decompositions in float64.
    """
    most, features = int(data.sizes.max()), data.x.shape[1]
    if not is_linear_model(type(objective)) or 2 * most > features or len(data.sizes) * most * features > _LARGEST:
        return None
    here, clients = local_clients(data)
    basis, x = np.zeros((clients, most, features), dtype), np.zeros((clients, most, most), dtype)
    beside = {"weight": data.row_weights, "offset": data.offset}
    beside = {name: np.zeros((clients, most), dtype) for name, values in beside.items() if values is not None}
    weight, y = np.zeros((clients, most), dtype), np.zeros((clients, most), data.y.dtype)
    with threadpool_limits(1):  # for such small matrices several wait for each other ten times as long as they compute
        for m, rows in enumerate(here):
            n = rows.stop - rows.start
            q, r = np.linalg.qr(scaled_features(data, rows).T)
            basis[m, :n], x[m, :n, :n] = q.T, r.T
            y[m, :n], weight[m, :n] = data.y[rows], 1 / n
            if data.row_weights is not None:
                weight[m, :n] *= data.row_weights[rows]
            if data.offset is not None:
                beside["offset"][m, :n] = data.offset[rows]
    y = y.astype(np.int32 if data.task == "multiclass" else dtype)
    once = np.ones(clients, np.int32)
    return Batch(x, y, weight, full_passes=once, offset=beside.get("offset"), basis=basis)  # type: ignore[arg-type]


@dataclass(frozen=True)
class _Inside(Problem):
    """The problem of weights in coordinates, (r, *outputs), and their distance from the span, ()."""

    def features(self, x, dtype):
        return x

    def ridge(self, w):
        return super().ridge(w) + self.objective.ridge / 2 * w[_OUTSIDE] ** 2


def to_span_coordinates(h: Any, start: Vector) -> tuple[Any, Vector, Callable[[Vector], Vector]]:
    """An ``inner.Inner`` without a penalty and a point, in coordinates, and the way back.

    Outside of the span h bends as s ridge + weight does: it has its minimum at p, and a point keeps its direction from
    there, e, of which the length alone changes. A quadratic has its ridge in its own curvature.
    """
    within: Callable[..., tuple] = _of_quadratic if isinstance(h.batch, Quadratic) else _of_rows
    problem, batch, into, spread = within(h.problem, h.batch)
    inner = [into(v) for v in (start, h.center)]
    pull, a_pull, tilt = h.weight * h.center, h.weight * inner[1], None
    if h.linear is not None:
        tilt = into(h.linear)
        pull, a_pull = pull + h.linear, a_pull + tilt
        tilt = Vector({**tilt, _OUTSIDE: jnp.zeros((), start.dtype)})
    ridge = 0 if isinstance(h.batch, Quadratic) else problem.objective.ridge
    bend = jnp.asarray(h.loss_weight * ridge + h.weight, start.dtype)
    inverse = jnp.where(bend > 0, 1 / jnp.where(bend > 0, bend, 1), 0)
    p, a_p = inverse * pull, inverse * a_pull
    e = start - p
    e = e - spread(inner[0] - a_p)
    length = jnp.sqrt(e.dot(e))
    v = Vector({**inner[1], _OUTSIDE: jnp.zeros((), start.dtype)})

    def back(u: Vector) -> Vector:
        share = u[_OUTSIDE] / jnp.where(length > 0, length, 1)
        return p + share * e + spread(Vector({name: u[name] for name in a_p}) - a_p)

    return replace(h, problem=problem, batch=batch, center=v, linear=tilt), Vector({**inner[0], _OUTSIDE: length}), back


def _of_rows(problem: Problem, batch: Batch) -> tuple[Problem, Batch, Way, Way]:
    """The problem and the rows in coordinates, the way into these, and out of them."""
    basis = batch.basis
    assert basis is not None

    def spread(a: Vector) -> Vector:
        return Vector({**a, "weights": matmul(basis.T, a["weights"]).reshape(problem.shapes["weights"])})

    own = _Inside(**{f.name: getattr(problem, f.name) for f in fields(Problem)})
    return own, batch._replace(basis=None), lambda w: to_coordinates(w, basis), spread


def _of_quadratic(problem: Problem, batch: Quadratic) -> tuple[Problem, Quadratic, Way, Way]:
    """The same of a quadratic, whose Hessian is diagonal there."""

    def into(w: Vector) -> Vector:
        return Vector({SPAN_COORDINATES: batch.to_coordinates(w)})

    return problem, batch._replace(basis=None), into, lambda a: batch.from_coordinates(a[SPAN_COORDINATES])
