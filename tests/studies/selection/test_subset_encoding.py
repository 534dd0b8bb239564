"""Fills and levels of a fold are those of an ordinary run on its rows."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers import composed, fails, not_none

from fcorun import run
from fcorun.data.datasets.subset import take_subset
from fcorun.data.datasets.table import Table
from fcorun.experiment.build import load_data
from fcorun.experiment.prepare import prepare
from fcorun.studies.selection.fitting import PathFitter
from fcorun.studies.selection.path import RegularizationPath
from fcorun.studies.selection.select import plan_selection
from fcorun.studies.selection.selection_result import SelectOptions

N = 60
SITE = np.repeat(["basel", "bern", "chur"], 20)
HELD_OUT = np.arange(N) % 4 == 1


def frame():
    """Return a table with gaps, among others in rows that are held out, and a level that no other row has."""
    rng = np.random.default_rng(5)
    table = pd.DataFrame({
        "age": rng.normal(60, 10, N) + 5.0 * (SITE == "bern"),
        "dose": rng.gamma(2, 3, N),
        "ward": rng.choice(["east", "north", "west"], N, p=[0.6, 0.3, 0.1]),
        "smoker": rng.choice(["no", "yes"], N),
    })  # fmt: skip
    for name, share in (("age", 0.3), ("ward", 0.2), ("smoker", 0.25)):
        table.loc[rng.random(N) < share, name] = None
    table.loc[[1, 5], "ward"] = "tent"  # held out
    table.loc[[2, 9], "dose"] = np.nan
    table["y"] = 0.1 * rng.normal(60, 10, N) + rng.normal(size=N)
    return table.assign(site=SITE)


def load(table, **options):
    table.to_csv("rows.csv", index=False)
    given: Any = {"validation": 0.0} | options
    return Table("rows.csv", target="y", client="site", **given).load()


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["mean", "median", "indicator"])
@pytest.mark.parametrize("standardize", ["none", "pooled", "per_client"])
def test_a_fold_has_the_features_of_its_rows_alone(missing, standardize):
    table = frame()
    table.loc[~HELD_OUT, "dose"] = table.loc[~HELD_OUT, "dose"].fillna(3.0)  # only held-out rows have gaps
    table.loc[1, "dose"] = None
    options = {"missing": missing, "standardize": standardize}
    whole = load(table, **options)
    subset = take_subset(whole, ~HELD_OUT, HELD_OUT).data
    alone = load(table.assign(split=np.where(HELD_OUT, "validation", "train")), split="split", validation=None,
                 **options)  # fmt: skip
    names = whole.features.names
    unseen = set(names) - set(alone.features.names)
    assert unseen == ({"ward=tent", "dose=missing"} if missing == "indicator" else {"ward=tent"})
    assert set(alone.features.names) < set(names)
    for split in ("train", "validation"):
        of_fold = dict(zip(names, getattr(subset, split).x.T, strict=True))
        for name, values in zip(alone.features.names, getattr(alone, split).x.T, strict=True):
            np.testing.assert_allclose(of_fold[name], values, rtol=1e-12, atol=1e-12, err_msg=f"{split} {name}")
        assert all((of_fold[name] == 0).all() for name in unseen)
    of_whole = dict(zip(names, whole.train.x.T, strict=True))
    assert np.abs(of_whole["age"][~HELD_OUT] - subset.train.x[:, names.index("age")]).max() > 1e-3
    assert (whole.train.x == load(table, **options).train.x).all()  # the data set keeps its own


def test_a_fold_within_a_fold_learns_from_its_own_rows():
    whole = load(frame(), missing="mean")
    inner = np.random.default_rng(6).random(N) < 0.5
    twice = take_subset(take_subset(whole, ~HELD_OUT, HELD_OUT).data, inner[~HELD_OUT], ~inner[~HELD_OUT])
    once = take_subset(whole, ~HELD_OUT & inner, ~HELD_OUT & ~inner)
    for split, rows in once.data.splits.items():
        np.testing.assert_array_equal(twice.data.splits[split].x, rows.x)


def test_one_level_of_two_makes_no_feature():
    table = frame().assign(smoker=np.where(HELD_OUT, "no", "yes"))
    whole = load(table, missing="mean")
    subset = take_subset(whole, ~HELD_OUT, HELD_OUT)
    assert (subset.x[:, whole.features.names.index("smoker=yes")] == 0).all()


def test_folds_without_gaps_share_the_rows():
    table = frame().dropna().query("ward != 'tent'")
    whole = load(table)
    train = np.arange(len(table)) > 3
    assert take_subset(whole, train, ~train).x is whole.train.x


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::fcorun.interface.api.progress.ExperimentWarning")  # gaps of new rows are filled
@pytest.mark.parametrize("standardize", ["none", "pooled"])
def test_a_fold_predicts_what_a_record_of_its_rows_predicts(standardize):
    table = frame().query("ward != 'tent'").reset_index(drop=True)
    held_out = np.arange(len(table)) % 4 == 2
    table.to_csv("rows.csv", index=False)
    table[~held_out].to_csv("fold.csv", index=False)

    def overrides(path, *more):
        return composed("data=table", f"data.path={path}", "data.target=y", "data.client=site", "data.missing=mean",
                        f"data.standardize={standardize}", "data.validation=0", "algo=centralized",
                        "algo.tolerance=1e-13", "precision=float64", *more)  # fmt: skip

    experiment = prepare(overrides("rows.csv"))
    data, fits = load_data(experiment), []
    fitter = PathFitter(experiment, data, RegularizationPath("strength", np.array([0.05])), data.train.sizes)
    fits.extend(fitter.fit([lambda: take_subset(data, ~held_out, held_out)]))
    record = run(overrides("fold.csv", "reg.strength=0.05"), "ordinary")
    np.testing.assert_allclose(fits[0].solution["weights"][0], record.solution["weights"], rtol=1e-8, atol=1e-8)
    predicted = record.predict(pd.DataFrame(table[held_out]))["prediction"]
    assert fits[0].held_out["shared"][0] == pytest.approx(predicted.to_numpy(), rel=1e-8)


@pytest.mark.slow
def test_a_column_without_a_value_in_a_fold_is_refused():
    table = frame()
    table.loc[~HELD_OUT, "age"] = None
    table.assign(part=np.where(HELD_OUT, "a", "b")).to_csv("rows.csv", index=False)
    settings = composed("data=table", "data.path=rows.csv", "data.target=y", "data.client=site", "data.missing=mean",
                        "data.validation=0", "data.fold=part", "algo=feddualavg")  # fmt: skip
    with fails("column 'age' has no value in the rows that are left", "data.ignore=[age]"):
        plan_selection(settings, SelectOptions(points=2), "out")


@pytest.mark.slow
def test_inner_and_outer_folds_learn_from_their_own_rows():
    table = frame()
    table.to_csv("rows.csv", index=False)
    settings = composed("data=table", "data.path=rows.csv", "data.target=y", "data.client=site", "data.missing=mean",
                        "data.validation=0", "algo=feddualavg")  # fmt: skip
    study = plan_selection(settings, SelectOptions(points=2, folds=2, outer_folds=3), "out").study
    age = table["age"].to_numpy()
    column = study.data.features.names.index("age")
    for name, masks in study.subsets.items():
        fill = np.nanmean(age[masks.train])
        assert study.take_subset(name).x[np.isnan(age), column] == pytest.approx(fill, rel=1e-12), name
    assert len(study.subsets) > 6


def test_a_client_that_trains_no_fold_is_not_standardized_by_its_outer_rows():
    table = frame()[["age", "dose", "y", "site"]].fillna(3.0)
    train, outer = (
        SITE != "chur",
        np.arange(N) >= 50,
    )  # half of the rows of chur each
    changed = table.assign(age=np.where(outer, 1000.0, table["age"]))
    both = [load(rows, standardize="per_client") for rows in (table, changed)]
    inner = [take_subset(data, train, ~train & ~outer).data.validation for data in both]
    np.testing.assert_allclose(*(not_none(rows).x for rows in inner), atol=1e-9)
    assert not_none(inner[0]).x.mean(axis=0) == pytest.approx(0, abs=1e-9)
