"""The minimum of a quadratic plus a weighted l1 norm by a search over signs, by linear systems alone, in NumPy.

The method is the feature-sign search of Lee, Battle, Raina and Ng (NIPS 2006).
"""

import numpy as np
from jaxtyping import Bool, Float, Int

from fcorun.methods.problem.row_products import RowHessian

_MAX_SIGN_STEPS = 500
_VIOLATION = 1e-11  # of an optimality condition, relative to l1_j
_JITTER = 1e-10  # of a diagonal, for features that are combinations of others
_SOLVED = 1e-2  # the residual of a system that is solved by products
_MAX_PRODUCTS = 50  # for a system; those of almost as many features as rows would need hundreds


def add_to_diagonal(matrix: Float[np.ndarray, "k k"], values: Float[np.ndarray, " k"]) -> Float[np.ndarray, "k k"]:
    """Return the matrix plus the diagonal matrix of these values."""
    total = matrix.copy()
    total[np.diag_indices(len(values))] += values
    return total


def _jitter(diagonal: Float[np.ndarray, " k"]) -> Float[np.ndarray, " k"]:
    """Return what makes a positive semidefinite matrix of this diagonal definite, up to rounding."""
    return np.where(diagonal > 0, _JITTER * diagonal, 1)


class SignSearch:
    """The minima of v' A v / 2 - linear' v + sum_j l1_j |v_j| for one matrix A, positive semidefinite (k, k).

    The search keeps A and changes its diagonal.
    """

    def __init__(self, matrix: Float[np.ndarray, "k k"], l1: Float[np.ndarray, " k"]):
        matrix[np.diag_indices(len(l1))] += _jitter(np.diagonal(matrix))
        self.matrix = matrix
        self.l1 = l1
        self._numbers = np.zeros(0, int)
        self._inverse = np.zeros((0, 0))

    def minimize(self, linear: Float[np.ndarray, " k"], start: Float[np.ndarray, " k"]) -> Float[np.ndarray, " k"]:
        """Return the minimum.

        With the signs of v fixed, the minimum solves a linear system in the nonzero entries. Entries that would change
        their sign become 0. Where that does not lower the value, the step ends at the best point of its line.
        """
        l1 = self.l1
        v = start
        gradient = self.matrix @ v - linear
        for _ in range(_MAX_SIGN_STEPS):
            signs = np.where(v != 0, np.sign(v), -np.sign(gradient))
            enters = self._violates(v, gradient)
            target = self._minimize_support(v, gradient + l1 * signs, enters, signs)
            crosses = (target * signs < 0) & (l1 > 0)
            new = np.where(crosses, 0.0, target)
            new_gradient = self.matrix @ new - linear
            if not crosses.any():
                if not self._violates(new, new_gradient).any():
                    return new
            elif (new - v) @ (new_gradient + gradient) / 2 + l1 @ (np.abs(new) - np.abs(v)) >= 0:
                new = self._search_line(v, target - v, gradient)
                new_gradient = self.matrix @ new - linear
            v = new
            gradient = new_gradient
        return v

    def _violates(self, v: np.ndarray, gradient: np.ndarray) -> Bool[np.ndarray, " k"]:
        """Return the entries that are 0 and should not be."""
        return (v == 0) & (np.abs(gradient) > self.l1 * (1 + _VIOLATION))

    def _minimize_support(
        self, v: np.ndarray, slopes: np.ndarray, enters: np.ndarray, signs: np.ndarray
    ) -> Float[np.ndarray, " k"]:
        """Return the minimum with these signs in the support, without entering entries that get the wrong sign."""
        support = (v != 0) | enters | (self.l1 == 0)
        while True:
            numbers = np.flatnonzero(support)
            target = v.copy()
            target[numbers] -= self._solve(numbers, slopes[numbers])  # a move, since the solution is not exact
            goes_back = enters & support & (target * signs < 0) & (self.l1 > 0)
            if not goes_back.any():
                return target
            support &= ~goes_back

    def _solve(self, numbers: Int[np.ndarray, " m"], right: Float[np.ndarray, " m"]) -> Float[np.ndarray, " m"]:
        """Return the solution of the linear system of some entries."""
        if not np.array_equal(numbers, self._numbers):  # mostly those of the last call
            self._numbers = numbers
            self._inverse = np.linalg.inv(self.matrix[np.ix_(numbers, numbers)])
        return self._inverse @ right

    def _search_line(self, v: np.ndarray, direction: np.ndarray, gradient: np.ndarray) -> Float[np.ndarray, " k"]:
        """Return the best point between v and v + ``direction``, given the gradient of the smooth part at v."""
        crossing = np.flatnonzero(v * (v + direction) < 0)
        position = -v[crossing] / direction[crossing]
        order = np.argsort(position)
        crossing = crossing[order]
        position = position[order]
        jump = np.cumsum(2 * self.l1[crossing] * np.abs(direction[crossing]))  # of the slope behind each crossing
        sign = np.where(v != 0, np.sign(v), np.sign(direction))
        slope = gradient @ direction + self.l1 @ (sign * direction)
        curvature = direction @ (self.matrix @ direction)
        is_rising = slope + position * curvature + jump >= 0
        n_crossed = int(is_rising.argmax()) if is_rising.any() else len(crossing)
        jump_before = jump[n_crossed - 1] if n_crossed else 0.0
        length = min(-(slope + jump_before) / curvature, 1.0)
        if n_crossed < len(crossing) and length >= position[n_crossed]:
            new = v + position[n_crossed] * direction
            new[crossing[n_crossed]] = 0.0
            return new
        return v + max(length, 0.0) * direction


