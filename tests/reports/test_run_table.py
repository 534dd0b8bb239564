"""Tables of records: what varies, seeds folded, and the best point."""

import io
import json
import time
from pathlib import Path

import numpy as np
import pytest
from fake_records import (
    DEVIANCE,
    captured_output,
    fake_config,
    fake_deviances,
    fake_grid,
    fake_record,
    fake_rows,
    show_best_points,
)
from helpers import not_none, small
from rich.console import Console

from fcorun import UserError, load_records
from fcorun.base.metrics import aggregate
from fcorun.base.records.record import Record, RunFolder
from fcorun.experiment.build import load_data
from fcorun.experiment.prepare import prepare
from fcorun.reports.build_table import build_table, sort_records
from fcorun.reports.sweep_report import build_best_table, write_sweep_report
from fcorun.runs.finish import summarize
from fcorun.runs.job import Job


def test_columns_and_their_order():
    runs = build_table(fake_grid("s"))
    names = list(runs.frame)
    assert names[:8] == ["folder", "algo", "data", "seed", "algo.client_lr", "algo.server_lr", "status", "reason"]
    assert names[8:15] == ["drawn", "falling", "above", "certified", "rounds", "final_objective", "final_train_loss"]
    assert names[-5:] == ["seconds", "bytes_up", "bytes_down", "grad_evals", "prox_evals"]
    assert [n for n in names if n.startswith("tail_")] == [
        *("tail_objective", "tail_train_loss", "tail_val_loss", "tail_support_f1", "tail_density"),
    ]
    assert "best_density" not in names  # better in no direction
    assert runs.varied_keys == ["seed", "algo.client_lr", "algo.server_lr"]
    assert str(runs.frame["seed"].dtype) == "Int64"
    assert runs.varied_by_algo == {name: ["algo.client_lr", "algo.server_lr"] for name in ("feddualavg", "fedmid")}
    assert (runs.tail_rounds, runs.cutoff, runs.titles) == (20, 1e-4, {})


def test_what_only_labels_or_shows_is_no_key():
    a, b = fake_config(verbose=True, tail_rounds=5), fake_config("fedmid", verbose=False, reg__name="l2")
    assert build_table([fake_record("a", a), fake_record("b", b)]).varied_keys == ["reg"]
    assert build_table([fake_record("c", fake_config()), fake_record("d", fake_config())]).varied_keys == []


def test_keys_that_an_algorithm_does_not_have_are_empty():
    a, b, c = fake_config(), fake_config(algo__client_lr=0.2), fake_config("centralized")
    c["algo"] = {"name": "centralized", "class": "x", "tolerance": 1e-9}
    runs = build_table([fake_record("a", a), fake_record("b", b), fake_record("c", c)])
    assert runs.varied_keys == ["algo.client_lr"]
    assert runs.frame["algo.client_lr"].isna().tolist() == [False, False, True]


def test_plugins_of_different_code_are_no_seeds_of_one_another():
    for seed, digest in enumerate(["1234567890", "1234567890", "abcdefabcd"]):
        config = fake_config(seed=seed, algo__class="mine.Mine", algo__name="mine")
        path = fake_record(f"s/{seed}", config).folder / "plugins" / "index.json"
        path.parent.mkdir()
        path.write_text(json.dumps({"algo": {"class": "mine.Mine", "digest": digest}}))
    for seed, reg in enumerate(["l1.L1", "l2.L2"]):
        fake_record(f"t/{seed}", fake_config(seed=seed, reg__class=f"fcorun.methods.regularizers.{reg}"))
    runs = build_table(load_records("s"))
    assert runs.frame["algo"].tolist() == ["mine (12345678)", "mine (12345678)", "mine (abcdefab)"]
    assert runs.fold_seeds("val_loss")["seeds"].tolist() == [2, 1]
    assert build_table(load_records("t")).frame["reg"].tolist() == ["l1 (L1)", "l1 (L2)"]


