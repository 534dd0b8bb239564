"""Privacy: rounds by hand in NumPy, the deviation of noise, accounts against closed forms and published ones, keys."""

import itertools
import math
import re
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from clipped_rows import clip_by_loop
from helpers import engine_of, fails, small, snapshots, verify
from scipy.stats import norm

from fcorun import Watcher, run
from fcorun.base.errors import UserError
from fcorun.base.records.record import Record, RunFolder
from fcorun.base.system.machine import use_precision
from fcorun.experiment.build import load_data
from fcorun.experiment.configuration.search_path import find_choices
from fcorun.experiment.prepare import prepare
from fcorun.interface.checks import communication
from fcorun.interface.checks.problems import numbers_of, ragged
from fcorun.methods.communication.gaussian_privacy import GaussianPrivacy
from fcorun.methods.communication.privacy import NOT_PRIVATE, CountedMessage
from fcorun.methods.communication.privacy_account import count_epsilon, find_noise
from fcorun.methods.problem.problem import fold_key
from fcorun.runs.job import Job

pytest.importorskip("dp_accounting")

GAUSSIAN = ("privacy=gaussian", "clients_per_round=null", "data.clients=100")
CLIP = 0.04
FEDAVG = ("algo=fedavg", "reg=none", "algo.client_lr=0.05", "algo.server_lr=1", "objective.intercept=false")
EXACT = (*FEDAVG, "data.standardize=none", "batch_size=null", "privacy=gaussian", f"privacy.clip={CLIP}")
PRIVATE = ("fedavg", "fedavg_subgradient", "fedavg_threshold", "fedcomposite", "feddualavg", "feddualavg_osp", "fedmid",
           "fedmid_osp", "fedprox", "scaffold")  # fmt: skip
SIZES = (3, 7, 10, 2, 5) * 24


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [(), ("privacy.unit=row", "local_steps=1"), ("privacy.unit=row", "privacy.noise_by=clients"),
     ("privacy.quantile=0.5",)],
    ids=["client", "row", "steps", "quantile"],
)  # fmt: skip
@pytest.mark.parametrize("check", communication.PRIVACY_CHECKS, ids=lambda check: check.__name__)
def test_gaussian_noise_has_the_properties_of_privacy(check, overrides):
    verify(check, communication.CommunicationCase("privacy", "gaussian", overrides))


# ---------------------------------------------------------------- accounts


@pytest.mark.parametrize("rounds", [1, 100, 10_000])
@pytest.mark.parametrize("noise", [0.8, 20.0, 300.0])
def test_rounds_of_all_clients_are_one_by_the_closed_form(noise, rounds):
    """Theorem 8 of Balle and Wang (2018) gives delta of a Gaussian mechanism; mu is its sensitivity over its noise."""
    epsilon = count_epsilon(noise, 1e-5, rounds)
    mu = math.sqrt(rounds) / noise
    first, second = norm.logcdf(mu / 2 - epsilon / mu), epsilon + norm.logcdf(-mu / 2 - epsilon / mu)
    assert math.isclose(math.exp(first) - math.exp(second), 1e-5, rel_tol=1e-6)


def test_accounts_of_cohorts_by_a_probability_are_the_published_ones():
    """The tests of dp-accounting, and Opacus' by another method, that of privacy random variables."""
    assert count_epsilon(0.5, 0.15594, 3, 0.2) == pytest.approx(1, abs=1e-3)
    assert find_noise(1, 1e-5, 1, 0.01) == pytest.approx(0.67379294682, rel=1e-3)
    assert find_noise(1, 1e-5, 25, 0.001) == pytest.approx(3.20956502598 / 6, rel=1e-3)
    assert count_epsilon(1.5, 1e-5, 2249, 0.04) == pytest.approx(6.777395712150674, abs=0.01)  # its own error


@pytest.mark.parametrize("participation", [None, 0.1, 0.9])
def test_noise_is_found_for_an_epsilon(participation):
    for epsilon in (0.5, 8):
        noise = find_noise(epsilon, 1e-4, 200, participation)
        assert 0.995 * epsilon < count_epsilon(noise, 1e-4, 200, participation) <= epsilon
        assert float(f"{noise:.4g}") == noise


