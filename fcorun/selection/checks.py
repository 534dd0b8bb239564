"""Checks of an experiment and its data before ``fcorun select`` or ``fcorun stability`` divides the rows."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from fcorun.algorithms.base import Algorithm, Baseline
from fcorun.datasets.base import FederatedData
from fcorun.datasets.subset import check_classes
from fcorun.engine.estimates import upload_bytes
from fcorun.errors import UserError
from fcorun.experiment.build import bind_objective, build_engine, load_data, resolve_auto
from fcorun.experiment.convergence import MIN_EVALUATIONS
from fcorun.experiment.experiment import Experiment
from fcorun.experiment.prepare import prepare
from fcorun.metrics import PERSONAL_PREFIX
from fcorun.runs.batching import check_devices
from fcorun.selection.folds import check_groups_within_clients
from fcorun.selection.path import find_path_parameter


def prepare_study(config: Mapping[str, Any], command: str) -> tuple[Experiment, FederatedData, Experiment]:
    """Return the experiment of a configuration, its data, and the experiment at strength 1, for the study's identity.

    The identity of a study must not depend on ``reg.strength``, which the path replaces.

    Raises:
        UserError: the rows cannot be divided, or the machine has fewer devices than the configuration wants.
    """
    experiment = prepare(config)
    check_devices([experiment])
    settings = experiment.settings
    parameter = find_path_parameter(experiment)
    if settings.start:
        raise UserError(f"start={settings.start} may have seen rows that {command} holds out: leave it out")
    for name in settings.stop or {}:
        if name.removeprefix(PERSONAL_PREFIX).startswith("val_"):
            raise UserError(
                f"stop.{name} is not measured where {command} trains on all rows, or on halves: give "
                "stop={change:1e-5}, or null"
            )
    if "suboptimality" in (settings.stop or {}):
        raise UserError(
            f"stop.suboptimality is the gap to one optimum, and {command} has many problems: "
            "give stop={change:1e-5}, or null"
        )
    data = load_data(experiment)
    if data.generated is not None:
        raise UserError(
            f"{command} divides rows, and data={experiment.names['data']} stores none but those of a few "
            "clients: choose a smaller data set"
        )
    if data.on_disk:
        raise UserError(
            f"{command} needs all rows in memory, and those of data={experiment.names['data']} stay on "
            "disk: give data.resident=true where they fit, or fewer rows"
        )
    without_strength = experiment.with_resolved(reg=experiment.reg.with_value(parameter, 1.0))
    experiment = bind_objective(experiment, data)
    experiment = replace(experiment, settings=replace(settings, reference=False))
    return experiment, data, without_strength


def check_subsets(
    experiment: Experiment, data: FederatedData, masks: Iterable[np.ndarray], by: str, others_held_out: bool = False
) -> None:
    """Refuse subsets on which a run would fail later; ``masks``, (N,) each, choose their training rows.

    Set ``others_held_out`` if the other rows of each mask are its validation rows, as in a fold.

    Raises:
        UserError: a subset lacks a class, or weight; it has too few clients for a cohort or for the edges of a tree;
            or an option names clients by their number, and the subset has only some of them.
    """
    cohort_size = experiment.settings.clients_per_round or 0
    if by == "clients":
        for name in experiment.reg.per_client or {}:
            raise UserError(
                f"reg.per_client.{name} has a value for each client, and by=clients leaves some out: give "
                "by=rows, or leave it out"
            )
        check_groups_within_clients(data)
        if experiment.algo.picks_client:
            raise UserError(
                f"algo={experiment.names['algo']} is another client wherever by=clients leaves some out: give by=rows"
            )
    for k, mask in enumerate(masks):
        check_classes(data, mask)
        _check_weights(data, mask, k + 1 if others_held_out else None)
        sizes = np.add.reduceat(mask, data.offsets[:-1], dtype=np.int64)
        n_clients = int((sizes > 0).sum())
        if by == "rows" and n_clients < len(sizes):
            _refuse_absent_client(experiment, data.client_names[int((sizes == 0).argmax())])
        if cohort_size > n_clients and isinstance(experiment.algo, Algorithm):
            raise UserError(
                f"clients_per_round={cohort_size} is more than the {n_clients} clients that by=clients leaves: lower "
                "it, or set it to null for all of them"
            )
        if by == "clients":
            names = tuple(name for name, size in zip(data.client_names, sizes, strict=True) if size)
            offsets = np.append(0, np.cumsum(sizes[sizes > 0]))
            try:
                experiment.topology.assign_edges(replace(data, offsets=offsets, clients=names))
            except UserError as error:
                raise UserError(
                    f"{error} (by=clients leaves {n_clients} of {len(sizes)} clients; by=rows leaves all)"
                ) from error


def _refuse_absent_client(experiment: Experiment, client: str) -> None:
    """Raise UserError if the experiment needs every client, and a subset has no row of ``client``.

    A client is absent if its rows belong to few groups, or to one fold that the data mark.
    """
    names = experiment.names
    needs_all_clients = {
        f"algo={names['algo']} has a model for each client": experiment.algo.has_personal_models,
        f"algo={names['algo']} goes by one client": experiment.algo.picks_client,
        "reg.per_client has a value for each client": bool(experiment.reg.per_client),
        f"topology={names['topology']} gives each client an edge": experiment.topology.edge_rounds is not None,
    }
    for reason, applies in needs_all_clients.items():
        if applies:
            raise UserError(
                f"all rows of client {client} are held out together in a fold or a half, by data.group or "
                f"data.fold, and {reason}: leave that out, or clients with so few groups"
            )


def _check_weights(data: FederatedData, mask: np.ndarray, fold: int | None) -> None:
    """Raise UserError if the rows of ``mask`` of a client weigh nothing, or the rows that ``fold`` holds out."""
    if data.weight is None:
        return
    sizes = np.add.reduceat(mask.astype(int), data.offsets[:-1])
    client_weights = np.add.reduceat(mask * data.weight, data.offsets[:-1])
    weightless = np.flatnonzero((sizes > 0) & (client_weights <= 0))
    if len(weightless):
        raise UserError(
            f"client {data.client_names[weightless[0]]}: all its rows that are left in a fold or a half have weight "
            "0: give by=clients, or leave its rows of weight 0 out of the data"
        )
    if fold and not data.weight[~mask].any():
        raise UserError(
            f"fold {fold}: all rows that it holds out have weight 0: give fewer folds, or leave rows of "
            "weight 0 out of the data"
        )


def check_fold_classes(data: FederatedData, folds: Iterable[np.ndarray], metric: str) -> None:
    """Raise UserError if a fold, a mask (N,) of held-out rows, has one class only, so that no metric can rank them."""
    for k, fold in enumerate(folds, start=1):
        classes = np.unique(data.y[fold])
        if len(classes) < 2:
            raise UserError(
                f"metric={metric} ranks rows of two classes, and fold {k} holds out '"
                f"{data.classes[classes[0]]}' only: give metric=loss, or fewer folds"
            )


def has_global_model(experiment: Experiment, data: FederatedData) -> bool:
    """Return whether the algorithm trains a model of all clients. Personal models alone upload nothing."""
    if not experiment.algo.has_personal_models:
        return True
    experiment = resolve_auto(experiment, data)[0]
    assert isinstance(experiment.algo, Algorithm)
    with jax.enable_x64(experiment.settings.precision == "float64"):
        return upload_bytes(build_engine(experiment, data).federation, experiment.algo) > 0


def check_global_model(experiment: Experiment, data: FederatedData, need: str) -> None:
    """Raise UserError if the algorithm trains personal models only; ``need`` says what a global model is needed for."""
    if not has_global_model(experiment, data):
        raise UserError(f"algo={experiment.names['algo']} trains personal models and no shared one, and {need}")


def warn_few_evaluations(experiment: Experiment) -> list[str]:
    """Return a warning if runs have too few evaluations for a judgement of their convergence."""
    settings = experiment.settings
    evaluations = -(-settings.rounds // settings.eval_every) + 1
    if isinstance(experiment.algo, Baseline) or evaluations >= MIN_EVALUATIONS:
        return []
    return [
        f"convergence was not judged, since runs have fewer than {MIN_EVALUATIONS} evaluations: a smaller "
        "eval_every gives more"
    ]


def fits_own_scaling(experiment: Experiment) -> bool:
    """Return whether features are standardized by the rows themselves, rather than by the scaling of a record."""
    return getattr(experiment.data, "scaling", None) is None