def test_null_and_lists_are_values():
    runs = build_table([fake_record("a", fake_config()), fake_record("b", fake_config(batch_size=10))])
    assert runs.varied_keys == ["batch_size"]
    runs = build_table(
        [fake_record("c", fake_config(data__columns=[1, 2])), fake_record("d", fake_config(data__columns=[1]))]
    )
    assert runs.frame["data.columns"].tolist() == ["[1, 2]", "[1]"]


@pytest.mark.parametrize("seed", [2**53, 2**63, 10**400])
def test_large_seeds_keep_all_digits(seed):
    config = fake_config("fedmid")
    del config["data"]["seed"]
    records = [fake_record(str(k), fake_config(data__seed=seed + k)) for k in (1, 0)]
    frame = build_table(sort_records([*records, fake_record("2", config)], [])).frame
    assert [int(value) for value in frame["data.seed"][frame["algo"] == "feddualavg"]] == [seed, seed + 1]


def test_true_is_not_one():
    assert build_table(
        [fake_record("a", fake_config(reference=True)), fake_record("b", fake_config(reference=1))]
    ).varied_keys == ["reference"]


def test_the_tail_is_the_summarys_or_computed_again():
    records = [fake_record("a", table=fake_rows(2.0))]
    assert build_table(records).frame["tail_objective"][0] == records[0].summary["tail"]["objective"]
    again = build_table(records, 40)
    expected = aggregate(fake_rows(2.0), 40)["tail"]["objective"]
    assert again.frame["tail_objective"][0] == expected != build_table(records).frame["tail_objective"][0]
    assert again.tail_rounds == 40
    fake_record("b", tail_rounds=10)
    assert build_table(load_records(".")).frame["tail_objective"].notna().all()
    assert build_table(load_records(".")).tail_rounds is None


@pytest.mark.slow
def test_counters_are_whole_numbers_and_may_lack():
    records = [fake_record("a", table=fake_rows(grads=1_000_001)), fake_record("b", fake_config("fedmid"), fake_rows())]
    runs = build_table(records, 40)
    assert runs.frame["grad_evals"][0] == 40_000_040
    assert runs.frame["prox_evals"][0] == 440
    assert runs.frame[["grad_evals", "prox_evals"]].isna().to_numpy().tolist() == [[False] * 2, [True] * 2]
    assert not [name for name in runs.frame if "grad" in name and name.startswith(("final", "best", "tail"))]
    assert records[0].metrics["grad_evals"].tolist() == [r * 1_000_001 for r in range(0, 41, 10)]
    assert list(records[1].metrics)[3:5] == ["bytes_down", "objective"]
    assert write_sweep_report(Path("s"), records, console=Console(file=io.StringIO()))
    text = Path("s/results.csv").read_text()
    assert text.splitlines()[1].endswith(f",320,320,{40_000_040},440")
    assert text.splitlines()[2].endswith(",320,320,,")


@pytest.mark.parametrize(("grads", "expected"), [(5, [320, 320, 200, 440]), (None, [320, 320, None, None])])
def test_summaries_hold_the_counters(grads, expected):
    experiment = prepare(small())
    job = Job(experiment, RunFolder(Path("a"), ""), rows=fake_rows(grads=grads))
    summary = summarize(job, load_data(experiment), "done", {})
    assert [summary[name] for name in ("bytes_up", "bytes_down", "grad_evals", "prox_evals")] == expected


def test_rows_are_read_for_another_tail_only(monkeypatch):
    seen, rows = [], not_none(Record.rows.fget)

    def read(self):
        seen.append(self.folder)
        return rows(self)

    monkeypatch.setattr(Record, "rows", property(read))
    records = fake_grid("s", seeds=(0,))
    build_table(records, 20)
    assert not seen
    build_table(records, 10)
    assert sorted(seen) == sorted(r.folder for r in records)


