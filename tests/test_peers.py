"""The comparison with other frameworks: equal inputs, one objective, and reported failures."""

import math
import runpy
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import fcorun

PEERS = Path(__file__).resolve().parents[1] / "scripts" / "peers"
SCRIPTS = sorted(PEERS.glob("with_*.py"))
SMALL = ("data.clients=4", "data.samples=23", "data.features=6", "data.nonzeros=2", "data.validation_samples=2")
ABOUT = {
    "rounds": 100,
    "date": "2026-11-22",
    "command": "python scripts/peers/compare.py",
    "processor": "a processor",
    "cores": 2,
    "system": "Linux",
    "versions": {"fcorun": "0.1.0", "numpy": "2.0"},
}


@pytest.fixture(scope="module")
def peers():
    """The modules of the comparison, which find each other in their folder."""
    sys.path.insert(0, str(PEERS))
    yield SimpleNamespace(
        **{name: import_module(name) for name in ("compare", "environments", "export", "table", "task")}
    )
    sys.path.remove(str(PEERS))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg_subgradient", "feddualavg"])
def test_a_task_is_fcoruns_own_run(peers, method, tmp_path, monkeypatch):
    """Its NumPy steps come to fcorun's solution, and the common objective to fcorun's number."""
    peers.export.export(method, 3, 4, *SMALL).write(tmp_path / "task.npz")
    monkeypatch.setattr(sys, "argv", ["with_numpy.py", str(tmp_path / "task.npz"), str(tmp_path / "out.npz")])
    runpy.run_path(str(PEERS / "with_numpy.py"))
    with np.load(tmp_path / "out.npz") as file:
        left, task = dict(file), peers.task.Task.read(tmp_path / "task.npz")
    record = fcorun.run(
        fcorun.compose([*peers.export.overrides(method, 3, 4), "verbose=false", *SMALL]), tmp_path / "r"
    )
    for name in ("weights", "bias"):
        np.testing.assert_allclose(left[name], record.solution[name], rtol=1e-4, atol=1e-6)
    found = peers.task.objective(task, record.solution["weights"], record.solution["bias"])
    assert found == pytest.approx(record.metrics["objective"].iloc[-1], rel=1e-6)
    assert found < record.metrics["objective"].iloc[0]
    assert left["marked"].tolist() == [1, 2, 3, 4]


def test_the_first_rounds_are_not_timed(peers):
    assert peers.task.steady(np.array([9.0, 10.0, 12.0, 14.0]), np.array([1, 2, 3, 4]), warm=2) == 2.0
    assert peers.task.steady(np.array([3.0, 5.0]), np.array([10, 100]), warm=10) == pytest.approx(2 / 90)


def row(peer, objective=2.0, round_ms=1.0, method="feddualavg", others=0.1):
    times = {"round_ms": round_ms, "rest_s": 3.0, "others": others}
    return {"peer": peer, "method": method, "clients": 10, **times, "objective": objective}


@pytest.mark.parametrize("names", [["numpy", "jax"], ["fcorun"]])
def test_without_a_comparison_no_objectives_agree(peers, names):
    text = peers.table.agreement([row(name) for name in names])
    assert text == "No objective was compared with fcorun's.\n"


def test_a_folder_that_is_no_environment_is_kept(peers, tmp_path):
    (tmp_path / "mine.txt").touch()
    peer = next(peer for peer in peers.environments.PEERS.values() if peer.needs)
    reason = peers.environments.install(peer, tmp_path, 1.0)[1]
    assert reason == f"not installed: {tmp_path} exists and is no environment"
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_the_table_has_the_least_times_and_their_ratios(peers):
    page = peers.table.table([ABOUT, row("fcorun", round_ms=4), row("fcorun"), row("numpy", 2.000001, 250.0)])
    assert "| fcorun | 0.1.0 | none | | | | 1.0 | 1.0 | 3.0 | 2 |" in page
    assert "| NumPy, by hand | 2.0 | none | | | | 250 | 250 | 3.0 | 2 |" in page
    assert "## 10 of 64" in page
    assert "## 64 of 64" not in page
    assert "do not agree" not in page
    assert "other work ran" not in page


