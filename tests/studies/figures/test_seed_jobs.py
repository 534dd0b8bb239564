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
    params: {algo: "fedavg,fedmid", algo.client_lr: "0.01,0.02"PARAMS}
    zip: [ZIPPED]
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
@pytest.mark.parametrize(
    ("seeded", "params", "zipped", "seeds"),
    [
        ("seed", "", "", {(3, 0)}),
        ("data", "", "", {(3, 3)}),
        ("seed", ', data.seed: "5,6"', "", {(3, 0), (3, 5), (3, 6)}),
        ("seed", ', seed: "0,1", data.seed: "0,1"', "seed, data.seed", {(3, 0), (3, 3)}),
    ],
)
def test_further_seeds_are_those_of_the_best_points(seeded, params, zipped, seeds):
    figure = FIGURE.replace("SEEDED", seeded).replace("PARAMS", params).replace("ZIPPED", zipped)
    Path("myconf/experiment").mkdir(parents=True)
    Path("myconf/experiment/mine.yaml").write_text(figure)
    given = ["reg.strength=0.02", "verbose=false", "report=false", "algo.server_lr=1.0"]
    with use_config_dir("myconf"):
        result = reproduce("mine", Path("here"), run_sweep_command, overrides=given)
    grid = [forget_seeds(record.config) for record in load_records(result.folder / "runs")]
    further = load_records(result.folder / "seeds")
    assert all(forget_seeds(record.config) in grid for record in further)
    assert {(record.config["seed"], record.config["data"]["seed"]) for record in further} == seeds
    with_seeds = {"fedavg", "fedmid", "ef21", "own", "fedprox"}
    algos = {record.config["algo"]["name"] for record in further}
    assert algos == (with_seeds | {"centralized"} if seeded == "data" else with_seeds)
