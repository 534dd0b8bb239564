"""What selection and stability ask of an experiment and its data, and of the parts that they make of it."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from fcorun.algorithms.base import Algorithm, Baseline
from fcorun.algorithms.one_client import OneClient
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
    """The experiment of a configuration, its data, and the experiment whose identity does not know the strength.

    Raises UserError for what cannot be divided into parts, and for more devices than there are.
    """
    experiment = prepare(config)
    check_devices([experiment])
    settings, number = experiment.settings, find_path_parameter(experiment)
    if settings.start:
        raise UserError(f"start={settings.start} may have seen rows that {command} holds out: leave it out")
    for name in settings.stop or {}:
        if name.removeprefix(PERSONAL_PREFIX).startswith("val_"):
            raise UserError(f"stop.{name} is not measured where {command} trains on all rows, or on halves: give "
                            "stop={change:1e-5}, or null")  # fmt: skip
    if "suboptimality" in (settings.stop or {}):
        raise UserError(f"stop.suboptimality is the gap to one optimum, and {command} has many problems: "
                        "give stop={change:1e-5}, or null")  # fmt: skip
    data = load_data(experiment)
    if data.generated is not None:
        raise UserError(f"{command} divides rows, and data={experiment.names['data']} stores none but those of a few "
                        "clients: choose a smaller data set")  # fmt: skip
    if data.on_disk:
        raise UserError(f"{command} needs all rows in memory, and those of data={experiment.names['data']} stay on "
                        "disk: give data.resident=true where they fit, or fewer rows")  # fmt: skip
    fixed = replace(experiment, reg=experiment.reg.with_value(number, 1.0))
    experiment = bind_objective(experiment, data)
    return replace(experiment, settings=replace(settings, reference=False)), data, fixed


def check_subsets(
    experiment: Experiment, data: FederatedData, masks: Iterable[np.ndarray], by: str, others_held_out: bool = False
) -> None:
    """Raises UserError for what parts that keep the rows of masks, (N,), would refuse when their turn comes.

    That is: rows without a class, or of a client, or if the others are ``held`` out those, without weight; too few
    clients for a cohort or for edges; and what is said of clients by their number, where parts have some of them.
    """
    asked = experiment.settings.clients_per_round or 0
    numbers = next(iter(experiment.reg.per_client or {}), None)
    if by == "clients" and numbers:
        raise UserError(f"reg.per_client.{numbers} has a value for each client, and by=clients leaves some out: give "
                        "by=rows, or leave it out")  # fmt: skip
    if by == "clients":
        check_groups_within_clients(data)
    if by == "clients" and isinstance(experiment.algo, OneClient):
        raise UserError("algo=one_client is another client wherever by=clients leaves some out: give by=rows")
    for k, kept in enumerate(masks):
        check_classes(data, kept)
        _check_weights(data, kept, k + 1 if others_held_out else None)
        there = np.add.reduceat(kept, data.offsets[:-1], dtype=np.int64)
        left = int((there > 0).sum())
        if by == "rows" and left < len(there):
            _check_lost(experiment, data.client_names[int((there == 0).argmax())])
        if asked > left and isinstance(experiment.algo, Algorithm):
            raise UserError(f"clients_per_round={asked} is more than the {left} clients that by=clients leaves: lower "
                            "it, or set it to null for all of them")  # fmt: skip
        if by == "clients":
            names = tuple(name for name, rows in zip(data.client_names, there, strict=True) if rows)
            ends = np.append(0, np.cumsum(there[there > 0]))
            try:
                experiment.topology.assign_edges(replace(data, offsets=ends, clients=names))
            except UserError as error:
                raise UserError(
                    f"{error} (by=clients leaves {left} of {len(there)} clients; by=rows leaves all)"
                ) from error


def _check_lost(experiment: Experiment, client: str) -> None:
    """Raise UserError where each client is needed, and all rows of one are held out together, being of few groups or
    of one fold that the data mark."""
    needs = {
        f"algo={experiment.names['algo']} has a model for each client": experiment.algo.has_personal_models,
        f"algo={experiment.names['algo']} goes by one client": isinstance(experiment.algo, OneClient),
        "reg.per_client has a value for each client": bool(experiment.reg.per_client),
        f"topology={experiment.names['topology']} gives each client an edge": experiment.topology.edge_rounds
        is not None,
    }
    if why := next((need for need, there in needs.items() if there), ""):
        raise UserError(f"all rows of client {client} are held out together in a fold or a half, by data.group or "
                        f"data.fold, and {why}: leave that out, or clients with so few groups")  # fmt: skip


def _check_weights(data: FederatedData, kept: np.ndarray, fold: int | None) -> None:
    """Raises UserError where what is kept of a client weighs nothing, or what is held out in a ``fold``."""
    if data.weight is None:
        return
    rows, weight = (np.add.reduceat(each, data.offsets[:-1]) for each in (kept.astype(int), kept * data.weight))
    if len(without := np.flatnonzero((rows > 0) & (weight <= 0))):
        raise UserError(
            f"client {data.client_names[without[0]]}: all its rows that are left in a fold or a half have weight "
            "0: give by=clients, or leave its rows of weight 0 out of the data"
        )
    if fold and not data.weight[~kept].any():
        raise UserError(f"fold {fold}: all rows that it holds out have weight 0: give fewer folds, or leave rows of "
                        "weight 0 out of the data")  # fmt: skip


def check_fold_classes(data: FederatedData, folds: Iterable[np.ndarray], metric: str) -> None:
    """Raise UserError where a fold, rows of a mask (N,), holds out one class only, so that nothing can be ranked."""
    for k, fold in enumerate(folds, start=1):
        classes = np.unique(data.y[fold])
        if len(classes) < 2:
            raise UserError(f"metric={metric} ranks rows of two classes, and fold {k} holds out '"
                            f"{data.classes[classes[0]]}' only: give metric=loss, or fewer folds")  # fmt: skip


def has_global_model(experiment: Experiment, data: FederatedData) -> bool:
    """Whether runs make a model of all clients, and not only models of their own, of which nothing is sent."""
    if not experiment.algo.has_personal_models:
        return True
    experiment = resolve_auto(experiment, data)[0]
    assert isinstance(experiment.algo, Algorithm)
    with jax.enable_x64(experiment.settings.precision == "float64"):
        return upload_bytes(build_engine(experiment, data).federation, experiment.algo) > 0


def check_global_model(experiment: Experiment, data: FederatedData, why: str) -> None:
    """Raises UserError, with what is wanted of a model of all clients, where there is none."""
    if not has_global_model(experiment, data):
        raise UserError(f"clients of algo={experiment.names['algo']} have models of their own and none together, and "
                        f"{why}")  # fmt: skip


def warn_few_evaluations(experiment: Experiment) -> list[str]:
    """That nothing is known of whether runs had come to an end, where they are evaluated too seldom."""
    settings = experiment.settings
    if isinstance(experiment.algo, Baseline) or -(-settings.rounds // settings.eval_every) + 1 >= MIN_EVALUATIONS:
        return []
    return [
        f"whether runs had come to an end was not judged, for they have fewer than {MIN_EVALUATIONS} evaluations: "
        f"a smaller "
        "eval_every gives more"
    ]


def fits_own_scaling(experiment: Experiment) -> bool:
    """Whether features were standardized, if they were, by the rows themselves, and not as another record's were."""
    return getattr(experiment.data, "scaling", None) is None
