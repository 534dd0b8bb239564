"""A finished run asked for with another ``threshold``: its rows are scored again, and nothing is trained."""

from fcorun.base.records.formats import json_text, read_yaml, yaml_text
from fcorun.base.records.record import PAGE_FILES, Record, try_lock
from fcorun.data.datasets.dataset import FederatedData
from fcorun.experiment.build import bind_objective
from fcorun.experiment.classifiers import DEFAULT_THRESHOLD
from fcorun.runs.finish import score_splits
from fcorun.runs.job import Job


def has_other_threshold(record: Record, threshold: float | str) -> bool:
    """Return whether the scores of a finished record are those of another value of ``threshold``."""
    if record.status.get("status") != "done":
        return False
    section = record.summary.get("threshold") or {"rule": DEFAULT_THRESHOLD}
    return section["rule"] != threshold


def rescore(job: Job, data: FederatedData) -> bool:
    """Write the files of a finished record that depend on the threshold anew; return False if the record is in use.

    Its report pages are deleted. The summary is written last, so that an interrupted rescoring begins again. Raises the
    errors of a damaged record.
    """
    folder = job.run_folder
    folder.lock = try_lock(folder.path)
    if folder.lock is None:
        return False
    try:
        record = Record(folder.path)
        summary, status = dict(record.summary), record.status
        models = {name: values for name, values in record.personal.items() if name != "client"}
        job.experiment = bind_objective(job.experiment, data)
        results = score_splits(job, data, record.solution, models or None)
        earlier = (summary.get("threshold") or {}).get("warnings", [])
        sentences = [text for text in str(status.get("reason", "")).split("; ") if text and text not in earlier]
        job.reason = "; ".join([*sentences, *results.warnings])
        for name in PAGE_FILES:  # they show the scores at the other threshold
            (folder.path / name).unlink(missing_ok=True)
        files = dict(results.files)
        if results.curves is not None and (folder.path / "roc.png").exists():  # the pictures mark the threshold
            from fcorun.reports.pictures.curve_groups import CurveView
            from fcorun.reports.pictures.picture import render_pictures

            view = CurveView(results.curves, job.title_held_out_rows(data))
            files |= render_pictures(view, style=job.experiment.settings.style)
        for name, content in files.items():
            folder.write_file(name, content)
        config = read_yaml(folder.path / "config.yaml") | {"threshold": job.experiment.settings.threshold}
        folder.write_file("config.yaml", yaml_text(config))
        folder.write_status("done", job.label, job.reason)
        summary.pop("threshold", None)  # there is none without held-out rows and with the default
        folder.write_file("summary.json", json_text(summary | results.summary))
        folder.log(f"scored again with threshold={job.experiment.settings.threshold}")
    finally:
        folder.release()
    return True
