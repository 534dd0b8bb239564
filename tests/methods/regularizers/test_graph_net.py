"""Graph-net on the voxels of a mask, compared with dense solvers."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.linear_model import Lasso

from fcorun import UserError
from fcorun.data.datasets.images import VoxelGrid
from fcorun.methods.regularizers import GraphNet

pytestmark = pytest.mark.usefixtures("x64")


def make_mask(seed=0, shape=(4, 5, 3)):
    """Draw a mask with holes."""
    mask = np.random.default_rng(seed).random(shape) < 0.7
    return VoxelGrid(mask, np.eye(4))


def difference_matrix(grid):
    """Return D, a row for each edge between voxels that share a face, by a plain loop; shape (edges, d)."""
    voxels = [tuple(voxel) for voxel in np.argwhere(grid.mask)]
    rows = []
    for i, voxel in enumerate(voxels):
        for axis in range(3):
            neighbour = tuple(p + (a == axis) for a, p in enumerate(voxel))
            if neighbour in voxels:
                row = np.zeros(len(voxels))
                row[i], row[voxels.index(neighbour)] = -1, 1
                rows.append(row)
    return np.array(rows)


def coordinate_descent_prox(z, threshold, smoothing, d):
    """Compute argmin threshold |w|_1 + smoothing / 2 |Dw|^2 + |w - z|^2 / 2 by coordinate descent."""
    hessian = np.eye(len(z)) + smoothing * d.T @ d
    w = np.zeros(len(z))
    for _ in range(3000):
        previous = w.copy()
        for j in range(len(z)):
            partial = z[j] - hessian[j] @ w + hessian[j, j] * w[j]
            w[j] = np.sign(partial) * max(abs(partial) - threshold, 0) / hessian[j, j]
        if np.abs(w - previous).max() < 1e-14:
            break
    return w


@pytest.mark.slow
@pytest.mark.parametrize(("t", "ratio"), [(0.3, 0.5), (8.0, 0.5), (50.0, 0.05), (2.0, 0.0), (0.7, 1.0), (0.0, 0.5)])
def test_the_prox_equals_that_of_a_dense_solver(t, ratio):
    grid = make_mask()
    psi = GraphNet(strength=0.4, l1_ratio=ratio).on_graph(grid.neighbours())
    z = np.random.default_rng(1).standard_normal(grid.n_voxels) * 3
    expected = coordinate_descent_prox(z, t * 0.4 * ratio, t * 0.4 * (1 - ratio), difference_matrix(grid))
    np.testing.assert_allclose(jax.jit(psi.prox)(jnp.asarray(z), t), expected, atol=1e-10)
    single = psi.prox(jnp.asarray(z, jnp.float32), jnp.float32(t))
    assert single.dtype == jnp.float32
    np.testing.assert_allclose(single, expected, atol=2e-4 * np.abs(z).max())
    # the same entries are exactly 0
    np.testing.assert_array_equal(np.asarray(psi.prox(jnp.asarray(z), t)) == 0, expected == 0)


@pytest.mark.slow
def test_the_value_and_the_subgradient():
    grid = make_mask(3)
    d = difference_matrix(grid)
    psi = GraphNet(strength=0.4, l1_ratio=0.25).on_graph(grid.neighbours())
    w = np.random.default_rng(2).standard_normal(grid.n_voxels)
    assert float(psi.value(jnp.asarray(w))) == pytest.approx(0.4 * (0.25 * np.abs(w).sum() + 0.375 * (d @ w) @ (d @ w)))
    expected = 0.4 * (0.25 * np.sign(w) + 0.75 * d.T @ d @ w)
    np.testing.assert_allclose(psi.subgradient(jnp.asarray(w)), expected, atol=1e-12)


@pytest.mark.slow
def test_columns_are_independent():
    grid = make_mask()
    psi = GraphNet(strength=0.4).on_graph(grid.neighbours())
    z = jnp.asarray(np.random.default_rng(1).standard_normal((grid.n_voxels, 3)))
    by_column = np.stack([psi.prox(z[:, k], 2.0) for k in range(3)], axis=1)
    np.testing.assert_allclose(psi.prox(z, 2.0), by_column, atol=1e-10)
    assert float(psi.value(z)) == pytest.approx(sum(float(psi.value(z[:, k])) for k in range(3)))


@pytest.mark.slow
def test_a_chain_is_the_smooth_lasso_of_scikit_learn():
    """The prox is a lasso with rows I for z and sqrt(smoothing) D for 0."""
    z = np.random.default_rng(4).standard_normal(30)
    d, smoothing, threshold = np.diff(np.eye(30), axis=0), 1.3, 0.2
    psi = GraphNet(strength=1.5, l1_ratio=0.2 / 1.5, graph="chain")
    x, y = np.concatenate([np.eye(30), np.sqrt(smoothing) * d]), np.concatenate([z, np.zeros(29)])
    lasso = Lasso(alpha=threshold / len(y), fit_intercept=False, tol=1e-14, max_iter=100_000).fit(x, y)
    np.testing.assert_allclose(psi.prox(jnp.asarray(z), 1.0), lasso.coef_, atol=1e-8)


@pytest.mark.slow
def test_many_runs_at_once():
    psi = GraphNet(strength=0.4).on_graph(make_mask().neighbours())
    z = jnp.asarray(np.random.default_rng(1).standard_normal((3, make_mask().n_voxels)))
    strengths = jnp.asarray([0.0, 0.5, 5.0])
    batched = jax.vmap(lambda s, z: replace(psi, strength=s).prox(z, 1.0))(strengths, z)
    single = [replace(psi, strength=float(s)).prox(row, 1.0) for s, row in zip(strengths, z, strict=True)]
    np.testing.assert_allclose(batched, np.stack(single), atol=1e-12)
    np.testing.assert_array_equal(batched[0], z[0])


def test_a_missing_graph_is_refused():
    with pytest.raises(UserError, match=r"reg\.graph=chain"):
        GraphNet(strength=1.0).prox(jnp.ones(3), 1.0)
    with pytest.raises(ValueError, match="voxels"):
        GraphNet(strength=1.0).on_graph(make_mask().neighbours()).check((7,))  # type: ignore[attr-defined]
