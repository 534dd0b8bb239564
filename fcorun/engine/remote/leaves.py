"""Pytrees as named arrays of a message, and back."""

import jax
import numpy as np

from fcorun.methods.algorithms.algorithm import PyTree

Arrays = dict[str, np.ndarray]
_INDEX, _VALUES = "/index", "/values"  # end the names of the two arrays of a leaf with few nonzeros
_OVERHEAD = 600  # bytes of the headers of an array in a message, and some more


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


def pack_sparse(arrays: Arrays) -> Arrays:
    """Return named leaves, of which those with few nonzeros are replaced by the indices and values of these.

    A leaf stays as it is where that takes fewer bytes.
    """
    packed: Arrays = {}
    for name, leaf in arrays.items():
        index = np.flatnonzero((leaf != 0) | np.signbit(leaf)) if leaf.dtype.kind == "f" else np.arange(leaf.size)
        if len(index) * (4 + leaf.itemsize) + _OVERHEAD < leaf.nbytes and leaf.size < 2**32:
            packed[name + _INDEX], packed[name + _VALUES] = index.astype(np.uint32), leaf.ravel()[index]
        else:
            packed[name] = leaf
    return packed


def expand_sparse(arrays: Arrays, like: PyTree, n_runs: int) -> Arrays:
    """Return the leaves of ``pack_sparse`` with all their numbers, in the shapes of ``like`` with an axis of runs.

    Raises ValueError for arrays that are no indices and values of these shapes.
    """
    expanded = dict(arrays)
    for number, leaf in enumerate(jax.tree.leaves(like)):
        if f"{number}{_INDEX}" not in expanded:
            continue
        index = expanded.pop(f"{number}{_INDEX}")
        values = expanded.pop(f"{number}{_VALUES}", None)
        dense = np.zeros((n_runs, *leaf.shape), leaf.dtype)
        if values is None or str(number) in expanded or index.dtype != np.uint32 or index.ndim != 1:
            raise ValueError("indices without values")
        if values.shape != index.shape or values.dtype != dense.dtype or (index >= dense.size).any():
            raise ValueError("indices of other numbers")
        if (index[1:] <= index[:-1]).any():
            raise ValueError("indices that are not sorted")
        dense.ravel()[index] = values
        expanded[str(number)] = dense
    return expanded
