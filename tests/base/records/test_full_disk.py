"""A disk that is full, or not to be written to: a sentence that names the file, and numbers before pictures."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from helpers import PICTURES, small

from fcorun import Record, run
from fcorun.base.errors import WriteError, describe_error
from fcorun.base.records.record import SELECTION_FILE, RunFolder
from fcorun.engine.segments.client_states import ClientStateFile
from fcorun.interface.cli.commands import main as command
from fcorun.studies.selection.select import plan_selection
from fcorun.studies.selection.selection_result import SelectOptions

FULL = "cannot be written (No space left on device); make room on that disk, and give the same command again"


def refuse(monkeypatch, number: int, *names: str) -> None:
    """Have files refused whose names begin so, once a part of them is written."""

    def write_new(path, content, *options):
        path.write_bytes(content[:2])
        if path.name.startswith(tuple(f".{name}." for name in names)):
            raise OSError(number, os.strerror(number))  # which names no file
        path.write_bytes(content)

    monkeypatch.setattr("fcorun.base.system.files.write_new", write_new)


def test_the_sentence_names_the_file_and_nothing_is_left(monkeypatch):
    refuse(monkeypatch, errno.ENOSPC, "metrics.csv")
    with pytest.raises(WriteError) as raised:
        RunFolder(Path(), "").write_file("metrics.csv", "round")
    assert describe_error(raised.value) == f"metrics.csv {FULL}"
    assert not list(Path().iterdir())


@pytest.mark.slow
def test_numbers_are_written_before_pictures(monkeypatch):
    refuse(monkeypatch, errno.ENOSPC, *PICTURES)
    with pytest.raises(WriteError) as raised:
        run(small(), "here")
    assert describe_error(raised.value) == f"here/curves.png {FULL}"
    assert Record(Path("here")).status["reason"] == f"here/curves.png {FULL}"
    numbers = ("metrics.csv", "scores.csv", "coefficients.csv", "summary.json", "solution.npz")
    assert all(Path("here", name).exists() for name in numbers)
    assert not list(Path("here").glob("*.png"))


@pytest.mark.slow
@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_pictures_of_a_record_that_is_not_to_be_written_to(number, monkeypatch, capsys):
    run(small(), "here")
    refuse(monkeypatch, number, *PICTURES)
    assert command(["plot", "here"]) == 2
    why = os.strerror(number)
    message = f"here/curves.png cannot be written ({why}); give --out FOLDER for pictures in another folder"
    assert capsys.readouterr().err == f"fcorun: {message}\n"
    assert command(["plot", "here", "--out", "elsewhere"]) == 0
    assert list(Path("elsewhere").glob("*.png"))


def test_a_file_of_states_is_named(monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    states = ClientStateFile(Path("states"), [np.zeros(3)], 5)
    monkeypatch.setattr("fcorun.engine.segments.client_states.write_rows_at", full)
    with pytest.raises(WriteError, match=r"^states cannot be written \(No space left"):
        states.write(np.arange(2), [np.ones((2, 3))], 1)


def test_a_study_that_a_full_disk_kept_from_beginning_can_begin_again(monkeypatch):
    study = plan_selection(small(), SelectOptions(points=2, folds=2), "out").study
    with monkeypatch.context() as patch:
        refuse(patch, errno.ENOSPC, SELECTION_FILE)
        with pytest.raises(WriteError), study.claim():
            pass
    (study.folder / f".{SELECTION_FILE}.0123456789abcdef.tmp").touch()  # as a killed process leaves it
    with study.claim():
        assert (study.folder / SELECTION_FILE).exists()
