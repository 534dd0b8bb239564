"""Groups of rows: the client of each row, the rows to hold out for validation and test, and rows that stay together."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Int, Shaped

from fcorun.base.errors import UserError, abbreviate, suggest_name, warn_similar_names, word
from fcorun.base.system.random_streams import draw_uniform_per_group, random_stream
from fcorun.data.rows.rows import Rows, renumber_clients
from fcorun.data.tables.cells import column_as_text, names_as_text
from fcorun.data.tables.column_roles import SPLITS, ParsedRows
from fcorun.data.tables.columns.column import TrainingRows
from fcorun.data.tables.columns.infer_kind import holds_dates

DEFAULT_VALIDATION = 0.2  # the fraction of each client's rows unless a file or an option says otherwise
_MANY_VALUES = 100  # a text column with more values may name groups
_FEW_VISITS = 1.5  # mean rows of a value of a feature that may name groups
_MANY_VISITS = 10
_MANY_VALUES_OF_CLIENT = 10  # on average: fewer may be those of a score or a stage
_FEW_GAPS = 0.75  # the least share of the numbers up to the largest one that a client's numbering has
_MIN_CLIENTS = 3  # with fewer, the ranges of an ordinary feature, such as the age, may not overlap
FractionOrClients = float | list[str] | None


@dataclass(frozen=True)
class HoldOut:
    """The options that say which rows are held out.

    Attributes:
        validation, test: a fraction of each client's rows, or names of clients. None stands for the rows that the file
            marks, else for 0.2 of the rows in validation and none in the test. Where rows have groups, a fraction is
            the probability of each group to be held out.
    """

    validation: FractionOrClients
    test: FractionOrClients

    def __post_init__(self):
        for split, option in self.options.items():
            if isinstance(option, list):
                object.__setattr__(self, split, names_as_text(np.array(option, str)).tolist())

    @property
    def options(self) -> dict[str, Any]:
        """The options by split."""
        return {"validation": self.validation, "test": self.test}

    def check(self) -> None:
        """Raise UserError for a fraction out of range, for no rows left to train on, and for a client named twice."""
        for split, option in self.options.items():
            if isinstance(option, (int, float)) and not 0 <= option < 1:
                raise UserError(f"`data.{split}={option}` must be at least 0 and less than 1, or a list of clients")
        if isinstance(self.test, (int, float)) and not isinstance(self.validation, list):
            validation = DEFAULT_VALIDATION if self.validation is None else self.validation
            if self.test and validation + self.test >= 1:
                given = "" if self.validation is not None else ", its default,"
                raise UserError(f"`data.validation={validation}`{given} and `data.test={self.test}` leave no rows to "
                                "train on: their sum must be less than 1")  # fmt: skip
        if isinstance(self.test, list) and isinstance(self.validation, list):
            for name in self.test:
                if name in self.validation:
                    raise UserError(
                        f"`data.validation` and `data.test` both name the client '{name}': name it in one of them"
                    )

    def check_clients(self, client_names: Sequence[str]) -> None:
        """Raise UserError if ``validation`` or ``test`` names a client that there is not."""
        for split, option in self.options.items():
            for client in option if isinstance(option, list) else ():
                if client not in client_names:
                    suggestion = suggest_name(client, client_names)
                    raise UserError(f"`data.{split}`: there is no client '{client}'; {suggestion}")

    def for_clients(self, names: Sequence[str]) -> "HoldOut":
        """Return the options as far as they are about these clients, those of a site."""
        at_site = []
        for option in (self.validation, self.test):
            at_site.append([name for name in option if name in names] if isinstance(option, list) else option)
        return HoldOut(*at_site)

    def check_test_rows(self, n_rows: int, by_groups: bool) -> None:
        """Raise UserError if ``test`` asks for rows and none of all clients' rows was drawn."""
        if self.test and not n_rows:
            reason = "none of the few groups was drawn" if by_groups else "no client has enough of them"
            raise UserError(f"`data.test={self.test}` holds out no row, since {reason}: "
                            "give a larger fraction, or names of clients")  # fmt: skip

    def draw_masks(
        self, rows: ParsedRows, client_names: list[str], client_index: Int[np.ndarray, " N"], *, path: str, seed: int
    ) -> tuple[Bool[np.ndarray, " N"], Bool[np.ndarray, " N"]]:
        """Return the masks of the validation rows and of the test rows, shape (N,) each, which do not overlap.

        Fractions count all rows of a client. A fraction ``validation`` does not change the rows of the test. The rows
        of a group stay together, and a number drawn from (seed, group) alone decides whether the group is held out.

        Args:
            rows: the rows of the file, with the masks that the file marks, and with the groups.
            client_names: the names of the clients.
            client_index: the index of each row's client, shape (N,); ``len(client_names)`` for a row of no client.
            path: the file, for errors.
            seed: the seed of fractions.

        Raises UserError for rows of both splits, for a split that the file and an option both give, and for names of
        clients where rows have none.
        """
        masks: dict[str, np.ndarray] = {}
        for split, option in self.options.items():
            marked = getattr(rows, split)
            if marked is not None and option is not None:
                raise UserError(f"`data.{split}={option}`: {path} marks its {split} rows itself; leave "
                                f"`data.{split}` out, or the array out of the file")  # fmt: skip
            if marked is not None:
                masks[split] = marked
            elif isinstance(option, list):
                if rows.client is None and option:
                    raise UserError(f"`data.{split}={option}`: the rows have no named clients; give "
                                    f"`data.client=...` or a fraction of the rows, `data.{split}=0.2`")  # fmt: skip
                masks[split] = np.isin(np.array([*client_names, ""])[client_index], option)
                if rows.group is not None:
                    masks[split] = np.isin(rows.group, rows.group[masks[split]])
        # rows that the file or clients' names hold out are no candidates for the other split
        for split, other, default in (("test", "validation", 0.0), ("validation", "test", DEFAULT_VALIDATION)):
            if split in masks:
                continue
            option = self.options[split]
            fraction = default if option is None else option
            excluded = masks.get(other, np.zeros(len(client_index), bool))
            if rows.group is None:
                drawn = hold_out(client_index, client_names, fraction, split=split, seed=seed, excluded=excluded)
            else:
                uniforms = draw_uniform_per_group(rows.group, random_stream(seed, "table", "group"))
                is_drawn = uniforms < fraction if split == "test" else uniforms >= 1 - fraction
                drawn = is_drawn & ~excluded
            masks[split] = drawn
        both = masks["validation"] & masks["test"]
        if both.any():
            row = int(both.argmax())
            group = "" if rows.group is None else f", of group '{rows.group[row]}',"
            raise UserError(f"`data.path={path}`: row {row + 1}{group} is held out for validation and for the test, by "
                            "the file, `data.validation` or `data.test`: hold it out for one of them")  # fmt: skip
        return masks["validation"], masks["test"]


