"""Folds for cross-validation, halves for stability selection, and counts of the rows."""

from collections.abc import Iterator
from math import comb
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from fcorun.base.errors import UserError, word
from fcorun.base.system.random_streams import draw_uniform_per_group, random_stream
from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.tables.splits import DEFAULT_VALIDATION
from fcorun.experiment.experiment import PreparedExperiment

Mask = Bool[np.ndarray, " N"]
_FOLDS = ("select", "folds")  # the name of the random streams of folds


class SubsetMasks(NamedTuple):
    """Masks over all N training rows: the rows that a subset trains on, and those that its runs are evaluated on.

    With ``keeps_predictions``, a fit of the subset keeps its outputs for the rows that the subset holds out.
    """

    train: Mask
    validation: Mask
    keeps_predictions: bool = True


def describe_subset(name: str) -> str:
    """Return the name of a subset in words: "fold 3", "outer fold 1", or "inner fold 2 without outer fold 1"."""
    outer, _, inner = name.rpartition("-")
    if outer:
        return f"inner {describe_subset(inner)} without {describe_subset(outer)}"
    return name.replace("outer", "outer fold ") if name.startswith("outer") else name.replace("fold", "fold ")


def assign_folds(
    data: FederatedData, n_folds: int, by: str, seed: int, option: str = "folds", within: tuple[str, ...] = ()
) -> Int[np.ndarray, " N"]:
    """Return the fold, from 0, in which each training row is held out, (N,).

    By "rows", the rows of each client are assigned in an order drawn from (seed, client's name) alone, the rows of a
    class, and events, evenly. By "clients", whole clients are assigned. Folds that the data mark are taken as they are.
    Rows of one group share a fold, by a number drawn from (seed, group) alone.

    Args:
        option: the option that gives the number of folds, for messages.
        within: names that are added to those of the random streams, for folds of the rows that other folds leave.

    Raises:
        UserError: a client has fewer rows than folds, the data fewer clients, or no group falls into one of the folds.
    """
    stream = (*_FOLDS, *within)
    if data.train.fold is not None:
        return np.searchsorted(list_marked_folds(data), data.train.fold)
    if by == "clients":
        return np.repeat(
            assign_clients_to_folds(len(data.train.sizes), n_folds, seed, option, within), data.train.sizes
        )
    if data.train.group is not None:
        uniforms = draw_uniform_per_group(data.train.group, random_stream(seed, *stream))
        fold = np.floor(uniforms * n_folds).astype(np.int64)
        empty = np.setdiff1d(np.arange(n_folds), fold)
        if len(empty):
            n_groups = len(np.unique(data.train.group))
            raise UserError(
                f"`{option}={n_folds}`: fold {empty[0] + 1} holds out none of the {n_groups} groups of `data.group`, "
                "which are assigned to folds at random: give fewer folds, or mark the folds by `data.fold`"
            )
        return fold
    smallest = int(data.train.sizes.argmin())
    if n_folds > data.train.sizes[smallest]:
        raise UserError(
            f"`{option}={n_folds}` is more than the {data.train.sizes[smallest]} training rows of client "
            f"{data.client_names[smallest]}: give fewer folds, or `by=clients`"
        )
    fold = np.empty(len(data.train.y), np.int64)
    for m, name in enumerate(data.client_names):
        rng = random_stream(seed, *stream, name)
        rows = _shuffle_rows_of_client(data, m, rng)
        first_fold = rng.integers(n_folds)  # else the remainders of all clients would be in the first folds
        fold[rows] = (first_fold + np.arange(len(rows))) % n_folds
    return fold


def assign_clients_to_folds(
    n_clients: int, n_folds: int, seed: int, option: str = "folds", within: tuple[str, ...] = ()
) -> Int[np.ndarray, " M"]:
    """Return the fold, from 0, that holds out each client, (M,), as ``assign_folds`` does.

    Raises UserError for fewer clients than folds.
    """
    if n_folds > n_clients:
        raise UserError(
            f"`{option}={n_folds}` is more than the {n_clients} clients that `by=clients` assigns: give at most "
            f"{n_clients}"
        )
    return random_stream(seed, *_FOLDS, *within).permutation(np.arange(n_clients) % n_folds)


