"""Random streams of clients."""

import numpy as np
import pytest
from helpers import small
from scipy.stats import chisquare, kstest

from fcorun.base.system import random_streams
from fcorun.engine.schedule import Schedule
from fcorun.experiment.build import build_engine, load_data
from fcorun.experiment.prepare import prepare

NAMES = ("north", "south", "east", "west")
SIZES = np.array([7, 12, 5, 12])
OFFSETS = np.concatenate([[0], np.cumsum(SIZES)])


def draw_three_rounds(names, offsets, **options):
    """Draw three rounds; rows are counted from each client's first row. Returns rows, keys and cohorts."""
    schedule = Schedule(np.asarray(offsets), 5, batch_size=4, names=tuple(names), **options)
    rounds = schedule.draw_rounds(0, 3)
    first_row = np.asarray(offsets)[rounds.cohort][..., None, None]
    return np.where(rounds.rows < 0, -1, rounds.rows - first_row), rounds.keys, rounds.cohort


@pytest.mark.parametrize("options", [{"local_epochs": 2}, {"local_epochs": None, "local_steps": 6}])
def test_a_client_keeps_its_batches_among_other_clients(options):
    whole, keys, _ = draw_three_rounds(NAMES, OFFSETS, **options)
    for place, name in enumerate(NAMES):
        alone, key, _ = draw_three_rounds([name], [0, SIZES[place]], **options)
        steps = alone.shape[2]
        np.testing.assert_array_equal(whole[:, place, :steps], alone[:, 0])
        assert (whole[:, place, steps:] == -1).all()
        np.testing.assert_array_equal(keys[:, place], key[:, 0])


def test_a_client_keeps_its_batches_in_a_cohort():
    whole, keys, _ = draw_three_rounds(NAMES, OFFSETS)
    some, theirs, cohort = draw_three_rounds(NAMES, OFFSETS, clients_per_round=2)
    for number, clients in enumerate(cohort):
        np.testing.assert_array_equal(some[number], whole[number, clients])
        np.testing.assert_array_equal(theirs[number], keys[number, clients])


def test_clients_go_by_their_names_or_numbers():
    named, *_ = draw_three_rounds(NAMES, [0, 12, 24, 36, 48])
    turned, *_ = draw_three_rounds(NAMES[::-1], [0, 12, 24, 36, 48])
    np.testing.assert_array_equal(named, turned[:, ::-1])
    assert not np.array_equal(named[:, 0], named[:, 1])
    numbered, *_ = draw_three_rounds((), [0, 12, 24, 36, 48])
    np.testing.assert_array_equal(numbered, draw_three_rounds("0123", [0, 12, 24, 36, 48])[0])


def test_names_reach_the_schedule():
    experiment = prepare(small())
    data = load_data(experiment)
    assert data.clients
    assert build_engine(experiment, data).federation.schedule.names == data.clients


def test_seed_round_stream_and_client_all_matter():
    rounds, clients = np.arange(3), random_streams.client_keys(NAMES)
    states = [
        random_streams.stream_states(stream, seed, np.full(4, number), clients)
        for stream in (2, 4)
        for seed in (0, 1, 2**70)
        for number in rounds
    ]
    assert len(np.unique(states)) == 2 * 3 * 3 * 4


def test_permutations_and_numbers_are_uniform():
    start = random_streams.stream_states(2, 0, np.arange(4000), random_streams.client_keys(["one"])[0])
    orders = random_streams.draw_permutations(start, 2, 5)
    assert (np.sort(orders, axis=-1) == np.arange(5)).all()
    for place in range(5):
        assert chisquare(np.bincount(orders[:, 1, place], minlength=5)).pvalue > 1e-3
    assert kstest(random_streams.draw_uniforms(start, 3).ravel(), "uniform").pvalue > 1e-3


def test_numbers_stay_what_they_are():
    """Pin the numbers: a change of them must raise the engine's RESULTS_VERSION, since old records become invalid."""
    start = random_streams.stream_states(2, 7, np.array([3]), random_streams.client_keys(["north"]))
    assert random_streams.draw_permutations(start, 1, 8).ravel().tolist() == PINNED
    assert random_streams.draw_uniforms(start, 1).item() == pytest.approx(PINNED_NUMBER, abs=1e-15)
    assert (
        random_streams.mix(np.array([0x9E3779B97F4A7C15], np.uint64)).item() == 0xE220A8397B1DCDAF
    )  # SplitMix64 from 0


PINNED = [1, 5, 3, 4, 7, 6, 2, 0]
PINNED_NUMBER = 0.9918791868812435
