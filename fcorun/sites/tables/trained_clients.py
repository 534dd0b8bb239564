"""The rule on the rows that personal models are scored on: those of the clients with training rows."""

import numpy as np

from fcorun.base.errors import UserError
from fcorun.data.tables.splits import SPLITS
from fcorun.sites.tables.table_rows import SiteTable


def check_classes_of_trained_clients(table: SiteTable) -> None:
    """Raise UserError if a class has some, but fewer than ``policy.min_cell``, held-out rows in one group of clients.

    The groups are the clients with training rows, which have personal models, and the others. Scores of personal models
    count the classes of the first group, and scores of the shared model those of both: their difference would show a
    small count of either.
    """
    if not table.options.target_task.has_classes:
        return
    minimum = table.policy.min_cell
    trains = (table.n_rows[:, 0] > 0)[table.client_rows.client_index]
    for split, mask in zip(SPLITS[1:], table.masks[1:], strict=True):
        sets = {"with": mask & trains, "without": mask & ~trains}
        if not all(rows.any() for rows in sets.values()):
            continue
        for of_clients, rows in sets.items():
            counts = np.unique(table.rows.y[rows], return_counts=True)[1]
            if (counts < minimum).any():
                raise UserError(f"a class of '{table.options.target}' has fewer than {minimum} {split} rows of clients "
                                f"{of_clients} training rows, the least that policy.min_cell allows: plan an algorithm "
                                "without personal models, or hold out other clients")  # fmt: skip