def list_marked_folds(data: FederatedData) -> list[str]:
    """Return the names of the folds that the data mark, in order; an empty list if folds are drawn."""
    return [] if data.train.fold is None else np.unique(data.train.fold).tolist()


def marks_whole_clients(data: FederatedData) -> bool:
    """Return whether the data mark folds, each of which has all rows of its clients."""
    if data.train.fold is None:
        return False
    return all(len(np.unique(fold)) == 1 for fold in np.split(data.train.fold, data.train.offsets[1:-1]))


def check_groups_within_clients(data: FederatedData) -> None:
    """Raise UserError if a group has rows of several clients, so that clients cannot be held out wholly."""
    if data.train.group is None:
        return
    client = np.repeat(np.arange(len(data.train.sizes)), data.train.sizes)  # of each row
    group_names, group = np.unique(data.train.group, return_inverse=True)
    pairs = np.unique(np.stack([group, client]), axis=1)
    shared = np.flatnonzero(np.diff(pairs[0]) == 0)
    if len(shared):
        first = shared[0]
        one, other = (data.client_names[m] for m in pairs[1, first : first + 2])
        raise UserError(
            f"`by=clients` holds whole clients out, and group '{group_names[pairs[0, first]]}' of `data.group` has "
            f"rows of {one} and of {other}, which would be on both sides: give `by=rows`"
        )


def compute_fold_weights(data: FederatedData, fold: Int[np.ndarray, " N"], by_rows: bool) -> Float[np.ndarray, " K"]:
    """Return the weight of each fold in a mean over the folds, (K,): the summed weights of its rows, or 1."""
    weights = np.bincount(fold, data.train.weight)
    return weights if by_rows else np.ones(len(weights))


def list_held_out_clients(data: FederatedData, fold: Int[np.ndarray, " N"]) -> dict[str, list[str]]:
    """Return the names of the clients that each fold (fold1, fold2, ...) holds out, for folds by clients."""
    return name_held_out_clients(list(data.client_names), fold[data.train.offsets[:-1]])


def name_held_out_clients(names: list[str], fold_of_client: Int[np.ndarray, " M"]) -> dict[str, list[str]]:
    """Return the names of the clients that each fold (fold1, fold2, ...) holds out."""
    held_out = {}
    for k in range(fold_of_client.max() + 1):
        held_out[f"fold{k + 1}"] = [names[m] for m in np.flatnonzero(fold_of_client == k)]
    return held_out


