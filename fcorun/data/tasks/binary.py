"""A target that is one of two classes."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Shaped

from fcorun.base.errors import UserError, abbreviate, suggest_name, warn_similar_names
from fcorun.data.tasks.task import TargetOptions, Task, encode_labels

_FEW_LABELS = 4  # labels of a target whose third or fourth may stand for a missing outcome


class Binary(Task):
    """One of two classes, 0 or 1. The positive class is the second: the last label, or that of ``data.positive``."""

    name = "binary"
    estimand = "probability"
    typical_classes = 2
    has_two_classes = True

    def encode_targets(self, y: Shaped[np.ndarray, " N"], where: str) -> tuple[Shaped[np.ndarray, " N"], tuple]:
        indices, classes = encode_labels(y, where)
        if len(classes) > 2:
            labels = classes.tolist()
            advice = ""
            if classes.dtype.kind in "fiu":
                advice = " or regression"
            if similar := warn_similar_names("its labels", labels):
                advice += f"; {similar[0]}"
            elif len(labels) <= _FEW_LABELS:
                advice += ", or leave out the rows whose label stands for a missing outcome, such as 9 or unknown"
            listed = abbreviate(list(map(str, labels)), _FEW_LABELS)
            raise UserError(f"{where} holds {len(labels)} classes ({listed}); give `data.task=multiclass`{advice}")
        return indices, tuple(classes.tolist())

    def example_targets(self, scores: Float[np.ndarray, " N"]) -> Shaped[np.ndarray, " N"]:
        return scores > 0.5

    def order_classes(
        self, y: Shaped[np.ndarray, " N"], classes: tuple, options: TargetOptions, where: str
    ) -> tuple[Shaped[np.ndarray, " N"], tuple]:
        names = list(map(str, classes))
        positive = str(options.positive)
        if options.positive is None or positive == names[1]:
            return y, classes
        if positive not in names:
            raise UserError(f"`data.positive={positive}` is no label of {where}; {suggest_name(positive, names)}")
        return (1 - y).astype(y.dtype), classes[::-1]

    def outcomes(self, y: Shaped[np.ndarray, " N"], classes: Sequence) -> dict[str, Bool[np.ndarray, " N"]]:
        return {str(classes[1]): y == 1}
