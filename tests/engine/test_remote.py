"""Runs whose rows stay at sites equal the runs on pooled rows."""

import jax
import numpy as np
import pytest
from helpers import choice_names, plugin_class, ragged, small_for, traits_of
from sites_in_process import remote_engine

from fcorun.data.rows.rows import Rows
from fcorun.data.rows.site_rows import SiteRows
from fcorun.experiment import build
from fcorun.experiment.prepare import prepare
from fcorun.methods.algorithms.algorithm import Algorithm

EXACT = {"feddualavg", "scaffold"}
SOLVED = {"adap", "meta_analysis"}  # in which solvers and inverses magnify rounding
SHORT = ("precision=float64", "rounds=2", "eval_every=2")


def star_algorithms():
    """Return the names of the algorithms that run with a server, by means of uploads, without edges or places."""
    names = []
    for name in choice_names("algo"):
        kind = plugin_class("algo", name)
        if issubclass(kind, Algorithm) and kind.server_all is Algorithm.server_all and not kind.divides_cohort:
            names.append(name)
    return [name for name in names if traits_of(name).hierarchy not in ("only", "graph")]


def pooled_and_remote(config, groups, n_runs=1):
    """Return the last snapshot of a run on pooled rows, and of the run whose rows stay at sites."""
    experiment = prepare(config)
    data = build.load_data(experiment)
    experiment, _ = build.resolve_auto(build.bind_objective(experiment, data), data)
    points = [experiment.numbers()] * n_runs
    with jax.enable_x64(experiment.settings.precision == "float64"):
        *_, pooled = build.build_engine(experiment, data).run(points)
        engine, connections = remote_engine(experiment, data, groups(data.n_clients), points)
        *_, remote = engine.run(points)
    return pooled, remote, connections


def one_each(n_clients):
    return [[m] for m in range(n_clients)]


def assert_alike(pooled, remote, rtol):
    for name, values in pooled.solution.items():
        largest = np.abs(values).max(initial=1e-300)
        np.testing.assert_allclose(remote.solution[name], values, rtol=0, atol=rtol * largest)
    assert {name for name in pooled.metrics if not name.startswith("personal_")} <= set(remote.metrics)
    for name, values in remote.metrics.items():
        np.testing.assert_allclose(values, pooled.metrics[name], rtol=max(rtol, 1e-12), atol=1e-20, err_msg=name)
    np.testing.assert_allclose(remote.work, pooled.work, rtol=0 if rtol == 0 else 0.02)  # of solvers that iterate


@pytest.mark.slow
@pytest.mark.parametrize("algo", star_algorithms())
def test_one_client_a_site_takes_the_steps_of_the_pooled_run(algo):
    """To the bit, but for algorithms whose programs a compiler fuses otherwise: these differ in the last digit."""
    config = small_for(algo, *SHORT)
    assert config["topology"]["name"] == "star"
    pooled, remote, _ = pooled_and_remote(config, one_each)
    tolerance = 1e-11 if algo in SOLVED else 1e-14
    assert_alike(pooled, remote, 0 if algo in EXACT else tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("cohort", ["null", 3])
def test_several_clients_a_site_and_clients_of_unequal_sizes(tmp_path, cohort):
    config = ragged(tmp_path, "algo=scaffold", *SHORT, f"clients_per_round={cohort}", "batch_size=3")
    pooled, remote, connections = pooled_and_remote(config, lambda m: [list(range(0, m, 2)), list(range(1, m, 2))])
    assert_alike(pooled, remote, 1e-12)
    assert len(connections.sites) == 2


@pytest.mark.slow
def test_runs_of_a_grid_are_one_message():
    pooled, remote, connections = pooled_and_remote(small_for("feddualavg", *SHORT), one_each, n_runs=3)
    assert_alike(pooled, remote, 1e-15)
    assert all(sent < 40_000 for sent in connections.bytes_sent.values())


def test_rows_at_sites_have_what_rows_have():
    """Counts and weights are those of all clients, positions those of the rows that are here."""
    x, y, client = np.ones((3, 2)), np.arange(3.0), np.array([1, 1, 3])
    rows = SiteRows(x=x, y=y, client=client, all_sizes=np.array([4, 2, 5, 1]))
    assert rows.n_clients == 4
    assert rows.n_rows == 12
    assert rows.local_client_slices == [slice(0, 2), slice(2, 3)]
    np.testing.assert_array_equal(rows.device_starts[[1, 3]], [0, 2])
    np.testing.assert_allclose(rows.objective_weights("uniform"), [1 / 8, 1 / 8, 1 / 4])
    np.testing.assert_allclose(rows.objective_weights("examples"), np.full(3, 1 / 12))
    assert isinstance(rows.take(slice(1)), Rows)


@pytest.mark.slow
def test_shares_of_sites_have_the_bits_of_the_pooled_run(tmp_path):
    """XLA divides 50 by 150 otherwise than NumPy."""
    config = ragged(tmp_path, "algo=feddualavg", "rounds=3", "eval_every=3", "precision=float64", sizes=(50,) * 3)
    pooled, remote, _ = pooled_and_remote(config, one_each)
    assert_alike(pooled, remote, 0)
