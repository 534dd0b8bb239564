"""The folds of a site's training rows, and the rules on them: answers tell the rows of a fold from all others.

The rows of a fold are the difference of two subsets that are summed, so that all rules on sets hold for them, too. All
other rows are the union of folds, and keep the rules where each fold does. The
site's own table tells whether they hold, but for what ``SiteFolds`` checks. A column whose gaps are filled by one
number adds to such a difference the values of the measured rows alone, and a level its count: none of a client, or as
many as the policy says.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from fcorun.base.errors import UserError
from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.rows.rows import Rows
from fcorun.data.tables.cells import is_missing
from fcorun.data.tables.encoding import Encoding
from fcorun.sites.plan.patients import are_few
from fcorun.sites.plan.plan import Plan
from fcorun.sites.plan.site_options import Obstacles, OwnTableError
from fcorun.sites.tables.table_rows import SiteTable, make_few_rows_error
from fcorun.studies.selection.folds import assign_folds

_WHERE = " in a fold, or in all others"
NOT_HELD_OUT = -1


def check_folds(plan: Plan, table: SiteTable, fold: np.ndarray) -> None:
    """Raise UserError where a rule forbids these folds, ObstaclesError where several do.

    Args:
        fold: the fold, from 0, that holds out each training row of the table, (N,), below 0 of other rows.
    """
    training = table.masks[0]
    if not training.any():
        return
    n_folds = plan.selection.n_folds
    least = table.policy.min_cell
    index = table.client_rows.client_index
    obstacles = Obstacles()
    if plan.selection.by == "rows":
        counts = _count_in_folds(table, training, fold, n_folds)
        for m in np.flatnonzero(table.n_rows[:, 0]).tolist():
            k = int(counts[m].argmin())
            if counts[m, k] < table.policy.min_rows:
                in_fold = training & (index == m) & (fold == k)
                obstacles.add([make_few_rows_error(table, m, in_fold, f"training rows{_WHERE}", table.fold_cure)])
    if table.options.target_task.has_events:  # a client without events passes
        counts = _count_in_folds(table, training & (table.rows.y > 0), fold, n_folds)
        for m in np.flatnonzero(are_few(counts, least).any(axis=1)):
            few = table.describe_few("min_cell", f"events{_WHERE}")
            few_events = f"client '{table.clients[m]}' has {few}: {table.fold_cure}, or leave the client out"
            obstacles.add([UserError(few_events)])
    if table.labels is not None:
        kind = table.options.target_task.target_noun
        for label in np.unique(table.labels[training]).tolist():
            rows = training & (table.labels == label)
            if not are_few(_count_in_folds(table, rows, fold, n_folds, table.uploads_by_client), least).any():
                continue
            of_client = " of a client" if table.uploads_by_client else ""
            few = table.describe_few("min_cell", f"training rows{of_client}{_WHERE}")
            sentence = f"a {kind} of '{table.options.target}' has {few}: {table.fold_cure}"
            obstacles.add([OwnTableError(f"{sentence} ({kind} '{label}')", sentence)])
    for name in table.kinds:
        obstacles.add(_find_few(table, name, _list_cells(table, name), fold, n_folds))
    obstacles.raise_any()


class _Cell(NamedTuple):
    """The rows of a table with the same content in a column.

    Attributes:
        content: the content, as the server may see it.
        for_owner: the content, as the owner may see it.
        rows: the mask of the rows, (N,).
        rule: the rule of the policy on their number.
        follows_missing: whether another ``data.missing`` has other cells.
    """

    content: str
    for_owner: str
    rows: np.ndarray
    rule: str
    follows_missing: bool = False


def _count_in_folds(
    table: SiteTable, rows: np.ndarray, fold: np.ndarray, n_folds: int, by_client: bool = True
) -> np.ndarray:
    """Return how many patients the training rows of a mask stand for, of each client in each fold, (M, K).

    Without ``by_client`` the rows of all clients together are those of the first one.
    """
    part = np.where(rows, table.client_rows.client_index * by_client * n_folds + fold, -1)
    return table.patients.count_parts(part, len(table.clients) * n_folds).reshape(-1, n_folds)


def check_filled_levels(table: SiteTable, encoding: Encoding, fold: np.ndarray, n_folds: int) -> None:
    """Raise OwnTableError where the rows of the level that fills gaps, with those it fills, are such a cell.

    The sites agree on that level, so that the table alone does not tell it.
    """
    for column in encoding.columns:
        if column.has_levels and column.fill is not None:
            values = table.columns[column.name]
            rows = is_missing(values) | (table.code_levels(column.name) == column.fill)
            cell = _Cell("a level", f"level '{column.fill}'", rows, "min_cell", follows_missing=True)
            for error in _find_few(table, column.name, iter([cell]), fold, n_folds):
                raise error


def _find_few(
    table: SiteTable, name: str, cells: Iterator[_Cell], fold: np.ndarray, n_folds: int
) -> Iterator[UserError]:
    """Yield an error for the first of the cells of a column that has few rows in a fold, or in all others."""
    for cell in cells:
        least = getattr(table.policy, cell.rule)
        few = np.argwhere(are_few(_count_in_folds(table, cell.rows & table.masks[0], fold, n_folds), least))
        if len(few):
            in_words = table.describe_few(
                cell.rule, f"training rows of a client in fold {few[0][1] + 1}, or in all others"
            )
            another = ", another data.missing" if cell.follows_missing else ""
            sentence = (f"column '{name}' has {cell.content} in {in_words}: {table.fold_cure}{another}, or "
                        f"data.ignore=[{name}]")  # fmt: skip
            yield OwnTableError(f"{sentence} ({cell.for_owner})", sentence)
            return


def _list_cells(table: SiteTable, name: str) -> Iterator[_Cell]:
    """Yield the cells of a column that sums over a fold tell apart.

    Gaps are a cell where they have an indicator. The levels of a column of two values have their own rule
    (``SiteTable.constant``).
    """
    has_gap = is_missing(table.columns[name])
    has_indicator = table.options.missing == "indicator" and bool(table.gap_counts[name][:, 0].any())
    is_number = name in table.number_columns
    if has_gap.any() and (is_number or has_indicator):  # else the values are all rows
        yield _Cell("values", "rows with a value", ~has_gap, "min_rows", follows_missing=not is_number)
    if has_indicator:
        yield _Cell("gaps", "rows with a gap", has_gap, "min_rows", follows_missing=True)
    if name not in table.level_counts or name in table.rarer_rows:
        return
    levels = table.code_levels(name)
    for level in sorted(table.coded_levels(name)):
        yield _Cell("a level", f"level '{level}'", levels == level, "min_cell")


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
