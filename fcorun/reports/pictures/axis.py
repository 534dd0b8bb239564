"""What curves are drawn against, and in which unit."""

from collections.abc import Sequence
from typing import get_args

from fcorun.config import Axis
from fcorun.errors import UserError

_WORDS = {
    "rounds": "communication round",
    "iterations": "iteration",  # a baseline has no rounds
    "bytes": "communication, up and down ({}B)",
    "grad_evals": "gradient evaluations ({}examples)",
    "seconds": "time (s)",
}
_THOUSANDS = {"bytes": ("", "k", "M", "G", "T"), "grad_evals": ("", "10$^3$ ", "10$^6$ ", "10$^9$ ", "10$^{12}$ ")}


def along(rows: Sequence[dict[str, float]], x: str, run: str) -> list[float]:
    """Where the evaluations of a run lie on the axis ``x``; bytes are those of all directions and levels.

    Raises UserError, which calls the run ``run``, when it did not count that.
    """
    if x == "bytes":
        return [sum(value for name, value in row.items() if "bytes_" in name) for row in rows]
    column = "round" if x in ("rounds", "iterations") else x
    if rows and column not in rows[0]:
        others = ", ".join(name for name in get_args(Axis) if name != x)
        raise UserError(f"x={x} was not counted in {run}; choose x as one of {others}, or run it again with force=true")
    return [row[column] for row in rows]


def unit(x: str, most: float) -> tuple[float, str]:
    """What values up to ``most`` are divided by so that ticks read well, and the label of the axis then."""
    prefixes = _THOUSANDS.get(x, ("",))
    power = max(i for i in range(len(prefixes)) if i == 0 or most >= 1000**i)
    return 1000.0**power, _WORDS[x].format(prefixes[power])
