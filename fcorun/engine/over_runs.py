"""The axis of the runs that one program computes."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def over_runs(function: Callable, axes: tuple, *given: Any, in_turn: bool = False) -> Any:
    """``function`` of each of the runs along these axes of what is given, stacked, by a ``vmap``; or ``in_turn``, which
    spares one run the ``vmap``, that would turn its products into matrix-matrix ones of width 1."""
    if not in_turn:
        return jax.vmap(function, axes)(*given)
    leading = {leaf.shape[0] for tree, axis in zip(given, axes, strict=True) if axis == 0
               for leaf in jax.tree.leaves(tree)}  # fmt: skip

    def run(place):
        picked = (tree if axis is None else jax.tree.map(lambda v: v[place], tree)
                  for tree, axis in zip(given, axes, strict=True))  # fmt: skip
        return function(*picked)

    return jax.tree.map(lambda *v: jnp.stack(v), *map(run, range(leading.pop() if leading else 1)))
