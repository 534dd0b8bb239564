"""Checks of an experiment and its data before ``fcorun select`` or ``fcorun stability`` divides the rows."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int

from fcorun.base.errors import UserError, abbreviate, word
from fcorun.base.system.machine import use_precision
from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.datasets.subset import RowSubset, check_classes
from fcorun.engine.engine import message_bytes
from fcorun.experiment.build import build_engine, resolve_auto
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.experiment.requirements import has_gaps
from fcorun.methods.algorithms.algorithm import Algorithm
from fcorun.runs.imputed import prepare_tables
from fcorun.studies.selection.folds import SubsetMasks, check_groups_within_clients, describe_subset

_MOST_ROWS = 0.75  # of one class: then accuracy is no measure of a model


def check_subsets(
    experiment: PreparedExperiment, data: FederatedData, subsets: Mapping[str, SubsetMasks], by: str
) -> None:
    """Refuse subsets of rows, by the name of each, on which a run would fail later.

    Raises:
        UserError: a subset lacks a class, events, weight, or any value of a column; it has too few clients for a
            cohort or for the edges of a tree; or an option names clients by their number, and the subset has only some
            of them.
    """
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
    for name, subset in subsets.items():
        check_classes(data, subset.train)
        if data.features.cells is not None:
            data.features.cells.check_values(subset.train)
        if data.target_task.has_events:
            _check_events(data, name, subset)
        held_out = data.train.sum_by_client(subset.validation.astype(int))
        sizes, weights = data.train.sum_by_client(subset.train.astype(int)), None
        if data.train.weight is not None:
            weights = (
                data.train.sum_by_client(subset.train * data.train.weight),
                data.train.sum_by_client(subset.validation * data.train.weight),
            )
        check_subset_clients(
            experiment, data.client_names, name, by=by, sizes=sizes, held_out=held_out, weights=weights
        )


def check_subset_clients(
    experiment: PreparedExperiment,
    names: Sequence[str],
    subset: str,
    *,
    by: str,
    sizes: Int[np.ndarray, " M"],
    held_out: Int[np.ndarray, " M"],
    weights: tuple[Float[np.ndarray, " M"], Float[np.ndarray, " M"]] | None,
) -> None:
    """Refuse a subset with too few clients, or too little weight, from the numbers of rows of each client alone.

    Args:
        names: the names of the clients.
        subset: the name of the subset.
        sizes, held_out: the numbers of rows that each client trains on, and that it holds out.
        weights: the sums of the weights of these rows; None: rows have no weights.

    Raises:
        UserError: as ``check_subsets``.
    """
    if weights is not None:
        _check_weights(names, subset, sizes, held_out, weights)
    n_clients = int((sizes > 0).sum())
    cohort_size = experiment.settings.clients_per_round or 0
    if by == "rows" and n_clients < len(sizes):
        _refuse_absent_client(experiment, names[int((sizes == 0).argmax())])
    if cohort_size > n_clients and isinstance(experiment.algo, Algorithm):
        raise UserError(
            f"`clients_per_round={cohort_size}` is more than the {n_clients} clients that `by=clients` leaves: lower "
            "it, or set it to `null` for all of them"
        )
    if by == "clients":
        clients = [client for client, size in zip(names, sizes, strict=True) if size]
        try:
            experiment.topology.connect(clients, np.ones(len(clients)))
        except UserError as error:
            raise UserError(
                f"{error} (`by=clients` leaves {n_clients} of {len(sizes)} clients; `by=rows` leaves all)"
            ) from error


def _refuse_absent_client(experiment: PreparedExperiment, client: str) -> None:
    """Raise UserError if the experiment needs every client, and a subset has no row of ``client``.

    A client is absent if its rows belong to few groups, or to one fold that the data mark.
    """
    names = experiment.names
    needs_all_clients = {
        f"`algo={names['algo']}` has a model for each client": experiment.algo.has_personal_models,
        f"`algo={names['algo']}` uses one client only": experiment.algo.picks_client,
        "`reg.per_client` has a value for each client": bool(experiment.reg.per_client),
        f"`topology={names['topology']}` links each client": experiment.topology.connects_clients,
    }
    for reason, applies in needs_all_clients.items():
        if applies:
            raise UserError(
                f"all rows of client {client} are held out together in a fold or a half, by `data.group` or "
                f"`data.fold`, and {reason}: leave one of these out, or the clients with few groups"
            )


def _check_weights(
    names: Sequence[str],
    subset: str,
    sizes: Int[np.ndarray, " M"],
    held_out: Int[np.ndarray, " M"],
    weights: tuple[Float[np.ndarray, " M"], Float[np.ndarray, " M"]],
) -> None:
    """Raise UserError if the training rows of a client weigh nothing in a subset, or the rows that a fold holds out."""
    train_weights, held_out_weights = weights
    weightless = np.flatnonzero((sizes > 0) & (train_weights <= 0))
    if len(weightless):
        raise UserError(
            f"client {names[weightless[0]]}: all its rows that are left in a fold or a half have weight 0: give "
            "`by=clients`, or leave its rows of weight 0 out of the data"
        )
    if held_out.any() and not held_out_weights.any():
        raise UserError(
            f"{describe_subset(subset)}: all rows that it holds out have weight 0: give fewer folds, or leave "
            "rows of weight 0 out of the data"
        )


def _check_events(data: FederatedData, name: str, subset: SubsetMasks) -> None:
    """Raise UserError if a fold or a half has no event to train on, or a fold holds none out."""
    is_event = data.train.y > 0
    if not is_event[subset.train].any():
        raise UserError(f"no event is among the rows that are left in a fold or a half, and all training rows have "
                        f"{int(is_event.sum())}: give `by=rows` or fewer folds, or more rows")  # fmt: skip
    if subset.validation.any() and not is_event[subset.validation].any():
        raise UserError(f"{describe_subset(name)} holds out no event, so that its loss says nothing: give "
                        "fewer folds, or `by=rows`")  # fmt: skip


def check_fold_classes(data: FederatedData, folds: Mapping[str, SubsetMasks], metric: str) -> None:
    """Raise UserError if a fold, by its name, holds out one class only, so that no metric can rank its rows."""
    for name, fold in folds.items():
        classes = np.unique(data.train.y[fold.validation])
        if len(classes) < 2:
            raise UserError(
                f"`metric={metric}` ranks rows of two classes, and {describe_subset(name)} holds out '"
                f"{data.classes[classes[0]]}' only: give `metric=loss`, or fewer folds"
            )


def warn_one_class_folds(data: FederatedData, folds: Mapping[str, SubsetMasks]) -> list[str]:
    """Return a warning about folds, by their names, that hold out rows of one of two classes only."""
    if len(data.classes) != 2 or data.train.stays_at_sites:
        return []
    y = data.train.y
    of_one_class = [describe_subset(name) for name, fold in folds.items() if len(np.unique(y[fold.validation])) == 1]
    if not of_one_class:
        return []
    counts = np.bincount(y.astype(int), minlength=2)
    rare = int(counts.argmin())
    return [
        f"{abbreviate(of_one_class)}: the rows held out are of one class only, so that the metric says nothing of the "
        f"other there; '{data.classes[rare]}' has {counts[rare]} training rows: give fewer folds"
    ]


def warn_of_accuracy(data: FederatedData, metric: str, best: float) -> list[str]:
    """Return a warning if accuracy chooses a value although most rows are of one class; ``best`` is the highest."""
    if not metric.endswith("val_accuracy") or data.train.stays_at_sites:
        return []
    shares = np.bincount(data.train.y.astype(int)) / len(data.train.y)
    if shares.max() < _MOST_ROWS:
        return []
    return [word(f"`metric=accuracy`: predicting '{data.classes[shares.argmax()]}' for every row has "
            f"{shares.max():.4g}, and the best choice {best:.4g}: use `metric=loss`, or `metric=auc` for two "
            "classes")]  # fmt: skip


def check_outer_folds(data: FederatedData, outer: Mapping[str, SubsetMasks]) -> None:
    """Raise UserError if an outer fold of two classes holds out one of them only, so that its score says little."""
    if len(data.classes) != 2:
        return
    for name, fold in outer.items():
        classes = np.unique(data.train.y[fold.validation])
        if len(classes) < 2:
            raise UserError(
                f"{describe_subset(name)} holds out '{data.classes[classes[0]]}' only, so that its score says nothing "
                "of the other class: give fewer outer_folds"
            )


def has_global_model(experiment: PreparedExperiment, data: FederatedData) -> bool:
    """Return whether the algorithm trains a model of all clients. Personal models alone upload nothing."""
    if not experiment.algo.has_personal_models:
        return True
    experiment = resolve_auto(experiment, data)[0]
    assert isinstance(experiment.algo, Algorithm)
    with use_precision(experiment.settings.precision):
        federation = build_engine(experiment, data).federation
        return sum(message_bytes(federation, experiment.algo, experiment.uplink, experiment.downlink).uploads) > 0


def check_global_model(experiment: PreparedExperiment, data: FederatedData, need: str) -> None:
    """Raise UserError if the algorithm trains personal models only; ``need`` says what a global model is needed for."""
    if not has_global_model(experiment, data):
        raise UserError(f"`algo={experiment.names['algo']}` trains personal models and no shared one, and {need}")


def check_imputed_subsets(
    experiment: PreparedExperiment, names: Sequence[str], take_subset: Callable[[str], RowSubset]
) -> None:
    """Raise UserError if the gaps of the rows that a subset, by its name, trains on cannot be imputed."""
    for name in names:
        data = take_subset(name).data
        try:
            if has_gaps(data):
                prepare_tables(experiment, data)
        except UserError as error:
            where = "" if name not in names[1:] else f" (of the rows without {describe_subset(name)})"
            raise UserError(f"{error}{where}") from error
