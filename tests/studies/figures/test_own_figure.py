"""Figures of a user: files, plug-ins and claims in a folder of the user."""

import re
from pathlib import Path

import pandas as pd
import pytest
import yaml
from helpers import fails

import fcorun
from fcorun import UserError, compose
from fcorun.base.records.sweep_settings import load_settings
from fcorun.experiment.configuration.search_path import find_choices, packaged_config_dir, use_config_dir
from fcorun.interface.cli.commands import main
from fcorun.interface.cli.hydra_app import run_sweep_command
from fcorun.reports.page.studies import is_figure
from fcorun.studies.figures.reproduce import reproduce
from fcorun.studies.figures.spec import list_figures, load_figure

SMALL = (
    *("data.features=20", "data.nonzeros=5", "data.clients=6", "data.samples=12", "data.validation_samples=4"),
    *("clients_per_round=3", "batch_size=5", "rounds=10", "tail_rounds=5", "verbose=false"),
)
OBJECTIVE = """
from dataclasses import dataclass
import jax.numpy as jnp
from fcorun.metrics import Metric
from fcorun.objectives import LeastSquares

@dataclass(frozen=True, kw_only=True)
class Absolute(LeastSquares):
    metrics = (Metric("absolute_error", higher=False, log=True),)

    def scores(self, prediction, y):
        return {"absolute_error": jnp.abs(prediction - y)}
"""


def write(name: str, text: str, root: bool = True) -> Path:
    """Write a file in the folder myconf; with ``root`` its keys are those of the root."""
    path = Path("myconf", name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(("# @package _global_\n" if root else "") + text)
    return path


def test_files_that_replace_those_of_fcorun_are_named(monkeypatch, capsys):
    def stop(*_):
        raise UserError("stopped")

    monkeypatch.setattr("fcorun.interface.cli.commands.figure_command.reproduce", stop)
    write("algo/fedavg.yaml", Path(packaged_config_dir(), "algo", "fedavg.yaml").read_text(), root=False)
    assert main(["figure", "fco_fig2", "--config-dir", "myconf"]) == 1
    assert "myconf has its own algo/fedavg.yaml, used instead of fcorun's" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "folder"),
    [
        (["out=here"], "here"),
        (["out=2026_05"], "2026_05"),
        (["out='a b'"], "a b"),
        (["--out", "here"], "here"),
        ([], "outputs/figures"),
    ],
)
def test_a_figure_goes_to_the_folder_of_out(arguments, folder, monkeypatch, capsys):
    calls = []

    def stop(name, *given):
        calls.append((name, given[0], given[3]))
        raise UserError("stopped")

    monkeypatch.setattr("fcorun.interface.cli.commands.figure_command.reproduce", stop)
    assert main(["figure", "fco_fig2", "seed=1", *arguments]) == 1
    assert calls == [("fco_fig2", Path(folder), ["seed=1"])]
    assert main(["figure", "fco_fig2", "out="]) == 2
    assert "out= names no folder: give out=DIR" in capsys.readouterr().err
    assert len(calls) == 1


def start_sweep(*_, **__):
    raise UserError("the sweep started")


NONCONVEX = "override /reg: mcp]\nclients_per_round: null\nhydra: {sweeper: {params: {algo: 'fednmap,fedcanon'}}}\n"
RACE = "]\nreference: true\nfigure: {title: Mine, draw: bytes_race, panels: [suboptimality, density]}\n"
NODES = "]\nclients_per_round: null\nhydra: {sweeper: {also: [algo=nids topology=graph, algo=fedavg]}}\n"
CHECKED = {
    "an algorithm that the figure does not run": (f", {NONCONVEX}", "density", []),
    "reference=true": ("]\n", "suboptimality", ["reference=true"]),
    "gap=true": ("]\n", "gap", ["gap=true"]),
    "a convex psi": (", override /reg: mcp]\n", "gap", ["reg=l1", "gap=true"]),
    "float64": (RACE, "", ["precision=float64"]),
    "a clock": ("]\n", "density", ["clock=lognormal", "x=simulated_seconds"]),
    "a metric of nodes": (
        "]\n",
        "density",
        ["topology=graph", "clients_per_round=null", "metric=worst_node_objective"],
    ),
    "a panel of nodes": ("]\n", "consensus_distance", ["topology=graph", "clients_per_round=null"]),
    "nodes in one line of also": (NODES, "consensus_distance", []),
}


