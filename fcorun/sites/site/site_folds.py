"""The folds of a selection at a site: drawn from its own rows, checked by its policy, and taken one by one."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fcorun.base.errors import UserError
from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.datasets.subset import restandardize_rows, take_subset
from fcorun.data.rows.rows import sum_columns_by_client, sum_in_order
from fcorun.data.tables.encoding import Encoding
from fcorun.data.tables.scaling import Scaling, reciprocal_or_zero
from fcorun.sites.plan.plan import Plan
from fcorun.sites.plan.planned_study import REFIT
from fcorun.sites.plan.policy import Policy
from fcorun.sites.tables.fold_encoding import FoldCells, FoldCounts, place_rows
from fcorun.sites.tables.fold_rules import NOT_HELD_OUT, check_filled_levels, check_folds
from fcorun.sites.tables.table_agreement import Agreement, list_curve_parts
from fcorun.sites.tables.table_rows import SiteTable
from fcorun.sites.transport.messages import NEW_RUN, Message
from fcorun.studies.selection.folds import assign_clients_to_folds, check_groups_within_clients
from fcorun.studies.selection.selection_result import ALL_ROWS


@dataclass(frozen=True)
class SiteFolds:
    """The folds of a site's training rows.

    Attributes:
        plan: the plan, which has a selection.
        policy: the policy of the owner.
        site_data: the site's rows, whose clients are numbered among its own.
        data: the same rows, whose clients are numbered among those of all sites.
        fold: the fold, from 0, that holds out each training row, (N,).
        cells: the cells of columns whose fills and levels a fold learns; None without such columns.
    """

    plan: Plan
    policy: Policy
    site_data: FederatedData
    data: FederatedData
    fold: np.ndarray
    cells: FoldCells | None = None

    @classmethod
    def draw(
        cls,
        plan: Plan,
        policy: Policy,
        table: SiteTable,
        site_data: FederatedData,
        data: FederatedData,
        agreement: Agreement,
        encoding: Encoding,
    ) -> "SiteFolds":
        """Draw the folds of a site's rows as ``fcorun select`` does, with the agreement and the site's own encoding.

        Raises UserError for few rows of a fold.
        """
        selection = plan.selection
        # What the table alone decides was checked when it was read (``planned_table``). Three things need all sites:
        # which clients a fold holds out, the level that fills gaps, and the number of features.
        row_folds = table.fold
        if row_folds is None:
            check_groups_within_clients(site_data)
            seed = plan.shared_options.fold_seed(plan.experiment.settings.seed)
            fold = assign_clients_to_folds(data.n_clients, selection.n_folds, seed)[data.train.known_client]
            row_folds = np.full(len(table.rows.y), NOT_HELD_OUT)
            row_folds[site_data.train.row] = fold
            check_folds(plan, table, row_folds)
        fold = row_folds[site_data.train.row]
        folds = cls(
            plan,
            policy,
            site_data,
            data,
            fold,
            cells=FoldCells.read(table, agreement, encoding, site_data),
        )
        curve_parts = list_curve_parts(table, encoding)
        where = " in a fold, or in all others"
        for k in range(selection.n_folds):
            for in_set in (row_folds == k, row_folds != k):
                policy.check_rows(plan, *table.count_in_hessian(in_set), site_data.train.x.shape[1], where)
                rows = site_data.train.take(np.flatnonzero(in_set[site_data.train.row]))
                policy.check_rare_features(plan, rows, site_data.features, curve_parts, where)
        if len(site_data.train):
            check_filled_levels(table, encoding, row_folds, selection.n_folds)
        return folds

    @cached_property
    def counts(self) -> FoldCounts:
        """The rows of the site's own clients in each fold."""
        return FoldCounts.count(
            self.site_data.train, self.fold, self.plan.selection.n_folds, len(self.site_data.clients)
        )

    def describe(self) -> dict[str, np.ndarray]:
        """Return the counts of the folds, and which classes each has."""
        rows = self.site_data.train
        n_folds = self.plan.selection.n_folds
        if self.site_data.target_task.has_events:  # (K, 1)
            class_counts = np.bincount(self.fold[rows.y > 0], minlength=n_folds)[:, None]
        else:  # (K, C)
            class_counts = np.zeros((n_folds, len(self.site_data.classes)), int)
            if self.site_data.classes:
                np.add.at(class_counts, (self.fold, rows.y), 1)
        return {**self.counts.to_arrays(), "classes": class_counts > 0}

    def count_values(self, request: Message) -> dict[str, np.ndarray]:
        """Return the counts and sums of a fold's training rows that determine levels, and fills beside indicators."""
        _, k = self._find(request)
        if k is None or self.cells is None:
            raise ValueError("no fold with columns to learn")
        arrays = self.cells.count(self.fold != k)
        if self.plan.is_masked:
            arrays["sums"] = sum_in_order(arrays["sums"])[None]
            arrays["values"] = arrays["values"].sum(0, keepdims=True)
        return arrays

    def _encode(self, request: Message) -> np.ndarray:
        """Return the features of all training rows, with the fills and levels that a request has."""
        return self.site_data.train.x if self.cells is None else self.cells.encode(request.arrays)

    def sum_features(self, request: Message) -> dict[str, np.ndarray]:
        """Return the sums of the features, or of their squares, over the rows of each client that a fold trains on.

        Secure sums are one row, of all clients of the site.
        """
        _, k = self._find(request)
        if k is None:
            raise ValueError("no fold")
        selected = self.fold != k
        x, client = self._encode(request)[selected], self.site_data.train.client[selected]  # type: ignore[index]
        client = np.unique(client, return_inverse=True)[1]
        mean = request.arrays.get("around")
        if mean is not None:
            _check_vector(mean, x.shape[1])
        sums = sum_columns_by_client(x, client, around=mean)
        return {"sums": sum_in_order(sums)[None] if self.plan.is_masked else sums}

    def take(self, request: Message) -> tuple[FederatedData, FederatedData]:
        """Return the subset that a request names: as the site's own data, and as the data of all sites."""
        name, k = self._find(request)
        if k is None:
            if name == REFIT:  # the refit alone is scored on validation and test rows
                return self.site_data, self.data
            no_others = {"validation": None, "test": None}
            return replace(self.site_data, **no_others), replace(self.data, **no_others)
        counts = FoldCounts.from_arrays(request.arrays, self.data.train.sizes, self.plan.selection.n_folds)
        client_numbers = [self.data.clients.index(name) for name in self.site_data.clients]
        if not counts.take(client_numbers).equals(self.counts):
            raise UserError("the server says of this site's clients other numbers of rows in folds than the site "
                            f"described: {NEW_RUN}")  # fmt: skip
        train = self.fold != k
        site_data = replace(self.site_data, train=replace(self.site_data.train, x=self._encode(request)))
        x = site_data.train.x
        by = self.plan.shared_options.standardize
        if by == "per_client" and len(site_data.train):
            x = restandardize_rows(site_data, train, np.ones(len(train), bool))
        elif by == "pooled":
            mean = request.arrays["mean"]
            deviation = request.arrays["deviation"]
            for values in (mean, deviation):
                _check_vector(values, x.shape[1])
            x = Scaling(mean, reciprocal_or_zero(deviation), deviation).transform(x)
        site_data = replace(site_data, train=replace(site_data.train, x=x))
        site_data = take_subset(site_data, train, ~train, restandardize=False).data
        order, rows, weights = counts.split(k)
        return site_data, place_rows(site_data, [self.data.clients[m] for m in order], rows, weights)

    def _find(self, request: Message) -> tuple[str, int | None]:
        """Return the name of the subset of a request, and the number of its fold; None where no fold is left out."""
        name = request.about["subset"]
        if name not in (ALL_ROWS, REFIT) and name not in self.plan.selection.folds_by_name:
            raise ValueError("there is no such subset")
        return name, self.plan.selection.folds_by_name.get(name)


def _check_vector(values: np.ndarray, length: int) -> None:
    """Raise ValueError unless the values are finite float64 numbers of this shape, (length,)."""
    if values.shape != (length,) or values.dtype != np.float64 or not np.isfinite(values).all():
        raise ValueError("numbers of other features")
