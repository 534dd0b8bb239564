"""The contract of a message: what a site may be asked, how often, and what leaves the site in its answer, and why.

All kinds are in the files of this folder.
"""

import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar

from fcorun.sites.plan import messages
from fcorun.sites.plan.planned_study import REFIT, PlannedStudy
from fcorun.sites.plan.secure_sums import describe_bound
from fcorun.sites.transport.messages import Message

if TYPE_CHECKING:
    from fcorun.sites.site.site import Site


MEANS, SUMS, SQUARES = 2.0**16, 2.0**26, 2.0**30  # bounds on the numbers of a site, for masks


class Stage(IntEnum):
    """The stages of a study, in the order in which a plan lists what leaves a site."""

    TABLES = 0  # the agreement on one table
    PATH = 1  # the largest strength of a selection
    FOLDS = 2
    BOUNDS = 3  # on curvatures: from here on to SCORES the messages of a run
    STRENGTH = 4  # the largest strength of one run
    REFERENCE = 5
    ROUNDS = 6
    EVALUATIONS = 7
    GAPS = 8
    SCORES = 9  # of the last model, like all that follow
    INTERVALS = 10
    END = 11


@dataclass(frozen=True)
class Quantity:
    """A kind of number that leaves a site.

    Attributes:
        message: the name of the message.
        numbers: how many numbers, in words or as a formula in d (features) and p (parameters).
        times: how often it is sent.
        content: what the numbers are.
        purpose: why they are needed.
        stage: the stage of the study in which they are sent, which orders a plan.
    """

    message: str
    numbers: str
    times: str
    content: str
    purpose: str
    stage: Stage

    def to_dict(self) -> dict[str, str]:
        """Return what a plan says."""
        names = ("message", "numbers", "times", "content", "purpose")
        return {name: getattr(self, name) for name in names}


class MessageKind(ABC):
    """A kind of message: a request of the server, and the answer of a site, which have the same name.

    Attributes:
        name: the name in messages, plans, logs and names of files, of lower-case letters and underscores.
        stage: the stage of a study in which it is first asked for.
        keys: the small values of a request; other ones are refused.
        bound: the bound on each number of a site's answer where a plan has secure sums; None: no mask hides an answer.
        is_mean: whether the sites' answers add up to a mean, in which each site has a share.
        may_withhold: whether a site may leave out the numbers of a masked answer because few rows make them up.
        hides_infinite: whether numbers that have no mask, because they are not finite, are left out in this way.
        names_subset: whether a request names the subset of a selection that is the next one.
        is_ordered: whether the order of requests limits their number.
        is_kept: whether later requests need the last one, which is then a part of the state of a site.
        splits_at_model: the splits over whose rows an answer has sums at a model of the server's choice, at which the
            site keeps the rule on few rows.
        absence: the sentence on sites without whose answers a run goes on, with the fields {rounds} and {site}; "": the
            server waits for all sites.
    """

    name: ClassVar[str]
    stage: ClassVar[Stage]
    keys: ClassVar[frozenset[str]] = frozenset()
    bound: ClassVar[float | None] = None
    is_mean: ClassVar[bool] = False
    may_withhold: ClassVar[bool] = False
    hides_infinite: ClassVar[bool] = False
    names_subset: ClassVar[bool] = False
    is_ordered: ClassVar[bool] = False
    is_kept: ClassVar[bool] = False
    splits_at_model: ClassVar[tuple[str, ...]] = ()
    absence: ClassVar[str] = ""

    # -- the plan

    def list_quantities(self, study: PlannedStudy) -> list[Quantity]:
        """Return the numbers that leave a site in the answers, in one run of a study, with why they leave."""
        return []

    def is_asked(self, study: PlannedStudy) -> bool:
        """Return whether the server of a study asks for this message."""
        return bool(self.list_quantities(study))

    def describe_in_fits(self, quantity: Quantity, study: PlannedStudy) -> Quantity | None:
        """Return what leaves a site in the fits of a selection, from what leaves in one run; None: nothing does."""
        numbers = f"{study.selection.points} times ({quantity.numbers})"
        return replace(quantity, numbers=numbers, times=f"{quantity.times} in {study.selection.describe_fits()}")

    def quantity(self, numbers: str, times: str, content: str, purpose: str, stage: Stage | None = None) -> Quantity:
        """Return a quantity of this message, which is sent in its first stage or in a later one."""
        return Quantity(
            self.name,
            numbers,
            times,
            content=content,
            purpose=purpose,
            stage=self.stage if stage is None else stage,
        )

    # -- the limits

    @property
    def is_of_run(self) -> bool:
        """Return whether requests are those of a run, and counted anew for each subset of a selection."""
        return Stage.BOUNDS <= self.stage <= Stage.SCORES

    def count_name(self, request: Message) -> str:
        """Return the name by which a request is counted."""
        return self.name

    def limits_of_run(self, study: PlannedStudy) -> dict[str, int]:
        """Return the largest number of requests in a run, by the names by which they are counted."""
        return {self.name: 1}

    def limits(self, study: PlannedStudy, subset: str | None) -> dict[str, int]:
        """Return the largest number of requests, by the names by which they are counted.

        Args:
            study: the study.
            subset: the subset of a selection whose runs the server asks for; None: no subset has begun.
        """
        limits = self.limits_of_run(study)
        if study.select is None or not (self.is_of_run or self.stage is Stage.INTERVALS):
            return limits
        is_early = subset is None or (self.stage >= Stage.SCORES and subset != REFIT)
        return dict.fromkeys(limits, 0) if is_early else limits

    # -- the site

    @abstractmethod
    def answer(self, site: "Site", request: Message) -> Message:
        """Return the answer of a site.

        Raises UserError for what the plan or the policy of the site does not allow. A KeyError, TypeError or ValueError
        says that a request does not fit the plan.
        """

    def resume(self, site: "Site", request: Message) -> None:
        """Repeat what the kept request has a site compute, after a restart of the site."""
        return

    def keeps(self, request: Message) -> bool:
        """Return whether a site keeps a request that it has answered."""
        return self.is_kept


