"""A target that is a time to an event."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Shaped

from fcorun.data.tasks.task import Task, encode_numbers

TIME_ZERO = 1e-30  # stands for a time of 0, which could not have the sign of a censored row; float32 holds it


class Survival(Task):
    """A time to an event, or to the end of observation without one: t for an event at t, -t for a row censored at t."""

    name = "survival"
    estimand = "hazard"
    has_events = True

    def encode_targets(self, y: Shaped[np.ndarray, " N"], where: str) -> tuple[Shaped[np.ndarray, " N"], tuple]:
        return encode_numbers(y, where)

    def example_targets(self, scores: Float[np.ndarray, " N"]) -> Shaped[np.ndarray, " N"]:
        is_censored = np.arange(len(scores)) % 3 == 0
        return np.where(is_censored, -1, 1) * np.exp(-scores)

    def outcomes(self, y: Shaped[np.ndarray, " N"], classes: Sequence) -> dict[str, Bool[np.ndarray, " N"]]:
        return {"event": y > 0}
