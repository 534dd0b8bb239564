"""The rules on a site's own table: at check, at accept and in a run, no sum is that of few rows."""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from helpers import SHARED, composed, fails
from site_tables import travel
from three_sites import plan_of, sites_of, write_tables

from fcorun.base.errors import UserError
from fcorun.data.tables.cells import is_missing
from fcorun.experiment.prepare import prepare
from fcorun.sites.plan.patients import effective_numbers
from fcorun.sites.plan.plan import Plan
from fcorun.sites.plan.planned_study import PlannedIntervals
from fcorun.sites.plan.policy import Policy
from fcorun.sites.plan.site_options import OwnTableError, SiteOptions
from fcorun.sites.server.server import Server, agree
from fcorun.sites.site.acceptance import describe_site, open_checked_site
from fcorun.sites.site.site import Site
from fcorun.sites.tables.planned_table import has_short_batch
from fcorun.sites.transport.connections import InProcessConnections
from fcorun.sites.transport.messages import Message
from fcorun.studies.selection.selection_result import SelectOptions

ALL_ROWS = ("data.validation=0",)
MEDICAL = SHARED / "data" / "medical"


@pytest.fixture(autouse=True)
def tables(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_tables()


def change(site="a", **columns) -> None:
    """Give the table of a site these columns."""
    rows = pd.read_csv(f"{site}.csv")
    rows.assign(**columns).to_csv(f"{site}.csv", index=False)


def change_all(**columns) -> None:
    """Give the tables of all sites columns that repeat these cells."""
    for site, n in zip("abc", (60, 70, 80), strict=True):
        change(site, **{name: np.resize(cells, n) for name, cells in columns.items()})


def check(plan: Plan, policy: Policy | None = None, site="a", **options) -> Site:
    """Return a site as fcorun site check and accept open it."""
    return open_checked_site(plan, SiteOptions(f"{site}.csv", **options), policy or Policy(alone="allow"))


def selection_of(*overrides, folds=2, **options) -> Plan:
    plan = plan_of("algo=gram", *ALL_ROWS, *overrides)
    return Plan.from_experiment(plan.experiment, options=SelectOptions(folds=folds, points=2, **options))


def first(n_first: int, n: int = 60, values=(1, 0)) -> list:
    """Return the cells of a column whose first rows have the first value."""
    return [values[0]] * n_first + [values[1]] * (n - n_first)


# -- the effective number of rows


@pytest.mark.parametrize(
    ("sizes", "number"),
    [([], 0.0), ([0, 0], 0.0), ([0.1] * 10, 10.0), ([1e-200, 0, 0], 1.0), ([2, 1, 1], 16 / 6), ([1e200, 1e200], 2.0)],
)
def test_the_effective_number_is_that_of_terms_of_equal_size(sizes, number):
    numbers = effective_numbers(np.array(sizes, float), np.zeros(len(sizes), int), 1)
    assert numbers == pytest.approx([number], rel=1e-15)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("weights", "is_refused"),
    [
        (first(1), True),
        (first(9), True),
        (first(10), False),
        (first(1, values=(1000.0, 1.0)), True),
        (np.exp(np.random.default_rng(0).normal(scale=0.5, size=60)), False),  # of a survey
        (np.exp(np.random.default_rng(0).normal(scale=2.5, size=60)), True),
    ],
)
def test_weights_of_few_rows_are_refused_at_check_and_in_a_run(weights, is_refused):
    change_all(w=[1.0])
    change(w=weights)
    plan = plan_of("algo=gram", "data.weight=w", *ALL_ROWS)
    words = ("client 'a' has training rows that data.weight=w weighs like fewer than 10", "plan without data.weight")
    with fails(*words) if is_refused else nullcontext():
        check(plan)
    with fails("site 'a'", *words) if is_refused else nullcontext():
        Server(plan, InProcessConnections(sites_of(plan, Policy(alone="allow")))).load()
    check(plan_of("algo=gram", "data.ignore=[w]", *ALL_ROWS))  # the cure


