"""Records: what is on disk, and that nothing is done twice or replaced unasked."""

import io
import json
import os
import platform
import threading
import zipfile
from pathlib import Path

import filelock
import numpy as np
import pytest
from helpers import FILES, Count, fails, flat, identity, not_none, small

from fcorun import Record, UserError, Watcher, load_records, run
from fcorun.base.records import formats
from fcorun.base.records.record import RunFolder, is_refit_of_adaptive_lasso
from fcorun.base.records.tables import METRICS
from fcorun.experiment.build import load_data
from fcorun.experiment.prepare import prepare

# ---------------------------------------------------------------- what a record holds


@pytest.mark.slow
@pytest.mark.drawn
def test_a_record_is_complete():
    record = run(small("reference=true", "rounds=5"))
    assert record.folder.parent == Path("outputs/lasso")
    assert record.folder.name == f"feddualavg-{identity('reference=true', 'rounds=5')[:8]}"
    assert sorted(path.name for path in record.folder.iterdir()) == FILES
    metrics = record.metrics
    assert list(metrics)[:6] == ["round", "seconds", "bytes_up", "bytes_down", "grad_evals", "prox_evals"]
    expected = "objective suboptimality train_loss val_loss support_f1 support_precision support_recall density"
    assert list(metrics)[6:] == [*expected.split(), "pattern_errors", "identified_round", "recovery_error"]
    assert metrics["round"].tolist() == [0, 2, 4, 5]
    assert (np.diff(metrics["seconds"]) > 0).all()
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


@pytest.mark.slow
def test_metrics_are_those_of_the_solution(tmp_path):
    record = run(small("precision=float64", "reg.strength=0.3"))
    data = load_data(prepare(record.config))
    w, last = record.solution, record.metrics.iloc[-1]
    train = np.mean((data.train.x @ w["weights"] + w["bias"] - data.train.y) ** 2)
    assert last["train_loss"] == pytest.approx(train, rel=1e-6)
    assert last["val_loss"] == pytest.approx(
        np.mean((not_none(data.validation).x @ w["weights"] + w["bias"] - not_none(data.validation).y) ** 2), rel=1e-6
    )
    assert last["objective"] == pytest.approx(train + 0.3 * np.abs(w["weights"]).sum(), rel=1e-6)
    found, true = np.abs(w["weights"]) > 1e-4, not_none(data.truth)["weights"] != 0
    assert last["density"] == pytest.approx(found.mean())
    assert last["support_precision"] == pytest.approx((found & true).sum() / found.sum())
    assert last["support_recall"] == pytest.approx((found & true).sum() / true.sum())
    assert last["support_f1"] == pytest.approx(2 * (found & true).sum() / (found.sum() + true.sum()))
    error = np.linalg.norm(w["weights"] - not_none(data.truth)["weights"])
    assert last["recovery_error"] == pytest.approx(error, rel=1e-6)


@pytest.mark.slow
def test_summary_is_that_of_the_metrics():
    record = run(small("rounds=8", "tail_rounds=4"))
    metrics, summary = record.metrics, record.summary
    for name in list(metrics)[6:]:
        assert summary["final"][name] == metrics[name].iloc[-1]
        assert summary["tail"][name] == pytest.approx(metrics[name][metrics["round"] > 4].mean())
    for name, pick in {"objective": "idxmin", "support_f1": "idxmax"}.items():
        row = getattr(metrics[name], pick)()
        assert summary["best"][name] == {"value": metrics[name][row], "round": metrics["round"][row]}
    assert "density" not in summary["best"]


@pytest.mark.slow
def test_zero_rounds_are_the_start():
    record = run(small("rounds=0"))
    assert record.metrics["round"].tolist() == [0]
    assert not flat(record.solution).any()


# ---------------------------------------------------------------- done once, and not replaced unasked


@pytest.mark.slow
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


@pytest.mark.slow
def test_another_run_in_the_folder_is_refused_unless_forced():
    run(small(), "here")
    before = {path.name: path.read_bytes() for path in Path("here").iterdir()}
    with pytest.raises(UserError, match=r'"here" holds another run .*force=True'):
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


