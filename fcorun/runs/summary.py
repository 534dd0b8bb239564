"""The summary of a run: final, best and tail-averaged metrics, its data, and the environment it ran in."""

import platform
import subprocess
import sys
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fcorun.datasets.base import FederatedData
from fcorun.errors import UserError
from fcorun.experiment.build import build_problem
from fcorun.experiment.experiment import Experiment
from fcorun.metrics import COUNTERS, aggregate, custom_metrics, to_json
from fcorun.objectives.base import is_linear_model
from fcorun.runs.job import Job
from fcorun.sections import IDENTITY_SECTIONS
from fcorun.sources.catalogue import read_source


def summarize(job: Job, data: FederatedData, status: str, times: dict[str, float]) -> dict[str, Any]:
    """Return the content of summary.json."""
    experiment, settings, rows = job.experiment, job.experiment.settings, job.rows
    last = rows[-1] if rows else dict.fromkeys(COUNTERS, 0)
    summary: dict[str, Any] = {"status": status, "label": job.label, "round": last["round"]}
    summary |= aggregate(rows, settings.tail_rounds, experiment.metrics, stopped=job.stopped)
    if job.stopped:
        summary["stopped"] = True
    objective_metrics = to_json(custom_metrics(experiment.objective.metrics))
    if objective_metrics:
        summary["metrics"] = objective_metrics
    summary |= {
        "tail_rounds": settings.tail_rounds,
        "cutoff": settings.cutoff,
        "linear": is_linear_model(type(experiment.objective)),
        "sources": {section: _describe_source(type(getattr(experiment, section))) for section in IDENTITY_SECTIONS},
        "strength": build_problem(experiment, data).regularizer.strength_or_none,
    }
    if experiment.ignores_regularizer:
        summary["leaves_psi_out"] = True
    summary |= {
        "reference": job.optimum,
        "certificate": job.certificate,
        "unfinished": job.remaining_descent,
        "moved": job.movement,
        "drawn": job.depends_on_seed,
        "curvature": job.resolved_values,
    }
    for name in COUNTERS[2:]:
        if name in last or "edge" not in name:
            summary[name] = last.get(name)
    summary |= {
        "seconds": times,
        "data": _summarize_data(data, experiment),
        **describe_environment(),
        "devices": job.n_devices,
        "hosts": job.n_hosts,
    }
    if job.n_hosts > 1 and data.generated is None:
        summary["rows"] = "all" if data.host_bounds is None else "own"
    return summary


def _summarize_data(data: FederatedData, experiment: Experiment) -> dict[str, Any]:
    """Return the section on the data in summary.json."""
    summary: dict[str, Any] = {"clients": data.n_clients, "examples": data.n_rows}
    if data.generated is not None:
        summary["evaluated_examples"] = len(data.y)
    summary["validation_examples"] = 0 if data.y_val is None else len(data.y_val)
    if data.y_test is not None:
        summary["test_examples"] = len(data.y_test)
    summary |= {"features": int(data.x.shape[1]), "feature_names": list(data.features), "task": data.task}
    if not experiment.data.units:
        summary["units"] = False
    summary |= {"classes": [str(label) for label in data.classes], "fingerprint": experiment.fingerprint}
    if data.classes:
        summary["class_type"] = type(data.classes[0]).__name__
    if data.scale != 1:
        summary["scale"] = data.scale
    if data.standardized:
        summary["standardized"] = _standardization_to_json(data.standardized)
    if data.feature_range is not None:
        summary["limits"] = data.feature_range.astype(float).tolist()
        if data.clients:
            summary["client_names"] = list(data.clients)
    return summary


def _describe_source(plugin: type) -> dict[str, Any]:
    """Return the source of a plug-in with its BibTeX entries, so that readers need not import the plug-in's class."""
    try:
        source = read_source(plugin)
    except UserError as error:
        return {"text": "", "entries": [], "trouble": str(error)}
    return {"text": source.text, "entries": [entry.text for entry in source.entries]}


def _standardization_to_json(standardized: dict) -> dict:
    """Return a standardization with lists instead of arrays. That of each client is in scaling.npz instead."""
    if standardized["by"] == "per_client":
        return {"by": "per_client"}
    return {key: np.asarray(value).tolist() for key, value in standardized.items()}


@cache
def describe_environment() -> dict[str, Any]:
    """Return versions, the git commit of fcorun if it is known, and the device."""
    packages = ("fcorun", "jax", "jaxlib", "numpy", "hydra-core")
    device = jax.devices()[0]
    return {
        "versions": {"python": platform.python_version(), **{p: version(p) for p in packages}},
        "git": _commit(Path(__file__).parent.parent),
        "device": f"{device.platform}: {device.device_kind}",
        "platform": f"{sys.platform} {platform.machine()}",
    }


def _commit(package: Path) -> str | None:
    """Return the git commit of fcorun in this folder: of a checkout, or as noted when the package was built."""
    if (package.parent / ".git").exists():
        command = ["git", "-C", str(package), "rev-parse", "--verify", "-q", "HEAD"]
        return subprocess.run(command, capture_output=True, encoding="utf-8", check=False).stdout.strip() or None
    note = package / "commit"
    return note.read_text(encoding="utf-8").strip() if note.exists() else None
