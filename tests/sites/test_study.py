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
from three_sites import NAMES, plan_of, sites_of, write_tables

from fcorun.base.config import build
from fcorun.experiment.prepare import prepare
from fcorun.methods.problem.curvature import curvature_bounds
from fcorun.sites.plan.messages.certificate_messages import round_down, round_up
from fcorun.sites.plan.plan import FORMAT, Plan, digest_of_text
from fcorun.sites.plan.policy import Policy
from fcorun.sites.plan.site_options import SiteOptions
from fcorun.sites.server.server import Server
from fcorun.sites.server.site_study import check_messages_of_record, run_plan
from fcorun.sites.server.trial import Comparison, pool_rows, relative_difference, try_plan
from fcorun.sites.site.acceptance import accept, open_durable_site, open_log, open_site
from fcorun.sites.site.site import Site
from fcorun.sites.transport.connections import InProcessConnections
from fcorun.sites.transport.delivery import AuditLog, answer_bytes
from fcorun.sites.transport.durable import DurableSite
from fcorun.sites.transport.folder import FolderConnections, FolderSite
from fcorun.sites.transport.messages import Message, SiteLost, number_request


@pytest.fixture(autouse=True)
def tables(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_tables()


@pytest.mark.slow
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


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("pooled", "of_sites", "difference", "sentence"),
    [
        ([0, 0], [0, 0.5], 1, "equal but for 1 of the largest coefficient"),
        ([0, 0], [0, 0], 0, "equal but for 0 of the largest coefficient"),
        ([2, -4], [2, -3], 0.25, "equal but for 0.2 of the largest coefficient"),
        ([2, 1], [np.nan, 1], np.nan, "not comparable, since a coefficient is not finite"),
        ([2, np.inf], [2, 1], np.nan, "not comparable, since a coefficient is not finite"),
    ],
)
def test_a_comparison_is_relative_to_the_largest_parameter(dtype, pooled, of_sites, difference, sentence):
    found = relative_difference(np.array(pooled, dtype), np.array(of_sites, dtype))
    np.testing.assert_equal(found, difference)
    assert Comparison(False, found, {}).describe()[0].endswith(f": {sentence}")


@pytest.mark.slow
def test_rates_that_are_auto_follow_from_rounded_bounds(tmp_path):
    plan = plan_of("algo=feddualavg")
    sites = sites_of(plan)
    record, comparison = try_plan(plan, sites, tmp_path / "out")
    pooled = pool_rows([site.own_data for site in sites.values()], next(iter(sites.values())).data.clients)
    least, most = curvature_bounds(plan.experiment.objective, pooled)
    bounds = record.summary["curvature"]
    assert (bounds["least"], bounds["most"]) == (round_down(least), round_up(most))
    assert comparison.difference < 1e-14


