"""A second number that is chosen together with the strength: oracles, the rule, edges, files, refusals."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import sklearn.linear_model
from four_clients import config, fold_of
from helpers import fails, not_none
from run_studies import select

from fcorun.experiment.prepare import prepare
from fcorun.interface.cli.commands.predict_command import find_record
from fcorun.interface.cli.commands.study_command import split_options
from fcorun.reports.pictures.selection_picture import SelectionView, mark_choices
from fcorun.studies.selection.choice import choose, warn_about_choice
from fcorun.studies.selection.fitting import PathFit
from fcorun.studies.selection.path import RegularizationPath, SecondNumber, _smallest_radius, read_second_number
from fcorun.studies.selection.select import plan_selection
from fcorun.studies.selection.selection_result import SelectOptions

sklearn_linear: Any = sklearn.linear_model  # Any, as its types are incomplete
NET = ("algo=centralized", "algo.tolerance=1e-12", "reg=elastic_net")
RATIOS = {"reg.l1_ratio": [0.2, 0.5, 0.9]}


@pytest.mark.slow
def test_choice_equals_elastic_net_cv():
    settings, options = config(*NET), SelectOptions(folds=3, points=5, second=RATIOS)
    selection = select(settings, options, "out")
    data, splits = fold_of(settings, options)
    alphas = selection.path.values.reshape(3, 5) / 2  # the loss of fcorun has no 1/2
    x, y = data.train.x - data.train.x.mean(axis=0), data.train.y - data.train.y.mean()
    means = []
    for s, ratio in enumerate(RATIOS["reg.l1_ratio"]):
        assert alphas[s, 0] == pytest.approx(np.abs(x.T @ y).max() / 60 / ratio)
        net = sklearn_linear.ElasticNetCV(l1_ratio=ratio, alphas=alphas[s], cv=splits, tol=1e-12, max_iter=100_000)
        errors = net.fit(data.train.x, data.train.y).mse_path_.T
        ours = np.stack([selection.fits[f"fold{k + 1}"].metrics["val_loss"][5 * s : 5 * s + 5] for k in range(3)])
        np.testing.assert_allclose(ours, errors, rtol=1e-5)
        means += errors.mean(axis=0).tolist()
    assert selection.choice.best_index == np.argmin(means)

    about = json.loads(Path("out/selection.json").read_text())
    best_ratio = RATIOS["reg.l1_ratio"][int(np.argmin(means)) // 5]
    assert about["second"] == {"key": "reg.l1_ratio", "values": RATIOS["reg.l1_ratio"], "chosen": best_ratio}
    curve: Any = pd.read_csv("out/curve.csv")
    assert len(curve) == 15
    assert curve.loc[curve["chosen"], "l1_ratio"].tolist() == [best_ratio]
    record = find_record(Path("out"))
    assert float(record.flat_config["reg.l1_ratio"]) == best_ratio
    path: Any = pd.read_csv("out/path.csv")
    assert len([name for name in path if name.startswith("strength=")]) == 5
    chosen = path[f"strength={selection.path.values[selection.choice.chosen_index]:.6g}"]
    weights = path["parameter"] == "weights"
    solution = np.asarray(not_none(selection.record).solution["weights"])
    np.testing.assert_allclose(chosen[weights], solution[np.abs(solution) > 1e-4], atol=1e-6)


@pytest.mark.slow
def test_the_paths_are_one_batch_and_equal_paths_alone():
    """Each l1_ratio has the fits that it has alone, also where the algorithm computes its rate from the data."""
    rounds = ("algo=fedmid", "reg=elastic_net", "rounds=20", "eval_every=20", "local_steps=1", "batch_size=null")
    options = SelectOptions(folds=2, points=3, second={"reg.l1_ratio": [0.3, 0.8]})
    study = plan_selection(config(*rounds), options, "both").study
    with study.claim():
        both = study.compute_fits(lambda _, fit: fit, print)["fold1"]
    for s, ratio in enumerate((0.3, 0.8)):
        alone = plan_selection(config(*rounds, f"reg.l1_ratio={ratio}"), replace(options, second=None), f"{s}").study
        np.testing.assert_allclose(alone.path.values, study.path.values[3 * s : 3 * s + 3])
        with alone.claim():
            fit = alone.compute_fits(lambda _, fit: fit, print)["fold1"]
        np.testing.assert_allclose(both.solution["weights"][3 * s : 3 * s + 3], fit.solution["weights"], atol=2e-6)


@pytest.mark.slow
def test_a_number_of_own_models():
    own = ("algo=pfedmac_s", "rounds=4", "eval_every=4", "local_steps=1", "clients_per_round=null")
    lam = {"algo.lam": [0.5, 5.0]}
    plan = plan_selection(config(*own, "algo.lam=0.5"), SelectOptions(folds=2, points=2, second=lam), "out")
    np.testing.assert_array_equal(plan.study.path.values[:2], plan.study.path.values[2:])
    assert "2 values of strength for each lam of 0.5, 5, from " in plan.messages[0]
    with plan.study.claim():
        fit = plan.study.compute_fits(lambda _, fit: fit, print)["fold1"]
    scores = fit.metrics["personal_val_loss"]
    assert len(np.unique(scores[[1, 3]])) == 2  # lam changes the models


def paths(values, second, limits=(0.0, 1.0)):
    number = SecondNumber("reg", "l1_ratio", np.repeat(second, len(values)), limits)
    return RegularizationPath("strength", np.tile(values, len(second)), second=number)


def test_one_standard_error_takes_the_earliest_of_all_paths():
    # the second path is better at its second position than the first path is
    scores = np.array([[3.0, 1.6, 1.1, 2.0, 3.0, 1.5, 1.4, 2.0], [3.0, 1.4, 0.9, 2.0, 3.0, 1.4, 1.4, 2.0]])
    strict = choose(scores, "one_se", higher_is_better=False, n_paths=2)
    assert (strict.best_index, strict.one_se_index) == (2, 2)
    scores[:, 2] = 1.6, 0.4  # a standard error of 0.6
    loose = choose(scores, "one_se", higher_is_better=False, n_paths=2)
    assert (loose.best_index, loose.one_se_index) == (2, 5)


def test_edges_of_both_numbers_are_said():
    path = paths([1.0, 0.1, 0.01], [0.2, 0.5, 0.9])
    fits = {"fold1": PathFit({}, {}, np.zeros(9, int), {})}

    def warned(best):
        scores = np.ones((2, 9))
        scores[:, best] = 0
        return " ".join(warn_about_choice(choose(scores, "min", False, n_paths=3), path, fits, rounds=8))

    assert warned(4) == ""
    assert "at the largest l1_ratio that was tried, 0.9: the best may be beyond" in warned(7)
    assert "at the least l1_ratio that was tried, 0.2" in warned(1)
    end = warned(5)
    assert "at the end of the path, strength=0.01 l1_ratio=0.5: the best may be beyond; range=[0.0001,1]" in end
    assert "l1_ratio that was tried" not in end
    assert "at the beginning of the path, strength=1 l1_ratio=0.5" in warned(3)
    at_one = paths([1.0, 0.1, 0.01], [0.2, 0.5, 1.0])
    scores = np.ones((2, 9))
    scores[:, 7] = 0
    assert warn_about_choice(choose(scores, "min", False, n_paths=3), at_one, fits, rounds=8) == []


def test_values_are_read_from_the_command():
    given = ["algo=fedavg", "reg.l1_ratio=0.5,0.1", "points=3", "out=2026_05"]
    options, overrides, folder = split_options(SelectOptions, given)
    assert folder == "2026_05"
    with fails("out= names no folder: give out=DIR"):
        split_options(SelectOptions, ["out="])
    assert options.second == {"reg.l1_ratio": [0.5, 0.1]}
    assert overrides == ["algo=fedavg", "reg.l1_ratio=0.1"]


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ({"reg.l1_ratio": [0.1, 0.5], "algo.lam": [1, 2]}, "reg.l1_ratio and algo.lam have several values"),
        ({"reg.l1_ratio": [0.5, 0.5]}, "two or more different values"),
        ({"reg.l1_ratio": [0.5, 1.5]}, "reg.l1_ratio=1.5 must be between 0 and 1"),
        ({"reg.strength": [0.5, 1.5]}, "computes the strengths or radii of the path itself: give range=[LOW,HIGH]"),
        ({"rounds": [5, 10]}, "possible keys are reg.l1_ratio; give one value"),
        ({"algo.max_iterations": [5, 10]}, "possible keys are reg.l1_ratio; give one value"),
    ],
)
def test_refusals_are_one_sentence(second, words):
    with fails(words):
        plan_selection(config(*NET), SelectOptions(folds=2, points=2, second=second), "out")
    assert not Path("out").exists()


def test_a_number_of_a_mirror_map_is_refused_with_a_baseline():
    second = {"mirror.beta": [0.5, 1.0]}
    with_rate = ("algo=feddualavg", "algo.client_lr=0.1", "mirror=hypentropy")
    assert read_second_number(prepare(config(*with_rate)), second).key == "mirror.beta"
    with fails("mirror.beta has several values", "this configuration has no such number; give one value"):
        plan_selection(
            config("algo=centralized", "reg=l1", "mirror=hypentropy"),
            SelectOptions(folds=2, points=2, second=second),
            "out",
        )
    assert not Path("out").exists()


LIMITS = [
    (("algo=fedsplit",), "algo.relaxation", [1, 1.5, 2], (-np.inf, 2)),
    (("algo=fedsplit",), "algo.relaxation", [1, 1.5], (-np.inf, np.inf)),
    (("reg=elastic_net",), "reg.l1_ratio", [0, 0.5, 1], (0, 1)),
    (("reg=l1_box",), "reg.lower", [-2, -1, 0], (-np.inf, 0)),
    (("reg=l1_box", "reg.lower=0"), "reg.upper", [0, 1], (0, np.inf)),
    (("algo=feddualavg", "algo.client_lr=0.1", "mirror=p_norm"), "mirror.p", [1.5, 2], (-np.inf, 2)),
]


@pytest.mark.parametrize(("overrides", "key", "values", "limits"), LIMITS, ids=str)
def test_no_values_are_advised_that_would_be_refused(overrides, key, values, limits):
    number = read_second_number(prepare(config(*overrides)), {key: values})
    assert number.limits == limits
    path = replace(paths([1.0, 0.1, 0.01], number.values), second=replace(number, values=np.repeat(number.values, 3)))
    fits = {"fold1": PathFit({}, {}, np.zeros(len(path.values), int), {})}
    for s, edge in ((0, "least"), (len(values) - 1, "largest")):
        scores = np.ones((2, len(path.values)))
        scores[:, 3 * s + 1] = 0
        warnings = warn_about_choice(choose(scores, "min", False, n_paths=len(values)), path, fits, rounds=8)
        assert [edge in warning for warning in warnings] == [True] * (values[s] not in limits)


@pytest.mark.parametrize(("one_se", "sides"), [(3, ["left", "right"]), (4, ["left", "right"]), (5, ["right", "left"])])
@pytest.mark.parametrize(("param_name", "power"), [("strength", 1), ("radius", -1)])
def test_names_of_two_choices_point_away_from_each_other(one_se, sides, param_name, power):
    """The choice of one standard error, of another path, may be left of the best, at the same value, or right of it."""
    values = np.array([1.0, 0.9, 0.01, 0.95, 0.9, 0.85]) ** power
    aligned = []
    ax: Any = SimpleNamespace(axvline=lambda *_, **__: None, annotate=lambda *_, ha, **__: aligned.append(ha))
    view = SelectionView(
        title="", param_name=param_name, values=values, length=3, second_name="l1_ratio", second_values=np.ones(6),
        metric="loss", n_folds=5, mean=np.ones(6), error=np.ones(6), paired=False, higher_is_better=False, best_index=1,
        one_se_index=one_se, chosen_index=1, nested=None, coefficients=None, cutoff=1e-4,
    )  # fmt: skip
    mark_choices(ax, view, with_names=True)
    assert aligned == sides


def test_a_path_that_has_no_default_end_is_refused():
    table = config("algo=centralized", "reg=l1_nonneg")
    frame = pd.read_csv("rows.csv")
    numbers = frame.columns.difference(["site", "y"])
    frame[numbers] = -frame[["y"]].to_numpy() + np.arange(len(numbers))
    frame.to_csv("rows.csv", index=False)
    with fails("no feature is associated with the target in a direction that reg=l1_nonneg allows; choose another reg"):
        plan_selection(table, SelectOptions(folds=2, points=2), "out")
    ball = prepare(config("reg=l1_ball")).reg
    with fails("no finite solution without constraint was found", "give range"):
        _smallest_radius(ball, jnp.array([1.0, np.nan]), "give range")
    with fails("the solution without constraint is 0"):
        _smallest_radius(ball, jnp.zeros(2), "give range")
