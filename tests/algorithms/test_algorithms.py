"""Algorithms: all of them run, batch and resume; those of the paper agree with its boxes and with each other."""

from dataclasses import dataclass, fields

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import engine_of, flat, given, names, plugin_class, ragged, rows_of, small, small_for, snapshots

from fcorun import Watcher, grid, run, run_grid
from fcorun.algorithms import Algorithm, Baseline
from fcorun.config import Positive, numbers
from fcorun.experiment.build import engine_for, load, resolved
from fcorun.experiment.prepare import prepare
from fcorun.regularizers import Regularizer

FEDERATED = [name for name in names("algo") if issubclass(plugin_class("algo", name), Algorithm)]
BASELINES = [name for name in names("algo") if issubclass(plugin_class("algo", name), Baseline)]
PAPER = ["fedavg", "fedavg_subgradient", "fedmid", "fedmid_osp", "feddualavg", "feddualavg_osp"]
COMPOSITE = ["fedmid", "fedmid_osp", "feddualavg", "feddualavg_osp"]


def exactly(name):
    """Overrides with which an inner solver comes as close as rounding lets it, where there is one."""
    return ["algo.tolerance=1e-12"] if "tolerance" in {f.name for f in fields(plugin_class("algo", name))} else []


class Interrupt(Watcher):
    """Control-C in the middle of a run."""

    def row(self, job, row):
        if row["round"] == 2:
            raise KeyboardInterrupt


# ---------------------------------------------------------------- every algorithm


def test_every_algorithm_is_of_one_kind():
    assert sorted(FEDERATED + BASELINES) == names("algo")


@pytest.mark.parametrize("name", FEDERATED + BASELINES)
def test_runs_and_runs_the_same_again(name):
    one, two = (run(small_for(name), folder) for folder in ("one", "two"))
    assert one.status["status"] == two.status["status"] == "done"
    assert np.isfinite(one.metrics.to_numpy(float)).all()
    assert rows_of(one).equals(rows_of(two))
    if name != "one_client":  # the best for one client may be worse than nothing for the others
        falls = "personal_train_loss" if name == "local" else "objective"  # it has no global model
        assert one.metrics[falls].iloc[-1] < one.metrics[falls].iloc[0]
    for key, value in (one.solution | one.personal).items():
        np.testing.assert_array_equal(value, (two.solution | two.personal)[key])


@pytest.mark.parametrize("name", FEDERATED)
def test_going_on_equals_an_unbroken_run(name):
    config = small_for(name, "rounds=6", "checkpoint_every=1000")
    whole = run(config, "whole")
    with pytest.raises(KeyboardInterrupt):
        run(config, "broken", Interrupt())
    resumed = run(config, "broken")
    assert "goes on after round 2" in (resumed.folder / "run.log").read_text()
    assert rows_of(resumed).equals(rows_of(whole))
    np.testing.assert_array_equal(flat(resumed.solution), flat(whole.solution))
    for key, value in whole.personal.items():
        np.testing.assert_array_equal(resumed.personal[key], value)


