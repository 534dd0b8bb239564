"""Figures of conf/experiment: all files are valid, small figures are made from start to end, claims are checked."""

import math
import runpy
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from fake_records import fake_grid
from helpers import fails
from hydra.core.override_parser.overrides_parser import OverridesParser

from fcorun import UserError, load_records
from fcorun.base.config import Settings
from fcorun.base.metrics import CATALOGUE, Metric
from fcorun.experiment.build import check_data, load_data
from fcorun.experiment.configuration.compose import compose, compose_shared, packaged_config_dir
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.experiment.prepare import prepare
from fcorun.interface.cli.hydra_app import run_sweep_command
from fcorun.reports.build_table import build_table
from fcorun.reports.run_table import RunTable
from fcorun.reports.sweep_report import warn_unequal_rounds
from fcorun.studies.figures import claims, spec
from fcorun.studies.figures.figure_inputs import FigureInputs
from fcorun.studies.figures.papers.fco import collect_client_solutions
from fcorun.studies.figures.reproduce import (
    PICTURES,
    check_accuracy,
    check_algorithms,
    check_gap_metrics,
    check_metrics,
    reproduce,
)
from fcorun.studies.figures.seed_comparison import compare
from fcorun.studies.figures.spec import Claim, Figure, load_figure
from fcorun.studies.figures.spec import list_figures as figures

SCRIPT = Path(packaged_config_dir()).parent / "scripts" / "reproduce.py"
SMALL = (
    *("data.features=20", "data.nonzeros=5", "data.clients=6", "data.samples=12", "data.validation_samples=4"),
    *("clients_per_round=3", "batch_size=5", "rounds=20", "tail_rounds=10", "algo.server_lr=0.3,1"),
    *("algo.client_lr=0.001", "verbose=false"),
)


@pytest.mark.parametrize("name", figures())
def test_every_figure_is_well_formed(name):
    """Claims and panels have metrics of the catalogue, and the fast version can be composed."""
    figure, config = load_figure(name)
    text = (Path(packaged_config_dir()) / "experiment" / f"{name}.yaml").read_text()
    assert figure.title
    assert figure.panels or figure.draw in ("averaging", "conditioning", "personalised")
    prepare(config)
    assert {c.metric for c in figure.claims} | set(figure.panels) <= set(CATALOGUE)
    assert text.startswith("# @package _global_\n#")
    compose_shared([f"+experiment={name}", *[o for o in figure.fast if "," not in o]])
    OverridesParser.create().parse_overrides(figure.fast)


MADE_HERE = [name for name in figures() if "root" not in load_figure(name)[1]["data"]]  # others are downloaded


@pytest.mark.slow
@pytest.mark.parametrize("name", MADE_HERE)
def test_no_run_of_a_figure_is_refused(name, tmp_path, monkeypatch):
    """Each run with the data of the first one fits them, so that none fails later for what a check knows before."""

    def check_all(points, _):
        experiments = [point.experiment for point in points]
        first = experiments[0]
        data = load_data(first)
        for experiment in experiments:
            if experiment.data == first.data:
                check_data(experiment, data)
        raise UserError("all runs are checked")

    monkeypatch.chdir(tmp_path)
    with fails("all runs are checked"):
        run_sweep_command([f"experiment={name}"], check_all)


@pytest.mark.slow
@pytest.mark.parametrize("name", figures())
def test_claims_name_algorithms_that_the_figure_runs(name, tmp_path, monkeypatch):
    """So do printed rates. The data, which may have to be downloaded, are not looked at."""
    figure, _ = load_figure(name)

    def check_names(points, _):
        check_algorithms(figure, {point.experiment.names["algo"] for point in points})
        raise UserError("all names are checked")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(PreparedExperiment, "fingerprint", "any")
    with fails("all names are checked"):
        run_sweep_command([f"experiment={name}"], check_names)


@pytest.mark.slow
def test_every_figure_has_something_to_check():
    assert all(figure.claims or figure.verdicts for figure in (load_figure(name)[0] for name in figures()))


def test_no_such_figure():
    with pytest.raises(UserError, match="fco_fig3a"):
        load_figure("fco_fig3")


