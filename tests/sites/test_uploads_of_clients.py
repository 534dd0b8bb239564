"""Rules on sets of rows hold for each client where answers tell the uploads or other sums of single clients."""

from contextlib import nullcontext

import numpy as np
import pandas as pd
import pytest
from helpers import fails
from three_sites import plan_of

from fcorun.base.errors import UserError
from fcorun.data.datasets.dataset import Features
from fcorun.data.rows.rows import Rows
from fcorun.results.models.inference_problem import InferenceOptions
from fcorun.results.models.meta_analysis import compute_record_intervals
from fcorun.sites.plan.patients import least_effective_number
from fcorun.sites.plan.plan import Plan
from fcorun.sites.plan.policy import Policy
from fcorun.sites.plan.site_options import SiteOptions
from fcorun.sites.server.trial import try_plan
from fcorun.sites.site.acceptance import open_checked_site
from fcorun.sites.site.site import Site
from fcorun.studies.selection.selection_result import SelectOptions

META = ("algo=meta_analysis", "data.standardize=none", "data.validation=0", "rounds=1")
COHORT = ("algo=fedavg", "algo.client_lr=0.01", "clients_per_round=1", "data.standardize=none", "data.validation=0")
WHOLE = ("algo=fedavg", "algo.client_lr=0.01", "clients_per_round=null", "data.standardize=none", "data.validation=0")
POOLED = (*WHOLE, "data.standardize=pooled")  # means of features by client
BINARY = ("data.target=ill", "data.task=binary", "data.positive=yes", "data.ignore=[cost]")
MEAN = (*WHOLE, "data.missing=mean")  # and of columns with gaps


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write_site(**columns) -> pd.DataFrame:
    """Write a site's table of 80 rows: 40 of each of two wards."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"ward": np.repeat(["A", "B"], 40), "age": rng.normal(60, 10, 80), "bmi": rng.normal(25, 3, 80)}
    )
    frame["cost"] = frame["age"] - frame["bmi"] + rng.normal(0, 5, 80)
    frame = frame.assign(**columns)
    frame.to_csv("clinic.csv", index=False)
    return frame


def in_wards(value_a, n_a: int, value_b, n_b: int, others) -> np.ndarray:
    """Return a column with a value in the first rows of each ward."""
    a = np.where(np.arange(40) < n_a, value_a, others)
    return np.concatenate([a, np.where(np.arange(40) < n_b, value_b, others)])


def open_clinic(plan: Plan, **options) -> Site:
    return open_checked_site(plan, SiteOptions("clinic.csv", client="ward"), Policy(alone="allow", **options))


@pytest.mark.parametrize("words", [META, WHOLE])
def test_a_plan_says_whether_uploads_leave_by_client(words):
    contents = " ".join(quantity.content for quantity in plan_of(*words).quantities)
    assert ("what each of the site's clients uploads" in contents) == (words is META)
    assert ("the weighted mean of what the site's clients upload" in contents) == (words is WHOLE)


def test_a_coefficient_of_one_row_of_a_client_would_tell_the_residual_of_the_row():
    """The attack on ``meta_analysis``, whose mean of uploads has an entry of each client: plain arithmetic."""
    frame = write_site(dialysis=in_wards(1, 1, 1, 5, 0))
    ward = frame[frame["ward"] == "A"]
    x = np.column_stack([np.ones(40), ward["age"], ward["bmi"], ward["dialysis"]])
    b = np.linalg.lstsq(x, ward["cost"].to_numpy(), rcond=None)[0]
    assert b[3] == pytest.approx(ward["cost"].iloc[0] - x[0, :3] @ b[:3])
    for words in (META, COHORT):
        site = open_clinic(plan_of(*words))
        assert site.table.constant == {"dialysis"}
        assert set(site.table.columns["dialysis"]) == {0}
    assert open_clinic(plan_of(*WHOLE)).table.constant == set()  # the site sends the mean of both wards
    write_site(dialysis=in_wards(1, 3, 1, 5, 0))
    assert open_clinic(plan_of(*META)).table.constant == set()


@pytest.mark.parametrize("words", [META, COHORT, POOLED, MEAN])
def test_a_number_that_one_row_of_a_client_has_is_refused(words):
    write_site(visits=in_wards(4, 1, 2, 8, 0) + in_wards(0, 0, 1, 4, 0))
    with fails("few training rows outweigh all others in the column 'visits'"):
        open_clinic(plan_of(*words))
    open_clinic(plan_of(*WHOLE))


def test_a_large_number_of_one_ward_would_be_told_by_its_sums():
    """The attack on sums by client: another ward's numbers hide the outlier from a rule on the whole site."""
    lab = np.concatenate([np.linspace(900, 1100, 40), np.linspace(4.9, 5.1, 39), [400.0]])
    write_site(lab=lab)
    assert least_effective_number(lab) > 20
    assert least_effective_number(lab[40:]) < 3
    assert lab[40:].sum() - 39 * 5 == pytest.approx(400)
    gram = plan_of("algo=gram", "data.standardize=none", "data.validation=0")
    selection = Plan.from_experiment(gram.experiment, options=SelectOptions(folds=2, points=2, by="clients"))
    for plan in (plan_of(*POOLED), plan_of(*MEAN), selection):
        with fails("few training rows outweigh all others in the column 'lab'"):
            open_clinic(plan)
    open_clinic(gram)


@pytest.mark.parametrize("words", [POOLED, MEAN])
def test_a_level_of_one_row_of_a_client_is_not_told_by_the_means_of_the_client(words):
    floor = np.resize(["north", "south"], 80).astype(object)
    floor[[3, 43, 44, 45, 46]] = "attic"
    write_site(floor=floor)
    assert open_clinic(plan_of(*words)).table.rare_levels["floor"] == {"attic", "south"}