def test_a_plan_reads_as_it_was_written_and_its_digest_guards_it(tmp_path):
    plan, path = plan_of(), tmp_path / "study.yaml"
    path.write_text(plan.to_text())
    assert Plan.read(path).digest == plan.digest
    path.write_text(plan.to_text().replace("rounds: 4\n", "rounds: 5\n"))
    with fails(
        f"made by another version of fcorun, in format 1, and this one reads format {FORMAT}", "need the same version"
    ):
        Plan.from_text(plan.to_text().replace(f"format: {FORMAT}", "format: 1"), "study.yaml")
    with fails("study.yaml is no plan of fcorun"):
        Plan.from_text(plan.to_text().replace(f"format: {FORMAT}\n", ""), "study.yaml")
    with fails("clients_at_once=8", "leave it out"):
        plan_of("clients_at_once=8")
    with fails("study.yaml", "was changed after it was made"):
        Plan.read(path)
    path.write_text(plan.to_text().replace("fcorun.Scaffold", "os.path.Evil"))
    with fails("algo.class=os.path.Evil", "no class of fcorun"):
        Plan.read(path)
    path.write_text(plan.to_text().replace(f"fcorun: {plan.fcorun}", "fcorun: 0.0.1"))
    with fails("was made by fcorun 0.0.1"):
        Plan.read(path)
    path.write_text(plan.to_text().replace("rounds: 4\n", "rounds: {a: 5}\n"))
    with fails("study.yaml", "was changed after it was made"):  # before anything is built
        Plan.read(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"just text", "holds no mapping of keys to values"),
        (b"format: 2\n\tfcorun: 0.1.0", "line 2: found a tab character"),
        (b"format: 2\nfcorun: a: b", "line 2: mapping values are not allowed"),
        (b"format: 2\nfcorun: !!python/name:os.system", "line 2: the tag"),
        (b"format: &a 2\nfcorun: *a", "line 2: the alias *a"),
        (b"format: 2\nfcorun: 2024-01-01", "line 2: '2024-01-01' is no text, number"),
        (b"format: 2\nfcorun: \x07", "line 2: the text is not UTF-8, or has a control character"),
        (b"\xff\xfe\x00\x80", "no text in UTF-8"),
        (b"#" * (2**24 + 1), "more than the 16,777,216 characters"),
    ],
)
def test_what_is_no_plan_is_one_sentence(tmp_path, content, words):
    path = tmp_path / "study.yaml"
    path.write_bytes(content)
    with fails("study.yaml is no plan of fcorun", words, "fcorun plan ... --out FILE makes one"):
        Plan.read(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"- min_rows", "rules.yaml holds no mapping of keys to values: give a line KEY: VALUE for each rule"),
        (b"min_rows: 3\n\tmin_cell: 4", "rules.yaml, line 2: found a tab character"),
        (b"min_rows: 3\nmin_rows: 4", "rules.yaml, line 2: the key 'min_rows' is given twice"),
        (b"min_rows: &a 3\nmin_cell: *a", "rules.yaml, line 2: the alias *a"),
        (b"\nmin_rows: !own 3", "rules.yaml, line 2: the tag !own is not read"),
        (b"columns: !!binary aGVsbG8=", "rules.yaml, line 1: 'aGVsbG8=' is no text, number, true, false or null"),
        (b"min_rows: 3\n\x00", "rules.yaml, line 2: the text is not UTF-8"),
        (b"#" * (2**24 + 1), "more than the 16,777,216 that are read"),
        (b"min_row: 3", "did you mean 'min_rows'?"),
        (b"min_rows: many", "policy.min_rows=many must be a whole number"),
        (b"min_rows: " + b"9" * 2000, "is larger than any floating-point number"),
        (b"columns: age", "policy.columns=age must be a list: give policy.columns=[age]"),
        (b"alone: no", "policy.alone=False is not a choice: (valid: allow, refuse)"),
    ],
)
def test_what_is_no_policy_is_one_sentence(tmp_path, content, words):
    path = tmp_path / "rules.yaml"
    path.write_bytes(content)
    with fails("policy", words):
        Policy.read(path)


def test_a_policy_that_is_missing_is_one_sentence(tmp_path):
    with fails("rules.yaml cannot be read (No such file or directory): give a YAML file of the rules to change"):
        Policy.read(tmp_path / "rules.yaml")


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("topology=tree", "topology.edges=2"), "give topology=star"),
        (("clients_per_round=poisson:0.5",), "cohorts of a fixed size"),
        (("clients_per_round=cyclic:0.5",), "cohorts of a fixed size"),
        (("algo=tamuna",), "places of clients, which sites do not know"),
        (("reference=true", "reg=none"), "reference=true"),
        (("threshold=0.3",), "divides two classes by their probabilities"),
        (("threshold=youden", "data.task=binary", "data.positive=1", "data.validation=0"), "none are held out"),
        (("data=lasso",), "give data=sites"),
        (("algo=centralized",), "choose an algorithm with rounds"),
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


def test_owners_accept_a_plan_before_their_sites_answer(tmp_path, monkeypatch):
    plan = plan_of()
    with fails("has not accepted the plan"):
        open_site(tmp_path / "site", plan)
    monkeypatch.setenv("HOME", str(Path().resolve()))
    accept(tmp_path / "site", plan, SiteOptions("~/a.csv"), Policy(min_rows=5))
    site = open_site(tmp_path / "site", plan)
    assert isinstance(site, Site)
    assert site.policy.min_rows == 5
    with fails("has not accepted the plan"):
        open_site(tmp_path / "site", plan_of("rounds=6"))


@pytest.mark.slow
def test_labels_that_were_corrected_make_another_run():
    plan = plan_of("algo=fedavg", "algo.client_lr=0.1", "data.target=ward", "data.task=multiclass", "data.validation=0")
    _, digest = Server(plan, InProcessConnections(sites_of(plan))).load()
    assert Server(plan, InProcessConnections(sites_of(plan))).load()[1] == digest
    frame = pd.read_csv("a.csv")
    frame.loc[frame["ward"].eq("x").idxmax(), "ward"] = "y"
    frame.to_csv("a.csv", index=False)
    assert Server(plan, InProcessConnections(sites_of(plan))).load()[1] != digest


