"""Tables of records: what varies, seeds folded, and the best point."""

import io
import json
import time
from pathlib import Path

import numpy as np
import pytest
from fabricate import OWN, config, deviances, grid, record, rows, show, shown
from helpers import given, small
from rich.console import Console

from fcorun import UserError, load_records
from fcorun.experiment.build import load
from fcorun.experiment.prepare import prepare
from fcorun.metrics import aggregate
from fcorun.records.folder import RunFolder
from fcorun.records.record import Record
from fcorun.reports.collect import table
from fcorun.reports.results import report
from fcorun.runs.job import Job
from fcorun.runs.summary import summarize


def test_columns_and_their_order():
    runs = table(grid("s"))
    names = list(runs.frame)
    assert names[:8] == ["folder", "algo", "data", "seed", "algo.client_lr", "algo.server_lr", "status", "reason"]
    assert names[8:15] == ["drawn", "falling", "above", "certified", "rounds", "final_objective", "final_train_loss"]
    assert names[-5:] == ["seconds", "bytes_up", "bytes_down", "grad_evals", "prox_evals"]
    assert [n for n in names if n.startswith("tail_")] == [
        *("tail_objective", "tail_train_loss", "tail_val_loss", "tail_support_f1", "tail_density"),
    ]
    assert "best_density" not in names  # better in no direction
    assert runs.keys == ["seed", "algo.client_lr", "algo.server_lr"]
    assert str(runs.frame["seed"].dtype) == "Int64"
    assert runs.varied == {name: ["algo.client_lr", "algo.server_lr"] for name in ("feddualavg", "fedmid")}
    assert (runs.tail_rounds, runs.cutoff, runs.titles) == (20, 1e-4, {})


def test_what_only_labels_or_shows_is_no_key():
    a, b = config(verbose=True, tail_rounds=5), config("fedmid", verbose=False, reg__name="l2")
    assert table([record("a", a), record("b", b)]).keys == ["reg"]
    assert table([record("c", config()), record("d", config())]).keys == []


def test_keys_that_an_algorithm_does_not_have_are_empty():
    a, b, c = config(), config(algo__client_lr=0.2), config("centralized")
    c["algo"] = {"name": "centralized", "class": "x", "tolerance": 1e-9}
    runs = table([record("a", a), record("b", b), record("c", c)])
    assert runs.keys == ["algo.client_lr"]
    assert runs.frame["algo.client_lr"].isna().tolist() == [False, False, True]


def test_plugins_of_different_code_are_no_seeds_of_one_another():
    for seed, digest in enumerate(["1234567890", "1234567890", "abcdefabcd"]):
        own = config(seed=seed, algo__class="mine.Mine", algo__name="mine")
        path = record(f"s/{seed}", own).folder / "plugins" / "index.json"
        path.parent.mkdir()
        path.write_text(json.dumps({"algo": {"class": "mine.Mine", "digest": digest}}))
    for seed, reg in enumerate(["l1.L1", "l2.L2"]):
        record(f"t/{seed}", config(seed=seed, reg__class=f"fcorun.regularizers.{reg}"))
    runs = table(load_records("s"))
    assert runs.frame["algo"].tolist() == ["mine (12345678)", "mine (12345678)", "mine (abcdefab)"]
    assert runs.points("val_loss")["seeds"].tolist() == [2, 1]
    assert table(load_records("t")).frame["reg"].tolist() == ["l1 (L1)", "l1 (L2)"]


def test_null_and_lists_are_values():
    runs = table([record("a", config()), record("b", config(batch_size=10))])
    assert runs.keys == ["batch_size"]
    runs = table([record("c", config(data__columns=[1, 2])), record("d", config(data__columns=[1]))])
    assert runs.frame["data.columns"].tolist() == ["[1, 2]", "[1]"]


def test_true_is_not_one():
    assert table([record("a", config(reference=True)), record("b", config(reference=1))]).keys == ["reference"]


def test_the_tail_is_the_summarys_or_computed_again():
    there = [record("a", table=rows(2.0))]
    assert table(there).frame["tail_objective"][0] == there[0].summary["tail"]["objective"]
    again = table(there, 40)
    told = aggregate(rows(2.0), 40)["tail"]["objective"]
    assert again.frame["tail_objective"][0] == told != table(there).frame["tail_objective"][0]
    assert again.tail_rounds == 40
    record("b", tail_rounds=10)
    assert table(load_records(".")).frame["tail_objective"].notna().all()
    assert table(load_records(".")).tail_rounds is None


def test_counters_are_whole_numbers_and_may_lack():
    there = [record("a", table=rows(grads=1_000_001)), record("b", config("fedmid"), rows())]
    runs = table(there, 40)
    assert runs.frame["grad_evals"][0] == 40_000_040
    assert runs.frame["prox_evals"][0] == 440
    assert runs.frame[["grad_evals", "prox_evals"]].isna().to_numpy().tolist() == [[False] * 2, [True] * 2]
    assert not [name for name in runs.frame if "grad" in name and name.startswith(("final", "best", "tail"))]
    assert there[0].metrics["grad_evals"].tolist() == [r * 1_000_001 for r in range(0, 41, 10)]
    assert list(there[1].metrics)[3:5] == ["bytes_down", "objective"]
    assert report(Path("s"), there, console=Console(file=io.StringIO()))
    text = Path("s/results.csv").read_text()
    assert text.splitlines()[1].endswith(f",320,320,{40_000_040},440")
    assert text.splitlines()[2].endswith(",320,320,,")


