"""The certified optimum of a problem: computed once, kept on disk, what suboptimality is measured against."""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from fcorun.config import identity_fields
from fcorun.datasets.base import FederatedData
from fcorun.engine.evaluate import objective_weights
from fcorun.errors import UserError
from fcorun.experiment.build import build_problem
from fcorun.experiment.experiment import Experiment
from fcorun.plugin_code import code_identifier
from fcorun.problem import solver, strength_max
from fcorun.problem.problem import Batch, Problem
from fcorun.system.cache import cache_dir
from fcorun.system.files import write_atomically

TOLERANCE, MAX_ITERATIONS = 1e-9, 100_000


def gather_rows(data: FederatedData, client_weighting: str, rows: slice = slice(None)) -> Batch:
    """The rows in one place with their weights in F, in float64 where they are real numbers; under enable_x64."""
    return _batch(data, rows, objective_weights(data, client_weighting)[rows])


def _batch(data: FederatedData, rows: slice | np.ndarray, weight: np.ndarray) -> Batch:
    x, y = data.x[rows], data.y[rows]
    x = x.astype(np.float64) if x.dtype.kind == "f" else x
    y = y.astype(np.int32 if data.task == "multiclass" else np.float64)
    offset = None if data.offset is None else jnp.asarray(data.offset[rows], jnp.float64)
    return Batch(jnp.asarray(x), jnp.asarray(y), jnp.asarray(weight / weight.sum()), offset=offset)


def compute_optimum(experiment: Experiment, data: FederatedData) -> dict:
    """{"objective", "certificate", "kind", "certified", "iterations"} of min F + psi, from disk if it is there."""
    path = _path(experiment)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        pass
    with jax.enable_x64(True):
        batch = gather_rows(data, experiment.settings.client_weighting)
        last = _last(solver.minimize(build_problem(experiment, data), batch, TOLERANCE, MAX_ITERATIONS))
    found = {
        "objective": last.objective,
        "certificate": last.certificate,
        "kind": last.certificate_kind,
        "certified": last.certified,
        "iterations": last.iteration,
    }
    if last.certified:
        write_atomically(path, json.dumps(found))
    return found


def resolve_strength(experiment: Experiment, data: FederatedData):
    """The regularizer with ``relative`` turned into a strength; as it is, where there is no ``relative``."""
    reg = experiment.reg
    if reg.relative_or_none is None:
        return reg
    return replace(reg, strength=reg.relative * compute_strength_max(experiment, data), relative=None)  # type: ignore


def compute_strength_max(experiment: Experiment, data: FederatedData, advice: str = "leave reg.relative out") -> float:
    """The smallest strength at which 0 is optimal, from disk if it is there. Raises UserError, with the ``cure``, where
    there is none."""
    weighting = experiment.settings.client_weighting
    return _kept_strength(
        "strength",
        experiment,
        data,
        lambda problem: strength_max.strength_max(problem, gather_rows(data, weighting)),
        advice,
    )


def compute_client_strength_max(experiment: Experiment, data: FederatedData, advice: str) -> float:
    """The smallest strength at which 0 is optimal for each client alone, on its rows. Raises UserError as
    ``strength_max``."""

    def largest(problem: Problem) -> float:
        alone = strength_max.make_strength_max(problem, data.x.shape[1])
        return max(alone(batch) for batch in _of_clients(data))

    return _kept_strength("strength of each client", experiment, data, largest, advice)


def _of_clients(data: FederatedData) -> Iterator[Batch]:
    """The rows of each client, a power of two of them, so that few shapes are compiled: its last row stands for those
    that it lacks, and weighs nothing there."""
    within = np.ones(len(data.y)) if data.row_weights is None else data.row_weights
    for start, stop in zip(data.offsets[:-1].tolist(), data.offsets[1:].tolist(), strict=True):
        places = np.arange(start, start + 2 ** (stop - start - 1).bit_length())
        rows = np.minimum(places, stop - 1)
        yield _batch(data, rows, np.where(places < stop, within[rows], 0))


def _kept_strength(
    kind: str, experiment: Experiment, data: FederatedData, largest: Callable[[Problem], float], cure: str
) -> float:
    """What ``largest`` finds, under enable_x64, from disk if it is there. Raises UserError, with the ``cure``, where
    that is none."""
    path = _path(experiment, kind, without=("strength", "relative"))
    if path.exists():
        return json.loads(path.read_text(encoding="utf-8"))
    with jax.enable_x64(True):
        found = largest(build_problem(experiment, data))
    if not np.isfinite(found):
        raise UserError(f"no strength makes 0 optimal with reg={experiment.names['reg']} as it is set: {cure}")
    write_atomically(path, json.dumps(found))
    return found


def _path(experiment: Experiment, kind: str = "optimum", without: tuple = ()) -> Path:
    reg = {k: v for k, v in identity_fields(experiment.reg).items() if k not in without}
    parts = [
        kind,
        experiment.fingerprint,
        code_identifier(experiment.objective),
        repr(experiment.objective),
        code_identifier(experiment.reg),
        sorted(reg.items(), key=str),
        experiment.settings.client_weighting,
        solver.VERSION,
        TOLERANCE,
    ]
    return cache_dir("optima") / (hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()[:32] + ".json")


def _last(iterates: Iterator[solver.Iterate]) -> solver.Iterate:
    for last in iterates:  # noqa: B007
        pass
    return last
