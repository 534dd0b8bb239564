"""Sweeps: nothing twice, and each record what the run alone would have left."""

import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers import PICTURES, SMALL, ragged, rows_of
from sweeps import RATES, assert_same_results, read_results, run_sweep_command

from fcorun import UserError, compose, load_records, run
from fcorun.base.records.sweep_settings import load_settings
from fcorun.engine.engine import CompiledPrograms
from fcorun.experiment.build import check_metric_measured
from fcorun.experiment.prepare import prepare
from fcorun.interface.cli.commands import main
from fcorun.interface.cli.main import main as fcorun
from fcorun.runs import batch
from fcorun.runs import run_experiments as run_module
from fcorun.runs.job import Watcher


@pytest.mark.slow
def test_references_to_a_swept_number_follow_it():
    assert (
        run_sweep_command(
            "algo.server_lr=${algo.client_lr}",
            "algo.client_lr=0.01,0.02",
            "seed=0,1",
            "hydra.sweep.dir=s",
            "hydra.sweep.subdir=${seed}-${algo.client_lr}-${hydra:job.num}",
        )
        == 0
    )
    configs = {record.folder.name: record.config["algo"] for record in load_records("s")}
    assert list(configs) == ["0-0.01-0", "0-0.02-2", "1-0.01-1", "1-0.02-3"]
    assert all(algo["server_lr"] == algo["client_lr"] == float(name.split("-")[1]) for name, algo in configs.items())


@pytest.mark.parametrize(
    ("metric", "reason"),
    [
        ("val_accuracy", "would not be measured: objective=least_squares has no accuracy; choose another"),
        ("suboptimality", "is the gap to a reference optimum: give reference=true as well"),
    ],
)
def test_a_metric_that_no_point_would_measure_is_refused_before_anything_runs(metric, reason, capsys):
    assert run_sweep_command(*RATES, f"metric={metric}", "hydra.sweep.dir=s") == 2
    assert capsys.readouterr().err.strip() == f"fcorun: metric={metric} {reason}"
    assert not Path("s").exists()


@pytest.mark.slow
def test_two_classes_of_one_name_are_refused_before_anything_runs(capsys):
    classes = [f"fcorun.methods.algorithms.{name}" for name in ("fedavg.FedAvg", "fedmid.FedMiD")]
    assert (
        run_sweep_command("algo=fedmid", "algo.name=mine", f"algo.class={','.join(classes)}", "hydra.sweep.dir=s") == 2
    )
    refusal = "fcorun: algo.name=mine names two classes, fcorun.FedAvg and fcorun.FedMiD: give one of them another name"
    assert capsys.readouterr().err.startswith(refusal)
    assert not Path("s").exists()


def test_a_metric_that_only_some_points_measure_is_taken(tmp_path):
    table = ragged(tmp_path / "table", "algo=feddualavg", "reg=l1")
    without, within = prepare(table), prepare(compose(list(SMALL)))
    check_metric_measured([without, within], "support_f1")
    with pytest.raises(UserError, match="support_f1 would not be measured: data=table have no true model"):
        check_metric_measured([without], "support_f1")
    with pytest.raises(UserError, match="data=table have no validation rows"):
        check_metric_measured([without], "val_loss")


@pytest.mark.slow
@pytest.mark.drawn
def test_pictures_of_a_sweep_have_the_axis_of_its_settings():
    pictures = {}
    for x in ("bytes", "rounds"):  # the second time the records are there, and are drawn as the second command says
        assert run_sweep_command("algo.client_lr=1e-3,3e-3", f"x={x}", "hydra.sweep.dir=s") == 0
        pictures[x] = Path("s/best.png").read_bytes()
        assert main(["plot", "s", "--x", x]) == 0
        assert Path("s/best.png").read_bytes() == pictures[x]
    assert pictures["bytes"] != pictures["rounds"]


