"""fcorun results, on records written without a run."""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
from fake_records import fake_config, fake_grid, fake_record, fake_rows
from helpers import replace_sleep

from fcorun.base.records.record import Record
from fcorun.base.records.sweep_settings import SweepSettings, save_settings
from fcorun.interface.cli.commands import main


@pytest.mark.slow
def test_results_show_every_run(call):
    records = fake_grid("s")
    fake_record("s/failed-1", status="failed", reason="no")
    code, out, err = call("results", "s")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert len(lines) == 3 + len(records) + 1 + 1 + 2  # heads, runs, caption, edges
    marked = [line.split() for line in lines if line.startswith("* fed") or line.startswith("*  fed")]
    assert [words[1:5] for words in marked] == [
        [algo, str(seed), "0.2", "1"] for algo in ("feddualavg", "fedmid") for seed in range(3)
    ]
    assert all(r.folder.name in out for r in records)
    assert "by support_f1; mean over the last 20 rounds; an entry counts above cutoff=0.0001" in lines[-3]


def test_results_use_the_given_metric_and_tail_rounds(call):
    fake_grid("s", seeds=(0,))
    _, out, _ = call("results", "s", "--metric", "objective", "--tail-rounds", "10")
    assert "by objective; mean over the last 10 rounds" in out


@pytest.mark.slow
@pytest.mark.parametrize("name", ["all.csv", "all.parquet"])
def test_results_go_to_a_file(call, name):
    fake_grid("s", seeds=(0,))
    fake_record("s/mixed", fake_config(batch_size="all"))
    assert call("results", "s", "--out", name)[0] == 0
    frame = pd.read_csv(name) if name.endswith("csv") else pd.read_parquet(name)
    assert len(frame) == 13
    one = frame[frame["folder"] == "feddualavg-0-0.2-1.0"].iloc[0]
    assert one["tail_support_f1"] == Record(Path("s/feddualavg-0-0.2-1.0")).summary["tail"]["support_f1"]
    before = Path(name).read_bytes()
    code, _, err = call("results", "s", "--out", name, "--metric", "objective")
    assert (code, err) == (2, f"fcorun: --out {name} exists; give --force to replace it, or another name\n")
    assert Path(name).read_bytes() == before
    assert call("results", "s", "--out", name, "--force", "--tail-rounds", "10")[0] == 0
    assert Path(name).read_bytes() != before


@pytest.mark.slow
@pytest.mark.parametrize("name", ["curves.csv", "curves.parquet"])
def test_curves_go_to_a_file(call, name):
    """A tidy table: a row for each evaluation, with the keys that vary among the runs."""
    fake_grid("s", seeds=(0,))
    code, out, _ = call("results", "s", "--curves", "--out", name)
    assert code == 0
    curves = pd.read_csv(name) if name.endswith("csv") else pd.read_parquet(name)
    assert f"{name}: {len(curves):,} evaluations of 12 runs" in out
    one = curves[curves["folder"] == "feddualavg-0-0.2-1.0"]
    assert set(one["algo.client_lr"]) == {0.2}
    metrics = Record(Path("s/feddualavg-0-0.2-1.0")).metrics
    pd.testing.assert_frame_equal(one[metrics.columns].reset_index(drop=True), metrics, check_dtype=False)


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["results"], "required: DIR"),
        (["results", "s", "--curves"], "give --out curves.parquet, too"),
        (["results", "s", "--curves", "--out", "c.csv", "--cap", "bytes=100"], "writes all evaluations"),
        (["results", "nowhere"], "there is no folder nowhere"),
        (["results", "empty"], "empty holds no records"),
        (["results", "s", "--metric", "f2"], "metric=f2 was not measured"),
        (["results", "s", "--metric", "density"], "has no better direction"),
        (["results", "s", "--tail-rounds", "0"], "--tail-rounds: 0 must be a whole number"),
        (["results", "s", "--out", "a.txt"], "--out a.txt must end in .csv, .parquet or .tex"),
        (["results", "s", "--out", "no/a.csv"], "there is no folder no"),
        (["plot", "nowhere"], "there is no folder nowhere"),
        (["plot", "s", "--out", "s"], "--out s holds records and their pictures"),
        (["plot", "s", "--out", "file"], "--out file is a file"),
        (["plot", "s", "--out", "full"], "--out full exists; give --force"),
        (["plot", "s", "--out", "new", "--metric", "density"], "has no better direction"),
        (["cite"], "required: DIR"),
        (["cite", "nowhere"], "there is no folder nowhere"),
        (["cite", "empty"], "empty holds no records"),
        (["list", "alg"], "list has no group 'alg': did you mean 'algo'?"),
        (["list", "algo", "--config-dir", "no"], "config-dir no: there is no such folder"),
        (["rm", "s"], "required: --status"),
        (["rm", "s", "--status", "bad"], "invalid choice"),
    ],
)
def test_bad_input_is_one_sentence(call, argv, sentence):
    fake_record("s/a")
    Path("empty").mkdir()
    Path("file").touch()
    Path("full").mkdir()
    Path("full/best.png").touch()
    code, out, err = call(*argv)
    assert (code, out) == (2, "")
    assert err.startswith("fcorun: ")
    assert err.count("\n") == 1
    assert sentence in err
    assert not Path("new").exists()


