"""The loading of data sets, each once in a process, and for generated rows while JAX is still being imported."""

import threading
from contextlib import suppress
from functools import lru_cache

from fcorun.datasets.base import Dataset, FederatedData
from fcorun.errors import UserError, first_line
from fcorun.system.cache import Keyed
from fcorun.system.machine import REDUCE_HINT, check_memory, free_host_memory

_LOADING = threading.Lock()  # held while data are loaded: who needs the same data waits for them


def load_dataset(dataset: Dataset, fingerprint: str, memory: float | None, host: int, n_hosts: int) -> FederatedData:
    """Load one shard of a data set. The next call for the same data returns the same object.

    Raises UserError if the data cannot be loaded, or do not fit into memory.
    """
    request = Keyed(f"{fingerprint} {dataset}", (dataset, memory))
    with _LOADING:
        return _load_once(request, host, n_hosts)


def begin_to_load(dataset: Dataset, memory: float | None) -> None:
    """Begin to load a whole data set in the background, if loading it is computation alone.

    NumPy's random generators do not hold Python's lock. An error is raised by the call of ``load_dataset`` that needs
    the data.
    """

    def load() -> None:
        with suppress(UserError):
            load_dataset(dataset, dataset.fingerprint(), memory, 0, 1)

    if dataset.is_generated:
        threading.Thread(target=load, daemon=True).start()


@lru_cache(maxsize=2)
def _load_once(request: Keyed[tuple[Dataset, float | None]], shard: int, n_shards: int) -> FederatedData:
    dataset, memory = request.value
    needed, description = dataset.memory_needed()
    check_memory(needed / n_shards, free_host_memory(), memory, description)
    try:
        data = dataset.load() if n_shards == 1 else dataset.load_shard(shard, n_shards)
        return data.validate()
    except MemoryError as error:
        raise UserError(f"the data do not fit into memory ({first_line(error)}); {REDUCE_HINT}") from error
