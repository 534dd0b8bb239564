"""Clients with fewer rows than features: in coordinates of the span of their rows methods take the same steps."""

import numpy as np
import pytest
from helpers import engine_of, ragged, snapshots

from fcorun.engine import federation

SIZES = (4, 9, 6)


def both(configs, monkeypatch):
    """The snapshots with bases and without."""
    engine = engine_of(configs[0])
    found = snapshots(*configs, engine=engine)
    assert engine.federation.arrays[0].decomposed.basis.shape == (3, 9, 24)
    monkeypatch.setattr(federation, "spanned", lambda *_: None)
    other = engine_of(configs[0])
    expected = snapshots(*configs, engine=other)
    assert other.federation.arrays[0].decomposed is None
    return found, expected


def assert_alike(found, expected, atol=1e-10, rounded=False):
    """``rounded``: rounding may decide when a solver is done."""
    for one, other in zip(found, expected, strict=True):
        for name, values in other.solution.items():
            np.testing.assert_allclose(one.solution[name], values, atol=atol)
        for name, values in (other.models or {}).items():
            np.testing.assert_allclose(one.models[name], values, atol=atol)
        np.testing.assert_allclose(one.work, other.work, rtol=0.2 if rounded else 0)
    assert np.abs(expected[-1].solution["weights"] - expected[0].solution["weights"]).max() > 1e-3


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
def test_the_same_steps_in_the_span_of_a_clients_rows(algo, task, ridge, tmp_path, monkeypatch):
    config = ragged(tmp_path, *algo.split(), f"objective.ridge={ridge}", "reg=none", "batch_size=null",
                    "clients_per_round=null", sizes=SIZES, features=24, task=task)  # fmt: skip
    assert_alike(*both([config], monkeypatch), rounded="newton" in algo)


def test_several_runs_at_once_in_the_span(tmp_path, monkeypatch):
    each = [f"algo.lam={lam}" for lam in (0.1, 0.5)]
    configs = [ragged(tmp_path, "algo=pfedmac", "algo.solver=gradient", "algo.iterations=6", "objective.ridge=0.2",
                      "objective.intercept=false", "reg=none", "batch_size=null", "clients_per_round=null", lam,
                      sizes=SIZES, features=24, task="multiclass") for lam in each]  # fmt: skip
    assert_alike(*both(configs, monkeypatch))


@pytest.mark.parametrize("algo", ["algo=fedsplit algo.solver=gradient algo.iterations=2", "algo=fedavg"])
def test_rows_are_taken_as_they_are_where_a_basis_does_not_pay(algo, tmp_path):
    config = ragged(tmp_path, *algo.split(), "reg=none", "batch_size=null", "clients_per_round=null", sizes=SIZES,
                    features=24, task="binary")  # fmt: skip
    assert engine_of(config).federation.arrays[0].decomposed is None
