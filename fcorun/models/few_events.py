"""Sentences on scores that follow from few events: those of clients, and of validation rows."""

from collections.abc import Mapping

import numpy as np

from fcorun.datasets.base import FederatedData
from fcorun.tables.data_warnings import abbreviate

FEW_EVENTS = 5  # fewer say little about a model


def describe_few_events(events: Mapping[str, int]) -> str:
    """Return a sentence that names the clients with few events, given the events of each; "" if there are none.

    >>> describe_few_events({"Bern": 3, "Lund": 12, "Oslo": 0})
    'scores from fewer than 5 events say little: Bern (3), Oslo (0)'
    """
    few = [f"{client} ({count})" for client, count in events.items() if count < FEW_EVENTS]
    return f"scores from fewer than {FEW_EVENTS} events say little: {abbreviate(few)}" if few else ""


def warn_few_validation_rows(data: FederatedData) -> str:
    """Return a warning if the validation rows have so few rows of one of two classes that scores say little."""
    if len(data.classes) != 2 or data.validation is None or data.train.stays_at_sites:
        return ""
    counts = np.bincount(np.asarray(data.validation.y), minlength=2)
    if not counts.sum() or counts.min() >= FEW_EVENTS:
        return ""
    k = int(counts.argmin())
    return (f"val_auc, val_ap and scores of the validation rows say little: {counts[k]} of {counts.sum()} rows "
            f"{'is' if counts[k] == 1 else 'are'} '{data.classes[k]}'")  # fmt: skip
