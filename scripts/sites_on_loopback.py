"""Provision a server and three sites of NVFLARE on this machine, run a study, and kill parties while it runs.

python scripts/sites_on_loopback.py FOLDER             # a run without a kill: times of its rounds
python scripts/sites_on_loopback.py FOLDER --kills 20  # kills of random parties; the model must have the same bits

Prints a table in Markdown. FOLDER must be empty, and holds the kits and all logs.
"""

import argparse
import contextlib
import itertools
import json
import os
import random
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import yaml
from loopback_study import LoopbackServer, LoopbackSite, expected_model

from fcorun.sites.transport.kits import restrict_kit
from fcorun.sites.transport.nvflare import export_job, submit_job

SITES = ["site-1", "site-2", "site-3"]
SERVER, USER = "localhost", "lead@coord.org"
BUILDERS = {  # of NVFLARE's provisioning, with their arguments
    "workspace.WorkspaceBuilder": {"template_file": ["master_template.yml"]},
    "static_file.StaticFileBuilder": {"config_folder": "config", "scheme": "grpc"},
    "cert.CertBuilder": {},
    "signature.SignatureBuilder": {},
}
START_SECONDS, RUN_SECONDS = 120.0, 600.0


def free_ports(number: int) -> list[int]:
    sockets = [socket.create_server(("localhost", 0)) for _ in range(number)]
    ports = [opened.getsockname()[1] for opened in sockets]
    for opened in sockets:
        opened.close()
    return ports


def provision(folder: Path) -> Path:
    """Make kits with certificates, restrict them to the study, and return their folder."""
    learn_port, admin_port = free_ports(2)
    server = {"type": "server", "fed_learn_port": learn_port, "admin_port": admin_port}
    project = {
        "api_version": 3,
        "name": "loopback",
        "description": "a server and three sites on one machine",
        "participants": [
            {"name": SERVER, "org": "coordinator", **server},
            *({"name": site, "type": "client", "org": site.replace("-", "")} for site in SITES),
            {"name": USER, "type": "admin", "org": "coordinator", "role": "lead"},
        ],
        "builders": [{"path": f"nvflare.lighter.impl.{path}", "args": args} for path, args in BUILDERS.items()],
    }
    (folder / "project.yml").write_text(yaml.safe_dump(project, sort_keys=False), encoding="utf-8")
    command = [sys.executable, "-m", "nvflare.cli", "provision", "-p", "project.yml", "-w", "workspace"]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    kits = folder / "workspace" / "loopback" / "prod_00"
    for name in (SERVER, *SITES):
        restrict_kit(kits / name, ["loopback_study."])
    return kits


