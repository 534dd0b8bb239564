"""The minimum of a quadratic model plus psi, from a dense Hessian, and symmetric matrices as messages."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree

from fcorun.methods.problem.inner_solvers import StoppingRule
from fcorun.methods.problem.problem import Batch, Problem, Quadratic, Vector
from fcorun.methods.regularizers.regularizer import NoRegularizer

MAX_PARAMETERS = 4096  # of a Hessian, which then takes 128 MiB in float64
_SQUARINGS = 4


def hessian(problem: Problem, w: Vector, batch: Batch | Quadratic) -> jax.Array:
    """Return the Hessian of f(. ; batch) at w, (p, p) for p parameters in the order of w: p Hessian products."""
    flat, unravel = ravel_pytree(w)
    directions = jax.vmap(unravel)(jnp.eye(len(flat), dtype=flat.dtype))
    columns = jax.vmap(lambda direction: problem.hessian_product(w, direction, batch))(directions)
    return jax.vmap(lambda column: ravel_pytree(column)[0])(columns)


def pack_symmetric(matrix: jax.Array) -> jax.Array:
    """Return the upper triangle of a symmetric matrix (p, p) row by row, (p (p + 1) / 2,)."""
    size = len(matrix)
    length = size * (size + 1) // 2
    row, column = (lax.broadcasted_iota(jnp.int32, (size, size), axis) for axis in (0, 1))
    targets = jnp.where(row <= column, _packed_positions(size), length)
    return jnp.zeros(length, matrix.dtype).at[targets].set(matrix, mode="drop")


def unpack_symmetric(packed: jax.Array, size: int) -> jax.Array:
    """Return the symmetric matrix (p, p) of an upper triangle from ``pack_symmetric``, for p = ``size``."""
    return packed[_packed_positions(size)]


def _packed_positions(size: int) -> jax.Array:
    """Return the position of each entry of a symmetric matrix in its upper triangle, (size, size)."""
    first, second = (lax.broadcasted_iota(jnp.int32, (size, size), axis) for axis in (0, 1))
    row, column = jnp.minimum(first, second), jnp.maximum(first, second)
    return row * size - row * (row + 1) // 2 + column


def minimize_model(problem: Problem, gradient: Vector, matrix: jax.Array, start: Vector, stop: StoppingRule) -> Vector:
    """Return argmin_v <gradient, v - start> + (v - start)' matrix (v - start) / 2 + psi(v).

    The parameters that psi does not act on are eliminated, which leaves a quadratic in the others, whose matrix is the
    Schur complement. FISTA (Beck and Teboulle 2009) with the gradient restart of O'Donoghue and Candes (2015)
    minimizes that quadratic plus psi. All steps are products with the matrix, since batches of LAPACK's decompositions
    may hang.

    Args:
        matrix: symmetric and positive semidefinite, (p, p) for p parameters in the order of ``start``.
    """
    names = () if isinstance(problem.regularizer, NoRegularizer) else problem.regularized
    sizes = [values.size for values in start.values()]
    slices = {name: slice(end - size, end) for name, size, end in zip(start, sizes, np.cumsum(sizes), strict=True)}

    def split(vector, with_psi):
        return Vector({name: values for name, values in vector.items() if (name in names) == with_psi})

    def block(rows, columns):
        wide = jnp.concatenate([matrix[slices[name]] for name in rows])
        return jnp.concatenate([wide[:, slices[name]] for name in columns], axis=1)

    penalized = split(start, True)
    others = split(start, False)
    if not others:
        return _fista(problem, ravel_pytree(gradient)[0], matrix, start, stop)
    flat_others, unravel_others = ravel_pytree(others)
    slopes_of_others = ravel_pytree(split(gradient, False))[0]
    curvature = block(others, others)
    newton_step = _solve(curvature, slopes_of_others)
    if not penalized:
        return unravel_others(flat_others - newton_step)
    cross = block(others, penalized)
    eliminated = jax.vmap(lambda column: _solve(curvature, column), 1, 1)(cross)
    reduced = block(penalized, penalized) - cross.T @ eliminated
    slopes = ravel_pytree(split(gradient, True))[0] - eliminated.T @ slopes_of_others
    minimizer = _fista(problem, slopes, reduced, penalized, stop)
    move = ravel_pytree(minimizer - penalized)[0]
    return Vector({**start, **minimizer, **unravel_others(flat_others - newton_step - eliminated @ move)})


def bound_model_decrease(
    problem: Problem, gradient: Vector, matrix: jax.Array, start: Vector, minimum: Vector
) -> jax.Array:
    """Return a bound on twice the decrease from ``start`` to the least value of the model of ``minimize_model``.

    It holds however near the minimum the solver has come: for any convex psi, a subgradient s of the model m at v has
    m(v) - min m <= s' matrix^-1 s / 2. A step of proximal gradient of length t from ``minimum`` to v has
    s = (minimum - v) / t + matrix (v - minimum). Slopes below eps |minimum| / t do not move ``minimum``, as those of a
    small feature beside a large one, and are added to s. Parameters that psi holds at 0 are left out.

    Args:
        minimum: the result of ``minimize_model``.
    """
    names = () if isinstance(problem.regularizer, NoRegularizer) else problem.regularized
    origin, unravel = ravel_pytree(start)
    u = ravel_pytree(minimum)[0]
    eps = jnp.finfo(u.dtype).eps
    slopes = ravel_pytree(gradient)[0] + matrix @ (u - origin)
    marks = {name: jnp.full_like(values, name in names, bool) for name, values in start.items()}
    has_psi = ravel_pytree(Vector(marks))[0]
    curvature = _bound_largest_eigenvalue(jnp.where(jnp.outer(has_psi, has_psi), matrix, 0))
    curvature = jnp.where(curvature > 0, curvature, 1)
    after_step = unravel(u - jnp.where(has_psi, slopes / curvature, 0))
    proxes = {name: problem.regularizer.prox(after_step[name], 1 / curvature) for name in names}  # counted as none
    v = ravel_pytree(Vector({**after_step, **proxes}))[0]
    subgradient = jnp.where(has_psi, curvature * (u - v), slopes) + matrix @ (v - u)
    hidden = jnp.where(has_psi, eps * curvature * jnp.abs(u), 0)
    subgradient += jnp.where(subgradient < 0, -hidden, hidden)

    is_free = ~has_psi | (u != 0) | (v != 0)
    free_matrix = jnp.where(jnp.outer(is_free, is_free), matrix, 0)
    subgradient = jnp.where(is_free, subgradient, 0)
    solution = _solve(free_matrix, subgradient)
    rest = subgradient - free_matrix @ solution
    diagonal = jnp.diagonal(free_matrix)
    rest_squared = jnp.sum(rest**2 / jnp.where(diagonal > 0, diagonal, eps)) / _smallest_curvature(u)
    left = jnp.abs(subgradient @ solution) + rest_squared

    move = v - origin
    quadratic = move @ matrix @ move
    psi_of_start = problem.psi(start)
    linear = ravel_pytree(gradient)[0] @ move + problem.psi(unravel(v)) - psi_of_start
    rounding = 4 * eps * jnp.abs(psi_of_start)  # of the difference of two values of psi
    return jnp.maximum(quadratic, -2 * linear - quadratic - rounding) + left


def _fista(problem: Problem, slopes: jax.Array, matrix: jax.Array, start: Vector, stop: StoppingRule) -> Vector:
    """Minimize <slopes, v - start> + (v - start)' matrix (v - start) / 2 + psi(v) over the parameters of psi."""
    origin, unravel = ravel_pytree(start)
    curvature = _bound_largest_eigenvalue(matrix)
    length = jnp.where(curvature > 0, 1 / jnp.where(curvature > 0, curvature, 1), 0)
    rounding = 2 * jnp.finfo(origin.dtype).eps

    def step(state):
        v, extrapolated, momentum = state
        gradient = slopes + matrix @ (extrapolated - origin)
        new = ravel_pytree(problem.prox(unravel(extrapolated - length * gradient), length))[0]
        restart = (extrapolated - new) @ (new - v) > 0
        momentum = jnp.where(restart, 1.0, momentum)
        next_momentum = (1 + jnp.sqrt(1 + 4 * momentum**2)) / 2
        factor = jnp.where(restart, 0.0, (momentum - 1) / next_momentum)
        move = jnp.linalg.norm(new - extrapolated)
        move = jnp.where(move <= rounding * jnp.linalg.norm(new), 0.0, move)
        return (new, new + factor * (new - v), next_momentum), move

    return unravel(stop.iterate(step, (origin, origin, jnp.ones((), origin.dtype)))[0])


