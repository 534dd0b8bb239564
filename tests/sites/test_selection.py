"""Selections over sites in this process: the numbers of fcorun select, refusals, a kill in the middle."""

from contextlib import nullcontext
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers import composed, fails, not_none
from three_sites import NAMES, sites_of, write_tables

from fcorun.base.errors import UserError
from fcorun.base.records.formats import read_json
from fcorun.data.tables.columns import LevelColumn
from fcorun.data.tables.encoding import Encoding
from fcorun.experiment.prepare import prepare
from fcorun.results.models.predictions import predictions_csv
from fcorun.results.score_intervals.intervals import compute_intervals
from fcorun.results.score_intervals.score_table import ScoreOptions, read_scored_record
from fcorun.sites.plan.plan import Plan
from fcorun.sites.plan.policy import Policy
from fcorun.sites.plan.site_options import OwnTableError
from fcorun.sites.server.server import Server
from fcorun.sites.server.site_study import run_plan
from fcorun.sites.server.trial import try_plan
from fcorun.sites.tables.fold_encoding import learnt_columns
from fcorun.sites.tables.fold_rules import check_filled_levels
from fcorun.sites.transport.connections import InProcessConnections
from fcorun.sites.transport.durable import DurableSite
from fcorun.sites.transport.folder import FolderConnections, FolderSite
from fcorun.sites.transport.messages import Message
from fcorun.studies.selection.fitting import PathFit
from fcorun.studies.selection.select import plan_selection
from fcorun.studies.selection.selection_result import SelectOptions

TWO = NAMES[:2]
OPTIONS = SelectOptions(folds=2, points=3)
TABLE = ("data.target=cost", "data.standardize=pooled", "precision=float64", "rounds=3", "eval_every=3")
BINARY = ("data.target=high", "data.task=binary", "data.positive=yes", "data.ignore=[cost,half]", "objective=logistic")

PERSONAL = ("algo=ditto", "algo.solver=fedmid", "algo.client_lr=0.1", "algo.lam=0.5", "data.standardize=per_client")
NUMBERS = ("data.ignore=[high,half,ward]",)  # without a column of levels
MARKED = ("data.fold=half", "data.fold_names=[second,first]")


