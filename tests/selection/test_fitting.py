"""Runs on a part of the rows: those of an ordinary run on a table that has no others."""

import gc
import weakref

import jax
import numpy as np
import pandas as pd
import pytest
from helpers import composed, rows_of

from fcorun import run
from fcorun.datasets.subset import take_subset
from fcorun.engine.estimates import bytes_per_run, subset_bytes
from fcorun.experiment.build import build_engine, load_data
from fcorun.experiment.prepare import prepare
from fcorun.runs.batching import max_runs
from fcorun.selection.fitting import END_STATES, PathFitter

SIZES = (7, 10, 9, 10)
OWNER = np.repeat(np.arange(len(SIZES)), SIZES)
RNG = np.random.default_rng(3)
X = RNG.standard_normal((len(OWNER), 6)) * [1, 2, 0.5, 1, 3, 1] + 0.5 * RNG.standard_normal((4, 6))[OWNER]
SCORE = X @ [1.0, -0.5, 0.0, 0.0, 0.3, 0.0] + 0.4 + 0.5 * RNG.standard_normal(len(OWNER))
# About a third of each client's rows are held out, and a few lie aside.
PLACE = np.concatenate([np.arange(n) for n in SIZES])
BY_ROWS = PLACE % 3 != 1, (PLACE % 3 == 1) & (PLACE > 1)
BY_CLIENTS = OWNER != 2, OWNER == 2


def config(path, *overrides, task="regression"):
    own = ("data=table", f"data.path={path}", f"data.task={task}", "precision=float64", "rounds=12", "eval_every=4")
    return composed(*own, "tail_rounds=1", *overrides)


def pair(kept, held, *overrides, task="regression"):
    """The runs of a path on a part, and the ordinary one of the second strength on a table of the part alone."""
    y = SCORE if task == "regression" else (SCORE > 0.5).astype(int)
    np.savez("all.npz", X=X, y=y, client=OWNER, validation=np.zeros(len(y), bool))
    there = kept | held
    np.savez("part.npz", X=X[there], y=y[there], client=OWNER[there], validation=held[there])
    experiment = prepare(config("all.npz", *overrides, task=task))
    data = load_data(experiment)
    assert len(data.y) == len(y)
    found = []
    fitter = PathFitter(experiment, data, "strength", np.array([0.1, 0.03]), int(data.sizes.max()))
    fitter.fit([lambda: take_subset(data, kept, held)], lambda _, fitted: found.append(fitted))
    record = run(config("part.npz", *overrides, "reg.strength=0.03", task=task), "ordinary")
    return found[0], record


def test_what_was_told_is_not_kept():
    """A study may have hundreds of parts."""
    np.savez("all.npz", X=X, y=SCORE, client=OWNER)
    experiment = prepare(config("all.npz", "data.validation=0", "algo.client_lr=0.02", "algo.server_lr=1"))
    data, told = load_data(experiment), []

    def done(_: int, fitted) -> None:
        if any(there() for there in told):
            gc.collect()
        assert not any(there() for there in told)
        told.append(weakref.ref(fitted))

    fitter = PathFitter(experiment, data, "strength", np.array([0.1]), int(data.sizes.max()))
    fitter.fit([lambda: take_subset(data, *BY_CLIENTS)] * 4, done)
    assert len(told) == 4


CASES = {
    "minibatches": ("algo=feddualavg", "batch_size=3", "algo.client_lr=0.02", "algo.server_lr=1"),
    "a cohort": ("algo=fedmid", "batch_size=3", "clients_per_round=2", "local_epochs=null", "local_steps=3"),
    "all rows at once": ("algo=fedmid", "client_weighting=uniform"),
    "rates that are auto": ("algo=fedmid", "batch_size=4", "algo.client_lr=auto", "algo.server_lr=auto"),
    "closed form": ("algo=feddr",),
    "a curvature": ("algo=feddr", "algo.solver=gradient"),
    "standardized": ("algo=fedcomposite", "data.standardize=pooled"),
    "standardized by clients": ("algo=fedmid", "data.standardize=per_client", "batch_size=4"),
    "own models": ("algo=local", "batch_size=4"),
    "centralized": ("algo=centralized", "algo.tolerance=1e-14"),
    "a tree": ("algo=feddualavg", "topology=tree", "topology.edges=2"),
}


