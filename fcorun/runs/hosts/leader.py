"""The leader: of several hosts, the first one runs the experiments and sends commands to the followers.

The leader runs experiments as it would alone. It sends the experiment, so that each follower loads the data; the
engine's settings, with resolved numbers for fields that are "auto"; and each batch. All hosts compute the rounds: the
state goes from the leader to the followers before them, and is the same on all hosts after them. The leader evaluates
the runs, gathers the predictions of rows that are sharded over hosts, and decides whether the runs continue.
"""

import base64
from collections.abc import Generator, Sequence
from typing import Any

import jax
import numpy as np

from fcorun.datasets.base import FederatedData
from fcorun.engine.engine import Engine, Snapshot
from fcorun.engine.federation import Numbers
from fcorun.errors import HostLost, UserError, describe_error
from fcorun.experiment.build import load_data
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.experiment.prepare import plugin_to_config
from fcorun.models.forward import Arrays, compute_predictions
from fcorun.objectives.base import Objective
from fcorun.records.formats import arrays_from_bytes, npz_bytes
from fcorun.system.hosts import current_hosts

_RESOLVED_SECTIONS = ("algo", "reg")  # the sections in which fields are resolved to numbers
_FAILURE_TIMEOUT = 5.0  # seconds in which the loss or the failure of a host becomes known
_HOST_ERRORS = (MemoryError, jax.errors.JaxRuntimeError)  # after these errors of one host, others may wait for it


def load_on_all_hosts(experiment: PreparedExperiment) -> FederatedData:
    """Load the data on all hosts, and return those of this host.

    Raises UserError if a host has other data or other code, or if several hosts cannot compute the experiment.
    """
    hosts = current_hosts()
    if hosts is None:
        options = experiment.settings.hosts or {}
        if options.get("address") and options.get("count") != 1:
            raise UserError("hosts.*: several hosts are for the command fcorun: leave them out")
        return load_data(experiment)
    if experiment.settings.debug:
        raise UserError("debug=true computes one client after the other, on one host: leave hosts.* out")
    hosts.broadcast("prepare", config=experiment.config)
    try:
        data = load_data(experiment)
    finally:
        answers = {rank: hosts.receive(rank) for rank in hosts.connections}
    leader = hosts.describe_host(0)
    for rank, answer in answers.items():
        follower = hosts.describe_host(rank)
        if "refused" in answer:
            raise UserError(f"{follower}: {answer['refused']}")
        if answer["fingerprint"] != experiment.fingerprint:
            fingerprints = f"{answer['fingerprint'][:8]} and {experiment.fingerprint[:8]}"
            raise UserError(f"{follower} has other data={experiment.names['data']} than {leader}, {fingerprints}: "
                            "give all the same files")  # fmt: skip
        if answer["identity"] != experiment.identity:
            raise UserError(f"{follower} has other code of this run than {leader}: give all the same files")
        if answer["place"] != data.train.place:
            raise UserError(f"the rows of {follower} are {answer['place']}, and those of {leader} are "
                            f"{data.train.place}: give data.resident")  # fmt: skip
    return data


def build_on_all_hosts(engine: Engine, experiment: PreparedExperiment) -> None:
    """Have the followers build the engine of an experiment whose numbers are resolved."""
    hosts = current_hosts()
    if not hosts:
        return
    configs = {}
    for section in _RESOLVED_SECTIONS:
        configs[section] = plugin_to_config(getattr(experiment, section), experiment.names[section])
    hosts.broadcast("build", **configs, devices=engine.devices, budget=engine.row_bytes_budget)


def run_rounds(
    engine: Engine, points: Sequence[Numbers], seeds: Sequence[int], state: Any, done: int, **options: Any
) -> Generator[Snapshot, None, None]:
    """Yield the snapshots of ``engine.run``, computed by all hosts. The caller closes the generator.

    Raises the errors of ``engine.run`` that all hosts have alike, HostLost if a host is lost or fails alone, and
    KeyboardInterrupt if a host is interrupted.
    """
    hosts = current_hosts()
    if hosts is None:
        yield from engine.run(points, seeds, state, done, **options)
        return
    hosts.broadcast("run", points=points, seeds=seeds, done=done)
    try:
        for snapshot in engine.run(points, seeds, state, done, **options):
            yield snapshot
            hosts.check_failures()
            if snapshot.round < engine.rounds and not snapshot.diverged.all():
                hosts.broadcast("advance", diverged=snapshot.diverged.tolist())
    except HostLost:
        raise
    except Exception as error:
        if isinstance(error, _HOST_ERRORS):
            hosts.check_failures(_FAILURE_TIMEOUT)
        elif hosts.all_failed(_FAILURE_TIMEOUT):
            raise
        reason = describe_error(error)  # the other hosts may wait for this one within a round
        raise hosts.make_lost_error(0, reason) from error
    finally:
        if not hosts.failure:
            hosts.broadcast("stop")


def gather_predictions(objective: Objective, data: FederatedData, solution: Arrays) -> Arrays:
    """Gather on the leader the predictions of all rows of each split, (n, ...), without offsets.

    Returns no arrays if the rows are not sharded over hosts.
    """
    if data.train.shard_features is None:
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
    for split, rows in data.splits.items():
        x = rows.shard_features
        if x is not None:
            predictions[split] = compute_predictions(objective, solution, x, data.features.scale)
    return predictions


def encode_arrays(arrays: Arrays) -> str:
    """Encode arrays as text."""
    return base64.b64encode(npz_bytes(arrays)).decode()


def decode_arrays(text: str) -> Arrays:
    """Decode the text of ``encode_arrays``."""
    return arrays_from_bytes(base64.b64decode(text))
