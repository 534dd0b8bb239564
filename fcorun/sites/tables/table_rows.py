"""The rows of a site's table, read, checked and divided as the shared options and the owner's policy say."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from fcorun.base.errors import UserError, abbreviate, suggest_name, word
from fcorun.data.datasets.sites import Sites
from fcorun.data.datasets.subset import suggest_folds
from fcorun.data.tables.cells import coerce_numbers, has_numpy_numbers, is_missing, to_level_names
from fcorun.data.tables.column_roles import SPLITS, ColumnRoles, ParsedRows, are_counts, read_metadata
from fcorun.data.tables.columns import Column
from fcorun.data.tables.columns.levels import check_level_count
from fcorun.data.tables.encoding import find_gaps
from fcorun.data.tables.parsed_table import FileOptions, ParsedTable
from fcorun.data.tables.readers import (
    ENCODING_HINT,
    NAMED_COLUMN_ENDINGS,
    check_file_options,
    detect_ending,
    find_file,
    parse_columns,
    read_named_columns,
    telling_of_long_reading,
)
from fcorun.data.tables.splits import ClientRows, HoldOut
from fcorun.data.tasks.task import whole_as_integers
from fcorun.sites.plan.patients import Patients, are_few
from fcorun.sites.plan.policy import Policy
from fcorun.sites.plan.site_options import OTHER, Obstacles, OwnTableError, SiteOptions, for_owner_alone
from fcorun.sites.tables.summed_sets import SummedSets

ROWS = ("training", *SPLITS[1:])  # the names of the rows of each split
_FIRST_ROWS = 100  # which usually show that a column has more than two values
_GAP = -1
_UNREADABLE = "the table cannot be read as the plan says, and the site's owner sees the reason"


@dataclass(frozen=True)
class SiteTable:
    """The rows of a site.

    Attributes:
        options: the options that all sites share.
        policy: the rules of the owner.
        rows: the rows of the file, with the shared names of columns, without rare values of columns of two values
            (``_hide_rare_values``), and with warnings for the owner; ``y`` has numbers or labels.
        kinds: each column that becomes features, before a fit; None: it has no value here, which fits any kind.
        client_rows: the rows of each client and their splits.
        keep: the columns that predictions repeat.
        fold: the fold, from 0, that holds out each training row in a selection, (N,), below 0 of other rows; None:
            there are none, or they depend on all sites.
        rarer_rows: how many training rows have the rarer value of each column of two values, as the file has them, in
            words.
        constant: the columns that a rare value made constant.
        file_cells: the cells of the file in each column whose rare values are hidden, a pandas.Series by name.
        uploads_by_client: whether answers tell the uploads of single clients.
        holds_clients_out: whether the folds of a selection hold out whole clients.
    """

    options: Sites
    policy: Policy
    rows: ParsedRows
    kinds: dict[str, Column | None]
    client_rows: ClientRows
    keep: tuple[str, ...] = ()
    fold: np.ndarray | None = None
    rarer_rows: Mapping[str, str] = field(default_factory=dict)
    constant: frozenset[str] = frozenset()
    file_cells: Mapping[str, Any] = field(default_factory=dict)
    uploads_by_client: bool = False
    holds_clients_out: bool = False

    @property
    def clients(self) -> list[str]:
        """Return the names of the clients in order."""
        return list(self.client_rows.client_names)

    @property
    def masks(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the masks of the training, validation and test rows, each (N,)."""
        return self.client_rows.masks

    @cached_property
    def columns(self) -> dict[str, Any]:
        """Return the columns of the rows, each a pandas.Series, by name."""
        return {str(name): column for name, column in self.rows.frame.items()}

    def read_numbers(self, name: str) -> np.ndarray:
        """Return the numbers of a column, (N,), NaN for gaps."""
        return coerce_numbers(self.columns[name])[0].astype(np.float64)

    @cached_property
    def n_rows(self) -> np.ndarray:
        """Return the numbers of training, validation and test rows of each client, (M, 3)."""
        return self.count_rows(np.ones(len(self.rows.y), bool))

    @cached_property
    def weights(self) -> np.ndarray:
        """Return the sums of the weights of each client's training, validation and test rows, (M, 3)."""
        weight = self.rows.weight
        if weight is None:
            return self.n_rows.astype(np.float64)
        sums = np.zeros(self.n_rows.shape)
        for m, split in zip(*np.nonzero(self.n_rows), strict=True):
            rows = self.masks[split] & (self.client_rows.client_index == m)
            sums[m, split] = np.add.reduceat(weight[rows], [0])[0]  # as ``Rows.sum_by_client`` adds
        return sums

    @cached_property
    def level_counts(self) -> dict[str, Counter[str]]:
        """Return the counts of the levels of each column of levels over the training rows."""
        names = [name for name, column in self.kinds.items() if column is not None and column.has_levels]
        return {name: self._count_levels(name, self.masks[0]) for name in names}

    @property
    def number_columns(self) -> list[str]:
        """Return the names of the columns of numbers."""
        return [name for name, column in self.kinds.items() if column is not None and column.has_numbers]

    def _count_levels(self, name: str, mask: np.ndarray) -> Counter[str]:
        return Counter(level for level in to_level_names(self.columns[name])[mask].tolist() if level is not None)

    @cached_property
    def rare_levels(self) -> dict[str, set[str]]:
        """The levels of each column that are coded as ``OTHER``: those of fewer than ``policy.min_cell`` patients.

        Where these levels together have fewer, too, the next rarest levels join them. Where sums of single clients
        leave, a level is rare if a client has fewer patients, but some.
        """
        return {name: self._find_rare_levels(name) for name in self.level_counts}

    def _find_rare_levels(self, name: str) -> set[str]:
        levels = to_level_names(self.columns[name])

        client = self.client_rows.client_index if self.sums_by_client else np.zeros(len(levels), np.int64)

        def has_few(names: Sequence[str]) -> bool:
            part = np.where(self.masks[0] & np.isin(levels, names), client, -1)
            counts = self.patients.count_parts(part, len(self.clients))
            return bool(are_few(counts, self.policy.min_cell).any())

        ordered = sorted(self.level_counts[name].items(), key=lambda item: (item[1], item[0]))
        rare = [level for level, _ in ordered if has_few([level])]
        for level, _ in ordered:
            if not has_few(rare):
                break
            if level not in rare:
                rare.append(level)
        return set(rare)

    def merge_few_levels(self, levels: np.ndarray) -> np.ndarray:
        """Return levels of all rows, (N,): held-out rows of a level that few of them have take their most frequent one.

        Few are fewer patients than ``policy.min_cell``, whose rows two losses would tell, at models that differ in the
        level. Losses are sums over a split, or over its clients with training rows, which have personal models. None is
        a gap.
        """
        import pandas as pd

        merged = levels.copy()
        code, names = pd.factorize(levels, sort=True)
        is_trained = (self.n_rows[:, 0] > 0)[self.client_rows.client_index]
        for in_split in self.masks[1:]:
            for rows in (in_split & is_trained, in_split & ~is_trained):
                counts = self.patients.count_parts(np.where(rows, code, -1), len(names))
                few = np.flatnonzero(are_few(counts, self.policy.min_cell))
                if len(few):
                    merged[rows & np.isin(code, few)] = names[counts.argmax()]
        return merged

    def coded_levels(self, name: str) -> set[str]:
        """Return the levels of a column after its rare levels became ``OTHER``; none of a column without a value."""
        rare = self.rare_levels.get(name, set())
        return set(self.level_counts.get(name, ())) - rare | ({OTHER} if rare else set())

    def code_levels(self, name: str) -> np.ndarray:
        """Return the level of each row, (N,), where rare ones are ``OTHER``; None of a gap."""
        levels = to_level_names(self.columns[name])
        if name in self.level_counts:
            levels[np.isin(levels, list(self.rare_levels[name]))] = OTHER
        return levels

    @cached_property
    def gap_counts(self) -> dict[str, np.ndarray]:
        """Return the training, validation and test rows of each client with a gap in each column, (M, 3) by column."""
        counts = dict.fromkeys(self.columns, np.zeros((len(self.clients), len(self.masks)), np.int64))
        for name, gaps in find_gaps(self.rows.frame).items():
            counts[name] = self.count_rows(gaps)
        return counts

    def count_rows(self, selected: np.ndarray) -> np.ndarray:
        """Return the numbers of training, validation and test rows of each client in the mask ``selected``, (M, 3)."""
        index = self.client_rows.client_index
        counts = [np.bincount(index[mask & selected], minlength=len(self.clients)) for mask in self.masks]
        return np.stack(counts, axis=1)

    @cached_property
    def patients(self) -> Patients:
        """The patients of the rows, by whom all rules on few rows count."""
        return Patients.of_rows(self.rows)

    def count_patients(self, selected: np.ndarray) -> np.ndarray:
        """Return for how many patients the rows that ``count_rows`` counts stand, (M, 3)."""
        shape = len(self.clients), len(self.masks)
        split = np.stack(self.masks, axis=1).argmax(axis=1)
        part = np.where(selected, self.client_rows.client_index * shape[1] + split, -1)
        return self.patients.count_parts(part, shape[0] * shape[1]).reshape(shape)

    def allowed(self, rule: str) -> str:
        """Return what a number of a rule is, in words."""
        columns = [f"data.{role}={name}" for role in ("weight", "group") if (name := getattr(self.options, role))]
        counted = f", where rows count by {' and '.join(columns)}" if columns else ""
        return f"the least that policy.{rule} of this site allows{counted}"

    def describe_rows(self, rows: np.ndarray, name: str = "") -> str:
        """Return the number of the rows in a mask, and of the patients as whom they count where these are others."""
        patients = self.patients.count(rows)
        like = f", like {patients:.4g} patients" if patients != rows.sum() else ""
        return f"{rows.sum()}{name}{like}"

    def describe_few(self, rule: str, rows: str) -> str:
        """Return in words that ``rows``, as they are called, stand for fewer patients than a rule allows."""
        least = getattr(self.policy, rule)
        few = f"fewer than {least} {rows}"
        if self.options.weight or self.options.group:
            few = f"too few {rows}, which count like fewer than {least} patients"
        return f"{few}, {self.allowed(rule)}"

    @property
    def fold_cure(self) -> str:
        """The options that make other folds, in words."""
        return word(suggest_folds(self.options.fold is not None, verb="plan"))

    def count_in_hessian(self, selected: np.ndarray) -> tuple[float, list[float]]:
        """Return how many patients a Hessian of the selected training rows has, and that of each client with some.

        Rows of weight 0 are in no Hessian.
        """
        training = self.masks[0] & selected & self.patients.has_weight(len(selected))
        return self.patients.count(training), self.count_patients(training)[:, 0].tolist()

    @property
    def sums_by_client(self) -> bool:
        """True if sums over the training rows of single clients leave, or those of all but a client of a fold."""
        tells_means = self.options.standardize == "pooled" or self.options.missing in ("mean", "indicator")
        return tells_means or self.holds_clients_out or self.uploads_by_client

    def list_sums(self, by_client: bool, split: int = 0) -> SummedSets:
        """Return the sets of a split's rows whose sums leave or are differences, of each client if ``by_client``.

        The number ``split`` is a position in ``ROWS``. Folds divide training rows alone.
        """
        fold = np.zeros(len(self.rows.y), np.int64)
        if self.fold is not None and split == 0:
            fold = self.fold
        return SummedSets(
            in_split=self.masks[split],
            client=self.client_rows.client_index if by_client else np.zeros(len(self.rows.y), np.int64),
            fold=fold,
            patients=self.patients,
        )

    @cached_property
    def labels(self) -> np.ndarray | None:
        """Return the classes of the rows, or numbers of two values, (N,); None of other targets."""
        task = self.options.target_task
        if task.has_classes:
            return self.rows.y
        is_pair = 2 in (len(np.unique(self.rows.y)), len(np.unique(self.rows.y[self.masks[0]])))
        if task.is_quantity and is_pair:
            return self.rows.y
        return None


