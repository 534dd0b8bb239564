"""Compare fcorun with other frameworks on LASSO I: equal data, rounds and minibatches; round times and objectives.

The script makes an environment for each framework, runs the tasks alternately, several times, and writes
docs/peers.md.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from environments import CPU, HERE, PEERS, QUIET, Peer, install, run, version
from export import COHORTS, export
from table import table
from task import EVAL_EVERY, METHODS, Task, objective, steady

from fcorun.base.system.machine import available_cores

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "fcorun-peers")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"the frameworks to compare, of {', '.join(PEERS)}; default: all"
    )
    parser.add_argument("--rounds", type=int, default=100, help="rounds of each run, a multiple of 10")
    parser.add_argument("--repetitions", type=int, default=3, help="runs of each framework; the minimum time counts")
    parser.add_argument("--limit", type=float, default=600, help="seconds that an installation or a run may take")
    parser.add_argument("--venvs", type=Path, default=cache, help=f"folder of the environments; default: {cache}")
    page = ROOT / "docs" / "peers.md"
    parser.add_argument("--out", type=Path, help=f"the page; default: {page} for all, a page in --venvs for some")
    arguments = parser.parse_args()
    names = arguments.names or list(PEERS)
    for name in names:
        if name not in PEERS:
            parser.exit(2, f"there is no competitor '{name}' (valid: {', '.join(PEERS)})\n")
    if arguments.rounds < 20 or arguments.rounds % EVAL_EVERY or arguments.repetitions < 1:
        parser.exit(2, f"give at least --rounds 20, a multiple of {EVAL_EVERY}, because the first tenth is not timed "
                       f"and the objective follows {EVAL_EVERY} rounds, and --repetitions 1\n")  # fmt: skip
    chosen = {name: PEERS[name] for name in names}
    rows, file = [], arguments.venvs / "rows.jsonl"
    arguments.venvs.mkdir(parents=True, exist_ok=True)
    for row in compare(chosen, arguments.rounds, arguments.repetitions, arguments.venvs, arguments.limit):
        rows.append(row)
        print(json.dumps(row), flush=True)
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")  # the first row is updated
    out = arguments.out or (arguments.venvs / "peers.md" if arguments.names else page)
    out.write_text(table(rows), encoding="utf-8")
    print(f"{out}, from {file}")


def compare(
    peers: dict[str, Peer], rounds: int, repetitions: int, venvs: Path, limit: float
) -> Iterator[dict[str, Any]]:
    """Yield a row about the machine and the date, then a row for each run or failure."""
    command = f"python scripts/peers/compare.py {' '.join(sys.argv[1:])}".strip()
    about: dict[str, Any] = {"rounds": rounds, "date": str(date.today()), **machine(), "command": command}
    yield about
    pythons: dict[str, Path] = {}
    for name, peer in peers.items():
        python, reason = install(peer, venvs / name, limit)
        if reason:
            yield {"peer": name, "reason": reason}
        else:
            pythons[name] = python
            about.setdefault("versions", {})[name] = version(peer, python)
    if {"fcorun", "jax"} <= pythons.keys():
        about["parts"] = measure_parts(limit)
    tasks = [(method, clients) for clients in COHORTS for method in METHODS]
    with tempfile.TemporaryDirectory() as top:
        files = {task: Path(top, f"{task[0]}-{task[1]}.npz") for task in tasks}
        for task, file in files.items():
            export(*task, rounds).write(file)
        for method, clients in tasks * repetitions:
            for name in list(pythons):
                result = measure(peers[name], pythons[name], files[method, clients], limit)
                if "reason" in result:  # a second attempt would fail, too
                    del pythons[name]
                yield {"peer": name, "method": method, "clients": clients, **result}


def measure(peer: Peer, python: Path, file: Path, limit: float) -> dict[str, Any]:
    """Return milliseconds for a round, other seconds of the process, and the final objective; or a failure's reason.

    "others" are the cores that other processes kept busy before or after, whichever were more.
    """
    out = file.with_name("out.npz")
    out.unlink(missing_ok=True)
    others, start = busy_cores(), time.perf_counter()
    reason = run(peer, python, file, out, limit)
    seconds = time.perf_counter() - start
    others = max(others, busy_cores())
    if reason or not out.exists():
        return {"reason": reason or "it wrote no result"}
    task = Task.read(file)
    with np.load(out) as result:
        each = steady(result["marks"], result["marked"], warm=task.rounds // 10)
        value = objective(task, result["weights"], result["bias"])
        nonzeros = int(np.count_nonzero(result["weights"]))
    times = {"round_ms": 1e3 * each, "rest_s": seconds - each * task.rounds, "others": round(others, 2)}
    return {**times, "objective": value, "nonzeros": nonzeros}


def measure_parts(limit: float) -> str:
    """Return the table of parts.py, the parts of a round of fcorun and of the program by hand."""
    command = [sys.executable, HERE / "parts.py"]
    done = subprocess.run(
        command, env=os.environ | CPU | QUIET, stdout=subprocess.PIPE, encoding="utf-8", timeout=limit, check=True
    )
    return done.stdout


def busy_cores() -> float:
    """Return how many cores are busy in the next second, on average, while this process waits."""
    return psutil.cpu_percent(interval=1) / 100 * (psutil.cpu_count() or 1)


def machine() -> dict[str, Any]:
    """Describe the machine."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": (models or [platform.processor() or platform.machine()])[0],
        "cores": available_cores(),
        "system": f"{platform.system()}, Python {platform.python_version()}",
    }


if __name__ == "__main__":
    main()
