"""The ledger of an owner: plans whose sets of rows differ by few rows are refused, all other plans pass."""

import json
import multiprocessing
import os
import signal
import stat
import time
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from shutil import rmtree

import filelock
import numpy as np
import pandas as pd
import pytest
from command import fcorun
from helpers import composed, fails
from three_sites import plan_of

from fcorun.experiment.prepare import prepare
from fcorun.sites.plan.plan import Plan
from fcorun.sites.plan.policy import Policy
from fcorun.sites.plan.site_options import SiteOptions
from fcorun.sites.server.server import Server
from fcorun.sites.site.acceptance import accept, open_durable_site, open_site, state_folder
from fcorun.sites.tables.ledger import Ledger, LedgerEntry, describe_differences
from fcorun.sites.tables.ledger_rows import ReleasedSet, make_tokens
from fcorun.sites.transport.connections import InProcessConnections
from fcorun.sites.transport.durable import is_in_use
from fcorun.sites.transport.messages import OwnerError
from fcorun.studies.selection.selection_result import SelectOptions

__all__ = ["fcorun"]  # a fixture
N = 400
SPLIT = ("data.split=split", "data.validation=null")


def split_of(n_validation: int, n: int = N) -> list[str]:
    """Return a split whose first rows are validated on."""
    return ["validation"] * n_validation + ["train"] * (n - n_validation)


