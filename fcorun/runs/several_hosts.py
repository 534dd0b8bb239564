"""Several hosts that compute one program: the leader runs the experiments, and the others follow its commands."""

import base64
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from fcorun.base.config import build_plugin, import_classes
from fcorun.base.errors import HostLost, UserError, describe_error
from fcorun.base.records.formats import arrays_from_bytes, npz_bytes
from fcorun.base.system.files import defer_interruption
from fcorun.base.system.hosts import Hosts
from fcorun.base.system.machine import current_hosts, read_hosts, use_precision
from fcorun.data.datasets.dataset import FederatedData
from fcorun.engine.engine import Engine, Snapshot
from fcorun.engine.federation import Numbers
from fcorun.experiment.build import bind_objective, build_engine, load_data
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.experiment.prepare import plugin_to_config, prepare
from fcorun.methods.objectives.objective import Objective
from fcorun.results.model_outputs import Arrays, compute_predictions

# The leader: of several hosts, the first one runs the experiments and sends commands to the followers.
#
# The leader runs experiments as it would alone. It sends the experiment, so that each follower loads the data; the
# engine's settings, with resolved numbers for fields that are "auto"; and each batch. All hosts compute the rounds: the
# state goes from the leader to the followers before them, and is the same on all hosts after them. The leader evaluates
# the runs, gathers the predictions of rows that are sharded over hosts, and decides whether the runs continue.

_RESOLVED_SECTIONS = ("algo", "reg")  # the sections in which fields are resolved to numbers
_FAILURE_TIMEOUT = 5.0  # seconds in which the loss or the failure of a host becomes known
_HOST_ERRORS = (MemoryError, jax.errors.JaxRuntimeError)  # after these errors of one host, others may wait for it


def load_on_all_hosts(experiment: PreparedExperiment) -> FederatedData:
    """Load the data, on all hosts if there are several, and return those of this host.

    Raises UserError if a host has other data or other code, or if several hosts cannot compute the experiment.
    """
    hosts = current_hosts()
    if hosts is None:
        if read_hosts(experiment.settings.hosts).count > 1:
            raise UserError("hosts.*: several hosts are for the command fcorun: leave them out")
        return load_data(experiment)
    if experiment.settings.debug:
        raise UserError("`debug=true` computes one client after the other, on one host: leave hosts.* out")
    hosts.broadcast("prepare", config=experiment.config)
    try:
        data = load_data(experiment)
    finally:
        answers = {rank: hosts.receive(rank) for rank in hosts.others}
    leader = hosts.describe_host(0)
    for rank, answer in answers.items():
        follower = hosts.describe_host(rank)
        if "refused" in answer:
            raise UserError(f"{follower}: {answer['refused']}")
        if answer["fingerprint"] != experiment.fingerprint:
            fingerprints = f"{answer['fingerprint'][:8]} and {experiment.fingerprint[:8]}"
            raise UserError(f"{follower} has other `data={experiment.names['data']}` than {leader}, {fingerprints}: "
                            "give all the same files")  # fmt: skip
        if answer["identity"] != experiment.identity:
            raise UserError(f"{follower} has other code of this run than {leader}: give all the same files")
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
    hosts.broadcast("predict", solution=_encode_arrays(solution))
    shards = [_predict_local(objective, data, solution)]
    for rank in hosts.others:
        shards.append(_decode_arrays(hosts.receive(rank)["predicted"]))
    return {split: np.concatenate([shard[split] for shard in shards]) for split in shards[0]}


def _predict_local(objective: Objective, data: FederatedData, solution: Arrays) -> Arrays:
    """Predict the rows stored on this host, by split."""
    predictions = {}
    for split, rows in data.splits.items():
        x = rows.shard_features
        if x is not None:
            predictions[split] = compute_predictions(objective, solution, x, data.features.scale)
    return predictions


def _encode_arrays(arrays: Arrays) -> str:
    return base64.b64encode(npz_bytes(arrays)).decode()


def _decode_arrays(text: str) -> Arrays:
    return arrays_from_bytes(base64.b64decode(text))


# The follower: every host but the leader executes the leader's commands.

