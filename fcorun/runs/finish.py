"""What is done when a run ends: its record is completed."""

import time
from functools import partial

import numpy as np

from fcorun.algorithms.base import Baseline
from fcorun.datasets.base import FederatedData
from fcorun.experiment.classifier_warnings import warn_constant_prediction, warn_separation
from fcorun.experiment.convergence import (
    MIN_EVALUATIONS,
    describe_missed_targets,
    describe_remaining_descent,
    is_descending,
    measure_remaining_descent,
    metric_phrase,
    minimised_metric,
)
from fcorun.experiment.experiment import Experiment
from fcorun.experiment.stationarity import can_measure_movement, describe_movement, measure_movement
from fcorun.models.coefficients import Coefficients, coefficients_from, personal_only
from fcorun.models.nifti_images import coefficient_files
from fcorun.models.scores import compute_scores
from fcorun.objectives.base import is_linear_model
from fcorun.records.formats import csv_text, json_text, npz_bytes
from fcorun.runs.hosts.prediction import gather_predictions
from fcorun.runs.job import Job
from fcorun.runs.summary import summarize
from fcorun.system.interruption import check_interrupted
from fcorun.tables.encoding import ENCODING_FILE as ENCODING

Arrays = dict[str, np.ndarray]


def finish_run(job: Job, data: FederatedData, solution: Arrays, models: Arrays | None, *, times: dict) -> None:
    """Complete the record of a run that has ended, and note how; ``models`` are the clients' own, to be kept.

    Where the record cannot be written, the run has failed.
    """
    if not job.divergence_round:
        endless = warn_separation(job.experiment, data, job.rows[-1])
        _look_back(job, endless)
        job.add_reason(warn_constant_prediction(job.experiment, data, job.rows[-1]))
        if not endless:
            _stand_still(job, data, solution)
    status, reason = (
        ("diverged", job.divergence_reason or f"not finite in round {job.divergence_round}{job.divergence_origin}")
        if job.divergence_round
        else ("done", job.reason)
    )
    summary = summarize(job, data, status, {"setup": job.setup_seconds, **times})
    arrays = {"solution": solution}
    if models is not None:
        arrays["personal"] = models | {"client": np.array(data.clients or range(len(data.sizes)))}
    if data.standardized and data.standardized["by"] == "per_client":  # too much for summary.json
        arrays["scaling"] = {name: value for name, value in data.standardized.items() if name != "by"}
    try:
        _write_next(job, "metrics.csv", csv_text(job.rows))
        if not job.divergence_round:
            _measure(job, data, arrays, summary)
        _write(job, data, (status, reason), summary, arrays)
    except Exception as error:
        job.fail(error)
    else:
        job.end_status = status


def _look_back(job: Job, endless: str = "") -> None:
    """Remark what is amiss with the end of a run that has not diverged, as its rows tell, or that its descent is
    ``endless``; a baseline has its certificate."""
    least = job.objective_resolution()
    if abs(job.rows[-1].get("suboptimality", float("inf"))) < least:
        job.add_reason(
            f"suboptimality is rounding: {job.experiment.settings.precision} resolves {least:.1g} of the objective"
        )
    job.add_reason(job.experiment.objective.final_warning(job.rows[-1]))
    job.add_reason(_sparsity(job.experiment, job.rows[-1]))
    job.add_reason(endless)
    if isinstance(job.experiment.algo, Baseline):
        return
    if not job.stopped:
        job.add_reason(describe_missed_targets(job.experiment.settings.stop or {}, job.rows, job.experiment.metrics))
    metric, near = minimised_metric(job.rows[-1]), (job.certificate or {}).get("near")
    if job.rows[-1][metric] > job.rows[0][metric]:
        cure = "" if near is False else ": smaller rates may help"  # it was said what may
        job.add_reason(f"the {metric_phrase(metric)} ended above where it began{cure}")
    elif not (job.stopped or near):
        job.remaining_descent = measure_remaining_descent(job.rows)
        if job.remaining_descent and near is None and not endless:  # else that has said more
            job.add_reason(describe_remaining_descent(job.remaining_descent))


