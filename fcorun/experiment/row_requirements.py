"""What data need in memory whose rows stay on disk, or are dealt out to several hosts."""

from fcorun.algorithms.base import Algorithm, Baseline
from fcorun.config import Settings
from fcorun.datasets.base import FederatedData
from fcorun.engine.arrays import uses_decomposed_losses
from fcorun.engine.schedule import Schedule
from fcorun.engine.segments.row_fetching import bytes_per_round
from fcorun.errors import UserError
from fcorun.experiment.experiment import Experiment
from fcorun.problem.problem import Problem
from fcorun.system.hosts import current_hosts
from fcorun.system.machine import format_gib, memory_limit

ROWS_MEMORY_SHARE = 0.5  # of the memory allowed, for the rows of two stretches
_COPIES = 2  # of a client's rows in float64, for bounds on the curvature of its loss


def explain_need_of_all_rows(experiment: Experiment) -> str:
    """What in an experiment takes all rows, wherever they are; empty where nothing does."""
    names, algo = experiment.names, experiment.algo
    needs = {
        f"algo={names['algo']} takes all rows at once": isinstance(algo, Baseline),
        f"algo={names['algo']} has models of the clients' own, which are measured on rows in memory": getattr(
            algo, "has_personal_models", False
        ),
        "reference=true solves the problem on all rows": experiment.settings.reference,
        "reg.relative takes a gradient on all rows (give reg.strength)": experiment.reg.relative_or_none is not None,
    }
    return next((need for need, there in needs.items() if there), "")


def needs_curvature_bounds(experiment: Experiment) -> bool:
    """Whether an algorithm takes bounds on the curvature of all clients' losses."""
    algo = experiment.algo
    if not isinstance(algo, Algorithm):
        return False
    return bool(
        algo.curvature_alternatives or (algo.traits.needs_strong_convexity and experiment.objective.has_curvature_bound)
    )


def choose_shard(experiment: Experiment) -> tuple[int, int]:
    """Which part of the clients' rows this host is to have, and of how many; all, (0, 1), where it computes alone, or
    the run needs them. Raises UserError where that is not what ``hosts.rows`` asks for."""
    hosts = current_hosts()
    if hosts is None or hosts.rows == "all":
        return 0, 1
    needs = explain_need_of_all_rows(experiment)
    if not needs and needs_curvature_bounds(experiment):
        wanted = " and ".join(getattr(experiment.algo, "curvature_alternatives", ()))
        give = f" (give {wanted})" if wanted else ""
        needs = f"algo={experiment.names['algo']} takes bounds on all clients' losses{give}"
    if not needs:
        return hosts.rank, hosts.count
    if hosts.rows == "own":
        raise UserError(
            f"hosts.rows=own leaves each host the rows of its own clients, but {needs}: leave hosts.rows out"
        )
    return 0, 1


def check_rows_on_disk(experiment: Experiment, data: FederatedData, schedule: Schedule, problem: Problem) -> None:
    """Refuse what needs all rows in memory, and rounds whose rows do not fit into it. Raises UserError."""
    names, algo, settings = experiment.names, experiment.algo, experiment.settings
    if needs := explain_need_of_all_rows(experiment):
        raise UserError(f"the rows of data={names['data']} stay on disk, but {needs}: choose another, or give "
                        "data.resident=true where they fit into memory")  # fmt: skip
    assert isinstance(algo, Algorithm)
    allowed, width = memory_limit(settings.memory), data.x.shape[1]
    largest = _COPIES * 8 * int(data.sizes.max()) * width
    if algo.curvature_alternatives and largest > allowed:
        wanted = " and ".join(algo.curvature_alternatives)
        raise UserError(f"auto of algo={names['algo']} takes bounds on each client's loss, for which the largest one "
                        f"needs {format_gib(largest)} of memory: give {wanted}")  # fmt: skip
    if uses_decomposed_losses(algo.traits, schedule, problem, data):
        return
    check_round_memory(data, schedule, settings, full_batch=bool(schedule.full_batch_steps))


def check_round_memory(data: FederatedData, schedule: Schedule, settings: Settings, *, full_batch: bool) -> None:
    """Refuse rounds whose rows do not fit into memory; they are the ``whole`` data of each client of the cohort, or its
    minibatches. Raises UserError."""
    allowed, each = memory_limit(settings.memory), 2 * bytes_per_round(data, schedule, settings.precision, full_batch)
    if each > ROWS_MEMORY_SHARE * allowed:
        lower = "clients_per_round" if full_batch else "batch_size, local_steps, local_epochs or clients_per_round"
        raise UserError(f"the rows of a round, and of the next, take {format_gib(each)}, more than half of the memory, "
                        f"{format_gib(allowed)}: lower {lower}, or raise memory")  # fmt: skip