def _bound_largest_eigenvalue(matrix: jax.Array) -> jax.Array:
    """Return an upper bound on the largest eigenvalue of a positive semidefinite matrix A: trace(A^k)^(1/k), k = 32."""
    trace = jnp.trace(matrix)
    power = matrix / jnp.where(trace > 0, trace, 1)
    logarithm = jnp.zeros((), matrix.dtype)
    for squaring in range(1, _SQUARINGS + 1):
        power = power @ power
        size = jnp.trace(power)
        power = power / jnp.where(size > 0, size, 1)
        logarithm += jnp.log(jnp.where(size > 0, size, 1)) / 2**squaring
    last = jnp.sum(power**2)  # the trace of the next square
    logarithm += jnp.log(jnp.where(last > 0, last, 1)) / 2 ** (_SQUARINGS + 1)
    return trace * jnp.exp(logarithm)


def _solve(matrix: jax.Array, right: jax.Array) -> jax.Array:
    """Return a solution of ``matrix`` x = ``right`` by conjugate gradients, after scaling the diagonal to 1.

    A singular matrix is no obstacle if there is a solution: the method stops at a direction without curvature, which
    only rounding puts into the residual.
    """
    diagonal = jnp.diagonal(matrix)
    scale = jnp.where(diagonal > 0, 1 / jnp.sqrt(jnp.where(diagonal > 0, diagonal, 1)), 0)
    scaled_right = scale * right
    size, eps = len(right), float(jnp.finfo(right.dtype).eps)
    tolerance = (8 * eps) ** 2 * (scaled_right @ scaled_right)

    def step(state):
        x, residual, direction, squared, count = state
        product = scale * (matrix @ (scale * direction))
        curvature = direction @ product
        positive = curvature > _smallest_curvature(right) * (direction @ direction)
        length = jnp.where(positive, squared / jnp.where(positive, curvature, 1), 0)
        residual = residual - length * product
        new_squared = jnp.where(positive, residual @ residual, 0)
        new_direction = residual + new_squared / squared * direction
        return x + length * direction, residual, new_direction, new_squared, count + 1

    def proceeds(state):
        return (state[3] > tolerance) & (state[4] < 2 * size)

    start = (jnp.zeros_like(right), scaled_right, scaled_right, scaled_right @ scaled_right, 0)
    return scale * lax.while_loop(proceeds, step, start)[0]


