"""Missing values by outcome: counts, shares, means, and tests within clients."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import fisher_exact, permutation_test

from fcorun.data.datasets.table import Table
from fcorun.data.tables.imputation.missing_by_outcome import compare_gaps, exact_p_value, permutation_p_value
from fcorun.data.tasks import Binary

RNG = np.random.default_rng(7)
ONE = [slice(None)]


@pytest.mark.parametrize(("n", "share"), [(12, 0.3), (40, 0.1), (500, 0.4)])
def test_with_one_client_the_test_is_fishers(n, share):
    gap, event = RNG.random(n) < share, RNG.random(n) < 0.4
    table = [[(gap & event).sum(), (gap & ~event).sum()], [(~gap & event).sum(), (~gap & ~event).sum()]]
    assert exact_p_value(gap, event, ONE) == pytest.approx(fisher_exact(table)[1], rel=1e-9)


def test_within_clients_the_test_is_that_of_all_permutations():
    """All ways to place three and two gaps among the rows of two clients."""
    from itertools import combinations

    event = np.array([1, 1, 0, 0, 0, 1, 0, 1, 1, 0, 0]) > 0
    gap = np.array([1, 1, 0, 1, 0, 0, 1, 1, 0, 0, 0]) > 0
    counts = [event[list(first)].sum() + event[list(second)].sum()
              for first in combinations(range(6), 3) for second in combinations(range(6, 11), 2)]  # fmt: skip
    values, frequency = np.unique(counts, return_counts=True)
    observed = frequency[values == (gap & event).sum()]
    expected = frequency[frequency <= observed].sum() / frequency.sum()
    assert exact_p_value(gap, event, [slice(0, 6), slice(6, 11)]) == pytest.approx(expected, rel=1e-12)


def test_a_client_with_more_gaps_and_more_events_is_no_dependence():
    event = np.repeat([True, False, True, False], [90, 10, 10, 90])
    gap = np.concatenate([np.arange(100) % 2 == 0, np.arange(100) % 10 == 0])
    pooled, within = exact_p_value(gap, event, ONE), exact_p_value(gap, event, [slice(0, 100), slice(100, 200)])
    assert pooled is not None
    assert within is not None
    assert pooled < 1e-4 < 0.5 < within


def test_extreme_and_impossible_tables():
    event = np.repeat([True, False], 2000)
    p_value = exact_p_value(event.copy(), event, ONE)
    assert p_value is not None
    assert 0 < p_value <= 1e-20
    assert exact_p_value(np.ones(10, bool), event[:10], ONE) is None  # no other count is possible


@pytest.mark.slow
def test_means_are_compared_by_permutations_within_clients():
    y = np.concatenate([RNG.normal(0, 1, 30), RNG.normal(10, 3, 50)])
    gap = RNG.random(80) < 0.4
    clients = [slice(0, 30), slice(30, 80)]
    centred = np.concatenate([y[c] - y[c].mean() for c in clients])
    draws = np.array([sum(centred[c][RNG.permutation(gap[c])].sum() for c in clients) for _ in range(20_000)])
    observed = centred[gap].sum()
    assert permutation_p_value(gap, y, clients) == pytest.approx((abs(draws) >= abs(observed)).mean(), abs=0.015)
    alone = permutation_test((y[:30][gap[:30]], y[:30][~gap[:30]]), lambda a, b: a.mean() - b.mean(), rng=1)
    assert permutation_p_value(gap[:30], y[:30], ONE) == pytest.approx(alone.pvalue, abs=0.03)
    assert permutation_p_value(np.arange(30) < 3, y[:30], ONE) is None


def test_targets_that_are_constant_within_clients_have_no_test():
    """Their means differ from them by rounding, as their variance from 0 does."""
    y, gap = np.repeat([0.1, 0.3], 200), np.tile(np.arange(200) < 120, 2)
    gap[220:] = False
    assert permutation_p_value(gap, y, [slice(0, 200), slice(200, 400)]) is None


def test_counts_and_shares_by_client():
    gaps = {"lab": np.array([1, 0, 0, 0, 1, 1, 0, 0]) > 0, "age": np.zeros(8, bool)}
    y = np.array([1, 1, 0, 0, 1, 1, 0, 1])
    options: dict = {"task": Binary(), "classes": ("no", "yes"), "client_names": ["a", "b"]}
    rows, warnings = compare_gaps(gaps, y, np.array([0, 4, 8]), **options)
    assert [(row["column"], row["client"], row["rows"], row["missing"]) for row in rows] == [
        ("lab", "", 8, 3), ("lab", "a", 4, 1), ("lab", "b", 4, 2)]  # fmt: skip
    whole = rows[0]
    assert (whole["outcome"], whole["events"], whole["missing_among_events"], whole["share_among_events"]) == (
        "yes", 5, 3, 0.6)  # fmt: skip
    assert (whole["others"], whole["missing_among_others"], whole["share_among_others"]) == (3, 0, 0.0)
    assert warnings == []  # eight rows say nothing


def test_gaps_of_patients_with_several_visits_have_no_p_value():
    """Six of 40 patients of 10 visits have gaps, 5 of these with the outcome: of visits p is 2e-8, of patients 0.18."""
    outcome = np.repeat(np.arange(40) < 20, 10).astype(int)
    gap = np.repeat(np.isin(np.arange(40), [0, 1, 2, 3, 4, 20]), 10)
    options: dict = {"task": Binary(), "classes": ("no", "yes"), "client_names": ["a"]}
    bounds = np.array([0, 400])
    rows, warnings = compare_gaps({"lab": gap}, outcome, bounds, **options)
    assert rows[0]["p_value"] < 1e-7
    assert "gaps depend on the outcome" in warnings[0]
    rows, warnings = compare_gaps({"lab": gap}, outcome, bounds, group=np.repeat(np.arange(40), 10), **options)
    assert [row["p_value"] for row in rows] == [None, None]
    assert rows[0]["share_among_events"] == 0.25
    assert len(warnings) == 1
    assert "gaps by outcome have no p value, since tests take rows of a group" in warnings[0]
    patients = {"lab": gap[::10]}
    rows, _ = compare_gaps(patients, outcome[::10], np.array([0, 40]), group=np.arange(40), **options)
    assert rows[0]["p_value"] == pytest.approx(0.1817, abs=1e-4)


@pytest.mark.parametrize("task", ["binary", "regression"])
def test_gaps_that_depend_on_the_outcome_are_a_warning(task):
    n = 400
    score = RNG.normal(size=n)
    table = pd.DataFrame({"lab": RNG.normal(size=n), "age": RNG.normal(size=n), "site": RNG.choice(["a", "b"], n)})
    table.loc[RNG.random(n) < np.where(score > 0, 0.5, 0.1), "lab"] = np.nan
    table.loc[RNG.random(n) < 0.2, "age"] = np.nan
    table["y"] = np.where(score > 0, "dead", "alive") if task == "binary" else score
    table.to_csv("rows.csv", index=False)
    data = Table("rows.csv", target="y", client="site", task=task, missing="mean", positive=None).load()
    (warning,) = [text for text in data.warnings if "gaps depend on the outcome" in text]
    assert "'lab' is missing" in warning
    assert "'age'" not in warning
    words = "of rows of 'dead' and" if task == "binary" else "the mean of the target is"
    assert words in warning
    assert {row["column"] for row in data.features.missing} == {"lab", "age"}
    assert sum(row["rows"] for row in data.features.missing if row["client"] and row["column"] == "lab") == len(
        data.train
    )
