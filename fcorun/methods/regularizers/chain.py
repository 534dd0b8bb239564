"""The prox of a penalty on the rises and falls along a chain, which includes total variation and monotonicity."""

import jax
import jax.numpy as jnp
from jax import lax

_LONG = 1000  # entries; a longer sum in float32 may be right to fewer than four digits


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
