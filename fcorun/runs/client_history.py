"""Losses and scores of each client over the rounds of a run, with ``client_metrics=true``: clients.parquet."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from fcorun.base.metrics import CLIENT_SUFFIXES, PERSONAL_PREFIX, MetricCatalogue
from fcorun.base.records.record import PERSONAL, SHARED
from fcorun.data.datasets.dataset import FederatedData

if TYPE_CHECKING:
    import pandas as pd

    from fcorun.reports.pictures.client_spread import ClientView

CLIENTS_FILE = "clients.parquet"
_ROUNDS = "rounds"  # a name beside those of metrics
_SPLITS = {"train": "train", "val": "validation"}  # in names of metrics, and of rows


@dataclass
class ClientHistory:
    """The values of each client at E evaluations.

    Attributes:
        rounds: the round of each evaluation.
        values: the values of a loss or score at each evaluation, each (M,), by the name of its metric.
    """

    rounds: list[int] = field(default_factory=list)
    values: dict[str, list[Float[np.ndarray, " M"]]] = field(default_factory=dict)

    def add(self, round_: int, by_client: Mapping[str, Float[np.ndarray, " M"]]) -> None:
        """Add an evaluation."""
        self.rounds.append(round_)
        for name, values in by_client.items():
            self.values.setdefault(name, []).append(values)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return the rounds, (E,), and the values of each metric, (E, M), for a checkpoint; empty without evaluations.

        >>> ClientHistory([0], {"train_loss": [np.ones(2)]}).to_arrays()
        {'rounds': array([0]), 'train_loss': array([[1., 1.]])}
        """
        if not self.rounds:
            return {}
        return {_ROUNDS: np.array(self.rounds)} | {name: np.stack(values) for name, values in self.values.items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> "ClientHistory":
        """Return the history that ``to_arrays`` has stored."""
        values = {name: list(array) for name, array in arrays.items() if name != _ROUNDS}
        return cls(arrays[_ROUNDS].tolist() if len(arrays) else [], values)

    def make_view(self, label: str, metrics: MetricCatalogue) -> "ClientView":
        """Return the subject of the picture."""
        from fcorun.reports.pictures.client_spread import ClientView

        values = {name: np.stack(arrays) for name, arrays in self.values.items()}
        return ClientView(self.rounds, values, label, metrics)

    def tabulate(self, data: FederatedData) -> "pd.DataFrame":
        """Return a row for each evaluation, model, split and client with rows in the split: their number and scores.

        The columns are named as those of scores.csv.
        """
        import pandas as pd

        names = np.array([*data.client_names, *data.held_out_clients])
        arrays = self.to_arrays()
        parts = []
        for model, prefix in ((SHARED, ""), (PERSONAL, PERSONAL_PREFIX)):
            for split, split_name in _SPLITS.items():
                stem = f"{prefix}{split}_"
                scores = {name.removeprefix(stem): array for name, array in arrays.items() if name.startswith(stem)}
                if not scores:
                    continue
                counts = np.bincount(data.splits[split_name].known_client, minlength=len(names))
                (present,) = np.nonzero(counts[: scores["loss"].shape[1]])
                columns = {
                    "round": np.repeat(self.rounds, len(present)),
                    "set": split_name,
                    "model": model,
                    "client": np.tile(names[present], len(self.rounds)),
                    "rows": np.tile(counts[present], len(self.rounds)),
                }
                columns |= {name: array[:, present].ravel() for name, array in scores.items()}
                parts.append(pd.DataFrame(columns))
        return pd.concat(parts, ignore_index=True).sort_values("round", kind="stable", ignore_index=True)


def summarize_clients(by_client: Mapping[str, Float[np.ndarray, " M"]], metrics: MetricCatalogue) -> dict[str, float]:
    """Return the metrics of CLIENT_SUFFIXES of an evaluation; clients without rows, whose values are NaN, do not count.

    The worst tenth of M clients are ceil(M / 10) of them, as in the tables on fairness of Li, Sanjabi, Beirami and
    Smith (Fair resource allocation in federated learning, ICLR 2020).
    """
    summary: dict[str, float] = {}
    for name, values in by_client.items():
        sign = metrics.sign(name)
        costs = np.sort(sign * values[~np.isnan(values)])
        n_extreme = -(-len(costs) // 10)
        means = (sign * costs[-n_extreme:].mean(), sign * costs[:n_extreme].mean(), costs.std())
        summary |= {name + suffix: float(mean) for suffix, mean in zip(CLIENT_SUFFIXES, means, strict=True)}
    return summary
