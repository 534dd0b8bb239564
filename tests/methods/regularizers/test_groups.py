"""The group lasso on groups of features of a table."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from helpers import composed, fails, ragged
from run_studies import select

from fcorun import run
from fcorun.experiment.build import build_problem, load_data
from fcorun.experiment.prepare import prepare
from fcorun.methods.regularizers.group_lasso import GroupLasso
from fcorun.studies.selection.selection_result import SelectOptions

TABLE = ("data=table", "data.path=rows.csv", "data.target=y", "data.client=site", "data.validation=0")


def write_table(classes=False):
    """Write a table with text columns of four, three and two levels, and two numeric columns."""
    rng = np.random.default_rng(4)
    frame = pd.DataFrame(
        {
            "ward": rng.choice(["er", "eye", "icu", "lung"], 90),
            "age": rng.standard_normal(90),
            "smoker": rng.choice(["current", "former", "never"], 90),
            "sex": rng.choice(["F", "M"], 90),
            "dose": rng.standard_normal(90),
            "site": np.resize(["a", "b", "c"], 90),
        }
    )
    score = frame["age"] + 0.3 * frame["dose"] + 0.8 * (frame["ward"] == "icu") + 0.4 * rng.standard_normal(90)
    frame["y"] = np.digitize(score, [-0.5, 0.8]) if classes else score
    frame.to_csv("rows.csv", index=False)


def bind_psi(*overrides) -> Any:
    experiment = prepare(composed(*TABLE, "reg=group_lasso", *overrides))
    return build_problem(experiment, load_data(experiment)).regularizer


def groups_of(*overrides):
    """Return the names of the features of each group."""
    experiment = prepare(composed(*TABLE, "reg=group_lasso", *overrides))
    data = load_data(experiment)
    psi: Any = build_problem(experiment, data).regularizer
    features = np.array(data.features.names)
    return {name: list(features[psi.group_of == k]) for k, name in enumerate(psi.names)}


@pytest.mark.slow
def test_a_group_is_a_column_unless_groups_are_named():
    write_table()
    wards = [f"ward={name}" for name in ("er", "eye", "icu", "lung")]
    smokers = [f"smoker={name}" for name in ("current", "former", "never")]
    groups = groups_of()
    assert groups == {"ward": wards, "age": ["age"], "smoker": smokers, "sex": ["sex=M"], "dose": ["dose"]}
    groups = groups_of(r"reg.groups={body: [age, dose, sex], risk: ['ward=icu', 'smoker=current']}")
    assert groups == {"body": ["age", "sex=M", "dose"], "risk": ["ward=icu", "smoker=current"],
                     "ward": [wards[0], wards[1], wards[3]], "smoker": smokers[1:]}  # fmt: skip
    assert bind_psi("reg.groups={body: [age, dose]}", "reg.factors={body: 2}").factors == {"4": 2, "9": 2}
    experiment = prepare(composed(*TABLE, "reg=group_lasso", "reg.group_size=5"))
    assert type(build_problem(experiment, load_data(experiment)).regularizer) is GroupLasso


def test_without_feature_names_groups_are_consecutive(tmp_path):
    settings = ragged(tmp_path, "reg=group_lasso")
    settings["reg"]["groups"] = {"ends": ["0", "5"]}
    experiment = prepare(settings)
    psi: Any = build_problem(experiment, load_data(experiment)).regularizer
    assert psi.group_of.tolist() == [0, 1, 2, 3, 4, 0]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["reg.groups={a: [wrad]}"], ["reg.groups.a: there is no feature 'wrad'; did you mean 'ward'?"]),
        (["reg.groups={a: [ward, age], b: ['ward=icu']}"], ["'ward=icu' twice, in 'a' and in 'b'"]),
        (["reg.groups={a: [age, age]}"], ["'age' twice, in 'a' and in 'a'"]),
        (["reg.groups={a: []}"], ["reg.groups.a names no feature"]),
        (["reg.groups={a: [age]}", "reg.group_size=2"], ["reg.groups", "reg.group_size", "one of them"]),
        (["reg.groups={a: [age, dose]}", "reg.factors={age: 0}"], ["'a' is one group of features", "reg.factors"]),
        (["reg.groups={a: [age]}", "reg.apply_to=[bias]"], ["reg.groups", "other parameters"]),
    ],
)
def test_invalid_groups_are_refused(overrides, words):
    write_table()
    with fails(*words):
        bind_psi(*overrides)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("shape", [(8,), (8, 3)])
def test_groups_of_any_features_equal_blocks_after_a_permutation(shape):
    rng, order = np.random.default_rng(0), np.array([5, 0, 3, 6, 1, 7, 2, 4])
    group_of = np.empty(8, int)
    group_of[order] = np.arange(8) // 2
    w, t = jnp.asarray(rng.standard_normal(shape)).at[order[:2]].multiply(0.01), 0.4
    psi = GroupLasso(0.7).on_groups(group_of, "abcd")
    with pytest.raises(ValueError, match="are its rows"):
        GroupLasso(0.7, group_size=2).check((6, 3))
    blocks: Any = GroupLasso(0.7 * np.sqrt(2), group_size=2 if len(shape) == 1 else None)
    flat = w[order].reshape(4, -1)  # a row for each group, which the group lasso of a matrix takes
    for ours, theirs in (
        (psi.value(w), blocks.value(flat)),
        (psi.prox(w, t)[order].reshape(4, -1), blocks.prox(flat, t)),
        (psi.subgradient(w)[order].reshape(4, -1), blocks.subgradient(flat)),
        (psi.strength_max(w), blocks.strength_max(flat) / np.sqrt(2)),
        (psi.dual_scale(w), blocks.dual_scale(flat)),
        (psi.structure(w, 0.1)["group_density"], 0.75),
        (jax.vmap(lambda t: psi.prox(w, t))(jnp.array([t]))[0], psi.prox(w, t)),
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("classes", [False, True])
def test_the_optimum_satisfies_the_kkt_conditions_of_groups_of_different_sizes(classes):
    write_table(classes)
    task = ("data.task=multiclass",) if classes else ()
    settings = composed(
        *TABLE, *task, "algo=centralized", "reg=group_lasso", "reg.strength=0.1", "algo.tolerance=1e-12"
    )
    record = run(settings, "run")
    experiment = prepare(settings)
    data, w = load_data(experiment), record.solution["weights"]
    score = data.train.x @ w + record.solution["bias"]
    if classes:
        probabilities = np.exp(score) / np.exp(score).sum(axis=1, keepdims=True)
        gradient = data.train.x.T @ (probabilities - np.eye(3)[data.train.y]) / len(data.train.y)
    else:
        gradient = 2 * data.train.x.T @ (score - data.train.y) / len(data.train.y)
    psi: Any = build_problem(experiment, data).regularizer
    is_selected = []
    for group in range(len(psi.names)):  # the KKT conditions of each group
        rows = psi.group_of == group
        threshold, size = 0.1 * np.sqrt(rows.sum()), np.linalg.norm(w[rows])
        is_selected.append(size > 0)
        if size > 0:
            np.testing.assert_allclose(gradient[rows], -threshold * w[rows] / size, atol=1e-5)
        else:
            assert np.linalg.norm(gradient[rows]) <= threshold + 1e-6
    assert 0 < sum(is_selected) < len(is_selected)
    certificate = record.summary["certificate"]
    assert certificate["kind"] == ("prox-gradient norm" if classes else "duality gap")
    assert certificate["certified"]
    assert record.summary["final"]["group_density"] == pytest.approx(np.mean(is_selected))


@pytest.mark.slow
def test_a_path_selects_whole_groups():
    write_table()
    settings = composed(*TABLE, "algo=feddualavg", "reg=group_lasso", "rounds=60", "eval_every=60")
    selection = select(settings, SelectOptions(folds=2, points=4), "select")
    weights, group_of = selection.fits["all"].solution["weights"], bind_psi().group_of
    assert np.abs(weights[0]).max() < 1e-4
    levels = np.abs(weights[-1][group_of == 0]) > 0
    assert levels.all()
    assert selection.record is not None
    assert selection.record.config["reg"]["groups"] is None
