"""The smallest strength at which 0 is optimal, lambda_max, and strengths relative to it."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np

from fcorun.base.errors import UserError
from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.rows.site_rows import SiteRows
from fcorun.engine.remote.certificate import NULL, CertificateRequests
from fcorun.experiment.build import build_problem
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.experiment.optimum import cache_path, read_cached, write_cached
from fcorun.methods.problem import strength_max
from fcorun.methods.problem.problem import Batch, Problem
from fcorun.methods.problem.solver import gather_rows, make_batch
from fcorun.methods.regularizers.regularizer import Regularizer


def resolve_strength(experiment: PreparedExperiment, data: FederatedData) -> Regularizer:
    """Return the regularizer, with ``relative`` (if set) turned into a strength."""
    reg = experiment.reg
    if reg.relative_or_none is None:
        return reg
    return replace(reg, strength=reg.relative * compute_strength_max(experiment, data), relative=None)  # type: ignore


def compute_strength_max(
    experiment: PreparedExperiment, data: FederatedData, advice: str = "leave `reg.relative` out"
) -> float:
    """Compute the smallest strength at which 0 is optimal, or read it from the cache.

    Of rows that stay at sites, the strength follows from their sums, and is not cached: the data may have changed.
    Raises UserError, which ends with ``advice``, if no strength makes 0 optimal.
    """
    if isinstance(data.train, SiteRows):
        with jax.enable_x64(True):
            problem = build_problem(experiment, data)
            null_model = {name: jnp.zeros((1, *shape)) for name, shape in problem.shapes.items()}
            requests = CertificateRequests(data.train, problem, 1, NULL)
            _, sums = requests.residuals_at_best_intercept(null_model)
            strength = float(problem.regularizer.strength_max(sums.gradient[0]))  # type: ignore[attr-defined]
        _check_strength(strength, experiment, advice)
        return strength

    def compute(problem: Problem) -> float:
        return strength_max.strength_max(problem, gather_rows(data, experiment.settings.client_weighting))

    return _cached_strength("strength", experiment, data, compute, advice)


def compute_client_strength_max(experiment: PreparedExperiment, data: FederatedData, advice: str) -> float:
    """Compute the smallest strength at which 0 is optimal for every client on its own rows, or read it from the cache.

    Raises UserError as ``compute_strength_max``.
    """

    def compute(problem: Problem) -> float:
        client_strength_max = strength_max.make_strength_max(problem, data.train.x.shape[1])
        return max(client_strength_max(batch) for batch in _client_batches(data))

    return _cached_strength("strength of each client", experiment, data, compute, advice)


def _client_batches(data: FederatedData) -> Iterator[Batch]:
    """Yield the rows of each client, padded to a power of two so that few shapes are compiled.

    The padding repeats the client's last row with weight 0.
    """
    row_weights = np.ones(len(data.train)) if data.train.relative_weight is None else data.train.relative_weight
    for start, stop in pairwise(data.train.offsets.tolist()):
        positions = np.arange(start, start + 2 ** (stop - start - 1).bit_length())
        rows = np.minimum(positions, stop - 1)
        weight = np.where(positions < stop, row_weights[rows], 0)
        yield make_batch(data, rows, weight / weight.sum())


def _cached_strength(
    kind: str, experiment: PreparedExperiment, data: FederatedData, compute: Callable[[Problem], float], advice: str
) -> float:
    """Return ``compute(problem)``, called under enable_x64, or its result from the cache.

    Raises UserError, which ends with ``advice``, if the result is not finite.
    """
    path = cache_path(experiment, kind, without=("strength", "relative"))
    cached = read_cached(path)
    if isinstance(cached, float):
        return cached
    with jax.enable_x64(True):
        strength = compute(build_problem(experiment, data))
    _check_strength(strength, experiment, advice)
    write_cached(path, strength)
    return strength


def _check_strength(strength: float, experiment: PreparedExperiment, advice: str) -> None:
    """Raise UserError, which ends with ``advice``, for a strength that is not finite."""
    if not np.isfinite(strength):
        raise UserError(f"no strength makes 0 optimal with `reg={experiment.names['reg']}` as it is set: {advice}")
