"""Interruptions: no work is lost, and nothing is blocked."""

import json
import os
import random
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers import FILES, SMALL, Count, Stop, flat, rows_of, small
from warm_processes import start_command

from fcorun import Record, UserError, Watcher, run
from fcorun.base.records.record import RunFolder
from fcorun.base.system.files import interruptible

# ---------------------------------------------------------------- interruptions


@pytest.mark.slow
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


@pytest.mark.slow
def test_an_interrupted_run_can_be_forced_to_start_again():
    with pytest.raises(KeyboardInterrupt):
        run(small(), "here", Stop(2))
    watch = Count()
    run(small("force=true"), "here", watch)
    assert watch.rows == 3


@pytest.mark.slow
def test_a_target_that_was_met_before_an_interruption_ends_the_run():
    config = small("stop={change:10}")
    with pytest.raises(KeyboardInterrupt):
        run(config, "here", Stop(2))
    record = run(config, "here")
    assert record.metrics["round"].tolist() == [0, 2]
    assert record.status["reason"].startswith("stopped in round 2")


LONG = [*SMALL, "rounds=300", "eval_every=2", "checkpoint_every=0", "hydra.run.dir=broken"]
RARELY_SAVED = ["checkpoint_every=60"]


def wait_for_rounds(folder, process, seconds=600):
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
    process = start_command([*LONG, *RARELY_SAVED, f"hydra.run.dir={folder}"])
    _, error = process.communicate()
    assert process.returncode == 0, error
    return Record(folder)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGHUP])
def test_a_killed_process_goes_on_where_it_was(kind, undisturbed):
    broken, whole = Path("broken"), undisturbed
    process = start_command(LONG)
    wait_for_rounds(broken, process)
    process.send_signal(signal.SIGSTOP)  # lest it ends before the next lines
    with pytest.raises(UserError, match="another process"):
        run(small("rounds=300"), broken)
    process.send_signal(kind)
    process.send_signal(signal.SIGCONT)
    _, error = process.communicate()
    status = json.loads((broken / "status.json").read_text())
    if kind == signal.SIGKILL:
        assert process.returncode == -signal.SIGKILL
        assert status["status"] == "running"
        assert Record(broken).status["status"] == "interrupted"
    else:
        assert process.returncode == 130
        assert status["status"] == "interrupted"
        assert len(error.strip().splitlines()) == 1
    assert not (broken / "metrics.csv").exists() or len(Record(broken).metrics) < 151
    process = start_command([*LONG, *RARELY_SAVED])
    out, error = process.communicate()
    assert process.returncode == 0, error
    assert "resumes after round" in out
    resumed = Record(broken)
    assert resumed.status["identity"] == whole.status["identity"]
    assert rows_of(resumed).equals(rows_of(whole))
    assert (np.diff(resumed.metrics["seconds"]) > 0).all()
    np.testing.assert_array_equal(flat(resumed.solution), flat(whole.solution))
    assert sorted(path.name for path in broken.iterdir()) == FILES


class Killed(BaseException):
    """The end of a process."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "after",
    [*range(1, 10), "scores.csv", "predictions.csv", "solution.npz", "coefficients.csv", "summary.json", "curves.png"],
)
def test_a_kill_at_any_file_blocks_nothing(after, monkeypatch):
    """The process dies after its first files, some of which are written several times, or after one of its last."""
    written = []
    replace = os.replace

    with monkeypatch.context() as patch:

        def dying(source, target):
            replace(source, target)
            written.append(Path(target).name)
            if after in (len(written), written[-1]):
                for method in ("write_file", "log"):  # the dead write no more
                    patch.setattr(f"fcorun.base.records.record.RunFolder.{method}", lambda *args: None)
                raise Killed

        patch.setattr(os, "replace", dying)
        with pytest.raises(Killed):
            run(small("checkpoint_every=0"), "here")
    mended, whole = (run(small("checkpoint_every=0"), name) for name in ("here", "whole"))
    assert mended.status["status"] == "done"
    assert rows_of(mended).equals(rows_of(whole))
    np.testing.assert_array_equal(flat(mended.solution), flat(whole.solution))
    assert sorted(path.name for path in mended.folder.iterdir()) == FILES


class Interrupted(Watcher):
    """Has a signal sent so many seconds after a run has begun."""

    def __init__(self, kind: int, seconds: float):
        self.later = threading.Timer(seconds, os.kill, (os.getpid(), kind))

    def on_start(self, job, data, resumed):
        self.later.start()


@pytest.mark.slow
def test_a_signal_at_any_moment_interrupts_a_run_or_comes_too_late():
    chance, config = random.Random(7), small("rounds=40", "eval_every=1", "checkpoint_every=0")
    for name, kind in (("a", signal.SIGINT), ("b", signal.SIGTERM), ("c", signal.SIGHUP)):
        outer, watch = signal.signal(kind, lambda *_: None), Interrupted(kind, chance.uniform(0, 1))  # nohup ignores it
        with interruptible():
            try:
                run(config, name, watch)
                end = "done"
            except KeyboardInterrupt:
                end = "interrupted"
            watch.later.join()
        signal.signal(kind, outer)
        assert Record(Path(name)).status["status"] == end
        assert not list(Path(name).glob(".*.tmp"))


@pytest.mark.slow
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
        patch.setattr("fcorun.base.records.record.RunFolder.load_checkpoint", full)
        with pytest.raises(OSError, match="No space left"):
            run(small(), "here")
    assert Record(Path("here")).status["status"] == "failed"
    assert run(small(), "here").finished


# ---------------------------------------------------------------- hard cases


@pytest.mark.slow
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
