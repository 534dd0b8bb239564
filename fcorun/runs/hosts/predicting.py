"""Predictions where each host has the rows of its own clients: each predicts these, and the first one has them all."""

import base64

import numpy as np

from fcorun.datasets.base import FederatedData
from fcorun.datasets.own import Own
from fcorun.models.outputs import Arrays, predictions
from fcorun.objectives.base import Objective
from fcorun.records.formats import arrays_of, npz_bytes
from fcorun.system.hosts import joined


def predicted(objective: Objective, data: FederatedData, solution: Arrays) -> Arrays:
    """Predictions on the first host of all rows of each part of the data, (n, ...), without offsets, where rows are
    other hosts' too; none elsewhere."""
    if data.cut is None:
        return {}
    hosts = joined()
    assert hosts is not None
    hosts.tell("predict", solution=packed(solution))
    each = [own(objective, data, solution), *(unpacked(hosts.hear(rank)["predicted"]) for rank in hosts.links)]
    return {part: np.concatenate([arrays[part] for arrays in each]) for part in each[0]}


def own(objective: Objective, data: FederatedData, solution: Arrays) -> Arrays:
    """Predictions of the rows that are here, by part, where the others are elsewhere."""
    parts = {part: x for part, (x, _) in data.parts.items() if isinstance(x, Own)}
    return {part: predictions(objective, solution, x[x.rows], data.scale) for part, x in parts.items()}


def packed(arrays: Arrays) -> str:
    """Arrays as text."""
    return base64.b64encode(npz_bytes(arrays)).decode()


def unpacked(text: str) -> Arrays:
    """Arrays of text."""
    return arrays_of(base64.b64decode(text))