def test_x_axes_of_a_figure(monkeypatch):
    assert load_figure("fco_fig3a")[0].x == ["rounds"]
    assert load_figure("fco_fig3a", ["x=bytes"])[0].x == ["bytes"]
    config = compose_shared(["+experiment=fco_fig3a"])
    config["figure"]["x"] = ["rounds", "grad_evals"]
    monkeypatch.setattr(spec, "compose_shared", lambda overrides: config | {"x": "seconds"})
    assert load_figure("fco_fig3a")[0].x == ["rounds", "grad_evals"]
    assert load_figure("fco_fig3a", ["x=seconds"])[0].x == ["seconds"]  # the command line has precedence
    del config["figure"]["x"]
    assert load_figure("fco_fig3a")[0].x == ["seconds"]  # the root key of the experiment
    config["figure"]["x"] = ["epochs"]
    with pytest.raises(UserError, match=r"figure.x=epochs is not a choice"):
        check_metrics(load_figure("fco_fig3a")[0], CATALOGUE)


@pytest.mark.slow
def test_a_figure_from_start_to_end(tmp_path):
    """A second command draws the figure anew, and runs nothing again."""
    result = reproduce("fco_fig3a", tmp_path, run_sweep_command, overrides=SMALL)
    folder, rows = result.folder, result.rows
    assert result.complete
    assert folder.name.startswith("fco_fig3a-")  # not the figure of the paper
    assert (folder / "figure.png").read_bytes()[:4] == b"\x89PNG"
    assert (folder / "figure.pdf").read_bytes()[:4] == b"%PDF"
    table = pd.read_csv(folder / "claims.csv", keep_default_na=False)
    assert table.to_dict("records") == rows
    (unmeasured,) = table[table["holds"] == "not measured"]["says"]
    assert "larger client_lr" in unmeasured  # as one is tried
    assert set(table["algo"]) == {"centralized", "feddualavg", "feddualavg_osp", "fedmid", "fedmid_osp"}
    summary = pd.read_csv(folder / "table.csv").set_index("algo")
    assert (summary.loc["fedmid", "seeds"], summary.loc["centralized", "seeds"]) == (5, 5)  # of data
    assert summary.loc["fedmid", "server_lr"] in (0.3, 1)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("metrics.csv")}
    assert len(before) == 4 * 2 + 1 + 5 * 4
    picture = (folder / "figure.png").read_bytes()
    again = reproduce("fco_fig3a", tmp_path, run_sweep_command, overrides=(*SMALL, "x=bytes", "report=False"))
    assert replace(again, rows=[]) == replace(result, rows=[], wants_page=False)
    without_tests = [[row | {"test": ""} for row in rows] for rows in (again.rows, result.rows)]
    assert without_tests[0] == without_tests[1]  # the tests say that tail averages are after equal rounds
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("metrics.csv")} == before
    assert (folder / "figure.png").read_bytes() != picture


@pytest.mark.slow
def test_the_script_goes_on_after_a_figure_without_data(tmp_path, monkeypatch, capsys):
    """The script reports the figure without data, and makes the next one in its fast version."""
    arguments = ["--fast", "--out", "figs", "fco_fig5", "fco_fig2", "verbose=false"]
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *arguments])
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    out, err = capsys.readouterr()
    assert stop.value.code == 1
    assert "fco_fig5: not made" in out
    assert "Traceback" not in err
    assert (tmp_path / "figs/fco_fig2-fast/figure.png").exists()
    assert set(pd.read_csv(tmp_path / "figs/claims.csv")["figure"]) == {"fco_fig2-fast"}


def claim(**changes):
    return Claim(**({"says": "so", "algo": "a", "metric": "support_f1", "above": [0.5]} | changes))


def checked(one, tail=(0.6, 0.2), rows=(), others=None, *, metrics=CATALOGUE, x=("rounds",)):
    grid = pd.DataFrame(
        {"algo": "a", "data": "x", "client_lr": [1.0, 2.0], "status": "done", "tail_support_f1": tail,
         "tail_rank": [4, 5]}
    )  # fmt: skip
    tuned = pd.DataFrame({"algo": ["a", *(others or {})], "data": "x", "status": "done",
                          "tail_support_f1": [tail[0], *(others or {}).values()]})  # fmt: skip
    counted = [{"bytes_up": 1} | row for row in rows]
    runs: dict[str, list[tuple[Any, Any]]] = {"a": [(None, counted)]}
    measurements = claims.Measurements(RunTable(grid, metrics), RunTable(tuned, metrics), runs, [counted] * 2)
    (row,) = claims.check_claims("fig", Figure("t", x=list(x), claims=[one]), measurements)
    return row


