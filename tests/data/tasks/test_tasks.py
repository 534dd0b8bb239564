"""Tasks: how each reads a target, and how a task of an installed package is found."""

from importlib.metadata import EntryPoint

import numpy as np
import pytest

from fcorun.base.errors import UserError
from fcorun.data.datasets import FederatedData, dataset
from fcorun.data.datasets.table import Table
from fcorun.data.rows.rows import Rows
from fcorun.data.tasks import Binary, Multiclass, Regression, Survival, Task, find_task, find_tasks, task
from fcorun.interface.api.rows_in_memory import from_arrays


class Counts(Task):
    name = "counts"
    is_quantity = True

    def encode_targets(self, y, where):
        return y.astype(np.float64), ()

    def example_targets(self, scores):
        return np.exp(scores).round()


@pytest.fixture(autouse=True)
def forgotten_tasks():
    yield
    find_tasks.cache_clear()


def install(monkeypatch, value: str) -> None:
    point = EntryPoint("counts", value, task.ENTRY_POINT_GROUP)
    monkeypatch.setattr(task, "entry_points", lambda group: [point])
    find_tasks.cache_clear()


def test_texts_of_configurations_name_the_tasks_of_the_shelf():
    assert set(find_tasks()) == {"binary", "multiclass", "ordinal", "regression", "survival"}
    assert find_task("binary") == Binary() != find_task("multiclass") == Multiclass()
    rows = Rows(np.zeros((2, 1)), np.array([0, 1]), np.array([0, 1]))
    assert FederatedData(rows, task="binary", classes=("no", "yes")).target_task is find_task("binary")
    assert Table("rows.csv", target="days", event="died").target_task == Survival()


def test_an_unknown_task_is_refused_with_the_known_ones():
    with pytest.raises(UserError, match=r"data.task=ranking is not a choice: .valid: binary, multiclass, ordinal"):
        find_task("ranking")


def test_an_installed_package_may_bring_a_task(monkeypatch):
    install(monkeypatch, f"{__name__}:Counts")
    assert find_task("counts") == Counts()
    rows = np.zeros((4, 1)), np.array([0, 2, 1, 5]), ["a", "a", "b", "b"]
    assert from_arrays(*rows, task="counts").load().target_task.is_quantity
    identified = []
    monkeypatch.setattr(dataset, "code_identifier", lambda plugin: identified.append(type(plugin)))
    from_arrays(*rows, task="counts").fingerprint()
    assert Counts in identified


def test_an_entry_point_that_is_no_task_is_refused(monkeypatch):
    install(monkeypatch, "numpy:ndarray")
    with pytest.raises(UserError, match=r"counts = numpy:ndarray of the group fcorun.tasks is no task: name a class"):
        find_tasks()


def test_labels_that_are_no_64_bit_integers_stay_different():
    indices, classes = Multiclass().encode_targets(np.array([1e300, 5e200, 0.0, 1e300]), "y")
    assert classes == (0.0, 5e200, 1e300)
    assert indices.tolist() == [2, 1, 0, 2]


def test_the_positive_class_is_the_second_one():
    y, classes = Binary().encode_targets(np.array(["sick", "well", "sick"]), "y")
    assert y.tolist() == [0, 1, 0]
    assert classes == ("sick", "well")
    y, classes = Binary().order_classes(y, classes, Table("rows.csv", target="y", task="binary", positive="sick"), "y")
    assert y.tolist() == [1, 0, 1]
    assert classes == ("well", "sick")


def test_outcomes_are_those_that_rows_may_have_or_not():
    y = np.array([0, 2, 1, 2])
    masks = Multiclass().outcomes(y, ("a", "b", "c"))
    assert {name: mask.tolist() for name, mask in masks.items()} == {
        "a": [True, False, False, False], "b": [False, False, True, False], "c": [False, True, False, True]
    }  # fmt: skip
    assert list(Binary().outcomes(y, ("no", "yes"))) == ["yes"]
    assert Survival().outcomes(np.array([1.5, -2.0]), ())["event"].tolist() == [True, False]
    assert Regression().outcomes(y, ()) == {}
    assert Multiclass().find_events(y) is None
