"""A small path of every algorithm that applies psi, of every penalty with a strength, and of every ball."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import choice_names, composed, matrices_only, plugin_class, small_for, traits_of

from fcorun.experiment.prepare import prepare
from fcorun.selection.result import SelectOptions
from fcorun.selection.select import plan_selection, select

ALGORITHMS = [
    name for name in choice_names("algo") if traits_of(name).psi_sides or "central" in name or name == "one_client"
]
PENALTIES = [
    name for name in choice_names("reg") if hasattr(plugin_class("reg", name), "strength_max") or "ball" in name
]


@pytest.fixture
def no_refit(monkeypatch):
    """The refit, an ordinary run, is only prepared."""

    def prepared(config, *_):
        prepare(config)
        return SimpleNamespace(status={})

    monkeypatch.setattr("fcorun.selection.select.run", prepared)


@pytest.mark.slow
@pytest.mark.usefixtures("no_refit")
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_each_algorithm(algo):
    found = select(small_for(algo), SelectOptions(folds=2, points=2), "out")
    assert np.isfinite(found.choice.mean).all()
    assert found.cost["runs"] == 6


@pytest.mark.slow
@pytest.mark.parametrize("reg", PENALTIES)
def test_each_penalty(reg):
    """Its path on one fold; what else a selection does is of no penalty."""
    matrix = ("data=lowrank", "data.clients=4", "data.samples=8", "data.rows=4", "data.columns=3", "data.rank=1")
    more = ("algo=fedmid", "clients_per_round=null", "batch_size=5", "rounds=4", "eval_every=2")
    settings = composed(*matrix, *more, f"reg={reg}") if matrices_only(reg) else small_for("fedmid", f"reg={reg}")
    planned = plan_selection(settings, SelectOptions(folds=2, points=3), "out")
    study = replace(planned.study, subset_makers={"fold1": planned.study.subset_makers["fold1"]})
    with study.claim():
        (fitted,) = study.compute_fits(lambda _, each: each, print).values()
    scores = fitted.metrics[planned.metric]
    assert np.isfinite(scores).all()
    assert np.ptp(scores) > 0
