"""Several hosts, each with the rows of its own clients: runs as on one host that has them all."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers import SMALL
from host_processes import assert_same_record, run_on_hosts

from fcorun import Record, run

pytest.importorskip("distributed")

RATES = ("algo.client_lr=0.05", "reg.strength=0.01", "precision=float64", "report=false")


def write_rows(folder: Path, rows: int = 120, features: int = 6) -> None:
    """A folder of ragged clients, whose rows stand in no order."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, features)).astype(np.float32)
    client = rng.choice(5, rows, p=[0.4, 0.3, 0.15, 0.1, 0.05])
    y = x @ np.arange(features) + client + rng.standard_normal(rows)
    folder.mkdir()
    for name, values in {"X": x, "y": y, "client": client}.items():
        np.save(folder / f"{name}.npy", values)


def check_runs_equal_one_host(count: int, n_hosts: int = 2) -> None:
    """The runs of a sweep in ``s``, so many, are those of one host."""
    records = [Record(path.parent) for path in sorted(Path("s").glob("*/summary.json"))]
    assert len(records) == count
    for record in records:
        assert (record.summary["hosts"], record.summary["rows"]) == (n_hosts, "own")
        alone = run(record.config, Path("alone") / record.folder.name)
        assert_same_record(record, alone)
        one, other = (pd.read_csv(each.folder / "scores.csv") for each in (record, alone))
        pd.testing.assert_frame_equal(one, other, rtol=1e-12, atol=1e-13)


@pytest.mark.slow
def test_synthetic_rows_of_own_clients_give_the_runs_of_one_host():
    overrides = ("algo=feddualavg,fedprox", "algo.mu=1,2", "batch_size=5,null", "data.samples=30")
    run_on_hosts("-m", *SMALL, *RATES, *overrides, "hydra.sweep.dir=s")
    check_runs_equal_one_host(4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "runs"),
    [(("data.resident=true", "algo=scaffold"), 2), (("data.resident=false", "algo=feddualavg", "seed=0,1"), 4)],
    ids=["in memory", "on disk"],
)
def test_a_table_of_own_clients_gives_the_runs_of_one_host(overrides, runs, tmp_path):
    write_rows(tmp_path / "rows")
    table = ("data=table", f"data.path={tmp_path / 'rows'}", "data.test=0.1", "data.standardize=pooled")
    rounds = ("rounds=5", "eval_every=4", "batch_size=7", "clients_per_round=2,null")
    run_on_hosts("-m", *table, *rounds, *RATES, *overrides, "hydra.sweep.dir=s")
    check_runs_equal_one_host(runs)


# one host has little memory when all meet; what it then needs is there
SCARCE_MEMORY = """
import fcorun.base.system.machine as machine
if is_odd("host"):
    answers = iter([2000])
    machine.free_host_memory = lambda: next(answers, 2**30)
"""


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3])
def test_rows_too_large_for_the_memory_of_one_host_stay_on_the_disks_of_all(count, tmp_path):
    write_rows(tmp_path / "rows")
    table = ("data=table", f"data.path={tmp_path / 'rows'}", "data.test=0.1", "rounds=5", "batch_size=7")
    run_on_hosts("-m", *table, *RATES, "hydra.sweep.dir=s", count=count, code=SCARCE_MEMORY)
    check_runs_equal_one_host(1, n_hosts=count)
    (log,) = Path("s").glob("*/run.log")
    assert "stay on disk and are read when they are needed" in log.read_text()
