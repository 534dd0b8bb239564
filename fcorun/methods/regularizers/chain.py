"""Penalties and constraints along a chain: total variation, the fused lasso and monotonicity, by one prox."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from fcorun.base.config import UNSET, NonNegative, Positive
from fcorun.methods.regularizers.box import check_bounds
from fcorun.methods.regularizers.regularizer import Constraint, Regularizer, soft_threshold

_LONG = 1000  # entries; a longer sum in float32 may be right to fewer than four digits
_BISECTIONS = 60  # enough to shrink an interval to rounding error


def chain_prox(z: jax.Array, rise: jax.Array | float, fall: jax.Array | float) -> jax.Array:
    """Compute argmin_w sum_i rise (w_(i+1) - w_i)_+ + fall (w_i - w_(i+1))_+ + ||w - z||^2 / 2, column by column.

    ``fall`` may be infinite, which makes w nondecreasing.
    """
    columns = z.reshape(z.shape[0], -1)
    return jax.vmap(lambda column: _column_prox(column, rise, fall), 1, 1)(columns).reshape(z.shape)


def _column_prox(z, rise, fall):
    """Compute the prox of one column by divide and conquer.

    Hochbaum (J. ACM 2001); Chambolle and Darbon (Int. J. Comput. Vis. 2009). The entries are divided into pieces of
    consecutive entries. On a piece, either w is constant and equals the piece's mean ``level``, or the set {w > level}
    solves a binary problem. Dynamic programming solves the binary problem exactly, and the borders of the set divide
    the piece for good. Between two pieces the dual variable is known, ``fall`` or ``-rise``, and enters the pieces'
    ends. Every pass divides all pieces.

    Condat's method and the taut string method are faster on one vector, but their branches and moving pointers make a
    ``vmap`` slow. Here a pass is five scans with small bodies, and random data need about seven passes. Larger scan
    bodies, and ``associative_scan``, take twice as long.
    """
    zero = jnp.zeros((), z.dtype)

    def divide(state):
        is_end, dual, _, _ = state  # the ends of pieces, and the dual variable at the ends (else 0)
        is_start = jnp.append(True, is_end[:-1])
        dual_before = jnp.append(zero, dual[:-1])

        def accumulate(carry, inputs):  # sum, number and largest magnitude of the piece's entries from here to its end
            entry, end = inputs
            total, count, largest = (jnp.where(end, 0, value) for value in carry)
            carry = entry + total, 1 + count, jnp.maximum(jnp.abs(entry), largest)
            return carry, carry

        total, count, largest = lax.scan(accumulate, (zero, zero, zero), (z - dual, is_end), reverse=True)[1]
        level = _fill(is_start, (dual_before + total) / count, zero)
        if len(z) > _LONG:  # the sum has lost digits: the mean of the differences from the level corrects it
            rest, _, _ = lax.scan(accumulate, (zero, zero, zero), (z - dual - level, is_end), reverse=True)[1]
            level += _fill(is_start, (dual_before + rest) / count, zero)
        # A gain within rounding error of 0 divides no piece, so equal entries stay exactly equal.
        slack = _fill(is_start, 8 * jnp.finfo(z.dtype).eps * largest, zero)

        def message(flow, inputs):  # the gain of w > level on the entries so far, clipped to what the next entry uses
            gain, low, high = inputs
            flow = jnp.clip(flow + gain, low, high)
            return flow, flow

        low = jnp.where(is_end, dual, -rise)
        high = jnp.where(is_end, dual, fall)
        flow = lax.scan(message, zero, (z - level, low, high))[1]
        gain = jnp.append(zero, flow[:-1]) + z - level - dual
        up = jnp.where(is_end, gain > 0, gain > fall + slack)
        down = jnp.where(is_end, gain <= 0, gain < -rise - slack)
        above = _fill(up | down, up, jnp.array(False), reverse=True)
        new_end = ~is_end & (above != jnp.append(above[1:], False))
        dual = jnp.where(new_end, jnp.where(above, fall, -rise), dual)
        return is_end | new_end, dual, level, new_end.any()

    one_piece = jnp.arange(len(z)) == len(z) - 1
    return lax.while_loop(lambda state: state[3], divide, (one_piece, jnp.zeros_like(z), z, jnp.array(True)))[2]


def _fill(known, values, initial, reverse=False):
    """Return each entry's last known value, ``initial`` before the first one; with ``reverse`` the next known one."""

    def step(carry, inputs):
        is_known, value = inputs
        carry = jnp.where(is_known, value, carry)
        return carry, carry

    return lax.scan(step, initial, (known, values), reverse=reverse)[1]


