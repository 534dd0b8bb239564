"""A target that is a number."""

import numpy as np
from jaxtyping import Float, Shaped

from fcorun.data.tasks.task import Task, encode_numbers


class Regression(Task):
    """A number, such as a blood pressure."""

    name = "regression"
    is_quantity = True

    def encode_targets(self, y: Shaped[np.ndarray, " N"], where: str) -> tuple[Shaped[np.ndarray, " N"], tuple]:
        return encode_numbers(y, where)

    def example_targets(self, scores: Float[np.ndarray, " N"]) -> Shaped[np.ndarray, " N"]:
        return scores
