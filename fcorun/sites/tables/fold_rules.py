"""The rules on the folds of a site's training rows: each fold, and all others, are sets that answers tell apart.

The rows of a fold are the difference of two subsets that are summed, so that all rules on sets hold for them, too. The
site's own table tells whether they hold, but for what ``SiteFolds`` checks.
"""

from collections.abc import Iterator

import numpy as np

from fcorun.base.errors import UserError
from fcorun.sites.plan.obstacles import Obstacles
from fcorun.sites.plan.plan import Plan
from fcorun.sites.plan.table_options import OwnTableError
from fcorun.sites.tables.fold_cells import find_few_cells, have_few
from fcorun.sites.tables.table_rows import SiteTable, make_few_rows_error

_WHERE = " in a fold, or in all others"


def check_folds(plan: Plan, table: SiteTable, fold: np.ndarray) -> None:
    """Raise UserError where a rule forbids these folds, ObstaclesError where several do.

    Args:
        fold: the fold, from 0, that holds out each training row of the table, (N,), below 0 of other rows.
    """
    assert plan.select is not None
    if not table.masks[0].any():
        return
    obstacles = Obstacles()
    if plan.select.by == "rows":
        obstacles.add(_find_small_folds(plan, table, fold))
    if table.options.target_task.has_events:
        obstacles.add(_find_few_events(plan, table, fold))
    obstacles.add(_find_rare_labels(plan, table, fold))
    obstacles.add(find_few_cells(table, fold, plan.select.n_folds))
    obstacles.raise_any()


def _find_small_folds(plan: Plan, table: SiteTable, fold: np.ndarray) -> Iterator[UserError]:
    """Yield an error for each client with effectively few rows in a fold, or in all others."""
    assert plan.select is not None
    for m in np.flatnonzero(table.n_rows[:, 0]).tolist():
        rows_of_client = table.masks[0] & (table.client_rows.client_index == m)
        for k in range(plan.select.n_folds):
            sets = (rows_of_client & (fold == k), rows_of_client & (fold != k))
            few = [rows for rows in sets if table.effective_rows(rows) < table.policy.min_rows]
            if few:
                cure = "mark more of its rows" if plan.shared_options.fold else "plan fewer folds"
                yield make_few_rows_error(table, m, few[0], f"training rows{_WHERE}", cure)
                break


def _find_few_events(plan: Plan, table: SiteTable, fold: np.ndarray) -> Iterator[UserError]:
    """Yield an error for each client with few events in a fold, or in all others. A client without events passes."""
    assert plan.select is not None
    is_event, index = table.masks[0] & (table.rows.y > 0), table.client_rows.client_index
    counts = np.zeros((len(table.clients), plan.select.n_folds), int)
    np.add.at(counts, (index[is_event], fold[is_event]), 1)
    least = table.policy.min_cell
    for m in np.flatnonzero(have_few(counts, least).any(axis=1)):
        yield UserError(f"client '{table.clients[m]}' has fewer than {least} events{_WHERE}, the least that "
                        "policy.min_cell of this site allows: plan fewer folds, or leave the client out")  # fmt: skip


def _find_rare_labels(plan: Plan, table: SiteTable, fold: np.ndarray) -> Iterator[UserError]:
    """Yield an error for each class, or value of a target of two values, with few rows in a fold, or in all others."""
    assert plan.select is not None
    if table.labels is None:
        return
    training, least = table.masks[0], table.policy.min_cell
    labels, number = np.unique(table.labels[training], return_inverse=True)
    counts = np.zeros((len(labels), plan.select.n_folds), int)
    np.add.at(counts, (number, fold[training]), 1)
    kind = table.options.target_task.target_noun
    for label in labels[have_few(counts, least).any(axis=1)].tolist():
        sentence = (f"a {kind} of '{table.options.target}' has fewer than {least} training rows{_WHERE}, the least "
                    "that policy.min_cell of this site allows: plan fewer folds")  # fmt: skip
        yield OwnTableError(f"{sentence} ({kind} '{label}')", sentence)
