"""Secure sums: the server sees sums over all sites, equal to the plain ones, and no site's numbers."""

import errno
import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from command import fcorun
from helpers import composed, fails

from fcorun.base.errors import WriteError
from fcorun.data.datasets.sites import Sites
from fcorun.experiment.prepare import prepare
from fcorun.sites.plan.plan import Plan, digest_of_text
from fcorun.sites.plan.policy import Policy
from fcorun.sites.plan.secure_sums import check_bounds, read_bounds, step_of
from fcorun.sites.plan.site_options import SiteOptions
from fcorun.sites.server.server import Server, _check_splits
from fcorun.sites.server.trial import mask_sites, try_plan
from fcorun.sites.site.acceptance import open_site
from fcorun.sites.site.masking import (
    MaskedConnections,
    MaskedSite,
    _add_answers,
    fingerprint_of,
    make_key,
    open_key,
    public_key_of,
)
from fcorun.sites.site.site import Site
from fcorun.sites.transport.connections import InProcessConnections
from fcorun.sites.transport.durable import DurableSite
from fcorun.sites.transport.messages import Message, number_request

__all__ = ["fcorun"]  # a fixture
BOUND = 100.0
BOUNDS = {"evaluate": BOUND, "derivatives": BOUND}


class NumberSite:
    """A site whose answer is its numbers times the server's factor, and a count."""

    def __init__(self, values):
        self.plan, self.policy = SimpleNamespace(secure=BOUNDS), Policy()
        self.batch = SimpleNamespace(share=1.0)
        self.values = values

    def compute_answer(self, request):
        if request.name == "describe":
            return Message("describe", {}, {"values": self.values})
        if request.name == "end":
            return Message("end")
        arrays = {"loss": self.values * request.about["factor"], "n": np.asarray(len(self.values))}
        return Message(request.name, {}, arrays)

    def save_state(self):
        return {"values": self.values}

    def load_state(self, arrays):
        self.values = arrays.get("values", self.values)


def number_sites(n_sites=3, length=5) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    sites: Any = {f"s{k}": NumberSite(rng.normal(size=length)) for k in range(n_sites)}
    return mask_sites(sites)


def connect(sites) -> Any:
    return MaskedConnections(InProcessConnections(sites), BOUNDS)


@pytest.mark.parametrize("n_sites", [3, 4])
def test_the_sum_of_masked_answers_is_the_plain_sum_to_half_a_step_a_site(n_sites):
    sites = number_sites(n_sites)
    connections = connect(sites)
    for factor in (1.0, 0.37):
        (answer,) = connections.ask("evaluate", about={"factor": factor}).values()
        plain = sum(site.site.values * factor for site in sites.values())
        assert np.abs(answer.arrays["loss"] - plain).max() <= n_sites * step_of(BOUND) / 2 + 1e-15
        assert (answer.arrays["n"], answer.arrays["n"].dtype) == (5 * n_sites, np.int64)
    assert len(connections.ask("describe")) == n_sites


def test_a_masked_answer_looks_random_and_hides_every_number():
    sites = number_sites(length=4096)
    connections = connect(sites)
    sent, answer_of = [], sites["s0"].answer
    sites["s0"].answer = lambda request: sent.append(answer_of(request)) or sent[-1]
    for _ in range(2):  # the same request again has other masks
        connections.ask("evaluate", about={"factor": 1.0})
    site = sites["s0"].site
    first, second = (answer.arrays["loss"] for answer in sent)
    plain = np.rint(site.values / step_of(BOUND)).astype(np.int64).view(np.uint64)
    for hidden in (first, second, first - second):
        bits = np.unpackbits(hidden.view(np.uint8).reshape(4096, 8), axis=1)
        assert np.abs(bits.mean(axis=0) - 0.5).max() < 0.06  # more than seven standard deviations
        assert (hidden != plain).all()
    assert sent[-1].arrays["n"] != 4096


