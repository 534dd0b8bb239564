"""Rounding of bounds that leave a site, so that they stay bounds."""

import math

_DIGITS = 2


def round_up(value: float, digits: int = _DIGITS) -> float:
    """Return the least number of so many significant digits that is not below a positive ``value``.

    >>> round_up(1.234), round_up(120.0)
    (1.3, 120.0)
    """
    if not (math.isfinite(value) and value > 0):
        return value
    unit = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    rounded = float(f"{math.ceil(value / unit) * unit:.{digits}g}")
    return rounded if rounded >= value else float(f"{(math.ceil(value / unit) + 1) * unit:.{digits}g}")


def round_down(value: float, digits: int = _DIGITS) -> float:
    """Return the largest number of so many significant digits that is not above a positive ``value``."""
    return 1 / round_up(1 / value, digits) if value > 0 else value
