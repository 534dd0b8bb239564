"""LASSO I by fcorun and by other frameworks: the same data, rounds and minibatches; time a round and final objective.

Makes an environment for each framework, hands out the tasks in turn, several times, and writes docs/peers.md.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from environments import PEERS, Peer, install, run, version
from export import COHORTS, METHODS, export
from table import table
from task import Task, objective, steady

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "fcorun-peers")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"whom, of {', '.join(PEERS)}; default: all of them")
    parser.add_argument("--rounds", type=int, default=100, help="of each run, at least 20")
    parser.add_argument("--repetitions", type=int, default=3, help="runs of each; the least time counts")
    parser.add_argument("--limit", type=float, default=600, help="seconds that an installation or a run may take")
    parser.add_argument("--venvs", type=Path, default=cache, help=f"folder of the environments; default: {cache}")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "peers.md", help="the table")
    asked = parser.parse_args()
    names = asked.names or list(PEERS)
    for name in names:
        if name not in PEERS:
            parser.exit(2, f"there is no competitor '{name}' (valid: {', '.join(PEERS)})\n")
    if asked.rounds < 20 or asked.repetitions < 1:
        parser.exit(2, "give at least --rounds 20, for the first tenth is not timed, and --repetitions 1\n")
    chosen = {name: PEERS[name] for name in names}
    rows = compare(chosen, asked.rounds, asked.repetitions, asked.venvs, asked.limit)
    (asked.venvs / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked.out.write_text(table(rows))
    print(f"{asked.out}, from {asked.venvs / 'rows.jsonl'}")


def compare(peers: dict[str, Peer], rounds: int, repetitions: int, venvs: Path, limit: float) -> list[dict[str, Any]]:
    """A row that says where and when, and one for each run or failure."""
    about: dict[str, Any] = {"rounds": rounds, "repetitions": repetitions, "date": str(date.today()), **machine()}
    about["command"] = f"python scripts/peers/compare.py {' '.join(sys.argv[1:])}".strip()
    rows, pythons = [about], {}
    for name, peer in peers.items():
        python, reason = install(peer, venvs / name, limit)
        if reason:
            rows.append(told({"peer": name, "reason": reason}))
        else:
            pythons[name] = python
            about.setdefault("versions", {})[name] = version(peer, python)
    tasks = [(method, clients) for clients in COHORTS for method in METHODS]
    with tempfile.TemporaryDirectory() as top:
        for method, clients in tasks:
            export(method, clients, rounds).write(Path(top, f"{method}-{clients}.npz"))
        for _ in range(repetitions):
            for method, clients in tasks:
                for name in list(pythons):
                    found = measured(peers[name], pythons[name], Path(top, f"{method}-{clients}.npz"), limit)
                    rows.append(told({"peer": name, "method": method, "clients": clients, **found}))
                    if "reason" in found:  # it would fail again
                        del pythons[name]
    about["load_after"] = os.getloadavg()[1]
    return rows


def measured(peer: Peer, python: Path, file: Path, limit: float) -> dict[str, Any]:
    """Milliseconds a round, the other seconds of the process, and the final objective; or the reason for none."""
    out, begun = file.with_name("out.npz"), time.perf_counter()
    out.unlink(missing_ok=True)
    reason = run(peer, python, file, out, limit)
    seconds = time.perf_counter() - begun
    if reason or not out.exists():
        return {"reason": reason or "it left nothing"}
    task = Task.read(file)
    with np.load(out) as left:
        each = steady(left["marks"], left["marked"], warm=task.rounds // 10)
        value = objective(task, left["weights"], left["bias"])
        nonzeros = int(np.count_nonzero(left["weights"]))
    return {"round_ms": 1e3 * each, "rest_s": seconds - each * task.rounds, "objective": value, "nonzeros": nonzeros}


def machine() -> dict[str, Any]:
    """What it was measured on."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": (models or [platform.processor() or platform.machine()])[0],
        "cores": os.cpu_count(),
        "system": f"{platform.system()}, Python {platform.python_version()}",
        "load_before": os.getloadavg()[1],
    }


def told(row: dict[str, Any]) -> dict[str, Any]:
    """The row, printed as a line of JSON."""
    print(json.dumps(row), flush=True)
    return row


if __name__ == "__main__":
    main()