def test_claims():
    assert checked(claim())["holds"] == "yes"
    assert checked(claim(above=[0.7]))["holds"] == "no"
    assert checked(claim(above=["b"]), others={"b": 0.5})["holds"] == "yes"
    assert checked(claim(above=["b"], times=2), others={"b": 0.5})["holds"] == "no"
    assert checked(claim(above=[], below=["b"]), others={"b": 0.7})["holds"] == "yes"
    assert checked(claim(above=["b"]))["holds"] == "not measured"
    assert checked(claim(metric="rank"))["holds"] == "not measured"
    share = checked(claim(at="share", target=0.5, above=[0.4]))
    assert share["measured"] == "share of points whose support_f1 is 0.5 or better: 0.5"
    share = checked(claim(at="share", target=5, above=[0.4], metric="rank"))
    assert share["measured"] == "share of points whose rank is equal to 5: 0.5"


def test_a_share_of_points_counts_each_point_once():
    """A point with several seeds is one point; a point that diverged with a seed is not at the target."""
    frame = pd.DataFrame({"algo": "a", "data": "x", "client_lr": [1.0, 2.0, 2.0, 2.0], "status": "done",
                          "tail_support_f1": [0.2, 0.6, 0.7, 0.8]})  # fmt: skip

    def measure(statuses):
        grid = RunTable(frame.assign(status=statuses))
        half = claim(at="share", target=0.5)
        (row,) = claims.check_claims("fig", Figure("t", claims=[half]), claims.Measurements(grid, grid, {}))
        return row["measured"].rpartition(" ")[2]

    assert measure("done") == "0.5"
    assert measure(["done", "done", "done", "diverged"]) == "0"


@pytest.mark.parametrize(("summary", "holds"), [({"convergence": "ended"}, "yes"), ({}, "not measured")])
def test_a_run_that_ended_converged_stands_still_after_its_end(summary, holds):
    """A run that a target stopped, or that was shorter, says nothing of later rounds."""
    rows = [{"round": r, "bytes_up": 8 * r, "support_f1": 0.2 * r} for r in range(4)]
    table = RunTable(pd.DataFrame({"algo": ["a"], "data": "x", "status": "done", "tail_support_f1": [0.6]}))
    inputs: Any = SimpleNamespace(
        figure=Figure("t"),
        grid=table,
        tuned=table,
        grid_records=[],
        tuned_records=[SimpleNamespace(rows=rows, summary=summary)],
        seeds_of=lambda record: None,
        lost_seeds_notes={},
    )
    for amount in ({"rounds": 100}, {"bytes": 1e9}):
        late = Figure("t", claims=[claim(at=amount)])
        (row,) = claims.check_claims("fig", late, claims.collect_measurements(inputs))
        assert row["holds"] == holds


def test_a_claim_about_less_than_the_first_evaluation_took_is_unknown():
    rows = [{"round": r, "bytes_up": 8 * r, "grad_evals": 10 * (r + 1), "support_f1": 0.6} for r in range(3)]
    assert checked(claim(at={"grad_evals": 9}), rows=rows)["measured"] == "support_f1 after 9 grad_evals unknown"
    assert checked(claim(at={"grad_evals": 9}), rows=rows)["holds"] == "not measured"
    assert checked(claim(at={"grad_evals": 10}), rows=rows)["holds"] == "yes"


def test_a_claim_at_a_cost_that_a_method_does_not_count_names_the_method():
    rows = [{"round": r, "worked_seconds": float(r), "support_f1": 0.6} for r in range(3)]
    assert checked(claim(at={"worked_seconds": 1}), rows=rows)["holds"] == "yes"
    uncounted = checked(claim(at={"worked_seconds": 1}), rows=[{"round": 1, "support_f1": 0.6}])
    assert uncounted["holds"] == "not measured"
    assert uncounted["note"] == "worked_seconds was not counted in a"
    solution = [{"round": 9, "bytes_up": 0, "bytes_down": 0, "support_f1": 0.9}]
    assert checked(claim(at={"worked_seconds": 1}), rows=solution)["holds"] == "yes"


def test_a_method_without_personal_models_is_claimed_by_its_shared_model():
    metric = "personal_val_accuracy"
    frame = pd.DataFrame({"algo": ["a", "b"], "data": "x", "status": "done", "tail_val_accuracy": [0.5, 0.8],
                          f"tail_{metric}": [0.7, float("nan")]})  # fmt: skip
    table = RunTable(frame)
    runs: dict[str, list[tuple[Any, Any]]] = {
        "a": [(None, [{"round": 1, "bytes_up": 1, "val_accuracy": 0.5, metric: 0.7}])],
        "b": [(None, [{"round": 1, "bytes_up": 1, "val_accuracy": 0.8}])],
    }
    for at in ("tail", "worst", {"rounds": 1}):
        figure = Figure("t", claims=[claim(metric=metric, at=at, above=["b"])])
        (row,) = claims.check_claims("fig", figure, claims.Measurements(table, table, runs))
        assert (row["holds"], row["wanted"]) == ("no", "above b (0.8)")


