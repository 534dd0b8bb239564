"""Means over replicates, their Monte Carlo errors and paired differences; and runs compared at equal bytes."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fake_records import fake_config, fake_record, fake_rows

from fcorun import UserError, load_records
from fcorun.base.metrics import COUNTERS
from fcorun.base.records.record import Record
from fcorun.base.records.sweep_settings import SweepSettings, save_settings
from fcorun.interface.cli.commands import main
from fcorun.reports.build_table import build_table
from fcorun.reports.byte_cap import cap_runs, read_cap
from fcorun.reports.monte_carlo import Estimate, describe_lost, estimate_mean, estimate_methods, estimate_pairs
from fcorun.reports.paired_tests import compare_pairs
from fcorun.reports.run_table import RunTable

COUNT = 12


def replicate(algo: str, seed: int, rate: float = 0.1, status: str = "done", **more) -> None:
    """Write the record of a replicate, whose objective ends at a level that the seed draws."""
    rng = np.random.default_rng([seed, len(algo)])
    level = float(rng.gamma(9.0) + 10 * rate + 0.5 * np.random.default_rng(seed).standard_normal())
    settings = fake_config(algo, seed=seed, data__seed=seed, algo__client_lr=rate, **more)
    fake_record(f"s/{algo}-{rate}-{seed}-{len(more)}", settings, fake_rows(level), status)


@pytest.fixture
def study() -> RunTable:
    """Two methods with two rates each on twelve data sets; fedmid lacks two, and diverged on one at both rates."""
    for rate in (0.1, 0.2):
        for seed in range(COUNT):
            replicate("feddualavg", seed, rate)
        for seed in range(COUNT - 2):
            replicate("fedmid", seed, rate, "diverged" if seed == 3 else "done")
    runs = build_table(load_records("s"), root=Path("s"))
    runs.frame.to_csv("results.csv", index=False)
    return runs


def test_means_errors_and_paired_differences_are_those_of_pandas(study):
    methods = estimate_methods(study, "objective", ["objective", "support_f1"])
    frame = pd.read_csv("results.csv")
    chosen = frame[(frame["algo.client_lr"] == 0.1) & (frame["status"] == "done")]
    for method in methods:
        runs = chosen[chosen["algo"] == method.point["algo"]]
        for name in ("objective", "support_f1"):
            estimate = method.estimates[name]
            assert estimate.mean == pytest.approx(runs[f"tail_{name}"].mean(), rel=1e-12)
            assert estimate.error == pytest.approx(runs[f"tail_{name}"].sem(), rel=1e-12)
        assert method.bytes_up.mean == 2 * 8 * 40  # both rates, also of the run that diverged
    assert [method.estimates["objective"].count for method in methods] == [12, 9]
    (pair,) = estimate_pairs(study, "objective", methods)
    by_seed = chosen.pivot(index="data.seed", columns="algo", values="tail_objective")
    names = [pair.first.point["algo"], pair.second.point["algo"]]
    differences = (by_seed[names[0]] - by_seed[names[1]]).dropna()
    assert pair.difference.mean == pytest.approx(differences.mean(), rel=1e-12)
    assert pair.difference.error == pytest.approx(differences.sem(), rel=1e-12)
    assert pair.difference.count == 9
    assert dict(zip(names, pair.unpaired, strict=True)) == {"feddualavg": 3, "fedmid": 0}


def test_the_best_point_is_that_of_the_best_mean(capsys):
    """The median prefers the rate with one bad replicate; among equal means the point is that of the table."""
    for rate, levels in {0.1: (2.0, 2.0, 2.5), 0.2: (1.0, 1.0, 10.0)}.items():
        for seed, level in enumerate(levels):
            settings = fake_config(seed=seed, algo__client_lr=rate)
            fake_record(f"s/{rate}-{seed}", settings, fake_rows(level, train_loss=1.0))
    runs = build_table(load_records("s"))
    (method,) = estimate_methods(runs, "objective")
    assert runs.best_points("objective")["algo.client_lr"].tolist() == [0.2]
    assert method.point["algo.client_lr"] == 0.1
    assert method.estimates["objective"].mean == pytest.approx(1.25 * 6.5 / 3)
    for metric, count in {"objective": 1, "train_loss": 0}.items():
        assert main(["results", "s", "--errors", "--metric", metric]) == 0
        sentence = "feddualavg: the best point by the mean over replicates, shown above, is not that by the median"
        assert capsys.readouterr().out.count(sentence) == count
    (method,) = estimate_methods(runs, "train_loss")
    assert method.point["algo.client_lr"] == runs.best_points("train_loss")["algo.client_lr"].item() == 0.2


def test_data_without_the_metric_have_means_of_their_own(capsys):
    """A metric that nobody measured on some data is no lost replicate there."""
    for seed in range(3):
        for algo in ("feddualavg", "fedmid"):
            fake_record(f"s/{algo}-{seed}", fake_config(algo, seed=seed), fake_rows(1.0 + seed))
            settings = fake_config(algo, "digits", seed=seed, data__classes=10)
            fake_record(f"s/digits-{algo}-{seed}", settings, fake_rows(1.0, val_accuracy=0.5 + seed / 10))
    assert main(["results", "s", "--errors", "--metric", "val_accuracy"]) == 0
    out = capsys.readouterr().out
    assert "lasso: by " in out
    assert "digits: by val_accuracy\n" in out
    lines = [line.split() for line in out.splitlines() if re.match("feddualavg +[^- ]", line)]
    assert [line[-2:] for line in lines] == 2 * [["3", "320"]]  # replicates, none of them lost
    assert "without a finite value" not in out
    assert "not that by the median" not in out


def test_a_point_with_few_replicates_is_not_best_by_luck(capsys):
    """Points that are complete are compared where a study was stopped, whatever ended the others."""
    for seed in range(8):
        replicate("feddualavg", seed, 0.5)
        replicate("feddualavg", seed, 0.2)  # better in the mean
    for seed, status in enumerate(["done", "done", "done", "interrupted", "failed"]):  # the others never began
        settings = fake_config(seed=seed, data__seed=seed, algo__client_lr=0.1)
        fake_record(f"s/lucky-{seed}", settings, fake_rows(0.01), status)
    runs = build_table(load_records("s"))
    (method,) = estimate_methods(runs, "objective")
    assert method.point["algo.client_lr"] == 0.2
    assert method.estimates["objective"].count == 8
    assert method.lost == {}
    assert runs.best_points("objective")["algo.client_lr"].tolist() == [0.2]
    assert main(["results", "s", "--errors", "--metric", "objective"]) == 0
    note = "points with fewer runs than the best one, among which none is chosen: 1 of feddualavg\n"
    assert note in capsys.readouterr().out


def test_a_diverged_replicate_is_counted_and_named(study, capsys):
    (method,) = [m for m in estimate_methods(study, "objective") if m.point["algo"] == "fedmid"]
    sentence = "fedmid: 1 of 10 replicates diverged (seed=3 data.seed=3): the mean is over the others"
    assert describe_lost(study, method) == [sentence]
    assert main(["results", "s", "--errors", "--metric", "objective"]) == 0
    out = capsys.readouterr().out
    assert f"{sentence}\n" in out
    assert "unpaired: replicates that only the first and only the second algorithm has\n" in out
    (line,) = [line for line in out.splitlines() if line.startswith("fedmid ")]
    assert line.split()[-3:] == ["9", "1", "640"]


def test_a_method_that_diverged_always_has_a_row_without_a_mean(capsys):
    for cohort in (4, 8):
        for seed in range(2):
            for algo in ("feddualavg", "fedmid"):
                status = "diverged" if (algo, cohort) == ("fedmid", 4) else "done"
                settings = fake_config(algo, seed=seed, data__seed=seed, clients_per_round=cohort)
                fake_record(f"s/{algo}-{cohort}-{seed}", settings, fake_rows(1.0 + seed), status)
    save_settings(Path("s"), SweepSettings(metric="objective", conditions=("clients_per_round",)))
    assert main(["results", "s", "--errors"]) == 0
    out = capsys.readouterr().out
    named = "(seed=0 data.seed=0, seed=1 data.seed=1)"
    assert f"fedmid, clients_per_round=4: 2 of 2 replicates diverged {named}: there is no mean\n" in out
    (line,) = [line for line in out.splitlines() if line.split()[:2] == ["4", "fedmid"]]
    assert line.split()[2:] == ["0", "2", "320"]
    assert out.count("fedmid - feddualavg") + out.count("feddualavg - fedmid") == 1


def test_seeds_of_cohorts_on_one_data_set_are_no_replicates_of_the_data():
    """The error of a balanced design is that of the means of the data sets."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal(5)[:, None] + 0.1 * rng.standard_normal((5, 8))
    crossed = {(seed, data): values[data, seed] for data in range(5) for seed in range(8)}
    estimate = estimate_mean(crossed)
    assert estimate.count == 5
    assert estimate.mean == pytest.approx(values.mean())
    assert estimate.error == pytest.approx(values.mean(1).std(ddof=1) / np.sqrt(5))
    one_data_set = estimate_mean({(seed, 7): values[0, seed] for seed in range(8)})
    assert one_data_set == Estimate(pytest.approx(values[0].mean()), pytest.approx(np.nan, nan_ok=True), 1)


