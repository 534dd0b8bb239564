"""Permutation tests: scikit-learn's values, exact enumeration, groups, resuming and refusals."""

import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers import composed, fails

from fcorun.interface.cli.commands import main
from fcorun.methods.problem.penalty import MAX_WORKING, Penalty
from fcorun.studies.selection import permute
from fcorun.studies.selection.permutation import Exchanges, PermutationOptions, compute_p_values, describe_test
from fcorun.studies.selection.permute import plan_permutations
from fcorun.studies.selection.permuted_fits import DirectFits, PathFits

RNG = np.random.default_rng(5)
SITE = np.repeat(["a", "b", "c"], 12)
X = RNG.standard_normal((36, 4))
SCORE = X @ [1.0, -0.7, 0, 0] + RNG.standard_normal(36)
FOLD = np.tile(["one", "two", "three"], 12)
TABLE = ("data=table", "data.path=rows.csv", "data.target=y", "data.client=site", "data.validation=0")
OPTIONS = (*TABLE, "data.fold=fold", "algo=centralized")


@pytest.fixture(autouse=True)
def rows():
    write_rows(SCORE)


def write_rows(y, **columns):
    frame = pd.DataFrame(X, columns=list("pqrs")).assign(site=SITE, fold=FOLD, y=y)
    frame.assign(**columns).to_csv("rows.csv", index=False)


def plan(*overrides, n=20, keeps_strength=True, **options):
    settings = composed(*OPTIONS, *overrides)
    return plan_permutations(settings, PermutationOptions(n=n, **options), "out", keeps_strength)


def test_numbers_are_those_of_scikit_learn():
    """``permutation_test_score`` of 1.9 with Lasso(alpha=0.05), the same folds, and these permutations injected."""
    result = plan("reg=l1", "reg.strength=0.1").run()
    assert result.table[:3, 0] == pytest.approx([0.16559632, -0.25569785, -0.30066138], abs=1e-6)


def test_classes_are_those_of_scikit_learn():
    """LogisticRegression(C=1/(2 * 24 * 0.02)) of 1.9, whose penalty is half the square, in the same way."""
    write_rows(np.where(SCORE > 0, "yes", "no"))
    result = plan("data.task=binary", "reg=l2", "reg.strength=0.02").run()
    assert result.scores.names == ["accuracy", "auc", "support"]
    assert result.table[:4, 0] == pytest.approx([0.72222222, 0.47222222, 0.41666667, 0.44444444], abs=1e-8)
    assert result.table[:4, 1] == pytest.approx([0.68915344, 0.48148148, 0.29259259, 0.43981481], abs=1e-8)
    assert result.p_values["auc"] == pytest.approx(3 / 21)


def test_any_algorithm_has_the_numbers_of_the_path_solver():
    """The fits of a selection agree with those from features that are prepared once, on a path, too."""
    planned = plan("reg=l1", keeps_strength=False, points=3)
    assert DirectFits.applies_to(planned.study)
    for number in (0, 1):
        y = planned.exchanges.exchange(planned.study.data.train.y, number, 0)
        path = planned.path_of(y)
        study = replace(planned.study, path=path)
        direct, general = (kind(planned.study).fit(study, number, y) for kind in (DirectFits, PathFits))
        assert direct.outputs == pytest.approx(general.outputs, abs=2e-3)
        assert direct.support.tolist() == general.support.tolist()
        assert direct.support[0] == 0  # where the path begins
    assert path.values[0] != planned.study.path.values[0]


@pytest.mark.parametrize(("overrides", "is_direct"), [
    (("reg=none",), False), (("reg=l1", "reg.strength=0.1"), True), (("reg=l1", "reg.strength=0"), False),
    (("reg=l1", "reg.strength=0.1", "reg.factors={p: 0}"), False), (("reg=l2", "reg.strength=0.1"), True)])  # fmt: skip
def test_permutations_that_cannot_be_certified_run_the_algorithm(overrides, is_direct):
    planned = plan(*overrides, n=1)
    assert DirectFits.applies_to(planned.study) == is_direct
    assert np.isfinite(planned.run().table).all()


def test_ridge_of_more_features_than_the_path_solver_takes_cannot_be_certified():
    for n_features, certified in ((MAX_WORKING - 1, True), (MAX_WORKING, False)):
        l1 = np.zeros(n_features + 1)
        ridge = np.append(np.ones(n_features), 0.0)
        assert Penalty(l1, ridge).can_be_certified(has_intercept=True) == certified


