"""The ledger of an owner: plans whose sets of rows differ by few rows are refused, all other plans pass."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command import fcorun
from helpers import fails
from ledger_plans import SPLIT, N, entries, run, selection_of, split_of, write_visits
from three_sites import plan_of

from fcorun.sites.plan.plan import Plan
from fcorun.sites.plan.policy import Policy
from fcorun.sites.plan.site_options import SiteOptions
from fcorun.sites.site.acceptance import accept, open_site
from fcorun.sites.tables.ledger import Ledger, describe_differences
from fcorun.sites.tables.ledger_entry import LedgerEntry
from fcorun.sites.tables.ledger_rows import ReleasedSet, make_tokens
from fcorun.sites.tables.plan_in_ledger import PlanInLedger
from fcorun.sites.transport.messages import OwnerError

__all__ = ["fcorun"]  # a fixture


UNITS = ("data.client=unit",)


@pytest.fixture(autouse=True)
def table(tmp_path) -> pd.DataFrame:
    """Write visits.csv, and return its rows."""
    return write_visits()


@pytest.mark.slow
def test_the_same_sets_pass_and_are_written_once():
    run(plan_of())
    run(plan_of())
    run(plan_of("algo=newton", "reg=l1", "reg.strength=0.1"))
    run(plan_of("seed=1", "data.seed=0"))
    assert [entry.sets for entry in entries()] == [entries()[0].sets] * len(entries())
    assert len(entries()) == 3
    assert entries()[0].tokens.keys() == {"age", "bmi", "ward", "cost"}
    assert not entries()[1].tokens  # of the same file


def test_a_row_that_changes_its_split_is_refused_and_ten_pass():
    run(plan_of("data.validation=0.2"))
    with fails(
        "1 row is validation rows of this plan and was training rows of plan", "cost over visits.csv", "overlap=allow"
    ):
        run(plan_of("data.validation=0.2026"))
    run(plan_of("data.validation=0.225"))
    assert len(entries()) == 2


def test_what_the_server_sees_of_a_refusal_has_no_number():
    run(plan_of())
    with pytest.raises(OwnerError) as caught:
        run(plan_of("data.validation=0.2026"))
    assert "data.split_seed" in caught.value.public
    assert "visits" not in caught.value.public
    run(plan_of())  # the refused site holds no lock


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda frame: frame.drop(index=[7]), "1 row is in no set of this plan and was training rows of plan"),
        (lambda frame: pd.concat([frame, frame.tail(1).assign(age=33.3)]), "was in no set of plan"),
        (lambda frame: frame.assign(bmi=frame["bmi"].where(frame.index != 50, 99.5)), "1 row is"),
        (lambda frame: frame.assign(ward=frame["ward"].where(frame.index != 50, None)), "1 row is"),
    ],
)
def test_a_row_that_is_removed_added_or_mended_is_refused(table, change, words):
    table = table.assign(ward=table["ward"].astype(object))
    mark = {"split": split_of(80)}
    options = (*SPLIT, "data.missing=mean")
    table.assign(**mark).to_csv("visits.csv", index=False)
    run(plan_of(*options))
    changed = change(table)
    changed.assign(split=[*split_of(80), "train"][: len(changed)]).to_csv("visits.csv", index=False)
    with fails(words):
        run(plan_of(*options))
    with fails(words):
        run(plan_of(*options, "seed=5"), "visits.csv", at="another")


def test_a_value_that_is_rare_no_more_makes_no_other_row(table):
    table["dialysis"] = 0
    table.loc[[5, 40, 370, 390], "dialysis"] = 1
    table[:350].to_csv("visits.csv", index=False)
    run(plan_of("data.validation=0"))
    table.to_csv("visits.csv", index=False)
    run(plan_of("data.validation=0"))
    assert len(entries()) == 2


@pytest.mark.slow
def test_a_sum_of_three_plans_may_not_tell_a_row(table):
    """Any two of the plans divide the rows into large cells, and all three tell one row."""
    first, second = np.arange(N) // 200, np.arange(N) // 100 % 2
    third = (first + second) % 2
    third[0] = 1 - third[0]
    marks = {
        name: np.where(mark, "validation", "train") for name, mark in zip("xyz", (first, second, third), strict=True)
    }
    table.assign(**marks).to_csv("visits.csv", index=False)
    plans = {}
    for name in marks:
        others = ",".join(other for other in marks if other != name)
        plans[name] = plan_of(f"data.split={name}", "data.validation=null", f"data.ignore=[{others}]")
    for names in ("xy", "yz", "xz"):
        for name in names:
            run(plans[name], ledger=names)
    run(plans["x"])
    run(plans["y"])
    with fails("1 row is validation rows of this plan and was training rows of plan", "and training rows of plan"):
        run(plans["z"])


@pytest.mark.parametrize(
    ("first", "second", "own_name"),
    [
        (UNITS, (*UNITS, "data.missing=mean"), "ward"),  # of a table without gaps
        ((*UNITS, "data.standardize=pooled"), UNITS, "station"),
        (("data.ignore=[unit]",), (*UNITS, "data.missing=mean"), "ward"),
        (UNITS, (*UNITS, "client_weighting=uniform", "algo=meta_analysis", "reg=none", "rounds=1"), "ward"),
    ],
)
def test_two_codings_of_rare_levels_are_refused_until_the_plan_leaves_the_column_out(table, first, second, own_name):
    """The levels p, n, m are rare in other rows by site than by client: two honest plans would tell the row of m."""
    unit, ward = np.repeat(["A", "B"], N // 2), np.repeat(["k", "l"], N // 4)
    ward = np.where(np.arange(N) % 2, "k", "l").astype(object)
    ward[:5], ward[-6:-4], ward[-4:-1], ward[-1] = "p", "p", "n", "m"
    table = table.drop(columns="ward").assign(**{own_name: ward}, unit=unit)
    table.to_csv("visits.csv", index=False)
    options = ("data.standardize=none", "data.validation=0")
    rename = {own_name: "ward"} if own_name != "ward" else None
    run(plan_of(*options, *first), rename=rename)
    run(plan_of(*options, *first, "seed=1", "data.seed=0"), rename=rename)
    table.sample(frac=1, random_state=0).to_csv("saved.csv", index=False)
    column = "'ward' ('station' in the file)" if rename else "'ward'"
    for path in ("visits.csv", "saved.csv"):
        with fails(f" a level of {column} that this plan sums up otherwise", "data.ignore=[ward]"):
            run(plan_of(*options, *second), path, rename=rename)
    run(plan_of(*options, *second, "data.ignore=[ward]"), path, rename=rename)


def small_cells(*labels) -> list[str]:
    """Return the sentences on the small cells that the last of several plans on one file makes."""
    sets = (ReleasedSet("a", "train", 0), ReleasedSet("a", "train", 1))
    known = []
    for k, row_labels in enumerate(labels):
        plan = LedgerEntry(f"{k}" * 64, "t", "2026-11-02", "/site", "a.csv", "a", sets, row_labels)
        known.append(replace(plan, tokens={f"column {k}": row_labels.astype(np.uint64)}))
    return describe_differences(known, 10)


def test_each_pair_of_plans_may_be_large_and_three_small():
    """40 rows lie in each set of two plans; a third divides them evenly in pairs, and leaves a cell of one row."""
    code = np.repeat(np.arange(4), 40)
    first, second = code // 2 + 1, code % 2 + 1
    third = (first + second) % 2 + 1
    third[0] = 3 - third[0]
    (sentence,) = small_cells(first, second, third)
    assert sentence.startswith("1 row is training rows in fold 2 of this plan and was")
    assert "of plan 00000000.." in sentence
    assert "of plan 11111111.." in sentence
    for plan in (first, second):
        assert not small_cells(plan, third)


def test_small_cells_of_earlier_plans_are_no_reason():
    first, second = np.repeat([1, 2], [20, 20]), np.repeat([1, 2], [21, 19])
    assert small_cells(first, second)
    assert not small_cells(first, second, second)
    assert not small_cells(first, second, np.ones(40, int))
    assert not small_cells(first, second, first)
    assert small_cells(first, second, np.repeat([1, 2], [22, 18]))


@pytest.mark.slow
def test_permuted_rows_and_duplicates_pass_and_a_saved_file_agrees(table):
    doubled = pd.concat([table, table]).reset_index(drop=True).assign(ill=np.arange(2 * N) % 2)
    table = doubled.assign(ill=1, split=["validation" if row % 5 == 0 else "train" for row in range(2 * N)])
    table.to_csv("visits.csv", index=False)
    options = ("data.split=split", "data.validation=null")
    run(plan_of(*options))
    shuffled = table.sample(frac=1, random_state=0).assign(ill=1.0)
    shuffled.to_csv("new.csv", index=False)
    run(plan_of(*options), "new.csv")
    shuffled.sample(frac=1, random_state=1).to_parquet("saved.parquet")
    run(plan_of(*options), "saved.parquet")
    assert len(entries()) == 3
    assert len({entry.reading for entry in entries()}) == 3


def test_equal_rows_of_two_splits_are_interchangeable(table):
    same = pd.concat([table.head(1)] * N).assign(cost=np.arange(N) // 100)
    options = ("data.only=[age]", *SPLIT)  # the split is a column that the plan reads, and tells rows apart
    same.assign(split=split_of(200)).to_csv("visits.csv", index=False)
    run(plan_of(*options))
    same.assign(split=split_of(200)).iloc[::-1].to_csv("visits.csv", index=False)
    run(plan_of(*options, "seed=1"))
    assert len(entries()) == 2
    labels = [np.repeat([1, 2], [200, 200]), np.repeat([2, 1], [200, 200])]
    sets = (ReleasedSet("a", "train", -1), ReleasedSet("a", "validation", -1))
    ledger, columns = Ledger(Path("ledger")), {"age": pd.Series(np.ones(400))}
    for k, row_labels in enumerate(labels):
        entry = LedgerEntry(f"{k}" * 64, "t", "2026-11-02", "/site", f"{k}.csv", f"{k}", sets, row_labels)
        PlanInLedger(ledger, entry, columns, {}, Policy(), 1.0).enter()
    moved = LedgerEntry("2" * 64, "t", "2026-11-02", "/site", "2.csv", "2", sets, np.repeat([2, 1], [201, 199]))
    with fails("1 row is"):
        PlanInLedger(ledger, moved, columns, {}, Policy(), 1.0).enter()


@pytest.mark.slow
def test_plans_are_compared_over_the_columns_that_both_read(table):
    table.assign(note=np.arange(N), split=split_of(80)).to_csv("visits.csv", index=False)
    run(plan_of(*SPLIT, "data.only=[age,bmi]"))
    table.assign(note=np.arange(N) + 1, split=split_of(80)).to_csv("visits.csv", index=False)
    run(plan_of(*SPLIT, "data.only=[age,ward]"))  # the notes differ, and no plan reads them
    mended = table.assign(bmi=table["bmi"].where(table.index != 90, 99.5), split=split_of(80))
    mended.to_csv("visits.csv", index=False)
    run(plan_of(*SPLIT, "data.only=[ward]"))
    with fails("1 row is"):
        run(plan_of(*SPLIT, "data.only=[bmi,ward]"))


@pytest.mark.slow
def test_rows_that_few_columns_do_not_tell_apart_keep_their_place_in_the_file(table):
    """Two plans have the target alone in common, which has two values; a third has all columns."""
    table = table.assign(ill=np.arange(N) % 2).drop(columns="cost")
    table.to_csv("visits.csv", index=False)
    target = ("data.target=ill", "data.validation=0.2")
    run(plan_of(*target, "data.only=[age]"))
    run(plan_of(*target, "data.only=[bmi]"))
    run(plan_of(*target, "data.only=[age,bmi,ward]"))
    table.sample(frac=1, random_state=0).drop(index=3).to_csv("visits.csv", index=False)
    with fails("of plan"):
        run(plan_of(*target, "data.only=[age,bmi]"))


@pytest.mark.slow
def test_an_id_tells_equal_rows_apart_and_a_mended_cell_makes_another_row(table):
    table = table.assign(patient=[f"{row:04}" for row in range(N)], age=50.0, bmi=25.0, ward="x", cost=np.arange(N) % 4)
    table["split"] = split_of(80)
    options = (*SPLIT, "data.ignore=[patient]")
    table.to_csv("visits.csv", index=False)
    run(plan_of(*options), row_id="patient")
    table.assign(patient=range(N)).sample(frac=1, random_state=0).to_csv("new.csv", index=False)
    run(plan_of(*options), "new.csv", row_id="patient")  # 0007 is 7
    mended = table.assign(cost=np.where(table.index == 200, 7, table["cost"]))
    mended.to_csv("mended.csv", index=False)
    with fails("1 row is"):
        run(plan_of(*options), "mended.csv", row_id="patient")
    another = table.assign(patient=np.where(table.index == 200, "x200", table["patient"]))
    another.to_csv("another.csv", index=False)
    with fails("1 row is"):
        run(plan_of(*options), "another.csv", row_id="patient")
    with fails("policy.row_id=pat: there is no such column", "patient"):
        run(plan_of(*options, "seed=1"), row_id="pat")


@pytest.mark.slow
def test_an_owner_gives_few_rows_away_for_one_acceptance():
    run(plan_of())
    moved = plan_of("data.validation=0.2026")
    run(moved, overlap=True)
    assert [entry.overlap for entry in entries()] == [False, True]
    run(moved)  # its sets are in the ledger
    run(plan_of("data.validation=0.2026", "seed=3", "data.seed=0"))
    with fails("of plan"):
        run(plan_of("data.validation=0.21"))


def test_rows_of_weight_0_are_sets_of_their_own(table):
    weight = np.where(np.arange(N) % 4 == 0, 0.0, 1.5)
    table.assign(weight=weight, split=split_of(80)).to_csv("visits.csv", index=False)
    run(plan_of(*SPLIT, "data.weight=weight"))
    assert np.bincount(entries()[0].labels).tolist() == [0, 80, 240, 20, 60]
    weight[1] = 0
    table.assign(weight=weight, split=split_of(80)).to_csv("visits.csv", index=False)
    with fails(
        "1 row is validation rows of weight 0 of this plan", "1 row is in no set of this plan and was validation rows"
    ):
        run(plan_of(*SPLIT, "data.weight=weight"))


def test_a_new_row_of_weight_0_is_told_by_sums_without_weights(table):
    weight = np.where(np.arange(N) % 4 == 0, 0.0, 1.0)
    table.assign(weight=weight, split=split_of(80)).to_csv("visits.csv", index=False)
    run(plan_of(*SPLIT, "data.weight=weight"))
    new = table.iloc[[0]].assign(weight=0.0, split="train", bmi=77.7)
    pd.concat([table.assign(weight=weight, split=split_of(80)), new]).to_csv("visits.csv", index=False)
    with fails("1 row is training rows of weight 0 of this plan"):
        run(plan_of(*SPLIT, "data.weight=weight", "seed=5"))


@pytest.mark.slow
def test_folds_are_sets(table):
    run(selection_of())
    sizes = np.bincount(entries()[0].labels).tolist()
    assert sizes == [0, 80, 80, 80, 80, 80]
    run(plan_of())  # a run on the same training rows divides no cell
    folds = entries()[0].labels
    marks = table.assign(fold=folds, split=np.where(folds == 5, "validation", "train"))
    marks.loc[np.flatnonzero(folds == 1)[0], "fold"] = 2
    marks.to_csv("visits.csv", index=False)
    with fails("1 row is training rows in fold 2 of this plan and was training rows in fold 1 of plan"):
        run(selection_of(*SPLIT, "data.fold=fold", "data.fold_names=['1','2','3','4']"))


def test_values_have_the_same_tokens_however_they_are_written():
    def tokens(*values, dtype=None):
        return make_tokens(b"k" * 32, {"c": pd.Series(list(values), dtype=dtype)}, ())["c"].tolist()

    whole = tokens(1, 2, 1)
    assert whole[0] == whole[2] != whole[1]
    assert tokens(1.0, 2.0, 1.0) == tokens("1", " 2.0", "01") == tokens(True, 2, "true") == whole
    assert len(set(tokens(None, "", "NA", " ", float("nan")))) == 1
    assert tokens(0.1, 0.30000000000000004) == tokens("0.1", "0.3") == tokens(0.1, 0.3, dtype="float32")
    assert tokens("x") != make_tokens(b"k" * 32, {"d": pd.Series(["x"])}, ())["d"].tolist()
    assert tokens("x") != make_tokens(b"l" * 32, {"c": pd.Series(["x"])}, ())["c"].tolist()


def test_a_link_names_the_client_at_the_check_and_at_the_run(table):
    table.to_csv("v7.csv", index=False)
    Path("current.csv").symlink_to("v7.csv")
    accept(Path("site"), plan_of(), SiteOptions("current.csv"), Policy())
    assert open_site(Path("site"), plan_of()).table.clients == ["current"]


def test_owners_read_of_the_ledger_at_the_command_line(fcorun, tmp_path):
    code, out, _ = fcorun("site", "ledger")
    assert (code, "is empty" in " ".join(out.split())) == (0, True)
    Path("study.yaml").write_text(plan_of().to_text())
    Path("moved.yaml").write_text(plan_of("data.validation=0.2026").to_text())
    run(plan_of())
    for words in (("check", "moved.yaml"), ("accept", "moved.yaml", "--at", "other")):
        code, out, err = fcorun("site", *words, "data.path=visits.csv")
        assert code == 2
        shown = " ".join(err.split())
        assert "1 row is validation rows of this plan and was training rows of plan" in shown
        assert "overlap=allow with fcorun site accept" in shown
    assert not Path("other").exists()
    code, out, _ = fcorun("site", "check", "study.yaml", "data.path=visits.csv")
    assert code == 0
    assert len(entries()) == 1
    command = ("site", "accept", "moved.yaml", "--at", "other", "data.path=visits.csv")
    code, _, err = fcorun(*command, "overlap=yes")
    assert (code, "give overlap=allow" in " ".join(err.split())) == (2, True)
    code, out, _ = fcorun(*command, "overlap=allow")
    shown = " ".join(out.split())
    assert code == 0
    assert "given away by overlap=allow: 1 row is validation rows of this plan" in shown
    assert json.loads(next(Path("other/accepted").iterdir()).read_text())["overlap"] is True
    moved = Plan.read("moved.yaml")
    run(moved, at="other", overlap=True)
    code, out, _ = fcorun("site", "ledger")
    shown = " ".join(out.split())
    assert f"plan {moved.digest[:16]}: cost over visits.csv, with overlap=allow" in shown
    assert "320 training rows, 80 validation rows" in shown
    assert "clients: visits" in shown
    assert "cells of rows in the same sets of all plans: 3, the smallest of 1 rows" in shown
    Path("rules.yaml").write_text("ledger: elsewhere\n")
    code, out, _ = fcorun("site", "ledger", "policy=rules.yaml")
    assert (code, "elsewhere is empty" in " ".join(out.split())) == (0, True)
    code, out, _ = fcorun("site", "check", "moved.yaml", "data.path=visits.csv", "policy=rules.yaml")
    assert code == 0
    assert not (tmp_path / "elsewhere").exists()


def test_steps_that_need_a_plan_say_so(fcorun):
    for words, sentence in (
        (("check",), "fcorun site check needs a plan: fcorun site check PLAN"),
        (("ledger", "study.yaml"), "fcorun site ledger takes no study.yaml: it has one key, policy=FILE"),
        (("ledger", "--wait", "3"), "fcorun site ledger takes no --wait: leave it out"),
    ):
        code, _, err = fcorun("site", *words)
        assert code == 2
        assert sentence in " ".join(err.split())
