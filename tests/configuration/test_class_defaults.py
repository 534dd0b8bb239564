"""Fields of a user's class whose default stands there alone, and in no file."""

import sys
from pathlib import Path

import pytest
import yaml
from fake_records import fake_config, fake_record
from helpers import SMALL, fails

from fcorun import compose, load_records
from fcorun.cli.commands import main
from fcorun.cli.main import main as fcorun
from fcorun.configuration.search_path import packaged_config_dir, use_config_dir
from fcorun.figures.reproduce import _with_seeds
from fcorun.figures.spec import Figure
from fcorun.reports.build_table import build_table
from fcorun.sections import GRID_SECTIONS

OWN = """
from dataclasses import dataclass
from fcorun.algorithms.base import Traits
from fcorun.algorithms.fedavg import FedAvg

@dataclass(frozen=True)
class Heavy(FedAvg):
    momentum: float = 0.9
    traits = Traits(psi_sides=())
"""


@pytest.fixture(autouse=True)
def heavy(user_module):
    user_module("heavy", OWN)
    Path("mine/algo").mkdir(parents=True)
    Path("mine/algo/heavy.yaml").write_text("name: heavy\nclass: heavy.Heavy\nclient_lr: 0.01\nserver_lr: 1.0\n")


@pytest.fixture
def command(monkeypatch):
    """A function that runs the command in this process on small data; the exit code."""

    def call(*arguments, flags=()):
        monkeypatch.setattr(sys, "argv", ["fcorun", *flags, "--config-dir", "mine", *SMALL, *arguments])
        try:
            fcorun()
        except SystemExit as stop:
            return int(stop.code or 0)
        return 0

    return call


def test_it_is_composed_by_its_name():
    assert compose(["algo=heavy", "algo.momentum=0.5"], config_dir="mine")["algo"]["momentum"] == 0.5
    assert "momentum" not in compose(["algo=heavy"], config_dir="mine")["algo"]
    with fails("unknown option 'algo.momentm': did you mean 'momentum'?"):
        compose(["algo=heavy", "algo.momentm=0.5"], config_dir="mine")
    with fails("unknown option 'algo.momentum'"):
        compose(["algo=fedavg", "algo.momentum=0.5"])


def test_a_run_takes_it(command):
    assert command("algo=heavy", "algo.momentum=0.5", "hydra.run.dir=r") == 0
    (made,) = load_records("r")
    assert made.config["algo"]["momentum"] == 0.5


@pytest.mark.parametrize("sign", ["", "+", "++"])
def test_a_sweep_over_it_is_one_batch(command, sign):
    """Of several algorithms, those that lack it are run without it."""
    assert command("algo=fedavg,heavy" if not sign else "algo=heavy", f"{sign}algo.momentum=0.5,0.7",
                   "algo.client_lr=0.01", "hydra.sweep.dir=s", flags=["-m"]) == 0  # fmt: skip
    found = {r.config["algo"].get("momentum"): r.summary["seconds"]["batched_with"] for r in load_records("s")}
    assert found == {0.5: 2, 0.7: 2} | ({} if sign else {None: 1})


def test_a_figure_runs_it_with_further_seeds(command):
    """The jobs hold all fields, and are one batch; what a job says itself goes before what all are given."""
    made = fake_record("one", fake_config("heavy", algo__class="heavy.Heavy", algo__client_lr=0.01, algo__momentum=0.7))
    grid = build_table([made])
    with use_config_dir("mine"):
        jobs = _with_seeds(Figure("t", seeds=[1, 2]), grid, [(grid.to_dicts()[0], made)])
    also = ",".join(f"'{job}'" for _, job in jobs)
    assert command("+algo.momentum=0.1", "hydra.sweeper.params=null", f"hydra.sweeper.also=[{also}]",
                   "hydra.sweep.dir=s", flags=["-m"]) == 0  # fmt: skip
    found = [(r.config["seed"], r.config["algo"]["momentum"], r.summary["seconds"]["batched_with"])
             for r in load_records("s")]  # fmt: skip
    assert sorted(found) == [(1, 0.7, 2), (2, 0.7, 2)]


def test_help_lists_it(capsys):
    assert main(["help", "algo=heavy", "--config-dir", "mine"]) == 0
    assert "  algo.momentum=0.9 (a number)\n" in capsys.readouterr().out
    assert "momentum" not in yaml.safe_load(Path("mine/algo/heavy.yaml").read_text())


def test_no_number_of_a_method_is_an_interpolation_of_another():
    """A grid in Python, ``select`` and ``stability`` would not move it along as the command does; null moves."""
    for section in GRID_SECTIONS:
        for path in Path(packaged_config_dir(), section).glob("*.yaml"):
            assert f"${{{section}." not in path.read_text(), path
