"""The sums of ``algo=gram`` over all training rows of a selection, from those over the training rows of each fold.

A row is a training row of all folds but the one that holds it out. So the mean over all rows is the mean of the folds'
means, weighted by the weights of their training rows, and no site has to send it.
"""

from collections.abc import Sequence

import numpy as np

from fcorun.data.datasets.sites import Sites
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.methods.algorithms.gram import Gram
from fcorun.methods.communication.contracts import Identity
from fcorun.methods.objectives.least_squares import LeastSquares

Arrays = dict[str, np.ndarray]
_WORK = "work"  # the array of an answer that counts gradients and proxes


def sends_sums(experiment: PreparedExperiment) -> bool:
    """Return whether the algorithm is Gram and the uplink sends its numbers unchanged.

    A later fit on the same rows may then reuse them.
    """
    return type(experiment.algo) is Gram and isinstance(experiment.uplink, Identity)


def sums_add_up(experiment: PreparedExperiment) -> bool:
    """Return whether the sums over all training rows follow from those of the folds, unless a column has levels.

    They do not if all clients have the same weight in the mean, if each fold fills gaps by its own rows, or if each
    fold scales features by its own rows and the model has a ridge or no intercept.
    """
    data, objective = experiment.data, experiment.objective
    assert isinstance(data, Sites)
    if type(objective) is not LeastSquares or experiment.settings.client_weighting != "examples":
        return False
    if data.missing != "refuse":
        return False
    scaled_alike = data.standardize == "none"
    return scaled_alike or (data.standardize == "pooled" and objective.intercept and objective.ridge == 0)


def unscale_sums(arrays: Arrays, mean: np.ndarray, deviation: np.ndarray) -> Arrays:
    """Return an upload of Gram for features x (N, d), from that for features (x - mean) / deviation.

    The arrays "0", "1" and "2" are the gradient by the weights, the gradient by the bias, and the packed Hessian. A
    model with weights w and bias b for x predicts the same with the weights deviation * w and the bias b + <mean, w>
    for the scaled features, of which those with the deviation 0 are 0.
    """
    weight_gradient, bias_gradient, packed = (arrays[name][0] for name in "012")
    rows, columns = np.triu_indices(len(mean) + 1)
    matrix = np.zeros((len(mean) + 1, len(mean) + 1))
    matrix[rows, columns] = matrix[columns, rows] = packed

    def transform(vectors):  # derivatives by the parameters for the scaled features, to those for x, row by row
        return np.concatenate([deviation[:, None] * vectors[:-1] + np.outer(mean, vectors[-1]), vectors[-1:]])

    slopes = transform(np.append(weight_gradient, bias_gradient)[:, None])[:, 0]
    matrix = transform(transform(matrix).T)
    leaves = {"0": slopes[:-1], "1": slopes[-1], "2": matrix[rows, columns]}
    return arrays | {name: np.asarray(leaf, packed.dtype)[None] for name, leaf in leaves.items()}


def add_folds(parts: Sequence[tuple[float, Arrays]], n_folds: int) -> Arrays:
    """Return a site's answer for all training rows, the mean of its answers for the training rows of the folds.

    ``parts`` are the sum of the weights of the training rows of each fold, and the answer for them.
    """
    total = sum(weight for weight, _ in parts)
    added: Arrays = {}
    for name, first in parts[0][1].items():
        if name == _WORK:  # each row is a training row of all folds but one
            added[name] = np.sum([arrays[name] for _, arrays in parts], axis=0) // (n_folds - 1)
        else:
            mean = np.sum([weight / total * arrays[name] for weight, arrays in parts], axis=0, dtype=np.float64)
            added[name] = mean.astype(first.dtype)
    return added
