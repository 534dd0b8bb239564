"""A study in NVFLARE's simulator, where all sites share one root folder."""

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from fcorun.base.errors import UserError
from fcorun.base.records.formats import json_text
from fcorun.sites.server.kit_study import StudySite
from fcorun.sites.transport.delivery import check_site_names, poll
from fcorun.sites.transport.kits import COLLAB_CLASSES
from fcorun.sites.transport.nvflare import find_result


class SimulatedSite(StudySite):
    """A site whose kit is a folder of its name."""

    def open_site(self, name, root):
        return super().open_site(name, root / "local" / name)

    def open_log(self, name, root):
        return super().open_log(name, root / "local" / name)


def simulate_job(job: Path, workspace: Path, sites: Sequence[str], allowed: Sequence[str], seconds: float) -> Path:
    """Run a job with a server and sites that are processes of this machine, and return the folder of its result.

    Args:
        job: the folder of the job.
        workspace: the folder for all files of the simulation, which removes earlier ones. Its log is beside the folder.
        sites: the names of the sites.
        allowed: the beginnings of the paths of the job's own classes.
        seconds: the longest time of the simulation, which is repeated once if it loses a site or leaves no result.

    Raises UserError or SiteLost with the sentence of a run that failed.
    """
    from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST

    local = workspace / "local"
    local.mkdir(parents=True, exist_ok=True)
    policy = {"format_version": 2, "class_allow_list": [*DEFAULT_CLASS_ALLOW_LIST, *COLLAB_CLASSES, *allowed]}
    (local / "resources.json").write_text(json_text(policy), encoding="utf-8")
    clients = ",".join(check_site_names(sites))
    command = [sys.executable, "-m", "nvflare.cli", "simulator", str(job), "-w", str(workspace), "-c", clients]
    command += ["-t", str(len(sites))]
    log = workspace.with_name(f"{workspace.name}.log")
    with suppress(UserError):  # the simulator chooses its ports before it opens them: one may be taken
        return find_result(workspace, _run_for(command, log, seconds))
    return find_result(workspace, _run_for(command, log, seconds))


def _run_for(command: list[str], log_path: Path, seconds: float) -> str:
    """Run a program for at most so many seconds, and return how it ended and the last lines that it printed."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with log_path.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            for _ in poll(seconds):
                if process.poll() is not None:
                    break
            end = f"exit status {process.poll()}"
        finally:
            if process.poll() is None:
                for running in (*psutil.Process(process.pid).children(recursive=True), process):
                    running.kill()
                process.wait()
    return f"{end}: {log_path.read_text(encoding='utf-8', errors='replace')[-2000:]}"
