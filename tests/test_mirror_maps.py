"""Mirror maps: every one of conf/mirror with every regularizer that it takes."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import names, small

from fcorun import UserError
from fcorun.experiment import prepare
from fcorun.regularizers import NoRegularizer


def pairs():
    for mirror in names("mirror"):
        for reg in names("reg"):
            try:
                experiment = prepare(small(f"mirror={mirror}", f"reg={reg}", *(["reg.strength=0.6"] * (reg != "none"))))
            except UserError:
                continue  # the pair is refused before anything runs
            yield pytest.param(experiment.mirror, experiment.reg, id=f"{mirror}-{reg}")


PAIRS = list(pairs())
MAPS = [pytest.param(prepare(small(f"mirror={name}")).mirror, id=name) for name in names("mirror")]


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


@pytest.fixture
def primal():
    return jnp.asarray(np.random.default_rng(2).standard_normal((8, 10)))


@pytest.mark.parametrize("mirror", MAPS)
def test_there_and_back(mirror, primal):
    for w in primal:
        np.testing.assert_allclose(mirror.to_primal(mirror.to_dual(w)), w, rtol=1e-10)


@pytest.mark.parametrize("mirror", MAPS)
def test_to_dual_is_the_gradient_of_a_strictly_convex_function(mirror, primal):
    """It is strictly monotone, and its Jacobian is symmetric: what makes it the gradient of a convex function."""
    for w, u in pairwise(primal):
        assert ((mirror.to_dual(w) - mirror.to_dual(u)) * (w - u)).sum() > 0
        jacobian = jax.jacobian(mirror.to_dual)(w)
        np.testing.assert_allclose(jacobian, jacobian.T, atol=1e-12)


@pytest.mark.parametrize("mirror", MAPS)
def test_retrieving_without_psi_is_to_primal(mirror, primal):
    for w in primal:
        z = mirror.to_dual(w)
        np.testing.assert_allclose(mirror.retrieve(z, 0.8, NoRegularizer()), mirror.to_primal(z), rtol=1e-12)


@pytest.mark.parametrize(("mirror", "reg"), PAIRS)
def test_retrieve_minimises(mirror, reg, primal):
    """w = retrieve(z, t, psi): z - grad h(w) is t times a subgradient of psi at w."""
    rng = np.random.default_rng(3)
    for start in primal:
        z, t = mirror.to_dual(start), 10 ** rng.uniform(-1, 0.5)
        w = mirror.retrieve(z, t, reg)
        residual = (z - mirror.to_dual(w)) / t
        for u in [*primal, jnp.zeros_like(w), *(w + s * jnp.asarray(rng.standard_normal(10)) for s in (1e-3, 0.1))]:
            assert reg.value(u) >= reg.value(w) + (residual * (u - w)).sum() - 1e-10


@pytest.mark.parametrize("reg", [pytest.param(p.values[1], id=p.id) for p in PAIRS if p.id.startswith("euclidean-")])
def test_euclidean_retrieves_by_perturbation(reg, primal):
    (mirror,) = [m.values[0] for m in MAPS if m.id == "euclidean"]
    rng = np.random.default_rng(4)

    def objective(w, z):
        return (w**2).sum() / 2 + 0.7 * reg.value(w) - (z * w).sum()

    for z in primal:
        w = mirror.retrieve(z, 0.7, reg)
        for size in (1e-3, 0.1, 1):
            assert objective(w, z) <= objective(w + size * jnp.asarray(rng.standard_normal(10)), z)