def test_a_run_beside_other_work_does_not_count(peers):
    runs = [row("fcorun", round_ms=4), row("fcorun", others=1.5), row("numpy", others=0.5)]
    page = peers.table.table([ABOUT, *runs])
    assert "**2 of 3 runs do not count, because other work ran on these cores** (up to 1.5\ncores busy" in page
    assert "| fcorun | 0.1.0 | none | | | | 4.0 | 1.0 | 3.0 | 2 |" in page
    assert "| NumPy, by hand | 2.0 | none | | | | | | | 2 |" in page


@pytest.mark.parametrize("method", ["fedavg_subgradient", "feddualavg"])
def test_the_programs_by_hand_take_the_same_steps_and_evaluate_the_same_objective(peers, method):
    """Two clients have 3 and 2 rows, in minibatches of two rows and of one."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(5, 3)).astype(np.float32), rng.normal(size=5).astype(np.float32)
    rows = np.array([[[[0, 2], [1, -1]], [[3, -1], [4, -1]]]])
    task = peers.task.Task(x, y, np.array([0, 3, 5]), np.array([[0, 1]]), rows, method, 0.3, 0.05)
    advance, evaluate = import_module("with_jax").write_program(task)
    state = [np.array([0.2, -0.01, 0.4], np.float32), np.float32(0.1), np.float32(0.02)]
    by_client = [task.local(state, 0, client) for client in (0, 1)]
    expected = [np.mean(parts, axis=0) for parts in zip(*by_client, strict=True)]
    found = advance(tuple(state), rows)
    for part, value in zip(found, expected, strict=True):
        np.testing.assert_allclose(part, value, rtol=1e-5, atol=1e-7)
    objective = peers.task.objective(task, *task.solution(expected))
    assert task.evaluate(expected) == pytest.approx(objective, rel=1e-6)
    assert float(evaluate(found)) == pytest.approx(objective, rel=1e-6)


@pytest.mark.parametrize("value", [2.1, math.nan])
def test_the_table_says_whose_objective_is_another(peers, value):
    page = peers.table.table([ABOUT, row("fcorun"), row("numpy", value)])
    assert (
        "**Objectives that do not agree with fcorun's**, relatively: NumPy, by hand, FedDualAvg with 10 clients" in page
    )


def test_the_table_says_who_failed_and_why(peers):
    failed = [{"peer": "flower", "reason": "not installed: no such wheel"}]
    failed += [{"peer": "numpy", "method": "feddualavg", "clients": 10, "reason": "not done after 600 s"}]
    page = peers.table.table([ABOUT, row("fcorun"), *failed])
    assert "- Flower: not installed: no such wheel\n" in page
    assert "- NumPy, by hand, FedDualAvg with 10 clients, and all later runs: not done after 600 s\n" in page
    assert "| Flower |  | none | | | | none | | | |" in page
    assert all(f"- {name}: " in page for name in peers.environments.NOT_COMPARED)


def test_each_script_is_compared_with_pinned_packages(peers):
    assert sorted(peer.script for peer in peers.environments.PEERS.values()) == [path.name for path in SCRIPTS]
    for peer in peers.environments.PEERS.values():
        assert all("==" in need or "<" in need for need in peer.needs)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_each_script_lists_its_modifications(peers, script):
    assert f"`{script.name}`" in peers.table.modifications()
    text = script.read_text().split('"""')[1]
    assert "\n\nModifications:\n- " in text


@pytest.mark.slow
def test_a_failure_is_told_in_its_last_line(peers, tmp_path):
    call = peers.environments.call
    assert call([sys.executable, "-c", "import sys; sys.exit('first\\nno such wheel')"], 60) == "no such wheel"
    assert call([sys.executable, "-c", "import os; os._exit(3)"], 60) == "exit code 3"
    assert call([sys.executable, "-c", "import time; time.sleep(60)"], 0.2) == "not done after 0 s"
    peers.export.export("feddualavg", 3, 20, *SMALL).write(tmp_path / "task.npz")
    (tmp_path / "idle.py").write_text("")
    idle = peers.environments.Peer("Idle", str(tmp_path / "idle.py"))
    found = peers.compare.measure(idle, Path(sys.executable), tmp_path / "task.npz", 60)
    assert found == {"reason": "it wrote no result"}


@pytest.mark.slow
def test_an_unknown_competitor_is_one_sentence():
    found = subprocess.run([sys.executable, PEERS / "compare.py", "flour"], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr.startswith("there is no competitor 'flour' (valid: fcorun, ")
