"""What a host that is not the first does: what that one says."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from fcorun.config import build_plugin
from fcorun.datasets.base import FederatedData
from fcorun.engine.engine import Engine
from fcorun.engine.federation import Numbers
from fcorun.errors import HostLost, UserError, describe_error
from fcorun.experiment.build import bind_objective, build_engine, load_data
from fcorun.experiment.experiment import Experiment
from fcorun.experiment.prepare import prepare
from fcorun.runs.hosts.prediction import decode_arrays, encode_arrays, predict_local
from fcorun.system.hosts import Hosts, current_hosts
from fcorun.system.interruption import defer_interruption

_COMMANDS = ("prepare", "build", "run", "predict", "stop")
_LATER = 1.0  # seconds until a host complains of a round that broke off, which one that is gone may have caused


def run_follower() -> int:
    """On a host that is not the first: do what that one says; the exit code. Raises HostLost."""
    hosts = current_hosts()
    assert hosts is not None
    here = _Follower(hosts)
    with defer_interruption():  # the first host ends all, after a round that all have computed
        try:
            while True:
                here.do(here.hear())
        except SystemExit as end:
            return int(end.code or 0)


@dataclass
class _Follower:
    """What a host that is not the first has of the runs: a method for each thing that it may be told to do."""

    hosts: Hosts
    experiment: Experiment | None = None
    data: FederatedData | None = None
    engine: Engine | None = None

    def hear(self) -> dict[str, Any]:
        """What the first host says next. Raises SystemExit if it is the end, HostLost if that is so by a loss."""
        told = self.hosts.receive()
        if told["do"] == "end":
            self.hosts.closed, self.hosts.failure = True, told["why"]
            raise HostLost(told["why"]) if told["why"] else SystemExit(told["code"])
        return told

    def do(self, told: dict[str, Any]) -> None:
        """Do what is told; what goes wrong is told the first host, who says the end, or goes on where it did there."""
        try:
            if (do := told.pop("do")) not in _COMMANDS:
                raise UserError(f"the first host says '{do}', which means nothing here")
            getattr(self, do)(**told)
        except HostLost:
            raise
        except KeyboardInterrupt:  # is noted, and said before the next thing is heard
            return
        except Exception as error:
            time.sleep(_LATER)
            self.hosts.send(failed=describe_error(error))

    def prepare(self, config: dict[str, Any]) -> None:
        """Load the data of an experiment, and say what it is here."""
        try:
            self.experiment = prepare(config)
            self.data = load_data(self.experiment)
            told = {"identity": self.experiment.identity, "fingerprint": self.experiment.fingerprint}
            self.experiment = bind_objective(self.experiment, self.data)
            self.hosts.send(**told, on_disk=self.data.on_disk)
        except Exception as error:
            self.hosts.send(refused=describe_error(error))

    def build(self, algo: dict[str, Any], reg: dict[str, Any], devices: int, budget: int | None) -> None:
        """Build its engine, with the numbers that the first host has worked out."""
        self.engine = None  # where this fails, nothing is computed by the one before
        assert self.experiment is not None
        assert self.data is not None
        plugins = {"algo": build_plugin("algo", algo), "reg": build_plugin("reg", reg)}
        engine = build_engine(replace(self.experiment, **plugins), self.data)
        self.engine = replace(engine, devices=devices, row_bytes_budget=budget)

    def run(self, points: Sequence[Numbers], seeds: Sequence[int], done: int) -> None:
        """Compute the rounds of a batch, until the first host says that there are no more."""
        assert self.engine is not None

        def diverged() -> np.ndarray | None:
            while (told := self.hear())["do"] == "predict":
                self.predict(told["solution"])
            return np.array(told["diverged"], np.int32) if told["do"] == "advance" else None

        with jax.enable_x64(self.engine.federation.precision == "float64"):
            self.engine.follow(points, seeds, done, diverged)

    def predict(self, solution: str) -> None:
        """Say what a solution predicts of the rows that are here."""
        assert self.experiment is not None
        assert self.data is not None
        self.hosts.send(
            predicted=encode_arrays(predict_local(self.experiment.objective, self.data, decode_arrays(solution)))
        )

    def stop(self) -> None:
        """The rounds of a batch are over, as they are here."""
