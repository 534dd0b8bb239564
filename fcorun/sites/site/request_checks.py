"""Checks of a server's requests against the plan and the site's own table, before anything is computed.

What a request says of the site's own clients must be what the site described, numbers of a run must be those of the
plan, and no message is asked for more often than the plan says. Without these checks a server could have a sum over
all rows computed as a sum over one.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fcorun.base.errors import UserError
from fcorun.sites.plan.messages.fold_messages import Subset
from fcorun.sites.plan.messages.run_messages import RoundMessage
from fcorun.sites.plan.plan import Plan
from fcorun.sites.site.few_rows import MAX_WITHHELD, refuse
from fcorun.sites.tables.table_description import Description
from fcorun.sites.transport.messages import Message

_MAX_CLIENT_ROWS, _MAX_ROWS = 10**7, 10**9  # a site has memory for as many draws as the largest client has rows


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

    def limits(self) -> dict[str, int]:
        """Return the largest number of requests of each message that are counted.

        In a selection, those of runs are the limits of the present subset.
        """
        limits = {}
        for kind in self.plan.kinds.values():
            limits |= kind.limits(self.plan, self.subset)
        return limits

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
            named, subsets = request.about.get("subset"), [*self.plan.selection.subsets, "none"]
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

    def count_withheld(self) -> None:
        """Count an answer that withholds an upload. Raises FewRowsError if that was too often in the present runs."""
        key = f"withheld of {self.subset}"
        self.counts[key] += 1
        if self.counts[key] > MAX_WITHHELD:
            raise refuse(RoundMessage.name)


def check_clients(request: Message, description: Description) -> list[str]:
    """Return the names of all clients, those with training rows first.

    Raises UserError unless the request says of the site's own clients what the site has described.
    """
    names, n_clients = request.about["all_clients"], request.about["n_clients"]
    rows, weights = request.arrays["all_rows"], request.arrays["all_weights"]
    shape = (len(names), description.n_rows.shape[1])
    if not all(isinstance(name, str) for name in names) or type(n_clients) is not int:
        raise ValueError("names of clients are no texts")
    if rows.shape != shape or weights.shape != shape or rows.dtype.kind not in "iu" or (rows < 0).any():
        raise ValueError("the clients' rows have another shape")
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise ValueError("weights are no weights")
    if rows.max(initial=0) > _MAX_CLIENT_ROWS or rows.sum() > _MAX_ROWS:
        raise UserError(f"the server names clients of too many rows: sites compute with at most {_MAX_CLIENT_ROWS} "
                        f"of a client, and {_MAX_ROWS} in all: divide large tables into several clients")  # fmt: skip
    client_numbers = [names.index(name) for name in description.clients]
    trains = rows[:, 0] > 0
    is_ordered = trains[:n_clients].all() and not trains[n_clients:].any()
    same_rows = np.array_equal(rows[client_numbers], description.n_rows)
    same_weights = np.allclose(weights[client_numbers], description.weights, rtol=1e-12, atol=0)
    if len(set(names)) != len(names) or not is_ordered or not same_rows or not same_weights:
        raise UserError("the server says of this site's clients other numbers of rows than the site described: begin "
                        "the run anew")  # fmt: skip
    return list(names)


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
        leaf, runs = arrays[name], evaluated[str(number)]
        rounding = 1e3 * np.finfo(runs.dtype).eps * np.abs(runs).max(initial=0)
        is_of_run.append([np.abs(leaf - of_run).max(initial=0) <= rounding for of_run in runs])
    if not np.all(is_of_run, axis=0).any():
        raise UserError("the server came with another model than the one it had evaluated last")