@pytest.mark.parametrize(("precision", "tolerance"), [("float64", 1e-10), ("float32", 1e-3)])
@pytest.mark.parametrize("name", FEDERATED)
def test_a_batch_of_runs_equals_each_alone(name, precision, tolerance):
    base = small_for(name, f"precision={precision}", *exactly(name))
    if "iterations" in base["algo"]:  # where an inner solver stops may be a matter of rounding
        tolerance = max(tolerance, 1e-8)
    experiment = prepare(base)
    numbers_of = numbers(resolved(experiment, load(experiment))[0].algo)
    assert numbers_of, "an algorithm without numbers has no grid"

    def scaled(factor, **rest):
        (point,) = grid(base, {f"algo.{key}": [factor * value] for key, value in numbers_of.items()} | rest)
        return point

    points = [scaled(1), scaled(0.5), *grid(base, {"reg.strength": [0.3]})]
    together = snapshots(*points)
    apart = engine_of(scaled(0.7, **{"reg.strength": [0.2]}))  # whose own numbers are those of none
    for g, point in enumerate(points):
        alone = snapshots(point, engine=apart)
        assert len(alone) == len(together)
        for ours, theirs in zip(together, alone, strict=True):
            for key in theirs.solution:
                np.testing.assert_allclose(
                    ours.solution[key][g], theirs.solution[key][0], rtol=tolerance, atol=tolerance
                )
            for key, models in (theirs.models or {}).items():
                np.testing.assert_allclose(given(ours.models)[key][g], models[0], rtol=tolerance, atol=tolerance)
            for key in ("objective", "train_loss", "val_loss"):
                np.testing.assert_allclose(ours.metrics[key][g], theirs.metrics[key][0], rtol=tolerance)
    last = given(together[-1].models) if name == "local" else together[-1].solution
    finals = [flat({k: v[g] for k, v in last.items()}) for g in range(len(points))]
    assert not np.allclose(finals[0], finals[1], rtol=1e-4)  # the numbers do reach the runs


@pytest.mark.parametrize("name", FEDERATED)
def test_one_diverging_run_leaves_the_others_alone(name):
    base = small_for(name, "precision=float64", "rounds=40", *exactly(name))
    if "client_lr" not in base["algo"]:
        pytest.skip("no client_lr to drive it apart with")
    if base["algo"].get("optimizer", "momentum") != "momentum":
        pytest.skip("its steps are bounded, whatever the gradients")
    rate = base["algo"]["client_lr"]
    rate = 1 / base["algo"]["lam"] if rate == "auto" else rate
    points = grid(base, {"algo.client_lr": [rate, 1e12, rate / 2]})
    first, lost, last = run_grid(points, ["first", "lost", "last"])
    assert [r.status["status"] for r in (first, lost, last)] == ["done", "diverged", "done"]
    for point, record in ((points[0], first), (points[2], last)):
        alone = run(point, f"{record.folder}-alone")
        inner = "iterations" in base["algo"]  # where an inner solver stops may be a matter of rounding
        left = ("seconds", *(("grad_evals", "prox_evals") if inner else ()))
        shown = [key for key in alone.metrics if key not in left]
        np.testing.assert_allclose(record.metrics[shown], alone.metrics[shown], rtol=1e-8 if inner else 1e-10)
    # the diverged one keeps what it had, and says where it was lost
    assert lost.metrics["round"].iloc[0] == 0
    assert np.isfinite(lost.metrics.to_numpy(float)).all()
    assert len(lost.metrics) < len(first.metrics)
    assert lost.metrics["round"].max() < lost.status["round"] <= 40
    assert np.isfinite(flat(lost.solution)).all()
    # it stays where it was lost: before the step that was not finite, or at a point whose loss is not
    ends = [run(points[1] | {"rounds": lost.status["round"] - back}, f"end{back}").solution for back in (0, 1)]
    assert any(np.allclose(flat(lost.solution), flat(end), rtol=1e-6, atol=0) for end in ends)
    assert str(lost.status["round"]) in lost.status["reason"]


# ---------------------------------------------------------------- the boxes of the paper, in plain NumPy


def soft(w, t):
    """S(w, t) on all but the last entry, the intercept."""
    return np.append(np.sign(w[:-1]) * np.maximum(np.abs(w[:-1]) - t, 0), w[-1])


