"""Sums by client, from which means and deviations follow."""

import numpy as np
import pytest

from fcorun.data.rows.disk_matrix import DiskMatrix
from fcorun.data.rows.rows import deviation_from_sums, sum_columns_by_client, sum_in_order
from fcorun.data.tables.scaling import Scaling


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int8])
def test_a_sum_depends_on_its_client_and_column_alone(dtype):
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((700, 5)) * 10.0 ** np.arange(-1, 4)).clip(-100, 100).astype(dtype)
    client = np.sort(rng.integers(0, 6, 700))
    sums = sum_columns_by_client(x, client)
    np.testing.assert_allclose(sums, [x[client == m].sum(axis=0, dtype=np.float64) for m in range(6)], rtol=1e-12)
    for m in range(6):
        alone = x[client == m][:, [3]]
        np.testing.assert_array_equal(sum_columns_by_client(alone, np.zeros(len(alone), int)), sums[[m]][:, [3]])
    np.testing.assert_array_equal(sum_columns_by_client(np.asfortranarray(x), client), sums)


def test_rows_on_disk_have_the_same_sums():
    rng = np.random.default_rng(1)
    x, client = rng.standard_normal((300, 4)), np.sort(rng.integers(0, 5, 300))
    np.save("x.npy", x[::-1])
    on_disk = DiskMatrix(np.load("x.npy", mmap_mode="r"), np.arange(300)[::-1])
    mean = x.mean(axis=0)
    np.testing.assert_allclose(sum_columns_by_client(on_disk, client), sum_columns_by_client(x, client), rtol=1e-12)
    squares = sum_columns_by_client(x, client, mean)
    np.testing.assert_allclose(sum_columns_by_client(on_disk, client, mean), squares, rtol=1e-12)
    np.testing.assert_allclose(deviation_from_sums(sum_in_order(squares), 300, mean), x.std(axis=0), rtol=1e-12)


@pytest.mark.parametrize("value", [0.0, 0.1, 1 / 3, -7e9, 1e-300, 123456789.123])
@pytest.mark.parametrize("n_rows", [1, 7, 1000, 30_000])
def test_a_constant_column_has_no_deviation(value, n_rows):
    client = np.arange(n_rows) * min(n_rows, 7) // n_rows
    scaling = Scaling.fit(np.full((n_rows, 1), value), client)
    assert scaling.deviation.tolist() == [0.0]
    assert scaling.factor.tolist() == [0.0]


def test_a_column_that_hardly_varies_has_its_deviation():
    x = 1e6 + (np.arange(1000) % 2)[:, None]
    np.testing.assert_allclose(Scaling.fit(x, np.zeros(1000, int)).deviation, [0.5], rtol=1e-9)


@pytest.mark.parametrize(
    ("mean", "variance", "scale"), [([1, 2], [1], [1]), ([1, 2], [1, 1], [1, np.inf]), ([1], [1], [0])]
)
def test_a_damaged_scaling_is_refused(mean, variance, scale):
    with pytest.raises(ValueError, match="positive scales"):
        Scaling.from_dict({"mean_": mean, "var_": variance, "scale_": scale})