@pytest.mark.parametrize(("text", "panel", "given"), CHECKED.values(), ids=CHECKED)
def test_a_figure_is_checked_as_it_will_run(text, panel, given, monkeypatch):
    monkeypatch.setattr("fcorun.interface.cli.hydra_app.run_points", start_sweep)
    figure = f"figure: {{title: Mine, panels: [{panel}]}}\n" if panel else ""
    write("experiment/own.yaml", f"defaults: [override /data: lasso_16{text}{figure}")
    with use_config_dir("myconf"), fails("the sweep started"):
        reproduce("own", Path("here"), run_sweep_command, overrides=given)


LINES = """
from dataclasses import dataclass
from fcorun import Dataset

@dataclass(frozen=True)
class Lines(Dataset):
    draw: int = 0

    def load(self):
        raise AssertionError("nothing is loaded")
"""


def test_seeds_of_data_that_have_none_are_refused(user_module, monkeypatch):
    monkeypatch.setattr("fcorun.interface.cli.hydra_app.run_points", start_sweep)
    user_module("lines", LINES)
    write("data/lines.yaml", "data: {class: lines.Lines, name: lines}\n")
    seeds = "figure: {title: Mine, seeds: [1, 2], seeded: data}"
    write("experiment/own.yaml", f"defaults: [override /data: lines]\nalgo: {{client_lr: 0.1}}\n{seeds}\n")
    with use_config_dir("myconf"), fails("figure.seeded=data", "data=lines does not have: give seeded: seed"):
        reproduce("own", Path("here"), run_sweep_command)


@pytest.mark.parametrize("given", ["precision=float32", "precision=float32,float64"])
def test_no_override_types_a_check_of_a_figure_away(given, monkeypatch):
    monkeypatch.setattr("fcorun.interface.cli.hydra_app.run_points", start_sweep)
    write("experiment/own.yaml", f"defaults: [override /data: lasso_16{RACE}precision: float64\n")
    with use_config_dir("myconf"), fails("bytes_race compares gaps far below the rounding of float32"):
        reproduce("own", Path("here"), run_sweep_command, overrides=[given])
    assert not Path("here").exists()


AVERAGED = {
    "cohorts": ("clients_per_round: '2,3'}, conditions: [clients_per_round]", "clients_per_round"),
    "privacy": ("privacy.epsilon: '2,8', privacy.clip: '1,2'}", "privacy.epsilon"),
    "data": ("data.mean_scale: '0,1'}", "data.mean_scale"),
    "strengths": ("reg.strength: '0.1,0.2'}", "reg.strength"),
    "crossed seeds": ("seed: '0,1', data.seed: '0,1'}", ""),
}


@pytest.mark.parametrize(("axis", "key"), AVERAGED.values(), ids=AVERAGED)
def test_runs_of_several_problems_are_not_averaged_and_nothing_runs(axis, key, monkeypatch):
    """Keys of which a method has one best point, such as its rate and its clip, are."""
    monkeypatch.setattr("fcorun.interface.cli.hydra_app.run_points", start_sweep)

    def make(params, draw="bars", verdicts="null"):
        base = "defaults: [override /data: lasso, override /privacy: gaussian]\nmetric: objective\n"
        private = "data: {clients: 200}\nclients_per_round: null\nprivacy: {clip: 1, delta: 1e-4, epsilon: 2}\n"
        sweep = f"hydra: {{sweeper: {{params: {{algo: 'fedmid,feddualavg', {params}}}}}\n"
        figure = f"figure: {{title: Mine, draw: {draw}, verdicts: {verdicts}, panels: [objective]}}\n"
        write("experiment/own.yaml", base + private + sweep + figure)
        with use_config_dir("myconf"):
            reproduce("own", Path("here"), run_sweep_command)

    reason = f"a best point for each {key}, and" if key else "bars takes each run for a repetition"
    with fails(reason, "give draw: curves"):
        make(axis)
    with fails("the sweep started"):
        make(axis, draw="curves")
    with fails("the sweep started"):
        make("algo.client_lr: '0.01,0.02', privacy.clip: '1,2'}")
    assert not Path("here").exists()


