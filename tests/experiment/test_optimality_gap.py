"""Rates that are worked out, on tables: no run diverges, and each comes to the optimum or says that it did not."""

import dataclasses
import re

import numpy as np
import pytest
from helpers import choice_names, fails, grid, plugin_class, ragged, run_grid, small, traits_of

from fcorun import run
from fcorun.experiment.build import compute_problem_constants, load_data, resolve_auto
from fcorun.experiment.optimum import compute_optimum
from fcorun.experiment.prepare import prepare

TASKS = ("regression", "binary", "multiclass")
DEFAULT = ("rounds=500", "eval_every=100")
PSI = [
    "fedavg_subgradient",
    "fedcanon",
    "fedcef",
    "fedcomposite",
    "feddualavg",
    "feddualavg_osp",
    "feddualopt",
    "fedht",
    "fediterht",
    "fedmid",
    "fedmid_osp",
    "fednmap",
]
RATED = [
    *PSI,
    "afl",
    "apfl",
    "c_fedda",
    "ditto",
    "fedac",
    "fedadagrad",
    "fedadam",
    "fedavg",
    "fedavg_threshold",
    "fedavgm",
    "fedexp",
    "fedlin",
    "fednova",
    "fedyogi",
    "fsvrg",
    "local",
    "mc_fedda",
    "mime_lite",
    "qfedavg",
    "scaffold",
]


def hospitals(folder, *overrides, task="regression", features=5, raw=False):
    """Three hospitals whose features differ in their means and, if they are ``raw``, in their units."""
    rng = np.random.default_rng(3)
    sizes = (14, 25, 41)
    owner = np.repeat(np.arange(3), sizes)
    x = rng.standard_normal((80, features)) + 0.5 * rng.standard_normal((3, features))[owner]
    score = x[:, :5] @ [1.5, -1.0, 0.5, 0.0, 0.0] + 0.7 + rng.standard_normal(80)
    y = {"regression": score, "binary": score > 0.5, "multiclass": np.digitize(score, [-0.5, 1.5])}[task]
    x = (x - x.mean(0)) / x.std(0)
    x = x * 10.0 ** rng.uniform(-1, 3, features) + 30 if raw else x
    return ragged(folder, *DEFAULT, *overrides, sizes=sizes, task=task, x=x, y=y)


def above(config, record):
    """By what share the objective of a run's end is above the certified optimum's."""
    experiment = prepare(config)
    best = compute_optimum(experiment, load_data(experiment))["objective"]
    return record.metrics["objective"].iloc[-1] / best - 1


NEAR = [(algo, task, False) for algo in ("feddualavg", "fedmid", "fedcomposite") for task in TASKS]


@pytest.mark.slow
@pytest.mark.parametrize(("algo", "task", "raw"), [*NEAR, *(("feddualavg", task, True) for task in TASKS)])
def test_a_default_run_is_near_the_optimum_or_says_that_it_is_not(algo, task, raw, tmp_path):
    config = hospitals(tmp_path, f"algo={algo}", task=task, raw=raw)
    record = run(config, "run")
    assert record.status["status"] == "done"
    gap, reason = above(config, record), record.status["reason"]
    assert gap <= 0.01 if not reason else "above the optimum" in reason or "not known" in reason
    if gap > 0.01 and not raw:
        percentages = re.findall(r"([\d.]+) % above", reason)
        assert float(percentages[0]) == pytest.approx(100 * gap, rel=0.1)
    if algo != "fedmid" and not raw:  # FedMiD shrinks on the clients and on the server
        assert not reason
        bounded = task != "multiclass"  # of more than two classes there is no duality gap: a norm bounds nothing
        assert record.summary["certificate"]["near"] is (True if bounded else None)
    if raw and gap > 0.01:
        assert 'data.standardize="pooled"' in reason  # as Python has it


PART = ("local_epochs=2", "batch_size=4", "clients_per_round=2")


@pytest.mark.slow
@pytest.mark.parametrize(("algo", "rounds"), [*((a, ("local_epochs=3",)) for a in PSI), *((a, PART) for a in RATED)])
def test_no_rate_diverges_whatever_a_round_is(algo, rounds, tmp_path):
    if not traits_of(algo).partial and "clients_per_round=2" in rounds:
        pytest.skip("it needs all clients")
    record = run(hospitals(tmp_path, f"algo={algo}", *rounds, "rounds=60"), "run")
    assert record.status["status"] == "done"
    assert "smaller rates" not in record.status["reason"]
    metric = "personal_train_loss" if "personal_train_loss" in record.metrics else "train_loss"
    assert record.metrics[metric].iloc[-1] < (0.9 if algo == "fedadagrad" else 0.6) * record.metrics[metric].iloc[0]


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["feddualavg", "fedmid_osp"])
def test_many_local_steps_leave_no_drift(algo, tmp_path):
    config = hospitals(tmp_path, f"algo={algo}", "local_epochs=10")
    assert above(config, run(config, "run")) < 0.01
    drifting = hospitals(tmp_path, f"algo={algo}", "local_epochs=10", "algo.server_lr=1")
    record = run(drifting, "drifting")
    assert 10 * above(config, run(config, "run")) < above(drifting, record)