def read_site_table(
    options: Sites,
    site: SiteOptions,
    policy: Policy,
    checks: Sequence[Callable[[SiteTable], object]] = (),
    draw_folds: Callable[[SiteTable], np.ndarray | None] | None = None,
    holds_clients_out: bool = False,
    uploads_by_client: bool = False,
) -> SiteTable:
    """Read the table of a site. ``draw_folds`` draws the folds of a selection, unless these hold whole clients out.

    Raises OwnTableError for a file that does not fit the shared options, UserError where the policy forbids to answer,
    and ObstaclesError for several such obstacles. Each of ``checks`` raises UserError for a further one.
    """
    obstacles = Obstacles()
    table = options.as_table(site.path, site.client or options.client)
    with for_owner_alone(_UNREADABLE):
        parsed = _read_renamed(site, table.roles, site.file_options(options.missing))
    ignore = [name for name in table.roles.ignore or () if name in parsed.frame]  # a site may lack some
    roles = replace(table.roles, ignore=ignore or None, keep=site.keep)
    needed = [roles.target, roles.client, *(roles.only or ()), *roles.metadata.values()]
    for name in dict.fromkeys(needed):
        if name is not None and name not in parsed.frame:
            absent = f"there is no column '{name}', which the plan needs: data.rename={{THEIRS: {name}}} names it"
            columns = suggest_name(name, list(map(str, parsed.frame.columns)))
            obstacles.errors.append(OwnTableError(f"data.path={site.path}: {absent}; {columns}", absent))
    if obstacles.errors:
        obstacles.add(_find_forbidden(needed, site, policy))
        obstacles.raise_any()
    with for_owner_alone(_UNREADABLE):
        roles.check()
        rows = parse_columns(parsed, site.path, roles)
        if not len(rows.y):
            raise UserError(f"data.path={site.path}: the file has no rows; give one with data")
        rows = read_metadata(rows, roles, site.path)
        if rows.weight is not None and are_counts(rows.weight):
            remark = ("the weights are whole numbers: if a weight counts equal rows, write each of them into the file, "
                      "and have the plan leave data.weight out")  # fmt: skip
            rows = replace(rows, warnings=(*rows.warnings, remark))
    used = [*rows.frame, *roles.metadata.values(), roles.target, roles.client]
    obstacles.add(_find_forbidden(used, site, policy))
    if roles.client is None:
        rows = replace(rows, client=np.full(len(rows.y), site.file_client))
    n_before = len(obstacles.errors)
    with obstacles.noting():
        rows = replace(rows, y=_read_targets(rows.y, options, site.path))
    has_targets = len(obstacles.errors) == n_before
    kinds: dict[str, Column | None] = {}
    for name in rows.frame:
        kinds[str(name)] = None
        if not is_missing(rows.frame[name]).all():
            with obstacles.noting(), for_owner_alone(_UNREADABLE):
                kinds[str(name)] = table.infer_column(rows.frame[name], rows.client)
    client_rows = None
    with obstacles.noting(), for_owner_alone(_UNREADABLE):
        names, index = table.assign_clients(rows, rows.y)
        client_rows, _ = table.divide(rows, names, index, HoldOut(options.validation, options.test).for_clients(names))
    if client_rows is None:
        obstacles.raise_any()
        raise AssertionError("rows that cannot be divided have an obstacle")
    site_table = SiteTable(
        options=options,
        policy=policy,
        rows=rows,
        kinds=kinds,
        client_rows=client_rows,
        keep=tuple(site.keep or ()),
        uploads_by_client=uploads_by_client,
        holds_clients_out=holds_clients_out,
    )
    if has_targets and draw_folds is not None:
        with obstacles.noting():
            site_table = replace(site_table, fold=draw_folds(site_table))
    site_table = _hide_rare_values(site_table)
    obstacles.add([*_find_gaps(site_table), *_find_small_sets(site_table, has_targets)])
    for check in checks:
        with obstacles.noting():
            check(site_table)
    obstacles.raise_any()
    return site_table


