"""The table of a site, read as the plan and the policy of its owner say."""

from collections.abc import Callable
from functools import partial

import numpy as np

from fcorun.experiment import build
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.sites.plan.obstacles import for_owner_alone
from fcorun.sites.plan.plan import Plan
from fcorun.sites.plan.policy import Policy
from fcorun.sites.plan.table_options import SiteOptions
from fcorun.sites.tables.disclosure_rules import (
    check_batches,
    check_classes_of_trained_clients,
    check_dominance,
    check_events,
    check_groups,
)
from fcorun.sites.tables.fold_rules import check_folds
from fcorun.sites.tables.row_folds import draw_row_folds
from fcorun.sites.tables.table_description import describe_table
from fcorun.sites.tables.table_rows import SiteTable, read_site_table


def read_planned_table(plan: Plan, options: SiteOptions, policy: Policy) -> SiteTable:
    """Read a site's table for a plan. Raises UserError, or ObstaclesError, where it does not fit plan and policy."""

    def check_targets(table: SiteTable) -> None:
        if table.rows.y.dtype.kind == "f":  # numbers; labels are checked once the sites have agreed on classes
            check_targets_of_site(plan.experiment, table.rows.y)

    def check_drawn_folds(table: SiteTable) -> None:
        if table.fold is not None:
            check_folds(plan, table, table.fold)

    checks: list[Callable[[SiteTable], object]] = [describe_table, check_targets, check_drawn_folds]
    checks += [partial(check_batches, plan), partial(check_dominance, plan)]
    if plan.shared_options.target_task.has_events:
        checks.append(check_events)
    if plan.experiment.algo.has_personal_models:
        checks.append(check_classes_of_trained_clients)
    if plan.infer is not None and plan.infer.cluster == "group":
        checks.append(check_groups)
    return read_site_table(
        plan.shared_options,
        options,
        policy,
        checks,
        draw_folds=partial(draw_row_folds, plan),
        holds_clients_out=plan.select is not None and plan.select.by == "clients",
    )


def check_targets_of_site(experiment: PreparedExperiment, y: np.ndarray) -> None:
    """Raise OwnTableError if the objective does not take a target of a site's training or held-out rows, (N,).

    Rules on all training targets together, such as that some count is not 0, are for those of all sites.
    """
    with for_owner_alone(f"its targets do not fit objective={experiment.names['objective']}"):
        build.check_targets(experiment, y[:0], y)
