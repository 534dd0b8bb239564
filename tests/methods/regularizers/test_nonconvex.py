"""Regularizers that are not convex: the prox against a fine grid and all supports, and what needs convexity."""

from itertools import combinations
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import NONCONVEX, algorithm_of, choice_names, fails, ragged, small, small_for, traits_of
from run_studies import select

from fcorun import run
from fcorun.experiment.build import build_problem, load_data
from fcorun.experiment.prepare import prepare
from fcorun.methods.problem.problem import Vector
from fcorun.methods.problem.solver import gather_rows
from fcorun.methods.regularizers import MCP, SCAD, L0Ball, LogSum
from fcorun.results.models.inference_problem import explain_no_intervals
from fcorun.studies.selection.selection_result import SelectOptions

PENALTIES: list[tuple[Any, float]] = [  # with their weak convexity
    (MCP(strength=0.7, gamma=3.0), 1 / 3.0),
    (MCP(strength=1.3, gamma=0.8), 1 / 0.8),
    (SCAD(strength=0.7, gamma=3.7), 1 / 2.7),
    (SCAD(strength=0.4, gamma=2.2), 1 / 1.2),
    (LogSum(strength=0.7, epsilon=1.0), 0.7),
    (LogSum(strength=0.3, epsilon=0.2), 7.5),
]
CORRECTED = ("fedcanon", "fednmap")
GRID = np.linspace(-8, 8, 320_001)
Z = np.concatenate([np.linspace(-6, 6, 61), [0.7, 1.3, 0.41]])


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("t", [0.0, 0.3, 1.5, 2.9, 6.0])  # below and above the inverse of each weak convexity
@pytest.mark.parametrize("psi", [psi for psi, _ in PENALTIES])
def test_the_prox_is_the_minimizer_on_a_fine_grid(psi, t):
    def minimized(u, z):
        return t * jax.vmap(psi.value)(u[:, None]) + (u - z) ** 2 / 2

    values = t * np.asarray(jax.vmap(psi.value)(jnp.asarray(GRID)[:, None]))
    prox = np.asarray(psi.prox(jnp.asarray(Z), t))
    at_prox = np.asarray(minimized(jnp.asarray(prox), jnp.asarray(Z)))
    for z, w, lowest in zip(Z, prox, at_prox, strict=True):
        on_grid = values + (GRID - z) ** 2 / 2
        assert lowest <= on_grid.min() + 1e-12
        if np.sort(on_grid[[0, -1]]).min() > on_grid.min() + 1e-6 and _has_one_minimum(on_grid):
            assert abs(GRID[on_grid.argmin()] - w) < 2e-3


@pytest.mark.parametrize("steps", range(5))
@pytest.mark.parametrize(("cls", "limit"), [(SCAD, 2.05 - 1), (SCAD, 2.11 - 1), (MCP, 2.05)])
def test_the_prox_near_its_limit_is_monotone_and_shrinks(cls, limit, steps):
    """A few float32 numbers below the limit, rounding near gamma * strength was divided by nearly 0."""
    gamma = jnp.float32(limit + (cls is SCAD))
    t = np.float32(gamma) - np.float32(cls is SCAD)
    for _ in range(steps):
        t = np.nextafter(t, np.float32(0))
    psi = cls(strength=jnp.float32(0.7), gamma=gamma)
    z = np.float32(gamma * 0.7 * (1 + np.arange(-40, 41) * 6e-8))
    w = np.asarray(psi.prox(jnp.asarray(z), jnp.float32(t)))
    assert (np.diff(w) >= -1e-6).all()
    assert (w <= z).all()
    np.testing.assert_array_equal(psi.prox(jnp.asarray(-z), jnp.float32(t)), -w)


def _has_one_minimum(values) -> bool:
    """Return whether points whose value is within 1e-6 of the least one are neighbours."""
    near = np.flatnonzero(values < values.min() + 1e-6)
    return near[-1] - near[0] < 1000


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("psi", "rho"), PENALTIES)
def test_a_penalty_is_weakly_convex_and_its_slope_at_0_is_known(psi, rho):
    values = np.asarray(jax.vmap(psi.value)(jnp.asarray(GRID)[:, None]))
    second_differences = np.diff(values + rho / 2 * GRID**2, 2)
    assert second_differences.min() > -1e-11
    assert np.diff(values + 0.9 * rho / 2 * GRID**2, 2).min() < -1e-11
    slope = psi.strength / getattr(psi, "epsilon", 1.0)
    assert float(psi.value(jnp.asarray([1e-6]))) == pytest.approx(1e-6 * slope, rel=1e-4)


@pytest.mark.parametrize(("psi", "limit"), [(MCP(strength=0.7), 0.7**2 * 1.5), (SCAD(strength=0.7), 0.7**2 * 2.35)])
def test_large_coefficients_have_a_constant_penalty_and_no_bias(psi, limit):
    w = jnp.asarray([5.0])
    assert float(psi.value(w)) == pytest.approx(limit)
    np.testing.assert_array_equal(psi.prox(w, 0.5), w)


