"""The regularizer psi bound to the data of a run: numbers of clients, factors and groups of features, voxel graphs."""

from dataclasses import replace
from difflib import get_close_matches

import numpy as np

from fcorun.base.errors import UserError, suggest_name
from fcorun.data.datasets.dataset import FederatedData
from fcorun.methods.objectives.objective import LinearModel, Objective
from fcorun.methods.regularizers.regularizer import Regularizer, is_array


def bind_regularizer(
    reg: Regularizer, objective: Objective, data: FederatedData, row_weight: np.ndarray, name: str
) -> Regularizer:
    """Return the regularizer, called ``name``, of the problem on these data, whose rows have these weights (N,) in F.

    Raises UserError for a regularizer that does not fit the data.
    """
    reg = aggregate_client_values(attach_graph(reg, data, name), row_weight, data.train.offsets)
    reg = attach_groups(reg, objective, data)
    return resolve_factors(reg, objective, data)


def aggregate_client_values(reg: Regularizer, row_weight: np.ndarray, offsets: np.ndarray) -> Regularizer:
    """Return the regularizer of the whole problem, with one number for each field that differs between clients.

    That number is the mean (weighted as clients are in F), the least or the largest of the clients' values. Raises
    UserError unless there is one value for each client.
    """
    if not reg.per_client:
        return reg
    client_weight = np.add.reduceat(row_weight, offsets[:-1])
    aggregates = {"mean": lambda values: float(client_weight @ values / client_weight.sum()), "min": min, "max": max}
    numbers = {}
    for name, values in reg.per_client.items():
        if len(values) != len(client_weight):
            raise UserError(
                f"`reg.per_client.{name}` has {len(values)} values for {len(client_weight)} clients; give one each"
            )
        aggregate = aggregates[reg.across_clients[name]]
        numbers[name] = float(aggregate(np.asarray(values)))
    return replace(reg, **numbers)


def resolve_factors(reg: Regularizer, objective: Objective, data: FederatedData) -> Regularizer:
    """Return the regularizer with its ``factors`` by the indices of these data's features.

    The name of a column of text stands for all of its levels, and the name of a group for its members. Raises
    UserError for other names.
    """
    if is_array(reg.factors) or not reg.factors:
        return reg
    if not _weighs_features(reg, objective, data):
        raise UserError("`reg.factors` weighs features, one weight each or one a class: leave it out where examples "
                        "are matrices, and where psi acts on other parameters")  # fmt: skip
    groups = getattr(reg, "groups", None) or {}
    factors = {}
    for name, factor in reg.factors.items():
        members, option = [name], "reg.factors"
        if name in groups and name not in _feature_and_column_names(data):
            members, option = groups[name], f"reg.groups.{name}"
        for member in members:
            for index in _feature_indices(member, data, option):
                if str(index) in factors:
                    raise UserError(f"`reg.factors` names feature {index} twice, once as '{name}': give it one factor")
                factors[str(index)] = factor
    if len(factors) == data.train.x.shape[1] and not any(factors.values()):
        raise UserError("`reg.factors` leaves no feature penalized: give `reg=none` instead")
    return replace(reg, factors=factors)