def test_all_exchanges_of_a_small_client_are_equally_likely():
    """Each order of three rows has one sixth of 3,000 permutations, by the exact enumeration, and no other client's."""
    y = np.arange(36.0)
    planned = plan("reg=none", keeps_strength=False)
    exchanges = Exchanges([np.array([[0], [1], [2]])], 36)
    drawn = np.array([exchanges.exchange(y, number, 0) for number in range(1, 3001)])
    assert (drawn[:, 3:] == y[3:]).all()
    counts = [(drawn[:, :3] == order).all(axis=1).sum() for order in itertools.permutations(range(3))]
    assert sum(counts) == 3000
    assert np.abs(np.array(counts) - 500).max() < 5 * np.sqrt(500 * 5 / 6)
    all_rows = [planned.exchanges.exchange(y, number, 0) for number in range(1, 50)]
    for start in (0, 12, 24):
        assert (np.sort(np.array(all_rows)[:, start : start + 12]) == y[start : start + 12]).all()


def test_p_counts_equal_and_undefined_permutations():
    table = np.array([[0.5, 0.5], [0.5, np.nan], [0.4, 0.4], [0.6, 0.3]])
    assert compute_p_values(table).tolist() == [3 / 4, 2 / 4]
    table[0, 1] = np.nan
    assert np.isnan(compute_p_values(table)[1])
    assert list(describe_test(["AUC", "R2"], table))[1].startswith("R2 is not defined")


def test_groups_of_one_size_exchange_their_targets_as_wholes():
    """Groups of 2, 2, 2 and 6 rows in a client: the last one keeps its targets, and the others stay together."""
    sizes = [2, 2, 2, 6]
    group = np.concatenate([np.repeat([f"{site}{i}" for i in range(4)], sizes) for site in "abc"])
    write_rows(np.arange(36.0), g=group)
    planned = plan("reg=none", "data.group=g", "data.fold=null", folds=2)
    y = planned.study.data.train.y
    drawn = np.array([planned.exchanges.exchange(y, number, 0) for number in range(1, 60)])
    for start in (0, 12, 24):
        assert (drawn[:, start + 6 : start + 12] == y[start + 6 : start + 12]).all()
        pairs = drawn[:, start : start + 6].reshape(-1, 2)
        assert {tuple(pair) for pair in pairs.tolist()} == {tuple(pair) for pair in y[start : start + 6].reshape(3, 2)}


def test_what_is_done_is_not_computed_again(monkeypatch, capsys):
    """A kill after some chunks loses the others alone; a larger n computes what is missing."""
    command = ["permute", *OPTIONS, "reg=l1", "reg.strength=0.1", "out=out", "n=25"]
    compute, computed = permute.PermutationPlan.compute_one, []

    def count(self, fits, number):
        computed.append(number)
        if number == fails_at:
            raise KeyboardInterrupt
        return compute(self, fits, number)

    monkeypatch.setattr(permute.PermutationPlan, "compute_one", count)
    monkeypatch.setattr(permute, "available_cores", lambda: 1)
    fails_at = 22
    assert main(command) == 130
    assert json.loads(Path("out/permutation.json").read_text())["status"] == "running"
    fails_at = None
    computed.clear()
    assert main(command) == 0
    assert computed == list(range(20, 26))
    table = pd.read_csv("out/permutations.csv")
    assert table["permutation"].tolist() == list(range(26))
    assert main([*command, "pdf=true"]) == 0
    assert Path("out/permutation.pdf").exists()
    assert main([*command[:-1], "n=35"]) == 0
    assert Path("out/permutation.png").exists()
    assert not Path("out/permutation.pdf").exists()  # which had 25 permutations
    assert computed == [*range(20, 26), *range(20, 36)]
    assert pd.read_csv("out/permutations.csv")[:26].equals(table)
    assert "strength=0.1 is that of the command" in capsys.readouterr().out
    about = json.loads(Path("out/permutation.json").read_text())
    assert about["p"]["r2"] == (1 + (pd.read_csv("out/permutations.csv")["r2"][1:] >= table["r2"][0]).sum()) / 36


def test_a_strength_that_nobody_gave_is_chosen_in_each_permutation(capsys):
    assert main(["permute", *OPTIONS, "reg=l1", "out=out", "n=3", "points=4"]) == 0
    assert "each permutation chose its strength anew, among 4, by its loss out of fold" in capsys.readouterr().out


@pytest.mark.parametrize(("options", "sentence"), [(("reg=none",), "reg=none has no strength"),
                                                   (("algo=fedavg", "reg=l1", "rounds=4", "eval_every=2"),
                                                    "algo=fedavg ignores the regularizer psi")])  # fmt: skip
def test_without_a_strength_nothing_is_chosen(options, sentence):
    result = plan(*options, n=1, keeps_strength=False).run()
    assert result.statement[-1] == sentence
    assert result.table[:, -1].tolist() == [4, 4]


def test_diverged_fits_have_no_scores():
    planned = plan("reg=none")
    output = np.where(np.arange(36) == 3, np.nan, SCORE)
    assert np.isnan(planned.scores.compute(planned.study.data.train.y, planned.fold, output, 4.0)).all()


