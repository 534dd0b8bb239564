"""Checks of messages: what a kind of message declares, and what a site makes of requests, honest and hostile."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from fcorun.base.errors import UserError
from fcorun.interface.checks.property_check import Violation, find_checks, require, skip_unless
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
    """Require a declaration: a name, a class's description in words, a bound that masks can have."""
    kind = case.kind
    try:
        Message.from_bytes(Message(kind.name).to_bytes(), "the check")
    except UserError as error:
        raise Violation(f"name={kind.name!r} is none of a message: {error}") from error
    require(bool(type(kind).__doc__), f"'{kind.name}' says in no words what it is: give it a docstring")
    if kind.bound is not None:
        check_bounds({kind.name: kind.bound})
    elif kind.may_withhold:
        raise Violation(f"'{kind.name}' may withhold numbers of masked answers, and has no bound for masks")


def check_reasons(case: MessageCase) -> None:
    """Require a reason for each number that leaves: an answer with numbers is listed in the plan, in full sentences."""
    listed = [quantity for quantity in case.plan.quantities if quantity.message == case.kind.name]
    has_numbers = bool(case.answer.arrays or case.answer.about)
    require(bool(listed) or not has_numbers, f"an answer '{case.kind.name}' has numbers, and the plan lists none")
    for quantity in listed:
        values = quantity.to_dict()
        require(all(values.values()), f"the plan says not all of '{quantity.message}': {values}")


def check_keys(case: MessageCase) -> None:
    """Require that a server sends the declared small values of requests, and that others are refused."""
    unknown = sorted(set(case.request.about) - case.kind.keys)
    require(not unknown, f"the server sends {unknown}, which '{case.kind.name}' does not declare")
    answer = _answer_or_refuse(case, replace(case.request, about={**case.request.about, "another_key": 1}))
    require(answer is None, f"a site answers '{case.kind.name}' with another key")


def check_limits(case: MessageCase) -> None:
    """Require a largest number of requests, by which one too many is refused."""
    counts = RequestCounts(case.plan)
    kind = case.kind
    if kind.is_ordered:
        return
    name = kind.count_name(case.request)
    for subset in (None, *(case.plan.select.subsets if case.plan.select else ())):
        limits = kind.limits(case.plan, subset)
        are_numbers = all(type(limit) is int and limit >= 0 for limit in limits.values())
        require(name in limits and are_numbers, f"requests are counted as '{name}', and the limits are {limits}")
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
    skip_unless(not isinstance(case.kind, Keys), "a site draws a number for each run")
    for name, array in case.answer.arrays.items():
        is_number = array.dtype.kind in "fiub"
        require(is_number, f"the array '{name}' of '{case.kind.name}' has the dtype {array.dtype}")
    again = case.repeat(case.request).to_bytes()
    is_same = again == replace(case.answer, envelope=None, site=None).to_bytes()
    require(is_same, f"'{case.kind.name}' has another answer to the same request in the same state")


def _answer_or_refuse(case: MessageCase, request: Message) -> Message | None:
    """Return the answer to a request; None for a refusal. Raises Violation for any other error, and for a long one."""
    try:
        return case.repeat(request)
    except UserError as error:
        sentence = str(error)
        require("\n" not in sentence and "Traceback" not in sentence, f"a refusal is no sentence: {sentence!r}")
        return None
    except Exception as error:
        shapes = {name: array.shape for name, array in request.arrays.items()}
        described = f"the request '{request.name}' with {str(request.about)[:200]} and arrays {shapes}"
        raise Violation(f"{described} ends in {type(error).__name__}: {error}") from error


CHECKS = find_checks(__name__)
