"""The optimum of F + psi, the reference of suboptimality, which is cached on disk if it is certified."""

import hashlib
import json
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fcorun.base.config import code_identifier, identity_fields
from fcorun.base.system.files import cache_dir, write_atomically
from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.rows.site_rows import SiteRows
from fcorun.engine.engine import RESULTS_VERSION
from fcorun.experiment.build import build_problem
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.experiment.identification import find_pattern
from fcorun.experiment.site_optimum import minimize_over_sites
from fcorun.methods.problem import solver
from fcorun.methods.problem.solver import gather_rows

TOLERANCE = 1e-9
MAX_ITERATIONS = 100_000


def compute_optimum(experiment: PreparedExperiment, data: FederatedData) -> dict:
    """Compute the optimum of F + psi, or read it from the cache.

    Only a certified optimum is cached, and none of rows that stay at sites.

    Returns "objective", "certificate", "kind", "certified" and "iterations", and of a certified optimum of rows in one
    place "pattern", its nonzero entries or rank (``fcorun.experiment.identification``). The pattern is None if psi
    promotes none, or if more iterations change it.
    """
    if isinstance(data.train, SiteRows):
        with jax.enable_x64(True):
            return minimize_over_sites(build_problem(experiment, data), data.train, TOLERANCE)
    path = cache_path(experiment, "optimum")
    cached = read_cached(path)
    if isinstance(cached, dict) and "pattern" in cached:
        return cached
    with jax.enable_x64(True):
        batch = gather_rows(data, experiment.settings.client_weighting)
        problem = build_problem(experiment, data)
        compiled = solver.compile_programs(problem, batch.x.shape[1])
        (last,) = deque(solver.minimize(problem, batch, TOLERANCE, MAX_ITERATIONS, compiled=compiled), maxlen=1)
        pattern = None
        if last.certified:
            reg, names = problem.regularizer, problem.regularized
            pattern = find_pattern(reg, names, {name: np.asarray(last.w[name]) for name in names})
        if pattern is not None:  # the solver goes on: does that change the pattern?
            tolerance, iterations = 1e-3 * TOLERANCE, last.iteration + 4 * solver.STEPS_PER_CERTIFICATE
            iterates = solver.minimize(problem, batch, tolerance, iterations, start=last.w, compiled=compiled)
            (refined,) = deque(iterates, maxlen=1)
            if find_pattern(reg, names, {name: np.asarray(refined.w[name]) for name in names}) != pattern:
                pattern = None
    optimum = {
        "objective": last.objective,
        "certificate": last.certificate,
        "kind": last.certificate_kind,
        "certified": last.certified,
        "iterations": last.iteration,
        "pattern": pattern,
    }
    if last.certified:
        write_cached(path, optimum)
    return optimum


def _to_text(value: object) -> str:
    """Return a value that JSON does not have as text; ``str`` would leave out entries of a long array."""
    return f"{value.dtype} {value.tolist()}" if isinstance(value, np.ndarray) else str(value)


def cache_path(experiment: PreparedExperiment, kind: str, without: tuple[str, ...] = ()) -> Path:
    """Return the file of a cached result, named by the hash of the problem; ``without`` these fields of psi."""
    reg_fields = {name: value for name, value in identity_fields(experiment.reg).items() if name not in without}
    content = [
        kind,
        experiment.fingerprint,
        code_identifier(experiment.objective),
        repr(experiment.objective),
        code_identifier(experiment.reg),
        sorted(reg_fields.items(), key=str),
        experiment.settings.client_weighting,
        solver.VERSION,
        RESULTS_VERSION,
        TOLERANCE,
    ]
    digest = hashlib.sha256(json.dumps(content, default=_to_text).encode()).hexdigest()
    return cache_dir("optima") / f"{digest[:32]}.json"


def read_cached(path: Path) -> Any:
    """Return a cached result, None if there is none or its file is damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def write_cached(path: Path, result: Any) -> None:
    """Cache a result. On a full disk the result is not cached, and the next run computes it again."""
    with suppress(OSError):
        write_atomically(path, json.dumps(result))