def test_a_picture_that_cannot_be_drawn_costs_no_claims(capsys):
    claims = "[{says: small, algo: fedavg, metric: objective, below: [1e9]}]"
    for panel, code in (("objective", 0), ("val_accuracy", 1)):
        write(
            "experiment/own.yaml",
            "defaults: [override /data: lasso_16, override /algo: fedavg]\nmetric: objective\n"
            f"figure: {{title: Mine, draw: bars, panels: [{panel}], claims: {claims}}}\n",
        )
        assert main(["figure", "own", *SMALL, "out=here", "--config-dir", "myconf"]) == code
        (folder,) = Path("here").glob("own-*")
        assert pd.read_csv(folder / "claims.csv")["holds"].tolist() == ["yes"]
        assert len(pd.read_csv(folder / "table.csv")) == 1
        assert (folder / "figure.png").exists() == (not code)  # no picture of before stays
        assert is_figure(folder)
    assert "figure.png was not drawn: figure.panels: val_accuracy was not measured" in capsys.readouterr().out


@pytest.mark.slow
def test_claims_about_a_metric_of_a_users_objective(user_module):
    user_module("absolute", OBJECTIVE)
    claims = "[{says: small, algo: fedavg, metric: val_absolute_error, below: [1e9]}]"
    write("objective/absolute.yaml", "name: absolute\nclass: absolute.Absolute\n", root=False)
    write(
        "experiment/own.yaml",
        "defaults: [override /objective: absolute, override /algo: fedavg, override /reg: none]\n"
        "metric: val_absolute_error\n"
        "figure: {title: Mine, draw: bars, panels: [val_absolute_error], claims: " + claims + "}\n",
    )
    with use_config_dir("myconf"):
        result = reproduce("own", Path("here"), run_sweep_command, overrides=SMALL)
    (row,) = result.rows
    assert row["holds"] == "yes"
    assert row["measured"].startswith("val_absolute_error ")
    written = [(result.folder / name).stat().st_mtime_ns for name in ("table.csv", "claims.csv", "figure.png")]
    assert written == sorted(written)  # numbers before pictures
    assert main(["figure", "own", *SMALL, "out=here", "--config-dir", "myconf"]) == 0
    for path in (Path("here/claims.csv"), result.folder / "claims.csv", result.folder / "figure.png"):
        assert path.stat().st_mtime_ns > written[-1]
    assert not Path("outputs").exists()


@pytest.mark.slow
def test_a_figure_whose_tail_is_edited_averages_finished_runs_anew():
    """Records keep the average over the rounds of their own day; the figure's file says over which it is today."""
    measured = []
    for tail_rounds in (5, 1):
        write(
            "experiment/own.yaml",
            "defaults: [override /algo: fedavg]\n"
            "metric: objective\n"
            "figure: {title: Mine, draw: bars, panels: [objective], claims: "
            "[{says: small, algo: fedavg, metric: objective, below: [1e9]}]}\n",
        )
        given = (*(text for text in SMALL if not text.startswith("tail_rounds")), "eval_every=1")
        text = Path("myconf/experiment/own.yaml").read_text()
        Path("myconf/experiment/own.yaml").write_text(f"{text}tail_rounds: {tail_rounds}\n")
        with use_config_dir("myconf"):
            result = reproduce("own", Path("here"), run_sweep_command, overrides=given)
        folder = next(path.parent for path in (result.folder / "runs").rglob("metrics.csv"))
        objectives = pd.read_csv(folder / "metrics.csv")["objective"]
        measured.append((result.rows[0]["measured"], f"objective {objectives[-tail_rounds:].mean():.4g}"))
    assert [shown for shown, _ in measured] == [expected for _, expected in measured]
    assert measured[0] != measured[1]


