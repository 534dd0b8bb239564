"""Clients whose rows are generated when a round needs them: the results of stored rows."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from fcorun import UserError, compose
from fcorun.data.datasets.heterogeneous_million import HeterogeneousMillion
from fcorun.data.datasets.lasso_million import LassoMillion
from fcorun.data.datasets.synthetic import GeneratedRows, materialize_clients
from fcorun.data.rows.rows import Rows
from fcorun.experiment.build import build_engine, load_data
from fcorun.experiment.prepare import prepare

SMALL = ["data.clients=12", "data.samples=7", "data.features=10", "data.evaluated=3", "rounds=6", "eval_every=3"]

RATE = "algo.client_lr=0.01"


def small_experiment(data: str, *overrides: str):
    """Return an experiment on a few generated clients, and its data."""
    nonzeros = ["data.nonzeros=5"] if data == "lasso_million" else ["data.shared_nonzeros=5"]
    experiment = prepare(compose([f"data={data}", *SMALL, *nonzeros, "clients_per_round=4", *overrides]))
    return experiment, load_data(experiment)


def small_clients(data: str, *overrides: str) -> GeneratedRows:
    train = small_experiment(data, *overrides)[1].train
    assert isinstance(train, GeneratedRows)
    return train


def final_solution_and_work(experiment, data):
    engine = build_engine(experiment, data)
    with jax.enable_x64(experiment.settings.precision == "float64"):
        last = list(engine.run([experiment.numbers()]))[-1]
    return last.solution, last.work


def store_rows(data):
    """Return the same data with the rows of all clients stored."""
    train = data.train
    x, y = materialize_clients(train.generate, 0, train.population)
    offsets = np.arange(train.population + 1) * train.rows_per_client
    return replace(data, train=Rows.from_offsets(x, y.astype(train.y.dtype), offsets))


# each way in which algorithms take rows, on one of the two data sets
CASES = [
    ("lasso_million", ["algo=feddualavg", "batch_size=3", RATE]),
    ("heterogeneous_million", ["algo=feddualavg", "batch_size=3", RATE]),
    ("lasso_million", ["algo=fedmid", RATE, "batch_size=null", "local_epochs=2"]),
    (
        "heterogeneous_million",
        ["algo=fedavg", RATE, "batch_size=3", "clients_per_round=null", "client_weighting=uniform"],
    ),
    ("lasso_million", ["algo=fedmid_osp", RATE, "batch_size=3", "local_steps=4", "local_epochs=null"]),
    ("heterogeneous_million", ["algo=scaffold", RATE, "batch_size=3"]),
    ("lasso_million", ["algo=scaffold", RATE, "batch_size=3", "clients_per_round=null"]),
    (
        "heterogeneous_million",
        ["algo=pfedme", "algo.client_lr=1", "algo.tolerance=1e-10", "batch_size=3", "precision=float64"],
    ),
    ("heterogeneous_million", ["algo=fedprox", "algo.mu=1"]),
    ("lasso_million", ["algo=fedgd", "algo.step=0.01", "data.samples=20"]),
    ("lasso_million", ["algo=fedavg", "algo.class=svrg.SVRG", RATE, "batch_size=3"]),
]


@pytest.mark.slow
@pytest.mark.parametrize(("data", "overrides"), CASES, ids=lambda value: value if isinstance(value, str) else value[0])
def test_generated_rows_give_the_results_of_stored_rows(data, overrides):
    experiment, generated = small_experiment(data, *overrides)
    solution, work = final_solution_and_work(experiment, generated)
    stored_solution, stored_work = final_solution_and_work(experiment, store_rows(generated))
    for name in solution:
        np.testing.assert_allclose(solution[name], stored_solution[name], rtol=2e-6, atol=2e-7)
    assert work.sum() > 0
    if overrides[0] not in ("algo=fedprox", "algo=pfedme"):  # which have closed forms of stored rows, or inner solvers
        assert (work == stored_work).all()


@pytest.mark.slow
def test_a_client_has_the_same_rows_alone_and_among_others():
    clients = small_clients("lasso_million")
    x, y = materialize_clients(clients.generate, 0, 12)
    for number in (0, 5, 11):
        one = materialize_clients(clients.generate, number, 1)
        np.testing.assert_array_equal(one[0], x[7 * number : 7 * number + 7])
        np.testing.assert_array_equal(one[1], y[7 * number : 7 * number + 7])
    assert len(np.unique(x.round(5), axis=0)) == len(x)  # no two clients share a row
    np.testing.assert_array_equal(small_experiment("lasso_million")[1].train.x, x[:21])


@pytest.mark.slow
@pytest.mark.parametrize("data", ["lasso_million", "heterogeneous_million"])
def test_a_client_has_the_same_rows_in_float64(data):
    clients = small_clients(data)
    rows = materialize_clients(clients.generate, 0, 12)
    with jax.enable_x64(True):
        again = materialize_clients(clients.generate, 0, 12)
    for one, other in zip(rows, again, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_the_law_of_the_rows():
    clients = small_clients("lasso_million", "data.clients=4000", "data.mean_scale=0.5")
    x, y = materialize_clients(clients.generate, 0, 4000)
    means = x.reshape(4000, 7, 10).mean(axis=1)
    np.testing.assert_allclose(x.var(axis=0), 1 + 0.25, rtol=0.05)
    np.testing.assert_allclose(means.var(axis=0), 0.25 + 1 / 7, rtol=0.1)
    weights = np.linalg.lstsq(np.column_stack([x, np.ones(len(x))]), y, rcond=None)[0]
    np.testing.assert_allclose(weights[:10], np.arange(10) < 5, atol=0.05)


@pytest.mark.slow
def test_a_million_clients_take_no_memory():
    experiment, data = small_experiment("lasso_million", "data.clients=1000000", "algo=feddualavg", "batch_size=3")
    assert data.train.x.shape == (21, 10)
    assert data.train.n_rows == 7_000_000
    schedule = build_engine(experiment, data).federation.schedule
    for values in (schedule.sizes, schedule.starts, schedule.averaging_weights, schedule.steps):
        assert values.shape == (1_000_000,)
        assert values.strides == (0,)
    assert schedule.draw_rounds(0, 3).cohort.max() > 10_000


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["algo=centralized"], "algo=centralized takes the rows of all clients"),
        (["algo=feddualavg", "reference=true"], "reference=true solves"),
        (["algo=fedavg", "algo.client_lr=auto"], "give a value for algo.client_lr"),
        (["algo=fedavg", "topology=tree", "topology.edges=2"], "topology=tree"),
    ],
)
def test_options_that_need_all_rows_are_refused(overrides, message):
    with pytest.raises(UserError, match=message):
        final_solution_and_work(*small_experiment("lasso_million", *overrides))


@pytest.mark.parametrize(("option", "value"), [("seed", 2**32), ("clients", 3 * 10**9)])
def test_numbers_that_the_generator_would_cut_are_refused(option, value):
    for dataset in (LassoMillion, HeterogeneousMillion):
        with pytest.raises(UserError, match=f"data.{option}={value}"):
            dataset(**{option: value})
