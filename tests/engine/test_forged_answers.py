"""Answers of a site to rounds and evaluations that none of its rows could give."""

import jax
import numpy as np
import pytest
from helpers import fails, small_for
from sites_in_process import remote_engine

from fcorun.data.rows.site_rows import SiteRows
from fcorun.engine.remote.loop import SumChecks, check_work
from fcorun.experiment import build
from fcorun.experiment.prepare import prepare


def engine_of(change=lambda name, arrays: arrays, *overrides):
    """Return the engine of a server whose first site changes its answers, and the numbers of a run."""
    config = small_for("feddualavg", "precision=float64", "rounds=2", "eval_every=1", *overrides)
    experiment = prepare(config)
    data = build.load_data(experiment)
    experiment, _ = build.resolve_auto(build.bind_objective(experiment, data), data)
    points = [experiment.numbers()]
    engine, connections = remote_engine(experiment, data, [[m] for m in range(data.n_clients)], points)
    first = connections.site_by_name["site-0"]
    answer = first.answer

    def forge(request):
        message = answer(request)
        message.arrays.update(change(request.name, dict(message.arrays)))
        return message

    first.answer = forge
    return engine, points


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train_loss": np.array([-5.0])}, ("site 'site-0' sent train_loss=[-5.0]", "no rows have")),
        ({"train_loss": np.array([1.0], np.float32)}, ("site 'site-0'", "float32")),
        ({"train_loss": np.array([1.0, 1.0])}, ("site 'site-0'", "shape")),
        ({"train_loss": None}, ("site 'site-0'", "instead of the sums of its rows")),
        ({"train_foo": np.array([1.0])}, ("site 'site-0'", "instead of the sums of its rows")),
        ({"test_loss": np.array([1.0])}, ("site 'site-0'", "instead of the sums of its rows")),
    ],
)
def test_an_evaluation_has_the_sums_of_the_rows_of_the_site(changes, words):
    with jax.enable_x64(True):
        engine, _ = engine_of()
        federation = engine.federation
        checks = SumChecks(federation, 1)
        arrays = {name: np.array([0.0]) for name in checks._sums}
        checks.check("site-0", arrays)
        arrays = {name: values for name, values in (arrays | changes).items() if values is not None}
        with fails(*words):
            checks.check("site-0", arrays)


@pytest.mark.slow
def test_a_nan_of_an_evaluation_is_a_divergence_that_names_the_site():
    forged = {"evaluate": {"val_loss": np.array([np.nan])}}
    with jax.enable_x64(True):
        engine, points = engine_of(lambda name, _: forged.get(name, {}))
        snapshot = next(iter(engine.run(points)))
    assert snapshot.diverged.tolist() == [1]
    assert engine.federation.nonfinite_clients == {1: "of site 'site-0'"}


@pytest.mark.parametrize("work", [[[-1, 0]], [[2**62, 0]], [[1.0, 0.0]], [[0]]])
def test_counts_of_gradients_are_counts(work):
    check_work(np.array([[3, 0]]), (1, 2))
    with pytest.raises(ValueError, match=r"work|counts"):
        check_work(np.array(work), (1, 2))


def rows_of(*bounds):
    """Return a server's rows of two sites of 10 rows and of one without training rows."""
    answers = [*bounds, np.array([np.inf, 0, np.inf, 0, 0])]

    class Answer:
        def __init__(self, bounds):
            self.arrays = {} if bounds is None else {"bounds": np.asarray(bounds)}

    return SiteRows(
        x=np.empty((0, 2)),
        y=np.empty(0),
        all_sizes=np.array([10, 10]),
        site_of_client=("a", "b"),
        ask=lambda _: dict(zip(("a", "b", "c"), map(Answer, answers), strict=True)),
    )


GOOD = [0.5, 4.0, 1.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        (None, "no bounds"),
        ([1.0, 2.0, 3.0], "no bounds"),
        ([1, 2, 1, 2, 2], "no bounds"),
        ([np.nan] * 5, "impossible bounds"),
        ([1.0, np.inf, 1.0, np.inf, np.inf], "impossible bounds"),
        ([-1.0, 2.0, 1.0, 2.0, 2.0], "impossible bounds"),
        ([3.0, 2.0, 1.0, 2.0, 2.0], "impossible bounds"),
        ([1.0, 1e300, 1.0, 1e300, 1e300], "see whether its columns have the units of the others"),
    ],
)
def test_bounds_on_curvatures_can_be_those_of_rows(bounds, words):
    other = [0.25, 8.0, 0.5, 4.0, 3.0]
    for pair in ((GOOD, other), (other, GOOD)):
        assert rows_of(*pair).curvature_bounds(full_batch=True) == (0.5, 4.0)
        assert rows_of(*pair).curvature_bounds(full_batch=False) == (0.25, 8.0)
        assert rows_of(*pair).pooled_smoothness() == 3.0
    with fails("site 'b'", words):
        rows_of(GOOD, bounds).curvature_bounds(full_batch=True)
    with fails("site 'a'", "bounds without training rows"):
        SiteRows.curvature_bounds(_without_rows(), full_batch=True)


def _without_rows():
    rows = rows_of(GOOD, GOOD)
    return SiteRows(**{**vars(rows), "all_sizes": np.array([0, 10]), "curvature": {}})
