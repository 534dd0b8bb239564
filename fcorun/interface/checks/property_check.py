"""Checks of a plug-in: properties, and the sentences on their violations.

A check is a function ``check_...`` of a subject. The first line of its docstring says the property.
"""

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
import numpy as np

from fcorun.base.errors import UserError, describe_error
from fcorun.base.records.record import Record

# Tests a property of a subject, and returns a remark for the user or None. Raises Violation, NotApplicable, or any
# exception of the plug-in.
Check = Callable[[Any], str | None]
Checked = Iterator[tuple[str, Iterable[Check], Any]]  # titles, each with the checks below it and their subject


class Violation(Exception):
    """A violated property, with the expected and the actual value."""


class NotApplicable(Exception):
    """A property that a subject need not have, with the reason."""


@dataclass(frozen=True)
class CheckResult:
    """The result of a check on one subject.

    Attributes:
        name: the property.
        status: whether the property holds; "not applicable" to the subject.
        message: the violation, the reason why the check does not apply, or a remark on a property that holds.
    """

    name: str
    status: Literal["passed", "failed", "not applicable"]
    message: str = ""


def find_checks(module: str) -> tuple[Check, ...]:
    """Return the checks of a module in their order, found by their names as pytest finds tests."""
    members = vars(sys.modules[module]).items()
    return tuple(value for name, value in members if name.startswith("check_") and value.__module__ == module)


def run_checks(checks: Iterable[Check], subject: Any) -> Iterator[CheckResult]:
    """Yield the result of each check on a subject, one after the other."""
    for check in checks:
        first_line = str(check.__doc__).partition("\n")[0]
        name = re.sub("^Require (that )?", "", first_line.replace("``", "")).removesuffix(".")
        name = name.replace(", and that ", ", and ")
        try:
            yield CheckResult(name, "passed", check(subject) or "")
        except NotApplicable as reason:
            yield CheckResult(name, "not applicable", str(reason))
        except Violation as violation:
            yield CheckResult(name, "failed", str(violation))
        except Exception as error:
            yield CheckResult(name, "failed", describe_error(error))


def skip_unless(applies: object, reason: str) -> None:
    """Raise NotApplicable with the reason unless a property applies to the subject."""
    if not applies:
        raise NotApplicable(reason)


def require(holds: object, message: str) -> None:
    """Raise Violation with the message unless the property holds."""
    if not holds:
        raise Violation(message)


def require_seed_draws(plugin: Any, what: str, draw: Callable[[Any], Any]) -> None:
    """Raise Violation unless another ``seed`` of a plug-in draws other arrays. Raises NotApplicable without a seed.

    ``draw`` returns a pytree of arrays; each of three seeds may draw the same ones by chance.
    """
    skip_unless(hasattr(plugin, "seed"), "it has no seed")
    drawn = draw(plugin)
    for seed in range(plugin.seed + 1, plugin.seed + 4):
        try:
            other = draw(replace(plugin, seed=seed))
        except UserError as refusal:
            raise NotApplicable(str(refusal)) from None
        same_structure = jax.tree.structure(drawn) == jax.tree.structure(other)
        if not (same_structure and jax.tree.all(jax.tree.map(np.array_equal, drawn, other))):
            return
    require(False, f"another seed should draw other {what}, and draws the same, so that runs of several seeds would "
            "count one draw several times: draw from self.seed, or leave the field seed out")  # fmt: skip


def require_close(name: str, actual: Any, expected: Any, rtol: float = 0.0, atol: float = 0.0) -> None:
    """Raise Violation for arrays that differ by more than the tolerance ``atol + rtol |expected|``.

    The message has the entry that exceeds its tolerance by most.
    """
    actual = np.asarray(actual)
    expected = np.asarray(expected)
    require(actual.shape == expected.shape, f"{name} should have the shape {expected.shape} and has {actual.shape}")
    is_equal = (actual == expected) | (np.isnan(actual.astype(float)) & np.isnan(expected.astype(float)))
    with np.errstate(invalid="ignore"):
        excess = np.abs(actual.astype(float) - expected) - atol - rtol * np.abs(expected)
    _report_largest_excess(name, "should be", np.where(is_equal, 0.0, excess), actual, expected)


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


def require_same_records(name: str, actual: Record, expected: Record) -> None:
    """Raise Violation for two records with different numbers."""
    for record in (actual, expected):
        status = record.status
        require(status["status"] == "done", f"{name} should be done and is {status['status']}: {status['reason']}")
    for row, expected_row in zip(actual.rows, expected.rows, strict=True):
        for metric, value in expected_row.items():
            is_unknown_at_start = expected_row["round"] == 0 and np.isnan(value) and np.isnan(row[metric])
            if metric != "seconds" and not is_unknown_at_start:
                require_finite(f"{metric} after round {expected_row['round']}", value)
                require_close(f"{metric} of {name}, after round {expected_row['round']},", row[metric], value)
    parameters = actual.solution | actual.personal
    for parameter, value in (expected.solution | expected.personal).items():
        same = np.array_equal(parameters[parameter], value)
        require(same, f"'{parameter}' of {name} should be the same to the last bit and differs")