@pytest.mark.slow
def test_the_solution_on_wide_data_is_sparse(tmp_path):
    """At a rate of 0.01 nearly all weights were nonzero when the rounds were over."""
    wide = ("algo=feddualavg", "reg.strength=0.02", "rounds=300")
    auto = run(hospitals(tmp_path, *wide, task="binary", features=400), "auto")
    slow = run(hospitals(tmp_path, *wide, "algo.client_lr=0.01", task="binary", features=400), "slow")
    assert auto.metrics["density"].iloc[-1] < 0.5 * slow.metrics["density"].iloc[-1]
    assert auto.metrics["objective"].iloc[-1] < slow.metrics["objective"].iloc[-1]


@pytest.mark.slow
def test_the_rates_are_those_of_the_theorems(tmp_path):
    def rates(*overrides):
        experiment = prepare(hospitals(tmp_path, *overrides))
        data = load_data(experiment)
        values = {k: v for k, v in (resolve_auto(experiment, data)[1] or {}).items() if k.startswith("algo.")}
        return compute_problem_constants(experiment, data), {k.removeprefix("algo."): v for k, v in values.items()}

    known, one = rates("algo=fedavg")
    assert (known.local_steps, known.uses_minibatches, known.partial_participation) == (1, False, False)
    assert known.cohort_smoothness < known.client_smoothness == known.smoothness
    assert one == pytest.approx({"client_lr": 1 / known.cohort_smoothness, "server_lr": 1.0})
    known, five = rates("algo=fedavg", "local_epochs=5")
    assert five["client_lr"] == pytest.approx(0.1 / (5 * known.client_smoothness))
    assert 5 * five["client_lr"] * five["server_lr"] == pytest.approx(1 / known.cohort_smoothness)
    known, batches = rates("algo=fedavg", "batch_size=4")
    assert known.local_steps == 11
    assert known.smoothness > known.client_smoothness
    assert batches["client_lr"] <= 1 / known.smoothness
    known, part = rates("algo=fedavg", "clients_per_round=2")
    assert part["client_lr"] == pytest.approx(1 / known.client_smoothness)
    assert rates("algo=fedavg", "algo.client_lr=0.1")[1] == {"server_lr": 1.0}
    momentum = rates("algo=fedavgm", "algo.server_lr=auto", "algo.beta1=0.8")[1]
    assert momentum == pytest.approx({"client_lr": one["client_lr"], "server_lr": 0.2})
    known, ditto = rates("algo=ditto", "algo.lam=2")
    assert ditto["personal_lr"] == pytest.approx(1 / (known.smoothness + 2))


@pytest.mark.slow
def test_a_grid_of_what_is_not_auto_is_one_program(tmp_path):
    config = hospitals(tmp_path, "algo=feddualavg", "rounds=20")
    records = run_grid(grid(config, {"reg.strength": [0.01, 0.3]}), ["a", "b"])
    alone = run(config, "alone")
    np.testing.assert_allclose(records[0].metrics["objective"], alone.metrics["objective"], rtol=1e-9)
    assert records[0].summary["curvature"]["algo.client_lr"] == records[1].summary["curvature"]["algo.client_lr"]


def test_auto_rates_without_bounds_are_refused(tmp_path):
    with fails("algo=feddualavg", "objective=mlp", "a value for algo.client_lr"):
        prepare(ragged(tmp_path, "objective=mlp", task="binary"))
    prepare(ragged(tmp_path, "objective=mlp", "algo.client_lr=0.1", task="binary"))
    with fails("algo=feddualavg", "mirror=diagonal", "a value for algo.client_lr"):
        prepare(ragged(tmp_path, "mirror=diagonal"))


@pytest.mark.slow
def test_every_algorithm_with_a_rate_of_clients_is_here():
    fields = {name: {f.name for f in dataclasses.fields(plugin_class("algo", name))} for name in choice_names("algo")}
    own = {"pfedmac", "pfedmac_s", "pfedmac_sh", "pfedme"}  # 1 / lambda
    assert {name for name, has in fields.items() if "client_lr" in has} - own == set(RATED)


def one(algo):
    topology = {"only": ["topology=tree"], "graph": ["topology=graph"]}.get(traits_of(algo).hierarchy, [])
    return small(f"algo={algo}", "clients_per_round=null", *topology)
