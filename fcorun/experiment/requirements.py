"""Checks that the parts of an experiment fit each other, and that its data have what the algorithm needs."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fcorun.base.cohorts import fixed_cohort_size, read_participation
from fcorun.base.config import Settings, is_of_fcorun
from fcorun.base.errors import UserError, abbreviate, word
from fcorun.base.system.machine import current_hosts, format_gib, memory_limit
from fcorun.data.datasets.dataset import FederatedData
from fcorun.engine.device_rows import uses_decomposed_losses
from fcorun.engine.schedule import Schedule
from fcorun.engine.segments.row_fetching import bytes_per_round
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.methods.algorithms.algorithm import Algorithm, Baseline
from fcorun.methods.clocks.clock import NoClock
from fcorun.methods.communication.aggregation import WeightedMean
from fcorun.methods.communication.asynchronous import Asynchronous
from fcorun.methods.communication.contracts import Links, Star, counts_uploads
from fcorun.methods.objectives.cox import Cox
from fcorun.methods.objectives.objective import LinearModel, Objective
from fcorun.methods.problem.penalized_quadratic import MAX_PARAMETERS
from fcorun.methods.problem.problem import Problem
from fcorun.methods.regularizers.regularizer import Constraint, NoRegularizer, Regularizer

ROWS_MEMORY_SHARE = 0.5  # the share of the allowed memory for the rows of two segments of rounds
_CURVATURE_COPIES = 2  # copies of a client's rows in float64 that bounds on the curvature of its loss need

# Checks that an algorithm and psi fit: methods of the regularizer, a bounded domain, a prox that is computed.


def check_required_psi(plugins: dict[str, Any], names: dict[str, str]) -> None:
    """Refuse a regularizer without a method that the algorithm calls, or with an unbounded domain. Raises UserError."""
    algo, reg = plugins["algo"], plugins["reg"]
    for piece in algo.traits.needs:
        if not hasattr(reg, piece):
            raise UserError(
                f"`algo={names['algo']}` needs the {piece} of the regularizer, which `reg={names['reg']}` does "
                "not have; choose another `algo` or another `reg`"
            )
    if not algo.needs_bounded_domain:
        return
    objective, regularized = plugins["objective"], reg.apply_to
    if regularized is None:
        regularized = objective.regularized
    free = [name for name in objective.shapes((1,), 2) if name not in regularized]
    without = ""
    if free == ["bias"] and hasattr(objective, "intercept"):
        without = "`objective.intercept=false`, or "
    if free:
        raise UserError(f"`algo={names['algo']}` moves within a bounded set, and `reg={names['reg']}` leaves "
                        f"{' and '.join(free)} free: give {without}`reg.apply_to` with all parameters")  # fmt: skip


def warn_wrong_psi_sides(experiment: PreparedExperiment, row: Mapping[str, float]) -> str:
    """Return a warning if an algorithm of the user's computed a prox although its traits say none, or the other way.

    ``row`` is the last one of metrics.csv. An algorithm that needs another method of the regularizer may compute none.
    """
    algo, name, psi = experiment.algo, experiment.names["algo"], f"`reg={experiment.names['reg']}`"
    if is_of_fcorun(algo) or isinstance(experiment.reg, NoRegularizer) or row["round"] == 0:
        return ""
    n_proxes = row.get("prox_evals")
    if n_proxes and not experiment.applies_regularizer:
        return word(f"{name} computed proxes of {psi}, although its traits say that it ignores psi, so that a sweep "
                    "runs it once for all strengths: name the sides that call problem.prox, as in traits = "
                    "Traits(psi_sides=('server',))")  # fmt: skip
    if n_proxes == 0 and experiment.applies_regularizer and not algo.traits.needs:
        return word(f"{name} computed no prox of {psi}: problem.prox(w, step) applies psi, and traits = "
                    "Traits(psi_sides=()) says that an algorithm ignores it")  # fmt: skip
    return ""


# Losses that compare all rows of a client, such as those at the best intercept of the client.


def check_client_intercepts(plugins: dict[str, Any], names: dict[str, str]) -> None:
    """Refuse intercepts of clients where each client's loss has no single best one. Raises UserError."""
    objective, algo = plugins["objective"], plugins["algo"]
    if not objective.client_intercepts:
        return
    option = "`objective.client_intercepts=true`"
    if not objective.takes_client_intercepts:
        raise UserError(f"{option} is for `objective=least_squares, logistic, poisson and gamma`, and not for "
                        f"`objective={names['objective']}`: leave it out")  # fmt: skip
    if not objective.intercept:
        raise UserError(f"{option} gives each client an intercept, and `objective.intercept=false` none: leave one of "
                        "them out")  # fmt: skip
    from fcorun.data.datasets.sites import Sites

    data = plugins["data"]
    if isinstance(data, Sites) and (isinstance(data.validation, list) or isinstance(data.test, list)):
        raise UserError(f"{option} predicts rows of clients without training rows by the mean of all intercepts, which "
                        "nobody knows, since a site sends none: give `data.validation` and `data.test` as shares of "
                        "the rows, or `objective.client_intercepts=false`")  # fmt: skip
    if algo.traits.local_fits:
        raise UserError(f"`algo={names['algo']}` fits each client alone, with an intercept of its own: leave "
                        "`objective.client_intercepts` out, or choose another `algo`, such as newton")  # fmt: skip
    if algo.has_personal_models or algo.picks_client or not algo.trains_shared_model:
        raise UserError(f"{option} is for one model with intercepts of clients, and `algo={names['algo']}` trains "
                        "others: choose another `algo`, such as newton")  # fmt: skip


