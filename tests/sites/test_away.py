"""Sites that stay away: rounds go on without them, the record says so, and a killed server repeats to the same bits."""

import csv
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import numpy as np
import pytest
from command import fcorun
from helpers import fails
from three_sites import NAMES, plan_of, sites_of, write_tables

from fcorun.base.errors import UserError
from fcorun.data.rows.site_rows import Absences, AwayRule
from fcorun.experiment.build import build_engine
from fcorun.sites.plan.messages.message_kind import list_kinds
from fcorun.sites.server.site_study import run_plan
from fcorun.sites.server.trial import pool_rows
from fcorun.sites.site.site import Site
from fcorun.sites.site.site_batch import resolve_numbers
from fcorun.sites.transport.connections import InProcessConnections, JournaledConnections
from fcorun.sites.transport.durable import DurableSite
from fcorun.sites.transport.folder import FolderConnections, FolderSite, read_left_out
from fcorun.sites.transport.messages import Message, SiteLost, number_request

__all__ = ["fcorun"]  # a fixture
SKIP = ("algo=fedmid", "algo.client_lr=0.02", "reg=l2", "reg.strength=0.1", "data.away=skip", "data.away_seconds=0.05")
LATE = ("round", "evaluate", "residuals", "conjugates", "scores", "calibration", "result", "end")


