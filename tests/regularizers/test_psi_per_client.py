"""Regularizers that differ from client to client, and who applies them."""

import numpy as np
import pytest
from helpers import ragged, small, snapshots

from fcorun import UserError, run
from fcorun.experiment.bind_regularizer import aggregate_client_values
from fcorun.experiment.build import build_engine, build_problem, load_data
from fcorun.experiment.prepare import prepare
from fcorun.regularizers import L1

SIZES = (3, 7, 10)


def last(config):
    return snapshots(config)[-1]


def per_client(config, **values):
    config["reg"]["per_client"] = values
    return config


def problem_from(config):
    experiment = prepare(config)
    return build_problem(experiment, load_data(experiment))


def soft(z, t):
    return np.sign(z) * np.maximum(np.abs(z) - t, 0)


def whole(rows):
    """Rows with a column of ones, and the gradient of the mean square on them."""
    x, y = np.column_stack([rows[0], np.ones(len(rows[1]))]), rows[1]
    return lambda w: 2 * x.T @ (x @ w - y) / len(y)


@pytest.mark.parametrize("cohort", ["null", "2"])
@pytest.mark.parametrize("algo", ["fedmid", "feddualavg"])
def test_each_client_applies_its_own_strength(tmp_path, algo, cohort):
    """Against the boxes in plain NumPy: client m with its own strength, the server with their weighted mean."""
    strengths = [0.2, 0.9, 0.4]
    config = ragged(tmp_path, f"algo={algo}", "algo.client_lr=0.05", "algo.server_lr=0.7", "local_epochs=null",
                    "local_steps=2", "rounds=3", f"clients_per_round={cohort}", sizes=SIZES)  # fmt: skip
    found = last(per_client(config, strength=strengths))
    data = load_data(prepare(config))
    drawn = build_engine(prepare(config), data).federation.schedule.draw_rounds(0, 3).cohort
    assert drawn.shape == (3, 3 if cohort == "null" else 2)
    gradients = [whole((data.x[a:b], data.y[a:b])) for a, b in zip(data.offsets, data.offsets[1:], strict=False)]
    share = np.array(SIZES) / sum(SIZES)
    mean, lr, steps = share @ strengths, 0.05, 2

    def prox(z, t):
        return np.append(soft(z[:-1], t), z[-1])

    state, elapsed = np.zeros(7), 0.0
    for chosen in drawn:
        ends = []
        for gradient, strength in [(gradients[m], strengths[m]) for m in chosen]:
            z = state
            for k in range(steps):
                if algo == "fedmid":
                    z = prox(z - lr * gradient(z), lr * strength)
                else:
                    z = z - lr * gradient(prox(z, (elapsed + lr * k) * strength))
            ends.append(z)
        state = state + 0.7 * (share[chosen] @ np.array(ends) / share[chosen].sum() - state)
        elapsed += 0.7 * lr * steps
        if algo == "fedmid":
            state = prox(state, 0.7 * lr * steps * mean)
    expected = state if algo == "fedmid" else prox(state, elapsed * mean)
    np.testing.assert_allclose(np.append(found.solution["weights"], found.solution["bias"]), expected, rtol=1e-11)
    psi = mean * np.abs(expected[:-1]).sum()
    np.testing.assert_allclose(found.metrics["objective"] - found.metrics["train_loss"], psi, rtol=1e-10)


def test_equal_numbers_are_one_regularizer(tmp_path):
    config = ragged(tmp_path, "algo=feddualavg", "reg.strength=0.3", sizes=SIZES)
    alone = last(config).solution["weights"]
    same = last(per_client(config, strength=[0.3] * 3)).solution["weights"]
    np.testing.assert_allclose(same, alone, rtol=1e-12)


def test_the_intersection_of_all_constraints_must_hold(tmp_path):
    """A budget a client: the solution keeps the least of them, whatever the clients' own ones allow."""
    config = ragged(tmp_path, "algo=fedmid", "reg=l1_ball", "rounds=20", "algo.client_lr=0.1", sizes=SIZES)
    found = last(per_client(config, radius=[0.5, 2.0, 9.0]))
    assert np.abs(found.solution["weights"]).sum() == pytest.approx(0.5)
    assert found.metrics["violation"] == pytest.approx(0, abs=1e-12)
    assert np.isfinite(found.metrics["objective"])


@pytest.mark.parametrize(("by", "osp"), [("server", "fedmid_osp"), ("both", "fedmid")])
def test_applied_by_the_server_is_the_variant_with_its_prox_only(tmp_path, by, osp):
    common = ("algo.client_lr=0.05", "reg.strength=0.4")
    ours = last(ragged(tmp_path, "algo=fedmid", f"reg.applied_by={by}", *common, sizes=SIZES))
    theirs = last(ragged(tmp_path, f"algo={osp}", *common, sizes=SIZES))
    np.testing.assert_allclose(ours.solution["weights"], theirs.solution["weights"], rtol=1e-12)


