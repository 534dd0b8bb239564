"""Predictions of rows that are sharded over hosts: each host predicts its own, and the leader gathers them."""

import base64

import numpy as np

from fcorun.datasets.base import FederatedData
from fcorun.models.forward import Arrays, compute_predictions
from fcorun.objectives.base import Objective
from fcorun.records.formats import arrays_from_bytes, npz_bytes
from fcorun.rows.host_rows import HostRows
from fcorun.system.hosts import current_hosts


def gather_predictions(objective: Objective, data: FederatedData, solution: Arrays) -> Arrays:
    """Gather on the leader the predictions of all rows of each split, (n, ...), without offsets.

    Returns no arrays if the rows are not sharded over hosts.
    """
    if data.host_bounds is None:
        return {}
    hosts = current_hosts()
    assert hosts is not None
    hosts.broadcast("predict", solution=encode_arrays(solution))
    shards = [predict_local(objective, data, solution)]
    for rank in hosts.connections:
        shards.append(decode_arrays(hosts.receive(rank)["predicted"]))
    return {split: np.concatenate([shard[split] for shard in shards]) for split in shards[0]}


def predict_local(objective: Objective, data: FederatedData, solution: Arrays) -> Arrays:
    """Predict the rows stored on this host, by split."""
    predictions = {}
    for split, (x, _) in data.splits.items():
        if isinstance(x, HostRows):
            predictions[split] = compute_predictions(objective, solution, x[x.row_range], data.scale)
    return predictions


def encode_arrays(arrays: Arrays) -> str:
    """Encode arrays as text."""
    return base64.b64encode(npz_bytes(arrays)).decode()


def decode_arrays(text: str) -> Arrays:
    """Decode the text of ``encode_arrays``."""
    return arrays_from_bytes(base64.b64decode(text))