@pytest.mark.parametrize("status", ["diverged", "interrupted"])
def test_the_runs_of_one_data_set_that_are_left_are_one_replicate(status):
    """Six cohorts are no six data sets, also where a method has lost all runs of the others."""
    for seed in range(6):
        for data in range(2):
            for algo, level in (("feddualavg", 1.0), ("fedmid", 2.0)):
                end = status if (algo, data) == ("fedmid", 1) else "done"
                settings = fake_config(algo, seed=seed, data__seed=data)
                fake_record(f"s/{algo}-{seed}-{data}", settings, fake_rows(level + 0.1 * seed**2), end)
        fake_record(f"s/other-{seed}", fake_config(data="other", seed=seed), fake_rows(1.0 + seed))
    runs = build_table(load_records("s"))
    methods = {(m.point["data"], m.point["algo"]): m for m in estimate_methods(runs, "objective")}
    counts = {key: method.estimates["objective"].count for key, method in methods.items()}
    # data whose seed does not vary repeat by cohorts
    assert counts == {("lasso", "feddualavg"): 2, ("lasso", "fedmid"): 1, ("other", "feddualavg"): 6}
    (pair,) = estimate_pairs(runs, "objective", [*methods.values()])
    assert pair.difference == Estimate(pytest.approx(-1.25), pytest.approx(np.nan, nan_ok=True), 1)
    tests = compare_pairs(runs, "objective")  # a point that diverged is in no pair
    assert [(len(test.differences), test.p_value) for test in tests] == [(1, None)] * (status == "interrupted")
    (sentence,) = describe_lost(runs, methods["lasso", "fedmid"])
    assert f"6 of 12 replicates {status} (seed=0 data.seed=1, " in sentence