def test_amplification_is_of_hidden_cohorts_at_a_trusted_server():
    server = GaussianPrivacy(noise=2.0)
    assert server.find_epsilon(10, "poisson:0.1") < server.find_epsilon(10, None) / 4
    clients = replace(server, noise_by="clients")
    assert clients.find_epsilon(10, "poisson:0.1") == clients.find_epsilon(10, None) == server.find_epsilon(10, None)
    rows = replace(server, unit="row")  # whose client's other rows tell that it takes part
    assert rows.find_epsilon(10, "poisson:0.1") == server.find_epsilon(10, None)


@pytest.mark.parametrize("unit", ["client", "row"])
@pytest.mark.parametrize("noise_by", ["server", "clients"])
def test_clients_that_take_turns_pay_for_the_rounds_in_which_they_take_part(unit, noise_by):
    privacy = GaussianPrivacy(noise=2.0, unit=unit, noise_by=noise_by)
    assert privacy.find_epsilon(101, "cyclic:0.1") == privacy.find_epsilon(11, None)
    assert privacy.find_noise(2.0, 101, "cyclic:0.1") == find_noise(2.0, 1e-5, 11)


# ---------------------------------------------------------------- membership


def test_the_best_attack_on_all_models_succeeds_as_often_as_the_account_allows(tmp_path):
    """1,000 shadow runs of one program, in half of which the messages of a client count as 0.

    The attacker knows all rows and the models of all rounds, and decides by their likelihood ratio. The advantage, the
    rate of true positives minus that of false ones, is then 2 Phi(sqrt(R) / (2 noise)) - 1, since the client's messages
    are as long as the clip; and (epsilon, delta) allows (e^epsilon - 1 + 2 delta) / (e^epsilon + 1).
    """
    rounds, noise, n_noisy, n_quiet = 4, 1.5, 450, 50
    y = np.random.default_rng(3).standard_normal(500)
    faults = ("faults=scaled", "faults.factor=0", f"rounds={rounds}", "clients_per_round=null")
    config = ragged(tmp_path, *EXACT, *faults, sizes=(5,) * 100, y=y)
    engine = engine_of(config)
    train, client = engine.federation.data.train, int(engine.federation.schedule.liar_ranks.argmin())
    train.y[5 * client : 5 * client + 5] = 1e4
    points, is_counted, is_noisy = [], [], []
    for deviation, count in ((noise, n_noisy), (1e-3, n_quiet)):
        for absent in (0, 0.01):
            numbers = {"privacy": {"noise": deviation, "clip": CLIP}, "faults": {"liars": absent}}
            points += count * [numbers_of(config) | numbers]
            is_counted += count * [absent == 0]
            is_noisy += count * [deviation == noise]
    with use_precision("float64"):
        keys = np.random.default_rng(4).integers(2**32, size=(len(points), 2), dtype=np.uint32)
        state = engine.initial_state(points) | {"noise_key": keys}
        models = [snapshot.solution["weights"] for snapshot in engine.run(points, state=state)]

    log_ratio = np.zeros(len(points))
    x, y = np.asarray(train.x, float).reshape(100, 5, -1), np.asarray(train.y, float).reshape(100, 5)
    for before, after in itertools.pairwise(models):
        residuals = np.einsum("mij,rj->rmi", x, before) - y
        changes = -0.05 * 2 / 5 * np.einsum("mij,rmi->rmj", x, residuals)
        lengths = np.linalg.norm(changes, axis=2, keepdims=True)
        messages = changes * np.minimum(1, CLIP / lengths) / 100
        assert (lengths[:, client] > CLIP).all()
        message = messages[:, client]
        unexplained = after - before - (messages.sum(axis=1) - message)
        log_ratio += ((unexplained - message / 2) * message).sum(axis=1)

    says_counted, is_counted, is_noisy = log_ratio > 0, np.array(is_counted), np.array(is_noisy)

    def measure_advantage(runs):
        return says_counted[runs & is_counted].mean() - says_counted[runs & ~is_counted].mean()

    advantage, exact = measure_advantage(is_noisy), 2 * norm.cdf(math.sqrt(rounds) / (2 * noise)) - 1
    error = math.sqrt((1 - exact**2) / (2 * n_noisy))
    assert abs(advantage - exact) < 4 * error
    for delta in (1e-5, 0.1, 0.4):
        odds = math.exp(count_epsilon(noise, delta, rounds))
        assert advantage <= (odds - 1 + 2 * delta) / (odds + 1) + 4 * error
    assert measure_advantage(~is_noisy) == 1


