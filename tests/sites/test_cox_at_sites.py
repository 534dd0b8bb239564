"""Times to events over sites: runs and scores equal those of the pooled rows, and hazards stay at the sites."""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from helpers import composed, fails

from fcorun.base.errors import UserError
from fcorun.base.records.record import Record
from fcorun.data.datasets.dataset import Features, FederatedData
from fcorun.data.rows.rows import Rows
from fcorun.data.tasks import Survival
from fcorun.experiment.prepare import prepare
from fcorun.methods.objectives import Cox
from fcorun.results.models.predictions import predict_splits, tabulate_scores
from fcorun.results.scores.concordance import Concordance
from fcorun.results.site_scores import check_sums, expected_sums
from fcorun.results.survival import baseline_hazard, survival_probabilities
from fcorun.sites.plan.plan import Plan
from fcorun.sites.plan.policy import Policy
from fcorun.sites.plan.site_options import SiteOptions
from fcorun.sites.server.site_study import run_plan
from fcorun.sites.server.trial import mask_sites, try_plan
from fcorun.sites.site.score_sums import ScoreSums
from fcorun.sites.site.site import Site
from fcorun.sites.site.site_folds import SiteFolds
from fcorun.sites.tables.fold_rules import check_folds
from fcorun.sites.transport.connections import InProcessConnections
from fcorun.studies.selection.selection_result import SelectOptions

NAMES = ("a", "b", "c")
COX = ("data=sites", "data.target=time", "data.event=died", "objective=cox", "data.standardize=pooled")


