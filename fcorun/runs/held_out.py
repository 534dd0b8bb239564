"""Results of a run's model on held-out rows: thresholds, scores and predictions, as files of the record."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from fcorun.datasets.base import FederatedData
from fcorun.experiment.classifier_warnings import warn_constant_scores
from fcorun.experiment.decision_threshold import DEFAULT_THRESHOLD
from fcorun.models.choose_threshold import ChosenThresholds, choose_thresholds, fix_thresholds
from fcorun.models.curves import Curves, compute_curves
from fcorun.models.prediction_file import MAX_PREDICTED_ROWS, PERSONAL, PREDICTIONS_FILE, SHARED, TRAIN
from fcorun.models.predictions import predict_splits, predictions_csv
from fcorun.models.scores import tabulate_scores
from fcorun.models.site_scores import choose_site_threshold, compute_site_scores
from fcorun.models.survival import baseline_hazards
from fcorun.records.formats import csv_text
from fcorun.records.record import BASELINE_HAZARD_FILE
from fcorun.rows.site_rows import SiteRows
from fcorun.runs.hosts.leader import gather_predictions
from fcorun.runs.job import Job

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class HeldOutResults:
    """The results on held-out rows.

    Attributes:
        files: the contents of files by name. Of a model of times to events the baseline hazards, by the training rows;
            none other if nothing is held out.
        thresholds: the thresholds between two classes, or None.
        note: a sentence for the log, or "".
        curves: the curves of two classes, or None.
        model_warnings: sentences on the model that follow from its scores.
    """

    files: dict[str, str]
    thresholds: ChosenThresholds | None = None
    note: str = ""
    curves: Curves | None = None
    model_warnings: tuple[str, ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences for the reason of the status."""
        return self.model_warnings + (() if self.thresholds is None else self.thresholds.warnings)

    @property
    def summary(self) -> dict[str, Any]:
        """The sections of summary.json."""
        return {} if self.thresholds is None else {"threshold": self.thresholds.to_json()}


def score_held_out(job: Job, data: FederatedData, solution: Arrays, models: Arrays | None) -> HeldOutResults:
    """Score a run's model on its rows. The test rows are read here, once, and nothing is chosen by them.

    Args:
        solution: the parameters by name.
        models: the clients' personal models by parameter, or None.
    """
    experiment = job.experiment
    if isinstance(data.train, SiteRows):
        kinds = {SHARED: experiment.has_shared_model, PERSONAL: experiment.algo.has_personal_models}
        objective = experiment.objective
        thresholds, edge = choose_site_threshold(data, objective, solution, experiment.settings.threshold)
        scores = compute_site_scores(data, objective, solution, edge, [kind for kind in kinds if kinds[kind]])
        warnings = warn_constant_scores([row for row in scores if row["model"] == SHARED], data.classes)
        files = {"scores.csv": csv_text(scores)} if scores else {}
        return HeldOutResults(files, thresholds, model_warnings=warnings)
    gather = partial(gather_predictions, experiment.objective, data, solution)
    shared_model = solution if experiment.has_shared_model else None
    files = {}
    if data.task == "survival" and shared_model is not None:
        files[BASELINE_HAZARD_FILE] = baseline_hazards(experiment.objective, data, shared_model)
    predictions = predict_splits(experiment.objective, data, shared_model, models, gather)
    if not predictions:
        has_number = experiment.settings.threshold != DEFAULT_THRESHOLD
        return HeldOutResults(files, fix_thresholds(experiment.settings.threshold) if has_number else None)
    thresholds = choose_thresholds(predictions, experiment.settings.threshold)
    if thresholds is not None:
        predictions = thresholds.apply(predictions)
    scores = tabulate_scores(predictions)
    files["scores.csv"] = csv_text(scores)
    n_rows = sum(len(of_split) for of_split in predictions if of_split.split != TRAIN)
    note = ""
    if n_rows <= MAX_PREDICTED_ROWS:
        files[PREDICTIONS_FILE] = predictions_csv(predictions)
    else:
        note = f"{PREDICTIONS_FILE} is left out: it would have {n_rows:,} rows, more than {MAX_PREDICTED_ROWS:,}"
    curves = compute_curves(predictions, scores)
    if curves is not None:
        files |= curves.files
    return HeldOutResults(files, thresholds, note, curves)