@pytest.mark.parametrize(("grads", "told"), [(5, [320, 320, 200, 440]), (None, [320, 320, None, None])])
def test_summaries_hold_the_counters(grads, told):
    experiment = prepare(small())
    job = Job(experiment, RunFolder(Path("a"), ""), rows=rows(grads=grads))
    summary = summarize(job, load(experiment), "done", {})
    assert [summary[name] for name in ("bytes_up", "bytes_down", "grad_evals", "prox_evals")] == told


def test_rows_are_read_for_another_tail_only(monkeypatch):
    seen, rows = [], given(Record.rows.fget)

    def read(self):
        seen.append(self.folder)
        return rows(self)

    monkeypatch.setattr(Record, "rows", property(read))
    there = grid("s", seeds=(0,))
    table(there, 20)
    assert not seen
    table(there, 10)
    assert sorted(seen) == sorted(r.folder for r in there)


def test_unfinished_records_have_a_row():
    done = record("done")
    failed = record("failed", status="failed", reason="ValueError: no")
    (failed.folder / "config.yaml").unlink()
    record("stopped", config("fedmid"), status="interrupted", reason="stopped after round 3")
    (record("broken").folder / "status.json").write_text("{")
    (record("torn").folder / "summary.json").write_text("")
    frame = table(load_records(".")).frame.set_index("folder")
    assert frame["status"].to_dict() == {
        **{"broken": "unknown", "done": "done", "failed": "failed"},
        **{"stopped": "interrupted", "torn": "done"},
    }
    assert frame["algo"].to_dict()["failed"] == "feddualavg"  # from the label
    assert frame["reason"]["failed"] == "ValueError: no"
    assert np.isnan(frame["tail_support_f1"]["stopped"])
    assert np.isnan(frame["tail_support_f1"]["torn"])
    assert frame["rounds"]["done"] == done.summary["round"]


def test_folders_are_relative_where_asked():
    there = grid("deep/s", algos=("fedmid",), seeds=(0,))
    assert table(there).frame["folder"][0].startswith("deep/s/fedmid")
    assert table(there, root=Path("deep/s")).frame["folder"][0].startswith("fedmid")


def test_nothing_is_a_table():
    assert list(table([]).frame)[:3] == ["folder", "algo", "data"]


def test_a_sweep_is_read_fast():
    there = grid(
        "s", client=(0.1, 0.12, 0.14, 0.2, 0.22, 0.24, 0.3), server=(0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0), seeds=(0,)
    )
    table(there[:1])
    begun = time.perf_counter()
    table(there, 10)
    assert time.perf_counter() - begun < 2  # 98 records; 0.1 seconds where nothing else runs


def test_points_fold_seeds():
    runs = table(grid("s"))
    folded = runs.points("support_f1")
    assert len(folded) == 12
    one = folded.iloc[2]
    assert (one["algo.client_lr"], one["algo.server_lr"], one["seeds"], one["status"]) == (0.2, 0.3, 3, "done")
    tails = runs.frame["tail_support_f1"][one["rows"]]
    assert one["metric"] == tails.median()
    assert [one["low"], one["high"]] == [tails.min(), tails.max()]  # of three seeds
    assert one["density"] == runs.frame["tail_density"][one["rows"]].median()


@pytest.mark.parametrize("metric", [None, "support_f1", "objective", "val_loss"])
def test_the_best_point_of_each_algorithm(metric):
    best = table(grid("s")).best(metric)
    assert best["algo"].tolist() == ["feddualavg", "fedmid"]
    assert best["algo.client_lr"].tolist() == [0.2, 0.2]
    assert best["algo.server_lr"].tolist() == [1.0, 1.0]
    assert best["seeds"].tolist() == [3, 3]


def test_data_seeds_are_seeds():
    for seed in range(3):
        record(f"r{seed}", config(data__seed=seed), rows(1 + seed))
    best = table(load_records(".")).best("objective")
    assert best["seeds"].tolist() == [3]


def test_a_point_that_diverged_with_a_seed_is_not_best():
    record("a0", config(seed=0, algo__client_lr=0.5), rows(0.1))
    record("a1", config(seed=1, algo__client_lr=0.5), rows(0.1), status="diverged")
    for seed in (0, 1):
        record(f"b{seed}", config(seed=seed, algo__client_lr=0.1), rows(2.0))
    best = table(load_records(".")).best()
    assert best["algo.client_lr"].tolist() == [0.1]
    assert best["status"].tolist() == ["done"]