# ---------------------------------------------------------------- rounds


def run_by_hand(config, rounds):
    """Return the models of FedAvg with one full step a client; the noise is drawn by the plug-in."""
    experiment, federation = prepare(config), engine_of(config).federation
    train, schedule = federation.data.train, federation.schedule
    privacy: Any = experiment.resolved_privacy
    x, y = np.asarray(train.x, float), np.asarray(train.y, float)
    sizes, key = np.diff(train.offsets), jnp.asarray(schedule.draw_noise_key())
    w = np.zeros(x.shape[1])
    models, n_clipped, clip = [w], 0, CLIP
    for number in range(rounds):
        cohort = schedule.draw_participants(number)
        total_weight = (schedule.participation or 1) * sizes.sum()
        total, short = np.zeros_like(w), 0.0
        for client in cohort:
            rows = slice(train.offsets[client], train.offsets[client + 1])
            change = -0.05 * 2 * x[rows].T @ (x[rows] @ w - y[rows]) / sizes[client]
            length = np.linalg.norm(change)
            n_clipped += length > clip
            short += sizes[client] * (0.5 if length <= clip else -0.5)
            change *= min(1, clip / length)
            if privacy.at_clients:
                own_key = fold_key(key, client)
                change += np.asarray(privacy.draw_noise({"weights": w}, own_key, number)["weights"])
            total += sizes[client] * change
        if privacy.quantile:  # one number more in the message, of which clip and noise are others
            deviation = 2 * privacy.noise
            drawn = replace(privacy, clip=1.0, noise=1.0).draw_normal(
                CountedMessage({"weights": w}, np.zeros(())), fold_key(key, number)
            )
            of_message = (privacy.noise**-2 - (2 * deviation) ** -2) ** -0.5
            total += sizes.max() * of_message * clip * np.asarray(drawn.message["weights"])
            short += sizes.max() * deviation * float(drawn.short)
            clip *= math.exp(-0.2 * (short / total_weight + 0.5 - privacy.quantile))
        elif not privacy.at_clients:
            total += sizes.max() * np.asarray(privacy.draw_noise({"weights": w}, key, number)["weights"])
        w = w + total / total_weight
        models.append(w)
    assert n_clipped > 0
    return models


@pytest.mark.parametrize("option", ["noise_by=server", "noise_by=clients", "quantile=0.3"])
@pytest.mark.parametrize("cohort", ["null", "poisson:0.4"])
def test_rounds_are_those_of_a_loop_by_hand(tmp_path, cohort, option):
    config = ragged(tmp_path, *EXACT, f"clients_per_round={cohort}", f"privacy.{option}", sizes=SIZES)
    with use_precision("float64"):
        expected = run_by_hand(config, 4)
    models = [snapshot.solution["weights"][0] for snapshot in snapshots(config)]
    np.testing.assert_allclose(models, expected, rtol=1e-6, atol=1e-9)  # noise is drawn in float32


