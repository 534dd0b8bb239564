"""Files that appear whole, and rows of files that are too large for memory."""

import hashlib
import io
import os
import time
from pathlib import Path

import numpy as np
import pytest

from fcorun.base.errors import WriteError
from fcorun.base.system import files
from fcorun.base.system.files import append_line, read_rows_at, write_atomically, write_rows_at

ROWS = np.arange(60, dtype=np.float32).reshape(12, 5)
POSITIONS = np.array([0, 1, 2, 5, 9, 10])


class PartialFile(io.FileIO):
    """A file of which a call reads and writes a part only, as the system does for more than 2 GiB."""

    def readinto(self, buffer):
        return super().readinto(memoryview(buffer)[:7])

    def write(self, content):
        return super().write(memoryview(content)[:7])


@pytest.mark.parametrize("file_class", [io.FileIO, PartialFile])
def test_rows_are_whole_however_much_a_call_transfers(file_class):
    Path("rows").write_bytes(b"begin" + ROWS.tobytes())
    rows = np.empty((len(POSITIONS), 5), np.float32)
    with file_class("rows") as file:
        read_rows_at(file, POSITIONS, rows, offset=5)
    np.testing.assert_array_equal(rows, ROWS[POSITIONS])
    with file_class("copy", "w") as file:
        write_rows_at(file, POSITIONS, rows)
    copy = np.fromfile("copy", np.float32).reshape(-1, 5)
    np.testing.assert_array_equal(copy[POSITIONS], rows)


def test_a_file_that_has_become_shorter_is_an_error():
    Path("rows").write_bytes(ROWS.tobytes()[:-1])
    with open("rows", "rb", buffering=0) as file, pytest.raises(OSError, match="rows has become shorter"):
        read_rows_at(file, np.array([0, 11]), np.empty((2, 5), np.float32))


def test_nobody_can_have_a_file_overwritten_through_a_link(monkeypatch):
    names, rename = [], os.replace
    monkeypatch.setattr(os, "replace", lambda old, new: (names.append(str(old)), rename(old, new)))
    write_atomically(Path("answer"), b"1")
    write_atomically(Path("answer"), b"2", durable=True)
    assert len(set(names)) == 2  # which nobody can guess
    Path("owner").write_text("rules")
    monkeypatch.setattr("secrets.token_hex", lambda _: "guessed")
    Path(".answer.guessed.tmp").symlink_to("owner")
    with pytest.raises(WriteError):
        write_atomically(Path("answer"), b"3")
    assert (Path("owner").read_text(), Path("answer").read_text()) == ("rules", "2")


@pytest.mark.skipif(not hasattr(os, "O_NOFOLLOW"), reason="the system has no such flag")
def test_no_line_is_appended_through_a_link():
    Path("other").write_text("mine\n")
    Path("run.log").symlink_to("other")
    with pytest.raises(WriteError):
        append_line(Path("run.log"), "a line")
    assert Path("other").read_text() == "mine\n"


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The temporary folder, where the user's cache folder cannot be made."""
    (tmp_path / "taken").write_text("a file")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("FCORUN_CACHE", str(tmp_path / "taken"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    files._temporary_folder.cache_clear()
    return tmp_path / "temporary"


def test_a_cache_that_cannot_be_written_is_a_new_folder_of_the_process(temporary):
    programs, digests = files.cache_dir("programs"), files.cache_dir("digests")
    assert programs.parent == digests.parent
    assert programs.parent.parent == temporary
    assert programs.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("function", ["cache_dir", "write_atomically"])
def test_a_digest_that_cannot_be_cached_is_computed(function, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("full")

    monkeypatch.setenv("FCORUN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(files, "_CACHED_DIGEST_BYTES", 0)
    monkeypatch.setattr(files, function, fail)
    Path("rows").write_bytes(b"abc")
    assert files.file_digest(Path("rows")) == hashlib.sha256(b"abc").hexdigest()


def test_the_next_write_removes_what_a_killed_process_has_left_of_the_file():
    second_ago = time.time() - 2
    names = (".answer.0123456789abcdef.tmp", ".answer.csv.0123456789abcdef.tmp", "answer.tmp")
    for name in names:
        Path(name).write_text("a part")
        os.utime(name, (second_ago, second_ago))
    living = Path(".answer.fedcba9876543210.tmp")
    living.write_text("is being written")
    os.utime(living, (time.time() + 60, time.time() + 60))  # else a machine that stalls makes it old
    write_atomically(Path("answer"), "whole")
    assert {path.name for path in Path().iterdir()} == {"answer", living.name, *names[1:]}