@pytest.fixture(autouse=True)
def tables(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_tables()
    for name in NAMES:
        rows = pd.read_csv(f"{name}.csv")
        rows["high"] = np.where(rows["cost"] > -10, "yes", "no")
        rows.assign(half=np.where(np.arange(len(rows)) % 5 < 2, "first", "second")).to_csv(f"{name}.csv", index=False)


def make_gaps():
    """Leave cells of numbers and of levels empty."""
    for name in NAMES:
        rows = pd.read_csv(f"{name}.csv")
        position = np.arange(len(rows))
        rows["age"] = rows["age"].mask(position % 2 == 0)
        rows.assign(ward=rows["ward"].mask(position % 2 == 1)).to_csv(f"{name}.csv", index=False)


def selection_of(*overrides, options=OPTIONS, metric=None, bounds=None) -> Plan:
    ignored = "high" if MARKED[0] in overrides else "high,half"
    features = () if BINARY[0] in overrides else (f"data.ignore=[{ignored}]",)
    experiment = prepare(composed("data=sites", *TABLE, *features, *overrides))
    return Plan.from_experiment(experiment, bounds, options, metric)


def select_pooled(*overrides, options=OPTIONS, metric=None):
    """Return the selection of fcorun select, without its refit, on the rows of all sites in one file."""
    pd.concat([pd.read_csv(f"{name}.csv").assign(site=name) for name in TWO]).to_csv("all.csv", index=False)
    ignored = "high" if MARKED[0] in overrides else "high,half"
    features = () if BINARY[0] in overrides else (f"data.ignore=[{ignored}]",)
    data = ("data=table", "data.path=all.csv", "data.client=site", *TABLE, *features)
    planned = plan_selection(composed(*data, *overrides) | {"metric": None}, options, "pooled", metric)
    with planned.study.claim():
        return planned.select_value()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "options", "metric"),
    [
        (("algo=newton", *BINARY), replace(OPTIONS, rule="one_se"), "accuracy"),
        (("algo=feddualavg", "algo.client_lr=0.1", "algo.server_lr=1", "batch_size=28", *BINARY), OPTIONS, None),
        (("algo=gram",), replace(OPTIONS, by="clients"), None),
        (("algo=gram", *NUMBERS, "data.weight=bmi"), OPTIONS, None),
        (("algo=gram", *NUMBERS), replace(OPTIONS, by="clients"), None),
        (("algo=gram", *NUMBERS, "seed=3", "data.split_seed=2"), OPTIONS, None),
        (("algo=gram", *NUMBERS, "seed=3", "data.split_seed=2"), replace(OPTIONS, by="clients"), None),
        (("algo=gram", "data.missing=mean", "data.weight=bmi"), OPTIONS, None),
        (("algo=newton", "data.missing=indicator"), OPTIONS, None),
        (("algo=newton", "rounds=60"), OPTIONS, None),  # ends where all runs of a fold have converged
        (("algo=gram", *MARKED), replace(OPTIONS, folds=None, rule="one_se"), None),
        (PERSONAL, replace(OPTIONS, range=[0.01, 1.0]), None),
    ],
)
def test_a_selection_over_sites_is_that_of_the_pooled_rows(overrides, options, metric):
    has_gaps = any(text.startswith("data.missing") for text in overrides)
    if has_gaps:
        make_gaps()
    plan = selection_of(*overrides, options=options, metric=metric)
    policy = Policy(by_site="allow", alone="allow")
    sites = sites_of(plan, replace(policy, min_rows=2, min_cell=1) if has_gaps else policy)
    for name, site in sites.items():
        site.result_folder = Path("results", name)
        site.options = replace(site.options, keep=None if MARKED[0] in overrides else ["half"])
    run_plan(plan, InProcessConnections({name: sites[name] for name in TWO}), "sites")
    pooled_overrides = [text for text in overrides if not text.startswith("data.fold_names")]
    if "data.missing=mean" in overrides:  # sites have one fill in all folds
        pooled_overrides.remove("data.missing=mean")
        columns = not_none(sites[TWO[0]].own_data.features.encoding).columns
        for name in TWO:
            pd.read_csv(f"{name}.csv").fillna({column.name: column.fill for column in columns}).to_csv(
                f"{name}.csv", index=False
            )
    if MARKED[0] not in overrides:
        pooled_overrides.append("data.keep=[half]")
    pooled = select_pooled(*pooled_overrides, options=options, metric=metric)
    about, curve = read_json(Path("sites/selection.json")), pd.read_csv("sites/curve.csv")
    assert about["chosen"] == pytest.approx(pooled.path.values[pooled.choice.chosen_index], rel=1e-12)
    assert about["weight_of_fold"] == {f"fold{k + 1}": weight for k, weight in enumerate(pooled.fold_weights)}
    np.testing.assert_allclose(curve.iloc[:, 0], pooled.path.values, rtol=1e-12)
    np.testing.assert_allclose(curve.iloc[:, 1], pooled.choice.mean, rtol=1e-12)
    np.testing.assert_allclose(curve.iloc[:, 2], pooled.choice.standard_error, rtol=1e-9, atol=1e-12)
    over_sites = PathFit.load(Path("sites/fits/all.npz"))
    assert over_sites is not None
    for name, values in pooled.fits["all"].solution.items():
        np.testing.assert_allclose(over_sites.solution[name], values, rtol=1e-12, atol=1e-12)
    check_predictions(pd.read_csv(StringIO(predictions_csv(pooled.predictions))))
    at_site = read_json(Path("results", TWO[0], "summary.json"))["selection"]
    assert at_site == {key: about[key] for key in ("rule", "metric", "folds", "by", "param_name", "chosen")}
    scored = read_scored_record(Path("results", TWO[0], "selection"))
    assert scored.task == ("binary" if "data.task=binary" in overrides else "regression")
    assert scored.seed == (3 if "seed=3" in overrides else 0)
    assert scored.weight == ("bmi" if "data.weight=bmi" in overrides else "")
    assert ("rmse" in not_none(scored.score_names)) == (scored.task == "regression")


