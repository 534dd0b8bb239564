"""fcorun rm, on records written without a run."""

import json
from pathlib import Path

import filelock
import pytest
from fake_records import fake_record


def test_rm_removes_the_records_that_it_prints(call):
    fake_record("s/done")
    failed, stopped = (
        fake_record("s/failed", status="failed", reason="no memory"),
        fake_record("s/stopped", status="interrupted"),
    )
    (failed.folder / "notes.txt").write_text("mine")
    (failed.folder / "run.log").write_text("log")
    code, out, err = call("rm", "s", "--status", "failed", "--status", "interrupted", "--yes")
    assert (code, err) == (0, "")
    assert "failed: s/failed" in out
    assert "no memory" in out
    assert [path.name for path in failed.folder.iterdir()] == ["notes.txt"]
    assert not stopped.folder.exists()
    assert Path("s/done/metrics.csv").exists()


def test_rm_without_matching_records_removes_nothing(call):
    fake_record("s/done")
    assert call("rm", "s", "--status", "failed") == (0, "no record is failed\n", "")


def test_rm_keeps_folders_that_are_no_records(call):
    fake_record("s/a", status="failed")
    Path("s/other").mkdir()
    Path("s/other/metrics.csv").write_text("round\n")
    call("rm", "s", "--status", "failed", "--yes")
    assert Path("s/other/metrics.csv").exists()


def test_rm_keeps_a_run_that_is_being_computed(call):
    folder = fake_record("s/a", status="running").folder
    with filelock.FileLock(folder / ".lock"):
        code, _, err = call("rm", "s", "--status", "running", "--yes")
        assert call("rm", "s", "--status", "interrupted", "--yes")[1] == "no record is interrupted\n"
    assert code == 1
    assert "is being computed by another process" in err
    assert (folder / "status.json").exists()
    assert call("rm", "s", "--status", "interrupted", "--yes")[0] == 0  # without a lock, the run was killed
    assert not folder.exists()


def test_rm_removes_a_run_of_a_lost_machine(call):
    folder = fake_record("s/a", status="running").folder
    status = json.loads((folder / "status.json").read_text(encoding="utf-8"))
    (folder / "status.json").write_text(json.dumps(status | {"host": "another machine"}), encoding="utf-8")
    assert call("rm", "s", "--status", "interrupted", "--yes")[1] == "no record is interrupted\n"
    assert call("rm", "s", "--status", "running", "--yes")[0] == 0
    assert not folder.exists()


@pytest.mark.parametrize(("answer", "removed"), [("y", True), ("YES", True), ("", False), ("n", False)])
def test_rm_asks_before_it_removes(call, monkeypatch, answer, removed):
    folder = fake_record("s/a", status="failed").folder
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda prompt: answer)
    assert call("rm", "s", "--status", "failed")[0] == (0 if removed else 1)
    assert folder.exists() != removed


def test_rm_without_a_terminal_needs_yes(call, monkeypatch):
    folder = fake_record("s/a", status="failed").folder
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    code, out, err = call("rm", "s", "--status", "failed")
    assert code == 2
    assert "give --yes" in err
    assert "failed: s/a" in out
    assert folder.exists()
