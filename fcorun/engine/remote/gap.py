"""The duality gap of runs whose rows stay at sites, from two exchanges of sums, and a few more for an intercept."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp

from fcorun.data.rows.site_rows import SiteRows
from fcorun.engine.clients import vmap_runs
from fcorun.engine.federation import Federation
from fcorun.engine.remote.certificate import CertificateRequests, Models
from fcorun.methods.problem.duality_gap import dual_scale, duality_gap


@dataclass(frozen=True)
class RemoteGap:
    """The measurement of the gaps of a batch of runs.

    Attributes:
        numbers: the numbers of the runs, with a leading axis G.
        n_runs: the number of runs, G.
    """

    federation: Federation
    numbers: Any
    n_runs: int

    def measure(self, solution: Models, objective: jax.Array, rounds_done: int = 0) -> jax.Array:
        """Return the duality gap of each run at its ``solution``, whose ``objective`` is known, (G,).

        Raises AnswersMissing if a site is away and not waited for.
        """
        rows = self.federation.data.train
        assert isinstance(rows, SiteRows)
        requests = CertificateRequests(rows, self.federation.problem, self.n_runs, rounds_done=rounds_done)
        models, sums = requests.residuals_at_best_intercept(solution)
        scale = self._scale(self.numbers, sums)
        return self._gap(self.numbers, objective, sums, scale, requests.conjugates(models, scale))

    @cached_property
    def _scale(self) -> Any:
        def scale_run(numbers, sums):
            _, problem = self.federation.bind(numbers)
            return jnp.asarray(dual_scale(problem, sums.gradient), self.federation.precision)

        return jax.jit(lambda *arguments: vmap_runs(scale_run, (0, 0), *arguments))

    @cached_property
    def _gap(self) -> Any:
        def gap_of_run(numbers, *sums):
            _, problem = self.federation.bind(numbers)
            return duality_gap(problem, *sums)

        return jax.jit(lambda *arguments: vmap_runs(gap_of_run, (0, 0, 0, 0, 0), *arguments))
