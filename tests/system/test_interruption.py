"""Signals that end a process: noted, heeded between steps, never within the writing of a file."""

import os
import runpy
import signal
import threading
import time
import zipfile
from pathlib import Path
from queue import Empty, Queue

import numpy as np
import pytest

from fcorun.records.formats import npz_bytes
from fcorun.system import interruption
from fcorun.system.files import write_atomically
from fcorun.system.interruption import (
    check_interrupted,
    defer_interruption,
    interruptible,
    interruptible_at_once,
    is_interrupted,
)

ALL = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.fixture(autouse=True)
def handlers():
    """What a terminal's process has; nothing of a test is left."""
    before = {kind: signal.signal(kind, signal.default_int_handler) for kind in ALL}
    yield
    assert [signal.getsignal(kind) for kind in ALL] == [signal.default_int_handler] * 3
    for kind, handler in before.items():
        signal.signal(kind, handler)


def send(kind: signal.Signals = signal.SIGTERM) -> None:
    os.kill(os.getpid(), kind)


@pytest.mark.parametrize("kind", ALL)
def test_a_signal_is_noted_and_heeded_at_the_next_step(kind):
    with interruptible():
        send(kind)
        assert is_interrupted()
        with pytest.raises(KeyboardInterrupt):
            check_interrupted()
    check_interrupted()  # of the next command nothing is noted


def test_a_long_step_that_writes_nothing_is_broken_off():
    def long_step() -> None:
        with interruptible_at_once():
            send()
            time.sleep(20)

    begun = time.monotonic()
    with interruptible(), pytest.raises(KeyboardInterrupt):
        long_step()
    assert time.monotonic() < begun + 10


def test_a_long_step_is_not_begun_after_a_signal():
    with interruptible():
        send()
        with pytest.raises(KeyboardInterrupt), interruptible_at_once():
            pytest.fail("begun")


def test_a_file_is_written_whole_whatever_comes(monkeypatch):
    write = Path.write_bytes

    def in_the_midst(path, content):
        write(path, content[:2])
        send()
        return write(path, content)

    monkeypatch.setattr(Path, "write_bytes", in_the_midst)
    with interruptible(), interruptible_at_once():
        write_atomically(Path("file"), "whole")
        assert is_interrupted()
    assert Path("file").read_text() == "whole"


def test_without_a_command_a_write_that_is_interrupted_leaves_nothing(monkeypatch):
    def in_the_midst(*_):
        send()

    write_atomically(Path("file"), "old")
    monkeypatch.setattr(Path, "write_bytes", in_the_midst)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(Path("file"), "new")
    assert [path.read_text() for path in Path().iterdir()] == ["old"]


def test_an_interruption_within_an_archive_stays_one(monkeypatch):
    """Python closes the archive then, which cannot be, and says that instead."""
    monkeypatch.setattr(zipfile._ZipWriteFile, "__enter__", lambda _: send(), raising=False)  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        npz_bytes({"x": np.zeros(3)})


def test_a_second_signal_ends_the_process_at_once(monkeypatch):
    ended: Queue[int] = Queue()
    monkeypatch.setattr(interruption.os, "_exit", ended.put)
    with interruptible(), defer_interruption():
        send()
        send()  # as ``timeout`` sends two
        with pytest.raises(Empty):
            ended.get(timeout=0.05)
        monkeypatch.setattr(interruption, "_DOUBLE_SIGNAL_SECONDS", 0)
        send(signal.SIGINT)
        assert ended.get(timeout=20) == 130


def test_within_another_it_keeps_what_was_noted():
    with interruptible():
        with interruptible():
            send()
        assert is_interrupted()


def test_what_is_ignored_stays_ignored():
    outer = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    with interruptible():
        send(signal.SIGHUP)
        assert not is_interrupted()
    signal.signal(signal.SIGHUP, outer)


def test_in_another_thread_nothing_is_changed():
    with interruptible():
        thread = threading.Thread(target=lambda: interruptible_at_once().__enter__())
        thread.start()
        thread.join()
        send()
        assert is_interrupted()


def test_a_system_may_lack_some(monkeypatch):
    monkeypatch.delattr(signal, "SIGHUP")
    assert runpy.run_path(interruption.__file__)["SIGNALS"] == (signal.SIGINT, signal.SIGTERM)
