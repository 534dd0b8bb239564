"""Identities between algorithms, communicated bytes, and client states."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import Stop, flat, ragged, rows_of, small, snapshots
from paper_boxes import drawn, soft

from fcorun import run
from fcorun.base.config import Positive
from fcorun.experiment.build import build_engine, load_data
from fcorun.experiment.prepare import prepare
from fcorun.methods.algorithms import Algorithm
from fcorun.methods.regularizers import Regularizer

COMPOSITE = ["fedmid", "fedmid_osp", "feddualavg", "feddualavg_osp"]


def path(config):
    """Return the outputs of a run, an array (evaluations, parameters)."""
    return np.array([flat({k: v[0] for k, v in s.solution.items()}) for s in snapshots(config)])


@pytest.mark.slow
@pytest.mark.parametrize("name", [*COMPOSITE, "fedavg_subgradient"])
def test_composite_algorithms_without_psi_are_fedavg(name, tmp_path):
    rest = ["reg=none", "batch_size=4", "clients_per_round=2", "algo.client_lr=0.05", "algo.server_lr=0.7"]
    fedavg = path(ragged(tmp_path, "algo=fedavg", *rest))
    np.testing.assert_allclose(path(ragged(tmp_path, f"algo={name}", *rest)), fedavg, atol=1e-13)
    assert np.abs(fedavg[-1]).max() > 0.1


ONE_STEP = [
    "batch_size=null",
    "local_steps=1",
    "algo.client_lr=0.05",
    "algo.server_lr=1",
    "reg.strength=0.3",
    "rounds=12",
]


def gradient_of(data, w):
    x = np.column_stack([data.train.x, np.ones(len(data.train))])
    return 2 * x.T @ (x @ w - data.train.y) / len(x)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "proxes"), [("fedmid_osp", 1), ("fedmid", 2)])
def test_one_client_and_one_step_is_proximal_gradient(name, proxes, tmp_path):
    """Algorithm 2 applies the prox on the client and again on the server, which for l1 is twice the strength."""
    config = ragged(tmp_path, f"algo={name}", *ONE_STEP, sizes=(20,))
    data, expected = load_data(prepare(config)), [np.zeros(7)]
    for _ in range(12):
        expected.append(soft(expected[-1] - 0.05 * gradient_of(data, expected[-1]), proxes * 0.05 * 0.3))
    np.testing.assert_allclose(path(config), expected, atol=1e-12)


@pytest.mark.slow
def test_one_client_and_one_step_is_dual_averaging(tmp_path):
    config = ragged(tmp_path, "algo=feddualavg", *ONE_STEP, sizes=(20,))
    data, expected, total = load_data(prepare(config)), [np.zeros(7)], np.zeros(7)
    for t in range(1, 13):
        total += gradient_of(data, expected[-1])
        expected.append(soft(-0.05 * total, t * 0.05 * 0.3))
    np.testing.assert_allclose(path(config), expected, atol=1e-12)


@pytest.mark.slow
def test_first_output_of_feddualavg_is_a_thresholded_mean_gradient(tmp_path):
    config = ragged(tmp_path, "algo=feddualavg", *ONE_STEP, "rounds=1", "client_weighting=uniform")
    data = load_data(prepare(config))
    x = np.column_stack([data.train.x, np.ones(len(data.train.x))])
    mean = np.mean(
        [
            -2 * x[a:b].T @ data.train.y[a:b] / (b - a)
            for a, b in zip(data.train.offsets, data.train.offsets[1:], strict=False)
        ],
        0,
    )
    np.testing.assert_allclose(path(config)[1], soft(-0.05 * mean, 0.05 * 0.3), atol=1e-13)


@dataclass(frozen=True)
class Orthant(Regularizer):
    """The indicator of the nonnegative orthant."""

    def value(self, w):
        return jnp.where((w >= 0).all(), 0.0, jnp.inf).astype(w.dtype)

    def prox(self, z, t):
        return jnp.maximum(z, 0)


@pytest.mark.slow
def test_fedmid_with_an_indicator_is_projected_sgd(tmp_path):
    config = ragged(tmp_path, "algo=fedmid", "batch_size=4", "algo.client_lr=0.05", "algo.server_lr=1")
    config["reg"] = {"name": "orthant", "class": f"{__name__}.Orthant"}
    experiment = prepare(config)
    data = load_data(experiment)
    x, w = np.column_stack([data.train.x, np.ones(len(data.train.x))]), np.zeros(7)
    outputs, projected = [w], False
    for cohort in drawn(experiment, data):
        mean = np.zeros(7)
        for share, batches in cohort:
            local = w
            for rows in batches:
                local = local - 0.05 * 2 * x[rows].T @ (x[rows] @ local - data.train.y[rows]) / len(rows)
                projected |= (local[:-1] < 0).any()
                local[:-1] = np.maximum(local[:-1], 0)
            mean += share * local
        w = mean  # the mean of points in a convex set lies in the set
        outputs.append(w)
    assert projected
    np.testing.assert_allclose(path(config), outputs, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["feddualavg", "feddualavg_osp", "fedavg", "fedavg_subgradient"])
def test_identical_clients_are_one_client_with_all_steps(name, tmp_path):
    rng = np.random.default_rng(3)
    x, y = rng.standard_normal((8, 6)), rng.standard_normal(8)
    rest = [f"algo={name}", "batch_size=null", "algo.client_lr=0.03", "algo.server_lr=1", "reg.strength=0.2"]
    identical = ragged(
        tmp_path / "alike", *rest, "rounds=5", "local_steps=4", sizes=(8,) * 3, x=np.tile(x, (3, 1)), y=np.tile(y, 3)
    )
    one = ragged(tmp_path / "one", *rest, "rounds=1", "local_steps=20", sizes=(8,), x=x, y=y)
    np.testing.assert_allclose(path(identical)[-1], path(one)[-1], atol=1e-12)


@pytest.mark.slow
def test_local_steps_drift_from_the_optimum():
    rest = ["batch_size=null", "clients_per_round=null", "precision=float64", "reference=true", "eval_every=2000"]
    rest += ["data.mean_scale=0.5", "data.features=10", "algo.server_lr=1"]

    def gap(algo, steps, rate):
        config = small(*rest, f"algo={algo}", f"local_steps={steps}", "rounds=6000", f"algo.client_lr={rate}")
        return run(config, f"{algo}-{steps}").metrics["suboptimality"].iloc[-1]

    assert -1e-9 < gap("feddualavg", 1, 0.05) < 1e-6
    dual, mirror = gap("feddualavg", 10, 0.005), gap("fedmid", 10, 0.005)
    assert 1e-6 < dual < mirror


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize(("name", "up", "down"), [("fedavg", 21, 21), ("feddualavg", 22, 22), ("fedmid", 22, 21)])
def test_communicated_bytes_are_those_of_the_arrays(name, up, down, precision):
    """A model has 20 weights and a bias. FedDualAvg's state and upload, and FedMiD's upload, add ``elapsed``."""
    metrics = run(small(f"algo={name}", f"precision={precision}"), "run").metrics
    size = {"float32": 4, "float64": 8}[precision]
    assert metrics["bytes_up"].tolist() == [r * 3 * up * size for r in (0, 2, 4)]
    assert metrics["bytes_down"].tolist() == [r * 3 * down * size for r in (0, 2, 4)]


@dataclass(frozen=True)
class ShrinkingSteps(Algorithm):
    """FedAvg whose clients take smaller steps with each participation."""

    client_lr: Positive

    def init(self, problem, w0):
        return w0, {"times": jnp.ones((), w0.dtype)}

    def local(self, problem, server, client, data):
        rate = self.client_lr / client["times"]
        w = data.steps(lambda w, batch: w - rate * problem.gradient(w, batch), server)
        return w - server, {"times": client["times"] + 1}

    def server(self, problem, server, mean):
        return server + mean

    def output(self, problem, server):
        return server


def shrinking_steps(*overrides):
    config = small("precision=float64", "rounds=6", *overrides)
    config["algo"] = {"name": "shrinking_steps", "class": f"{__name__}.ShrinkingSteps", "client_lr": 0.002}
    return config


@pytest.mark.slow
def test_clients_keep_their_state():
    config = shrinking_steps()
    experiment = prepare(config)
    data, now = load_data(experiment), snapshots(config)[-1]
    x, w, times = np.column_stack([data.train.x, np.ones(len(data.train.x))]).astype(float), np.zeros(21), np.ones(6)
    rounds = build_engine(experiment, data).federation.schedule.draw_rounds(0, 6)
    for cohort, rows in zip(rounds.cohort, rounds.rows, strict=True):
        mean = np.zeros(21)
        for m, client in zip(cohort, rows, strict=True):
            local = w
            for batch in client:
                r = batch[batch >= 0]
                local = local - 0.002 / times[m] * 2 * x[r].T @ (x[r] @ local - data.train.y[r]) / len(r)
            mean += local / 3
            times[m] += 1
        w = mean
    assert len(set(times)) > 1
    np.testing.assert_array_equal(now.state["clients"][0]["times"][0], times)
    np.testing.assert_allclose(flat({k: v[0] for k, v in now.solution.items()}), w, atol=1e-12)


@pytest.mark.slow
def test_clients_keep_their_state_through_an_interruption():
    whole = run(shrinking_steps(), "whole")
    with pytest.raises(KeyboardInterrupt):
        run(shrinking_steps(), "broken", Stop(2))
    broken = run(shrinking_steps(), "broken")
    assert rows_of(broken).equals(rows_of(whole))
    np.testing.assert_array_equal(flat(broken.solution), flat(whole.solution))
