"""A check of a plug-in: a law that it is to obey, and the sentence on where it does not."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import numpy as np

from fcorun.errors import describe_error

Subject = TypeVar("Subject")


class Violation(Exception):
    """A law that does not hold: what was expected, and what came."""


def never_skip(subject: Any) -> str:
    """Say that a law holds for every subject."""
    return ""


@dataclass(frozen=True)
class Check(Generic[Subject]):
    """A law of a kind of plug-in.

    Attributes:
        name: the law in a few words.
        run: tries the law on a subject, and returns what a user should know although it holds, or None. Raises
            Violation, or whatever the plug-in raises.
        excuse: says why the law does not apply to a subject; empty where it does.
    """

    name: str
    run: Callable[[Subject], str | None]
    skip_reason: Callable[[Subject], str] = never_skip


@dataclass(frozen=True)
class CheckResult:
    """The end of a check on one subject: ``sentence`` says what is wrong, why the check does not apply, or what a user
    should know of a law that holds."""

    name: str
    status: Literal["passed", "failed", "not applicable"]
    message: str = ""


def run_checks(checks: Sequence[Check[Subject]], subject: Subject) -> Iterator[CheckResult]:
    """Yield the outcome of each check on a subject, one after the other."""
    for check in checks:
        try:
            if excuse := check.skip_reason(subject):
                yield CheckResult(check.name, "not applicable", excuse)
                continue
            remark = check.run(subject)
        except Violation as violation:
            yield CheckResult(check.name, "failed", str(violation))
        except Exception as error:
            yield CheckResult(check.name, "failed", describe_error(error))
        else:
            yield CheckResult(check.name, "passed", remark or "")


def require(holds: bool, sentence: str) -> None:
    """Raise Violation with the sentence unless the law holds."""
    if not holds:
        raise Violation(sentence)


def require_close(what: str, found: Any, expected: Any, rtol: float = 0.0, atol: float = 0.0) -> None:
    """Raise Violation where arrays differ by more than ``atol + rtol |expected|``, at the entry that differs most."""
    found, expected = np.asarray(found), np.asarray(expected)
    require(found.shape == expected.shape, f"{what} should have the shape {expected.shape} and has {found.shape}")
    with np.errstate(invalid="ignore"):
        apart = np.abs(found.astype(float) - expected) - atol - rtol * np.abs(expected)
    _point_at(what, "should be", np.where(found == expected, 0.0, apart), found, expected)


def require_at_least(what: str, found: Any, least: Any, slack: Any = 0.0) -> None:
    """Raise Violation where an entry is below ``least`` by more than ``slack``, at the entry that is most below."""
    found, least = np.broadcast_arrays(np.asarray(found, float), np.asarray(least, float))
    _point_at(what, "should be at least", _excess(least, found) - slack, found, least)


def require_at_most(what: str, found: Any, most: Any, slack: Any = 0.0) -> None:
    """Raise Violation where an entry is above ``most`` by more than ``slack``, at the entry that is most above."""
    found, most = np.broadcast_arrays(np.asarray(found, float), np.asarray(most, float))
    _point_at(what, "should be at most", _excess(found, most) - slack, found, most)


def _excess(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return np.where(above == below, 0.0, above - below)


def require_finite(what: str, found: Any) -> None:
    """Raise Violation where an entry is NaN or infinite."""
    bad = np.argwhere(~np.isfinite(np.asarray(found, float)))
    require(not len(bad), f"{what} should be finite and is {np.asarray(found)[tuple(bad[0])] if len(bad) else ''}")


def _point_at(what: str, law: str, excess: np.ndarray, found: np.ndarray, expected: np.ndarray) -> None:
    """Raise Violation that names the entry with the largest excess, if any is above 0 or NaN."""
    excess = np.where(np.isnan(excess), np.inf, excess)
    if not excess.size or excess.max() <= 0:
        return
    place = np.unravel_index(excess.argmax(), excess.shape)
    at = f" at entry {', '.join(map(str, map(int, place)))}" if place else ""
    raise Violation(f"{what} {law} {expected[place]:.8g} and is {found[place]:.8g}{at}")
