"""Predictions where each host has the rows of its own clients: each predicts these, and the first one has them all."""

import base64

import numpy as np

from fcorun.datasets.base import FederatedData
from fcorun.models.forward import Arrays, compute_predictions
from fcorun.objectives.base import Objective
from fcorun.records.formats import arrays_from_bytes, npz_bytes
from fcorun.rows.host_rows import HostRows
from fcorun.system.hosts import current_hosts


def gather_predictions(objective: Objective, data: FederatedData, solution: Arrays) -> Arrays:
    """Predictions on the first host of all rows of each part of the data, (n, ...), without offsets, where rows are
    other hosts' too; none elsewhere."""
    if data.host_bounds is None:
        return {}
    hosts = current_hosts()
    assert hosts is not None
    hosts.broadcast("predict", solution=encode_arrays(solution))
    each = [
        predict_local(objective, data, solution),
        *(decode_arrays(hosts.receive(rank)["predicted"]) for rank in hosts.connections),
    ]
    return {part: np.concatenate([arrays[part] for arrays in each]) for part in each[0]}


def predict_local(objective: Objective, data: FederatedData, solution: Arrays) -> Arrays:
    """Predictions of the rows that are here, by part, where the others are elsewhere."""
    parts = {part: x for part, (x, _) in data.splits.items() if isinstance(x, HostRows)}
    return {part: compute_predictions(objective, solution, x[x.row_range], data.scale) for part, x in parts.items()}


def encode_arrays(arrays: Arrays) -> str:
    """Arrays as text."""
    return base64.b64encode(npz_bytes(arrays)).decode()


def decode_arrays(text: str) -> Arrays:
    """Arrays of text."""
    return arrays_from_bytes(base64.b64decode(text))