def test_weights_of_few_rows_of_a_fold_or_of_held_out_rows_are_refused():
    change(w=first(20), part=first(30, values=("x", "y")))
    marked = ("data.weight=w", "data.fold=part", "data.fold_names=[x,y]", "data.ignore=[ward]")
    plan = selection_of(*marked)  # fold y has no weight, and fold x all
    check(plan)
    change(w=first(32))  # two rows of fold y
    with fails("client 'a' has training rows in a fold, or in all others that data.weight=w weighs like fewer than 10"):
        check(plan)
    change(split=first(30, values=("validation", "train")), w=first(5))
    with fails("client 'a' has validation rows that data.weight=w weighs like fewer than 10 rows of equal weight"):
        check(plan_of("algo=gram", "data.weight=w", "data.split=split", "data.ignore=[part]"), Policy(min_rows=10))


@pytest.mark.parametrize(("n_held_out", "is_refused"), [(20, False), (8, True)])
def test_held_out_rows_without_weight_count_as_rows(n_held_out, is_refused):
    change(w=first(n_held_out, values=(0, 1)), split=first(n_held_out, values=("validation", "train")))
    with fails("client 'a' has fewer than 10 validation rows") if is_refused else nullcontext():
        check(plan_of("algo=gram", "data.weight=w", "data.split=split"))


# -- folds


def test_small_folds_are_refused_before_anything_is_sent():
    check(selection_of("data.ignore=[ward]", folds=5))
    with fails("client 'a' has fewer than 10 training rows in a fold, or in all others", "plan fewer folds"):
        check(selection_of("data.ignore=[ward]", folds=7))
    change(part=first(55, values=("x", "y")))
    with fails("client 'a' has fewer than 10 training rows in a fold", "mark other folds in the column"):
        check(selection_of("data.fold=part", "data.fold_names=[x,y]", "data.ignore=[ward]"))


def test_few_values_in_a_marked_fold_name_cures_that_help():
    """Six rows of a fold have a value; other marks and no column help, and neither fewer folds nor other fills."""
    row = np.arange(60)
    bmi = pd.read_csv("a.csv")["bmi"].where((row % 2 == 1) | (row < 12))
    change(part=np.where(row % 2, "q", "p"), bmi=bmi, w=1.0)
    plan = selection_of(
        "data.fold=part", "data.fold_names=[p,q]", "data.weight=w", "data.missing=mean", "data.ignore=[ward]"
    )
    with fails(
        "column 'bmi' has values in too few training rows of a client in fold 1, or in all others, which count like "
        "fewer than 10 patients, the least that policy.min_rows of this site allows, where rows count by "
        "data.weight=w: mark other folds in the column of data.fold, or data.ignore=[bmi] (rows with a value)"
    ):
        check(plan)


def test_rare_classes_and_levels_of_folds_are_refused_before_anything_is_sent():
    change(ill=first(5, values=("yes", "no")))
    binary = (
        "data.target=ill",
        "data.task=binary",
        "data.positive=yes",
        "objective=logistic",
        "data.ignore=[cost,ward]",
    )
    plan = plan_of("algo=newton", *ALL_ROWS, *binary)
    selection = Plan.from_experiment(plan.experiment, options=SelectOptions(folds=2, points=2))
    check(plan)
    with pytest.raises(OwnTableError, match=r"class 'yes'") as refusal:
        check(selection)
    assert refusal.value.public.startswith(
        "a class of 'ill' has fewer than 3 training rows in a fold, or in all others"
    )
    change(ward=[*["attic"] * 4, *["x", "y"] * 28])
    with fails("column 'ward' has a level in fewer than 3 training rows of a client in fold", "(level 'attic')"):
        check(selection_of("data.ignore=[ill]"))


# -- columns of two values


