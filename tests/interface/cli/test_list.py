"""fcorun list: a line for each choice; and tab completion."""

import re
from pathlib import Path

import pytest
import yaml
from helpers import choice_names, plugin_class, traits_of

from fcorun.base.sources.catalogue import read_source
from fcorun.experiment.configuration.key_docs import ChoiceDoc
from fcorun.experiment.configuration.search_path import find_choices
from fcorun.interface.cli.commands import COMMANDS, main
from fcorun.interface.cli.commands.list_command import LISTED, capabilities
from fcorun.methods.mirror_maps.mirror_map import MirrorMap
from fcorun.methods.objectives.objective import Objective


@pytest.fixture
def list_lines(capsys):
    """A function that runs ``fcorun list`` and returns its lines."""

    def run(*arguments):
        assert main(["list", *arguments]) == 0
        return [line.rstrip() for line in capsys.readouterr().out.splitlines()]

    return run


@pytest.mark.parametrize("group", LISTED)
def test_every_choice_is_a_line(list_lines, group):
    head, *lines = list_lines(group)
    assert head.startswith(group)
    assert [line.split()[0] for line in lines[: len(find_choices(group))]] == list(find_choices(group))
    assert len(lines) <= len(find_choices(group)) + 1  # a legend


@pytest.mark.slow
@pytest.mark.parametrize(
    "group",
    ["algo", "reg", "mirror", "objective", "topology", "uplink", "downlink", "aggregate", "clock", "faults", "privacy"],
)
def test_a_line_ends_in_the_source(list_lines, group):
    lines = {line.split()[0]: line for line in list_lines(group)[1:]}
    for name in choice_names(group):
        if name != "by_task":
            assert lines[name].endswith(read_source(plugin_class(group, name)).text)


@pytest.mark.slow
def test_the_line_of_an_algorithm_agrees_with_its_traits(list_lines):
    lines = {line.split()[0]: re.split(r"  +", line) for line in list_lines("algo")[1:]}
    for name in choice_names("algo"):
        traits, words = traits_of(name), lines[name][2].split(", ")
        if name in ("centralized", "one_client"):
            assert words[0] == "baseline"
            continue
        sides = {"client": "clients", "server": "the server"}
        psi = " and ".join(sides[side] for side in traits.psi_sides)
        assert words[0] == (f"psi on {psi}" if psi else "ignores the regularizer psi")
        assert ("all clients in every round" in words) == (not traits.partial)
        assert ("mirror maps" in words) == traits.mirrored
        assert ("all data at once" in words) == traits.deterministic
        assert ("clients of equal weight" in words) == plugin_class("algo", name).needs_equal_weights
        assert ("topology=tree" in words, "needs topology=tree" in words) == (
            (traits.hierarchy == "some", traits.hierarchy == "only")
        )
        assert ("needs topology=graph" in words) == (traits.hierarchy == "graph")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("group", "name", "words"),
    [
        (
            "algo",
            "feddualavg",
            "feddualavg *  Federated dual averaging  psi on clients and the server, needs a convex psi, mirror maps",
        ),
        ("algo", "fedavg_subgradient", "needs the subgradient of reg"),
        ("algo", "pfedmac_sh", "personal models, any aggregate, needs topology=tree"),
        ("algo", "fedadam", "gradient  ignores the regularizer psi, any aggregate  algorithm 2 of Reddi et al. (2021)"),
        ("data", "table", "needs data.path, reads files  yours"),
        ("data", "lasso_8", "section 5.1 of Yuan, Zaheer and Reddi (2021), the law of the features reconstructed"),
        ("data", "femnist", "reads files, downloads missing files"),
        ("reg", "l1", "convex, sparse, reg.relative, subgradient, duality gap"),
        ("reg", "box", "convex, constraint, linear minimizer  textbook"),
        ("mirror", "entropy", "reg=none,box,l1,l1_nonneg,nonneg,simplex"),
        ("mirror", "euclidean", "any reg"),
        ("objective", "mlp", "not convex, binary and multiclass"),
        ("algo", "fedavg", "topology=tree, topology=graph"),
        ("topology", "tree", "needs an algo for trees"),
        ("topology", "graph", "needs an algo for graphs"),
        ("tracker", "mlflow", "needs pip install 'fcorun[mlflow]'"),
    ],
)
def test_requirements_and_capabilities_of_a_choice(list_lines, group, name, words):
    (line,) = [line for line in list_lines(group) if line.split()[:1] == [name]]
    assert words in "  ".join(part.strip() for part in line.split("  ") if part.strip())


