"""Checks of a server's requests before an answer leaves: against the plan, and for few rows.

No message is asked for more often than the plan says, and models are those of its runs. Few rows of a site must not
outweigh all others in what the site sends. ``tables.table_agreement`` has the checks against the site's own table.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fcorun.base.errors import UserError
from fcorun.base.records.record import TRAIN
from fcorun.engine.remote.programs import ShareSums, effective_numbers
from fcorun.sites.plan.messages.fold_messages import Subset
from fcorun.sites.plan.messages.run_messages import RoundMessage
from fcorun.sites.plan.plan import Plan
from fcorun.sites.transport.messages import Message

MAX_WITHHELD = 50  # rounds of a run, or of the runs on a subset, in which a site withholds its upload
_ROWS = {TRAIN: "training", "val": "validation", "validation": "validation", "test": "test"}  # of splits, in words


class FewRowsError(UserError):
    """A refusal of sums that tell of few rows."""


@dataclass(frozen=True)
class FewRowsRule:
    """The least effective number of rows in a sum at a model: each row counts with its weight times a derivative.

    Second derivatives count in gradients, too, since those of two rounds differ by them.

    Attributes:
        min_cell: the least number; sums in which no row counts at all are no secret.
        has_curvature: whether each loss has a positive second derivative, and not in a band alone.
        by_client: whether the rule holds for the rows of each client, too, where answers tell clients apart: those of
            another client, whose part is known, would hide that few rows outweigh the others.
        bound: the least number in words, by the option of the policy from which it follows.
    """

    min_cell: int
    has_curvature: bool = True
    by_client: bool = False
    bound: str = "policy.min_cell"

    @property
    def of_losses(self) -> "FewRowsRule":
        """The rule for sums of losses and scores alone: half as many rows, and no second derivatives.

        Such a sum has no features, by which a gradient is the direction of a row. A dozen held-out rows of an honest
        study outweigh each other where a method goes too far.
        """
        least = (self.min_cell + 1) // 2
        return replace(self, min_cell=least, has_curvature=False, bound="half of policy.min_cell")

    def find(self, sums: ShareSums, weights: np.ndarray | float = 1.0) -> np.ndarray:
        """Return in which of G runs few rows outweigh all others, (G,).

        Args:
            sums: the sums over the rows of S clients at the model of each run, (G, S, 3, 2).
            weights: the weights of these clients in the message, (S,).
        """
        is_few = self._is_few(effective_numbers(sums, weights))
        if self.by_client:
            of_each = np.asarray(sums)[..., None, :, :]
            is_few = is_few | self._is_few(effective_numbers(of_each)).any(axis=-1)
        return is_few

    def _is_few(self, numbers: np.ndarray) -> np.ndarray:
        """Return which effective numbers of rows (..., 2) are below the least one."""
        counted = numbers if self.has_curvature else numbers[..., :1]
        return counted.min(axis=-1) < self.min_cell

    def check(self, message: str, sums: ShareSums, weights: np.ndarray | float = 1.0, *, split: str = TRAIN) -> None:
        """Raise FewRowsError where few rows of a site outweigh all others at a model of one of G runs.

        The rows are those of a split. The other arguments are those of ``find``.
        """
        if self.find(sums, weights).any():
            raise self.refuse(message, split)

    def refuse(self, message: str, split: str = TRAIN) -> FewRowsError:
        """Return the refusal of a message at a model at which few rows of a split outweigh all others."""
        rows = _ROWS[split]
        if split == TRAIN:
            cause = "a model that separates the classes, an extreme value, or small batches do that"
            cure = "plan a larger strength, fewer features or batch_size=null"
        else:
            cause = "a model that separates the classes, an extreme value, or few held-out rows do that"
            cure = f"hold out more rows or none (data.{rows}=0), plan a larger strength or fewer features"
        return FewRowsError(f"at the model that the server sent, few {rows} rows of this site outweigh all others in "
                            f"'{message}', like fewer than {self.min_cell} equal rows, {self.bound} of this site: "
                            f"{cause}: {cure}, or leave the site out")  # fmt: skip


@dataclass
class RequestCounts:
    """The numbers of requests of one run that a site has answered, by message, and in a selection by subset.

    Attributes:
        plan: the plan, which limits them.
    """

    plan: Plan
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def subset(self) -> str | None:
        """The subset of a selection whose runs the server asks for; None before the first one, and without any."""
        if self.plan.select is None or not self.counts[Subset.name]:
            return None
        return self.plan.select.subsets[self.counts[Subset.name] - 1]

    def count(self, request: Message) -> None:
        """Count a request. Raises UserError if the plan does not have so many, or has subsets in another order."""
        kind = self.plan.kinds.get(request.name)
        if kind is None:
            raise UserError(f"the server asked for '{request.name}', which the plan does not list")
        if kind.is_ordered:
            return
        key = name = kind.count_name(request)
        limit = kind.limits(self.plan, self.subset)[name]
        if kind.names_subset:
            named = request.about.get("subset")
            subsets = [*self.plan.selection.subsets, "none"]
            next_subset = subsets[self.counts[Subset.name]]
            if named != next_subset or next_subset == "none":
                raise UserError(f"the server asked for the subset '{str(named)[:50]}', and the next one of this site "
                                f"is '{next_subset}': each is asked for once, in the order of the plan")  # fmt: skip
            if request.name != Subset.name:
                key = f"{name} of {next_subset}"
        elif self.subset is not None and kind.is_of_run:
            key = f"{name} of {self.subset}"
        if self.counts[key] >= limit:
            raise UserError(f"the server asked for '{name}' more often than the plan says, {limit} times in a run")
        self.counts[key] += 1

    def count_withheld(self, rule: FewRowsRule) -> None:
        """Count an answer that withholds an upload, by a rule on few rows.

        Raises FewRowsError if that was too often in the present runs.
        """
        key = f"withheld of {self.subset}"
        self.counts[key] += 1
        if self.counts[key] > MAX_WITHHELD:
            raise rule.refuse(RoundMessage.name)


def check_model(arrays: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise ValueError unless arrays are the parameters of a model of these shapes."""
    if set(arrays) != set(shapes):
        raise ValueError("other parameters")
    for name, shape in shapes.items():
        array: Any = arrays[name]
        if array.shape != shape or array.dtype.kind != "f" or not np.isfinite(array).all():
            raise ValueError(f"parameter '{name}' has another shape")


def check_last_model(arrays: Mapping[str, np.ndarray], evaluated: Mapping[str, np.ndarray]) -> None:
    """Raise UserError unless arrays are the model of a run of the last request "evaluate", but for rounding."""
    is_of_run = []
    for number, name in enumerate(sorted(arrays)):
        leaf = arrays[name]
        runs = evaluated[str(number)]
        rounding = 1e3 * np.finfo(runs.dtype).eps * np.abs(runs).max(initial=0)
        is_of_run.append([np.abs(leaf - of_run).max(initial=0) <= rounding for of_run in runs])
    if not np.all(is_of_run, axis=0).any():
        raise UserError("the server came with another model than the one it had evaluated last")
