"""Counts, communication, refusals and remarks of algorithms."""

import numpy as np
import pytest
from helpers import fails, ragged, small, snapshots
from quadratics import Quadratics, outputs_by_round

from fcorun import run
from fcorun.experiment.build import load_data
from fcorun.experiment.prepare import prepare
from fcorun.interface.cli.console import Console


@pytest.mark.slow
def test_more_gradients_than_32_bits_hold_are_counted(tmp_path):
    fixed = ("algo=fedgd", "algo.steps=3000000", "algo.step=1e-9", "rounds=1", "objective.intercept=false")
    config = ragged(tmp_path, *fixed, sizes=(1000,), features=1)
    assert snapshots(config)[-1].work[0, 0] == 3 * 10**9


# ---------------------------------------------------------------- algorithms of a user

USER_ALGORITHM = """
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from fcorun.algorithms import FedAvg, Traits


@dataclass(frozen=True)
class UserAlgorithm(FedAvg):
    traits = Traits(psi_sides=SIDES)

    def local(self, problem, server, client, data):
        def step(w, batch):
            return w - self.client_lr * problem.gradient(w, batch)

        steps = (data.rows[:, 0] >= 0).sum()
        w = BODY
        return w - server, client

    def broadcast_bytes(self, broadcast):
        return 5
"""


def user_config(tmp_path, user_module, body: str, *more: str, sides: str = '("client",)') -> dict:
    """Return a configuration of FedAvg with another ``local``, on clients of 3, 7 and 10 rows in batches of 4."""
    user_module("user_algorithm", USER_ALGORITHM.replace("BODY", body).replace("SIDES", sides))
    config = ragged(tmp_path, "algo=fedavg", "batch_size=4", "rounds=1", *more)
    config["algo"] |= {
        "class": "user_algorithm.UserAlgorithm",
        "name": "user_algorithm",
        "client_lr": 0.05,
        "server_lr": 1.0,
    }
    return config


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "gradients"), [("steps // 2 + 1", 18), ("steps + 1", 31), ("2", 6 + 7 + 8), ("0", 0)]
)
def test_clients_take_the_given_number_of_steps(count, gradients, tmp_path, user_module):
    """Fewer steps than minibatches, or more, which begin anew with the first minibatch; against plain NumPy."""
    config = user_config(tmp_path, user_module, f"data.steps(step, server, count={count})")
    q = Quadratics(config)
    x = np.column_stack([q.data.train.x, np.ones(20)])
    ends = []
    for rows in q.drawn.rows[0]:
        batches = [batch[batch >= 0] for batch in rows if (batch >= 0).any()]
        w = np.zeros(7)
        for k in range(eval(count, {"steps": len(batches)})):
            batch = batches[k % len(batches)]
            w = w - 0.05 * 2 / len(batch) * x[batch].T @ (x[batch] @ w - q.data.train.y[batch])
        ends.append(w)
    np.testing.assert_allclose(outputs_by_round(config)[0], q.p @ ends, rtol=1e-10, atol=1e-12)
    assert snapshots(config)[-1].work.tolist() == [[gradients, 0]]
    assert snapshots(config | {"debug": True})[-1].work.tolist() == [[gradients, 0]]


@pytest.mark.slow
def test_a_branch_counts_the_work_of_its_run(tmp_path, user_module):
    """Two runs of a grid take different branches. Steps that clients lack count nothing."""
    body = "lax.cond(self.client_lr > 0.1, lambda: problem.prox(data.steps(step, server), 0.1), lambda: server)"
    config = user_config(tmp_path, user_module, body)
    far = user_config(tmp_path, user_module, body)
    far["algo"]["client_lr"] = 0.2
    assert snapshots(config, far)[-1].work.tolist() == [[0, 0], [20, 3]]
    assert snapshots(far)[-1].work.tolist() == [[20, 3]]
    record = run(far, "far")
    assert "computed no prox" not in record.status["reason"]
    assert "user_algorithm computed no prox of reg=l1" in run(config, "near").status["reason"]
    assert record.metrics["bytes_down"].tolist() == [0, 3 * 5]
    assert record.metrics["bytes_up"].tolist() == [0, 3 * 7 * 8]


