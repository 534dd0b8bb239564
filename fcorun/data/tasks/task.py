"""The contract of a task, which is what a target is: a number, one of some classes, a time to an event.

Configurations, YAML, records and plans name a task by a text, ``data.task=binary``. Everywhere else a task is an
object: ``data.target_task`` of ``FederatedData`` and of data sets with an option ``task``; ``find_task(name)``.
A file of this folder, or a class that an installed package names as an entry point of the group ``fcorun.tasks``, is a
task without any other edit.

Code that depends on the task asks for the reason, as in ``if task.has_classes``. What a room does for each task is no
method of the task: the room registers a function for each class, and refuses a task that nothing is registered for::

    @singledispatch
    def score_rows(task: Task, rows: ScoredRows) -> dict[str, float]:
        raise UserError(f"data.task={task.name} has no scores: register a function in results/scores")

    @score_rows.register
    def _(task: Binary, rows: ScoredRows) -> dict[str, float]:
        ...
"""

import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

import numpy as np
from jaxtyping import Bool, Float, Shaped
from numpy.typing import DTypeLike

from fcorun.base.errors import UserError, suggest_name

ENTRY_POINT_GROUP = "fcorun.tasks"


class TargetOptions(Protocol):
    """The options of a data set that say how a target is read.

    Attributes:
        positive: the label of the positive one of two classes, or None.
        event: the column of events, or None.
        order: the labels from the lowest class to the highest one, or None.
    """

    @property
    def positive(self) -> str | bool | None: ...
    @property
    def event(self) -> str | None: ...
    @property
    def order(self) -> list[str] | None: ...


class Task(ABC):
    """A kind of target. A task has no options: all objects of one class are equal.

    Attributes:
        name: the name in configurations, records and plans.
        estimand: what a model estimates of a target, as in "a model that estimates the value of".
        typical_classes: the number of classes of data that stand for others, in checks and in plans; 0 without classes.
        has_two_classes: whether there are exactly two classes, of which the second is the positive one.
        has_events: whether targets are signed times: t for an event at t, -t for a row that is censored at t.
        is_quantity: whether a target is a quantity with a unit, a mean and a deviation.
        has_order: whether classes are in an order from the lowest to the highest one, which ``data.order`` may give.
        example_options: the options of a table that reads ``example_targets``, such as an order of the classes.
    """

    name: ClassVar[str]
    estimand: ClassVar[str] = "value"
    typical_classes: ClassVar[int] = 0
    has_two_classes: ClassVar[bool] = False
    has_events: ClassVar[bool] = False
    is_quantity: ClassVar[bool] = False
    has_order: ClassVar[bool] = False
    example_options: ClassVar[Mapping[str, Any]] = MappingProxyType({})

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    @property
    def has_classes(self) -> bool:
        """Return whether a target is one of some classes, by its index."""
        return self.typical_classes > 0

    @property
    def target_noun(self) -> str:
        """The noun of a target in a sentence: "class" or "value"."""
        return "class" if self.has_classes else "value"

    @abstractmethod
    def encode_targets(self, y: Shaped[np.ndarray, " N"], where: str) -> tuple[Shaped[np.ndarray, " N"], tuple]:
        """Return the targets of all rows of a data set as this task has them, and the classes in order.

        Args:
            y: the values of the target's column, of any type; signed times where the task has events.
            where: the beginning of an error, "data.task=binary: target 'died' of rows.csv".

        Returns:
            Targets, shape (N,): class indices as int32 with classes, else numbers; and the labels by class index, empty
            without classes.

        Raises UserError for values that do not fit the task.
        """

    @abstractmethod
    def example_targets(self, scores: Float[np.ndarray, " N"]) -> Shaped[np.ndarray, " N"]:
        """Return targets, as a file may have them, from random numbers around 0 of which ``encode_targets`` knows none.

        Checks of plug-ins make their data of them: more than a few rows have each class, and events and censored times.
        """

    def order_classes(
        self, y: Shaped[np.ndarray, " N"], classes: tuple, options: TargetOptions, where: str
    ) -> tuple[Shaped[np.ndarray, " N"], tuple]:
        """Return class indices (N,) and the classes in the order that the options of a data set ask for.

        Called after ``encode_targets``, and after clients and held-out rows were drawn: the order changes neither.
        Raises UserError, which ends with ``where``, for an order that does not fit the labels.
        """
        return y, classes

    def check_options(self, options: TargetOptions) -> None:
        """Raise UserError for options of a table that do not fit the task."""
        if options.event is not None and self.has_classes:
            raise UserError(f"`data.event={options.event}` marks times to events, and `data.task={self.name}` has "
                            "labels: leave one of them out")  # fmt: skip
        if options.positive is not None and not self.has_two_classes:
            raise UserError(f"`data.positive={options.positive}` is one of two labels, and the task is "
                            f"`data.task={self.name}`: leave it out, or give `data.task=binary`")  # fmt: skip
        if options.order is not None and not self.has_order:
            raise UserError(f"`data.order=[{','.join(options.order)}]` is an order of classes, and the task is "
                            f"`data.task={self.name}`: leave it out, or give `data.task=ordinal`")  # fmt: skip

    def target_dtype(self, dtype: DTypeLike) -> np.dtype:
        """Return the dtype of targets on a device, where features have ``dtype``."""
        return np.dtype(dtype)

    def outcomes(self, y: Shaped[np.ndarray, " N"], classes: Sequence) -> dict[str, Bool[np.ndarray, " N"]]:
        """Return masks of the rows with each outcome that rows may have or not have, by its name.

        The name is "event" for events, else a label; of two classes only the positive one is an outcome. A quantity
        has no outcomes.
        """
        return {}

    def find_quantity(self, y: Shaped[np.ndarray, " N"]) -> Shaped[np.ndarray, " N"] | None:
        """Return the numbers with a unit that targets stand for: times without their signs; None for other targets."""
        if self.has_events:
            return np.abs(y)
        return y if self.is_quantity else None

    def find_events(self, y: Shaped[np.ndarray, " N"]) -> Bool[np.ndarray, " N"] | None:
        """Return the mask of rows with an event or of the positive class; None if the task has no such outcome."""
        if self.has_events or self.has_two_classes:
            return np.asarray(y) > 0
        return None