def cells(kind: str, n_rare: int, n: int = 60) -> list:
    """Return the cells of a column of two values, whose first rows have the rarer one."""
    values = {
        "int": (1, 0),
        "float": (0.5, 2.5),
        "bool": (True, False),
        "text": ("m", "f"),
        "text of bool": ("yes", "no"),
    }
    return first(n_rare, n, values[kind])


def answers_of(plan: Plan, site="a") -> list[bytes]:
    """Return the description, the sums and the first answer of a fit of a site, as they leave, beside the others."""
    sites = sites_of(plan, Policy(alone="allow"))
    sent: list[bytes] = []

    class Recording(InProcessConnections):
        def send(self, request):
            answers = super().send(request)
            if site in answers:
                sent.append(answers[site].to_bytes())
            return answers

    connections = Recording(sites)
    server = Server(plan, connections)
    server.load()
    if plan.select is not None:
        connections.ask("folds")
    sent.append(np.ascontiguousarray(sites[site].own_data.train.x).tobytes())
    return sent


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["int", "float", "bool", "text"])
@pytest.mark.parametrize("n_rare", [1, 2])
def test_a_rare_value_of_a_column_of_two_never_leaves(kind, n_rare):
    change_all(x=cells(kind, 1, 2))
    plan = plan_of("algo=gram", "data.ignore=[ward]", *ALL_ROWS)
    change(x=cells(kind, n_rare))
    rare = answers_of(plan)
    change(x=cells(kind, n_rare)[::-1])
    assert answers_of(plan) == rare
    change(x=cells(kind, 0))
    constant = answers_of(plan)
    if kind != "float":  # a file of whole numbers alone is read as such
        assert rare == constant
    change(x=cells(kind, 3))
    assert answers_of(plan) != constant
    tables = agree(
        plan.shared_options, {name: travel(site.answer(describe(plan))) for name, site in sites_of(plan).items()}
    )
    assert not any("constant" in text for text in tables.warnings)
    change(x=cells(kind, 2))
    tables = agree(
        plan.shared_options, {name: travel(site.answer(describe(plan))) for name, site in sites_of(plan).items()}
    )
    (warning,) = (text for text in tables.warnings if "constant" in text)
    assert warning.endswith("'x' at 'a'")


def describe(plan: Plan) -> Message:
    return Message("describe", {"plan": plan.digest})


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["int", "bool", "text"])
def test_a_value_that_is_rare_in_a_fold_makes_the_column_constant(kind):
    change_all(x=cells(kind, 1, 2), part=["p", "q"])
    part = first(30, values=("p", "q"))
    change(x=[*cells(kind, 10, 30), *cells(kind, 2, 30)], part=part)  # 12 rows, two of them in fold q
    marked = ("data.fold=part", "data.fold_names=[p,q]", "data.ignore=[ward]")
    plan = selection_of(*marked)
    table = check(plan).table
    assert table.constant == {"x"}
    assert table.columns["x"].nunique() == 1
    rare = answers_of(plan)
    change(x=[*cells(kind, 10, 30), *cells(kind, 0, 30)])  # none in fold q, and 10 in p: nothing is rare
    assert not check(plan).table.constant
    change(x=cells(kind, 0))
    assert answers_of(plan) == rare
    change(x=[*cells(kind, 10, 30), *cells(kind, 3, 30)])
    assert not check(plan).table.constant


@pytest.mark.parametrize(("more", "is_constant"), [(("data.standardize=none",), False), ((), True)])
def test_a_value_that_is_rare_at_a_client_counts_where_sums_of_clients_leave(more, is_constant):
    change(x=[*first(10, 30), *first(1, 30)], ward=first(30, values=("north", "south")))
    table = check(plan_of("algo=gram", "data.client=ward", *ALL_ROWS, *more)).table
    assert (table.constant == {"x"}) is is_constant