@pytest.mark.parametrize(
    ("group", "base", "words"), [("mirror", MirrorMap, ["reg=none"]), ("objective", Objective, ["convex"])]
)
def test_a_class_that_declares_little_has_no_empty_words(group, base, words, monkeypatch):
    mine = type("Mine", (base,), {"convex": True})
    monkeypatch.setattr("fcorun.interface.cli.commands.list_command.plugin_class", lambda *_: mine)
    assert capabilities(group, ChoiceDoc("", {})) == words


@pytest.mark.slow
def test_several_groups_or_none_are_listed(list_lines):
    assert [line.split(":")[0] for line in list_lines()] == list(LISTED)
    assert sum(line.startswith(("mirror ", "topology ")) for line in list_lines("mirror", "topology")) == 2


@pytest.mark.slow
def test_a_users_choices_are_listed(list_lines, user_module):
    user_module(
        "mine",
        "from dataclasses import dataclass\nfrom fcorun.regularizers import L1\n\n\n@dataclass(frozen=True)\n"
        'class Mine(L1):\n    bibtex = "@misc{me, author = {Me, A.}, year = {2026}}"\n',
    )
    Path("own/reg").mkdir(parents=True)
    for name in ("Mine", "Gone"):
        text = f"# [bold]Mine[/bold]. And more.\nname: x\nclass: mine.{name}\nstrength: ???\n"
        Path(f"own/reg/{name.lower()}.yaml").write_text(text)
    lines = {line.split()[0]: line for line in list_lines("reg", "--config-dir", "own")[1:]}
    _, about, words, source = re.split(r"  +", lines["mine"])
    assert (about, source) == ("[bold]Mine[/bold]", "Me (2026)")
    assert words.startswith("needs reg.strength, convexity not declared, sparse")
    assert "not known: reg.class=mine.Gone" in lines["gone"]


# ---------------------------------------------------------------- tab completion


@pytest.fixture
def complete(fcorun, monkeypatch):
    """A function from a command line to its completions, requested as a shell does."""

    def completions(line, shell="bash"):
        monkeypatch.setenv("COMP_LINE", line)
        code, out, err = fcorun("-sc", f"query={shell}")
        assert (code, err) == (0, "")
        return out.split()

    return completions


@pytest.mark.slow
def test_the_first_word_is_a_command_or_a_key(complete):
    assert {*COMMANDS, "algo=", "rounds="} <= set(complete("fcorun "))
    assert complete("fcorun re") == ["results", "report", "reference=", "reg.", "reg=", "relax=", "report="]
    assert complete("fcorun algo=fedm") == ["algo=fedmid", "algo=fedmid_osp"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("fcorun list mi", ["mirror"]),
        ("fcorun list mirror to", ["topology"]),
        ("fcorun list up", ["uplink"]),
        ("fcorun help algo=fedm", ["algo=fedmid", "algo=fedmid_osp"]),
        ("fcorun help local_", ["local_epochs", "local_steps"]),
        ("fcorun figure fedsplit_fig2", ["fedsplit_fig2a", "fedsplit_fig2b"]),
        ("fcorun results outputs --pa", ["--paired"]),
        ("fcorun cite ", []),  # the shell completes folders
        ("fcorun help nonsense=", []),
    ],
)
def test_the_arguments_of_a_command_are_completed(complete, line, words, shell):
    assert complete(line, shell) == words


def test_a_users_choices_are_completed(complete):
    Path("own/algo").mkdir(parents=True)
    Path("own/algo/fedavg.yaml").write_text(yaml.safe_dump({"name": "x"}))
    Path("own/algo/slow.yaml").write_text(yaml.safe_dump({"name": "slow"}))
    assert complete("fcorun --config-dir own help algo=sl") == ["algo=slow"]
    assert complete("fcorun --config-dir own algo=sl") == ["algo=slow"]
    assert complete("fcorun --config-dir nowhere algo=sl") == []
