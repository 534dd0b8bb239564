"""The synthetic data of the FedSplit paper against their laws."""

from typing import Literal

import numpy as np
import pytest
from helpers import fails, not_none, snapshots

from fcorun import compose
from fcorun.base.config import build
from fcorun.data.datasets.logistic_synthetic import LogisticSynthetic
from fcorun.data.datasets.random_least_squares import RandomLeastSquares
from fcorun.experiment.prepare import prepare

SMALL = {"clients": 3, "samples": 12, "features": 5}
BOTH = [RandomLeastSquares, LogisticSynthetic]


def by_client(array: np.ndarray, clients: int) -> np.ndarray:
    return array.reshape(clients, -1, *array.shape[1:])


def spectra(data: RandomLeastSquares) -> np.ndarray:
    """The eigenvalues of A_j'A_j / n of each client, and of their mean."""
    x = by_client(data.load().train.x, data.clients)
    gram = x.mT @ x / data.samples
    return np.linalg.eigvalsh(np.concatenate([gram, gram.mean(axis=0, keepdims=True)]))


# ---------------------------------------------------------------- both


@pytest.mark.parametrize("kind", BOTH)
def test_shapes_and_truth(kind):
    data = kind(**SMALL, validation_samples=4).load()
    assert data.train.x.shape == (36, 5)
    assert data.train.y.shape == (36,)
    assert data.validation.x.shape == (12, 5)
    assert data.validation.y.shape == (12,)
    assert data.train.x.dtype == data.validation.x.dtype == np.float64
    assert data.train.sizes.tolist() == [12, 12, 12]
    assert data.validation_offsets.tolist() == [0, 4, 8, 12]
    assert len(data.clients) == 3
    assert np.linalg.norm(data.truth["weights"]) == pytest.approx(1)
    assert data.truth["bias"] == 0


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (RandomLeastSquares, {}),
        (RandomLeastSquares, {"condition": 10.0}),
        (RandomLeastSquares, {"condition": 10.0, "basis": "own", "heterogeneity": 1.0}),
        (LogisticSynthetic, {}),
        (LogisticSynthetic, {"heterogeneity": 1.0}),
    ],
)
def test_seeds(kind, options):
    small = SMALL | options
    one, same, other = kind(**small).load(), kind(**small).load(), kind(**small, seed=1).load()
    np.testing.assert_array_equal(one.train.x, same.train.x)
    np.testing.assert_array_equal(one.train.y, same.train.y)
    assert not np.isclose(one.train.x, other.train.x).any()
    assert not np.isclose(one.truth["weights"], other.truth["weights"]).any()
    longer = kind(**small, validation_samples=7).load()
    np.testing.assert_array_equal(one.train.x, longer.train.x)
    np.testing.assert_array_equal(one.train.y, longer.train.y)
    assert one.validation is one.validation_offsets is None
    assert kind(**small).fingerprint() == kind(**small).fingerprint() != kind(**small, seed=1).fingerprint()


@pytest.mark.parametrize("kind", BOTH)
def test_heterogeneity_changes_the_targets_alone(kind):
    alike, other = kind(**SMALL).load(), kind(**SMALL, heterogeneity=2.0).load()
    np.testing.assert_array_equal(alike.train.x, other.train.x)
    np.testing.assert_array_equal(alike.truth["weights"], other.truth["weights"])
    assert (alike.train.y != other.train.y).any()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "fewer"),
    [
        ("least_squares", ["data.samples=500"]),
        ("least_squares_conditioned", []),
        ("logistic_synthetic", []),
        ("logistic_synthetic", ["data.heterogeneity=1"]),
    ],
)
def test_fedavg_converges_as_configured(name, fewer):
    config = compose([f"data={name}", "algo=fedavg", "eval_every=50", *fewer])
    settings = prepare(config).settings
    assert settings.precision == "float64"
    assert settings.clients_per_round is settings.batch_size is None
    loss = [float(row.metrics["objective"][0]) for row in snapshots(config)]
    assert 0 <= loss[-2] - loss[-1] < 1e-4 * (loss[0] - loss[-1])


# ---------------------------------------------------------------- least squares


def test_least_squares_default_is_the_papers():
    data = prepare(compose(["data=least_squares"])).data
    assert isinstance(data, RandomLeastSquares)
    assert data == RandomLeastSquares()
    assert (data.clients, data.samples, data.features, data.noise**2) == (25, 5000, 100, 0.25)


@pytest.mark.parametrize("heterogeneity", [0.0, 0.5])
def test_least_squares_law(heterogeneity):
    data = RandomLeastSquares(
        clients=200, samples=400, features=8, heterogeneity=heterogeneity, validation_samples=100
    ).load()
    x, y = by_client(data.train.x, 200), by_client(data.train.y, 200)
    assert x.mean() == pytest.approx(0, abs=0.01)
    np.testing.assert_allclose(np.cov(data.train.x.T), np.eye(8), atol=0.02)
    # each client's least squares finds its own coefficients, up to a variance of 0.25 / 400
    own = np.linalg.solve(x.mT @ x, x.mT @ y[..., None])[..., 0]
    assert (own - not_none(data.truth)["weights"]).var() == pytest.approx(heterogeneity**2 + 0.25 / 400, rel=0.1)
    residual = y - np.einsum("mnd,md->mn", x, own)
    assert (residual**2).sum() / (200 * (400 - 8)) == pytest.approx(0.25, rel=0.02)
    residual = by_client(not_none(data.validation).y, 200) - np.einsum(
        "mnd,md->mn", by_client(not_none(data.validation).x, 200), own
    )
    assert residual.var() == pytest.approx(0.25 * (1 + 8 / 400), rel=0.05)


