"""Searches: good points in few runs, the same ones again, and nothing that goes wrong ends them."""

import importlib
import platform
import re
import sys
import time
from math import inf
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fake_records import fake_record, fake_rows
from helpers import SMALL, fails
from omegaconf import OmegaConf
from warm_processes import start_command

from fcorun import load_records
from fcorun.base.records.record import RunFolder
from fcorun.base.records.sweep_settings import load_settings
from fcorun.interface.cli.main import main as fcorun
from fcorun.runs.sweep import SweepPoint, choose_search_metric, objective_values

RATES = ("algo.client_lr=tag(log,interval(1e-5,1e5))", "algo.server_lr=tag(log,interval(0.1,10))")


@pytest.fixture(autouse=True)
def unpictured(monkeypatch):
    """Searches leave no pictures, which take longer than their runs."""
    monkeypatch.setattr("fcorun.reports.sweep_report.draw_sweep", lambda *_, **__: [])


def search(*overrides: str) -> int:
    """A search on small data, in the folder s; the exit code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["fcorun", "-m", "hydra/sweeper=optuna", *SMALL, "hydra.sweep.dir=s", *overrides])
        try:
            fcorun()
        except SystemExit as stop:
            return int(stop.code or 0)
    return 0


def tried(*keys: str) -> list[tuple]:
    """The values of these keys in all records of s."""
    return sorted(tuple(OmegaConf.select(OmegaConf.create(r.config), key) for key in keys) for r in load_records("s"))


@pytest.mark.slow
def test_a_search_learns_and_diverged_points_do_not_end_it():
    """Half of the interval diverges. What is found is better than what the first, spread points had."""
    overrides = (RATES[0], "metric=objective", "rounds=20")
    assert search(*overrides, "hydra.sweeper.n_trials=16") == 0
    table = pd.read_csv("s/results.csv")
    assert len(table) == 16
    assert set(table["status"]) == {"done", "diverged"}
    assert search(*overrides, "hydra.sweeper.n_trials=8", "hydra.sweep.dir=first") == 0
    first = pd.read_csv("first/results.csv")
    assert np.nanmin(table["tail_objective"]) < np.nanmin(first["tail_objective"])


@pytest.mark.slow
def test_points_asked_for_together_run_as_one_program():
    assert search(*RATES, "rounds=1", "hydra.sweeper.n_trials=5", "hydra.sweeper.batch=3") == 0
    assert sorted(r.summary["seconds"]["batched_with"] for r in load_records("s")) == [2, 2, 3, 3, 3]


@pytest.mark.slow
def test_the_same_search_again_computes_nothing_and_a_longer_one_goes_on(capsys):
    assert search(*RATES, "rounds=1", "hydra.sweeper.n_trials=10") == 0
    before = tried("algo.client_lr", "algo.server_lr")
    capsys.readouterr()
    assert search(*RATES, "rounds=1", "hydra.sweeper.n_trials=10") == 0
    assert {line.partition(";")[0] for line in capsys.readouterr().out.splitlines() if "to run" in line} == {
        "4 done, 0 to run", "8 done, 0 to run", "10 done, 0 to run"}  # fmt: skip
    assert search(*RATES, "rounds=1", "hydra.sweeper.n_trials=12") == 0
    assert "10 done, 2 to run" in capsys.readouterr().out
    assert len(load_records("s")) == 12
    assert set(before) < set(tried("algo.client_lr", "algo.server_lr"))


def test_values_that_a_search_minimizes():
    levels = {"good": 0.1, "bad": 3.0}
    records = [
        fake_record(name, table=fake_rows(level, val_accuracy=0.9 - 0.1 * level)) for name, level in levels.items()
    ]
    records += [fake_record("diverged", status="diverged"), fake_record("failed", status="failed")]
    points = [SweepPoint("", each.folder) for each in records]
    good, bad, *rest = objective_values(points, "val_accuracy", 20)
    assert good < bad < 0  # more of it is better
    assert rest == [inf, inf]
    good, bad, *_ = objective_values(points, "objective", 20)
    assert 0 < good < bad
    with fails("metric=rank"):
        objective_values(points, "rank", 20)


@pytest.mark.parametrize(
    ("keys", "metric"),
    [
        (["algo.client_lr"], "val_loss"),
        (["reg.strength", "objective.ridge"], "val_loss"),
        (["objective.delta"], "val_accuracy"),
        (["objective"], "val_accuracy"),
    ],
)
def test_a_search_goes_by_a_metric_that_compares_its_points(keys, metric):
    rows = [{key: row[key] for key in row if key != "support_f1"} for row in fake_rows(val_accuracy=0.9)]
    assert choose_search_metric([SweepPoint("", fake_record("a", table=rows).folder)], keys) == metric


def test_a_search_without_a_metric_that_compares_its_points_is_refused():
    rows = [{key: row[key] for key in row if key != "support_f1"} for row in fake_rows()]
    with fails("no metric by which these runs are ranked compares the values of algo, objective.delta"):
        choose_search_metric([SweepPoint("", fake_record("a", table=rows).folder)], ["algo", "objective.delta"])


def test_a_search_refuses_less_privacy_as_a_choice(capsys):
    assert search("privacy.epsilon=1,8", "privacy=gaussian", RATES[0]) == 2
    assert "privacy.epsilon is searched, but less privacy" in " ".join(capsys.readouterr().err.split())


def test_a_search_refuses_the_luck_of_a_clock_as_a_choice(capsys):
    clock = ("topology=asynchronous", "clock=lognormal", "clients_per_round=null")
    assert search("clock.seed=0,1", *clock, RATES[0]) == 2
    assert "clock.seed is searched, and the luckiest would win" in " ".join(capsys.readouterr().err.split())


def test_a_search_refuses_an_axis_that_costs_other_privacy(capsys, monkeypatch):
    pytest.importorskip("dp_accounting")
    private = ("privacy=gaussian", "data.clients=100", "clients_per_round=null", RATES[0])
    monkeypatch.setitem(globals(), "SMALL", [text for text in SMALL if not text.startswith("rounds=")])
    assert search("rounds=10,20", "privacy.noise=20", *private) == 2
    assert "rounds is searched, but its values cost another epsilon" in " ".join(capsys.readouterr().err.split())
    assert search("stop={epsilon: 1},{epsilon: 4}", "privacy.noise=20", "rounds=400", *private) == 2
    assert "stop is searched, but its values cost" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("axis", "first"),
    [
        ("data.mean_scale=0,0.5,1", "data.mean_scale=0"),
        ("data.mean_scale=interval(0.5,1)", "data.mean_scale=0.5"),
        ("data=lasso_8,lasso_16", "data=lasso_8"),
    ],
)
def test_a_search_refuses_other_data_as_choices(axis, first, capsys):
    assert search(axis, RATES[0]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert (
        f"{axis.partition('=')[0]} is searched, but other data are another problem, and the easiest would win" in said
    )
    assert f"give one value, {first}, and a search for each other one" in said
    assert load_records(".") == []


@pytest.mark.parametrize(
    ("metric", "axis", "advice"),
    [
        ("objective", "reg.strength=interval(0.1,1)", "give metric=val_loss"),
        ("suboptimality", "reg=l1,l2", "give metric=val_loss"),
        ("objective", "objective.ridge=interval(0,1)", "give metric=val_loss"),
        ("val_loss", "objective=least_squares,logistic", "give metric=val_accuracy"),
        ("val_loss", "objective.delta=interval(0.1,5)", "give metric=val_accuracy"),
        ("personal_val_loss_q90", "objective=least_squares,logistic", "give metric=val_accuracy"),
    ],
)
def test_a_search_refuses_a_metric_that_does_not_compare(metric, axis, advice, capsys):
    assert search(axis, f"metric={metric}") == 2
    key = axis.partition("=")[0]
    assert f"metric={metric} is another one at each {key}, which is searched, and does not compare: {advice}" in (
        capsys.readouterr().err
    )
    assert load_records(".") == []


@pytest.mark.slow
def test_a_search_goes_by_one_metric_and_says_which(monkeypatch):
    """Not by the objective, although the strengths of its first points do not vary."""
    metrics = []

    def recorded(points, metric, tail_rounds):
        metrics.append(metric)
        return objective_values(points, metric, tail_rounds)

    monkeypatch.setattr("fcorun.runs.sweep.objective_values", recorded)
    assert search("reg.strength=range(1,4)", "rounds=0", "hydra.sweeper.n_trials=8", "hydra.sweeper.batch=1") == 0
    assert len(metrics) == 8
    assert set(metrics) == {load_settings(Path("s")).metric}
    assert metrics[0] not in (None, "objective")


@pytest.mark.slow
def test_axes_may_be_lists_ranges_and_whole_numbers():
    axes = ("algo=fedmid,feddualavg", "local_epochs=int(interval(1,3))", "reg.strength=range(1,4)")
    assert search(*axes, "rounds=0", "hydra.sweeper.n_trials=8") == 0
    values = tried("algo.name", "local_epochs", "reg.strength")
    assert {algo for algo, _, _ in values} == {"fedmid", "feddualavg"}
    assert {type(epochs) for _, epochs, _ in values} == {int}
    assert {epochs for _, epochs, _ in values} <= {1, 2, 3}
    assert {strength for *_, strength in values} == {1, 2, 3}


@pytest.mark.slow
def test_each_point_is_run_with_all_seeds():
    assert search("algo.client_lr=1e-3,1e6", "seed=0,1", "rounds=9", "hydra.sweeper.n_trials=8") == 0
    assert tried("algo.client_lr", "seed") == [(1e-3, 0), (1e-3, 1), (1e6, 0), (1e6, 1)]


@pytest.mark.slow
def test_a_point_that_cannot_run_is_listed_and_the_others_are_tried(capsys):
    assert search("algo.client_lr=-1,1e-3,2e-3", "rounds=0", "hydra.sweeper.n_trials=8") == 1
    assert sorted(r.status["status"] for r in load_records("s")) == ["done", "done", "failed"]
    assert capsys.readouterr().err.count("algo.client_lr=-1") == 2  # what was asked for, and what is wrong with it


@pytest.mark.slow
def test_a_search_all_of_whose_points_fail_ends(capsys):
    assert search("algo.client_lr=interval(-2,-1)", "hydra.sweeper.n_trials=40") == 1
    assert len(load_records("s")) == 4


@pytest.mark.slow
def test_a_dry_run_lists_the_points_that_are_asked_for_first(capsys):
    listed = []
    for seed in (0, 0, 1):
        assert search(*RATES, "dry_run=true", f"hydra.sweeper.seed={seed}") == 0
        listed.append({line for line in capsys.readouterr().out.splitlines() if ": to run (" in line})
    assert [len(lines) for lines in listed] == [4, 4, 4]
    assert listed[0] == listed[1]
    assert not listed[0] & listed[2]
    assert load_records(".") == []


@pytest.mark.slow
def test_force_computes_each_point_once_again(monkeypatch):
    begun, log = [], RunFolder.log

    def noted(self, line):
        begun.extend([self.path.name] if line.startswith("starts:") else [])
        log(self, line)

    monkeypatch.setattr(RunFolder, "log", noted)
    for _ in range(2):
        begun.clear()
        assert search("algo.client_lr=1e-3,2e-3", "rounds=0", "force=true", "hydra.sweeper.n_trials=8") == 0
        assert len(begun) == len(set(begun)) == 2


def test_without_optuna_the_message_names_its_installation(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert search(*RATES) == 2
    assert "pip install 'fcorun[optuna]'" in capsys.readouterr().err


def trials_of(storage: str) -> list[str]:
    """The states of the trials of a journal; none before it has a study."""
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    journal = JournalStorage(JournalFileBackend(storage))
    trials = [trial for study in journal.get_all_studies() for trial in journal.get_all_trials(study._study_id)]
    return [trial.state.name for trial in trials if trial.state.name != "WAITING"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork")
def test_processes_search_together_and_a_search_that_was_killed_goes_on(capsys):
    importlib.import_module("optuna.storages.journal")  # before the search, which does not wait for that
    command = ["-m", "hydra/sweeper=optuna", *SMALL, "hydra.sweep.dir=s", *RATES, "rounds=1", "report=false"]
    command += ["hydra.sweeper.n_trials=6", "hydra.sweeper.batch=2", "hydra.sweeper.storage=journal"]
    killed = start_command(command)
    while not (Path("journal").exists() and "RUNNING" in trials_of("journal")):
        assert killed.poll() is None
        time.sleep(0.05)
    killed.kill()
    killed.communicate()
    elsewhere = Path("journal").read_text().replace(f'"{platform.node()}"', '"node-a"')  # as if on another machine
    Path("journal").write_text(elsewhere)
    together = [start_command(command) for _ in range(2)]
    said = [process.communicate() for process in together]
    assert [process.returncode for process in together] == [0, 0], said
    states = trials_of("journal")
    assert set(states) <= {"COMPLETE", "FAIL"}
    assert states.count("COMPLETE") == 6
    assert search(*RATES, "rounds=1", *command[-3:]) == 0
    assert len(trials_of("journal")) == len(states)
    assert "6 done, 0 to run" in capsys.readouterr().out
    assert [path.name for path in Path().glob("journal.*")] == ["journal.ask"]  # no lock of a process that has ended


@pytest.mark.slow
def test_a_search_with_a_journal_begins_anew_on_other_rows(capsys, monkeypatch):
    """Values of the old rows are those of another problem, as values of old code are of another method."""
    monkeypatch.setitem(globals(), "SMALL", ("data=table", "data.path=t.csv", "data.target=y", "data.client=client"))
    table = pd.DataFrame({"x": range(40), "y": np.arange(40) % 7, "client": np.arange(40) % 4})
    for n_studies in (1, 2):
        table.assign(y=n_studies * table["y"]).to_csv("t.csv", index=False)
        for to_run in (2, 0):
            assert search(RATES[0], "rounds=1", "hydra.sweeper.n_trials=2", "hydra.sweeper.storage=journal") == 0
            assert f"{2 - to_run} done, {to_run} to run" in capsys.readouterr().out
        assert len(set(re.findall('"study_name":"(.*?)"', Path("journal").read_text()))) == n_studies
    assert len(load_records("s")) == 4


@pytest.mark.slow
def test_a_storage_keeps_its_metric_and_other_files_are_refused(capsys):
    searched = (*RATES, "rounds=1", "hydra.sweeper.n_trials=2", "hydra.sweeper.storage=journal")
    assert search(*searched, "metric=val_loss") == 0
    assert search(*searched, "metric=objective") == 2
    assert "the search in hydra.sweeper.storage goes by val_loss: give metric=val_loss" in capsys.readouterr().err
    Path("notes").write_text("mine\n")
    assert search(*RATES, "hydra.sweeper.storage=notes") == 2
    assert "hydra.sweeper.storage=notes is no journal of optuna" in capsys.readouterr().err
    assert Path("notes").read_text() == "mine\n"
    assert search(*RATES, "hydra.sweeper.storage=notes/journal") == 2
    assert "hydra.sweeper.storage=notes/journal cannot be written" in capsys.readouterr().err