def hold_out(
    client_index: Int[np.ndarray, " N"],
    client_names: Sequence[str],
    fraction: float,
    *,
    split: str,
    seed: int,
    excluded: Bool[np.ndarray, " N"] | None = None,
) -> Bool[np.ndarray, " N"]:
    """Return the mask of rows to hold out, shape (N,): ``fraction`` of each client's rows, rounded down, at random.

    Rows are drawn from (seed, split, client's name) alone: the rows of other clients do not change them. Rows that are
    ``excluded`` (N,) are not drawn, nor are rows whose ``client_index`` is no client's.
    """
    held_out = np.zeros(len(client_index), dtype=bool)
    if excluded is None:
        excluded = np.zeros(len(client_index), dtype=bool)
    order = np.argsort(client_index, kind="stable")
    bounds = np.searchsorted(client_index[order], np.arange(len(client_names) + 1))
    for name, start, stop in zip(client_names, bounds[:-1], bounds[1:], strict=True):
        rows = order[start:stop]
        count = int(fraction * len(rows) + 1e-9)  # 0.29 * 100 is 28.999...
        if not count:
            continue
        priority = random_stream(seed, "table", split, name).random(len(rows))
        priority += excluded[rows]  # excluded rows come last
        held_out[rows[np.argsort(priority)[:count]]] = True
    return held_out & ~excluded


def check_groups_intact(
    group: Shaped[np.ndarray, " N"], label: Shaped[np.ndarray, " N"], option: str, column: str
) -> None:
    """Raise UserError, which begins with ``option``, where rows of one group have two labels, such as two splits.

    ``group`` and ``label`` have shape (N,); ``column`` is the column of groups.
    """
    if (mixed := find_mixed_group(group, label)) is not None:
        name, first, second = mixed
        raise UserError(f"{option}: group '{name}' of `data.group={column}` has rows of '{first}' and of '{second}': "
                        "mark all rows of a group alike, or leave `data.group` out")  # fmt: skip