@dataclass(frozen=True)
class TV(Regularizer):
    """psi(w) = strength * sum_i |w_(i+1) - w_i|, for each column of a matrix."""

    source = "@rudin1992"

    strength: NonNegative = UNSET

    convex = True
    ordered = True
    across_clients = {"strength": "mean"}

    def value(self, w):
        return self.strength * jnp.abs(jnp.diff(w, axis=0)).sum()

    def prox(self, z, t):
        return jnp.where(t * self.strength > 0, chain_prox(z, t * self.strength, t * self.strength), z)

    def subgradient(self, w):
        return self.strength * tv_subgradient(w)

    def structure(self, w, cutoff):
        return super().structure(w, cutoff) | {"pieces": count_pieces(w, cutoff)}


def tv_subgradient(w):
    """Return D' sign(D w), where D takes differences along axis 0."""
    zero_row = jnp.zeros_like(w[:1])
    return -jnp.diff(jnp.sign(jnp.diff(w, axis=0)), axis=0, prepend=zero_row, append=zero_row)


def count_pieces(w, cutoff):
    """Count the constant pieces of a vector; for a matrix, average the count over columns."""
    return 1 + jnp.mean((jnp.abs(jnp.diff(w, axis=0)) > cutoff).sum(0), dtype=w.dtype)


@dataclass(frozen=True)
class FusedLasso(Regularizer):
    """psi(w) = strength * ||w||_1 + strength_tv * sum_i |w_(i+1) - w_i|, for each column of a matrix.

    The prox is the soft threshold of the prox of the total variation.
    """

    source = "@tibshirani2005; the prox as in @friedman2007"

    strength: NonNegative = UNSET
    strength_tv: NonNegative | None = None
    relative: Positive | None = None

    convex = sparse = ordered = True
    across_clients = {"strength": "mean", "strength_tv": "mean"}

    @property
    def resolved_strength_tv(self):
        """Return the strength of the total variation: ``strength`` if ``strength_tv`` is None."""
        return self.strength if self.strength_tv is None else self.strength_tv

    def value(self, w):
        return self.strength * jnp.abs(w).sum() + self.resolved_strength_tv * jnp.abs(jnp.diff(w, axis=0)).sum()

    def prox(self, z, t):
        weight = t * self.resolved_strength_tv
        return soft_threshold(jnp.where(weight > 0, chain_prox(z, weight, weight), z), t * self.strength)

    def subgradient(self, w):
        return self.strength * jnp.sign(w) + self.resolved_strength_tv * tv_subgradient(w)

    def strength_max(self, gradient):
        if self.strength_tv is not None:
            return jnp.abs(chain_prox(gradient, self.strength_tv, self.strength_tv)).max()

        # the larger the common strength, the smaller the largest entry of the prox of the total variation
        def bisect(_, interval):
            low, high = interval
            middle = (low + high) / 2
            is_enough = jnp.abs(chain_prox(gradient, middle, middle)).max() <= middle
            return jnp.where(is_enough, low, middle), jnp.where(is_enough, middle, high)

        interval = (jnp.zeros((), gradient.dtype), jnp.abs(gradient).max())
        return lax.fori_loop(0, _BISECTIONS, bisect, interval)[1]

    def structure(self, w, cutoff):
        return super().structure(w, cutoff) | {"pieces": count_pieces(w, cutoff)}


def isotonic_regression(z, decreasing: bool):
    """Return the nearest monotone point, column by column."""
    sign = -1 if decreasing else 1
    return sign * chain_prox(sign * z, rise=0.0, fall=jnp.inf)


@dataclass(frozen=True)
class Monotone(Constraint):
    """w_1 <= w_2 <= ... along axis 0, for each column of a matrix; ``decreasing``: w_1 >= w_2 >= ..."""

    source = "textbook"

    decreasing: bool = False

    convex = True
    ordered = True

    def project(self, z):
        return isotonic_regression(z, self.decreasing)


@dataclass(frozen=True)
class MonotoneBox(Constraint):
    """w_1 <= w_2 <= ... as in Monotone, and lower <= w_i <= upper; None: no bound on that side.

    The projection is the nearest monotone point, clipped to the box.
    """

    source = "textbook"

    lower: float | None = 0.0
    upper: float | None = 1.0
    decreasing: bool = False

    convex = True
    ordered = True
    across_clients = {"lower": "max", "upper": "min"}

    def __post_init__(self):
        check_bounds(self.lower, self.upper)

    def project(self, z):
        return jnp.clip(isotonic_regression(z, self.decreasing), self.lower, self.upper)
