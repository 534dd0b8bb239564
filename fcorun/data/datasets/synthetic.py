"""Base classes of synthetic data sets: clients of equal sizes, linear regression, and generated clients."""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from fcorun.base.config import Count, Index, LaterIndex, NonNegative, SplitSeed
from fcorun.base.errors import UserError
from fcorun.base.system.random_streams import random_stream
from fcorun.data.datasets.dataset import Dataset, Features, FederatedData
from fcorun.data.rows.rows import Rows, StoreRows, allocate, balance_clients

# (split, rows per client, function that stores a client's features) -> targets of all clients
DrawSplit = Callable[[str, int, StoreRows], np.ndarray]


@dataclass(frozen=True)
class EqualSizeClients(Dataset):
    """Data of clients with equally many rows, drawn client by client: a host stores the rows of its clients only.

    Attributes:
        clients: number of clients, M.
        samples: training rows of each client.
        validation_samples: validation rows of each client; 0 for none.
        test_samples: test rows of each client, scored once, at the end of a run; 0 for none.
        seed: the seed of the data; training rows do not depend on the numbers of other rows.
        split_seed: the seed of folds of a selection. None: ``seed`` of the run draws them.
        feature_count_keys: the options whose product is the number of features.
        dtype: the type of x.
    """

    feature_count_keys: ClassVar[tuple[str, ...]] = ("features",)
    dtype: ClassVar[Any] = np.float32

    clients: Count
    samples: Count
    validation_samples: Index = 0
    test_samples: LaterIndex = 0
    seed: Index = 0
    split_seed: SplitSeed = None

    def load(self) -> FederatedData:
        return self.load_shard(0, 1)

    def law(self) -> Dataset:
        return replace(self, seed=0)

    def memory_needed(self) -> tuple[float, str]:
        """Return the bytes of the rows of all clients, and of a mean or a model of each client."""
        keys = ("clients", "samples", "validation_samples", "test_samples", *self.feature_count_keys)
        rows = self.clients * (self.samples + self.validation_samples + self.test_samples + 1)
        return rows * self.n_features * np.dtype(self.dtype).itemsize, format_options(self, keys)

    @property
    def n_features(self) -> int:
        """The number of features, d."""
        return math.prod(getattr(self, key) for key in self.feature_count_keys)

    @abstractmethod
    def make_law(self) -> tuple[DrawSplit, dict[str, Any]]:
        """Return a function that draws the rows of a split, and further fields of FederatedData, such as the truth.

        ``draw(split, rows, store)`` draws ``rows`` rows of each client m in order, calls ``store(m, x)`` with x
        (rows, d), and returns y of all clients.
        """

    def load_shard(self, host: int, n_hosts: int) -> FederatedData:
        """Load the shard of a host, which draws all random numbers and stores the rows of its clients only."""
        draw, fields = self.make_law()
        client_numbers = np.arange(self.clients + 1)
        host_offsets = None
        if 1 < n_hosts <= self.clients:
            host_offsets = balance_clients(client_numbers * self.samples, n_hosts)

        def draw_rows(split: str, rows: int, bounds: np.ndarray | None, host: int) -> Rows | None:
            if not rows:
                return None
            x, store = allocate(client_numbers * rows, bounds, host, self.n_features, self.dtype)
            y = draw(split, rows, store)
            return Rows.from_offsets(x, y, client_numbers * rows)

        train = draw_rows("training", self.samples, host_offsets, host)
        assert train is not None
        is_follower = host_offsets is not None and host > 0  # the first host alone has the test rows
        return FederatedData(
            train=train,
            validation=draw_rows("validation", self.validation_samples, host_offsets, host),
            test=None if is_follower else draw_rows("test", self.test_samples, None, 0),
            clients=tuple(f"client{m}" for m in range(self.clients)),
            **fields,
        ).validate()


