"""Rows of folds and halves, and their descriptions."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from four_clients import OWNER, config, fold_of, table
from helpers import composed, fails
from run_studies import select
from sklearn.linear_model import Lasso
from sklearn.model_selection import PredefinedSplit

from fcorun.base.config import build_plugin, identity_fields
from fcorun.data.rows.rows import Rows
from fcorun.data.rows.site_rows import SiteRows
from fcorun.experiment.build import load_data
from fcorun.experiment.prepare import prepare
from fcorun.studies.selection.folds import assign_folds, draw_halves
from fcorun.studies.selection.select import plan_selection
from fcorun.studies.selection.select_stable import plan_stability
from fcorun.studies.selection.selection_result import Selection, SelectOptions
from fcorun.studies.selection.stability import StabilityOptions


@pytest.mark.slow
def test_rows_left_aside_are_counted():
    table()
    overrides = ("algo=fedmid", "data=table", "data.path=rows.csv", "data.target=y", "data.client=site")
    default = "of 49 training rows; 11 validation rows are left aside and score the refit"
    for more, words in (
        ((), default),
        (("data.validation=[d]",), "of 47 training rows; 13 validation rows are left aside"),
        (("data.validation=0", "data.test=[d]"), "of 47 training rows; 13 test rows are left aside"),
        (("data.validation=0",), "5 folds by rows of 60 training rows"),
    ):
        (sentence,) = [
            line
            for line in plan_selection(composed(*overrides, *more), SelectOptions(), "out").messages
            if "training rows" in line
        ]
        assert words in sentence
    assert sentence.endswith(words)
    assert (
        "are left aside and take no part" in plan_stability(composed(*overrides), StabilityOptions(), "out").messages[0]
    )


def test_folds_and_halves_are_balanced():
    data = load_data(prepare(config("algo=fedmid", task="binary")))
    rng = np.random.default_rng(0)
    fold = assign_folds(data, 5, "rows", 0)
    for start, stop in zip(data.train.offsets[:-1], data.train.offsets[1:], strict=True):
        assert np.ptp(np.bincount(fold[start:stop], minlength=5)) <= 1
        for c in (0, 1):
            of_class = fold[start:stop][data.train.y[start:stop] == c]
            assert np.ptp(np.bincount(of_class, minlength=5)) <= 2
    whole = assign_folds(data, 3, "clients", 0)
    assert all(len(set(whole[a:b])) == 1 for a, b in zip(data.train.offsets[:-1], data.train.offsets[1:], strict=True))
    for first, second in zip(*[iter(draw_halves(data, 20, "rows", rng))] * 2, strict=True):
        assert not (first & second).any()
        for start, stop in zip(data.train.offsets[:-1], data.train.offsets[1:], strict=True):
            assert first[start:stop].sum() == second[start:stop].sum() == (stop - start) // 2


def planned_folds(*overrides: str, **options) -> list[list[int]]:
    """Return the rows that each subset of a selection holds out."""
    planned = plan_selection(config("algo=fedmid", *overrides), SelectOptions(folds=3, points=2, **options), "out")
    return [np.flatnonzero(masks.validation).tolist() for masks in planned.study.subsets.values()]


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"outer_folds": 2}, {"by": "clients"}])
def test_split_seed_draws_the_folds_in_place_of_the_seed(options):
    drawn = planned_folds("seed=7", **options)
    by_split_seed = [planned_folds(f"seed={seed}", "data.split_seed=7", **options) for seed in (0, 1)]
    assert by_split_seed == [drawn, drawn]
    assert planned_folds("seed=7", "data.split_seed=8", **options) != drawn
    assert planned_folds("seed=8", **options) != drawn


@pytest.mark.slow
def test_without_split_seed_the_seed_draws_the_folds():
    data = load_data(prepare(config("algo=fedmid")))
    fold = assign_folds(data, 3, "rows", 7)
    assert planned_folds("seed=7")[1:] == [np.flatnonzero(fold == k).tolist() for k in range(3)]


@pytest.mark.parametrize("name", ["lasso", "lowrank", "least_squares", "logistic_synthetic", "heterogeneous", "haxby"])
def test_each_data_set_whose_rows_are_folded_has_a_split_seed(name):
    dataset = build_plugin("data", composed(f"data={name}", "data.split_seed=7")["data"])
    assert (dataset.fold_seed(1), replace(dataset, split_seed=None).fold_seed(1)) == (7, 1)
    assert "split_seed" not in identity_fields(replace(dataset, split_seed=None))


@pytest.mark.slow
def test_a_fold_without_a_class_is_refused():
    settings = config("algo=fedmid", task="binary")
    frame = pd.read_csv("rows.csv")
    frame["y"] = np.where(frame["site"] == "b", "sick", "well")
    frame.to_csv("rows.csv", index=False)
    with fails("class 'sick'", "fold"):
        select(settings, SelectOptions(folds=4, by="clients"), "out")
    assert not Path("out").exists()


@pytest.mark.slow
def test_folds_by_clients_are_no_more_than_there_are():
    assert plan_selection(config("algo=fedmid"), SelectOptions(by="clients"), "out").options.folds == 4
    assert plan_selection(config("algo=fedmid"), SelectOptions(), "out").options.folds == 5
    with fails("folds=5 is more than the 4 clients", "at most 4"):
        plan_selection(config("algo=fedmid"), SelectOptions(by="clients", folds=5), "out")
    with fails("by=clients", "one only: give by=rows"):
        SelectOptions(by="clients").resolve(1)


@pytest.mark.slow
def test_clients_that_a_fold_holds_out_are_named():
    settings = config("algo=centralized")
    selection = select(settings, SelectOptions(folds=3, points=2, by="clients"), "out")
    held_out = json.loads(Path("out/selection.json").read_text())["held_out"]
    assert sorted(name for names in held_out.values() for name in names) == ["a", "b", "c", "d"]
    _, splits = fold_of(settings, SelectOptions(folds=3, by="clients"))
    for k, (_, test) in enumerate(splits):
        assert held_out[f"fold{k + 1}"] == sorted(set(OWNER[test]))
    text = "\n".join(selection.describe())
    assert f"held out: fold1 {', '.join(held_out['fold1'])}; fold2 " in text
    assert "3 folds, each weighed by its rows" in text
    assert "paired differences to the minimum" in text


@pytest.mark.slow
def test_folds_of_clients_count_by_their_rows_and_are_compared_in_pairs():
    settings, options = config("algo=centralized", "algo.tolerance=1e-12"), SelectOptions(points=6, by="clients")
    selection = select(settings, options, "out")
    data, splits = fold_of(settings, selection.options)
    errors = np.array([
        [((data.train.y[test] - Lasso(alpha, tol=1e-12, max_iter=100_000).fit(data.train.x[train], data.train.y[train])
           .predict(data.train.x[test])) ** 2).mean() for alpha in selection.path.values / 2] for train, test in splits
    ])  # fmt: skip
    share = np.array([len(test) for _, test in splits]) / len(data.train.y)
    mean = share @ errors
    difference = errors - errors[:, [mean.argmin()]]
    standard_error = np.sqrt(4 / 3 * share**2 @ (difference - share @ difference) ** 2)
    summary = json.loads(Path("out/selection.json").read_text())
    assert (summary["fold_weights"], summary["one_standard_error_of"]) == ("rows", "the paired differences")
    assert list(summary["weight_of_fold"].values()) == [len(test) for _, test in splits]
    curve = pd.read_csv("out/curve.csv")
    np.testing.assert_allclose(curve["val_loss_mean"], mean, rtol=1e-5)
    np.testing.assert_allclose(curve["val_loss_difference_standard_error"], standard_error, atol=1e-5)
    assert selection.choice.one_se_index == np.flatnonzero(mean - standard_error <= mean.min())[0]
    assert summary["min"]["difference_standard_error"] == 0
    equal = select(settings, SelectOptions(points=6, by="clients", fold_weights="equal"), "out")  # the same fits
    np.testing.assert_allclose(equal.choice.mean, errors.mean(axis=0), rtol=1e-5)
    text = "\n".join(equal.describe())
    assert "4 folds, each weighed equally" in text
    rows = select(settings, SelectOptions(folds=4, points=3), "rows")
    summary = json.loads(Path("rows/selection.json").read_text())
    assert (summary["fold_weights"], summary["one_standard_error_of"]) == ("equal", "the best mean")
    assert not rows.choice.paired


def marked(*overrides, **columns):
    """Add columns to the table of the four clients, none of them a feature; return its configuration."""
    settings = config("data.only=[age,dose,x0]", *overrides)
    pd.read_csv("rows.csv").assign(**columns).to_csv("rows.csv", index=False)
    return settings


@pytest.mark.slow
def test_folds_of_a_column_equal_scikit_learn():
    wave = np.random.default_rng(0).choice(["early", "late", "middle"], 60, p=[0.5, 0.3, 0.2])
    settings = marked("data.fold=wave", "algo=centralized", "algo.tolerance=1e-12", wave=wave)
    planned = plan_selection(settings, SelectOptions(points=4), "out")
    assert "the folds are those of data.fold=wave: fold1 'early', fold2 'late', fold3 'middle'" in planned.messages
    assert "3 folds by data.fold of 60 training rows" in planned.messages[0]
    selection = planned.run()
    data = load_data(prepare(settings))
    fold = np.unique(wave, return_inverse=True)[1]
    errors = np.array([
        [((data.train.y[test] - Lasso(alpha, tol=1e-12, max_iter=100_000).fit(data.train.x[train], data.train.y[train])
           .predict(data.train.x[test])) ** 2).mean() for alpha in selection.path.values / 2]
        for train, test in PredefinedSplit(fold).split()
    ])  # fmt: skip
    np.testing.assert_allclose(selection.choice.mean, np.bincount(fold) / 60 @ errors, rtol=1e-5)
    summary = json.loads(Path("out/selection.json").read_text())
    assert (summary["by"], summary["fold_weights"], summary["folds"]) == ("data.fold", "rows", 3)
    assert summary["fold_values"] == {"fold1": "early", "fold2": "late", "fold3": "middle"}
    assert list(summary["weight_of_fold"].values()) == np.bincount(fold).tolist()
    for options, words in (
        (SelectOptions(by="clients"), "leave by=clients out, or data.fold"),
        (SelectOptions(folds=5), "folds=5: data.fold marks 3 folds"),
    ):
        with fails(words):
            plan_selection(settings, options, "out")
    assert any(
        "has no effect on halves" in line
        for line in plan_stability(settings, StabilityOptions(points=2), "st").messages
    )
    with fails("data.fold marks one fold only, '1'"):
        plan_selection(marked("data.fold=wave", wave=1), SelectOptions(), "out")


def test_weights_of_rows_weigh_folds_in_words():
    columns = {"x": np.zeros((2, 1)), "y": np.zeros(2), "client": np.zeros(2, int)}
    one = np.ones(2)
    sizes = np.array([2])
    for train, expected in (
        (Rows(**columns), "rows"),
        (Rows(**columns, weight=one), "rows' weights"),
        (SiteRows(**columns, all_sizes=sizes), "rows"),
        (SiteRows(**columns, all_sizes=sizes, all_weights=sizes), "rows' weights"),
    ):
        selection: Any = SimpleNamespace(data=SimpleNamespace(train=train))
        assert Selection.fold_measure.fget(selection) == expected  # type: ignore[attr-defined]


def test_a_study_file_says_what_weighs_folds_before_the_refit(monkeypatch):
    settings = marked("data.weight=w", "algo=centralized", w=np.linspace(1, 2, 60))
    monkeypatch.setattr("fcorun.studies.selection.study.run_experiments", lambda *_: fail_to_refit())
    for fold_weights, measure in (("rows", "rows' weights"), ("equal", None)):
        with pytest.raises(RuntimeError, match="no refit"):
            select(settings, SelectOptions(folds=2, points=2, fold_weights=fold_weights), "out")
        assert json.loads(Path("out/selection.json").read_text()).get("fold_measure") == measure


def test_a_selection_whose_refit_fails_has_its_own_pictures(monkeypatch):
    settings = config("algo=centralized")
    monkeypatch.setattr("fcorun.studies.selection.study.run_experiments", lambda *_: fail_to_refit())
    pictures = [Path("out/selection.png"), Path("out/selection.pdf")]
    for rule in ("min", "one_se"):
        with pytest.raises(RuntimeError, match="no refit"):
            select(settings, SelectOptions(folds=2, points=2, rule=rule), "out")
        assert [path.exists() for path in pictures] == [True, False]  # a test draws the first alone
        assert pictures[0].read_bytes() == b""
        for path in pictures:
            path.write_bytes(b"of an earlier choice")


def fail_to_refit():
    raise RuntimeError("no refit")


@pytest.mark.slow
def test_groups_are_whole_in_folds_and_halves():
    patient = np.array([f"{site}{k // 3}" for k, site in enumerate(OWNER)])
    settings = marked("data.group=patient", patient=patient)
    planned = plan_selection(settings, SelectOptions(folds=3), "out")
    count = len(np.unique(patient))
    assert f"of 60 training rows in {count} groups (data.group), whose rows stay together" in planned.messages[0]
    assert planned.options.fold_weights == "rows"
    stable = plan_stability(settings, StabilityOptions(subsamples=6, points=2), "st")
    for study in (planned.study, stable.study):
        for name in study.subsets:
            subset = study.take_subset(name)
            if name != "all":
                others = np.setdiff1d(np.arange(60), subset.train_rows)
                assert not set(patient[subset.train_rows]) & set(patient[others])
                assert subset.data.train.group is not None
                assert subset.data.train.group.tolist() == patient[subset.train_rows].tolist()
    with fails("fold", "none of the", "groups of data.group", "fewer folds"):
        plan_selection(settings, SelectOptions(folds=25), "out")


@pytest.mark.slow
def test_groups_that_cannot_be_held_out_are_refused():
    across = np.where(np.arange(60) % 12 == 0, "travels", [f"{site}{k // 3}" for k, site in enumerate(OWNER)])
    settings = marked("data.group=patient", "data.group_across=keep", patient=across)
    for make in (lambda: plan_selection(settings, SelectOptions(by="clients"), "out"),
                 lambda: plan_stability(settings, StabilityOptions(by="clients", subsamples=2), "out")):  # fmt: skip
        with fails("by=clients holds whole clients out", "group 'travels'", "of a and of b"):
            make()
    settings = marked("data.group=site2", "algo=local", "rounds=2", site2=OWNER)  # a client is one group
    with fails("all rows of client", "algo=local has a model for each client"):
        plan_selection(settings, SelectOptions(folds=2), "out")