def warn_groups_across_clients(
    group: Shaped[np.ndarray, " N"],
    client_index: Int[np.ndarray, " N"],
    client_names: Sequence[str],
    column: str,
    keep: bool,
) -> list[str]:
    """Return a warning about groups with rows of several clients. Raise UserError for such groups unless ``keep``."""
    if (mixed := find_mixed_group(group, client_index)) is None:
        return []
    if not keep:
        name, *indices = mixed
        first, second = ([*client_names, ""][index] or "nobody" for index in indices)
        raise UserError(f"`data.group={column}`: group '{name}' has rows of client {first} and of client {second}: if "
                        f"these are two groups, give them two names, such as {first}-{name}; if they are one, "
                        "`data.group_across=keep` holds it out at all of its clients at once")  # fmt: skip
    group_index = np.unique(group, return_inverse=True)[1]
    pairs = np.unique(np.stack([group_index, client_index]), axis=1)
    n_across = int((np.bincount(pairs[0]) > 1).sum())
    return [word(f"`data.group={column}`: {n_across} groups have rows of several clients: "
            "`data.group_across=keep` holds such a group out at all of its clients at once, also where a whole "
            "client is held out")]  # fmt: skip


def find_mixed_group(group: np.ndarray, label: np.ndarray) -> tuple[Any, Any, Any] | None:
    """Return the first group whose rows have two labels, and these labels; None where no group is mixed."""
    order = np.lexsort((label, group))
    group = group[order]
    label = label[order]
    mixed = (group[1:] == group[:-1]) & (label[1:] != label[:-1])
    if not mixed.any():
        return None
    row = int(mixed.argmax())
    return group[row], label[row], label[row + 1]


def summarize_groups(
    group: Shaped[np.ndarray, " N"], column: str, validation: Bool[np.ndarray, " N"], test: Bool[np.ndarray, " N"]
) -> list[str]:
    """Return sentences on the numbers of groups and of held-out groups, and on groups with similar names."""
    held_out = []
    for split, mask in (("validation", validation), ("the test", test)):
        if mask.any():
            held_out.append(f"{len(np.unique(group[mask])):,} with {mask.sum():,} rows for {split}")
    names = np.unique(group)
    summary = word(f"`data.group={column}`: the rows of each of {len(names):,} groups stay together")
    if held_out:
        summary += f"; held out are {' and '.join(held_out)}"
    return [summary, *warn_similar_names(word(f"`data.group={column}`: groups"), names.tolist())]


# R's survival has the visits of 312 patients in ``pbcseq``, whose column ``id`` names the patient.
def suggest_group_columns(frame: Any, ignored: Sequence[str], features: Sequence[str], client: str | None) -> list[str]:
    """Return a hint about columns that may name groups of rows, such as patients of visits.

    An ignored column may name groups if it holds repeated text other than dates, or repeated whole numbers. Either each
    value belongs to one client and there are more than two values for each client, or the values are text and more than
    100 or than half of the rows. A feature may name groups if it holds whole numbers, of which each belongs to one of
    three clients or more, and to 1.5 to 10 rows on average. Both may name groups that each client numbers by itself.
    """
    from pandas.api import types

    client_of_row = np.full(len(frame), "") if client is None else frame[client].astype(str).to_numpy()
    client_index = np.unique(client_of_row, return_inverse=True)[1]
    n_clients = int(client_index.max(initial=0)) + 1
    candidates = []
    warnings = []
    for name in (*ignored, *features):
        series = frame[name]
        is_feature = name not in ignored
        is_text = series.dtype.kind not in "iu"
        if series.isna().any() or (is_feature and is_text):
            continue
        if not types.is_integer_dtype(series.dtype):  # else text, other than dates, may name groups
            is_other = types.is_numeric_dtype(series.dtype) or types.is_datetime64_any_dtype(series.dtype)
            if is_other or holds_dates(series):
                continue
        n_values = series.nunique()
        if n_values == len(series):
            continue
        within_clients = False
        if client is not None and (not is_feature or _FEW_VISITS <= len(series) / n_values <= _MANY_VISITS):
            within_clients = find_mixed_group(column_as_text(series), client_of_row) is None
        if within_clients:
            names_groups = n_values > 2 * n_clients and (not is_feature or n_clients >= _MIN_CLIENTS)
        elif names_groups := _names_visits(series, client_index, is_feature):
            if n_clients > 1:
                warnings.append(word(f"values of '{name}' repeat within each client, and at several clients: if rows "
                                     "of a client with one value belong together, as the visits of a patient do, make "
                                     f"the names unique, such as A-17, and `data.group={name}` keeps the rows together "
                                     "where rows are held out"))  # fmt: skip
                continue
        elif not is_feature:
            names_groups = is_text and (n_values > _MANY_VALUES or n_values > len(series) / 2)
        if names_groups:
            candidates.append((name, n_values))
    if candidates:
        counts = [f"'{name}' has {n_values:,} values in {len(frame):,} rows" for name, n_values in candidates]
        warnings.append(word(f"{abbreviate(counts)}: if rows with one value belong together, as the visits of a "
                             f"patient do, `data.group={candidates[0][0]}` keeps them together where rows are held "
                             "out"))  # fmt: skip
    return warnings


