"""Runs on a subset of the rows equal ordinary runs on a table of these rows alone."""

import gc
import weakref
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import jax
import numpy as np
import pandas as pd
import pytest
from helpers import composed, rows_of

from fcorun import run
from fcorun.data.datasets.subset import take_subset
from fcorun.engine import evaluate
from fcorun.engine.engine import bytes_per_run, subset_bytes
from fcorun.engine.evaluate import rank_runs
from fcorun.experiment.build import build_engine, load_data
from fcorun.experiment.prepare import prepare
from fcorun.methods.problem import path_solver
from fcorun.runs.batch import max_runs
from fcorun.studies.selection import fitting
from fcorun.studies.selection.fitting import END_STATES, PathFitter
from fcorun.studies.selection.path import RegularizationPath

SIZES = (7, 10, 9, 10)
OWNER = np.repeat(np.arange(len(SIZES)), SIZES)
RNG = np.random.default_rng(3)
X = RNG.standard_normal((len(OWNER), 6)) * [1, 2, 0.5, 1, 3, 1] + 0.5 * RNG.standard_normal((4, 6))[OWNER]
SCORE = X @ [1.0, -0.5, 0.0, 0.0, 0.3, 0.0] + 0.4 + 0.5 * RNG.standard_normal(len(OWNER))
# About a third of the rows of each client are held out, and a few are left aside.
PLACE = np.concatenate([np.arange(n) for n in SIZES])
BY_ROWS = PLACE % 3 != 1, (PLACE % 3 == 1) & (PLACE > 1)
BY_CLIENTS = OWNER != 2, OWNER == 2


def config(path, *overrides, task="regression"):
    table = ("data=table", f"data.path={path}", f"data.task={task}", "precision=float64", "rounds=12", "eval_every=4")
    return composed(*table, "tail_rounds=1", *overrides)


def fit_and_run(train, held_out, *overrides, task="regression"):
    """Return the fit of a path on a subset, and an ordinary run at its second strength on a table of the subset."""
    y = SCORE if task == "regression" else (SCORE > 0.5).astype(int)
    np.savez("all.npz", X=X, y=y, client=OWNER, validation=np.zeros(len(y), bool))
    rows = train | held_out
    np.savez("subset.npz", X=X[rows], y=y[rows], client=OWNER[rows], validation=held_out[rows])
    experiment = prepare(config("all.npz", *overrides, task=task))
    data = load_data(experiment)
    assert len(data.train.y) == len(y)
    fits = []
    fitter = PathFitter(experiment, data, RegularizationPath("strength", np.array([0.1, 0.03])), data.train.sizes)
    fits.extend(fitter.fit([lambda: take_subset(data, train, held_out)]))
    record = run(config("subset.npz", *overrides, "reg.strength=0.03", task=task), "ordinary")
    return fits[0], record


@pytest.mark.slow
def test_fits_are_freed_after_their_use():
    """A study may have hundreds of subsets."""
    np.savez("all.npz", X=X, y=SCORE, client=OWNER)
    experiment = prepare(config("all.npz", "data.validation=0", "algo.client_lr=0.02", "algo.server_lr=1"))
    data, fit_refs = load_data(experiment), []
    fitter = PathFitter(experiment, data, RegularizationPath("strength", np.array([0.1])), data.train.sizes)
    for fit in fitter.fit([lambda: take_subset(data, *BY_CLIENTS)] * 4):
        if any(ref() for ref in fit_refs):
            gc.collect()
        assert not any(ref() for ref in fit_refs)
        fit_refs.append(weakref.ref(fit))
        del fit
    assert len(fit_refs) == 4


def test_all_rows_and_folds_share_the_program_of_the_rounds():
    """Clients have as many rows in it as in the largest subset; only the evaluations differ."""
    np.savez("all.npz", X=X, y=SCORE, client=OWNER)
    experiment = prepare(config("all.npz", "data.validation=0", "algo.client_lr=0.02", "algo.server_lr=1"))
    data, fits = load_data(experiment), []
    fitter = PathFitter(experiment, data, RegularizationPath("strength", np.array([0.1])), data.train.sizes)
    all_rows = np.ones(len(SCORE), bool)
    subsets = [(PLACE % 2 > 0, PLACE % 2 == 0), (PLACE % 2 == 0, PLACE % 2 > 0), (all_rows, ~all_rows)]
    fits.extend(fitter.fit([partial(take_subset, data, *masks) for masks in subsets]))
    (programs,) = fitter.programs.values()
    assert Counter(name for name, *_ in programs.compiled) == {"initial_state": 1, "advance": 1, "evaluate": 2}
    assert len(fits) == 3


def fit_baseline(x, y, *overrides):
    """Return the fit of a path of a baseline on three quarters of the rows, each client of which has equally many."""
    place = np.arange(len(y))
    np.savez("baseline.npz", X=x, y=y, client=place % 2)
    experiment = prepare(config("baseline.npz", "data.validation=0", "algo=centralized", *overrides))
    data, fits = load_data(experiment), []
    fitter = PathFitter(experiment, data, RegularizationPath("strength", np.array([0.3, 0.1, 0.03])), data.train.sizes)
    fits.extend(fitter.fit([lambda: take_subset(data, place % 8 < 6, place % 8 >= 6)]))
    return fits[0]