def _smallest_curvature(vector: jax.Array) -> float:
    """Return the curvature of a matrix with diagonal 1 that counts as rounding of 0, of ``vector``'s size and type."""
    return len(vector) * float(jnp.finfo(vector.dtype).eps) ** 0.75


def invert_positive(matrix: jax.Array) -> jax.Array:
    """Return the inverse of a positive definite matrix (p, p), by sweeps of one row after another.

    There are no decompositions of LAPACK, whose batches may hang. A row without information, which the rows before
    determine, gets an infinite entry on the diagonal.
    """
    diagonal = jnp.diagonal(matrix)
    scale = jnp.where(diagonal > 0, 1 / jnp.sqrt(jnp.where(diagonal > 0, diagonal, 1)), 0)
    scales = jnp.outer(scale, scale)
    smallest = len(matrix) * float(jnp.finfo(matrix.dtype).eps) ** 0.75

    def sweep(k, state):
        swept, singular = state
        pivot = swept[k, k]
        usable = pivot > smallest
        row = swept[k] / jnp.where(usable, pivot, 1)
        new = swept - jnp.outer(swept[:, k], row)
        new = new.at[k].set(row).at[:, k].set(row).at[k, k].set(-1 / jnp.where(usable, pivot, 1))
        return jnp.where(usable, new, swept), singular.at[k].set(~usable)

    swept, singular = lax.fori_loop(0, len(matrix), sweep, (scales * matrix, scale == 0))
    unknown = singular[:, None] | singular[None]
    return jnp.where(jnp.diag(singular), jnp.inf, jnp.where(unknown, 0, -scales * swept))
