"""A site for tests of transports: sums of its rows, and a state that depends on every request."""

import numpy as np

from fcorun.base.errors import UserError
from fcorun.sites.transport.messages import Message


class ToySite:
    """A site that answers sums, and counts the requests that it has computed."""

    def __init__(self, rows: np.ndarray):
        self.rows = rows
        self.computed = 0
        self.load_state({})

    def answer(self, request: Message) -> Message:
        """Return the sum of the rows, shifted by the model and the state. Refuses the request ``load``."""
        self.mean = 0.9 * self.mean + request.arrays.get("model", 0.0)
        self.count += 1
        if request.name == "load":
            raise UserError("the owner has not accepted this plan")
        if request.name == "scores":
            raise ValueError("the row of Jane Doe is odd")
        self.computed += 1
        return Message(request.name, {"count": self.count}, {"sum": self.rows.sum(0) + self.mean})

    def save_state(self) -> dict[str, np.ndarray]:
        return {"mean": np.asarray(self.mean), "count": np.asarray(self.count)}

    def load_state(self, arrays) -> None:
        self.mean = arrays.get("mean", np.zeros(self.rows.shape[1]))
        self.count = int(arrays.get("count", 0))


def toy_rows(site: int, features: int = 3) -> np.ndarray:
    return np.random.default_rng(site).normal(size=(10, features))


def toy_study(connections, rounds: int, features: int = 3) -> np.ndarray:
    """Return the model after rounds whose requests depend on all earlier answers."""
    model = np.zeros(features)
    connections.ask("describe")
    for number in range(rounds):
        answers = connections.ask("round", {"model": model}, {"round": number})
        model = model - 0.01 * sum(answer.arrays["sum"] for answer in answers.values())
    connections.ask("end", {"model": model})
    return model
