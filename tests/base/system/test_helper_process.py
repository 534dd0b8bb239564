"""A helper process calls functions, and this process calls what the helper cannot."""

import os
import socket
import sys
import tracemalloc
import warnings

import pytest

from fcorun.reports.helper_process import HelperProcess

MODULE = "antigravity_"  # a module that nobody has imported, nor can be: the process calls nevertheless


@pytest.fixture
def helper():
    with HelperProcess() as helper:
        yield helper


def test_calls_have_values_of_another_process(helper):
    assert helper.start(MODULE)
    assert helper.submit(os.getppid).result() == helper.process.pid
    futures = [helper.submit(divmod, 1 + i, 2) for i in range(3)]
    assert [future.result() for future in futures] == [(0, 1), (1, 0), (1, 1)]
    assert len(helper.submit(bytes, 10**6).result()) == 10**6  # more than a socket holds
    helper.submit(print, "no value").result()
    assert helper.submit(os.getsid, 0).result() != os.getsid(0)  # Ctrl-C reaches the terminal's session only


def test_forks_share_what_a_function_of_a_module_has_left(helper):
    assert helper.start("tracemalloc:start")
    assert helper.submit(tracemalloc.is_tracing).result()
    assert not tracemalloc.is_tracing()


def test_errors_are_raised_here(helper):
    helper.start(MODULE)
    with pytest.raises(ZeroDivisionError):
        helper.submit(divmod, 1, 0).result()
    assert helper.submit(os.getpid).result() != os.getpid()
    value = helper.submit(lambda: os.getpid()).result()  # has no pickle
    assert value == os.getpid()


def test_without_the_process_this_process_calls(helper, monkeypatch):
    assert helper.submit(os.getpid).result() == os.getpid()
    helper.start(MODULE)
    helper.process.kill()
    helper.process.wait()
    assert helper.submit(os.getpid).result() == os.getpid()
    with HelperProcess() as other:
        monkeypatch.setattr(sys, "executable", "/nowhere/python")
        assert not other.start(MODULE)
        assert other.submit(os.getpid).result() == os.getpid()
    with HelperProcess() as needless:
        assert not needless.start("sys")
    with HelperProcess() as without_fork:
        monkeypatch.delattr(socket, "send_fds")  # as on Windows
        assert not without_fork.start(MODULE)


def test_calls_run_at_once(helper, tmp_path):
    """Opening a pipe to read waits until another process opens the pipe to write."""
    os.mkfifo(tmp_path / "pipe")
    helper.start(MODULE)
    reading = helper.submit((tmp_path / "pipe").read_text)
    helper.submit((tmp_path / "pipe").write_text, "hello").result()
    assert reading.result() == "hello"


def test_the_process_ends_with_its_context_and_warns_as_the_command_does(capfd):
    with HelperProcess() as helper:
        helper.start(MODULE)
        helper.submit(warnings.warn, "glyph \x1b missing").result()
    assert helper.process is not None
    assert helper.process.returncode is not None
    assert "\\x1b missing" in capfd.readouterr().err
