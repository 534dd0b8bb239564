"""The shelf of messages: all kinds in the files of this folder, those of a study, and what leaves a site in them."""

import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from importlib import import_module

from fcorun.sites.plan import messages
from fcorun.sites.plan.messages.message_kind import MessageKind, Quantity, Stage
from fcorun.sites.plan.planned_study import PlannedStudy
from fcorun.sites.plan.secure_sums import describe_bound


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
        before, fits, refit, after = [], [], [], []
        for quantity in quantities:
            kind = kinds[quantity.message]
            if quantity.stage < Stage.BOUNDS:
                before.append(quantity)
            elif quantity.stage > Stage.SCORES:
                after.append(quantity)
            else:
                fits.append(kind.describe_in_fits(quantity, study))
                refit.append(kind.describe_in_refit(quantity, study))
        sent = [quantity for quantity in (*fits, *refit) if quantity is not None]
        quantities = [*before, *sent, *after]
    if study.secure is None:
        return quantities
    seen = []
    for quantity in quantities:
        bound = describe_bound(study.secure.get(quantity.message))
        seen.append(replace(quantity, content=f"{quantity.content}; {bound}"))
    return seen
