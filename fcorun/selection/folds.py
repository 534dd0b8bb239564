"""Which rows are held out in which fold, which rows a subsample has, and how many there are of which kind."""

from collections.abc import Iterator
from math import comb

import numpy as np
from jaxtyping import Bool, Float, Int

from fcorun.datasets.base import FederatedData
from fcorun.errors import UserError
from fcorun.experiment.experiment import Experiment
from fcorun.tables.groups import draw_uniform_per_group
from fcorun.tables.splits import DEFAULT_VALIDATION

Mask = Bool[np.ndarray, " N"]


def assign_folds(data: FederatedData, n_folds: int, by: str, rng: np.random.Generator) -> Int[np.ndarray, " N"]:
    """The fold in which each training row is held out, (N,), from 0.

    By "rows", each client's rows are dealt out in a random order, those of a class evenly; by "clients", whole clients
    are. Folds that the data name are taken. Rows of one group are of one fold, by a number drawn from (seed, group)
    alone. Raises UserError where there are fewer rows of a client, clients or groups than folds.
    """
    if data.fold is not None:
        return np.searchsorted(list_marked_folds(data), data.fold)
    if by == "clients":
        if n_folds > len(data.sizes):
            raise UserError(
                f"folds={n_folds} is more than the {len(data.sizes)} clients that by=clients deals out: give "
                f"at most {len(data.sizes)}"
            )
        return np.repeat(rng.permutation(np.arange(len(data.sizes)) % n_folds), data.sizes)
    if data.group is not None:
        found = np.floor(draw_uniform_per_group(data.group, rng) * n_folds).astype(np.int64)
        if len(empty := np.setdiff1d(np.arange(n_folds), found)):
            count = len(np.unique(data.group))
            raise UserError(f"folds={n_folds}: fold {empty[0] + 1} holds out none of the {count} groups of data.group, "
                            "which are dealt out at random: give fewer folds")  # fmt: skip
        return found
    least = int(data.sizes.argmin())
    if n_folds > data.sizes[least]:
        raise UserError(f"folds={n_folds} is more than the {data.sizes[least]} training rows of client "
                        f"{_name(data, least)}: give fewer folds, or by=clients")  # fmt: skip
    found, dealt = np.empty(len(data.y), np.int64), 0
    for rows in _shuffled(data, rng):
        found[rows] = (dealt + np.arange(len(rows))) % n_folds
        dealt += len(rows)  # the next client begins where this one ended, so that folds are of one size
    return found


def list_marked_folds(data: FederatedData) -> list[str]:
    """Return the names of the folds that the data mark, in order; none where folds are drawn."""
    return [] if data.fold is None else np.unique(data.fold).tolist()


def check_groups_within_clients(data: FederatedData) -> None:
    """Raise UserError where clients cannot be held out wholly, since a group of rows is of several."""
    if data.group is None:
        return
    pairs = np.unique(np.stack([np.unique(data.group, return_inverse=True)[1], _owner(data)]), axis=1)
    across = np.flatnonzero(np.diff(pairs[0]) == 0)
    if len(across):
        one, other = (data.client_names[m] for m in pairs[1, across[0] : across[0] + 2])
        name = np.unique(data.group)[pairs[0, across[0]]]
        raise UserError(f"by=clients holds whole clients out, and group '{name}' of data.group has rows of {one} and "
                        f"of {other}, which would be on both sides: give by=rows")  # fmt: skip


def _owner(data: FederatedData) -> Int[np.ndarray, " N"]:
    """The number of each row's client, (N,)."""
    return np.repeat(np.arange(len(data.sizes)), data.sizes)


def compute_fold_weights(data: FederatedData, fold: Int[np.ndarray, " N"], by_rows: bool) -> Float[np.ndarray, " K"]:
    """Return what each fold counts in a mean over the folds, (K,): the weights of its rows added up, or 1."""
    found = np.bincount(fold, data.weight)
    return found if by_rows else np.ones(len(found))


def list_held_out_clients(data: FederatedData, fold: Int[np.ndarray, " N"]) -> dict[str, list[str]]:
    """The clients that each fold by clients holds out, by name: fold1, fold2, ..."""
    first = fold[data.offsets[:-1]]
    return {f"fold{k + 1}": [_name(data, int(m)) for m in np.flatnonzero(first == k)] for k in range(first.max() + 1)}


