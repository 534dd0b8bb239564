"""The sums of algo=gram over all rows follow from those over the rows that folds leave."""

import numpy as np
import pytest
from helpers import composed

from fcorun.experiment.prepare import prepare
from fcorun.sites.plan.messages.run_messages import sums_add_up
from fcorun.sites.server.sums_of_folds import add_folds, unscale_sums


def upload_of(x, y, weight):
    """Return Gram's upload of a client with an intercept, for the weighted mean of (prediction - y)^2."""
    columns = np.column_stack([x, np.ones(len(x))])
    share = (weight / weight.sum())[:, None]
    slopes = -2 * columns.T @ (share[:, 0] * y)
    matrix = 2 * columns.T @ (share * columns)
    leaves = (slopes[:-1], slopes[-1], matrix[np.triu_indices(len(matrix))])
    work = {"work": np.array([[len(x) * len(slopes), 0]])}
    return {str(number): np.asarray(leaf)[None] for number, leaf in enumerate(leaves)} | work


def round_to(dtype, upload):
    return {name: values if name == "work" else values.astype(dtype) for name, values in upload.items()}


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 1e-5)])
def test_folds_with_their_own_scaling_add_up_to_all_rows(dtype, tolerance):
    rng = np.random.default_rng(0)
    x, y, weight = rng.normal(3, 2, (30, 4)), rng.normal(size=30), rng.uniform(1, 2, 30)
    fold = np.arange(30) % 3
    x[:, 1] = fold == 0  # constant among the rows that fold 0 leaves
    parts = []
    for k in range(3):
        of_fold = fold != k
        mean, deviation = x[of_fold].mean(axis=0), x[of_fold].std(axis=0)
        factor = np.divide(1, deviation, out=np.zeros(4), where=deviation > 0)
        scaled = round_to(dtype, upload_of((x[of_fold] - mean) * factor, y[of_fold], weight[of_fold]))
        parts.append((weight[of_fold].sum(), unscale_sums(scaled, mean, deviation)))
    expected = round_to(dtype, upload_of(x, y, weight))
    added = add_folds(parts, 3)
    assert list(added) == list(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(added[name], values, rtol=tolerance, atol=tolerance)
        assert added[name].dtype == values.dtype


@pytest.mark.parametrize(
    ("overrides", "adds_up"),
    [
        ([], True),
        (["data.standardize=pooled"], True),
        (["data.standardize=per_client"], False),
        (["data.standardize=pooled", "objective.intercept=false"], False),
        (["data.standardize=pooled", "objective.ridge=0.1"], False),
        (["objective.intercept=false", "objective.ridge=0.1"], True),
        (["client_weighting=uniform"], False),
        (["data.missing=mean"], False),
    ],
)
def test_sums_add_up_where_a_linear_map_relates_the_features(overrides, adds_up):
    experiment = prepare(composed("data=sites", "data.target=y", "data.task=regression", "algo=gram", *overrides))
    assert sums_add_up(experiment) is adds_up
