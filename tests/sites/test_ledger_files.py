"""The files of the ledger of an owner: one for all folders, readable after any kill, a refusal where it is not."""

import multiprocessing
import os
import signal
import stat
import time
from contextlib import closing
from pathlib import Path
from shutil import rmtree

import filelock
import numpy as np
import pandas as pd
import pytest
from helpers import fails
from ledger_plans import describe, entries, run, write_visits
from three_sites import plan_of

from fcorun.sites.plan.policy import Policy
from fcorun.sites.plan.site_options import SiteOptions
from fcorun.sites.site.acceptance import accept, open_durable_site, open_site, state_folder
from fcorun.sites.tables.ledger import Ledger
from fcorun.sites.tables.ledger_entry import LedgerEntry
from fcorun.sites.tables.ledger_rows import ReleasedSet
from fcorun.sites.tables.plan_in_ledger import PlanInLedger
from fcorun.sites.transport.durable import is_in_use
from fcorun.sites.transport.messages import OwnerError


@pytest.fixture(autouse=True)
def table(tmp_path) -> pd.DataFrame:
    """Write visits.csv, and return its rows."""
    return write_visits()


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
    with closing(open_durable_site(tmp_path / "site", plan_of())) as durable:
        describe(durable)
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
        PlanInLedger(ledger, entries()[0], {}, {}, Policy(), 0.05).enter()


def enter_many(first: int, connection) -> None:
    """Enter plans, each on a file of its own, and say the number of each that may be answered."""
    sets, labels = (ReleasedSet("a", "train", -1),), np.ones(2000, int)
    columns = {f"c{k}": pd.Series(np.random.default_rng(k).normal(size=2000)) for k in range(20)}
    for k in range(first, 10_000):
        entry = LedgerEntry(f"{k:064}", "t", "2026-11-02", "/s", "f", f"{k}", sets, labels)
        PlanInLedger(Ledger(Path("ledger")), entry, columns, {}, Policy(), 5.0).enter()
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
    columns = {"age": pd.Series(np.arange(20))}
    PlanInLedger(Ledger(Path("ledger")), entry, columns, {}, Policy(), 5.0).enter()
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
        columns = {"age": pd.Series(np.arange(20))}
        PlanInLedger(Ledger(Path("ledger")), entry, columns, {}, Policy(), 5.0).enter()
        assert len(entries(Path("ledger"))) == 1
        if process.exitcode == 0:
            break
    assert outcomes[0] == (-signal.SIGKILL, 0)
    assert outcomes[-1] == (0, 1)


def test_a_plan_is_in_the_ledger_before_an_answer_leaves_and_not_without_one(monkeypatch):
    accept(Path("site"), plan_of(), SiteOptions("visits.csv"), Policy())
    open_durable_site(Path("site"), plan_of()).close()
    run(plan_of("data.validation=0.2026"))  # which differs from the plan above by a row
    assert len(entries()) == 1
    monkeypatch.setattr(PlanInLedger, "enter", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        run(plan_of("data.validation=0.2026"))
    assert not is_in_use(state_folder(Path("site"), plan_of("data.validation=0.2026")))
