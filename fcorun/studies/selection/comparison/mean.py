"""The simplest model of a client: the mean of its own targets, or the shares of its classes, without features."""

from dataclasses import replace

import numpy as np

from fcorun.results.models.score_intervals.scored_rows import HeldOutRows
from fcorun.studies.selection.comparison.comparison_options import MEAN


def predict_means(rows: HeldOutRows) -> HeldOutRows:
    """Predict each row by the mean of the targets of its client in the other folds.

    To the rows of the client, a mean adds one whose target is the mean over the rows of all clients in the other folds:
    a share of 0 would have an infinite log loss, and a client without rows in the other folds has the mean over all of
    them. All rows count alike, whatever their weights.
    """
    assert rows.fold is not None
    targets = rows.target.astype(float)[:, None]
    if rows.classes:
        targets = np.eye(len(rows.classes))[rows.target]
    means = np.empty_like(targets)
    for fold in np.unique(rows.fold):
        is_training = rows.fold != fold
        of_all = targets[is_training].mean(axis=0)
        for client in np.unique(rows.client):
            is_own = rows.client == client
            client_targets = targets[is_training & is_own]
            means[is_own & ~is_training] = (client_targets.sum(axis=0) + of_all) / (len(client_targets) + 1)
    if not rows.classes:
        return replace(rows, model=MEAN, prediction=means[:, 0])
    probability = means[:, 1] if rows.task == "binary" else means
    if rows.probability is None:  # the other models have no scores of probabilities
        probability = None
    return replace(rows, model=MEAN, prediction=means.argmax(axis=1), probability=probability)
