"""A few rounds with a plug-in: metrics are finite, and a constraint holds."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fcorun.checks.check import Check, require, require_at_most, require_finite
from fcorun.checks.objectives import ObjectiveCase
from fcorun.checks.problems import ragged, small, snapshots


@dataclass(frozen=True)
class RoundsCase:
    """A configuration to run.

    Attributes:
        excuse: why there is none; empty where there is one.
    """

    config: Callable[[Path], dict[str, Any]]
    skip_reason: str = ""


def rounds(case: RoundsCase) -> None:
    """A few rounds end with finite metrics, within the constraint where there is one."""
    with tempfile.TemporaryDirectory() as folder:
        for each in snapshots(case.config(Path(folder))):
            require(
                not np.any(each.diverged), f"a few rounds should not diverge, and do in round {np.max(each.diverged)}"
            )
            for name, value in each.metrics.items():
                require_finite(name, value)
    require_at_most("the distance from the constraint at the end", each.metrics.get("violation", 0.0), 1e-5)


CHECKS: tuple[Check[RoundsCase], ...] = (Check("a few rounds", rounds, lambda case: case.skip_reason),)


def regularizer_rounds(name: str, overrides: tuple[str, ...], takes_vectors: bool) -> RoundsCase:
    """Return rounds with a regularizer."""
    rest = ("algo=fedmid", "algo.client_lr=0.01", "algo.server_lr=0.5", "rounds=2")
    return RoundsCase(lambda _: small(f"reg={name}", *overrides, *rest), "" if takes_vectors else "it takes no vector")


def mirror_map_rounds(name: str, overrides: tuple[str, ...]) -> RoundsCase:
    """Return rounds with a mirror map."""
    rest = ("reg=none", "algo=feddualavg", "algo.client_lr=0.01", "algo.server_lr=1", "rounds=2")
    return RoundsCase(lambda _: small(f"mirror={name}", *overrides, *rest))


def objective_rounds(name: str, overrides: tuple[str, ...], of: ObjectiveCase) -> RoundsCase:
    """Return rounds with an objective, on a table with targets of its task."""
    chosen = (f"objective={name}", *overrides, "reg=none", "algo=fedavg", "algo.client_lr=0.01", "algo.server_lr=1")

    def config(folder: Path) -> dict[str, Any]:
        targets = of.adapt_targets(np.random.default_rng(3).standard_normal(20)) if of.task == "regression" else None
        return ragged(folder, *chosen, "rounds=2", task=of.task, y=targets)

    return RoundsCase(config)


def data_rounds(config: dict[str, Any]) -> RoundsCase:
    """Return rounds on a data set."""
    return RoundsCase(lambda _: config)
