"""Federated LASSO against its law."""

import numpy as np
import pytest
from helpers import fails, not_none

from fcorun.data.datasets.lasso import Lasso

pytestmark = pytest.mark.usefixtures("own_cache")


def test_lasso_shapes_and_truth():
    data = Lasso(clients=3, samples=5, features=7, nonzeros=2, validation_samples=4).load()
    assert data.train.x.shape == (15, 7)
    assert data.train.y.shape == (15,)
    assert data.train.x.dtype == data.train.y.dtype == np.float32
    assert not_none(data.validation).x.shape == (12, 7)
    assert not_none(data.validation).y.shape == (12,)
    assert data.train.sizes.tolist() == [5, 5, 5]
    assert not_none(data.validation_offsets).tolist() == [0, 4, 8, 12]
    assert len(data.clients) == 3
    assert data.task == "regression"
    np.testing.assert_array_equal(not_none(data.truth)["weights"], [1, 1, 0, 0, 0, 0, 0])
    assert not_none(data.truth)["bias"].shape == ()


def test_lasso_default_is_the_papers():
    data = Lasso().load()
    assert data.train.x.shape == (64 * 128, 1024)
    assert not_none(data.truth)["weights"].sum() == 512


@pytest.mark.parametrize("scale", [0.0, 0.5, 2.0])
def test_lasso_law(scale):
    data = Lasso(clients=40, samples=500, features=30, nonzeros=10, mean_scale=scale, validation_samples=200).load()
    x = data.train.x.reshape(40, 500, 30)
    means = x.mean(axis=1)
    # a mean of 500 rows adds 1/500 to the variance of the clients' own means
    assert means.var() == pytest.approx(scale**2 + 1 / 500, rel=0.12)
    assert (x - means[:, None]).var() == pytest.approx(1, rel=0.02)
    noise = data.train.y - data.train.x @ not_none(data.truth)["weights"] - not_none(data.truth)["bias"]
    assert abs(noise.mean()) < 0.03
    assert noise.var() == pytest.approx(1, rel=0.04)
    # validation rows share the mean of their client and are other rows
    gap = not_none(data.validation).x.reshape(40, 200, 30).mean(axis=1) - means
    assert gap.var() == pytest.approx(1 / 500 + 1 / 200, rel=0.15)
    noise = (
        not_none(data.validation).y
        - not_none(data.validation).x @ not_none(data.truth)["weights"]
        - not_none(data.truth)["bias"]
    )
    assert noise.var() == pytest.approx(1, rel=0.06)


def test_lasso_seeds():
    small = {"clients": 3, "samples": 4, "features": 5, "nonzeros": 2}
    one, same, other = Lasso(**small).load(), Lasso(**small).load(), Lasso(**small, seed=1).load()
    np.testing.assert_array_equal(one.train.x, same.train.x)
    assert not np.isclose(one.train.x, other.train.x).any()
    assert not_none(one.truth)["bias"] != not_none(other.truth)["bias"]
    longer = Lasso(**small, validation_samples=0).load()
    np.testing.assert_array_equal(one.train.y, longer.train.y)
    assert longer.validation is longer.validation_offsets is None
    assert Lasso(**small).fingerprint() == Lasso(**small).fingerprint() != Lasso(**small, seed=1).fingerprint()


def test_lasso_more_nonzeros_than_features():
    with fails("data.nonzeros=9", "data.features=8"):
        Lasso(features=8, nonzeros=9)