@pytest.mark.slow
@pytest.mark.drawn
def test_two_sweeps_into_one_folder_are_one_table_and_it_remembers_the_last(monkeypatch):
    with monkeypatch.context() as patch:  # the second sweep replaces the pictures of the first
        patch.setattr("fcorun.reports.sweep_report.draw_sweep", lambda *_, **__: [])
        assert run_sweep_command("algo=fedmid", "algo.client_lr=1e-3,3e-3", "hydra.sweep.dir=s") == 0
    assert (
        run_sweep_command("algo=feddualavg", "algo.client_lr=1e-3,1e-2", "metric=objective", "hydra.sweep.dir=s") == 0
    )
    results = pd.read_csv("s/results.csv")
    assert results["algo"].tolist() == ["fedmid", "fedmid", "feddualavg", "feddualavg"]
    assert results["algo.client_lr"].tolist() == [1e-3, 3e-3, 1e-3, 1e-2]
    settings = load_settings("s")
    assert (settings.metric, settings.algos) == ("objective", ("fedmid", "feddualavg"))
    assert set(settings.runs) == set(results["folder"][2:])
    picture = Path("s/best.png").read_bytes()
    assert main(["plot", "s"]) == 0
    assert Path("s/best.png").read_bytes() == picture


@pytest.mark.slow
def test_a_sweep_may_leave_its_pictures_to_plot():
    assert run_sweep_command("algo.client_lr=1e-3,2e-3", "hydra.launcher.pictures=false", "hydra.sweep.dir=s") == 0
    assert Path("s/results.csv").exists()
    assert not [*Path("s").glob("*.png")]
    assert main(["plot", "s"]) == 0
    assert Path("s/best.png").exists()


@pytest.mark.slow
def test_each_point_leaves_the_record_of_the_run_alone(capsys):
    assert run_sweep_command("algo=feddualavg,fedmid", *RATES, "hydra.sweep.dir=s") == 0
    assert "0 done, 12 to run" in capsys.readouterr().out
    records = load_records("s")
    assert len(records) == 12
    assert {r.summary["seconds"]["batched_with"] for r in records} == {6}
    for record in (records[0], records[-1]):
        alone = run(record.config, "alone-" + record.folder.name)
        files = {p.name for p in record.folder.iterdir()}
        assert {p.name for p in alone.folder.iterdir()} == files | set(PICTURES)  # which plot draws of a point
        pd.testing.assert_frame_equal(rows_of(record), rows_of(alone), rtol=2e-4, atol=1e-5)
        assert record.status["identity"] == alone.status["identity"]


@pytest.mark.slow
def test_the_table_equals_that_of_hydras_own_launcher():
    axes = ("algo=feddualavg,fedmid", *RATES, "algo.client_lr=1e-3,100")
    assert run_sweep_command(*axes, "hydra.sweep.dir=ours") == 0
    assert run_sweep_command(*axes, "hydra.sweep.dir=theirs", "hydra/launcher=basic", "verbose=false") == 0
    assert cli_main("results", "theirs", "--out", "theirs/results.csv") == 0
    assert {r.summary["seconds"]["batched_with"] for r in load_records("theirs")} == {1}
    assert_same_results(read_results("ours"), read_results("theirs"))


def cli_main(*arguments: str) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["fcorun", *arguments])
        try:
            fcorun()
        except SystemExit as stop:
            return int(stop.code or 0)
    return 0


@pytest.mark.slow
def test_seeds_run_together_where_they_have_few_points_and_apart_where_many(monkeypatch):
    """On a single core, too, whose batches wait for each other."""
    assert run_sweep_command("seed=0,1,2", "hydra.sweep.dir=few") == 0
    assert {r.summary["seconds"]["batched_with"] for r in load_records("few")} == {3}
    monkeypatch.setattr(run_module, "available_cores", lambda: 1)
    assert run_sweep_command("seed=0,1", *RATES, "hydra.sweep.dir=many") == 0
    assert [r.status["status"] for r in load_records("many")] == ["done"] * 12
    assert {r.summary["seconds"]["batched_with"] for r in load_records("many")} == {6}
    for record in load_records("few"):
        alone = run(record.config, "alone-" + record.folder.name)
        pd.testing.assert_frame_equal(rows_of(record), rows_of(alone), rtol=2e-4, atol=1e-5)


@pytest.mark.slow
def test_zipped_axes_move_together():
    axes = ("algo.client_lr=1e-3,2e-3,3e-3", "algo.server_lr=0.1,0.2,0.3", "reg.strength=0.1,0.2")
    assert run_sweep_command(*axes, "hydra.sweeper.zip=[algo.client_lr,algo.server_lr]", "hydra.sweep.dir=z") == 0
    rates = {tuple(r.config["algo"][k] for k in ("client_lr", "server_lr")) for r in load_records("z")}
    assert rates == {(1e-3, 0.1), (2e-3, 0.2), (3e-3, 0.3)}
    assert len(load_records("z")) == 6


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        (("algo.client_lr=1e-3,2e-3", "algo.server_lr=0.1,0.2,0.3"), "differ in length"),
        (("algo.client_lr=1e-3,2e-3",), "algo.server_lr has no list of values"),
    ],
)
def test_axes_that_cannot_be_zipped_are_refused(axes, message, capsys):
    assert run_sweep_command(*axes, "hydra.sweeper.zip=[algo.client_lr,algo.server_lr]") == 2
    assert message in capsys.readouterr().err
    assert not Path("outputs").exists()


