"""Records: what is on disk, what a run is, and that no work is lost or done twice."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers import SMALL, flat, rows_of, small

from fcorun import Record, UserError, Watcher, compose, grid, load_records, run, run_grid
from fcorun.engine.evaluate import on_device
from fcorun.experiment.experiment import prepare
from fcorun.records.folder import RunFolder
from fcorun.runs import execute

FILES = ["config.yaml", "curves.png", "metrics.csv", "run.log", "solution.npz", "status.json", "summary.json"]


class Count(Watcher):
    """How many rows were computed."""

    def __init__(self):
        self.rows = 0

    def row(self, job, row):
        self.rows += 1


class Stop(Watcher):
    """Control-C, or another mishap, after a round."""

    def __init__(self, round_, error=KeyboardInterrupt):
        self.round, self.error = round_, error

    def row(self, job, row):
        if row["round"] == self.round:
            raise self.error


def identity(*overrides, **changes):
    return prepare(small(*overrides) | changes).identity


# ---------------------------------------------------------------- what a record holds


def test_a_record_is_complete():
    record = run(small("reference=true", "rounds=5"))
    assert record.folder.parent == Path("outputs/lasso")
    assert record.folder.name == f"feddualavg-{identity('reference=true', 'rounds=5')[:8]}"
    assert sorted(path.name for path in record.folder.iterdir()) == FILES
    metrics = record.metrics
    assert list(metrics)[:6] == ["round", "seconds", "bytes_up", "bytes_down", "grad_evals", "prox_evals"]
    expected = "objective suboptimality train_loss val_loss f1 precision recall density recovery_error"
    assert list(metrics)[6:] == expected.split()
    assert metrics["round"].tolist() == [0, 2, 4, 5]
    assert (metrics["seconds"].diff()[1:] > 0).all()
    assert record.solution["weights"].shape == (20,)
    assert record.solution["bias"].shape == ()
    status, summary = record.status, record.summary
    assert status["status"] == summary["status"] == "done"
    assert summary["round"] == 5
    assert summary["cutoff"] == 1e-4
    assert summary["data"] | {"fingerprint": ""} == {
        **{"clients": 6, "examples": 72, "validation_examples": 24, "features": 20, "task": "regression"},
        **{"classes": [], "feature_names": [], "fingerprint": ""},
    }
    assert {"setup", "compile", "steady"} <= set(summary["seconds"])
    assert {"python", "jax", "numpy", "fcorun"} <= set(summary["versions"])
    assert (record.folder / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_metrics_are_those_of_the_solution(tmp_path):
    record = run(small("precision=float64", "reg.strength=0.3"))
    data = prepare(record.config).load()
    w, last = record.solution, record.metrics.iloc[-1]
    train = np.mean((data.x @ w["weights"] + w["bias"] - data.y) ** 2)
    assert last["train_loss"] == pytest.approx(train, rel=1e-6)
    assert last["val_loss"] == pytest.approx(
        np.mean((data.x_val @ w["weights"] + w["bias"] - data.y_val) ** 2), rel=1e-6
    )
    assert last["objective"] == pytest.approx(train + 0.3 * np.abs(w["weights"]).sum(), rel=1e-6)
    found, true = np.abs(w["weights"]) > 1e-4, data.truth["weights"] != 0
    assert last["density"] == pytest.approx(found.mean())
    assert last["precision"] == pytest.approx((found & true).sum() / found.sum())
    assert last["recall"] == pytest.approx((found & true).sum() / true.sum())
    assert last["f1"] == pytest.approx(2 * (found & true).sum() / (found.sum() + true.sum()))
    assert last["recovery_error"] == pytest.approx(np.linalg.norm(w["weights"] - data.truth["weights"]), rel=1e-6)


def test_summary_is_that_of_the_metrics():
    record = run(small("rounds=8", "tail_rounds=4"))
    metrics, summary = record.metrics, record.summary
    for name in list(metrics)[6:]:
        assert summary["final"][name] == metrics[name].iloc[-1]
        assert summary["tail"][name] == pytest.approx(metrics[name][metrics["round"] > 4].mean())
    for name, pick in {"objective": "idxmin", "f1": "idxmax"}.items():
        row = getattr(metrics[name], pick)()
        assert summary["best"][name] == {"value": metrics[name][row], "round": metrics["round"][row]}
    assert "density" not in summary["best"]


def test_zero_rounds_are_the_start():
    record = run(small("rounds=0"))
    assert record.metrics["round"].tolist() == [0]
    assert not flat(record.solution).any()


# ---------------------------------------------------------------- what a run is


@pytest.mark.parametrize("overrides", [[], ["local_steps=3"], ["reg.relative=0.5"], ["algo=centralized"]])
def test_the_config_of_a_record_is_that_run(overrides):
    record = run(small(*overrides, "rounds=2"))
    watch = Count()
    assert prepare(record.config).identity == record.status["identity"]
    assert run(record.config, watch=watch).folder == record.folder
    assert watch.rows == 0


@pytest.mark.parametrize(
    "how",
    ["verbose=false", "force=true", "debug=true", "tail_rounds=7", "checkpoint_every=0", "algo.name=mine", "x=bytes"],
)
def test_how_is_no_part_of_the_identity(how):
    assert identity(how) == identity()


@pytest.mark.parametrize(
    "what",
    [
        *("seed=1", "data.seed=1", "algo.client_lr=0.002", "algo=fedavg", "reg.strength=0.2", "reg=l2", "rounds=5"),
        *(
            "batch_size=4",
            "clients_per_round=2",
            "local_epochs=2",
            "local_steps=2",
            "eval_every=1",
            "precision=float64",
        ),
        *("client_weighting=uniform", "cutoff=0.01", "reference=true", "data.samples=13"),
    ],
)
def test_what_is_part_of_the_identity(what):
    assert identity(what) != identity()


def test_a_path_is_no_part_of_the_identity_but_the_content_is(tmp_path):
    def of(name, value):
        (tmp_path / name).write_text("a,b,y\n" + "".join(f"{i},{i % 3},{value * i}\n" for i in range(20)))
        return prepare(compose(["data=table", f"data.path={tmp_path}/{name}", "data.target=y"])).identity

    assert of("one.csv", 1) == of("two.csv", 1) != of("three.csv", 2)


OWN = """
from dataclasses import dataclass
import numpy as np
from fcorun.algorithms import FedAvg
from fcorun.datasets.base import Dataset, FederatedData