def _hide_rare_values(table: SiteTable) -> SiteTable:
    """Return the table without rare values of columns of two values: sums over the rows tell rows of a rare value.

    A column with fewer than ``policy.min_cell`` patients of one value, but some, in a set of training rows has the more
    frequent value in all rows. Few validation or test rows of one value take the other value. Gaps stay gaps. The
    mended cells take the place of the cells of the file right after the file is read, so that no answer depends on the
    rare cells. Where sums of single clients leave, or those of all but the clients that a fold holds out, a value that
    few rows of a client have is rare, too.
    """
    least = table.policy.min_cell
    frame = table.rows.frame
    training = table.masks[0]
    sets = table.list_sums(table.sums_by_client)
    mended = {}
    rarer_rows = {}
    constant = set()
    first_rows = np.flatnonzero(training)[:_FIRST_ROWS]
    for name, column in table.kinds.items():
        if column is None:
            continue
        if has_numpy_numbers(frame[name]):
            first_cells = frame[name].to_numpy()[first_rows]
            if len(np.unique(first_cells[~np.isnan(first_cells)])) > 2:
                continue
        number = number_values(frame[name], column)
        pair = _find_pair(number, training)
        if pair is None:
            continue
        frequent, rare = pair
        rarer_rows[name] = table.describe_rows(training & (number == rare), " training rows of the file")
        new_number = number.copy()
        if any(sets.has_few(number == value, least) for value in pair):
            new_number[number != _GAP] = frequent
            constant.add(name)
        for mask in table.masks[1:]:
            n_frequent, n_rare = (table.patients.count(mask & (new_number == value)) for value in pair)
            if are_few(n_rare, least):
                new_number[mask & (new_number == rare)] = frequent
            elif are_few(n_frequent, least) and n_rare:
                new_number[mask & (new_number == frequent)] = rare
        is_changed = new_number != number
        if is_changed.any():
            mended[name] = frame[name]
            for value in np.unique(new_number[is_changed]).tolist():
                cell = frame[name].iloc[int((number == value).argmax())]
                mended[name] = mended[name].mask(is_changed & (new_number == value), cell)
    file_cells = {name: frame[name] for name in mended}
    if mended:
        frame = frame.assign(**mended)
    rows = replace(table.rows, frame=frame)
    return replace(table, rows=rows, rarer_rows=rarer_rows, constant=frozenset(constant), file_cells=file_cells)


