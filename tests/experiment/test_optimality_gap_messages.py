"""Messages on the optimality gap: statements only of what is known, with advice that would help."""

import numpy as np
import pytest
from helpers import ragged

from fcorun import run
from fcorun.experiment.build import load_data, resolve_auto
from fcorun.experiment.optimality_gap import _summarize_gap, advise
from fcorun.experiment.prepare import prepare
from fcorun.results.models.coefficients import Coefficients
from fcorun.runs.finish import _add_final_warnings
from fcorun.runs.job import Job

BRIEF = ("rounds=60", "eval_every=10")


def table(folder, *overrides, x=None, y=None, sizes=(20,) * 3, **options):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((sum(sizes), 4)) if x is None else x
    y = x @ np.linspace(1, 2, x.shape[1]) + 3 * np.repeat(range(len(sizes)), sizes) if y is None else y
    return ragged(folder, *BRIEF, "data.standardize=none", *overrides, sizes=sizes, x=x, y=y, **options)


def test_a_norm_is_not_a_bound():
    """The solver was at rest long before the optimum of the badly scaled problem below."""
    gap = _summarize_gap((2.0, 1.0), 1.0, -np.inf, ("prox-gradient norm", 1e-9, True))
    assert (gap.near, gap.sure, gap.above) == (None, False, 0.0)
    assert _summarize_gap((2.0, 1.0), 0.9, -np.inf, ("prox-gradient norm", 1e-9, True)).near is False
    assert _summarize_gap((2.0, 1.0), 1.0, 0.995, ("duality gap", 0.005, True)).near is True


@pytest.mark.slow
def test_units_that_differ_a_billion_times_do_not_hide_the_optimum(tmp_path):
    rng = np.random.default_rng(0)
    large, little = rng.standard_normal((2, 60))
    config = table(tmp_path, "algo=fedavg", "reg=none", "objective.intercept=false", sizes=(20,) * 3,
                   x=np.stack([1e5 * large, 1e-4 * little], 1), y=large + 10 * little)  # fmt: skip
    record = run(config, "run")
    certificate = record.summary["certificate"]
    assert certificate["near"] is False
    assert certificate["left"] > 0.9
    advice = '% of what was to be gained is left: data.standardize="pooled" makes steps longer'  # as Python has it
    assert advice in record.status["reason"]


@pytest.mark.slow
def test_an_optimum_of_zero_is_near_when_all_was_gained(tmp_path):
    x = np.random.default_rng(0).standard_normal((20, 30))
    wide = {"x": x, "y": x @ np.ones(30), "sizes": (5,) * 4}
    converged = run(table(tmp_path, "algo=fedavg", "reg=none", "rounds=400", **wide), "there")
    assert converged.status["reason"] == ""
    assert converged.summary["certificate"]["near"]
    assert converged.summary["certificate"]["above"] is None
    short = run(table(tmp_path, "algo=fedavg", "reg=none", "rounds=3", "eval_every=1", **wide), "short")
    assert "% of what was to be gained is left: more rounds may help" in short.status["reason"]


@pytest.mark.parametrize(("near", "expected_start"), [(None, "not finished"), (True, ""), (False, "")])
def test_an_unknown_gap_leaves_the_warning_to_the_rows(near, expected_start, tmp_path):
    job = Job(prepare(table(tmp_path, "algo=fedavg")), run_folder=None)  # type: ignore[arg-type]
    job.rows, job.certificate = [{"objective": float(v)} for v in range(20, 2, -1)], {"near": near}
    _add_final_warnings(job)
    assert job.reason.startswith(expected_start)
    assert bool(job.reason) is bool(expected_start)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(5, 5, 60), (20, 20, 20)])
def test_cohorts_of_unequal_clients_are_named(sizes, tmp_path):
    """With one client in a round each has weight 1, whatever its rows: the fixed point is that of equal clients."""
    config = table(tmp_path, "algo=fedavg", "reg=none", "clients_per_round=1", "rounds=500", "eval_every=100",
                   sizes=sizes)  # fmt: skip
    reason = run(config, "run").status["reason"]
    assert ("cohorts of unequal clients" in reason) is (sizes == (5, 5, 60))


