"""Folds for cross-validation, halves for stability selection, and checks of rows before a study divides them."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import compress
from math import comb
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from fcorun.base.cohorts import fixed_cohort_size
from fcorun.base.errors import UserError, abbreviate, word
from fcorun.base.system.random_streams import draw_uniform_per_group, random_stream
from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.datasets.subset import check_classes, suggest_folds
from fcorun.data.tables.splits import find_mixed_group
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.methods.algorithms.algorithm import Algorithm

Mask = Bool[np.ndarray, " N"]
ByClient = Float[np.ndarray, " M"]
_MOST_ROWS = 0.75  # of one class: then accuracy is no measure of a model
_FOLDS = ("select", "folds")  # the name of the random streams of folds
_WHOLE_CLIENTS = "`by=clients` (in select, permute and stability)"  # compare and sweeps have no such option


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
            f"{data.client_names[smallest]}: give fewer folds, join the client with another, or give {_WHOLE_CLIENTS}"
        )
    fold = np.empty(len(data.train.y), np.int64)
    for m, name in enumerate(data.client_names):
        rng = random_stream(seed, *stream, name)
        rows = _shuffle_rows_of_client(data, m, rng)
        first_fold = rng.integers(n_folds)  # else the remainders of all clients would be in the first folds
        fold[rows] = (first_fold + np.arange(len(rows))) % n_folds
    return fold


def folds_follow_targets(data: FederatedData, by: str) -> bool:
    """Return whether ``assign_folds`` spreads classes or events evenly, so that folds depend on the targets."""
    is_drawn_by_rows = by == "rows" and data.train.fold is None and data.train.group is None
    return is_drawn_by_rows and _has_kinds(data)


def split_by_fold(fold: Int[np.ndarray, " N"]) -> dict[str, SubsetMasks]:
    """Return the masks of the folds, fold1, fold2, ..., given the fold of each row, from 0."""
    return {f"fold{k + 1}": SubsetMasks(train=fold != k, validation=fold == k) for k in range(fold.max() + 1)}


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
    client_of_row = np.repeat(np.array(data.client_names), data.train.sizes)
    if (mixed := find_mixed_group(data.train.group, client_of_row)) is not None:
        group, first, second = mixed
        raise UserError(f"`by=clients` holds whole clients out, and group '{group}' of `data.group` has rows of "
                        f"{first} and of {second}, which would be on both sides: give `by=rows`")  # fmt: skip


def compute_fold_weights(data: FederatedData, fold: Int[np.ndarray, " N"], by_rows: bool) -> Float[np.ndarray, " K"]:
    """Return the weight of each fold in a mean over the folds, (K,): the summed weights of its rows, or 1."""
    weights = np.bincount(fold, data.train.weight)
    return weights if by_rows else np.ones(len(weights))


def holds_out_clients(data: FederatedData, subsets: Mapping[str, SubsetMasks]) -> bool:
    """Return whether a subset is validated on rows of a client without a row that it trains on."""
    client = data.train.known_client
    return any(not np.isin(client[rows.validation], client[rows.train]).all() for rows in subsets.values())


def name_held_out_clients(names: Sequence[str], fold_of_client: Int[np.ndarray, " M"]) -> dict[str, list[str]]:
    """Return the names of the clients that each fold (fold1, fold2, ...) holds out, for folds by clients."""
    held_out = {}
    for k in range(fold_of_client.max() + 1):
        held_out[f"fold{k + 1}"] = list(compress(names, fold_of_client == k))
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
    if _has_kinds(data):
        kind = data.train.y if data.classes else data.train.y > 0
        n_paired = len(rows) // 2 * 2
        paired, unpaired = rows[:n_paired], rows[n_paired:]
        rows = np.concatenate([paired[np.argsort(kind[paired], kind="stable")], unpaired])
    return rows


def _has_kinds(data: FederatedData) -> bool:
    """Return whether rows are of classes, or have events or none, which folds and halves have evenly."""
    return bool(data.classes) or data.target_task.has_events


def count_rows(data: FederatedData) -> dict[str, int]:
    """Return the numbers of training, validation and test rows."""
    splits = {"training": data.train, "validation": data.validation, "test": data.test}
    return {name: 0 if rows is None else rows.n_rows for name, rows in splits.items()}


def check_subsets(
    experiment: PreparedExperiment, data: FederatedData, subsets: Mapping[str, SubsetMasks], by: str
) -> None:
    """Refuse subsets of rows, by the name of each, on which a run would fail later.

    Raises:
        UserError: a subset lacks a class, events, weight, or any value of a column; it has too few clients for a
            cohort or for the edges of a tree; or an option names clients by their number, and the subset has only some
            of them.
    """
    train = data.train
    are_marked = train.fold is not None
    are_halves = not any(subset.validation.any() for subset in subsets.values())  # which no number of folds divides
    cure = suggest_folds(are_marked, by)
    if are_halves:
        cure = "give `by=rows`" if by == "clients" else "add such rows"
    if by == "clients":
        for name in experiment.reg.per_client or {}:
            raise UserError(
                f"`reg.per_client.{name}` has a value for each client, and `by=clients` leaves some out: give "
                "`by=rows`, or leave it out"
            )
        check_groups_within_clients(data)
        if experiment.algo.picks_client:
            raise UserError(
                f"`algo={experiment.names['algo']}` counts the clients, and `by=clients` leaves some out: give "
                "`by=rows`"
            )
    for name, (trained, held_out, _) in subsets.items():
        check_classes(data, trained, cure)
        if data.features.cells is not None:
            data.features.cells.check_values(trained)
        is_event = train.y > 0
        if data.target_task.has_events and not is_event[trained].any():
            raise UserError(
                "no event is among the rows that are left in a fold or a half, and all training rows have "
                f"{int(is_event.sum())}: {cure}"
            )
        if data.target_task.has_events and held_out.any() and not is_event[held_out].any():
            raise UserError(f"{describe_subset(name)} holds out no event, so that its loss says nothing: {cure}")
        weights = None
        if train.weight is not None:
            weights = train.sum_by_client(trained * train.weight), train.sum_by_client(held_out * train.weight)
        sizes, held_out_sizes = (train.sum_by_client(mask.astype(int)) for mask in (trained, held_out))
        check_subset_clients(
            experiment,
            data.client_names,
            name,
            by=by,
            sizes=sizes,
            held_out=held_out_sizes,
            weights=weights,
            are_marked=are_marked and not are_halves,
        )


def check_subset_clients(
    experiment: PreparedExperiment,
    names: Sequence[str],
    subset: str,
    *,
    by: str,
    sizes: Int[np.ndarray, " M"],
    held_out: Int[np.ndarray, " M"],
    weights: tuple[ByClient, ByClient] | None,
    are_marked: bool,
) -> None:
    """Refuse a subset with too few clients, or too little weight, from the numbers of rows of each client alone.

    Args:
        names: the names of the clients.
        subset: the name of the subset.
        sizes, held_out: the numbers of rows that each client trains on, and that it holds out.
        weights: the sums of the weights of these rows; None: rows have no weights.
        are_marked: whether a column marks the folds.

    Raises:
        UserError: as ``check_subsets``.
    """
    algo, topology, options = experiment.algo, experiment.topology, experiment.names
    if weights is not None:
        weightless = np.flatnonzero((sizes > 0) & (weights[0] <= 0))
        if len(weightless):
            cure = f"give {_WHOLE_CLIENTS}, or " if by == "rows" else ""
            if are_marked:
                cure = f"{suggest_folds(True)}, or "
            raise UserError(
                f"client {names[weightless[0]]}: all its rows that are left in a fold or a half have weight 0: {cure}"
                "leave its rows of weight 0 out of the data"
            )
        if held_out.any() and not weights[1].any():
            cure = suggest_folds(are_marked, by)
            raise UserError(
                f"{describe_subset(subset)}: all rows that it holds out have weight 0: {cure}, or leave rows of weight "
                "0 out of the data"
            )
    clients = [client for client, size in zip(names, sizes, strict=True) if size]
    if by == "rows" and len(clients) < len(sizes):  # its rows belong to few groups, or to one marked fold
        needs_all_clients = {
            f"`algo={options['algo']}` has a model for each client": algo.has_personal_models,
            f"`algo={options['algo']}` uses one client only": algo.picks_client,
            "`reg.per_client` has a value for each client": bool(experiment.reg.per_client),
            f"`topology={options['topology']}` links each client": topology.connects_clients,
        }
        for reason, applies in needs_all_clients.items():
            if applies:
                raise UserError(
                    f"all rows of client {names[int((sizes == 0).argmax())]} are held out together in a fold or a "
                    f"half, by `data.group` or `data.fold`, and {reason}: leave one of these out, or the clients with "
                    "few groups"
                )
    cohort_size = fixed_cohort_size(experiment.settings.clients_per_round, len(clients)) or 0
    if cohort_size > len(clients) and isinstance(algo, Algorithm):
        raise UserError(
            f"`clients_per_round={cohort_size}` is more than the {len(clients)} clients that `by=clients` leaves: "
            "lower it, or set it to `null` for all of them"
        )
    if by == "clients":
        try:
            topology.connect(clients, np.ones(len(clients)))
        except UserError as error:
            raise UserError(
                f"{error} (`by=clients` leaves {len(clients)} of {len(sizes)} clients; `by=rows` leaves all)"
            ) from error


def _list_one_class_folds(data: FederatedData, folds: Mapping[str, SubsetMasks]) -> dict[str, str]:
    """Return the only class that a fold holds out, by the fold in words, of the folds that hold out one class."""
    classes = {describe_subset(name): np.unique(data.train.y[fold.validation]) for name, fold in folds.items()}
    return {name: data.classes[int(held_out[0])] for name, held_out in classes.items() if len(held_out) == 1}


def check_fold_classes(data: FederatedData, folds: Mapping[str, SubsetMasks], metric: str) -> None:
    """Raise UserError if a fold, by its name, holds out one class only, so that no metric can rank its rows."""
    for name, label in _list_one_class_folds(data, folds).items():
        raise UserError(
            f"`metric={metric}` ranks rows of two classes, and {name} holds out '{label}' only: give `metric=loss`, "
            f"or {suggest_folds(data.train.fold is not None)}"
        )


def check_outer_folds(data: FederatedData, outer: Mapping[str, SubsetMasks], by: str = "rows") -> None:
    """Raise UserError if an outer fold of two classes holds out one of them only, so that its score says little."""
    if len(data.classes) != 2:
        return
    n_clients = len(data.client_names)
    for name, label in _list_one_class_folds(data, outer).items():
        is_of_one = f"holds out '{label}' only, so that its score says nothing of the other class"
        if by == "clients" and len(outer) == n_clients:  # no number of folds helps
            (held_out,) = (fold.validation for key, fold in outer.items() if describe_subset(key) == name)
            client = data.client_names[int(data.train.sum_by_client(held_out.astype(int)).argmax())]
            cure = ": join the client with another, or leave it out" if n_clients > 3 else ""  # three clients it takes
            raise UserError(f"the fold of client '{client}' {is_of_one}{cure}")
        cure = suggest_folds(True) if data.train.fold is not None else "give fewer outer_folds"
        raise UserError(f"{name} {is_of_one}: {cure}")


def warn_about_classes(data: FederatedData, folds: Mapping[str, SubsetMasks], metric: str, best: float) -> list[str]:
    """Return warnings about folds, by their names, that hold out one of two classes only, and about accuracy.

    Accuracy misleads where most rows are of one class; ``best`` is the highest mean of the metric.
    """
    if not data.classes or data.train.stays_at_sites:
        return []
    warnings = []
    counts = np.bincount(data.train.y.astype(int), minlength=2)
    of_one_class = _list_one_class_folds(data, folds) if len(data.classes) == 2 else {}
    if of_one_class:
        rare = int(counts.argmin())
        warnings.append(
            f"{abbreviate(list(of_one_class))}: the rows held out are of one class only, so that the metric says "
            f"nothing of the other there; '{data.classes[rare]}' has {counts[rare]} training rows: "
            f"{word(suggest_folds(data.train.fold is not None))}"
        )
    majority = describe_majority(data)
    if metric.endswith("val_accuracy") and majority:
        warnings.append(
            word(
                f"`metric=accuracy`: {majority}, and the best choice {best:.4g}: use `metric=loss`, or `metric=auc` "
                "for two classes"
            )
        )
    return warnings


def describe_majority(data: FederatedData) -> str:
    """Return "predicting 'no' for every row has 0.92" if most rows are of one class, so that accuracy misleads."""
    if not data.classes:
        return ""
    counts = np.bincount(data.train.y.astype(int))
    share = counts.max() / len(data.train.y)
    return f"predicting '{data.classes[counts.argmax()]}' for every row has {share:.4g}" if share >= _MOST_ROWS else ""


def check_global_model(experiment: PreparedExperiment, need: str) -> None:
    """Raise UserError if the algorithm trains personal models only; ``need`` says what a global model is needed for."""
    if not experiment.has_shared_model:
        raise UserError(f"`algo={experiment.names['algo']}` trains personal models and no shared one, and {need}")