def number_values(series: Any, column: Column) -> np.ndarray:
    """Return the number of the value of each cell of a pandas.Series, (N,), in the order of the values; -1 of a gap."""
    present = ~is_missing(series)
    cells = column.read_values(series)
    number = np.full(len(cells), _GAP)
    number[present] = np.unique(cells[present], return_inverse=True)[1]
    return number


def _find_pair(number: np.ndarray, training: np.ndarray) -> tuple[int, int] | None:
    """Return the numbers of the two values of a column, the more frequent one of the training rows first.

    Returns None for a column that has two values neither in the training rows nor in all rows. Without a training row,
    the more frequent value is that of all rows.
    """
    has_value = number != _GAP
    trained = np.unique(number[training & has_value])
    pair = trained if len(trained) == 2 else np.unique(number[has_value])
    if len(pair) != 2:
        return None
    counted = training if len(trained) else has_value
    one, other = pair.tolist()
    if (counted & (number == other)).sum() > (counted & (number == one)).sum():
        return other, one
    return one, other


def _read_renamed(site: SiteOptions, roles: ColumnRoles, options: FileOptions) -> ParsedTable:
    """Return the table of a site with the shared names of its columns."""
    where = f"data.path={site.path}"
    rename = site.rename or {}
    own_names = site.own_names
    file = find_file(site.path)
    ending = detect_ending(file, where)
    if ending not in NAMED_COLUMN_ENDINGS:
        raise UserError(f"{where}: the columns of a site have names: give one of {', '.join(NAMED_COLUMN_ENDINGS)}")
    target = own_names.get(str(roles.target), roles.target)
    text_columns = [own_names.get(name, name) for name in replace(roles, keep=site.keep).text_columns]
    check_file_options(options, ending)
    with telling_of_long_reading(where):
        parsed = read_named_columns(
            file, ending, target, text_columns, where=where, options=options, encoding_hint=ENCODING_HINT
        )
    names = parsed.frame.columns.tolist()
    for site_name, shared in rename.items():
        if site_name not in names:
            raise UserError(f"data.rename: {site.path} has no column '{site_name}'; {suggest_name(site_name, names)}")
        if shared in names and shared not in rename:
            raise UserError(f"data.rename: '{site_name}' cannot be called '{shared}', another column of {site.path}: "
                            "rename that one too")  # fmt: skip
    if len(set(rename.values())) < len(rename):
        raise UserError("data.rename gives two columns one name: give two")
    return parsed.rename(rename)


