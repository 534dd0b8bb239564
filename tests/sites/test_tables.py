"""The tables of several sites become the data that the pooled table would be, bit by bit."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from helpers import fails, not_none
from site_tables import frames, go, pool, save, with_gaps

from fcorun.base.config import build
from fcorun.base.errors import UserError
from fcorun.data.datasets.sites import Sites
from fcorun.data.datasets.table import Table
from fcorun.data.tables.columns import SplineColumn
from fcorun.data.tables.encoding import Encoding
from fcorun.sites.plan.policy import Policy
from fcorun.sites.plan.site_options import SiteOptions
from fcorun.sites.server.trial import Comparison, find_other_codes
from fcorun.sites.tables.table_agreement import check_agreement
from fcorun.sites.tables.table_rows import read_site_table
from fcorun.studies.selection.folds import assign_folds

pytestmark = pytest.mark.usefixtures("own_cache")
COLUMNS = ("x", "y", "weight", "offset", "group", "fold")


def options_of(**options) -> Sites:
    features = {"only": ["age", "dose", "sex", "ward", "constant"]}
    return build(Sites, {"target": "cost", **features, **options}, "data")


def assert_same_data(route, options: Sites, client: str = "site"):
    """Assert that the sites have the rows, the encoding and the scaling of the pooled table."""
    pooled = options.as_table("pooled.csv", client).load()
    agreement = route.agreement
    assert agreement.training_clients == pooled.clients
    assert agreement.held_out_clients == pooled.held_out_clients
    assert agreement.encoding == pooled.features.encoding
    assert agreement.classes == pooled.classes
    if options.standardize == "pooled":
        standardized = not_none(pooled.features.standardized)
        for name, values in agreement.scaling.to_dict().items():
            np.testing.assert_array_equal(values, standardized[name])
    names = (*pooled.clients, *pooled.held_out_clients)
    for split, rows in pooled.splits.items():
        for site, data in route.data.items():
            own = (*data.clients, *data.held_out_clients)
            mask = np.isin(not_none(rows.client), [names.index(name) for name in own])
            site_rows = data.splits.get(split)
            assert (0 if site_rows is None else len(site_rows)) == mask.sum()
            for column in COLUMNS if mask.any() else ():
                expected, values = getattr(rows, column), getattr(site_rows, column)
                assert (expected is None) == (values is None)
                if expected is not None:
                    assert (values.dtype.kind == "U") == (expected.dtype.kind == "U")
                    np.testing.assert_array_equal(values, expected[mask], err_msg=f"{column} of {site}")
    weights = {"train": 0, "validation": 1, "test": 2}
    for split, column in weights.items():
        total = agreement.n_rows[:, column].sum()
        assert total == (len(pooled.splits[split]) if split in pooled.splits else 0)
    np.testing.assert_array_equal(agreement.weights[agreement.n_rows[:, 0] > 0, 0], pooled.train.client_weights)
    return pooled


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["refuse", "mean", "indicator"])
@pytest.mark.parametrize("standardize", ["none", "pooled", "per_client"])
def test_sites_have_the_data_of_the_pooled_table(missing, standardize):
    tables = frames() if missing == "refuse" else with_gaps(frames())
    pool(tables)
    options = options_of(missing=missing, standardize=standardize)
    route = go(options, save(tables))
    assert_same_data(route, options)
    (warning,) = route.agreed.warnings
    assert "columns are taken as constant at a site" in warning
    assert warning.endswith("keep: 'constant' at 'aarau', 'bern', 'chur'")


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        {"task": "binary", "target": "ill", "positive": "no"},
        {"task": "binary", "target": "ill", "classes": ["no", "yes"], "validation": 0.3, "test": 0.2},
        {"task": "binary", "target": "ill", "classes": ["no", "yes"], "test": ["chur"]},
        {"task": "multiclass", "target": "ward", "only": ["age", "dose"], "classes": None},
        {"weight": "days", "offset": "log_days", "test": 0.25, "seed": 3},
        {"test": 0.25, "seed": 3, "split_seed": 5},
        {"validation": ["chur"]},
        {"only": ["sex"]},
        {"only": None, "ignore": ["ill", "log_days", "elsewhere"], "weight": "days"},
    ],
)
def test_targets_weights_and_held_out_rows_are_those_of_the_pooled_table(more):
    tables = frames()
    pool(tables)
    options = options_of(standardize="pooled", **more)
    route = go(options, save(tables), Policy(min_cell=1))  # else few held-out rows of a level take another
    if "elsewhere" in (options.ignore or ()):  # a pooled table must have the columns to ignore
        options = options_of(standardize="pooled", **more | {"ignore": ["ill", "log_days"]})
    assert_same_data(route, options)


@pytest.mark.parametrize(("split_seed", "drawn_by"), [(None, 3), (5, 5)])
def test_a_site_holds_out_the_rows_of_a_table_with_the_seed_of_the_split(split_seed, drawn_by):
    frame = frames()["bern"].assign(site="bern")
    (site,) = save({"bern": frame}).values()
    at_site = read_site_table(options_of(client="site", test=0.25, seed=3, split_seed=split_seed), site, Policy())
    pooled = build(
        Table, {"path": "bern.csv", "target": "cost", "client": "site", "test": 0.25, "seed": drawn_by}, "data"
    )
    for mask, rows in zip(at_site.masks, pooled.load().splits.values(), strict=True):
        assert np.flatnonzero(mask).tolist() == not_none(rows.row).tolist()


def test_labels_of_a_site_that_are_no_64_bit_integers_stay_different():
    table = frames()["bern"].assign(code=np.resize([0.0, 5e200, 1e300], 97))
    (site,) = save({"bern": table}).values()
    options = options_of(task="multiclass", target="code", only=["age"])
    assert set(read_site_table(options, site, Policy()).rows.y) == {0.0, 5e200, 1e300}


def test_an_infinite_label_of_a_site_is_refused():
    (site,) = save({"bern": frames()["bern"].assign(code=np.resize([0.0, np.inf], 97))}).values()
    with pytest.raises(UserError, match="missing or infinite in row 2"):
        read_site_table(options_of(task="multiclass", target="code", only=["age"]), site, Policy())


@pytest.mark.slow
def test_a_site_may_have_many_clients_in_any_order():
    tables = frames({"bern": 300, "aarau": 200, "chur": 240})
    names = {"bern": ["10", "9", "33"], "aarau": ["2", "1"], "chur": ["21", "3"]}
    for site, table in tables.items():
        table["hospital"] = np.array(names[site])[np.arange(len(table)) * 7 % len(names[site])]
        table["patient"] = [f"{name}-{i // 9}" for i, name in enumerate(table["hospital"])]
        table["part"] = np.array(["first", "second"])[np.arange(len(table)) // 9 % 2]
    pool(tables, "hospital")
    sites = save(tables)
    for more in ({}, {"validation": ["9", "21"], "test": 0.2}, {"group": "patient", "test": 0.2}, {"fold": "part"}):
        options = options_of(client="hospital", standardize="pooled", **more)
        route = go(options, sites, Policy(min_rows=2, min_cell=1))
        assert_same_data(route, options, "hospital")
    assert sorted(route.agreement.clients, key=int) == ["1", "2", "3", "9", "10", "21", "33"]
    pairs = zip(route.agreement.training_clients, route.agreed.training_sites, strict=True)
    assert [name for name, site in pairs if site == "bern"] == ["9", "10", "33"]


@pytest.mark.slow
def test_columns_are_renamed_and_a_site_may_name_its_own_clients():
    tables = frames()
    pool(tables)
    tables["aarau"] = tables["aarau"].rename(columns={"age": "alter", "cost": "kosten"})
    columns = ["spital", *reversed(list(tables["chur"]))]
    tables["chur"] = tables["chur"].assign(spital="chur").reindex(columns=columns)
    sites = save(tables)
    sites["aarau"] = SiteOptions("aarau.csv", rename={"alter": "age", "kosten": "cost"})
    sites["chur"] = SiteOptions("chur.csv", client="spital")
    options = options_of(standardize="pooled")
    assert_same_data(go(options, sites), options)


@pytest.mark.slow
def test_folds_of_a_site_are_those_of_the_pooled_table():
    tables = frames()
    pool(tables)
    options = options_of(task="binary", target="ill", positive="yes")
    route = go(options, save(tables))
    pooled = options.as_table("pooled.csv", "site").load()
    folds = assign_folds(pooled, 5, "rows", 2)
    for m, name in enumerate(pooled.clients):
        start, stop = pooled.train.offsets[m : m + 2]
        np.testing.assert_array_equal(assign_folds(route.data[name], 5, "rows", 2), folds[start:stop])


@pytest.mark.slow
def test_whole_numbers_at_one_site_are_fractions_where_another_has_fractions():
    tables = frames()
    tables["chur"]["age"] = tables["chur"]["age"] + 0.5
    tables["bern"]["cost"] = np.round(tables["bern"]["cost"]).astype(int)
    pool(tables)
    for only in (["age", "sex"], ["sex", "ward"], ["age"]):
        options = options_of(only=only)
        assert_same_data(go(options, save(tables)), options)
    whole = frames()
    pool(whole)
    options = options_of(only=["age", "sex"])
    route = go(options, save(whole))
    assert_same_data(route, options)
    assert route.data["bern"].train.x.dtype == np.int64


@pytest.mark.slow
def test_a_site_without_a_value_of_a_column_gets_the_fill_of_the_others():
    tables = frames()
    tables["aarau"] = tables["aarau"].assign(dose=np.nan, ward=None)
    pool(tables)
    options = options_of(missing="mean", standardize="pooled")
    assert_same_data(go(options, save(tables)), options)


def test_constant_columns_are_found_from_sums():
    tables = frames()
    for table in tables.values():
        table["third"] = 1 / 3
        table["far"] = 1e6 + np.arange(len(table)) % 2  # varies, although little
    pool(tables)
    options = options_of(only=["constant", "third", "far"], standardize="pooled")
    route = go(options, save(tables))
    assert_same_data(route, options)
    deviation = not_none(route.agreement.scaling).deviation
    assert deviation[:2].tolist() == [0, 0]
    assert deviation[2] == pytest.approx(0.5, rel=1e-3)


def test_medians_are_within_a_bin_of_those_of_the_pooled_table():
    tables = with_gaps(frames())
    pool(tables)
    only = ["age", "dose"]
    options = options_of(only=only, missing="median", ranges={"age": [0, 128], "dose": [0, 64]})
    encoding = go(options, save(tables)).agreement.encoding
    exact = Table("pooled.csv", target="cost", client="site", only=only, missing="median").load().features.encoding
    for column, expected, width in zip(encoding.columns, not_none(exact).columns, (0.5, 0.25), strict=True):
        assert column.fill == pytest.approx(expected.fill, abs=2 * width)


@pytest.mark.parametrize("missing", ["refuse", "mean", "median", "indicator"])
def test_knots_of_splines_are_within_bins_of_those_of_the_pooled_table(missing):
    tables = frames() if missing == "refuse" else with_gaps(frames())
    pool(tables)
    shared = {"only": ["age", "dose"], "missing": missing, "splines": {"age": 3}}
    ranges = {"age": [0, 128], "dose": [0, 64]}
    encoding = go(options_of(**shared, ranges=ranges), save(tables), Policy(min_cell=1)).agreement.encoding
    exact = Table("pooled.csv", target="cost", client="site", **shared).load().features.encoding
    column, expected = encoding.columns[0], not_none(exact).columns[0]
    assert column.features == expected.features
    assert column.knots == pytest.approx(expected.knots, abs=0.5)  # the width of a bin
    if missing in ("mean", "indicator"):
        assert column.fill == pytest.approx(expected.fill)


def test_a_site_refuses_knots_beyond_which_few_rows_lie():
    tables = frames()
    options = options_of(only=["age", "dose"], splines={"age": 3}, ranges={"age": [0, 128]})
    site_options = save(tables)
    agreement = go(options, site_options).agreement
    spline, dose = agreement.encoding.columns
    name, site = next(iter(site_options.items()))
    table = read_site_table(options, site, Policy())
    ages = np.sort(tables[name]["age"].to_numpy()[table.masks[0]])
    few = (ages[-2] - 0.25, 126.0, 127.0)
    for knots, message in (
        (few, "lie beyond a knot of 'age'"),
        ((1.0, 2.0, 129.0), "has other knots of 'age'"),  # beyond data.ranges
        ((1.0, 2.0, 3.0, 4.0), "has other knots of 'age'"),
    ):
        column = replace(spline, knots=knots, n_knots=len(knots))
        with fails(message):
            check_agreement(table, replace(agreement, encoding=Encoding((column, dose))))


def test_a_site_refuses_a_spline_that_one_row_outweighs():
    rng = np.random.default_rng(3)
    children = np.concatenate([rng.uniform(0.5, 17, 197).round(1), [24.0, 25.0, 90.0]])
    table = pd.DataFrame({"age": children, "dose": rng.uniform(0, 50, 200), "cost": rng.normal(size=200)})
    sites = save({"kids": table})
    options = options_of(only=["age", "dose"], splines={"age": 3}, ranges={"age": [0, 128]}, validation=0.0)
    knots = (4.0, 20.0, 60.0)
    spline = SplineColumn("age", n_knots=3, knots=knots)
    agreement = go(options_of(only=["age", "dose"], validation=0.0), sites).agreement
    _, dose = agreement.encoding.columns
    with fails("outweigh all others there"):
        check_agreement(
            read_site_table(options, sites["kids"], Policy()),
            replace(agreement, encoding=Encoding((spline, dose))),
        )


def test_rare_levels_of_a_site_are_coded_as_other():
    tables = frames()
    ward = tables["aarau"]["ward"].to_numpy().copy()
    ward[:2], ward[2:4], ward[4:30] = "attic", "cellar", "north"
    tables["aarau"]["ward"] = ward
    tables["chur"].loc[:20, "ward"] = "attic"
    options = options_of(validation=0.0)
    route = go(options, save(tables))
    (column,) = [column for column in route.agreement.encoding.columns if column.name == "ward"]
    assert column.levels == ("attic", "east", "north", "other", "south", "west")
    warning = next(text for text in route.agreed.warnings if "coded as" in text)
    assert "coded as 'other' there, where pooled rows keep them: 'ward' at 'aarau'" in warning
    data = route.data["aarau"]
    other, attic = (data.features.names.index(name) for name in ("ward=other", "ward=attic"))
    assert data.train.x[:, other].nonzero()[0].tolist() == [0, 1, 2, 3]
    assert not data.train.x[:, attic].any()  # two rows here, although another site has more
    assert route.data["chur"].train.x[:, attic].sum() == 21
    warnings: list[str] = []
    x = route.agreement.encoding.apply(tables["aarau"], warnings)  # as predictions of new rows
    assert x[:, other].nonzero()[0].tolist() == [2, 3]
    assert x[:, attic].nonzero()[0].tolist() == [0, 1]  # predictions do not know where a level is rare
    (warning,) = warnings
    assert warning.endswith("are rare or unseen, 'cellar' in 2 rows (3, 4): they are coded as 'other'")


def test_a_trial_lists_what_a_table_of_all_rows_codes_otherwise():
    tables = frames()
    tables["aarau"].loc[:1, "ward"] = "attic"
    tables["bern"]["dialysis"] = np.arange(97) < 2
    for site in ("aarau", "chur"):
        tables[site]["dialysis"] = np.arange(len(tables[site])) % 2 == 0
    pool(tables)
    shared = {"only": ["age", "sex", "ward", "dialysis"], "splines": {"age": 4}, "validation": 0.0}
    options = options_of(**shared, ranges={"age": [0, 128]})
    sites = save(tables)
    at_sites = [read_site_table(options, site, Policy()) for site in sites.values()]
    encoding = go(options, sites).agreement.encoding
    constant, knots, levels = find_other_codes(at_sites, encoding)
    assert constant == "'dialysis' keeps a value that few rows of a site have"
    exact = not_none(Table("pooled.csv", target="cost", client="site", **shared).load().features.encoding)
    assert knots.startswith(f"the knots of 'age' are {', '.join(f'{knot:.4g}' for knot in exact.columns[0].knots)}, of")
    assert levels.startswith("the levels of 'ward' are attic, east, north and 2 more, of the sites east, ")
    line = Comparison(True, 0.0, {}, recoded=(constant,)).describe()[1]
    assert line == f"a table of all rows has other codes: {constant}"
    plain = options_of(only=["age", "sex"], missing="mean", validation=0.0)
    at_sites = [read_site_table(plain, site, Policy()) for site in save(with_gaps(frames())).values()]
    assert find_other_codes(at_sites, go(plain, save(with_gaps(frames()))).agreement.encoding) == ()
