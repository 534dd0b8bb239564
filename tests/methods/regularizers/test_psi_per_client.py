"""Regularizers that differ between clients, and the sides that apply them."""

import numpy as np
import pytest
from helpers import ragged, small, snapshots

from fcorun import UserError, run
from fcorun.experiment.build import aggregate_client_values, build_engine, build_problem, load_data
from fcorun.experiment.prepare import prepare
from fcorun.methods.regularizers import L1

SIZES = (3, 7, 10)


def last_snapshot(config):
    return snapshots(config)[-1]


def with_per_client(config, **values):
    config["reg"]["per_client"] = values
    return config


def problem_from(config):
    experiment = prepare(config)
    return build_problem(experiment, load_data(experiment))


def soft_threshold(z, t):
    return np.sign(z) * np.maximum(np.abs(z) - t, 0)


def mean_square_gradient(features, y):
    """Return the gradient of the mean square, with an intercept."""
    x = np.column_stack([features, np.ones(len(y))])
    return lambda w: 2 * x.T @ (x @ w - y) / len(y)


@pytest.mark.slow
@pytest.mark.parametrize("cohort", ["null", "2"])
@pytest.mark.parametrize("algo", ["fedmid", "feddualavg"])
def test_each_client_applies_its_own_strength(tmp_path, algo, cohort):
    """The boxes in plain NumPy agree: client m applies its own strength, the server the weighted mean."""
    strengths = [0.2, 0.9, 0.4]
    config = ragged(tmp_path, f"algo={algo}", "algo.client_lr=0.05", "algo.server_lr=0.7", "local_epochs=null",
                    "local_steps=2", "rounds=3", f"clients_per_round={cohort}", sizes=SIZES)  # fmt: skip
    snapshot = last_snapshot(with_per_client(config, strength=strengths))
    data = load_data(prepare(config))
    cohorts = build_engine(prepare(config), data).federation.schedule.draw_rounds(0, 3).cohort
    assert cohorts.shape == (3, 3 if cohort == "null" else 2)
    gradients = [
        mean_square_gradient(data.train.x[a:b], data.train.y[a:b])
        for a, b in zip(data.train.offsets, data.train.offsets[1:], strict=False)
    ]
    weights_of_clients = np.array(SIZES) / sum(SIZES)
    mean, lr, steps = weights_of_clients @ strengths, 0.05, 2

    def prox(z, t):
        return np.append(soft_threshold(z[:-1], t), z[-1])

    state, elapsed = np.zeros(7), 0.0
    for cohort_clients in cohorts:
        ends = []
        for gradient, strength in [(gradients[m], strengths[m]) for m in cohort_clients]:
            z = state
            for k in range(steps):
                if algo == "fedmid":
                    z = prox(z - lr * gradient(z), lr * strength)
                else:
                    z = z - lr * gradient(prox(z, (elapsed + lr * k) * strength))
            ends.append(z)
        state = state + 0.7 * (
            weights_of_clients[cohort_clients] @ np.array(ends) / weights_of_clients[cohort_clients].sum() - state
        )
        elapsed += 0.7 * lr * steps
        if algo == "fedmid":
            state = prox(state, 0.7 * lr * steps * mean)
    expected = state if algo == "fedmid" else prox(state, elapsed * mean)
    np.testing.assert_allclose(np.append(snapshot.solution["weights"], snapshot.solution["bias"]), expected, rtol=1e-11)
    psi = mean * np.abs(expected[:-1]).sum()
    np.testing.assert_allclose(snapshot.metrics["objective"] - snapshot.metrics["train_loss"], psi, rtol=1e-10)


@pytest.mark.slow
def test_equal_numbers_are_one_regularizer(tmp_path):
    config = ragged(tmp_path, "algo=feddualavg", "reg.strength=0.3", sizes=SIZES)
    without_per_client = last_snapshot(config).solution["weights"]
    with_equal_strengths = last_snapshot(with_per_client(config, strength=[0.3] * 3)).solution["weights"]
    np.testing.assert_allclose(with_equal_strengths, without_per_client, rtol=1e-12)


@pytest.mark.slow
def test_the_intersection_of_all_constraints_must_hold(tmp_path):
    """The solution satisfies the smallest of the clients' radii."""
    config = ragged(tmp_path, "algo=fedmid", "reg=l1_ball", "rounds=20", "algo.client_lr=0.1", sizes=SIZES)
    snapshot = last_snapshot(with_per_client(config, radius=[0.5, 2.0, 9.0]))
    assert np.abs(snapshot.solution["weights"]).sum() == pytest.approx(0.5)
    assert snapshot.metrics["violation"] == pytest.approx(0, abs=1e-12)
    assert np.isfinite(snapshot.metrics["objective"])


@pytest.mark.slow
@pytest.mark.parametrize(("by", "osp"), [("server", "fedmid_osp"), ("both", "fedmid")])
def test_applied_by_the_server_equals_the_osp_variant(tmp_path, by, osp):
    common = ("algo.client_lr=0.05", "reg.strength=0.4")
    ours = last_snapshot(ragged(tmp_path, "algo=fedmid", f"reg.applied_by={by}", *common, sizes=SIZES))
    theirs = last_snapshot(ragged(tmp_path, f"algo={osp}", *common, sizes=SIZES))
    np.testing.assert_allclose(ours.solution["weights"], theirs.solution["weights"], rtol=1e-12)


