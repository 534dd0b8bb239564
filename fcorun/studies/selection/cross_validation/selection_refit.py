"""The refit: one run on all training rows with the chosen strength, in a folder beside the files of the selection."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fcorun.base.config import GRID_SECTIONS
from fcorun.base.records.record import RECORD_FILES, REFIT_FOLDER, Record, RunFolder
from fcorun.base.system.files import remove_path
from fcorun.data.datasets.dataset import FederatedData
from fcorun.experiment.experiment import PreparedExperiment, describe_remaining_descent
from fcorun.experiment.optimality_gap import OptimalityGap
from fcorun.experiment.prepare import replace_plugins
from fcorun.runs.job import Watcher
from fcorun.runs.run_experiments import run_experiments
from fcorun.studies.selection.cross_validation.selection_options import Selection


def apply_choice(experiment: PreparedExperiment, selection: Selection) -> PreparedExperiment:
    """Return the experiment of the refit, with the chosen numbers and the chosen threshold."""
    chosen = selection.path.apply(experiment, selection.choice.chosen_index)
    plugins = {section: getattr(chosen, section) for section in GRID_SECTIONS}
    return replace_plugins(experiment, replace(chosen.settings, threshold=selection.threshold), **plugins)


def refit(experiment: PreparedExperiment, folder: Path, watch: Watcher | None = None) -> Record:
    """Return the record of an experiment in FOLDER/refit.

    If FOLDER/refit has the record of another choice, the new record is made beside it, in FOLDER/refit.next, and
    replaces it once it is complete. Raises UserError as ``run`` does.
    """
    identity = experiment.identity
    final, staged = folder / REFIT_FOLDER, folder / f"{REFIT_FOLDER}.next"
    final_identity, staged_identity = _read_identity(final), _read_identity(staged)
    if not final_identity and staged_identity:  # a move was interrupted: neither folder has all files
        _remove_record(final)
    if final_identity in ("", identity):
        (record,) = run_experiments([experiment], [final], watch)
        _remove_record(staged)
        return record
    if staged_identity not in ("", identity):
        _remove_record(staged)
    run_experiments([experiment], [staged], watch)
    _remove_record(final)
    final.mkdir(exist_ok=True)
    for path in sorted(staged.iterdir(), key=lambda path: path.name == "status.json"):  # last, as it makes a record
        path.replace(final / path.name)
    staged.rmdir()
    return Record(final)


def _read_identity(folder: Path) -> str:
    """Return the identity of the record in a folder; empty if the folder has no record."""
    return Record(folder).status.get("identity", "")


def _remove_record(folder: Path) -> None:
    """Remove the record in a folder, or the files that an interrupted move left."""
    if identity := _read_identity(folder):
        RunFolder(folder, identity).remove()
    for name in RECORD_FILES:
        remove_path(folder / name)


def warn_unfinished_refit(experiment: PreparedExperiment, data: FederatedData, summary: Mapping[str, Any]) -> list[str]:
    """Return a warning if the refit, whose ``summary`` is given, had not converged.

    The runs of the path had the same rounds and rates, so that the choice is one of unconverged runs, too.
    """
    certificate = summary.get("certificate") or (summary.get("relaxed") or {}).get("certificate_of_lasso") or {}
    descent = summary.get("unfinished")
    if certificate.get("near") is False:
        reason = OptimalityGap(**certificate).describe(experiment, data, falling=bool(descent))
    elif descent:
        reason = describe_remaining_descent(descent)
    else:
        return []
    return [
        "the choice is of unfinished runs: those of the path had the rounds and rates of the refit, and ended like "
        f"it; of the refit, {reason}"
    ]
