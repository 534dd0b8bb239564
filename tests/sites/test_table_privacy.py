"""The content of a description of a site's table, and the refusals of sites and of the server."""

import json
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from helpers import fails
from site_tables import SIZES, describe, frames, go, save, with_gaps

from fcorun.base.config import build
from fcorun.base.errors import UserError
from fcorun.data.datasets.sites import Sites
from fcorun.data.tables.columns import Column, LevelColumn
from fcorun.data.tables.columns.column import ColumnDescription, Histogram
from fcorun.data.tables.encoding import Encoding
from fcorun.data.tables.scaling import Scaling
from fcorun.sites.plan.patients import Patients
from fcorun.sites.plan.policy import Policy
from fcorun.sites.plan.site_options import OwnTableError, SiteOptions
from fcorun.sites.server.server import agree
from fcorun.sites.site.acceptance import list_warnings
from fcorun.sites.tables.table_agreement import Agreement, encode_table
from fcorun.sites.tables.table_description import center_cells, merge_small_cells
from fcorun.sites.tables.table_rows import read_site_table
from fcorun.sites.transport.messages import Message

pytestmark = pytest.mark.usefixtures("own_cache")
ONLY = ["age", "dose", "sex", "ward"]


def options_of(**options) -> Sites:
    return build(Sites, {"target": "cost", "only": ONLY, **options}, "data")


@pytest.mark.slow
def test_rare_levels_are_never_named():
    tables = frames()
    for site, table in tables.items():
        table["ward"] = table["ward"].astype(object)
        table.loc[:1, "ward"] = f"secret of {site}"
        table.loc[2:3, "ward"] = f"second secret of {site}"
        table.loc[4:8, "ward"] = "known"
    sites = save(tables)
    options = options_of(validation=0.0)
    route = go(options, sites)
    messages = [*route.descriptions.values(), route.agreement.to_message(), *route.sums.values()]
    for message in messages:
        content = message.to_bytes()
        assert b"secret" not in content
    assert any(b"known" in message.to_bytes() for message in messages)
    for message in route.descriptions.values():
        assert message.arrays["levels"][-1] == 4  # the rows of rare levels, together
    with fails("the tables of the sites: column 'other' has 120 levels"):  # the rule of a pooled table
        go(options_of(only=["age", "other"], validation=0.0), save(_with_names(tables)))


def test_rows_that_are_coded_as_other_are_never_few():
    tables = frames()
    tables["bern"]["ward"] = ["secret", *["small"] * 4, *["east"] * 40, *["west"] * 52]
    (message,) = describe(options_of(validation=0.0), save({"bern": tables["bern"]})).values()
    assert message.about["levels"]["ward"] == ["east", "west"]
    assert message.arrays["levels"][-3:].tolist() == [40, 52, 5]
    tables["bern"]["ward"] = ["secret"] + [None] * 96
    with fails("client 'bern' has values of 'ward' in fewer than 3 training rows"):
        describe(options_of(validation=0.0, missing="mean"), save({"bern": tables["bern"]}), Policy(min_rows=1))


