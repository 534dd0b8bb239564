"""The verdicts and the picture of privacy_race, on a table of runs by hand."""

import itertools

import numpy as np
import pandas as pd
from figure_checks import draw_checked
from helpers import fails

from fcorun.reports.run_table import RunTable
from fcorun.studies.figures.figure_inputs import FigureInputs
from fcorun.studies.figures.papers.privacy_race import check_privacy, draw_privacy
from fcorun.studies.figures.spec import Figure

SCORES = {"a": {0.5: 0.2, 2: 0.8, 16: 0.96, np.nan: 1.0}, "b": {0.5: 0.7, 2: 0.7, 16: 0.7, np.nan: 0.72}}


def inputs_of(frame):
    runs = RunTable(frame)
    figure = Figure("t", draw="privacy_race", panels=["support_f1", "objective"])
    return FigureInputs(figure, "support_f1", runs, [], runs, [])


def table_of_runs():
    """Return best points of two methods and two seeds, of clients and of rows, whose scores are higher by 0.01."""
    rows = []
    for algo, (unit, clients), seed in itertools.product(SCORES, (("client", 1000), ("row", 20)), (0, 1)):
        for epsilon, score in SCORES[algo].items():
            keys = {"data.clients": clients, "privacy.epsilon": epsilon, "data.seed": seed}
            keys["privacy.unit"] = None if np.isnan(epsilon) else unit
            ends = {"status": "done", "tail_support_f1": score + 0.01 * (unit == "row"), "tail_objective": 0.1}
            rows.append(
                {"algo": algo, "data": "d", "reg": "l1" if algo == "a" else "l1_ball", **keys, **ends, "bytes_up": 1}
            )
    return pd.DataFrame(rows)


def test_verdicts_compare_seed_by_seed_within_each_unit():
    answers = {
        (row["algo"], row["says"]): (row["measured"], row["holds"]) for row in check_privacy(inputs_of(table_of_runs()))
    }
    for unit, more in (("client", 0), ("row", 0.01)):
        says = f"privacy of {unit}s: "
        assert answers["a", f"{says}epsilon 16 costs less than 0.05 of the F1 score"][1] == "yes"
        assert answers["a", f"{says}epsilon 0.5 costs more than 0.05 of it"][1] == "yes"
        assert answers["b", f"{says}epsilon 0.5 costs more than 0.05 of it"][1] == "no"
        compared = answers["b", f"{says}at epsilon 2 a has a higher F1 score"]
        assert compared == (f"{0.8 + more:.4g} and {0.7 + more:.4g}", "yes")
    assert len(answers) == 10


def test_a_column_of_panels_has_the_runs_of_a_unit():
    figure = draw_checked(draw_privacy, inputs_of(table_of_runs()))
    assert [ax.get_title() for ax in figure.axes[:2]] == [
        "privacy of clients: 1,000 clients",
        "privacy of rows: 20 clients",
    ]
    of_a, dotted, *_ = figure.axes[1].lines
    np.testing.assert_allclose(of_a.get_ydata(), [0.21, 0.81, 0.97])
    np.testing.assert_allclose(dotted.get_ydata(), 1.01)
    assert [len(ax.lines) for ax in figure.axes] == [4, 4, 2, 2]  # the objective of b is another function


def test_other_runs_are_refused():
    with fails("needs runs that differ in privacy.epsilon"):
        draw_privacy(inputs_of(table_of_runs().drop(columns="privacy.epsilon")))
