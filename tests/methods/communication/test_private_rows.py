"""Privacy of single rows: clipped gradients by hand in NumPy, noise, accounts of steps, rows that overflow."""

import jax.numpy as jnp
import numpy as np
import pytest
from clipped_rows import clip_by_loop
from helpers import engine_of, small, snapshots

from fcorun import run
from fcorun.base.errors import UserError
from fcorun.base.system.machine import use_precision
from fcorun.experiment.configuration.search_path import find_choices
from fcorun.experiment.prepare import prepare
from fcorun.interface.checks.problems import ragged
from fcorun.methods.communication.gaussian_privacy import GaussianPrivacy
from fcorun.methods.problem.problem import fold_key

pytest.importorskip("dp_accounting")

CLIP = 0.04
FEDAVG = ("algo=fedavg", "reg=none", "algo.client_lr=0.05", "algo.server_lr=1", "objective.intercept=false")
EXACT = (*FEDAVG, "data.standardize=none", "batch_size=null", "privacy=gaussian", f"privacy.clip={CLIP}")
PRIVATE = ("fedavg", "fedavg_subgradient", "fedavg_threshold", "fedcomposite", "feddualavg", "feddualavg_osp", "fedmid",
           "fedmid_osp", "fedprox", "scaffold")  # fmt: skip
OF_ROWS_AT_SERVER = ("fedavg", "fedavg_threshold", "feddualavg", "feddualavg_osp", "fedmid_osp")
SIZES = (3, 7, 10, 2, 5) * 24


