"""Tables of records: what varies, seeds folded, and the best point."""

import csv
import io
import json
import time
from pathlib import Path

import numpy as np
import pytest
from fabricate import config, grid, record, rows
from helpers import SMALL, small
from rich.console import Console

import fcorun
from fcorun import UserError, load_records, run, run_grid
from fcorun.cli import cli
from fcorun.experiment.experiment import prepare
from fcorun.metrics import aggregate
from fcorun.records.folder import RunFolder
from fcorun.records.formats import read_rows
from fcorun.reports.results import best_points, points, report, show, table
from fcorun.reports.table import keys
from fcorun.runs.runner import Job
from fcorun.runs.summary import summarize


def shown(function, *arguments):
    """What a function prints on the console that it is given last."""
    out = Console(file=io.StringIO(), width=60)
    result = function(*arguments, out)
    return out.file.getvalue(), result


# ---------------------------------------------------------------- the table


def test_columns_and_their_order():
    frame = table(grid("s"))
    names = list(frame)
    assert names[:8] == ["folder", "algo", "data", "seed", "algo.client_lr", "algo.server_lr", "status", "reason"]
    assert names[8:11] == ["rounds", "final_objective", "final_train_loss"]
    assert names[-5:] == ["seconds", "bytes_up", "bytes_down", "grad_evals", "prox_evals"]
    assert [n for n in names if n.startswith("tail_")] == [
        *("tail_objective", "tail_train_loss", "tail_val_loss", "tail_f1", "tail_density"),
    ]
    assert "best_density" not in names  # better in no direction
    assert keys(frame) == ["seed", "algo.client_lr", "algo.server_lr"]
    assert str(frame["seed"].dtype) == "Int64"
    assert frame.attrs.pop("varied") == {
        name: ["algo.client_lr", "algo.server_lr"] for name in ("feddualavg", "fedmid")
    }
    assert frame.attrs == {"tail_rounds": 20, "cutoff": 1e-4, "titles": {}}


def test_what_only_labels_or_shows_is_no_key():
    a, b = config(verbose=True, tail_rounds=5), config("fedmid", verbose=False, reg__name="l2")
    assert keys(table([record("a", a), record("b", b)])) == ["reg"]
    assert keys(table([record("c", config()), record("d", config())])) == []


def test_keys_that_an_algorithm_does_not_have_are_empty():
    a, b, c = config(), config(algo__client_lr=0.2), config("centralized")
    c["algo"] = {"name": "centralized", "class": "x", "tolerance": 1e-9}
    frame = table([record("a", a), record("b", b), record("c", c)])
    assert keys(frame) == ["algo.client_lr"]
    assert frame["algo.client_lr"].isna().tolist() == [False, False, True]


def test_null_and_lists_are_values():
    frame = table([record("a", config()), record("b", config(batch_size=10))])
    assert keys(frame) == ["batch_size"]
    frame = table([record("c", config(data__columns=[1, 2])), record("d", config(data__columns=[1]))])
    assert frame["data.columns"].tolist() == ["[1, 2]", "[1]"]


def test_true_is_not_one():
    assert keys(table([record("a", config(reference=True)), record("b", config(reference=1))])) == ["reference"]


def test_the_tail_is_the_summarys_or_computed_again():
    there = [record("a", table=rows(2.0))]
    assert table(there)["tail_objective"][0] == there[0].summary["tail"]["objective"]
    again = table(there, 40)
    assert (
        again["tail_objective"][0] == aggregate(rows(2.0), 40)["tail"]["objective"] != table(there)["tail_objective"][0]
    )
    assert again.attrs["tail_rounds"] == 40
    record("b", tail_rounds=10)
    assert table(load_records("."))["tail_objective"].notna().all()
    assert table(load_records(".")).attrs["tail_rounds"] is None


def test_counters_are_whole_numbers_and_may_lack():
    there = [record("a", table=rows(grads=1_000_001)), record("b", config("fedmid"), rows())]
    frame = table(there, 40)
    assert frame["grad_evals"][0] == 40_000_040
    assert frame["prox_evals"][0] == 440
    assert frame[["grad_evals", "prox_evals"]].isna().to_numpy().tolist() == [[False] * 2, [True] * 2]
    assert not [name for name in frame if "grad" in name and name.startswith(("final", "best", "tail"))]
    assert there[0].metrics["grad_evals"].tolist() == [r * 1_000_001 for r in range(0, 41, 10)]
    assert list(there[1].metrics)[3:5] == ["bytes_down", "objective"]
    assert report(Path("s"), there, None, None, Console(file=io.StringIO()))
    text = Path("s/results.csv").read_text()
    assert text.splitlines()[1].endswith(f",320,320,{40_000_040},440")
    assert text.splitlines()[2].endswith(",320,320,,")


