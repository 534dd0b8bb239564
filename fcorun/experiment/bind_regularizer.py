"""Psi on the data of a run: its numbers of the clients, factors and groups of the features, edges between voxels."""

from dataclasses import replace
from difflib import get_close_matches

import numpy as np

from fcorun.datasets.base import FederatedData
from fcorun.errors import UserError, suggest_name
from fcorun.objectives.base import LinearModel, Objective
from fcorun.regularizers.base import Regularizer
from fcorun.tables.data_warnings import abbreviate


def aggregate_client_values(reg: Regularizer, row_weight: np.ndarray, offsets: np.ndarray) -> Regularizer:
    """The regularizer of the problem as a whole: of numbers that differ from client to client, their mean (weighted
    as the clients are in F), least or largest. Raises UserError when there is not one value a client."""
    weight = np.add.reduceat(row_weight, offsets[:-1])
    ways = {"mean": lambda v: float(weight @ v / weight.sum()), "min": min, "max": max}
    numbers = {}
    for name, values in (reg.per_client or {}).items():
        if len(values) != len(weight):
            raise UserError(f"reg.per_client.{name} has {len(values)} values for {len(weight)} clients; give one each")
        numbers[name] = float(ways[reg.across_clients[name]](np.asarray(values)))
    return replace(reg, **numbers)


def resolve_factors(reg: Regularizer, objective: Objective, data: FederatedData) -> Regularizer:
    """The regularizer with its ``factors`` by the numbers of these data's features, the name of a column of text
    standing for all of its levels, and that of a group for its members. Raises UserError for others."""
    if not reg.factors:
        return reg
    if not _weighs_features(reg, objective, data):
        raise UserError("reg.factors weighs features, one weight each or one a class: leave it out where examples are "
                        "matrices, and where psi acts on other parameters")  # fmt: skip
    found, count, groups = {}, data.x.shape[1], getattr(reg, "groups", None) or {}
    for name, factor in reg.factors.items():
        of_group = name in groups and name not in _names(data)
        for member in groups[name] if of_group else [name]:
            for number in _numbers_of(member, data, f"reg.groups.{name}" if of_group else "reg.factors"):
                if str(number) in found:
                    raise UserError(f"reg.factors names feature {number} twice, once as '{name}': give it one factor")
                found[str(number)] = factor
    if len(found) == count and not any(found.values()):
        raise UserError("reg.factors leaves no feature penalised: give reg=none instead")
    return replace(reg, factors=found)


def attach_groups(reg: Regularizer, objective: Objective, data: FederatedData) -> Regularizer:
    """The regularizer with groups of these data's features, where it goes by groups: those that ``groups`` names, and
    of a table each other column with its levels. Raises UserError for groups that are none of features."""
    given = getattr(reg, "groups", None)
    if not hasattr(reg, "on_groups"):
        return reg
    features = _weighs_features(reg, objective, data)
    if given is None and (not features or data.encoding is None or getattr(reg, "group_size", None)):
        return reg
    if not features:
        raise UserError("reg.groups puts features together, with one weight each or one a class: leave it out where "
                        "examples are matrices, and where psi acts on other parameters")  # fmt: skip
    group_of, names = np.full(data.x.shape[1], -1), []
    for name, members in (given or {}).items():
        if not members:
            raise UserError(f"reg.groups.{name} names no feature: name some, or leave it out")
        for number in (number for member in members for number in _numbers_of(member, data, f"reg.groups.{name}")):
            if group_of[number] >= 0:
                feature = data.features[number] if data.features else number
                raise UserError(f"reg.groups names feature '{feature}' twice, in '{[*names, name][group_of[number]]}'"
                                f" and in '{name}': name it once")  # fmt: skip
            group_of[number] = len(names)
        names.append(name)
    columns = _columns(data) or {str(number): [number] for number in range(len(group_of))}
    for name, numbers in columns.items():
        left = [number for number in numbers if group_of[number] < 0]
        if left:
            group_of[left] = len(names)
            names.append(name)
    return reg.on_groups(group_of, names)  # type: ignore[attr-defined]