def _find_forbidden(columns: Sequence[str | None], site: SiteOptions, policy: Policy) -> Iterator[UserError]:
    """Yield an error for each used column that the policy does not allow."""
    own_names = site.own_names
    for name in dict.fromkeys(columns):
        if name is None or policy.columns is None or own_names.get(name, name) in policy.columns:
            continue
        yield UserError(f"policy.columns of this site does not allow the column '{name}' of the plan: its owner may "
                        "add it, or the plan leaves it out")  # fmt: skip


def _read_targets(y: np.ndarray, options: Sites, path: str) -> np.ndarray:
    """Return numbers for a regression, signed times, else labels.

    Raises OwnTableError for values that do not fit the task.
    """
    column = f"data.path={path}: target '{options.target}'"
    if y.dtype.kind == "f" and not np.isfinite(y).all():
        row = int((~np.isfinite(y)).argmax()) + 1
        raise OwnTableError(f"{column} is missing or infinite in row {row}: fill it in or drop it", _UNREADABLE)
    if not options.target_task.has_classes:
        if y.dtype.kind not in "fiub":
            absent = f"the target '{options.target}' is text, and data.task=regression needs numbers"
            raise OwnTableError(f"{column}: {absent}, not '{y[0]}'", absent)
        if y.dtype.kind == "f":
            return y
        return y.astype(np.float64)
    if y.dtype.kind == "f":
        if not (y == np.floor(y)).all():
            absent = f"the target '{options.target}' holds fractions, and data.task={options.task} needs labels"
            raise OwnTableError(f"{column}: {absent}", absent)
        y = whole_as_integers(y)
    labels = np.unique(y).tolist()
    n_others = sum(str(label) != str(options.positive) for label in labels)
    if options.target_task.has_two_classes and options.classes is None and n_others > 1:
        fault = (f"{n_others} labels besides data.positive={options.positive} of the plan, which expects one: write "
                 "them as the plan does")  # fmt: skip
        raise OwnTableError(f"{column} has {abbreviate(list(map(repr, labels)))}, {fault}",
                            f"the target '{options.target}' has {fault}")  # fmt: skip
    for label in labels:
        if options.classes is not None and str(label) not in options.classes:
            public = f"the target '{options.target}' has a label that data.classes of the plan does not list"
            raise OwnTableError(f"{column}: data.classes of the plan does not list the label '{label}'", public)
    return y