def _with_names(tables: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Return the tables with a column of levels that are many in all, and few enough at each site."""
    tables = {site: table.copy() for site, table in tables.items()}
    for site, table in tables.items():
        table["other"] = [f"{site}{i % 40}" for i in range(len(table))]
    return {site: pd.concat([table] * 8) for site, table in tables.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        {"missing": "mean"},
        {"missing": "median", "ranges": {"age": [0, 120], "dose": [0, 50]}},
        {"target": "ill", "task": "binary", "positive": "yes", "weight": "days", "validation": 0.5},
    ],
)
def test_the_size_of_a_description_does_not_depend_on_the_number_of_rows(more):
    sizes = []
    for rows in (50, 5000):
        sites = save(frames(dict.fromkeys(("bern", "aarau"), rows)))
        messages = describe(options_of(**more), sites)
        sizes.append([len(message.to_bytes()) for message in messages.values()])
    assert sizes[0] == sizes[1]


def test_a_description_has_counts_and_sums_alone():
    tables = frames()
    tables["bern"].loc[:40, "dose"] = 1234.5678
    (message,) = describe(options_of(), save({"bern": tables["bern"]})).values()
    assert set(message.about) == {"clients", "columns", "levels", "labels"}
    assert message.arrays["sums"].size == 0  # only fills need sums
    assert "1234.5678" not in json.dumps(message.about)
    assert not any(1234.5678 in array for array in message.arrays.values())


def _forge(agreement: Agreement, of: str, **changes) -> Agreement:
    """Return the agreement with other values of the column ``of``; without changes, the column is left out."""
    columns = [replace(column, **changes) if column.name == of else column for column in agreement.encoding.columns]
    if not changes:
        columns = [column for column in columns if column.name != of]
    return replace(agreement, encoding=Encoding(tuple(columns)))


def _swap(agreement: Agreement, of: str, other: Column) -> Agreement:
    """Return the agreement with another column in place of the column ``of``."""
    columns = [other if column.name == of else column for column in agreement.encoding.columns]
    return replace(agreement, encoding=Encoding(tuple(columns)))


def _scale(agreement: Agreement, deviation: float) -> Agreement:
    d = len(agreement.feature_names)
    return replace(agreement, scaling=Scaling(np.zeros(d), np.ones(d), np.full(d, deviation)))


ILL: dict = {"target": "ill", "task": "binary", "positive": "yes"}


@pytest.mark.parametrize(
    ("more", "forge", "words"),
    [
        ({}, lambda a: _forge(a, "dose"), "lacks the column 'dose'"),
        ({}, lambda a: _forge(a, "ward"), "lacks the column 'ward'"),
        ({}, lambda a: _forge(a, "dose", name="cost"), "has a column 'cost' that this site described otherwise"),
        ({}, lambda a: _swap(a, "dose", LevelColumn("dose")), "has a column 'dose' that this site described otherwise"),
        ({}, lambda a: _forge(a, "dose", name="age"), "has two columns of one name"),
        ({}, lambda a: _forge(a, "dose", fill=1e12), "fills gaps of 'dose' otherwise than data.missing=refuse"),
        ({}, lambda a: _forge(a, "dose", indicator=True), "indicates gaps of 'dose' otherwise"),
        ({"missing": "mean"}, lambda a: _forge(a, "age", indicator=True), "indicates gaps of 'age' otherwise"),
        ({"missing": "mean"}, lambda a: _forge(a, "age", fill=float("inf")), "fills gaps of 'age' otherwise"),
        ({"missing": "mean"}, lambda a: _forge(a, "age", fill=1e12), "fills gaps of 'age' by a number that few rows"),
        ({"missing": "mean"}, lambda a: _forge(a, "age", fill=110.0), "fills gaps of 'age' by a number that few rows"),
        (
            {"missing": "median", "ranges": {"age": [0, 150], "dose": [0, 99]}},
            lambda a: _forge(a, "age", fill=150.0),
            "fills gaps of 'age' by a number that few rows",
        ),
        ({"missing": "indicator"}, lambda a: _forge(a, "age", fill=-1e12), "fills gaps of 'age' otherwise"),
        ({"missing": "mean"}, lambda a: _forge(a, "ward", fill="gap"), "fills gaps of 'ward' otherwise"),
        ({"missing": "indicator"}, lambda a: _forge(a, "age", indicator=False), "indicates gaps of 'age' otherwise"),
        ({"missing": "indicator"}, lambda a: _forge(a, "ward", fill="east"), "fills gaps of 'ward' otherwise"),
        (
            {"missing": "median", "ranges": {"age": [0, 99], "dose": [0, 99]}},
            lambda a: _forge(a, "age", fill=1e12),
            "fills gaps of 'age' otherwise than data.missing=median",
        ),
        ({}, lambda a: _forge(a, "ward", levels=("north", "south", "west")), "lacks a level of 'ward'"),
        ({}, lambda a: _forge(a, "ward", levels=("west", "south", "north", "east")), "has unsorted levels of 'ward'"),
        ({}, lambda a: _forge(a, "ward", other="west"), "codes rare levels of 'ward' otherwise"),
        ({}, lambda a: replace(a, classes=(1.5, 2.5)), "has classes, where the plan has a regression"),
        ({}, lambda a: replace(a, task="binary"), "has another task than the plan"),
        (ILL, lambda a: replace(a, classes=("yes", "no")), "has other classes than the plan, or in another order"),
        (ILL, lambda a: replace(a, classes=("no", "so", "yes")), "has other classes than the plan"),
        (ILL, lambda a: replace(a, classes=("so", "yes")), "lacks a class of this site"),
        (ILL | {"task": "multiclass", "positive": None, "classes": ["yes", "no"]},
         lambda a: replace(a, classes=("no", "yes")), "has other classes than the plan"),
        ({}, lambda a: _scale(a, np.nan), "has means or deviations that are no numbers"),
        ({}, lambda a: _scale(a, -1.0), "has means or deviations that are no numbers"),
        ({}, lambda a: replace(a, clients=("chur",)), "lacks a client of this site"),
        ({}, lambda a: replace(a, n_rows=a.n_rows[:, ::-1]), "has other numbers of rows"),
        ({}, lambda a: replace(a, weights=2 * a.weights), "has other weights"),
        (
            {},
            lambda a: replace(a, clients=("x", "bern"), n_rows=np.vstack([0 * a.n_rows, a.n_rows]),
                              weights=np.vstack([a.weights, a.weights])),
            "has clients without training rows before others",
        ),
    ],
)  # fmt: skip
def test_a_site_refuses_an_agreement_that_does_not_follow_from_its_table(more, forge, words):
    options = options_of(**more)
    tables = frames() if options.missing == "refuse" else with_gaps(frames())
    sites = save({"bern": tables["bern"]})
    table = read_site_table(options, sites["bern"], Policy())
    agreement = agree(options, describe(options, sites)).agreement
    encode_table(table, agreement)
    advice = "or a number such as 999 for a missing value" if "few rows" in words else "describe the table again"
    with fails("the agreement that the server sent " + words, advice):
        encode_table(table, forge(agreement))


def test_an_agreement_travels_exactly():
    options = options_of(missing="mean", standardize="pooled")
    agreement = go(options, save(frames())).agreement
    arrived = Agreement.from_message(Message.from_bytes(agreement.to_message().to_bytes(), "a test"))
    assert arrived.encoding == agreement.encoding
    assert arrived.scaling is not None
    assert agreement.scaling is not None
    np.testing.assert_array_equal(arrived.scaling.mean, agreement.scaling.mean)
    np.testing.assert_array_equal(arrived.scaling.factor, agreement.scaling.factor)
    with fails("the server sent no agreement on a table (it lacks 'classes')"):
        Agreement.from_message(Message("load", {"task": "binary"}))
    with fails("(its numbers of rows do not fit its clients): use the same version"):
        Agreement.from_message(replace(agreement, n_rows=agreement.n_rows[:-1]).to_message())
    for forged, words in (
        ({"n_rows": -agreement.n_rows}, "no counts"),
        ({"weights": -agreement.weights}, "no weights"),
    ):
        with fails(words):
            Agreement.from_message(replace(agreement, **forged).to_message())


def test_cells_of_histograms_are_merged():
    counts = np.array([1, 0, 1, 1, 5, 2, 0, 3, 1, 1])
    bins = np.repeat(np.arange(10), counts)
    merged = merge_small_cells(bins, 10, 3, Patients())
    assert merged.tolist() == [0, 0, 0, 3, 5, 0, 0, 7, 0, 0]
    assert merge_small_cells(np.array([0, 1]), 2, 3, Patients()).tolist() == [0, 0]
    # the mean bins of rows in bins 0, 2, 3; 4 (five rows); and 5, 5, 7, 7, 7, 8, 9
    assert center_cells(bins, 10, 3, Patients()).tolist() == [0, 0, 3, 0, 5, 0, 0, 7, 0, 0]
    assert center_cells(np.array([0, 1]), 2, 3, Patients()).tolist() == [0, 0]


def test_cells_of_few_rows_do_not_move_quantiles_up():
    """Each cell counted at its last bin moved the outer knots of such sites up by 1.8 and 1.2 years, medians by 0.3."""
    rng = np.random.default_rng(0)
    edges = np.linspace(0, 120, 257)
    differences = []
    for _ in range(200):
        sites = rng.normal(60, 12, (3, 60))
        counts = sum(center_cells(np.digitize(ages, edges) - 1, 256, 3, Patients()) for ages in sites)
        description = ColumnDescription(histogram=Histogram(edges, counts))
        quantiles = np.array([0.05, 0.35, 0.5, 0.65, 0.95])
        differences.append(description.quantiles(quantiles) - np.quantile(sites, quantiles))
    assert (np.abs(np.mean(differences, axis=0)) < [0.5, 0.15, 0.15, 0.15, 1.0]).all()


def test_numbers_outside_of_the_ranges_are_told_to_the_owner_and_refused_where_they_move_knots():
    tables = frames()
    sites = save(tables)
    spline = {"only": ["age"], "splines": {"age": 4}, "validation": 0.0}
    n_old = int((tables["bern"]["age"] > 65).sum())
    with fails("of the numbers of 'age' in training rows of this site, 2.5 % or more lie outside of data.ranges"):
        describe(options_of(**spline, ranges={"age": [18, 65]}), sites)
    median = {"only": ["age"], "missing": "median", "validation": 0.0}
    options = options_of(**median, ranges={"age": [18, 65]})
    describe(options, sites)
    warnings = list_warnings(read_site_table(options, sites["bern"], Policy()))
    assert f"{n_old} training rows have a number of 'age' outside of data.ranges of the plan" in warnings[-1]
    with fails("50 % or more lie outside of data.ranges={age: [0.0, 10.0]}"):
        describe(options_of(**median, ranges={"age": [0, 10]}), sites)
    wide = options_of(**spline, ranges={"age": [18, 92]})
    assert list_warnings(read_site_table(wide, sites["bern"], Policy())) == []


def test_the_server_tells_how_wide_the_cells_of_counts_are():
    tables = frames()
    options = options_of(only=["age"], splines={"age": 3}, ranges={"age": [0, 128]}, validation=0.0)
    (warning,) = agree(options, describe(options, save(tables))).warnings
    assert warning.startswith("medians and knots of splines come from counts in bins of data.ranges")
    width = float(warning.rsplit(" in 'age'", 1)[0].rsplit(" ", 1)[1])
    finest = agree(options, describe(options, save(tables), Policy(min_cell=1, min_rows=1))).warnings[0]
    assert 0.5 <= float(finest.rsplit(" in 'age'", 1)[0].rsplit(" ", 1)[1]) < width < 20


def test_a_single_cell_of_counts_is_told_to_be_as_wide_as_the_range():
    """A site joins all bins where few rows are in each, and counts in one bin do not tell how many were joined."""
    tables = frames()
    for table in tables.values():
        table["age"] = table["age"].mask(table.index < 20)
    options = options_of(only=["age"], missing="median", ranges={"age": [0, 100_000]}, validation=0.0)
    (warning,) = agree(options, describe(options, save(tables))).warnings
    assert "to a width of 1e+05 in 'age'" in warning


def _change(site: str, **columns):
    """Return a function that gives the table of a site other columns."""

    def change(tables: dict[str, pd.DataFrame]) -> None:
        tables[site] = tables[site].assign(**columns)

    return change


def _label_each_site_alike(tables: dict[str, pd.DataFrame]) -> None:
    for site, table in tables.items():
        table["ill"] = "no" if site == "bern" else "yes"


@pytest.mark.parametrize(
    ("change", "more", "words"),
    [
        (_change("chur", ward=range(121)), {}, "column 'ward' holds numbers at site 'chur' and text at site 'aarau'"),
        (
            _change("chur", extra=1),
            {"only": None, "ignore": ["ill"]},
            "column 'extra' is at site 'chur' and not at site 'aa",
        ),
        (_change("bern", cost="high"), {}, "the target 'cost' is text, and data.task=regression needs numbers"),
        (
            _label_each_site_alike,
            {"target": "ill", "task": "binary", "positive": "maybe"},
            "data.positive=maybe is no label of any site",
        ),
        (
            _change("bern", ill=0),
            {"target": "ill", "task": "binary", "positive": "yes"},
            "at others: 'no', 'yes' at site 'aarau'; 0 at site 'bern'; 'no', 'yes' at site 'chur': write them alike",
        ),
        (
            _change("bern", ill="so"),
            {"target": "ill", "task": "binary", "positive": "yes"},
            "have 3 classes of 'ill', and data.task=binary needs two: 'no', 'yes' at site 'aarau'; 'so' at ",
        ),
        (
            None,
            {"target": "ill", "task": "binary", "classes": ["yes", "no", "so"]},
            "data.classes=[yes,no,so] must be different labels",
        ),
        (
            None,
            {"target": "ill", "task": "multiclass", "classes": ["yes", "no", "so"]},
            "the class 'so' has no training rows at any site",
        ),
        (None, {"target": "ill", "task": "binary"}, "data.positive has no value: name the positive class"),
        (None, {"classes": ["yes", "no"]}, "are for a classification"),
        (
            None,
            {"target": "ill", "task": "binary", "classes": ["no", "yes"], "positive": "no"},
            "data.positive=no is not the second of",
        ),
        (None, {"validation": ["Chur"]}, "data.validation: there is no client 'Chur'; did you mean 'chur'"),
        (None, {"validation": ["chur", "bern"], "test": ["aarau"]}, "have no training rows: hold out fewer rows"),
        (None, {"only": ["age", "bmi"]}, "there is no column 'bmi', which the plan needs: data.rename={THEIRS: bmi}"),
        (None, {"test": 0.005}, "data.test=0.005 holds out no row"),
        (None, {"missing": "median"}, "data.ranges has no bounds for 'age'"),
        (None, {"missing": "median", "ranges": {"age": [9, 1]}}, "data.ranges: 'age' has [9.0, 1.0]"),
        (None, {"only": ["only"]}, "two columns one name"),
        (None, {"client": "days"}, "both have a client '"),
    ],
)
def test_tables_that_are_not_alike_are_refused(change, more, words):
    tables = frames()
    if change is not None:
        change(tables)
    policy = Policy(min_rows=1, min_cell=1)
    sites = save(tables)
    if "two columns" in words:
        sites["bern"] = SiteOptions("bern.csv", rename={"age": "only", "dose": "only"})
    with fails(words):
        options = options_of(**more)
        agree(options, describe(options, sites, policy))


@pytest.mark.parametrize(
    ("weightless", "words"),
    [
        (["bern training"], "site 'bern': all training rows of client 'bern' have weight 0: leave that client out"),
        ([f"{site} validation" for site in SIZES], "all validation rows have weight 0: hold out others, or none"),
        (["bern validation", "chur validation"], None),
    ],
)
def test_weights_of_0_are_refused(weightless, words):
    tables = frames()
    for site, table in tables.items():
        table["split"] = np.where(np.arange(len(table)) % 4, "train", "validation")
        rows = site + " " + table["split"].replace("train", "training")
        table["weight"] = np.where(rows.isin(weightless), 0.0, 1.5)
    options = options_of(split="split", weight="weight", validation=None)
    descriptions = describe(options, save(tables))
    with fails(words) if words else nullcontext():
        agree(options, descriptions)


@pytest.mark.parametrize(
    ("change", "more", "policy", "words"),
    [
        (
            None,
            {"validation": 0.1},
            {},
            "client 'bern' has fewer than 10 validation rows, the least that policy.min_rows",
        ),
        (None, {"test": 0.05}, {}, "client 'bern' has fewer than 10 test rows"),
        (None, {}, {"min_rows": 90}, "client 'bern' has fewer than 90 training rows"),
        (
            _change("bern", dose=[1.0] * 5 + [np.nan] * 92),
            {"missing": "mean"},
            {},
            "values of 'dose' in fewer than 10 training rows",
        ),
        (
            _change("bern", dose=[1.0] * 5 + [np.nan] * 92),
            {"missing": "median", "ranges": {"age": [0, 99], "dose": [0, 99]}},
            {},
            "values of 'dose' in fewer than 10 training rows",
        ),
        (
            _change("bern", dose=[1.0] * 88 + [np.nan] * 9),
            {"missing": "indicator", "validation": 0.0},
            {},
            "client 'bern' has gaps of 'dose' in fewer than 10 training rows, the least that policy.min_rows",
        ),
        (
            _change("bern", sex=["f"] * 95 + [None] * 2),
            {"missing": "median", "ranges": {"age": [0, 99], "dose": [0, 99]}, "validation": 0.0},
            {},
            "client 'bern' has gaps of 'sex' in fewer than 3 training rows",
        ),
        (
            _change("bern", dose=[1.0] * 85 + [np.nan] * 12, part=["train"] * 55 + ["test"] * 31 + ["train"] * 11),
            {"missing": "indicator", "split": "part"},
            {},
            "client 'bern' has gaps of 'dose' in fewer than 3 test rows, the least that policy.min_cell",
        ),
        (
            _change("bern", ill=["no", "yes"] * 20 + ["no"] * 55 + ["yes"] * 2, part=["train"] * 50 + ["test"] * 47),
            {"target": "ill", "task": "binary", "positive": "yes", "split": "part"},
            {},
            "a class of 'ill' has fewer than 3 test rows",
        ),
        (_change("bern", dose=[1.0] * 90 + [np.nan] * 7), {}, {}, "column 'dose' has gaps: give data.missing=mean"),
        (_change("bern", dose=[np.inf] * 97), {"missing": "mean"}, {}, "column 'dose' has infinite values"),
        (
            None,
            {},
            {"columns": ("age", "dose", "sex", "cost")},
            "policy.columns of this site does not allow the column 'ward'",
        ),
        (
            _change("bern", ill=["yes"] * 95 + ["no"] * 2),
            {"target": "ill", "task": "binary", "positive": "no", "validation": 0.0},
            {},
            "a class of 'ill' has fewer than 3 training rows",
        ),
        (
            _change("bern", ill=["secret", "no"] * 48 + ["no"]),
            {"target": "ill", "task": "binary", "positive": "yes"},
            {},
            "the target 'ill' has 2 labels besides data.positive=yes of the plan, which expects one",
        ),
        (
            _change("bern", ill=["yes"] * 50 + ["no"] * 40 + ["secret"] * 7),
            {"target": "ill", "task": "binary", "positive": "yes"},
            {},
            "the target 'ill' has 2 labels besides",
        ),
        (
            _change("bern", ill=["yes"] * 90 + ["secret"] * 7),
            {"target": "ill", "task": "binary", "classes": ["no", "yes"]},
            {},
            "a label that data.classes of the plan does not list",
        ),
        (_change("bern", ward=[f"P{i}" for i in range(97)]), {}, {}, "column 'ward' has 78 levels in 78 training rows"),
        (_change("bern", dose=["2024-01-31"] * 97), {}, {}, "cannot be read as the plan says"),
    ],
)
def test_a_site_refuses_what_its_policy_forbids(change, more, policy, words):
    tables = frames()
    if change is not None:
        change(tables)
    sites = save({"bern": tables["bern"]})
    with pytest.raises(UserError) as refusal:
        describe(options_of(**more), sites, Policy(**policy))
    error = refusal.value
    public = error.public if isinstance(error, OwnTableError) else str(error)
    assert words in public
    assert not any(text in public for text in ("secret", "2024", "1234"))


def test_what_is_wrong_in_a_cell_is_told_to_the_owner_alone():
    tables = frames()
    tables["bern"]["dose"] = ["1.5"] * 96 + ["1.5 approx of Ms Smith"]
    save(tables)
    with pytest.raises(OwnTableError) as error:
        read_site_table(options_of(), SiteOptions("bern.csv"), Policy())
    assert "Smith" in str(error.value)
    assert "Smith" not in error.value.public
    for path, words in (("Bern.csv", "there is no such file"), ("rows.npz", "the columns of a site have names")):
        np.savez("rows.npz", X=np.eye(2), y=np.ones(2))
        with fails(words):
            read_site_table(options_of(), SiteOptions(path), Policy())
    with fails("data.rename: bern.csv has no column 'aeg'; did you mean 'age'?"):
        read_site_table(options_of(), SiteOptions("bern.csv", rename={"aeg": "age"}), Policy())
    with fails("'days' cannot be called 'age', another column"):
        read_site_table(options_of(), SiteOptions("bern.csv", rename={"days": "age"}), Policy())


def test_another_unit_is_warned_about():
    tables = frames()
    tables["chur"]["age"] = tables["chur"]["age"] * 365
    route = go(options_of(standardize="pooled"), save(tables))
    (warning,) = [text for text in route.agreed.warnings if "is the same" in text]
    assert warning.startswith("site 'chur': the mean of 'age' here is more than 5 standard deviations")


def test_answers_of_another_shape_name_the_site():
    options = options_of()
    descriptions = describe(options, save(frames()))
    descriptions["chur"].arrays["rows"] = np.zeros((2, 2))
    with fails("site 'chur' sent no description of a table (its array 'rows' has another shape"):
        agree(options, descriptions)
    about = descriptions["chur"].about
    for forged, words in (
        ({"columns": 3}, "its values have other types"),
        (about | {"levels": []}, "its values have other types"),
        ({name: about[name] for name in about if name != "labels"}, "it lacks 'labels'"),
    ):
        with fails(f"site 'chur' sent no description of a table ({words})"):
            agree(options, descriptions | {"chur": Message("describe", forged, descriptions["bern"].arrays)})


def test_a_site_without_rows_of_a_class_is_warned_about():
    tables = frames()
    tables["bern"]["ill"] = "no"
    options = options_of(target="ill", task="binary", positive="yes", standardize="pooled")
    route = go(options, save(tables))
    assert route.agreement.classes == ("no", "yes")
    assert route.agreed.warnings == ("site 'bern' has no training rows of the class 'yes'",)
    assert route.data["bern"].train.y.tolist() == [0] * 78


@pytest.mark.parametrize("has_gaps", [False, True])
def test_two_losses_tell_no_row_by_a_level_that_few_held_out_rows_have(has_gaps):
    """One validation row has a level that training rows have, too, or that fills gaps: no feature is its own."""
    table = frames()["bern"]
    options = options_of(only=["age", "ward"], validation=0.3, missing="mean")
    training, held_out, _ = read_site_table(options, save({"bern": table})["bern"], Policy()).masks
    table["ward"] = np.where(np.arange(len(table)) % 2, "icu", "surgery")
    table.loc[np.flatnonzero(training)[:40], "ward"] = "eye"  # the most frequent level of training rows fills gaps
    table.loc[np.flatnonzero(training)[40:44], "ward"] = None
    table.loc[np.flatnonzero(held_out)[0], "ward"] = None if has_gaps else "eye"
    sites = save({"bern": table})
    agreement = agree(options, describe(options, sites)).agreement
    x = encode_table(read_site_table(options, sites["bern"], Policy()), agreement).x
    levels = x[held_out][:, [name.startswith("ward=") for name in agreement.feature_names]]
    assert set(levels.sum(axis=0)) <= {0.0, *range(Policy().min_cell, held_out.sum() + 1)}
    assert (levels.sum(axis=1) == 1).all()


def test_a_level_that_few_held_out_rows_have_and_no_training_row_has_no_feature():
    table = frames()["bern"]
    sites = save({"bern": table})
    options = options_of(only=["age", "ward"], validation=0.3)
    masks = read_site_table(options, sites["bern"], Policy()).masks
    held_out = np.flatnonzero(masks[1])
    table["ward"] = table["ward"].astype(object)
    table.loc[held_out[0], "ward"] = "guessed"
    table.loc[held_out[1:4], "ward"] = "known"
    sites = save({"bern": table})
    site = read_site_table(options, sites["bern"], Policy())
    agreement = agree(options, describe(options, sites)).agreement
    encoding = agreement.encoding
    columns = []
    for column in encoding.columns:
        levels = tuple(sorted([*column.levels, "guessed", "known"]))
        columns.append(replace(column, levels=levels) if column.has_levels else column)
    forged = replace(agreement, encoding=replace(encoding, columns=tuple(columns)))
    x = encode_table(site, forged).x
    names = list(forged.feature_names)
    assert not (x[:, names.index("ward=guessed")] == 1).any()
    assert (x[:, names.index("ward=known")] == 1).sum() == 3