def warn_of_feature_order(reg: Regularizer, objective: Objective, data: FederatedData, name: str) -> list[str]:
    """Say which features of these data the regularizer, called ``name``, takes for neighbours or puts into groups."""
    if not _weighs_features(reg, objective, data):
        return []
    if reg.ordered and data.encoding is not None and len(data.features) > 1:
        first = ", ".join(f"'{feature}'" for feature in data.features[:3])
        return [f"reg={name} goes along the order of the features, which is that of the table's columns ({first} "
                "first), levels of text side by side: it is meant for columns whose order means something"]  # fmt: skip
    if not hasattr(reg, "on_groups"):
        return []
    bound = attach_groups(reg, objective, data)
    several_outputs = len(data.classes) > 2
    if bound is reg:
        if several_outputs:
            return []
        cure = "reg.groups={NAME: [0, 1]} puts features together by their numbers"
        if data.encoding is not None:
            cure = "without reg.group_size, a group is a column"
        return [f"reg={name}: groups are blocks of {reg.block_size} consecutive features, whether these belong "  # type: ignore[attr-defined]
                f"together or not: {cure}"]  # fmt: skip
    sizes = np.bincount(bound.group_of)  # type: ignore[attr-defined]
    large = [f"'{bound.names[group]}' ({sizes[group]})" for group in np.flatnonzero(sizes > 1)]  # type: ignore[attr-defined]
    law = "each norm is multiplied by the square root of the group's number of features"
    said = f"reg={name}: {len(sizes)} groups of {len(data.features) or data.x.shape[1]} features"
    if large:
        return [f"{said}, a column with its levels or what reg.groups names; of several features are "
                f"{abbreviate(large, 10)}; {law}"]  # fmt: skip
    if several_outputs:
        return [f"{said}: each is one feature over all classes"]
    return [f"{said}: each is one feature, so that psi is the l1 norm; reg.groups={{NAME: [COLUMN, COLUMN]}} puts "
            "columns together"]  # fmt: skip


def _weighs_features(reg: Regularizer, objective: Objective, data: FederatedData) -> bool:
    """Whether psi acts on the weights of a linear model, one for each feature or one for each feature and class."""
    applied = tuple(objective.regularized if reg.apply_to is None else reg.apply_to)
    return not data.shape and applied == ("weights",) and isinstance(objective, LinearModel)


def _columns(data: FederatedData) -> dict[str, list[int]]:
    """The numbers of the features that each column of a table has become."""
    place = {feature: number for number, feature in enumerate(data.features)}
    columns = data.encoding.columns if data.encoding else ()
    return {column.name: [place[feature] for feature in column.features] for column in columns}


def _names(data: FederatedData) -> list[str]:
    """The names of features and columns."""
    return list(dict.fromkeys([*data.features, *_columns(data)]))


def _numbers_of(name: str, data: FederatedData, option: str) -> list[int]:
    """The features that a name is of: one, or the levels of a column of text."""
    count, columns = data.x.shape[1], _columns(data)
    if name in data.features:
        return [data.features.index(name)]
    if name in columns:
        return columns[name]
    if name.isdecimal() and int(name) < count:
        return [int(name)]
    every = _names(data)
    known = every if len(every) <= 30 else get_close_matches(name, every, 10, 0)
    valid = suggest_name(name, known) if known else f"they have numbers from 0 to {count - 1}"
    coded = (
        next((column for column in data.encoding.columns if column.kind == "levels"), None) if data.encoding else None
    )
    levels = ""
    if coded and option == "reg.factors":
        one = coded.features[0].replace("=", "\\=")
        levels = f"; of text, 'reg.factors={{{coded.name}:0}}' is of all levels, 'reg.factors={{{one}:0}}' of one"
    raise UserError(f"{option}: there is no feature '{name}'; {valid}{levels}")


def attach_graph(reg: Regularizer, data: FederatedData, name: str) -> Regularizer:
    """The regularizer on the graph of the data's voxels, where it goes by one. Raises UserError where it goes by an
    order instead, which voxels do not have, or by voxels that there are none of."""
    if data.voxel_grid is not None and reg.ordered:
        raise UserError(f"reg={name} goes along the order of the features, and voxels of images have none: choose "
                        "reg=graph_net, which knows which voxels are neighbours")  # fmt: skip
    if not hasattr(reg, "on_graph") or reg.ordered:
        return reg
    if data.voxel_grid is None:
        raise UserError(f"reg={name} goes by the voxels of images, which these data are not: give reg.graph=chain if "
                        "the features have an order, else reg=elastic_net")  # fmt: skip
    return reg.on_graph(data.voxel_grid.neighbours())  # type: ignore[attr-defined]