class CautiousSignSearch(SignSearch):
    """A search in which only the worst entries enter at once: with weak penalties most of many alike would leave again.

    Its supports change at each step, so that no system is worth an inverse. Its minima are those of ``SignSearch`` up
    to rounding, whose digits other runs keep.
    """

    def _violates(self, v: np.ndarray, gradient: np.ndarray) -> Bool[np.ndarray, " k"]:
        """Return the entries that are 0 and violate their condition at least half as much as the worst one."""
        violation = np.where(v == 0, np.abs(gradient) - self.l1 * (1 + _VIOLATION), 0.0)
        return violation > violation.max(initial=0.0) / 2

    def _solve(self, numbers: Int[np.ndarray, " m"], right: Float[np.ndarray, " m"]) -> Float[np.ndarray, " m"]:
        return np.linalg.solve(self.matrix[np.ix_(numbers, numbers)], right)


class ProductSignSearch(CautiousSignSearch):
    """A search for many features, whose matrix is known by its products: conjugate gradients solve the systems.

    The solutions have an error of a hundredth, and so has the minimum: enough for a step of Newton's method.
    """

    def __init__(self, matrix: RowHessian, l1: Float[np.ndarray, " k"]):
        self.matrix = matrix.add_to_diagonal(_jitter(matrix.diagonal))
        self.l1 = l1

    def _solve(self, numbers: Int[np.ndarray, " m"], right: Float[np.ndarray, " m"]) -> Float[np.ndarray, " m"]:
        """Return the solution by conjugate gradients, preconditioned by the diagonal.

        ``scipy.sparse.linalg.cg`` takes twice as long for systems of a hundred entries.
        """
        matrix = self.matrix.restrict(numbers)
        diagonal = matrix.diagonal
        solution = np.zeros(len(numbers))
        residual = right
        direction = residual / diagonal
        squared = residual @ direction
        goal = _SOLVED**2 * squared
        for _ in range(_MAX_PRODUCTS):
            if squared <= goal:
                break
            product = matrix @ direction
            length = squared / (direction @ product)
            solution = solution + length * direction
            residual = residual - length * product
            scaled = residual / diagonal
            last = squared
            squared = residual @ scaled
            direction = scaled + squared / last * direction
        return solution