def test_claims_about_every_evaluation():
    rows = [{"round": r, "violation": v} for r, v in enumerate([0.0, 2e-6, 0.0])]
    worst = {"metric": "violation", "at": "worst", "above": []}
    assert checked(claim(**worst, below=[1e-5]), rows=rows)["holds"] == "yes"
    assert checked(claim(**worst, below=[1e-6]), rows=rows)["holds"] == "no"
    rises = [{"round": r, "support_f1": v} for r, v in enumerate([0.0, 0.4, 0.6])]  # round 0 does not count
    assert checked(claim(at="worst", above=[0.3]), rows=rises)["measured"] == "worst support_f1 0.4"
    assert checked(claim(at="worst"), rows=rises[:1])["holds"] == "not measured"


@pytest.mark.parametrize(("higher", "worst_value"), [(False, "0.6"), (True, "0.3"), (None, "0.6")])
def test_claims_about_a_metric_of_a_users_objective(higher, worst_value):
    catalogue = CATALOGUE.with_metrics([Metric("val_deviance", higher=higher)])
    rows = [{"round": r, "val_deviance": v} for r, v in enumerate([0.9, 0.6, 0.3])]
    worst = claim(metric="val_deviance", at="worst", above=[0])
    assert checked(worst, rows=rows, metrics=catalogue)["measured"] == f"worst val_deviance {worst_value}"
    reach = checked(claim(metric="val_deviance", at="reach", target=0.6, above=[0]), rows=rows, metrics=catalogue)
    assert reach["measured"].endswith({False: " 1", True: "never", None: "never"}[higher])


def test_claims_about_rounds():
    rows = [{"round": r, "support_f1": r / 10, "rank": max(9 - r, 4), "pieces": 9 - r} for r in range(10)]
    assert checked(claim(at="reach", target=0.55, above=[5.5], below=[6.5]), rows=rows)["holds"] == "yes"
    assert checked(claim(at="reach", target=2.0, above=[], below=[100]), rows=rows)["holds"] == "no"
    exact = claim(at="reach", metric="rank", target=4, above=[4.5], below=[5.5])
    assert checked(exact, rows=rows)["holds"] == "yes"
    passing = claim(at="reach", metric="pieces", target=4, above=[], below=[100])  # met in round 5 alone
    assert checked(passing, rows=rows)["measured"] == "rounds to pieces 4: never"
    unknown = claim(at="reach", metric="violation", target=4, above=[], below=[100])
    assert checked(unknown, rows=rows)["holds"] == "not measured"


@pytest.mark.parametrize(("wanted", "holds"), [(20, "no"), (30, "no"), (31, "not distinguishable"), (41, "yes")])
def test_rounds_are_known_as_closely_as_the_evaluations_lie(wanted, holds):
    """With an evaluation every ten rounds, a target that is met in round 40 was reached after round 30."""
    rows = [{"round": r, "support_f1": r / 100} for r in range(0, 101, 10)]
    row = checked(claim(at="reach", target=0.37, above=[], below=[wanted]), rows=rows)
    assert (row["measured"], row["holds"]) == ("rounds to support_f1 0.37: more than 30, at most 40", holds)
    assert row["test"].endswith("; evaluations too far apart") == (holds == "not distinguishable")


def test_claims_at_equal_bytes():
    """Between two evaluations the metric is known by their values; a run that sent less is not compared."""
    rows = [{"round": r, "bytes_up": 10 * r, "bytes_down": 10 * r, "grad_evals": r, "support_f1": r / 10}
            for r in range(10)]  # fmt: skip
    row = checked(claim(at={"bytes": 55}), rows=rows)
    assert row["measured"] == "support_f1 after 55 bytes 0.2 to 0.3, the evaluations around it,"
    assert (row["holds"], row["test"]) == ("no", "one number against another")
    between = checked(claim(at={"bytes": 55}, above=[0.25]), rows=rows)
    assert between["holds"] == "not distinguishable"
    assert between["test"].endswith("; evaluations too far apart")
    assert checked(claim(at={"bytes": 60}), rows=rows)["measured"] == "support_f1 after 60 bytes 0.3"
    assert checked(claim(at={"rounds": 7}), rows=rows)["holds"] == "yes"
    assert checked(claim(at={"bytes": 1e6}), rows=rows)["holds"] == "not measured"
    baseline_rows = [{"round": 9, "bytes_up": 0, "bytes_down": 0, "support_f1": 0.9}]
    assert checked(claim(at={"bytes": 55}), rows=baseline_rows)["holds"] == "yes"
    tail = claim(above=["b"])
    assert checked(tail, others={"b": 0.5}, x=["bytes"])["test"].endswith("compares at equal bytes")
    assert "equal" not in checked(tail, others={"b": 0.5})["test"]