@pytest.mark.slow
def test_paired_tests_compare_seed_by_seed(call):
    for seed in range(6):
        fake_record(f"s/a{seed}", fake_config(seed=seed), fake_rows(1 + 0.1 * seed))
        fake_record(f"s/b{seed}", fake_config("fedmid", seed=seed), fake_rows(2 + 0.3 * seed))
    _, out, _ = call("results", "s", "--metric", "objective", "--paired")
    (line,) = [line for line in out.splitlines() if line.startswith("feddualavg - fedmid")]
    assert line.split()[3:] == ["6", "-1.875", "6", "of", "6", "0.03125", "0.03125"]
    assert "with 6 seeds and 1 tested pair, p by Holm cannot be below 0.03125\n" in out
    _, out, _ = call("results", "s/a0", "s/b0", "--paired")
    assert "too few seeds" in out
    assert "no two algorithms" in call("results", "s/a0", "s/a1", "--paired")[1]


@pytest.mark.slow
def test_the_best_points_are_written_as_latex(call):
    fake_grid("s")
    assert call("results", "s", "--out", "table.tex")[0] == 0
    assert Path("table.tex").read_text().count("&") == 15  # heads and two algorithms


@pytest.mark.slow
def test_a_run_in_two_folders_counts_once(call):
    fake_grid("s", seeds=(0,))
    shutil.copytree("s", "t")
    fake_record("t/more", fake_config("fedavg"))
    _, out, _ = call("results", "s", "t", "--out", "all.csv")
    assert "12 of 25 records are of a run that another folder holds too: left out" in out
    assert len(pd.read_csv("all.csv")) == 13
    assert "another folder holds too" not in call("results", "t")[1]


def test_a_long_table_is_cut_with_the_way_to_see_all(capsys, monkeypatch):
    monkeypatch.setattr("fcorun.interface.cli.commands.results_command._MAX_PRINTED", 3)
    for seed in range(8):
        fake_record(f"runs/{seed}", fake_config(seed=seed, algo__client_lr=0.1 * seed), fake_rows(1 + (seed - 6) ** 2))
    assert main(["results", "runs"]) == 0
    out = capsys.readouterr().out
    assert "and 5 more runs: --all prints them, and --out FILE.csv writes all" in out
    assert [line.split()[0] for line in out.splitlines() if "done" in line] == ["feddualavg", "feddualavg", "*"]
    assert main(["results", "runs", "--all", "--out", "all.csv"]) == 0
    assert capsys.readouterr().out.count("done") == 8
    assert Path("all.csv").read_text().count("\n") == 9


def test_a_table_is_printed_anew_while_a_run_goes_on(capsys, monkeypatch):
    record = fake_record("runs/a", status="running")
    (record.folder / "status.json").write_text(json.dumps(record.status | {"status": "running", "host": "another"}))
    waits = []

    def end_the_run(seconds):
        waits.append(seconds)
        shutil.rmtree("runs/a")
        fake_record("runs/a")

    replace_sleep(monkeypatch, end_the_run)
    assert main(["results", "runs", "--follow"]) == 0
    out = capsys.readouterr().out
    assert out.index("running") < out.index("done")
    assert len(waits) == 1
    assert main(["results", "runs", "--follow", "--out", "all.csv"]) == 2
    assert "leave one of them out" in capsys.readouterr().err


def test_a_sweep_is_followed_from_before_its_first_run_to_its_last(capsys, monkeypatch):
    """Also that of a figure; between two groups no run goes on, and some have not begun."""
    Path("fig/runs").mkdir(parents=True)
    save_settings(Path("fig/runs"), SweepSettings(metric="objective", runs=("a", "b")))
    runs = iter(["a", "b"])

    def end_a_run(_):
        name = next(runs)
        fake_record(f"fig/runs/{name}", fake_config(seed=ord(name)))

    replace_sleep(monkeypatch, end_a_run)
    assert main(["results", "fig", "--follow"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" (")[0] for line in lines if "not begun" in line] == [
        "runs that have not begun: 2",
        "runs that have not begun: 1",
    ]
    assert [line.split().count("done") for line in lines].count(1) == 1 + 2
    Path("empty").mkdir()
    assert main(["results", "empty", "--follow"]) == 2
    assert "empty holds no records" in capsys.readouterr().err
