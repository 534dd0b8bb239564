"""Checks of a plug-in: properties, and the sentences on their violations."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import numpy as np

from fcorun.base.errors import describe_error

Subject = TypeVar("Subject")


class Violation(Exception):
    """A violated property, with the expected and the actual value."""


def never_skip(subject: Any) -> str:
    """Return no reason: the property applies to every subject."""
    return ""


def only_if(applies: Callable[[Subject], object], otherwise: str) -> Callable[[Subject], str]:
    """Return the ``skip_reason`` of a check that applies to some subjects; ``otherwise`` says why not to others."""

    def reason(subject: Subject) -> str:
        if applies(subject):
            return ""
        return otherwise

    return reason


@dataclass(frozen=True)
class Check(Generic[Subject]):
    """A property that each plug-in of a kind must have.

    Attributes:
        name: the property in a few words.
        run: a function that tests the property on a subject, and returns a remark for the user or None. Raises
            Violation, or any exception of the plug-in.
        skip_reason: a function that returns why the property does not apply to a subject, or an empty text if it
            applies.
    """

    name: str
    run: Callable[[Subject], str | None]
    skip_reason: Callable[[Subject], str] = never_skip


@dataclass(frozen=True)
class CheckResult:
    """The result of a check on one subject.

    Attributes:
        name: the name of the check.
        status: whether the property holds; "not applicable" to the subject.
        message: the violation, the reason why the check does not apply, or a remark on a property that holds.
    """

    name: str
    status: Literal["passed", "failed", "not applicable"]
    message: str = ""


def run_checks(checks: Sequence[Check[Subject]], subject: Subject) -> Iterator[CheckResult]:
    """Yield the result of each check on a subject, one after the other."""
    for check in checks:
        try:
            if reason := check.skip_reason(subject):
                yield CheckResult(check.name, "not applicable", reason)
                continue
            remark = check.run(subject)
        except Violation as violation:
            yield CheckResult(check.name, "failed", str(violation))
        except Exception as error:
            yield CheckResult(check.name, "failed", describe_error(error))
        else:
            yield CheckResult(check.name, "passed", remark or "")


def require(holds: bool, message: str) -> None:
    """Raise Violation with the message unless the property holds."""
    if not holds:
        raise Violation(message)


def require_close(name: str, actual: Any, expected: Any, rtol: float = 0.0, atol: float = 0.0) -> None:
    """Raise Violation for arrays that differ by more than the tolerance ``atol + rtol |expected|``.

    The message has the entry that exceeds its tolerance by most.
    """
    actual, expected = np.asarray(actual), np.asarray(expected)
    require(actual.shape == expected.shape, f"{name} should have the shape {expected.shape} and has {actual.shape}")
    with np.errstate(invalid="ignore"):
        excess = np.abs(actual.astype(float) - expected) - atol - rtol * np.abs(expected)
    _report_largest_excess(name, "should be", np.where(actual == expected, 0.0, excess), actual, expected)


def require_at_least(name: str, actual: Any, least: Any, slack: Any = 0.0) -> None:
    """Raise Violation for an entry below ``least`` by more than ``slack``, at the entry farthest below."""
    actual, least = np.broadcast_arrays(np.asarray(actual, float), np.asarray(least, float))
    _report_largest_excess(name, "should be at least", _difference(least, actual) - slack, actual, least)


def require_at_most(name: str, actual: Any, most: Any, slack: Any = 0.0) -> None:
    """Raise Violation for an entry above ``most`` by more than ``slack``, at the entry farthest above."""
    actual, most = np.broadcast_arrays(np.asarray(actual, float), np.asarray(most, float))
    _report_largest_excess(name, "should be at most", _difference(actual, most) - slack, actual, most)


def _difference(upper: np.ndarray, lower: np.ndarray) -> np.ndarray:
    """Return ``upper - lower``, and 0 for equal infinities."""
    with np.errstate(invalid="ignore"):
        return np.where(upper == lower, 0.0, upper - lower)


def require_finite(name: str, actual: Any) -> None:
    """Raise Violation for an entry that is NaN or infinite."""
    entries = np.argwhere(~np.isfinite(np.asarray(actual, float)))
    if len(entries):
        raise Violation(f"{name} should be finite and is {np.asarray(actual)[tuple(entries[0])]}")


def _report_largest_excess(
    name: str, relation: str, excess: np.ndarray, actual: np.ndarray, expected: np.ndarray
) -> None:
    """Raise Violation with the entry of the largest excess, if any excess is above 0 or NaN."""
    excess = np.where(np.isnan(excess), np.inf, excess)
    if not excess.size or excess.max() <= 0:
        return
    index = np.unravel_index(excess.argmax(), excess.shape)
    entry = f" at entry {', '.join(str(int(i)) for i in index)}" if index else ""
    values = float(expected[index]), float(actual[index])
    wanted, found = (f"{value:.12g}" for value in values)
    if wanted == found:  # they differ in later digits
        wanted, found = (f"{value:.17g}" for value in values)
    raise Violation(f"{name} {relation} {wanted} and is {found}{entry}")
