"""Prox-DASA-GT: its box in plain NumPy, and the optimum with local steps on graphs of random edges."""

import numpy as np
import pytest
from helpers import ragged
from quadratics import SIZES, Quadratics, outputs_by_round

from fcorun import run
from fcorun.methods.algorithms import ProxDASA
from fcorun.methods.algorithms.algorithm import ProblemConstants
from fcorun.methods.communication import graph as graphs

RUN = ("algo=prox_dasa", "topology=graph", "clients_per_round=null", "reg.strength=0.3", "local_epochs=null")


def _prox_dasa(q, steps, rounds, step=0.1, averaging=0.2):
    """Take the steps of docs/equations on a ring, each client with its number of ``steps``."""
    W = graphs.mixing_matrix(graphs.link_nodes(graphs.ring_edges(4), q.p))
    x, z, u, last = np.zeros((4, 4, 7))
    outputs = []
    for _ in range(rounds):
        for m, H in enumerate(q.H):
            for _ in range(steps[m]):
                y, gradient = q.psi(x[m] - step * z[m], step), H @ x[m] - q.c[m]
                u[m] += gradient - last[m]
                z[m] = (1 - averaging) * z[m] + averaging * u[m]
                x[m] = (1 - averaging) * x[m] + averaging * y
                last[m] = gradient
        x, z, u = W @ x, W @ z, W @ u
        np.testing.assert_allclose(q.p @ u, q.p @ last, atol=1e-12)
        outputs.append(q.p @ x)
    return np.array(outputs)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 3])
def test_a_run_takes_the_steps_of_its_box(steps, tmp_path):
    rates = ("algo.step=0.1", "algo.averaging=0.2", f"local_steps={steps}", "batch_size=null")
    config = ragged(tmp_path, *RUN, *rates, "rounds=8", "eval_every=1", sizes=SIZES)
    expected = _prox_dasa(Quadratics(config), [steps] * 4, 8)
    np.testing.assert_allclose(outputs_by_round(config), expected, atol=1e-12)
    assert np.ptp(expected, axis=0).max() > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 4])
def test_the_optimum_is_reached_where_edges_are_drawn(steps, tmp_path):
    rest = ["topology.edge_probability=0.6", "batch_size=null", f"local_steps={steps}", "precision=float64"]
    config = ragged(tmp_path, *RUN, *rest, "rounds=2000", "eval_every=1000", "reference=true", sizes=SIZES)
    record = run(config, tmp_path / "run")
    assert record.metrics["suboptimality"].iloc[-1] < 1e-12
    assert record.metrics["consensus_distance"].iloc[-1] < 1e-8


@pytest.mark.slow
def test_a_message_is_three_vectors(tmp_path):
    rest = ("local_steps=2", "rounds=1", "eval_every=1", "batch_size=4")
    record = run(ragged(tmp_path, *RUN, *rest, sizes=SIZES), tmp_path / "run")
    assert record.metrics["bytes_up"].iloc[-1] == 8 * 3 * 7 * 8  # 8 directed edges, in float64
    assert record.metrics["grad_evals"].iloc[-1] == 4 * 2 * 4


def test_auto_numbers_follow_the_number_of_steps():
    for local_steps in (1, 5):
        values = ProxDASA().auto(ProblemConstants(0.1, 4.0, local_steps))
        assert values == {"step": 1 / 4, "averaging": 0.5 / local_steps}
