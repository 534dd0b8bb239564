"""Sums for a certificate over rows that stay at sites, in the exchanges of ``fcorun.methods.problem.duality_gap``.

A site computes the sums over its rows at models that the server sends, and the server adds up those of all sites.
Models and sums have a leading axis G of runs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fcorun.base.errors import UserError
from fcorun.data.rows.site_rows import SiteRows
from fcorun.engine.clients import vmap_runs
from fcorun.engine.federation import Federation
from fcorun.engine.remote.leaves import name_leaves, restore_leaves
from fcorun.engine.remote.programs import ShareSums, sum_shares_by_client
from fcorun.methods.objectives.intercepts import MAX_INTERCEPT_STEPS, InterceptSearch, LossSums, has_best_intercept
from fcorun.methods.problem.duality_gap import (
    ResidualSums,
    conjugate_sum,
    dual_scale,
    duality_gap,
    loss_sums,
    residual_sums,
)
from fcorun.methods.problem.problem import Batch, Problem, Vector

RUN, NULL, REFERENCE = "run", "null", "reference"  # the models of a request: of the runs, without features, or any
SCALE = "scale"
_GRADIENT, _CONJUGATES = "gradient", "conjugates"
Models = dict[str, jax.Array]


@dataclass(frozen=True)
class CertificateSums:
    """The sums of a site.

    Attributes:
        problem: the problem, whose psi is not used.
        batch: the site's rows with their weights in F, and their clients.
        n_clients: the number of all clients.
        check_shares: raises an error where few of these rows outweigh all others at a model of a message.
        patient: the number of the patient of each row, at one client, (n,); None: each row is one.
    """

    problem: Problem
    batch: Batch
    n_clients: int
    check_shares: Callable[[str, ShareSums], None]
    patient: jax.Array | np.ndarray | None = None

    def residuals(self, models: Models, with_gradient: bool) -> dict[str, np.ndarray]:
        """Return the sums of the losses and of their derivatives, and ``with_gradient`` that of their gradients."""
        if not with_gradient:
            return _to_numpy(self._sum("residuals", loss_sums, models)._asdict())
        sums = self._sum("residuals", residual_sums, models)
        return _to_numpy({**sums.losses._asdict(), _GRADIENT: sums.gradient})

    def null_residuals(self, received: Mapping[str, np.ndarray], with_gradient: bool) -> dict[str, np.ndarray]:
        """Return the sums of ``residuals`` at the model without features, of which the intercept was ``received``.

        Raises ValueError for other arrays than that intercept, in float64.
        """
        zeros = self.problem.zeros(jnp.float64)
        bias = {name: value for name, value in zeros.items() if name == "bias"}
        model = {name: value[None] for name, value in zeros.items()}
        if bias:
            model["bias"] = restore_leaves({"0": received["bias"]}, bias, 1)["bias"]
        if set(received) != set(bias):
            raise ValueError("the model without features has an intercept at most")
        return self.residuals(model, with_gradient)

    def read_model(self, received: Mapping[str, np.ndarray]) -> Models:
        """Return one model in float64 from the leaves that were ``received``. Raises ValueError for other arrays."""
        return dict(restore_leaves(dict(received), dict(self.problem.zeros(jnp.float64)), 1))

    def conjugates(self, models: Models, scale: Any) -> dict[str, np.ndarray]:
        """Return the sum of the conjugates of the losses at derivatives times ``scale``, (G,)."""
        return _to_numpy({_CONJUGATES: self._sum("conjugates", conjugate_sum, models, scale)})

    def _sum(self, message: str, sum_rows: Callable, models: Models, *numbers: Any) -> Any:
        """Return the sums of each run for a message: ``sum_rows`` of the problem, predictions, numbers and rows."""
        sums, shares = self._programs[sum_rows](models, self.batch, *numbers)
        self.check_shares(message, shares)
        return sums

    @cached_property
    def _programs(self) -> dict[Callable, Callable]:
        """The compiled functions of models, rows and further numbers of each run, which return also shares of rows."""

        def compile_sums(sum_rows: Callable) -> Callable:
            def sum_runs(models, batch, *numbers):
                def sum_run(w, *numbers_of_run):
                    prediction = self.problem.predict(Vector(w), batch.x, batch.offset)
                    sums = sum_rows(self.problem, prediction, *numbers_of_run, batch)
                    shares = self.problem.row_shares(Vector(w), batch)
                    return sums, sum_shares_by_client(shares, batch.client, self.n_clients, self.patient)

                return jax.vmap(sum_run)(models, *numbers)

            return jax.jit(sum_runs)

        return {sum_rows: compile_sums(sum_rows) for sum_rows in (loss_sums, residual_sums, conjugate_sum)}


@dataclass(frozen=True)
class CertificateRequests:
    """The requests of the server for the sums over the rows of all sites.

    Attributes:
        rows: the description of the sites' rows.
        problem: the problem, whose psi is not used.
        n_runs: the number of runs, G.
        models: which models the sites compute sums at: ``RUN``; ``NULL``, whose intercept alone is sent; or
            ``REFERENCE``, one in float64 on the way to the optimum.
        rounds_done: the number of rounds after which the runs are evaluated.
    """

    rows: SiteRows
    problem: Problem
    n_runs: int
    models: str = RUN
    rounds_done: int = 0

    def _request(self, name: str, arrays: dict[str, np.ndarray], about: dict[str, Any]) -> Mapping[str, Any]:
        """Return the answers of all sites. Those of runs are not waited for: raises AnswersMissing."""
        if self.models == RUN:
            return self.rows.request_all_or_none(name, self.rounds_done, arrays=arrays, about=about)
        return self.rows.request(name, arrays=arrays, about=about)

    def residuals_at_best_intercept(self, models: Models) -> tuple[Models, ResidualSums]:
        """Return the models with the best intercepts for their weights, and the sums of residuals at these models."""
        sums = self.residuals(models)
        if "bias" not in models:
            return models, sums
        bias = self._search_intercept(models, sums.losses)
        if bias is None:
            return models, sums
        models = models | {"bias": bias}
        return models, self.residuals(models)

    def _search_intercept(self, models: Models, losses: LossSums) -> jax.Array | None:
        """Return the best intercept of each run; None if all models have theirs already."""
        bias = jnp.asarray(models["bias"])
        unknown = jnp.full_like(bias, jnp.inf)
        search = InterceptSearch(bias, -unknown, unknown, jnp.zeros(bias.shape, jnp.int32))
        moved = False
        while True:
            is_far = ~has_best_intercept(losses) & jnp.isfinite(losses.slope) & (search.steps < MAX_INTERCEPT_STEPS)
            if not is_far.any():
                return search.bias if moved else None
            next_search = search.advance(losses, self.problem.objective.has_flat_losses)
            search = jax.tree.map(lambda new, old, is_far=is_far: jnp.where(is_far, new, old), next_search, search)
            moved_models = models | {"bias": search.bias}
            arrays, about = self._encode(moved_models), {"models": self.models, "gradient": False}
            answers = self._request("residuals", arrays, about)
            losses = self._round_slope(self._add(answers, dict.fromkeys(LossSums._fields, ()), moved_models))
            moved = True

    def residuals(self, models: Models) -> ResidualSums:
        """Return the sums of residuals at the models."""
        arrays, about = self._encode(models), {"models": self.models, "gradient": True}
        shapes = dict.fromkeys(LossSums._fields, ()) | {_GRADIENT: self.problem.shapes["weights"]}
        sums = self._add(self._request("residuals", arrays, about), shapes, models)
        gradient = sums.pop(_GRADIENT)
        return ResidualSums(self._round_slope(sums), gradient)

    def _round_slope(self, sums: Models) -> LossSums:
        """Return sums whose slope is 0 where secure sums cannot tell the slope from 0: no intercept is known better."""
        slope, error = sums["slope"], self.rows.sum_errors.get("residuals", 0.0)
        return LossSums(**sums | {"slope": jnp.where(jnp.abs(slope) <= error, 0, slope)})

    def conjugates(self, models: Models, scale: jax.Array) -> jax.Array:
        """Return the sum of the conjugates of the losses at derivatives times ``scale``, (G,)."""
        arrays, about = name_leaves(dict(models)) | {SCALE: np.asarray(scale)}, {"models": self.models}
        answers = self._request("conjugates", arrays, about)
        return self._add(answers, {_CONJUGATES: ()}, models)[_CONJUGATES]

    def _encode(self, models: Models) -> dict[str, np.ndarray]:
        """Return the arrays of a request; a model without features is its intercept."""
        if self.models != NULL:
            return name_leaves(models)
        return {"bias": np.asarray(models["bias"])} if "bias" in models else {}

    def _add(self, answers: Mapping[str, Any], shapes: dict[str, tuple[int, ...]], models: Models) -> Models:
        """Add up the sites' sums. Raises UserError, which names the site, for sums of other names, shapes or types."""
        dtype = models["weights"].dtype
        expected = {name: (dtype, (self.n_runs, *shape)) for name, shape in shapes.items()}
        total: dict[str, Any] = {}
        for site in sorted(answers):
            arrays = answers[site].arrays
            if {name: (array.dtype, array.shape) for name, array in arrays.items()} != expected:
                raise UserError(f"site '{site}' sent invalid sums for a certificate: use the same version of "
                                "fcorun at the server and at all sites")  # fmt: skip
            for name, values in arrays.items():
                total[name] = total.get(name, 0) + jnp.asarray(values)
        return total


def _to_numpy(sums: Mapping[str, jax.Array]) -> dict[str, np.ndarray]:
    return {name: np.asarray(values) for name, values in sums.items()}


# The duality gap, from two exchanges of sums, and a few more for an intercept.


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
