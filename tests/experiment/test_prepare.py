"""Compatibility checks: algorithms with personal models that are refused, or that give a warning."""

import json
from pathlib import Path

import numpy as np
import pytest
from helpers import HETEROGENEOUS, fails, grid, ragged, run_grid, small, small_for
from quadratics import SIZES, Quadratics

from fcorun import compose, run
from fcorun.experiment.build import load_data, resolve_auto
from fcorun.experiment.prepare import prepare


@pytest.mark.slow
def test_pfedmac_adds_a_ridge_and_says_so_or_is_refused(tmp_path):
    q = Quadratics(ragged(tmp_path, sizes=SIZES))
    lam = q.l + 0.7
    record = run(ragged(tmp_path, "algo=pfedmac", f"algo.lam={lam}", "reg=none", sizes=SIZES), "ridge")
    assert record.summary["curvature"]["algo.ridge"] == pytest.approx(0.7, abs=1e-8)
    assert "algo.ridge=0.7 was added" in record.status["reason"]
    with fails("algo.ridge=0.6", "may have no minimum", 'algo.ridge="auto"'):
        run(ragged(tmp_path, "algo=pfedmac", f"algo.lam={lam}", "algo.ridge=0.6", "reg=none", sizes=SIZES), "little")
    enough = run(ragged(tmp_path, "algo=pfedmac", f"algo.lam={0.9 * q.l}", "reg=none", sizes=SIZES), "enough")
    assert enough.status["reason"] == ""
    assert enough.summary["curvature"]["algo.ridge"] == 0


@pytest.mark.slow
def test_a_point_that_is_refused_does_not_stop_the_others():
    base = compose([*HETEROGENEOUS, "algo=pfedmac", "objective.ridge=0.05", "objective.intercept=false", "algo.ridge=0",
                    "rounds=2", "reg=none"])  # fmt: skip
    with fails("algo.lam=0.1"):
        run_grid(grid(base, {"algo.lam": [0.01, 0.1, 0.03]}), ["a", "b", "c"])
    ends = [json.loads(Path(name, "status.json").read_text()) for name in "abc"]
    assert [end["status"] for end in ends] == ["done", "failed", "done"]
    assert "algo.lam=0.1" in ends[1]["reason"]


@pytest.mark.parametrize("name", ["pfedmac", "pfedmac_s", "pfedmac_sh"])
def test_pfedmac_on_losses_of_unknown_curvature_needs_to_be_told(name):
    tree = ["topology=tree"] if name == "pfedmac_sh" else []
    with fails(f"algo={name}", "algo.ridge"):
        prepare(small(f"algo={name}", *tree, "objective=mlp"))


@pytest.mark.parametrize(
    ("options", "needed"),
    [
        ([], "give a value for algo.client_lr"),
        (["algo.personal_lr=auto"], "give a value for algo.client_lr and a value for algo.personal_lr"),
        (["algo.client_lr=0.1", "algo.personal_lr=auto"], "give a value for algo.personal_lr"),
    ],
)
def test_ditto_asks_for_the_rates_that_it_needs(options, needed):
    table = ["data=table", "data.path=rows.csv", "data.task=regression", "objective=poisson", "algo.client_lr=auto"]
    with fails("algo=ditto", needed):
        prepare(compose(["algo=ditto", *table, *options]))


@pytest.mark.parametrize(
    ("name", "needed"),
    [("fedgd", "a value for algo.step"), ("fedavg", "a value for algo.client_lr"), ("dane", "another algo"),
     ("edsl", "another algo")],
)  # fmt: skip
def test_flat_losses_have_no_automatic_steps(name, needed, tmp_path):
    table = {"x": np.zeros((20, 2)), "y": np.arange(20.0)}
    options = (f"algo={name}", "reg=none", "objective.intercept=false", "data.standardize=none")
    experiment = prepare(ragged(tmp_path, *options, **table))
    with fails(f"algo={name}", "are flat", f"give {needed}"):
        resolve_auto(experiment, load_data(experiment))


def test_smooth_sparsity_is_for_l1():
    with fails("algo=pfedmac_s", "smoothed", "reg=elastic_net"):
        prepare(small("algo=pfedmac_s", "algo.sparsity=huber", "reg=elastic_net"))


def test_algorithms_that_ignore_psi_give_a_warning():
    for name in ("apfl", "pfedme", "mixture", "pfedmac", "ditto"):
        assert "ignores the regularizer psi" in prepare(small_for(name)).warning
    assert not prepare(small_for("ditto", "algo.solver=feddualavg")).warning
    assert not prepare(small_for("pfedmac_s")).warning