class Notice(MessageKind):
    """A kind of message that has a site begin or end something, and whose answer has no numbers."""

    def is_asked(self, study: PlannedStudy) -> bool:
        return True

    def answer(self, site: "Site", request: Message) -> Message:
        self.resume(site, request)
        return Message(self.name)

    @abstractmethod
    def resume(self, site: "Site", request: Message) -> None:
        """Do what the request tells the site, also after a restart of the site."""


@cache
def list_kinds() -> Mapping[str, MessageKind]:
    """Return all kinds of messages by name, in the order of the stages in which they are first asked for."""
    for module in pkgutil.iter_modules(messages.__path__, f"{messages.__name__}."):
        import_module(module.name)
    kinds = [kind() for kind in _list_classes(MessageKind) if hasattr(kind, "name")]
    return {kind.name: kind for kind in sorted(kinds, key=lambda kind: kind.stage)}


def _list_classes(base: type[MessageKind]) -> Iterator[type[MessageKind]]:
    for kind in base.__subclasses__():
        yield kind
        yield from _list_classes(kind)


def kinds_of(study: PlannedStudy) -> dict[str, MessageKind]:
    """Return the kinds of messages that the server of a study asks for, by name."""
    return {name: kind for name, kind in list_kinds().items() if kind.is_asked(study)}


def default_bounds(study: PlannedStudy) -> dict[str, float]:
    """Return the bound on the numbers of each message of a study that masks would hide."""
    return {name: kind.bound for name, kind in kinds_of(study).items() if kind.bound is not None}


def list_quantities(study: PlannedStudy) -> list[Quantity]:
    """Return everything that leaves a site in a study, in the order of a plan."""
    kinds = list_kinds()
    quantities = []
    for kind in kinds.values():
        quantities += kind.list_quantities(study)
    quantities.sort(key=lambda quantity: quantity.stage)
    if study.select is not None:  # before the fits, in the fits, in the refit, and after it
        before = []
        fits = []
        refit = []
        after = []
        for quantity in quantities:
            kind = kinds[quantity.message]
            if quantity.stage < Stage.BOUNDS:
                before.append(quantity)
            elif quantity.stage > Stage.SCORES:
                after.append(quantity)
            else:
                fits.append(kind.describe_in_fits(quantity, study))
                refit.append(replace(quantity, times=f"{quantity.times} in the refit"))
        sent = [quantity for quantity in (*fits, *refit) if quantity is not None]
        quantities = [*before, *sent, *after]
    if study.secure is None:
        return quantities
    seen = []
    for quantity in quantities:
        bound = describe_bound(study.secure.get(quantity.message))
        seen.append(replace(quantity, content=f"{quantity.content}; {bound}"))
    return seen
