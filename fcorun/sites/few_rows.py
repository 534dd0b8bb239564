"""The rule that few rows of a site must not outweigh all others in what the site sends."""

from dataclasses import dataclass

import numpy as np

from fcorun.engine.remote.row_shares import ShareSums, effective_numbers
from fcorun.sites.messages import OwnerError


class FewRowsError(OwnerError):
    """A refusal of sums that tell of few rows."""


@dataclass(frozen=True)
class FewRowsRule:
    """The least effective number of rows in a sum at a model: each row counts with its weight times a derivative.

    Attributes:
        min_cell: the least number; sums in which no row counts at all are no secret.
        by_client: whether the loss of a row depends on other rows of its client. Second derivatives, the expected
            events of rows, then count in gradients, too.
    """

    min_cell: int
    by_client: bool = False

    def check(
        self,
        message: str,
        sums: ShareSums,
        weights: np.ndarray | float = 1.0,
        has_hessian: bool = False,
        rows: str = "",
    ) -> None:
        """Raise FewRowsError where fewer rows make up a message of one of several runs.

        Args:
            sums: the sums over the rows of S clients at the model of each of G runs, (G, S, 3, 2).
            weights: the weights of these clients in the message, (S,).
            has_hessian: whether the message has second derivatives.
            rows: the rows that are meant, if they are not those of the message.
        """
        numbers = effective_numbers(sums, weights)
        counted = numbers if has_hessian or self.by_client else numbers[..., :1]
        least = counted.min(initial=np.inf)
        if least >= self.min_cell:
            return
        advice = ("a model that separates the classes, or small batches, do that: plan a larger strength, fewer "
                  "features or batch_size=null, or leave the site out")  # fmt: skip
        withheld = f"at the model that the server sent, few rows{rows} of this site outweigh all others in '{message}'"
        raise FewRowsError(
            f"{withheld}: they count as {least:.2g} equal rows, and policy.min_cell asks for {self.min_cell}; {advice}",
            f"{withheld}, fewer than policy.min_cell of this site allows; {advice}",
        )