def test_an_algorithm_that_only_diverged_says_so():
    record("a", config("fedavg"), status="diverged")
    record("b", config("fedmid"), status="failed", reason="no")
    record("c")
    runs = table(load_records("."))
    best = runs.best().set_index("algo")
    assert best["status"].to_dict() == {"fedavg": "diverged", "fedmid": "failed", "feddualavg": "done"}
    assert best["seeds"].to_dict() == {"fedavg": 0, "fedmid": 0, "feddualavg": 1}
    assert best["metric"].isna().to_dict() == {"fedavg": True, "fedmid": True, "feddualavg": False}
    text, _ = shown(show, runs, None)
    assert "diverged" in text.split("fedavg")[1].split("\n")[0]


def test_each_data_set_has_its_best():
    record("a", config(data="lasso"))
    record("b", config(data="lasso_8"))
    assert table(load_records(".")).best()["data"].tolist() == ["lasso", "lasso_8"]


def test_metrics_that_cannot_be_judged_by():
    runs = table(grid("s"))
    with pytest.raises(UserError, match=r"metric=objektive was not measured: did you mean 'objective'\?"):
        runs.best("objektive")
    with pytest.raises(UserError, match=r"metric=density is better in no direction; choose one of objective"):
        runs.best("density")
    with pytest.raises(UserError, match="val_accuracy was not measured"):
        runs.best("val_accuracy")


def test_figures_of_a_users_own_are_columns():
    runs = table([record("a", table=rows(groups=3.0))])
    assert runs.frame["tail_groups"][0] == 3.0
    with pytest.raises(UserError, match="no direction"):
        runs.best("groups")


def test_a_metric_may_be_asked_for_by_the_name_it_had():
    grid("s")
    runs = table(load_records("s"))
    assert runs.chosen("f1") == "support_f1"
    assert runs.chosen("support_f1") == "support_f1"


def test_a_metric_of_a_users_objective_judges():
    deviances("s")
    runs = table(load_records("s"))
    assert runs.chosen(None) == "support_f1"
    assert runs.frame["best_val_deviance"].tolist() == runs.frame["final_val_deviance"].tolist()
    assert runs.best("val_deviance")["algo.client_lr"].tolist() == [0.4]
    assert runs.best()["algo.client_lr"].tolist() == [0.1]
    assert table(load_records("s"), 40).measured("val_deviance").argmin() == 2
    assert runs.words("val_deviance") == "validation deviance"
    text, written = shown(report, Path("s"), load_records("s"), metric="val_deviance")
    assert "best by val_deviance: mean over the last 20 rounds" in text
    assert len(written) == 4
    with pytest.raises(UserError, match=r"metric=val_devianse was not measured: did you mean 'val_deviance'"):
        runs.best("val_devianse")


def test_a_ridge_is_in_no_loss():
    for ridge in (0.0, 0.1):
        record(f"a{ridge}", config(objective={"name": "logistic", "ridge": ridge, "delta": 1.0}), rows(1 + ridge))
    runs = table(load_records("."))
    assert [len(runs.best(metric)) for metric in ("val_loss", "support_f1", "objective")] == [1, 1, 2]


@pytest.mark.parametrize("metric", ["train_loss", "val_loss", "personal_val_loss", "personal_val_loss_q90",
                                    "objective", "suboptimality", "val_deviance"])  # fmt: skip
def test_losses_of_two_objectives_do_not_compare(metric):
    for delta in (1.0, 2.0):
        settings = config(objective={"name": "huber", "delta": delta})
        record(f"a{delta}", settings, [row | {metric: delta} for row in rows(delta)], metrics=[OWN])
    runs = table(load_records("."))
    assert len(runs.best(metric)) == 2
    assert runs.apart("val_accuracy") == ["data"]
    text, _ = shown(show, runs, metric)
    assert f"points are compared within one objective.delta only: {metric} is another function for each" in " ".join(
        text.split()
    )


def test_an_optimum_that_one_run_tells_is_that_of_all_on_its_problem(tmp_path):
    """A rate of one's own is not above suspicion where the run beside it, or a baseline, says where the optimum is."""

    def certified(folder, certificate):
        file = tmp_path / folder / "summary.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"certificate": certificate}))

    levels = {"near": 1.0, "far": 1.5, "close": 1.005}
    for name, level in levels.items():
        record(f"s/{name}", config(algo__client_lr=level), rows(level))
    record("s/other", config(data="lasso_8"), rows(7.0))  # of another problem
    record("s/bad", config(algo__client_lr=3.0), rows(9.0), status="diverged")
    record("s/own", config("pfedme"), [row | {"personal_train_loss": 0.5} for row in rows(2.0)])
    certified("s/near", {"near": True, "above": 0.0, "certified": True})
    for known in ({"near": True, "above": 0.0}, {"certified": True}):  # an algorithm's, a baseline's
        certified("s/near", known)
        above = dict(zip(*(table(load_records("s")).frame[key] for key in ("folder", "above")), strict=True))
        assert {Path(name).name for name, share in above.items() if share == share} == {"far"}
        assert above[str(Path("s/far"))] == pytest.approx(0.5)
    certified("s/near", {"certified": False})
    assert table(load_records("s")).frame["above"].isna().all()
