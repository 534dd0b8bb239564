"""A second number that is chosen together with the strength, such as the ``l1_ratio`` of the elastic net."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fcorun.base.config import GRID_SECTIONS, check_value, type_hints
from fcorun.base.errors import UserError
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.methods.algorithms.algorithm import Baseline

_OF_THE_PATH = ("strength", "radius", "relative")
_BEYOND = 1e-6  # the relative distance of a value that is asked for beyond the least or the largest one


@dataclass(frozen=True)
class SecondNumber:
    """A number of a plug-in, and its value in each of P runs.

    Attributes:
        section, name: the section of the configuration and the field, "reg" and "l1_ratio".
        values: the value in each run, (P,).
        limits: the least and the largest value that the field may have, each if it is among the values; else -inf and
            inf.
    """

    section: str
    name: str
    values: np.ndarray
    limits: tuple[float, float]

    @property
    def key(self) -> str:
        """The key of the configuration, "reg.l1_ratio"."""
        return f"{self.section}.{self.name}"

    def apply(self, experiment: PreparedExperiment, index: int) -> PreparedExperiment:
        """Return the experiment with the value of the run ``index``."""
        plugin = replace(getattr(experiment, self.section), **{self.name: float(self.values[index])})
        return experiment.with_resolved(**{self.section: plugin})


def read_second_number(experiment: PreparedExperiment, given: Mapping[str, Sequence[float]]) -> SecondNumber:
    """Return the number that {KEY: [VALUE, ...]} names, with its values in ascending order.

    Raises:
        UserError: several keys, fewer than two values, or a field in which the runs of one program cannot differ.
    """
    if len(given) != 1:
        raise UserError(
            f"{' and '.join(given)} have several values, and one number is chosen together with the strength: give "
            "one value of the others"
        )
    ((key, values),) = given.items()
    section, _, name = key.partition(".")
    if not _can_vary(experiment, section, name):
        raise UserError(
            f"{key} has several values, and is no real number that can be chosen together with the strength: "
            f"{_describe_numbers(experiment)}; give one value, and another selection for each other value"
        )
    plugin = getattr(experiment, section)
    if section == "reg" and name in _OF_THE_PATH:
        raise UserError(
            f"{key} has several values, and fcorun select computes the strengths or radii of the path itself: give "
            "range=[LOW,HIGH]"
        )
    numbers = sorted({float(check_value(value, type_hints(type(plugin))[name], key)) for value in values})
    if len(numbers) < 2 or len(numbers) < len(values):
        raise UserError(f"{key}={list(values)}: give two or more different values")
    return SecondNumber(section, name, np.array(numbers), _find_limits(plugin, name, numbers))


def _can_vary(experiment: PreparedExperiment, section: str, name: str) -> bool:
    """Return whether the field is a real number of a section in GRID_SECTIONS; with a baseline, of ``reg`` alone."""
    if section not in GRID_SECTIONS or (section != "reg" and isinstance(experiment.algo, Baseline)):
        return False
    hints = type_hints(type(getattr(experiment, section)))
    try:
        return name in hints and isinstance(check_value(0.5, hints[name], name), float)
    except UserError:
        return False


def _find_limits(plugin: Any, name: str, numbers: Sequence[float]) -> tuple[float, float]:
    """Return the least and the largest of ascending numbers of a field; -inf or inf where the field may have others.

    The plug-in is asked for a value just beyond, so that its own conditions count as well as the marks of the field.
    """

    def is_accepted(value: float) -> bool:
        try:
            replace(plugin, **{name: check_value(value, type_hints(type(plugin))[name], name)})
        except (UserError, ValueError, ArithmeticError, AssertionError):
            return False
        return True

    least, largest = numbers[0], numbers[-1]
    below, above = (value + sign * _BEYOND * (abs(value) or 1) for sign, value in ((-1, least), (1, largest)))
    return (-np.inf if is_accepted(below) else least, np.inf if is_accepted(above) else largest)


def _describe_numbers(experiment: PreparedExperiment) -> str:
    """Return a sentence with the keys of the numbers that can be chosen."""
    keys = []
    for section, numbers in experiment.numbers().items():
        for name in numbers:
            if _can_vary(experiment, section, name) and name not in _OF_THE_PATH:
                keys.append(f"{section}.{name}")
    return f"possible keys are {', '.join(keys)}" if keys else "this configuration has no such number"
