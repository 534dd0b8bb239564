"""Checks of messages: what a kind of message declares, and what a site makes of requests, honest and hostile."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fcorun.base.errors import UserError
from fcorun.interface.checks.property_check import Check, Violation
from fcorun.sites.plan.messages.message_kind import MessageKind, Stage
from fcorun.sites.plan.messages.table_messages import Keys
from fcorun.sites.plan.plan import Plan
from fcorun.sites.plan.secure_sums import check_bounds
from fcorun.sites.site.request_checks import RequestCounts
from fcorun.sites.transport.messages import Message

_HOSTILE = (None, -1, 10**30, "x" * 2000, [], {}, [[]], True, 1e308)


@dataclass(frozen=True)
class MessageCase:
    """A kind of message in an honest study.

    Attributes:
        kind: the kind.
        plan: the plan of a study that asks for it.
        request: a request of the study.
        answer: the answer of a site to the request, before masks.
        repeat: returns the answer of that site, in the state before the request, to another request.
    """

    kind: MessageKind
    plan: Plan
    request: Message
    answer: Message
    repeat: Callable[[Message], Message]


def check_declaration(case: MessageCase) -> None:
    """Require a name, a meaning and a class's description in words, and a bound that masks can have."""
    kind = case.kind
    try:
        Message(kind.name).deliver("the check")
    except UserError as error:
        raise Violation(f"name={kind.name!r} is none of a message: {error}") from error
    if not kind.meaning or not type(kind).__doc__:
        raise Violation(f"'{kind.name}' says in no words what it is: give it a meaning and a docstring")
    if kind.bound is not None:
        check_bounds({kind.name: kind.bound})
    if kind.may_withhold and kind.bound is None:
        raise Violation(f"'{kind.name}' may withhold numbers of masked answers, and has no bound for masks")


def check_reasons(case: MessageCase) -> None:
    """Require a reason for each number that leaves: an answer with numbers is listed in the plan, in full sentences."""
    listed = [quantity for quantity in case.plan.quantities if quantity.message == case.kind.name]
    if (case.answer.arrays or case.answer.about) and not listed:
        raise Violation(f"an answer '{case.kind.name}' has numbers, and the plan lists none")
    for quantity in listed:
        if not all(quantity.to_dict().values()):
            raise Violation(f"the plan says not all of '{quantity.message}': {quantity.to_dict()}")


def check_keys(case: MessageCase) -> None:
    """Require that a server sends the declared small values of requests, and that others are refused."""
    unknown = set(case.request.about) - case.kind.keys
    if unknown:
        raise Violation(f"the server sends {sorted(unknown)}, which '{case.kind.name}' does not declare")
    _check_refused(case, replace(case.request, about={**case.request.about, "another_key": 1}), "another key")


def check_limits(case: MessageCase) -> None:
    """Require a largest number of requests, by which one too many is refused."""
    counts, kind = RequestCounts(case.plan), case.kind
    if kind.is_ordered:
        return
    name = kind.count_name(case.request)
    for subset in (None, *(case.plan.select.subsets if case.plan.select else ())):
        limits = kind.limits(case.plan, subset)
        if name not in limits or not all(type(limit) is int and limit >= 0 for limit in limits.values()):
            raise Violation(f"requests are counted as '{name}', and the limits are {limits}")
    if kind.names_subset or (case.plan.select is not None and kind.stage >= Stage.BOUNDS):
        return  # counted anew for each subset
    for _ in range(kind.limits(case.plan, None)[name]):
        counts.count(case.request)
    try:
        counts.count(case.request)
    except UserError:
        return
    raise Violation(f"'{name}' is answered more often than its limit says")


def check_hostile_values(case: MessageCase) -> None:
    """Require an answer in order, or a refusal in one sentence, for junk in each small value of a request."""
    for key in sorted(case.request.about):
        for junk in _HOSTILE:
            _answer_or_refuse(case, replace(case.request, about={**case.request.about, key: junk}))


def check_hostile_arrays(case: MessageCase) -> None:
    """Require a refusal in one sentence of arrays that are missing, of another shape, or not finite."""
    for name, values in case.request.arrays.items():
        others = {key: array for key, array in case.request.arrays.items() if key != name}
        _answer_or_refuse(case, replace(case.request, arrays=others))
        for forged in (values[..., None], np.zeros(0), np.full(values.shape, np.nan)):
            _answer_or_refuse(case, replace(case.request, arrays={**others, name: forged}))


def check_same_answer(case: MessageCase) -> None:
    """Require an answer of numbers, without texts, that is the same for the same request."""
    for name, array in case.answer.arrays.items():
        if array.dtype.kind not in "fiub":
            raise Violation(f"the array '{name}' of '{case.kind.name}' has the dtype {array.dtype}")
    again = case.repeat(case.request)
    if again.to_bytes() != replace(case.answer, envelope=None, site=None).to_bytes():
        raise Violation(f"'{case.kind.name}' has another answer to the same request in the same state")


def _draws_numbers(case: MessageCase) -> str:
    """Return why an answer is another one each time."""
    return "a site draws a number for each run" if isinstance(case.kind, Keys) else ""


def _answer_or_refuse(case: MessageCase, request: Message) -> Message | None:
    """Return the answer to a request; None for a refusal. Raises Violation for any other error, and for a long one."""
    try:
        return case.repeat(request)
    except UserError as error:
        sentence = str(error)
        if "\n" in sentence or "Traceback" in sentence:
            raise Violation(f"a refusal is no sentence: {sentence!r}") from error
        return None
    except Exception as error:
        raise Violation(f"{_describe(request)} ends in {type(error).__name__}: {error}") from error


def _check_refused(case: MessageCase, request: Message, what: str) -> None:
    if _answer_or_refuse(case, request) is not None:
        raise Violation(f"a site answers '{case.kind.name}' with {what}")


def _describe(request: Message) -> str:
    shapes: dict[str, Any] = {name: array.shape for name, array in request.arrays.items()}
    return f"the request '{request.name}' with {str(request.about)[:200]} and arrays {shapes}"


MESSAGE_CHECKS: list[Check[MessageCase]] = [
    Check("declaration", check_declaration),
    Check("reasons", check_reasons),
    Check("keys", check_keys),
    Check("limits", check_limits),
    Check("hostile values", check_hostile_values),
    Check("hostile arrays", check_hostile_arrays),
    Check("the same answer, of numbers", check_same_answer, _draws_numbers),
]