@pytest.mark.parametrize("kind", ["int", "bool", "text"])
def test_few_held_out_rows_of_a_value_take_the_other_one(kind):
    split = first(20, values=("validation", "train"))
    change(x=[*cells(kind, 2, 20), *cells(kind, 20, 40)], split=split)
    plan = plan_of("algo=gram", "data.split=split", "data.ignore=[ward]")
    table = check(plan).table
    assert not table.constant
    assert table.columns["x"][:20].nunique() == 1
    assert table.columns["x"][20:].nunique() == 2
    change(x=[*cells(kind, 2, 20), *cells(kind, 0, 40)])  # no training row has it
    assert check(plan).table.columns["x"].nunique() == 1
    change(x=[*cells(kind, 3, 20), *cells(kind, 0, 40)])
    assert check(plan).table.columns["x"].nunique() == 2
    change(x=[*cells(kind, 10, 20), *cells(kind, 1, 40)])  # rare in training rows: constant in all
    assert check(plan).table.columns["x"].nunique() == 1


def test_gaps_stay_gaps_and_predictions_repeat_the_cells_of_the_file():
    x = pd.Series(first(1)).astype(float)
    x[20:40] = np.nan
    change(x=x, number=np.arange(60))
    table = check(plan_of("algo=gram", "data.missing=mean", *ALL_ROWS), keep=["number"]).table
    assert table.constant == {"x"}
    assert is_missing(table.columns["x"]).sum() == 20
    assert table.rows.repeated_columns is not None
    assert table.rows.repeated_columns[:, 0].tolist() == list(map(str, range(60)))


def test_rows_of_weight_0_do_not_hide_that_a_value_is_rare():
    change(x=first(20), w=[*[0] * 18, *[1] * 42])
    assert check(plan_of("algo=gram", "data.weight=w", *ALL_ROWS)).table.constant == {"x"}


def test_the_rarer_value_of_a_target_of_two_numbers_is_no_rarer_than_a_class():
    change(cost=first(2))
    with pytest.raises(OwnTableError) as refusal:
        check(plan_of("algo=gram", *ALL_ROWS))
    assert refusal.value.public.startswith("a value of 'cost', which has two, has fewer than 3 training rows")
    change(cost=first(5))
    check(plan_of("algo=gram", *ALL_ROWS))
    change(part=[*["x"] * 4, *["y"] * 30, *["x"] * 26])
    with fails("a value of 'cost' has fewer than 3 training rows in a fold, or in all others"):
        check(selection_of("data.fold=part", "data.fold_names=[x,y]", "data.ignore=[ward]"))


def test_check_prints_how_many_rows_have_the_rarer_value():
    change(x=first(2), z=first(7), stage=np.resize([1, 2, 3, 3], 60))
    lines = {line.split()[0]: line for line in describe_site(check(plan_of("algo=gram", *ALL_ROWS)))[1:]}
    assert lines["x"].endswith("number; the rarer of its two values in 2 training rows of the file: taken as constant")
    assert lines["z"].endswith("number; the rarer of its two values in 7 training rows of the file")
    assert lines["stage"].endswith("number; the rarest of its 3 values in 15 training rows")
    assert lines["age"].endswith("number")
    assert "the rarest of its 3 values in" in lines["ward"]


