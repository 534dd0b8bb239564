"""Compare fcorun with other frameworks on LASSO I: equal data, rounds and minibatches; round times and objectives.

The script makes an environment for each framework, runs the tasks alternately, several times, and writes
docs/peers.md.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from environments import PEERS, Peer, install, run, version
from export import COHORTS, export
from table import table
from task import METHODS, Task, objective, steady

from fcorun.base.system.machine import available_cores

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "fcorun-peers")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"the frameworks to compare, of {', '.join(PEERS)}; default: all"
    )
    parser.add_argument("--rounds", type=int, default=100, help="rounds of each run, at least 20")
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
    if arguments.rounds < 20 or arguments.repetitions < 1:
        parser.exit(2, "give at least --rounds 20, because the first tenth is not timed, and --repetitions 1\n")
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
    """Return milliseconds for a round, other seconds of the process, and the final objective; or a failure's reason."""
    out, start = file.with_name("out.npz"), time.perf_counter()
    out.unlink(missing_ok=True)
    reason = run(peer, python, file, out, limit)
    seconds = time.perf_counter() - start
    if reason or not out.exists():
        return {"reason": reason or "it wrote no result"}
    task = Task.read(file)
    with np.load(out) as result:
        each = steady(result["marks"], result["marked"], warm=task.rounds // 10)
        value = objective(task, result["weights"], result["bias"])
        nonzeros = int(np.count_nonzero(result["weights"]))
    return {"round_ms": 1e3 * each, "rest_s": seconds - each * task.rounds, "objective": value, "nonzeros": nonzeros}


def machine() -> dict[str, Any]:
    """Describe the machine."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": (models or [platform.processor() or platform.machine()])[0],
        "cores": available_cores(),
        "system": f"{platform.system()}, Python {platform.python_version()}",
        "load_before": os.getloadavg()[0],
    }


if __name__ == "__main__":
    main()
