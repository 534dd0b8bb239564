"""Linear constraints: a half-space, and an affine subspace."""

import math
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from fcorun.base.config import UNSET
from fcorun.base.errors import UserError, word
from fcorun.methods.regularizers.regularizer import Constraint


@dataclass(frozen=True)
class Halfspace(Constraint):
    """The half-space <normal, w> <= bound over all entries of w; without a ``normal``, sum_i w_i <= bound."""

    source = "textbook"

    bound: float = UNSET
    normal: list[float] | None = None

    convex = True
    across_clients = {"bound": "min"}

    def __post_init__(self):
        if self.normal is not None and not np.any(self.normal):
            raise UserError("`reg.normal` has no nonzero entry; give a direction, or `null` for ones")

    def check(self, shape):
        if self.normal is not None and len(self.normal) != math.prod(shape):
            raise ValueError(
                word(f"`reg.normal` has {len(self.normal)} entries; give one for each of {math.prod(shape)}")
            )

    def project(self, z):
        normal = np.ones(z.size) if self.normal is None else np.asarray(self.normal)
        largest = float(np.abs(normal).max())  # squares of very large or small entries would overflow, or be 0
        norm = float(np.linalg.norm(normal / largest))
        unit_normal = jnp.asarray(normal / largest / norm, z.dtype).reshape(z.shape)
        return z - jnp.maximum((unit_normal * z).sum() - self.bound / largest / norm, 0) * unit_normal


@dataclass(frozen=True)
class Affine(Constraint):
    """The subspace matrix w = target over all entries of w as a vector; without a ``matrix``, sum_i w_i = target."""

    source = "textbook"

    target: list[float]
    matrix: list[list[float]] | None = None

    convex = True

    def __post_init__(self):
        rows = 1 if self.matrix is None else len(self.matrix)
        if not rows:
            raise UserError("`reg.matrix` has no row; give at least one, or `null` for a row of ones")
        if len(self.target) != rows:
            raise UserError(
                f"`reg.target` has {len(self.target)} numbers for {rows} rows of `reg.matrix`; give one each"
            )

    def check(self, shape):
        size = math.prod(shape)
        if any(len(row) != size for row in self.matrix or []):
            raise ValueError(
                word(f"the rows of `reg.matrix` must have {size} entries each, one for each entry of the parameter")
            )
        matrix, inverse = self.matrices(size)
        if not np.allclose(matrix @ (inverse @ self.target), self.target):
            raise ValueError(
                word("no w solves `reg.matrix` w = `reg.target`; leave out the rows that contradict the others")
            )

    def matrices(self, size: int):
        """Return the matrix and its pseudo-inverse for a parameter of ``size`` entries."""
        matrix = np.ones((1, size)) if self.matrix is None else np.asarray(self.matrix)
        return matrix, np.linalg.pinv(matrix)

    def project(self, z):
        matrix, inverse = (jnp.asarray(m, z.dtype) for m in self.matrices(z.size))
        return z - (inverse @ (matrix @ z.ravel() - jnp.asarray(self.target, z.dtype))).reshape(z.shape)