def test_applied_by_the_clients_leaves_the_mean_as_it_is(tmp_path):
    """One client: proximal gradient, once; a server that shrank as well would move the fixed point."""
    config = ragged(tmp_path, "algo=fedmid", "reg.applied_by=client", "reg.strength=0.4", "algo.server_lr=1",
                    "algo.client_lr=0.02", "rounds=3000", "eval_every=3000", "reference=true", sizes=(40,))  # fmt: skip
    found = last(config)
    from fcorun.experiment.reference import compute_optimum

    experiment = prepare(config)
    assert found.metrics["objective"] - compute_optimum(experiment, load_data(experiment))["objective"] < 1e-8


def test_the_whole_takes_the_mean_least_or_largest():
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
def test_numbers_that_make_no_sense_are_refused(values, words):
    config = per_client(small(), **values)
    with pytest.raises(UserError, match=words):
        problem_from(config)


def test_apply_to(tmp_path):
    config = small("reg.apply_to=[bias]", "reg.strength=1000", "algo=fedmid", "rounds=20")
    found = last(config).solution
    assert found["bias"] == 0
    assert np.abs(found["weights"]).max() > 0.01
    with pytest.raises(UserError, match=r"reg.apply_to.*'oops'"):
        problem_from(small("reg.apply_to=[oops]"))


def test_a_shape_that_psi_cannot_act_on_is_refused():
    with pytest.raises(UserError, match="reg=nuclear cannot act on 'weights'"):
        problem_from(small("reg=nuclear"))


def test_an_intercept_that_psi_acts_on_is_part_of_the_optimum(tmp_path):
    """Ridge regression with a column of ones, in closed form; F1 and recovery stay those of the weights."""
    from fcorun.experiment.reference import compute_optimum

    config = ragged(
        tmp_path, "reg=l2", "reg.strength=0.8", "reg.apply_to=[weights,bias]", "reference=true", sizes=SIZES
    )
    experiment = prepare(config)
    data = load_data(experiment)
    x = np.column_stack([data.x, np.ones(len(data.y))])
    best = np.linalg.solve(x.T @ x / len(x) + 0.8 * np.eye(7), x.T @ data.y / len(x))
    value = np.mean((x @ best - data.y) ** 2) + 0.8 * best @ best
    found = compute_optimum(experiment, data)
    assert found["certified"]
    assert found["objective"] == pytest.approx(value, rel=1e-9)
    plain, both = (last(small("algo=fedmid", *more)).metrics for more in ([], ["reg.apply_to=[weights,bias]"]))
    assert both["recovery_error"] == pytest.approx(plain["recovery_error"], rel=0.2)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["reg.apply_to=[]"], "reg=none"),
        (["algo=feddualavg_osp", "reg.applied_by=client"], "applies psi on the server only"),
        (["mirror=entropy", "reference=true"], "mirror=entropy holds w >= 0"),
        (["mirror=entropy", "algo=centralized"], "algo=centralized would be of another problem"),
    ],
    ids=["nothing", "osp", "reference", "baseline"],
)
def test_what_would_mean_nothing_is_refused(overrides, words):
    with pytest.raises(UserError, match=words):
        prepare(small(*overrides))


def test_relative_and_per_client_exclude_each_other():
    with pytest.raises(UserError, match="exclude each other"):
        prepare(per_client(small("reg.relative=0.5"), strength=[0.1] * 6))


def test_what_is_recorded_is_the_strength_of_the_whole(tmp_path):
    record = run(per_client(ragged(tmp_path, "algo=fedmid", sizes=(5, 5)), strength=[0.2, 0.6]), tmp_path / "here")
    assert record.summary["strength"] == pytest.approx(0.4)


def test_a_client_alone_has_its_own_numbers(tmp_path):
    strengths = [0.2, 2.5, 0.4]
    config = ragged(tmp_path, "algo=one_client", "algo.client=1", "algo.tolerance=1e-12", sizes=SIZES)
    data = load_data(prepare(config))
    mine = slice(data.offsets[1], data.offsets[2])
    own = ragged(tmp_path / "own", "algo=centralized", "algo.tolerance=1e-12", "reg.strength=2.5", sizes=(SIZES[1],),
                 x=data.x[mine], y=data.y[mine])  # fmt: skip
    ours = run(per_client(config, strength=strengths), tmp_path / "ours").solution["weights"]
    np.testing.assert_allclose(ours, run(own, tmp_path / "theirs").solution["weights"], atol=1e-6)
