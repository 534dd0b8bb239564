"""Runs that depend on their seed, and runs that do not."""

import numpy as np
import pytest
from helpers import (
    choice_names,
    engine_of,
    flat,
    grid,
    plugin_class,
    rows_of,
    run_grid,
    small,
    small_for,
    snapshots,
    traits_of,
)

from fcorun import run
from fcorun.base.system.machine import use_precision
from fcorun.engine.engine import depends_on_seed
from fcorun.methods.algorithms import Algorithm

WHOLE = ("clients_per_round=null", "batch_size=null")
TOSSES = ("proxskip", "tamuna", "mixture", "fedpd", "diana")
ALGORITHMS = [name for name in choice_names("algo") if issubclass(plugin_class("algo", name), Algorithm)]
CLASSES = ("data=heterogeneous", "algo.client_lr=0.03", "data.features=8", "data.clients=4", "data.samples=20")


@pytest.mark.slow
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_who_tosses_coins(algo):
    """With all clients and whole data, those whose clients ask for chances are taken to depend on the seed (FedPD does
    if it skips); nobody else."""
    engine = engine_of(small_for(algo, *WHOLE))
    with use_precision(engine.federation.precision):
        assert depends_on_seed(engine.federation) == (algo in TOSSES)
    if traits_of(algo).partial:
        assert depends_on_seed(engine_of(small_for(algo)).federation)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (("algo=feddualavg",), False),
        (("algo=feddualavg", "topology=tree", "topology.rounds=2"), False),
        (("algo=feddualavg", "debug=true"), False),
        (("algo=feddualavg", "clients_per_round=6"), False),
        (("algo=feddualavg", "clients_per_round=5"), True),
        (("algo=feddualavg", "batch_size=12"), False),
        (("algo=feddualavg", "batch_size=11"), True),
        (("algo=proxskip",), True),
        (("algo=mixture",), True),
        (("algo=fedavg", "uplink=topk", "uplink.fraction=0.5"), False),
        (("algo=fedavg", "uplink=randk", "uplink.fraction=0.5"), True),
        (("algo=fedavg", *CLASSES), False),
        (("algo=fedavg", *CLASSES, "objective=mlp", "objective.hidden=[3]"), True),
    ],
)
def test_seeds_change_what_is_drawn(overrides, expected):
    config = small(*WHOLE, "rounds=4", *overrides)
    ends = [snapshots(config | {"seed": seed})[-1].metrics["objective"] for seed in (0, 1)]
    assert depends_on_seed(engine_of(config).federation) == expected
    assert (ends[0] != ends[1]).all() == expected


@pytest.mark.slow
def test_simulated_times_are_drawn():
    for variation in (0.2, 0.0):
        federation = engine_of(small(*WHOLE, "clock=lognormal", f"clock.variation={variation}")).federation
        assert depends_on_seed(federation) == (variation > 0)


@pytest.mark.slow
def test_a_start_at_a_record_is_not_drawn():
    config = small(*WHOLE, "algo=fedavg", *CLASSES, "objective=mlp", "objective.hidden=[3]", "rounds=1")
    run(config, "before")
    assert not depends_on_seed(engine_of(config | {"start": "before"}).federation)


@pytest.mark.slow
def test_seeds_that_change_nothing_are_noted():
    points = grid(small(*WHOLE, "rounds=2"), {"seed": [0, 1]})
    one, other = run_grid(points)
    np.testing.assert_array_equal(flat(one.solution), flat(other.solution))
    assert rows_of(one).equals(rows_of(other))
    for record in (one, other):
        assert record.summary["drawn"] is False
    alone = run(points[0], "alone")
    assert alone.summary["drawn"] is False
    assert all(record.summary["drawn"] for record in run_grid(grid(small("rounds=2"), {"seed": [0, 1]})))