def test_paths_of_many_features_without_l1_end_where_the_baseline_does(monkeypatch):
    """The path solver multiplies by the rows, and a fit of the baseline has its certificate, too."""
    x = RNG.standard_normal((48, 1100))
    y = x[:, 0] + 0.3 * RNG.standard_normal(48)
    fit = fit_baseline(x, y, "reg=l2")
    monkeypatch.setattr(fitting, "has_path_solver", lambda problem, batch: False)
    expected = fit_baseline(x, y, "reg=l2")
    assert [END_STATES[state] for state in fit.end_state] == ["done"] * 3
    np.testing.assert_allclose(fit.solution["weights"], expected.solution["weights"], rtol=0, atol=5e-5)


def test_runs_of_a_path_are_measured_in_as_many_parts_as_their_predictions_need(monkeypatch):
    rng = np.random.default_rng(3)
    x = rng.standard_normal((40, 4))
    y = x[:, 0] + rng.standard_normal(40)
    together = fit_baseline(x, y)
    monkeypatch.setattr(fitting, "_MAX_PREDICTIONS", 1)
    one_by_one = fit_baseline(x, y)
    assert len(set(together.metrics["objective"].tolist())) > 1
    for name, values in together.metrics.items():
        np.testing.assert_allclose(one_by_one.metrics[name], values, rtol=1e-12, atol=1e-14, err_msg=name)


def test_a_point_that_is_not_finite_starts_nothing(monkeypatch):
    """The solver of the baseline takes all problems from there on, and starts from the last finite point."""
    fit_intercept = path_solver.find_intercepts
    calls = []

    def overflow(*arguments, **options):
        calls.append(1)
        missing = fit_intercept(*arguments, **options)
        return missing if len(calls) < 3 else np.full_like(missing, np.nan)

    fit = fit_baseline(X, SCORE, "reg=l1")
    monkeypatch.setattr(path_solver, "find_intercepts", overflow)
    after_overflow = fit_baseline(X, SCORE, "reg=l1")
    assert len(calls) == 3
    assert [END_STATES[state] for state in after_overflow.end_state] == ["done"] * 3
    np.testing.assert_array_equal(after_overflow.solution["weights"][0], fit.solution["weights"][0])
    np.testing.assert_allclose(after_overflow.metrics["objective"], fit.metrics["objective"], rtol=1e-5)


@pytest.mark.parametrize(("copies", "threads"), [(5, 1), (17, 2), (100, 6)])
def test_as_many_baselines_are_fitted_at_once_as_the_memory_has_tables(monkeypatch, copies, threads):
    """Each of the fits has up to six copies of the features in float64."""
    pools = []

    def make_pool(n_threads):
        pools.append(n_threads)
        return ThreadPoolExecutor(n_threads)

    monkeypatch.setattr(fitting, "available_cores", lambda: 6)
    monkeypatch.setattr(fitting, "ThreadPoolExecutor", make_pool)
    fit_baseline(X, SCORE, "reg=l1", f"memory={copies * X.size * 8 / 2**30}")
    assert pools == [threads]


CASES = {
    "minibatches": ("algo=feddualavg", "batch_size=3", "algo.client_lr=0.02", "algo.server_lr=1"),
    "a cohort": ("algo=fedmid", "batch_size=3", "clients_per_round=2", "local_epochs=null", "local_steps=3"),
    "all rows at once": ("algo=fedmid", "client_weighting=uniform"),
    "rates that are auto": ("algo=fedmid", "batch_size=4", "algo.client_lr=auto", "algo.server_lr=auto"),
    "closed form": ("algo=feddr",),
    "a curvature": ("algo=feddr", "algo.solver=gradient"),
    "standardized": ("algo=fedcomposite", "data.standardize=pooled"),
    "standardized by clients": ("algo=fedmid", "data.standardize=per_client", "batch_size=4"),
    "personal models": ("algo=local", "batch_size=4"),
    "centralized": ("algo=centralized", "algo.tolerance=1e-14"),
    "a tree": ("algo=feddualavg", "topology=tree", "topology.edges=2"),
}


