"""A target that is one of two or more classes."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Shaped
from numpy.typing import DTypeLike

from fcorun.base.errors import UserError
from fcorun.data.tasks.task import Task, encode_labels


class Multiclass(Task):
    """One of several classes without an order, by its index. A model has an output for each class."""

    name = "multiclass"
    estimand = "class"
    typical_classes = 3

    def encode_targets(self, y: Shaped[np.ndarray, " N"], where: str) -> tuple[Shaped[np.ndarray, " N"], tuple]:
        indices, classes = encode_labels(y, where)
        if classes.dtype.kind == "f":
            is_fraction = y != np.floor(y)
            if is_fraction.any():
                raise UserError(
                    f"{where} holds fractions ({y[is_fraction][0]}), not labels; give `data.task=regression`"
                )
        return indices, tuple(classes.tolist())

    def example_targets(self, scores: Float[np.ndarray, " N"]) -> Shaped[np.ndarray, " N"]:
        return np.digitize(scores, [-0.5, 1.5])

    def target_dtype(self, dtype: DTypeLike) -> np.dtype:
        return np.dtype(np.int32)

    def outcomes(self, y: Shaped[np.ndarray, " N"], classes: Sequence) -> dict[str, Bool[np.ndarray, " N"]]:
        """Return a mask for each class; of two classes, for the second one only."""
        first = 0
        if len(classes) == 2:
            first = 1
        return {str(classes[k]): y == k for k in range(first, len(classes))}
