"""Small paths of every algorithm that applies psi, of every penalty with a strength, and of every ball."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import algorithm_of, choice_names, composed, matrices_only, plugin_class, small_for
from run_studies import select
from table_files import applies_psi, classify

from fcorun.studies.selection.fitting import END_STATES
from fcorun.studies.selection.select import plan_selection
from fcorun.studies.selection.selection_result import SelectOptions

ALGORITHMS = [name for name in choice_names("algo") if applies_psi(name)]
PENALTIES = [
    name
    for name in choice_names("reg")
    if hasattr(plugin_class("reg", name), "strength_max") or hasattr(plugin_class("reg", name), "radius")
]


@pytest.fixture
def no_refit(monkeypatch):
    """Prepare the refit, an ordinary run, without running it."""
    not_run = [SimpleNamespace(status={})]
    monkeypatch.setattr("fcorun.studies.selection.study.run_experiments", lambda *_: not_run)


@pytest.mark.slow
@pytest.mark.usefixtures("no_refit")
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_algorithm_selects(algo):
    """Every algorithm tells the classes that it takes apart on held-out folds, if it takes any."""
    squared = algorithm_of(algo).needs_quadratic_losses
    task = "binary" if algorithm_of(algo).needs_one_output else "multiclass"
    settings = small_for(algo) if squared else composed(*classify(algo, task), "data.validation=0")
    values = [3.0, 6.0] if algorithm_of(algo).needs_bounded_domain else [0.03, 0.1]  # radii or strengths
    selection = select(settings, SelectOptions(folds=2, points=2, range=values), "out")
    assert np.isfinite(selection.choice.mean).all()
    assert selection.cost["runs"] == 6
    if not squared:
        metric = "personal_val_accuracy" if algo == "local" else "val_accuracy"
        accuracy = np.mean([selection.fits[f"fold{k}"].metrics[metric] for k in (1, 2)], axis=0)
        assert accuracy.max() > 0.6
        assert selection.fits["all"].solution["weights"].shape == ((2, 3) if task == "binary" else (2, 3, 3))


@pytest.mark.slow
@pytest.mark.parametrize("reg", PENALTIES)
def test_every_penalty_has_a_path(reg):
    """Run the path on one fold, with finite metrics and constraints that hold.

    The rest of a selection does not depend on the penalty.
    """
    matrix_data = ("data=lowrank", "data.clients=4", "data.samples=8", "data.rows=4", "data.columns=3", "data.rank=1")
    fast = ("algo=fedmid", "clients_per_round=null", "batch_size=5", "rounds=4", "eval_every=2")
    settings = composed(*matrix_data, *fast, f"reg={reg}") if matrices_only(reg) else small_for("fedmid", f"reg={reg}")
    plan = plan_selection(settings, SelectOptions(folds=2, points=3), "out")
    study = replace(plan.study, subsets={"fold1": plan.study.subsets["fold1"]})
    with study.claim():
        (fit,) = study.compute_fits(lambda _, fit: fit, print).values()
    assert all(np.isfinite(values).all() for values in fit.metrics.values())
    assert "diverged" not in {END_STATES[state] for state in fit.end_state}
    assert "ball" not in reg or fit.metrics["violation"].max() <= 1e-5
    assert np.ptp(fit.metrics[plan.metric]) > 0
