"""The agreement on one table, its checks at a site, and the rows of the site as all sites agreed on them.

The agreement is the encoding of columns, the classes, the clients of all sites, and the scaling. A server that sent
another agreement than all sites made could tell single rows from all others by their gaps, levels or labels. No
sentence of the checks quotes a cell, since the server sees them all.
"""

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fcorun.base.errors import UserError
from fcorun.data.datasets.dataset import Features, FederatedData
from fcorun.data.rows.rows import sum_columns_by_client
from fcorun.data.tables.cells import is_missing
from fcorun.data.tables.columns import Column, LevelColumn, SplineColumn
from fcorun.data.tables.encoding import Encoding, join_remarks
from fcorun.data.tables.scaling import Scaling, reciprocal_or_zero, standardize_per_client
from fcorun.data.tables.splits import ClientRows
from fcorun.sites.plan.site_options import OTHER, for_owner_alone
from fcorun.sites.tables.summed_sets import column_tells_few, single_out, tells_few
from fcorun.sites.tables.table_description import bin_edges
from fcorun.sites.tables.table_rows import ROWS, SiteTable
from fcorun.sites.transport.messages import Message, describing_damage

_NEAR = 2  # standard deviations: a fill farther away tells rows with a gap from the others
_FAR = 10  # standard deviations: a fill farther away is of another unit
_MAX_CLIENT_ROWS, _MAX_ROWS = 10**7, 10**9  # a site has memory for as many draws as the largest client has rows


@dataclass(frozen=True)
class Agreement:
    """The rules by which all sites make features and targets of their rows.

    Attributes:
        task: the kind of targets.
        classes: the labels in the order of the class indices; empty for a regression.
        encoding: the encoding of the columns.
        clients: the names of all M clients in order, those with training rows first.
        n_rows, weights: the numbers of training, validation and test rows of each client, and the sums of the rows'
            weights, (M, 3).
        scaling: the standardization of the features, or None.
    """

    task: Any
    classes: tuple
    encoding: Encoding
    clients: tuple[str, ...]
    n_rows: np.ndarray
    weights: np.ndarray
    scaling: Scaling | None = None

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Return the names of the features."""
        return self.encoding.feature_names

    @property
    def training_clients(self) -> tuple[str, ...]:
        """Return the names of the clients with training rows, in order."""
        return self.clients[: int((self.n_rows[:, 0] > 0).sum())]

    @property
    def held_out_clients(self) -> tuple[str, ...]:
        """Return the names of the clients without training rows, in order."""
        return self.clients[len(self.training_clients) :]

    def to_message(self) -> Message:
        """Return the agreement as a message."""
        about = {
            "task": self.task,
            "classes": list(self.classes),
            "encoding": self.encoding.to_dict(),
            "clients": list(self.clients),
        }
        arrays = {"rows": self.n_rows, "weights": self.weights}
        if self.scaling is not None:
            arrays |= {"mean": self.scaling.mean, "deviation": self.scaling.deviation}
        return Message("load", about, arrays)

    @classmethod
    def from_message(cls, message: Message) -> "Agreement":
        """Return the agreement that ``to_message`` returned. Raises UserError for anything else."""
        about = message.about
        arrays = message.arrays
        with describing_damage("the server sent no agreement on a table"):
            scaling = None
            if "mean" in arrays:
                mean = arrays["mean"]
                deviation = arrays["deviation"]
                scaling = Scaling(mean, reciprocal_or_zero(deviation), deviation)
            agreement = cls(
                task=about["task"],
                classes=tuple(about["classes"]),
                encoding=Encoding.from_dict(about["encoding"]),
                clients=tuple(map(str, about["clients"])),
                n_rows=arrays["rows"],
                weights=arrays["weights"],
                scaling=scaling,
            )
            if {agreement.n_rows.shape, agreement.weights.shape} != {(len(agreement.clients), 3)}:
                raise ValueError("its numbers of rows do not fit its clients")
            if agreement.n_rows.dtype.kind not in "iu" or (agreement.n_rows < 0).any():
                raise ValueError("its numbers of rows are no counts")
            if not np.isfinite(agreement.weights).all() or (agreement.weights < 0).any():
                raise ValueError("its weights are no weights")
            n_features = len(agreement.feature_names)
            if scaling is not None and not scaling.mean.shape == scaling.deviation.shape == (n_features,):
                raise ValueError("its scaling has other features")
        return agreement


def check_agreement(table: SiteTable, agreement: Agreement) -> None:
    """Raise UserError for an agreement that does not follow from a site's table and the options of the plan."""
    _check_clients(table, agreement)
    columns = {column.name: column for column in agreement.encoding.columns}
    _require(len(columns) == len(agreement.encoding.columns), "has two columns of one name")
    for name, column in columns.items():
        own = table.kinds.get(name)
        fits = name in table.kinds and (own is None or type(own) is type(column))
        _require(fits, f"has a column '{name}' that this site described otherwise")
    for name in table.kinds:  # columns of levels may make no feature
        has_indicator = table.options.missing == "indicator" and table.gap_counts[name][:, 0].any()
        makes_feature = name in table.number_columns or len(table.coded_levels(name)) > 1 or has_indicator
        _require(name in columns or not makes_feature, f"lacks the column '{name}'")
    for column in agreement.encoding.columns:
        check_gaps(table, column)
        for fault in column.find_faults():
            _require(False, fault)
        if isinstance(column, SplineColumn):
            low, high = (table.options.ranges or {})[column.name]
            fits = column.n_knots == (table.options.splines or {})[column.name]
            fits = fits and low <= column.knots[0] and column.knots[-1] <= high
            _require(fits, f"has other knots of '{column.name}' than the plan")
            check_curve(table, column)
        if isinstance(column, LevelColumn):
            name = column.name
            other = OTHER if OTHER in column.levels else None
            _require(column.other == other, f"codes rare levels of '{name}' otherwise")
            _require(table.coded_levels(name) <= set(column.levels), f"lacks a level of '{name}' of this site")
    _check_classes(table, agreement)
    scaling = agreement.scaling
    if scaling is not None:
        arrays = (scaling.mean, scaling.deviation, scaling.factor)
        fits = all(array.dtype == np.float64 and np.isfinite(array).all() for array in arrays)
        _require(fits and (scaling.deviation >= 0).all(), "has means or deviations that are no numbers")