# Where a whole client less makes another program, or other numbers of it, than rows less of each.
LESS = ["a cohort", "rates that are auto", "a curvature", "standardized by clients", "centralized", "a tree"]


@pytest.mark.parametrize(("case", "by"), [*((case, "rows") for case in CASES), *((case, "clients") for case in LESS)])
def test_a_part_is_run_as_a_table_of_its_own(case, by):
    kept, held = BY_ROWS if by == "rows" else BY_CLIENTS
    found, record = pair(kept, held, *CASES[case])
    assert [END_STATES[e] for e in found.end_state] == ["done", "done"]
    for name, value in record.solution.items():
        np.testing.assert_allclose(found.solution[name][1], value, rtol=1e-9, atol=1e-10)
    last = rows_of(record).iloc[-1]
    measured = {"personal_train_loss"} if case == "own models" else {"train_loss", "val_loss", "objective"}
    assert measured <= set(found.metrics)
    for name, values in found.metrics.items():
        assert values[1] == pytest.approx(last[name], rel=1e-8, abs=1e-10), name
    if case != "centralized":  # which counts iterations
        for name, count in {"rounds": "round", "bytes_up": "bytes_up", "bytes_down": "bytes_down"}.items():
            assert found.counts[name][1] == last[count] + last.get(f"edge_{count}", 0)
    assert max(np.ptp(values) for values in found.metrics.values()) > 1e-4


@pytest.mark.parametrize("case", ["minibatches", "all rows at once", "closed form", "rates that are auto",
                                  "standardized", "centralized"])  # fmt: skip
def test_rows_of_a_part_keep_their_weights_and_offsets(case):
    """Client 2, which is held out, has rows that weigh more, and other offsets."""
    table = pd.DataFrame(X, columns=list("abcdef"))
    table["y"], table["site"], table["k"], table["o"] = SCORE, OWNER, 1 + PLACE % 3 + (OWNER == 2), 0.1 * PLACE
    table.to_csv("rows.csv", index=False)
    given = ("data.target=y", "data.client=site", "data.weight=k", "data.offset=o", *CASES[case])
    experiment = prepare(config("rows.csv", "data.validation=0", *given))
    data, found = load_data(experiment), []
    fitter = PathFitter(experiment, data, "strength", np.array([0.1, 0.03]), int(data.sizes.max()))
    fitter.fit([lambda: take_subset(data, *BY_CLIENTS)], lambda _, fitted: found.append(fitted))
    record = run(config("rows.csv", "data.validation=['2']", "reg.strength=0.03", *given), "ordinary")
    for name, value in record.solution.items():
        np.testing.assert_allclose(found[0].solution[name][1], value, rtol=1e-9, atol=1e-10)
    last = rows_of(record).iloc[-1]
    for name, values in found[0].metrics.items():
        assert values[1] == pytest.approx(last[name], rel=1e-8, abs=1e-10), name


def test_classes():
    found, record = pair(*BY_ROWS, "algo=fedmid", "batch_size=3", task="binary")
    np.testing.assert_allclose(found.solution["weights"][1], record.solution["weights"], rtol=1e-9)
    assert found.metrics["val_accuracy"][1] == pytest.approx(rows_of(record)["val_accuracy"].iloc[-1])


def test_a_part_takes_the_memory_of_all_rows():
    """Every run predicts for all rows, those that a part leaves aside too; rows standardized anew are more of them."""
    np.savez("all.npz", X=X, y=SCORE, client=OWNER, validation=np.zeros(len(SCORE), bool))
    experiment = prepare(config("all.npz", *CASES["minibatches"], "data.standardize=pooled", "clients_at_once=1"))
    data, none = load_data(experiment), np.zeros(len(SCORE), bool)
    fitter = PathFitter(experiment, data, "strength", np.array([0.1]), int(data.sizes.max()))
    few = take_subset(data, OWNER == 0, none)
    with jax.enable_x64(True):
        whole, small = build_engine(experiment, data), build_engine(experiment, few.data, fitter._view(few, "float64"))
        each = [bytes_per_run(engine.federation, experiment.numbers(), [0]) for engine in (whole, small)]
        assert each[0] == each[1]
        assert subset_bytes(small.federation, True) == X.size * 8
        assert subset_bytes(small.federation, False) == 0
        needed = (3 * each[0] + X.size * 8) / 2**30
        assert max_runs(small, experiment.numbers(), [0], needed, 1, reserved=X.size * 8) == 3
