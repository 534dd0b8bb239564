"""A few rounds with a plug-in, with finite metrics and satisfied constraints."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fcorun.data.tasks import Task
from fcorun.interface.checks.objectives import ObjectiveCase
from fcorun.interface.checks.problems import ragged, small, snapshots
from fcorun.interface.checks.property_check import Check, require, require_at_most, require_finite


@dataclass(frozen=True)
class RoundsCase:
    """A configuration to run.

    Attributes:
        config: a function that returns the configuration, with its files in a folder.
        skip_reason: why the plug-in cannot run; empty if it can.
    """

    config: Callable[[Path], dict[str, Any]]
    skip_reason: str = ""


def check_rounds(case: RoundsCase) -> None:
    """Require that a few rounds end with finite metrics, and within the constraint, if any."""
    with tempfile.TemporaryDirectory() as folder:
        for snapshot in snapshots(case.config(Path(folder))):
            require(
                not np.any(snapshot.diverged),
                f"a few rounds should not diverge, and do in round {np.max(snapshot.diverged)}",
            )
            for name, value in snapshot.metrics.items():
                require_finite(name, value)
    require_at_most("the distance from the constraint at the end", snapshot.metrics.get("violation", 0.0), 1e-5)


CHECKS: tuple[Check[RoundsCase], ...] = (Check("a few rounds", check_rounds, lambda case: case.skip_reason),)


def regularizer_rounds(name: str, overrides: tuple[str, ...], takes_vectors: bool) -> RoundsCase:
    """Return the case of rounds with a regularizer."""
    fixed = ("algo=fedmid", "algo.client_lr=0.01", "algo.server_lr=0.5", "rounds=2")
    return RoundsCase(lambda _: small(f"reg={name}", *overrides, *fixed), "" if takes_vectors else "it takes no vector")


def mirror_map_rounds(name: str, overrides: tuple[str, ...]) -> RoundsCase:
    """Return the case of rounds with a mirror map."""
    fixed = ("reg=none", "algo=feddualavg", "algo.client_lr=0.01", "algo.server_lr=1", "rounds=2")
    return RoundsCase(lambda _: small(f"mirror={name}", *overrides, *fixed))


def objective_rounds(name: str, overrides: tuple[str, ...], case: ObjectiveCase) -> RoundsCase:
    """Return the case of rounds with an objective, on a table with targets of its task."""
    overrides = (f"objective={name}", *overrides, "reg=none", "algo=fedavg", "algo.client_lr=0.01", "algo.server_lr=1")

    def config(folder: Path) -> dict[str, Any]:
        targets = None
        if not case.task.has_classes:
            targets = case.adapt_targets(np.random.default_rng(3).standard_normal(20))
        return ragged(folder, *overrides, "rounds=2", task=case.task.name, y=targets)

    return RoundsCase(config)


def task_rounds(task: Task) -> RoundsCase:
    """Return the case of rounds on a table with targets of a task, with the objective that the table chooses for it."""
    fixed = ("reg=none", "algo=fedavg", "algo.client_lr=0.01", "algo.server_lr=1", "rounds=2")
    return RoundsCase(lambda folder: ragged(folder, *fixed, task=task.name))


def data_rounds(config: dict[str, Any]) -> RoundsCase:
    """Return the case of rounds on a data set."""
    return RoundsCase(lambda _: config)