@pytest.mark.slow
@pytest.mark.parametrize(("algo", "even"), [("fedavg", False), ("fedcomposite", False), ("scaffold", True)])
def test_unequal_numbers_of_steps_are_named(algo, even, tmp_path):
    config = table(tmp_path, f"algo={algo}", "reg=none", "batch_size=5", "local_epochs=1", "rounds=500",
                   "eval_every=100", "client_weighting=uniform", sizes=(5, 5, 60))  # fmt: skip
    assert ("unequal numbers of steps" in run(config, "run").status["reason"]) is not even


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (
            ("algo=fedmid", "local_epochs=5"),
            "fedmid does not reach the optimum in any number of rounds",
        ),
        (
            ("algo=fedmid", "clients_per_round=2"),
            "fedmid does not reach the optimum in any number of rounds",
        ),
        (("algo=fedmid", "reg.applied_by=client"), "fedmid does not reach the optimum in any number of rounds"),
        (
            ("algo=fedcomposite", "batch_size=5"),
            "with minibatches fedcomposite does not reach the optimum in any number of rounds",
        ),
        (("algo=feddualavg_osp",), "feddualavg_osp converges to a minimizer of reg=l1 alone, 0 for a norm"),
        (
            ("algo=fedavg", "reg=none", "local_epochs=2"),
            "fedavg does not reach the optimum in any number of rounds",
        ),
        (("algo=fedcomposite",), "more rounds may help"),
        (("algo=dlsa",), "dlsa sends nothing after round 1, so that more rounds change nothing"),
        (("algo=feddualavg",), "more rounds may help"),
        (("algo=fedavg", "reg=none"), "more rounds may help"),
        (("algo=scaffold", "reg=none", "clients_per_round=2"), "more rounds may help"),
    ],
)
def test_the_advice_fits_the_cause(overrides, expected, tmp_path):
    experiment = prepare(table(tmp_path, "reg=l1", *overrides))
    assert advise(experiment, load_data(experiment), falling=False).startswith(expected)


def test_an_algorithm_of_a_user_is_not_said_to_be_unable(tmp_path, user_module):
    user_module("mine", "from dataclasses import dataclass\nfrom fcorun import FedAvg\n@dataclass(frozen=True)\n"
                        "class Mine(FedAvg):\n    pass\n")  # fmt: skip
    experiment = prepare(table(tmp_path, "reg=none", "algo=fedavg", "algo.class=mine.Mine"))
    advice = advise(experiment, load_data(experiment), falling=False)
    assert advice.startswith("more rounds may help, but fedavg does not declare that it reaches the optimum")


@pytest.mark.parametrize(("reg", "expected"), [("none", "makes steps longer"), ("l1", "makes another problem")])
def test_units_are_named_where_they_differ(reg, expected, tmp_path):
    x = np.random.default_rng(0).standard_normal((60, 3)) * [1, 30, 1000]
    experiment = prepare(table(tmp_path, "algo=feddualavg", f"reg={reg}", x=x))
    assert f"data.standardize=pooled {expected}" in advise(experiment, load_data(experiment), falling=False)
    inexact = prepare(table(tmp_path, "algo=fedmid", "local_epochs=5", f"reg={reg}", x=x))
    advice = advise(inexact, load_data(inexact), falling=False)
    assert f"data.standardize=pooled {expected}" in advice
    assert "and fedmid does not reach the optimum in any number of rounds" in advice


def test_the_server_goes_no_farther_than_the_mean_where_clients_alone_apply_psi(tmp_path):
    def rates(*overrides):
        experiment = prepare(table(tmp_path, "algo=fedmid", "reg=linf_ball", "local_epochs=5", *overrides))
        return resolve_auto(experiment, load_data(experiment))[0].algo

    assert rates().server_lr > 10  # type: ignore[attr-defined]
    assert rates("reg.applied_by=client").server_lr == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("reg", "algo", "density", "expected"),
    [
        ("l1", "feddualavg rounds=0", 0.0, ""),
        ("l1", "feddualavg", 0.0, "reg=l1 made every weight 0: a smaller strength leaves some nonzero"),
        ("l1", "feddualavg", 0.5, ""),
        ("l1", "fedavg", 0.0, ""),  # which ignores psi; the warning before the run says so
        ("l2", "feddualavg", 0.0, ""),
    ],
)
def test_a_strength_that_leaves_no_weight_gives_a_warning(reg, algo, density, expected, tmp_path):
    job = Job(prepare(table(tmp_path, *f"algo={algo}".split(), f"reg={reg}")), run_folder=None)  # type: ignore[arg-type]
    job.rows, job.certificate = [{"objective": 1.0, "density": density}] * 2, {"near": True}
    _add_final_warnings(job)
    assert job.reason == expected


@pytest.mark.parametrize(("target_factor", "expected"), [(0.01, ""), (None, "left no weight above cutoff=0.0001")])
def test_small_weights_are_not_called_zero(target_factor, expected, tmp_path):
    job = Job(prepare(table(tmp_path, "algo=feddualavg", "reg=l1")), run_folder=None)  # type: ignore[arg-type]
    job.rows, job.certificate = [{"objective": 1.0, "density": 0.0}] * 2, {"near": True}
    factors = None if target_factor is None else np.array([target_factor])
    coefficients = Coefficients(("age",), ("",), np.array([[2e-6]]), cutoff_factors=factors)
    _add_final_warnings(job, coefficients=coefficients)
    assert expected in job.reason
    assert bool(expected) is bool(job.reason)
