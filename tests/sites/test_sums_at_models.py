"""A server that chooses models reads no row from sums, whichever kind of message has them and whichever split."""

from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
from helpers import composed, fails
from recorded_studies import NAMES, RecordedSite, write_tables

from fcorun.experiment.prepare import prepare
from fcorun.sites.plan.messages.message_kind import Stage, list_kinds
from fcorun.sites.plan.patients import Patients
from fcorun.sites.plan.plan import Plan
from fcorun.sites.plan.planned_study import PlannedIntervals
from fcorun.sites.plan.policy import Policy
from fcorun.sites.plan.site_options import SiteOptions
from fcorun.sites.server.site_study import run_plan
from fcorun.sites.site.acceptance import open_checked_site
from fcorun.sites.site.request_checks import FewRowsError
from fcorun.sites.site.site import Site
from fcorun.sites.tables.summed_sets import column_tells_few
from fcorun.sites.transport.connections import InProcessConnections

SPLITS = ("train", "validation", "test")
ROW = {"train": 0, "validation": 30, "test": 46}  # a row of each split
WITHOUT_MODEL = {"sums", "load", "moments", "result"}  # kinds whose requests have arrays, but no model of rows


@pytest.fixture(autouse=True)
def tables(tmp_path, monkeypatch):
    """Write tables of three sites, whose columns x and z hardly differ; at site a, the sign of u tells who is ill."""
    monkeypatch.chdir(tmp_path)
    write_tables()
    for name in NAMES:
        rows = pd.read_csv(f"{name}.csv")
        rows["z"] = (rows["x"] + 0.01 * rows["z"]).round(6)
        rows["u"] = np.where(np.arange(len(rows)) % 2, 1, -1)
        if name == "a":
            rows["ill"] = (rows["u"] > 0).astype(int)
        rows["part"] = np.repeat(["train", "validation", "test"], [30, 16, len(rows) - 46])
        rows.to_csv(f"{name}.csv", index=False)


def change_site_a(column: str, values: np.ndarray) -> None:
    rows = pd.read_csv("a.csv")
    rows[column] = values
    rows.to_csv("a.csv", index=False)


def plan_of(*words: str) -> Plan:
    shared = ("data=sites", "data.split=part", "rounds=2", "eval_every=1", "precision=float64", "data.standardize=none")
    return Plan.from_experiment(prepare(composed(*shared, *words)))


def sites_of(plan: Plan, policy: Policy) -> dict[str, Site]:
    sites = {name: Site(plan, SiteOptions(f"{name}.csv"), policy) for name in NAMES}
    return sites


# -- a model at which one row outweighs all others of its split

STUDY = ("algo=newton", "data.only=[x,z,u]", "data.target=ill", "data.task=binary", "data.positive='1'")
FAR = {"bias": 0.0, "weights": np.array([-15.0, 15.0, 30.0])}  # of x, z and u: the row alone is not certain


def forge(request):
    """Return a request whose arrays are those of the model ``FAR``, wherever they have its shapes."""
    arrays = {}
    for name, values in request.arrays.items():
        forged = values
        if name == "theta":
            forged = np.append(FAR["weights"], FAR["bias"])
        elif name != "scale" and values.dtype.kind == "f":
            forged = np.zeros_like(values) + (FAR["weights"] if values.shape[-1:] == (3,) else FAR["bias"])
        arrays[name] = forged
    return replace(request, arrays=arrays)


def is_told(site: Site, log: list, name: str, split: str) -> bool:
    """Return whether a site answers a forged request of a kind, with numbers, and not by a refusal for the split."""
    names = [request.name for request, _, _ in log]
    start = names.index(name)
    if list_kinds()[name].stage is Stage.SCORES:  # of the model that was evaluated last
        start = len(names) - 1 - names[::-1].index("evaluate")
    site.load_state(log[start][1])
    try:
        for request, _, _ in log[start:]:
            is_of_model = request.name not in ("calibration", "start")
            answer = site.answer(forge(request) if is_of_model else request)
            if request.name == name:
                return all(np.isfinite(values).all() for values in answer.arrays.values())
    except FewRowsError as error:
        return f"few {'training' if split == 'train' else split} rows of this site" not in str(error)
    raise AssertionError(f"the honest study asks for no '{name}'")