def _find_gaps(table: SiteTable) -> Iterator[UserError]:
    """Yield an error for gaps if they are refused, and for few rows of a client with a gap, or with a value.

    An indicator tells the rows with a gap from all others, so that both are sets that an answer sums over: of training
    rows, at least ``policy.min_rows``, and of held-out rows, which are scored alone, at least ``policy.min_cell``. A
    level that fills gaps changes at least ``policy.min_cell`` training rows. The fill of a column of numbers is near
    the site's own values (``table_checks``), and tells no row from the others; their values are summed.
    """
    missing = table.options.missing
    for column, has_gap in find_gaps(table.rows.frame).items():
        if not has_gap.any():
            continue
        if missing == "refuse":
            yield UserError(f"column '{column}' has gaps: give data.missing=mean, median or indicator in the plan, or "
                            f"data.ignore=[{column}]")  # fmt: skip
            continue
        is_number = column not in table.level_counts
        gaps, values = table.count_patients(has_gap), table.count_patients(~has_gap)
        for cells, counts in (("gaps", gaps), ("values", values)):
            if missing != "indicator" and is_number and cells == "gaps":
                continue
            for m, split in zip(*np.nonzero((gaps > 0) & (counts > 0)), strict=True):
                if missing != "indicator" and split:
                    continue
                rule = "min_rows" if split == 0 and (missing == "indicator" or is_number) else "min_cell"
                least = getattr(table.policy, rule)
                if counts[m, split] < least:
                    few = table.describe_few(rule, f"{ROWS[split]} rows")
                    yield UserError(f"client '{table.clients[m]}' has {cells} of '{column}' in {few}: "
                                    f"add '{column}' to data.ignore of the plan")  # fmt: skip


