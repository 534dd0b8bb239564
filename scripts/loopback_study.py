"""A study without data for ``sites_on_loopback.py``: its requests depend on all earlier answers."""

import json
import time
from pathlib import Path

import numpy as np

from fcorun.sites.transport.durable import DurableSite
from fcorun.sites.transport.messages import Message
from fcorun.sites.transport.nvflare import CollabServer, CollabSite

FEATURES = 1024


class SumSite:
    """A site that answers the sum of its rows, moved by a mean of all earlier requests."""

    def __init__(self, seed: int):
        self.rows = np.random.default_rng(seed).normal(size=(10, FEATURES))
        self.load_state({})

    def answer(self, request: Message) -> Message:
        """Return the sum. The request ``describe`` is a round of nothing."""
        if "model" not in request.arrays:
            return Message(request.name)
        self.mean = 0.9 * self.mean + request.arrays["model"]
        return Message(request.name, {}, {"sum": self.rows.sum(0) + self.mean})

    def save_state(self) -> dict[str, np.ndarray]:
        return {"mean": self.mean}

    def load_state(self, arrays) -> None:
        self.mean = arrays.get("mean", np.zeros(FEATURES))


class LoopbackSite(CollabSite):
    """A site that draws its rows from the number in its name."""

    def open_site(self, name, root):
        return DurableSite(SumSite(int(name.rpartition("-")[2])), Path(root) / "fcorun", lock_seconds=30)


class LoopbackServer(CollabServer):
    """A server that times rounds of nothing, and rounds of 1,024 float64, and leaves the model."""

    def __init__(self, run: str, rounds: int, empty_rounds: int):
        super().__init__(run, wait_seconds=300.0)
        self.rounds, self.empty_rounds = rounds, empty_rounds

    def compute(self, connections, folder):
        empty = [self.time_round(connections, "describe") for _ in range(self.empty_rounds)]
        model, full = np.zeros(FEATURES), []
        for _ in range(self.rounds):
            started = time.perf_counter()
            answers = connections.ask("round", {"model": model})
            model = model - 0.01 * sum(answer.arrays["sum"] for answer in answers.values())
            full.append(time.perf_counter() - started)
        connections.ask("end")
        np.save(folder / "model.npy", model)
        (folder / "times.json").write_text(json.dumps({"empty": empty, "full": full}), encoding="utf-8")

    @staticmethod
    def time_round(connections, name: str) -> float:
        started = time.perf_counter()
        connections.ask(name)
        return time.perf_counter() - started


def expected_model(names: list[str], rounds: int) -> np.ndarray:
    """Return the model that the study has without a network."""
    sites = [SumSite(int(name.rpartition("-")[2])) for name in sorted(names)]
    model = np.zeros(FEATURES)
    for _ in range(rounds):
        request = Message("round", {}, {"model": model})
        model = model - 0.01 * sum(site.answer(request).arrays["sum"] for site in sites)
    return model