@dataclass(frozen=True)
class LinearRegressionData(EqualSizeClients):
    """y = <x, weights> + b + eps with x = scales * (mu_m + delta); b, delta, eps ~ N(0, 1), mu_m ~ N(0, mean_scale^2).

    Each client draws its mu_m once, then ``samples`` training rows of raveled float32 examples, and
    ``validation_samples`` and ``test_samples`` rows with the same mu_m.

    Attributes:
        mean_scale: standard deviation of the clients' means; 0 gives all clients one distribution.
    """

    clients: Count = 64
    samples: Count = 128
    validation_samples: Index = 32
    mean_scale: NonNegative = 1.0

    def make_linear_law(
        self, name: str, weights: np.ndarray, scales: np.ndarray | float = 1.0
    ) -> tuple[DrawSplit, dict[str, Any]]:
        """Return the law with these true weights; ``name`` identifies the random streams."""
        features = weights.size
        truth_rng = random_stream(self.seed, name, "truth")
        bias = truth_rng.standard_normal(dtype=np.float32)
        means = truth_rng.standard_normal((self.clients, features), dtype=np.float32) * np.float32(self.mean_scale)

        def draw(split: str, rows: int, store: StoreRows) -> np.ndarray:
            rng = random_stream(self.seed, name, split)
            y = np.empty((self.clients, rows), np.float32)
            for m, mean in enumerate(means):
                x = rng.standard_normal((rows, features), dtype=np.float32)
                x += mean
                x *= np.float32(scales)
                store(m, x)
                y[m] = x @ weights.ravel()
            return y.ravel() + bias + rng.standard_normal(y.size, dtype=np.float32)

        description = Features(shape=weights.shape if weights.ndim > 1 else ())
        return draw, {"truth": {"weights": weights, "bias": np.asarray(bias)}, "features": description}


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class GeneratedRows(Rows):
    """Rows of many clients, up to millions, that are not stored but generated in JAX when a round needs them.

    A client is its number, 0, ..., M - 1. The rows of the first few clients are stored too, for evaluation: x, y,
    client and ``offsets`` are theirs.

    Attributes:
        population: the number of clients, M.
        rows_per_client: the number of rows of each client, n.
        generate: maps a client's number, a traced int32, to its rows x (n, d) and y (n,). JAX traces the function; it
            returns the same rows, up to rounding in float32, in runs in float64. Numbers from M on are clients of the
            same distribution that never train.
    """

    population: int
    rows_per_client: int
    generate: Callable[[Any], tuple[Any, Any]]

    @property
    def why_not_in_memory(self) -> str:
        return "are generated when a round needs them: choose a smaller data set"

    def can_be_sharded(self, n_hosts: int) -> bool:
        return False

    @property
    def n_clients(self) -> int:
        return self.population

    @property
    def n_rows(self) -> int:
        return self.population * self.rows_per_client

    @property
    def n_generated_clients(self) -> int:
        return self.population

    @property
    def n_initial_states(self) -> int:
        return 1

    def client_rows(self, x: Any, y: Any, client: Any) -> tuple[Any, Any]:
        return self.generate(client)

    def rows_in_memory(self, needed: int) -> int:
        return self.rows_per_client

    def host_index(self, cohort: Any, in_order: bool) -> Any:
        return cohort


def materialize_clients(
    generate: Callable[[Any], tuple[Any, Any]], first: int, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Generate the rows of the clients ``first``, ..., ``first + count - 1``, one client after the other."""
    import jax
    import jax.numpy as jnp

    generate_all = jax.jit(lambda numbers: jax.lax.map(generate, numbers))
    x, y = generate_all(first + jnp.arange(count, dtype=jnp.int32))
    return np.asarray(x).reshape(-1, x.shape[-1]), np.asarray(y).ravel()


@dataclass(frozen=True)
class GeneratedClients(Dataset):
    """Data of clients whose rows are generated when a round needs them; only rows for evaluation are stored.

    Attributes:
        clients: number of clients, M.
        samples: rows of each client.
        features: number of features, d.
        mean_scale: standard deviation of the clients' means; 0 gives all clients the same distribution of features.
        evaluated: number of clients for evaluation: the first ones for training metrics, and as many clients that never
            train for validation metrics.
        seed: the seed of the data.
    """

    clients: Count = 1_000_000
    samples: Count = 32
    features: Count = 64
    mean_scale: NonNegative = 0.3
    evaluated: Count = 100
    seed: Index = 0

    def __post_init__(self):
        """Raise UserError for numbers of which the generator would take some bits alone."""
        if self.seed >= 2**32:
            raise UserError(f"`data.seed={self.seed}` is too large for generated clients: give less than {2**32}")
        if self.clients + self.evaluated >= 2**31:
            raise UserError(f"`data.clients={self.clients}` and `data.evaluated={self.evaluated}` are too many "
                            f"clients to be numbered: give less than {2**31} in all")  # fmt: skip

    def memory_needed(self) -> tuple[float, str]:
        """Return the bytes of the float32 rows for evaluation, and the keys that determine them."""
        rows = 2 * min(self.evaluated, self.clients) * self.samples
        return 4 * rows * self.features, format_options(self, ("evaluated", "samples", "features"))

    def assemble(self, generate: Callable[[Any], tuple[Any, Any]], **fields: Any) -> FederatedData:
        """Return the generated clients, with the stored rows of ``evaluated`` clients.

        ``generate`` returns x and y of a client by its number (see ``GeneratedRows``). ``fields`` are further fields of
        FederatedData.
        """
        count = min(self.evaluated, self.clients)
        x, y = materialize_clients(generate, 0, count)
        x_val, y_val = materialize_clients(generate, self.clients, count)
        if fields.get("classes"):
            y, y_val = y.astype(np.int32), y_val.astype(np.int32)
        numbers = np.repeat(np.arange(count, dtype=np.int32), self.samples)
        train = GeneratedRows(
            x=x, y=y, client=numbers, population=self.clients, rows_per_client=self.samples, generate=generate
        )
        warning = (
            f"training figures are of {count:,} of {self.clients:,} clients, validation of {count:,} who never train"
        )
        validation = Rows(x_val, y_val, self.clients + numbers)
        return FederatedData(train=train, validation=validation, warnings=(warning,), **fields).validate()


def format_options(dataset: Any, keys: Iterable[str]) -> str:
    """Format options of a data set as on the command line, without options that are 0."""
    return ", ".join(f"`data.{key}={getattr(dataset, key)}`" for key in keys if getattr(dataset, key))


def check_nonzeros(dataset: Any, *keys: str) -> None:
    """Raise UserError where one of these options of a data set is larger than its number of ``features``."""
    for key in keys:
        if (getattr(dataset, key) or 0) > dataset.features:
            raise UserError(f"`data.{key}={getattr(dataset, key)}` is more than `data.features={dataset.features}`: "
                            f"give at most {dataset.features}")  # fmt: skip