@pytest.mark.slow
def test_a_users_figure_is_listed_and_composed():
    write("experiment/mine.yaml", "rounds: 7\nfigure: {title: Mine}\n")
    write("experiment/plain.yaml", "rounds: 8\nfigure: null # none\n")
    (Path("myconf/experiment") / "other.yaml").write_bytes("# Zürich".encode("latin-1"))
    assert "mine" not in list_figures()
    with use_config_dir("myconf"):
        assert set(list_figures()) - set(find_choices("experiment")) == set()
        assert list_figures()["mine"] == Path("myconf/experiment/mine.yaml").absolute()
        assert "plain" not in list_figures()
        assert load_figure("mine")[0].title == "Mine"
    assert compose(["experiment=mine"], config_dir="myconf")["rounds"] == 7
    assert compose(["+experiment=plain"], config_dir="myconf")["rounds"] == 8
    with fails("there is no experiment=mine"):
        compose(["experiment=mine"])
    with fails("config-dir nowhere"):
        compose([], config_dir="nowhere")


def test_python_makes_a_users_figure_and_takes_no_sweep_for_a_run():
    write("experiment/race.yaml", "hydra: {sweeper: {params: {algo: 'fedavg,fedmid'}}}\nfigure: {title: Race}\n")
    with fails("experiment=race is a sweep: give one value of algo for one run", "fcorun figure race"):
        compose(["experiment=race"], config_dir="myconf")
    assert compose(["experiment=race", "algo=fedmid"], config_dir="myconf")["algo"]["name"] == "fedmid"
    with fails("no figure 'race'", "config_dir=DIR"):
        fcorun.figure("race")
    with fails("dry_run=true lists the runs"):
        fcorun.figure("race", config_dir="myconf", overrides=["dry_run=true"])


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        (["experiment=fco_fig3a"], "algo, algo.client_lr, algo.server_lr"),
        (["experiment=fco_fig3a", "algo=fedmid"], "algo.client_lr, algo.server_lr"),
        (["experiment=fco_fig3a", "algo=fedmid", "algo.client_lr=0.1", "algo.server_lr=1"], ""),
        (["experiment=fco_fig3a", "algo=centralized"], ""),  # which has no rates
        (["experiment=few_rounds", "rounds=2"], "algo"),
        (["experiment=few_rounds", "algo=fedavg"], ""),
    ],
)
def test_a_run_of_a_sweep_gives_a_value_for_each_axis_that_it_has(given, asked):
    if not asked:
        assert compose(given)["algo"]["name"] == given[1].removeprefix("algo=")
        return
    with fails(f"is a sweep: give one value of {asked} for one run; "):
        compose(given)


@pytest.mark.slow
def test_the_list_names_the_folder_of_a_users_figure(capsys):
    write("experiment/mine.yaml", "figure: {title: A title of mine}\n")
    write("experiment/wrong.yaml", "figure: {titel: A title}\n")
    assert main(["figure", "-cd", "myconf"]) == 0
    out = capsys.readouterr().out
    assert "mine: A title of mine (" in out
    assert "wrong: unknown option 'figure.titel': did you mean 'title'?" in out
    assert re.search(r"^fco_fig3a: [^(]*$", out, re.MULTILINE)


def test_a_figure_in_another_encoding_is_named():
    path = write("experiment/mine.yaml", "")
    path.write_bytes("# @package _global_\nfigure: {title: Zürich}\n".encode("latin-1"))
    with use_config_dir("myconf"):
        assert "mine" in list_figures()
        with fails("mine.yaml is no text that YAML can read", "save it as UTF-8"):
            load_figure("mine")


