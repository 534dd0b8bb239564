"""The properties of a task: how it reads targets, and that its answers about them fit each other."""

from collections.abc import Sequence

import numpy as np

from fcorun.base.errors import UserError
from fcorun.data.datasets.table import Table
from fcorun.data.tasks import Task, find_task, find_tasks
from fcorun.interface.checks.problems import FEDAVG, check_rounds, ragged
from fcorun.interface.checks.property_check import (
    Checked,
    Violation,
    find_checks,
    require,
    require_finite,
    skip_unless,
)

ROWS = 60
_WHERE = "data.task=mine: target y of rows.csv"


def encode_example(task: Task, order: np.ndarray | slice = slice(None)) -> tuple[np.ndarray, tuple]:
    """Return the targets (N,) and the classes of the task's example, its rows in an order, encoded."""
    scores = np.random.default_rng(0).standard_normal(ROWS)
    return task.encode_targets(task.example_targets(scores)[order], _WHERE)


def check_name(task: Task) -> None:
    """Require a name that is one word in lower case, by which the task is found."""
    require(task.name.isidentifier() and task.name.islower(), f"name='{task.name}' should be one word in lower case")
    require(find_tasks().get(task.name) == task, f"no task of this class is found by the name '{task.name}'")


def check_kind(task: Task) -> None:
    """Require that targets are of one kind: classes, times to events, or another number."""
    require(
        task.has_classes + task.has_events + task.is_quantity <= 1,
        "classes, events and a quantity should exclude each other: set one of typical_classes, has_events, is_quantity",
    )
    if task.has_two_classes:
        require(task.typical_classes == 2, f"typical_classes of two classes should be 2 and is {task.typical_classes}")
    require(task.typical_classes != 1, "typical_classes should be 0, or at least 2")


def check_encoding(task: Task) -> None:
    """Require finite numbers, or class indices of all classes, of rows in their order."""
    y, classes = encode_example(task)
    require(y.shape == (ROWS,), f"{ROWS} targets should have the shape ({ROWS},) and have {y.shape}")
    require_finite("an encoded target", y)
    if not task.has_classes:
        require(y.dtype.kind == "f", f"targets without classes should be real numbers and have the type {y.dtype}")
        require(classes == (), f"a task without classes should have none and has {classes}")
    else:
        require(y.dtype == np.int32, f"class indices should be int32 and have the type {y.dtype}")
        require(len(set(classes)) == len(classes), f"the classes {classes} should differ")
        found = np.unique(y).tolist()
        require(found == list(range(len(classes))), f"{len(classes)} classes should have all indices and have {found}")
        require(
            len(classes) == task.typical_classes,
            f"example_targets should have {task.typical_classes} classes, typical_classes, and has {len(classes)}",
        )
    order = np.random.default_rng(1).permutation(ROWS)
    again, _ = encode_example(task, order)
    require(np.array_equal(again, y[order]), "the encoding of a row should not depend on the order of the rows")


def check_order(task: Task) -> None:
    """Require that the order of classes, by the options of a table, leaves each row its label."""
    skip_unless(task.has_classes, "it has no classes")
    y, classes = encode_example(task)
    positive = None
    if task.has_two_classes:
        positive = str(classes[0])
    table = Table("rows.csv", task=task.name, positive=positive, **task.example_options)
    ordered, names = task.order_classes(y, classes, table, "y")
    require(sorted(map(str, names)) == sorted(map(str, classes)), f"the classes {classes} became {names}")
    has_label = np.array(names)[ordered] == np.array(classes)[y]
    require(bool(has_label.all()), "a row should keep its label")
    if positive is not None:
        require(str(names[1]) == positive, f"data.positive={positive} should be the second class and is not: {names}")


def check_refusals(task: Task) -> None:
    """Require a sentence about the file for targets that are no numbers, or are of one class only."""
    y = np.array(["text"] * ROWS)
    unfit = "text"
    if task.has_classes:
        unfit = "one label only"
    try:
        task.encode_targets(y, _WHERE)
    except UserError as error:
        require(str(error).startswith(_WHERE), f"the error should begin with '{_WHERE}' and is '{error}'")
    else:
        raise Violation(f"a target of {unfit} should be refused by UserError, and is encoded")


def check_outcomes(task: Task) -> None:
    """Require a mask of the rows for each outcome, and the events among the outcomes."""
    y, classes = encode_example(task)
    outcomes = task.outcomes(y, classes)
    for name, mask in outcomes.items():
        require(
            mask.shape == (ROWS,) and mask.dtype == bool,
            f"the outcome '{name}' should be a mask of shape ({ROWS},) and is {mask.dtype} of shape {mask.shape}",
        )
        require(bool(name), "the name of an outcome should not be empty")
    events = task.find_events(y)
    if events is not None:
        masks = list(outcomes.values())
        require(
            len(masks) == 1 and np.array_equal(masks[0], events), "the events should be the one outcome of the task"
        )


def check_device_type(task: Task) -> None:
    """Require a type on the device that holds all targets: that of the features, or whole numbers for classes."""
    dtype = task.target_dtype(np.float32)
    if not task.has_classes:
        require(dtype == np.float32, f"targets without classes should have the type of features and have {dtype}")
    y, _ = encode_example(task)
    require(bool(np.isfinite(y.astype(dtype)).all()), f"the type {dtype} should hold all targets")


CHECKS = find_checks(__name__)


def list_checks(name: str, overrides: Sequence[str]) -> Checked:
    """Yield the checks of ``task=NAME``, a task of fcorun or of an installed package, alone and in a run.

    Raises UserError for an unknown task.
    """
    yield f"task={name}", CHECKS, find_task(name)
    yield f"task={name} in a run", [check_rounds], lambda folder: ragged(folder, *FEDAVG, task=name)
