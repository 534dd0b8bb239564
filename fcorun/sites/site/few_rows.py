"""The rule that few rows of a site must not outweigh all others in what the site sends."""

from dataclasses import dataclass

import numpy as np

from fcorun.base.errors import UserError
from fcorun.engine.remote.row_shares import ShareSums, effective_numbers

MAX_WITHHELD = 50  # rounds of a run, or of the runs on a subset, in which a site withholds its upload


class FewRowsError(UserError):
    """A refusal of sums that tell of few rows."""


@dataclass(frozen=True)
class FewRowsRule:
    """The least effective number of rows in a sum at a model: each row counts with its weight times a derivative.

    Second derivatives count in gradients, too, since those of two rounds differ by them.

    Attributes:
        min_cell: the least number; sums in which no row counts at all are no secret.
        has_curvature: whether each loss has a positive second derivative, and not in a band alone.
    """

    min_cell: int
    has_curvature: bool = True

    def find(self, sums: ShareSums, weights: np.ndarray | float = 1.0) -> np.ndarray:
        """Return in which of G runs few rows outweigh all others, (G,).

        Args:
            sums: the sums over the rows of S clients at the model of each run, (G, S, 3, 2).
            weights: the weights of these clients in the message, (S,).
        """
        numbers = effective_numbers(sums, weights)
        counted = numbers if self.has_curvature else numbers[..., :1]
        return counted.min(axis=-1) < self.min_cell

    def check(self, message: str, sums: ShareSums) -> None:
        """Raise FewRowsError where few rows of a site outweigh all others at the model of one of G runs.

        ``sums`` are those over all its rows, (G, 3, 2).
        """
        if self.find(np.asarray(sums)[:, None]).any():
            raise refuse(message)


def refuse(message: str) -> FewRowsError:
    """Return the refusal of a message at a model at which few rows outweigh all others."""
    withheld = f"at the model that the server sent, few rows of this site outweigh all others in '{message}'"
    cause = "a model that separates the classes, an extreme value, or small batches do that"
    return FewRowsError(f"{withheld}, fewer than policy.min_cell allows: {cause}: plan a larger strength, fewer "
                        "features or batch_size=null, or leave the site out")  # fmt: skip