def test_numbers_beyond_the_bound_and_numbers_that_are_not_finite_are_refused():
    connections = connect(number_sites())
    with fails("site 's0'", "beyond the plan's bound 100", "--bound evaluate="):
        connections.ask("evaluate", about={"factor": 1e6})
    with fails("site 's0'", "beyond the bound of the plan or not finite, or few rows"):  # whatever the reason was
        connections.ask("evaluate", about={"factor": 1.0})  # no search for the factor that passes the bound
    for factor in (1e306, 1e-300):
        connections = connect(sites := number_sites())
        sites["s0"].site.values[2] = np.nan if factor < 1 else 1e9
        with np.errstate(over="ignore"), fails("site 's0'", "is not finite"):
            connections.ask("evaluate", about={"factor": factor})


def test_a_site_withholds_sums_for_intervals_and_the_run_goes_on_to_its_end():
    connections = connect(sites := number_sites())
    values, plain = sites["s0"].site.values, connections.connections
    sites["s0"].site.values = np.full(5, np.nan)
    (total,) = connections.ask("derivatives", about={"factor": 1.0}).values()
    assert np.isnan(total.arrays["loss"]).all()
    sent = plain.ask("derivatives", about={"factor": 1.0})
    others = sum(sent[name].arrays["loss"].view(np.int64) for name in ("s0", "s1", "s2")) * step_of(BOUND)
    assert (np.abs(others) > 3 * BOUND).any()  # the sum over the other sites is hidden, too
    sites["s0"].site.values = values
    (total,) = connections.ask("derivatives", about={"factor": 1.0}).values()
    assert total.arrays["loss"].sum() == pytest.approx(sum(site.site.values.sum() for site in sites.values()))
    with fails("site 's0': this site does not mask its numbers for 'derivatives'", "--bound derivatives="):
        connections.ask("derivatives", about={"factor": 1e6})
    assert len(connections.ask("end")) == 3
    with fails("beyond the bound of the plan"):
        connections.ask("derivatives", about={"factor": 1.0})
    with fails("site 's0' sent no masked numbers"):
        _add_answers({"s0": replace(sent["s0"], name="evaluate")}, BOUND)


def test_two_sites_and_a_subset_of_sites_are_refused():
    with fails("at least 3 sites", "there are 2", "--secure"):
        connect(number_sites(2))
    sites = number_sites(2)
    plain = InProcessConnections(sites)
    keys = {site: answer.about for site, answer in plain.ask("keys").items()}
    with fails("asks 2 sites"):  # a server that does not check
        plain.ask("keys", about=keys)
    sites = number_sites()
    connections = connect(sites)
    with fails("the server asks some of the sites"):
        connections.connections.ask("evaluate", about={"factor": 1.0}, of=["s0", "s1"])
    with fails("before all sites have keys"):
        InProcessConnections(number_sites()).ask("evaluate", about={"factor": 1.0})
    with fails("the server's request has no number"):
        sites["s0"].answer(Message("evaluate", {"factor": 1.0}))


def exchange_with(sites, change):
    """Exchange keys, after a server has changed them."""
    connections = InProcessConnections(sites)
    keys = {site: answer.about for site, answer in connections.ask("keys").items()}
    connections.ask("keys", about=change(keys))
    return connections


def test_changed_keys_are_refused():
    foreign = {"key": public_key_of(make_key()), "number": "0" * 32}
    with fails("site 's0'", "the key of site 's1' has the fingerprint", "compare"):
        exchange_with(number_sites(), lambda keys: keys | {"s1": foreign})
    with fails("site 's0'", "lack the one of this site"):
        exchange_with(number_sites(), lambda keys: keys | {"s0": foreign})
    with fails("site 's0'", "not those of the sites that it asks"):
        exchange_with(number_sites(), lambda keys: keys | {"s3": foreign})
    with fails("invalid keys of sites"):
        exchange_with(number_sites(), lambda keys: keys | {"s1": {"key": "00", "number": 1}})
    connections = exchange_with(number_sites(), lambda keys: keys)
    with fails("sends keys again"):
        connections.ask("keys")