@pytest.mark.slow
def test_scores_of_quantiles_are_losses_and_have_no_intervals_at_a_site():
    quantiles = ("objective=quantile", "objective.level=0.9", "objective.smoothing=1", "data.weight=bmi")
    plan = selection_of("algo=fedmid", "algo.client_lr=0.1", *quantiles, options=replace(OPTIONS, range=[0.1, 1.0]))
    sites = sites_of(plan)
    for name, site in sites.items():
        site.result_folder = Path("results", name)
    run_plan(plan, InProcessConnections(sites), "sites")
    scores = set(pd.read_csv("sites/refit/scores.csv").columns)
    assert scores >= {"loss", "pinball", "absolute_error", "coverage"}
    assert not scores & {"rmse", "r2", "mae"}
    with fails("selection are no expected values", "no interval is computed"):
        compute_intervals(Path("results", NAMES[0], "selection"), ScoreOptions())


def check_predictions(pooled: pd.DataFrame):
    """Compare the out-of-fold predictions that each site has kept with those of the pooled rows."""
    n_rows = {name: len(pd.read_csv(f"{name}.csv")) for name in TWO}
    assert set(pooled["client"]) == set(TWO)
    for name, first_row in zip(TWO, (0, n_rows[TWO[0]]), strict=True):
        expected = pooled.query(f"client == '{name}'").reset_index(drop=True)
        expected["row"] -= first_row
        at_site = pd.read_csv(f"results/{name}/selection/predictions.csv")
        pd.testing.assert_frame_equal(at_site, expected, rtol=1e-9, atol=1e-9)
        assert [path.name for path in Path("results", name, "selection").iterdir()] == ["predictions.csv"]


@pytest.mark.slow
def test_a_trial_with_masks_compares_with_the_pooled_rows_and_leaves_a_report():
    plan = selection_of("algo=newton", "seed=3", bounds={})  # which draws the folds at neither
    lines = []
    record, comparison = try_plan(plan, sites_of(plan), "trial", log=lines.append)
    assert comparison.same_choice
    assert max(comparison.curve, comparison.difference) < 1e-8
    assert record.status["status"] == "done"
    assert Path("trial/refit/scores.csv").exists()
    assert "is slightly optimistic; coefficients" in "\n".join(lines)  # sites refuse outer_folds, which are not advised
    assert read_json(Path("trial/selection.json"))["status"] == "done"
    (named,) = [line for line in lines if line.startswith("trial/ holds ")]
    assert "selection.csv, curve.csv" in named
    assert all(Path("trial", name).exists() for name in named.removeprefix("trial/ holds ").split(", "))
    with fails("holds this trial already"):
        try_plan(plan, sites_of(plan), "trial")


@pytest.mark.parametrize(
    ("overrides", "options", "bounds", "words"),
    [
        ((), replace(OPTIONS, by="clients"), {}, "--secure and by=clients"),
        (("data.fold=ward",), OPTIONS, None, "give data.fold_names=[A,B,C]"),
        (MARKED, replace(OPTIONS, folds=3), None, "data.fold_names lists 2 folds"),
        (MARKED, replace(OPTIONS, by="clients"), None, "leave by=clients out"),
        (("data.fold_names=[x,y]",), OPTIONS, None, "give data.fold=COLUMN"),
        (("data.fold=half", "data.fold_names=[x,x]"), OPTIONS, None, "two or more different names"),
        (("reg=l1_ball",), OPTIONS, None, "range=[LOW,HIGH]"),
        (("reg.factors={age: 0}",), OPTIONS, None, "range=[LOW,HIGH]"),
        (("stop={val_loss: 1}",), OPTIONS, None, "stop.val_loss"),
        ((*BINARY[:4], "objective=mlp", "algo=fedmid", "algo.client_lr=0.1"), OPTIONS, None, "range=[LOW,HIGH]"),
    ],
)
def test_what_sites_cannot_select_is_no_plan(overrides, options, bounds, words):
    algo = () if "objective=mlp" in overrides else ("algo=newton",)
    with fails(words):
        selection_of(*algo, *overrides, options=options, bounds=bounds)


