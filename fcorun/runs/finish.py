"""What is done when a run ends: its record is completed."""

import time
from functools import partial

import numpy as np

from fcorun.algorithms.base import Baseline
from fcorun.datasets.base import FederatedData
from fcorun.datasets.encoding import FILE as ENCODING
from fcorun.experiment.classes import one_class, separated
from fcorun.experiment.ending import FEW, descends, falling, judged, missed, named, unfinished
from fcorun.experiment.experiment import Experiment
from fcorun.experiment.stationarity import applies, movement, sentence
from fcorun.models.brain import files_of
from fcorun.models.coefficients import Coefficients, alone, of_solution
from fcorun.models.scores import scores
from fcorun.objectives.base import linear
from fcorun.records.formats import csv_text, json_text, npz_bytes
from fcorun.runs.hosts.predicting import predicted
from fcorun.runs.job import Job
from fcorun.runs.summary import summarize
from fcorun.system.interruption import check_interrupted

Arrays = dict[str, np.ndarray]


def finish(job: Job, data: FederatedData, solution: Arrays, models: Arrays | None, *, times: dict) -> None:
    """Complete the record of a run that has ended, and note how; ``models`` are the clients' own, to be kept.

    Where the record cannot be written, the run has failed.
    """
    if not job.diverged:
        endless = separated(job.experiment, data, job.rows[-1])
        _look_back(job, endless)
        job.remark(one_class(job.experiment, data, job.rows[-1]))
        if not endless:
            _stand_still(job, data, solution)
    status, reason = (
        ("diverged", job.grown or f"not finite in round {job.diverged}{job.where}")
        if job.diverged
        else ("done", job.reason)
    )
    summary = summarize(job, data, status, {"setup": job.setup, **times})
    arrays = {"solution": solution}
    if models is not None:
        arrays["personal"] = models | {"client": np.array(data.clients or range(len(data.sizes)))}
    if data.standardized and data.standardized["by"] == "per_client":  # too much for summary.json
        arrays["scaling"] = {name: value for name, value in data.standardized.items() if name != "by"}
    try:
        _write_next(job, "metrics.csv", csv_text(job.rows))
        if not job.diverged:
            _measure(job, data, arrays, summary)
        _write(job, data, (status, reason), summary, arrays)
    except Exception as error:
        job.fail(error)
    else:
        job.end = status


def _look_back(job: Job, endless: str = "") -> None:
    """Remark what is amiss with the end of a run that has not diverged, as its rows tell, or that its descent is
    ``endless``; a baseline has its certificate."""
    least = job.resolution()
    if abs(job.rows[-1].get("suboptimality", float("inf"))) < least:
        job.remark(
            f"suboptimality is rounding: {job.experiment.settings.precision} resolves {least:.1g} of the objective"
        )
    job.remark(job.experiment.objective.remark(job.rows[-1]))
    job.remark(_sparsity(job.experiment, job.rows[-1]))
    job.remark(endless)
    if isinstance(job.experiment.algo, Baseline):
        return
    if not job.stopped:
        job.remark(missed(job.experiment.settings.stop or {}, job.rows, job.experiment.metrics))
    metric, near = judged(job.rows[-1]), (job.certificate or {}).get("near")
    if job.rows[-1][metric] > job.rows[0][metric]:
        cure = "" if near is False else ": smaller rates may help"  # it was said what may
        job.remark(f"the {named(metric)} ended above where it began{cure}")
    elif not (job.stopped or near):
        job.unfinished = unfinished(job.rows)
        if job.unfinished and near is None and not endless:  # else that has said more
            job.remark(falling(job.unfinished))


def _stand_still(job: Job, data: FederatedData, solution: Arrays) -> None:
    """Note, and remark, how far the coefficients are from standing still, of runs with some evaluations, unless these
    have told that the run is not at the optimum."""
    metric, near = judged(job.rows[-1]), (job.certificate or {}).get("near")
    told = job.stopped or job.unfinished or near is False or job.rows[-1][metric] > job.rows[0][metric]
    if told or len(job.rows) < FEW or not applies(job.experiment, data, alone=job.picture):
        return
    job.moved = movement(job.experiment, data, solution)
    job.remark(sentence(job.experiment, data, job.moved, falling=descends(job.rows)))


def _sparsity(experiment: Experiment, row: dict[str, float]) -> str:
    """That the strength of psi leaves nothing of the weights; of own models nothing is said."""
    killed = row.get("density") == 0 and experiment.reg.strength_given and "personal_density" not in row
    if not (killed and experiment.reg.sparse and experiment.minimises_psi):
        return ""
    return f"reg={experiment.names['reg']} left none of the weights: a smaller strength keeps some"


def _write(job: Job, data: FederatedData, ended: tuple[str, str], summary: dict, arrays: dict[str, Arrays]) -> None:
    """Write what a record is made of beside its metrics: numbers, then pictures, at last its status and the reason."""
    folder, rows, (status, reason) = job.folder, job.rows, ended
    if data.encoding is not None:
        _write_next(job, ENCODING, json_text(data.encoding.noted()))
    for name, values in arrays.items():
        _write_next(job, f"{name}.npz", npz_bytes(values))
    model = None
    if status == "done" and linear(type(job.experiment.objective)) and not alone(rows):
        model = of_solution(arrays["solution"], data, job.experiment.data.units)
        for name, content in files_of(model).items():
            _write_next(job, name, content)
    _write_next(job, "summary.json", json_text(summary))
    if job.picture:
        begun = time.perf_counter()
        _draw(job, model)
        summary["seconds"]["picture"] = time.perf_counter() - begun
        _write_next(job, "summary.json", json_text(summary))
    folder.log(f"{status} after round {rows[-1]['round'] if rows else 0}" + (f": {reason}" if reason else ""))
    folder.set_status(status, job.label, reason, **({"round": job.diverged} if job.diverged else {}))
    folder.drop_checkpoint()


def _measure(job: Job, data: FederatedData, arrays: dict[str, Arrays], summary: dict) -> None:
    """Write scores.csv, if rows are held out."""
    begun, models = time.perf_counter(), arrays.get("personal")
    own = models and {name: value for name, value in models.items() if name != "client"}
    told = partial(predicted, job.experiment.objective, data, arrays["solution"])
    shared = arrays["solution"] if job.experiment.has_shared_model else None
    if found := scores(job.experiment.objective, data, shared, own, told):
        _write_next(job, "scores.csv", csv_text(found))
    summary["seconds"]["scores"] = time.perf_counter() - begun


def _draw(job: Job, model: Coefficients | None) -> None:
    """Write the pictures of the curves, and of the coefficients of a linear model."""
    from fcorun.reports.pictures.coefficients import draw_model
    from fcorun.reports.pictures.curves import draw_run

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
    job.folder.write(name, content)
