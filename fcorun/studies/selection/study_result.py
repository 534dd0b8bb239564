"""Result of a study: the study file, warnings about the runs, and their cost."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fcorun.base.records.formats import json_text
from fcorun.base.system.files import write_atomically
from fcorun.data.datasets.dataset import FederatedData
from fcorun.experiment.experiment import MIN_EVALUATIONS, PreparedExperiment
from fcorun.methods.algorithms.algorithm import Baseline
from fcorun.studies.selection.folds import count_rows
from fcorun.studies.selection.path import RegularizationPath
from fcorun.studies.selection.path_fit import PathFit, find_runs
from fcorun.studies.selection.study import Study


@dataclass(frozen=True, kw_only=True, repr=False)
class StudyResult:
    """Result of a study.

    Attributes:
        study: the study, with its folder.
        path: the values of the path that the result is about.
        fits: the fit of each subset, by name.
        warnings: a sentence each.
    """

    study: Study
    path: RegularizationPath
    fits: Mapping[str, PathFit]
    warnings: Sequence[str]

    def __repr__(self) -> str:
        return f"{type(self).__name__}('{self.folder}')"

    @property
    def folder(self) -> Path:
        return self.study.folder

    @property
    def experiment(self) -> PreparedExperiment:
        return self.study.experiment

    @property
    def data(self) -> FederatedData:
        return self.study.data

    @property
    def computed_fits(self) -> Mapping[str, PathFit]:
        """All fits that the study has computed, by the name of their subset."""
        return self.fits

    @property
    def cost(self) -> dict[str, int]:
        """The runs, rounds, bytes_up and bytes_down of all fits together; if sites send one upload for all runs, it
        counts once."""
        fits = self.computed_fits.values()
        n_tables = max(self.experiment.settings.imputations, 1)
        cost = {"runs": len(fits) * len(self.study.path.runs.values) * n_tables}
        for name in ("rounds", "bytes_up", "bytes_down"):
            shared = name == "bytes_up" and self.experiment.algo.traits.common_uploads
            add = np.max if shared and self.data.train.stays_at_sites else np.sum
            cost[name] = int(sum(add(fit.counts[name]) for fit in fits))
        return cost


def write_study_file(
    result: StudyResult, content: Mapping[str, Any], warnings: Sequence[str], seconds: float | None
) -> None:
    """Write the study file: what all studies have, and the ``content`` of the command.

    Without ``seconds``, the time that the study took, the status is "running".
    """
    study, path = result.study, result.path
    common = {
        "identity": study.identity,
        "label": study.label,
        "status": "running" if seconds is None else "done",
        "param_name": path.param_name,
        "range": path.range_description,
    }
    end = {"rows": count_rows(study.data), "cost": result.cost, "warnings": [*warnings]}
    if seconds is not None:
        end["seconds"] = seconds
    write_atomically(study.folder / study.study_file, json_text({**common, **content, **end}))


def warn_unconverged(fits: Mapping[str, PathFit], falling_advice: str, index: int | None = None) -> list[str]:
    """Return a warning about the runs whose objective was still falling, and about those without a certificate.

    Pass ``index``, a position of the path, to count the runs at this value, too.
    """
    warnings = []
    advice_by_state = {"falling": falling_advice, "not certified": "a larger algo.max_iterations may help"}
    for state, advice in advice_by_state.items():
        runs = find_runs(fits, state)
        if runs.any():
            at_choice = "" if index is None else f", {runs[:, index].sum()} of {len(runs)} at the chosen value"
            description = "objective still falling" if state == "falling" else state
            warnings.append(f"{description}: {runs.sum()} of {runs.size} runs{at_choice}: {advice}")
    return warnings


def warn_few_evaluations(experiment: PreparedExperiment) -> list[str]:
    """Return a warning if runs have too few evaluations for a judgement of their convergence.

    An algorithm that is done after a few rounds has no more.
    """
    algo, settings = experiment.algo, experiment.settings
    evaluations = -(-settings.rounds // settings.eval_every) + 1
    if isinstance(algo, Baseline) or evaluations >= MIN_EVALUATIONS:
        return []
    if algo.computed_rounds is not None and algo.computed_rounds < MIN_EVALUATIONS:
        return []
    return [
        f"convergence was not judged, since runs have fewer than {MIN_EVALUATIONS} evaluations: a smaller "
        "eval_every gives more"
    ]


def format_cost(cost: Mapping[str, int]) -> str:
    """Return runs, rounds and bytes as text."""
    text = f"{cost['runs']} runs, {cost['rounds']:,} rounds"
    if cost["bytes_up"]:
        text += f", {_format_bytes(cost['bytes_up'])} up and {_format_bytes(cost['bytes_down'])} down"
    return text


def _format_bytes(count: float) -> str:
    power = min(int(math.log10(max(count, 1))) // 3, 4)
    return f"{count / 1000**power:.3g} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"
