"""The table of a site, read as the plan and the policy of its owner say."""

from fcorun.sites.event_counts import check_events
from fcorun.sites.interval_sums import check_groups
from fcorun.sites.plan import Plan
from fcorun.sites.policy import Policy
from fcorun.sites.site_folds import check_fold_sizes
from fcorun.sites.table_options import SiteOptions, TablePolicy
from fcorun.sites.table_rows import SiteTable, read_site_table
from fcorun.sites.trained_clients import check_classes_of_trained_clients


def read_planned_table(plan: Plan, options: SiteOptions, policy: Policy) -> SiteTable:
    """Read a site's table for a plan. Raises UserError, or ObstaclesError, where it does not fit plan and policy."""
    columns = None if policy.columns is None else tuple(policy.columns)

    def check_more(table: SiteTable) -> None:
        if table.options.event is not None:
            check_events(table)
        if plan.experiment.algo.has_personal_models:
            check_classes_of_trained_clients(table)
        if plan.infer is not None and plan.infer.cluster == "group":
            check_groups(table)
        check_fold_sizes(plan, policy, table.clients, table.n_rows[:, 0].tolist())

    rules = TablePolicy(policy.min_rows, policy.min_cell, columns)
    return read_site_table(plan.shared_options, options, rules, check_more)
