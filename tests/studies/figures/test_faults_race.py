"""The verdicts and the picture of faults_race, on a table of runs by hand."""

import itertools

import numpy as np
import pandas as pd
from helpers import fails

from fcorun.reports.run_table import RunTable
from fcorun.studies.figures.figure_inputs import FigureInputs
from fcorun.studies.figures.papers.faults_race import check_faults, draw_faults
from fcorun.studies.figures.spec import Figure


def inputs_of(frame):
    runs = RunTable(frame)
    return FigureInputs(Figure("t", draw="faults_race", panels=["objective"]), "objective", runs, [], runs, [])


def table_of_runs():
    """Return runs of two seeds: liars double the mean's objective, and the median's in one seed alone."""
    rows = []
    for rule, (liars, dropout), seed in itertools.product(("mean", "median"), ((0, 0), (0.3, 0), (0, 0.3)), (0, 1)):
        objective = 1.0 + (rule == "median") * 0.5
        if liars and (rule == "mean" or seed):
            objective = 2.0 + (rule == "median")
        keys = {"aggregate": rule, "faults.liars": liars, "faults.dropout": dropout, "seed": seed}
        ends = {"status": "done", "tail_objective": objective, "bytes_up": 1}
        rows.append({"algo": "a", "data": "d", **keys, **ends})
    return pd.DataFrame(rows)


def test_verdicts_compare_seed_by_seed():
    answers = {row["says"]: row["holds"] for row in check_faults(inputs_of(table_of_runs()))}
    assert answers == {
        "liars of 30 % raise the objective of the mean by a tenth": "yes",
        "with liars of 30 %, median ends below the mean": "not distinguishable",
        "without faults, the mean ends below median": "yes",
        "dropouts of 30 % change the objective of the mean by less than a hundredth": "yes",
    }


def test_a_run_that_diverged_is_above_all_others_and_not_drawn():
    frame = table_of_runs()
    frame.loc[(frame["aggregate"] == "mean") & (frame["faults.liars"] > 0), "status"] = "diverged"
    rows = check_faults(inputs_of(frame))
    assert (rows[0]["holds"], rows[0]["measured"]) == ("yes", "inf and 1.1")
    (ax,) = draw_faults(inputs_of(frame)).axes
    assert [list(line.get_xdata()) for line in ax.lines] == [[0], [0, 30], [0, 30], [0, 30]]


def test_a_failed_run_decides_nothing():
    frame = table_of_runs()
    of_mean = (frame["aggregate"] == "mean") & (frame["faults.liars"] > 0)
    frame.loc[of_mean & (frame["seed"] == 0), ["status", "tail_objective"]] = ["failed", np.nan]
    (row, *_) = check_faults(inputs_of(frame))
    assert (row["holds"], row["note"]) == ("not decided", "1 of 2 seeds of cohorts lost")
    frame.loc[of_mean, ["status", "tail_objective"]] = ["failed", np.nan]
    (row, *_) = check_faults(inputs_of(frame))
    assert (row["holds"], row["measured"], row["note"]) == ("not measured", "", "2 of 2 seeds of cohorts lost")


def test_equal_numbers_and_two_divergences_are_not_told_apart():
    frame = table_of_runs()
    frame["tail_objective"] = 1.0
    frame.loc[frame["faults.liars"] > 0, "status"] = "diverged"
    answers = {row["says"]: row["holds"] for row in check_faults(inputs_of(frame))}
    assert answers["with liars of 30 %, median ends below the mean"] == "not distinguishable"
    assert answers["without faults, the mean ends below median"] == "not distinguishable"


def test_a_seed_of_one_side_is_compared_with_no_other_seed():
    frame = table_of_runs()
    frame = frame[(frame["aggregate"] == "median") | (frame["faults.liars"] == 0) | (frame["seed"] == 1)]
    (row, *_) = check_faults(inputs_of(frame.reset_index(drop=True)))
    assert row["holds"] == "not distinguishable"
    assert row["test"].endswith("the 1 common seed of cohorts: too few")


def test_other_runs_are_refused():
    with fails("needs runs that differ in aggregate"):
        draw_faults(inputs_of(table_of_runs().drop(columns="aggregate")))