@pytest.mark.slow
def test_a_batch_is_cut_to_fit_memory():
    assert run_sweep_command(*RATES, "memory=1e-9", "hydra.sweep.dir=s") == 0
    assert {r.summary["seconds"]["batched_with"] for r in load_records("s")} == {1}


@pytest.mark.slow
def test_a_batch_that_fails_for_memory_is_halved(monkeypatch):
    run_batch = batch.run_batch

    def scarce(context, jobs, width):
        if width > 2:  # also of one run with repeats
            raise MemoryError
        return run_batch(context, jobs, width)

    monkeypatch.setattr(batch, "run_batch", scarce)
    assert run_sweep_command(*RATES, "hydra.sweep.dir=s") == 0
    records = load_records("s")
    assert len(records) == 6
    assert {r.summary["seconds"]["batched_with"] for r in records} <= {1, 2}
    assert "memory did not suffice" in (records[0].folder / "run.log").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("batches", [1, 2])
def test_runs_go_on_in_smaller_programs_when_the_others_have_diverged(batches, monkeypatch):
    """With the numbers of an undisturbed run; and a thread that has nothing to do is given some of another's runs."""
    axes = ("algo.client_lr=1e-3,2e-3,3e-3,4e-3,5e-3,50,60,70,80,90", "algo.server_lr=1,1000", "rounds=40")
    monkeypatch.setattr(run_module, "available_cores", lambda: batches)
    monkeypatch.setattr(CompiledPrograms, "estimated_recompile_seconds", 0.0)
    assert run_sweep_command(*axes, "hydra.sweep.dir=s") == 0
    records = {
        status: [r for r in load_records("s") if r.status["status"] == status] for status in ("done", "diverged")
    }
    assert len(records["done"]) + len(records["diverged"]) == 20
    assert len(records["done"]) == 5
    widths = {r.summary["seconds"]["batched_with"] for r in records["done"]}
    assert max(widths) <= 5
    assert max(r.summary["seconds"]["batched_with"] for r in records["diverged"]) == 20 / batches
    for record in (records["done"][0], records["done"][-1]):
        alone = run(record.config, Path("alone") / record.folder.name)
        pd.testing.assert_frame_equal(rows_of(record), rows_of(alone), rtol=2e-4, atol=1e-5)
    assert not list(Path("s").rglob(".checkpoint*"))


@pytest.mark.slow
def test_further_runs_may_have_axes_and_spaces():
    job = "algo=fedmid algo.client_lr=1e-3,2e-3 algo.title='mirror descent'"
    assert run_sweep_command(f'hydra.sweeper.also=["{job}"]', "hydra.sweep.dir=s") == 0
    runs = [
        (r.config["algo"]["name"], r.config["algo"]["client_lr"], r.config["algo"]["title"]) for r in load_records("s")
    ]
    assert sorted(runs) == [("fedmid", 1e-3, "mirror descent"), ("fedmid", 2e-3, "mirror descent")]


@pytest.mark.slow
def test_the_programming_interface_takes_several_seeds():
    configs = [compose([*SMALL, f"seed={s}", "precision=float64"]) for s in range(3)]
    from helpers import run_grid

    for config, record in zip(configs, run_grid(configs, [f"g{i}" for i in range(3)], Watcher()), strict=True):
        alone = run(config, f"alone{config['seed']}")
        np.testing.assert_allclose(rows_of(record), rows_of(alone), rtol=1e-9)


@pytest.mark.slow
def test_finished_points_are_reused_and_only_new_points_run(capsys, monkeypatch):
    assert run_sweep_command("algo.client_lr=1e-3,2e-3") == 0
    folder = next(Path("outputs/sweeps").iterdir())
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("metrics.csv")}
    assert run_sweep_command("algo.client_lr=1e-3,2e-3,3e-3") == 0
    assert "2 done, 1 to run" in capsys.readouterr().out
    assert next(Path("outputs/sweeps").iterdir()) == folder
    assert len(load_records(folder)) == 3
    assert all(p.stat().st_mtime_ns == t for p, t in before.items())
    assert run_sweep_command("algo.client_lr=1e-3,2e-3", "force=true") == 0
    assert all(p.stat().st_mtime_ns > t for p, t in before.items())


