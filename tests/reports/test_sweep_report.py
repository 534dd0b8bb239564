"""The report of a sweep: the table of best points with its notes, and the files."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
from fake_records import captured_output, fake_config, fake_grid, fake_record, fake_rows, show_best_points
from helpers import SMALL, grid, not_none, run_grid, small
from rich.console import Console

from fcorun import load_records, run
from fcorun.interface.cli import commands
from fcorun.interface.cli.main import main
from fcorun.reports.build_table import build_table
from fcorun.reports.pictures.best_curves import collect_curves
from fcorun.reports.pictures.picture import find_pictures
from fcorun.reports.pictures.problem_view import ProblemView, curve_styles_of
from fcorun.reports.sweep_report import write_sweep_report


@pytest.mark.slow
def test_show_names_tail_cutoff_and_band():
    text, _ = captured_output(show_best_points, build_table(fake_grid("s")), None)
    for part in ("range", "over 3 seeds", "last 20", ">0.0001"):
        assert part in text
    caption = " ".join(text[text.index("best by") :].split())
    assert caption.startswith("best by support_f1: mean over the last 20 rounds, median over seeds")
    assert caption.endswith(
        "cutoff=0.0001 "
        + " ".join(
            f"{algo}: best algo.server_lr=1 is the largest tried: try larger" for algo in ("feddualavg", "fedmid")
        )
    )
    lines = [line.split() for line in text.splitlines() if line.startswith("fed") and ":" not in line]
    assert [line[:3] for line in lines] == [["feddualavg", "0.2", "1"], ["fedmid", "0.2", "1"]]
    assert [line[-2:] for line in lines] == [["12", "6"], ["12", "6"]]  # done, diverged
    one, _ = captured_output(show_best_points, build_table(fake_grid("t", seeds=(0,))), "objective")
    assert "seeds" not in one


def test_points_that_met_a_target_at_different_rounds_are_remarked():
    """Their values lie beyond the target by chance: the slowest one may overshoot it most."""
    for rate, rounds in ((0.1, 400), (0.2, 20)):
        record = fake_record(f"s/{rate}", fake_config(algo__client_lr=rate), fake_rows(1 / rounds, rounds))
        path = record.folder / "summary.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"stopped": True}))
    text, _ = captured_output(show_best_points, build_table(load_records("s")), "objective")
    assert "runs ended at their targets after 20 to 400 rounds: objective compares where" in " ".join(text.split())


def test_variants_of_one_title_are_told_apart_by_their_names(tmp_path):
    for name, title in (("ring", "NIDS"), ("torus", "NIDS"), ("fedmid", "FedMiD")):
        fake_record(f"s/{name}", fake_config(name, algo__title=title), fake_rows())
    runs = build_table(load_records("s"))
    titles = [runs.algo_title(name) for name in ("ring", "torus", "fedmid")]
    assert titles == ["NIDS (ring)", "NIDS (torus)", "FedMiD"]


def test_show_says_whose_best_point_was_still_falling():
    records = fake_grid("s", seeds=(0,))
    for record in records:
        config, path = record.config["algo"], record.folder / "summary.json"
        best = (config["client_lr"], config["server_lr"]) == (0.2, 1.0)
        if best == (config["name"] == "fedmid"):  # of the other algorithm, the points that are not best
            path.write_text(json.dumps(json.loads(path.read_text()) | {"unfinished": {"fell": 0.02}}))
    text, _ = captured_output(show_best_points, build_table(records), None)
    warning = "still falling at the end, so more rounds or larger rates may help: fedmid"
    assert text.split()[-len(warning.split()) :] == warning.split()


def test_show_says_whose_runs_all_diverged():
    for name, rate, status in (("fedmid", 0.1, "diverged"), ("fedmid", 0.2, "diverged"), ("fedavg", 0.1, "diverged"),
                               ("fedavg", 0.2, "done")):  # fmt: skip
        fake_record(f"s/{name}{rate}", fake_config(name, algo__client_lr=rate), fake_rows(), status)
    text, _ = captured_output(show_best_points, build_table(load_records("s")), None)
    assert "fedmid: all runs diverged: try smaller algo.client_lr" in " ".join(text.split())
    assert "fedavg: all" not in text


def test_show_says_whose_best_point_ended_above_the_optimum():
    for algo, above in (("feddualavg", 0.127), ("fedmid", 0.0)):
        path = fake_record(f"s/{algo}", fake_config(algo), fake_rows(1 + above)).folder / "summary.json"
        certificate = {"above": above, "near": not above}
        path.write_text(json.dumps(json.loads(path.read_text()) | {"certificate": certificate}))
    text, _ = captured_output(show_best_points, build_table(load_records("s")), None)
    assert text.rstrip().endswith("above the optimum's objective: feddualavg 13 %")
    records = load_records("s")
    table = build_table(records)
    view = ProblemView(table, records, "objective", curve_styles_of(table))
    assert "ended above the optimum: feddualavg 13 %" in not_none(collect_curves(view)).notes


def test_the_distance_to_the_optimum_is_one_entry_an_algorithm():
    for seed, above in enumerate((0.026, 0.028, 1.27)):
        path = fake_record(f"s/{seed}", fake_config(seed=seed)).folder / "summary.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"certificate": {"above": above, "near": False}}))
    text, _ = captured_output(show_best_points, build_table(load_records("s")), None)
    assert text.rstrip().endswith("above the optimum's objective: feddualavg 2.6 to 130 %")


def test_the_section_objective_has_another_header_than_the_metric(capsys):
    for name in ("huber", "logistic"):
        fake_record(f"s/{name}", fake_config(objective={"name": name}))
    runs = build_table(load_records("s"))
    text, _ = captured_output(show_best_points, runs, "objective")
    assert "objective=" in text.split("\n")[2].split()
    assert commands.main(["results", "s", "--metric", "objective", "--out", "s.tex"]) == 0
    out = capsys.readouterr().out
    assert "objective=" in out.split()
    assert out.split("* best point")[0].count("last 20") == 2  # below objective and density
    assert r"objective= & objective \\" in Path("s.tex").read_text()


def test_show_says_which_baseline_is_not_certified():
    for algo, certified in (("centralized", False), ("one_client", True)):
        record = fake_record(f"s/{algo}", fake_config(algo), fake_rows(silent=True))
        path = record.folder / "summary.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"certificate": {"certified": certified}}))
    text, _ = captured_output(show_best_points, build_table(load_records("s")), "objective")
    assert text.rstrip().endswith("not certified, and no optimum to compare with: centralized")


@pytest.mark.slow
def test_report_writes_and_says(tmp_path):
    records = fake_grid("s")
    failed = fake_record("s/failed-1234", fake_config(), status="interrupted", reason="ValueError: [odd] name")
    text, written = captured_output(write_sweep_report, Path("s"), load_records("s"))
    assert [path.name for path in written] == ["results.csv", "rates.png", "best.png", "structure.png"]
    assert all(path.exists() for path in written)
    assert "interrupted: failed-1234: ValueError: [odd] name" in text
    rows = list(csv.DictReader(io.StringIO((tmp_path / "s" / "results.csv").read_text())))
    assert len(rows) == len(records) + 1
    mine = next(row for row in rows if row["folder"] == records[0].folder.name)
    assert float(mine["tail_support_f1"]) == records[0].summary["tail"]["support_f1"]  # all digits
    assert mine["rounds"] == "40"
    assert failed.folder.exists()
    assert not list(Path("s").glob(".*"))


def test_what_cannot_be_drawn_has_its_table(monkeypatch):
    fake_grid("s", seeds=(0,))
    out = io.StringIO()
    with monkeypatch.context() as patch:
        patch.setattr("fcorun.reports.sweep_report.draw_sweep", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            write_sweep_report(Path("s"), load_records("s"), console=Console(file=out, width=60))
    assert "best by support_f1" in out.getvalue()
    assert Path("s/results.csv").exists()


def test_no_earlier_picture_stays_where_drawing_fails(monkeypatch):
    records = fake_grid("s", seeds=(0,))
    drawn = [Path("s", f"{picture.name}.png") for picture in find_pictures(ProblemView)]
    for path in drawn:
        path.write_text("of earlier runs")

    def fail(*arguments):
        raise RuntimeError("no drawing")

    monkeypatch.setattr("fcorun.reports.pictures.problem_view.draw_later", lambda *_: fail)
    with pytest.raises(RuntimeError):
        write_sweep_report(Path("s"), records, console=Console(quiet=True))
    assert len(drawn) > 1
    assert not [path for path in drawn if path.exists()]


@pytest.mark.parametrize("status", ["failed", "interrupted", "diverged"])
def test_report_without_a_finished_run(status):
    fake_record("s/a", status=status, reason="so")
    text, written = captured_output(write_sweep_report, Path("s"), load_records("s"), tail_rounds=10)
    assert written[0].name == "results.csv"
    assert status in text
    text, written = captured_output(write_sweep_report, Path("t"), [])
    assert [path.name for path in written] == ["results.csv"]


@pytest.mark.slow
def test_report_of_real_runs():
    config = small("rounds=6")
    records = run_grid(
        grid(config, {"algo.client_lr": [0.001, 0.002, 1e6], "seed": [0, 1]}), [f"s/{i}" for i in range(6)]
    )
    text, written = captured_output(write_sweep_report, Path("s"), records, tail_rounds=4)
    runs = build_table(records, 4)
    assert runs.varied_keys == ["seed", "algo.client_lr"]
    assert set(runs.frame["status"][runs.frame["algo.client_lr"] == 1e6]) == {"diverged"}
    for i, one in enumerate(records):
        metrics = one.metrics
        if runs.frame["status"][i] == "diverged":
            assert np.isnan(runs.frame["tail_support_f1"][i])
            continue
        tail = metrics["support_f1"][metrics["round"] > metrics["round"].max() - 4]
        assert runs.frame["tail_support_f1"][i] == pytest.approx(tail.mean())
    assert {path.name for path in written} == {"results.csv", "rates.png", "best.png", "structure.png"}
    assert "last 4" in text
    assert json.loads((records[0].folder / "status.json").read_text())["status"] == "done"


@pytest.mark.slow
def test_rounds_of_the_key_and_rounds_done_are_two_columns():
    records = [run(small(f"rounds={n}"), f"r/{n}") for n in (2, 4)]
    runs = build_table(records)
    assert runs.frame["rounds"].tolist() == runs.frame["rounds_done"].tolist() == [2, 4]
    assert len(runs.best_points()) == 1


def test_a_sweep_refuses_a_folder_with_results_of_somebody_else(capsys):
    Path("s").mkdir()
    Path("s/results.csv").write_text("mine")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["fcorun", "-m", *SMALL, "algo.client_lr=1e-3,2e-3", "out=s"])
        with pytest.raises(SystemExit) as stop:
            main()
    assert stop.value.code == 2
    assert "results.csv" in capsys.readouterr().err
    assert Path("s/results.csv").read_text() == "mine"


@pytest.mark.slow
def test_show_says_whose_seeds_change_nothing():
    records = fake_grid("s")
    for record in records:
        path, drawn = record.folder / "summary.json", record.config["algo"]["name"] == "fedmid"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"drawn": drawn}))
    text, _ = captured_output(show_best_points, build_table(records), None)
    assert "the seed changes nothing for feddualavg: all clients" in " ".join(text.split())
    assert (
        "seed changes" not in captured_output(show_best_points, build_table(fake_grid("t")), None)[0]
    )  # of records of before that is not known
