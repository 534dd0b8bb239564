"""The rows of a site as all sites agreed on them: features, their sums by client, and the data for an algorithm."""

from dataclasses import dataclass

import numpy as np

from fcorun.base.errors import UserError
from fcorun.data.datasets.dataset import Features, FederatedData
from fcorun.data.rows.rows import sum_columns_by_client, sum_squares_by_client
from fcorun.data.tables.cells import to_level_names
from fcorun.data.tables.scaling import standardize_per_client
from fcorun.data.tables.splits import ClientRows
from fcorun.sites.plan.site_options import OTHER, for_owner_alone
from fcorun.sites.tables.table_agreement import Agreement, check_agreement
from fcorun.sites.tables.table_rows import SiteTable


@dataclass(frozen=True)
class EncodedTable:
    """The rows of a site with features and targets, before standardization.

    Attributes:
        table: the site's table.
        agreement: the agreement of all sites, or the part of it that the site received.
        x: the features of all rows in the order of the file, (N, d).
        y: the targets, (N,).
        client_rows: the rows of the site's clients, in the agreed order, and their splits.
        warnings: sentences for the owner.
    """

    table: SiteTable
    agreement: Agreement
    x: np.ndarray
    y: np.ndarray
    client_rows: ClientRows
    warnings: tuple[str, ...]


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
    clients = [name for name in agreement.clients if name in table.clients]
    index = np.array([clients.index(name) for name in table.clients])[table.client_rows.client_index]
    warnings: list[str] = []
    with for_owner_alone("the rows cannot be encoded as agreed, and the site's owner sees the reason"):
        x = agreement.encoding.apply(frame, warnings, "this site")
    labels = table.rows.y
    if agreement.classes:
        y = np.full(len(labels), -1, np.int32)
        for k, label in enumerate(agreement.classes):
            y[labels == label] = k
        if (y < 0).any():
            with for_owner_alone("a held-out row has a label that no training row of any site has"):
                raise UserError(f"a held-out row has the label '{labels[int((y < 0).argmax())]}', which no training "
                                "row of any site has: correct it or drop the row")  # fmt: skip
    else:
        y = labels.astype(agreement.y_dtype)
    return EncodedTable(
        table=table,
        agreement=agreement,
        x=x.astype(agreement.x_dtype),
        y=y,
        client_rows=ClientRows(clients, index, table.masks),
        warnings=(*table.rows.warnings, *warnings),
    )


def sum_features(encoded: EncodedTable, mean: np.ndarray | None = None) -> np.ndarray:
    """Return the sums of the features over each client's training rows, or of their squared deviations from ``mean``.

    The sums, (M, d), are those of the site's clients with training rows in the agreed order.
    """
    training, client_index = encoded.client_rows.training
    x = encoded.x[training]
    client = np.unique(client_index, return_inverse=True)[1]
    if mean is None:
        return sum_columns_by_client(x, client)
    if mean.shape != x.shape[1:] or mean.dtype != np.float64 or not np.isfinite(mean).all():
        raise UserError("the mean that the server sent has other features than the agreement: send it again")
    return sum_squares_by_client(x, client, mean)


def load_site_data(encoded: EncodedTable, agreement: Agreement) -> FederatedData:
    """Return the data of a site's clients, standardized by the scaling of the agreement or by each client.

    A site all of whose clients are held out has no training rows.
    """
    table = encoded.table
    x = encoded.x
    standardized = None
    if table.options.standardize == "pooled":
        if agreement.scaling is None:
            raise UserError("data.standardize=pooled needs the agreed means and deviations: ask for the sums first")
        x = agreement.scaling.transform(x)
        standardized = agreement.scaling.to_dict()
    elif table.options.standardize == "per_client":
        client_rows = encoded.client_rows
        names = [*client_rows.client_names, ""]
        x, scalings = standardize_per_client(x, client_rows.client_index, ~client_rows.is_training, names)
        standardized = scalings.to_dict()
    return FederatedData(
        **encoded.client_rows.split(table.rows, x, encoded.y),
        features=Features(agreement.feature_names, standardized=standardized, encoding=agreement.encoding),
        task=agreement.task,
        classes=agreement.classes,
        warnings=encoded.warnings,
        keep=table.keep,
    )