@dataclass(frozen=True)
class Own(FedAvg):
    pass

@dataclass(frozen=True)
class Lasso(Dataset):
    def load(self):
        return FederatedData(np.eye(4) * {factor}, np.arange(4.0), np.array([0, 2, 4]))
"""


def test_the_code_of_the_users_plugins_is_part_of_the_identity(user_module):
    own = {"class": "mine.Own", "client_lr": 0.1, "server_lr": 1.0}
    data = {"class": "mine.Lasso"}

    def identities(factor):
        user_module("mine", OWN.format(factor=factor))
        return identity(algo=own), identity("clients_per_round=null", data=data)

    one, other = identities(1), identities(2)
    assert identities(1) == one
    assert one[0] != other[0]
    assert one[1] != other[1]
    assert one[1] != identity("clients_per_round=null", data={"class": "fcorun.datasets.lasso.Lasso"})


def test_the_loaded_data_of_a_user_are_those_of_the_code(user_module):
    config = small("clients_per_round=null", "rounds=1") | {"data": {"name": "own", "class": "mine.Lasso"}}
    for factor in (1, 2):
        user_module("mine", OWN.format(factor=factor))
        assert prepare(config).load().x[0, 0] == factor


# ---------------------------------------------------------------- done once, and not replaced unasked


def test_a_finished_run_is_used_again_unless_forced():
    watch = Count()
    first = run(small(), watch=watch)
    assert watch.rows == 3
    before = (first.folder / "metrics.csv").read_bytes()
    assert run(small(), watch=watch).folder == first.folder
    assert watch.rows == 3
    assert (first.folder / "metrics.csv").read_bytes() == before
    run(small("force=true"), watch=watch)
    assert watch.rows == 6


def test_another_run_in_the_folder_is_refused_unless_forced():
    run(small(), "here")
    before = {path.name: path.read_bytes() for path in Path("here").iterdir()}
    with pytest.raises(UserError, match=r"here holds another run .*force=true"):
        run(small("seed=1"), "here")
    assert {path.name: path.read_bytes() for path in Path("here").iterdir()} == before
    assert run(small("seed=1", "force=true"), "here").config["seed"] == 1


@pytest.mark.parametrize("name", ["config.yaml", "metrics.csv"])
def test_a_file_of_no_run_is_left_alone(name):
    Path("here").mkdir()
    Path("here", name).write_text("mine")
    with pytest.raises(UserError, match=name):
        run(small(), "here")
    assert Path("here", name).read_text() == "mine"
    assert [path.name for path in Path("here").iterdir()] == [name]


def test_files_that_a_run_does_not_write_stay():
    Path("here").mkdir()
    Path("here", "notes.txt").write_text("mine")
    assert run(small("rounds=1"), "here").finished
    assert Path("here", "notes.txt").read_text() == "mine"


def test_a_folder_that_cannot_be_made():
    Path("file").write_text("")
    with pytest.raises(UserError, match="file"):
        run(small(), "file/run")


BROKEN = """
from dataclasses import dataclass
from fcorun.algorithms import FedAvg

