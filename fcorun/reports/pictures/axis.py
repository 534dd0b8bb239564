"""The axes of curves: their values, their units and their scales."""

import math
from collections.abc import Sequence
from typing import Any, get_args

from fcorun.config import CurveAxis
from fcorun.errors import UserError

_LABELS = {
    "rounds": "communication round",
    "iterations": "iteration",  # of a baseline, which has no rounds
    "bytes": "communication, up and down ({}B)",
    "grad_evals": "gradient evaluations ({}examples)",
    "seconds": "time (s)",
}
_INTEGER_AXES = ("rounds", "iterations")
_PREFIXES = {"bytes": ("", "k", "M", "G", "T"), "grad_evals": ("", "10$^3$ ", "10$^6$ ", "10$^9$ ", "10$^{12}$ ")}


def x_values(rows: Sequence[dict[str, float]], x: str, run: str) -> list[float]:
    """Return the positions of a run's evaluations on the axis ``x``. Bytes are the sum over directions and levels.

    Raises UserError, which names the run ``run``, if the run did not count ``x``.
    """
    if x == "bytes":
        return [sum(value for name, value in row.items() if "bytes_" in name) for row in rows]
    column = "round" if x in ("rounds", "iterations") else x
    if rows and column not in rows[0]:
        others = ", ".join(name for name in get_args(CurveAxis) if name != x)
        raise UserError(f"x={x} was not counted in {run}; choose x as one of {others}, or run it again with force=true")
    return [row[column] for row in rows]


def choose_unit(x: str, largest: float) -> tuple[float, str]:
    """Return the factor to divide values up to ``largest`` by for short tick labels, and the label of the axis."""
    prefixes = _PREFIXES.get(x, ("",))
    power = max(i for i in range(len(prefixes)) if i == 0 or largest >= 1000**i)
    return 1000.0**power, _LABELS[x].format(prefixes[power])


def set_x_ticks(ax: Any, x: str) -> None:
    """Set ticks of an x axis that fit side by side, whole numbers for rounds."""
    from matplotlib.ticker import MaxNLocator

    ax.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10], integer=x in _INTEGER_AXES, min_n_ticks=1))


def set_y_scale(ax: Any, values: Sequence[float], bounded: bool = False) -> None:
    """Set a logarithmic y axis with few, plain ticks if positive values span enough, else a linear one.

    The axis of a ``bounded`` metric is linear, from 0 to 1.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    positive = [value for value in values if 0 < value < math.inf]
    if bounded or not positive or max(positive) < 4 * min(positive):
        ax.set_yscale("linear")
        if bounded:
            ax.set_ylim(-0.03, 1.03)
        return
    largest = max(positive)
    smallest = max(min(positive), 2e-10 * largest)  # ten decades below, values are rounding that would flatten the rest
    # set before the scale: matplotlib's own limits overflow for huge values
    ax.set_ylim(0.5 * smallest, largest * (largest / smallest) ** 0.05)
    ax.set_yscale("log", nonpositive="mask")
    ax.yaxis.set_major_locator(LogLocator(subs=(1,) if largest > 300 * smallest else (1, 2, 5), numticks=8))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _format_tick(value)))


def _format_tick(value: float) -> str:
    """Return a number as a tick label, very large and small ones as powers of ten."""
    digits, e, exponent = f"{value:g}".partition("e")
    if not e:
        return digits
    factor = "" if digits == "1" else f"{digits}\\cdot"
    return f"${factor}10^{{{int(exponent)}}}$"
