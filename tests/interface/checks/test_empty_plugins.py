"""Plug-ins that do nothing, or not what they promise, fail a check; a private run that counts on them is refused.

Unusual plug-ins that keep their promises pass and run.
"""

import jax
import numpy as np
import pytest
from helpers import engine_of, fails, small, write_choice

from fcorun.base.config import build_plugin
from fcorun.base.system.machine import use_precision
from fcorun.experiment.build import build_engine, load_data
from fcorun.experiment.configuration.search_path import use_config_dir
from fcorun.experiment.prepare import prepare
from fcorun.interface.checks import algorithms, communication, datasets
from fcorun.interface.checks.property_check import run_checks

pytest.importorskip("dp_accounting")

PLUGINS = """
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

from fcorun import Channel, Clock, Dataset, FedAvg, FederatedData, FedMiDOSP, Positive, Privacy, Rows, Traits
from fcorun.base.system.random_streams import random_stream
from fcorun.config import Count, Index
from fcorun.methods.clocks.clock import ClientSpeeds
from fcorun.methods.communication.faults import Liars
from fcorun.methods.communication.gaussian_privacy import GaussianPrivacy
from fcorun.methods.communication.privacy import find_norm


@dataclass(frozen=True)
class Leaky(FedAvg):
    traits = Traits(psi_sides=(), public_uploads=("change",))

    def local(self, problem, server, client, data):
        change, client = super().local(problem, server, client, data)
        return {"change": change, "one": jnp.zeros(())}, client

    def server(self, problem, server, mean):
        return super().server(problem, server, mean["change"])


class ByState(Leaky):
    traits = Traits(psi_sides=(), public_uploads=("one",))

    def init(self, problem, w0):
        return w0, jnp.ones((), w0.dtype)

    def local(self, problem, server, client, data):
        upload, _ = super().local(problem, server, client, data)
        return upload | {"one": client}, 2 * client


class BySign(Leaky):
    traits = Traits(psi_sides=(), public_uploads=("one",))

    def local(self, problem, server, client, data):
        upload, client = super().local(problem, server, client, data)
        return upload | {"one": (data.whole.x > 0).sum().astype(server.dtype)}, client


class WithoutEntry(Leaky):
    traits = Traits(psi_sides=(), public_uploads=("elapsed",))


class TwiceTheGradient(FedAvg):
    traits = Traits(psi_sides=(), public_uploads=(), gradient_uploads="primal")

    def local(self, problem, server, client, data):
        upload, client = super().local(problem, server, client, data)
        return 2 * upload, client


class OfAllRows(FedAvg):
    traits = Traits(psi_sides=(), public_uploads=(), gradient_steps=True)

    def local(self, problem, server, client, data):
        return -self.client_lr * problem.gradient(server, data.whole), client


class TwoGradients(FedAvg):
    traits = Traits(psi_sides=(), public_uploads=(), gradient_steps=True)

    def local(self, problem, server, client, data):
        def step(w, batch):
            half_way = w - self.client_lr / 2 * problem.gradient(w, batch)
            return w - self.client_lr * problem.gradient(half_way, batch)

        return data.steps(step, server) - server, client


class ProxOfSums(FedMiDOSP):
    traits = replace(FedMiDOSP.traits, sums_messages=True)


class Free(FedAvg):
    traits = replace(FedAvg.traits, public_uploads=None)

    def upload_bytes(self, upload):
        return 0


class Unclipped(GaussianPrivacy):
    source = "ours"

    def clip_message(self, message):
        return message


class OneNoise(GaussianPrivacy):
    source = "ours"

    def draw_noise(self, message, key, number):
        return self.draw_normal(message, key)


class FreeChannel(Channel):
    source = "ours"
    uses_key = False

    def send(self, upload, memory, key):
        return upload, memory

    def upload_bytes(self, upload, declared_bytes):
        return 0


class HonestLiars(Liars):
    source = "ours"

    def corrupt(self, array, memory, key):
        return array, memory


class SeldomLiars(Liars):
    source = "ours"

    def corrupt(self, array, memory, key):
        return jnp.where(jax.random.uniform(key) < 0.1, -array, array), memory


@dataclass(frozen=True)
class OneDraw(Dataset):
    seed: Index = 0

    def load(self):
        rng = random_stream(0, "rows")
        return FederatedData(Rows(rng.standard_normal((8, 3)), np.arange(8.0), np.arange(8) // 4))


@dataclass(frozen=True, kw_only=True)
class OneClock(Clock):
    source = "ours"
    seed: Index = 0

    def speeds(self, clients):
        return ClientSpeeds(*np.random.default_rng(0).uniform(1, 2, (3, len(clients))), 0.0)


class Counted(FedAvg):
    traits = Traits(psi_sides=(), public_uploads=())

    def init(self, problem, w0):
        return {"w": w0, "round": 0}, None

    def received_model(self, problem, server, client, data):
        return server["w"]

    def local(self, problem, server, client, data):
        return super().local(problem, server["w"], client, data)

    def server(self, problem, server, mean):
        return {"w": server["w"] + self.server_lr * mean, "round": server["round"] + 1}

    def output(self, problem, server):
        return server["w"]


class FirstStep(FedAvg):
    traits = Traits(psi_sides=(), public_uploads=(), gradient_steps=True)

    def local(self, problem, server, client, data):
        w = data.steps(lambda w, batch: w - self.client_lr * problem.gradient(w, batch), server, count=1)
        return w - server, client


class Whole(FedAvg):
    traits = Traits(psi_sides=(), deterministic=True, public_uploads=(), gradient_uploads="primal")

    def local(self, problem, server, client, data):
        return -self.client_lr * problem.gradient(server, data.whole), client


class UntilSmall(FedAvg):
    traits = Traits(psi_sides=(), public_uploads=("one",))

    def local(self, problem, server, client, data):
        def step(state):
            move = -self.client_lr * problem.gradient(state[0], data.whole)
            return state[0] + move, move.norm()

        start = server, jnp.asarray(jnp.inf, server.dtype)
        w, _ = jax.lax.while_loop(lambda state: ~(state[1] <= 0.01), step, start)
        return {"change": w - server, "one": 1.0}, client

    def server(self, problem, server, mean):
        return super().server(problem, server, mean["change"])


@dataclass(frozen=True, kw_only=True)
class Coordinates(Privacy):
    source = "ours"
    choices = ("clip",)
    clip: Positive = 1.0
    noise: Positive = 10.0

    def clip_message(self, message):
        return jax.tree.map(lambda array: jnp.clip(array, -self.clip, self.clip), message)

    def draw_noise(self, message, key, number):
        def draw(array, own_key):
            return self.noise * self.clip * jax.random.normal(jax.random.fold_in(own_key, number), array.shape)

        return jax.tree.map(draw, message, self.split_key(key, message))

    def find_epsilon(self, rounds, clients_per_round, times=1):
        return rounds * times / self.noise


class OnGrid(Coordinates):
    source = "ours"

    def clip_message(self, message):
        factor = self.clip / jnp.maximum(find_norm(message), self.clip)
        return jax.tree.map(lambda array: jnp.trunc(1024 * factor * array) / 1024, message)


@dataclass(frozen=True, kw_only=True)
class OfMatrix(Coordinates):
    source = "ours"
    n_rounds: Count = 1

    def resolve(self, settings, times=1):
        return replace(self, n_rounds=settings.rounds)

    def draw_noise(self, message, key, number):
        matrix = jnp.tri(self.n_rounds) + jnp.eye(self.n_rounds)

        def draw(array, own_key):
            draws = jax.random.normal(own_key, (len(matrix), *array.shape))
            return self.noise * self.clip * jnp.tensordot(matrix[number], draws, 1)

        return jax.tree.map(draw, message, self.split_key(key, message))
"""
RATES = "client_lr: 0.01\nserver_lr: 1.0"
PRIVATE = ("data.clients=100", "clients_per_round=null", "algo=wrong")
STEPS = ("privacy=gaussian", "privacy.unit=row", "privacy.noise_by=clients")
FULL_STEP = ("batch_size=null", "local_epochs=1")
ONE_STEP = ("privacy=gaussian", "privacy.unit=row", "local_steps=1")