def test_check_prints_as_how_many_patients_the_rows_count():
    """Pairs of rows are a patient, and five of the 15 of a fold weigh 3 times as much as the others."""
    row = np.arange(60)
    change(patient=row // 2, part=first(30, values=("p", "q")), w=np.where(row % 30 < 10, 1.5, 0.5), ward="x")
    table = check(
        selection_of("data.group=patient", "data.weight=w", "data.fold=part", "data.fold_names=[p,q]"),
        Policy(min_rows=5, min_cell=3, alone="allow"),
    )
    lines = describe_site(table)
    of_clients = lines.index("rows of each client: train, validation, test")
    of_fold, of_all = 25**2 / (5 * 3**2 + 10), 50**2 / (2 * (5 * 3**2 + 10))
    assert lines[of_clients + 1].split(maxsplit=1)[1] == f"60, 0, 0; like {of_all:.4g}, 0, 0 patients"
    assert lines[of_clients + 2] == "training rows of each client in each fold:"
    assert lines[of_clients + 3].split(maxsplit=1)[1] == f"30, 30; like {of_fold:.4g}, {of_fold:.4g} patients"
    assert any(line.split()[0] == "ward" and f"x (60, like {of_all:.4g} patients)" in line for line in lines)


def test_check_warns_of_a_spline_that_would_be_refused_with_knots_of_the_site_itself():
    """The knots of all sites are known when the run begins, after the descriptions have left."""
    words = ("data.ranges={age: [0, 120]}", "data.ignore=[ward]")
    lines = describe_site(check(plan_of("algo=gram", *ALL_ROWS, "data.splines={age: 4}", *words)))
    assert not [line for line in lines if "knots" in line]
    lines = describe_site(check(selection_of("data.splines={age: 7}", *words, folds=5)))
    (line,) = [line for line in lines if "knots" in line]
    assert line.startswith(
        "warning: the knots are agreed on when the run begins, and with those of this site's own rows"
    )
    assert "few training rows of this site, or of a client or fold here, lie beyond a knot of 'age'" in line


def test_check_remarks_an_exposure_in_place_of_its_logarithm():
    rng = np.random.default_rng(0)
    years = rng.uniform(0.1, 8, 60)
    change(cost=rng.poisson(20 * years), years=years, log_years=np.log(years))
    for offset in ("years", "log_years"):
        ignored = {"years", "log_years"} - {offset}
        words = (f"data.offset={offset}", f"data.ignore=[ward,{ignored.pop()}]", "objective=poisson")
        lines = describe_site(check(plan_of("algo=newton", "reg=none", *ALL_ROWS, *words)))
        assert any("give its logarithm" in line for line in lines) == (offset == "years")


# -- minibatches


@pytest.mark.parametrize(
    ("n_rows", "batch_size", "local_steps", "is_short"),
    [
        (61, 20, None, True),
        (60, 20, None, False),
        (60, 59, None, True),
        (60, 50, None, False),
        (60, 60, None, False),
        (60, 99, None, False),
        (61, 20, 1, False),
        (61, 20, 3, True),  # the row that three batches leave out
        (60, 59, 1, True),
    ],
)
def test_a_short_batch_is_one_of_few_rows_or_one_that_few_rows_are_left_out_of(
    n_rows, batch_size, local_steps, is_short
):
    assert has_short_batch(n_rows, batch_size, local_steps, 10) is is_short


def test_batches_of_few_rows_are_refused_with_a_size_that_fits():
    minibatches = ("algo=fedmid", "algo.client_lr=0.1", "data.ignore=[ward]")
    with fails("client 'a' has 60 training rows, of which batches of 59 leave 1", "batch_size=null, or batch_size=60"):
        check(plan_of(*minibatches, *ALL_ROWS, "batch_size=59"))
    for cure in ("null", "60"):
        check(plan_of(*minibatches, *ALL_ROWS, f"batch_size={cure}"))
    with fails("batches of 9 rows", "policy.min_rows"):
        check(plan_of(*minibatches, *ALL_ROWS, "batch_size=9"))
    plan = plan_of(*minibatches, *ALL_ROWS, "batch_size=20", "reg=l1", "reg.strength=0.1")
    check(plan)
    selection = Plan.from_experiment(plan.experiment, options=SelectOptions(folds=4, points=2))
    with fails("client 'a' has 45 training rows outside of fold 1", "batch_size=23"):
        check(selection)


# -- Hessians of single clients


def test_hessians_that_clients_fit_alone_count_the_rows_of_each_client():
    change_all(ward=["x", "y", "z", "v"])
    change(ward=first(14, values=("x", "y")))
    clients = ("data.client=ward", *ALL_ROWS, "reg=none")
    for algo, is_alone in (("newton", False), ("adap", False), ("dlsa", True), ("meta_analysis", True)):
        policy = Policy()
        plan = plan_of(f"algo={algo}", *clients, *(() if algo != "adap" else ("reg=l1", "reg.strength=0.1")))
        policy.check_rows(plan, 61, [46, 15], 5)
        with (
            fails(f"algo={algo} sends a Hessian of 5 features, and a client of this site has 14")
            if is_alone
            else (nullcontext())
        ):
            policy.check_rows(plan, 60, [46, 14, 0], 5)
        replace(policy, alone="allow").check_rows(plan, 60, [46, 14], 5)


# -- real tables


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "overrides"),
    [
        (
            "birthwt.csv",
            ("data.target=bwt", "data.ignore=[low]", "data.client=race", "algo=newton", "data.validation=0"),
        ),
        ("birthwt.csv", ("data.target=bwt", "data.ignore=[low]", "algo=newton")),
        ("boys_c.csv", ("data.target=bmi", "data.client=reg", "algo=newton", "data.missing=mean")),
        ("breast.csv", ("data.target=time", "data.event=rfs", "objective=cox", "data.client=centre", "algo=newton")),
        (
            "housing.csv",
            (
                "data.target=Sat",
                "data.task=multiclass",
                "data.weight=Freq",
                "objective=softmax",
                "algo=fedavg",
                "data.validation=0",
            ),
        ),
    ],
)
def test_real_tables_pass(file, overrides):
    if not (MEDICAL / file).is_file():
        pytest.skip(f"{MEDICAL / file} is absent: the rules are not tried on this table")
    plan = Plan.from_experiment(
        prepare(composed("data=sites", "rounds=2", "eval_every=2", "reg.strength=0.01", *overrides))
    )
    try:
        open_checked_site(plan, SiteOptions(str(MEDICAL / file)), Policy())
    except UserError as error:
        pytest.fail(str(error))


