"""Missing values by outcome: counts, shares and means."""

import numpy as np
import pandas as pd
import pytest

from fcorun.data.datasets.table import Table
from fcorun.data.tables.imputation.missing_by_outcome import count_gaps
from fcorun.data.tasks import Binary

RNG = np.random.default_rng(7)


def test_counts_and_shares_by_client():
    gaps = {"lab": np.array([1, 0, 0, 0, 1, 1, 0, 0]) > 0, "age": np.zeros(8, bool)}
    y = np.array([1, 1, 0, 0, 1, 1, 0, 1])
    options: dict = {"task": Binary(), "classes": ("no", "yes"), "client_names": ["a", "b"]}
    rows = count_gaps(gaps, y, np.array([0, 4, 8]), **options)
    assert [(row["column"], row["client"], row["rows"], row["missing"]) for row in rows] == [
        ("lab", "", 8, 3), ("lab", "a", 4, 1), ("lab", "b", 4, 2)]  # fmt: skip
    whole = rows[0]
    assert (whole["outcome"], whole["events"], whole["missing_among_events"], whole["share_among_events"]) == (
        "yes", 5, 3, 0.6)  # fmt: skip
    group = np.array([*"aaabccde"])
    by_group = count_gaps(gaps, y, np.array([0, 4, 8]), **options, group=group)
    assert [row.pop("groups") for row in by_group] == [2, 1, 1]
    assert by_group == rows
    assert (whole["others"], whole["missing_among_others"], whole["share_among_others"]) == (3, 0, 0.0)


@pytest.mark.parametrize("task", ["binary", "regression"])
def test_gaps_of_a_table_are_counted_by_outcome(task):
    n = 400
    score = RNG.normal(size=n)
    table = pd.DataFrame({"lab": RNG.normal(size=n), "age": RNG.normal(size=n), "site": RNG.choice(["a", "b"], n)})
    table.loc[RNG.random(n) < np.where(score > 0, 0.5, 0.1), "lab"] = np.nan
    table.loc[RNG.random(n) < 0.2, "age"] = np.nan
    table["y"] = np.where(score > 0, "dead", "alive") if task == "binary" else score
    table.to_csv("rows.csv", index=False)
    data = Table("rows.csv", target="y", client="site", task=task, missing="mean", positive=None).load()
    lab = next(row for row in data.features.missing if row["column"] == "lab" and not row["client"])
    if task == "binary":
        assert lab["share_among_events"] > lab["share_among_others"] + 0.2
    else:
        assert lab["mean_where_missing"] > lab["mean_where_present"] + 0.2
    assert {row["column"] for row in data.features.missing} == {"lab", "age"}
    assert sum(row["rows"] for row in data.features.missing if row["client"] and row["column"] == "lab") == len(
        data.train
    )