@pytest.mark.parametrize("basis", ["common", "own"])
@pytest.mark.parametrize("condition", [1.0, 10.0, 1e4])
def test_condition_is_exact(condition, basis):
    data = RandomLeastSquares(clients=4, samples=40, features=30, condition=condition, basis=basis)
    *clients, mean = spectra(data)
    for found in clients:
        assert found[0] == pytest.approx(1, rel=1e-9)
        assert found[-1] == pytest.approx(condition, rel=1e-9)
    if condition > 1:
        assert not np.allclose(clients[0], clients[1])
        # evenly in logarithm: as many below the middle as above it
        assert np.mean(np.array(clients) < condition**0.5) == pytest.approx(0.5, abs=0.15)
    if basis == "common":
        assert mean[-1] / mean[0] == pytest.approx(condition, rel=1e-9)
    elif condition > 1:
        assert mean[-1] / mean[0] < 0.7 * condition


def test_basis_is_common_or_own():
    def top(basis: Literal["common", "own"]) -> np.ndarray:
        x = by_client(RandomLeastSquares(**SMALL, condition=100.0, basis=basis).load().train.x, 3)
        return np.linalg.eigh(x.mT @ x)[1][..., -1]

    common, own = top("common"), top("own")
    np.testing.assert_allclose(abs(common @ common.T), 1)
    assert abs(own @ own.T)[np.triu_indices(3, 1)].max() < 0.99


def test_conditioned_validation_rows_have_the_same_covariance():
    data = RandomLeastSquares(
        clients=2, samples=50, features=4, condition=9.0, basis="own", validation_samples=100_000
    ).load()
    x, x_val = by_client(data.train.x, 2), by_client(not_none(data.validation).x, 2)
    np.testing.assert_allclose(x_val.mT @ x_val / 100_000, x.mT @ x / 50, atol=0.15)


def test_least_squares_mistakes():
    with fails("data.condition=0.5", "less than 1"):
        RandomLeastSquares(condition=0.5)
    with fails("data.samples=99", "data.features=100", "at least 100"):
        RandomLeastSquares(samples=99, condition=10.0)
    with fails("data.features=1", "data.condition=10.0", "at least 2"):
        RandomLeastSquares(features=1, condition=10.0)
    with fails("data.condition=-1", "positive"):
        build(RandomLeastSquares, {"condition": -1}, "data")
    with fails("data.basis=shared", "common"):
        build(RandomLeastSquares, {"basis": "shared"}, "data")
    with fails("data.noise=-0.5", "non-negative"):
        build(RandomLeastSquares, {"noise": -0.5}, "data")


# ---------------------------------------------------------------- logistic


def test_logistic_default_is_the_papers():
    data = prepare(compose(["data=logistic_synthetic"])).data
    assert isinstance(data, LogisticSynthetic)
    assert data == LogisticSynthetic()
    assert (data.clients, data.samples, data.features) == (10, 1000, 100)


@pytest.mark.parametrize("signal", [0.0, 1.0, 3.0])
def test_logistic_law(signal):
    data = LogisticSynthetic(clients=4, samples=50_000, features=6, signal=signal, validation_samples=10_000).load()
    assert data.task == "binary"
    assert data.classes == (-1, 1)
    assert data.train.y.dtype == np.int32
    assert np.linalg.norm(not_none(data.truth)["weights"]) == pytest.approx(signal)
    np.testing.assert_allclose(np.cov(data.train.x.T), np.eye(6), atol=0.02)
    for x, y in ((data.train.x, data.train.y), (not_none(data.validation).x, not_none(data.validation).y)):
        score = x @ not_none(data.truth)["weights"]
        for low, high in ((-2, -1), (-1, 0), (0, 1), (1, 2)):
            near = (low <= score) & (score < high)
            if near.sum() > 1000:
                assert y[near].mean() == pytest.approx((1 / (1 + np.exp(-score[near]))).mean(), abs=0.05)
    assert data.train.y.mean() == pytest.approx(0.5, abs=0.01)


def test_logistic_clients_have_their_own_coefficients():
    alike, other = (
        LogisticSynthetic(clients=6, samples=20_000, features=4, heterogeneity=h).load() for h in (0.0, 2.0)
    )

    def spread(data) -> float:
        x, y = by_client(data.train.x, 6), by_client(data.train.y, 6)
        return np.einsum("mnd,mn->md", x, y - 0.5).std(axis=0).mean() / 20_000

    assert spread(alike) < 0.01
    assert spread(other) > 0.1


def test_logistic_mistakes():
    with fails("data.signal=-1", "non-negative"):
        build(LogisticSynthetic, {"signal": -1}, "data")
    with fails("data: the training labels hold one class only"):
        LogisticSynthetic(clients=1, samples=1).load()
