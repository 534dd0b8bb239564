"""Rows of data with all that belongs to a row, wherever their features are: in memory, on disk, or on another host."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from fcorun.base.errors import UserError
from fcorun.base.system.machine import empty_aligned
from fcorun.data.rows import features
from fcorun.data.rows.disk_matrix import DiskMatrix
from fcorun.data.rows.features import KindOfFeatures, operation

_CACHE_BYTES = 2**20  # of a core, for columns that are summed together
StoreRows = Callable[[int, np.ndarray], None]  # stores the rows (n_m, d) of the client of a number
ColumnSums = Float[np.ndarray, "M d"]


@dataclass(frozen=True, eq=False)
class HostMatrix(KindOfFeatures):
    """A matrix (n, d), sharded by client over several hosts, of which this host stores the rows of its own clients.

    Indexing returns stored rows. Raises UserError where a requested row is stored by another host.

    Attributes:
        values: the stored rows, (k, d), or DiskMatrix of them. An array in memory is padded with zero rows, so that the
            arrays of all hosts have one shape.
        bounds: the bounds of the rows of each of H hosts, (H + 1,), increasing from 0 to n.
        host: the number of this host.
    """

    values: Any
    bounds: np.ndarray
    host: int

    @classmethod
    def take(cls, x: Any, bounds: np.ndarray, host: int, in_memory: bool = False) -> "HostMatrix":
        """Copy the rows ``bounds[host]:bounds[host + 1]`` of x, so that x can be freed.

        Rows on disk stay there unless ``in_memory``.
        """
        row_range = slice(int(bounds[host]), int(bounds[host + 1]))
        if isinstance(x, DiskMatrix) and not in_memory:
            return cls(x[row_range], bounds, host)
        n_local = row_range.stop - row_range.start
        values = empty_aligned((int(np.diff(bounds).max()), *x.shape[1:]), x.dtype)
        values[n_local:] = 0
        if isinstance(x, DiskMatrix):
            x[row_range].read_into(values[:n_local])
        else:
            values[:n_local] = x[row_range]
        return cls(values, bounds, host)

    @property
    def n_hosts(self) -> int:
        return len(self.bounds) - 1

    @property
    def row_range(self) -> slice:
        """Return the numbers of the stored rows."""
        return slice(int(self.bounds[self.host]), int(self.bounds[self.host + 1]))

    @property
    def dtype(self) -> np.dtype:
        return self.values.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self), *self.values.shape[1:]

    @property
    def nbytes(self) -> int:
        """Return the bytes of this host's rows."""
        return self.values.nbytes

    def __len__(self) -> int:
        return int(self.bounds[-1])

    def __getitem__(self, rows: Any) -> Any:
        first, end = self.row_range.start, self.row_range.stop
        if isinstance(rows, slice) and rows.step in (None, 1):  # no copy
            start, stop, _ = rows.indices(len(self))
            stored_here = stop <= start or (first <= start and stop <= end)
            local = slice(start - first, stop - first) if stop > start else slice(0)
        else:
            indices = np.arange(len(self))[rows] if isinstance(rows, slice) else np.asarray(rows)
            if indices.dtype == bool:
                indices = np.flatnonzero(indices)
            stored_here = not indices.size or (first <= indices.min() and indices.max() < end)
            local = indices - first
        if not stored_here:
            raise UserError("rows of other hosts' clients are needed here: give `hosts.rows=all`")
        return self.values[local]

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        values = np.asarray(self[:])
        return values if dtype is None else values.astype(dtype, copy=False)

    def why_not_in_memory(self) -> str:
        return features.why_not_in_memory(self.values) or "belong to several hosts: give `hosts.rows=all`"

    def find_nonfinite(self) -> np.ndarray | None:
        index = features.find_nonfinite(self.values)
        if index is not None:
            index[0] += self.row_range.start
        return index

    def align(self, values: np.ndarray) -> np.ndarray:
        """Return the entries of ``values`` (n, ...) that belong to this host's rows, padded as ``self.values`` is."""
        aligned = np.zeros((len(self.values), *values.shape[1:]), values.dtype)
        aligned[: self.row_range.stop - self.row_range.start] = values[self.row_range]
        return aligned


