"""On how many devices jobs are computed: GPUs, or the cores of a CPU."""

from collections.abc import Iterable

import jax
import numpy as np

from fcorun.algorithms.base import Algorithm
from fcorun.algorithms.local_data import size_of
from fcorun.config import AUTO
from fcorun.engine.engine import Engine
from fcorun.errors import UserError
from fcorun.experiment.experiment import Experiment
from fcorun.system.machine import cores_as_devices

ALL = "all"
_WORTH = 2**22  # bytes that a core is to read in a round: with less, measured, the cores' meeting at its end costs more


def check_devices(experiments: Iterable[Experiment]) -> None:
    """Refuse more devices than there are. Raises UserError."""
    for experiment in experiments:
        asked = experiment.settings.devices
        if asked in (AUTO, ALL, 1) or not isinstance(experiment.algo, Algorithm):
            continue
        cores_as_devices()
        there, of = jax.local_device_count(), "cores of a CPU" if jax.default_backend() == "cpu" else "GPUs"
        if int(asked) > there:
            raise UserError(
                f"devices={asked} is more than there are, {there} ({of}): give at most that, or devices=all"
            )


def chosen(asked: int | str, engine: Engine, runs: int) -> int:
    """How many devices compute so many runs, as ``asked`` for.

    Of "auto": on GPUs all for several runs, and one for one run. On a CPU, whose cores several runs share by threads,
    as many for one run as have enough to do in a round.
    """
    if asked == ALL:
        cores_as_devices()
        return jax.local_device_count()
    if asked != AUTO:
        return int(asked)
    if jax.default_backend() != "cpu":
        return jax.local_device_count() if runs > 1 else 1
    return 1 if runs > 1 else min(jax.local_device_count(), max(1, read_in_a_round(engine) // _WORTH))


def read_in_a_round(engine: Engine) -> int:
    """The bytes of what the clients of a round take their gradients on, step by step."""
    federation, schedule = engine.federation, engine.federation.schedule
    whole = federation.arrays[0].quadratics
    if whole is None:
        each = schedule.batch * federation.data.x[0].size * np.dtype(federation.precision).itemsize
    else:
        each = size_of(whole) // len(schedule.sizes)
    return schedule.cohort_size * int(schedule.steps.max()) * each * (schedule.edge_rounds or 1)
