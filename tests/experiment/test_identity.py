"""The identity of a run: the options that are part of it, and those that are not."""

from importlib import import_module

import pytest
from helpers import Count, identity, small

from fcorun import compose, run
from fcorun.experiment.build import load_data
from fcorun.experiment.prepare import prepare

# What the documentation and the docstrings tell users to import.
PUBLIC = [
    *(f"fcorun.{name}" for name in ("compose", "run", "load_records", "Record", "UserError")),
    *("fcorun.Watcher", "fcorun.__version__", "fcorun.base.metrics.Metric"),
    *("fcorun.base.config.Positive", "fcorun.base.config.PathOption"),
    *(
        f"fcorun.methods.algorithms.{name}"
        for name in ("Algorithm", "ProximalAlgorithm", "PersonalAlgorithm", "Traits")
    ),
    *(
        "fcorun.methods.regularizers.Regularizer",
        "fcorun.methods.mirror_maps.MirrorMap",
        "fcorun.methods.objectives.LinearModel",
    ),
    *("fcorun.data.datasets.Dataset", "fcorun.data.datasets.FederatedData", "fcorun.methods.communication.Topology"),
    *("fcorun.experiment.tracker.Tracker", "fcorun.methods.problem.solver.minimize"),
]

# ---------------------------------------------------------------- what a run is


@pytest.mark.slow
@pytest.mark.parametrize("overrides", [[], ["local_steps=3"], ["reg.relative=0.5"], ["algo=centralized"]])
def test_the_config_of_a_record_is_that_run(overrides):
    record = run(small(*overrides, "rounds=2"))
    watch = Count()
    assert prepare(record.config).identity == record.status["identity"]
    assert run(record.config, watch=watch).folder == record.folder
    assert watch.rows == 0


@pytest.mark.parametrize(
    "how",
    ["verbose=false", "force=true", "debug=true", "tail_rounds=7", "checkpoint_every=0", "algo.name=mine", "x=bytes"],
)
def test_options_of_presentation_leave_the_identity(how):
    assert identity(how) == identity()


@pytest.mark.parametrize(
    "what",
    [
        *("seed=1", "data.seed=1", "algo.client_lr=0.002", "algo=fedavg", "reg.strength=0.2", "reg=l2", "rounds=5"),
        *(
            "batch_size=4",
            "clients_per_round=2",
            "local_epochs=2",
            "local_steps=2",
            "eval_every=1",
            "precision=float64",
        ),
        *("client_weighting=uniform", "cutoff=0.01", "reference=true", "gap=true", "data.samples=13"),
    ],
)
def test_options_that_change_numbers_change_the_identity(what):
    assert identity(what) != identity()


def test_a_path_is_no_part_of_the_identity_but_the_content_is(tmp_path):
    def of(name, value):
        (tmp_path / name).write_text("a,b,y\n" + "".join(f"{i},{i % 3},{value * i}\n" for i in range(20)))
        return prepare(compose(["data=table", f"data.path={tmp_path}/{name}", "data.target=y"])).identity

    assert of("one.csv", 1) == of("two.csv", 1) != of("three.csv", 2)


OWN = """
from dataclasses import dataclass
import numpy as np
from fcorun.algorithms import FedAvg
from fcorun.data.datasets.dataset import Dataset, FederatedData
from fcorun.data.rows.rows import Rows

@dataclass(frozen=True)
class Own(FedAvg):
    pass

@dataclass(frozen=True)
class Lasso(Dataset):
    def load(self):
        return FederatedData(Rows(np.eye(4) * {factor}, np.arange(4.0), np.arange(4) // 2))
"""


def test_the_code_of_the_users_plugins_is_part_of_the_identity(user_module):
    algo = {"class": "mine.Own", "client_lr": 0.1, "server_lr": 1.0}
    data = {"class": "mine.Lasso"}

    def identities(factor):
        user_module("mine", OWN.format(factor=factor))
        return identity(algo=algo), identity("clients_per_round=null", data=data)

    one, other = identities(1), identities(2)
    assert identities(1) == one
    assert one[0] != other[0]
    assert one[1] != other[1]
    assert one[1] != identity("clients_per_round=null", data={"class": "fcorun.Lasso"})


def test_the_loaded_data_of_a_user_are_those_of_the_code(user_module):
    config = small("clients_per_round=null", "rounds=1") | {"data": {"name": "own", "class": "mine.Lasso"}}
    for factor in (1, 2):
        user_module("mine", OWN.format(factor=factor))
        assert load_data(prepare(config)).train.x[0, 0] == factor


# ---------------------------------------------------------------- hard cases


def test_a_baselines_identity_has_only_the_options_that_it_reads():
    assert identity("algo=centralized", "seed=1", "rounds=9") == identity("algo=centralized")
    assert identity("algo=centralized", "client_weighting=uniform") != identity("algo=centralized")
    config = small("reg.relative=0.1")
    other = config | {"reg": config["reg"] | {"strength": 3.0}}  # which relative replaces
    assert prepare(other).identity == prepare(config).identity


@pytest.mark.parametrize("path", PUBLIC)
def test_paths_that_users_know_import(path):
    module, _, name = path.rpartition(".")
    assert hasattr(import_module(module), name)