@dataclass(frozen=True, eq=False, repr=False)
class Rows:
    """N rows: features, targets, and optional columns, each (N,) or None.

    The features are of one of a few kinds, of which callers do not ask: methods, properties and the functions of
    ``fcorun.data.rows.features`` answer what a computation needs to know. All other columns are in memory, on every
    host for all rows.

    Attributes:
        x: features, (N, d), any real dtype; kept as stored and cast batch by batch.
        y: targets, (N,): real numbers for a regression, class indices 0..k-1 (int32) otherwise.
            ``Rows`` also takes y with columns, (N, k).
        client: the number of each row's client, -1 for none; None: unknown. Training rows are sorted by client.
        weight: the weight of each row in means of losses, not negative; None: 1.
        offset: the term that is added to each row's prediction; None: 0.
        group: the name of each row's group, text; rows of one group are held out together.
        fold: the name of the fold that holds each row out, text; None: folds are drawn.
        row: the number of each row in the user's file, counted from 0.
        repeated_columns: columns that predictions.csv repeats, text, (N, k); ``FederatedData.keep`` has their names.
        remark: a remark on the prediction of each row, text, "" for none.
        stays_at_sites: whether rows stay at their sites, which answer the server's requests.
    """

    stays_at_sites = False

    x: Any
    y: np.ndarray
    client: np.ndarray | None = None
    weight: np.ndarray | None = None
    offset: np.ndarray | None = None
    group: np.ndarray | None = None
    fold: np.ndarray | None = None
    row: np.ndarray | None = None
    repeated_columns: np.ndarray | None = None
    remark: np.ndarray | None = None

    @classmethod
    def from_offsets(cls, x: Any, y: np.ndarray, offsets: np.ndarray, **columns: Any) -> "Rows":
        """Return rows sorted by client, of which client m has ``offsets[m]:offsets[m + 1]``.

        ``offsets`` (M + 1,) increase from 0 to N; ``columns`` are further attributes.
        """
        client = np.repeat(np.arange(len(offsets) - 1, dtype=np.int32), np.diff(offsets))
        return cls(x, y, client, **columns)

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} rows, {self.x.shape[1]} features)"

    # -- the rows of clients

    @property
    def known_client(self) -> np.ndarray:
        """Return the number of each row's client, (N,), of rows whose clients are known."""
        assert self.client is not None
        return self.client

    @cached_property
    def offsets(self) -> np.ndarray:
        """Return the bounds of the clients' rows, (M + 1,): client m has the rows ``offsets[m]:offsets[m + 1]``.

        Only for rows sorted by client, of which every client up to the last has a row.
        """
        n_clients = int(self.known_client[-1]) + 1 if len(self) else 0
        return np.searchsorted(self.known_client, np.arange(n_clients + 1))

    @cached_property
    def sizes(self) -> np.ndarray:
        """Return the number of rows of each client, (M,), as ``offsets`` gives them."""
        return np.diff(self.offsets)

    def sum_by_client(self, values: np.ndarray) -> np.ndarray:
        """Return the sum of ``values``, (N,), over the rows of each client, (M,)."""
        return np.add.reduceat(values, self.offsets[:-1])

    def count_independent(self) -> tuple[int, dict[int, int]]:
        """Return how many rows there are, or groups where rows have them, and how many each client with rows has."""
        client = np.full(len(self), -1) if self.client is None else self.client
        n = len(self)
        if self.group is not None:
            names, group = np.unique(self.group, return_inverse=True)
            client = np.unique(np.stack([client, group]), axis=1)[0]
            n = len(names)
        numbers, counts = np.unique(client[client >= 0], return_counts=True)
        return n, dict(zip(numbers.tolist(), counts.tolist(), strict=True))

    @cached_property
    def client_weights(self) -> np.ndarray:
        """Return the weight of each client, (M,): its number of rows, or the sum of their ``weight``."""
        return self.sizes if self.weight is None else self.sum_by_client(self.weight)

    @cached_property
    def relative_weight(self) -> np.ndarray | None:
        """Return the weight of each row, scaled to a mean of one in each client, (N,); None: all weights are 1.

        With these factors the mean loss of a uniform minibatch is an unbiased estimate of the client's loss.
        """
        if self.weight is None:
            return None
        return self.weight * (self.sizes / self.client_weights)[self.known_client]

    def objective_weights(self, client_weighting: str) -> np.ndarray:
        """Return the weight of each row in F, (N,), summing to one over all clients: 1/N, or 1/(M n_m) for "uniform".

        A row with weight v has v / sum v, over all rows, or, for "uniform", over its client's rows and divided by M.
        """
        if client_weighting == "examples":
            return self.mean_weights()
        even = 1 / (len(self.sizes) * self.sizes[self.known_client])
        return even if self.relative_weight is None else even * self.relative_weight

    def mean_weights(self) -> np.ndarray:
        """Return the weight of each row in a mean over all rows, (N,), summing to one."""
        return np.full(len(self), 1 / len(self)) if self.weight is None else self.weight / self.weight.sum()

    # -- subsets

    def take(self, index: Any) -> "Rows":
        """Return the rows of a mask (N,), of indices, or of a slice. Rows on disk stay there."""
        columns = {}
        for field in fields(Rows):
            values = getattr(self, field.name)
            columns[field.name] = None if values is None else values[index]
        return Rows(**columns)

    # -- where the features are

    @property
    def why_not_dense(self) -> str:
        """Return why the features cannot be a dense array, and advice; empty if they can."""
        return features.why_not_dense(self.x)

    @property
    def numbers_per_row(self) -> int:
        """Return how many numbers the features of a row take in a minibatch: of sparse rows those of the widest row."""
        return features.numbers_per_row(self.x)

    @property
    def most_numbers_of_client(self) -> int:
        """Return how many numbers the features of the largest client take."""
        return features.most_numbers(self.x, self.offsets)

    @property
    def streamed(self) -> bool:
        """Return whether features stay on disk, so that blocks of rows are read when a computation needs them."""
        stored = self.x.values if isinstance(self.x, HostMatrix) else self.x
        return isinstance(stored, DiskMatrix)

    @property
    def n_hosts(self) -> int:
        """Return the number of hosts over which the features are sharded by client."""
        return self.x.n_hosts if isinstance(self.x, HostMatrix) else 1

    @property
    def all_on_device(self) -> bool:
        """Return whether each device can have all stored rows at once: they are not on disk, and not sharded."""
        return not self.streamed and self.n_hosts == 1

    @property
    def why_not_in_memory(self) -> str:
        """Return why this process does not have the rows of all clients in memory, and advice; empty if it does."""
        return features.why_not_in_memory(self.x)

    @property
    def local(self) -> "Rows":
        """Return the rows that this host stores: all of them, unless they are sharded by client.

        Arrays of all hosts have one shape: a host with fewer rows has rows of zeros at the end.
        """
        if not isinstance(self.x, HostMatrix):
            return self
        columns: dict[str, Any] = {"x": self.x.values}
        for field in fields(Rows)[1:]:
            values = getattr(self, field.name)
            columns[field.name] = None if values is None else self.x.align(values)
        return Rows(**columns)

    @property
    def resident(self) -> "Rows | None":
        """Return the rows that this host can put on its devices, as ``local`` does; None where they stay on disk."""
        return None if self.streamed else self.local

    @property
    def shard_features(self) -> Any:
        """Return the features of this host's clients, (k, d), without padding; None where rows are not sharded."""
        return self.x[self.x.row_range] if isinstance(self.x, HostMatrix) else None

    def can_be_sharded(self, n_hosts: int) -> bool:
        """Return whether the rows can be sharded by client over so many hosts, more than one."""
        return 1 < n_hosts <= self.n_clients and not self.why_not_dense

    def shard(self, bounds: np.ndarray, host: int, in_memory: bool) -> "Rows":
        """Return these rows with the features of the rows ``bounds[host]:bounds[host + 1]`` alone.

        The features are copied so that x can be freed. All other columns are kept for all rows. Features on disk stay
        there unless ``in_memory``.
        """
        return replace(self, x=HostMatrix.take(self.x, bounds, host, in_memory))

    # -- the clients of a host

    @cached_property
    def host_offsets(self) -> np.ndarray:
        """Return the bounds of the clients of H hosts, (H + 1,): ``host_offsets[h]`` is the first client of host h."""
        if isinstance(self.x, HostMatrix):
            return np.searchsorted(self.offsets, self.x.bounds)
        return np.array([0, len(self.sizes)])

    @cached_property
    def host_of_client(self) -> np.ndarray:
        """Return the host that stores each client's rows, (M,)."""
        return np.repeat(np.arange(self.n_hosts), np.diff(self.host_offsets))

    @property
    def local_client_slices(self) -> list[slice]:
        """Return the rows of each client that this host stores."""
        host = self.x.host if isinstance(self.x, HostMatrix) else 0
        first, end = self.host_offsets[host : host + 2]
        return [slice(start, stop) for start, stop in pairwise(self.offsets[first : end + 1].tolist())]

    @property
    def most_clients_of_a_host(self) -> int:
        """Return the largest number of clients that a host stores."""
        return int(np.diff(self.host_offsets).max())

    @property
    def device_starts(self) -> np.ndarray:
        """Return the position of each client's first row among the rows on its host's devices, (M,).

        Streamed rows are read by their positions among all rows, on every host.
        """
        starts = self.offsets[:-1]
        if self.streamed or self.n_hosts == 1:
            return starts
        return starts - self.x.bounds[self.host_of_client]

    # -- differences between stored and generated rows

    @property
    def n_clients(self) -> int:
        """Return the number of clients, M."""
        return len(self.sizes)

    @property
    def n_rows(self) -> int:
        """Return the number of rows of all clients."""
        return len(self)

    @property
    def n_generated_clients(self) -> int:
        """Return the number of clients whose rows are generated in each round; 0: rows are stored."""
        return 0

    @property
    def n_initial_states(self) -> int:
        """Return the number of initial states of clients: one for each client, or one for all.

        It is one for all where they begin with the same state and it is stored when a client first takes part.
        """
        return self.n_clients

    def client_rows(self, x: Any, y: Any, client: Any) -> tuple[Any, Any]:
        """Return the features and targets that the row indices of a client refer to: here x and y, all on the device.

        JAX traces this method; ``client`` is the client's number, a traced int32.
        """
        return x, y

    def rows_in_memory(self, needed: int) -> int:
        """Return the number of rows in memory for a client that takes ``needed`` rows at a time."""
        return needed

    def host_index(self, cohort: Any, in_order: bool) -> Any:
        """Return the numbers of the clients of a cohort (S,), traced, counted from the first client of their host.

        Returns None where the cohort is all clients ``in_order`` and each device has their rows: no lookup is needed.
        """
        if self.n_hosts == 1:
            return None if in_order else cohort
        import jax.numpy as jnp

        numbers = np.arange(self.n_clients) - self.host_offsets[self.host_of_client]
        return jnp.asarray(numbers, jnp.int32)[cohort]