def test_owners_enter_the_fingerprints_of_all_others():
    sites = number_sites()
    sites["s0"].fingerprints = {}
    with fails("site 's0'", "no fingerprint of site 's1'"):
        connect(sites)
    sites = number_sites(4)
    del sites["s3"]
    with fails("leaves out site 's3'"):
        connect(sites)


def test_masks_that_do_not_cancel_are_noticed():
    """A server that shows its sites different requests gets noise."""
    connections = connect(number_sites())
    plain = connections.connections
    plain.ask("evaluate", about={"factor": 1.0})
    plain.site_by_name["s0"]._transcript = "another"
    with fails("the masks of the sites do not cancel"):
        connections.ask("evaluate", about={"factor": 1.0})


def test_a_killed_site_gives_the_same_bytes_and_no_answer_to_another_request(tmp_path):
    sites = number_sites()
    kept = {name: (site.site.values, site.key, site.fingerprints) for name, site in sites.items()}

    def open_all():
        opened = {}
        for name, (values, key, fingerprints) in kept.items():
            site: Any = NumberSite(values)
            opened[name] = DurableSite(MaskedSite(site, key, fingerprints), tmp_path / name)
        return opened

    durable = open_all()
    connections = connect(durable)
    request = number_request(Message("evaluate", {"factor": 1.0}), "trial", 2, durable)
    before = durable["s0"].answer(request).to_bytes()
    (total,) = connections.ask("evaluate", about={"factor": 1.0}).values()
    for site in durable.values():
        site.close()
    durable = open_all()
    assert durable["s0"].answer(request).to_bytes() == before
    with fails("each request is answered once"):
        durable["s0"].answer(number_request(Message("evaluate", {"factor": 2.0}), "trial", 2, durable))
    connections.connections.site_by_name = durable
    (later,) = connections.ask("evaluate", about={"factor": 2.0}).values()
    np.testing.assert_allclose(later.arrays["loss"], 2 * total.arrays["loss"], atol=1e-12)
    for site in durable.values():
        site.close()


# -- studies

SHARED = ("data=sites", "data.target=cost", "data.standardize=pooled", "precision=float64")


