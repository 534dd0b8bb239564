"""The standardization of features from sums by client: means, then squared deviations from the means."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fcorun.base.errors import UserError
from fcorun.data.tables.column_statistics import sum_in_order
from fcorun.data.tables.data_warnings import FAR, measure_distances
from fcorun.data.tables.scaling import Scaling
from fcorun.sites.tables.table_agreement import Agreement
from fcorun.sites.transport.connections import ALL_SITES
from fcorun.sites.transport.messages import Message


def compute_means(agreement: Agreement, sums: Mapping[str, Message]) -> np.ndarray:
    """Return the mean of each feature over the training rows of all sites, (d,), from the sums of each site."""
    return sum_in_order(_stack(agreement, sums)) / _n_rows(agreement).sum()


def fit_scaling(agreement: Agreement, sums: Mapping[str, Message], squares: Mapping[str, Message]) -> Agreement:
    """Return the agreement with the scaling of the features, and with warnings to sites whose units may differ.

    Args:
        agreement: the agreement on the features.
        sums: the answers of the sites with the sums of the features.
        squares: the answers with the squared deviations from ``compute_means``.

    There are no warnings if the answers are the sums over all sites together.
    """
    mean, squares_by_client = compute_means(agreement, sums), _stack(agreement, squares)
    n_rows = int(_n_rows(agreement).sum())
    scaling = Scaling.from_squares(mean, squares_by_client, n_rows)
    site_warnings = {}
    if ALL_SITES not in sums:
        site_warnings = _warn_other_units(agreement, _stack(agreement, sums), squares_by_client, mean)
    return replace(agreement, scaling=scaling, site_warnings=site_warnings)


def _n_rows(agreement: Agreement) -> np.ndarray:
    """Return the number of training rows of each client that has some."""
    return agreement.n_rows[:, 0][agreement.n_rows[:, 0] > 0]


def _stack(agreement: Agreement, answers: Mapping[str, Message]) -> np.ndarray:
    """Return the sums of the clients of all sites in the agreed order, (M, d). Raises UserError, which names a site."""
    by_client: dict[str, np.ndarray] = {}
    together = ALL_SITES in answers
    for site, answer in answers.items():
        clients = [ALL_SITES] if together else agreement.clients_of(site)
        sums = answer.arrays.get("sums")
        if sums is None or sums.shape != (len(clients), len(agreement.feature_names)) or sums.dtype != np.float64:
            raise UserError(f"site '{site}' sent no sums of the agreed features: use the same version of fcorun at all "
                            "sites")  # fmt: skip
        if not np.isfinite(sums).all():
            j = int(np.flatnonzero(~np.isfinite(sums).all(axis=0))[0])
            raise UserError(f"site '{site}' sent a sum of '{agreement.feature_names[j]}' that is not finite: scale the "
                            "column")  # fmt: skip
        by_client |= dict(zip(clients, sums, strict=True))
    return np.stack([by_client[name] for name in ([ALL_SITES] if together else agreement.training_clients)])


def _warn_other_units(
    agreement: Agreement, sums: np.ndarray, squares: np.ndarray, mean: np.ndarray
) -> dict[str, tuple[str, ...]]:
    """Return a warning for each site whose mean of a column is far from that of the other sites."""
    numbers = [column.name for column in agreement.encoding.columns if column.has_numbers]
    site_of_client = dict(zip(agreement.clients, agreement.site_of_client, strict=True))
    sites, site_of = np.unique([site_of_client[name] for name in agreement.training_clients], return_inverse=True)
    belongs = (site_of == np.arange(len(sites))[:, None]).astype(float)
    n_rows = np.bincount(site_of, _n_rows(agreement)).astype(int)
    distances, *_ = measure_distances(belongs @ sums, belongs @ squares, n_rows, mean)
    warnings = {}
    for site, far in zip(sites.tolist(), distances > FAR, strict=True):
        names = [name for name, is_far in zip(agreement.feature_names, far, strict=True) if is_far and name in numbers]
        if names:
            warnings[site] = tuple(
                f"the mean of '{name}' here is more than {FAR} standard deviations away from that of the other sites: "
                "check that the unit is the same" for name in names
            )  # fmt: skip
    return warnings