def _find_small_sets(table: SiteTable, has_targets: bool) -> Iterator[UserError]:
    """Yield an error for each set of few rows, but some.

    The sets are the training, validation or test rows of a client; those with a value of a column of levels, which
    names no rows or persons; and those of a class, or of a value of a target of two values, if the table
    ``has_targets`` that can be read. All rows of a client are in one of the first three, so that the complement of each
    is allowed too.
    """
    index = table.client_rows.client_index
    counts = table.count_patients(np.ones(len(index), bool))
    for m, split in zip(*np.nonzero(are_few(counts, table.policy.min_rows)), strict=True):
        cure = "give other data.validation and data.test"
        in_set = table.masks[split] & (index == m)
        yield make_few_rows_error(table, m, in_set, f"{ROWS[split]} rows", cure)
    for name, counts in table.level_counts.items():
        try:
            check_level_count(name, len(counts), counts.total(), "the table of this site")
        except UserError as error:
            yield error
        has_value = ~is_missing(table.columns[name])
        if are_few(table.patients.count(table.masks[0] & has_value), table.policy.min_cell):
            few = table.describe_few("min_cell", "training rows")
            yield UserError(f"column '{name}' has values in {few}: add '{name}' to data.ignore of the plan")
    minimum = table.policy.min_cell
    target = table.options.target
    kind = table.options.target_task.target_noun
    of_target = f"of '{target}'" if kind == "class" else f"of '{target}', which has two,"
    for rows, mask in zip(ROWS, table.masks, strict=True):
        if not has_targets or table.labels is None:
            break
        labels, number = np.unique(table.labels, return_inverse=True)
        by_client = table.uploads_by_client and rows == ROWS[0]  # held-out rows are in no upload
        part = number
        n_clients = 1
        if by_client:
            n_clients = len(table.clients)
            part = number * n_clients + table.client_rows.client_index
        counts = table.patients.count_parts(np.where(mask, part, -1), len(labels) * n_clients)
        for label in labels[are_few(counts.reshape(len(labels), n_clients), minimum).any(axis=1)].tolist():
            of_client = " of a client" if by_client else ""
            few = (f"has {table.describe_few('min_cell', f'{rows} rows{of_client}')}: "
                   "leave the site out, hold out other rows, or have the site's owner allow fewer, min_cell in "
                   "the file of policy=FILE")  # fmt: skip
            yield OwnTableError(f"the {kind} '{label}' {of_target} {few}", f"a {kind} {of_target} {few}")


def make_few_rows_error(table: SiteTable, m: int, rows: np.ndarray, name: str, cure: str) -> UserError:
    """Return the error for rows of a client, in a mask, that stand for fewer patients than the policy allows."""
    minimum = table.policy.min_rows
    patients = table.patients
    few = f"fewer than {minimum} {name}"
    if rows.sum() >= minimum and patients.unweighted.count(rows) < minimum:
        few = f"{name} that data.group={table.options.group} counts like fewer than {minimum} patients of equal rows"
    elif rows.sum() >= minimum and are_few(patients.count(rows & ~patients.has_weight(len(rows))), minimum):
        few = f"{name} of which some, but fewer than {minimum}, have weight 0 by data.weight={table.options.weight}"
        cure = f"drop these from the file, plan without data.weight, {cure}"
    elif rows.sum() >= minimum:
        few = f"{name} that data.weight={table.options.weight} weighs like fewer than {minimum} rows of equal weight"
        cure = f"plan without data.weight, {cure}"
    return UserError(f"client '{table.clients[m]}' has {few}, the least that policy.min_rows of this site allows: "
                     f"{cure}, or leave the client out")  # fmt: skip