def _check_clients(table: SiteTable, agreement: Agreement) -> None:
    """Raise UserError unless an agreement says of the site's own clients what the site has described."""
    names = agreement.clients
    n_rows = agreement.n_rows
    _require(set(table.clients) <= set(names), "lacks a client of this site")
    _require(len(set(names)) == len(names), "has two clients of one name")
    client_numbers = [names.index(name) for name in table.clients]
    alike = np.array_equal(n_rows[client_numbers], table.n_rows)
    _require(alike, "has other numbers of rows of this site's clients")
    alike = np.array_equal(agreement.weights[client_numbers], table.weights)
    _require(alike, "has other weights of this site's clients")
    _require((np.diff((n_rows[:, 0] > 0).astype(int)) <= 0).all(), "has clients without training rows before others")
    if n_rows.max(initial=0) > _MAX_CLIENT_ROWS or n_rows.sum() > _MAX_ROWS:
        raise UserError(f"the server names clients of too many rows: sites compute with at most {_MAX_CLIENT_ROWS} "
                        f"of a client, and {_MAX_ROWS} in all: divide large tables into several clients")  # fmt: skip


def _require(condition: Any, problem: str) -> None:
    if not condition:
        raise UserError(f"the agreement that the server sent {problem}: describe the table again, with the same "
                        "version of fcorun at the server and at all sites")  # fmt: skip


def check_gaps(table: SiteTable, column: Column) -> None:
    """Raise UserError for a fill or an indicator that ``data.missing`` does not make."""
    missing = table.options.missing
    fill = column.fill
    fits = column.indicator is False
    if missing == "indicator":
        has_gaps = bool(table.gap_counts[column.name][:, 0].any())  # other sites may have some
        fits = column.indicator is True or (fits and not has_gaps)
    _require(fits, f"indicates gaps of '{column.name}' otherwise than data.missing={missing}")
    if missing == "refuse" or (column.has_levels and column.indicator):
        fits = fill is None
    elif column.has_levels:
        fits = fill in column.levels
    else:
        fits = isinstance(fill, float) and np.isfinite(fill)
        if isinstance(fill, float) and missing == "median":
            edges = bin_edges(table.options.ranges, column.name)
            fits = edges[0] <= fill <= edges[-1]
        if isinstance(fill, float) and fits:
            if missing != "indicator" and not _is_near(fill, table, column.name, _NEAR):
                raise UserError(f"the agreement that the server sent fills gaps of '{column.name}' by a number that "
                                "few rows of this site have, which would mark its rows with a gap: if this or another "
                                "site has another unit, or a number such as 999 for a missing value (fcorun site check "
                                "warns of that), mend the file there; else data.missing=indicator marks gaps openly, "
                                f"and data.ignore=[{column.name}] leaves the column out")  # fmt: skip
            fits = _is_near(fill, table, column.name, _FAR)
    _require(fits, f"fills gaps of '{column.name}' otherwise than data.missing={missing}")
    if isinstance(fill, float) and not column.indicator:
        _check_filled_numbers(table, column.name, fill)


