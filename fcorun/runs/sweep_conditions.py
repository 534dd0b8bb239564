"""Conditions of a sweep: keys that say what the world is, among whose values no point is chosen."""

from collections.abc import Mapping, Sequence
from typing import Any

from fcorun.base.errors import UserError
from fcorun.reports.run_table import SEED_KEYS


def check_conditions(conditions: Sequence[str], jobs: Sequence[Mapping[str, Any]]) -> None:
    """Raise UserError for a condition that does not vary among the jobs, is a seed, or is chosen within conditions.

    All keys of the algorithm are chosen: methods have rows of their own, and each has the best of its own numbers.

    Args:
        conditions: keys such as data.noise, the option ``hydra.sweeper.conditions``.
        jobs: the values of the keys of each run, or of those that are given.
    """
    for key in conditions:
        if key in SEED_KEYS:
            raise UserError(f"`hydra.sweeper.conditions`: `{key}` makes replicates, over which averages are: leave it "
                            "out")  # fmt: skip
        if str(key).split(".")[0] == "algo":
            raise UserError(f"`hydra.sweeper.conditions`: `{key}` is chosen within each condition, as all keys of the "
                            "algorithm are, and algorithms have rows of their own: leave it out")  # fmt: skip
        if len({str(job[key]) for job in jobs if key in job}) < 2:
            others = ",".join(str(other) for other in conditions if other != key)
            raise UserError(f"`hydra.sweeper.conditions`: `{key}` is no axis of the sweep: give it several values, or "
                            f"leave it out: `hydra.sweeper.conditions=[{others}]`")  # fmt: skip
