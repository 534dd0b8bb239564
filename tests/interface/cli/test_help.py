"""fcorun help: every key, group and choice is explained from the files in conf/."""

from pathlib import Path

import pytest
import yaml
from helpers import choice_names

from fcorun.base.config import SECTIONS
from fcorun.experiment.configuration.key_docs import GROUPS, read_choice, read_root_keys
from fcorun.interface.cli.commands import main


@pytest.fixture
def help_lines(capsys):
    """A function that runs ``fcorun help`` and returns its lines."""

    def run(*arguments):
        assert main(["help", *arguments]) == 0
        return capsys.readouterr().out.splitlines()

    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("algo.client_lr", ["the clients' learning rate; eta_c (a number, positive, or auto)", "of algo=feddualavg, ",
                            "default: the value of data.natural.client_lr, else auto"]),
        ("reg.strength", ["the strength of psi (a number, non-negative)", "of reg=l1, "]),
        ("data.validation", ["a fraction of each client's rows", "default: null", "of data=table"]),
        ("rounds", ["of communication; auto: 1 for an algorithm that needs no more, else as the data say",
                    "(a whole number, non-negative)", "default: auto"]),
        ("precision", ["precision: float32 | float64", "default: auto"]),
        ("reg.apply_to", ["the parameters that psi acts on", "a list of texts or null"]),
        ("data.missing", ["missing values of features: refuse", "gets no level)\n", "default: refuse"]),
        ("data.ignore", ["(a list of texts or null)", "default: null"]),
        ("data.path", ["default: none, it must be given"]),
        ("algo.step", ["or auto", "of algo=fedgd"]),
        ("algo.name", ["the name of the choice in records", "of algo=feddualavg, adap, afl, apfl"]),
        ("hydra.sweeper.zip", ["keys whose values are combined pairwise", "default: []"]),
        ("+algo.client_lr=0.1", ["the clients' learning rate"]),
    ],
)  # fmt: skip
def test_a_key_is_explained(help_lines, key, expected):
    lines = "\n".join(help_lines(key))
    assert lines.startswith(key.lstrip("+").partition("=")[0])
    for words in expected:
        assert words in lines


def test_choices_beside_keys_select_their_choices(help_lines):
    lines = help_lines("algo.client_lr", "data.clients", "algo=scaffold", "data=lasso_16")
    of = [line.partition(":")[0] for line in lines if line.startswith("  of ")]
    assert of == ["  of algo=scaffold", "  of data=lasso_16"]
    assert "  default: 16" in lines
    heads = [line for line in lines if line.startswith(("algo=", "data="))]
    assert [line.partition(":")[0] for line in heads] == ["algo=scaffold", "data=lasso_16"]
    assert len(lines) == 8


@pytest.mark.slow
def test_choices_with_different_defaults_are_listed_separately(help_lines):
    lines = help_lines("data.clients")
    defaults = {line.split(": ")[1] for line in lines if "default: " in line}
    assert {"64", "16"} <= defaults
    (at,) = [i for i, line in enumerate(lines) if "lasso_16" in line]
    assert lines[at - 1] == "  default: 16"


@pytest.mark.slow
def test_a_group_and_a_choice_are_explained(help_lines):
    lines = help_lines("algo", "algo=fedmid")
    assert lines[0].startswith("algo: one of these, by default feddualavg")
    assert "  fedmid: Federated mirror descent." in lines
    assert any(line.startswith("algo=fedmid: Federated mirror descent.") for line in lines)
    assert lines[-1] == "  algo.server_lr=the value of data.natural.server_lr, else 1.0: " \
                        "the server's learning rate; eta_s (a number, positive, or auto)"  # fmt: skip
    assert "  source: algorithm 2 of Yuan, Zaheer and Reddi (2021)" in lines
    assert any("a key of every choice: reg.applied_by=both" in line for line in help_lines("reg"))
    assert any("data.only_digits=false" in line for line in help_lines("data=femnist_62"))
    assert any("data.root=data" in line for line in help_lines("data=femnist_62"))  # inherited from femnist.yaml


def test_the_section_of_a_figure_is_explained(help_lines):
    lines = "\n".join(help_lines("figure"))
    assert "fcorun figure --help" in lines
    assert "panels: the metrics to draw, one in each panel" in lines
    assert "above (below) ``times`` the" in lines
    words = " ".join(lines.split())  # of a claim after so many bytes, as test_figures.py has it
    assert "at the last evaluation that took no more than that and at the first that took no less" in words
    assert "not distinguishable if it holds at one of them alone, and not measured if the run ended before" in words


def test_without_a_key_groups_and_keys_are_listed(help_lines):
    lines = help_lines()
    assert "  algo=feddualavg" in lines
    assert any(line.startswith("  rounds=auto: ") for line in lines)


@pytest.mark.parametrize("group", [name for name in SECTIONS if name != "tracker"])
def test_every_key_of_every_choice_is_known_with_its_type(group):
    for name in choice_names(group):
        choice = read_choice(group, name)
        assert choice.description
        for key, doc in choice.keys.items():
            section, _, last = key.rpartition(".")
            if section == group and last not in ("name", "class", "title", "natural") and name != "by_task":
                assert doc.type_text or doc.comment, (name, key)


def test_every_key_of_the_root_is_explained():
    unexplained = [key for key, doc in read_root_keys().items() if not doc.comment]
    assert unexplained == ["hydra.output_subdir", "hydra.job.chdir"]
    assert set(GROUPS) > set(SECTIONS)


def test_a_users_file_is_explained(help_lines):
    Path("mine/algo").mkdir(parents=True)
    Path("mine/algo/slow.yaml").write_text(
        "# Takes its time.\nname: slow\nclass: fcorun.FedAvg\nclient_lr: 0.1 # small # as ever\n"
        "server_lr: 1 # eta, 'quoted'\n"
    )
    assert "  slow: Takes its time." in help_lines("algo", "--config-dir", "mine")
    lines = help_lines("algo=slow", "--config-dir", "mine")
    assert "  algo.client_lr=0.1: the clients' learning rate; small # as ever (a number, positive, or auto)" in lines
    assert "  algo.server_lr=1: the server's learning rate; eta, 'quoted' (a number, positive, or auto)" in lines
    assert yaml.safe_load(Path("mine/algo/slow.yaml").read_text())["server_lr"] == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("client_lr", "there is no key 'client_lr': did you mean algo.client_lr"),
        ("algo.client_rl", "did you mean algo.client_lr"),
        ("roundz", "did you mean rounds"),
        ("nonsense", "there is no key 'nonsense'; fcorun help lists them"),
        ("algo=fedmidd", "there is no algo=fedmidd: did you mean 'fedmid'?"),
    ],
)
def test_a_wrong_key_is_one_sentence_with_the_nearest_names(capsys, key, expected):
    assert main(["help", key]) == 2
    err = capsys.readouterr().err
    assert expected in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("arguments", [["algo=nonsense", "algo.client_lr"], ["algo.client_lr", "algo=nonsense"]])
def test_a_wrong_choice_beside_a_key_is_the_error_in_either_order(capsys, arguments):
    assert main(["help", *arguments]) == 2
    assert "there is no algo=nonsense: " in capsys.readouterr().err
