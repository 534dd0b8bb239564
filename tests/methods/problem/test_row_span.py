"""Algorithms take the same steps in coordinates of the span of a client's rows."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import engine_of, not_none, ragged, snapshots
from threadpoolctl import threadpool_info

from fcorun.data.datasets.dataset import Features, FederatedData
from fcorun.data.rows.rows import Rows
from fcorun.engine import device_rows
from fcorun.methods.mirror_maps.mirror_map import Euclidean
from fcorun.methods.objectives.least_squares import LeastSquares
from fcorun.methods.objectives.logistic import Logistic
from fcorun.methods.objectives.mlp import MLP
from fcorun.methods.problem.inner_solvers import SOLVERS, StoppingRule, Subproblem
from fcorun.methods.problem.operation_counts import count_operations
from fcorun.methods.problem.problem import Batch, Problem, Vector
from fcorun.methods.problem.row_span import decompose_losses, restrict_to_row_span, to_span_coordinates
from fcorun.methods.regularizers.regularizer import NoRegularizer

SIZES = (4, 9, 6)


def snapshots_with_and_without_bases(configs, monkeypatch):
    """Return the snapshots with bases and the snapshots without."""
    engine = engine_of(configs[0])
    with_bases = snapshots(*configs, engine=engine)
    batches = not_none(engine.federation.arrays[0]).decomposed
    assert isinstance(batches, Batch)
    assert not_none(batches.basis).shape == (3, 9, 24)
    monkeypatch.setattr(device_rows, "restrict_to_row_span", lambda *_: None)
    other = engine_of(configs[0])
    without_bases = snapshots(*configs, engine=other)
    assert not_none(other.federation.arrays[0]).decomposed is None
    return with_bases, without_bases


def assert_same_snapshots(actual, expected, atol=1e-10, rounding=False):
    """Compare snapshots; with ``rounding``, rounding may change when a solver stops."""
    for one, other in zip(actual, expected, strict=True):
        for name, values in other.solution.items():
            np.testing.assert_allclose(one.solution[name], values, atol=atol)
        for name, values in (other.client_models or {}).items():
            np.testing.assert_allclose(one.client_models[name], values, atol=atol)
        np.testing.assert_allclose(one.work, other.work, rtol=0.2 if rounding else 0)
    assert np.abs(expected[-1].solution["weights"] - expected[0].solution["weights"]).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(("task", "ridge"), [("binary", 0), ("multiclass", 0.1)])
@pytest.mark.parametrize(
    "algo",
    [
        "algo=fedsplit algo.solver=accelerated algo.iterations=40 algo.tolerance=1e-9 algo.step=2",
        "algo=fedsplit algo.solver=newton algo.step=2",
        "algo=fedprox algo.solver=gradient algo.iterations=10 algo.gamma=0.01",
        "algo=pfedme algo.solver=gradient algo.iterations=7",
        "algo=mixture algo.lam=0.3",
    ],
)
def test_algorithms_take_the_same_steps_in_the_span(algo, task, ridge, tmp_path, monkeypatch):
    config = ragged(tmp_path, *algo.split(), f"objective.ridge={ridge}", "reg=none", "batch_size=null",
                    "clients_per_round=null", sizes=SIZES, features=24, task=task)  # fmt: skip
    assert_same_snapshots(*snapshots_with_and_without_bases([config], monkeypatch), rounding="newton" in algo)


@pytest.mark.slow
def test_a_grid_takes_the_same_steps_in_the_span(tmp_path, monkeypatch):
    weights = [f"algo.lam={lam}" for lam in (0.1, 0.5)]
    configs = [ragged(tmp_path, "algo=pfedmac", "algo.solver=gradient", "algo.iterations=6", "objective.ridge=0.2",
                      "objective.intercept=false", "reg=none", "batch_size=null", "clients_per_round=null", lam,
                      sizes=SIZES, features=24, task="multiclass") for lam in weights]  # fmt: skip
    assert_same_snapshots(*snapshots_with_and_without_bases(configs, monkeypatch))


@pytest.mark.parametrize("algo", ["algo=fedsplit algo.solver=gradient algo.iterations=2", "algo=fedavg"])
def test_few_gradients_are_taken_without_a_basis(algo, tmp_path):
    config = ragged(tmp_path, *algo.split(), "reg=none", "batch_size=null", "clients_per_round=null", sizes=SIZES,
                    features=24, task="binary")  # fmt: skip
    assert not_none(engine_of(config).federation.arrays[0]).decomposed is None


def example():
    """Return data of three clients with weights and offsets, stored as bytes, and a point."""
    rng, offsets = np.random.default_rng(3), np.array([0, 4, 13, 19])
    x, y = rng.integers(256, size=(19, 24)).astype(np.uint8), rng.integers(2, size=19)
    rows = Rows.from_offsets(x, y, offsets, weight=rng.uniform(0.5, 2, 19), offset=rng.standard_normal(19))
    data = FederatedData(rows, features=Features(scale=1 / 255), task="binary")
    objective = Logistic(ridge=0.1)
    problem = Problem(objective, NoRegularizer(), Euclidean(), objective.shapes((24,), 2))
    problem = replace(problem, scale=data.features.scale)
    w = Vector({name: jnp.asarray(rng.standard_normal(shape)) for name, shape in problem.shapes.items()})
    return data, problem, w


def test_decompositions_of_two_threads_leave_the_number_of_blas_threads(monkeypatch):
    """The thread that begins last ends last: unless it waits, it would restore the limit of the first one."""
    data = example()[0]
    one_client = replace(data, train=Rows.from_offsets(data.train.x[:4], data.train.y[:4], np.array([0, 4])))
    decompose = np.linalg.qr

    def decompose_slowly(x):
        time.sleep(0.02)
        return decompose(x)

    monkeypatch.setattr(np.linalg, "qr", decompose_slowly)
    before = [library["num_threads"] for library in threadpool_info()]
    decompositions = []
    with ThreadPoolExecutor(2) as pool:
        for each in (one_client, data):
            decompositions.append(pool.submit(restrict_to_row_span, Logistic(), each, np.float64))
            time.sleep(0.005)
    assert all(decomposition.result() is not None for decomposition in decompositions)
    assert [library["num_threads"] for library in threadpool_info()] == before


@pytest.mark.slow
def test_loss_and_gradient_are_the_same_in_the_span():
    """The data have row weights and offsets, and are stored as bytes."""
    with jax.enable_x64(True):
        data, problem, w = example()
        batches = not_none(restrict_to_row_span(problem.objective, data, "float64"))
        for m, (start, stop) in enumerate(pairwise(data.train.offsets)):
            rows = slice(start, stop)
            weight = jnp.asarray(not_none(data.train.relative_weight)[rows] / (stop - start))
            plain = Batch(jnp.asarray(data.train.x[rows]), jnp.asarray(data.train.y[rows] * 1.0), weight,
                        offset=jnp.asarray(not_none(data.train.offset)[rows]))  # fmt: skip
            batch = jax.tree.map(lambda v, m=m: jnp.asarray(v[m]), batches)
            assert problem.loss(w, batch) == pytest.approx(float(problem.loss(w, plain)), abs=1e-12)
            assert (problem.gradient(w, batch) - problem.gradient(w, plain)).norm() < 1e-12
            for tilt in (None, 0.3 * w):
                h, start_at = Subproblem(problem, plain, 2 * w, 0.7, 0.4, tilt), w - 1
                inside, a, back = to_span_coordinates(replace(h, batch=batch), start_at)
                assert (back(a) - start_at).norm() < 1e-12
                lower = a - 0.1 * inside.gradient(a)
                assert inside.gradient(a).norm() == pytest.approx(float(h.gradient(start_at).norm()), rel=1e-12)
                assert (back(lower) - (start_at - 0.1 * h.gradient(start_at))).norm() < 1e-12
                change = h.value(back(lower)) - h.value(start_at)
                assert inside.value(lower) - inside.value(a) == pytest.approx(float(change), rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("ridge", [0.0, 0.1])
@pytest.mark.parametrize("solver", ["gradient", "accelerated", "newton"])
def test_solvers_take_the_same_steps_on_a_quadratic_in_its_coordinates(solver, ridge):
    """One client has fewer rows than parameters, and one has more."""
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        data = FederatedData(
            Rows.from_offsets(rng.standard_normal((20, 8)), rng.standard_normal(20), np.array([0, 4, 20]))
        )
        objective = LeastSquares(ridge=ridge)
        problem = Problem(objective, NoRegularizer(), Euclidean(), objective.shapes((8,), 1), curvature=(0.0, 40.0))
        w, tilt = (Vector({n: jnp.asarray(rng.standard_normal(s)) for n, s in problem.shapes.items()}) for _ in "12")
        all_of = not_none(decompose_losses(objective, data, problem.shapes, "float64"))
        stop = StoppingRule(7, 1e-6)
        for m in range(2):
            quadratic = jax.tree.map(lambda v, m=m: jnp.asarray(v[m]), all_of)
            for pull in (None, tilt):
                results = []
                for method in (SOLVERS[solver], SOLVERS[solver].__wrapped__):
                    h = Subproblem(problem, quadratic, 2 * w, 0.7, 0.4, pull)
                    results.append(count_operations(lambda h=h, method=method: method(h, w - tilt, stop)))
                (one, counts), (other, expected) = results
                assert (one - other).norm() < 1e-9
                assert (one - (w - tilt)).norm() > 0.1
                np.testing.assert_allclose(counts, expected, rtol=0.2 * (solver == "newton"))  # rounding may end it


@pytest.mark.parametrize("change", ["rows", "objective"])
def test_data_without_a_useful_basis_have_none(change):
    data, problem, _ = example()
    if change == "rows":
        data = replace(data, train=replace(data.train, x=data.train.x[:, :17]))  # nine rows are more than half of that
    objective = MLP() if change == "objective" else problem.objective
    assert restrict_to_row_span(objective, data, "float32") is None
