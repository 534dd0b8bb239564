"""What synthetic data sets have in common: clients of the same size, and regression on features of different means."""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import numpy as np

from fcorun.datasets.base import Dataset, FederatedData
from fcorun.errors import UserError
from fcorun.rows.generated import GeneratedClients
from fcorun.rows.host_rows import ClientBuffer, allocate, balance_clients
from fcorun.system.random_streams import random_stream

DrawSplit = Callable[[str, int, ClientBuffer], np.ndarray]


class EqualSizeClients(Dataset):
    """Data of clients with as many rows each, made client by client, so that a host keeps those of its own alone.

    Attributes:
        size_keys: the options whose product is the number of features.
        number_bytes: the bytes of a number of x.
    """

    feature_count_keys: ClassVar[tuple[str, ...]] = ("features",)
    itemsize: ClassVar[int] = 4
    clients: int
    samples: int
    validation_samples: int
    test_samples: int
    seed: int

    def load(self) -> FederatedData:
        return self.load_shard(0, 1)

    def memory_needed(self) -> tuple[float, str]:
        """The rows of all clients, and a mean or a model of each."""
        keys = ("clients", "samples", "validation_samples", "test_samples", *self.feature_count_keys)
        rows = self.clients * (self.samples + self.validation_samples + self.test_samples + 1)
        size = math.prod(getattr(self, key) for key in self.feature_count_keys)
        return rows * size * self.itemsize, format_options(self, keys)

    @abstractmethod
    def load_shard(self, host: int, n_hosts: int) -> FederatedData:
        """By ``made``: all random numbers are drawn on each host, and no more rows kept than are its own."""

    def assemble(self, draw: DrawSplit, features: int, dtype: Any, part: int, of: int, **fields: Any) -> FederatedData:
        """The data as one of several hosts has them.

        ``draw(split, rows, room)`` writes the ``rows`` rows of client 0 into ``room(0)``, (rows, features), then those
        of client 1, and so on, and gives y of all; ``fields`` are further ones of FederatedData.
        """
        each, names = np.arange(self.clients + 1), tuple(f"client{m}" for m in range(self.clients))
        cut = balance_clients(each * self.samples, of) if 1 < of <= self.clients else None

        def drawn(split: str, rows: int, cut: np.ndarray | None, part: int) -> tuple[Any, Any]:
            if not rows:
                return None, None
            x, room = allocate(each * rows, cut, part, features, dtype)
            return x, draw(split, rows, room)

        x, y = drawn("training", self.samples, cut, part)
        x_val, y_val = drawn("validation", self.validation_samples, cut, part)
        nowhere = part > 0 and cut is not None
        x_test, y_test = drawn("test", self.test_samples, np.array([0, 0]) if nowhere else None, 0)
        return FederatedData(
            x=x,
            y=y,
            offsets=each * self.samples,
            x_val=x_val,
            y_val=y_val,
            offsets_val=None if y_val is None else each * self.validation_samples,
            x_test=None if nowhere else x_test,
            y_test=y_test,
            clients_test=None if y_test is None else np.repeat(names, self.test_samples),
            clients=names,
            host_bounds=cut,
            **fields,
        ).validate()


class LinearRegressionData(EqualSizeClients):
    """y = <x, weights> + b + eps with x = scales * (mu_m + delta); b, delta, eps ~ N(0, 1), mu_m ~ N(0, mean_scale^2).

    ``samples`` rows of raveled float32 examples for each client, who draws its mu_m once, and ``validation_samples``
    and ``test_samples`` rows with the same mu_m; the training rows do not depend on their numbers.
    """

    mean_scale: float

    def generate(
        self, name: str, weights: np.ndarray, part: int, of: int, scales: np.ndarray | float = 1.0
    ) -> FederatedData:
        """Such data, as one of several hosts has them; ``name`` starts the random numbers."""
        truth, features = random_stream(self.seed, name, "truth"), weights.size
        bias = truth.standard_normal(dtype=np.float32)
        means = truth.standard_normal((self.clients, features), dtype=np.float32) * np.float32(self.mean_scale)

        def draw(split: str, rows: int, room: ClientBuffer) -> np.ndarray:
            rng, y = random_stream(self.seed, name, split), np.empty((self.clients, rows), np.float32)
            for m, mean in enumerate(means):
                x = rng.standard_normal(out=room(m), dtype=np.float32)
                x += mean
                x *= np.float32(scales)
                y[m] = x @ weights.ravel()
            return y.ravel() + bias + rng.standard_normal(y.size, dtype=np.float32)

        known = {"weights": weights, "bias": np.asarray(bias)}
        shape = weights.shape if weights.ndim > 1 else ()
        return self.assemble(draw, features, np.float32, part, of, truth=known, shape=shape)


def format_options(dataset: Any, keys: Iterable[str]) -> str:
    """Options of a data set as the command line gives them, without those that are 0."""
    return ", ".join(f"data.{key}={getattr(dataset, key)}" for key in keys if getattr(dataset, key))


def check_nonzeros(dataset: Any, *keys: str) -> None:
    """Raises UserError where one of these options of a data set asks for more coefficients than it has ``features``."""
    for key in keys:
        if (getattr(dataset, key) or 0) > dataset.features:
            raise UserError(f"data.{key}={getattr(dataset, key)} is more than data.features={dataset.features}: "
                            f"give at most {dataset.features}")  # fmt: skip


def sampled_memory(dataset: Any) -> tuple[float, str]:
    """Return the memory that ``sampled`` takes for a population: float32 rows of the clients that are measured."""
    rows = 2 * min(dataset.evaluated, dataset.clients) * dataset.samples
    return 4 * rows * dataset.features, format_options(dataset, ("evaluated", "samples", "features"))


def sample_clients(population: GeneratedClients, evaluated: int, **fields: Any) -> FederatedData:
    """Data of a population: the rows of its first ``evaluated`` clients are what losses are measured on, those of as
    many clients who never train the validation rows; ``fields`` are further ones of FederatedData."""
    some = min(evaluated, population.n_clients)
    (x, y), (x_val, y_val) = population.materialize(0, some), population.materialize(population.n_clients, some)
    if fields.get("task", "regression") != "regression":
        y, y_val = y.astype(np.int32), y_val.astype(np.int32)
    each, held = (
        np.arange(some + 1) * population.rows_per_client,
        np.arange(population.n_clients, population.n_clients + some),
    )
    told = (
        f"training figures are of {some:,} of {population.n_clients:,} clients, validation of {some:,} who never train"
    )
    return FederatedData(
        x=x,
        y=y,
        offsets=each,
        x_val=x_val,
        y_val=y_val,
        clients_val=np.repeat(held.astype(str), population.rows_per_client),
        generated=population,
        warnings=(told,),
        **fields,
    ).validate()