def attach_groups(reg: Regularizer, objective: Objective, data: FederatedData) -> Regularizer:
    """Return the regularizer with groups of these data's features; unchanged if it has no groups.

    The groups are those that ``groups`` names and, for a table, each other column with its levels. Raises UserError
    for groups that hold other things than features.
    """
    if not hasattr(reg, "on_groups"):
        return reg
    named_groups = getattr(reg, "groups", None)
    weighs_features = _weighs_features(reg, objective, data)
    if named_groups is None and (
        not weighs_features or data.features.encoding is None or getattr(reg, "group_size", None)
    ):
        return reg
    if not weighs_features:
        raise UserError("`reg.groups` puts features together, with one weight each or one a class: leave it out where "
                        "examples are matrices, and where psi acts on other parameters")  # fmt: skip
    group_of = np.full(data.train.x.shape[1], -1)
    group_names: list[str] = []
    for name, members in (named_groups or {}).items():
        if not members:
            raise UserError(f"`reg.groups.{name}` names no feature: name some, or leave it out")
        for member in members:
            for index in _feature_indices(member, data, f"reg.groups.{name}"):
                if group_of[index] >= 0:
                    feature = data.features.names[index] if data.features.names else index
                    first_group = [*group_names, name][group_of[index]]
                    raise UserError(f"`reg.groups` names feature '{feature}' twice, in '{first_group}'"
                                    f" and in '{name}': name it once")  # fmt: skip
                group_of[index] = len(group_names)
        group_names.append(name)
    columns = _features_of_columns(data) or {str(index): [index] for index in range(len(group_of))}
    for name, indices in columns.items():
        ungrouped = [index for index in indices if group_of[index] < 0]
        if ungrouped:
            group_of[ungrouped] = len(group_names)
            group_names.append(name)
    return reg.on_groups(group_of, group_names)  # type: ignore[attr-defined]


def _weighs_features(reg: Regularizer, objective: Objective, data: FederatedData) -> bool:
    """Return whether psi acts on the weights of a linear model, one for each feature or for each feature and class."""
    applied_to = tuple(objective.regularized if reg.apply_to is None else reg.apply_to)
    return not data.features.shape and applied_to == ("weights",) and isinstance(objective, LinearModel)


def _features_of_columns(data: FederatedData) -> dict[str, list[int]]:
    """Return the indices of the features that each column of a table was encoded to."""
    if data.features.encoding is None:
        return {}
    index_of = {feature: index for index, feature in enumerate(data.features.names)}
    return {
        column.name: [index_of[feature] for feature in column.features] for column in data.features.encoding.columns
    }


def _feature_and_column_names(data: FederatedData) -> list[str]:
    """Return the names of the features and of the columns, each once."""
    return list(dict.fromkeys([*data.features.names, *_features_of_columns(data)]))


def _feature_indices(name: str, data: FederatedData, option: str) -> list[int]:
    """Return the indices of the features that a name of ``option`` stands for.

    They are one, the levels of a text column, or the terms of a spline. Raises UserError for a name of no feature.
    """
    n_features, columns = data.train.x.shape[1], _features_of_columns(data)
    curves = data.features.encoding.curve_of_feature if data.features.encoding else {}
    if name in data.features.names and curves.get(name) != name:  # whose first term has the name of the column
        return [data.features.names.index(name)]
    if name in columns:
        return columns[name]
    if name.isdecimal() and int(name) < n_features:
        return [int(name)]
    names = _feature_and_column_names(data)
    candidates = names if len(names) <= 30 else get_close_matches(name, names, 10, 0)
    suggestion = suggest_name(name, candidates) if candidates else f"they have numbers from 0 to {n_features - 1}"
    raise UserError(f"{option}: there is no feature '{name}'; {suggestion}")


def attach_graph(reg: Regularizer, data: FederatedData, name: str) -> Regularizer:
    """Return the regularizer on the graph of the data's voxels; unchanged if it uses no graph.

    Raises UserError for a regularizer of ordered features on voxels, and for one of voxels on other data.
    """
    if data.features.voxel_grid is not None and reg.ordered:
        raise UserError(f"`reg={name}` goes along the order of the features, and voxels of images have none: choose "
                        "`reg=graph_net`, which knows which voxels are neighbours")  # fmt: skip
    if not hasattr(reg, "on_graph") or reg.ordered:
        return reg
    if data.features.voxel_grid is None:
        raise UserError(f"`reg={name}` goes by the voxels of images, which these data are not: give "
                        "`reg.graph=chain` if the features have an order, else `reg=elastic_net`")  # fmt: skip
    return reg.on_graph(data.features.voxel_grid.neighbours())  # type: ignore[attr-defined]
