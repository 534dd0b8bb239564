"""Plug-ins whose arrays have other shapes than their contract declares are caught."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import TypeCheckError

from fcorun.data.tables.splits import hold_out
from fcorun.methods.mirror_maps import Euclidean
from fcorun.methods.objectives import LeastSquares
from fcorun.methods.regularizers import L1, Box


@dataclass(frozen=True)
class Wrong(L1):
    def value(self, w):
        return self.strength * abs(w)

    def prox(self, z, t):
        return z.sum()

    def subgradient(self, w):
        return w[:1]

    def structure(self, w, cutoff):
        return {"density": w}


@dataclass(frozen=True)
class WrongBox(Box):
    def project(self, z):
        return z[None]


class WrongMap(Euclidean):
    def to_dual(self, w):
        return w[:-1]


@dataclass(frozen=True)
class WrongLoss(LeastSquares):
    def loss(self, prediction, y):
        return ((prediction - y) ** 2).mean()

    def scores(self, prediction, y):
        return {"error": abs(prediction - y).sum()}


ROW = jnp.ones(4)
CALLS = {
    "value": lambda: Wrong(1.0).value(ROW),
    "prox": lambda: Wrong(1.0).prox(ROW, 1),
    "prox of another number": lambda: replace(Wrong(1.0), strength=2.0).prox(ROW, 1.0),
    "prox in a program": lambda: jax.jit(lambda s, z: Wrong(s).prox(z, s))(1.0, ROW),
    "prox of many": lambda: jax.vmap(Wrong(1.0).prox, (0, None))(jnp.ones((3, 4)), 1.0),
    "t": lambda: L1(1.0).prox(ROW, ROW),
    "subgradient": lambda: Wrong(1.0).subgradient(ROW),
    "structure": lambda: Wrong(1.0).structure(ROW, 0.1),
    "project": lambda: WrongBox().project(ROW),
    "to_dual": lambda: WrongMap().to_dual(ROW),
    "loss": lambda: WrongLoss().loss(ROW, ROW),
    "loss of other targets": lambda: LeastSquares().loss(ROW, jnp.ones((4, 1))),
    "scores": lambda: WrongLoss().scores(ROW, ROW),
    "function": lambda: hold_out(np.zeros((2, 2), int), "a", 0.5, split="test", seed=0),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_a_wrong_shape_is_caught(call):
    with pytest.raises(TypeCheckError):
        call()


def test_right_shapes_pass():
    many = jax.jit(jax.vmap(lambda z, s: L1(s).prox(z, s)))(jnp.ones((3, 4)), jnp.ones(3))
    assert many.shape == (3, 4)
    assert L1(1.0).prox(jnp.ones((2, 3)), 1).shape == (2, 3)
