"""The synthetic clients with personal models, compared with their definition."""

import numpy as np
import pytest
from helpers import fails, not_none, snapshots

from fcorun import compose
from fcorun.base.config import build
from fcorun.data.datasets.heterogeneous import Heterogeneous
from fcorun.data.datasets.lowrank import LowRank
from fcorun.experiment.prepare import prepare

SMALL = {"clients": 3, "samples": 12, "features": 5}
KINDS = [{}, {"classes": 4}, {"shared_nonzeros": None}]
ALONE = {"shared": 0.0, "dense": 0.0, "sparse": 0.0}


def by_client(array: np.ndarray, clients: int) -> np.ndarray:
    return array.reshape(clients, -1, *array.shape[1:])


def models(**options) -> np.ndarray:
    return not_none(Heterogeneous(samples=8, **options).load().client_truths)["weights"]


@pytest.mark.parametrize("classes", [2, 3])
def test_shapes_and_truths(classes):
    data = Heterogeneous(**SMALL, classes=classes, shared_nonzeros=4, validation_samples=4).load()
    columns = (classes,) if classes > 2 else ()
    assert data.train.x.shape == (36, 5)
    assert data.train.y.shape == (36,)
    assert not_none(data.validation).x.shape == (12, 5)
    assert not_none(data.validation).y.shape == (12,)
    assert data.train.x.dtype == not_none(data.validation).x.dtype == np.float32
    assert data.train.y.dtype == not_none(data.validation).y.dtype == np.int32
    assert data.train.sizes.tolist() == [12, 12, 12]
    assert not_none(data.validation_offsets).tolist() == [0, 4, 8, 12]
    assert data.task == ("binary" if classes == 2 else "multiclass")
    assert data.classes == tuple(range(classes))
    assert not_none(data.truth)["weights"].shape == (5, *columns)
    assert not_none(data.truth)["bias"].shape == columns
    assert not_none(data.client_truths)["weights"].shape == (3, 5, *columns)
    assert not_none(data.client_truths)["bias"].shape == (3, *columns)
    assert not not_none(data.client_truths)["bias"].any()
    assert not_none(LowRank(clients=3, validation_samples=2).load().validation_offsets).tolist() == [0, 2, 4, 6]


@pytest.mark.parametrize("kind", KINDS)
def test_seeds(kind):
    small = SMALL | {"shared_nonzeros": 3} | kind
    one, same, other = (Heterogeneous(**small, seed=s).load() for s in (0, 0, 1))
    np.testing.assert_array_equal(one.train.x, same.train.x)
    np.testing.assert_array_equal(one.train.y, same.train.y)
    np.testing.assert_array_equal(not_none(one.client_truths)["weights"], not_none(same.client_truths)["weights"])
    assert not np.isclose(one.train.x, other.train.x).any()
    assert (not_none(one.client_truths)["weights"] != not_none(other.client_truths)["weights"]).any()
    longer = Heterogeneous(**small, validation_samples=0).load()
    np.testing.assert_array_equal(one.train.x, longer.train.x)
    np.testing.assert_array_equal(one.train.y, longer.train.y)
    assert longer.validation is longer.validation_offsets is None
    fingerprints = [Heterogeneous(**small, seed=s).fingerprint() for s in (0, 0, 1)]
    assert fingerprints[0] == fingerprints[1] != fingerprints[2]


@pytest.mark.parametrize("kind", KINDS)
def test_models_are_the_sum_of_their_parts(kind):
    shared, dense, sparse = (models(**kind, **ALONE | {part: 1.0}) for part in ALONE)
    np.testing.assert_allclose(
        models(**kind, shared=2.0, dense=0.3, sparse=0.7), 2 * shared + 0.3 * dense + 0.7 * sparse
    )
    data = Heterogeneous(**kind, shared=2.0).load()
    np.testing.assert_array_equal(not_none(data.truth)["weights"], 2 * shared[0])
    assert (shared == shared[0]).all()
    assert not np.isclose(dense[0], dense[1]).any()
    assert (sparse[0] != sparse[1]).any()


@pytest.mark.parametrize("classes", [2, 3])
def test_sparse_parts(classes):
    options = {"clients": 500, "features": 20, "classes": classes}
    shared = models(**options, **ALONE | {"shared": 1.0}, shared_nonzeros=6)[0]
    assert (np.count_nonzero(shared, axis=0) == 6).all()
    sparse = models(**options, **ALONE | {"sparse": 1.0}, nonzeros=3)
    assert (np.count_nonzero(sparse, axis=1) == 3).all()
    assert set(np.unique(sparse)) == set(np.unique(shared)) == {-1, 0, 1}
    # places and signs are uniform, each client's and each column's its own
    np.testing.assert_allclose((sparse != 0).mean(axis=0), 3 / 20, atol=0.06)
    assert sparse.sum() / np.count_nonzero(sparse) == pytest.approx(0, abs=0.1)
    if classes > 2:
        assert (sparse[..., 0] != sparse[..., 1]).any(axis=1).mean() > 0.95


