"""The follower: every host but the leader executes the leader's commands."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fcorun.base.config import build_plugin
from fcorun.base.errors import HostLost, UserError, describe_error
from fcorun.base.system.files import defer_interruption
from fcorun.base.system.hosts import Hosts
from fcorun.base.system.machine import current_hosts, use_precision
from fcorun.data.datasets.dataset import FederatedData
from fcorun.engine.engine import Engine
from fcorun.engine.federation import Numbers
from fcorun.experiment.build import bind_objective, build_engine, load_data
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.experiment.prepare import prepare
from fcorun.runs.job import decode_arrays, encode_arrays, predict_local

_COMMANDS = ("prepare", "build", "run", "predict", "stop")
_ERROR_DELAY = (
    1.0  # seconds before an error is sent, because a host that was lost, and is noticed first, may be its cause
)


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
        """Receive the leader's next message. Raises SystemExit when the leader ends, HostLost if it lost a host."""
        message = self.hosts.receive()
        if message["do"] == "end":
            self.hosts.closed, self.hosts.failure = True, message["why"]
            if message["why"]:
                raise HostLost(message["why"])
            raise SystemExit(message["code"])
        return message

    def execute(self, message: dict[str, Any]) -> None:
        """Execute a command. An error is sent to the leader, which ends all hosts or had the same error itself."""
        arguments = dict(message)
        command = arguments.pop("do")
        try:
            if command not in _COMMANDS:
                raise UserError(f"the leader sent an unknown command '{command}'")
            getattr(self, command)(**arguments)
        except HostLost:
            raise
        except KeyboardInterrupt:  # sent to the leader before the next message is received
            return
        except Exception as error:
            time.sleep(_ERROR_DELAY)
            self.hosts.send(failed=describe_error(error))

    def prepare(self, config: dict[str, Any]) -> None:
        """Load the data of an experiment, and send its identity on this host."""
        try:
            self.experiment = prepare(config)
            self.data = load_data(self.experiment)
            identities = {"identity": self.experiment.identity, "fingerprint": self.experiment.fingerprint}
            self.experiment = bind_objective(self.experiment, self.data)
            self.hosts.send(**identities, place=self.data.train.place)
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
        predictions = predict_local(self.experiment.objective, self.data, decode_arrays(solution))
        self.hosts.send(predicted=encode_arrays(predictions))

    def stop(self) -> None:
        """Do nothing: the rounds of a batch are over on this host as well."""
