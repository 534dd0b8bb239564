"""The ledger of an owner keeps the fills of gaps and the knots, whose changes from plan to plan would tell rows."""

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers import fails
from ledger_plans import selection_of, write_visits
from three_sites import plan_of

from fcorun.base.errors import UserError
from fcorun.sites.plan.plan import Plan
from fcorun.sites.plan.policy import Policy
from fcorun.sites.plan.site_options import SiteOptions
from fcorun.sites.server.server import Server
from fcorun.sites.site.acceptance import accept, open_durable_site
from fcorun.sites.tables.ledger import Ledger
from fcorun.sites.transport.connections import InProcessConnections


@pytest.fixture(autouse=True)
def table(tmp_path) -> pd.DataFrame:
    """Write visits.csv, and return its rows."""
    return write_visits()


def rows_of_first_site(plan: Plan, names: str, rename: dict[str, str] | None = None) -> np.ndarray:
    """Return the training rows from which the first of some sites computes, (N, d), in a selection those of a fold."""
    sites = {}
    for name in names:
        options = SiteOptions(f"{name}.csv", rename=rename)
        accept(Path(name), plan, options, Policy(alone="allow", ledger=f"ledger_{name}"))
        sites[name] = open_durable_site(Path(name), plan)
    connections = InProcessConnections({name: site.site for name, site in sites.items()})
    Server(plan, connections).load()
    for durable in sites.values():
        durable.close()
    site = sites["a"].site
    if plan.select is None:
        return site.own_data.train.x
    return site.folds.cells.encode({"fills": np.zeros(1), "informative": np.ones(3, bool)})


def write_three_sites(table, n_gaps: int) -> None:
    """Write a.csv with so many gaps of bmi, and two others whose patients are heavier."""
    for k, name in enumerate("abc"):
        frame = table[k * 130 : (k + 1) * 130].copy()
        frame["bmi"] += 2 * k
        if name == "a":
            frame.iloc[7 : 7 + n_gaps, frame.columns.get_loc("bmi")] = np.nan
        frame.to_csv(f"{name}.csv", index=False)


@pytest.mark.parametrize("second", ["mean", "median"])
def test_gaps_keep_their_fill_whoever_takes_part(table, second):
    """The difference of the sums of two honest plans would tell the rows with a gap in each column, 15 and 16 of them.

    The one less the other is a row. That the second plan has another name for a column changes nothing.
    """
    options = ("data.standardize=per_client", "data.validation=0")
    write_three_sites(table, n_gaps=15)
    rows = pd.read_csv("a.csv")
    rows.assign(age=rows["age"].mask(rows.index < 16)).to_csv("a.csv", index=False)
    x = rows_of_first_site(plan_of(*options, "data.ranges={age: [0, 100], bmi: [0, 60]}", "data.missing=mean"), "ab")
    ranges = "data.ranges={age: [0, 100], mass: [0, 60]}"
    plan = plan_of(*options, ranges, "seed=1", f"data.missing={second}")
    np.testing.assert_array_equal(rows_of_first_site(plan, "abc", rename={"bmi": "mass"}), x)
    np.testing.assert_array_equal(rows_of_first_site(plan, "abc", rename={"bmi": "mass"}), x)  # as after a restart
    (line,) = (line for line in Ledger(Path("ledger_a")).describe() if "kept" in line)
    assert line.count(", kept in place of ") == 2
    assert "'bmi' by" in line


def test_a_refused_plan_settles_nothing_for_later_plans(table, monkeypatch):
    def refuse(*_):
        raise UserError("refused after the fills were found")

    write_three_sites(table, n_gaps=15)
    with monkeypatch.context() as patch, fails("refused after"):
        patch.setattr("fcorun.sites.site.site.check_gaps", refuse)
        rows_of_first_site(plan_of("data.missing=mean", "data.validation=0"), "ab")
    assert [entry.fills for entry in Ledger(Path("ledger_a")).read()] == [{}]
    rows_of_first_site(plan_of("data.missing=mean", "data.validation=0", "seed=1"), "abc")
    (fills,) = (entry.fills for entry in Ledger(Path("ledger_a")).read() if entry.fills)
    assert fills.keys() == {"bmi"}


def test_knots_of_many_plans_may_not_tell_few_rows_together(table):
    """The knots of five plans in a row are those of a function that is 0 but in few rows between them."""
    write_three_sites(table, n_gaps=0)
    b = pd.read_csv("b.csv")
    for k in range(6):
        b.assign(bmi=b["bmi"] + 0.3 * k).to_csv("b.csv", index=False)
        plan = plan_of("data.validation=0", "data.splines={bmi: 3}", "data.ranges={bmi: [0, 60]}", f"seed={k}")
        with fails("with other knots of 'bmi'", "overlap=allow") if k == 5 else nullcontext():
            rows_of_first_site(plan, "ab")


def test_gaps_of_a_fold_keep_their_fill_in_all_plans(table):
    options = ("data.standardize=per_client", "data.validation=0", "data.missing=mean")
    write_three_sites(table, n_gaps=60)  # many of each fold
    x = rows_of_first_site(selection_of(*options), "ab")
    np.testing.assert_array_equal(rows_of_first_site(selection_of(*options, "seed=1"), "abc"), x)
    assert x[7:67, 1] == pytest.approx(x[7, 1])


def test_gaps_that_two_plans_filled_otherwise_are_refused_in_a_third(table):
    """The rows of the files of two years have two fills, which the file of both years cannot keep."""
    options = ("data.standardize=per_client", "data.validation=0", "data.missing=mean")
    write_three_sites(table, n_gaps=2)
    both = pd.read_csv("a.csv")
    both.loc[100, "bmi"] = np.nan
    for year, names in ((both[:65], "ab"), (both[65:], "abc")):
        year.to_csv("a.csv", index=False)
        rows_of_first_site(plan_of(*options, f"seed={len(names)}"), names)
    both.to_csv("a.csv", index=False)
    with fails("filled gaps of 'mass' by two values", "add 'mass' to data.ignore"):
        rows_of_first_site(plan_of(*options), "abc", rename={"bmi": "mass"})