def draw_halves(data: FederatedData, n_pairs: int, by: str, rng: np.random.Generator) -> Iterator[Mask]:
    """Draw ``n_pairs`` complementary pairs of random halves; yield the mask of the training rows, (N,), of each half.

    By "rows", a half has half of the rows of each client, rounded down, and about half of each class. If rows have
    groups, a half has about half of the groups, each drawn by the state of ``rng`` and its name alone. By "clients", a
    half has half of the clients, and no pair is drawn twice. Source: Shah and Samworth (J. R. Stat. Soc. B 2013),
    section 2.

    Raises:
        UserError: the rows, groups or clients have no two halves, or the clients not so many pairs of halves.
    """
    if by == "clients":
        for pair in _draw_client_pairs(len(data.train.sizes), n_pairs, rng):
            for clients in pair:
                yield np.repeat(np.isin(np.arange(len(data.train.sizes)), clients), data.train.sizes)
        return
    if data.train.group is not None:
        for i in range(n_pairs):
            half = draw_uniform_per_group(data.train.group, rng) < 0.5
            if half.all() or not half.any():
                n_groups = len(np.unique(data.train.group))
                raise UserError(
                    f"pair {i + 1} has all {n_groups} groups of `data.group` in one half: too few to draw "
                    "halves of; give `by=clients`, or leave `data.group` out"
                )
            yield half
            yield ~half
        return
    if data.train.sizes.min() < 2:
        raise UserError(
            f"client {data.client_names[int(data.train.sizes.argmin())]} has one training row, which has no halves: "
            "give `by=clients`"
        )
    for _ in range(n_pairs):
        halves = np.zeros((2, len(data.train.y)), bool)
        for m in range(data.n_clients):
            rows = _shuffle_rows_of_client(data, m, rng)
            row_pairs = rows[: len(rows) // 2 * 2].reshape(-1, 2)
            pair_index = np.arange(len(row_pairs))
            side = rng.integers(2, size=len(row_pairs))
            halves[0, row_pairs[pair_index, side]] = True
            halves[1, row_pairs[pair_index, 1 - side]] = True
        yield from halves


def _draw_client_pairs(n_clients: int, n_pairs: int, rng: np.random.Generator) -> Iterator[tuple[np.ndarray, ...]]:
    """Draw distinct pairs of disjoint halves of the clients, by number; of an odd number each pair leaves one out."""
    half = n_clients // 2
    if not half:
        raise UserError("`by=clients` takes halves of the clients, and there is one only: give `by=rows`")
    n_possible = comb(n_clients, half) * comb(n_clients - half, half) // 2
    if n_pairs > n_possible:
        raise UserError(
            f"`subsamples={2 * n_pairs}` takes {n_pairs} pairs of halves, and {n_clients} clients have {n_possible}: "
            f"give `subsamples={2 * n_possible}` or less, or `by=rows`"
        )
    drawn: set[frozenset[frozenset[int]]] = set()
    while len(drawn) < n_pairs:
        order = rng.permutation(n_clients)
        pair = order[:half], order[half : 2 * half]
        key = frozenset(frozenset(clients.tolist()) for clients in pair)
        if key not in drawn:
            drawn.add(key)
            yield pair


def _shuffle_rows_of_client(data: FederatedData, m: int, rng: np.random.Generator) -> np.ndarray:
    """Return the rows of client ``m`` in a random order, class by class, and censored rows before events.

    If a client has an odd number of rows, a random one comes last, whatever its class.
    """
    start, stop = data.train.offsets[m : m + 2]
    rows = start + rng.permutation(stop - start)
    if data.classes or data.target_task.has_events:
        kind = data.train.y if data.classes else data.train.y > 0
        n_paired = len(rows) // 2 * 2
        paired, unpaired = rows[:n_paired], rows[n_paired:]
        rows = np.concatenate([paired[np.argsort(kind[paired], kind="stable")], unpaired])
    return rows


def count_rows(data: FederatedData) -> dict[str, int]:
    """Return the numbers of training, validation and test rows."""
    splits = {"training": data.train, "validation": data.validation, "test": data.test}
    return {name: 0 if rows is None else rows.n_rows for name, rows in splits.items()}


def describe_rows(experiment: PreparedExperiment, data: FederatedData, use: str) -> str:
    """Describe the training rows, which a study divides, and the rows left aside, with their ``use``."""
    rows = count_rows(data)
    left_aside = []
    for name in ("validation", "test"):
        if rows[name]:
            option = _find_split_option(experiment, name)
            origin = f" ({option})" if option else f" of the {name}"
            left_aside.append(f"{rows[name]:,} rows{origin}")
    sentence = f"{rows['training']:,} training rows"
    if data.train.group is not None:
        groups = "groups" if data.train.stays_at_sites else f"{len(np.unique(data.train.group)):,} groups"
        sentence += word(f" in {groups} (`data.group`), whose rows stay together")
    if left_aside:
        sentence += f"; {' and '.join(left_aside)} are left aside and {use}"
    return sentence


def _find_split_option(experiment: PreparedExperiment, name: str) -> str:
    """Return the option, as KEY=VALUE, that leaves the ``name`` rows aside; empty if it is not known."""
    dataset = experiment.data
    if getattr(dataset, "split", None) is not None:
        return word(f"`data.split={dataset.split}`")  # type: ignore[attr-defined]
    for option, value in vars(dataset).items():  # validation, validation_samples, validation_runs, ...
        if option.split("_")[0] == name and value is not None:
            return word(f"`data.{option}={value}`").replace("'", "")
    has_default = name == "validation" and hasattr(dataset, name) and hasattr(dataset, "path")
    may_mark_rows = str(getattr(dataset, "path", "")).endswith(".npz")
    return word(f"`data.validation={DEFAULT_VALIDATION}` by default") if has_default and not may_mark_rows else ""