def test_a_users_file_replaces_one_of_fcorun():
    write("experiment/fco_fig3a.yaml", "figure: {title: Mine}\n")
    packaged = yaml.safe_load(Path(packaged_config_dir(), "algo/fedavg.yaml").read_text())
    write("algo/fedavg.yaml", yaml.safe_dump(packaged | {"client_lr": 0.5}), root=False)
    with use_config_dir("myconf"):
        assert load_figure("fco_fig3a")[0].title == "Mine"
        assert compose(["algo=fedavg"])["algo"]["client_lr"] == 0.5
    assert load_figure("fco_fig3a")[0].title != "Mine"


WRONG = [
    ("rounds: 3\n", True, ["experiment/wrong.yaml lacks the section figure", "title"]),
    ("figure: {title: a}\n", False, ["must begin with the line # @package _global_"]),
    ("defaults: [override /data: lasso_16]\nfigure: {title: a}\n", False,
     ["must begin with the line # @package _global_"]),
    ("figure: [a\n", True, ["experiment/wrong.yaml, line 3: "]),
    ("figure: a\n", True, ["figure=a must be a mapping"]),
    ("figure: {titel: a}\n", True, ["unknown option 'figure.titel': did you mean 'title'?"]),
    ("figure: {draw: bars}\n", True, ["figure.title has no value"]),
    ("figure: {title: a, draw: bars}\n", True, ["figure.draw=bars needs figure.panels"]),
    ("figure: {title: a, draw: few_rounds, panels: [suboptimality]}\n", True,
     ["figure.draw=few_rounds needs two figure.panels"]),
    ("figure: {title: a, draw: bytes_race}\n", True, ["figure.draw=bytes_race needs two figure.panels"]),
    ("figure: {title: a, draw: identification, panels: [suboptimality, pattern_errors]}\n", True,
     ["figure.draw=identification needs figure.panels=[pattern_errors,suboptimality]"]),
    ("figure: {title: a, draw: curve}\n", True, ["figure.draw=curve is not a choice: did you mean 'curves'?"]),
    ("figure: {title: a, claims: [so]}\n", True, ["figure.claims=so must be a mapping"]),
    ("figure: {title: a, claims: [{say: so}]}\n", True, ["unknown option 'figure.claims.say'"]),
    ("figure: {title: a, claims: [{says: so, algo: b, metric: f1, above: [null]}]}\n", True,
     ["figure.claims.above=null"]),
    ("figure: {title: a, claims: [{says: so, algo: feddualavg, metric: support_f2, above: [1]}]}\n", True,
     ["figure.claims.metric=support_f2 is not a metric: did you mean 'support_f1'?"]),
    ("figure: {title: a, claims: [{says: so, algo: feddualav, metric: val_loss, above: [1]}]}\n", True,
     ["figure.claims.algo=feddualav is no algorithm that the figure runs: did you mean 'feddualavg'? (valid: feddu"]),
    ("figure: {title: a, claims: [{says: so, algo: feddualavg, metric: val_loss, above: [fedmid]}]}\n", True,
     ["figure.claims.above=fedmid is no algorithm that the figure runs: ", "(valid: feddualavg)"]),
    ("figure: {title: a, only: [fedmid]}\n", True, ["figure.only=fedmid is no algorithm"]),
    ("figure: {title: a, draw: averaging, printed: {one_client: [1, 1]}}\n", True,
     ["figure.printed=one_client is no", "densest client, feddualavg, mean of the clients"]),
    ("figure: {title: a, panels: [val_los]}\n", True, ["figure.panels=val_los is not a metric", "'val_loss'"]),
    ("figure: {title: a, printed: {fedavg: [0.1]}}\n", True, ["figure.printed.fedavg=[0.1] must be [client_lr"]),
    ("defaults: [override /algo: fedgd]\nclients_per_round: null\n"
     "figure: {title: a, printed: {fedgd: [0.1, 1]}}\n", True,
     ["figure.printed.fedgd is [client_lr, server_lr], and algo=fedgd has no client_lr"]),
    ("figure: {title: a, x: [rounds, simulated_seconds]}\n", True,
     ["figure.x=simulated_seconds: algo=feddualavg does not count it", "give it a clock"]),
    ("figure: {title: a, claims: [{says: so, algo: feddualavg, metric: val_loss, above: [1], "
     "at: {simulated_seconds: 3}}]}\n", True, ["figure.claims.at=simulated_seconds: no run counts it"]),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("text", "root", "words"), WRONG, ids=[words[0] for _, _, words in WRONG])