class Parties:
    """The processes of the server, of the sites, and of the user."""

    def __init__(self, kits: Path):
        self.kits = kits
        self.processes: dict[str, subprocess.Popen] = {}

    def start(self, name: str) -> None:
        """Start a party by the command of its kit, without the loop that starts the party again."""
        paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
        environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        with (self.kits / name / "console.log").open("ab") as log:
            command = ["bash", str(self.kits / name / "startup" / "sub_start.sh"), "--once"]
            self.processes[name] = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def job_processes(self, name: str) -> list[psutil.Process]:
        """Return the processes of a party that compute a job."""
        try:
            return psutil.Process(self.processes[name].pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def kill(self, name: str, job_only: bool = False) -> None:
        """Kill the processes of a party's job, and the party itself unless ``job_only``."""
        jobs = self.job_processes(name)
        if not job_only:
            self.processes[name].kill()
            self.processes[name].wait()
        for process in jobs:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def stop(self) -> None:
        for name in self.processes:
            self.kill(name)


def start_user(folder: Path, parties: Parties, job: Path) -> subprocess.Popen:
    """Start the command of the user in a process of its own, which may be killed."""
    command = [sys.executable, __file__, str(folder), "--submit", str(job), "--kit", str(parties.kits / USER)]
    with (folder / "user.log").open("ab") as log:
        parties.processes[USER] = subprocess.Popen(command, stdout=log, stderr=log)
    return parties.processes[USER]


def progress(kits: Path, run: str) -> int:
    """Return the number of requests that have all answers."""
    return len(list((kits / SERVER / "fcorun" / run / "answers").glob("*.npz")))


def wait_for(condition, seconds: float, what: str) -> float:
    """Wait until a condition holds, and return the seconds of the wait."""
    started = time.monotonic()
    while not condition():
        if time.monotonic() - started > seconds:
            raise SystemExit(f"{what} did not happen within {seconds:g} seconds: see the logs in the folder")
        time.sleep(0.1)
    return time.monotonic() - started


def wait_for_request(kits: Path, run: str, number: int) -> None:
    """Wait until a number of requests have all answers."""
    wait_for(lambda: progress(kits, run) >= number, RUN_SECONDS, f"request {number}")


def kill_parties(folder: Path, parties: Parties, job: Path, run: str, kills: int) -> list[tuple[str, int, float]]:
    """Kill random parties while a run makes progress.

    Returns what was killed, at which request, and the seconds until the run went on.
    """
    rng = random.Random(0)
    user = start_user(folder, parties, job)
    log = []
    kinds = [(name, job_only) for name in (SERVER, *SITES) for job_only in (False, True)] + [("user", False)]
    rng.shuffle(kinds)
    for name, job_only in itertools.islice(itertools.cycle(kinds), kills):
        wait_for_request(parties.kits, run, progress(parties.kits, run) + rng.randrange(5, 50))
        at = progress(parties.kits, run)
        print(f"kill {len(log) + 1}: {name}{' (its job)' if job_only else ''} at request {at}", flush=True)
        started = time.monotonic()
        if name == "user":
            user.kill()
            user.wait()
            user = start_user(folder, parties, job)
        else:
            parties.kill(name, job_only)
            at = progress(parties.kits, run)
            if not job_only:
                time.sleep(rng.uniform(0.0, 3.0))
                parties.start(name)
        wait_for_request(parties.kits, run, at + 2)  # the answers to one request may have been on their way
        log.append((f"{name}{', its job alone' if job_only else ''}", at, time.monotonic() - started))
    if user.wait(RUN_SECONDS):
        raise SystemExit("the run has failed: see user.log")
    return log


def run_study(folder: Path, kills: int, rounds: int) -> None:
    kits = provision(folder)
    run = f"loopback-{kills}"
    empty_rounds = 0 if kills else 200
    job = export_job(folder / "job", LoopbackServer(run, rounds, empty_rounds), LoopbackSite(), SITES)
    parties = Parties(kits)
    try:
        for name in (SERVER, *SITES):
            parties.start(name)
        started = time.monotonic()
        if kills:
            log = kill_parties(folder, parties, job, run, kills)
        else:
            user = start_user(folder, parties, job)
            wait_for(lambda: progress(kits, run) > 0 or user.poll() is not None, START_SECONDS, "the first answer")
            start_seconds = time.monotonic() - started
            if user.wait(RUN_SECONDS):
                raise SystemExit("the run has failed: see user.log")
        seconds = time.monotonic() - started
    finally:
        parties.stop()
    result = Path((folder / "result.txt").read_text(encoding="utf-8"))
    same = np.array_equal(np.load(result / "model.npy"), expected_model(SITES, rounds))
    print(f"\nmodel of {rounds} rounds: {'the same bits' if same else 'OTHER BITS'}; {seconds:.0f} s in all\n")
    if kills:
        print("| killed | at request | going on after |\n| --- | --- | --- |")
        for name, at, after in log:
            print(f"| {name} | {at} | {after:.1f} s |")
    else:
        times = json.loads((result / "times.json").read_text(encoding="utf-8"))
        print("| what | median | least |\n| --- | --- | --- |")
        for what, key in (("a round of nothing", "empty"), ("a round of 1,024 float64", "full")):
            print(f"| {what} | {1e3 * np.median(times[key]):.1f} ms | {1e3 * min(times[key]):.1f} ms |")
        print(f"| from the start of all processes to the first answer | {start_seconds:.1f} s | |")
    if not same:
        raise SystemExit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--submit", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--kit", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    folder = options.folder.resolve()
    if options.submit:
        started = time.monotonic()
        result = submit_job(
            options.submit, options.kit, folder / "results", RUN_SECONDS, max_jobs=1000, on_status=
            lambda status: print(f"{time.monotonic() - started:7.1f} s  {status}", flush=True),
        )  # fmt: skip
        (folder / "result.txt").write_text(str(result), encoding="utf-8")
        return
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise SystemExit(f"{folder} is not empty")
    run_study(folder, options.kills, options.rounds or (60 * options.kills or 300))


if __name__ == "__main__":
    main()
