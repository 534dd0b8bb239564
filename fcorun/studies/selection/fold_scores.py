"""Scores as metrics of a selection: ``metric=brier`` is measured on the predictions that the folds keep."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from jaxtyping import Float

from fcorun.base.errors import UserError
from fcorun.base.metrics import Metric
from fcorun.base.records.record import OUT_OF_FOLD, SHARED
from fcorun.data.datasets.dataset import FederatedData
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.results.models.predictions import describe_output
from fcorun.results.scores.score import Score, all_scores, find_score
from fcorun.results.scores.weighted_rows import WeightedRows
from fcorun.studies.selection.path_fit import PathFit
from fcorun.studies.selection.study import Study

_PREFIX = "val_"


def list_fold_scores(experiment: PreparedExperiment, data: FederatedData) -> list[str]:
    """Return the scores by which models are compared and that can choose, without the metrics that runs measure."""
    if data.train.stays_at_sites or not experiment.has_shared_model:
        return []
    names = []
    for score in all_scores().values():
        is_measured = _PREFIX + score.name in experiment.metrics or score.metric in experiment.metrics
        if score.judges(data.target_task) and score.places.verdict is not None and not is_measured:
            names.append(score.name)
    return names


def find_fold_score(experiment: PreparedExperiment, metric: str) -> Score | None:
    """Return the score that the metric of a selection names; None for a metric that runs measure."""
    if metric in experiment.metrics:
        return None
    return find_score(metric.removeprefix(_PREFIX))


def find_metric(experiment: PreparedExperiment, name: str) -> Metric:
    """Return the declaration of the metric of a selection."""
    score = find_fold_score(experiment, name)
    if score is None:
        return experiment.metrics[name]
    return Metric(name, f"validation {score.label}", higher=score.higher)


def check_fold_score(study: Study, metric: str, is_nested: bool) -> None:
    """Raise UserError if the folds of a study do not keep the predictions that a score needs."""
    score = find_fold_score(study.experiment, metric)
    if score is None:
        return
    if is_nested:
        raise UserError(f"`metric={score.name}` needs predictions, which the inner folds of outer_folds do not keep: "
                        "give `metric=loss`, or leave outer_folds out")  # fmt: skip
    if not study.keeps_held_out:
        raise UserError(f"`metric={score.name}` needs the predictions of all rows at all points, too many here: give "
                        " fewer points, or `metric=loss`")  # fmt: skip


def add_fold_scores(study: Study, fits: Mapping[str, PathFit], metric: str) -> dict[str, PathFit]:
    """Return the fits, those of the folds with the score that ``metric`` names; as they are for another metric.

    Raises UserError if the rows of a fold do not define the score.
    """
    score = find_fold_score(study.experiment, metric)
    if score is None:
        return dict(fits)
    scored = dict(fits)
    for name, fit in fits.items():
        outputs = fit.held_out.get(SHARED)
        if outputs is None:
            continue
        values = _score_outputs(study, np.flatnonzero(study.subsets[name].validation), outputs, score)
        is_finite = np.isfinite(outputs).reshape(len(values), -1).all(axis=1)
        if is_finite.any() and np.isnan(values[is_finite]).all():
            raise UserError(f"`metric={score.name}` is undefined on the rows that {name} holds out: give "
                            "`metric=loss`, or fewer folds")  # fmt: skip
        scored[name] = replace(fit, metrics=fit.metrics | {metric: values})
    return scored


def _score_outputs(study: Study, rows: np.ndarray, outputs: np.ndarray, score: Score) -> Float[np.ndarray, " P"]:
    """Return the score of the outputs of P runs for some training rows; nan of a run that diverged."""
    data = study.data
    clients = data.client_of_row("train")
    values = []
    for output in outputs:
        predictions = describe_output(
            study.experiment.objective,
            data,
            data.train,
            output,
            clients=clients,
            split=OUT_OF_FOLD,
            model=SHARED,
            index=rows,
        )
        value = np.nan
        if np.isfinite(output).all():
            value = float(score.of_rows(WeightedRows.each_once(predictions.to_scored_rows()))[0, 0])
        values.append(value)
    return np.array(values)
