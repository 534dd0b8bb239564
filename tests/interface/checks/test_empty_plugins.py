"""Plug-ins that do nothing, or not what they promise, fail a check; a private run that counts on them is refused."""

import pytest
from helpers import engine_of, fails, small, write_choice

from fcorun.base.config import build_plugin
from fcorun.experiment.configuration.search_path import use_config_dir
from fcorun.interface.checks import algorithms, communication, datasets
from fcorun.interface.checks.property_check import run_checks

pytest.importorskip("dp_accounting")

PLUGINS = """
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

from fcorun import Algorithm, Channel, Clock, Dataset, FedAvg, FederatedData, FedMiDOSP, Rows, Traits
from fcorun.base.system.random_streams import random_stream
from fcorun.config import Index
from fcorun.methods.clocks.clock import ClientSpeeds
from fcorun.methods.communication.faults import Liars
from fcorun.methods.communication.gaussian_privacy import GaussianPrivacy


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
"""
RATES = "client_lr: 0.01\nserver_lr: 1.0"
PRIVATE = ("data.clients=100", "clients_per_round=null", "algo=wrong")
STEPS = ("privacy=gaussian", "privacy.unit=row", "privacy.noise_by=clients")
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
        ("OfAllRows", algorithms.check_rows_in_gradients, STEPS, "take 0 and 1 of all rows"),
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
        ("Unclipped", communication.check_bound_of_messages, "lengths 1e9 and 1e12 should be clipped to one length"),
        ("OneNoise", communication.check_noise_of_rounds, "of theirs has the correlation 1: fold the number"),
    ],
)
def test_a_mechanism_that_hides_nothing_fails_and_ends_a_run_before_it_begins(choose, name, check, sentence):
    choose("privacy", name)
    assert sentence in failure(check, communication.CommunicationCase("privacy", "wrong"))
    with fails("privacy=wrong", sentence):
        engine_of(small("algo=fedavg", *PRIVATE[:2], "privacy=wrong"))


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


def test_a_seed_that_draws_nothing_fails(choose):
    choose("data", "OneDraw")
    assert "another seed should draw other rows" in failure(datasets.check_seed, datasets.DatasetCase("wrong"))
    choose("clock", "OneClock")
    clock = build_plugin("clock", small("clock=wrong")["clock"])
    assert "another seed should draw other speeds" in failure(communication.check_clock_seed, clock)