def test_a_solver_counts_by_its_solution_and_not_by_its_iterates():
    """A baseline's rows are iterates of its solver: none is the worst of its evaluations, and none is a round."""
    iterates = [{"round": r, "bytes_up": 0, "bytes_down": 0, "support_f1": f1} for r, f1 in ((1, 0.1), (50, 0.9))]
    assert checked(claim(at="worst", above=[0.3]), rows=iterates)["measured"] == "worst support_f1 0.9"
    reach = checked(claim(at="reach", target=0.9, above=[], below=[100]), rows=iterates)
    assert reach["holds"] == "not comparable"
    assert reach["note"].startswith("a takes iterations of a solver, not rounds")


def test_claims_about_the_largest_rate_that_is_good():
    largest = {"at": {"largest": "client_lr"}}
    assert checked(claim(**largest, above=[1.5]), tail=(0.6, 0.5999))["holds"] == "yes"
    assert checked(claim(**largest, above=[1.5]), tail=(0.6, 0.59))["holds"] == "no"
    assert checked(claim(at={"largest": "server_lr"}))["holds"] == "not measured"


@pytest.mark.parametrize(("tail", "measured"), [((0.6, 0.2), "unknown"), ((0.6, 0.6), "1e-05")])
def test_the_largest_rate_is_of_the_numbers(tail, measured):
    frame = pd.DataFrame({"algo": "a", "data": "x", "algo.client_lr": ["auto", 1e-5], "status": "done",
                          "tail_support_f1": tail})  # fmt: skip
    largest = claim(at={"largest": "algo.client_lr"}, above=[0])
    measurements = claims.Measurements(RunTable(frame), RunTable(frame), {})
    (row,) = claims.check_claims("fig", Figure("t", claims=[largest]), measurements)
    assert row["measured"].rpartition(" ")[2] == measured


NOTHING = [
    {"above": []},
    {"above": ["b"], "below": ["b"]},
    {"above": ["a"]},
    {"at": "reach"},
    {"target": 3.0},
    {"at": "share"},
    {"at": "worst", "target": 1.0},
]
NOWHERE = [{"at": "best"}, {"at": {}}, {"at": {"bytes": -1}}, {"at": {"largest": None}}]


@pytest.mark.parametrize("wrong", NOTHING, ids=str)
def test_claims_without_a_comparison_are_refused(wrong):
    with pytest.raises(UserError, match="so"):
        claim(**wrong)


@pytest.mark.parametrize("wrong", NOWHERE, ids=str)
def test_claims_with_a_wrong_place_are_refused(wrong):
    with pytest.raises(UserError, match=r"figure\.claims\.at"):
        claim(**wrong)


def test_claims_over_seeds():
    """A claim holds in every seed ("yes"), in none ("no"), or is not distinguishable; its row names the test."""
    frame = pd.DataFrame({"algo": list("aaabbbc"), "data": "d", "status": "done"})
    frame["tail_support_f1"] = [0.5, 0.7, 0.9, 0.4, 0.6, 0.8, 0.65]
    runs: dict[str, list[tuple[Any, Any]]] = {
        "a": [(seed, []) for seed in range(3)],
        "b": [(seed, []) for seed in range(3)],
        "c": [(0, [])],
    }
    measurements = claims.Measurements(RunTable(frame), RunTable(frame), runs, seed_kind="seeds of data")

    def check(**changes):
        (row,) = claims.check_claims("fig", Figure("t", claims=[claim(**changes)]), measurements)
        return row["holds"], row["test"], row["note"]

    assert check(above=["b"]) == ("yes", "the same sign in each of 3 seeds of data", "")  # although the bands overlap
    assert check(above=[], below=["b"], note="known") == ("no", "the same sign in each of 3 seeds of data", "known")
    assert check(above=["c"], note="known") == (
        "not distinguishable",
        "the same sign in each of the 1 common seed of data: too few",
        "known",
    )
    assert check(above=[0.4]) == ("yes", "in each of 3 seeds of data", "")
    assert check(above=[0.6])[0] == "not distinguishable"
    assert check(above=[0.95])[0] == "no"
    assert check(algo="c", above=[0.6]) == ("yes", "one number against another", "")
    assert check(above=["b"], times=1.2)[0] == "not distinguishable"
    assert check(above=["b", "d"]) == ("not measured", "", "")
    measurements = replace(measurements, lost_seeds_notes={"b": "b has 3 of 5 seeds"})
    assert check(above=["b"], note="known") == ("not decided", "", "b has 3 of 5 seeds; known")
    assert check(above=[], below=["b"])[::2] == ("no", "b has 3 of 5 seeds")
    assert check(above=[0.4])[::2] == ("yes", "")  # is about a alone