@pytest.mark.parametrize("classes", [2, 3])
def test_dense_parts(classes):
    dense = models(clients=300, features=100, classes=classes, **ALONE | {"dense": 2.0})
    assert dense.mean() == pytest.approx(0, abs=0.005)
    assert dense.var() == pytest.approx(4 / 100, rel=0.03)
    np.testing.assert_allclose(np.linalg.norm(dense, axis=1), 2, rtol=0.4)
    shared = models(features=1000, classes=classes, **ALONE | {"shared": 3.0}, shared_nonzeros=None)[0]
    np.testing.assert_allclose(np.linalg.norm(shared, axis=0), 3, rtol=0.1)
    assert shared.all()


@pytest.mark.parametrize("scale", [0.0, 1.5])
def test_law_of_the_features(scale):
    data = Heterogeneous(clients=40, samples=500, features=30, mean_scale=scale, validation_samples=200).load()
    x = by_client(data.train.x, 40)
    means = x.mean(axis=1)
    assert means.var() == pytest.approx(scale**2 + 1 / 500, rel=0.12)
    assert (x - means[:, None]).var() == pytest.approx(1, rel=0.02)
    # validation rows share the mean of their client and are other rows
    gap = by_client(not_none(data.validation).x, 40).mean(axis=1) - means
    assert gap.var() == pytest.approx(1 / 500 + 1 / 200, rel=0.15)


def test_law_of_two_labels():
    data = Heterogeneous(clients=5, samples=40_000, features=10, validation_samples=40_000).load()
    for x, y in ((data.train.x, data.train.y), (not_none(data.validation).x, not_none(data.validation).y)):
        score = np.einsum("mnd,md->mn", by_client(x, 5), not_none(data.client_truths)["weights"])
        labels = by_client(y, 5)
        for low in range(-3, 3):
            near = (low <= score) & (score < low + 1)
            assert labels[near].mean() == pytest.approx((1 / (1 + np.exp(-score[near]))).mean(), abs=0.02)


@pytest.mark.slow
def test_law_of_several_labels():
    data = Heterogeneous(clients=5, samples=40_000, features=10, classes=3, validation_samples=0).load()
    score = np.einsum("mnd,mdk->mnk", by_client(data.train.x, 5), not_none(data.client_truths)["weights"])
    likely = np.exp(score) / np.exp(score).sum(axis=-1, keepdims=True)
    labels = by_client(data.train.y, 5)
    for k in range(3):
        for low in np.arange(0, 1, 0.2):
            near = (low <= likely[..., k]) & (likely[..., k] < low + 0.2)
            assert (labels[near] == k).mean() == pytest.approx(likely[near][:, k].mean(), abs=0.02)


def test_own_models_predict_best():
    data = Heterogeneous(validation_samples=400).load()
    x, y = by_client(not_none(data.validation).x, 32), by_client(not_none(data.validation).y, 32)

    def accuracy(w: np.ndarray) -> float:
        return ((np.einsum("mnd,md->mn", x, w) > 0) == y).mean()

    own, others = not_none(data.client_truths)["weights"], np.roll(not_none(data.client_truths)["weights"], 1, axis=0)
    assert accuracy(own) > accuracy(np.broadcast_to(not_none(data.truth)["weights"], own.shape)) + 0.04
    assert accuracy(np.broadcast_to(not_none(data.truth)["weights"], own.shape)) > accuracy(others) + 0.02


@pytest.mark.slow
def test_feddualavg_finds_the_shared_support_as_configured():
    config = compose(["data=heterogeneous", "algo=feddualavg", "eval_every=100"])
    assert prepare(config).data == Heterogeneous()
    last = snapshots(config)[-1].metrics
    assert float(last["support_f1"][0]) > 0.9
    assert float(last["val_accuracy"][0]) > 0.75


@pytest.mark.slow
def test_several_classes_run():
    small = [f"data.{key}={value}" for key, value in (SMALL | {"shared_nonzeros": 3, "classes": 4}).items()]
    config = compose(["data=heterogeneous", "algo=fedavg", "rounds=2", "clients_per_round=null", *small])
    assert {"support_f1", "val_accuracy", "recovery_error"} <= set(snapshots(config)[-1].metrics)


def test_mistakes():
    with fails("data.nonzeros=9", "data.features=8", "at most 8"):
        Heterogeneous(features=8, nonzeros=9)
    with fails("data.shared_nonzeros=9", "data.features=8", "at most 8"):
        Heterogeneous(features=8, shared_nonzeros=9)
    with fails("data.classes=1", "at least 2"):
        Heterogeneous(classes=1)
    with fails("data.sparse=-1", "non-negative"):
        build(Heterogeneous, {"sparse": -1}, "data")
    with fails("data: the training labels hold one class only"):
        Heterogeneous(clients=1, samples=1).load()


def test_another_population_shares_the_shared_part():
    one, other = (Heterogeneous(clients=4, features=8, population=p).load() for p in (0, 1))
    np.testing.assert_array_equal(not_none(one.truth)["weights"], not_none(other.truth)["weights"])
    assert not (not_none(one.client_truths)["weights"] == not_none(other.client_truths)["weights"]).all()
    assert not (one.train.x == other.train.x).any()