@pytest.fixture
def choose(user_module, tmp_path):
    """A function that makes a class of the user's the choice "wrong" of a section."""
    user_module("empty", PLUGINS)

    def write(section, name, numbers=""):
        write_choice(tmp_path / "conf", section, "wrong", f"class: empty.{name}\n{numbers}")

    (tmp_path / "conf").mkdir()
    with use_config_dir(tmp_path / "conf"):
        yield write


def failure(check, subject):
    (result,) = run_checks([check], subject)
    assert result.status == "failed", result
    return result.message


@pytest.mark.parametrize(
    ("name", "check", "privacy", "sentence"),
    [
        ("Leaky", algorithms.check_public_uploads, ("privacy=gaussian",), "the entry 'change' of uploads follows from"),
        ("ByState", algorithms.check_public_uploads, ("privacy=gaussian",), "the entry 'one' of uploads follows from"),
        ("BySign", algorithms.check_public_uploads, ("privacy=gaussian",), "the entry 'one' of uploads follows from"),
        ("WithoutEntry", algorithms.check_public_uploads, ("privacy=gaussian",), "its uploads have no entry 'elapsed'"),
        ("TwiceTheGradient", algorithms.check_gradient_uploads, ONE_STEP, "after one step its upload is not"),
        (
            "TwoGradients",
            algorithms.check_rows_in_gradients,
            STEPS,
            "at most one gradient of each of their rows, and take 2",
        ),
        ("OfAllRows", algorithms.check_rows_in_gradients, STEPS, "depends on rows besides the gradients"),
        (
            "ProxOfSums",
            algorithms.check_sums_of_messages,
            ("privacy=tree", "clients_per_round=cyclic:0.1"),
            "a message and its opposite in the next",
        ),
    ],
)
def test_a_broken_promise_fails_its_check_and_ends_a_private_run_before_it_begins(
    choose, name, check, privacy, sentence
):
    choose("algo", name, RATES)
    assert sentence in failure(check, algorithms.AlgorithmCase("wrong"))
    engine_of(small(*PRIVATE))
    with fails("algo=wrong", sentence):
        engine_of(small(*PRIVATE, *privacy))