@pytest.mark.parametrize(("grads", "told"), [(5, [320, 320, 200, 440]), (None, [320, 320, None, None])])
def test_summaries_hold_the_counters(grads, told):
    experiment = prepare(small())
    job = Job(experiment, RunFolder(Path("a"), ""), rows=rows(grads=grads))
    summary = summarize(job, experiment.load(), "done", {})
    assert [summary[name] for name in ("bytes_up", "bytes_down", "grad_evals", "prox_evals")] == told


def test_metrics_are_read_at_most_once():
    seen = []

    def read(folder):
        seen.append(folder)
        return read_rows(folder)

    there = grid("s", seeds=(0,))
    table(there, 20, read=read)
    assert not seen
    table(there, 10, read=read)
    assert sorted(seen) == sorted(r.folder for r in there)


def test_unfinished_records_have_a_row():
    done = record("done")
    failed = record("failed", status="failed", reason="ValueError: no")
    (failed.folder / "config.yaml").unlink()
    record("stopped", config("fedmid"), status="interrupted", reason="stopped after round 3")
    (record("broken").folder / "status.json").write_text("{")
    (record("torn").folder / "summary.json").write_text("")
    frame = table(load_records(".")).set_index("folder")
    assert frame["status"].to_dict() == {
        **{"broken": "unknown", "done": "done", "failed": "failed"},
        **{"stopped": "interrupted", "torn": "done"},
    }
    assert frame["algo"].to_dict()["failed"] == "feddualavg"  # from the label
    assert frame["reason"]["failed"] == "ValueError: no"
    assert np.isnan(frame["tail_f1"]["stopped"])
    assert np.isnan(frame["tail_f1"]["torn"])
    assert frame["rounds"]["done"] == done.summary["round"]


def test_folders_are_relative_where_asked():
    there = grid("deep/s", algos=("fedmid",), seeds=(0,))
    assert table(there)["folder"][0].startswith("deep/s/fedmid")
    assert table(there, root=Path("deep/s"))["folder"][0].startswith("fedmid")


def test_nothing_is_a_table():
    assert list(table([]))[:3] == ["folder", "algo", "data"]


def test_a_sweep_is_read_fast():
    there = grid(
        "s", client=(0.1, 0.12, 0.14, 0.2, 0.22, 0.24, 0.3), server=(0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0), seeds=(0,)
    )
    table(there[:1])
    begun = time.perf_counter()
    table(there, 10)
    assert time.perf_counter() - begun < 2  # 98 records; 0.1 seconds where nothing else runs


# ---------------------------------------------------------------- seeds folded, the best point


def test_points_fold_seeds():
    frame = table(grid("s"))
    folded = points(frame, "f1")
    assert len(folded) == 12
    one = folded.iloc[2]
    assert (one["algo.client_lr"], one["algo.server_lr"], one["seeds"], one["status"]) == (0.2, 0.3, 3, "done")
    tails = frame["tail_f1"][one["rows"]]
    assert one["metric"] == tails.median()
    assert [one["low"], one["high"]] == np.quantile(tails, (0.1, 0.9)).tolist()
    assert one["density"] == frame["tail_density"][one["rows"]].median()


@pytest.mark.parametrize("metric", [None, "f1", "objective", "val_loss"])
def test_the_best_point_of_each_algorithm(metric):
    best = best_points(table(grid("s")), metric)
    assert best["algo"].tolist() == ["feddualavg", "fedmid"]
    assert best["algo.client_lr"].tolist() == [0.2, 0.2]
    assert best["algo.server_lr"].tolist() == [1.0, 1.0]
    assert best["seeds"].tolist() == [3, 3]


def test_data_seeds_are_seeds():
    for seed in range(3):
        record(f"r{seed}", config(data__seed=seed), rows(1 + seed))
    best = best_points(table(load_records(".")), "objective")
    assert best["seeds"].tolist() == [3]


def test_a_point_that_diverged_with_a_seed_is_not_best():
    record("a0", config(seed=0, algo__client_lr=0.5), rows(0.1))
    record("a1", config(seed=1, algo__client_lr=0.5), rows(0.1), status="diverged")
    for seed in (0, 1):
        record(f"b{seed}", config(seed=seed, algo__client_lr=0.1), rows(2.0))
    best = best_points(table(load_records(".")))
    assert best["algo.client_lr"].tolist() == [0.1]
    assert best["status"].tolist() == ["done"]


def test_an_algorithm_that_only_diverged_says_so():
    record("a", config("fedavg"), status="diverged")
    record("b", config("fedmid"), status="failed", reason="no")
    record("c")
    frame = table(load_records("."))
    best = best_points(frame).set_index("algo")
    assert best["status"].to_dict() == {"fedavg": "diverged", "fedmid": "failed", "feddualavg": "done"}
    assert best["seeds"].to_dict() == {"fedavg": 0, "fedmid": 0, "feddualavg": 1}
    assert best["metric"].isna().to_dict() == {"fedavg": True, "fedmid": True, "feddualavg": False}
    text, _ = shown(show, frame, None)
    assert "diverged" in text.split("fedavg")[1].split("\n")[0]