def drawn_folds(*overrides, options=OPTIONS) -> list[int]:
    """Return the fold of each training row of two sites."""
    plan = selection_of("algo=gram", *NUMBERS, *overrides, options=options)
    sites = {name: sites_of(plan, Policy(by_site="allow"))[name] for name in TWO}
    connections = InProcessConnections(sites)
    Server(plan, connections).load()
    connections.ask("folds")
    return np.concatenate([site.folds.fold for site in sites.values()]).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("by", ["rows", "clients"])
def test_another_seed_draws_no_new_folds_of_rows_at_sites(by):
    options = replace(OPTIONS, by=by)
    folds = drawn_folds(options=options)
    others = [drawn_folds(f"data.split_seed={k}", options=options) for k in range(4)]
    assert folds == others[0] == drawn_folds("seed=5", options=options)
    assert others[1] == drawn_folds("seed=5", "data.split_seed=1", options=options)
    assert others[3] == drawn_folds("seed=5", "data.seed=3", options=options)
    assert any(other != folds for other in others)


def fold_of_site(marks):
    """Have a site whose training rows have these folds in turn describe them."""
    plan = selection_of("algo=gram", *MARKED, options=replace(OPTIONS, folds=None))
    rows = pd.read_csv("a.csv")
    rows.assign(half=np.resize(marks, len(rows))).to_csv("a.csv", index=False)
    connections = InProcessConnections({"a": sites_of(plan, Policy(alone="allow"))["a"]})
    Server(plan, connections).load()
    return connections.ask("folds")["a"].arrays


def test_marked_folds_have_the_names_of_the_plan_and_rows_enough():
    counts = fold_of_site(["second", "first", "second"])["held_out"][0]
    assert counts.sum() == 48
    assert abs(counts[1] - 2 * counts[0]) <= 12  # in the order of the names, not of the plan
    with fails("in a fold that data.fold_names of the plan does not list"):
        fold_of_site(["first", "second", "third"])
    with fails("fewer than 10 training rows in a fold"):
        fold_of_site(["first"] * 9 + ["second"])


def test_a_site_refuses_fills_that_mark_rows_or_are_none():
    make_gaps()
    plan = selection_of("algo=newton", "data.missing=indicator", "reg.strength=0.1")
    site = sites_of(plan, Policy(alone="allow", min_rows=2, min_cell=1))["a"]
    connections = InProcessConnections({"a": site})
    Server(plan, connections).load()
    connections.ask("folds")
    told = connections.ask("fold_values", about={"subset": "fold1"})["a"].arrays
    (age,) = (told["sums"] / told["values"])[0]
    columns = learnt_columns(not_none(site.own_data.features.encoding))
    assert [column.name for column in columns] == ["age", "ward"]
    fits = {"informative": np.ones(sum(len(column.features) for column in columns), bool)}
    assert 40 < age < 60
    for fills, words in (
        ([age + 1000, -1.0], "fills gaps of 'age' otherwise than data.missing=indicator"),
        ([age, 9.0], "does not fit the plan"),
    ):
        with fails(words):
            connections.ask("fold_sums", fits | {"fills": np.array(fills)}, {"subset": "fold1"})


@pytest.mark.slow
def test_all_requests_of_a_fold_have_the_same_fills():
    make_gaps()
    plan = selection_of("algo=newton", "data.missing=indicator", "reg.strength=0.1")
    site = sites_of(plan, Policy(alone="allow", min_rows=2, min_cell=1))["a"]
    connections = InProcessConnections({"a": site})
    Server(plan, connections).load()
    connections.ask("folds")
    columns = learnt_columns(not_none(site.own_data.features.encoding))
    n_features = sum(len(column.features) for column in columns)
    fits = {"fills": np.array([50.0, -1.0]), "informative": np.ones(n_features, bool)}
    connections.ask("fold_sums", fits, {"subset": "fold1"})
    site.load_state(site.save_state())
    forged = fits | {"fills": np.array([50.5, -1.0])}
    for name in ("fold_sums", "subset"):
        with fails(f"another encoding of the columns with '{name}' than with 'fold_sums'"):
            connections.ask(name, forged, {"subset": "fold1"})