def test_a_finished_record_is_no_result_of_messages_in_another_folder(tmp_path):
    plan, out = plan_of(), tmp_path / "out"
    connections = FolderConnections(tmp_path / "shared", NAMES, plan.digest[:16], 0.0)
    out.mkdir()
    (out / "status.json").write_text('{"status": "running"}')
    check_messages_of_record(plan, out, connections)
    (out / "status.json").write_text('{"status": "done"}')
    for name in ("describe", "end"):  # killed before the end of the run, and after
        with fails(f"out={out} holds the finished run of this plan", "seed=NUMBER", "another out="):
            check_messages_of_record(plan, out, connections)
        with pytest.raises(SiteLost):
            connections.ask(name)
        check_messages_of_record(plan, out, connections)
        (out / "sites_ended").touch()
        connections.next_number += 1


@pytest.mark.slow
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
        sent = answer_bytes(sites["a"].answer, "a", content, logs["a"])
        line = json.loads(logs["a"].path.read_text().splitlines()[-1])
        assert line["sha256"] == hashlib.sha256(sent).hexdigest()
        assert line["message"] == ("end" if content == last else "refusal")


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


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_same_command_again_asks_no_round_and_changes_nothing(tmp_path):
    plan, shared = plan_of(), tmp_path / "shared"
    sites = {name: DurableSite(site, tmp_path / name) for name, site in sites_of(plan).items()}

    def answer(waiting) -> None:
        for name, site in sites.items():
            FolderSite(shared, name, site).answer_pending()

    class Noted(FolderConnections):
        def send(self, request):
            asked_by_command[-1].append(request.name)
            return super().send(request)

    metrics, asked_by_command = [], []
    for _ in range(2):
        asked_by_command.append([])
        connections = Noted(shared, NAMES, plan.digest[:16], 30, answer)
        record = run_plan(plan, connections, tmp_path / "record")
        metrics.append((tmp_path / "record" / "metrics.csv").read_bytes())
    assert metrics[0] == metrics[1]
    assert asked_by_command[0].count("round") == plan.experiment.settings.rounds
    assert not {"round", "end"} & set(asked_by_command[1])
    assert record.finished
    _, comparison = try_plan(plan, sites_of(plan), tmp_path / "trial")
    assert comparison.bytes_sent["a"] == sum(path.stat().st_size for path in shared.glob("*.a.answer.npz"))
    with fails("holds this trial already"):
        try_plan(plan, sites_of(plan), tmp_path / "trial")
    asked = []

    class Connections(InProcessConnections):
        def send(self, request):
            asked.append(request.name)
            return super().send(request)

    (tmp_path / "record" / "sites_ended").unlink()  # as in the record of a run on pooled rows
    other = plan_of("seed=1")
    with fails("holds another run", "choose another folder"):
        run_plan(other, Connections(sites_of(other)), tmp_path / "record")
    assert "round" not in asked


@pytest.mark.slow
def test_a_kill_after_the_record_and_before_the_end_lets_the_same_command_end_the_run(tmp_path):
    plan, shared = plan_of(), tmp_path / "shared"
    sites = {name: DurableSite(site, tmp_path / name) for name, site in sites_of(plan).items()}
    asked = []

    class KilledAtEnd(FolderConnections):
        def send(self, request):
            asked.append(request.name)
            if request.name == "end" and asked.count("end") == 1:
                raise Killed
            return super().send(request)

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


@pytest.mark.slow
def test_a_trial_that_was_killed_before_its_comparison_is_compared_by_the_same_command(tmp_path, monkeypatch):
    def kill(*_):
        raise Killed

    plan = plan_of()
    with monkeypatch.context() as patch:
        patch.setattr("fcorun.sites.server.trial.compare_intervals", kill)
        with pytest.raises(Killed):
            try_plan(plan, sites_of(plan), tmp_path)
    metrics = (tmp_path / "metrics.csv").read_bytes()
    _, comparison = try_plan(plan, sites_of(plan), tmp_path)
    assert comparison.difference < 1e-14
    assert (tmp_path / "metrics.csv").read_bytes() == metrics
    with fails("holds this trial already"):
        try_plan(plan, sites_of(plan), tmp_path)


def test_a_plan_that_the_owner_has_not_accepted_is_not_built(tmp_path):
    plan = plan_of()
    text = plan.to_text()
    assert digest_of_text(text, "a job") == plan.digest
    foreign = text.replace("fcorun.Scaffold", "os.path.Evil")
    assert digest_of_text(foreign, "a job") != plan.digest
    with fails("a job is no plan of fcorun"):
        digest_of_text("just text", "a job")
    with fails("classes"):
        build(Policy, {"classes": ["os.path.Evil"]}, "policy.")