@pytest.fixture(autouse=True)
def table(tmp_path) -> pd.DataFrame:
    """Write visits.csv, and return its rows."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.normal(50, 10, N).round(1), "bmi": rng.normal(25, 4, N).round(2)})
    frame["ward"] = rng.choice(["x", "y", "z"], N)
    frame["cost"] = (0.3 * frame["age"] - frame["bmi"] + rng.normal(size=N)).round(3)
    frame.to_csv("visits.csv", index=False)
    return frame


def run(plan: Plan, path: str = "visits.csv", at: str = "site", overlap: bool = False, **rules) -> None:
    """Accept a plan, and open its site as a run does."""
    accept(Path(at), plan, SiteOptions(path), Policy(**rules), overlap=overlap)
    with closing(open_durable_site(Path(at), plan)):
        pass


def entries(folder: Path | None = None) -> list[LedgerEntry]:
    return Ledger(folder or Policy().ledger_folder).read()


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


def rows_of_first_site(plan: Plan, names: str, rename: dict[str, str] | None = None) -> np.ndarray:
    """Return the training rows from which the first of some sites computes, (N, d), in a selection those of a fold."""
    sites = {}
    for name in names:
        options = SiteOptions(f"{name}.csv", rename=rename)
        accept(Path(name), plan, options, Policy(alone="allow", ledger=f"ledger_{name}"))
        sites[name] = open_durable_site(Path(name), plan)
    connections = InProcessConnections({name: site.site for name, site in sites.items()})
    Server(plan, connections).load()
    for durable in sites.values():
        durable.close()
    site = sites["a"].site
    if plan.select is None:
        return site.own_data.train.x
    return site.folds.cells.encode({"fills": np.zeros(1), "informative": np.ones(3, bool)})


def write_three_sites(table, n_gaps: int) -> None:
    """Write a.csv with so many gaps of bmi, and two others whose patients are heavier."""
    for k, name in enumerate("abc"):
        frame = table[k * 130 : (k + 1) * 130].copy()
        frame["bmi"] += 2 * k
        if name == "a":
            frame.iloc[7 : 7 + n_gaps, frame.columns.get_loc("bmi")] = np.nan
        frame.to_csv(f"{name}.csv", index=False)


@pytest.mark.parametrize("second", ["mean", "median"])
def test_gaps_keep_their_fill_whoever_takes_part(table, second):
    """The difference of the sums of two honest plans would tell the rows with a gap in each column, 15 and 16 of them.

    The one less the other is a row. That the second plan has another name for a column changes nothing.
    """
    options = ("data.standardize=per_client", "data.validation=0")
    write_three_sites(table, n_gaps=15)
    rows = pd.read_csv("a.csv")
    rows.assign(age=rows["age"].mask(rows.index < 16)).to_csv("a.csv", index=False)
    x = rows_of_first_site(plan_of(*options, "data.ranges={age: [0, 100], bmi: [0, 60]}", "data.missing=mean"), "ab")
    ranges = "data.ranges={age: [0, 100], mass: [0, 60]}"
    plan = plan_of(*options, ranges, "seed=1", f"data.missing={second}")
    np.testing.assert_array_equal(rows_of_first_site(plan, "abc", rename={"bmi": "mass"}), x)
    np.testing.assert_array_equal(rows_of_first_site(plan, "abc", rename={"bmi": "mass"}), x)  # as after a restart
    (line,) = (line for line in Ledger(Path("ledger_a")).describe() if "kept" in line)
    assert line.count(", kept in place of ") == 2
    assert "'bmi' by" in line


def test_knots_of_many_plans_may_not_tell_few_rows_together(table):
    """The knots of five plans in a row are those of a function that is 0 but in few rows between them."""
    write_three_sites(table, n_gaps=0)
    b = pd.read_csv("b.csv")
    for k in range(6):
        b.assign(bmi=b["bmi"] + 0.3 * k).to_csv("b.csv", index=False)
        plan = plan_of("data.validation=0", "data.splines={bmi: 3}", "data.ranges={bmi: [0, 60]}", f"seed={k}")
        with fails("with other knots of 'bmi'", "overlap=allow") if k == 5 else nullcontext():
            rows_of_first_site(plan, "ab")


def test_gaps_of_a_fold_keep_their_fill_in_all_plans(table):
    options = ("data.standardize=per_client", "data.validation=0", "data.missing=mean")
    write_three_sites(table, n_gaps=60)  # many of each fold
    x = rows_of_first_site(selection_of(*options), "ab")
    np.testing.assert_array_equal(rows_of_first_site(selection_of(*options, "seed=1"), "abc"), x)
    assert x[7:67, 1] == pytest.approx(x[7, 1])


def test_gaps_that_two_plans_filled_otherwise_are_refused_in_a_third(table):
    """The rows of the files of two years have two fills, which the file of both years cannot keep."""
    options = ("data.standardize=per_client", "data.validation=0", "data.missing=mean")
    write_three_sites(table, n_gaps=2)
    both = pd.read_csv("a.csv")
    both.loc[100, "bmi"] = np.nan
    for year, names in ((both[:65], "ab"), (both[65:], "abc")):
        year.to_csv("a.csv", index=False)
        rows_of_first_site(plan_of(*options, f"seed={len(names)}"), names)
    both.to_csv("a.csv", index=False)
    with fails("filled gaps of 'mass' by two values", "add 'mass' to data.ignore"):
        rows_of_first_site(plan_of(*options), "abc", rename={"bmi": "mass"})


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
        ledger.enter(entry, columns, 10, 1.0)
    moved = LedgerEntry("2" * 64, "t", "2026-11-02", "/site", "2.csv", "2", sets, np.repeat([2, 1], [201, 199]))
    with fails("1 row is"):
        ledger.enter(moved, columns, 10, 1.0)


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


def selection_of(*overrides, folds: int = 4) -> Plan:
    """Return the plan of a selection."""
    options = ("data=sites", "data.target=cost", "data.standardize=pooled", "rounds=4", "eval_every=4")
    words = ("algo=fedmid", "algo.client_lr=0.1", "reg=l1", *options, *overrides)
    return Plan.from_experiment(prepare(composed(*words)), options=SelectOptions(points=3, folds=folds))


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


@pytest.mark.slow
def test_two_sites_on_one_machine_hold_different_patients(table):
    table.assign(cost=table["cost"].to_numpy()[::-1]).head(396).to_csv("b.csv", index=False)
    plan = plan_of()
    run(plan, at="one")
    run(plan, "b.csv", at="two")
    run(plan_of("data.validation=0.3"), "b.csv", at="two")
    with fails("of plan"):
        run(plan_of("data.validation=0.3026"), "b.csv", at="two")
    assert {Path(entry.folder).name for entry in entries()} == {"one", "two"}


def test_a_newer_file_in_another_folder_holds_the_same_patients(table):
    table.head(399).to_csv("april.csv", index=False)
    run(plan_of(), at="one")
    with fails("1 row is in no set of this plan"):
        run(plan_of(), "april.csv", at="two")


@pytest.mark.slow
def test_a_project_that_moves_keeps_its_patients():
    run(plan_of(), at="one")
    rmtree("one")
    run(plan_of(), at="two")  # of the same file
    with fails("of plan"):
        run(plan_of("data.validation=0.2026"), at="three")
    with fails("of plan"):
        run(plan_of("data.validation=0.2026"), at="two")


def test_removal_of_the_state_keeps_the_refusal():
    plan = plan_of()
    run(plan)
    rmtree(state_folder(Path("site"), plan))
    with fails("of plan"):
        run(plan_of("data.validation=0.2026"))
    rmtree("site")
    with fails("of plan"):
        run(plan_of("data.validation=0.2026"))


def test_a_trial_and_a_site_without_a_state_leave_no_entry():
    accept(Path("site"), plan_of(), SiteOptions("visits.csv"), Policy())
    open_site(Path("site"), plan_of())
    assert not Policy().ledger_folder.exists()


def test_the_ledger_of_a_policy_is_found_from_another_folder(tmp_path, monkeypatch):
    accept(Path("site"), plan_of(), SiteOptions("visits.csv"), Policy(ledger="our ledger"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    open_durable_site(tmp_path / "site", plan_of()).close()
    assert len(entries(tmp_path / "our ledger")) == 1
    assert not Policy().ledger_folder.exists()
    if os.name == "posix":
        for path in (tmp_path / "our ledger").iterdir():
            assert path.name == "lock" or stat.S_IMODE(path.stat().st_mode) == 0o600


def damage_entry(folder: Path) -> None:
    next(folder.glob("*.npz")).write_bytes(b"no archive")


def cut_entry(folder: Path) -> None:
    path = next(folder.glob("*.npz"))
    path.write_bytes(path.read_bytes()[:-100])


def lose_secret(folder: Path) -> None:
    (folder / "secret").unlink()


def cut_secret(folder: Path) -> None:
    (folder / "secret").write_text("ab12")


@pytest.mark.parametrize("damage", [damage_entry, cut_entry, lose_secret, cut_secret])
def test_a_ledger_that_cannot_be_read_is_a_refusal(damage):
    run(plan_of())
    damage(Policy().ledger_folder)
    with fails("cannot be read", "restore it from a copy, or move", "away, which forgets"):
        run(plan_of("seed=1", "data.seed=0"))
    with pytest.raises(OwnerError, match="restore") as caught:
        run(plan_of("seed=1", "data.seed=0"))
    assert caught.value.public == "the ledger of this site cannot be read or written: its owner mends it"


def test_a_ledger_that_cannot_be_written_is_a_refusal(monkeypatch):
    Path("taken").write_text("")
    with fails("cannot be written", "policy.ledger"):
        run(plan_of(), ledger="taken")

    def refuse(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", refuse)
        patch.setattr("fcorun.sites.transport.durable.write_atomically", lambda *_, **__: None)
        patch.setattr("fcorun.sites.site.acceptance.write_atomically", lambda path, text, **_: path.write_text(text))
        with fails("cannot be written", "No space left"):
            run(plan_of())
    assert not list(Policy().ledger_folder.glob("*.npz"))
    run(plan_of())


def test_one_process_writes_at_a_time():
    run(plan_of())
    ledger = Ledger(Policy().ledger_folder)
    with filelock.FileLock(ledger.folder / "lock"), fails("another process writes to the ledger"):
        ledger.enter(entries()[0], {}, 10, 0.05)


def enter_many(first: int, connection) -> None:
    """Enter plans, each on a file of its own, and say the number of each that may be answered."""
    sets, labels = (ReleasedSet("a", "train", -1),), np.ones(2000, int)
    columns = {f"c{k}": pd.Series(np.random.default_rng(k).normal(size=2000)) for k in range(20)}
    for k in range(first, 10_000):
        entry = LedgerEntry(f"{k:064}", "t", "2026-11-02", "/s", "f", f"{k}", sets, labels)
        Ledger(Path("ledger")).enter(entry, columns, 10, 5.0)
        connection.send(k)


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="a process is forked")
@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_kill_at_any_moment_leaves_a_readable_ledger_with_all_that_was_answered():
    rng, said, context, first_seconds = np.random.default_rng(0), -1, multiprocessing.get_context("fork"), 0.0
    for attempt in range(20):
        receiver, sender = context.Pipe(duplex=False)
        started = time.monotonic()
        process = context.Process(target=enter_many, args=(said + 1, sender))
        process.start()
        sender.close()
        if attempt < 2:  # the first process, then one killed just as it has answered; others at any moment about it
            assert receiver.poll(60)
            first_seconds = time.monotonic() - started
        else:
            time.sleep(rng.uniform(0, 4 * first_seconds))
        process.kill()
        process.join()
        while receiver.poll():
            try:
                said = receiver.recv()
            except EOFError:
                break
        read = entries(Path("ledger"))
        assert {int(entry.plan) for entry in read} >= set(range(said + 1))
        assert len(read) <= said + 2
    assert said > 0


def enter_and_die(step: int) -> None:
    """Enter a plan in a process that ends at a call of the system."""
    count = 0

    def dying(call):
        def call_or_die(*arguments, **options):
            nonlocal count
            count += 1
            if count > step:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **options)

        return call_or_die

    for name in ("open", "fsync", "replace", "close"):
        setattr(os, name, dying(getattr(os, name)))
    sets, labels = (ReleasedSet("a", "train", -1),), np.ones(20, int)
    entry = LedgerEntry("1" * 64, "t", "2026-11-02", "/s", "f", "r", sets, labels)
    Ledger(Path("ledger")).enter(entry, {"age": pd.Series(np.arange(20))}, 10, 5.0)
    os._exit(0)


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="a process is forked")
@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_kill_at_each_call_of_the_system_leaves_a_readable_ledger():
    outcomes = []
    for step in range(40):
        rmtree("ledger", ignore_errors=True)
        process = multiprocessing.get_context("fork").Process(target=enter_and_die, args=(step,))
        process.start()
        process.join()
        outcomes.append((process.exitcode, len(entries(Path("ledger")))))
        sets, labels = (ReleasedSet("a", "train", -1),), np.ones(20, int)
        entry = LedgerEntry("1" * 64, "t", "2026-11-02", "/s", "f", "r", sets, labels)
        Ledger(Path("ledger")).enter(entry, {"age": pd.Series(np.arange(20))}, 10, 5.0)
        assert len(entries(Path("ledger"))) == 1
        if process.exitcode == 0:
            break
    assert outcomes[0] == (-signal.SIGKILL, 0)
    assert outcomes[-1] == (0, 1)


def test_a_plan_is_in_the_ledger_before_the_site_can_answer(monkeypatch):
    accept(Path("site"), plan_of(), SiteOptions("visits.csv"), Policy())
    monkeypatch.setattr("fcorun.sites.tables.ledger.Ledger.enter", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        open_durable_site(Path("site"), plan_of())
    assert not is_in_use(state_folder(Path("site"), plan_of()))


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
    open_durable_site(Path("other"), moved).close()
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
