"""Psi on the data of a run: its numbers of the clients, factors of the features, edges between voxels."""

from dataclasses import replace
from difflib import get_close_matches

import numpy as np

from fcorun.datasets.base import FederatedData
from fcorun.errors import UserError, nearest
from fcorun.objectives.base import LinearModel, Objective
from fcorun.regularizers.base import Regularizer


def across_clients(reg: Regularizer, row_weight: np.ndarray, offsets: np.ndarray) -> Regularizer:
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


def by_number(reg: Regularizer, objective: Objective, data: FederatedData) -> Regularizer:
    """The regularizer with its ``factors`` by the numbers of these data's features, the name of a column of text
    standing for all of its levels. Raises UserError for others."""
    if not reg.factors:
        return reg
    applied = tuple(objective.regularized if reg.apply_to is None else reg.apply_to)
    if data.shape or applied != ("weights",) or not isinstance(objective, LinearModel):
        raise UserError("reg.factors weighs features, one weight each or one a class: leave it out where examples are "
                        "matrices, and where psi acts on other parameters")  # fmt: skip
    found, count = {}, data.x.shape[1]
    for name, factor in reg.factors.items():
        for number in _numbers_of(name, data):
            if number in found:
                raise UserError(f"reg.factors names feature {number} twice, once as '{name}': give it one factor")
            found[number] = factor
    if len(found) == count and not any(found.values()):
        raise UserError("reg.factors leaves no feature penalised: give reg=none instead")
    return replace(reg, factors=found)


def _numbers_of(name: str, data: FederatedData) -> list[str]:
    """The features that a name is of: one, or the levels of a column of text."""
    count, columns = data.x.shape[1], {column.name: column for column in data.encoding.columns} if data.encoding else {}
    if name in data.features:
        return [str(data.features.index(name))]
    if name in columns:
        return [str(data.features.index(feature)) for feature in columns[name].features]
    if name.isdecimal() and int(name) < count:
        return [str(int(name))]
    every = [*data.features, *columns]
    known = every if len(every) <= 30 else get_close_matches(name, every, 10, 0)
    valid = nearest(name, dict.fromkeys(known)) if known else f"they have numbers from 0 to {count - 1}"
    coded = next((column for column in columns.values() if column.kind == "levels"), None)
    levels = ""
    if coded:
        one = coded.features[0].replace("=", "\\=")
        levels = f"; of text, 'reg.factors={{{coded.name}:0}}' is of all levels, 'reg.factors={{{one}:0}}' of one"
    raise UserError(f"reg.factors: there is no feature '{name}'; {valid}{levels}")


def on_graph(reg: Regularizer, data: FederatedData, name: str) -> Regularizer:
    """The regularizer on the graph of the data's voxels, where it goes by one. Raises UserError where it goes by an
    order instead, which voxels do not have, or by voxels that there are none of."""
    if data.grid is not None and reg.ordered:
        raise UserError(f"reg={name} goes along the order of the features, and voxels of images have none: choose "
                        "reg=graph_net, which knows which voxels are neighbours")  # fmt: skip
    if not hasattr(reg, "on_graph") or reg.ordered:
        return reg
    if data.grid is None:
        raise UserError(f"reg={name} goes by the voxels of images, which these data are not: give reg.graph=chain if "
                        "the features have an order, else reg=elastic_net")  # fmt: skip
    return reg.on_graph(data.grid.neighbours())  # type: ignore[attr-defined]
