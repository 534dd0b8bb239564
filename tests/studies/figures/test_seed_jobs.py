"""The runs of a figure's best points with further seeds."""

from pathlib import Path

import pytest

from fcorun.base.records.record import load_records
from fcorun.experiment.configuration.search_path import use_config_dir
from fcorun.interface.cli.hydra_app import run_sweep_command
from fcorun.studies.figures.reproduce import reproduce

FIGURE = """# @package _global_
defaults: [override /data: lasso]
data: {features: 8, nonzeros: 4, clients: 4, samples: 6, validation_samples: 4}
metric: train_loss
rounds: 2
tail_rounds: 1
eval_every: 1
clients_per_round: null
batch_size: 3
hydra:
  sweeper:
    params: {algo: "fedavg,fedmid", algo.client_lr: "0.01,0.02"}
    also:
      - algo=ef21 uplink=identity algo.step=0.01
      - algo=fedavg algo.name=own algo.title="Mine, it's 'new'" topology=tree topology.edges=2 algo.client_lr=0.01
      - algo=fedprox algo.solver=sgd algo.inner_lr=0.01,0.02 reg.factors={0:0,1:2}
      - algo=centralized
figure: {title: Mine, panels: [train_loss], seeds: [0, 3], seeded: SEEDED}
"""


def forget_seeds(config):
    """Return the configuration of a run without its seeds."""
    data = {key: value for key, value in config["data"].items() if key != "seed"}
    return {key: value for key, value in config.items() if key != "seed"} | {"data": data}


@pytest.mark.slow
@pytest.mark.parametrize("seeded", ["seed", "data"])
def test_further_seeds_are_those_of_the_best_points(seeded):
    Path("myconf/experiment").mkdir(parents=True)
    Path("myconf/experiment/mine.yaml").write_text(FIGURE.replace("SEEDED", seeded))
    given = ["reg.strength=0.02", "verbose=false", "report=false", "algo.server_lr=1.0"]
    with use_config_dir("myconf"):
        result = reproduce("mine", Path("here"), run_sweep_command, overrides=given)
    grid = [forget_seeds(record.config) for record in load_records(result.folder / "runs")]
    algos = set()
    for record in load_records(result.folder / "seeds"):
        algos.add(record.config["algo"]["name"])
        assert forget_seeds(record.config) in grid
        assert (record.config["seed"], record.config["data"]["seed"]) == (3, 3 if seeded == "data" else 0)
    with_seeds = {"fedavg", "fedmid", "ef21", "own", "fedprox"}
    assert algos == (with_seeds | {"centralized"} if seeded == "data" else with_seeds)