def draw_halves(data: FederatedData, pairs: int, by: str, rng: np.random.Generator) -> Iterator[Mask]:
    """Complementary pairs of random halves, one half after the other: 2 ``pairs`` masks of the training rows, (N,).

    By "rows", half of each client's rows, rounded down, and about half of each class, or about half of the groups where
    rows have some, drawn by (seed, group) alone; by "clients", half of the clients, no pair twice. Shah and Samworth
    (J. R. Stat. Soc. B 2013), section 2. Raises UserError where there are not two of them, or not so many pairs of
    clients.
    """
    if by == "clients":
        for two in _pairs(len(data.sizes), pairs, rng):
            for chosen in two:
                yield np.repeat(np.isin(np.arange(len(data.sizes)), chosen), data.sizes)
        return
    if data.group is not None:
        for pair in range(pairs):
            first = draw_uniform_per_group(data.group, rng) < 0.5
            if first.all() or not first.any():
                count = len(np.unique(data.group))
                raise UserError(f"pair {pair + 1} has all {count} groups of data.group in one half: too few to draw "
                                "halves of; give by=clients, or leave data.group out")  # fmt: skip
            yield first
            yield ~first
        return
    if data.sizes.min() < 2:
        raise UserError(f"client {_name(data, int(data.sizes.argmin()))} has one training row, which has no halves: "
                        "give by=clients")  # fmt: skip
    for _ in range(pairs):
        both = np.zeros((2, len(data.y)), bool)
        for rows in _shuffled(data, rng):
            two = rows[: len(rows) // 2 * 2].reshape(-1, 2)
            first = rng.integers(2, size=len(two))
            both[0, two[np.arange(len(two)), first]] = True
            both[1, two[np.arange(len(two)), 1 - first]] = True
        yield from both


def _pairs(clients: int, pairs: int, rng: np.random.Generator) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Random disjoint halves of the clients, by number; of an odd number of clients each pair leaves one out."""
    half = clients // 2
    if not half:
        raise UserError("by=clients takes halves of the clients, and there is one only: give by=rows")
    there = comb(clients, half) * comb(clients - half, half) // 2
    if pairs > there:
        raise UserError(f"subsamples={2 * pairs} is more than the {there} pairs of halves that {clients} clients have: "
                        f"give subsamples={2 * there} or less, or by=rows")  # fmt: skip
    seen: set[frozenset[frozenset[int]]] = set()
    while len(seen) < pairs:
        order = rng.permutation(clients)
        two = order[:half], order[half : 2 * half]
        pair = frozenset(frozenset(each.tolist()) for each in two)
        if pair not in seen:
            seen.add(pair)
            yield two


def _shuffled(data: FederatedData, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """The rows of each client in a random order, class by class where there are any; of an odd number of rows the last
    one is any of them."""
    for start, stop in zip(data.offsets[:-1], data.offsets[1:], strict=True):
        rows = start + rng.permutation(stop - start)
        if data.classes:
            last = rows[-1:] if len(rows) % 2 else rows[:0]
            rows = rows[: len(rows) - len(last)]
            rows = np.concatenate([rows[np.argsort(data.y[rows], kind="stable")], last])
        yield rows


def _name(data: FederatedData, client: int) -> str:
    return data.clients[client] if data.clients else str(client)


def count_rows(data: FederatedData) -> dict[str, int]:
    """How many rows there are of training, validation and test."""
    parts = {"training": data.y, "validation": data.y_val, "test": data.y_test}
    return {name: 0 if each is None else len(each) for name, each in parts.items()}


def describe_rows(experiment: Experiment, data: FederatedData, use: str) -> str:
    """The training rows, which a study divides, and those that are left aside; ``use``: what these are for."""
    rows, aside = count_rows(data), []
    for name in ("validation", "test"):
        if rows[name]:
            why = _why(experiment, name)
            aside.append(f"{rows[name]:,} rows" + (f" ({why})" if why else f" of the {name}"))
    said = f"{rows['training']:,} training rows"
    if data.group is not None:
        said += f" in {len(np.unique(data.group)):,} groups (data.group), whose rows stay together"
    return f"{said}; {' and '.join(aside)} are left aside and {use}" if aside else said


def warn_filled_gaps(data: FederatedData) -> list[str]:
    """A remark where gaps are filled by what held-out rows know, too."""
    if data.encoding is None or all(column.fill is None for column in data.encoding.columns):
        return []
    return ["gaps are filled by all training rows, those of the fold or half that is left out included; validation and "
            "test rows play no part"]  # fmt: skip


def _why(experiment: Experiment, name: str) -> str:
    """The option that leaves these rows aside; empty where it is not known."""
    source = experiment.data
    if getattr(source, "split", None) is not None:
        return f"data.split={source.split}"  # type: ignore[attr-defined]
    for option, asked in vars(source).items():  # validation, validation_samples, validation_runs, ...
        if option.split("_")[0] == name and asked is not None:
            return f"data.{option}={asked}".replace("'", "")
    by_default = name == "validation" and hasattr(source, name) and hasattr(source, "path")
    marked = str(getattr(source, "path", "")).endswith(".npz")  # which may mark them itself
    return f"data.validation={DEFAULT_VALIDATION} by default" if by_default and not marked else ""