@pytest.mark.parametrize("words", [META, COHORT])
def test_a_level_or_a_class_that_one_row_of_a_client_has_is_not_told(words):
    floor = np.resize(["north", "south"], 80).astype(object)
    floor[[3, 43, 44, 45, 46]] = "attic"
    write_site(floor=floor)
    table = open_clinic(plan_of(*words)).table
    assert table.rare_levels["floor"] == {"attic", "south"}  # with the next rarest one, since one row is few, too
    assert open_clinic(plan_of(*WHOLE)).table.rare_levels["floor"] == set()
    write_site(ill=in_wards("yes", 1, "yes", 20, "no"))
    with pytest.raises(UserError, match="has fewer than 3 training rows of a client"):
        open_clinic(plan_of(*words, *BINARY))
    open_clinic(plan_of(*WHOLE, *BINARY))


def test_the_class_of_one_row_of_a_client_in_a_fold_is_not_told():
    """The attack: two uploads of a client, of all rows and of those outside of a fold, differ by the rows of the fold.

    The gradient of the logistic loss at 0, less half of the sum of the features, is the one row of the rarer class.
    """
    frame = write_site(ill=in_wards("yes", 3, "yes", 20, "no"))

    def select(*words: str) -> Plan:
        experiment = plan_of(*words, *BINARY, "algo=fedmid", "algo.client_lr=0.01", "reg=l1").experiment
        return Plan.from_experiment(experiment, options=SelectOptions(folds=3, points=2))

    one_upload = select("data.standardize=none", "data.validation=0", "clients_per_round=null")
    table = open_clinic(one_upload).table
    x, is_ill = frame[["age", "bmi"]].to_numpy(), (frame["ill"] == "yes").to_numpy()
    in_ward = (frame["ward"] == "A").to_numpy()
    for k in range(3):
        gradients = [((0.5 - is_ill) @ (x * mask[:, None])) for mask in (in_ward, in_ward & (table.fold != k))]
        sums = x[in_ward & (table.fold == k)].sum(0)
        assert sums / 2 - (gradients[0] - gradients[1]) == pytest.approx(x[in_ward & (table.fold == k) & is_ill][0])
    words = ("data.standardize=none", "data.validation=0")
    for told in ("clients_per_round=1", "client_weighting=uniform"):
        with fails("a class of 'ill' has fewer than 3 training rows of a client in a fold, or in all others"):
            open_clinic(select(*words, told))
    write_site(ill=in_wards("yes", 9, "yes", 20, "no"))
    open_clinic(select(*words, told))


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
def test_hessians_of_a_client_have_as_many_rows_with_a_rare_value_as_numbers_in_a_line(weighting):
    """Two wards have six rows of a rare value each, enough for a line of the Hessian of both and of neither alone."""
    rare = np.arange(80) % 40 < 6
    rng = np.random.default_rng(0)
    x = np.column_stack([rare, rng.normal(size=(80, 5))])
    rows = Rows(x, np.zeros(80), np.repeat([0, 1], 40))
    plan = plan_of("algo=newton", "objective=logistic", *WHOLE[2:], f"client_weighting={weighting}", *BINARY)
    is_told = weighting == "uniform"
    with fails("the feature 'icu' has other values") if is_told else nullcontext():
        Policy().check_rare_features(plan, rows, Features(names=("icu", *"abcde")))
    with fails("a client of this site has 10 training rows") if is_told else nullcontext():
        Policy().check_rows(plan, 80, [70, 10], 6)


def test_few_held_out_rows_of_a_class_of_a_client_are_allowed_since_no_upload_tells_them():
    split = np.resize(["train"] * 3 + ["validation"], 80)
    row = np.arange(80) % 40
    ill = np.where((row % 4 == 0) | (row == 3) | (row == 7), "yes", "no")  # two of ten validation rows of each ward
    write_site(ill=ill, split=split)
    for words in (META, COHORT):
        words = tuple(word for word in words if "validation" not in word)
        site = open_clinic(plan_of(*words, *BINARY, "data.split=split"))
        is_event = site.table.masks[1] & (site.table.rows.y == "yes")
        assert site.table.count_rows(is_event)[:, 1].tolist() == [2, 2]


def test_two_rows_that_outweigh_the_others_in_a_fit_of_a_client_are_not_sent(tmp_path):
    """Two of 40 residuals in each ward are large: at the fit of ward A the rows count as 3.9, those of both as 9."""
    frame = write_site()
    noise = np.random.default_rng(1).normal(size=80)
    noise[[0, 1, 40, 41]] = [100, -100, 100, -100]
    write_site(cost=(frame["age"] + noise).round(3))
    plan = plan_of(*META)
    with fails("few training rows of this site outweigh all others in 'round'"):
        try_plan(plan, {"clinic": open_clinic(plan, min_cell=5)}, tmp_path / "meta")
    plan = plan_of("algo=gram", *META[1:])
    try_plan(plan, {"clinic": open_clinic(plan, min_cell=5)}, tmp_path / "gram")  # the sum of both wards


def test_an_honest_meta_analysis_of_clients_of_a_site_runs(tmp_path):
    write_site(dialysis=in_wards(1, 9, 1, 12, 0))
    plan = plan_of(*META, "data.missing=mean")
    record, comparison = try_plan(plan, {"clinic": open_clinic(plan)}, tmp_path / "trial")
    assert comparison.difference < 1e-9
    for text in (record.status["reason"], " ".join(compute_record_intervals(record, InferenceOptions()).warnings)):
        assert "data.missing=mean has filled at sites, if there were any, count as measured" in text
