"""Pytrees as named arrays of a message, and back."""

import jax
import numpy as np

from fcorun.algorithms.base import PyTree

Arrays = dict[str, np.ndarray]


def name_leaves(tree: PyTree) -> Arrays:
    """Return the leaves of a pytree as arrays by their numbers."""
    return {str(number): np.asarray(leaf) for number, leaf in enumerate(jax.tree.leaves(tree))}


def restore_leaves(arrays: Arrays, like: PyTree, n_runs: int) -> PyTree:
    """Return the pytree of ``name_leaves`` for a batch, with the structure and the shapes of ``like`` of one run.

    Raises ValueError for arrays of other names, shapes or dtypes.
    """
    leaves, structure = jax.tree.flatten(like)
    if set(arrays) != {str(number) for number in range(len(leaves))}:
        raise ValueError(f"{len(arrays)} arrays instead of {len(leaves)}")
    for number, leaf in enumerate(leaves):
        array, shape = arrays[str(number)], (n_runs, *leaf.shape)
        if array.shape != shape or array.dtype != leaf.dtype:
            raise ValueError(f"an array {array.dtype} {array.shape} instead of {leaf.dtype} {shape}")
    return jax.tree.unflatten(structure, [arrays[str(number)] for number in range(len(leaves))])