def allocate(
    offsets: np.ndarray, host_offsets: np.ndarray | None, host: int, width: int, dtype: Any
) -> tuple[Any, StoreRows]:
    """Return a matrix for rows that are made or read client by client, and the function that stores a client's rows.

    The matrix has the rows of the clients ``host_offsets[host]:host_offsets[host + 1]``, or of all clients without
    ``host_offsets``. Rows of other clients are not stored.
    """
    clients = range(len(offsets) - 1)
    row_bounds = offsets[[0, -1]]
    if host_offsets is not None:
        clients = range(host_offsets[host], host_offsets[host + 1])
        row_bounds = offsets[host_offsets]
    values = empty_aligned((int(np.diff(row_bounds).max()), width), dtype)
    first = offsets[clients.start]
    values[offsets[clients.stop] - first :] = 0

    def store(m: int, rows: np.ndarray) -> None:
        if m in clients:
            values[offsets[m] - first : offsets[m + 1] - first] = rows

    if host_offsets is None:
        return values, store
    return HostMatrix(values, row_bounds, host), store


def balance_clients(offsets: np.ndarray, n_hosts: int) -> np.ndarray:
    """Split clients into ``n_hosts`` consecutive blocks of about as many rows, at least one client in each.

    ``offsets`` (M + 1,) are the bounds of the clients' rows. Returns the bounds of the blocks, (n_hosts + 1,).
    """
    n_clients, bounds = len(offsets) - 1, [0]
    for h in range(1, n_hosts):
        nearest = int(np.abs(offsets - offsets[-1] * h / n_hosts).argmin())
        bounds.append(min(max(nearest, bounds[-1] + 1), n_clients - n_hosts + h))
    return np.array([*bounds, n_clients])