@pytest.mark.parametrize("unit", ["client", "row"])
@pytest.mark.parametrize("noise_by", ["server", "clients"])
def test_rounds_of_edges_are_those_of_a_loop_by_hand(tmp_path, noise_by, unit):
    """Each edge is a server of its own clients in two rounds; the root takes the mean of the edges' models."""
    sizes = np.array(SIZES + (2, 9) * 40)  # 100 clients for each edge, of unequal weights
    edge_of = np.arange(len(sizes)) % 2
    config = ragged(tmp_path, *EXACT, "clients_per_round=null", "topology=tree", f"topology.map={edge_of.tolist()}",
                    "topology.rounds=2", f"privacy.noise_by={noise_by}", f"privacy.unit={unit}", "rounds=3",
                    "privacy.delta=1e-4", sizes=tuple(sizes.tolist()))  # fmt: skip
    experiment, federation = prepare(config), engine_of(config).federation
    privacy, key = experiment.resolved_privacy, jnp.asarray(federation.schedule.draw_noise_key())
    assert isinstance(privacy, GaussianPrivacy)
    train = federation.data.train
    x, y = np.asarray(train.x, float), np.asarray(train.y, float)
    root = np.zeros(x.shape[1])
    models = [root]

    def draw(key):
        return np.asarray(privacy.draw_normal({"weights": root}, key)["weights"])

    def change_of(client, w, number):
        rows = slice(train.offsets[client], train.offsets[client + 1])
        own_key = fold_key(fold_key(key, client), number)
        if unit == "row":
            gradient, _ = clip_by_loop(x[rows], y[rows], w, CLIP, 0, intercept=False)
            noise = draw(fold_key(own_key, 0)) / sizes[client] if noise_by == "clients" else 0
            return -0.05 * (gradient + noise)
        change = -0.05 * 2 * x[rows].T @ (x[rows] @ w - y[rows]) / sizes[client]
        change *= min(1, CLIP / np.linalg.norm(change))
        return change + (draw(own_key) if noise_by == "clients" else 0)

    with use_precision("float64"):
        for number in range(3):
            new_root = np.zeros_like(root)
            for edge in range(2):
                clients, w = np.flatnonzero(edge_of == edge), root
                shares = sizes[clients] / sizes[clients].sum()
                largest = shares.max() if unit == "client" else 0.05 * (shares / sizes[clients]).max()
                for edge_number in (2 * number, 2 * number + 1):
                    changes = [change_of(client, w, edge_number) for client in clients]
                    w = w + shares @ np.array(changes)
                    if noise_by == "server":
                        w = w + largest * draw(fold_key(fold_key(key, edge), edge_number))
                new_root = new_root + sizes[clients].sum() / sizes.sum() * w
            root = new_root
            models.append(root)
    found = snapshots(config)
    np.testing.assert_allclose([s.solution["weights"][0] for s in found], models, rtol=1e-6, atol=1e-9)
    assert replace(experiment, privacy=privacy).epsilon_after(3) == count_epsilon(1.0, 1e-4, 6)


@pytest.mark.parametrize("noise_by", ["server", "clients"])
def test_the_noise_of_the_model_has_the_deviation_that_is_accounted_for(tmp_path, noise_by):
    """With rates of 0, the server's model is a random walk: weights of clients are unequal, and the largest counts."""
    still = ("algo.client_lr=1e-30", "rounds=60", "privacy.noise=3", f"privacy.noise_by={noise_by}")
    config = ragged(tmp_path, *EXACT, "clients_per_round=null", *still, sizes=SIZES, features=40)
    models = np.array([snapshot.solution["weights"][0] for snapshot in snapshots(config)])
    steps = np.diff(models, axis=0).ravel()
    shares = np.array(SIZES) / sum(SIZES)
    deviation = 3 * 0.04 * (shares.max() if noise_by == "server" else np.sqrt((shares**2).sum()))
    assert abs(steps.mean()) < 4 * deviation / np.sqrt(steps.size)
    assert abs(steps.std() / deviation - 1) < 4 / np.sqrt(2 * steps.size)
    assert abs((steps**4).mean() / deviation**4 - 3) < 4 * np.sqrt(96 / steps.size)
    rounds = np.corrcoef(np.diff(models, axis=0))[np.triu_indices(60, 1)]
    assert abs(rounds.mean()) < 4 / np.sqrt(40 * rounds.size)


def test_noise_of_messages_and_of_their_count_cost_what_the_account_says():
    """As two Gaussian mechanisms of dp-accounting; a message changes the count by at most 1/2."""
    from dp_accounting.pld import privacy_loss_distribution

    privacy = GaussianPrivacy(noise=1.5, clip=0.1, quantile=0.5)
    zeros = CountedMessage({"weights": np.zeros(200_000, np.float32)}, np.zeros(200_000, np.float32))
    drawn: Any = privacy.draw_noise(zeros, (3, 5), 4)
    of_message, of_count = np.std(drawn.message["weights"]) / 0.1, 2 * np.std(drawn.short)
    assert of_message == pytest.approx(1.033 * 1.5, rel=0.01)
    assert of_count == pytest.approx(4 * 1.5, rel=0.01)
    first, second = map(privacy_loss_distribution.from_gaussian_mechanism, (float(of_message), float(of_count)))
    assert first.compose(second).get_epsilon_for_delta(1e-5) == pytest.approx(privacy.find_epsilon(1, None), rel=0.01)


