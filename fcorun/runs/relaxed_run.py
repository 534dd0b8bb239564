"""The relaxed coefficients of a run with ``relax``, and the evaluation of a model at the end of a run."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fcorun.base.errors import UserError
from fcorun.base.metrics import COUNTERS
from fcorun.base.records.formats import columns_csv
from fcorun.data.datasets.dataset import FederatedData
from fcorun.experiment.build import build_evaluation, build_problem
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.methods.problem.problem import Vector
from fcorun.methods.problem.solver import gather_rows
from fcorun.results.models.coefficients import coefficients_from
from fcorun.runs.job import Job

RELAXED_FILE = "relaxed.csv"
LASSO_METRICS_FILE = "lasso_metrics.csv"  # the evaluations before the relaxation


@dataclass(frozen=True, eq=False)
class RelaxedRun:
    """The relaxed coefficients of a run.

    Attributes:
        solution: the relaxed parameters by name.
        row: their evaluation, with the counters of the run.
        files: relaxed.csv: the coefficients of the lasso, of the fit without a penalty, and the relaxed ones.
        summary: the section of summary.json.
        sentence: a sentence for the reason of the status.
    """

    solution: dict[str, np.ndarray]
    row: dict[str, float]
    files: dict[str, str]
    summary: dict[str, Any]
    sentence: str


def relax_run(job: Job, data: FederatedData, solution: dict[str, np.ndarray]) -> RelaxedRun:
    """Relax the solution of a run. Raises UserError if the fit without a penalty does not exist."""
    from fcorun.results.models.relaxed import NoRefit, UnpenalizedRefits, relax_solution  # used by few runs

    experiment, gamma = job.experiment, job.experiment.settings.relax
    assert gamma is not None
    with jax.enable_x64(True):
        refits = UnpenalizedRefits.of_data(experiment, data)
    try:
        relaxed, fitted = relax_solution(refits, solution, gamma)
    except NoRefit as error:
        raise UserError(f"`relax={gamma:g}`: the selected features have no fit without a penalty: {error}: give a "
                        "larger `reg.strength`, or `relax=1`, the lasso") from error  # fmt: skip
    models = [coefficients_from(values, data, experiment) for values in (solution, fitted, relaxed)]
    columns = dict(zip(("parameter", "feature", "class"), zip(*models[0].labels, strict=True), strict=True))
    columns |= {name: m.values.tolist() for name, m in zip(("lasso", "refit", "relaxed"), models, strict=True)}
    n_selected = int(models[0].exceed(experiment.settings.cutoff).sum())
    strength = build_problem(experiment, data).regularizer.strength_or_none
    sentence = (
        f"the coefficients are relaxed: {gamma:g} times those of the lasso at strength {strength:.4g} plus "
        f"{1 - gamma:.4g} times those of the fit without a penalty to the {n_selected} features that it selects "
        f"({RELAXED_FILE}); no duality gap or objective tells how near they are to an optimum"
    )
    summary = {
        "share_of_lasso": gamma,
        "strength": strength,
        "selected": n_selected,
        "certificate_of_lasso": job.certificate,
    }
    row = {name: job.rows[-1][name] for name in COUNTERS if name in job.rows[-1]} | evaluate(experiment, data, relaxed)
    return RelaxedRun(relaxed, row, {RELAXED_FILE: columns_csv(columns)}, summary, sentence)


def evaluate(experiment: PreparedExperiment, data: FederatedData, solution: dict[str, np.ndarray]) -> dict[str, float]:
    """Return the metrics of a solution by name, without those of the problem with the penalty."""
    from fcorun.results.models.relaxed import keep_relaxed_metrics

    with jax.enable_x64(True):
        evaluation, problem = build_evaluation(experiment, data), build_problem(experiment, data)
        rows = gather_rows(data, experiment.settings.client_weighting)
        arrays = evaluation.arrays("float64")
        parameters = Vector({name: jnp.asarray(values, jnp.float64) for name, values in solution.items()})
        measured = jax.jit(lambda w, *given: evaluation.measure(problem, w, *given))(parameters, rows.x, rows.y, arrays)
        metrics = evaluation.complete(measured).metrics
    return keep_relaxed_metrics({name: float(value) for name, value in metrics.items()})