def test_a_wrong_file_is_one_sentence_and_nothing_runs(text, root, words, tmp_path):
    write("experiment/wrong.yaml", text, root)
    with use_config_dir("myconf"), fails(*words):
        reproduce("wrong", Path("here"), run_sweep_command)
    assert [path.name for path in tmp_path.iterdir()] == ["myconf"]


def test_no_such_figure_is_bad_input(capsys):
    assert main(["figure", "fco_fig33"]) == 2
    assert "there is no figure 'fco_fig33': did you mean 'fco_fig3" in capsys.readouterr().err


def test_a_figure_draws_a_baseline_under_each_cohort_and_without_one():
    claims = "[{says: small, algo: feddualavg, metric: objective, below: [1e9]}]"
    write(
        "experiment/own.yaml",
        "defaults: [override /data: lasso_16]\nmetric: objective\nhydra: {sweeper: {params: "
        "{algo: 'feddualavg,centralized', clients_per_round: 'null,3'}, conditions: [clients_per_round]}}\n"
        "figure: {title: Mine, panels: [objective], claims: " + claims + "}\n",
    )
    given = [text for text in SMALL if not text.startswith("clients_per_round")]
    with use_config_dir("myconf"):
        result = reproduce("own", Path("here"), run_sweep_command, overrides=given)
    says = [row["says"] for row in result.rows]
    assert sorted(says) == ["small, clients_per_round=3", "small, clients_per_round=null"]
    table = pd.read_csv(result.folder / "table.csv")
    assert sorted(table["algo"]) == ["centralized", "feddualavg", "feddualavg"]
    assert (result.folder / "figure.png").exists()


def test_the_file_of_today_says_the_conditions_and_the_claims():
    """An earlier version of the file changes nothing: a figure is the same as one made afresh."""
    claims = "[{says: small, algo: feddualavg, metric: objective, below: [1e9]}]"
    given = [text for text in SMALL if not text.startswith("clients_per_round")]

    def make(conditions, claims):
        params = "params: {algo: feddualavg, clients_per_round: '2,3', seed: '0,1'}"
        text = (
            f"defaults: [override /data: lasso_16]\nmetric: objective\nhydra: {{sweeper: {{{params}{conditions}}}}}\n"
        )
        figure = f"title: Mine, panels: [objective], seeds: [2], claims: {claims}"
        write("experiment/own.yaml", f"{text}figure: {{{figure}}}\n")
        assert main(["figure", "own", *given, "out=here", "--config-dir", "myconf", "report=false"]) == 0
        (seeds,) = Path("here").glob("own-*/seeds")  # as the grid: none of its conditions is the best
        assert load_settings(seeds).conditions == (("clients_per_round",) if conditions else ())
        return pd.read_csv("here/claims.csv")["says"].tolist()

    assert make(", conditions: [clients_per_round]", claims) == [
        "small, clients_per_round=2",
        "small, clients_per_round=3",
    ]
    assert make("", claims) == ["small"]
    assert make("", "[]") == []


def test_a_dry_figure_lists_its_runs_and_says_so(capsys):
    write("experiment/own.yaml", "defaults: [override /data: lasso_16]\nfigure: {title: Mine, panels: [objective]}\n")
    given = [*SMALL[:-1], "verbose=true", "algo=fedavg,fedmid", "dry_run=true"]
    assert main(["figure", "own", *given, "out=here", "--config-dir", "myconf"]) == 0
    out = capsys.readouterr().out
    assert "2 to run" in out
    assert "own: not made: dry_run=true lists the runs, and draws nothing\n" in out
    assert not Path("here").exists()
    assert main(["figure", "own", *given, "algo.client_lr=0.1,-1", "out=here", "--config-dir", "myconf"]) == 1
