"""Cohorts and minibatches."""

from dataclasses import replace

import numpy as np
import pytest
from helpers import flat, ragged, small, snapshots
from scipy.stats import chisquare

from fcorun.engine.schedule import Schedule
from fcorun.experiment.build import build_engine, load_data
from fcorun.experiment.prepare import prepare

OFFSETS = np.array([0, 3, 10, 20, 21])  # clients of 3, 7, 10 and 1 rows


def valid_rows(rows):
    """Return the rows of a client's steps, in order, without padding."""
    return rows[rows >= 0]


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 3, 8])
def test_cohorts_are_uniform_without_replacement(size):
    cohorts = Schedule(np.arange(9), 0, clients_per_round=size).draw_rounds(0, 4000).cohort
    assert cohorts.shape == (4000, size)
    assert all(len(set(cohort)) == size for cohort in cohorts)
    counts = np.bincount(cohorts.ravel(), minlength=8)
    if size == 8:
        assert (counts == 4000).all()
        return
    assert chisquare(counts).pvalue > 1e-3
    if size > 1:  # pairs too: no client prefers the company of another
        pairs = np.zeros((8, 8))
        for cohort in cohorts:
            pairs[np.ix_(cohort, cohort)] += 1
        assert chisquare(pairs[np.triu_indices(8, 1)]).pvalue > 1e-3


@pytest.mark.parametrize("batch", [1, 2, 4, 9])
@pytest.mark.parametrize("epochs", [1, 3])
def test_every_row_once_an_epoch(batch, epochs):
    schedule = Schedule(OFFSETS, 0, batch_size=batch, local_epochs=epochs)
    for rows in schedule.draw_rounds(0, 5).rows:
        for m, client in enumerate(rows):
            own, n = np.arange(OFFSETS[m], OFFSETS[m + 1]), OFFSETS[m + 1] - OFFSETS[m]
            for epoch in np.split(valid_rows(client), epochs):
                np.testing.assert_array_equal(np.sort(epoch), own)
            lengths = (client >= 0).sum(axis=1)
            whole, rest = divmod(n, batch)
            one_epoch = [batch] * whole + [rest] * int(rest > 0)  # the short last batch is kept
            assert lengths[lengths > 0].tolist() == one_epoch * epochs
            assert (lengths[: len(one_epoch) * epochs] > 0).all()  # steps without rows come last


def test_orders_are_uniform_in_each_epoch_and_epochs_differ():
    rows = Schedule(np.array([0, 4, 9]), 3, batch_size=1, local_epochs=2).draw_rounds(0, 3000).rows[:, 0, :8, 0]
    for at_position in rows.T:
        assert chisquare(np.bincount(at_position, minlength=4)).pvalue > 1e-3
    same = (rows[:, :4] == rows[:, 4:]).all(axis=1).mean()
    assert same == pytest.approx(1 / 24, abs=0.02)


@pytest.mark.parametrize("batch", [1, 2, 4, 10, None])
@pytest.mark.parametrize("steps", [1, 2, 5, 30])
def test_local_steps_are_exact(batch, steps):
    schedule = Schedule(OFFSETS, 0, batch_size=batch, local_epochs=None, local_steps=steps)
    assert schedule.steps.tolist() == [steps] * 4
    assert not schedule.uneven_steps
    rows = schedule.draw_rounds(2, 1).rows[0]
    if batch in (10, None):
        assert schedule.full_batch_steps == steps
        return
    assert rows.shape[1] == steps
    assert (rows >= 0).any(axis=2).all()
    for m, client in enumerate(rows):
        own = np.arange(OFFSETS[m], OFFSETS[m + 1])
        found = valid_rows(client)
        whole = len(found) // len(own)
        for epoch in found[: whole * len(own)].reshape(whole, len(own)):  # as many shuffled epochs as it needs
            np.testing.assert_array_equal(np.sort(epoch), own)
        rest = found[whole * len(own) :]
        assert len(set(rest)) == len(rest)
        assert set(rest) <= set(own)


def test_without_a_batch_size_the_whole_data_are_taken():
    schedule = Schedule(OFFSETS, 0, local_epochs=2)
    assert schedule.full_batch_steps == 2
    assert schedule.draw_rounds(0, 1).rows.size == 0  # nothing to draw