@pytest.mark.parametrize(("noise_by", "local_steps"), [("server", 1), ("clients", 3)])
@pytest.mark.parametrize(
    ("algo", "cohort"),
    [("fedavg", "null"), ("feddualavg", "30"), ("feddualavg", "poisson:0.4")],  # the same ones without psi
)
def test_rounds_of_clipped_rows_are_those_of_a_loop_by_hand(tmp_path, algo, cohort, noise_by, local_steps):
    """A trusted server adds noise to the mean, or each client to the gradient of each local step."""
    config = ragged(tmp_path, f"algo={algo}", "reg=none", "algo.client_lr=0.05", "algo.server_lr=1", "batch_size=4",
                    f"local_steps={local_steps}", "objective.ridge=0.3", "data.standardize=none", "privacy=gaussian",
                    "privacy.unit=row", "privacy.clip=2", f"clients_per_round={cohort}",
                    f"privacy.noise_by={noise_by}", sizes=SIZES)  # fmt: skip
    experiment, federation = prepare(config), engine_of(config).federation
    train, schedule = federation.data.train, federation.schedule
    privacy, key = experiment.resolved_privacy, jnp.asarray(schedule.draw_noise_key())
    assert isinstance(privacy, GaussianPrivacy)
    x, y, sizes = np.asarray(train.x, float), np.asarray(train.y, float), np.array(SIZES)
    w, models, n_clipped = np.zeros(x.shape[1] + 1), [], 0

    def draw(key):
        noise = privacy.draw_normal(federation.problem.zeros(float), key)
        return np.append(noise["weights"], noise["bias"])

    with use_precision("float64"):
        for number in range(4):
            models.append(w)
            rounds, present = schedule.draw_rounds(number, 1), schedule.draw_participants(number)
            total_weight = (schedule.participation * sizes if schedule.participation else sizes[present]).sum()
            total = 0
            for client, batches in zip(rounds.cohort[0], rounds.rows[0], strict=True):
                if client not in present:
                    continue
                own = w
                for step, batch in enumerate(batches):
                    rows = batch[batch >= 0]
                    gradient, count = clip_by_loop(x[rows], y[rows], own, 2, 0.3)
                    if noise_by == "clients":
                        gradient += draw(fold_key(fold_key(fold_key(key, client), number), step)) / len(rows)
                    own = own - 0.05 * gradient
                    n_clipped += count
                total += sizes[client] * (own - w)
            if noise_by == "server":  # a row of the largest client counts a fourth in the mean of its batch
                total += 0.05 * 10 / 4 * draw(fold_key(key, number))
            w = w + total / total_weight
    found = [snapshot.solution for snapshot in snapshots(config)]
    found = [np.append(solution["weights"][0], solution["bias"][0]) for solution in found]
    np.testing.assert_allclose(found[:4], models, rtol=1e-6, atol=1e-9)
    assert n_clipped > 100


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
def test_noise_is_as_large_as_what_a_row_can_change(tmp_path, weighting):
    """A row of zeros has the gradient 0 of a squared loss, that of a huge row is clipped: these two are neighbours."""
    x = np.random.default_rng(0).standard_normal((sum(SIZES), 6))
    y, models = x[:, 0].copy(), {}
    hidden = sum(SIZES[:3])  # a row of the client of two rows, which are those that count most
    for name, row, noise in (("without", 0, 1e-18), ("with", 1e3, 1e-18), ("overflow", 1e100, 1e-18), ("noisy", 0, 1)):
        x[hidden], y[hidden] = row, row
        config = ragged(tmp_path / name, *EXACT, "clients_per_round=null", "privacy.unit=row", "rounds=1",
                        f"client_weighting={weighting}", f"privacy.noise={noise}", sizes=SIZES, x=x, y=y)  # fmt: skip
        models[name] = snapshots(config)[-1].solution["weights"][0]
    np.testing.assert_allclose(models["overflow"], models["without"], rtol=1e-12)
    change = np.linalg.norm(models["with"] - models["without"])
    privacy, key = prepare(config).privacy, engine_of(config).federation.schedule.draw_noise_key()
    with use_precision("float64"):
        drawn = np.asarray(privacy.draw_noise({"weights": np.zeros(6)}, jnp.asarray(key), 0)["weights"]) / CLIP
    noise = models["noisy"] - models["without"]
    np.testing.assert_allclose(noise, change * drawn, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("algo", PRIVATE)
@pytest.mark.parametrize("noise_by", ["server", "clients"])
@pytest.mark.parametrize("task", ["data=lasso", "data=heterogeneous"])
def test_without_clipping_and_noise_of_rows_each_algorithm_is_itself(algo, noise_by, task):
    if noise_by == "server" and algo not in OF_ROWS_AT_SERVER:
        pytest.skip("a trusted server hides no rows in its messages")
    rate = ("algo.solver=sgd", "algo.inner_lr=0.01") if algo == "fedprox" else ("algo.client_lr=0.01",)
    steps = ("local_steps=1", "batch_size=8") if noise_by == "server" else ("local_steps=3", "batch_size=8")
    base = ("clients_per_round=null", "precision=float64", "data.clients=20", f"algo={algo}", *rate, *steps,
            "objective.intercept=false", "reg=l1", "reg.strength=1e-4", task)  # fmt: skip
    private, plain = (snapshots(small(*base, *more)) for more in (("privacy=gaussian", "privacy.unit=row",
        "privacy.clip=1e6", "privacy.noise=1e-18", f"privacy.noise_by={noise_by}"), ()))  # fmt: skip
    for name, value in plain[-1].solution.items():
        assert np.abs(value).max() > 1e-3
        np.testing.assert_allclose(private[-1].solution[name], value, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("noise_by", "of_rows"), [("server", OF_ROWS_AT_SERVER), ("clients", PRIVATE)])
def test_the_algorithms_of_privacy_of_rows_are_these(noise_by, of_rows):
    found = set()
    for algo in find_choices("algo"):
        steps = ("algo.solver=sgd",) if algo == "fedprox" else ()
        try:
            prepare(small(f"algo={algo}", *steps, "reg=none", "privacy=gaussian", "privacy.unit=row",
                          "clients_per_round=null", "local_steps=1", f"privacy.noise_by={noise_by}"))  # fmt: skip
        except UserError:
            continue
        found.add(algo)
    assert found == set(of_rows)


@pytest.mark.parametrize(("steps", "count"), [("local_steps=3", 3), ("local_epochs=2", 2)])
def test_each_step_that_a_row_may_be_in_costs_as_much_as_a_round(steps, count):
    """A row is in one minibatch of a pass, of which there are two here."""
    from dp_accounting.pld import privacy_loss_distribution

    config = small("algo=feddualavg", "privacy=gaussian", "privacy.unit=row", "privacy.noise_by=clients", steps,
                   "batch_size=10", "privacy.epsilon=8", "privacy.delta=1e-3", "algo.client_lr=0.01")  # fmt: skip
    record = run(config, "here")
    section, rounds = record.summary["privacy"], record.metrics["round"].iloc[-1]
    loss = privacy_loss_distribution.from_gaussian_mechanism(section["noise"]).self_compose(int(rounds) * count)
    assert 7.98 < section["epsilon"] <= 8
    assert section["epsilon"] == pytest.approx(loss.get_epsilon_for_delta(1e-3), rel=1e-3)


@pytest.mark.parametrize("mirror", ["euclidean", "p_norm"])
def test_rows_that_overflow_change_nothing_that_a_client_sends_or_keeps(tmp_path, mirror):
    """With noise in each local step, as where their gradients are 0; also behind a mirror map."""
    x = np.random.default_rng(1).standard_normal((sum(SIZES), 6))
    y, models = x[:, 0].copy(), []
    for value in (1e100, 0):
        x[10:12], y[10:12] = value, value
        config = ragged(tmp_path / f"{value:g}", *EXACT[len(FEDAVG):], "algo=fedmid", "reg=none", f"mirror={mirror}",
                        "algo.client_lr=0.05", "clients_per_round=null", "privacy.unit=row", "local_steps=3",
                        "privacy.noise_by=clients", "objective.intercept=false", sizes=SIZES, x=x, y=y)  # fmt: skip
        models.append([snapshot.solution["weights"][0] for snapshot in snapshots(config)])
    np.testing.assert_allclose(*models, rtol=1e-12)
    assert np.abs(np.diff(models[0], axis=0)).min() > 0