COMMON = "the same sign in each of the {} common seed{}"
SEEDS = {0: 3.0, 1: 4.0, 2: 5.0}


@pytest.mark.parametrize(
    ("theirs", "holds", "test"),
    [
        ({0: 1.0, 2: 9.0, 7: 1.0}, "not distinguishable", COMMON.format(2, "s")),
        ({0: 1.0, 2: 2.0}, "yes", COMMON.format(2, "s")),
        ({0: 1.0}, "not distinguishable", COMMON.format(1, "") + ": too few"),
        ({5: 1.0, 6: 2.0}, "not distinguishable", "no common seeds"),
        ({None: 1.0}, "yes", "in each of 3 seeds"),  # a number, or a baseline
        ({}, "not measured", ""),
    ],
)
def test_only_the_same_seeds_are_compared(theirs, holds, test):
    assert compare(SEEDS, theirs, 1) == (holds, test)
    assert compare(theirs, SEEDS, -1) == (holds, test)


def test_single_values_are_compared_whatever_their_seeds():
    one = "one number against another"
    assert compare({0: 1.0}, {1: 2.0}, -1) == ("yes", one)
    assert compare({0: 1.0}, {1: 2.0}, 1) == ("no", one)
    assert compare({0: 1.0}, {0: 1.0005}, -1) == ("yes", one)
    assert compare({0: 1.0, 1: 1.0}, {2: 2.0}, 1, "seeds of data") == ("not distinguishable", "no common seeds of data")


def test_claims_are_about_repetitions_of_the_data():
    """Two seeds of data with three of cohorts each are two: the means of the cohorts decide, and a baseline has one."""
    ours = {(seed, data): 1.0 + seed + data for seed in range(3) for data in range(2)}
    theirs = {(seed, data): 4.0 - seed + data for seed in range(3) for data in range(2)}  # larger in the mean
    solution = {(None, data): 1.5 + data for data in range(2)}
    kind = "seeds of data, each the mean of 3 runs"
    assert compare(ours, theirs, -1, kind) == ("yes", f"the same sign in each of 2 {kind}")
    assert compare(ours, solution, 1, kind) == ("yes", f"the same sign in each of 2 {kind}")
    assert compare(ours, {None: 4.0}, -1, kind) == ("yes", f"in each of 2 {kind}")


@pytest.mark.parametrize(("resolution", "holds"), [(1e-6, "not distinguishable"), (1e-14, "yes")])
def test_claims_decide_nothing_on_gaps_below_the_rounding_of_the_objective(resolution, holds):
    """Gaps of -6.3e-8 and 1.75e-7 are rounding in float32, as is one below a target of 1e-9."""
    frame = pd.DataFrame({"algo": ["newton", "gram"], "data": "x", "status": "done", "resolution": resolution,
                          "tail_suboptimality": [-6.3e-8, 1.75e-7]})  # fmt: skip
    runs = RunTable(frame)
    rows = [[{"round": 2, "bytes_up": 1, "suboptimality": gap}] for gap in frame["tail_suboptimality"]]
    measurements = claims.Measurements(runs, runs, {"newton": [(0, rows[0])], "gram": [(0, rows[1])]}, rows)
    of_gap = {"algo": "newton", "metric": "suboptimality", "above": []}
    for changes in ({"below": ["gram"]}, {"below": [1e-9]}, {"at": {"rounds": 2}, "below": ["gram"]}):
        (row,) = claims.check_claims("fig", Figure("t", claims=[claim(**of_gap | changes)]), measurements)
        assert row["holds"] == holds
    for at in ("reach", "share"):
        given = of_gap | {"at": at, "target": 1e-9, "below": [5]}
        (row,) = claims.check_claims("fig", Figure("t", claims=[claim(**given)]), measurements)
        assert row["holds"] == ("yes" if holds == "yes" else "not comparable")
        assert ("below the rounding of the objective, 1e-06: claim a larger" in row["note"]) == (holds != "yes")