def test_codes_of_missing_values_are_none_of_groups_and_splits():
    """As in a table of all rows, where the names of groups are text as it is written."""
    patients = [f"{number:02}" for number in range(30)] * 2
    change(patient_no=patients, visit=np.where(np.arange(60) % 30 % 4 < 3, "train", "validation"))
    plan = plan_of("data.group=patient", "data.split=visit", "algo=gram")
    policy = Policy(min_rows=7, alone="allow")
    site = check(plan, policy, rename={"patient_no": "patient"}, na=["9", "train"])
    assert site.table.rows.group.tolist() == patients
    assert site.table.n_rows.tolist() == [[46, 14, 0]]


def test_a_held_out_target_that_outweighs_all_others_is_refused():
    change(cost=first(1, values=(98765.0, 1.0)), split=first(20, values=("validation", "train")))
    with fails("few validation rows outweigh all others in the column 'cost'"):
        check(plan_of("algo=gram", "data.split=split"))


@pytest.mark.parametrize(("n_third", "is_refused"), [(1, True), (2, True), (3, False)])
def test_intervals_tell_no_few_rows_of_a_target_of_three_values(n_third, is_refused):
    change(cost=[2.0] * n_third + [0.0] * 30 + [1.0] * (30 - n_third))
    with (
        fails("'cost' has three values, and one of them in fewer than 3 training rows") if is_refused else nullcontext()
    ):
        check(replace(plan_of("algo=gram", *ALL_ROWS), infer=PlannedIntervals()))
    check(plan_of("algo=gram", *ALL_ROWS))


def test_intervals_tell_no_few_rows_of_a_client_with_three_values_whose_sums_are_told():
    cost, unit = [2.0, *[0.0, 1.0] * 15, *[2.0] * 14, *[0.0, 1.0] * 7, 0.0], first(30, values=("x", "y"))
    change(cost=cost, unit=unit)
    for weighting, is_refused in (("examples", False), ("uniform", True)):
        plan = plan_of("algo=gram", *ALL_ROWS, "data.client=unit", f"client_weighting={weighting}")
        with fails("'cost' has three values, and one of them in fewer than 3") if is_refused else nullcontext():
            check(replace(plan, infer=PlannedIntervals()))