@pytest.mark.parametrize("quantile", [0.5, 0.9])
def test_the_clip_becomes_the_quantile_of_the_norms(tmp_path, quantile):
    """The norms are lognormal: of the gradients of single rows of norm 1 at w = 0, where the model stays."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((400, 3)), np.exp(rng.standard_normal(400))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    config = ragged(tmp_path, *EXACT, "clients_per_round=null", "algo.server_lr=1e-30", f"privacy.quantile={quantile}",
                    "rounds=100", "eval_every=1", sizes=(1,) * 400, x=x, y=y)  # fmt: skip
    record = run(config, "here")
    clips = record.metrics["clip"].to_numpy()
    assert clips[0] == pytest.approx(CLIP)
    expected = 2 * 0.05 * math.exp(norm.ppf(quantile))
    assert clips[-30:].mean() == pytest.approx(expected, rel=0.15)  # of 400 draws from the law
    assert record.summary["privacy"]["epsilon"] == count_epsilon(1.0, 1e-5, 100)
    assert record.summary["privacy"]["quantile"] == quantile


@pytest.mark.slow
@pytest.mark.parametrize("algo", PRIVATE)
def test_without_clipping_and_noise_each_algorithm_is_itself(algo):
    base = ("clients_per_round=null", "data.clients=100", "precision=float64", f"algo={algo}", "algo.client_lr=0.01")
    base = base[:-1] if algo == "fedprox" else base
    private, plain = (snapshots(small(*base, *more)) for more in (
        ("privacy=gaussian", "privacy.clip=1e6", "privacy.noise=1e-18"), ()))  # fmt: skip
    for name, value in plain[-1].solution.items():
        assert np.abs(value).max() > 1e-3
        np.testing.assert_allclose(private[-1].solution[name], value, rtol=1e-9, atol=1e-9)


def test_the_algorithms_of_privacy_are_these():
    found = set()
    for algo in find_choices("algo"):
        try:
            prepare(small(f"algo={algo}", "reg=none", "clients_per_round=null", "privacy=gaussian"))
        except UserError:
            continue
        found.add(algo)
    assert found == set(PRIVATE)


def test_sums_of_rates_are_neither_clipped_nor_noisy():
    """FedDualAvg's sum of rates is what all who take part send, whoever they are."""
    config = small("algo=feddualavg", "privacy=gaussian", "privacy.clip=1e-3", "privacy.noise=50", "data.clients=100",
                   "clients_per_round=poisson:0.4", "algo.client_lr=0.01", "local_steps=3")  # fmt: skip
    server = snapshots(config)[-1].state["server"]
    np.testing.assert_allclose(server["elapsed"], 4 * 3 * 0.01, rtol=1e-6)
    assert np.abs(server["dual"]["weights"]).max() > 1e-3


@pytest.mark.parametrize("noise_by", ["server", "clients"])
def test_a_client_whose_steps_overflow_counts_as_nothing(tmp_path, noise_by):
    """The run goes on, as it does where the client has rows of 0, which change nothing."""
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((sum(SIZES), 6)), rng.standard_normal(sum(SIZES))
    rows = slice(10, 20)  # of the client 2
    models = []
    for value, target in ((1e60, 1), (0, 0)):
        x[rows], y[rows] = value, target
        still = ("clients_per_round=null", "local_steps=8", f"privacy.noise_by={noise_by}")
        config = ragged(tmp_path / f"{value:g}", *EXACT, *still, sizes=SIZES, x=x, y=y)
        run_of_rows = snapshots(config)
        assert [snapshot.diverged[0] for snapshot in run_of_rows] == [0] * 5
        models.append([snapshot.solution["weights"][0] for snapshot in run_of_rows])
    np.testing.assert_allclose(*models, rtol=1e-12)
    assert (np.diff(models[0], axis=0) != 0).all()