def test_a_full_disk_leaves_no_file_without_a_key(tmp_path, monkeypatch):
    def fail(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", fail)
        with pytest.raises(WriteError, match="No space left"):
            open_key(tmp_path)
    key = public_key_of(open_key(tmp_path))
    assert key == public_key_of(open_key(tmp_path))


@pytest.fixture
def names(tmp_path, monkeypatch):
    """Write the tables of four sites, and return the names of the sites."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    names = ("a", "b", "c", "d")
    for name, n in zip(names, (60, 70, 80, 90), strict=True):
        frame = pd.DataFrame({"age": rng.normal(50, 10, n), "bmi": rng.normal(25, 4, n)})
        frame["cost"] = 0.3 * frame["age"] - frame["bmi"] + rng.normal(size=n)
        frame.to_csv(f"{name}.csv", index=False)
    return names


def plan_of(*overrides, bounds=None) -> Plan:
    return Plan.from_experiment(prepare(composed(*SHARED, *overrides)), bounds)


def sites_of(plan, names):
    return {name: Site(plan, SiteOptions(f"{name}.csv")) for name in names}


@pytest.mark.slow
@pytest.mark.parametrize(("algo", "n_sites"), [("feddualavg", 4), ("newton", 3)])
def test_a_run_with_masks_is_the_run_on_pooled_rows_but_for_rounding(names, algo, n_sites):
    plan = plan_of(f"algo={algo}", "rounds=3", "eval_every=3", "gap=true", bounds={"round": 1e4})
    record, comparison = try_plan(plan, sites_of(plan, names[:n_sites]), "out")
    assert 0 < comparison.difference < 1e-10
    assert {"residuals", "conjugates"} < set(plan.secure or ())
    assert algo != "newton" or abs(record.metrics["gap"].iloc[-1]) < 1e-8
    assert record.scores["loss"].iloc[0] == pytest.approx(record.metrics["train_loss"].iloc[-1], rel=1e-8)


def rebuild_gram(answers):
    """Return X'X as it follows from the uploads of a site after a step of size 1/2 from 0 and from unit vectors."""
    at_zero, *at_units = (np.concatenate([answer["0"].ravel(), answer["1"].ravel()]) for answer in answers)
    return np.stack([at_zero - at_unit for at_unit in at_units])


@pytest.mark.slow
def test_masks_keep_a_server_from_rebuilding_the_products_of_features(names):
    """The gradients of least squares at d + 1 points give X'X of a site away; masked ones do not."""
    options = ("algo=fedavg", "algo.client_lr=0.5", "algo.server_lr=1", "local_steps=1", "reg=none", "rounds=4")
    rebuilt = {}
    for bounds in (None, {}):
        plan = plan_of(*options, bounds=bounds)
        sites = sites_of(plan, names[:3])
        plain = InProcessConnections(sites if plan.secure is None else mask_sites(sites))
        connections = plain if plan.secure is None else MaskedConnections(plain, plan.secure)
        Server(plan, connections).load()
        plain.ask("start", about={"numbers": [plan.experiment.numbers()], "seed": 0, "curvature": {}})
        answers = []
        for number, point in enumerate((np.zeros((1, 3)), *np.eye(3)[:, None])):
            received = {"0": point[:, :2], "1": point[:, 2]}
            arrays = plain.ask("round", received, {"round": number, "exchange": 0})["a"].arrays
            if plan.secure is not None:
                arrays = {name: array.view(np.int64) * step_of(plan.secure["round"]) for name, array in arrays.items()}
            answers.append(arrays)
        rebuilt[plan.secure is not None] = rebuild_gram(answers)
        x = sites["a"].own_data.train.x
    with_ones = np.column_stack([x, np.ones(len(x))])
    gram = with_ones.T @ with_ones / len(x)
    np.testing.assert_allclose(rebuilt[False], gram, atol=1e-12)
    assert np.median(np.abs(rebuilt[True])) > 1e3 * np.abs(gram).max()  # noise as large as fixed point can be


def test_a_secure_plan_says_what_is_masked_and_is_guarded_by_its_digest(names, tmp_path):
    plan, plain = plan_of("algo=fedavg", bounds={"round": 1e4}), plan_of("algo=fedavg")
    path = tmp_path / "study.yaml"
    path.write_text(plan.to_text())
    read = Plan.read(path)
    assert (read.digest, read.secure) == (plan.digest, plan.secure)
    assert plan.secure is not None
    assert plan.secure["round"] == 1e4
    assert plan.digest != plain.digest
    for quantity in plan.quantities:
        is_masked = quantity.message in ("sums", "round", "evaluate", "scores", "calibration")
        assert ("; masked: the server sees the sum" in quantity.content) == is_masked
        assert ("; not masked: the server sees the numbers of each site" in quantity.content) == (not is_masked)
    path.write_text(plan.to_text().replace("round: 10000.0", "round: 1000.0"))
    with fails("was changed after it was made"):
        Plan.read(path)
    for text, words in (
        ("round: true", "the bound of 'round' is True"),
        ("round: .nan", "the bound of 'round' is nan"),
    ):
        path.write_text(plan.to_text().replace("round: 10000.0", text))
        with fails("is no plan of fcorun", words):
            Plan.read(path)
    with fails("clients_per_round=2 asks some of the sites"):
        plan_of("algo=fedavg", "clients_per_round=2", bounds={})
    with fails("masks no message 'rounds'", "round"):
        plan_of("algo=fedavg", bounds={"rounds": 1.0})


def test_a_bound_is_a_number_of_a_moderate_size_and_is_given_once():
    assert read_bounds(["round=1e5", "sums=2"]) == {"round": 1e5, "sums": 2.0}
    with fails("--bound round=2: the bound of 'round' is given twice"):
        read_bounds(["round=1", "round=2"])
    for bound in (1e300, 0.0):
        with fails("the bound of 'round' is", "give a number between 1e-15 and 1e60, --bound round=1e6"):
            check_bounds({"round": bound})
    assert check_bounds({"round": 1e-15, "sums": 1e60}) == {"round": 1e-15, "sums": 1e60}


def test_every_site_needs_rows_of_every_split(names):
    plan = plan_of("algo=fedavg", "data.validation=[a]", bounds={})
    with fails("site 'a' has no train rows", "hold out a fraction"):
        try_plan(plan, sites_of(plan, names[:3]), "out")


@pytest.mark.parametrize(
    ("n_rows", "split", "words"),
    [
        ([0, 0, 9], None, "no train rows, and sums: hold out a fraction of the rows instead of whole clients"),
        ([9, 0, 9], None, "no validation rows, and sums: hold out a fraction of the rows, data.validation=0.2"),
        ([9, 9, 0], None, "no test rows, and sums: hold out a fraction of the rows, data.test=0.2"),
        ([9, 9, 0], "part", "no test rows, and sums: mark some of its rows so in the column of data.split=part"),
    ],
)
def test_the_advice_is_about_the_split_without_rows(n_rows, split, words):
    rows = SimpleNamespace(n_rows=np.array([[9, 9, 9], n_rows]))
    tables: Any = SimpleNamespace(site_of_client=("a", "b"), agreement=rows)
    with fails(f"site 'b' has {words}"):
        _check_splits(tables, Sites(target="cost", split=split), "sums")


def test_accepting_draws_a_key_for_the_owner_alone_and_notes_the_keys_of_others(names, tmp_path, fcorun):
    command = ["plan", "algo=fedavg", *SHARED, "--out", "study.yaml", "--bound", "round=1e5"]
    code, _, errors = fcorun(*command)
    assert (code, "give --secure" in errors) == (2, True)
    code, output, _ = fcorun(*command, "--secure")
    assert (code, "numbers of a site up to 100000 in steps of 2.9e-11" in output) == (0, True)
    accept = ["site", "accept", "study.yaml", "data.path=a.csv", "--at", "a"]
    code, output, _ = fcorun(*accept)
    assert (code, "enter theirs: the same command with" in output) == (0, True)
    printed = output.partition("fingerprint of this site's key: ")[2].split()[0]
    code, _, errors = fcorun(*accept, "fingerprints={b: 12}")
    assert (code, "32 digits" in errors) == (2, True)
    other = "0123456789abcdef" * 2
    code, output, _ = fcorun(*accept, f"fingerprints={{b: {other}, c: {other}}}")
    assert (code, f"fingerprint of this site's key: {printed}" in output) == (0, True)
    plan, key_file = Plan.read("study.yaml"), tmp_path / "a" / "masking_key"
    assert digest_of_text(Path("study.yaml").read_text(), "the plan") == plan.digest
    site = open_site(tmp_path / "a", plan)
    assert isinstance(site, MaskedSite)
    assert site.fingerprints == {"b": other, "c": other}
    assert fingerprint_of(public_key_of(site.key)) == printed
    assert os.name != "posix" or key_file.stat().st_mode & 0o777 == 0o600
    with closing(DurableSite(site, tmp_path / "state")) as durable, fails("before all sites have keys"):
        durable.answer(number_request(Message("describe"), "run", 0, ["a"]))
    key_file.write_text("none")
    with fails("masking_key holds no key"):
        open_site(tmp_path / "a", plan)