@pytest.fixture(autouse=True)
def tables(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_tables()


@dataclass
class AwaySite:
    """A site that stays away from chosen requests."""

    site: Site
    is_away: Callable[[Message], bool]

    def answer(self, request):
        if self.is_away(request):
            raise SiteLost("site 'b' is away")
        return self.site.answer(request)


def run_without_b(plan, folder, is_away):
    """Return the record of a plan whose site b stays away from some requests, and the sites."""
    sites = sites_of(plan)
    record = run_plan(plan, InProcessConnections({**sites, "b": AwaySite(sites["b"], is_away)}), folder)
    return record, sites


def misses(rounds=(), messages=()):
    """Return a rule of absence from some rounds, counted from 0, and from all messages of some names."""
    return lambda request: request.name in messages or (request.name == "round" and request.about["round"] in rounds)


@pytest.mark.slow
def test_rounds_without_a_site_are_those_of_the_pooled_rows_of_the_others(tmp_path):
    plan = plan_of(*SKIP)
    record, sites = run_without_b(plan, tmp_path / "out", misses(range(9), LATE))
    data = pool_rows([sites[name].own_data for name in "ac"], ("a", "c"))
    engine = build_engine(resolve_numbers(plan.experiment, sites["a"].points[0]), data)
    with jax.enable_x64(True):
        *_, last = engine.run(sites["a"].points)
    for name, values in last.solution.items():
        np.testing.assert_allclose(record.solution[name], values[0], rtol=1e-12)
    np.testing.assert_allclose(record.metrics["train_loss"].iloc[-1], last.metrics["train_loss"][0], rtol=1e-12)
    assert record.metrics["sites_present"].tolist() == [2, 2, 2]
    assert record.metrics["rows_present"].tolist() == [112, 112, 112]
    assert record.scores["n"].tolist() == [112, 28]
    assert record.summary["away"] == [
        "metrics after rounds 0-4 without the rows of site 'b'",
        "rounds 1-4 without site 'b'",
        "scores.csv without the rows of site 'b'",
    ]


@pytest.mark.slow
def test_a_site_that_comes_back_is_asked_again_and_the_record_says_what_it_missed(tmp_path, fcorun):
    plan = plan_of(*SKIP, "rounds=6")
    whole = run_plan(plan, InProcessConnections(sites_of(plan)), tmp_path / "whole")
    record, sites = run_without_b(plan, tmp_path / "out", misses([1, 2]))
    assert record.status["status"] == "done"
    assert record.status["reason"].endswith("rounds 2-3 without site 'b'")
    assert "without" not in whole.status["reason"]
    assert not (whole.folder / "away_sites.csv").exists()
    rows = list(csv.DictReader((tmp_path / "out" / "away_sites.csv").read_text().splitlines()))
    assert rows == [{"site": "b", "message": "round", "first_round": "2", "last_round": "3"}]
    assert fcorun("results", "out", "--out", "runs.csv")[1].count("done, sites away") == 1
    assert "rounds 2-3 without site 'b'" in (tmp_path / "runs.csv").read_text()
    assert record.metrics["sites_present"].tolist() == [3, 3, 3, 3]
    assert sites["b"]._batch is None  # has heard of the end
    assert not np.array_equal(record.solution["weights"], whole.solution["weights"])
    assert record.metrics["train_loss"].iloc[:1].equals(whole.metrics["train_loss"].iloc[:1])


@pytest.mark.slow
def test_metrics_of_other_rows_are_neither_compared_nor_averaged(tmp_path):
    record, _ = run_without_b(plan_of(*SKIP, "rounds=6"), tmp_path / "out", _MissesEvaluation(2))
    present = record.metrics["sites_present"].tolist()
    assert present == [3, 3, 2, 3]
    comparable = record.metrics[record.metrics["sites_present"] == 3]
    assert record.summary["best"]["val_loss"]["round"] in comparable["round"].tolist()
    assert record.summary["tail"]["train_loss"] == pytest.approx(
        np.mean(np.asarray(comparable["train_loss"])[1:]), rel=1e-12
    )


class _MissesEvaluation:
    """The rule of absence from the evaluation with a number, and from further messages."""

    def __init__(self, number, messages=()):
        self.number, self.messages, self.count = number, messages, -1

    def __call__(self, request):
        self.count += request.name == "evaluate"
        return (request.name == "evaluate" and self.count == self.number) or request.name in self.messages


@pytest.mark.slow
@pytest.mark.parametrize("messages", [(), ("conjugates",)])
def test_a_gap_is_blank_where_a_site_is_away(tmp_path, messages):
    plan = plan_of(*SKIP, "gap=true")
    whole = run_plan(plan, InProcessConnections(sites_of(plan)), tmp_path / "whole")
    number = -1 if messages else 1
    record, _ = run_without_b(plan, tmp_path / "out", _MissesEvaluation(number, messages))
    gaps = record.metrics["gap"]
    if not messages:
        assert gaps.isna().tolist() == [False, True, False]
        np.testing.assert_array_equal(gaps[[0, 2]], whole.metrics["gap"][[0, 2]])
        assert record.summary["best"]["gap"]["value"] == gaps.min()
    else:
        assert np.isnan(gaps).all()
        assert "gap after rounds 0-4 not measured without site 'b'" in record.status["reason"]
        assert "its duality gap was not measured at the end, where a site was away" in record.status["reason"]


@pytest.mark.slow
def test_a_site_without_the_last_model_is_asked_for_no_scores_and_gets_no_result(tmp_path):
    plan = plan_of(*SKIP)
    sites = sites_of(plan)
    for site in sites.values():
        site.result_folder = tmp_path / "results" / site.options.path
    b = AwaySite(sites["b"], _MissesEvaluation(2))
    record = run_plan(plan, InProcessConnections({**sites, "b": b}), tmp_path / "out")
    assert record.scores["n"].tolist() == [112, 28]
    assert "scores.csv without the rows of site 'b'" in record.status["reason"]
    assert sorted(path.name for path in (tmp_path / "results").iterdir()) == ["a.csv", "c.csv"]
    assert (tmp_path / "results" / "a.csv" / "away_sites.csv").exists()


@pytest.mark.slow
def test_a_calibration_of_different_sites_is_left_out(tmp_path):
    record, _ = run_without_b(plan_of(*SKIP), tmp_path / "out", misses(messages=["calibration"]))
    assert record.scores["n"].tolist() == [168, 42]
    assert not np.isnan(record.scores["rmse"]).any()
    assert np.isnan(record.scores["r2"]).all()
    assert "no calibration in scores.csv without site 'b'" in record.status["reason"]


@pytest.mark.slow
@pytest.mark.parametrize("missed", [misses([1]), misses(messages=["describe"]), misses(messages=["start"])])
def test_a_plan_that_waits_and_requests_before_the_rounds_wait_for_all(tmp_path, missed):
    waits = tuple(text for text in SKIP if "away" not in text)
    with pytest.raises(UserError, match="site 'b' is away"):
        run_without_b(plan_of(*waits), tmp_path / "out", missed)
    if missed(Message("round", {"round": 1})):
        with pytest.raises(UserError, match="site 'b' is away"):
            run_without_b(plan_of(*SKIP, "data.least_sites=3"), tmp_path / "least", missed)
    else:
        with pytest.raises(UserError, match="site 'b' is away"):
            run_without_b(plan_of(*SKIP), tmp_path / "before", missed)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["algo=scaffold", "algo.client_lr=0.1"], "has states of clients"),
        (["algo=newton"], "needs all clients in every round"),
        (["algo=gram"], "needs all clients in every round"),
        (["algo=dlsa"], "needs all clients in every round"),
        (["algo=feddyn"], "has states of clients"),
        (["algo=pfedme"], "has states of clients"),
        (["algo=mixture"], "needs all clients in every round"),
        (["algo=fedavg", "algo.client_lr=0.1", "reference=true", "reg=l2"], "reference=true compares"),
    ],
)
def test_plans_that_need_the_same_sites_twice_are_refused(overrides, words):
    with fails("data.away=skip", words, "data.away=wait"):
        plan_of(*overrides, "data.away=skip")


