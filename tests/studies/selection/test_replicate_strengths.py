"""study.strength: each run of a sweep chooses its strength on its own rows."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers import SMALL, fails
from sweeps import assert_same_results, read_results, run_sweep_command

from fcorun import UserError, compose, load_records, run
from fcorun.experiment.prepare import prepare
from fcorun.interface.cli.commands import plan_command
from fcorun.interface.cli.main import main
from fcorun.reports.build_table import build_table
from fcorun.studies.selection.fitting import PathFitter
from fcorun.studies.selection.replicate_strengths import choose_strength
from fcorun.studies.selection.select import plan_selection
from fcorun.studies.selection.selection_result import SelectOptions

STUDY = ("study.folds=3", "study.points=6")


def prepared(*overrides: str):
    return prepare(compose([*SMALL, *overrides]))


def test_the_key_at_its_default_changes_no_identity():
    config = compose([*SMALL])
    without = {key: value for key, value in config.items() if key != "study"}
    assert prepare(config).identity == prepare(without).identity
    assert prepared("study.points=7").identity == prepare(config).identity  # without a choice
    assert prepared("study.strength=cv").identity != prepare(config).identity
    one_se = prepared("study.strength=one_se", "reg.strength=0.3")
    assert one_se.identity == prepared("study.strength=one_se").identity  # the strength is the outcome of the choice
    assert one_se.identity != prepared("study.strength=cv").identity


def test_a_plan_for_sites_is_as_without_the_key():
    sites = ["algo=newton", "reg=l1", "reg.strength=0.1", "data=sites", "data.target=y", "data.task=regression"]
    assert plan_command.run([*sites, "--out", "plan.yaml"]) == 0
    assert "\n  study:" not in Path("plan.yaml").read_text()  # which would change its digest


def test_refused_folds_are_told_by_the_key_that_a_sweep_has():
    with fails("study.strength=cv, whose folds are study.folds: folds=13 is more than the 12 training rows"):
        choose_strength(prepared("algo=centralized", "study.strength=cv", "study.folds=13"))


@pytest.mark.parametrize("rule", ["cv", "one_se"])
def test_a_baseline_chooses_as_select_does(rule, tmp_path):
    experiment, choice = choose_strength(prepared("algo=centralized", f"study.strength={rule}", *STUDY))
    options = SelectOptions(folds=3, points=6, rule="min" if rule == "cv" else "one_se")
    plan = plan_selection(compose([*SMALL, "algo=centralized"]), options, tmp_path / "select")
    with plan.study.claim():
        selection = plan.select_value()
    assert choice["strength"] == selection.path.values[selection.choice.chosen_index]
    assert experiment.reg.strength == choice["strength"] == experiment.config["reg"]["strength"]
    assert choice["cost"] == selection.cost


def test_each_run_of_a_sweep_has_the_strength_and_the_bytes_of_its_choice(capsys):
    sweep = ("algo=feddualavg,fedavg", "seed=0,1", "data.seed=0,1", "hydra.sweeper.zip=[seed,data.seed]")
    assert run_sweep_command(*sweep, "study.strength=cv", *STUDY, "out=s") == 0
    records = [record for record in load_records("s") if record.config["algo"]["name"] == "feddualavg"]
    assert len(records) == 2
    for record in records:
        choice = record.summary["selection"]
        assert record.summary["strength"] == pytest.approx(choice["strength"], rel=1e-6)
        seed = record.config["seed"]
        given = [f"reg.strength={choice['strength']!r}", f"seed={seed}", f"data.seed={seed}"]
        alone = run(compose([*SMALL, *given]), f"alone-{seed}")
        assert record.status["identity"] != alone.status["identity"]
        ours, theirs = pd.read_csv(record.folder / "metrics.csv"), pd.read_csv(alone.folder / "metrics.csv")
        np.testing.assert_allclose(ours["val_loss"], theirs["val_loss"], rtol=2e-4)
        for name in ("bytes_up", "bytes_down"):  # the totals begin at those of the choice
            assert (ours[name] - theirs[name]).tolist() == [choice["cost"][name]] * len(ours)
            assert choice["cost"][name] > 0
    runs = build_table(load_records("s"), root=Path("s"))
    assert "reg.strength" not in runs.varied_keys  # else each run would be a point of its own
    assert len(runs.fold_seeds("val_loss")) == 2
    chosen = runs.frame.set_index("algo")["chosen_strength"]
    assert chosen["fedavg"].isna().all()  # ignores psi
    assert sorted(chosen["feddualavg"]) == sorted(record.summary["selection"]["strength"] for record in records)
    with pytest.raises(UserError, match="metric=objective is another function at each strength"):
        runs.resolve_metric("objective")
    capsys.readouterr()
    assert run_sweep_command(*sweep, "study.strength=cv", *STUDY, "out=s") == 0
    assert "4 done, 0 to run" in capsys.readouterr().out  # the same command again chooses nothing


@pytest.mark.slow
def test_workers_choose_the_strengths_of_the_runs_that_they_compute():
    pytest.importorskip("distributed")
    sweep = ("algo=feddualavg,fedavg", "seed=0,1", "study.strength=cv", *STUDY, "report=false")
    dask = ("hydra.launcher.executor=dask", "hydra.launcher.dask={jobs: 1}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PathFitter, "fit", None)  # in this process nothing is chosen
        assert run_sweep_command(*sweep, *dask, "out=there") == 0
    assert run_sweep_command(*sweep, "out=here") == 0
    assert_same_results(read_results("there"), read_results("here"))
    assert read_results("there")["chosen_strength"].notna().sum() == 2


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (
            ["-m", "study.strength=cv", "reg.strength=0.1,0.2"],
            "study.strength=cv chooses the strength of each run: give",
        ),
        (
            ["-m", "study={strength: cv}", "reg.strength=0.1,0.2"],
            "study.strength=cv chooses the strength of each run: give",
        ),
        (
            ["-m", "--config-dir", "own", "experiment=both"],
            "give study.strength or reg.strength, not both; a file sets reg.strength=0.2: leave it out there",
        ),
        (
            ["study.strength=cv"],
            "study.strength=cv chooses the strength of each run of a sweep: give -m (in Python, ",
        ),
        (["study.strength=best"], "study.strength=best is not a choice: (valid: cv, one_se)"),
        (["study.strength=cv", "reg.relative=0.1"], "study.strength=cv chooses the strength, and reg.relative sets it"),
        (
            ["-m", "seed=0,1", "study.strength=cv", "reg=l1_ball", "reg.radius=1"],
            "reg=l1_ball has no strength to choose",
        ),
    ],
)
def test_a_strength_that_is_given_and_chosen_is_refused(overrides, sentence, monkeypatch, capsys):
    Path("own/experiment").mkdir(parents=True)
    content = "# @package _global_\nreg: {strength: 0.2}\nstudy: {strength: cv}\n"
    Path("own/experiment/both.yaml").write_text(content)
    monkeypatch.setattr(sys, "argv", ["fcorun", *overrides, *SMALL, "report=false", "out=s"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code
    assert sentence in "".join(capsys.readouterr())


def test_a_choice_of_the_command_replaces_the_strength_of_an_experiment_and_says_so(capsys):
    Path("own/experiment").mkdir(parents=True)
    Path("own/experiment/weak.yaml").write_text("# @package _global_\nreg: {strength: 0.2}\n")
    given = ["--config-dir", "own", "experiment=weak", "study.strength=cv", *STUDY, "seed=0,1", "out=s"]
    assert run_sweep_command(*given) == 0
    assert capsys.readouterr().out.count("study.strength=cv replaces reg.strength=0.2 of a file") == 1
    chosen = [record.summary["selection"]["strength"] for record in load_records("s")]
    assert len(chosen) == 2
    assert 0.2 not in chosen