def test_unfinished_records_have_a_row():
    done = fake_record("done")
    failed = fake_record("failed", status="failed", reason="ValueError: no")
    (failed.folder / "config.yaml").unlink()
    fake_record("stopped", fake_config("fedmid"), status="interrupted", reason="stopped after round 3")
    (fake_record("broken").folder / "status.json").write_text("{")
    (fake_record("torn").folder / "summary.json").write_text("")
    frame = build_table(load_records(".")).frame.set_index("folder")
    assert frame["status"].to_dict() == {
        **{"broken": "unknown", "done": "done", "failed": "failed"},
        **{"stopped": "interrupted", "torn": "done"},
    }
    assert frame["algo"].to_dict()["failed"] == "feddualavg"  # from the label
    assert frame["reason"]["failed"] == "ValueError: no"
    assert np.isnan(frame["tail_support_f1"]["stopped"])
    assert np.isnan(frame["tail_support_f1"]["torn"])
    assert frame["rounds"]["done"] == done.summary["round"]


def test_folders_are_relative_to_the_root():
    records = fake_grid("deep/s", algos=("fedmid",), seeds=(0,))
    assert build_table(records).frame["folder"][0].startswith("deep/s/fedmid")
    assert build_table(records, root=Path("deep/s")).frame["folder"][0].startswith("fedmid")


def test_nothing_is_a_table():
    assert list(build_table([]).frame)[:3] == ["folder", "algo", "data"]


@pytest.mark.slow
def test_a_sweep_is_read_fast():
    records = fake_grid(
        "s", client=(0.1, 0.12, 0.14, 0.2, 0.22, 0.24, 0.3), server=(0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0), seeds=(0,)
    )
    build_table(records[:1])
    begun = time.process_time()  # which other processes do not lengthen
    build_table(records, 10)
    assert time.process_time() - begun < 2  # 98 records; 0.1 seconds


def test_points_fold_seeds():
    runs = build_table(fake_grid("s"))
    folded = runs.fold_seeds("support_f1")
    assert len(folded) == 12
    one = folded.iloc[2]
    assert (one["algo.client_lr"], one["algo.server_lr"], one["seeds"], one["status"]) == (0.2, 0.3, 3, "done")
    tails = runs.frame["tail_support_f1"][one["rows"]]
    assert one["metric"] == tails.median()
    assert [one["low"], one["high"]] == [tails.min(), tails.max()]  # of three seeds
    assert one["density"] == runs.frame["tail_density"][one["rows"]].median()


@pytest.mark.parametrize("metric", [None, "support_f1", "objective", "val_loss"])
def test_the_best_point_of_each_algorithm(metric):
    best = build_table(fake_grid("s")).best_points(metric)
    assert best["algo"].tolist() == ["feddualavg", "fedmid"]
    assert best["algo.client_lr"].tolist() == [0.2, 0.2]
    assert best["algo.server_lr"].tolist() == [1.0, 1.0]
    assert best["seeds"].tolist() == [3, 3]


@pytest.mark.parametrize(("key", "kind"), [("seed", "data"), ("split_seed", "splits")])
def test_seeds_of_data_and_of_splits_are_seeds(key, kind):
    for seed in range(3):
        config = fake_config(seed=seed)
        config["data"][key] = seed
        fake_record(f"r{seed}", config, fake_rows(1 + seed))
    runs = build_table(load_records("."))
    assert runs.best_points("objective")["seeds"].tolist() == [3]
    assert runs.seed_kind == f"seeds of {kind}"
    assert runs.data_keys == ["data"]


def test_a_point_that_diverged_with_a_seed_is_not_best():
    fake_record("a0", fake_config(seed=0, algo__client_lr=0.5), fake_rows(0.1))
    fake_record("a1", fake_config(seed=1, algo__client_lr=0.5), fake_rows(0.1), status="diverged")
    for seed in (0, 1):
        fake_record(f"b{seed}", fake_config(seed=seed, algo__client_lr=0.1), fake_rows(2.0))
    best = build_table(load_records(".")).best_points()
    assert best["algo.client_lr"].tolist() == [0.1]
    assert best["status"].tolist() == ["done"]