@pytest.mark.slow
def test_applied_by_the_clients_leaves_the_mean_as_it_is(tmp_path):
    """With one client FedMiD is proximal gradient; a prox on the server as well would move the fixed point."""
    config = ragged(tmp_path, "algo=fedmid", "reg.applied_by=client", "reg.strength=0.4", "algo.server_lr=1",
                    "algo.client_lr=0.02", "rounds=3000", "eval_every=3000", "reference=true", sizes=(40,))  # fmt: skip
    snapshot = last_snapshot(config)
    from fcorun.experiment.optimum import compute_optimum

    experiment = prepare(config)
    assert snapshot.metrics["objective"] - compute_optimum(experiment, load_data(experiment))["objective"] < 1e-8


def test_the_problem_has_the_mean_of_the_clients_strengths():
    weights, offsets = np.array([0.25, 0.25, 0.5]), np.array([0, 2, 3])
    reg = aggregate_client_values(L1(0.0, per_client={"strength": [1.0, 3.0]}), weights, offsets)
    assert reg.strength_or_none == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"strength": [1.0]}, "1 values for 6 clients"),
        ({"relative": [1.0] * 6}, "relative"),
        ({"oops": [1.0]}, "oops"),
        ({"strength": [-1.0] * 6}, "non-negative"),
        ({"strength": 1.0}, "must be a list"),
    ],
    ids=["count", "not-that-one", "unknown", "negative", "no-list"],
)
def test_invalid_numbers_per_client_are_refused(values, words):
    config = with_per_client(small(), **values)
    with pytest.raises(UserError, match=words):
        problem_from(config)


@pytest.mark.slow
def test_apply_to(tmp_path):
    config = small("reg.apply_to=[bias]", "reg.strength=1000", "algo=fedmid", "rounds=20")
    solution = last_snapshot(config).solution
    assert solution["bias"] == 0
    assert np.abs(solution["weights"]).max() > 0.01
    with pytest.raises(UserError, match=r"reg.apply_to.*'oops'"):
        problem_from(small("reg.apply_to=[oops]"))


def test_a_shape_that_psi_cannot_act_on_is_refused():
    with pytest.raises(UserError, match="reg=nuclear cannot act on 'weights'"):
        problem_from(small("reg=nuclear"))


@pytest.mark.slow
def test_an_intercept_that_psi_acts_on_is_part_of_the_optimum(tmp_path):
    """The optimum is ridge regression with a column of ones; recovery_error stays that of the weights."""
    from fcorun.experiment.optimum import compute_optimum

    config = ragged(
        tmp_path, "reg=l2", "reg.strength=0.8", "reg.apply_to=[weights,bias]", "reference=true", sizes=SIZES
    )
    experiment = prepare(config)
    data = load_data(experiment)
    x = np.column_stack([data.train.x, np.ones(len(data.train.y))])
    expected = np.linalg.solve(x.T @ x / len(x) + 0.8 * np.eye(7), x.T @ data.train.y / len(x))
    value = np.mean((x @ expected - data.train.y) ** 2) + 0.8 * expected @ expected
    optimum = compute_optimum(experiment, data)
    assert optimum["certified"]
    assert optimum["objective"] == pytest.approx(value, rel=1e-9)
    plain, both = (
        last_snapshot(small("algo=fedmid", *overrides)).metrics for overrides in ([], ["reg.apply_to=[weights,bias]"])
    )
    assert both["recovery_error"] == pytest.approx(plain["recovery_error"], rel=0.2)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["reg.apply_to=[]"], "reg=none"),
        (["algo=feddualavg_osp", "reg.applied_by=client"], "applies psi on the server only"),
        (["algo=ditto", "algo.solver=feddualavg", "reg.applied_by=server"], "goes wrong unless clients and server"),
        (["mirror=entropy", "reference=true"], "mirror=entropy holds w >= 0"),
        (["mirror=entropy", "algo=centralized"], "algo=centralized would be of another problem"),
    ],
    ids=["nothing", "osp", "ditto", "reference", "baseline"],
)
def test_contradictory_options_are_refused(overrides, words):
    with pytest.raises(UserError, match=words):
        prepare(small(*overrides))


def test_relative_and_per_client_exclude_each_other():
    with pytest.raises(UserError, match="exclude each other"):
        prepare(with_per_client(small("reg.relative=0.5"), strength=[0.1] * 6))


@pytest.mark.slow
def test_the_summary_has_the_mean_strength(tmp_path):
    record = run(with_per_client(ragged(tmp_path, "algo=fedmid", sizes=(5, 5)), strength=[0.2, 0.6]), tmp_path / "here")
    assert record.summary["strength"] == pytest.approx(0.4)


@pytest.mark.slow
def test_one_client_is_solved_with_its_own_strength(tmp_path):
    strengths = [0.2, 2.5, 0.4]
    config = ragged(tmp_path, "algo=one_client", "algo.client=1", "algo.tolerance=1e-12", sizes=SIZES)
    data = load_data(prepare(config))
    rows_of_client = slice(data.train.offsets[1], data.train.offsets[2])
    centralized = ragged(
        tmp_path / "centralized", "algo=centralized", "algo.tolerance=1e-12", "reg.strength=2.5", sizes=(SIZES[1],),
        x=data.train.x[rows_of_client], y=data.train.y[rows_of_client],
    )  # fmt: skip
    ours = run(with_per_client(config, strength=strengths), tmp_path / "ours").solution["weights"]
    np.testing.assert_allclose(ours, run(centralized, tmp_path / "theirs").solution["weights"], atol=1e-6)
