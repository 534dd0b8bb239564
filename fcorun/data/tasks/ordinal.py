"""A target that is one of ordered classes."""

from collections.abc import Sequence
from types import MappingProxyType

import numpy as np
from jaxtyping import Bool, Float, Shaped
from numpy.typing import DTypeLike

from fcorun.base.errors import UserError
from fcorun.data.tasks.task import TargetOptions, Task, encode_labels


class Ordinal(Task):
    """One of three or more classes in order, by its index from the lowest one: none, mild, severe.

    ``data.order`` gives the order of labels that are text. Numbers are in their own order.
    """

    name = "ordinal"
    has_order = True
    example_options = MappingProxyType({"order": ["low", "middle", "high"]})
    estimand = "class"
    typical_classes = 3

    def encode_targets(self, y: Shaped[np.ndarray, " N"], where: str) -> tuple[Shaped[np.ndarray, " N"], tuple]:
        indices, classes = encode_labels(y, where)
        if len(classes) == 2:
            raise UserError(f"{where} holds two classes ({classes[0]}, {classes[1]}), whose order says nothing: give "
                            "`data.task=binary`")  # fmt: skip
        return indices, tuple(classes.tolist())

    def example_targets(self, scores: Float[np.ndarray, " N"]) -> Shaped[np.ndarray, " N"]:
        return np.array(["low", "middle", "high"])[np.digitize(scores, [-0.5, 1.0])]

    def order_classes(
        self, y: Shaped[np.ndarray, " N"], classes: tuple, options: TargetOptions, where: str
    ) -> tuple[Shaped[np.ndarray, " N"], tuple]:
        labels = list(map(str, classes))
        listed = ",".join(labels)
        if options.order is None:
            if isinstance(classes[0], str):
                raise UserError(f"`data.task=ordinal`: the labels of {where} are text, and fcorun does not know their "
                                f"order; give `data.order=[{listed}]` from the lowest class to the highest "
                                "one")  # fmt: skip
            return y, classes
        order = list(map(str, options.order))
        if sorted(order) != sorted(labels):
            raise UserError(f"`data.order=[{','.join(order)}]` does not name each label of {where} once: give "
                            f"`data.order=[{listed}]` from the lowest class to the highest one")  # fmt: skip
        index_in_order = np.array([order.index(label) for label in labels], np.int32)
        return index_in_order[y], tuple(classes[labels.index(label)] for label in order)

    def target_dtype(self, dtype: DTypeLike) -> np.dtype:
        return np.dtype(np.int32)

    def outcomes(self, y: Shaped[np.ndarray, " N"], classes: Sequence) -> dict[str, Bool[np.ndarray, " N"]]:
        return {str(label): y == k for k, label in enumerate(classes)}
