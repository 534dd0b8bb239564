"""FSVRG against its box in NumPy; with minibatches it comes to the optimum."""

import boxes
import numpy as np
import pytest
from helpers import ragged
from paper_boxes import drawn, soft
from quadratics import SIZES, Quadratics, outputs_by_round

RATE, STRENGTH = 0.05, 0.3


def fsvrg(x, y, rounds):
    """Return the outputs on the rows that a run draws."""

    def gradient(w, rows):
        return 2 * x[rows].T @ (x[rows] @ w - y[rows]) / len(rows)

    w, outputs = np.zeros(x.shape[1]), [np.zeros(x.shape[1])]
    everything = np.arange(len(x))
    for cohort in rounds:
        anchor, mean = w, np.zeros_like(w)
        full = gradient(anchor, everything)  # the clients weigh as their rows do
        for weight, batches in cohort:
            local = anchor
            for rows in batches:
                corrected = gradient(local, rows) - gradient(anchor, rows) + full
                local = soft(local - RATE * corrected, RATE * STRENGTH)
            mean = mean + weight * local
        w = mean
        outputs.append(w)
    return np.array(outputs)


@pytest.mark.slow
def test_fsvrg_agrees_with_its_box_and_comes_to_the_optimum(tmp_path):
    options = ("algo=fsvrg", f"algo.client_lr={RATE}", f"reg.strength={STRENGTH}", "batch_size=5", "rounds=400")
    config = ragged(tmp_path, *options, sizes=SIZES)
    q = Quadratics(config)
    x = np.column_stack([q.data.train.x, np.ones(len(q.data.train))])
    expected, actual = fsvrg(x, q.data.train.y, drawn(q.experiment, q.data)), outputs_by_round(config)
    np.testing.assert_allclose(actual, expected[1:], atol=1e-11)
    np.testing.assert_allclose(actual[-1], boxes.optimum(q.H, q.c, q.p, q.psi), atol=1e-9)
