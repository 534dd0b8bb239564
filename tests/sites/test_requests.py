"""Requests of a server to a site: the answers, and the refusals of a site."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from helpers import fails
from three_sites import NAMES, plan_of, sites_of, write_tables

from fcorun.base.errors import UserError
from fcorun.sites.plan.messages.certificate_messages import round_down, round_up
from fcorun.sites.plan.planned_study import PlannedIntervals
from fcorun.sites.plan.policy import Policy
from fcorun.sites.plan.site_options import ObstaclesError, OwnTableError
from fcorun.sites.server.server import Server
from fcorun.sites.server.site_study import run_plan
from fcorun.sites.server.trial import try_plan
from fcorun.sites.site.request_checks import RequestCounts
from fcorun.sites.transport.connections import InProcessConnections
from fcorun.sites.transport.messages import Message


@pytest.fixture(autouse=True)
def tables(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_tables()


@pytest.mark.slow
def test_a_policy_refuses_what_its_owner_does_not_allow():
    with fails("batches of 4 rows", "policy.min_rows of this site is 10"):
        sites_of(plan_of("batch_size=4"))
    with fails("has 4 rounds", "allows 3"):
        sites_of(plan_of(), Policy(max_rounds=3))
    with fails("site 'a'", "policy.min_rows"):
        run_plan(plan_of(), InProcessConnections(sites_of(plan_of(), Policy(min_rows=13))), "out")
    wide = pd.read_csv("a.csv").join(pd.DataFrame(np.random.default_rng(1).normal(size=(60, 15))).add_prefix("x"))
    for name in NAMES:
        rows = wide if name == "a" else pd.read_csv(f"{name}.csv").assign(**{f"x{j}": 1.0 * j for j in range(15)})
        rows.to_csv(f"{name}.csv", index=False)
    plan = plan_of("algo=newton")
    with fails("site 'a'", "policy.alone=allow"):
        run_plan(plan, InProcessConnections(sites_of(plan)), "out")
    run_plan(plan, InProcessConnections(sites_of(plan, Policy(alone="allow"))), "out")


@pytest.mark.parametrize(
    ("overrides", "n_rare", "is_refused"),
    [
        (("algo=newton",), 3, True),
        (("algo=newton",), 5, True),
        (("algo=newton",), 6, False),  # as many as the numbers of a line and one more: 4 features and the intercept
        (("algo=newton", "rounds=1", "eval_every=1"), 3, False),  # one line is one sum of the rows
        (("algo=scaffold", "algo.client_lr=0.1"), 3, False),
    ],
)
def test_hessians_of_several_models_tell_no_rows_of_a_rare_feature(overrides, n_rare, is_refused):
    for seed, name in enumerate(NAMES):
        rng = np.random.default_rng(seed)
        frame = pd.DataFrame(
            {"rare": 0.0, **{f"x{j}": rng.normal(size=60) for j in range(3)}, "ill": ["no", "yes"] * 30}
        )
        frame.loc[: n_rare - 1 if name == "a" else 29, "rare"] = 1.0
        frame.to_csv(f"{name}.csv", index=False)
    plan = plan_of(*overrides, "data.target=ill", "data.task=binary", "data.positive=yes", "data.validation=0")
    connections = InProcessConnections(sites_of(plan))
    if not is_refused:
        run_plan(plan, connections, "out")
        return
    with fails("site 'a'", "the feature 'rare'", "fewer than 6 training rows", "policy.alone=allow"):
        run_plan(plan, connections, "out")
    run_plan(plan, InProcessConnections(sites_of(plan, Policy(alone="allow"))), "out")


@pytest.mark.slow
def test_a_site_answers_what_the_plan_lists_and_nothing_else():
    plan = plan_of()
    for request, words in (
        (Message("describe", {"plan": "0" * 64}), "this site has accepted"),
        (Message("describe"), "does not fit the plan"),
        (Message("curvature"), "which the plan does not list"),
        (Message("round", {"round": 0, "exchange": 0}), "before the start of the run"),
        (Message("start", {"numbers": [{}], "seed": 0, "curvature": {}}), "before all sites agreed"),
    ):
        with fails(words):
            sites_of(plan)["a"].answer(request)
    connections = InProcessConnections(sites_of(plan))
    run_plan(plan, connections, "out")
    started = connections.site_by_name["a"]
    with fails("before the start of the run"):
        started.answer(Message("round", {"round": 4, "exchange": 0}))


@pytest.mark.slow
def test_messages_of_few_and_of_many_rows_are_equally_long():
    sent = []
    for copies in (1, 20):
        for name in NAMES:
            rows = pd.read_csv(f"{name}.csv")
            pd.concat([rows] * copies).to_csv(f"{name}.csv", index=False)
        plan = plan_of()
        connections = InProcessConnections(sites_of(plan))
        run_plan(plan, connections, f"out{copies}")
        sent.append(connections.bytes_sent)
    assert sent[0] == sent[1]


class RecordingConnections(InProcessConnections):
    """Connections that keep all requests of the site "a"."""

    def __init__(self, sites):
        super().__init__(sites)
        self.requests = []

    def send(self, request):
        if "a" in self.list_addressees(request):
            self.requests.append(request.message)
        return super().send(request)


@pytest.mark.slow
def test_a_site_computes_its_rounds_in_order(tmp_path):
    plan, connections = plan_of(), RecordingConnections(sites_of(plan_of()))
    run_plan(plan, connections, tmp_path / "out")
    site, requests = sites_of(plan)["a"], [request for request in connections.requests if request.name != "evaluate"]
    rounds = [k for k, request in enumerate(requests) if request.name == "round"]
    for request in requests[: rounds[1]]:
        site.answer(request)
    for k in (0, 2):
        with fails("the next one of this site is 2"):
            site.answer(requests[rounds[k]])
    site.answer(requests[rounds[1]])


def requests_of(plan, folder):
    """Return the requests of a run to the site "a" by name, the first one of each."""
    connections = RecordingConnections(sites_of(plan))
    run_plan(plan, connections, folder)
    return {request.name: request for request in reversed(connections.requests)}


@pytest.mark.slow
def test_a_server_cannot_have_a_sum_over_one_row(tmp_path):
    """Numbers of rows are those that the site described, and a model has the shapes of the plan."""
    plan = plan_of("data.validation=0")
    requests = requests_of(plan, tmp_path / "out")
    load, own = requests["load"], requests["load"].about["clients"].index("a")
    for name, words in (("rows", "other numbers of rows"), ("weights", "other weights")):
        forged = load.arrays[name].copy()
        forged[own, 0] = 1
        with fails(words):
            sites_of(plan)["a"].answer(Message("load", load.about, load.arrays | {name: forged}))
    huge = load.about | {"clients": [*load.about["clients"], "huge"]}
    for n_rows in (4 * 10**9, 2**63 - 1):
        rows = {name: np.vstack([load.arrays[name], [[0, 0, n_rows]]]) for name in ("rows", "weights")}
        with fails("at most 10000000 of a client"):
            sites_of(plan)["a"].answer(Message("load", huge, load.arrays | rows))
    encoding = json.loads(json.dumps(load.about["encoding"]))
    encoding["columns"][-1]["levels"] = [f"{number:06}" for number in range(2000)]
    unscaled = {name: values for name, values in load.arrays.items() if name not in ("mean", "deviation")}
    with fails("more than 1000 levels of 'ward'"):
        sites_of(plan)["a"].answer(Message("load", load.about | {"encoding": encoding}, unscaled))
    site = sites_of(plan)["a"]
    for name in ("load", "start"):
        site.answer(requests[name])
    model = {"bias": np.zeros(()), "weights": requests["evaluate"].arrays["1"][0]}
    for forged in ({"bias": np.zeros(60)}, {"weights": model["weights"][:, None]}, {"bias": np.array(np.nan)}):
        with fails("'scores' does not fit the plan"):
            site.counts.counts.clear()
            site.answer(Message("scores", {}, model | forged))


def with_another_fill(request):
    """Return a request whose encoding fills gaps of the first column by another number."""
    encoding = json.loads(json.dumps(request.about["encoding"]))
    encoding["columns"][0]["fill"] += 0.5
    return replace(request, about=request.about | {"encoding": encoding})


@pytest.mark.slow
def test_all_requests_of_a_run_have_one_encoding_also_after_a_restart():
    """The difference of two sums with different fills is the number of gaps, times the difference of the fills."""
    for name in NAMES:
        rows = pd.read_csv(f"{name}.csv")
        rows.assign(age=rows["age"].mask(np.arange(len(rows)) % 3 == 0)).to_csv(f"{name}.csv", index=False)
    plan = plan_of("data.missing=mean", "data.validation=0")
    connections = RecordingConnections(sites_of(plan))
    Server(plan, connections).load()
    sums, squares, load = connections.requests[-3:]
    assert [request.name for request in (sums, squares, load)] == ["sums", "sums", "load"]

    def site_after(*requests):
        site = sites_of(plan)["a"]
        for request in requests:
            site.answer(request)
        restarted = sites_of(plan)["a"]
        restarted.load_state(site.save_state())
        return site, restarted

    for answered, forged in (([sums], squares), ([sums, squares], load), ([load], sums)):
        for site in site_after(*answered):
            with fails(f"another encoding of the columns with '{forged.name}'", "seed=NUMBER"):
                site.answer(with_another_fill(forged))
    for site in site_after(sums, squares):
        site.answer(load)
    site.load_state({})
    site.answer(with_another_fill(sums))  # of another run


@pytest.mark.slow
def test_a_server_cannot_ask_for_more_than_the_plan_has(tmp_path):
    plan = plan_of()
    requests = requests_of(plan, tmp_path / "out")
    start, site = requests["start"], sites_of(plan)["a"]
    site.answer(requests["load"])
    (numbers,) = start.about["numbers"]
    for forged, words in (
        ({"numbers": [numbers] * 2}, "other runs than that of the plan"),
        ({"seed": 99}, "another seed"),
        ({"numbers": [numbers | {"algo": {"client_lr": 9.0, "server_lr": 1.0}}]}, "algo.client_lr=9"),
        ({"numbers": [numbers | {"algo": {"title": 9.0}}]}, "does not fit the plan"),
    ):
        site.counts.counts.clear()
        with fails(words):
            site.answer(Message("start", start.about | forged))
    site.counts.counts.clear()
    site.answer(requests["load"])
    site.answer(start)
    for _ in range(3):
        site.answer(requests["evaluate"])
    with fails("more often than the plan says, 3 times"):
        site.answer(requests["evaluate"])
    for name in ("load", "start"):
        with fails("more often than the plan says, 1 times"):
            site.answer(requests[name])


@pytest.mark.slow
def test_a_number_that_is_not_finite_names_its_site(tmp_path):
    plan = plan_of("algo=fedavg", "algo.client_lr=1e308")
    record = run_plan(plan, InProcessConnections(sites_of(plan)), tmp_path / "out")
    assert record.status["status"] == "diverged"
    assert "first in client of site 'a'" in record.status["reason"]


@pytest.mark.parametrize("value", [1.0, 1.234e-5, 99.0, 99.5, 1e10, 0.0])
def test_bounds_are_rounded_outwards_to_two_digits(value):
    assert value <= round_up(value) <= value * 1.1 + 1e-300
    assert value >= round_down(value) >= value * 0.9 - 1e-300
    assert round_up(value) == float(f"{round_up(value):.2g}")


@pytest.mark.slow
def test_counts_are_fitted_and_a_refusal_names_no_target_of_a_row():
    counts = ("objective=poisson", "algo=newton")
    for name in NAMES:
        rows = pd.read_csv(f"{name}.csv")
        rows.assign(cost=rows["cost"].abs().round()).to_csv(f"{name}.csv", index=False)
    _, comparison = try_plan(plan_of(*counts), sites_of(plan_of(*counts)), "out")
    assert comparison.difference < 1e-12
    rows = pd.read_csv("b.csv")
    rows.assign(cost=rows["cost"] - 1000).to_csv("b.csv", index=False)
    with pytest.raises(UserError, match=r"site 'b': its targets do not fit objective=poisson$"):
        run_plan(plan_of(*counts), InProcessConnections(sites_of(plan_of(*counts))), "out2")


@pytest.mark.parametrize(
    ("rows", "column", "value", "words"),
    [
        ({"part": "train"}, "cost", -3.0, "objective=poisson: the targets contain -3, and counts are 0 or more"),
        ({"part": "test"}, "cost", -3.0, "objective=poisson: the targets contain -3, and counts are 0 or more"),
        ({"part": "test"}, "age", np.inf, "column 'age' is infinite in row {row}; mend it or drop the row"),
    ],
)
def test_numbers_that_no_run_takes_are_told_to_their_owner_before_any_run(rows, column, value, words):
    table = pd.read_csv("a.csv")
    table["cost"], table["part"] = table["cost"].abs().round(), np.resize(["train", "train", "test"], len(table))
    row = int((table["part"] == rows["part"]).to_numpy().nonzero()[0][4])
    table.loc[row, column] = value
    table.to_csv("a.csv", index=False)
    plan = plan_of("objective=poisson", "algo=newton", "data.split=part", "data.validation=null")
    with pytest.raises(OwnTableError) as error:
        sites_of(plan)["a"].read_table()
    assert words.format(row=row + 1) in str(error.value)
    assert "-3" not in error.value.public
    assert "row " not in error.value.public


def test_all_bad_numbers_of_a_table_are_listed_at_once():
    table = pd.read_csv("a.csv")
    table.loc[[3, 4], "age"] = np.inf
    table.assign(cost=-1.0).to_csv("a.csv", index=False)
    with pytest.raises(ObstaclesError) as error:
        sites_of(plan_of("objective=gamma", "algo=newton"))["a"].read_table()
    assert ["infinite" in str(one) for one in error.value.errors] == [True, False]


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["poisson", "gamma"])
def test_a_site_may_be_held_out_or_have_no_count_but_0(objective):
    for name in NAMES:
        rows = pd.read_csv(f"{name}.csv")
        cost = rows["cost"].abs().round() * (name != "c") if objective == "poisson" else rows["cost"].abs() + 0.1
        rows.assign(cost=cost).to_csv(f"{name}.csv", index=False)
    plan = plan_of(f"objective={objective}", "algo=newton", "data.test=[a]")
    record, comparison = try_plan(plan, sites_of(plan), "out")
    assert comparison.difference < 1e-10
    assert pd.read_csv(record.folder / "scores.csv").set_index("set").loc["test", "n"] == 60


@pytest.mark.slow
def test_a_site_refuses_damaged_requests_in_a_sentence(tmp_path):
    """A thousand requests of a run, each with something left out, replaced or reshaped."""
    plan, rng = replace(plan_of(), infer=PlannedIntervals()), np.random.default_rng(0)
    connections = RecordingConnections(sites_of(plan))
    run_plan(plan, connections, tmp_path / "out")
    requests = [request for request in connections.requests if request.about or request.arrays]
    junk = [None, -1, 10**30, "x", [], {}, [[]], True, 1e308]
    site, sentences = sites_of(plan)["a"], []
    for request in requests[:4]:
        site.answer(request)
    for _ in range(1000):
        request = requests[rng.integers(len(requests))]
        about, arrays = dict(request.about), dict(request.arrays)
        key = rng.choice([*about, *arrays])
        if key in about:
            about[key] = junk[rng.integers(len(junk))]
        else:
            change = rng.integers(4)
            array = arrays.pop(key)
            if change:
                arrays[key] = [array[..., None], array.astype(np.int8), np.zeros(3)][change - 1]
        site.counts.counts.clear()
        try:
            site.answer(Message(request.name, about, arrays))
        except UserError as error:
            sentences.append(str(error))
    assert len(sentences) > 700
    assert not any("\n" in sentence for sentence in sentences)


@pytest.mark.slow
def test_no_value_in_a_request_makes_it_another_one(tmp_path):
    """A server that calls a request one of the reference optimum has it counted, and refused, all the same."""
    plan = plan_of("reference=true", "objective=least_squares", "reg=l2", "reg.strength=0.1")
    requests = requests_of(plan, tmp_path / "out")
    site = sites_of(plan)["a"]
    site.answer(requests["load"])
    with fails("'start' does not fit the plan"):
        site.answer(Message("start", requests["start"].about | {"models": "reference"}))
    site.counts.counts.clear()
    for name in ("load", "start", "round"):
        site.answer(requests[name])
    for models in ({}, {"models": "reference"}):
        with fails("more often than the plan says, 1 times"):
            site.answer(Message("start", requests["start"].about | models))
    with fails("the next one of this site is 2"):
        site.answer(requests["round"])
    for name in ("residuals", "conjugates"):
        with fails("after the start of the run"):
            site.answer(requests[name])
    for _ in range(3):
        site.answer(requests["evaluate"])
    with fails("more often than the plan says, 3 times"):
        site.answer(Message("evaluate", {"models": "reference"}, requests["evaluate"].arrays))


def test_every_request_of_a_plan_has_a_number():
    counts = RequestCounts(replace(plan_of("reference=true", "reg=l2", "reg.strength=0.1"), infer=PlannedIntervals()))
    asked = {name for name, kind in counts.plan.kinds.items() if not kind.is_ordered}
    assert len(asked) > 10
    assert all(name in counts.plan.kinds[name].limits(counts.plan, None) for name in asked)
    with fails("the server asked for 'folds', which the plan does not list"):
        counts.count(Message("folds"))