@pytest.mark.parametrize("algo", ["scaffold", "fedcomposite"])
def test_a_client_whose_steps_overflow_keeps_its_state(tmp_path, algo):
    x = np.random.default_rng(1).standard_normal((sum(SIZES), 6))
    x[10:20] = 1e60
    config = ragged(tmp_path, *EXACT, f"algo={algo}", "clients_per_round=null", "local_steps=8", sizes=SIZES, x=x)
    first, *_, last = snapshots(config)
    before, after = (jax.tree.leaves(snapshot.state["clients"]) for snapshot in (first, last))
    kept = np.ones(len(SIZES), bool)
    for old, new in zip(before, after, strict=True):
        kept &= (old[0] == new[0]).reshape(len(SIZES), -1).all(axis=1)
    assert last.diverged[0] == 0
    assert np.flatnonzero(kept).tolist() == [2]


def test_without_privacy_the_program_of_a_round_has_no_part_of_it():
    def jaxpr(*overrides):
        config = small("algo=feddualavg", "clients_per_round=poisson:0.5", *overrides)
        engine = engine_of(config)
        federation, experiment = engine.federation, prepare(config)
        rounds, numbers = federation.draw_rounds(0, 0, 2), federation.stack_numbers([experiment.numbers()])
        program = jax.make_jaxpr(federation.advance)(
            numbers, engine.initial_state([{}]), federation.arrays[0], rounds, 0
        )
        return str(program)

    config = small("algo=feddualavg", "clients_per_round=poisson:0.5")
    del config["privacy"]
    assert prepare(config).identity == prepare(small("algo=feddualavg", "clients_per_round=poisson:0.5")).identity
    without = jaxpr()
    assert jaxpr("privacy=none") == without
    assert "threefry" not in without
    assert "random_bits" not in without


# ---------------------------------------------------------------- records


def test_a_record_tells_what_is_private_by_round_and_what_is_not():
    config = small(*GAUSSIAN, "algo=feddualavg", "privacy.epsilon=2", "privacy.delta=1e-3", "rounds=6", "local_steps=2")
    record = run(config, "here")
    epsilons = record.metrics["epsilon"].to_numpy()
    assert epsilons[0] == 0
    assert (np.diff(epsilons) > 0).all()
    assert 1.99 < epsilons[-1] <= 2
    section = record.summary["privacy"]
    assert section["epsilon"] == epsilons[-1] == record.summary["final"]["epsilon"]
    assert section["noise"] == find_noise(2, 1e-3, 6)
    assert (section["unit"], section["key"], section["amplified_by"]) == ("client", "seed", None)
    assert section["neighbours"].startswith("the messages of one client counted as 0; number and weights")
    for words in ("epsilon 2 and delta 0.001", "the messages of one client counted as 0", "the seed, as a simulation",
                  f"not private are {', '.join(NOT_PRIVATE)}"):  # fmt: skip
        assert words in record.status["reason"]
    assert section["not_private"] == list(NOT_PRIVATE)
    guide = Path(__file__).parents[3].joinpath("docs/guide/privacy.md").read_text(encoding="utf-8")
    (listed,) = re.findall(r"Not private are (.*?)\.", guide.replace("`", ""), re.DOTALL)
    assert " ".join(listed.split()) == "; ".join(NOT_PRIVATE)
    with fails("privacy=", "intervals", "infer a record of a run without privacy"):
        record.infer()
    assert not list(Path("here").glob("inference*"))


def test_a_run_stops_before_its_privacy_loss_passes_the_target():
    config = small(*GAUSSIAN, *FEDAVG[:-1], "privacy.noise=3", "rounds=60", "eval_every=2", "stop={epsilon: 4}")
    record = run(config, "here")
    last = record.metrics.iloc[-1]
    noise = prepare(config).privacy
    assert 0 < last["round"] < 60
    assert last["epsilon"] <= 4 < noise.find_epsilon(int(last["round"]) + 2, None)
    assert f"stopped in round {last['round']:.0f}: epsilon" in record.status["reason"]


