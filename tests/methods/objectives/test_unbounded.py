"""Features of which a fit without a penalty has no finite coefficient: separation, in every task."""

import tracemalloc
from dataclasses import replace
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from helpers import SHARED, ragged

from fcorun import Cox, Gamma, LeastSquares, Logistic, OneVsRest, Poisson, ProportionalOdds, run
from fcorun.methods.problem import separation
from fcorun.methods.problem.separation import find_separation

LEVEL = np.array([0, 0, 0, 0, 0, 0, 1, 1.0])
ORDER = np.arange(8.0)
BIRTHS = SHARED / "data" / "medical" / "birthwt.csv"
ONE_CLIENT = np.zeros(8, int)
CASES = {  # an objective, targets, and whether LEVEL and ORDER have no finite coefficient
    "two classes": (Logistic(), [0, 1, 0, 1, 0, 1, 0, 0], (True, False)),
    "two classes by order": (Logistic(), [0, 0, 0, 0, 1, 1, 1, 1], (True, True)),
    "two classes that overlap": (Logistic(), [0, 1, 0, 1, 0, 1, 0, 1], (False, False)),
    "a class of three": (Logistic(), [0, 1, 2, 0, 1, 2, 0, 1], (True, False)),
    "three classes that overlap": (Logistic(), [0, 1, 2, 0, 1, 2, 0, 1][::-1], (True, False)),
    "one against the rest": (OneVsRest(), [0, 1, 2, 0, 1, 2, 0, 1], (True, False)),
    "the lowest of ordered classes": (ProportionalOdds(), [0, 1, 2, 0, 1, 2, 0, 0], (True, False)),
    "the middle of ordered classes": (ProportionalOdds(), [0, 1, 2, 0, 1, 2, 1, 1], (False, False)),
    "ordered classes by order": (ProportionalOdds(), [0, 0, 1, 1, 1, 1, 2, 2], (True, True)),
    "counts of 0": (Poisson(), [1, 0, 2, 4, 0, 1, 0, 0], (True, False)),
    "a count": (Poisson(), [1, 0, 2, 4, 0, 1, 0, 3], (False, False)),
    "a level without zeros": (Poisson(), [1, 0, 2, 4, 0, 1, 2, 3], (False, False)),
    "a level without events": (Cox(), [7, 3, -4, 5, -6, 1, -8, -9], (True, False)),
    "a level with an event": (Cox(), [7, 3, -4, 5, -6, 1, 2, -9], (False, False)),
    "events in order": (Cox(), [8, 7, 6, 5, 4, 3, 2, 1], (True, True)),
    "numbers": (LeastSquares(), ORDER, (False, False)),
    "positive numbers": (Gamma(), 1 + LEVEL, (False, False)),
}


def unbounded(objective, x, y, client=ONE_CLIENT):
    """Return the numbers of the features without a finite coefficient."""
    separation = find_separation(objective, x, y, client)
    return [] if separation is None else sorted(separation.features.tolist())


@pytest.mark.parametrize("case", CASES)
def test_what_no_data_determine_is_found_in_every_task(case):
    objective, y, expected = CASES[case]
    for feature, is_infinite in zip((LEVEL, ORDER), expected, strict=True):
        x = np.column_stack([feature, np.ones(8)])
        assert unbounded(objective, x, np.array(y)) == ([0] if is_infinite else [])


CLIENT = np.repeat([0, 1], 4)
CUTS = jnp.array([[1.0, -1.0]])
KINDS = {  # an objective, classes or values, parameters, those of each feature, and predictions of rows x at these
    "two classes": (Logistic(), 2, 3, [[0], [1]], lambda x, u: x @ u[:2] + u[2]),
    "without an intercept": (Logistic(intercept=False), 2, 2, [[0], [1]], lambda x, u: x @ u),
    "clients": (Logistic(client_intercepts=True), 2, 4, [[0], [1]], lambda x, u: x @ u[:2] + u[2:][CLIENT]),
    "three classes": (
        Logistic(),
        3,
        4,
        [[0, 1]],
        lambda x, u: jnp.pad(x @ u[None, :2] + u[None, 2:], ((0, 0), (0, 1))),
    ),
    "one against the rest": (OneVsRest(), 3, 6, [[0, 1, 2]], lambda x, u: x @ u[None, :3] + u[None, 3:]),
    "ordered": (ProportionalOdds(), 3, 4, [[0], [1]], lambda x, u: (x @ u[:2])[:, None] + u[None, 2:] + CUTS),
    "counts": (Poisson(), 2, 3, [[0], [1]], lambda x, u: x @ u[:2] + u[2]),
    "counts of clients": (Poisson(client_intercepts=True), 2, 4, [[0], [1]], lambda x, u: x @ u[:2] + u[2:][CLIENT]),
    "times": (Cox(), 4, 2, [[0], [1]], lambda x, u: x @ u),
}


