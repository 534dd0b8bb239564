"""The target of a table: numbers, or classes."""

import numpy as np

from fcorun.errors import UserError, suggest_name
from fcorun.tables.data_warnings import warn_similar_names


def encode_targets(y: np.ndarray, task: str, where: str) -> tuple[np.ndarray, tuple]:
    """Numbers and no classes for a regression, otherwise class indices, shape (N,), and the sorted classes.

    Raises UserError, which begins with ``where``, for values that do not fit the task.
    """
    if task == "regression":
        if y.dtype.kind not in "fiub":
            raise UserError(f"{where} is text ('{y[0]}'); give data.task=binary or multiclass, or another target")
        return (y if y.dtype.kind == "f" else y.astype(np.float64)), ()
    if y.dtype.kind == "f" and (y == np.floor(y)).all():
        y = y.astype(np.int64)  # LIBSVM writes its labels as real numbers
    classes, indices = np.unique(y, return_inverse=True)
    if len(classes) < 2:
        raise UserError(f"{where} holds one class only ('{classes[0]}'); two or more are needed to classify")
    if task == "binary" and len(classes) > 2:
        first = ", ".join(map(str, classes[:3].tolist()))
        alike = "".join(f"; {remark}" for remark in warn_similar_names("its labels", classes.tolist()))
        raise UserError(f"{where} holds {len(classes)} classes ({first}, ..); give data.task=multiclass"
                        + (" or regression" if y.dtype.kind in "fiu" else alike))  # fmt: skip
    if task == "multiclass" and y.dtype.kind == "f":
        raise UserError(f"{where} holds fractions ({y[y != np.floor(y)][0]}), not labels; give data.task=regression")
    return indices.astype(np.int32), tuple(classes.tolist())


def order_classes(y: np.ndarray, classes: tuple, positive: str | bool | None, where: str) -> tuple[np.ndarray, tuple]:
    """Class indices y, shape (N,), and the two classes, so that the one called ``positive`` is the second; None: as
    they are. Raises UserError, which ends with ``where``, for a name that is none of theirs."""
    if positive is None:
        return y, classes
    names = [str(label) for label in classes]
    if str(positive) not in names:
        raise UserError(f"data.positive={positive} is no label of {where}; {suggest_name(positive, names)}")
    return (y, classes) if str(positive) == names[1] else ((1 - y).astype(y.dtype), classes[::-1])
