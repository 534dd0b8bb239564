"""Every task of the shelf has the properties of tasks; a task without one of them is told so."""

import numpy as np
import pytest

from fcorun.data.tasks import Multiclass, find_tasks
from fcorun.interface.checks.plugins import check
from fcorun.interface.checks.property_check import run_checks
from fcorun.interface.checks.tasks import CHECKS


@pytest.mark.parametrize("name", find_tasks())
def test_every_task_passes_every_check(name):
    results = [result for _, of_title in check([f"task={name}"]) for result in of_title]
    assert [result for result in results if result.status == "failed"] == []
    assert len(results) == len(CHECKS) + 1  # a few rounds


class Careless(Multiclass):
    """A task that forgets a class, and refuses nothing."""

    name = "careless"
    has_events = True

    def encode_targets(self, y, where):
        classes, indices = np.unique(y, return_inverse=True)
        return indices, tuple(classes[:-1])


def test_a_careless_task_is_told_what_is_wrong():
    failed = {result.name: result.message for result in run_checks(CHECKS, Careless()) if result.status == "failed"}
    assert (
        failed["a name that is one word in lower case, by which the task is found"]
        == "no task of this class is found by the name 'careless'"
    )
    assert failed["targets are of one kind: classes, times to events, or another number"].startswith(
        "classes, events and a quantity should exclude each other"
    )
    assert (
        failed["finite numbers, or class indices of all classes, of rows in their order"]
        == "class indices should be int32 and have the type int64"
    )
    refused = failed["a sentence about the file for targets that are no numbers, or are of one class only"]
    assert refused == "a target of one label only should be refused by UserError, and is encoded"
