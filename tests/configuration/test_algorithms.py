"""Which algorithms a sweep runs, before it is one."""

from pathlib import Path

import pytest
from helpers import fails

from fcorun.configuration.search_path import use_config_dir
from fcorun.configuration.sweep_algorithms import sweep_algorithms

SWEEPER = """# @package _global_
defaults: [override /algo: fedavg]
hydra:
  sweeper:
    params: {PARAMS}
    also: [ALSO]
"""


@pytest.mark.parametrize(
    ("params", "also", "more", "names"),
    [
        ("", "", [], ["fedavg"]),
        ("'algo': 'fedmid,proxskip'", "algo=centralized", [], ["fedmid", "proxskip", "centralized"]),
        ("'algo': 'fedmid,proxskip'", "", ["algo=fedgd"], ["fedgd"]),
        ("'algo': 'fedmid,proxskip'", "", ["algo=scaffold,fedgd", "algo.client_lr=1"], ["scaffold", "fedgd"]),
        ("", "algo=fedmid algo.name=mine algo.client_lr=1", [], ["mine"]),
        ("", "algo=fedmid seed=1", ["algo.client_lr=1,2"], ["fedavg", "fedmid"]),
        ("'algo.client_lr': '1,2'", "seed=1", [], ["fedavg"]),
        ("", "seed=1", ["hydra.sweeper.also=['algo=fedgd']"], ["fedgd"]),
        ("", "", ["algo=glob(apf*)"], ["apfl"]),
        ("", "'algo=own ++algo.title=\"a b\"'", [], ["called"]),
    ],
)
def test_names(params, also, more, names):
    for place, text in [
        ("experiment/mine", SWEEPER.replace("PARAMS", params).replace("ALSO", also)),
        ("algo/own", "name: called\nclass: fcorun.algorithms.fedavg.FedAvg\nclient_lr: 1\nserver_lr: 1\n"),
    ]:
        Path("own", place).parent.mkdir(parents=True, exist_ok=True)
        Path("own", f"{place}.yaml").write_text(text)
    with use_config_dir("own"):
        assert sweep_algorithms(["experiment=mine", *more]) == names


def test_what_cannot_be_composed_is_one_sentence():
    with fails("there is no algo=fedmidd: did you mean 'fedmid'?"):
        sweep_algorithms(["algo=fedmidd"])
