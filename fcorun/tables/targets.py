"""The target of a table: numbers, or classes."""

import numpy as np

from fcorun.errors import UserError, suggest_name
from fcorun.tables.data_warnings import warn_similar_names


def encode_targets(y: np.ndarray, task: str, where: str) -> tuple[np.ndarray, tuple]:
    """Return the targets and the sorted classes.

    Targets are numbers without classes for a regression, otherwise class indices, shape (N,). Raises UserError, which
    begins with ``where``, for values that do not fit the task.
    """
    if task == "regression":
        if y.dtype.kind not in "fiub":
            raise UserError(f"{where} is text ('{y[0]}'); give data.task=binary or multiclass, or another target")
        return (y if y.dtype.kind == "f" else y.astype(np.float64)), ()
    if y.dtype.kind == "f" and (y == np.floor(y)).all():
        y = y.astype(np.int64)  # LIBSVM writes labels as real numbers
    classes, indices = np.unique(y, return_inverse=True)
    if len(classes) < 2:
        raise UserError(f"{where} holds one class only ('{classes[0]}'); two or more are needed to classify")
    if task == "binary" and len(classes) > 2:
        first = ", ".join(map(str, classes[:3].tolist()))
        if y.dtype.kind in "fiu":
            advice = " or regression"
        else:
            advice = "".join(f"; {warning}" for warning in warn_similar_names("its labels", classes.tolist()))
        raise UserError(f"{where} holds {len(classes)} classes ({first}, ..); give data.task=multiclass{advice}")
    if task == "multiclass" and y.dtype.kind == "f":
        raise UserError(f"{where} holds fractions ({y[y != np.floor(y)][0]}), not labels; give data.task=regression")
    return indices.astype(np.int32), tuple(classes.tolist())


def order_classes(y: np.ndarray, classes: tuple, positive: str | bool | None, where: str) -> tuple[np.ndarray, tuple]:
    """Return class indices y, shape (N,), and the two classes, the ``positive`` one second.

    The order stays if ``positive`` is None. Raises UserError, which ends with ``where``, for an unknown label.
    """
    if positive is None:
        return y, classes
    names = [str(label) for label in classes]
    if str(positive) not in names:
        raise UserError(f"data.positive={positive} is no label of {where}; {suggest_name(positive, names)}")
    if str(positive) == names[1]:
        return y, classes
    return (1 - y).astype(y.dtype), classes[::-1]