# Without a whole client these cases have another program, or other numbers, than with fewer rows of each client.
FEWER_CLIENTS = ["a cohort", "rates that are auto", "a curvature", "standardized by clients", "centralized", "a tree"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "by"), [*((case, "rows") for case in CASES), *((case, "clients") for case in FEWER_CLIENTS)]
)
def test_a_subset_runs_like_a_table_of_its_own(case, by):
    train, held_out = BY_ROWS if by == "rows" else BY_CLIENTS
    fit, record = fit_and_run(train, held_out, *CASES[case])
    assert [END_STATES[state] for state in fit.end_state] == ["done", "done"]
    for name, value in record.solution.items():
        np.testing.assert_allclose(fit.solution[name][1], value, rtol=1e-9, atol=1e-10)
    last = rows_of(record).iloc[-1]
    measured = {"personal_train_loss"} if case == "personal models" else {"train_loss", "val_loss", "objective"}
    assert measured <= set(fit.metrics)
    for name, values in fit.metrics.items():
        assert values[1] == pytest.approx(last[name], rel=1e-8, abs=1e-10), name
    if case != "centralized":  # the solver counts iterations
        for name, count in {"rounds": "round", "bytes_up": "bytes_up", "bytes_down": "bytes_down"}.items():
            assert fit.counts[name][1] == last[count] + last.get(f"edge_{count}", 0)
    assert max(np.ptp(values) for values in fit.metrics.values()) > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("case", ["minibatches", "all rows at once", "closed form", "rates that are auto",
                                  "standardized", "centralized"])  # fmt: skip
def test_rows_of_a_subset_keep_their_weights_and_offsets(case):
    """Client 2, which is held out, has rows with larger weights and other offsets."""
    table = pd.DataFrame(X, columns=list("abcdef"))
    table["y"], table["site"], table["k"], table["o"] = SCORE, OWNER, 1 + PLACE % 3 + (OWNER == 2), 0.1 * PLACE
    table.to_csv("rows.csv", index=False)
    columns = ("data.target=y", "data.client=site", "data.weight=k", "data.offset=o", *CASES[case])
    experiment = prepare(config("rows.csv", "data.validation=0", *columns))
    data, fits = load_data(experiment), []
    fitter = PathFitter(experiment, data, RegularizationPath("strength", np.array([0.1, 0.03])), data.train.sizes)
    fits.extend(fitter.fit([lambda: take_subset(data, *BY_CLIENTS)]))
    record = run(config("rows.csv", "data.validation=['2']", "reg.strength=0.03", *columns), "ordinary")
    for name, value in record.solution.items():
        np.testing.assert_allclose(fits[0].solution[name][1], value, rtol=1e-9, atol=1e-10)
    last = rows_of(record).iloc[-1]
    for name, values in fits[0].metrics.items():
        assert values[1] == pytest.approx(last[name], rel=1e-8, abs=1e-10), name


@pytest.mark.parametrize(("options", "rankings"), [((), 2), (("stop={change:0}",), 5)])
def test_held_out_rows_are_ranked_in_the_tail(options, rankings, monkeypatch):
    """With targets of ``stop`` any evaluation may be the last one."""
    ranked = []

    def rank(y, scores, weight):
        ranked.append(scores.shape)
        return rank_runs(y, scores, weight)

    np.savez("all.npz", X=X, y=(SCORE > 0.5).astype(int), client=OWNER)
    experiment = prepare(config("all.npz", "data.validation=0", "algo.client_lr=0.02", "algo.server_lr=1",
                                "eval_every=3", "tail_rounds=6", *options, task="binary"))  # fmt: skip
    data, fits = load_data(experiment), []
    monkeypatch.setattr(evaluate, "rank_runs", rank)
    fitter = PathFitter(experiment, data, RegularizationPath("strength", np.array([0.1, 0.01])), data.train.sizes)
    fits.extend(fitter.fit([lambda: take_subset(data, *BY_ROWS)]))
    assert ranked == [(2, BY_ROWS[1].sum())] * rankings
    assert np.isfinite(fits[0].metrics["val_auc"]).all()


@pytest.mark.slow
def test_a_subset_of_a_binary_task_runs_like_a_table_of_its_own():
    fit, record = fit_and_run(*BY_ROWS, "algo=fedmid", "batch_size=3", task="binary")
    np.testing.assert_allclose(fit.solution["weights"][1], record.solution["weights"], rtol=1e-9)
    assert fit.metrics["val_accuracy"][1] == pytest.approx(rows_of(record)["val_accuracy"].iloc[-1])


@pytest.mark.slow
def test_a_subset_takes_the_memory_of_all_rows():
    """Every run predicts for all rows, even outside its subset; standardized subsets have features of their own."""
    np.savez("all.npz", X=X, y=SCORE, client=OWNER, validation=np.zeros(len(SCORE), bool))
    experiment = prepare(config("all.npz", *CASES["minibatches"], "data.standardize=pooled", "clients_at_once=1"))
    data, none = load_data(experiment), np.zeros(len(SCORE), bool)
    fitter = PathFitter(experiment, data, RegularizationPath("strength", np.array([0.1])), data.train.sizes)
    subset = take_subset(data, OWNER == 0, none)
    with jax.enable_x64(True):
        whole, small = (
            build_engine(experiment, data),
            build_engine(experiment, subset.data, fitter._view(subset, "float64")),
        )
        traffic = [bytes_per_run(engine.federation, experiment.numbers(), [0]) for engine in (whole, small)]
        assert traffic[0] == traffic[1]
        assert subset_bytes(small.federation, True) == X.size * 8
        assert subset_bytes(small.federation, False) == 0
        needed = (3 * traffic[0] + X.size * 8) / 2**30
        assert max_runs(small, experiment.numbers(), [0], needed, 1, reserved=X.size * 8) == 3
