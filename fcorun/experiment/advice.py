"""What may help a run that has ended above the optimum."""

import numpy as np

from fcorun.algorithms.base import Algorithm
from fcorun.datasets.base import FederatedData
from fcorun.engine.schedule import Schedule
from fcorun.experiment.build import build_schedule
from fcorun.experiment.experiment import Experiment
from fcorun.regularizers.none import NoRegularizer

_UNLIKE = 3  # times the size of another feature: units that make ways long
_MORE = "more rounds may help"


def advise(experiment: Experiment, data: FederatedData, falling: bool) -> str:
    """What keeps such a run from the optimum, and what would not; ``falling``: its objective was still."""
    schedule = build_schedule(experiment, data)
    uneven, units = _uneven(experiment, schedule), _units(experiment, data)
    more = _MORE if falling and uneven and not units else ""
    return ", and ".join(filter(None, (uneven, units, more))) or _end(experiment, schedule, falling)


def _uneven(experiment: Experiment, schedule: Schedule) -> str:
    """Clients with more steps weigh more: objective inconsistency, Wang et al. (FedNova, NeurIPS 2020)."""
    traits = experiment.algo.traits
    if not schedule.uneven_steps or traits.deterministic or traits.robust_to_uneven_steps:
        return ""
    steps = int(np.median(schedule.steps))
    return ("clients take unequal numbers of steps, which moves the end: "
            f"give local_epochs=null local_steps={steps}")  # fmt: skip


def _units(experiment: Experiment, data: FederatedData) -> str:
    if getattr(experiment.data, "standardize", "") != "none":
        return ""
    sizes = np.append(np.sqrt(np.mean(np.square(data.x, dtype=np.float64), axis=0)), 1.0)
    if sizes.max() <= _UNLIKE * sizes[sizes > 0].min():
        return ""
    if _plain(experiment) and not experiment.objective.ridge:
        return f"data.standardize=pooled makes steps longer, and {_MORE}"
    return f"data.standardize=pooled makes another problem with shorter ways, and {_MORE}"


def _plain(experiment: Experiment) -> bool:
    return isinstance(experiment.reg, NoRegularizer)


def _end(experiment: Experiment, schedule: Schedule, falling: bool) -> str:
    """Where it goes in the end."""
    algo, name = experiment.algo, experiment.names["algo"]
    assert isinstance(algo, Algorithm)
    full = schedule.full_batch_steps is not None or algo.traits.deterministic
    everyone = schedule.cohort_size == len(schedule.sizes) and schedule.edge_rounds is None
    exact = _covers(experiment, algo.traits.exact)
    single = schedule.full_batch_steps == 1 and everyone and _covers(experiment, algo.traits.exact_with_one_step)
    if algo.traits.decays_to_zero and not _plain(experiment):
        return f"{name} goes to 0 when it runs for long"
    if falling or single or (exact and full):
        return _MORE
    others = _others(experiment, schedule, everyone)
    there = f", and {' or '.join(others)} at the optimum" if others else ""
    own = "with minibatches it ends" if exact else f"{name} ends"
    return f"{own} at a point of its own{there}"


def _covers(experiment: Experiment, which: str) -> bool:
    """Whether a trait that says for "smooth" or "composite" problems says so for this one."""
    whole = experiment.reg.applied_by == "both" or len(experiment.algo.traits.psi_sides) == 1
    return (which == "composite" and whole) or (which != "" and _plain(experiment))


def _others(experiment: Experiment, schedule: Schedule, everyone: bool) -> list[str]:
    """Methods that would end at the optimum of this problem, with these cohorts and minibatches."""
    if schedule.edge_rounds is not None:
        return []
    if _plain(experiment):
        return ["scaffold", "feddr"] if schedule.full_batch_steps else ["feddr"]
    fits = {
        "fedcomposite": everyone and bool(schedule.full_batch_steps) and experiment.reg.applied_by == "both",
        "feddr": experiment.reg.applied_by != "client",
    }
    return [name for name, fit in fits.items() if fit and name != experiment.names["algo"]]