def test_of_tied_points_the_lowest_objective_wins_whatever_seeds_have_failed():
    for rate, level in ((0.1, 2.0), (0.5, 1.0)):
        for seed in (0, 1):
            rows = [row | {"support_f1": 0.5} for row in fake_rows(level)]
            fake_record(f"{rate}-{seed}", fake_config(seed=seed, algo__client_lr=rate), rows)
    fake_record("failed", fake_config(seed=2, algo__client_lr=0.1), [], status="failed")
    best = build_table(load_records(".")).best_points("support_f1")
    assert best["algo.client_lr"].tolist() == [0.5]


def test_an_algorithm_that_only_diverged_says_so():
    fake_record("a", fake_config("fedavg"), status="diverged")
    fake_record("b", fake_config("fedmid"), status="failed", reason="no")
    fake_record("c")
    runs = build_table(load_records("."))
    best = runs.best_points().set_index("algo")
    assert best["status"].to_dict() == {"fedavg": "diverged", "fedmid": "failed", "feddualavg": "done"}
    assert best["seeds"].to_dict() == {"fedavg": 0, "fedmid": 0, "feddualavg": 1}
    assert best["metric"].isna().to_dict() == {"fedavg": True, "fedmid": True, "feddualavg": False}
    text, _ = captured_output(show_best_points, runs, None)
    assert "diverged" in text.split("fedavg")[1].split("\n")[0]


def test_each_data_set_has_its_best():
    fake_record("a", fake_config(data="lasso"))
    fake_record("b", fake_config(data="lasso_8"))
    assert build_table(load_records(".")).best_points()["data"].tolist() == ["lasso", "lasso_8"]


def test_metrics_that_cannot_be_judged_by():
    runs = build_table(fake_grid("s"))
    with pytest.raises(UserError, match=r"metric=objektive was not measured: did you mean 'objective'\?"):
        runs.best_points("objektive")
    with pytest.raises(
        UserError, match=r"metric=density has no better direction, higher or lower; choose one of objective"
    ):
        runs.best_points("density")
    with pytest.raises(UserError, match="val_accuracy was not measured"):
        runs.best_points("val_accuracy")


def test_figures_of_a_users_own_are_columns():
    runs = build_table([fake_record("a", table=fake_rows(groups=3.0))])
    assert runs.frame["tail_groups"][0] == 3.0
    with pytest.raises(UserError, match="no better direction"):
        runs.best_points("groups")


@pytest.mark.slow
def test_a_metric_of_a_users_objective_judges():
    fake_deviances("s")
    runs = build_table(load_records("s"))
    assert runs.resolve_metric(None) == "support_f1"
    assert runs.frame["best_val_deviance"].tolist() == runs.frame["final_val_deviance"].tolist()
    assert runs.best_points("val_deviance")["algo.client_lr"].tolist() == [0.4]
    assert runs.best_points()["algo.client_lr"].tolist() == [0.1]
    assert build_table(load_records("s"), 40).tail_values("val_deviance").argmin() == 2
    assert runs.axis_label("val_deviance") == "validation deviance"
    text, written = captured_output(write_sweep_report, Path("s"), load_records("s"), metric="val_deviance")
    assert "best by val_deviance: mean over the last 20 rounds" in text
    assert len(written) == 4
    with pytest.raises(UserError, match=r"metric=val_devianse was not measured: did you mean 'val_deviance'"):
        runs.best_points("val_devianse")


def test_a_ridge_is_in_no_loss():
    for ridge in (0.0, 0.1):
        fake_record(
            f"a{ridge}", fake_config(objective={"name": "logistic", "ridge": ridge, "delta": 1.0}), fake_rows(1 + ridge)
        )
    runs = build_table(load_records("."))
    assert [len(runs.best_points(metric)) for metric in ("val_loss", "support_f1", "objective")] == [1, 1, 2]