@pytest.mark.slow
@pytest.mark.parametrize("split", SPLITS)
def test_each_kind_refuses_sums_at_a_model_where_one_row_of_a_split_outweighs_all_others(split):
    rows = pd.read_csv("a.csv")
    change_site_a("z", rows["z"] + 2.0 * (rows.index == ROW[split]))
    plan = plan_of(*STUDY, "gap=true", "reg=l2", "reg.strength=0.1", "threshold=youden")
    plan = replace(plan, infer=PlannedIntervals())
    sites = sites_of(plan, Policy())
    recorders = {name: RecordedSite(site) for name, site in sites.items()}
    run_plan(plan, InProcessConnections(recorders), "out")
    log = recorders["a"].log
    asked = {request.name for request, _, _ in log if request.arrays}
    kinds = {name for name, kind in list_kinds().items() if kind.splits_at_model}
    assert asked - WITHOUT_MODEL == kinds  # a new kind that takes a model is looked at here, too
    told = {name for name in kinds if is_told(sites["a"], log, name, split)}
    assert told == {name for name in kinds if split not in list_kinds()[name].splits_at_model}


# -- models at which no row outweighs others, and whose losses differ by one row


@dataclass
class Subtracting(InProcessConnections):
    """Connections of a server that evaluates multiples of one feature, and notes the losses of site a.

    Attributes:
        feature: the number of the feature.
        losses: the sums of the losses over the validation rows of site a, at the multiples 0, 1 and 2.
    """

    feature: int = 0
    losses: list[float] = field(default_factory=list)

    def send(self, request):
        if request.name != "evaluate":
            return super().send(request)
        arrays = {name: np.zeros_like(values) for name, values in request.message.arrays.items()}
        arrays["1"][0, self.feature] = len(self.losses)
        answers = super().send(replace(request, message=replace(request.message, arrays=arrays)))
        self.losses.append(float(answers["a"].arrays["val_loss"][0]))
        return answers


@pytest.mark.slow
def test_two_losses_of_held_out_rows_tell_the_row_that_has_a_number_unless_a_site_refuses_it():
    units = np.where(np.arange(60) < 30, np.arange(60) % 4, 0.0)
    units[ROW["validation"]] = 3
    for name in NAMES:
        rows = pd.read_csv(f"{name}.csv")
        rows["units"] = np.resize(units if name == "a" else np.arange(5.0), len(rows))
        rows.to_csv(f"{name}.csv", index=False)
    plan = plan_of("algo=gram", "data.only=[x,z,u,units]", "data.target=cost")
    connections = Subtracting(sites_of(plan, Policy(min_cell=1)), feature=3)
    with fails("the server came with another model"):  # for its scores, after all was told
        run_plan(plan, connections, "out")
    at_0, at_1, at_2 = (48 * loss for loss in connections.losses)  # of 3 x 16 validation rows
    square = (at_2 - 2 * at_1 + at_0) / 2  # of losses (y - t x)^2
    assert np.sqrt(square) == pytest.approx(3.0)
    assert (square + at_0 - at_1) / 2 / np.sqrt(square) == pytest.approx(
        pd.read_csv("a.csv")["cost"][ROW["validation"]]
    )
    with fails("site 'a'", "few validation rows outweigh all others in the column 'units'"):
        run_plan(plan, InProcessConnections(sites_of(plan, Policy())), "refused")


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize(
    ("words", "others"),
    [
        (("data.target=cost",), 0.0),
        (("data.target=cost",), np.random.default_rng(1).normal(size=60)),  # of which the row is an outlier
        (("data.target=cost", "data.offset=h"), 0.0),
        (("data.target=h",), 0.0),
        (("data.target=h", "objective=huber", "algo=fedavg"), 0.0),  # whose scores have squares of errors
    ],
)
def test_a_site_refuses_a_number_that_one_row_of_a_split_has(split, words, others):
    plan = plan_of("algo=gram", "data.only=[x,u,h]" if words == ("data.target=cost",) else "data.only=[x,u]", *words)
    change_site_a("h", np.arange(60) % 4)
    open_checked_site(plan, SiteOptions("a.csv"), Policy())
    rows = pd.read_csv("a.csv")
    values = np.where(rows["part"] == split, others, rows["h"])
    values[[ROW[split], ROW[split] + 1]] = [90.0, 1.0]
    change_site_a("h", values)
    split_name = "training" if split == "train" else split
    with fails(f"few {split_name} rows outweigh all others in the column 'h'"):
        open_checked_site(plan, SiteOptions("a.csv"), Policy())


