"""The rows of a site as all sites agreed on them: features, their sums by client, and the data for an algorithm."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fcorun.base.errors import UserError
from fcorun.data.datasets.dataset import Features, FederatedData
from fcorun.data.rows.rows import sum_columns_by_client, sum_squares_by_client
from fcorun.data.tables.cells import to_level_names
from fcorun.data.tables.scaling import ClientScalings, standardize_per_client
from fcorun.data.tables.splits import ClientRows
from fcorun.sites.plan.table_options import OTHER, for_owner_alone
from fcorun.sites.tables.table_agreement import Agreement
from fcorun.sites.tables.table_checks import check_agreement
from fcorun.sites.tables.table_rows import SiteTable
from fcorun.sites.transport.messages import Message


@dataclass(frozen=True)
class EncodedTable:
    """The rows of a site with features and targets, before standardization.

    Attributes:
        table: the site's table.
        agreement: the agreement of all sites, or the part of it that the site received.
        x: the features of all rows in the order of the file, (N, d).
        y: the targets, (N,).
        client_index: the index of each row's client among the site's clients in the agreed order, (N,).
        training: the training rows, sorted by client.
        warnings: sentences for the owner.
    """

    table: SiteTable
    agreement: Agreement
    x: np.ndarray
    y: np.ndarray
    client_index: np.ndarray
    training: np.ndarray
    warnings: tuple[str, ...]

    @property
    def training_client(self) -> np.ndarray:
        """Return the number of each training row's client among those with training rows, (n,)."""
        return np.unique(self.client_index[self.training], return_inverse=True)[1]


def encode_table(table: SiteTable, agreement: Agreement) -> EncodedTable:
    """Return the rows of a site, encoded as agreed. Raises UserError if the agreement does not fit the table."""
    check_agreement(table, agreement)
    frame = table.rows.frame.copy()
    for name in [column.name for column in agreement.encoding.columns if column.has_levels]:
        names = to_level_names(frame[name])
        if name in table.level_counts:
            names[np.isin(names, list(table.rare_levels(name)))] = OTHER
        for mask in table.masks[1:]:
            names[mask & np.isin(names, list(table.held_out_levels(name, mask)))] = OTHER
        frame[name] = names
    position = {name: m for m, name in enumerate(agreement.clients)}
    index = np.array([position[name] for name in table.clients])[table.client_rows.client_index]
    training = np.flatnonzero(table.masks[0])
    warnings: list[str] = []
    with for_owner_alone("the rows cannot be encoded as agreed, and the site's owner sees the reason"):
        x = agreement.encoding.apply(frame, warnings, "this site")
    return EncodedTable(
        table=table,
        agreement=agreement,
        x=x.astype(agreement.x_dtype),
        y=_targets(table, agreement),
        client_index=index,
        training=training[np.argsort(index[training], kind="stable")],
        warnings=(*table.rows.warnings, *warnings),
    )


def _targets(table: SiteTable, agreement: Agreement) -> np.ndarray:
    """Return the targets of a site: numbers, or class indices."""
    if not agreement.classes:
        return table.rows.y.astype(agreement.y_dtype)
    y = np.full(len(table.rows.y), -1, np.int32)
    for k, label in enumerate(agreement.classes):
        y[table.rows.y == label] = k
    if (y < 0).any():
        label = table.rows.y[int((y < 0).argmax())]
        with for_owner_alone("a held-out row has a label that no training row of any site has"):
            raise UserError(f"a held-out row has the label '{label}', which no training row of any site has: correct "
                            "it or drop the row")  # fmt: skip
    return y


def sum_features(encoded: EncodedTable, mean: np.ndarray | None = None) -> Message:
    """Return the sums of the features over each client's training rows, or of their squared deviations from ``mean``.

    The array "sums" (M, d) has the site's clients with training rows in the agreed order.
    """
    x = encoded.x[encoded.training]
    client = encoded.training_client
    if mean is None:
        return Message("sums", arrays={"sums": sum_columns_by_client(x, client)})
    if mean.shape != x.shape[1:] or mean.dtype != np.float64 or not np.isfinite(mean).all():
        raise UserError("the mean that the server sent has other features than the agreement: send it again")
    return Message("sums", arrays={"sums": sum_squares_by_client(x, client, mean)})


def load_site_data(encoded: EncodedTable, agreement: Agreement) -> FederatedData:
    """Return the data of a site's clients, standardized by the scaling of the agreement or by each client.

    A site all of whose clients are held out has no training rows.
    """
    table = encoded.table
    names = [name for name in agreement.clients if name in table.clients]
    local_index = np.unique(encoded.client_index, return_inverse=True)[1]
    x, standardized = _standardize(encoded, agreement, local_index, names)
    client_rows = ClientRows(names, local_index, table.masks)
    return FederatedData(
        **client_rows.split(table.rows, x, encoded.y, **table.weight_and_offset),
        features=Features(agreement.feature_names, standardized=standardized, encoding=agreement.encoding),
        task=agreement.task,
        classes=agreement.classes,
        warnings=encoded.warnings,
        keep=table.keep,
    )


def _standardize(
    encoded: EncodedTable, agreement: Agreement, client_index: np.ndarray, names: list[str]
) -> tuple[np.ndarray, dict[str, Any] | None]:
    """Return the standardized features, (N, d), and the scaling as a dict; None without one."""
    standardize = encoded.table.options.standardize
    if standardize == "pooled":
        if agreement.scaling is None:
            raise UserError("data.standardize=pooled needs the agreed means and deviations: ask for the sums first")
        return agreement.scaling.transform(encoded.x), agreement.scaling.to_dict()
    if standardize == "per_client":
        x, by_client = standardize_per_client(encoded.x, client_index, ~encoded.table.masks[0])
        clients = tuple(names[m] for m in by_client["client_index"])
        return x, ClientScalings(clients, by_client["n_rows"], by_client["mean"], by_client["deviation"]).to_dict()
    return encoded.x, None