def encode_numbers(y: Shaped[np.ndarray, " N"], where: str) -> tuple[Shaped[np.ndarray, " N"], tuple]:
    """Return targets that are numbers, without classes. Raises UserError, which begins with ``where``, for text."""
    if y.dtype.kind not in "fiub":
        raise UserError(f"{where} is text ('{y[0]}'); give `data.task=binary` or multiclass, or another target")
    if y.dtype.kind != "f":
        y = y.astype(np.float64)
    return y, ()


def encode_labels(y: Shaped[np.ndarray, " N"], where: str) -> tuple[Shaped[np.ndarray, " N"], np.ndarray]:
    """Return class indices as int32 (N,), and the sorted labels as the source wrote them.

    Raises UserError, which begins with ``where``, for one class only.
    """
    classes, indices = np.unique(whole_as_integers(y), return_inverse=True)  # LIBSVM writes labels as real numbers
    if len(classes) < 2:
        raise UserError(f"{where} holds one class only ('{classes[0]}'); two or more are needed to classify")
    return indices.astype(np.int32), classes


def whole_as_integers(values: np.ndarray) -> np.ndarray:
    """Return real numbers as integers if all are whole and fit in 64 bits, else the values as they are."""
    if values.dtype.kind == "f" and (values == np.floor(values)).all() and (np.abs(values) < 2**63).all():
        return values.astype(np.int64)
    return values


# Tasks by their names.


def find_task(name: str) -> Task:
    """Return the task of a name. Raises UserError for an unknown one."""
    tasks = find_tasks()
    if name not in tasks:
        raise UserError(f"`data.task={name}` is not a choice: {suggest_name(name, tasks)}")
    return tasks[name]


@cache
def find_tasks() -> dict[str, Task]:
    """Return all tasks by name: those of the files of this folder, then those of installed packages.

    Raises UserError for a package whose entry point is no task, or has the name of another task.
    """
    package = import_module(__name__.rpartition(".")[0])
    tasks: dict[str, Task] = {}
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        for value in vars(import_module(module.name)).values():
            if isinstance(value, type) and issubclass(value, Task) and value.__module__ == module.name != __name__:
                tasks[value.name] = value()
    for point in entry_points(group=ENTRY_POINT_GROUP):
        cls: Any = point.load()
        where = f"the entry point {point.name} = {point.value} of the group {ENTRY_POINT_GROUP}"
        if not (isinstance(cls, type) and issubclass(cls, Task)):
            raise UserError(f"{where} is no task: name a class that inherits fcorun.Task")
        if cls.name in tasks and type(tasks[cls.name]) is not cls:
            raise UserError(f"{where}: there is another task '{cls.name}'; give the class another name")
        tasks[cls.name] = cls()
    return tasks
