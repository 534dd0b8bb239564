"""Secure sums in a plan: the messages whose numbers are masked, and the bound on each site's numbers."""

import math
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from typing import Any

from fcorun.base.errors import UserError, suggest_name
from fcorun.experiment.experiment import PreparedExperiment

FEWEST_SITES = 3  # of two sites, each knows the other's numbers from the sum
MOST_SITES = 1000  # so many numbers at their bounds add up to less than 2^62 steps
STEPS = 2**52  # from 0 to the bound, as many as a number of 64 bits tells apart


def step_of(bound: float) -> float:
    """Return the step of fixed-point numbers up to a bound; the step is a power of two.

    >>> step_of(2.0**16) == 2.0**-36, step_of(65000.0) == 2.0**-36
    (True, True)
    """
    return 2.0 ** math.ceil(math.log2(bound)) / STEPS


def sum_errors(bounds: Mapping[str, float] | None, n_sites: int) -> dict[str, float]:
    """Return the largest error of a number in the sum over ``n_sites`` sites, half a step each, by message."""
    return {name: n_sites * step_of(bound) / 2 for name, bound in (bounds or {}).items()}


def choose_bounds(defaults: Mapping[str, float], chosen: Mapping[str, float]) -> dict[str, float]:
    """Return the bound of each message of a plan that masks hide. Raises UserError for bounds of other messages."""
    for name, bound in chosen.items():
        if name not in defaults:
            raise UserError(f"--bound {name}={bound:g}: the plan masks no message '{name}'; "
                            f"{suggest_name(name, defaults)}")  # fmt: skip
    return {**defaults, **check_bounds(chosen)}


def check_bounds(bounds: Mapping[str, Any]) -> dict[str, float]:
    """Return bounds as floats. Raises UserError for a bound that is no positive number of a moderate size."""
    if not isinstance(bounds, Mapping):
        raise UserError("'secure' lists no bounds")
    for name, bound in bounds.items():
        if isinstance(bound, bool) or not isinstance(bound, int | float) or not 2.0**-50 <= bound <= 2.0**200:
            raise UserError(f"the bound of '{name}' is {bound}: give a number between 1e-15 and 1e60, "
                            f"--bound {name}=1e6")  # fmt: skip
    return {name: float(bound) for name, bound in bounds.items()}


def read_bounds(texts: Iterable[str]) -> dict[str, float]:
    """Return bounds from texts NAME=NUMBER. Raises UserError for anything else, and for a name that is given twice."""
    bounds = {}
    for text in texts:
        name, _, number = text.partition("=")
        if name in bounds:
            raise UserError(f"--bound {text}: the bound of '{name}' is given twice; give it once")
        try:
            bounds[name] = float(number)
        except ValueError as error:
            raise UserError(f"--bound {text} is not NAME=NUMBER: give for example --bound round=1e6") from error
    return bounds


def check_secure(experiment: PreparedExperiment) -> None:
    """Raise UserError without the package cryptography, and for an experiment whose sums cannot be secure."""
    if find_spec("cryptography") is None:
        raise UserError("secure sums need cryptography: pip install 'fcorun[sites]'")
    settings = experiment.settings
    if getattr(experiment.data, "by_site", False):
        raise UserError("--secure: data.by_site=true has results of single sites, which secure sums hide: leave it out")
    if settings.clients_per_round is not None:
        raise UserError(f"--secure: clients_per_round={settings.clients_per_round} asks some of the sites, and the "
                        "difference of two sums is the numbers of a site: plan clients_per_round=null")  # fmt: skip


def describe_bound(bound: float | None) -> str:
    """Return what the server sees of a message: numbers of each site without a bound, otherwise sums."""
    if bound is None:
        return "not masked: the server sees the numbers of each site"
    return (f"masked: the server sees the sum over all sites; numbers of a site up to {bound:.6g} in steps of "
            f"{step_of(bound):.2g}")  # fmt: skip