def _stand_still(job: Job, data: FederatedData, solution: Arrays) -> None:
    """Note, and remark, how far the coefficients are from standing still, of runs with some evaluations, unless these
    have told that the run is not at the optimum."""
    metric, near = minimised_metric(job.rows[-1]), (job.certificate or {}).get("near")
    told = job.stopped or job.remaining_descent or near is False or job.rows[-1][metric] > job.rows[0][metric]
    if (
        told
        or len(job.rows) < MIN_EVALUATIONS
        or not can_measure_movement(job.experiment, data, single_run=job.with_pictures)
    ):
        return
    job.movement = measure_movement(job.experiment, data, solution)
    job.add_reason(describe_movement(job.experiment, data, job.movement, falling=is_descending(job.rows)))


def _sparsity(experiment: Experiment, row: dict[str, float]) -> str:
    """That the strength of psi leaves nothing of the weights; of own models nothing is said."""
    killed = row.get("density") == 0 and experiment.reg.strength_or_none and "personal_density" not in row
    if not (killed and experiment.reg.sparse and experiment.applies_regularizer):
        return ""
    return f"reg={experiment.names['reg']} left none of the weights: a smaller strength keeps some"


def _write(job: Job, data: FederatedData, ended: tuple[str, str], summary: dict, arrays: dict[str, Arrays]) -> None:
    """Write what a record is made of beside its metrics: numbers, then pictures, at last its status and the reason."""
    folder, rows, (status, reason) = job.run_folder, job.rows, ended
    if data.encoding is not None:
        _write_next(job, ENCODING, json_text(data.encoding.to_dict()))
    for name, values in arrays.items():
        _write_next(job, f"{name}.npz", npz_bytes(values))
    model = None
    if status == "done" and is_linear_model(type(job.experiment.objective)) and not personal_only(rows):
        model = coefficients_from(arrays["solution"], data, job.experiment.data.units)
        for name, content in coefficient_files(model).items():
            _write_next(job, name, content)
    _write_next(job, "summary.json", json_text(summary))
    if job.with_pictures:
        begun = time.perf_counter()
        _draw(job, model)
        summary["seconds"]["picture"] = time.perf_counter() - begun
        _write_next(job, "summary.json", json_text(summary))
    folder.log(f"{status} after round {rows[-1]['round'] if rows else 0}" + (f": {reason}" if reason else ""))
    folder.write_status(status, job.label, reason, **({"round": job.divergence_round} if job.divergence_round else {}))
    folder.delete_checkpoint()


def _measure(job: Job, data: FederatedData, arrays: dict[str, Arrays], summary: dict) -> None:
    """Write scores.csv, if rows are held out."""
    begun, models = time.perf_counter(), arrays.get("personal")
    own = models and {name: value for name, value in models.items() if name != "client"}
    told = partial(gather_predictions, job.experiment.objective, data, arrays["solution"])
    shared = arrays["solution"] if job.experiment.has_shared_model else None
    if found := compute_scores(job.experiment.objective, data, shared, own, told):
        _write_next(job, "scores.csv", csv_text(found))
    summary["seconds"]["scores"] = time.perf_counter() - begun


def _draw(job: Job, model: Coefficients | None) -> None:
    """Write the pictures of the curves, and of the coefficients of a linear model."""
    from fcorun.reports.pictures.coefficients import draw_model
    from fcorun.reports.pictures.run_curves import draw_run

    experiment, settings = job.experiment, job.experiment.settings
    style = settings.style
    curves = draw_run(job.rows, job.label, settings.cutoff, x=settings.x, metrics=experiment.metrics, style=style)
    _write_next(job, "curves.png", curves)
    if model is not None:
        for name, content in draw_model(model, job.label, settings.cutoff, style=style).items():
            _write_next(job, name, content)


def _write_next(job: Job, name: str, content: bytes | str) -> None:
    """Write a file of a record, unless the run has been interrupted. Raises KeyboardInterrupt."""
    check_interrupted()
    job.run_folder.write_file(name, content)