def _check_filled_numbers(table: SiteTable, name: str, fill: float) -> None:
    """Raise UserError for gaps of a set of rows whose fill makes them outweigh the rows with a number.

    Where almost all other rows have one number, the column less that number is a function of the filled rows.
    """
    numbers = table.read_numbers(name)
    is_gap = np.isnan(numbers)
    filled = np.where(is_gap, fill, numbers)
    least = table.policy.min_cell
    for split, split_name in enumerate(ROWS):
        sums = table.list_sums(table.sums_by_client and split == 0, split)
        for rows, is_difference in sums.list_sets(np.ones(len(filled), bool)):
            patients = table.patients.take(rows)
            if is_gap[rows].any() and column_tells_few(filled[rows], patients, least, is_difference):
                raise UserError(f"few {split_name} rows of this site have a gap in '{name}', and the others almost all "
                                f"one number: the fill would tell them, as fewer than {least} equal rows, "
                                f"{table.allowed('min_cell')}: hold out other rows, or add '{name}' to "
                                "data.ignore of the plan")  # fmt: skip


def _is_near(fill: float, table: SiteTable, name: str, deviations: int) -> bool:
    """Return whether a fill is within so many standard deviations of the site's own values of a column.

    A site without a row with a gap, or without a value in training rows, has nothing to tell apart.
    """
    values = table.read_numbers(name)[table.masks[0]]
    gaps = np.isnan(values)
    if not table.gap_counts.get(name, np.zeros((1, 1))).any() or gaps.all():
        return True
    mean = float(values[~gaps].mean())
    deviation = float(values[~gaps].std())
    return abs(fill - mean) <= deviations * (deviation or abs(mean))


def check_curve(table: SiteTable, column: SplineColumn) -> None:
    """Raise UserError for a curve that tells few rows of a set by a combination of its features.

    A combination may be 0 on one side of a knot, or outside of neighbouring knots, and its sum over the few rows of a
    set elsewhere tells them. A cubic term grows faster than the column, so that few rows far beyond a knot outweigh the
    others where those of the column do not. The sets are those of the site and of each client. Of validation and test
    rows only metrics leave, but those of models that a server can choose: few of their rows may not be the only ones
    that a combination does not map to 0.
    """
    numbers = table.read_numbers(column.name)
    local_functions = column.list_local_functions(numbers)
    features = np.column_stack(column.encode_cells(numbers, column.fill))
    least = table.policy.min_cell
    for split, split_name in enumerate(ROWS):
        sets = table.list_sums(by_client=True, split=split).list_sets(~np.isnan(numbers))
        for rows, is_difference in sets:
            patients = table.patients.take(rows)
            functions = [values[rows] for values in local_functions]
            functions += [*single_out(features[rows], least, patients.number)]
            counts_alone = is_difference or split > 0
            if not any(tells_few(values, patients, least, counts_alone) for values in functions):
                continue
            other_folds = "" if table.fold is None else f"{table.fold_cure}, "
            raise UserError(f"few {split_name} rows of this site, or of a client or fold here, lie beyond a knot of "
                            f"'{column.name}' or outweigh all others there: its spline would tell them, as fewer "
                            f"than {least} equal rows, {table.allowed('min_cell')}: give fewer knots in "
                            f"data.splines of the plan, {other_folds}hold out other rows, or leave "
                            f"'{column.name}' out of it")  # fmt: skip


def check_curves_together(table: SiteTable, column: SplineColumn, earlier: Collection[float]) -> None:
    """Raise UserError for knots that tell few rows with those of earlier plans, whose features a server may combine."""
    knots = tuple(sorted({*column.knots, *earlier}))
    if knots == column.knots:
        return
    try:
        check_curve(table, replace(column, knots=knots, n_knots=len(knots)))
    except UserError as error:
        name = column.name
        raise UserError(f"this site has answered plans with other knots of '{name}', and the splines of all of them "
                        f"together would tell few rows: leave '{name}' out of data.splines of the plan, plan with the "
                        "sites of an earlier plan alone, or have the site's owner give the rows away by overlap=allow "
                        "with fcorun site accept") from error  # fmt: skip


