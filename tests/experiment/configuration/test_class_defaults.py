"""Fields of a user's class whose default is in the class alone, and in no file."""

import sys
from pathlib import Path

import pytest
import yaml
from helpers import SMALL, fails

from fcorun import compose, load_records
from fcorun.base.config import GRID_SECTIONS
from fcorun.experiment.configuration.key_docs import format_default, read_choice
from fcorun.experiment.configuration.search_path import packaged_config_dir, use_config_dir
from fcorun.interface.cli.commands import main
from fcorun.interface.cli.main import main as fcorun

SOURCE = """
from dataclasses import dataclass
from fcorun.methods.algorithms.algorithm import Traits
from fcorun.methods.algorithms.fedavg import FedAvg

@dataclass(frozen=True)
class Heavy(FedAvg):
    momentum: float = 0.9
    traits = Traits(psi_sides=())
"""


@pytest.fixture(autouse=True)
def heavy(user_module):
    user_module("heavy", SOURCE)
    Path("mine/algo").mkdir(parents=True)
    Path("mine/algo/heavy.yaml").write_text("name: heavy\nclass: heavy.Heavy\nclient_lr: 0.01\nserver_lr: 1.0\n")


def test_help_says_that_a_field_without_a_value_must_be_given(user_module):
    Path("mine/reg").mkdir(parents=True)
    Path("mine/reg/bare.yaml").write_text("name: bare\nclass: fcorun.L1\n")
    with use_config_dir("mine"):
        docs = read_choice("reg", "bare").keys
    assert format_default(docs["reg.strength"].value) == "none, it must be given"


@pytest.fixture
def command(monkeypatch):
    """A function that runs the command in this process on small data, and returns the exit code."""

    def call(*arguments, flags=()):
        monkeypatch.setattr(sys, "argv", ["fcorun", *flags, "--config-dir", "mine", *SMALL, *arguments])
        try:
            fcorun()
        except SystemExit as stop:
            return int(stop.code or 0)
        return 0

    return call


@pytest.mark.slow
def test_a_field_is_set_by_its_name():
    assert compose(["algo=heavy", "algo.momentum=0.5"], config_dir="mine")["algo"]["momentum"] == 0.5
    assert "momentum" not in compose(["algo=heavy"], config_dir="mine")["algo"]
    with fails("unknown option 'algo.momentm': did you mean 'momentum'?"):
        compose(["algo=heavy", "algo.momentm=0.5"], config_dir="mine")
    with fails("unknown option 'algo.momentum'"):
        compose(["algo=fedavg", "algo.momentum=0.5"])


def test_a_file_without_a_name_is_refused(command, capsys):
    Path("mine/algo/unnamed.yaml").write_text("class: heavy.Heavy\nclient_lr: 0.01\nserver_lr: 1.0\n")
    assert command("algo=unnamed") == 2
    assert "the file of algo has no name: give it the line name: NAME" in capsys.readouterr().err


def test_a_broken_file_is_refused(command, capsys):
    Path("mine/algo/other.yaml").write_text("name: other\nclass: [heavy\nx: 3\n")
    assert main(["help", "--config-dir", "mine", "algo=other"]) == 2
    assert f"{Path('mine/algo/other.yaml')}, line 3: expected" in capsys.readouterr().err
    for broken in (b"name: \x07", b"name: \xe9"):
        Path("mine/algo/other.yaml").write_bytes(broken)
        assert main(["help", "--config-dir", "mine", "algo=other"]) == 2
        assert f"{Path('mine/algo/other.yaml')} is no text that YAML can read" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_uses_the_value(command):
    assert command("algo=heavy", "algo.momentum=0.5", "hydra.run.dir=r") == 0
    (record,) = load_records("r")
    assert record.config["algo"]["momentum"] == 0.5


@pytest.mark.slow
@pytest.mark.parametrize("sign", ["", "+", "++"])
def test_a_sweep_over_a_field_is_one_batch(command, sign):
    """Algorithms that lack the field are run without it."""
    assert command("algo=fedavg,heavy" if not sign else "algo=heavy", f"{sign}algo.momentum=0.5,0.7",
                   "algo.client_lr=0.01", "hydra.sweep.dir=s", flags=["-m"]) == 0  # fmt: skip
    batch_sizes = {r.config["algo"].get("momentum"): r.summary["seconds"]["batched_with"] for r in load_records("s")}
    assert batch_sizes == {0.5: 2, 0.7: 2} | ({} if sign else {None: 1})


def test_a_file_that_holds_a_list_is_refused(capsys):
    Path("mine/algo/listed.yaml").write_text("- name: listed\n")
    assert main(["help", "algo", "--config-dir", "mine"]) == 2
    assert f"{Path('mine/algo/listed.yaml')} holds no mapping of keys to values" in capsys.readouterr().err


def test_help_lists_the_field(capsys):
    assert main(["help", "algo=heavy", "--config-dir", "mine"]) == 0
    assert "  algo.momentum=0.9 (a number)\n" in capsys.readouterr().out
    assert "momentum" not in yaml.safe_load(Path("mine/algo/heavy.yaml").read_text())


def test_no_number_of_a_choice_is_an_interpolation_of_another():
    """A grid in Python, ``select`` and ``stability`` would not update it as the command does; null is updated."""
    for section in GRID_SECTIONS:
        for path in Path(packaged_config_dir(), section).glob("*.yaml"):
            assert f"${{{section}." not in path.read_text(), path