def check_schedule(experiment: PreparedExperiment, schedule: Schedule) -> None:
    """Refuse unequal weights of clients where the algorithm needs equal ones, and minibatches of some losses.

    These losses compare all rows of a client. Raises UserError.
    """
    weights = schedule.averaging_weights
    if experiment.algo.needs_equal_weights and (weights != weights[0]).any():
        raise UserError(f"`algo={experiment.names['algo']}` needs clients of equal weight in F, and they have unequal "
                        "numbers or weights of rows: give `client_weighting=uniform`")  # fmt: skip
    if experiment.privacy.acts and experiment.algo.traits.public_uploads and schedule.uneven_steps:
        raise UserError(f"with `privacy={experiment.names['privacy']}` clients of `algo={experiment.names['algo']}` "
                        "tell their numbers of local steps, which follow from their rows: give the same to all, "
                        "`local_steps=10` or `batch_size=null`, and leave `clock.deadline` out")  # fmt: skip
    if experiment.privacy.hides_rows and not experiment.privacy.noises_steps and schedule.steps.max() > 1:
        raise UserError("`privacy.unit=row` at a trusted server takes one local step, since a second one depends on "
                        "all rows of the first: give `privacy=gaussian privacy.noise_by=clients`, or `local_steps=1`, "
                        "or `batch_size=null` and `local_epochs=1`")  # fmt: skip
    if experiment.privacy.hides_rows and schedule.client_weights is not None:
        raise UserError("`privacy.unit=row` counts all rows of a client alike, and these have weights: leave "
                        "`data.weight` out, or give `privacy.unit=client`")  # fmt: skip
    if not experiment.objective.has_client_losses or isinstance(experiment.algo, Baseline):
        return
    if schedule.full_batch_steps is None:
        raise UserError(f"{describe_client_losses(experiment)}, which a minibatch does not have: give "
                        f"`batch_size=null` instead of {experiment.settings.batch_size}")  # fmt: skip


def describe_client_losses(experiment: PreparedExperiment) -> str:
    """Return a clause on losses that compare all rows of a client."""
    if experiment.objective.client_intercepts:
        return "`objective.client_intercepts=true` takes all rows of a client"
    return f"`objective={experiment.names['objective']}` compares all rows of a client"


# What a graph of nodes refuses.


