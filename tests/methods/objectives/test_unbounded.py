"""Features of which a fit without a penalty has no finite coefficient: separation, in every task."""

import numpy as np
import pytest
from helpers import ragged
from scipy.optimize import linprog

from fcorun import Cox, Gamma, LeastSquares, Logistic, OneVsRest, Poisson, ProportionalOdds, run

LEVEL = np.array([0, 0, 0, 0, 0, 0, 1, 1.0])
ORDER = np.arange(8.0)
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


@pytest.mark.parametrize("case", CASES)
def test_what_no_data_determine_is_found_in_every_task(case):
    objective, y, expected = CASES[case]
    x = np.column_stack([LEVEL, ORDER, np.ones(8)])
    found = objective.unbounded_features(x, np.array(y), ONE_CLIENT)
    assert found.tolist() == [*expected, False]


@pytest.mark.parametrize("options", [{}, {"intercept": False}, {"client_intercepts": True}])
@pytest.mark.parametrize("kind", [Logistic, Poisson])
def test_a_linear_program_finds_the_same_features(kind, options):
    """The oracle of Konis (2007): a direction of coefficient and intercepts along which no row's loss rises."""
    rng = np.random.default_rng(0)
    objective = kind(**options)
    client = np.array([0, 1, 0, 1, 0, 1])
    found = []
    for _ in range(200):
        x, y = rng.integers(-1, 2, 6) * 1.0, rng.integers(0, 2, 6)
        if len(set(y[client == 0])) < 2 or len(set(y[client == 1])) < 2:
            continue
        design = np.column_stack([x, *(np.isin(np.arange(6), rows) for rows in objective.rows_by_intercept(client))])
        if not objective.intercept:
            design = design[:, :1]
        falls = np.where(y[:, None] > 0, -design, design)  # the change of a row's loss is at most 0
        equal = design[y > 0] if isinstance(objective, Poisson) else None
        bounds = [(-1, 1), *[(-9, 9)] * (design.shape[1] - 1)]
        program = linprog(
            falls.sum(axis=0), falls, np.zeros(6), equal, None if equal is None else 0 * equal[:, 0], bounds
        )
        found.append(program.fun < -1e-9)
        assert objective.unbounded_features(x[:, None], y, client)[0] == found[-1]
    assert len(set(found)) == 2


def test_a_risk_set_is_of_one_client():
    """The level has no events at either client, or an event at one of them."""
    x = LEVEL[[0, 6, 1, 7, 2, 6, 3, 7]][:, None]
    client = np.arange(8) // 4
    without, with_event = np.array([1, -2, 3, -4, 1, -2, 3, -4.0]), np.array([1, -2, 3, -4, 1, 2, 3, -4.0])
    assert Cox().unbounded_features(x, without, client).all()
    assert not Cox().unbounded_features(x, with_event, client).any()


def test_a_run_names_the_feature_unless_a_penalty_bounds_it(tmp_path):
    rng = np.random.default_rng(0)
    level = np.arange(60) % 6 == 0
    x = np.column_stack([rng.standard_normal((60, 2)), level])
    y = np.where(level, 0, rng.poisson(2.0, 60))
    shared = ("algo=newton", "objective=poisson", "rounds=20")
    for reg, is_named in (("none", True), ("l1", False)):
        folder = tmp_path / reg
        record = run(ragged(folder, *shared, f"reg={reg}", sizes=(20, 20, 20), x=x, y=y), folder / "run")
        assert ("no finite coefficient of 'x2'" in record.status["reason"]) == is_named