def boxes(name, x, y, eta_c, eta_s, lam, rounds):
    """The outputs of an algorithm; ``rounds`` holds cohorts, a cohort holds (share in the mean, batches) of clients."""
    x = np.column_stack([x, np.ones(len(x))])

    def gradient(w, rows):
        return 2 * x[rows].T @ (x[rows] @ w - y[rows]) / len(rows)

    state, elapsed, outputs = np.zeros(x.shape[1]), 0.0, [np.zeros(x.shape[1])]
    for cohort in rounds:
        update, steps = 0.0, 0.0
        for share, batches in cohort:
            local = state
            for k, rows in enumerate(batches):
                if name in ("fedavg", "fedmid_osp", "feddualavg_osp"):
                    local = local - eta_c * gradient(local, rows)
                elif name == "fedavg_subgradient":
                    local = local - eta_c * gradient(local, rows)
                    local = local - eta_c * lam * np.append(np.sign(local[:-1]), 0)
                elif name == "fedmid":
                    local = soft(local - eta_c * gradient(local, rows), eta_c * lam)
                elif name == "feddualavg":
                    primal = soft(local, (elapsed + eta_c * k) * lam)
                    local = local - eta_c * gradient(primal, rows)
            update += share * (local - state)
            steps += share * len(batches)
        state = state + eta_s * update
        elapsed += eta_s * eta_c * steps
        if name in ("fedmid", "fedmid_osp"):
            state = soft(state, eta_s * eta_c * steps * lam)
        outputs.append(soft(state, elapsed * lam) if name.startswith("feddualavg") else state)
    return np.array(outputs)


def drawn(experiment, data):
    """The rounds of an experiment, as ``boxes`` takes them."""
    settings = experiment.settings
    rounds = engine_for(experiment, data).federation.schedule.draw(0, settings.rounds)
    for cohort, rows in zip(rounds.cohort, rounds.rows, strict=True):
        sizes = data.sizes[cohort] if settings.client_weighting == "examples" else np.ones(len(cohort))
        if settings.batch_size is None:
            batches = [[np.arange(*data.offsets[[m, m + 1]])] * settings.local_steps for m in cohort]
        else:
            batches = [[r[r >= 0] for r in client if (r >= 0).any()] for client in rows]
        yield list(zip(sizes / sizes.sum(), batches, strict=True))