@pytest.mark.parametrize("begins", [True, False])
def test_a_run_that_starts_or_is_removed_during_an_inspection_is_no_clash(monkeypatch, begins):
    """It begins a run just after its status was looked for, or removes a record just before that."""
    other, one, read, seen = RunFolder(Path("here"), "1"), RunFolder(Path("here"), "1"), formats.read_json, []

    def start():
        seen.append(other.claim(label="other"))
        other.write_file("config.yaml", "")

    def meanwhile(path):
        monkeypatch.undo()
        content = read(path) if begins else {}
        start() if begins else other.remove()
        return content

    if not begins:
        start()
        other.release()
    monkeypatch.setattr(formats, "read_json", meanwhile)
    assert one.inspect() == "new"
    assert seen == ["new"]
    assert Record(Path("here")).status.get("label") == ("other" if begins else None)
    other.release()


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


@pytest.mark.slow
def test_a_plugin_that_fails(user_module):
    user_module("broken", BROKEN)
    config = small() | {"algo": {"class": "broken.Broken", "client_lr": 0.1, "server_lr": 1.0}}
    with pytest.raises(RuntimeError, match="no such thing"):
        run(config, "here")
    record = Record(Path("here"))
    assert record.status["status"] == "failed"
    assert record.status["reason"] == "RuntimeError: no such thing, broken.py line 8"
    log = (record.folder / "run.log").read_text()
    assert "Traceback" in log
    assert "broken.py" in log
    # mended, it is computed in the same folder
    user_module("broken", BROKEN.replace('raise RuntimeError("no such thing\\nas a server")', "return server"))
    mended = config | {"force": True}
    assert run(mended, "here").status["status"] == "done"


@pytest.mark.slow
def test_load_records():
    with pytest.raises(UserError, match="no folder outputs"):
        load_records("outputs")
    one, two = run(small("rounds=1")), run(small("rounds=1", "seed=1"), "elsewhere/deep/run")
    assert {record.folder for record in load_records("outputs", "elsewhere")} == {one.folder, two.folder}
    assert [record.summary["round"] for record in load_records(".")] == [1, 1]


# ---------------------------------------------------------------- hard cases


@pytest.mark.slow
def test_a_baseline_is_judged_by_its_solution(tmp_path):
    record = run(small("algo=centralized"))
    assert record.summary["tail"] == record.summary["final"]


# ---------------------------------------------------------------- whose process was killed


def running(folder: str, **about) -> Record:
    Path(folder).mkdir()
    Path(folder, "status.json").write_text(json.dumps({"status": "running", "reason": "", "identity": "1", **about}))
    return Record(Path(folder))


def test_a_record_whose_process_was_killed_is_interrupted():
    machine = platform.node()
    for record in (running("old"), running("killed", host=machine, pid=1), running("left", host=machine)):
        if record.folder.name == "left":  # the system leaves the file of the lock
            (record.folder / ".lock").touch()
        assert record.status["status"] == "interrupted"
        assert "killed" in record.status["reason"]
        assert RunFolder(record.folder, "1").inspect() == "resume"
    elsewhere = running("elsewhere", host="another-machine")  # whose locks need not be seen
    assert elsewhere.status["status"] == "running"


@pytest.mark.slow
def test_the_lock_of_a_process_that_was_killed_after_the_end_of_its_run_goes_with_the_next_look():
    record = run(small(), "here")
    lock = record.folder / ".lock"
    lock.touch()
    RunFolder(record.folder, record.status["identity"]).touch()
    assert not lock.exists()
    with filelock.FileLock(lock):
        RunFolder(record.folder, record.status["identity"]).touch()
        assert lock.exists()  # another process is about to end


@pytest.mark.slow
def test_a_record_whose_lock_is_held_is_running():
    seen = []

    class Look(Watcher):
        def on_evaluation(self, job, row):
            seen.append(Record(job.run_folder.path).status)

    run(small(), "here", Look())
    assert {status["status"] for status in seen} == {"running"}
    assert (seen[0]["pid"], seen[0]["host"]) == (os.getpid(), platform.node())
    assert Record(Path("here")).status["status"] == "done"


def test_a_folder_that_another_process_removes_while_records_are_looked_for_is_none(monkeypatch):
    """Such as the claim of a process on a file system without locks."""
    Path("s").mkdir()
    killed = running("s/a")
    (killed.folder / ".lock.claim").mkdir()
    scandir = os.scandir

    def remove_claim_and_scan(path):
        if Path(path).name == ".lock.claim":
            Path(path).rmdir()
        return scandir(path)

    monkeypatch.setattr(os, "scandir", remove_claim_and_scan)
    assert [record.folder for record in load_records("s")] == [killed.folder]
    assert not (killed.folder / ".lock.claim").exists()


