"""The properties of a data set: the same rows each time and on each of several hosts, and a matching fingerprint."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fcorun.base.config import build_plugin
from fcorun.data.datasets.dataset import Dataset, FederatedData
from fcorun.interface.checks.problems import check_rounds, compose_cached, numpy_seed
from fcorun.interface.checks.property_check import Checked, find_checks, require, require_seed_draws, skip_unless

HOSTS = 2
_COLUMNS = ("x", "y", "client", "weight", "offset", "group", "fold")


@dataclass(frozen=True)
class DatasetCase:
    """A data set, chosen by ``data=NAME`` and overrides of its keys."""

    name: str
    overrides: tuple[str, ...] = ()

    @cached_property
    def config(self) -> dict[str, Any]:
        """A configuration of two rounds on these data."""
        return compose_cached(f"data={self.name}", *self.overrides, "rounds=2", "eval_every=1")

    @cached_property
    def dataset(self) -> Dataset:
        return build_plugin("data", self.config["data"])

    @cached_property
    def data(self) -> FederatedData:
        """The data, loaded with a fixed seed of NumPy's generator."""
        with numpy_seed(1):
            self.dataset.fetch()
            return self.dataset.load()


def _arrays(data: FederatedData) -> Iterator[tuple[str, np.ndarray]]:
    for split, rows in data.splits.items():
        for column in _COLUMNS:
            if (values := getattr(rows, column)) is not None:
                yield f"{split}.{column}", np.asarray(values)
    for field in ("truth", "client_truths"):
        for name, values in (getattr(data, field) or {}).items():
            yield f"{field}.{name}", np.asarray(values)
    yield "clients", np.asarray(data.clients)
    yield "classes", np.asarray(data.classes)


# ---------------------------------------------------------------- the properties


def check_valid(case: DatasetCase) -> None:
    """Require valid data for every algorithm: finite numbers, rows for each client, two classes at least."""
    case.data.validate()


def check_repeatable(case: DatasetCase) -> None:
    """Require the same arrays from a second load, so that no random number depends on NumPy's global state."""
    first = dict(_arrays(case.data))
    with numpy_seed(2):
        second = dict(_arrays(build_plugin("data", case.config["data"]).load()))
    for name in first | second:
        same = name in first and name in second
        same = same and first[name].dtype == second[name].dtype and np.array_equal(first[name], second[name])
        require(same, f"{name} should be the same when the data are loaded again, and differs: draw random numbers "
                      "from fcorun.random_stream(seed, ...)")  # fmt: skip


def check_seed(case: DatasetCase) -> None:
    """Require that another seed of the data set draws other rows, with the same clients and features."""
    skip_unless(not case.dataset.sources(), "its rows are read from files, which a seed may divide at most")

    def draw_rows(dataset: Dataset) -> dict[str, np.ndarray]:
        data = dataset.load()
        same = data.clients == case.data.clients and data.features.names == case.data.features.names
        require(same, "another seed should draw rows of the same clients and features, and draws other names")
        return dict(_arrays(data))

    require_seed_draws(case.dataset, "rows", draw_rows)


def check_fingerprint(case: DatasetCase) -> None:
    """Require the same fingerprint for the same data set."""
    second = build_plugin("data", case.config["data"]).fingerprint()
    require(
        case.dataset.fingerprint() == second,
        "fingerprint() should be the same for the same options and files, and differs: sources() should digest what "
        "files hold",
    )


def check_shards(case: DatasetCase) -> None:
    """Require that each of several hosts loads the rows of its clients as the whole data have them."""
    skip_unless(case.data.train.can_be_sharded(HOSTS), "its rows cannot be sharded over hosts")
    for host in range(HOSTS):
        call = f"load_shard({host}, {HOSTS})"
        shard = case.dataset.load_shard(host, HOSTS)
        n_hosts = len(shard.train.host_offsets) - 1
        same = n_hosts == HOSTS and np.array_equal(shard.train.offsets, case.data.train.offsets)
        require(same, f"{call} should have the offsets of all clients, and x of one of {HOSTS} hosts")
        rows = shard.train.x.row_range
        same = np.array_equal(np.asarray(shard.train.x[rows]), np.asarray(case.data.train.x[rows]))
        require(same, f"{call} should have the rows of its clients as load() has them, and differs")
        require(np.array_equal(shard.train.y, case.data.train.y), f"{call} should have all targets of load()")


CHECKS = find_checks(__name__)


def list_checks(name: str, overrides: Sequence[str]) -> Checked:
    """Yield the checks of ``data=NAME``, alone and in a run. Raises UserError for data that cannot be loaded."""
    case = DatasetCase(name, tuple(overrides))
    _ = case.data
    yield f"data={name}", CHECKS, case
    yield f"data={name} in a run", [check_rounds], lambda _: case.config