@pytest.mark.parametrize(
    ("mechanism", "key"),
    [
        (GAUSSIAN, "seed"),
        (GAUSSIAN, "secret"),
        ((*GAUSSIAN, "privacy.quantile=0.5"), "secret"),
        (("privacy=banded", *GAUSSIAN[2:], "clients_per_round=cyclic:0.2"), "secret"),
    ],
)
def test_a_round_that_is_computed_again_has_the_same_noise(mechanism, key, monkeypatch):
    """A process dies after an evaluation that somebody has seen; its secret key is in a checkpoint before any noise."""
    config = small(*mechanism, *FEDAVG[:-1], f"privacy.key={key}", "rounds=8", "checkpoint_every=1000")
    seen, modes = [], []

    class Watch(Watcher):
        def on_evaluation(self, job, row):
            seen.append(dict(row))
            if row["round"] == 4:
                modes.extend(stat.S_IMODE(path.stat().st_mode) for path in Path("here").glob(".checkpoint.npz"))
                monkeypatch.setattr(RunFolder, "save_checkpoint", lambda *_: None)  # as if it were killed
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config, "here", Watch())
    assert modes == ([0o600] if key == "secret" else [])
    rows = run(config, "here").metrics.set_index("round")
    assert [row["round"] for row in seen] == [0, 2, 4]
    for row in seen:
        assert rows.loc[row["round"], "objective"] == row["objective"]
        assert rows.loc[row["round"]].get("clip") == row.get("clip")
    assert not list(Path("here").glob(".checkpoint*"))


def raises(*_, **__):
    raise MemoryError


def test_a_secret_key_that_is_lost_is_not_drawn_anew_without_a_word(monkeypatch):
    config = small(*GAUSSIAN, *FEDAVG[:-1], "privacy.key=secret", "rounds=8")

    class Stop(Watcher):
        def on_evaluation(self, job, row):
            if row["round"] == 4:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config, "here", Stop())
    checkpoint = Path("here/.checkpoint.npz")
    checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    spent = GaussianPrivacy(noise=1.0).find_epsilon(4, None)
    for lose in (lambda: None, checkpoint.unlink, lambda: None):
        lose()
        with fails("here/.checkpoint.npz is missing or cannot be read", f"so far, epsilon {spent:.3g} by round 4"):
            run(config, "here")
        assert Record(Path("here")).rows[-1]["round"] == 4
    assert run(config, "there").status["status"] == "done"


def test_a_run_with_a_secret_key_that_failed_before_its_first_round_has_cost_nothing(monkeypatch):
    config = small(*GAUSSIAN, *FEDAVG[:-1], "privacy.key=secret", "rounds=2")
    with monkeypatch.context() as patched:
        patched.setattr("fcorun.runs.batch.RunFollower", raises)
        with pytest.raises(MemoryError):
            run(config, "here")
    record = Record(Path("here"))
    assert record.status["status"] == "failed"
    assert record.spent_epsilon == ""
    assert run(config | {"force": True}, "here").status["status"] == "done"


class Told(Watcher):
    """Fails when a round is told, of which the record had these rounds before."""

    def __init__(self, round):
        self.round = round

    def on_evaluation(self, job, row):
        self.rows = Record(Path("here")).rows
        if row["round"] == self.round:
            raise MemoryError


def test_a_run_with_a_secret_key_costs_something_from_the_first_row_with_noise_on():
    config = small(*GAUSSIAN, *FEDAVG[:-1], "privacy.key=secret", "rounds=3", "eval_every=1")
    with pytest.raises(MemoryError):
        run(config, "here", Told(0))
    assert Record(Path("here")).spent_epsilon == ""
    watch = Told(2)
    with pytest.raises(MemoryError):
        run(config | {"force": True}, "here", watch)
    assert [row["round"] for row in watch.rows] == [0, 1]  # also if a kill had come here
    with fails(f"epsilon {GaussianPrivacy(noise=1.0).find_epsilon(2, None):.3g} by round 2 is spent"):
        run(config | {"force": True}, "here")