def check_nodes(experiment: PreparedExperiment, data: FederatedData) -> None:
    """Refuse cohorts of nodes, and several hosts. Raises UserError."""
    names = experiment.names
    cohort_size = fixed_cohort_size(experiment.settings.clients_per_round, data.n_clients)
    if cohort_size is not None and cohort_size < data.n_clients:
        raise UserError(
            f"`topology={names['topology']}` has no server that draws cohorts: give `clients_per_round=null`"
        )
    if current_hosts() is not None:
        raise UserError(f"`topology={names['topology']}` runs on one host: leave hosts.* out")


# Cohorts that the data, the algorithm, or the rule that combines uploads refuses.


def check_cohorts(
    experiment: PreparedExperiment, data: FederatedData, schedule: Schedule, connect: Callable[[], Links]
) -> None:
    """Refuse more clients in a round than there are, fewer than a method needs, and more liars than a rule bears.

    ``connect`` returns the links. Raises UserError.
    """
    names, rule = experiment.names, experiment.aggregate
    cohort_size = fixed_cohort_size(experiment.settings.clients_per_round, data.n_clients)
    if cohort_size == 0:
        raise UserError(
            f"`clients_per_round={experiment.settings.clients_per_round}` is less than one of the {data.n_clients} "
            f"clients of `data={names['data']}`: give more, such as `clients_per_round=cyclic:{2 / data.n_clients:.2g}`"
        )
    cohort_size = cohort_size or data.n_clients
    if cohort_size > data.n_clients:
        raise UserError(
            f"`clients_per_round={cohort_size}` is more than the {data.n_clients} clients of "
            f"`data={names['data']}`; lower it, or set it to `null` for all of them"
        )
    if cohort_size < data.n_clients and not experiment.algo.traits.partial:
        raise UserError(
            f"`algo={names['algo']}` needs all clients in every round; give `clients_per_round=null`, or an "
            "`algo` that takes a part of them"
        )
    least = experiment.algo.least_clients
    if not isinstance(experiment.algo, Baseline):
        participation = read_participation(experiment.settings.clients_per_round)
        by_edge = None if experiment.topology.edge_rounds is None else experiment.topology.count_listeners(connect())
        n_at_edge = None if by_edge is None else int(by_edge.min())
        experiment.privacy.check_clients(data.n_clients, data.train.n_rows, participation, names, n_at_edge=n_at_edge)
    if cohort_size < least:
        raise UserError(f"`algo={names['algo']}` with these numbers needs {least} clients in each round, and "
                        f"{cohort_size} take part: raise `clients_per_round`, or choose other numbers "
                        f"(`fcorun help algo={names['algo']}`)")  # fmt: skip
    if isinstance(rule, WeightedMean):
        return
    counts = experiment.topology.count_listeners(connect()) if cohort_size == data.n_clients else None
    if counts is None:
        counts = np.array([cohort_size])
    rule.check_counts(counts, names)
    rule.check_liars(counts, experiment.faults.count_liars(data.n_clients) / data.n_clients, names)


def check_divided_cohort(plugins: Mapping[str, Any], names: Mapping[str, str]) -> None:
    """Refuse other topologies than a server, and dropouts, where clients divide a round's work. Raises UserError.

    ``check_participation`` refuses clients that take part by a probability.
    """
    if not plugins["algo"].divides_cohort:
        return
    divides = f"the clients of a round of `algo={names['algo']}` divide its work among them"
    if not isinstance(plugins["topology"], Star):
        raise UserError(f"{divides}, and send to one server: leave `topology={names['topology']}` out")
    if plugins["faults"].drops_out:
        raise UserError(f"{divides}, so that none may drop out: leave `faults.dropout` and `faults.trace` out")


def check_counted_uploads(plugins: Mapping[str, Any], names: Mapping[str, str]) -> None:
    """Refuse bytes that clients count, unless one server in this process waits for their states. Raises UserError."""
    from fcorun.data.datasets.sites import Sites

    for section in ("algo", "uplink"):
        refusals = {
            f"`data={names['data']}` leaves at their sites: choose another": isinstance(plugins["data"], Sites),
            f"`topology={names['topology']}` may send to several: leave `topology` out": (
                not isinstance(plugins["topology"], Star)
            ),
            f"`clock={names['clock']}` needs before a round: leave `clock` out": (
                not isinstance(plugins["clock"], NoClock)
            ),
            "hosts (hosts.*) share: run on one host": current_hosts() is not None,
        }
        for reason, applies in refusals.items():
            if applies and counts_uploads(plugins[section]):
                raise UserError(f"`{section}={names[section]}` counts bytes in the states of clients, which {reason}")