@pytest.mark.parametrize("changes", [{"at": "reach", "target": 0.5}, {"at": {"rounds": 2}}])
def test_rounds_of_one_upload_and_of_a_cohort_are_not_compared(changes):
    """The server of b does not wait, and has staleness; its 640 rounds are 40 of a cohort of 16."""
    frame = pd.DataFrame({"algo": ["a", "b"], "data": "x", "status": "done", "bytes_up": 8, "tail_support_f1": 0.6,
                          "mean_staleness": [None, 3.0]})  # fmt: skip
    rows = [[{"round": 2, "bytes_up": 1, "support_f1": value}] for value in (0.7, 0.6)]

    def check(frame):
        runs = RunTable(frame)
        measurements = claims.Measurements(runs, runs, {"a": [(0, rows[0])], "b": [(0, rows[1])]}, rows)
        given = {"above": ["b"]} | changes
        return claims.check_claims("fig", Figure("t", claims=[claim(**given)]), measurements)[0]

    row = check(frame)
    assert row["holds"] == "not comparable"
    assert row["note"].startswith("a round of b is one upload, that of others is of a cohort: rounds do not compare")
    assert check(frame.drop(columns="mean_staleness"))["holds"] != "not comparable"
    assert warn_unequal_rounds(RunTable(frame), "support_f1") == [
        "a round of b is one upload, that of others is of a cohort: rounds do not compare; x=bytes and "
        "x=simulated_seconds draw comparable curves"
    ]


def test_equal_values_are_not_distinguishable():
    assert compare({0: 1.0, 1: 2.0}, {0: 1.0, 1: 2.0}, 1)[0] == "not distinguishable"
    assert compare({None: math.inf}, {None: math.inf}, -1)[0] == "not distinguishable"
    assert compare({None: math.inf}, {None: 5.0}, -1)[0] == "no"


def test_objectives_of_two_strengths_are_not_compared():
    """Their validation losses are, and so is the objective of one of them with a number. Two best points are no one."""

    def check(strengths, algos="ab", **changes):
        frame = pd.DataFrame({"algo": list(algos), "data": "x", "reg.strength": strengths, "status": "done",
                              "tail_objective": [2.0, 1.0], "tail_val_loss": [2.0, 1.0]})  # fmt: skip
        runs: dict[str, list[tuple[Any, Any]]] = {algo: [(0, [])] * algos.count(algo) for algo in algos}
        measurements = claims.Measurements(RunTable(frame), RunTable(frame), runs)
        (row,) = claims.check_claims("fig", Figure("t", claims=[claim(**changes)]), measurements)
        return row["holds"], row["note"]

    holds, note = check([0.1, 1.0], metric="objective", above=["b"])
    assert (holds, note[:62]) == ("not comparable", "objective is another function for each reg.strength: claim ano")
    assert check([0.1, 0.1], metric="objective", above=["b"]) == ("yes", "")
    assert check([0.1, 1.0], metric="val_loss", above=["b"]) == ("yes", "")
    assert check([0.1, 1.0], metric="objective", above=[0.5]) == ("yes", "")
    holds, note = check([0.1, 1.0], algos="aa", metric="val_loss", above=[0.5])
    assert (holds, note[:41]) == ("not comparable", "a has a best point for each reg.strength,")


@pytest.mark.parametrize("draw", ["bars", "few_rounds", "bytes_race", "graph_race", "personalised"])
def test_pictures_take_no_points_for_seeds(draw):
    frame = pd.DataFrame({"algo": "a", "data": "x", "reg.strength": [0.1, 1.0], "status": "done", "tail_val_loss": 1.0})
    runs = RunTable(frame)
    inputs = FigureInputs(Figure("t", draw=draw, panels=["suboptimality", "density"]), "val_loss", runs, [], runs, [])
    with fails("figure: a has a best point for each reg.strength, and runs of different problems have no common"):
        PICTURES[draw](inputs)


@pytest.mark.parametrize("of_gaps", [{"draw": "graph_race"}, {"verdicts": "few_rounds"}, {"panels": ["suboptimality"]}])
def test_pictures_and_verdicts_on_gaps_need_the_optimum(of_gaps):
    settings: Any = SimpleNamespace(reference=False, gap=False)
    check_gap_metrics(Figure("t"), [settings])
    with fails("figure: suboptimality is the gap to a reference optimum: give reference=true as well"):
        check_gap_metrics(Figure("t", **of_gaps), [settings])


