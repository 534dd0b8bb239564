"""The rules on the events of a site's rows, where targets are times to events."""

import numpy as np

from fcorun.base.errors import UserError
from fcorun.data.tables.splits import SPLITS
from fcorun.sites.tables.table_rows import SiteTable


def check_events(table: SiteTable) -> None:
    """Raise UserError for a client with few events, but some, among its rows of a set, and for a site without events.

    A partial likelihood is a sum over events: that of few events tells much of their rows.
    """
    minimum, events = table.policy.min_cell, table.count_rows(table.rows.y > 0)
    for m, split in zip(*np.nonzero((events > 0) & (events < minimum)), strict=True):
        raise UserError(f"client '{table.clients[m]}' has fewer than {minimum} events among its {SPLITS[split]} rows, "
                        "the least that policy.min_cell of this site allows: give other data.validation and "
                        "data.test, or leave the client out")  # fmt: skip
    if table.masks[0].any() and not events[:, 0].any():
        raise UserError("all training rows of this site are censored, so that they have no part in a partial "
                        "likelihood: leave the site out")  # fmt: skip
