"""Runs that privacy refuses, each in a sentence with a cure: those without an account, few clients, own algorithms."""

import numpy as np
import pytest
from helpers import fails, small, snapshots, write_choice

from fcorun.experiment.build import load_data
from fcorun.experiment.configuration.search_path import use_config_dir
from fcorun.experiment.prepare import prepare
from fcorun.interface.checks.problems import ragged

pytest.importorskip("dp_accounting")

GAUSSIAN = ("privacy=gaussian", "clients_per_round=null", "data.clients=100")
SIZES = (3, 7, 10, 2, 5) * 24


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("algo=newton",), ("newton", "fcorun list algo")),
        (("privacy.epsilon=0",), ("privacy.epsilon=0", "no noise is enough", "such as privacy.epsilon=2")),
        (("privacy.epsilon=1", "privacy.noise=1"), ("privacy.epsilon", "privacy.noise", "give one of them")),
        (("topology=graph",), ("topology=graph", "one server or to edges", "leave")),
        (("aggregate=krum", "aggregate.liars=1"), ("aggregate=krum", "leave one of them out")),
        (("uplink=topk",), ("uplink=topk", "privacy.noise_by=clients")),
        (
            ("algo=fedmid", "reg=nonneg", "reg.applied_by=client"),
            ("privacy=gaussian moves models out of", "reg.applied_by=both"),
        ),
        (("privacy.quantile=1",), ("privacy.quantile", "less than 1")),
        (("privacy.quantile=0.5", "privacy.noise_by=clients"), ("privacy.quantile", "privacy.noise_by=clients")),
        (("privacy.quantile=0.5", "privacy.unit=row"), ("privacy.quantile", "or privacy.unit=row")),
        (("privacy.quantile=0.5", "topology=tree"), ("privacy.quantile", "or topology=tree")),
        (("relax=0.5", "algo=feddualavg"), ("relax", "leave them out")),
        (("privacy.key=secret", "clients_per_round=poisson:0.5"), ("privacy.key=secret", "clients_per_round=null")),
        (("stop={epsilon: 0.01}",), ("stop.epsilon=0.01", "raise privacy.noise")),
        (("algo=centralized", "reg=l1"), ("leave privacy out",)),
        (("privacy.unit=row", "algo=scaffold"), ("algo=scaffold", "give privacy=gaussian privacy.noise_by=clients")),
        (
            ("privacy.unit=row", "privacy.noise_by=clients", "algo=scaffold", "algo.option=1"),
            ("algo=scaffold", "read their rows otherwise", "privacy.unit=client"),
        ),
        (("privacy.unit=row", "privacy.noise_by=clients", "algo=fedprox"), ("algo=fedprox", "fcorun list algo")),
        (("objective.client_intercepts=true",), ("an intercept", "give objective.client_intercepts=false")),
        (("privacy.unit=row", "objective.client_intercepts=true"), ("give objective.client_intercepts=false",)),
        (("objective=cox",), ("baseline hazards of objective=cox", "leave privacy out")),
        (
            ("privacy.unit=row", "algo=fedmid_osp", "mirror=p_norm"),
            ("algo=fedmid_osp", "mirror=p_norm", "leave mirror out"),
        ),
        (("privacy.unit=row", "faults=sign_flip"), ("faults=sign_flip", "leave faults out")),
    ],
)
def test_runs_without_an_account_are_refused(overrides, words):
    with fails(*words):
        prepare(small("algo=fedavg", "reg=none", *GAUSSIAN, *overrides))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("data.clients=99",), ("99", "100 clients or more")),
        (
            ("data.clients=250", "topology=tree", "topology.edges=3"),
            ("an edge of topology=tree has 83", "topology.map=null topology.edges=2", "privacy.noise_by=clients"),
        ),
        (("privacy.delta=0.02",), ("privacy.delta=0.02", "0.01")),
        (("clients_per_round=poisson:0.1",), ("clients_per_round=poisson:0.3",)),
        (("privacy.unit=row", "local_steps=1", "privacy.delta=0.02"), ("privacy.delta=0.02", "rows", "at most")),
        (("privacy.unit=row", "local_steps=2"), ("one local step", "privacy.noise_by=clients", "local_steps=1")),
    ],
)
def test_too_few_clients_are_refused(overrides, words):
    with fails(*words):
        load_data(prepare(small("algo=fedavg", "reg=none", *GAUSSIAN, *overrides)))


def test_edges_of_enough_clients_or_noise_of_clients_are_not_refused():
    base = ("algo=fedavg", "reg=none", *GAUSSIAN, "data.clients=250", "topology=tree")
    load_data(prepare(small(*base, "topology.map=null", "topology.edges=2")))
    load_data(prepare(small(*base, "topology.edges=3", "privacy.noise_by=clients")))


def test_numbers_of_steps_that_tell_rows_are_refused(tmp_path):
    config = ragged(tmp_path, "algo=feddualavg", "privacy=gaussian", "batch_size=2", sizes=SIZES)
    with fails("local steps", "local_steps=10"):
        load_data(prepare(config))


def test_duals_with_a_domain_are_refused(user_module, tmp_path):
    """The duals of the barrier -sum log w are negative."""
    user_module("barrier", BARRIER)
    write_choice(tmp_path, "mirror", "barrier", "class: barrier.Barrier")
    with use_config_dir(tmp_path), fails("mirror=barrier", "domain", "leave mirror out"):
        prepare(small("algo=feddualavg", "reg=none", *GAUSSIAN, "mirror=barrier"))


BARRIER = """from dataclasses import dataclass

from fcorun import MirrorMap


@dataclass(frozen=True)
class Barrier(MirrorMap):
    source = "ours"
    has_whole_dual = False

    def to_dual(self, w):
        return -1 / w

    def to_primal(self, z):
        return -1 / z
"""
OWN = """from dataclasses import dataclass

from fcorun import FedDualAvg, Traits


@dataclass(frozen=True)
class Own(FedDualAvg):
    source = "ours"
    TRAITS

    def METHOD
"""
SINGLE = """server_all(self, problem, server, uploads, weights):
        dual = uploads["dual"].map(lambda values: values.mean(axis=0))
        return self.server(problem, server, {"dual": dual, "elapsed": uploads["elapsed"][0]})
"""
TWICE = """first_local(self, problem, server, client, data):
        return self.local(problem, server, client, data)

    def first_server(self, problem, server, mean):
        return self.server(problem, server, mean)
"""
DECLARED = "traits = Traits(public_uploads=('elapsed',))"


@pytest.mark.parametrize(
    ("traits", "method", "words"),
    [
        (DECLARED, SINGLE, ("takes single uploads", "privacy.noise_by=clients")),
        (DECLARED, TWICE, ("two exchanges",)),
        ("pass", "output(self, problem, server):\n        return server['dual']\n", ("fcorun list algo",)),
    ],
)
def test_what_an_algorithm_of_ones_own_must_declare(traits, method, words, user_module, tmp_path):
    """Single uploads would have the noise of a mean, and the promise of a base class is not inherited."""
    user_module("own", OWN.replace("TRAITS", traits).replace("METHOD", method))
    (tmp_path / "conf").mkdir()
    write_choice(tmp_path / "conf", "algo", "own", "class: own.Own\nclient_lr: 0.1\nserver_lr: 1.0")
    with use_config_dir(tmp_path / "conf"):
        with fails(*words):
            prepare(small("algo=own", "reg=none", *GAUSSIAN))
        if method == SINGLE:
            last = snapshots(small("algo=own", "reg=none", *GAUSSIAN, "privacy.noise_by=clients"))[-1]
            assert np.isfinite(last.solution["weights"]).all()
