"""The laws of a data set: the same rows each time, on each of several hosts, and a fingerprint that stands for them."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fcorun.checks.check import Check, require
from fcorun.checks.problems import compose_cached
from fcorun.config import build_plugin
from fcorun.datasets.base import Dataset, FederatedData

HOSTS = 2
_SPLITS = ("x", "y", "x_val", "y_val", "x_test", "y_test")
_MORE = ("offsets", "offsets_val", "weight", "weight_val", "weight_test", "offset", "offset_val", "offset_test")


@dataclass(frozen=True)
class DatasetCase:
    """A data set, as ``data=NAME`` and overrides of its keys choose it."""

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
        """The data, loaded after NumPy's generator was given one seed."""
        return _loaded(self.dataset, seed=1)


def _loaded(dataset: Dataset, seed: int) -> FederatedData:
    before = np.random.get_state()
    np.random.seed(seed)
    try:
        dataset.fetch()
        return dataset.load()
    finally:
        np.random.set_state(before)


def _arrays(data: FederatedData) -> Iterator[tuple[str, np.ndarray]]:
    for name in (*_SPLITS, *_MORE):
        if (value := getattr(data, name)) is not None:
            yield name, np.asarray(value)


# ---------------------------------------------------------------- the laws


def valid(case: DatasetCase) -> None:
    """The data have what every algorithm needs: finite numbers, rows for each client, two classes to tell apart."""
    case.data.validate()


def same_again(case: DatasetCase) -> None:
    """Loading again gives the same arrays: random numbers come from ``stream(seed, names...)`` and not from NumPy's
    generator of the process."""
    again = dict(_arrays(_loaded(case.dataset, seed=2)))
    for name, value in _arrays(case.data):
        same = name in again and value.dtype == again[name].dtype and np.array_equal(value, again[name])
        require(same, f"{name} should be the same when the data are loaded again, and differs: draw random numbers "
                      "from fcorun.datasets.base.stream(seed, ...)")  # fmt: skip


def same_fingerprint(case: DatasetCase) -> None:
    """The fingerprint of the same data set is the same."""
    again = build_plugin("data", case.config["data"]).fingerprint()
    require(case.dataset.fingerprint() == again, "fingerprint() should be the same for the same options and files, and "
                                                 "differs: sources() should digest what files hold")  # fmt: skip


def parts(case: DatasetCase) -> None:
    """Each of several hosts has the rows of its own clients, as the whole data have them."""
    for part in range(HOSTS):
        found = case.dataset.load_shard(part, HOSTS)
        cut = found.host_bounds
        require(cut is not None and np.array_equal(found.offsets, case.data.offsets),
                f"load_part({part}, {HOSTS}) should have the offsets of all clients, and a cut")  # fmt: skip
        assert cut is not None
        rows = slice(*case.data.offsets[[cut[part], cut[part + 1]]])
        same = np.array_equal(np.asarray(found.x[rows]), np.asarray(case.data.x[rows]))
        require(same, f"load_part({part}, {HOSTS}) should have the rows of its clients as load() has them, and differs")
        require(np.array_equal(found.y, case.data.y), f"load_part({part}, {HOSTS}) should have all targets of load()")


def _population(case: DatasetCase) -> str:
    return "its clients make their rows" if case.data.generated is not None else ""


CHECKS: tuple[Check[DatasetCase], ...] = (
    Check("the data are valid", valid),
    Check("the same rows again", same_again),
    Check("the same fingerprint again", same_fingerprint),
    Check("each host has the rows of its own clients", parts, _population),
)