@pytest.mark.parametrize(
    ("name", "check", "sentence"),
    [
        ("Unclipped", communication.check_bound_of_messages, "lengths 1e15 and 1e18 should be clipped to one bound"),
        ("OneNoise", communication.check_noise_of_rounds, "of theirs has the correlation 1: fold the number"),
    ],
)
def test_a_mechanism_that_hides_nothing_fails_and_ends_a_run_before_it_begins(choose, name, check, sentence):
    choose("privacy", name)
    assert sentence in failure(check, communication.CommunicationCase("privacy", "wrong"))
    with fails("privacy=wrong", sentence):
        engine_of(small("algo=fedavg", *PRIVATE[:2], "privacy=wrong"))


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("Counted", ("privacy=gaussian",)),
        ("FirstStep", (*STEPS, "local_steps=2")),
        ("Whole", ("privacy=gaussian", "privacy.unit=row", *FULL_STEP)),
        ("UntilSmall", ("privacy=gaussian", *FULL_STEP)),
        ("Coordinates", ()),
        ("Coordinates", ("privacy.clip=100",)),
        ("OnGrid", ()),
        ("OfMatrix", ("rounds=1",)),
        ("OfMatrix", ("rounds=4",)),
    ],
)
def test_an_unusual_plugin_that_keeps_its_promises_passes_and_runs(choose, name, overrides):
    is_algorithm = "privacy=gaussian" in overrides
    if is_algorithm:
        choose("algo", name, RATES)
        case = algorithms.AlgorithmCase("wrong")
        checks = [
            algorithms.check_public_uploads,
            algorithms.check_rows_in_gradients,
            algorithms.check_gradient_uploads,
        ]
    else:
        choose("privacy", name, "clip: 1.0\nnoise: 10.0")
        overrides = ("algo=fedavg", "privacy=wrong", *overrides)
        case = communication.CommunicationCase("privacy", "wrong")
        checks = [
            communication.check_clipping,
            communication.check_bound_of_messages,
            communication.check_noise,
            communication.check_noise_of_rounds,
        ]
    failed = [result for result in run_checks(checks, case) if result.status == "failed"]
    assert not failed, failed
    config = small("reg=none", "precision=float64", *PRIVATE[:2], *(PRIVATE[2:] if is_algorithm else ()), *overrides)
    experiment = prepare(config)
    engine = build_engine(experiment, load_data(experiment))
    with use_precision("float64"):
        assert {leaf.dtype for leaf in jax.tree.leaves(engine.federation.shapes.uploads)} == {np.dtype("float64")}


def test_messages_without_bytes_fail(choose):
    choose("uplink", "FreeChannel")
    case = communication.CommunicationCase("uplink", "wrong")
    assert "168 bytes or more, and upload_bytes() says 0" in failure(communication.check_channel_bytes, case)
    choose("algo", "Free", RATES)
    assert "takes none" in failure(algorithms.check_bytes, algorithms.AlgorithmCase("wrong"))


def test_liars_that_say_the_truth_fail(choose):
    choose("faults", "HonestLiars", "liars: 0.3")
    case = communication.CommunicationCase("faults", "wrong")
    assert "something else than the upload" in failure(communication.check_lies_change_messages, case)


def test_liars_that_lie_at_times_pass(choose):
    choose("faults", "SeldomLiars", "liars: 0.3")
    case = communication.CommunicationCase("faults", "wrong")
    (result,) = run_checks([communication.check_lies_change_messages], case)
    assert result.status == "passed", result


def test_a_seed_that_draws_nothing_fails(choose):
    choose("data", "OneDraw")
    assert "another seed should draw other rows" in failure(datasets.check_seed, datasets.DatasetCase("wrong"))
    choose("clock", "OneClock")
    clock = build_plugin("clock", small("clock=wrong")["clock"])
    assert "another seed should draw other speeds" in failure(communication.check_clock_seed, clock)
