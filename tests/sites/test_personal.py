"""Personal models over sites: the models of pooled rows, which stay at the sites and predict there."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pandas as pd
import pytest
from command import fcorun
from helpers import composed, fails, not_none
from three_sites import NAMES, plan_of, sites_of, write_tables

from fcorun.base.metrics import PERSONAL_PREFIX
from fcorun.experiment.prepare import prepare
from fcorun.results.models.fitted_record import FittedRecord
from fcorun.sites.plan.plan import Plan
from fcorun.sites.plan.policy import Policy
from fcorun.sites.plan.site_options import SiteOptions
from fcorun.sites.server.site_study import run_plan
from fcorun.sites.server.trial import try_plan
from fcorun.sites.site.acceptance import accept, open_site, result_folder
from fcorun.sites.transport.connections import InProcessConnections
from fcorun.sites.transport.durable import DurableSite
from fcorun.sites.transport.folder import FolderConnections, FolderSite
from fcorun.sites.transport.messages import Message
from fcorun.studies.selection.selection_result import SelectOptions

__all__ = ["fcorun"]  # a fixture
DITTO = ("algo=ditto", "algo.client_lr=0.1", "algo.lam=0.5")


@pytest.fixture(autouse=True)
def tables(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_tables()


ALGORITHMS = [
    DITTO,
    pytest.param(("algo=pfedme",), marks=pytest.mark.slow),
    pytest.param(("algo=pfedmac", "batch_size=32"), marks=pytest.mark.slow),
    pytest.param(("algo=pfedmac_s", "algo.lam=0.3", "reg=l1", "reg.strength=0.1"), marks=pytest.mark.slow),
    pytest.param(("algo=apfl", "algo.client_lr=0.1", "clients_per_round=2"), marks=pytest.mark.slow),
    ("algo=mixture", "algo.lam=1.0"),
    pytest.param(("algo=mixture", "algo.lam=1.0", "algo.variance_reduction=true"), marks=pytest.mark.slow),
    ("algo=local",),
    pytest.param(
        ("algo=ditto", "algo.lam=0.5", "algo.solver=feddualavg", "reg=l1", "reg.strength=0.1", "clients_per_round=2"),
        marks=pytest.mark.slow,
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("overrides", ALGORITHMS)
def test_personal_models_and_their_metrics_are_those_of_pooled_rows(overrides, tmp_path):
    """The models are compared by the trial, the metrics with NumPy on the rows of each site."""
    plan = plan_of(*overrides)
    sites = sites_of(plan)
    record, comparison = try_plan(plan, sites, tmp_path / "out")
    assert comparison.difference < 1e-15
    last, sums = record.metrics.iloc[-1], {"train": [0.0, 0], "val": [0.0, 0]}
    for site in sites.values():
        personal: Any = site.personal
        (w,), (b,) = personal["weights"], personal["bias"]
        for split, rows in (("train", site.own_data.train), ("val", not_none(site.own_data.validation))):
            sums[split][0] += np.sum((rows.y - rows.x @ w - b) ** 2)
            sums[split][1] += len(rows)
    for split, (total, count) in sums.items():
        assert last[f"{PERSONAL_PREFIX}{split}_loss"] == pytest.approx(total / count, rel=1e-12)
    assert not record.personal
    models = [not_none(site.personal)["weights"] for site in sites.values()]
    assert any(not np.array_equal(models[0], other) for other in models[1:])


@pytest.mark.slow
def test_personal_models_of_several_clients_at_a_site(tmp_path):
    """A client that is held out wholly has no model, and its rows are scored by the shared model alone.

    At site c all clients are held out.
    """
    plan = plan_of(*DITTO, "data.client=ward", "data.test=[ax,cx,cy,cz]")
    for name in NAMES:
        rows = pd.read_csv(f"{name}.csv")
        rows.assign(ward=name + rows["ward"]).to_csv(f"{name}.csv", index=False)
    sites = sites_of(plan, Policy(min_rows=2))
    record, comparison = try_plan(plan, sites, tmp_path / "out")
    assert comparison.difference < 1e-12
    assert not_none(sites["a"].personal)["client"].tolist() == ["ay", "az"]
    assert [not_none(site.personal)["weights"].shape[0] for site in sites.values()] == [2, 3, 0]
    sets = [("train", "shared"), ("train", "personal"), ("validation", "shared"), ("validation", "personal")]
    scores = not_none(record.scores).set_index(["set", "model"])
    assert scores.index.tolist() == [*sets, ("test", "shared")]
    assert scores.loc[("validation", "personal"), "n"] == scores.loc[("validation", "shared"), "n"] > 0


@pytest.mark.slow
def test_each_site_keeps_its_own_models_and_predicts_with_them(tmp_path, fcorun):
    plan = plan_of(*DITTO)
    for name in NAMES:
        accept(tmp_path / name, plan, SiteOptions(f"{name}.csv"), Policy())
    sites: dict[str, Any] = {name: open_site(tmp_path / name, plan) for name in NAMES}
    record = run_plan(plan, InProcessConnections(sites), tmp_path / "out")
    assert "each client's personal model is at its site alone" in record.status["reason"]
    folder = result_folder(tmp_path / "b", plan)
    at_site = FittedRecord(folder)
    assert not_none(at_site.personal)["client"].tolist() == ["b"]
    np.testing.assert_array_equal(not_none(at_site.personal)["weights"], sites["b"].personal["weights"])
    table = pd.read_csv(folder / "coefficients_by_client.csv")
    assert list(table.columns) == ["parameter", "feature", "class", "b"]
    rows = pd.read_csv("b.csv")
    code, _, errors = fcorun("predict", str(folder), "b.csv", "--out", "at_site.csv")
    assert code == 0, errors
    predicted = pd.read_csv("at_site.csv")
    assert set(predicted["model"]) == {"personal"}
    by_name = dict(zip(table["feature"].fillna("bias"), table["b"], strict=True))
    ward = np.array([by_name.get(f"ward={level}", 0.0) for level in rows["ward"]])
    expected = by_name["bias"] + by_name["age"] * rows["age"] + by_name["bmi"] * rows["bmi"] + ward
    np.testing.assert_allclose(predicted["prediction"], expected, rtol=1e-9)
    code, _, errors = fcorun("predict", str(tmp_path / "out"), "b.csv", "--out", "at_server.csv")
    assert code == 0, errors
    assert "each client's personal model is at its site alone" in errors
    assert not np.allclose(pd.read_csv("at_server.csv")["prediction"], expected)
    code, _, errors = fcorun("weights", "--clients", str(tmp_path / "out"))
    assert code == 2
    assert "each client's personal model is at its site" in errors
    for where in (folder, tmp_path / "out"):
        code, _, errors = fcorun("report", str(where))
        assert code == 0, errors


@pytest.mark.slow
def test_personal_models_of_two_classes_predict_from_the_threshold_of_the_plan_on(tmp_path, fcorun):
    for name in NAMES:
        rows = pd.read_csv(f"{name}.csv")
        rows.assign(cost=rows["cost"] > rows["cost"].median()).to_csv(f"{name}.csv", index=False)
    plan = plan_of("algo=pfedme", "data.task=binary", "data.positive=true", "objective=logistic", "threshold=0.2")
    sites = sites_of(plan)
    sites["a"].result_folder = tmp_path / "kept"
    run_plan(plan, InProcessConnections(sites), tmp_path / "out")
    code, _, errors = fcorun("predict", "kept", "a.csv", "--out", "predicted.csv")
    assert code == 0, errors
    predicted = pd.read_csv("predicted.csv")
    assert set(predicted["model"]) == {"personal"}
    is_positive = predicted.filter(regex="probability_[Tt]rue").iloc[:, 0] >= 0.2
    assert (predicted["prediction"].astype(str).str.lower() == is_positive.astype(str).str.lower()).all()
    assert 0 < is_positive.mean() < 1


@pytest.mark.slow
def test_without_a_shared_model_the_server_predicts_nothing(tmp_path, fcorun):
    plan = plan_of("algo=local")
    sites = sites_of(plan)
    sites["c"].result_folder = tmp_path / "kept"
    run_plan(plan, InProcessConnections(sites), tmp_path / "out")
    for arguments in (("predict", "out", "a.csv"), ("weights", "out"), ("weights", "--clients", "out")):
        code, _, errors = fcorun(*arguments)
        assert code == 2
        assert "each client's personal model is at its site" in errors
    code, _, errors = fcorun("predict", "kept", "c.csv", "--out", "predicted.csv")
    assert code == 0, errors
    code, _, errors = fcorun("report", "out")
    assert code == 0, errors


class Killed(Exception):
    """The end of a process that is killed."""


@pytest.mark.slow
def test_killed_sites_have_the_same_personal_models(tmp_path):
    """Each party is replaced by a new one from its files after each few requests."""
    plan, shared = plan_of(*DITTO), tmp_path / "shared"
    whole = sites_of(plan)
    run_plan(plan, InProcessConnections(whole), tmp_path / "whole")
    for name in NAMES:
        accept(tmp_path / name, plan, SiteOptions(f"{name}.csv"), Policy())
    calls = 0

    def answer_as_new_processes(waiting) -> None:
        nonlocal calls
        for name in NAMES:
            site = DurableSite(open_site(tmp_path / name, plan), tmp_path / name / "state")
            FolderSite(shared, name, site).answer_pending()
            site.close()
        calls += 1
        if calls % 3 == 0:
            raise Killed

    for _ in range(40):
        try:
            run_plan(plan, FolderConnections(shared, NAMES, "a", 30, answer_as_new_processes), tmp_path / "record")
            break
        except Killed:
            continue
    assert calls > 6
    for name in NAMES:
        models = not_none(FittedRecord(result_folder(tmp_path / name, plan)).personal)
        for parameter, values in not_none(whole[name].personal).items():
            np.testing.assert_array_equal(models[parameter], values)
    sent = b"".join(path.read_bytes() for path in shared.glob("*.answer.npz"))
    for name in NAMES:  # no number of a model has left its site
        for number in not_none(whole[name].personal)["weights"].ravel():
            assert number.tobytes() not in sent


class ForgingConnections(InProcessConnections):
    """Connections that change the requests, or the answers, named "evaluate"."""

    def __init__(self, sites, request=lambda arrays: arrays, answer=lambda arrays: arrays):
        super().__init__(sites)
        self.change_request, self.change_answer = request, answer

    def send(self, request):
        if request.name != "evaluate":
            return super().send(request)
        forged = replace(request.message, arrays=self.change_request(dict(request.message.arrays)))
        answers = super().send(replace(request, message=forged))
        return {s: Message(request.name, {}, self.change_answer(dict(answers[s].arrays))) for s in answers}


@pytest.mark.slow
def test_forged_requests_and_sums_of_personal_models_are_refused(tmp_path):
    plan = plan_of(*DITTO)

    def run(**forged):
        run_plan(plan, ForgingConnections(sites_of(plan), **forged), tmp_path / "out")

    for change in (
        lambda arrays: {name: leaf for name, leaf in arrays.items() if "server/" not in name},
        lambda arrays: arrays | {"server/0": np.zeros((1, 99))},
        lambda arrays: arrays | {"server/9": np.zeros(1)},
    ):
        with fails("'evaluate' does not fit the plan"):
            run(request=change)
    for change, words in (
        (lambda arrays: arrays | {"personal_train_loss": np.array([-1.0])}, "which no rows have"),
        (lambda arrays: arrays | {"personal_density": np.array([0.9])}, "which no rows have"),
        (lambda arrays: arrays | {"personal_w": np.array([1.0])}, "instead of the sums of its rows"),
        (lambda arrays: {k: v for k, v in arrays.items() if k != "personal_val_loss"}, "instead of the sums"),
    ):
        with fails("site 'a'", words):
            run(answer=change)


@pytest.mark.slow
def test_what_a_plan_of_personal_models_lists_and_refuses(tmp_path):
    plan = plan_of(*DITTO)
    contents = {quantity.message: quantity.content for quantity in plan.quantities}
    assert contents["round"].endswith("personal models are not sent")
    assert "personal models" in contents["evaluate"]
    assert "each client's last model" in contents["scores"]
    assert "each client's last model" in contents["calibration"]
    with fails("save_personal=false", "leave it out"):
        plan_of(*DITTO, "save_personal=false")
    binary = ("data.task=binary", "data.positive=x", "data.target=ward", "data.only=[age,bmi]", "objective=logistic")
    with fails("threshold=youden", "has personal models", "give a number"):
        plan_of(*DITTO, *binary, "threshold=youden")
    with fails("no quantiles", "_q10"):
        plan_of(*DITTO, "stop={personal_val_loss_q10: 1}")
    with fails("data.away=skip", "states of clients"):
        plan_of(*DITTO, "data.away=skip")


class RecordingConnections(InProcessConnections):
    """Connections that keep the messages to and from the site "a"."""

    def __init__(self, sites):
        super().__init__(sites)
        self.messages = []

    def send(self, request):
        answers = super().send(request)
        if "a" in answers:
            self.messages.append((request.message, answers["a"]))
        return answers


def says_that_uploads_reveal(plan) -> bool:
    (content,) = [quantity.content for quantity in plan.quantities if quantity.message == "round"]
    assert "clients' personal models are not sent" in content
    return "the upload of a site's only client determines its model" in content


@pytest.mark.slow
def test_the_upload_of_an_only_client_determines_its_model(tmp_path):
    """pFedMe with its automatic rate moves the client's copy of the model to its personal model."""
    plan = plan_of("algo=pfedme")
    assert says_that_uploads_reveal(plan)
    connections: Any = RecordingConnections(sites_of(plan))
    run_plan(plan, connections, tmp_path / "out")
    request, answer = [pair for pair in connections.messages if pair[0].name == "round"][-1]
    for leaf, name in (("0", "weights"), ("1", "bias")):
        computed = request.arrays[leaf][0] + answer.arrays[leaf][0]
        np.testing.assert_allclose(computed, connections.site_by_name["a"].personal[name][0], rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides", [DITTO, pytest.param(("algo=apfl", "algo.client_lr=0.1"), marks=pytest.mark.slow)]
)
def test_other_uploads_do_not_depend_on_personal_models(overrides, tmp_path):
    plan = plan_of(*overrides)
    assert not says_that_uploads_reveal(plan)
    connections = RecordingConnections(sites_of(plan))
    run_plan(plan, connections, tmp_path / "out")
    site: Any = sites_of(plan)["a"]
    first_round = [request.name for request, _ in connections.messages].index("round")
    for request, _ in connections.messages[:first_round]:
        site.answer(request)
    site._batch.clients = jax.tree.map(lambda leaf: np.asarray(leaf) + 0.1, site._batch.clients)
    request, sent = connections.messages[first_round]
    again = site.answer(request)
    for name, values in sent.arrays.items():
        np.testing.assert_array_equal(again.arrays[name], values)


