"""The summary of a run: final, best and tail-averaged metrics, and what it ran on."""

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
from fcorun.metrics import COUNTERS, aggregate, custom_metrics, to_json
from fcorun.objectives.base import is_linear_model
from fcorun.runs.job import Job
from fcorun.sections import IDENTITY_SECTIONS
from fcorun.sources.catalogue import read_source


def summarize(job: Job, data: FederatedData, status: str, times: dict[str, float]) -> dict[str, Any]:
    """The content of summary.json."""
    settings, rows = job.experiment.settings, job.rows
    own = to_json(custom_metrics(job.experiment.objective.metrics))
    last = rows[-1] if rows else dict.fromkeys(COUNTERS, 0)
    return {
        "status": status,
        "label": job.label,
        "round": last["round"],
        **aggregate(rows, settings.tail_rounds, job.experiment.metrics, stopped=job.stopped),
        **({"stopped": True} if job.stopped else {}),
        **({"metrics": own} if own else {}),
        "tail_rounds": settings.tail_rounds,
        "cutoff": settings.cutoff,
        "linear": is_linear_model(type(job.experiment.objective)),
        "sources": {section: _source(type(getattr(job.experiment, section))) for section in IDENTITY_SECTIONS},
        "strength": build_problem(job.experiment, data).regularizer.strength_or_none,
        **({"leaves_psi_out": True} if job.experiment.ignores_regularizer else {}),
        "reference": job.optimum,
        "certificate": job.certificate,
        "unfinished": job.remaining_descent,
        "moved": job.movement,
        "drawn": job.depends_on_seed,
        "curvature": job.resolved_values,
        **{name: last.get(name) for name in COUNTERS[2:] if name in last or "edge" not in name},
        "seconds": times,
        "data": {
            "clients": data.n_clients,
            "examples": data.n_rows,
            **({} if data.generated is None else {"evaluated_examples": len(data.y)}),
            "validation_examples": 0 if data.y_val is None else len(data.y_val),
            **({} if data.y_test is None else {"test_examples": len(data.y_test)}),
            "features": int(data.x.shape[1]),
            "feature_names": list(data.features),
            "task": data.task,
            **({} if job.experiment.data.units else {"units": False}),
            "classes": [str(c) for c in data.classes],
            "fingerprint": job.experiment.fingerprint,
            **({"class_type": type(data.classes[0]).__name__} if data.classes else {}),
            **({"scale": data.scale} if data.scale != 1 else {}),
            **({"standardized": _plain(data.standardized)} if data.standardized else {}),
            **({} if data.feature_range is None else {"limits": data.feature_range.astype(float).tolist()}),
            **({"client_names": list(data.clients)} if data.feature_range is not None and data.clients else {}),
        },
        **describe_environment(),
        "devices": job.n_devices,
        "hosts": job.n_hosts,
        **(
            {"rows": "all" if data.host_bounds is None else "own"} if job.n_hosts > 1 and data.generated is None else {}
        ),
    }


def _source(plugin: type) -> dict[str, Any]:
    """Return where a plug-in comes from, with its entries of BibTeX, so that nobody has to import its class for it."""
    try:
        found = read_source(plugin)
    except UserError as error:
        return {"text": "", "entries": [], "trouble": str(error)}
    return {"text": found.text, "entries": [entry.text for entry in found.entries]}


def _plain(standardized: dict) -> dict:
    """The same with lists instead of arrays; those of each client are in scaling.npz."""
    if standardized["by"] == "per_client":
        return {"by": "per_client"}
    return {key: np.asarray(value).tolist() for key, value in standardized.items()}


@cache
def describe_environment() -> dict[str, Any]:
    """Versions, the git commit of fcorun where it is known, and the device."""
    packages = ("fcorun", "jax", "jaxlib", "numpy", "hydra-core")
    device = jax.devices()[0]
    return {
        "versions": {"python": platform.python_version(), **{p: version(p) for p in packages}},
        "git": _commit(Path(__file__).parent.parent),
        "device": f"{device.platform}: {device.device_kind}",
        "platform": f"{sys.platform} {platform.machine()}",
    }


def _commit(package: Path) -> str | None:
    """The commit of fcorun in this folder: of a checkout as git says, else as was noted when it was built."""
    if (package.parent / ".git").exists():
        asked = ["git", "-C", str(package), "rev-parse", "--verify", "-q", "HEAD"]
        return subprocess.run(asked, capture_output=True, encoding="utf-8", check=False).stdout.strip() or None
    built = package / "commit"
    return built.read_text(encoding="utf-8").strip() if built.exists() else None
