"""The patients that rows stand for: no rule counts rows of weight 0, of small weights, or of one patient, as rows."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from effective_rows import effective_number
from helpers import composed, fails
from ledger_plans import SPLIT, N, run, split_of, write_visits
from three_sites import plan_of

from fcorun.base.errors import UserError
from fcorun.data.datasets.sites import Sites
from fcorun.engine.remote.programs import effective_numbers, number_patients, sum_shares, sum_shares_by_client
from fcorun.experiment.prepare import prepare
from fcorun.sites.plan.patients import Patients, least_effective_number
from fcorun.sites.plan.plan import Plan
from fcorun.sites.plan.policy import Policy
from fcorun.sites.plan.site_options import SiteOptions
from fcorun.sites.tables.planned_table import read_planned_table
from fcorun.sites.tables.table_description import merge_small_cells
from fcorun.sites.tables.table_rows import SiteTable
from fcorun.studies.selection.selection_result import SelectOptions


def draw_patients(rng: np.random.Generator, n: int) -> Patients:
    weight = np.where(rng.random(n) < 0.3, 0.0, np.exp(rng.normal(scale=2.0, size=n)))
    return Patients(weight if rng.random() < 0.7 else None, rng.integers(0, n // 2, n) if rng.random() < 0.7 else None)


@pytest.mark.parametrize("seed", range(20))
def test_rows_count_as_in_the_sum_in_which_the_fewest_patients_count(seed):
    rng = np.random.default_rng(seed)
    n = 60
    patients = draw_patients(rng, n)
    part = rng.integers(-1, 5, n)
    weight = np.ones(n) if patients.weight is None else patients.weight
    number = np.arange(n) if patients.number is None else patients.number
    counts = patients.count_parts(part, 6)
    for k in range(6):
        numbers = []
        for sizes in (np.ones(n), weight, (weight == 0).astype(float)):
            of_patients = [sizes[(part == k) & (number == patient)].sum() for patient in range(n)]
            if any(of_patients):
                numbers.append(np.sum(of_patients) ** 2 / np.sum(np.square(of_patients)))
        assert counts[k] == pytest.approx(min(numbers, default=0.0), abs=1e-8)
    together = patients.count((part == 1) | (part == 3))
    assert together >= min(counts[[1, 3]][counts[[1, 3]] > 0], default=0.0) - 1e-8


@pytest.mark.parametrize("seed", range(20))
def test_no_constant_makes_a_column_tell_fewer_patients(seed):
    rng = np.random.default_rng(seed)
    values = np.append(rng.normal(size=30) if seed % 2 else rng.integers(0, 3, 30), [5.0])
    patient = rng.integers(0, 12, 31)
    numbers = []
    for c in np.union1d(values, np.linspace(-8, 8, 999)):
        numbers.append(effective_number(np.bincount(patient, np.abs(values - c))))
    assert least_effective_number(values, patient) == pytest.approx(min(numbers))


# -- every rule, with a cell of four rows which the weights or the groups leave to fewer patients

ROW = np.arange(60)
CELL = ROW < 4
ZEROS = ((ROW >= 20) & (ROW < 40)) | (ROW > 50)  # enough rows of weight 0 elsewhere
CROWDS = {
    "four patients": {},
    "one row with a weight": {"w": np.where(ZEROS | (CELL & (ROW > 0)), 0.0, 1.0)},
    "one row without weight": {"w": np.where(ZEROS | (ROW == 0), 0.0, 1.0)},
    "one row outweighs the others": {"w": np.where(CELL & (ROW > 0), 1.0, 1000.0)},
    "one patient": {"g": np.where(CELL, 0, ROW)},
    "one patient has many of the rows": {"g": np.where(ROW < 2, 0, ROW)},
    "two patients, each as 1 and as 1.0": {"g": [*["0", "0.0", "1", "1.0"], *range(4, 60)]},
}
OTHERS = np.where(ROW % 2, "north", "south")
ICU = np.where(CELL, "icu", OTHERS)
IN_HALF = ROW < 30


class Rule(NamedTuple):
    """A rule on the cell: further columns, options of the plan, and whether a table hides it; None: it is refused."""

    columns: dict
    options: tuple
    hides: Callable[[SiteTable], object] | None = None
    folds: bool = False


BINARY = ("data.target=x", "data.task=binary", "data.positive=yes", "objective=logistic", "data.only=[age,bmi]")
COX = ("data.task=survival", "objective=cox", "data.event=x", "data.only=[age,bmi]", "data.target=time")
RULES = {
    "level": Rule({"x": ICU}, (), lambda table: "icu" in table.rare_levels["x"]),
    "held-out level": Rule(
        {"x": ICU, "s": np.where(IN_HALF, "validation", "train")},
        ("data.split=s", "data.validation=null"),
        lambda table: "icu" not in table.merge_few_levels(table.code_levels("x"))[table.masks[1]],
    ),
    "value": Rule({"x": CELL.astype(int)}, (), lambda table: "x" in table.constant),
    "class": Rule({"x": np.where(CELL, "yes", "no")}, BINARY),
    "target": Rule({"x": CELL.astype(int)}, ("data.target=x", "data.only=[age,bmi]")),
    "gap": Rule({"x": np.where(CELL, np.nan, ROW % 7 + ROW % 5)}, ("data.missing=indicator",)),
    "client": Rule({"x": ROW % 7, "c": np.where(CELL, "one", "other")}, ("data.client=c",)),
    "events": Rule({"x": CELL.astype(int), "time": ROW + 1}, COX),
    "fold": Rule(
        {"x": np.where(CELL | (ROW > 45), "icu", OTHERS), "f": np.where(IN_HALF, "p", "q")},
        ("data.fold=f", "data.fold_names=[p,q]"),
        folds=True,
    ),
}


def plan_of_rule(rule: Rule) -> Plan:
    columns = ("data.weight=w", "data.group=g", "data.standardize=none", "precision=float64", "rounds=1")
    algo = ("algo=gram",) if rule.folds else ("algo=fedavg", "algo.client_lr=0.1")
    words = {"data.target": "cost", "data.only": "[age,x]", "data.validation": "0"}
    given = dict(word.split("=", 1) for word in rule.options)
    merged = [f"{key}={value}" for key, value in (words | given).items()]
    experiment = prepare(composed(*algo, "data=sites", *columns, *merged))
    return Plan.from_experiment(experiment, options=SelectOptions(folds=2, points=2) if rule.folds else None)


@pytest.mark.parametrize("name", RULES)
def test_few_patients_are_few_rows(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rule = RULES[name]
    plan = plan_of_rule(rule)
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.normal(50, 10, 60).round(1), "bmi": rng.normal(25, 4, 60).round(2)})
    frame = frame.assign(cost=rng.normal(size=60).round(2), w=1.0, g=ROW, **rule.columns)
    found = {}
    for crowd, columns in CROWDS.items():
        frame.assign(**columns).to_csv("a.csv", index=False)
        try:
            table = read_planned_table(plan, SiteOptions("a.csv"), Policy(min_rows=4, min_cell=3, alone="allow"))
            found[crowd] = bool(rule.hides(table)) if rule.hides else "answers"
        except UserError as error:
            found[crowd] = str(error) if rule.hides else "refuses"
    kept, few = (False, True) if rule.hides else ("answers", "refuses")
    assert found == {crowd: few if columns else kept for crowd, columns in CROWDS.items()}


@pytest.mark.parametrize(("columns", "n_counted"), [({}, 60), (CROWDS["one row with a weight"], 28)])
def test_a_hessian_has_the_rows_that_count(columns, n_counted, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(60, 3)), columns=["age", "x", "cost"])
    frame.assign(w=1.0, g=ROW).assign(**columns).to_csv("a.csv", index=False)
    plan = plan_of_rule(Rule({}, ("data.only=[age,x]",)))
    table = read_planned_table(plan, SiteOptions("a.csv"), Policy(min_rows=4))
    assert table.count_in_hessian(np.ones(60, bool)) == (n_counted, [n_counted])


# -- the ledger


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(("n_visits", "is_refused"), [(12, True), (1, False)])
def test_two_plans_tell_no_visits_of_one_patient(first, n_visits, is_refused, tmp_path, monkeypatch):
    """Twelve rows change their split; a plan names the patients, be it the first or the second one."""
    monkeypatch.chdir(tmp_path)
    patient = np.arange(N)
    patient[80:92] = 80 + np.arange(12) // n_visits
    table = write_visits().assign(patient=patient)
    named, unnamed = ("data.group=patient", "data.only=[age]"), ("data.only=[age,patient]",)
    table.assign(split=split_of(80)).to_csv("visits.csv", index=False)
    run(plan_of(*SPLIT, *(named if first else unnamed)))
    table.assign(split=split_of(92)).to_csv("visits.csv", index=False)
    words = "12 rows of fewer than 10 groups of 'patient' are validation rows of this plan and were"
    with fails(words) if is_refused else nullcontext():
        run(plan_of(*SPLIT, *(unnamed if first else named)))


@pytest.mark.parametrize(
    ("drops", "weights", "is_refused"),
    [
        (False, (0.001, 25.0), True),
        (False, (0.001, 0.001), False),
        (True, (1.0, 1.0), False),
        (True, (0.001, 0.001), True),  # the newer file has no such weight, so that one of the rows may outweigh all
    ],
)
def test_two_plans_tell_no_row_of_a_large_weight(drops, weights, is_refused, tmp_path, monkeypatch):
    """The difference of two weighted sums over files that differ by twelve rows is the one row that outweighs them."""
    monkeypatch.chdir(tmp_path)
    weight = np.where(np.arange(N) % 10, 1.0, 25.0)
    weight[-12:], weight[-1] = weights
    table = write_visits().assign(w=weight, split="train")
    files = {"few.csv": table[:-12], "all.csv": table}
    for name, rows in files.items():
        rows.to_csv(name, index=False)
    first, second = ("all.csv", "few.csv") if drops else ("few.csv", "all.csv")
    run(plan_of(*SPLIT, "data.weight=w"), first)
    words = (
        "12 rows, whose weights ('w') the ledger does not keep" if drops else "12 rows that count like fewer than 10"
    )
    with fails(words, "and were", "or data.weight where weights are the reason") if is_refused else nullcontext():
        run(plan_of(*SPLIT, "data.weight=w"), second)
    run(plan_of(*SPLIT, "data.ignore=[w]", "seed=1"), second)  # sums without weights


def test_sums_without_weights_do_not_tell_what_weighted_ones_do(tmp_path, monkeypatch):
    """Two plans without weights may tell twelve rows, one of which is all that two weighted plans would tell."""
    monkeypatch.chdir(tmp_path)
    weight = np.where(np.arange(N) % 10, 1.0, 25.0)
    weight[-12:-1] = 0.001
    table = write_visits().assign(w=weight, split="train")
    table[:-12].to_csv("few.csv", index=False)
    table.to_csv("all.csv", index=False)
    for path in ("few.csv", "all.csv"):
        run(plan_of(*SPLIT, "data.only=[age,w]"), path)
    weighted = plan_of(*SPLIT, "data.only=[age]", "data.weight=w")
    with fails("12 rows that count like fewer than 10 patients by their weights ('w') are"):
        run(weighted, "all.csv")
    run(weighted, "all.csv", overlap=True)
    run(plan_of(*SPLIT, "data.only=[age]", "data.weight=w", "seed=1"), "few.csv")  # the owner has given the rows away


@pytest.mark.parametrize("client", ["data.client=unit", "data.ignore=[patient,unit]"])
def test_groups_of_an_earlier_plan_count_in_a_newer_file(client, tmp_path, monkeypatch):
    """Twelve visits of one new patient: the newer plan does not read who they are, and its site does."""
    monkeypatch.chdir(tmp_path)
    unit = ["a"] * (N - 12) + ["b"] * 12
    table = write_visits().assign(split="train", patient=[*range(N - 12), *[N] * 12], unit=unit)
    table[:-12].to_csv("old.csv", index=False)
    table.to_csv("new.csv", index=False)
    table.assign(patient=range(N)).to_csv("others.csv", index=False)
    run(plan_of(*SPLIT, "data.group=patient", "data.ignore=[unit]"), "old.csv")
    unnamed = plan_of(*SPLIT, "data.ignore=[patient]", client)
    with fails("12 rows of fewer than 10 groups of 'patient' are training rows of", "this plan and were in no set"):
        run(unnamed, "new.csv")
    run(unnamed, "others.csv")


def test_groups_of_an_earlier_plan_do_not_tell_rows_apart(tmp_path, monkeypatch):
    """Each file names all patients anew, and the newest one has one visit more; its plan does not read who they are."""
    monkeypatch.chdir(tmp_path)
    table = write_visits().assign(split="train", patient=range(N))
    for name, n_rows, shift in (("first.csv", 200, 0), ("old.csv", N - 1, 1000), ("new.csv", N, 2000)):
        table[:n_rows].assign(patient=table["patient"] + shift).to_csv(name, index=False)
    run(plan_of(*SPLIT, "data.group=patient"), "first.csv")
    run(plan_of(*SPLIT, "data.ignore=[patient]"), "old.csv")
    with fails("1 row is training rows of this plan and was in no set of plan"):
        run(plan_of(*SPLIT, "data.ignore=[patient]"), "new.csv")


# -- sums at models


@pytest.mark.parametrize("seed", range(3))
def test_shares_of_one_patient_count_together(seed):
    rng = np.random.default_rng(seed)
    shares = rng.exponential(size=(2, 40)).astype(np.float32)
    client = np.sort(rng.integers(0, 3, 40)).astype(np.int32)
    patient = number_patients(np.char.add(rng.integers(0, 9, 40).astype(str), client.astype(str)))
    assert patient is not None
    of_site = effective_numbers(sum_shares_by_client(jnp.asarray(shares), jnp.asarray(client), 3, patient)[None])[0]
    of_clients = sum_shares_by_client(jnp.asarray(shares), jnp.asarray(client), 3, patient)
    for k in range(2):
        assert of_site[k] == pytest.approx(effective_number(np.bincount(patient, shares[k])), rel=1e-5)
        for m in range(3):
            of_client = effective_numbers(of_clients[m][None])[k]
            sizes = np.bincount(patient[client == m], shares[k][client == m])
            assert of_client == pytest.approx(effective_number(sizes), rel=1e-5)
            alone = sum_shares(jnp.asarray(shares[:, client == m]), patient[client == m])
            assert effective_numbers(alone[None])[k] == pytest.approx(of_client, rel=1e-5)


def test_a_cell_of_a_histogram_has_enough_patients():
    bins = np.array([0, 0, 1, 4, 4, 4, 4, 5, 8, 9])
    patients = Patients(number=np.where(bins == 4, 99, np.arange(10)))  # four rows of one patient
    assert merge_small_cells(bins, 10, 3, Patients()).tolist() == [0, 3, 0, 0, 4, 0, 0, 0, 0, 3]
    assert merge_small_cells(bins, 10, 3, patients).tolist() == [
        0,
        10,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
    ]  # seven rows like 2.6 patients


def test_no_patient_has_rows_of_several_clients_of_a_site():
    """Each client would count one, in sums of which a site sends the total."""
    with fails("data.group_across=keep", "leave it out"):
        Sites(target="y", group="patient", client="ward", group_across="keep")