def renumber_clients(client: np.ndarray, is_training: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Number the clients that have training rows from 0 on, and after them the clients that have none.

    Args:
        client: the number of each row's client, (N,), -1 for none.
        is_training: the mask of the training rows, (N,), of which each has a client.

    Returns:
        The new number of each row's client, (N,), -1 for none, and the former numbers of the clients with training
        rows and of the others, in their new order.
    """
    trained = np.unique(client[is_training])
    others = np.setdiff1d(client[client >= 0], trained)
    new_numbers = np.full(int(client.max(initial=-1)) + 2, -1, np.int32)  # the last one is that of no client, -1
    new_numbers[trained] = np.arange(len(trained))
    new_numbers[others] = np.arange(len(trained), len(trained) + len(others))
    return new_numbers[client], trained, others


# Sums of columns by client. A pooled table and sites whose rows stay apart call the same functions, with the clients in
# the same order, so that both compute the same numbers to the last bit.


def sum_columns_by_client(
    x: Any, client: Int[np.ndarray, " N"], around: Float[np.ndarray, " d"] | None = None
) -> ColumnSums:
    """Return the sum of each column over the rows of each client, (M, d), in float64.

    A sum depends on the column's values at the client alone, and neither on other columns nor on other clients; of rows
    on disk, up to rounding, since they are added block by block.

    Args:
        x: rows sorted by client, (N, d), which may stay on disk.
        client: the number of each row's client, from 0 to M - 1; each client has a row.
        around: a value of each column, (d,), whose squared deviations are summed; None: the columns themselves.
    """
    n_clients = int(client[-1]) + 1 if len(client) else 0
    sums = np.zeros((n_clients, x.shape[1]))
    with np.errstate(invalid="ignore", over="ignore"):  # callers report values that are not finite
        for rows, owners in sorted_blocks(x, client):
            first = np.flatnonzero(np.diff(owners, prepend=-1))
            n_columns = max(1, _CACHE_BYTES // (8 * len(rows)))  # of float64, which fit into the cache of a core
            for start in range(0, rows.shape[1], n_columns):
                columns = slice(start, start + n_columns)
                # contiguous columns are added pairwise, whatever their number
                values = np.ascontiguousarray(rows[:, columns].T, np.float64)
                if around is not None:
                    values = (values - around[columns, None]) ** 2
                sums[owners[first], columns] += np.add.reduceat(values, first, axis=1).T
    return sums


def sum_in_order(sums: ColumnSums) -> Float[np.ndarray, " d"]:
    """Return the sums of the rows of ``sums``, (d,), added in a fixed order."""
    if len(sums):
        return sum_columns_by_client(sums, np.zeros(len(sums), int))[0]
    return np.zeros(sums.shape[1])


def deviation_from_sums(
    squares: Float[np.ndarray, " d"], n_rows: int, mean: Float[np.ndarray, " d"]
) -> Float[np.ndarray, " d"]:
    """Return the standard deviation of each column, 0 for a constant one, from the sum of squared deviations.

    Rounding makes the computed variance of a constant column slightly positive. A variance below scikit-learn's bound
    on this rounding, of ``_is_constant_feature`` in ``sklearn.preprocessing``, counts as 0.
    """
    variance = squares / n_rows
    epsilon = np.finfo(float).eps
    rounding = n_rows * epsilon * variance + (n_rows * epsilon * mean) ** 2
    deviation = np.sqrt(variance)
    return np.where((variance > rounding) & (deviation > np.finfo(float).tiny), deviation, 0.0)


@operation
def moments(x: Any, client: Int[np.ndarray, " N"]) -> tuple[Float[np.ndarray, " d"], ColumnSums]:
    """Return the mean of each column, (d,), and its sums of squared deviations, (M, d) or, of all rows, (1, d)."""
    mean = sum_in_order(sum_columns_by_client(x, client)) / len(x)
    return mean, sum_columns_by_client(x, client, around=mean)


@operation
def sorted_blocks(x: Any, client: Int[np.ndarray, " N"]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield blocks of rows sorted by client, and the clients of these rows; rows on disk in the order of the file."""
    if len(x):
        yield x, client
