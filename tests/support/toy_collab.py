"""The toy study as a job of NVFLARE."""

from pathlib import Path

import numpy as np
from toy_site import ToySite, toy_rows, toy_study

from fcorun.sites.transport.durable import DurableSite
from fcorun.sites.transport.nvflare import CollabServer, CollabSite


class ToyCollabSite(CollabSite):
    """A site whose rows are drawn from the number in its name."""

    def __init__(self, features: int):
        super().__init__()
        self.features = features

    def open_site(self, name, root):
        toy = ToySite(toy_rows(int(name.rpartition("-")[2]), self.features))
        return DurableSite(toy, Path(root) / "fcorun" / "site", lock_seconds=30)


class ToyCollabServer(CollabServer):
    """A server that leaves the model of the toy study."""

    def __init__(self, run: str, rounds: int, features: int):
        super().__init__(run, wait_seconds=60.0)
        self.rounds, self.features = rounds, features

    def compute(self, connections, folder):
        np.save(folder / "model.npy", toy_study(connections, self.rounds, self.features))
