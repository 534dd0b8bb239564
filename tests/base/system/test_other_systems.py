"""Properties of Windows and macOS that Linux can imitate: missing functions, paths, letters, files open elsewhere."""

import os
import subprocess
import sys

import pytest
from helpers import fails

from fcorun import compose
from fcorun.base.config import build_plugin
from fcorun.base.errors import WriteError
from fcorun.base.system.files import write_atomically

SCRIPT = """
import importlib, os, pkgutil, signal, sys
import filelock, h5py, hydra, jax, matplotlib.pyplot, multiprocessing.connection, nilearn, nilearn.maskers, numpy
import pandas, platformdirs, pooch, psutil, pyarrow.parquet, rich.progress, sklearn.metrics, threadpoolctl
import concurrent.futures.thread, distributed, http.client, tarfile, tempfile

for name in ("fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty"):
    sys.modules[name] = None
lacks = {os: "fork forkpty geteuid getegid getuid getgid getpgid getpgrp getloadavg killpg mkfifo nice posix_fadvise "
             "posix_fallocate pread preadv pwrite sched_getaffinity setpgrp setsid statvfs uname wait WNOHANG",
         signal: "SIGALRM SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGQUIT SIGSTOP SIGTSTP SIGUSR1 SIGUSR2 "
                 "pthread_kill pthread_sigmask setitimer sigwait"}
for module, names in lacks.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)

import multiprocessing
multiprocessing.get_all_start_methods = lambda: ["spawn"]

import fcorun
for module in pkgutil.walk_packages(fcorun.__path__, "fcorun."):
    importlib.import_module(module.name)
from fcorun.__main__ import main
for arguments in (["list", "algo"], ["algo=fedavg", "data=lasso_16", "rounds=2", "eval_every=1"]):
    sys.argv = ["fcorun", *arguments]
    try:
        main()
    except SystemExit as end:
        assert not end.code, end.code
"""


@pytest.mark.slow
def test_it_runs_without_the_functions_that_windows_lacks(tmp_path):
    """All modules are imported and a run ends well.

    The output is encoded as under Windows, whose letters have no partial derivative.
    """
    command = [sys.executable, "-c", SCRIPT]
    environment = os.environ | {"PYTHONIOENCODING": "cp1252"}
    process = subprocess.run(command, capture_output=True, encoding="cp1252", env=environment, timeout=900, check=False)
    assert "done: outputs" in process.stdout, process.stderr
    assert "FedAvg(?)" in process.stdout
    assert process.returncode == 0, process.stderr
    assert "Traceback" not in process.stderr


@pytest.mark.parametrize(
    "path", [r"C:\Users\me\new folder\visits.csv", r"\\server\share\visits.csv", "d:/rows/visits.csv"]
)
def test_paths_of_windows_are_taken_as_they_are(path):
    config = compose(["algo=fedavg", "data=table", f"data.path={path}", "data.target=y", "data.client=c"])
    assert config["data"]["path"] == path


@pytest.mark.parametrize("name", ["a:b", "a/b", r"a\b", "../a", "a?", "CON", "lpt1", "a.", "a "])
def test_a_name_that_some_system_refuses_for_a_folder_is_refused(name):
    with fails("algo.name="):
        build_plugin("algo", {"class": "fcorun.FedAvg", "name": name, "client_lr": 0.1})


def test_a_file_that_a_reader_has_open_is_replaced_later_under_windows(tmp_path, monkeypatch):
    """Windows refuses to replace an open file for a while; on other systems the error is raised at once."""
    calls = []
    original_replace = os.replace

    def replace_at_third_call(*paths):
        calls.append(paths)
        if len(calls) < 3:
            raise PermissionError(13, "open elsewhere")
        original_replace(*paths)

    monkeypatch.setattr(os, "replace", replace_at_third_call)
    with pytest.raises(WriteError):
        write_atomically(tmp_path / "a", "1")
    monkeypatch.setattr("fcorun.base.system.files._RETRY_SECONDS", 0)
    monkeypatch.setattr("fcorun.base.system.files.sys.platform", "win32")
    write_atomically(tmp_path / "a", "1")
    assert (tmp_path / "a").read_text() == "1"
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".tmp")] == []