@pytest.mark.slow
def test_an_algorithm_that_says_it_ignores_psi_and_computes_proxes_is_named(tmp_path, user_module):
    body = "problem.prox(data.steps(step, server), 0.1)"
    record = run(user_config(tmp_path, user_module, body, sides="()"), "run")
    assert "user_algorithm computed proxes of reg=l1, although its traits say" in record.status["reason"]


# ---------------------------------------------------------------- counts, communication, refusals and remarks


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "gradients", "proxes"),
    [
        (["algo=fedavg", "batch_size=4"], 20, 0),  # each of 20 examples once a round
        (["algo=feddualavg", "batch_size=4"], 20, 6),  # 1 + 2 + 3 local steps
        (["algo=fedmid", "batch_size=4", "local_epochs=2"], 40, 13),  # twice, and one on the server
        (["algo=fedmid", "batch_size=4", "reg=none"], 20, 0),
        (["algo=fedmid_osp", "batch_size=4"], 20, 1),
        (["algo=scaffold", "batch_size=4", "algo.option=1"], 40, 0),
        (["algo=fedgd", "algo.steps=7"], 140, 0),
        (["algo=fedsplit"], 0, 4),  # three clients in closed form, and psi
        (["algo=fedsplit", "algo.solver=gradient", "algo.iterations=9", "algo.tolerance=0"], 180, 1),
    ],
)
def test_gradients_and_proxes_are_counted(overrides, gradients, proxes, tmp_path):
    metrics = run(ragged(tmp_path, *overrides, "rounds=6", "eval_every=2"), "run").metrics
    assert metrics["grad_evals"].tolist() == [gradients * r for r in (0, 2, 4, 6)]
    assert metrics["prox_evals"].tolist() == [proxes * r for r in (0, 2, 4, 6)]


@pytest.mark.slow
def test_a_random_number_of_steps_is_counted(tmp_path):
    config = ragged(tmp_path, "algo=proxskip", "algo.probability=0.3", "rounds=8")
    q = Quadratics(config)
    steps = 1 + np.floor(np.log(1 - q.drawn.shared_uniforms[:, 0]) / np.log(0.7)).astype(int)
    assert len(set(steps)) > 2
    assert [s.work[0, 0] for s in snapshots(config)] == [0, *(20 * np.cumsum(steps))]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "up", "down"),
    [("scaffold", 14, 14), ("fedadam", 7, 7), ("feddr", 7, 7), ("fedcomposite", 8, 7), ("fast_fedda", 15, 15)],
)
def test_only_the_state_that_clients_need_is_sent(name, up, down, tmp_path):
    metrics = run(ragged(tmp_path, f"algo={name}", "rounds=1"), "run").metrics
    assert metrics["bytes_up"].iloc[-1] == 3 * 8 * up
    assert metrics["bytes_down"].iloc[-1] == 3 * 8 * down


@pytest.mark.parametrize("name", ["fedsplit", "proxskip", "fedpd", "fedcomposite"])
def test_algorithms_that_need_all_clients_refuse_cohorts(name):
    with fails(f"algo={name}", "clients_per_round=null"):
        load_data(prepare(small(f"algo={name}")))


def test_algorithms_that_use_all_data_have_no_batches():
    assert prepare(small("algo=fedgd")).config["batch_size"] is None
    with fails("algo=fedgd", "local_steps"):
        prepare(small("algo=fedgd", "local_steps=3"))


@pytest.mark.parametrize("name", ["fedavg", "fedavg_subgradient", "fedsplit", "fast_fedda"])
def test_mirror_maps_without_effect_are_refused(name):
    with fails(f"algo={name}", "mirror=p_norm"):
        prepare(small(f"algo={name}", "mirror=p_norm"))


@pytest.mark.slow
def test_algorithms_that_ignore_psi_say_so(capsys):
    with Console() as watch:
        record = run(small("algo=fedavg"), "fedavg", watch)
    output = capsys.readouterr().out
    log = (record.folder / "run.log").read_text()
    for text in (output, log):
        assert "algo=fedavg ignores the regularizer psi: its solution does not minimize F + psi with reg=l1" in text
    assert output.index("ignores the regularizer psi") < output.index("round 0")
    for overrides in (["algo=fedavg", "reg=none"], ["algo=feddualavg"], ["algo=fedmid_osp"]):
        assert prepare(small(*overrides)).warning == ""
