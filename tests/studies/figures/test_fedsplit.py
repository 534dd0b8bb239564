"""FedGD, FedProx and FedSplit: closed forms, contraction factors, and rounds against the condition number."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import boxes
import numpy as np
import pytest
from helpers import fails, small

from fcorun import run
from fcorun.base.records.record import Record
from fcorun.experiment.configuration.compose import compose, compose_shared
from fcorun.experiment.prepare import prepare
from fcorun.interface.cli.hydra_app import run_sweep_command
from fcorun.reports.build_table import build_table
from fcorun.studies.figures.figure_inputs import FigureInputs
from fcorun.studies.figures.papers import fedsplit_figures as fedsplit
from fcorun.studies.figures.reproduce import PICTURES, reproduce
from fcorun.studies.figures.spec import load_figure


@pytest.mark.slow
def test_fixed_points_and_contraction_on_a_small_figure(tmp_path):
    """Closed forms and theorem 1 hold on figure 1 of the FedSplit paper with less data, whose clients differ."""
    small = ("data.clients=5", "data.samples=60", "data.features=8", "data.heterogeneity=0.3", "verbose=false")
    result = reproduce("fedsplit_fig1", tmp_path, run_sweep_command, overrides=(*small, "rounds=80"))
    folder, rows = result.folder, result.rows
    assert (folder / "figure.png").exists()
    assert {row["algo"] for row in rows} == {"fedgd_1", "fedgd_10", "fedgd_100", "fedprox", "fedsplit"}
    assert {row["holds"] for row in rows} == {"yes"}
    assert sum("biased fixed point" in row["says"] for row in rows) == 3


@pytest.mark.parametrize("parameter", ["steps", "mu"])
def test_fixed_points_in_closed_form(parameter):
    rng = np.random.default_rng(0)
    half = rng.standard_normal((4, 5, 5))
    h, c, p = half @ half.mT / 5, rng.standard_normal((4, 5)), np.array([0.1, 0.2, 0.3, 0.4])
    if parameter == "steps":
        ours, theirs = (
            fedsplit.compute_fixed_point({"step": 0.1, "steps": 7}, h, c, p),
            boxes.fedgd_fixed_point(h, c, p, 0.1, 7),
        )
    else:
        ours, theirs = fedsplit.compute_fixed_point({"mu": 0.7}, h, c, p), boxes.fedprox_fixed_point(h, c, p, 1 / 0.7)
    np.testing.assert_allclose(ours, theirs, atol=1e-10)


def test_estimated_and_predicted_contraction():
    rows = [{"round": r, "suboptimality": 3 * 0.25**r} for r in range(40)]
    assert fedsplit.estimate_contraction(rows) == pytest.approx(0.5)
    assert fedsplit.predict_contraction(9.0) == pytest.approx(0.5)


def test_of_several_runs_at_a_condition_number_the_fastest_counts():
    records: Any = []
    for kappa, first in ((100, 30), (100, 10), (100, 20), (1000, 40)):
        rows = [{"round": r, "suboptimality": float(r < first)} for r in range(60)]
        config = {"algo": {"name": "fedgd"}, "data": {"name": "d", "condition": kappa}}
        records.append(SimpleNamespace(finished=True, rows=rows, config=config))
    rounds = fedsplit.collect_rounds_to_target(records)["fedgd"]
    assert {kappa: reached.latest for kappa, reached in rounds.items()} == {100: 10, 1000: 40}


def test_a_problem_without_curvature_has_no_contraction():
    record: Any = SimpleNamespace(config={"algo": {"name": "fedsplit"}}, summary={"curvature": None}, rows=[])
    assert fedsplit._check_contraction(record)["holds"] == "not measured"


@pytest.mark.parametrize("overrides", [["objective.ridge=0.1"], ["reg=l1"]])
def test_fixed_points_are_those_of_plain_least_squares(overrides):
    with fails(
        "figure: the theorems on FedGD, FedProx and FedSplit are checked for objective=least_squares without a ridge"
    ):
        fedsplit._check_problem(prepare(small("algo=fedgd", "reg=none", *overrides)))


def _run_at(kappa, gaps, *overrides):
    """Return a run of data of this condition number, with these gaps after each round."""
    config = compose(["data=least_squares_conditioned", f"data.condition={kappa}", *overrides])
    rows = [{"round": r, "suboptimality": gap} for r, gap in enumerate(gaps)]
    return SimpleNamespace(config=config, finished=True, rows=rows, summary={"curvature": None})


def test_slopes_are_of_the_methods_of_the_theorems_and_name_each_kappa_without_the_gap():
    """A name is no method, and a slope of one number of rounds is not measured."""
    methods = ["algo=fedsplit_accelerated algo.name=fedsplit", "algo=fedsplit algo.name=mine", "algo=fedgd"]
    of_mine = {100: [1] * 10 + [1e-4], 1000: [1] * 30 + [1e-4], 10_000: [1, 1]}
    runs: Any = []
    for method in methods:
        gaps_by_kappa = of_mine if "mine" in method else {100: [1, 1e-4], 10_000: [1, 1]}
        runs += [_run_at(kappa, gaps, *method.split()) for kappa, gaps in gaps_by_kappa.items()]
    rows = [row for row in fedsplit.check_conditioning(runs) if "linear convergence" not in row["says"]]
    assert [(row["algo"], row["wanted"][:9], row["measured"], row["holds"]) for row in rows] == [
        ("mine", "about 0.5", "0.477", "yes"),
        ("mine", "about 400", "never", "no"),
        ("fedgd", "about 1: ", "nan", "not measured"),
        ("fedgd", "about 340", "never", "no"),
    ]
    assert [row["note"] for row in rows] == ["the gap is not reached at kappa = 10,000", ""] * 2
    del runs[0].config["data"]["condition"]
    with fails("needs data.condition, which data=least_squares_conditioned lacks"):
        fedsplit.collect_rounds_to_target(runs)


@pytest.mark.slow
def test_rounds_against_the_condition_number(tmp_path):
    """Rounds of FedGD grow with kappa, those of FedSplit with its root; the picture shows both, and the target."""
    small = ("+experiment=fedsplit_fig3", "data.clients=3", "data.features=6", "data.samples=30", "eval_every=1")
    points = [(kappa, algo) for kappa in (100, 1000) for algo in (
        f"algo=fedgd algo.step={1 / (1 + kappa)} rounds={4 * kappa}", "algo=fedsplit rounds=190")]  # fmt: skip
    records = [
        run(compose_shared([*small, f"data.condition={kappa}", *algo.split()]), tmp_path / f"{kappa}{algo[5:12]}")
        for kappa, algo in points
    ]
    rounds_by_algorithm = fedsplit.collect_rounds_to_target(records)
    for name, reached in rounds_by_algorithm.items():
        assert list(reached) == [100, 1000]
        expected = [next(row["round"] for row in r.rows if row["suboptimality"] <= 1e-3)
                    for r in records if r.config["algo"]["name"] == name]  # fmt: skip
        assert [reach.latest for reach in reached.values()] == expected
        assert all(reach.earliest == reach.latest for reach in reached.values())  # evaluated in every round
    checks = fedsplit.check_conditioning(records)
    assert {row["holds"] for row in checks} == {"yes"}
    assert [row["algo"] for row in checks] == ["fedgd", "fedsplit", "fedsplit", "fedsplit"]  # two slopes, two factors
    runs = build_table(records)
    inputs = FigureInputs(
        load_figure("fedsplit_fig3")[0], "suboptimality", runs, records, tuned=runs, tuned_records=records
    )
    (tmp_path / "failed").mkdir()  # without a configuration
    inputs = replace(inputs, grid_records=[*records, Record(tmp_path / "failed")])
    left, right = PICTURES["conditioning"](inputs).axes
    assert len(left.lines) == 5
    assert len({(line.get_color(), line.get_linestyle()) for line in left.lines}) == 5
    for reached, line in zip(rounds_by_algorithm.values(), right.lines[::2], strict=True):
        np.testing.assert_array_equal(line.get_data(), (list(reached), [reach.latest for reach in reached.values()]))
