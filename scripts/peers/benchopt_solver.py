"""fcorun's certified solvers as a solver of benchopt's benchmarks benchmark_lasso and benchmark_logreg_l1.

Copy this file into the folder ``solvers`` of a benchmark, or let ``benchopt_table.py`` do so.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from benchopt import BaseSolver  # type: ignore[import-not-found]

from fcorun.data.rows.sparse_matrix import SparseMatrix
from fcorun.data.rows.sparse_rows import CompressedRows, compress_rows
from fcorun.methods.mirror_maps import Euclidean
from fcorun.methods.objectives import LeastSquares, Logistic
from fcorun.methods.problem import path_solver, solver
from fcorun.methods.problem.problem import Batch, Problem
from fcorun.methods.regularizers import L1

MAX_ITERATIONS = 100_000


def _compress(x: Any) -> CompressedRows:
    """Return rows of scipy.sparse as fcorun stores sparse rows."""
    return compress_rows(SparseMatrix.from_scipy(x, "X"), np.float64)


class Solver(BaseSolver):
    """``centralized`` is the solver of ``algo=centralized``; ``fista`` is what takes over where that has no path."""

    name = "fcorun"
    sampling_strategy = "tolerance"
    parameters = {"method": ["centralized", "fista"]}
    requirements = ["pip::fcorun"]

    def set_objective(self, X, y, lmbd, fit_intercept=None):
        """Set the problem; of the two benchmarks only that of the LASSO says whether there is an intercept."""
        is_logistic = fit_intercept is None
        n_rows, n_features = X.shape
        # losses here are means: of squares without the factor 1/2, or logistic ones
        objective = Logistic(intercept=False) if is_logistic else LeastSquares(intercept=fit_intercept)
        strength = lmbd / n_rows if is_logistic else 2 * lmbd / n_rows
        self.n_features = n_features
        with jax.enable_x64(True):
            self.problem = Problem(objective, L1(strength), Euclidean(), objective.shapes((n_features,), 0))
            targets = (y > 0).astype(float) if is_logistic else y
            weight = jnp.full(n_rows, 1 / n_rows)
            x: Any = jnp.asarray(X, jnp.float64) if isinstance(X, np.ndarray) else _compress(X)
            self.batch = Batch(x, jnp.asarray(targets, jnp.float64), weight)
            self.compiled = solver.compile_programs(self.problem, n_features)

    def warm_up(self):
        """Compile, which is not timed."""
        self.run_once(1e-2)

    def run(self, tolerance):
        """Solve from 0 to this duality gap, relative to the objective at 0."""
        with jax.enable_x64(True):
            minimize = path_solver.minimize if self.method == "centralized" else solver.minimize
            goal = min(tolerance, 1.0)  # the first one is infinite
            for iterate in minimize(self.problem, self.batch, goal, MAX_ITERATIONS, compiled=self.compiled):
                self.solution = iterate.w

    def get_next(self, tolerance):
        """Return the next smaller tolerance."""
        return min(tolerance, 1.0) / 10

    def get_result(self):
        """Return the coefficients, an intercept last."""
        parameters = [np.ravel(self.solution["weights"]), np.ravel(self.solution.get("bias", ()))]
        return {"beta": np.concatenate(parameters)}