CASES = {
    "some": ["batch_size=4", "clients_per_round=2"],
    "uniform": ["batch_size=4", "client_weighting=uniform", "local_epochs=2"],
    "whole": ["batch_size=null", "local_steps=3"],
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", PAPER)
def test_agrees_with_its_box(name, case, tmp_path):
    config = ragged(
        tmp_path, f"algo={name}", "algo.client_lr=0.03", "algo.server_lr=0.8", "reg.strength=0.4", *CASES[case]
    )
    experiment = prepare(config)
    data = load(experiment)
    ours = [flat({k: v[0] for k, v in s.solution.items()}) for s in snapshots(config)]
    theirs = boxes(name, data.x, data.y, 0.03, 0.8, 0.4, drawn(experiment, data))
    assert np.abs(theirs[-1]).max() > 0.05
    np.testing.assert_allclose(ours, theirs, atol=1e-12)


# ---------------------------------------------------------------- identities


def path(config):
    """The outputs of a run, an array (evaluations, parameters)."""
    return np.array([flat({k: v[0] for k, v in s.solution.items()}) for s in snapshots(config)])


@pytest.mark.parametrize("name", [*COMPOSITE, "fedavg_subgradient"])
def test_without_psi_it_is_fedavg(name, tmp_path):
    rest = ["reg=none", "batch_size=4", "clients_per_round=2", "algo.client_lr=0.05", "algo.server_lr=0.7"]
    fedavg = path(ragged(tmp_path, "algo=fedavg", *rest))
    np.testing.assert_allclose(path(ragged(tmp_path, f"algo={name}", *rest)), fedavg, atol=1e-13)
    assert np.abs(fedavg[-1]).max() > 0.1


ONE = ["batch_size=null", "local_steps=1", "algo.client_lr=0.05", "algo.server_lr=1", "reg.strength=0.3", "rounds=12"]


def gradient_of(data, w):
    x = np.column_stack([data.x, np.ones(len(data.x))])
    return 2 * x.T @ (x @ w - data.y) / len(x)


@pytest.mark.parametrize(("name", "proxes"), [("fedmid_osp", 1), ("fedmid", 2)])
def test_one_client_and_one_step_is_proximal_gradient(name, proxes, tmp_path):
    """Algorithm 2 applies the prox on the client and again on the server, which for l1 is twice the strength."""
    config = ragged(tmp_path, f"algo={name}", *ONE, sizes=(20,))
    data, expected = load(prepare(config)), [np.zeros(7)]
    for _ in range(12):
        expected.append(soft(expected[-1] - 0.05 * gradient_of(data, expected[-1]), proxes * 0.05 * 0.3))
    np.testing.assert_allclose(path(config), expected, atol=1e-12)


def test_one_client_and_one_step_is_dual_averaging(tmp_path):
    config = ragged(tmp_path, "algo=feddualavg", *ONE, sizes=(20,))
    data, expected, total = load(prepare(config)), [np.zeros(7)], np.zeros(7)
    for t in range(1, 13):
        total += gradient_of(data, expected[-1])
        expected.append(soft(-0.05 * total, t * 0.05 * 0.3))
    np.testing.assert_allclose(path(config), expected, atol=1e-12)


def test_first_output_of_feddualavg_is_a_thresholded_mean_gradient(tmp_path):
    config = ragged(tmp_path, "algo=feddualavg", *ONE, "rounds=1", "client_weighting=uniform")
    data = load(prepare(config))
    x = np.column_stack([data.x, np.ones(len(data.x))])
    mean = np.mean(
        [-2 * x[a:b].T @ data.y[a:b] / (b - a) for a, b in zip(data.offsets, data.offsets[1:], strict=False)], 0
    )
    np.testing.assert_allclose(path(config)[1], soft(-0.05 * mean, 0.05 * 0.3), atol=1e-13)


@dataclass(frozen=True)
class Orthant(Regularizer):
    """The indicator of the nonnegative orthant."""

    def value(self, w):
        return jnp.where((w >= 0).all(), 0.0, jnp.inf).astype(w.dtype)

    def prox(self, z, t):
        return jnp.maximum(z, 0)


def test_fedmid_with_an_indicator_is_projected_sgd(tmp_path):
    config = ragged(tmp_path, "algo=fedmid", "batch_size=4", "algo.client_lr=0.05", "algo.server_lr=1")
    config["reg"] = {"name": "orthant", "class": f"{__name__}.Orthant"}
    experiment = prepare(config)
    data = load(experiment)
    x, w = np.column_stack([data.x, np.ones(len(data.x))]), np.zeros(7)
    outputs, projected = [w], False
    for cohort in drawn(experiment, data):
        mean = np.zeros(7)
        for share, batches in cohort:
            local = w
            for rows in batches:
                local = local - 0.05 * 2 * x[rows].T @ (x[rows] @ local - data.y[rows]) / len(rows)
                projected |= (local[:-1] < 0).any()
                local[:-1] = np.maximum(local[:-1], 0)
            mean += share * local
        w = mean  # a mean of points in a convex set lies in it
        outputs.append(w)
    assert projected
    np.testing.assert_allclose(path(config), outputs, atol=1e-12)


@pytest.mark.parametrize("name", ["feddualavg", "feddualavg_osp", "fedavg", "fedavg_subgradient"])
def test_identical_clients_are_one_client_with_all_steps(name, tmp_path):
    rng = np.random.default_rng(3)
    x, y = rng.standard_normal((8, 6)), rng.standard_normal(8)
    rest = [f"algo={name}", "batch_size=null", "algo.client_lr=0.03", "algo.server_lr=1", "reg.strength=0.2"]
    alike = ragged(
        tmp_path / "alike", *rest, "rounds=5", "local_steps=4", sizes=(8,) * 3, x=np.tile(x, (3, 1)), y=np.tile(y, 3)
    )
    one = ragged(tmp_path / "one", *rest, "rounds=1", "local_steps=20", sizes=(8,), x=x, y=y)
    np.testing.assert_allclose(path(alike)[-1], path(one)[-1], atol=1e-12)


def test_drift_of_local_steps():
    rest = ["batch_size=null", "clients_per_round=null", "precision=float64", "reference=true", "eval_every=2000"]
    rest += ["data.mean_scale=0.5", "data.features=10", "algo.server_lr=1"]

    def gap(algo, steps, rate):
        config = small(*rest, f"algo={algo}", f"local_steps={steps}", "rounds=6000", f"algo.client_lr={rate}")
        return run(config, f"{algo}-{steps}").metrics["suboptimality"].iloc[-1]

    assert -1e-9 < gap("feddualavg", 1, 0.05) < 1e-6
    dual, mirror = gap("feddualavg", 10, 0.005), gap("fedmid", 10, 0.005)
    assert 1e-6 < dual < mirror


# ---------------------------------------------------------------- what is counted, and what is kept


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize(("name", "up", "down"), [("fedavg", 21, 21), ("feddualavg", 22, 22), ("fedmid", 22, 21)])
def test_bytes(name, up, down, precision):
    """20 weights and a bias; FedDualAvg's state and upload also hold ``elapsed``, and FedMiD's upload does."""
    metrics = run(small(f"algo={name}", f"precision={precision}"), "run").metrics
    size = {"float32": 4, "float64": 8}[precision]
    assert metrics["bytes_up"].tolist() == [r * 3 * up * size for r in (0, 2, 4)]
    assert metrics["bytes_down"].tolist() == [r * 3 * down * size for r in (0, 2, 4)]


@dataclass(frozen=True)
class Tiring(Algorithm):
    """FedAvg whose clients take smaller steps each time they take part."""

    client_lr: Positive

    def init(self, problem, w0):
        return w0, {"times": jnp.ones((), w0.dtype)}

    def local(self, problem, server, client, data):
        rate = self.client_lr / client["times"]
        w = data.steps(lambda w, batch: w - rate * problem.gradient(w, batch), server)
        return w - server, {"times": client["times"] + 1}

    def server(self, problem, server, mean):
        return server + mean

    def output(self, problem, server):
        return server


def tiring(*overrides):
    config = small("precision=float64", "rounds=6", *overrides)
    config["algo"] = {"name": "tiring", "class": f"{__name__}.Tiring", "client_lr": 0.002}
    return config


def test_clients_keep_their_state():
    config = tiring()
    experiment = prepare(config)
    data, now = load(experiment), snapshots(config)[-1]
    x, w, times = np.column_stack([data.x, np.ones(len(data.x))]).astype(float), np.zeros(21), np.ones(6)
    rounds = engine_for(experiment, data).federation.schedule.draw(0, 6)
    for cohort, rows in zip(rounds.cohort, rounds.rows, strict=True):
        mean = np.zeros(21)
        for m, client in zip(cohort, rows, strict=True):
            local = w
            for batch in client:
                r = batch[batch >= 0]
                local = local - 0.002 / times[m] * 2 * x[r].T @ (x[r] @ local - data.y[r]) / len(r)
            mean += local / 3
            times[m] += 1
        w = mean
    assert len(set(times)) > 1
    np.testing.assert_array_equal(now.state["clients"][0]["times"][0], times)
    np.testing.assert_allclose(flat({k: v[0] for k, v in now.solution.items()}), w, atol=1e-12)


def test_clients_get_their_state_back_after_an_interruption():
    whole = run(tiring(), "whole")
    with pytest.raises(KeyboardInterrupt):
        run(tiring(), "broken", Interrupt())
    broken = run(tiring(), "broken")
    assert rows_of(broken).equals(rows_of(whole))
    np.testing.assert_array_equal(flat(broken.solution), flat(whole.solution))