@pytest.mark.parametrize("of_gaps", [{"draw": "graph_race"}, {"draw": "bytes_race"}, {"verdicts": "few_rounds"}])
def test_pictures_of_gaps_below_the_rounding_of_float32_need_float64(of_gaps):
    """A gap of -2e-7, which is rounding in float32, would count as one below 1e-13."""
    figure = Figure("t", panels=["suboptimality", "density"], **of_gaps)
    exact = Settings(reference=True, precision="float64")
    check_gap_metrics(figure, [exact])
    with fails("compares gaps far below the rounding of float32: give precision=float64 as well"):
        check_gap_metrics(figure, [exact, Settings(reference=True)])


@pytest.mark.parametrize("use", [{"draw": "personalised"}, {"verdicts": "personalised"}])
def test_personal_accuracies_need_classes_and_validation_rows(use):
    small = ["data.clients=2", "data.samples=4", "data.features=2", "clients_per_round=null"]
    classified, regression = (prepare(compose([f"data={name}", *small, f"data.{key}=1"])) for name, key in (
        ("heterogeneous", "shared_nonzeros"), ("lasso", "nonzeros")))  # fmt: skip
    check_accuracy(Figure("t", **use), classified)
    check_accuracy(Figure("t"), regression)
    with fails("figure: personalised compares val_accuracy, which data=lasso does not give"):
        check_accuracy(Figure("t", **use), regression)


def test_single_clients_of_averaging_have_one_run_each():
    record = SimpleNamespace(finished=True, config={"algo": {"client": 0}}, solution={"weights": [1.0]})
    for n_runs, sentence in [(0, "needs runs of algo=one_client that are done"), (2, "and client 0 has several")]:
        grid = SimpleNamespace(frame=pd.DataFrame({"algo": ["one_client"] * n_runs}))
        inputs: Any = SimpleNamespace(grid_records=[record] * n_runs, grid=grid)
        with fails(sentence):
            collect_client_solutions(inputs)


def test_rounds_to_a_target_are_of_the_fastest_point():
    """The point that is best at the end may be slower."""
    fast = [{"round": r, "bytes_up": 1, "support_f1": min(0.6, r / 10)} for r in range(10)]
    slow = [{"round": r, "bytes_up": 1, "support_f1": r / 9 if r > 8 else 0.0} for r in range(10)]
    grid = pd.DataFrame({"algo": "a", "data": "x", "algo.client_lr": [1.0, 2.0, 3.0],
                         "status": ["done", "done", "diverged"], "tail_support_f1": [0.6, 1.0, 0.0]})  # fmt: skip
    measurements = claims.Measurements(
        RunTable(grid), RunTable(grid), {"a": [(0, slow)]}, [fast, slow, [{"round": 0, "support_f1": 1.0}]]
    )
    (row,) = claims.check_claims(
        "fig", Figure("t", claims=[claim(at="reach", target=0.5, above=[4], below=[6])]), measurements
    )
    assert (row["measured"], row["holds"]) == ("rounds to support_f1 0.5: 5", "yes")


@pytest.mark.slow
def test_axes_of_an_experiment(fcorun):
    """The command line replaces axes of an experiment; further runs are added to the product of the axes."""
    axes = ("+experiment=fco_fig3a", "algo=fedmid", "algo.client_lr=0.001", "rounds=3", "dry_run=true")
    lines = fcorun("-m", *axes)[1].splitlines()
    assert lines[0] == "0 done, 8 to run; records in outputs/figures/fco_fig3a/runs/"
    assert sum("algo.server_lr=" in line and "algo=fedmid" in line for line in lines) == 7
    assert "algo=centralized" in lines[-1]
    assert "client_lr" not in lines[-1]
    assert "rounds=3" in lines[-1]


@pytest.mark.slow
def test_the_fast_version_loads_its_own_data(monkeypatch, tmp_path):
    only_digits = []

    def stop(_, values):
        only_digits.append(values["only_digits"])
        raise RuntimeError("stop")

    monkeypatch.setattr(sys.modules["fcorun.studies.figures.reproduce"], "build_plugin", stop)
    for fast in (True, False):
        with pytest.raises(RuntimeError, match="stop"):
            reproduce("fedsplit_fig2b", tmp_path, run_sweep_command, fast=fast)
    assert only_digits == [True, False]


def test_a_claim_that_rests_on_two_rates_says_so():
    fake_grid("s", seeds=(0,))
    table = build_table(load_records("s"))
    claim = Claim(says="so", algo="feddualavg", metric="support_f1", above=["fedmid"])
    note = claims._describe_short_grids(claim, table)
    assert note == "rests on two values each of algo.server_lr of feddualavg and fedmid"  # three client rates
    assert claims._describe_short_grids(replace(claim, algo="centralized", above=[0.5]), table) == ""