@pytest.mark.slow
@pytest.mark.parametrize("cohort", ["null", "2"])
@pytest.mark.parametrize("sizes", [(3, 7, 10), (5, 5, 5)])
def test_the_whole_data_of_a_client_are_its_rows(sizes, cohort, tmp_path):
    rates = ("algo.client_lr=0.01", "algo.server_lr=1")
    config = ragged(tmp_path, "algo=fedavg", *rates, f"clients_per_round={cohort}", "rounds=1", sizes=sizes)
    experiment = prepare(config)
    data, now = load_data(experiment), snapshots(config)[-1]
    drawn = build_engine(experiment, data).federation.schedule.draw_rounds(0, 1)
    rate = config["algo"]["client_lr"]
    x, expected = np.column_stack([data.train.x, np.ones(len(data.train.x))]), np.zeros(7)
    for m in drawn.cohort[0]:
        rows = slice(data.train.offsets[m], data.train.offsets[m + 1])
        step = 2 * x[rows].T @ data.train.y[rows] / data.train.sizes[m]
        expected += data.train.sizes[m] / data.train.sizes[drawn.cohort[0]].sum() * rate * step
    np.testing.assert_allclose(flat({k: v[0] for k, v in now.solution.items()}), expected, atol=1e-12)


def test_shared_uniforms_are_two_numbers_a_round_between_0_and_1():
    uniforms = Schedule(OFFSETS, 0).draw_rounds(0, 1000).shared_uniforms
    assert uniforms.shape == (1000, 2)
    assert abs(np.corrcoef(uniforms.T)[0, 1]) < 0.1
    assert ((uniforms >= 0) & (uniforms < 1)).all()
    np.testing.assert_allclose(np.quantile(uniforms, [0.25, 0.5, 0.75]), [0.25, 0.5, 0.75], atol=0.05)


def test_share_is_the_cohorts_part_of_all_weights():
    drawn = Schedule(OFFSETS, 0, clients_per_round=3).draw_rounds(0, 20)
    np.testing.assert_allclose(drawn.cohort_share, np.array([3, 7, 10, 1])[drawn.cohort].sum(axis=1) / 21)
    assert (
        Schedule(OFFSETS, 0, clients_per_round=3, client_weighting="uniform").draw_rounds(0, 4).cohort_share == 0.75
    ).all()
    assert (Schedule(OFFSETS, 0).draw_rounds(0, 4).cohort_share == 1).all()


@pytest.mark.parametrize("batch", [None, 4])
def test_unequal_clients_take_unequal_steps(batch):
    schedule = Schedule(OFFSETS, 0, batch_size=batch)
    assert schedule.steps.tolist() == ([1, 1, 1, 1] if batch is None else [1, 2, 3, 1])
    assert schedule.uneven_steps == (batch is not None)


@pytest.mark.parametrize("options", [{}, {"batch_size": 4}, {"batch_size": 2, "local_steps": 5, "local_epochs": None}])
def test_a_round_does_not_depend_on_those_drawn_with_it(options):
    schedule = Schedule(OFFSETS, 5, clients_per_round=2, **options)
    block = schedule.draw_rounds(0, 6)
    for r in range(6):
        for alone, together in zip(schedule.draw_rounds(r, 1)[:-2], block[:-2], strict=True):
            if alone is not None and together is not None:
                np.testing.assert_array_equal(alone[0], together[r])
        assert block.state_index is block.assignment is None  # all clients' states and rows are on the device
    if "batch_size" in options:
        assert not np.array_equal(block.rows[0], block.rows[1])


def test_the_cohort_does_not_depend_on_the_local_work():
    base = Schedule(OFFSETS, 5, clients_per_round=2).draw_rounds(0, 20).cohort
    for options in ({"batch_size": 2}, {"local_epochs": 4}, {"batch_size": 3, "local_steps": 5}):
        other = replace(Schedule(OFFSETS, 5, clients_per_round=2), **options)
        np.testing.assert_array_equal(other.draw_rounds(0, 20).cohort, base)
    assert not np.array_equal(Schedule(OFFSETS, 6, clients_per_round=2).draw_rounds(0, 20).cohort, base)


def test_algorithms_share_cohorts_and_minibatches():
    drawn = []
    for name in ("fedavg", "feddualavg"):
        experiment = prepare(small(f"algo={name}"))
        drawn.append(build_engine(experiment, load_data(experiment)).federation.schedule.draw_rounds(0, 4))
    for ours, theirs in zip(*drawn, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_weights():
    cohort, _, weight, *_ = Schedule(OFFSETS, 0, clients_per_round=3).draw_rounds(0, 4)
    np.testing.assert_array_equal(weight, np.array([3, 7, 10, 1])[cohort])
    assert (Schedule(OFFSETS, 0, clients_per_round=3, client_weighting="uniform").draw_rounds(0, 4).weights == 1).all()
