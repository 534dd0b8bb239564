"""Costs of methods of few rounds, from curves of which the answers are known."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers import fails

from fcorun.studies.figures.papers import races
from fcorun.studies.figures.reproduce import PAPER_CHECKS
from fcorun.studies.figures.spec import load_figure


def run_of(gaps, bytes_up):
    """Return the rows of a run with these gaps, which sends as much as it receives."""
    columns = zip(gaps, bytes_up, strict=True)
    return [{"round": k, "bytes_up": sent, "bytes_down": sent, "suboptimality": gap, "recovery_error": gap}
            for k, (gap, sent) in enumerate(columns)]  # fmt: skip


ONE_SHOT = run_of([1, 1e-3, 1e-3, 1e-3], [0, 50_000, 50_000, 50_000])
GRADIENTS = run_of([1, 2e-2, 5e-4, 1e-5], [0, 10_000, 20_000, 30_000])


def test_a_curve_is_the_median_of_what_is_sent():
    curve = races.median_curve([ONE_SHOT, run_of([1, 3e-3, 1, 1], [0, 50_000, 50_000, 50_000])])
    assert curve["rounds"].tolist() == [1]
    assert curve["bytes"].tolist() == [100_000]
    np.testing.assert_allclose(curve["suboptimality"], 2e-3)


def test_bytes_are_those_of_all_levels():
    rows = [{**row, "edge_bytes_up": 7 * row["round"]} for row in GRADIENTS]
    assert races.median_curve([rows])["bytes"].tolist() == [20_007, 40_014, 60_021]


def test_a_run_that_sends_nothing_has_no_curve():
    with fails("a run that sends nothing", "leave it out of the figure"):
        races.median_curve([run_of([1, 1e-9], [0, 0])])


def _inputs(algos, **lost_seeds_notes):
    """Return the inputs of the verdict for the rows of each algorithm."""
    inputs: Any = SimpleNamespace(
        check_one_best_point=lambda: None,
        algorithms=list(algos),
        figure=SimpleNamespace(panels=["suboptimality", "recovery_error"]),
        tuned=SimpleNamespace(frame=pd.DataFrame({"algo": list(algos)})),
        tuned_records=[SimpleNamespace(rows=rows) for rows in algos.values()],
        lost_seeds_notes=lost_seeds_notes,
    )
    return inputs


def test_a_metric_that_was_not_measured_is_named():
    on_a_table = [{name: value for name, value in row.items() if name != "recovery_error"} for row in GRADIENTS]
    with fails("figure: mine did not measure recovery_error: take another metric"):
        races.draw_costs(_inputs({"one_shot": ONE_SHOT, "mine": on_a_table}))


def test_the_cheapest_method_of_each_gap():
    rows = PAPER_CHECKS["few_rounds"](_inputs({"one_shot": ONE_SHOT, "gradients": GRADIENTS}))
    assert [(row["algo"], row["holds"]) for row in rows] == [
        *[("one_shot", "no"), ("gradients", "yes")],  # bytes
        *[("one_shot", "yes"), ("gradients", "yes")],  # rounds
    ]
    assert [row["measured"].partition(";")[0] for row in rows] == [
        *["for no gap", "for gaps from 0.1 to 1e-05"],
        *["for gaps from 0.1 to 0.001", "for gaps from 0.1 to 0.03, from 0.0008 to 1e-05"],
    ]
    assert "ends at 0.001 after 1 round and 100 kB" in rows[0]["measured"]
    lost = "gradients diverged with 1 of 3 seeds"
    rows = PAPER_CHECKS["few_rounds"](_inputs({"one_shot": ONE_SHOT, "gradients": GRADIENTS}, gradients=lost))
    assert [(row["holds"], row["note"]) for row in rows] == [("no", lost), *3 * [("not decided", lost)]]


def test_costs_between_evaluations_are_bounds():
    """Either of two methods that arrive in rounds 11 to 20 may be the cheaper one; one that leaves has not come."""
    sparse = [row | {"round": 10 * row["round"]} for row in run_of([1, 1, 1e-12], [0, 10_000, 20_000])]
    leaves = [row | {"round": 10 * row["round"]} for row in run_of([1, 1e-12, 1], [0, 10_000, 20_000])]
    rows = PAPER_CHECKS["few_rounds"](_inputs({"one": sparse, "other": sparse, "leaves": leaves}))
    assert [row["holds"] for row in rows] == 2 * ["not distinguishable", "not distinguishable", "no"]
    assert {row["test"] for row in rows} == {"evaluations too far apart", ""}
    exact = run_of([1, *[1] * 9, 1e-12], [0, *range(1_000, 11_000, 1_000)])  # in round 10 for certain
    rows = PAPER_CHECKS["few_rounds"](_inputs({"one": sparse, "exact": exact}))
    assert [row["holds"] for row in rows] == 2 * ["no", "yes"]


def test_ranges_of_gaps_have_holes():
    is_least = np.zeros(91, bool)
    is_least[[0, 1, 2, 10, 11, 90]] = True
    assert races._describe_gaps(is_least) == "for gaps from 0.1 to 0.06, from 0.01 to 0.008, from 1e-10 on"


@pytest.mark.parametrize("name", ["few_rounds", "few_rounds_logistic"])
def test_the_figures_are_valid(name):
    figure, config = load_figure(name)
    assert figure.draw == figure.verdicts == "few_rounds"
    assert config["reference"]