def test_a_mean_is_written_to_the_second_digit_of_its_error():
    texts = [
        Estimate(0.81251, 0.0021, 9),
        Estimate(12345.6, 230.0, 9),
        Estimate(1.04, 0.1, 9),
        Estimate(0.5, np.nan, 1),
    ]
    assert [str(estimate) for estimate in texts] == ["0.8125 (0.0021)", "1.235e+04 (2.3e+02)", "1.04 (0.10)", "0.5"]
    assert str(Estimate(1.0, 0.0, 9)) == "1 (0)"
    assert estimate_mean({(seed,): 0.1 + 0.2 for seed in range(7)}).error == 0  # and no rounding of equal values


def test_a_baseline_is_compared_with_every_seed_and_under_every_condition():
    for cohort in (4, 8):
        for seed in range(3):
            settings = fake_config(seed=seed, clients_per_round=cohort)
            fake_record(f"s/{cohort}-{seed}", settings, fake_rows(cohort + seed))
    fake_record("s/b", fake_config("centralized", clients_per_round=4), fake_rows(1.0, silent=True))
    runs = build_table(load_records("s"), conditions=["clients_per_round"])
    pairs = estimate_pairs(runs, "objective", estimate_methods(runs, "objective"))
    assert [pair.problem["clients_per_round"] for pair in pairs] == ["4", "8"]
    assert [pair.unpaired for pair in pairs] == [(0, 0), (0, 0)]
    for pair, cohort in zip(pairs, (4, 8), strict=True):
        assert pair.first.point["algo"] == "centralized"
        assert pair.difference == Estimate(pytest.approx(1 - 1.25 * (cohort + 1)), pytest.approx(1.25 / 3**0.5), 3)


def test_a_cap_counts_the_uploads_of_all_points_and_compares_there():
    """The oracle is the definition: rates at 8 and 24 bytes a round, and a method without a grid at 8."""
    for seed in range(3):
        for algo, rate, size in (("feddualavg", 0.1, 1), ("feddualavg", 0.2, 3), ("fedmid", 0.1, 1)):
            rows = fake_rows(1 + rate + seed, rounds=100)
            rows = [row | {"bytes_up": size * row["bytes_up"]} for row in rows]
            settings = fake_config(algo, seed=seed, algo__client_lr=rate, rounds=100)
            fake_record(f"s/{algo}-{rate}-{seed}", settings, rows)
    fake_record("s/b", fake_config("centralized", rounds=100), fake_rows(1.0, rounds=100, silent=True))
    records = load_records("s")
    runs = build_table(records)
    for cap, rounds in ((1000.0, {"feddualavg": 30, "fedmid": 100}), (640.0, {"feddualavg": 20, "fedmid": 80})):
        capped, remarks = cap_runs(runs, records, cap, "objective")
        for run, record in enumerate(records):
            last = rounds.get(record.config["algo"]["name"], 100)
            row = next(row for row in record.rows if row["round"] == last)
            assert capped.tail_values("objective")[run] == row["objective"]
            assert capped.column("bytes_up")[run] == row["bytes_up"]
            assert capped.column("rounds")[run] == row["round"]
        together = capped.frame.groupby(["algo", "seed"])["bytes_up"].sum()
        assert (together <= cap).all()
        assert any("centralized: no uploads" in remark for remark in remarks)
        assert any("fedmid: ended at 800 bytes" in remark for remark in remarks) == (cap == 1000)
    with pytest.raises(UserError, match=r"--cap bytes=300 is below the first evaluation of feddualavg: its 2 runs .* "
                                        r"320 bytes after 10 rounds; give a larger cap"):  # fmt: skip
        cap_runs(runs, records, 300.0, "objective")


