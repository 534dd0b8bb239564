"""The data of FedProx' experiments, compared with their law."""

import numpy as np
import pytest
from helpers import fails, not_none
from scipy.optimize import linprog

from fcorun import compose
from fcorun.base.config import build
from fcorun.data.datasets.synthetic_alpha_beta import SyntheticAlphaBeta
from fcorun.experiment.prepare import prepare


def client_means(**options) -> np.ndarray:
    """Return the feature means of each client, (M, d)."""
    train = SyntheticAlphaBeta(validation=0.0, most_samples=400, **options).load().train
    return train.sum_by_client(np.asarray(train.x, float)) / train.sizes[:, None]


def test_features_follow_the_law():
    """Compare variances with 1 + beta between clients, of which beta is common to all features, and j^-1.2 within."""
    means = client_means(beta=4.0, clients=1000, features=20)
    assert means.mean(axis=1).var() == pytest.approx(4 + 1 / 20, rel=0.1)
    assert (means - means.mean(axis=1, keepdims=True)).var() == pytest.approx(19 / 20, rel=0.05)
    train = SyntheticAlphaBeta(clients=300, features=5, most_samples=400).load().train
    deviations = train.x - (train.sum_by_client(train.x) / train.sizes[:, None])[train.client]
    np.testing.assert_allclose((deviations**2).sum(axis=0) / (len(train) - 300), np.arange(1, 6) ** -1.2, rtol=0.05)


def has_softmax_model(x: np.ndarray, y: np.ndarray) -> bool:
    """Return whether argmax(W x + b) is the label of each row for some W and b, by a linear program."""
    x = np.column_stack([x, np.ones(len(x))])
    margins = []
    for row, label in zip(x, y, strict=True):
        for other in {0, 1, 2} - {label}:
            margin = np.zeros((3, x.shape[1]))
            margin[label] = row
            margin[other] = -row
            margins.append(margin.ravel())
    return linprog(np.zeros(3 * x.shape[1]), -np.array(margins), -np.ones(len(margins)), bounds=(None, None)).success


def test_each_client_has_a_softmax_model_of_all_its_labels_and_all_clients_have_none():
    train = SyntheticAlphaBeta(clients=8, features=2, classes=3, most_samples=100).load().train
    for m in range(8):
        of_client = train.client == m
        assert has_softmax_model(train.x[of_client], train.y[of_client])
    assert not has_softmax_model(train.x, train.y)


def test_alpha_moves_no_label():
    one, other = (SyntheticAlphaBeta(alpha=alpha).load().train for alpha in (0.0, 9.0))
    assert (one.y == other.y).mean() > 0.999
    np.testing.assert_array_equal(one.x, other.x)


def test_sizes_are_lognormal_from_50_on_and_a_fifth_validates():
    data = SyntheticAlphaBeta(clients=4000, features=2, classes=2).load()
    n_validation = np.diff(not_none(data.validation_offsets))
    sizes = data.train.sizes + n_validation
    assert sizes.min() == 50
    assert np.median(sizes) == pytest.approx(50 + np.exp(4), rel=0.05)
    assert np.quantile(sizes, 0.841) == pytest.approx(50 + np.exp(6), rel=0.1)
    np.testing.assert_array_equal(n_validation, (0.2 * sizes).astype(int))
    bounded = SyntheticAlphaBeta(clients=4000, features=2, classes=2, most_samples=100, validation=0.0).load()
    np.testing.assert_array_equal(bounded.train.sizes, np.minimum(sizes, 100))


def test_the_file_is_the_class_and_bad_options_are_refused():
    assert prepare(compose(["data=synthetic_1_1"])).data == SyntheticAlphaBeta()
    with fails("data.classes=1 leaves nothing to tell apart"):
        SyntheticAlphaBeta(classes=1)
    with fails("data.validation=1.0 leaves no training rows"):
        SyntheticAlphaBeta(validation=1.0)
    with fails("data.alpha"):
        build(SyntheticAlphaBeta, {"alpha": -1}, "data")
