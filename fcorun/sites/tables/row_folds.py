"""The fold that holds out each training row of a site in a selection, from the site's own table alone."""

import numpy as np

from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.rows.rows import Rows
from fcorun.sites.plan.obstacles import OwnTableError
from fcorun.sites.plan.plan import Plan
from fcorun.sites.tables.table_rows import SiteTable
from fcorun.studies.selection.folds import assign_folds

NOT_HELD_OUT = -1


def draw_row_folds(plan: Plan, table: SiteTable) -> np.ndarray | None:
    """Return the fold, from 0, that holds out each row of the table, (N,); ``NOT_HELD_OUT`` of other rows.

    The folds are those of ``fcorun select`` on pooled rows, which follow from the seed of the folds and the rows of
    each client alone. Returns None without a selection, and where folds hold out whole clients, which depend on all
    sites.

    Raises UserError for fewer rows than folds, and OwnTableError for a marked fold that the plan does not list.
    """
    fold_names = plan.shared_options.fold_names
    if plan.select is None or (fold_names is None and plan.select.by == "clients"):
        return None
    folds = np.full(len(table.rows.y), NOT_HELD_OUT)
    training = np.flatnonzero(table.masks[0])
    if not len(training):
        return folds
    if fold_names is not None:
        assert table.rows.fold is not None
        marked = table.rows.fold[training]
        for name in np.unique(marked).tolist():
            if name not in fold_names:
                sentence = "a training row is in a fold that data.fold_names of the plan does not list"
                raise OwnTableError(f"{sentence}, '{name}'", sentence)
        folds[training] = np.searchsorted(sorted(fold_names), marked)
        return folds
    client = table.client_rows.client_index[training]
    order = np.argsort(client, kind="stable")
    training = training[order]
    trained, number = np.unique(client[order], return_inverse=True)
    labels = []
    if table.options.target_task.has_classes:
        labels = table.options.order_labels(np.unique(table.rows.y).tolist())
    y = table.rows.y[training]
    if labels:
        y = np.array([labels.index(label) for label in y.tolist()])
    group = None if table.rows.group is None else table.rows.group[training]
    data = FederatedData(
        train=Rows(np.empty((len(training), 0)), y, number, group=group),
        task=table.options.task,
        classes=tuple(labels),
        clients=tuple(table.clients[m] for m in trained),
    )
    seed = plan.shared_options.fold_seed(plan.experiment.settings.seed)
    folds[training] = assign_folds(data, plan.select.n_folds, plan.select.by, seed)
    return folds