@pytest.mark.parametrize("split", SPLITS[1:])
@pytest.mark.parametrize(
    ("missing", "numbers"),
    [
        ("mean", [9.0]),
        ("mean", [4.0, 5.0]),
        ("mean", [4.0, 4.0, 90.0]),
        ("indicator", [4.0, 4.0, 90.0]),  # the indicator takes the rows with a gap out of the sums
    ],
)
def test_a_site_refuses_few_numbers_beside_the_gaps_of_held_out_rows(split, missing, numbers):
    plan = plan_of("algo=gram", "data.only=[x,u,h]", "data.target=cost", f"data.missing={missing}")
    values = np.arange(60) % 4.0
    if missing == "indicator":
        values[:10] = np.nan  # of training rows
    change_site_a("h", values)
    open_checked_site(plan, SiteOptions("a.csv"), Policy())
    is_held_out = pd.read_csv("a.csv")["part"] == split
    values[is_held_out] = np.resize([*numbers, *[np.nan] * 16], is_held_out.sum())
    change_site_a("h", values)
    with fails(f"few {split} rows outweigh all others in the column 'h'", "add 'h' to data.ignore"):
        open_checked_site(plan, SiteOptions("a.csv"), Policy())


@pytest.mark.parametrize("split", SPLITS)
def test_a_site_refuses_a_fill_that_tells_the_row_with_a_gap(split):
    plan = plan_of("algo=gram", "data.only=[x,u,h]", "data.target=cost", "data.missing=mean")
    for name in NAMES:
        rows = pd.read_csv(f"{name}.csv")
        rows["h"] = np.arange(len(rows)) % 4 + 2.0
        if name == "a":
            rows.loc[rows["part"] == split, "h"] = 3.0
        rows.loc[ROW[split], "h"] = np.nan
        rows.to_csv(f"{name}.csv", index=False)
    split_name = "training" if split == "train" else split
    with fails("site 'a'", f"few {split_name} rows of this site have a gap in 'h'"):
        run_plan(plan, InProcessConnections(sites_of(plan, Policy())), "out")


def test_ordinary_numbers_of_twenty_held_out_rows_are_not_refused():
    rng = np.random.default_rng(2)
    for draw in (rng.normal, rng.exponential, partial(rng.poisson, 1.0), partial(rng.lognormal, 0.0, 0.5)):
        assert not any(column_tells_few(draw(size=20), Patients(), Policy().min_cell, False) for _ in range(500))


def test_one_number_in_a_fold_is_refused_and_the_largest_of_a_dozen_is_not():
    numbers = np.append(np.zeros(11), 90.0)
    assert column_tells_few(numbers, Patients(), 3, is_difference=True)
    assert column_tells_few(numbers + np.arange(12), Patients(), 3, is_difference=False)
    assert not column_tells_few(numbers + np.arange(12), Patients(), 3, is_difference=True)