@pytest.mark.slow
def test_masked_sums_of_personal_models(tmp_path):
    plan = plan_of(*DITTO)
    secure = type(plan).from_experiment(plan.experiment, {})
    record, comparison = try_plan(secure, sites_of(secure), tmp_path / "masked")
    open_record = run_plan(plan, InProcessConnections(sites_of(plan)), tmp_path / "open")
    assert comparison.difference < 1e-9
    for name in ("personal_train_loss", "personal_val_loss"):
        np.testing.assert_allclose(record.metrics[name], open_record.metrics[name], rtol=1e-6)


@pytest.mark.slow
def test_a_selection_chooses_by_personal_models(tmp_path):
    """The choice is that of pooled rows, standardized by client in each fold; sites keep the models of the refit."""
    select = SelectOptions(points=3, folds=2, range=[0.01, 1.0])
    keys = ("rounds=4", "eval_every=4", "precision=float64", "data=sites", "data.target=cost")
    reg = ("reg=l1", "algo.solver=fedmid", "data.standardize=per_client")
    plan = Plan.from_experiment(prepare(composed(*DITTO, *keys, *reg)), None, select)
    assert not_none(plan.select).metric == "personal_val_loss"
    sites = sites_of(plan)
    _, comparison = try_plan(plan, sites, tmp_path / "out")
    assert comparison.same_choice
    assert comparison.curve < 1e-12
    assert comparison.difference < 1e-12
    assert not_none(sites["a"].personal)["client"].tolist() == ["a"]