_COMMANDS = ("prepare", "build", "run", "predict", "stop")
# seconds before an error is sent, because a host that was lost, and is noticed first, may be its cause
_ERROR_DELAY = 1.0
_STOP_TIMEOUT = 60.0  # seconds in which the leader stops a batch that fails on all hosts
_POLL_SECONDS = 0.1


def run_follower() -> int:
    """Execute the leader's commands until the leader ends, and return the exit code. Raises HostLost."""
    hosts = current_hosts()
    assert hosts is not None
    follower = _Follower(hosts)
    with defer_interruption():  # the leader ends all hosts, after a round that all have computed
        try:
            while True:
                follower.execute(follower.receive())
        except SystemExit as end:
            return int(end.code or 0)


@dataclass
class _Follower:
    """The state of a follower, with a method for each command."""

    hosts: Hosts
    experiment: PreparedExperiment | None = None
    data: FederatedData | None = None
    engine: Engine | None = None

    def receive(self) -> dict[str, Any]:
        """Receive the leader's next message. Raises SystemExit when the leader ends, HostLost if a host is lost."""
        message = self.hosts.receive()
        if message["do"] == "end":
            raise SystemExit(message["code"])
        return message

    def execute(self, message: dict[str, Any]) -> None:
        """Execute a command. An error is sent to the leader, which ends all hosts or had the same error itself.

        Raises HostLost after an error in rounds that the leader does not have.
        """
        arguments = dict(message)
        command = arguments.pop("do")
        try:
            if command not in _COMMANDS:
                raise UserError(f"the leader sent an unknown command '{command}'")
            getattr(self, command)(**arguments)
        except HostLost:
            raise
        except Exception as error:
            time.sleep(_ERROR_DELAY)
            reason = describe_error(error)
            self.hosts.send(failed=reason)
            if command == "run":
                self._await_stop(reason)

    def _await_stop(self, reason: str) -> None:
        """Wait until the leader stops the batch that has failed here.

        Raises HostLost if it does not: then it waits in a round for this host, whose end it notices.
        """
        deadline = time.monotonic() + _STOP_TIMEOUT
        while time.monotonic() < deadline:
            if not self.hosts.has_message():
                time.sleep(_POLL_SECONDS)
            elif self.receive()["do"] == "stop":
                return
        raise self.hosts.make_lost_error(self.hosts.rank, reason)

    def prepare(self, config: dict[str, Any]) -> None:
        """Load the data of an experiment, and send its identity on this host."""
        try:
            import_classes(config)  # the leader's, and so the user's own
            self.experiment = prepare(config)
            self.data = load_data(self.experiment)
            identities = {"identity": self.experiment.identity, "fingerprint": self.experiment.fingerprint}
            self.experiment = bind_objective(self.experiment, self.data)
            self.hosts.send(**identities)
        except Exception as error:
            self.hosts.send(refused=describe_error(error))

    def build(self, algo: dict[str, Any], reg: dict[str, Any], devices: int, budget: int | None) -> None:
        """Build the engine of the experiment, with the numbers that the leader has resolved."""
        self.engine = None  # so that no other engine runs if the building fails
        assert self.experiment is not None
        assert self.data is not None
        plugins = {"algo": build_plugin("algo", algo), "reg": build_plugin("reg", reg)}
        engine = build_engine(self.experiment.with_resolved(**plugins), self.data)
        self.engine = replace(engine, devices=devices, row_bytes_budget=budget)

    def run(self, points: Sequence[Numbers], seeds: Sequence[int], done: int) -> None:
        """Compute the rounds of a batch, until the leader stops it."""
        assert self.engine is not None

        def receive_diverged() -> np.ndarray | None:
            """Receive which runs have diverged; None when the batch is over."""
            message = self.receive()
            while message["do"] == "predict":
                self.predict(message["solution"])
                message = self.receive()
            return np.array(message["diverged"], np.int32) if message["do"] == "advance" else None

        with use_precision(self.engine.federation.precision):
            self.engine.follow(points, seeds, done, receive_diverged)

    def predict(self, solution: str) -> None:
        """Send the predictions of a solution on the rows stored on this host."""
        assert self.experiment is not None
        assert self.data is not None
        predictions = _predict_local(self.experiment.objective, self.data, _decode_arrays(solution))
        self.hosts.send(predicted=_encode_arrays(predictions))

    def stop(self) -> None:
        """Do nothing: the rounds of a batch are over on this host as well."""