def _names_visits(series: Any, client_index: Int[np.ndarray, " N"], is_feature: bool) -> bool:
    """Return whether values of a pandas.Series may name the patients whose visits a client's rows are.

    A client has ten values or more on average, and 1.5 to 10 rows of each. Most of these rows stand together, or the
    values of each client are numbers from 0 or 1 with few gaps; both hold for a feature.
    """
    import pandas as pd

    n_clients = int(client_index.max()) + 1
    value_of_client = pd.Series(pd.factorize(series)[0] * n_clients + client_index)
    n_values = value_of_client.nunique()
    if n_values < _MANY_VALUES_OF_CLIENT * n_clients or not _FEW_VISITS <= len(series) / n_values <= _MANY_VISITS:
        return False
    n_repeats = len(series) - n_values
    stand_together = 2 * int((value_of_client == value_of_client.shift()).sum()) >= n_repeats
    is_numbering = False
    if series.dtype.kind in "iu":
        of_client = series.groupby(client_index)
        has_few_gaps = of_client.nunique() >= _FEW_GAPS * of_client.max()
        is_numbering = bool((of_client.min().isin([0, 1]) & has_few_gaps).all())
    if is_feature:
        return stand_together and is_numbering
    return stand_together or (is_numbering and n_clients > 1)  # at one client a count of days may be numbers from 1


@dataclass(frozen=True)
class ClientRows:
    """The rows of each client in a table, and their splits.

    Attributes:
        client_names: the names of the M clients.
        client_index: the index of each row's client, M for a row of no client, shape (N,).
        masks: the masks of the training, validation and test rows, each (N,).
    """

    client_names: Sequence[str]
    client_index: np.ndarray
    masks: tuple[np.ndarray, np.ndarray, np.ndarray]

    @property
    def is_training(self) -> np.ndarray:
        """The mask of training rows, shape (N,)."""
        return self.masks[0]

    @cached_property
    def training(self) -> TrainingRows:
        """The training rows, sorted by client."""
        rows = self.sort_rows(0)
        return TrainingRows(rows, self.client_index[rows])

    def sort_rows(self, split: int) -> np.ndarray:
        """Return the indices of the rows of a split, sorted by client, in the order of the table within a client."""
        rows = np.flatnonzero(self.masks[split])
        return rows[np.argsort(self.client_index[rows], kind="stable")]

    def split(self, rows: ParsedRows, x: Any, y: np.ndarray, remark: np.ndarray | None = None) -> dict[str, Any]:
        """Return the rows of each split, and the names of clients, as the arguments of ``FederatedData``.

        Args:
            rows: the rows of the table, with their groups, folds, weights and offsets.
            x: their features, (N, d), which may stay on disk.
            y: their targets, (N,).
            remark: a remark on the prediction of each row, (N,), or None.
        """
        number = np.where(self.client_index == len(self.client_names), -1, self.client_index)
        number, trained, others = renumber_clients(number, self.is_training)
        all_rows = Rows(
            x,
            y,
            number,
            weight=rows.weight,
            offset=rows.offset,
            row=np.arange(len(y), dtype=np.int32) if rows.row is None else rows.row,
            group=rows.group,
            fold=rows.fold,
            repeated_columns=rows.repeated_columns,
            remark=remark,
        )
        train, validation, test = (all_rows.take(self.sort_rows(split)) for split in range(len(SPLITS)))
        return {
            "train": train,
            "validation": validation,
            "test": test,
            "clients": tuple(self.client_names[m] for m in trained),
            "held_out_clients": tuple(self.client_names[m] for m in others),
        }