def check_participation(plugins: Mapping[str, Any], names: Mapping[str, str], settings: Settings) -> None:
    """Refuse clients that take part by a probability where a round needs a known number of them. Raises UserError."""
    if read_participation(settings.clients_per_round) is None:
        return
    algo = plugins["algo"]
    chooses_clients = type(algo).count_local_clients is not Algorithm.count_local_clients
    refusals = {
        f"`algo={names['algo']}` needs all clients in every round": not algo.traits.partial,
        f"`algo={names['algo']}` chooses clients of a cohort that answer once more": chooses_clients,
        f"the clients of a round of `algo={names['algo']}` divide its work among them": algo.divides_cohort,
        f"`topology={names['topology']}` has no single server that draws cohorts": (
            not isinstance(plugins["topology"], Star)
        ),
        f"`aggregate={names['aggregate']}` needs to know the number of uploads": (
            not isinstance(plugins["aggregate"], WeightedMean)
        ),
        f"`clock={names['clock']}` counts the time of a known number of clients": (
            not isinstance(plugins["clock"], NoClock)
        ),
        "hosts (hosts.*) share cohorts of a known size": current_hosts() is not None,
    }
    for reason, applies in refusals.items():
        if applies:
            raise UserError(f"{reason}, and `clients_per_round={settings.clients_per_round}` lets each client take "
                            "part by a probability: give `clients_per_round=null`")  # fmt: skip


# Checks of the data of algorithms that compute Hessians.


def check_hessian(experiment: PreparedExperiment, data: FederatedData) -> None:
    """Refuse Hessians of too many parameters, and local fits to too few rows. Raises UserError."""
    shapes = experiment.objective.shapes(data.features.shape or data.train.x.shape[1:], len(data.classes))
    parameters = sum(math.prod(shape) for shape in shapes.values())
    name, traits = experiment.names["algo"], experiment.algo.traits
    if parameters > MAX_PARAMETERS:
        verb = "sends" if traits.hessian else "inverts"
        raise UserError(f"`algo={name}` {verb} Hessians, of at most {MAX_PARAMETERS:,} parameters, "
                        f"and `data={experiment.names['data']}` has {parameters:,}: choose another `algo`")  # fmt: skip
    if not traits.local_fits or getattr(experiment.algo, "ridge", 0.0):
        return
    has_weights_by_class = math.prod(shapes["weights"]) > data.train.x.shape[1]
    if has_weights_by_class:
        raise UserError(f"`algo={name}` fits each client's rows alone, and coefficients of {len(data.classes)} classes "
                        "are not unique: give `algo.ridge=0.1`, say, or choose another `algo`")  # fmt: skip
    sizes, weight, counted = data.train.sizes, data.train.weight, ""
    if weight is not None and not data.train.stays_at_sites:
        sizes, counted = data.train.sum_by_client((weight > 0).astype(int)), " of positive weight"
    smallest = int(sizes.argmin())
    rows = int(sizes[smallest])
    if rows <= parameters:
        client = data.clients[smallest] if data.clients else smallest
        raise UserError(f"`algo={name}` fits {parameters:,} parameters to the rows of each client alone, and client "
                        f"'{client}' has {rows:,}{counted}: give `algo.ridge=0.1`, say, or choose another "
                        "`algo`")  # fmt: skip


# Convexity: certified optima need it, and so do algorithms with a convex theory.


def are_convex(*plugins: Objective | Regularizer) -> bool:
    """Return whether the objective and the regularizer both declare that they are convex."""
    return all(declared_convexity(plugin) for plugin in plugins)


def declared_convexity(plugin: Objective | Regularizer) -> bool | None:
    """Return the ``convex`` that the plug-in's class itself declares, not a base class; None if it declares none."""
    return vars(type(plugin)).get("convex")