@dataclass(frozen=True)
class Broken(FedAvg):
    def server(self, problem, server, mean):
        raise RuntimeError("no such thing\\nas a server")
"""


def test_a_plugin_that_fails(user_module):
    user_module("broken", BROKEN)
    config = small() | {"algo": {"class": "broken.Broken", "client_lr": 0.1, "server_lr": 1.0}}
    with pytest.raises(RuntimeError, match="no such thing"):
        run(config, "here")
    record = Record(Path("here"))
    assert record.status["status"] == "failed"
    assert record.status["reason"] == "RuntimeError: no such thing"
    log = (record.folder / "run.log").read_text()
    assert "Traceback" in log
    assert "broken.py" in log
    # mended, it is computed in the same folder
    user_module("broken", BROKEN.replace('raise RuntimeError("no such thing\\nas a server")', "return server"))
    mended = config | {"force": True}
    assert run(mended, "here").status["status"] == "done"


def test_load_records():
    with pytest.raises(UserError, match="no folder outputs"):
        load_records("outputs")
    one, two = run(small("rounds=1")), run(small("rounds=1", "seed=1"), "elsewhere/deep/run")
    assert {record.folder for record in load_records("outputs", "elsewhere")} == {one.folder, two.folder}
    assert [record.summary["round"] for record in load_records(".")] == [1, 1]


# ---------------------------------------------------------------- grids


def test_a_grid_writes_the_records_of_its_points():
    points = grid(small("precision=float64"), {"algo.client_lr": [0.001, 0.003], "reg.strength": [0.1, 0.5]})
    assert [(p["algo"]["client_lr"], p["reg"]["strength"]) for p in points] == [
        *((0.001, 0.1), (0.001, 0.5), (0.003, 0.1), (0.003, 0.5)),
    ]
    records = run_grid(points)
    assert len({record.folder for record in records}) == 4
    for point, record in zip(points, records, strict=True):
        alone = run(point, f"alone/{record.folder.name}")
        assert alone.status == record.status
        assert alone.config == record.config
        np.testing.assert_allclose(rows_of(record), rows_of(alone), rtol=1e-10)
        np.testing.assert_allclose(flat(record.solution), flat(alone.solution), rtol=1e-10, atol=1e-12)


def test_a_wide_grid_in_several_batches():
    """Nine points take two threads of five on two cores, one of which has a place to fill."""
    points = grid(small("precision=float64", "rounds=2"), {"algo.client_lr": [k * 1e-3 for k in range(1, 10)]})
    records = run_grid(points)
    finals = [record.metrics["objective"].iloc[-1] for record in records]
    alone = [run(points[k], f"alone/{k}").metrics["objective"].iloc[-1] for k in (0, 4, 8)]
    np.testing.assert_allclose([finals[0], finals[4], finals[8]], alone, rtol=1e-10)
    assert len(set(finals)) == 9


def test_a_grid_over_seeds():
    """Runs of different seeds have minibatches of their own, those of one seed share them."""
    points = grid(small("precision=float64"), {"seed": [0, 1, 2], "algo.client_lr": [0.001, 0.003]})
    records = run_grid(points)
    assert len({record.metrics["objective"].iloc[-1] for record in records}) == 6
    for point, record in zip(points, records, strict=True):
        alone = run(point, f"alone/{record.folder.name}")
        assert alone.config == record.config
        np.testing.assert_allclose(rows_of(record), rows_of(alone), rtol=1e-10)


def test_a_grid_of_baselines():
    points = grid(small("algo=centralized"), {"reg.strength": [0.1, 0.5]})
    dense, sparse = run_grid(points)
    assert sparse.summary["final"]["density"] < dense.summary["final"]["density"]


def test_a_grid_may_differ_in_numbers_only():
    for axes in ({"rounds": [1, 2]}, {"data.seed": [0, 1]}, {"batch_size": [4, 5]}):
        with pytest.raises(ValueError, match="differ in more"):
            run_grid(grid(small(), axes))
    with pytest.raises(ValueError, match="differ in more"):
        run_grid([small(), small("algo=fedavg", "algo.server_lr=1")])
    assert not Path("outputs").exists()


def test_a_grid_computes_what_is_missing_only():
    points = grid(
        small("precision=float64", "rounds=6", "checkpoint_every=1000"), {"algo.client_lr": [1e-3, 2e-3, 3e-3]}
    )
    done = run(points[0])
    before = (done.folder / "metrics.csv").stat().st_mtime_ns
    with pytest.raises(KeyboardInterrupt):
        run(points[1], watch=Stop(4))
    assert load_records("outputs")[0].folder.parent == done.folder.parent
    watch = Count()
    records = run_grid(points, watch=watch)
    assert watch.rows == 1 + 4
    assert (done.folder / "metrics.csv").stat().st_mtime_ns == before
    for point, record in zip(points, records, strict=True):
        np.testing.assert_allclose(rows_of(record), rows_of(run(point, f"alone/{record.folder.name}")), rtol=1e-10)


# ---------------------------------------------------------------- interruptions


def test_an_interruption_is_recorded_and_mended():
    with pytest.raises(KeyboardInterrupt):
        run(small(), "here", Stop(2))
    record = Record(Path("here"))
    assert record.status["status"] == "interrupted"
    assert "2" in record.status["reason"]
    assert not record.finished
    watch = Count()
    assert run(small(), "here", watch).finished
    assert watch.rows == 1
    assert sorted(path.name for path in Path("here").iterdir()) == FILES


def test_an_interrupted_run_can_be_forced_to_start_again():
    with pytest.raises(KeyboardInterrupt):
        run(small(), "here", Stop(2))
    watch = Count()
    run(small("force=true"), "here", watch)
    assert watch.rows == 3


LONG = [*SMALL, "rounds=600", "eval_every=2", "checkpoint_every=0", "hydra.run.dir=broken"]


def start(arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "fcorun", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for_rounds(folder, process, seconds=60):
    """Until a checkpoint has been replaced: the first one is of round 0."""
    end, stamps = time.monotonic() + seconds, set()
    while len(stamps) < 3:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < end, "there is no checkpoint"
        stamps |= {path.stat().st_mtime_ns for path in folder.glob(".checkpoint.npz")}
        time.sleep(0.002)


@pytest.fixture(scope="module")
def undisturbed(session_cache, tmp_path_factory):
    """The record of a process that was let be: other processes have the very same numbers."""
    folder = tmp_path_factory.mktemp("undisturbed")
    process = start([*LONG, f"hydra.run.dir={folder}"])
    _, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    return Record(folder)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_process_goes_on_where_it_was(kind, undisturbed):
    broken, whole = Path("broken"), undisturbed
    process = start(LONG)
    wait_for_rounds(broken, process)
    with pytest.raises(UserError, match="another process"):
        run(small("rounds=600"), broken)
    process.send_signal(kind)
    _, error = process.communicate(timeout=60)
    status = json.loads((broken / "status.json").read_text())
    if kind == signal.SIGKILL:
        assert process.returncode == -signal.SIGKILL
        assert status["status"] == "running"
    else:
        assert process.returncode == 130
        assert status["status"] == "interrupted"
        assert len(error.strip().splitlines()) == 1
    assert not (broken / "metrics.csv").exists() or len(Record(broken).metrics) < 301
    process = start(LONG)
    out, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    assert "goes on after round" in out
    resumed = Record(broken)
    assert resumed.status["identity"] == whole.status["identity"]
    assert rows_of(resumed).equals(rows_of(whole))
    assert (resumed.metrics["seconds"].diff()[1:] > 0).all()
    np.testing.assert_array_equal(flat(resumed.solution), flat(whole.solution))
    assert sorted(path.name for path in broken.iterdir()) == FILES


class Killed(BaseException):
    """The end of a process."""


@pytest.mark.parametrize("after", range(1, 10))
def test_a_kill_at_any_file_blocks_nothing(after, monkeypatch):
    """A record has ten files written, some of them several times; the process dies between any two."""
    written = []
    replace = os.replace

    with monkeypatch.context() as patch:

        def dying(source, target):
            replace(source, target)
            written.append(target)
            if len(written) == after:
                for method in ("write", "log"):  # the dead write no more
                    patch.setattr(f"fcorun.records.record.RunFolder.{method}", lambda *args: None)
                raise Killed

        patch.setattr(os, "replace", dying)
        with pytest.raises(Killed):
            run(small("checkpoint_every=0"), "here")
    mended = run(small("checkpoint_every=0"), "here")
    assert mended.status["status"] == "done"
    assert rows_of(mended).equals(rows_of(run(small(), "whole")))


@pytest.mark.parametrize("left", [0, 100, 0.5])
def test_a_damaged_checkpoint_is_left_aside(left):
    with pytest.raises(KeyboardInterrupt):
        run(small(), "here", Stop(2))
    content = Path("here/.checkpoint.npz").read_bytes()
    Path("here/.checkpoint.npz").write_bytes(content[: int(left * len(content)) if left == 0.5 else left])
    assert rows_of(run(small(), "here")).equals(rows_of(run(small(), "whole")))


def test_a_mishap_before_the_first_round_is_not_hidden(monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("fcorun.records.record.RunFolder.load_checkpoint", full)
        with pytest.raises(OSError, match="No space left"):
            run(small(), "here")
    assert Record(Path("here")).status["status"] == "failed"
    assert run(small(), "here").finished


# ---------------------------------------------------------------- hard cases


def test_a_baseline_is_judged_by_its_solution(tmp_path):
    record = run(small("algo=centralized"))
    assert record.summary["tail"] == record.summary["final"]


def test_large_whole_numbers_are_not_wrapped(tmp_path):
    x = np.arange(40).reshape(20, 2) + 2**31
    np.savez(tmp_path / "big.npz", X=x, y=np.arange(20.0), client=np.arange(20) % 2)
    experiment = prepare(compose(["data=table", f"data.path={tmp_path / 'big.npz'}", "data.validation=0"]))
    on = on_device(experiment.load().x, "float32")
    assert on.dtype == "float32"
    assert float(on.min()) >= 2**31


def test_one_record_that_cannot_be_completed_spoils_no_other(monkeypatch):
    whole = execute.complete

    def third(folder, *rest):
        if folder.folder.name == "p2":
            raise OSError(28, "No space left on device")
        return whole(folder, *rest)

    monkeypatch.setattr(execute, "complete", third)
    configs = grid(small(), {"algo.client_lr": [1e-3, 2e-3, 3e-3, 4e-3]})
    with pytest.raises(OSError, match="No space"):
        run_grid(configs, [f"p{i}" for i in range(4)])
    assert [r.status["status"] for r in load_records(".")] == ["done", "done", "failed", "done"]


def test_forcing_that_is_broken_off_leaves_something_to_go_on_from(monkeypatch):
    config = small()
    record = run(config, "f")
    before = rows_of(record)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFolder, "_unlink", lambda self, names: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run(config | {"force": True}, "f")
    assert not Record(record.folder).finished
    pd.testing.assert_frame_equal(rows_of(run(config, "f")), before)


def test_two_runs_in_one_folder_are_refused():
    with pytest.raises(UserError, match="two different runs"):
        run_grid(grid(small(), {"algo.client_lr": [1e-3, 2e-3]}), ["same", "same"])


def test_an_algorithm_without_numbers_runs(user_module):
    user_module(
        "plain",
        "from dataclasses import dataclass\n"
        "from fcorun.algorithms import Algorithm\n"
        "@dataclass(frozen=True)\n"
        "class Plain(Algorithm):\n"
        "    def init(self, problem, w0): return w0, None\n"
        "    def local(self, problem, server, client, data): return server, client\n"
        "    def server(self, problem, server, mean): return mean\n"
        "    def output(self, problem, server): return server\n",
    )
    config = small("reg=none") | {"algo": {"name": "plain", "class": "plain.Plain"}}
    assert run(config).status["status"] == "done"


def test_what_a_baseline_does_not_read_is_no_part_of_it():
    assert identity("algo=centralized", "seed=1", "rounds=9") == identity("algo=centralized")
    assert identity("algo=centralized", "client_weighting=uniform") != identity("algo=centralized")
    assert identity("reg.relative=0.1", "reg.strength=3") == identity("reg.relative=0.1")