@pytest.mark.slow
def test_an_inspection_does_not_lock_a_folder_for_long(monkeypatch):
    """A look holds the lock for a moment: who claims the folder then waits for that."""
    killed = running("a")
    (killed.folder / ".lock").touch()
    monkeypatch.setattr("fcorun.base.records.record._TIMEOUT", 60)
    with filelock.FileLock(killed.folder / ".lock", thread_local=False) as look:
        threading.Timer(0.01, look.release).start()
        assert RunFolder(killed.folder, "1").claim() == "resume"


def test_a_run_that_ends_while_one_looks_has_ended(monkeypatch):
    killed = running("a")

    def end_run(folder, status):
        (folder / "status.json").write_text('{"status": "done"}')
        return True

    monkeypatch.setattr("fcorun.base.records.record.is_abandoned", end_run)
    assert killed.status == {"status": "done"}


@pytest.mark.parametrize("value", ["!!int ''", "!!float ''", "!!bool x", "!!timestamp x", f"1{':00' * 200}.5"])
def test_yaml_whose_value_is_not_of_its_tag_is_refused(value):
    with pytest.raises(formats.yaml.YAMLError, match=r"config\.yaml, line 2: a value is not of its tag"):
        formats.parse_yaml(f"b: 1\na: {value}", "config.yaml")


def test_archives_that_hold_no_arrays_are_refused():
    content = formats.npz_bytes({"x": np.ones(2)})
    encrypted = bytearray(content)
    encrypted[content.index(b"PK\x01\x02") + 8] |= 1  # the flag of encrypted members
    with pytest.raises(formats.READ_ERRORS):
        formats.arrays_from_bytes(bytes(encrypted))
    file = io.BytesIO(content)
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("a.txt", "text")
    with pytest.raises(ValueError, match="something else than arrays"):
        formats.arrays_from_bytes(file.getvalue())


def test_files_that_an_interrupted_claim_has_left_are_removed(tmp_path, monkeypatch):
    (tmp_path / "predictions.csv").write_text("of another run")
    RunFolder(tmp_path, "1").mark_running("killed before it removed old files")
    folder = RunFolder(tmp_path, "1")
    assert folder.claim() == "resume"
    folder.release()
    assert not (tmp_path / "predictions.csv").exists()
    assert (tmp_path / "status.json").exists()


def test_a_refit_is_known_from_within_its_folder(tmp_path, monkeypatch):
    (tmp_path / "refit").mkdir()
    (tmp_path / "selection.json").write_text('{"adaptive": {"pilot": "ridge"}}')
    monkeypatch.chdir(tmp_path / "refit")
    assert is_refit_of_adaptive_lasso(Record(Path()))


def test_damaged_metrics_are_refused_and_damaged_checkpoints_are_none(tmp_path):
    for text in ("round,objective\n1,2\n2,\n", "round,objective\n1\n", "round\none\n"):
        (tmp_path / "metrics.csv").write_text(text)
        with fails("metrics.csv is damaged", "force=true"):
            METRICS.read_rows(tmp_path)
    (tmp_path / "metrics.csv").write_text("\n")  # of a run that was not finite at its start
    assert METRICS.read_rows(tmp_path) == []
    for about in (b"[]", b"{}"):
        content = formats.npz_bytes({"about": np.frombuffer(about, np.uint8)})
        (tmp_path / "checkpoint.npz").write_bytes(content)
        assert formats.read_checkpoint(tmp_path / "checkpoint.npz") is None


def test_cells_that_a_spreadsheet_reads_as_formulas_are_told_of():
    table = formats.csv_text([{"client": "Bern", "value": -1.5}, {"client": "-inf", "value": float("-inf")}])
    assert formats.describe_formulas({"a.csv": table, "b.png": b"=1"}) == ""
    table += formats.csv_text([{"-2+3": 1, "x": "=cmd|' /C calc'!A0"}, {"-2+3": 2, "x": "@b,c"}])
    sentence = formats.describe_formulas({"a.csv": table.encode()})
    assert sentence.startswith("a spreadsheet reads cells of a.csv as formulas ('-2+3', '=cmd|' /C calc'!A0', '@b')")