def test_a_metric_that_sites_cannot_measure_is_no_plan():
    with fails("metric=auc is not a choice"):
        selection_of("algo=newton", *BINARY, metric="auc")
    with fails("metric=nothing"):
        selection_of("algo=newton", metric="nothing")


def test_a_plan_of_a_selection_reads_as_it_was_written_and_says_what_leaves():
    plan = selection_of("algo=newton")
    text = plan.to_text()
    assert Plan.from_text(text, "a plan").digest == plan.digest
    with fails("was changed after it was made"):
        Plan.from_text(text.replace("points: 3", "points: 4"), "a plan")
    rounds = [quantity for quantity in plan.quantities if quantity.message == "round"]
    assert rounds[0].numbers.startswith("3 times (")
    assert rounds[0].times.startswith("3 rounds in each of 3 fits")
    assert rounds[1].times == "3 rounds in the refit"
    assert plan.n_rounds == 3 * (3 * 3 + 1)
    gram = selection_of("algo=gram")
    assert next(q for q in gram.quantities if q.message == "round").numbers.startswith("p (p + 1) / 2 + p")
    assert gram.n_rounds == 3 * 4


@pytest.mark.slow
def test_a_policy_refuses_folds_that_its_owner_does_not_allow():
    plan = selection_of("algo=newton")
    with fails("has 30 rounds", "allows 29"):
        sites_of(plan, Policy(max_rounds=29))
    with fails("client 'a' has fewer than 12 training rows in a fold", "policy.min_rows"):
        sites_of(selection_of("algo=newton", options=replace(OPTIONS, folds=5)), Policy(min_rows=12))["a"].read_table()
    by_clients = selection_of("algo=newton", options=replace(OPTIONS, folds=3, by="clients"))
    with fails("by_site: allow"):
        sites_of(by_clients)
    wide = selection_of("algo=newton", options=replace(OPTIONS, folds=4))
    with fails("site 'a'", "policy.alone=allow"):  # 12 rows a fold, and 5 features
        run_plan(wide, InProcessConnections(sites_of(wide, Policy(min_cell=1))), "wide")
    rare = pd.read_csv("b.csv")
    rare["high"] = ["yes"] * 5 + ["no"] * 65
    rare.to_csv("b.csv", index=False)
    binary = selection_of("algo=newton", "data.validation=0", *BINARY)
    with pytest.raises(OwnTableError, match=r"fewer than 3 training rows in a fold.*class 'yes'") as refusal:
        sites_of(binary, Policy(alone="allow"))["b"].read_table()
    assert "'yes'" not in refusal.value.public


class Requests(InProcessConnections):
    """Connections that keep all requests."""

    def __init__(self, sites):
        super().__init__(sites)
        self.sent: list[Message] = []

    def send(self, request):
        self.sent.append(request.message)
        return super().send(request)


@pytest.mark.slow
def test_a_server_gets_each_fold_once_in_the_order_of_the_plan_and_no_other_path(tmp_path):
    plan = selection_of("algo=gram")
    connections = Requests(sites_of(plan, Policy(alone="allow")))
    run_plan(plan, connections, tmp_path / "out")
    requests = connections.sent
    names = [request.about.get("subset", "") for request in requests if request.name == "subset"]
    assert names == ["fold1", "fold2", "all", "refit"]
    load = next(request for request in requests if request.name == "load")
    subsets = {request.about["subset"]: request for request in requests if request.name == "subset"}
    starts = [request for request in requests if request.name == "start"]

    def site():
        fresh = sites_of(plan, Policy(alone="allow"))["a"]
        fresh.answer(load)
        return fresh

    for request, words in (
        (subsets["all"], "the next one of this site is 'fold1'"),
        (starts[0], "more often than the plan says, 0 times"),
        (Message("fold_sums", {"subset": "fold2"}), "the next one of this site is 'fold1'"),
    ):
        with fails(words):
            site().answer(request)
    forged = {"numbers": [{**run, "reg": {"strength": 1.0 + k}} for k, run in enumerate(starts[0].about["numbers"])]}
    begun = site()
    begun.answer(subsets["fold1"])
    with fails("than the path of the plan"):
        begun.answer(replace(starts[0], about=starts[0].about | forged))
    begun = site()
    for request in (subsets["fold1"], starts[0], subsets["fold2"]):
        begun.answer(request)
    with fails("the next one of this site is 'all'"):
        begun.answer(subsets["fold2"])
    scaled = [{**run, "reg": {"strength": run["reg"]["strength"] * 2}} for run in starts[0].about["numbers"]]
    with fails("than those of the first fit"):
        begun.answer(replace(starts[1], about=starts[1].about | {"numbers": scaled}))
    with fails("'scores' more often than the plan says, 0 times"):
        begun.answer(Message("scores"))
    counts = subsets["fold2"].arrays
    for k, name in ((1, "held_out"), (-1, "held_out_weights")):
        changed = counts[name].copy()
        changed[0, 0] += k
        with fails("'subset' does not fit the plan" if k == 1 else "other numbers of rows in folds"):
            begun.counts.counts["subset"] = 1
            begun.answer(replace(subsets["fold2"], arrays=counts | {name: changed}))


