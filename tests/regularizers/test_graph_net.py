"""Graph-net on the voxels of a mask, against dense solvers."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.linear_model import Lasso

from fcorun import UserError
from fcorun.datasets.voxel_grid import VoxelGrid
from fcorun.regularizers import GraphNet

pytestmark = pytest.mark.usefixtures("x64")


def blob(seed=0, shape=(4, 5, 3)):
    """A mask with holes."""
    mask = np.random.default_rng(seed).random(shape) < 0.7
    return VoxelGrid(mask, np.eye(4))


def differences(grid):
    """D, a row an edge between voxels that share a face, by a plain loop; shape (edges, d)."""
    places = [tuple(place) for place in np.argwhere(grid.mask)]
    rows = []
    for i, place in enumerate(places):
        for axis in range(3):
            beside = tuple(p + (a == axis) for a, p in enumerate(place))
            if beside in places:
                row = np.zeros(len(places))
                row[i], row[places.index(beside)] = -1, 1
                rows.append(row)
    return np.array(rows)


def plain_prox(z, thin, smooth, d):
    """argmin thin |w|_1 + smooth / 2 |Dw|^2 + |w - z|^2 / 2, coordinate by coordinate until nothing moves."""
    hessian = np.eye(len(z)) + smooth * d.T @ d
    w = np.zeros(len(z))
    for _ in range(3000):
        before = w.copy()
        for j in range(len(z)):
            rest = z[j] - hessian[j] @ w + hessian[j, j] * w[j]
            w[j] = np.sign(rest) * max(abs(rest) - thin, 0) / hessian[j, j]
        if np.abs(w - before).max() < 1e-14:
            break
    return w


@pytest.mark.parametrize(("t", "ratio"), [(0.3, 0.5), (8.0, 0.5), (50.0, 0.05), (2.0, 0.0), (0.7, 1.0), (0.0, 0.5)])
def test_the_prox_is_that_of_a_dense_solver(t, ratio):
    grid = blob()
    psi = GraphNet(strength=0.4, l1_ratio=ratio).on_graph(grid.neighbours())
    z = np.random.default_rng(1).standard_normal(grid.n_voxels) * 3
    expected = plain_prox(z, t * 0.4 * ratio, t * 0.4 * (1 - ratio), differences(grid))
    np.testing.assert_allclose(jax.jit(psi.prox)(jnp.asarray(z), t), expected, atol=1e-10)
    single = psi.prox(jnp.asarray(z, jnp.float32), jnp.float32(t))
    assert single.dtype == jnp.float32
    np.testing.assert_allclose(single, expected, atol=2e-4 * np.abs(z).max())
    # where the exact one is 0, so is this one
    np.testing.assert_array_equal(np.asarray(psi.prox(jnp.asarray(z), t)) == 0, expected == 0)


def test_the_value_and_the_subgradient():
    grid = blob(3)
    d = differences(grid)
    psi = GraphNet(strength=0.4, l1_ratio=0.25).on_graph(grid.neighbours())
    w = np.random.default_rng(2).standard_normal(grid.n_voxels)
    assert float(psi.value(jnp.asarray(w))) == pytest.approx(0.4 * (0.25 * np.abs(w).sum() + 0.375 * (d @ w) @ (d @ w)))
    expected = 0.4 * (0.25 * np.sign(w) + 0.75 * d.T @ d @ w)
    np.testing.assert_allclose(psi.subgradient(jnp.asarray(w)), expected, atol=1e-12)


def test_columns_are_apart():
    grid = blob()
    psi = GraphNet(strength=0.4).on_graph(grid.neighbours())
    z = jnp.asarray(np.random.default_rng(1).standard_normal((grid.n_voxels, 3)))
    each = np.stack([psi.prox(z[:, k], 2.0) for k in range(3)], axis=1)
    np.testing.assert_allclose(psi.prox(z, 2.0), each, atol=1e-10)
    assert float(psi.value(z)) == pytest.approx(sum(float(psi.value(z[:, k])) for k in range(3)))


def test_a_chain_is_the_smooth_lasso_of_scikit_learn():
    """The prox is a lasso on rows that are added: I for z, sqrt(smooth) D for 0."""
    z = np.random.default_rng(4).standard_normal(30)
    d, smooth, thin = np.diff(np.eye(30), axis=0), 1.3, 0.2
    psi = GraphNet(strength=1.5, l1_ratio=0.2 / 1.5, graph="chain")
    x, y = np.concatenate([np.eye(30), np.sqrt(smooth) * d]), np.concatenate([z, np.zeros(29)])
    lasso = Lasso(alpha=thin / len(y), fit_intercept=False, tol=1e-14, max_iter=100_000).fit(x, y)
    np.testing.assert_allclose(psi.prox(jnp.asarray(z), 1.0), lasso.coef_, atol=1e-8)


def test_many_runs_at_once():
    psi = GraphNet(strength=0.4).on_graph(blob().neighbours())
    z = jnp.asarray(np.random.default_rng(1).standard_normal((3, blob().n_voxels)))
    strengths = jnp.asarray([0.0, 0.5, 5.0])
    found = jax.vmap(lambda s, z: replace(psi, strength=s).prox(z, 1.0))(strengths, z)
    each = [replace(psi, strength=float(s)).prox(row, 1.0) for s, row in zip(strengths, z, strict=True)]
    np.testing.assert_allclose(found, np.stack(each), atol=1e-12)
    np.testing.assert_array_equal(found[0], z[0])


def test_without_a_graph_it_says_so():
    with pytest.raises(UserError, match=r"reg\.graph=chain"):
        GraphNet(strength=1.0).prox(jnp.ones(3), 1.0)
    with pytest.raises(ValueError, match="voxels"):
        GraphNet(strength=1.0).on_graph(blob().neighbours()).check((7,))  # type: ignore[attr-defined]
