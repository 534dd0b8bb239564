"""The folds of a selection at a site: drawn from its own rows, checked by its policy, and taken one by one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fcorun.datasets.base import FederatedData
from fcorun.datasets.subset import restandardize_rows, take_subset
from fcorun.errors import UserError
from fcorun.rows.rows import sum_columns_by_client, sum_squares_by_client
from fcorun.selection.cross_validation.options import ALL_ROWS
from fcorun.selection.folds import assign_clients_to_folds, check_groups_within_clients
from fcorun.sites.fold_cells import check_fold_cells
from fcorun.sites.fold_counts import FoldCounts, place_rows
from fcorun.sites.fold_encoding import FoldCells
from fcorun.sites.messages import Message
from fcorun.sites.plan import Plan
from fcorun.sites.planned_selection import REFIT
from fcorun.sites.policy import Policy
from fcorun.sites.row_folds import draw_row_folds
from fcorun.sites.table_agreement import Agreement
from fcorun.sites.table_options import OwnTableError
from fcorun.sites.table_rows import SiteTable
from fcorun.tables.column_statistics import sum_in_order
from fcorun.tables.scaling import Scaling, reciprocal_or_zero


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
        cls, plan: Plan, policy: Policy, table: SiteTable, site_data: FederatedData, data: FederatedData, load: Message
    ) -> "SiteFolds":
        """Draw the folds of a site's rows as ``fcorun select`` does, after the request to ``load`` the rows.

        Raises UserError for few rows of a fold.
        """
        selection = plan.select
        assert selection is not None
        assert data.train.client is not None
        row_folds = draw_row_folds(plan, table)
        if row_folds is None:
            check_groups_within_clients(site_data)
            seed = plan.shared_options.fold_seed(plan.experiment.settings.seed)
            fold = assign_clients_to_folds(data.n_clients, selection.n_folds, seed)[data.train.client]
        else:
            fold = row_folds[site_data.train.row]
        folds = cls(
            plan,
            policy,
            site_data,
            data,
            fold,
            cells=FoldCells.read(table, Agreement.from_message(load), site_data, fold),
        )
        folds._check()
        if len(site_data.train):
            assert site_data.features.encoding is not None
            check_fold_cells(table, site_data.features.encoding, site_data.train, fold, selection.n_folds)
        return folds

    @property
    def _n_folds(self) -> int:
        assert self.plan.select is not None
        return self.plan.select.n_folds

    @cached_property
    def counts(self) -> FoldCounts:
        """The rows of the site's own clients in each fold."""
        return FoldCounts.count(self.site_data.train, self.fold, self._n_folds, len(self.site_data.clients))

    @cached_property
    def _class_counts(self) -> np.ndarray:
        """The number of rows of each class that each fold holds out, (K, C); for survival the events, (K, 1)."""
        if self.site_data.task == "survival":
            return self._event_counts.sum(axis=0)[:, None]
        counts = np.zeros((self._n_folds, len(self.site_data.classes)), int)
        if self.site_data.classes:
            np.add.at(counts, (self.fold, self.site_data.train.y), 1)
        return counts

    @cached_property
    def _event_counts(self) -> np.ndarray:
        """The number of events of each client that each fold holds out, (M, K)."""
        counts, is_event = np.zeros((len(self.site_data.clients), self._n_folds), int), self.site_data.train.y > 0
        np.add.at(counts, (self.site_data.train.client[is_event], self.fold[is_event]), 1)  # type: ignore[index]
        return counts

    def _check_events(self) -> None:
        """Raise UserError for a client with few events in a fold, or in all others. A client without events passes."""
        counts, least = self._event_counts, self.policy.min_cell
        for cells in (counts, counts.sum(axis=1, keepdims=True) - counts):
            few = np.argwhere((cells > 0) & (cells < least))
            if len(few):
                name = self.site_data.clients[few[0][0]]
                raise UserError(f"client '{name}' has fewer than {least} events in a fold, or in all others, the least "
                                "that policy.min_cell of this site allows: plan fewer folds, or leave the client out"
                                )  # fmt: skip

    def _check(self) -> None:
        """Raise UserError where a fold, or the rows that it leaves, are fewer than the policy allows.

        The rows of a fold are the difference of two subsets that are summed, so that all rules hold for them too.
        """
        assert self.plan.select is not None
        min_rows, min_cell = self.policy.min_rows, self.policy.min_cell
        if self.plan.select.by == "rows":
            for name, held_out, rest in zip(
                self.site_data.clients, self.counts.held_out, self.counts.train, strict=True
            ):
                if min(held_out.min(), rest.min()) < min_rows:
                    fewer = "mark more of its rows" if self.plan.shared_options.fold else "plan fewer folds"
                    raise UserError(f"client '{name}' has fewer than {min_rows} training rows in a fold, or in all "
                                    f"others, the least that policy.min_rows of this site allows: {fewer}, or leave "
                                    "the client out")  # fmt: skip
        if self.site_data.task == "survival":
            self._check_events()
        counts = self._class_counts if self.site_data.classes else np.empty((0, 0), int)
        for cells in (counts, counts.sum(axis=0) - counts):
            few = np.argwhere((cells > 0) & (cells < min_cell))
            if len(few):
                target = self.plan.shared_options.target
                sentence = (f"a class of '{target}' has fewer than {min_cell} training rows in a fold, or in all "
                            "others, the least that policy.min_cell of this site allows: plan fewer folds"
                            )  # fmt: skip
                raise OwnTableError(f"{sentence} (class '{self.site_data.classes[few[0][1]]}')", sentence)
        features = self.site_data.train.x.shape[1]
        for n_rows in (*self.counts.held_out.sum(axis=0).tolist(), *self.counts.train.sum(axis=0).tolist()):
            if n_rows:
                self.policy.check_rows(self.plan, n_rows, features, " in a fold, or in all others")

    def describe(self) -> Message:
        """Return the counts of the folds as an answer."""
        return Message("folds", arrays={**self.counts.to_arrays(), "classes": self._class_counts > 0})

    def count_values(self, request: Message) -> Message:
        """Return the counts and sums of a fold's training rows that determine fills of gaps and known levels."""
        _, k = self._find(request)
        if k is None or self.cells is None:
            raise ValueError("no fold with columns to learn")
        arrays = self.cells.count(self.fold != k)
        if self.plan.secure is not None:
            if "sums" in arrays:
                arrays["sums"] = sum_in_order(arrays["sums"])[None]
            if "values" in arrays:
                arrays["values"] = arrays["values"].sum(0, keepdims=True)
        return Message("fold_values", arrays=arrays)

    def _encode(self, request: Message) -> np.ndarray:
        """Return the features of all training rows, with the fills and levels that a request has."""
        return self.site_data.train.x if self.cells is None else self.cells.encode(request.arrays)

    def sum_features(self, request: Message) -> Message:
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
        if mean is None:
            sums = sum_columns_by_client(x, client)
        else:
            _check_vector(mean, x.shape[1])
            sums = sum_squares_by_client(x, client, mean)
        return Message("fold_sums", arrays={"sums": sums if self.plan.secure is None else sum_in_order(sums)[None]})

    def take(self, request: Message) -> tuple[FederatedData, FederatedData]:
        """Return the subset that a request names: as the site's own data, and as the data of all sites."""
        name, k = self._find(request)
        if k is None:
            if name == REFIT:  # the refit alone is scored on validation and test rows
                return self.site_data, self.data
            no_others = {"validation": None, "test": None}
            return replace(self.site_data, **no_others), replace(self.data, **no_others)
        counts = self._read_counts(request)
        train = self.fold != k
        site_data = replace(self.site_data, train=replace(self.site_data.train, x=self._standardize(request, train)))
        site_data = take_subset(site_data, train, ~train, restandardize=False).data
        order, rows, weights = counts.split(k)
        return site_data, place_rows(site_data, [self.data.clients[m] for m in order], rows, weights)

    def _find(self, request: Message) -> tuple[str, int | None]:
        """Return the name of the subset of a request, and the number of its fold; None where no fold is left out."""
        assert self.plan.select is not None
        name = request.about["subset"]
        if name not in (ALL_ROWS, REFIT) and name not in self.plan.select.folds_by_name:
            raise ValueError("there is no such subset")
        return name, self.plan.select.folds_by_name.get(name)

    def _read_counts(self, request: Message) -> FoldCounts:
        """Return the counts of the clients of all sites. Raises UserError unless they have those of the site's own."""
        counts = FoldCounts.from_arrays(request.arrays, self.data.train.sizes, self._n_folds)
        client_numbers = [self.data.clients.index(name) for name in self.site_data.clients]
        if not counts.take(client_numbers).equals(self.counts):
            raise UserError("the server says of this site's clients other numbers of rows in folds than the site "
                            "described: begin the run anew")  # fmt: skip
        return counts

    def _standardize(self, request: Message, train: np.ndarray) -> np.ndarray:
        """Return the features of all rows, standardized anew by the training rows of a subset."""
        site_data = replace(self.site_data, train=replace(self.site_data.train, x=self._encode(request)))
        rows, by = site_data.train, self.plan.shared_options.standardize
        if by == "per_client" and len(rows):
            return restandardize_rows(site_data, train, np.ones(len(train), bool))
        if by != "pooled":
            return rows.x
        mean, deviation = request.arrays["mean"], request.arrays["deviation"]
        for values in (mean, deviation):
            _check_vector(values, rows.x.shape[1])
        return Scaling(mean, reciprocal_or_zero(deviation), deviation).transform(rows.x)


def _check_vector(values: np.ndarray, length: int) -> None:
    """Raise ValueError unless the values are finite float64 numbers of this shape, (length,)."""
    if values.shape != (length,) or values.dtype != np.float64 or not np.isfinite(values).all():
        raise ValueError("numbers of other features")


def check_fold_sizes(plan: Plan, policy: Policy, names: Sequence[str], rows: Sequence[int]) -> None:
    """Raise UserError for a client whose number of training rows, in ``rows``, is too small for the folds of a plan.

    Called before a site connects to anybody; ``SiteFolds`` counts the rows of each fold.
    """
    if plan.select is None or plan.select.by == "clients":
        return
    for name, n_rows in zip(names, rows, strict=True):
        if 0 < n_rows < policy.min_rows * plan.select.n_folds:
            raise UserError(f"client '{name}' has {n_rows} training rows, of which {plan.select.n_folds} folds would "
                            f"hold out fewer than {policy.min_rows}, the least that policy.min_rows of this site "
                            "allows: plan fewer folds, or leave the client out")  # fmt: skip