@pytest.mark.parametrize("kind", KINDS)
def test_losses_of_rows_far_away_agree(kind):
    """The oracle: the loss of each row along each direction of small whole numbers."""
    objective, n_values, n_parameters, features, predict = KINDS[kind]
    directions = jnp.array(list(product(range(-2, 3), repeat=n_parameters)), float)

    @jax.jit
    def losses(distance, x, y, directions):
        known = objective.with_known_intercepts
        weight, client = jnp.ones(len(y)), jnp.array(CLIENT)
        return jax.vmap(lambda u: known.client_losses(predict(x, distance * u), y, weight, client))(directions)

    rng = np.random.default_rng(0)
    found = set()
    for _ in range(80):
        x, y = rng.integers(-1, 2, (8, len(features))) * 1.0, rng.integers(0, n_values, 8)
        if isinstance(objective, Cox):
            y = (1.0 + y) * rng.choice([-1, 1], 8)
        elif min(len(set(y[CLIENT == 0])), len(set(y[CLIENT == 1]))) < n_values:
            continue
        start, near, far = (losses(distance, jnp.array(x), jnp.array(y), directions) for distance in (0.0, 20.0, 40.0))
        if (jnp.abs(far - start) < 1e-3).all(axis=1).sum() > 1:  # features are collinear
            continue
        never_rises = (near <= start + 1e-3).all(axis=1) & (far <= near + 1e-3).all(axis=1)
        falls = np.array(never_rises & (far < start - 1e-3).any(axis=1))
        expected = [k for k, numbers in enumerate(features) if directions[falls][:, numbers].any()]
        assert unbounded(objective, x, y, CLIENT) == expected
        found.add(bool(expected))
    assert found == {False, True}


@pytest.mark.parametrize("kind", KINDS)
def test_features_looked_at_alone_are_those_of_the_program(kind, monkeypatch):
    objective, n_values, *_ = KINDS[kind]
    rng = np.random.default_rng(0)
    found = set()
    for _ in range(150):
        x, y = rng.integers(-1, 2, (8, 1)) * 1.0, rng.integers(0, n_values, 8)
        if isinstance(objective, Cox):
            y = (1.0 + y) * rng.choice([-1, 1], 8)
        elif min(len(set(y[CLIENT == 0])), len(set(y[CLIENT == 1]))) < n_values:
            continue
        with monkeypatch.context() as patch:
            patch.setattr(separation, "_MAX_PARAMETERS", 0)
            alone = unbounded(objective, x, y, CLIENT)
        assert unbounded(objective, x, y, CLIENT) == alone
        found.add(bool(alone))
    assert found == {False, True}


