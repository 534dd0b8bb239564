"""Overrides before Hydra composes them."""

import pytest
from helpers import fails

from fcorun.configuration.compose import is_user_error, normalize_overrides, translate_folder
from fcorun.errors import UserError


def test_out_is_the_folder_of_a_run_or_of_a_sweep():
    assert translate_folder(["seed=1"]) == ["seed=1"]
    assert translate_folder(["out=my runs", "seed=1"]) == ["seed=1", "hydra.run.dir=my runs"]
    assert translate_folder(["out=2026_05"]) == ["hydra.run.dir='2026_05'"]  # which Hydra would read as 202605
    assert translate_folder(["-m", "out=s"]) == ["-m", "hydra.sweep.dir=s"]


@pytest.mark.parametrize("arguments", [["out=a", "out=b"], ["hydra.run.dir=a", "out=b"], ["out="]])
def test_two_folders_and_none_are_refused(arguments):
    with fails("give one out=DIR" if len(arguments) > 1 else "out= names no folder"):
        translate_folder(arguments)


def test_two_files_of_a_table_are_refused():
    with fails("data.path=[a.csv,b.csv]: data.path is one file"):
        normalize_overrides(["data.path=[a.csv,b.csv]"])


def test_an_error_of_a_program_is_no_error_of_a_user_that_was_handled_before_it():
    def fail():
        try:
            raise UserError("give another value")
        except UserError:
            raise KeyError("a defect")  # noqa: B904

    with pytest.raises(KeyError) as failure:
        fail()
    assert not is_user_error(failure.value)
    failure.value.__cause__ = UserError("give another value")
    assert is_user_error(failure.value)
