"""A helper process calls functions, and this process calls what the helper cannot."""

import os
import sys
import warnings

import pytest

from fcorun.system.helper_process import HelperProcess

MODULE = "antigravity_"  # a module that nobody has imported, nor can be: the process calls nevertheless


@pytest.fixture
def helper():
    with HelperProcess(MODULE) as helper:
        yield helper


def test_calls_have_values_of_another_process_in_their_order(helper):
    helper.start()
    pid = helper.submit(os.getpid).result()
    assert pid not in (os.getpid(), None)
    futures = [helper.submit(divmod, 1 + i, 2) for i in range(3)]
    assert [future.result() for future in futures] == [(0, 1), (1, 0), (1, 1)]
    assert len(helper.submit(bytes, 10**6).result()) == 10**6  # more than a pipe holds
    helper.submit(print, "no value").result()
    assert helper.submit(os.getpid).result() == pid
    assert helper.submit(os.getsid, 0).result() != os.getsid(0)  # Ctrl-C reaches the terminal's session only


def test_errors_are_raised_here(helper):
    helper.start()
    with pytest.raises(ZeroDivisionError):
        helper.submit(divmod, 1, 0).result()
    assert helper.submit(os.getpid).result() != os.getpid()
    value = helper.submit(lambda: os.getpid()).result()  # has no pickle
    assert value == os.getpid()


def test_without_the_process_this_process_calls(helper, monkeypatch):
    assert helper.submit(os.getpid).result() == os.getpid()
    helper.start()
    helper.process.kill()
    helper.process.wait()
    assert helper.submit(os.getpid).result() == os.getpid()
    with HelperProcess(MODULE) as other:
        monkeypatch.setattr(sys, "executable", "/nowhere/python")
        other.start()
        assert other.submit(os.getpid).result() == os.getpid()
    with HelperProcess("sys") as needless:
        needless.start()
        assert needless.process is None


def test_the_process_ends_with_its_context_and_warns_as_the_command_does(capfd):
    with HelperProcess(MODULE) as helper:
        helper.start()
        helper.submit(warnings.warn, "glyph \x1b missing").result()
    assert helper.process is not None
    assert helper.process.returncode is not None
    assert "\\x1b missing" in capfd.readouterr().err