def assign_rows(
    kind: str, y: Shaped[np.ndarray, " N"], clients: int, alpha: float, rng: np.random.Generator
) -> Int[np.ndarray, " N"]:
    """Return the client of each row, shape (N,), from 0 to ``clients - 1``; no client is empty if N >= ``clients``.

    Args:
        kind: "iid" divides shuffled rows equally; "sorted" divides the rows, ordered by target, equally;
            "by_label" gives each client rows of one label, or whole labels where there are more labels than clients;
            "dirichlet" draws each client's label proportions from a symmetric Dirichlet law, clients being of equal
            size (Hsu, Qi and Brown, 2019, arXiv:1909.06335).
        y: targets, shape (N,); class indices for "by_label" and "dirichlet".
        clients: their number.
        alpha: concentration of the Dirichlet law; the smaller, the more the clients differ.
        rng: source of randomness.
    """
    shuffled = rng.permutation(len(y))
    if kind == "iid":
        rows_by_client = np.array_split(shuffled, clients)
    elif kind == "sorted":
        rows_by_client = np.array_split(np.argsort(y, kind="stable"), clients)
    else:
        rows_by_class = [shuffled[y[shuffled] == k] for k in np.unique(y)]
        if kind == "by_label":
            rows_by_client = _split_by_label(rows_by_class, clients)
        else:
            rows_by_client = _split_by_dirichlet(rows_by_class, clients, alpha, rng)
    client_index = np.empty(len(y), dtype=np.int64)
    for client, rows in enumerate(rows_by_client):
        client_index[rows] = client
    return client_index


def _split_by_label(rows_by_class: list[np.ndarray], clients: int) -> list[np.ndarray]:
    """Return the rows of each client, all of one label, or of whole labels where clients are fewer than labels."""
    if clients < len(rows_by_class):  # the largest label goes first, each to the client with the fewest rows
        rows_by_client = [np.empty(0, np.int64)] * clients
        for rows in sorted(rows_by_class, key=len, reverse=True):
            client = int(np.argmin(list(map(len, rows_by_client))))
            rows_by_client[client] = np.append(rows_by_client[client], rows)
        return rows_by_client
    n_rows = np.array(list(map(len, rows_by_class)))
    n_clients = np.ones(len(rows_by_class), int)
    for _ in range(clients - len(rows_by_class)):  # the label with the most rows a client gets one more client
        n_clients[np.argmax(n_rows / n_clients)] += 1
    rows_by_client = []
    for rows, count in zip(rows_by_class, n_clients, strict=True):
        rows_by_client += np.array_split(rows, count)
    return rows_by_client


def _split_by_dirichlet(
    rows_by_class: list[np.ndarray], clients: int, alpha: float, rng: np.random.Generator
) -> list[np.ndarray]:
    """Return the rows of each client, all of about equal size, with label proportions from a Dirichlet law."""
    remaining = np.array([len(rows) for rows in rows_by_class])
    rows_by_client = []
    for size in [len(share) for share in np.array_split(np.arange(remaining.sum()), clients)]:
        proportions = np.nan_to_num(rng.dirichlet(np.full(len(remaining), alpha)))
        pieces = []
        while size:  # a label may run out; the rows still missing are drawn from the others
            proportions = proportions * (remaining > 0)
            if proportions.sum() > 0:
                proportions = proportions / proportions.sum()
            else:
                proportions = (remaining > 0) / (remaining > 0).sum()
            counts = np.minimum(rng.multinomial(size, proportions), remaining)
            pieces += [rows_by_class[k][remaining[k] - n : remaining[k]] for k, n in enumerate(counts)]
            remaining = remaining - counts
            size -= counts.sum()
        rows_by_client.append(np.concatenate(pieces))
    return rows_by_client


def sort_client_names(names: Iterable[str]) -> list[str]:
    """Return the names sorted by their numbers if all are numbers, otherwise in the order of the alphabet."""
    try:
        return sorted(names, key=lambda name: (float(name), name))
    except ValueError:
        return sorted(names)