@pytest.mark.slow
@pytest.mark.parametrize("bounds", [None, {"round": 1e4}])
def test_gram_sends_its_sums_once_for_all_strengths(bounds):
    plan = selection_of("algo=gram", *NUMBERS, bounds=bounds)
    sites = sites_of(plan, Policy(alone="allow"))
    answered = []
    for site in sites.values():
        site.compute_answer = lambda request, compute=site.compute_answer: (
            answered.append(request.name) or compute(request)
        )
    record, comparison = try_plan(plan, sites, "trial")
    assert answered.count("round") == 4 * len(NAMES)  # of two folds, of all training rows, and of the refit
    assert comparison.same_choice
    assert max(comparison.curve, comparison.difference) < (1e-12 if bounds is None else 1e-8)
    about = record.summary["data"]
    assert record.rows[-1]["grad_evals"] == about["examples"] * (about["features"] + 2)  # a gradient, and p products
    cost = read_json(Path("trial/selection.json"))["cost"]
    assert cost["bytes_up"] == 3 * record.rows[-1]["bytes_up"]


@pytest.mark.slow
def test_a_site_without_training_rows_has_no_sums():
    plan = selection_of("algo=gram", *NUMBERS, f"data.validation=[{NAMES[-1]}]")
    _, comparison = try_plan(plan, sites_of(plan, Policy(alone="allow")), "trial")
    assert comparison.same_choice
    assert comparison.difference < 1e-12


class Killed(Exception):
    """Stands for the end of the server's process."""