def test_a_dry_run_lists_the_points_and_runs_none(capsys):
    assert run_sweep_command(*RATES, "dry_run=true") == 0
    output = capsys.readouterr().out
    assert "0 done, 6 to run" in output
    assert "algo.client_lr=0.003 algo.server_lr=1: to run" in output
    assert not Path("outputs").exists()


@pytest.mark.slow
def test_identical_runs_run_once_with_a_warning(capsys):
    axes = ("algo=feddualavg,fedavg,centralized", "algo.client_lr=1e-3,2e-3", "reg.strength=0.1,0.2", "seed=0,1")
    axes += ("save_personal=true,false",)
    assert run_sweep_command(*axes, "hydra.sweep.dir=s") == 0
    out = capsys.readouterr().out
    ran = [(r.config["algo"]["name"], r.config["reg"]["strength"]) for r in load_records("s")]
    assert Counter(ran) == {("feddualavg", 0.1): 4, ("feddualavg", 0.2): 4, ("fedavg", 0.1): 4,
                            ("centralized", 0.1): 1, ("centralized", 0.2): 1}  # fmt: skip
    assert out.startswith("0 done, 14 to run")
    assert "algo=centralized has no client_lr: run once for all values" in out
    assert "algo=fedavg ignores the regularizer psi: run once for all values of reg.strength" in out
    run_sweep_command(*axes, "hydra.sweep.dir=s", "dry_run=true")
    assert capsys.readouterr().out.startswith("14 done, 0 to run")


@pytest.mark.slow
def test_code_that_is_changed_and_restored(user_module, capsys):
    source = (
        "from dataclasses import dataclass\n"
        "from fcorun.methods.algorithms.fedavg import FedAvg\n"
        "@dataclass(frozen=True)\n"
        "class Mine(FedAvg):\n"
        "    def output(self, problem, server):\n"
        "        return FACTOR * server\n"
    )
    axes = ("algo=fedavg", "algo.class=mine.Mine", "algo.client_lr=1e-3,2e-3", "hydra.sweep.dir=s")
    ends = []
    for factor in ("1.0", "0.5", "1.0"):
        user_module("mine", source.replace("FACTOR", factor))
        assert run_sweep_command(*axes) == 0
        ends.append(list(read_results("s")["final_objective"]))
    assert ends[0] != ends[1]
    assert ends[2] == ends[0]  # of the records that were just said to be done
    output = capsys.readouterr().out
    assert "2 of 4 records have the configuration of a run that was finished or asked for later" in output
    assert main(["weights", "s", "--out", "w.csv"]) == 0
    assert set(pd.read_csv("w.csv")["runs"]) == {1}
    assert main(["report", "s", "--out", "r.html"]) == 0
    page = Path("r.html").read_text()
    assert "not started" not in page
    assert "2 of 4 records have the configuration of a run" in page


@pytest.mark.slow
def test_an_untrained_shared_model_gives_a_warning(capsys):
    axes = ("algo=local,feddualavg", "rounds=2", "algo.client_lr=1e-3", "hydra.sweep.dir=s")
    assert run_sweep_command(*axes, "metric=val_loss") == 0
    assert "local: clients send nothing, so val_loss is measured on the initial model" in capsys.readouterr().out
    assert main(["results", "s", "--metric", "personal_val_loss"]) == 0
    assert "send nothing" not in capsys.readouterr().out


@pytest.mark.slow
def test_algorithms_that_ignore_psi_are_named_in_comparisons(capsys):
    assert run_sweep_command("algo=scaffold,feddualavg", "rounds=2", "algo.client_lr=1e-3", "hydra.sweep.dir=s") == 0
    assert "algo=scaffold ignores the regularizer psi: the other algorithms minimize F + psi" in capsys.readouterr().out
    assert main(["results", "s"]) == 0
    assert "algo=scaffold ignores the regularizer psi" in capsys.readouterr().out
    assert run_sweep_command("algo=scaffold,fedavg", "rounds=2", "algo.client_lr=1e-3", "hydra.sweep.dir=t") == 0
    out = capsys.readouterr().out
    assert "no solution minimizes F + psi" in out
    assert "the other algorithms" not in out