def check_optimum(plugins: dict[str, Any], names: dict[str, str], settings: Settings) -> None:
    """Refuse a baseline, a reference, a gap or a relative strength where the problem has no certified optimum.

    Raises UserError.
    """
    is_baseline = isinstance(plugins["algo"], Baseline)
    has_relative_strength = plugins["reg"].relative_or_none is not None
    if is_baseline:
        option, convex_sections = f"`algo={names['algo']}`", ("objective", "reg")
    elif settings.reference or settings.gap:
        option, convex_sections = ("`reference=true`" if settings.reference else "`gap=true`", ("objective", "reg"))
    elif has_relative_strength:
        option, convex_sections = "reg.relative", ("objective",)
    else:
        return
    for section in convex_sections:
        convex = declared_convexity(plugins[section])
        if not convex:
            problem = "is not convex; leave it out"
            if convex is None:
                problem = "does not say whether it is convex: leave it out, or give its class convex = True, if it is"
            raise UserError(f"{option} needs one optimum, and `{section}={names[section]}` {problem}")
    if not plugins["mirror"].domain_contains(plugins["reg"]) and not has_relative_strength:
        raise UserError(
            f"{option} would be of another problem: `mirror={names['mirror']}` holds w >= 0, and "
            f"`reg={names['reg']}` does not; choose `reg=nonneg, l1_nonneg or simplex`"
        )


def check_convex_psi(plugins: dict[str, Any], names: dict[str, str]) -> None:
    """Refuse a psi that is not convex where the algorithm, or means of models, need a convex one. Raises UserError."""
    traits, topology = plugins["algo"].traits, plugins["topology"]
    is_convex = declared_convexity(plugins["reg"]) is not False
    if traits.needs_convex_psi and not is_convex:
        raise UserError(
            f"`algo={names['algo']}` needs a convex psi, and `reg={names['reg']}` is not convex: choose another "
            "`reg`, or an `algo` that takes it: `fcorun list algo` shows which need a convex psi"
        )
    takes_means = (topology.has_nodes or topology.edge_rounds is not None) and not traits.restores_domain
    if takes_means and traits.psi_sides and isinstance(plugins["reg"], Constraint) and not is_convex:
        raise UserError(f"`topology={names['topology']}` takes means of models, which leave the set of "
                        f"`reg={names['reg']}`, because it is not convex: leave topology out, or choose another `reg`"
                        )  # fmt: skip


# What a clock refuses.


def check_clock(plugins: Mapping[str, Any], names: Mapping[str, str], settings: Settings) -> None:
    """Refuse a clock where the times of clients are not known before a round. Raises UserError."""
    clock, topology, algo = plugins["clock"], plugins["topology"], plugins["algo"]
    if isinstance(clock, NoClock):
        if clock.deadline is not None:
            raise UserError("`clock.deadline` needs the times of clients: give `clock=lognormal`, or `clock=trace`")
        if settings.x == "simulated_seconds":
            raise UserError(
                "`x=simulated_seconds` needs the times of clients: give `clock=lognormal`, or `clock=trace`"
            )
        return
    if not isinstance(topology, (Star, Asynchronous)):
        raise UserError(f"`clock={names['clock']}` knows clients and one server, and `topology={names['topology']}` "
                        "has more parties: leave clock or topology out")  # fmt: skip
    if settings.frozen:
        raise UserError(f"`frozen=true` sends nothing: leave `clock={names['clock']}` out")
    traits = algo.traits
    does_more = traits.deterministic or traits.proximal or traits.hessian or traits.local_fits
    if does_more or algo.has_two_exchanges or algo.has_personal_models or algo.computed_rounds is not None:
        raise UserError(f"`clock={names['clock']}` counts one gradient for each row of a local step, and the clients "
                        f"of `algo={names['algo']}` do more: leave clock out")  # fmt: skip
    if type(algo).round_bytes is not Algorithm.round_bytes:
        raise UserError(f"`clock={names['clock']}` counts messages of the same sizes in every round, and those of "
                        f"`algo={names['algo']}` differ: leave clock out")  # fmt: skip


