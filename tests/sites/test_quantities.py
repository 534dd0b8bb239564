"""The sizes in a plan are those of the arrays that sites send."""

import numpy as np
import pytest
from three_sites import plan_of, sites_of, write_tables

from fcorun.sites.plan.messages.table_messages import describe_fills
from fcorun.sites.server.server import Server
from fcorun.sites.transport.connections import InProcessConnections
from fcorun.sites.transport.messages import Message


@pytest.fixture(autouse=True)
def tables(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_tables()


@pytest.mark.parametrize(
    ("missing", "numbers", "sizes"),
    [
        ("mean", "2 for each column of numbers and each client", {"sums": 2, "values": 2, "histograms": 0}),
        ("indicator", "2 for each column of numbers and each client", {"sums": 2, "values": 2, "histograms": 0}),
        ("median", "256 counts for each column of numbers", {"sums": 0, "values": 0, "histograms": 512}),
    ],
)
def test_a_description_sends_what_the_plan_says(missing, numbers, sizes):
    plan = plan_of(f"data.missing={missing}", "data.ranges={age: [0, 100], bmi: [0, 60]}")
    of_fills = [quantity for quantity in plan.quantities if quantity.message == "describe"][1]
    assert (of_fills.numbers, of_fills.times) == (numbers, "once")
    assert (of_fills.numbers, of_fills.content) == describe_fills(missing)
    answer = sites_of(plan)["a"].answer(Message("describe", {"plan": plan.digest}))
    assert {name: answer.arrays[name].size for name in sizes} == sizes  # of one client and two columns


@pytest.mark.parametrize("batch_size", ["null", "32"])
def test_a_bound_on_the_longest_row_leaves_with_minibatches_alone_and_the_plan_says_so(batch_size):
    plan = plan_of("algo=feddualavg", f"batch_size={batch_size}")
    sites = sites_of(plan)
    Server(plan, InProcessConnections(sites)).load()
    rows = sites["a"].own_data.train
    curvature_of_longest = 2 * (np.linalg.norm(rows.x, axis=1).max() ** 2 + 1)  # with the intercept
    bounds = sites["a"].answer(Message("curvature")).arrays["bounds"]
    (curvature,) = [quantity for quantity in plan.quantities if quantity.message == "curvature"]
    if batch_size == "null":
        assert bounds[:2].tolist() == bounds[2:4].tolist()
        assert bounds.max() < curvature_of_longest / 2
        assert "row" not in curvature.content
    else:
        assert bounds[1] == pytest.approx(curvature_of_longest, rel=0.1)
        assert "those of minibatches tell the length of the longest row" in curvature.content


def test_sums_of_features_are_sent_twice():
    (sums,) = [quantity for quantity in plan_of().quantities if quantity.message == "sums"]
    assert (sums.numbers, sums.times) == ("d for each client", "twice")


def test_masked_sums_are_of_all_clients_together():
    from fcorun.sites.plan.plan import Plan
    from fcorun.studies.selection.selection_result import SelectOptions

    experiment = plan_of("algo=fedmid", "algo.client_lr=0.1", "reg=l2", "data.missing=indicator").experiment
    options = SelectOptions(points=3, folds=2, range=[0.1, 1.0])
    sizes = {}
    for name, bounds in (("plain", None), ("masked", {})):
        plan = Plan.from_experiment(experiment, options=options, bounds=bounds)
        sizes[name] = {quantity.message: quantity.numbers for quantity in plan.quantities}
    of_levels = "1 for each level and each column, and 2 for each column of numbers"
    assert sizes["plain"]["fold_sums"] == sizes["plain"]["sums"] == "d for each client"
    assert sizes["masked"]["fold_sums"] == sizes["masked"]["sums"] == "d"
    assert sizes["plain"]["fold_values"] == f"{of_levels} and each client"
    assert sizes["masked"]["fold_values"] == of_levels