def test_folds_of_classes_move_with_the_targets():
    """A model without features has the accuracy of the majority in each permutation; each fold keeps its classes."""
    write_rows(np.repeat(["yes", "no", "yes", "no"], 9))
    planned = plan("data.task=binary", "data.fold=null", "reg=l1", "reg.strength=3", folds=3, n=30)
    assert planned.moves_folds
    result = planned.run()
    assert (result.table == result.table[0]).all()
    assert result.p_values == {"accuracy": 1, "auc": 1, "support": 1}
    y = planned.study.data.train.y
    moved = [(planned.exchanges.exchange(y, k, 0), planned.exchanges.exchange(planned.fold, k, 0)) for k in range(5)]
    tables = [np.histogram2d(*pair, bins=(2, 3))[0] for pair in moved]
    assert all((table == tables[0]).all() for table in tables)
    assert len({fold.tobytes() for _, fold in moved}) == 5
    write_rows(SCORE)
    assert not plan("data.fold=null", "reg=l1", folds=3).moves_folds


def test_few_arrangements_are_said():
    """Two patients of each client have two visits, which can be exchanged or not: 2 * 2 * 2 arrangements."""
    sizes = [2, 2, 3, 5]
    group = np.concatenate([np.repeat([f"{site}{i}" for i in range(4)], sizes) for site in "abc"])
    write_rows(np.arange(36.0), g=group)
    planned = plan("reg=none", "data.group=g", "data.fold=null", folds=2, n=9)
    assert planned.sentences[-1].startswith("12 of 36 rows exchange their targets, as 6 whole groups; the others have")
    assert planned.warnings[1].startswith("the targets have 8 different arrangements only")
    (kept,) = plan("reg=none", "data.group=g", "data.fold=null", folds=2, n=7).warnings
    assert kept.startswith("67 % of the rows keep their targets")


def test_accuracy_of_a_rare_class_is_said_to_mislead_and_is_not_told_first():
    write_rows(np.where(np.arange(36) % 5 == 0, "yes", "no"))
    planned = plan("data.task=binary", "reg=l1", "reg.strength=0.1")
    assert planned.warnings == ["accuracy misleads here: predicting 'no' for every row has 0.7778"]
    assert planned.scores.names == ["accuracy", "auc", "support"]  # those of the columns that files keep
    told = planned.scores.describe_test(np.array([[0.7, 0.6, 4.0], [0.8, 0.5, 3.0]]))
    assert [sentence.split(";")[0] for sentence in told] == ["AUC 0.6", "accuracy 0.7", "features with a coefficient 4"]


def test_a_permutation_without_a_finite_fit_counts_against_the_observed_targets(monkeypatch):
    planned = plan("reg=l1", keeps_strength=False, n=3)
    choose, calls = planned.scores.choose, iter(range(4))
    monkeypatch.setattr(type(planned.scores), "choose", lambda *a: choose(*a[1:]) if next(calls) != 2 else None)
    monkeypatch.setattr(permute, "available_cores", lambda: 1)
    result = planned.run()
    assert np.isnan(result.table[2]).all()
    assert "of 1 permutations is not defined" in result.warnings[0]


@pytest.mark.parametrize(("overrides", "options", "sentence"), [
    (("reg.strength=0.1",), {"points": 4}, "points= is of the strengths among which each permutation chooses"),
    (("reg.strength=0.1",), {"range": [0.1, 1.0]}, "range= is of the strengths"),
    (("metric=val_loss",), {}, "metric=val_loss: fcorun permute tests each score"),
    (("threshold=0.1",), {}, "threshold=0.1: fcorun permute predicts the class of the larger")])  # fmt: skip
def test_options_that_would_do_nothing_are_refused(overrides, options, sentence):
    write_rows(np.where(SCORE > 0, "yes", "no"))
    with fails(sentence):
        plan("data.task=binary", "reg=l1", *overrides, **options)


def test_another_seed_is_another_test():
    first, second = (plan("reg=l1", f"seed={seed}").study.identity for seed in (0, 1))
    assert first != second


def test_what_cannot_be_permuted_is_refused():
    with fails("reg.relative follows from the targets"):
        plan("reg=l1", "reg.relative=0.1", keeps_strength=False)
    write_rows(SCORE, o=1.0)
    for option in ("offset", "weight"):
        with fails(f"data.{option} may follow from the target of its row", f"leave data.{option} out"):
            plan("reg=l1", f"data.{option}=o")
    write_rows(SITE == "a")
    with fails("the rows of each client have the same targets"):
        plan("reg=l2", "reg.strength=1", "data.task=binary")
    write_rows(SCORE, g=[f"{site}{i}" for site in "abc" for i in (0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1)])
    with fails("no client has two groups of equal size of data.group"):
        plan("reg=l2", "reg.strength=1", "data.group=g", "data.fold=null", folds=2)
    write_rows(SCORE - SCORE.min() + 1, e=1)
    with fails("has neither accuracy nor R2"):
        plan("data.task=survival", "data.event=e", "reg=l2", "reg.strength=1")
