"""The messages of intervals of the coefficients: sums over all training rows, after the last round."""

from abc import abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import jax
import numpy as np

from fcorun.base.records.record import TRAIN
from fcorun.results.inference.sums import ClusterCounts
from fcorun.sites.plan.messages.message_kind import MEANS, SQUARES, SUMS, MessageKind, Quantity, Stage
from fcorun.sites.plan.planned_study import MAX_DERIVATIVES, PlannedStudy
from fcorun.sites.transport.messages import Message

if TYPE_CHECKING:
    from fcorun.sites.site.interval_sums import IntervalSums
    from fcorun.sites.site.site import Site

Arrays = dict[str, np.ndarray]


class IntervalMessage(MessageKind):
    """A message whose sums give intervals. A site withholds the sums that few rows make up.

    Attributes:
        numbers, times, content: what the plan says of the sums: how many, how often, and what they are.
        most_requests: the largest number of requests in a study.
    """

    stage = Stage.INTERVALS
    may_withhold = True
    hides_infinite = True
    numbers: ClassVar[str]
    times: ClassVar[str] = "once"
    content: ClassVar[str]
    most_requests: ClassVar[int] = 1

    def list_quantities(self, study: PlannedStudy) -> list[Quantity]:
        if study.infer is None:
            return []
        return [self.quantity(self.numbers, self.times, self.content, "inference.csv, intervals of the coefficients")]

    def limits_of_run(self, study: PlannedStudy) -> dict[str, int]:
        return {self.name: self.most_requests}

    def answer(self, site: "Site", request: Message) -> Message:
        with jax.enable_x64(True):
            sums = site.interval_sums
            with np.errstate(over="ignore", invalid="ignore"):  # at a point far away, whose sums are not finite
                return Message(self.name, {}, self.sum_rows(sums, request.arrays))

    @abstractmethod
    def sum_rows(self, sums: "IntervalSums", received: Arrays) -> Arrays:
        """Return the sums of a request. Raises ValueError for arrays that are not those of the request."""


class Moments(IntervalMessage):
    """The moments of the features around a center."""

    name = "moments"
    bound = SQUARES
    most_requests = 2
    numbers = "2 p + 3"
    times = "2 times"
    content = "weighted sums of features and of their squares, around 0 and around the mean, and numbers of rows"

    def sum_rows(self, sums: "IntervalSums", received: Arrays) -> Arrays:
        return sums.moments(sums.read_point(received))


def name_group_counts(value: str) -> list[str]:
    """Return the names of the counts of groups at the "low" or "high" value, in the order of ``ClusterCounts``."""
    return [f"groups_{name}_{value}" for name in ClusterCounts._fields]


class ValueCountsMessage(IntervalMessage):
    """The counts of rows and events by which indicators are known."""

    name = "value_counts"
    bound = SUMS
    numbers = "6 for each feature, 1 for each column, and 2"
    content = ("counts of all rows and events, and of rows where a feature is 0 and where it is 1, or not 0 if it "
               "has other values, and of their "
               "events, each at least min_cell or none but that of all rows, though the difference of such a count and "
               "that of all rows or events may be smaller; whether features have other values, and more than two; "
               "counts of gaps")  # fmt: skip

    def list_quantities(self, study: PlannedStudy) -> list[Quantity]:
        quantities = super().list_quantities(study)
        if study.infer is None or study.infer.cluster != "group":
            return quantities
        groups = ("; counts of groups with such rows, with such events, and with such rows without an event, which are "
                  "sums of the groups with the events alone, with the rows without an event alone, and with both, each "
                  "at least min_cell or none, though the difference to all groups may be smaller")  # fmt: skip
        numbers = "12 for each feature, 1 for each column, and 2"
        return [replace(listed, numbers=numbers, content=listed.content + groups) for listed in quantities]

    def sum_rows(self, sums: "IntervalSums", received: Arrays) -> Arrays:
        if received:
            raise ValueError("arrays of another request")
        return sums.count_values()


class Derivatives(IntervalMessage):
    """The sums of losses, gradients and Hessians on the way to the optimum."""

    name = "derivatives"
    bound = MEANS
    splits_at_model = (TRAIN,)
    most_requests = MAX_DERIVATIVES
    numbers = "1 + p + p (p + 1) / 2, a Hessian of p parameters"
    times = f"at most {MAX_DERIVATIVES} times"
    content = "sums of losses, gradients and Hessians, at models on the way to the optimum and at the estimates"

    def sum_rows(self, sums: "IntervalSums", received: Arrays) -> Arrays:
        return sums.derivatives(sums.read_point(received))


class SquaredScoresMessage(IntervalMessage):
    """The sums of squared scores, for robust standard errors."""

    name = "squared_scores"
    bound = MEANS
    splits_at_model = (TRAIN,)
    numbers = "p (p + 1) / 2 + 1"
    content = "the sum over {units} of the products of their gradients' entries, at the optimum"

    def list_quantities(self, study: PlannedStudy) -> list[Quantity]:
        if study.infer is None or study.infer.errors != "robust":
            return []
        units = "groups" if study.infer.cluster == "group" else "rows"
        return [
            replace(listed, content=listed.content.format(units=units)) for listed in super().list_quantities(study)
        ]

    def sum_rows(self, sums: "IntervalSums", received: Arrays) -> Arrays:
        return sums.squared_scores(sums.read_point(received))
