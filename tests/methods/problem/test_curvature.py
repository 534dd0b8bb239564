"""Bounds on the curvature, and the step sizes computed from them."""

import json
import sys
import textwrap

import numpy as np
import pytest
from helpers import fails, ragged, small
from quadratics import SIZES, Quadratics

from fcorun import run
from fcorun.experiment.build import compute_curvature_bounds, load_data
from fcorun.experiment.prepare import prepare
from fcorun.methods.problem.curvature import curvature_bounds


@pytest.mark.parametrize("intercept", ["true", "false"])
@pytest.mark.parametrize("ridge", [0.0, 0.2])
@pytest.mark.parametrize("sizes", [(3, 4, 9), SIZES])
def test_bounds_hold_for_the_curvature_of_every_client(sizes, ridge, intercept, tmp_path):
    config = ragged(
        tmp_path, "algo=fedsplit", f"objective.ridge={ridge}", f"objective.intercept={intercept}", sizes=sizes
    )
    experiment = prepare(config)
    data = load_data(experiment)
    least, most = curvature_bounds(experiment.objective, data)
    x = np.column_stack([data.train.x, np.ones(len(data.train.y))]) if intercept == "true" else data.train.x
    diagonal = ridge * np.append(np.ones(6), np.zeros(x.shape[1] - 6))
    values = [
        np.linalg.eigvalsh(2 / (b - a) * x[a:b].T @ x[a:b] + np.diag(diagonal))
        for a, b in zip(data.train.offsets, data.train.offsets[1:], strict=False)
    ]
    assert least <= np.min(values) + 1e-12
    assert most >= np.max(values) - 1e-12
    np.testing.assert_allclose(
        (least, most), [max(float(np.min(values)), 0.0), float(np.max(values))], rtol=1e-10, atol=1e-10
    )


def test_bounds_hold_for_the_curvature_of_every_minibatch(tmp_path):
    experiment = prepare(ragged(tmp_path, "algo=fedsplit", "objective.ridge=0.3", sizes=SIZES))
    data, ridge = load_data(experiment), np.diag([*[0.3] * 6, 0.0])
    least, most = curvature_bounds(experiment.objective, data, full_batch=False)
    rows = [np.append(row, 1.0) for row in data.train.x]
    values = [np.linalg.eigvalsh(2 * np.outer(row, row) + ridge) for row in rows]
    values += [np.linalg.eigvalsh(np.outer(a, a) + np.outer(b, b) + ridge) for a in rows for b in rows]
    assert 0 < least <= np.min(values)
    assert np.max(values) - ridge.max() <= most


@pytest.mark.slow
def test_fedsplit_with_an_intercept_and_a_ridge_converges_at_the_rate_of_its_theorem(tmp_path):
    config = ragged(tmp_path, "algo=fedsplit", "objective.ridge=0.1", "reg=none", "rounds=100", "reference=true")
    record = run(config, "run")
    rate = 1 - 2 / (record.summary["curvature"]["condition"] ** 0.5 + 1)
    assert record.metrics["suboptimality"].iloc[-1] <= max(record.metrics["suboptimality"].iloc[0] * rate**200, 1e-9)


def test_logistic_bounds_are_attained_at_zero(tmp_path):
    experiment = prepare(ragged(tmp_path, "algo=fedsplit", task="binary"))
    data = load_data(experiment)
    _, most = curvature_bounds(experiment.objective, data)
    x = np.column_stack([data.train.x, np.ones(len(data.train.y))])
    client_rows = [x[a:b] for a, b in zip(data.train.offsets, data.train.offsets[1:], strict=False)]
    np.testing.assert_allclose(most, max(np.linalg.eigvalsh(part.T @ part / 4 / len(part))[-1] for part in client_rows))


@pytest.mark.slow
def test_the_summary_has_the_bounds(tmp_path):
    config = ragged(tmp_path, "algo=fedsplit", "reg=none", sizes=SIZES)
    q = Quadratics(config)
    bounds = json.loads((run(config, "run").folder / "summary.json").read_text())["curvature"]
    np.testing.assert_allclose([bounds["least"], bounds["most"]], [q.l, q.L])
    np.testing.assert_allclose([bounds["condition"], bounds["algo.step"]], [q.L / q.l, q.step])
    given = run(ragged(tmp_path, "algo=fedsplit", "algo.step=0.1", sizes=SIZES), "given")
    assert given.summary["curvature"] is None


@pytest.mark.slow
def test_auto_without_bounds_is_refused(tmp_path):
    with fails("algo=fedsplit", "objective=mlp", "algo.step"):
        prepare(ragged(tmp_path, "algo=fedsplit", "objective=mlp", task="binary"))
    with fails("a value for algo.step", "algo.solver=newton"):
        prepare(ragged(tmp_path, "algo=fedsplit", "objective=mlp", "algo.solver=gradient", task="binary"))
    with fails("algo.step=large", "number", "auto"):
        prepare(small("algo=fedsplit", "algo.step=large"))
    with fails("algo.step=-1.0", "positive"):
        prepare(small("algo=fedsplit", "algo.step=-1"))
    with fails("algo.relaxation=2.5", "at most 2"):
        prepare(small("algo=fedsplit", "algo.relaxation=2.5"))


def test_another_constant_of_a_loss_gives_other_bounds(user_module):
    source = """
        from dataclasses import dataclass
        from fcorun import LeastSquares

        BOUND = 1.0

        @dataclass(frozen=True)
        class Scaled(LeastSquares):
            def second_derivative_bounds(self, outputs):
                return BOUND, BOUND
        """
    user_module("scaled", textwrap.dedent(source))
    smoothness = []
    for bound in (1.0, 100.0):
        sys.modules["scaled"].BOUND = bound  # type: ignore[attr-defined]
        experiment = prepare(small("algo=fedavg", "objective.class=scaled.Scaled", "batch_size=null"))
        smoothness.append(compute_curvature_bounds(experiment, load_data(experiment))[1])
    assert smoothness[1] > 50 * smoothness[0]
