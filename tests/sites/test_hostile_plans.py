"""Plans of an analyst who is after one patient: each is refused, or its answers do not tell the row."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from effective_rows import effective_number
from hostile_plans import FEATURES, TARGET, HostilePlan, Outcome, find_likeness, make_frame, try_hostile
from ledger_plans import describe

from fcorun.engine.schedule import Schedule
from fcorun.results.models.inference_problem import InferenceOptions
from fcorun.sites.plan.patients import least_effective_number
from fcorun.sites.plan.policy import Policy
from fcorun.sites.site.acceptance import accept, find_differences, open_checked_site, open_durable_site
from fcorun.sites.transport.messages import OwnerError
from fcorun.studies.selection.selection_result import SelectOptions

SAME = 0.9999  # the cosine above which an attacker has a row
ROW = np.arange(60)
FIRST = {n: np.arange(TARGET, TARGET + n) for n in (1, 2, 3, 5, 9, 10, 12)}
SELECT = SelectOptions(points=2, folds=3, range=[0.01, 0.1])
TWO_FOLDS = SelectOptions(points=2, range=[0.01, 0.1])
L1 = ("reg=l1", "algo=fedmid", "algo.client_lr=0.01")
CERTIFIED = (*L1, "reg.strength=0.1")
GRAM = ("algo=gram", "rounds=1")
LOGISTIC = ("data.target=ill", "data.task=binary", "data.positive='1'")
POISSON = ("data.target=visits", "objective=poisson")
GAMMA = ("data.target=visits", "objective=gamma")
COX = ("data.target=hours", "data.event=event", "objective=cox", "algo=newton")
WITH_H = f"data.only=[{','.join(FEATURES)},h]"
SPLIT = ("data.split=h", "data.validation=null")
LOCAL = "local_steps=2"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def mark(value, others, n_rows: int = 1):
    """Return a function of a table: a column of one value in the first rows from TARGET on, and another elsewhere."""
    return lambda frame: np.where(np.isin(ROW, FIRST[n_rows]), value, others)


def add(column: str, value: float, third: float = 0.0):
    """Return a function of a table: a column plus a number in the row TARGET, and a third number in the row 3."""
    return lambda frame: frame[column] + value * (ROW == TARGET) + third * (ROW == 3)


def age(n_young: int):
    """Return a function of a table: ages, at site a above those of site b but in the first rows from TARGET on."""
    first_of_a = make_frame(0)["cost"][0]
    return lambda frame: np.where((frame["cost"][0] == first_of_a) & ~np.isin(ROW, FIRST[n_young]), 62 + ROW / 2,
                                  np.where(frame["cost"][0] == first_of_a, 31 + 2 * (ROW - TARGET), 20 + 0.7 * ROW)
                                  )  # fmt: skip


def name_clients(n_rows: int):
    """Return a function of a table: names of two clients, other ones at each site, one of n rows."""
    return lambda frame: np.where(np.isin(ROW, FIRST[n_rows]), f"small {frame['cost'][0]}", f"large {frame['cost'][0]}")


def without(column: str, n_rows: int = 1):
    return lambda frame: frame[column].where(~np.isin(ROW, FIRST[n_rows]))


def only_row(column: str):
    return lambda frame: frame[column].where(ROW == TARGET)


def plans_of_weights() -> list[HostilePlan]:
    refused = {
        "one": mark(1, 0), "five": mark(1, 0, 5), "nine": mark(1, 0, 9), "huge": mark(1e9, 1), "hundred": mark(100, 1),
        "tiny": mark(1.0, 1e-9, 5), "double": mark(2, 1), "zero": mark(0, 1), "nearly": mark(1 + 1e-6, 1),
        "two": mark(0.5, 1, 2),
    }  # fmt: skip
    algorithms = {"fedavg": (), "gram": GRAM, "newton": ("algo=newton", "data.standardize=pooled")}
    plans = []
    for algo, words in algorithms.items():
        for name, column in refused.items():
            plans.append(HostilePlan(f"weight-{name}-{algo}", (*words, "data.weight=h"), {"h": column}))
        for n_rows, others in ((9, 0.5), (10, 0)):
            words = (*words, "data.weight=h")
            column = {"h": mark(1, others, n_rows)}
            at = "run" if others == 0 and algo != "fedavg" else ""  # a Hessian of ten rows
            plans.append(HostilePlan(f"weight-{n_rows}-rows-{algo}", words, column, at=at))
    held_out = {"s": lambda frame: np.where(ROW < 20, "validation", "train")}
    held_out["h"] = lambda frame: ((ROW >= 20) | (ROW == TARGET)).astype(int)
    words = ("data.weight=h", "data.split=s", "data.validation=null")
    plans.append(HostilePlan("weight-validation", words, held_out))
    plans.append(HostilePlan("weight-folds", (*L1, "data.weight=h"), {"h": mark(9, 1, 12)}, select=SELECT))
    return plans


def plans_of_offsets() -> list[HostilePlan]:
    columns = {"one": mark(1, 0), "huge": mark(1e9, 0), "rest": mark(0, 1e3), "two": mark(3, 0, 2)}
    tasks = {"squares": (), "logistic": LOGISTIC, "poisson": POISSON}
    plans = []
    for name, column in columns.items():
        for task, words in tasks.items():
            plans.append(HostilePlan(f"offset-{name}-{task}", (*words, "data.offset=h"), {"h": column}))
    spread = {"h": lambda frame: np.where(ROW == TARGET, 0, 1000.0 + 10 * ROW)}  # all rows but one are saturated
    plans += [
        HostilePlan("offset-spread-logistic", (*LOGISTIC, "data.offset=h"), spread, at="run"),
        HostilePlan("offset-spread-poisson", (*POISSON, "data.offset=h"), spread, at="run"),
        HostilePlan("offset-spread-gamma", (*GAMMA, "data.offset=h"), {"h": lambda f: -spread["h"](f)}, at="run"),
        HostilePlan("offset-gap", ("data.offset=h",), {"h": mark(np.nan, 0.5)}),
        HostilePlan("offset-five", ("data.offset=h",), {"h": mark(3, 0, 5)}, at=""),
    ]
    return plans


def plans_of_splits() -> list[HostilePlan]:
    plans = []
    for key in ("validation", "test"):
        for share in (0.02, 0.1, 0.15, 0.9, 0.99):
            plans.append(HostilePlan(f"{key}-{share}", (f"data.{key}={share}",)))
        plans.append(HostilePlan(f"{key}-clients", (f"data.{key}=[a]",), at=""))
        plans.append(HostilePlan(f"split-{key}-one", SPLIT, {"h": mark(key, "train")}))
        plans.append(HostilePlan(f"split-{key}-nine", SPLIT, {"h": mark(key, "train", 9)}))
        plans.append(HostilePlan(f"split-{key}-rest", SPLIT, {"h": mark("train", key)}))
    plans += [
        HostilePlan("validation-none", ("data.validation=0.001",), at=""),  # no row
        HostilePlan("test-none", ("data.test=0.001",), at="run"),
        HostilePlan("group-split", ("data.group=h", "data.validation=0.1"), {"h": mark("me", "rest")}),
    ]
    return plans


def plans_of_folds() -> list[HostilePlan]:
    plans = []
    for name, column in {"one": mark("x", "z"), "nine": mark("x", "z", 9), "rest": mark("z", "x")}.items():
        words = (*L1, "data.fold=h", "data.fold_names=[x,z]")
        plans.append(HostilePlan(f"fold-{name}", words, {"h": column}, select=TWO_FOLDS))
    for folds in (7, 20, 60):
        select = SelectOptions(points=2, folds=folds, range=[0.01, 0.1])
        plans.append(HostilePlan(f"folds-{folds}", L1, select=select))
    by_clients = SelectOptions(points=2, folds=2, by="clients", range=[0.01, 0.1])
    tiny_range = SelectOptions(points=2, folds=3, range=[1e-9, 1.00001e-9])
    two = SelectOptions(points=2, folds=2, range=[0.01, 0.1])
    gap = {"f0": without("f0")}
    gram = ("algo=gram", "reg=l1", "rounds=1")
    outlier = {"h": lambda frame: np.where(ROW % 20 == TARGET, 1 + ROW / 30, 0)}  # a row in each fold, or so
    plans += [
        HostilePlan("folds-clients", L1, select=by_clients),
        HostilePlan("folds-range", L1, select=tiny_range, at=""),
        HostilePlan("folds-gram-20-rows", gram, select=SELECT, at="run"),
        HostilePlan("folds-gram-30-rows", gram, select=two, at=""),
        HostilePlan("folds-group", (*gram, "data.group=h"), {"h": mark("me", "rest")}, select=SELECT),
        HostilePlan("folds-gap", (*gram, "data.missing=mean"), gap, select=two, at=""),
        HostilePlan("folds-rare-numbers", (*gram, WITH_H), outlier, select=two),
    ]
    return plans


def plans_of_clients() -> list[HostilePlan]:
    plans = []
    columns = {
        "rows": lambda frame: np.char.add("c", ROW.astype(str)),
        "one": mark("me", "rest"),
        "nine": mark("me", "rest", 9),
    }
    for name, column in columns.items():
        plans.append(HostilePlan(f"client-{name}", ("data.client=h",), {"h": column}))
        plans.append(HostilePlan(f"owner-client-{name}", (), {"h": column}, client="h"))
    names = ("adap", "gram", "newton", "mixture", "pfedme", "edsl", "scaffold", "ditto", "apfl", "local", "fedprox")
    for algo in (*names, "dlsa", "meta_analysis"):
        words = (f"algo={algo}", "data.client=h")
        at = "run" if algo in ("dlsa", "meta_analysis") else ""  # three rows for each feature
        plans.append(HostilePlan(f"{algo}-nine", words, {"h": name_clients(9)}))
        plans.append(HostilePlan(f"{algo}-ten", words, {"h": name_clients(10)}, at=at))
    ten, client = {"h": name_clients(10)}, "data.client=h"
    plans += [
        HostilePlan("cohort", (client, "clients_per_round=1", "rounds=9"), ten, at=""),
        HostilePlan("uniform", (client, "client_weighting=uniform"), ten, at=""),
        HostilePlan("per-client-ten", (client, "data.standardize=per_client"), ten, at=""),
        HostilePlan("per-client-nine", (client, "data.standardize=per_client"), {"h": name_clients(9)}),
    ]
    return plans


def plans_of_targets() -> list[HostilePlan]:
    plans = []
    columns = {
        "pair": mark(1, 0), "third": lambda frame: 1.0 * (ROW == TARGET) + 1e-3 * (ROW == 3),
        "level": lambda frame: 100 + 1.0 * (ROW == TARGET) + 1e-3 * (ROW == 3), "outlier": add("cost", 1e6),
    }  # fmt: skip
    for name, column in columns.items():
        for algo, words in {"fedavg": (), "gram": GRAM}.items():
            plans.append(HostilePlan(f"target-{name}-{algo}", (*words, "data.target=h"), {"h": column}))
    third_class = {"h": lambda frame: np.where(ROW == TARGET, 2, frame["ill"])}
    classes = ("data.task=multiclass", "objective=softmax", "data.classes=['0','1','2']")
    plans += [
        HostilePlan("class-one", (*LOGISTIC, "data.target=h"), {"h": mark(1, 0)}),
        HostilePlan("class-third", (*classes, "data.target=h"), third_class),
        HostilePlan("cox-one", (*COX, "data.event=h"), {"h": mark(1, 0)}),
        HostilePlan("cox-two", (*COX, "data.event=h"), {"h": mark(1, 0, 2)}),
        HostilePlan("cox-last", COX, {"hours": add("hours", 1e6)}, at=""),
        HostilePlan("poisson-one", (*POISSON, "data.target=h"), {"h": mark(50, 0)}),
        HostilePlan(
            "poisson-third", (*POISSON, "data.target=h"), {"h": lambda frame: 50 * (ROW == TARGET) + (ROW == 3)}
        ),
        HostilePlan(
            "gamma-one", (*GAMMA, "data.target=h"), {"h": lambda frame: 1 + 1e9 * (ROW == TARGET) + (ROW == 3)}
        ),
        HostilePlan("huber-outlier", ("objective=huber",), {"cost": add("cost", 1e6)}, at=""),
    ]
    return plans


def plans_of_columns() -> list[HostilePlan]:
    plans = []
    refused = {"third": lambda frame: 1e3 * (ROW == TARGET) + (ROW == 3), "outlier": add("f0", 1e4)}
    refused["levels"] = lambda frame: np.char.add("l", (ROW % 40).astype(str))
    constant = {"pair": mark(1, 0), "level": mark("x", "y")}
    constant["two-levels"] = lambda frame: np.where(ROW == TARGET, "x", np.where(ROW == 3, "z", "y"))
    for algo, words in {"gram": GRAM, "newton": ("algo=newton",), "fedavg": ()}.items():
        for name, column in (refused | constant).items():
            at = "" if name in constant else "accept"
            plans.append(HostilePlan(f"column-{name}-{algo}", (*words, WITH_H), {"h": column}, at=at))
    median = ("data.missing=median", f"data.ranges={{{','.join(f'{name}: [-4,4]' for name in FEATURES)}}}")
    for missing, words in {
        "mean": ("data.missing=mean",),
        "median": median,
        "indicator": ("data.missing=indicator",),
    }.items():
        at = "accept" if missing == "indicator" else ""  # one fill, in each fold too
        plans.append(HostilePlan(f"gap-{missing}", words, {"f0": without("f0")}, at=at))
        plans.append(HostilePlan(f"gaps-{missing}", words, {"f0": without("f0", 10)}, at=""))
        plans.append(HostilePlan(f"value-{missing}", words, {"f0": only_row("f0")}))
    spline = (WITH_H, "data.splines={h: 5}", "data.ranges={h: [0,120]}")
    for algo, words in {"gram": GRAM, "newton": (*LOGISTIC, "algo=newton"), "fedavg": ()}.items():
        for n_young in (1, 2, 12):  # 12 rows are fewer than the numbers of a line of the Hessian
            at = "" if n_young == 12 and algo != "newton" else "run"
            columns = {"h": age(n_young)}
            plans.append(HostilePlan(f"spline-{n_young}-{algo}", (*words, *spline), columns, at=at))
    plans.append(HostilePlan("gap-refuse", (), {"f0": without("f0")}))
    plans.append(
        HostilePlan("ignore", ("data.only=null", "data.ignore=[ill,visits,hours,event]"), {"h": refused["third"]})
    )
    return plans


def plans_of_steps() -> list[HostilePlan]:
    plans = [HostilePlan(f"batch-{b}", (f"batch_size={b}", "local_steps=1")) for b in (1, 2, 9, 55, 58, 59)]
    plans += [HostilePlan(f"batches-{b}", (f"batch_size={b}",)) for b in (9, 29, 55, 59)]
    tiny = {"huber": "objective.delta=1e-9", "quantile": "objective.smoothing=1e-9"}
    for objective, words in tiny.items():
        plans.append(HostilePlan(f"{objective}-tiny", (f"objective={objective}", words, "algo.client_lr=1e6"), at=""))
    level = ("objective=quantile", "objective.level=0.999", tiny["quantile"])
    groups = {"few": lambda frame: ROW % 6, "many": lambda frame: np.minimum(ROW, 48), "rows": lambda frame: ROW}
    for name, column in groups.items():
        infer = InferenceOptions(cluster="group")
        at = {"few": "accept", "many": "run", "rows": ""}[name]  # the Hessian of 49 groups, one of them of 12 rows
        plans.append(HostilePlan(f"infer-groups-{name}", ("data.group=h",), {"h": column}, at=at, infer=infer))
    plans += [
        HostilePlan("batch-all", ("batch_size=60",), at=""),
        HostilePlan("steps-logistic", (*LOGISTIC, "algo.client_lr=1e6", "local_steps=5"), at="run"),
        HostilePlan("steps-squares", ("algo.client_lr=1e6", "local_steps=5"), at=""),
        HostilePlan("steps-poisson-overflow", (*POISSON, "algo.client_lr=1e3", LOCAL), at=""),  # NaN alone leaves
        HostilePlan("step-poisson", (*POISSON, "algo.client_lr=2", "local_steps=1"), at="run"),
        HostilePlan("quantile-offset", (*level, "data.offset=h"), {"h": mark(-50, 50)}),
        HostilePlan("quantile-target", (*level, "data.target=h"), {"h": add("cost", 50, 1)}, at=""),
        HostilePlan("mlp", (*LOGISTIC, "objective=mlp", "objective.hidden=[4]"), at=""),
        HostilePlan("mlp-steep", (*LOGISTIC, "objective=mlp", "objective.hidden=[1]", "algo.client_lr=1e3"), at=""),
        HostilePlan("threshold", (*LOGISTIC, "threshold=youden", "data.validation=0.25"), at=""),
        HostilePlan("gap", (*CERTIFIED, "gap=true"), at=""),
        HostilePlan("reference", (*CERTIFIED, "reference=true"), at=""),
        HostilePlan("infer", (), infer=InferenceOptions(), at=""),
        HostilePlan("infer-outlier", (WITH_H,), {"h": add("f0", 1e4)}, infer=InferenceOptions()),
    ]
    return plans


PLANS = [
    *plans_of_weights(), *plans_of_offsets(), *plans_of_splits(), *plans_of_folds(), *plans_of_clients(),
    *plans_of_targets(), *plans_of_columns(), *plans_of_steps(),
]  # fmt: skip


def rows_of_site_a() -> np.ndarray:
    return pd.read_csv("a.csv")[FEATURES].fillna(0).to_numpy(float)


def check_counts(outcome: Outcome) -> None:
    """Fail for a count of one or two rows of a described set."""
    described = {"describe", "folds", "fold_values"}
    for message, _, arrays in outcome.heard:
        for name, values in arrays.items():
            if message in described and values.dtype.kind == "i":
                assert not np.isin(values, (1, 2)).any(), (message, name)


@pytest.mark.slow
@pytest.mark.parametrize("hostile", PLANS, ids=[plan.name for plan in PLANS])
def test_a_hostile_plan_is_refused_or_tells_no_row(hostile):
    outcome = try_hostile(hostile)
    assert (outcome.at, bool(outcome.sentence)) == (hostile.at, bool(hostile.at)), outcome.sentence
    assert "\n" not in outcome.sentence
    if len(outcome.vectors):
        assert max(find_likeness(outcome.vectors, row) for row in rows_of_site_a()) < SAME
    check_counts(outcome)


# -- what no rule bounds, as docs/guide/trust.md says: whoever closes one of these takes it off the page


def likeness_of_rows(outcome: Outcome) -> float:
    return max(find_likeness(outcome.vectors, row) for row in rows_of_site_a())


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["quantile", "huber"])
def test_a_row_that_crosses_a_narrow_band_between_two_rounds_is_told(objective):
    width = {"quantile": "objective.smoothing=1e-9", "huber": "objective.delta=1e-9"}[objective]
    step = {"quantile": "algo.client_lr=0.02", "huber": "algo.client_lr=1e7"}[objective]
    plan = HostilePlan("band", (f"objective={objective}", width, step, "rounds=12"))
    assert likeness_of_rows(try_hostile(plan)) > SAME


@pytest.mark.slow
def test_a_row_that_outweighs_all_others_between_local_steps_is_told():
    plan = HostilePlan("steps", (*POISSON, "algo.client_lr=30", "local_steps=2"))
    assert likeness_of_rows(try_hostile(plan)) > SAME


@pytest.mark.slow
def test_two_columns_of_a_plan_that_differ_in_one_row_tell_it():
    for algo in (GRAM, ("algo=newton",)):
        plan = HostilePlan("twins", (*algo, WITH_H), {"h": add("f0", 1.0)})
        assert find_likeness(try_hostile(plan).vectors, rows_of_site_a()[TARGET]) > SAME


@pytest.mark.slow
def test_as_many_batches_as_rows_tell_each_row():
    plan = HostilePlan("batches", ("batch_size=20", "local_steps=1", "rounds=90", "algo.client_lr=1e-9"))
    outcome = try_hostile(plan)
    sums = [answered["0"][0] for message, _, answered in outcome.heard if message == "round"]  # steps of the weights
    batches = draw_batches(plan, len(sums))
    gradients = np.linalg.lstsq(batches, np.array(sums), rcond=None)[0]
    gradients /= np.linalg.norm(gradients, axis=1, keepdims=True)
    likeness = [find_likeness(gradients[[row]], x) for row, x in enumerate(rows_of_site_a())]
    assert min(likeness) > SAME


@pytest.mark.slow
def test_two_sizes_of_batches_tell_a_row():
    vectors = []
    for size in (20, 21):
        plan = HostilePlan("sizes", (f"batch_size={size}", "local_steps=1", "rounds=1"))
        vectors.append(try_hostile(plan).vectors)
    assert max(find_likeness(np.concatenate(vectors), row) for row in rows_of_site_a()) > SAME


@pytest.mark.slow
@pytest.mark.parametrize("role", ["weight", "offset", "target"])
def test_two_columns_that_differ_in_one_row_tell_it_by_two_plans(role):
    columns = {"h": lambda frame: 1.0 + ROW % 3, "i": lambda frame: 1.0 + ROW % 3 + (ROW == TARGET)}
    vectors = []
    for name in columns:
        plan = HostilePlan("twins", (*GRAM, f"data.{role}={name}"), columns)
        answer_plan(plan)  # the ledger passes
        vectors.append(try_hostile(plan).vectors)
    assert find_likeness(np.concatenate(vectors), rows_of_site_a()[TARGET]) > SAME


def draw_batches(hostile: HostilePlan, rounds: int) -> np.ndarray:
    """Return which rows of site a are in the batch of each round, (rounds, N), from the plan and the names alone."""
    settings = hostile.make().experiment.settings
    offsets, names = np.array([0, len(ROW)]), ("a",)
    schedule = Schedule(
        offsets, settings.seed, batch_size=settings.batch_size, local_steps=settings.local_steps, names=names
    )
    batches = np.zeros((rounds, len(ROW)))
    np.put_along_axis(batches, schedule.draw_rounds(0, rounds).rows[:, 0, 0], 1, axis=1)
    return batches


# -- two plans that differ by one row


@dataclass(frozen=True)
class Pair:
    """Two plans, the second of which is refused once the first is in the ledger.

    Attributes:
        name: the name of the attack.
        first, second: the plans.
        change: the change of the file between them.
        tells_row: whether answers without a ledger tell the row TARGET by the attack of ``find_likeness``.
    """

    name: str
    first: HostilePlan
    second: HostilePlan
    change: Callable[[pd.DataFrame], pd.DataFrame] = lambda frame: frame
    tells_row: bool = True


def pair(name: str, words=(), second=(), columns=None, moved=None, change=None, tells_row=True, select=None) -> Pair:
    """Return a pair of plans on columns, which ``moved`` replaces for the second one."""
    plans = []
    for more, added in ((words, columns), (second or words, moved or columns)):
        plans.append(HostilePlan(name, (*GRAM, *more), added or {}, at="", select=select))
    return Pair(name, *plans, change=change or Pair.change, tells_row=tells_row)


def halves(names: tuple[str, str], moved: int = -1):
    """Return a function of a table: the first name in 20 rows after TARGET, or in the row ``moved`` as well."""
    return lambda frame: np.where(((ROW > 20) & (ROW <= 40)) | np.isin(ROW, moved), *names)


def weigh(n_rows: int):
    """Return a function of a table: weights, of which those of the last rows, and of TARGET with 13 rows, are 0."""
    return lambda frame: np.where((ROW >= 48) | ((ROW == TARGET) & (n_rows == 13)), 0.0, 1.0 + ROW % 3)


SPLIT_MARK = {"h": halves(("validation", "train"))}
CLIENTS = {"h": halves(("x", "z"))}
FOLDS = ("algo=gram", "reg=l1", "data.fold=h", "data.fold_names=[x,z]", WITH_H.replace(",f6,f7,h", ""))
PAIRS = [
    pair("validation", ("data.validation=0.2",), ("data.validation=0.218",), tells_row=False),
    pair("test", ("data.test=0.2",), ("data.test=0.218",), tells_row=False),
    pair("seed", ("data.validation=0.3",), ("data.validation=0.3", "data.split_seed=1"), tells_row=False),
    pair("seed-data", ("data.validation=0.3",), ("data.validation=0.3", "data.seed=1"), tells_row=False),
    pair("split", SPLIT, columns=SPLIT_MARK, moved={"h": halves(("validation", "train"), TARGET)}),
    pair("split-test", SPLIT, columns={"h": halves(("test", "train"))}, moved={"h": halves(("test", "train"), TARGET)}),
    pair("split-kind", SPLIT, columns=SPLIT_MARK, tells_row=False,
         moved={"h": lambda frame: np.where(ROW == 25, "train", halves(("validation", "train"))(frame))}),
    pair("folds", FOLDS, columns=CLIENTS, moved={"h": halves(("x", "z"), TARGET)}, select=TWO_FOLDS, tells_row=False),
    pair("clients", ("data.client=h",), columns=CLIENTS, moved={"h": halves(("x", "z"), TARGET)}, tells_row=False),
    pair("client-lists", ("data.client=h", "data.validation=[x]"), columns=CLIENTS, tells_row=False,
         moved={"h": halves(("x", "z"), TARGET)}),
    pair("weight", ("data.weight=h",), columns={"h": weigh(12)}, moved={"h": weigh(13)}, tells_row=False),
    pair("removed", change=lambda frame: frame.drop(index=TARGET)),
    pair("appended", change=lambda frame: pd.concat([frame, frame.tail(1).assign(f0=3.3)]), tells_row=False),
    pair("mended", change=lambda frame: frame.assign(f0=add("f0", 0.5)(frame)), tells_row=False),
    pair("mended-target", change=lambda frame: frame.assign(cost=add("cost", 0.5)(frame))),
    pair("mended-gap", ("data.missing=mean",), columns={"f0": without("f0", 5)}, tells_row=False,
         change=lambda frame: frame.assign(f0=frame["f0"].where(ROW != TARGET, 0.5))),
    pair("mended-weight", ("data.weight=h",), columns={"h": weigh(12)},
         change=lambda frame: frame.assign(h=add("h", 2.0)(frame))),
    pair("mended-offset", ("data.offset=h",), columns={"h": lambda frame: ROW % 5 / 5},
         change=lambda frame: frame.assign(h=add("h", 2.0)(frame))),
    pair("groups", ("data.group=h", "data.validation=0.3"), tells_row=False, columns={"h": lambda frame: ROW // 2},
         moved={"h": lambda frame: np.where(ROW == TARGET, 29, ROW // 2)}),
]  # fmt: skip


def answer_plan(hostile: HostilePlan, change=None, check: bool = False) -> list[str]:
    """Have site a enter a plan in the ledger, or check it alone, and return the sentences of its ledger."""
    options = hostile.write_tables()["a"]
    if change is not None:
        change(pd.read_csv("a.csv")).to_csv("a.csv", index=False)
    plan = hostile.make()
    if check:
        return find_differences(open_checked_site(plan, options, Policy()), Path("site"))
    accept(Path("site"), plan, options, Policy())
    with closing(open_durable_site(Path("site"), plan)) as durable:
        describe(durable)
    return []


@pytest.mark.slow
@pytest.mark.parametrize("attack", PAIRS, ids=[attack.name for attack in PAIRS])
def test_the_second_of_two_plans_that_differ_by_a_row_is_refused(attack):
    answer_plan(attack.first)
    assert answer_plan(attack.second, attack.change, check=True)
    with pytest.raises(OwnerError, match="the difference of two answers would tell them"):
        answer_plan(attack.second, attack.change)


@pytest.mark.slow
@pytest.mark.parametrize("attack", [attack for attack in PAIRS if attack.tells_row], ids=lambda attack: attack.name)
def test_without_a_ledger_the_difference_is_the_row(attack):
    first = try_hostile(attack.first)
    row = rows_of_site_a()[TARGET]
    second = try_hostile(attack.second, change=attack.change)
    for outcome in (first, second):
        assert (outcome.at, outcome.sentence) == ("", "")
        assert find_likeness(outcome.vectors, row) < SAME
    assert find_likeness(np.concatenate([first.vectors, second.vectors]), row) > SAME


@pytest.mark.slow
def test_the_sum_of_two_plans_less_a_third_is_refused():
    """Each two of the splits differ by 10 rows and more, and all three tell the row TARGET."""
    one, other = ROW // 30, ROW // 15 % 2
    third = np.where(ROW == TARGET, 1 - (one + other) % 2, (one + other) % 2)
    marks = {"h": one, "i": other, "j": third}
    columns = {name: lambda frame, held_out=held_out: np.where(held_out, "validation", "train")
               for name, held_out in marks.items()}  # fmt: skip
    plans = []
    for name in marks:
        plans.append(HostilePlan(name, (*GRAM, f"data.split={name}", "data.validation=null"), columns))
    for plan in plans[:2]:
        answer_plan(plan)
    assert answer_plan(plans[2], check=True)
    with pytest.raises(OwnerError, match="1 row is"):
        answer_plan(plans[2])


# -- the rule


@pytest.mark.parametrize(
    "values",
    [[1] * 9 + [2], [1] * 7 + [2] * 3, [0] * 8 + [1, 1e3], [1] * 9 + [1 + 1e-6], list(range(10)), [-1e308, 0, 1e308]],
)
def test_the_least_effective_number_is_that_of_the_worst_constant(values):
    scaled = np.array(values) / max(np.abs(values))
    numbers = [effective_number(np.abs(scaled - c)) for c in np.union1d(scaled, np.linspace(-2, 2, 999))]
    assert least_effective_number(np.array(values, float)) == pytest.approx(min(numbers))


def test_equal_values_tell_no_row():
    assert least_effective_number(np.ones(5)) == least_effective_number(np.zeros(0)) == np.inf


def test_each_row_of_a_frame_has_its_direction():
    """The attack is no accident: no two rows of a table are alike."""
    rows = make_frame(0)[FEATURES].to_numpy()
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    assert np.abs(rows @ rows.T - np.eye(len(rows))).max() < SAME