def test_secure_sums_and_selections_wait_for_all_sites():
    from fcorun.sites.plan.plan import Plan
    from fcorun.studies.selection.selection_result import SelectOptions

    experiment = plan_of(*SKIP).experiment
    with fails("data.away=skip", "plan without --secure"):
        Plan.from_experiment(experiment, bounds={})
    with fails("data.away=skip", "plan a single run"):
        Plan.from_experiment(experiment, options=SelectOptions(points=3, folds=2, range=[0.1, 1.0]))


def test_a_plan_says_what_happens_without_an_answer():
    assert any("after 0.05 seconds is left out of that round, if 2 others answer" in line for line in
               plan_of(*SKIP).describe())  # fmt: skip
    assert "away" not in plan_of("algo=fedavg", "algo.client_lr=0.1").experiment.identity


@pytest.mark.slow
def test_a_site_goes_on_to_later_rounds_and_never_back(tmp_path):
    plan = plan_of(*SKIP, "rounds=6")
    sent = []
    run_without_b(plan, tmp_path / "out", lambda request: sent.append(request))
    rounds = [request for request in sent if request.name == "round"]
    site = sites_of(plan)["b"]
    for request in sent[: sent.index(rounds[0])]:
        site.answer(request)
    site.answer(rounds[3])
    for number in (2, 3):
        with fails(f"the server asked for round {number + 1}, and the next one of this site is 5"):
            site.answer(rounds[number])


# -- kills, and answers that come too late


class Killed(Exception):
    """The end of a process that is killed."""


def late_answer(path, message):
    """Write an answer that would change all later numbers, if the server read it."""
    request = Message.from_bytes(path.read_bytes(), "a test")
    arrays = {name: np.full_like(array, 7) for name, array in message.arrays.items()}
    path.with_name(path.name.replace("request", "b.answer")).write_bytes(
        replace(request, arrays=arrays, site="b").to_bytes()
    )


@pytest.mark.slow
def test_a_killed_server_leaves_out_the_same_sites_although_they_have_answered_since(tmp_path):
    """Site b misses rounds 2 and 3 in a folder; after each kill, valid answers of other numbers lie there, too late."""
    plan, shared = plan_of(*SKIP, "rounds=6"), tmp_path / "shared"
    expected, _ = run_without_b(plan, tmp_path / "expected", misses([1, 2]))
    sites = {name: DurableSite(site, tmp_path / name) for name, site in sites_of(plan).items()}
    waits, late = 0, set()

    def answer(waiting):
        nonlocal waits
        newest = max(shared.glob("*.request.npz"))
        request = Message.from_bytes(newest.read_bytes(), "a test")
        for path in shared.glob("*.away.json"):
            if path not in late and path != newest:
                late.add(path)
                request_path = path.with_name(path.name.replace(".away.json", ".request.npz"))
                answer_of_a = Message.from_bytes(
                    path.with_name(path.name.replace("away.json", "a.answer.npz")).read_bytes(), ""
                )
                late_answer(request_path, answer_of_a)
        for name, site in sites.items():
            if name == "b" and request.name == "round" and request.about["round"] in (1, 2):
                continue
            FolderSite(shared, name, site).answer_pending()
        waits += 1
        if waits % 4 == 0:
            raise Killed

    for _ in range(40):
        try:
            record = run_plan(plan, FolderConnections(shared, NAMES, plan.digest[:16], 30, answer), tmp_path / "out")
            break
        except Killed:
            continue
    assert waits > 8
    assert len(late) == 2
    assert [json.loads(path.read_text()) for path in sorted(late)] == [{"sites": ["b"]}] * 2
    for name, values in expected.solution.items():
        np.testing.assert_array_equal(record.solution[name], values)
    assert record.metrics.drop(columns="seconds").equals(expected.metrics.drop(columns="seconds"))
    assert record.summary["away"] == ["rounds 2-3 without site 'b'"]


@pytest.mark.slow
def test_a_journal_repeats_who_was_away(tmp_path):
    plan = plan_of(*SKIP, "rounds=6")
    expected, sites = run_without_b(plan, tmp_path / "expected", misses([1, 2]))

    class KilledAtTheEnd(InProcessConnections):
        def send(self, request):
            if request.name == "scores":
                raise Killed
            return super().send(request)

    sites = sites_of(plan)
    away = {**sites, "b": AwaySite(sites["b"], misses([1, 2]))}
    run_plan_in = tmp_path / "journal"
    with pytest.raises(Killed):
        run_plan(plan, JournaledConnections(KilledAtTheEnd(away), run_plan_in), tmp_path / "out")
    record = run_plan(plan, JournaledConnections(InProcessConnections(sites), run_plan_in), tmp_path / "out")
    for name, values in expected.solution.items():
        np.testing.assert_array_equal(record.solution[name], values)
    assert record.summary["away"] == ["rounds 2-3 without site 'b'"]


