"""Out-of-fold predictions: each training row by the chosen fit of the fold that held the row out."""

from collections.abc import Mapping, Sequence

import numpy as np

from fcorun.base.records.record import OUT_OF_FOLD, PERSONAL, SHARED
from fcorun.data.datasets.dataset import FederatedData
from fcorun.methods.objectives.objective import Objective
from fcorun.results.models.predictions import Predictions, describe_output
from fcorun.studies.selection.path_fit import PathFit
from fcorun.studies.selection.study import Study


def predict_out_of_fold(study: Study, fits: Mapping[str, PathFit], chosen: Mapping[str, int]) -> list[Predictions]:
    """Return the predictions for all training rows by the fits of the folds, of shared and of personal models.

    ``chosen`` has the position on the path of the fit of each fold, by the fold's name. Returns no predictions if the
    rows are too many to be kept, and none of models that diverged in some fold.
    """
    rows, outputs = {}, []
    for number, (name, index) in enumerate(chosen.items(), start=1):
        rows[number] = np.flatnonzero(study.subsets[name].validation)
        outputs.append({model: values[index] for model, values in fits[name].held_out.items()})
    return join_folds(study.experiment.objective, study.data, rows, outputs)


def join_folds(
    objective: Objective,
    data: FederatedData,
    rows: Mapping[int, np.ndarray],
    outputs: Sequence[Mapping[str, np.ndarray]],
) -> list[Predictions]:
    """Return the predictions of all training rows, by each kind of model whose outputs are finite in every fold.

    Args:
        rows: the rows that each fold holds out, by the number of the fold, from 1; each row is held out once.
        outputs: the outputs for these rows, by SHARED or PERSONAL model.
    """
    number = np.repeat(list(rows), [len(of_fold) for of_fold in rows.values()])
    order = np.argsort(np.concatenate(list(rows.values())))
    predictions = []
    for model in (SHARED, PERSONAL):
        if not all(model in of_fold and np.isfinite(of_fold[model]).all() for of_fold in outputs):
            continue
        described = describe_output(
            objective,
            data,
            data.train,
            np.concatenate([of_fold[model] for of_fold in outputs])[order],
            clients=data.client_of_row("train"),
            split=OUT_OF_FOLD,
            model=model,
            fold=number[order],
        )
        predictions.append(described)
    return predictions
