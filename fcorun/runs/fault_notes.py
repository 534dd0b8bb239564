"""Sentences of a record on the faults that acted in its run."""

from typing import Any

import numpy as np

from fcorun.data.datasets.dataset import FederatedData
from fcorun.engine.schedule import Schedule
from fcorun.experiment.build import build_schedule, connect_clients
from fcorun.experiment.experiment import PreparedExperiment


def describe_faults(experiment: PreparedExperiment, data: FederatedData, rounds: int) -> tuple[str, dict[str, Any]]:
    """Return a sentence on the faults of a run of so many rounds, and a section of summary.json; empty without faults.

    The sentence says how many clients lied or had wrong targets, whether the rule of ``aggregate`` bears so many of a
    round, and so much of a receiver's weight, and which share of the cohorts' clients dropped out.
    """
    faults = experiment.faults
    if not faults.acts:
        return "", {}
    schedule, parts = build_schedule(experiment, data), []
    n_liars = faults.count_liars(data.n_clients)
    content: dict[str, Any] = {"liars": n_liars}
    if faults.has_liars:
        deed = f"{faults.what_liars_did} (faults={experiment.names['faults']})"
        parts.append(f"{n_liars} of {data.n_clients} clients {deed}")
        borne = experiment.aggregate.count_tolerated(schedule.cohort_size)
        if n_liars > borne and experiment.topology.edge_rounds is None:
            parts.append(f"aggregate={experiment.names['aggregate']} bears {borne} of {schedule.cohort_size} uploads")
        parts.extend(_describe_heavy_liars(experiment, data, schedule))
    if faults.drops_out and rounds:
        dropped = []
        for number in range(rounds):
            cohort = schedule.draw_cohort(number)
            present = schedule.draw_present(np.array([number]), cohort[None], faults.dropout_threshold)
            dropped.append(1 - present.mean())
        content |= {"dropped": float(np.mean(dropped)), "empty_rounds": dropped.count(1.0)}
        parts.append(f"{100 * content['dropped']:.3g} % of the clients of a round dropped out")
        if content["empty_rounds"]:
            consequence = "stayed as it was"
            if experiment.privacy.correlates_rounds:
                consequence = "went on with noise alone"
            parts.append(f"in {content['empty_rounds']} of {rounds} rounds all did, and the server {consequence}")
    return ", ".join(parts), {"faults": content}


def _describe_heavy_liars(experiment: PreparedExperiment, data: FederatedData, schedule: Schedule) -> list[str]:
    """Return a clause if a receiver's liars have more weight than the rule bears, whatever their number; else none.

    Of rules that count uploads as wholes the weight of each client is 1.
    """
    rule = experiment.aggregate
    if not rule.count_tolerated(data.n_clients):
        return []
    is_liar = schedule.liar_ranks < experiment.faults.count_liars(data.n_clients)
    weights = schedule.averaging_weights if rule.divides_weights else np.ones(data.n_clients)
    receiver_of = experiment.topology.find_receivers(connect_clients(experiment, data), data.n_clients)
    largest_share = 0.0
    for receiver in range(receiver_of.max() + 1):
        is_here = receiver_of == receiver
        share = weights[is_here & is_liar].sum() / max(weights[is_here].sum(), np.finfo(float).tiny)
        n_uploads = min(schedule.cohort_size, is_here.sum())
        if share > rule.find_tolerated_share(n_uploads) + 1e-9:
            largest_share = max(largest_share, share)
    if not largest_share:
        return []
    return [f"liars have {100 * largest_share:.3g} % of the weight of a receiver's clients, more than "
            f"aggregate={experiment.names['aggregate']} bears"]  # fmt: skip