@pytest.fixture(autouse=True)
def tables(tmp_path, monkeypatch):
    """Write the tables of three sites with other baseline hazards, of which the last one has two clients."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for name, n, rate in zip(NAMES, (60, 70, 80), (0.5, 1.0, 3.0), strict=True):
        frame = pd.DataFrame({"age": rng.normal(50, 10, n).round(1), "bmi": rng.normal(25, 4, n).round(2)})
        frame["ward"] = rng.choice(["x", "y", "z"], n)
        hazard = rate * np.exp(0.05 * (frame["age"] - 50) - 0.1 * (frame["bmi"] - 25))
        event, censoring = rng.exponential(size=n) / hazard, 2 * rng.exponential(size=n)
        frame["time"] = np.minimum(event, censoring).round(2) + 0.01
        frame["died"] = (event <= censoring).astype(int)
        frame["clinic"] = [f"{name}{k % (1 + (name == 'c'))}" for k in range(n)]
        frame.to_csv(f"{name}.csv", index=False)


def plan_of(*overrides, secure=None):
    algo = () if any("algo=" in text for text in overrides) else ("algo=newton",)
    strength = () if any("reg." in text for text in overrides) else ("reg.strength=0.02",)
    shared = ("data.client=clinic", "precision=float64", "rounds=3", "eval_every=3", "data.validation=0.3")
    return Plan.from_experiment(prepare(composed(*COX, *algo, *strength, *shared, *overrides)), secure)


def sites_of(plan, policy=None, folder=None):
    sites = {}
    for name in NAMES:
        result_folder = None if folder is None else folder / name
        sites[name] = Site(plan, SiteOptions(f"{name}.csv"), policy or Policy(alone="allow"), result_folder)
    return sites


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        ("algo=newton", "gap=true"),
        pytest.param(("algo=feddualavg", "reg.relative=0.1"), marks=pytest.mark.slow),
        pytest.param(("algo=ditto", "algo.client_lr=0.1", "algo.lam=0.5"), marks=pytest.mark.slow),
        pytest.param(("algo=scaffold", "algo.client_lr=0.1", "reference=true"), marks=pytest.mark.slow),
        pytest.param(("algo=newton", "client_weighting=uniform", "data.weight=bmi"), marks=pytest.mark.slow),
    ],
)
def test_runs_are_those_of_the_pooled_rows(tmp_path, overrides):
    plan = plan_of(*overrides)
    record, comparison = try_plan(plan, sites_of(plan), tmp_path / "out")
    assert record.status["status"] == "done"
    assert comparison.difference < 1e-12
    assert np.isfinite(record.metrics["val_loss"]).all()
    if "gap=true" in overrides:
        assert 0 <= record.metrics["gap"].iloc[-1] < record.metrics["gap"].iloc[0]


def selection_of():
    data = ("data.client=clinic", "data.ignore=[ward]", "data.validation=0.3")
    algo = (
        "algo=feddualavg",
        "algo.client_lr=0.1",
        "algo.server_lr=1",
        "precision=float64",
        "rounds=3",
        "eval_every=3",
    )
    experiment = prepare(composed(*COX, *data, *algo))
    return Plan.from_experiment(experiment, options=SelectOptions(folds=2, points=2))


@pytest.mark.slow
def test_a_selection_is_that_of_the_pooled_rows(tmp_path):
    plan = selection_of()
    sites = sites_of(plan)
    _, comparison = try_plan(plan, {name: sites[name] for name in "ac"}, tmp_path / "out")
    assert comparison.same_choice
    assert max(comparison.curve, comparison.difference) < 1e-10


@pytest.mark.parametrize(("events", "is_refused"), [(20, False), (3, True)])
def test_few_events_of_a_client_in_a_fold_are_refused(events, is_refused):
    plan = selection_of()
    rows = pd.read_csv("a.csv")
    rows.assign(died=(np.arange(60) < events).astype(int)).to_csv("a.csv", index=False)
    table = Site(plan, SiteOptions("a.csv"), Policy(min_rows=1, min_cell=1)).table
    fold = np.where(table.masks[0], np.arange(60) % 2, -1)
    with fails("client 'a0' has fewer than 3 events in a fold, or in all others") if is_refused else nullcontext():
        check_folds(plan, replace(table, policy=Policy()), fold)


@pytest.mark.parametrize("events", [20, 0])
def test_folds_tell_whether_they_have_events(events):
    y = np.where(np.arange(60) < events, 1.0, -1.0) * np.arange(1, 61)
    data = from_sizes(y)
    folds = SiteFolds(selection_of(), Policy(alone="allow"), data, data, np.arange(60) % 2)
    assert folds.describe()["classes"].tolist() == [[events > 0], [events > 0]]


@pytest.mark.slow
@pytest.mark.parametrize("secure", [None, pytest.param({}, marks=pytest.mark.slow)])
def test_scores_are_those_of_the_pooled_rows_and_hazards_stay_at_the_sites(tmp_path, secure):
    plan = plan_of(secure=secure)
    sites = sites_of(plan, folder=tmp_path / "results")
    connections = InProcessConnections(sites if secure is None else mask_sites(sites))
    asked = {}

    class Connections(InProcessConnections):
        def send(self, request):
            answers = super().send(request)
            asked[request.name] = answers
            if request.name == "result":
                asked["data"] = {site: sites[site].own_data for site in NAMES}
            return answers

    record = run_plan(plan, Connections(connections.site_by_name), tmp_path / "out")
    assert not (tmp_path / "out/baseline_hazard.csv").exists()
    of_sites = []
    for data in asked["data"].values():
        of_sites += tabulate_scores(predict_splits(plan.experiment.objective, data, record.solution))
    of_clients = pd.DataFrame(of_sites)
    found = record.scores.set_index("set")
    for split in ("train", "validation"):
        p, y, client = [], [], []
        for number, data in enumerate(asked["data"].values()):
            rows = data.splits[split]
            p.append(rows.x @ record.solution["weights"])
            y.append(rows.y)
            client.append(10 * number + rows.client)
        concordant, pairs = Concordance(*map(np.concatenate, (y, p, client))).count_pairs()
        assert found.loc[split, "c_index"] == pytest.approx(concordant.sum() / pairs.sum(), rel=1e-12)
        of_site = of_clients[(of_clients["set"] == split) & (of_clients["client"] == "")]
        assert found.loc[split, "events"] == of_site["events"].sum()
        assert found.loc[split, "loss"] == pytest.approx(np.average(of_site["loss"], weights=of_site["n"]), rel=1e-9)
    with fails("baseline_hazard.csv, which stays at the sites", "results/"):
        survival_probabilities(Record(tmp_path / "out"), np.zeros(1), np.array(["a0"]), 0.5)
    own = Record(tmp_path / "results/c")
    survival = survival_probabilities(own, np.zeros(2), np.array(["c0", "a0"], object), 0.5)
    assert survival.baseline.tolist() == ["c0", "all clients of this site"]
    assert ((survival.values > 0) & (survival.values < 1)).all()
    train = asked["data"]["c"].train
    first = train.client == 0
    hazard = baseline_hazard(train.y[first], (train.x @ record.solution["weights"])[first], np.ones(first.sum()))
    until = max(row["cumulative_hazard"] for row in hazard if row["time"] <= 0.5)
    assert survival.values[0] == pytest.approx(np.exp(-until), rel=1e-9)
    hazards = pd.read_csv(own.folder / "baseline_hazard.csv", keep_default_na=False)
    hazards[hazards["client"].isin(["", "c0"])].to_csv(own.folder / "baseline_hazard.csv", index=False)
    of_one_client = survival_probabilities(own, np.zeros(2), np.array([None, None]), 0.5)
    assert (of_one_client.baseline.tolist(), of_one_client.warnings) == (["c0", "c0"], [])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda frame: frame.assign(died=0), ("all training rows of this site are censored",)),
        (lambda frame: frame.assign(died=(np.arange(len(frame)) < 2).astype(int)), ("fewer than 3 events", "min_cell")),
        (lambda frame: frame.assign(time=frame["time"] - 1), ("the table cannot be read",)),
        (lambda frame: frame.drop(columns="died"), ("no column 'died'",)),
    ],
)
def test_few_events_and_bad_times_are_refused(change, words):
    plan = plan_of()
    frame = pd.read_csv("b.csv")
    change(frame).to_csv("b.csv", index=False)
    site = Site(plan, SiteOptions("b.csv"), Policy(alone="allow"))
    with pytest.raises(UserError) as caught:
        site.read_table()
    assert all(word in getattr(caught.value, "public", str(caught.value)) for word in words)


@pytest.mark.slow
def test_pairs_that_are_few_are_not_counted():
    """One event in 4 rows, which one row outlives, is a pair that no server learns, unless masks hide it."""
    data = from_sizes(np.array([2.0, -3.0, -1.0, -1.5]))
    counts = {}
    for masked in (False, True):
        sums = ScoreSums(Cox(), data, {"weights": np.ones(1)}, 3, masked).sum_scores()
        counts[masked] = [int(sums[f"train_{name}"]) for name in ("events", "pairs", "concordant_twice")]
    assert counts == {False: [1, 0, 0], True: [1, 1, 0]}


def from_sizes(y):
    """Return the training rows of one client with the feature 0, 1, 2, ..."""
    x = np.arange(len(y), dtype=float)[:, None]
    rows = Rows(x, y, np.zeros(len(y), int))
    return FederatedData(rows, features=Features(("x",)), task="survival", clients=("a",))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pairs": 10**6}, ("site 'b'", "more pairs of its train rows")),
        ({"concordant_twice": 10**6}, ("site 'b'", "more pairs")),
        ({"events": 10**6}, ("site 'b'", "train_events")),
    ],
)
def test_forged_counts_name_their_site(changes, words):
    expected = expected_sums(Cox(), Survival(), 0, secure=False)
    sums = {"n": 40, "loss": 1.0, "events": 20, "pairs": 300, "concordant_twice": 400} | changes
    arrays = {name: np.asarray(value) for name, value in sums.items()}
    with fails(*words):
        check_sums("b", "train", arrays, expected, n_rows=40, error=0.0)


@pytest.mark.slow
def test_what_sites_do_not_compute_is_refused():
    with fails("data.task=survival needs data.event"):
        prepare(composed("data=sites", "data.target=time", "data.task=survival", "objective=cox", "algo=newton"))
    with fails("data.classes", "are for a classification"):
        prepare(composed(*COX, "data.classes=[a,b]", "algo=newton"))
    with fails("objective=logistic", "data.task is survival"):
        plan_of("objective=logistic")
    with fails("objective=cox", "data.task is regression", "data.event"):
        plan_of("data.event=null")
    with fails("objective=cox", "batch_size=null"):
        plan_of("algo=fedavg", "algo.client_lr=0.1", "batch_size=16")
