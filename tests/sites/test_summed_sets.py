"""Sums over sets of rows that a server has or can subtract: no combination of features tells few rows."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from effective_rows import effective_number
from helpers import fails
from site_tables import save

from fcorun.base.config import build
from fcorun.data.datasets.sites import Sites
from fcorun.data.tables.columns import SplineColumn
from fcorun.sites.plan.patients import Patients
from fcorun.sites.plan.policy import Policy
from fcorun.sites.tables.summed_sets import SummedSets, single_out
from fcorun.sites.tables.table_agreement import check_curve
from fcorun.sites.tables.table_rows import SiteTable, read_site_table

pytestmark = pytest.mark.usefixtures("own_cache")
KNOTS = {3: (20.0, 60.0, 77.0), 4: (20.0, 41.0, 60.0, 77.0), 5: (20.0, 41.0, 55.0, 60.0, 77.0)}
KNOTS[7] = (20.0, 30.0, 41.0, 50.0, 60.0, 70.0, 77.0)


def read_table(frame: pd.DataFrame, n_knots: int, **options) -> SiteTable:
    """Return the table of one site, all of whose rows are training rows, with a spline of the column "age"."""
    shared = {"target": "cost", "only": ["age"], "validation": 0.0, **options}
    shared |= {"splines": {"age": n_knots}, "ranges": {"age": [0, 120]}}
    return read_site_table(build(Sites, shared, "data"), save({"bern": frame})["bern"], Policy())


def make_frame(ages) -> pd.DataFrame:
    return pd.DataFrame({"age": ages, "cost": np.random.default_rng(0).normal(size=len(ages))})


def elders(n: int = 59) -> np.ndarray:
    return np.random.default_rng(1).uniform(62, 94, n)


def features_of(ages: np.ndarray, column: SplineColumn) -> np.ndarray:
    return np.column_stack([np.ones(len(ages)), *column.encode_cells(ages, None)])


@pytest.mark.parametrize("n_knots", [4, 5, 7])
def test_the_only_young_patient_of_a_site_would_be_told_by_a_spline(n_knots):
    """The attack: a combination of the features that is 0 above a knot reads the age from their sums."""
    column = SplineColumn("age", n_knots=n_knots, knots=KNOTS[n_knots])
    ages = np.concatenate([elders(), [31.0]])
    sums = features_of(ages, column).sum(axis=0)  # what the server has: the number of rows, and sums of features
    grid = np.linspace(62, 120, 500)
    *_, coefficients = np.linalg.svd(features_of(grid, column) / np.abs(features_of(grid, column)).max(axis=0))
    combination = coefficients[-1] / np.abs(features_of(grid, column)).max(axis=0)  # 0 at all ages above 62
    candidates = np.linspace(0, 62, 62_001)
    told = candidates[np.abs(features_of(candidates, column) @ combination - sums @ combination).argmin()]
    assert told == pytest.approx(31, abs=0.01)
    with fails("few training rows of this site, or of a client or fold here, lie beyond a knot of 'age'"):
        check_curve(read_table(make_frame(ages), n_knots), column)
    with fails("as fewer than 3 equal rows"):
        check_curve(read_table(make_frame(np.append(ages, 33.0)), n_knots), column)


@pytest.mark.parametrize("n_knots", [3, 4, 5])
@pytest.mark.parametrize("seed", range(3))
def test_an_ordinary_column_of_60_rows_at_a_site_has_a_spline(n_knots, seed):
    """Ages of three sites of 60 rows, with knots at quantiles of all."""
    ages = np.random.default_rng(seed).normal([[50], [55], [60]], 12, (3, 60)).round()
    outer = 0.1 if n_knots == 3 else 0.05
    knots = np.quantile(ages, np.linspace(outer, 1 - outer, n_knots))
    column = SplineColumn("age", n_knots=n_knots, knots=tuple(knots.tolist()))
    for of_site in ages:
        check_curve(read_table(make_frame(of_site), n_knots), column)


def test_a_row_among_few_different_numbers_would_be_told_by_a_spline():
    """A spline of 4 knots may be 0 at three doses, whatever the knots are, and then its sum tells the fourth dose."""
    doses = np.array([*[10.0] * 20, *[40.0] * 20, *[70.0] * 20, 55.0])
    column = SplineColumn("age", n_knots=4, knots=(12.0, 38.0, 50.0, 66.0))
    combination = np.linalg.svd(features_of(doses[[0, 20, 40]], column))[2][-1]
    values = features_of(doses, column) @ combination
    assert np.abs(values[:-1]).max() < 1e-9 * np.abs(values[-1])
    with fails("outweigh all others there"):
        check_curve(read_table(make_frame(doses), 4), column)
    check_curve(read_table(make_frame(np.append(doses, [55.0] * 3)), 4), column)


def test_the_only_old_patient_of_a_fold_would_be_told_by_the_difference_of_two_sums():
    column = SplineColumn("age", n_knots=4, knots=KNOTS[4])
    rng = np.random.default_rng(2)
    ages = np.concatenate([rng.uniform(20, 40, 30), rng.uniform(42, 59, 10), rng.uniform(61, 90, 20)])
    fold = np.concatenate([np.arange(30) % 5, np.full(10, 1), np.full(20, 2)])
    fold[-1] = 0  # the only row of the fold 0 beyond the second knot
    features = features_of(ages, column)
    difference = features.sum(axis=0) - features[fold != 0].sum(axis=0)
    candidates = np.linspace(41, 100, 59_001)
    last_term = features_of(candidates, column)[:, -1]
    assert candidates[np.abs(last_term - difference[-1]).argmin()] == pytest.approx(ages[-1], abs=0.01)
    table = read_table(make_frame(ages), 4)
    check_curve(table, column)  # of all rows together
    with fails("few training rows of this site, or of a client or fold here"):
        check_curve(replace(table, fold=fold), column)
    check_curve(replace(table, fold=np.arange(60) % 5), column)


def test_the_only_old_patient_of_the_validation_rows_would_be_told_by_their_loss():
    """The mean of squares at multiples of one combination has the square of its value at that patient."""
    column = SplineColumn("age", n_knots=4, knots=KNOTS[4])
    ages = np.concatenate([np.linspace(21, 89, 100), np.linspace(22, 40, 19), [70.0]])
    frame = make_frame(ages).assign(split=np.repeat(["train", "validation"], [100, 20]))
    last_term = features_of(ages, column)[100:, -1]
    assert np.count_nonzero(last_term) == 1
    with fails("few validation rows of this site"):
        check_curve(read_table(frame, 4, split="split", validation=None), column)
    frame["age"] = np.append(ages[:-3], [70.0, 66.0, 81.0])
    check_curve(read_table(frame, 4, split="split", validation=None), column)


def test_rows_of_weight_0_are_the_difference_of_two_sums():
    """With weights of 0 and 1, a sum without weights less the weighted one is a sum over the rows of weight 0."""
    column = SplineColumn("age", n_knots=4, knots=KNOTS[4])
    ages = np.concatenate([np.linspace(21, 89, 100), [25.0] * 9, [70.0]])
    frame = make_frame(ages).assign(weight=np.repeat([1.0, 0.0], [100, 10]))
    with fails("lie beyond a knot"):
        check_curve(read_table(frame, 4, weight="weight"), column)
    check_curve(read_table(frame.assign(weight=1.0), 4, weight="weight"), column)


def draw_sets(rng: np.random.Generator, n: int, share_of_weight: float) -> SummedSets:
    weight = (rng.random(n) < share_of_weight).astype(float)
    return SummedSets(rng.random(n) < 0.9, rng.integers(0, 3, n), rng.integers(0, 4, n), Patients(weight))


@pytest.mark.parametrize("seed", range(5))
def test_each_set_is_a_union_of_cells(seed):
    rng = np.random.default_rng(seed)
    n = 200
    sets = draw_sets(rng, n, share_of_weight=0.8)
    cells = (sets.client * 4 + sets.fold) * 2 + sets.has_weight
    for rows, _ in sets.list_sets(np.ones(n, bool)):
        assert rows.sum() == sum((sets.in_split & (cells == cell)).sum() for cell in np.unique(cells[rows]))


@pytest.mark.parametrize("seed", range(5))
def test_each_cell_is_a_set(seed):
    """A server has the sum of each cell by subtraction: of rows of weight 0 within one fold of one client, too."""
    rng = np.random.default_rng(seed)
    n = 300
    sets = draw_sets(rng, n, share_of_weight=0.7)
    listed = {rows.tobytes() for rows, _ in sets.list_sets(np.ones(n, bool))}
    cells = (sets.client * 4 + sets.fold) * 2 + sets.has_weight
    for cell in np.unique(cells[sets.in_split]):
        assert (sets.in_split & (cells == cell)).tobytes() in listed


def test_a_row_of_weight_0_in_a_fold_would_be_told_by_the_difference_of_four_sums():
    """The sums of a fold, without weights and with them, are differences, and so are those of its rows of weight 0."""
    column = SplineColumn("age", n_knots=4, knots=KNOTS[4])
    ages = np.concatenate([np.linspace(21, 89, 100), [25.0] * 20, np.linspace(70, 80, 10)])
    fold = np.concatenate([np.arange(100) % 2, np.repeat([0, 1], 10), [0], np.ones(9, int)])
    table = read_table(make_frame(ages).assign(weight=np.repeat([1.0, 0.0], [100, 30])), 4, weight="weight")
    check_curve(table, column)  # ten rows of weight 0 lie beyond a knot, one of which is in the first fold
    with fails("few training rows of this site, or of a client or fold here"):
        check_curve(replace(table, fold=fold), column)
    fold[-10:] = np.arange(10) % 2
    check_curve(replace(table, fold=fold), column)


@pytest.mark.parametrize("seed", range(5))
def test_functions_that_single_out_a_row_have_the_largest_share_of_it(seed):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(30, 3)) * [1.0, 1e3, 1e-3]
    features[7] *= 100
    functions = single_out(features, 3)
    assert len(functions)
    assert min(map(effective_number, np.abs(functions))) < 3
    least_share = (functions**2).max(axis=1) / (functions**2).sum(axis=1)
    space = np.column_stack([np.ones(30), features])
    for direction in rng.normal(size=(200, 4)):
        values = space @ direction
        assert (values**2).max() / (values**2).sum() <= least_share.max() * (1 + 1e-9)
        assert effective_number(np.abs(values)) >= 1 / least_share.max() * (1 - 1e-9)