@pytest.mark.parametrize("nonzeros", [1, 3, 6])
def test_the_l0_ball_keeps_the_best_support_also_among_ties(nonzeros):
    psi = L0Ball(nonzeros=nonzeros)
    for z in (np.array([0.1, -3.0, 2.0, 0.5, 0.5, -0.5]), np.ones(6)):
        w = np.asarray(psi.project(jnp.asarray(z)))
        supports = combinations(range(6), nonzeros)
        best = min(np.delete(z, list(support)) @ np.delete(z, list(support)) for support in supports)
        assert (w - z) @ (w - z) == pytest.approx(best, abs=1e-6)
        assert (w != 0).sum() == nonzeros


def test_more_nonzeros_than_entries_are_refused():
    experiment = prepare(small("reg=l0_ball", "reg.nonzeros=21"))
    with fails("reg.nonzeros=21 is more than the 20 entries"):
        build_problem(experiment, load_data(experiment))


def test_scad_refuses_a_gamma_up_to_2():
    with fails("reg.gamma=2 must be above 2"):
        SCAD(strength=1.0, gamma=2.0)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("reg", "algo"),
    [*((reg, "fedmid_osp") for reg in NONCONVEX), *((reg, a) for reg in ("mcp", "log_sum") for a in CORRECTED)],
)
def test_runs_end_at_a_stationary_point(reg, algo, tmp_path):
    """One step of all clients with all rows in a round is a proximal gradient step of length s on F + psi.

    FedCanon and FedNMap, whose theory allows a weakly convex psi, take several steps.
    """
    s = 0.1
    rates = (f"algo.client_lr={s}", "algo.server_lr=1")
    if algo in CORRECTED:
        rates = ("algo.client_lr=0.02", "algo.server_lr=1", "local_epochs=null", "local_steps=4")
    options = (f"reg={reg}", "rounds=1000", "eval_every=1000", "report=false")
    psi = "reg.nonzeros=3" if reg == "l0_ball" else "reg.strength=0.1"
    config = ragged(tmp_path, *options, psi, f"algo={algo}", *rates)
    record = run(config, tmp_path / "run")
    experiment = prepare(config)
    data = load_data(experiment)
    problem, batch = build_problem(experiment, data), gather_rows(data, "examples")
    w = Vector({name: jnp.asarray(value) for name, value in record.solution.items()})
    moved = problem.prox(w - s * problem.gradient(w, batch), s)
    assert all(float(jnp.abs(moved[name] - w[name]).max()) < 1e-9 for name in w)
    assert 0 < float(record.metrics["density"].iloc[-1]) <= 1
    assert record.metrics["objective"].iloc[-1] < record.metrics["objective"].iloc[0]


# these take all penalties and constraints otherwise, unlike algorithms that need a bounded set
NEED_CONVEXITY = []
for name in choice_names("algo"):
    if traits_of(name).needs_convex_psi and not algorithm_of(name).needs_bounded_domain:
        NEED_CONVEXITY.append(name)


@pytest.mark.parametrize("algo", NEED_CONVEXITY)
def test_algorithms_whose_theory_needs_a_convex_psi_refuse_others(algo):
    config = small_for(algo)
    config["reg"] = small("reg=mcp")["reg"]
    with fails(f"algo={algo} needs a convex psi, and reg=mcp is not convex: choose another reg, or an algo"):
        prepare(config)


def test_a_solver_of_a_global_model_refuses_what_it_refuses_alone():
    config = small_for("ditto", "algo.solver=feddualavg")
    config["reg"] = small("reg=mcp")["reg"]
    with fails("algo=ditto needs a convex psi, and reg=mcp is not convex"):
        prepare(config)


def test_dual_averaging_splittings_and_inner_solvers_need_convexity():
    assert {"feddualavg", "fast_fedda", "fedsplit", "feddr", "fedadmm", "proxskip", "dane", "newton"} <= {
        *NEED_CONVEXITY
    }
    assert not {"fedmid", "fedmid_osp", "local"} & {*NEED_CONVEXITY}


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("reference=true", "reference=true needs one optimum, and reg=mcp is not convex"),
        ("gap=true", "gap=true needs one optimum, and reg=mcp is not convex"),
        ("algo=centralized", "algo=centralized needs one optimum, and reg=mcp is not convex"),
        ("reg.factors={0:0.0}", "reg.factors weighs the penalties of single features"),
        ("mirror=diagonal", "mirror=diagonal has no way to retrieve with reg=mcp"),
    ],
)
def test_what_needs_convexity_is_refused_in_one_sentence(option, words):
    config = small("reg=mcp")
    section = option.partition("=")[0]
    if section in ("algo", "mirror"):
        config[section] = small(option)[section]
    elif section == "reg.factors":
        config["reg"]["factors"] = {"0": 0.0}
    else:
        config[section] = True
    with fails(words):
        prepare(config)


def test_intervals_and_paths_are_refused():
    assert "it is not convex" in explain_no_intervals(prepare(small("reg=mcp")))
    with fails("reg=mcp does not say at which strength its solution is 0", "give range=[LOW,HIGH]"):
        select(small("reg=mcp"), SelectOptions(folds=2, points=2), "out")


@pytest.mark.slow
def test_a_path_in_a_given_range_chooses_by_validation_loss(monkeypatch):
    not_run = [SimpleNamespace(status={})]
    monkeypatch.setattr("fcorun.studies.selection.study.run_experiments", lambda *_: not_run)
    selection = select(small("reg=mcp"), SelectOptions(folds=2, points=2, range=[0.01, 0.1]), "out")
    assert np.isfinite(selection.choice.mean).all()