@pytest.mark.parametrize("metric", ["train_loss", "val_loss", "personal_val_loss", "personal_val_loss_q90",
                                    "objective", "suboptimality", "val_deviance"])  # fmt: skip
def test_losses_of_two_objectives_do_not_compare(metric):
    for delta in (1.0, 2.0):
        settings = fake_config(objective={"name": "huber", "delta": delta})
        fake_record(f"a{delta}", settings, [row | {metric: delta} for row in fake_rows(delta)], metrics=[DEVIANCE])
    runs = build_table(load_records("."))
    assert len(runs.best_points(metric)) == 2
    assert runs.problem_keys("val_accuracy") == ["data"]
    text, _ = captured_output(show_best_points, runs, metric)
    assert f"points are compared within one objective.delta only: {metric} is another function for each" in " ".join(
        text.split()
    )


def test_an_optimum_that_one_run_tells_is_that_of_all_on_its_problem(tmp_path):
    """A run is above the optimum if a baseline or another run on the same problem tells the optimum."""

    def certified(folder, certificate):
        file = tmp_path / folder / "summary.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"certificate": certificate}))

    levels = {"near": 1.0, "far": 1.5, "close": 1.005}
    for name, level in levels.items():
        fake_record(f"s/{name}", fake_config(algo__client_lr=level), fake_rows(level))
    fake_record("s/other", fake_config(data="lasso_8"), fake_rows(7.0))  # of another problem
    fake_record("s/bad", fake_config(algo__client_lr=3.0), fake_rows(9.0), status="diverged")
    fake_record("s/own", fake_config("pfedme"), [row | {"personal_train_loss": 0.5} for row in fake_rows(2.0)])
    certified("s/near", {"near": True, "above": 0.0, "certified": True})
    for known in ({"near": True, "above": 0.0}, {"certified": True}):  # an algorithm's, a baseline's
        certified("s/near", known)
        above = dict(zip(*(build_table(load_records("s")).frame[key] for key in ("folder", "above")), strict=True))
        assert {Path(name).name for name, share in above.items() if share == share} == {"far"}
        assert above[str(Path("s/far"))] == pytest.approx(0.5)
    certified("s/near", {"near": False, "above": 3.0})  # the optimum may be 0.25 or -0.5
    assert build_table(load_records("s")).frame.set_index("folder")["above"].drop(str(Path("s/near"))).isna().all()
    certified("s/near", {"certified": False})
    assert build_table(load_records("s")).frame["above"].isna().all()


def test_the_optimum_of_one_client_is_not_that_of_all():
    settings = fake_config("one_client")
    settings["algo"] = {"name": "one_client", "class": "fcorun.OneClient", "client": 0}
    for folder, config, level in (("s/one", settings, 1.0), ("s/far", fake_config(), 1.5)):
        file = fake_record(folder, config, fake_rows(level)).folder / "summary.json"
        if folder == "s/one":
            file.write_text(json.dumps(json.loads(file.read_text()) | {"certificate": {"certified": True}}))
    assert build_table(load_records("s")).frame["above"].isna().all()


def test_runs_on_rows_that_changed_do_not_compare():
    """A file that was edited has other rows under the same options: its runs are on another problem."""
    records = fake_grid("s")
    for k, record in enumerate(records):
        path = record.folder / "summary.json"
        summary = json.loads(path.read_text())
        path.write_text(json.dumps(summary | {"data": {"fingerprint": f"{k % 2:08}00000000"}}))
    runs = build_table([Record(record.folder) for record in records])
    name = records[0].flat_config["data.name"]
    assert sorted(runs.renamed_data) == [f"{name} (0000000{k})" for k in (0, 1)]
    assert "data" in runs.problem_keys("objective")
    _, notes = build_best_table(runs, "objective")
    assert any("the rows or the code of these data changed between runs" in note for note in notes)