@pytest.mark.slow
def test_a_killed_selection_goes_on_to_the_same_bits(tmp_path):
    kills = [(2, "round", 1), (6, "evaluate", 1)]  # of the second fold, and of the refit of the next command
    plan, shared = selection_of("algo=gram"), tmp_path / "shared"
    answered, killers = [], []

    class KilledInFit(FolderConnections):
        def send(self, request):
            name = request.name
            answered.append(name)
            of_fit = answered[::-1][: answered[::-1].index("start") + 1] if "start" in answered else answered
            if killers and (answered.count("start"), name, of_fit.count(name)) == killers[0]:
                del killers[0]
                raise Killed
            return super().send(request)

    def open_sites(folder):
        sites = {}
        for name, site in sites_of(plan, Policy(alone="allow")).items():
            site.result_folder = tmp_path / "results" / folder / name
            sites[name] = DurableSite(site, tmp_path / "sites" / folder / name)
        return sites

    def command(folder, out):
        sites = open_sites(folder)

        def answer(waiting) -> None:
            for name, site in sites.items():
                FolderSite(shared / folder, name, site).answer_pending()

        try:
            return run_plan(plan, KilledInFit(shared / folder, NAMES, "run", 30, answer), tmp_path / out)
        finally:
            for site in sites.values():
                site.close()

    killers[:] = kills
    for _ in kills:
        with pytest.raises(Killed):
            command("one", "one")
    assert not killers
    assert command("one", "one").finished
    assert answered.count("start") == 2 + 4 + 4
    answered.clear()
    command("two", "two")
    for name in ("curve.csv", "path.csv", "refit/solution.npz"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    of_site = [tmp_path / "results" / folder / "a" / "selection" / "predictions.csv" for folder in ("one", "two")]
    assert of_site[0].read_bytes() == of_site[1].read_bytes()
    assert command("one", "one").finished


@pytest.mark.slow
def test_a_fold_has_no_cell_of_a_column_with_few_rows(tmp_path):
    """The sums of a fold follow from those of all rows and of the others: they are of no value, or of many."""
    plan = selection_of("algo=gram", "data.missing=mean", "data.validation=0", options=replace(OPTIONS, folds=3))
    for name in NAMES:
        rows, rng = pd.read_csv(f"{name}.csv"), np.random.default_rng(0)
        rows["marker"] = np.nan
        measured = rng.choice(len(rows), 14, replace=False)
        rows.loc[measured, "marker"] = rng.normal(100, 15, 14)
        rows.to_csv(f"{name}.csv", index=False)
    words = r"site 'a': column 'marker' has values in fewer than 10 training rows of a client in fold 1, [^()]*$"
    with pytest.raises(UserError, match=words):
        run_plan(plan, InProcessConnections(sites_of(plan, Policy(alone="allow"))), tmp_path / "marker")
    with fails("in fewer than 10 training rows of a client in fold 1", "(rows with a value)"):
        sites_of(plan)["a"].read_table()
    for name in NAMES:
        rows = pd.read_csv(f"{name}.csv").drop(columns="marker")
        rows.loc[:4, "ward"] = "attic"
        rows.to_csv(f"{name}.csv", index=False)
    words = (
        r"site 'a': column 'ward' has a level in fewer than 3 training rows of a client in fold \d, or in all [^()]*$"
    )
    with pytest.raises(UserError, match=words):
        run_plan(plan, InProcessConnections(sites_of(plan, Policy(alone="allow"))), tmp_path / "ward")
    with fails("fold", "(level 'attic')"):
        sites_of(plan)["a"].read_table()


@pytest.mark.parametrize("gaps", [0, 1])
def test_the_level_that_fills_gaps_is_in_no_or_many_rows_of_a_fold(gaps):
    rows = pd.read_csv("a.csv")
    ward = np.where(np.arange(60) % 3, "x", "y").astype(object)
    ward[3 : 3 + 3 * gaps : 3] = None
    ward[48:] = None
    rows.assign(ward=ward).to_csv("a.csv", index=False)
    plan = selection_of("algo=gram", "data.missing=mean", "data.validation=0")
    table = sites_of(plan)["a"].table
    fold = np.arange(60) % 3  # no x in fold 1
    encoding = Encoding((LevelColumn("ward", fill="x", levels=("x", "y")),))
    with fails("column 'ward' has a level in fewer than 3", "(level 'x')") if gaps else nullcontext():
        check_filled_levels(table, encoding, np.where(np.arange(60) < 48, fold, 1), 3)


def test_gaps_of_a_fold_count_as_the_level_that_fills_them():
    rows = pd.read_csv("a.csv")
    ward = rows["ward"].mask(np.arange(len(rows)) % 4 == 1, "z")  # the last level is the most frequent
    rows.assign(ward=ward.mask(np.arange(len(rows)) % 14 == 0)).to_csv("a.csv", index=False)
    plan = selection_of("algo=gram", "data.missing=mean", "reg.strength=0.1", "data.validation=0")
    site = sites_of(plan, Policy(alone="allow", min_cell=4))["a"]
    connections = InProcessConnections({"a": site})
    Server(plan, connections).load()
    connections.ask("folds")
    told = connections.ask("fold_values", about={"subset": "fold1"})["a"].arrays
    assert told["levels"].sum() == (site.folds.fold != 0).sum()  # as if there were no gaps
    fills = {"fills": np.array([0.0]), "informative": np.ones(3, bool)}
    (ward,) = (column for column in not_none(site.own_data.features.encoding).columns if column.name == "ward")
    assert ward.levels[-1] == ward.fill
    sums = []
    for level in (ward.levels.index(ward.fill), 0, -1):  # the fill of all rows, another level, and none
        fills["fills"][0] = level
        sums.append(not_none(site.folds.cells).encode(fills).sum(axis=0))
    np.testing.assert_array_equal(sums, [sums[0]] * 3)
