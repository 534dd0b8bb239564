"""Signals that end a process: noted, acted on between steps, never while a file is written."""

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

from fcorun.base.records.formats import npz_bytes
from fcorun.base.system import files
from fcorun.base.system.files import (
    check_interrupted,
    defer_interruption,
    interruptible,
    interruptible_at_once,
    is_interrupted,
    write_atomically,
)

ALL = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.fixture(autouse=True)
def handlers():
    """The signal handlers of a process in a terminal; the test must leave them unchanged."""
    previous_handlers = {kind: signal.signal(kind, signal.default_int_handler) for kind in ALL}
    yield
    assert [signal.getsignal(kind) for kind in ALL] == [signal.default_int_handler] * 3
    for kind, handler in previous_handlers.items():
        signal.signal(kind, handler)


def send(kind: signal.Signals = signal.SIGTERM) -> None:
    os.kill(os.getpid(), kind)


@pytest.mark.parametrize("kind", ALL)
def test_a_signal_is_noted_and_interrupts_the_next_step(kind):
    with interruptible():
        send(kind)
        assert is_interrupted()
        with pytest.raises(KeyboardInterrupt):
            check_interrupted()
    check_interrupted()  # nothing is noted for the next command


def test_a_long_step_that_writes_nothing_is_interrupted_at_once():
    def long_step() -> None:
        with interruptible_at_once():
            send()
            time.sleep(20)
            pytest.fail("the step has gone on")

    with interruptible(), pytest.raises(KeyboardInterrupt):
        long_step()


def test_a_long_step_does_not_begin_after_a_signal():
    with interruptible():
        send()
        with pytest.raises(KeyboardInterrupt), interruptible_at_once():
            pytest.fail("the step has begun")


def test_a_file_is_written_whole_despite_a_signal(monkeypatch):
    def interrupted_write(path, content, *options):
        path.write_bytes(content[:2])
        send()
        path.write_bytes(content)

    monkeypatch.setattr("fcorun.base.system.files.write_new", interrupted_write)
    with interruptible(), interruptible_at_once():
        write_atomically(Path("file"), "whole")
        assert is_interrupted()
    assert Path("file").read_text() == "whole"


def test_outside_of_a_command_an_interrupted_write_leaves_the_old_file(monkeypatch):
    def interrupted_write(*_):
        send()

    write_atomically(Path("file"), "old")
    monkeypatch.setattr("fcorun.base.system.files.write_new", interrupted_write)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(Path("file"), "new")
    assert [path.read_text() for path in Path().iterdir()] == ["old"]


def test_an_interruption_within_an_archive_stays_an_interruption(monkeypatch):
    """Python then fails to close the archive, and raises that error instead."""
    monkeypatch.setattr(zipfile._ZipWriteFile, "__enter__", lambda _: send(), raising=False)  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        npz_bytes({"x": np.zeros(3)})


def test_a_second_signal_ends_the_process_at_once(monkeypatch):
    exit_codes: Queue[int] = Queue()
    monkeypatch.setattr(files.os, "_exit", exit_codes.put)
    monkeypatch.setattr(files, "_DOUBLE_SIGNAL_SECONDS", 1000)
    with interruptible(), defer_interruption():
        send()
        send()  # as ``timeout`` sends two
        with pytest.raises(Empty):
            exit_codes.get(timeout=0.05)
        monkeypatch.setattr(files, "_DOUBLE_SIGNAL_SECONDS", 0)
        send(signal.SIGINT)
        assert exit_codes.get(timeout=20) == 130


def test_a_nested_context_keeps_the_noted_signal():
    with interruptible():
        with interruptible():
            send()
        assert is_interrupted()


def test_an_ignored_signal_stays_ignored():
    previous_handler = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    with interruptible():
        send(signal.SIGHUP)
        assert not is_interrupted()
    signal.signal(signal.SIGHUP, previous_handler)


def test_another_thread_changes_nothing():
    with interruptible():
        thread = threading.Thread(target=lambda: interruptible_at_once().__enter__())
        thread.start()
        thread.join()
        send()
        assert is_interrupted()


def test_a_system_may_lack_some_signals(monkeypatch):
    monkeypatch.delattr(signal, "SIGHUP")
    assert runpy.run_path(files.__file__)["SIGNALS"] == (signal.SIGINT, signal.SIGTERM)