def test_replicates_that_lack_points_count_for_no_sum_over_the_grid(capsys):
    """A figure repeats its best point alone, and an interrupted sweep lacks points: their tuning is not free."""
    for seed, rates in enumerate([(0.1, 0.2, 0.4), (0.1,), (0.1, 0.2)]):
        for rate in rates:
            fake_record(f"s/{rate}-{seed}", fake_config(seed=seed, algo__client_lr=rate), fake_rows(1 + rate + seed))
    fake_record("s/0.4-2", fake_config(seed=2, algo__client_lr=0.4), status="interrupted")
    fake_record("s/b", fake_config("centralized"), fake_rows(1.0, silent=True))
    records = load_records("s")
    runs = build_table(records)
    method, _ = estimate_methods(runs, "objective")
    assert method.bytes_up == Estimate(3 * 8 * 40, pytest.approx(np.nan, nan_ok=True), 1)
    capped, remarks = cap_runs(runs, records, 500.0, "objective")
    assert capped.frame[capped.frame["algo"] == "feddualavg"]["rounds"].tolist() == [20] * 3
    assert capped.frame["algo"].tolist().count("centralized") == 1
    assert "feddualavg: 2 of 3 replicates left out, which lack points that others have" in remarks[0]
    assert main(["results", "s", "--errors", "--metric", "objective"]) == 0
    assert "feddualavg: bytes up without 2 replicates, which lack points that others have\n" in capsys.readouterr().out
    few = runs.take([run for run in range(len(runs)) if runs.frame["folder"][run] not in ("s/0.1-0", "0.1-0")])
    with pytest.raises(UserError, match="--cap: each replicate of feddualavg lacks points that others have"):
        cap_runs(few, [Record(folder) for folder in few.frame["folder"]], 500.0, "objective")


def test_a_row_of_a_capped_table_is_of_one_evaluation():
    """Also that of a run that diverged later on, and of one that had ended before the others."""
    for rate, rounds, status in ((0.1, 40, "done"), (0.2, 20, "done"), (0.4, 40, "diverged")):
        rows = fake_rows(1 + rate, rounds=rounds, grads=5, gap=0.1)
        fake_record(f"s/{rate}", fake_config(algo__client_lr=rate), rows, status)
    assert main(["results", "s", "--cap", "bytes=650", "--metric", "objective", "--out", "t.csv"]) == 0
    frame = pd.read_csv("t.csv").set_index("algo.client_lr")
    assert not [name for name in frame if name.startswith(("final_", "best_"))]  # of the ends of the runs
    assert frame["cap"].tolist() == [650.0] * 3
    for rate, last in {0.1: 30, 0.2: 20, 0.4: 30}.items():  # together 8 * 3 bytes a round, and 8 * 2 from 20 on
        row = next(row for row in load_records("s")[0].rows if row["round"] == last)
        assert frame.loc[rate, "rounds"] == last
        for name in [name for name in COUNTERS[1:] if name in row]:
            assert frame.loc[rate, name] == row[name], name
    assert frame.loc[0.1, "resolution"] == pytest.approx(1e-6 * frame.loc[0.1, "tail_objective"])
    assert np.isnan(frame.loc[0.4, "tail_objective"])


@pytest.mark.parametrize("text", ["1e6", "rounds=10", "bytes=many", "bytes=0", "bytes=nan"])
def test_a_cap_is_a_number_of_bytes(text):
    with pytest.raises(UserError, match=f"--cap {text} is no number of bytes: give --cap bytes=1.4e6"):
        read_cap(text)


def test_tables_say_that_they_are_of_a_cap(study, capsys):
    save_settings(Path("s"), SweepSettings(metric="objective"))
    for options in (["--errors"], ["--paired"]):
        assert main(["results", "s", "--cap", "bytes=400", *options]) == 0
        out = capsys.readouterr().out
        assert "at the last evaluation at which all points of a method had sent up at most 400 bytes" in out
        assert "at the cap" in out
        assert "last 20" not in out
