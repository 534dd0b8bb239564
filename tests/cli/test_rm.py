"""fcorun rm, on records that are made up."""

from pathlib import Path

import filelock
import pytest
from fake_records import fake_record


def test_rm_removes_what_it_says(call):
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


def test_rm_finds_nothing(call):
    fake_record("s/done")
    assert call("rm", "s", "--status", "failed") == (0, "no record is failed\n", "")


def test_rm_leaves_what_is_no_record(call):
    fake_record("s/a", status="failed")
    Path("s/other").mkdir()
    Path("s/other/metrics.csv").write_text("round\n")
    call("rm", "s", "--status", "failed", "--yes")
    assert Path("s/other/metrics.csv").exists()


def test_rm_leaves_what_is_being_computed(call):
    folder = fake_record("s/a", status="running").folder
    with filelock.FileLock(folder / ".lock"):
        code, _, err = call("rm", "s", "--status", "running", "--yes")
        assert call("rm", "s", "--status", "interrupted", "--yes")[1] == "no record is interrupted\n"
    assert code == 1
    assert "is being computed by another process" in err
    assert (folder / "status.json").exists()
    assert call("rm", "s", "--status", "interrupted", "--yes")[0] == 0  # nobody holds the lock: it was killed
    assert not folder.exists()


@pytest.mark.parametrize(("answer", "gone"), [("y", True), ("YES", True), ("", False), ("n", False)])
def test_rm_asks(call, monkeypatch, answer, gone):
    folder = fake_record("s/a", status="failed").folder
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda prompt: answer)
    assert call("rm", "s", "--status", "failed")[0] == (0 if gone else 1)
    assert folder.exists() != gone


def test_rm_does_not_go_on_without_an_answer(call, monkeypatch):
    folder = fake_record("s/a", status="failed").folder
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    code, out, err = call("rm", "s", "--status", "failed")
    assert code == 2
    assert "give --yes" in err
    assert "failed: s/a" in out
    assert folder.exists()