def test_too_few_answers_are_waited_for_and_end_with_the_names(tmp_path):
    connections = FolderConnections(tmp_path / "shared", NAMES, "a", 0.2)
    with pytest.raises(SiteLost, match=r"from 'a', 'b', 'c' within 0\.2 seconds"):
        connections.ask("round", away=AwayRule(0.05, 2))
    assert not list((tmp_path / "shared").glob("*.away.json"))


@pytest.mark.slow
def echo_request(path, sites):
    """Write the request of a file as the answer of sites."""
    request = Message.from_bytes(path.read_bytes(), "the server")
    for site in sites:
        content = replace(request, site=site).to_bytes()
        path.with_name(path.name.replace("request", f"{site}.answer")).write_bytes(content)


def test_a_site_that_stays_away_is_not_waited_for_again_until_it_shows_life(tmp_path):
    shared = tmp_path / "shared"

    def answer(waiting):
        echo_request(max(shared.glob("*.request.npz")), "ac")

    connections = FolderConnections(shared, NAMES, "a", 60, answer)
    assert set(connections.ask("round", about={"round": 0}, away=AwayRule(0.05, 2))) == {"a", "c"}
    started = time.monotonic()
    assert set(connections.ask("round", about={"round": 1}, away=AwayRule(30.0, 2))) == {"a", "c"}
    assert time.monotonic() - started < 15
    echo_request(shared / "0000-round.request.npz", "b")
    started = time.monotonic()
    assert set(connections.ask("round", about={"round": 2}, away=AwayRule(0.2, 2))) == {"a", "c"}
    assert time.monotonic() - started >= 0.2
    (shared / "0001-round.away.json").write_text("no list")
    again = FolderConnections(shared, NAMES, "a", 60, answer)
    again.ask("round", about={"round": 0}, away=AwayRule(0.05, 2))
    with fails("0001-round.away.json cannot be read"):
        again.ask("round", about={"round": 1}, away=AwayRule(0.05, 2))


def test_a_site_that_has_come_back_is_waited_for_again(tmp_path):
    shared = tmp_path / "shared"
    answering = ["a", "c"]

    def answer(waiting):
        echo_request(max(shared.glob("*.request.npz")), answering)

    connections = FolderConnections(shared, NAMES, "a", 60, answer)
    assert set(connections.ask("round", about={"round": 0}, away=AwayRule(0.05, 2))) == {"a", "c"}
    answering.append("b")  # in time for the next request, without a late answer to the first
    connections.on_wait = lambda waiting: answer(waiting) if "a" in waiting else None
    assert set(connections.ask("round", about={"round": 1}, away=AwayRule(30.0, 3))) == {"a", "b", "c"}
    answering.remove("b")
    started = time.monotonic()
    assert set(connections.ask("round", about={"round": 2}, away=AwayRule(0.2, 2))) == {"a", "c"}
    assert time.monotonic() - started >= 0.2


@pytest.mark.parametrize("content", ['{"sites": 3}', "[]", "no list", "[" * 100_000])
def test_a_damaged_list_of_sites_is_one_sentence(tmp_path, content):
    path = tmp_path / "0001-round.away.json"
    assert read_left_out(path) == []
    path.write_text(content)
    with fails("0001-round.away.json cannot be read", "restore the file"):
        read_left_out(path)


def test_a_site_computes_nothing_that_the_server_went_on_without(tmp_path):
    shared, answered = tmp_path / "shared", []
    connections = FolderConnections(shared, ["b"], "a", 0.0)
    for number in range(2):
        connections.next_number = number
        with pytest.raises(SiteLost):
            connections.ask("round", about={"round": number})
    (shared / "0000-round.away.json").write_text('{"sites": ["b"]}')

    class Echo:
        def answer(self, request):
            answered.append(request.about["round"])
            return request

    FolderSite(shared, "b", Echo()).answer_pending()
    assert answered == [1]
    assert number_request(Message("round"), "a", 0, ["b"]).envelope is not None


def test_stretches_of_absence_are_listed_as_text():
    absences = Absences({name: kind.absence for name, kind in list_kinds().items()})
    for number in range(1, 12):
        absences.note("round", number, NAMES, ["a", "c"] if number % 2 else NAMES)
    absences.note("evaluate", 10, NAMES, ["b"])
    assert absences.describe() == [
        "rounds 1, 3, 5, ... (away_sites.csv lists all) without site 'b'",
        "metrics after round 10 without the rows of site 'a'",
        "metrics after round 10 without the rows of site 'c'",
    ]
