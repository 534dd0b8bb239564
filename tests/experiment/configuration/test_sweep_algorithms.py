"""The algorithms of a sweep, known before the sweep runs."""

from pathlib import Path

import pytest
from helpers import fails

from fcorun.experiment.configuration.search_path import use_config_dir
from fcorun.experiment.configuration.sweep_jobs import sweep_algorithms

EXPERIMENT = """# @package _global_
defaults: [override /algo: fedavg]
hydra:
  sweeper:
    params: {PARAMS}
    also: [ALSO]
"""


@pytest.mark.parametrize(
    ("params", "also", "overrides", "names"),
    [
        ("", "", [], ["fedavg"]),
        ("'algo': 'fedmid,proxskip'", "algo=centralized", [], ["fedmid", "proxskip", "centralized"]),
        ("'algo': 'fedmid,proxskip'", "", ["algo=fedgd"], ["fedgd"]),
        ("'algo': 'fedmid,proxskip'", "", ["algo=scaffold,fedgd", "algo.client_lr=1"], ["scaffold", "fedgd"]),
        ("", "algo=fedmid algo.name=mine algo.client_lr=1", [], ["mine"]),
        ("", "algo=fedmid seed=1", ["seed=1,2"], ["fedmid"]),
        ("", "algo=fedmid seed=1", ["algo=fedgd"], ["fedgd", "fedmid"]),
        ("'algo.client_lr': '1,2'", "seed=1", [], ["fedavg"]),
        ("", "seed=1", ["hydra.sweeper.also=['algo=fedgd']"], ["fedgd"]),
        ("", "", ["algo=glob(apf*)"], ["apfl"]),
        ("", "'algo=own ++algo.title=\"a b\"'", [], ["called"]),
    ],
)
def test_the_names_are_those_that_the_sweep_runs(params, also, overrides, names):
    for name, text in [
        ("experiment/mine", EXPERIMENT.replace("PARAMS", params).replace("ALSO", also)),
        ("algo/own", "name: called\nclass: fcorun.FedAvg\nclient_lr: 1\nserver_lr: 1\n"),
    ]:
        Path("own", name).parent.mkdir(parents=True, exist_ok=True)
        Path("own", f"{name}.yaml").write_text(text)
    with use_config_dir("own"):
        assert sweep_algorithms(["experiment=mine", *overrides]) == names


def test_overrides_that_cannot_be_composed_are_refused_in_one_sentence():
    with fails("there is no algo=fedmidd: did you mean 'fedmid'?"):
        sweep_algorithms(["algo=fedmidd"])
    with fails("algo.client_lr=[0.1: "):
        sweep_algorithms(["algo.client_lr=[0.1"])
