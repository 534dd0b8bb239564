"""What is done when a run ends: its record is completed."""

import time
from functools import partial

import numpy as np

from fcorun.algorithms.base import Baseline
from fcorun.datasets.base import FederatedData
from fcorun.datasets.encoding import FILE as ENCODING
from fcorun.experiment.ending import falling, judged, missed, named, unfinished
from fcorun.experiment.experiment import Experiment
from fcorun.models.brain import files_of
from fcorun.models.coefficients import alone, of_solution
from fcorun.models.scores import scores
from fcorun.objectives.base import linear
from fcorun.records.formats import csv_text, json_text, npz_bytes
from fcorun.runs.hosts.predicting import predicted
from fcorun.runs.job import Job
from fcorun.runs.summary import summarize

Arrays = dict[str, np.ndarray]


def finish(job: Job, data: FederatedData, solution: Arrays, models: Arrays | None, *, times: dict) -> None:
    """Complete the record of a run that has ended, and note how; ``models`` are the clients' own, to be kept.

    Where the record cannot be written, the run has failed.
    """
    if not job.diverged:
        _look_back(job)
    status, reason = (
        ("diverged", f"not finite in round {job.diverged}{job.where}") if job.diverged else ("done", job.reason)
    )
    summary = summarize(job, data, status, {"setup": job.setup, **times})
    arrays = {"solution": solution}
    if models is not None:
        arrays["personal"] = models | {"client": np.array(data.clients or range(len(data.sizes)))}
    if data.standardized and data.standardized["by"] == "per_client":  # too much for summary.json
        arrays["scaling"] = {name: value for name, value in data.standardized.items() if name != "by"}
    try:
        if not job.diverged:
            _measure(job, data, arrays, summary)
        _write(job, data, (status, reason), summary, arrays)
    except Exception as error:
        job.fail(error)
    else:
        job.end = status


def _look_back(job: Job) -> None:
    """Remark what is amiss with the end of a run that has not diverged; a baseline has its certificate."""
    least = job.resolution()
    if abs(job.rows[-1].get("suboptimality", float("inf"))) < least:
        job.remark(
            f"suboptimality is rounding: {job.experiment.settings.precision} resolves {least:.1g} of the objective"
        )
    job.remark(job.experiment.objective.remark(job.rows[-1]))
    job.remark(_sparsity(job.experiment, job.rows[-1]))
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
        if job.unfinished and near is None:  # else that has said more
            job.remark(falling(job.unfinished))


def _sparsity(experiment: Experiment, row: dict[str, float]) -> str:
    """That the strength of psi leaves nothing of the weights; of own models nothing is said."""
    killed = row.get("density") == 0 and experiment.reg.strength_given and "personal_density" not in row
    if not (killed and experiment.reg.sparse and experiment.minimises_psi):
        return ""
    return f"reg={experiment.names['reg']} left none of the weights: a smaller strength keeps some"


def _write(job: Job, data: FederatedData, ended: tuple[str, str], summary: dict, arrays: dict[str, Arrays]) -> None:
    """Write what a record is made of; its status and the reason of it come last."""
    folder, rows, (status, reason) = job.folder, job.rows, ended
    if job.picture:
        from fcorun.reports.pictures.curves import draw_run

        begun, settings = time.perf_counter(), job.experiment.settings
        folder.write(
            "curves.png",
            draw_run(
                rows, job.label, settings.cutoff, x=settings.x, metrics=job.experiment.metrics, style=settings.style
            ),
        )
        summary["seconds"]["picture"] = time.perf_counter() - begun
    if status == "done" and linear(type(job.experiment.objective)) and not alone(rows):
        _keep_model(job, data, arrays["solution"], summary)
    folder.write("metrics.csv", csv_text(rows))
    if data.encoding is not None:
        folder.write(ENCODING, json_text(data.encoding.noted()))
    for name, values in arrays.items():
        folder.write(f"{name}.npz", npz_bytes(values))
    folder.write("summary.json", json_text(summary))
    folder.log(f"{status} after round {rows[-1]['round'] if rows else 0}" + (f": {reason}" if reason else ""))
    folder.set_status(status, job.label, reason, **({"round": job.diverged} if job.diverged else {}))
    folder.drop_checkpoint()


def _measure(job: Job, data: FederatedData, arrays: dict[str, Arrays], summary: dict) -> None:
    """Write scores.csv, if rows are held out."""
    begun, models = time.perf_counter(), arrays.get("personal")
    own = models and {name: value for name, value in models.items() if name != "client"}
    told = partial(predicted, job.experiment.objective, data, arrays["solution"])
    if found := scores(job.experiment.objective, data, arrays["solution"], own, told):
        job.folder.write("scores.csv", csv_text(found))
    summary["seconds"]["scores"] = time.perf_counter() - begun


def _keep_model(job: Job, data: FederatedData, solution: Arrays, summary: dict) -> None:
    """Write the coefficients of a linear model, with a picture where there is to be one."""
    found = of_solution(solution, data, job.experiment.data.units)
    for name, content in files_of(found).items():
        job.folder.write(name, content)
    if job.picture:
        from fcorun.reports.pictures.coefficients import draw_model

        begun, settings = time.perf_counter(), job.experiment.settings
        for name, content in draw_model(found, job.label, settings.cutoff, style=settings.style).items():
            job.folder.write(name, content)
        summary["seconds"]["picture"] += time.perf_counter() - begun