def test_each_data_set_has_its_best():
    record("a", config(data="lasso"))
    record("b", config(data="lasso_8"))
    assert best_points(table(load_records(".")))["data"].tolist() == ["lasso", "lasso_8"]


def test_metrics_that_cannot_be_judged_by():
    frame = table(grid("s"))
    with pytest.raises(UserError, match=r"metric=objektive was not measured: did you mean 'objective'\?"):
        best_points(frame, "objektive")
    with pytest.raises(UserError, match=r"metric=density is better in no direction; choose one of objective"):
        best_points(frame, "density")
    with pytest.raises(UserError, match="val_accuracy was not measured"):
        best_points(frame, "val_accuracy")


def test_metrics_of_a_users_own_are_columns():
    frame = table([record("a", table=rows(groups=3.0))])
    assert frame["tail_groups"][0] == 3.0
    with pytest.raises(UserError, match="no direction"):
        best_points(frame, "groups")


# ---------------------------------------------------------------- what is shown and written


def test_show_names_tail_cutoff_and_band():
    text, _ = shown(show, table(grid("s")), None)
    for part in ("10-90 % over", "3 seeds", "last 20", ">0.0001", "best by f1", "cutoff=0.0001", "median over seeds"):
        assert part in text
    lines = [line.split() for line in text.splitlines() if line.startswith("fed")]
    assert [line[:3] for line in lines] == [["feddualavg", "0.2", "1"], ["fedmid", "0.2", "1"]]
    assert [line[-2:] for line in lines] == [["12", "6"], ["12", "6"]]  # done, diverged
    one, _ = shown(show, table(grid("t", seeds=(0,))), "objective")
    assert "seeds" not in one


def test_report_writes_and_says(tmp_path):
    there = grid("s")
    failed = record("s/failed-1234", config(), status="interrupted", reason="ValueError: [odd] name")
    text, written = shown(report, Path("s"), load_records("s"), None, None)
    assert [path.name for path in written] == ["results.csv", "rates.png", "best.png", "structure.png"]
    assert all(path.exists() for path in written)
    assert "interrupted: failed-1234: ValueError: [odd] name" in text
    found = list(csv.DictReader(io.StringIO((tmp_path / "s" / "results.csv").read_text())))
    assert len(found) == len(there) + 1
    mine = next(row for row in found if row["folder"] == there[0].folder.name)
    assert float(mine["tail_f1"]) == there[0].summary["tail"]["f1"]  # all digits
    assert mine["rounds"] == "40"
    assert failed.folder.exists()
    assert not list(Path("s").glob(".*"))


@pytest.mark.parametrize("status", ["failed", "interrupted", "diverged"])
def test_report_without_a_finished_run(status):
    record("s/a", status=status, reason="so")
    text, written = shown(report, Path("s"), load_records("s"), None, 10)
    assert written[0].name == "results.csv"
    assert status in text
    text, written = shown(report, Path("t"), [], None, None)
    assert [path.name for path in written] == ["results.csv"]


def test_report_of_real_runs():
    config = small("rounds=6")
    there = run_grid(
        fcorun.grid(config, {"algo.client_lr": [0.001, 0.002, 1e6], "seed": [0, 1]}), [f"s/{i}" for i in range(6)]
    )
    text, written = shown(report, Path("s"), there, None, 4)
    frame = table(there, 4)
    assert keys(frame) == ["seed", "algo.client_lr"]
    assert set(frame["status"][frame["algo.client_lr"] == 1e6]) == {"diverged"}
    for i, one in enumerate(there):
        metrics = one.metrics
        if frame["status"][i] == "diverged":
            assert np.isnan(frame["tail_f1"][i])
            continue
        assert frame["tail_f1"][i] == pytest.approx(metrics["f1"][metrics["round"] > metrics["round"].max() - 4].mean())
    assert {path.name for path in written} == {"results.csv", "rates.png", "best.png", "structure.png"}
    assert "last 4" in text
    assert json.loads((there[0].folder / "status.json").read_text())["status"] == "done"


def test_runs_of_different_length_are_told_apart():
    records = [run(small(f"rounds={n}"), f"r/{n}") for n in (2, 4)]
    frame = table(records)
    assert frame["rounds"].tolist() == frame["rounds_done"].tolist() == [2, 4]
    assert len(best_points(frame)) == 1


def test_a_sweep_refuses_a_folder_with_results_of_somebody_else(capsys):
    Path("s").mkdir()
    Path("s/results.csv").write_text("mine")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["fcorun", "-m", *SMALL, "algo.client_lr=1e-3,2e-3", "hydra.sweep.dir=s"])
        with pytest.raises(SystemExit) as stop:
            cli.main()
    assert stop.value.code == 2
    assert "results.csv" in capsys.readouterr().err
    assert Path("s/results.csv").read_text() == "mine"
