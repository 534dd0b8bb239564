"""Faults of a table that a pooled table and the file of a site tell alike, and units of targets."""

import numpy as np
import pandas as pd
import pytest
from helpers import composed

from fcorun.data.tables.data_warnings import warn_target_units
from fcorun.experiment.build import load_data
from fcorun.experiment.prepare import prepare
from fcorun.sites.plan.plan import Plan
from fcorun.sites.plan.policy import Policy
from fcorun.sites.plan.site_options import SiteOptions
from fcorun.sites.site.acceptance import compare_target_units, describe_site, list_warnings
from fcorun.sites.site.site import Site
from fcorun.sites.tables.planned_table import read_planned_table

N = 240
BINARY = ("data.target=died", "data.task=binary", "data.positive=1", "data.ignore=[time,cost,visits,years]")
TIME = ("data.target=time", "data.event=died", "objective=cox", "data.ignore=[cost,visits,years]")
COST = ("data.target=cost", "data.task=regression", "data.ignore=[time,died,visits,years]")
COUNTS = ("data.target=visits", "data.task=regression", "objective=poisson", "data.ignore=[time,died,cost,years]")


def patients(rng=None):
    rng = rng or np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.normal(60, 8, N).round(1), "bmi": rng.normal(25, 3, N).round(1)})
    frame["ward"] = rng.choice(["eye", "heart"], N)
    frame["died"] = np.arange(N) % 3 % 2
    frame["time"] = rng.exponential(20, N).round(2) + 0.1
    frame["cost"] = rng.lognormal(7, 0.5, N).round(1)
    frame["visits"] = rng.poisson(3, N)
    frame["years"] = rng.uniform(1, 2, N)
    return frame


def leak(frame):
    return frame.assign(code=np.where((frame["died"] == 1) & (np.arange(N) % 20 > 0), "Z51", "Z00"))


FAULTS = {  # a table's options, its fault, words about a pooled table, and words about the file of a site
    "a level that leaks": (BINARY, leak, "may have leaked into a feature: 'code=Z", None),
    "a code in a time": (
        TIME,
        lambda t: t.assign(time=t["time"].where(np.arange(N) > 11, 9999)),
        "has 9999 in 12",
        None,
    ),
    "a code in a cost": (
        COST,
        lambda t: t.assign(cost=t["cost"].where(np.arange(N) > 2, 999999)),
        "has 999999 in",
        None,
    ),
    "fractions of counts": (COUNTS, lambda t: t.assign(visits=t["visits"] + 0.5), "240 of 240 target", None),
    "a code in an offset": (
        (*COUNTS[:-1], "data.ignore=[time,died,cost]", "data.offset=years"),
        lambda t: t.assign(years=t["years"].where(np.arange(N) > 2, 999)),
        "'the offset' has 999 in 3 rows",
        None,
    ),
    "a constant": (BINARY, lambda t: t.assign(bmi=25.0), "one value in all training rows of 'bmi':", "of 'bmi' here"),
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def remarks_of_a_table(options, frame):
    frame.assign(hospital=np.repeat(["a", "b"], N // 2)).to_csv("all.csv", index=False)
    table = ("data=table", "data.path=all.csv", "data.client=hospital", "data.validation=0")
    return " ".join(load_data(prepare(composed("algo=newton", *table, *options))).warnings)


def read_site(options, frame, name="a"):
    frame.to_csv(f"{name}.csv", index=False)
    plan = Plan.from_experiment(prepare(composed("algo=newton", "data=sites", *options, "data.validation=0")))
    return plan, read_planned_table(plan, SiteOptions(f"{name}.csv"), Policy(alone="allow"))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_told_of_a_pooled_table_and_of_the_file_of_a_site(fault):
    options, plant, pooled_words, site_words = FAULTS[fault]
    words = site_words or pooled_words
    assert pooled_words in remarks_of_a_table(options, plant(patients()))
    assert words in " ".join(list_warnings(read_site(options, plant(patients()))[1]))
    assert pooled_words not in remarks_of_a_table(options, patients())
    assert words not in " ".join(list_warnings(read_site(options, patients())[1]))


UNITS = {"days": 365.25 / 12, "years": 1 / 12, "months": 1.0}


@pytest.mark.parametrize("unit", UNITS)
def test_a_hospital_with_another_unit_of_time_is_named(unit):
    """The times of hospital b are in days or years, and those of hospital a in months."""
    frame = patients()
    is_b = np.arange(N) >= N // 2
    frame["time"] = frame["time"] * np.where(is_b, UNITS[unit], 1)
    expected = unit != "months"
    assert ("may have another unit" in remarks_of_a_table(TIME, frame)) == expected
    tables = {}
    for name, rows in (("b", is_b), ("a", ~is_b)):
        plan, tables[name] = read_site(TIME, frame[rows], name)
    assert len(compare_target_units(tables)) == expected
    site = Site(plan, SiteOptions("a.csv"), Policy(alone="allow"))
    assert "its unit must be that of all other sites" in " ".join(describe_site(site))


def test_units_of_numbers_are_compared_and_ordinary_differences_of_hospitals_are_none():
    rng = np.random.default_rng(1)
    client = np.repeat([0, 1, 2], 100)
    weights = rng.normal(3300, 500, 300)
    assert "client 'c'" in warn_target_units(np.where(client == 2, weights / 1000, weights), client, "abc")[0]
    temperatures = rng.normal(37, 0.5, 300)
    fahrenheit = np.where(client == 1, 32 + 1.8 * temperatures, temperatures)
    assert "client 'b'" in warn_target_units(fahrenheit, client, "abc")[0]
    for _ in range(50):
        times = rng.exponential(20, 300) * np.array([1, 2, 5])[client]
        assert warn_target_units(times, client, "abc") == []