def test_a_run_with_a_secret_key_is_not_replaced():
    """Its epsilon is spent, whatever another run with other noise costs; a run of the seed has the same noise again."""
    config = small(*GAUSSIAN, *FEDAVG[:-1], "privacy.key=secret", "rounds=2")
    before = run(config, "here").metrics
    spent = GaussianPrivacy(noise=1.0).find_epsilon(2, None)
    for other in (config, small("algo=fedavg", "reg=none")):
        with fails("force=True would replace", f"epsilon {spent:.3g} by round 2 is spent", "choose another folder"):
            run(other | {"force": True}, "here")
    pd.testing.assert_frame_equal(Record("here").metrics, before)
    run(config | {"force": True}, "there")
    public = small(*GAUSSIAN, *FEDAVG[:-1], "privacy.key=seed", "rounds=2", "force=true")
    for _ in range(2):
        assert run(public, "public").status["status"] == "done"


def test_secret_keys_differ_between_runs_and_seeds_do_not():
    for key, same in (("seed", True), ("secret", False)):
        config = small(*GAUSSIAN, *FEDAVG[:-1], f"privacy.key={key}")
        first, second = (snapshots(config)[-1].solution["weights"] for _ in range(2))
        assert (first == second).all() == same
    assert prepare(config).identity != prepare(config | {"privacy": config["privacy"] | {"key": "seed"}}).identity


@pytest.mark.parametrize(
    ("overrides", "ratio", "cures"),
    [
        # sqrt(21 weights) x 100 x 1 / 100 clients / sqrt(9 rounds)
        (("privacy.noise=100",), 4.583 / 3, "more clients, fewer parameters or a smaller privacy.noise"),
        # each client adds noise, ten times as much in the mean
        (("privacy.noise=100", "privacy.noise_by=clients"), 45.83 / 3, "privacy.noise_by=server"),
        # of 25 of 100 clients, whose noises count 1 / 25 each: 100 / sqrt(25)
        (("privacy.noise=100", "privacy.noise_by=clients", "clients_per_round=25"), 4.583 * 20 / 3, "more clients"),
        # two edges in two rounds each: noise of two servers, each with half of the weight
        (
            ("privacy.noise=200", "data.clients=400", "topology=tree", "topology.edges=2", "topology.rounds=2"),
            4.583 / 2 * math.sqrt(2 / 18),
            "fewer parameters, fewer edges or a smaller privacy.noise",
        ),
        # a client of 12 rows has six minibatches in two passes
        (
            ("privacy.noise=400", "privacy.unit=row", "privacy.noise_by=clients", "batch_size=4", "local_epochs=2"),
            45.83 / math.sqrt(6 * 9),
            "more rows",
        ),
        # 20 clients a round; the sum of nine rounds, 1001 in binary, has the noise of two nodes
        (
            ("privacy=tree", "clients_per_round=cyclic:0.2", "privacy.noise=20"),
            4.583 * math.sqrt(2) / 9,
            "more clients",
        ),
        # the noise of the last round, and half of the eight before
        (
            ("privacy=banded", "privacy.bands=2", "clients_per_round=cyclic:0.2", "privacy.noise=20"),
            4.583 * math.sqrt(1 + 8 / 4) / 9,
            "more clients",
        ),
        # a client of 1,200 rows has 12
        (("privacy.noise=1200", "privacy.unit=row", "local_steps=1", "batch_size=null"), 4.583 / 3, "more rows, fewer"),
        (("clients_per_round=poisson:0.4", "privacy.noise=40"), 4.583 / 3, "a smaller privacy.noise"),
        (("privacy.epsilon=0.01",), None, "a larger privacy.epsilon"),
        (("privacy.noise=10",), None, None),
    ],
)
def test_noise_that_drowns_the_messages_is_told_before_the_run(overrides, ratio, cures):
    experiment = prepare(small(*GAUSSIAN, *FEDAVG[:-1], "rounds=9", *overrides))
    job = Job(experiment, RunFolder(Path("here"), "identity"))
    told = [text for text in job.list_warnings(load_data(experiment)) if "drowns" in text]
    if cures is None:
        assert told == []
        return
    (sentence,) = told
    assert cures in sentence
    if ratio is not None:
        assert f"adds up to {ratio:.2g} times" in sentence