@pytest.mark.parametrize("objective", [Logistic(), OneVsRest(), ProportionalOdds(), Poisson(), Cox()])
def test_features_of_large_models_are_looked_at_alone(objective):
    """320 features, of which the last is a level of the lowest class, of counts of 0, or without an event."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 2, (900, 320)).astype(np.float32), rng.integers(0, 4, 900)
    x[:, -1] = (np.arange(900) % 9 == 0) & (y == 0)
    if isinstance(objective, Cox):
        y = (1 + np.arange(900.0)) * np.where(y == 0, -1, 1)
    separation = find_separation(objective, x, y, np.zeros(900, int))
    assert separation.features.tolist() == [319]
    assert separation.kind == "separation"


def test_features_that_separate_only_together():
    """Neither the treatment nor the sex has a level of one class, and their combination has."""
    rng = np.random.default_rng(0)
    first, second = rng.integers(0, 2, (2, 200))
    both = first - second
    y = np.where(both == 0, rng.integers(0, 2, 200), both > 0)
    x = np.column_stack([first, second, rng.standard_normal(200)])
    separation = find_separation(Logistic(), x, y, np.zeros(200, int))
    assert separation.features.tolist() == [0, 1]
    assert separation.n_overlapping == (both == 0).sum()
    assert find_separation(Logistic(), x[:, [0, 2]], y, np.zeros(200, int)) is None
    perfect = find_separation(Logistic(), x, x[:, 2] > 0.5, np.zeros(200, int))
    assert perfect.features.tolist() == [2, 0, 1]  # the one that separates alone is the first
    assert perfect.n_overlapping == 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_level_of_one_class_beside_all_levels(dtype):
    """The level of one class is named, and not the others, which are collinear with the intercept."""
    rng = np.random.default_rng(0)
    level = rng.choice(4, 3000, p=[0.5, 0.3, 0.19, 0.01])
    x = np.column_stack([level[:, None] == np.arange(4), rng.standard_normal((3000, 3))])
    x = ((x - x.mean(axis=0)) / x.std(axis=0)).astype(dtype)
    y = np.where(level == 3, 1, rng.integers(0, 2, 3000))
    assert unbounded(Logistic(), x, y, np.zeros(3000, int)) == [3]
    assert unbounded(Logistic(), x, 1 - y, np.zeros(3000, int)) == [3]
    assert unbounded(Poisson(), x, 3 * (1 - y), np.zeros(3000, int)) == [3]
    assert unbounded(Cox(), x, np.arange(1, 3001.0) * np.where(level == 3, -1, 1), np.zeros(3000, int)) == [3]
    assert unbounded(Logistic(), x, np.where(level == 3, 2, rng.integers(0, 3, 3000)), np.zeros(3000, int)) == [3]


@pytest.mark.skipif(not BIRTHS.is_file(), reason=f"{BIRTHS} is not on this machine")
def test_infinite_coefficients_of_births_are_those_of_r():
    """R's glm ends at -29 and -27 for the levels 3 of ptl and 6 of ftv, and all others are within 3."""
    births = pd.read_csv(BIRTHS)
    levels = pd.get_dummies(births[["ptl", "ftv"]], columns=["ptl", "ftv"])
    x = pd.concat([births[["age", "lwt"]], levels], axis=1)
    client = np.zeros(len(x), int)
    found = unbounded(Logistic(), x.to_numpy(float), births["low"].to_numpy(), client)
    assert x.columns[found].tolist() == ["ptl_3", "ftv_6"]
    x["bwt"] = births["bwt"]  # whose values below 2,500 g are low
    separation = find_separation(Logistic(), x.to_numpy(float), births["low"].to_numpy(), client)
    assert x.columns[separation.features[0]] == "bwt"
    assert separation.n_overlapping == 0


@pytest.mark.parametrize("objective", [Logistic(), Gamma(), LeastSquares(), Poisson()])
def test_intercepts_of_many_clients_are_not_columns(objective):
    """A column for each of 2,000 clients would take 640 megabytes."""
    rng = np.random.default_rng(0)
    x, y, client = rng.standard_normal((40_000, 2)), rng.integers(0, 2, 40_000), np.arange(40_000) % 2000
    tracemalloc.start()
    found = find_separation(replace(objective, client_intercepts=True), x, y, client)
    largest = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found is None
    assert largest < 2**26


def test_a_risk_set_is_of_one_client():
    """The level has no events at either client, or an event at one of them."""
    x = LEVEL[[0, 6, 1, 7, 2, 6, 3, 7]][:, None]
    client = np.arange(8) // 4
    without, with_event = np.array([1, -2, 3, -4, 1, -2, 3, -4.0]), np.array([1, -2, 3, -4, 1, 2, 3, -4.0])
    assert unbounded(Cox(), x, without, client) == [0]
    assert unbounded(Cox(), x, with_event, client) == []


def test_a_run_names_a_feature_of_a_large_model(tmp_path):
    rng = np.random.default_rng(0)
    level = np.arange(900) % 6 == 0
    x = np.column_stack([rng.integers(0, 2, (900, 319)), level])
    y = np.where(level, 0, rng.poisson(2.0, 900))
    options = ("algo=newton", "objective=poisson", "rounds=3", "reg=none")
    record = run(ragged(tmp_path, *options, sizes=(300, 300, 300), x=x, y=y), tmp_path / "run")
    sentence = "no finite coefficient of 'x319' (of features looked at one by one): alone or together they have"
    assert sentence in record.status["reason"]


def test_a_run_names_the_feature_unless_a_penalty_bounds_it(tmp_path):
    rng = np.random.default_rng(0)
    level = np.arange(60) % 6 == 0
    x = np.column_stack([rng.standard_normal((60, 2)), level])
    y = np.where(level, 0, rng.poisson(2.0, 60))
    shared = ("algo=newton", "objective=poisson", "rounds=20")
    free = ("reg=l1", "reg.strength=0.01", "reg.factors={2: 0}")
    cases = ((("reg=none",), True), (("reg=l1",), False), (free, True), ((*free, "objective.ridge=0.01"), False))
    for number, (reg, is_named) in enumerate(cases):
        folder = tmp_path / str(number)
        record = run(ragged(folder, *shared, *reg, sizes=(20, 20, 20), x=x, y=y), folder / "run")
        if reg == free:
            assert "or a factor above 0 (reg.factors) makes it finite" in record.status["reason"]
        assert ("no finite coefficient of 'x2'" in record.status["reason"]) == is_named
