"""What curves are drawn against, in which unit, and how an axis of values is scaled."""

import math
from collections.abc import Sequence
from typing import Any, get_args

from fcorun.config import CurveAxis
from fcorun.errors import UserError

_WORDS = {
    "rounds": "communication round",
    "iterations": "iteration",  # a baseline has no rounds
    "bytes": "communication, up and down ({}B)",
    "grad_evals": "gradient evaluations ({}examples)",
    "seconds": "time (s)",
}
_WHOLE = ("rounds", "iterations")
_THOUSANDS = {"bytes": ("", "k", "M", "G", "T"), "grad_evals": ("", "10$^3$ ", "10$^6$ ", "10$^9$ ", "10$^{12}$ ")}


def x_values(rows: Sequence[dict[str, float]], x: str, run: str) -> list[float]:
    """Where the evaluations of a run lie on the axis ``x``; bytes are those of all directions and levels.

    Raises UserError, which calls the run ``run``, when it did not count that.
    """
    if x == "bytes":
        return [sum(value for name, value in row.items() if "bytes_" in name) for row in rows]
    column = "round" if x in ("rounds", "iterations") else x
    if rows and column not in rows[0]:
        others = ", ".join(name for name in get_args(CurveAxis) if name != x)
        raise UserError(f"x={x} was not counted in {run}; choose x as one of {others}, or run it again with force=true")
    return [row[column] for row in rows]


def choose_unit(x: str, most: float) -> tuple[float, str]:
    """What values up to ``most`` are divided by so that ticks read well, and the label of the axis then."""
    prefixes = _THOUSANDS.get(x, ("",))
    power = max(i for i in range(len(prefixes)) if i == 0 or most >= 1000**i)
    return 1000.0**power, _WORDS[x].format(prefixes[power])


def set_x_ticks(ax: Any, x: str) -> None:
    """Ticks of an x axis that fit side by side; of rounds, whole numbers."""
    from matplotlib.ticker import MaxNLocator

    ax.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10], integer=x in _WHOLE, min_n_ticks=1))


def set_y_scale(ax: Any, values: Sequence[float], bounded: bool = False) -> None:
    """A logarithmic y axis with few, plain ticks where positive values span enough; else a linear one, which for a
    ``share`` goes from 0 to 1."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    positive = [value for value in values if 0 < value < math.inf]  # a gap may have come down to nothing
    if bounded or not positive or max(positive) < 4 * min(positive):
        ax.set_yscale("linear")
        if bounded:
            ax.set_ylim(-0.03, 1.03)
        return
    most = max(positive)
    least = max(min(positive), 2e-10 * most)  # ten decades below there is rounding only, which would flatten the rest
    ax.set_ylim(0.5 * least, most * (most / least) ** 0.05)  # first: matplotlib's own would overflow for huge values
    ax.set_yscale("log", nonpositive="mask")
    ax.yaxis.set_major_locator(LogLocator(subs=(1,) if most > 300 * least else (1, 2, 5), numticks=8))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _power(value)))


def _power(value: float) -> str:
    """A number as a tick says it: a very large or small one as a power of ten."""
    digits, e, exponent = f"{value:g}".partition("e")
    times = "" if digits == "1" else f"{digits}\\cdot"
    return f"${times}10^{{{int(exponent)}}}$" if e else digits
