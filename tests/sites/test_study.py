"""Studies over sites in this process: plans, answers, refusals, restarts."""

import hashlib
import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers import composed, fails

from fcorun.config import build
from fcorun.errors import UserError
from fcorun.experiment.prepare import prepare
from fcorun.sites.acceptance import accept, open_durable_site, open_log, open_site
from fcorun.sites.audit import AuditLog
from fcorun.sites.delivery import answer_bytes, number_request
from fcorun.sites.durable import DurableSite
from fcorun.sites.folder import FolderConnections, FolderSite
from fcorun.sites.in_process import InProcessConnections
from fcorun.sites.messages import Message
from fcorun.sites.plan import Plan, digest_of_text
from fcorun.sites.policy import Policy
from fcorun.sites.site import Site, round_down, round_up
from fcorun.sites.study import run_plan, try_plan
from fcorun.sites.table_options import SiteOptions

NAMES = ("a", "b", "c")


@pytest.fixture(autouse=True)
def tables(tmp_path, monkeypatch):
    """Write the tables of three sites, 60, 70 and 80 rows."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for name, n in zip(NAMES, (60, 70, 80), strict=True):
        frame = pd.DataFrame({"age": rng.normal(50, 10, n).round(1), "bmi": rng.normal(25, 4, n).round(2)})
        frame["ward"] = rng.choice(["x", "y", "z"], n)
        frame["cost"] = (0.3 * frame["age"] - frame["bmi"] + rng.normal(size=n)).round(3)
        frame.to_csv(f"{name}.csv", index=False)


def plan_of(*overrides) -> Plan:
    options = ("data=sites", "data.target=cost", "data.standardize=pooled", "precision=float64", "eval_every=2")
    algo = () if any("algo=" in text for text in overrides) else ("algo=scaffold", "algo.client_lr=0.1")
    return Plan.from_experiment(prepare(composed(*algo, "rounds=4", *options, *overrides)))


def sites_of(plan, policy=None):
    return {name: Site(plan, SiteOptions(f"{name}.csv"), policy or Policy()) for name in NAMES}


def test_a_trial_gives_a_record_and_the_weights_of_the_pooled_rows(tmp_path):
    plan = plan_of("rounds=8", "stop={val_loss: 30}")
    record, comparison = try_plan(plan, sites_of(plan), tmp_path / "out")
    assert record.status["status"] == "done"
    assert comparison.difference < 1e-14
    assert record.metrics["round"].tolist() == [0, 2, 4]
    assert record.summary["data"]["sites"] == ["a", "b", "c"]
    assert record.summary["data"]["validation_examples"] == 42
    assert record.scores["n"].tolist() == [168, 42]
    assert record.scores["loss"].iloc[0] == pytest.approx(record.metrics["train_loss"].iloc[-1], rel=1e-12)


def test_rates_that_are_auto_follow_from_rounded_bounds(tmp_path):
    plan = plan_of("algo=feddualavg")
    record, comparison = try_plan(plan, sites_of(plan), tmp_path / "out")
    assert record.summary["curvature"]["most"] == float(f"{record.summary['curvature']['most']:.2g}")
    assert comparison.difference < 1e-14


def test_a_plan_reads_as_it_was_written_and_its_digest_guards_it(tmp_path):
    plan, path = plan_of(), tmp_path / "study.yaml"
    path.write_text(plan.to_text())
    assert Plan.read(path).digest == plan.digest
    path.write_text(plan.to_text().replace("rounds: 4\n", "rounds: 5\n"))
    with fails("study.yaml", "was changed after it was made"):
        Plan.read(path)
    path.write_text(plan.to_text().replace("fcorun.algorithms.scaffold.Scaffold", "os.path.Evil"))
    with fails("algo.class=os.path.Evil", "no class of fcorun"):
        Plan.read(path)
    path.write_text(plan.to_text().replace(f"fcorun: {plan.fcorun}", "fcorun: 0.0.1"))
    with fails("was made by fcorun 0.0.1"):
        Plan.read(path)
    path.write_text("just text")
    with fails("is no plan of fcorun"):
        Plan.read(path)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("topology=tree", "topology.edges=2"), "give topology=star"),
        (("reference=true",), "reference=true"),
        (("data=lasso",), "give data=sites"),
        (("algo=pfedme",), "models of their own"),
        (("algo=centralized",), "choose an algorithm with rounds"),
        (("algo=local",), "trains no model that the sites share"),
        (("algo=fedavg", "algo.class=svrg.SVRG"), "algo.class=svrg.SVRG is no class of fcorun"),
    ],
)
def test_what_sites_cannot_compute_is_no_plan(overrides, words):
    if "data=lasso" in overrides:
        with fails(words):
            Plan.from_experiment(prepare(composed("algo=fedavg", *overrides)))
        return
    with fails(words):
        plan_of(*([] if "algo=" in overrides[0] else ["algo=feddualavg"]), *overrides)


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
    started = connections.by_name["a"]
    with fails("before the start of the run"):
        started.answer(Message("round", {"round": 4, "exchange": 0}))


def test_owners_accept_a_plan_before_their_sites_answer(tmp_path):
    plan = plan_of()
    with fails("has not accepted the plan"):
        open_site(tmp_path / "site", plan)
    accept(tmp_path / "site", plan, SiteOptions("a.csv"), Policy(min_rows=5))
    site = open_site(tmp_path / "site", plan)
    assert isinstance(site, Site)
    assert site.policy.min_rows == 5
    with fails("has not accepted the plan"):
        open_site(tmp_path / "site", plan_of("rounds=6"))


def test_the_log_has_a_line_for_all_that_was_sent(tmp_path):
    plan, shared = plan_of(), tmp_path / "shared"
    logs = {name: AuditLog(tmp_path / name / "sent.jsonl", plan.digest, contents=name == "a") for name in NAMES}

    def answer(waiting) -> None:
        for name, site in sites.items():
            FolderSite(shared, name, site, log=logs[name]).answer_pending()

    sites = {name: DurableSite(site, tmp_path / name) for name, site in sites_of(plan).items()}
    run_plan(plan, FolderConnections(shared, NAMES, "a", 30, answer), tmp_path / "out")
    lines = [json.loads(line) for line in logs["a"].path.read_text().splitlines()]
    frames = {path.name: path.read_bytes() for path in shared.glob("*.a.answer.npz")}
    assert [line["message"] for line in lines].count("round") == 4
    assert [line["sha256"] for line in lines] == [hashlib.sha256(frames[name]).hexdigest() for name in sorted(frames)]
    assert len({line["line_before"] for line in lines}) == len(lines)
    assert lines[-1]["plan"] == plan.digest[:16]
    assert "contents" not in logs["b"].path.read_text()
    last = max(shared.glob("*-end.request.npz")).read_bytes()
    request = Message.from_bytes(last, "the server")
    for content in (last, replace(request, name="round").to_bytes(), b"junk"):
        sent = answer_bytes(sites["a"], "a", content, logs["a"])
        line = json.loads(logs["a"].path.read_text().splitlines()[-1])
        assert line["sha256"] == hashlib.sha256(sent).hexdigest()
        assert line["message"] == ("end" if content == last else "refusal")


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

    def ask(self, name, arrays=None, about=None, of=None):
        if of is None or "a" in of:
            self.requests.append(Message(name, dict(about or {}), dict(arrays or {})))
        return super().ask(name, arrays, about, of)


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


def test_a_server_cannot_have_a_sum_over_one_row(tmp_path):
    """Numbers of rows are those that the site described, and a model has the shapes of the plan."""
    plan = plan_of("data.validation=0")
    requests = requests_of(plan, tmp_path / "out")
    load, own = requests["load"], requests["load"].about["all_clients"].index("a")
    for name in ("all_rows", "all_weights"):
        forged = load.arrays[name].copy()
        forged[own, 0] = 1
        with fails("other numbers of rows"):
            sites_of(plan)["a"].answer(Message("load", load.about, load.arrays | {name: forged}))
    site = sites_of(plan)["a"]
    for name in ("load", "start"):
        site.answer(requests[name])
    scores = requests["scores"]
    for forged in ({"bias": np.zeros(60)}, {"weights": scores.arrays["weights"][:, None]}, {"bias": np.array(np.nan)}):
        with fails("'scores' does not fit the plan"):
            site._counts.counts.clear()
            site.answer(Message("scores", {}, scores.arrays | forged))


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
        site._counts.counts.clear()
        with fails(words):
            site.answer(Message("start", start.about | forged))
    site._counts.counts.clear()
    site.answer(requests["load"])
    site.answer(start)
    for _ in range(3):
        site.answer(requests["evaluate"])
    with fails("more often than the plan says, 3 times"):
        site.answer(requests["evaluate"])
    for name in ("load", "start"):
        with fails("more often than the plan says, 1 times"):
            site.answer(requests[name])


def test_a_number_that_is_not_finite_names_its_site(tmp_path):
    plan = plan_of("algo=fedavg", "algo.client_lr=1e308")
    record = run_plan(plan, InProcessConnections(sites_of(plan)), tmp_path / "out")
    assert record.status["status"] == "diverged"
    assert "first in client of site 'a'" in record.status["reason"]


def test_rows_that_change_after_the_owners_yes_are_not_used(tmp_path, monkeypatch):
    plan, folder, original = plan_of(), tmp_path / "site", Path("a.csv").read_text()
    changed = "the data of this site have changed since its owner accepted the plan"
    accept(folder, plan, SiteOptions("a.csv"), Policy())
    request = number_request(Message("describe", {"plan": plan.digest}), "run", 0, ["a"])
    with closing(open_durable_site(folder, plan)) as site:
        site.answer(request)
    Path("a.csv").write_text(original.replace("x", "y"))
    with fails(changed, "fcorun site accept does that again"):
        open_durable_site(folder, plan)
    accept(folder, plan, SiteOptions("a.csv"), Policy())
    with fails("has answered a run from other data", "or remove"):
        open_durable_site(folder, plan)
    Path("a.csv").write_text(original)
    accept(folder, plan, SiteOptions("a.csv"), Policy(log_contents=True))  # a rule may change during a run
    with closing(open_durable_site(folder, plan)) as site:
        site.answer(request)
    assert open_log(folder, plan.digest).contents
    read = Site.read_table

    def change_file_then_read(self):
        Path("a.csv").write_text(original.replace("x", "y"))
        read(self)

    monkeypatch.setattr(Site, "read_table", change_file_then_read)
    with fails(changed):
        open_site(folder, plan)
    Path("a.csv").unlink()
    with fails("see that data.path is there"):
        open_site(folder, plan)


class Killed(Exception):
    """The end of a process that is killed."""


def test_killed_sites_and_servers_go_on_to_the_same_bits(tmp_path):
    """Sites answer from a folder; every party is replaced by a new one from its files after each few requests."""
    plan, shared = plan_of(), tmp_path / "shared"
    whole = run_plan(plan, InProcessConnections(sites_of(plan)), tmp_path / "whole")
    for name in NAMES:
        accept(tmp_path / name, plan, SiteOptions(f"{name}.csv"), Policy())
    killed = 0

    def answer_as_new_processes(waiting) -> None:
        nonlocal killed
        for name in NAMES:
            site = DurableSite(open_site(tmp_path / name, plan), tmp_path / name / "state")
            FolderSite(shared, name, site).answer_pending()
            site.close()
        killed += 1
        if killed % 3 == 0:
            raise Killed

    for _ in range(40):
        try:
            connections = FolderConnections(shared, NAMES, plan.digest[:16], 30, answer_as_new_processes)
            record = run_plan(plan, connections, tmp_path / "record")
            break
        except Killed:
            continue
    assert killed > 10
    for name, values in whole.solution.items():
        np.testing.assert_array_equal(record.solution[name], values)
    assert record.metrics.drop(columns="seconds").equals(whole.metrics.drop(columns="seconds"))


@pytest.mark.parametrize("value", [1.0, 1.234e-5, 99.0, 99.5, 1e10, 0.0])
def test_bounds_are_rounded_outwards_to_two_digits(value):
    assert value <= round_up(value) <= value * 1.1 + 1e-300
    assert value >= round_down(value) >= value * 0.9 - 1e-300
    assert round_up(value) == float(f"{round_up(value):.2g}")


def test_the_same_command_again_asks_no_round_and_changes_nothing(tmp_path):
    plan, shared = plan_of(), tmp_path / "shared"
    sites = {name: DurableSite(site, tmp_path / name) for name, site in sites_of(plan).items()}

    def answer(waiting) -> None:
        for name, site in sites.items():
            FolderSite(shared, name, site).answer_pending()

    metrics = []
    for _ in range(2):
        record = run_plan(plan, FolderConnections(shared, NAMES, "a", 30, answer), tmp_path / "record")
        metrics.append((tmp_path / "record" / "metrics.csv").read_bytes())
    assert metrics[0] == metrics[1]
    assert record.finished
    try_plan(plan, sites_of(plan), tmp_path / "trial")
    with fails("holds this trial already"):
        try_plan(plan, sites_of(plan), tmp_path / "trial")


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


def test_a_site_refuses_damaged_requests_in_a_sentence(tmp_path):
    """A thousand requests of a run, each with something left out, replaced or reshaped."""
    plan, rng = plan_of(), np.random.default_rng(0)
    connections = RecordingConnections(sites_of(plan))
    run_plan(plan, connections, tmp_path / "out")
    requests = [request for request in connections.requests if request.name != "end"]
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
        site._counts.counts.clear()
        try:
            site.answer(Message(request.name, about, arrays))
        except UserError as error:
            sentences.append(str(error))
    assert len(sentences) > 700
    assert not any("\n" in sentence for sentence in sentences)


def test_a_kill_after_the_record_and_before_the_end_lets_the_same_command_end_the_run(tmp_path):
    plan, shared = plan_of(), tmp_path / "shared"
    sites = {name: DurableSite(site, tmp_path / name) for name, site in sites_of(plan).items()}
    asked = []

    class KilledAtEnd(FolderConnections):
        def ask(self, name, *arguments, **options):
            asked.append(name)
            if name == "end" and asked.count("end") == 1:
                raise Killed
            return super().ask(name, *arguments, **options)

    def answer(waiting) -> None:
        for name, site in sites.items():
            FolderSite(shared, name, site).answer_pending()

    def command():
        return run_plan(plan, KilledAtEnd(shared, NAMES, "a", 30, answer), tmp_path / "record")

    with pytest.raises(Killed):
        command()
    metrics = (tmp_path / "record" / "metrics.csv").read_bytes()
    assert command().finished
    assert len(list(shared.glob("*-end.*.answer.npz"))) == len(NAMES)
    assert (tmp_path / "record" / "metrics.csv").read_bytes() == metrics
    command()
    assert asked.count("end") == 2


def test_a_plan_that_the_owner_has_not_accepted_is_not_built(tmp_path):
    plan = plan_of()
    text = plan.to_text()
    assert digest_of_text(text, "a job") == plan.digest
    foreign = text.replace("fcorun.algorithms.scaffold.Scaffold", "os.path.Evil")
    assert digest_of_text(foreign, "a job") != plan.digest
    with fails("a job is no plan of fcorun"):
        digest_of_text("just text", "a job")
    with fails("classes"):
        build(Policy, {"classes": ["os.path.Evil"]}, "policy.")
