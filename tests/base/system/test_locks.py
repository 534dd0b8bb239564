"""Locks where the file system refuses those of the operating system: one owner, whatever is killed or suspended."""

import errno
import fcntl
import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers import small
from without_flock import STALE_SECONDS, refuse_locks

from fcorun import Record, UserError, run
from fcorun.base.records.record import RunFolder, try_lock
from fcorun.base.system import locks

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has locks on all file systems")

FLOCK = fcntl.flock
HOLD = """
import sys, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from without_flock import refuse_locks
from fcorun.base.errors import WriteError
from fcorun.base.records.record import RunFolder
refuse_locks(setattr)
folder = RunFolder(Path("run"), "1")
state = folder.claim()
states = open("run/.states.bin", "wb", buffering=0)
print(state, flush=True)
sys.stdin.readline()
states.write(b"late")
try:
    folder.write_file("metrics.csv", "late")
except WriteError as error:
    print(error)
folder.release()
"""


@pytest.fixture(autouse=True)
def _without_locks(monkeypatch):
    refuse_locks(monkeypatch.setattr)


def have_locks(monkeypatch):
    """Have the file system no longer refuse locks, as for another process."""
    monkeypatch.setattr(fcntl, "flock", FLOCK)
    monkeypatch.setattr(locks, "_found_refusals", {})


def start_holder():
    """Start a process that claims the folder "run", and writes to it when it reads a line."""
    support = str(Path(__file__).parents[2] / "support")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    holder = subprocess.Popen([sys.executable, "-c", HOLD, support], text=True, **pipes)  # type: ignore[call-overload]
    assert holder.stdout is not None
    assert holder.stdout.readline() == "new\n"
    return holder


def test_a_claim_is_one_process_s_until_it_is_given_back():
    holder = start_holder()
    assert try_lock(Path("run")) is None
    assert Record(Path("run")).status["status"] == "running"
    with pytest.raises(UserError, match="is being computed by another process"):
        RunFolder(Path("run"), "1").remove()
    output, _ = holder.communicate("\n")
    assert output == ""
    assert Path("run/metrics.csv").read_text() == "late"
    with try_lock(Path("run")) as lock:  # type: ignore[union-attr]
        assert lock.is_held
        assert try_lock(Path("run")) is None  # this process has it
    assert not list(Path("run").glob(".lock*"))


def test_the_claim_of_a_killed_process_is_taken_over_after_it_was_watched_whatever_clocks_tell():
    holder = start_holder()
    holder.kill()
    holder.communicate()
    (owned,) = Path("run/.lock.claim").iterdir()
    os.utime(owned, (0, 0))  # a clock that is off
    began = time.monotonic()
    lock = try_lock(Path("run"))
    assert lock is not None
    assert lock.is_held
    assert time.monotonic() - began >= STALE_SECONDS
    lock.release()


def test_a_suspended_process_that_has_lost_its_claim_writes_nothing_when_it_goes_on():
    holder = start_holder()
    holder.send_signal(signal.SIGSTOP)
    folder = RunFolder(Path("run"), "1")
    assert folder.claim() == "resume"
    folder.write_file("metrics.csv", "ours")
    holder.send_signal(signal.SIGCONT)
    output, _ = holder.communicate("\n")
    assert "another process may have taken the record over" in output
    assert Path("run/metrics.csv").read_text() == "ours"
    assert Path("run/.states.bin").read_bytes() == b""  # it has another file open
    time.sleep(0.3)  # some beats
    assert not folder.is_lost
    folder.release()


def test_a_file_system_that_is_short_of_locks_for_a_moment_is_no_reason_for_claims(monkeypatch):
    monkeypatch.setattr(locks, "_found_refusals", {Path().stat().st_dev: 0})
    with pytest.raises(OSError, match=os.strerror(errno.ENOSYS)):
        locks.acquire(Path("file"))
    assert not locks.claim_folder(Path("file")).exists()


def test_a_process_waits_for_locks_of_which_its_machine_is_short(monkeypatch):
    answers = iter([errno.ENOLCK] * 3)

    def flock(*_):
        for error in answers:
            raise OSError(error, os.strerror(error))

    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr(locks, "_SHORTAGE_SECONDS", 60.0)
    with locks.acquire(Path("file")):
        assert Path("file").exists()
        assert not locks.claim_folder(Path("file")).exists()


def test_a_process_with_locks_and_one_that_is_short_of_them_never_own_one_file(monkeypatch):
    file, claim = Path("file"), locks.claim_folder(Path("file").absolute())
    have_locks(monkeypatch)
    with locks.acquire(file):
        refuse_locks(monkeypatch.setattr, errno.ENOLCK)
        with pytest.raises(OSError, match="a process may have locked file: if none has, delete it"):
            locks.acquire(file)
        assert file.exists()
        assert not claim.exists()
        have_locks(monkeypatch)
    assert not list(Path().glob("file*"))
    refuse_locks(monkeypatch.setattr, errno.ENOLCK)
    with locks.acquire(file):
        assert claim.exists()
        have_locks(monkeypatch)
        with pytest.raises(locks.LockedError):
            locks.acquire(file)
        assert not file.exists()
    with locks.acquire(file) as lock:
        assert not lock.is_taken_over


def test_a_process_with_locks_takes_the_claim_of_a_killed_one_over(monkeypatch):
    holder = start_holder()
    holder.kill()
    holder.communicate()
    have_locks(monkeypatch)
    lock = try_lock(Path("run"))
    assert lock is not None
    assert lock.is_taken_over
    assert Path("run/.lock").exists()
    assert not Path("run/.lock.claim").exists()
    lock.release()


def test_a_claim_that_nobody_took_over_is_kept_after_a_long_stall(monkeypatch):
    with locks.acquire(Path("file")) as lock:
        monkeypatch.setattr(locks, "_seconds_of_the_machine", itertools.count(1e9, 1e6).__next__)
        assert lock.is_held
        locks.claim_folder(Path("file")).joinpath(locks._CLAIMS.token).unlink()
        assert not lock.is_held


def test_a_renaming_that_was_done_and_answered_by_an_error_is_a_claim(monkeypatch):
    rename = locks._rename
    monkeypatch.setattr(locks, "_rename", lambda *names: rename(*names) and False)
    with locks.acquire(Path("file"), seconds=60) as lock:
        assert lock.is_held
        with pytest.raises(locks.LockedError):
            locks.acquire(Path("file"))


def test_a_run_leaves_its_record_and_no_claim():
    record = run(small(), "here")
    assert record.status["status"] == "done"
    assert not list(Path("here").glob(".lock*"))
