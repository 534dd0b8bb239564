"""Run four studies by their plans over NVFLARE, with a server and sites that are processes of this machine.

python scripts/study_on_loopback.py FOLDER

The first study is 500 rounds of FedDualAvg on 1,024 features at three sites, the second the federated Newton method on
200 features at five sites, until the duality gap is 1e-9, and the third ends with intervals of coefficients, which the
server and all sites keep. The fourth is a selection: 50 strengths by 5 folds of least squares. Prints a table in
Markdown. FOLDER must be empty, and holds the kits, the tables and all logs.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import sites_on_loopback
from sites_on_loopback import SERVER, USER, Parties, provision

from fcorun import Record

STUDIES = {
    "500 rounds of FedDualAvg, 1,024 features, 3 sites of 200 rows": (
        3, 200, 1024,
        ["algo=feddualavg", "algo.client_lr=1e-3", "rounds=500", "eval_every=100", "reg.strength=0.1"],
    ),
    "Newton, 200 features, 5 sites of 400 rows": (
        5, 400, 200, ["algo=newton", "rounds=10", "eval_every=1", "reg.strength=0.02", "data.task=binary",
                      "data.positive=yes", "gap=true", "stop={gap: 1e-9}"],
    ),
    "Newton with intervals, 10 features, 3 sites of 200 rows": (
        3, 200, 10, ["algo=newton", "rounds=6", "eval_every=6", "reg.strength=0.02", "data.task=binary",
                     "data.positive=yes", "--infer"],
    ),
    "50 strengths by 5 folds with gram, 1,024 features, 3 sites of 400 rows": (
        3, 400, 1024, ["select", "algo=gram", "folds=5", "points=50", "data.standardize=pooled"],
    ),
}  # fmt: skip


def fcorun(folder: Path, *arguments: str) -> None:
    """Run a command of fcorun."""
    command = [sys.executable, "-m", "fcorun", *arguments]
    with (folder / "fcorun.log").open("ab") as log:
        if subprocess.run(command, cwd=folder, stdout=log, stderr=log, check=False).returncode:
            raise SystemExit(f"fcorun {' '.join(arguments)} has failed: see {folder / 'fcorun.log'}")


def write_tables(folder: Path, sites: list[str], n: int, d: int, binary: bool) -> None:
    """Write a table of n rows and d features for each site."""
    truth = np.zeros(d)
    truth[:10] = 1.0
    for number, site in enumerate(sites):
        rng = np.random.default_rng(number)
        x = rng.standard_normal((n, d))
        score = x @ truth + rng.standard_normal(n)
        frame = pd.DataFrame(x, columns=[f"x{j}" for j in range(d)])
        frame["y"] = np.where(score > 0, "yes", "no") if binary else score
        frame.to_csv(folder / f"{site}.csv", index=False)


def run_study(folder: Path, n_sites: int, n: int, d: int, overrides: list[str]) -> tuple[float, float, Record, int]:
    """Run a study from the start of all processes.

    Returns the seconds in all, those that the server computed for, the record, and the bytes that a site sent.
    """
    folder.mkdir()
    sites_on_loopback.SITES[:] = [f"site-{number}" for number in range(1, n_sites + 1)]
    sites = sites_on_loopback.SITES
    write_tables(folder, sites, n, d, "data.task=binary" in overrides)
    options = ["data=sites", "data.target=y", "data.validation=0", "precision=float64"]
    command = overrides[:1] if overrides[0] == "select" else []
    fcorun(folder, "plan", *command, *options, *overrides[len(command) :], "--out", "study.yaml")
    kits = provision(folder)
    fcorun(folder, "site", "accept", "study.yaml", "--kit", str(kits / SERVER))
    (folder / "policy.yaml").write_text(f"alone: allow\nledger: {folder / 'ledger'}\n", encoding="utf-8")
    for site in sites:
        keys = [f"data.path={folder / site}.csv", f"policy={folder / 'policy.yaml'}"]
        fcorun(folder, "site", "accept", "study.yaml", "--kit", str(kits / site), *keys)
    parties = Parties(kits)
    started = time.monotonic()
    try:
        for name in (SERVER, *sites):
            parties.start(name)
        way = ["--kit", str(kits / USER), "--sites", ",".join(sites)]
        fcorun(folder, "site", "run", "study.yaml", *way, "out=record")
        seconds = time.monotonic() - started
    finally:
        parties.stop()
    if "--infer" in overrides:
        for name in sites:
            if not any((kits / name).rglob("inference.csv")):
                raise SystemExit(f"site {name} has no inference.csv: see {folder / 'fcorun.log'}")
    (log,) = (kits / sites[0]).rglob("sent.jsonl")
    n_bytes = sum(json.loads(line)["bytes"] for line in log.read_text(encoding="utf-8").splitlines())
    record = Record(folder / "record" / ("refit" if command else ""))
    computing = record.metrics.iloc[-1]["seconds"]
    if command:  # of all fits, and the refit
        computing = json.loads((folder / "record" / "selection.json").read_text(encoding="utf-8"))["seconds"]
    return seconds, computing, record, n_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    print("| study | with its start | of these, the run or the selection | rounds | gap | sent by a site |")
    print("| --- | --- | --- | --- | --- | --- |")
    for number, (what, study) in enumerate(STUDIES.items()):
        seconds, computing, record, n_bytes = run_study(folder / f"study{number}", *study)
        last = record.metrics.iloc[-1]
        gap = f"{last['gap']:.1g}" if "gap" in last else ""
        numbers = [
            f"{seconds:.0f} s",
            f"{computing:.1f} s",
            f"{last['round']:.0f}",
            gap,
            f"{n_bytes / 1e6:.1f} MB",
        ]
        print(f"| {' | '.join([what, *numbers])} |", flush=True)


if __name__ == "__main__":
    main()