def list_curve_parts(table: SiteTable, encoding: Encoding) -> list[tuple[str, np.ndarray]]:
    """Return the column of each local function of a curve, and the mask of the rows where it is not 0, (N,)."""
    parts = []
    for column in encoding.columns:
        if isinstance(column, SplineColumn):
            numbers = table.read_numbers(column.name)
            for values in column.list_local_functions(numbers):
                parts.append((column.name, ~np.isnan(numbers) & (values != 0)))
    return parts


def _check_classes(table: SiteTable, agreement: Agreement) -> None:
    options = table.options
    classes = agreement.classes
    _require(agreement.task == options.task, "has another task than the plan")
    task = options.target_task
    if not task.has_classes:
        _require(classes == (), "has classes, where the plan has a regression, or times to events")
        return
    of_table = np.unique(table.rows.y[table.masks[0]]).tolist()
    types = {type(label) for label in (*classes, *table.rows.y[:1].tolist())}
    _require(len(types) == 1 and set(of_table) <= set(classes), "lacks a class of this site")
    names = [str(label) for label in classes]
    if options.classes is not None:
        fits = names == options.classes
    else:
        fits = len(set(names)) == len(names) > 1 and list(classes) == options.order_labels(classes)
        if task.has_two_classes:
            fits = fits and len(names) == 2 and names[1] == str(options.positive)
    _require(fits, "has other classes than the plan, or in another order")


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
    remark: np.ndarray | None = None


def encode_table(table: SiteTable, agreement: Agreement, encoding: Encoding | None = None) -> EncodedTable:
    """Return the rows of a site, encoded as agreed, or by ``encoding``, which fills gaps as the site's ledger says.

    Raises UserError if the agreement does not fit the table.
    """
    check_agreement(table, agreement)
    encoding = agreement.encoding if encoding is None else encoding
    frame = table.rows.frame.copy()
    for column in [column for column in encoding.columns if column.has_levels]:
        levels = table.code_levels(column.name)
        filled = levels.copy()
        if not column.indicator:  # gaps count as their fill
            filled[is_missing(frame[column.name])] = column.fill
        merged = table.merge_few_levels(filled)
        frame[column.name] = np.where(merged == filled, levels, merged)
    clients = [name for name in agreement.clients if name in table.clients]
    index = np.array([clients.index(name) for name in table.clients])[table.client_rows.client_index]
    warnings: list[str] = []
    unknown_levels: defaultdict[int, list[str]] = defaultdict(list)
    with for_owner_alone("the rows cannot be encoded as agreed, and the site's owner sees the reason"):
        x = encoding.apply(frame, warnings, "this site", unknown_levels=unknown_levels)
    y = labels = table.rows.y
    if agreement.classes:
        y = np.full(len(labels), -1, np.int32)
        for k, label in enumerate(agreement.classes):
            y[labels == label] = k
        if (y < 0).any():
            with for_owner_alone("a held-out row has a label that no training row of any site has"):
                raise UserError(f"a held-out row has the label '{labels[int((y < 0).argmax())]}', which no training "
                                "row of any site has: correct it or drop the row")  # fmt: skip
    return EncodedTable(
        table=table,
        agreement=agreement,
        x=x,
        y=y,
        client_rows=ClientRows(clients, index, table.masks),
        warnings=(*table.rows.warnings, *warnings),
        remark=join_remarks(unknown_levels, len(y)),
    )


def sum_features(encoded: EncodedTable, mean: np.ndarray | None = None) -> np.ndarray:
    """Return the sums of the features over each client's training rows, or of their squared deviations from ``mean``.

    The sums, (M, d), are those of the site's clients with training rows in the agreed order.
    """
    training, client_index = encoded.client_rows.training
    x = encoded.x[training]
    client = np.unique(client_index, return_inverse=True)[1]
    if mean is not None and (mean.shape != x.shape[1:] or mean.dtype != np.float64 or not np.isfinite(mean).all()):
        raise UserError("the mean that the server sent has other features than the agreement: send it again")
    return sum_columns_by_client(x, client, around=mean)


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
        **encoded.client_rows.split(table.rows, x, encoded.y, encoded.remark),
        features=Features(agreement.feature_names, standardized=standardized, encoding=agreement.encoding),
        task=agreement.task,
        classes=agreement.classes,
        warnings=encoded.warnings,
        keep=table.keep,
    )