def has_gaps(data: FederatedData) -> bool:
    """Return whether gaps in the training rows have been filled."""
    cells = data.features.cells
    return cells is not None and any(cells.find_gaps(column).any() for column in cells.columns)


# Columns of text whose levels determine only differences of their coefficients.


def warn_undetermined_levels(experiment: PreparedExperiment, data: FederatedData) -> list[str]:
    """Return a warning if nothing but a regularizer could fix the sum of the coefficients of a column's levels.

    The levels of a column add up to one in every row. An intercept absorbs a shift of their coefficients. In Cox's
    model the shift cancels among the rows of a client, so that levels of different clients are not comparable either.
    A meta-analysis of Cox's models compares each level with one reference.
    """
    objective, encoding, standardized_by = experiment.objective, data.features.encoding, data.features.standardized_by
    if encoding is None or not isinstance(objective, LinearModel) or objective.intercept or objective.ridge:
        return []
    if standardized_by not in ("none", "pooled"):
        return []
    if isinstance(objective, Cox) and getattr(experiment.algo, "has_client_estimates", False):
        return []
    names = [
        column.name
        for column in encoding.columns
        if column.adds_up_to_one and set(column.features) <= set(data.features.names)
    ]
    # without standardization, the levels of a single column take the place of the intercept that is left out
    needed = 1 if isinstance(objective, Cox) or standardized_by == "pooled" else 2
    if len(names) < needed:
        return []
    quoted = abbreviate([f"'{name}'" for name in names])
    pairs = "levels that occur at the same client" if isinstance(objective, Cox) else "a column's levels"
    return [word(f"the levels of {quoted} add up to one in every row: without a penalty, only differences between the "
            f"coefficients of {pairs} are determined, and not the coefficients; compare levels with each other, or "
            "give a `reg` or `objective.ridge`")]  # fmt: skip


# Rows that stay on disk, are sharded over several hosts, or are generated.


def explain_need_of_all_rows(experiment: PreparedExperiment) -> str:
    """Return a clause on the part of an experiment that needs all rows in memory; empty if none does."""
    name, algo = experiment.names["algo"], experiment.algo
    if isinstance(algo, Baseline):
        return f"`algo={name}` takes all rows at once"
    if algo.has_personal_models:
        return f"`algo={name}` has personal models, which are measured on rows in memory"
    if experiment.objective.has_client_losses:
        return describe_client_losses(experiment)
    if experiment.topology.has_nodes:
        return f"`topology={experiment.names['topology']}` measures the model of each client on all rows"
    settings = experiment.settings
    if settings.reference:
        return "`reference=true` solves the problem on all rows"
    if settings.gap:
        return "`gap=true` takes sums over all rows, several times"
    if settings.client_metrics:
        return "`client_metrics=true` measures each client on all its rows"
    if settings.imputations:
        return "imputations draws the missing values of all rows"
    if settings.relax is not None:
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
    largest_client_bytes = _CURVATURE_COPIES * 8 * data.train.most_numbers_of_client
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
    counts = not isinstance(algo, Baseline) and (counts_uploads(algo) or counts_uploads(experiment.uplink))
    obstacles = {
        f"`algo={names['algo']}` takes the rows of all clients": isinstance(algo, Baseline),
        f"auto of `algo={names['algo']}` takes bounds on all clients' losses (give {alternatives})": bool(alternatives),
        "the bytes of uploads are counted in the states of all clients": counts,
        "`reference=true` solves the problem on all rows": experiment.settings.reference,
        "`gap=true` takes sums over all rows": experiment.settings.gap,
        "`client_metrics=true` measures each client": experiment.settings.client_metrics,
        f"`topology={names['topology']}` links each client": experiment.topology.connects_clients,
        "`reg.per_client` gives each client numbers": bool(experiment.reg.per_client),
    }
    for obstacle, applies in obstacles.items():
        if applies:
            raise UserError(f"`data={names['data']}` makes the rows of {n_clients:,} clients when a round needs them "
                            f"and stores none, but {obstacle}; choose a smaller data set")  # fmt: skip
