"""The multilayer perceptron, in addition to the checks of every objective."""

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import ragged, snapshots

from fcorun import compose
from fcorun.base.config import build, build_plugin
from fcorun.base.errors import UserError
from fcorun.base.system.machine import use_precision
from fcorun.experiment.prepare import prepare
from fcorun.methods.objectives import MLP, Logistic


def test_shapes():
    assert MLP().shapes((784,), 10) == {
        **{"weights1": (784, 200), "bias1": (200,)},
        **{"weights2": (200, 200), "bias2": (200,)},
        **{"weights3": (200, 10), "bias3": (10,)},
    }
    assert MLP([3]).shapes((5, 4), 2) == {"weights1": (20, 3), "bias1": (3,), "weights2": (3,), "bias2": ()}
    assert MLP().regularized == ("weights1", "weights2", "weights3")
    assert MLP([3]).regularized == ("weights1", "weights2")


@pytest.mark.parametrize("classes", [2, 4])
def test_prediction(classes):
    objective, rng = MLP([6, 5]), np.random.default_rng(0)
    w = {name: rng.standard_normal(shape) for name, shape in objective.shapes((7,), classes).items()}
    x = examples = rng.standard_normal((9, 7))
    for layer in "12":
        x = np.maximum(x @ w["weights" + layer] + w["bias" + layer], 0)
    expected = x @ w["weights3"] + w["bias3"]
    assert expected.shape == ((9, 4) if classes == 4 else (9,))
    with use_precision("float32"):
        prediction = objective.predict({name: jnp.asarray(value) for name, value in w.items()}, jnp.asarray(examples))
    np.testing.assert_allclose(prediction, expected, rtol=1e-4, atol=1e-4)


def test_start():
    objective = MLP()
    shapes = objective.shapes((784,), 10)
    start = objective.initial_parameters(shapes, np.random.default_rng(0))
    assert {name: value.shape for name, value in start.items()} == shapes
    for name, (units_in, units_out) in {"weights1": (784, 200), "weights2": (200, 200), "weights3": (200, 10)}.items():
        limit = (6 / (units_in + units_out)) ** 0.5
        assert 0.95 * limit < abs(start[name]).max() <= limit
        assert start[name].std() == pytest.approx((2 / (units_in + units_out)) ** 0.5, rel=0.03)
        assert abs(start[name].mean()) < 0.05 * limit
    for name in ("bias1", "bias2", "bias3"):
        assert not start[name].any()
    same_seed, other_seed = (objective.initial_parameters(shapes, np.random.default_rng(seed)) for seed in (0, 1))
    np.testing.assert_array_equal(start["weights2"], same_seed["weights2"])
    assert (start["weights2"] != other_seed["weights2"]).all()
    single = MLP([50]).initial_parameters(MLP([50]).shapes((3,), 2), np.random.default_rng(0))
    assert abs(single["weights2"]).max() <= (6 / 51) ** 0.5


def test_options():
    with pytest.raises(UserError, match=r"objective\.hidden=\[\] has no layer"):
        MLP([])
    with pytest.raises(UserError, match=r"objective\.hidden=0 must be positive"):
        build(MLP, {"hidden": [10, 0]}, "objective")
    config = compose(["data=table", "data.path=x", "data.task=multiclass", "objective=mlp", "objective.hidden=[7]",
                      "algo.client_lr=0.1"])  # fmt: skip
    assert build_plugin("objective", config["objective"]) == MLP([7])
    with pytest.raises(UserError, match=r"objective=mlp is not convex"):
        prepare(config | {"reference": True})


def test_softmax_is_logistic():
    config = compose(["data=table", "data.path=x", "data.task=multiclass", "objective=softmax"])
    assert build_plugin("objective", config["objective"]) == Logistic()
    assert compose(["data=femnist"])["objective"]["name"] == "softmax"


@pytest.mark.slow
def test_only_regularized_parameters_are_shrunk(tmp_path):
    overrides = ("objective=mlp", "objective.hidden=[8]", "algo.client_lr=0.01", "reg=l1", "reg.strength=100")
    config = ragged(tmp_path, *overrides, task="multiclass")
    last = snapshots(config)[-1]
    assert last.metrics["density"][0] == 0


@pytest.mark.slow
@pytest.mark.parametrize(("task", "classes"), [("binary", 2), ("multiclass", 3)])
def test_a_network_learns_a_nonlinear_boundary(tmp_path, task, classes):
    """Opposite sectors of the plane have one class, so no linear function separates the classes."""
    rng = np.random.default_rng(0)
    sector = rng.integers(2 * classes, size=120)
    angle = (sector + rng.uniform(0.1, 0.9, 120)) * np.pi / classes
    x, y = np.stack([np.cos(angle), np.sin(angle)], axis=1), sector % classes
    accuracy = {}
    for objective in ("softmax", "mlp"):
        options = ("reg=none", "algo=fedavg", "algo.client_lr=0.5", "algo.server_lr=1", "rounds=300", "eval_every=300")
        config = ragged(
            tmp_path, f"objective={objective}", *options, sizes=(20, 40, 60), features=2, task=task, x=x, y=y
        )
        accuracy[objective] = snapshots(config)[-1].metrics["train_accuracy"][0]
    assert accuracy["mlp"] > 0.95
    assert accuracy["softmax"] < 0.7
