"""Checks of experiments whose rows stay on disk, are sharded over several hosts, or are generated."""

from fcorun.base.config import Settings
from fcorun.base.errors import UserError
from fcorun.base.system.machine import current_hosts, format_gib, memory_limit
from fcorun.data.datasets.dataset import FederatedData
from fcorun.engine.device_rows import uses_decomposed_losses
from fcorun.engine.schedule import Schedule
from fcorun.engine.segments.row_fetching import bytes_per_round
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.methods.algorithms.algorithm import Algorithm, Baseline
from fcorun.methods.problem.problem import Problem

ROWS_MEMORY_SHARE = 0.5  # the share of the allowed memory for the rows of two segments of rounds
_CURVATURE_COPIES = 2  # copies of a client's rows in float64 that bounds on the curvature of its loss need


def explain_need_of_all_rows(experiment: PreparedExperiment) -> str:
    """Return a clause on the part of an experiment that needs all rows in memory; empty if none does."""
    name, algo = experiment.names["algo"], experiment.algo
    if isinstance(algo, Baseline):
        return f"`algo={name}` takes all rows at once"
    if algo.has_personal_models:
        return f"`algo={name}` has personal models, which are measured on rows in memory"
    if experiment.objective.has_client_losses:
        return f"`objective={experiment.names['objective']}` compares all rows of a client"
    if experiment.topology.has_nodes:
        return f"`topology={experiment.names['topology']}` measures the model of each client on all rows"
    if experiment.settings.reference:
        return "`reference=true` solves the problem on all rows"
    if experiment.settings.gap:
        return "`gap=true` takes sums over all rows, several times"
    if experiment.settings.imputations:
        return "imputations draws the missing values of all rows"
    if experiment.settings.relax is not None:
        return "relax fits the selected features on all rows"
    if experiment.reg.relative_or_none is not None:
        return "`reg.relative` takes a gradient on all rows (give `reg.strength`)"
    return ""


def choose_shard(experiment: PreparedExperiment) -> tuple[int, int]:
    """Return which shard of the clients' rows this host loads, and the number of shards.

    The only shard, (0, 1), is for a host that computes alone, and for runs that need all rows. Raises UserError if
    ``hosts.rows=own`` asks for shards that the run cannot do with.
    """
    hosts = current_hosts()
    if hosts is None or hosts.rows == "all":
        return 0, 1
    reason = explain_need_of_all_rows(experiment)
    if not reason and experiment.needs_curvature_bounds:
        alternatives = " and ".join(getattr(experiment.algo, "curvature_alternatives", ()))
        advice = f" (give {alternatives})" if alternatives else ""
        reason = f"`algo={experiment.names['algo']}` takes bounds on all clients' losses{advice}"
    if not reason:
        return hosts.rank, hosts.count
    if hosts.rows == "own":
        raise UserError(
            f"`hosts.rows=own` gives each host only the rows of its own clients, but {reason}: leave hosts.rows out"
        )
    return 0, 1


def check_rows_on_disk(
    experiment: PreparedExperiment, data: FederatedData, schedule: Schedule, problem: Problem
) -> None:
    """Refuse what needs all rows in memory, and rounds whose rows do not fit into memory. Raises UserError."""
    names, algo, settings = experiment.names, experiment.algo, experiment.settings
    reason = explain_need_of_all_rows(experiment)
    if reason:
        raise UserError(f"the rows of `data={names['data']}` stay on disk, but {reason}: choose another, or give "
                        "`data.resident=true` where they fit into memory")  # fmt: skip
    assert isinstance(algo, Algorithm)
    largest_client_bytes = _CURVATURE_COPIES * 8 * int(data.train.sizes.max()) * data.train.x.shape[1]
    if algo.curvature_alternatives and largest_client_bytes > memory_limit(settings.memory):
        alternatives = " and ".join(algo.curvature_alternatives)
        raise UserError(f"auto of `algo={names['algo']}` takes bounds on each client's loss, for which the largest one "
                        f"needs {format_gib(largest_client_bytes)} of memory: give {alternatives}")  # fmt: skip
    if uses_decomposed_losses(algo.traits, schedule, problem, data):
        return
    check_round_memory(data, schedule, settings, full_batch=bool(schedule.full_batch_steps))


def check_round_memory(data: FederatedData, schedule: Schedule, settings: Settings, *, full_batch: bool) -> None:
    """Refuse rounds whose rows do not fit into memory. Raises UserError.

    Args:
        full_batch: whether a round reads all rows of the cohort's clients, or their minibatches.
    """
    allowed = memory_limit(settings.memory)
    two_rounds = 2 * bytes_per_round(data, schedule, settings.precision, full_batch)
    if two_rounds > ROWS_MEMORY_SHARE * allowed:
        keys = "clients_per_round" if full_batch else "batch_size, local_steps, local_epochs or clients_per_round"
        raise UserError(f"the rows of a round, and of the next, take {format_gib(two_rounds)}, more than half of the "
                        f"memory, {format_gib(allowed)}: lower {keys}, or raise memory")  # fmt: skip


def check_generated_clients(experiment: PreparedExperiment, n_clients: int) -> None:
    """Refuse what needs all rows, or numbers for each client, where rows are generated and not stored.

    Raises UserError.
    """
    names, algo = experiment.names, experiment.algo
    alternatives = " and ".join(getattr(algo, "curvature_alternatives", []))
    obstacles = {
        f"`algo={names['algo']}` takes the rows of all clients": isinstance(algo, Baseline),
        f"auto of `algo={names['algo']}` takes bounds on all clients' losses (give {alternatives})": bool(alternatives),
        "`reference=true` solves the problem on all rows": experiment.settings.reference,
        "`gap=true` takes sums over all rows": experiment.settings.gap,
        f"`topology={names['topology']}` links each client": experiment.topology.connects_clients,
        "`reg.per_client` gives each client numbers": bool(experiment.reg.per_client),
    }
    for obstacle, applies in obstacles.items():
        if applies:
            raise UserError(f"`data={names['data']}` makes the rows of {n_clients:,} clients when a round needs them "
                            f"and stores none, but {obstacle}; choose a smaller data set")  # fmt: skip
